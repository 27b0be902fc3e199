"""Fixtures of the tests with the Codex CLI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.codex.setup import CodexSetup


@pytest.fixture
def codex(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CodexSetup]:
    """The real CLI with a scripted model."""
    setup = CodexSetup(world, monkeypatch)
    yield setup
    setup.close()
