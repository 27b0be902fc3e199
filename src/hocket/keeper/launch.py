"""Starting the agent itself: its descriptors, the fork, and the exec that either happens or says why not.

What belongs here: everything between the keeper's fork and the agent's first instruction. What does not: what
to start (the spec says it completely, environment included) and what happens afterwards.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import termios
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from hocket.keeper import files
from hocket.keeper.output import Output
from hocket.keeper.platform import die_with_parent, set_inherited_mark
from hocket.keeper.process_tree import COOKIE, mark_of
from hocket.keeper.terminal import PseudoTerminal, TerminalOutput

CODE_NOT_STARTED = 126
_FIRST_LINE = 256
"""Bytes of a script in which the kernel looks for its interpreter."""


class LaunchError(Exception):
    """The agent never ran: which call failed on what, and the exit code a shell would give for it."""

    def __init__(self, number: int, subject: str, code: int = CODE_NOT_STARTED) -> None:
        missing = _missing_interpreter(subject) if number == errno.ENOENT and code == files.CODE_NOT_FOUND else None
        super().__init__(missing or f"{errno.errorcode.get(number, number)}: {subject}")
        self.code = code


class ForkRefusedError(LaunchError):
    """There was no room for one more process: nothing has happened, and later there may be."""


class Streams:
    """The agent's standard input and both of its outputs, and the write end of its input if it is talked to.

    With a terminal, all that the agent writes is its output there.
    """

    def __init__(self, directory: str, spec: Mapping[str, Any]) -> None:
        kind = spec.get("stdin", "empty")
        self.terminal = _open_terminal(directory, spec) if kind == "terminal" else None
        out = _open(os.path.join(directory, files.OUT), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self.out = (
            Output(out) if self.terminal is None else TerminalOutput(out, self.terminal, spec.get("screen_limit"))
        )
        self.err = Output(_open(os.path.join(directory, files.ERR), os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        self.pipe: int | None = None
        if self.terminal is not None:
            self.stdin = os.dup(self.terminal.slave)
        elif kind == "lines":
            self.stdin, self.pipe = os.pipe()
        elif kind == "file":
            path = spec.get("stdin_file") or os.path.join(directory, files.PROMPT)
            self.stdin = _open(path, os.O_RDONLY)
        else:
            self.stdin = _open(os.devnull, os.O_RDONLY)

    @property
    def of_agent(self) -> tuple[int, int, int]:
        """What is to be its descriptors 0, 1 and 2."""
        return self.stdin, self.out.sink, self.err.sink if self.terminal is None else self.terminal.slave

    def leave_to_agent(self) -> None:
        """Drop our copy of the agent's standard input, or it would never see the pipe break."""
        os.close(self.stdin)


def launch(spec: Mapping[str, Any], streams: Streams, umask: int) -> int:
    """Start the agent and return its pid once its program runs; LaunchError if it does not."""
    # Read before the fork: a spec that cannot be used must fail in the keeper, never in a half-made agent.
    program = _read_program(spec)
    readable, writable = os.pipe()
    keeper = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        raise ForkRefusedError(error.errno or 0, "fork") from error
    if pid == 0:
        _become_agent(program, streams, int(spec.get("umask", umask)), keeper, writable)
    os.close(writable)
    # The pipe closes with the exec; only a failure writes to it.
    failure = os.read(readable, select.PIPE_BUF)
    os.close(readable)
    if failure:
        os.waitpid(pid, 0)
        number, code, subject = failure.split(b" ", 2)
        raise LaunchError(int(number), subject.decode("utf-8", "replace"), int(code))
    return pid


def _missing_interpreter(program: str) -> str | None:
    """Why a program that exists was not found: it needs another one to run. None if there is no such file."""
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        line = os.read(descriptor, _FIRST_LINE).split(b"\n", 1)[0]
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if not line.startswith(b"#!"):
        return f"the loader of {program} was not found: is it built for this system?"
    name = line[2:].strip(b" \t").replace(b"\t", b" ").split(b" ")[0].decode("utf-8", "replace")
    note = " (its first line ends with a carriage return)" if name.endswith("\r") else ""
    return f"interpreter {name if name.isprintable() else repr(name)} of {program} not found{note}"


class _Program(NamedTuple):
    cwd: bytes
    argv: list[bytes]
    env: dict[bytes, bytes]
    mark: int | None
    """What every process of the run inherits even if it clears its environment."""


def _read_program(spec: Mapping[str, Any]) -> _Program:
    try:
        return _Program(
            cwd=_to_bytes(spec["cwd"]),
            argv=[_to_bytes(argument) for argument in spec["argv"]],
            env={_to_bytes(name): _to_bytes(value) for name, value in spec["env"].items()},
            mark=mark_of(spec["env"][COOKIE]) if COOKIE in spec["env"] else None,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LaunchError(errno.EINVAL, f"{files.SPEC}: {error!r}") from error


def _become_agent(program: _Program, streams: Streams, umask: int, keeper: int, failures: int) -> NoReturn:
    subject = program.cwd
    try:
        os.setsid()
        if streams.terminal is not None:
            streams.terminal.control_this_session()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(CODE_NOT_STARTED)
        # Handlers end with the exec by themselves, but ignored signals stay ignored in the new program.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        set_inherited_mark(program.mark)
        os.umask(umask)
        for target, descriptor in enumerate(streams.of_agent):
            os.dup2(descriptor, target)
        os.chdir(program.cwd)
        subject = program.argv[0]
        os.execve(subject, program.argv, program.env)
    except OSError as error:
        missing = error.errno == errno.ENOENT and subject is program.argv[0]
        code = files.CODE_NOT_FOUND if missing else CODE_NOT_STARTED
        _report(failures, error.errno or 0, code, subject)
    except BaseException as error:
        _report(failures, errno.EINVAL, CODE_NOT_STARTED, repr(error).encode())
    finally:
        os._exit(CODE_NOT_STARTED)


def _report(failures: int, number: int, code: int, subject: bytes) -> None:
    # Within PIPE_BUF, so that the keeper gets it whole with one read.
    os.write(failures, b"%d %d %b" % (number, code, subject[: select.PIPE_BUF // 2]))


def _open_terminal(directory: str, spec: Mapping[str, Any]) -> PseudoTerminal:
    try:
        return PseudoTerminal(directory, spec)
    except (OSError, termios.error) as error:
        raise LaunchError(error.args[0], "terminal") from error


def _to_bytes(text: str) -> bytes:
    """The bytes that were decoded to this text, independent of the locale."""
    return text.encode("utf-8", "surrogateescape")


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(error.errno or 0, path) from error
