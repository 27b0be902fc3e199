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

from hocket.cli.format import NEEDS_YOU, WORDS, duration, fit, one_line, width
from hocket.cli.plain import lines_of, question_of
from hocket.cli.progress import Progress, StepView, arrows, joint
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
            self._print(step_line(step, time.time(), self._console.width, joint(progress, step)))
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
            grid.add_row(step_line(step, now, columns, joint(progress, step)))
    if progress.parked is not None:
        grid.add_row(
            Text(
                fit(f"{WORDS['parked'][0]}  {parking(progress.parked, now)}{_left(progress, now)}", columns),
                TONES[NOTICE],
            )
        )
    taken = duration(None if progress.started_at is None else now - progress.started_at)
    grid.add_row(Text(fit(f"{taken}  ·  {note or '^C detach or stop'}", columns), style="bold" if note else "dim"))
    return grid


def _left(progress: Progress, now: float) -> str:
    until = (progress.parked or {}).get("until")
    return f", in {duration(until - now)}" if isinstance(until, int | float) and until > now else ""


def step_line(step: StepView, now: float, columns: int, beside: str = "") -> Text:
    """One step: glyph, name, pass, time, and the last thing it said."""
    style = TONES[ALERT] if step.asks else STYLES.get(step.status, "")
    taken = step.taken(now)
    clock = duration(taken) if taken is not None else ""
    line = Text.assemble(
        (f"{_glyph(step, now)}  ", style),
        (beside, "dim"),
        f"{fit(one_line(step.agent), 24):<14}  {step.passes():>5}  {clock:>7}  ",
    )
    last, tone = (step.asks, "bold") if step.asks else (step.last, "dim")
    line.append(fit(last, max(10, columns - line.cell_len)), style=tone)
    return line


def _glyph(step: StepView, now: float) -> str:
    if step.asks:
        return NEEDS_YOU[0]
    if step.status == "running":
        return SPINNER[int(now * 8) % len(SPINNER)]
    return "·" if step.status == "pending" else WORDS.get(step.status, "·")[0]
