"""``send answer resume``: talking to agents. On the path of scripts that wait for a turn, so it loads little."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket.cli import access
from hocket.cli.asking import reply_line, reply_lines, wants_words, wish
from hocket.cli.format import one_line
from hocket.cli.usage import FLAG, JSON, PLAIN, QUIET, REF, SECONDS, SESSION, Argument, ArgumentError, Option, command
from hocket.cli.words import WAYS
from hocket.client import ENDED, Client, quote
from hocket.errors import Conflict, NotFound

Event = dict[str, Any]
Run = dict[str, Any]

TICK_SECONDS = 0.25
SETTLE_SECONDS = 2.0
"""A message that arrives while a turn ends may be answered by a turn of its own, which begins within this time."""
FIRST_TURN = 1
"""It answers what the run was started with, also where a message was sent before it began."""
ID_LETTERS = 4
"""With fewer than that a word is no beginning of a question's id, where all that were ever asked are looked through."""
YES = {"allow": True, "always": True, "yes": True, "deny": False, "no": False}


@command(
    REF,
    Argument("words", "[TEXT...|-]", many=True, required=False),
    Option("--interrupt", kind=FLAG, help="End what it is doing first; without a text, only that."),
    Option("--wait", kind=FLAG, help="Wait for the turn that answers and print its result alone."),
    Option("--timeout", kind=SECONDS, metavar="TIME", help="With --wait: give up; the run goes on."),
    JSON,
    examples=(
        'hocket send 42 "Now write the tests"',
        "git diff | hocket send 42 - --wait",
        "hocket send 42 --interrupt",
    ),
)
def send(ref: str, words: tuple[str, ...], interrupt: bool, wait: bool, timeout: float | None, as_json: bool) -> int:
    """Say something to a run that listens: a session, or an agent at work. "-" reads standard input.

    With --wait it ends with 0, with 1 when the turn failed, with 3 when time is up, with 4 when the agent asks.
    """
    text = access.pick_prompt("-", None, "") if words == ("-",) else " ".join(words) or None
    if text is None and not interrupt:
        raise ArgumentError("nothing to say: give a text, or --interrupt")
    if wait and text is None:
        raise ArgumentError("--wait needs a text to wait for the answer to")
    client = access.connect(talk=not as_json)
    run = client.run(ref)
    body = {"text": text, "interrupt": interrupt or None}
    given = {name: value for name, value in body.items() if value is not None}
    taken = client.request("POST", f"/api/runs/{quote(run['id'])}/messages", given)
    if wait:
        return _wait(client, run, taken, Exchange(taken, interrupt), timeout, as_json)
    access.write_json(taken) if as_json else print(f"run {run['number']} will get it", file=sys.stderr)
    return 0


class Exchange:
    """Finds the event that answers a message among all that happens from the moment it is sent."""

    def __init__(self, taken: dict[str, Any], interrupting: bool = False) -> None:
        self._run = taken["run"]
        self._id = taken["id"]
        self._ahead = 0 if interrupting else taken.get("ahead", 0)
        """Messages that are answered before it."""
        self._interrupting = interrupting
        self._sent = False
        self._begun: set[Any] = set()
        self.outcome: Event | None = None
        """The answer as far as can be told: a ``turn.ended``, a ``question``, or the ``run.ended``."""

    def add(self, event: Event) -> bool:
        """One more event; whether the outcome is certain now."""
        kind, data = event["type"], event["data"]
        if event["run"] != self._run:
            return False
        if kind == "input" and data.get("id") == self._id and data.get("kind") == "message":
            self._sent = True
        elif kind in ("question", "run.ended"):
            self.outcome = event
            return True
        elif not self._sent:
            return False
        elif kind == "turn.started":
            if data.get("turn") != FIRST_TURN:
                self._begun.add(data.get("turn"))
            self.outcome = None
        elif kind == "turn.ended":
            return self._turn_ended(event)
        return False

    def _turn_ended(self, event: Event) -> bool:
        """A turn that began after the message, by nobody else's doing and for no message before it, is the answer. Any
        other one, the last for now, is the answer only if no further turn begins: it took the message into account."""
        data = event["data"]
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
    client: Client, run: Run, taken: dict[str, Any], exchange: Exchange, timeout: float | None, as_json: bool
) -> int:
    for question in run["questions"]:
        return _tell_question(run, taken, question, as_json)
    outcome = follow(client, run, exchange, timeout)
    if outcome is None:
        print(f"hocket: run {run['number']} has not answered yet; it goes on", file=sys.stderr)
        return access.EXIT_TIMED_OUT
    data = outcome["data"]
    if outcome["type"] == "question":
        return _tell_question(run, taken, data, as_json)
    access.write_json({**taken, **data}) if as_json else access.print_result(data.get("result"))
    if outcome["type"] == "run.ended":
        return access.exit_code(data["status"], data.get("reason"))
    if not data.get("is_error"):
        return 0
    if not as_json:
        why = data.get("error") or data.get("subtype")
        told = f": {one_line(str(why))}" if why and why != data.get("result") else ""
        print(f"hocket: the turn failed{told}", file=sys.stderr)
    return 1


