"""A run as plain lines: the append-only log for pipes, files and continuous integration, and the summary at the end."""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from hocket.cli.format import (
    NEEDS_YOU,
    STATUS_LABELS,
    cost_text,
    exact_cost,
    format_table,
    paint,
    status_label,
    truncate,
)
from hocket.cli.question_prompt import question_text, reply_to, with_reply
from hocket.cli.watch import Event, Recent, RunDisplay, steady_now, wall_time
from hocket.views.event_text import ALERT, ASIDE, NOTICE, THOUGHT, parking, text_of, tone_of
from hocket.views.names import agent_name
from hocket.views.run_view import RunView, StepView, is_parallel
from hocket.views.text import PROCESS_GONE, duration, one_line, time_of_day

AGENT_COLUMNS = 24
RECENT_LINES = 20
HEARTBEAT_SECONDS = 30.0
AUTOMATIC_ANSWERS = {"fail": "not answered (--on-question fail): the run ends", "deny": ""}
"""In place of the reply command. A denial has a line of its own."""
_COLOURS = {ASIDE: "2", THOUGHT: "2;3", NOTICE: "33", ALERT: "1;33"}
"""By tone; the output of agents has none."""


def lines_of(view: RunView, event: Event, verbose: bool = False) -> list[str]:
    """What an event adds to the log. The view has the event already."""
    if event["type"] == "run.started" and event["run"] != view.root and view.step_of(event["run"]):
        return [f"{time_of_day(event['ts'])} {view.speaker_of(event)} begins"]  # it may be silent for long
    if event["type"] == "question":
        question = with_reply(*question_with_reply(view, event))
        return [f"{time_of_day(event['ts'])} {line}" for line in question.split("\n")]
    if tone_of(event) == THOUGHT and not verbose:
        return []
    if event["type"] == "run.ended" and event["run"] not in view.processes:
        return []
    if event["type"] == "run.created" and event["run"] not in view.new_prompts:
        return []
    if view.repeats_text(event):
        event = {**event, "data": {**event["data"], "text": ""}}
    text = text_of(event, view.answered.data if view.answered else None)
    head = f"{time_of_day(event['ts'])} {view.speaker_of(event)}"
    return [] if text is None else [f"{head} {line}".rstrip() for line in text.split("\n")]


def recent_lines(view: RunView, events: Iterable[Event], verbose: bool = False) -> Recent:
    """Add what has happened so far to the view; return the last lines of it, without the prompt of the root."""
    kept: deque[tuple[str, str]] = deque(maxlen=RECENT_LINES)
    count = seq = 0
    for event in events:
        view.add(event)
        seq = event["seq"]
        is_shown_apart = event["type"] == "question" or (event["type"], event["run"]) == ("run.created", view.root)
        lines = [] if is_shown_apart else lines_of(view, event, verbose)
        if event["type"] == "answer" and (asked := view.answered) is not None:
            text = f"? {asked.asked_by} {question_text(asked.data)}"
            lines = [*(f"{time_of_day(wall_time(asked.since))} {line}" for line in text.split("\n")), *lines]
        count += len(lines)
        kept += [(line, tone_of(event) or ASIDE) for line in lines]
    return Recent(kept, count > len(kept), seq)


def earlier(view: RunView) -> str:
    """What comes first where lines are left out."""
    return f"… earlier lines: hocket logs {view.number or view.root}"


def question_with_reply(view: RunView, event: Event) -> tuple[str, str]:
    """A question with its agent, and the command that answers it or what happens instead."""
    question = view.questions.get((event["run"], event["data"]["id"]))
    text = f"? {view.speaker_of(event)} {question_text(event['data'])}"
    return text, reply_to(view, question) if question is not None else AUTOMATIC_ANSWERS[view.automatic_answer(event)]


def heartbeat(view: RunView, now: float) -> str:
    """Which agents are running without output, or what the chain waits for."""
    if view.parked is not None:
        return f"{view.name} … still {parking(view.parked, wall_time(now))}"
    active = view.active_steps()
    agents = ", ".join(view.speaker(step.run) for step in active if step.run) or view.name
    state = "still waiting for an answer" if any(step.question for step in active) else "still running"
    if any(step.gate for step in active) and all(step.gate or step.question for step in active):
        state = f"{state}: {next(step.gate for step in active if step.gate)}"
    begun = [step.started_at for step in active if step.started_at is not None]
    since = min(begun, default=view.started_at)
    return f"{agents} … {state}, {duration(None if since is None else now - since)}"


