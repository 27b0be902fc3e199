"""Steps that work in a worktree of their own, and the rights they have there.

A worktree has what was committed, which need not be what the user approved in the project itself. So an agent that is
trusted there is started as a trusted one here only when the settings are the same. Needs no event loop; the worktrees
of chains that run are in ``trees``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hocket.config.pins import Cover
from hocket.config.settings import Config
from hocket.engine.worktrees import Place
from hocket.errors import NotTrusted, UsageError
from hocket.model import Agent, Isolation, Spec, Step, Worktree


def in_a_worktree(agent: Agent, config: Config) -> Agent:
    """The same agent where its project is another folder: its CLI finds servers in all folders above, which are others.

    What the user has switched off for the project it knows here as well: to it a worktree is its repository.
    """
    if not agent.trusted:
        return agent
    above = config.strangers(config.home) if config.home else ()
    return replace(agent, strangers=tuple(sorted({*agent.strangers, *above})))


def untrusted(agent: Agent) -> Agent:
    vouched = tuple(one for one in agent.vouched if one.strangers is None)
    return replace(agent, trusted=False, strangers=(), vouched=vouched)


def isolation_of(place: Place, agent: Agent, cwd: str, config: Config, unapproved: Callable[[], Spec]) -> Isolation:
    """What has to be known of a step before there is a worktree for it.

    Who vouches for a folder and all that comes to be in it vouches for its commits as well; an approval is one of the
    files as they are.
    """
    if not agent.trusted or config.lists(cwd) or config.pins is None:
        return Isolation(place.repository, place.inside)
    notice = (
        f"the settings in its worktree are not those that you approved in {cwd}, so they are off, with all hooks and"
        " servers; commit the approved ones"
    )
    spec = unapproved()
    spec = replace(spec, notices=(*spec.notices, notice))
    return Isolation(place.repository, place.inside, config.pins.cover.fingerprint(cwd), spec)


def placed(step: Step, tree: Worktree) -> Spec:
    """A step's process in its worktree. ``UsageError`` when the worktree lacks the folder that it is to work in."""
    isolation = step.isolation
    if isolation is None:
        return step.spec
    cwd = folder(step, tree)
    if not os.path.isdir(cwd):
        raise UsageError(f"{isolation.inside} is not in the commit that the worktree begins with ({tree.base[:12]})")
    chosen = step.spec
    if isolation.unapproved is not None and _fingerprint(cwd) != isolation.approved:
        chosen = isolation.unapproved
    return replace(chosen, cwd=cwd)


def has_restrictions(before: Spec, trusted: Spec, spec: Spec) -> bool:
    """Whether an earlier start was restricted as this one is, where that is more than the trusted one."""
    return {word for word in spec.argv if word not in trusted.argv} <= set(before.argv)


def folder(step: Step, tree: Worktree) -> str:
    """Where a step works in its worktree."""
    inside = step.isolation.inside if step.isolation else ""
    return os.path.join(tree.path, inside) if inside else tree.path


def _fingerprint(cwd: str) -> str | None:
    try:
        return Cover().fingerprint(cwd)
    except NotTrusted:
        return None
