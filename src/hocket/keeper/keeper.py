"""The keeper: one small process per run that owns the agent, its files and its exit status.

It is forked by the zygote, single-threaded, in a session of its own, and holds no descriptor of another process,
so nothing that happens to the server can reach it. All its state is in the run directory
(`files.py`). What does not belong here: output limits, time limits, interpretation of output; the engine has those.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from hocket.keeper import files, process_tree
from hocket.keeper.input_feed import Feed
from hocket.keeper.launch import CODE_NOT_STARTED, ForkRefusedError, LaunchError, Streams, launch
from hocket.keeper.output import RETRY
from hocket.keeper.platform import become_subreaper, boot_id, start_time, wait_gone
from hocket.keeper.server_watch import ServerWatch, wake_server
from hocket.keeper.terminal import TerminalFeed

STOP_GRACE = 5.0
LEFTOVER_GRACE = 1.0

# A probe of the lock holds it shared for an instant; a keeper that starts just then tries again this long.
_LOCK_PATIENCE = 1.0
_LOOK_PATIENCE = 1.0
_RECORD_PATIENCE = 10.0
# How long output is kept for a disk that refuses it, once the agent has ended; and after a stop, beyond its grace.
_OUTPUT_PATIENCE = 10.0
_STOPPED_PATIENCE = 2.0
_RETRY = 0.01
_KILL_ROUND = 0.05
# How long output alone is waited for before another look at the processes that are to end.
_COPY_ROUND = 0.05
# Seconds: an agent that ends sooner has no `pid` file, only the pid in the exit record.
_ANNOUNCE = 0.003
# A run that lives this long is worth an fsync of `pid`, which tells a restart of the machine from a killed keeper.
_SETTLE = 0.05
_UNCHANGEABLE = frozenset(range(1, signal.NSIG)) - {int(sig) for sig in signal.valid_signals()} | {
    signal.SIGKILL,
    signal.SIGSTOP,
}
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def keep(directory: str, secrets: Mapping[str, str] | None = None) -> None:
    """Run this directory's agent to its end, unless it was ever started before. Meant for a fork's child.

    ``secrets`` are variables of the agent whose values are not in its `spec.json`.
    """
    umask = _leave_everything_behind()
    os.chdir(directory)
    # From here on every path is relative to the run directory, which may be renamed above us.
    here = os.curdir
    if _take_lock(here) is None:
        return
    try:
        record = files.preallocate_exit(here)
    except OSError:
        return  # Without room for the exit record nothing may be started.
    if not files.claim_start(here):
        return
    if not _make_start_durable(here):
        files.give_start_back(here)
        return
    spec = _with_secrets(files.read_spec(here) or {}, secrets or {})
    try:
        ending = _live(here, spec, umask)
    except ForkRefusedError:
        # The agent does not exist, so its one start is still to come, with another keeper.
        files.give_start_back(here, fork_refused=True)
        return
    if _write_exit(here, record, ending):
        _make_durable(here, record)
    wake_server(spec, umask)


def _with_secrets(spec: dict[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """The same with these variables. A spec that cannot be used stays as it is: its launch says what is wrong."""
    env = spec.get("env")
    return {**spec, "env": {**env, **secrets}} if isinstance(env, dict) else spec


def _leave_everything_behind() -> int:
    """Drop what a process inherits: session, umask, signals, descriptors. Returns the umask it had."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    umask = os.umask(0o077)
    _reset_signals()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, max(os.sysconf("SC_OPEN_MAX"), 4096))
    return umask


