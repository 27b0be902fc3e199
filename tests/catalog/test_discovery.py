"""Every source is asked, names are put in order, and the result knows what it depends on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from catalog.agent_world import AgentWorld, settled, write

from hocket.catalog.cache import holds, is_settled
from hocket.catalog.configs import DEFAULTS
from hocket.catalog.discovery import UNSETTLED, discover, require_agents
from hocket.catalog.entries import ALIAS, CONFIG, GLOBAL, LIBRARY, PROJECT, Catalog
from hocket.catalog.file_probe import changed_recently
from hocket.config.settings import Config
from hocket.errors import NoAgentsFound
from hocket.providers.definition_files import DUPLICATE, RENAMED
from hocket.trust import approvals


@pytest.fixture
def agents(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


def sources(catalog: Catalog, name: str) -> list[str]:
    return [entry.source for entry in catalog.ranked[name]]


def paths(catalog: Catalog, name: str) -> list[str]:
    return [entry.path for entry in catalog.ranked[name]]


def problems(catalog: Catalog, kind: str) -> list[str]:
    return [problem.path for problem in catalog.problems if problem.kind == kind]


# --- Order --------------------------------------------------------------------------------------------------


def test_sources_are_ranked_in_lookup_order(agents: AgentWorld) -> None:
    write(agents.library, "a")
    agents.agent_config("a")
    write(agents.globals, "a")
    write(agents.locals, "a")
    agents.config('[agents.a]\npath = "/bin/true"\n')
    assert sources(agents.catalog(), "a") == [ALIAS, PROJECT, GLOBAL, CONFIG, LIBRARY]


def test_nearest_project_of_a_repository_wins(agents: AgentWorld) -> None:
    inner = agents.project / "packages" / "inner"
    (agents.project / ".git").mkdir()
    near = write(inner / ".claude" / "agents", "a")
    far = write(agents.locals, "a")
    catalog = agents.catalog(inner)
    assert paths(catalog, "a") == [str(near), str(far)]
    assert [entry.project for entry in catalog.ranked["a"]] == [str(inner), str(agents.project)]


@pytest.mark.req("S4-13")
def test_collision_is_by_name_not_by_file(agents: AgentWorld) -> None:
    write(agents.globals, "reviewer", file="one.md")
    write(agents.locals, "reviewer", file="two.md")
    write(agents.globals, "first", file="same.md")
    write(agents.locals, "second", file="same.md")
    write(agents.globals, "Reviewer")
    table = agents.table()
    assert [override["name"] for override in table["overrides"]] == ["reviewer"]
    assert sorted(table["by_name"]) == ["Reviewer", "first", "reviewer", "second"]


@pytest.mark.req("S4-50")
def test_last_listed_file_of_a_name_wins(agents: AgentWorld) -> None:
    files = [write(agents.globals, "a", file=f"a{number}.md") for number in range(9)]
    *_, last = os.listdir(agents.globals)
    catalog = agents.catalog()
    assert paths(catalog, "a") == [str(agents.globals / last)]
    assert problems(catalog, DUPLICATE) == [str(file) for file in files if file.name != last]


@pytest.mark.req("S4-51")
def test_table_does_not_depend_on_order_of_writing(agents: AgentWorld, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    other = AgentWorld(tmp_path / "again")
    names = [f"agent-{number}" for number in range(30)]
    for name in names:
        write(agents.globals, name)
    for name in reversed(names):
        write(other.globals, name)
    assert _spelled(agents) == _spelled(other)
    assert list(agents.catalog().ranked) == sorted(names)


def _spelled(agents: AgentWorld) -> str:
    return json.dumps(agents.table()).replace(str(agents.user.parent), "ROOT")


def test_without_a_directory_only_user_agents_count(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    write(agents.locals, "b")
    catalog = discover(None, agents.env, str(agents.home), Config())
    assert list(catalog.ranked) == ["a"]
    assert catalog.cwd is None


@pytest.mark.req("S1-54")
def test_agents_of_another_project_are_found(agents: AgentWorld) -> None:
    write(agents.globals, "everywhere")
    write(agents.locals, "here")
    other = agents.project.parent / "other"
    there = write(other / ".claude" / "agents", "there")
    catalog = agents.catalog(other)
    assert list(catalog.ranked) == ["everywhere", "there"]
    assert paths(catalog, "there") == [str(there)]


def test_directory_spelling_does_not_change_paths(agents: AgentWorld) -> None:
    path = write(agents.locals, "a")
    spelled = f"{agents.project}/./../{agents.project.name}//"
    catalog = discover(spelled, agents.env, str(agents.home), Config())
    assert paths(catalog, "a") == [str(path)]
    assert catalog.cwd == str(agents.project)


def test_places_report_existence_and_count(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    places = {place.source: place for place in agents.catalog().places}
    assert (places[GLOBAL].path, places[GLOBAL].exists, places[GLOBAL].found) == (str(agents.globals), True, 1)
    assert (places[PROJECT].path, places[PROJECT].exists, places[PROJECT].found) == (str(agents.locals), False, 0)


# --- Addresses ----------------------------------------------------------------------------------------------


def test_typable_name_is_its_own_address(agents: AgentWorld) -> None:
    for name in ("Code Review", "Code-Review", "Code/Review"):
        write(agents.globals, name, file=f"{name.replace('/', '_')}.md")
    addresses = agents.catalog().addresses
    assert addresses["Code-Review"] == "Code-Review"
    assert len(set(addresses.values())) == 3


def test_untypable_name_is_reported_with_its_address(agents: AgentWorld) -> None:
    write(agents.globals, "Code-Review")
    odd = write(agents.globals, "Code Review", file="odd.md")
    catalog = agents.catalog()
    assert problems(catalog, RENAMED) == [str(odd)]
    (problem,) = [problem for problem in catalog.problems if problem.kind == RENAMED]
    assert catalog.addresses["Code Review"] in problem.reason
    assert problem.cli_loads
    assert catalog.find(catalog.addresses["Code Review"])[0].path == str(odd)


# --- Aliases ------------------------------------------------------------------------------------------------


def test_alias_has_its_file_and_target(agents: AgentWorld) -> None:
    file = agents.config('[agents.tool]\npath = "/bin/true"\nargs = ["-x"]\n')
    (entry,) = agents.catalog().ranked["tool"]
    assert (entry.source, entry.path, entry.target) == (ALIAS, str(file), "/bin/true")
    assert entry.project == str(agents.project)
    assert entry.metadata == {"path": "/bin/true", "args": ["-x"]}


def test_user_alias_belongs_to_no_project(agents: AgentWorld) -> None:
    agents.home.mkdir()
    (agents.home / "config.toml").write_text('[agents.tool]\npath = "/bin/true"\n')
    (entry,) = agents.catalog().ranked["tool"]
    assert (entry.path, entry.project) == (str(agents.home / "config.toml"), None)


@pytest.mark.parametrize("path", ["", 'path = "a"\n'])
def test_alias_of_same_name_extends_the_agent(agents: AgentWorld, path: str) -> None:
    write(agents.globals, "a", model="sonnet")
    agents.config(f'[agents.a]\n{path}model = "opus"\n')
    (entry,) = agents.catalog().ranked["a"]
    assert (entry.source, entry.model) == (GLOBAL, "opus")
    assert entry.metadata["model"] == "sonnet"


def test_alias_without_path_names_a_program(agents: AgentWorld) -> None:
    agents.config('[agents.builder]\nargs = ["-x"]\n')
    (entry,) = agents.catalog().ranked["builder"]
    assert (entry.source, entry.target) == (ALIAS, "builder")


def test_alias_takes_description_of_its_agent(agents: AgentWorld) -> None:
    write(agents.globals, "reviewer", model="opus", tags=["quality"], version="3.1")
    agents.config('[agents.quick]\npath = "reviewer"\nmodel = "haiku"\n')
    entry = agents.catalog().ranked["quick"][0]
    assert (entry.description, entry.tags, entry.version) == ("Does reviewer", ("quality",), "3.1")
    assert (entry.model, entry.target) == ("haiku", "reviewer")


@pytest.mark.parametrize("ending", ["", ".md"])
def test_alias_takes_description_from_another_project(agents: AgentWorld, ending: str) -> None:
    other = agents.project.parent / "other"
    write(other / ".claude" / "agents", "reviewer", description="Reviews elsewhere", model="opus")
    agents.config(f'[agents.theirs]\npath = "../other/.claude/agents/reviewer{ending}"\n')
    catalog = agents.catalog()
    entry = catalog.ranked["theirs"][0]
    assert (entry.source, entry.description, entry.model) == (ALIAS, "Reviews elsewhere", "opus")
    assert str(other / ".claude" / "agents" / "reviewer.md") in catalog.seen


def test_alias_of_a_missing_file_is_listed(agents: AgentWorld) -> None:
    agents.config('[agents.theirs]\npath = "../other/.claude/agents/reviewer"\n')
    catalog = agents.catalog()
    assert catalog.ranked["theirs"][0].description == ""
    (agents.project.parent / "other").mkdir()
    write(agents.project.parent / "other" / ".claude" / "agents", "reviewer")
    assert not holds(catalog.seen)


# --- Nothing there ------------------------------------------------------------------------------------------


@pytest.mark.req("S4-25")
def test_alias_counts_as_an_agent(agents: AgentWorld) -> None:
    with pytest.raises(NoAgentsFound):
        require_agents(agents.catalog())
    agents.config('[agents.tool]\npath = "/bin/true"\n')
    require_agents(agents.catalog())


@pytest.mark.req("S4-25")
def test_user_config_counts_as_an_agent(agents: AgentWorld) -> None:
    agents.agent_config("my-own")
    require_agents(agents.catalog())


@pytest.mark.req("S4-25")
def test_unchanged_default_configs_do_not_count(agents: AgentWorld) -> None:
    for default in DEFAULTS:
        agents.agent_config(default["name"], **default)
    catalog = agents.catalog()
    assert len(catalog.ranked) == len(DEFAULTS)
    with pytest.raises(NoAgentsFound):
        require_agents(catalog)
    agents.agent_config(DEFAULTS[0]["name"])
    require_agents(agents.catalog())


# --- What it depends on -------------------------------------------------------------------------------------


def _new_definition(agents: AgentWorld) -> None:
    write(agents.globals, "new")


def _new_below(agents: AgentWorld) -> None:
    write(agents.globals / "team", "new")


def _changed_definition(agents: AgentWorld) -> None:
    write(agents.globals, "old", description="Something else entirely")


def _removed_definition(agents: AgentWorld) -> None:
    (agents.globals / "old.md").unlink()


def _first_of_the_project(agents: AgentWorld) -> None:
    write(agents.locals, "new")


def _first_of_the_library(agents: AgentWorld) -> None:
    write(agents.library, "new")


def _configuration_of_the_project(agents: AgentWorld) -> None:
    agents.config("")


def _chains_of_the_project(agents: AgentWorld) -> None:
    (agents.project / "forge").mkdir()
    (agents.project / "forge" / "chains.json").write_text("{}")


def _configuration_of_the_user(agents: AgentWorld) -> None:
    agents.home.mkdir()
    (agents.home / "config.toml").write_text("")


def _other_configuration_of_the_user(agents: AgentWorld) -> None:
    folder = agents.user / ".config" / "hocket"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")


def _trust(agents: AgentWorld) -> None:
    agents.home.mkdir()
    (agents.home / "trust.json").write_text("{}")


def _config_of_hockets_own(agents: AgentWorld) -> None:
    agents.agent_config("new")


def _repository(agents: AgentWorld) -> None:
    (agents.project / ".git").mkdir()


def _repository_above(agents: AgentWorld) -> None:
    (agents.project.parent / ".git").mkdir()


def _configuration_above(agents: AgentWorld) -> None:
    agents.config("", agents.project.parent)


CHANGES = [
    _new_definition,
    _new_below,
    _changed_definition,
    _removed_definition,
    _first_of_the_project,
    _first_of_the_library,
    _configuration_of_the_project,
    _chains_of_the_project,
    _configuration_of_the_user,
    _other_configuration_of_the_user,
    _trust,
    _config_of_hockets_own,
    _repository,
    _repository_above,
    _configuration_above,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_relevant_change_invalidates_the_catalog(agents: AgentWorld, change: Callable[[AgentWorld], None]) -> None:
    write(agents.globals, "old")
    catalog = settled(agents.catalog)
    assert holds(catalog.seen)
    change(agents)
    assert not holds(catalog.seen)


@pytest.mark.parametrize("name", ["settings.json", "agents/b.md", "skills/one/two.md"])
def test_change_to_approved_folder_is_noticed(agents: AgentWorld, name: str) -> None:
    """The approval is of the content, so an added file may change which agents need approval."""
    write(agents.locals, "a")
    (agents.project / ".claude" / "skills" / "one").mkdir(parents=True)
    (agents.project / ".claude" / "skills" / "one" / "SKILL.md").write_text("hooks")
    (agents.project / ".mcp.json").write_text("{}")
    approvals.approve(str(agents.home), approvals.FOLDER, os.path.realpath(agents.project), b"as it was")
    catalog = settled(agents.catalog)
    assert holds(catalog.seen)
    (agents.project / ".claude" / name).write_text("{}")
    assert not holds(catalog.seen)


def test_unrelated_change_is_ignored(agents: AgentWorld) -> None:
    write(agents.globals, "old")
    catalog = settled(agents.catalog)
    (agents.project / "main.py").write_text("print()")
    (agents.user / "notes.txt").write_text("notes")
    (agents.globals / "old.md").read_text()
    assert holds(catalog.seen)


def test_changed_link_target_is_noticed(agents: AgentWorld) -> None:
    store = agents.user / "store"
    write(store, "a", file="one.md")
    write(store, "b", file="two.md")
    agents.globals.mkdir(parents=True)
    (agents.globals / "link.md").symlink_to(store / "one.md")
    catalog = settled(agents.catalog)
    assert list(catalog.ranked) == ["a"]
    (agents.globals / "link.md").unlink()
    (agents.globals / "link.md").symlink_to(store / "two.md")
    assert not holds(catalog.seen)
    assert list(agents.catalog().ranked) == ["b"]


def test_catalog_of_recent_files_never_holds(agents: AgentWorld) -> None:
    path = write(agents.globals, "a")
    catalog = agents.catalog()
    # On a slow machine the file may already be old enough.
    if not is_settled(catalog):
        assert UNSETTLED in {catalog.seen[str(path)], catalog.seen[str(agents.globals)]}
        assert not holds(catalog.seen)


@pytest.mark.parametrize(
    ("changed", "recent"),
    [(-1000, False), (-51, False), (-49, True), (0, True), (20, True), (1000, False)],
)
def test_change_shortly_before_the_search_is_recent(changed: int, recent: bool) -> None:
    """Milliseconds around the beginning of a search of 30; what lies in the future is older than a clock set back."""
    begun, millisecond = 10**18, 10**6
    signature = f"1 {begun + changed * millisecond} 5 6 7"
    assert changed_recently(signature, begun, begun + 30 * millisecond) is recent


def test_missing_path_has_not_changed_recently() -> None:
    assert not changed_recently("-", 0, 10**18)


def test_unlistable_folder_hides_no_agents(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    loop = agents.globals / "loop"
    loop.symlink_to(loop)
    os.mkfifo(agents.globals / "pipe.md")
    assert list(agents.catalog().ranked) == ["a"]
