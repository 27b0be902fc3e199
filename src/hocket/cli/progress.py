"""What a followed tree of runs looks like so far: a fold of its events for the eye. Both views draw from it.

The truth about a run is ``model.fold`` on the server. This is less: steps, passes, the last line said.
"""

from __future__ import annotations

import time
from typing import Any

from hocket.cli.format import NEEDS_YOU, WORDS, cost, duration, fit, money, one_line, table, uttered
from hocket.cli.steady import steady_time
from hocket.cli.words import asked, deed, gate_at_work, gate_verdict, parking

Event = dict[str, Any]

AGENT_COLUMNS = 24
"""Of an agent's name, however long it is."""
_HELPS = ("started", "running", "pending")
_ABOUT_QUESTIONS = frozenset({"question", "answer", "turn.ended", "run.ended"})


class HelperView:
    """An agent that works for the agent of a step, inside of its process."""

    __slots__ = ("agent", "last", "started_at")

    def __init__(self, agent: str, started_at: float) -> None:
        self.agent = agent
        self.started_at = started_at
        self.last = ""


class StepView:
    """One step of the chain."""

    __slots__ = (
        *("agent", "asks", "before", "cost", "ended_at", "estimated", "gate", "group", "helpers", "iteration"),
        *("last", "maximum", "reason", "run", "said_at", "started_at", "status", "told", "tokens"),
    )

    def __init__(self, agent: str, maximum: int, group: int | None = None) -> None:
        self.agent = agent
        self.maximum = maximum
        self.group = group
        """Those in a row that share one work at the same time."""
        self.iteration = 0
        self.status = "pending"
        self.reason: str | None = None
        self.run: str | None = None
        self.last = ""
        self.said_at: float | None = None
        self.before = ""
        self.gate = ""
        """The gate that is at work on its last pass."""
        self.helpers: dict[str, HelperView] = {}
        """Who works for it now, by the id that marks their words."""
        self.asks = ""
        """What to type for it to go on, while it waits for an answer."""
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.cost: float | None = None
        self.estimated = False
        """Whether some of that cost is a guess by its tokens."""
        self.tokens: int | None = None
        self.told = False
        """Whether it is over for good, and somebody was told."""

    @property
    def over(self) -> bool:
        return not self.gate and self.status not in ("pending", "starting", "running", "waiting", "parked")

    def passes(self) -> str:
        """``2/3``, or ``2`` where nobody said how often it may be repeated."""
        done = str(self.iteration or "-")
        return f"{done}/{self.maximum}" if self.maximum else done

    def say(self, words: str, ts: float, helper: HelperView | None = None) -> None:
        """Note what was said last: by its own agent, or by one that works for it."""
        if words and helper is not None:
            helper.last = words
        elif words:
            self.before, self.last = self.last, words
        self.said_at = ts

    def taken(self, now: float) -> float | None:
        return None if self.started_at is None else (self.ended_at or now) - self.started_at


class LeafView:
    """One process of the tree: whose words they are."""

    __slots__ = ("agent", "cost", "iteration", "number", "on_question", "parent", "step", "tokens")

    def __init__(self, event: Event) -> None:
        data = event["data"]
        self.agent = one_line(str(data.get("agent", "?")))
        self.number = data.get("number")
        self.step: int | None = data.get("step")
        self.iteration: int | None = data.get("iteration")
        self.parent: str | None = data.get("parent")
        self.on_question: str | None = data.get("on_question")
        """What becomes of its questions; None of a run that an earlier version started."""
        self.cost: float | None = None
        self.tokens: int | None = None

    def use(self, data: dict[str, Any], step: StepView | None) -> None:
        """Note what it has used, and how much more that is for its step. A cost that was known stays known."""
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


class AskedView:
    """A question that nobody has answered yet."""

    __slots__ = ("data", "name", "run", "since", "who")

    def __init__(self, event: Event, who: str, name: object) -> None:
        self.run: str = event["run"]
        self.data: dict[str, Any] = event["data"]
        self.since: float = steady_time(event)
        self.who = who
        """Whose question it is; that of an agent's own helper has both names."""
        self.name = name
        """What people call its run."""


