"""A stop that the run's keeper does not carry out: when the server wakes it, ends its tree, and gives it up.

A healthy keeper notices nothing of this: it ends the run before anything here is due. What is done at each step is in
``keeper.escalation``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial

from hocket.keeper.escalation import Escalation
from hocket.keeper.process_tree import KILL_PATIENCE
from hocket.sessions.leaf import Leaf

WAKE_EVERY = 0.5
"""Seconds between two requests to a keeper."""
KILL_EVERY = 0.2
SLACK = 0.5
"""Seconds for which a keeper may be late."""
KEEPER_PATIENCE = 5.0
"""Seconds for a keeper whose tree was killed to write the exit record."""
FINISH_PATIENCE = 25.0
"""The same for one that has nothing left but to write it, which takes a while on a full disk."""

KILLED = "its keeper did not carry out the stop, so the server killed its processes"
GIVEN_UP = "its keeper did not carry out the stop, so the server killed its processes and the keeper"


async def force_stop(leaf: Leaf, home: str, threads: Executor) -> None:
    """Make sure that a run ends that was asked to stop: until this is cancelled, or its keeper was killed."""
    loop = asyncio.get_running_loop()
    do = partial(loop.run_in_executor, threads)
    escalation = Escalation(leaf.place, leaf.id, home, leaf.keeper)
    due = loop.time() + leaf.spec.stop_grace + SLACK
    while (left := due + (0.0 if escalation.is_obstructed else KILL_PATIENCE) - loop.time()) > 0:
        await do(escalation.wake_keeper)
        await asyncio.sleep(min(WAKE_EVERY, left))
    began = loop.time()
    while loop.time() < began + (FINISH_PATIENCE if await do(escalation.is_keeper_finishing) else KEEPER_PATIENCE):
        if targets := await do(escalation.targets):
            leaf.forced = KILLED
        await do(escalation.kill, targets)
        await asyncio.sleep(KILL_EVERY)
    leaf.forced, leaf.is_given_up = GIVEN_UP, True
    await do(escalation.kill_keeper)
