"""From the output of a run to its record: read lines, turn them into events, commit them, decide how the run ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import reduce
from typing import Any, NamedTuple, Protocol

from hocket.chain.parse import marker_said
from hocket.keeper import files
from hocket.model import RESULT_LIMIT, Event, Reason, Run, Status, apply
from hocket.providers.base import Program
from hocket.sessions import clock, cost_estimates
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.leaf import Leaf
from hocket.sessions.messages import Messages
from hocket.sessions.output_lines import near_the_end, read_lines
from hocket.sessions.run_identity import session_of
from hocket.sessions.stream_mcp import StreamMcp
from hocket.sessions.transcripts import locate
from hocket.store import Offsets
from hocket.views.text import terminal_output

_WITH_ALL_BELOW = frozenset({Reason.STOPPED, Reason.TIMEOUT, Reason.IDLE_TIMEOUT, Reason.BUDGET})
"""Why a run is ended together with what it started."""
ERROR_TAIL = 2000
"""Bytes of standard error that explain a failure."""


class RunPolicy(Protocol):
    """Decisions that depend on more than one run."""

    def allowance(self, run: Run) -> float | None:
        """Dollars that a run may spend, asked when it is started; None without a budget."""

    def is_over_budget(self, run: Run) -> bool:
        """True if the run or an ancestor is over budget, asked when the run has ended."""

    def uncounted(self, run: Run) -> str | None:
        """Why a budget cannot hold for a run that has ended; None if it does."""

    def budget_notices(self, run: Run) -> list[Event]:
        """Notices about budgets that a run has used up with its end."""


class ReadBatch(NamedTuple):
    """Events that were read and not yet committed."""

    events: list[Event]
    offsets: Offsets
    """The position behind them."""
    more: bool
    """Whether there is more to read at once."""


class Ingest:
    """Reads and commits the output of live runs. One per server.

    Nothing is committed twice: events and offsets are written together, at a line end.
    """

    def __init__(
        self, journal: Journal, messages: Messages, stream_mcp: StreamMcp, policy: RunPolicy, usd_per_mtok: float
    ) -> None:
        self._journal = journal
        self._messages = messages
        self._stream_mcp = stream_mcp
        self._policy = policy
        self._usd_per_mtok = usd_per_mtok
        self._next_end = asyncio.Event()
        """Set and replaced at each end of a run."""

    # Reading

    def read(self, leaf: Leaf, run: Run, record: files.Exit | None, *, is_flood: bool) -> ReadBatch:
        """Read what is new; with an exit record up to the final sizes."""
        events = self.started(leaf, run, record)
        if run.status is Status.STARTING and not events and record is None:
            # The agent may write before its keeper has recorded its pid; its start comes first in its history.
            return ReadBatch([], leaf.offsets, False)
        if record and (is_flood or run.stop_reason is not None):
            events += self._skip_flood(leaf, run, record)
        finals = (record.out, record.err) if record else (None, None)
        if leaf.spec.has_terminal:  # Its output is a screen.
            return ReadBatch(events, Offsets(*leaf.output_sizes(), leaf.offsets.reader), False)
        offsets, more = self._read_streams(leaf, events, leaf.output_sizes(), finals)
        events = cost_estimates.priced(run, events, self._usd_per_mtok)
        self._find_transcript(leaf, run, events, ended=record is not None)
        self._messages.note_output(leaf.id, events)
        return ReadBatch(events, offsets, more)

    async def read_rest(self, leaf: Leaf) -> ReadBatch:
        """Read all that a run without an exit record has written; all but the last batch is committed."""
        sizes = leaf.output_sizes()
        events = self.started(leaf, self._journal.live[leaf.id])
        if leaf.spec.has_terminal:
            return ReadBatch(events, Offsets(*sizes, leaf.offsets.reader), False)
        while True:
            offsets, more = self._read_streams(leaf, events, sizes, sizes)
            if not more:
                break
            await self.commit(leaf, events, offsets)
            events = []
        run = self._journal.live[leaf.id]
        self._find_transcript(leaf, run, events, ended=True)
        await self._search_transcript(leaf, run, events)
        return ReadBatch(events, offsets, False)

    async def commit(self, leaf: Leaf, events: list[Event], offsets: Offsets) -> None:
        """Commit events with their offsets. Lines without events are not committed: a later server reads them again."""
        if events:
            await self._journal.write(events, offsets={leaf.id: offsets})
        leaf.offsets = offsets

    def started(self, leaf: Leaf, run: Run, record: files.Exit | None = None) -> list[Event]:
        """The event of a start that is not recorded yet, if the agent's pid is known."""
        if run.status is not Status.STARTING:
            return []
        known = files.read_pid(leaf.place) or record
        pid = leaf.agent if known is None else known.pid
        if pid is None:
            return []
        # In a terminal nothing else reports it.
        known_session = [run_event(leaf.run, "session", {"session_id": session_of(leaf.id)})]
        begun = run_event(leaf.run, "run.started", {"pid": pid, **clock.reading()})
        return [begun, *(known_session if leaf.spec.has_terminal else [])]

    def _read_streams(
        self, leaf: Leaf, events: list[Event], sizes: tuple[int, int], finals: tuple[int | None, int | None]
    ) -> tuple[Offsets, bool]:
        state, ends, more = leaf.offsets.reader, [leaf.offsets.out, leaf.offsets.err], False
        now = time.time()
        for index, (stream, path) in enumerate((("out", leaf.out), ("err", leaf.err))):
            if sizes[index] <= ends[index]:
                continue
            piece = read_lines(path, ends[index], leaf.scanned[stream], finals[index], leaf.provider.longest_line)
            leaf.scanned[stream] = piece.scanned
            ends[index] = piece.offset
            more = more or piece.more
            for line in piece.lines:
                if stream == "out" and finals[index] is None:
                    self._serve(leaf, line.head)
                state, said = leaf.reader(state, stream, line.head, line.whole_size)
                events.extend(Event(0, now, leaf.id, leaf.root, kind, data) for kind, data in said)
        return Offsets(ends[0], ends[1], state), more

    def _serve(self, leaf: Leaf, line: bytes) -> None:
        """Pass a request to our MCP tools on, before redaction: a prompt is handed over as it was written."""
        if leaf.connection is not None and (request := leaf.connection.tools.request(line)) is not None:
            self._stream_mcp.take(leaf.connection, request)

    def _skip_flood(self, leaf: Leaf, run: Run, record: files.Exit) -> list[Event]:
        """Skip the middle of a large output that was ended, with a notice."""
        if leaf.provider.text_output is None:
            return []
        old = leaf.offsets
        out = near_the_end(leaf.out, old.out, record.out)
        err = near_the_end(leaf.err, old.err, record.err)
        if (skipped := out + err - old.out - old.err) == 0:
            return []
        leaf.offsets, leaf.scanned = Offsets(out, err, old.reader), {"out": 0, "err": 0}
        text = f"{skipped} bytes of output are only in the run's files: hocket logs {run.number} --raw"
        return [run_event(leaf.run, "notice", {"kind": "output", "text": text})]

    def _find_transcript(self, leaf: Leaf, run: Run, events: list[Event], *, ended: bool) -> None:
        """Add an event with the path of the transcript as soon as the file exists."""
        transcripts = leaf.provider.sessions.transcripts if leaf.provider.sessions is not None else None
        if transcripts is None or not (ended or events):
            return
        named = [event for event in events if event.type == "session"]
        if leaf.session is None or named:
            leaf.session = session = _after(run, named).session_id
            leaf.transcripts = transcripts(leaf.spec.env, os.path.realpath(leaf.spec.cwd), session) if session else ()
        self._add_transcript(leaf, run, events, locate(leaf.transcripts))

    async def _search_transcript(self, leaf: Leaf, run: Run, events: list[Event]) -> None:
        """Search all folders of the CLI for a transcript that was not found at its usual places."""
        kept, session = leaf.provider.sessions, leaf.session
        if kept is None or kept.transcript_files is None or session is None or not leaf.transcripts:
            return
        patterns = kept.transcript_files.patterns

        def search() -> str | None:
            return locate(leaf.transcripts, patterns(leaf.spec.env, os.path.realpath(leaf.spec.cwd), session))

        self._add_transcript(leaf, run, events, await asyncio.to_thread(search))

    def _add_transcript(self, leaf: Leaf, run: Run, events: list[Event], found: str | None) -> None:
        if found is None:
            return
        leaf.transcripts = ()
        if found != _after(run, [event for event in events if event.type == "session"]).transcript:
            events.append(run_event(run, "session", {"session_id": leaf.session, "transcript": found}))

    # Ending

    async def conclude(self, leaf: Leaf, run: Run, batch: ReadBatch, record: files.Exit) -> bool:
        """Commit the end of a run whose output was read completely; True unless that is under way already."""
        events, offsets, _more = batch
        await self._search_transcript(leaf, run, events)
        if leaf.forced and record.signal == signal.SIGKILL:
            record = record._replace(stopped=True)  # Its keeper could not know that it was.
        provider, state = leaf.provider, offsets.reader
        if provider.text_output is not None:
            events += [run_event(leaf.run, kind, data) for kind, data in provider.text_output.last_events(state)]
        if leaf.spec.has_terminal and provider.terminal is not None:
            events += self._final_marker(leaf, run)
            status, reason = provider.terminal.verdict(run, record, run.stop_reason)
        else:
            status, reason = provider.verdict(state, record, run.stop_reason)
        failed = (status, reason) == (Status.FAILED, Reason.ERROR)
        transient = failed and provider.is_transient is not None and provider.is_transient(state)
        may_continue = status is Status.DONE or reason is Reason.RATE_LIMITED or transient
        if may_continue and self._policy.is_over_budget(_after(run, events)):
            status, reason, transient = Status.FAILED, Reason.BUDGET, False
        code = record.code if record.signal is None else 128 + record.signal
        extra: dict[str, Any] = {"error": _start_error(record, provider.program)} if record.error else {}
        extra["duration"] = record.duration
        if record.signal is not None:
            extra["signal"] = _signal_name(record.signal)
        if record.swept:
            extra["swept"] = record.swept
        if record.survivors:
            extra["survivors"] = list(record.survivors)
        if record.lost_bytes:
            extra["lost_bytes"] = record.lost_bytes
            text = f"{record.lost_bytes} bytes of output were lost: they could not be written to the disk"
            events.append(run_event(leaf.run, "notice", {"kind": "output", "text": text}))
        if transient:
            extra["transient"] = True
        if status is Status.FAILED and not record.error:
            extra |= self._cli_error(leaf, run, events, reason)
        if leaf.forced:
            extra["error"] = "; ".join(filter(None, (extra.get("error"), leaf.forced)))
        return await self.end(leaf, events, status, reason, offsets=offsets, exit_code=code, **extra)

    def _final_marker(self, leaf: Leaf, run: Run) -> list[Event]:
        """The marker in the last message of a run with a terminal."""
        found = marker_said(run.result or "", leaf.spec.marker) if leaf.spec.loop else None
        return [run_event(run, "marker", {"line": found})] if found else []

    def _cli_error(self, leaf: Leaf, run: Run, events: list[Event], reason: Reason) -> dict[str, str]:
        """What a CLI reported about its own failure: in its events, else at the end of standard error."""
        if leaf.provider.text_output is not None:
            return {}
        said = b""
        if not leaf.spec.has_terminal:
            said = leaf.redacted_tail(leaf.err, ERROR_TAIL)
        elif reason is Reason.EXIT:  # It may have said why; otherwise its screen shows what it was doing.
            said = leaf.redacted_tail(leaf.out, ERROR_TAIL)
        reported = _after(run, events).error or terminal_output(said.decode(errors="replace"))
        if not reported.strip() and reason is Reason.ERROR:
            reported = "it ended without a result and without a message"
        return {"error": reported.strip()} if reported.strip() else {}

    async def end(
        self,
        leaf: Leaf,
        events: list[Event],
        status: Status,
        reason: Reason,
        *,
        offsets: Offsets | None = None,
        exit_code: int | None = None,
        **extra: Any,
    ) -> bool:
        """Commit the end of a run; True unless that is under way already."""
        if leaf.is_ending:
            return False
        # First, because it may fail for want of a descriptor and is tried again then.
        text_output, pricing = leaf.provider.text_output, leaf.provider.pricing
        final_result = (
            text_output.result(leaf.redacted_tail(leaf.out, RESULT_LIMIT)) if text_output is not None else None
        )
        leaf.is_ending = True
        while any(_ends_before(run, self._journal.live[leaf.id]) for run in self._journal.live.values()):
            await self._next_end.wait()
        offsets = offsets or leaf.offsets
        unpriced = pricing.unpriced_tokens(offsets.reader) if pricing is not None else 0
        run = _after(self._journal.live[leaf.id], events)
        ended = run_event(
            leaf.run,
            "run.ended",
            {
                "status": status,
                "reason": reason,
                "exit_code": exit_code,
                "result": run.result if final_result is None else final_result,
                "cost_usd": run.cost_usd,
                "tokens": run.tokens,
                **cost_estimates.of(run, self._usd_per_mtok, unpriced),
                **extra,
            },
        )
        why = self._policy.uncounted(run) if run.pid is not None else None
        notices = [] if why is None else [run_event(leaf.run, "notice", {"kind": "budget", "text": why})]
        final = apply(_after(run, notices), ended)
        notices += self._policy.budget_notices(final)
        await self._journal.insist([*events, *notices, ended], offsets={leaf.id: offsets})
        return True

    def forget(self) -> None:
        """Let ends proceed that waited for one that has been committed."""
        self._next_end.set()
        self._next_end = asyncio.Event()


def _start_error(record: files.Exit, program: Program | None) -> str | None:
    """Why a process was not started; for a CLI that was not found with what to install."""
    if program is None or record.code != files.CODE_NOT_FOUND:
        return record.error
    return f"{record.error}; {program.label} is missing: {program.install}, or set {program.variable} to its program"


def _ends_before(run: Run, other: Run) -> bool:
    """Whether a run was handed the task by the other one and ends with it: then its end is committed first."""
    if run.parent != other.id or run.handoff is None or other.stop_reason not in _WITH_ALL_BELOW:
        return False
    # A run that is queued and not stopped may wait for the very place that the other one has.
    return other.stop_reason is Reason.STOPPED or run.stop_reason is not None or run.started_at is not None


def _after(run: Run, events: list[Event]) -> Run:
    """The run as it will be once these events are committed."""
    return reduce(apply, events, run)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
