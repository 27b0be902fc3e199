"""Every source is asked, names are put in order, and the result knows what it depends on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from catalog.land import Land, settled, write

from hocket.catalog.cache import holds, is_settled
from hocket.catalog.configs import DEFAULTS
from hocket.catalog.discovery import UNSETTLED, discover, is_young, require_agents
from hocket.catalog.entries import ALIAS, CONFIG, GLOBAL, LIBRARY, PROJECT, Catalog
from hocket.config.settings import Config
from hocket.errors import NoAgentsFound
from hocket.providers.definition_files import DUPLICATE, RENAMED
from hocket.trust import approvals


@pytest.fixture
def land(tmp_path: Path) -> Land:
    return Land(tmp_path)


def sources(catalog: Catalog, name: str) -> list[str]:
    return [entry.source for entry in catalog.ranked[name]]


def paths(catalog: Catalog, name: str) -> list[str]:
    return [entry.path for entry in catalog.ranked[name]]


def problems(catalog: Catalog, kind: str) -> list[str]:
    return [problem.path for problem in catalog.problems if problem.kind == kind]


# --- Order --------------------------------------------------------------------------------------------------


def test_one_name_in_every_place_is_ranked_as_it_is_looked_up(land: Land) -> None:
    write(land.library, "a")
    land.agent_config("a")
    write(land.globals, "a")
    write(land.locals, "a")
    land.config('[agents.a]\npath = "/bin/true"\n')
    assert sources(land.catalog(), "a") == [ALIAS, PROJECT, GLOBAL, CONFIG, LIBRARY]


def test_the_nearest_project_of_a_repository_wins(land: Land) -> None:
    inner = land.project / "packages" / "inner"
    (land.project / ".git").mkdir()
    near = write(inner / ".claude" / "agents", "a")
    far = write(land.locals, "a")
    catalog = land.catalog(inner)
    assert paths(catalog, "a") == [str(near), str(far)]
    assert [entry.project for entry in catalog.ranked["a"]] == [str(inner), str(land.project)]


@pytest.mark.req("S4-13")
def test_what_collides_is_the_name_in_the_head_and_not_that_of_the_file(land: Land) -> None:
    write(land.globals, "reviewer", file="one.md")
    write(land.locals, "reviewer", file="two.md")
    write(land.globals, "first", file="same.md")
    write(land.locals, "second", file="same.md")
    write(land.globals, "Reviewer")
    table = land.table()
    assert [override["name"] for override in table["overrides"]] == ["reviewer"]
    assert sorted(table["by_name"]) == ["Reviewer", "first", "reviewer", "second"]


@pytest.mark.req("S4-50")
def test_of_two_files_in_one_folder_the_last_listed_wins(land: Land) -> None:
    files = [write(land.globals, "a", file=f"a{number}.md") for number in range(9)]
    *_, last = os.listdir(land.globals)
    catalog = land.catalog()
    assert paths(catalog, "a") == [str(land.globals / last)]
    assert problems(catalog, DUPLICATE) == [str(file) for file in files if file.name != last]


@pytest.mark.req("S4-51")
def test_the_same_files_give_the_same_table_in_whatever_order_they_were_written(land: Land, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    other = Land(tmp_path / "again")
    names = [f"agent-{number}" for number in range(30)]
    for name in names:
        write(land.globals, name)
    for name in reversed(names):
        write(other.globals, name)
    assert _spelled(land) == _spelled(other)
    assert list(land.catalog().ranked) == sorted(names)


def _spelled(land: Land) -> str:
    return json.dumps(land.table()).replace(str(land.user.parent), "ROOT")


def test_without_a_directory_the_users_own_are_there_and_no_projects(land: Land) -> None:
    write(land.globals, "a")
    write(land.locals, "b")
    catalog = discover(None, land.env, str(land.home), Config())
    assert list(catalog.ranked) == ["a"]
    assert catalog.cwd is None


@pytest.mark.req("S1-54")
def test_another_projects_agents_are_found_from_there(land: Land) -> None:
    write(land.globals, "everywhere")
    write(land.locals, "here")
    other = land.project.parent / "other"
    there = write(other / ".claude" / "agents", "there")
    catalog = land.catalog(other)
    assert list(catalog.ranked) == ["everywhere", "there"]
    assert paths(catalog, "there") == [str(there)]


def test_a_directory_in_another_spelling_gives_the_same_paths(land: Land) -> None:
    path = write(land.locals, "a")
    spelled = f"{land.project}/./../{land.project.name}//"
    catalog = discover(spelled, land.env, str(land.home), Config())
    assert paths(catalog, "a") == [str(path)]
    assert catalog.cwd == str(land.project)


def test_every_place_is_told_with_what_was_there(land: Land) -> None:
    write(land.globals, "a")
    places = {place.source: place for place in land.catalog().places}
    assert (places[GLOBAL].path, places[GLOBAL].exists, places[GLOBAL].found) == (str(land.globals), True, 1)
    assert (places[PROJECT].path, places[PROJECT].exists, places[PROJECT].found) == (str(land.locals), False, 0)


# --- Addresses ----------------------------------------------------------------------------------------------


def test_a_name_that_can_be_typed_keeps_it_and_the_others_get_what_is_left(land: Land) -> None:
    for name in ("Code Review", "Code-Review", "Code/Review"):
        write(land.globals, name, file=f"{name.replace('/', '_')}.md")
    addresses = land.catalog().addresses
    assert addresses["Code-Review"] == "Code-Review"
    assert len(set(addresses.values())) == 3


def test_a_name_that_cannot_be_typed_is_told_with_the_address_that_it_really_has(land: Land) -> None:
    write(land.globals, "Code-Review")
    odd = write(land.globals, "Code Review", file="odd.md")
    catalog = land.catalog()
    assert problems(catalog, RENAMED) == [str(odd)]
    (problem,) = [problem for problem in catalog.problems if problem.kind == RENAMED]
    assert catalog.addresses["Code Review"] in problem.reason
    assert problem.cli_loads
    assert catalog.find(catalog.addresses["Code Review"])[0].path == str(odd)


# --- Aliases ------------------------------------------------------------------------------------------------


def test_an_alias_is_told_with_its_file_and_what_it_stands_for(land: Land) -> None:
    file = land.config('[agents.tool]\npath = "/bin/true"\nargs = ["-x"]\n')
    (entry,) = land.catalog().ranked["tool"]
    assert (entry.source, entry.path, entry.project, entry.target) == (ALIAS, str(file), str(land.project), "/bin/true")
    assert entry.metadata == {"path": "/bin/true", "args": ["-x"]}


def test_the_users_own_alias_belongs_to_no_project(land: Land) -> None:
    land.home.mkdir()
    (land.home / "config.toml").write_text('[agents.tool]\npath = "/bin/true"\n')
    (entry,) = land.catalog().ranked["tool"]
    assert (entry.path, entry.project) == (str(land.home / "config.toml"), None)


@pytest.mark.parametrize("path", ["", 'path = "a"\n'])
def test_an_alias_that_names_no_other_agent_gives_more_to_the_one_there_is(land: Land, path: str) -> None:
    write(land.globals, "a", model="sonnet")
    land.config(f'[agents.a]\n{path}model = "opus"\n')
    (entry,) = land.catalog().ranked["a"]
    assert (entry.source, entry.model) == (GLOBAL, "opus")
    assert entry.metadata["model"] == "sonnet"


def test_an_alias_that_names_nothing_at_all_is_the_program_of_that_name(land: Land) -> None:
    land.config('[agents.builder]\nargs = ["-x"]\n')
    (entry,) = land.catalog().ranked["builder"]
    assert (entry.source, entry.target) == (ALIAS, "builder")


def test_an_alias_for_another_agent_is_described_by_it(land: Land) -> None:
    write(land.globals, "reviewer", model="opus", tags=["quality"], version="3.1")
    land.config('[agents.quick]\npath = "reviewer"\nmodel = "haiku"\n')
    entry = land.catalog().ranked["quick"][0]
    assert (entry.description, entry.tags, entry.version) == ("Does reviewer", ("quality",), "3.1")
    assert (entry.model, entry.target) == ("haiku", "reviewer")


@pytest.mark.parametrize("ending", ["", ".md"])
def test_an_alias_for_an_agent_of_another_project_is_described_by_that_file(land: Land, ending: str) -> None:
    other = land.project.parent / "other"
    write(other / ".claude" / "agents", "reviewer", description="Reviews elsewhere", model="opus")
    land.config(f'[agents.theirs]\npath = "../other/.claude/agents/reviewer{ending}"\n')
    catalog = land.catalog()
    entry = catalog.ranked["theirs"][0]
    assert (entry.source, entry.description, entry.model) == (ALIAS, "Reviews elsewhere", "opus")
    assert str(other / ".claude" / "agents" / "reviewer.md") in catalog.seen


def test_an_alias_for_a_file_that_is_not_there_is_an_alias_all_the_same(land: Land) -> None:
    land.config('[agents.theirs]\npath = "../other/.claude/agents/reviewer"\n')
    catalog = land.catalog()
    assert catalog.ranked["theirs"][0].description == ""
    (land.project.parent / "other").mkdir()
    write(land.project.parent / "other" / ".claude" / "agents", "reviewer")
    assert not holds(catalog.seen)


# --- Nothing there ------------------------------------------------------------------------------------------


@pytest.mark.req("S4-25")
def test_an_alias_counts_as_an_agent(land: Land) -> None:
    with pytest.raises(NoAgentsFound):
        require_agents(land.catalog())
    land.config('[agents.tool]\npath = "/bin/true"\n')
    require_agents(land.catalog())


@pytest.mark.req("S4-25")
def test_a_config_that_somebody_wrote_counts_as_an_agent(land: Land) -> None:
    land.agent_config("my-own")
    require_agents(land.catalog())


@pytest.mark.req("S4-25")
def test_the_configs_that_hocket_brings_along_do_not_count_until_somebody_changes_one(land: Land) -> None:
    for default in DEFAULTS:
        land.agent_config(default.name, **default.as_json())
    catalog = land.catalog()
    assert len(catalog.ranked) == len(DEFAULTS)
    with pytest.raises(NoAgentsFound):
        require_agents(catalog)
    land.agent_config(DEFAULTS[0].name)
    require_agents(land.catalog())


# --- What it depends on -------------------------------------------------------------------------------------


def _new_definition(land: Land) -> None:
    write(land.globals, "new")


def _new_below(land: Land) -> None:
    write(land.globals / "team", "new")


def _changed_definition(land: Land) -> None:
    write(land.globals, "old", description="Something else entirely")


def _removed_definition(land: Land) -> None:
    (land.globals / "old.md").unlink()


def _first_of_the_project(land: Land) -> None:
    write(land.locals, "new")


def _first_of_the_library(land: Land) -> None:
    write(land.library, "new")


def _configuration_of_the_project(land: Land) -> None:
    land.config("")


def _chains_of_the_project(land: Land) -> None:
    (land.project / "forge").mkdir()
    (land.project / "forge" / "chains.json").write_text("{}")


def _configuration_of_the_user(land: Land) -> None:
    land.home.mkdir()
    (land.home / "config.toml").write_text("")


def _other_configuration_of_the_user(land: Land) -> None:
    folder = land.user / ".config" / "hocket"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")


def _trust(land: Land) -> None:
    land.home.mkdir()
    (land.home / "trust.json").write_text("{}")


def _config_of_hockets_own(land: Land) -> None:
    land.agent_config("new")


def _repository(land: Land) -> None:
    (land.project / ".git").mkdir()


def _repository_above(land: Land) -> None:
    (land.project.parent / ".git").mkdir()


def _configuration_above(land: Land) -> None:
    land.config("", land.project.parent)


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
def test_whatever_could_change_the_result_is_noticed(land: Land, change: Callable[[Land], None]) -> None:
    write(land.globals, "old")
    catalog = settled(land.catalog)
    assert holds(catalog.seen)
    change(land)
    assert not holds(catalog.seen)


@pytest.mark.parametrize("name", ["settings.json", "agents/b.md", "skills/one/two.md"])
def test_what_an_approval_of_the_folder_covers_is_noticed_too(land: Land, name: str) -> None:
    """It is trusted as it was, so whatever is added to it may change who needs approval."""
    write(land.locals, "a")
    (land.project / ".claude" / "skills" / "one").mkdir(parents=True)
    (land.project / ".claude" / "skills" / "one" / "SKILL.md").write_text("hooks")
    (land.project / ".mcp.json").write_text("{}")
    approvals.approve(str(land.home), approvals.FOLDER, os.path.realpath(land.project), b"as it was")
    catalog = settled(land.catalog)
    assert holds(catalog.seen)
    (land.project / ".claude" / name).write_text("{}")
    assert not holds(catalog.seen)


def test_what_has_nothing_to_do_with_it_is_not_noticed(land: Land) -> None:
    write(land.globals, "old")
    catalog = settled(land.catalog)
    (land.project / "main.py").write_text("print()")
    (land.user / "notes.txt").write_text("notes")
    (land.globals / "old.md").read_text()
    assert holds(catalog.seen)


def test_a_link_that_is_turned_elsewhere_is_noticed(land: Land) -> None:
    store = land.user / "store"
    write(store, "a", file="one.md")
    write(store, "b", file="two.md")
    land.globals.mkdir(parents=True)
    (land.globals / "link.md").symlink_to(store / "one.md")
    catalog = settled(land.catalog)
    assert list(catalog.ranked) == ["a"]
    (land.globals / "link.md").unlink()
    (land.globals / "link.md").symlink_to(store / "two.md")
    assert not holds(catalog.seen)
    assert list(land.catalog().ranked) == ["b"]


def test_what_was_written_a_moment_ago_never_holds(land: Land) -> None:
    path = write(land.globals, "a")
    catalog = land.catalog()
    # On a machine that took its time between the two lines it is not a moment any more.
    if not is_settled(catalog):
        assert UNSETTLED in {catalog.seen[str(path)], catalog.seen[str(land.globals)]}
        assert not holds(catalog.seen)


@pytest.mark.parametrize(
    ("changed", "young"),
    [(-1000, False), (-51, False), (-49, True), (0, True), (20, True), (1000, False)],
)
def test_a_change_is_young_from_shortly_before_the_search_until_its_end(changed: int, young: bool) -> None:
    """Milliseconds around the beginning of a search of 30; what lies in the future is older than a clock set back."""
    begun, millisecond = 10**18, 10**6
    signature = f"1 {begun + changed * millisecond} 5 6 7"
    assert is_young(signature, begun, begun + 30 * millisecond) is young


def test_what_is_not_there_is_never_young() -> None:
    assert not is_young("-", 0, 10**18)


def test_a_folder_that_cannot_be_listed_takes_nothing_down(land: Land) -> None:
    write(land.globals, "a")
    loop = land.globals / "loop"
    loop.symlink_to(loop)
    os.mkfifo(land.globals / "pipe.md")
    assert list(land.catalog().ranked) == ["a"]
