"""``hocket doctor --verify`` with the real CLI: its report is correct, and it changes nothing."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ENVIRONMENT, real_cli
from e2e.test_home_untouched import TRACE, remote_connections, touches
from patience import PATIENCE
from world import Hocket

from hocket.catalog.discovery import discover
from hocket.cli.agent_comparison import ClaudeUser, compare, list_built_in_agents, list_claude_agents
from hocket.providers.claude.listing import ARGUMENTS, REQUEST, Listed, agents_listed
from hocket.trust.check import configuration

Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def _cli(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))


def write(folder: Path, file: str, text: str | bytes) -> Path:
    path = folder / ".claude/agents" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def define(folder: Path, name: str, *more: str, file: str | None = None) -> Path:
    lines = ["---", f"name: {name}", f"description: {name} helps", *more, "---", "Help."]
    return write(folder, file or f"{name}.md", "\n".join(lines) + "\n")


def verified(hocket: Hocket, *args: str | Path, code: int = 0, **more: Any) -> dict[str, Any]:
    done = hocket("doctor", "--verify", "--json", *args, timeout=PATIENCE, **more)
    assert done.returncode == code, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["ok"] == (code == 0)
    found: dict[str, Any] = report["verify"]
    return found


def differences(found: Mapping[str, Any]) -> dict[str, list[str]]:
    rows = {side: [row["name"] for row in found[side]] for side in ("only_claude", "only_hocket", "models")}
    return {side: names for side, names in rows.items() if names}


# --- Equal --------------------------------------------------------------------------------------------------

HEADS: Mapping[str, str | bytes] = {
    "plain": "name: plain\ndescription: d",
    "upper": "name: UPPER\ndescription: d",
    "spaces": "name: two words\ndescription: d",
    "dots": "name: a.b.c\ndescription: d",
    "slash": "name: a/b\ndescription: d",
    "climbing": "name: ../evil\ndescription: d",
    "unicode": "name: Ünï-çødé\ndescription: d",
    "long": f"name: {'x' * 100}\ndescription: d",
    "quoted": 'name: "in quotes"\ndescription: d',
    "single": "name: 'it''s'\ndescription: d",
    "ampersand": "name: a & b (c)\ndescription: d",
    "number": "name: 123\ndescription: d",
    "number-quoted": 'name: "456"\ndescription: d',
    "float": "name: 1.5\ndescription: d",
    "bool": "name: true\ndescription: d",
    "null": "name: null\ndescription: d",
    "empty-name": 'name: ""\ndescription: d',
    "no-name": "description: d",
    "colon-name": "name: a:b\ndescription: d",
    "dash-name": "name: -dash\ndescription: d",
    "list-name": "name: [a, b]\ndescription: d",
    "no-description": "name: silent",
    "empty-description": 'name: silent2\ndescription: ""',
    "number-description": "name: silent3\ndescription: 5",
    "list-description": "name: silent4\ndescription: [a]",
    "colon-description": "name: chatty\ndescription: Use when: there is work: much of it",
    "hash": "name: hash\ndescription: d # not a comment to some",
    "dashes": "name: dashes\ndescription: a --- b",
    "folded": "name: folded\ndescription: >\n  one\n  two",
    "literal": "name: literal\ndescription: |\n  one\n  two",
    "examples": "name: examples\ndescription: Use it. <example>user: 'hi'</example>",
    "unclosed-quote": 'name: unclosed\ndescription: "begins and goes on',
    "percent": "name: percent\ndescription: %100 sure",
    "at": "name: at\ndescription: @you do it",
    "star": "name: star\ndescription: *bold* words",
    "bracket": "name: bracket\ndescription: [draft] words",
    "brace": "name: brace\ndescription: {draft} words",
    "twice": "name: first\nname: second\ndescription: d",
    "capital": "Name: capital\nDescription: d",
    "tab": "name: tab\ndescription: d\ntools:\n\t- Read",
    "tools-list": "name: tools-list\ndescription: d\ntools: [Read, Write]",
    "tools-map": "name: tools-map\ndescription: d\ntools: {a: 1}",
    "tools-text": "name: tools-text\ndescription: d\ntools: Read, Bash(git *)",
    "model-upper": "name: model-upper\ndescription: d\nmodel: Opus",
    "model-haiku": "name: model-haiku\ndescription: d\nmodel: haiku",
    "model-odd": "name: model-odd\ndescription: d\nmodel: banana",
    "model-number": "name: model-number\ndescription: d\nmodel: 5",
    "model-list": "name: model-list\ndescription: d\nmodel: [a]",
    "model-inherit": "name: model-inherit\ndescription: d\nmodel: Inherit",
    "model-spaces": 'name: model-spaces\ndescription: d\nmodel: " sonnet "',
    "model-empty": 'name: model-empty\ndescription: d\nmodel: ""',
    "mode-odd": "name: mode-odd\ndescription: d\npermissionMode: anything",
    "turns-odd": "name: turns-odd\ndescription: d\nmaxTurns: many",
    "servers-odd": "name: servers-odd\ndescription: d\nmcpServers: 7",
    "hooks-number": "name: hooks-number\ndescription: d\nhooks: 5",
    "hooks-list": "name: hooks-list\ndescription: d\nhooks: []",
    "unknown": "name: unknown\ndescription: d\ntags: a, b\nversion: 1.10\nnonsense: {a: [1, 2]}",
    "anchor": "name: &n anchored\ndescription: *n",
    "merge": "base: &b {description: d}\nname: merged\n<<: *b",
    "tag": "name: !!str tagged\ndescription: d",
    "document": "name: document\ndescription: d\n...\nmore: x",
    "invalid": b"name: invalid\ndescription: \xff\xfe d",
    "built-in": "name: Explore\ndescription: mine\nmodel: opus",
}
WHOLE: Mapping[str, str | bytes] = {
    "no-head.md": "Just words.\n",
    "README.md": "# Agents\n",
    "empty.md": "",
    "late.md": "\n\n---\nname: late\ndescription: d\n---\n",
    "unterminated.md": "---\nname: unterminated\ndescription: d\n",
    "toml.md": "+++\nname = 'toml'\n+++\n",
    "mark.md": b"\xef\xbb\xbf---\nname: marked\ndescription: d\n---\n",
    "crlf.md": b"---\r\nname: crlf\r\ndescription: d\r\n---\r\nbody\r\n",
    "long-close.md": "---\nname: long-close\ndescription: d\n--------\nbody\n",
    "no-body.md": "---\nname: no-body\ndescription: d\n---",
    ".hidden.md": "---\nname: hidden\ndescription: d\n---\n",
    "upper.MD": "---\nname: upper-end\ndescription: d\n---\n",
    "text.txt": "---\nname: text\ndescription: d\n---\n",
    "deep/er/nested.md": "---\nname: nested\ndescription: d\n---\n",
}


def odd_folder(project: Path) -> None:
    for file, head in HEADS.items():
        raw = head if isinstance(head, bytes) else head.encode()
        write(project, f"{file}.md", b"---\n" + raw + b"\n---\nbody\n")
    for file, text in WHOLE.items():
        write(project, file, text)
    agents = project / ".claude/agents"
    (agents / "linked.md").symlink_to(define(project.parent / "away", "linked"))
    (agents / "folder").symlink_to(define(project.parent / "far", "in-linked-folder").parent)


def test_verify_agrees_on_unusual_definitions(hocket: Hocket, project: Path) -> None:
    odd_folder(project)
    define(Path.home(), "of-the-user", "model: opus")
    define(Path.home(), "plain", "model: opus")
    found = verified(hocket)
    assert differences(found) == {}
    assert found["same"] > 40


def test_deprecated_definition_is_expected_difference(hocket: Hocket, project: Path) -> None:
    define(project, "young")
    old = define(project, "old", file="old.deprecated.md")
    found = verified(hocket)
    assert (found["same"], differences(found)) == (1, {"only_claude": ["old"]})
    (row,) = found["only_claude"]
    assert (row["expected"], row["path"], "deprecated" in row["reason"]) == (True, str(old), True)
    shown = hocket("doctor", "--verify", timeout=PATIENCE).stdout
    assert f"only Claude: old ({old})" in shown


# --- Catalogs of real directories ---------------------------------------------------------------------------


def git(cwd: Path, *args: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=cwd, check=True, timeout=PATIENCE)


def in_a_repository(world: Path) -> Path:
    define(world, "above")
    define(world / "repo", "root")
    define(world / "repo/sub", "sub")
    define(world / "repo", "both", "model: opus")
    define(world / "repo/sub", "both", "model: sonnet")
    git(world / "repo", "init", "-q")
    (world / "repo/sub/deeper").mkdir()
    return world / "repo/sub/deeper"


def in_no_repository(world: Path) -> Path:
    define(world / "a", "a")
    define(world / "a/b", "b")
    return world / "a/b"


def below_the_home(world: Path) -> Path:
    define(world, "above")
    define(world / "user/work", "work")
    return world / "user/work"


def at_home(world: Path) -> Path:
    return world / "user"


def in_a_second_checkout(world: Path) -> Path:
    first = world / "first"
    define(first, "of-the-first")
    git(first, "init", "-q")
    git(first, "commit", "-q", "--allow-empty", "-m", "x")
    git(first, "worktree", "add", "-q", str(world / "second"))
    define(world / "second/sub", "of-the-second")
    return world / "second/sub"


def with_a_plugin(world: Path) -> Path:
    shop, plugin = world / "shop", world / "shop/plug"
    (shop / ".claude-plugin").mkdir(parents=True)
    (plugin / ".claude-plugin").mkdir(parents=True)
    wares = {"name": "shop", "owner": {"name": "me"}, "plugins": [{"name": "plug", "source": "./plug"}]}
    (shop / ".claude-plugin/marketplace.json").write_text(json.dumps(wares))
    (plugin / ".claude-plugin/plugin.json").write_text(json.dumps({"name": "plug", "version": "1.0.0"}))
    for file in ("agents/one.md", "agents/sub/two.md"):
        (plugin / file).parent.mkdir(parents=True, exist_ok=True)
        (plugin / file).write_text("---\nname: helper\ndescription: d\n---\n")
    for words in (["marketplace", "add", str(shop)], ["install", "plug@shop"]):
        subprocess.run([real_cli(), "plugin", *words], check=True, timeout=PATIENCE, env=plain_environment(), cwd=world)
    (world / "p2").mkdir()
    return world / "p2"


PLACES: list[tuple[Make, set[str]]] = [
    (in_a_repository, {"root", "sub", "both"}),
    (in_no_repository, {"a", "b"}),
    (below_the_home, {"work"}),
    (at_home, set()),
    (in_a_second_checkout, {"of-the-first", "of-the-second"}),
    (with_a_plugin, {"plug:helper", "plug:sub:helper"}),
]


DIRECTORIES = [
    # A moved configuration folder matters most to plugins, which lie in it.
    pytest.param(
        *place, moved, id=f"{name}-{moved}", marks=[pytest.mark.slow] if moved and name != "with_a_plugin" else []
    )
    for place in PLACES
    for name in [place[0].__name__]
    for moved in (False, True)
]


def plain_environment() -> dict[str, str]:
    """With an unreachable service, because the CLI would retry for a long time."""
    return {**os.environ, **ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}


@pytest.mark.parametrize(("make", "expected", "moved"), DIRECTORIES)
def test_verify_lists_agents_as_cli_in_project(
    world: Path, monkeypatch: pytest.MonkeyPatch, make: Make, expected: set[str], moved: bool
) -> None:
    define(world / "user", "of-the-user")
    if moved:
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(world / "moved"))
        (world / "moved/agents").mkdir(parents=True)
        shutil.copy(world / "user/.claude/agents/of-the-user.md", world / "moved/agents/moved.md")
    cwd = make(world)
    stand_in = list_claude_agents(str(real_cli()), str(cwd), ClaudeUser.of(os.environ, str(cwd)), os.environ)
    done = subprocess.run(
        [real_cli(), *ARGUMENTS],
        input=REQUEST,
        cwd=cwd,
        env=plain_environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert stand_in == agents_listed(done.stdout)
    assert {agent.name for agent in stand_in} >= expected | {"of-the-user"}
    approvals, _ = configuration(str(cwd), str(world / "h"), os.environ)
    catalog = discover(str(cwd), os.environ, str(world / "h"), approvals.config, approvals)
    found = compare(catalog, stand_in, built_in())
    assert (found.only_claude, found.only_hocket, found.models) == ([], [], [])


@functools.cache
def built_in() -> list[Listed]:
    """The CLI's own agents. Called within a test, whose environment has no user's files."""
    return list_built_in_agents(str(real_cli()), dict(os.environ))


def test_writable_folder_above_is_expected_difference(hocket: Hocket, world: Path) -> None:
    cwd = in_no_repository(world)
    cwd.parent.chmod(0o777)
    found = verified(hocket, "--project", cwd)
    assert (found["same"], differences(found)) == (1, {"only_claude": ["a"]})
    assert (found["only_claude"][0]["expected"], "repository" in found["only_claude"][0]["reason"]) == (True, True)


def test_plugin_disabled_by_project_is_no_difference(hocket: Hocket, world: Path) -> None:
    cwd = with_a_plugin(world)
    (cwd / ".claude").mkdir()
    (cwd / ".claude/settings.local.json").write_text(json.dumps({"enabledPlugins": {"plug@shop": False}}))
    found = verified(hocket, "--project", cwd)
    assert (found["same"], differences(found)) == (0, {})


def test_definition_refused_by_hocket_is_expected_difference(hocket: Hocket, project: Path) -> None:
    paths = {
        "big": define(project, "big", f"x: {'y' * 70_000}", file="one.md"),
        "huge": write(project, "two.md", f"---\nname: huge\ndescription: {'y' * 300_000}\n---\n"),
        "a\tb": write(project, "three.md", '---\nname: "a\\tb"\ndescription: d\n---\n'),
    }
    found = verified(hocket)
    assert {row["name"]: row.get("path") for row in found["only_claude"]} == {k: str(v) for k, v in paths.items()}
    assert all(row["expected"] and row["reason"] for row in found["only_claude"])


# --- No side effects ----------------------------------------------------------------------------------------


def set_traps(project: Path, traces: Path) -> None:
    """Let every project file that can start a program leave a trace."""
    (project / ".claude").mkdir(exist_ok=True)

    def command(name: str) -> str:
        return f"touch {traces / name}"

    events = ("SessionStart", "SessionEnd", "Setup", "Stop", "InstructionsLoaded")
    settings = {
        "hooks": {event: [{"hooks": [{"type": "command", "command": command(event)}]}] for event in events},
        "apiKeyHelper": command("key"),
        "awsAuthRefresh": command("aws"),
        "otelHeadersHelper": command("otel"),
        "statusLine": {"type": "command", "command": command("status")},
        "enableAllProjectMcpServers": True,
        "env": {"LD_PRELOAD": str(traces / "preload.so"), "PATH": f"{project / 'bin'}:/usr/bin:/bin"},
    }
    for name in ("settings.json", "settings.local.json"):
        (project / ".claude" / name).write_text(json.dumps(settings))
    server = {"command": "/bin/sh", "args": ["-c", command("server")]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))


def test_traps_detect_cli_started_in_project(project: Path, tmp_path: Path) -> None:
    set_traps(project, tmp_path)
    subprocess.run(
        [real_cli(), "-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"],
        input=REQUEST, cwd=project, env=plain_environment(), capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert {"SessionStart", "key", "server"} <= {path.name for path in tmp_path.iterdir()}


def test_verify_runs_writes_and_connects_to_nothing(hocket: Hocket, world: Path, project: Path, tmp_path: Path) -> None:
    set_traps(project, tmp_path)
    git(project, "init", "-q")
    define(project, "mine")
    define(Path.home(), "of-the-user")
    (Path.home() / ".claude/settings.json").write_text(json.dumps({"apiKeyHelper": f"touch {tmp_path / 'own'}"}))
    before = snapshot(world)
    command = [*TRACE, str(world / "trace"), sys.executable, "-m", "hocket"]
    done = hocket("doctor", "--verify", "--json", command=command, timeout=PATIENCE)
    assert json.loads(done.stdout)["verify"]["same"] == 2
    lines = (world / "trace").read_text(errors="replace").splitlines()
    (world / "trace").unlink()
    assert snapshot(world) == before
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in {str(touch.path.parent) for touch in touches(lines)}, "a trap was looked up"
    assert remote_connections(lines) == set()


def snapshot(world: Path) -> dict[str, tuple[int, int]]:
    """Every file below a world, with when and how it was last written."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in world.rglob("*")
        if path.is_file() and not path.is_relative_to(world / "h")
    }


# --- Real collections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", ["wshobson+agents", "avivl+claude-007-agents"])
def test_verify_agrees_on_real_collections(hocket: Hocket, project: Path, collection: str) -> None:
    corpora = os.environ.get("HOCKET_CORPORA")
    if not corpora:
        pytest.skip("HOCKET_CORPORA names no collections of definitions")
    folder = project / ".claude/agents"
    folder.mkdir(parents=True)
    with tarfile.open(Path(corpora, "agents.tar.gz")) as archive:
        archive.extractall(folder, [one for one in archive if one.name.startswith(collection)], filter="data")
    found = verified(hocket)
    assert differences(found) == {}
    assert found["same"] > 20
