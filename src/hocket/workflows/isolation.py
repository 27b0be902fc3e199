"""The working directories of steps, and whether they are trusted when a step begins.

A worktree has what was committed, which need not be what the user approved in the project itself, and a step may have
changed the project before the next one begins. So a trusted agent is started as one only if the settings there are
those that were approved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from hocket.config.settings import approve_command
from hocket.errors import NotTrusted, UsageError
from hocket.model import Agent, FolderApproval, Spec, Step, Worktree
from hocket.providers import PROVIDERS
from hocket.trust.approvals import Approvals
from hocket.trust.folder_contents import Cover, above, outside, servers_written_in
from hocket.workflows.worktrees import FOLDER


def agent_in_worktree(agent: Agent, approvals: Approvals) -> Agent:
    """The same agent in a worktree: its CLI finds servers in all folders above, which are not those of the project.

    Servers that the user disabled for the project stay disabled: to the CLI a worktree is its repository.
    """
    if not agent.trusted:
        return agent
    around = approvals.untrusted_servers(worktrees_folder(approvals.home)) if approvals.home else ()
    return replace(agent, untrusted_servers=tuple(sorted({*agent.untrusted_servers, *around})))


def worktrees_folder(home: str) -> str:
    """The folder that all worktrees are in."""
    return os.path.join(home, FOLDER)


def without_trust(agent: Agent) -> Agent:
    approved = tuple(one for one in agent.approvals if one.untrusted_servers is None)
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
    """The approved settings to compare with whenever a step starts; None if it relies on no approval.

    Trusting a folder with all its future contents includes its commits; an approval is of the files as they are.
    """
    reads_approved = PROVIDERS[agent.provider].privileges is not None
    if not (agent.trusted and reads_approved) or approvals.config.lists(cwd) or approvals.home is None:
        return None
    trees = worktrees_folder(approvals.home)
    others = (
        f"the settings in its worktree are not those that you approved in {cwd}, or servers above it are not those of"
        " when this began, so they are off, with all hooks and servers; commit the approved settings, or look for a"
        f" .mcp.json above {trees}"
        if isolated
        else f"the settings in {cwd}, or servers above it, are not those of when this began, so they are off, with all"
        f" hooks and servers; to review them: {approve_command(cwd)}"
    )
    spec, around = unapproved(), above(trees) if isolated else outside(cwd)
    without = structs.replace(spec, notices=(*spec.notices, others))
    return FolderApproval(fingerprint(cwd), servers_written_in(around), approvals.cover.users, without)


def reapproved(step: Step, home: str) -> Step:
    """The same step as if the user approved its folder as it is now, and the servers in the folders above.

    Whether that is so has to be checked after this: then a change in between differs from what this has read.
    """
    if step.approval is None:
        return step
    settings = Cover(step.approval.users).fingerprint(step.spec.cwd)
    return with_current_servers(structs.replace(step, approval=structs.replace(step.approval, settings=settings)), home)


def with_current_servers(step: Step, home: str) -> Step:
    """The same step with the servers above its directory as they are now, under the same condition."""
    if step.approval is None or (step.isolation is not None and step.isolation.untrusted_servers is None):
        return step  # Without the names of the disabled servers nothing can be compared.
    around = above(worktrees_folder(home)) if step.isolation else outside(step.spec.cwd)
    return structs.replace(step, approval=structs.replace(step.approval, servers=servers_written_in(around)))


def spec_in_directory(step: Step, tree: Worktree | None) -> Spec:
    """A step's spec in its working directory, with as much trust as the files there have.

    ``UsageError`` when its worktree lacks the folder that it is to work in.
    """
    cwd = working_directory(step, tree)
    if tree is not None and step.isolation is not None and not os.path.isdir(cwd):
        inside = step.isolation.inside
        raise UsageError(f"{inside} is not in the commit that the worktree begins with ({tree.base[:12]})")
    spec = step.spec if step.approval is None or _is_as_approved(cwd, step.approval) else step.approval.without
    return structs.replace(spec, cwd=cwd)


def has_restrictions(before: Spec, trusted: Spec, spec: Spec) -> bool:
    """Whether an earlier start had all restrictions that this one has in addition to the trusted one."""
    return {argument for argument in spec.argv if argument not in trusted.argv} <= set(before.argv)


def working_directory(step: Step, tree: Worktree | None) -> str:
    """The directory of a step: in its worktree, if it has one."""
    if tree is None:
        return step.spec.cwd
    inside = step.isolation.inside if step.isolation else ""
    return os.path.join(tree.path, inside) if inside else tree.path


def _is_as_approved(cwd: str, approval: FolderApproval) -> bool:
    """Whether the settings in a folder, and the servers in those above it, are as approved."""
    try:
        is_own = Cover(approval.users).fingerprint(cwd) == approval.settings
        return is_own and servers_written_in(outside(cwd)) == approval.servers
    except NotTrusted:
        return False
