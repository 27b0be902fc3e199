"""The commands that start, list, show, compare, wait for and stop runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.format import (
    STATUS_LABELS,
    cost_text,
    display_width,
    elapsed,
    format_table,
    is_parked,
    paint,
    paint_status,
    parse_since,
    short_cost,
    short_count,
    status_and_reason,
    status_label,
    truncate,
)
from hocket.cli.plain import lines_of, worktree_lines
from hocket.cli.question_prompt import details, headline, reply_commands
from hocket.cli.usage import (
    AGENTS,
    ASKING,
    COUNT,
    CWD,
    FLAG,
    JSON,
    LIVE_RUNS,
    PROMPT,
    REF,
    SECONDS,
    SESSION,
    SINCE,
    SPENDING,
    TEAM,
    Argument,
    ArgumentError,
    Option,
    command,
)
from hocket.cli.watch import FLUSH_SECONDS, Event, steady_view
from hocket.client import ENDED, Client, quote
from hocket.errors import ChainSyntaxError, HocketError
from hocket.input_limits import AROUND_A_MARKER, DEFAULT_MARKER
from hocket.views.event_text import parking
from hocket.views.evidence_text import evidence_rows
from hocket.views.names import PROCESS_KINDS, agent_name, project_names
from hocket.views.run_list import tree_order
from hocket.views.text import (
    PROCESS_GONE,
    age,
    date_and_time,
    duration,
    escape_invisible,
    one_line,
    strip_controls,
    terminal_output,
    upcoming_time,
)

Run = dict[str, Any]

EVENTS_PER_LINE, MOST_EVENTS = 5, 1000
"""How many events of a transcript are read for each line that is wanted, and in all."""
STATUSES = ("starting", "running", "waiting", "done", "failed", "stopped", "lost")
SESSION_CHARACTERS = 8
"""How much of the id of a session that was not imported ``ps`` prints; it names the session."""
PROMPT_LINES, PROMPT_CHARACTERS = 6, 480
"""How much of a prompt ``show`` prints: six lines of 80 columns."""
LAST_CHARACTERS, AGENT_CHARACTERS, PROJECT_COLUMNS = 200, 60, 20
"""How much of the last output, an agent or chain, and a project ``ps`` prints where no terminal limits it."""
COLUMNS = ("AGENT", "STEP", "STATE", "ELAPSED", "ENDED", "TOK", "COST", "LAST")
OBSERVED_COLUMNS = ("AGENT", "STATE", "TIME", "LAST")
"""Of sessions that Hocket did not start, whose cost is unknown."""
OPTIONAL = ("STEP", "ENDED", "TOK", "COST")
"""Columns that are left out on a terminal if no run has anything there."""
TREE_COLUMNS = ("AGENT", "D", *COLUMNS[1:])
"""Of ``ps --tree``, with the cost and the tokens of a run and everything below it."""
DROPPED = ("TOK", "ENDED", "STEP")
"""The order in which columns make room on a terminal. Instead of ENDED, TIME has the age of ended runs."""
WANTED_SHARE = 0.45
"""How much of a terminal's width the agent and the last words get, if they need it."""
DROPPED_LAST = ("D", "PROJECT", "COST", "ELAPSED", "TIME")
"""The same for columns that are dropped only where the agent and the last words have less than ``NEEDED``."""
NEEDED = 22
NARROW, NARROW_PROJECT = 100, 10
"""On a terminal with fewer columns, how many a project gets."""
INDENT_SHARE = 0.1
"""How much of a terminal's width the indentation of a tree gets."""
Cells = dict[str, str]


