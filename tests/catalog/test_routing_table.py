"""The routing table: its shape, its counts, shadowed agents, and its independence from the catalog."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from hocket.catalog.entries import (
    ALIAS,
    CONFIG,
    GLOBAL,
    LIBRARY,
    MANAGED,
    PLUGIN,
    PROJECT,
    SOURCES,
    AgentEntry,
    Catalog,
    Problem,
    SearchedPlace,
)
from hocket.catalog.routing_table import newer, plain, routing_table
from hocket.providers.definition_files import DUPLICATE, LINKED

FOLDERS = {GLOBAL: "/home/me/.claude/agents", PROJECT: "/p/.claude/agents", LIBRARY: "/home/me/.claude/agents-library"}


def entry(name: str, source: str = GLOBAL, **fields: Any) -> AgentEntry:
    path = fields.pop("path", f"{FOLDERS.get(source, f'/{source}')}/{name}.md")
    return AgentEntry(name, source, path, project="/p" if source == PROJECT else None, **fields)


def catalog(*entries: AgentEntry, problems: Sequence[Problem] = (), places: Sequence[SearchedPlace] = ()) -> Catalog:
    ranked: dict[str, tuple[AgentEntry, ...]] = {}
    for one in sorted(entries, key=lambda one: (one.name, SOURCES.index(one.source))):
        ranked[one.name] = (*ranked.get(one.name, ()), one)
    return Catalog("/p", ranked, {name: name for name in ranked}, tuple(problems), tuple(places))


# --- Shape --------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-14")
def test_empty_catalog_has_every_key() -> None:
    table = routing_table(catalog())
    assert table["by_name"] == {}
    assert table["by_tags"] == {}
    assert table["by_location"] == {"global-only": [], "project-local-only": [], "project-local-override": []}
    assert table["overrides"] == table["shadowed"] == table["problems"] == []
    assert (table["total_count"], table["global_count"], table["project_local_count"]) == (0, 0, 0)


@pytest.mark.req("S4-07", "S4-10")
def test_global_agent_has_the_documented_fields() -> None:
    found = entry(
        "a", description="Does it", tags=("x",), delegates_to=("b",), version="2.0", metadata={"color": "red"}
    )
    assert routing_table(catalog(found))["by_name"]["a"] == {
        "name": "a",
        "address": "a",
        "location": "global",
        "source": "global-only",
        "path": "/home/me/.claude/agents/a.md",
        "description": "Does it",
        "tags": ["x"],
        "delegates_to": ["b"],
        "version": "2.0",
        "model": None,
        "full_metadata": {"color": "red"},
        "overridden": False,
        "shadows": [],
        "needs_trust": [],
        "trust_targets": [],
    }


@pytest.mark.req("S4-07")
def test_missing_field_has_its_default() -> None:
    row = routing_table(catalog(entry("a")))["by_name"]["a"]
    assert (row["description"], row["tags"], row["delegates_to"], row["version"]) == ("", [], [], "1.0.0")


@pytest.mark.req("S4-11")
def test_project_agent_with_own_name_overrides_nothing() -> None:
    row = routing_table(catalog(entry("a", PROJECT), entry("b")))["by_name"]["a"]
    assert (row["location"], row["source"], row["overridden"]) == ("project-local", "project-local-only", False)
    assert row["project"] == "/p"
    assert "overridden_global_path" not in row


@pytest.mark.req("S4-12", "S4-16", "S4-19")
def test_project_agent_replaces_a_global_one() -> None:
    table = routing_table(catalog(entry("a", PROJECT), entry("a"), entry("b")))
    row = table["by_name"]["a"]
    assert (row["location"], row["source"], row["overridden"]) == ("project-local", "project-local-override", True)
    assert row["path"] == "/p/.claude/agents/a.md"
    assert row["overridden_global_path"] == "/home/me/.claude/agents/a.md"
    assert row["shadows"] == [{"source": "global", "path": "/home/me/.claude/agents/a.md"}]
    (override,) = table["overrides"]
    assert override["name"] == "a"
    assert override["project_path"] == "/p/.claude/agents/a.md"
    assert override["global_path"] == "/home/me/.claude/agents/a.md"


@pytest.mark.req("S4-15", "S4-51")
def test_each_tag_lists_its_agents_in_order() -> None:
    tagged = [entry("b", tags=("z", "y", "z")), entry("a", PROJECT, tags=("y",)), entry("c")]
    table = routing_table(catalog(*tagged))
    assert table["by_tags"] == {"y": ["a", "b"], "z": ["b"]}
    assert list(table["by_tags"]) == ["y", "z"]


@pytest.mark.req("S4-17", "S4-47")
def test_counts_agree_with_the_lists() -> None:
    both = [entry("one", PROJECT), entry("one"), entry("two", PROJECT), entry("three"), entry("four")]
    others = [entry("five", LIBRARY), entry("six", CONFIG), entry("seven", PLUGIN), entry("eight", MANAGED)]
    table = routing_table(catalog(*both, *others, entry("nine", ALIAS)))
    assert (table["total_count"], table["global_count"], table["project_local_count"]) == (4, 2, 2)
    lists = table["by_location"]
    assert lists["global-only"] == ["four", "three"]
    assert lists["project-local-only"] == ["two"]
    assert lists["project-local-override"] == ["one"]
    assert [lists[kind] for kind in ("library", "config", "plugin", "managed", "alias")] == [
        *(["five"], ["six"], ["seven"], ["eight"], ["nine"])
    ]
    assert table["library_count"] == table["alias_count"] == 1
    assert sorted(name for names in lists.values() for name in names) == sorted(table["by_name"])


def test_empty_locations_beyond_documented_are_omitted() -> None:
    table = routing_table(catalog(entry("a")))
    assert set(table["by_location"]) == {"global-only", "project-local-only", "project-local-override"}
    assert table["library_count"] == 0


# --- What is hidden -----------------------------------------------------------------------------------------


def test_shadowed_agents_name_the_winner() -> None:
    far = entry("a", PROJECT, path="/far/.claude/agents/a.md")
    table = routing_table(catalog(entry("a", ALIAS, path="/p/hocket.toml"), far, entry("a"), entry("a", LIBRARY)))
    assert table["shadowed"] == [
        {"name": "a", "source": source, "path": path, "by": "/p/hocket.toml"}
        for source, path in [
            ("project-local", "/far/.claude/agents/a.md"),
            ("global", "/home/me/.claude/agents/a.md"),
            ("library", "/home/me/.claude/agents-library/a.md"),
        ]
    ]


def test_agent_is_listed_at_its_winner_only() -> None:
    table = routing_table(catalog(entry("a", ALIAS), entry("a", PROJECT), entry("a")))
    assert table["by_location"]["alias"] == ["a"]
    assert table["by_location"]["project-local-override"] == table["by_location"]["global-only"] == []
    assert table["overrides"] == []
    assert not table["by_name"]["a"]["overridden"]


def test_nearer_project_agent_is_no_override() -> None:
    far = entry("a", PROJECT, path="/far/.claude/agents/a.md")
    row = routing_table(catalog(entry("a", PROJECT), far))["by_name"]["a"]
    assert (row["source"], row["overridden"]) == ("project-local-only", False)
    assert row["shadows"] == [{"source": "project-local", "path": "/far/.claude/agents/a.md"}]


@pytest.mark.req("S4-54")
@pytest.mark.parametrize(
    ("project", "hidden", "expected"),
    [
        ("1.10.0", "1.9.0", "project"),
        ("1.2", "1.10", "global"),
        ("1.0", "1.0.0", "same"),
        ("v2", "2.0.0", "same"),
        ("1.0.0-beta", "1.0.0", "global"),
        ("1.0.0-beta.2", "1.0.0-beta.10", "global"),
        ("1.0.0+build", "1.0.0", "same"),
        ("latest", "latest", "same"),
        ("latest", "1.0.0", None),
        ("1.0.0", "", None),
        ("٣.0", "1.0", None),
    ],
)
def test_versions_are_compared_by_semver_rules(project: str, hidden: str, expected: str | None) -> None:
    assert newer(project, hidden) == expected


@pytest.mark.req("S4-54")
def test_override_says_which_version_is_newer() -> None:
    table = routing_table(catalog(entry("a", PROJECT, version="1.2.0"), entry("a", version="1.10.0")))
    assert table["by_name"]["a"]["version"] == "1.2.0"
    (override,) = table["overrides"]
    assert (override["project_version"], override["global_version"]) == ("1.2.0", "1.10.0")
    assert override["newer"] == "global"


# --- The rest -----------------------------------------------------------------------------------------------


def test_linked_agent_is_marked() -> None:
    links = [
        Problem("/home/me/.claude/agents/a.md", None, "is a link", True, LINKED),
        Problem("/home/me/.claude/agents/team", None, "is a link", True, LINKED),
    ]
    inside = entry("b", path="/home/me/.claude/agents/team/x/b.md")
    beside = entry("c", path="/home/me/.claude/agents/teams/c.md")
    rows = routing_table(catalog(entry("a"), inside, beside, problems=links))["by_name"]
    assert [rows[name].get("linked", False) for name in "abc"] == [True, True, False]


def test_problems_are_sorted_by_path_and_line() -> None:
    problems = [Problem("/b", 1, "x", False), Problem("/a", 9, "y", True, DUPLICATE), Problem("/a", None, "z", False)]
    assert routing_table(catalog(problems=problems))["problems"] == [
        {"path": "/a", "line": None, "reason": "z", "claude_loads": False, "kind": "skipped"},
        {"path": "/a", "line": 9, "reason": "y", "claude_loads": True, "kind": "duplicate"},
        {"path": "/b", "line": 1, "reason": "x", "claude_loads": False, "kind": "skipped"},
    ]


def test_approval_is_checked_for_the_winner() -> None:
    found = catalog(entry("a", PROJECT), entry("a"), entry("b"))
    rows = routing_table(found, lambda one: (("shadows",), ("/f",)) if one.project else ((), ()))["by_name"]
    assert (rows["a"]["needs_trust"], rows["b"]["needs_trust"]) == (["shadows"], [])
    assert (rows["a"]["trust_targets"], rows["b"]["trust_targets"]) == (["/f"], [])


@pytest.mark.req("S4-35")
def test_changing_a_table_leaves_the_catalog_unchanged() -> None:
    metadata: dict[str, Any] = {"hooks": {"Stop": [{"hooks": []}]}}
    found = catalog(entry("a", tags=("x",), metadata=metadata))
    table = routing_table(found)
    table["by_name"]["a"]["tags"].append("y")
    table["by_name"]["a"]["full_metadata"]["hooks"]["Stop"][0]["hooks"].append("evil")
    table["by_location"]["global-only"].clear()
    again = routing_table(found)
    assert again["by_name"]["a"]["tags"] == ["x"]
    assert again["by_name"]["a"]["full_metadata"] == {"hooks": {"Stop": [{"hooks": []}]}}
    assert again["by_location"]["global-only"] == ["a"]


def test_odd_metadata_becomes_valid_json() -> None:
    odd = {1: float("nan"), "big": 1 << 20000, "bytes": b"x", "when": (1, None, True), None: {"deep": [1.5]}}
    said = json.loads(json.dumps(plain(odd), allow_nan=False))
    assert said["1"] == "nan"
    assert said["big"] == hex(1 << 20000)
    assert said["when"] == [1, None, True]
    assert said["None"] == {"deep": [1.5]}
