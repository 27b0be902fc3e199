"""The live view of a run: a few lines at the bottom of the terminal, painted at most eight times a second.

Imported only when there is a terminal: rich takes longer to load than most commands take altogether. What is
finished is printed above the block and stays in the scroll-back.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hocket.cli.format import NEEDS_YOU, WORDS, duration, fit, one_line, price, tokens_of, width
from hocket.cli.plain import lines_of, question_of
from hocket.cli.progress import AGENT_COLUMNS, HelperView, Progress, StepView, arrows, joint
from hocket.cli.words import ALERT, ASIDE, NOTICE, SAID, THOUGHT, parking, tone_of

FRAME_SECONDS = 0.125
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STYLES = {
    "done": "green",
    "failed": "red",
    "running": "blue",
    "starting": "blue",
    "waiting": "dim",
    "stopped": "dim",
    "lost": "dim",
    "pending": "dim",
    "parked": "yellow",
    "skipped": "dim",
}
TONES = {SAID: "dim", ASIDE: "dim", THOUGHT: "dim italic", NOTICE: "yellow", ALERT: "bold yellow"}
KEYS = "^C detach · ^C^C stop"
UNASKED = frozenset({NOTICE, ALERT})
"""What stays on the screen though nobody wants to see all that is said."""


class LiveView:
    """Draws on standard output, which is a terminal."""

    tick = FRAME_SECONDS

    def __init__(self, verbose: bool, colour: bool, console: Console | None = None) -> None:
        self._verbose = verbose
        self._console = console or Console(file=sys.stdout, no_color=not colour, highlight=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stderr=False)
        self._painted_at = 0.0
        self._headed = False
        self._note = ""

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, progress: Progress, event: dict[str, Any]) -> None:
        """One event has been added."""
        if not self._headed and progress.steps:
            self._headed = True
            self._print(heading(progress))
        for step in progress.finish_earlier_steps():
            self._print(step_line(progress, step, time.time(), self._console.width))
        self._tell(progress, event)
        self._paint(progress)

    def _tell(self, progress: Progress, event: dict[str, Any]) -> None:
        """What is worth a line of its own above the block."""
        tone = tone_of(event)
        if tone == ALERT:
            self._console.print(question(*question_of(progress, event), self._console.width), overflow="fold")
        elif tone is not None and (self._verbose or tone in UNASKED):
            for line in lines_of(progress, event, self._verbose):
                self._print(Text(line, style=TONES[tone]))

    def idle(self, progress: Progress) -> None:
        """Nothing came for a moment: the clock goes on."""
        self._paint(progress)

    def say(self, text: str) -> None:
        """A line of ours, which stays."""
        self._print(Text(one_line(text), style="dim"))

    def note(self, text: str) -> None:
        """What the footer says until the next note."""
        self._note = text

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=False, no_wrap=True, overflow="ellipsis", crop=True)

    def _paint(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._painted_at < FRAME_SECONDS:
            return
        self._painted_at = now
        self._live.update(frame(progress, time.time(), self._console.width, self._note), refresh=True)


def heading(progress: Progress) -> Text:
    """The first line: which run, which chain."""
    name = str(progress.number or progress.root)
    return Text.assemble(("● ", "blue"), (f"run {name}", "bold"), f"  {arrows(progress)}")


def question(what: str, command: str, columns: int) -> Text:
    """A question in full, since nobody should allow what was cut off, and the command below it if need be."""
    gap = "    " if width(what) + 4 + width(command) <= columns else "\n    "
    return Text.assemble((what, TONES[ALERT]), gap, (command, "bold"))


def frame(progress: Progress, now: float, columns: int, note: str = "") -> Table:
    """The block: the steps that are not over, and a footer."""
    grid = Table.grid()
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for step in progress.steps:
        if not step.told:
            grid.add_row(step_line(progress, step, now, columns))
            for helper in step.helpers.values():
                grid.add_row(helper_line(progress, helper, now, columns))
    if progress.parked is not None:
        grid.add_row(
            Text(
                fit(f"{WORDS['parked'][0]}  {parking(progress.parked, now)}{_left(progress, now)}", columns),
                TONES[NOTICE],
            )
        )
    taken = duration(None if progress.started_at is None else now - progress.started_at)
    parts = [taken, *_spent(progress), note or KEYS]
    grid.add_row(Text(fit("  ·  ".join(parts), columns), style="bold" if note else "dim"))
    return grid


def _spent(progress: Progress) -> list[str]:
    """What all of it has used, of what it may use: ``103.5k tok``, ``$0.72 of $5.00``."""
    cost, tokens = progress.spent()
    most_tokens, most = tokens_of(progress.budget_tokens), price(progress.budget_usd)
    told = []
    if tokens is not None or most_tokens:
        told.append(f"{tokens_of(tokens or 0)}{f' of {most_tokens}' if most_tokens else ''} tok")
    if cost is not None or most:
        told.append(f"{price(cost or 0.0)}{f' of {most}' if most else ''}")
    return told


def _left(progress: Progress, now: float) -> str:
    until = (progress.parked or {}).get("until")
    return f", in {duration(until - now)}" if isinstance(until, int | float) and until > now else ""


def step_line(progress: Progress, step: StepView, now: float, columns: int) -> Text:
    """One step: glyph, name, pass, time, what it used, the last thing it said, and how long ago that was."""
    style = TONES[ALERT] if step.asks else STYLES.get(step.status, "")
    taken = step.taken(now)
    line = Text.assemble(
        (f"{_glyph(step, now)}  ", style),
        (joint(progress, step), "dim"),
        f"{_name(progress, step.agent)}  {step.passes():>5}  {duration(taken) if taken is not None else '':>7}  ",
        _used(progress, step.cost, step.tokens),
    )
    last, tone = (step.asks, "bold") if step.asks else (step.gate or step.last, "dim")
    age = _age(step, now)
    line.append(fit(last, max(10, columns - line.cell_len - len(age))) + age, style=tone)
    return line


def helper_line(progress: Progress, helper: HelperView, now: float, columns: int) -> Text:
    """Below a step: an agent that works for its own. What it uses counts as the step's."""
    line = Text(f"   └ {_name(progress, helper.agent, 2)}  {'':>5}  {duration(now - helper.started_at):>7}  ", "dim")
    line.append(_used(progress, None, None))
    line.append(fit(helper.last, max(10, columns - line.cell_len)), style="dim")
    return line


