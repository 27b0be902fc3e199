"""The cases of the specification: its five tests with their figures, and its six situations."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalog.agent_world import AgentWorld, write

from hocket.catalog.discovery import require_agents
from hocket.errors import GlobalAgentsDirectoryMissing, NoAgentsFound

Counts = tuple[int, int, int]


@pytest.fixture
def agents(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


def counts(agents: AgentWorld) -> Counts:
    table = agents.table()
    return table["total_count"], table["global_count"], table["project_local_count"]


def define(folder: Path, *names: str) -> None:
    for name in names:
        write(folder, name)


# --- The five tests -----------------------------------------------------------------------------------------


@pytest.mark.req("S4-27")
def test_global_agents_are_counted(agents: AgentWorld) -> None:
    define(agents.globals, "software-architect", "data-pipeline-architect", "security-auditor")
    assert counts(agents) == (3, 3, 0)
    assert agents.table()["overrides"] == []


@pytest.mark.req("S4-28")
def test_project_agents_add_to_global_agents(agents: AgentWorld) -> None:
    define(agents.globals, "software-architect", "data-pipeline-architect", "security-auditor")
    define(agents.locals, "project-engineer", "custom-tool")
    assert counts(agents) == (5, 3, 2)
    assert agents.table()["overrides"] == []


@pytest.mark.req("S4-29", "S4-19")
def test_project_agent_overrides_global_agent(agents: AgentWorld) -> None:
    define(agents.globals, "software-architect", "data-pipeline-architect", "security-auditor")
    define(agents.locals, "software-architect", "project-engineer")
    assert counts(agents) == (4, 2, 2)
    table = agents.table()
    (override,) = table["overrides"]
    assert override["name"] == "software-architect"
    assert override["project_path"] == str(agents.locals / "software-architect.md")
    assert override["global_path"] == str(agents.globals / "software-architect.md")
    row = table["by_name"]["software-architect"]
    assert (row["location"], row["source"], row["overridden"]) == ("project-local", "project-local-override", True)


@pytest.mark.req("S4-30", "S4-09")
def test_empty_project_folder_adds_no_agents(agents: AgentWorld) -> None:
    define(agents.globals, "software-architect", "data-pipeline-architect")
    agents.locals.mkdir(parents=True)
    assert counts(agents) == (2, 2, 0)
    assert agents.table()["problems"] == []


@pytest.mark.req("S4-31", "S4-04")
def test_deprecated_files_are_not_counted(agents: AgentWorld) -> None:
    define(agents.globals, "software-architect", "data-pipeline-architect")
    define(agents.locals, "project-engineer")
    write(agents.globals, "old-tool", file="old-tool.md.deprecated")
    write(agents.locals, "legacy-agent", file="legacy-agent.md.deprecated")
    assert counts(agents) == (3, 2, 1)
    assert {"old-tool", "legacy-agent"}.isdisjoint(agents.table()["by_name"])


# --- The six situations -------------------------------------------------------------------------------------


@pytest.mark.req("S4-21", "S4-08")
def test_project_without_claude_folder_has_globals(agents: AgentWorld) -> None:
    define(agents.globals, "a")
    assert counts(agents) == (1, 1, 0)
    assert agents.table()["problems"] == []


@pytest.mark.req("S4-22", "S4-08")
def test_claude_folder_without_agents_has_globals(agents: AgentWorld) -> None:
    define(agents.globals, "a")
    (agents.project / ".claude").mkdir()
    assert counts(agents) == (1, 1, 0)
    assert agents.table()["problems"] == []


@pytest.mark.req("S4-23")
def test_both_places_are_merged_without_overrides(agents: AgentWorld) -> None:
    define(agents.globals, "software-architect", "data-pipeline-architect", "security-auditor")
    define(agents.locals, "project-engineer", "custom-linter")
    table = agents.table()
    assert counts(agents) == (5, 3, 2)
    assert len(table["by_name"]) == 5
    assert table["shadowed"] == []


@pytest.mark.req("S4-24")
def test_project_only_agent_is_marked(agents: AgentWorld) -> None:
    define(agents.globals, "a")
    define(agents.locals, "project-engineer")
    row = agents.table()["by_name"]["project-engineer"]
    assert (row["location"], row["source"]) == ("project-local", "project-local-only")


@pytest.mark.req("S4-25")
def test_no_agents_error_lists_searched_folders(agents: AgentWorld) -> None:
    agents.globals.mkdir(parents=True)
    found = agents.catalog()
    assert found.ranked == {}
    with pytest.raises(NoAgentsFound) as raised:
        require_agents(found)
    message, hint = raised.value.message, raised.value.hint or ""
    assert f"global: {agents.globals} (empty)" in message
    assert f"project: {agents.locals} (missing)" in message
    assert [hint.count(f"{number}. ") for number in (1, 2, 3)] == [1, 1, 1]
    assert "help" in hint


@pytest.mark.req("S4-25")
def test_invalid_files_do_not_count(agents: AgentWorld) -> None:
    agents.globals.mkdir(parents=True)
    (agents.globals / "broken.md").write_text("no head at all")
    with pytest.raises(NoAgentsFound):
        require_agents(agents.catalog())


@pytest.mark.req("S4-25")
@pytest.mark.parametrize("place", ["globals", "locals", "library"])
def test_one_agent_in_any_folder_is_enough(agents: AgentWorld, place: str) -> None:
    define(getattr(agents, place), "a")
    require_agents(agents.catalog())


@pytest.mark.req("S4-26")
def test_missing_global_folder_fails_only_when_strict(agents: AgentWorld) -> None:
    define(agents.locals, "a")
    assert counts(agents) == (1, 0, 1)
    require_agents(agents.catalog())
    with pytest.raises(GlobalAgentsDirectoryMissing) as raised:
        agents.catalog(strict=True)
    assert str(agents.globals) in raised.value.message
    hint = raised.value.hint or ""
    assert [hint.count(f"{number}. ") for number in (1, 2, 3)] == [1, 1, 1]
    assert f"mkdir -p {agents.globals}" in hint


@pytest.mark.req("S4-26")
def test_strict_accepts_an_empty_folder(agents: AgentWorld) -> None:
    agents.globals.mkdir(parents=True)
    assert agents.catalog(strict=True).ranked == {}
