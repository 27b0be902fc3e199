"""MAKING IT HAPPEN: ``Engine.start`` is the only way a run comes to life, so every rule is checked here, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hocket.catalog.cache import Catalogs, Definitions
from hocket.catalog.resolve import Sight
from hocket.config import caller_environment
from hocket.config.loading import load
from hocket.errors import Conflict, DiskLow, Forbidden, NotFound, Unauthorized
from hocket.keeper import files, machine_restart
from hocket.model import BoundChain, Event, Kind, Reason, Run, Spec, Status, environments_of, fold
from hocket.model.task import Begin, Order
from hocket.providers.base import Answer
from hocket.sessions import spec_cleanup
from hocket.sessions.background import BackgroundTasks, Once
from hocket.sessions.disk_reserve import Reserve
from hocket.sessions.folder_threads import FolderThreads
from hocket.sessions.hub import Hub
from hocket.sessions.journal import Journal
from hocket.sessions.keepers import Keepers
from hocket.sessions.limits import Limits, check_children, check_disk, depth_below, width
from hocket.sessions.messages import Messages
from hocket.sessions.questions import Questions, outcome
from hocket.sessions.run_identity import directory, new_id, run_of_token
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.secrets import masked_prompt
from hocket.sessions.stream_mcp import StreamMcp
from hocket.sessions.supervisor import Supervisor
from hocket.store import Committed, Line, NewRun, Store, UsageTotal
from hocket.trust import delegation
from hocket.trust.approvals import Approvals
from hocket.trust.delegation import Ceiling
from hocket.workflows import resume as resuming
from hocket.workflows.bind import bind, check_directory, describe
from hocket.workflows.budgets import Budgets
from hocket.workflows.chain_driver import Chains
from hocket.workflows.idle_timeout import Silence
from hocket.workflows.isolation import placed
from hocket.workflows.live_chains import LiveChains, TreePolicy
from hocket.workflows.request import ResumeRequest, StartRequest
from hocket.workflows.run_batch import Births
from hocket.workflows.worktree_cleanup import Leftover, Leftovers

T = TypeVar("T")

ROOM_CHECK_SECONDS = 2.0
"""How often a stop looks whether it waits for room on the disk alone."""

_leaf_spec = msgspec.json.Decoder(Spec)
_chain_spec = msgspec.json.Decoder(BoundChain)


class Assignment(NamedTuple):
    """The hand-off that a run is started for."""

    task: str
    handoff: str
    """The record of it, which becomes true together with the run."""
    caller: str | None = None
    """The run that asks, where it is a run."""
    first: tuple[Order, ...] = ()
    """What is done to the task in the same breath, before."""
    evidence: str | None = None
    """How the working directory stands, where somebody has looked already."""


class _Expected(NamedTuple):
    """A run that is being created."""

    parent: str | None
    cwd: str
    width: int


class Engine:
    """One per server. Everything it knows it can learn again from the store and the run directories."""

    def __init__(self, home: Path, socket: str, secret: bytes, store: Store, limits: Limits) -> None:
        self.home = home
        self.limits = limits
        self._secret = secret
        self.store = store
        self._journal = Journal(store, asyncio.get_running_loop())
        self.read = self._journal.read
        self.hub = Hub(self.read, self._journal.live)
        self._number = self.read.last_number()
        self.secrets = SecretStore(home, self._journal)
        self._messages = Messages(home, self._journal)
        self.inbox = Questions(self._journal)
        keepers = Keepers(home)
        self.stream_mcp = StreamMcp(self._journal, partial(keepers.need_server, "calls"))
        self._budgets = Budgets(self._journal, self._ask_to_stop)
        live_chains = LiveChains(self._journal)
        self._supervisor = Supervisor(
            home,
            socket,
            secret,
            self.secrets,
            self._journal,
            self._messages,
            self.stream_mcp,
            keepers,
            TreePolicy(self._budgets, live_chains),
            limits,
        )
        self._chains = Chains(self._journal, self._bear, self._bring_forth, self._supervisor, live_chains, home)
        self._silence = Silence(self._journal, self._end_below)
        self.catalogs = Catalogs(str(home))
        self._definitions = Definitions()
        self._folders = FolderThreads()
        self._expected: dict[str, _Expected] = {}
        """Runs that are being created: they count before they are committed."""
        self._once = Once()
        self._tasks = BackgroundTasks()
        self._resuming = asyncio.Lock()
        self._waiting: dict[str, list[asyncio.Future[Run]]] = {}

    def open(self) -> None:
        """Start the machinery and take over every run that has not ended."""
        self.secrets.open()
        self._journal.listen(self.hub.publish)
        self.inbox.open()
        # Before the chains: what is spent must be known when they start something.
        self._budgets.open()
        self._silence.open()
        self._journal.listen(self._on_commit)
        self._supervisor.open()
        self._folders.open()
        live = list(self._journal.live.values())
        self._note_restart([run for run in live if run.kind is Kind.LEAF])
        for run in live:
            if run.kind is Kind.LEAF:
                self._supervisor.adopt(run, _leaf_spec.decode(self._record(run)))
        for run in live:
            if run.kind is Kind.CHAIN:
                self._chains.adopt(run, _chain_spec.decode(self._record(run)))
        if spec_cleanup.is_due(self.home):
            spec_cleanup.begin(self.home)
            self._tasks.spawn(spec_cleanup.clean_specs(self.home, self._journal.live.__contains__))
        if untold := [run for run in live if run.stop_reason is None and self._is_below_a_stop(run)]:
            self._tasks.spawn(self._pass_on_stop(untold))

    def _is_below_a_stop(self, run: Run) -> bool:
        return any(one.stop_reason is Reason.STOPPED for one in self.above(run))

    async def _pass_on_stop(self, runs: list[Run]) -> None:
        """To those of whom a server knew that they are to end with who started them, and died before it said so."""
        await self._supervisor.insist_on_stop(runs, Reason.STOPPED)
        self._chains.stopping(runs)

    def _note_restart(self, leaves: list[Run]) -> None:
        ended = sum(machine_restart.ended_by_restart(str(self.directory(run))) for run in leaves)
        if ended:
            machine_restart.leave_note(str(self.home), ended)

    def leave(self) -> None:
        """Let everybody go who waits; they come back to the next server."""
        self.stream_mcp.leave()
        self.hub.close()
        self.inbox.close()

    async def close(self) -> None:
        """Let go. Runs live on with their keepers; the next server takes them over."""
        self.leave()
        await self._tasks.close()
        await self.stream_mcp.close()
        await self._budgets.close()
        await self._silence.close()
        self._folders.close()
        await self._chains.close()
        await self._supervisor.close(self._chains.due)
        for future in (f for waiting in self._waiting.values() for f in waiting):
            future.cancel()
        self.secrets.close()
        self.store.close()

    # Starting

    async def start(
        self,
        request: StartRequest,
        key: str | None = None,
        parent: Run | None = None,
        assignment: Assignment | None = None,
    ) -> Run:
        """Create a run and set it going. The same ``key`` gives the same run, however often it is asked for."""
        return await self._once(key, lambda: self._start(request, key, parent, assignment), self.read.by_request)

    async def resume(
        self,
        run: Run,
        request: ResumeRequest,
        key: str | None = None,
        assignment: Assignment | None = None,
    ) -> Run:
        """Continue an ended run in a new one: its session, or the rest of a chain."""
        if request.env is None:
            request = msgspec.structs.replace(request, env=caller_environment())
        return await self._once(key, lambda: self._resume(run, request, key, assignment), self.read.by_request)

    async def _start(
        self, request: StartRequest, key: str | None, parent: Run | None, assignment: Assignment | None
    ) -> Run:
        check_disk(self.home, self.limits)
        bound = await self._bound(self.completed(request, parent), parent)
        return await self._begin(bound, key, parent, depth_below(parent, self.limits), assignment)

    async def plan(self, request: StartRequest, parent: Run | None = None) -> list[dict[str, Any]]:
        """What a start would begin, step by step; raises what the start would raise. Nothing is started."""
        return describe(await self._bound(self.completed(request, parent), parent))

    def completed(self, request: StartRequest, parent: Run | None) -> StartRequest:
        """The request with its working directory and environment filled in."""
        env = request.env
        if env is None:
            env = self.environment(parent) if parent else caller_environment()
        return msgspec.structs.replace(request, env=env, cwd=request.cwd or (parent.cwd if parent else None))

    async def _bound(self, request: StartRequest, parent: Run | None) -> BoundChain | Spec:
        """A request with nothing left to look up, and nothing in it that the run which asks may not have."""
        if parent is not None and self._was_told_to_stop(parent):
            raise Conflict(f"run {parent.number} is being stopped; it can start nothing more")
        depth_below(parent, self.limits)
        if parent is not None and request.on_question is None and (wish := self._messages.on_question(parent)) != "ask":
            # Who is not there for a run is not there for what it starts either.
            request = msgspec.structs.replace(request, on_question=wish)
        ceiling = self._ceiling(parent)
        bound = await self.look_in(request.directory, self._bind, request, ceiling)
        return delegation.in_time(bound, ceiling, time.monotonic())

    async def check(self, request: StartRequest) -> Mapping[str, str]:
        """Raise unless this could be started now, by a person; what it would get of that person's environment."""
        return (await self.look_in(request.directory, self._bind, request, delegation.NONE)).env

    async def look_in(self, folder: str, see: Callable[..., T], *words: Any) -> T:
        """What a function returns that reads files of a folder, which may take its time."""
        return await self._folders.run(folder, see, *words)

    def spent_below(self, run: Run) -> UsageTotal:
        """Return what a run and everything below it have used."""
        return self._journal.spent_below(run)

    def _ceiling(self, parent: Run | None) -> Ceiling:
        """What holds for a start below a run."""
        return delegation.above(self.above(parent), self._record, time.monotonic()) if parent else delegation.NONE

    def _bind(self, request: StartRequest, ceiling: Ceiling) -> BoundChain | Spec:
        if ceiling.caller is not None:
            # Which programs a name means, and whose settings count, is not for an agent to choose.
            request = msgspec.structs.replace(request, env=ceiling.caller.env)
        config = load(request.directory, str(self.home), request.environment)
        catalog = partial(self.catalogs.get, request.directory, request.environment, config, Approvals(config))
        return bind(request, config, Sight(catalog, self._definitions.load), ceiling)

    async def _resume(self, run: Run, request: ResumeRequest, key: str | None, assignment: Assignment | None) -> Run:
        check_disk(self.home, self.limits)
        async with self._resuming:  # One after the other: nobody goes on with what somebody goes on with already.
            bound = await self._journal.read_aside(partial(resuming.bound, run=run, request=request))
            bound = await self.look_in(bound.cwd, resuming.vouched_for, bound, str(self.home))
            if isinstance(bound, Spec):
                await self._come_home(bound)
            return await self._begin(bound, key, None, 0, assignment)

    async def worktrees(self) -> list[Leftover]:
        """What chains have left in worktrees."""
        return await self._leftovers().listed()

    async def prune_worktrees(self, refs: Sequence[str], older: float, *, dry: bool) -> list[Leftover]:
        """Take away those worktrees that hold nothing, of some runs or of all."""
        runs = {self.find(ref).id for ref in refs}
        async with self._resuming:  # Nobody goes on in what is just taken away.
            return await self._leftovers().prune(runs, older, dry=dry)

    def _leftovers(self) -> Leftovers:
        return self._chains.leftovers(str(self.home), lambda: {one.cwd for one in self._expected.values()})

    async def _come_home(self, spec: Spec) -> None:
        """Have the directory of a session there: the worktree of a step may have been removed since."""
        home = await self._journal.read_aside(partial(resuming.home_of, spec=spec))
        if home is not None:
            home = await self.look_in(spec.cwd, resuming.home_now, home, spec, str(self.home))
        if home is not None and home.is_lost():
            await self._chains.restore_home(home, spec)
        elif home is not None:
            resuming.check_home(home, spec, await self.look_in(spec.cwd, placed, home.step, home.tree))
        check_directory(spec.cwd)

    async def _begin(
        self,
        bound: Spec | BoundChain,
        key: str | None,
        parent: Run | None,
        depth: int,
        assignment: Assignment | None = None,
    ) -> Run:
        run_id = self._reserve(parent, bound)
        births = Births()
        try:
            async with self.secrets.holding(parent.root if parent else run_id, environments_of(bound)):
                kind = Kind.LEAF if isinstance(bound, Spec) else Kind.CHAIN
                run = self._bear(births, kind, bound, parent, depth, key=key, run_id=run_id, assignment=assignment)
                opening = None if isinstance(bound, Spec) else self._chains.prepare(run, bound, births)
                born = await self._bring_forth(births)
        finally:
            self._expected.pop(run_id, None)
        run = born[run_id]
        if isinstance(bound, Spec):
            self._supervisor.begin(run, bound)
        elif opening is not None:
            self._chains.begin(opening, born)
        if parent is not None and self._was_told_to_stop(parent):
            # The stop of its parent came while this run was being created, and did not see it.
            await self._end_below(run, Reason.STOPPED)
        return run

    def _was_told_to_stop(self, run: Run) -> bool:
        now = self._journal.run(run.id)
        return now is not None and now.stop_reason is not None

    def _reserve(self, parent: Run | None, bound: Spec | BoundChain) -> str:
        """An id for a new run, and its places below its parent: in one go with the check, so no race exceeds limits."""
        run_id, wanted = new_id(), width(bound)
        if parent is not None:
            live = {run.id: self._width(run) for run in self._journal.live.values() if run.parent == parent.id}
            expected = {child: one.width for child, one in self._expected.items() if one.parent == parent.id}
            check_children(parent, sum((live | expected).values()), wanted, self.limits)
        self._expected[run_id] = _Expected(parent.id if parent else None, bound.cwd, wanted)
        return run_id

    def _width(self, run: Run) -> int:
        return width(_chain_spec.decode(self.read.spec(run.id))) if run.kind is Kind.CHAIN else 1

    def _bear(
        self,
        births: Births,
        kind: Kind,
        spec: Spec | BoundChain,
        parent: Run | None,
        depth: int,
        *,
        key: str | None = None,
        run_id: str | None = None,
        step: int | None = None,
        stage: int | None = None,
        iteration: int | None = None,
        error: str | None = None,
        assignment: Assignment | None = None,
    ) -> Run:
        """One more run that is to come into being with those; as it will be then.

        With an ``error`` it ends in the same breath, so that no server after us starts what must not be started.
        """
        if parent is None or parent.id not in births.new:
            self._budgets.check(parent)
        self._number += 1
        run_id = run_id or new_id()
        data: dict[str, Any] = {
            "number": self._number,
            "kind": kind,
            "agent": spec.agent if isinstance(spec, Spec) else spec.name,
            "provider": spec.provider if isinstance(spec, Spec) and kind is Kind.LEAF else None,
            "parent": parent.id if parent else None,
            "depth": depth,
            "cwd": spec.cwd,
            "prompt": masked_prompt(spec),
            "step": step,
            "stage": stage,
            "iteration": iteration,
            "on_question": spec.on_question,
            "resumed_from": spec.resumed_from,
            **_wanted_by(assignment, parent),
            "source": spec.source if isinstance(spec, Spec) else None,
            "definition": spec.definition if isinstance(spec, Spec) else None,
            **_bounds(spec, kind),
        }
        if isinstance(spec, BoundChain):
            data["steps"] = [
                {"agent": one.agent, "iterations": one.iterations, "loop": one.loop, "group": one.group}
                for one in spec.steps
            ]
        event = Event(0, time.time(), run_id, parent.root if parent else run_id, "run.created", data)
        told = [
            Event(0, event.ts, run_id, event.root, "notice", {"kind": "start", "text": text})
            for text in (spec.notices if isinstance(spec, Spec) else ())
        ]
        if error is not None:
            end = {"status": Status.FAILED, "reason": Reason.START_FAILED, "error": error}
            told.append(Event(0, event.ts, run_id, event.root, "run.ended", end))
        births.events += [event, *told]
        births.new[run_id] = NewRun(self.secrets.conceal(event.root, msgspec.json.encode(spec)), key)
        births.orders += _orders(assignment, run_id, data["agent"], depth)
        return fold([event, *told])

    async def _bring_forth(self, births: Births) -> dict[str, Run]:
        """The transaction that brings runs into being. Flushed: somebody is about to be told."""
        committed = await self._journal.write(births.events, new=births.new, orders=births.orders, durable=True)
        return committed.runs

    async def order(
        self, *orders: Order, key: str | None = None, durable: bool = True, ending: Run | None = None
    ) -> Committed:
        """Do something to tasks, all of it or nothing; with it a run may be told to end, which ``stop`` carries out."""
        events = [] if ending is None or ending.ended else [_told_to_stop(ending)]
        return await self._journal.write(events, orders=orders, order_key=key, durable=durable)

    def listen(self, listener: Callable[[Committed], None]) -> None:
        """Be told of every commit, after the engine itself."""
        self._journal.listen(listener)

    # Looking

    def find(self, ref: str) -> Run:
        return self._journal.live.get(ref) or self.read.find(ref)

    def live(self) -> list[Run]:
        return sorted(self._journal.live.values(), key=lambda run: run.number)

    @property
    def count(self) -> int:
        return sum(run.kind is Kind.LEAF for run in self._journal.live.values())

    def above(self, run: Run) -> list[Run]:
        """The run and its ancestors."""
        return self._journal.above(run)

    def resting(self, run: Run) -> Run:
        """The run as it is shown: a loop or a group waits with its chain, which alone is recorded as waiting."""
        if run.ended or run.kind not in (Kind.LOOP, Kind.GROUP):
            return run
        parked = next((one for one in self.above(run) if one.parked_until is not None), None)
        if parked is None:
            return run
        return msgspec.structs.replace(
            run, status=Status.WAITING, parked_until=parked.parked_until, parked_for=parked.parked_for
        )

    def environment(self, run: Run) -> dict[str, str]:
        """What a run was started with, before what we added: its children's, unless they bring their own."""
        env: dict[str, str] = msgspec.json.decode(self._record(run))["env"]
        return env

    def _record(self, run: Run) -> bytes:
        """What a run was started with, with the values of its secret variables as long as its tree lives."""
        return self.secrets.reveal(run.root, self.read.spec(run.id))

    def directory(self, run: Run) -> Path:
        return directory(self.home, run)

    def follow(
        self, run: Run, after: int, *, wait: bool = True, heartbeat: float | None = None
    ) -> AsyncIterator[list[Line]]:
        return self.hub.follow(run, after, wait=wait, heartbeat=heartbeat)

    async def wait(self, run: Run) -> Run:
        """The run as it ended."""
        now = self._journal.run(run.id) or run
        if now.ended:
            return now
        future: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run.id, []).append(future)
        return await future

    def _on_commit(self, committed: Committed) -> None:
        for run in committed.runs.values():
            if run.ended:
                for future in self._waiting.pop(run.id, ()):
                    if not future.done():
                        future.set_result(run)
                self._chains.child_ended(run)

    # Talking

    async def stop(self, run: Run) -> dict[str, Any]:
        """End a run and everything below it, and say so when all of it is gone."""
        targets = await self._end_below(run, Reason.STOPPED)
        ended = [await self._wait_for_end(one, targets) for one in targets]
        now = self._journal.run(run.id) or run
        return {
            "run": run.id,
            "status": now.status,
            "reason": now.reason,
            "stopped": [one.id for one in ended],
            "survivors": [pid for one in ended for pid in self._survivors(one)],
        }

    async def _wait_for_end(self, run: Run, stopped: list[Run]) -> Run:
        """The run as it ended; raises where all that is missing is the room to record such an end."""
        while True:
            with suppress(TimeoutError):
                return await asyncio.wait_for(self.wait(run), ROOM_CHECK_SECONDS)
            gone = (one for one in stopped if one.kind is Kind.LEAF and one.id in self._journal.live)
            unrecorded = [one for one in gone if not files.is_locked(str(self.directory(one)))]
            if unrecorded and not Reserve(self.home).has_room():
                numbers = ", ".join(str(one.number) for one in unrecorded)
                raise DiskLow(
                    f"the disk is full: stopped, but the end of run {numbers} cannot be recorded yet",
                    "Free some space; it is recorded as soon as there is room",
                )

    async def _end_below(self, run: Run, reason: Reason) -> list[Run]:
        runs = await self._supervisor.ask_to_stop_below(run.id, reason)
        self._chains.stopping(runs)
        return runs

    async def _ask_to_stop(self, runs: list[Run], reason: Reason = Reason.STOPPED) -> None:
        await self._supervisor.ask_to_stop(runs, reason)
        self._chains.stopping(runs)

    def _survivors(self, run: Run) -> list[int]:
        return [
            pid for event in self.read.events_of_type(run.id, "run.ended") for pid in event.data.get("survivors", ())
        ]

    async def send(self, run: Run, text: str, key: str) -> int:
        return await self._messages.send(run, text, key)

    async def interrupt(self, run: Run, key: str) -> None:
        await self._messages.interrupt(run, key)

    async def answer(
        self,
        run: Run,
        question: str | None,
        allow: bool,
        text: str | None,
        by: str,
        key: str | None = None,
        *,
        always: bool = False,
    ) -> dict[str, Any]:
        given = await self._messages.answer(run, question, Answer(allow, text, always), by, key or new_id())
        self._chains.answered(given["run"], given["question"], allow=given["allow"])
        return given

    async def ask(self, run: Run, text: str, options: Sequence[str] = (), key: str | None = None) -> str:
        """A question of a run's own; the question's id. Where a question ends a run, this one does."""
        question = await self._messages.ask(run, text, options, key)
        now = self._journal.live.get(run.id)
        if now is not None and now.open_questions and self._messages.on_question(now) == "fail":
            await self._supervisor.ask_to_stop([now], Reason.NO_ANSWER)
        return question

    def question(self, run: Run, question: str) -> dict[str, Any]:
        """What a run asked, and what became of it."""
        asked = self.read.question(run.id, question)
        if asked is None:
            raise NotFound(f"run {run.number} never asked {question!r}", f"`hocket show {run.number}` has what it asks")
        return outcome(self._journal.run(run.id) or run, asked)

    def run_of_token(self, token: str) -> Run:
        """The live run that a capability speaks for."""
        run_id = run_of_token(self._secret, token)
        if run_id is None and self._journal.run(token.partition(".")[0]) is not None:
            raise Forbidden("that is not the token of this run")
        if run_id is None:
            raise Unauthorized("that is not a token of this server")
        run = self._journal.live.get(run_id)
        if run is None:
            raise Forbidden("the run that this token spoke for has ended")
        return run


def _told_to_stop(run: Run) -> Event:
    return Event(0, time.time(), run.id, run.root, "input", {"kind": "stop", "reason": Reason.STOPPED})


def _wanted_by(assignment: Assignment | None, parent: Run | None) -> dict[str, Any]:
    """What a run is done for: what it was handed, else what its parent is at work on."""
    if assignment is not None:
        return {"task": assignment.task, "handoff": assignment.handoff}
    return {"task": parent.task} if parent is not None and parent.task else {}


def _orders(assignment: Assignment | None, run_id: str, agent: str, depth: int) -> list[Order]:
    if assignment is None:
        return []
    begin = Begin(assignment.task, assignment.handoff, run_id, agent, depth, assignment.caller, assignment.evidence)
    return [*assignment.first, begin]


def _bounds(spec: Spec | BoundChain, kind: Kind) -> dict[str, Any]:
    """What a run may spend, and how long it may be silent, for those who look after that."""
    bounds = spec.bounds if isinstance(spec, BoundChain) else spec
    found = {"budget_usd": bounds.budget_usd, "budget_tokens": bounds.budget_tokens}
    found |= {"idle_timeout": bounds.idle_timeout if kind is Kind.LEAF else None}
    return {name: value for name, value in found.items() if value is not None}
