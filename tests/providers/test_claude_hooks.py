"""Which hooks make the CLI drop a whole definition."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.providers.claude.definitions import complaint
from hocket.providers.claude.frontmatter import parse
from hocket.providers.claude.hooks import STRICT_EVENTS, complaint_about_hooks
from hocket.providers.definition_files import Head

COMMAND = {"type": "command", "command": "x"}
HTTP = {"type": "http", "url": "http://x"}
PROMPT = {"type": "prompt", "prompt": "p"}
AGENT = {"type": "agent", "prompt": "p"}
TOOL = {"type": "mcp_tool", "server": "s", "tool": "t"}


def about(value: Any, event: str = "PreToolUse") -> str | None:
    return complaint_about_hooks({event: value})


def about_hook(hook: Any) -> str | None:
    return about([{"hooks": [hook]}])


@pytest.mark.req("S4-48")
@pytest.mark.parametrize("event", STRICT_EVENTS)
@pytest.mark.parametrize("value", [3, 0, "x", "", {}, True, False], ids=repr)
def test_complaint_names_event_when_hooks_are_no_list(event: str, value: Any) -> None:
    found = about(value, event)
    assert found is not None
    assert found.startswith(f"invalid hooks: {event}: Expected `array`, got ")


@pytest.mark.parametrize("event", ["Stop", "PostToolUse", "pretooluse", "Unknown"])
def test_hooks_of_other_events_are_not_checked(event: str) -> None:
    assert about(3, event) is None
    assert about([{"hooks": [{"type": "x"}]}], event) is None


@pytest.mark.parametrize(
    "value", [None, [], [{"hooks": []}], [{"matcher": "[", "hooks": []}], [{"x": 1, "hooks": [COMMAND]}]], ids=repr
)
def test_valid_hooks_have_no_complaint(value: Any) -> None:
    assert about(value) is None


@pytest.mark.parametrize("entry", [None, 3, [], {}, {"hooks": None}, {"hooks": {}}, {"hooks": "x"}], ids=repr)
def test_complaint_names_entry_without_list_of_hooks(entry: Any) -> None:
    found = about([{"hooks": [COMMAND]}, entry])
    assert found is not None
    assert found.startswith("invalid hooks: PreToolUse[1]")


@pytest.mark.parametrize("matcher", [None, 3, ["a"], True], ids=repr)
def test_complaint_names_matcher_that_is_no_string(matcher: Any) -> None:
    found = about([{"matcher": matcher, "hooks": []}])
    assert found is not None
    assert found.startswith("invalid hooks: PreToolUse[0].matcher: Expected `str`, got ")


@pytest.mark.parametrize(
    "hook",
    [None, 3, {}, {"command": "x"}, *({**COMMAND, "type": kind} for kind in ("x", "Command", "", None, 3, ["a"]))],
)
def test_complaint_names_hook_of_unknown_type(hook: Any) -> None:
    found = about_hook(hook)
    assert found is not None
    assert found.startswith("invalid hooks: PreToolUse[0].hooks[0]")


@pytest.mark.parametrize("hook", [COMMAND, HTTP, PROMPT, AGENT, TOOL], ids=repr)
def test_hook_needs_keys_of_its_type(hook: dict[str, Any]) -> None:
    assert about_hook({**hook, "unknown": 1}) is None
    for key in hook.keys() - {"type"}:
        found = about_hook({name: value for name, value in hook.items() if name != key})
        assert found is not None
        assert found.endswith(f"missing required field `{key}`")
        for wrong in (3, None, ["a"]):
            assert about_hook({**hook, key: wrong}) is not None


Case = tuple[dict[str, Any], str, Any]
ALL = (COMMAND, HTTP, PROMPT, AGENT, TOOL)


def each(hooks: tuple[dict[str, Any], ...], keys: str, *values: Any) -> list[Case]:
    return [(hook, key, value) for hook in hooks for key in keys.split() for value in values]


GOOD = [
    *each(ALL, "timeout", 1, 0.5),
    *each((COMMAND,), "command if statusMessage", ""),
    *each((COMMAND,), "once async asyncRewake", True),
    *each((COMMAND,), "shell", "bash", "powershell"),
    *each((COMMAND,), "args", [], ["a", ""]),
    *each((COMMAND,), "model headers input continueOnBlock", 3),
    *each((HTTP,), "async shell args model input", 3),
    *each((HTTP,), "headers", {}, {"a": "b"}),
    *each((HTTP,), "allowedEnvVars", [], ["A"]),
    *each((PROMPT, AGENT), "model", "", "x"),
    *each((PROMPT,), "continueOnBlock", False),
    *each((AGENT,), "continueOnBlock", 3),
    *each((TOOL,), "input", {}, {"a": None}),
    *each((TOOL,), "server tool", ""),
]
BAD = [
    *each(ALL, "timeout", 0, -1, "3", True, None),
    *each(ALL, "if statusMessage once", 3, None),
    *each((COMMAND,), "async asyncRewake shell args rewakeMessage rewakeSummary", None, ""),
    *each((COMMAND,), "shell", "fish", "Bash", "sh"),
    *each((COMMAND,), "args", "a", {}, ["a", 3], [None]),
    *each((HTTP,), "headers", [], None, {"a": 3}),
    *each((HTTP,), "allowedEnvVars", "A", None, [3]),
    *each((PROMPT, AGENT), "model", 3, None),
    *each((PROMPT,), "continueOnBlock", "", None),
    *each((TOOL,), "input", [], None, "x"),
]


@pytest.mark.parametrize(("hook", "key", "value"), GOOD)
def test_valid_or_unknown_value_has_no_complaint(hook: dict[str, Any], key: str, value: Any) -> None:
    assert about_hook({**hook, key: value}) is None


@pytest.mark.parametrize(("hook", "key", "value"), BAD)
def test_complaint_names_key_of_invalid_value(hook: dict[str, Any], key: str, value: Any) -> None:
    found = about_hook({**hook, key: value})
    assert found is not None
    assert found.startswith(f"invalid hooks: PreToolUse[0].hooks[0].{key}")


URLS = ("http://x", " HTTP://X ", "http://x:65535/y", "http://u:p@x#y", "http://${HOST}/y", "http://[::1]:80", "x:y")
NOT_URLS = (
    "",
    "x",
    "/x",
    "//x",
    "1:x",
    "${X}",
    "ht tp://x",
    "http:",
    "http://",
    "http://:80",
    "http://x:65536",
    "http://[",
)


@pytest.mark.parametrize("url", URLS)
def test_hook_accepts_url(url: str) -> None:
    assert about_hook({**HTTP, "url": url}) is None


@pytest.mark.parametrize("url", NOT_URLS)
def test_hook_refuses_other_text_than_url(url: str) -> None:
    assert about_hook({**HTTP, "url": url}) is not None


@pytest.mark.req("S4-48")
def test_complaint_about_hooks_has_line_of_key() -> None:
    head = parse(b"---\nname: a\ndescription: d\nhooks:\n  PreToolUse:\n    - hooks:\n        - type: command\n---\n")
    assert isinstance(head, Head)
    found = complaint(head)
    assert found is not None
    assert (found.line, found.is_hocket_limit) == (4, False)
    assert found.reason == "invalid hooks: PreToolUse[0].hooks[0]: Object missing required field `command`"
