"""The hook by which a CLI in a terminal asks: a question like any other, and a decision that the CLI reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.commands import data_of, server_pid, shown, spawn, wait_for, waited
from patience import PATIENCE
from world import Bin, Hocket

from hocket.sessions.run_identity import run_token

HOOK = (sys.executable, "-P", "-m", "hocket", "hook", "permission-request")
RULE = {"toolName": "Bash", "ruleContent": "make *"}
SUGGESTED: list[dict[str, Any]] = [
    {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
    {"type": "addRules", "rules": [RULE], "behavior": "allow", "destination": "localSettings"},
]
REQUEST: dict[str, Any] = {
    "hook_event_name": "PermissionRequest",
    "session_id": "s-1",
    "permission_mode": "default",
    "tool_name": "Bash",
    "tool_input": {"command": "make all", "description": "Build"},
    "permission_suggestions": SUGGESTED,
}
COLOURS: dict[str, Any] = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red"}, {"label": "Blue"}],
}
CHOICE = {**REQUEST, "tool_name": "AskUserQuestion", "tool_input": {"questions": [COLOURS]}}
LEAD = f"""
import json, subprocess, sys
asked = json.loads(sys.stdin.readline())["message"]["content"]
done = subprocess.run({HOOK!r}, input=asked, capture_output=True, text=True)
said = json.dumps([done.returncode, done.stdout])
print(json.dumps({{"type": "result", "subtype": "success", "is_error": False, "result": said}}), flush=True)
"""
"""A lead whose CLI asks about its prompt."""
SLEEPER = "import signal; signal.pause()"
SERVER = """
import asyncio, sys
from hocket.cli import main
from hocket.errors import LimitReached
from hocket.sessions.messages import Messages
from hocket.teams.watch import TeamWatch
record = Messages._record_question
async def record_and_close(self, run, asked, key):
    question = await record(self, run, asked, key)
    await self.close_hook_questions(run, {question})
    return question
Messages._record_question = record_and_close
def check_teammate(self, run, name):
    if name != "first":
        raise LimitReached("the limit of 1 teammates is reached (max_teammates_per_lead)")
