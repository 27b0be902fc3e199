"""Which tests go to the same worker: those of a file that makes something expensive once for all of them.

All others are distributed one by one. A plugin, because a mark cannot say so: what pytest-xdist 3.8
appends to the name of a marked test is not seen by pytest 9.
"""

from __future__ import annotations

import pytest

TOGETHER = ("tests/api/", "tests/test_wheel.py", "tests/upgrade/")
"""Servers for a whole file, a wheel that is built and installed, and a home of which one copy is used at a time."""


def unit_of(test: str) -> str:
    """What a test is handed out with: its file, or itself alone."""
    return test.partition("::")[0] if test.startswith(TOGETHER) else test


@pytest.hookimpl(optionalhook=True)  # there may be no workers at all
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

    class Units(LoadScopeScheduling):  # type: ignore[misc]  # the same
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return Units(config, log)
