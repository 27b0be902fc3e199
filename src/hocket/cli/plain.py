"""Append-only lines for pipes, files and continuous integration: no cursor, nothing rewritten, colour if forced."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from hocket.cli.format import clock, duration, one_line, painted
from hocket.cli.steady import steady_now, wall_time
from hocket.cli.words import ALERT, ASIDE, NOTICE, THOUGHT, WAYS, parking, tone_of
from hocket.client import type_in

if TYPE_CHECKING:
    from hocket.cli.progress import Progress

HEARTBEAT_SECONDS = 30.0
FATES = {"fail": "nobody is to be asked (--on-question fail), so the run ends", "deny": ""}
"""In the place of the command that answers a question. What was denied has its own line, which says by whom and why."""
_UNREAD = frozenset({b"session", b"usage"})
"""What makes no line, nor a difference to the summary: that has what the end of a run says it has used."""
_COLOURS = {ASIDE: "2", THOUGHT: "2;3", NOTICE: "33", ALERT: "1;33"}
"""Of lines, where somebody wants colours in them; what agents say has none."""


def lines_of(progress: Progress, event: dict[str, Any], verbose: bool = False) -> list[str]:
    """What one event adds to the log, the event being part of ``progress`` already."""
    if event["type"] == "run.started" and event["run"] != progress.root and progress.step_of(event["run"]):
        # Of a chain it is worth a line: what begins may say nothing for long.
        return [f"{clock(event['ts'])} {progress.named_speaker(event)} begins"]
    if event["type"] == "question":
        return _question_lines(progress, event)
    way = WAYS.get(event["type"])
    if way is None or (way.tone == THOUGHT and not verbose):
        return []
    if event["type"] == "run.ended" and event["run"] not in progress.leaves:
        return []
    if event["type"] == "run.created" and event["run"] not in progress.asked_anew:
        return []
    said = way.words(event["data"])
    head = f"{clock(event['ts'])} {progress.named_speaker(event)}"
    return [] if said is None else [f"{head} {line}".rstrip() for line in said.split("\n")]


def _question_lines(progress: Progress, event: dict[str, Any]) -> list[str]:
    from hocket.cli.asking import with_reply

    return [f"{clock(event['ts'])} {line}" for line in with_reply(*question_of(progress, event)).split("\n")]


def question_of(progress: Progress, event: dict[str, Any]) -> tuple[str, str]:
    """What is asked, by whom, and the command that answers it, or what becomes of it if nobody is to."""
    from hocket.cli.asking import wish

    asked = progress.questions.get((event["run"], event["data"]["id"]))
    what = f"? {progress.named_speaker(event)} {wish(event['data'])}"
    return what, progress.reply_line(asked) if asked is not None else FATES[progress.fate_of(event)]


def heartbeat(progress: Progress, now: float) -> str:
    """Who is at work though nothing is heard, or what is waited for."""
    if progress.parked is not None:
        return f"{progress.name} … still {parking(progress.parked, wall_time(now))}"
    working = progress.at_work()
    who = ", ".join(progress.speaker(step.run) for step in working if step.run) or progress.name
    state = "still waits for an answer" if any(step.asks for step in working) else "still running"
    if any(step.gate for step in working) and all(step.gate or step.asks for step in working):
        state = f"{state}: {next(step.gate for step in working if step.gate)}"
    begun = [step.started_at for step in working if step.started_at is not None]
    since = min(begun, default=progress.started_at)
    return f"{who} … {state}, {duration(None if since is None else now - since)}"


class PlainView:
    """Writes to standard error, so that standard output carries the result alone."""

    tick = 1.0
    box = None

    def __init__(self, quiet: bool, verbose: bool = False, folding: bool = False, colour: bool = False) -> None:
        self._quiet = quiet
        self.colour = colour
        self._verbose = verbose
        self._unread = _UNREAD if verbose else _UNREAD | {b"thinking"}
        self._folding = folding
        """Whether whoever shows the log later can fold away what lies between two lines made for that."""
        self._fold = ""
        self._spoke_at = time.monotonic()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        self._begin_fold("")

    def unread(self, text: bytes) -> bool:
        """Whether an event makes no difference: some never do, and a tool that has done its work is no news."""
        kind = type_in(text)
        return kind in self._unread or (kind == b"tool.finished" and b'"error":false' in text)

    def show(self, progress: Progress, event: dict[str, Any]) -> None:
        """One event has been added."""
        if event["type"] == "run.started" and (step := progress.step_of(event["run"])) is not None:
            self._begin_fold(", ".join(one_line(one.agent) for one in progress.beside(step)))
        lines = lines_of(progress, event, self._verbose)
        if lines:
            if self.colour:
                style = _COLOURS.get(tone_of(event) or "", "")
                lines = [painted(line, style) for line in lines]
            self.say("\n".join(lines))

    def _begin_fold(self, title: str) -> None:
        """The lines of one step, or of all that work at the same time, belong together."""
        if not self._folding or title == self._fold:
            return
        ends = ["::endgroup::"] if self._fold else []
        self._fold = title
        self.say("\n".join([*ends, *([f"::group::{title}"] if title else [])]))

    def idle(self, progress: Progress) -> None:
        """Nothing came for a moment."""
        if time.monotonic() - self._spoke_at < HEARTBEAT_SECONDS:
            return
        self.say(f"{clock(time.time())} {heartbeat(progress, steady_now())}")

    def note(self, text: str) -> None:
        """Lines that are written once have no footer."""

    def offer(self, progress: Progress, text: str) -> None:
        """What keys do now."""
        self.say(text or f"{progress.name} goes on")

    def say(self, text: str) -> None:
        """Talk, unless asked to be quiet."""
        self._spoke_at = time.monotonic()
        if not self._quiet:
            sys.stderr.write(f"{text}\n")  # in one piece, where printing would take two
            sys.stderr.flush()