def follow(client: Client, run: Run, exchange: Exchange, timeout: float | None) -> Event | None:
    """The outcome of an exchange; None when time is up first."""
    deadline = None if timeout is None else time.monotonic() + timeout
    since: float | None = None
    for event in client.follow_ticking(run["id"], TICK_SECONDS, after=run["seq"]):
        now = time.monotonic()
        if event is not None and exchange.add(event):
            return exchange.outcome
        since = (since or now) if exchange.outcome is not None else None
        if since is not None and now - since > SETTLE_SECONDS:
            return exchange.outcome
        if deadline is not None and now > deadline:
            return None
    return exchange.outcome


def _tell_question(run: Run, taken: dict[str, Any], question: dict[str, Any], as_json: bool) -> int:
    """It waits for somebody, and whoever asked for the turn should know what for."""
    if as_json:
        access.write_json({**taken, "question": question})
    else:
        several = len(run["questions"]) > 1
        print(f"? {wish(question)}\n    {reply_line(question, run['number'], several)}", file=sys.stderr)
    return access.EXIT_ASKS


@command(
    REF,
    Argument("words", "allow|always|deny|TEXT...", many=True),
    Option("--question", metavar="ID", help="Which question, where several are open."),
    Option("-m", "--message", metavar="TEXT", help="Why not, or what to mind; the agent reads it."),
    JSON,
    examples=(
        "hocket answer 42 allow",
        'hocket answer 42 deny -m "Use the test database"',
        'hocket answer 42 "the second one"',
        "hocket answer q3f9 allow",
    ),
)
def answer(ref: str, words: tuple[str, ...], question: str | None, message: str | None, as_json: bool) -> None:
    """Answer what a run asks: allow or deny (or yes, no). A question that wants words takes any, or deny. Where the
    agent suggests a rule, always allows by it from now on, in its session.

    By the name of a chain too: then whoever asks in it is answered. Or by the question's own id, as "hocket inbox" has
    it, or the beginning of that.
    """
    client = access.connect(talk=not as_json)
    asked = _asked(client, ref, question)
    # With its id, or words that fit this question would answer one that was asked a moment later.
    body = {"question": asked["id"], **_reply(asked, " ".join(words), message)}
    given = {name: value for name, value in body.items() if value is not None}
    told = client.request("POST", f"/api/runs/{quote(asked['run'])}/answer", given)
    if as_json:
        access.write_json(told)
    else:
        access.write(f"{asked['number']}  {'allowed' if told['allow'] else 'denied'}\n")


def _asked(client: Client, ref: str, question: str | None) -> dict[str, Any]:
    """The question that is meant: by who asks it, else by its own id."""
    try:
        run = client.run(ref)
    except NotFound as unknown:
        if question is None and (found := _by_its_id(client, ref)) is not None:
            return found
        if question is None and len(ref) >= ID_LETTERS and (given := _answered(client, ref)) is not None:
            raise _too_late(given) from None
        raise NotFound(f"{unknown.message}, and no open question", "`hocket inbox` lists what is asked") from None
    return _meant(client, run, question)


