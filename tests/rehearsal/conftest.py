"""The real CLI takes a second to start: each test uses it for one variant, and for all with ``--slow``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

FILES = [Path(__file__).parent / name for name in ("test_recorder.py", "test_both_implementations.py")]
REAL = "model"
"""The implementation that is the real CLI, with a scripted model behind it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests: defaultdict[str, list[tuple[int, pytest.Item]]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.path in FILES and (parts := _real_parts(item)):
            tests[item.originalname].append((parts, item))
    for variants in tests.values():
        once = max(variants, key=lambda variant: variant[0])
        for variant in variants:
            if variant is not once:
                variant[1].add_marker(pytest.mark.slow)


def _real_parts(item: pytest.Function) -> int:
    spec = getattr(item, "callspec", None)
    return list(spec.params.values()).count(REAL) if spec is not None else 0
