"""The open questions of all live runs, and the outcome of earlier ones. Asking and answering are in ``messages``.

A question is written by ``record_question`` of ``store`` in the transaction of its event. The copy in the run itself is
what ``fold`` shows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from hocket.model import Run
from hocket.sessions.journal import Journal
from hocket.store import Committed, Question


class PendingQuestion(NamedTuple):
    """An open question and the run that asked it."""

    run: Run
    asked: Mapping[str, Any]

    @property
    def asked_at(self) -> float:
        """Records of early versions have no time; the start of the run is the earliest possible one."""
        return float(self.asked.get("asked_at") or self.run.started_at or self.run.created_at)


class Questions:
    """Lists the open questions and reports changes to them. One per server."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._news = asyncio.Event()
        self._closed = False
        self._asking = {run.id: run.open_questions for run in journal.live.values() if run.open_questions}

    def open(self) -> None:
        self._journal.listen(self._on_commit)

    def close(self) -> None:
        """End all followers; clients reconnect to the next server."""
        self._closed = True
        self._wake()

    def questions(self) -> list[PendingQuestion]:
        """All open questions, oldest first."""
        runs = [run for run_id in self._asking if (run := self._journal.live.get(run_id)) is not None]
        return sorted((PendingQuestion(run, asked) for run in runs for asked in run.open_questions), key=_age)

    def answered(self, run: Run | None, question: str) -> tuple[Run, dict[str, Any]] | None:
        """The last answered question with this id prefix, of one run or of any, and the run that asked it."""
        found = last_answered(self._journal, run, question)
        asking = None if found is None else self._journal.run(found.run)
        return None if found is None or asking is None else (asking, outcome(asking, found))

    async def follow(self, heartbeat: float) -> AsyncIterator[list[PendingQuestion] | None]:
        """Yield all open questions now and after every change; None after each ``heartbeat`` seconds without one."""
        before: list[tuple[str, str]] | None = None
        while not self._closed:
            news = self._news
            now = self.questions()
            if (names := [(one.run.id, str(one.asked["id"])) for one in now]) != before:
                before = names
                yield now
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), heartbeat)
            if not news.is_set():
                yield None

    def _on_commit(self, committed: Committed) -> None:
        changed = False
        for run in committed.runs.values():
            asked = () if run.ended else run.open_questions
            if asked != self._asking.get(run.id, ()):
                changed = True
                self._asking.pop(run.id, None)
                if asked:
                    self._asking[run.id] = asked
        if changed:
            self._wake()

    def _wake(self) -> None:
        """Wake the followers; later ones wait for the next change."""
        self._news.set()
        self._news = asyncio.Event()


def _age(one: PendingQuestion) -> tuple[float, int]:
    return one.asked_at, one.run.number


def last_answered(journal: Journal, run: Run | None, prefix: str) -> Question | None:
    """Return the question answered last whose id has this prefix: of a leaf, at or below another run, or of any run."""
    if run is None:
        return journal.read.last_answered(prefix)
    if run.has_process:
        return journal.read.last_answered(prefix, run.id)
    return journal.read.last_answered_below(run.root, prefix, journal.is_below(run.id))


def outcome(run: Run, asked: Question) -> dict[str, Any]:
    """Return the state of a question of a run. A question without an answer is closed by the end of its run."""
    said = asked.answer or {}
    return {
        **{name: asked.data.get(name) for name in ("id", "kind", "text", "tool", "input")},
        "options": asked.data.get("options") or [],
        "run": run.id,
        "number": run.number,
        "asked_at": asked.asked_at,
        "open": any(one["id"] == asked.id for one in run.open_questions),
        "answered": asked.answer is not None,
        "allow": said.get("allow"),
        "answer": said.get("text"),
        "by": said.get("by"),
        "answered_at": asked.answered_at,
    }
