"""What a followed tree of runs looks like so far: a fold of its events for the eye. Both views draw from it.

The truth about a run is ``model.fold`` on the server. This is less: steps, passes, the last line said.
"""

from __future__ import annotations

from hocket.cli.format import NEEDS_YOU, WORDS, cost, duration, one_line, table
from hocket.cli.words import deed, reply_line

TYPE_CHECKING = False  # `typing` is not worth its time here; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

    Event = dict[str, Any]


class StepView:
    """One step of the chain."""

    __slots__ = (
        *("agent", "asks", "before", "ended_at", "iteration", "last", "maximum", "reason", "run", "started_at"),
        "status",
    )

    def __init__(self, agent: str, maximum: int) -> None:
        self.agent = agent
        self.maximum = maximum
        self.iteration = 0
        self.status = "pending"
        self.reason: str | None = None
        self.run: str | None = None
        self.last = ""
        self.before = ""
        self.asks = ""
        """What to type for it to go on, while it waits for an answer."""
        self.started_at: float | None = None
        self.ended_at: float | None = None

    @property
    def over(self) -> bool:
        return self.status not in ("pending", "starting", "running", "waiting")

    def passes(self) -> str:
        """``2/3``, or ``2`` where nobody said how often it may be repeated."""
        done = str(self.iteration or "-")
        return f"{done}/{self.maximum}" if self.maximum else done

    def taken(self, now: float) -> float | None:
        return None if self.started_at is None else (self.ended_at or now) - self.started_at


class LeafView:
    """One process of the tree: whose words they are."""

    __slots__ = ("agent", "iteration", "number", "parent", "questions", "step")

    def __init__(self, event: Event) -> None:
        data = event["data"]
        self.agent = one_line(str(data.get("agent", "?")))
        self.number = data.get("number")
        self.step: int | None = data.get("step")
        self.iteration: int | None = data.get("iteration")
        self.parent: str | None = data.get("parent")
        self.questions: dict[str, dict[str, Any]] = {}
        """What it asked and nobody has answered."""

    def ask(self, event: Event) -> None:
        """Note a question, or that it was answered."""
        data = event["data"]
        if event["type"] == "question":
            self.questions[data["id"]] = data
        elif event["type"] == "answer":
            self.questions.pop(data["id"], None)
        elif event["type"] == "run.ended":
            self.questions.clear()

    def asks(self) -> str:
        """The command that answers the oldest of its questions."""
        if not self.questions:
            return ""
        return reply_line(next(iter(self.questions.values())), self.number, len(self.questions) > 1)