def _name(progress: Progress, agent: str, indent: int = 0) -> str:
    """An agent's name, as wide as those of all steps."""
    longest = max((width(one_line(step.agent)) for step in progress.steps), default=0)
    room = min(max(14, longest), AGENT_COLUMNS) - indent
    name = fit(one_line(agent), room)
    return name + " " * (room - width(name))


def _used(progress: Progress, cost: float | None, tokens: int | None) -> str:
    """Two columns, where anything is known that would be in them."""
    if progress.spent() == (None, None):
        return ""
    told = f"{tokens_of(tokens)} tok" if tokens is not None else ""
    return f"{told:>10}  {price(cost):>7}  "


def _age(step: StepView, now: float) -> str:
    """How long it, or its gate, has said nothing while at work."""
    at_work = step.gate or step.status == "running"
    silent = int(now - step.said_at) if at_work and step.said_at is not None else 0
    return "" if silent < 2 or step.asks else f"  {silent}s" if silent < 60 else f"  {duration(silent)}"


def _glyph(step: StepView, now: float) -> str:
    if step.asks:
        return NEEDS_YOU[0]
    if step.status == "running" or step.gate:
        return SPINNER[int(now * 8) % len(SPINNER)]
    return "·" if step.status == "pending" else WORDS.get(step.status, "·")[0]
