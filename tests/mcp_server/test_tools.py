"""Arguments of tools: which are accepted, and the errors of the others."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from hocket.mcp.tools import LISTED, TOOLS, argument_error, normalized, rules

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("list_agents", {}),
    ("list_agents", {"contains": "test"}),
    ("hand_off", {"agent": "a", "prompt": "p"}),
    ("hand_off", {"agent": "a", "prompt": "p", "task": "t1", "cwd": "/x", "timeout": 0.5}),
    ("spawn", {"agent": "a", "prompt": "p", "session": True}),
    ("wait", {"run": "12", "timeout": 86400}),
    ("ask", {"question": "q", "options": ["a", "b"]}),
]
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("hand_off", {"agent": "a"}, "needs prompt"),
    ("hand_off", {}, "needs agent and prompt"),
    ("hand_off", {"agent": "", "prompt": "p"}, "agent must be a non-empty string"),
    ("hand_off", {"agent": "a", "prompt": ["p"]}, "prompt must be a non-empty string"),
    ("hand_off", {"agent": "a", "prompt": "p", "agentName": "a"}, "no argument 'agentName'; it has agent, prompt"),
    ("wait", {"run": "1", "timeout": 0}, "timeout must be a number of seconds above 0"),
    ("wait", {"run": "1", "timeout": -1}, "timeout must be"),
    ("wait", {"run": "1", "timeout": "60"}, "timeout must be"),
    ("wait", {"run": "1", "timeout": True}, "timeout must be"),
    ("wait", {"run": "1", "timeout": float("nan")}, "timeout must be"),
    ("wait", {"run": "1", "timeout": 1e9}, "timeout must be"),
    ("spawn", {"agent": "a", "prompt": "p", "session": "yes"}, "session must be true or false"),
    ("ask", {"question": "q", "options": []}, "options must be a list of 1 to 20 non-empty strings"),
    ("ask", {"question": "q", "options": [1.5]}, "options must be"),
    ("stop", {"run": True}, "run must be a non-empty string"),
]


@pytest.mark.parametrize(("name", "arguments"), GOOD)
def test_valid_arguments_are_accepted(name: str, arguments: dict[str, Any]) -> None:
    assert argument_error(name, arguments) is None
    assert normalized(name, arguments) == arguments


@pytest.mark.parametrize(("name", "arguments", "words"), BAD)
def test_invalid_arguments_are_named(name: str, arguments: dict[str, Any], words: str) -> None:
    assert words in (argument_error(name, arguments) or "")


def test_run_may_be_number_and_null_is_omitted() -> None:
    given = {"run": 12, "timeout": None}
    assert argument_error("wait", given) is None
    assert normalized("wait", given) == {"run": "12"}


def test_run_may_be_whole_float() -> None:
    assert argument_error("wait", {"run": 12.0}) is None
    assert normalized("wait", {"run": 12.0}) == {"run": "12"}
    assert argument_error("wait", {"run": 12.5}) == "run must be a non-empty string"


def test_schemas_agree_with_the_checks() -> None:
    schemas = {tool["name"]: jsonschema_rs.Draft202012Validator(tool["inputSchema"]) for tool in LISTED}
    assert all(schemas[name].is_valid(arguments) for name, arguments in GOOD)
    told_apart = [(name, given) for name, given, _ in BAD if given.get("timeout") == given.get("timeout")]
    assert [name for name, arguments in told_apart if schemas[name].is_valid(arguments)] == []


def test_each_tool_has_its_own_permission_rule() -> None:
    assert set(rules()) == {f"mcp__hocket__{name}" for name in TOOLS}
