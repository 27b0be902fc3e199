"""``inbox ask``: what agents want to know of people, seen from both sides. Answering is ``talk``'s."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.asking import headline, reply_lines
from hocket.cli.format import duration, one_line
from hocket.cli.usage import FLAG, JSON, SECONDS, Argument, ArgumentError, Option, command
from hocket.client import Client, quote
from hocket.errors import Conflict

Question = dict[str, Any]

TICK_SECONDS = 0.25
ASKED_OUTSIDE = "only a run asks: HOCKET_RUN and HOCKET_TOKEN say which one, and are not set here"


@command(
    Option("-f", "--follow", kind=FLAG, help="Stay, and show what is asked from now on."),
    JSON,
    examples=("hocket inbox", "hocket inbox --follow", "hocket inbox --json"),
)
def inbox(follow: bool, as_json: bool) -> None:
    """List every open question of every run, the oldest first, each with the command that answers it.

    With --follow and --json the whole list is one line, written again whenever it is another.
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
        print("Nobody asks anything.", file=sys.stderr)


def _follow(client: Client, as_json: bool) -> None:
    known: dict[tuple[str, str], Question] = {}
    for questions in client.inbox():
        now = {(one["run"], one["id"]): one for one in questions}
        if as_json:
            access.write_json(questions)
        else:
            blocks = dict(zip(now, _blocks(questions, time.time()), strict=True))
            for name in known.keys() - now.keys():
                access.write(f"{_who(known[name])} asks no more: {headline(known[name])}\n\n")
            access.write("".join(f"{blocks[name]}\n\n" for name in now if name not in known))
        sys.stdout.flush()
        known = now


def _blocks(questions: list[Question], now: float) -> list[str]:
    """For each question who asks, what, since when, and what to type."""
    from hocket.cli.runs import details

    return [
        "\n".join([f"{_who(one)}  {_since(one, now)}", f"  ? {headline(one)}", *details(one), f"    {reply}"])
        for one, reply in zip(questions, reply_lines(questions), strict=True)
    ]


def _who(question: Question) -> str:
    """``42 builder in shop``; an agent's own helper is named behind it."""
    agent = one_line(str(question.get("agent") or "?"))
    helper = f"/{one_line(str(question['helper']))}" if question.get("helper") else ""
    place = str(question.get("cwd") or "").rstrip("/").rpartition("/")[2]
    return f"{question['number']} {agent}{helper}" + (f" in {one_line(place)}" if place else "")


def _since(question: Question, now: float) -> str:
    asked_at = question.get("asked_at")
    return f"asked {duration(max(0.0, now - asked_at))} ago" if asked_at else "asked a while ago"


@command(
    Argument("words", "TEXT...", many=True),
    Option("--option", name="options", metavar="TEXT", many=True, help="One of the answers to choose from."),
    Option("--timeout", kind=SECONDS, metavar="TIME", help="Wait no longer; the question stays open."),
    JSON,
    examples=(
        'hocket ask "Which database is meant?"',
        'hocket ask "Deploy now?" --option yes --option "after lunch" --timeout 10m',
    ),
)
def ask(words: tuple[str, ...], options: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Ask people something, from inside a run, and print the answer alone.

    Ends with 0 when somebody answered, 1 when they refused, 3 when time is up, 2 outside of a run.
    """
    mine = config.caller()
    if mine.run is None or mine.token is None:
        raise Conflict(ASKED_OUTSIDE, "start the program with hocket: `hocket spawn` or `hocket run`")
    text = access.pick_prompt("-", None, "") if words == ("-",) else " ".join(words)
    if not (text or "").strip():
        raise ArgumentError("nothing to ask")
    client = access.connect(talk=not as_json)
    since = client.run(mine.run)["seq"]
    path = f"/api/runs/{quote(mine.run)}/questions"
    asked = client.request("POST", path, {"text": text, "options": list(options)})
    state = _answered(client, f"{path}/{quote(asked['id'])}", asked, since, timeout)
    if as_json:
        access.write_json(state)
    return _tell(state, as_json)


def _answered(client: Client, path: str, asked: dict[str, str], since: int, timeout: float | None) -> dict[str, Any]:
    """The question as it is once it is answered, or when time is up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for event in client.follow_ticking(asked["run"], TICK_SECONDS, after=since):
        if event is not None and event["run"] == asked["run"] and _settles(event, asked["id"]):
            break
        if deadline is not None and time.monotonic() > deadline:
            break
    state: dict[str, Any] = client.request("GET", path)
    return state


def _settles(event: dict[str, Any], question: str) -> bool:
    """Its answer; or the end of the turn that it was asked in, after which nobody is to answer any more."""
    return event["type"] == "turn.ended" or bool(event["type"] == "answer" and event["data"]["id"] == question)


def _tell(state: dict[str, Any], as_json: bool) -> int:
    if not state["answered"]:
        if not as_json:
            left = "it stays open" if state["open"] else "it is closed now"
            print(f"hocket: nobody has answered {state['id']}; {left}", file=sys.stderr)
        return access.EXIT_TIMED_OUT
    said = state["answer"]
    if state["allow"]:
        if not as_json:
            access.print_result(said or "yes")
        return 0
    if not as_json:
        print(f"hocket: denied{f': {one_line(said)}' if said else ''}", file=sys.stderr)
    return 1
