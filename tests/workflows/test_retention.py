"""Retention: what the policy chooses, what is kept all the same, and removals that meet something else."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from workflows.repositories import make_repository
from world import Bin

from hocket.config.settings import Keep
from hocket.errors import Conflict, NotFound, UsageError
from hocket.keeper import files
from hocket.model import Run
from hocket.sessions.restore import restore
from hocket.store import RunTree
from hocket.workflows import retention
from hocket.workflows.request import ResumeRequest
from hocket.workflows.retention import Family, choose

DAY = 86400.0
NOW = 1000 * DAY
ALL = Keep(days=0.0)


# --- The policy ---------------------------------------------------------------------------------------------


def aged(number: int, days: float, size: int = 0, *more: int) -> Family:
    """A family that ended so many days ago; ``more`` are the numbers of older trees in it."""
    trees = [RunTree(f"r{one}", one, 1, NOW - days * DAY - (number - one), None) for one in (number, *more)]
    return Family(tuple(trees), bytes=size)


def chosen(families: Sequence[Family], keep: Keep) -> dict[int, str]:
    return {one.trees[0].number: one.reason for one in choose(families, keep, NOW)}


FAMILIES = [aged(1, 40, 100), aged(2, 31, 100), aged(3, 2, 1000, 0), aged(4, 1, 100)]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep(days=30), {1: "ended more than 30 days ago", 2: "ended more than 30 days ago"}),
        (Keep(days=0), dict.fromkeys((1, 2, 3, 4), "has ended")),
        (Keep(runs=3), {1: "not among the newest 3"}),
        (Keep(runs=9), {}),
        (Keep(bytes=1200), {1: "beyond the newest 1 kB"}),
        (Keep(bytes=1099), dict.fromkeys((1, 2, 3), "beyond the newest 1 kB")),
        (Keep(days=35, runs=2), {1: "ended more than 35 days ago", 2: "not among the newest 2"}),
        (Keep(), {}),
    ],
    ids=str,
)
def test_policy_chooses_the_oldest_first(keep: Keep, expected: dict[int, str]) -> None:
    assert chosen(FAMILIES[::-1], keep) == expected
    assert list(chosen(FAMILIES[::-1], keep)) == sorted(expected)


def test_family_is_as_old_as_its_newest_run() -> None:
    live = Family((RunTree("r9", 9, 1, None, 9), RunTree("r1", 1, 1, NOW - 99 * DAY, None)))
    assert chosen([live, aged(2, 1)], Keep(days=30)) == {}
    assert chosen([live, aged(2, 1)], Keep(runs=1)) == {2: "not among the newest 1"}


# --- Removing -----------------------------------------------------------------------------------------------


async def remove_all(runner: EngineRunner) -> tuple[set[int], dict[int, str]]:
    """Remove all that may be removed; return the numbers, and the reasons of those that are kept, by number."""
    plan = await runner.engine.retention.plan(ALL)
    done = await runner.engine.retention.remove([root for row in plan.removed for root in (row["run"], *row["also"])])
    assert done.left == []
    return {row["number"] for row in done.removed}, {row["number"]: row["reason"] for row in [*plan.kept, *done.kept]}


async def ended(runner: EngineRunner, run: Run) -> Run:
    """The run once it has ended and no keeper is left."""
    now = await runner.wait(run)
    folders = list((runner.engine.home / "runs").glob("*/*"))
    await until(lambda: not any(files.is_locked(str(folder)) for folder in folders), "the end of the keepers")
    return now


def directory(runner: EngineRunner, run: Run) -> Path:
    return runner.engine.directory(run)


def test_nothing_is_removed_without_a_policy(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await ended(runner, await runner.start("quick"))
            with pytest.raises(UsageError, match="nothing says what to keep"):
                await runner.engine.retention.plan(Keep())
            (home / "config.toml").write_text("[keep]\nruns = 1\nbytes = '1 kB'\n")
            assert [row["reason"] for row in (await runner.engine.retention.plan(Keep())).removed] == [
                "beyond the newest 1 kB"
            ]
            assert (await runner.engine.retention.plan(Keep(bytes=10**9))).removed == []
            assert directory(runner, run).is_dir()

    asyncio.run(scene())


def test_live_run_and_run_with_keeper_are_kept(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")
    agent("waiting", "import signal; signal.pause()")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await ended(runner, await runner.start("quick"))
            live = await runner.running(await runner.start("waiting"))
            lock = os.open(directory(runner, first) / files.LOCK, os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert await remove_all(runner) == (set(), {1: "the keeper of run 1 has not ended"})
            refused = await runner.engine.retention.remove([live.id, first.id, "rnothing"])
            assert {row["run"]: row["reason"] for row in refused.kept} == {
                live.id: "run 2 has not ended",
                first.id: "the keeper of run 1 has not ended",
                "rnothing": "there is no such run, or another run started it",
            }
            os.close(lock)
            assert await remove_all(runner) == ({1}, {})
            assert directory(runner, live).is_dir()
            assert not directory(runner, first).exists()
            again = await runner.engine.retention.remove([first.id])
            assert again.removed == [{"run": first.id, "number": 1, "bytes": 0}], "as after a lost response"
            await runner.engine.stop(live)

    asyncio.run(scene())


def test_plan_lists_the_oldest_and_counts_the_rest(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent("quick", "print('done')")
    monkeypatch.setattr(retention, "MOST", 2)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            for _ in range(3):
                await ended(runner, await runner.start("quick"))
            for keep in (ALL, Keep(bytes=1)):
                plan = await runner.engine.retention.plan(keep)
                assert ([row["number"] for row in plan.removed], plan.more) == ([1, 2], 1)

    asyncio.run(scene())


def test_chain_with_a_worktree_is_kept(home: Path, project: Path, agent: Bin) -> None:
    make_repository(project, readme="hello\n")
    agent("failing", "raise SystemExit(3)")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await ended(runner, await runner.chain("failing", isolation="worktree"))
            removed, kept = await remove_all(runner)
            assert removed == set()
            assert kept[run.number].startswith("its worktree 1-")
            assert "hocket worktrees prune" in kept[run.number]
            await runner.engine.prune_worktrees([], 0.0, dry=False)
            await until(lambda: not any((home / "worktrees").iterdir()), "the worktree's end")
            assert await remove_all(runner) == ({1}, {})

    asyncio.run(scene())


def test_resuming_and_removing_exclude_each_other(home: Path, project: Path, agent: Bin) -> None:
    """Whichever comes first wins: a run is resumed and kept, or removed and cannot be resumed."""
    agent("failing", "raise SystemExit(3)")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await ended(runner, await runner.chain("failing"))
            request = ResumeRequest(env={"PATH": runner.request().env["PATH"]})  # type: ignore[index]
            resumed, removal = await asyncio.gather(
                runner.engine.tasks.resume(first, request), runner.engine.retention.remove([first.id])
            )
            assert [row["run"] for row in removal.kept] == [first.id]
            resumed = await ended(runner, resumed)
            (row,) = (await runner.engine.retention.plan(ALL)).removed
            assert (row["run"], row["also"], row["runs"]) == (resumed.id, [first.id], 4)
            with pytest.raises(Conflict, match="already resumed"):
                await runner.engine.tasks.resume(first, request)
            removal, refused = await asyncio.gather(
                runner.engine.retention.remove([resumed.id, first.id]),
                runner.engine.tasks.resume(resumed, request),
                return_exceptions=True,
            )
            if isinstance(refused, Run):  # it was faster
                assert not isinstance(removal, BaseException)
                assert removal.removed == []
                await runner.wait(refused)
            else:
                assert isinstance(refused, NotFound)
                assert runner.engine.read.recent(10) == []

    asyncio.run(scene())


def test_removal_waits_for_a_resume_that_has_begun(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await ended(runner, await runner.start("quick"))
            resuming = runner.engine.retention._worktrees.reuse
            async with resuming:
                removal = asyncio.create_task(runner.engine.retention.remove([first.id]))
                await until(lambda: resuming._waiters, "the removal to wait")
                assert runner.engine.read.run(first.id) is not None
            assert [row["run"] for row in (await removal).removed] == [first.id]

    asyncio.run(scene())


def test_run_that_starts_meanwhile_stays(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await ended(runner, await runner.start("quick"))
            second, removal = await asyncio.gather(runner.start("quick"), runner.engine.retention.remove([first.id]))
            assert second.number == 2
            assert [run.id for run in runner.engine.read.recent(10)] == [second.id] or removal.kept
            assert (await runner.wait(second)).result == "done\n"

    asyncio.run(scene())


def test_next_server_completes_a_removal(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await ended(runner, await runner.start("quick"))
            # As far as a server comes that is killed after the first transaction.
            await runner.engine._journal.write([], removed_trees=(first.id,), durable=True)
            place = directory(runner, first)
            assert (place / "out").read_text() == "done\n"
            (place / "spec.json").unlink()
        async with engine_runner(home, project) as runner:
            await until(lambda: not runner.engine.read.being_removed(0, 1), "the end of the removal")
            assert not place.exists()
            assert runner.engine.read.events(first.id) == []
            assert (await runner.start("quick")).number == 2

    asyncio.run(scene())


def test_restore_brings_back_no_removed_run(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")

    async def remove_one() -> str:
        async with engine_runner(home, project) as runner:
            runs = [await ended(runner, await runner.start("quick")) for _ in range(3)]
            await runner.engine.retention.remove([runs[0].id])
            # What a removal that was cut short leaves of the directory.
            (directory(runner, runs[1]) / "spec.json").unlink()
            return runs[2].id

    async def listed() -> list[str]:
        async with engine_runner(home, project) as runner:
            await until(lambda: not runner.engine.live(), "the end of what was restored")
            return [run.id for run in runner.engine.read.recent(10)]

    left = asyncio.run(remove_one())
    (home / "hocket.db").unlink()
    restored = restore(home)
    assert (restored.runs, restored.unreadable) == (1, 1)
    assert asyncio.run(listed()) == [left]


def test_failed_directory_removal_is_reported_and_repeated(home: Path, project: Path, agent: Bin) -> None:
    agent("quick", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await ended(runner, await runner.start("quick"))
            month = directory(runner, first).parent
            month.rename(home / "away")
            month.symlink_to(home / "away")
            done = await runner.engine.retention.remove([first.id])
            assert [row["number"] for row in done.removed] == [1]
            assert [(row["run"], row["dir"]) for row in done.left] == [(first.id, str(directory(runner, first)))]
            with pytest.raises(NotFound):
                runner.engine.find("1")
            month.unlink()
            (home / "away").rename(month)
            assert (await runner.engine.retention.remove(["rnothing"])).left == []
            assert not directory(runner, first).exists()

    asyncio.run(scene())
