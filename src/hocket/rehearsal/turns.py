"""The turns of one scripted agent: messages from the script, tool calls and sub-agents, until the turn ends.

Tools are not run: their results are in the script. Sub-agents are ``ScriptedAgent`` objects too. Only the lead streams,
has limits and can be interrupted, and a foreground sub-agent with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal import messages_api, stream_events, sub_agents
from hocket.rehearsal.input_queue import Interrupted, TurnInput
from hocket.rehearsal.matching import (
    CUT_OFF,
    MID_TURN,
    STOPPED_BY_SAFETY,
    Conversation,
    Message,
    Uncovered,
    next_message,
)
from hocket.rehearsal.process import AgentProcess, crash, leave
from hocket.rehearsal.steps import AGENT_TOOLS, DEFAULT_TYPE, Call, Fail

DEEPEST = 5
DENIED = "Permission was denied: questions cannot be answered in this rehearsal."
UNANSWERED = "Permission was denied: the input ended before an answer came."
STOPPED = "The tool was stopped because the user interrupted."
NOT_OFFERED = "<tool_use_error>Error: No such tool available: {tool}. The agent is not offered it.</tool_use_error>"
REFUSED_AGAIN = "API Error: the rehearsed model refused to answer this message."


class Used(NamedTuple):
    """The result of a tool call, and what to do after it has been reported."""

    content: Any
    error: bool = False
    then: Callable[[], None] | None = None


class ScriptedAgent:
    def __init__(
        self,
        process: AgentProcess,
        name: str,
        messages: list[dict[str, Any]],
        task: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> None:
        self.process, self.name, self.messages = process, name, messages
        self._task, self._depth = task, depth
        self._key = f"{process.session.id}/{task['task_id'] if task else ''}"
        self._about = _about(task)
        self._requests = self._refusals = 0
        self._using = False

    @property
    def is_lead(self) -> bool:
        return self._task is None

    @property
    def in_background(self) -> bool:
        return bool(self._task and self._task["is_backgrounded"])

    # --- the turn -------------------------------------------------------------------------------------------

    def turn(self, work: TurnInput) -> stream_events.Result:
        """Run a turn of the lead and return its result, also after an interrupt."""
        self.messages.append({"role": "user", "content": [stream_events.text_block(text) for text in work.texts]})
        self._requests = self._refusals = 0
        self._using = False
        self.process.session.save()
        try:
            return self.process.over_budget() or self.perform()
        except Interrupted:
            return self._interrupted()

    def _interrupted(self) -> stream_events.Result:
        with_tools = self._using
        self.process.acknowledge_interrupts()
        text = stream_events.INTERRUPTED_TOOL if with_tools else stream_events.INTERRUPTED
        self.process.emit(stream_events.user([stream_events.text_block(text)], {}))
        self.messages.append({"role": "user", "content": [stream_events.text_block(text)]})
        terminal, reason = ("aborted_tools", "tool_use") if with_tools else ("aborted_streaming", None)
        error = "the turn was interrupted"
        return stream_events.Result(None, "error_during_execution", terminal, reason, is_error=True, error=error)

    def perform(self) -> stream_events.Result:
        while True:
            message = self._next()
            if message.fail is not None and message.fail.status is not None and not message.breaks:
                return self._failed(message, message.fail.status)
            said, used = self._emit_message(message)
            self.process.spend(message.spend)
            self._requests += 1
            if self.is_lead and (limit := self.process.over_budget()):
                return limit
            if message.breaks:
                self._note(f"{CUT_OFF}. Go on where it ends.")
            elif message.end == "refuse":
                if self._refused():
                    return self._gives_up()
            elif not message.calls:
                return stream_events.Result(said)
            else:
                self._use(message, used)
                if self.is_lead and (limit := self.process.over_turns(self._requests)):
                    return limit
                self._listen()

    def _next(self) -> Message:
        process = self.process
        passage = process.conversation_counts.number(self.name, self._key)
        system = process.system(self.name, lead=self.is_lead)
        tools = process.offered_tools(self.name).names()
        found = next_message(process.script, Conversation(self.name, self.messages, system, tools, passage))
        if isinstance(found, Uncovered):
            process.note(found)
            return Message(fail=Fail(400, str(found)))
        return found

    def _listen(self) -> None:
        """Add messages that the user sent during the turn."""
        for text in self.process.inbox.waiting() if self.is_lead else ():
            self.messages.append({"role": "system", "content": [stream_events.text_block(f"{MID_TURN}\n{text}")]})

    # --- messages ---------------------------------------------------------------------------------------------

    def _emit_message(self, message: Message) -> tuple[str, list[messages_api.Block]]:
        """Emit a message; return its last text and its tool calls."""
        if self.is_lead:
            self.process.emit_partial(stream_events.status("requesting"))
        items = messages_api.contents(message)
        said = messages_api.blocks(items)
        head = messages_api.head(messages_api.new_id("msg"), self.process.model)
        done: list[messages_api.Block] = []
        try:
            for frame in messages_api.frames(message, items, head["id"], self.process.model):
                self._frame(frame, said, done, head)
            self._break_off(message)
        finally:
            if done:
                self.messages.append({"role": "assistant", "content": done})
        texts = [block["text"] for block in said if block["type"] == "text"]
        return texts[-1] if texts else "", [block for block in said if block["type"] == "tool_use"]

    def _frame(
        self,
        frame: messages_api.Frame | float,
        said: list[messages_api.Block],
        done: list[messages_api.Block],
        head: dict[str, Any],
    ) -> None:
        if isinstance(frame, float):
            self._pause(frame)
            return
        if frame["type"] == "content_block_stop":
            block = said[frame["index"]]
            done.append(block)
            if self._is_emitted or block["type"] == "tool_use":
                self.process.emit(stream_events.assistant(head, block, self._about))
        if self.is_lead:
            self.process.emit_partial(stream_events.stream_event(frame))

    @property
    def _is_emitted(self) -> bool:
        """False for a foreground sub-agent: only its report is emitted."""
        return self.is_lead or self.in_background or "--forward-subagent-text" in self.process.flags.switches

    def _pause(self, seconds: float | None) -> None:
        self.process.inbox.pause(seconds, interruptible=not self.in_background)

    def _break_off(self, message: Message) -> None:
        if message.end == "hang":
            self._pause(None)
        elif message.end == "crash":
            crash()
        elif message.fail is not None and message.fail.exit is not None:
            leave(message.fail.exit)
        else:
            self._pause(0)  # an interrupt counts here too

    def _failed(self, message: Message, status: int) -> stream_events.Result:
        for pause in messages_api.pauses(message.parts):
            self._pause(pause)
        reason = message.fail.message if message.fail else ""
        text = f"API Error: {status} {reason}"
        if self.is_lead:
            self.process.emit_partial(stream_events.status("requesting"))
            if retry := stream_events.api_retry(status):
                self.process.emit(retry)
            kind = stream_events.GIVEN_UP.get(status, "server_error" if status >= 500 else "unknown")
            self.process.emit(
                stream_events.synthetic(text, "stop_sequence", {"error": kind, "api_error_status": status})
            )
        return stream_events.Result(text, "success", "api_error", "stop_sequence", status, is_error=True)

    def _refused(self) -> bool:
        """Retry once with a note, as the real program does. True if the model refused again."""
        self._refusals += 1
        self.process.safety_stops += 1
        if self._refusals > 1:
            return True
        if self.is_lead:
            self.process.emit(stream_events.informational("The rehearsed model refused; it is asked once more."))
        self._note(f"{STOPPED_BY_SAFETY}. Go on without it.")
        return False

    def _note(self, text: str) -> None:
        """Add a message that the real program sends to the model in the role of the user."""
        note = [stream_events.text_block(text)]
        self.messages.append({"role": "user", "content": note})
        if self._is_emitted:
            self.process.emit(stream_events.user(note, self._about, **stream_events.spelled({"is_synthetic": True})))

    def _gives_up(self) -> stream_events.Result:
        if self.is_lead:
            self.process.emit(stream_events.synthetic(REFUSED_AGAIN, "refusal", {"error": "invalid_request"}))
        return stream_events.Result(REFUSED_AGAIN, "success", "api_error", "refusal", is_error=True)

    # --- tools ----------------------------------------------------------------------------------------

    def _use(self, message: Message, blocks: list[messages_api.Block]) -> None:
        results: list[dict[str, Any]] = []
        waiting = list(zip(message.calls, blocks, strict=True))
        asked = {block["id"]: self._ask(call, block) for call, block in waiting if self._asks(call)}
        self._using = True
        try:
            while waiting:
                call, block = waiting[0]
                used = self._call(call, block, asked.get(block["id"]))
                self._report_result(results, block, used)
                waiting.pop(0)
        except Interrupted:
            for call, block in waiting:
                if block["id"] in asked:
                    self.process.emit(stream_events.withdrawn(asked[block["id"]]))
                    self._denied(call, block)
            self.process.acknowledge_interrupts()
            for _, block in waiting:
                self._report_result(results, block, Used(STOPPED, error=True))
            raise
        finally:
            self.messages.append({"role": "user", "content": results})
        self._using = False

    def _report_result(self, results: list[dict[str, Any]], block: messages_api.Block, used: Used) -> None:
        result = stream_events.tool_result(block["id"], used.content, error=used.error)
        results.append(result)
        self.process.emit(stream_events.user([result], self._about))
        if used.then is not None:
            used.then()

    def _asks(self, call: Call) -> bool:
        is_free = not call.asks or self.process.is_free(call.name, call.rule)
        return not is_free and self.process.can_ask() and self.process.offered_tools(self.name).offers(call.name)

    def _ask(self, call: Call, block: messages_api.Block) -> str:
        """Emit the question whether a tool may be used, and return its id."""
        request = call.id or stream_events.new_uuid()
        agent = str(self._task["task_id"]) if self._task else None
        self.process.emit(stream_events.question(request, call.name, call.input, block["id"], agent, call.rule))
        return request

    def _call(self, call: Call, block: messages_api.Block, request: str | None) -> Used:
        if self._task is not None:
            self.process.emit(stream_events.task_event("task_progress", _short(self._task), last_tool_name=call.name))
        if not self.process.offered_tools(self.name).offers(call.name):
            return Used(NOT_OFFERED.format(tool=call.name), error=True)
        if request is not None:
            answer = self.process.inbox.answer(request, interruptible=not self.in_background)
            if answer is None or answer.get("behavior") != "allow":
                self._denied(call, block)
                return Used(UNANSWERED if answer is None else str(answer.get("message") or "denied"), error=True)
            self.process.grant(answer)
            if answers := (answer.get(stream_events.camel("updated_input")) or {}).get("answers"):
                return Used("\n".join(f"{question} {text}" for question, text in answers.items()))
        elif call.asks and not self.process.is_free(call.name, call.rule):
            self.process.emit(stream_events.permission_denied(call.name, block["id"], DENIED))
            self._denied(call, block)
            return Used(DENIED, error=True)
        if call.name in AGENT_TOOLS and call.result is None:
            return self._delegate(block)
        return Used(call.result or f"({call.name} completed with no output)", error=call.error)

    def _denied(self, call: Call, block: messages_api.Block) -> None:
        denial = {"tool_name": call.name, "tool_use_id": block["id"], "tool_input": dict(call.input)}
        self.process.denials.append(denial)

    # --- sub-agents -----------------------------------------------------------------------------------------

    def _delegate(self, block: messages_api.Block) -> Used:
        if self._depth >= DEEPEST:
            return Used(f"No agent was started: {DEEPEST} of them already wait for each other.", error=True)
        given = block["input"]
        try:
            name = sub_agents.match_agent(str(given.get("subagent_type", DEFAULT_TYPE)), self.process.agents)
        except sub_agents.NoSuchAgent as error:
            return Used(str(error), error=True)
        task = _task(block["id"], name, given, self._depth + 1)
        prompt = stream_events.text_block(str(given.get("prompt", "")))
        sub = ScriptedAgent(self.process, name, [{"role": "user", "content": [prompt]}], task, self._depth + 1)
        if task["is_backgrounded"]:
            return self._launch(sub, task, prompt["text"])
        self.process.emit(stream_events.task_event("task_started", task, prompt=prompt["text"]))
        self.process.emit(stream_events.user([prompt], _about(task)))
        ended = sub.perform()
        self._report(task, ended)
        return Used(
            ended.text if ended.is_error else [stream_events.text_block(ended.text or "")], error=ended.is_error
        )

    def _launch(self, sub: ScriptedAgent, task: Mapping[str, Any], prompt: str) -> Used:
        self.process.announce(_short(task))
        self.process.emit(stream_events.task_event("task_started", task, prompt=prompt))

        def begin() -> None:
            self.process.in_background(_short(task), sub.perform, lambda ended: self._report(task, ended))

        text = f"The agent works in the background.\nid: {task['task_id']}"
        return Used([stream_events.text_block(text)], then=begin)

    def _report(self, task: Mapping[str, Any], ended: stream_events.Result) -> None:
        state = "failed" if ended.is_error else "completed"
        self.process.emit(
            stream_events.task_event("task_updated", {"task_id": task["task_id"]}, patch={"status": state})
        )
        self.process.emit(
            stream_events.task_event("task_notification", _short(task), status=state, summary=ended.text or "")
        )


def _task(tool_id: str, name: str, given: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {
        "task_id": "a" + os.urandom(8).hex(),
        "tool_use_id": tool_id,
        "description": str(given.get("description", "")),
        "subagent_type": name,
        "is_backgrounded": given.get("run_in_background") is True,
        "spawn_depth": depth,
        "task_type": "local_agent",
    }


def _short(task: Mapping[str, Any]) -> dict[str, Any]:
    return {key: task[key] for key in ("task_id", "tool_use_id", "description", "subagent_type", "task_type")}


def _about(task: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields that identify the sub-agent in each of its events."""
    if task is None:
        return {}
    return {
        "parent_tool_use_id": task["tool_use_id"],
        "agent_id": task["task_id"],
        "subagent_type": task["subagent_type"],
        "task_description": task["description"],
    }
