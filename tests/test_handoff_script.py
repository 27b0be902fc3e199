"""``scripts/agent/handoff.sh`` without ``hocket``: its requests, its output and its exit codes.

Most tests use a fake server with prepared answers; the last ones use the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from patience import PATIENCE
from world import Bin

SCRIPT = Path(__file__).parents[1] / "scripts/agent/handoff.sh"
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
PAIRS = [
    (shell, awk)
    for shell, awk in (("dash", "mawk"), ("bash", "gawk"), ("dash", "busybox"))
    if shutil.which(shell) and shutil.which(awk)
]
"""Shells, each with an `awk`; these differ in bytes, escapes and line ends."""
WAYS = [
    # What does not know of locales need not be tried in both each time.
    pytest.param(shell, awk, locale, marks=[pytest.mark.slow] if (awk, locale) == ("busybox", "C") else [])
    for shell, awk in PAIRS
    for locale in ("C", "C.UTF-8")
]

pytestmark = pytest.mark.skipif(not (SHELLS and shutil.which("curl")), reason="needs a POSIX shell and curl")

NASTY = {
    "quotes": "say \"hello\" and 'goodbye' and `true`",
    "shell": "$(touch pwned) ${HOME} ; rm -rf x && echo $? | cat > y # !! *",
    "lines": "first\nsecond\n\n\nlast\n",
    "only newlines": "\n\n\n",
    "backslashes": '\\ \\\\ \\n \\" \\u0041 C:\\temp\\',
    "a backslash at the end": "x\\",
    "quotes at the end": 'x\\"',
    "control bytes": "".join(map(chr, range(1, 32))) + "\x7f",
    "utf-8": "Grüße, 世界, 𝄞 and 👩‍🚀, \u2028\u2029 \ufeff",
    "json": '{"agentName": "qa", "a": [1, null, "\\""], "data": {"output": "no"}}',
    "percent": "100 %s %d %% %n",
    "a dash": "--help",
    "spaces": "  two  \t ",
    "long": 'abc\\"\nä' * 12_000,
}


class Seen(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, bytes] | None
"""A status and a body; None closes the connection."""


class Fake:
    """A server on a unix socket that answers with a function and records its requests."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix:{path}"
        self.seen: list[Seen] = []
        self.answer: Callable[[Seen], Answer] = lambda _: None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                self._handle(connection, file)

    def _handle(self, connection: socket.socket, file: Any) -> None:
        method, path, _ = file.readline().decode().split()
        headers: dict[str, str] = {}
        while line := file.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        if headers.get("expect"):
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        seen = Seen(method, path, headers, file.read(int(headers.get("content-length", 0))))
        self.seen.append(seen)
        if (answer := self.answer(seen)) is None:
            return
        status, body = answer
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)


@pytest.fixture
def fake(world: Path) -> Iterator[Fake]:
    server = Fake(world / "s")
    yield server
    server.close()


@pytest.fixture
def awk(request: pytest.FixtureRequest, world: Path) -> str:
    """The first `awk` on PATH."""
    (world / "bin/awk").symlink_to(str(shutil.which(request.param)))
    return str(request.param)


def as_json(value: Any, ascii_only: bool = False, indent: int | None = None) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")


def taken(seen: Seen) -> Answer:
    """Return the response to a hand-off: a task with several records, and the id of the new one."""
    chain = [{"id": "h1", "output": "of another hand-off", "status": "done"}]
    task = {"id": "t1", "status": {"type": "active"}, "currentAgent": "qa", "agentChain": chain}
    return 200, as_json({"data": task, "meta": {"timestamp": 1, "handoff": "h7", "run": "r9"}})


def ended(output: Any, status: str = "done", reason: str = "single_run", **more: Any) -> Callable[[Seen], Answer]:
    """Return the answers of a server whose hand-off ends at once."""
    record = {"id": "h7", "prompt": '{"status": "failed"}', "status": status, "reason": reason, "output": output}

    def answer(seen: Seen) -> Answer:
        return taken(seen) if seen.method == "POST" else (200, as_json({"data": record, "meta": {}}, **more))

    return answer


