"""Requesting the agents of the CLI: the request and the meaning of the response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hocket.providers.claude.listing import ARGUMENTS, REQUEST, Listed, agents_listed, only_choices


def answered(agents: Any) -> bytes:
    return json.dumps({"type": "control_response", "response": {"response": {"agents": agents}}}).encode()


def test_agents_are_found_among_other_output() -> None:
    agents = [{"name": "a", "description": "d", "model": "haiku"}, {"name": "b:c", "description": "e"}, "no agent"]
    output = b'warning: something\n{"type":"system"}\n[1]\n' + answered(agents) + b"\n{"
    assert agents_listed(output) == [Listed("a", "d", "haiku"), Listed("b:c", "e", None)]


def test_answer_may_have_no_agents() -> None:
    assert agents_listed(answered([])) == []


DEEP = b"[" * 100_000


@pytest.mark.parametrize("output", [b"", b"no JSON", b"null", b'{"response": 7}', answered({}), b"\xff\xfe", DEEP])
def test_missing_answer_differs_from_empty_one(output: bytes) -> None:
    assert agents_listed(output) is None


def test_request_runs_no_hook_and_no_server() -> None:
    assert json.loads(ARGUMENTS[ARGUMENTS.index("--settings") + 1]) == {"disableAllHooks": True}
    assert {"--strict-mcp-config", "--no-session-persistence"} <= set(ARGUMENTS)
    assert json.loads(REQUEST)["request"] == {"subtype": "initialize"}


def test_only_plugin_choice_of_settings_is_kept() -> None:
    settings = {"enabledPlugins": {"a@b": True}, "hooks": {"SessionStart": []}, "env": {"LD_PRELOAD": "x"}}
    assert json.loads(only_choices(json.dumps(settings).encode()) or b"") == {"enabledPlugins": {"a@b": True}}


@pytest.mark.parametrize("settings", [b"", b"{}", b"[]", b"null", b"{", DEEP, b'"enabledPlugins"'])
def test_settings_without_plugin_choice_are_dropped(settings: bytes) -> None:
    assert only_choices(settings) is None
