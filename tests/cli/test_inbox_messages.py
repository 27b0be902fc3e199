"""``send answer resume`` from outside, with the real server and a scripted agent; and which turn answers a message."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from patience import PATIENCE
from scripted_claude import install_claude
from world import Bin, Hocket

from hocket.cli.inbox import MessageExchange
from hocket.client import Client

pytestmark = pytest.mark.shared_server


def make(kind: str, run: str = "me", /, **data: Any) -> dict[str, Any]:
    return {"v": 1, "seq": 1, "ts": 0.0, "run": run, "root": "me", "type": kind, "data": data}


def started(turn: int, **more: Any) -> dict[str, Any]:
    return make("turn.started", turn=turn, **more)


def ended(turn: int, idle: bool = True, **more: Any) -> dict[str, Any]:
    return make("turn.ended", turn=turn, idle=idle, **more)


def outcome(*events: dict[str, Any], interrupting: bool = False, ahead: int = 0) -> tuple[bool, dict[str, Any] | None]:
    """Whether the events since a message was sent decide what answers it, and what they decide."""
    exchange = MessageExchange({"run": "me", "ahead": ahead}, interrupting)
    for event in events:
        if exchange.add(event):
            return True, exchange.outcome
    return False, exchange.outcome


def test_first_turn_after_the_message_answers_it() -> None:
    last = ended(4)
    assert outcome(started(4), make("text", text="x"), last) == (True, last)


def test_running_turn_answers_if_no_other_begins() -> None:
    old, last = ended(3), ended(4, idle=False)
    assert outcome(old) == (False, old)
    assert outcome(old, started(4)) == (False, None)
    assert outcome(old, started(4), last) == (True, last)
    assert outcome(ended(3, idle=False)) == (False, None)


def test_very_first_turn_answers_the_prompt() -> None:
    first, last = ended(1), ended(2)
    assert outcome(started(1), first) == (False, first)
    assert outcome(started(1), ended(1, idle=False), started(2), last) == (True, last)


def test_interrupted_turn_is_no_answer() -> None:
    last = ended(4)
    assert outcome(ended(3), interrupting=True) == (False, None)
    assert outcome(ended(3), started(4), last, interrupting=True) == (True, last)


def test_turn_with_an_origin_is_an_uncertain_answer() -> None:
    woken = {"kind": "task-notification"}
    own, last = ended(4, origin=woken), ended(5)
    assert outcome(started(4, origin=woken), own) == (False, own)
    assert outcome(started(4, origin=woken), own, started(5), last) == (True, last)


def test_answer_may_begin_before_its_message_is_recorded() -> None:
    sent, last = make("input", kind="message", id="k", text="x"), ended(4)
    assert outcome(ended(3), started(4), sent, last, interrupting=True) == (True, last)
    assert outcome(started(4), last, sent) == (True, last)


def test_messages_before_it_are_answered_first() -> None:
    first, second, last = ended(3, idle=False), ended(4), ended(5)
    assert outcome(started(3), first, ahead=1) == (False, None)
    assert outcome(started(3), first, started(4), second, ahead=1) == (True, second)
    assert outcome(first, started(4), second, started(5), last, ahead=2) == (True, last)
    woken = ended(4, origin={"kind": "task-notification"})
    assert outcome(first, started(4), woken, started(5), last, ahead=1) == (True, last)


def test_messages_answered_together_share_the_answer() -> None:
    both = ended(3)
    assert outcome(started(3), both, ahead=1) == (False, both)


@pytest.mark.parametrize("kind", ["question", "run.ended"])
def test_question_or_end_also_ends_the_wait(kind: str) -> None:
    event = make(kind, id="q", status="failed")
    assert outcome(started(4), event) == (True, event)
    assert outcome(started(4), make(kind, "another", id="q", status="failed")) == (False, None)


# --- From outside -------------------------------------------------------------------------------------------


@pytest.fixture
def claude(agent: Bin) -> Path:
    return install_claude(agent.folder)


def spawned(hocket: Hocket, prompt: str, *options: str) -> str:
    return hocket.created("spawn", "claude", "-p", prompt, *options)


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
def test_each_message_to_a_session_is_answered(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    run = until(hocket, ref, is_idle)
    assert (run["result"], run["session_id"] is not None) == ("you said: first", True)
    assert "○ idle" in hocket("ps").stdout
    answered = hocket("send", ref, "now", "the", "second", "--wait")
    assert (answered.returncode, answered.stdout, answered.stderr) == (0, "you said: now the second\n", "")
    piped = hocket("send", ref, "-", "--wait", "--json", stdin="third\n")
    told = json.loads(piped.stdout)
    assert (piped.returncode, told["run"], told["result"], told["is_error"]) == (0, ref, "you said: third", False)
    assert '"text": "third\\n"' in hocket("logs", ref, "--json").stdout, "the text is sent as it was given"
    assert json.loads(hocket("show", ref, "--json").stdout)["pid"] == run["pid"]
    shown = hocket("show", ref).stdout
    assert f"session     {run['session_id']}" in shown
    assert "tokens" in shown
    hocket("stop", ref)
    late = hocket("send", ref, "too late")
    assert (late.returncode, late.stdout) == (2, "")
    assert "has ended" in late.stderr


@pytest.mark.usefixtures("claude")
def test_failed_turn_exits_with_one(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    failed = hocket("send", ref, "please fail", "--wait")
    assert (failed.returncode, failed.stdout) == (1, "API Error: 500 overloaded\n")
    assert "the turn failed" in failed.stderr
    assert hocket("send", ref, "again", "--wait").stdout == "you said: again\n"


@pytest.mark.usefixtures("claude")
def test_turn_is_interrupted_by_a_message(hocket: Hocket) -> None:
    ref = spawned(hocket, "wait for it", "--session")
    until(hocket, ref, lambda run: run["last"] == "working")
    answered = hocket("send", ref, "--interrupt", "something else", "--wait")
    assert (answered.returncode, answered.stdout) == (0, "you said: something else\n")
    sent = hocket("send", ref, "wait again", "--json")
    assert json.loads(sent.stdout).keys() == {"run", "id", "ahead", "after"}
    until(hocket, ref, lambda run: run["last"] == "working")
    assert hocket("send", ref, "--interrupt").returncode == 0
    assert until(hocket, ref, is_idle)["error"]


@pytest.mark.usefixtures("claude")
def test_send_wait_returns_the_answer_to_its_message(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    until(hocket, ref, is_idle)
    slow = hocket.start("send", ref, "hold on", "--wait")
    quick = hocket.start("send", ref, "quickly", "--wait")
    until(hocket, ref, lambda run: inputs(hocket, ref) == 2)
    (hocket.cwd / "go").touch()
    assert slow.communicate(timeout=PATIENCE)[0] == "you said: hold on\n"
    assert quick.communicate(timeout=PATIENCE)[0] == "you said: quickly\n"


def inputs(hocket: Hocket, ref: str) -> int:
    """How many messages have been sent to it."""
    events = map(json.loads, hocket("logs", "--json", ref).stdout.splitlines())
    return sum(event["type"] == "input" for event in events)


@pytest.mark.usefixtures("claude")
def test_send_wait_times_out(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session")
    until(hocket, ref, is_idle)
    waited = hocket("send", ref, "hold on", "--wait", "--timeout", "0.3")
    assert (waited.returncode, waited.stdout) == (3, "")
    assert "it continues" in waited.stderr
    (hocket.cwd / "go").touch()
    assert until(hocket, ref, is_idle)["result"] == "you said: hold on"


@pytest.mark.usefixtures("claude")
def test_question_is_shown_with_its_reply_command(hocket: Hocket) -> None:
    watching = hocket.start("run", "claude", "-p", "ask me", "--on-question", "ask")
    assert watching.stderr is not None
    line = next(line for line in watching.stderr if " ? " in line)
    number = hocket.number(2)
    assert line.split(" ", 1)[1] == f"? claude wants to run Bash: touch x0    hocket answer {number} allow/deny\n"
    listed = hocket("ps").stdout
    assert "◆ needs you" in listed
    assert "touch x0" in listed
    shown = hocket("show", number).stdout
    assert "? wants to run Bash: touch x0\n  command: touch x0\n  description: Make a file\n" in shown
    assert f"    hocket answer {number} allow/deny\n" in shown
    allowed = hocket("answer", number, "allow")
    assert (allowed.returncode, allowed.stdout, allowed.stderr) == (0, f"{number}  allowed\n", "")
    out, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, out) == (0, "you said: ask me [allowed touch x0]\n")
    assert "claude allowed by operator" in err
    late = hocket("answer", number, "deny")
    assert (late.returncode, late.stdout) == (2, "")
    assert f"run {number} has ended, and has no open question" in late.stderr


@pytest.mark.usefixtures("claude")
def test_refused_answer_names_the_open_questions(hocket: Hocket) -> None:
    ref = spawned(hocket, "ask twice", "--on-question", "ask")
    run = until(hocket, ref, lambda run: len(run["questions"]) == 2)
    unclear = hocket("answer", ref, "allow")
    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert f"run {hocket.number()} has 2 open questions; choose one" in unclear.stderr
    for number in range(2):
        line = f"    hocket answer {hocket.number()} --question q1-{number} allow/deny\n"
        told = f"? wants to run Bash: touch x{number}\n{line}"
        assert told in unclear.stderr
    unknown = hocket("answer", ref, "allow", "--question", "nosuch")
    assert (unknown.returncode, "no open question 'nosuch'" in unknown.stderr) == (2, True)
    assert "--question q1-1" in unknown.stderr
    assert hocket("show", ref).stdout.count("--question q1-") == 2
    first, second = (question["id"] for question in run["questions"])
    denied = hocket("answer", ref, "no", "--question", first, "-m", "not that one", "--json")
    assert json.loads(denied.stdout) == {"run": ref, "question": first, "allow": False}
    assert hocket("answer", ref, "yes", "--question", second).stdout.endswith("  allowed\n")
    assert hocket("wait", ref).stdout == "you said: ask twice [not that one\nallowed touch x1]\n"


@pytest.mark.usefixtures("claude")
def test_only_a_clear_yes_gives_permission(hocket: Hocket) -> None:
    ref = spawned(hocket, "ask me", "--on-question", "ask")
    until(hocket, ref, needs_you)
    unclear = hocket("answer", ref, "hm, well")
    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert "answer allow or deny" in unclear.stderr
    assert json.loads(hocket("show", ref, "--json").stdout)["needs_you"] is True


@pytest.mark.usefixtures("claude")
def test_choice_is_answered_by_text_or_number(hocket: Hocket) -> None:
    ref = spawned(hocket, "choose", "--on-question", "ask")
    until(hocket, ref, needs_you)
    assert f'hocket answer {hocket.number()} "YOUR ANSWER"' in hocket("show", ref).stdout
    assert hocket("answer", ref, "2").returncode == 0
    assert "[Which colour? Blue]" in hocket("wait", ref).stdout


def chained(hocket: Hocket, dsl: str, prompt: str, asked: int = 1) -> dict[str, Any]:
    """A chain, once so much is asked in it."""
    run = hocket.created("run", dsl, "-p", prompt, "--on-question", "ask", "--detach")
    return until(hocket, run, lambda run: len(run["questions"]) == asked)


@pytest.mark.usefixtures("claude")
def test_answer_to_a_chain_reaches_the_asking_run(hocket: Hocket) -> None:
    chain = chained(hocket, "claude", "choose")["id"]
    number = hocket.number(2)
    shown = hocket("show", chain).stdout
    assert f'? asks: Which colour? (1 Red, 2 Blue)\n    hocket answer {number} "YOUR ANSWER"\n' in shown
    answered = hocket("answer", chain, "blue")
    assert (answered.returncode, answered.stdout, answered.stderr) == (0, f"{number}  allowed\n", "")
    assert "[Which colour? blue]" in hocket("wait", chain).stdout


@pytest.mark.usefixtures("claude")
def test_chain_permission_needs_a_clear_yes(hocket: Hocket) -> None:
    chain = chained(hocket, "claude:2", "ask me")
    unclear = hocket("answer", chain["id"], "sounds", "good")
    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert "answer allow or deny, not 'sounds good': the agent wants to run Bash: touch x0" in unclear.stderr
    assert json.loads(hocket("show", chain["id"], "--json").stdout)["questions"] == chain["questions"]
    denied = hocket("answer", chain["id"], "no", "--json")
    told = {"run": chain["questions"][0]["run"], "question": "q1-0", "allow": False}
    assert (denied.returncode, json.loads(denied.stdout)) == (0, told)


@pytest.mark.usefixtures("claude")
def test_answer_without_question_is_refused(hocket: Hocket) -> None:
    ref = spawned(hocket, "hold", "--on-question", "ask")
    hocket("run", "claude", "-p", "hold", "--detach")
    for name in (ref, hocket.number(2)):
        refused = hocket("answer", name, "deny")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "no open question" in refused.stderr


SPAWNER = f"""
import subprocess
for _ in range(2):
    words = ["spawn", "claude", "-p", "ask me", "--on-question", "ask"]
    subprocess.run([{sys.executable!r}, "-m", "hocket", *words], check=True)
