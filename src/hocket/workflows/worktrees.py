"""Git worktrees for the steps of chains: finding a repository, creating a worktree, inspecting and removing it.

Everything is done by git. The user's own working tree is never written to, and a worktree is removed only if nothing
would be lost with it. Functions here block: call them from a thread.
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
from hocket.workflows.git import Git, error_text, text_of

FOLDER = "worktrees"
"""In HOCKET_HOME."""
BRANCHES = "hocket"
"""The prefix of the names of our branches."""
PATIENCE = 600.0
"""Seconds for a checkout, which may be a large one."""
ATTEMPTS = 8
COMMITS_AT_ONCE = 1000
"""How many commits fit into one command line."""

_LOCKED = re.compile(
    r"\.lock'?: File exists|cannot lock|could not lock|unable to create .*\.lock|failed to read .*/worktrees/",
    re.IGNORECASE,
)
"""What git prints while another process works in the same repository; trying again helps."""


# --- Repositories -------------------------------------------------------------------------------------------


class RepositoryPath(NamedTuple):
    """A working directory in a repository."""

    repository: str
    inside: str


def find_repository(cwd: str, git: Git) -> RepositoryPath:
    """The repository that a directory is in; raise if no worktree could be made of it."""
    result = git(cwd, "rev-parse", "--show-toplevel")
    top = text_of(result).removesuffix("\n")
    if result.code != 0 or not os.path.isdir(top):
        raise UsageError(_no_repository(git, cwd, result), 'without a repository: isolation = "none"')
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
    return RepositoryPath(top, inside)


def _no_repository(git: Git, cwd: str, result: ToolResult) -> str:
    need = "a worktree of its own needs a git repository with a working tree"
    is_bare = git(cwd, "rev-parse", "--is-bare-repository").output.strip() == b"true"
    if is_bare or b"cannot use bare repository" in result.output:
        return f"{need}, and {cwd} is a bare one"
    if b"not a git repository" in result.output:
        return f"{need}, and {cwd} is in none"
    return f"{need}, and {cwd} has none that could be used: {error_text(result)}"


# --- Creating -----------------------------------------------------------------------------------------------


def ensure(tree: Worktree, git: Git, *, fresh: bool) -> None:
    """Make sure that a worktree exists, also after earlier attempts failed; raise if it cannot be made.

    ``fresh``: no agent has worked in it yet, so its folder can only be the rest of a crashed attempt.
    """
    if fresh:
        _discard(tree, git)
        _add(tree, git, "--no-track", "-b", tree.branch, tree.path, tree.base)
    elif not os.path.isdir(tree.path):
        # It was removed. What was committed is still on its branch.
        git(tree.repository, "worktree", "remove", tree.path)
        _add(tree, git, tree.path, tree.branch)
    elif not is_worktree(tree, git):
        raise UsageError(f"{tree.path} is no longer a worktree", f"move it away; its branch is {tree.branch}")


def exists(tree: Worktree, git: Git) -> bool:
    """Whether its folder or its branch exists."""
    return os.path.isdir(tree.path) or git.commit(tree.repository, _ref(tree)) is not None


def is_worktree(tree: Worktree, git: Git) -> bool:
    result = git(tree.path, "rev-parse", "--show-toplevel")
    return result.code == 0 and os.path.realpath(text_of(result).removesuffix("\n")) == os.path.realpath(tree.path)


def _add(tree: Worktree, git: Git, *args: str) -> None:
    """Add the worktree; try again while other processes lock the repository."""
    for attempt in range(ATTEMPTS):
        try:
            os.makedirs(os.path.dirname(tree.path), mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"no worktree can be made at {tree.path}: {error.strerror}") from error
        # The only cancellable command: after any other the repository would be left half changed.
        result = git(tree.repository, "worktree", "add", *args, patience=PATIENCE, cancellable=True)
        if result.code == 0:
            return
        _discard(tree, git, branch="-b" in args)
        if not _LOCKED.search(text_of(result)):
            break
        time.sleep(0.05 * 2**attempt)
    raise UsageError(f"no worktree can be made of {tree.repository}: {error_text(result)}")


def _discard(tree: Worktree, git: Git, *, branch: bool = True) -> None:
    """Remove a worktree that was never finished. Its branch is removed only if nothing was committed to it."""
    # Git may know of it although its folder is missing, or not know of a folder that exists; and it removes a
    # half-made one only once its folder is missing.
    command = ("worktree", "remove", "--force", "--force", tree.path)
    result = git(tree.repository, *command, patience=PATIENCE)
    if os.path.lexists(tree.path):
        shutil.rmtree(tree.path, ignore_errors=True)
        if result.code != 0:
            git(tree.repository, *command)
    if branch:
        _delete_branch(tree, git)


def discard_unused(tree: Worktree, git: Git) -> None:
    """Remove a worktree that cannot be used, before any agent has worked in it."""
    with suppress(UsageError, ProgramNotFound, NotTrusted):
        _discard(tree, git)


def _delete_branch(tree: Worktree, git: Git) -> None:
    """Delete a branch without commits of its own: git compares and deletes in one step."""
    git(tree.repository, "update-ref", "-d", _ref(tree), tree.base)


def _ref(tree: Worktree) -> str:
    return f"refs/heads/{tree.branch}"


# --- Inspecting ---------------------------------------------------------------------------------------------


class WorktreeStatus(NamedTuple):
    """What a worktree has in addition to the commit that it began with."""

    head: str | None
    """The last commit of its work; None when nothing is left of it."""
    commits: int | None = 0
    """How many ``head`` has in addition to those it began with; None when git could not tell."""
    uncommitted: int | None = 0
    """Paths that are changed, staged or untracked; None when git could not tell."""
    is_spent: bool = False
    """Whether nothing at all would be lost with it."""
    has_folder: bool = False
    branch: str | None = None
    """The branch that has ``head``, which need not be ours; None when none has."""
    besides: str | None = None
    """What exists only here and is not in ``head``, in words."""
    also_on: str | None = None
    """Another branch, local or remote-tracking, that has all of its commits; not one of a worktree."""

    @property
    def is_gone(self) -> bool:
        return self.head is None and not self.has_folder


def head_of(tree: Worktree, git: Git) -> str | None:
    """The last commit of its work, on whichever branch the agent left it; None when nothing is left of it."""
    has_folder = os.path.isdir(tree.path) and is_worktree(tree, git)
    return (git.commit(tree.path, "HEAD") if has_folder else None) or git.commit(tree.repository, _ref(tree))


def status_of(tree: Worktree, git: Git) -> WorktreeStatus:
    head = head_of(tree, git)
    if head is None:
        has_folder = os.path.lexists(tree.path)
        unknown = None if has_folder else 0
        return WorktreeStatus(None, unknown, unknown, is_spent=not has_folder, has_folder=has_folder)
    commits = _count(git, tree.repository, [head], tree.base)
    if not os.path.isdir(tree.path):
        also_on = _merged_into(tree, git, head, tree.branch) if commits != 0 else None
        return WorktreeStatus(head, commits, 0, is_spent=head == tree.base, branch=tree.branch, also_on=also_on)
    branch = _current_branch(tree, git) or (_branch_with(tree, git, head) if commits != 0 else None)
    also_on = _merged_into(tree, git, head, branch) if commits != 0 else None
    status = WorktreeStatus(head, commits, None, has_folder=True, branch=branch, also_on=also_on)
    listed = changes(tree, git)
    if listed is None:
        return status
    uncommitted, ignored = listed
    seen = _reflog(tree, git)
    untouched = (
        seen is not None and seen <= {tree.base} and head == tree.base == git.commit(tree.repository, _ref(tree))
    )
    return status._replace(
        uncommitted=len(uncommitted),
        is_spent=untouched and not uncommitted and not ignored,
        besides="; ".join(_besides(tree, git, head, seen or (), ignored)) or None,
    )


def _current_branch(tree: Worktree, git: Git) -> str | None:
    """The branch that is checked out, whichever the agent left there."""
    if not is_worktree(tree, git):
        return tree.branch
    result = git(tree.path, "symbolic-ref", "--quiet", "HEAD")
    return text_of(result).strip().removeprefix("refs/heads/") if result.code == 0 else None


def _branch_with(tree: Worktree, git: Git, commit: str) -> str | None:
    """A branch that has a commit, preferably as its last one. Not a step's: those are removed with their worktrees."""
    for option in ("--points-at", "--contains"):
        names = _branches(tree, git, option, commit, "refs/heads")
        found = next((name for name in names if not _is_of_worktree(name)), None)
        if found:
            return found
    return None


