"""The live view of a run: a few lines at the bottom of the terminal, painted at most eight times a second.

Imported only when there is a terminal: rich takes longer to load than most commands take altogether. What is
finished is printed above the block and stays in the scroll-back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hocket.cli.asking import wish
from hocket.cli.box import Box, folded
from hocket.cli.format import NEEDS_YOU, WORDS, duration, fit, one_line, price, tokens_of, width, wrapped
from hocket.cli.plain import lines_of, question_of
from hocket.cli.progress import AGENT_COLUMNS, AskedView, HelperView, Progress, StepView, arrows, joint
from hocket.cli.steady import steady_now, wall_time
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

    def __init__(self, verbose: bool, colour: bool, keys: bool = False, console: Console | None = None) -> None:
        self._verbose = verbose
        self.colour = colour
        self.box = Box() if keys else None
        """Where questions are answered by keys; without it, each is told with the command that answers it."""
        self._untold: dict[tuple[str, str], AskedView] = {}
        """What is asked in the box alone so far: once it is answered, it stays on the screen together with that."""
        self._console = console or Console(file=sys.stdout, no_color=not colour, highlight=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stderr=False)
        self._painted_at = 0.0
        self._headed = False
        self._note = ""
        self._offer = ""

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def unread(self, text: bytes) -> bool:
        """It tells what is used while it is used."""
        return False

    def show(self, progress: Progress, event: dict[str, Any]) -> None:
        """One event has been added."""
        if not self._headed and progress.steps:
            self._headed = True
            for line in heading(progress):
                self._print(line)
        for step in progress.finish_earlier_steps():
            self._print(step_line(progress, step, steady_now(), self._console.width))
        self._tell(progress, event)
        self._paint(progress)

    def _tell(self, progress: Progress, event: dict[str, Any]) -> None:
        """What is worth a line of its own above the block."""
        tone = tone_of(event)
        if event["type"] == "question":
            self._ask(progress, event)
        elif event["type"] == "run.created" and event["run"] == progress.root:
            pass  # the heading has said what was asked
        elif tone is not None and (self._verbose or tone in UNASKED):
            if event["type"] == "answer":
                self._recall(event["run"], event["data"]["id"])
            for line in lines_of(progress, self._mine(event), self._verbose):
                self._print(Text(line, style=TONES[tone]))

    def _ask(self, progress: Progress, event: dict[str, Any]) -> None:
        """Somebody is needed: once for all that is asked at the same time, the terminal says so aloud."""
        asked = progress.questions.get((event["run"], event["data"]["id"]))
        if asked is not None and len(progress.questions) == 1:
            self._console.bell()
        if self.box is None or asked is None:
            self._console.print(question(*question_of(progress, event), self._console.width), overflow="fold")
            return
        self._untold[asked.run, asked.data["id"]] = asked

    def _recall(self, run: str, question_id: str) -> None:
        """Print a question, unless it has been."""
        asked = self._untold.pop((run, question_id), None)
        if asked is not None:
            self._console.print(question(f"? {asked.who} {wish(asked.data)}", "", self._console.width), overflow="fold")

    def _mine(self, event: dict[str, Any]) -> dict[str, Any]:
        """The same event, with an answer that was given here known as the reader's own."""
        data = event["data"]
        if event["type"] != "answer" or self.box is None or data.get("key") not in self.box.own:
            return event
        return {**event, "data": {**data, "by": "you"}}

    def _box_lines(self) -> int:
        """How many lines a question in the box may have. Its keys and the footer need the rest of a tiny terminal."""
        return max(2 if self._console.height > 3 else 1, self._console.height // 3)

    def idle(self, progress: Progress) -> None:
        """Nothing came for a moment: the clock goes on."""
        self._paint(progress)

    def say(self, text: str) -> None:
        """A line of ours, which stays."""
        self._print(Text(one_line(text), style="dim"))

    def note(self, text: str) -> None:
        """What the footer says until the next note."""
        self._note = text

    def offer(self, progress: Progress, text: str) -> None:
        """What keys do now, in the place of the note, and at once."""
        self._offer = text
        self._painted_at = 0.0
        self._paint(progress)

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=False, no_wrap=True, overflow="ellipsis", crop=True)

    def _paint(self, progress: Progress) -> None:
        now = time.monotonic()
        if self.box is not None:
            self.box.look(progress, now)
        if now - self._painted_at < FRAME_SECONDS:
            return
        self._painted_at = now
        columns, at = self._console.width, steady_now()
        rows = self._console.height
        box = self._boxed(columns, rows, at)
        painted = frame(progress, at, columns, self._note, box, rows, self._offer)
        self._live.update(painted, refresh=True)

    def _boxed(self, columns: int, rows: int, at: float) -> list[str]:
        """What is asked. What the box has no room for is above it, also where the terminal has become smaller since."""
        if self.box is None:
            return []
        lines = self.box.lines(columns, self._box_lines(), at, rows, muted=bool(self._offer))
        if self.box.asked is not None and self.box.is_cut:
            self._recall(self.box.asked.run, self.box.asked.data["id"])
        return lines


