"""``send answer resume`` from outside, with the real server and a scripted agent; and which turn answers a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.fake_claude import PROGRAM
from world import Bin, Hocket

from hocket.cli.talk import Exchange


def make(kind: str, run: str = "me", /, **data: Any) -> dict[str, Any]:
    return {"v": 1, "seq": 1, "ts": 0.0, "run": run, "root": "me", "type": kind, "data": data}


def started(turn: int, **more: Any) -> dict[str, Any]:
    return make("turn.started", turn=turn, **more)


def ended(turn: int, idle: bool = True, **more: Any) -> dict[str, Any]:
    return make("turn.ended", turn=turn, idle=idle, **more)


def outcome(*events: dict[str, Any], interrupting: bool = False) -> tuple[bool, dict[str, Any] | None]:
    """Whether the events decide it, and what they decide."""
    exchange = Exchange("me", interrupting)
    for event in events:
        if exchange.add(event):
            return True, exchange.outcome
    return False, exchange.outcome


def test_the_first_turn_that_began_after_the_message_answers_it() -> None:
    last = ended(4)
    assert outcome(started(4), make("text", text="x"), last) == (True, last)


def test_a_turn_that_was_under_way_answers_only_if_no_other_begins() -> None:
    old, last = ended(3), ended(4, idle=False)
    assert outcome(old) == (False, old)
    assert outcome(old, started(4)) == (False, None)
    assert outcome(old, started(4), last) == (True, last)
    assert outcome(ended(3, idle=False)) == (False, None)


def test_a_turn_that_was_interrupted_is_no_answer() -> None:
    last = ended(4)
    assert outcome(ended(3), interrupting=True) == (False, None)
    assert outcome(ended(3), started(4), last, interrupting=True) == (True, last)


def test_a_turn_that_woke_itself_is_no_certain_answer() -> None:
    woken = {"kind": "task-notification"}
    own, last = ended(4, origin=woken), ended(5)
    assert outcome(started(4, origin=woken), own) == (False, own)
    assert outcome(started(4, origin=woken), own, started(5), last) == (True, last)


@pytest.mark.parametrize("kind", ["question", "run.ended"])
def test_a_question_or_the_end_settles_it_too(kind: str) -> None:
    event = make(kind, id="q", status="failed")
    assert outcome(started(4), event) == (True, event)
    assert outcome(started(4), make(kind, "another", id="q", status="failed")) == (False, None)


# --- From outside -------------------------------------------------------------------------------------------


@pytest.fixture
def claude(agent: Bin) -> Path:
    return agent("claude", PROGRAM)


def spawned(hocket: Hocket, prompt: str, *options: str) -> str:
    done = hocket("spawn", "claude", "-p", prompt, *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def until(hocket: Hocket, ref: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The run once it is as wanted, as seen after each of its events."""
    events = hocket.start("logs", "-f", "--json", ref)
    assert events.stdout is not None
    for _ in events.stdout:
        run: dict[str, Any] = json.loads(hocket("show", ref, "--json").stdout)
        if wanted(run):
            return run
    raise AssertionError(f"{ref} ended before it was as wanted")


def is_idle(run: dict[str, Any]) -> bool:
    return run["status"] == "waiting" and not run["needs_you"]


def needs_you(run: dict[str, Any]) -> bool:
    return bool(run["needs_you"])