@command(
    Argument("agent", completes=AGENTS),
    PROMPT,
    CWD,
    Option("--timeout", kind=SECONDS, metavar="TIME", help="Time limit: 90, 90s, 10m, 2h."),
    *SPENDING,
    SESSION,
    TEAM,
    ASKING,
    JSON,
    examples=(
        'hocket spawn builder -p "Fix the flaky test"',
        "hocket spawn ./tool --json -- --fast",
        'hocket spawn planner --session -p "Read the issue, then wait for me"',
        'hocket spawn claude --team -p "Review the change with three teammates"',
    ),
    passing=True,
)
def spawn(agent: str, prompt: str | None, cwd: str | None, as_json: bool, **options: Any) -> None:
    """Start one agent and print the run's number. It continues without this terminal."""
    try:
        run = access.connect().request("POST", "/api/runs", spawn_body(agent, prompt, access.directory(cwd), options))
    except ChainSyntaxError as error:
        from hocket.chain.parse import parse

        with suppress(ChainSyntaxError):
            parse(agent)
            error.hint = f"spawn starts one agent; for a chain: hocket run --detach {shlex.quote(agent)}"
        raise
    access.write_json({"run": run["id"]}) if as_json else access.write(f"run {run['number']}\n")


def spawn_body(agent: str, prompt: str | None, place: str, options: dict[str, Any]) -> dict[str, Any]:
    """The body of a start request, with only the options that were given."""
    body = {
        **{name: value for name, value in options.items() if name != "passed"},
        "agent": agent,
        "prompt": access.pick_prompt(prompt, None, place),
        "cwd": place,
        "args": options["passed"],
        "env": access.environment(place),
        **config.calling_session(),
        "session": options["session"] or None,
        "agent_teams": options["agent_teams"] or None,
    }
    return {name: value for name, value in body.items() if value is not None}


FILTERS = (
    Option("--status", kind=STATUSES, help="List only runs with this status, ended ones too."),
    Option("--agent", metavar="NAME", completes=AGENTS, help="List only runs of this agent or chain."),
    Option("--project", metavar="DIR", help="List only runs that work in this directory or below it."),
    Option("--since", kind=SINCE, metavar="TIME", help="List only runs created since: 2h, 3d, 2026-03-01, 14:30."),
    Option("--limit", kind=COUNT, metavar="N", help="List only the newest N runs (default 1000)."),
)


@command(
    Option("-a", "--all", name="everything", kind=FLAG, help="List ended runs too."),
    *FILTERS,
    Option("--before", kind=COUNT, metavar="N", help="List only runs with a smaller number."),
    Option("--tree", kind=FLAG, help="List whole families, with the cost of each run and all below it."),
    Option("--observed", kind=FLAG, help="List sessions that Hocket did not start, by default of the last week."),
    JSON,
    examples=(
        "hocket ps",
        "hocket ps --status failed --since 2h",
        "hocket ps -a --agent reviewer --project . --limit 20",
        "hocket ps -a --json",
        "hocket ps -a --before 4001",
        "hocket ps --tree",
        "hocket ps --observed",
    ),
)
def ps(everything: bool, before: int | None, tree: bool, observed: bool, as_json: bool, **filters: Any) -> None:
    """List the runs that have not ended, the processes of a chain below it, up to a thousand at a time.

    With --tree list with them the runs that started them, also ended ones, and the runs below them; COST and TOK are
    those of a run and everything below it, D is the number of agents above it.

    With --observed list the sessions of agents that Hocket did not start, which "hocket import" adopts.
    """
    if observed and before is not None:
        raise ArgumentError("give --observed or --before, not both")
    if observed and tree:
        raise ArgumentError("give --observed or --tree, not both")
    project, since = filters["project"], filters["since"]
    query = {
        **filters,
        "all": int(everything),
        "project": None if project is None else os.path.realpath(access.directory(project)),
        "since": None if since is None else parse_since(since, time.time()),
        "before": before,
        "tree": 1 if tree else None,
        "observed": 1 if observed else None,
        "env": json.dumps(config.session_places(access.directory(None))) if observed else None,
    }
    given = "&".join(f"{name}={quote(str(value))}" for name, value in query.items() if value is not None)
    answer = access.connect().exchange("GET", f"/api/runs?{given}")
    runs = answer["data"]
    if as_json:
        access.write_json(runs)
    elif runs:
        colour = config.colour_wanted(sys.stdout.isatty())
        columns = OBSERVED_COLUMNS if observed else TREE_COLUMNS if tree else COLUMNS
        access.write_lines(ps_table(runs, time.time(), access.terminal_width(), colour, columns))
    elif observed:
        print(_no_sessions(everything, filters), file=sys.stderr)
    else:
        print(_nothing_listed(everything, filters), file=sys.stderr)
    if not as_json and (older := answer["meta"].get("next")) is not None:
        same = _ps_line(everything, filters) + (" --tree" if tree else "")
        print(f"Older runs: {same} --before {older}", file=sys.stderr)
    if not as_json and access.was_restarted():
        from hocket.cli.server import report_restart

        report_restart()


