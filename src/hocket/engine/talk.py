"""Talking to runs that listen: messages, answers, interruptions, and the end of their input.

What is said goes into the run's own file first, with a note of the event that tells of it, and is recorded then: so it
arrives once, and a server that died in between leaves nothing that the next one cannot record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from hocket.engine.journal import Journal
from hocket.engine.runs import directory
from hocket.errors import Conflict
from hocket.keeper import files
from hocket.model import Event, Kind, Run, Spec
from hocket.providers import PROVIDERS, Conversation, Reply

END = "end"
"""The id of the record that ends a run's input."""
FIRST = "prompt"
"""The id of the record that a run begins with."""

_decoder = msgspec.json.Decoder(Spec)


def ends_at_once(spec: Spec) -> bool:
    """Whether a run's prompt is all it is ever told. Then it needs no server to come to its end."""
    return not spec.session and spec.on_question == "deny"


def first_input(spec: Spec) -> dict[str, bytes]:
    """The file of a run's input as it stands before the run begins."""
    conversation = PROVIDERS[spec.provider].conversation
    if spec.stdin != "lines" or conversation is None:
        return {}
    prompt = files.input_record(FIRST, conversation.message(spec.prompt or ""))
    return {files.IN: prompt + files.input_record(END, None) if ends_at_once(spec) else prompt}


