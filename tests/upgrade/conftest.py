"""The home that an earlier version left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from upgrade import fixture, programs


@pytest.fixture
def recorded(world: Path, home: Path, project: Path) -> Any:
    """What the earlier version said about the home, which is laid out with its programs, and has no server yet."""
    fixture.lay_out(world)
    programs.install(world / "bin")
    return fixture.expected(world)
