"""``hocket agents``: the agents that can run here, where each comes from, and why. Needs no server."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hocket import config
from hocket.catalog import report
from hocket.catalog.discovery import discover, require_agents
from hocket.catalog.entries import LOCATIONS, Catalog
from hocket.catalog.explanation import explain, runtime_row
from hocket.catalog.report import (
    ABSENT,
    DROPPED,
    LEFT_OUT,
    NOTHING_HERE,
    SHADOWED,
    USED,
    at,
    count,
    loaded_note,
    note,
    selected,
    spelled,
    summary,
    trust_line,
)
from hocket.catalog.routing_table import render
from hocket.cli import access
from hocket.cli.format import display_width, paint, truncate, typable, wrap
from hocket.cli.usage import AGENTS, FLAG, JSON, Argument, ArgumentError, Option, command
from hocket.errors import BadDirectory, HocketError
from hocket.trust.approvals import Approvals
from hocket.trust.check import authorize, configuration, table_of
from hocket.views.text import one_line, strip_controls

Row = Mapping[str, Any]

EXIT_DROPPED = 1
"""With ``--strict``, if a definition is left out."""


@command(
    Argument("name", "[NAME]", required=False, completes=AGENTS),
    JSON,
    Option("--report", name="as_report", kind=FLAG, help="Print a report in Markdown."),
    Option("--trace", kind=FLAG, help="Print how the agents were found."),
    Option("--why", kind=FLAG, help="Explain NAME: every candidate, and the file and line of each property."),
    Option("--strict", kind=FLAG, help="Exit with 1 when a definition is left out, with 2 without a global folder."),
    Option("--project", metavar="DIR", help="Use this directory, or a project of the configuration."),
    examples=(
        "hocket agents",
        "hocket agents builder --why",
        "hocket agents --project ../shop --json",
        "hocket agents --report > agents.md",
    ),
)
def agents(
    name: str | None, as_json: bool, as_report: bool, trace: bool, why: bool, strict: bool, project: str | None
) -> int:
    """List the agents that can run here, and the definitions that are left out and why. NAME shows one agent."""
    if why and name is None:
        raise ArgumentError("--why needs the name of an agent")
    if name is not None and (as_report or trace):
        raise ArgumentError("--report and --trace cannot be combined with NAME")
    catalog, approvals = _discover(_directory(project), strict)
    table = table_of(catalog, approvals, config.process_environment())
    if name is not None:
        env, cwd = config.process_environment(), catalog.cwd or access.directory(None)
        if why:
            allowed = partial(authorize, cwd=cwd, approvals=approvals, catalog=lambda: catalog)
            agent = explain(name, catalog, table, approvals.config, env, allowed)
        else:
            agent = table["by_name"][report.find(catalog, name)]
            agent |= runtime_row(name, cwd, env, approvals.config, lambda: catalog)
        show = why_lines if why else detail
        access.write_json(agent) if as_json else access.write_lines(show(agent, _page()))
        return 0
    # Show everything that was found before the error that there is no agent.
    _show_all(table, as_json, as_report, trace)
    require_agents(catalog)
    folder = None if as_json else report.missing_global_folder(table)
    if folder is not None and access.is_first_time("global-folder"):
        sys.stdout.flush()
        steps = "".join(f"  {number}. {step}\n" for number, step in enumerate(report.fix_steps(folder), 1))
        print(f"hocket: no folder of global agents at {folder}. To create it:\n{steps}", end="", file=sys.stderr)
    return EXIT_DROPPED if strict and report.dropped(table["problems"]) else 0


# --- Discovery ----------------------------------------------------------------------------------------------


def _directory(project: str | None) -> str:
    """The absolute path of an existing directory, which may be a project of the configuration."""
    here = access.directory(None)
    if project is None:
        return here
    env = config.process_environment()
    projects = {} if "/" in project else configuration(here, config.home(), env)[0].config.projects
    path = projects.get(project, project)
    if path == "~" or path.startswith("~/"):
        path = config.home_directory(env) + path[1:]
    path = os.path.abspath(os.path.join(here, path))
    if not os.path.isdir(path):
        problem = "is not a directory" if os.path.exists(path) else "does not exist"
        known = f"projects of the configuration: {', '.join(sorted(projects))}" if projects else None
        raise BadDirectory(f"the project directory {path} {problem}", None if project in projects else known)
    return path


def _discover(directory: str, strict: bool) -> tuple[Catalog, Approvals]:
    env, home = config.process_environment(), config.home()
    approvals, problems = configuration(directory, home, env)
    found = discover(directory, env, home, approvals.config, approvals, strict=strict)
    return replace(found, problems=(*found.problems, *problems)), approvals


def addresses() -> list[str]:
    """The addresses of the agents of this directory, for shell completion; empty on an error."""
    try:
        return sorted(_discover(access.directory(None), strict=False)[0].addresses.values())
    except HocketError:
        return []


def _show_all(table: Row, as_json: bool, as_report: bool, trace: bool) -> None:
    if as_json and not (trace or as_report):
        sys.stdout.write(render(table).decode())
        return
    if as_json:
        messages = {"trace": report.trace(table)} if trace else {}
        text = {"report": report.markdown(table)} if as_report else {}
        access.write_json({**messages, **text, **table})
        return
    page = _page()
    if trace:
        access.write_lines([*map(strip_controls, report.trace(table, page.shown)), ""])
    if as_report:
        sys.stdout.write(strip_controls(report.markdown(table, page.shown)))
    else:
        access.write_lines(listing(table, page))


def _page() -> AgentsPage:
    home = config.home_directory(config.process_environment())
    here = access.directory(None)
    colour = config.colour_wanted(sys.stdout.isatty())
    return AgentsPage(access.terminal_width(), colour, lambda path: shortened(path, here, home))


def shortened(path: str, here: str, home: str) -> str:
    """A path relative to the current directory or to the home directory, if it is inside."""
    for folder, instead in ((here, ""), (home, "~/")):
        inside = folder.rstrip("/") + "/"
        if folder != "/" and path.startswith(inside):
            return instead + path[len(inside) :]
    return path


# --- Rendering ----------------------------------------------------------------------------------------------

PIPE_TEXT = 200
"""The length of a description where no terminal limits it."""
ROOM = 20
"""The narrowest useful description column."""
FEW = 3
"""More files than this with the same minor problem share one row on a terminal."""
WIDE = 100
BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
NO_MODEL, ALL_TOOLS = "-", "all"
"""Cells of a definition that does not say."""
_TOOL = re.compile(r"[^\s,(]+(?:\([^)]*\))?")
_STYLES = {"project": CYAN, "✓": GREEN, "✗": RED, "!": YELLOW, "◆": YELLOW}
_MARKS = {USED: "✓", LEFT_OUT: "✗"}
_NOTES = {ABSENT: "does not exist", NOTHING_HERE: "has no agent of that name"}
_NOTHING = {"model": "default of the CLI", "tools": ALL_TOOLS, "instructions": "the text of the definition"}


class AgentsPage(NamedTuple):
    """The output: its width, whether it has colours, and how paths are shortened."""

    columns: int | None = None
    """None for unlimited."""
    colour: bool = False
    shown: Callable[[str], str] = str

    def paint(self, text: str, style: str | None) -> str:
        return paint(text, style, self.colour)

    def sentence(self, text: str) -> str:
        """A sentence on one line, with its paths shortened."""
        return " ".join(self.shown(word) if word.startswith("/") else word for word in one_line(text).split(" "))

    def wrapped(self, text: str, indent: int) -> list[str]:
        """The lines of an indented text; one line without a width."""
        return [text] if self.columns is None else wrap(text, max(16, self.columns - indent))


def listing(table: Row, page: AgentsPage) -> list[str]:
    """All agents, missing approvals, and problems."""
    agents = list(table["by_name"].values())
    # Wrapped only after commas and colons, so that a number stays with its noun.
    headline = page.wrapped(re.sub("(?<![,:]) ", "\N{NO-BREAK SPACE}", summary(table)), 0)
    lines = [page.paint(line.replace("\N{NO-BREAK SPACE}", " "), BOLD) for line in headline]
    lines += ["", *_agents(agents, page)] if agents else []
    needy = [agent for agent in agents if agent["needs_trust"]]
    needs = "agent needs" if len(needy) == 1 else "agents need"
    lines += ["", *_needing_trust(f"{len(needy)} {needs} your approval", needy, page)] if needy else []
    return lines + (["", *_problems(table["problems"], page)] if table["problems"] else [])


# --- The table ----------------------------------------------------------------------------------------------


def _agents(agents: Sequence[Row], page: AgentsPage) -> list[str]:
    """The table. On a terminal, columns that say nothing or leave no room for descriptions are left out."""
    total = page.columns
    most = 40 if total is None else max(total * 2 // 5, min(total - 18, 32))  # names are typed, so they are not cut
    few = 3 if total is None or total >= WIDE else 1
    columns = [
        ["NAME", *(truncate(_name(agent, most), most) for agent in agents)],
        ["SOURCE", *(truncate(_source(agent), 20) for agent in agents)],
        ["MODEL", *(truncate(_model(agent), 16) for agent in agents)],
        ["TOOLS", *(truncate(_tools(agent, few), 24) for agent in agents)],
    ]
    room = PIPE_TEXT
    if total is not None:
        columns = columns[:2] + [column for column in columns[2:] if {*column[1:]} - {NO_MODEL, ALL_TOOLS}]
        while (room := total - sum(max(map(display_width, one)) + 2 for one in columns)) < ROOM and len(columns) > 2:
            columns.pop()
    widths = [max(map(display_width, column)) for column in columns]
    lines = []
    for number, row in enumerate(zip(*columns, strict=True)):
        text = one_line(agents[number - 1]["description"])[: 4 * PIPE_TEXT] if number else "DESCRIPTION"
        last = truncate(text, room) if room >= ROOM else ""
        cells = [cell + " " * (wide - display_width(cell)) for cell, wide in zip(row, widths, strict=True)]
        if not last:
            cells[-1] = cells[-1].rstrip()
        painted = [page.paint(cell, _style_of(place, cell)) if number else cell for place, cell in enumerate(cells)]
        line = "  ".join([*painted, last] if last else painted)
        lines.append(line if number else page.paint(line, DIM))
    return lines


def _style_of(place: int, cell: str) -> str | None:
    if place == 0:
        return BOLD
    if place == 1:
        return YELLOW if "▲" in cell else _STYLES.get(cell.split(maxsplit=1)[0])
    return DIM


def _name(agent: Row, limit: int) -> str:
    """The name, and its address if that differs; the address alone if both do not fit."""
    name, address = one_line(agent["name"]), agent["address"]
    both = name if name == address else f"{name} ({address})"
    return both if display_width(both) <= limit else address


def _source(agent: Row) -> str:
    """``global``, or ``project ▲ global`` for one that overrides another."""
    hidden = [_short(shadow["source"]) for shadow in agent["shadows"]]
    return f"{_short(agent['location'])} ▲ {hidden[0]}" if hidden else _short(agent["location"])


def _short(location: str) -> str:
    return "project" if location == LOCATIONS["project"] else location


def written_field(agent: Row, *fields: str) -> Any:
    """The value in the definition of the first of these fields that it has."""
    written = {spelled(key): value for key, value in agent["full_metadata"].items()}
    return next((written[field] for field in fields if written.get(field) is not None), None)


def _model(agent: Row) -> str:
    """The model as written, such as ``haiku``, if it is part of the full name of the model in use."""
    written, model = written_field(agent, "model"), agent["model"] or ""
    own = isinstance(written, str) and written.lower() in model.lower()
    return one_line(written if own else model) or NO_MODEL


def _tools(agent: Row, few: int) -> str:
    names = tool_names(written_field(agent, "tools", "allowed_tools"))
    if not names:
        return ALL_TOOLS if written_field(agent, "tools", "allowed_tools") is None else "none"
    plain = [one_line(name).partition("(")[0] for name in names]
    more = f" +{len(plain) - few}" if len(plain) > few else ""
    return " ".join(plain[:few]) + more


def tool_names(written: Any) -> list[str]:
    """The tools of a list, or of a text separated by commas or spaces."""
    if isinstance(written, str):
        return _TOOL.findall(written)
    return [str(name) for name in written] if isinstance(written, list) else []


# --- Approvals and problems ---------------------------------------------------------------------------------


def _needing_trust(title: str, agents: Sequence[Row], page: AgentsPage) -> list[str]:
    lines = [page.paint(title, BOLD)]
    for agent in agents:
        lines += _marked("◆", one_line(agent["name"]), page.sentence("; ".join(agent["needs_trust"])), page)
        # A command to copy, so it is never cut.
        lines.append(f"    {strip_controls(typable(agent.get('trust') or trust_line(agent) or ''))}")
    return lines


def _problems(problems: Sequence[Row], page: AgentsPage) -> list[str]:
    """Definitions that are left out first, then minor problems; many with the same reason share a row on a terminal."""
    lines = [page.paint(count(len(problems), "problem"), BOLD)]
    groups: dict[Any, list[Row]] = {}
    for place, problem in enumerate(sorted(problems, key=lambda one: one["kind"] not in DROPPED)):
        key = place if problem["kind"] in DROPPED else (problem["kind"], problem["reason"], problem["claude_loads"])
        groups.setdefault(key, []).append(problem)
    for alike in groups.values():
        mark = "✗" if alike[0]["kind"] in DROPPED else "!"
        reason = page.sentence(alike[0]["reason"]) + loaded_note(alike[0])
        heads = [one_line(at(problem, page.shown)) for problem in alike]
        if page.columns is not None and len(heads) > FEW:
            heads = [f"{count(len(heads), 'file')} such as {heads[0]}"]
        lines += [line for head in heads for line in _marked(mark, head, reason, page)]
    return lines


def _marked(mark: str, head: str, text: str, page: AgentsPage) -> list[str]:
    """``✗ head  text``, the text below the head where there is no room beside it."""
    glyph = page.paint(mark, _STYLES[mark])
    if page.columns is None or 4 + display_width(head) + display_width(text) <= page.columns:
        return [f"{glyph} {head}  {text}"]
    return [f"{glyph} {head}", *(f"    {line}" for line in page.wrapped(text, 4))]


# --- One agent ----------------------------------------------------------------------------------------------


def detail(agent: Row, page: AgentsPage) -> list[str]:
    """One agent: its definition, and what it still needs."""
    written, model = _model(agent), agent["model"]
    facts = {
        "address": agent["address"] if agent["address"] != agent["name"] else "",
        "file": page.shown(agent["path"]),
        "alias of": agent.get("target") or "",
        "overrides": ", ".join(f"{page.shown(one['path'])} ({one['source']})" for one in agent["shadows"]),
        "description": agent["description"],
        "runs with": agent.get("runtime") or "",
        "team": "leads one" if agent.get("team") else "",
        "model": written if written == model else f"{written} ({model})" if model else _NOTHING["model"],
        "tools": ", ".join(tool_names(written_field(agent, "tools", "allowed_tools"))) or _tools(agent, 3),
        "permissions": str(written_field(agent, "permission_mode") or ""),
        "version": agent["version"],
        "tags": ", ".join(agent["tags"]),
        "delegates to": ", ".join(agent["delegates_to"]),
    }
    shown = {name: one_line(text) for name, text in facts.items() if text}
    lines = [page.paint(one_line(selected(agent)), BOLD), ""]
    indent = max(map(len, shown)) + 2
    for name, text in shown.items():
        first, *rest = page.wrapped(text, indent)
        lines.append(page.paint(name.ljust(indent), DIM) + first)
        lines += [" " * indent + line for line in rest]
    more = f"hocket run {agent['address']} · hocket agents {agent['address']} --why"
    lines += _closing(note(agent, page.shown), agent, page)
    return [*lines, "", *(page.paint(line, DIM) for line in page.wrapped(more, 0))]


def _closing(text: str | None, agent: Row, page: AgentsPage) -> list[str]:
    lines = ["", *page.wrapped(page.sentence(text), 0)] if text else []
    if agent.get("problem"):
        lines += ["", *page.wrapped(page.sentence(f"A run is refused: {agent['problem']}"), 0)]
    return lines + (["", *_needing_trust("It needs your approval", [agent], page)] if agent["needs_trust"] else [])


# --- Why ----------------------------------------------------------------------------------------------------


def why_lines(why: Row, page: AgentsPage) -> list[str]:
    """Where a name was looked up, and where each property of the agent comes from."""
    lines = [page.paint(one_line(selected(why)), BOLD), "", page.paint("Candidates (✓ is used)", DIM)]
    for candidate in why["candidates"]:
        lines += _candidate_lines(candidate, page)
    lines += ["", page.paint("Properties", DIM)]
    lines += _property_lines(why["fields"], page)
    return lines + _closing(why["note"], why, page)


def _candidate_lines(candidate: Row, page: AgentsPage) -> list[str]:
    verdict = candidate["verdict"]
    mark = _MARKS.get(verdict, " ")
    style = _STYLES.get(mark) or DIM
    word = verdict if verdict in (USED, SHADOWED, LEFT_OUT) else "-"
    head = f"{mark} {word:<8}  {candidate['source']:<13}  "
    where = one_line(at(candidate, page.shown))
    text = page.sentence(candidate["reason"] or _NOTES.get(verdict, ""))
    width = len(head) + display_width(where)
    if page.columns is None or width + 2 + display_width(text) <= page.columns:
        return [page.paint(head, style) + f"{where}  {text}".rstrip()]
    below = page.wrapped(text, 4)
    if width <= page.columns:
        first = page.paint(head, style) + where
    else:
        first, below = page.paint(head.rstrip(), style), [*page.wrapped(where, 4), *below]
    return [first, *(f"    {line}" for line in below if line)]


def _property_lines(fields: Sequence[Row], page: AgentsPage) -> list[str]:
    names = [one_line(field["field"].replace("_", " ")) for field in fields]
    indent = max(map(display_width, names)) + 2
    room = PIPE_TEXT if page.columns is None else max(16, page.columns - indent)
    lines: list[str] = []
    for name, field in zip(names, fields, strict=True):
        value, origin = _value(field), _origin(field, page)
        first = page.paint(name.ljust(indent), DIM) + truncate(value, room)
        if page.columns is None or display_width(value) + 2 + display_width(origin) <= room:
            lines.append(f"{first}  {page.paint(origin, DIM)}")
        else:
            lines += [first, *(" " * indent + page.paint(line, DIM) for line in page.wrapped(origin, indent))]
    return lines


def _value(field: Row) -> str:
    value = field["value"]
    if value is None or value in ("", []):
        return _NOTHING.get(field["field"], "none")
    return one_line(shlex.join(map(str, value)) if field["field"] == "args" else _written(value))


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)


def _origin(field: Row, page: AgentsPage) -> str:
    if field["path"] is None:
        return f"({field['origin']})"
    before = field["instead_of"]
    instead = f", instead of {truncate(one_line(_written(before)), 40)}" if before is not None else ""
    return f"({one_line(at(field, page.shown))}{instead})"
