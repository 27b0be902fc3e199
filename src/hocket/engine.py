"""The façade of the server's machinery: what the entry points call to start, follow, answer and stop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hocket.config.settings import Limits
from hocket.errors import Forbidden, NotFound, Unauthorized
from hocket.keeper import machine_restart
from hocket.model import Kind, Reason, Run, Spec, Status
from hocket.providers.base import Answer
from hocket.sessions import spec_cleanup
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.hub import Hub
from hocket.sessions.journal import Journal
from hocket.sessions.keepers import Keepers
from hocket.sessions.messages import Messages
from hocket.sessions.observed.following import ObservedRuns
from hocket.sessions.questions import Questions, outcome
from hocket.sessions.registry_view import RegistryView
from hocket.sessions.run_identity import directory, new_id, run_of_token
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.stops import Stops
from hocket.sessions.stream_mcp import StreamMcp
from hocket.sessions.supervisor import Supervisor
from hocket.sessions.terminal.viewers import Terminals
from hocket.sessions.transcripts import Transcripts
from hocket.store import Store
from hocket.tasks.service import Tasks
from hocket.teams.cleanup import TeamCleanup
from hocket.teams.limits import TeammateLimit
from hocket.teams.teammates import Teammates
from hocket.teams.watch import TeamWatch
from hocket.workflows.budgets import Budgets
from hocket.workflows.chain_driver import Chains
from hocket.workflows.chain_state import LiveChains
from hocket.workflows.chain_worktrees import ChainWorktrees
from hocket.workflows.idle_timeout import IdleTimeouts
from hocket.workflows.notifications import Notifications
from hocket.workflows.resume import Resumer
from hocket.workflows.retention import Retention
from hocket.workflows.run_diff import RunDiffs
from hocket.workflows.run_evidence import RunEvidence
from hocket.workflows.session_import import SessionImport
from hocket.workflows.start import Starter
from hocket.workflows.worktree_cleanup import KeptWorktree, WorktreeCleanup

T = TypeVar("T")

_leaf_spec = msgspec.json.Decoder(Spec)


class Engine:
    """One per server. All its state can be rebuilt from the store and the run directories."""

    def __init__(self, home: Path, socket: str, secret: bytes, store: Store, limits: Limits) -> None:
        self.home = home
        self.limits = limits
        self.idle_after = 0.0
        """Seconds after which a run that waits for a message is shown as idle."""
        self.store = store
        self._secret = secret
        self._journal = journal = Journal(store, asyncio.get_running_loop())
        self.read = journal.read
        self.hub = Hub(journal.read, journal.live)
        self.secrets = SecretStore(home, journal)
        self._messages = Messages(home, journal)
        self.inbox = Questions(journal)
        keepers = Keepers(home)
        self.stream_mcp = StreamMcp(journal, partial(keepers.need_server, "calls"))
        self._stops = Stops(home, journal)
        live_chains = LiveChains()
        self._budgets = Budgets(journal, self._stops, live_chains)
        self._idle_timeouts = IdleTimeouts(journal, self._stops)
        self._notifications = Notifications(home, journal, self._messages)
        self._watcher = FileWatcher()
        self.transcripts = Transcripts(journal, self._watcher)
        self.terminals = Terminals(home, journal, self._watcher)
        self._registry = RegistryView(home, journal)
        self._supervisor = Supervisor(
            home,
            socket,
            secret,
            self.secrets,
            journal,
            self._messages,
            self.stream_mcp,
            keepers,
            self._budgets,
            self._stops,
            self.transcripts,
            self._watcher,
            self._registry,
            limits,
        )
        self._starter = Starter(
            home, journal, self.secrets, self._messages, self._supervisor, self._stops, self._budgets, limits
        )
        self.catalogs = self._starter.catalogs
        worktrees = ChainWorktrees(str(home))
        self._chains = Chains(
            journal, self.secrets, self._starter, self._supervisor, self._stops, live_chains, worktrees
        )
        resumer = Resumer(home, journal, self._starter, worktrees, limits)
        self._worktrees = WorktreeCleanup(str(home), journal, worktrees, live_chains, self._starter)
        self._evidence = RunEvidence(home, journal, self._supervisor, limits)
        self.retention = Retention(home, journal, worktrees)
        self._diffs = RunDiffs(str(home), journal)
        self._observed = ObservedRuns(journal, self.transcripts)
        self._session_import = SessionImport(journal, self._starter, self._observed)
        self.tasks = Tasks(home, store, journal, self.secrets, self._starter, resumer, self._stops)
        self._team_cleanup = TeamCleanup(home, journal)
        teammates = Teammates(journal, self._starter, self.transcripts)
        limit = TeammateLimit(limits.max_teammates_per_lead)
        self._teams = TeamWatch(journal, self._watcher, self.secrets, teammates, self._team_cleanup, limit)
        self._background = BackgroundTasks()
        # What a single component does.
        self.start = self._starter.start
        self.plan = self._starter.plan
        self.run_in_folder = self._starter.folders.run
        self.worktrees = self._worktrees.listed
        self.current_steps = self._worktrees.current_steps
        self.diff = self._diffs.changes
        self.last_events = self._observed.last_events
        self.evidence = self._evidence.of
        self.observed = self._session_import.listed
        self.adopt = self._session_import.adopt
        self.teammates = self._teams.teammates
        self.team_tasks = self._teams.team_tasks
        self.check_teammate = self._teams.check_teammate
        self.finish_team = self._teams.finish
        self.orphan_teams = self._team_cleanup.orphans
        self.clean_orphan = self._team_cleanup.clean
        self.above = journal.above
        self.listen = journal.listen
        self.wait = journal.wait_for_end
        self.read_aside = journal.read_aside
        self.spent_below = journal.spent_below
        self.environment = self.secrets.environment
        self.follow = self.hub.follow
        self.stop = self._stops.stop
        self.send = self._messages.send
        self.interrupt = self._messages.interrupt
        self.close_hook_questions = self._messages.close_hook_questions

    def open(self) -> None:
        """Start the machinery and take over every run that has not ended."""
        self.secrets.open()
        self._journal.listen(self.hub.publish)
        # Before anything is written: it reads what earlier servers wrote and listens to what this one does.
        self._notifications.open()
        self.inbox.open()
        # Before the chains, which check budgets when they start something.
        self._budgets.open()
        self._idle_timeouts.open()
        self._watcher.open()
        self.transcripts.open()
        self.terminals.open()
        self._observed.open()
        self._registry.open()
        self._supervisor.open()
        self._starter.folders.open()
        live = list(self._journal.live.values())
        leaves = [run for run in live if run.has_process and not run.is_observed]
        self._note_restart(leaves)
        for run in leaves:
            self._supervisor.adopt(run, _leaf_spec.decode(self.secrets.record(run)))
        self._chains.open()
        if spec_cleanup.is_due(self.home):
            spec_cleanup.begin(self.home)
            self._background.spawn(spec_cleanup.clean_specs(self.home, self._journal.live.__contains__))
        # An earlier server may have died between recording a stop and passing it on to the runs below.
        if missed := [run for run in live if run.stop_reason is None and self._is_below_a_stop(run)]:
            self._background.spawn(self._stops.insist(missed, Reason.STOPPED))
        self.tasks.open()
        # After the supervisor has taken over the leads.
        self._teams.open()
        self._team_cleanup.open()
        self.retention.open()

    def _is_below_a_stop(self, run: Run) -> bool:
        return any(one.stop_reason is Reason.STOPPED for one in self.above(run))

    def _note_restart(self, leaves: list[Run]) -> None:
        ended = sum(machine_restart.ended_by_restart(str(self.directory(run))) for run in leaves)
        if ended:
            machine_restart.leave_note(str(self.home), ended)

    def end_followers(self) -> None:
        """End all followers; clients reconnect to the next server."""
        self.stream_mcp.begin_close()
        self.hub.close()
        self.inbox.close()
        self.terminals.end_viewers()

    async def close(self) -> None:
        """Release everything. Runs live on with their keepers; the next server takes them over."""
        self.end_followers()
        await self.tasks.close()
        await self.retention.close()
        await self._background.close()
        await self.stream_mcp.close()
        await self._notifications.close()
        await self._budgets.close()
        await self._idle_timeouts.close()
        self._starter.folders.close()
        self._diffs.close()
        await self._chains.close()
        await self.terminals.close()
        self._watcher.close()
        await self._observed.close()
        await self._teams.close()
        await self._team_cleanup.close()
        await self.transcripts.close()
        await self._supervisor.close(self._chains.due)
        await self._registry.close()
        self._journal.cancel_waits()
        self.secrets.close()
        self.store.close()

    # Worktrees

    async def prune_worktrees(self, refs: Sequence[str], older: float, *, dry: bool) -> list[KeptWorktree]:
        """Remove the worktrees with which nothing is lost, of some runs or of all."""
        return await self._worktrees.prune({self.find(ref).id for ref in refs}, older, dry=dry)

    # Reading

    def find(self, ref: str) -> Run:
        return self._journal.live.get(ref) or self.read.find(ref)

    def current(self, run_id: str) -> Run | None:
        """The run as committed, live or ended."""
        return self._journal.run(run_id)

    @property
    def applied_seq(self) -> int:
        """The last event that the runs show: more may be stored already."""
        return self._journal.applied_seq

    def live(self) -> list[Run]:
        return sorted(self._journal.live.values(), key=lambda run: run.number)

    @property
    def count(self) -> int:
        return sum(run.has_process and not run.is_observed for run in self._journal.live.values())

    def live_teammates(self, run: Run) -> int | None:
        """How many teammates a live lead has now; None for any other run."""
        if run.ended or not run.has_process:
            return None
        count = sum(one.teammate is not None and one.parent == run.id for one in self._journal.live.values())
        return count if count or run.kind is Kind.LEAD else None

    def displayed(self, run: Run) -> Run:
        """The run as displayed: a loop or a group waits with its chain, which alone is recorded as waiting."""
        if run.ended or run.kind not in (Kind.LOOP, Kind.GROUP):
            return run
        parked = next((one for one in self.above(run) if one.parked_until is not None), None)
        if parked is None:
            return run
        return msgspec.structs.replace(
            run, status=Status.WAITING, parked_until=parked.parked_until, parked_for=parked.parked_for
        )

    def directory(self, run: Run) -> Path:
        return directory(self.home, run)

    # Communicating

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
        answer = await self._messages.answer(run, question, Answer(allow, text, always), by, key or new_id())
        self._chains.answered(answer["run"], answer["question"], allow=answer["allow"])
        return answer

    async def ask(self, run: Run, text: str, options: Sequence[str] = (), key: str | None = None) -> str:
        """Ask a question of a run's own; return the question's id. With ``on_question = fail`` it ends the run."""
        question = await self._messages.ask(run, text, options, key)
        await self._stop_if_unanswerable(run)
        return question

    async def ask_by_hook(self, run: Run, call: Mapping[str, Any], key: str | None = None) -> str:
        """Ask whether a run's call of a tool is allowed, for a hook of its CLI; the same otherwise."""
        question = await self._messages.ask_by_hook(run, call, key)
        await self._stop_if_unanswerable(run)
        return question

    async def _stop_if_unanswerable(self, run: Run) -> None:
        now = self._journal.live.get(run.id)
        if now is not None and now.open_questions and self._messages.on_question(now) == "fail":
            await self._stops.request([now], Reason.NO_ANSWER)

    def question(self, run: Run, question: str) -> dict[str, Any]:
        """A question of a run and its outcome."""
        found = self.read.question(run.id, question)
        if found is None:
            raise NotFound(
                f"run {run.number} has no question {question!r}", f"`hocket show {run.number}` lists its questions"
            )
        return outcome(self._journal.run(run.id) or run, found)

    def run_of_token(self, token: str) -> Run:
        """The live run that a token belongs to."""
        run_id = run_of_token(self._secret, token)
        if run_id is None and self._journal.run(token.partition(".")[0]) is not None:
            raise Forbidden("that is not the token of this run")
        if run_id is None:
            raise Unauthorized("that is not a token of this server")
        run = self._journal.live.get(run_id)
        if run is None:
            raise Forbidden("the run of this token has ended")
        return run
