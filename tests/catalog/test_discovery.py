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


def test_one_name_in_every_place_is_ranked_as_it_is_looked_up(agents: AgentWorld) -> None:
    write(agents.library, "a")
    agents.agent_config("a")
    write(agents.globals, "a")
    write(agents.locals, "a")
    agents.config('[agents.a]\npath = "/bin/true"\n')
    assert sources(agents.catalog(), "a") == [ALIAS, PROJECT, GLOBAL, CONFIG, LIBRARY]


def test_the_nearest_project_of_a_repository_wins(agents: AgentWorld) -> None:
    inner = agents.project / "packages" / "inner"
    (agents.project / ".git").mkdir()
    near = write(inner / ".claude" / "agents", "a")
    far = write(agents.locals, "a")
    catalog = agents.catalog(inner)
    assert paths(catalog, "a") == [str(near), str(far)]
    assert [entry.project for entry in catalog.ranked["a"]] == [str(inner), str(agents.project)]


@pytest.mark.req("S4-13")
def test_what_collides_is_the_name_in_the_head_and_not_that_of_the_file(agents: AgentWorld) -> None:
    write(agents.globals, "reviewer", file="one.md")
    write(agents.locals, "reviewer", file="two.md")
    write(agents.globals, "first", file="same.md")
    write(agents.locals, "second", file="same.md")
    write(agents.globals, "Reviewer")
    table = agents.table()
    assert [override["name"] for override in table["overrides"]] == ["reviewer"]
    assert sorted(table["by_name"]) == ["Reviewer", "first", "reviewer", "second"]


@pytest.mark.req("S4-50")
def test_of_two_files_in_one_folder_the_last_listed_wins(agents: AgentWorld) -> None:
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


