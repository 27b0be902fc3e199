"""Where the steps of a chain work, and whether they are trusted there when they begin.

A worktree has what was committed, which need not be what the user approved in the project itself, and a step may have
changed the project before the next one begins. So a trusted agent is started as one only if the settings there are
those that were approved. Needs no event loop; the worktrees of live chains are in ``chain_worktrees``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hocket.config.settings import approve_command
from hocket.errors import NotTrusted, UsageError
from hocket.model import Agent, FolderApproval, Spec, Step, Worktree
from hocket.trust.approvals import Approvals
from hocket.trust.folder_contents import Cover, above, outside, servers_written_in
from hocket.workflows.worktrees import FOLDER


def in_a_worktree(agent: Agent, approvals: Approvals) -> Agent:
    """The same agent where its project is another folder: its CLI finds servers in all folders above, which are others.

    What the user has switched off for the project it knows here as well: to it a worktree is its repository.
    """
    if not agent.trusted:
        return agent
    around = approvals.untrusted_servers(place_of_worktrees(approvals.home)) if approvals.home else ()
    return replace(agent, untrusted_servers=tuple(sorted({*agent.untrusted_servers, *around})))


def place_of_worktrees(home: str) -> str:
    """The folder that all worktrees lie in."""
    return os.path.join(home, FOLDER)


def untrusted(agent: Agent) -> Agent:
    approved = tuple(one for one in agent.approvals if one.strangers is None)
    return replace(agent, trusted=False, untrusted_servers=(), approvals=approved)


def approval_of(
    agent: Agent,
    cwd: str,
    approvals: Approvals,
    fingerprint: Callable[[str], str],
    unapproved: Callable[[], Spec],
    *,
    isolated: bool,
) -> FolderApproval | None:
    """What a step has to be compared with whenever it starts; None if it relies on no approval.

    Who vouches for a folder and all that comes to be in it vouches for its commits as well; an approval is one of the
    files as they are.
    """
    if not agent.trusted or approvals.lists(cwd) or approvals.home is None:
        return None
    trees = place_of_worktrees(approvals.home)
    others = (
        f"the settings in its worktree are not those that you approved in {cwd}, or servers above it are not those of"
        " when this began, so they are off, with all hooks and servers; commit the approved settings, or look for a"
        f" .mcp.json above {trees}"
        if isolated
        else f"the settings in {cwd}, or servers above it, are not those of when this began, so they are off, with all"
        f" hooks and servers; to look at them: {approve_command(cwd)}"
    )
    spec, around = unapproved(), above(trees) if isolated else outside(cwd)
    without = replace(spec, notices=(*spec.notices, others))
    return FolderApproval(fingerprint(cwd), servers_written_in(around), approvals.cover.users, without)


def approved_anew(step: Step, home: str) -> Step:
    """The same step where the user vouches for its folder as it is now, and for the servers around where it works.

    Whether they do has to be looked at after this: what is written in between is then another than this has seen.
    """
    if step.approval is None:
        return step
    settings = Cover(step.approval.users).fingerprint(step.spec.cwd)
    return around_anew(replace(step, approval=replace(step.approval, settings=settings)), home)


def around_anew(step: Step, home: str) -> Step:
    """The same step with the servers around where it works as they are now, under the same condition."""
    if step.approval is None or (step.isolation is not None and step.isolation.strangers is None):
        return step  # Without the names of the disabled servers nothing can be compared.
    around = above(place_of_worktrees(home)) if step.isolation else outside(step.spec.cwd)
    return replace(step, approval=replace(step.approval, servers=servers_written_in(around)))


def placed(step: Step, tree: Worktree | None) -> Spec:
    """A step's process where it works, with what that folder may bring along.

    ``UsageError`` when its worktree lacks the folder that it is to work in.
    """
    cwd = step.spec.cwd
    if tree is not None and step.isolation is not None:
        cwd = folder(step, tree)
        if not os.path.isdir(cwd):
            inside = step.isolation.inside
            raise UsageError(f"{inside} is not in the commit that the worktree begins with ({tree.base[:12]})")
    spec = step.spec if step.approval is None or _has(cwd, step.approval) else step.approval.without
    return replace(spec, cwd=cwd)


def has_restrictions(before: Spec, trusted: Spec, spec: Spec) -> bool:
    """Whether an earlier start was restricted as this one is, where that is more than the trusted one."""
    return {word for word in spec.argv if word not in trusted.argv} <= set(before.argv)


def folder(step: Step, tree: Worktree) -> str:
    """Where a step works in its worktree."""
    inside = step.isolation.inside if step.isolation else ""
    return os.path.join(tree.path, inside) if inside else tree.path


def _has(cwd: str, relied_on: FolderApproval) -> bool:
    """Whether a folder brings along what was approved, and those around it what they did."""
    try:
        is_own = Cover(relied_on.users).fingerprint(cwd) == relied_on.settings
        return is_own and servers_written_in(outside(cwd)) == relied_on.servers
    except NotTrusted:
        return False
