"""A leaf run in memory: its identity, how far its output has been read, and the state of its process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from hocket.keeper import files
from hocket.keeper.escalation import Identity
from hocket.model import Run, Spec
from hocket.providers import PROVIDERS
from hocket.redaction import Redactor, secrets_of
from hocket.sessions.messages import ends_at_once
from hocket.sessions.output_lines import read_tail
from hocket.sessions.stream_mcp import McpConnection
from hocket.store import Offsets


class Leaf:
    """One run that owns a process. Its process state is changed by the supervisor, how far it is read by the ingest."""

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
        self.out, self.err = (os.path.join(self.place, name) for name in (files.OUT, files.ERR))
        self.offsets = offsets
        self.scanned = {"out": 0, "err": 0}
        """How far each file was searched for the end of an unfinished long line."""
        self.session: str | None = None
        """The session whose transcript is searched for, or was found."""
        self.transcripts: Sequence[str] = ()
        """Where its transcript may be; empty once it is found."""
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

    def output_sizes(self) -> tuple[int, int]:
        """The sizes of its output files, which may be far ahead of the offsets."""
        return files.size(self.out), files.size(self.err)

    def redacted_tail(self, path: str, limit: int) -> bytes:
        """The end of one of its output files."""
        return self.redactor.tail(read_tail(path, limit + self.redactor.longest), limit)

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        every = (self.deadline, self.next_launch, self.settling)
        return [timer for timer in every if timer is not None]

    def argv(self) -> tuple[str, ...]:
        pricing = self.provider.pricing
        if self.allowance is None or pricing is None or self.spec.has_terminal:
            return self.spec.argv
        return pricing.bound(self.spec.argv, self.allowance)
