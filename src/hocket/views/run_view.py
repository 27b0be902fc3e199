"""The run view: what a followed tree of runs looks like so far, folded from its events.

``model.fold`` on the server is the authority on a run. This is the part that live views draw: steps, iterations, the
last line of output, open questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hocket.views.event_text import (
    LINE_LIMIT,
    gate_running,
    gate_verdict,
    helper_name,
    prompt_line,
    shorten,
    tool_summary,
    with_helper,
)
from hocket.views.names import PROCESS_KINDS, agent_name
from hocket.views.text import PROCESS_GONE, one_line, terminal_output

Event = dict[str, Any]

_ACTIVE_MEMBER = ("started", "running", "pending")
_QUESTION_EVENTS = frozenset({"question", "answer", "turn.ended", "run.ended"})
_GATE_EVENTS = frozenset({"gate", "gate.started"})


class HelperView:
    """A sub-agent that works inside the process of a step's agent."""

    def __init__(self, agent: str, started_at: float) -> None:
        self.agent = agent
        self.started_at = started_at
        self.last = ""


class StepView:
    """One step of the chain."""

    def __init__(self, agent: str, maximum: int, group: int | None = None) -> None:
        self.agent = agent_name(agent)
        self.label = self.agent
        """Its agent, numbered where a group has it several times: ``talker#2``."""
        self.maximum = maximum
        self.group = group
        """Adjacent steps with the same group run in parallel."""
        self.iteration = 0
        self.status = "pending"
        self.reason: str | None = None
        self.run: str | None = None
        self.last = ""
        """The last line of output, or the last tool call."""
        self.previous = ""
        """The line before that."""
        self.output_at: float | None = None
        self.gate = ""
        """The gate that is checking its last iteration."""
        self.helpers: dict[str, HelperView] = {}
        """Its running sub-agents, by the id that marks their events."""
        self.open_tasks = 0
        """How many shared tasks of its team are unfinished."""
        self.question: OpenQuestion | None = None
        """The oldest open question of its current run."""
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.cost: float | None = None
        self.estimated = False
        """True if part of the cost is an estimate."""
        self.tokens: int | None = None
        self.is_reported = False
        """True once ``finish_earlier_steps`` has returned it."""

    @property
    def is_over(self) -> bool:
        return not self.gate and self.status not in ("pending", "starting", "running", "waiting", "parked")

    def state(self) -> str:
        """Its status; ``gone`` if only the end of its process is known, ``team`` while only its team works."""
        if self.reason == PROCESS_GONE:
            return "gone"
        return "team" if self.status == "waiting" and self.open_tasks else self.status

    def outcome(self) -> str:
        """The reason why it ended, where its status does not say it."""
        said = ("single_run", "exit") if self.status == "done" else (self.status, PROCESS_GONE)
        return "" if self.reason in said else str(self.reason or "")

    def iterations(self) -> str:
        """``2/3``, or ``2`` where the maximum is unknown."""
        done = str(self.iteration or "-")
        return f"{done}/{self.maximum}" if self.maximum else done

    def note_output(self, line: str, ts: float, helper: HelperView | None = None) -> None:
        """Record the latest line of output, of its own agent or of a sub-agent."""
        if line and helper is not None:
            helper.last = line
        elif line:
            self.previous, self.last = self.last, line
        self.output_at = ts

    def elapsed(self, now: float) -> float | None:
        return None if self.started_at is None else (self.ended_at or now) - self.started_at