class Talk:
    """One per server."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self._home = home
        self._journal = journal
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One at a time for each run: between a line in its file and its record, nobody may look for lines without."""
        self.unheard: set[str] = set()
        """Runs that were told something after their last turn began: that turn may not be the last one."""

    async def send(self, run: Run, text: str, key: str) -> None:
        """One more message. A key that was used before says the same thing, so nothing is said twice."""
        async with self._turn(run):
            now, conversation = self._listener(run)
            line = conversation.message(text)
            self.unheard.add(run.id)
            await self._say(now, f"message:{key}", line, "input", {"kind": "message", "id": key, "text": text})

    async def interrupt(self, run: Run, key: str) -> None:
        """End what the agent is doing, and leave it to be told more."""
        async with self._turn(run):
            now, conversation = self._listener(run)
            line = conversation.interrupt(key)
            await self._say(now, f"interrupt:{key}", line, "input", {"kind": "interrupt", "id": key})

    async def answer(self, run: Run, question: str | None, reply: Reply, by: str, key: str) -> dict[str, Any]:
        """Answer one open question. The first answer counts, whoever comes with another; it may be given again."""
        run = self._asking(run, question, key)
        async with self._turn(run):
            if (given := self._journal.read.answered(run.root, key)) is not None:
                return _receipt(*given)
            if run.kind is not Kind.LEAF:
                return await self._answer_chain(run, question, reply, by, key)
            now, conversation = self._listener(run)
            asked = _meant(now, question)
            data = {"id": asked["id"], "allow": reply.allow, "text": reply.text, "by": by, "key": key}
            line = conversation.answer(asked, reply)
            if await self._say(now, f"answer:{asked['id']}", line, "answer", data) == "present":
                raise Conflict(f"that question of run {run.number} has been answered already")
            return _receipt(run.id, data)

    async def _answer_chain(self, run: Run, question: str | None, reply: Reply, by: str, key: str) -> dict[str, Any]:
        """A chain reads no lines: that the answer is recorded is all."""
        asked = _meant(self._journal.live.get(run.id) or run, question)
        data = {"id": asked["id"], "allow": reply.allow, "text": reply.text, "by": by, "key": key}
        await self._journal.write([self._event(run, "answer", data)], durable=True)
        return _receipt(run.id, data)

    async def end_input(self, place: str) -> None:
        """Nothing more will come."""
        await asyncio.to_thread(files.append_input, place, END, None, True)
        files.ring(place, files.BELL_INPUT)

    async def catch_up(self, run: Run) -> None:
        """Record what a server that is gone had said and not yet recorded."""
        async with self._turn(run):
            await self._record_missing(run)

    async def _record_missing(self, run: Run) -> None:
        notes = await asyncio.to_thread(files.input_notes, str(directory(self._home, run)))
        if any(note["data"].get("kind") == "message" for note in notes):
            self.unheard.add(run.id)
        known = self._journal.read.said_to(run.id) if notes else set()
        missing = [note for note in notes if (note["type"], note["data"]["id"]) not in known]
        if missing:
            await self._journal.write([self._event(run, note["type"], note["data"]) for note in missing])

    async def _say(self, run: Run, id: str, line: str, kind: str, data: Mapping[str, Any]) -> files.Appended:
        place = str(directory(self._home, run))
        note = {"type": kind, "data": data}
        try:
            appended = await asyncio.to_thread(files.append_input, place, id, line, False, note)
        except FileNotFoundError:
            raise Conflict(f"run {run.number} has not begun yet", "Try again in a moment") from None
        if appended == "closed":
            raise Conflict(
                f"run {run.number} takes no more input",
                f"a run of `hocket spawn --session` does; this one can be resumed once it has ended: "
                f"hocket resume {run.number}",
            )
        files.ring(place, files.BELL_INPUT)
        if appended == "added":
            await self._journal.write([self._event(run, kind, data)], durable=True)
        else:
            await self._record_missing(run)  # A first attempt may have failed between the two.
        return appended

    def _turn(self, run: Run) -> asyncio.Lock:
        return self._locks.setdefault(run.id, asyncio.Lock())

    def _asking(self, run: Run, question: str | None, key: str) -> Run:
        """Who is meant by somebody who names the chain that the asking run is part of."""
        if run.kind is Kind.LEAF or self._journal.read.answered(run.root, key) is not None:
            return run
        below = self._journal.live_below(run.id)
        asking = [one for one in below if any(_fits(asked, question) for asked in one.open_questions)]
        if not asking:
            raise Conflict(f"run {run.number} has {_nothing_open(question)}")
        if len(asking) > 1:
            numbers = ", ".join(str(one.number) for one in asking)
            raise Conflict(f"several runs of {run.number} have open questions", f"name one of them: {numbers}")
        return asking[0]

    def _listener(self, run: Run) -> tuple[Run, Conversation]:
        now = self._journal.live.get(run.id)
        if now is None:
            raise Conflict(f"run {run.number} has ended; it cannot be told anything", f"hocket resume {run.number}")
        conversation = PROVIDERS[now.provider].conversation if now.kind is Kind.LEAF and now.provider else None
        if conversation is None or _decoder.decode(self._journal.read.spec(run.id)).stdin != "lines":
            raise Conflict(f"run {run.number} does not read messages")
        return now, conversation

    def _event(self, run: Run, kind: str, data: Mapping[str, Any]) -> Event:
        return Event(0, time.time(), run.id, run.root, kind, data)


def _receipt(run_id: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": run_id, "question": answer["id"], "allow": answer["allow"]}


def _fits(asked: Mapping[str, Any], question: str | None) -> bool:
    return question is None or str(asked["id"]).startswith(question)


def _nothing_open(question: str | None) -> str:
    return f"no open question {question!r}" if question else "no open question"


def _meant(run: Run, question: str | None) -> Mapping[str, Any]:
    """The one open question that is meant."""
    asked = [one for one in run.open_questions if _fits(one, question)]
    asked = [one for one in asked if one["id"] == question] or asked
    if not asked:
        raise Conflict(
            f"run {run.number} has {_nothing_open(question)}", f"`hocket show {run.number}` lists what it asks"
        )
    if len(asked) > 1:
        ids = ", ".join(str(one["id"]) for one in asked)
        raise Conflict(f"run {run.number} has {len(asked)} open questions; say which one", f"--question, one of: {ids}")
    return asked[0]