class Progress:
    """The tree below ``root``. Feed it every event, in order."""

    def __init__(self, root: str, steps: list[tuple[str, int]] | None = None) -> None:
        self.root = root
        self.number: int | None = None
        self.steps = [StepView(agent, maximum) for agent, maximum in steps or []]
        self.leaves: dict[str, LeafView] = {}
        self.questions: dict[tuple[str, str], AskedView] = {}
        """What somebody may answer anywhere in the tree and has not, the oldest first, by run and id."""
        self._own: set[str | None] = {root, None}
        """The chain, its groups and its loops: what these start are its steps, what anybody else starts is not."""
        self._loops: dict[str, int] = {}
        """The step that a loop's run stands for."""
        self.parked: dict[str, Any] | None = None
        """What the chain waits for, while it does."""
        self.budget_usd: float | None = None
        self.budget_tokens: int | None = None
        self.started_at: float | None = None
        self._begun: dict[str, float] = {}
        """When each run started."""
        self.ended: Event | None = None
        self.prompt: str | None = None
        """What the root was asked, on one line."""
        self.asked_anew: set[str] = set()
        """Runs whose prompt is worth a line: it is neither the root's nor that of the pass before."""
        self._prompts: dict[object, str | None] = {}
        """What each step was asked last."""

    def add(self, event: Event) -> None:
        """One more thing happened."""
        kind, run = event["type"], event["run"]
        if self.started_at is None:
            self.started_at = steady_time(event)
        if kind == "run.started":
            self._begun[run] = steady_time(event)
        if kind in _ABOUT_QUESTIONS:
            self._note_questions(event)
        if kind in ("usage", "run.ended") and (leaf := self.leaves.get(run)) is not None:
            leaf.use(event["data"], self.step_of(run))
        if kind == "run.created":
            self._created(event)
        elif kind in ("parked", "unparked") and run == self.root:
            self.parked = event["data"] if kind == "parked" else None
        elif kind in ("gate", "gate.started"):
            self._judged(event)
        elif kind == "run.ended" and run == self.root:
            self._root_ended(event)
        elif kind == "run.ended" and run in self._loops and self._loops[run] < len(self.steps):
            self._loop_ended(self.steps[self._loops[run]], event)
        elif (step := self.step_of(run)) is not None and step.run == run:
            self._changed(step, event)

    @property
    def name(self) -> str:
        """The run as people call it."""
        return f"run {self.number or self.root}"

    def step_of(self, run: str) -> StepView | None:
        """The step that a run belongs to, if it is one of the chain's own."""
        leaf = self.leaves.get(run)
        if leaf is None or leaf.step is None or leaf.step >= len(self.steps):
            return None
        return self.steps[leaf.step] if leaf.parent in self._own else None

    def speaker(self, run: str) -> str:
        """Who said a line: ``builder[2/3]``, or the name alone where nothing is repeated."""
        leaf = self.leaves.get(run)
        if leaf is None:
            return self.name if run == self.root else run[:8]
        step = self.step_of(run)
        if step is None or leaf.iteration is None or step.maximum == 1:
            return leaf.agent
        return f"{leaf.agent}[{leaf.iteration}{f'/{step.maximum}' if step.maximum else ''}]"

    def named_speaker(self, event: Event) -> str:
        """Whose words an event has; those of an agent's own helper have both names."""
        data = event["data"]
        judged = data.get("run") if event["type"] in ("gate", "gate.started", "progress") else None
        speaker = self.speaker(judged or event["run"])
        helper = data.get("agent") if event["type"] != "run.created" else None
        return f"{speaker}/{one_line(str(helper))}" if helper else speaker

    def fate_of(self, event: Event) -> str:
        """What becomes of a question that nobody is to answer, ``deny`` or ``fail``; nothing of any other.

        With ``deny`` a CLI asks us nothing. One that does so all the same has not been answered.
        """
        leaf = self.leaves.get(event["run"])
        fate = leaf.on_question if leaf is not None else None
        return fate if fate == "fail" or (fate == "deny" and event["data"].get("via") == "ask") else ""

    def questions_of(self, run: str) -> list[AskedView]:
        """What one run asks, the oldest first."""
        return [asked for asked in self.questions.values() if asked.run == run]

    def reply_line(self, asked: AskedView) -> str:
        """The command that answers a question."""
        from hocket.cli.asking import reply_line

        return reply_line(asked.data, asked.name, len(self.questions_of(asked.run)) > 1)

    def _note_questions(self, event: Event) -> None:
        """A question, its answer, or an end after which nobody is to answer any more."""
        kind, run, data = event["type"], event["run"], event["data"]
        if kind == "question":
            if self.fate_of(event):
                return
            leaf = self.leaves.get(run)
            known = leaf.number if leaf else self.number if run == self.root else None
            name = run if known is None else known
            self.questions[run, data["id"]] = AskedView(event, self.named_speaker(event), name)
        elif kind == "answer":
            self.questions.pop((run, data["id"]), None)
        elif kind in ("turn.ended", "run.ended") and self.questions:
            # A turn takes its own questions with it, and not those of helpers that go on.
            self.questions = {
                key: asked
                for key, asked in self.questions.items()
                if asked.run != run or (kind == "turn.ended" and asked.data.get("parent"))
            }

    def at_work(self) -> list[StepView]:
        """The step that has begun last and is not over; of a group all such members."""
        begun = [step for step in self.steps if step.run is not None and not step.over]
        return [step for step in begun if step is begun[-1] or _together(step, begun[-1])]

    def beside(self, step: StepView) -> list[StepView]:
        """The steps that work at the same time, this one included."""
        return [one for one in self.steps if one is step or _together(one, step)]

    def spent(self) -> tuple[float | None, int | None]:
        """What all of it has used so far, in money and in tokens; None where nobody knows."""
        costs = [leaf.cost for leaf in self.leaves.values() if leaf.cost is not None]
        tokens = [leaf.tokens for leaf in self.leaves.values() if leaf.tokens is not None]
        return sum(costs) if costs else None, sum(tokens) if tokens else None

    def current(self) -> StepView | None:
        """One step at work, if any is."""
        return next(reversed(self.at_work()), None)

    def _created(self, event: Event) -> None:
        run, data = event["run"], event["data"]
        if run == self.root:
            self.number = data.get("number")
            self.prompt = asked(data)
            if self.prompt:
                self.asked_anew.add(run)
            self.budget_usd, self.budget_tokens = data.get("budget_usd"), data.get("budget_tokens")
            if not self.steps:
                self.steps = [_step_view(step) for step in data.get("steps") or ()]
            if data.get("kind") != "leaf":
                return
            self.steps = self.steps or [StepView(str(data.get("agent", "?")), 1)]
            data = {**data, "step": 0, "iteration": 1, "parent": None}
        if data.get("kind", "leaf") != "leaf":
            self._inner(run, data)
            return
        leaf = self.leaves[run] = LeafView({**event, "data": data})
        self._make_room(leaf)
        self._note_prompt(run, leaf, asked(data))
        if (step := self.step_of(run)) is not None:
            step.run = run
            step.iteration = leaf.iteration or 1
            step.status, step.gate, step.helpers, step.said_at = "starting", "", {}, None
            step.started_at = step.started_at or steady_time(event)

    def _note_prompt(self, run: str, leaf: LeafView, prompt: str | None) -> None:
        place = run if self.step_of(run) is None else leaf.step
        if prompt and prompt not in (self.prompt, self._prompts.get(place)):
            self.asked_anew.add(run)
        self._prompts[place] = prompt

    def _inner(self, run: str, data: dict[str, Any]) -> None:
        """A loop or a group of the chain's own."""
        if data.get("kind") in ("loop", "group") and data.get("parent") in self._own:
            self._own.add(run)
            if data["kind"] == "loop" and data.get("step") is not None:
                self._loops[run] = data["step"]

    def _make_room(self, leaf: LeafView) -> None:
        """A chain whose steps were not announced shows them as they come."""
        if leaf.parent in self._own and leaf.step is not None:
            while len(self.steps) <= leaf.step:
                self.steps.append(StepView(leaf.agent, 0))

    def _changed(self, step: StepView, event: Event) -> None:
        kind, data = event["type"], event["data"]
        asked = self.questions_of(event["run"]) if self.questions else []
        step.asks = self.reply_line(asked[0]) if asked else ""
        if kind in ("text", "tool.started"):
            helper = step.helpers.get(str(data.get("parent")))
            step.say(_last_words(event, helper is None), steady_time(event), helper)
        elif kind == "member":
            _help(step, event)
        elif kind == "marker":
            step.last = step.before  # the line that says "I am done" tells less than the one before it
        elif kind in ("run.started", "turn.started", "answer"):
            step.status = "waiting" if step.asks else "running"
        elif (kind == "question" and asked) or (kind == "turn.ended" and data.get("idle")):
            step.status = "waiting"
        elif kind == "run.ended":
            step.ended_at = self.end_of(event)
            step.reason = data.get("reason")
            step.helpers = {}
            if data.get("reason") == "rate_limited" or data.get("transient"):
                step.status = "parked"  # it begins anew when that is over
            elif self.leaves[event["run"]].iteration is None:
                step.status = data["status"]

    def _judged(self, event: Event) -> None:
        """A gate has said something about a pass."""
        data = event["data"]
        step = self.step_of(str(data.get("run")))
        if step is None:
            return
        step.gate = gate_at_work(data) if event["type"] == "gate.started" else ""
        step.said_at = steady_time(event)
        if not step.gate and not data.get("passed"):
            step.last = gate_verdict(data)
            if step.status == "done":
                step.status, step.reason = "failed", "gate"

    def end_of(self, event: Event) -> float:
        """When the run ended that this is the end of: its event is later if there was no server to notice."""
        begun, taken = self._begun.get(event["run"]), event["data"].get("duration")
        return steady_time(event) if begun is None or taken is None else begun + float(taken)

    def _loop_ended(self, step: StepView, event: Event) -> None:
        data = event["data"]
        step.status, step.reason, step.ended_at = data["status"], data.get("reason"), self.end_of(event)

    def _root_ended(self, event: Event) -> None:
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
            self.steps[0].ended_at = self.end_of(event)

    def finish_earlier_steps(self) -> list[StepView]:
        """The steps that are over for good, each of them named once.

        A chain goes on only when a step, or all of a group, is complete, so a later one that has begun says so of the
        earlier. When the chain has ended, all that have begun are over.
        """
        begun = [place for place, step in enumerate(self.steps) if step.run is not None]
        if not begun:
            return []
        past = self.steps[: begun[-1] + 1] if self.ended else self.steps[: self._first_beside(begun[-1])]
        found = [step for step in past if step.run is not None and not step.told]
        for step in found:
            step.told = True
            step.status = step.status if step.over else "done"
        return found

    def _first_beside(self, place: int) -> int:
        """Where the group begins that a step is part of; its own place where it is by itself."""
        while place > 0 and _together(self.steps[place - 1], self.steps[place]):
            place -= 1
        return place


