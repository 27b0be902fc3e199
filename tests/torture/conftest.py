"""Fixtures of the tortures."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture.installation import Installation


@pytest.fixture
def installation(home: Path, project: Path) -> Installation:
    """The HOCKET_HOME of the test, with a server that starts when it is needed."""
    return Installation(home, project)
