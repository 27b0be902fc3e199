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
"""A chain waits after these and retries, so they are tested with single runs."""
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
"""They differ from other scripts only in a number."""
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
"""The fields that must be equal, by type of event; other types describe the program or repeat others."""


def comparable_events(output: RunOutput) -> Iterator[tuple[Any, ...]]:
    """All events without what differs between any two runs and without the progress of members."""
    for event in output.events:
        data, facts = event["data"], FACTS.get(event["type"])
        if facts is not None and data.get("status") != "running":
            yield (event["type"], *(_without_wording(data).get(fact) for fact in facts))


def _without_wording(data: dict[str, Any]) -> dict[str, Any]:
    """The wording of failures may differ between the programs."""
    failed = data.get("is_error") or data.get("status") == "failed"
    return {**data, "result": None, "error": None} if failed else data


def run_script(hocket: Hocket, script: str) -> RunOutput:
    if script not in (*PASSING, "member_of_one"):
        return run(hocket, script.replace("loop", "claude") if script.startswith("loop") else "claude", "-p", "hello")
    run_id = spawn(hocket, "claude", "-p", "hello")
    code, _ = waited(hocket, run_id)
    return RunOutput(code, events_of(hocket, run_id), "")


@pytest.mark.req("S1-51")
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow) if name in RARELY else name for name in SCRIPTS]
)
def test_scripted_agent_and_cli_report_same_events(
    script: str, world: Path, hocket: Hocket, claude: ClaudeSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.use_script(*SCRIPTS[script])
    real = run_script(hocket, script)
    ClaudeSetup("scripted", world, monkeypatch).use_script(*SCRIPTS[script])
    scripted = run_script(hocket, script)
    assert list(comparable_events(scripted)) == list(comparable_events(real))
    assert (scripted.code, scripted.stderr) == (real.code, real.stderr)
