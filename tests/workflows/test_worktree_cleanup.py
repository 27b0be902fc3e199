"""Worktrees that chains have left: those of a starting run are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

from workflows.engine_fixture import engine_runner
from workflows.repositories import make_repository, worktrees
from world import Bin

from hocket.model import Spec


def test_worktree_of_a_starting_run_is_kept(home: Path, project: Path, agent: Bin) -> None:
    make_repository(project, readme="hello\n")
    agent("failing", "raise SystemExit(3)")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            await runner.wait(await runner.chain("failing", isolation="worktree"))
            (path,) = worktrees(project)
            unborn = runner.engine._starter._reserve(None, Spec("failing", "executable", ("failing",), path, {}))
            (left,) = await runner.engine.prune_worktrees([], 0.0, dry=False)
            assert (left.why, left.removed) == ("a run uses it", False)
            del runner.engine._starter._reserved[unborn]
            (left,) = await runner.engine.prune_worktrees([], 0.0, dry=False)
            assert left.removed

    asyncio.run(scene())
