"""A scripted ``claude`` for tests of conversations: what a turn does follows from words in its prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hocket.rehearsal import install

ECHO = {"echo": "you said: {prompt}"}
ECHO_WITH_ANSWER = {"echo": "you said: {prompt} [{last}]"}
HOLD = {"wait": {"file": "go"}}
COLOURS = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]
CHOOSE = {"tool": "AskUserQuestion", "input": {"questions": [{"question": "Which colour?", "options": COLOURS}]}}


def install_claude(directory: Path, command: str = "touch x0") -> Path:
    """Write ``claude`` into a directory that is on PATH. ``command`` is what it asks permission to run."""
    directory.mkdir(exist_ok=True)
    script = directory / "claude-script.json"
    script.write_text(json.dumps({"rules": _rules(command), "default": [{"cost": 0.01}, ECHO]}))
    return install(directory, script, directory / "claude-state")


def _rules(command: str) -> list[dict[str, Any]]:
    ask, other = _ask(command, "q1-0"), _ask("touch x1", "q1-1")
    by_rule = [{"ask": {**one, "rule": "touch *"}} for one in (ask, other)]
    turns = {
        "helper": [{"agent": {"type": "Explore", "prompt": "look", "background": True}}, {"say": "started"}],
        "tool": [{"tool": {"name": "Bash", "input": {"command": "make"}, "result": "no rule", "error": True}}, ECHO],
        "wait": [{"say": "working"}, "hang"],
        "ask twice": [{"tools": [{"ask": ask}, {"ask": other}]}, ECHO_WITH_ANSWER],
        "ask by rule": [*by_rule, ECHO_WITH_ANSWER],
        "ask, then choose": [{"ask": ask}, {"ask": {**CHOOSE, "id": "q1-9"}}, ECHO_WITH_ANSWER],
        "ask and hold": [{"ask": ask}, HOLD, ECHO_WITH_ANSWER],
        "ask": [{"ask": ask}, ECHO_WITH_ANSWER],
        "choose": [{"ask": CHOOSE}, ECHO_WITH_ANSWER],
        "hold": [HOLD, ECHO],
        "fail": [{"fail": {"status": 500, "message": "overloaded"}}],
    }
    said_by_others = [
        {"when": {"agent": "Explore"}, "do": [{"say": "found it"}]},
        {"when": {"woken": True}, "do": [{"say": "the helper is done"}]},
    ]
    return [*said_by_others, *({"when": {"prompt": words}, "do": steps} for words, steps in turns.items())]


def _ask(command: str, question: str) -> dict[str, Any]:
    given = {"command": command, "description": "Make a file"}
    return {"tool": "Bash", "input": given, "result": f"allowed {command}", "id": question}