def branches_with(tree: Worktree, git: Git, commit: str) -> list[str]:
    """The branches that have a commit: that of the user's working tree, local ones, remote-tracking ones, and at last
    those of other worktrees. Not the worktree's own."""
    names = _branches(tree, git, "--contains", commit, "refs/heads", "refs/remotes")
    return sorted((name for name in names if name != tree.branch), key=_is_of_worktree)


def _merged_into(tree: Worktree, git: Git, commit: str, own: str | None) -> str | None:
    names = branches_with(tree, git, commit)
    return next((name for name in names if name != own and not _is_of_worktree(name)), None)


def _branches(tree: Worktree, git: Git, option: str, commit: str, *below: str) -> list[str]:
    """The branches that have a commit, that of the repository's working tree first."""
    form = "--format=%(if)%(symref)%(then)%(else)%(HEAD)%(refname)%(end)"  # A symbolic one is another one's name.
    result = git(tree.repository, "for-each-ref", option, commit, form, *below)
    lines = sorted(filter(None, text_of(result).splitlines()), key=lambda line: not line.startswith("*"))
    names = [line[1:].removeprefix("refs/heads/").removeprefix("refs/remotes/") for line in lines]
    return names if result.code == 0 else []


def _is_of_worktree(branch: str) -> bool:
    return branch.startswith(f"{BRANCHES}/")


