"""What each tool does, as a row of steps: something to ask of the server, an event to wait for, a word of progress.

Nothing is sent or received here. Whoever carries the steps out, over a socket or inside the server, hands back what
came of each, and an error where one was raised; the outcome is the value of the generator. So a tool is written once,
and every rule about runs and tasks stays where it is: behind the routes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Any

from hocket.client import ENDED, quote
from hocket.errors import HocketError, NotFound, ServerUnreachable
from hocket.mcp.tools import DEFAULT_WAIT, complaint, settled

Step = Any
"""``Ask``, ``Next`` or ``Progress``."""
Steps = Generator[Step, Any, "Outcome"]
Arguments = dict[str, Any]
Event = dict[str, Any]
Run = dict[str, Any]

NEWS_SECONDS = 1.0
"""Progress is told at most so often, however much is said."""
QUIET_SECONDS = 7.0
"""And at least so often: some clients give up on a call that says nothing."""
IDLE_SECONDS = 5.0
"""An agent that has done its turn may take so long to begin another one, or to end."""
LIST_CHARACTERS = 40_000
MOST_RUNS = 50
_DESCRIPTION = 160
_LAST = 200


class Ask:
    """A request to the server; its whole answer, ``data`` and ``meta``, is handed back."""

    __slots__ = ("body", "key", "method", "path")

    def __init__(self, method: str, path: str, body: Any = None, key: str | None = None) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.key = key


class Next:
    """The next event of a run after a certain one. None is handed back now and then while there is none."""

    __slots__ = ("after", "run")

    def __init__(self, run: str, after: int) -> None:
        self.run = run
        self.after = after


class Progress:
    """How it is getting on."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Outcome:
    """What came of a call: a text for the model, facts for programs."""

    __slots__ = ("facts", "is_error", "text")

    def __init__(self, text: str, facts: dict[str, Any], is_error: bool = False) -> None:
        self.text = text
        self.facts = facts
        self.is_error = is_error


class Me:
    """Who calls: a run, or somebody outside of any."""

    __slots__ = ("cwd", "env", "key", "longest", "most", "run", "task")

    def __init__(
        self,
        run: str | None = None,
        task: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        longest: float = DEFAULT_WAIT,
        key: str | None = None,
        most: float = float("inf"),
    ) -> None:
        self.run = run
        self.task = task
        self.cwd = cwd
        self.env = env
        self.longest = longest
        self.most = most
        """However long a call wants to wait. Nobody can tell whether somebody is left at a silent line."""
        """How long a wait may take where the call does not say."""
        self.key = key or os.urandom(12).hex()
        """Makes what is asked in this call one thing, however often it has to be sent."""

    def place(self, cwd: str | None) -> dict[str, Any]:
        """Where to work, and with what environment. A run's own are known to the server."""
        given = {"cwd": cwd or self.cwd, "env": self.env}
        return {name: value for name, value in given.items() if value is not None}


def carry_out(name: str, arguments: Arguments, me: Me) -> Steps:
    """All the steps of a call. Whatever goes wrong on the way is an outcome, too."""
    wrong = complaint(name, arguments)
    if wrong is not None:
        return _refusal("arguments", wrong, None)
    try:
        return (yield from _TOOLS[name](settled(name, arguments), me))
    except HocketError as error:
        return _refusal(error.code, error.message, error.hint)


def _refusal(code: str, message: str, hint: str | None) -> Outcome:
    told = f"refused ({code}): {message}" + (f"\n{hint}" if hint else "")
    return Outcome(told, {"status": "refused", "reason": code}, is_error=True)


# --- Agents -------------------------------------------------------------------------------------------------


def _list_agents(given: Arguments, me: Me) -> Steps:
    query = f"?project={quote(me.cwd)}" if me.run is None and me.cwd else ""
    rows = (yield Ask("GET", f"/api/agents{query}"))["data"]
    word = given.get("contains", "").lower()
    fitting = [row for row in rows if word in f"{row['name']}\n{row['description']}".lower()]
    if not fitting:
        return Outcome(f"No agent has {word!r} in it." if rows else "No agent is defined here.", {"agents": []})
    return Outcome(_agents_text(fitting), {"agents": [row["name"] for row in fitting]})


def _agents_text(rows: list[dict[str, Any]]) -> str:
    """A line for each; where that is too much, the rest by name, and then by number."""
    lines: list[str] = []
    left = LIST_CHARACTERS
    for position, row in enumerate(rows):
        line = _agent_line(row) if left > LIST_CHARACTERS // 4 else str(row["name"])
        left -= len(line) + 1
        if left < 0:
            return "\n".join([*lines, f"and {len(rows) - position} more; name a part of them with contains"])
        lines.append(line)
    return "\n".join(lines)


