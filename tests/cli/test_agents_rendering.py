"""Agents laid out for a terminal, or for a pipe. On tables made by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest
from patience import PATIENCE

from hocket.catalog.entries import GLOBAL, PROJECT, AgentEntry, Catalog, Problem
from hocket.catalog.routing_table import routing_table
from hocket.cli.agents import AgentsPage, detail, listing, tool_names, why_lines
from hocket.cli.format import display_width, typable
from hocket.config.settings import approve_command
from hocket.providers.definition_files import HIDDEN, LOADED_DESPITE_ERRORS, SKIPPED

PIPE = AgentsPage()


def table(*entries: AgentEntry, problems: tuple[Problem, ...] = (), needs: tuple[str, ...] = ()) -> dict[str, Any]:
    ranked = {entry.name: (entry,) for entry in entries}
    addresses = {name: name.replace(" ", "-") for name in ranked}
    return routing_table(Catalog("/p", ranked, addresses, problems), lambda one: (needs, (one.path,) if needs else ()))


def agent(name: str, **metadata: Any) -> AgentEntry:
    model = metadata.get("model")
    return AgentEntry(name, GLOBAL, f"/u/{name}.md", description=f"What {name} does.", model=model, metadata=metadata)


def cells(line: str) -> list[str]:
    """What stands in the columns of a line; they are two spaces apart."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (None, "all"),
        ("", "none"),
        ([], "none"),
        ("Read", "Read"),
        ("Read, Grep, Bash(git diff:*, git log)", "Read Grep Bash"),
        (["Read", "Grep", "Glob", "Edit"], "Read Grep Glob +1"),
    ],
)
def test_tools_are_abbreviated(written: Any, shown: str) -> None:
    line = listing(table(agent("a", tools=written)), PIPE)[-1]
    assert cells(line)[3] == shown


def test_rules_in_brackets_belong_to_their_tool() -> None:
    assert tool_names("Bash(git diff:*, git log),Read") == ["Bash(git diff:*, git log)", "Read"]


@pytest.mark.parametrize(
    ("written", "model", "shown"),
    [("haiku", "claude-haiku-4-5-20251001", "haiku"), ("sonnet", "opus", "opus"), (None, None, "-"), ("", None, "-")],
)
def test_model_is_shown_as_the_definition_writes_it(written: str | None, model: str | None, shown: str) -> None:
    entry = AgentEntry("a", GLOBAL, "/u/a.md", description="x", model=model, metadata={"model": written})
    assert cells(listing(table(entry), PIPE)[-1])[2] == shown


def test_empty_column_is_left_out_on_a_terminal() -> None:
    entries = [agent("all"), agent("-")]
    assert cells(listing(table(*entries), AgentsPage(80))[2]) == ["NAME", "SOURCE", "DESCRIPTION"]
    assert cells(listing(table(*entries), PIPE)[2]) == ["NAME", "SOURCE", "MODEL", "TOOLS", "DESCRIPTION"]
    assert cells(listing(table(agent("a", model="opus")), AgentsPage(80))[2]) == [
        "NAME",
        "SOURCE",
        "MODEL",
        "DESCRIPTION",
    ]


def test_long_name_is_replaced_by_its_address() -> None:
    line = listing(table(agent("A Reviewer With Many Words")), AgentsPage(60))[-1]
    assert line.startswith("A-Reviewer-With-Many-Words ")
    assert (
        "A Reviewer With Many Words (A-Reviewer-With-Many-Words)"
        in listing(table(agent("A Reviewer With Many Words")), AgentsPage(160))[-1]
    )


def problems(kind: str, number: int, reason: str = "the same", loads: bool = True) -> tuple[Problem, ...]:
    return tuple(Problem(f"/u/{kind}{place}.md", 3, reason, loads, kind) for place in range(number))


def test_ignored_definitions_come_first_in_own_rows() -> None:
    found = table(agent("a"), problems=(*problems(LOADED_DESPITE_ERRORS, 4), *problems(SKIPPED, 4)))
    rows = [line for line in listing(found, AgentsPage(80)) if line[:1] in "✗!"]
    assert [row[0] for row in rows if row] == ["✗"] * 4 + ["!"]
    assert rows[-1].startswith("! 4 files such as /u/rescued0.md:3")


