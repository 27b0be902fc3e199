"""Fixtures of the tests with Claude. What they are made of is in ``stage.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.claude.stage import PLAYERS, Stage


@pytest.fixture(params=PLAYERS)
def stage(request: pytest.FixtureRequest, world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Each of the two players in turn; a test that uses it holds for both."""
    stage = Stage(str(request.param), world, monkeypatch)
    yield stage
    stage.close()


@pytest.fixture
def claude(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The real CLI alone."""
    stage = Stage("claude", world, monkeypatch)
    yield stage
    stage.close()


@pytest.fixture
def scripted(world: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The scripted agent alone, for what the real CLI cannot be made to do."""
    return Stage("scripted", world, monkeypatch)
