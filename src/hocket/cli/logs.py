"""``hocket logs``: what a run said, for people, for programs, or byte for byte."""

from __future__ import annotations

import sys

from hocket.cli import access
from hocket.cli.misuse import Misused
from hocket.cli.usage import FLAG, JSON, REF, Option, command

TYPE_CHECKING = False  # `typing` is not worth its time here; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hocket.client import Client

FLUSH_SECONDS = 5.0


@command(
    REF,
    Option("-f", "--follow", kind=FLAG, help="Go on until the run has ended."),
    Option("--raw", kind=FLAG, help="The agent's standard output, byte for byte."),
    Option("--err", kind=FLAG, help="Its standard error instead."),
    Option("-v", "--verbose", kind=FLAG, help="Also what an agent thought."),
    JSON,
    examples=("hocket logs -f 42", "hocket logs 42 --raw > out.txt"),
    quick=True,
)
def logs(ref: str, follow: bool, raw: bool, err: bool, verbose: bool, as_json: bool) -> None:
    """Print what a run said. For a chain: everything its processes said, in order."""
    if raw and as_json:
        raise Misused("--raw and --json exclude each other")
    client = access.connect(talk=not as_json)
    if raw:
        _raw(client, ref, "err" if err else "out", follow)
    elif as_json:
        _json(client, ref, follow)
    else:
        _lines(client, ref, follow, err, verbose)


def _raw(client: Client, ref: str, stream: str, follow: bool) -> None:
    sys.stdout.flush()
    for leaf in _leaves(client, ref, follow):
        for piece in client.output(leaf, stream, follow):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def _leaves(client: Client, ref: str, follow: bool) -> Iterator[str]:
    """The processes of a run, in the order of their start: itself, or those of its chain."""
    run = client.run(ref)
    if run["kind"] == "leaf":
        yield run["id"]
        return
    for event in client.follow(run["id"], follow=follow):
        if event["type"] == "run.created" and event["data"].get("kind") == "leaf":
            yield event["run"]


def _json(client: Client, ref: str, follow: bool) -> None:
    for event in client.follow_ticking(ref, FLUSH_SECONDS, follow=follow):
        sys.stdout.flush() if event is None else access.write_json(event)


def _lines(client: Client, ref: str, follow: bool, err: bool, verbose: bool) -> None:
    from hocket.cli.plain import lines_of
    from hocket.cli.progress import Progress

    progress = Progress(client.run(ref)["id"])
    for event in client.follow_ticking(progress.root, FLUSH_SECONDS, follow=follow):
        if event is None:
            sys.stdout.flush()
            continue
        progress.add(event)
        if err and event["type"] != "raw":
            continue
        for line in lines_of(progress, event, verbose):
            access.write(line + "\n")
