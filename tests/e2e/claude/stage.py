"""What the tests of Claude runs have in common: who plays, what is written down, what is looked at.

Two players take the same script. ``claude`` is the real CLI with a scripted model behind it, ``scripted`` the scripted
agent in the CLI's place. Everything is done through the command line, as a user would.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from world import Hocket

from hocket.rehearsal import Message, Script, ScriptedModel, install, parse

Event = dict[str, Any]
Run = dict[str, Any]
Document = Mapping[str, Any]

PLAYERS = ("claude", "scripted")
ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "rehearsal",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_MAX_RETRIES": "1",
}
"""Nothing that leaves the machine, no dialogue, no long patience with a failing API; a root user is no obstacle."""


def real_cli() -> Path:
    """The real program. It lies in a wheel; importing that would take longer than a run."""
    found = importlib.util.find_spec("claude_agent_sdk")
    program = Path(found.origin).parent / "_bundled/claude" if found and found.origin else None
    if program is None or not program.exists():
        pytest.fail("the real CLI is not installed: pip install -e '.[test]' brings claude-agent-sdk, which has it")
    return program


# --- Players ------------------------------------------------------------------------------------------------


class Model(ScriptedModel):
    """A scripted model that keeps what it was asked, to be looked at."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.bodies: list[Mapping[str, Any]] = []

    def answer(self, body: Mapping[str, Any], session: str, sub_agent: str) -> Message:
        self.bodies.append(body)
        return super().answer(body, session, sub_agent)

    @property
    def last(self) -> Mapping[str, Any]:
        return self.bodies[-1]

    def heard(self) -> str:
        """All that was in the last request, as text."""
        return json.dumps(self.last, ensure_ascii=False)


class Stage:
    """Puts players into the environment that every later command sees."""

    def __init__(self, player: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.player = player
        self._world = world
        self._monkeypatch = monkeypatch
        self._models: list[Model] = []

    @property
    def is_real(self) -> bool:
        return self.player == "claude"

    def plays(self, *rules: Document, **more: Any) -> None:
        """The player from now on, with a script of these rules."""
        document = {"rules": list(rules), **more}
        if self.is_real:
            self.model_plays(document)
        else:
            script = self._world / "script.json"
            script.write_text(json.dumps(document), encoding="utf-8")
            program = install(self._world / "scripted", script, self._world / "state")
            self._monkeypatch.setenv("HOCKET_CLAUDE", str(program))

    def model_plays(self, document: Document) -> None:
        model = Model(parse(document))
        model.start()
        self._models.append(model)
        for name, value in {**ENVIRONMENT, "ANTHROPIC_BASE_URL": model.url, "HOCKET_CLAUDE": str(real_cli())}.items():
            self._monkeypatch.setenv(name, value)

    @property
    def model(self) -> Model:
        return self._models[-1]

    def close(self) -> None:
        for model in self._models:
            model.stop()


# --- Scripts ------------------------------------------------------------------------------------------------


def says(*words: str, **when: Any) -> Document:
    """A rule by which an agent says something and does nothing else."""
    return {"when": when, "do": [{"say": word} for word in words]}


def bash(command: str, result: str = "") -> Document:
    return {"tool": {"name": "Bash", "input": {"command": command, "description": "a command"}, "result": result}}


def asks_to(command: str, result: str = "", **branches: Any) -> Document:
    """A command for which leave has to be asked."""
    given = {"command": command, "description": "a command"}
    return {"ask": {"tool": "Bash", "input": given, "result": result, **branches}}


def define(project: Path, file: str, *, name: str | None = None, body: str | None = None, **head: str) -> Path:
    """Writes a definition below a project. Its body names it, which is how a script knows who is speaking."""
    called = name or file
    lines = {"name": called, "description": f"does what {called} does", **head}
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    path = project / ".claude/agents" / f"{file}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{text}---\n{body or f'You are agent: {called}.'}\n", encoding="utf-8")
    return path


# --- Looking ------------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What a command with ``--json`` said about a run, and how it ended."""

    code: int
    events: list[Event]
    stderr: str

    @property
    def ended(self) -> dict[str, Any]:
        """The last line's data."""
        assert self.events, self.stderr
        assert self.events[-1]["type"] == "run.ended", self.events[-1]
        data: dict[str, Any] = self.events[-1]["data"]
        return data

    @property
    def outcome(self) -> tuple[int, str, str]:
        return self.code, self.ended["status"], self.ended["reason"]

    @property
    def step(self) -> dict[str, Any]:
        """The only step."""
        (step,) = self.ended["steps"]
        found: dict[str, Any] = step
        return found

    @property
    def step_reasons(self) -> list[str]:
        return [step["reason"] for step in self.ended["steps"]]

    @property
    def root(self) -> str:
        """The run that all of it is about."""
        return str(self.events[-1]["root"])

    @property
    def leaf(self) -> str:
        """The only run with a process."""
        (run,) = (run for step in self.ended["steps"] for run in step["runs"])
        return str(run)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]


def heard(code: int, stdout: str, stderr: str) -> Told:
    return Told(code, [json.loads(line) for line in stdout.splitlines()], stderr)


def run(hocket: Hocket, *args: str | Path, **how: Any) -> Told:
    """``hocket run --json`` to its end."""
    done = hocket("run", "--json", *args, **how)
    return heard(done.returncode, done.stdout, done.stderr)


def events_of(hocket: Hocket, ref: str) -> list[Event]:
    return [json.loads(line) for line in hocket("logs", ref, "--json").stdout.splitlines()]


def data_of(hocket: Hocket, ref: str, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events_of(hocket, ref) if event["type"] == kind]


def spawn(hocket: Hocket, *args: str | Path) -> str:
    done = hocket("spawn", "--json", *args)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["run"])


def shown(hocket: Hocket, ref: str) -> Run:
    found: Run = json.loads(hocket("show", ref, "--json").stdout)
    return found


def waited(hocket: Hocket, ref: str) -> tuple[int, Run]:
    """The exit code of ``wait``, and the run."""
    done = hocket("wait", ref, "--json")
    return done.returncode, json.loads(done.stdout)


@contextmanager
def following(hocket: Hocket, ref: str) -> Iterator[Iterator[Event]]:
    """The run's events as they come. The command's own pipe is what is waited on."""
    process = hocket.start("logs", ref, "-f", "--json")
    assert process.stdout is not None
    try:
        yield (json.loads(line) for line in process.stdout)
    finally:
        process.kill()
        process.communicate()


def wait_for(hocket: Hocket, ref: str, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda data: True) -> Event:
    """The first event of that kind which fits, past or to come."""
    with following(hocket, ref) as events:
        for event in events:
            if event["type"] == kind and fits(event["data"]):
                return event
    raise AssertionError(f"run {ref} ended without {kind}")


def server_pid(hocket: Hocket) -> int:
    return int(json.loads(hocket("server", "status", "--json").stdout)["pid"])


def open_gate(path: Path) -> None:
    """Lets a process go on that reads from this FIFO."""
    with path.open("w"):
        pass


def make_gate(path: Path) -> Path:
    os.mkfifo(path)
    return path
