"""``hocket run`` and ``hocket attach``: start a chain or find a run, watch it to its end, exit with its code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hocket import config
from hocket.chain.variables import join, references, substitute
from hocket.cli import access
from hocket.cli.chains import step_details
from hocket.cli.format import paint_status
from hocket.cli.plain import PlainDisplay, continues, continuing, recent_lines, summary
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
    REF,
    TEAM,
    TIMEOUT,
    UNTIL,
    ArgumentError,
    Option,
    command,
)
from hocket.cli.watch import (
    ATTACH_KEYS,
    NO_KEYS,
    NOT_ENDED,
    AttachControl,
    ClientExit,
    Event,
    KeyboardControl,
    RunControl,
    RunDisplay,
    SignalHandler,
    ends_run,
    ends_turn,
    leave_on_signals,
    steady_now,
    steady_view,
    stream_json,
    watch,
)
from hocket.client import ENDED, Client
from hocket.errors import UsageError
from hocket.views.run_view import RunView

if TYPE_CHECKING:
    from hocket.workflows.request import StartRequest

EXAMPLE = 'hocket run "planner -> builder:3 -> reviewer" -p "Expire old sessions"'


@command(
    CHAIN_WORDS,
    Option("--chain", name="chain_name", metavar="NAME", help="Run a chain of the configuration."),
    PROMPT,
    PROMPT_FILE,
    CWD,
    Option("--dry-run", kind=FLAG, help="Show what would be started, and start nothing."),
    Option("-v", "--verbose", kind=FLAG, help="Show each step's program, arguments and directory."),
    Option("--detach", kind=FLAG, help="Print the run's number and exit; the run continues."),
    UNTIL,
    TIMEOUT,
    MARKER,
    ASKING,
    *BOUNDS,
    ISOLATED,
    TEAM,
    QUIET,
    PLAIN,
    JSON,
    examples=(
        EXAMPLE,
        "hocket run --chain ship TICKET=42",
        'hocket run "planner -> (reviewer, qa:3)" --budget 5',
        'hocket run builder:5 --until "make test" --json',
        'hocket run claude --team -p "Review the change with three teammates"',
    ),
    passing=True,
)
def run(words: tuple[str, ...], cwd: str | None, **options: Any) -> int:
    """Run a chain: agents joined by "->", each with an optional ":N" that repeats it up to N times; those in
    parentheses, "(a, b:3)", run in parallel.

    The result goes to standard output, everything else to standard error. The text of a chain may be one word or
    several; NAME=value sets a variable of the chain.
    """
    request = request_body(words, access.directory(cwd), options)
    request["on_question_default"] = "ask" if options["detach"] or _is_watched(options) else "deny"
    if options["dry_run"]:
        steps = _bound_steps(request, starting=False)
        if options["as_json"]:
            access.write_json(steps)
        else:
            access.write_lines(step_details(steps))
        return 0
    if options["verbose"] and not options["as_json"]:
        for line in step_details(_bound_steps(request, starting=True)):
            print(line, file=sys.stderr)
    return start_and_watch("/api/runs", request, options)


def request_body(words: tuple[str, ...], cwd: str, options: dict[str, Any]) -> dict[str, Any]:
    """The body of a start request, with only the options that were given."""
    dsl, variables = join(words)
    if bool(dsl) == bool(options["chain_name"]):
        both = f"give --chain or the text of a chain, not both: {dsl!r}"
        raise ArgumentError(both if dsl else f"nothing to run\n  {EXAMPLE}")
    file = options["prompt_file"]
    prompt = access.pick_prompt(options["prompt"], file and substitute(file, variables), cwd)
    # A prompt from a file or from standard input is not a template: what looks like a variable stays as it is.
    literal = prompt != options["prompt"] and any(mark in (prompt or "") for mark in ("${", "{{"))
    body = {
        "dsl": dsl or None,
        "chain": options["chain_name"],
        "prompt": prompt,
        "prompt_literal": literal or None,
        "cwd": cwd,
        "args": options["passed"],
        "env": access.environment(cwd),
        **config.calling_session(),
        "variables": variables,
        "used_variables": references(file or "") or None,
        **{option.name: options.get(option.name) for option in (UNTIL, TIMEOUT, MARKER, ASKING, *BOUNDS, ISOLATED)},
        **({"agent_teams": True, "session": False} if options.get("agent_teams") else {}),
    }
    return {name: value for name, value in body.items() if value is not None}


def _bound_steps(request: dict[str, Any], *, starting: bool) -> list[dict[str, Any]]:
    """Every step with its agent resolved: here, or for a run by the server, which knows what the run may start."""
    if (client := access.connect_as_run(starting)) is not None:
        steps: list[dict[str, Any]] = client.request("POST", "/api/plans", request)
        return steps
    from hocket.config.loading import load
    from hocket.workflows.bind import bind, describe

    return describe(bind(validated(request), load(request["cwd"], config.home())))


def validated(request: dict[str, Any]) -> StartRequest:
    """The start request of a body, checked as the server would check it."""
    import msgspec

    from hocket.api.validation_errors import value_error
    from hocket.workflows.request import StartRequest

    try:
        return msgspec.convert(request, StartRequest)
    except msgspec.ValidationError as error:
        raise UsageError(value_error(error, StartRequest)) from error


def start_and_watch(path: str, body: dict[str, Any], options: dict[str, Any]) -> int:
    """Start a run by a POST, watch it to its end, and return the exit code; ``resume`` uses it as well.

    Reads the options ``as_json quiet plain verbose detach`` and ``session``: a session is watched up to its first
    pause, because it does not end.
    """
    as_json = options["as_json"]
    client = access.connect(talk=not as_json and not options["quiet"])
    signals = SignalHandler(client, on_terminal=_is_watched(options))
    if not options["detach"]:
        signals.install()
    try:
        started = client.request("POST", path, body)
        if options["detach"]:
            access.write_json({"run": started["id"]}) if as_json else access.write(f"run {started['number']}\n")
            if _is_watched(options):
                sys.stdout.flush()
                print(f"hocket: come back to it with: hocket attach {started['number']}", file=sys.stderr)
            return 0
        signals.set_run(started["id"])
        is_last = ends_turn if options.get("session") else ends_run
        if as_json:
            return exit_code(stream_json(client, started["id"], is_last), signals)
        return _watch(client, started["id"], signals, options, is_last)
    except ClientExit as leaving:
        return leaving.code


def _is_live(options: dict[str, Any]) -> bool:
    """True if there is a terminal to repaint."""
    silent = options["as_json"] or options["quiet"]
    return not silent and config.interactive(sys.stdout.isatty(), options["plain"])


def _is_watched(options: dict[str, Any]) -> bool:
    """True if a person sees the messages, even if the result goes to a file."""
    silent = options["as_json"] or options["quiet"]
    return _is_live(options) or (not silent and config.interactive(sys.stderr.isatty()))


def exit_code(last: dict[str, Any], signals: SignalHandler) -> int:
    """The exit code for the last event: the end of a run, or of a session's turn."""
    data = last["data"]
    if last["type"] == "turn.ended":
        return 1 if data.get("is_error") else 0
    return signals.exit_code(data["status"], access.exit_code(data["status"], data.get("reason")))