def _agent_line(row: dict[str, Any]) -> str:
    approval = " (not approved yet: it will be refused)" if row.get("needsTrust") else ""
    return f"{row['name']}: {_short(row['description'], _DESCRIPTION)}{approval}"


def _short(text: Any, most: int) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= most else f"{words[: most - 1]}…"


# --- Starting -----------------------------------------------------------------------------------------------


def _spawn(given: Arguments, me: Me) -> Steps:
    body = {"agent": given["agent"], "prompt": given["prompt"], **me.place(given.get("cwd"))}
    if given.get("session"):
        body["session"] = True
    run = (yield Ask("POST", "/api/runs", body, me.key))["data"]
    text = f'{run["agent"]} has started as run {run["id"]}. Its final message: wait with run "{run["id"]}".'
    return Outcome(text, _run_facts(run))


def _hand_off(given: Arguments, me: Me) -> Steps:
    task = given.get("task") or me.task
    body = {"agentName": given["agent"], "prompt": given["prompt"]}
    place = me.place(None).get("cwd")
    body |= {"cwd": given["cwd"]} if "cwd" in given else {"defaultCwd": place} if place else {}
    body |= {"env": me.env} if me.env is not None else {}
    path = "/api/handoffs" if task is None else f"/api/tasks/{quote(task)}/handoff"
    answer = yield Ask("POST", path, body, me.key)
    task, meta = answer["data"]["id"], answer["meta"]
    waiting = _Waiting(meta["run"], given, me, str(given["agent"]))
    return (yield from waiting.kept(_await_handoff(waiting, str(task), str(meta["handoff"]), 0)))


# --- Waiting ------------------------------------------------------------------------------------------------


class _Waiting:
    """One wait: for how long, what was heard last, and when somebody was told."""

    def __init__(self, run: str, given: Arguments, me: Me, agent: str = "") -> None:
        self.run = run
        self._agent = agent
        self._seconds = min(float(given.get("timeout") or me.longest), me.most)
        self._began = self._told = time.monotonic()
        self._last = "has started"
        self._is_new = True
        self.seen = 0

    def is_over(self) -> bool:
        return time.monotonic() - self._began >= self._seconds

    def until(self, after: int, over: Callable[[Event], bool], idle: float | None = None) -> Generator[Step, Any, Any]:
        """Follow until an event is what is waited for; None when time is up, or so long after nothing was heard."""
        self.seen = after
        quiet_since = time.monotonic()
        while True:
            event = yield Next(self.run, self.seen)
            if event is not None:
                self.seen = event["seq"]
                quiet_since = time.monotonic()
                if over(event):
                    return event
                self._hear(event)
            if self.is_over() or (idle is not None and time.monotonic() - quiet_since >= idle):
                return None
            if self._is_due():
                yield Progress(self._words())

    def tells(self, event: Event) -> bool:
        """Whether an event may be what is waited for: an end, or the beginning or end of a pause."""
        return event["run"] == self.run and event["type"] in ("run.ended", "turn.ended", "turn.started", "answer")

    def _hear(self, event: Event) -> None:
        if event["run"] != self.run:
            return
        kind, data = event["type"], event["data"]
        if kind == "text":
            self._last = _short(data.get("text"), _LAST)
        elif kind == "tool.started":
            self._last = f"uses {data.get('name')}"
        elif kind == "question":
            self._last = f"waits for an answer of a person: {_short(data.get('text'), _LAST)}"
        else:
            return
        self._is_new = True

    def _is_due(self) -> bool:
        return time.monotonic() - self._told >= (NEWS_SECONDS if self._is_new else QUIET_SECONDS)

    def _words(self) -> str:
        self._told, self._is_new = time.monotonic(), False
        return f"{self._agent or 'run'} ({self.run}), {self._told - self._began:.0f} s: {self._last}"

    def timed_out(self, **more: Any) -> Outcome:
        """Time is up, and nothing is lost."""
        text = (
            f"timeout: {self._agent or 'run ' + self.run} is still at work after {self._seconds:.0f} s, and goes on. "
            f'Nothing is lost: wait with run "{self.run}" returns its final message.'
        )
        return Outcome(text, {"run": self.run, "status": "running", "reason": "wait_timeout", **more}, is_error=True)

    def kept(self, steps: Steps) -> Steps:
        """The same steps; whatever goes wrong with the waiting, the run's name is not lost."""
        try:
            return (yield from steps)
        except HocketError as error:
            text = (
                f"unknown: the wait broke off ({error.message}). The work goes on; "
                f'wait with run "{self.run}" returns its final message.'
            )
            facts = {"run": self.run, "status": "unknown", "reason": error.code}
            return Outcome(text, facts, is_error=True)


