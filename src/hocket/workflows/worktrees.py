"""Git worktrees for the steps of chains: finding a repository, making one there, looking at one, taking one away.

Only git is asked, by way of ``git``. The user's own working tree is never written to. What was made is never taken
away when anything could be lost with it. Functions here block: call them from a thread. When a step gets a worktree,
and where it begins, is decided in ``isolation``.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from hocket.errors import NotTrusted, ProgramNotFound, UsageError
from hocket.keeper.programs import ToolResult
from hocket.model import Worktree
from hocket.workflows.directory_state import is_by_product
from hocket.workflows.git import Git, complaint, text_of

FOLDER = "worktrees"
"""In HOCKET_HOME."""
BRANCHES = "hocket"
"""What the names of our branches begin with."""
PATIENCE = 600.0
"""Seconds for a checkout, which may be a large one."""
ATTEMPTS = 8
AT_ONCE = 1000
"""So many commits fit into one command line."""

_LOCKED = re.compile(
    r"\.lock'?: File exists|cannot lock|could not lock|unable to create .*\.lock|failed to read .*/worktrees/",
    re.IGNORECASE,
)
"""What git prints while another process works in the same repository; trying again helps."""


# --- Repositories -------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A working directory in a repository."""

    repository: str
    inside: str


def find_repository(cwd: str, git: Git) -> Place:
    """The repository that a directory lies in. Raises where no worktree could be made of it."""
    said = git(cwd, "rev-parse", "--show-toplevel")
    top = text_of(said).removesuffix("\n")
    if said.code != 0 or not os.path.isdir(top):
        raise UsageError(_no_repository(git, cwd, said), 'without a repository: isolation = "none"')
    if git.commit(cwd, "HEAD") is None:
        raise UsageError(f"{top} has no commit yet, so no worktree can be made of it", "commit something first")
    if git.commit(cwd, f"refs/heads/{BRANCHES}") is not None:
        raise UsageError(
            f"{top} has a branch {BRANCHES!r}, which leaves no room for branches of worktrees ({BRANCHES}/…)",
            f"rename it: git branch -m {BRANCHES} NEW_NAME",
        )
    inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(top))
    inside = "" if inside == "." else inside
    if inside and not git.succeeds(top, "cat-file", "-e", f"HEAD:{inside}"):
        raise UsageError(f"{cwd} is not part of the last commit, so a worktree would not have it", "commit it first")
    return Place(top, inside)


def _no_repository(git: Git, cwd: str, said: ToolResult) -> str:
    need = "a worktree of its own needs a git repository with a working tree"
    is_bare = git(cwd, "rev-parse", "--is-bare-repository").output.strip() == b"true"
    if is_bare or b"cannot use bare repository" in said.output:
        return f"{need}, and {cwd} is a bare one"
    if b"not a git repository" in said.output:
        return f"{need}, and {cwd} is in none"
    return f"{need}, and {cwd} has none that could be used: {complaint(said)}"


# --- Making -------------------------------------------------------------------------------------------------


def ensure(tree: Worktree, git: Git, *, fresh: bool) -> None:
    """Make sure that a worktree exists, also after earlier attempts failed; raise if it cannot be made.

    ``fresh``: no agent has worked in it yet, so what lies there is what a crash left of making it.
    """
    if fresh:
        _discard(tree, git)
        _insist(tree, git, "--no-track", "-b", tree.branch, tree.path, tree.base)
    elif not os.path.isdir(tree.path):
        # It was removed. What was committed is still on its branch.
        git(tree.repository, "worktree", "remove", tree.path)
        _insist(tree, git, tree.path, tree.branch)
    elif not is_worktree(tree, git):
        raise UsageError(f"{tree.path} is no worktree any more", f"move it away; its branch is {tree.branch}")


def exists(tree: Worktree, git: Git) -> bool:
    """Whether anything is left of it."""
    return os.path.isdir(tree.path) or git.commit(tree.repository, _ref(tree)) is not None


def is_worktree(tree: Worktree, git: Git) -> bool:
    said = git(tree.path, "rev-parse", "--show-toplevel")
    return said.code == 0 and os.path.realpath(text_of(said).removesuffix("\n")) == os.path.realpath(tree.path)


