"""Input of live runs: messages, answers, interruptions, and the end of input.

A line is written to the run's input file first, with a note of its event, and the event is committed then: so it
arrives once, and after a crash the next server commits what is missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from hocket.errors import Conflict, LimitReached, UsageError
from hocket.keeper import files
from hocket.model import Event, Run, Spec, Status
from hocket.providers import PROVIDERS
from hocket.providers.base import Answer, Conversation, TerminalMode
from hocket.redaction import MASK, Redactor
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.observed.refusals import check_owned
from hocket.sessions.questions import last_answered
from hocket.sessions.run_identity import directory
from hocket.sessions.terminal.keyboard import TerminalKeyboard

END = "end"
"""The id of the record that ends a run's input."""
FIRST = "prompt"
"""The id of the record that a run begins with."""

OWN = "ask"
"""Marks a question that an agent asked over the API, where it also receives the answer."""
HOOK = "hook"
"""Marks a question that a hook of an agent's CLI asked over the API. The agent's terminal shows it as well."""
TERMINAL = "terminal"
"""Who answered there."""
NO_ANSWERER = "no one can answer: this run was started with --on-question deny, or without anyone watching it"
OPEN_AT_ONCE = 20
"""The limit of open questions per run that were asked over the API."""
SETTLED = 2.0
"""Seconds after the end of a turn within which a waiting message starts the next one."""
REMEMBERED = 100
QUOTED = 200
"""Characters of an earlier answer that a conflict message quotes."""


_decoder = msgspec.json.Decoder(Spec)


def hook_questions(run: Run) -> list[Mapping[str, Any]]:
    """The open questions of a run that its hooks have asked."""
    return [one for one in run.open_questions if one.get("via") == HOOK]


def takes_messages(spec: Spec) -> bool:
    """Whether a run accepts messages after its prompt."""
    return spec.session or spec.has_terminal or spec.on_question != "deny"


def ends_at_once(spec: Spec) -> bool:
    """Whether a run's prompt is its only input. Then it needs no server in order to end."""
    return not takes_messages(spec) and not spec.served


def first_input(spec: Spec) -> dict[str, bytes]:
    """The content of a run's input file before its start."""
    conversation = PROVIDERS[spec.provider].conversation
    if spec.stdin != "lines" or conversation is None:
        return {}
    prompt = files.input_record(FIRST, conversation.message(spec.prompt or ""))
    return {files.IN: prompt + files.input_record(END, None) if ends_at_once(spec) else prompt}


class SentMessage(NamedTuple):
    """Where to look for the answer to a message."""

    ahead: int
    """How many earlier messages are unanswered."""
    after: int
    """The last ``seq`` before it was sent."""


class _Queue:
    """An estimate of the unanswered messages of a run: one turn may answer several."""

    def __init__(self) -> None:
        self.length = 0
        self.sent: dict[str, SentMessage] = {}
        """The last messages by key, so that a repeated request gets the same answer."""
        self._last_end = 0.0

    def add(self, key: str, message: SentMessage) -> None:
        self.sent[key] = message
        self.length += 1
        if len(self.sent) > REMEMBERED:
            del self.sent[next(iter(self.sent))]

    def turn_ended(self, data: Mapping[str, Any]) -> None:
        self._last_end = time.monotonic()
        # The first turn answers the prompt, and a turn that started by itself answers no message.
        if data.get("turn") != 1 and not data.get("origin"):
            self.length = max(0, self.length - 1)

    def is_settled(self) -> bool:
        """Whether a turn for a waiting message would have started by now."""
        return time.monotonic() - self._last_end > SETTLED


