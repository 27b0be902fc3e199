"""The turns of one scripted agent: messages from the script, tool calls and sub-agents, until the turn ends.

Tools are not run: their results are in the script. Sub-agents are ``ScriptedAgent`` objects too. Only the lead streams,
has limits and can be interrupted, and a foreground sub-agent with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal import messages_api, stream_events
from hocket.rehearsal.input_queue import Interrupted, TurnInput
from hocket.rehearsal.matching import (
    CUT_OFF,
    MID_TURN,
    NOTIFICATION,
    STOPPED_BY_SAFETY,
    AgentConversation,
    Message,
    Uncovered,
    next_message,
)
from hocket.rehearsal.process import AgentProcess, crash, exit_now
from hocket.rehearsal.steps import AGENT_TOOLS, DEFAULT_TYPE, Call, Fail
from hocket.rehearsal.tools import NoSuchAgent, match_agent

DEEPEST = 5
FORWARD = "--forward-subagent-text"
BRIEF = ("task_id", "tool_use_id", "description", "subagent_type", "task_type")
DENIED = "Permission was denied: questions cannot be answered in this rehearsal."
UNANSWERED = "Permission was denied: the input ended before an answer came."
STOPPED = "The tool was stopped because the user interrupted."
NOT_OFFERED = "<tool_use_error>Error: No such tool available: {tool}. The agent is not offered it.</tool_use_error>"
REFUSED_AGAIN = "API Error: the rehearsed model refused to answer this message."


class ToolOutcome(NamedTuple):
    """The result of a tool call, and what to do after it has been reported."""

    content: Any
    error: bool = False
    then: Callable[[], None] | None = None


class ScriptedAgent:
    """The lead, or a sub-agent: then ``task`` describes it as the events of the real program do."""

    def __init__(
        self,
        process: AgentProcess,
        name: str,
        messages: list[dict[str, Any]],
        task: Mapping[str, Any] | None = None,
    ) -> None:
        self.process, self.name, self.messages = process, name, messages
        self.called = name
        """Its name for the rules of the script."""
        self.is_lead = task is None
        self._task: Mapping[str, Any] = task or {"task_id": "", "is_backgrounded": False, "spawn_depth": 0}
        self._brief = {key: task[key] for key in BRIEF} if task else {}
        """The task as most events show it."""
        self._marks = _marks(task) if task else {}
        self._requests = self._refusals = 0
        self._uses_tools = False
        self._interruptible = not self._task["is_backgrounded"]
        self._is_emitted = self.is_lead or not self._interruptible or FORWARD in process.flags.switches
        """False for a foreground sub-agent: only its report is emitted."""

    # --- the turn -------------------------------------------------------------------------------------------

    def turn(self, work: TurnInput) -> stream_events.TurnResult:
        """Run a turn of the lead and return its result, also after an interrupt."""
        self.messages.append({"role": "user", "content": [stream_events.text_block(text) for text in work.texts]})
        self._requests = self._refusals = 0
        self._uses_tools = False
        self.process.session.save()
        try:
            return self.process.over_budget() or self.perform()
        except Interrupted:
            return self._interrupted()

    def _interrupted(self) -> stream_events.TurnResult:
        self.process.acknowledge_interrupts()
        text = stream_events.INTERRUPTED_TOOL if self._uses_tools else stream_events.INTERRUPTED
        self.process.emit(stream_events.user([stream_events.text_block(text)], {}))
        self.messages.append({"role": "user", "content": [stream_events.text_block(text)]})
        terminal, reason = ("aborted_tools", "tool_use") if self._uses_tools else ("aborted_streaming", None)
        return stream_events.error_result("error_during_execution", terminal, "the turn was interrupted", reason)

    def perform(self) -> stream_events.TurnResult:
        """Emit messages and use tools until the turn ends."""
        while True:
            message = self._next()
            if message.fail is not None and message.fail.status is not None and not message.breaks:
                return self._failed(message, message.fail.status, message.fail.message)
            said, calls = self._emit_message(message)
            self.process.spend(message.spend)
            self._requests += 1
            if self.is_lead and (limit := self.process.over_budget()):
                return limit
            if message.breaks:
                self._note(f"{CUT_OFF}. Go on where it ends.")
            elif message.end == "refuse":
                if not self._retry_refusal():
                    return stream_events.TurnResult(REFUSED_AGAIN, "success", "api_error", "refusal", is_error=True)
            elif not message.calls:
                return stream_events.TurnResult(said)
            else:
                self._use_tools(list(zip(message.calls, calls, strict=True)))
                if self.is_lead and (limit := self.process.over_turns(self._requests)):
                    return limit
                # Messages that the user sent during the turn.
                for text in self.process.inbox.take_messages() if self.is_lead else ():
                    sent = [stream_events.text_block(f"{MID_TURN}\n{text}")]
                    self.messages.append({"role": "system", "content": sent})

    def _next(self) -> Message:
        process = self.process
        passage = process.conversation_counts.number(self.called, f"{process.session.id}/{self._task['task_id']}")
        system = process.system(self.name, lead=self.is_lead)
        tools = process.offered_tools(self.name).names()
        found = next_message(process.script, AgentConversation(self.called, self.messages, system, tools, passage))
        if isinstance(found, Uncovered):
            process.note(found)
            return Message(fail=Fail(400, str(found)))
        return found

    # --- messages ---------------------------------------------------------------------------------------------

    def _emit_message(self, message: Message) -> tuple[str, list[messages_api.Block]]:
        """Emit a message; return its last text and its tool calls."""
        if self.is_lead:
            self.process.emit_partial(stream_events.REQUESTING)
        items = messages_api.contents(message)
        blocks = messages_api.blocks(items)
        head = messages_api.head(messages_api.new_id("msg"), self.process.model)
        done: list[messages_api.Block] = []
        try:
            for frame in messages_api.frames(message, items, head["id"], self.process.model):
                if isinstance(frame, float):
                    self._pause(frame)
                    continue
                if frame["type"] == "content_block_stop":
                    block = blocks[frame["index"]]
                    done.append(block)
                    if self._is_emitted or block["type"] == "tool_use":
                        self.process.emit(stream_events.assistant(head, block, self._marks))
                if self.is_lead:
                    self.process.emit_partial(stream_events.stream_event(frame))
            if message.end == "crash":
                crash()
            if message.fail is not None and message.fail.exit is not None:
                exit_now(message.fail.exit)
            self._pause(None if message.end == "hang" else 0)  # an interrupt counts here too
        finally:
            if done:
                self.messages.append({"role": "assistant", "content": done})
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        return texts[-1] if texts else "", [block for block in blocks if block["type"] == "tool_use"]

    def _pause(self, seconds: float | None) -> None:
        self.process.inbox.pause(seconds, interruptible=self._interruptible)

    def _failed(self, message: Message, status: int, reason: str) -> stream_events.TurnResult:
        for pause in messages_api.pauses(message.parts):
            self._pause(pause)
        text = f"API Error: {status} {reason}"
        if self.is_lead:
            self.process.emit_partial(stream_events.REQUESTING)
            if retry := stream_events.api_retry(status):
                self.process.emit(retry)
        if self._is_emitted:
            kind = stream_events.GIVEN_UP.get(status, "server_error" if status >= 500 else "unknown")
            about = {"error": kind, "api_error_status": status, **self._marks}
            self.process.emit(stream_events.synthetic(text, "stop_sequence", about))
        return stream_events.TurnResult(text, "success", "api_error", "stop_sequence", status, is_error=True)

    def _retry_refusal(self) -> bool:
        """Retry once with a note, as the real program does; False if the model refused again."""
        self._refusals += 1
        self.process.safety_stops += 1
        if self._refusals > 1:
            if self._is_emitted:
                about = {"error": "invalid_request", **self._marks}
                self.process.emit(stream_events.synthetic(REFUSED_AGAIN, "refusal", about))
            return False
        if self.is_lead:
            self.process.emit(stream_events.REFUSED_ONCE)
        self._note(f"{STOPPED_BY_SAFETY}. Go on without it.")
        return True

    def _note(self, text: str) -> None:
        """Add a message that the real program sends to the model in the role of the user."""
        note = [stream_events.text_block(text)]
        self.messages.append({"role": "user", "content": note})
        if self._is_emitted:
            self.process.emit(stream_events.user(note, self._marks, isSynthetic=True))

    # --- tools ----------------------------------------------------------------------------------------

    def _use_tools(self, waiting: list[tuple[Call, messages_api.Block]]) -> None:
        """Ask all questions of a message, then use its tools in order."""
        results: list[dict[str, Any]] = []
        asked = {block["id"]: self._ask(call, block) for call, block in waiting if self._needs_answer(call)}
        self._uses_tools = True
        try:
            while waiting:
                call, block = waiting[0]
                outcome = self._use(call, block, asked.get(block["id"]))
                self._report_result(results, block, outcome)
                waiting.pop(0)
        except Interrupted:
            for call, block in waiting:
                if block["id"] in asked:
                    self.process.emit({"type": "control_cancel_request", "request_id": asked[block["id"]]})
                    self._denied(call, block)
            self.process.acknowledge_interrupts()
            for _, block in waiting:
                self._report_result(results, block, ToolOutcome(STOPPED, error=True))
            raise
        finally:
            self.messages.append({"role": "user", "content": results})
        self._uses_tools = False

    def _report_result(self, results: list[dict[str, Any]], block: messages_api.Block, outcome: ToolOutcome) -> None:
        result = stream_events.tool_result(block["id"], outcome.content, error=outcome.error)
        results.append(result)
        self.process.emit(stream_events.user([result], self._marks))
        if outcome.then is not None:
            outcome.then()

    def _offers(self, call: Call) -> bool:
        return self.process.offered_tools(self.name).offers(call.name)

    def _needs_permission(self, call: Call) -> bool:
        return call.asks and not self.process.is_free(call.name, call.rule)

    def _needs_answer(self, call: Call) -> bool:
        return self._needs_permission(call) and self.process.can_ask() and self._offers(call)

    def _ask(self, call: Call, block: messages_api.Block) -> str:
        """Emit the question whether a tool may be used, and return its id."""
        request = call.id or stream_events.new_uuid()
        agent = str(self._task["task_id"])
        self.process.emit(stream_events.question(request, call.name, call.input, block["id"], agent, call.rule))
        return request

    def _use(self, call: Call, block: messages_api.Block, request: str | None) -> ToolOutcome:
        if not self.is_lead:
            self.process.emit(stream_events.task_event("task_progress", self._brief, last_tool_name=call.name))
        if not self._offers(call):
            return ToolOutcome(NOT_OFFERED.format(tool=call.name), error=True)
        if request is not None:
            answer = self.process.inbox.answer(request, interruptible=self._interruptible)
            if answer is None or answer.get("behavior") != "allow":
                self._denied(call, block)
                return ToolOutcome(UNANSWERED if answer is None else str(answer.get("message") or "denied"), error=True)
            self.process.grant(answer)
            if answers := (answer.get("updatedInput") or {}).get("answers"):
                return ToolOutcome("\n".join(f"{question} {text}" for question, text in answers.items()))
        elif self._needs_permission(call):
            self.process.emit(stream_events.permission_denied(call.name, block["id"], DENIED))
            self._denied(call, block)
            return ToolOutcome(DENIED, error=True)
        if call.name in AGENT_TOOLS and call.result is None:
            return self._delegate(block)
        return ToolOutcome(call.result or f"({call.name} completed with no output)", error=call.error)

    def _denied(self, call: Call, block: messages_api.Block) -> None:
        denial = {"tool_name": call.name, "tool_use_id": block["id"], "tool_input": dict(call.input)}
        self.process.denials.append(denial)

    # --- sub-agents -----------------------------------------------------------------------------------------

    def _delegate(self, block: messages_api.Block) -> ToolOutcome:
        """Start a sub-agent, and wait for it unless it works in the background."""
        depth = self._task["spawn_depth"] + 1
        if depth > DEEPEST:
            return ToolOutcome(f"No agent was started: {DEEPEST} of them already wait for each other.", error=True)
        given = block["input"]
        try:
            name = match_agent(str(given.get("subagent_type", DEFAULT_TYPE)), self.process.agents)
        except NoSuchAgent as error:
            return ToolOutcome(str(error), error=True)
        task = {
            "task_id": "a" + os.urandom(8).hex(),
            "tool_use_id": block["id"],
            "description": str(given.get("description", "")),
            "subagent_type": name,
            "is_backgrounded": given.get("run_in_background") is True,
            "spawn_depth": depth,
            "task_type": "local_agent",
        }
        prompt = stream_events.text_block(str(given.get("prompt", "")))
        sub = ScriptedAgent(self.process, name, [{"role": "user", "content": [prompt]}], task)
        sub._interruptible &= self._interruptible
        sub.called = str(given.get("name") or name)
        if task["is_backgrounded"]:
            self.process.add_task(sub._brief)
            self.process.emit(stream_events.task_event("task_started", task, prompt=prompt["text"]))
            text = f"The agent works in the background.\nid: {task['task_id']}"
            begin = threading.Thread(target=sub._perform_in_background, daemon=True).start
            return ToolOutcome([stream_events.text_block(text)], then=begin)
        self.process.emit(stream_events.task_event("task_started", task, prompt=prompt["text"]))
        self.process.emit(stream_events.user([prompt], sub._marks))
        ended = sub.perform()
        sub._report(ended)
        content = ended.text if ended.is_error else [stream_events.text_block(ended.text or "")]
        return ToolOutcome(content, error=ended.is_error)

    def _perform_in_background(self) -> None:
        ended = self.perform()
        state = self._report(ended)
        notice = (
            f"<system-reminder>\n{NOTIFICATION}\n<task-id>{self._task['task_id']}</task-id>\n"
            f"<tool-use-id>{self._task['tool_use_id']}</tool-use-id>\n<status>{state}</status>\n"
            f'<summary>Agent "{self._task["description"]}" has ended</summary>\n'
            f"<result>{ended.text or ended.error or ''}</result>\n</task-notification>\n</system-reminder>"
        )
        self.process.end_task(self._brief, notice)

    def _report(self, ended: stream_events.TurnResult) -> str:
        """Emit how a sub-agent ended, and return its state."""
        state = "failed" if ended.is_error else "completed"
        patch = {"task_id": self._task["task_id"], "patch": {"status": state}}
        self.process.emit(stream_events.task_event("task_updated", patch))
        done = {"status": state, "summary": ended.text or ""}
        self.process.emit(stream_events.task_event("task_notification", self._brief, **done))
        return state


def _marks(task: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that identify the sub-agent in each of its events."""
    return {
        "parent_tool_use_id": task["tool_use_id"],
        "agent_id": task["task_id"],
        "subagent_type": task["subagent_type"],
        "task_description": task["description"],
    }
