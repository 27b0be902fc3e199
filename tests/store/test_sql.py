"""The SQL of this room is SQL that PostgreSQL would take too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hocket.store

ROOM = Path(hocket.store.__file__).parent
SQLITE_ONLY = {
    "AUTOINCREMENT": r"\bAUTOINCREMENT\b",
    "INSERT OR": r"\bINSERT\s+OR\b",
    "REPLACE INTO": r"\bREPLACE\s+INTO\b",
    "WITHOUT ROWID": r"\bWITHOUT\s+ROWID\b",
    "rowid": r"\browid\b",
    "datetime(": r"\b(?:datetime|strftime|julianday)\s*\(\s*'",
    "ifnull": r"\bifnull\b",
    "GLOB": r"\bGLOB\b",
    "json_extract": r"\bjson_extract\b",
    "sqlite_master": r"\bsqlite_(?:master|schema)\b",
    "double-quoted texts": r"""=\s*\\?"[a-z]+\\?"\s*(?:AND|OR)\b""",
    "INTEGER PRIMARY KEY": r"\bINTEGER\s+PRIMARY\s+KEY\b",
}
MAY_KNOW_SQLITE = {"opening.py", "secret_migration.py", "task_files.py"}
MAY_SET_PRAGMAS = {"opening.py", "secret_migration.py", "writer.py", "store.py"}


def found(pattern: str, but_not: set[str]) -> list[str]:
    return [
        f"{path.name}:{number}"
        for path in sorted(ROOM.glob("*.py"))
        if path.name not in but_not
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE)
    ]


@pytest.mark.parametrize("name", SQLITE_ONLY)
def test_sqlite_words_are_used_only_where_allowed(name: str) -> None:
    assert found(SQLITE_ONLY[name], MAY_KNOW_SQLITE) == []


def test_pragmas_are_set_only_where_allowed() -> None:
    assert found(r"\bPRAGMA\b", MAY_SET_PRAGMAS) == []
    assert found(r"\bPRAGMA\b", set()) != []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("AUTOINCREMENT", "id INTEGER PRIMARY KEY AUTOINCREMENT"),
        ("INSERT OR", '"INSERT OR IGNORE INTO runs"'),
        ("rowid", "SELECT rowid FROM x"),
        ("datetime(", "datetime('now')"),
    ],
)
def test_sqlite_word_is_found_in_source(name: str, line: str) -> None:
    assert re.search(SQLITE_ONLY[name], line, re.IGNORECASE)
