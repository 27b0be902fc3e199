"""Worktrees created, examined and removed with real git: no work is lost, and no hook runs."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workflows.repositories import branches, commit_all, git, make_repository, picture, trap, worktrees

from hocket.errors import HocketError, ProgramNotFound, UsageError
from hocket.keeper.programs import ToolResult
from hocket.model import Worktree
from hocket.workflows import worktrees as rules
from hocket.workflows.git import Git
from hocket.workflows.worktrees import (
    WorktreeBase,
    WorktreeStatus,
    contents_of,
    ensure,
    exists,
    find_base,
    find_repository,
    head_of,
    remove,
    status_of,
    worktree_for,
)

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
ASK = Git(ENV)


@pytest.fixture
def repository(world: Path) -> Path:
    make_repository(world / "r", readme="hello\n", sub__code="x\n")
    return world / "r"


def worktree(repository: Path, step: int = 1, base: str = "HEAD", agent: str = "builder") -> Worktree:
    commit = git(repository, "rev-parse", base)
    return worktree_for(str(repository.parent / "h"), str(repository), commit, (7, "rabcdefghijklmno"), step, agent)


def made(repository: Path, step: int = 1, base: str = "HEAD") -> Worktree:
    tree = worktree(repository, step, base)
    ensure(tree, ASK, fresh=True)
    return tree


# --- Repositories -------------------------------------------------------------------------------------------


def test_repository_is_found_from_a_subfolder(repository: Path) -> None:
    assert find_repository(str(repository), ASK) == (str(repository), "")
    assert find_repository(str(repository / "sub"), ASK) == (str(repository), "sub")
    (repository.parent / "link").symlink_to(repository / "sub")
    assert find_repository(str(repository.parent / "link"), ASK) == (str(repository), "sub")


def test_git_variables_of_the_caller_are_ignored(repository: Path, world: Path) -> None:
    make_repository(world / "other")
    lies = {"GIT_DIR": str(world / "other/.git"), "GIT_WORK_TREE": str(world / "other"), "GIT_INDEX_FILE": "/x"}
    assert find_repository(str(repository), Git({**ENV, **lies})) == (str(repository), "")


def _plain(folder: Path) -> Path:
    return folder


def _bare(folder: Path) -> Path:
    git(folder, "init", "--quiet", "--bare")
    return folder


def _unborn(folder: Path) -> Path:
    git(folder, "init", "--quiet")
    return folder


def _inner(folder: Path) -> Path:
    make_repository(folder)
    return folder / ".git"


def _uncommitted(folder: Path) -> Path:
    make_repository(folder)
    (folder / "new").mkdir()
    return folder / "new"


def _taken(folder: Path) -> Path:
    make_repository(folder)
    git(folder, "branch", "hocket")
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_plain, "is in none"),
        (_bare, "is a bare one"),
        (_unborn, "has no commit yet"),
        (_inner, "is a bare one"),
        (_uncommitted, "is not part of the last commit"),
        (_taken, "has a branch 'hocket'"),
    ],
)
def test_impossible_worktree_error_says_why(make: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        find_repository(str(make(tmp_path)), ASK)
    assert caught.value.hint


def test_missing_git_is_reported(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramNotFound, match="git is not installed"):
        find_repository(str(repository), Git({"PATH": str(tmp_path)}))


# --- Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "agent",
    ["builder", "../shop/.claude/agents/reviewer.md", "./a b", "x.lock", "-x", "..", "@{", "a~^:?*[\\", "ü", "é" * 99],
)
def test_every_agent_name_gives_a_valid_branch(repository: Path, agent: str) -> None:
    tree = worktree(repository, agent=agent)
    git(repository, "check-ref-format", "--branch", tree.branch)
    assert Path(tree.path).parent == repository.parent / "h/worktrees"
    assert tree == worktree(repository, agent=agent)


# --- Making -------------------------------------------------------------------------------------------------


def test_worktree_does_not_change_the_users_tree(repository: Path) -> None:
    (repository / "readme").write_text("not committed\n")
    (repository / "staged").write_text("x")
    git(repository, "add", "staged")
    before = picture(repository)
    tree = made(repository)
    assert (Path(tree.path) / "readme").read_text() == "hello\n"
    assert git(tree.path, "symbolic-ref", "HEAD") == f"refs/heads/{tree.branch}"
    assert (branches(repository), worktrees(repository)) == ([tree.branch], [tree.path])
    assert picture(repository) == before


def test_worktree_runs_nothing_of_the_repository(repository: Path, tmp_path: Path) -> None:
    trap(repository, tmp_path)
    trusted, tree = Git(ENV, str(repository), lambda _: True), worktree(repository)
    ensure(tree, trusted, fresh=True)
    status_of(tree, trusted)
    assert remove(tree, trusted)
    assert list(tmp_path.iterdir()) == []
    git(repository, "checkout", "--quiet", "-b", "probe")
    assert (tmp_path / "post-checkout").exists(), "the traps work"


def _half_done(tree: Worktree) -> None:
    (Path(tree.path) / "readme").unlink()
    Path(git(tree.path, "rev-parse", "--absolute-git-dir"), "index.lock").touch()


def _folder_lost(tree: Worktree) -> None:
    subprocess.run(["rm", "-rf", tree.path], check=True)


def _only_a_branch(tree: Worktree) -> None:
    git(tree.repository, "worktree", "remove", "--force", tree.path)


def _only_a_folder(tree: Worktree) -> None:
    _only_a_branch(tree)
    git(tree.repository, "branch", "-D", tree.branch)
    (Path(tree.path) / "sub").mkdir(parents=True)
    (Path(tree.path) / "sub/part").touch()


def _still_locked(tree: Worktree) -> None:
    git(tree.repository, "worktree", "lock", "--reason", "initializing", tree.path)


@pytest.mark.parametrize("cut", [_half_done, _folder_lost, _only_a_branch, _only_a_folder, _still_locked])
def test_unfinished_worktree_is_replaced(repository: Path, cut: Callable[[Worktree], None]) -> None:
    tree = made(repository)
    cut(tree)
    ensure(tree, ASK, fresh=True)
    assert git(tree.path, "status", "--porcelain") == ""
    assert (branches(repository), worktrees(repository)) == ([tree.branch], [tree.path])


def test_used_worktree_is_not_changed(repository: Path) -> None:
    tree = made(repository)
    (Path(tree.path) / "work").write_text("precious")
    ensure(tree, ASK, fresh=False)
    assert (Path(tree.path) / "work").read_text() == "precious"


def test_removed_worktree_is_restored_from_its_branch(repository: Path) -> None:
    tree = made(repository)
    (Path(tree.path) / "work").write_text("precious")
    commit = commit_all(Path(tree.path))
    _folder_lost(tree)
    assert exists(tree, ASK)
    ensure(tree, ASK, fresh=False)
    assert ((Path(tree.path) / "work").read_text(), head_of(tree, ASK)) == ("precious", commit)


def test_folder_without_worktree_is_refused_and_kept(repository: Path) -> None:
    tree = made(repository)
    (Path(tree.path) / ".git").unlink()
    with pytest.raises(UsageError, match="no longer a worktree"):
        ensure(tree, ASK, fresh=False)
    assert (Path(tree.path) / "readme").exists()


def test_branch_with_commits_is_never_reset(repository: Path) -> None:
    tree = made(repository)
    (Path(tree.path) / "work").touch()
    commit = commit_all(Path(tree.path))
    with pytest.raises(UsageError, match="already exists"):
        ensure(tree, ASK, fresh=True)
    assert git(repository, "rev-parse", tree.branch) == commit


def test_worktree_error_has_the_git_error(repository: Path) -> None:
    tree = worktree(repository)
    (repository.parent / "h").write_text("a file where a folder is needed")
    with pytest.raises(UsageError, match=r"no worktree can be made"):
        ensure(tree, ASK, fresh=True)
    (repository.parent / "h").unlink()
    with pytest.raises(UsageError, match=r"no worktree can be made .*: fatal: "):
        ensure(Worktree(tree.repository, tree.path, tree.branch, "0" * 40), ASK, fresh=True)
    assert (branches(repository), Path(tree.path).exists()) == ([], False)


def test_parallel_worktrees_of_one_repository_succeed(repository: Path) -> None:
    trees = [worktree(repository, step) for step in range(1, 9)]
    errors: list[HocketError] = []

    def make(tree: Worktree) -> None:
        try:
            ensure(tree, ASK, fresh=True)
        except HocketError as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(worktrees(repository)) == sorted(tree.path for tree in trees)


# --- Looking and taking away --------------------------------------------------------------------------------


def test_spent_worktree_is_removed_with_its_branch(repository: Path) -> None:
    tree = made(repository)
    assert status_of(tree, ASK) == WorktreeStatus(tree.base, 0, 0, is_spent=True, has_folder=True, branch=tree.branch)
    assert remove(tree, ASK)
    assert (branches(repository), worktrees(repository), Path(tree.path).exists()) == ([], [], False)
    assert not exists(tree, ASK)
    assert status_of(tree, ASK).is_gone


def _modified(tree: Path) -> None:
    (tree / "readme").write_text("changed\n")


def _staged(tree: Path) -> None:
    _modified(tree)
    git(tree, "add", "readme")


def _untracked(tree: Path) -> None:
    (tree / "new").touch()


def _deleted(tree: Path) -> None:
    (tree / "readme").unlink()


def _ignored(tree: Path) -> None:
    (tree / "build").mkdir()
    (tree / "build/out").touch()


def _committed(tree: Path) -> None:
    _untracked(tree)
    commit_all(tree)


def _committed_elsewhere(tree: Path) -> None:
    git(tree, "checkout", "--quiet", "-b", "another")
    _committed(tree)


def _committed_and_gone_back(tree: Path) -> None:
    git(tree, "checkout", "--quiet", "--detach")
    _committed(tree)
    git(tree, "checkout", "--quiet", "-")


@pytest.mark.parametrize(
    ("work", "commits", "uncommitted"),
    [
        (_modified, 0, 1),
        (_staged, 0, 1),
        (_untracked, 0, 1),
        (_deleted, 0, 1),
        (_ignored, 0, 0),
        (_committed, 1, 0),
        (_committed_elsewhere, 1, 0),
        (_committed_and_gone_back, 0, 0),
    ],
)
def test_worktree_with_own_work_is_kept(
    repository: Path, work: Callable[[Path], None], commits: int, uncommitted: int
) -> None:
    (repository / ".gitignore").write_text("build/\n__pycache__/\n")
    commit_all(repository)
    tree = made(repository)
    work(Path(tree.path))
    standing = status_of(tree, ASK)
    assert (standing.commits, standing.uncommitted, standing.is_spent) == (commits, uncommitted, False)


def _committed_here_and_elsewhere(tree: Path) -> None:
    _committed(tree)
    git(tree, "checkout", "--quiet", "-b", "another", "HEAD~1")
    _modified(tree)
    commit_all(tree)


def _committed_detached(tree: Path) -> None:
    git(tree, "checkout", "--quiet", "--detach")
    _committed(tree)


def _committed_detached_and_named(tree: Path) -> None:
    _committed_detached(tree)
    git(tree, "branch", "kept")


@pytest.mark.parametrize(
    ("work", "branch", "besides"),
    [
        (_committed, "hocket/7-jklmno/1-builder", None),
        (_committed_elsewhere, "another", None),
        (_committed_detached, None, None),
        (_committed_detached_and_named, "kept", None),
        (_committed_here_and_elsewhere, "another", "1 commit on hocket/7-jklmno/1-builder alone"),
        (_committed_and_gone_back, "hocket/7-jklmno/1-builder", "1 commit on no branch, which only its reflog has"),
        (_ignored, "hocket/7-jklmno/1-builder", "ignored by git, and nowhere else: build/"),
    ],
)
def test_status_names_everything_that_could_be_lost(
    repository: Path, work: Callable[[Path], None], branch: str | None, besides: str | None
) -> None:
    (repository / ".gitignore").write_text("build/\n")
    commit_all(repository)
    tree = made(repository)
    work(Path(tree.path))
    made(repository, 2, git(tree.path, "rev-parse", "HEAD"))  # a later step's branch has them too, for a while
    standing = status_of(tree, ASK)
    assert (standing.branch, standing.besides) == (branch, besides)
    assert standing.head == git(tree.path, "rev-parse", "HEAD")


def test_ignored_files_do_not_keep_a_worktree(repository: Path) -> None:
    (repository / ".gitignore").write_text("__pycache__/\n")
    commit_all(repository)
    tree = made(repository)
    (Path(tree.path) / "sub/__pycache__").mkdir()
    (Path(tree.path) / "sub/__pycache__/code.pyc").touch()
    assert status_of(tree, ASK).is_spent
    assert remove(tree, ASK)


def test_git_checks_again_before_removal(repository: Path) -> None:
    """Something came to be in it after it was looked at."""
    tree = made(repository)
    assert status_of(tree, ASK).is_spent
    (Path(tree.path) / "late").write_text("precious")
    assert not remove(tree, ASK)
    assert ((Path(tree.path) / "late").read_text(), branches(repository)) == ("precious", [tree.branch])


def test_removal_of_partial_worktree_keeps_commits(repository: Path) -> None:
    tree = made(repository)
    _folder_lost(tree)
    assert status_of(tree, ASK).is_spent
    assert remove(tree, ASK)
    assert (branches(repository), worktrees(repository)) == ([], [])
    tree = made(repository, 2)
    _committed(Path(tree.path))
    _folder_lost(tree)
    assert (status_of(tree, ASK).is_spent, remove(tree, ASK)) == (False, False)
    assert branches(repository) == [tree.branch]


# --- WorktreeBase ----------------------------------------------------------------------------------------------


def test_first_worktree_begins_with_repository_head(repository: Path) -> None:
    assert find_base(str(repository), [], ASK) == WorktreeBase(git(repository, "rev-parse", "HEAD"))


def test_worktree_begins_with_last_earlier_commit(repository: Path, world: Path) -> None:
    make_repository(world / "other")
    first, second, foreign = made(repository, 1), made(repository, 2), made(world / "other", 3)
    for tree in (first, second, foreign):
        _committed(Path(tree.path))
    before = [(first,), (second,), (foreign,), ()]
    assert find_base(str(repository), before, ASK) == WorktreeBase(git(second.path, "rev-parse", "HEAD"))
    git(second.path, "checkout", "--quiet", "-b", "renamed")
    (Path(second.path) / "newer").touch()
    assert find_base(str(repository), before, ASK).commit == git(second.path, "rev-parse", "HEAD")
    (remark,) = find_base(str(repository), before, ASK).remarks
    assert remark == f"begins without what is not committed in {second.path}: newer"
    for name in ("a", "b", "c"):
        (Path(second.path) / name).touch()
    assert find_base(str(repository), before, ASK).remarks[0].endswith(": a, b, c and 1 more")


def test_missing_worktree_is_skipped_as_base(repository: Path) -> None:
    first, second = made(repository, 1), made(repository, 2)
    _committed(Path(first.path))
    assert remove(second, ASK)
    assert find_base(str(repository), [(first,), (second,)], ASK).commit == head_of(first, ASK)


def test_group_commits_are_not_merged(repository: Path) -> None:
    one, two, three = (made(repository, step) for step in (1, 2, 3))
    assert find_base(str(repository), [(one, two, three)], ASK) == WorktreeBase(one.base)
    _committed(Path(two.path))
    assert find_base(str(repository), [(one, two, three)], ASK) == WorktreeBase(git(two.path, "rev-parse", "HEAD"))
    (Path(three.path) / "different").touch()
    commit_all(Path(three.path))
    commit, remarks = find_base(str(repository), [(one, two, three)], ASK)
    assert (commit, len(remarks)) == (one.base, 1)
    assert two.branch in remarks[0]
    assert three.branch in remarks[0]
    assert one.branch not in remarks[0]


# --- What one holds -----------------------------------------------------------------------------------------


class Counted(Git):
    """Git, and how often it was asked for lists of commits."""

    lists = 0

    def __call__(self, cwd: str, *args: str, **options: Any) -> ToolResult:
        self.lists += args[0] == "rev-list"
        return super().__call__(cwd, *args, **options)


def test_long_history_needs_one_git_command(repository: Path) -> None:
    tree, ask = made(repository), Counted(ENV)
    contents_of(tree, ask)
    before, ask.lists = ask.lists, 0
    for number in range(5):
        git(tree.path, "commit", "--quiet", "--allow-empty", "-m", str(number))
    assert contents_of(tree, ask).why is None
    assert ask.lists == before


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_commit_without_branch_is_always_found(repository: Path, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "COMMITS_AT_ONCE", at_once)
    tree = made(repository)
    for number in range(5):
        git(tree.path, "commit", "--quiet", "--allow-empty", "-m", str(number))
    assert contents_of(tree, ASK).why is None
    git(tree.path, "commit", "--quiet", "--allow-empty", "--amend", "-m", "another")
    git(tree.path, "commit", "--quiet", "--allow-empty", "-m", "more")
    assert contents_of(tree, ASK).why == "it has commits that are on no branch"
