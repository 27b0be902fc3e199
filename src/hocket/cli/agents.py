"""``hocket agents``: what can run here, where it comes from, and why. Never needs a server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hocket import config
from hocket.cli.usage import AGENTS, FLAG, JSON, Argument, ArgumentError, Option, command
from hocket.errors import BadDirectory, HocketError

if TYPE_CHECKING:
    from hocket.catalog.entries import Catalog, Problem
    from hocket.cli.roster import Page
    from hocket.config.settings import Config
    from hocket.trust.approvals import Approvals

Table = dict[str, Any]

LEFT_OUT = 1
"""The exit code that says so, to those who asked for it."""


class Wanted:
    """What was asked for."""

    __slots__ = ("as_json", "name", "report", "strict", "trace", "why")

    def __init__(self, name: str | None, as_json: bool, report: bool, trace: bool, why: bool, strict: bool) -> None:
        self.name = name
        self.as_json = as_json
        self.report = report
        self.trace = trace
        self.why = why
        self.strict = strict


@command(
    Argument("name", "[NAME]", required=False, completes=AGENTS),
    JSON,
    Option("--report", kind=FLAG, help="A report in Markdown."),
    Option("--trace", kind=FLAG, help="Also say step by step how they were found."),
    Option("--why", kind=FLAG, help="Of NAME: every candidate, and which file and line each property is from."),
    Option("--strict", kind=FLAG, help="End with 1 when a definition is left out, with 2 without a global folder."),
    Option("--project", metavar="DIR", help="Look from this directory, or from a project of the configuration."),
    examples=(
        "hocket agents",
        "hocket agents builder --why",
        "hocket agents --project ../shop --json",
        "hocket agents --report > agents.md",
    ),
)
def agents(
    name: str | None, as_json: bool, report: bool, trace: bool, why: bool, strict: bool, project: str | None
) -> int:
    """List every agent that can run here, those that are left out, and the reason. NAME shows one of them."""
    wanted = Wanted(name, as_json, report, trace, why, strict)
    _check(wanted)
    place = _place(project)
    return _discovered(wanted, place)


def _check(wanted: Wanted) -> None:
    if wanted.why and wanted.name is None:
        raise ArgumentError("--why needs the name of an agent")
    if wanted.name is not None and (wanted.report or wanted.trace):
        raise ArgumentError("--report and --trace are about all agents, not about one")


# --- Where --------------------------------------------------------------------------------------------------


def _place(project: str | None) -> str:
    """The directory to look from: absolute, and there."""
    here = _here()
    if project is None:
        return here
    named = None if "/" in project else _project_called(project, here)
    path = os.path.abspath(os.path.join(here, _whole(named or project)))
    if not os.path.isdir(path):
        problem = "is not a directory" if os.path.exists(path) else "does not exist"
        raise BadDirectory(f"the project directory {path} {problem}", None if named else _known_projects(here))
    return path


def _whole(path: str) -> str:
    """A path with the user's own directory in place of its tilde, which a configuration may begin with."""
    if path != "~" and not path.startswith("~/"):
        return path
    return config.home_directory(config.process_environment()) + path[1:]


def _here() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise BadDirectory("the current directory does not exist any more", "change to one that does") from error


def _project_called(name: str, here: str) -> str | None:
    """The directory of a project that the configuration names."""
    return _configuration(here)[0].config.projects.get(name)


def _known_projects(here: str) -> str | None:
    names = ", ".join(sorted(_configuration(here)[0].config.projects))
    return f"projects of the configuration: {names}" if names else None


def _configuration(cwd: str) -> tuple[Approvals, list[Problem]]:
    from hocket.trust.check import configuration

    return configuration(cwd, config.home(), config.process_environment())


# --- What ---------------------------------------------------------------------------------------------------


