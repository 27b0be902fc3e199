"""The limits: reached, never exceeded by one, and what is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from store.sample_events import created
from workflows.engine_fixture import engine_runner, stop_all, until
from world import Bin

from hocket.config.settings import Limits
from hocket.errors import DiskLow, LimitReached
from hocket.model import Event, Kind, Run, fold
from hocket.sessions.limits import check_children, check_disk, depth_below

SLEEPER = "import signal; signal.pause()"


def run_at(depth: int, kind: Kind = Kind.LEAF) -> Run:
    event = created("rx", 1, kind=kind)
    return fold([Event(1, 0.0, "rx", "rx", "run.created", {**event.data, "depth": depth})])


# --- the rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parent", "depth"),
    [
        (None, 0),
        (run_at(0), 1),
        (run_at(4), 5),
        (run_at(0, Kind.LEAD), 1),
        (run_at(3, Kind.CHAIN), 3),
        (run_at(5, Kind.LOOP), 5),
    ],
)
def test_only_agents_add_depth(parent: Run | None, depth: int) -> None:
    assert depth_below(parent, Limits(depth=5)) == depth


@pytest.mark.req("S3-57")
def test_start_below_the_depth_limit_is_refused() -> None:
    with pytest.raises(LimitReached, match="depth 6 is over the limit of 5") as caught:
        depth_below(run_at(5), Limits(depth=5))
    assert "config.toml" in (caught.value.hint or "")


def test_child_limit_applies_to_agents_only() -> None:
    check_children(None, 99, 1, Limits(children=1))
    check_children(run_at(0, Kind.CHAIN), 99, 1, Limits(children=1))
    check_children(run_at(0), 7, 1, Limits(children=8))
    with pytest.raises(LimitReached, match="children: run 1 has 8 live ones, which is the limit of 8"):
        check_children(run_at(0), 8, 1, Limits(children=8))
    check_children(run_at(0), 5, 3, Limits(children=8))
    with pytest.raises(LimitReached, match="children: run 1 has 6 live ones, and 3 more at once would be over"):
        check_children(run_at(0), 6, 3, Limits(children=8))


@pytest.mark.parametrize(
    ("live", "wanted", "limit", "remedy"),
    [(6, 3, 8, "Wait until"), (1, 9, 8, "Make the group smaller")],
)
def test_too_many_children_error_has_a_hint(live: int, wanted: int, limit: int, remedy: str) -> None:
    with pytest.raises(LimitReached) as refused:
        check_children(run_at(0), live, wanted, Limits(children=limit))
    assert (refused.value.hint or "").startswith(remedy)


def test_too_little_disk_is_refused(tmp_path: Path) -> None:
    check_disk(tmp_path, Limits(min_free_mb=1))
    with pytest.raises(DiskLow, match=str(tmp_path)) as caught:
        check_disk(tmp_path, Limits(min_free_mb=2**42))
    assert caught.value.status == 507


# --- with real processes ------------------------------------------------------------------------------------


@pytest.mark.req("S3-57")
def test_nested_starts_stop_at_the_depth_limit(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project, depth=3) as runner:
            line = [await runner.start("sleeper")]
            for _ in range(3):
                line.append(await runner.start("sleeper", parent=line[-1]))
            assert [run.depth for run in line] == [0, 1, 2, 3]
            assert [run.parent for run in line] == [None, *(run.id for run in line[:-1])]
            assert {run.root for run in line} == {line[0].id}
            for options in ({"agent": "sleeper"}, {"dsl": "sleeper:2"}):
                with pytest.raises(LimitReached, match="depth"):
                    await runner.engine.start(runner.request(**options), None, line[-1])
            chain = await runner.chain("sleeper", parent=line[2])
            assert (chain.kind, chain.depth) == (Kind.CHAIN, 3)
            await stop_all(runner.engine)
            assert {run.depth for run in runner.engine.read.below(chain.id)} == {3}
            assert len(runner.engine.read.recent(100)) == 6

    asyncio.run(scene())


def test_concurrent_starts_fill_the_child_limit_exactly(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project, children=8) as runner:
            parent = await runner.start("sleeper")
            outcomes = await asyncio.gather(
                *(runner.start("sleeper", parent=parent) for _ in range(50)), return_exceptions=True
            )
            started = [outcome for outcome in outcomes if isinstance(outcome, Run)]
            refused = [outcome for outcome in outcomes if isinstance(outcome, LimitReached)]
            assert (len(started), len(refused)) == (8, 42)
            assert all("children" in error.message for error in refused)
            assert len(runner.engine.read.recent(100)) == 9
            for child in started:
                await runner.running(child)
            assert len(list((home / "runs").glob("*/*"))) == 9
            assert runner.engine._starter.reserved_directories == set()
            # A place that has become free can be taken again, and only that one.
            await runner.engine.stop(started[0])
            again = await runner.start("sleeper", parent=parent)
            with pytest.raises(LimitReached):
                await runner.start("sleeper", parent=parent)
            await runner.running(again)
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_chain_counts_by_its_widest_group(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)
    three, wide = "sleeper -> (sleeper, sleeper:2, sleeper)", "(sleeper, sleeper, sleeper, sleeper, sleeper)"

    async def first() -> Run:
        async with engine_runner(home, project, children=4) as runner:
            parent = await runner.start("sleeper")
            with pytest.raises(LimitReached, match="children"):
                await runner.chain(wide, parent=parent)
            assert len(runner.engine.read.recent(100)) == 1, "nothing of it has begun"
            # The group comes later, and its places are kept for it.
            outcomes = await asyncio.gather(
                *(runner.chain(three, parent=parent) for _ in range(2)), return_exceptions=True
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LimitReached", "Run"]
            # The user's own chains are as wide as they are written.
            await runner.chain(wide)
            await runner.running(parent)
            return parent

    async def second(parent: Run) -> None:
        async with engine_runner(home, project, children=4) as runner:
            with pytest.raises(LimitReached, match="has 3 live ones, and 2 more at once"):
                await runner.chain("(sleeper, sleeper)", parent=parent)
            await runner.chain("sleeper -> sleeper:3 -> sleeper", parent=parent)
            with pytest.raises(LimitReached, match="has 4 live ones"):
                await runner.start("sleeper", parent=parent)
            await stop_all(runner.engine)

    asyncio.run(second(asyncio.run(first())))


def test_child_being_started_is_counted_once(home: Path, project: Path, agent: Bin) -> None:
    """Between its commit and the return to its starter it is both alive and on its way."""
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project, children=2) as runner:
            parent = await runner.start("sleeper")
            seconds: list[asyncio.Task[Run]] = []

            def start_a_second(_: object) -> None:
                if not seconds:
                    seconds.append(asyncio.create_task(runner.start("sleeper", parent=parent)))

            runner.engine._journal.listen(start_a_second)
            await runner.start("sleeper", parent=parent)
            outcome = (await asyncio.gather(*seconds, return_exceptions=True))[0]
            await stop_all(runner.engine)
            assert isinstance(outcome, Run), outcome

    asyncio.run(scene())


GUEST = """
import os, sys
number, ledger = sys.argv[1], os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(ledger, f"+{number}\\n".encode())
open(f"door{number}").read()
os.write(ledger, f"-{number}\\n".encode())
"""


def test_runs_over_the_leaf_limit_wait_in_order(home: Path, project: Path, agent: Bin) -> None:
    agent("guest", GUEST)
    ledger = project / "ledger"
    ledger.touch()
    for number in range(6):
        os.mkfifo(project / f"door{number}")

    def came() -> list[str]:
        return [line for line in ledger.read_text().split() if line.startswith("+")]

    def at_least(count: int) -> bool:
        return len(came()) >= count

    async def scene() -> None:
        async with engine_runner(home, project, leaves=2) as runner:
            runs = [await runner.start("guest", args=(str(number),)) for number in range(6)]
            for number, run in enumerate(runs):
                await until(partial(at_least, min(number + 2, 6)), f"guest {number + 1}")
                waiting = [one.id for one in runner.engine.live() if one.status == "starting" and one.pid is None]
                assert set(waiting) >= {one.id for one in runs[number + 2 :]}
                (project / f"door{number}").write_text("")
                assert (await runner.wait(run)).status == "done"
            # The first two have a place from the start, and whichever is quicker writes first.
            assert [*sorted(came()[:2]), *came()[2:]] == [f"+{number}" for number in range(6)]
            present, most = 0, 0
            for line in ledger.read_text().split():
                present += 1 if line.startswith("+") else -1
                most = max(most, present)
            assert most == 2

    asyncio.run(scene())


def test_queued_run_can_be_stopped(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)
    agent("quick", "print('here')")

    async def scene() -> None:
        async with engine_runner(home, project, leaves=1) as runner:
            first = await runner.start("sleeper")
            waiting, last = await runner.start("quick"), await runner.start("quick")
            await runner.running(first)
            outcome = await runner.engine.stop(waiting)
            assert (outcome["status"], outcome["stopped"]) == ("stopped", [waiting.id])
            assert not runner.engine.directory(waiting).exists()
            await runner.engine.stop(first)
            assert (await runner.wait(last)).result == "here\n"

    asyncio.run(scene())
