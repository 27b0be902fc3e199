"""``inbox answer ask send resume``: questions of agents, messages to them, and continuing ended runs."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.question_prompt import details, headline, question_text, reply_commands
from hocket.cli.run import start_and_watch
from hocket.cli.usage import FLAG, JSON, PLAIN, QUIET, REF, SECONDS, SESSION, Argument, ArgumentError, Option, command
from hocket.client import ENDED, Client, quote
from hocket.errors import Conflict, Forbidden, NotFound
from hocket.views.event_text import answer_text, reply_command, wants_text
from hocket.views.run_list import asked_by
from hocket.views.text import duration, one_line

Event = dict[str, Any]
Run = dict[str, Any]
Question = dict[str, Any]

SETTLE_SECONDS = 2.0
"""A message that arrives while a turn ends may be answered by a turn of its own, which begins within this time."""
FIRST_TURN = 1
"""It answers the prompt of the run, even if a message was sent before it began."""
MIN_ID_CHARACTERS = 4
"""A shorter word is not looked up among the ids of answered questions."""
YES = {"allow": True, "always": True, "yes": True, "deny": False, "no": False}
NOT_IN_A_RUN = "only a run can ask: HOCKET_RUN and HOCKET_TOKEN are not set"
LIST_HINT = "list open questions: hocket inbox"


# --- The inbox ----------------------------------------------------------------------------------------------


@command(
    Option("-f", "--follow", kind=FLAG, help="Keep running and show new questions."),
    JSON,
    examples=("hocket inbox", "hocket inbox --follow", "hocket inbox --json"),
)
def inbox(follow: bool, as_json: bool) -> None:
    """List every open question of every run, the oldest first, each with the command that answers it.

    With --follow and --json the complete list is one line, written again whenever it changes.
    """
    client = access.connect(talk=not as_json)
    if follow:
        _follow(client, as_json)
        return
    questions = client.request("GET", "/api/inbox")
    if as_json:
        access.write_json(questions)
    elif questions:
        access.write("\n".join(f"{line}\n" for line in _blocks(questions, time.time())))
    else:
        print("No open questions.", file=sys.stderr)


def _follow(client: Client, as_json: bool) -> None:
    known: dict[tuple[str, str], Question] = {}
    for questions in client.inbox():
        now = {(one["run"], one["id"]): one for one in questions}
        if as_json:
            access.write_json(questions)
        else:
            blocks = dict(zip(now, _blocks(questions, time.time()), strict=True))
            for name in known.keys() - now.keys():
                access.write(f"{asked_by(known[name])}: question closed: {headline(known[name])}\n\n")
            access.write("".join(f"{blocks[name]}\n\n" for name in now if name not in known))
        sys.stdout.flush()
        known = now


def _blocks(questions: list[Question], now: float) -> list[str]:
    """For each question the agent, the question, its age, and the command that answers it."""
    blocks: list[str] = []
    for one, reply in zip(questions, reply_commands(questions), strict=True):
        asked_at = one.get("asked_at")
        age = f"asked {duration(max(0.0, now - asked_at))} ago" if asked_at else "asked earlier"
        blocks.append("\n".join([f"{asked_by(one)}  {age}", f"  ? {headline(one)}", *details(one), f"    {reply}"]))
    return blocks


# --- Answering ----------------------------------------------------------------------------------------------


@command(
    REF,
    Argument("words", "allow|always|deny|TEXT...", many=True),
    Option("--question", metavar="ID", help="Answer this question, if several are open."),
    Option("-m", "--message", metavar="TEXT", help="Send this message along to the agent."),
    JSON,
    examples=(
        "hocket answer 42 allow",
        'hocket answer 42 deny -m "Use the test database"',
        'hocket answer 42 "the second one"',
        "hocket answer q3f9 allow",
    ),
)
def answer(ref: str, words: tuple[str, ...], question: str | None, message: str | None, as_json: bool) -> None:
    """Answer a question of a run: allow or deny (or yes, no). A question that wants a text takes any text, or deny.
    Where the agent suggests a rule, "always" allows by that rule for the rest of its session.

    RUN is a run, a chain in which a run asks, or the id of a question or its beginning as listed by "hocket inbox".
    """
    client = access.connect(talk=not as_json)
    asked = _find_question(client, ref, question)
    # With its id, so that the answer cannot reach a question that was asked a moment later.
    body = {"question": asked["id"], **_reply_body(asked, " ".join(words), message)}
    given = {name: value for name, value in body.items() if value is not None}
    receipt = client.request("POST", f"/api/runs/{quote(asked['run'])}/answer", given)
    if as_json:
        access.write_json(receipt)
    else:
        access.write(f"{asked['number']}  {'allowed' if receipt['allow'] else 'denied'}\n")


def _find_question(client: Client, ref: str, question: str | None) -> Question:
    """The open question of a run, else the one with this id; an error for an answered one has its answer."""
    try:
        run = client.run(ref)
    except NotFound as unknown:
        asked: list[Question] = client.request("GET", "/api/inbox") if question is None else []
        if len(fitting := _with_id(asked, ref)) > 1:
            raise Conflict(f"{ref!r} matches {len(fitting)} open questions", _reply_hint(fitting)) from None
        if fitting:
            return fitting[0]
        if question is None and len(ref) >= MIN_ID_CHARACTERS and (given := _answered_question(client, ref)):
            raise _already_answered(given) from None
        raise NotFound(f"{unknown.message}, and no open question {ref!r}", LIST_HINT) from None
    questions: list[Question] = run["questions"]
    fitting = questions if question is None else _with_id(questions, question)
    if len(fitting) == 1:
        return fitting[0]
    name = f"run {run['number']} has"
    if fitting:
        raise Conflict(f"{name} {len(fitting)} open questions; choose one", _reply_hint(fitting))
    given = _answered_question(client, question or "", run)
    if given is not None and question:
        raise _already_answered(given)
    if questions:
        raise Conflict(f"{name} no open question {question!r}", _reply_hint(questions))
    if run["origin"] == "observed" and run["status"] not in ENDED:
        where = f"answer where it was started (process {run['pid']})"
        raise Conflict(f"{name} questions that Hocket cannot see: it did not start it", where)
    ended = f"{name} ended, and has" if run["status"] in ENDED else name
    last = f"; the last one was {_answer_of(given)}" if given is not None else ""
    raise Conflict(f"{ended} no open question{last}", LIST_HINT)


def _with_id(questions: list[Question], beginning: str) -> list[Question]:
    """The question with this id, else those whose ids begin like this."""
    exact = [one for one in questions if one["id"] == beginning]
    return exact or [one for one in questions if one["id"].startswith(beginning)]


def _answered_question(client: Client, beginning: str, run: Run | None = None) -> Question | None:
    """The last answered question whose id begins like this, of one run or of any."""
    where = f"&run={quote(run['id'])}" if run is not None else ""
    found: list[Question] = client.request("GET", f"/api/inbox?answered={quote(beginning)}{where}")
    return next((one for one in found if one.get("answered")), None)  # an older server lists open ones


def _already_answered(given: Question) -> Conflict:
    return Conflict(f"question {given['id']} of run {given['number']} has already been {_answer_of(given)}")


def _answer_of(given: Question) -> str:
    return answer_text({"allow": given["allow"], "by": given["by"], "text": given["answer"]}, given)


def _reply_hint(questions: list[Question]) -> str:
    replies = zip(questions, reply_commands(questions), strict=True)
    return "open questions" + "".join(f"\n  ? {question_text(one)}\n    {reply}" for one, reply in replies)


def _reply_body(question: Question, text: str, message: str | None) -> dict[str, Any]:
    """The body of the answer. Permission takes a clear yes: no other text allows anything."""
    if wants_text(question) and text.lower() != "deny":
        if message is not None:
            raise ArgumentError("-m is for allow and deny; here the text itself is the answer")
        return {"allow": True, "text": text}
    allow = YES.get(text.lower())
    if allow is None:
        raise ArgumentError(f"answer allow or deny, not {text!r}: the agent {question_text(question)}")
    return {"allow": allow, "text": message, "always": text.lower() == "always" or None}


# --- Asking -------------------------------------------------------------------------------------------------


@command(
    Argument("words", "TEXT...", many=True),
    Option("--option", name="options", metavar="TEXT", many=True, help="Offer this answer; may be repeated."),
    Option("--timeout", kind=SECONDS, metavar="TIME", help="Stop waiting after this time; the question stays open."),
    JSON,
    examples=(
        'hocket ask "Which database is meant?"',
        'hocket ask "Deploy now?" --option yes --option "after lunch" --timeout 10m',
    ),
)
def ask(words: tuple[str, ...], options: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Ask a person a question, from inside a run, and print the answer alone.

    Exits with 0 when it was answered, 1 when it was denied, 3 when the time is up, 2 outside a run.
    """
    mine = config.caller()
    if mine.run is None or mine.token is None:
        raise Conflict(NOT_IN_A_RUN, "start the program with hocket spawn or hocket run")
    text = access.pick_prompt("-", None, "") if words == ("-",) else " ".join(words)
    if not (text or "").strip():
        raise ArgumentError("the question is empty")
    client = access.connect(talk=not as_json)
    since = client.run(mine.run)["seq"]
    path = f"/api/runs/{quote(mine.run)}/questions"
    asked = client.request("POST", path, {"text": text, "options": list(options)})
    deadline = None if timeout is None else time.monotonic() + timeout
    access.wait_for_answer(client, asked["run"], asked["id"], since, in_turn=True, deadline=deadline)
    state = client.request("GET", f"{path}/{quote(asked['id'])}")
    said = state["answer"]
    if as_json:
        access.write_json(state)
    elif not state["answered"]:
        left = "still open" if state["open"] else "closed"
        print(f"hocket: question {state['id']} has no answer; it is {left}", file=sys.stderr)
    elif state["allow"]:
        access.print_result(said or "yes")
    else:
        print(f"hocket: denied{f': {one_line(said)}' if said else ''}", file=sys.stderr)
    return access.EXIT_TIMED_OUT if not state["answered"] else 0 if state["allow"] else 1