def _reset_signals() -> None:
    for sig in range(1, signal.NSIG):
        if sig not in _UNCHANGEABLE:
            signal.signal(sig, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A broken pipe or a file over its limit must come as an error: the keeper has a record to write.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _take_lock(here: str) -> int | None:
    """The lock that says we live, held until we end; None when another keeper has this run."""
    try:
        descriptor = files.open_regular(os.path.join(here, files.LOCK), os.O_RDWR | os.O_CREAT)
    except files.NotRegularError:
        return None  # An agent has run here before.
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if files.was_started(here) or time.monotonic() > deadline:
                return None
        time.sleep(_RETRY)


def _make_start_durable(here: str) -> bool:
    """Put `started` on the disk, so that a power cut cannot make the run start twice.

    One flush is enough: file systems write changes of directories in their order, so what put this one in its place is
    on the disk as well.
    """
    try:
        _sync_directory(here)
    except OSError as error:
        return error.errno == errno.EINVAL  # A file system that cannot flush directories.
    return True


def _live(here: str, spec: Mapping[str, Any], umask: int) -> files.Exit:
    """Everything from the agent's start to the end of its last process; comes back with an ending.

    Only a refused fork of the agent is no ending, for nothing has begun.
    """
    began = time.monotonic()
    try:
        become_subreaper()
        streams = Streams(here, spec)
    except (OSError, LaunchError) as error:
        return _never_ran(error, began)
    try:
        with _woken_by_children() as wakeup:
            watch = Watch(here, spec, streams, wakeup, ServerWatch(spec, streams.out.file, umask))
            watch.begin(launch(spec, streams, umask))
            watch.until_agent_ends()
            swept = watch.end_leftovers()
            watch.finish_output()
    except ForkRefusedError:
        raise
    except LaunchError as error:
        return _never_ran(error, began)
    except Exception as error:
        # A failure of the keeper itself must not leave a process of the run unwatched.
        cookie, spared = _cookie(spec), _spared(here, spec)
        left = process_tree.end_all(lambda: process_tree.sweep_targets(os.getpid(), cookie, spared), 0)
        return _never_ran(error, began)._replace(swept=left.swept, survivors=left.survivors)
    return watch.ending(swept, time.monotonic() - began)


class Watch:
    """The keeper's wait: one poll over its children, its bell and the agent's pipes, or terminal."""

    def __init__(
        self, here: str, spec: Mapping[str, Any], streams: Streams, wakeup: int, server_watch: ServerWatch
    ) -> None:
        self._here = here
        self._server_watch = server_watch
        self._streams = streams
        self._outputs = (streams.out, streams.err)
        self._wakeup = wakeup
        self._agent = self._agent_started = 0
        self._cookie = _cookie(spec)
        self._spared = _spared(here, spec)
        self._grace = float(spec.get("stop_grace", STOP_GRACE))
        self._bell = os.open(os.path.join(here, files.BELL), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._feed = _feed_of(here, streams)
        self._status: int | None = None
        self._childless = False
        self._kill_at: float | None = None
        self._announce_at: float | None = time.monotonic() + _ANNOUNCE
        self._settle_at: float | None = time.monotonic() + _SETTLE

    def begin(self, agent: int) -> None:
        """Take charge of the agent, and hand over the input that was there before us."""
        self._agent, self._agent_started = agent, start_time(agent) or 0
        self._streams.leave_to_agent()
        self._pump()
        if self._feed is not None:  # One that is talked to does not end that soon.
            self._announce()

    def until_agent_ends(self) -> None:
        """Wait, feed and obey the bell until the agent is reaped, or has outlived SIGKILL for too long."""
        self._reap()
        while self._status is None:
            if self._kill_at is not None and time.monotonic() > self._kill_at + process_tree.KILL_PATIENCE:
                break
            commands = self._wait()
            self._reap()
            if self._status is None:
                self._obey(commands)
                self._pump()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    process_tree.signal_all(self._targets(), signal.SIGKILL)

    def end_leftovers(self) -> process_tree.Sweep:
        """End what the agent left running. Without any child there is nothing, and no need to look."""
        if self._childless:
            return process_tree.Sweep(0, [])
        if self._status is None:
            return process_tree.Sweep(0, sorted(self._targets()))
        grace = min(self._grace, LEFTOVER_GRACE)
        if self._kill_at is not None:
            grace = max(0.0, min(grace, self._kill_at - time.monotonic()))
        return process_tree.end_all(self._leftovers, grace, self._reap, self._copy_until_gone)

    def finish_output(self) -> None:
        """Copy what is left in the pipes. What the disk does not take in time is given up and counted.

        A stop shortens the wait, so that the run ends before its keeper is taken for dead.
        """
        self._server_watch.release_wake_lock()
        give_up_at = time.monotonic() + _OUTPUT_PATIENCE
        if self._kill_at is not None:
            give_up_at = min(give_up_at, self._kill_at + _STOPPED_PATIENCE)
        for output in self._outputs:
            output.seal()
        while unfinished := [output for output in self._outputs if not output.is_complete]:
            for output in unfinished:
                output.copy()
            if all(output.retry_at is None for output in unfinished):
                continue
            if time.monotonic() >= give_up_at:
                for output in unfinished:
                    output.give_up()
            else:
                poll = select.poll()
                poll.register(self._bell, select.POLLIN)
                commands = self._read_bell() if poll.poll(RETRY * 1000) else b""
                if files.BELL_STOP in commands or files.BELL_KILL in commands:
                    give_up_at = min(give_up_at, time.monotonic() + _STOPPED_PATIENCE)

    def ending(self, swept: process_tree.Sweep, duration: float) -> files.Exit:
        status = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        return files.Exit(
            code=status if status is not None and status >= 0 else None,
            signal=-status if status is not None and status < 0 else None,
            error=None,
            stopped=self._kill_at is not None,
            out=os.fstat(self._streams.out.file).st_size,
            err=os.fstat(self._streams.err.file).st_size,
            survivors=swept.survivors,
            swept=swept.swept,
            ended_at=time.time(),
            duration=duration,
            pid=self._agent,
            lost_bytes=sum(output.lost for output in self._outputs),
        )

    def _leftovers(self) -> process_tree.Found:
        """What is left of the run; that it is nothing is believed only if the kernel's list of our children agrees.

        A process that forks and ends all the time can slip through every look at the process table, but as an
        orphan it is always our child or below one.
        """
        deadline = time.monotonic() + _LOOK_PATIENCE
        me = os.getpid()
        while not (found := process_tree.nearest_targets(me, self._spared) or self._sweep_targets()):
            self._reap()
            if self._childless or not process_tree.has_own_child(me, self._spared) or time.monotonic() > deadline:
                break
        return found

    def _wait(self) -> bytes:
        """Sleep until something happens; what the bell said."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        for descriptor, news in self._feed.awaited.items() if self._feed is not None else ():
            poll.register(descriptor, news)
        if self._server_watch.watched is not None:
            poll.register(self._server_watch.watched, 0)
        ready = self._poll_and_copy(poll, self._patience())
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        if self._server_watch.watched in ready:
            self._server_watch.begin()
        self._do_what_is_due()
        return self._read_bell() if self._bell in ready else b""

    def _poll_and_copy(self, poll: select.poll, timeout: float | None) -> dict[int, int]:
        """What is ready. Of the output one chunk of each stream is copied, so that a flood delays nothing else."""
        for output in self._outputs:
            if output.source is not None:
                poll.register(output.source, select.POLLIN)
        ready = dict(poll.poll(timeout))
        now = time.monotonic()
        for output in self._outputs:
            if output.source in ready or (output.retry_at is not None and now >= output.retry_at):
                output.copy()
        return ready

    def _copy_until_gone(self, found: process_tree.Found, timeout: float) -> None:
        """Wait until these processes have ended, or the timeout, and copy meanwhile what they write."""
        deadline = time.monotonic() + timeout
        while not wait_gone(found, 0) and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._wakeup, select.POLLIN)
            if self._wakeup in self._poll_and_copy(poll, min(left, _COPY_ROUND) * 1000):
                os.read(self._wakeup, 4096)

    def _read_bell(self) -> bytes:
        """What the bell says now: nothing, if the agent has read it before us."""
        try:
            return os.read(self._bell, 4096)
        except BlockingIOError:
            return b""

    def _patience(self) -> float | None:
        """Milliseconds until something is due by itself, or None to wait for ever."""
        now = time.monotonic()
        retries = (output.retry_at for output in self._outputs)
        due = [at for at in (self._announce_at, self._settle_at, self._server_watch.due, *retries) if at is not None]
        if self._kill_at is not None:
            due.append(self._kill_at if now < self._kill_at else now + _KILL_ROUND)
        return max(0.0, min(due) - now) * 1000 + 1 if due else None

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._announce_at is not None and now >= self._announce_at:
            self._announce()
        if self._settle_at is not None and now >= self._settle_at:
            self._settle_at = None
            with contextlib.suppress(OSError):
                _sync(files.open_regular(os.path.join(self._here, files.PID)))
                _sync_directory(self._here)
        if self._server_watch.due is not None and now >= self._server_watch.due:
            self._server_watch.look()

    def _announce(self) -> None:
        """Say who runs. It is for display: a disk that cannot take it must not end the run."""
        self._announce_at = None
        identity = files.AgentPid(self._agent, self._agent_started, boot_id(), os.getpid())
        with contextlib.suppress(OSError):
            files.replace(self._here, files.PID, files.encode_pid(identity))

    def _reap(self) -> None:
        """Collect every ended child: the agent's status, and orphans that came to us as their subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._agent:
                self._status = status

    def _obey(self, commands: bytes) -> None:
        if files.BELL_KILL in commands:
            self._stop(0.0)
        elif files.BELL_STOP in commands:
            self._stop(self._grace)
        if files.BELL_INPUT in commands and self._feed is not None:
            self._feed.look_at_source()
        if files.BELL_RESIZE in commands and self._streams.terminal is not None:
            self._streams.terminal.resize()

    def _stop(self, grace: float) -> None:
        """Begin to stop, or shorten the grace of a stop that has begun."""
        # An agent that ended by itself before the request reached us was not stopped.
        self._reap()
        if self._status is not None:
            return
        if self._kill_at is None and grace > 0:
            process_tree.ask_to_end(self._targets())
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    def _targets(self) -> process_tree.Found:
        return {self._agent: self._agent_started} | self._sweep_targets()

    def _sweep_targets(self) -> process_tree.Found:
        return process_tree.sweep_targets(os.getpid(), self._cookie, self._spared)

    def _pump(self) -> None:
        if self._feed is not None:
            self._feed.pump()


def _feed_of(here: str, streams: Streams) -> Feed | None:
    if streams.terminal is not None:
        return TerminalFeed(here, streams.terminal)
    return None if streams.pipe is None else Feed(here, streams.pipe)


@contextlib.contextmanager
def _woken_by_children() -> Iterator[int]:
    """A descriptor that becomes readable whenever a child has ended."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    # The wakeup byte is written only for signals that have a handler, so there is one that does nothing.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    yield readable


def _never_ran(error: Exception, began: float) -> files.Exit:
    return files.Exit(
        code=error.code if isinstance(error, LaunchError) else CODE_NOT_STARTED,
        signal=None,
        error=_named(error),
        stopped=False,
        out=files.size(files.OUT),
        err=files.size(files.ERR),
        survivors=[],
        swept=0,
        ended_at=time.time(),
        duration=time.monotonic() - began,
    )


def _named(error: Exception) -> str:
    if isinstance(error, LaunchError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return f"{errno.errorcode.get(error.errno, error.errno)}: {error.filename or 'keeper'}"
    return f"keeper: {error!r}"


def _write_exit(here: str, record: int, ending: files.Exit) -> bool:
    """Put the record in its place: in its preallocated room, else in a new file, and again for a while."""
    content = files.encode_exit(ending)
    deadline = time.monotonic() + _RECORD_PATIENCE
    while True:
        for write in (partial(_fill_preallocated, here, record), partial(files.replace, here, files.EXIT)):
            try:
                write(content)
                return True
            except OSError as error:
                trouble = error.errno
        if trouble not in _DISK_TROUBLE or time.monotonic() > deadline:
            return False
        time.sleep(_RETRY)


def _fill_preallocated(here: str, record: int, content: bytes) -> None:
    if os.pwrite(record, content, 0) != len(content):
        raise OSError(errno.EIO, "short write")
    room = os.path.join(here, files.EXIT_PRE)
    if not os.path.samestat(os.fstat(record), os.lstat(room)):
        raise OSError(errno.ESTALE, "replaced", room)
    files.put_in_place(room, os.path.join(here, files.EXIT))


def _make_durable(here: str, record: int) -> None:
    """Before the lock is released, the record must be on the disk, and so must the output that it counts."""
    for name in (files.OUT, files.ERR):
        if files.size(name):
            with contextlib.suppress(OSError):
                _sync(files.open_regular(os.path.join(here, name)))
    with contextlib.suppress(OSError):
        os.fsync(record)
    with contextlib.suppress(OSError):
        _sync_directory(here)


def _sync_directory(here: str) -> None:
    _sync(os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _sync(descriptor: int) -> None:
    """Flush a file to the disk and close it."""
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cookie(spec: Mapping[str, Any]) -> str:
    return str((spec.get("env") or {}).get(process_tree.COOKIE, ""))


def _spared(here: str, spec: Mapping[str, Any]) -> process_tree.Spared:
    return process_tree.spare_others(str(spec.get("home") or ""), here)


if __name__ == "__main__":
    keep(sys.argv[1])
