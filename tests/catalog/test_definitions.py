"""Finding and reading the files that describe agents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hocket.catalog import definitions
from hocket.catalog.definitions import (
    WIDENING,
    Found,
    asks_for,
    check_project,
    find,
    find_in,
    is_claude_agent_path,
    names,
    names_in,
    parse_claude_path,
    projects,
    read_definition,
    skipped,
    users_folder,
    widening,
)
from hocket.config import PERMISSION_MODES
from hocket.errors import BadDefinition, BadDirectory, UsageError


def put(path: Path, head: str = "", body: str = "Body.") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{head}\n---\n{body}\n")
    return path


def agent(folder: Path, name: str, file: str | None = None, more: str = "") -> Path:
    return put(folder / ".claude" / "agents" / (file or f"{name}.md"), f"name: {name}\ndescription: d\n{more}")


def fields(tmp_path: Path, more: str) -> dict[str, Any]:
    return dict(read_definition(str(agent(tmp_path, "a", more=more))).fields)


def refused(path: Path, **more: Any) -> BadDefinition:
    with pytest.raises(BadDefinition) as caught:
        read_definition(str(path), **more)
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.message
    return caught.value


# --- Paths --------------------------------------------------------------------------------------------------


@pytest.mark.req("S1-01", "S1-03", "S1-15")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/p/.claude/agents/x", True),
        ("/p/.claude//agents/./x", True),
        ("/p/.claude/agents/a/b", True),
        ("/p/.claude/x", False),
        ("/p/claude/agents/x", False),
        ("/p/.claude/agents2/x", False),
    ],
)
def test_claude_agents_are_known_by_their_path(path: str, expected: bool) -> None:
    assert is_claude_agent_path(path) is expected


@pytest.mark.req("S1-05", "S1-06", "S1-07", "S1-16", "S1-18")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/p/q/.claude/agents/reviewer", ("/p/q", "reviewer")),
        ("/p/q/.claude/agents/reviewer.md", ("/p/q", "reviewer")),
        ("/a/.claude/agents/b/.claude/agents/name", ("/a/.claude/agents/b", "name")),
        ("/.claude/agents/x", ("/", "x")),
        ("/p//.claude/./agents//x_-9", ("/p", "x_-9")),
        ("/p/../q/.claude/agents/x", ("/p/../q", "x")),
        ("/p/.claude/x/../agents/y", ("/p", "y")),
        ("/p/.claude/agents/../agents/y", ("/p", "y")),
        ("/usr/bin/my-tool", None),
        ("/p/.claude/agents", None),
    ],
)
def test_a_path_gives_its_project_and_its_name(path: str, expected: tuple[str, str] | None) -> None:
    assert parse_claude_path(path) == expected


@pytest.mark.req("S1-19", "S1-20")
@pytest.mark.parametrize(
    "rest", ["a/b", "a b", "a.b", "x.md.md", "", ".md", "n" * 65, "\u00e9", "a\n", "a:b", "../x/y"]
)
def test_what_is_not_one_simple_name_is_an_error_and_no_program(rest: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_claude_path(f"/p/.claude/agents/{rest}" if rest != "../x/y" else "/p/.claude/agents/x/../y/z")
    assert caught.value.exit_code == 2


@pytest.mark.req("S1-21")
def test_a_missing_project_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadDirectory, match=f"{tmp_path}/gone does not exist"):
        check_project(f"{tmp_path}/gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadDirectory, match="is not a directory"):
        check_project(f"{tmp_path}/file")


@pytest.mark.req("S1-13")
def test_a_project_is_spelled_plainly_unless_a_link_makes_that_another_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    assert check_project(f"{tmp_path}/a/../p") == f"{tmp_path}/p"
    assert check_project(f"{tmp_path}/link/..") == f"{tmp_path}/deep"


# --- Finding ------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-03")
def test_the_nearest_project_wins_up_to_the_repositorys_root_then_the_users_own(tmp_path: Path) -> None:
    root, home = tmp_path / "repo", tmp_path / "home"
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    (root / ".git").mkdir()
    env = {"HOME": str(home)}
    above, own = agent(tmp_path, "above"), agent(home, "x")
    assert find("x", str(inner), env) == Found(str(own), None)
    top = agent(root, "x")
    assert find("x", str(inner), env) == Found(str(top), str(root))
    near = agent(root / "a", "x")
    assert find("x", str(inner), env) == Found(str(near), str(root / "a"))
    assert (find("above", str(inner), env), find("nobody", str(inner), env)) == (None, None)
    assert above.exists()
    assert names(str(inner), env) == ["x"]


def test_outside_of_a_repository_only_the_directory_itself_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a"
    inner.mkdir()
    agent(tmp_path, "left-here")
    mine = agent(inner, "mine")
    assert projects(str(inner)) == [str(inner)]
    assert find("left-here", str(inner), {}) is None
    assert find("mine", str(inner), {}) == Found(str(mine), str(inner))


def test_a_worktrees_git_file_ends_the_walk_as_well(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "a").mkdir()
    assert projects(str(tmp_path / "a")) == [str(tmp_path / "a"), str(tmp_path)]


def test_the_users_folder_may_be_moved(tmp_path: Path) -> None:
    moved = put(tmp_path / "cfg" / "agents" / "x.md", "name: x\ndescription: d")
    env = {"HOME": str(tmp_path / "home"), "CLAUDE_CONFIG_DIR": str(tmp_path / "cfg")}
    agent(tmp_path / "home", "y")
    assert find("x", str(tmp_path), env) == Found(str(moved), None)
    assert find("y", str(tmp_path), env) is None
    assert users_folder(str(tmp_path), {"CLAUDE_CONFIG_DIR": "cfg"}) == str(tmp_path / "cfg" / "agents")
    assert users_folder(str(tmp_path), {}) is None


def test_the_users_own_folder_is_no_project_even_when_one_stands_in_it(tmp_path: Path) -> None:
    own = agent(tmp_path, "x")
    assert find("x", str(tmp_path), {"HOME": str(tmp_path)}) == Found(str(own), None)


@pytest.mark.req("S4-13")
def test_the_head_gives_the_name_in_any_depth_and_case_counts(tmp_path: Path) -> None:
    deep = agent(tmp_path, "real", "sub/deep/file.md")
    escaped = agent(tmp_path, '"\\x71uoted"', "q.md")
    folder = str(tmp_path / ".claude" / "agents")
    assert find_in(folder, "real") == str(deep)
    assert find_in(folder, "quoted") == str(escaped)
    assert [find_in(folder, name) for name in ("file", "Real", "REAL", "rea")] == [None] * 4
    agent(tmp_path, "Real", "upper.md")
    assert names_in(folder) == ["Real", "quoted", "real"]


@pytest.mark.req("S4-04")
def test_only_definitions_that_the_cli_loads_and_nobody_retired_are_found(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "agents"
    agent(tmp_path, "good")
    agent(tmp_path, "hidden", ".hidden.md")
    for name, file in [("old", "x.deprecated.md"), ("older", "y.md.deprecated"), ("text", "z.txt"), ("up", "u.MD")]:
        agent(tmp_path, name, file)
    for number, head in enumerate(
        [
            *("description: d", "name:\ndescription: d", "name: 12\ndescription: d", "name: a:b\ndescription: d"),
            *('name: "-a"\ndescription: d', "name: a", "name: a\ndescription: [x]", 'name: a\ndescription: ""'),
            *(
                'name: "a\\nb"\ndescription: d',
                "name: a\ndescription: d\nhooks: 5",
                f"name: {'n' * 257}\ndescription: d",
            ),
        ]
    ):
        put(folder / f"bad{number}.md", head)
    (folder / "none.md").write_text("# no head\nname: none\n")
    assert names_in(str(folder)) == ["good", "hidden"]


def test_links_are_followed_once_and_special_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "agents"
    agent(tmp_path, "good")
    (folder / "round").symlink_to(".")
    linked = put(tmp_path / "dotfiles" / "linked.md", "name: linked\ndescription: d")
    (folder / "link.md").symlink_to(linked)
    (folder / "dir").symlink_to(tmp_path / "dotfiles")
    (folder / "gone.md").symlink_to("nowhere")
    (folder / "dev.md").symlink_to("/dev/zero")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "fifo.md")
    with (folder / "huge.md").open("w") as file:
        file.write("---\nname: huge\ndescription: d\n---\n")
        file.truncate(1024**3)
    assert names_in(str(folder)) == ["good", "linked"]
    assert find_in(str(folder), "linked") == str(folder / "link.md")


def test_a_strange_folder_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MAX_FILES", 3)
    for number in range(5):
        agent(tmp_path, f"n{number}")
    assert names_in(str(tmp_path / ".claude" / "agents")) == ["n0", "n1", "n2"]


@pytest.mark.req("S4-36", "S4-37")
def test_names_are_read_from_heads_however_long_the_body_is(tmp_path: Path) -> None:
    put(tmp_path / "long.md", f"name: long\ndescription: {'x' * 30_000}", "b" * 200_000)
    assert names_in(str(tmp_path)) == ["long"]


def test_a_file_that_is_not_used_can_say_why(tmp_path: Path) -> None:
    bad = put(tmp_path / ".claude" / "agents" / "bad.md", "name: bad")
    found = skipped("bad", str(tmp_path), {})
    assert found is not None
    assert found.message == f"{bad}, line 1: has no description that is a text"
    agent(tmp_path, "good")
    assert (skipped("good", str(tmp_path), {}), skipped("nobody", str(tmp_path), {})) == (None, None)


# --- Reading ------------------------------------------------------------------------------------------------


def test_a_definition_has_what_the_cli_understands_and_its_body(tmp_path: Path) -> None:
    path = put(
        tmp_path / "file.md",
        "name: rev\ndescription: Looks\\nhard\nmodel: opus\ncolor: red\ntags: [x]\ntools: Read, Bash(git *)\n"
        "disallowedTools: [Write]\npermissionMode: plan\nmaxTurns: 3\nskills: a, b\neffort: high\nbackground: true\n"
        "isolation: worktree\nmemory: user\ninitialPrompt: Go\nmcpServers: [one, {two: {command: x}}]\n"
        "hooks: {Stop: [{hooks: [{type: command, command: x}]}]}",
        "You look.",
    )
    found = read_definition(str(path))
    assert (found.name, found.path) == ("rev", str(path))
    assert found.fields == {
        "description": "Looks\nhard",
        "tools": ["Read", "Bash(git *)"],
        "disallowedTools": ["Write"],
        "model": "opus",
        "permissionMode": "plan",
        "mcpServers": ["one", {"two": {"command": "x"}}],
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]},
        "maxTurns": 3,
        "skills": ["a", "b"],
        "initialPrompt": "Go",
        "memory": "user",
        "effort": "high",
        "background": True,
        "isolation": "worktree",
        "prompt": "You look.",
    }


@pytest.mark.parametrize(
    "line",
    [
        *("model: 5", "model:", "permissionMode: everything", "maxTurns: many", "maxTurns: 0", "maxTurns: true"),
        *("effort: banana", "effort: 1.5", "background: 'yes'", "isolation: none", "memory: x", "initialPrompt: 5"),
        *("mcpServers: 7", "mcpServers: {a: {command: x}}", "mcpServers: [5, {a: b}]", "skills: 5", "hooks:"),
        *("hooks: {Foo: bar}", "hooks: {Stop: [{}]}", "hooks: {}", "color: red", "whatever: 1"),
    ],
)
def test_a_field_that_the_cli_would_stumble_over_is_left_out(tmp_path: Path, line: str) -> None:
    assert fields(tmp_path, line) == {"description": "d", "prompt": "Body."}


@pytest.mark.parametrize(
    ("line", "tools"),
    [("tools:", []), ('tools: ""', []), ("tools: []", []), ("tools: {a: 1}", []), ("tools: *", ["*"]), ("x: 1", None)],
)
def test_no_tools_are_another_thing_than_no_word_about_tools(
    tmp_path: Path, line: str, tools: list[str] | None
) -> None:
    assert fields(tmp_path, line).get("tools") == tools


@pytest.mark.parametrize(
    ("head", "line", "words"),
    [
        ("name: a\ndescription: d\nhooks: 5", 4, "hooks"),
        ("model: x\nname: 12\ndescription: d", 3, "not a text"),
        ("name: a:b\ndescription: d", 2, "colon"),
        ("name: a\ndescription: one\ntwo", 4, "is not YAML"),
    ],
)
def test_a_bad_definition_names_file_line_and_reason(tmp_path: Path, head: str, line: int, words: str) -> None:
    error = refused(put(tmp_path / "a.md", head))
    assert f", line {line}: " in error.message
    assert words in error.message


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "large", "device"])
def test_only_regular_files_of_a_sane_size_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.md"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        put(path, "name: a\ndescription: d", "x" * 300_000)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    refused(path)


@pytest.mark.req("S1-06", "S1-07")
def test_a_file_named_by_its_path_goes_by_that_name_where_it_gives_none(tmp_path: Path) -> None:
    bare = tmp_path / "bare.md"
    bare.write_text("You are bare.\n")
    found = read_definition(str(bare), stem="bare")
    assert (found.name, found.fields) == ("bare", {"description": "bare", "prompt": "You are bare."})
    assert read_definition(str(put(tmp_path / "b.md", "description: d")), stem="b").name == "b"
    assert read_definition(str(put(tmp_path / "c.md", "name: real")), stem="c").fields["description"] == "c"
    assert read_definition(str(put(tmp_path / "d.md", "name: real\ndescription: d")), stem="d").name == "real"


@pytest.mark.parametrize("content", ["", " \n", "---\nname: a\n", "---\nname: a\nx: b: c: d\n  y\n---\n"])
def test_a_head_that_cannot_be_read_is_an_error_even_then(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(content)
    refused(path, stem="a")


def test_what_only_a_trusted_folder_may_have_is_told_in_words(tmp_path: Path) -> None:
    more = "hooks: {Stop: [{hooks: []}]}\nmcpServers: [one, {two: {command: x}}]\npermissionMode: bypassPermissions"
    greedy = read_definition(str(agent(tmp_path, "a", more=more)))
    assert asks_for(greedy) == ["hooks (Stop)", "MCP servers (one, two)", "permission mode bypassPermissions"]
    assert len(asks_for(greedy, own_mode=False)) == 2
    assert asks_for(read_definition(str(agent(tmp_path, "b", more="permissionMode: plan\ntools: Bash")))) == []
    judged = read_definition(str(agent(tmp_path, "c", more="permissionMode: auto")))
    assert asks_for(judged) == ["permission mode auto"]


# --- Arguments ----------------------------------------------------------------------------------------------

FLAGS = [(flag.replace("*", "rest"), reason) for reason, flags in WIDENING.items() for flag in flags]


@pytest.mark.parametrize(("flag", "reason"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_a_flag_that_widens_is_found_however_it_is_written(flag: str, reason: str) -> None:
    for args in ([flag], [flag, "value"], [f"{flag}=value"], ["word", "--model", "x", flag], ["--tools", flag]):
        assert widening(args, "acceptEdits") == (flag, reason)


@pytest.mark.parametrize("letters", ["-c", "-r", "-rID", "-w", "-pc", "-pvr", "-hpwname"])
def test_short_flags_that_widen_are_found_among_others(letters: str) -> None:
    found = widening([letters], "acceptEdits")
    assert found is not None
    assert found.argument == letters


@pytest.mark.parametrize(
    "args",
    [
        ["--model", "haiku"],
        ["--max-turns", "5", "--max-budget-usd=2"],
        ["--effort", "high", "--verbose"],
        ["--append-system-prompt", "- create, - write"],
        ["--append-system-prompt", "use --settings and --resume with care"],
        ["--tools", "Read,Grep"],
        ["--disallowedTools", "Bash", "--disallowed-tools", "Edit"],
        ["--strict-mcp-config", "--no-chrome", "--disable-slash-commands"],
        ["--careful", "--target=linux", "-q", "-n", "crew", "-d", "-", ""],
        ["resume", "continue", "settings", "a=--resume"],
        ["--permission-mode", "acceptEdits"],
    ],
    ids=" ".join,
)
def test_what_only_shapes_the_work_may_come_from_anybody(args: list[str]) -> None:
    assert widening(args, "acceptEdits") is None


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    ("mode", "fits"),
    [
        ("plan", ["plan"]),
        ("dontAsk", ["plan", "dontAsk"]),
        ("default", ["plan", "dontAsk", "default", "manual"]),
        ("manual", ["plan", "dontAsk", "default", "manual"]),
        ("acceptEdits", ["plan", "dontAsk", "default", "manual", "acceptEdits"]),
        ("auto", ["plan", "dontAsk", "default", "manual", "acceptEdits", "auto"]),
        ("bypassPermissions", PERMISSION_MODES),
    ],
)
def test_a_permission_mode_may_be_narrowed_and_not_widened(mode: str, fits: Sequence[str], joined: bool) -> None:
    for wanted in (*PERMISSION_MODES, "modeOfTomorrow", ""):
        args = [f"--permission-mode={wanted}"] if joined else ["--permission-mode", wanted]
        assert (widening(args, mode) is None) == (wanted in fits)
    assert widening(["--permission-mode"], mode) is not None


def test_every_permission_mode_has_its_place_among_the_others() -> None:
    assert all(widening(["--permission-mode", mode], "bypassPermissions") is None for mode in PERMISSION_MODES)


@pytest.mark.parametrize(
    ("before", "args", "found"),
    [
        (["--allowedTools", "Read"], ["Bash"], True),
        (["--verbose", "--mcp-config", "mine.json"], ["theirs.json"], True),
        (["--allowedTools", "Read"], ["--verbose", "Bash"], False),
        (["--allowedTools", "Read", "--verbose"], ["Bash"], False),
        (["--tools", "Read"], ["Bash"], False),
        (["--allowedTools", "Read"], [], False),
        ([], ["Bash"], False),
    ],
)
def test_a_word_that_goes_on_with_a_widening_list_of_somebody_else_s_is_found(
    before: list[str], args: list[str], found: bool
) -> None:
    assert (widening(args, "acceptEdits", before) is not None) == found
