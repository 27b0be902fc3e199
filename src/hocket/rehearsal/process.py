"""The process of a scripted agent: its input, its output, its session and its loop of turns.

``AgentProcess.serve()`` runs turns until the input has ended and no background agent is left. ``turns.py`` has what
happens inside a turn.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from hocket.rehearsal import stream_events
from hocket.rehearsal.conversation_counts import ConversationCounts, note_uncovered
from hocket.rehearsal.flags import Flags
from hocket.rehearsal.input_queue import InputQueue, Interrupted, TurnInput
from hocket.rehearsal.matching import NOTIFICATION, Uncovered
from hocket.rehearsal.messages_api import tokens
from hocket.rehearsal.session import Session
from hocket.rehearsal.steps import AGENT_TOOL, NO_DEFINITION, Script, Spend
from hocket.rehearsal.stream_events import camel
from hocket.rehearsal.tools import OfferedTools, offered_tools


class AgentProcess:
    def __init__(
        self,
        script: Script,
        state: str,
        flags: Flags,
        definitions: Mapping[str, Mapping[str, Any]],
        agents: list[str],
        session: Session,
    ) -> None:
        self.script, self.flags, self.definitions, self.session = script, flags, definitions, session
        self.agents = agents
        """The names of all agents that can be started."""
        self.mode = flags.mode
        self.model = self._model()
        self.conversation_counts = ConversationCounts(state)
        self.inbox = InputQueue(self._control)
        self.denials: list[dict[str, Any]] = []
        self.safety_stops = 0
        self.last_result: dict[str, Any] | None = None
        self._state = state
        self._granted: set[tuple[str | None, ...]] = set()
        """Tools with the rules that an answer has allowed."""
        self._tasks: list[Mapping[str, Any]] = []
        self._since = stream_events.no_usage()
        self._cost_before = session.used["cost"]
        self._user_events = 0
        self._results = 0
        self._held: list[dict[str, Any]] = []
        self._lock = threading.RLock()

    # --- agents ------------------------------------------------------------------------------------------

    @property
    def agent(self) -> str:
        """The agent of the command line; an undefined one is ignored, as by the real program with stream input."""
        name = self.flags.values.get("--agent", NO_DEFINITION)
        return name if name in self.definitions else NO_DEFINITION

    def _model(self) -> str:
        defined = self.definitions.get(self.agent, {}).get("model")
        chosen = self.flags.values.get("--model") or defined
        return str(chosen) if chosen and chosen != "inherit" else "rehearsal"

    def system(self, agent: str, *, lead: bool) -> str:
        """The system prompt of an agent. The texts of the command line are for the lead alone."""
        defined = self.definitions.get(agent, {}).get("prompt")
        given = self.flags.values if lead else {}
        texts = (defined or given.get("--system-prompt"), given.get("--append-system-prompt"))
        return "\n\n".join(str(text) for text in texts if text)

    def offered_tools(self, agent: str) -> OfferedTools:
        return offered_tools(self.flags, self.definitions.get(agent, {}))

    def is_free(self, tool: str, rule: str | None) -> bool:
        """True if a tool that needs permission may be used without asking."""
        if (tool, rule) in self._granted:
            return True
        edits = tool in ("Edit", "Write", "NotebookEdit") and self.mode == camel("accept_edits")
        allowed = tool in (self.flags.tools("--allowedTools") or [])
        return edits or allowed or self.mode == camel("bypass_permissions")

    def grant(self, answer: Mapping[str, Any]) -> None:
        """Apply the rules of an answer that allow a tool for the rest of the session."""
        for update in answer.get(camel("updated_permissions")) or ():
            if update.get("type") == camel("add_rules") and update.get("destination") == "session":
                rules = (
                    tuple(rule.get(camel(key)) for key in ("tool_name", "rule_content")) for rule in update["rules"]
                )
                self._granted.update(rules)

    def can_ask(self) -> bool:
        return self.flags.asks_host and self.mode != camel("dont_ask")

    # --- output ---------------------------------------------------------------------------------------------

    def emit(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            if event["type"] == "user" and event["parent_tool_use_id"] is None:
                self._user_events += 1
            marks = {} if event["type"].startswith("control_") else self._marks()
            write(1, json.dumps({**event, **marks}) + "\n")

    def _marks(self) -> dict[str, str]:
        return {"session_id": self.session.id, "uuid": stream_events.new_uuid()}

    def emit_partial(self, event: Mapping[str, Any]) -> None:
        if self.flags.partial:
            self.emit(event)

    # --- turns ----------------------------------------------------------------------------------------------

    def serve(self, run_turn: Callable[[TurnInput], stream_events.Result]) -> int:
        """Run turns until there is nothing more to do, and return the exit code."""
        while (work := self.inbox.next()) is not None:
            self._turn(work, run_turn)
        self._release()
        failed = self.last_result is not None and self.last_result["is_error"]
        return 1 if failed and not self.inbox.signalled else 0

    def _turn(self, work: TurnInput, run_turn: Callable[[TurnInput], stream_events.Result]) -> None:
        started = time.monotonic()
        self._user_events, self.denials, self.safety_stops = 0, [], 0
        tools = ["Task" if tool == AGENT_TOOL else tool for tool in self.offered_tools(self.agent).names()]
        self.emit(stream_events.init(os.getcwd(), self.model, self.mode, tools, self.agents))
        ended = run_turn(work)
        self.session.save()
        self._finish(ended, work, int((time.monotonic() - started) * 1000))

    def _finish(self, ended: stream_events.Result, work: TurnInput, duration_ms: int) -> None:
        with self._lock:
            totals = stream_events.Totals(
                model=self.model,
                used=dict(self.session.used),
                since=dict(self._since),
                turns=1 + self._user_events,
                duration_ms=duration_ms,
                position=self._results,
                denials=self.denials,
                safety_stops=self.safety_stops,
                origin={"kind": "task-notification", "producer": "session-task"} if work.woken else None,
            )
            self._since = stream_events.no_usage()
            self._results += 1
            self.last_result = stream_events.result(ended, totals)
            self._held.append(self.last_result)
            if not self.inbox.waits_for_background():
                self._release()

    def _release(self) -> None:
        """Emit held results: after the end of input they are held until background agents are done."""
        for result in self._held:
            self.emit(result)
        self._held.clear()

    # --- usage ----------------------------------------------------------------------------------------------

    def spend(self, spend: Spend) -> None:
        taken, made = tokens(spend)
        with self._lock:
            for total in (self.session.used, self._since):
                total["input_tokens"] += taken
                total["output_tokens"] += made
                total["cost"] = round(total["cost"] + (spend.cost or 0.0), 9)

    def over_budget(self) -> stream_events.Result | None:
        most = self.flags.number("--max-budget-usd")
        # Of this process alone, as in the real program, although it reports the cost of the whole session.
        if most is None or self.session.used["cost"] - self._cost_before < most:
            return None
        error = f"Reached maximum budget (${self.flags.values['--max-budget-usd']})"
        return stream_events.Result(
            None, "error_max_budget_usd", "budget_exhausted", "end_turn", is_error=True, error=error
        )

    def over_turns(self, requests: int) -> stream_events.Result | None:
        most = self.flags.number("--max-turns")
        if most is None or requests < most:
            return None
        error = f"Reached maximum number of turns ({int(most)})"
        return stream_events.Result(None, "error_max_turns", "max_turns", "tool_use", is_error=True, error=error)

    # --- control requests --------------------------------------------------------------------------------

    def _control(self, request: str, body: Mapping[str, Any]) -> None:
        """Handle a control request. Called by the thread that reads the input."""
        if body.get("subtype") != "interrupt":
            self.emit(stream_events.control_error(request, str(body.get("subtype"))))
        elif not self.inbox.interrupt(request):
            self.emit(stream_events.control_success(request, {"still_queued": []}))

    def acknowledge_interrupts(self) -> None:
        for request in self.inbox.take_interrupts():
            self.emit(stream_events.control_success(request, {"still_queued": []}))

    def note(self, uncovered: Uncovered) -> None:
        note_uncovered(self._state, uncovered)

    # --- background agents ----------------------------------------------------------------------------------

    def in_background(
        self, task: Mapping[str, Any], run_turn: Callable[[], stream_events.Result], report: Report
    ) -> None:
        """Run an agent in its own thread. Its end starts a turn of the lead."""

        def run() -> None:
            try:
                ended = run_turn()
            except Interrupted:
                return  # only turns of the lead can be interrupted
            report(ended)
            with self._lock:
                self._tasks.remove(task)
                self.emit(stream_events.background_tasks(self._tasks))
            self.inbox.ended(notice(task, ended))

        self.inbox.launched()
        threading.Thread(target=run, daemon=True).start()

    def announce(self, task: Mapping[str, Any]) -> None:
        with self._lock:
            self._tasks.append(task)
            self.emit(stream_events.background_tasks(self._tasks))


Report = Callable[[stream_events.Result], None]


def notice(task: Mapping[str, Any], ended: stream_events.Result) -> str:
    """The notification for the lead that a background agent has ended."""
    state = "failed" if ended.is_error else "completed"
    return (
        f"<system-reminder>\n{NOTIFICATION}\n<task-id>{task['task_id']}</task-id>\n"
        f"<tool-use-id>{task['tool_use_id']}</tool-use-id>\n<status>{state}</status>\n"
        f'<summary>Agent "{task["description"]}" has ended</summary>\n'
        f"<result>{ended.text or ended.error or ''}</result>\n</task-notification>\n</system-reminder>"
    )


def write(descriptor: int, text: str) -> None:
    """Write all of it without buffering, so that each event is visible when it happens."""
    data = memoryview(text.encode("utf-8", "replace"))
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        leave(1)


def leave(code: int) -> NoReturn:
    """Exit without waiting for threads."""
    os._exit(code)


def crash() -> NoReturn:
    """Abort the process, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()
