"""The hook: what it reads, what it refuses, and that a repeated call starts one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.commands import make_gate, open_gate, server_pid, spawn, wait_for, waited
from world import Bin, Hocket

from hocket.cli.claude import hook
from hocket.providers.claude.own_hooks import TIMEOUT, for_runs

CALL: dict[str, Any] = {
    "hook_event_name": "PreToolUse",
    "session_id": "s-1",
    "tool_name": "Task",
    "tool_use_id": "t-1",
    "tool_input": {"subagent_type": "worker", "prompt": "Work."},
}
HOOK = (sys.executable, "-P", "-m", "hocket", "hook", "pre-tool-use", "--always")


def encoded(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in {**CALL, **changes}.items() if value is not None}).encode()


@pytest.mark.req("S3-01")
@pytest.mark.parametrize("tool", ["Bash", "TaskCreate", "mcp__hocket__spawn"])
def test_other_tools_are_left_alone(tool: str) -> None:
    assert hook.decision(encoded(tool_name=tool, tool_input=None), always=True) is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xfd", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "must be an object; got list"),
        (b"{}", '"tool_name" of the hook must be a non-empty string; got None'),
        (b" " * (hook.MAX_INPUT + 1), "is larger than 32 MB"),
        (encoded(tool_input="x"), "\"tool_input\" of the hook must be an object; got 'x'"),
        (encoded(tool_input={"subagent_type": "worker"}), '"prompt" of the hook must be'),
        (encoded(tool_input={"subagent_type": 5, "prompt": "x"}), '"subagent_type" of the hook must be'),
        (encoded(tool_input={"subagent_type": "", "prompt": "x"}), '"subagent_type" of the hook must be'),
        (encoded(session_id=None), '"session_id" of the hook must be'),
        (encoded(tool_use_id=7), '"tool_use_id" of the hook must be'),
    ],
)
def test_unusable_input_is_a_denial_with_its_reason(raw: bytes, reason: str) -> None:
    told = hook.decision(raw, always=True)
    assert told is not None
    assert told.startswith("Hocket did not start a sub-agent (usage): ")
    assert reason in told


def test_call_without_agent_means_the_default() -> None:
    call = hook.read_call(encoded(tool_input={"prompt": "x"}))
    assert call is not None
    assert call.agent == "general-purpose"


def test_keys_differ_between_calls_and_sessions() -> None:
    inputs = [encoded(), encoded(tool_use_id="t-2"), encoded(session_id="s-2"), encoded(prompt="y")]
    keys = [call.key for raw in inputs if (call := hook.read_call(raw))]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
    without = hook.read_call(encoded(tool_use_id=None))
    assert without is not None
    assert without.key is None


def test_denial_is_what_the_cli_reads() -> None:
    done = subprocess.run(HOOK, input=b"x", capture_output=True, check=True)
    told = json.loads(done.stdout)["hookSpecificOutput"]
    assert told.pop("permissionDecisionReason").startswith("Hocket did not start")
    assert told == {"hookEventName": "PreToolUse", "permissionDecision": "deny"}
    assert subprocess.run(HOOK, input=encoded(tool_name="Read"), capture_output=True, check=True).stdout == b""


def test_hook_ends_before_the_cli_gives_up() -> None:
    assert hook.LIMIT_SECONDS < TIMEOUT


def test_hook_that_cannot_start_blocks_the_call(project: Path) -> None:
    """The CLI carries out a call whose hook fails with another code than 2."""
    (command,) = for_runs((str(project / "gone away"), "-x"))["hooks"]
    assert subprocess.run(["/bin/sh", "-c", command["command"]], capture_output=True, check=False).returncode == 2


CALLER = f"""
import subprocess, sys
for call in {[encoded().decode(), encoded().decode(), encoded(tool_use_id="t-2").decode()]!r}:
    print(subprocess.run({HOOK!r}, input=call, capture_output=True, text=True).stdout, end="", flush=True)
