"""The home that an earlier version left."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from upgrade import fixture, programs

LOCK = Path(tempfile.gettempdir(), "hocket-upgrade-tests.lock")


@pytest.fixture
def only_copy() -> Iterator[None]:
    """Wait until no other copy of the home is in use: copies have the same run ids, by which processes are found."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def world(only_copy: None, world: Path) -> Path:
    """The usual world, while no other test has a copy."""
    return world


@pytest.fixture
def recorded(world: Path, home: Path, project: Path) -> Any:
    """The output of the earlier version for the home, which is restored with its programs, without a server."""
    fixture.lay_out(world)
    programs.install(world / "bin")
    return fixture.expected(world)