def _nothing_listed(everything: bool, filters: dict[str, Any]) -> str:
    """The message for an empty list, with a command that may help."""
    if any(value is not None for value in filters.values()):
        ended = "" if everything or filters["status"] else f" Ended runs: {_ps_line(True, filters)}"
        return f"No matching runs.{ended}"
    nothing = "No runs yet." if everything else "No active runs. Ended runs: hocket ps -a."
    return f'{nothing} Start one: hocket run "planner -> builder:3"'


def _no_sessions(everything: bool, filters: dict[str, Any]) -> str:
    """The message for an empty list of sessions that Hocket did not start."""
    if everything or filters["since"]:
        return "No observed sessions."
    return "No observed sessions in the last week. Older ones: hocket ps --observed -a."


def _ps_line(everything: bool, filters: dict[str, Any]) -> str:
    """The command that lists the same runs."""
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in filters.items() if value is not None]
    return " ".join(["hocket ps", *(["-a"] if everything else []), *words])


@command(
    Argument("session", "SESSION"),
    JSON,
    examples=("hocket import 0f436b2a", "hocket import 0f436b2a-195c-41ec-b1f6-db783fd59804 --json"),
)
def import_(session: str, as_json: bool) -> None:
    """Import a session that Hocket did not start and print the run's number. Its log is read like that of any run.

    SESSION is an id of "hocket ps --observed", or at least the first eight characters of one. A live session is
    followed until its process ends. Repeating the command gives the same run.
    """
    body = {"session": session, "env": config.session_places(access.directory(None))}
    run = access.connect(talk=not as_json).request("POST", "/api/runs/import", body)
    access.write_json({"run": run["id"]}) if as_json else access.write(f"run {run['number']}\n")


