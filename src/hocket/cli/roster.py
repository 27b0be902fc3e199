"""Agents on a terminal: the table of all, one in detail, and why it is that one. Lines only; nothing here prints.

What is told comes from the routing table and from ``catalog.report``; here it is laid out for as many columns as
there are, coloured or not, with everything that a file says made harmless first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.catalog.entries import LOCATIONS
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
from hocket.cli.format import display_width, paint, truncate, wrap
from hocket.views.text import one_line, strip_controls

Table = Mapping[str, Any]
Agent = Mapping[str, Any]
Problem = Mapping[str, Any]

PIPE_TEXT = 200
"""How much of a description is shown where no terminal limits it."""
ROOM = 20
"""The narrowest description worth a column."""
FEW = 3
"""So many files with the same harmless trouble have a row each on a terminal; more of them share one."""
WIDE = 100
BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
NO_MODEL, ALL_TOOLS = "-", "all"
"""What stands in a column where a definition says nothing."""
_TOOL = re.compile(r"[^\s,(]+(?:\([^)]*\))?")
_QUOTED = re.compile(r"""\"'\"|(?<![^\s"])'[^']*'""")
"""A word as ``shlex`` quotes it, not what stands between two apostrophes of a sentence."""
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]+")
_STYLES = {"project": CYAN, "✓": GREEN, "✗": RED, "!": YELLOW, "◆": YELLOW}
_MARKS = {USED: "✓", LEFT_OUT: "✗"}
_NOTES = {ABSENT: "is not there", NOTHING_HERE: "has none of that name"}
_NOTHING = {"model": "what the CLI chooses", "tools": ALL_TOOLS, "instructions": "the text below the head"}


class Page(NamedTuple):
    """Where lines go: how wide it is, whether it has colours, and how paths are written on it."""

    columns: int | None = None
    """None where nothing needs to be cut to fit."""
    colour: bool = False
    shown: Callable[[str], str] = str

    def paint(self, text: str, style: str | None) -> str:
        return paint(text, style, self.colour)

    def told(self, text: str) -> str:
        """A sentence of ours, on one line, its paths written as all others are."""
        return " ".join(self.shown(word) if word.startswith("/") else word for word in one_line(text).split(" "))

    def wrapped(self, text: str, indent: int) -> list[str]:
        """The lines of a text that is to stand so far to the right; one line where there is no width."""
        return [text] if self.columns is None else wrap(text, max(16, self.columns - indent))


def listing(table: Table, page: Page) -> list[str]:
    """All agents, what they need, and what is wrong."""
    agents = list(table["by_name"].values())
    lines = [page.paint(line, BOLD) for line in _headline(summary(table), page)]
    lines += ["", *_agents(agents, page)] if agents else []
    needy = [agent for agent in agents if agent["needs_trust"]]
    needs = "agent needs" if len(needy) == 1 else "agents need"
    lines += ["", *_needing_trust(f"{len(needy)} {needs} your trust first", needy, page)] if needy else []
    return lines + (["", *_problems(table["problems"], page)] if table["problems"] else [])


def _headline(text: str, page: Page) -> list[str]:
    """Broken only between its parts: a number stays with what it counts."""
    glued = re.sub("(?<![,:]) ", "\N{NO-BREAK SPACE}", text)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in page.wrapped(glued, 0)]


# --- The table ----------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column: what stands in it, and how wide it may become."""

    head: str
    cell: Callable[[Agent], str]
    limit: int


def _agents(agents: Sequence[Agent], page: Page) -> list[str]:
    columns, room = _columns(agents, page)
    widths = [_width_of(column, agents) for column in columns]
    told = "DESCRIPTION" if room else ""
    lines = [page.paint(_row([*_padded([column.head for column in columns], widths), told]), DIM)]
    for agent in agents:
        cells = _padded([column.cell(agent) for column in columns], widths)
        paint = [page.paint(cell, _style_of(place, cell)) for place, cell in enumerate(cells)]
        last = truncate(one_line(agent["description"])[: 4 * PIPE_TEXT], room) if room else ""
        lines.append(_row([*paint, last] if last else [*paint[:-1], paint[-1].rstrip()]))
    return lines