# --- Sending ------------------------------------------------------------------------------------------------


@command(
    REF,
    Argument("words", "[TEXT...|-]", many=True, required=False),
    Option("--interrupt", kind=FLAG, help="Interrupt the current turn first; without a text, only that."),
    Option("--wait", kind=FLAG, help="Wait for the turn that answers and print its result."),
    Option(
        "--timeout", kind=SECONDS, metavar="TIME", help="With --wait: stop waiting after this time; the run continues."
    ),
    JSON,
    examples=(
        'hocket send 42 "Now write the tests"',
        "git diff | hocket send 42 - --wait",
        "hocket send 42 --interrupt",
    ),
)
def send(ref: str, words: tuple[str, ...], interrupt: bool, wait: bool, timeout: float | None, as_json: bool) -> int:
    """Send a message to a session or to a running agent. "-" reads standard input.

    With --wait it exits with 0, with 1 when the turn failed, 3 when the time is up, 4 when the agent asks a question.
    """
    text = access.pick_prompt("-", None, "") if words == ("-",) else " ".join(words) or None
    if text is None and not interrupt:
        raise ArgumentError("the message is empty: give a text, or --interrupt")
    if wait and text is None:
        raise ArgumentError("--wait needs a message to wait for the answer to")
    client = access.connect(talk=not as_json)
    try:
        run = client.run(ref)
    except Forbidden:
        if wait or interrupt:
            raise
        run = {"id": ref, "number": ref}  # The run above the caller, which only takes messages from it.
    body = {"text": text, "interrupt": interrupt or None}
    given = {name: value for name, value in body.items() if value is not None}
    taken = client.request("POST", f"/api/runs/{quote(run['id'])}/messages", given)
    if wait:
        return _wait(client, run, taken, interrupt, timeout, as_json)
    access.write_json(taken) if as_json else print(f"sent to run {run['number']}", file=sys.stderr)
    return 0


