"""``hocket worktrees``: what chains have left, and that only what holds nothing is taken away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_claude import install_claude
from workflows.repositories import branches, commit_all, git, make_repository, picture, worktrees
from world import Bin, Hocket

COMMIT = """
import subprocess
def git(*words):
    subprocess.run(["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words], check=True)
def work(name):
    open(name, "w").close()
    git("add", "--all")
    git("commit", "--quiet", "-m", name)
"""
FAIL = "raise SystemExit(3)\n"
ISOLATED = ("--isolation", "worktree")


@pytest.fixture
def repository(hocket: Hocket, agent: Bin) -> Path:
    agent("idle", FAIL)
    agent("builder", COMMIT + "work('built')\n" + FAIL)
    agent("messy", "open('notes', 'w').close()\n" + FAIL)
    agent("secretive", "open('.env', 'w').close()\n" + FAIL)
    agent("forgetful", COMMIT + "work('lost')\ngit('reset', '--quiet', '--hard', 'HEAD~1')\n" + FAIL)
    agent("wanderer", COMMIT + "git('switch', '--quiet', '-c', 'own')\nwork('found')\n" + FAIL)
    make_repository(hocket.cwd, readme="hello\n", **{".gitignore": ".env\n__pycache__/\n"})
    return hocket.cwd


def leave(hocket: Hocket, *agents: str) -> None:
    for name in agents:
        assert hocket("run", name, *ISOLATED).returncode == 1


def rows(hocket: Hocket, *words: str) -> dict[str, dict[str, Any]]:
    found = hocket("worktrees", *words, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    return {row["agent"]: row for row in json.loads(found.stdout)}


def test_worktrees_are_listed_with_their_contents(hocket: Hocket, repository: Path) -> None:
    assert hocket("worktrees").stderr == "No worktrees.\n"
    leave(hocket, "idle", "builder", "messy")
    found = rows(hocket)
    assert [row["number"] for row in found.values()] == [1, 3, 5]
    assert {row["path"] for row in found.values()} == set(worktrees(repository))
    assert {row["branch"] for row in found.values()} == set(branches(repository))
    assert {name: (row["commits"], row["uncommitted"]) for name, row in found.items()} == {
        "idle": (0, 0),
        "builder": (1, 0),
        "messy": (0, 1),
    }
    reported = hocket("worktrees")
    assert "3 builder  ✗ failed 0:0" in reported.stdout
    assert "  1 commit not merged\n    hocket/3-" in reported.stdout
    assert "    kept: not committed: notes\n" in reported.stdout
    assert reported.stderr == "2 of 3 can be pruned safely · hocket worktrees prune\n"


def test_prune_removes_only_worktrees_without_changes(hocket: Hocket, repository: Path) -> None:
    leave(hocket, "idle", "builder", "messy", "secretive", "forgetful", "wanderer")
    before, own = picture(repository), set(branches(repository))
    would = rows(hocket, "prune", "--dry-run")
    assert {name for name, row in would.items() if row["why"] is None} == {"idle", "builder", "wanderer"}
    assert len(worktrees(repository)) == 6, "nothing was removed yet"
    found = rows(hocket, "prune")
    assert {name for name, row in found.items() if row["removed"]} == {"idle", "builder", "wanderer"}
    assert {name for name, row in found.items() if row["branch_removed"]} == {"idle", "wanderer"}
    assert "commits that are on no branch" in found["forgetful"]["why"]
    assert ".env" in found["secretive"]["why"]
    assert set(worktrees(repository)) == {found[name]["path"] for name in ("messy", "secretive", "forgetful")}
    assert own - set(branches(repository)) == {found["idle"]["branch"], found["wanderer"]["branch"]}
    assert git(repository, "show", "--stat", "own").count("found") > 0
    assert picture(repository) == before


def test_merged_branch_is_removed(hocket: Hocket, repository: Path) -> None:
    leave(hocket, "builder")
    git(repository, "merge", "--quiet", branches(repository)[0])
    assert rows(hocket)["builder"]["commits"] == 0
    assert "removed, with its branch" in hocket("worktrees", "prune").stdout
    assert (worktrees(repository), branches(repository)) == ([], [])


def test_pushed_commits_survive_on_the_remote_branch(
    hocket: Hocket, agent: Bin, repository: Path, tmp_path: Path
) -> None:
    """Without a local branch: its step left them on a detached HEAD, and pushed them."""
    git(repository, "init", "--quiet", "--bare", str(tmp_path / "hub"))
    git(repository, "remote", "add", "hub", str(tmp_path / "hub"))
    agent(
        "pusher",
        COMMIT
        + "git('checkout', '-q', '--detach')\nwork('sent')\ngit('push', '-q', 'hub', 'HEAD:refs/heads/topic')\n"
        + FAIL,
    )
    leave(hocket, "pusher")
    listed = hocket("worktrees").stdout
    assert "  0 commits not merged, its commits are also on hub/topic\n" in listed
    assert "kept" not in listed
    shown = hocket("show", "1").stdout
    assert "also on hub/topic" in shown
    assert (" merge " in shown, "branch hocket" in shown) == (False, False)
    found = rows(hocket, "prune")["pusher"]
    assert (found["removed"], found["branch_removed"], found["also_on"]) == (True, True, "hub/topic")
    assert git(repository, "show", "--stat", "hub/topic").count("sent") > 0


def test_earlier_commits_survive_on_next_steps_branch(hocket: Hocket, agent: Bin, repository: Path) -> None:
    agent("first", COMMIT + "work('one')\n")
    agent("second", COMMIT + "work('two')\n" + FAIL)
    assert hocket("run", "first -> second", *ISOLATED).returncode == 1
    found = rows(hocket, "prune")
    last = found["second"]["branch"]
    assert {name: (row["also_on"], row["branch_removed"]) for name, row in found.items()} == {
        "first": (last, True),
        "second": (None, False),
    }
    assert branches(repository) == [last]
    assert "one" in git(repository, "ls-tree", "--name-only", last).split()


def test_prune_is_limited_by_run_and_age(hocket: Hocket, repository: Path) -> None:
    leave(hocket, "idle", "builder")
    assert rows(hocket, "prune", "1", "--older", "1")["idle"]["why"] == "its chain ended later than that"
    assert list(rows(hocket, "prune", "3")) == ["builder"]
    assert list(rows(hocket)) == ["idle"]
    assert hocket("worktrees", "prune", "99").returncode == 2


def test_chain_resumes_after_its_worktree_was_pruned(hocket: Hocket, agent: Bin, repository: Path) -> None:
    leave(hocket, "builder")
    (branch,) = branches(repository)
    rows(hocket, "prune")
    agent("builder", COMMIT + "import os\nprint(os.path.exists('built'))\n")
    again = hocket("resume", "1")
    assert (again.returncode, again.stdout) == (0, "True\n"), "what it had committed is there"
    assert branches(repository) == [branch]


def test_worktree_in_use_is_kept(hocket: Hocket, agent: Bin, repository: Path) -> None:
    install_claude(agent.folder)
    assert hocket("run", "claude -> idle", "-p", "hello", *ISOLATED).returncode == 1
    session = hocket.created("resume", "2", "-p", "wait", "--session", "--detach")
    assert rows(hocket, "prune")["claude"]["why"] == "a run uses it"
    hocket("stop", session)
    assert rows(hocket, "prune")["claude"]["removed"]


def test_used_worktree_is_kept_when_home_is_link(
    hocket: Hocket, home: Path, agent: Bin, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = home.with_name("link")
    link.symlink_to(home.parent)
    monkeypatch.setenv("HOCKET_HOME", str(link / home.name))
    agent("sleeper", "import signal; signal.pause()")
    leave(hocket, "idle")
    (path,) = worktrees(repository)
    run = hocket.created("spawn", "sleeper", cwd=Path(path).resolve())
    assert rows(hocket, "prune")["idle"]["why"] == "a run uses it"
    assert Path(path).is_dir()
    hocket("stop", run)
    assert rows(hocket, "prune")["idle"]["removed"]


def test_former_worktree_is_kept(hocket: Hocket, repository: Path) -> None:
    leave(hocket, "idle")
    (path,) = worktrees(repository)
    (Path(path) / ".git").unlink()
    assert "git no longer knows it" in rows(hocket, "prune")["idle"]["why"]
    assert Path(path).exists()


@pytest.mark.parametrize("words", [["away"], ["--dry-run"], ["--older", "3"]])
def test_unknown_action_is_refused(hocket: Hocket, words: list[str]) -> None:
    refused = hocket("worktrees", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "prune" in refused.stderr


def test_users_own_commit_is_not_counted(hocket: Hocket, repository: Path) -> None:
    """What is merged into any branch is merged, also into one that has gone on since."""
    leave(hocket, "builder")
    git(repository, "merge", "--quiet", branches(repository)[0])
    (repository / "more").write_text("x")
    commit_all(repository)
    assert rows(hocket, "prune")["builder"]["branch_removed"]
