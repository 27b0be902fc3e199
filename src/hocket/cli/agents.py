"""``hocket agents``: the agents that can run here, where each comes from, and why. Needs no server."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hocket import config
from hocket.catalog import report
from hocket.catalog.discovery import discover, require_agents
from hocket.catalog.entries import LOCATIONS, Catalog, Problem
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
from hocket.trust.check import configuration, table_of
from hocket.views.text import one_line, strip_controls

Table = dict[str, Any]

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
    catalog, approvals = _look(_place(project), strict)
    table = table_of(catalog, approvals)
    if name is not None:
        agent = table["by_name"][report.find(catalog, name)]
        reasons = report.why(catalog, table, agent["name"], approvals.config) if why else None
        if as_json:
            access.write_json(agent if reasons is None else reasons)
        else:
            _write_lines(detail(agent, _page()) if reasons is None else why_lines(agent, reasons, _page()))
        return 0
    # Show everything that was found before the error that there is no agent.
    _show_all(table, as_json, as_report, trace)
    require_agents(catalog)
    if not as_json:
        _warn(table)
    return EXIT_DROPPED if strict and report.dropped(table["problems"]) else 0


# --- The project --------------------------------------------------------------------------------------------------


def _place(project: str | None) -> str:
    """The absolute path of an existing directory."""
    here = _here()
    if project is None:
        return here
    projects = {} if "/" in project else _configuration(here)[0].config.projects
    path = os.path.abspath(os.path.join(here, _expand_user(projects.get(project, project))))
    if not os.path.isdir(path):
        problem = "is not a directory" if os.path.exists(path) else "does not exist"
        known = f"projects of the configuration: {', '.join(sorted(projects))}" if projects else None
        raise BadDirectory(f"the project directory {path} {problem}", None if project in projects else known)
    return path


def _expand_user(path: str) -> str:
    """A path of the configuration with its leading ``~`` replaced."""
    if path != "~" and not path.startswith("~/"):
        return path
    return config.home_directory(config.process_environment()) + path[1:]


def _here() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise BadDirectory("the current directory no longer exists", "change to one that does") from error


def _configuration(cwd: str) -> tuple[Approvals, list[Problem]]:
    return configuration(cwd, config.home(), config.process_environment())


# --- Discovery -----------------------------------------------------------------------------------------------


def _look(place: str, strict: bool) -> tuple[Catalog, Approvals]:
    approvals, problems = _configuration(place)
    found = discover(place, config.process_environment(), config.home(), approvals.config, approvals, strict=strict)
    return replace(found, problems=(*found.problems, *problems)), approvals


def addresses() -> list[str]:
    """The addresses of the agents of this directory, for shell completion; empty on an error."""
    try:
        return sorted(_look(_here(), strict=False)[0].addresses.values())
    except HocketError:
        return []


def _show_all(table: Table, as_json: bool, as_report: bool, trace: bool) -> None:
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
        _write_lines([*map(strip_controls, report.trace(table, page.shown)), ""])
    if as_report:
        sys.stdout.write(strip_controls(report.markdown(table, page.shown)))
    else:
        _write_lines(listing(table, page))


def _warn(table: Table) -> None:
    """Report a missing folder of global agents, with the steps that create it."""
    folder = report.missing_global_folder(table)
    if folder is None:
        return
    steps = "".join(f"  {number}. {step}\n" for number, step in enumerate(report.fix_steps(folder), 1))
    sys.stdout.flush()
    print(f"hocket: no folder of global agents at {folder}. To create it:\n{steps}", end="", file=sys.stderr)


# --- Writing ------------------------------------------------------------------------------------------------


def _page() -> AgentsPage:
    home = config.home_directory(config.process_environment())
    here = _here()
    colour = config.colour_wanted(sys.stdout.isatty())
    return AgentsPage(access.terminal_width(), colour, lambda path: shortened(path, here, home))


def shortened(path: str, here: str, home: str) -> str:
    """A path relative to the current directory or to the home directory, if it is inside."""
    for folder, instead in ((here, ""), (home, "~/")):
        inside = folder.rstrip("/") + "/"
        if folder != "/" and path.startswith(inside):
            return instead + path[len(inside) :]
    return path


def _write_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


# --- Rendering ----------------------------------------------------------------------------------------------

Agent = Mapping[str, Any]
ProblemRow = Mapping[str, Any]

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


def listing(table: Mapping[str, Any], page: AgentsPage) -> list[str]:
    """All agents, missing approvals, and problems."""
    agents = list(table["by_name"].values())
    lines = [page.paint(line, BOLD) for line in _headline(summary(table), page)]
    lines += ["", *_agents(agents, page)] if agents else []
    needy = [agent for agent in agents if agent["needs_trust"]]
    needs = "agent needs" if len(needy) == 1 else "agents need"
    lines += ["", *_needing_trust(f"{len(needy)} {needs} your approval", needy, page)] if needy else []
    return lines + (["", *_problems(table["problems"], page)] if table["problems"] else [])


def _headline(text: str, page: AgentsPage) -> list[str]:
    """Wrapped only after commas and colons, so that a number stays with its noun."""
    glued = re.sub("(?<![,:]) ", "\N{NO-BREAK SPACE}", text)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in page.wrapped(glued, 0)]


# --- The table ----------------------------------------------------------------------------------------------


class AgentColumn(NamedTuple):
    """One column of the table and its largest width."""

    head: str
    cell: Callable[[Agent], str]
    limit: int


def _agents(agents: Sequence[Agent], page: AgentsPage) -> list[str]:
    columns, room = _columns(agents, page)
    widths = [_width_of(column, agents) for column in columns]
    last_head = "DESCRIPTION" if room else ""
    lines = [page.paint(_row([*_padded([column.head for column in columns], widths), last_head]), DIM)]
    for agent in agents:
        cells = _padded([column.cell(agent) for column in columns], widths)
        paint = [page.paint(cell, _style_of(place, cell)) for place, cell in enumerate(cells)]
        last = truncate(one_line(agent["description"])[: 4 * PIPE_TEXT], room) if room else ""
        lines.append(_row([*paint, last] if last else [*paint[:-1], paint[-1].rstrip()]))
    return lines


def _columns(agents: Sequence[Agent], page: AgentsPage) -> tuple[list[AgentColumn], int]:
    """The columns that leave enough room for descriptions, and that room."""
    total = page.columns
    most = 40 if total is None else max(total * 2 // 5, min(total - 18, 32))  # names are typed, so they are not cut
    columns = [
        AgentColumn("NAME", lambda agent: _name(agent, most), most),
        AgentColumn("SOURCE", _source, 20),
        AgentColumn("MODEL", _model, 16),
        AgentColumn("TOOLS", lambda agent: _tools(agent, total is None or total >= WIDE), 24),
    ]
    if total is None:
        return columns, PIPE_TEXT
    telling = [column for column in columns[2:] if {*map(column.cell, agents)} - {NO_MODEL, ALL_TOOLS}]
    columns = [*columns[:2], *telling]
    while len(columns) > 2 and _left(columns, agents, total) < ROOM:
        columns.pop()
    room = _left(columns, agents, total)
    return columns, room if room >= ROOM else 0


def _left(columns: Sequence[AgentColumn], agents: Sequence[Agent], total: int) -> int:
    return total - sum(_width_of(column, agents) + 2 for column in columns)


def _width_of(column: AgentColumn, agents: Sequence[Agent]) -> int:
    return min(column.limit, max(display_width(text) for text in [column.head, *map(column.cell, agents)]))


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    fitting = [truncate(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
    return [cell + " " * (wide - display_width(cell)) for cell, wide in zip(fitting, widths, strict=True)]


def _row(cells: Sequence[str]) -> str:
    return "  ".join(cells).rstrip()


def _style_of(place: int, cell: str) -> str | None:
    if place == 0:
        return BOLD
    if place == 1:
        return YELLOW if "▲" in cell else _STYLES.get(cell.split(maxsplit=1)[0])
    return DIM


def _name(agent: Agent, limit: int) -> str:
    """The name, and its address if that differs; the address alone if both do not fit."""
    name, address = one_line(agent["name"]), agent["address"]
    both = name if name == address else f"{name} ({address})"
    return both if display_width(both) <= limit else address


def _source(agent: Agent) -> str:
    """``global``, or ``project ▲ global`` for one that overrides another."""
    hidden = [_short(shadow["source"]) for shadow in agent["shadows"]]
    return f"{_short(agent['location'])} ▲ {hidden[0]}" if hidden else _short(agent["location"])


def _short(location: str) -> str:
    return "project" if location == LOCATIONS["project"] else location


def written_field(agent: Agent, *fields: str) -> Any:
    """The value in the definition of the first of these fields that it has."""
    written = {spelled(key): value for key, value in agent["full_metadata"].items()}
    return next((written[field] for field in fields if written.get(field) is not None), None)


def _model(agent: Agent) -> str:
    """The model as written, such as ``haiku``, if it is part of the full name of the model in use."""
    written, model = written_field(agent, "model"), agent["model"] or ""
    own = isinstance(written, str) and written.lower() in model.lower()
    return one_line(written if own else model) or NO_MODEL


def _tools(agent: Agent, wide: bool) -> str:
    names = tool_names(written_field(agent, "tools", "allowed_tools"))
    if not names:
        return ALL_TOOLS if written_field(agent, "tools", "allowed_tools") is None else "none"
    few = 3 if wide else 1
    plain = [one_line(name).partition("(")[0] for name in names]
    more = f" +{len(plain) - few}" if len(plain) > few else ""
    return " ".join(plain[:few]) + more


def tool_names(written: Any) -> list[str]:
    """The tools of a list, or of a text separated by commas or spaces."""
    if isinstance(written, str):
        return _TOOL.findall(written)
    return [str(name) for name in written] if isinstance(written, list) else []


# --- Approvals and problems ---------------------------------------------------------------------------------


def _needing_trust(title: str, agents: Sequence[Agent], page: AgentsPage) -> list[str]:
    lines = [page.paint(title, BOLD)]
    for agent in agents:
        lines += _marked("◆", one_line(agent["name"]), page.sentence("; ".join(agent["needs_trust"])), page)
        # A command to copy, so it is never cut.
        lines.append(f"    {strip_controls(typable(trust_line(agent) or ''))}")
    return lines


def _problems(problems: Sequence[ProblemRow], page: AgentsPage) -> list[str]:
    """Definitions that are left out first, then minor problems."""
    lines = [page.paint(count(len(problems), "problem"), BOLD)]
    for problem in problems:
        if problem["kind"] in DROPPED:
            lines += _problem_lines("✗", problem, page)
    for alike in _by_reason(problem for problem in problems if problem["kind"] not in DROPPED):
        if page.columns is not None and len(alike) > FEW:
            lines += _marked("!", _named_together(alike, page), _reason(alike[0], page), page)
        else:
            lines += [line for problem in alike for line in _problem_lines("!", problem, page)]
    return lines


def _problem_lines(mark: str, problem: ProblemRow, page: AgentsPage) -> list[str]:
    return _marked(mark, one_line(at(problem, page.shown)), _reason(problem, page), page)


def _reason(problem: ProblemRow, page: AgentsPage) -> str:
    return page.sentence(problem["reason"]) + loaded_note(problem)


def _by_reason(problems: Iterable[ProblemRow]) -> list[list[ProblemRow]]:
    """Problems that differ only in their file, together."""
    alike: dict[tuple[str, str, bool], list[ProblemRow]] = {}
    for problem in problems:
        alike.setdefault((problem["kind"], problem["reason"], problem["claude_loads"]), []).append(problem)
    return list(alike.values())


def _named_together(problems: Sequence[ProblemRow], page: AgentsPage) -> str:
    return f"{count(len(problems), 'file')} such as {one_line(at(problems[0], page.shown))}"


def _marked(mark: str, head: str, text: str, page: AgentsPage) -> list[str]:
    """``✗ head  text``, the text below the head where there is no room beside it."""
    glyph = page.paint(mark, _STYLES[mark])
    if page.columns is None or 4 + display_width(head) + display_width(text) <= page.columns:
        return [f"{glyph} {head}  {text}"]
    return [f"{glyph} {head}", *(f"    {line}" for line in page.wrapped(text, 4))]


# --- One agent ----------------------------------------------------------------------------------------------


def detail(agent: Agent, page: AgentsPage) -> list[str]:
    """One agent: its definition, and what it still needs."""
    lines = [page.paint(one_line(selected(agent)), BOLD), ""]
    facts = [(name, one_line(text)) for name, text in _facts(agent, page) if text]
    lines += _labelled(facts, page)
    lines += _closing(agent, page)
    more = f"hocket run {agent['address']} · hocket agents {agent['address']} --why"
    return [*lines, "", *(page.paint(line, DIM) for line in page.wrapped(more, 0))]


def _facts(agent: Agent, page: AgentsPage) -> Iterator[tuple[str, str]]:
    yield "address", agent["address"] if agent["address"] != agent["name"] else ""
    yield "file", page.shown(agent["path"])
    yield "alias of", agent.get("target") or ""
    yield "overrides", ", ".join(f"{page.shown(one['path'])} ({one['source']})" for one in agent["shadows"])
    yield "description", agent["description"]
    yield "model", _full_model(agent)
    yield "tools", ", ".join(tool_names(written_field(agent, "tools", "allowed_tools"))) or _tools(agent, wide=True)
    yield "permissions", str(written_field(agent, "permission_mode") or "")
    yield "version", agent["version"]
    yield "tags", ", ".join(agent["tags"])
    yield "delegates to", ", ".join(agent["delegates_to"])


def _full_model(agent: Agent) -> str:
    written, model = _model(agent), agent["model"]
    if not model:
        return _NOTHING["model"]
    return written if written == model else f"{written} ({model})"


def _labelled(facts: Sequence[tuple[str, str]], page: AgentsPage) -> list[str]:
    indent = max(len(name) for name, _ in facts) + 2
    lines: list[str] = []
    for name, text in facts:
        first, *rest = page.wrapped(text, indent)
        lines.append(page.paint(name.ljust(indent), DIM) + first)
        lines += [" " * indent + line for line in rest]
    return lines


def _closing(agent: Agent, page: AgentsPage) -> list[str]:
    text = note(agent, page.shown)
    lines = ["", *page.wrapped(one_line(text), 0)] if text else []
    return lines + (["", *_needing_trust("It needs your approval", [agent], page)] if agent["needs_trust"] else [])


# --- Why ----------------------------------------------------------------------------------------------------


def why_lines(agent: Agent, why: Mapping[str, Any], page: AgentsPage) -> list[str]:
    """Where a name was looked up, and where each property of the agent comes from."""
    lines = [page.paint(one_line(selected(agent)), BOLD), "", page.paint("Candidates (the first one is used)", DIM)]
    for candidate in why["candidates"]:
        lines += _candidate_lines(candidate, page)
    lines += ["", page.paint("Properties", DIM)]
    lines += _property_lines(why["fields"], page)
    return lines + _closing(agent, page)


def _candidate_lines(candidate: Mapping[str, Any], page: AgentsPage) -> list[str]:
    verdict = candidate["verdict"]
    mark = _MARKS.get(verdict, " ")
    style = _STYLES.get(mark) or DIM
    word = verdict if verdict in (USED, SHADOWED, LEFT_OUT) else "-"
    head = f"{mark} {word:<8}  {candidate['source']:<13}  "
    where = one_line(at(candidate, page.shown))
    text = page.sentence(candidate["reason"] or _NOTES.get(verdict, ""))
    if page.columns is None or len(head) + display_width(where) + 2 + display_width(text) <= page.columns:
        return [page.paint(head, style) + f"{where}  {text}".rstrip()]
    below = (
        [f"    {line}" for line in page.wrapped(where, 4)] if len(head) + display_width(where) > page.columns else []
    )
    first = page.paint(head.rstrip() if below else head, style) + ("" if below else where)
    return [first, *below, *(f"    {line}" for line in page.wrapped(text, 4) if line)]


def _property_lines(fields: Sequence[Mapping[str, Any]], page: AgentsPage) -> list[str]:
    names = [field["field"].replace("_", " ") for field in fields]
    indent = max(map(display_width, names)) + 2
    lines: list[str] = []
    for name, field in zip(names, fields, strict=True):
        value, origin = _value(field), _origin(field, page)
        room = PIPE_TEXT if page.columns is None else max(16, page.columns - indent)
        head = page.paint(one_line(name).ljust(indent), DIM)
        if page.columns is None or display_width(value) + 2 + display_width(origin) <= room:
            lines.append(f"{head}{truncate(value, room)}  {page.paint(origin, DIM)}")
        else:
            lines.append(f"{head}{truncate(value, room)}")
            lines += [" " * indent + page.paint(line, DIM) for line in page.wrapped(origin, indent)]
    return lines


def _value(field: Mapping[str, Any]) -> str:
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


def _origin(field: Mapping[str, Any], page: AgentsPage) -> str:
    if field["path"] is None:
        return f"({field['origin']})"
    where = one_line(at(field, page.shown))
    before = field["instead_of"]
    return f"({where}, instead of {truncate(one_line(_written(before)), 40)})" if before is not None else f"({where})"
