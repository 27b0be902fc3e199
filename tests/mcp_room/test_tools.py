"""What can be called: arguments that fit, and what is said about those that do not."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from hocket.mcp.tools import LISTED, TOOLS, complaint, rules, settled

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
    ("hand_off", {"agent": "", "prompt": "p"}, "agent must be a text that is not empty"),
    ("hand_off", {"agent": "a", "prompt": ["p"]}, "prompt must be a text"),
    ("hand_off", {"agent": "a", "prompt": "p", "agentName": "a"}, "no argument 'agentName'; it has agent, prompt"),
    ("wait", {"run": "1", "timeout": 0}, "timeout must be a number of seconds above 0"),
    ("wait", {"run": "1", "timeout": -1}, "timeout must be"),
    ("wait", {"run": "1", "timeout": "60"}, "timeout must be"),
    ("wait", {"run": "1", "timeout": True}, "timeout must be"),
    ("wait", {"run": "1", "timeout": float("nan")}, "timeout must be"),
    ("wait", {"run": "1", "timeout": 1e9}, "timeout must be"),
    ("spawn", {"agent": "a", "prompt": "p", "session": "yes"}, "session must be true or false"),
    ("ask", {"question": "q", "options": []}, "options must be a list of texts that is not empty"),
    ("ask", {"question": "q", "options": [1.5]}, "options must be"),
    ("stop", {"run": True}, "run must be a text"),
]


@pytest.mark.parametrize(("name", "arguments"), GOOD)
def test_arguments_that_fit_are_not_complained_about(name: str, arguments: dict[str, Any]) -> None:
    assert complaint(name, arguments) is None
    assert settled(name, arguments) == arguments


@pytest.mark.parametrize(("name", "arguments", "words"), BAD)
def test_arguments_that_do_not_fit_are_named(name: str, arguments: dict[str, Any], words: str) -> None:
    assert words in (complaint(name, arguments) or "")


def test_a_runs_number_may_be_a_number_and_nothing_is_as_good_as_left_out() -> None:
    given = {"run": 12, "timeout": None}
    assert complaint("wait", given) is None
    assert settled("wait", given) == {"run": "12"}


def test_a_runs_number_may_be_written_as_a_decimal_one() -> None:
    assert complaint("wait", {"run": 12.0}) is None
    assert settled("wait", {"run": 12.0}) == {"run": "12"}
    assert complaint("wait", {"run": 12.5}) == "run must be a text that is not empty"


def test_the_schemas_say_the_same_as_the_complaints() -> None:
    schemas = {tool["name"]: jsonschema_rs.Draft202012Validator(tool["inputSchema"]) for tool in LISTED}
    assert all(schemas[name].is_valid(arguments) for name, arguments in GOOD)
    told_apart = [(name, given) for name, given, _ in BAD if given.get("timeout") == given.get("timeout")]
    assert [name for name, arguments in told_apart if schemas[name].is_valid(arguments)] == []


def test_leave_is_given_for_each_tool_by_its_own_name() -> None:
    assert set(rules()) == {f"mcp__hocket__{name}" for name in TOOLS}
