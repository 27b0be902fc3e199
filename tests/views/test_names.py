"""Short names of agents, projects and tools."""

from __future__ import annotations

import pytest

from hocket.mcp.tools import TOOLS, rules
from hocket.views.names import agent_name, project_names, tool_name


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("builder", "builder"),
        ("/srv/other/.claude/agents/builder.md", "builder"),
        ("./tool", "tool"),
        ("./tools/", "tools"),
        ("~/bin/my tool.sh", "my tool.sh"),
        ("../a:b", "a:b"),
        ("/", "/"),
        ("planner -> builder:3", "planner -> builder:3"),
        ("./plan -> (/x/qa.md:2, review) -> ../ship:10", "plan -> (qa:2, review) -> ship:10"),
        ("./two\nlines\x1b[2J", "two lines"),
    ],
)
def test_agent_given_by_path_has_its_name(agent: str, name: str) -> None:
    assert agent_name(agent) == name


def test_project_is_named_by_its_shortest_unique_end() -> None:
    folders = ["/srv/shop/api", "/srv/blog/api", "/srv/docs", "/srv", "/"]
    assert list(project_names(folders).values()) == ["shop/api", "blog/api", "docs", "srv", "/"]
    assert project_names(["/a/x", "/b/a/x", "/a/x"]) == {"/a/x": "/a/x", "/b/a/x": "b/a/x"}


def test_only_our_own_tools_are_shortened() -> None:
    assert [tool_name(rule) for rule in rules()] == list(TOOLS)
    assert [tool_name(tool) for tool in ("Bash", "mcp__other__hand_off")] == ["Bash", "mcp__other__hand_off"]
