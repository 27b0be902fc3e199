"""The real CLI takes a second to start: every run records it once for each story, the slow one in all variants."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

RECORDER = Path(__file__).parent / "test_recorder.py"
REAL = "model"
"""The player that is the real CLI, with a scripted model behind it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    stories: defaultdict[str, list[tuple[int, pytest.Item]]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.path == RECORDER and (parts := _real_parts(item)):
            stories[item.originalname].append((parts, item))
    for variants in stories.values():
        once = max(variants, key=lambda variant: variant[0])
        for variant in variants:
            if variant is not once:
                variant[1].add_marker(pytest.mark.slow)


def _real_parts(item: pytest.Function) -> int:
    spec = getattr(item, "callspec", None)
    return list(spec.params.values()).count(REAL) if spec is not None else 0
