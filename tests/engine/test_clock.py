"""How much of a time limit is left: by one clock for all servers, and by none of another start of the machine."""

from __future__ import annotations

import time

import pytest

from hocket.engine import clock
from hocket.model import Kind, Run

RUN = {"id": "r1", "number": 1, "kind": Kind.CHAIN, "agent": "a", "provider": None, "parent": None, "root": "r1"}
HERE = clock.reading()["boot"]


def run_since(ago: float | None, boot: str | None) -> Run:
    then = None if ago is None else time.monotonic() - ago
    return Run(**RUN, depth=0, cwd="/", created_at=0.0, started_clock=then, started_boot=boot)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ago", "boot", "left"),
    [
        (None, None, 10),
        (4, HERE, 6),
        (40, HERE, 0),
        (4, None, 6),
        (-4, None, 10),
        (4, "another", 10),
        (40, "another", 10),
    ],
)
def test_what_is_left_of_ten_seconds(ago: float | None, boot: str | None, left: float) -> None:
    assert clock.left(run_since(ago, boot), 10.0) == pytest.approx(left, abs=0.5)