def _besides(tree: Worktree, git: Git, head: str, seen: Collection[str], ignored: Sequence[str]) -> Iterator[str]:
    own = git.commit(tree.repository, _ref(tree))
    if own is not None and (alone := _count(git, tree.repository, [own], head, tree.base)) != 0:
        yield f"{_commits(alone)} on {tree.branch} alone"
    stray = sum(_count(git, tree.path, part, head, "--branches") or 0 for part in _parts(sorted(seen)))
    if stray:
        yield f"{_commits(stray)} on no branch, which only its reflog has"
    if ignored:
        yield f"ignored by git, and nowhere else: {_first_paths(ignored)}"


def _commits(number: int | None) -> str:
    return "commits" if number is None else f"{number} commit{'' if number == 1 else 's'}"


def changes(tree: Worktree, git: Git) -> tuple[list[str], list[str]] | None:
    """Paths that are not committed, and ignored ones that tools do not make again; None when git cannot tell."""
    result = git.status(tree.path, "--ignored=matching", "--no-renames", patience=PATIENCE)
    if result.code != 0 or result.timed_out:
        return None
    entries = [entry for entry in text_of(result).split("\0") if entry]
    ignored = [entry[3:] for entry in entries if entry.startswith("!! ") and not is_by_product(entry[3:])]
    return [entry[3:] for entry in entries if not entry.startswith("!! ")], ignored


def _reflog(tree: Worktree, git: Git) -> set[str] | None:
    """Every commit that its HEAD was at: one that no branch has would be lost with the worktree."""
    result = git(tree.path, "log", "--walk-reflogs", "--format=%H", "HEAD")
    return set(text_of(result).split()) if result.code == 0 else None


class Contents(NamedTuple):
    """What a worktree has that nothing else has."""

    uncommitted: int | None = 0
    """Paths that are changed, staged or untracked; None when git could not tell."""
    unmerged: int | None = 0
    """Commits that are on no branch except those of worktrees, here or on a remote."""
    why: str | None = None
    """What would be lost with its folder; None for nothing: its branch stays as long as it is needed."""
    also_on: str | None = None
    """Another branch, local or remote-tracking, that has all of its commits."""


def contents_of(tree: Worktree, git: Git) -> Contents:
    """What a worktree has, regardless of its chain."""
    if not is_worktree(tree, git):
        return Contents(None, None, "git no longer knows it as a worktree")
    head, listed = git.commit(tree.path, "HEAD"), changes(tree, git)
    unmerged = _count(git, tree.path, [head], f"--exclude={BRANCHES}/*", "--branches", "--remotes") if head else None
    if head is None or listed is None or unmerged is None:
        return Contents(None, unmerged, "git cannot tell what is in it")
    has_own = _count(git, tree.repository, [head], tree.base) != 0
    uncommitted, ignored = listed
    known = Contents(
        len(uncommitted), unmerged, also_on=next(iter(branches_with(tree, git, head) if has_own else ()), None)
    )
    if uncommitted:
        return known._replace(why=f"not committed: {_first_paths(uncommitted)}")
    if ignored:
        return known._replace(why=f"ignored by git, and nowhere else: {_first_paths(ignored)}")
    seen, kept = _reflog(tree, git), ("--branches", "--remotes")
    if seen is None or any(_count(git, tree.path, part, *kept) != 0 for part in _parts(sorted({head, *seen}))):
        return known._replace(why="it has commits that are on no branch")
    return known


