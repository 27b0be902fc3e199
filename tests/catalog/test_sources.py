"""The folders whose definitions count in a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from catalog.definition_writing import agent, put

from hocket.catalog.entries import GLOBAL, LIBRARY, MANAGED, PROJECT, Found, SearchedPlace
from hocket.catalog.file_probe import ABSENT, FileProbe
from hocket.catalog.files import find_in, names_in
from hocket.catalog.sources import library, managed, project_roots, projects, users
from hocket.providers.definition_files import HIDDEN


def names(found: list[Found]) -> list[list[str]]:
    return [[entry.name for entry in one.entries] for one in found]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "a" / "b").mkdir(parents=True)
    (root / ".git").mkdir()
    return root


def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


# --- Projects -----------------------------------------------------------------------------------------------


@pytest.mark.req("S4-02", "S4-03")
def test_projects_reach_up_to_the_repository_root(tmp_path: Path, repository: Path) -> None:
    agent(tmp_path, "above")
    agent(repository, "root")
    agent(repository / "a" / "b", "near")
    inner = repository / "a" / "b"
    found = projects(FileProbe(), str(inner), env(tmp_path))
    assert names(found) == [["near"], [], ["root"]]
    assert [one.place for one in found] == [
        SearchedPlace(PROJECT, str(inner / ".claude/agents"), True, 1),
        SearchedPlace(PROJECT, str(repository / "a/.claude/agents"), False, 0),
        SearchedPlace(PROJECT, str(repository / ".claude/agents"), True, 1),
    ]
    assert [entry.project for one in found for entry in one.entries] == [str(inner), str(repository)]


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """A directory outside of any repository, and definitions on the way to it."""
    inner = tmp_path / "top" / "a" / "b"
    agent(inner, "mine")
    agent(tmp_path / "top", "left-here")
    for folder in (inner, inner.parent, inner.parent.parent):
        folder.chmod(0o755)
    return inner


def test_private_folders_above_count_without_repository(tmp_path: Path, nested: Path) -> None:
    found = projects(FileProbe(), str(nested), env(tmp_path))
    assert names(found) == [["mine"], [], ["left-here"]]
    top = tmp_path / "top"
    assert [one.place.path for one in found] == [f"{folder}/.claude/agents" for folder in (nested, top / "a", top)]
    assert found[2].entries[0].project == str(top)
    assert project_roots(FileProbe(), str(nested), env(tmp_path)) == [str(nested)]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
@pytest.mark.parametrize("shared", ["top", "top/a"])
def test_writable_folder_above_ends_the_walk(tmp_path: Path, nested: Path, shared: str, mode: int) -> None:
    (tmp_path / shared).chmod(mode)
    found = projects(FileProbe(), str(nested), env(tmp_path))
    assert [name for one in names(found) for name in one] == ["mine"]
    (problem,) = [problem for one in found for problem in one.problems]
    assert (problem.path, problem.kind, problem.cli_loads) == (
        *(str(tmp_path / "top/.claude/agents"), HIDDEN),
        True,
    )
    assert problem.reason.endswith(f"can write to {tmp_path / shared}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_folder_of_another_user_ends_the_walk(tmp_path: Path, nested: Path) -> None:
    os.chown(nested.parent, 1234, -1)
    found = projects(FileProbe(), str(nested), env(tmp_path))
    assert names(found) == [["mine"]]
    assert [problem.kind for problem in found[0].problems] == [HIDDEN]


def test_only_deciding_folders_above_are_recorded(tmp_path: Path, nested: Path) -> None:
    look = FileProbe()
    projects(look, str(nested), env(tmp_path))
    assert {str(nested.parent), str(tmp_path / "top")} <= look.seen.keys()
    assert str(tmp_path) not in look.seen
    assert look.seen[str(tmp_path / ".claude/agents")] == ABSENT


def test_git_file_of_worktree_ends_the_walk(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "a").mkdir()
    assert project_roots(FileProbe(), str(tmp_path / "a"), {}) == [str(tmp_path / "a"), str(tmp_path)]


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    """A worktree as git makes it, and the repository with a definition."""
    tree, administration = tmp_path / "tree", tmp_path / "main/.git/worktrees/tree"
    administration.mkdir(parents=True)
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {administration}\n")
    (administration / "gitdir").write_text(f"{tree / '.git'}\n")
    (administration / "commondir").write_text("../..\n")
    agent(tmp_path / "main", "main")
    return tree


def test_worktree_without_definitions_uses_its_repository(tmp_path: Path, worktree: Path) -> None:
    found = projects(FileProbe(), str(worktree), env(tmp_path))
    assert names(found) == [[], ["main"]]
    entry = found[1].entries[0]
    assert (entry.path, entry.project) == (str(tmp_path / "main/.claude/agents/main.md"), str(worktree))


def test_worktree_with_own_folder_uses_only_it(tmp_path: Path, worktree: Path) -> None:
    (worktree / ".claude/agents").mkdir(parents=True)
    assert names(projects(FileProbe(), str(worktree), env(tmp_path))) == [[]]


@pytest.mark.parametrize("broken", ["gitdir", "commondir"])
def test_worktree_unknown_to_its_repository_is_ignored(tmp_path: Path, worktree: Path, broken: str) -> None:
    (tmp_path / "main/.git/worktrees/tree" / broken).write_text("/elsewhere/.git/x\n")
    assert names(projects(FileProbe(), str(worktree), env(tmp_path))) == [[]]


@pytest.mark.parametrize("broken", ["gitdir", "commondir"])
def test_worktree_with_invalid_records_is_ignored(tmp_path: Path, worktree: Path, broken: str) -> None:
    (tmp_path / "main/.git/worktrees/tree" / broken).write_text("a\0b")
    assert names(projects(FileProbe(), str(worktree), env(tmp_path))) == [[]]
    (worktree / ".git").write_text("gitdir: a\0b")
    assert names(projects(FileProbe(), str(worktree), env(tmp_path))) == [[]]


def test_worktree_records_may_be_relative(tmp_path: Path, worktree: Path) -> None:
    (worktree / ".git").write_text("gitdir: ../main/.git/worktrees/tree\n")
    (tmp_path / "main/.git/worktrees/tree/gitdir").write_text("../../../../tree/.git\n")
    assert names(projects(FileProbe(), str(worktree), env(tmp_path))) == [[], ["main"]]


def test_linked_directory_uses_projects_of_its_target(tmp_path: Path, repository: Path) -> None:
    agent(repository, "root")
    agent(repository / "a", "near")
    (tmp_path / "other").mkdir()
    agent(tmp_path / "other", "other")
    (tmp_path / "other" / ".git").mkdir()
    (tmp_path / "other" / "link").symlink_to(repository / "a")
    found = projects(FileProbe(), str(tmp_path / "other/link"), env(tmp_path))
    assert names(found) == [["near"], ["root"]]
    assert [entry.path for one in found for entry in one.entries] == [
        *(f"{repository}/a/.claude/agents/near.md", f"{repository}/.claude/agents/root.md")
    ]


def test_links_within_a_project_are_not_resolved(tmp_path: Path, repository: Path) -> None:
    agent(tmp_path / "elsewhere", "x")
    (repository / ".claude").symlink_to(tmp_path / "elsewhere/.claude")
    (found,) = projects(FileProbe(), str(repository), env(tmp_path))
    assert [entry.path for entry in found.entries] == [f"{repository}/.claude/agents/x.md"]


@pytest.mark.parametrize("spelled", ["link", "home/", "home"])
def test_user_home_is_no_project_in_any_spelling(tmp_path: Path, spelled: str) -> None:
    agent(tmp_path / "home", "own")
    (tmp_path / "link").symlink_to("home")
    for cwd in ("link", "home"):
        assert project_roots(FileProbe(), str(tmp_path / cwd), {"HOME": f"{tmp_path}/{spelled}"}) == []


def test_impossible_home_is_ignored(tmp_path: Path) -> None:
    agent(tmp_path, "x")
    assert names(projects(FileProbe(), str(tmp_path), {"HOME": "/a\0b"})) == [["x"]]


def test_folders_from_home_upwards_are_no_projects(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / ".git").mkdir()
    agent(tmp_path, "above")
    agent(home, "own")
    agent(home / "p", "p")
    assert projects(FileProbe(), str(home), env(tmp_path)) == []
    assert names(projects(FileProbe(), str(home / "p"), env(tmp_path))) == [["p"]]


def test_moved_user_folder_is_no_project(tmp_path: Path) -> None:
    agent(tmp_path, "x")
    moved = {"HOME": "/nowhere", "CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")}
    (tmp_path / ".git").mkdir()
    assert projects(FileProbe(), str(tmp_path), moved) == []
    assert names(users(FileProbe(), str(tmp_path), moved)) == [["x"]]


@pytest.mark.req("S4-08", "S4-09")
def test_missing_or_empty_folder_is_no_problem(tmp_path: Path, repository: Path) -> None:
    (found,) = projects(FileProbe(), str(repository), env(tmp_path))
    assert found == Found(SearchedPlace(PROJECT, str(repository / ".claude/agents"), False, 0))
    (repository / ".claude/agents").mkdir(parents=True)
    (found,) = projects(FileProbe(), str(repository), env(tmp_path))
    assert found == Found(SearchedPlace(PROJECT, str(repository / ".claude/agents"), True, 0))


def test_file_instead_of_folder_is_reported(tmp_path: Path, repository: Path) -> None:
    (repository / ".claude").mkdir()
    (repository / ".claude/agents").write_text("")
    (found,) = projects(FileProbe(), str(repository), env(tmp_path))
    assert not found.place.exists
    assert [problem.reason for problem in found.problems] == ["is not a directory"]


def test_absent_paths_are_recorded(tmp_path: Path, repository: Path) -> None:
    look = FileProbe()
    projects(look, str(repository / "a"), env(tmp_path))
    for path in ("a/.git", "a/.claude/agents", ".claude/agents"):
        assert look.seen[str(repository / path)] == ABSENT
    assert look.seen[str(repository / ".git")] != ABSENT


# --- The others ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4-01")
def test_user_definitions_are_in_home(tmp_path: Path) -> None:
    own = agent(tmp_path / "home", "x")
    (found,) = users(FileProbe(), "/p", env(tmp_path))
    assert found.place == SearchedPlace(GLOBAL, str(own.parent), True, 1)
    assert (found.entries[0].path, found.entries[0].project) == (str(own), None)
    assert users(FileProbe(), "/p", {}) == []


def test_moved_user_folder_is_searched(tmp_path: Path) -> None:
    put(tmp_path / "cfg/agents/x.md", "name: x\ndescription: d")
    put(tmp_path / "cfg/agents-library/y.md", "name: y\ndescription: d")
    agent(tmp_path / "home", "z")
    moved = {**env(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "cfg")}
    assert names(users(FileProbe(), "/p", moved)) == [["x"]]
    assert names(library(FileProbe(), "/p", moved)) == [["y"]]


@pytest.mark.req("S3-02", "S3-03")
def test_library_is_beside_user_definitions(tmp_path: Path) -> None:
    put(tmp_path / "home/.claude/agents-library/x.md", "name: x\ndescription: d")
    (found,) = library(FileProbe(), "/p", env(tmp_path))
    assert found.place == SearchedPlace(LIBRARY, str(tmp_path / "home/.claude/agents-library"), True, 1)
    assert found.entries[0].source == LIBRARY
    assert library(FileProbe(), "/p", {}) == []


def test_managed_definitions_are_found(tmp_path: Path) -> None:
    put(tmp_path / "x.md", "name: x\ndescription: d")
    (found,) = managed(FileProbe(), str(tmp_path))
    assert (found.place.source, names([found])) == (MANAGED, [["x"]])
    (found,) = managed(FileProbe(), str(tmp_path / "gone"))
    assert found == Found(SearchedPlace(MANAGED, str(tmp_path / "gone"), False, 0))


# --- One folder ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4-13")
def test_definition_is_found_by_frontmatter_name(tmp_path: Path) -> None:
    deep = put(tmp_path / "sub/deep/file.md", "name: real\ndescription: d")
    escaped = put(tmp_path / "q.md", 'name: "\\x71uoted"\ndescription: d')
    put(tmp_path / "old.deprecated.md", "name: old\ndescription: d")
    put(tmp_path / "bad.md", "name: bad")
    folder = str(tmp_path)
    assert find_in(folder, "real") == str(deep)
    assert find_in(folder, "quoted") == str(escaped)
    assert [find_in(folder, name) for name in ("file", "Real", "rea", "old", "bad")] == [None] * 5
    put(tmp_path / "upper.md", "name: Real\ndescription: d")
    assert names_in(folder) == ["Real", "quoted", "real"]