class Progress:
    """The tree below ``root``. Feed it every event, in order."""

    def __init__(self, root: str, steps: list[tuple[str, int]] | None = None) -> None:
        self.root = root
        self.number: int | None = None
        self.steps = [StepView(agent, maximum) for agent, maximum in steps or []]
        self.leaves: dict[str, LeafView] = {}
        self._own: set[str | None] = {root, None}
        """The chain and its loops: what they start are the chain's steps, what anybody else starts is not."""
        self.started_at: float | None = None
        self.ended: Event | None = None

    def add(self, event: Event) -> None:
        """One more thing happened."""
        kind, run = event["type"], event["run"]
        if self.started_at is None:
            self.started_at = event["ts"]
        if (leaf := self.leaves.get(run)) is not None:
            leaf.ask(event)
        if kind == "run.created":
            self._created(event)
        elif kind == "run.ended" and run == self.root:
            self._root_ended(event)
        elif (step := self.step_of(run)) is not None and step.run == run:
            self._changed(step, event)

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
            return run[:8]
        step = self.step_of(run)
        if step is None or leaf.iteration is None or step.maximum == 1:
            return leaf.agent
        return f"{leaf.agent}[{leaf.iteration}{f'/{step.maximum}' if step.maximum else ''}]"

    def current(self) -> StepView | None:
        """The step at work: the last one that has begun, unless the chain is over."""
        begun = [step for step in self.steps if step.run is not None and not step.over]
        return begun[-1] if begun else None

    def _created(self, event: Event) -> None:
        run, data = event["run"], event["data"]
        if run == self.root:
            self.number = data.get("number")
            if not self.steps:
                self.steps = [_step_view(step) for step in data.get("steps") or ()]
            if data.get("kind") != "leaf":
                return
            self.steps = self.steps or [StepView(str(data.get("agent", "?")), 1)]
            data = {**data, "step": 0, "iteration": 1, "parent": None}
        if data.get("kind", "leaf") != "leaf":
            if data.get("kind") == "loop" and data.get("parent") == self.root:
                self._own.add(run)
            return
        leaf = self.leaves[run] = LeafView({**event, "data": data})
        self._make_room(leaf)
        if (step := self.step_of(run)) is not None:
            step.run = run
            step.iteration = leaf.iteration or 1
            step.status = "starting"
            step.started_at = step.started_at or event["ts"]

    def _make_room(self, leaf: LeafView) -> None:
        """A chain whose steps were not announced shows them as they come."""
        if leaf.parent in self._own and leaf.step is not None:
            while len(self.steps) <= leaf.step:
                self.steps.append(StepView(leaf.agent, 0))

    def _changed(self, step: StepView, event: Event) -> None:
        kind, data = event["type"], event["data"]
        step.asks = self.leaves[event["run"]].asks()
        if kind in ("text", "tool.started"):
            step.before, step.last = step.last, _last_words(event) or step.last
        elif kind == "marker":
            step.last = step.before  # the line that says "I am done" tells less than the one before it
        elif kind in ("run.started", "turn.started", "answer"):
            step.status = "waiting" if step.asks else "running"
        elif kind == "question" or (kind == "turn.ended" and data.get("idle")):
            step.status = "waiting"
        elif kind == "run.ended":
            step.ended_at = event["ts"]
            step.reason = data.get("reason")

    def _root_ended(self, event: Event) -> None:
        self.ended = event
        data = event["data"]
        reports = data.get("steps") or []
        for step, report in zip(self.steps, reports, strict=False):
            step.status = report["status"]
            step.reason = report["reason"]
            step.iteration = report["iterations"]
            step.maximum = report["max_iterations"]
        if not reports and len(self.steps) == 1:
            self.steps[0].status, self.steps[0].reason = data["status"], data.get("reason")
            self.steps[0].ended_at = event["ts"]

    def finish_earlier_steps(self) -> list[StepView]:
        """Mark as done every step before the current one, and name those that were newly found so.

        A chain goes on only when a step is complete, so a later one that has begun says so of the earlier.
        """
        begun = [place for place, step in enumerate(self.steps) if step.run is not None]
        found = [step for step in self.steps[: begun[-1]] if not step.over] if begun else []
        for step in found:
            step.status = "done"
        return found


def _step_view(step: dict[str, Any]) -> StepView:
    return StepView(str(step.get("agent", "?")), int(step.get("iterations") or step.get("max_iterations") or 1))


def _last_words(event: Event) -> str:
    """What an agent says or does, with its helper's name in front where it was the helper."""
    data = event["data"]
    if event["type"] == "tool.started":
        words = deed(str(data.get("name")), data.get("input"))
    else:
        words = one_line(str(data.get("text", "")))
    return f"{one_line(str(data['agent']))}: {words}" if data.get("agent") and words else words


def step_cells(step: StepView, now: float) -> list[str]:
    """One line of the summary."""
    taken = step.taken(now)
    return [
        NEEDS_YOU if step.asks else WORDS.get(step.status, "· " + step.status),
        step.agent,
        f"{step.iteration}/{step.maximum}",
        step.reason or "-",
        duration(taken) if taken is not None else "-",
    ]


def summary(progress: Progress, now: float) -> list[str]:
    """The last lines of every run: each step, the verdict, and what to type next."""
    lines = table([step_cells(step, now) for step in progress.steps]) if progress.steps else []
    name = str(progress.number or progress.root)
    if progress.ended is None:
        return [*lines, *whereabouts(progress)]
    data = progress.ended["data"]
    taken = duration(None if progress.started_at is None else progress.ended["ts"] - progress.started_at)
    parts = [WORDS.get(data["status"], data["status"]), f"run {name}", data.get("reason"), taken, cost(data)]
    lines.append("  ".join(part for part in parts if part))
    if data.get("error"):
        lines.append(f"  {one_line(str(data['error']))}")
    lines.append(f"  hocket show {name} · hocket logs {name}")
    return lines


def whereabouts(progress: Progress) -> list[str]:
    """How to come back to a run that goes on, and what it needs."""
    name = str(progress.number or progress.root)
    if any(step.status == "waiting" and not step.asks for step in progress.steps):
        return [f'run {name} waits for more: hocket send {name} "…" --wait · hocket stop {name}']
    asking = [f"{step.agent} needs you: {step.asks}" for step in progress.steps if step.asks]
    return [*asking, f"run {name} goes on: hocket wait {name} · hocket logs -f {name} · hocket stop {name}"]


def arrows(progress: Progress) -> str:
    """The chain in one line."""
    parts = (f"{step.agent}:{step.maximum}" if step.maximum > 1 else step.agent for step in progress.steps)
    return " → ".join(parts)