def make_display(
    options: dict[str, Any], *, answering: bool, footer: str | None = None, attached: str = ""
) -> RunDisplay:
    """The display that the terminal and the options ask for; with ``answering`` questions are answered by keys."""
    if _is_live(options):
        from hocket.cli.terminal import LiveDisplay

        colour = config.colour_wanted(True)
        return LiveDisplay(options["verbose"], colour, keys=answering, footer=footer, attached=attached)
    # --plain on a terminal means no colours either, unless they are forced.
    return PlainDisplay(options["quiet"], options["verbose"], config.folds_logs(), config.colour_wanted(False))


def _watch(
    client: Client, id: str, signals: SignalHandler, options: dict[str, Any], is_last: Callable[[Event, str], bool]
) -> int:
    quiet = options["quiet"]
    display = make_display(options, answering=_has_keys())
    view = steady_view(id)
    client.notice = None if quiet else display.say
    with _saying_how_to_continue(view):
        last = watch(client, view, display, KeyboardControl(client, display, signals), is_last)
    access.print_result(last["data"].get("result"))
    if not quiet:
        _print_summary(view, display)
    return exit_code(last, signals)


def _has_keys() -> bool:
    """True if a person's keys reach this process."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def _saying_how_to_continue(view: RunView) -> Iterator[None]:
    """Where this client exits before the run, print how to come back."""
    try:
        yield
    except ClientExit:
        with suppress(OSError):  # the terminal may have hung up
            print("\n".join(continues(view)), file=sys.stderr, flush=True)
        raise


def _print_summary(view: RunView, display: RunDisplay) -> None:
    sys.stdout.flush()
    # A live display on standard output says nothing about where standard error goes.
    colour = display.colour if sys.stderr.isatty() else config.colour_wanted(False)
    lines = summary(view, steady_now(), access.terminal_width(sys.stderr), steps_too=not sys.stderr.isatty())
    sys.stderr.write("".join(f"{paint_status(line) if colour else line}\n" for line in lines))


# --- Attaching ----------------------------------------------------------------------------------------------


@command(
    REF,
    Option("-v", "--verbose", kind=FLAG, help="Show the thinking of agents too."),
    PLAIN,
    JSON,
    examples=("hocket attach 42", "hocket attach 42 --plain", "hocket attach 42 --json"),
)
def attach(ref: str, **options: Any) -> int:
    """Watch a run that was started elsewhere or detached: its last lines, then all that follows, with keys that answer
    its questions, send it a message, interrupt its turn and leave. "?" shows the keys. A run that has a terminal is
    shown in full, all keys go to it, and Ctrl-] leaves; "--plain" shows its lines instead.

    Leaving stops nothing. Exits with the run's code, or with 3 if you leave before its end. Without a terminal the
    lines go to standard error and the result to standard output, as in "hocket run".
    """
    as_json = options["as_json"]
    client = access.connect(talk=not as_json)
    found = client.run(ref)
    run = found["id"]
    options["quiet"] = False
    leave_on_signals(_is_watched(options))
    try:
        if found["terminal"] and found["status"] not in ENDED and not (as_json or options["plain"]):
            last = _attach_terminal(client, run, found["number"])
        else:
            last = stream_json(client, run) if as_json else _attach(client, run, options)
    except ClientExit as leaving:
        return leaving.code
    return access.exit_code(last["data"]["status"], last["data"].get("reason"))


def _attach_terminal(client: Client, run: str, number: int) -> Event:
    """Show the terminal of a run up to its end, and return that."""
    from hocket.cli.attach.full_terminal import show_terminal

    try:
        show_terminal(client, run, number)
    except ClientExit:
        with suppress(OSError):  # the terminal may have hung up
            print(continuing(number), file=sys.stderr, flush=True)
        raise
    view = steady_view(run)
    for event in client.follow(run):
        view.add(event)
    _print_summary(view, RunDisplay())
    if view.ended is None:
        raise AssertionError(NOT_ENDED)
    return view.ended


def _attach(client: Client, run: str, options: dict[str, Any]) -> Event:
    """Show a run that exists already, up to its end, and return that."""
    is_live, has_keys = _is_live(options), _has_keys()
    attached = ATTACH_KEYS if has_keys else NO_KEYS
    display = make_display(options, answering=has_keys, attached=attached)
    view = steady_view(run)
    client.notice = display.say
    with _saying_how_to_continue(view):
        recent = recent_lines(view, client.follow(run, follow=False), options["verbose"])
        display.begin(view, recent)
        control = AttachControl(client, display) if is_live and has_keys else RunControl()
        last = view.ended or watch(client, view, display, control, after=recent.seq)
    if not is_live:  # which has printed all of it
        access.print_result(last["data"].get("result"))
    _print_summary(view, display)
    return last
