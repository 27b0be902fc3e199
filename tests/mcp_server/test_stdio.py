"""The real command over pipes, with requests written by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_server.piping import COMMAND, Pipes
from patience import PATIENCE
from world import Bin, Hocket, processes_of

from hocket.mcp.protocol import MAX_MESSAGE

pytestmark = pytest.mark.shared_server

HEAVY = ("asyncio", "rich", "starlette", "uvicorn", "msgspec", "mcp")


@pytest.fixture
def pipes(home: Path, project: Path) -> Iterator[Pipes]:
    with Pipes(project) as made:
        yield made


@pytest.fixture
def gate(world: Path) -> Path:
    path = world / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture
def waiter(agent: Bin, gate: Path) -> str:
    """An agent that works until the gate is opened."""
    agent("waiter", f"print('begun', flush=True); open({str(gate)!r}).read(); print('final words')")
    return "waiter"


def open_gate(path: Path) -> None:
    with path.open("w"):
        pass


def initialize(pipes: Pipes, version: str = "2025-11-25") -> Any:
    pipes.ask("initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "test", "version": "1"})
    answer = pipes.next()
    pipes.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return answer


def server_pid(hocket: Hocket) -> int | None:
    """The pid of the server if it runs; does not start it."""
    found: int | None = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    return found


# --- Without a server ---


@pytest.mark.own_server
def test_listing_tools_starts_no_server(pipes: Pipes, home: Path) -> None:
    assert initialize(pipes)["result"]["serverInfo"]["name"] == "hocket"
    pipes.ask("tools/list")
    assert "hand_off" in [tool["name"] for tool in pipes.next()["result"]["tools"]]
    assert pipes.end() == 0
    assert list(home.iterdir()) == []


def test_server_loads_nothing_heavy(home: Path, project: Path) -> None:
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    said = "".join(json.dumps(message) + "\n" for message in asked)
    program = "import sys; from hocket.cli import main; code = main(['mcp']); print(*sys.modules, file=sys.stderr)"
    source = str(Path(sys.modules["hocket"].__file__ or "").parents[1])
    done = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path.insert(0, {source!r}); {program}"],
        input=said,
        capture_output=True,
        text=True,
        check=True,
        cwd=project,
    )
    assert len(done.stdout.splitlines()) == 2
    loaded = done.stderr.split()
    assert "hocket.cli.mcp" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_modules_of_the_agents_directory_are_not_imported(home: Path, project: Path) -> None:
    for name in ("hocket", "_json", "select"):
        (project / f"{name}.py").write_text("raise SystemExit(7)")
    with Pipes(project) as pipes:
        assert initialize(pipes)["result"]["serverInfo"]["name"] == "hocket"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{nope\n", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "\xff\xfe"}\n', -32700),
        (b"[" * 50_000 + b"\n", -32700),
        (b"7\n", -32600),
        (b"x" * (MAX_MESSAGE + 5) + b"\n", -32600),
        (b"[]\n", -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]\n', -32600),
    ],
    ids=["broken", "not text", "deep", "not an object", "too long", "empty batch", "batch"],
)
def test_line_after_invalid_one_is_answered(pipes: Pipes, raw: bytes, code: int) -> None:
    initialize(pipes)
    pipes.write(raw)
    received = pipes.next()
    assert (received["id"], received["error"]["code"]) == (None, code)
    id = pipes.ask("ping")
    assert pipes.next() == {"jsonrpc": "2.0", "id": id, "result": {}}


def test_blank_lines_are_ignored(pipes: Pipes) -> None:
    pipes.write(b'\n\r\n   \n{"jsonrpc": "2.0", "id": "a", "method": "ping"}\r\n')
    assert pipes.next()["id"] == "a"


def test_messages_may_be_cut_anywhere(pipes: Pipes) -> None:
    pings = b"".join(b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}\n' % number for number in range(3))
    for cut in (pings[:60], pings[60:61], pings[61:]):
        pipes.write(cut)
    assert [pipes.next()["id"] for _ in range(3)] == [0, 1, 2]


def test_last_line_without_newline_is_a_message(pipes: Pipes) -> None:
    pipes.write(b'{"jsonrpc": "2.0", "id": 5, "method": "ping"}')
    assert pipes.process.stdin is not None
    pipes.process.stdin.close()
    assert pipes.next()["id"] == 5


def test_newer_protocol_needs_no_handshake(pipes: Pipes) -> None:
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": "2026-07-28", f"{prefix}clientCapabilities": {}}
    pipes.ask("server/discover", _meta=meta)
    assert pipes.next()["result"]["supportedVersions"][0] == "2026-07-28"


def test_closed_output_is_not_an_error(home: Path, project: Path) -> None:
    with Pipes(project) as pipes:
        assert pipes.process.stdout is not None
        pipes.process.stdout.close()
        pipes.ask("ping")
        assert pipes.end() == 0
        assert pipes.process.stderr is not None
        assert pipes.process.stderr.read() == b""


# --- Calls ---


def test_run_is_started_shown_and_waited_for(pipes: Pipes, agent: Bin, hocket: Hocket) -> None:
    agent("worker", "import sys; print('made of', sys.argv[-1])")
    run = pipes.facts("spawn", agent="worker", prompt="clay")["run"]
    assert pipes.call("wait", run=run) == (False, "made of clay\n")
    assert pipes.call("wait", run=run) == (False, "made of clay\n")
    assert pipes.call("wait", run=int(hocket.number())) == (False, "made of clay\n")
    failed, text = pipes.call("status", run=run)
    assert (failed, "worker: done" in text) == (False, True)
    assert pipes.call("status") == (False, "No runs are active.")


def test_hand_off_returns_only_final_message(pipes: Pipes, agent: Bin, hocket: Hocket) -> None:
    agent("worker", "import sys; print('done:', sys.argv[-1])")
    prompt = 'Fix it.\nIt\'s "broken" $(here) \\ é😀'
    id = pipes.start("hand_off", agent="worker", prompt=prompt)
    result = pipes.next()["result"]
    assert (id, result["isError"], result["content"][0]["text"]) == (1, False, f"done: {prompt}\n")
    assert "structuredContent" not in result
    facts = result["_meta"]["hocket"]
    assert (facts["status"], set(facts)) == ("done", {"run", "task", "handoff", "status", "reason"})
    task = json.loads(hocket("task", "show", facts["task"], "--json").stdout)
    assert task["description"] == "Fix it."
    for named in ({"run": facts["run"]}, {"handoff": facts["handoff"], "task": facts["task"]}):
        assert pipes.call("wait", **named) == (False, f"done: {prompt}\n")


def test_listed_project_agents_accept_hand_offs(pipes: Pipes, agent: Bin, project: Path) -> None:
    agent("tool", "import sys; print('made of', sys.argv[-1])")
    (project / "hocket.toml").write_text('[agents.tooler]\npath = "tool"\n[agents."my tool"]\npath = "tool"\n')
    names = pipes.facts("list_agents", contains="tool")["agents"]
    assert names == ["my-tool", "tooler"]
    for name in names:
        assert pipes.call("hand_off", agent=name, prompt="clay") == (False, "made of clay\n")


@pytest.mark.parametrize("how", ["spawn", "hand_off"])
def test_failed_run_is_an_error(pipes: Pipes, agent: Bin, how: str) -> None:
    agent("failing", "import sys; print('half'); print('no disk', file=sys.stderr); sys.exit(3)")
    if how == "spawn":
        run = pipes.facts("spawn", agent="failing", prompt="x")["run"]
        pipes.start("wait", run=run)
    else:
        pipes.start("hand_off", agent="failing", prompt="x")
    result = pipes.next()["result"]
    assert result["isError"]
    assert result["content"][0]["text"] == "failed (exit)\n\nhalf\n"
    assert (result["structuredContent"]["status"], result["structuredContent"]["reason"]) == ("failed", "exit")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("spawn", {"agent": "unknown", "prompt": "x"}, "unknown"),
        ("hand_off", {"agent": "unknown", "prompt": "x"}, "unknown"),
        ("hand_off", {"agent": "sh", "prompt": "x", "task": "t404"}, "t404"),
        ("wait", {"run": "999999"}, "999999"),
        ("wait", {}, "one of run, handoff and question"),
        ("wait", {"run": "1", "handoff": "h1"}, "exactly one"),
        ("wait", {"handoff": "h1"}, "needs its task"),
        ("stop", {"run": "999999"}, "999999"),
        ("send", {"run": "999999", "text": "x"}, "999999"),
        ("ask", {"question": "why?"}, "only an agent that Hocket runs"),
        ("spawn", {"agent": "sh"}, "needs prompt"),
        ("spawn", {"agent": "sh", "prompt": "x", "cwd": "relative"}, "absolute"),
    ],
)
def test_refused_call_states_reason(pipes: Pipes, name: str, arguments: dict[str, Any], words: str) -> None:
    failed, text = pipes.call(name, **arguments)
    assert failed
    assert text.startswith("refused (")
    assert words in text


def test_wait_timeout_names_the_run(pipes: Pipes, waiter: str, gate: Path) -> None:
    pipes.start("hand_off", agent=waiter, prompt="x", timeout=0.3)
    result = pipes.next()["result"]
    facts = result["structuredContent"]
    assert (result["isError"], facts["status"], facts["reason"]) == (True, "running", "wait_timeout")
    text = result["content"][0]["text"]
    assert text.startswith("timeout: waiter is still working")
    assert f'wait with run "{facts["run"]}"' in text
    open_gate(gate)
    assert pipes.call("wait", run=facts["run"]) == (False, "begun\nfinal words\n")


def test_progress_is_sent_during_a_wait(pipes: Pipes, waiter: str, gate: Path) -> None:
    id = pipes.start("hand_off", token="t", agent=waiter, prompt="x")
    received = pipes.next()
    assert (received["method"], received["params"]["progressToken"], received["params"]["progress"]) == (
        "notifications/progress",
        "t",
        1,
    )
    open_gate(gate)
    while "id" not in (answer := pipes.next()):
        assert answer["params"]["progress"] > received["params"]["progress"]
        received = answer
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (id, "begun\nfinal words\n")


def test_wait_does_not_block_other_calls(pipes: Pipes, waiter: str, gate: Path) -> None:
    run = pipes.facts("spawn", agent=waiter, prompt="x")["run"]
    waiting = pipes.start("wait", run=run)
    failed, text = pipes.call("status")
    assert (failed, "waiter: " in text) == (False, True)
    open_gate(gate)
    assert pipes.next()["id"] == waiting


def test_cancelled_wait_does_not_stop_run(pipes: Pipes, waiter: str, gate: Path) -> None:
    run = pipes.facts("spawn", agent=waiter, prompt="x")["run"]
    waiting = pipes.start("wait", token=1, run=run)
    pipes.next()
    pipes.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": waiting}})
    read = pipes.start("status")  # Its response shows that the earlier messages have been read.
    while pipes.next().get("id") != read:
        pass
    open_gate(gate)
    again = pipes.start("wait", run=run)
    while "id" not in (answer := pipes.next()):
        pass
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (again, "begun\nfinal words\n")


def test_end_of_input_does_not_stop_run(pipes: Pipes, waiter: str, gate: Path, hocket: Hocket) -> None:
    run = pipes.facts("spawn", agent=waiter, prompt="x")["run"]
    pipes.start("wait", token=1, run=run)
    pipes.next()
    assert pipes.end() == 0
    open_gate(gate)
    assert hocket("wait", run).stdout == "begun\nfinal words\n"


def test_quick_call_is_answered_after_end_of_input(home: Path, project: Path, agent: Bin) -> None:
    agent("worker", "print('x')")
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "status", "arguments": {}}}
    done = subprocess.run(COMMAND, input=json.dumps(message).encode(), capture_output=True, cwd=project, check=True)
    assert json.loads(done.stdout)["result"]["content"][0]["text"] == "No runs are active."


@pytest.mark.own_server
def test_wait_survives_server_kill(pipes: Pipes, waiter: str, gate: Path, hocket: Hocket, home: Path) -> None:
    id = pipes.start("hand_off", token=1, agent=waiter, prompt="x")
    pipes.next()
    before = server_pid(hocket)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    open_gate(gate)
    while "id" not in (answer := pipes.next()):
        pass
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (id, "begun\nfinal words\n")
    assert server_pid(hocket) != before
    assert len(json.loads(hocket("ps", "-a", "--json").stdout)) == 1


@pytest.mark.own_server
def test_wait_follows_run_to_next_server(pipes: Pipes, waiter: str, gate: Path, hocket: Hocket) -> None:
    """Only this process starts the server again: the agent is busy, so its keeper does not."""
    pipes.start("hand_off", token=1, agent=waiter, prompt="x")
    pipes.next()
    before = server_pid(hocket)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while server_pid(hocket) in (before, None):
        assert time.monotonic() < deadline, "no server came back"
    open_gate(gate)
    while "id" not in (answer := pipes.next()):
        pass
    assert answer["result"]["content"][0]["text"] == "begun\nfinal words\n"


def test_stop_ends_all_processes_of_a_run(pipes: Pipes, waiter: str, home: Path) -> None:
    run = pipes.facts("spawn", agent=waiter, prompt="x")["run"]
    failed, text = pipes.call("stop", run=run)
    assert (failed, text) == (False, f"Run {run}: stopped (stopped).")
    assert not [line for line in processes_of(home).values() if "waiter" in line]
    failed, text = pipes.call("wait", run=run)
    assert (failed, text.startswith("stopped (stopped)")) == (True, True)
