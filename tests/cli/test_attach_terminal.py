"""``hocket attach`` to a run that has a terminal: the whole of it, in a real one, which is left as it was."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.tmux import CLEAN, Pane, opening_panes
from sessions.screen_runs import leave_screen_run
from world import Bin, Hocket

from hocket.cli.attach.full_terminal import is_within_paste, keys_before_detach

OpenPane = Callable[..., Pane]


@pytest.fixture
def pane(world: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPane]:
    monkeypatch.chdir(project)
    with opening_panes(world) as start:
        yield start


@pytest.fixture
def run(home: Path, project: Path, agent: Bin) -> str:
    """The number of a live run with a terminal. No server is running."""
    return str(leave_screen_run(home, project, agent).number)


def typed(text: bytes) -> str:
    return f"typed {text.hex()} {len(text)}"


def attach(terminal: Pane, run: str, size: str = "100x30") -> None:
    terminal.enter(f"hocket attach {run}")
    terminal.wait_for(f"size {size}")


def server_pid(home: Path) -> int:
    return int(json.loads((home / "server.lock").read_text())["pid"])


# --- Watching and typing ------------------------------------------------------------------------------------


def test_terminal_is_shown_and_left_unchanged(pane: OpenPane, run: str) -> None:
    terminal = pane()
    terminal.enter("before=$(stty -g); echo the text before")
    title = terminal.title()
    attach(terminal, run)
    terminal.type("é")
    terminal.press("C-c", "C-z", "Escape")
    terminal.wait_for(typed("é".encode() + b"\x03\x1b"))
    assert "\x1b[31mred" in terminal.text(colours=True)
    assert terminal.modes().split()[:3] == ["0", "1", "1"], "its own modes are set"
    assert "Ctrl-] leaves" in terminal.title()
    assert "the text before" not in terminal.text()
    terminal.press("C-]")
    terminal.wait_for("run 1 continues: hocket attach 1")
    terminal.enter('echo "code $?"; test "$before" = "$(stty -g)" && echo settings are the same')
    terminal.wait_for("code 3\nsettings are the same")
    assert "the text before" in terminal.text()
    assert "size" not in terminal.text()
    assert (terminal.modes(), terminal.title()) == (CLEAN, title)


def test_terminal_is_shown_again_after_leaving(pane: OpenPane, run: str) -> None:
    terminal = pane()
    for keys in (b"a", b"aa"):
        attach(terminal, run)
        terminal.type("a")
        terminal.wait_for(typed(keys))
        terminal.press("C-]")
        terminal.wait_until(terminal.is_at_prompt, "the shell is not ready")


def test_terminal_follows_the_size_of_the_window(pane: OpenPane, run: str) -> None:
    terminal = pane()
    attach(terminal, run)
    for columns, rows in ((80, 24), (120, 40)):
        terminal.resize(columns, rows)
        terminal.wait_for(f"size {columns}x{rows}")


def test_two_people_share_a_terminal(pane: OpenPane, run: str) -> None:
    first, second = pane(100, 30), pane(90, 40)
    attach(first, run)
    attach(second, run, "90x30")
    first.wait_for("size 90x30")
    first.type("a")
    second.wait_for(typed(b"a"))
    second.type("b")
    first.wait_for(typed(b"ab"))
    second.press("C-]")
    first.wait_for("size 100x30")


def test_paste_arrives_whole(pane: OpenPane, run: str) -> None:
    terminal = pane()
    attach(terminal, run)
    text = b"one\ntwo\x1d three \xc3\xa9\n"
    terminal.paste(text)
    terminal.wait_for(typed(b"\x1b[200~" + text + b"\x1b[201~"))


@pytest.mark.parametrize(("code", "line", "exit_code"), [(0, "✓ done  run 1", 0), (7, "✗ failed  run 1", 1)])
def test_end_of_run_restores_the_terminal(
    home: Path, project: Path, agent: Bin, pane: OpenPane, code: int, line: str, exit_code: int
) -> None:
    leave_screen_run(home, project, agent, str(code))
    terminal = pane()
    attach(terminal, "1")
    terminal.type("QUIT")
    terminal.wait_for(line)
    terminal.enter('echo "code $?"')
    terminal.wait_for(f"code {exit_code}")
    assert terminal.modes() == CLEAN
    terminal.enter("clear; hocket attach 1")
    terminal.wait_for(line)


# --- What goes wrong ----------------------------------------------------------------------------------------


def test_killed_server_is_started_again(pane: OpenPane, run: str, home: Path) -> None:
    terminal = pane()
    attach(terminal, run)
    terminal.type("a")
    terminal.wait_for(typed(b"a"))
    killed = server_pid(home)
    os.kill(killed, signal.SIGKILL)
    terminal.wait_until(lambda: server_pid(home) != killed, "no other server")
    terminal.type("b")
    terminal.wait_for(typed(b"ab"))
    terminal.resize(80, 24)
    terminal.wait_for("size 80x24")
    assert "connecting" not in terminal.text()
    terminal.press("C-]")
    terminal.wait_for("run 1 continues")
    assert terminal.modes() == CLEAN


def test_killed_client_leaves_nothing_at_the_server(pane: OpenPane, run: str) -> None:
    first, second = pane(100, 30), pane(60, 20)
    attach(first, run)
    attach(second, run, "60x20")
    os.kill(second.child(), signal.SIGKILL)
    first.wait_for("size 100x30")
    second.wait_for("Killed")
    # The next one shows the terminal, and restores what the first did not.
    second.enter(f"clear; hocket attach {run}")
    second.wait_for("size 60x20")
    second.press("C-]")
    second.wait_for("run 1 continues")
    assert second.modes() == CLEAN


def test_terminated_client_restores_the_terminal(pane: OpenPane, run: str) -> None:
    terminal = pane()
    attach(terminal, run)
    os.kill(terminal.child(), signal.SIGTERM)
    terminal.wait_for("run 1 continues")
    terminal.enter('echo "code $?"')
    terminal.wait_for("code 143")
    assert terminal.modes() == CLEAN


def test_terminal_needs_a_terminal(hocket: Hocket, run: str) -> None:
    done = hocket("attach", run)
    assert done.returncode == 2
    assert "run 1 has a terminal, which can be shown only on a terminal" in done.stderr
    assert "hint: hocket logs -f 1" in done.stderr


# --- Keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "before"),
    [
        (b"abc", None),
        (b"ab\x1dc", b"ab"),
        (b"\x1b[93;5u", b""),
        (b"x\x1b[93;133:1u", b"x"),
        (b"\x1b[93;5:3u", None),
        (b"\x1b[93;6u", None),
        (b"x\x1b[27;5;93~", b"x"),
        (b"\x1b[200~ab\x1dc\x1b[201~", None),
        (b"\x1b[200~ab\x1dc", None),
        (b"\x1b[200~ab\x1b[201~d\x1d", b"\x1b[200~ab\x1b[201~d"),
    ],
)
def test_key_that_leaves_is_recognized(keys: bytes, before: bytes | None) -> None:
    assert keys_before_detach(keys) == before


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(b"a", False), (b"\x1b[200~a", True), (b"\x1b[200~a\x1b[201~", False), (b"\x1b[201~\x1b[200~", True)],
)
def test_unfinished_paste_is_recognized(keys: bytes, expected: bool) -> None:
    assert is_within_paste(keys) is expected
