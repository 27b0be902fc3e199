"""Starts, adopts and stops the processes of runs, and notices when they end.

What must survive this server is in the run's directory, written by its keeper; everything here can be rebuilt from
there and from the store. Notifications say when to look; a slow scan finds what they missed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hocket.config.settings import Limits
from hocket.errors import HocketError
from hocket.keeper import files, process_tree
from hocket.keeper.escalation import find_agent, find_keeper, is_at_work
from hocket.keeper.machine_restart import ended_by_restart
from hocket.keeper.platform import signal_process
from hocket.model import Event, Reason, Run, Spec, Status
from hocket.providers import agent_variables
from hocket.secret_files import public_part, secret_part
from hocket.sessions import clock
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.home import PROGRAMS
from hocket.sessions.ingest import Ingest, RunPolicy
from hocket.sessions.input_end import InputEnd
from hocket.sessions.journal import RETRY_AFTER, Journal, run_event
from hocket.sessions.keepers import Keepers
from hocket.sessions.leaf import Leaf
from hocket.sessions.messages import Messages, ends_at_once, first_input
from hocket.sessions.observed.jobs import end_jobs, has_jobs
from hocket.sessions.registry_view import RegistryView
from hocket.sessions.restore import record_of
from hocket.sessions.run_identity import directory, filled, run_token
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.stops import Stops, force_stop, stopped_in
from hocket.sessions.stream_mcp import StreamMcp
from hocket.sessions.terminal.runs import TerminalRuns
from hocket.sessions.transcripts import Transcripts
from hocket.store import Committed, Offsets

log = logging.getLogger("hocket")

T = TypeVar("T")

SCAN_EVERY = 5.0
START_ATTEMPTS = 10
_RECORDS = (files.PID, files.EXIT)
"""Files of a run directory whose appearance matters."""
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE)
"""Errors of a fork after which it is tried again without a limit."""


class QueuePlace(NamedTuple):
    """A run that waits for a place among the live leaves."""

    position: int
    """From 1, in the order in which they are started."""
    taken: int
    """Places that are taken."""


class Supervisor:
    """All live leaves of this server: those that run, and those that wait for a place, first in, first out."""

    def __init__(
        self,
        home: Path,
        socket: str,
        secret: bytes,
        secrets: SecretStore,
        journal: Journal,
        messages: Messages,
        stream_mcp: StreamMcp,
        keepers: Keepers,
        policy: RunPolicy,
        stops: Stops,
        transcripts: Transcripts,
        watcher: FileWatcher,
        registry: RegistryView,
        limits: Limits,
    ) -> None:
        self._home = home
        self._socket = socket
        self._secret = secret
        self._secrets = secrets
        self._journal = journal
        self._messages = messages
        self._stream_mcp = stream_mcp
        self._keepers = keepers
        self._policy = policy
        self._stops = stops
        self._registry = registry
        self._places = limits.leaves
        self._terminals = TerminalRuns(journal, messages, transcripts, watcher, keepers.need_server)
        self._ingest = Ingest(journal, messages, stream_mcp, policy, limits.estimate_usd_per_mtok)
        self._input_end = InputEnd(messages, keepers.need_server, self._touch)
        self._watcher = watcher
        self._leaves: dict[str, Leaf] = {}
        self._placed: set[str] = set()
        self._queue: deque[Leaf] = deque()
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()
        self._starter = ThreadPoolExecutor(1, "hocket-starter")
        self._helpers = ThreadPoolExecutor(4, "hocket-helper")
        self._scan: asyncio.TimerHandle | None = None
        self._closing = False

    def open(self) -> None:
        self._keepers.open()
        self._watcher.on_overflow(self._touch_all)
        self._terminals.open()
        self._journal.listen(self._on_commit)
        self._scan = self._loop.call_later(SCAN_EVERY, self._scan_all)

    def need_server(self, what_for: str, needed: bool) -> None:
        """Record whether there is work that keepers alone cannot complete."""
        self._keepers.need_server(what_for, needed)

    async def close(self, back_at: float | None = None) -> None:
        """Release everything; keepers do not notice. With a time, a server is started again by then.

        Or sooner, if an agent is settling, or called our tools while we were closing: it may wait silently, and its
        keeper does not know.
        """
        self._closing = True
        self._keepers.begin_close()
        if self._scan is not None:
            self._scan.cancel()
        for timer in (timer for leaf in self._leaves.values() for timer in leaf.timers):
            timer.cancel()
        await self._tasks.close()
        await self._terminals.close()
        self._starter.shutdown(wait=True, cancel_futures=True)
        self._helpers.shutdown(wait=False, cancel_futures=True)
        times = [back_at, *self._input_end.due(), time.time() if self._stream_mcp.has_unserved_call else None]
        self._keepers.close(min((at for at in times if at is not None), default=None))

    def queue_place(self, run_id: str) -> QueuePlace | None:
        """Where a run waits for a place, if it does."""
        position = next((place for place, leaf in enumerate(self._queue, 1) if leaf.id == run_id), None)
        return None if position is None else QueuePlace(position, len(self._placed))

    def start(self, run: Run, spec: Spec) -> None:
        """Start a run that was just created, as soon as there is a place."""
        leaf = self._leaves[run.id] = self._leaf(run, spec, Offsets())
        self._queue.append(leaf)
        for placed in self._take_places():
            self._tasks.spawn(self._launch(placed))

    def _leaf(self, run: Run, spec: Spec, offsets: Offsets) -> Leaf:
        leaf = Leaf(run, spec, directory(self._home, run), offsets, run_token(self._secret, run.id))
        self._messages.redact_with(run.id, leaf.redactor)
        return leaf

    def adopt(self, run: Run, spec: Spec) -> None:
        """Take over a run from an earlier server."""
        if run.status is Status.STARTING and files.state(str(directory(self._home, run))) == "unstarted":
            self.start(run, spec)
            return
        leaf = self._leaf(run, spec, self._journal.read.offsets(run.id))
        self._leaves[leaf.id] = leaf
        self._placed.add(leaf.id)
        if leaf.connection is not None:
            read = leaf.offsets
            calls = leaf.connection.tools.pending(read.reader)
            self._stream_mcp.take_over(leaf.connection, calls, read.out, leaf.provider.longest_line)
        self._arm(leaf, run)
        if run.stop_reason is not None:
            self._force(leaf)
        if leaf.spec.stdin == "lines":
            self._tasks.spawn(self._catch_up(leaf, run))
        else:
            self._watch(leaf)
            self._suspect(leaf)

    async def _catch_up(self, leaf: Leaf, run: Run) -> None:
        """Record the input that an earlier server had not recorded, before the output that followed it."""
        leaf.is_catching_up = True
        while leaf.is_catching_up:
            try:
                await self._messages.catch_up(run)
                leaf.is_catching_up = False
            except (HocketError, OSError):
                await asyncio.sleep(RETRY_AFTER)
        self._watch(leaf)
        self._suspect(leaf)

    def _on_commit(self, committed: Committed) -> None:
        """Carry out the stops that a commit records, and those that waited for the end of a run below."""
        for leaf in [self._leaves[run_id] for run_id in stopped_in(committed) if run_id in self._leaves]:
            if leaf in self._queue:
                self._queue.remove(leaf)
                self._placed.add(leaf.id)
                self._tasks.spawn(self._launch(leaf))
            else:
                self._force(leaf)
                self._touch(leaf)
        for run in committed.runs.values():
            if run.ended and run.stop_reason is not None:
                self._stop_above(run)

    def _stop_above(self, run: Run) -> None:
        """Look again at the stopped runs above one that has ended."""
        for above in self._journal.above(run)[1:]:
            if above.stop_reason is not None and (leaf := self._leaves.get(above.id)) is not None:
                self._force(leaf)
                self._touch(leaf)

    def _is_stop_due(self, leaf: Leaf) -> bool:
        """Whether a recorded stop is to be carried out now: from the bottom up, so that no child outlives its parent.

        A disk that is full does not delay it, though the ends of the runs below cannot be recorded then.
        """
        return self._journal.is_failing or not self._journal.has_stopping_below(leaf.run)

    def _force(self, leaf: Leaf) -> None:
        """Make sure that a stop is carried out even if the keeper does not respond."""
        run = self._journal.live.get(leaf.id)
        # By the record too, because an agent can remove its `started`.
        has_begun = (run is not None and run.status is not Status.STARTING) or files.was_started(leaf.place)
        if leaf.forcing is None and not self._closing and has_begun and self._is_stop_due(leaf):
            leaf.forcing = self._tasks.spawn(self._force_stop(leaf))

    async def _force_stop(self, leaf: Leaf) -> None:
        await force_stop(leaf, str(self._home), self._helpers)
        self._suspect(leaf)

    # Starting

    def _take_places(self) -> Iterator[Leaf]:
        """The first leaves of the queue for which there is a place, which they have from now on."""
        while self._queue and len(self._placed) < self._places and not self._closing:
            leaf = self._queue.popleft()
            self._placed.add(leaf.id)
            yield leaf

    async def _launch(self, leaf: Leaf) -> None:
        run = self._journal.live.get(leaf.id)
        if run is None:
            return
        if leaf.attempts and files.state(leaf.place) != "unstarted":
            self._suspect(leaf)  # The keeper has started after all.
            return
        if (reason := run.stop_reason) is not None:
            await self._call_off(leaf, Status.STOPPED if reason is Reason.STOPPED else Status.FAILED, reason)
            return
        if leaf.is_launching:
            return
        leaf.attempts += 1
        leaf.unchecked_until = time.monotonic() + SCAN_EVERY
        leaf.is_launching = True
        # Per process: a CLI counts from zero even if it resumes a session.
        leaf.allowance = self._policy.allowance(run)
        await self._registry.written(run)
        now = self._journal.live.get(leaf.id)
        if now is None or now.stop_reason is not None:  # It was stopped meanwhile.
            leaf.is_launching = False
            await self._launch(leaf)
            return
        env, contents = self._environment(leaf), _initial_files(leaf.spec)
        start = partial(self._keepers.start, leaf.place, self._keeper_spec(leaf, env), contents, secret_part(env))
        try:
            leaf.keeper = await self._loop.run_in_executor(self._starter, start)
        except OSError as error:
            leaf.is_launching = False
            await self._not_started(leaf, error)
        else:
            leaf.is_launching, leaf.has_keeper = False, True
            self._watch(leaf)
            self._touch(leaf)

    async def _not_started(self, leaf: Leaf, error: OSError) -> None:
        if error.errno in _TRANSIENT or (leaf.attempts < START_ATTEMPTS and error.errno != errno.ENOSPC):
            self._launch_later(leaf, min(0.1 * 2 ** min(leaf.attempts, 7), 10.0))
            return
        await self._call_off(leaf, Status.FAILED, Reason.START_FAILED, error=f"no keeper could be started: {error}")

    def _launch_later(self, leaf: Leaf, delay: float) -> None:
        """Schedule one more start; a scan and the end of a keeper may both notice the same failure."""
        if leaf.next_launch is None:
            leaf.next_launch = self._loop.call_later(delay, self._launch_again, leaf)

    def _launch_again(self, leaf: Leaf) -> None:
        leaf.next_launch = None
        self._tasks.spawn(self._launch(leaf))

    async def _call_off(self, leaf: Leaf, status: Status, reason: Reason, **extra: Any) -> None:
        """End a run that has not started, unless a late keeper has started it after all."""
        try:
            called_off = files.call_off(leaf.place)
        except OSError as error:
            # The disk does not even take a name, so neither the start nor the end can be recorded now.
            self._launch_later(leaf, RETRY_AFTER)
            log.warning("run %s can be neither started nor called off: %s", leaf.id, error)
            return
        if called_off:
            if await self._ingest.end(leaf, [], status, reason, **extra):
                self._forget(leaf)
        else:
            self._watch(leaf)
            self._suspect(leaf)

    def _environment(self, leaf: Leaf) -> dict[str, str]:
        """The agent's environment: the caller's, our variables, and our own command last on PATH."""
        given, prompt_file = leaf.spec.env.get("PATH"), os.path.join(leaf.place, files.PROMPT)
        return {
            # A record that was restored has the variables of an earlier run.
            **{name: value for name, value in leaf.spec.env.items() if name not in agent_variables.OF_RUN},
            "HOCKET_URL": f"unix:{self._socket}",
            "HOCKET_HOME": str(self._home),
            "HOCKET_RUN": leaf.id,
            "HOCKET_TOKEN": run_token(self._secret, leaf.id),
            **({"HOCKET_TASK": leaf.run.task} if leaf.run.task else {}),
            **({"PATH": f"{given}:{self._home / PROGRAMS}"} if given else {}),
            **agent_variables.of_run(leaf.run, leaf.spec, self._parent_pid(leaf.run), prompt_file),
        }

    def _parent_pid(self, run: Run) -> int | None:
        """The process of the agent that started a run, else the one that its caller named, as far as known."""
        line = self._journal.above(run)
        parent = next((above for above in line[1:] if above.has_process), None)
        if parent is None:
            return next((above.caller_pid for above in line if above.caller_pid is not None), None)
        # A program can start another one before the record of its own start is committed.
        recorded = files.read_pid(str(directory(self._home, parent))) if parent.pid is None else None
        return recorded.pid if recorded is not None else parent.pid

    def _keeper_spec(self, leaf: Leaf, env: Mapping[str, str]) -> dict[str, Any]:
        return {
            "v": 1,
            "run": leaf.id,
            "home": str(self._home),
            "argv": [filled(argument, leaf.id, leaf.place, leaf.spec.prompt) for argument in leaf.argv()],
            "cwd": leaf.spec.cwd,
            "env": public_part(env),
            "secrets": self._secrets.references(leaf.root, env),
            "stdin": leaf.spec.stdin,
            "needs_server": leaf.spec.stdin in ("lines", "terminal") and not ends_at_once(leaf.spec),
            "stop_grace": leaf.spec.stop_grace,
            "record": record_of(leaf.run, leaf.spec),
        }

    # Watching

    def _watch(self, leaf: Leaf) -> None:
        touch, suspect = partial(self._touch, leaf), partial(self._suspect, leaf)
        with suppress(OSError):  # No watches left: the scan alone looks after this run.
            self._watcher.watch(leaf, leaf.place, touch, "placed", names=_RECORDS)
            self._watcher.watch(leaf, os.path.join(leaf.place, files.LOCK), suspect, "closed")
            for name in () if leaf.spec.has_terminal else (files.OUT, files.ERR):
                self._watcher.watch(leaf, os.path.join(leaf.place, name), touch, "written")

    def _scan_all(self) -> None:
        self._scan = self._loop.call_later(SCAN_EVERY, self._scan_all)
        self._touch_all()

    def _touch_all(self) -> None:
        """Examine all leaves. The keeper of one that was just started is not checked yet."""
        now = time.monotonic()
        for run_id in list(self._placed):
            leaf = self._leaves[run_id]
            leaf.is_suspect = leaf.is_suspect or leaf.unchecked_until < now
            self._touch(leaf)

    def _touch(self, leaf: Leaf) -> None:
        leaf.is_dirty = True
        if leaf.task is None and not self._closing and not leaf.is_catching_up:
            leaf.task = self._tasks.spawn(self._follow(leaf))

    # Examining

    async def _follow(self, leaf: Leaf) -> None:
        """Examine a leaf until nothing changes. One task per leaf."""
        try:
            while leaf.is_dirty and leaf.id in self._leaves and not leaf.is_ending:
                leaf.is_dirty = False
                await self._examine(leaf)
        except (HocketError, OSError):
            # Not readable or recordable now (a full disk, no descriptor). The run's files keep everything; try later.
            leaf.is_dirty = False
            self._loop.call_later(RETRY_AFTER, self._touch, leaf)
            # A recorded stop does not wait for that.
            run = self._journal.live.get(leaf.id)
            if run is not None and run.stop_reason is not None:
                self._signal_stop(leaf)
        finally:
            leaf.task = None
        if leaf.is_dirty and leaf.id in self._leaves and not leaf.is_ending:
            self._touch(leaf)

    async def _examine(self, leaf: Leaf) -> None:
        run = self._journal.live.get(leaf.id)
        if run is None:
            self._forget(leaf)
            return
        record = await self._read_exit(leaf)
        # A screen is bounded by its keeper.
        is_flood = sum(leaf.output_sizes()) > leaf.spec.max_output and not leaf.spec.has_terminal
        if is_flood and record is None and run.stop_reason is None:
            await self._stops.request([run], Reason.LIMIT)
            run = self._journal.live[leaf.id]
        if record is not None and leaf.spec.has_terminal and run.status is not Status.STARTING:
            await self._read_transcript(leaf)
            run = self._journal.live[leaf.id]
        batch = self._ingest.read(leaf, run, record, is_flood=is_flood)
        if batch.offsets != leaf.offsets:
            self._input_end.heard(leaf)
        if record and not batch.more:
            batch.events.extend(await self._end_jobs(leaf))
            if await self._ingest.conclude(leaf, run, batch, record):
                self._forget(leaf)
            return
        await self._ingest.commit(leaf, batch.events, batch.offsets)
        if batch.events and batch.events[0].type == "run.started":
            self._arm(leaf, self._journal.live[leaf.id])
        if leaf.spec.has_terminal and self._journal.live[leaf.id].status is not Status.STARTING:
            self._terminals.follow(leaf)
        if batch.more:
            leaf.is_dirty = True
        await self._check(leaf)

    async def _read_transcript(self, leaf: Leaf) -> None:
        """Record what is left in the transcript of a run with a terminal, or that it could not be read."""
        if not await self._terminals.end(leaf):
            text = "the end of its transcript could not be read in time"
            await self._journal.insist([run_event(leaf.run, "notice", {"kind": "transcript", "text": text})])

    async def _end_jobs(self, leaf: Leaf) -> list[Event]:
        """End what the agent has put beyond its process tree by its CLI; return notices about that."""
        run = self._journal.live[leaf.id]
        if not has_jobs(leaf.spec):
            return []
        notices = await self._in_thread(end_jobs, run, leaf.spec)
        return [run_event(run, "notice", {"kind": "job", "text": leaf.redactor.text(text)}) for text in notices]

    async def _read_exit(self, leaf: Leaf) -> files.Exit | None:
        """The exit record, unless it was written by an agent that is still running."""
        record = files.read_exit(leaf.place)
        if record is not None and not leaf.has_keeper and files.may_be_locked(leaf.place):
            leaf.keeper = leaf.keeper or await self._in_thread(find_keeper, leaf.place)
        if record is None or leaf.keeper is None:
            return record
        return None if is_at_work(leaf.keeper, leaf.place, str(self._home)) else record

    async def _check(self, leaf: Leaf) -> None:
        """Check a leaf that has not ended: unanswered questions, a stop, a keeper that may be gone."""
        run = self._journal.live[leaf.id]
        if run.stop_reason is None and run.open_questions and leaf.spec.on_question == "fail":
            await self._stops.request([run], Reason.NO_ANSWER)
            run = self._journal.live[leaf.id]
        if run.stop_reason is not None:
            self._signal_stop(leaf)
            self._force(leaf)
        if leaf.is_suspect:
            leaf.is_suspect = False
            await self._check_keeper(leaf)
        if not leaf.is_ending:
            self._input_end.close_if_over(leaf, leaf.offsets.reader)

    def _signal_stop(self, leaf: Leaf) -> None:
        if not leaf.stop_signalled and self._is_stop_due(leaf):
            leaf.stop_signalled = files.ring(leaf.place, files.BELL_STOP)

    async def _check_keeper(self, leaf: Leaf) -> None:
        state = files.state(leaf.place)
        is_starting = self._journal.live[leaf.id].status is Status.STARTING
        if state == "finished":
            leaf.is_dirty = True
        elif leaf.is_given_up and (state != "unstarted" or not is_starting):
            await self._end_lost(leaf)
        elif state == "lost" or (state == "unstarted" and (not is_starting or self._is_removed(leaf))):
            # The lock is free or the directory was removed; but an agent may have replaced the lock.
            if await self._in_thread(find_keeper, leaf.place) is None:
                await self._end_lost(leaf)
            elif is_starting:
                await self._find_agent(leaf)
        elif state == "unstarted" and not leaf.is_launching:
            number = errno.EAGAIN if files.was_refused(leaf.place) else errno.ECHILD
            await self._not_started(leaf, OSError(number, "the keeper exited before the run started"))
        elif leaf.lock_checks < 3:
            # The kernel reports a closed file a moment before it drops the lock.
            leaf.lock_checks += 1
            self._loop.call_later(0.02 * 5**leaf.lock_checks, self._suspect, leaf)
        else:
            leaf.lock_checks = 0
            leaf.keeper = leaf.keeper or await self._in_thread(find_keeper, leaf.place)
            if is_starting:
                await self._find_agent(leaf)

    async def _find_agent(self, leaf: Leaf) -> None:
        """Find the agent of a run without a `pid` file, so that its start is recorded and its time limit counts."""
        leaf.agent = leaf.agent or await self._in_thread(find_agent, leaf.place)
        leaf.is_dirty = leaf.is_dirty or leaf.agent is not None

    def _is_removed(self, leaf: Leaf) -> bool:
        """Whether its directory was removed while its keeper was running: then a missing `started` means nothing."""
        return leaf.has_keeper and not leaf.is_launching and files.read_spec(leaf.place) is None

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await self._loop.run_in_executor(self._helpers, partial(work, *given))

    def _suspect(self, leaf: Leaf) -> None:
        leaf.is_suspect = True
        self._touch(leaf)

    async def _end_lost(self, leaf: Leaf) -> None:
        """End a run whose keeper is gone without an exit record, and what it left running."""
        spared = process_tree.spare_others(str(self._home), leaf.place)
        swept, survivors = await self._in_thread(process_tree.sweep_cookie, leaf.id, 0.0, spared)
        if leaf.keeper is not None:  # It may be suspended, in a directory that was moved.
            signal_process(*leaf.keeper, signal.SIGCONT)
        if leaf.spec.has_terminal:
            await self._read_transcript(leaf)
        events, offsets, _more = await self._ingest.read_rest(leaf)
        extra: dict[str, Any] = {"swept": swept, "survivors": survivors} if swept or survivors else {}
        events += await self._end_jobs(leaf)
        error = (leaf.forced or _why_lost(leaf.place)) + _lost_team(leaf, self._journal.live[leaf.id])
        if await self._ingest.end(leaf, events, Status.LOST, Reason.LOST, offsets=offsets, error=error, **extra):
            self._forget(leaf)

    def _forget(self, leaf: Leaf) -> None:
        self._ingest.forget()
        self._leaves.pop(leaf.id, None)
        self._placed.discard(leaf.id)
        self._messages.forget(leaf.id)
        self._stream_mcp.forget(leaf.id)
        self._input_end.forget(leaf)
        for timer in leaf.timers:
            timer.cancel()
        if leaf.forcing is not None:
            leaf.forcing.cancel()
        self._watcher.unwatch(leaf)
        for placed in self._take_places():
            self._tasks.spawn(self._launch(placed))

    def _arm(self, leaf: Leaf, run: Run) -> None:
        """Set the time limit, which counts monotonic time from the start across servers."""
        if leaf.spec.timeout is None or run.started_clock is None or leaf.deadline is not None:
            return
        leaf.deadline = self._loop.call_later(clock.left(run, leaf.spec.timeout), self._time_out, leaf)

    def _time_out(self, leaf: Leaf) -> None:
        self._tasks.spawn(self._stops.insist([leaf.run], Reason.TIMEOUT))


def _initial_files(spec: Spec) -> dict[str, bytes]:
    """The files of a run directory that the agent reads."""
    contents = {name: content.encode() for name, content in spec.files.items()} | first_input(spec)
    has_file = spec.stdin == "file" or not agent_variables.is_in_variable(spec.prompt)
    return contents | ({files.PROMPT: (spec.prompt or "").encode()} if has_file else {})


def _lost_team(leaf: Leaf, run: Run) -> str:
    """What is to be said of the team of a lead that is lost; empty for other runs."""
    if not leaf.spec.team:
        return ""
    how = f"; its session goes on with: hocket resume {run.number}" if run.session_id is not None else ""
    return f"; its team is lost{how}"


def _why_lost(place: str) -> str:
    if not os.path.lexists(os.path.join(place, files.LOCK)):
        return "the files of its run were removed"  # A keeper never removes its lock.
    if ended_by_restart(place):
        return "the machine was restarted"
    if os.path.lexists(os.path.join(place, files.EXIT)):
        return f"its exit record cannot be read: {os.path.join(place, files.EXIT)}"
    return "its keeper was killed"