class PlainDisplay(RunDisplay):
    """Writes to standard error, so that standard output carries the result alone."""

    def __init__(self, quiet: bool, verbose: bool = False, folding: bool = False, colour: bool = False) -> None:
        self._quiet = quiet
        self.colour = colour
        self._verbose = verbose
        self._folding = folding
        """True if the log is shown by a program that folds ``::group::`` sections."""
        self._fold = ""
        self._written_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._begin_fold("")

    def begin(self, view: RunView, recent: Recent) -> None:
        """Write the prompt, the last lines, and the open questions."""
        if view.prompt is not None:
            self.say(f"{view.name} {view.prompt}")
        if recent.is_cut:
            self.say(earlier(view))
        for line, tone in recent.lines:
            self.say(paint(line, _COLOURS.get(tone, "") if self.colour else ""))
        super().begin(view, recent)

    def show(self, view: RunView, event: Event) -> None:
        """Write the lines of an event."""
        if event["type"] == "run.started" and (step := view.step_of(event["run"])) is not None:
            self._begin_fold(", ".join(one.label for one in view.group_of(step)))
        lines = lines_of(view, event, self._verbose)
        if lines:
            if self.colour:
                style = _COLOURS.get(tone_of(event) or "", "")
                lines = [paint(line, style) for line in lines]
            self.say("\n".join(lines))

    def _begin_fold(self, title: str) -> None:
        """Begin the section of a step, or of all that run in parallel."""
        if not self._folding or title == self._fold:
            return
        ends = ["::endgroup::"] if self._fold else []
        self._fold = title
        self.say("\n".join([*ends, *([f"::group::{title}"] if title else [])]))

    def idle(self, view: RunView) -> None:
        """Write a heartbeat if nothing was written for a while."""
        if time.monotonic() - self._written_at >= HEARTBEAT_SECONDS:
            self.say(f"{time_of_day(time.time())} {heartbeat(view, steady_now())}")

    def offer_keys(self, view: RunView, text: str) -> None:
        """Write what keys do now."""
        self.say(text or f"{view.name} continues")

    def say(self, text: str) -> None:
        """Write a message, unless quiet."""
        self._written_at = time.monotonic()
        if not self._quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def summary(view: RunView, now: float, columns: int | None = None, steps_too: bool = True) -> list[str]:
    """The last lines of a run: its steps, how it ended, and what to type next.

    Without ``steps_too`` those are left out that a live display has printed already.
    """
    steps = [step for step in view.steps if steps_too or not step.is_reported]
    has_usage = any(step.cost is not None or step.tokens is not None for step in view.steps)
    rows = [_step_cells(step, now, group_bracket(view, step), has_usage) for step in steps]
    lines = format_table(rows, columns) if rows else []
    name = str(view.number or view.root)
    if view.ended is None:
        return [*lines, *continues(view)]
    data = view.ended["data"]
    reason = data.get("reason") if data.get("reason") not in (data["status"], PROCESS_GONE) else None
    taken = duration(None if view.started_at is None else view.end_time(view.ended) - view.started_at)
    used = cost_text({**data, "budget_usd": view.budget_usd, "budget_tokens": view.budget_tokens})
    if used and data.get("cost_usd") is not None and any(step.tokens and step.cost is None for step in view.steps):
        used += ", some of it unpriced"
    parts = [status_label(data), f"run {name}", reason, taken, used]
    lines.append("  ".join(part for part in parts if part))
    if data.get("error"):
        lines.append(f"  {one_line(str(data['error']))}")
    lines += [f"  {line}" for line in worktree_lines(data.get("steps") or [], name)]
    again = f" · hocket resume {name}" if view.steps and data["status"] != "done" else ""
    lines.append(f"  hocket show {name} · hocket logs {name}{again}")
    return lines


def _step_cells(step: StepView, now: float, bracket: str, has_usage: bool) -> list[str]:
    elapsed = step.elapsed(now)
    used = [
        f"{step.tokens} tokens" if step.tokens is not None else "-",
        exact_cost(step.cost, step.tokens, step.estimated) or "-",
    ]
    return [
        NEEDS_YOU if step.question else STATUS_LABELS.get(step.state(), "· " + step.status),
        bracket + truncate(step.label, AGENT_COLUMNS),
        f"{step.iteration}/{step.maximum}",
        (step.reason if step.reason not in (step.status, PROCESS_GONE) else None) or "-",
        duration(elapsed) if elapsed is not None else "-",
        *(used if has_usage else []),
    ]


