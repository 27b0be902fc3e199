"""Talking to runs that listen: messages, answers, interruptions, and the end of their input.

What is said goes into the run's own file first, with a note of the event that tells of it, and is recorded then: so it
arrives once, and a server that died in between leaves nothing that the next one cannot record.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from hocket.errors import Conflict, LimitReached, UsageError
from hocket.keeper import files
from hocket.model import Event, Kind, Run, Spec, Status
from hocket.providers import PROVIDERS, Conversation, Reply
from hocket.redaction import Redactor
from hocket.sessions.journal import Journal
from hocket.sessions.questions import last_answered
from hocket.sessions.run_identity import directory

END = "end"
"""The id of the record that ends a run's input."""
FIRST = "prompt"
"""The id of the record that a run begins with."""

OWN = "ask"
"""How a question came that an agent put in its own words: over the API, where it also learns the answer."""
NOBODY = "nobody is there to answer: this run was started with --on-question deny, or without anybody watching it"
OPEN_AT_ONCE = 20
"""Questions of that kind: who asks more wants something else than an answer."""
SETTLED = 2.0
"""Seconds after the end of a turn, within which the next one begins if there is anything to begin it for."""
REMEMBERED = 100
RETOLD = 200
"""Letters of an answer that whoever comes too late is told."""


class _Wishes(msgspec.Struct):
    """What a spec of either kind says about questions."""

    on_question: str = "deny"


_decoder = msgspec.json.Decoder(Spec)
_wishes = msgspec.json.Decoder(_Wishes)


def takes_messages(spec: Spec) -> bool:
    """Whether people may say something to a run after its prompt."""
    return spec.session or spec.on_question != "deny"


def ends_at_once(spec: Spec) -> bool:
    """Whether a run's prompt is all it is ever told. Then it needs no server to come to its end."""
    return not takes_messages(spec) and not spec.served


def first_input(spec: Spec) -> dict[str, bytes]:
    """The file of a run's input as it stands before the run begins."""
    conversation = PROVIDERS[spec.provider].conversation
    if spec.stdin != "lines" or conversation is None:
        return {}
    prompt = files.input_record(FIRST, conversation.message(spec.prompt or ""))
    return {files.IN: prompt + files.input_record(END, None) if ends_at_once(spec) else prompt}


class _Queue:
    """How many messages of a run have no answer yet, as far as can be told: a turn may take up several."""

    def __init__(self) -> None:
        self.length = 0
        self.ahead_of: dict[str, int] = {}
        """Of the last messages, by their keys: whoever repeats one is told the same."""
        self._last_end = 0.0

    def add(self, key: str) -> None:
        self.ahead_of[key] = self.length
        self.length += 1
        if len(self.ahead_of) > REMEMBERED:
            del self.ahead_of[next(iter(self.ahead_of))]

    def turn_ended(self, data: Mapping[str, Any]) -> None:
        self._last_end = time.monotonic()
        # The first turn answers what the run was started with, and one that woke up by itself answers nobody.
        if data.get("turn") != 1 and not data.get("origin"):
            self.length = max(0, self.length - 1)

    def is_settled(self) -> bool:
        """Whether a turn for something that waits would have begun by now."""
        return time.monotonic() - self._last_end > SETTLED


