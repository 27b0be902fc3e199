"""Plugins and servers with the real CLI: it lists the same agents as Hocket and starts the servers passed to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from catalog.plugin_user import ALPHA, User, head, put
from e2e.claude.setup import ENVIRONMENT, ClaudeSetup, real_cli, says
from patience import PATIENCE

from hocket.catalog.file_probe import FileProbe
from hocket.catalog.plugins import definition
from hocket.catalog.servers import resolve_servers, servers_for
from hocket.model import RUN_DIRECTORY, SESSION, Agent, Definition
from hocket.providers.base import LaunchRequest
from hocket.providers.claude.conversation import message
from hocket.providers.claude.launch import launch

pytestmark = pytest.mark.shared_server
INITIALIZE = {"type": "control_request", "request_id": "r1", "request": {"subtype": "initialize"}}
STREAMS = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
UNTRUSTED = ("--setting-sources", "user")


@pytest.fixture
def user(world: Path) -> User:
    place = world / "plugged"
    place.mkdir()
    return User(place)


def run_cli(user: User, *args: str, stdin: str = "", cwd: Path | None = None) -> str:
    """The output of the real CLI for this user, without network."""
    base = os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    done = subprocess.run(
        [str(real_cli()), *args],
        env={"PATH": os.environ["PATH"], **user.env, **ENVIRONMENT, "ANTHROPIC_BASE_URL": base},
        cwd=cwd or user.project,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def said(output: str, **wanted: str) -> dict[str, Any]:
    """The first line of a stream that has these values."""
    lines = [json.loads(line) for line in output.splitlines()]
    return next(line for line in lines if wanted.items() <= line.items())


def listed(user: User, *args: str) -> list[str]:
    """The names of the plugin agents that the CLI lists."""
    output = run_cli(user, *STREAMS, *args, stdin=json.dumps(INITIALIZE) + "\n")
    agents = said(output, type="control_response")["response"]["response"]["agents"]
    return sorted(agent["name"] for agent in agents if ":" in agent["name"])


ODD_FILES = {
    "agents/plain.md": head("plain"),
    "agents/sub/deep/below.md": head("below"),
    "agents/no-head.md": "only text\n",
    "agents/broken.md": "---\nname: b\n  a: [\n b: }\n---\nbody\n",
    "agents/blank-first.md": "\n" + head("unseen"),
    "agents/open.md": "---\nname: unseen\ndescription: d\n",
    "agents/no-description.md": "---\nname: bare\n---\nbody\n",
    "agents/README.md": "# About\n",
    "agents/empty.md": "",
    "agents/UPPER.MD": head("upper"),
    "agents/.hidden.md": head("hidden"),
    "agents/notes.txt": "no agent",
    "agents/mended.md": head("mended", "Use when: asked"),
    **{
        f"agents/n{number}.md": head(written)
        for number, written in enumerate(
            ["a b", "'a:b'", "-x", "123", "1.10", "0x1F", "-0", "true", "[a, b]", "{a: 1}", "''", "x" * 256, "x" * 257]
        )
    },
}


def test_plugin_agents_are_listed_as_by_cli(user: User) -> None:
    """The CLI installs them from a directory, for the user and for one project."""
    (user.kept / "known_marketplaces.json").unlink()
    folder = user.offer("alpha", ODD_FILES)
    (folder / "agents/link.md").symlink_to("plain.md")
    user.offer("beta", {"agents/b.md": head("b"), "x/y.md": head("y")}, {"name": "beta", "agents": ["./x/y.md"]})
    user.offer("gamma", {"agents/g.md": head("g"), "x/y.md": head("y")}, False, agents=["./x/y.md"])
    user.offer("delta", {"agents/d.md": head("d")})
    run_cli(user, "plugin", "marketplace", "add", str(user.market))
    for key, scope in (("alpha", "user"), ("gamma", "user"), ("beta", "project")):
        run_cli(user, "plugin", "install", f"{key}@market", "--scope", scope)
    ours = user.names(trusted=True)
    assert listed(user) == ours
    assert {"alpha:sub:deep:below", "alpha:broken", "alpha:README", "beta:y", "gamma:g", "gamma:y"} <= set(ours)
    assert listed(user, *UNTRUSTED) == user.names(trusted=False) == [name for name in ours if name != "beta:y"]


def test_plugin_install_path_is_resolved_as_by_cli(user: User, world: Path) -> None:
    user.offer("alpha", {"agents/offered.md": head("offered")})
    put(user.kept / "known_marketplaces.json", {"market": user.known("github", user.market)})
    for copy in ("a", "b"):
        put(world / copy / "agents/x.md", head(copy))
    here = user.record(world / "a", "project", projectPath=str(user.project))
    user.installed(**{ALPHA: [user.record(world / "gone"), here, user.record(world / "b")]})
    user.switch(ALPHA)
    assert user.names() == ["alpha:a"]
    assert listed(user) == ["alpha:a"]


def test_project_marketplace_is_ignored(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    (user.kept / "known_marketplaces.json").unlink()
    extra = {"market": {"source": {"source": "directory", "path": str(user.market)}}}
    put(user.project / ".claude/settings.json", {"enabledPlugins": {ALPHA: True}, "extraKnownMarketplaces": extra})
    assert (listed(user), user.names()) == ([], [])


# --- Runs ---


def started(cli: ClaudeSetup, user: User, agent: Agent, options: LaunchRequest, run: Path) -> dict[str, Any]:
    """The first message of the CLI that Hocket's launch starts."""
    cli.use_script(says("fine"))
    made = launch(agent, replace(options, prompt="hello"))
    for name, content in made.files.items():
        put(run / name, content)
    filled = [part.replace(RUN_DIRECTORY, str(run)).replace(SESSION, str(uuid.uuid4())) for part in made.argv[1:]]
    return said(run_cli(user, *filled, stdin=message("hello")), type="system", subtype="init")


