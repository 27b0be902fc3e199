"""Leaves: the runs that own a process. Starting them, watching their files, reading them to the end, stopping them.

Everything that must survive this server lies in the run's directory, written by its keeper; everything here can be
rebuilt from there and from the store. The kernel says when to look (inotify); a slow scan catches what it missed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hocket import config
from hocket.errors import HocketError
from hocket.keeper import files, process_tree
from hocket.keeper.escalation import find_agent, find_keeper, identify, is_at_work
from hocket.keeper.machine_restart import ended_by_restart
from hocket.keeper.platform import signal_process
from hocket.keeper.zygote import Zygote, ZygoteGone
from hocket.model import Event, Reason, Run, Spec, Status, apply
from hocket.providers import State
from hocket.secret_files import public_part, secret_part
from hocket.sessions import clock, cost_estimates
from hocket.sessions.background import Tasks
from hocket.sessions.forced_stop import force_stop
from hocket.sessions.home import PROGRAMS
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.leaf import Leaf
from hocket.sessions.limits import Limits
from hocket.sessions.messages import Talk, ends_at_once, first_input, takes_messages
from hocket.sessions.output_lines import near_the_end, read_lines
from hocket.sessions.output_watcher import OutputWatcher
from hocket.sessions.run_identity import directory, filled, run_token
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.secrets import masked_prompt
from hocket.sessions.stream_mcp import Serving
from hocket.store import Offsets

log = logging.getLogger("hocket")

T = TypeVar("T")

SCAN_EVERY = 5.0
FORK_PATIENCE = 10.0
START_ATTEMPTS = 10
SETTLE = 3.0
"""How long an agent that has done its work may take to begin something by itself."""
CALM = 5.0
"""How long after the last work another server would still be started, should we die: more work is likely to come, and
telling the zygote each time costs more than a server too many."""
LINGER = 600.0
"""How long the input of one that only has commands in the background stays open for our tools: as long as the Claude
program itself waits for such commands."""
_WITH_ALL_BELOW = frozenset({Reason.STOPPED, Reason.TIMEOUT, Reason.IDLE_TIMEOUT, Reason.BUDGET})
"""Why a run is ended together with what it started."""
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE)
"""Refusals of a fork that time may heal."""


class Processes:
    """All live leaves of this server: those that run, and those that wait for a place, first in first out."""

    def __init__(
        self,
        home: Path,
        socket: str,
        secret: bytes,
        secrets: SecretStore,
        journal: Journal,
        talk: Talk,
        serving: Serving,
        limits: Limits,
    ) -> None:
        self._home = home
        self._socket = socket
        self._secret = secret
        self._secrets = secrets
        self._journal = journal
        self._talk = talk
        self._serving = serving
        self._places = limits.leaves
        self._price = limits.usd_per_mtok
        self._leaves: dict[str, Leaf] = {}
        self._placed: set[str] = set()
        self._queue: deque[Leaf] = deque()
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._starter = ThreadPoolExecutor(1, "hocket-starter")
        self._helpers = ThreadPoolExecutor(4, "hocket-helper")
        self._zygote = Zygote(config.process_environment())
        self._watcher = OutputWatcher(self._on_change, self._touch_all)
        self._scan: asyncio.TimerHandle | None = None
        self._closing = False
        self._needed_for: set[str] = set()
        self._calm: asyncio.TimerHandle | None = None
        self._settling: set[Leaf] = set()
        """Those that come to no end unless a server is there when they have been quiet for long enough."""
        self._an_end = asyncio.Event()
        """Set at the next end of a run."""
        self.allowance: Callable[[Run], float | None] = lambda run: None
        """What a run may spend, asked when it is started."""
        self.is_over_budget: Callable[[Run], bool] = lambda run: False
        """Whether it, or who is above it, has spent all, asked when it has ended."""
        self.unheld: Callable[[Run], str | None] = lambda run: None
        """Why a bound on what it spends cannot hold for it, asked when it has ended."""
        self.used_up: Callable[[Run], list[Event]] = lambda run: []
        """What is to be said of bounds that it has reached, asked when it has ended."""
        self.ending_with: Callable[[Run], list[Event]] = lambda run: []
        """What else ends with it, in the same breath."""

    def open(self) -> None:
        self._zygote.start()
        self._watcher.open()
        self._scan = self._loop.call_later(SCAN_EVERY, self._scan_all)

    def need_server(self, what_for: str, needed: bool) -> None:
        """Whether there is more to do than what keepers see to the end: should we die, another server is started."""
        before = bool(self._needed_for)
        (self._needed_for.add if needed else self._needed_for.discard)(what_for)
        if bool(self._needed_for) is before or self._closing:
            return
        if self._calm is not None:
            self._calm.cancel()
            self._calm = None
        if before:
            self._calm = self._loop.call_later(CALM, self._zygote.need_server, "")
        else:
            self._zygote.need_server(str(self._home))

    async def close(self, back_at: float | None = None) -> None:
        """Let go of everything; the keepers do not notice. With a time a server is started again by then.

        Or sooner, where an agent that has done its work is to be let go sooner, or one has asked for our tools since we
        began to leave: it may wait in silence, of which its keeper makes nothing.
        """
        self._closing = True
        self._watcher.close()
        ours = [timer for timer in (self._scan, self._calm) if timer is not None]
        for timer in (*ours, *(timer for leaf in self._leaves.values() for timer in leaf.timers)):
            timer.cancel()
        await self._tasks.close()
        self._starter.shutdown(wait=True, cancel_futures=True)
        self._helpers.shutdown(wait=False, cancel_futures=True)
        times = [back_at, *map(self._quiet_at, self._settling), time.time() if self._serving.left_a_call else None]
        self._zygote.close(str(self._home), min((at for at in times if at is not None), default=None))

    def begin(self, run: Run, spec: Spec) -> None:
        """Start a run that was just created, as soon as there is a place."""
        self._enqueue(self._leaf(run, spec, Offsets()))

    def _leaf(self, run: Run, spec: Spec, offsets: Offsets) -> Leaf:
        return Leaf(run, spec, directory(self._home, run), offsets, run_token(self._secret, run.id))

    def adopt(self, run: Run, spec: Spec) -> None:
        """Take over a run from a server that is gone."""
        leaf = self._leaf(run, spec, self._journal.read.offsets(run.id))
        if run.status is Status.STARTING and files.state(leaf.place) == "unstarted":
            self._enqueue(leaf)
            return
        self._leaves[leaf.id] = leaf
        self._placed.add(leaf.id)
        if leaf.line is not None:
            calls = leaf.offsets.reader.get("calls") or ()
            self._serving.take_over(leaf.line, calls, leaf.offsets.out, leaf.provider.longest_line)
        self._arm(leaf, run)
        if run.stop_reason is not None:
            self._force(leaf)
        if leaf.spec.stdin == "lines":
            self._spawn(self._catch_up(leaf, run))
        else:
            self._take_over(leaf)

    async def _catch_up(self, leaf: Leaf, run: Run) -> None:
        """What was said to it comes before what it said then."""
        leaf.catching_up = True
        while leaf.catching_up:
            try:
                await self._talk.catch_up(run)
                leaf.catching_up = False
            except (HocketError, OSError):
                await asyncio.sleep(RETRY_AFTER)
        self._take_over(leaf)

    def _take_over(self, leaf: Leaf) -> None:
        self._watch(leaf)
        self._suspect(leaf)

    def stop(self, run_id: str) -> None:
        """Carry out a stop that is already recorded in the run."""
        leaf = self._leaves.get(run_id)
        if leaf is None:
            return
        if leaf in self._queue:
            self._queue.remove(leaf)
            self._placed.add(leaf.id)
            self._spawn(self._launch(leaf))
        else:
            self._force(leaf)
            self._touch(leaf)

    def redacted(self, run_id: str, text: str) -> str:
        """A text with the secrets of a run that goes on masked."""
        leaf = self._leaves.get(run_id)
        return text if leaf is None else leaf.redactor.text(text)

    def _force(self, leaf: Leaf) -> None:
        """See to it that a stop is carried out, also by a keeper that does not hear of it."""
        if leaf.forcing is None and not self._closing and self._has_begun(leaf):
            leaf.forcing = self._spawn(self._force_stop(leaf))

    def _has_begun(self, leaf: Leaf) -> bool:
        """Whether its agent was started: what is recorded counts, because an agent can remove its `started`."""
        run = self._journal.live.get(leaf.id)
        return (run is not None and run.status is not Status.STARTING) or files.was_started(leaf.place)

    async def _force_stop(self, leaf: Leaf) -> None:
        await force_stop(leaf, str(self._home), self._helpers)
        self._suspect(leaf)

    # Starting

    def _enqueue(self, leaf: Leaf) -> None:
        self._leaves[leaf.id] = leaf
        self._queue.append(leaf)
        self._fill_places()

    def _fill_places(self) -> None:
        while self._queue and len(self._placed) < self._places and not self._closing:
            leaf = self._queue.popleft()
            self._placed.add(leaf.id)
            self._spawn(self._launch(leaf))

    async def _launch(self, leaf: Leaf) -> None:
        run = self._journal.live.get(leaf.id)
        if run is None:
            return
        if leaf.attempts and files.state(leaf.place) != "unstarted":
            self._suspect(leaf)  # It only seemed not to begin.
            return
        if (reason := run.stop_reason) is not None:
            await self._call_off(leaf, Status.STOPPED if reason is Reason.STOPPED else Status.FAILED, reason)
            return
        if leaf.launching:
            return
        leaf.attempts += 1
        leaf.quiet_until = time.monotonic() + SCAN_EVERY
        leaf.launching = True
        # The program counts from zero in each process, also where it goes on with a session.
        leaf.allowance = self.allowance(run)
        try:
            await self._loop.run_in_executor(self._starter, self._start_keeper, leaf)
        except OSError as error:
            leaf.launching = False
            await self._not_started(leaf, error)
        else:
            leaf.launching = False

    async def _not_started(self, leaf: Leaf, error: OSError) -> None:
        if error.errno in _PASSING or (leaf.attempts < START_ATTEMPTS and error.errno != errno.ENOSPC):
            self._launch_later(leaf, min(0.1 * 2 ** min(leaf.attempts, 7), 10.0))
            return
        await self._call_off(leaf, Status.FAILED, Reason.START_FAILED, error=f"no keeper could be started: {error}")

    def _launch_later(self, leaf: Leaf, delay: float) -> None:
        """One at a time: a scan and the end of a keeper may both notice the same failure."""
        if leaf.next_launch is None:
            leaf.next_launch = self._loop.call_later(delay, self._launch_again, leaf)

    def _launch_again(self, leaf: Leaf) -> None:
        leaf.next_launch = None
        self._spawn(self._launch(leaf))

    async def _call_off(self, leaf: Leaf, status: Status, reason: Reason, **extra: Any) -> None:
        """End a run that has not begun, unless a keeper that came late has begun it after all."""
        try:
            called_off = files.call_off(leaf.place)
        except OSError as error:
            # A disk that takes no name at all: neither its start nor its end can be settled now.
            self._launch_later(leaf, RETRY_AFTER)
            log.warning("run %s can be neither started nor called off: %s", leaf.id, error)
            return
        if called_off:
            await self._end(leaf, [], status, reason, **extra)
        else:
            self._watch(leaf)
            self._suspect(leaf)

    def _start_keeper(self, leaf: Leaf) -> None:
        """In a thread of its own: a few small files, then one fork by the zygote."""
        contents = {name: content.encode() for name, content in leaf.spec.files.items()} | first_input(leaf.spec)
        if leaf.spec.stdin == "file":
            contents[files.PROMPT] = (leaf.spec.prompt or "").encode()
        env = self._environment(leaf)
        files.create(leaf.place, self._keeper_spec(leaf, env), contents)
        self._watch(leaf)
        secrets = secret_part(env)
        try:
            keeper = self._zygote.fork(leaf.place, FORK_PATIENCE, secrets)
        except ZygoteGone:
            self._zygote.start()
            keeper = self._zygote.fork(leaf.place, FORK_PATIENCE, secrets)
        leaf.is_kept, leaf.keeper = True, identify(keeper)

    def _environment(self, leaf: Leaf) -> dict[str, str]:
        """All that the agent gets: the caller's, what we add, and our own command behind everything on its PATH."""
        given = leaf.spec.env.get("PATH")
        return {
            **leaf.spec.env,
            "HOCKET_URL": f"unix:{self._socket}",
            "HOCKET_HOME": str(self._home),
            "HOCKET_RUN": leaf.id,
            "HOCKET_TOKEN": run_token(self._secret, leaf.id),
            **({"HOCKET_TASK": leaf.run.task} if leaf.run.task else {}),
            **({"PATH": f"{given}:{self._home / PROGRAMS}"} if given else {}),
        }

    def _keeper_spec(self, leaf: Leaf, env: Mapping[str, str]) -> dict[str, Any]:
        return {
            "v": 1,
            "run": leaf.id,
            "home": str(self._home),
            "argv": [filled(argument, leaf.id, leaf.place) for argument in leaf.argv()],
            "cwd": leaf.spec.cwd,
            "env": public_part(env),
            "secrets": self._secrets.references(leaf.root, env),
            "stdin": leaf.spec.stdin,
            "needs_server": leaf.spec.stdin == "lines" and not ends_at_once(leaf.spec),
            "stop_grace": leaf.spec.stop_grace,
            # Enough to write the run's record anew, should the database be lost one day.
            "record": {
                "number": leaf.run.number,
                "root": leaf.root,
                "created_at": leaf.run.created_at,
                "agent": leaf.spec.agent,
                "prompt": masked_prompt(leaf.spec),
                "provider": leaf.spec.provider,
                "loop": leaf.spec.loop,
                "marker": leaf.spec.marker,
                "session": leaf.spec.session,
                "resumed_from": leaf.spec.resumed_from,
                "on_question": leaf.spec.on_question,
                "served": leaf.spec.served,
                "timeout": leaf.spec.timeout,
                "idle_timeout": leaf.spec.idle_timeout,
                "budget_usd": leaf.spec.budget_usd,
                "budget_tokens": leaf.spec.budget_tokens,
                "source": leaf.spec.source,
                "definition": leaf.spec.definition,
                "permission_mode": leaf.spec.permission_mode,
                "allowed_agents": leaf.spec.allowed_agents,
                "known_as": leaf.spec.known_as,
                "unvouched": leaf.spec.unvouched,
                "vouched": msgspec.to_builtins(leaf.spec.vouched),
                "leave": msgspec.to_builtins(leaf.spec.leave),
            },
        }

    # Watching

    def _watch(self, leaf: Leaf) -> None:
        with suppress(OSError):  # No watches left: the scan alone looks after this run.
            self._watcher.watch(leaf.id, leaf.place)

    def _on_change(self, run_id: str, lock_closed: bool) -> None:
        leaf = self._leaves.get(run_id)
        if leaf is not None:
            leaf.suspect = leaf.suspect or lock_closed
            self._touch(leaf)

    def _scan_all(self) -> None:
        self._scan = self._loop.call_later(SCAN_EVERY, self._scan_all)
        self._touch_all()

    def _touch_all(self) -> None:
        """Look at everybody. Only of one that was started just now it is not asked whether its keeper is there."""
        now = time.monotonic()
        for run_id in list(self._placed):
            leaf = self._leaves[run_id]
            leaf.suspect = leaf.suspect or leaf.quiet_until < now
            self._touch(leaf)

    def _touch(self, leaf: Leaf) -> None:
        leaf.dirty = True
        if leaf.task is None and not self._closing and not leaf.catching_up:
            leaf.task = self._spawn(self._tend(leaf))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.spawn(work)

    # Reading

    async def _tend(self, leaf: Leaf) -> None:
        """Look until there is nothing new. One at a time for each leaf."""
        try:
            while leaf.dirty and leaf.id in self._leaves and not leaf.ending:
                leaf.dirty = False
                await self._look_once(leaf)
        except (HocketError, OSError):
            # It could not be recorded or read (a full disk, no descriptor left). The run's files keep everything; look
            # again later.
            leaf.dirty = False
            self._loop.call_later(RETRY_AFTER, self._touch, leaf)
            # A stop that is recorded does not wait for that.
            run = self._journal.live.get(leaf.id)
            if run is not None and run.stop_reason is not None:
                leaf.rung = leaf.rung or files.ring(leaf.place, files.BELL_STOP)
        finally:
            leaf.task = None
        if leaf.dirty and leaf.id in self._leaves and not leaf.ending:
            self._touch(leaf)

    async def _look_once(self, leaf: Leaf) -> None:
        run = self._journal.live.get(leaf.id)
        if run is None:
            self._forget(leaf)
            return
        record = await self._read_exit(leaf)
        sizes = leaf.sizes()
        is_flood = sum(sizes) > leaf.spec.max_output
        if is_flood and record is None and run.stop_reason is None:
            await self.ask_to_stop([run], Reason.LIMIT)
            run = self._journal.live[leaf.id]
        events = self._started(leaf, run, record)
        finals = (record.out, record.err) if record else (None, None)
        if record and (is_flood or run.stop_reason is not None):
            events += self._left_out(leaf, run, record)
        offsets, more = self._read(leaf, events, sizes, finals)
        events = cost_estimates.priced(run, events, self._price)
        self._find_transcript(leaf, run, events, ended=record is not None)
        self._listen(leaf, events, offsets)
        if record and not more:
            await self._conclude(leaf, run, events, offsets, record)
            return
        await self._commit(leaf, events, offsets)
        if events and events[0].type == "run.started":
            self._arm(leaf, self._journal.live[leaf.id])
        if more:
            leaf.dirty = True
        await self._check(leaf)

    async def _read_exit(self, leaf: Leaf) -> files.Exit | None:
        """The exit record, unless an agent that goes on has written it."""
        record = files.read_exit(leaf.place)
        if record is not None and not leaf.is_kept and files.may_be_locked(leaf.place):
            leaf.keeper = leaf.keeper or await self._in_thread(find_keeper, leaf.place)
        if record is None or leaf.keeper is None:
            return record
        return None if is_at_work(leaf.keeper, leaf.place, str(self._home)) else record

    async def _conclude(self, leaf: Leaf, run: Run, events: list[Event], offsets: Offsets, record: files.Exit) -> None:
        """All that it wrote has been read: how it ended, and why."""
        if leaf.forced and record.signal == signal.SIGKILL:
            record = record._replace(stopped=True)  # Its keeper could not know that it was.
        events += [self._event(leaf, kind, data) for kind, data in leaf.provider.last_said(offsets.reader)]
        status, reason = leaf.provider.verdict(offsets.reader, record, run.stop_reason)
        transient = (status, reason) == (Status.FAILED, Reason.ERROR) and leaf.provider.is_transient(offsets.reader)
        goes_on = status is Status.DONE or reason is Reason.RATE_LIMITED or transient
        if goes_on and self.is_over_budget(_after(run, events)):
            status, reason, transient = Status.FAILED, Reason.BUDGET, False
        code = record.code if record.signal is None else 128 + record.signal
        extra: dict[str, Any] = {"error": record.error} if record.error else {}
        extra["duration"] = record.duration
        if record.signal is not None:
            extra["signal"] = _signal_name(record.signal)
        if record.swept:
            extra["swept"] = record.swept
        if record.survivors:
            extra["survivors"] = list(record.survivors)
        if record.lost_bytes:
            extra["lost_bytes"] = record.lost_bytes
            text = f"{record.lost_bytes} bytes of its output are lost: they could not be written to the disk"
            events.append(self._event(leaf, "notice", {"kind": "output", "text": text}))
        if transient:
            extra["transient"] = True
        if status is Status.FAILED and not record.error:
            extra |= self._complaint(leaf, run, events, reason)
        if leaf.forced:
            extra["error"] = "; ".join(filter(None, (extra.get("error"), leaf.forced)))
        await self._end(leaf, events, status, reason, offsets=offsets, exit_code=code, **extra)

    def _started(self, leaf: Leaf, run: Run, record: files.Exit | None = None) -> list[Event]:
        if run.status is not Status.STARTING:
            return []
        known = files.read_pid(leaf.place) or record
        pid = leaf.agent if known is None else known.pid
        return [] if pid is None else [self._event(leaf, "run.started", {"pid": pid, **clock.reading()})]

    def _event(self, leaf: Leaf, kind: str, data: dict[str, Any]) -> Event:
        return Event(0, time.time(), leaf.id, leaf.root, kind, data)

    def _read(
        self, leaf: Leaf, events: list[Event], sizes: tuple[int, int], finals: tuple[int | None, int | None]
    ) -> tuple[Offsets, bool]:
        """New lines as events; the offsets behind them; whether there is more to read at once."""
        old = leaf.offsets
        state, ends, more = old.reader, [old.out, old.err], False
        now = time.time()
        for index, (stream, path) in enumerate((("out", leaf.out), ("err", leaf.err))):
            if sizes[index] <= ends[index]:
                continue  # Most say nothing on the one while they talk on the other.
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

    def _left_out(self, leaf: Leaf, run: Run, record: files.Exit) -> list[Event]:
        """Of a flood that was ended the last lines are told, and that there was more: nobody should wait for all."""
        if leaf.provider.sessions is not None:
            return []
        old = leaf.offsets
        out, err = near_the_end(leaf.out, old.out, record.out), near_the_end(leaf.err, old.err, record.err)
        if (left_out := out + err - old.out - old.err) == 0:
            return []
        leaf.offsets, leaf.scanned = Offsets(out, err, old.reader), {"out": 0, "err": 0}
        text = f"{left_out} bytes of what it wrote are in its files alone: hocket logs {run.number} --raw"
        return [self._event(leaf, "notice", {"kind": "output", "text": text})]

    def _serve(self, leaf: Leaf, line: bytes) -> None:
        """What it wants of our own tools, in its own words: who is handed work gets the prompt as it was written."""
        wanted = leaf.line.conversation.wanted(line) if leaf.line is not None else None
        if leaf.line is not None and wanted is not None:
            self._serving.take(leaf.line, wanted)

    async def _commit(self, leaf: Leaf, events: list[Event], offsets: Offsets) -> None:
        """Lines that say nothing are not worth a commit: whoever takes over reads them again, and to the same end."""
        if events:
            await self._journal.write(events, offsets={leaf.id: offsets})
        leaf.offsets = offsets

    def _find_transcript(self, leaf: Leaf, run: Run, events: list[Event], *, ended: bool) -> None:
        """Where the transcript really lies: looked for whenever something was said, until it is there."""
        sessions = leaf.provider.sessions
        if sessions is None or not (ended or events):
            return
        told = [event for event in events if event.type == "session"]
        if leaf.sought is None or told:
            leaf.sought = _after(run, told).session_id
            cwd = os.path.realpath(leaf.spec.cwd)
            leaf.transcripts = sessions.transcripts(leaf.spec.env, cwd, leaf.sought) if leaf.sought else ()
        found = next((place for place in leaf.transcripts if os.path.exists(place)), None)
        if found is None:
            return
        leaf.transcripts = ()
        if found != _after(run, told).transcript:
            events.append(self._event(leaf, "session", {"session_id": leaf.sought, "transcript": found}))

    def _complaint(self, leaf: Leaf, run: Run, events: list[Event], reason: Reason) -> dict[str, str]:
        """What a CLI said about its own failure: by its events, else with its last words on standard error."""
        if leaf.provider.sessions is None:
            return {}
        said = _after(run, events).error or leaf.last_words()
        if not said.strip() and reason is Reason.ERROR:
            said = "it ended without a result and without a word"
        return {"error": said.strip()} if said.strip() else {}

    # Ending

    async def _check(self, leaf: Leaf) -> None:
        """After a look that found no end: limits, a stop to pass on, a keeper that may be gone."""
        run = self._journal.live[leaf.id]
        if run.stop_reason is None and run.open_questions and leaf.spec.on_question == "fail":
            await self.ask_to_stop([run], Reason.NO_ANSWER)
            run = self._journal.live[leaf.id]
        if run.stop_reason is not None:
            leaf.rung = leaf.rung or files.ring(leaf.place, files.BELL_STOP)
            self._force(leaf)
        if leaf.suspect:
            leaf.suspect = False
            await self._examine(leaf)
        if not leaf.ending:
            self._end_input(leaf, leaf.offsets.reader)

    def _listen(self, leaf: Leaf, events: list[Event], offsets: Offsets) -> None:
        """Whatever it says, it is at work."""
        if offsets != leaf.offsets:
            leaf.settled = False
            if leaf.settling is not None:
                leaf.settling.cancel()
                leaf.settling = None
            self._need_us_for(leaf, False)
        self._talk.heard(leaf.id, events)

    def _end_input(self, leaf: Leaf, state: State) -> bool:
        """Let an agent go that has done all it was asked for and is not meant to be told more; whether that was now."""
        conversation = leaf.provider.conversation
        if conversation is None or leaf.spec.session or leaf.input_ended:
            return False
        sure = leaf.settled or leaf.id not in self._talk.unheard
        # Nobody can ask it anything, so it need not stay for what it left running. It sees to that by itself.
        alone = not takes_messages(leaf.spec) and conversation.is_left(state)
        if (sure and conversation.is_over(state, settled=leaf.settled)) or (leaf.settled and alone):
            self._talk.end_input(leaf.place)
            leaf.input_ended = True
            self._need_us_for(leaf, False)
            return True
        if leaf.settling is None and conversation.is_over(state, settled=True):
            self._settle_after(SETTLE, leaf)
        elif leaf.settling is None and alone:
            self._settle_after(LINGER, leaf)
        return False

    def _settle_after(self, seconds: float, leaf: Leaf) -> None:
        leaf.settling = self._loop.call_later(seconds, self._settle, leaf)
        self._need_us_for(leaf, True)

    def _need_us_for(self, leaf: Leaf, needed: bool) -> None:
        (self._settling.add if needed else self._settling.discard)(leaf)
        self.need_server("settling", bool(self._settling))

    def _quiet_at(self, leaf: Leaf) -> float:
        """When it will have been quiet for long enough, by the wall."""
        return time.time() + (leaf.settling.when() - self._loop.time() if leaf.settling is not None else 0.0)

    def _settle(self, leaf: Leaf) -> None:
        leaf.settling, leaf.settled = None, True
        self._touch(leaf)

    async def _examine(self, leaf: Leaf) -> None:
        state = files.state(leaf.place)
        is_starting = self._journal.live[leaf.id].status is Status.STARTING
        if state == "finished":
            leaf.dirty = True
        elif leaf.is_given_up and (state != "unstarted" or not is_starting):
            await self._lost(leaf)
        elif state == "lost" or (state == "unstarted" and (not is_starting or self._is_removed(leaf))):
            # Its lock is free, or its directory was removed. But an agent may have replaced the lock.
            if await self._in_thread(find_keeper, leaf.place) is None:
                await self._lost(leaf)
            elif is_starting:
                await self._find_agent(leaf)
        elif state == "unstarted" and not leaf.launching:
            number = errno.EAGAIN if files.was_refused(leaf.place) else errno.ECHILD
            await self._not_started(leaf, OSError(number, "the keeper was gone before it began"))
        elif leaf.looks < 3:
            # The kernel tells of a closing file a moment before it drops the lock.
            leaf.looks += 1
            self._loop.call_later(0.02 * 5**leaf.looks, self._suspect, leaf)
        else:
            leaf.looks = 0
            leaf.keeper = leaf.keeper or await self._in_thread(find_keeper, leaf.place)
            if is_starting:
                await self._find_agent(leaf)

    async def _find_agent(self, leaf: Leaf) -> None:
        """Find the agent of a run that hides its `pid`, so that its start is recorded and its time limit counts."""
        leaf.agent = leaf.agent or await self._in_thread(find_agent, leaf.place)
        leaf.dirty = leaf.dirty or leaf.agent is not None

    def _is_removed(self, leaf: Leaf) -> bool:
        """Whether its files were taken away from under its keeper: that its start is not seen means nothing then."""
        return leaf.is_kept and not leaf.launching and files.read_spec(leaf.place) is None

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await self._loop.run_in_executor(self._helpers, partial(work, *given))

    def _suspect(self, leaf: Leaf) -> None:
        leaf.suspect = True
        self._touch(leaf)

    async def _lost(self, leaf: Leaf) -> None:
        """The keeper is gone without a word: nobody knows how it ended. What it left running is ended."""
        spared = process_tree.spare_others(str(self._home), leaf.place)
        swept, survivors = await self._in_thread(process_tree.sweep_cookie, leaf.id, 0.0, spared)
        if leaf.keeper is not None:  # It may be suspended, in a directory that was moved.
            signal_process(*leaf.keeper, signal.SIGCONT)
        sizes = leaf.sizes()
        events: list[Event] = self._started(leaf, self._journal.live[leaf.id])
        more = True
        while more:
            offsets, more = self._read(leaf, events, sizes, sizes)
            if more:
                await self._commit(leaf, events, offsets)
                events = []
        extra: dict[str, Any] = {"swept": swept, "survivors": survivors} if swept or survivors else {}
        self._find_transcript(leaf, self._journal.live[leaf.id], events, ended=True)
        error = leaf.forced or _why_lost(leaf.place)
        await self._end(leaf, events, Status.LOST, Reason.LOST, offsets=offsets, error=error, **extra)

    async def _end(
        self,
        leaf: Leaf,
        events: list[Event],
        status: Status,
        reason: Reason,
        *,
        offsets: Offsets | None = None,
        exit_code: int | None = None,
        **extra: Any,
    ) -> None:
        if leaf.ending:
            return
        # Before anything is decided: it may not be readable now, for want of a descriptor, and is tried again then.
        last_words = leaf.provider.result_of(leaf.last_output)
        leaf.ending = True
        while any(_ends_before(run, self._journal.live[leaf.id]) for run in self._journal.live.values()):
            await self._an_end.wait()
        now = _after(self._journal.live[leaf.id], events)
        data: dict[str, Any] = {"status": status, "reason": reason, "exit_code": exit_code}
        data |= {"result": now.result if last_words is None else last_words}
        unpriced = leaf.provider.unpriced((offsets or leaf.offsets).reader)
        data |= {
            "cost_usd": now.cost_usd,
            "tokens": now.tokens,
            **cost_estimates.of(now, self._price, unpriced),
            **extra,
        }
        ended = self._event(leaf, "run.ended", data)
        why = self.unheld(now) if now.pid is not None else None
        told = [] if why is None else [self._event(leaf, "notice", {"kind": "budget", "text": why})]
        over = apply(_after(now, told), ended)
        told += self.used_up(over)
        more = self.ending_with(over)
        await self._journal.insist([*events, *told, ended, *more], offsets={leaf.id: offsets or leaf.offsets})
        self._forget(leaf)

    def _forget(self, leaf: Leaf) -> None:
        self._an_end.set()
        self._an_end = asyncio.Event()
        self._leaves.pop(leaf.id, None)
        self._placed.discard(leaf.id)
        self._talk.forget(leaf.id)
        self._serving.forget(leaf.id)
        self._need_us_for(leaf, False)
        for timer in leaf.timers:
            timer.cancel()
        if leaf.forcing is not None:
            leaf.forcing.cancel()
        self._watcher.unwatch(leaf.id)
        self._fill_places()

    def _arm(self, leaf: Leaf, run: Run) -> None:
        """Time limits count monotonic time from the start, whichever server is there to see it."""
        if leaf.spec.timeout is None or run.started_clock is None or leaf.deadline is not None:
            return
        leaf.deadline = self._loop.call_later(clock.left(run, leaf.spec.timeout), self._time_out, leaf)

    def _time_out(self, leaf: Leaf) -> None:
        self._spawn(self._end_in_time(leaf))

    async def _end_in_time(self, leaf: Leaf) -> None:
        run = self._journal.live.get(leaf.id)
        if run is None:
            return
        try:
            await self.ask_to_stop([run], Reason.TIMEOUT)
        except HocketError:
            leaf.deadline = self._loop.call_later(RETRY_AFTER, self._time_out, leaf)  # It was not recorded.

    async def ask_to_stop_below(self, top: str, reason: Reason) -> list[Run]:
        """A run and everything below it, also what was being created while the wish was recorded."""
        asked: dict[str, Run] = {}
        while new := [run for run in self._journal.live_below(top) if run.id not in asked]:
            asked |= {run.id: run for run in new}
            await self.ask_to_stop(new, reason)
        return list(asked.values())

    async def ask_to_stop(self, runs: list[Run], reason: Reason) -> None:
        """Record the wish, so that it outlives us, then carry it out."""
        asked = [run for run in runs if run.stop_reason is None]
        now = time.time()
        events = [Event(0, now, run.id, run.root, "input", {"kind": "stop", "reason": reason}) for run in asked]
        if events:
            await self._journal.write(events, durable=True)
        for run in runs:
            self.stop(run.id)

    async def insist_on_stop(self, runs: list[Run], reason: Reason) -> None:
        """The same, whether or not there is room for it now: try until there is, or nobody is left to be told."""
        while left := [now for run in runs if (now := self._journal.live.get(run.id)) is not None]:
            try:
                await self.ask_to_stop(left, reason)
            except HocketError:
                await asyncio.sleep(RETRY_AFTER)
            else:
                return


def _ends_before(run: Run, other: Run) -> bool:
    """Whether it was handed the task by the other one, and is ended with it: then its record is closed first."""
    if run.parent != other.id or run.handoff is None or other.stop_reason not in _WITH_ALL_BELOW:
        return False
    # One that waits for a place, and was not told to end, may wait for the very place that the other one has.
    return other.stop_reason is Reason.STOPPED or run.stop_reason is not None or run.started_at is not None


def _why_lost(place: str) -> str:
    if not os.path.lexists(os.path.join(place, files.LOCK)):
        return "the files of its run were removed"  # No keeper ever takes its lock away.
    if ended_by_restart(place):
        return "the machine was restarted"
    if os.path.lexists(os.path.join(place, files.EXIT)):
        return f"its exit record cannot be read: {os.path.join(place, files.EXIT)}"  # Only an agent puts another there.
    return "its keeper was killed"


def _after(run: Run, events: list[Event]) -> Run:
    """The run as it will be once these events are committed."""
    return reduce(apply, events, run)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