def _discovered(wanted: Wanted, place: str) -> int:
    from hocket.catalog.discovery import require_agents
    from hocket.trust.check import table_of

    catalog, approvals = _look(place, wanted.strict)
    table = table_of(catalog, approvals)
    if wanted.name is not None:
        _show_one(wanted, wanted.name, table, lambda name: _reasons(catalog, table, name, approvals.config))
        return 0
    # Everything that was found is told before it is said that there is nothing to run.
    _show_all(wanted, table)
    require_agents(catalog)
    return _verdict(wanted, table)


def _look(place: str, strict: bool) -> tuple[Catalog, Approvals]:
    from dataclasses import replace

    from hocket.catalog.discovery import discover

    approvals, problems = _configuration(place)
    found = discover(place, config.process_environment(), config.home(), approvals.config, approvals, strict=strict)
    return replace(found, problems=(*found.problems, *problems)), approvals


def addresses() -> list[str]:
    """What can be typed for the agents of this directory, for a shell that completes. Trouble is told elsewhere."""
    try:
        return sorted(_look(_here(), strict=False)[0].addresses.values())
    except HocketError:
        return []


def _reasons(catalog: Catalog, table: Table, name: str, settings: Config) -> dict[str, Any]:
    from hocket.catalog.report import why

    return why(catalog, table, name, settings)


def _verdict(wanted: Wanted, table: Table) -> int:
    from hocket.catalog.report import dropped

    if not wanted.as_json:
        _warn(table)
    return LEFT_OUT if wanted.strict and dropped(table["problems"]) else 0


# --- One, or all --------------------------------------------------------------------------------------------


def _show_one(wanted: Wanted, word: str, table: Table, reasons: Callable[[str], dict[str, Any]] | None = None) -> None:
    from hocket.catalog.report import find_in_table
    from hocket.cli import roster

    agent = table["by_name"][find_in_table(table, word)]
    why = reasons(agent["name"]) if wanted.why and reasons else None
    if wanted.as_json:
        _write_json(agent if why is None else why)
        return
    page = _page()
    _write_lines(roster.detail(agent, page) if why is None else roster.reasons(agent, why, page))


def _show_all(wanted: Wanted, table: Table) -> None:
    from hocket.catalog import report
    from hocket.catalog.routing_table import render

    if wanted.as_json and not (wanted.trace or wanted.report):
        sys.stdout.write(render(table).decode())
        return
    if wanted.as_json:
        trace = {"trace": report.trace(table)} if wanted.trace else {}
        told = {"report": report.markdown(table)} if wanted.report else {}
        _write_json({**trace, **told, **table})
        return
    from hocket.cli import roster

    page = _page()
    if wanted.trace:
        _write_lines([*map(_harmless, report.trace(table, page.shown)), ""])
    if wanted.report:
        sys.stdout.write(_harmless(report.markdown(table, page.shown)))
    else:
        _write_lines(roster.listing(table, page))


def _warn(table: Table) -> None:
    """Global agents are what every project falls back on, so the lack of their folder is worth a word."""
    from hocket.catalog.report import fix_steps, missing_global_folder

    folder = missing_global_folder(table)
    if folder is None:
        return
    steps = "".join(f"  {number}. {step}\n" for number, step in enumerate(fix_steps(folder), 1))
    sys.stdout.flush()
    print(f"hocket: there is no folder of global agents at {folder}. To have some:\n{steps}", end="", file=sys.stderr)


# --- Writing ------------------------------------------------------------------------------------------------


def _page() -> Page:
    from hocket.cli.access import terminal_width
    from hocket.cli.roster import Page

    home = config.home_directory(config.process_environment())
    here = _here()
    colour = config.colour_wanted(sys.stdout.isatty())
    return Page(terminal_width(), colour, lambda path: shortened(path, here, home))


def shortened(path: str, here: str, home: str) -> str:
    """A path as somebody would write it who is here."""
    for folder, instead in ((here, ""), (home, "~/")):
        inside = folder.rstrip("/") + "/"
        if folder != "/" and path.startswith(inside):
            return instead + path[len(inside) :]
    return path


def _write_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _harmless(text: str) -> str:
    from hocket.views.text import strip_controls

    return strip_controls(text)
