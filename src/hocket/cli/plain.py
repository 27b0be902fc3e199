"""Append-only lines for pipes, files and continuous integration: no colour, no cursor, nothing rewritten."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket.cli.format import clock, duration, harmless
from hocket.cli.progress import Progress

HEARTBEAT_SECONDS = 30.0


def lines_of(progress: Progress, event: dict[str, Any]) -> list[str]:
    """What one event adds to the log, the event being part of ``progress`` already."""
    if event["type"] == "run.ended" and event["run"] not in progress.leaves:
        return []
    said = _words(event)
    if said is None:
        return []
    judged = event["data"].get("run") if event["type"] == "gate" else None
    head = f"{clock(event['ts'])} {progress.speaker(judged or event['run'])}"
    return [f"{head} {line}".rstrip() for line in said]


def _words(event: dict[str, Any]) -> list[str] | None:
    kind, data = event["type"], event["data"]
    if kind == "text":
        return harmless(str(data.get("text", ""))).split("\n")
    if kind == "raw":
        return [f"! {line}" for line in harmless(str(data.get("text", ""))).split("\n")]
    if kind == "gate":
        return [f"gate {_verdict(data)}: {harmless(str(data.get('command', '')))}"]
    if kind == "run.ended" and data.get("status") != "done":
        return [f"{data.get('status')}: {_why(data)}"]
    return None


def _verdict(data: dict[str, Any]) -> str:
    if data.get("passed"):
        return "passed"
    return "timed out" if data.get("timed_out") else f"not passed (exit {data.get('exit_code')})"


def _why(data: dict[str, Any]) -> str:
    code = data.get("exit_code")
    told = f"{data.get('reason')} {code}" if data.get("reason") == "exit" and code is not None else data.get("reason")
    return f"{told} ({data['error']})" if data.get("error") else str(told)


class PlainView:
    """Writes to standard error, so that standard output carries the result alone."""

    tick = 0.25

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._spoke_at = time.monotonic()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, progress: Progress, event: dict[str, Any]) -> None:
        """One event has been added."""
        lines = lines_of(progress, event)
        if lines:
            self.say("\n".join(lines))

    def idle(self, progress: Progress) -> None:
        """Nothing came for a moment."""
        if time.monotonic() - self._spoke_at < HEARTBEAT_SECONDS:
            return
        now = time.time()
        step = progress.current()
        who = progress.speaker(step.run) if step and step.run else f"run {progress.number or progress.root}"
        taken = duration(step.taken(now) if step else None)
        self.say(f"{clock(now)} {who} … still running, {taken}")

    def note(self, text: str) -> None:
        """Lines that are written once have no footer."""

    def say(self, text: str) -> None:
        """Talk, unless asked to be quiet."""
        self._spoke_at = time.monotonic()
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)