def group_bracket(view: RunView, step: StepView) -> str:
    """The bracket that joins the members of a group in a list; empty for a chain without groups."""
    if all(one.group is None for one in view.steps):
        return ""
    if step.group is None:
        return "  "
    members = [one for one in view.steps if is_parallel(one, step)]
    return "┌ " if step is members[0] else "└ " if step is members[-1] else "│ "


def continues(view: RunView) -> list[str]:
    """How to come back to a run that continues, and what it needs."""
    name = str(view.number or view.root)
    if view.parked is not None:
        waits = f"run {name} {parking(view.parked, time.time())}, then continues by itself"
        return [f"{waits}: hocket attach {name} · hocket stop {name}"]
    if any(step.status == "waiting" and not step.question for step in view.steps):
        return [f'run {name} waits for a message: hocket attach {name} · hocket send {name} "…" · hocket stop {name}']
    asking = [f"{step.label} needs you: {reply_to(view, step.question)}" for step in view.steps if step.question]
    return [*asking, continuing(name)]


def continuing(name: object) -> str:
    """How to come back to a run that continues."""
    return f"run {name} continues: hocket attach {name} · hocket wait {name} · hocket stop {name}"


def chain_line(view: RunView) -> str:
    """``planner → (reviewer, qa:3)``."""
    line = ""
    for step, before, after in zip(view.steps, [None, *view.steps], [*view.steps[1:], None], strict=False):
        joined, joins = before is not None and is_parallel(before, step), after is not None and is_parallel(step, after)
        text = f"{step.agent}:{step.maximum}" if step.maximum > 1 else step.agent
        opening = ", " if joined else f"{' → ' if before else ''}{'(' if joins else ''}"
        line += f"{opening}{text}{')' if joined and not joins else ''}"
    return line


def worktree_lines(steps: list[dict[str, Any]], run: str) -> list[str]:
    """What the steps of a chain left in worktrees, and commands that merge or prune it without losing anything."""
    left = [step for step in steps if step.get("repository")]
    lines = [line for step in left for line in _worktree_lines(step)]
    return [*lines, f"    hocket worktrees prune {run}"] if any(step.get("worktree") for step in left) else lines


def _worktree_lines(step: dict[str, Any]) -> list[str]:
    where = f", in {step['worktree']}" if step.get("worktree") else ""
    branch, head, also_on = step.get("branch"), step.get("head"), step.get("also_on")
    commits, left = step.get("commits"), step.get("uncommitted")
    on = f" on {branch}" if branch else f" on no branch ({head[:12]})" if head and commits else ""
    merged = f", also on {also_on}" if also_on else ""
    if _is_gone(step) and commits:
        on, merged, where = f" on {also_on}" if also_on else on, "", ", its branch is gone"
    work = "commits unknown" if commits is None else f"{commits} commit{'s' if commits != 1 else ''}"
    if left is None:
        work += ", uncommitted changes unknown"
    elif left:
        work += f", {left} file{'s' if left != 1 else ''} not committed"
    comma = "," if on and left != 0 else ""
    line = f"{agent_name(str(step['agent']))}: {work}{comma}{on}{merged}{where}"
    more = [f"besides: {step['besides']}" if step.get("besides") else "", " · ".join(_git_commands(step))]
    return [one_line(line), *(f"    {one_line(part)}" for part in more if part)]


def _is_gone(step: dict[str, Any]) -> bool:
    """Whether a step has neither its worktree nor its branch any more."""
    return step.get("branch") is None and step.get("worktree") is None


def _git_commands(step: dict[str, Any]) -> Iterator[str]:
    if _is_gone(step):
        return
    git = shlex.join(["git", "-C", str(step["repository"])])
    folder, branch, head = str(step.get("worktree") or ""), step.get("branch"), step.get("head")
    has_own = step.get("commits") != 0 and not step.get("also_on")
    if branch is None and head and has_own:
        # Commits on no branch would be lost with the folder, so a branch comes first.
        branch = f"hocket/{folder.rpartition('/')[2]}"
        yield f"{git} branch {shlex.join([branch, head])}"
    if branch and has_own:
        yield f"{git} merge {shlex.quote(branch)}"
    if branch and not folder:
        yield f"{git} branch -d {shlex.quote(branch)}"
