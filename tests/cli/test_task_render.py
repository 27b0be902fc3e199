"""The board of tasks: who has which for how long, on wide and on narrow terminals."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from cli.columns import lines_at, too_wide
from patience import PATIENCE
from world import Bin, Hocket

from hocket.cli.format import display_width
from hocket.cli.task_render import (
    MAX_CARDS,
    RECENT_SECONDS,
    Asked,
    asked_by_task,
    board_columns,
    board_lines,
    card,
    task_lines,
    task_table,
)

NOW = 1_000_000.0


def task(number: int, state: str, ago: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "id": f"t{number}",
        "number": number,
        "description": f"wish {number}",
        "status": {"type": state},
        "current_agent": None,
        "current_since": None,
        "handoff_count": 0,
        "queued": 0,
        "updated_at": (NOW - ago) * 1000,
        **more,
    }


def asked(number: int, at: float, run: int = 42, **more: Any) -> dict[str, Asked]:
    """The inbox with a question of one task."""
    question = {"id": f"q{run}", "task": f"t{number}", "run": f"r{run}", "number": run, "asked_at": at, "agent": "qa"}
    return asked_by_task([question | {"tool": "Bash", "input": {"command": "git push"}, "text": "?"} | more], NOW)


def drawn(tasks: list[dict[str, Any]], wide: int | None, questions: dict[str, Asked] | None = None) -> list[str]:
    questions = questions or {}
    return board_lines(board_columns(tasks, questions, NOW, False), questions, NOW, wide, False, colour=False)


def numbers(column: list[dict[str, Any]]) -> list[int]:
    return [one["number"] for one in column]


@pytest.mark.req("S2-87")
def test_card_shows_agent_time_handoffs_and_queue() -> None:
    one = task(7, "active", current_agent="developer", current_since=(NOW - 34) * 1000, handoff_count=3, queued=2)
    assert card(one, {}, NOW, 30) == [
        ("7  wish 7", ""),
        ("   ● developer 0:34", "34"),
        ("   3 hand-offs · 2 queued", "2"),
    ]


def test_card_of_question_has_its_reply_command() -> None:
    one = task(7, "active", current_agent="qa")
    assert card(one, asked(7, NOW - 34), NOW, 40)[1:3] == [
        ("   ◆ qa 0:34", "33"),
        ("   hocket answer 42 allow/deny", "1"),
    ]
    assert [line for line, _ in card(one, asked(7, NOW), NOW, 20)[2:4]] == ["   hocket answer 42", "   allow/deny"]
    assert "hocket answer 42" not in str(card(task(7, "failed"), asked(7, NOW), NOW, 40))


def test_task_with_open_question_needs_you() -> None:
    row = task_table([task(7, "active")], NOW, 80, asked(7, NOW))[1]
    assert "◆ needs you" in row
    whole = {**task(7, "active"), "created_at": 0, "attachments": [], "agent_chain": [], "queue": []}
    lines = task_lines(whole, {}, NOW, 60, False, asked(7, NOW, agent="/srv/qa.md")["t7"])
    assert "state    ◆ needs you" in lines
    assert lines[lines.index("question") + 1 :][:2] == [
        "  qa wants to run Bash: git push",
        "      hocket answer 42 allow/deny",
    ]
    ended = task_lines({**whole, "status": {"type": "failed"}}, {}, NOW, 60, False, asked(7, NOW)["t7"])
    assert ("state    ✗ failed" in ended, "question" in ended) == (True, False)


def test_narrow_card_cuts_the_name_not_the_time() -> None:
    one = task(7, "active", current_agent="a-very-long-name-of-an-agent", current_since=(NOW - 34) * 1000, queued=2)
    lines = [line for line, _ in card(one, {}, NOW, 17)]
    assert lines[1] == "   ● a-very… 0:34"
    assert lines[2:] == ["   0 hand-offs", "   2 queued"]


def test_board_sorts_tasks_by_state_and_change() -> None:
    tasks = [
        *(task(1, "pending", 9), task(2, "pending", 3), task(3, "active"), task(4, "active", current_agent="qa")),
        *(task(5, "waiting"), task(6, "completed", 5), task(7, "failed", 2), task(8, "completed", RECENT_SECONDS + 1)),
    ]
    columns = board_columns(tasks, asked(4, NOW - 5), NOW, everything=False)
    assert {name: numbers(column) for name, column in columns.items()} == {
        "pending": [2, 1],
        "needs_you": [4],
        "active": [3],
        "waiting": [5],
        "finished": [7, 6],
    }
    assert numbers(board_columns(tasks, {}, NOW, everything=True)["finished"]) == [7, 6, 8]


def test_finished_task_does_not_need_you() -> None:
    assert numbers(board_columns([task(1, "completed")], asked(1, NOW), NOW, everything=False)["finished"]) == [1]


@pytest.mark.parametrize("wide", [1, 8, 20, 40, 80, 99, 100, 101, 120, 200])
def test_no_line_is_wider_than_the_terminal(wide: int) -> None:
    long = "世界のすべての\x1b[31mセッション" * 9
    tasks = [
        task(number * 1111, state, current_agent=long, description=long, handoff_count=12345, queued=99)
        for number, state in enumerate(("pending", "active", "waiting", "completed", "failed", "active"), 1)
    ]
    lines = drawn(tasks, wide, asked(6666, NOW - 100_000))
    assert too_wide(lines, wide) == []
    assert "\x1b" not in "".join(lines)


def test_narrow_board_stacks_its_columns() -> None:
    tasks = [task(1, "pending"), task(2, "active", current_agent="世界", current_since=NOW * 1000), task(3, "waiting")]
    side_by_side = drawn(tasks, 120)
    assert side_by_side[0].split() == ["PENDING", "1", "ACTIVE", "1", "WAITING", "1", "DONE", "·", "FAILED", "0"]
    at = side_by_side[0].index("WAITING")
    assert display_width(side_by_side[2][: side_by_side[2].index("○")]) == at + 3  # letters of two columns move nothing
    stacked = drawn(tasks, 99)
    assert [line for line in stacked if line.endswith(" 1") and line.isupper()] == [
        "PENDING 1",
        "ACTIVE 1",
        "WAITING 1",
    ]
    assert drawn(tasks, None) == stacked


def test_long_column_is_shortened() -> None:
    tasks = [task(number, "pending") for number in range(MAX_CARDS + 5)]
    lines = drawn(tasks, 80)
    assert lines[0] == f"PENDING {MAX_CARDS + 5}"
    assert lines[-1] == "… 5 more: --all"
    everything = board_lines(board_columns(tasks, {}, NOW, True), {}, NOW, 80, True, colour=False)
    assert len([line for line in everything if "wish" in line]) == MAX_CARDS + 5


def test_board_colours_change_no_text() -> None:
    columns = board_columns([task(1, "failed")], {}, NOW, False)
    assert "\x1b[31m   ✗ failed 0s ago\x1b[0m" in "".join(board_lines(columns, {}, NOW, 120, False, colour=True))
    assert "   ✗ failed 0s ago" in "".join(board_lines(columns, {}, NOW, 120, False, colour=False))


# --- From outside ---


def test_empty_board_suggests_a_command(hocket: Hocket) -> None:
    done = hocket("task", "board")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hocket task new" in done.stderr
    assert json.loads(hocket("task", "board", "--json").stdout) == []


def age(home: Path, seconds: float) -> None:
    """Make every task older, as time would."""
    with sqlite3.connect(home / "hocket.db") as database:
        for name, state in database.execute("SELECT id, state FROM tasks").fetchall():
            old = json.loads(state) | {"updated_at": time.time() - seconds}
            database.execute("UPDATE tasks SET state = ? WHERE id = ?", (json.dumps(old), name))
    database.close()


@pytest.mark.req("S2-87")
def test_board_shows_active_asking_and_finished_tasks(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    agent("echo", "import sys; sys.stdout.write(sys.argv[-1])")
    agent("sleeper", "import time\ntime.sleep(600)")
    agent("asker", "#!/bin/sh\nexec hocket ask 'Which colour?'\n")
    hocket("handoff", "echo", "Long ago 世界")
    hocket("task", "status", "1", "completed")
    hocket("server", "stop")
    age(home, RECENT_SECONDS + 60)
    hocket("handoff", "sleeper", "Hammer at it", "--detach")
    hocket("task", "queue", "2", "echo", "then this")
    asker = hocket.created("handoff", "asker", "Paint it", "--detach")
    hocket("task", "new", "Unassigned task")
    deadline = time.monotonic() + PATIENCE
    while not json.loads(hocket("inbox", "--json").stdout):
        assert time.monotonic() < deadline, hocket("show", asker).stdout

    listed = {one["number"]: one for one in json.loads(hocket("task", "board", "--json").stdout)}
    assert set(listed) == {2, 3, 4}
    about = [(one["currentAgent"], one["handoffCount"], one["queued"], one["needsYou"]) for one in listed.values()]
    assert sorted(about, key=str) == [("asker", 1, 0, True), ("sleeper", 1, 1, False), (None, 0, 0, False)]
    assert listed[2]["currentSince"] >= listed[2]["createdAt"]

    for columns in (40, 80, 120, 200):
        lines = lines_at(columns, project, "task", "board")
        text = "\n".join(lines)
        assert too_wide(lines, columns) == []
        assert "● sleeper 0:" in text
        assert "1 hand-off · 1 queued" in text or ("1 hand-off" in text and "1 queued" in text)
        assert "◆ asker 0:" in text
        assert "Long ago" not in text
    reply = f'hocket answer {json.loads(hocket("inbox", "--json").stdout)[0]["number"]} "YOUR ANSWER"'
    assert reply in hocket("task", "board").stdout
    shown = hocket("task", "show", "3").stdout
    assert ("◆ needs you" in shown, f"  asker asks: Which colour?\n      {reply}\n" in shown) == (True, True)
    assert "1  asker  ◆ needs you  20" in shown
    assert "◆ needs you" in hocket("task", "list").stdout
    done = hocket("task", "board")
    assert "1 task was finished more than a day ago: hocket task board --all" in done.stderr
    assert "Long ago 世界" in hocket("task", "board", "--all").stdout
