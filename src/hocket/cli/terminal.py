"""The live display of a run: a few lines at the bottom of the terminal, painted at most eight times a second.

Finished steps and notices are printed above the block and stay in the scroll-back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hocket.cli.format import (
    NEEDS_YOU,
    STATUS_LABELS,
    display_width,
    short_cost,
    short_count,
    truncate,
    wrap,
    wrap_line,
)
from hocket.cli.plain import AGENT_COLUMNS, chain_line, earlier, group_bracket, lines_of, question_with_reply
from hocket.cli.question_prompt import QuestionPrompt, fold, question_text, reply_to
from hocket.cli.watch import Event, Recent, RunDisplay, steady_now, wall_time
from hocket.views.event_text import ALERT, ASIDE, NOTICE, SAID, THOUGHT, parking, tone_of
from hocket.views.run_view import HelperView, OpenQuestion, RunView, StepView
from hocket.views.text import duration, one_line

FRAME_SECONDS = 0.125
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STYLES = {"done": "green", "failed": "red", "running": "blue", "starting": "blue", "parked": "yellow"}
"""By status; others are dim."""
TONES = {SAID: "dim", ASIDE: "dim", THOUGHT: "dim italic", NOTICE: "yellow", ALERT: "bold yellow"}
KEYS = "^C asks: detach or stop · ^C^C stops"
ALWAYS_PRINTED = frozenset({NOTICE, ALERT})
"""Tones that are printed without ``--verbose``."""


class LiveDisplay(RunDisplay):
    """Draws on standard output, which is a terminal."""

    tick = FRAME_SECONDS

    def __init__(
        self,
        verbose: bool,
        colour: bool,
        keys: bool = False,
        console: Console | None = None,
        footer: str | None = None,
        attached: str = "",
    ) -> None:
        self._verbose = verbose
        self._attached = attached
        """The keys of an attached view, which prints the output as well; otherwise empty."""
        self.colour = colour
        self.prompt = QuestionPrompt() if keys else None
        """Without it, each question is printed with the command that answers it."""
        self._unprinted: dict[tuple[str, str], OpenQuestion] = {}
        """Questions shown in the prompt only; each is printed together with its answer."""
        self._console = console or Console(file=sys.stdout, no_color=not colour, highlight=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stderr=False)
        self._painted_at = 0.0
        self._has_heading = False
        self._footer = footer or ""
        self._offer = ""

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, view: RunView, recent: Recent) -> None:
        """Print the heading, the finished steps and the last lines; those of a run that has ended come first."""
        self._print_heading(view)
        if view.ended is None:
            self._print_finished(view)
        rows = [row for text, tone in recent.lines for row in self._output_rows(text, tone)]
        room = max(1, self._console.height // 2)
        if recent.is_cut or len(rows) > room:
            self._print(Text(earlier(view), "dim"))
        for row, is_whole in rows[-room:]:
            self._print(row, whole=is_whole)
        self._print_finished(view)
        super().begin(view, recent)

    def _print_heading(self, view: RunView) -> None:
        if not self._has_heading and view.steps:
            self._has_heading = True
            for line in heading(view):
                self._print(line)

    def _print_finished(self, view: RunView) -> None:
        for step in view.finish_earlier_steps():
            self._print(step_line(view, step, steady_now(), self._console.width))

    def show(self, view: RunView, event: Event) -> None:
        """Print and paint what an event changed."""
        self._print_heading(view)
        self._print_finished(view)
        tone = tone_of(event)
        if event["type"] == "question":
            self._add_question(view, event)
        elif event["type"] == "run.created" and event["run"] == view.root:
            pass  # the heading has the prompt
        elif tone is not None and (self._verbose or self._attached or tone in ALWAYS_PRINTED):
            if event["type"] == "answer":
                self._print_question(event["run"], event["data"]["id"])
                self._print_unsent(event)
                if self.prompt is not None and event["data"].get("key") in self.prompt.sent_keys:
                    event = {**event, "data": {**event["data"], "by": "you"}}
            for text in lines_of(view, event, self._verbose):
                for row, is_whole in self._output_rows(text, tone):
                    self._print(row, whole=is_whole)
        self._paint(view)

    def _output_rows(self, text: str, tone: str) -> list[tuple[Text, bool]]:
        """The rows of a line of the log, and whether they are to stay whole.

        That is so for notices, and for what agents say where that is what a person came for.
        """
        is_output = tone == SAID and bool(self._attached)
        is_whole = is_output or tone in ALWAYS_PRINTED
        rows = wrap_line(text, self._console.width) if is_whole else [text]
        return [(Text(row, style="" if is_output else TONES[tone]), is_whole) for row in rows]

    def _add_question(self, view: RunView, event: Event) -> None:
        """Show a question in the prompt, else print it; the first of several open ones rings the bell."""
        question = view.questions.get((event["run"], event["data"]["id"]))
        if question is not None and len(view.questions) == 1:
            self._console.bell()
        if self.prompt is None or question is None:
            text, reply = question_with_reply(view, event)
            self._console.print(question_block(text, reply, self._console.width), overflow="fold")
            return
        self._unprinted[question.run, question.data["id"]] = question

    def _print_question(self, run: str, question_id: str) -> None:
        """Print a question, unless it has been."""
        question = self._unprinted.pop((run, question_id), None)
        if question is not None:
            text = f"? {question.asked_by} {question_text(question.data)}"
            self._console.print(question_block(text, "", self._console.width), overflow="fold")

    def _print_unsent(self, answer: Event) -> None:
        """Tell a person who is typing an answer that the question has another one."""
        prompt = self.prompt
        if prompt is None or prompt.question is None or prompt.is_sending or not prompt.is_typing:
            return
        if (prompt.question.run, prompt.question.data["id"]) == (answer["run"], answer["data"]["id"]):
            self.say("the question was answered elsewhere; what you typed was not sent")

    def idle(self, view: RunView) -> None:
        """Repaint: times advance."""
        self._paint(view)

    def say(self, text: str) -> None:
        """Print a message of Hocket's."""
        self._print(Text(one_line(text), style="dim"))

    def offer_keys(self, view: RunView, text: str) -> None:
        """Show at once, in place of the footer, what keys do now."""
        self._offer = text
        self.repaint(view)

    def repaint(self, view: RunView) -> None:
        """Paint, however short a time ago that was done."""
        self._painted_at = 0.0
        self._paint(view)

    def _print(self, line: Text, whole: bool = False) -> None:
        """Print a line; one that is too long is cut, or wrapped by the terminal if it is to stay ``whole``."""
        self._console.print(line, soft_wrap=whole, no_wrap=True, overflow="ignore" if whole else "ellipsis")

    def _paint(self, view: RunView) -> None:
        now = time.monotonic()
        if self.prompt is not None:
            self.prompt.update(view, now)
        if now - self._painted_at < FRAME_SECONDS:
            return
        self._painted_at = now
        columns, rows, at = self._console.width, self._console.height, steady_now()
        prompt: list[str] = []
        panel = self.panel(columns) if self.panel is not None else []
        if self.prompt is not None:
            left = max(1, rows - len(panel))
            limit = max(2 if left > 3 else 1, left // 3)  # leaves room for keys and footer
            prompt = self.prompt.lines(columns, limit, at, left, muted=bool(self._offer or panel))
            if self.prompt.question is not None and self.prompt.is_cut:
                # It does not fit, perhaps only after a resize.
                self._print_question(self.prompt.question.run, self.prompt.question.data["id"])
        keys = "" if panel else self._attached or KEYS
        picture = frame(view, at, columns, self._footer, prompt, rows, self._offer, panel, keys)
        self._live.update(picture, refresh=True)


def heading(view: RunView) -> list[Text]:
    """The first lines: the run, its prompt, its chain."""
    run = Text.assemble(("● ", "blue"), (f"run {view.number or view.root}", "bold"), "  ")
    if view.prompt is None:
        return [run.append(chain_line(view))]
    return [run.append(view.prompt), Text(f"  {chain_line(view)}", "dim")]


def question_block(text: str, reply: str, columns: int) -> Text:
    """A complete question with the reply command behind or below it.

    Its further rows are indented, so that none of them can pass for a line of Hocket's.
    """
    rows = fold(text, columns - 2)
    fits = len(rows) == 1 and display_width(text) + 4 + display_width(reply) <= columns
    gap = "" if not reply else "    " if fits else "\n    "
    return Text.assemble(("\n  ".join(rows), TONES[ALERT]), gap, (reply, "bold"))


def frame(
    view: RunView,
    now: float,
    columns: int,
    footer: str = "",
    prompt: Sequence[str] = (),
    rows: int = 1000,
    offer: str = "",
    panel: Sequence[str] = (),
    keys: str = KEYS,
) -> Table:
    """The block: unfinished steps, the question prompt, the panel, and the footer, which always has room."""
    lines: list[Text] = []
    for step in view.steps:
        if not step.is_reported:
            helpers = step.helpers.values()
            lines += [step_line(view, step, now, columns), *(helper_line(view, one, now, columns) for one in helpers)]
    if view.parked is not None:
        at, until = wall_time(now), view.parked.get("until")
        left = f", in {duration(until - at)}" if isinstance(until, int | float) and until > at else ""
        waits = f"{STATUS_LABELS['parked'][0]}  {parking(view.parked, at)}{left}"
        lines.append(Text(truncate(waits, columns), TONES[NOTICE]))
    elapsed = duration(None if view.started_at is None else now - view.started_at)
    line = "  ·  ".join([elapsed, *_usage_parts(view), *filter(None, [offer or footer or keys])])
    bottom = [Text(truncate(line, columns), style="bold" if offer or footer else "dim")]
    if offer and display_width(line) > columns:
        bottom = [Text(part, style="bold") for part in wrap(offer, columns)]
    room = max(0, rows - len(prompt) - len(panel) - len(bottom) - 1)
    if len(lines) > room:
        # The first lines are those of running steps.
        more = Text(f"·  … {len(lines) - room + 1} more", "dim")
        lines = [*lines[: room - 1], more] if room else []
    grid = Table.grid()
    grid.add_column(no_wrap=True, overflow="ellipsis")
    asked = (Text(line, TONES[ALERT]) for line in prompt)
    for row in [*lines, *asked, *map(Text, panel), *bottom][-rows:]:
        grid.add_row(row)
    return grid


def _usage_parts(view: RunView) -> list[str]:
    """Usage of the tree and its budget: ``103.5k tok``, ``$0.72 of $5.00``."""
    cost, tokens = view.usage()
    max_tokens, max_cost = short_count(view.budget_tokens), short_cost(view.budget_usd)
    parts = []
    if tokens is not None or max_tokens:
        parts.append(f"{short_count(tokens or 0)}{f' of {max_tokens}' if max_tokens else ''} tok")
    if cost is not None or max_cost:
        parts.append(f"{short_cost(cost or 0.0)}{f' of {max_cost}' if max_cost else ''}")
    return parts


def step_line(view: RunView, step: StepView, now: float, columns: int) -> Text:
    """One step: glyph, name, iteration, time, usage, last output, and how long ago that was."""
    is_active = bool(step.gate) or step.status == "running"
    glyph = "·" if step.status == "pending" else STATUS_LABELS.get(step.state(), "·")[0]
    if step.question:
        glyph = NEEDS_YOU[0]
    elif is_active:
        glyph = SPINNER[int(now * 8) % len(SPINNER)]
    elapsed = step.elapsed(now)
    line = Text.assemble(
        (f"{glyph}  ", TONES[ALERT] if step.question else STYLES.get(step.status, "dim")),
        (group_bracket(view, step), "dim"),
        f"{_name(view, step.label)}  {step.iterations():>5}  {duration(elapsed) if elapsed is not None else '':>7}  ",
        _usage_cells(view, step.cost, step.tokens),
    )
    last, tone = (reply_to(view, step.question), "bold") if step.question else (step.gate or step.last, "dim")
    if step.is_reported:
        last = " · ".join(part for part in (step.outcome(), last) if part)
    silent = int(now - step.output_at) if is_active and not step.question and step.output_at is not None else 0
    silence = "" if silent < 2 else f"  {silent}s" if silent < 60 else f"  {duration(silent)}"
    line.append(truncate(last, max(10, columns - line.cell_len - len(silence))) + silence, style=tone)
    return line


def helper_line(view: RunView, helper: HelperView, now: float, columns: int) -> Text:
    """A sub-agent, below its step. Its usage counts as the step's."""
    line = Text(f"   └ {_name(view, helper.agent, 2)}  {'':>5}  {duration(now - helper.started_at):>7}  ", "dim")
    line.append(_usage_cells(view, None, None))
    line.append(truncate(helper.last, max(10, columns - line.cell_len)), style="dim")
    return line


def _name(view: RunView, agent: str, indent: int = 0) -> str:
    """An agent's name, padded to the width of the longest."""
    longest = max((display_width(step.label) for step in view.steps), default=0)
    room = min(max(14, longest), AGENT_COLUMNS) - indent
    name = truncate(one_line(agent), room)
    return name + " " * (room - display_width(name))


def _usage_cells(view: RunView, cost: float | None, tokens: int | None) -> str:
    """Two columns, empty strings where nothing in the tree has any usage."""
    if view.usage() == (None, None):
        return ""
    used = f"{short_count(tokens)} tok" if tokens is not None else ""
    return f"{used:>10}  {short_cost(cost):>7}  "