class MessageExchange:
    """Finds the event that answers a message among the events since it was sent."""

    def __init__(self, taken: dict[str, Any], interrupting: bool = False) -> None:
        self._run = taken["run"]
        self._ahead = 0 if interrupting else taken["ahead"]
        """How many messages are answered before it."""
        self._interrupting = interrupting
        self._begun: set[Any] = set()
        self.outcome: Event | None = None
        """The likely answer: a ``turn.ended``, a ``question``, or the ``run.ended``."""

    def add(self, event: Event) -> bool:
        """Take one more event; True once the outcome is certain."""
        kind, data = event["type"], event["data"]
        if event["run"] != self._run:
            return False
        if kind in ("question", "run.ended"):
            self.outcome = event
            return True
        if kind == "turn.started":
            if data.get("turn") != FIRST_TURN:
                self._begun.add(data.get("turn"))
            self.outcome = None
        elif kind == "turn.ended":
            # A turn that began after the message, was not started by another event and answers no earlier message is
            # the answer. Any other turn is the answer only if no further turn begins: then it took the message into
            # account.
            is_new = data.get("turn") in self._begun
            if not data.get("origin") and data.get("turn") != FIRST_TURN:
                if is_new and not self._ahead:
                    self.outcome = event
                    return True
                self._ahead = max(0, self._ahead - 1)
            if data.get("idle") and (is_new or not self._interrupting):
                self.outcome = event
        return False


