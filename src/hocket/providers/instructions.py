"""Instructions that every CLI adds to its system prompt for the step it runs in."""

from __future__ import annotations

from hocket.model import DEFAULT_MARKER
from hocket.providers.base import LaunchRequest

_LOOP = """\
You are running unattended: do not stop to report progress or to ask whether to go on. \
Keep working until everything you were asked for is done. When all of it is done, and only then, write the following \
as a line of its own, with nothing else on it:

{marker}

While anything is left to do, do not write that line."""

_OWN_BRANCH = """\
You are working in a git worktree with a branch of its own. Later steps get only what is committed \
there, so commit your changes before you end."""


def step_instructions(request: LaunchRequest) -> str:
    """The instructions for a loop and for a worktree, as far as they apply; empty if the user turned them off."""
    if not request.contract:
        return ""
    loop = [_LOOP.format(marker=request.marker or DEFAULT_MARKER)] if request.loop else []
    return "\n\n".join([*loop, *([_OWN_BRANCH] if request.own_branch else [])])