def _parts(commits: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts that each fit into a command line."""
    starts = range(0, len(commits), COMMITS_AT_ONCE)
    return (commits[start : start + COMMITS_AT_ONCE] for start in starts)


def _count(git: Git, cwd: str, commits: Sequence[str], *others: str) -> int | None:
    """How many commits these have that the others do not have."""
    result = git(cwd, "rev-list", "--count", *commits, "--not", *others)
    return int(result.output) if result.code == 0 and result.output.strip().isdigit() else None


# --- Removing -----------------------------------------------------------------------------------------------


class PruneResult(NamedTuple):
    """The result of pruning a worktree."""

    why: str | None = None
    """Why it was not removed."""
    branch: bool = False
    """Whether its branch was removed as well."""
    also_on: str | None = None
    """Another branch that has all of its commits now."""


def prune(tree: Worktree, git: Git) -> PruneResult:
    """Remove a worktree with which nothing is lost; its branch as well if another one has all of its commits."""
    contents = contents_of(tree, git)
    if contents.why is not None:
        return PruneResult(contents.why, also_on=contents.also_on)
    result = git(tree.repository, "worktree", "remove", tree.path, patience=PATIENCE)
    if result.code != 0:
        return PruneResult(error_text(result), also_on=contents.also_on)
    kept = PruneResult(also_on=contents.also_on)
    tip, ref = git.commit(tree.repository, _ref(tree)), _ref(tree)
    if tip is None or text_of(git(tree.repository, "for-each-ref", "--format=%(worktreepath)", ref)).strip():
        return kept
    if _count(git, tree.repository, [tip], f"--exclude={tree.branch}", "--branches", "--remotes") != 0:
        return kept
    # Git compares and deletes in one step.
    return kept._replace(branch=git.succeeds(tree.repository, "update-ref", "-d", ref, tip))


def remove(tree: Worktree, git: Git) -> bool:
    """Remove a spent worktree with its branch; return whether it is gone.

    Git checks again: without force it removes nothing that is changed or untracked.
    """
    if not git.succeeds(tree.repository, "worktree", "remove", tree.path) and os.path.lexists(tree.path):
        return False
    _delete_branch(tree, git)
    return git.commit(tree.repository, _ref(tree)) is None


# --- Base and name ------------------------------------------------------------------------------------------


class WorktreeBase(NamedTuple):
    """The commit that a new worktree begins with, and remarks for the user."""

    commit: str
    remarks: tuple[str, ...] = ()


def find_base(repository: str, before: Sequence[Sequence[Worktree]], git: Git) -> WorktreeBase:
    """The last commit of the latest earlier stage with a worktree of this repository, else the repository's own HEAD.

    Commits of several members of a group are not merged: that takes understanding.
    """
    for members in reversed(before):
        heads = [(tree, head) for tree in members if tree.repository == repository and (head := head_of(tree, git))]
        if not heads:
            continue
        remarks = []
        for tree, _ in heads:
            listed = changes(tree, git) if os.path.isdir(tree.path) else None
            if listed and listed[0]:
                remarks.append(f"begins without what is not committed in {tree.path}: {_first_paths(listed[0])}")
        moved = [(tree, head) for tree, head in heads if head != tree.base]
        if len({head for _, head in moved}) > 1:
            names = ", ".join(tree.branch for tree, _ in moved)
            remarks.append(f"several branches have commits of their own, and none of them is in this one: {names}")
            return WorktreeBase(heads[0][0].base, tuple(remarks))
        return WorktreeBase(moved[0][1] if moved else heads[0][1], tuple(remarks))
    commit = git.commit(repository, "HEAD")
    if commit is None:
        raise UsageError(f"{repository} has no commit that a worktree could begin with")
    return WorktreeBase(commit)


def _first_paths(paths: Sequence[str], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def worktree_for(home: str, repository: str, base: str, chain: tuple[int, str], step: int, agent: str) -> Worktree:
    """The worktree of a step: always the same path and branch for the same step.

    ``chain`` is the number and the id of the chain's run, ``step`` counts from 1.
    """
    number, run = chain
    name = re.sub("[^A-Za-z0-9_]+", "-", os.path.basename(agent.rstrip("/")).removesuffix(".md"))
    tag, last = f"{number}-{run[-6:]}", f"{step}-{name.strip('-')[:40].strip('-') or 'agent'}"
    return Worktree(repository, os.path.join(home, FOLDER, f"{tag}-{last}"), f"{BRANCHES}/{tag}/{last}", base)
