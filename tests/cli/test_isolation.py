"""Worktrees as the command line tells of them: before, at the end, and where none can be made."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from scripted_claude import install_claude
from workflows.repositories import branches, commit_all, git, make_repository, picture, worktrees
from world import Bin, Hocket

from hocket.cli.plain import worktree_lines

COMMITTING = """
import subprocess
open("built", "w").close()
identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
for words in (["add", "--all"], ["commit", "--quiet", "-m", "built"]):
    subprocess.run(["git", *identity, *words], check=True)
open("left over", "w").close()
"""
LEFT: dict[str, Any] = {
    "agent": "builder",
    "worktree": "/h/worktrees/7-x-1-builder",
    "branch": "hocket/7-x/1-builder",
    "head": "c0ffee" * 7,
    "repository": "/my project",
    "commits": 2,
    "uncommitted": 0,
}


@pytest.fixture
def repository(hocket: Hocket, agent: Bin) -> Path:
    agent("builder", COMMITTING)
    agent("reader", "print('read')")
    make_repository(hocket.cwd)
    return hocket.cwd


@pytest.mark.shared_server
def test_summary_and_show_name_the_worktree(hocket: Hocket, repository: Path, home: Path) -> None:
    before = picture(repository)
    done = hocket("run", "reader -> builder", "--isolation", "worktree")
    assert done.returncode == 0
    (branch,), (path,) = branches(repository), worktrees(repository)
    told = f"builder: 1 commit, 1 file not committed, on {branch}, in {path}"
    assert done.stderr.count(told) == 1
    number = hocket.number()
    assert f"run {number}/reader works on branch hocket/{number}-" in done.stderr
    shown = hocket("show", number).stdout
    assert told in shown
    assert picture(repository) == before
    (merge,), prune = typed(shown)
    subprocess.run(merge, check=True, capture_output=True)
    assert (repository / "built").exists()
    assert "kept: not committed: left over" in hocket(*prune[1:]).stdout
    Path(path, "left over").unlink()
    hocket(*prune[1:])
    assert (branches(repository), worktrees(repository)) == ([], [])


def typed(shown: str) -> tuple[list[list[str]], list[str]]:
    """What can be typed about worktrees: the lines for git, and the one that tidies up."""
    (git_lines,) = [line.strip().split(" · ") for line in shown.splitlines() if " merge " in line]
    (prune,) = [line.strip() for line in shown.splitlines() if "worktrees prune" in line]
    return [shlex.split(words) for words in git_lines], shlex.split(prune)


@pytest.mark.shared_server
@pytest.mark.parametrize(("checkout", "branch"), [("--detach", None), ("-bmine", "mine")])
def test_commits_on_another_branch_survive_the_suggested_commands(
    hocket: Hocket, repository: Path, agent: Bin, checkout: str, branch: str | None
) -> None:
    agent("mover", f"import subprocess\nsubprocess.run(['git', 'checkout', '-q', '{checkout}'])\n" + COMMITTING)
    done = hocket("run", "mover -> reader", "--isolation", "worktree", "--json")
    step = json.loads(done.stdout.splitlines()[-1])["data"]["steps"][0]
    head = git(step["worktree"], "rev-parse", "HEAD")
    assert (step["branch"], step["head"], step["commits"]) == (branch, head, 1)
    shown = hocket("show", hocket.number()).stdout
    assert f"1 commit, 1 file not committed, on {branch or f'no branch ({head[:12]})'}, in " in shown
    lines, prune = typed(shown)
    Path(step["worktree"], "left over").unlink()
    hocket(*prune[1:])
    assert git(repository, "cat-file", "-t", head) == "commit", "also when it is done too early"
    for words in lines:
        subprocess.run(words, check=True, capture_output=True)
    hocket(*prune[1:])
    assert (worktrees(repository), git(repository, "rev-parse", "HEAD")) == ([], head)


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({}, "builder: 2 commits on hocket/7-x/1-builder, in /h/worktrees/7-x-1-builder"),
        ({"uncommitted": 3, "commits": 0}, "builder: 0 commits, 3 files not committed, on hocket/7-x/1-builder, in "),
        ({"uncommitted": None}, "uncommitted changes unknown"),
        ({"worktree": None}, "builder: 2 commits on hocket/7-x/1-builder"),
    ],
)
def test_worktree_lines_describe_what_was_left(left: dict[str, Any], words: str) -> None:
    first, *more = worktree_lines([{"agent": "reader", "repository": None}, {"agent": "plain"}, {**LEFT, **left}], "7")
    assert words in first
    has_commits = {**LEFT, **left}["commits"] != 0
    assert ("git -C '/my project' merge hocket/7-x/1-builder" in "\n".join(more)) == has_commits
    away = "hocket worktrees prune 7" if {**LEFT, **left}["worktree"] else "branch -d hocket/7-x/1-builder"
    assert more[-1].endswith(away)


def test_worktree_without_branch_is_described() -> None:
    left = {**LEFT, "branch": None, "besides": "1 commit on hocket/7-x/1-builder alone"}
    first, second, third, _ = worktree_lines([left], "7")
    assert first.startswith("builder: 2 commits on no branch (c0ffeec0ffee), in ")
    assert second == "    besides: 1 commit on hocket/7-x/1-builder alone"
    new = "hocket/7-x-1-builder"
    assert third == f"    git -C '/my project' branch {new} {LEFT['head']} · git -C '/my project' merge {new}"
    (first, _) = worktree_lines([{**LEFT, "branch": None, "commits": 0, "uncommitted": 1}], "7")
    assert first == "builder: 0 commits, 1 file not committed, in /h/worktrees/7-x-1-builder"


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            {"also_on": "main"},
            "builder: 2 commits on hocket/7-x/1-builder, also on main, in /h/worktrees/7-x-1-builder",
        ),
        ({"worktree": None, "branch": None, "also_on": "main"}, "builder: 2 commits on main, its branch is gone"),
        (
            {"worktree": None, "branch": None},
            "builder: 2 commits on no branch (c0ffeec0ffee), its branch is gone",
        ),
    ],
)
def test_no_merge_is_suggested_for_merged_branch(now: dict[str, Any], words: str) -> None:
    first, *more = worktree_lines([{**LEFT, **now}], "7")
    assert (first, [line for line in more if " merge " in line or " branch " in line]) == (words, [])


@pytest.mark.shared_server
def test_show_says_what_became_of_a_branch(hocket: Hocket, repository: Path) -> None:
    assert hocket("run", "builder", "--isolation", "worktree").returncode == 0
    number, (branch,), (path,) = hocket.number(), branches(repository), worktrees(repository)
    git(repository, "merge", "--quiet", branch)
    merged = hocket("show", number).stdout
    assert f"builder: 1 commit, 1 file not committed, on {branch}, also on main, in {path}" in merged
    assert " merge " not in merged
    Path(path, "left over").unlink()
    pruned = hocket("worktrees", "prune", number).stdout
    assert "its commits are also on main  removed, with its branch" in pruned
    gone = hocket("show", number)
    assert "builder: 1 commit on main, its branch is gone\n" in gone.stdout
    assert (" merge " in gone.stdout, "prune" in gone.stdout) == (False, False)
    (step,) = json.loads(hocket("show", number, "--json").stdout)["steps"]
    assert (step["also_on"], step["branch"], step["worktree"], step["commits"]) == ("main", None, None, 1)


@pytest.mark.shared_server
def test_summary_suggests_no_merge_of_merged_branch(hocket: Hocket, repository: Path, agent: Bin) -> None:
    push = f"subprocess.run(['git', '-C', {str(repository)!r}, 'branch', 'taken', subprocess.check_output("
    push += "['git', 'rev-parse', 'HEAD'], text=True).strip()], check=True)\n"
    agent("merger", COMMITTING + push)
    done = hocket("run", "merger", "--isolation", "worktree")
    assert ", also on taken, in " in done.stderr
    assert " merge " not in done.stderr


def test_unknown_worktree_state_is_called_unknown() -> None:
    unknown = {**LEFT, "branch": None, "head": None, "commits": None, "uncommitted": None}
    first, second = worktree_lines([unknown], "7")
    assert first == "builder: commits unknown, uncommitted changes unknown, in /h/worktrees/7-x-1-builder"
    assert second.strip() == "hocket worktrees prune 7"


def test_dry_run_creates_no_worktree(hocket: Hocket, repository: Path) -> None:
    done = hocket("run", "reader", "--isolation", "worktree", "--dry-run")
    assert (done.returncode, f"worktree of {repository}" in done.stdout) == (0, True)
    (step,) = json.loads(hocket("run", "reader", "--isolation", "worktree", "--dry-run", "--json").stdout)
    assert (step["isolation"], step["repository"]) == ("worktree", str(repository))
    assert "worktree" not in hocket("run", "reader", "--dry-run").stdout
    assert worktrees(repository) == []


@pytest.mark.shared_server
def test_isolation_without_repository_is_refused(hocket: Hocket, agent: Bin) -> None:
    agent("reader", "print('read')")
    (hocket.cwd / "hocket.toml").write_text('[chains.ship]\nisolation = "worktree"\nsteps = [{agent = "reader"}]\n')
    for words in (("reader", "--isolation", "worktree"), ("ship",), ("ship", "--dry-run")):
        done = hocket("run", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "needs a git repository" in done.stderr
    assert hocket.runs() == []
    assert hocket("run", "ship", "--isolation", "none").returncode == 0
    (listed,) = json.loads(hocket("chains", "--json").stdout)["chains"]
    assert (listed["isolation"], "git repository" in listed["problem"]) == ("worktree", True)


def test_rehearsal_leaves_the_repository_unchanged(hocket: Hocket, repository: Path) -> None:
    (repository / "hocket.toml").write_text('[chains.ship]\nisolation = "worktree"\nsteps = [{agent = "reader"}]\n')
    commit_all(repository)
    assert hocket("rehearse", "--chain", "ship", timeout=PATIENCE).returncode == 0
    assert (branches(repository), git(repository, "worktree", "list").count("\n")) == ([], 0)


@pytest.mark.shared_server
def test_resumed_session_gets_its_worktree_back(hocket: Hocket, agent: Bin, repository: Path) -> None:
    install_claude(agent.folder)
    before = picture(repository)
    assert hocket("run", "reader -> claude", "-p", "first", "--isolation", "worktree").returncode == 0
    assert worktrees(repository) == []
    first = next(one for one in hocket.runs() if one["agent"] == "claude")
    again = hocket("resume", first["id"], "-p", "second")
    assert (again.returncode, again.stdout) == (0, "you said: second\n")
    assert worktrees(repository) == [first["cwd"]]
    (branch,) = branches(repository)
    assert git(first["cwd"], "symbolic-ref", "--short", "HEAD") == branch
    # And once more, of the session that went on, when only the folder was taken away.
    git(repository, "worktree", "remove", first["cwd"])
    second = hocket.runs()[-1]
    assert hocket("resume", second["id"], "-p", "third").stdout == "you said: third\n"
    assert branches(repository) == [branch]
    assert picture(repository) == before


@pytest.mark.shared_server
def test_session_without_its_repository_is_refused(hocket: Hocket, agent: Bin, world: Path) -> None:
    install_claude(agent.folder)
    make_repository(world / "other")
    where = ("--cwd", str(world / "other"))
    assert hocket("run", "claude", "-p", "x", "--isolation", "worktree", *where).returncode == 0
    shutil.rmtree(world / "other")
    refused = hocket("resume", hocket.number(2), "-p", "more")
    assert refused.returncode == 2
    assert str(world / "other") in refused.stderr