def _together(one: StepView, other: StepView) -> bool:
    return one.group is not None and one.group == other.group


def _step_view(step: dict[str, Any]) -> StepView:
    maximum = int(step.get("iterations") or step.get("max_iterations") or 1)
    return StepView(str(step.get("agent", "?")), maximum, step.get("group"))


def _help(step: StepView, event: Event) -> None:
    """News of an agent that works for a step's own."""
    data = event["data"]
    mark = str(data.get("parent"))
    if data.get("status") not in _HELPS:
        step.helpers.pop(mark, None)
        return
    at = steady_time(event)
    helper = step.helpers.setdefault(mark, HelperView(one_line(str(data.get("agent") or "helper")), at))
    step.say(one_line(str(data.get("text") or "")), at, helper)


def _last_words(event: Event, named: bool) -> str:
    """What an agent says or does, with its helper's name in front where it was a helper that has no line of its own."""
    data = event["data"]
    if event["type"] == "tool.started":
        words = deed(str(data.get("name")), data.get("input"))
    else:
        words = one_line(uttered(str(data.get("text", ""))))
    return f"{one_line(str(data['agent']))}: {words}" if named and data.get("agent") and words else words


def joint(progress: Progress, step: StepView) -> str:
    """What joins the members of a group in a list; nothing in a chain that has none."""
    if all(one.group is None for one in progress.steps):
        return ""
    if step.group is None:
        return "  "
    members = [one for one in progress.steps if _together(one, step)]
    return "┌ " if step is members[0] else "└ " if step is members[-1] else "│ "