class Messages:
    """Writes to the input of live runs and records it, once per key. One per server."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self._home = home
        self._journal = journal
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One writer per run: a line in the file and its event must not be compared in between."""
        self.unread: set[str] = set()
        """Runs with a message written after their last turn began: that turn may not be the last one."""
        self._at_work: set[str] = set()
        """Runs whose last turn has not ended, also if its beginning is not committed yet."""
        self._queues: dict[str, _Queue] = {}
        self._redactors: dict[str, Redactor] = {}
        self._typing: dict[str, TerminalKeyboard] = {}

    def type_with(self, run: str, keyboard: TerminalKeyboard) -> None:
        """Type what is sent to a live run at its terminal."""
        self._typing[run] = keyboard

    def redact_with(self, run: str, redactor: Redactor) -> None:
        """Mask the secrets of a live run in what is recorded of its messages and questions."""
        self._redactors[run] = redactor

    def _redacted(self, run: str, text: str) -> str:
        redactor = self._redactors.get(run)
        return text if redactor is None else redactor.text(text)

    async def send(self, run: Run, text: str, key: str) -> SentMessage:
        """Send a message, once per key."""
        async with self._input_lock(run):
            now, conversation = self._require_input(run, to_messages=True)
            line = conversation.message(text)
            typing = self._keyboard(now, conversation)
            if typing is not None and not await self._is_written(now, f"message:{key}"):
                await typing.require_no_dialog()
            queue = self._queues.setdefault(run.id, _Queue())
            is_waiting = now.status is Status.WAITING and run.id not in self._at_work
            if is_waiting and run.id not in self.unread and queue.is_settled():
                queue.length = 0  # Several were answered together.
            sent = queue.sent.get(key) or SentMessage(queue.length, self._journal.applied_seq)
            self.unread.add(run.id)
            data = {"kind": "message", "id": key, "text": self._redacted(run.id, text)}
            if await self._write_line(now, f"message:{key}", line, "input", data) == "added":
                queue.add(key, sent)
            elif key not in queue.sent:
                sent = sent._replace(after=self._recorded_at(run, key) - 1)  # An earlier server sent it.
            if typing is not None:
                typing.press_enter(key)
            return sent

    async def _is_written(self, run: Run, id: str) -> bool:
        """Whether a line is in a run's input file, from an earlier attempt."""
        return await asyncio.to_thread(files.has_input, str(directory(self._home, run)), id)

    def is_busy(self, run: Run) -> bool:
        """Whether something is being written to a run's input now."""
        lock = self._locks.get(run.id)
        return lock is not None and lock.locked()

    def _recorded_at(self, run: Run, key: str) -> int:
        inputs = self._journal.read.events_of_type(run.id, "input")
        return next(event.seq for event in inputs if event.data.get("id") == key)

    def note_output(self, run: str, events: Iterable[Event]) -> None:
        """Track turns: one that starts has read the earlier messages, one that ends answers a message."""
        for event in events:
            if event.type == "turn.started":
                self.unread.discard(run)
                self._at_work.add(run)
            elif event.type == "turn.ended":
                self._at_work.discard(run)
                if (queue := self._queues.get(run)) is not None:
                    queue.turn_ended(event.data)

    def forget(self, run: str) -> None:
        """Drop the state of a run that has ended."""
        self.unread.discard(run)
        self._at_work.discard(run)
        self._queues.pop(run, None)
        self._typing.pop(run, None)
        self._redactors.pop(run, None)

    async def interrupt(self, run: Run, key: str) -> None:
        """End the current turn; the run stays open for messages."""
        async with self._input_lock(run):
            now, conversation = self._require_input(run, to_messages=True)
            data = {"kind": "interrupt", "id": key}
            typing = self._keyboard(now, conversation)
            if typing is not None and await typing.is_idle():
                await self._journal.write([run_event(run, "input", data)])  # There is nothing to interrupt.
                return
            await self._write_line(now, f"interrupt:{key}", conversation.interrupt(key), "input", data)
            if typing is not None:
                await typing.wait_until_idle()
                await typing.empty_line(key)

    async def ask(self, run: Run, text: str, options: Sequence[str], key: str | None) -> str:
        """Record a question that an agent asks over the API, once per key; return its id.

        If the run was started with ``--on-question deny``, it is answered with a refusal at once.
        """
        text, options = self._redacted(run.id, text), [self._redacted(run.id, option) for option in options]
        asked: dict[str, Any] = {"kind": "choice" if options else "ask", "text": text, "tool": None, "input": None}
        return await self._record_question(run, {**asked, "options": options, "via": OWN}, key)

    async def ask_by_hook(self, run: Run, call: Mapping[str, Any], key: str | None) -> str:
        """Record the question whether a call of a tool is allowed, in the same way."""
        question_of = PROVIDERS[run.provider].hook_question if run.provider is not None else None
        if question_of is None:
            raise Conflict(f"run {run.number} asks no questions by a hook")
        if (redactor := self._redactors.get(run.id)) is not None:
            call = msgspec.json.decode(redactor.line(msgspec.json.encode(call)))
        return await self._record_question(run, {**question_of(call), "via": HOOK}, key)

    async def _record_question(self, run: Run, asked: Mapping[str, Any], key: str | None) -> str:
        identity = _identity(run, key)
        async with self._input_lock(run):
            now = self._journal.live.get(run.id)
            if now is None:
                raise Conflict(f"run {run.number} has ended; it can ask nothing more")
            if self._journal.read.question(run.id, identity) is not None:
                return identity
            if sum(_is_over_api(one) for one in now.open_questions) >= OPEN_AT_ONCE:
                raise LimitReached(f"run {run.number} has {OPEN_AT_ONCE} open questions; it has to wait for answers")
            events = [run_event(run, "question", {"id": identity, **asked})]
            if self.on_question(run) == "deny":
                refusal = {"id": identity, "allow": False, "text": NO_ANSWERER, "by": "hocket"}
                events.append(run_event(run, "answer", refusal))
            await self._journal.write(events, durable=True)
        return identity

    async def close_hook_questions(self, run: Run, names: Collection[str]) -> None:
        """Close those of these questions of hooks that are open, because they were answered at the terminal."""
        async with self._input_lock(run):
            now = self._journal.live.get(run.id)
            closed = [one["id"] for one in hook_questions(now) if one["id"] in names] if now is not None else []
            # Whether it was allowed there is not known.
            answers = [{"id": name, "allow": None, "text": None, "by": TERMINAL} for name in closed]
            if answers:
                await self._journal.write([run_event(run, "answer", data) for data in answers], durable=True)

    def on_question(self, run: Run) -> str:
        """How questions of this run are handled: ``deny``, ``ask`` or ``fail``."""
        return str(msgspec.json.decode(self._journal.read.spec(run.id)).get("on_question", "deny"))

    async def answer(self, run: Run, question: str | None, reply: Answer, by: str, key: str) -> dict[str, Any]:
        """Answer one open question. The first answer counts; repeating it with the same key is harmless."""
        check_owned(run, "answer its questions")
        run = self._asking(run, question, key)
        async with self._input_lock(run):
            if (given := self._journal.read.answered_with(run.root, key)) is not None:
                return _receipt(given.run, given.answer or {})
            now = self._journal.live.get(run.id) or run
            if not any(_fits(asked, question) for asked in now.open_questions):
                return await self._given_before(now, question, key)
            asked = _meant(now, question)
            text = _chosen(asked, reply.text)
            data = {"id": asked["id"], "allow": reply.allow, "text": text, "by": by, "key": key, **_rule(asked, reply)}
            if now.has_process and not _is_over_api(asked):
                _, conversation = self._require_input(run)
                if isinstance(conversation, TerminalMode):
                    raise Conflict("this question is answered at the terminal", f"hocket attach {run.number}")
                line = conversation.answer(asked, reply)
                data["text"] = None if text is None else self._redacted(run.id, text)
                if await self._write_line(now, f"answer:{asked['id']}", line, "answer", data) == "present":
                    return await self._given_before(now, asked["id"], key)
            else:
                # No input to write to: a chain, or an agent or a hook that reads the answer over the API.
                await self._journal.write([run_event(run, "answer", data)], durable=True)
            return _receipt(run.id, data)

    async def _given_before(self, run: Run, question: str | None, key: str) -> dict[str, Any]:
        """The caller's own earlier answer if there is one, else a conflict that quotes the first answer."""
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
        said = _quoted(found.answer or {})
        if question is None:
            return Conflict(f"{nothing}; the last one was {said}", "`hocket inbox` lists what is asked")
        return Conflict(f"question {found.id} of {name} has already been {said}")

    def end_input(self, place: str, last: str | None = None) -> None:
        """Close the input of a run, after some last words."""
        with suppress(FileNotFoundError, files.NotRegularError):
            # If the agent removed or replaced its input file, the keeper notices and closes the pipe.
            files.append_input(place, END, last, eof=True, durable=False)
        files.ring(place, files.BELL_INPUT)

    async def catch_up(self, run: Run) -> None:
        """Commit the events of input lines that an earlier server wrote and did not commit."""
        async with self._input_lock(run):
            await self._record_missing(run)
            if (typing := self._typing.get(run.id)) is not None:
                typing.go_on()

    async def _record_missing(self, run: Run) -> None:
        notes = await asyncio.to_thread(files.input_notes, str(directory(self._home, run)))
        if any(note["data"].get("kind") == "message" for note in notes):
            self.unread.add(run.id)
        known = self._journal.read.said_to(run.id) if notes else set()
        missing = [note for note in notes if (note["type"], note["data"]["id"]) not in known]
        if missing:
            await self._journal.write([run_event(run, note["type"], note["data"]) for note in missing])

    async def _write_line(self, run: Run, id: str, line: str, kind: str, data: Mapping[str, Any]) -> files.Appended:
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
            raise _input_closed(run)
        files.ring(place, files.BELL_INPUT)
        if appended == "added":
            await self._journal.write([run_event(run, kind, data)], durable=True)
        else:
            await self._record_missing(run)  # A first attempt may have failed between the file and the record.
        return appended

    def _input_lock(self, run: Run) -> asyncio.Lock:
        return self._locks.setdefault(run.id, asyncio.Lock())

    def _asking(self, run: Run, question: str | None, key: str) -> Run:
        """The run with the open question, where the caller named its chain."""
        if run.has_process or self._journal.read.answered_with(run.root, key) is not None:
            return run
        below = self._journal.live_below(run.id)
        asking = [one for one in below if any(_fits(asked, question) for asked in one.open_questions)]
        if not asking:
            raise self._too_late(self._journal.live.get(run.id) or run, question)
        if len(asking) > 1:
            numbers = ", ".join(str(one.number) for one in asking)
            raise Conflict(f"several runs of {run.number} have open questions", f"name one of them: {numbers}")
        return asking[0]

    def _keyboard(self, run: Run, conversation: Conversation | TerminalMode) -> TerminalKeyboard | None:
        """What types at the terminal of a run; None for one without a terminal."""
        if not isinstance(conversation, TerminalMode):
            return None
        if run.id not in self._typing:
            raise Conflict(f"run {run.number} has not begun yet", "Try again in a moment")
        return self._typing[run.id]

    def _require_input(self, run: Run, *, to_messages: bool = False) -> tuple[Run, Conversation | TerminalMode]:
        check_owned(run, "send it anything")
        now = self._journal.live.get(run.id)
        if now is None:
            hint = f"hocket resume {run.number}" if run.teammate is None else None
            raise Conflict(f"run {run.number} has ended; it takes no messages", hint)
        provider = PROVIDERS.get(now.provider or "") if now.has_process else None
        spec = _decoder.decode(self._journal.read.spec(run.id))
        if provider is None or spec.stdin not in ("lines", "terminal"):
            raise Conflict(f"run {run.number} does not read messages")
        conversation = provider.terminal if spec.has_terminal else provider.conversation
        if conversation is None:
            raise Conflict(f"run {run.number} does not read messages")
        if to_messages and not takes_messages(spec):
            raise _input_closed(run)  # Its input is open for our tools only.
        return now, conversation


