"""The folders whose definitions count in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalog.writing import agent, put

from hocket.catalog.entries import GLOBAL, HIDDEN, LIBRARY, MANAGED, PROJECT, Found, Place, Scan
from hocket.catalog.look import ABSENT, Look
from hocket.catalog.sources import find_in, library, managed, names_in, project_roots, projects, users


def names(found: list[Found]) -> list[list[str]]:
    return [[entry.name for entry in one.scan.entries] for one in found]


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
def test_projects_count_from_the_directory_up_to_the_repositorys_root(tmp_path: Path, repository: Path) -> None:
    agent(tmp_path, "above")
    agent(repository, "root")
    agent(repository / "a" / "b", "near")
    inner = repository / "a" / "b"
    found = projects(Look(), str(inner), env(tmp_path))
    assert names(found) == [["near"], [], ["root"]]
    assert [one.place for one in found] == [
        Place(PROJECT, str(inner / ".claude/agents"), True, 1),
        Place(PROJECT, str(repository / "a/.claude/agents"), False, 0),
        Place(PROJECT, str(repository / ".claude/agents"), True, 1),
    ]
    assert [entry.project for one in found for entry in one.scan.entries] == [str(inner), str(repository)]


def test_outside_of_a_repository_only_the_directory_itself_counts_and_the_rest_is_told(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    agent(inner, "mine")
    agent(tmp_path, "left-here")
    (found,) = projects(Look(), str(inner), env(tmp_path))
    assert names([found]) == [["mine"]]
    told = [problem for problem in found.scan.problems if problem.path == str(tmp_path / ".claude/agents")]
    assert [(problem.kind, problem.claude_loads) for problem in told] == [(HIDDEN, True)]


def test_a_worktrees_git_file_ends_the_walk_as_well(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "a").mkdir()
    assert project_roots(Look(), str(tmp_path / "a"), {}) == [str(tmp_path / "a"), str(tmp_path)]


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


def test_a_worktree_without_definitions_has_those_of_its_repository(tmp_path: Path, worktree: Path) -> None:
    found = projects(Look(), str(worktree), env(tmp_path))
    assert names(found) == [[], ["main"]]
    entry = found[1].scan.entries[0]
    assert (entry.path, entry.project) == (str(tmp_path / "main/.claude/agents/main.md"), str(worktree))


def test_a_worktree_with_a_folder_of_its_own_has_no_others(tmp_path: Path, worktree: Path) -> None:
    (worktree / ".claude/agents").mkdir(parents=True)
    assert names(projects(Look(), str(worktree), env(tmp_path))) == [[]]


@pytest.mark.parametrize("broken", ["gitdir", "commondir"])
def test_a_worktree_that_its_repository_does_not_know_is_none(tmp_path: Path, worktree: Path, broken: str) -> None:
    (tmp_path / "main/.git/worktrees/tree" / broken).write_text("/elsewhere/.git/x\n")
    assert names(projects(Look(), str(worktree), env(tmp_path))) == [[]]


def test_the_users_home_and_what_is_above_it_are_no_projects(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / ".git").mkdir()
    agent(tmp_path, "above")
    agent(home, "own")
    agent(home / "p", "p")
    assert projects(Look(), str(home), env(tmp_path)) == []
    assert names(projects(Look(), str(home / "p"), env(tmp_path))) == [["p"]]


def test_the_users_own_folder_is_no_project_even_when_it_was_moved_into_one(tmp_path: Path) -> None:
    agent(tmp_path, "x")
    moved = {"HOME": "/nowhere", "CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")}
    (tmp_path / ".git").mkdir()
    assert projects(Look(), str(tmp_path), moved) == []
    assert names(users(Look(), str(tmp_path), moved)) == [["x"]]


@pytest.mark.req("S4-08", "S4-09")
def test_a_project_without_a_folder_or_with_an_empty_one_is_no_problem(tmp_path: Path, repository: Path) -> None:
    (found,) = projects(Look(), str(repository), env(tmp_path))
    assert found == Found(Place(PROJECT, str(repository / ".claude/agents"), False, 0))
    (repository / ".claude/agents").mkdir(parents=True)
    (found,) = projects(Look(), str(repository), env(tmp_path))
    assert found == Found(Place(PROJECT, str(repository / ".claude/agents"), True, 0), Scan())


def test_a_file_where_a_folder_should_be_is_told(tmp_path: Path, repository: Path) -> None:
    (repository / ".claude").mkdir()
    (repository / ".claude/agents").write_text("")
    (found,) = projects(Look(), str(repository), env(tmp_path))
    assert not found.place.exists
    assert [problem.reason for problem in found.scan.problems] == ["is not a directory"]


def test_what_was_looked_for_in_vain_is_remembered(tmp_path: Path, repository: Path) -> None:
    look = Look()
    projects(look, str(repository / "a"), env(tmp_path))
    for path in ("a/.git", "a/.claude/agents", ".claude/agents"):
        assert look.seen[str(repository / path)] == ABSENT
    assert look.seen[str(repository / ".git")] != ABSENT


# --- The others ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4-01")
def test_the_users_own_definitions_lie_in_the_home(tmp_path: Path) -> None:
    own = agent(tmp_path / "home", "x")
    (found,) = users(Look(), "/p", env(tmp_path))
    assert found.place == Place(GLOBAL, str(own.parent), True, 1)
    assert (found.scan.entries[0].path, found.scan.entries[0].project) == (str(own), None)
    assert users(Look(), "/p", {}) == []


def test_the_users_folder_may_be_moved(tmp_path: Path) -> None:
    put(tmp_path / "cfg/agents/x.md", "name: x\ndescription: d")
    put(tmp_path / "cfg/agents-library/y.md", "name: y\ndescription: d")
    agent(tmp_path / "home", "z")
    moved = {**env(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "cfg")}
    assert names(users(Look(), "/p", moved)) == [["x"]]
    assert names(library(Look(), "/p", moved)) == [["y"]]


@pytest.mark.req("S3-02", "S3-03")
def test_the_library_lies_beside_the_users_own_definitions(tmp_path: Path) -> None:
    put(tmp_path / "home/.claude/agents-library/x.md", "name: x\ndescription: d")
    (found,) = library(Look(), "/p", env(tmp_path))
    assert found.place == Place(LIBRARY, str(tmp_path / "home/.claude/agents-library"), True, 1)
    assert found.scan.entries[0].source == LIBRARY
    assert library(Look(), "/p", {}) == []


def test_an_administrator_may_give_definitions_to_everybody(tmp_path: Path) -> None:
    put(tmp_path / "x.md", "name: x\ndescription: d")
    (found,) = managed(Look(), str(tmp_path))
    assert (found.place.source, names([found])) == (MANAGED, [["x"]])
    (found,) = managed(Look(), str(tmp_path / "gone"))
    assert found == Found(Place(MANAGED, str(tmp_path / "gone"), False, 0))


# --- One folder ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4-13")
def test_one_definition_of_a_folder_is_found_by_the_name_in_its_head(tmp_path: Path) -> None:
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