import signal; signal.pause()
"""


@pytest.mark.usefixtures("claude")
def test_questions_of_a_chain_are_distinguished_by_run(hocket: Hocket, agent: Bin) -> None:
    agent("spawner", SPAWNER)
    chain = chained(hocket, "spawner", "x", asked=2)["id"]
    first, second = hocket.number(3), hocket.number(4)
    lines = [f"hocket answer {number} allow/deny\n" for number in (first, second)]
    shown = hocket("show", chain).stdout
    assert all(line in shown for line in lines)
    for words in (["allow"], ["allow", "--question", "q1-0"]):
        unclear = hocket("answer", chain, *words)
        assert (unclear.returncode, unclear.stdout) == (2, "")
        assert all(line in unclear.stderr for line in lines)
    assert hocket("answer", first, "allow").stdout == f"{first}  allowed\n"
    assert hocket("wait", first).stdout == "you said: ask me [allowed touch x0]\n"
    assert hocket("answer", chain, "deny").stdout == f"{second}  denied\n"


@contextmanager
def before_it_decides(home: Path, tool_summary: Callable[[Client], object]) -> Iterator[None]:
    """Lets something happen after the next command has looked and before the server hears what it wants."""
    door, moved = home / "sock", home / "moved"
    door.rename(moved)

    def pass_on() -> None:
        for _ in range(2):
            near, _ = listener.accept()
            with near, socket.socket(socket.AF_UNIX) as far:
                request = near.recv(65536)
                if request.startswith(b"POST"):
                    tool_summary(Client(str(home / "another"), socket_path=str(moved)))
                far.connect(str(moved))
                far.sendall(request)
                while piece := far.recv(65536):
                    near.sendall(piece)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(PATIENCE)
        listener.bind(str(door))
        listener.listen()
        passing = Thread(target=pass_on)
        passing.start()
        try:
            yield
        finally:
            passing.join()
            moved.rename(door)


@pytest.mark.usefixtures("claude")
@pytest.mark.own_server
def test_answer_never_reaches_the_next_question(hocket: Hocket, home: Path) -> None:
    ref = spawned(hocket, "ask, then choose", "--on-question", "ask")
    until(hocket, ref, needs_you)

    def overtake(client: Client) -> object:
        client.request("POST", f"/api/runs/{ref}/answer", {"question": "q1-0", "allow": False})
        return next(event for event in client.follow(ref) if event["data"].get("kind") == "choice")

    with before_it_decides(home, overtake):
        late = hocket("answer", ref, "allow")
    assert (late.returncode, late.stdout) == (2, "")
    assert [one["id"] for one in json.loads(hocket("show", ref, "--json").stdout)["questions"]] == ["q1-9"]


@pytest.mark.usefixtures("claude")
def test_waiting_ends_when_the_turn_asks(hocket: Hocket) -> None:
    ref = spawned(hocket, "first", "--session", "--on-question", "ask")
    until(hocket, ref, is_idle)
    waited = hocket("send", ref, "ask me", "--wait")
    assert (waited.returncode, waited.stdout) == (4, "")
    assert waited.stderr == f"? wants to run Bash: touch x0\n    hocket answer {hocket.number()} allow/deny\n"
    again = hocket("send", ref, "and now?", "--wait", "--json")
    assert (again.returncode, json.loads(again.stdout)["question"]["tool"]) == (4, "Bash")


@pytest.mark.usefixtures("claude")
def test_unanswerable_question_exits_with_four(hocket: Hocket) -> None:
    done = hocket("run", "claude", "-p", "ask me", "--on-question", "fail")
    assert done.returncode == 4
    assert "? claude wants to run Bash: touch x0    not answered (--on-question fail)" in done.stderr
    assert "no_answer" in done.stderr
    assert "hocket answer" not in done.stderr


@pytest.mark.usefixtures("claude")
def test_ended_session_is_resumed_in_a_new_run(hocket: Hocket) -> None:
    first = spawned(hocket, "first")
    before = json.loads(hocket("wait", first, "--json").stdout)
    early = hocket("resume", first, "-p", "second", "-q")
    assert (early.returncode, early.stdout, early.stderr) == (0, "you said: second\n", "")
    detached = json.loads(hocket("resume", first, "--detach", "--json").stdout)["run"]
    after = json.loads(hocket("wait", detached, "--json").stdout)
    assert (after["status"], after["resumed_from"]) == ("done", first)
    assert after["session_id"] != before["session_id"]
    assert f"resumes     {before['number']} claude" in hocket("show", detached).stdout
    events = [json.loads(line) for line in hocket("resume", first, "-p", "x", "--json").stdout.splitlines()]
    assert (events[-1]["type"], events[-1]["data"]["result"]) == ("run.ended", "you said: x")


@pytest.mark.usefixtures("claude")
def test_resumed_session_is_watched_to_its_pause(hocket: Hocket) -> None:
    first = spawned(hocket, "first")
    hocket("wait", first)
    resumed = hocket("resume", first, "--session", "-p", "more")
    assert (resumed.returncode, resumed.stdout) == (0, "you said: more\n")
    number = hocket.number(2)
    assert f"run {number} waits for a message: hocket attach {number} ·" in resumed.stderr
    assert "○ idle" in hocket("ps").stdout
    assert hocket("resume", number).returncode == 2


def test_failed_chain_is_resumed_at_a_step(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("first", "open('ledger', 'a').write('first ')\n")
    agent("second", "import os, sys\nsys.exit(not os.path.exists('mended'))\n")
    agent("third", "print('finished')\n")
    failed = hocket("run", "first -> second -> third", "-q")
    assert failed.returncode == 1
    chain = hocket.number()
    assert "has no step 9" in hocket("resume", chain, "--from", "9").stderr
    assert "its steps: 1 first, 2 second, 3 third" in hocket("resume", chain, "--from", "unknown").stderr
    refused = hocket("resume", chain, "-p", "more")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "own prompts" in refused.stderr
    (project / "mended").touch()
    done = hocket("resume", chain)
    assert (done.returncode, done.stdout) == (0, "finished\n")
    assert (project / "ledger").read_text() == "first "
    again = hocket("resume", chain, "--from", "first", "--json")
    last = json.loads(again.stdout.splitlines()[-1])
    assert (again.returncode, [step["agent"] for step in last["data"]["steps"]]) == (0, ["first", "second", "third"])
    assert (project / "ledger").read_text() == "first first "
    shown = json.loads(hocket("show", last["run"], "--json").stdout)
    assert shown["resumed_from"] == json.loads(hocket("show", chain, "--json").stdout)["id"]
    assert hocket("resume", last["run"]).returncode == 2


def test_message_to_a_program_is_refused(hocket: Hocket, agent: Bin) -> None:
    agent("tool", "import signal; signal.pause()")
    ref = hocket.created("spawn", "tool")
    refusals = {"hi": "does not read messages", "--interrupt": "does not read messages", "allow": "no open question"}
    for words, why in refusals.items():
        done = hocket("answer" if words == "allow" else "send", ref, words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert why in done.stderr
    hocket("stop", ref)
    assert hocket("resume", ref).returncode == 2
    refused = hocket("spawn", "tool", "--session")
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.usefixtures("claude")
def test_sub_agents_and_tools_have_their_lines(hocket: Hocket) -> None:
    done = hocket("run", "claude", "-p", "helper")
    said = [line.split(" ", 1)[1] for line in done.stderr.splitlines() if " claude" in line]
    assert "claude/Explore found it" in said
    assert done.stdout == "the helper is done\n"
    done = hocket("run", "claude", "-p", "tool")
    said = [line.split(" ", 1)[1] for line in done.stderr.splitlines() if " claude" in line]
    assert "claude Bash: make" in said
    assert "claude Bash failed: no rule" in said
    assert done.stdout == "you said: tool\n"