def heading(progress: Progress) -> list[Text]:
    """The first lines: which run, what was asked, which chain."""
    run = Text.assemble(("● ", "blue"), (f"run {progress.number or progress.root}", "bold"), "  ")
    if progress.prompt is None:
        return [run.append(arrows(progress))]
    return [run.append(progress.prompt), Text(f"  {arrows(progress)}", "dim")]


def question(what: str, command: str, columns: int) -> Text:
    """A question in full, since nobody should allow what was cut off, and the command below it if need be.

    What is asked goes on within its own margin, so that no row of it can pass for a line of ours.
    """
    rows = folded(what, columns - 2)
    fits = len(rows) == 1 and width(what) + 4 + width(command) <= columns
    gap = "" if not command else "    " if fits else "\n    "
    return Text.assemble(("\n  ".join(rows), TONES[ALERT]), gap, (command, "bold"))


def frame(
    progress: Progress,
    now: float,
    columns: int,
    note: str = "",
    box: Sequence[str] = (),
    rows: int | None = None,
    offer: str = "",
) -> Table:
    """The block: the steps that are not over, what is asked, and a footer, which is never what there is no room for."""
    lines = [line for step in progress.steps if not step.told for line in _step_lines(progress, step, now, columns)]
    if progress.parked is not None:
        waits = f"{WORDS['parked'][0]}  {parking(progress.parked, wall_time(now))}{_left(progress, wall_time(now))}"
        lines.append(Text(fit(waits, columns), TONES[NOTICE]))
    footer = _footer(progress, now, columns, note, offer)
    room = None if rows is None else max(0, rows - len(box) - len(footer) - 1)
    block = [*_fitted(lines, room), *(Text(line, TONES[ALERT]) for line in box), *footer]
    grid = Table.grid()
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for line in block if rows is None else block[-rows:]:
        grid.add_row(line)
    return grid


def _footer(progress: Progress, now: float, columns: int, note: str, offer: str) -> list[Text]:
    """What has been used, and what keys do; of an offer all, whatever there is room for."""
    taken = duration(None if progress.started_at is None else now - progress.started_at)
    used = [taken, *_spent(progress)]
    line = "  ·  ".join([*used, offer or note or KEYS])
    if offer and width(line) > columns:
        return [Text(part, style="bold") for part in wrapped(offer, columns)]
    return [Text(fit(line, columns), style="bold" if offer or note else "dim")]


def _step_lines(progress: Progress, step: StepView, now: float, columns: int) -> list[Text]:
    helpers = step.helpers.values()
    return [step_line(progress, step, now, columns), *(helper_line(progress, one, now, columns) for one in helpers)]


def _fitted(lines: list[Text], room: int | None) -> list[Text]:
    """As many as there is room for. The first are those at work: what is over stands above the block."""
    if room is None or len(lines) <= room:
        return lines
    if room == 0:
        return []
    return [*lines[: room - 1], Text(f"·  … {len(lines) - room + 1} more", "dim")]


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
