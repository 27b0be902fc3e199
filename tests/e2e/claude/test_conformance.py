"""The scripted agent and the real CLI are told apart by nothing that Hocket says about their runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.stage import Stage, Told, asks_to, bash, run
from world import Hocket

SCOUT = {"type": "general-purpose", "prompt": "look around", "description": "scout"}
TWO = {"tools": [bash("echo a", "a"), bash("echo b", "b")]}
DENIED = asks_to("sh -c 'echo x > made'", denied=[{"say": "then not \U0001f600"}])
FAILING = (500, 400, 401, 403, 404, 413, 429)
SCRIPTS: dict[str, list[Any]] = {
    "work": [
        {"do": [{"think": "hm"}, {"say": "one\ntwo"}, bash("echo hi", "hi"), {"say": "gr\u00fc\u00dfe"}, TWO, DENIED]}
    ],
    "member": [
        {"when": {"agent": "general-purpose"}, "do": [bash("echo hi", "hi"), {"say": "nothing there"}]},
        {"do": [{"say": "go"}, {"agent": SCOUT}, {"fail": {"status": 529, "message": "too busy"}}]},
    ],
    "loop": [
        {"when": {"pass": number}, "do": [{"fail": {"status": status, "message": "out of order"}}]}
        for number, status in enumerate(FAILING, 1)
    ],
}
FACTS = {
    "run.created": ("kind", "agent", "provider", "depth", "step", "iteration"),
    "run.ended": ("status", "reason", "result", "exit_code", "tokens", "error"),
    "turn.started": ("turn", "origin"),
    "turn.ended": ("turn", "result", "is_error", "subtype", "idle", "num_turns", "origin"),
    "text": ("text", "agent"),
    "thinking": ("text",),
    "tool.started": ("name", "input", "agent"),
    "tool.finished": ("name", "error", "agent"),
    "member": ("agent", "status", "background"),
    "notice": ("kind", "error", "error_status", "attempt", "tool"),
    "marker": ("line",),
}
"""What both must agree on, by type of event; events of other types tell about the program or repeat."""


def story(told: Told) -> Iterator[tuple[Any, ...]]:
    """All that happened, without what differs between any two runs. Progress of members comes when it comes."""
    for event in told.events:
        data, facts = event["data"], FACTS.get(event["type"])
        if facts is not None and data.get("status") != "running":
            yield (event["type"], *(_without_wording(data).get(fact) for fact in facts))


def _without_wording(data: dict[str, Any]) -> dict[str, Any]:
    """How a failure is put into words is the program's own affair."""
    failed = data.get("is_error") or data.get("status") == "failed"
    return {**data, "result": None, "error": None} if failed else data


@pytest.mark.req("S1-51")
@pytest.mark.parametrize("script", SCRIPTS)
def test_both_players_of_a_script_tell_the_same_story(
    script: str, world: Path, hocket: Hocket, claude: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "claude:9" if script == "loop" else "claude"
    claude.plays(*SCRIPTS[script])
    real = run(hocket, text, "-p", "hello")
    Stage("scripted", world, monkeypatch).plays(*SCRIPTS[script])
    scripted = run(hocket, text, "-p", "hello")
    assert list(story(scripted)) == list(story(real))
    assert (scripted.code, scripted.stderr) == (real.code, real.stderr)
