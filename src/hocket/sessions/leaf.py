"""A leaf run in memory: its identity, how far its output has been read, and the state of its process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from hocket.keeper import files
from hocket.keeper.escalation import Identity
from hocket.model import RESULT_LIMIT, Run, Spec
from hocket.providers import PROVIDERS
from hocket.redaction import Redactor, secrets_of
from hocket.sessions.messages import ends_at_once
from hocket.sessions.output_lines import read_tail
from hocket.sessions.stream_mcp import McpConnection
from hocket.store import Offsets

ERROR_TAIL = 2000
"""Bytes of standard error that explain a failure."""


class LeafOutput:
    """The output files of a run and how far they have been read. Changed by the ingest alone."""

    def __init__(self, place: str, offsets: Offsets, redactor: Redactor) -> None:
        self.out, self.err = (os.path.join(place, name) for name in (files.OUT, files.ERR))
        self.offsets = offsets
        self.scanned = {"out": 0, "err": 0}
        """How far each file was searched for the end of an unfinished long line."""
        self.session: str | None = None
        """The session whose transcript is searched for, or was found."""
        self._transcripts: Sequence[str] = ()
        self._redactor = redactor

    def sizes(self) -> tuple[int, int]:
        """The sizes of the files, which may be far ahead of the offsets."""
        return files.size(self.out), files.size(self.err)

    def search(self, session: str | None, transcripts: Sequence[str]) -> None:
        """Search for the transcript of a session at these paths from now on."""
        self.session, self._transcripts = session, transcripts

    def find_transcript(self) -> str | None:
        """The path of the transcript, once: when it is found."""
        found = next((path for path in self._transcripts if os.path.exists(path)), None)
        if found is not None:
            self._transcripts = ()
        return found

    def advance(self, offsets: Offsets) -> None:
        self.offsets = offsets

    def skip_to(self, offsets: Offsets) -> None:
        self.offsets, self.scanned = offsets, {"out": 0, "err": 0}

    def last_output(self) -> bytes:
        return self._redacted_tail(self.out, RESULT_LIMIT)

    def last_error(self) -> str:
        return self._redacted_tail(self.err, ERROR_TAIL).decode(errors="replace")

    def _redacted_tail(self, path: str, limit: int) -> bytes:
        return self._redactor.tail(read_tail(path, limit + self._redactor.longest), limit)


class Leaf:
    """One run that owns a process. Its process state is changed by the supervisor."""

    def __init__(self, run: Run, spec: Spec, place: Path, offsets: Offsets, token: str) -> None:
        self.run = run
        """The run as it was when this server first saw it."""
        self.id = run.id
        self.root = run.root
        self.spec = spec
        self.place = str(place)
        self.provider = PROVIDERS[spec.provider]
        self.redactor = Redactor(secrets_of({**spec.env, "HOCKET_TOKEN": token}))
        self.reader = self.provider.reader(spec, self.redactor)
        self.output = LeafOutput(self.place, offsets, self.redactor)
        own_tools = self.provider.own_tools
        self.connection = McpConnection(run.id, self.place, own_tools) if spec.served and own_tools else None
        """The in-stream connection to our MCP server, if the run has one."""
        self.is_ending = False
        """Its end is being committed."""

        # Starting
        self.attempts = 0
        self.allowance: float | None = None
        """Dollars that were left for it when it was started; None without a budget."""
        self.is_launching = False
        """The starter thread is at work on it: missing files mean nothing yet."""
        self.next_launch: asyncio.TimerHandle | None = None
        self.unchecked_until = 0.0
        """Until then its keeper may still be starting."""

        # Running
        self.has_keeper = False
        """A keeper was forked by this server, so its directory was complete."""
        self.keeper: Identity | None = None
        """Its keeper, known independently of the run's files, which the agent can change."""
        self.agent: int | None = None
        """The pid of an agent without a readable `pid` file."""
        self.is_dirty = False
        """Something changed since it was last examined."""
        self.is_suspect = False
        """Its keeper's lock was closed: the keeper may be dead."""
        self.lock_checks = 0
        self.is_catching_up = False
        """Its output must not be read before its recorded input is complete."""
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None

        # Ending
        self.is_input_closed = ends_at_once(spec)
        self.is_settled = False
        """It finished its work and has been silent for long enough."""
        self.settling: asyncio.TimerHandle | None = None
        self.stop_signalled = False
        self.forcing: asyncio.Task[None] | None = None
        """Ends the run if its keeper does not carry out a stop."""
        self.forced: str | None = None
        """What the server had to do for that."""
        self.is_given_up = False
        """It counts as lost even if its lock is held."""

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        every = (self.deadline, self.next_launch, self.settling)
        return [timer for timer in every if timer is not None]

    def argv(self) -> tuple[str, ...]:
        pricing = self.provider.pricing
        if self.allowance is None or pricing is None:
            return self.spec.argv
        return pricing.bound(self.spec.argv, self.allowance)
