"""Definitions for CLIs that know no agents: what becomes of each field, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.errors import UsageError
from hocket.model import Agent, Definition
from hocket.providers.base import LaunchRequest
from hocket.providers.definition_rules import DefinitionRules, definition_rules

BYPASS = LaunchRequest(permission_mode="bypassPermissions")


def rules(request: LaunchRequest = BYPASS, **fields: Any) -> DefinitionRules:
    own = ("allowed_servers", "thinking_budget", "delegate")
    of_definition = {name: fields.pop(name) for name in own if name in fields}
    definition = Definition("rev", {"prompt": "You review.", **fields}, "/p/rev.md", **of_definition)
    return definition_rules(Agent("rev", "codex", "/bin/codex", "global", definition=definition), request, "Codex")


def test_instructions_come_before_those_of_the_step() -> None:
    found = rules(LaunchRequest(loop=True, marker="DONE"))
    assert found.instructions.startswith("You review.\n\nYou are running unattended")
    assert (found.mode, found.model, found.notices) == ("acceptEdits", None, ())


def test_model_of_the_definition_is_passed_on() -> None:
    assert rules(LaunchRequest(model="sonnet"), model="gpt-5").model == "gpt-5"
    assert rules(LaunchRequest(model="sonnet")).model is None


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "bypassPermissions"),
        ({"tools": ["*"]}, "bypassPermissions"),
        ({"tools": ["Read", "Edit", "Bash"]}, "bypassPermissions"),
        ({"tools": ["Read", "Edit", "Bash(git diff:*)"]}, "acceptEdits"),
        ({"tools": ["Read", "Write"]}, "acceptEdits"),
        ({"tools": ["Read", "Bash"]}, "default"),
        ({"tools": []}, "default"),
        ({"disallowedTools": ["Bash"]}, "acceptEdits"),
        ({"disallowedTools": ["Bash(rm:*)"]}, "acceptEdits"),
        ({"disallowedTools": ["Write(*.md)"]}, "default"),
        ({"permissionMode": "plan", "tools": ["Bash", "Edit"]}, "plan"),
        ({"permissionMode": "plan", "disallowedTools": ["Bash"]}, "plan"),
    ],
)
def test_lists_of_tools_narrow_the_mode(fields: dict[str, Any], mode: str) -> None:
    assert rules(**fields).mode == mode


def test_unenforced_limit_is_requested_and_reported() -> None:
    found = rules(tools=["Read"], disallowedTools=["Web"], maxTurns=3, allowed_servers=())
    assert found.instructions.split("\n") == [
        "You review.",
        "",
        "Use only tools of these kinds: Read.",
        "Do not use tools of these kinds: Web.",
        "Finish within 3 turns.",
        "Use only these MCP servers: none.",
    ]
    listed = "tools, disallowedTools, maxTurns and allowedMcpServers"
    assert found.notices == (f"rev: Codex does not enforce {listed}, which its prompt asks for",)


def test_field_without_a_use_is_told() -> None:
    found = rules(mcpServers=["a"], effort="high", thinking_budget=1000, delegate=True)
    assert found.notices == (
        "rev: Codex has no use for mcpServers, effort, thinkingBudget and delegate of its definition",
    )


@pytest.mark.parametrize("fields", [{"hooks": {"Stop": []}}, {"isolation": "worktree"}], ids=["hooks", "isolation"])
def test_field_that_protects_the_user_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"Codex knows no {next(iter(fields))}"):
        rules(**fields)


def test_allowed_tools_are_refused() -> None:
    agent = Agent("x", "codex", "/bin/codex", "cli", allowed_tools="Read")
    with pytest.raises(UsageError, match="no allowed_tools"):
        definition_rules(agent, BYPASS, "Codex")
