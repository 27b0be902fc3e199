"""What all benchmarks share: a fresh home with its own server, timers, and the figures they report."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hocket
from hocket.client import Client
from hocket.keeper.server_start import start_server

HOCKET = [sys.executable, "-m", "hocket"]


class Figure(NamedTuple):
    """One measured value and its target."""

    name: str
    value: float
    unit: str
    target: float
    at_most: bool = True
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


class World:
    """A fresh HOCKET_HOME and its environment."""

    def __init__(self, root: Path, settings: str) -> None:
        self.root = root
        self.home = root / "h"
        self.home.mkdir(mode=0o700)
        (self.home / "config.toml").write_text(settings)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", "XDG_"))}
        # Without compiled files every import is several times slower, which users do not see.
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        self.env = {**kept, "HOME": str(root), "HOCKET_HOME": str(self.home), "HOCKET_PORT": "0"}

    def hocket(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HOCKET, *args], env=self.env, cwd=self.root, capture_output=True, text=True, check=False
        )

    def json(self, *args: str) -> Any:
        return json.loads(self.hocket(*args, "--json").stdout)

    def client(self) -> Client:
        return Client(str(self.home), lambda: start_server(str(self.home), self.env))

    def program(self, name: str, body: str) -> str:
        path = self.root / name
        path.write_text(body)
        path.chmod(0o755)
        return str(path)

    def server_pid(self) -> int:
        return int(self.json("server", "status")["pid"])


def lone_python(folder: Path) -> str:
    """Create an environment with Hocket alone, as pipx and uv do, and return its interpreter.

    Start-up files of the test environment (`*.pth`, from setuptools above all) would slow down every start.
    """
    python = str(folder / "bin" / "python")
    if folder.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = [path for path in Path(sysconfig.get_path("purelib")).iterdir() if path.suffix != ".pth"]
    for path in {one.name: one for one in (*installed, Path(hocket.__file__).parent)}.values():
        (packages / path.name).symlink_to(path)
    return python


@contextmanager
def world(settings: str = "") -> Iterator[World]:
    """Yield a fresh world; at the end, stop its runs and its server and remove its files."""
    root = Path(tempfile.mkdtemp(prefix="hocket-bench-"))
    made = World(root, settings)
    try:
        yield made
    finally:
        for run in made.json("ps") if (made.home / "sock").exists() else []:
            if run["parent"] is None:
                made.hocket("stop", run["id"])
        made.hocket("server", "stop")
        shutil.rmtree(root, ignore_errors=True)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def median_seconds(work: Callable[[], object], times: int) -> float:
    return statistics.median(seconds(work) for _ in range(times))


def fastest_seconds(commands: list[list[str]], env: dict[str, str], times: int = 30) -> list[float]:
    """Return the shortest duration of each command; commands alternate, so that load affects all of them."""

    def once(argv: list[str]) -> float:
        nothing = subprocess.DEVNULL
        return seconds(lambda: subprocess.run(argv, env=env, stdout=nothing, stderr=nothing, check=True))

    rounds = [[once(argv) for argv in commands] for _ in range(times)]
    return [min(durations) for durations in zip(*rounds, strict=True)]


def megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def file_milliseconds(folder: Path) -> float:
    """Return the time to create an empty file: about 0.02 ms, up to 0.5 ms on a file system without a journal."""
    count = 100
    begin = time.perf_counter()
    for number in range(count):
        (folder / f"empty-{number}").touch()
    return (time.perf_counter() - begin) / count * 1000