"""


@pytest.mark.shared_server
def test_repeated_hook_of_one_call_starts_one_run(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("caller", CALLER)
    agent("worker", "import sys; print(sys.argv[-1])")
    done = hocket("run", "caller")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line)["hookSpecificOutput"]["permissionDecisionReason"] for line in done.stdout.splitlines()]
    runs = [run for run in hocket.runs() if run["agent"] == "worker"]
    assert told[0] == told[1] != told[2]
    assert [f'"{run["id"]}"' in text for run, text in zip(runs, [told[0], told[2]], strict=True)] == [True, True]
    assert {run["depth"] for run in runs} == {1}


@pytest.mark.own_server
def test_hook_starts_the_server_that_was_killed(hocket: Hocket, agent: Bin) -> None:
    gate = make_gate(agent.folder / "gate")
    agent("caller", f"print('begun', flush=True); open({str(gate)!r}).read()\n{CALLER}")
    agent("worker", "print('worked')")
    caller = spawn(hocket, "caller")
    wait_for(hocket, caller, "text")
    os.kill(server_pid(hocket), signal.SIGKILL)
    open_gate(gate)
    code, ended = waited(hocket, caller)
    assert (code, ended["result"].count("Hocket has started worker")) == (0, 3)
    assert [run["agent"] for run in hocket.runs()] == ["caller", "worker", "worker"]


def test_run_of_another_home_starts_nothing(world: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"URL": "unix:/else", "TOKEN": "token", "RUN": "r1"}.items():
        monkeypatch.setenv(f"HOCKET_{name}", value)
    told = hook.decision(encoded(), always=True)
    assert told == f"Hocket did not start worker (forbidden): run r1 belongs to another HOCKET_HOME than {home}"
    assert list(home.iterdir()) == []


# --- Sessions of the user's own -----------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def definition(folder: Path, *lines: str) -> None:
    head = "\n".join(("name: lead", "description: leads", *lines))
    write(folder / ".claude/agents/lead.md", f"---\n{head}\n---\nYou lead.\n")


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    ("where", "asks"),
    [("nowhere", None), ("user", True), ("user definition", True), ("project", "trusted"), ("definition", "trusted")],
)
def test_delegation_follows_user_or_trusted_folder(
    home: Path, project: Path, world: Path, where: str, asks: bool | str | None, trusted: bool
) -> None:
    config = f'[trust]\nfolders = ["{project}"]\n' if trusted else ""
    write(home / "config.toml", config + ('[claude]\ndelegate = "hocket"\n' if where == "user" else ""))
    write(project / "hocket.toml", '[claude]\ndelegate = "hocket"\n' if where == "project" else "")
    definition(world / "user", *(["delegate: hocket"] if where == "user definition" else []))
    if where == "definition":
        definition(project, "delegate: hocket")
    call = hook.read_call(encoded(cwd=str(project), agent_type="lead"))
    assert call is not None
    assert hook.asks_for_runs(call) == (trusted if asks == "trusted" else bool(asks))


def test_session_without_a_request_is_left_alone(home: Path, project: Path) -> None:
    write(project / "hocket.toml", "this is not TOML, and not trusted")
    assert hook.decision(encoded(cwd=str(project)), always=False) is None
    assert hook.decision(encoded(cwd=str(project), agent_type="Explore"), always=False) is None
    assert [path.name for path in home.iterdir()] == []


def test_broken_configuration_is_a_denial(home: Path, project: Path) -> None:
    write(home / "config.toml", '[claude]\ndelegate = "x"\n')
    told = hook.decision(encoded(cwd=str(project)), always=False)
    assert told is not None
    assert told.startswith(f"Hocket did not start worker (config): {home}/config.toml: [claude], ")


def test_run_has_its_own_hook(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's settings, with the user's hook, are read by runs as well."""
    write(home / "config.toml", '[claude]\ndelegate = "hocket"\n')
    monkeypatch.setenv("HOCKET_RUN", "r1")
    assert hook.decision(b"not looked at", always=False) is None