def step_cells(step: StepView, now: float, joint: str = "", priced: bool = False) -> list[str]:
    """One line of the summary."""
    taken = step.taken(now)
    used = [
        f"{step.tokens} tokens" if step.tokens is not None else "-",
        money(step.cost, step.tokens, step.estimated) or "-",
    ]
    return [
        NEEDS_YOU if step.asks else WORDS.get(step.status, "· " + step.status),
        joint + fit(one_line(step.agent), AGENT_COLUMNS),
        f"{step.iteration}/{step.maximum}",
        step.reason or "-",
        duration(taken) if taken is not None else "-",
        *(used if priced else []),
    ]


def summary(progress: Progress, now: float, columns: int | None = None) -> list[str]:
    """The last lines of every run: each step, the verdict, and what to type next."""
    # A chain of plain programs has used nothing that anybody counts.
    priced = any(step.cost is not None or step.tokens is not None for step in progress.steps)
    lines = (
        table([step_cells(step, now, joint(progress, step), priced) for step in progress.steps], columns)
        if progress.steps
        else []
    )
    name = str(progress.number or progress.root)
    if progress.ended is None:
        return [*lines, *whereabouts(progress)]
    data = progress.ended["data"]
    taken = duration(None if progress.started_at is None else progress.end_of(progress.ended) - progress.started_at)
    used = cost(data)
    if used and data.get("cost_usd") is not None and any(step.tokens and step.cost is None for step in progress.steps):
        used += ", some of it unpriced"
    parts = [WORDS.get(data["status"], data["status"]), f"run {name}", data.get("reason"), taken, used]
    lines.append("  ".join(part for part in parts if part))
    if data.get("error"):
        lines.append(f"  {one_line(str(data['error']))}")
    lines += [f"  {line}" for line in _left_in_trees(data.get("steps") or [], name)]
    again = f" · hocket resume {name}" if progress.steps and data["status"] != "done" else ""
    lines.append(f"  hocket show {name} · hocket logs {name}{again}")
    return lines