class Messages:
    """One per server."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self._home = home
        self._journal = journal
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One at a time for each run: between a line in its file and its record, nobody may look for lines without."""
        self.unheard: set[str] = set()
        """Runs that were told something after their last turn began: that turn may not be the last one."""
        self._queues: dict[str, _Queue] = {}
        self._redactors: dict[str, Redactor] = {}

    def redact_with(self, run: str, redactor: Redactor) -> None:
        """Mask the secrets of a live run in what is recorded of its messages and questions."""
        self._redactors[run] = redactor

    def _redacted(self, run: str, text: str) -> str:
        redactor = self._redactors.get(run)
        return text if redactor is None else redactor.text(text)

    async def send(self, run: Run, text: str, key: str) -> int:
        """One more message. A key that was used before says the same thing, so nothing is said twice.

        Comes back with how many messages before it are still to be answered, each most likely by a turn of its own.
        """
        async with self._turn(run):
            now, conversation = self._listener(run, to_messages=True)
            line = conversation.message(text)
            queue = self._queues.setdefault(run.id, _Queue())
            if now.status is Status.WAITING and run.id not in self.unheard and queue.is_settled():
                queue.length = 0  # Several were answered together.
            ahead = queue.ahead_of.get(key, queue.length)
            self.unheard.add(run.id)
            data = {"kind": "message", "id": key, "text": self._redacted(run.id, text)}
            if await self._say(now, f"message:{key}", line, "input", data) == "added":
                queue.add(key)
            return ahead

    def heard(self, run: str, events: Iterable[Event]) -> None:
        """Told of all that a run says: a turn that begins has heard what it was told before, one that ends answers."""
        for event in events:
            if event.type == "turn.started":
                self.unheard.discard(run)
            elif event.type == "turn.ended" and (queue := self._queues.get(run)) is not None:
                queue.turn_ended(event.data)

    def forget(self, run: str) -> None:
        """It has ended."""
        self.unheard.discard(run)
        self._queues.pop(run, None)
        self._redactors.pop(run, None)

    async def interrupt(self, run: Run, key: str) -> None:
        """End what the agent is doing, and leave it to be told more."""
        async with self._turn(run):
            now, conversation = self._listener(run, to_messages=True)
            line = conversation.interrupt(key)
            await self._say(now, f"interrupt:{key}", line, "input", {"kind": "interrupt", "id": key})

    async def ask(self, run: Run, text: str, options: Sequence[str], key: str | None) -> str:
        """A question that an agent puts in its own words; comes back with the question's id.

        A key that was used before asks nothing new. Where nobody is there to answer, that is the answer.
        """
        identity = _identity(run, key)
        text, options = self._redacted(run.id, text), [self._redacted(run.id, option) for option in options]
        async with self._turn(run):
            now = self._journal.live.get(run.id)
            if now is None:
                raise Conflict(f"run {run.number} has ended; it can ask nothing more")
            if self._journal.read.question(run.id, identity) is not None:
                return identity
            if sum(_is_own(one) for one in now.open_questions) >= OPEN_AT_ONCE:
                raise LimitReached(f"run {run.number} has {OPEN_AT_ONCE} open questions; it has to wait for answers")
            kind = "choice" if options else "ask"
            asked: dict[str, Any] = {"id": identity, "kind": kind, "text": text, "tool": None, "input": None}
            asked |= {"options": list(options), "via": OWN}
            events = [self._event(run, "question", asked)]
            if self.wish(run) == "deny":
                refusal = {"id": identity, "allow": False, "text": NOBODY, "by": "hocket"}
                events.append(self._event(run, "answer", refusal))
            await self._journal.write(events, durable=True)
        return identity

    def wish(self, run: Run) -> str:
        """What becomes of a question of this run: ``deny``, ``ask`` or ``fail``."""
        return _wishes.decode(self._journal.read.spec(run.id)).on_question

    async def answer(self, run: Run, question: str | None, reply: Reply, by: str, key: str) -> dict[str, Any]:
        """Answer one open question. The first answer counts, whoever comes with another; it may be given again."""
        run = self._asking(run, question, key)
        async with self._turn(run):
            if (given := self._journal.read.answered_with(run.root, key)) is not None:
                return _receipt(given.run, given.answer or {})
            now = self._journal.live.get(run.id) or run
            if not any(_fits(asked, question) for asked in now.open_questions):
                return await self._given_before(now, question, key)
            asked = _meant(now, question)
            text = _chosen(asked, reply.text)
            data = {"id": asked["id"], "allow": reply.allow, "text": text, "by": by, "key": key, **_rule(asked, reply)}
            if now.kind is Kind.LEAF and not _is_own(asked):
                _, conversation = self._listener(run)
                line = conversation.answer(asked, reply)
                data["text"] = None if text is None else self._redacted(run.id, text)
                if await self._say(now, f"answer:{asked['id']}", line, "answer", data) == "present":
                    return await self._given_before(now, asked["id"], key)
            else:
                # Nobody reads lines: a chain, or an agent that follows what is recorded.
                await self._journal.write([self._event(run, "answer", data)], durable=True)
            return _receipt(run.id, data)

    async def _given_before(self, run: Run, question: str | None, key: str) -> dict[str, Any]:
        """The caller's own answer, if it was given and could not be recorded then; else a word on who was first."""
        if not run.ended:
            await self._record_missing(run)
            if (given := self._journal.read.answered_with(run.root, key)) is not None:
                return _receipt(given.run, given.answer or {})
        raise self._too_late(run, question)

    def _too_late(self, run: Run, question: str | None) -> Conflict:
        name = f"run {run.number}"
        nothing = f"{name} has {'ended, and has ' if run.ended else ''}{_nothing_open(question)}"
        found = last_answered(self._journal, run, question or "")
        if found is None:
            return Conflict(nothing, "`hocket inbox` lists what is asked")
        said = _retold(found.answer or {})
        if question is None:
            return Conflict(f"{nothing}; the last one was {said}", "`hocket inbox` lists what is asked")
        return Conflict(f"question {found.id} of {name} has been answered already: {said}")

    def end_input(self, place: str) -> None:
        """Nothing more will come. On the spot: the program waits for it, and passing it on takes longer."""
        with suppress(FileNotFoundError, files.NotRegularError):
            # Where an agent removed or replaced its input, its keeper finds that out and closes the pipe.
            files.append_input(place, END, None, eof=True, durable=False)
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
        except (FileNotFoundError, files.NotRegularError) as error:
            if run.started_at is None and isinstance(error, FileNotFoundError):
                raise Conflict(f"run {run.number} has not begun yet", "Try again in a moment") from None
            raise Conflict(
                f"run {run.number} takes no input: it removed or replaced its file {error.filename}"
            ) from None
        if appended == "closed":
            raise _deaf(run)
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
        if run.kind is Kind.LEAF or self._journal.read.answered_with(run.root, key) is not None:
            return run
        below = self._journal.live_below(run.id)
        asking = [one for one in below if any(_fits(asked, question) for asked in one.open_questions)]
        if not asking:
            raise self._too_late(self._journal.live.get(run.id) or run, question)
        if len(asking) > 1:
            numbers = ", ".join(str(one.number) for one in asking)
            raise Conflict(f"several runs of {run.number} have open questions", f"name one of them: {numbers}")
        return asking[0]

    def _listener(self, run: Run, *, to_messages: bool = False) -> tuple[Run, Conversation]:
        now = self._journal.live.get(run.id)
        if now is None:
            raise Conflict(f"run {run.number} has ended; it cannot be told anything", f"hocket resume {run.number}")
        conversation = PROVIDERS[now.provider].conversation if now.kind is Kind.LEAF and now.provider else None
        spec = _decoder.decode(self._journal.read.spec(run.id))
        if conversation is None or spec.stdin != "lines":
            raise Conflict(f"run {run.number} does not read messages")
        if to_messages and not takes_messages(spec):
            raise _deaf(run)  # Its input is open for our tools alone.
        return now, conversation

    def _event(self, run: Run, kind: str, data: Mapping[str, Any]) -> Event:
        return Event(0, time.time(), run.id, run.root, kind, data)


