"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api.serving import SLEEPER, Server

ROOM = Path(__file__).parent
SECONDS = 90
"""Real servers come and go here; the usual limit would be that of a busy machine, not of a hanging test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOM) and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SECONDS))


def _with_programs(server: Server) -> Server:
    server.agent("echo-args", "import sys; print(*sys.argv[1:])")
    server.agent("sleeper", SLEEPER)
    server.agent("counter", "for n in range(100): print('line', n)")
    server.agent("failing", "import sys; print('bad', file=sys.stderr); sys.exit(3)")
    return server


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own."""
    made = _with_programs(Server())
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """One server for a whole file of tests that leave each other's runs alone."""
    made = _with_programs(Server())
    try:
        made.start()
        yield made
    finally:
        made.close()
