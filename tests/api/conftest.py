"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api.serving import SLEEPER, Server


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
