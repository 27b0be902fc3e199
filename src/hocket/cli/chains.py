"""``hocket chains``: the chains that have a name here. And what any chain would start, in lines, for ``--dry-run``.

Never needs a server: it reads what the server would read.
"""

from __future__ import annotations

import sys
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.format import duration, fit, harmless, one_line, table
from hocket.cli.usage import JSON, Argument, Option, command
from hocket.errors import ConfigError

Row = dict[str, Any]

SHOWN = 60
LINE_END = "↵"


@command(
    Argument("name", "[NAME]", required=False),
    Option("--project", metavar="DIR", help="Look from this directory."),
    JSON,
    examples=("hocket chains", "hocket chains ship", "hocket chains --project ../shop --json"),
)
def chains(name: str | None, project: str | None, as_json: bool) -> int:
    """List the chains of the configuration files: their steps, where they are written, and what is wrong with them.

    NAME shows one of them in full. Ends with 1 when a file cannot be used, because the list is not complete then.
    """
    from hocket.workflows.named_chains import survey

    found = survey(access.directory(project), config.home(), config.caller_environment())
    if name is not None:
        chain = _called(name, found)
        access.write_json(chain) if as_json else _write(detail(chain))
        return 0
    if as_json:
        access.write_json(found)
    else:
        _write(listing(found["chains"], access.terminal_width()))
        _tell_problems(found)
    return 1 if found["problems"] else 0


def _called(name: str, found: Row) -> Row:
    """The chain of that name; the error tells which there are, and which files could not be read."""
    chain: Row | None = next((chain for chain in found["chains"] if chain["name"] == name), None)
    if chain is not None:
        return chain
    from hocket.config.settings import meant

    known = [chain["name"] for chain in found["chains"]]
    broken = "".join(f"\n  {problem['path']}: {problem['reason']}" for problem in found["problems"])
    unread = f". Files that cannot be read:{broken}" if broken else ""
    raise ConfigError(
        f"there is no chain {name!r}. Available chains: {', '.join(known) or 'none'}{unread}", meant(name, known)
    )


def _write(lines: list[str]) -> None:
    access.write("".join(f"{harmless(line)}\n" for line in lines))


def _tell_problems(found: Row) -> None:
    sys.stdout.flush()
    for problem in found["problems"]:
        print(harmless(f"hocket: {problem['path']}: {problem['reason']}"), file=sys.stderr)
        if problem["hint"]:
            print(harmless(f"hint: {problem['hint']}"), file=sys.stderr)
    if not found["chains"] and not found["problems"]:
        looked = "".join(f"\n  {place}" for place in found["places"])
        print(harmless(f"No chain has a name here. Looked for:{looked}"), file=sys.stderr)


# --- Chains with a name -------------------------------------------------------------------------------------


def listing(rows: list[Row], columns: int | None) -> list[str]:
    """One line for each chain."""
    if not rows:
        return []
    cells = [["CHAIN", "STEPS", "DESCRIPTION"]]
    for row in rows:
        said = f"✗ {fit(one_line(row['problem']), 2 * SHOWN)}" if row["problem"] else one_line(row["description"] or "")
        cells.append([one_line(row["name"]), fit(one_line(_arrows(row["text"])), SHOWN), said or "-"])
    return table(cells, columns)


def _arrows(text: str) -> str:
    return text.replace(" -> ", " → ")


def detail(row: Row) -> list[str]:
    """All about one chain, and the line that runs it."""
    facts = {
        "chain": row["name"],
        "about": row["description"],
        "file": row["file"],
        "steps": _arrows(row["text"]),
        "prompt": row["prompt"] and _shortened(row["prompt"]),
        "prompt file": row["prompt_file"],
        "gate": _gate(row["until"], row["gate_timeout"]),
        "limits": limit_words(row),
        "marker": row["marker"],
        "mode": row["permission_mode"],
        "questions": row["on_question"],
        "when lost": row["on_lost"],
        "isolation": row["isolation"],
        "problem": row["problem"],
    }
    lines = table([[name, one_line(str(value))] for name, value in facts.items() if value])
    for step in row["steps"]:
        lines += ["", *_step_lines(step)]
    variables = "".join(f" {name}=…" for name in row["variables"])
    return [*lines, "", f"hocket run --chain {row['name']}{variables}"]