def _columns(agents: Sequence[Agent], page: Page) -> tuple[list[Column], int]:
    """The columns that leave enough room for descriptions, and that room; the least telling ones go first."""
    total = page.columns
    most = 40 if total is None else max(total * 2 // 5, min(total - 18, 32))  # a name is to be typed, so it stays whole
    columns = [
        Column("NAME", lambda agent: _name(agent, most), most),
        Column("SOURCE", _source, 20),
        Column("MODEL", _model, 16),
        Column("TOOLS", lambda agent: _tools(agent, total is None or total >= WIDE), 24),
    ]
    if total is None:
        return columns, PIPE_TEXT
    telling = [column for column in columns[2:] if {*map(column.cell, agents)} - {NO_MODEL, ALL_TOOLS}]
    columns = [*columns[:2], *telling]
    while len(columns) > 2 and _left(columns, agents, total) < ROOM:
        columns.pop()
    room = _left(columns, agents, total)
    return columns, room if room >= ROOM else 0


def _left(columns: Sequence[Column], agents: Sequence[Agent], total: int) -> int:
    return total - sum(_width_of(column, agents) + 2 for column in columns)


def _width_of(column: Column, agents: Sequence[Agent]) -> int:
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
    """The name, and what to type instead where that cannot be typed; if only one of them fits, what to type."""
    name, address = one_line(agent["name"]), agent["address"]
    both = name if name == address else f"{name} ({address})"
    return both if display_width(both) <= limit else address


def _source(agent: Agent) -> str:
    """``global``, or ``project ▲ global`` for one that stands before another."""
    hidden = [_short(shadow["source"]) for shadow in agent["shadows"]]
    return f"{_short(agent['location'])} ▲ {hidden[0]}" if hidden else _short(agent["location"])


def _short(location: str) -> str:
    return "project" if location == LOCATIONS["project"] else location


def said(agent: Agent, *fields: str) -> Any:
    """What the definition itself says about the first of these that it mentions."""
    written = {spelled(key): value for key, value in agent["full_metadata"].items()}
    return next((written[field] for field in fields if written.get(field) is not None), None)


def _model(agent: Agent) -> str:
    """In the definition's own word where that is the model that counts: ``haiku`` for one with a version and a date."""
    written, model = said(agent, "model"), agent["model"] or ""
    own = isinstance(written, str) and written.lower() in model.lower()
    return one_line(written if own else model) or NO_MODEL


def _tools(agent: Agent, wide: bool) -> str:
    names = tool_names(said(agent, "tools", "allowed_tools"))
    if not names:
        return ALL_TOOLS if said(agent, "tools", "allowed_tools") is None else "none"
    few = 3 if wide else 1
    plain = [one_line(name).partition("(")[0] for name in names]
    more = f" +{len(plain) - few}" if len(plain) > few else ""
    return " ".join(plain[:few]) + more


def tool_names(written: Any) -> list[str]:
    """The tools of a list, or of a text that commas or spaces separate."""
    if isinstance(written, str):
        return _TOOL.findall(written)
    return [str(name) for name in written] if isinstance(written, list) else []


# --- What needs somebody ------------------------------------------------------------------------------------


def _needing_trust(told: str, agents: Sequence[Agent], page: Page) -> list[str]:
    lines = [page.paint(told, BOLD)]
    for agent in agents:
        lines += _marked("◆", one_line(agent["name"]), page.told("; ".join(agent["needs_trust"])), page)
        # To be typed as it stands, so it is never cut.
        lines.append(f"    {strip_controls(typable(trust_line(agent) or ''))}")
    return lines


def typable(text: str) -> str:
    """A text with commands in it, in whose quoted words nothing is left that a terminal would obey or not show.

    What was there stands as ``$'...'``, which shells take for the same bytes.
    """
    return text if text.isprintable() else _QUOTED.sub(lambda word: _UNSHOWN.sub(_as_bytes, word[0]), text)


def _as_bytes(found: re.Match[str]) -> str:
    written = "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
    return f"'$'{written}''"


def _problems(problems: Sequence[Problem], page: Page) -> list[str]:
    """What is lost first, each in a row of its own; then what is only odd."""
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


def _problem_lines(mark: str, problem: Problem, page: Page) -> list[str]:
    return _marked(mark, one_line(at(problem, page.shown)), _reason(problem, page), page)


def _reason(problem: Problem, page: Page) -> str:
    return page.told(problem["reason"]) + loaded_note(problem)


def _by_reason(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Those that differ only in their file, together."""
    alike: dict[tuple[str, str, bool], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem["kind"], problem["reason"], problem["claude_loads"]), []).append(problem)
    return list(alike.values())


def _named_together(problems: Sequence[Problem], page: Page) -> str:
    return f"{count(len(problems), 'file')} such as {one_line(at(problems[0], page.shown))}"


def _marked(mark: str, head: str, text: str, page: Page) -> list[str]:
    """``✗ head  text``, the text below the head where there is no room beside it."""
    glyph = page.paint(mark, _STYLES[mark])
    if page.columns is None or 4 + display_width(head) + display_width(text) <= page.columns:
        return [f"{glyph} {head}  {text}"]
    return [f"{glyph} {head}", *(f"    {line}" for line in page.wrapped(text, 4))]


# --- One agent ----------------------------------------------------------------------------------------------


def detail(agent: Agent, page: Page) -> list[str]:
    """One agent: whose it is, what it says about itself, and what stands in its way."""
    lines = [*_heading(agent, page), ""]
    facts = [(name, one_line(text)) for name, text in _facts(agent, page) if text]
    lines += _labelled(facts, page)
    lines += _closing(agent, page)
    more = f"hocket run {agent['address']} · hocket agents {agent['address']} --why"
    return [*lines, "", *(page.paint(line, DIM) for line in page.wrapped(more, 0))]


def _heading(agent: Agent, page: Page) -> list[str]:
    return [page.paint(one_line(selected(agent)), BOLD)]


def _facts(agent: Agent, page: Page) -> Iterator[tuple[str, str]]:
    yield "address", agent["address"] if agent["address"] != agent["name"] else ""
    yield "file", page.shown(agent["path"])
    yield "stands for", agent.get("target") or ""
    yield "overrides", ", ".join(f"{page.shown(one['path'])} ({one['source']})" for one in agent["shadows"])
    yield "description", agent["description"]
    yield "model", _full_model(agent)
    yield "tools", ", ".join(tool_names(said(agent, "tools", "allowed_tools"))) or _tools(agent, wide=True)
    yield "permissions", str(said(agent, "permission_mode") or "")
    yield "version", agent["version"]
    yield "tags", ", ".join(agent["tags"])
    yield "delegates to", ", ".join(agent["delegates_to"])


def _full_model(agent: Agent) -> str:
    written, model = _model(agent), agent["model"]
    if not model:
        return _NOTHING["model"]
    return written if written == model else f"{written} ({model})"


def _labelled(facts: Sequence[tuple[str, str]], page: Page) -> list[str]:
    indent = max(len(name) for name, _ in facts) + 2
    lines: list[str] = []
    for name, text in facts:
        first, *rest = page.wrapped(text, indent)
        lines.append(page.paint(name.ljust(indent), DIM) + first)
        lines += [" " * indent + line for line in rest]
    return lines


def _closing(agent: Agent, page: Page) -> list[str]:
    told = note(agent, page.shown)
    lines = ["", *page.wrapped(one_line(told), 0)] if told else []
    return lines + (["", *_needing_trust("It needs your trust first", [agent], page)] if agent["needs_trust"] else [])


# --- Why ----------------------------------------------------------------------------------------------------


def reasons(agent: Agent, why: Mapping[str, Any], page: Page) -> list[str]:
    """Where a name was looked for, and where each property of the agent comes from."""
    lines = [*_heading(agent, page), "", page.paint("Looked for (the first one counts)", DIM)]
    for candidate in why["candidates"]:
        lines += _candidate_lines(candidate, page)
    lines += ["", page.paint("Made of", DIM)]
    lines += _property_lines(why["fields"], page)
    return lines + _closing(agent, page)


def _candidate_lines(candidate: Mapping[str, Any], page: Page) -> list[str]:
    verdict = candidate["verdict"]
    mark = _MARKS.get(verdict, " ")
    style = _STYLES.get(mark) or DIM
    word = verdict if verdict in (USED, SHADOWED, LEFT_OUT) else "-"
    head = f"{mark} {word:<8}  {candidate['source']:<13}  "
    where = one_line(at(candidate, page.shown))
    text = page.told(candidate["reason"] or _NOTES.get(verdict, ""))
    if page.columns is None or len(head) + display_width(where) + 2 + display_width(text) <= page.columns:
        return [page.paint(head, style) + f"{where}  {text}".rstrip()]
    below = (
        [f"    {line}" for line in page.wrapped(where, 4)] if len(head) + display_width(where) > page.columns else []
    )
    first = page.paint(head.rstrip() if below else head, style) + ("" if below else where)
    return [first, *below, *(f"    {line}" for line in page.wrapped(text, 4) if line)]


def _property_lines(fields: Sequence[Mapping[str, Any]], page: Page) -> list[str]:
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
    import json

    return json.dumps(value, ensure_ascii=False)


def _origin(field: Mapping[str, Any], page: Page) -> str:
    if field["path"] is None:
        return f"({field['origin']})"
    where = one_line(at(field, page.shown))
    before = field["instead_of"]
    return f"({where}, instead of {truncate(one_line(_written(before)), 40)})" if before is not None else f"({where})"
