"""The process of a scripted agent: its input, its output, its session and its loop of turns.

``AgentProcess.serve()`` runs turns until the input has ended and no background agent is left. ``turns.py`` has what
happens inside a turn.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from hocket.rehearsal import stream_events
from hocket.rehearsal.conversation_counts import ConversationCounts, note_uncovered
from hocket.rehearsal.flags import Flags, definitions
from hocket.rehearsal.input_queue import InputQueue, TurnInput
from hocket.rehearsal.matching import Uncovered, flat_text
from hocket.rehearsal.messages_api import tokens
from hocket.rehearsal.session import Session
from hocket.rehearsal.steps import AGENT_TOOL, NO_DEFINITION, Script, Spend
from hocket.rehearsal.tools import OfferedTools, offered_tools, startable_agents


class AgentProcess:
    def __init__(self, script: Script, state: str, flags: Flags, found: Mapping[str, str]) -> None:
        self.script, self.flags = script, flags
        self.definitions = definitions(flags)
        self.agents = startable_agents(flags, self.definitions, found)
        self.session = Session(state, flags)
        name = flags.values.get("--agent", NO_DEFINITION)
        self.agent = name if name in self.definitions else NO_DEFINITION
        """The agent of the command line; an undefined one is ignored, as by the real program with stream input."""
        chosen = flags.values.get("--model") or self.definitions.get(self.agent, {}).get("model")
        self.model = str(chosen) if chosen and chosen != "inherit" else "rehearsal"
        self.conversation_counts = ConversationCounts(state)
        self.inbox = InputQueue()
        self.denials: list[dict[str, Any]] = []
        self.safety_stops = 0
        self._state = state
        self._granted: set[tuple[str | None, ...]] = set()
        """Tools with the rules that an answer has allowed."""
        self._tasks: list[Mapping[str, Any]] = []
        self._since = stream_events.no_usage()
        self._cost_before = self.session.used["cost"]
        self._user_events = 0
        self._results = 0
        self._failed = False
        self._held: list[dict[str, Any]] = []
        """Results to be emitted later."""
        self._lock = threading.RLock()

    # --- agents ------------------------------------------------------------------------------------------

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
        edits = tool in ("Edit", "Write", "NotebookEdit") and self.flags.mode == "acceptEdits"
        allowed = tool in (self.flags.tools("--allowedTools") or [])
        return edits or allowed or self.flags.mode == "bypassPermissions"

    def grant(self, answer: Mapping[str, Any]) -> None:
        """Apply the rules of an answer that allow a tool for the rest of the session."""
        for update in answer.get("updatedPermissions") or ():
            if update.get("type") == "addRules" and update.get("destination") == "session":
                self._granted.update((rule.get("toolName"), rule.get("ruleContent")) for rule in update["rules"])

    def can_ask(self) -> bool:
        return self.flags.asks_host and self.flags.mode != "dontAsk"

    # --- output ---------------------------------------------------------------------------------------------

    def emit(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            if event["type"] == "user" and event["parent_tool_use_id"] is None:
                self._user_events += 1
            write(1, stream_events.line(event, self.session.id))

    def emit_partial(self, event: Mapping[str, Any]) -> None:
        if "--include-partial-messages" in self.flags.switches:
            self.emit(event)

    # --- input ----------------------------------------------------------------------------------------------

    def read_input(self) -> None:
        """Read lines to the end of input, in a thread of its own."""
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError:
                write(2, f"Error parsing streaming input line ({len(line)} chars)\n")
                exit_now(1)
            self._receive(value)
        self.inbox.close()

    def _receive(self, value: Any) -> None:
        match value:
            case {"type": "user"}:
                message = value.get("message")
                self.inbox.add_message(flat_text(message.get("content")) if isinstance(message, dict) else "")
            case {"type": "control_response", "response": {"request_id": request, "response": dict() as answer}}:
                self.inbox.add_answer(str(request), answer)
            case {"type": "control_request", "request_id": request, "request": {"subtype": "interrupt"}}:
                if not self.inbox.interrupt(str(request)):
                    self.emit(stream_events.interrupt_accepted(str(request)))
            case {"type": "control_request", "request_id": request, "request": {"subtype": subtype}}:
                self.emit(stream_events.control_error(str(request), str(subtype)))

    def acknowledge_interrupts(self) -> None:
        for request in self.inbox.take_interrupts():
            self.emit(stream_events.interrupt_accepted(request))

    # --- turns ----------------------------------------------------------------------------------------------

    def serve(self, run_turn: Callable[[TurnInput], stream_events.TurnResult]) -> int:
        """Run turns until there is nothing more to do, and return the exit code."""
        while (work := self.inbox.next()) is not None:
            started = time.monotonic()
            self._user_events, self.denials, self.safety_stops = 0, [], 0
            tools = ["Task" if tool == AGENT_TOOL else tool for tool in self.offered_tools(self.agent).names()]
            self.emit(stream_events.init(os.getcwd(), self.model, self.flags.mode, tools, self.agents))
            ended = run_turn(work)
            self.session.save()
            self._finish(ended, work, int((time.monotonic() - started) * 1000))
        self._release()
        return 1 if self._failed and not self.inbox.is_signalled else 0

    def _finish(self, ended: stream_events.TurnResult, work: TurnInput, duration_ms: int) -> None:
        with self._lock:
            result = stream_events.result(
                ended,
                self.model,
                self.session.used,
                self._since,
                num_turns=1 + self._user_events,
                duration_ms=duration_ms,
                duration_api_ms=duration_ms,
                result_index=self._results,
                permission_denials=self.denials,
                safety_stops=self.safety_stops,
                queued_turn_count=0,
            )
            if work.woken:
                result["origin"] = {"kind": "task-notification", "producer": "session-task"}
            self._since = stream_events.no_usage()
            self._results += 1
            self._failed = ended.is_error
            self._held.append(result)
            if not self.inbox.waits_for_background():
                self._release()

    def _release(self) -> None:
        """Emit held results: after the end of input they are held until background agents are done."""
        for result in self._held:
            self.emit(result)
        self._held.clear()

    def note(self, uncovered: Uncovered) -> None:
        note_uncovered(self._state, uncovered)

    # --- limits ---------------------------------------------------------------------------------------------

    def spend(self, spend: Spend) -> None:
        taken, made = tokens(spend)
        with self._lock:
            for total in (self.session.used, self._since):
                total["input_tokens"] += taken
                total["output_tokens"] += made
                total["cost"] = round(total["cost"] + (spend.cost or 0.0), 9)

    def over_budget(self) -> stream_events.TurnResult | None:
        most = self.flags.number("--max-budget-usd")
        # Of this process alone, as in the real program, although it reports the cost of the whole session.
        if most is None or self.session.used["cost"] - self._cost_before < most:
            return None
        error = f"Reached maximum budget (${self.flags.values['--max-budget-usd']})"
        return stream_events.error_result("error_max_budget_usd", "budget_exhausted", error)

    def over_turns(self, requests: int) -> stream_events.TurnResult | None:
        most = self.flags.number("--max-turns")
        if most is None or requests < most:
            return None
        error = f"Reached maximum number of turns ({int(most)})"
        return stream_events.error_result("error_max_turns", "max_turns", error, "tool_use")

    # --- background agents ----------------------------------------------------------------------------------

    def add_task(self, task: Mapping[str, Any]) -> None:
        self.inbox.add_background()
        with self._lock:
            self._tasks.append(task)
            self.emit(stream_events.task_event("background_tasks_changed", {}, tasks=self._tasks))

    def end_task(self, task: Mapping[str, Any], notice: str) -> None:
        """The notice starts a turn of the lead."""
        with self._lock:
            self._tasks.remove(task)
            self.emit(stream_events.task_event("background_tasks_changed", {}, tasks=self._tasks))
        self.inbox.end_background(notice)


def write(descriptor: int, text: str) -> None:
    """Write all of it without buffering, so that each event is visible when it happens."""
    data = memoryview(text.encode("utf-8", "replace"))
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        exit_now(1)


def exit_now(code: int) -> NoReturn:
    """Exit without waiting for threads."""
    os._exit(code)


def crash() -> NoReturn:
    """Abort the process, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()