class ProcessView:
    """One process of the tree."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.agent = agent_name(str(data.get("agent", "?")))
        self.number = data.get("number")
        self.step: int | None = data.get("step")
        self.iteration: int | None = data.get("iteration")
        self.parent: str | None = data.get("parent")
        self.on_question: str | None = data.get("on_question")
        """How its questions are handled; None for a run started by an earlier version."""
        self.cost: float | None = None
        self.tokens: int | None = None

    def add_usage(self, data: dict[str, Any], step: StepView | None) -> None:
        """Record its total usage and add the increase to its step. A known cost stays known."""
        cost, tokens = data.get("cost_usd"), data.get("tokens")
        if cost is not None:
            more, self.cost = cost - (self.cost or 0), cost
            if step is not None:
                step.cost = (step.cost or 0) + more
                step.estimated |= bool(data.get("cost_estimated"))
        if tokens is not None:
            more, self.tokens = tokens - (self.tokens or 0), tokens
            if step is not None:
                step.tokens = (step.tokens or 0) + more


class OpenQuestion(NamedTuple):
    """A question that has no answer yet."""

    run: str
    data: dict[str, Any]
    since: float
    asked_by: str
    """``agent``, or ``agent/sub-agent``."""
    run_name: object
    """The run's number, else its id."""