def _insist(tree: Worktree, git: Git, *words: str) -> None:
    """Add the worktree, if need be again: others may be at work in the same repository."""
    for attempt in range(ATTEMPTS):
        said = _add(tree, git, *words)
        if said.code == 0:
            return
        _discard(tree, git, branch="-b" in words)
        if not _LOCKED.search(text_of(said)):
            break
        time.sleep(0.05 * 2**attempt)
    raise UsageError(f"no worktree can be made of {tree.repository}: {complaint(said)}")


def _add(tree: Worktree, git: Git, *words: str) -> ToolResult:
    try:
        os.makedirs(os.path.dirname(tree.path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"no worktree can be made at {tree.path}: {error.strerror}") from error
    # Nothing else may be ended: who ends this wants what it has made so far to be cleared away.
    return git(tree.repository, "worktree", "add", *words, patience=PATIENCE, may_be_ended=True)


def _discard(tree: Worktree, git: Git, *, branch: bool = True) -> None:
    """Clear away a worktree that was never finished. Its branch goes only as long as nothing was committed to it."""
    # Git may know of it though nothing is there any more, and something may be there of which git does not know; and
    # of one that is half made it knows, but removes it only when nothing is there.
    words = ("worktree", "remove", "--force", "--force", tree.path)
    said = git(tree.repository, *words, patience=PATIENCE)
    if os.path.lexists(tree.path):
        shutil.rmtree(tree.path, ignore_errors=True)
        if said.code != 0:
            git(tree.repository, *words)
    if branch:
        _delete_branch(tree, git)


def _delete_branch(tree: Worktree, git: Git) -> None:
    """Only if it is where it began: git compares and deletes in one go."""
    git(tree.repository, "update-ref", "-d", _ref(tree), tree.base)


def _ref(tree: Worktree) -> str:
    return f"refs/heads/{tree.branch}"


# --- Looking ------------------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """What a worktree has of its own, over and above what it began with."""

    head: str | None
    """The commit that its work has come to; None when nothing is left of it."""
    commits: int | None = 0
    """How many ``head`` has over and above those it began with; None when git could not tell."""
    uncommitted: int | None = 0
    """Paths that are changed, staged or not known to git; None when git could not tell."""
    is_spent: bool = False
    """Whether nothing at all would be lost with it."""
    has_folder: bool = False
    branch: str | None = None
    """The branch that has ``head``, which need not be ours; None when none has."""
    besides: str | None = None
    """What else there is and ``head`` does not have, in words."""

    @property
    def is_gone(self) -> bool:
        return self.head is None and not self.has_folder


def head_of(tree: Worktree, git: Git) -> str | None:
    """The commit that its work has come to, on whichever branch the agent left it; None when nothing is left of it."""
    there = os.path.isdir(tree.path) and is_worktree(tree, git)
    return (git.commit(tree.path, "HEAD") if there else None) or git.commit(tree.repository, _ref(tree))


def look(tree: Worktree, git: Git) -> Standing:
    """What there is to be kept."""
    head = head_of(tree, git)
    if head is None:
        there = os.path.lexists(tree.path)
        unknown = None if there else 0
        return Standing(None, unknown, unknown, is_spent=not there, has_folder=there)
    commits = _count(git, tree.repository, [head], tree.base)
    if not os.path.isdir(tree.path):
        return Standing(head, commits, 0, is_spent=head == tree.base, branch=tree.branch)
    branch = _branch_of(tree, git) or (_branch_having(tree, git, head) if commits != 0 else None)
    standing = Standing(head, commits, None, has_folder=True, branch=branch)
    listed = changes(tree, git)
    if listed is None:
        return standing
    ours, ignored = listed
    ever = _ever_at(tree, git)
    kept = [path for path in ignored if not is_by_product(path)]
    never_left = ever is not None and ever <= {tree.base}
    untouched = never_left and head == tree.base == git.commit(tree.repository, _ref(tree))
    told = "; ".join(_besides(tree, git, head, ever or (), kept))
    return standing._replace(uncommitted=len(ours), is_spent=untouched and not ours and not kept, besides=told or None)


def _branch_of(tree: Worktree, git: Git) -> str | None:
    """The branch that is checked out, whichever the agent left there."""
    if not is_worktree(tree, git):
        return tree.branch
    said = git(tree.path, "symbolic-ref", "--quiet", "HEAD")
    return text_of(said).strip().removeprefix("refs/heads/") if said.code == 0 else None


def _branch_having(tree: Worktree, git: Git, commit: str) -> str | None:
    """A branch that has a commit, at best as its last one. No step's: those go when their worktrees are spent."""
    for how in ("--points-at", "--contains"):
        said = git(tree.repository, "for-each-ref", how, commit, "--format=%(refname)", "refs/heads")
        names = [line.removeprefix("refs/heads/") for line in text_of(said).splitlines()] if said.code == 0 else []
        found = next((name for name in names if not name.startswith(f"{BRANCHES}/")), None)
        if found:
            return found
    return None


def _besides(tree: Worktree, git: Git, head: str, ever: Collection[str], ignored: Sequence[str]) -> Iterator[str]:
    own = git.commit(tree.repository, _ref(tree))
    if own is not None and (alone := _count(git, tree.repository, [own], head, tree.base)) != 0:
        yield f"{_commits(alone)} on {tree.branch} alone"
    stray = sum(_count(git, tree.path, part, head, "--branches") or 0 for part in _parts(sorted(ever), AT_ONCE))
    if stray:
        yield f"{_commits(stray)} on no branch, which only its reflog has"
    if ignored:
        yield f"ignored by git, and nowhere else: {_some(ignored)}"


def _commits(number: int | None) -> str:
    return "commits" if number is None else f"{number} commit{'' if number == 1 else 's'}"


def changes(tree: Worktree, git: Git) -> tuple[list[str], list[str]] | None:
    """Paths that are not committed, and those that git ignores; None when git cannot tell."""
    said = git.status(tree.path, "--ignored=matching", "--no-renames", patience=PATIENCE)
    if said.code != 0 or said.timed_out:
        return None
    entries = [entry for entry in text_of(said).split("\0") if entry]
    ignored = [entry[3:] for entry in entries if entry.startswith("!! ")]
    return [entry[3:] for entry in entries if not entry.startswith("!! ")], ignored


def _ever_at(tree: Worktree, git: Git) -> set[str] | None:
    """Every commit that its HEAD was at: one that no branch has would be lost with the worktree."""
    said = git(tree.path, "log", "--walk-reflogs", "--format=%H", "HEAD")
    return set(text_of(said).split()) if said.code == 0 else None


class Holding(NamedTuple):
    """What is in a worktree that nothing else has."""

    uncommitted: int | None = 0
    """Paths that are changed, staged or not known to git; None when git could not tell."""
    unmerged: int | None = 0
    """Commits that no branch but those of worktrees has, here or on a remote."""
    why: str | None = None
    """What would be lost with its folder; None for nothing: its branch stays as long as it is needed."""


def holding(tree: Worktree, git: Git) -> Holding:
    """What a worktree holds, regardless of its chain."""
    if not is_worktree(tree, git):
        return Holding(None, None, "git does not know it as a worktree any more")
    head, listed = git.commit(tree.path, "HEAD"), changes(tree, git)
    unmerged = _count(git, tree.path, [head], f"--exclude={BRANCHES}/*", "--branches", "--remotes") if head else None
    if head is None or listed is None or unmerged is None:
        return Holding(None, unmerged, "git cannot tell what is in it")
    ours, ignored = listed
    kept = [path for path in ignored if not is_by_product(path)]
    if ours:
        return Holding(len(ours), unmerged, f"not committed: {_some(ours)}")
    if kept:
        return Holding(0, unmerged, f"ignored by git, and nowhere else: {_some(kept)}")
    if not _all_on_branches(tree, git, head):
        return Holding(0, unmerged, "it has commits that are on no branch")
    return Holding(0, unmerged)


def _all_on_branches(tree: Worktree, git: Git, head: str) -> bool:
    """Whether branches have every commit that its HEAD ever was at."""
    known = _ever_at(tree, git)
    if known is None:
        return False
    ever = sorted({head, *known})
    # A command line has a limit, and a reflog may be long.
    return all(_count(git, tree.path, part, "--branches") == 0 for part in _parts(ever, AT_ONCE))


def _parts(words: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (words[begin : begin + size] for begin in range(0, len(words), size))


def _count(git: Git, cwd: str, commits: Sequence[str], *others: str) -> int | None:
    """How many commits these have that the others do not have."""
    said = git(cwd, "rev-list", "--count", *commits, "--not", *others)
    return int(said.output) if said.code == 0 and said.output.strip().isdigit() else None


# --- Taking away --------------------------------------------------------------------------------------------


class Removal(NamedTuple):
    """What became of a worktree that was to go."""

    why: str | None = None
    """Why it is still there."""
    branch: bool = False
    """Whether its branch went with it."""


def prune(tree: Worktree, git: Git) -> Removal:
    """Take away a worktree that holds nothing; its branch, too, where another one has all of its commits."""
    why = holding(tree, git).why
    if why is not None:
        return Removal(why)
    said = git(tree.repository, "worktree", "remove", tree.path, patience=PATIENCE)
    if said.code != 0:
        return Removal(complaint(said))
    return Removal(None, _drop_branch(tree, git))


def _drop_branch(tree: Worktree, git: Git) -> bool:
    tip = git.commit(tree.repository, _ref(tree))
    if tip is None or text_of(git(tree.repository, "for-each-ref", "--format=%(worktreepath)", _ref(tree))).strip():
        return False
    if _count(git, tree.repository, [tip], f"--exclude={tree.branch}", "--branches", "--remotes") != 0:
        return False
    # Git compares and deletes in one go.
    return git.succeeds(tree.repository, "update-ref", "-d", _ref(tree), tip)


def remove(tree: Worktree, git: Git) -> bool:
    """Take away a worktree that is spent, with its branch; whether it is gone.

    Git has the last word: without force it removes nothing that is changed or unknown.
    """
    if not git.succeeds(tree.repository, "worktree", "remove", tree.path) and os.path.lexists(tree.path):
        return False
    _delete_branch(tree, git)
    return git.commit(tree.repository, _ref(tree)) is None


# --- Beginning ----------------------------------------------------------------------------------------------


class Beginning(NamedTuple):
    """The commit that a new worktree begins with, and remarks for the user."""

    commit: str
    remarks: tuple[str, ...] = ()


def beginning(repository: str, before: Sequence[Sequence[Worktree]], git: Git) -> Beginning:
    """The commit that the latest stage before, of those with a worktree of this repository, has come to.

    Else the repository's own. What several members of a group have committed is not merged: that takes
    understanding.
    """
    for members in reversed(before):
        heads = [(tree, head) for tree in members if tree.repository == repository and (head := head_of(tree, git))]
        if not heads:
            continue
        remarks = list(_left_behind([tree for tree, _ in heads], git))
        moved = [(tree, head) for tree, head in heads if head != tree.base]
        if len({head for _, head in moved}) > 1:
            names = ", ".join(tree.branch for tree, _ in moved)
            remarks.append(f"several branches have commits of their own, and none of them is in this one: {names}")
            return Beginning(heads[0][0].base, tuple(remarks))
        return Beginning(moved[0][1] if moved else heads[0][1], tuple(remarks))
    commit = git.commit(repository, "HEAD")
    if commit is None:
        raise UsageError(f"{repository} has no commit that a worktree could begin with")
    return Beginning(commit)


def _left_behind(trees: Sequence[Worktree], git: Git) -> Iterator[str]:
    for tree in trees:
        listed = changes(tree, git) if os.path.isdir(tree.path) else None
        if listed and listed[0]:
            yield f"begins without what is not committed in {tree.path}: {_some(listed[0])}"


def _some(paths: Sequence[str], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


# --- Names --------------------------------------------------------------------------------------------------


def named(home: str, repository: str, base: str, chain: tuple[int, str], step: int, agent: str) -> Worktree:
    """The worktree of a step: the same path and branch however often it is asked for.

    ``chain`` is the number and the id of the chain's run, ``step`` counts from 1.
    """
    number, run = chain
    tag, last = f"{number}-{run[-6:]}", f"{step}-{_plain(agent)}"
    path = os.path.join(home, FOLDER, f"{tag}-{last}")
    return Worktree(repository, path, f"{BRANCHES}/{tag}/{last}", base)


def _plain(agent: str) -> str:
    """What of an agent's name any file system and git take for a name."""
    last = os.path.basename(agent.rstrip("/")).removesuffix(".md")
    return re.sub("[^A-Za-z0-9_]+", "-", last).strip("-")[:40].strip("-") or "agent"


def discard_unused(tree: Worktree, git: Git) -> None:
    """Take away a worktree that turned out to be of no use before anybody worked in it."""
    with suppress(UsageError, ProgramNotFound, NotTrusted):
        _discard(tree, git)
