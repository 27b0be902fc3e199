"""What the Claude CLI needs before an agent can lead a team."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hocket.providers.claude.settings import confirmed_file, obstacle, team_start

KEY = "sk-ant-0123456789-abcdefghijklmnop"
DONE = {"hasCompletedOnboarding": True}


def problem(content: Any, **env: str) -> str | None:
    found = obstacle(env, content if isinstance(content, bytes | None) else json.dumps(content).encode())
    return found.problem if found else None


@pytest.mark.req("S5-03", "S5-46")
@pytest.mark.parametrize(
    ("version", "terminal"),
    [((2, 1, 177), False), ((2, 0), False), ((2, 1, 178), True), ((2, 2), True), ((3,), True), ((), True)],
)
def test_terminal_is_needed_by_later_versions(version: tuple[int, ...], terminal: bool) -> None:
    assert team_start.needs_terminal(version) is terminal


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff", {}, {"hasCompletedOnboarding": "yes"}])
def test_unfinished_first_steps_are_an_obstacle(content: Any) -> None:
    assert "first steps" in str(problem(content))


@pytest.mark.parametrize("answers", [None, [], {"approved": None}, {"approved": [KEY]}, {"rejected": [KEY[-20:]]}])
def test_key_that_was_never_approved_is_an_obstacle(answers: Any) -> None:
    assert "never approved" in str(problem({**DONE, "customApiKeyResponses": answers}, ANTHROPIC_API_KEY=KEY))


def test_nothing_keeps_a_prepared_cli_from_starting() -> None:
    approved = {**DONE, "customApiKeyResponses": {"approved": [KEY[-20:]]}}
    assert problem(DONE) is None
    assert problem(DONE, ANTHROPIC_API_KEY=KEY, ANTHROPIC_AUTH_TOKEN="t") is None
    assert problem(approved, ANTHROPIC_API_KEY=KEY) is None


@pytest.mark.req("S5-43")
def test_confirmations_are_read_where_the_cli_keeps_them() -> None:
    assert confirmed_file("/p", {"HOME": "/h"}) == "/h/.claude.json"
    assert confirmed_file("/p", {"HOME": "/h", "CLAUDE_CONFIG_DIR": "c"}) == "/p/c/.claude.json"
    assert confirmed_file("/p", {}) is None