class RunView:
    """The tree below ``root``. Add every event, in order.

    ``time_of`` maps an event to the time line that ``now`` arguments are on.
    """

    def __init__(
        self,
        root: str,
        steps: list[tuple[str, int]] | None = None,
        time_of: Callable[[Event], float] = lambda event: float(event["ts"]),
    ) -> None:
        self.root = root
        self.number: int | None = None
        self.steps = [StepView(agent, maximum) for agent, maximum in steps or []]
        self.processes: dict[str, ProcessView] = {}
        self.questions: dict[tuple[str, str], OpenQuestion] = {}
        """The open questions of the tree, the oldest first, by run and id."""
        self.answered: OpenQuestion | None = None
        """The question that the latest answer was for."""
        self._time_of = time_of
        self._inner_runs: set[str | None] = {root, None}
        """The chain, its groups and its loops: their children are its steps, other runs' children are not."""
        self._first_step = 0
        """Which step of the chain the first one here is, where the root is a loop or a group."""
        self._root_group: int | None = None
        """The group of all steps, where the root is a group."""
        self._loops: dict[str, int] = {}
        """The step of each loop run."""
        self._names: dict[str, str] = {}
        """The names of loops, groups and further chains."""
        self.parked: dict[str, Any] | None = None
        """What the chain is parked for, while it is."""
        self.budget_usd: float | None = None
        self.budget_tokens: int | None = None
        self.started_at: float | None = None
        self._run_started: dict[str, float] = {}
        self.ended: Event | None = None
        self.prompt: str | None = None
        """The root's prompt, on one line."""
        self.new_prompts: set[str] = set()
        """Runs whose prompt differs from the root's and from that of the iteration before."""
        self._prompts: dict[object, str | None] = {}
        """The last prompt of each step."""
        self._helper_texts: dict[tuple[str, str], str] = {}
        """The beginning of what each sub-agent said last, by run and the id that marks its events."""

    def add(self, event: Event) -> None:
        """Fold one more event."""
        kind, run = event["type"], event["run"]
        if self.started_at is None:
            self.started_at = self._time_of(event)
        if kind == "run.started":
            self._run_started[run] = self._time_of(event)
        if kind in _QUESTION_EVENTS:
            self._update_questions(event)
        if kind in ("usage", "run.ended") and (process := self.processes.get(run)) is not None:
            process.add_usage(event["data"], self.step_of(run))
        if kind == "text" and event["data"].get("parent"):
            self._helper_texts[_helper_key(event)] = _beginning(event)
        if kind == "run.created":
            self._add_run(event)
        elif kind in ("parked", "unparked") and run == self.root:
            self.parked = event["data"] if kind == "parked" else None
        elif kind in _GATE_EVENTS:
            self._update_gate(event)
        elif kind == "run.ended" and run == self.root:
            self._end_root(event)
        elif kind == "run.ended" and run in self._loops and self._loops[run] < len(self.steps):
            step, data = self.steps[self._loops[run]], event["data"]
            step.status, step.reason, step.ended_at = data["status"], data.get("reason"), self.end_time(event)
        elif (own := self.step_of(run)) is not None and own.run == run:
            self._update_step(own, event)

    @property
    def name(self) -> str:
        """``run 42``."""
        return f"run {self.number or self.root}"

    def step_of(self, run: str) -> StepView | None:
        """The step a run belongs to; None for runs that are not the chain's own."""
        process = self.processes.get(run)
        if process is None or process.step is None or process.step >= len(self.steps):
            return None
        return self.steps[process.step] if process.parent in self._inner_runs else None

    def speaker(self, run: str) -> str:
        """``builder[2/3]``, or the name alone where nothing is repeated."""
        process = self.processes.get(run)
        if process is None:
            return self.name if run == self.root else self._names.get(run, run[:8])
        step = self.step_of(run)
        if step is None or process.iteration is None or step.maximum == 1:
            return process.agent if step is None else step.label
        return f"{step.label}[{process.iteration}{f'/{step.maximum}' if step.maximum else ''}]"

    def speaker_of(self, event: Event) -> str:
        """Which agent an event is about; ``agent/sub-agent`` for one of a sub-agent."""
        data = event["data"]
        about = data.get("run") if event["type"] in ("gate", "gate.started", "progress") else None
        speaker = self.speaker(about or event["run"])
        helper = helper_name(data) if event["type"] != "run.created" else ""
        return f"{speaker}/{helper}" if helper else speaker

    def repeats_text(self, event: Event) -> bool:
        """True for the report of a sub-agent that is what it said last."""
        return event["type"] == "member" and self._helper_texts.get(_helper_key(event)) == _beginning(event)

    def automatic_answer(self, event: Event) -> str:
        """``deny`` or ``fail`` if a question is not for people, else an empty string.

        With ``deny`` a CLI is told not to ask, so only a question that was put over the API is denied here.
        """
        process = self.processes.get(event["run"])
        policy = process.on_question if process is not None else None
        return policy if policy == "fail" or (policy == "deny" and event["data"].get("via")) else ""

    def questions_of(self, run: str) -> list[OpenQuestion]:
        """The open questions of one run, the oldest first."""
        return [question for question in self.questions.values() if question.run == run]

    def _update_questions(self, event: Event) -> None:
        kind, run, data = event["type"], event["run"], event["data"]
        if kind == "question":
            if self.automatic_answer(event):
                return
            process = self.processes.get(run)
            number = process.number if process else self.number if run == self.root else None
            name = run if number is None else number
            question = OpenQuestion(run, data, self._time_of(event), self.speaker_of(event), name)
            self.questions[run, data["id"]] = question
        elif kind == "answer":
            self.answered = self.questions.pop((run, data["id"]), None)
        elif kind in ("turn.ended", "run.ended") and self.questions:
            self.questions = {
                key: question
                for key, question in self.questions.items()
                if question.run != run or (kind == "turn.ended" and _outlives_turn(question.data))
            }

    def active_steps(self) -> list[StepView]:
        """The latest step that has started and not ended; of a group all such members."""
        begun = [step for step in self.steps if step.run is not None and not step.is_over]
        return [step for step in begun if step is begun[-1] or is_parallel(step, begun[-1])]

    def listening_steps(self) -> list[StepView]:
        """The active steps whose agent may read a message now."""
        return [step for step in self.active_steps() if not step.gate and step.status in ("running", "waiting")]

    def group_of(self, step: StepView) -> list[StepView]:
        """The steps that run in parallel with a step, itself included."""
        return [one for one in self.steps if one is step or is_parallel(one, step)]

    def usage(self) -> tuple[float | None, int | None]:
        """Cost and tokens of the whole tree so far; None where unknown."""
        costs = [process.cost for process in self.processes.values() if process.cost is not None]
        tokens = [process.tokens for process in self.processes.values() if process.tokens is not None]
        return sum(costs) if costs else None, sum(tokens) if tokens else None

    def _add_run(self, event: Event) -> None:
        run, data = event["run"], self._relative(event["data"])
        kind = data.get("kind", "leaf")
        if run == self.root:
            self.number = data.get("number")
            self.prompt = prompt_line(data)
            if self.prompt:
                self.new_prompts.add(run)
            self.budget_usd, self.budget_tokens = data.get("budget_usd"), data.get("budget_tokens")
            if kind in ("loop", "group"):
                self._first_step, self._root_group = data.get("step") or 0, 0 if kind == "group" else None
            for step in () if self.steps else data.get("steps") or ():
                maximum = int(step.get("iterations") or step.get("max_iterations") or 1)
                self.steps.append(StepView(str(step.get("agent", "?")), maximum, step.get("group")))
            number_members(self.steps)
            if kind in PROCESS_KINDS:
                self.steps = self.steps or [StepView(str(data.get("agent", "?")), 1)]
                data = {**data, "step": 0, "iteration": 1, "parent": None}
            elif kind == "loop":
                self.steps = self.steps or [StepView(str(data.get("agent", "?")), 0)]
        elif kind in ("loop", "group") and data.get("parent") in self._inner_runs:
            self._inner_runs.add(run)
            if kind == "loop" and data.get("step") is not None:
                self._loops[run] = data["step"]
        if kind in PROCESS_KINDS:
            self._add_process(event, data)
        else:
            place = self._loops.get(run, len(self.steps))
            label = self.steps[place].label if place < len(self.steps) else None
            self._names[run] = label or agent_name(str(data.get("agent", "?")))

    def _relative(self, data: dict[str, Any]) -> dict[str, Any]:
        """The same with the step counted from the first one here."""
        return {**data, "step": data["step"] - self._first_step} if data.get("step") is not None else data

    def _add_process(self, event: Event, data: dict[str, Any]) -> None:
        run = event["run"]
        process = self.processes[run] = ProcessView(data)
        if process.parent in self._inner_runs and process.step is not None:
            while len(self.steps) <= process.step:  # a chain that did not announce its steps
                self.steps.append(StepView(process.agent, 0, self._root_group))
        step, prompt = self.step_of(run), prompt_line(data)
        place = run if step is None else process.step
        if prompt and prompt not in (self.prompt, self._prompts.get(place)):
            self.new_prompts.add(run)
        self._prompts[place] = prompt
        if step is not None:
            step.run = run
            step.iteration = process.iteration or 1
            step.status, step.gate, step.helpers, step.output_at = "starting", "", {}, None
            step.open_tasks = 0
            step.started_at = step.started_at or self._time_of(event)

    def _update_step(self, step: StepView, event: Event) -> None:
        kind, data = event["type"], event["data"]
        open_questions = self.questions_of(event["run"]) if self.questions else []
        step.question = open_questions[0] if open_questions else None
        if kind in ("text", "tool.started"):
            helper = step.helpers.get(str(data.get("parent")))
            step.note_output(_output_line(event, is_own=helper is None), self._time_of(event), helper)
        elif kind == "task.changed":
            step.open_tasks = int(data.get("open") or 0)
        elif kind == "member" and not data.get("team"):
            self._update_helper(step, event)
        elif kind == "marker":
            step.last = step.previous  # the line before the marker says more than the marker
        elif kind in ("run.started", "turn.started", "answer"):
            step.status = "waiting" if step.question else "running"
        elif (kind == "question" and open_questions) or (kind == "turn.ended" and data.get("idle")):
            step.status = "waiting"
        elif kind == "run.ended":
            step.ended_at, step.reason = self.end_time(event), data.get("reason")
            step.helpers = {}
            if data.get("reason") == "rate_limited" or data.get("transient"):
                step.status = "parked"  # it is started again afterwards
            elif self.processes[event["run"]].iteration is None:
                step.status = data["status"]

    def _update_helper(self, step: StepView, event: Event) -> None:
        data = event["data"]
        mark = str(data.get("parent"))
        if data.get("status") not in _ACTIVE_MEMBER:
            step.helpers.pop(mark, None)
            return
        at = self._time_of(event)
        helper = step.helpers.setdefault(mark, HelperView(helper_name(data) or "helper", at))
        step.note_output(one_line(str(data.get("text") or "")), at, helper)

    def _update_gate(self, event: Event) -> None:
        data = event["data"]
        step = self.step_of(str(data.get("run")))
        if step is None:
            return
        step.gate = gate_running(data) if event["type"] == "gate.started" else ""
        step.output_at = self._time_of(event)
        if not step.gate and not data.get("passed"):
            step.last = gate_verdict(data)
            if step.status == "done":
                step.status, step.reason = "failed", "gate"

    def end_time(self, event: Event) -> float:
        """When the run of a ``run.ended`` ended: earlier than the event if no server was there to notice."""
        begun, taken = self._run_started.get(event["run"]), event["data"].get("duration")
        return self._time_of(event) if begun is None or taken is None else begun + float(taken)

    def _end_root(self, event: Event) -> None:
        self.ended = event
        data = event["data"]
        reports = data.get("steps") or []
        for step in self.steps:
            step.gate = ""
        for step, report in zip(self.steps, reports, strict=False):
            step.status = report["status"]
            step.reason = report["reason"]
            step.iteration = report["iterations"]
            step.maximum = report["max_iterations"]
            step.cost = report.get("cost_usd", step.cost)
            step.estimated = bool(report.get("cost_estimated"))
            step.tokens = report.get("tokens", step.tokens)
        if not reports and len(self.steps) == 1:
            self.steps[0].status, self.steps[0].reason = data["status"], data.get("reason")
            self.steps[0].ended_at = self.end_time(event)

    def finish_earlier_steps(self) -> list[StepView]:
        """The steps that have ended since the last call, each returned once.

        A chain continues only when a step, or all of a group, is complete: a later step that has started ends the
        earlier ones, and the end of the chain ends them all, those that never started as ``skipped``.
        """
        begun = [step for step in self.steps if step.run is not None]
        past = self.steps if self.ended else [step for step in begun if step not in self.group_of(begun[-1])]
        found = [step for step in past if not step.is_reported]
        for step in found:
            step.is_reported = True
            step.status = step.status if step.is_over else "done" if step.run is not None else "skipped"
        return found


