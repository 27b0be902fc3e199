"""Runs of the scripted agent and of the real CLI give the same events and results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, asks_to, bash
from e2e.commands import RunOutput, events_of, run, spawn, waited
from world import Hocket

pytestmark = pytest.mark.shared_server

SCOUT = {"type": "general-purpose", "prompt": "look around", "description": "scout"}
TWO = {"tools": [bash("echo a", "a"), bash("echo b", "b")]}
DENIED = asks_to("sh -c 'echo x > made'", denied=[{"say": "then not \U0001f600"}])
FAILING = (400, 401, 403, 404, 413)
PASSING = {"broken": 500, "overloaded": 529, "limited": 429}
"""After these a chain waits and tries again, so they are told of single agents."""
SCRIPTS: dict[str, list[Any]] = {
    "work": [
        {"do": [{"think": "hm"}, {"say": "one\ntwo"}, bash("echo hi", "hi"), {"say": "gr\u00fc\u00dfe"}, TWO, DENIED]}
    ],
    "member": [
        {"when": {"agent": "general-purpose"}, "do": [bash("echo hi", "hi"), {"say": "nothing there"}]},
        {"do": [{"say": "go"}, {"agent": SCOUT}, {"fail": {"status": 400, "message": "too odd"}}]},
    ],
    "member_unknown": [{"do": [{"agent": {**SCOUT, "type": "nosuch"}}, {"say": "alone then"}]}],
    "member_of_one": [
        {"when": {"agent": "general-purpose"}, "do": [{"say": "nothing there"}]},
        {"do": [{"say": "go"}, {"agent": SCOUT}, {"fail": {"status": 529, "message": "too busy"}}]},
    ],
    **{name: [{"do": [{"fail": {"status": status, "message": "no"}}]}] for name, status in PASSING.items()},
    **{
        f"loop:{passes}": [
            {"when": {"pass": number}, "do": [{"fail": {"status": status, "message": "out of order"}}]}
            for number, status in enumerate(FAILING[:passes], 1)
        ]
        for passes in (2, len(FAILING))
    },
}
RARELY = {"overloaded", "limited", f"loop:{len(FAILING)}"}
"""They differ from others here in a number alone."""
FACTS = {
    "run.created": ("kind", "agent", "provider", "depth", "step", "iteration"),
    "run.ended": ("status", "reason", "result", "exit_code", "tokens", "error", "transient"),
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


def story(told: RunOutput) -> Iterator[tuple[Any, ...]]:
    """All that happened, without what differs between any two runs. Progress of members comes when it comes."""
    for event in told.events:
        data, facts = event["data"], FACTS.get(event["type"])
        if facts is not None and data.get("status") != "running":
            yield (event["type"], *(_without_wording(data).get(fact) for fact in facts))


def _without_wording(data: dict[str, Any]) -> dict[str, Any]:
    """How a failure is put into words is the program's own affair."""
    failed = data.get("is_error") or data.get("status") == "failed"
    return {**data, "result": None, "error": None} if failed else data


def told_of(hocket: Hocket, script: str) -> RunOutput:
    if script not in (*PASSING, "member_of_one"):
        return run(hocket, script.replace("loop", "claude") if script.startswith("loop") else "claude", "-p", "hello")
    run_id = spawn(hocket, "claude", "-p", "hello")
    code, _ = waited(hocket, run_id)
    return RunOutput(code, events_of(hocket, run_id), "")


@pytest.mark.req("S1-51")
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow) if name in RARELY else name for name in SCRIPTS]
)
def test_both_players_of_a_script_tell_the_same_story(
    script: str, world: Path, hocket: Hocket, claude: ClaudeSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.use_script(*SCRIPTS[script])
    real = told_of(hocket, script)
    ClaudeSetup("scripted", world, monkeypatch).use_script(*SCRIPTS[script])
    scripted = told_of(hocket, script)
    assert list(story(scripted)) == list(story(real))
    assert (scripted.code, scripted.stderr) == (real.code, real.stderr)
