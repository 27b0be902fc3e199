"""``hocket handoff`` from outside: what it prints, how it ends, and that nothing which happens to it ends the work."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from scripted_claude import install_claude
from world import Bin, Hocket

from hocket.cli.handoff import closes

pytestmark = pytest.mark.shared_server

NASTY = "say \"hi\" 'there' `$(touch pwned)` \\ \\n ${HOME}\n\n- Grüße 世界 𝄞\t\x01\x1b[1m\x7f * # !! \\"
ECHO = "import sys; sys.stdout.write(sys.argv[-1])"
SCRIPT = Path(__file__).parents[2] / "scripts/agent/handoff.sh"


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What the condition comes to be. A new file is not notified, so this polls."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return found


def held(world: Path) -> str:
    """The program of an agent that says when it is there and ends when the test lets it."""
    return (
        "import os, sys, time\n"
        f"open({str(world / 'up')!r}, 'w').close()\n"
        f"while not os.path.exists({str(world / 'go')!r}): time.sleep(0.01)\n"
        "print('at last')"
    )


@pytest.fixture
def own(agent: Bin) -> None:
    """``hocket`` itself is on PATH, as it is for users."""
    agent("hocket", f'#!/bin/sh\nexec {sys.executable} -m hocket "$@"\n')


def task_of(hocket: Hocket, ref: str | None = None) -> dict[str, Any]:
    """The test's own, unless another is meant."""
    found: dict[str, Any] = json.loads(hocket("task", "show", ref or hocket.task_number(), "--json").stdout)
    return found


def kill_server(hocket: Hocket) -> None:
    os.kill(json.loads(hocket("server", "status", "--json").stdout)["pid"], signal.SIGKILL)


# --- What it does ---


@pytest.mark.req("S2-71", "S2-72", "S2-57", "S2-60")
def test_handoff_prints_the_final_message_alone(hocket: Hocket, agent: Bin) -> None:
    agent("noisy", "import sys; print('one\\ntwo', file=sys.stderr); print('the result')")
    made = hocket.created("task", "new", "a wish")
    done = hocket("handoff", made, "noisy", "do it")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the result\n", "")
    task = task_of(hocket, made)
    assert (task["status"]["type"], task["currentAgent"], len(task["agentChain"])) == ("waiting", None, 1)
    assert (task["agentChain"][0]["agentName"], task["agentChain"][0]["output"]) == ("noisy", "the result\n")


@pytest.mark.req("S2-66", "S2-70")
def test_prompt_and_message_are_passed_unchanged(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", ECHO)
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "handoff", "echo", NASTY],
        cwd=project,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NASTY}\n".encode(), b"")
    piped = hocket("handoff", hocket.task_number(), "echo", "-", stdin=f"{NASTY}\n\n")
    assert (piped.returncode, piped.stdout) == (0, f"{NASTY}\n\n")
    assert os.listdir(project) == []


@pytest.mark.parametrize("prompt", ["- one\n- two", "--- a/file\n+++ b/file", "-x is broken", "--help me with a = b"])
def test_prompt_may_begin_with_a_dash(hocket: Hocket, agent: Bin, prompt: str) -> None:
    agent("echo", ECHO)
    done = hocket("handoff", "echo", prompt, "--timeout", "20s")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{prompt}\n", "")
    assert hocket("handoff", hocket.task_number(), "echo", prompt, "--timeout=20s").stdout == f"{prompt}\n"


