"""``hocket team``: the teammates and shared tasks of a run that leads a team, and what teams have left."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cli import access
from hocket.cli.format import format_table, short_count, truncate
from hocket.cli.usage import FLAG, JSON, RUNS, Argument, ArgumentError, Option, command
from hocket.client import Client, quote
from hocket.errors import HocketError
from hocket.views.names import agent_name
from hocket.views.text import one_line, strip_controls

Row = dict[str, Any]

DECLINED = 1
NAME_COLUMNS, AGENT_COLUMNS, BLOCKED_COLUMNS = 20, 16, 12
STATUS_LABELS = {
    "active": "● active",
    "idle": "○ idle",
    "stopped": "■ stopped",
    "pending": "◌ pending",
    "in_progress": "● in progress",
    "completed": "✓ completed",
}


@command(
    Argument("ref", "[RUN]", required=False, completes=RUNS),
    Option("--orphans", kind=FLAG, help="List what is left of teams whose leads died, instead of one team."),
    Option("--clean", kind=FLAG, help="With --orphans: move it to the trash in HOCKET_HOME, after asking."),
    Option("-y", "--yes", kind=FLAG, help="Clean without asking; required without a terminal and with --json."),
    JSON,
    examples=("hocket team 42", "hocket team 42 --json", "hocket team --orphans", "hocket team --orphans --clean"),
)
def team(ref: str | None, orphans: bool, clean: bool, yes: bool, as_json: bool) -> int:
    """Show the team that a run leads: its teammates and the tasks that they share.

    With --orphans list the folders that teams have left whose leads died, with their exact paths. Only those of leads
    that Hocket started are listed, and nothing else of the CLI is ever touched.
    """
    if orphans == (ref is not None):
        raise ArgumentError("give either RUN or --orphans")
    if (clean or yes) and not (orphans and clean):
        raise ArgumentError("--clean needs --orphans, and --yes needs --clean")
    client = access.connect(talk=not as_json)
    if ref is not None:
        _show(client, ref, as_json)
        return 0
    rows: list[Row] = client.request("GET", "/api/teams/orphans")
    return _clean(client, rows, yes=yes, as_json=as_json) if clean else _list(rows, as_json)


# --- One team -----------------------------------------------------------------------------------------------


def _show(client: Client, ref: str, as_json: bool) -> None:
    run: Row = client.request("GET", f"/api/runs/{quote(ref)}")
    path = f"/api/agents/{quote(run['id'])}"
    teammates, tasks = (
        access.snake_keys(client.request("GET", f"{path}/{name}")) for name in ("teammates", "team-tasks")
    )
    runs = {child["id"]: child for child in run["children"]}
    tasks = [{"owner": None, **one} for one in tasks]
    teammates = [_with_run(one, runs.get(one["run"], {})) for one in teammates]
    if as_json:
        access.write_json({"run": run["id"], "teammates": teammates, "tasks": tasks})
    elif teammates or tasks:
        access.write_lines(strip_controls(line) for line in team_lines(teammates, tasks, access.terminal_width()))
    elif run["teammate"] is not None:
        lead = client.run(run["parent"])["number"]
        print(f"Run {run['number']} is a teammate of run {lead}: hocket team {lead}", file=sys.stderr)
    else:
        print(f"Run {run['number']} has no teammates and no shared tasks.", file=sys.stderr)
    if run["status"] == "lost" and not as_json:
        print(strip_controls(one_line(f"Run {run['number']} is lost: {run['error']}")), file=sys.stderr)


def _with_run(teammate: Row, run: Mapping[str, Any]) -> Row:
    """A teammate with the facts of its own run."""
    return {"current_task": None, **teammate, "number": run.get("number"), "tokens": run.get("tokens")}


def team_lines(teammates: Sequence[Row], tasks: Sequence[Row], columns: int | None) -> list[str]:
    """The lines of a team: a table of teammates and one of tasks."""
    lines = []
    if teammates:
        heads = ["NAME", "STATUS", "AGENT", "TOK", "RUN", "TASK"]
        lines += format_table([heads, *map(_teammate_cells, teammates)], columns)
    if tasks:
        heads = ["TASK", "STATUS", "OWNER", "BLOCKED BY", "SUBJECT"]
        lines += [*([""] if lines else []), *format_table([heads, *map(_task_cells, tasks)], columns)]
    return lines


def _teammate_cells(one: Row) -> list[str]:
    return [
        truncate(one_line(one["name"]), NAME_COLUMNS),
        STATUS_LABELS.get(one["status"], str(one["status"])),
        truncate(agent_name(one_line(one["agent"] or "-")), AGENT_COLUMNS),
        short_count(one["tokens"]) or "-",
        str(one["number"] or "-"),
        one_line(one["current_task"] or "-"),
    ]


def _task_cells(one: Row) -> list[str]:
    return [
        one_line(one["id"]),
        STATUS_LABELS.get(one["status"], str(one["status"])),
        truncate(one_line(one["owner"] or "-"), NAME_COLUMNS),
        truncate(one_line(", ".join(one["blocked_by"]) or "-"), BLOCKED_COLUMNS),
        one_line(one["subject"]),
    ]


# --- What is left -------------------------------------------------------------------------------------------


def _list(rows: Sequence[Row], as_json: bool) -> int:
    if as_json:
        access.write_json(rows)
    else:
        _print_orphans(rows)
    return 0


def _print_orphans(rows: Sequence[Row]) -> None:
    """Each team with its paths, which are never cut."""
    for row in rows:
        access.write_lines(
            strip_controls(line) for line in (f"run {row['number']}  {one_line(row['team'])}", *_paths(row["paths"]))
        )
    sys.stdout.flush()
    if not rows:
        print("No team has left anything.", file=sys.stderr)


def _paths(paths: Sequence[str]) -> list[str]:
    return [f"    {one_line(path)}" for path in paths]


def _clean(client: Client, rows: Sequence[Row], *, yes: bool, as_json: bool) -> int:
    if not as_json:
        _print_orphans(rows)
    elif not yes:
        access.write_json(rows)
    if rows and not yes and not access.can_ask(as_json):
        print("hocket: nothing was moved: cleaning up needs a terminal, or --yes", file=sys.stderr)
        return access.EXIT_ASKS
    teams = f"{len(rows)} team{'' if len(rows) == 1 else 's'}"
    if rows and not yes and not access.confirm(f"Move what is left of {teams} to the trash?"):
        return DECLINED
    runs = dict.fromkeys(row["run"] for row in rows)
    done, refusals = list[Row](), list[HocketError]()
    for run in runs:
        try:
            done.append(client.request("POST", f"/api/teams/orphans/{quote(run)}/clean", {}))
        except HocketError as error:  # The others can be cleaned up all the same.
            refusals.append(error)
    _print_cleaned(done, as_json=as_json, yes=yes)
    for refusal in refusals[1:]:
        print(f"hocket: {strip_controls(one_line(refusal.message))}", file=sys.stderr)
    if refusals:
        raise refusals[0]
    return 0


def _print_cleaned(done: Sequence[Row], *, as_json: bool, yes: bool) -> None:
    if as_json:
        if yes:
            access.write_json(done)
        return
    for one in done:
        access.write_lines(strip_controls(f"moved to {one_line(folder)}") for folder in one["trash"])
