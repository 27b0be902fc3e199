"""``spawn ps show wait stop``: the life of runs. On the hot path: no framework, no typing, no asyncio."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from hocket.cli import access
from hocket.cli.format import (
    cost,
    duration,
    elapsed,
    fit,
    harmless,
    moment,
    one_line,
    price,
    since_of,
    spelled,
    state_word,
    table,
    tokens_of,
    uttered,
)
from hocket.cli.usage import (
    AGENTS,
    ASKING,
    COUNT,
    CWD,
    FLAG,
    JSON,
    PROMPT,
    REF,
    SECONDS,
    SESSION,
    SINCE,
    SPENDING,
    Argument,
    Option,
    command,
)
from hocket.client import ENDED, Client, quote
from hocket.errors import ChainSyntaxError, HocketError

Run = dict[str, Any]

STATUSES = ("starting", "running", "waiting", "done", "failed", "stopped", "lost")
AGENT_COLUMNS = 24
PROMPT_LINES, PROMPT_LETTERS = 6, 480
"""How much of a prompt ``show`` prints: six lines of a terminal with 80 columns."""
PIPE_LAST = 200
"""How much of a last line is shown where no terminal limits it."""


@command(
    Argument("agent", completes=AGENTS),
    PROMPT,
    CWD,
    Option("--timeout", kind=SECONDS, metavar="TIME", help="End it after 90, 90s, 10m, 2h."),
    *SPENDING,
    SESSION,
    ASKING,
    JSON,
    examples=(
        'hocket spawn builder -p "Fix the flaky test"',
        "hocket spawn ./tool --json -- --fast",
        'hocket spawn planner --session -p "Read the issue, then wait for me"',
    ),
    passing=True,
)
def spawn(agent: str, prompt: str | None, cwd: str | None, as_json: bool, **options: Any) -> None:
    """Start one agent and print the run's number. It goes on whatever happens to this terminal."""
    place = access.directory(cwd)
    body = {
        "agent": agent,
        "prompt": access.pick_prompt(prompt, None, place),
        "cwd": place,
        "args": options["passed"],
        "env": access.environment(place),
        "timeout": options["timeout"],
        "session": options["session"] or None,
        "on_question": options["on_question"],
        **{option.name: options[option.name] for option in SPENDING},
    }
    given = {name: value for name, value in body.items() if value is not None}
    try:
        run = access.connect().request("POST", "/api/runs", given)
    except ChainSyntaxError as error:
        raise ChainSyntaxError(error.message, _chain_hint(agent) or error.hint) from error
    access.write_json({"run": run["id"]}) if as_json else access.write(f"run {run['number']}\n")


def _chain_hint(text: str) -> str | None:
    """Where a chain was meant, what starts one and comes back as well."""
    import shlex

    from hocket.chain.parse import parse

    try:
        parse(text)
    except ChainSyntaxError:
        return None
    return f"this starts one agent; for a chain: hocket run --detach {shlex.quote(text)}"


FILTERS = (
    Option("--status", kind=STATUSES, help="List only runs with this status, ended ones too."),
    Option("--agent", metavar="NAME", completes=AGENTS, help="List only runs of this agent or chain."),
    Option("--project", metavar="DIR", help="List only runs that work in this directory or below it."),
    Option("--since", kind=SINCE, metavar="TIME", help="List only runs created since: 2h, 3d, 2026-03-01, 14:30."),
    Option("--limit", kind=COUNT, metavar="N", help="List only the newest N runs; without it 1000."),
)


@command(
    Option("-a", "--all", name="everything", kind=FLAG, help="Also the runs that have ended."),
    *FILTERS,
    Option("--before", kind=COUNT, metavar="N", help="Only runs with smaller numbers than this."),
    JSON,
    examples=(
        "hocket ps",
        "hocket ps --status failed --since 2h",
        "hocket ps -a --agent reviewer --project . --limit 20",
        "hocket ps -a --json",
        "hocket ps -a --before 4001",
    ),
)
def ps(everything: bool, before: int | None, as_json: bool, **filters: Any) -> None:
    """List the runs that have not ended, the processes of a chain below it. The newest thousand at a time."""
    query = {"all": int(everything), **_query(filters), "before": before}
    given = "&".join(f"{name}={quote(str(value))}" for name, value in query.items() if value is not None)
    answer = access.connect().exchange("GET", f"/api/runs?{given}")
    runs = answer["data"]
    if as_json:
        access.write_json(runs)
    elif runs:
        access.write("".join(f"{line}\n" for line in ps_table(runs, time.time(), access.terminal_width())))
    else:
        print(_nothing_listed(everything, filters), file=sys.stderr)
    if not as_json and (older := answer["meta"].get("next")) is not None:
        print(f"There are older ones: {_ps_line(everything, filters)} --before {older}", file=sys.stderr)
    if not as_json and access.was_restarted():
        from hocket.cli.setup import tell_restart

        tell_restart()


