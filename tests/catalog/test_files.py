"""Paths that name an agent, and the definitions and problems found below a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from catalog.definition_writing import put

from hocket.catalog import files
from hocket.catalog.entries import LIBRARY, PROJECT, Found, Problem
from hocket.catalog.file_probe import ABSENT, FileProbe
from hocket.catalog.files import check_project, scan
from hocket.errors import BadDirectory, UsageError
from hocket.providers.claude.paths import is_definition_path, parse_definition_path, user_folder
from hocket.providers.definition_files import HIDDEN, LINKED, LOADED_DESPITE_ERRORS, ODD, REFUSED, SKIPPED


def define(folder: Path, file: str, name: str | None = None, more: str = "") -> Path:
    return put(folder / file, f"name: {name or Path(file).stem}\ndescription: d\n{more}")


def scanned(folder: Path, source: str = PROJECT) -> Found:
    return scan(FileProbe(), str(folder), source)


def names(found: Found) -> list[str]:
    return [entry.name for entry in found.entries]


def only(folder: Path, source: str = PROJECT) -> Problem:
    """The one problem of a folder."""
    (problem,) = scanned(folder, source).problems
    return problem


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
def test_definition_path_is_recognised(path: str, expected: bool) -> None:
    assert is_definition_path(path) is expected


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
def test_definition_path_has_project_and_name(path: str, expected: tuple[str, str] | None) -> None:
    assert parse_definition_path(path) == expected


@pytest.mark.req("S1-19", "S1-20")
@pytest.mark.parametrize(
    "rest", ["a/b", "a b", "a.b", "x.md.md", "", ".md", "n" * 65, "\u00e9", "a\n", "a:b", "../x/y"]
)
def test_definition_path_with_invalid_name_is_refused(rest: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_definition_path(f"/p/.claude/agents/{rest}" if rest != "../x/y" else "/p/.claude/agents/x/../y/z")
    assert caught.value.exit_code == 2


@pytest.mark.req("S1-21")
def test_missing_project_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadDirectory, match=f"{tmp_path}/gone does not exist"):
        check_project(f"{tmp_path}/gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadDirectory, match="is not a directory"):
        check_project(f"{tmp_path}/file")


@pytest.mark.req("S1-13")
def test_project_path_is_normalised_across_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    assert check_project(f"{tmp_path}/a/../p") == f"{tmp_path}/p"
    assert check_project(f"{tmp_path}/link/..") == f"{tmp_path}/deep"


def test_user_folder_follows_the_environment() -> None:
    assert user_folder("/p", {"HOME": "/h"}) == "/h/.claude/agents"
    assert user_folder("/p", {"HOME": "/h", "CLAUDE_CONFIG_DIR": "/c"}) == "/c/agents"
    assert user_folder("/p", {"CLAUDE_CONFIG_DIR": "cfg"}) == "/p/cfg/agents"
    assert user_folder("/p", {}) is None


# --- Walking ------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-03", "S4-13", "S4-51")
def test_nested_definitions_are_named_by_frontmatter(tmp_path: Path) -> None:
    define(tmp_path, "z/deep/er/file.md", "deep")
    define(tmp_path, "b.md", "upper")
    define(tmp_path, "a.md", "Upper")
    define(tmp_path, "a/.hidden.md", "hidden")
    found = scanned(tmp_path)
    assert names(found) == ["Upper", "upper", "hidden", "deep"]
    assert found.entries[3].path == str(tmp_path / "z/deep/er/file.md")
    assert found.problems == ()


def test_other_files_are_ignored(tmp_path: Path) -> None:
    for file in ("z.txt", "u.MD", "x.md.bak", "x.deprecated", "notes", "x.md~"):
        define(tmp_path, file)
    assert scanned(tmp_path)[1:] == ((), ())


def test_links_are_followed_once_and_reported(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "agents", tmp_path / "dotfiles"
    define(folder, "good.md")
    define(elsewhere, "linked.md")
    define(elsewhere / "deep", "far.md")
    (folder / "link.md").symlink_to(elsewhere / "linked.md")
    (folder / "more").symlink_to(elsewhere / "deep")
    (folder / "round").symlink_to(".")
    found = scanned(folder)
    assert names(found) == ["good", "linked", "far"]
    assert [(problem.path, problem.kind, problem.cli_loads) for problem in found.problems] == [
        (str(folder / "link.md"), LINKED, True),
        (str(folder / "more"), LINKED, True),
        (str(folder / "round"), LINKED, True),
    ]
    assert found.problems[0].reason == f"is a link to {elsewhere / 'linked.md'}"


def test_broken_links_are_recorded_as_absent(tmp_path: Path) -> None:
    folder, look = tmp_path / "agents", FileProbe()
    folder.mkdir()
    links = [folder / name for name in ("later", "later.md", "notes.txt", os.fsdecode(b"\xff"))]
    for link in links:
        link.symlink_to(tmp_path / "nowhere")
    scan(look, str(folder), PROJECT)
    assert {look.seen.get(str(link)) for link in links} == {ABSENT}


def test_linked_folder_is_reported_once(tmp_path: Path) -> None:
    define(tmp_path / "real", "a.md")
    (tmp_path / "agents").symlink_to("real")
    problem = only(tmp_path / "agents")
    assert (problem.path, problem.kind) == (str(tmp_path / "agents"), LINKED)


def test_real_folder_comes_before_its_link(tmp_path: Path) -> None:
    define(tmp_path / "z", "a.md")
    (tmp_path / "link").symlink_to("z")
    assert scanned(tmp_path).entries[0].path == str(tmp_path / "z/a.md")


def test_link_to_other_file_names_its_target(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0:0\n")
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "shadow.md").symlink_to(tmp_path / "secret")
    problem = only(folder)
    assert (problem.kind, problem.cli_loads) == (SKIPPED, False)
    assert problem.reason == f"does not begin with a line of three dashes (a link to {tmp_path / 'secret'})"


def test_special_files_are_skipped_unopened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.md")
    (tmp_path / "dev.md").symlink_to("/dev/zero")
    (tmp_path / "gone.md").symlink_to("nowhere")
    (tmp_path / "loop.md").symlink_to("loop.md")
    (tmp_path / "dir.md").mkdir()
    define(tmp_path / "dir.md", "inside.md")
    found = scanned(tmp_path)
    assert names(found) == ["inside"]
    assert {Path(problem.path).name: problem.reason for problem in found.problems} == {
        "dev.md": "is a device, not a file (a link to /dev/zero)",
        "dir.md": "is a directory, not a file",
        "fifo.md": "is a FIFO, not a file",
        "gone.md": "is a broken link",
        "loop.md": "is a broken link",
    }
    assert not any(problem.cli_loads for problem in found.problems)


def test_invalid_utf8_file_name_is_reported(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.md")
    define(tmp_path, name, "a")
    (tmp_path / os.fsdecode(b"d\xe9")).mkdir()
    found = scanned(tmp_path)
    assert found.entries == ()
    assert [problem.path for problem in found.problems] == [f"{tmp_path}/caf\ufffd.md", f"{tmp_path}/d\ufffd"]


def test_number_of_scanned_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 3)
    for number in range(5):
        define(tmp_path, f"n{number}.md")
    found = scanned(tmp_path)
    assert names(found) == ["n0", "n1", "n2"]
    assert (found.problems[0].path, found.problems[0].cli_loads) == (str(tmp_path), True)


# --- Judging ------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-04")
def test_deprecated_files_are_hidden(tmp_path: Path) -> None:
    define(tmp_path, "good.md")
    define(tmp_path, "x.deprecated.md", "x")
    define(tmp_path, "y.md.deprecated", "y")
    (tmp_path / "z.deprecated.md").write_text("no head")
    define(tmp_path / "dir.deprecated", "kept.md")
    found = scanned(tmp_path)
    assert names(found) == ["good", "kept"]
    assert [(Path(problem.path).name, problem.kind, problem.cli_loads) for problem in found.problems] == [
        ("x.deprecated.md", HIDDEN, True),
        ("y.md.deprecated", HIDDEN, False),
        ("z.deprecated.md", SKIPPED, False),
    ]
    assert "it describes 'x'" in found.problems[0].reason


@pytest.mark.req("S4-06", "S4-44", "S4-48")
@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"", 1, "is empty"),
        (b"# Read me\n", 1, "does not begin"),
        (b"\n---\nname: a\ndescription: d\n---\n", 1, "does not begin"),
        (b"---\nname: a\ndescription: d\n", 1, "no closing"),
        (b"---\ndescription: d\n---\n", 1, "has no name"),
        (b"---\nname: 12\ndescription: d\n---\n", 2, "not a string"),
        (b"---\nx: 1\nname: a:b\ndescription: d\n---\n", 3, "colon"),
        (b"---\nname: a\ndescription: d\nhooks: 5\n---\n", 4, "hooks"),
        (b"---\nname: a\ndescription: one\ntwo\n---\n", 4, "is not YAML"),
        (b"---\n- a\n---\n", 2, "is not a mapping"),
    ],
)
def test_invalid_definition_is_skipped_with_its_reason(tmp_path: Path, content: bytes, line: int, words: str) -> None:
    define(tmp_path, "good.md")
    (tmp_path / "bad.md").write_bytes(content)
    assert names(scanned(tmp_path)) == ["good"]
    problem = only(tmp_path)
    assert (problem.path, problem.line) == (str(tmp_path / "bad.md"), line)
    assert (problem.kind, problem.cli_loads) == (SKIPPED, False)
    assert words in problem.reason


GOOD = b"---\nname: a\ndescription: d\n"


@pytest.mark.parametrize(
    ("content", "words", "cli_loads"),
    [
        (GOOD + b"---\n" + b"x" * 300_000, "larger than 256 kB", True),
        (GOOD + b"---\n" + b"x" * 1_100_000, "larger than 256 kB", False),
        (GOOD + b"x: " + b"y" * 70_000 + b"\n---\n", "frontmatter is larger than 64 kB", True),
        (GOOD + b"x: " + b"y" * 300_000 + b"\n---\n", "larger than 256 kB", True),
        (GOOD + b"x: " + b"[" * 21 + b"]" * 21 + b"\n---\n", "nested more than 20", True),
        (GOOD + b"x: " + b"[" * 60_000 + b"\n---\n", "nested more than 20", True),
        (GOOD + b"a: &a x\nb: [" + b"*a, " * 1001 + b"]\n---\n", "more than 1000 values by aliases", True),
        (GOOD.replace(b"a\n", b'"a\\tb"\n') + b"---\n", "control character", True),
    ],
)
def test_refused_file_says_if_cli_loads_it(tmp_path: Path, content: bytes, words: str, cli_loads: bool) -> None:
    (tmp_path / "a.md").write_bytes(content)
    problem = only(tmp_path)
    assert (problem.kind, problem.cli_loads) == (REFUSED, cli_loads)
    assert words in problem.reason


def test_alias_bomb_is_refused_by_hocket_alone(tmp_path: Path) -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    put(tmp_path / "bomb.md", "\n".join(["name: bomb", "description: d", "l0: &l0 [a, b]", *levels]))
    problem = only(tmp_path)
    assert (problem.kind, problem.cli_loads, problem.line) == (REFUSED, True, 7)


def test_invalid_yaml_that_cli_loads_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "a.md", "name: a\ndescription: Use when: x")
    assert names(scanned(tmp_path)) == ["a"]
    problem = only(tmp_path)
    assert (problem.kind, problem.line, problem.cli_loads) == (LOADED_DESPITE_ERRORS, 3, True)
    assert "is not YAML" in problem.reason


def test_ignored_field_is_reported_with_its_line(tmp_path: Path) -> None:
    define(tmp_path, "a.md", more="maxTurns: many\ncolor: red")
    problem = only(tmp_path)
    assert (problem.kind, problem.line, problem.cli_loads) == (ODD, 4, True)


def test_problem_reason_is_short_and_printable(tmp_path: Path) -> None:
    put(tmp_path / "a.md", f"name: a\ndescription: d\nmaxTurns: {'secret ' * 50}\nname: x\x1b[2J:y")
    for problem in scanned(tmp_path).problems:
        assert problem.reason.isprintable()
        assert len(problem.reason) < 160


@pytest.mark.req("S4-08", "S4-09")
def test_empty_folder_has_no_problems(tmp_path: Path) -> None:
    assert scanned(tmp_path)[1:] == ((), ())
    assert scanned(tmp_path / "gone")[1:] == ((), ())


@pytest.mark.req("S3-02")
def test_library_definition_is_named_by_its_file(tmp_path: Path) -> None:
    put(tmp_path / "stem.md", "model: sonnet")
    define(tmp_path, "x.deprecated.md")
    define(tmp_path, "odd.md", more="maxTurns: many")
    found = scanned(tmp_path, LIBRARY)
    assert names(found) == ["odd", "stem"]
    assert [problem.kind for problem in found.problems] == [ODD, HIDDEN]
    assert not any(problem.cli_loads for problem in found.problems)
