"""``hocket run``: start a chain, watch it to its end, end with its exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hocket import config
from hocket.cli import access
from hocket.cli.usage import (
    ASKING,
    BOUNDS,
    CHAIN_WORDS,
    CWD,
    FLAG,
    ISOLATED,
    JSON,
    MARKER,
    PLAIN,
    PROMPT,
    PROMPT_FILE,
    QUIET,
    TIMEOUT,
    UNTIL,
    Option,
    command,
)
from hocket.client import Client

if TYPE_CHECKING:
    from hocket.cli.progress import Progress
    from hocket.cli.view import View
    from hocket.cli.watch import Signals

EXAMPLE = 'hocket run "planner -> builder:3 -> reviewer" -p "Expire old sessions"'


@command(
    CHAIN_WORDS,
    Option("--chain", name="chain_name", metavar="NAME", help="Run a chain of the configuration."),
    PROMPT,
    PROMPT_FILE,
    CWD,
    Option("--dry-run", kind=FLAG, help="Show what would be started, and start nothing."),
    Option("-v", "--verbose", kind=FLAG, help="Show each step's program, arguments and directory."),
    Option("--detach", kind=FLAG, help="Print the run's number and leave it to the server."),
    UNTIL,
    TIMEOUT,
    MARKER,
    ASKING,
    *BOUNDS,
    ISOLATED,
    QUIET,
    PLAIN,
    JSON,
    examples=(
        EXAMPLE,
        "hocket run --chain ship TICKET=42",
        'hocket run "planner -> (reviewer, qa:3)" --budget 5',
        'hocket run builder:5 --until "make test" --json',
    ),
    passing=True,
)
def run(words: tuple[str, ...], cwd: str | None, **options: Any) -> int:
    """Run a chain: agents joined by "->", each with an optional ":N" that repeats it up to N times; those in
    parentheses, "(a, b:3)", work at the same time.

    The result goes to standard output, everything else to standard error. A chain's text may be given as one
    word or several; NAME=value sets a variable of the chain.
    """
    request = request_body(words, access.directory(cwd), options)
    request["on_question_default"] = "ask" if options["detach"] or _somebody_watches(options) else "deny"
    if options["dry_run"]:
        return _dry_run(request, options["as_json"])
    if options["verbose"] and not options["as_json"]:
        for line in _described(_bound(request, starting=True)):
            print(line, file=sys.stderr)
    return start_and_watch("/api/runs", request, options)


def request_body(words: tuple[str, ...], cwd: str, options: dict[str, Any]) -> dict[str, Any]:
    """The body of the start, of ``rehearse`` too. Only what was given is in it."""
    dsl, variables = _joined(words)
    if bool(dsl) == bool(options["chain_name"]):
        from hocket.cli.usage import ArgumentError

        both = f"give --chain or a chain's text, not both: {dsl!r}"
        raise ArgumentError(both if dsl else f"nothing to run\n  {EXAMPLE}")
    file = options["prompt_file"]
    prompt = access.pick_prompt(options["prompt"], file and _substituted(file, variables), cwd)
    # Text that was not typed for us is nobody's template: what looks like a variable in it is none.
    literal = prompt != options["prompt"] and any(mark in (prompt or "") for mark in ("${", "{{"))
    body = {
        "dsl": dsl or None,
        "chain": options["chain_name"],
        "prompt": prompt,
        "prompt_literal": literal or None,
        "cwd": cwd,
        "args": options["passed"],
        "env": access.environment(cwd),
        "variables": variables,
        "until": options["until"],
        "timeout": options["timeout"],
        "marker": options["marker"],
        "on_question": options["on_question"],
        **{option.name: options.get(option.name) for option in (*BOUNDS, ISOLATED)},
    }
    return {name: value for name, value in body.items() if value is not None}


def _joined(words: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The chain's text and its variables. Telling them apart takes regular expressions, which most runs never need."""
    if not any("=" in word for word in words):
        return " ".join(words), {}
    from hocket.chain.variables import join

    return join(words)


def _substituted(file: str, variables: dict[str, str]) -> str:
    from hocket.chain.variables import substitute

    return substitute(file, variables)


def _dry_run(request: dict[str, Any], as_json: bool) -> int:
    steps = _bound(request, starting=False)
    if as_json:
        access.write_json(steps)
    else:
        access.write("".join(f"{line}\n" for line in _described(steps)))
    return 0