def _query(filters: dict[str, Any]) -> dict[str, Any]:
    """The filters as the server takes them: a real directory, and a point in time."""
    project, since = filters["project"], filters["since"]
    return {
        **filters,
        "project": None if project is None else os.path.realpath(access.directory(project)),
        "since": None if since is None else since_of(since, time.time()),
    }


def _nothing_listed(everything: bool, filters: dict[str, Any]) -> str:
    """What to say in the place of a table, and the command that may help."""
    if any(value is not None for value in filters.values()):
        ended = "" if everything or filters["status"] else f" Ended runs, too: {_ps_line(True, filters)}"
        return f"No run matches.{ended}"
    nothing = "No run yet." if everything else "Nothing is running. Ended runs: hocket ps -a."
    return f'{nothing} Start one: hocket run "planner -> builder:3"'


def _ps_line(everything: bool, filters: dict[str, Any]) -> str:
    """The command that lists the same runs."""
    import shlex

    words = [f"--{name} {shlex.quote(str(value))}" for name, value in filters.items() if value is not None]
    return " ".join(["hocket ps", *(["-a"] if everything else []), *words])


def ps_table(runs: list[Run], now: float, columns: int | None) -> list[str]:
    """The lines of ``ps``."""
    rows = [["RUN", "AGENT", "STEP", "STATE", "ELAPSED", "TOK", "COST", "LAST"]]
    rows += [_ps_row(run, level, now) for run, level in in_tree_order(runs)]
    return table(rows, columns)


def _ps_row(run: Run, level: int, now: float) -> list[str]:
    indent = "  " * level
    # Nothing may be left out of what is to be allowed; of a line that was written over only the end was meant.
    said_last = _to_judge if run.get("needs_you") else uttered
    last = run.get("last") or run.get("error") or ""
    if not last and run["status"] in ENDED:
        last = _outcome(run)
    return [
        f"{indent}{run.get('number', '?')}",
        fit(one_line(str(run["agent"])), AGENT_COLUMNS),
        _step(run),
        state_word(run),
        duration(elapsed(run, now)),
        tokens_of(run.get("tokens")) or "-",
        price(run.get("cost_usd")) or "-",
        fit(one_line(said_last(str(last))), PIPE_LAST),
    ]


def _to_judge(text: str) -> str:
    return " ".join(map(spelled, text.split("\n")))


def _step(run: Run) -> str:
    """As the chain is written, so that ``resume --from`` means the same."""
    step, iteration = run.get("step"), run.get("iteration")
    shown = "" if step is None else str(run.get("stage") or step + 1)
    return f"{shown} ·{iteration}" if iteration and shown else shown


def _outcome(run: Run) -> str:
    reason = run.get("reason") or ""
    if reason == "exit" and run.get("exit_code") is not None:
        return f"exit {run['exit_code']}"
    return "" if reason in ("single_run", run["status"]) else reason


def in_tree_order(runs: list[Run]) -> list[tuple[Run, int]]:
    """Every run behind its parent, with how deep it lies among those that are listed."""
    listed = {run["id"] for run in runs}
    below: dict[str | None, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.get("number") or 0):
        parent = run.get("parent")
        below.setdefault(parent if parent in listed else None, []).append(run)
    ordered: list[tuple[Run, int]] = []
    waiting = [(run, 0) for run in reversed(below.get(None, []))]
    while waiting:
        run, level = waiting.pop()
        ordered.append((run, level))
        waiting += [(child, level + 1) for child in reversed(below.get(run["id"], []))]
    return ordered


@command(
    REF,
    Option("--full", kind=FLAG, help="Print the whole prompt, not only its head."),
    JSON,
    examples=("hocket show 42", "hocket show 42 --full", "hocket show 42 --json"),
)
def show(ref: str, full: bool, as_json: bool) -> None:
    """Show everything about one run. REF is its number, its id or the beginning of its id."""
    run = access.connect().run(ref)
    if as_json:
        access.write_json(run)
    else:
        access.write("".join(f"{line}\n" for line in shown(run, time.time(), access.terminal_width(), full)))


def shown(run: Run, now: float, columns: int | None, full: bool = False) -> list[str]:
    """The lines of ``show``."""
    lines = table([[name, one_line(str(value))] for name, value in _facts(run, now).items() if value is not None])
    lines += _prompt(run, full) + _asked(run) + _trees(run)
    children = run.get("children") or []
    if children:
        lines += ["", *ps_table(children, now, columns)]
    if run.get("result"):
        lines += ["", uttered(str(run["result"])).rstrip("\n")]
    return lines


def _prompt(run: Run, full: bool) -> list[str]:
    """What was asked; the head of it, unless all is wanted, with the command that prints the rest."""
    text = harmless(str(run.get("prompt") or "")).strip("\n")
    if not text.strip():
        return []
    head = text if full else "\n".join(text[:PROMPT_LETTERS].split("\n")[:PROMPT_LINES])
    more = f"… {len(text)} characters in all: hocket show {run.get('number')} --full"
    return ["", "prompt", *(f"  {line}".rstrip() for line in [*head.split("\n"), *([] if head == text else [more])])]


