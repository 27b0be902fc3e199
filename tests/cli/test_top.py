"""``hocket top`` on a real pseudo-terminal, seen through a terminal emulator."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.pseudo_terminal import Terminal
from patience import PATIENCE
from scripted_claude import install_claude
from world import Bin, Hocket

from hocket.cli.format import display_width

pytestmark = pytest.mark.shared_server

Start = Callable[..., Terminal]
LEFT_SCREEN, HID_CURSOR, SHOWED_CURSOR = b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7][;m]")


@pytest.fixture
def terminal(home: Path, project: Path, agent: Bin) -> Iterator[Start]:
    agent("quick", "print('a plan of six steps')")
    agent("forever", "import time\nprint('hammering', flush=True)\ntime.sleep(600)")
    started: list[Terminal] = []

    def start(*args: str, **more: Any) -> Terminal:
        started.append(Terminal("top", *args, cwd=project, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def number_of(hocket: Hocket, *args: str) -> str:
    """The number of a run that is started."""
    return hocket(*args).stdout.removeprefix("run ").strip()


def row(view: Terminal, number: str) -> str:
    """The line of a run in the list."""
    found = (line for line in view.text().splitlines() if re.match(rf"[▸ ] {number} ", line))
    return next(found, "")


def press_until(view: Terminal, key: bytes, wanted: str) -> None:
    """Right after a question has appeared keys mean nothing, so it is pressed again until something happens."""
    deadline = time.monotonic() + PATIENCE
    while wanted not in view.text():
        view.press(key)
        view.read_for(0.3)
        assert time.monotonic() < deadline, view.text()


def test_tree_is_shown_with_questions_first(terminal: Start, hocket: Hocket, agent: Bin, project: Path) -> None:
    install_claude(agent.folder)
    chain = number_of(hocket, "run", "--detach", "quick -> forever:3")
    asking = number_of(hocket, "spawn", "claude", "--on-question", "ask", "-p", "ask me")
    view = terminal()
    view.wait_for("1 running, 1 needs you")
    view.wait_for("hammering")
    view.wait_for(f"claude in {project.name} wants to run Bash: touch x0")
    lines = view.text().splitlines()
    assert "1 running, 1 needs you" in lines[0]
    assert lines[1].split()[:2] == ["RUN", "AGENT"]
    assert lines[2].startswith(f"▸ {asking} ")
    assert "◆ needs you" in lines[2]
    assert "quick -> forever:3" in row(view, chain)
    assert "└ forever" in view.text()
    assert "2 ·1" in view.text()


def test_answered_run_stays_listed_after_its_end(terminal: Start, hocket: Hocket, agent: Bin) -> None:
    install_claude(agent.folder)
    asking = number_of(hocket, "spawn", "claude", "--on-question", "ask", "-p", "ask me")
    view = terminal()
    view.wait_for("1 needs you")
    press_until(view, b"a", "[a] allow once")
    press_until(view, b"a", "no more questions")
    view.wait_until(lambda: "✓ done" in row(view, asking), "the run has not ended")
    view.press(b"q")
    assert view.end() == 0


def test_escape_leaves_the_question_open(terminal: Start, hocket: Hocket, agent: Bin) -> None:
    install_claude(agent.folder)
    hocket("spawn", "claude", "--on-question", "ask", "-p", "choose")
    view = terminal()
    view.wait_for("1 needs you")
    view.press(b"a")
    view.wait_for("[t] answer…")
    press_until(view, b"t", "Enter sends")
    view.press(b"q")  # a letter of the answer now
    view.wait_for("answer: q▏")
    view.press(b"\x1b")
    view.wait_for("[t] answer…")
    view.press(b"\x1b")
    view.wait_for("? keys · a answer")
    assert hocket("inbox", "--json").stdout != "[]\n"
    view.press(b"a")
    view.wait_for("[t] answer…")
    press_until(view, b"t", "Enter sends")
    view.press(b"Red\r")
    view.wait_for("no more questions")
    assert hocket("inbox", "--json").stdout == "[]\n"


def test_run_is_opened_closed_and_stopped(terminal: Start, hocket: Hocket) -> None:
    chain = number_of(hocket, "run", "--detach", "quick -> forever:3", "-p", "Mend it")
    view = terminal()
    view.wait_for("hammering")
    view.press(b"\r")
    view.wait_for("── output")
    view.wait_for(f"● run {chain}  > Mend it")
    view.wait_for("forever[1/3] hammering")
    assert "✓  quick" in view.text()
    view.press(b"\x1b")
    view.wait_for("q quit")
    view.press(b"s")
    view.wait_for(f"Stop run {chain} quick -> forever:3 and everything below it?")
    view.press(b"n")
    view.wait_for("q quit")
    assert "● running" in row(view, chain)
    view.press(b"sy")
    view.wait_until(lambda: "■ stopped" in row(view, chain), "it is not stopped")


def test_selection_moves_and_follows_its_run(terminal: Start, hocket: Hocket) -> None:
    first, second, third = (number_of(hocket, "spawn", "forever") for _ in range(3))
    view = terminal()
    view.wait_until(lambda: row(view, third) != "", "not all are listed")
    assert row(view, first).startswith("▸")
    view.press(b"\x1b[B")
    view.wait_until(lambda: row(view, second).startswith("▸"), "it has not moved down")
    view.press(b"G")
    view.wait_until(lambda: row(view, third).startswith("▸"), "it has not moved to the end")
    view.press(b"kk")
    view.wait_until(lambda: row(view, first).startswith("▸"), "it has not moved up")
    hocket("stop", first)  # which is then below those that have not ended
    view.wait_until(lambda: "■ stopped" in row(view, first), "it has not ended")
    assert row(view, first).startswith("▸")
    assert view.text().index(third) < view.text().index("■ stopped")


def test_empty_screen_says_how_to_start(terminal: Start, hocket: Hocket) -> None:
    view = terminal()
    view.wait_for("Nothing is running.")
    assert "hocket run" in view.text()
    hocket("spawn", "forever")
    view.wait_for("hammering")
    view.press(b"?")
    view.wait_for("Quitting stops nothing")
    view.press(b"?")
    view.wait_for("q quit")


@pytest.mark.own_server
def test_screen_continues_when_the_server_restarts(terminal: Start, hocket: Hocket) -> None:
    hocket("spawn", "forever")
    view = terminal()
    view.wait_for("hammering")
    hocket("server", "stop")
    view.wait_for("connected again")
    hocket("spawn", "forever")
    view.wait_for("2 running")
    assert view.process.poll() is None


def test_screen_fits_any_size_and_agents_cannot_draw(terminal: Start, hocket: Hocket, agent: Bin) -> None:
    words = "print('\\x1b]0;pwned\\x07\\x1b[2J日本語のテスト ' * 9, flush=True)"
    agent("wide", f"import time\n{words}\ntime.sleep(600)")
    for name in ("wide", *["forever"] * 6):
        hocket("spawn", name)
    view = terminal(columns=40, rows=6)
    view.wait_for("7 running")
    for columns, rows in ((40, 3), (20, 2), (80, 24), (200, 50), (9, 1), (100, 30)):
        view.resize(rows, columns)
        view.wait_until(lambda: view.columns < 40 or "running" in view.text(), f"nothing at {columns} x {rows}")
        assert all(display_width(line) <= columns for line in view.text().splitlines())
    view.wait_for("日本語のテスト")
    assert "pwned" not in view.text()
    assert b"\x1b[2J\xe6" not in view.received
    view.press(b"q")
    assert view.end() == 0


def test_no_color_leaves_marks(terminal: Start, hocket: Hocket) -> None:
    for _ in range(2):  # the selected one has no colours of its own
        hocket("spawn", "forever")
    view = terminal(NO_COLOR="1")
    view.wait_for("▸")
    assert COLOUR.search(view.received) is None
    assert "● running" in view.text()
    coloured = terminal()
    coloured.wait_for("● running")
    coloured.wait_until(lambda: COLOUR.search(coloured.received) is not None, "it has no colours")


@pytest.mark.parametrize("end", ["q", "ctrl-c", "SIGTERM", "SIGHUP"])
def test_terminal_is_restored(terminal: Start, hocket: Hocket, end: str) -> None:
    hocket("spawn", "forever")
    view = terminal()
    view.wait_for("hammering")
    view.wait_until(lambda: not view.is_canonical(), "no single keys")
    if end.startswith("SIG"):
        view.process.send_signal(getattr(signal, end))
    else:
        view.press({"q": b"q", "ctrl-c": b"\x03"}[end])
    assert view.end() == {"q": 0, "ctrl-c": 130, "SIGTERM": 143, "SIGHUP": 129}[end]
    assert view.is_canonical()
    after = view.received[view.received.rindex(HID_CURSOR) :]
    assert LEFT_SCREEN in after
    assert SHOWED_CURSOR in after


def test_suspending_restores_the_terminal_until_it_continues(terminal: Start, hocket: Hocket) -> None:
    """The kernel does not stop the leader of a session, since no shell could continue it: it continues at once."""
    hocket("spawn", "forever")
    view = terminal()
    view.wait_for("hammering")
    view.press(b"\x1a")
    view.wait_until(lambda: view.received.count(b"\x1b[?1049h") == 2, "it has not come back")
    assert view.received.index(LEFT_SCREEN) < view.received.rindex(b"\x1b[?1049h")
    view.wait_for("hammering")
    view.press(b"q")
    assert view.end() == 0
    assert view.is_canonical()


def test_without_a_terminal_the_state_is_printed_once(terminal: Start, hocket: Hocket) -> None:
    empty = hocket("top")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "No active runs" in empty.stderr
    hocket("spawn", "forever")
    done = hocket("top")
    first, heading, *rows = done.stdout.splitlines()
    assert (first, done.stderr, done.returncode) == ("1 running", "", 0)
    assert heading.split()[:2] == ["RUN", "AGENT"]
    assert rows[0].split()[:2] == [hocket.number(), "forever"]
    view = terminal(TERM="dumb")
    assert view.end() == 0
    assert "1 running" in view.text()
    assert b"\x1b[?" not in view.received
