"""``hocket logs``: what a run said, for people, for programs, or byte for byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hocket.cli import access
from hocket.cli.usage import COUNT, FLAG, JSON, REF, ArgumentError, Option, command
from hocket.client import Client

Event = dict[str, Any]

FLUSH_SECONDS = 5.0


@command(
    REF,
    Option("-f", "--follow", kind=FLAG, help="Go on until the run has ended."),
    Option("-n", "--lines", kind=COUNT, metavar="N", help="Begin with the last N lines; with --json, events."),
    Option("--raw", kind=FLAG, help="The agent's standard output, byte for byte."),
    Option("--err", kind=FLAG, help="Its standard error instead."),
    Option("-v", "--verbose", kind=FLAG, help="Also what an agent thought."),
    JSON,
    examples=("hocket logs -f 42", "hocket logs -f -n 20 42", "hocket logs 42 --raw > out.txt"),
)
def logs(ref: str, follow: bool, lines: int | None, raw: bool, err: bool, verbose: bool, as_json: bool) -> None:
    """Print what a run was asked and what it said. For a chain: everything its processes said, in order."""
    if raw and as_json:
        raise ArgumentError("--raw and --json exclude each other")
    client = access.connect(talk=not as_json)
    if raw:
        _raw(client, ref, "err" if err else "out", follow, lines)
    elif as_json:
        _write(client, ref, follow, lines, lambda event: [json.dumps(event)])
    else:
        _lines(client, ref, follow, lines, err, verbose)


def _raw(client: Client, ref: str, stream: str, follow: bool, lines: int | None) -> None:
    sys.stdout.flush()
    read: dict[str, int] = {}
    """How much of each process's output was there at first, where only the end of that is wanted."""
    if lines is not None:
        end = b""
        for leaf in _leaves(client, ref, False):
            for piece in client.output(leaf, stream):
                read[leaf] = read.get(leaf, 0) + len(piece)
                end = last_lines(end + piece, lines)
        _put(end)
    for leaf in _leaves(client, ref, follow) if follow or lines is None else ():
        for piece in client.output(leaf, stream, follow, read.get(leaf, 0)):
            _put(piece)


def _put(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def last_lines(text: bytes, count: int) -> bytes:
    """The end of a text that has so many lines; the last of them need not have ended."""
    at = len(text) - text.endswith(b"\n")
    for _ in range(count):
        at = text.rfind(b"\n", 0, at)
        if at < 0:
            return text
    return text[at + 1 :]


def _leaves(client: Client, ref: str, follow: bool) -> Iterator[str]:
    """The processes of a run, in the order of their start: itself, or those of its chain."""
    run = client.run(ref)
    if run["kind"] == "leaf":
        yield run["id"]
        return
    for event in client.follow(run["id"], follow=follow):
        if event["type"] == "run.created" and event["data"].get("kind") == "leaf":
            yield event["run"]


def _lines(client: Client, ref: str, follow: bool, lines: int | None, err: bool, verbose: bool) -> None:
    from hocket.cli.plain import lines_of
    from hocket.cli.progress import Progress

    progress = Progress(client.run(ref)["id"])

    def told(event: Event) -> list[str]:
        progress.add(event)
        return [] if err and event["type"] != "raw" else lines_of(progress, event, verbose)

    _write(client, progress.root, follow, lines, told)


def _write(client: Client, ref: str, follow: bool, lines: int | None, told: Callable[[Event], list[str]]) -> None:
    """Write what each event comes to; of what there is already, with ``lines``, only the end."""
    after = 0
    if lines is not None:
        from collections import deque

        last: deque[str] = deque(maxlen=lines)
        for event in client.follow(ref, follow=False):
            last.extend(told(event))
            after = event["seq"]
        access.write("".join(f"{line}\n" for line in last))
        sys.stdout.flush()
    for later in client.follow_ticking(ref, FLUSH_SECONDS, after, follow) if follow or lines is None else ():
        if later is None:
            sys.stdout.flush()
            continue
        for line in told(later):
            access.write(f"{line}\n")
