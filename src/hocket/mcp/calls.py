"""The tools, without a transport: each is a generator of actions, which a transport performs by way of ``ToolRun``.

An action is a request to the server, the next event of a run, or a note of progress. The rules about runs and tasks
stay behind the routes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NamedTuple

from hocket.client import ENDED, quote
from hocket.errors import HocketError, NotFound, ServerUnreachable
from hocket.mcp.protocol import Message, ToolCall, call_result
from hocket.mcp.tools import DEFAULT_WAIT, argument_error, normalized

Action = Any
"""A ``RequestAction``, ``EventAction`` or ``ProgressAction``."""
Actions = Generator[Action, Any, "CallResult"]
Arguments = dict[str, Any]
Event = dict[str, Any]
Run = dict[str, Any]

PROGRESS_SECONDS = 1.0
"""Shortest time between two notes of progress."""
HEARTBEAT_SECONDS = 7.0
"""Longest time without a note of progress: some clients give up on a silent call."""
IDLE_SECONDS = 5.0
"""How long an agent that has ended its turn may take to begin another one, or to end."""
LIST_CHARACTERS = 40_000
MAX_RUNS = 50
_MAX_DESCRIPTION = 160
_MAX_LAST = 200


class RequestAction(NamedTuple):
    """A request to the server. Its result is the whole response: ``data`` and ``meta``."""

    method: str
    path: str
    body: Any = None
    key: str | None = None


class EventAction(NamedTuple):
    """The next event of a run. Its result is None now and then while there is none."""

    run: str
    after: int


class ProgressAction(NamedTuple):
    """A note of progress for the client."""

    text: str


class CallResult(NamedTuple):
    """The result of a call: text for the model, facts for programs."""

    text: str
    facts: dict[str, Any]
    is_error: bool = False


class CallContext(NamedTuple):
    """Who calls, a run or a client outside of any run, and how long the call may wait."""

    run: str | None = None
    task: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    default_wait: float = DEFAULT_WAIT
    """Seconds, if the call names none."""
    key: str | None = None
    """Idempotency key of what the call starts; a random one if it is None."""
    max_wait: float = float("inf")
    """Seconds, even if the call names more: a transport without progress would look dead."""

    def location(self, cwd: str | None) -> dict[str, Any]:
        """Directory and environment for a start. The server knows those of a run."""
        given = {"cwd": cwd or self.cwd, "env": self.env}
        return {name: value for name, value in given.items() if value is not None}


class ToolRun:
    """A call in progress: a transport performs ``action`` and reports its outcome until there is none."""

    def __init__(self, call: ToolCall, context: CallContext) -> None:
        self.action: Action | None = None
        self.response: Message | None = None
        """The response after the last action; None for a call that was cancelled."""
        self._call = call
        self._actions = tool_actions(call.name, call.arguments, context)
        self._advance(lambda: next(self._actions))

    def resume(self, value: Any) -> None:
        """Continue with the result of the action. A cancelled call still makes its requests, but does not wait."""
        if self._call.cancelled and value is None:
            self._actions.close()
            self.action = None
        else:
            self._advance(lambda: self._actions.send(value))

    def fail(self, error: HocketError) -> None:
        """Continue with the error of the action."""
        self._advance(lambda: self._actions.throw(error))

    def _advance(self, continued: Callable[[], Action]) -> None:
        try:
            self.action = continued()
        except StopIteration as end:
            result: CallResult = end.value
            self.action = None
            self.response = call_result(self._call, result.text, result.is_error, result.facts)


def tool_actions(name: str, arguments: Arguments, context: CallContext) -> Actions:
    """Yield the actions of a call. Errors become results that the model can read."""
    context = context._replace(key=context.key or os.urandom(12).hex())
    wrong = argument_error(name, arguments)
    if wrong is not None:
        return _refusal("arguments", wrong)
    try:
        return (yield from _TOOLS[name](normalized(name, arguments), context))
    except HocketError as error:
        return _refusal(error.code, error.message, error.hint)


def _refusal(code: str, message: str, hint: str | None = None) -> CallResult:
    text = f"refused ({code}): {message}" + (f"\n{hint}" if hint else "")
    return CallResult(text, {"status": "refused", "reason": code}, is_error=True)


# --- Agents -------------------------------------------------------------------------------------------------


def _list_agents(given: Arguments, context: CallContext) -> Actions:
    cwd = given.get("cwd") or context.cwd
    if cwd is None and context.task is not None:
        # A hand-off works in the directory of its task, which need not be that of the run.
        with suppress(NotFound):
            cwd = (yield RequestAction("GET", f"/api/tasks/{quote(context.task)}"))["data"]["cwd"]
    query = f"?project={quote(cwd)}" if cwd else ""
    answer = yield RequestAction("GET", f"/api/agents{query}")
    rows, taken = answer["data"], {row["name"] for row in answer["data"]}
    clis = (name for name in answer["meta"]["clis"] if name not in taken)
    rows += [{"name": name, "address": name, "description": f"the {name} CLI, without a definition"} for name in clis]
    word = given.get("contains", "").lower()
    found = [row for row in rows if word in f"{row['name']}\n{row['description']}".lower()]
    if not found:
        return CallResult(f"No agent matches {word!r}." if rows else "No agents are defined here.", {"agents": []})
    return CallResult(_agents_text(found), {"agents": [row["address"] for row in found]})


def _agents_text(rows: list[dict[str, Any]]) -> str:
    """Return a line for each agent. A long list ends with names alone, and then with a count."""
    lines: list[str] = []
    left = LIST_CHARACTERS
    for position, row in enumerate(rows):
        line = str(row["address"]) + (f" ({row['name']})" if row["name"] != row["address"] else "")
        if left > LIST_CHARACTERS // 4:
            approval = " (not approved: it will be refused)" if row.get("needsTrust") else ""
            line += f": {_short(row['description'], _MAX_DESCRIPTION)}{approval}"
        left -= len(line) + 1
        if left < 0:
            return "\n".join([*lines, f"and {len(rows) - position} more: use contains to see them"])
        lines.append(line)
    return "\n".join(lines)


def _short(text: Any, most: int) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= most else f"{words[: most - 1]}…"


# --- Starting -----------------------------------------------------------------------------------------------


def _spawn(given: Arguments, context: CallContext) -> Actions:
    body = {"agent": given["agent"], "prompt": given["prompt"], **context.location(given.get("cwd"))}
    body["session"] = bool(given.get("session"))
    run = (yield RequestAction("POST", "/api/runs", body, context.key))["data"]
    text = f'{run["agent"]} started as run {run["id"]}. For its final message, call wait with run "{run["id"]}".'
    return CallResult(text, _run_facts(run))


def _hand_off(given: Arguments, context: CallContext) -> Actions:
    task = given.get("task") or context.task
    body = {"agentName": given["agent"], "prompt": given["prompt"]}
    place = context.location(None).get("cwd")
    body |= {"cwd": given["cwd"]} if "cwd" in given else {"defaultCwd": place} if place else {}
    body |= {"env": context.env} if context.env is not None else {}
    path = "/api/handoffs" if task is None else f"/api/tasks/{quote(task)}/handoff"
    answer = yield RequestAction("POST", path, body, context.key)
    task, meta = answer["data"]["id"], answer["meta"]
    wait = _Wait(meta["run"], given, context, str(given["agent"]))
    return (yield from wait.naming_run(_await_handoff(wait, str(task), str(meta["handoff"]), 0)))


# --- Waiting ------------------------------------------------------------------------------------------------


class _Wait:
    """A wait for one run: its deadline, the latest activity, and when progress was reported."""

    def __init__(self, run: str, given: Arguments, context: CallContext, agent: str = "") -> None:
        self.run = run
        self._agent = agent
        self._seconds = min(float(given.get("timeout") or context.default_wait), context.max_wait)
        self._began = self._reported_at = time.monotonic()
        self._activity = "started"
        self._is_new = True
        self.seen = 0

    def is_over(self) -> bool:
        return time.monotonic() - self._began >= self._seconds

    def until(
        self, after: int, over: Callable[[Event], bool], idle: float | None = None
    ) -> Generator[Action, Any, Any]:
        """Follow until ``over(event)``. None after the time limit, or after ``idle`` seconds without an event."""
        self.seen = after
        quiet_since = time.monotonic()
        while True:
            event = yield EventAction(self.run, self.seen)
            if event is not None:
                self.seen = event["seq"]
                quiet_since = time.monotonic()
                if over(event):
                    return event
                self._note(event)
            if self.is_over() or (idle is not None and time.monotonic() - quiet_since >= idle):
                return None
            if self._is_due():
                yield ProgressAction(self._report())

    def changes_state(self, event: Event) -> bool:
        """Whether an event may end the wait: the run ended, or a pause began or ended."""
        return event["run"] == self.run and event["type"] in ("run.ended", "turn.ended", "turn.started", "answer")

    def _note(self, event: Event) -> None:
        if event["run"] != self.run:
            return
        kind, data = event["type"], event["data"]
        helper = f"{data['agent']}: " if data.get("agent") else ""
        if kind == "text":
            self._activity = helper + _short(data.get("text"), _MAX_LAST)
        elif kind == "tool.started":
            self._activity = f"{helper}uses {data.get('name')}"
        elif kind == "question":
            self._activity = f"waits for a person to answer: {_short(data.get('text'), _MAX_LAST)}"
        else:
            return
        self._is_new = True

    def _is_due(self) -> bool:
        return time.monotonic() - self._reported_at >= (PROGRESS_SECONDS if self._is_new else HEARTBEAT_SECONDS)

    def _report(self) -> str:
        self._reported_at, self._is_new = time.monotonic(), False
        return f"{self._agent or 'run'} ({self.run}), {self._reported_at - self._began:.0f} s: {self._activity}"

    def timed_out(self, **more: Any) -> CallResult:
        """The result after the time limit."""
        text = (
            f"timeout: {self._agent or 'run ' + self.run} is still working after {self._seconds:.0f} s. "
            f'It continues: wait with run "{self.run}" returns its final message.'
        )
        return CallResult(text, {"run": self.run, "status": "running", "reason": "wait_timeout", **more}, is_error=True)

    def naming_run(self, actions: Actions) -> Actions:
        """The same actions, with the run named in the result when waiting fails."""
        try:
            return (yield from actions)
        except HocketError as error:
            text = (
                f"unknown: the wait was interrupted ({error.message}). The work continues: "
                f'wait with run "{self.run}" returns its final message.'
            )
            facts = {"run": self.run, "status": "unknown", "reason": error.code}
            return CallResult(text, facts, is_error=True)


def _wait(given: Arguments, context: CallContext) -> Actions:
    named = [name for name in ("run", "handoff", "question") if name in given]
    if len(named) != 1:
        return _refusal("arguments", "wait needs exactly one of run, handoff and question")
    if named == ["question"]:
        if context.run is None:
            return _refusal("arguments", "only an agent that Hocket runs can wait for a question")
        after = (yield from _run(context.run))["seq"]
        return (yield from _await_answer(context.run, given["question"], after, given, context))
    if named == ["handoff"]:
        return (yield from _wait_for_handoff(given, context))
    run = yield from _run(given["run"])
    if run["id"] == context.run:
        return _refusal("arguments", "this is your own run, which ends when you do")
    wait = _Wait(run["id"], given, context, run["agent"])
    if run["task"]:
        with suppress(NotFound):  # the run was started by one that works on the task
            record = (yield _handoff_action(run["task"], run["id"]))["data"]
            return (yield from wait.naming_run(_await_handoff(wait, run["task"], record["id"], run["seq"])))
    return (yield from wait.naming_run(_await_run(wait, run)))


def _run(ref: str) -> Generator[Action, Any, Run]:
    found: Run = (yield RequestAction("GET", f"/api/runs/{quote(ref)}"))["data"]
    return found


def _await_run(wait: _Wait, run: Run) -> Actions:
    """The end of a run, or of the turn of a run that stays for more messages."""
    while run["status"] not in ENDED:
        idle = IDLE_SECONDS if _is_idle(run) else None
        event = yield from wait.until(run["seq"], wait.changes_state, idle)
        if event is None and (idle is None or wait.is_over()):
            return wait.timed_out(number=run["number"])
        run = yield from _run(run["id"])
        if event is None and _is_idle(run):
            return CallResult(_text_of(run["result"]), _run_facts(run))
    return _ended(run)


def _is_idle(run: Run) -> bool:
    is_at_rest = run["status"] == "waiting" and not run["needs_you"] and run["parked_until"] is None
    return is_at_rest and not run.get("open_tasks")  # the team of a lead may still be at work


def _wait_for_handoff(given: Arguments, context: CallContext) -> Actions:
    task = given.get("task") or context.task
    if task is None:
        return _refusal("arguments", "wait with a handoff needs its task")
    record = (yield _handoff_action(task, given["handoff"]))["data"]
    if record["run"] is None:
        return _handoff_result(record)
    run = yield from _run(record["run"])
    wait = _Wait(run["id"], given, context, record["agentName"])
    return (yield from wait.naming_run(_await_handoff(wait, task, record["id"], run["seq"])))


def _await_handoff(wait: _Wait, task: str, handoff: str, after: int) -> Actions:
    """The result of a hand-off. Its record may be closed before its run has ended."""

    def closes(event: Event) -> bool:
        data = event["data"]
        if event["type"] == "task.changed":
            return bool(data.get("handoff") == handoff and data.get("event") == "agent_handoff_completed")
        return bool(event["type"] == "run.ended" and event["run"] == wait.run)

    while True:
        record = (yield _handoff_action(task, handoff))["data"] if after else None
        if record is not None and record["completedAt"] is not None:
            return _handoff_result(record)
        if (yield from wait.until(after, closes)) is None:
            return wait.timed_out(task=task, handoff=handoff)
        after = max(wait.seen, 1)


def _handoff_action(task: str, handoff: str) -> RequestAction:
    return RequestAction("GET", f"/api/tasks/{quote(task)}/handoffs/{quote(handoff)}")


def _handoff_result(record: dict[str, Any]) -> CallResult:
    facts = {name: record[name] for name in ("run", "task", "status", "reason")} | {"handoff": record["id"]}
    is_error = record["status"] != "done"
    return CallResult(_text_of(record["output"]), facts, is_error)


def _ended(run: Run) -> CallResult:
    """The result of a run; how it ended comes first if it was not complete, as in the record of a hand-off."""
    if run["status"] == "done":
        return CallResult(_text_of(run["result"]), _run_facts(run))
    why = f"{run['status']} ({run['reason']})" + (f": {run['error'].strip()}" if run["error"] else "")
    return CallResult(f"{why}\n\n{run['result']}" if run["result"] else why, _run_facts(run), is_error=True)


def _text_of(result: str | None) -> str:
    return result if result and result.strip() else "(completed without a message)"


def _run_facts(run: Run) -> dict[str, Any]:
    return {"run": run["id"]} | {name: run[name] for name in ("number", "agent", "status", "reason")}


# --- Status, messages, stopping -----------------------------------------------------------------------------


def _status(given: Arguments, context: CallContext) -> Actions:
    if "run" in given:
        run = yield from _run(given["run"])
        below = [_line(child) for child in run.get("children") or []]
        return CallResult("\n".join([_line(run), *(f"  {line}" for line in below)]), _run_facts(run))
    # A run sees all that it started, also what has ended; a client outside sees what is running.
    runs = (yield RequestAction("GET", "/api/runs?all=1&limit=200" if context.run else "/api/runs"))["data"]
    mine = [run for run in runs if run["id"] != context.run][-MAX_RUNS:]
    if not mine:
        return CallResult("You have started no runs." if context.run else "No runs are active.", {"runs": []})
    return CallResult("\n".join(map(_line, mine)), {"runs": [_run_facts(run) for run in mine]})


def _line(run: Run) -> str:
    state = "waits for a person to answer" if run["needs_you"] else run["status"]
    reason = f" ({run['reason']})" if run["reason"] not in (None, run["status"], "single_run") else ""
    last = _short(run.get("last") or run.get("error"), _MAX_LAST)
    return f"{run['number']} {run['id']} {run['agent']}: {state}{reason}" + (f"; {last}" if last else "")


def _send(given: Arguments, context: CallContext) -> Actions:
    path = f"/api/runs/{quote(given['run'])}/messages"
    run = (yield RequestAction("POST", path, {"text": given["text"]}, context.key))["data"]["run"]
    return CallResult(f'Delivered to run {run}. For its answer, call wait with run "{run}".', {"run": run})


def _stop(given: Arguments, context: CallContext) -> Actions:
    run = yield from _run(given["run"])
    if run["id"] == context.run:
        return _refusal("arguments", "this is your own run: end your turn instead")
    stopped = (yield RequestAction("POST", f"/api/runs/{quote(run['id'])}/stop", {}, context.key))["data"]
    facts = {name: stopped[name] for name in ("run", "status", "reason", "survivors")}
    left = f" Still running (process ids): {', '.join(map(str, stopped['survivors']))}." if stopped["survivors"] else ""
    return CallResult(f"Run {run['id']}: {stopped['status']} ({stopped['reason']}).{left}", facts, bool(left))


# --- Questions ----------------------------------------------------------------------------------------------


def _ask(given: Arguments, context: CallContext) -> Actions:
    if context.run is None:
        return _refusal("arguments", "only an agent that Hocket runs can ask a question")
    after = (yield from _run(context.run))["seq"]
    body = {name: given[key] for name, key in (("text", "question"), ("options", "options")) if key in given}
    asked = (yield RequestAction("POST", f"/api/runs/{quote(context.run)}/questions", body, context.key))["data"]
    return (yield from _await_answer(context.run, asked["id"], after, given, context))


def _await_answer(run: str, question: str, after: int, given: Arguments, context: CallContext) -> Actions:
    wait = _Wait(run, given, context, "your question")

    def answers(event: Event) -> bool:
        if event["run"] != run:
            return False
        if event["type"] == "answer":
            return bool(event["data"].get("id") == question)
        return bool(event["type"] == "run.ended")

    while True:
        state = (yield RequestAction("GET", f"/api/runs/{quote(run)}/questions/{quote(question)}"))["data"]
        if state["answered"] or not state["open"]:
            return _answer(question, state)
        if (yield from wait.until(after, answers)) is None:
            text = f'timeout: not answered yet. The question stays open: call wait with question "{question}".'
            return CallResult(text, {"question": question, "status": "open", "reason": "wait_timeout"}, is_error=True)
        after = wait.seen


def _answer(question: str, state: dict[str, Any]) -> CallResult:
    facts = {"question": question, "allow": state["allow"]}
    if state["allow"] is None:
        text = "closed: not answered while it was open; ask again if it still matters"
        return CallResult(text, facts | {"status": "closed"}, is_error=True)
    if state["allow"]:
        return CallResult(state["answer"] or "yes", facts | {"status": "answered"})
    why = state["answer"] or "no reason given; decide yourself or do without"
    return CallResult(f"denied: {why}", facts | {"status": "denied"}, is_error=True)


_TOOLS: dict[str, Callable[[Arguments, CallContext], Actions]] = {
    "list_agents": _list_agents,
    "hand_off": _hand_off,
    "spawn": _spawn,
    "wait": _wait,
    "status": _status,
    "send": _send,
    "stop": _stop,
    "ask": _ask,
}


def stream_ended() -> ServerUnreachable:
    """The error for a stream of events that ended before its run."""
    return ServerUnreachable("the server is shutting down", "try again")
