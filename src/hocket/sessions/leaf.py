"""One process as the engine sees it, whatever is being done with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from hocket.keeper import files
from hocket.keeper.escalation import Identity
from hocket.model import RESULT_LIMIT, Run, Spec
from hocket.providers import PROVIDERS
from hocket.redaction import Redactor
from hocket.sessions.messages import ends_at_once
from hocket.sessions.output_lines import read_tail
from hocket.sessions.secrets import secrets_of
from hocket.sessions.stream_mcp import Line
from hocket.store import Offsets

COMPLAINT = 2000
"""Bytes of standard error that explain a failure."""


class Leaf:
    """Where its files are, how far they have been read, and what is known of it besides."""

    def __init__(self, run: Run, spec: Spec, place: Path, offsets: Offsets, token: str) -> None:
        self.run = run
        """As it was when we first saw it."""
        self.id = run.id
        self.root = run.root
        self.spec = spec
        self.place = str(place)
        self.out, self.err = (os.path.join(self.place, name) for name in (files.OUT, files.ERR))
        self.offsets = offsets
        self.provider = PROVIDERS[spec.provider]
        self.redactor = Redactor(secrets_of({**spec.env, "HOCKET_TOKEN": token}))
        self.reader = self.provider.reader(spec, self.redactor)
        conversation = self.provider.conversation
        self.line = Line(run.id, self.place, conversation) if spec.served and conversation else None
        """Where it speaks with our MCP server; None if it does not."""
        self.scanned = {"out": 0, "err": 0}
        self.dirty = False
        self.suspect = False
        """Its keeper's lock was seen closing: it may be dead."""
        self.rung = False
        self.forcing: asyncio.Task[None] | None = None
        """What ends it, once it was asked to stop, should its keeper not do so."""
        self.forced: str | None = None
        """What the server had to do for that."""
        self.is_given_up = False
        """It counts as lost, whoever may hold its lock."""
        self.agent: int | None = None
        """The pid of one that has no readable `pid` file."""
        self.input_ended = ends_at_once(spec)
        self.sought: str | None = None
        """The session whose transcript is looked for, or was found."""
        self.transcripts: Sequence[str] = ()
        """Where that may lie; nowhere else, once it was found."""
        self.catching_up = False
        """Nothing is read from it yet: what was said to it must be recorded first."""
        self.settled = False
        """It has done its work and said nothing since, for long enough."""
        self.settling: asyncio.TimerHandle | None = None
        self.launching = False
        """A start is on its way through the starter thread: that nothing is there yet means nothing."""
        self.is_kept = False
        """A keeper was forked for it: from then on its directory was complete."""
        self.keeper: Identity | None = None
        """Its keeper, as far as it is known without the files of the run, which the agent can change."""
        self.ending = False
        self.attempts = 0
        self.quiet_until = 0.0
        """Until then a keeper may still be on its way."""
        self.looks = 0
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.next_launch: asyncio.TimerHandle | None = None
        self.allowance: float | None = None
        """Dollars that were left for it when it was started, where somebody counts them."""

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        every = (self.deadline, self.next_launch, self.settling)
        return [timer for timer in every if timer is not None]

    def argv(self) -> tuple[str, ...]:
        argv = self.spec.argv
        return argv if self.allowance is None else self.provider.within(argv, self.allowance)

    def sizes(self) -> tuple[int, int]:
        """By the files themselves: a flood outruns its reader, and a line without an end is not read at all."""
        return files.size(self.out), files.size(self.err)

    def last_output(self) -> bytes:
        return self._masked_tail(self.out, RESULT_LIMIT)

    def last_words(self) -> str:
        return self._masked_tail(self.err, COMPLAINT).decode(errors="replace")

    def _masked_tail(self, path: str, limit: int) -> bytes:
        return self.redactor.tail(read_tail(path, limit + self.redactor.longest), limit)
