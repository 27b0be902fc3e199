"""The catalog and the real CLI find the same agents, except where a difference is intended."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from e2e.claude.comparison import Comparison, verify
from e2e.claude.setup import ENVIRONMENT, real_cli
from patience import PATIENCE

Make = Callable[[Path], Path]


def write(folder: Path, file: str, text: str | bytes) -> Path:
    path = folder / ".claude/agents" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def define(folder: Path, name: str, *more: str, file: str | None = None) -> Path:
    lines = ["---", f"name: {name}", f"description: {name} helps", *more, "---", "Help."]
    return write(folder, file or f"{name}.md", "\n".join(lines) + "\n")


def verified(cwd: Path, same: bool = True) -> Comparison:
    found = verify(real_cli(), cwd, plain_environment())
    assert found.equal == same, found
    return found


def differences(found: Comparison) -> dict[str, list[str]]:
    rows = {"only_claude": found.only_claude, "only_hocket": found.only_hocket, "models": found.models}
    return {side: [row["name"] for row in there] for side, there in rows.items() if there}


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


def test_a_folder_of_odd_definitions_is_read_as_the_cli_reads_it(project: Path) -> None:
    odd_folder(project)
    define(Path.home(), "of-the-user", "model: opus")
    define(Path.home(), "plain", "model: opus")
    found = verified(project)
    assert differences(found) == {}
    assert found.same > 40


def test_where_nobody_has_any_agents_nothing_differs(project: Path) -> None:
    assert verified(project).same == 0


def test_a_deprecated_definition_is_the_one_difference_and_is_meant(project: Path) -> None:
    define(project, "young")
    old = define(project, "old", file="old.deprecated.md")
    found = verified(project)
    assert (found.same, differences(found)) == (1, {"only_claude": ["old"]})
    (row,) = found.only_claude
    assert (row["expected"], row["path"], "deprecated" in row["reason"]) == (True, str(old), True)


# --- Places -------------------------------------------------------------------------------------------


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


def plain_environment() -> dict[str, str]:
    """With nobody to call, which the CLI would otherwise try for a long time."""
    return {**os.environ, **ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}


@pytest.mark.parametrize(("make", "expected"), PLACES, ids=[make.__name__ for make, _ in PLACES])
def test_hocket_finds_what_the_cli_finds(world: Path, make: Make, expected: set[str]) -> None:
    define(world / "user", "of-the-user")
    cwd = make(world)
    found = verified(cwd)
    assert differences(found) == {}
    assert found.same == len(expected | {"of-the-user"})


@pytest.mark.parametrize("make", [in_no_repository, with_a_plugin])
def test_moved_configuration_folder_is_read_by_both(world: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(world / "moved"))
    (world / "moved/agents").mkdir(parents=True)
    define(world / "user", "of-the-user").rename(world / "moved/agents/moved.md")
    found = verified(make(world))
    assert (found.same, differences(found)) == (3, {})


def test_what_others_could_put_above_a_directory_of_no_repository_is_a_difference_that_is_meant(world: Path) -> None:
    cwd = in_no_repository(world)
    cwd.parent.chmod(0o777)
    found = verified(cwd)
    assert (found.same, differences(found)) == (1, {"only_claude": ["a"]})
    assert (found.only_claude[0]["expected"], "repository" in found.only_claude[0]["reason"]) == (True, True)


@pytest.mark.parametrize("file", ["settings.json", "settings.local.json"])
def test_a_plugin_that_a_project_switches_off_is_off_for_both(world: Path, file: str) -> None:
    cwd = with_a_plugin(world)
    (cwd / ".claude").mkdir()
    (cwd / ".claude" / file).write_text(json.dumps({"enabledPlugins": {"plug@shop": False}}))
    found = verified(cwd)
    assert (found.same, differences(found)) == (0, {})


def test_what_only_we_refuse_is_a_difference_that_is_meant_and_has_its_file_and_reason(project: Path) -> None:
    paths = {
        "big": define(project, "big", f"x: {'y' * 70_000}", file="one.md"),
        "huge": write(project, "two.md", f"---\nname: huge\ndescription: {'y' * 300_000}\n---\n"),
        "a\tb": write(project, "three.md", '---\nname: "a\\tb"\ndescription: d\n---\n'),
    }
    found = verified(project)
    assert {row["name"]: row.get("path") for row in found.only_claude} == {k: str(v) for k, v in paths.items()}
    assert all(row["expected"] and row["reason"] for row in found.only_claude)


# --- Real collections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", ["wshobson+agents", "avivl+claude-007-agents"])
def test_a_real_collection_is_read_as_the_cli_reads_it(project: Path, collection: str) -> None:
    corpora = os.environ.get("HOCKET_CORPORA")
    if not corpora:
        pytest.skip("HOCKET_CORPORA names no collections of definitions")
    folder = project / ".claude/agents"
    folder.mkdir(parents=True)
    with tarfile.open(Path(corpora, "agents.tar.gz")) as archive:
        archive.extractall(folder, [one for one in archive if one.name.startswith(collection)], filter="data")
    found = verified(project)
    assert differences(found) == {}
    assert found.same > 20