def _deaf(run: Run) -> Conflict:
    return Conflict(
        f"run {run.number} takes no more input",
        f"a run of `hocket spawn --session` does; this one can be resumed once it has ended: "
        f"hocket resume {run.number}",
    )


def _rule(asked: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The rule that an answer makes, if it is to make one."""
    if not reply.always:
        return {}
    if not reply.allow:
        raise UsageError("only what is allowed can be allowed always")
    if not asked.get("rule"):
        raise UsageError(f"question {asked['id']} suggests no rule that could always allow it", "allow it once")
    return {"rule": asked["rule"]}


def _receipt(run_id: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": run_id, "question": answer["id"], "allow": answer["allow"]}


def _identity(run: Run, key: str | None) -> str:
    """A new question's id: the same for the same key, so nothing has to be remembered to ask once."""
    if key is None:
        return "q" + os.urandom(8).hex()
    return "q" + hashlib.sha256(f"{run.id} {key}".encode()).hexdigest()[:16]


def _is_own(asked: Mapping[str, Any]) -> bool:
    return asked.get("via") == OWN


def _chosen(asked: Mapping[str, Any], text: str | None) -> str | None:
    """Of a question with options of its own, the one that a number means, counted from 1, unless one is called so."""
    options = asked.get("options") if _is_own(asked) else None
    said = (text or "").strip()
    if not options or said in options or not re.fullmatch("[1-9][0-9]?", said) or int(said) > len(options):
        return text
    return str(options[int(said) - 1])


def _retold(answer: Mapping[str, Any]) -> str:
    """Who answered, and what."""
    said = "allowed" if answer.get("allow") else "denied"
    text = str(answer.get("text") or "")
    short = text if len(text) <= RETOLD else f"{text[:RETOLD]}…"
    return f"{said} by {answer.get('by') or 'somebody'}" + (f": {short}" if short else "")


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
