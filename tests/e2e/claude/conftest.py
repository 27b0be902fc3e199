"""Fixtures of the tests with Claude: see ``setup.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.claude.setup import IMPLEMENTATIONS, ClaudeSetup


@pytest.fixture(params=IMPLEMENTATIONS)
def cli(request: pytest.FixtureRequest, world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClaudeSetup]:
    """Both implementations in turn."""
    setup = ClaudeSetup(str(request.param), world, monkeypatch)
    yield setup
    setup.close()


@pytest.fixture
def claude(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClaudeSetup]:
    """The real CLI alone."""
    setup = ClaudeSetup("claude", world, monkeypatch)
    yield setup
    setup.close()


@pytest.fixture
def scripted(world: Path, monkeypatch: pytest.MonkeyPatch) -> ClaudeSetup:
    """The scripted agent alone, for cases that the real CLI cannot produce."""
    return ClaudeSetup("scripted", world, monkeypatch)
