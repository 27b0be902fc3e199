"""``hocket attach``: a run that was started elsewhere, on a real pseudo-terminal and without one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.pseudo_terminal import Terminal
from cli.test_terminal import press_when_it_counts
from patience import PATIENCE
from scripted_claude import install_claude
from torture.installation import wait_for
from world import Bin, Hocket

from hocket.cli import access
from hocket.cli.format import display_width
from hocket.cli.question_prompt import QuestionPrompt
from hocket.cli.watch import DETACHED, AnswerPost, RunDisplay
from hocket.views.run_view import RunView

pytestmark = pytest.mark.shared_server

Attach = Callable[..., Terminal]
KEYS = "m message · i interrupt · q leave · ? keys"
GATED = """
import sys
for number in range(30):
    print("line", number, flush=True)
open(sys.argv[1]).read()
print("the last word")
sys.exit(int(sys.argv[2]))
"""
"""Says thirty lines, and one more when its gate is opened."""


@pytest.fixture
def attach(home: Path, project: Path, agent: Bin) -> Iterator[Attach]:
    install_claude(agent.folder)
    agent("quick", "print('a plan of six steps')")
    agent("gated", GATED)
    started: list[Terminal] = []

    def start(*args: str, **more: Any) -> Terminal:
        started.append(Terminal("attach", *args, cwd=project, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def gate(project: Path) -> Path:
    path = project / "gate"
    os.mkfifo(path)
    return path


def session(hocket: Hocket, prompt: str) -> str:
    """The number of a session that is started in the background."""
    hocket("spawn", "claude", "--session", "--on-question", "ask", "-p", prompt)
    return hocket.number()


def gated(hocket: Hocket, gate: Path, code: str = "0", chain: str = "quick -> gated") -> str:
    """The number of a detached chain whose agent has said its lines and waits."""
    done = hocket("run", "--detach", chain, "--", gate, code)
    number = done.stdout.removeprefix("run ").strip()
    assert done.stderr == "", "a program that starts it gets no hint"
    for line in hocket.start("logs", "-f", number).stdout or ():
        if "line 29" in line:
            break
    return number


def open_gate(gate: Path) -> None:
    gate.open("w").close()


# --- Looking ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_attach_shows_last_lines_then_live_output(
    attach: Attach, hocket: Hocket, gate: Path, columns: int, rows: int
) -> None:
    number = gated(hocket, gate)
    view = attach(number, columns=columns, rows=rows)
    view.wait_for(KEYS)
    lines = view.text().splitlines()
    assert lines[0] == f"● run {number}  quick → gated"
    assert lines[1].split()[:3] == ["✓", "quick", "1/1"]
    assert lines[2] == f"… earlier lines: hocket logs {number}"
    said = [line.rpartition(" gated ")[2] for line in lines[3:-2]]
    assert said == [f"line {number}" for number in range(30 - len(said), 30)]
    assert len(said) == min(20, rows // 2)
    assert lines[-2].split()[1:3] == ["gated", "1/1"]
    assert all(display_width(line) <= columns for line in lines)
    open_gate(gate)
    assert view.end() == 0
    text = view.text()
    assert text.count("the last word") == 2, "as a line of the output, and with its step"
    assert text.count("✓  quick") == text.count("✓  gated") == 1
    assert f"✓ done  run {number}" in text
    assert KEYS not in text


def test_ended_run_is_shown_with_its_code(attach: Attach, hocket: Hocket, gate: Path) -> None:
    number = gated(hocket, gate, "7")
    open_gate(gate)
    hocket("wait", number)
    view = attach(number, columns=80, rows=24)
    assert view.end() == 1
    text = view.text()
    assert "gated the last word\n" in text
    assert "line 29\n" in text
    assert "line 1\n" not in text
    assert f"✗ failed  run {number}" in text
    assert view.is_canonical()


def test_loop_and_leaf_can_be_attached_to(attach: Attach, hocket: Hocket, gate: Path) -> None:
    gated(hocket, gate, chain="quick -> gated:3")
    loop, leaf = hocket.runs()[-2:]
    assert (loop["kind"], leaf["kind"]) == ("loop", "leaf")
    view, beside = attach(str(loop["number"])), attach(str(leaf["number"]))
    view.wait_for(KEYS)
    beside.wait_for(KEYS)
    assert view.text().splitlines()[0] == f"● run {loop['number']}  gated"
    assert sum("·" in line for line in view.text().splitlines()) == 1, "no step that never was"
    assert [line.split()[1:3] for line in view.text().splitlines()[-2:-1]] == [["gated", "1"]]
    open_gate(gate)
    assert beside.end() == 0
    view.wait_for("the last word")
    view.press(b"q")
    assert view.end() == DETACHED


# --- Leaving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_detach_keeps_run_and_names_the_commands(attach: Attach, hocket: Hocket, key: bytes) -> None:
    number = session(hocket, "hold")
    view = attach(number)
    view.wait_for(KEYS)
    view.wait_until(lambda: not view.is_canonical(), "no single keys")
    view.press(b"?")
    view.wait_for("interrupt the agent's turn")
    view.press(b"q")  # which only takes the help away
    view.wait_for(KEYS)
    view.press(key)
    assert view.end() == DETACHED
    assert (
        f"run {number} continues: hocket attach {number} · hocket wait {number} · hocket stop {number}" in view.text()
    )
    assert view.is_canonical()
    assert not view.screen.cursor.hidden
    assert hocket.runs()[0]["status"] == "running"


def test_detaching_names_the_command_that_comes_back(attach: Attach, hocket: Hocket, project: Path) -> None:
    view = Terminal("run", "--detach", "quick", cwd=project)
    assert view.end() == 0
    view.close()
    number = hocket.number()
    assert view.text().splitlines() == [f"run {number}", f"hocket: come back to it with: hocket attach {number}"]


# --- Keys ---------------------------------------------------------------------------------------------------


def test_session_gets_messages_and_interrupts(attach: Attach, hocket: Hocket) -> None:
    number = session(hocket, "good morning")
    view = attach(number, columns=80, rows=24)
    view.wait_for("claude you said: good morning")
    view.press(b"m")
    view.wait_for("message: ▏")
    view.press(b"nothing\x1b")
    view.wait_for(KEYS)
    view.press(b"mplease wait")
    view.wait_for("message: please wait▏")
    view.press(b"\r")
    view.wait_for("claude > please wait")
    view.wait_for("claude working")
    view.press(b"i")
    view.wait_for("claude interrupted")
    view.press("mtwo lines,\rof a pästex\x7f\r".encode())
    view.wait_for("claude you said: two lines,")
    view.wait_for("of a päste")
    assert "nothing" not in view.text()
    events = [json.loads(line) for line in hocket("logs", number, "--json").stdout.splitlines()]
    sent = [event["data"]["text"] for event in events if event["type"] == "input" and "text" in event["data"]]
    assert sent == ["please wait", "two lines,\nof a päste"]
    view.press(b"q")
    assert view.end() == DETACHED
    assert f"run {number} waits for a message: hocket attach {number}" in view.text()


def test_refused_message_is_not_lost(attach: Attach, hocket: Hocket, gate: Path) -> None:
    number = gated(hocket, gate)
    view = attach(number)
    view.wait_for(KEYS)
    view.press(b"mfaster\r")
    leaf = hocket.runs()[-1]["number"]
    view.wait_for(f"run {leaf} does not read messages")
    view.wait_for("message: faster▏")
    view.press(b"\x1b")
    view.wait_for(KEYS)
    open_gate(gate)


def test_group_members_are_attached_to_separately(attach: Attach, hocket: Hocket) -> None:
    hocket("run", "--detach", "(claude, claude)", "-p", "hold", "--on-question", "ask")
    view = attach(hocket.number())
    view.wait_until(lambda: view.text().count("1/1") == 2)
    first, second = (run["number"] for run in hocket.runs() if run["kind"] == "leaf")
    wanted = f"several agents are at work: hocket attach {first} · hocket attach {second}"
    press_when_it_counts(view, b"i", wanted)
    view.press(b"q")
    assert view.end() == DETACHED


def test_question_from_before_is_answered_by_key(attach: Attach, hocket: Hocket) -> None:
    hocket("run", "--detach", "claude", "-p", "ask me", "--on-question", "ask")
    number = hocket.number()
    hocket("inbox")
    view = attach(number, columns=80, rows=24)
    view.wait_for("[a] allow once")
    assert "│ claude wants to run Bash: touch x0" in view.text()
    press_when_it_counts(view, b"a", "allowed by you")
    assert view.end() == 0
    assert "claude you said: ask me [allowed touch x0]" in view.text()


def test_answer_key_asks_for_text(attach: Attach, hocket: Hocket) -> None:
    number = session(hocket, "choose")
    view = attach(number)
    view.wait_for("[t] answer…")
    press_when_it_counts(view, b"a", "answer: ▏")
    view.press(b"Red\r")
    view.wait_for("[Which colour? Red]")


def test_typed_answer_is_dropped_when_answered_elsewhere(attach: Attach, hocket: Hocket) -> None:
    number = session(hocket, "ask and hold")
    first, second = attach(number), attach(number)
    for view in (first, second):
        view.wait_for("[a] allow once")
        press_when_it_counts(view, b"d", "deny, because:")
    second.press(b"I would rather")
    second.wait_for("I would rather▏")
    first.press(b"no\r")
    first.wait_for("claude denied by you: no")
    second.wait_for("claude denied by operator: no")
    assert "the question was answered elsewhere; what you typed was not sent" in second.text()
    assert "answered elsewhere" not in first.text()
    for view in (first, second):
        view.press(b"q")
        assert view.end() == DETACHED


class Listener(RunDisplay):
    """Remembers what is said."""

    def __init__(self, prompt: QuestionPrompt) -> None:
        self.prompt = prompt
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_concurrent_answer_is_refused_with_a_message(attach: Attach, hocket: Hocket) -> None:
    """It is on its way while the view learns of the other one and takes the question away."""
    number = session(hocket, "ask and hold")
    client = access.connect(starting=False, talk=False)
    view, prompt = RunView(client.run(number)["id"]), QuestionPrompt()
    for event in client.follow(view.root):
        view.add(event)
        if event["type"] == "question":
            break
    prompt.update(view, 0.0)
    listener = Listener(prompt)
    answers = AnswerPost(client, listener)
    assert hocket("answer", number, "deny", "-m", "no").returncode == 0
    answers.press(prompt, ["a"], view)
    for event in client.follow(view.root, follow=False):
        view.add(event)
    prompt.update(view, 0.0)
    assert prompt.question is None

    def refusal() -> list[str]:
        answers.check()
        return listener.said

    wait_for(refusal, "the refusal")
    assert len(listener.said) == 1
    assert "has already been denied by operator: no" in listener.said[0]


# --- The server, and other places than a terminal -----------------------------------------------------------


@pytest.mark.own_server
def test_view_continues_when_the_server_is_killed(attach: Attach, hocket: Hocket, gate: Path) -> None:
    number = gated(hocket, gate, chain="quick -> gated:3")
    view = attach(number)
    view.wait_for(KEYS)
    os.kill(json.loads(hocket("server", "status", "--json").stdout)["pid"], signal.SIGKILL)
    open_gate(gate)
    view.wait_for("the last word")
    view.wait_for("2/3")  # the chain goes on as well, so there is a server again
    view.press(b"q")
    assert view.end() == DETACHED
    assert view.received.count(b"gated[1/3] the last word") == 1, "no line is shown twice"
    hocket("stop", number)


def test_attach_without_terminal_streams_lines(attach: Attach, hocket: Hocket, gate: Path) -> None:
    number = gated(hocket, gate, "7")
    lines, events = hocket.start("attach", number), hocket.start("attach", number, "--json")
    for process in (lines, events):
        stream = process.stderr if process is lines else process.stdout
        assert stream is not None
        next(line for line in stream if "line 29" in line)
    open_gate(gate)
    result, told = lines.communicate(timeout=PATIENCE)
    assert lines.returncode == 1
    assert result.endswith("line 29\nthe last word\n")
    assert "gated the last word" in told
    assert f"✗ failed  run {number}" in told
    rest, errors = events.communicate(timeout=PATIENCE)
    assert (events.returncode, errors) == (1, "")
    assert json.loads(rest.splitlines()[-1])["type"] == "run.ended"
    again = hocket("attach", number, "--json")
    assert again.stdout == hocket("logs", "-f", number, "--json").stdout
    assert again.returncode == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_ends_the_command_and_not_the_run(
    attach: Attach, hocket: Hocket, gate: Path, number: signal.Signals, code: int
) -> None:
    run = gated(hocket, gate)
    watching = hocket.start("attach", run)
    assert watching.stderr is not None
    next(line for line in watching.stderr if "line 29" in line)
    watching.send_signal(number)
    assert watching.wait(PATIENCE) == code
    assert f"run {run} continues: hocket attach {run}" in watching.stderr.read()
    assert hocket.runs()[-1]["status"] == "running"
    open_gate(gate)


def test_unknown_run_is_refused(hocket: Hocket) -> None:
    refused = hocket("attach", "999999")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "999999" in refused.stderr