def _wait(given: Arguments, me: Me) -> Steps:
    named = [name for name in ("run", "handoff", "question") if name in given]
    if len(named) != 1:
        return _refusal("arguments", "wait needs one of run, handoff and question, and only one", None)
    if named == ["question"]:
        return (yield from _wait_for_answer(given, me))
    if named == ["handoff"]:
        return (yield from _wait_for_handoff(given, me))
    run = yield from _run(given["run"])
    if run["id"] == me.run:
        return _refusal("arguments", "that is your own run, which ends when you do", None)
    waiting = _Waiting(run["id"], given, me, run["agent"])
    handoff = (yield from _handoff_of(run)) if run["task"] else None
    if handoff is None:
        return (yield from waiting.kept(_await_run(waiting, run)))
    return (yield from waiting.kept(_await_handoff(waiting, run["task"], handoff, run["seq"])))


def _handoff_of(run: Run) -> Generator[Step, Any, str | None]:
    """The hand-off that a run is; None for one that was only started for a task."""
    try:
        return str((yield Ask("GET", _handoff_path(run["task"], run["id"])))["data"]["id"])
    except NotFound:
        return None


def _run(ref: str) -> Generator[Step, Any, Run]:
    found: Run = (yield Ask("GET", f"/api/runs/{quote(ref)}"))["data"]
    return found


def _await_run(waiting: _Waiting, run: Run) -> Steps:
    """A run's end; of one that stays for more messages, the end of its turn."""
    while run["status"] not in ENDED:
        idle = IDLE_SECONDS if _is_idle(run) else None
        event = yield from waiting.until(run["seq"], waiting.tells, idle)
        if event is None and (idle is None or waiting.is_over()):
            return waiting.timed_out(number=run["number"])
        run = yield from _run(run["id"])
        if event is None and _is_idle(run):
            return Outcome(_said(run["result"]), _run_facts(run))
    return _ended(run)


def _is_idle(run: Run) -> bool:
    return run["status"] == "waiting" and not run["needs_you"] and run["parked_until"] is None


def _wait_for_handoff(given: Arguments, me: Me) -> Steps:
    task = given.get("task") or me.task
    if task is None:
        return _refusal("arguments", "wait with a hand-off needs its task", None)
    record = (yield Ask("GET", _handoff_path(task, given["handoff"])))["data"]
    if record["run"] is None:
        return _handed(record)
    run = yield from _run(record["run"])
    waiting = _Waiting(run["id"], given, me, record["agentName"])
    return (yield from waiting.kept(_await_handoff(waiting, task, record["id"], run["seq"])))


def _await_handoff(waiting: _Waiting, task: str, handoff: str, after: int) -> Steps:
    """The result of a hand-off. Its record may be closed before its run has ended."""

    def closes(event: Event) -> bool:
        data = event["data"]
        if event["type"] == "task.changed":
            return bool(data.get("handoff") == handoff and data.get("event") == "agent_handoff_completed")
        return bool(event["type"] == "run.ended" and event["run"] == waiting.run)

    while True:
        record = (yield Ask("GET", _handoff_path(task, handoff)))["data"] if after else None
        if record is not None and record["completedAt"] is not None:
            return _handed(record)
        if (yield from waiting.until(after, closes)) is None:
            return waiting.timed_out(task=task, handoff=handoff)
        after = max(waiting.seen, 1)


def _handoff_path(task: str, handoff: str) -> str:
    return f"/api/tasks/{quote(task)}/handoffs/{quote(handoff)}"


def _handed(record: dict[str, Any]) -> Outcome:
    facts = {name: record[name] for name in ("run", "task", "status", "reason")} | {"handoff": record["id"]}
    is_error = record["status"] != "done"
    return Outcome(_said(record["output"]), facts, is_error)


def _ended(run: Run) -> Outcome:
    """A run's last words; where it did not end well, how it ended comes first, as in the record of a hand-off."""
    if run["status"] == "done":
        return Outcome(_said(run["result"]), _run_facts(run))
    why = f"{run['status']} ({run['reason']})" + (f": {run['error'].strip()}" if run["error"] else "")
    return Outcome(f"{why}\n\n{run['result']}" if run["result"] else why, _run_facts(run), is_error=True)


def _said(result: str | None) -> str:
    return result if result and result.strip() else "(it ended well and said nothing)"


def _run_facts(run: Run) -> dict[str, Any]:
    return {"run": run["id"]} | {name: run[name] for name in ("number", "agent", "status", "reason")}


# --- Looking and talking ------------------------------------------------------------------------------------


