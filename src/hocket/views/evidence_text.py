"""The evidence for the state of a run, as lines of a name and a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hocket.views.text import age, date_and_time, one_line

Evidence = dict[str, Any]


def evidence_rows(evidence: Evidence) -> list[list[str]]:
    """The rows of a table; what a run does not have is left out."""
    now = evidence["at"]
    rows = [["why", evidence["explanation"]], *map(list, _process_rows(evidence)), *map(list, _file_rows(evidence))]
    if (last := evidence["last_event"]) is not None:
        rows.append(["last event", f"{last['type']}, {_ago(last['at'], now)}"])
    rows += [
        ["question", f"{one['text'] or one['kind']}, {_ago(one['asked_at'], now)}"] for one in evidence["questions"]
    ]
    rows += [["stop", f"{one['reason']}, recorded {_ago(one['at'], now)}"] for one in evidence["stops"]]
    if (queue := evidence["queue"]) is not None:
        rows.append(["queue", f"number {queue['position']}; {queue['taken']} of {queue['places']} places taken"])
    if evidence["live_below"]:
        rows.append(["live below", ", ".join(map(str, evidence["live_below"]))])
    if evidence["parked_until"] is not None:
        rows.append(["parked", f"until {date_and_time(evidence['parked_until'])}: {evidence['parked_for']}"])
    return [[name, one_line(text)] for name, text in rows]


def _process_rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if (process := evidence["process"]) is not None:
        started = "" if process["start_time"] is None else f", start time {process['start_time']}"
        keeper = "" if process["keeper"] is None else f"; keeper {process['keeper']}"
        yield "process", f"{process['pid']}{started}, {'alive' if process['alive'] else 'gone'}{keeper}"
    if evidence["lock"] is not None:
        yield "keeper lock", evidence["lock"]
    if evidence["directory"] is not None:
        yield "run directory", evidence["directory"]


def _file_rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    now = evidence["at"]
    if (record := evidence["exit"]) is not None:
        how = f"code {record['code']}" if record["signal"] is None else f"signal {record['signal']}"
        parts = [how, "stopped by its keeper" if record["stopped"] else "", record["error"] or ""]
        parts += [f"{record['swept']} processes swept"] if record["swept"] else []
        parts += [f"still alive: {', '.join(map(str, record['survivors']))}"] if record["survivors"] else []
        yield "exit record", f"{', '.join(filter(None, parts))}, {_ago(record['ended_at'], now)}"
    elif evidence["lock"] is not None:
        yield "exit record", "none"
    if (end := evidence["ending"]) is not None:
        parts = [f"{name.replace('_', ' ')} {value}" for name, value in end.items() if value not in (None, "", [])]
        yield "recorded end", ", ".join(parts)
    if (output := evidence["output"]) is not None:
        yield "output", f"{output['bytes']} bytes, changed {_ago(output['changed_at'], now)}"
    if (transcript := evidence["transcript"]) is not None:
        yield "transcript", f"{transcript['path']}, changed {_ago(transcript['changed_at'], now)}"


def _ago(then: float | None, now: float) -> str:
    return "at an unknown time" if then is None else f"{age(now - then)} ago"
