"""Chains whose steps work in worktrees of their own: what flows from one to the next, and what is left at the end."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from workflows.repositories import branches, git, make_repository, picture, trap, worktrees
from world import Bin

from hocket.config.loading import load
from hocket.errors import HocketError
from hocket.model import BoundChain, Kind, Reason, Run, Status
from hocket.workflows.bind import bind, describe
from hocket.workflows.request import ResumeRequest, StartRequest

GIT = """
import json, os, subprocess, sys, time
def git(*words):
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *identity, *words], check=True, capture_output=True, text=True).stdout.strip()
def save(name, text="x"):
    with open(name, "w") as file: file.write(text)
def commit():
    git("add", "--all"); git("commit", "--quiet", "-m", "work")
def meet(name):
    # Opening a FIFO waits for its other end.
    open(os.path.join(os.environ["HOME"], name)).close()
prompt = sys.argv[-1] if len(sys.argv) > 1 else ""
print(json.dumps({"cwd": os.getcwd(), "files": sorted(f for f in os.listdir() if f != ".git"),
                  "branch": git("symbolic-ref", "HEAD")}))
"""
MARKER = "print('FORKHESTRA_COMPLETE')\n"


def trust(home: Path, folder: Path) -> None:
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(folder))}]\n")


@pytest.fixture
def project(world: Path) -> Path:
    make_repository(world / "p", readme="hello\n", sub__code="x\n")
    return world / "p"


@pytest.fixture
def programs(agent: Bin) -> Bin:
    agent("planner", GIT + "save('plan'); commit()\n")
    agent("messy", GIT + "save('notes')\n")
    agent("builder", GIT + "save('built'); commit()\n")
    agent("rival", GIT + "save('rival'); commit()\n")
    agent("reader", GIT)
    agent("looper", GIT + "n = len(os.listdir()); save(f'pass{n}'); commit()\nif n > 4: " + MARKER)
    agent("failing", GIT + "save('begun'); sys.exit(0 if os.path.exists(os.environ['HOME'] + '/mended') else 3)\n")
    agent("waiting", GIT + "save('begun'); meet('door')\n")
    return agent


class WorktreeRunner(EngineRunner):
    """A runner whose programs know their home."""

    def request(self, **options: Any) -> StartRequest:
        options = {"isolation": "worktree", **options}
        return StartRequest(cwd=str(self.project), env={"PATH": self._path, "HOME": os.environ["HOME"]}, **options)

    async def done(self, dsl: str, **options: Any) -> Run:
        return await self.wait(await self.chain(dsl, **options))

    def leaves(self, run: Run, step: int = 0) -> list[Run]:
        return [self.engine.find(one) for one in run.steps[step]["runs"]]

    def words(self, run: Run, step: int = 0) -> dict[str, Any]:
        """What a step's last pass said about where it was."""
        said: dict[str, Any] = json.loads((self.leaves(run, step)[-1].result or "").splitlines()[0])
        return said

    async def of(self, run: Run, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in await self.events(run) if event["type"] == kind]


def play(home: Path, project: Path, scene: Any) -> None:
    async def whole() -> None:
        async with engine_runner(home, project) as plain:
            runner = WorktreeRunner(plain.engine, project, home.parent / "bin")
            try:
                await scene(runner)
            finally:
                await stop_all(runner.engine)

    before = picture(project)
    asyncio.run(whole())
    assert picture(project) == before, "the user's own working tree never changes"


def is_there(*parts: str) -> bool:
    return Path(*parts).exists()


def mend(name: str = "mended") -> None:
    """From now on what failed succeeds."""
    Path(os.environ["HOME"], name).touch()


# --- One step -----------------------------------------------------------------------------------------------