TeamWatch.check_teammate = check_teammate
sys.exit(main(["serve"]))
"""
"""A server where a person at the terminal is quicker than every other answer, and where a team has one teammate."""


@pytest.fixture(autouse=True)
def _lead(request: pytest.FixtureRequest, agent: Bin) -> None:
    agent("claude", LEAD)


def ask(hocket: Hocket, request: dict[str, Any] = REQUEST, *options: str) -> tuple[str, dict[str, Any]]:
    """The lead that asks, and the data of its question."""
    run = spawn(hocket, "claude", "-p", json.dumps(request), *options)
    return run, wait_for(hocket, run, "question")["data"]


def decision(hocket: Hocket, run: str) -> Any:
    """What the hook of an ended lead has printed."""
    ended = waited(hocket, run)[1]
    code, stdout = json.loads(ended["result"])
    assert code == 0
    if not stdout:
        return None
    told = json.loads(stdout)["hookSpecificOutput"]
    assert told.pop("hookEventName") == "PermissionRequest"
    (decided,) = told.values()
    return decided


@pytest.mark.shared_server
def test_question_of_a_hook_is_like_any_other(hocket: Hocket) -> None:
    run, asked = ask(hocket)
    assert asked == {
        "id": asked["id"],
        "kind": "permission",
        "text": "Bash wants to run: make all",
        "tool": "Bash",
        "suggestions": SUGGESTED,
        "rule": "Bash(make *)",
        "input": REQUEST["tool_input"],
        "via": "hook",
    }
    listed = next(one for one in json.loads(hocket("inbox", "--json").stdout) if one["run"] == run)
    assert (listed["id"], listed["rule"], listed["helper"]) == (asked["id"], "Bash(make *)", None)
    now = shown(hocket, run)
    assert (now["status"], now["needs_you"], len(now["questions"])) == ("waiting", True, 1)
    assert "needs you" in hocket("ps").stdout
    assert "wants to run Bash: make all" in hocket("show", run).stdout
    assert hocket("answer", run, "allow").returncode == 0
    assert decision(hocket, run) == {"behavior": "allow"}
    assert hocket("answer", asked["id"], "deny").stderr.startswith(f"hocket: question {asked['id']} of run ")


@pytest.mark.shared_server
@pytest.mark.parametrize(
    ("words", "decided"),
    [
        (["deny"], {"behavior": "deny", "message": "The user did not allow this."}),
        (["deny", "-m", "use ninja"], {"behavior": "deny", "message": "use ninja"}),
        (["always"], {"behavior": "allow", "updatedPermissions": [{**SUGGESTED[1], "destination": "session"}]}),
    ],
    ids=["deny", "deny with a reason", "always"],
)
def test_answer_becomes_the_decision(hocket: Hocket, words: list[str], decided: Any) -> None:
    run, _ = ask(hocket)
    assert hocket("answer", run, *words).returncode == 0
    assert decision(hocket, run) == decided


@pytest.mark.shared_server
@pytest.mark.parametrize("said", ["2", "Blue", "purple"])
def test_choice_is_answered_by_number_or_text(hocket: Hocket, said: str) -> None:
    run, asked = ask(hocket, CHOICE)
    assert (asked["kind"], asked["options"], asked["text"]) == (
        "choice",
        ["Red", "Blue"],
        "Which colour? (1 Red, 2 Blue)",
    )
    assert hocket("answer", run, said).returncode == 0
    answers = {"Which colour?": "Blue" if said == "2" else said}
    assert decision(hocket, run) == {"behavior": "allow", "updatedInput": {"questions": [COLOURS], "answers": answers}}
    assert data_of(hocket, run, "answer")[0]["text"] == answers["Which colour?"]


@pytest.mark.shared_server
def test_question_of_a_teammate_names_it(hocket: Hocket) -> None:
    run, asked = ask(hocket, {**REQUEST, "agent_id": "aalice-1", "agent_type": "alice"})
    other, own = ask(hocket, {**REQUEST, "agent_type": "lead"})
    assert (asked["agent"], "agent" in own) == ("alice", False)
    assert "claude/alice in p" in hocket("inbox").stdout
    for one in (run, other):
        assert hocket("answer", one, "allow").returncode == 0
        assert decision(hocket, one) == {"behavior": "allow"}


@pytest.mark.shared_server
def test_unattended_question_is_denied_or_ends_the_run(hocket: Hocket) -> None:
    run, _ = ask(hocket, REQUEST, "--on-question", "deny")
    assert decision(hocket, run)["message"].startswith("no one can answer: ")
    failing, _ = ask(hocket, REQUEST, "--on-question", "fail")
    assert waited(hocket, failing)[1]["reason"] == "no_answer"


@pytest.mark.own_server
def test_answer_arrives_after_the_server_was_killed(hocket: Hocket) -> None:
    run, asked = ask(hocket)
    os.kill(server_pid(hocket), signal.SIGKILL)
    assert hocket("answer", asked["id"], "allow").returncode == 0
    assert decision(hocket, run) == {"behavior": "allow"}
    assert len(data_of(hocket, run, "question")) == 1


@contextmanager
def patched_server(home: Path) -> Iterator[None]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # It accepts requests.
        yield
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE)


@pytest.mark.own_server
def test_answer_at_the_terminal_ends_the_hook(hocket: Hocket, home: Path) -> None:
    with patched_server(home):
        run, asked = ask(hocket)
        assert decision(hocket, run) is None
        said = {"id": asked["id"], "allow": None, "text": None, "by": "terminal"}
        assert data_of(hocket, run, "answer") == [said]
        assert "answered at the terminal" in hocket("logs", run).stdout
        late = hocket("answer", asked["id"], "allow")
        assert (late.returncode, late.stderr.strip()) == (
            2,
            f"hocket: question {asked['id']} of run 1 has already been answered at the terminal",
        )


# --- Failures: the terminal decides -------------------------------------------------------------------------


def hook_of(
    home: Path, run: str, token: str | None = None, request: Any = REQUEST, name: str | None = None
) -> subprocess.Popen[str]:
    """The hook of a run that is not its own process. By another ``name`` its keeper does not take it for its own."""
    token = token or run_token((home / "secret").read_text().strip().encode(), run)
    env = {**os.environ, "HOCKET_RUN": name or run, "HOCKET_TOKEN": token, "HOCKET_URL": f"unix:{home / 'sock'}"}
    process = subprocess.Popen(
        HOOK, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(request if isinstance(request, str) else json.dumps(request))
    process.stdin.close()
    process.stdin = None
    return process


def left_alone(process: subprocess.Popen[str]) -> str:
    """The reason for which a hook leaves the decision to the terminal."""
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (0, "")
    return stderr


@pytest.mark.shared_server
def test_end_of_the_run_ends_its_hook(hocket: Hocket, home: Path, agent: Bin) -> None:
    agent("claude", SLEEPER)
    run = spawn(hocket, "claude")
    wait_for(hocket, run, "run.started")
    process = hook_of(home, run, name=str(shown(hocket, run)["number"]))
    wait_for(hocket, run, "question")
    assert hocket("stop", run).returncode == 0
    assert left_alone(process) in ("", "hocket: the run of this token has ended\n")


@pytest.mark.shared_server
def test_unusable_request_changes_nothing(hocket: Hocket, home: Path, agent: Bin) -> None:
    agent("claude", SLEEPER)
    run, other = (spawn(hocket, "claude") for _ in range(2))
    for one in (run, other):
        wait_for(hocket, one, "run.started")
    secret = (home / "secret").read_text().strip().encode()
    assert "invalid token" in left_alone(hook_of(home, run, "wrong"))
    assert "only" in left_alone(hook_of(home, run, run_token(secret, other)))
    large = {**REQUEST, "tool_input": {"command": "x" * (16 * 2**20)}}
    for request, reason in (
        (json.dumps(REQUEST)[:-9], "must be a JSON object"),
        ("[" * 100_000, "must be a JSON object"),
        ("", "must be a JSON object"),
        ({**REQUEST, "tool_input": "make"}, 'with "tool_input"'),
        ({**REQUEST, "tool_name": 5}, '"tool_name" of the hook'),
        (large, "larger than 16 MB"),
        (" " * (32 * 2**20 + 1), "larger than 32 MB"),
    ):
        assert reason in left_alone(hook_of(home, run, request=request))
    assert data_of(hocket, run, "question") == []


def test_hook_outside_a_run_leaves_it_alone(home: Path) -> None:
    done = subprocess.run(HOOK, input=json.dumps(REQUEST), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "hocket: the hook is for runs of Hocket\n")
    assert list(home.iterdir()) == []


# --- Teammates ----------------------------------------------------------------------------------------------

CALL = {
    "hook_event_name": "PreToolUse",
    "session_id": "s-1",
    "tool_name": "Agent",
    "tool_use_id": "t-1",
    "tool_input": {"name": "first", "subagent_type": "worker", "prompt": "Work."},
}
TEAM_HOOK = (sys.executable, "-P", "-m", "hocket", "hook", "pre-tool-use", "--team")
STARTER = f"""
import json, subprocess, sys
calls = {CALL!r}, {{**{CALL!r}, "tool_input": {{"name": "second", "prompt": "Work."}}}}
helper = {{**{CALL!r}, "tool_input": {{"subagent_type": "worker", "prompt": "Work."}}}}
for flags, call in (((), calls[0]), ((), calls[1]), ((), helper), (("--always",), calls[0]), (("--always",), helper)):
    done = subprocess.run([*{TEAM_HOOK!r}, *flags], input=json.dumps(call), capture_output=True, text=True)
    told = json.loads(done.stdout)["hookSpecificOutput"]["permissionDecisionReason"] if done.stdout else ""
    print(json.dumps(told), flush=True)
"""


@pytest.mark.req("S5-45")
@pytest.mark.own_server
def test_teammates_are_limited_and_never_become_runs(hocket: Hocket, home: Path, agent: Bin) -> None:
    agent("starter", STARTER)
    agent("worker", "print('worked')")
    (home / "config.toml").write_text("[limits]\nmax_teammates_per_lead = 1\n")
    done = hocket("run", "starter")
    first, second, helper, delegating, delegated = map(json.loads, done.stdout.splitlines())
    assert (first, helper) == ("", "")
    for told, name in ((second, "second"), (delegating, "first")):
        assert told.startswith(
            f"Hocket did not allow the teammate {name} (limit): teammates: run 2 has 1, which is the"
        )
        assert "max_teammates_per_lead" in told
    assert delegated.startswith("Not an error: Hocket has started worker as run ")
    assert [run["agent"] for run in hocket.runs()].count("worker") == 1


def test_unchecked_teammate_is_denied() -> None:
    done = subprocess.run(TEAM_HOOK, input=json.dumps(CALL), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)["hookSpecificOutput"]
    assert told["permissionDecision"] == "deny"
    assert told["permissionDecisionReason"].startswith("Hocket did not allow the teammate first (conflict): ")
