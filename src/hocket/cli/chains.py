"""``chains worktrees``: the named chains of the configuration, what a chain starts, and the worktrees it leaves."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.format import STATUS_LABELS, format_table, truncate
from hocket.cli.usage import COUNT, FLAG, JSON, Argument, ArgumentError, Option, command
from hocket.config.settings import suggestion
from hocket.errors import ConfigError
from hocket.views.text import duration, one_line, strip_controls

Row = dict[str, Any]

MAX_CHARACTERS = 60
LINE_END = "↵"


@command(
    Argument("name", "[NAME]", required=False),
    Option("--project", metavar="DIR", help="Use the configuration of this directory."),
    JSON,
    examples=("hocket chains", "hocket chains ship", "hocket chains --project ../shop --json"),
)
def chains(name: str | None, project: str | None, as_json: bool) -> int:
    """List the chains of the configuration files: their steps and what is wrong with them.

    NAME shows one chain completely. Exits with 1 when a file cannot be used, because the list is incomplete then.
    """
    from hocket.workflows.named_chains import survey

    found = survey(access.directory(project), config.home(), config.caller_environment())
    if name is not None:
        chain = _find(name, found)
        access.write_json(chain) if as_json else access.write_lines(map(strip_controls, detail(chain)))
        return 0
    if as_json:
        access.write_json(found)
    else:
        access.write_lines(map(strip_controls, listing(found["chains"], access.terminal_width())))
        _report_problems(found)
    return 1 if found["problems"] else 0


def _find(name: str, found: Row) -> Row:
    """The chain of that name; the error lists the chains there are, and the files that could not be read."""
    chains: dict[str, Row] = {chain["name"]: chain for chain in found["chains"]}
    if name in chains:
        return chains[name]
    broken = "".join(f"\n  {problem['path']}: {problem['reason']}" for problem in found["problems"])
    unread = f". Files that cannot be read:{broken}" if broken else ""
    raise ConfigError(
        f"unknown chain {name!r}. Available chains: {', '.join(chains) or 'none'}{unread}", suggestion(name, chains)
    )


def _report_problems(found: Row) -> None:
    sys.stdout.flush()
    for problem in found["problems"]:
        print(strip_controls(f"hocket: {problem['path']}: {problem['reason']}"), file=sys.stderr)
        if problem["hint"]:
            print(strip_controls(f"hint: {problem['hint']}"), file=sys.stderr)
    if not found["chains"] and not found["problems"]:
        looked = "".join(f"\n  {place}" for place in found["places"])
        print(strip_controls(f"No chains. Looked for:{looked}"), file=sys.stderr)


# --- Named chains -------------------------------------------------------------------------------------------


def listing(rows: list[Row], columns: int | None) -> list[str]:
    """One line for each chain."""
    if not rows:
        return []
    cells = [["CHAIN", "STEPS", "DESCRIPTION"]]
    for row in rows:
        problem = row["problem"] and f"✗ {truncate(one_line(row['problem']), 2 * MAX_CHARACTERS)}"
        text = problem or one_line(row["description"] or "") or "-"
        cells.append([one_line(row["name"]), truncate(one_line(_arrows(row["text"])), MAX_CHARACTERS), text])
    return format_table(cells, columns)


def _arrows(text: str) -> str:
    return text.replace(" -> ", " → ")


def detail(row: Row) -> list[str]:
    """Everything about one chain, and the command that runs it."""
    facts = {
        "chain": row["name"],
        "about": row["description"],
        "file": row["file"],
        "steps": _arrows(row["text"]),
        "prompt": row["prompt"] and _shortened(row["prompt"]),
        "prompt file": row["prompt_file"],
        "gate": _gate(row["until"], row["gate_timeout"]),
        "limits": limits_text(row),
        "marker": row["marker"],
        "mode": row["permission_mode"],
        "questions": row["on_question"],
        "when lost": row["on_lost"],
        "isolation": row["isolation"],
        "problem": row["problem"],
    }
    lines = format_table([[name, one_line(str(value))] for name, value in facts.items() if value])
    for step in row["steps"]:
        times = f" up to {step['iterations']} times" if step["iterations"] else ""
        together = " (in parallel)" if step["grouped"] else ""
        facts = {
            "args": shlex.join(step["args"]),
            "prompt": step["prompt"] and _shortened(step["prompt"]),
            "file": step["prompt_file"],
            "gate": step["until"],
            "limits": limits_text(step, "per iteration"),
            "isolation": step["isolation"],
            "team": {True: "yes", False: "no"}.get(step["team"]),
        }
        lines += ["", f"step {step['step']}: {step['agent']}{times}{together}", *_named(facts)]
    variables = "".join(f" {name}=…" for name in row["variables"])
    return [*lines, "", f"hocket run --chain {row['name']}{variables}"]


def _named(facts: dict[str, Any]) -> list[str]:
    return [f"  {name:8} {one_line(str(value))}" for name, value in facts.items() if value]


# --- What would be started ----------------------------------------------------------------------------------


def step_details(steps: list[Row]) -> list[str]:
    """What a chain or an agent would start, for ``--dry-run`` and ``--verbose``."""
    whole = limits_text(steps[0]["chain_limits"]) if steps else ""
    lines = [f"limits of the chain: {whole}"] if whole else []
    for step in steps:
        position = f"step {step['step']}"
        if step["member"] is not None:
            members = sum(one["step"] == step["step"] for one in steps)
            position += f", {step['member']} of {members} in parallel"
        times = f" up to {step['iterations']} times, until it says {step['marker']}" if step["loop"] else ""
        lines.append(f"{position}: {step['agent']}{times}")
        lines += _named(
            {
                "found": ", ".join(part for part in (step["source"], step["definition"]) if part),
                "runtime": step["provider"] if step["definition"] else "",
                "program": step["path"],
                "argv": shlex.join(_shortened(argument) for argument in step["argv"]),
                "cwd": step["cwd"],
                "worktree": step["repository"] and f"of {step['repository']}",
                "team": step["team"] and ("lead, in a terminal" if step["terminal"] else "lead"),
                "prompt": _shortened(step["prompt"] or ""),
                "limits": limits_text(step["limits"], "per iteration"),
                "gate": _gate(step["gate"], step["gate_timeout"]),
            }
        )
        lines += [f"  note     {one_line(notice)}" for notice in step["notices"]]
    return lines


def _gate(command: str | None, seconds: float | None) -> str:
    from hocket.workflows.gates import TIMEOUT

    return f"{one_line(command)}  (at most {_seconds_text(seconds or TIMEOUT)})" if command else ""


def limits_text(limits: Row, scope: str = "in total") -> str:
    """The limits that are set; ``scope`` says what the time limit applies to."""
    texts = {
        "budget_usd": lambda value: f"${value:.2f}",
        "budget_tokens": lambda value: f"{value} tokens",
        "timeout": lambda value: f"{_seconds_text(value)} {scope}",
        "idle_timeout": lambda value: f"{_seconds_text(value)} without output",
        "failures": lambda value: f"{value} failure{'s in a row' if value > 1 else ''}",
        "no_progress": lambda value: f"{value} iteration{'s' if value > 1 else ''} without progress",
    }
    return " · ".join(texts[name](limits[name]) for name in texts if limits.get(name) is not None)


def _seconds_text(seconds: float) -> str:
    """A duration, or seconds where a duration would drop a fraction."""
    return duration(seconds) if seconds == int(seconds) or seconds >= 60 else f"{seconds:g} s"


def _shortened(text: str) -> str:
    """The beginning of a text on one line, with line ends visible; ``--json`` has all of it."""
    line = " ".join(text[: 4 * MAX_CHARACTERS].rstrip().replace("\n", f" {LINE_END} ").split())
    return line if len(line) <= MAX_CHARACTERS and len(text) <= 4 * MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}..."


# --- Worktrees ----------------------------------------------------------------------------------------------

PRUNE = "prune"
_DAY = 86400


@command(
    Argument("words", "[prune [RUN...]]", many=True, required=False),
    Option("--older", kind=COUNT, metavar="DAYS", help="With prune: only of chains that ended at least DAYS ago."),
    Option("--dry-run", kind=FLAG, help="With prune: list what would be removed, and remove nothing."),
    JSON,
    examples=("hocket worktrees", "hocket worktrees prune --dry-run", "hocket worktrees prune --older 7"),
)
def worktrees(words: tuple[str, ...], older: int | None, dry_run: bool, as_json: bool) -> None:
    """List the git worktrees that steps of chains have left: run, branch, path and contents.

    "prune" removes those that can be removed safely: without uncommitted changes and untracked files. It also removes
    their branches where another branch has all of their commits.
    """
    if words and words[0] != PRUNE:
        raise ArgumentError(f"unknown action {words[0]!r} (only prune)")
    if not words and (older or dry_run):
        raise ArgumentError("--older and --dry-run need prune")
    client = access.connect(talk=not as_json)
    if words:
        body = {"runs": list(words[1:]), "older": (older or 0) * _DAY, "dry_run": dry_run}
        rows: list[Row] = client.request("POST", "/api/worktrees/prune", body)
    else:
        rows = client.request("GET", "/api/worktrees")
    if as_json:
        access.write_json(rows)
        return
    access.write_lines(strip_controls(line) for row in rows for line in _worktree_lines(row, time.time()))
    sys.stdout.flush()
    print(_prune_summary(rows, is_prune=bool(words), dry_run=dry_run), file=sys.stderr)


def _worktree_lines(row: Row, now: float) -> list[str]:
    """The run, the contents, the place, and why it is kept."""
    ended, commits, files = row["ended_at"], row["commits"], row["uncommitted"]
    ago = f" {duration(now - ended)} ago" if ended else ""
    state = f"{STATUS_LABELS.get(row['status'], row['status'])}{ago}"
    contents = "commits unknown" if commits is None else f"{commits} commit{'' if commits == 1 else 's'} not merged"
    if files is None:
        contents += ", uncommitted changes unknown"
    elif files:
        contents += f", {files} file{'' if files == 1 else 's'} not committed"
    if row["also_on"]:
        contents += f", its commits are also on {one_line(row['also_on'])}"
    branch = "with its branch" if row["branch_removed"] else "its branch stays"
    removed = f"  removed, {branch}" if row["removed"] else ""
    kept = [f"    kept: {one_line(row['why'])}"] if row["why"] else []
    return [
        f"{row['number']} {one_line(row['agent'])}  {state}  {contents}{removed}",
        f"    {row['branch']} in {one_line(row['path'])}",
        *kept,
    ]


def _prune_summary(rows: list[Row], *, is_prune: bool, dry_run: bool) -> str:
    if not rows:
        return "No worktrees."
    free = sum(row["why"] is None for row in rows)
    if is_prune and not dry_run:
        return f"{sum(row['removed'] for row in rows)} of {len(rows)} removed"
    more = " · hocket worktrees prune" if free else ""
    return f"{free} of {len(rows)} can be pruned safely{more}"