def test_without_a_directory_the_users_own_are_there_and_no_projects(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    write(agents.locals, "b")
    catalog = discover(None, agents.env, str(agents.home), Config())
    assert list(catalog.ranked) == ["a"]
    assert catalog.cwd is None


@pytest.mark.req("S1-54")
def test_another_projects_agents_are_found_from_there(agents: AgentWorld) -> None:
    write(agents.globals, "everywhere")
    write(agents.locals, "here")
    other = agents.project.parent / "other"
    there = write(other / ".claude" / "agents", "there")
    catalog = agents.catalog(other)
    assert list(catalog.ranked) == ["everywhere", "there"]
    assert paths(catalog, "there") == [str(there)]


def test_a_directory_in_another_spelling_gives_the_same_paths(agents: AgentWorld) -> None:
    path = write(agents.locals, "a")
    spelled = f"{agents.project}/./../{agents.project.name}//"
    catalog = discover(spelled, agents.env, str(agents.home), Config())
    assert paths(catalog, "a") == [str(path)]
    assert catalog.cwd == str(agents.project)


def test_every_place_is_told_with_what_was_there(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    places = {place.source: place for place in agents.catalog().places}
    assert (places[GLOBAL].path, places[GLOBAL].exists, places[GLOBAL].found) == (str(agents.globals), True, 1)
    assert (places[PROJECT].path, places[PROJECT].exists, places[PROJECT].found) == (str(agents.locals), False, 0)


# --- Addresses ----------------------------------------------------------------------------------------------


def test_a_name_that_can_be_typed_keeps_it_and_the_others_get_what_is_left(agents: AgentWorld) -> None:
    for name in ("Code Review", "Code-Review", "Code/Review"):
        write(agents.globals, name, file=f"{name.replace('/', '_')}.md")
    addresses = agents.catalog().addresses
    assert addresses["Code-Review"] == "Code-Review"
    assert len(set(addresses.values())) == 3


def test_a_name_that_cannot_be_typed_is_told_with_the_address_that_it_really_has(agents: AgentWorld) -> None:
    write(agents.globals, "Code-Review")
    odd = write(agents.globals, "Code Review", file="odd.md")
    catalog = agents.catalog()
    assert problems(catalog, RENAMED) == [str(odd)]
    (problem,) = [problem for problem in catalog.problems if problem.kind == RENAMED]
    assert catalog.addresses["Code Review"] in problem.reason
    assert problem.cli_loads
    assert catalog.find(catalog.addresses["Code Review"])[0].path == str(odd)


# --- Aliases ------------------------------------------------------------------------------------------------


def test_an_alias_is_told_with_its_file_and_what_it_stands_for(agents: AgentWorld) -> None:
    file = agents.config('[agents.tool]\npath = "/bin/true"\nargs = ["-x"]\n')
    (entry,) = agents.catalog().ranked["tool"]
    assert (entry.source, entry.path, entry.target) == (ALIAS, str(file), "/bin/true")
    assert entry.project == str(agents.project)
    assert entry.metadata == {"path": "/bin/true", "args": ["-x"]}


def test_the_users_own_alias_belongs_to_no_project(agents: AgentWorld) -> None:
    agents.home.mkdir()
    (agents.home / "config.toml").write_text('[agents.tool]\npath = "/bin/true"\n')
    (entry,) = agents.catalog().ranked["tool"]
    assert (entry.path, entry.project) == (str(agents.home / "config.toml"), None)


@pytest.mark.parametrize("path", ["", 'path = "a"\n'])
def test_an_alias_that_names_no_other_agent_gives_more_to_the_one_there_is(agents: AgentWorld, path: str) -> None:
    write(agents.globals, "a", model="sonnet")
    agents.config(f'[agents.a]\n{path}model = "opus"\n')
    (entry,) = agents.catalog().ranked["a"]
    assert (entry.source, entry.model) == (GLOBAL, "opus")
    assert entry.metadata["model"] == "sonnet"


def test_an_alias_that_names_nothing_at_all_is_the_program_of_that_name(agents: AgentWorld) -> None:
    agents.config('[agents.builder]\nargs = ["-x"]\n')
    (entry,) = agents.catalog().ranked["builder"]
    assert (entry.source, entry.target) == (ALIAS, "builder")


def test_an_alias_for_another_agent_is_described_by_it(agents: AgentWorld) -> None:
    write(agents.globals, "reviewer", model="opus", tags=["quality"], version="3.1")
    agents.config('[agents.quick]\npath = "reviewer"\nmodel = "haiku"\n')
    entry = agents.catalog().ranked["quick"][0]
    assert (entry.description, entry.tags, entry.version) == ("Does reviewer", ("quality",), "3.1")
    assert (entry.model, entry.target) == ("haiku", "reviewer")


@pytest.mark.parametrize("ending", ["", ".md"])
def test_an_alias_for_an_agent_of_another_project_is_described_by_that_file(agents: AgentWorld, ending: str) -> None:
    other = agents.project.parent / "other"
    write(other / ".claude" / "agents", "reviewer", description="Reviews elsewhere", model="opus")
    agents.config(f'[agents.theirs]\npath = "../other/.claude/agents/reviewer{ending}"\n')
    catalog = agents.catalog()
    entry = catalog.ranked["theirs"][0]
    assert (entry.source, entry.description, entry.model) == (ALIAS, "Reviews elsewhere", "opus")
    assert str(other / ".claude" / "agents" / "reviewer.md") in catalog.seen


def test_an_alias_for_a_file_that_is_not_there_is_an_alias_all_the_same(agents: AgentWorld) -> None:
    agents.config('[agents.theirs]\npath = "../other/.claude/agents/reviewer"\n')
    catalog = agents.catalog()
    assert catalog.ranked["theirs"][0].description == ""
    (agents.project.parent / "other").mkdir()
    write(agents.project.parent / "other" / ".claude" / "agents", "reviewer")
    assert not holds(catalog.seen)


# --- Nothing there ------------------------------------------------------------------------------------------


@pytest.mark.req("S4-25")
def test_an_alias_counts_as_an_agent(agents: AgentWorld) -> None:
    with pytest.raises(NoAgentsFound):
        require_agents(agents.catalog())
    agents.config('[agents.tool]\npath = "/bin/true"\n')
    require_agents(agents.catalog())


@pytest.mark.req("S4-25")
def test_a_config_that_somebody_wrote_counts_as_an_agent(agents: AgentWorld) -> None:
    agents.agent_config("my-own")
    require_agents(agents.catalog())


@pytest.mark.req("S4-25")
def test_the_configs_that_hocket_brings_along_do_not_count_until_somebody_changes_one(agents: AgentWorld) -> None:
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
def test_whatever_could_change_the_result_is_noticed(agents: AgentWorld, change: Callable[[AgentWorld], None]) -> None:
    write(agents.globals, "old")
    catalog = settled(agents.catalog)
    assert holds(catalog.seen)
    change(agents)
    assert not holds(catalog.seen)


@pytest.mark.parametrize("name", ["settings.json", "agents/b.md", "skills/one/two.md"])
def test_what_an_approval_of_the_folder_covers_is_noticed_too(agents: AgentWorld, name: str) -> None:
    """It is trusted as it was, so whatever is added to it may change who needs approval."""
    write(agents.locals, "a")
    (agents.project / ".claude" / "skills" / "one").mkdir(parents=True)
    (agents.project / ".claude" / "skills" / "one" / "SKILL.md").write_text("hooks")
    (agents.project / ".mcp.json").write_text("{}")
    approvals.approve(str(agents.home), approvals.FOLDER, os.path.realpath(agents.project), b"as it was")
    catalog = settled(agents.catalog)
    assert holds(catalog.seen)
    (agents.project / ".claude" / name).write_text("{}")
    assert not holds(catalog.seen)


def test_what_has_nothing_to_do_with_it_is_not_noticed(agents: AgentWorld) -> None:
    write(agents.globals, "old")
    catalog = settled(agents.catalog)
    (agents.project / "main.py").write_text("print()")
    (agents.user / "notes.txt").write_text("notes")
    (agents.globals / "old.md").read_text()
    assert holds(catalog.seen)


def test_a_link_that_is_turned_elsewhere_is_noticed(agents: AgentWorld) -> None:
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


def test_what_was_written_a_moment_ago_never_holds(agents: AgentWorld) -> None:
    path = write(agents.globals, "a")
    catalog = agents.catalog()
    # On a machine that took its time between the two lines it is not a moment any more.
    if not is_settled(catalog):
        assert UNSETTLED in {catalog.seen[str(path)], catalog.seen[str(agents.globals)]}
        assert not holds(catalog.seen)


@pytest.mark.parametrize(
    ("changed", "recent"),
    [(-1000, False), (-51, False), (-49, True), (0, True), (20, True), (1000, False)],
)
def test_change_is_recent_from_shortly_before_the_search_until_its_end(changed: int, recent: bool) -> None:
    """Milliseconds around the beginning of a search of 30; what lies in the future is older than a clock set back."""
    begun, millisecond = 10**18, 10**6
    signature = f"1 {begun + changed * millisecond} 5 6 7"
    assert changed_recently(signature, begun, begun + 30 * millisecond) is recent


def test_missing_path_has_not_changed_recently() -> None:
    assert not changed_recently("-", 0, 10**18)


def test_a_folder_that_cannot_be_listed_takes_nothing_down(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    loop = agents.globals / "loop"
    loop.symlink_to(loop)
    os.mkfifo(agents.globals / "pipe.md")
    assert list(agents.catalog().ranked) == ["a"]