@pytest.mark.parametrize(("page", "number"), [(PIPE, 9), (AgentsPage(80), 3)])
def test_few_problems_have_a_row_each(page: AgentsPage, number: int) -> None:
    found = table(agent("a"), problems=problems(LOADED_DESPITE_ERRORS, number))
    assert sum(line.startswith("! ") for line in listing(found, page)) == number


def test_different_problems_share_no_row() -> None:
    mixed = (*problems(HIDDEN, 4, loads=False), *problems(LOADED_DESPITE_ERRORS, 4))
    rows = [line for line in listing(table(agent("a"), problems=mixed), AgentsPage(80)) if line.startswith("! ")]
    assert len(rows) == 2


@pytest.mark.parametrize("text", ["words and more words " * 9, "x" * 100, "表示" * 40, ""])
@pytest.mark.parametrize("columns", [16, 40, 80])
def test_wrapping_loses_nothing_and_keeps_to_the_width(text: str, columns: int) -> None:
    lines = AgentsPage(columns).wrapped(text.strip(), 0)
    assert max(map(display_width, lines)) <= columns
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert PIPE.wrapped(text, 0) == [text]


ODD_PATHS = [
    "/p/a b.md",
    "/p/it's.md",
    '/p/"x"$HOME`id`.md',
    "/p/a\x1b]0;title\x07b.md",
    "/p/it's\n\x1b[31m 'so'.md",
    "/p/\x9b31m\u202egnp.md",
    "/p/\udcff\t.md",
    "/p/back\\x1b\x1b1.md",
]


@pytest.mark.parametrize("path", ODD_PATHS, ids=ascii)
def test_command_to_type_is_printable_and_exact(path: str) -> None:
    found = table(AgentEntry("a", PROJECT, path, project="/p", description="x"), needs=("it asks for hooks",))
    for lines in (listing(found, PIPE), detail(found["by_name"]["a"], PIPE)):
        (line,) = [line.strip() for line in lines if line.startswith("    hocket trust ")]
        assert line.isprintable()
        assert _words(line.removeprefix("hocket trust ")) == [path]


def _words(line: str) -> list[str]:
    """The arguments that a shell makes of them."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    done = subprocess.run([bash, "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, timeout=PATIENCE)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def test_apostrophes_are_not_quotes() -> None:
    path = "/p/a\x07b"
    reported = typable(f"it isn't yours; the users' way: {approve_command(path)}")
    assert reported == "it isn't yours; the users' way: hocket trust '/p/a'$'\\x07''b'"
    assert typable("plain 'text'") == "plain 'text'"


def test_command_to_type_is_never_cut() -> None:
    path = "/p/" + "x" * 100 + ".md"
    found = table(AgentEntry("a", PROJECT, path, project="/p", description="x"), needs=("it asks for hooks",))
    for lines in (listing(found, AgentsPage(40)), detail(found["by_name"]["a"], AgentsPage(40))):
        assert f"    hocket trust {path}" in lines


def test_colour_changes_nothing_but_the_colour() -> None:
    found = table(agent("a", tools="Read"), problems=problems(SKIPPED, 1))
    coloured = "\n".join(listing(found, AgentsPage(80, colour=True)))
    plain = "\n".join(listing(found, AgentsPage(80)))
    assert "\x1b[" in coloured
    for style in ("0", "1", "2", "31", "32", "33", "36"):
        coloured = coloured.replace(f"\x1b[{style}m", "")
    assert coloured == plain


def test_origin_names_the_replaced_value() -> None:
    found = table(agent("a"))
    field = {
        "field": "args",
        "value": ["--x", "a b"],
        "origin": "configuration",
        "path": "/p/hocket.toml",
        "line": None,
    }
    why = {
        "candidates": [],
        "fields": [{**field, "instead_of": None}, {**field, "field": "model", "instead_of": "opus"}],
    }
    lines = why_lines({**found["by_name"]["a"], "note": None, **why}, PIPE)
    assert "args   --x 'a b'  (/p/hocket.toml)" in lines
    assert "model  --x, a b  (/p/hocket.toml, instead of opus)" in lines
