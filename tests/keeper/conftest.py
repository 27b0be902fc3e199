"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper.keeping import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.close()
