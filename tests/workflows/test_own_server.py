"""Who is given our own MCP server, and our hook for sub-agents."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.config.settings import AgentConfig, ClaudeConfig, Config
from hocket.mcp.tools import rules
from hocket.model import Agent, Definition, Spec
from hocket.workflows.bind import bind, own_server
from hocket.workflows.request import StartRequest

AGENT = Agent("rev", "claude", "/bin/claude", "project")
OFF = Config(claude=ClaudeConfig(mcp=False))


def listing(*servers: str) -> Agent:
    return replace(AGENT, definition=Definition("rev", {}, "/p/rev.md", allowed_servers=servers))


@pytest.mark.parametrize("agent", [AGENT, replace(AGENT, definition=Definition("rev", {}, "/p/rev.md"))])
def test_agent_gets_own_server_unless_disabled(agent: Agent) -> None:
    own = own_server(agent, Config())
    assert own is not None
    assert (own.name, own.rules) == ("hocket", rules())
    assert own_server(agent, OFF) is None


@pytest.mark.req("S3-08")
@pytest.mark.parametrize(
    ("agent", "given"), [(listing(), False), (listing("db"), False), (listing("db", "hocket"), True)]
)
def test_server_list_includes_own_server(agent: Agent, given: bool) -> None:
    assert (own_server(agent, Config()) is not None) == given


def bound(project: Path, config: Config, **head: Any) -> Spec:
    program = project / "claude"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    path = project / ".claude/agents/rev.md"
    path.parent.mkdir(parents=True)
    path.write_text(f"---\nname: rev\ndescription: reviews\n{lines}---\nYou review.\n")
    env = {"PATH": str(project), "HOME": str(project.parent / "user")}
    made = bind(StartRequest(cwd=str(project), env=env, agent="rev"), config)
    assert isinstance(made, Spec)
    return made


def test_bound_agent_has_own_server_and_rules(project: Path) -> None:
    spec = bound(project, Config())
    given = json.loads(spec.argv[spec.argv.index("--mcp-config") + 1])
    assert given["mcpServers"]["hocket"]["type"] == "sdk"
    assert spec.served
    assert set(rules()) <= set(spec.argv[spec.argv.index("--allowedTools") + 1].split(","))


def test_bound_agent_has_no_disabled_server(project: Path) -> None:
    spec = bound(project, OFF)
    assert "servers.json" not in spec.files
    assert not {"--mcp-config", "--allowedTools"} & set(spec.argv)
    assert not spec.served


@pytest.mark.req("S3-08")
def test_empty_server_list_disables_own_server(project: Path) -> None:
    spec = bound(project, Config(), allowedMcpServers=[])
    assert json.loads(spec.files["servers.json"]) == {"mcpServers": {}}
    assert "--allowedTools" not in spec.argv


ALIAS = {"rev": AgentConfig("config.toml", delegate="hocket")}


@pytest.mark.req("S3-01")
@pytest.mark.parametrize(
    ("config", "head", "given"),
    [
        (Config(), {}, False),
        (Config(), {"delegate": "hocket"}, True),
        (Config(claude=ClaudeConfig(delegate="hocket")), {}, True),
        (Config(agents=ALIAS), {}, True),
    ],
)
def test_hook_is_given_where_it_is_asked_for(project: Path, config: Config, head: dict[str, str], given: bool) -> None:
    spec = bound(project, config, **head)
    hooks = json.loads(spec.argv[spec.argv.index("--settings") + 1]).get("hooks", {})
    commands = [one["command"] for entry in hooks.get("PreToolUse", []) for one in entry["hooks"]]
    assert [command.endswith("hocket hook pre-tool-use --always || exit 2") for command in commands] == [True] * given
