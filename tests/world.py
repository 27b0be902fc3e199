"""A machine of its own for each test: a home, a PATH, the real command line, and a count of what is left.

Everything lies below one short folder, because the name of a unix socket may have about a hundred bytes.
Nothing here knows how Hocket works inside: the command line and /proc are all it uses.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from patience import PATIENCE

REAL_USER = pwd.getpwuid(os.getuid())
"""As the system knows who runs the tests. Once the tests have begun, pwd returns another home."""

SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""No user's own folders: a real agent CLI on the developer's PATH must not be reachable from a test."""

FOREIGN = (
    "HOCKET_", "CLAUDE", "ANTHROPIC_", "XDG_", "AGENT_", "OPENAI_", "CODEX_", "CURSOR_", "GEMINI_", "GOOGLE_",
)  # fmt: skip
DROPPED = frozenset({"PYTHONDONTWRITEBYTECODE", "NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS"})
KEPT = frozenset({"HOCKET_CORPORA"})

ENDING_SECONDS = PATIENCE


def clean_environment(before: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment of a fresh user whose every folder is below ``root``."""
    kept = {
        name: value
        for name, value in before.items()
        if name in KEPT or not (name.startswith(FOREIGN) or name in DROPPED)
    }
    places = {
        "HOME": root / "user",
        "HOCKET_HOME": root / "h",
        "XDG_STATE_HOME": root / "user/state",
        "XDG_CONFIG_HOME": root / "user/config",
        "XDG_CACHE_HOME": root / "user/cache",
        "XDG_DATA_HOME": root / "user/data",
        "XDG_RUNTIME_DIR": root / "user/run",
    }
    # Any free port: tests run side by side, and a developer's own server may hold the usual one.
    return {
        **kept,
        **{name: str(place) for name, place in places.items()},
        "PATH": f"{root / 'bin'}:{SYSTEM_PATH}",
        "HOCKET_PORT": "0",
    }


def make_root() -> Path:
    """A fresh, short, private folder with what a user's machine has."""
    root = Path(tempfile.mkdtemp(prefix="hk-", dir="/tmp")).resolve()
    (root / "bin").mkdir()
    (root / "user").mkdir()
    (root / "user/run").mkdir(mode=0o700)
    return root


def processes_of(home: Path) -> dict[int, str]:
    """Every process that was started with this HOCKET_HOME, with its command line."""
    wanted = b"HOCKET_HOME=" + os.fsencode(home)
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone meanwhile, or another user's
    found.pop(os.getpid(), None)
    return found


def wait_until_none(home: Path, seconds: float, besides: Collection[int] = ()) -> dict[int, str]:
    """What is still there after at most that long. The end of a process is not notified, so this polls."""
    deadline = time.monotonic() + seconds
    while (left := _others(home, besides)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _others(home: Path, besides: Collection[int]) -> dict[int, str]:
    return {pid: words for pid, words in processes_of(home).items() if pid not in besides}


WITHOUT_SERVER = frozenset({"agents", "chains", "completion", "doctor", "setup", "trust"})
"""Commands that neither need nor start a server."""


def _run_in_process(args: list[str], stdin: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    from hocket.cli import main

    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, stdin_before = dict(os.environ), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    os.environ.update(env)
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(args)
    finally:
        sys.stdin = stdin_before
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
    stdout, stderr = (one.buffer.getvalue().decode(errors="replace") for one in (output, errors))
    return subprocess.CompletedProcess(args, code, stdout, stderr)


class Hocket:
    """The real command line, as a process. Call it to run a command to its end, ``start`` to go on.

    With ``in_process`` commands that need no server run in this process, which takes a tenth of the time.
    """

    def __init__(self, cwd: Path, env: Mapping[str, str] | None = None, in_process: bool = False) -> None:
        self.cwd = cwd
        self._in_process = in_process
        self._env = env
        """All there is of it; by default what the test has at that moment."""
        self._started: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        *args: str | Path,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = PATIENCE,
        command: Sequence[str] = (sys.executable, "-m", "hocket"),
    ) -> subprocess.CompletedProcess[str]:
        if self._in_process and args and (args[0] in WITHOUT_SERVER or "--dry-run" in args):
            return _run_in_process([str(one) for one in args], stdin, env or {}, cwd or self.cwd)
        return subprocess.run(
            [*command, *map(str, args)],
            input=stdin,
            env={**(os.environ if self._env is None else self._env), **(env or {})},
            cwd=cwd or self.cwd,
            timeout=timeout,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )

    def created(self, *args: str | Path, **more: Any) -> str:
        """The id of the run or the task that a command creates."""
        place = args.index("--") if "--" in args else len(args)
        done = self(*args[:place], "--json", *args[place:], **more)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        told = json.loads(done.stdout)
        return str(told.get("run") or told["id"])

    def start(
        self, *args: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """A command that is still running; it is ended with the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "hocket", *map(str, args)],
            env={**(os.environ if self._env is None else self._env), **(env or {})},
            cwd=cwd or self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        self._started.append(process)
        return process

    def number(self, nth: int = 1) -> str:
        """The number of the nth run below this test's folder, also after runs of other tests on this server."""
        return str(self.runs()[nth - 1]["number"])

    def task_number(self, nth: int = 1) -> str:
        """The same of its tasks."""
        return str(self.tasks()[nth - 1]["number"])

    def runs(self) -> list[dict[str, Any]]:
        """All runs below this test's folder, with those that they started elsewhere, the oldest first."""
        return self._listed("ps", "-a")

    def tasks(self) -> list[dict[str, Any]]:
        """The same of its tasks, as long as they are among the newest."""
        return self._listed("task", "list")

    def _listed(self, *words: str) -> list[dict[str, Any]]:
        everything = json.loads(self(*words, "--json").stdout)
        here = {one["id"] for one in everything if Path(one["cwd"] or "/").is_relative_to(self.cwd.parent)}
        ours = (one for one in everything if one["id"] in here or one.get("root") in here)
        return sorted(ours, key=lambda one: int(one["number"]))

    def close(self) -> None:
        """Ends what ``start`` started and the test did not wait for."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def first_line() -> str:
    """What makes a file a Python program. Isolated and without site, it starts in no time.

    The kernel takes no interpreter whose path has a space or is very long; then the file is a shell script
    first, whose one command is a string to Python.
    """
    if " " not in sys.executable and len(sys.executable) < 100:
        return f"#!{sys.executable} -IS\n"
    return f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} -IS \"$0\" \"$@\"\n' '''\n"


class Bin:
    """Writes small programs into a folder that is first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, body: str) -> Path:
        """``body`` is Python, unless it brings its own first line."""
        path = self.folder / name
        path.write_text(body if body.startswith("#!") else first_line() + body, encoding="utf-8")
        path.chmod(0o755)
        return path


def _stop_runs(hocket: Hocket) -> None:
    listed = hocket("ps", "--json")
    if listed.returncode == 0:
        roots = [run["id"] for run in json.loads(listed.stdout) if run["parent"] is None]
        for root in roots:
            hocket("stop", root)


def _stop_politely(home: Path, hocket: Hocket, seconds: float) -> None:
    _stop_runs(hocket)
    # A keeper that ends just now may bring a server back: it goes the same way.
    for _ in range(3):
        hocket("server", "stop")
        if not wait_until_none(home, min(seconds, 2)):
            return


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_world(home: Path, hocket: Hocket, seconds: float = ENDING_SECONDS) -> dict[int, str]:
    """Ends every run and the server of that home, as a user would. Returns what only a kill could end."""
    hocket.close()
    if not processes_of(home):
        return {}
    # Whether it worked is not asked here: the count of processes is the verdict.
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, KeyError):
        _stop_politely(home, hocket, seconds)
    survivors = wait_until_none(home, seconds)
    _kill(list(survivors))
    wait_until_none(home, 2)
    return survivors


class SharedServer:
    """One server for the tests of a worker that leave it, its settings and each other's runs alone.

    A server's start costs a hundred times what a command costs. It has a root of its own, so that nothing of the test
    that happened to need it first is in it.
    """

    def __init__(self) -> None:
        self.root = make_root()
        self._env = clean_environment(os.environ, self.root)
        self.home = Path(self._env["HOCKET_HOME"])
        self.home.mkdir(mode=0o700)
        self._own: frozenset[int] = frozenset()

    def bring_up(self) -> None:
        """Starts it unless it is there; what a test has broken is not broken for the next one."""
        if not self._own or not self._own <= processes_of(self.home).keys():
            hocket = Hocket(self.root, self._env)
            self._own = frozenset()
            self._do(hocket, "task", "new", "of no test")
            self._own = frozenset(processes_of(self.home))
            # There is always a task and a run before a test's own: one that counts them fails in any order.
            self._do(hocket, "run", "true")
            wait_until_none(self.home, ENDING_SECONDS, self._own)

    def _do(self, hocket: Hocket, *words: str) -> None:
        done = hocket(*words)
        assert done.returncode == 0, done.stderr

    def clear(self, hocket: Hocket, seconds: float = ENDING_SECONDS) -> dict[int, str]:
        """Ends every run that the test left. Returns what only a kill could end, and the server if it is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, KeyError):
            _stop_runs(hocket)
        # What was configured for one test must not be for the next; it is read with each start.
        (self.home / "config.toml").unlink(missing_ok=True)
        survivors = wait_until_none(self.home, seconds, self._own)
        if survivors:
            _kill(list(survivors))
            wait_until_none(self.home, 2, self._own)
            _stop_runs(hocket)
        missing = self._own - processes_of(self.home).keys()
        return survivors | dict.fromkeys(missing, "the shared server, which this test ended")

    def close(self) -> dict[int, str]:
        try:
            return end_world(self.home, Hocket(self.root, self._env))
        finally:
            remove_root(self.root)


def remove_root(root: Path) -> None:
    """Read-only folders that a test left are no obstacle."""
    shutil.rmtree(root, ignore_errors=True)