def number_members(steps: list[StepView]) -> None:
    """Number the members of a group that have the same agent."""
    for step in steps:
        same = [one for one in steps if one.agent == step.agent and is_parallel(one, step)]
        if len(same) > 1:
            step.label = f"{step.agent}#{same.index(step) + 1}"


def is_parallel(one: StepView, other: StepView) -> bool:
    """True if both steps are members of the same group."""
    return one.group is not None and one.group == other.group


def _outlives_turn(question: Event) -> bool:
    """True for the questions of sub-agents, which keep running, and of hooks, which may be part of the next turn."""
    return bool(question.get("parent")) or question.get("via") == "hook"


def _helper_key(event: Event) -> tuple[str, str]:
    return event["run"], str(event["data"].get("parent"))


def _beginning(event: Event) -> str:
    """The text of an event, as much of it as one line shows."""
    return shorten(one_line(terminal_output(str(event["data"].get("text") or ""))), LINE_LIMIT)


def _output_line(event: Event, *, is_own: bool) -> str:
    """What an agent says or does on one line, prefixed with the sub-agent that has no line of its own."""
    data = event["data"]
    if event["type"] == "tool.started":
        line = tool_summary(str(data.get("name")), data.get("input"))
    else:
        line = one_line(terminal_output(str(data.get("text", ""))))
    return with_helper(data, line) if is_own else line
