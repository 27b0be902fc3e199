"""``hocket diff``: what runs have changed, with git, in worktrees and without git, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.columns import lines_at
from workflows.repositories import branches, git, make_repository, picture, worktrees
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

COMMIT = """
import subprocess
def git(*words):
    subprocess.run(["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words], check=True)
def append(path, text):
    with open(path, "a") as file:
        file.write(text)
def commit():
    git("add", "--all")
    git("commit", "--quiet", "-m", "work")
"""
WORK = (
    COMMIT + "append('readme', 'committed\\n')\ncommit()\nappend('code', 'changed\\n')\nappend('new', 'one\\ntwo\\n')\n"
)
ISOLATED = ("--isolation", "worktree")


@pytest.fixture
def repository(hocket: Hocket, agent: Bin) -> Path:
    agent("worker", WORK)
    make_repository(hocket.cwd, readme="hello\n", code="x\n", old="y\n", **{".gitignore": "*.log\n"})
    return hocket.cwd


def diff(hocket: Hocket, ref: str, *words: str) -> dict[str, Any]:
    done = hocket("diff", ref, "--json", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counts(found: dict[str, Any]) -> dict[str, tuple[str, int | None, int | None]]:
    return {file["path"]: (file["status"], file["additions"], file["deletions"]) for file in found["files"]}


def test_diff_has_commits_changes_and_untracked_files(hocket: Hocket, repository: Path, agent: Bin) -> None:
    agent(
        "worker", WORK + "import os\nos.unlink('old')\nappend('x.log', 'ignored')\nopen('bin', 'wb').write(b'a\\0b')\n"
    )
    assert hocket("run", "worker").returncode == 0
    before, run = picture(repository), hocket.number()
    found = diff(hocket, run)
    assert counts(found) == {
        "bin": ("added", None, None),
        "code": ("modified", 1, 0),
        "new": ("added", 2, 0),
        "old": ("deleted", 0, 1),
        "readme": ("modified", 1, 0),
    }
    assert (found["additions"], found["deletions"]) == (4, 1)
    (place,) = found["directories"]
    assert (place["directory"], place["by"], place["error"], place["text"]) == (str(repository), "git", None, None)
    assert place["base"] == git(repository, "rev-parse", "HEAD~1")
    patch = hocket("diff", run)
    assert (patch.returncode, patch.stderr, "\x1b" in patch.stdout) == (0, "", False)
    assert "+++ b/new\n@@ -0,0 +1,2 @@\n+one\n+two\n" in patch.stdout
    stat = hocket("diff", run, "--stat").stdout
    assert " 5 files changed, 4 insertions(+), 1 deletion(-)\n" in stat
    assert picture(repository) == before, "nothing is written to the repository"
    assert counts(diff(hocket, hocket.runs()[-1]["id"])) == counts(found), "also of the process itself"


def test_patch_can_be_applied_in_reverse(hocket: Hocket, repository: Path, tmp_path: Path) -> None:
    hocket("run", "worker")
    (tmp_path / "patch").write_text(hocket("diff", hocket.number()).stdout)
    git(repository, "apply", "-R", str(tmp_path / "patch"))
    assert ((repository / "readme").read_text(), (repository / "new").exists()) == ("hello\n", False)


def test_changes_before_the_run_are_named(hocket: Hocket, repository: Path, agent: Bin) -> None:
    for name in ("code", "old", "mine"):
        (repository / name).write_text("mine\n")
    agent(
        "worker", COMMIT + "append('code', 'changed\\n')\nappend('new', 'n\\n')\ngit('checkout', '-q', '--', 'old')\n"
    )
    hocket("run", "worker")
    found = diff(hocket, hocket.number())
    assert {file["path"]: file["uncommitted_before"] for file in found["files"]} == {"code": True, "new": False}
    shown = hocket("diff", hocket.number())
    assert "mine" not in [line.rpartition("/")[2] for line in shown.stdout.splitlines()]
    assert shown.stderr.splitlines() == [
        "hocket: left out, uncommitted before the run and unchanged since: mine",
        "hocket: not separable, uncommitted before the run and changed since: code",
        "hocket: uncommitted before the run, and as in the commit since: old",
    ]


def test_only_the_directory_of_the_run_is_compared(hocket: Hocket, repository: Path, agent: Bin) -> None:
    (repository / "part").mkdir()
    (repository / "part/inner").write_text("mine\n")
    agent("outer", COMMIT + "append('inner2', 'x\\n')\nappend('../readme', 'x\\n')\n")
    hocket("run", "outer", "--cwd", "part")
    assert counts(diff(hocket, hocket.number())) == {"inner2": ("added", 1, 0)}


def test_running_run_can_be_compared(hocket: Hocket, repository: Path, agent: Bin) -> None:
    agent("sleeper", COMMIT + "append('new', 'n\\n')\nprint('ready', flush=True)\nimport signal\nsignal.pause()\n")
    run = hocket.created("spawn", "sleeper")
    events = hocket.start("logs", "-f", run)
    assert events.stdout is not None
    assert any("ready" in line for line in events.stdout)
    assert counts(diff(hocket, run)) == {"new": ("added", 1, 0)}
    hocket("stop", run)


def test_run_without_changes_says_so(hocket: Hocket, repository: Path, agent: Bin) -> None:
    agent("reader", "print('read')")
    hocket("run", "reader")
    shown = hocket("diff", hocket.number())
    assert (shown.returncode, shown.stdout) == (0, "")
    assert shown.stderr == f"hocket: run {hocket.number()} has changed nothing\n"


def test_repository_without_a_commit_is_compared_with_nothing(hocket: Hocket, agent: Bin) -> None:
    git(hocket.cwd, "init", "--quiet")
    agent("worker", WORK)
    hocket("run", "worker")
    assert counts(diff(hocket, hocket.number()))["readme"] == ("added", 1, 0)


def test_later_changes_are_named(hocket: Hocket, repository: Path) -> None:
    hocket("run", "worker")
    (repository / "code").write_text("later\n")
    assert diff(hocket, hocket.number())["directories"][0]["notes"] == ["changed after the run had ended: code"]


# --- Chains and worktrees -----------------------------------------------------------------------------------


def test_chain_has_the_changes_of_all_steps(hocket: Hocket, repository: Path, agent: Bin) -> None:
    agent("first", COMMIT + "append('one', '1\\n')\ncommit()\n")
    agent("second", COMMIT + "append('two', '2\\n')\nappend('one', '2\\n')\n")
    hocket("run", "first -> second:2")
    assert counts(diff(hocket, hocket.number())) == {"one": ("added", 3, 0), "two": ("added", 2, 0)}
    (step,) = [run["id"] for run in hocket.runs() if run["agent"] == "first"]
    shown = hocket("diff", step)
    assert "+++ b/two" in shown.stdout
    assert f"all steps and iterations since run {hocket.number()} began" in shown.stderr


def test_worktrees_are_compared_by_step(hocket: Hocket, repository: Path, agent: Bin) -> None:
    agent("first", COMMIT + "append('one', '1\\n')\ncommit()\nappend('loose', 'l\\n')\n")
    agent("second", COMMIT + "append('two', '2\\n')\ncommit()\n")
    hocket("run", "first -> second", *ISOLATED)
    run, (one, two) = hocket.number(), worktrees(repository)
    found = diff(hocket, run)
    assert [(file["path"], file["step"], file["directory"]) for file in found["files"]] == [
        ("loose", 0, one),
        ("one", 0, one),
        ("two", 1, two),
    ]
    assert f"# step 2 second, on {branches(repository)[1]}, in {two}\ndiff --git a/two" in hocket("diff", run).stdout
    (leaf,) = [one["id"] for one in hocket.runs() if one["agent"] == "second"]
    assert list(counts(diff(hocket, leaf))) == ["two"], "only what its own step did"


def test_commits_of_removed_worktree_are_compared(hocket: Hocket, repository: Path, agent: Bin) -> None:
    agent("worker", COMMIT + "append('one', '1\\n')\ncommit()\n")
    hocket("run", "worker", *ISOLATED)
    run, (branch,) = hocket.number(), branches(repository)
    assert hocket("worktrees", "prune", run).stdout.count("removed, its branch stays") == 1
    (place,) = diff(hocket, run)["directories"]
    head = git(repository, "rev-parse", branch)
    assert (place["head"], "is gone: these are its commits" in place["notes"][0]) == (head, True)
    git(repository, "branch", "-D", branch)
    assert counts(diff(hocket, run)) == {"one": ("added", 1, 0)}, "the commit still exists"
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "gc", "--quiet", "--prune=now")
    lost = hocket("diff", run)
    assert (lost.returncode, lost.stdout) == (1, "")
    assert lost.stderr == f"hocket: step 1 worker: commit {head[:12]} no longer exists in {repository}\n"
    assert json.loads(hocket("diff", run, "--json").stdout)["directories"][0]["error"]


# --- Without a record ---------------------------------------------------------------------------------------


def test_without_git_changed_files_are_listed(hocket: Hocket, agent: Bin) -> None:
    (hocket.cwd / "old").write_text("old")
    os.utime(hocket.cwd / "old", (1, 1))
    agent("worker", COMMIT + "import os\nos.mkdir('d')\nappend('d/new', 'n\\n')\n")
    hocket("run", "worker")
    shown = hocket("diff", hocket.number())
    assert (shown.returncode, shown.stdout) == (0, "changed d/new\n")
    assert shown.stderr == "hocket: no git repository: files by their modification time, without deleted ones\n"
    found = diff(hocket, hocket.number())
    assert (counts(found), found["directories"][0]["by"]) == ({"d/new": ("changed", None, None)}, "times")


def test_missing_directory_and_commit_are_reported(hocket: Hocket, repository: Path, tmp_path: Path) -> None:
    hocket("run", "worker")
    shutil.move(repository / ".git", tmp_path / "git")
    gone = hocket("diff", hocket.number())
    assert (gone.returncode, gone.stdout) == (1, "")
    assert f"{repository} is no longer in a git repository" in gone.stderr
    make_repository(repository)
    other = hocket("diff", hocket.number())
    assert (other.returncode, "with which it began, no longer exists in" in other.stderr) == (1, True)


def test_unapproved_repository_settings_are_never_run(hocket: Hocket, repository: Path, tmp_path: Path) -> None:
    """What its configuration names is not run at the start either, so there is nothing to compare with."""
    evidence = tmp_path / "ran"
    (repository / ".gitattributes").write_text("* diff=evil filter=evil\n")
    for key in ("diff.external", "core.pager", "core.fsmonitor", "diff.evil.textconv", "filter.evil.clean"):
        git(repository, "config", key, f"touch {evidence}; cat")
    hocket("run", "worker", "-p", "x")
    refused = hocket("diff", hocket.number())
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is not known from before the run: " in refused.stderr
    assert "so git could run a program that the repository names" in refused.stderr


# --- On a terminal ------------------------------------------------------------------------------------------


def test_terminal_gets_colours_and_the_users_pager(
    hocket: Hocket, repository: Path, agent: Bin, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    agent("worker", COMMIT + "append('new', 'evil \\x1b]0;title\\x07text\\n')\n")
    hocket("run", "worker")
    run = hocket.number()
    assert lines_at(80, hocket.cwd, "diff", run, GIT_PAGER=f"tee {seen} > /dev/null; echo paged") == ["paged"]
    paged = seen.read_text()
    assert "\x1b[32m+\x1b[m\x1b[32mevil text" in paged, "colours of git, and no other codes"
    plain = "\n".join(lines_at(80, hocket.cwd, "diff", run, GIT_PAGER="cat", NO_COLOR="1"))
    assert "+evil text" in plain
    assert "+evil text" in lines_at(80, hocket.cwd, "diff", run, GIT_PAGER="/nonexistent 2> /dev/null"), "no such pager"
