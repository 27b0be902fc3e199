"""The catalog against the list of the CLI: what counts as the same, what as a difference, what is meant to differ."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from world import Bin

from hocket.catalog.entries import (
    ALIAS,
    CONFIG,
    GLOBAL,
    LIBRARY,
    MANAGED,
    PLUGIN,
    PROJECT,
    AgentEntry,
    Catalog,
    Problem,
)
from hocket.cli import agent_comparison
from hocket.cli.agent_comparison import (
    ClaudeUser,
    Comparison,
    compare,
    comparison_lines,
    comparison_summary,
    list_built_in_agents,
    list_claude_agents,
)
from hocket.errors import HocketError
from hocket.providers.claude.listing import Listed
from hocket.providers.definition_files import DUPLICATE, HIDDEN, ODD, REFUSED

BUILT_IN = [Listed("Explore", "looks around", "inherit"), Listed("claude", "does all", None)]


def entry(name: str, source: str = PROJECT, model: str | None = None, path: str = "/f.md") -> AgentEntry:
    return AgentEntry(name, source, path, model=model, description="d")


def catalog(*entries: AgentEntry, problems: tuple[Problem, ...] = ()) -> Catalog:
    ranked: dict[str, tuple[AgentEntry, ...]] = {}
    for one in entries:
        ranked[one.name] = (*ranked.get(one.name, ()), one)
    return Catalog("/", ranked, problems=problems)


def compared(ours: Catalog, *theirs: Listed) -> Comparison:
    return compare(ours, [*theirs, *BUILT_IN], BUILT_IN)


def names(rows: list[agent_comparison.Row]) -> list[str]:
    return [row["name"] for row in rows]


def test_equal_agents_ignore_built_in_ones() -> None:
    found = compared(catalog(entry("a"), entry("b", GLOBAL), entry("p:c", PLUGIN)), *listed("a", "b", "p:c"))
    assert (found.same, found.equal, found[1:]) == (3, True, ([], [], [], []))


def listed(*names: str) -> list[Listed]:
    return [Listed(name, "d", None) for name in names]


def test_agents_of_one_side_are_listed_for_it() -> None:
    found = compared(catalog(entry("ours"), entry("both")), *listed("both", "theirs"))
    assert (found.same, names(found.only_claude), names(found.only_hocket)) == (1, ["theirs"], ["ours"])
    assert not found.equal


def test_agent_only_in_hocket_has_its_problem() -> None:
    problems = (Problem("/f.md", 3, "is strange", True, ODD), Problem("/g.md", 1, "is elsewhere", False))
    (row,) = compared(catalog(entry("ours"), problems=problems)).only_hocket
    assert row == {"name": "ours", "source": "project", "path": "/f.md", "reason": "is strange"}


def test_unshared_sources_are_ignored() -> None:
    ours = catalog(entry("a", ALIAS), entry("b", CONFIG), entry("c", LIBRARY), entry("d", ALIAS), entry("d", GLOBAL))
    assert compared(ours, *listed("d")) == (1, [], [], [], [])


def test_redefined_built_in_agent_is_compared() -> None:
    ours = catalog(entry("Explore"))
    redefined = compare(ours, [Listed("Explore", "d", None)], BUILT_IN)
    assert (redefined.same, redefined.equal) == (1, True)
    dropped = compare(ours, BUILT_IN, BUILT_IN)
    assert (names(dropped.only_hocket), dropped.equal) == (["Explore"], False)


def test_managed_agents_are_not_built_in() -> None:
    everywhere = [*listed("m"), *BUILT_IN]
    assert compare(catalog(entry("m", MANAGED)), everywhere, everywhere) == (1, [], [], [], [])


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (None, None, True),
        (None, "inherit", True),
        ("Inherit", None, True),
        ("claude-haiku-4-5-20251001", "Haiku", True),
        ("opus", "opus", True),
        (" opus", "opus", True),
        ("opus", "sonnet", False),
        (None, "opus", False),
        ("opus", None, False),
    ],
)
def test_model_names_are_compared_by_meaning(ours: str | None, theirs: str | None, same: bool) -> None:
    found = compared(catalog(entry("a", model=ours)), Listed("a", "d", theirs))
    rows = [] if same else [{"name": "a", "hocket": ours, "claude": theirs, "path": "/f.md"}]
    assert (found.models, found.same, found.equal) == (rows, int(same), same)


def test_another_description_is_a_difference() -> None:
    found = compared(catalog(entry("a"), entry("b")), Listed("a", "another " * 30, None), Listed("b", "d", None))
    assert found.descriptions == [{"name": "a", "hocket": "d", "claude": "another " * 30, "path": "/f.md"}]
    assert (found.same, found.equal) == (1, False)
    assert comparison_summary(found) == "1 the same as Claude's own list, 1 with another description"
    assert comparison_lines(found).startswith("    description of a: d, Claude has another another")
    assert len(comparison_lines(found)) < 120


@pytest.mark.parametrize("field", ["models", "descriptions"])
def test_difference_by_an_ignored_file_is_expected(world: Path, field: str) -> None:
    old = world / "a.deprecated.md"
    old.write_text("---\nname: a\ndescription: old\n---\n")
    hidden = Problem(str(old), 1, "is deprecated", True, HIDDEN)
    theirs = Listed("a", "d", "opus") if field == "models" else Listed("a", "old", None)
    found = compared(catalog(entry("a"), problems=(hidden,)), theirs)
    (row,) = getattr(found, field)
    assert (row["expected"], row["reason"], found.equal) == (True, f"{old} is deprecated", True)


def test_difference_between_plugin_duplicates_is_expected() -> None:
    """Which of them Claude takes varies."""
    second = Problem("/g.md", None, "'p:a' is also described by /f.md, which wins", False, DUPLICATE)
    found = compared(catalog(entry("p:a", PLUGIN), problems=(second,)), Listed("p:a", "other", None))
    assert (len(found.descriptions), found.equal) == (1, True)
    assert not compared(catalog(entry("p:a"), problems=(second,)), Listed("p:a", "other", None)).equal


def test_deprecated_file_is_an_expected_difference(world: Path) -> None:
    old = world / "old.deprecated.md"
    old.write_text("---\nname: old one\ndescription: d\n---\n")
    hidden = Problem(str(old), 1, "is deprecated", True, HIDDEN)
    broken = Problem(str(world / "gone.deprecated.md"), 1, "is deprecated", True, HIDDEN)
    found = compared(catalog(problems=(broken, hidden)), *listed("old one"))
    assert names(found.only_claude) == ["old one"]
    assert (found.only_claude[0]["expected"], found.only_claude[0]["path"], found.equal) == (True, str(old), True)
    assert "deprecated" in comparison_lines(found)


def test_ignored_folder_is_an_expected_difference(world: Path) -> None:
    (world / "one.md").write_text("---\nname: one\ndescription: d\n---\n")
    hidden = Problem(str(world), None, "is of another user", True, HIDDEN)
    found = compared(catalog(problems=(hidden,)), *listed("one", "other"))
    assert [(row["name"], row["expected"]) for row in found.only_claude] == [("one", True), ("other", False)]


def test_refused_file_is_an_expected_difference() -> None:
    refused = Problem("/a/huge.md", 1, "is too large", True, REFUSED)
    found = compared(catalog(problems=(refused,)), *listed("huge"))
    assert (found.only_claude[0]["expected"], found.equal) == (True, True)
    assert comparison_lines(found) == "    only Claude: huge (/a/huge.md): is too large\n"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (f"name: big\ndescription: {'x' * 70_000}", "big"),
        (f"name: bigger\ndescription: d\nx: {'y' * 300_000}", "bigger"),
        ('name: "a\\tb"\ndescription: d', "a\tb"),
    ],
)
def test_refused_file_is_matched_by_its_frontmatter(world: Path, head: str, name: str) -> None:
    file = world / "file.md"
    file.write_text(f"---\n{head}\n---\n")
    found = compared(catalog(problems=(Problem(str(file), 1, "is refused", True, REFUSED),)), *listed(name, "other"))
    (theirs, other) = sorted(found.only_claude, key=lambda row: bool(row["name"] == "other"))
    assert (theirs["name"], theirs["expected"], theirs["path"]) == (name, True, str(file))
    assert (other["expected"], found.equal) == (False, False)


def test_each_difference_is_one_line() -> None:
    found = compared(catalog(entry("a\x1b[31m\nb"), entry("m", model="opus")), *listed("theirs", "m"))
    lines = comparison_lines(found).splitlines()
    assert [line.strip() for line in lines] == [
        *("only Claude: theirs", "only Hocket: a b (project, /f.md)", "model of m: opus, Claude has None")
    ]
    assert (
        comparison_summary(found)
        == "0 the same as Claude's own list, 1 only Claude has, 1 only Hocket has, 1 with another model"
    )


# --- Asking -------------------------------------------------------------------------------------------------

TELLING = """
import json, os, sys
about = {"cwd": os.getcwd(), "env": dict(os.environ), "argv": sys.argv[1:], "asked": sys.stdin.read()}
agents = [{"name": name, "description": json.dumps(about)} for name in os.listdir(".")]
print(json.dumps({"type": "control_response", "response": {"response": {"agents": agents}}}))
"""


def test_cli_runs_in_a_stand_in_without_credentials(world: Path, agent: Bin) -> None:
    cwd = world / "p"
    (cwd / ".claude/agents").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(world / "user"), "ANTHROPIC_API_KEY": "k", "XDG_CACHE_HOME": "/c"}
    moved = env | {"CLAUDE_CONFIG_DIR": str(world / "elsewhere")}
    program = str(agent("claude", TELLING))
    (found,) = list_claude_agents(program, str(cwd), ClaudeUser.of(moved, str(cwd)), moved)
    about = json.loads(found.description)
    root = about["cwd"].removesuffix(str(cwd))
    assert (found.name, root != about["cwd"], Path(root).exists()) == (".claude", True, False)
    reported = about["env"]
    assert (reported["HOME"], reported["CLAUDE_CONFIG_DIR"]) == (f"{root}{world}/user", f"{root}{world}/elsewhere")
    assert set(reported) & {"ANTHROPIC_API_KEY", "XDG_CACHE_HOME"} == set()
    assert json.loads(about["asked"])["type"] == "control_request"


def test_cli_in_an_empty_directory_lists_nothing(agent: Bin) -> None:
    env = {"PATH": os.environ["PATH"], "CLAUDE_CONFIG_DIR": "/mine"}
    assert list_built_in_agents(str(agent("claude", TELLING)), env) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('I am too old for this')", "too old for this"),
        ("import signal; signal.pause()", "did not list its agents within 0 s"),
        ("#!/nowhere\n", "cannot be started"),
    ],
)
def test_silent_cli_is_an_error_with_its_path(
    agent: Bin, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    monkeypatch.setattr(agent_comparison, "SECONDS", 0.4 if "pause" in body else 20)
    program = str(agent("claude", body))
    with pytest.raises(HocketError, match=message) as caught:
        list_built_in_agents(program, {"PATH": os.environ["PATH"]})
    assert program in caught.value.message