def _input_closed(run: Run) -> Conflict:
    return Conflict(
        f"run {run.number} takes no more input",
        f"a run of `hocket spawn --session` does; this one can be resumed once it has ended: "
        f"hocket resume {run.number}",
    )


def _rule(asked: Mapping[str, Any], reply: Answer) -> dict[str, Any]:
    """The permission rule that an answer adds, if any."""
    if not reply.always:
        return {}
    if not reply.allow:
        raise UsageError("a denial cannot be permanent: always applies to allow only")
    if not asked.get("rule"):
        raise UsageError(f"question {asked['id']} suggests no rule that could always allow it", "allow it once")
    return {"rule": asked["rule"]}


def _receipt(run_id: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": run_id, "question": answer["id"], "allow": answer["allow"]}


def _identity(run: Run, key: str | None) -> str:
    """The id of a new question; the same for the same key."""
    if key is None:
        return "q" + os.urandom(8).hex()
    return "q" + hashlib.sha256(f"{run.id} {key}".encode()).hexdigest()[:16]


def _is_over_api(asked: Mapping[str, Any]) -> bool:
    """Whether a question was asked over the API, where its answer is read."""
    return asked.get("via") is not None


def _chosen(asked: Mapping[str, Any], text: str | None) -> str | None:
    """The option that a number selects, counted from 1, unless an option has that number as its text."""
    options = asked.get("options") if _is_over_api(asked) else None
    said = (text or "").strip()
    if not options or said in options or not re.fullmatch("[1-9][0-9]?", said) or int(said) > len(options):
        return text
    chosen = str(options[int(said) - 1])
    # A masked option is known by its number to the one that asked.
    return text if MASK in chosen else chosen


def _quoted(answer: Mapping[str, Any]) -> str:
    """An answer and its author in words."""
    if answer.get("allow") is None:
        return "answered at the terminal"
    text = str(answer.get("text") or "")
    said = "denied" if not answer.get("allow") else "answered" if text else "allowed"
    short = text if len(text) <= QUOTED else f"{text[:QUOTED]}…"
    return f"{said} by {answer.get('by') or 'unknown'}" + (f": {short}" if short else "")


def _fits(asked: Mapping[str, Any], question: str | None) -> bool:
    return question is None or str(asked["id"]).startswith(question)


def _nothing_open(question: str | None) -> str:
    return f"no open question {question!r}" if question else "no open question"


def _meant(run: Run, question: str | None) -> Mapping[str, Any]:
    """The open question with this id or prefix; the only one if none is given."""
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
