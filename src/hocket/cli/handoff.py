"""``hocket handoff``: give a task to an agent, wait for it, print its final message alone.

Agents call this from their own tools, so a signal to the command detaches and never ends the work.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.plain import PlainDisplay
from hocket.cli.question_prompt import question_text, reply_commands, reply_to, with_reply
from hocket.cli.usage import CWD, FLAG, JSON, SECONDS, Argument, ArgumentError, Option, command
from hocket.cli.watch import ClientExit, Event, KeyboardControl, SignalHandler, ends_run, steady_view, watch
from hocket.client import ENDED, Client, quote
from hocket.errors import NotFound, PromptError
from hocket.views.names import agent_name
from hocket.views.run_view import RunView
from hocket.views.text import strip_controls, terminal_output

Record = dict[str, Any]

DEFAULT_WAIT = 600.0
TICK_SECONDS = 0.25
SETTLE_SECONDS = 5.0


class DetachingSignals(SignalHandler):
    """Signals that end this command but not the work, except for Ctrl-C on a terminal."""

    def __init__(self, client: Client, on_terminal: bool) -> None:
        super().__init__(client, on_terminal)
        self._exit_with: int | None = None
        self._is_started = False

    def set_run(self, run: str) -> None:
        self._is_started = True
        if self._exit_with is not None:
            raise ClientExit(self._exit_with)
        super().set_run(run)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.on_terminal and number == signal.SIGINT:
            super()._on_signal(number, frame)
        elif self._is_started or self._exit_with is not None:
            raise ClientExit(128 + number)
        else:
            # The request may be under way. Its response names the run that continues.
            self._exit_with = 128 + number


@command(
    Argument("words", "[TASK] AGENT PROMPT|-", many=True, required=False),
    Option(
        "--timeout",
        kind=SECONDS,
        metavar="TIME",
        default=DEFAULT_WAIT,
        help="Stop waiting after this time; 0 waits without limit.",
    ),
    Option("--detach", kind=FLAG, help="Print the run's number and exit; the run continues."),
    Option("--result", metavar="RUN", help="Wait for an earlier hand-off and print its result."),
    CWD,
    JSON,
    examples=(
        'hocket handoff developer "Fix the flaky test in tests/test_login.py"',
        'hocket handoff 7 qa "Try out what developer did"',
        "git diff | hocket handoff 7 developer-review -",
        "hocket handoff --result 42",
    ),
    prose=True,
)
def handoff(words: tuple[str, ...], timeout: float, result: str | None, **options: Any) -> int:
    """Hand a task to an agent, wait for it, and print its final message alone. "-" reads the prompt from standard
    input.

    TASK defaults to HOCKET_TASK; without either, a task is created from the first line of the prompt. Exits with 0 when
    the agent is done, 1 when it failed, 2 when the hand-off was refused, 3 when the agent is still running after 10
    minutes (--timeout) and continues, 4 when its question cannot be answered, 5 when its budget is used up.
    """
    deadline = time.monotonic() + timeout if timeout else None
    as_json = options["as_json"]
    client = access.connect(talk=not as_json)
    on_terminal = not as_json and config.caller().run is None and config.interactive(sys.stderr.isatty())
    signals = DetachingSignals(client, on_terminal)
    if not options["detach"]:
        signals.install()
    made: dict[str, Any] = _existing(client, words, result) if result else _start(client, words, options["cwd"])
    if options["detach"]:
        if as_json:
            access.write_json({name: made[name] for name in ("task", "handoff", "run")})
        else:
            access.write(f"run {client.run(made['run'])['number']}\n")
        return 0
    try:
        signals.set_run(made["run"])
        is_over = _watch(client, made, HandoffDisplay(on_terminal, as_json, deadline), signals)
        return _report(client, made, is_over, as_json, signals)
    except ClientExit as leaving:
        _report_running(made)
        return leaving.code


def _start(client: Client, words: tuple[str, ...], cwd: str | None) -> dict[str, Any]:
    """Hand the task over; returns the ids of task, hand-off and run."""
    if len(words) not in (2, 3):
        raise ArgumentError("give [TASK] AGENT PROMPT, with the prompt in quotes")
    if not all(words[:-1]):
        raise ArgumentError("TASK and AGENT must not be empty; inside an agent HOCKET_TASK names the task")
    task, agent = words[0] if len(words) == 3 else None, words[-2]
    place = access.directory(cwd)
    prompt = access.pick_prompt(words[-1], None, place) or ""
    if not prompt.strip():
        raise PromptError("the prompt is empty")
    ref = task or config.caller().task
    body = access.camel_keys({"agent_name": agent, "cwd" if cwd else "default_cwd": place})
    body |= {"prompt": prompt, "env": access.environment(place)}
    path = f"/api/tasks/{quote(ref)}/handoff" if ref else "/api/handoffs"
    try:
        answer = client.exchange("POST", path, body)
    except NotFound as error:
        if task is None:
            raise
        raise NotFound(error.message, "give TASK AGENT PROMPT, or AGENT PROMPT with the prompt in quotes") from error
    meta = answer["meta"]
    return {"task": answer["data"]["id"], "handoff": meta["handoff"], "run": meta["run"], "agent": agent}


def _existing(client: Client, words: tuple[str, ...], ref: str) -> dict[str, Any]:
    """An earlier hand-off, by its run."""
    if words:
        raise ArgumentError("--result takes no other arguments")
    run = client.run(ref)
    if run.get("task") is None:
        raise NotFound(f"run {run['number']} is not a hand-off", f"its result: hocket wait {run['number']}")
    try:
        record = client.request("GET", f"/api/tasks/{quote(run['task'])}/handoffs/{quote(run['id'])}")
    except NotFound as error:
        hint = f"its result: hocket wait {run['number']}"
        raise NotFound(f"the task of run {run['number']} has no record of it: {error.message}", hint) from error
    return {"task": run["task"], "handoff": record["id"], "run": run["id"], "agent": run["agent"]}


class HandoffDisplay(PlainDisplay):
    """The log on a terminal; elsewhere only open questions, once no further event is waiting to be read.

    Raises TimeoutError when the time is up.
    """

    tick = TICK_SECONDS

    def __init__(self, on_terminal: bool, as_json: bool, deadline: float | None) -> None:
        super().__init__(quiet=not on_terminal)
        self._shows_questions = not (on_terminal or as_json)
        self._deadline = deadline
        self._printed: set[tuple[str, str]] = set()

    def idle(self, view: RunView) -> None:
        super().idle(view)
        for key, question in view.questions.items() if self._shows_questions else ():
            if key not in self._printed:
                self._printed.add(key)
                print(_notice(question.asked_by, question.data, reply_to(view, question)), file=sys.stderr)
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError


def _notice(agent: str, question: dict[str, Any], reply: str) -> str:
    return with_reply(f"hocket: {agent} {question_text(question)}", reply, "; ")


def _watch(client: Client, made: dict[str, Any], display: HandoffDisplay, signals: SignalHandler) -> bool:
    """Wait for the result; False if the time is up first."""
    run = client.run(made["run"])
    view = steady_view(run["id"])
    view.number = made["number"] = run["number"]
    made["runs"] = view.processes
    if signals.on_terminal:
        client.notice = display.say
        if run["status"] not in ENDED:
            display.say(f"run {run['number']}: waiting for {strip_controls(str(made['agent']))}")
    record = made["handoff"]
    try:
        control = KeyboardControl(client, display, signals)
        watch(client, view, display, control, lambda event, root: closes(event, record) or ends_run(event, root))
    except TimeoutError:
        return False
    return True


def closes(event: Event, record: str) -> bool:
    """True for the event with which the hand-off has its result."""
    data = event["data"]
    return event["type"] == "task.changed" and data.get("handoff") == record and "status" in data


def _report(client: Client, made: dict[str, Any], is_over: bool, as_json: bool, signals: SignalHandler) -> int:
    record = _record(client, made, is_over)
    if as_json:
        access.write_json(record)
    if record["status"] not in ENDED:
        runs = {made["run"], *made["runs"]}
        asked = [one for one in client.request("GET", "/api/inbox") if one["run"] in runs]
        state = "waits for an answer" if asked else "is still running"
        print(f"hocket: {made['agent']} {state}", file=sys.stderr)
        _report_running(made)
        for one, reply in zip(asked, reply_commands(asked), strict=True):
            print(_notice(agent_name(str(one["agent"])), one, reply), file=sys.stderr)
        return access.EXIT_TIMED_OUT
    if record["status"] == "done":
        if not as_json:
            print_message(record["output"])
        return 0
    # To standard error, so that the reason is not taken for a final message.
    print(f"hocket: {made['agent']} {terminal_output(str(record['output']))}", file=sys.stderr)
    return signals.exit_code(record["status"], access.exit_code(record["status"], record.get("reason")))


def _record(client: Client, made: dict[str, Any], is_over: bool) -> Record:
    """The record; once its run has ended, in its final state."""
    path = f"/api/tasks/{quote(made['task'])}/handoffs/{quote(made['handoff'])}"
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        record: Record = client.request("GET", path)
        if not is_over or record["status"] in ENDED or time.monotonic() > deadline:
            return record
        time.sleep(0.05)


def print_message(text: str) -> None:
    """Print a final message: unchanged for a program, without control characters on a terminal."""
    if sys.stdout.isatty():
        access.print_result(text)
        return
    shown = text if not text or text.endswith("\n") else text + "\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(shown.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def _report_running(made: dict[str, Any]) -> None:
    name = made.get("number") or made["run"]
    with suppress(OSError):  # the stream may have been closed with the terminal
        print(f"hocket: run {name} continues; its result: hocket handoff --result {name}", file=sys.stderr, flush=True)
