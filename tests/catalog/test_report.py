"""Catalogs as text: counts, trace, report, and why one file won. The catalogs are made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.catalog import report
from hocket.catalog.entries import (
    ALIAS,
    GLOBAL,
    LIBRARY,
    MANAGED,
    PROJECT,
    SOURCES,
    AgentEntry,
    Catalog,
    Problem,
    SearchedPlace,
)
from hocket.catalog.routing_table import routing_table
from hocket.config.settings import AgentConfig, ClaudeConfig, Config
from hocket.errors import AgentNotFound
from hocket.providers.definition_files import DUPLICATE, HIDDEN, ODD, REFUSED, SKIPPED

MINE, THEIRS, LIBRARY_FOLDER = "/p/.claude/agents", "/u/.claude/agents", "/u/.claude/agents-library"
FOLDERS = {PROJECT: MINE, GLOBAL: THEIRS, LIBRARY: LIBRARY_FOLDER, MANAGED: "/etc/claude-code/.claude/agents"}


def entry(name: str, source: str, **more: Any) -> AgentEntry:
    project = "/p" if source == PROJECT else None
    given = {"path": f"{FOLDERS.get(source, '/p')}/{name}.md", "project": project, "lines": {"name": 2}, **more}
    return AgentEntry(name, source, **given)


def catalog(*entries: AgentEntry, problems: tuple[Problem, ...] = (), missing: tuple[str, ...] = ()) -> Catalog:
    """As discovery would put them in order."""
    ranked: dict[str, list[AgentEntry]] = {}
    for one in sorted(entries, key=lambda one: (one.name, SOURCES.index(one.source))):
        ranked.setdefault(one.name, []).append(one)
    places = tuple(
        SearchedPlace(source, folder, source not in missing, sum(one.source == source for one in entries))
        for source, folder in FOLDERS.items()
    )
    in_order = tuple(sorted(places, key=lambda place: SOURCES.index(place.source)))
    names = {name: tuple(found) for name, found in ranked.items()}
    return Catalog("/p", names, {name: name.replace(" ", "-") for name in names}, problems, in_order)


def globals_named(*names: str) -> list[AgentEntry]:
    return [entry(name, GLOBAL) for name in names]


def locals_named(*names: str) -> list[AgentEntry]:
    return [entry(name, PROJECT) for name in names]


ARCHITECTS = globals_named("software-architect", "data-pipeline-architect", "security-auditor")


def table_of(found: Catalog, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    return routing_table(found, lambda one: (needs, (one.path,) if needs else ()))


# --- Counts -------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-23")
def test_summary_counts_both_places() -> None:
    found = catalog(*ARCHITECTS, *locals_named("project-engineer", "custom-linter"))
    assert report.summary(table_of(found)) == "5 agents: 3 global, 2 project-local, no conflicts"


def test_summary_counts_overrides_library_and_problems() -> None:
    found = catalog(
        *ARCHITECTS,
        *locals_named("software-architect", "engineer"),
        entry("spare", LIBRARY),
        problems=(Problem(f"{MINE}/x.md", 3, "no name", False),),
    )
    told = report.summary(table_of(found))
    assert told == "5 agents: 2 global, 2 project-local, 1 library, 1 override, 1 problem"


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], "no agents"),
        (globals_named("a"), "1 agent: 1 global"),
        (locals_named("a", "b"), "2 agents: 2 project-local"),
    ],
)
def test_summary_omits_zero_counts(entries: list[AgentEntry], told: str) -> None:
    assert report.summary(table_of(catalog(*entries))) == told


# --- Missing global folder ----------------------------------------------------------------------------------


@pytest.mark.req("S4-26")
def test_missing_global_folder_has_fix_steps() -> None:
    found = catalog(*locals_named("a"), missing=(GLOBAL,))
    assert report.missing_global_folder(table_of(found)) == THEIRS
    steps = report.fix_steps("/u x/.claude/agents")
    assert len(steps) == 3
    assert "mkdir -p '/u x/.claude/agents'" in steps[0]


def test_unneeded_global_folder_is_not_reported() -> None:
    assert report.missing_global_folder(table_of(catalog(*locals_named("a")))) is None
    assert report.missing_global_folder(table_of(catalog(missing=(GLOBAL,)))) is None


def test_only_ignored_definitions_count_as_dropped() -> None:
    kinds = (SKIPPED, REFUSED, DUPLICATE, HIDDEN, ODD)
    problems = tuple(Problem(f"{MINE}/{kind}.md", None, "so", True, kind) for kind in kinds)
    table = table_of(catalog(problems=problems))
    assert [one["kind"] for one in report.dropped(table["problems"])] == [DUPLICATE, REFUSED, SKIPPED]


# --- Trace --------------------------------------------------------------------------------------------------


def places_in(lines: list[str], *beginnings: str) -> list[int]:
    return [next(place for place, line in enumerate(lines) if line.startswith(begin)) for begin in beginnings]


@pytest.mark.req("S4-45")
def test_trace_has_every_step_in_order() -> None:
    found = catalog(*ARCHITECTS, *locals_named("software-architect", "engineer"))
    lines = report.trace(table_of(found))
    steps = (
        "Starting global discovery",
        "Found 3 global agents",
        "Starting project-local discovery",
        "Found 2 project-local agents",
        "Merging",
        "Total agents after merge: 4",
        "Overrides detected: software-architect",
        "Building the routing table",
        "Discovery complete",
    )
    places = places_in(lines, *steps)
    assert places == sorted(places)
    assert lines[0].endswith(THEIRS)
    assert lines[-1] == steps[-1]


@pytest.mark.req("S4-45")
@pytest.mark.parametrize(("missing", "why"), [((), "the folder is empty"), ((PROJECT,), "the folder does not exist")])
def test_trace_says_why_nothing_was_found(missing: tuple[str, ...], why: str) -> None:
    found = catalog(*ARCHITECTS, missing=missing)
    lines = report.trace(table_of(found))
    assert f"Found no project-local agents ({why})" in lines
    assert "No overrides detected" in lines


def test_trace_has_a_line_per_other_source() -> None:
    found = catalog(*ARCHITECTS, entry("spare", LIBRARY), missing=(MANAGED,))
    lines = report.trace(table_of(found), lambda path: path.replace("/u/", "~/"))
    assert "Found 1 library agent: ~/.claude/agents-library" in lines
    assert "Found no managed agents: /etc/claude-code/.claude/agents does not exist" in lines
    assert "Total agents after merge: 3 (and 1 from other sources)" in lines


# --- Report -------------------------------------------------------------------------------------------------


def section(text: str, title: str) -> str:
    """From one heading to the next."""
    return text.partition(f"## {title}")[2].partition("\n## ")[0]


@pytest.mark.req("S4-46", "S4-47")
def test_report_counts_agree_with_the_table() -> None:
    found = catalog(*ARCHITECTS, *locals_named("software-architect", "engineer"))
    table = table_of(found)
    text = report.markdown(table)
    assert text.startswith("# Agent discovery report\n\n**Total agents:** 4\n")
    assert f"{table['global_count']} agents\n\ndata-pipeline-architect, security-auditor" in section(text, "Global")
    assert f"{table['project_local_count']} agents\n\nengineer, software-architect" in section(text, "Project-local")
    overrides = section(text, "Overrides")
    assert "1 override\n\n- **software-architect**" in overrides
    assert f"`{MINE}/software-architect.md`" in overrides
    assert f"`{THEIRS}/software-architect.md`" in overrides


@pytest.mark.req("S4-46", "S4-47")
def test_empty_report_section_says_none() -> None:
    found = catalog(*ARCHITECTS)
    text = report.markdown(table_of(found))
    assert section(text, "Project-local").rstrip().endswith("0 agents\n\nNone")
    assert section(text, "Overrides").rstrip().endswith("0 overrides\n\nNone")
    assert section(text, "Problems").rstrip().endswith("0 problems\n\nNone")
    assert "Library" not in text


def test_report_has_sections_for_library_and_problems() -> None:
    hidden = Problem(f"{THEIRS}/x.deprecated.md", None, "is marked as deprecated", True, HIDDEN)
    found = catalog(*ARCHITECTS, entry("spare", LIBRARY), problems=(hidden,))
    text = report.markdown(table_of(found))
    assert "1 agent\n\nspare" in section(text, "Library")
    assert f"- `{THEIRS}/x.deprecated.md`: is marked as deprecated (the CLI loads it)" in section(text, "Problems")


@pytest.mark.parametrize(
    ("kind", "loads", "note"),
    [
        (HIDDEN, True, " (the CLI loads it)"),
        (HIDDEN, False, ""),
        (SKIPPED, True, " (the CLI loads it)"),
        (ODD, True, ""),
    ],
)
def test_note_says_if_cli_loads_dropped_file(kind: str, loads: bool, note: str) -> None:
    assert report.loaded_note({"kind": kind, "claude_loads": loads}) == note


# --- One agent ----------------------------------------------------------------------------------------------


def test_agent_is_found_by_name_or_address() -> None:
    found = catalog(entry("Code Reviewer", GLOBAL))
    for word in ("Code Reviewer", "Code-Reviewer"):
        assert report.find(found, word) == "Code Reviewer"


def test_unknown_agent_error_suggests_a_name() -> None:
    with pytest.raises(AgentNotFound) as refused:
        report.find(catalog(*ARCHITECTS), "security-auditer")
    assert "security-auditer" in refused.value.message
    assert "security-auditor" in (refused.value.hint or "")


def test_unused_agent_error_has_the_reason() -> None:
    problem = Problem(f"{MINE}/qa.md", 4, "the head has no name", False)
    with pytest.raises(AgentNotFound) as refused:
        report.find(catalog(*ARCHITECTS, problems=(problem,)), "qa")
    assert f"{MINE}/qa.md:4 is not used: the head has no name" in (refused.value.hint or "")


@pytest.mark.parametrize("name", ["x.md", "x.deprecated.md", "x.md.deprecated"])
def test_file_stem_ignores_deprecated_suffix(name: str) -> None:
    assert report.stem(f"/a/{name}") == "x"


@pytest.mark.req("S4-20", "S4-52")
def test_override_note_names_files_and_reason() -> None:
    found = catalog(*ARCHITECTS, *locals_named("software-architect"))
    agent = table_of(found)["by_name"]["software-architect"]
    assert report.selected(agent) == "Selected Agent: software-architect (project-local)"
    told = report.note(agent) or ""
    assert f"{MINE}/software-architect.md" in told
    assert f"{THEIRS}/software-architect.md" in told
    assert "because" in told


@pytest.mark.req("S4-24", "S4-52")
def test_project_agent_note_says_so() -> None:
    found = catalog(*ARCHITECTS, *locals_named("engineer"))
    agents = table_of(found)["by_name"]
    assert report.selected(agents["engineer"]) == "Selected Agent: engineer (project-local)"
    assert "belongs to the project" in (report.note(agents["engineer"]) or "")
    assert report.note(agents["security-auditor"]) is None


# --- Why ----------------------------------------------------------------------------------------------------


def why(found: Catalog, name: str, config: Config | None = None, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    return report.why(found, table_of(found, needs), name, config or Config())


def test_candidates_list_every_source_in_order() -> None:
    found = catalog(
        entry("a", PROJECT), entry("a", GLOBAL), entry("a", LIBRARY), entry("b", GLOBAL), missing=(MANAGED,)
    )
    rows = [(row["verdict"], row["source"], row["path"]) for row in why(found, "a")["candidates"]]
    assert rows == [
        ("absent", MANAGED, FOLDERS[MANAGED]),
        ("used", "project-local", f"{MINE}/a.md"),
        ("shadowed", GLOBAL, f"{THEIRS}/a.md"),
        ("shadowed", LIBRARY, f"{LIBRARY_FOLDER}/a.md"),
    ]
    others = why(found, "b")["candidates"]
    assert [row["verdict"] for row in others] == ["absent", "none", "used", "none"]
    assert others[1]["source"] == "project-local"


def test_skipped_files_are_candidates() -> None:
    skipped = Problem(f"{MINE}/a.md", 3, "the head has no description", False)
    second = Problem(f"{THEIRS}/z.md", 2, f"has the name of {THEIRS}/a.md", False, DUPLICATE)
    other = Problem(f"{THEIRS}/y.md", 2, f"has the name of {THEIRS}/b.md", False, DUPLICATE)
    found = catalog(entry("a", GLOBAL), problems=(skipped, second, other))
    rows = [(row["verdict"], row["path"], row["line"]) for row in why(found, "a")["candidates"]]
    assert ("skipped", f"{MINE}/a.md", 3) in rows
    assert ("skipped", f"{THEIRS}/z.md", 2) in rows
    assert not any(path == f"{THEIRS}/y.md" for _, path, _ in rows)


def test_alias_is_a_candidate() -> None:
    found = catalog(entry("a", ALIAS, path="/p/hocket.toml", target="/bin/a"), entry("a", GLOBAL))
    rows = [(row["verdict"], row["source"]) for row in why(found, "a")["candidates"]]
    assert rows[0] == ("used", ALIAS)
    assert ("shadowed", GLOBAL) in rows


def fields_of(found: Catalog, name: str, config: Config | None = None) -> dict[str, dict[str, Any]]:
    return {field["field"]: field for field in why(found, name, config)["fields"]}


def written(**metadata: Any) -> AgentEntry:
    lines = {key: place for place, key in enumerate(metadata, 2)}
    return entry("a", PROJECT, description="does it", version="2.1", metadata=metadata, lines=lines)


def test_each_property_has_its_file_and_line() -> None:
    found = catalog(written(name="a", description="does it", model="opus", permissionMode="plan", version="2.1"))
    fields = fields_of(found, "a")
    told = {name: (field["value"], field["origin"], field["line"]) for name, field in fields.items()}
    assert told["description"] == ("does it", "file", 3)
    assert told["model"] == ("opus", "file", 4)
    assert told["permission_mode"] == ("plan", "file", 5)
    assert told["version"] == ("2.1", "file", 6)
    assert told["tools"] == (None, "default", None)
    assert fields["instructions"]["path"] == f"{MINE}/a.md"


def test_missing_field_has_default_or_configured_value() -> None:
    found = catalog(written(name="a"))
    assert fields_of(found, "a")["permission_mode"]["value"] == "acceptEdits"
    assert fields_of(found, "a")["permission_mode"]["origin"] == "default"
    config = Config(claude=ClaudeConfig(permission_mode="plan", model="haiku"), files=("/u/config.toml",))
    for field, value in (("permission_mode", "plan"), ("model", "haiku")):
        told = fields_of(found, "a", config)[field]
        assert (told["value"], told["origin"], told["path"]) == (value, "configuration", "/u/config.toml")


def test_alias_value_names_the_replaced_value() -> None:
    found = catalog(written(name="a", model="opus"))
    alias = AgentConfig("/p/hocket.toml", model="haiku", args=("--max-turns", "5"), default_prompt="Go on.")
    fields = fields_of(found, "a", Config(agents={"a": alias}))
    assert (fields["model"]["value"], fields["model"]["path"]) == ("haiku", "/p/hocket.toml")
    assert fields["model"]["instead_of"] == "opus"
    assert fields["args"]["value"] == ["--max-turns", "5"]
    assert fields["prompt"]["value"] == "Go on."
    assert fields["prompt"]["instead_of"] is None


def test_program_alias_has_no_claude_defaults() -> None:
    program = entry("a", ALIAS, path="/p/hocket.toml", target="/bin/a", lines={})
    assert "permission_mode" not in fields_of(catalog(program), "a")
    claude = entry("a", ALIAS, path="/p/hocket.toml", target="/q/.claude/agents/b", lines={})
    assert "permission_mode" in fields_of(catalog(claude), "a")


def test_missing_trust_has_its_command() -> None:
    found = catalog(entry("a", PROJECT, path="/p x/.claude/agents/a.md"))
    told = why(found, "a", needs=("it asks for hooks",))
    assert told["needs_trust"] == ["it asks for hooks"]
    assert told["trust"] == "hocket trust '/p x/.claude/agents/a.md'"
    assert why(found, "a")["trust"] is None


@pytest.mark.parametrize(
    ("key", "spelled"), [("permissionMode", "permission_mode"), ("tools", "tools"), ("allowed-tools", "allowed_tools")]
)
def test_keys_are_normalised_to_snake_case(key: str, spelled: str) -> None:
    assert report.spelled(key) == spelled