def _trees(run: Run) -> list[str]:
    steps = [step for step in run.get("steps") or () if step.get("repository")]
    if not steps:
        return []
    from hocket.cli.trees import tree_lines

    return ["", *tree_lines(steps, str(run.get("number") or run["id"]))]


def _facts(run: Run, now: float) -> dict[str, Any]:
    return {
        "run": f"{run.get('number')}  {run['id']}",
        "agent": _agent(run),
        "state": " ".join(word for word in (state_word(run), run.get("reason")) if word),
        "exit code": run.get("exit_code"),
        "error": run.get("error"),
        "started": moment(run.get("started_at") or run.get("created_at")),
        "ended": moment(run["ended_at"]) if run.get("ended_at") else None,
        "elapsed": duration(elapsed(run, now)),
        "cost": cost(run),
        "parent": run.get("parent"),
        "resumes": run.get("resumed_from"),
        "session": run.get("session_id"),
        "transcript": run.get("transcript"),
        "cwd": run.get("cwd"),
        "pid": run.get("pid") if run["status"] not in ENDED else None,
        "files": run.get("dir") if run.get("kind") == "leaf" else None,  # no other kind has a process to write any
    }


def _agent(run: Run) -> str:
    """Its name and where it was found, since one name may mean several."""
    name, source = one_line(str(run["agent"])), run.get("source")
    definition = f", {run['definition']}" if run.get("definition") else ""
    return one_line(f"{name} ({source}{definition})") if source else name


def _asked(run: Run) -> list[str]:
    """Every open question of the run or, of a chain, of those below it: in full, with the command that answers it."""
    questions = run.get("questions") or []
    if not questions:
        return []
    from hocket.cli.asking import headline, reply_lines

    lines = []
    for question, reply in zip(questions, reply_lines(questions), strict=True):
        lines += ["", f"? {headline(question)}", *details(question), f"    {reply}"]
    return lines


def details(question: dict[str, Any]) -> list[str]:
    """Several questions by line; what a tool would be given, whole: a shortened command is nothing to be allowed."""
    from hocket.cli.asking import argument_lines, wants_words, wish

    given = question.get("input")
    if wants_words(question):
        asked = harmless(str(question.get("text") or "")).split("\n")
        return [f"  {line}" for line in asked] if len(asked) > 1 else []
    if not isinstance(given, dict):
        return wish(question, most=None).split("\n")[1:]
    return argument_lines(given, head="  ")


@command(
    REF,
    Option("--timeout", kind=SECONDS, metavar="TIME", help="Give up waiting; the run goes on."),
    JSON,
    examples=("hocket wait 42", "hocket wait 42 --timeout 10m --json"),
)
def wait(ref: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a run has ended and print its result. Ends with its exit code, or 3 when time is up."""
    from hocket.cli.watch import wait_for_end

    client = access.connect(talk=not as_json)
    run = client.run(ref)
    if run["status"] not in ENDED:
        if not wait_for_end(client, run["id"], timeout):
            print(f"hocket: run {run.get('number')} has not ended; {_going_on(client.run(run['id']))}", file=sys.stderr)
            return access.EXIT_TIMED_OUT
        run = client.run(run["id"])
    if as_json:
        access.write_json(run)
    else:
        access.print_result(run.get("result"))
    return access.exit_code(run["status"], run.get("reason"))


def _going_on(run: Run) -> str:
    if run["status"] != "waiting" or not run.get("parked_until"):
        return "it goes on"
    from hocket.cli.words import parking

    return f"it {parking({**run, 'until': run['parked_until']}, time.time())}, then goes on by itself"


@command(
    Argument("refs", "REF...", many=True),
    JSON,
    examples=("hocket stop 42", "hocket stop 42 43 --json"),
)
def stop(refs: tuple[str, ...], as_json: bool) -> int:
    """Stop runs with every process they started, and come back when all of it is gone."""
    client = access.connect()
    return max(_stop_one(client, ref, as_json) for ref in refs)


def _stop_one(client: Client, ref: str, as_json: bool) -> int:
    """One run that cannot be stopped does not keep the others from it."""
    try:
        stopped = client.request("POST", f"/api/runs/{quote(ref)}/stop", {})
    except HocketError as error:
        print(f"hocket: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    if as_json:
        access.write_json(stopped)
    else:
        access.write(f"{_stop_line(ref, stopped)}\n")
    return 1 if stopped["survivors"] else 0


def _stop_line(ref: str, stopped: dict[str, Any]) -> str:
    survivors = stopped["survivors"]
    left = f"; still alive: {', '.join(map(str, survivors))}" if survivors else ""
    return f"{ref}  {state_word(stopped)}  {stopped.get('reason') or ''}".rstrip() + left
