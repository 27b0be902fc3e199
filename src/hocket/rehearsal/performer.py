"""One agent on the stage: it asks the script what to say, says it, uses its tools, and goes on until its turn is over.

Tools are not run: what they report is in the script. The lead and its sub-agents are performers alike; only the lead
streams, is limited, and can be interrupted, and a foreground sub-agent with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal import frames, roster, stream
from hocket.rehearsal.inbox import Interrupted, Work
from hocket.rehearsal.play import CUT_OFF, MID_TURN, STOPPED_BY_SAFETY, Conversation, Message, Uncovered, next_message
from hocket.rehearsal.stage import Stage, crash, leave
from hocket.rehearsal.steps import AGENT_TOOLS, DEFAULT_TYPE, Call, Fail

DEEPEST = 5
DENIED = "Permission was denied: the rehearsal has nobody who could be asked."
UNANSWERED = "Permission was denied: the input ended before an answer came."
STOPPED = "The tool was stopped because the user interrupted."
NOT_OFFERED = "<tool_use_error>Error: No such tool available: {tool}. The agent is not offered it.</tool_use_error>"
REFUSED_AGAIN = "API Error: the rehearsed model refused to answer this message."


class Used(NamedTuple):
    """What became of a tool call, and what is to be done once it has been told."""

    content: Any
    error: bool = False
    then: Callable[[], None] | None = None


class Performer:
    def __init__(
        self,
        stage: Stage,
        name: str,
        messages: list[dict[str, Any]],
        task: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> None:
        self.stage, self.name, self.messages = stage, name, messages
        self._task, self._depth = task, depth
        self._key = f"{stage.session.id}/{task['task_id'] if task else ''}"
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

    def turn(self, work: Work) -> stream.Result:
        """A turn of the lead's, whatever becomes of it."""
        self.messages.append({"role": "user", "content": [stream.text_block(text) for text in work.texts]})
        self._requests = self._refusals = 0
        self._using = False
        self.stage.session.save()
        try:
            return self.stage.over_budget() or self.perform()
        except Interrupted:
            return self._interrupted()

    def _interrupted(self) -> stream.Result:
        with_tools = self._using
        self.stage.acknowledge_interrupts()
        text = stream.INTERRUPTED_TOOL if with_tools else stream.INTERRUPTED
        self.stage.emit(stream.user([stream.text_block(text)], {}))
        self.messages.append({"role": "user", "content": [stream.text_block(text)]})
        terminal, reason = ("aborted_tools", "tool_use") if with_tools else ("aborted_streaming", None)
        error = "the turn was interrupted"
        return stream.Result(None, "error_during_execution", terminal, reason, is_error=True, error=error)

    def perform(self) -> stream.Result:
        while True:
            message = self._next()
            if message.fail is not None and message.fail.status is not None and not message.breaks:
                return self._failed(message, message.fail.status)
            said, used = self._speak(message)
            self.stage.spend(message.spend)
            self._requests += 1
            if self.is_lead and (limit := self.stage.over_budget()):
                return limit
            if message.breaks:
                self._note(f"{CUT_OFF}. Go on where it ends.")
            elif message.end == "refuse":
                if self._refused():
                    return self._gives_up()
            elif not message.calls:
                return stream.Result(said)
            else:
                self._use(message, used)
                if self.is_lead and (limit := self.stage.over_turns(self._requests)):
                    return limit
                self._listen()

    def _next(self) -> Message:
        stage = self.stage
        passage = stage.passes.number(self.name, self._key)
        system = stage.system(self.name, lead=self.is_lead)
        tools = stage.toolbox(self.name).names()
        found = next_message(stage.script, Conversation(self.name, self.messages, system, tools, passage))
        if isinstance(found, Uncovered):
            stage.note(found)
            return Message(fail=Fail(400, str(found)))
        return found

    def _listen(self) -> None:
        """What the user says in the middle of a turn belongs to it."""
        for text in self.stage.inbox.waiting() if self.is_lead else ():
            self.messages.append({"role": "system", "content": [stream.text_block(f"{MID_TURN}\n{text}")]})

    # --- saying ---------------------------------------------------------------------------------------------

    def _speak(self, message: Message) -> tuple[str, list[frames.Block]]:
        """Says a message, and returns its last text and its tool calls."""
        if self.is_lead:
            self.stage.emit_partial(stream.status("requesting"))
        items = frames.contents(message)
        said = frames.blocks(items)
        head = frames.head(frames.new_id("msg"), self.stage.model)
        done: list[frames.Block] = []
        try:
            for frame in frames.frames(message, items, head["id"], self.stage.model):
                self._frame(frame, said, done, head)
            self._break_off(message)
        finally:
            if done:
                self.messages.append({"role": "assistant", "content": done})
        texts = [block["text"] for block in said if block["type"] == "text"]
        return texts[-1] if texts else "", [block for block in said if block["type"] == "tool_use"]

    def _frame(
        self, frame: frames.Frame | float, said: list[frames.Block], done: list[frames.Block], head: dict[str, Any]
    ) -> None:
        if isinstance(frame, float):
            self._pause(frame)
            return
        if frame["type"] == "content_block_stop":
            block = said[frame["index"]]
            done.append(block)
            if self._is_heard or block["type"] == "tool_use":
                self.stage.emit(stream.assistant(head, block, self._about))
        if self.is_lead:
            self.stage.emit_partial(stream.stream_event(frame))

    @property
    def _is_heard(self) -> bool:
        """The words of a sub-agent that somebody waits for are told by its report alone."""
        return self.is_lead or self.in_background or "--forward-subagent-text" in self.stage.flags.switches

    def _pause(self, seconds: float | None) -> None:
        self.stage.inbox.pause(seconds, interruptible=not self.in_background)

    def _break_off(self, message: Message) -> None:
        if message.end == "hang":
            self._pause(None)
        elif message.end == "crash":
            crash()
        elif message.fail is not None and message.fail.exit is not None:
            leave(message.fail.exit)
        else:
            self._pause(0)  # an interrupt counts here too

    def _failed(self, message: Message, status: int) -> stream.Result:
        for item in frames.contents(message):
            if isinstance(item, float):
                self._pause(item)
        reason = message.fail.message if message.fail else ""
        text = f"API Error: {status} {reason}"
        if self.is_lead:
            self.stage.emit_partial(stream.status("requesting"))
            if retry := stream.api_retry(status):
                self.stage.emit(retry)
            kind = stream.GIVEN_UP.get(status, "server_error" if status >= 500 else "unknown")
            self.stage.emit(stream.synthetic(text, "stop_sequence", {"error": kind, "api_error_status": status}))
        return stream.Result(text, "success", "api_error", "stop_sequence", status, is_error=True)

    def _refused(self) -> bool:
        """The real program tries once more with a note. True when that was in vain, too."""
        self._refusals += 1
        self.stage.safety_stops += 1
        if self._refusals > 1:
            return True
        if self.is_lead:
            self.stage.emit(stream.informational("The rehearsed model refused; it is asked once more."))
        self._note(f"{STOPPED_BY_SAFETY}. Go on without it.")
        return False

    def _note(self, text: str) -> None:
        """What the real program says to the model in a user's place."""
        note = [stream.text_block(text)]
        self.messages.append({"role": "user", "content": note})
        if self._is_heard:
            self.stage.emit(stream.user(note, self._about, **stream.spelled({"is_synthetic": True})))

    def _gives_up(self) -> stream.Result:
        if self.is_lead:
            self.stage.emit(stream.synthetic(REFUSED_AGAIN, "refusal", {"error": "invalid_request"}))
        return stream.Result(REFUSED_AGAIN, "success", "api_error", "refusal", is_error=True)

    # --- using tools ----------------------------------------------------------------------------------------

    def _use(self, message: Message, blocks: list[frames.Block]) -> None:
        results: list[dict[str, Any]] = []
        waiting = list(zip(message.calls, blocks, strict=True))
        self._using = True
        try:
            while waiting:
                call, block = waiting[0]
                used = self._call(call, block)
                self._told(results, block, used)
                waiting.pop(0)
        except Interrupted:
            self.stage.acknowledge_interrupts()
            for _, block in waiting:
                self._told(results, block, Used(STOPPED, error=True))
            raise
        finally:
            self.messages.append({"role": "user", "content": results})
        self._using = False

    def _told(self, results: list[dict[str, Any]], block: frames.Block, used: Used) -> None:
        result = stream.tool_result(block["id"], used.content, error=used.error)
        results.append(result)
        self.stage.emit(stream.user([result], self._about))
        if used.then is not None:
            used.then()

    def _call(self, call: Call, block: frames.Block) -> Used:
        if self._task is not None:
            self.stage.emit(stream.task_event("task_progress", _short(self._task), last_tool_name=call.name))
        if not self.stage.toolbox(self.name).offers(call.name):
            return Used(NOT_OFFERED.format(tool=call.name), error=True)
        if call.asks and (denied := self._ask(call, block)) is not None:
            self._denied(call, block)
            return Used(denied, error=True)
        if call.name in AGENT_TOOLS and call.result is None:
            return self._delegate(block)
        return Used(call.result or f"({call.name} completed with no output)", error=call.error)

    def _denied(self, call: Call, block: frames.Block) -> None:
        denial = {"tool_name": call.name, "tool_use_id": block["id"], "tool_input": dict(call.input)}
        self.stage.denials.append(denial)

    def _ask(self, call: Call, block: frames.Block) -> str | None:
        """None when the tool may be used, else why not."""
        if self.stage.is_free(call.name):
            return None
        if not self.stage.can_ask():
            self.stage.emit(stream.permission_denied(call.name, block["id"], DENIED))
            return DENIED
        request = stream.new_uuid()
        agent = str(self._task["task_id"]) if self._task else None
        self.stage.emit(stream.question(request, call.name, call.input, block["id"], agent))
        try:
            answer = self.stage.inbox.answer(request, interruptible=not self.in_background)
        except Interrupted:
            self.stage.emit(stream.withdrawn(request))
            self._denied(call, block)
            raise
        if answer is None:
            return UNANSWERED
        return None if answer.get("behavior") == "allow" else str(answer.get("message") or "denied")

    # --- sub-agents -----------------------------------------------------------------------------------------

    def _delegate(self, block: frames.Block) -> Used:
        if self._depth >= DEEPEST:
            return Used(f"No agent was started: {DEEPEST} of them already wait for each other.", error=True)
        given = block["input"]
        try:
            name = roster.meant(str(given.get("subagent_type", DEFAULT_TYPE)), self.stage.agents)
        except roster.NoSuchAgent as error:
            return Used(str(error), error=True)
        task = _task(block["id"], name, given, self._depth + 1)
        prompt = stream.text_block(str(given.get("prompt", "")))
        sub = Performer(self.stage, name, [{"role": "user", "content": [prompt]}], task, self._depth + 1)
        if task["is_backgrounded"]:
            return self._launch(sub, task, prompt["text"])
        self.stage.emit(stream.task_event("task_started", task, prompt=prompt["text"]))
        self.stage.emit(stream.user([prompt], _about(task)))
        ended = sub.perform()
        self._report(task, ended)
        return Used(ended.text if ended.is_error else [stream.text_block(ended.text or "")], error=ended.is_error)

    def _launch(self, sub: Performer, task: Mapping[str, Any], prompt: str) -> Used:
        self.stage.announce(_short(task))
        self.stage.emit(stream.task_event("task_started", task, prompt=prompt))

        def begin() -> None:
            self.stage.in_background(_short(task), sub.perform, lambda ended: self._report(task, ended))

        text = f"The agent works in the background.\nid: {task['task_id']}"
        return Used([stream.text_block(text)], then=begin)

    def _report(self, task: Mapping[str, Any], ended: stream.Result) -> None:
        state = "failed" if ended.is_error else "completed"
        self.stage.emit(stream.task_event("task_updated", {"task_id": task["task_id"]}, patch={"status": state}))
        self.stage.emit(stream.task_event("task_notification", _short(task), status=state, summary=ended.text or ""))


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
    """What every event of a sub-agent's says about whose it is."""
    if task is None:
        return {}
    return {
        "parent_tool_use_id": task["tool_use_id"],
        "agent_id": task["task_id"],
        "subagent_type": task["subagent_type"],
        "task_description": task["description"],
    }