def script(
    fake: Fake | None,
    *args: str,
    shell: str = SHELLS[0] if SHELLS else "",
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    given = {"HOCKET_URL": fake.url, "HOCKET_TOKEN": "secret-of-the-run"} if fake else {}
    return subprocess.run(
        [shell, str(SCRIPT), *args],
        env={**os.environ, **given, **(env or {})},
        input=stdin,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


# --- What it is given ---


@pytest.mark.req("S2-68", "S2-76")
@pytest.mark.parametrize("args", [(), ("t1",), ("t1", "qa"), ("t1", "qa", "two", "words")], ids=len)
def test_wrong_argument_count_prints_usage(args: tuple[str, ...]) -> None:
    assert os.access(SCRIPT, os.X_OK)
    done = script(None, *args)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage: scripts/agent/handoff.sh TASK AGENT PROMPT" in done.stderr


@pytest.mark.parametrize(
    ("args", "env", "told"),
    [
        (("", "qa", "x"), {}, b"HOCKET_TASK"),
        (("t1", "", "x"), {}, b"AGENT"),
        (("t1", "qa", "x"), {"HOCKET_HANDOFF_TIMEOUT": "soon"}, b"soon"),
        (("t1", "qa", "x"), {"HOCKET_URL": "ftp://x"}, b"ftp://x"),
    ],
)
def test_invalid_arguments_are_refused_before_sending(args: tuple[str, ...], env: dict[str, str], told: bytes) -> None:
    done = script(None, *args, env=env)
    assert (done.returncode, done.stdout) == (2, b"")
    assert told in done.stderr


@pytest.mark.req("S2-69", "S2-70", "S2-66")
@pytest.mark.parametrize(("shell", "awk", "locale"), WAYS, indirect=["awk"])
@pytest.mark.usefixtures("awk")
def test_prompt_arrives_unchanged(fake: Fake, project: Path, shell: str, locale: str) -> None:
    fake.answer = ended("ok")
    for name, prompt in NASTY.items():
        done = script(fake, "t1", "qa", prompt, shell=shell, env={"LC_ALL": locale})
        assert (done.returncode, done.stdout, done.stderr) == (0, b"ok\n", b""), name
        post = fake.seen[-2]
        assert (post.method, post.path) == ("POST", "/api/tasks/t1/handoff")
        assert json.loads(post.body) == {"agentName": "qa", "prompt": prompt}, name
    assert os.listdir(project) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_prompt_is_read_from_standard_input(fake: Fake, shell: str) -> None:
    fake.answer = ended("ok")
    prompt = 'abc \\ "ä"\n' * 40_000 + "\n\n"
    assert script(fake, "t1", "qa", "-", shell=shell, stdin=prompt.encode()).returncode == 0
    assert json.loads(fake.seen[0].body)["prompt"] == prompt


def test_names_stay_one_path_segment(fake: Fake) -> None:
    fake.answer = lambda seen: (404, as_json({"error": {"code": "not_found", "message": "no"}}))
    script(fake, "../t 1/ä?#", 'q"a', "x")
    assert fake.seen[0].path == "/api/tasks/..%2Ft%201%2F%C3%A4%3F%23/handoff"
    assert json.loads(fake.seen[0].body)["agentName"] == 'q"a'


@pytest.mark.req("S2-89")
def test_token_is_sent_and_not_on_command_line(fake: Fake, world: Path) -> None:
    lines: list[bytes] = []

    def answer(seen: Seen) -> Answer:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                lines.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
        return ended("ok")(seen)

    fake.answer = answer
    assert script(fake, "t1", "qa", "x").returncode == 0
    assert {seen.headers["authorization"] for seen in fake.seen} == {"Bearer secret-of-the-run"}
    assert any(b"--unix-socket" in line for line in lines)
    assert not any(b"secret-of-the-run" in line for line in lines)


def test_curl_settings_of_user_are_ignored(fake: Fake, world: Path) -> None:
    (world / "user/.curlrc").write_text("include\nfail\n")
    fake.answer = ended("ok")
    done = script(fake, "t1", "qa", "x", env={"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"})
    assert (done.returncode, done.stdout) == (0, b"ok\n")


# --- What comes back ---


@pytest.mark.req("S2-72")
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize(("shell", "awk", "locale"), WAYS, indirect=["awk"])
@pytest.mark.usefixtures("awk")
def test_final_message_is_printed_unchanged(fake: Fake, shell: str, locale: str, ascii_only: bool) -> None:
    for name, output in {**NASTY, "zero": "a\0b"}.items():
        fake.answer = ended(output, ascii_only=ascii_only, indent=2 if ascii_only else None)
        done = script(fake, "t1", "qa", "x", shell=shell, env={"LC_ALL": locale})
        wanted = output if output.endswith("\n") else output + "\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, wanted.encode(), b""), name


def test_empty_message_prints_nothing(fake: Fake) -> None:
    fake.answer = ended("")
    done = script(fake, "t1", "qa", "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_lone_surrogate_is_printed_as_replacement(fake: Fake) -> None:
    fake.answer = lambda seen: (
        taken(seen)
        if seen.method == "POST"
        else (200, b'{"data": {"status": "done", "output": "a\\ud83d b\\ude00\\ud83dx\\/\\ud83d\\u0041"}}')
    )
    assert script(fake, "t1", "qa", "x").stdout.decode() == "a\ufffd b\ufffd\ufffdx/\ufffdA\n"


@pytest.mark.req("S2-71", "S2-74")
def test_own_record_is_polled_until_closed(fake: Fake) -> None:
    states = iter(["running", "waiting", "done"])

    def answer(seen: Seen) -> Answer:
        if seen.method == "POST":
            return taken(seen)
        state = next(states)
        return 200, as_json({"data": {"status": state, "output": "mine" if state == "done" else ""}})

    fake.answer = answer
    done = script(fake, "t1", "qa", "x")
    assert (done.returncode, done.stdout) == (0, b"mine\n")
    assert [(seen.method, seen.path) for seen in fake.seen] == [
        ("POST", "/api/tasks/t1/handoff"),
        *[("GET", "/api/tasks/t1/handoffs/h7")] * 3,
    ]


@pytest.mark.req("S2-73")
@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        ("failed", "exit", 1),
        ("stopped", "stopped", 1),
        ("lost", "lost", 1),
        ("failed", "timeout", 1),
        ("failed", "no_answer", 4),
        ("failed", "budget", 5),
    ],
)
def test_unfinished_agent_has_failure_exit_code(fake: Fake, status: str, reason: str, code: int) -> None:
    fake.answer = ended(f"{status} ({reason}): it broke", status, reason)
    done = script(fake, "t1", "qa", "x")
    assert (done.returncode, done.stdout) == (code, b"")
    assert f"{status} ({reason}): it broke".encode() in done.stderr


@pytest.mark.req("S2-73", "S2-37", "S2-38")
@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [(400, "unknown_agent", 2), (404, "not_found", 2), (409, "conflict", 2), (403, "not_trusted", 4), (507, "disk", 2)],
)
def test_refusal_prints_message_and_hint(fake: Fake, status: int, code: str, exit_code: int) -> None:
    error = {"code": code, "message": 'no "qa"\there', "hint": "try: hocket agents"}
    fake.answer = lambda _: (status, as_json({"error": error}))
    done = script(fake, "t1", "qa", "x")
    assert (done.returncode, done.stdout) == (exit_code, b"")
    assert done.stderr == b'handoff.sh: no "qa"\there\nhint: try: hocket agents\n'
    assert len(fake.seen) == 1