def _left_in_trees(steps: list[dict[str, Any]], name: str) -> list[str]:
    if not any(step.get("repository") for step in steps):
        return []
    from hocket.cli.trees import tree_lines

    return tree_lines(steps, name)


def whereabouts(progress: Progress) -> list[str]:
    """How to come back to a run that goes on, and what it needs."""
    name = str(progress.number or progress.root)
    if progress.parked is not None:
        waits = f"run {name} {parking(progress.parked, time.time())}, then goes on by itself"
        return [f"{waits}: hocket wait {name} · hocket stop {name}"]
    if any(step.status == "waiting" and not step.asks for step in progress.steps):
        return [f'run {name} waits for more: hocket send {name} "…" --wait · hocket stop {name}']
    asking = [f"{step.agent} needs you: {step.asks}" for step in progress.steps if step.asks]
    return [*asking, f"run {name} goes on: hocket wait {name} · hocket logs -f {name} · hocket stop {name}"]


def arrows(progress: Progress) -> str:
    """The chain in one line."""
    line = ""
    for step, before, after in zip(progress.steps, [None, *progress.steps], [*progress.steps[1:], None], strict=False):
        joined, joins = before is not None and _together(before, step), after is not None and _together(step, after)
        text = f"{step.agent}:{step.maximum}" if step.maximum > 1 else step.agent
        opening = ", " if joined else f"{' → ' if before else ''}{'(' if joins else ''}"
        line += f"{opening}{text}{')' if joined and not joins else ''}"
    return line
