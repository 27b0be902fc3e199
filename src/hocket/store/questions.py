"""Questions and their answers: one row per question, written with the events that report it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import msgspec

from hocket.model import Event
from hocket.store.runs import RunQueries

_END = "\U0010ffff"
"""Sorts after every continuation of a prefix."""
_COLUMNS = "SELECT seq, run, id, asked_at, question, answer_seq, answered_at, answer FROM questions"
_ASK = """INSERT INTO questions (seq, run, root, id, asked_at, question) VALUES (?, ?, ?, ?, ?, ?)"""
_ANSWER = """UPDATE questions SET answer_seq = ?, answered_at = ?, answer = ?, answer_key = ? WHERE seq = (
    SELECT min(seq) FROM questions WHERE run = ? AND id = ? AND answer_seq IS NULL)"""

_encoder = msgspec.json.Encoder()
_any = msgspec.json.Decoder()


class Question(msgspec.Struct, frozen=True):
    """A question of a run, and its answer if there is one."""

    seq: int
    run: str
    id: str
    asked_at: float
    data: Mapping[str, Any]
    """Of the event that asked it."""
    answer_seq: int | None = None
    answered_at: float | None = None
    answer: Mapping[str, Any] | None = None
    """Of the event that answered it."""


def record_question(connection: sqlite3.Connection, event: Event) -> None:
    """Write the row of a question, or its answer. An answer without a question is not recorded here."""
    name = event.data.get("id")
    if not isinstance(name, str):
        return
    data = _encoder.encode(event.data).decode()
    if event.type == "question":
        connection.execute(_ASK, (event.seq, event.run, event.root, name, event.ts, data))
    else:
        key = event.data.get("key")
        connection.execute(_ANSWER, (event.seq, event.ts, data, key, event.run, name))


class QuestionQueries(RunQueries):
    """Questions by run, by id and by the key of their answer."""

    def _questions(self, condition: str, parameters: tuple[object, ...]) -> list[Question]:
        return [_question(row) for row in self._connection.execute(f"{_COLUMNS} WHERE {condition}", parameters)]

    def question(self, run_id: str, question: str) -> Question | None:
        """Return the first question of a run with this id."""
        found = self._questions("run = ? AND id = ? ORDER BY seq LIMIT 1", (run_id, question))
        return found[0] if found else None

    def answered_with(self, root: str, key: str) -> Question | None:
        """Return the question of a tree that was answered with this key."""
        found = self._questions("root = ? AND answer_key = ? ORDER BY answer_seq LIMIT 1", (root, key))
        return found[0] if found else None

    def last_answered(self, prefix: str, run_id: str | None = None) -> Question | None:
        """Return the question that was answered last, of those of a run and of those with this prefix of their id."""
        newest, parameters = "SELECT max(answer_seq) FROM questions", [run_id] if run_id is not None else []
        if prefix or run_id is not None:
            newest += f" WHERE {'run = ? AND ' if run_id is not None else ''}id >= ? AND id < ?"
            parameters += [prefix, prefix + _END]
        found = self._questions(f"answer_seq = ({newest})", tuple(parameters))
        return found[0] if found else None

    def last_answered_below(self, root: str, prefix: str, is_below: Callable[[str], bool]) -> Question | None:
        """Return the same among those runs of a tree for which ``is_below`` is true."""
        sql = f"{_COLUMNS} WHERE root = ? AND answer_seq IS NOT NULL ORDER BY answer_seq DESC"
        with closing(self._connection.execute(sql, (root,))) as rows:
            return next((_question(row) for row in rows if row[2].startswith(prefix) and is_below(row[1])), None)


def _question(row: tuple[Any, ...]) -> Question:
    seq, run, name, asked_at, question, answer_seq, answered_at, answer = row
    answered = _any.decode(answer) if answer is not None else None
    return Question(seq, run, name, asked_at, _any.decode(question), answer_seq, answered_at, answered)