def test_prompt_after_two_dashes_may_be_an_option(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    assert hocket("handoff", "--", "echo", "--json").stdout == "--json\n"


def test_handoff_without_task_creates_one(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("where", "import os; print(os.getcwd(), os.environ['HOCKET_TASK'])")
    (project / "sub").mkdir()
    done = hocket("handoff", "--cwd", "sub", "where", f"  {'x' * 300}\nmore")
    task = task_of(hocket)
    assert done.stdout == f"{project / 'sub'} {task['id']}\n"
    assert (task["description"], task["cwd"]) == ("x" * 200, str(project / "sub"))


def test_nested_handoff_returns_the_task(hocket: Hocket, agent: Bin, own: None, world: Path) -> None:
    agent("inner", "import sys; print('inner saw', sys.argv[-1])")
    agent(
        "outer",
        "import subprocess\n"
        "done = subprocess.run(['hocket', 'handoff', 'inner', 'part'], capture_output=True, text=True)\n"
        "print('outer got', [done.returncode, done.stdout, done.stderr])",
    )
    done = hocket("handoff", "outer", "all")
    assert (done.returncode, done.stdout) == (0, "outer got [0, 'inner saw part\\n', '']\n")
    task = task_of(hocket)
    assert [one["agentName"] for one in task["agentChain"]] == ["outer", "inner"]
    outer, inner = task["agentChain"]
    assert outer["startedAt"] <= inner["startedAt"] <= inner["completedAt"] <= outer["completedAt"]
    assert len(hocket.tasks()) == 1
    shown = hocket("task", "show", task["id"]).stdout
    assert "\n  1  outer  ✓ done" in shown
    assert "\n      2  inner  ✓ done" in shown


def test_json_is_the_record(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    done = hocket("handoff", "echo", "hi", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert (record["agentName"], record["prompt"], record["output"]) == ("echo", "hi", "hi")
    assert (record["status"], record["reason"], record["task"]) == ("done", "exit", task_of(hocket)["id"])


def test_detached_handoff_prints_its_run(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("slow", held(world))
    run = hocket.created("handoff", "slow", "x", "--detach")
    assert task_of(hocket)["currentAgent"] == "slow"
    (world / "go").touch()
    for _ in range(2):
        assert hocket("handoff", "--result", run).stdout == "at last\n"
    made = json.loads(hocket("handoff", hocket.task_number(), "slow", "x", "--detach", "--json").stdout)
    assert set(made) == {"task", "handoff", "run"}
    record = json.loads(hocket("handoff", "--result", made["run"], "--json").stdout)
    assert (record["id"], record["output"]) == (made["handoff"], "at last\n")
    assert hocket("wait", run).stdout == "at last\n"


# --- How it ends ---


@pytest.mark.req("S2-67", "S2-73")
@pytest.mark.parametrize(
    ("body", "words"), [("import sys; print('half'); sys.exit(3)", "failed (exit)"), ("#!/nothing/here\n", "failed")]
)
def test_failure_goes_to_standard_error(hocket: Hocket, agent: Bin, body: str, words: str) -> None:
    agent("bad", body)
    done = hocket("handoff", "bad", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert task_of(hocket)["currentAgent"] is None
    again = hocket("handoff", "--result", task_of(hocket)["agentChain"][0]["run"])
    assert (again.returncode, again.stdout, words in again.stderr) == (1, "", True)


@pytest.mark.req("S2-73", "S2-37", "S2-39", "S2-40")
def test_refused_handoff_starts_nothing(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    task = hocket.created("task", "new", "a wish")
    for words, told in [
        ((task, "unknown-agent", "x"), "Unknown agent: unknown-agent"),
        (("7777", "echo", "x"), "7777"),
        (("echo", "two", "words"), "in quotes"),
        (("echo",), "AGENT PROMPT"),
        ((), "AGENT PROMPT"),
        ((task, "echo", "x", "y"), "in quotes"),
        ((task, "", "x"), "must not be empty"),
        ((task, "echo", " \n"), "empty"),
        ((task, "echo", "x", "--timeout", "soon"), "soon"),
        (("--result", "1", "echo", "x"), "no other arguments"),
    ]:
        done = hocket("handoff", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert told in done.stderr, words
    assert hocket.runs() == []
    assert task_of(hocket, task)["agentChain"] == []


def test_invalid_utf8_prompt_is_refused(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", ECHO)
    command = [sys.executable.encode(), b"-m", b"hocket", b"handoff", b"echo", b"a \xff b"]
    done = subprocess.run(command, cwd=project, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"not valid UTF-8" in done.stderr


def test_result_of_another_run_is_refused(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    run = hocket.created("spawn", "echo", "-p", "x")
    hocket("wait", run)
    done = hocket("handoff", "--result", run)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hocket wait" in done.stderr


@pytest.mark.req("S2-38", "S2-81")
def test_task_with_a_running_agent_is_refused(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("slow", held(world))
    hocket("handoff", "slow", "x", "--detach")
    done = hocket("handoff", hocket.task_number(), "slow", "y")
    assert (done.returncode, done.stdout) == (2, "")
    assert "slow" in done.stderr
    assert len(task_of(hocket)["agentChain"]) == 1


@pytest.mark.req("S2-75")
def test_handoff_timeout_leaves_the_run_running(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("slow", held(world))
    done = hocket("handoff", "slow", "x", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (3, "")
    run = hocket.number()
    assert f"hocket handoff --result {run}\n" in done.stderr
    as_json = hocket("handoff", "--result", run, "--timeout", "0.1", "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)["completedAt"]) == (3, None)
    (world / "go").touch()
    later = hocket("handoff", "--result", run, "--timeout", "0")
    assert (later.returncode, later.stdout, later.stderr) == (0, "at last\n", "")


def test_task_of_handoff_is_completed_with_it(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    assert hocket("handoff", "echo", "one").stdout == "one\n"
    task = hocket.task_number()
    shown = task_of(hocket, task)
    assert (shown["status"], shown["endsWithHandoff"]) == ({"type": "completed"}, True)
    assert "state    ✓ completed" in hocket("task", "show", task).stdout
    listed = json.loads(hocket("task", "list", "--status", "completed", "--json").stdout)
    assert task in [str(one["number"]) for one in listed]
    assert "active → completed" in hocket("task", "history", task).stdout


def test_task_of_handoff_continues_with_another(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    agent("broken", "raise SystemExit(3)")
    hocket("handoff", "echo", "one")
    task = hocket.task_number()
    assert hocket("handoff", task, "broken", "two").returncode == 1
    assert task_of(hocket, task)["status"] == {"type": "failed", "message": "broken: failed (exit)"}
    assert "✗ failed  broken: failed (exit)" in hocket("task", "show", task).stdout
    board = hocket("task", "board").stdout
    assert f"{task}  one" in board
    assert "ago: broken: failed (exit)" in board
    assert hocket("handoff", task, "echo", "three").stdout == "three\n"
    assert task_of(hocket, task)["status"] == {"type": "completed"}
    hocket("task", "queue", task, "echo", "four")
    until(
        lambda: (
            task_of(hocket, task)["status"] == {"type": "completed"} and len(task_of(hocket, task)["agentChain"]) == 4
        )
    )


def test_task_of_handoff_completes_after_its_queue(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("slow", held(world))
    agent("echo", ECHO)
    hocket("handoff", "--detach", "slow", "x")
    until((world / "up").exists)
    task = hocket.task_number()
    hocket("task", "queue", task, "echo", "y")
    (world / "go").touch()
    until(lambda: task_of(hocket, task)["status"]["type"] == "completed")
    assert [one["output"] for one in task_of(hocket, task)["agentChain"]] == ["at last\n", "y"]


def test_status_set_on_request_is_final(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    hocket("handoff", "echo", "one")
    task = hocket.task_number()
    assert hocket("task", "status", task, "completed", "-m", "released").returncode == 0
    assert not task_of(hocket, task)["endsWithHandoff"]
    refused = hocket("handoff", task, "echo", "two")
    assert (refused.returncode, "completed task" in refused.stderr) == (2, True)


@pytest.mark.req("S2-88")
def test_stopped_hand_off_is_no_success(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("slow", held(world))
    waiting = hocket.start("handoff", "slow", "x")
    until((world / "up").exists)
    hocket("stop", hocket.number())
    out, err = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, out) == (1, "")
    assert "stopped" in err
    assert task_of(hocket)["status"] == {"type": "failed", "message": "slow: stopped"}


def test_handoff_closed_through_the_api_has_its_result(hocket: Hocket, agent: Bin, own: None) -> None:
    agent(
        "teller",
        "import http.client, json, os, socket\n"
        "link = http.client.HTTPConnection('localhost')\n"
        "link.sock = socket.socket(socket.AF_UNIX)\n"
        "link.sock.connect(os.environ['HOCKET_URL'].removeprefix('unix:'))\n"
        "head = {'Authorization': 'Bearer ' + os.environ['HOCKET_TOKEN'], 'Content-Type': 'application/json'}\n"
        "path = '/api/tasks/' + os.environ['HOCKET_TASK'] + '/handoff/complete'\n"
        "link.request('PUT', path, json.dumps({'output': 'in my own words'}), head)\n"
        "print(link.getresponse().status)",
    )
    done = hocket("handoff", "teller", "x")
    assert (done.returncode, done.stdout) == (0, "in my own words\n")


def test_only_its_own_record_closes_a_handoff() -> None:
    def event(**data: Any) -> dict[str, Any]:
        return {"type": "task.changed", "run": "r1", "data": {"task": "t1", **data}}

    closed = event(handoff="h1", event="agent_handoff_completed", status="done", reason="single_run")
    assert closes(closed, "h1")
    assert not closes(closed, "h2")
    assert not closes(event(handoff="h1", event="agent_handoff_started"), "h1")
    assert not closes({**closed, "type": "text"}, "h1")


# --- What it asks ---

ASKER = f"""
import subprocess, sys
subprocess.run([{sys.executable!r}, "-m", "hocket", "ask", "Which?", *sys.argv[2:]], check=False)
"""


def wants(run: str) -> str:
    return f"claude wants to run Bash: touch x0; hocket answer {run} allow/deny\n"


def test_question_is_printed_once_with_its_reply_command(hocket: Hocket, agent: Bin) -> None:
    install_claude(agent.folder)
    waiting = hocket.start("handoff", "claude", "ask me")
    assert waiting.stderr is not None
    told = waiting.stderr.readline()
    run = hocket.number()
    assert told == f"hocket: {wants(run)}"
    assert hocket("answer", run, "allow").returncode == 0
    out, err = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, out, err) == (0, "you said: ask me [allowed touch x0]\n", "")
    again = hocket("handoff", "--result", run)
    assert (again.stdout, again.stderr) == (out, "")


def test_question_of_a_nested_hand_off_is_printed(hocket: Hocket, agent: Bin, own: None) -> None:
    install_claude(agent.folder)
    agent("lead", "import subprocess; subprocess.run(['hocket', 'handoff', 'claude', 'ask me'], check=True)")
    waiting = hocket.start("handoff", "lead", "x")
    assert waiting.stderr is not None
    told = waiting.stderr.readline()
    run = hocket.number(2)
    assert told == f"hocket: {wants(run)}"
    assert hocket("answer", run, "allow").returncode == 0
    out, _ = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, out) == (0, "you said: ask me [allowed touch x0]\n")


def test_handoff_timeout_names_the_open_question(hocket: Hocket, agent: Bin) -> None:
    install_claude(agent.folder)
    run = hocket.created("handoff", "claude", "ask me", "--detach")
    until(lambda: json.loads(hocket("inbox", "--json").stdout))
    done = hocket("handoff", "--result", run, "--timeout", "0.6")
    assert (done.returncode, done.stdout) == (3, "")
    told, state, whereabouts, last = done.stderr.splitlines(keepends=True)
    number = hocket.number()
    assert told == last == f"hocket: {wants(number)}"
    assert "claude waits for an answer" in state
    assert f"hocket handoff --result {number}\n" in whereabouts
    as_json = hocket("handoff", "--result", run, "--timeout", "0.6", "--json")
    assert (as_json.returncode, as_json.stderr.count(wants(number))) == (3, 1)


def test_automatically_denied_question_is_not_printed(hocket: Hocket, agent: Bin, own: None) -> None:
    agent("asker", ASKER + "print('went on')")
    agent("lead", "import subprocess; subprocess.run(['hocket', 'handoff', 'asker', 'x'], check=True)")
    done = hocket("run", "lead", "-p", "x", "--on-question", "deny")
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert "asker denied by hocket" in done.stderr
    assert "hocket: asker asks" not in done.stderr  # the words of the hand-off, where the run's own log has others


# --- What happens to it ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_wait_not_the_run(hocket: Hocket, agent: Bin, world: Path, number: signal.Signals) -> None:
    agent("slow", held(world))
    waiting = hocket.start("handoff", "slow", "x", env={"HOCKET_RUN": "rabc"})
    until((world / "up").exists)
    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, out) == (128 + number, "")
    assert "hocket handoff --result" in err
    assert task_of(hocket)["currentAgent"] == "slow"
    (world / "go").touch()
    assert hocket("handoff", "--result", hocket.number()).stdout == "at last\n"


@pytest.mark.own_server
def test_handoff_survives_a_server_kill(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("slow", held(world))
    waiting = hocket.start("handoff", "slow", "x")
    until((world / "up").exists)
    kill_server(hocket)
    (world / "go").touch()
    out, _ = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, out) == (0, "at last\n")
    assert len(task_of(hocket)["agentChain"]) == 1


TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.executable, [sys.executable, '-m', 'hocket', *sys.argv[1:]])"
)


def on_terminal(args: list[str], cwd: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The command with a terminal for its talk, and the other end of that."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *args],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        assert select.select([terminal], [], [], 15)[0], seen
        seen += os.read(terminal, 4096)
    return seen


@pytest.mark.parametrize(("key", "code", "status"), [(b"d", 3, "running"), (b"s", 130, "stopped")])
def test_ctrl_c_offers_detach_or_stop(
    hocket: Hocket, agent: Bin, world: Path, project: Path, key: bytes, code: int, status: str
) -> None:
    agent("slow", "print('here it is', flush=True)\n" + held(world))
    process, terminal = on_terminal(["handoff", "slow", "x"], project)
    try:
        told = read_until(terminal, b"slow here it is")
        assert told.count(f"run {hocket.number()}: waiting for slow\r\n".encode()) == 1
        os.write(terminal, b"\x03")
        read_until(terminal, b"d detach, s stop")
        os.write(terminal, key)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (code, b"")
        assert task_of(hocket)["agentChain"][0]["status"] == status
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)


# --- The script, with the real server ---


@pytest.mark.req("S2-71", "S2-72", "S2-74", "S2-77")
@pytest.mark.parametrize("shell", [one for one in ("dash", "bash") if shutil.which(one)])
@pytest.mark.parametrize("with_hocket", [True, pytest.param(False, marks=pytest.mark.own_server)])
def test_handoff_script_works_without_hocket(
    hocket: Hocket, agent: Bin, home: Path, project: Path, shell: str, with_hocket: bool
) -> None:
    if with_hocket:
        agent("hocket", f'#!/bin/sh\nexec {sys.executable} -m hocket "$@"\n')
    elif not shutil.which("curl"):
        pytest.skip("needs curl")
    agent("echo", ECHO)
    agent("bad", "import sys; print('half'); sys.exit(3)")
    task = hocket.created("task", "new", "a wish")

    def script(*args: str) -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, "HOCKET_URL": f"unix:{home / 'sock'}"}
        return subprocess.run(
            [shell, str(SCRIPT), *args], cwd=project, env=env, capture_output=True, timeout=PATIENCE, check=False
        )

    done = script(task, "echo", NASTY)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NASTY}\n".encode(), b"")
    failed = script(task, "bad", "x")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert b"failed (exit)" in failed.stderr
    unknown = script(task, "unknown-agent", "x")
    assert (unknown.returncode, unknown.stdout) == (2, b"")
    assert b"Unknown agent: unknown-agent" in unknown.stderr
    assert [one["status"] for one in task_of(hocket, task)["agentChain"]] == ["done", "failed"]


def test_script_without_hocket_needs_the_token(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    agent("inner", "import sys; print('inner saw', sys.argv[-1])")
    agent("outer", f'#!/bin/sh\nexec {SCRIPT} "$HOCKET_TASK" inner "a \\"part\\""\n')
    done = hocket("handoff", "outer", "all")
    assert (done.returncode, done.stdout) == (0, 'inner saw a "part"\n')
    assert [one["agentName"] for one in task_of(hocket)["agentChain"]] == ["outer", "inner"]