def test_step_works_in_its_own_worktree(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("builder")
        (step,) = run.steps
        assert (run.status, step["commits"], step["uncommitted"]) == (Status.DONE, 1, 0)
        path = home / "worktrees" / f"{run.number}-{run.id[-6:]}-1-builder"
        branch = f"hocket/{run.number}-{run.id[-6:]}/1-builder"
        assert (step["worktree"], step["branch"], step["repository"]) == (str(path), branch, str(project))
        assert runner.words(run) == {"cwd": str(path), "files": ["readme", "sub"], "branch": f"refs/heads/{branch}"}
        assert runner.leaves(run)[0].cwd == str(path)
        assert git(project, "show", f"{branch}:built") == "x"
        (told,) = await runner.of(run, "worktree")
        assert (told["path"], told["branch"], told["agent"]) == (str(path), branch, "builder")
        assert told["base"] == git(project, "rev-parse", "HEAD")

    play(home, project, scene)


def test_unchanged_worktree_is_removed_at_the_end(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("reader")
        keys = ("worktree", "branch", "head", "repository", "commits", "uncommitted", "besides", "also_on")
        assert {key: run.steps[0][key] for key in keys} == dict.fromkeys(keys)
        assert (branches(project), worktrees(project), list((home / "worktrees").iterdir())) == ([], [], [])

    play(home, project, scene)


def test_worktree_with_uncommitted_changes_is_kept(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("messy")
        (step,) = run.steps
        assert (step["commits"], step["uncommitted"]) == (0, 1)
        assert is_there(step["worktree"], "notes")

    play(home, project, scene)


def test_step_works_in_same_folder_of_worktree(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        runner.project = project / "sub"
        run = await runner.done("reader", until="test -e code && test ! -e readme")
        assert run.status is Status.DONE
        assert runner.words(run)["files"] == ["code"]
        assert runner.leaves(run)[0].cwd.endswith("-1-reader/sub")

    play(home, project, scene)


def test_loop_gate_and_progress_share_a_worktree(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("looper:9", until="test -e pass5", no_progress=2)
        (step,) = run.steps
        assert (run.reason, step["iterations"], step["commits"]) == (Reason.MARKER, 3, 3)
        assert {leaf.cwd for leaf in runner.leaves(run)} == {step["worktree"]}
        (loop,) = [one for one in runner.engine.read.below(run.id) if one.kind is Kind.LOOP]
        assert loop.cwd == step["worktree"]
        assert len(await runner.of(run, "worktree")) == 1
        looks = await runner.of(run, "progress")
        assert [look["files_changed"] for look in looks[1:]] == [True] * len(looks[1:])

    play(home, project, scene)


def test_no_repository_hook_runs(home: Path, project: Path, programs: Bin, tmp_path: Path) -> None:
    trap(project, tmp_path)
    programs("quiet", "print('hello')")
    trust(home, project)

    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("quiet -> quiet:1", until="true", no_progress=1)
        assert run.steps[0]["status"] == "done"

    asyncio.run(_alone(home, project, scene))
    assert list(tmp_path.iterdir()) == []


async def _alone(home: Path, project: Path, scene: Any) -> None:
    async with engine_runner(home, project) as plain:
        await scene(WorktreeRunner(plain.engine, project, home.parent / "bin"))


# --- From one to the next -----------------------------------------------------------------------------------


def test_next_step_begins_with_commits_only(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("planner -> messy -> builder")
        assert runner.words(run, 1)["files"] == ["plan", "readme", "sub"]
        assert runner.words(run, 2)["files"] == ["plan", "readme", "sub"]
        assert [step["commits"] for step in run.steps] == [1, 0, 1]
        told = [notice["text"] for notice in await runner.of(run, "notice")]
        assert told == [f"builder: begins without what is not committed in {run.steps[1]['worktree']}: notes"]
        assert len({step["worktree"] for step in run.steps}) == 3

    play(home, project, scene)


def test_group_members_have_same_base_and_no_merge(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("planner -> (builder, rival, reader) -> reader")
        assert run.status is Status.DONE
        for member in (1, 2, 3):
            assert runner.words(run, member)["files"] == ["plan", "readme", "sub"]
        assert runner.words(run, 4)["files"] == ["plan", "readme", "sub"]
        bases = [told["base"] for told in await runner.of(run, "worktree")]
        assert bases[1] == bases[2] == bases[3] == bases[4]
        (notice,) = await runner.of(run, "notice")
        assert run.steps[1]["branch"] in notice["text"]
        assert run.steps[2]["branch"] in notice["text"]
        # Two were of no use at the end.
        assert [step["worktree"] is None for step in run.steps] == [False, False, False, True, True]

    play(home, project, scene)


def test_step_without_isolation_works_in_the_project(home: Path, project: Path, programs: Bin) -> None:
    (project / "hocket.toml").write_text(
        '[chains.ship]\nisolation = "worktree"\nsteps = [{agent = "reader"}, {agent = "reader", isolation = "none"}]\n'
    )
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "-m", "chain")

    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.wait(await runner.engine.start(runner.request(chain="ship", isolation=None)))
        assert runner.words(run, 0)["cwd"].startswith(str(home))
        assert runner.words(run, 1)["cwd"] == str(project)
        assert "worktree" not in run.steps[1]
        off = await runner.wait(await runner.engine.start(runner.request(chain="ship", isolation="none")))
        assert [runner.words(off, step)["cwd"] for step in (0, 1)] == [str(project)] * 2

    play(home, project, scene)


# --- Going on -----------------------------------------------------------------------------------------------


def test_resumed_chain_uses_the_same_worktree(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        failed = await runner.done("reader -> planner -> failing -> reader")
        assert (failed.status, failed.reason) == (Status.FAILED, Reason.EXIT)
        # It may be gone on with, so nothing is taken away, whether or not there is something in it.
        assert [step["worktree"] is None for step in failed.steps] == [False, False, False, True]
        mend()
        run = await runner.wait(await runner.engine.tasks.resume(failed, ResumeRequest()))
        assert run.status is Status.DONE
        assert run.steps[0]["worktree"] == failed.steps[2]["worktree"]
        assert runner.words(run, 0)["files"] == ["begun", "plan", "readme", "sub"]
        assert runner.words(run, 1)["files"] == ["plan", "readme", "sub"]
        assert not is_there(failed.steps[0]["worktree"]), "the worktree that is no longer needed is removed"
        assert is_there(failed.steps[1]["worktree"])
        assert len(branches(project)) == 2

    play(home, project, scene)


def test_steps_after_chosen_step_begin_anew(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        first = await runner.done("planner -> builder -> reader")
        programs("planner", GIT + "save('plan', 'better'); save('more'); commit()\n")
        run = await runner.wait(await runner.engine.tasks.resume(first, ResumeRequest(start_at=1)))
        assert run.steps[0]["worktree"] == first.steps[0]["worktree"]
        assert run.steps[0]["commits"] == 2
        assert run.steps[1]["worktree"] != first.steps[1]["worktree"]
        assert runner.words(run, 1)["files"] == ["more", "plan", "readme", "sub"]
        last = await runner.wait(await runner.engine.tasks.resume(run, ResumeRequest(start_at="reader")))
        assert runner.words(last)["files"] == ["built", "more", "plan", "readme", "sub"]

    play(home, project, scene)


def test_work_of_complete_members_is_kept_on_resume(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        failed = await runner.done("planner -> (builder, failing, reader) -> reader -> failing")
        assert failed.status is Status.FAILED
        built, begun, unused = (failed.steps[step]["worktree"] for step in (1, 2, 3))
        git(project, "worktree", "remove", "--force", begun)
        git(project, "branch", "-D", failed.steps[2]["branch"])
        mend()
        run = await runner.wait(await runner.engine.tasks.resume(failed, ResumeRequest()))
        assert run.status is Status.DONE
        assert [step["agent"] for step in run.steps] == ["failing", "reader", "failing"]
        # It begins where the others of its group began, and what comes after it has what they committed.
        assert runner.words(run, 0)["files"] == ["plan", "readme", "sub"]
        assert runner.words(run, 1)["files"] == ["built", "plan", "readme", "sub"]
        assert is_there(built)
        assert not is_there(unused), "one that is of no use is gone with the last"

    play(home, project, scene)


def test_work_of_members_is_kept_by_third_attempt(home: Path, project: Path, programs: Bin) -> None:
    programs("late", GIT + "sys.exit(0 if os.path.exists(os.environ['HOME'] + '/late') else 3)\n")

    async def scene(runner: WorktreeRunner) -> None:
        first = await runner.done("(builder, failing) -> late")
        mend()
        second = await runner.wait(await runner.engine.tasks.resume(first, ResumeRequest()))
        assert [step["status"] for step in second.steps] == ["done", "failed"]
        mend("late")
        third = await runner.wait(await runner.engine.tasks.resume(second, ResumeRequest(start_at="late")))
        assert third.status is Status.DONE
        assert runner.words(third)["files"] == ["built", "readme", "sub"]
        again = await runner.wait(await runner.engine.tasks.resume(second, ResumeRequest(start_at="failing")))
        assert again.status is Status.DONE
        assert runner.words(again, 1)["files"] == ["built", "readme", "sub"]

    play(home, project, scene)


def test_removed_worktree_is_created_again(home: Path, project: Path, programs: Bin) -> None:
    async def scene(runner: WorktreeRunner) -> None:
        failed = await runner.done("failing")
        git(project, "worktree", "remove", "--force", failed.steps[0]["worktree"])
        git(project, "branch", "-D", failed.steps[0]["branch"])
        mend()
        run = await runner.wait(await runner.engine.tasks.resume(failed, ResumeRequest()))
        assert run.status is Status.DONE
        assert run.steps[0]["worktree"] not in (None, failed.steps[0]["worktree"])

    play(home, project, scene)


def test_stopped_chain_keeps_its_worktrees(home: Path, project: Path, programs: Bin) -> None:
    os.mkfifo(Path(os.environ["HOME"], "door"))

    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.chain("waiting:2")
        await until(lambda: list((home / "worktrees").glob("*/begun")), "the pass")
        await runner.engine.stop(run)
        stopped = runner.engine.find(run.id)
        (step,) = stopped.steps
        assert (stopped.status, step["uncommitted"]) == (Status.STOPPED, 1)
        again = await runner.engine.tasks.resume(stopped, ResumeRequest())
        await until(lambda: [one for one in runner.engine.live() if one.pid], "the next pass")
        (leaf,) = [one for one in runner.engine.live() if one.kind is Kind.LEAF]
        assert leaf.cwd == step["worktree"]
        await runner.engine.stop(again)

    play(home, project, scene)


def has_another(runner: WorktreeRunner, known: set[str]) -> bool:
    return bool({one.id for one in runner.engine.live() if one.pid} - known)


def test_next_engine_uses_the_same_worktree(home: Path, project: Path, programs: Bin) -> None:
    door = Path(os.environ["HOME"], "door")
    os.mkfifo(door)
    programs("gated", GIT + "meet('door'); n = len(os.listdir()); save(f'pass{n}')\nif n > 4: " + MARKER)
    before = picture(project)

    async def scene() -> None:
        async with engine_runner(home, project) as plain:
            runner = WorktreeRunner(plain.engine, project, home.parent / "bin")
            run = await runner.chain("gated:5 -> reader")
            await until(lambda: [one for one in runner.engine.live() if one.pid], "the first pass")
        for last in (False, True):
            async with engine_runner(home, project) as plain:
                runner = WorktreeRunner(plain.engine, project, home.parent / "bin")
                known = {one.id for one in runner.engine.live()}
                await asyncio.to_thread(door.write_text, "")
                # Not before: the one that has just come through may still hold the door.
                await until(partial(has_another, runner, known), "the next pass")
                if not last:
                    continue
                await asyncio.to_thread(door.write_text, "")
                ended = await runner.wait(run)
                assert (ended.status, ended.steps[0]["iterations"]) == (Status.DONE, 3)
                assert {leaf.cwd for leaf in runner.leaves(ended)} == {ended.steps[0]["worktree"]}
                assert len(await runner.of(ended, "worktree")) == 2

    asyncio.run(scene())
    assert (picture(project), len(worktrees(project))) == (before, 1)


# --- What cannot be -----------------------------------------------------------------------------------------


def refused(project: Path, home: Path, **options: Any) -> HocketError:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    with pytest.raises(HocketError) as caught:
        bind(StartRequest(str(project), env, **options), load(str(project), str(home)))
    return caught.value


def test_start_without_repository_is_refused(home: Path, project: Path, programs: Bin, world: Path) -> None:
    (world / "plain").mkdir()

    async def scene(runner: WorktreeRunner) -> None:
        runner.project = world / "plain"
        with pytest.raises(HocketError, match=r"^a worktree of its own needs a git repository"):
            await runner.chain("reader")
        with pytest.raises(HocketError, match="belongs to a chain"):
            await runner.start("reader", isolation="worktree")
        assert not runner.engine.read.live()

    play(home, project, scene)
    error = refused(world / "plain", home, dsl="reader -> reader", isolation="worktree")
    assert error.message.startswith("step 1: a worktree of its own needs a git repository")


def test_failed_worktree_ends_step_with_git_error(home: Path, project: Path, programs: Bin) -> None:
    (home / "worktrees").write_text("a file where a folder is needed")

    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.done("builder:3 -> reader")
        assert (run.status, run.reason) == (Status.FAILED, Reason.START_FAILED)
        (leaf,) = runner.leaves(run)
        assert "no worktree can be made" in (leaf.error or "")
        assert (leaf.started_at, branches(project)) == (None, [])
        assert (run.steps[0]["worktree"], run.steps[1]["status"]) == (None, "skipped")

    play(home, project, scene)


def test_worktree_made_during_stop_is_removed(home: Path, project: Path, programs: Bin, world: Path) -> None:
    """Git is slow here: the commands that make a worktree wait at a door, and a wait that is ended opens none."""
    door, arrived = world / "door", world / "arrived"
    os.mkfifo(door)
    real = next(path for folder in os.environ["PATH"].split(":") if (path := Path(folder, "git")).exists())
    programs(
        "git",
        f'#!/bin/sh\ncase "$*" in *\'worktree add\'*) touch {arrived}; cat {door} || exit;; esac\nexec {real} "$@"\n',
    )

    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.chain("reader")
        await until(arrived.exists, "git at work")
        await asyncio.wait_for(runner.engine.stop(run), 10)
        (step,) = runner.engine.find(run.id).steps
        assert (runner.engine.find(run.id).status, step["worktree"]) == (Status.STOPPED, None)
        assert (branches(project), worktrees(project)) == ([], [])

    play(home, project, scene)


def test_unfinished_worktree_is_removed_on_stop(home: Path, project: Path, programs: Bin, world: Path) -> None:
    """Git itself is in the middle of it, with a branch, an entry and some files made: a filter waits at a door."""
    arrived = world / "arrived"
    os.mkfifo(world / "door")
    (project / ".gitattributes").write_text("late filter=door\n")
    (project / "late").write_text("the last of all\n")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "One that takes long")
    git(project, "config", "filter.door.smudge", f"touch {arrived}; cat {world / 'door'}")
    trust(home, project)

    async def scene(runner: WorktreeRunner) -> None:
        run = await runner.chain("reader")
        await until(arrived.exists, "git at work")
        assert (len(branches(project)), len(worktrees(project))) == (1, 1)
        await asyncio.wait_for(runner.engine.stop(run), 10)
        assert runner.engine.find(run.id).status is Status.STOPPED
        assert (branches(project), worktrees(project)) == ([], [])
        assert list((home / "worktrees").iterdir()) == []

    play(home, project, scene)


def test_description_has_the_isolation(home: Path, project: Path, programs: Bin) -> None:
    env = {"PATH": os.environ["PATH"]}
    for isolation, expected in (("worktree", str(project)), ("none", None)):
        request = StartRequest(str(project), env, dsl="reader", isolation=isolation)  # type: ignore[arg-type]
        (told,) = describe(bind(request, load(str(project), str(home))))
        assert (told["isolation"], told["repository"], told["cwd"]) == (isolation, expected, str(project))
    assert worktrees(project) == []


def test_bound_chain_survives_json(home: Path, project: Path, programs: Bin) -> None:
    request = StartRequest(str(project), {"PATH": os.environ["PATH"]}, dsl="reader", isolation="worktree")
    chain = bind(request, load(str(project), str(home)))
    assert msgspec.json.decode(msgspec.json.encode(chain), type=BoundChain) == chain