def _by_its_id(client: Client, ref: str) -> dict[str, Any] | None:
    asked: list[dict[str, Any]] = client.request("GET", "/api/inbox")
    fitting = [one for one in asked if one["id"] == ref] or [one for one in asked if one["id"].startswith(ref)]
    if len(fitting) > 1:
        raise Conflict(f"{ref!r} fits {len(fitting)} open questions", _listed(fitting))
    return fitting[0] if fitting else None


def _answered(client: Client, beginning: str, run: Run | None = None) -> dict[str, Any] | None:
    """The last question that was answered and whose id begins so, of a run or of any."""
    where = f"&run={quote(run['id'])}" if run is not None else ""
    found: list[dict[str, Any]] = client.request("GET", f"/api/inbox?answered={quote(beginning)}{where}")
    return next((one for one in found if one.get("answered")), None)  # an older server lists what is open


def _too_late(given: dict[str, Any]) -> Conflict:
    return Conflict(f"question {given['id']} of run {given['number']} has been answered already: {_said(given)}")


def _said(given: dict[str, Any]) -> str | None:
    """Who answered, and what."""
    return WAYS["answer"].words({"allow": given["allow"], "by": given["by"], "text": given["answer"]})


def _meant(client: Client, run: Run, wanted: str | None) -> dict[str, Any]:
    """The one open question that is meant; who comes too late for it is told who was first, and what they said."""
    questions: list[dict[str, Any]] = run["questions"]
    fitting = [one for one in questions if wanted is None or one["id"].startswith(wanted)]
    fitting = [one for one in fitting if one["id"] == wanted] or fitting
    if len(fitting) == 1:
        return fitting[0]
    name = f"run {run['number']} has"
    if fitting:
        raise Conflict(f"{name} {len(fitting)} open questions; say which one", _listed(fitting))
    given = _answered(client, wanted or "", run)
    if given is not None and wanted:
        raise _too_late(given)
    if questions:
        raise Conflict(f"{name} no open question {wanted!r}", _listed(questions))
    ended = f"{name} ended, and has" if run["status"] in ENDED else name
    last = f"; the last one was {_said(given)}" if given is not None else ""
    raise Conflict(f"{ended} no open question{last}", "`hocket inbox` lists what is asked")


def _listed(questions: list[dict[str, Any]]) -> str:
    replies = zip(questions, reply_lines(questions), strict=True)
    return "what is asked, and how to answer it" + "".join(f"\n  ? {wish(one)}\n    {reply}" for one, reply in replies)


def _reply(question: dict[str, Any], said: str, message: str | None) -> dict[str, Any]:
    """What the words mean. Permission is given by a clear yes alone, never by words that happen to be none."""
    if wants_words(question) and said.lower() != "deny":
        if message is not None:
            raise ArgumentError("the words are the answer; -m goes with allow and deny")
        return {"allow": True, "text": said}
    allow = YES.get(said.lower())
    if allow is None:
        raise ArgumentError(f"say allow or deny, not {said!r}: it {wish(question)}")
    return {"allow": allow, "text": message, "always": said.lower() == "always" or None}


@command(
    REF,
    Option("-p", "--prompt", metavar="TEXT", help='What to do now; "-" reads standard input.'),
    Option("--from", name="start_at", metavar="STEP", help="Of a chain: begin with this step, by number or agent."),
    SESSION,
    Option("--detach", kind=FLAG, help="Print the new run's number and leave it to the server."),
    Option("-v", "--verbose", kind=FLAG, help="Show all it says, and what it thinks."),
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
    """Go on, in a new run, where an ended one stopped. Watched and ended like "hocket run".

    An agent goes on with its session, a chain with its first step that is not complete, as it was started. A chain of
    one agent that neither loops nor has a gate is that agent. Keys and other secret variables are those of your
    environment: an ended run has none.
    """
    from hocket.cli.run import start_and_watch

    client = access.connect(talk=not options["as_json"] and not options["quiet"])
    body = {"prompt": access.pick_prompt(prompt, None, ""), "session": options["session"] or None}
    body["from"] = options["start_at"]
    given: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
    given["env"] = access.environment(client.run(ref)["cwd"])
    return start_and_watch(f"/api/runs/{quote(ref)}/resume", given, options)