def _status(given: Arguments, me: Me) -> Steps:
    if "run" in given:
        run = yield from _run(given["run"])
        below = [_line(child) for child in run.get("children") or []]
        return Outcome("\n".join([_line(run), *(f"  {line}" for line in below)]), _run_facts(run))
    # A run sees what it started, also what has ended; somebody outside sees what is at work.
    runs = (yield Ask("GET", "/api/runs?all=1&limit=200" if me.run else "/api/runs"))["data"]
    mine = [run for run in runs if run["id"] != me.run][-MOST_RUNS:]
    if not mine:
        return Outcome("You have started nothing." if me.run else "Nothing is running.", {"runs": []})
    return Outcome("\n".join(map(_line, mine)), {"runs": [_run_facts(run) for run in mine]})


def _line(run: Run) -> str:
    state = "needs an answer of a person" if run["needs_you"] else run["status"]
    reason = f" ({run['reason']})" if run["reason"] not in (None, run["status"], "single_run") else ""
    last = _short(run.get("last") or run.get("error"), _LAST)
    return f"{run['number']} {run['id']} {run['agent']}: {state}{reason}" + (f"; {last}" if last else "")


def _send(given: Arguments, me: Me) -> Steps:
    taken = (yield Ask("POST", f"/api/runs/{quote(given['run'])}/messages", {"text": given["text"]}, me.key))["data"]
    return Outcome(
        f'Run {taken["run"]} will get it. Its answer: wait with run "{taken["run"]}".', {"run": taken["run"]}
    )


def _stop(given: Arguments, me: Me) -> Steps:
    run = yield from _run(given["run"])
    if run["id"] == me.run:
        return _refusal("arguments", "that is your own run; end your turn instead", None)
    stopped = (yield Ask("POST", f"/api/runs/{quote(run['id'])}/stop", {}, me.key))["data"]
    facts = {name: stopped[name] for name in ("run", "status", "reason", "survivors")}
    left = f" Still alive: {', '.join(map(str, stopped['survivors']))}." if stopped["survivors"] else ""
    return Outcome(f"Run {run['id']}: {stopped['status']} ({stopped['reason']}).{left}", facts, bool(left))


# --- Asking people ------------------------------------------------------------------------------------------


def _ask(given: Arguments, me: Me) -> Steps:
    if me.run is None:
        return _refusal("arguments", "only an agent that Hocket runs can ask: nobody would know who it is", None)
    mine = yield from _run(me.run)
    body = {"text": given["question"], **({"options": given["options"]} if "options" in given else {})}
    asked = (yield Ask("POST", f"/api/runs/{quote(me.run)}/questions", body, me.key))["data"]
    return (yield from _await_answer(me.run, asked["id"], mine["seq"], given, me))


def _wait_for_answer(given: Arguments, me: Me) -> Steps:
    if me.run is None:
        return _refusal("arguments", "only an agent that Hocket runs has questions", None)
    mine = yield from _run(me.run)
    return (yield from _await_answer(me.run, given["question"], mine["seq"], given, me))


def _await_answer(run: str, question: str, after: int, given: Arguments, me: Me) -> Steps:
    waiting = _Waiting(run, given, me, "your question")

    def answers(event: Event) -> bool:
        if event["run"] != run:
            return False
        if event["type"] == "answer":
            return bool(event["data"].get("id") == question)
        return bool(event["type"] == "run.ended")

    while True:
        state = (yield Ask("GET", f"/api/runs/{quote(run)}/questions/{quote(question)}"))["data"]
        if state["answered"] or not state["open"]:
            return _answer(question, state)
        if (yield from waiting.until(after, answers)) is None:
            text = (
                f'timeout: nobody has answered yet; the question stays open. wait with question "{question}" goes on.'
            )
            return Outcome(text, {"question": question, "status": "open", "reason": "wait_timeout"}, is_error=True)
        after = waiting.seen


def _answer(question: str, state: dict[str, Any]) -> Outcome:
    facts = {"question": question, "allow": state["allow"]}
    if not state["answered"]:
        text = "closed: nobody answered while it was open; ask again if it still matters"
        return Outcome(text, facts | {"status": "closed"}, is_error=True)
    if state["allow"]:
        return Outcome(state["answer"] or "yes", facts | {"status": "answered"})
    why = state["answer"] or "no reason was given; decide for yourself or do without"
    return Outcome(f"denied: {why}", facts | {"status": "denied"}, is_error=True)


_TOOLS: dict[str, Callable[[Arguments, Me], Steps]] = {
    "list_agents": _list_agents,
    "hand_off": _hand_off,
    "spawn": _spawn,
    "wait": _wait,
    "status": _status,
    "send": _send,
    "stop": _stop,
    "ask": _ask,
}


def broken_off() -> ServerUnreachable:
    """For whoever follows and is told nothing more, though the run has not ended."""
    return ServerUnreachable("the server is leaving", "ask again")