def ps_table(
    runs: list[Run], now: float, columns: int | None, colour: bool = False, headings: tuple[str, ...] = COLUMNS
) -> list[str]:
    """The lines of ``ps``; with ``columns`` less useful ones are left out in favour of the agent and the last words."""
    projects = run_projects(runs)
    # Sessions come in the order of their last change, which their numbers do not have.
    ordered = [(run, 0) for run in runs] if headings is OBSERVED_COLUMNS else tree_order(runs)
    indent, deepest = indentation(ordered, columns)
    rows = [ps_cells(run, min(depth, deepest) * indent, now, projects.get(run["id"], "")) for run, depth in ordered]
    shown = ("RUN", *(["PROJECT"] if projects else []), *headings)
    if columns is not None:
        if columns < NARROW:
            rows = [{**row, "PROJECT": truncate(row["PROJECT"], NARROW_PROJECT)} for row in rows]
        shown = fitting_columns(rows, shown, columns)
        room = text_room(rows, shown, columns)
        agents = max(room - cell_width(rows, "LAST"), room * 2 // 5)
        rows = [{**row, "AGENT": truncate(row["AGENT"], agents)} for row in rows]
    first, *lines = format_table([shown, *([row[name] for name in shown] for row in rows)], columns)
    return [
        paint(first, "1", colour),
        *(_painted(line, row["STATE"], colour) for line, row in zip(lines, rows, strict=True)),
    ]


def indentation(ordered: Sequence[tuple[Run, int]], columns: int | None) -> tuple[int, int]:
    """By how much each level of a tree is indented, and the level from which on nothing is."""
    deepest = max((depth for _, depth in ordered), default=0)
    if columns is None:
        return 2, deepest
    most = int(columns * INDENT_SHARE)
    return (2, deepest) if 2 * deepest <= most else (1, most)


def fitting_columns(rows: list[Cells], shown: Sequence[str], columns: int) -> tuple[str, ...]:
    """The columns that say something and leave enough room."""
    shown = [name for name in shown if name not in OPTIONAL or any(row[name] not in ("", "-") for row in rows)]
    wanted = min(cell_width(rows, "AGENT") + cell_width(rows, "LAST"), int(columns * WANTED_SHARE))
    for name in (*DROPPED, *DROPPED_LAST):
        if text_room(rows, shown, columns) >= (wanted if name in DROPPED else min(wanted, NEEDED)):
            break
        if name == "ENDED" and name in shown:
            shown = ["TIME" if one == "ELAPSED" else one for one in shown if one != name]
        else:
            shown = [one for one in shown if one != name]
    return tuple(shown)


def cell_width(rows: list[Cells], name: str) -> int:
    """The width of a column, with its heading."""
    return max(display_width(text) for text in (name, *(row[name] for row in rows)))


def text_room(rows: list[Cells], shown: Sequence[str], columns: int) -> int:
    """The width that the other columns leave for the agent and the last words."""
    others = (cell_width(rows, name) for name in shown if name not in ("AGENT", "LAST"))
    return columns - sum(others) - 2 * (len(shown) - 1)


def _painted(line: str, state: str, colour: bool) -> str:
    before, label, after = line.partition(state)
    return f"{before}{paint_status(label)}{after}" if colour else line


def run_projects(runs: Sequence[Run]) -> dict[str, str]:
    """By id, the project that each run works in, by a short name; empty if all work in one.

    A step in a worktree of its own belongs to the project of the run above it.
    """
    listed = {run["id"]: run for run in runs}
    folders: dict[str, str] = {}
    for run in runs:
        place = run
        while "/worktrees/" in str(place.get("cwd")) and place.get("parent") in listed:
            place = listed[place["parent"]]
        folders[run["id"]] = str(place.get("cwd") or "")
    names = project_names(set(folders.values()))
    return {id: truncate(names[folder], PROJECT_COLUMNS) for id, folder in folders.items()} if len(names) > 1 else {}


def ps_cells(run: Run, indent: int, now: float, project: str) -> Cells:
    """What each column of ``ps`` has for a run; ``hocket top`` has the same."""
    # The step as numbered in the chain's text, which is what ``resume --from`` takes.
    step = "" if run.get("step") is None else str(run.get("stage") or run["step"] + 1)
    taken = duration(elapsed(run, now))
    ended = "" if run.get("ended_at") is None else f"{age(now - run['ended_at'])} ago"
    return {
        "RUN": f"{' ' * indent}{run.get('number') or str(run['id'])[:SESSION_CHARACTERS]}",
        "PROJECT": project,
        "AGENT": truncate(agent_name(str(run["agent"])), AGENT_CHARACTERS) + lead_mark(run),
        "D": str(run.get("depth", "")),
        "STEP": f"{step} ·{run['iteration']}" if run.get("iteration") and step else step,
        "STATE": STATUS_LABELS["parked"] if is_parked(run) else status_label(run),
        "ELAPSED": taken,
        "ENDED": ended,
        "TIME": ended or taken,
        # What a teammate has used counts with its lead, so the sum of its own tree is not known.
        "TOK": short_count(run.get("tree_tokens") or run.get("tokens")) or "-",
        "COST": short_cost(run.get("tree_cost_usd", run.get("cost_usd"))) or "-",
        "LAST": truncate(one_line(_last_words(run, now)), LAST_CHARACTERS),
    }


def lead_mark(run: Run) -> str:
    """`` (lead, 2 teammates)`` of the lead of a team."""
    count = run.get("teammates")
    if count is None and run.get("kind") != "lead":
        return ""
    return f" (lead, {count} teammate{'' if count == 1 else 's'})" if count else " (lead)"


def _last_words(run: Run, now: float) -> str:
    """What it waits for, the open question, the last output, or why it ended and the end of its result."""
    last = str(run.get("last") or run.get("error") or "")
    if is_parked(run):
        why = "usage limit" if run.get("reason") == "rate_limited" else "service overloaded or unreachable"
        return f"until {upcoming_time(run['parked_until'], now)}: {why}"
    if run.get("needs_you"):
        # Completely escaped, since it may be answered from what is seen here.
        return " ".join(map(escape_invisible, last.split("\n")))
    if last or run["status"] not in ENDED:
        return terminal_output(last)
    reason = run.get("reason") or ""
    why = f"exit {run['exit_code']}" if reason == "exit" and run.get("exit_code") is not None else reason
    lines = terminal_output(str(run.get("result") or "")).split("\n")
    words = next((line for line in reversed(lines) if line.strip(AROUND_A_MARKER) not in ("", DEFAULT_MARKER)), "")
    if run["status"] == "done":
        return words or ("" if reason == "single_run" else why)
    return ": ".join(part for part in ("" if reason in (run["status"], PROCESS_GONE) else why, words) if part)


@command(
    REF,
    Option("--full", kind=FLAG, help="Print the complete prompt."),
    Option("--why", kind=FLAG, help="Print what its state rests on: process, lock, exit record, last event, stops."),
    JSON,
    examples=("hocket show 42", "hocket show 42 --full", "hocket show 42 --why", "hocket show 42 --json"),
)
def show(ref: str, full: bool, why: bool, as_json: bool) -> None:
    """Show everything about one run. RUN is its number, its id or the beginning of its id."""
    if full and why:
        raise ArgumentError("give --full or --why, not both")
    if why:
        evidence = access.connect().request("GET", f"/api/runs/{quote(ref)}/evidence")
        if as_json:
            access.write_json(evidence)
        else:
            state = [["run", f"{evidence['number']}  {evidence['run']}"], ["state", status_and_reason(evidence)]]
            access.write_lines(format_table([*state, *evidence_rows(evidence)]))
        return
    client = access.connect()
    run = client.request("GET", f"/api/runs/{quote(ref)}?worktrees=1")
    if as_json:
        access.write_json(run)
    else:
        run |= {name: _as_named(client, run[name]) for name in ("parent", "resumed_from") if run[name]}
        access.write_lines(show_lines(run, time.time(), access.terminal_width(), full))


def _as_named(client: Client, run_id: str) -> str:
    """``89  chief``: the number and the agent of a run; the id of one that was removed."""
    try:
        run = client.run(run_id)
    except HocketError:
        return run_id
    return f"{run['number']}  {agent_name(str(run['agent']))}"


def show_lines(run: Run, now: float, columns: int | None, full: bool = False) -> list[str]:
    """The lines of ``show``."""
    lines = format_table(
        [[name, one_line(str(value))] for name, value in _facts(run, now).items() if value is not None]
    )
    prompt = strip_controls(str(run.get("prompt") or "")).strip("\n")
    if prompt.strip():
        head = prompt if full else "\n".join(prompt[:PROMPT_CHARACTERS].split("\n")[:PROMPT_LINES])
        lines += ["", "prompt", *(f"  {line}".rstrip() for line in head.split("\n"))]
        if head != prompt:
            lines.append(f"  … {len(prompt)} characters in total: hocket show {run.get('number')} --full")
    questions = run.get("questions") or []
    for question, reply in zip(questions, reply_commands(questions), strict=True):
        lines += ["", f"? {headline(question)}", *details(question), f"    {reply}"]
    if worktrees := worktree_lines(run.get("steps") or [], str(run.get("number") or run["id"])):
        lines += ["", *worktrees]
    children = run.get("children") or []
    if children:
        lines += ["", *ps_table(children, now, columns)]
    if run.get("result"):
        lines += ["", terminal_output(str(run["result"])).rstrip("\n")]
    return lines


def _facts(run: Run, now: float) -> dict[str, Any]:
    agent = f"{run['agent']}{lead_mark(run)}"
    if run.get("source"):
        agent += f" ({', '.join(str(run[name]) for name in ('source', 'definition') if run.get(name))})"
    return {
        "run": f"{run.get('number')}  {run['id']}",
        "agent": agent,
        "state": status_and_reason(run),
        "exit code": run.get("exit_code"),
        "error": run.get("error"),
        "started": date_and_time(run.get("started_at") or run.get("created_at")),
        "ended": date_and_time(run["ended_at"]) if run.get("ended_at") else None,
        "elapsed": duration(elapsed(run, now)),
        "cost": cost_text(run),
        "tree cost": _tree_cost(run),
        "open tasks": run.get("open_tasks") or None,
        "parent": run.get("parent"),
        "teammate": run.get("teammate"),
        "resumes": run.get("resumed_from"),
        "session": run.get("session_id"),
        "transcript": run.get("transcript"),
        "cwd": run.get("cwd"),
        "pid": run.get("pid") if run["status"] not in ENDED else None,
        "files": run.get("dir") if run.get("kind") in PROCESS_KINDS and run.get("origin") != "observed" else None,
    }


def _tree_cost(run: Run) -> str | None:
    """The cost with everything below the run, if that is another one."""
    names = ("cost_usd", "cost_estimated", "tokens")
    own, tree = ({name: run.get(before + name) for name in names} for before in ("", "tree_"))
    return None if cost_text(tree) == cost_text(own) else cost_text(tree)


@command(
    REF,
    Option("--stat", kind=FLAG, help="Print the number of changed lines of each file."),
    JSON,
    examples=("hocket diff 42", "hocket diff 42 --stat", "hocket diff 42 --json", "hocket diff 42 | git apply -R"),
)
def diff(ref: str, stat: bool, as_json: bool) -> int:
    """Show what a run has changed in its directory and in the worktrees of its steps since it began.

    Untracked files appear as additions, except ignored ones. Changes that others made there at the same time or later
    are included. Exits with 1 if the changes of a directory are unknown.
    """
    client, is_terminal = access.connect(talk=not as_json), sys.stdout.isatty()
    text = "none" if as_json else "stat" if stat else "patch"
    query = f"text={text}&colour={int(is_terminal and config.colour_wanted(True))}"
    query += f"&columns={min(max(access.terminal_width() or 80, 20), 1000)}"
    found = client.request("GET", f"/api/runs/{quote(ref)}/diff?{query}")
    is_known = all(row["error"] is None for row in found["directories"])
    if as_json:
        access.write_json(found)
        return 0 if is_known else 1
    body, remarks = "".join(diff_lines(found)), diff_remarks(found)
    if is_terminal and body:
        access.page("".join(f"{line}\n" for line in remarks) + terminal_patch(body))
    else:
        access.write(body)
        sys.stdout.flush()
        print("".join(f"hocket: {line}\n" for line in remarks), end="", file=sys.stderr)
    return 0 if is_known else 1


def diff_lines(found: Run) -> Iterator[str]:
    """The changes of each directory. Headings have the form of comments, which programs that read patches skip."""
    for row in found["directories"]:
        if row["step"] is not None and row["error"] is None:
            branch = f"on {row['branch']}, " if row["branch"] else ""
            yield f"# step {row['stage']} {agent_name(row['agent'])}, {branch}in {one_line(row['directory'])}\n"
        elif len(found["directories"]) > 1 and row["error"] is None:
            yield f"# {one_line(row['directory'])}\n"
        if row["by"] == "times":
            files = [file for file in found["files"] if file["directory"] == row["directory"]]
            yield from (f"{file['status']} {one_line(file['path'])}\n" for file in files)
        yield row["text"] or ""


def diff_remarks(found: Run) -> list[str]:
    """What is left out, what cannot be told apart, and errors."""
    lines = []
    for row in found["directories"]:
        name = f"step {row['stage']} {agent_name(row['agent'])}: " if row["step"] is not None else ""
        lines += [f"{name}{note}" for note in row["notes"]]
        if row["error"] is not None:
            lines.append(f"{name}{row['error']}" + (f"; {row['hint']}" if row["hint"] else ""))
    if not found["files"] and all(row["error"] is None for row in found["directories"]):
        lines.append(f"run {found['number']} has changed nothing")
    return [one_line(line) for line in lines]


def terminal_patch(text: str) -> str:
    """A patch without anything that a terminal would interpret, except colours."""
    parts = re.split("(\x1b\\[[0-9;]*m)", text)
    return "".join(part if place % 2 else strip_controls(part) for place, part in enumerate(parts))


@command(
    REF,
    Option("--timeout", kind=SECONDS, metavar="TIME", help="Stop waiting after this time; the run continues."),
    JSON,
    examples=("hocket wait 42", "hocket wait 42 --timeout 10m --json"),
)
def wait(ref: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a run has ended and print its result. Exits with the run's code, or with 3 when the time is up."""
    client = access.connect(talk=not as_json)
    run = client.run(ref)
    if run["status"] not in ENDED:
        deadline = None if timeout is None else time.monotonic() + timeout
        tick = None if timeout is None else min(0.1, max(timeout, 0.001))
        events = client.follow_ticking(run["id"], tick)
        if any(deadline is not None and time.monotonic() > deadline for _ in events):
            late, state = client.run(run["id"]), "it continues"
            if is_parked(late):
                waits = parking({**late, "until": late["parked_until"]}, time.time())
                state = f"it {waits}, then continues by itself"
            print(f"hocket: run {run.get('number')} has not ended; {state}", file=sys.stderr)
            return access.EXIT_TIMED_OUT
        run = client.run(run["id"])
    if as_json:
        access.write_json(run)
    else:
        access.print_result(run.get("result"))
    return access.exit_code(run["status"], run.get("reason"))


@command(
    Argument("refs", "RUN...", many=True, completes=LIVE_RUNS),
    JSON,
    examples=("hocket stop 42", "hocket stop 42 43 --json"),
)
def stop(refs: tuple[str, ...], as_json: bool) -> int:
    """Stop runs with every process they started, and wait until all of them are gone."""
    client = access.connect()
    return max(_stop_one(client, ref, as_json) for ref in refs)


def _stop_one(client: Client, ref: str, as_json: bool) -> int:
    """Stop one run; an error is printed and does not keep the others from being stopped."""
    try:
        stopped = client.request("POST", f"/api/runs/{quote(ref)}/stop", {})
    except HocketError as error:
        print(f"hocket: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    survivors = stopped["survivors"]
    if as_json:
        access.write_json(stopped)
    else:
        below = len(set(stopped["stopped"]) - {stopped["run"]})
        too = f"; {below} run{'s' if below > 1 else ''} below it ended too" if below else ""
        left = f"; still alive: {', '.join(map(str, survivors))}" if survivors else ""
        access.write(f"{ref}  {status_and_reason(stopped)}{too}{left}\n")
    return 1 if survivors else 0


@command(
    REF,
    Option("-f", "--follow", kind=FLAG, help="Continue until the run has ended."),
    Option("-n", "--lines", kind=COUNT, metavar="N", help="Print only the last N lines, or with --json events."),
    Option("--raw", kind=FLAG, help="Print the agent's standard output, byte for byte."),
    Option("--err", kind=FLAG, help="Print standard error instead."),
    Option("-v", "--verbose", kind=FLAG, help="Print the thinking of agents too."),
    JSON,
    examples=("hocket logs -f 42", "hocket logs -f -n 20 42", "hocket logs 42 --raw > out.txt"),
)
def logs(ref: str, follow: bool, lines: int | None, raw: bool, err: bool, verbose: bool, as_json: bool) -> None:
    """Print the prompt and the output of a run; for a chain those of all its processes, in order."""
    if raw and as_json:
        raise ArgumentError("give --raw or --json, not both")
    client = access.connect(talk=not as_json)
    found = client.run(ref)
    run = found["id"]
    view = steady_view(run)

    def log_lines(event: Event) -> list[str]:
        view.add(event)
        return [] if err and event["type"] != "raw" else lines_of(view, event, verbose)

    if raw:
        _write_raw(client, run, "err" if err else "out", follow, lines)
    elif lines is not None and is_read_behind(found) and not (follow or err or as_json):
        _write_last_screen(client, found, lines, log_lines)
    elif as_json:
        _write_events(client, run, follow, lines, lambda event: [json.dumps(event)])
    else:
        _write_events(client, run, follow, lines, log_lines)


def is_read_behind(run: Run) -> bool:
    """True if the transcript of a run may have more than its events."""
    return run["origin"] == "observed" and run["status"] not in ENDED


def _write_last_screen(client: Client, run: Run, lines: int, lines_for: Callable[[Event], list[str]]) -> None:
    """Write the last lines of a session that Hocket did not start, from the end of its transcript, however long."""
    last: deque[str] = deque(maxlen=lines)
    about = {"seq": 0, "run": run["id"], "root": run["root"]}
    created = {name: run[name] for name in ("number", "kind", "agent", "parent")}
    lines_for({**about, "ts": run["created_at"], "type": "run.created", "data": created})
    # Many an event has no line of its own.
    count = min(EVENTS_PER_LINE * lines, MOST_EVENTS)
    for event in client.request("GET", f"/api/runs/{run['id']}/transcript?last={count}"):
        last.extend(lines_for({**about, "ts": event["at"], "type": event["type"], "data": event["data"]}))
    access.write_lines(last)


def _write_raw(client: Client, run: str, stream: str, follow: bool, lines: int | None) -> None:
    sys.stdout.flush()
    skipped: dict[str, int] = {}
    """How many bytes of each process are covered by the last lines."""
    if lines is not None:
        end = b""
        for leaf in _leaves(client, run, False):
            for piece in client.output(leaf, stream):
                skipped[leaf] = skipped.get(leaf, 0) + len(piece)
                end = last_lines(end + piece, lines)
        _write_bytes(end)
    for leaf in _leaves(client, run, follow) if follow or lines is None else ():
        for piece in client.output(leaf, stream, follow, skipped.get(leaf, 0)):
            _write_bytes(piece)


def _write_bytes(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def last_lines(text: bytes, count: int) -> bytes:
    """The last ``count`` lines of a text; the very last need not end with a newline."""
    at = len(text) - text.endswith(b"\n")
    for _ in range(count):
        at = text.rfind(b"\n", 0, at)
        if at < 0:
            return text
    return text[at + 1 :]


def _leaves(client: Client, ref: str, follow: bool) -> Iterator[str]:
    """The processes of a run, in the order of their start."""
    run = client.run(ref)
    if run["kind"] in PROCESS_KINDS:
        yield run["id"]
        return
    for event in client.follow(run["id"], follow=follow):
        if event["type"] == "run.created" and event["data"].get("kind") in PROCESS_KINDS:
            yield event["run"]


def _write_events(
    client: Client, run: str, follow: bool, lines: int | None, lines_for: Callable[[Event], list[str]]
) -> None:
    """Write the lines of each event; with ``lines`` only the last of those that are there already."""
    after = 0
    if lines is not None:
        last: deque[str] = deque(maxlen=lines)
        for event in client.follow(run, follow=False):
            last.extend(lines_for(event))
            after = event["seq"]
        access.write_lines(last)
        sys.stdout.flush()
    for later in client.follow_ticking(run, FLUSH_SECONDS, after, follow) if follow or lines is None else ():
        if later is None:
            sys.stdout.flush()
            continue
        for line in lines_for(later):
            access.write(f"{line}\n")