@pytest.mark.usefixtures("claude")
def test_a_session_stays_and_each_message_has_its_answer(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    run = until(hocket, ref, is_idle)
    assert (run["result"], run["session_id"] is not None) == ("you said: first", True)
    assert "○ idle" in hocket("ps").stdout
    answered = hocket("send", ref, "now", "the", "second", "--wait")
    assert (answered.returncode, answered.stdout, answered.stderr) == (0, "you said: now the second\n", "")
    piped = hocket("send", ref, "-", "--wait", "--json", stdin="third\n")
    told = json.loads(piped.stdout)
    assert (piped.returncode, told["run"], told["result"], told["is_error"]) == (0, ref, "you said: third\n", False)
    assert json.loads(hocket("show", ref, "--json").stdout)["pid"] == run["pid"]
    shown = hocket("show", ref).stdout
    assert f"session     {run['session_id']}" in shown
    assert "15 tokens" in shown
    hocket("stop", ref)
    late = hocket("send", ref, "too late")
    assert (late.returncode, late.stdout) == (2, "")
    assert "has ended" in late.stderr


@pytest.mark.usefixtures("claude")
def test_a_failed_turn_is_one_and_the_session_goes_on(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    failed = hocket("send", ref, "please fail", "--wait")
    assert (failed.returncode, failed.stdout) == (1, "API Error: 500\n")
    assert "the turn failed" in failed.stderr
    assert hocket("send", ref, "again", "--wait").stdout == "you said: again\n"


@pytest.mark.usefixtures("claude")
def test_a_turn_can_be_interrupted_and_something_else_said(hocket: Hocket) -> None:
    ref = spawned(hocket, "wait for it", "--session")
    until(hocket, ref, lambda run: run["last"] == "working")
    answered = hocket("send", ref, "--interrupt", "something else", "--wait")
    assert (answered.returncode, answered.stdout) == (0, "you said: something else\n")
    sent = hocket("send", ref, "wait again", "--json")
    assert set(json.loads(sent.stdout)) == {"run", "id"}
    until(hocket, ref, lambda run: run["last"] == "working")
    assert hocket("send", ref, "--interrupt").returncode == 0
    assert until(hocket, ref, is_idle)["error"]


@pytest.mark.usefixtures("claude")
def test_waiting_for_a_turn_can_time_out_and_the_run_goes_on(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    waited = hocket("send", ref, "hold on", "--wait", "--timeout", "0.3")
    assert (waited.returncode, waited.stdout) == (3, "")
    assert "it goes on" in waited.stderr
    (hocket.cwd / "go").touch()
    assert until(hocket, ref, is_idle)["result"] == "you said: hold on"


@pytest.mark.usefixtures("claude")
def test_a_question_is_shown_everywhere_with_the_line_to_type(hocket: Hocket) -> None:
    watching = hocket.start("run", "claude", "-p", "ask me", "--on-question", "ask")
    assert watching.stderr is not None
    line = next(line for line in watching.stderr if " ? " in line)
    assert line.split(" ", 1)[1] == "? claude wants to run Bash: touch x0    hocket answer 2 allow/deny\n"
    listed = hocket("ps").stdout
    assert "◆ needs you" in listed
    assert "touch x0" in listed
    shown = hocket("show", "2").stdout
    assert "? wants to run Bash: touch x0\n  command: touch x0\n  description: Make a file\n" in shown
    assert "    hocket answer 2 allow/deny\n" in shown
    allowed = hocket("answer", "2", "allow")
    assert (allowed.returncode, allowed.stdout, allowed.stderr) == (0, "2  allowed\n", "")
    out, err = watching.communicate(timeout=10)
    assert (watching.returncode, out) == (0, "you said: ask me [allow touch x0]\n")
    assert "claude allowed by operator" in err
    late = hocket("answer", "2", "deny")
    assert (late.returncode, late.stdout) == (2, "")


@pytest.mark.usefixtures("claude")
def test_a_refusal_says_why_and_questions_are_told_apart(hocket: Hocket) -> None:
    ref = spawned(hocket, "ask twice", "--on-question", "ask")
    run = until(hocket, ref, lambda run: len(run["questions"]) == 2)
    unclear = hocket("answer", ref, "allow")
    assert (unclear.returncode, "--question" in unclear.stderr) == (2, True)
    assert hocket("show", ref).stdout.count("--question q1-") == 2
    first, second = (question["id"] for question in run["questions"])
    denied = hocket("answer", ref, "no", "--question", first, "-m", "not that one", "--json")
    assert json.loads(denied.stdout) == {"run": ref, "question": first, "allow": False}
    assert hocket("answer", ref, "yes", "--question", second).stdout.endswith("  allowed\n")
    assert hocket("wait", ref).stdout == "you said: ask twice [deny not that one] [allow touch x1]\n"


@pytest.mark.usefixtures("claude")
def test_only_a_clear_yes_gives_permission(hocket: Hocket) -> None:
    ref = spawned(hocket, "ask me", "--on-question", "ask")
    until(hocket, ref, needs_you)
    unclear = hocket("answer", ref, "hm, well")
    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert "say allow or deny" in unclear.stderr
    assert json.loads(hocket("show", ref, "--json").stdout)["needs_you"] is True


@pytest.mark.usefixtures("claude")
def test_a_choice_is_answered_in_words_or_by_number(hocket: Hocket) -> None:
    ref = spawned(hocket, "choose", "--on-question", "ask")
    until(hocket, ref, needs_you)
    assert 'hocket answer 1 "YOUR ANSWER"' in hocket("show", ref).stdout
    assert hocket("answer", ref, "2").returncode == 0
    assert "'Which colour?': 'Blue'" in hocket("wait", ref).stdout


@pytest.mark.usefixtures("claude")
def test_who_waits_for_a_turn_that_asks_is_told_so(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session", "--on-question", "ask")
    until(hocket, ref, is_idle)
    waited = hocket("send", ref, "ask me", "--wait")
    assert (waited.returncode, waited.stdout) == (4, "")
    assert waited.stderr == "? wants to run Bash: touch x0\n    hocket answer 1 allow/deny\n"
    again = hocket("send", ref, "and now?", "--wait", "--json")
    assert (again.returncode, json.loads(again.stdout)["question"]["tool"]) == (4, "Bash")


@pytest.mark.usefixtures("claude")
def test_a_question_that_nobody_may_answer_is_four(hocket: Hocket) -> None:
    done = hocket("run", "claude", "-p", "ask me", "--on-question", "fail")
    assert done.returncode == 4
    assert "no_answer" in done.stderr


@pytest.mark.usefixtures("claude")
def test_an_ended_session_is_resumed_in_a_new_run(hocket: Hocket) -> None:
    first = spawned(hocket, "first")
    before = json.loads(hocket("wait", first, "--json").stdout)
    early = hocket("resume", first, "-p", "second", "-q")
    assert (early.returncode, early.stdout, early.stderr) == (0, "you said: second\n", "")
    detached = json.loads(hocket("resume", first, "--detach", "--json").stdout)["run"]
    after = json.loads(hocket("wait", detached, "--json").stdout)
    assert (after["status"], after["resumed_from"]) == ("done", first)
    assert after["session_id"] != before["session_id"]
    assert f"resumes     {first}" in hocket("show", detached).stdout
    events = [json.loads(line) for line in hocket("resume", first, "-p", "x", "--json").stdout.splitlines()]
    assert (events[-1]["type"], events[-1]["data"]["result"]) == ("run.ended", "you said: x")


@pytest.mark.usefixtures("claude")
def test_a_resumed_session_is_watched_up_to_its_first_pause(hocket: Hocket) -> None:
    first = spawned(hocket, "first")
    hocket("wait", first)
    resumed = hocket("resume", first, "--session", "-p", "more")
    assert (resumed.returncode, resumed.stdout) == (0, "you said: more\n")
    assert 'run 2 waits for more: hocket send 2 "…" --wait' in resumed.stderr
    assert "○ idle" in hocket("ps").stdout
    assert hocket("resume", "2").returncode == 2


def test_plain_programs_are_not_talked_to(hocket: Hocket, agent: Bin) -> None:
    agent("tool", "import signal; signal.pause()")
    ref = hocket("spawn", "tool").stdout.strip()
    for words in (["send", ref, "hi"], ["send", ref, "--interrupt"], ["answer", ref, "allow"]):
        done = hocket(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "does not read messages" in done.stderr
    hocket("stop", ref)
    assert hocket("resume", ref).returncode == 2
    refused = hocket("spawn", "tool", "--session")
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.usefixtures("claude")
def test_helpers_and_tools_have_their_lines(hocket: Hocket) -> None:
    done = hocket("run", "claude", "-p", "helper tool")
    said = [line.split(" ", 1)[1] for line in done.stderr.splitlines() if " claude" in line]
    assert "claude/Explore found it" in said
    assert "claude Bash: make test" in said
    assert "claude Bash failed: no rule" in said
    assert done.stdout == "you said: helper tool\n"
