"""Starting runs: bind a request, check the limits, and create the runs in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hocket.catalog.cache import Catalogs
from hocket.config import caller_environment
from hocket.config.loading import load
from hocket.config.settings import Limits
from hocket.errors import Conflict
from hocket.model import BoundChain, Event, Kind, Reason, Run, Spec, Status, environments_of, fold
from hocket.model.task import Begin, Order
from hocket.redaction import masked_prompt
from hocket.sessions.background import FolderThreads, OncePerKey
from hocket.sessions.journal import Journal
from hocket.sessions.limits import check_children, check_disk, depth_below, width
from hocket.sessions.messages import Messages
from hocket.sessions.run_identity import new_id
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.stops import Stops
from hocket.sessions.supervisor import Supervisor
from hocket.store import FilePosition, NewRun
from hocket.trust import delegation
from hocket.trust.approvals import Approvals
from hocket.trust.calling_session import calling_agent
from hocket.trust.delegation import DelegationLimits
from hocket.workflows.bind import bind, describe
from hocket.workflows.budgets import Budgets
from hocket.workflows.request import StartRequest
from hocket.workflows.run_diff import record_starts

T = TypeVar("T")

_chain_spec = msgspec.json.Decoder(BoundChain)


class Assignment(NamedTuple):
    """The hand-off that a run is started for."""

    task: str
    handoff: str
    """The id of its record, which is created together with the run."""
    caller: str | None = None
    """The run that hands the task on, if a run does."""
    orders: tuple[Order, ...] = ()
    """Changes to the task that are made in the same transaction, before the hand-off."""
    evidence: str | None = None
    """The state of the working directory, if it was examined already."""


@dataclass(slots=True)
class RunBatch:
    """Runs that are created in one transaction, or not at all."""

    events: list[Event] = field(default_factory=list)
    new: dict[str, NewRun] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    transcripts: dict[tuple[str, str], FilePosition] = field(default_factory=dict)
    """By run and path, how far the transcript of a session has been read for an earlier run."""


class _Reservation(NamedTuple):
    """What a run that is being created counts for."""

    parent: str | None
    cwd: str
    width: int


class Starter:
    """The only way to create a run. One per server.

    ``start`` checks the disk, ``bind`` names, approvals and delegation, ``start_bound`` the depth and the number of
    children, and ``stage_run`` the budgets of the runs above. ``Resumer`` checks the disk and what it resumes itself;
    the chain driver begins at ``stage_run``, because its chain was checked when it was started.
    """

    def __init__(
        self,
        home: Path,
        journal: Journal,
        secrets: SecretStore,
        messages: Messages,
        supervisor: Supervisor,
        stops: Stops,
        budgets: Budgets,
        limits: Limits,
    ) -> None:
        self.catalogs = Catalogs(str(home))
        self.folders = FolderThreads()
        self._home = home
        self._journal = journal
        self._secrets = secrets
        self._messages = messages
        self._supervisor = supervisor
        self._stops = stops
        self._budgets = budgets
        self._limits = limits
        self._once = OncePerKey()
        self._number = journal.read.last_number()
        self._reserved: dict[str, _Reservation] = {}
        """Runs that are being created: they count for the limits before they are committed."""

    @property
    def reserved_directories(self) -> set[str]:
        """The working directories of runs that are being created."""
        return {one.cwd for one in self._reserved.values()}

    async def start(
        self,
        request: StartRequest,
        key: str | None = None,
        parent: Run | None = None,
        assignment: Assignment | None = None,
    ) -> Run:
        """Create a run and start it. The same ``key`` gives the same run."""

        async def create() -> Run:
            check_disk(self._home, self._limits)
            return await self.start_bound(await self.bind(request, parent), key, parent, assignment, request.caller)

        return await self.once(key, create)

    async def once(self, key: str | None, create: Callable[[], Coroutine[Any, Any, Run]]) -> Run:
        """The run that an earlier request with the same key created, else the one that ``create`` returns."""
        return await self._once(key, create, self._journal.read.by_request)

    async def start_bound(
        self,
        bound: Spec | BoundChain,
        key: str | None = None,
        parent: Run | None = None,
        assignment: Assignment | None = None,
        caller: Mapping[str, Any] | None = None,
    ) -> Run:
        """Create the run of a single agent or of a chain. The chain driver takes over a chain once it is committed."""
        depth = depth_below(parent, self._limits)
        directories = await self.folders.run(bound.cwd, record_starts, bound, str(self._home))
        kind = Kind.LEAF if isinstance(bound, Spec) else Kind.CHAIN
        run_id = self._reserve(parent, bound)
        try:
            async with self._secrets.holding(parent.root if parent else run_id, environments_of(bound)):
                batch = RunBatch()
                more: Mapping[str, Any] = {"directories": directories, **(caller or {})}
                self.stage_run(batch, kind, bound, parent, depth, more, key=key, run_id=run_id, assignment=assignment)
                run = (await self.commit_runs(batch))[run_id]
        finally:
            del self._reserved[run_id]
        if isinstance(bound, Spec):
            self._supervisor.start(run, bound)
        if parent is not None and self._is_stopping(parent):
            # The stop of the parent was recorded while this run was being created, and did not include it.
            await self._stops.request_below(run.id, Reason.STOPPED)
        return run

    # Binding

    async def plan(self, request: StartRequest, parent: Run | None = None) -> list[dict[str, Any]]:
        """What a start would run, step by step; raises what the start would raise."""
        return describe(await self.bind(request, parent))

    async def check(self, request: StartRequest) -> Mapping[str, str]:
        """Raise unless the operator could start this now; return the environment that the agent would get."""
        return (await self.folders.run(request.directory, self._bind, request, delegation.UNLIMITED)).env

    def complete_request(self, request: StartRequest, parent: Run | None) -> StartRequest:
        """The request with its working directory and environment filled in."""
        env = request.env
        if env is None:
            env = self._secrets.environment(parent) if parent else caller_environment()
        return msgspec.structs.replace(request, env=env, cwd=request.cwd or (parent.cwd if parent else None))

    async def bind(self, request: StartRequest, parent: Run | None) -> BoundChain | Spec:
        """Resolve everything that a request names; raise if the calling run may not start it."""
        request = self.complete_request(request, parent)
        limits = delegation.UNLIMITED
        if parent is not None:
            if self._is_stopping(parent):
                raise Conflict(f"run {parent.number} is being stopped and cannot start another run")
            depth_below(parent, self._limits)
            if request.on_question is None and (inherited := self._messages.on_question(parent)) != "ask":
                request = msgspec.structs.replace(request, on_question=inherited)
            limits = delegation.above(self._journal.above(parent), self._secrets.record, time.monotonic())
        bound = await self.folders.run(request.directory, self._bind, request, limits)
        return delegation.in_time(bound, limits, time.monotonic())

    def _bind(self, request: StartRequest, limits: DelegationLimits) -> BoundChain | Spec:
        if limits.caller is not None:
            # An agent must not choose what program names resolve to, nor which settings apply.
            request = msgspec.structs.replace(request, env=limits.caller.env)
        config = load(request.directory, str(self._home), request.environment)
        approvals = Approvals(config)
        catalog = partial(self.catalogs.get, request.directory, request.environment, config, approvals)
        if request.caller_mode is not None and limits.caller is None:
            place, env = request.directory, request.environment
            named = request.caller_agent, request.caller_session, request.caller_mode
            limits = limits._replace(caller=calling_agent(*named, place, env, approvals, catalog))
        return bind(request, config, catalog, limits)

    def _is_stopping(self, run: Run) -> bool:
        now = self._journal.run(run.id)
        return now is not None and now.stop_reason is not None

    # Creating

    def _reserve(self, parent: Run | None, bound: Spec | BoundChain) -> str:
        """The id of a new run. Its limits are checked and reserved at once, so that no race exceeds them."""
        run_id, new_width = new_id(), width(bound)
        if parent is not None:
            below = (run for run in self._journal.live.values() if run.parent == parent.id and not run.is_observed)
            live = {run.id: self._width(run) for run in below}
            reserved = {child: one.width for child, one in self._reserved.items() if one.parent == parent.id}
            check_children(parent, sum((live | reserved).values()), new_width, self._limits)
        self._reserved[run_id] = _Reservation(parent.id if parent else None, bound.cwd, new_width)
        return run_id

    def _width(self, run: Run) -> int:
        return width(_chain_spec.decode(self._journal.read.spec(run.id))) if run.kind is Kind.CHAIN else 1

    def stage_run(
        self,
        batch: RunBatch,
        kind: Kind,
        spec: Spec | BoundChain,
        parent: Run | None,
        depth: int,
        more: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        run_id: str | None = None,
        error: str | None = None,
        assignment: Assignment | None = None,
    ) -> Run:
        """Add a run to a batch; return it as it will be once the batch is committed.

        ``more`` is recorded with it: where a run of a chain belongs (``step``, ``stage`` and ``iteration``), or the
        state of its directories.
        With an ``error`` the run ends in the same transaction, so that no later server starts it.
        """
        if parent is None or parent.id not in batch.new:
            self._budgets.check(parent)
        self._number += 1
        run_id = run_id or new_id()
        if isinstance(spec, Spec) and spec.has_terminal:
            kind = Kind.LEAD
        is_process = kind in (Kind.LEAF, Kind.LEAD)
        agent = spec.agent if isinstance(spec, Spec) else spec.name
        bounds = spec.bounds if isinstance(spec, BoundChain) else spec
        limits = {"budget_usd": bounds.budget_usd, "budget_tokens": bounds.budget_tokens}
        limits |= {"idle_timeout": bounds.idle_timeout if is_process else None}
        data: dict[str, Any] = {
            "number": self._number,
            "kind": kind,
            "agent": agent,
            "provider": spec.provider if isinstance(spec, Spec) and is_process else None,
            "parent": parent.id if parent else None,
            "depth": depth,
            "cwd": spec.cwd,
            "prompt": masked_prompt(spec),
            **dict.fromkeys(("step", "stage", "iteration")),
            **(more or {}),
            "on_question": spec.on_question,
            "resumed_from": spec.resumed_from,
            # A family is in one file: a child in a worktree, or in another project, belongs to it as well.
            "registry": (parent.registry if parent else None) or spec.registry,
            **({"task": parent.task} if parent is not None and parent.task else {}),
            **({"task": assignment.task, "handoff": assignment.handoff} if assignment is not None else {}),
            "source": spec.source if isinstance(spec, Spec) else None,
            "definition": spec.definition if isinstance(spec, Spec) else None,
            **{name: value for name, value in limits.items() if value is not None},
        }
        if isinstance(spec, BoundChain):
            data["steps"] = [
                {"agent": one.agent, "iterations": one.iterations, "loop": one.loop, "group": one.group}
                for one in spec.steps
            ]
        now, root = time.time(), parent.root if parent else run_id
        events = [Event(0, now, run_id, root, "run.created", data)]
        notices = spec.notices if isinstance(spec, Spec) else ()
        events += [Event(0, now, run_id, root, "notice", {"kind": "start", "text": text}) for text in notices]
        if error is not None:
            end = {"status": Status.FAILED, "reason": Reason.START_FAILED, "error": error}
            events.append(Event(0, now, run_id, root, "run.ended", end))
        batch.events += events
        batch.new[run_id] = NewRun(self._secrets.conceal(root, msgspec.json.encode(spec)), key)
        if assignment is not None:
            task, handoff, caller, orders, evidence = assignment
            batch.orders += [*orders, Begin(task, handoff, run_id, agent, depth, caller, evidence)]
        return fold(events)

    async def commit_runs(self, batch: RunBatch) -> dict[str, Run]:
        """Create the runs of a batch in one durable transaction."""
        committed = await self._journal.write(
            batch.events, new=batch.new, transcripts=batch.transcripts, orders=batch.orders, durable=True
        )
        return committed.runs