def _wait(
    client: Client, run: Run, taken: dict[str, Any], interrupting: bool, timeout: float | None, as_json: bool
) -> int:
    for question in run["questions"]:
        return _report_question(run, taken, question, as_json)
    outcome = _follow_exchange(client, taken, MessageExchange(taken, interrupting), timeout)
    if outcome is None:
        print(f"hocket: run {run['number']} has not answered yet; it continues", file=sys.stderr)
        return access.EXIT_TIMED_OUT
    data = outcome["data"]
    if outcome["type"] == "question":
        return _report_question(run, taken, data, as_json)
    access.write_json({**taken, **data}) if as_json else access.print_result(data.get("result"))
    if outcome["type"] == "run.ended":
        return access.exit_code(data["status"], data.get("reason"))
    if not data.get("is_error"):
        return 0
    if not as_json:
        why = data.get("error") or data.get("subtype")
        detail = f": {one_line(str(why))}" if why and why != data.get("result") else ""
        print(f"hocket: the turn failed{detail}", file=sys.stderr)
    return 1


def _follow_exchange(
    client: Client, taken: dict[str, Any], exchange: MessageExchange, timeout: float | None
) -> Event | None:
    """The outcome of an exchange; None if the time is up first."""
    deadline = None if timeout is None else time.monotonic() + timeout
    since: float | None = None
    for event in client.follow_ticking(taken["run"], access.TICK_SECONDS, after=taken["after"]):
        now = time.monotonic()
        if event is not None and exchange.add(event):
            return exchange.outcome
        since = (since or now) if exchange.outcome is not None else None
        if since is not None and now - since > SETTLE_SECONDS:
            return exchange.outcome
        if deadline is not None and now > deadline:
            return None
    return exchange.outcome


def _report_question(run: Run, taken: dict[str, Any], question: dict[str, Any], as_json: bool) -> int:
    if as_json:
        access.write_json({**taken, "question": question})
    else:
        several = len(run["questions"]) > 1
        print(f"? {question_text(question)}\n    {reply_command(question, run['number'], several)}", file=sys.stderr)
    return access.EXIT_ASKS


# --- Resuming -----------------------------------------------------------------------------------------------


@command(
    REF,
    Option("-p", "--prompt", metavar="TEXT", help='What to do next; "-" reads standard input.'),
    Option("--from", name="start_at", metavar="STEP", help="Begin a chain with this step, by number or agent."),
    SESSION,
    Option("--detach", kind=FLAG, help="Print the new run's number and exit; the run continues."),
    Option("-v", "--verbose", kind=FLAG, help="Show all output, and the thinking of agents."),
    QUIET,
    PLAIN,
    JSON,
    examples=(
        'hocket resume 42 -p "Now write the tests"',
        "hocket resume 42 --from builder",
        "hocket resume 42 --session --detach",
    ),
)
def resume(ref: str, prompt: str | None, **options: Any) -> int:
    """Continue an ended run in a new run, which is watched like that of "hocket run".

    An agent continues its session, a chain continues with its first incomplete step, as it was started. A chain of a
    single agent without a loop or a gate counts as that agent. Keys and other secrets are taken from your environment.
    """
    client = access.connect(talk=not options["as_json"] and not options["quiet"])
    body = {
        "prompt": access.pick_prompt(prompt, None, ""),
        "session": options["session"] or None,
        "from": options["start_at"],
        "env": access.environment(client.run(ref)["cwd"]),
    }
    given = {name: value for name, value in body.items() if value is not None}
    return start_and_watch(f"/api/runs/{quote(ref)}/resume", given, options)
