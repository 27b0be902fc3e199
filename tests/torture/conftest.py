"""Fixtures of the tortures."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture.ground import Ground


@pytest.fixture
def ground(home: Path, project: Path) -> Ground:
    """The test's HOCKET_HOME, with a server that comes up when it is needed."""
    return Ground(home, project)