def _step_lines(step: Row) -> list[str]:
    import shlex

    times = f" up to {step['iterations']} times" if step["iterations"] else ""
    together = " (at the same time)" if step["grouped"] else ""
    facts = {
        "args": shlex.join(step["args"]),
        "prompt": step["prompt"] and _shortened(step["prompt"]),
        "file": step["prompt_file"],
        "gate": step["until"],
        "limits": limit_words(step, "a pass"),
        "isolation": step["isolation"],
    }
    return [f"step {step['step']}: {step['agent']}{times}{together}", *_named(facts)]


def _named(facts: dict[str, Any]) -> list[str]:
    return [f"  {name:8} {one_line(str(value))}" for name, value in facts.items() if value]


# --- What would be started ----------------------------------------------------------------------------------


def described(steps: list[Row]) -> list[str]:
    """What a chain or an agent would start, with nothing left to look up."""
    import shlex

    whole = limit_words(steps[0]["chain_limits"]) if steps else ""
    lines = [f"the whole chain: {whole}"] if whole else []
    for step in steps:
        lines.append(f"{_place(step, steps)}: {step['agent']}{_times(step)}")
        lines += _named(
            {
                "found": _origin(step),
                "program": step["path"],
                "argv": shlex.join(_shortened(argument) for argument in step["argv"]),
                "cwd": step["cwd"],
                "worktree": step["repository"] and f"its own, of {step['repository']}",
                "prompt": _shortened(step["prompt"] or ""),
                "limits": limit_words(step["limits"], "a pass"),
                "gate": _gate(step["gate"], step["gate_timeout"]),
            }
        )
        lines += [f"  note     {one_line(notice)}" for notice in step["notices"]]
    return lines


def _place(step: Row, steps: list[Row]) -> str:
    if step["member"] is None:
        return f"step {step['step']}"
    members = sum(one["step"] == step["step"] for one in steps)
    return f"step {step['step']}, {step['member']} of {members} at the same time"


def _times(step: Row) -> str:
    return f" up to {step['iterations']} times, until it says {step['marker']}" if step["loop"] else ""


def _origin(step: Row) -> str:
    """Where the agent was found, since one name may mean several."""
    return ", ".join(part for part in (step["source"], step["definition"]) if part)


def _gate(command: str | None, seconds: float | None) -> str:
    from hocket.workflows.gates import TIMEOUT

    return f"{one_line(command)}  (at most {_span(seconds or TIMEOUT)})" if command else ""


def limit_words(limits: Row, whole: str = "in all") -> str:
    """The bounds that there are, in words; ``whole`` says what the time limit is for."""
    words = {
        "budget_usd": lambda value: f"${value:.2f}",
        "budget_tokens": lambda value: f"{value} tokens",
        "timeout": lambda value: f"{_span(value)} {whole}",
        "idle_timeout": lambda value: f"{_span(value)} of silence",
        "failures": lambda value: f"{value} failure{'s in a row' if value > 1 else ''}",
        "no_progress": lambda value: f"{value} pass{'es' if value > 1 else ''} without progress",
    }
    return " · ".join(words[name](limits[name]) for name in words if limits.get(name) is not None)


def _span(seconds: float) -> str:
    """As a duration, or in seconds where that would hide a part of them."""
    return duration(seconds) if seconds == int(seconds) or seconds >= 60 else f"{seconds:g} s"


def _shortened(text: str) -> str:
    """The beginning of a text, on one line with its line ends visible. Programs get all of it with --json."""
    line = " ".join(text[: 4 * SHOWN].rstrip().replace("\n", f" {LINE_END} ").split())
    return line if len(line) <= SHOWN and len(text) <= 4 * SHOWN else f"{line[:SHOWN]}..."
