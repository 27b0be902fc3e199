"""What a wait reports about the run that it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.mcp.calls import CallContext, _Wait


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("text", {"text": "looking"}, "looking"),
        ("text", {"text": "looking", "parent": "t1", "agent": "Explore"}, "Explore: looking"),
        ("tool.started", {"name": "Bash"}, "uses Bash"),
        ("tool.started", {"name": "Bash", "parent": "t1", "agent": "Explore"}, "Explore: uses Bash"),
    ],
)
def test_progress_names_the_sub_agent(kind: str, data: dict[str, Any], said: str) -> None:
    wait = _Wait("r1", {}, CallContext(), "lead")
    wait._note({"run": "r1", "type": kind, "seq": 1, "data": data})
    assert wait._report().endswith(f" s: {said}")
