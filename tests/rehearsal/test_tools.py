"""Which tools an agent is offered, by its definition and by the command line."""

from __future__ import annotations

from typing import Any

import pytest
from rehearsal.processes import STREAMS

from hocket.rehearsal.flags import parse
from hocket.rehearsal.tools import OfferedTools, offered_tools


def offer(*flags: str, **definition: Any) -> OfferedTools:
    return offered_tools(parse([*STREAMS, *flags]), definition)


def test_usual_tools_are_offered_by_default() -> None:
    for everything in (offer(), offer(tools=["*"]), offer("--tools", "default")):
        assert {"Agent", "Bash", "Read"} < set(everything.names())
        assert everything.offers("mcp__hocket__status")
        assert everything.offers("SomethingNew")


def test_empty_tools_of_definition_offer_none() -> None:
    assert offer(tools=[]).names() == ()
    assert not offer(tools=[]).offers("mcp__hocket__status")


@pytest.mark.parametrize("name", ["Agent", "Task", "Agent(scout)"])
def test_agent_tool_has_two_names(name: str) -> None:
    assert offer(tools=["Read", name]).names() == ("Read", "Agent")
    assert offer("--tools", name).offers("Task")
    assert not offer("--disallowedTools", "Task").offers("Agent")


def test_command_line_narrows_built_in_tools_only() -> None:
    both = offer("--tools", "Read,Bash", tools=["Read", "Write", "mcp__hocket__status"])
    assert both.names() == ("Read", "mcp__hocket__status")
    assert offer("--tools", "Read").offers("mcp__hocket__status")


@pytest.mark.parametrize("own", ["mcp__hocket", "mcp__hocket__*", "mcp__hocket__status"])
def test_mcp_server_in_definition_covers_its_tools(own: str) -> None:
    assert offer(tools=[own]).offers("mcp__hocket__status")
    assert not offer(tools=[own]).offers("mcp__hockets__status")


def test_disallowed_tool_is_not_offered() -> None:
    assert not offer(disallowedTools=["Bash"]).offers("Bash")
    assert offer("--disallowedTools", "Bash(rm *)").offers("Bash")
    assert "Read" not in offer("--disallowedTools", "Read", tools=["Read", "Write"]).names()
