"""MCP servers: from which files they come, which one of a name counts, and what a whitelist makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from catalog.plugin_user import put

from hocket.catalog.file_probe import FileProbe
from hocket.catalog.servers import ChosenServers, resolve_servers, servers_for
from hocket.model import Agent, Definition
from hocket.providers.definition_files import SKIPPED, PathFault, Servers

SECRET = "s3cret-token"


def server(tag: str) -> dict[str, Any]:
    return {"command": "serve", "args": [tag], "env": {"TOKEN": SECRET}}


class Place:
    """A user with a repository, and a directory deep in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "user"
        self.repository = root / "top/repository"
        self.deep = self.repository / "a/b"
        self.home.mkdir()
        self.deep.mkdir(parents=True)
        (self.repository / ".git").mkdir()

    def users(self, projects: Any = None, **servers: Any) -> Path:
        return put(self.home / ".claude.json", {"mcpServers": servers, "projects": projects or {}, "userID": SECRET})

    def theirs(self, folder: Path, **servers: Any) -> Path:
        return put(folder / ".mcp.json", {"mcpServers": servers})

    def resolved(self, cwd: Path | None = None, *, trusted: bool = True, **env: str) -> tuple[Servers, list[PathFault]]:
        environ = {"HOME": str(self.home), **env}
        return resolve_servers(FileProbe(), str(cwd or self.deep), environ, trusted=trusted)

    def tags(self, cwd: Path | None = None, **how: Any) -> dict[str, str]:
        return {name: found["args"][0] for name, found in self.resolved(cwd, **how)[0].items()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.req("S3-54", "S3-55")
def test_nearer_server_of_a_name_wins(place: Place) -> None:
    local = {str(place.repository): {"mcpServers": {"l": server("local"), "z": server("local")}}}
    place.users(local, u=server("user"), x=server("user"), y=server("user"), z=server("user"))
    place.theirs(place.repository, r=server("root"), x=server("root"), y=server("root"), z=server("root"))
    place.theirs(place.deep, y=server("deep"), z=server("deep"))
    expected = {"u": "user", "r": "root", "l": "local", "x": "root", "y": "deep", "z": "local"}
    assert place.tags() == expected
    assert place.resolved()[0]["u"] == server("user")
    assert place.resolved()[1] == []


@pytest.mark.req("S3-54")
def test_untrusted_project_adds_no_servers(place: Place) -> None:
    place.users({str(place.repository): {"mcpServers": {"l": server("local")}}}, x=server("user"))
    place.theirs(place.repository, r=server("root"), x=server("root"))
    assert place.tags(trusted=False) == {"x": "user", "l": "local"}


def test_servers_outside_the_repository_are_not_read(place: Place) -> None:
    place.theirs(place.root / "top", above=server("above"))
    assert place.tags() == {}
    (place.repository / ".git").rmdir()
    place.theirs(place.repository, r=server("root"))
    assert (place.tags(), place.tags(place.repository)) == ({}, {"r": "root"})


def test_user_servers_of_project_use_real_path(place: Place) -> None:
    (place.root / "link").symlink_to(place.repository)
    place.users({str(place.repository): {"mcpServers": {"l": server("local")}}})
    assert place.tags(place.root / "link") == {"l": "local"}
    place.users({str(place.deep): {"mcpServers": {"l": server("local")}}})
    assert place.tags() == {}


def test_user_file_location_follows_the_cli(place: Place) -> None:
    place.users(u=server("user"))
    put(place.root / "moved/.claude.json", {"mcpServers": {"m": server("moved")}})
    assert place.tags(CLAUDE_CONFIG_DIR=str(place.root / "moved")) == {"m": "moved"}
    put(place.home / ".claude/.config.json", {"mcpServers": {"o": server("older")}})
    assert place.tags() == {"o": "older"}
    assert resolve_servers(FileProbe(), str(place.deep), {}, trusted=False) == ({}, [])


def test_disabled_servers_are_left_out(place: Place) -> None:
    off = {"disabledMcpServers": ["u"], "disabledMcpjsonServers": ["r"]}
    place.users({str(place.repository): off}, u=server("user"), v=server("user"))
    place.theirs(place.repository, r=server("root"), s=server("root"), t=server("root"))
    put(place.home / ".claude/settings.json", {"disabledMcpjsonServers": ["s"]})
    assert place.tags() == {"v": "user", "t": "root"}


@pytest.mark.req("S3-55")
@pytest.mark.parametrize(
    "content",
    ["{broken", "[]", {"mcpServers": 7}, {"mcpServers": ["x"]}, b"\xff", "[" * 50_000],
    ids=lambda v: repr(v)[:20],
)
def test_malformed_file_is_skipped_with_a_warning(place: Place, content: Any) -> None:
    place.users(u=server("user"))
    path = put(place.repository / ".mcp.json", "" if isinstance(content, bytes) else content)
    if isinstance(content, bytes):
        path.write_bytes(content)
    assert place.tags() == {"u": "user"}
    assert [(fault.path, fault.kind) for fault in place.resolved()[1]] == [(str(path), SKIPPED)]


@pytest.mark.req("S3-55")
@pytest.mark.parametrize("bad", [{"nonsense": 1}, 5, None, {"command": 7}], ids=repr)
def test_malformed_server_is_skipped_alone(place: Place, bad: Any) -> None:
    place.theirs(place.repository, bad=bad, good=server("good"), far={"type": "http", "url": "http://127.0.0.1:1/"})
    servers, faults = place.resolved()
    assert set(servers) == {"good", "far"}
    assert ["'bad'" in fault.reason for fault in faults] == [True]


def test_oversize_server_file_is_not_read(place: Place) -> None:
    put(place.home / ".claude.json", json.dumps({"mcpServers": {"u": server("user")}}) + " " * (8 * 1024 * 1024))
    servers, faults = place.resolved()
    assert (servers, len(faults)) == ({}, 1)


def test_server_faults_contain_no_secret(place: Place) -> None:
    place.users(u=server("user"), bad={"env": {"TOKEN": SECRET}})
    put(place.repository / ".mcp.json", f'{{"mcpServers": {{"x": {{"env": "{SECRET}" broken')
    servers, faults = place.resolved()
    assert len(faults) == 2
    assert SECRET not in repr(faults)
    assert servers == {"u": server("user")}


# --- Whitelists ---


@pytest.mark.req("S3-05", "S3-08", "S3-54")
@pytest.mark.parametrize(
    ("allowed", "chosen"),
    [
        (None, ChosenServers(None)),
        ([], ChosenServers({})),
        (["a"], ChosenServers({"a": {"command": "a"}})),
        (["b", "nope", "a"], ChosenServers({"b": {"command": "b"}, "a": {"command": "a"}}, ("nope",))),
        (["A"], ChosenServers({}, ("A",))),
    ],
    ids=repr,
)
def test_whitelist_selects_known_servers(place: Place, allowed: list[str] | None, chosen: ChosenServers) -> None:
    place.users(a={"command": "a"}, b={"command": "b"})
    definition = Definition("x", {}, "/x.md", allowed_servers=None if allowed is None else tuple(allowed))
    agent = Agent("x", "claude", "/bin/claude", "global", definition=definition)
    assert servers_for(agent, str(place.deep), {"HOME": str(place.home)}) == chosen