def _bound(request: dict[str, Any], *, starting: bool) -> list[dict[str, Any]]:
    """Each step with nothing left to look up, found here; for a run by the server, which knows what it may start."""
    if (client := access.connect_as_run(starting)) is not None:
        steps: list[dict[str, Any]] = client.request("POST", "/api/plans", request)
        return steps
    from hocket.config.loading import load
    from hocket.workflows.bind import StartRequest, bind, describe

    cwd = request["cwd"]
    return describe(bind(StartRequest(**request), load(cwd, config.home())))


def _described(steps: list[dict[str, Any]]) -> list[str]:
    from hocket.cli.chains import described

    return described(steps)


def start_and_watch(path: str, body: dict[str, Any], options: dict[str, Any]) -> int:
    """Start a run by a POST and watch it to its end; the exit code. ``resume`` does the same with other words.

    The options that count are ``as_json quiet plain verbose detach``, and ``session``: such a run is watched until
    it has nothing more to do, because it does not end.
    """
    from hocket.cli.watch import Leave, Signals

    as_json, quiet = options["as_json"], options["quiet"]
    client = access.connect(talk=not as_json and not quiet)
    signals = Signals(client, on_terminal=_somebody_watches(options))
    if not options["detach"]:
        signals.install()
    try:
        if options["detach"]:
            started = client.request("POST", path, body)
            access.write_json({"run": started["id"]}) if as_json else access.write(f"run {started['number']}\n")
            return 0
        id = client.start_followed(path, body)
        signals.watching(id)
        session = options.get("session", False)
        if as_json:
            return _report_json(client, id, signals, session)
        return _report(client, id, signals, _view(_is_live(options), options), quiet, session)
    except Leave as leave:
        return leave.code


def _is_live(options: dict[str, Any]) -> bool:
    """Whether there is a terminal to repaint."""
    silent = options["as_json"] or options["quiet"]
    return not silent and config.interactive(sys.stdout.isatty(), options["plain"])


def _somebody_watches(options: dict[str, Any]) -> bool:
    """Whether a person sees what happens. The result may go into a file; it is where the talk goes that counts."""
    silent = options["as_json"] or options["quiet"]
    return _is_live(options) or (not silent and config.interactive(sys.stderr.isatty()))


def _report_json(client: Client, id: str, signals: Signals, session: bool) -> int:
    from hocket.cli.watch import stream_json

    return _code(stream_json(client, id, access.write_json, sys.stdout.flush, session), signals)


def _code(last: dict[str, Any], signals: Signals) -> int:
    """What the last event means to a script: the run's end, or that of a session's turn."""
    data = last["data"]
    if last["type"] == "turn.ended":
        return 1 if data.get("is_error") else 0
    return signals.exit_code(data["status"], access.exit_code(data["status"], data.get("reason")))


def _view(live: bool, options: dict[str, Any]) -> View:
    if live:
        from hocket.cli.terminal import LiveView

        answering = sys.stdin is not None and sys.stdin.isatty()
        return LiveView(options["verbose"], config.colour_wanted(True), keys=answering)
    from hocket.cli.plain import PlainView

    # Not for a terminal's sake: there, whoever asks for plain lines wants no more than letters.
    return PlainView(options["quiet"], options["verbose"], config.folds_logs(), config.colour_wanted(False))


def _report(
    client: Client,
    id: str,
    signals: Signals,
    view: View,
    quiet: bool,
    session: bool,
) -> int:
    from hocket.cli.progress import Progress
    from hocket.cli.watch import Leave, watch

    progress = Progress(id)
    client.notice = None if quiet else view.say
    try:
        last = watch(client, progress, view, signals, session)
    except Leave:
        _say_where_it_is(progress)
        raise
    access.print_result(last["data"].get("result"))
    sys.stdout.flush()
    if not quiet:
        # A live view on standard output says nothing about where standard error goes.
        _summarise(progress, view.colour if sys.stderr.isatty() else config.colour_wanted(False))
    return _code(last, signals)


def _say_where_it_is(progress: Progress) -> None:
    from contextlib import suppress

    from hocket.cli.progress import whereabouts

    with suppress(OSError):  # a terminal that hung up cannot be told
        print("\n".join(whereabouts(progress)), file=sys.stderr, flush=True)


def _summarise(progress: Progress, colour: bool) -> None:
    from hocket.cli.format import tinted
    from hocket.cli.progress import summary
    from hocket.cli.steady import steady_now

    lines = summary(progress, steady_now(), access.terminal_width(sys.stderr))
    told = (tinted(line) if colour else line for line in lines)
    sys.stderr.write("".join(f"{line}\n" for line in told))  # in one piece, where printing would take two for each