@pytest.mark.req("S2-73")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"null",
        b'"meta"',
        b'{"meta": {"handoff": null}}',
        b'{"data": {"meta": {"handoff": "h1"}}}',
        b'{"meta": {"handoff": "h1"',
        b'{"meta": {"handoff": "h1}',
        b'{"meta": {"handoff": "h\\',
        b'{"meta": {"handoff": "h\\q"}}',
        b'{"meta": {"handoff": "h\\u00"}}',
        b'{"meta": {"handoff": "h1"}]',
        b"<html>502</html>",
    ],
)
def test_unexpected_response_is_a_failure(fake: Fake, body: bytes) -> None:
    fake.answer = lambda _: (200, body)
    done = script(fake, "t1", "qa", "x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"unexpected response" in done.stderr


@pytest.mark.req("S2-73")
def test_missing_server_is_reported(world: Path) -> None:
    done = script(None, "t1", "qa", "x", env={"HOCKET_URL": f"unix:{world}/none"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"cannot reach the server" in done.stderr


def test_broken_connection_is_retried_with_same_key(fake: Fake) -> None:
    def answer(seen: Seen) -> Answer:
        first = len([one for one in fake.seen if one.method == seen.method]) == 1
        return None if first else ended("ok")(seen)

    fake.answer = answer
    done = script(fake, "t1", "qa", "x")
    assert (done.returncode, done.stdout) == (0, b"ok\n")
    assert b"connection to the server lost, retrying" in done.stderr
    posts = [seen.headers["idempotency-key"] for seen in fake.seen if seen.method == "POST"]
    assert len(posts) == 2
    assert len(set(posts)) == 1
    assert len(posts[0]) == 32


@pytest.mark.req("S2-75")
def test_timeout_exits_with_3_and_names_run(fake: Fake) -> None:
    fake.answer = ended("", "running", "")
    done = script(fake, "t1", "qa", "x", env={"HOCKET_HANDOFF_TIMEOUT": "1"})
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"is still running" in done.stderr
    assert b"hocket handoff --result r9" in done.stderr


# --- With hocket on PATH ---


@pytest.mark.parametrize("shell", SHELLS)
def test_hocket_on_path_replaces_the_script(agent: Bin, shell: str) -> None:
    agent("hocket", "import json, os, sys; print(json.dumps([os.getppid(), *sys.argv[1:]])); sys.exit(7)")
    for prompt in NASTY.values():
        done = script(None, "t1", "qa", prompt, shell=shell, env={"HOCKET_HANDOFF_TIMEOUT": "30"})
        parent, *words = json.loads(done.stdout)
        assert (done.returncode, done.stderr, parent) == (7, b"", os.getpid())
        assert words == ["handoff", "--timeout", "30", "--", "t1", "qa", prompt]