def agent_of(made: Definition, *, trusted: bool = False) -> Agent:
    return Agent(made.name, "claude", str(real_cli()), "plugin", definition=made, trusted=trusted)


def test_plugin_agent_runs_with_its_name_and_instructions(claude: ClaudeSetup, user: User, world: Path) -> None:
    folder = user.offer("alpha", {"agents/s/one.md": head("one", tools="Read") + "Look into ${CLAUDE_PLUGIN_ROOT}.\n"})
    user.switch(ALPHA)
    made = definition(user.entries()["alpha:s:one"])
    init = started(claude, user, agent_of(made), LaunchRequest(), world / "run")
    assert "alpha:s:one" in init["agents"]
    assert init["tools"] == ["Read"]
    assert f"You are one.\\nLook into {folder}." in claude.model.request_text()


SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    about = {"serverInfo": {"name": "tiny", "version": "1"}, "capabilities": {"tools": {}}}
    answers = {
        "initialize": lambda: {"protocolVersion": asked["params"]["protocolVersion"], **about},
        "tools/list": lambda: {"tools": [{"name": "ping", "description": "p", "inputSchema": {"type": "object"}}]},
    }
    if "id" in asked:
        result = answers.get(asked["method"], dict)()
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def server(world: Path) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(put(world / "server.py", SERVER))]}


def running(init: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    servers = [one["name"] for one in init["mcp_servers"] if one["status"] == "connected"]
    return sorted(servers), sorted(tool for tool in init["tools"] if tool.startswith("mcp__"))


@pytest.mark.req("S3-05", "S3-08", "S3-54")
@pytest.mark.parametrize(
    ("allowed", "names"),
    [(None, ["mine", "theirs"]), (["theirs", "nope"], ["theirs"]), ([], [])],
    ids=["no list", "a list", "an empty list"],
)
def test_agent_gets_only_whitelisted_servers(
    claude: ClaudeSetup, user: User, world: Path, allowed: Sequence[str] | None, names: list[str]
) -> None:
    put(user.home / ".claude.json", {"mcpServers": {"mine": server(world)}})
    put(user.project / ".mcp.json", {"mcpServers": {"theirs": server(world)}})
    fields = {"description": "d", "prompt": "You review."}
    made = Definition("rev", fields, "/p/rev.md", allowed_servers=None if allowed is None else tuple(allowed))
    chosen = servers_for(agent_of(made, trusted=True), str(user.project), user.env)
    init = started(claude, user, agent_of(made, trusted=True), LaunchRequest(servers=chosen.servers), world / "run")
    assert running(init) == (names, [f"mcp__{name}__ping" for name in names])
    assert chosen.unknown == (("nope",) if allowed else ())


def test_definition_hooks_and_servers_work_in_untrusted_folder(claude: ClaudeSetup, user: User, world: Path) -> None:
    """Inline hooks and servers take effect; a server that is only named has to be passed in addition."""
    hook = {"Stop": [{"hooks": [{"type": "command", "command": f"touch {world}/own_hook"}]}]}
    theirs = {"SessionStart": [{"hooks": [{"type": "command", "command": f"touch {world}/their_hook"}]}]}
    put(user.project / ".claude/settings.json", {"hooks": theirs})
    put(user.project / ".mcp.json", {"mcpServers": {"theirs": server(world)}})
    fields = {
        "description": "d",
        "prompt": "You review.",
        "hooks": hook,
        "mcpServers": [{"own": server(world)}, "theirs"],
    }
    made = Definition("rev", fields, "/p/rev.md")
    init = started(claude, user, agent_of(made), LaunchRequest(), world / "run")
    assert running(init)[0] == ["own"]
    assert ((world / "own_hook").exists(), (world / "their_hook").exists()) == (True, False)
    named, _ = resolve_servers(FileProbe(), str(user.project), user.env, trusted=True)
    init = started(claude, user, agent_of(made), LaunchRequest(servers=named), world / "again")
    assert running(init)[0] == ["own", "theirs"]
