"""Run a case with the real Claude CLI and a scripted model, over plain pipes without a keeper or a server.

The provider builds the command line, and input is closed when the engine would close it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
from e2e.claude.setup import ENVIRONMENT
from golden.claude_cases import Action, Case, FileExists, Interrupt, Say, Until
from world import SYSTEM_PATH

from hocket.model import RUN_DIRECTORY, SESSION, Agent, Definition, Spec
from hocket.providers.base import Answer, State
from hocket.providers.claude import conversation
from hocket.providers.claude.launch import launch, resume
from hocket.providers.claude.reader import reader
from hocket.rehearsal import ScriptedModel, parse
from hocket.sessions.messages import ends_at_once

SECONDS = 30.0
EARLIER_ID = "11111111-1111-4111-8111-111111111111"
SESSION_ID = "22222222-2222-4222-8222-222222222222"
NAME = "builder"


class CaseRun(NamedTuple):
    """Input and output of one process, as they were."""

    spec: Spec
    """With the provider's placeholders still in its arguments."""
    sent: tuple[str, ...]
    lines: tuple[bytes, ...]
    errors: bytes
    code: int


def run_case(case: Case, program: Path, root: Path) -> CaseRun:
    """Run the program to its end, with a home and a project below ``root``."""
    with ScriptedModel(parse({"rules": list(case.rules)})) as model:
        spec = spec_of(case, program, root, model.url)
        if case.earlier is None:
            done = _run(case, spec, root, SESSION_ID)
        else:
            first = msgspec.structs.replace(spec, prompt=case.earlier)
            _run(case._replace(actions=()), first, root, EARLIER_ID)
            done = _run(case, resume(spec, EARLIER_ID, case.prompt), root, SESSION_ID)
        assert not model.uncovered, model.uncovered
    return done


def spec_of(case: Case, program: Path, root: Path, url: str) -> Spec:
    definition = Definition(NAME, case.definition, f"{root}/p/{NAME}.md") if case.definition else None
    agent = Agent(NAME, "claude", str(program), "golden", definition=definition)
    started = launch(agent, replace(case.options, prompt=case.prompt, args=tuple(case.args)))
    return Spec(
        agent=NAME,
        provider="claude",
        argv=started.argv,
        cwd=f"{root}/p",
        env={**_environment(root, url), **started.env},
        prompt=started.prompt,
        stdin=started.stdin,
        loop=case.options.loop,
        marker=case.options.marker,
        files=started.files,
        session=case.options.session,
        on_question=case.options.on_question,
    )


def _environment(root: Path, url: str) -> dict[str, str]:
    """The whole environment of the program; nothing of the recording user's."""
    return {
        "PATH": SYSTEM_PATH,
        "HOME": f"{root}/user",
        "TMPDIR": f"{root}/t",
        "ANTHROPIC_BASE_URL": url,
        **ENVIRONMENT,
    }


def _run(case: Case, spec: Spec, root: Path, session: str) -> CaseRun:
    for name in ("p", "user", "t", "run"):
        (root / name).mkdir(exist_ok=True)
    for name, content in spec.files.items():
        (root / "run" / name).write_text(content, encoding="utf-8")
    argv = [_filled(argument, session, f"{root}/run") for argument in spec.argv]
    with (root / "err").open("w+b") as errors, _process(argv, spec, errors) as process:
        connection = _Connection(process, spec)
        connection.send(conversation.message(spec.prompt or ""))
        for action in case.actions:
            connection.perform(action)
        if not ends_at_once(spec):
            connection.read_until_over()
        code = connection.end()
        errors.seek(0)
        return CaseRun(spec, tuple(connection.sent), tuple(connection.lines), errors.read(), code)


def _filled(argument: str, session: str, place: str) -> str:
    return argument.replace(SESSION, session).replace(RUN_DIRECTORY, place)


@contextmanager
def _process(argv: list[str], spec: Spec, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, cwd=spec.cwd, env=dict(spec.env), stdin=pipe, stdout=pipe, stderr=errors)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


class _Connection:
    """One process with all lines that were sent and received."""

    def __init__(self, process: subprocess.Popen[bytes], spec: Spec) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout.fileno()
        self._project = Path(spec.cwd)
        self._read = reader(spec)
        self._rest = b""
        self.state: State = {}
        self.question: Mapping[str, Any] = {}
        self.sent: list[str] = []
        self.lines: list[bytes] = []

    def send(self, line: str) -> None:
        self.sent.append(line)
        self._in.write(line.encode())
        self._in.flush()

    def perform(self, action: Action) -> None:
        match action:
            case Say(text):
                self.send(conversation.message(text))
            case Until(kind):
                self.read_until(lambda line: kind_of(line) == kind)
            case FileExists(file):
                self._wait_for(self._project / file)
            case Answer():
                self.send(conversation.answer(self.question, action))
            case Interrupt():
                self.send(conversation.interrupt("stop-1"))

    def read_until(self, enough: Callable[[bytes], bool]) -> None:
        for line in self._lines():
            if enough(line):
                return
        raise AssertionError(f"the program ended early, after {self.lines[-1:]}")

    def read_until_over(self) -> None:
        """Read until the provider says that input may end, as the engine does."""
        if not conversation.is_finished(self.state, False):
            self.read_until(lambda _line: conversation.is_finished(self.state, False))

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + SECONDS
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} does not appear"
            time.sleep(0.01)

    def end(self) -> int:
        """Close the input, read the rest, and return the exit code."""
        self._in.close()
        for _line in self._lines():
            pass
        return self._process.wait(SECONDS)

    def _lines(self) -> Iterator[bytes]:
        deadline = time.monotonic() + SECONDS
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self._take(line + b"\n")
                yield line
            if not select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no output for {SECONDS:g} s after {self.lines[-1:]}")
            data = os.read(self._out, 1 << 16)
            if not data:
                break
            self._rest += data
        assert not self._rest, f"a line without an end: {self._rest!r}"

    def _take(self, line: bytes) -> None:
        self.lines.append(line)
        self.state, said = self._read(self.state, "out", line, None)
        for kind, data in said:
            if kind == "question":
                self.question = data


def kind_of(line: bytes) -> str:
    """The type of a line; for stream and system lines with their own subtype."""
    value = json.loads(line)
    kind = str(value["type"])
    if kind == "stream_event":
        return f"{kind}/{value['event']['type']}"
    return f"{kind}/{value['subtype']}" if kind == "system" else kind
