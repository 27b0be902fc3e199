"""Passes are counted once per conversation, across processes, also after an incomplete write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

from hocket.rehearsal.conversation_counts import (
    PASSES,
    ConversationCounts,
    note_uncovered,
    uncovered_in,
)
from hocket.rehearsal.matching import Uncovered


def test_each_conversation_of_an_agent_counts_once(tmp_path: Path) -> None:
    passes = ConversationCounts(tmp_path)
    numbers = [passes.number("a", session) for session in ("x", "y", "x", "z")]
    assert numbers == [1, 2, 1, 3]
    assert passes.number("b", "x") == 1


def test_counts_continue_in_another_instance(tmp_path: Path) -> None:
    ConversationCounts(tmp_path).number("a", "x")
    other = ConversationCounts(tmp_path)
    assert [other.number("a", "y"), other.number("a", "x")] == [2, 1]


def test_incomplete_file_restarts_the_count(tmp_path: Path) -> None:
    (tmp_path / PASSES).write_text('{"a": ["x"', encoding="utf-8")
    assert ConversationCounts(tmp_path).number("a", "y") == 1


def test_parallel_processes_get_distinct_numbers(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from hocket.rehearsal.conversation_counts import ConversationCounts\n"
    code += "print(*[ConversationCounts(Path(sys.argv[1])).number('a', f'{sys.argv[2]}-{n}') for n in range(20)])"
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in ("p", "q", "r")
    ]
    numbers = [int(number) for child in children for number in child.communicate(timeout=PATIENCE)[0].split()]
    assert sorted(numbers) == list(range(1, 61))


def test_uncovered_requests_are_read_back(tmp_path: Path) -> None:
    lost = Uncovered("a", 1, 0, 2, "grüße\n")
    assert uncovered_in(tmp_path) == []
    note_uncovered(tmp_path / "deep", lost)
    note_uncovered(tmp_path / "deep", lost._replace(turn=2))
    assert uncovered_in(tmp_path / "deep") == [lost, lost._replace(turn=2)]
