"""``hocket handoff``: give a task to an agent, wait for it, print its final message alone.

Agents call this from inside their own tools, so that whoever ends the call never ends the work: a signal detaches.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from hocket import config
from hocket.cli import access
from hocket.cli.format import harmless, one_line, uttered
from hocket.cli.usage import CWD, FLAG, JSON, SECONDS, Argument, ArgumentError, Option, command
from hocket.cli.watch import Hands, Leave, Signals
from hocket.client import ENDED, Client, quote
from hocket.errors import NotFound, PromptError

if TYPE_CHECKING:
    from hocket.cli.progress import Progress
    from hocket.cli.view import View

Event = dict[str, Any]
Record = dict[str, Any]

DEFAULT_WAIT = 600.0
TICK_SECONDS = 0.25
SETTLE_SECONDS = 5.0


class Detaching(Signals):
    """Signals that end this command and never the work. Only Ctrl-C on a terminal may ask for more than that."""

    def __init__(self, client: Client, on_terminal: bool) -> None:
        super().__init__(client, on_terminal)
        self._on_terminal = on_terminal
        self._leaving: int | None = None
        self._known = False

    def watching(self, run: str) -> None:
        self._known = True
        if self._leaving is not None:
            raise Leave(self._leaving)
        super().watching(run)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._on_terminal and number == signal.SIGINT:
            super()._on_signal(number, frame)
        elif self._known or self._leaving is not None:
            raise Leave(128 + number)
        else:
            # The request may be under way. Once it is answered, it can be said which run goes on.
            self._leaving = 128 + number


@command(
    Argument("words", "[TASK] AGENT PROMPT|-", many=True, required=False),
    Option("--timeout", kind=SECONDS, metavar="TIME", default=DEFAULT_WAIT, help="Wait no longer; 0 for no limit."),
    Option("--detach", kind=FLAG, help="Print the run's number and come back at once."),
    Option("--result", metavar="RUN", help="Wait for a hand-off that was made before, and print its result again."),
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
    """Hand a task to an agent, wait for it, and print its final message and nothing else. "-" reads the prompt
    from standard input.

    Without TASK it is the one in HOCKET_TASK; without that one is made of the prompt's first line. Ends with 0 when
    the agent is done, 1 when it failed, 2 when it was refused, 3 when it still is at work after 10 minutes (--timeout)
    and goes on, 4 when nobody answers it, 5 when its budget is used up.
    """
    deadline = time.monotonic() + timeout if timeout else None
    as_json = options["as_json"]
    client = access.connect(talk=not as_json)
    on_terminal = not as_json and config.caller().run is None and config.interactive(sys.stderr.isatty())
    signals = Detaching(client, on_terminal)
    if not options["detach"]:
        signals.install()
    made: dict[str, Any] = _known(client, words, result) if result else _make(client, words, options["cwd"])
    if options["detach"]:
        return _tell_made(client, made, as_json)
    try:
        signals.watching(made["run"])
        is_over = _watched(client, made, deadline, signals, Teller(on_terminal, as_json))
        return _report(client, made, is_over, as_json, signals)
    except Leave as leave:
        _tell_whereabouts(made)
        return leave.code


# --- Making it ----------------------------------------------------------------------------------------------


def _make(client: Client, words: tuple[str, ...], cwd: str | None) -> dict[str, Any]:
    """Hand the task over: its id, that of the record, and that of the run."""
    task, agent, given = _placed(words)
    place = access.directory(cwd)
    prompt = _text(given, place)
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


def _placed(words: tuple[str, ...]) -> tuple[str | None, str, str]:
    """Task, agent and prompt."""
    if len(words) not in (2, 3):
        raise ArgumentError("give [TASK] AGENT PROMPT, with the prompt in quotes")
    task = words[0] if len(words) == 3 else None
    if not all(words[:-1]):
        raise ArgumentError("the task and the agent have no name; inside an agent the task is in HOCKET_TASK")
    return task, words[-2], words[-1]


def _text(given: str, place: str) -> str:
    """The prompt itself, which has to say something."""
    prompt = access.pick_prompt(given, None, place) or ""
    if not prompt.strip():
        raise PromptError("the prompt is empty")
    return prompt


def _known(client: Client, words: tuple[str, ...], ref: str) -> dict[str, Any]:
    """A hand-off that was made before, by its run."""
    if words:
        raise ArgumentError("--result takes a run and nothing else")
    run = client.run(ref)
    if run.get("task") is None:
        raise NotFound(f"run {run['number']} is no hand-off", f"its result: hocket wait {run['number']}")
    record = client.request("GET", f"/api/tasks/{quote(run['task'])}/handoffs/{quote(run['id'])}")
    return {"task": run["task"], "handoff": record["id"], "run": run["id"], "agent": run["agent"]}


def _tell_made(client: Client, made: dict[str, Any], as_json: bool) -> int:
    if as_json:
        access.write_json({name: made[name] for name in ("task", "handoff", "run")})
    else:
        access.write(f"run {client.run(made['run'])['number']}\n")
    return 0


# --- Waiting for it -----------------------------------------------------------------------------------------


class Teller:
    """What is said while it waits: all that happens on a terminal, elsewhere what waits for somebody and no more.

    Questions are told from the moment on at which nothing of the past is left to read: many have their answers.
    """

    def __init__(self, on_terminal: bool, silent: bool) -> None:
        self.on_terminal = on_terminal
        self._silent = silent or on_terminal  # where all is shown, questions are
        self._told: set[tuple[str, str]] = set()
        self.since = 0
        """The number of the last event that was there before."""

    def look(self, progress: Progress, event: Event | None) -> None:
        """Tell of every open question once, with the line that answers it.

        Not at once: where nobody is there to answer, the refusal is the event that comes next.
        """
        if self._silent or (event is not None and (event["seq"] <= self.since or event["type"] == "question")):
            return
        for key, asked in progress.questions.items():
            if key not in self._told:
                self._told.add(key)
                print(_asks(asked.who, asked.data, progress.reply_line(asked)), file=sys.stderr)


def _asks(who: str, question: dict[str, Any], reply: str) -> str:
    from hocket.cli.asking import wish, with_reply

    return with_reply(f"hocket: {who} {wish(question)}", reply, "; ")


def _watched(client: Client, made: dict[str, Any], deadline: float | None, signals: Signals, teller: Teller) -> bool:
    """Whether the record was closed before the time was up. An agent that calls this hears the result alone."""
    from hocket.cli.plain import PlainView
    from hocket.cli.progress import Progress

    run = client.run(made["run"])
    progress = Progress(run["id"])
    progress.number = made["number"] = run["number"]
    made["runs"] = progress.leaves
    teller.since = run["seq"]
    view = PlainView(quiet=not teller.on_terminal)
    if teller.on_terminal:
        client.notice = view.say
        if run["status"] not in ENDED:
            view.say(f"run {run['number']}: waiting for {harmless(str(made['agent']))}")
    return _follow(client, progress, view, teller, made["handoff"], deadline, signals)


def _follow(
    client: Client,
    progress: Progress,
    view: View,
    teller: Teller,
    record: str,
    deadline: float | None,
    signals: Signals,
) -> bool:
    with view, Hands(client, view, signals) as hands:
        for event in client.follow_ticking(progress.root, TICK_SECONDS):
            if event is None:
                view.idle(progress)
            else:
                progress.add(event)
                view.show(progress, event)
                if closes(event, record):
                    return True
            teller.look(progress, event)
            hands.look(progress)
            if deadline is not None and time.monotonic() > deadline:
                return False
    return True


def closes(event: Event, record: str) -> bool:
    """Whether this is the moment at which the record has its result."""
    data = event["data"]
    return event["type"] == "task.changed" and data.get("handoff") == record and "status" in data


def _report(client: Client, made: dict[str, Any], is_over: bool, as_json: bool, signals: Signals) -> int:
    record = _record(client, made, is_over)
    if as_json:
        access.write_json(record)
    if record["status"] not in ENDED:
        asked = _open_questions(client, made)
        state = "waits for an answer" if asked else "is still at work"
        print(f"hocket: {made['agent']} {state}", file=sys.stderr)
        _tell_whereabouts(made)
        for line in asked:
            print(line, file=sys.stderr)
        return access.EXIT_TIMED_OUT
    if record["status"] == "done":
        if not as_json:
            give(record["output"])
        return 0
    # The reason is talk: whoever reads standard output alone must not take it for a final message.
    print(f"hocket: {made['agent']} {uttered(str(record['output']))}", file=sys.stderr)
    return signals.exit_code(record["status"], access.exit_code(record["status"], record.get("reason")))


def _open_questions(client: Client, made: dict[str, Any]) -> list[str]:
    """What it or anybody below it waits for, with the line that answers it."""
    from hocket.cli.asking import reply_lines

    asked = [one for one in client.request("GET", "/api/inbox") if one["run"] in {made["run"], *made["runs"]}]
    return [
        _asks(one_line(str(one["agent"])), one, reply) for one, reply in zip(asked, reply_lines(asked), strict=True)
    ]


def _record(client: Client, made: dict[str, Any], is_over: bool) -> Record:
    """The record as it stands; once its run is over, as it was closed."""
    path = f"/api/tasks/{quote(made['task'])}/handoffs/{quote(made['handoff'])}"
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        record: Record = client.request("GET", path)
        if not is_over or record["status"] in ENDED or time.monotonic() > deadline:
            return record
        time.sleep(0.05)


def give(text: str) -> None:
    """A final message: as it is for a program, without anything that a terminal would obey for a person."""
    if sys.stdout.isatty():
        access.print_result(text)
        return
    shown = text if not text or text.endswith("\n") else text + "\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(shown.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def _tell_whereabouts(made: dict[str, Any]) -> None:
    """It goes on, and the result is there whenever somebody asks."""
    from contextlib import suppress

    name = made.get("number") or made["run"]
    with suppress(OSError):  # whoever ended this may have closed the stream as well
        print(f"hocket: run {name} goes on; its result: hocket handoff --result {name}", file=sys.stderr, flush=True)
