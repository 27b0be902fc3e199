"""What a run has changed: in the directories that it and its steps work in, and in the worktrees of its steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Conflict, HocketError, NotFound
from hocket.model import BoundChain, Kind, Run, Spec, Worktree, stage_number
from hocket.sessions.journal import Journal
from hocket.trust.approvals import is_trusted
from hocket.workflows import directory_diff, worktrees
from hocket.workflows.chain_state import worktree_of_event
from hocket.workflows.directory_diff import DirectoryChanges, DirectoryStart, Form
from hocket.workflows.git import Git
from hocket.workflows.step_prompts import stage_of

MOST_DIRECTORIES = 8
"""That are recorded at the start of a chain."""

_spec = msgspec.json.Decoder(Spec)
_chain_spec = msgspec.json.Decoder(BoundChain)


def record_starts(bound: Spec | BoundChain, home: str) -> list[dict[str, Any]]:
    """The state of the directories that a new run works in, for its ``run.created``. Blocks: call it from a thread."""
    return [
        {name: value for name, value in directory_diff.record_start(cwd, git)._asdict().items() if value is not None}
        for cwd, git in list(_directories(bound, home).items())[:MOST_DIRECTORIES]
    ]


def _directories(bound: Spec | BoundChain, home: str) -> dict[str, Git]:
    """The directories of the processes to be started, except worktrees."""
    specs = [bound] if isinstance(bound, Spec) else [step.spec for step in bound.steps if step.isolation is None]
    return {spec.cwd: _git(spec, home) for spec in specs}


def _git(spec: Spec, home: str) -> Git:
    return Git(spec.env, spec.cwd, partial(is_trusted, home=home, environ=spec.env))


class _Place(NamedTuple):
    """A directory or a worktree that a run works in."""

    git: Git
    start: DirectoryStart | None = None
    tree: Worktree | None = None
    head: str | None = None
    """The last known commit of a worktree."""
    step: int | None = None
    stage: int | None = None
    agent: str | None = None
    note: str | None = None
    """What else its changes include."""


class RunDiffs:
    """The changes of runs, of one server."""

    def __init__(self, home: str, journal: Journal) -> None:
        self._home = home
        self._journal = journal
        self._read = journal.read
        self._threads = ThreadPoolExecutor(2, "hocket-diff")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def changes(self, run: Run, form: Form) -> dict[str, Any]:
        """What a run has changed, directory by directory. One that cannot be compared has an ``error``."""
        top = self._top(run)
        loop = asyncio.get_running_loop()
        rows = [
            await loop.run_in_executor(self._threads, _row, place, run, top, form) for place in self._places(run, top)
        ]
        files = [
            {**file, "directory": row["directory"], "step": row["step"]} for row in rows for file in row.pop("files")
        ]
        totals = {name: sum(file[name] or 0 for file in files) for name in ("additions", "deletions")}
        return {"run": run.id, "number": run.number, **totals, "files": files, "directories": rows}

    def _top(self, run: Run) -> Run:
        """The run whose start is recorded: the chain of an iteration, a loop or a group, else the run itself."""
        if run.step is None:
            return run
        return next((one for one in self._journal.above(run) if one.kind is Kind.CHAIN), run)

    def _places(self, run: Run, top: Run) -> Iterator[_Place]:
        starts = self._starts(top)
        if top.kind is not Kind.CHAIN:
            spec = _spec.decode(self._read.spec(top.id))
            yield _Place(_git(spec, self._home), starts.get(spec.cwd, _unrecorded(spec.cwd, top)))
            return
        chain = _chain_spec.decode(self._read.spec(top.id))
        chosen = _steps(run, chain)
        bound = msgspec.structs.replace(chain, steps=tuple(chain.steps[step] for step in chosen))
        is_part = run is not top and (len(chain.steps) > 1 or (run.has_process and chain.steps[0].loop))
        note = f"all steps and iterations since run {top.number} began: only worktrees are compared by step"
        for cwd, git in _directories(bound, self._home).items():
            yield _Place(git, starts.get(cwd, _unrecorded(cwd, top)), note=note if is_part else None)
        for event in self._read.events_of_type(top.id, "worktree"):
            if (index := event.data["step"]) in chosen:
                step = chain.steps[index]
                report: Mapping[str, Any] = top.steps[index] if index < len(top.steps) else {}
                place = _Place(_git(step.spec, self._home), tree=worktree_of_event(event.data), head=report.get("head"))
                yield place._replace(step=index, stage=stage_number(chain.steps, index), agent=step.agent)

    def _starts(self, top: Run) -> dict[str, DirectoryStart]:
        created = next(iter(self._read.events_of_type(top.id, "run.created")))
        return {one["directory"]: DirectoryStart(**one) for one in created.data.get("directories") or ()}


def _steps(run: Run, chain: BoundChain) -> Collection[int]:
    """The steps of a chain that a run of it is about."""
    if run.kind is Kind.CHAIN or run.step is None:
        return range(len(chain.steps))
    return stage_of(chain, run.step) if run.kind is Kind.GROUP else (run.step,)


def _unrecorded(directory: str, run: Run) -> DirectoryStart:
    """The state of a directory of which no state was recorded: without git the times of its files are enough."""
    top = directory_diff.repository_above(os.path.realpath(directory))
    why = f"run {run.number} was restored, started by an earlier version, or not started by this server"
    return DirectoryStart(directory, top, why=why if top is not None else None)


def _row(place: _Place, run: Run, top: Run, form: Form) -> dict[str, Any]:
    """The changes of one directory as a JSON row."""
    step = {"step": place.step, "stage": place.stage, "agent": place.agent, "error": None, "hint": None}
    step["branch"] = place.tree.branch if place.tree is not None else None
    try:
        found = _changes(place, run, top, form)
    except HocketError as error:
        where = place.tree.path if place.tree is not None else place.start.directory if place.start is not None else ""
        return {**step, **asdict(DirectoryChanges(where)), "error": error.message, "hint": error.hint}
    return {**step, **asdict(found), "notes": [*([place.note] if place.note else []), *found.notes]}


def _changes(place: _Place, run: Run, top: Run, form: Form) -> DirectoryChanges:
    if place.start is not None:
        begun = min(top.created_at, top.started_at or top.created_at)  # An observed run began before it was created.
        return directory_diff.changes_since(place.start, begun, run.ended_at, place.git, form)
    if (tree := place.tree) is None:
        raise Conflict(f"run {run.number} has no directory")
    if os.path.isdir(tree.path):
        return directory_diff.changes_of_worktree(tree.path, tree.base, run.ended_at, place.git, form)
    head = worktrees.head_of(tree, place.git) or place.head
    if head is None:
        raise NotFound(f"the worktree {tree.path} and its branch {tree.branch} are gone, and no commit is recorded")
    found = directory_diff.changes_of_commits(tree.repository, tree.base, head, place.git, form)
    note = f"the worktree {tree.path} is gone: these are its commits, up to {head[:12]}"
    return replace(found, notes=(note, *found.notes))
