"""Catalogs and definitions are cached, and read again as soon as anything has changed."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from catalog.agent_world import AgentWorld, settled, write

from hocket.catalog import cache
from hocket.catalog.cache import Catalogs
from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.catalog.files import forget_definitions, read_definition
from hocket.catalog.routing_table import render
from hocket.config.loading import load
from hocket.config.settings import Config
from hocket.errors import BadDefinition
from hocket.trust.approvals import Approvals
from hocket.trust.check import table_of

_watchers: list[list[str]] = []


def _note(event: str, args: tuple[Any, ...]) -> None:
    if _watchers and event in {"open", "os.scandir", "os.listdir"}:
        _watchers[-1].append(f"{event} {args[0]}")


sys.addaudithook(_note)  # an audit hook cannot be removed, so there is one, idle outside of ``watched``


@contextmanager
def watched() -> Iterator[list[str]]:
    """Everything that is opened or listed meanwhile, by this interpreter itself."""
    _watchers.append([])
    try:
        yield _watchers[-1]
    finally:
        _watchers.pop()


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def agents(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def config_of(agents: AgentWorld) -> Config:
    return load(str(agents.project), str(agents.home), agents.env)


def ask(catalogs: Catalogs, agents: AgentWorld) -> Catalog:
    return catalogs.get(str(agents.project), agents.env, config_of(agents))


def warm(catalogs: Catalogs, agents: AgentWorld) -> Catalog:
    """What is kept from now on."""
    return settled(lambda: ask(catalogs, agents))


# --- Catalogs in memory -------------------------------------------------------------------------------------


@pytest.mark.req("S4-32", "S4-33")
def test_cached_catalog_touches_no_file(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    catalogs, config = Catalogs(str(agents.home)), config_of(agents)
    first = warm(catalogs, agents)
    with watched() as touched:
        again = catalogs.get(str(agents.project), agents.env, config)
    assert again is first
    assert touched == []


@pytest.mark.req("S4-34")
def test_discovery_without_cache_reads_files(agents: AgentWorld) -> None:
    path = write(agents.globals, "a")
    warm(Catalogs(str(agents.home)), agents)
    with watched() as touched:
        discover(str(agents.project), agents.env, str(agents.home), Config())
    assert f"open {path}" in touched


@pytest.mark.req("S4-33")
def test_added_and_removed_agents_are_noticed(agents: AgentWorld) -> None:
    path = write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home))
    warm(catalogs, agents)
    write(agents.locals, "b")
    assert list(ask(catalogs, agents).ranked) == ["a", "b"]
    path.unlink()
    assert list(ask(catalogs, agents).ranked) == ["b"]


@pytest.mark.req("S4-33")
def test_edits_of_equal_size_are_noticed_at_once(agents: AgentWorld) -> None:
    """Same size, same file, one right after the other: only what is old enough to be told apart is kept."""
    catalogs = Catalogs(str(agents.home))
    path = write(agents.globals, "a", description="number 000")
    for number in range(200):
        path.write_bytes(path.read_bytes().replace(b"number %03d" % number, b"number %03d" % (number + 1)))
        assert ask(catalogs, agents).ranked["a"][0].description == f"number {number + 1:03}"


@pytest.mark.req("S4-32", "S4-33")
def test_catalog_expires_after_five_minutes(agents: AgentWorld, clock: Clock) -> None:
    write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home), clock=clock)
    first = warm(catalogs, agents)
    clock.now += 299
    assert ask(catalogs, agents) is first
    clock.now += 2
    second = ask(catalogs, agents)
    assert second is not first
    assert ask(catalogs, agents) is second


@pytest.mark.req("S4-32")
def test_expiry_time_can_be_chosen(agents: AgentWorld, clock: Clock) -> None:
    write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home), ttl=5, clock=clock)
    first = warm(catalogs, agents)
    clock.now += 6
    assert ask(catalogs, agents) is not first


@pytest.mark.req("S4-35")
def test_spellings_of_a_directory_share_a_catalog(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home))
    first = warm(catalogs, agents)
    assert catalogs.get(f"{agents.project}/./", agents.env, config_of(agents)) is first


@pytest.mark.req("S4-32")
def test_each_directory_has_its_own_catalog(agents: AgentWorld) -> None:
    write(agents.locals, "a")
    other = agents.project.parent / "other"
    write(other / ".claude" / "agents", "b")
    catalogs, config = Catalogs(str(agents.home)), config_of(agents)
    settled(lambda: catalogs.get(str(agents.project), agents.env, config))
    settled(lambda: catalogs.get(str(other), agents.env, config))
    assert list(catalogs.get(str(agents.project), agents.env, config).ranked) == ["a"]
    assert list(catalogs.get(str(other), agents.env, config).ranked) == ["b"]


def test_catalog_depends_on_the_users_environment(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home))
    warm(catalogs, agents)
    moved = agents.user.parent / "moved"
    write(moved / "agents", "b")
    env = {**agents.env, "CLAUDE_CONFIG_DIR": str(moved)}
    assert list(catalogs.get(str(agents.project), env, config_of(agents)).ranked) == ["b"]


@pytest.mark.req("S4-35")
def test_invalidated_catalog_is_discovered_again(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home))
    first = warm(catalogs, agents)
    catalogs.invalidate("/elsewhere")
    assert ask(catalogs, agents) is first
    catalogs.invalidate(f"{agents.project}/")
    second = ask(catalogs, agents)
    assert second is not first
    catalogs.invalidate()
    assert ask(catalogs, agents) is not second


@pytest.mark.req("S4-18", "S4-35")
def test_changing_a_table_does_not_change_the_catalog(agents: AgentWorld) -> None:
    write(agents.globals, "a", tags=["x"])
    write(agents.locals, "a", tags=["x"])
    catalogs, config = Catalogs(str(agents.home)), config_of(agents)
    warm(catalogs, agents)
    table = table_of(catalogs.get(str(agents.project), agents.env, config), Approvals(config), agents.env)
    assert (table["total_count"], table["by_tags"], len(table["overrides"])) == (1, {"x": ["a"]}, 1)
    table["by_name"].clear()
    table["overrides"][0]["name"] = "spoiled"
    again = table_of(catalogs.get(str(agents.project), agents.env, config), Approvals(config), agents.env)
    assert list(again["by_name"]) == ["a"]
    assert again["overrides"][0]["name"] == "a"


@pytest.mark.req("S4-35")
def test_failed_discovery_is_not_cached(agents: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    write(agents.globals, "a")
    catalogs = Catalogs(str(agents.home))
    with monkeypatch.context() as patched:
        patched.setattr(cache, "discover", _fail)
        with pytest.raises(OSError, match="the disk is on fire"):
            ask(catalogs, agents)
    assert list(ask(catalogs, agents).ranked) == ["a"]


def _fail(*_: object) -> Catalog:
    raise OSError("the disk is on fire")


def test_other_configuration_gets_its_own_catalog(agents: AgentWorld) -> None:
    """A file may be changed after it was read and before it was looked at: the configuration itself decides."""
    file = agents.config('[agents.one]\npath = "/bin/true"\n')
    catalogs, before = Catalogs(str(agents.home)), config_of(agents)
    file.write_text('[agents.two]\npath = "/bin/true"\n')
    settled(lambda: catalogs.get(str(agents.project), agents.env, before))
    assert list(ask(catalogs, agents).ranked) == ["two"]


def test_number_of_cached_directories_is_bounded(agents: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_CATALOGS", 2)
    write(agents.globals, "a")
    catalogs, config = Catalogs(str(agents.home)), config_of(agents)

    def get(name: str) -> Catalog:
        return catalogs.get(str(agents.project.parent / name), agents.env, config)

    one = settled(lambda: get("one"))
    two = settled(lambda: get("two"))
    assert get("one") is one
    get("three")
    assert get("one") is one, "the one that was asked for last stays"
    assert get("two") is not two


def test_concurrent_threads_get_correct_catalogs(agents: AgentWorld) -> None:
    write(agents.globals, "a")
    catalogs, config = Catalogs(str(agents.home)), config_of(agents)
    found: list[list[str]] = []

    def look() -> None:
        for _ in range(20):
            found.append(list(catalogs.get(str(agents.project), agents.env, config).ranked))
            catalogs.invalidate(str(agents.project))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["a"]] * 160


def test_rendered_table_is_one_line_without_controls() -> None:
    text = render({"a": "\x1b[2J\x7f\n\u202e", "b": "\udcff"})
    assert text.isascii()
    assert text.count(b"\n") == 1
    assert all(byte >= 0x20 and byte != 0x7F for byte in text[:-1])
    assert json.loads(text) == {"a": "\x1b[2J\x7f\n\u202e", "b": "\udcff"}


# --- Random changes -----------------------------------------------------------------------------------------


class RandomChanges:
    """Changes one thing at a time, of all that a catalog may depend on."""

    def __init__(self, agents: AgentWorld, seed: int) -> None:
        self._agents = agents
        self._random = random.Random(seed)
        self._folders = [
            agents.globals,
            agents.locals,
            agents.library,
            agents.globals / "team",
            agents.project / "sub/.claude/agents",
        ]

    def __call__(self) -> str:
        change = self._random.choice(
            [self._write, self._write, self._remove, self._move, self._link, self._retime, self._configure, self._git]
        )
        change()
        return change.__name__

    def _file(self) -> Path:
        return self._random.choice(self._folders) / f"{self._random.choice('abcd')}.md"

    def _write(self) -> None:
        file = self._file()
        if file.is_symlink():
            file.unlink()
        write(file.parent, self._random.choice("abcd"), file=file.name, description=self._random.choice(["one", "two"]))

    def _remove(self) -> None:
        self._file().unlink(missing_ok=True)

    def _move(self) -> None:
        old, new = self._file(), self._file()
        if os.path.lexists(old) and new.parent.is_dir():
            old.rename(new)

    def _link(self) -> None:
        file, target = self._file(), self._file()
        if file.parent.is_dir() and file != target:
            file.unlink(missing_ok=True)
            file.symlink_to(target)

    def _retime(self) -> None:
        with suppress(OSError):
            os.utime(self._file(), (1e9, 1e9))

    def _configure(self) -> None:
        name, model = self._random.choice("abcdef"), self._random.choice(["opus", "sonnet"])
        self._agents.config(f'[agents.{name}]\nmodel = "{model}"\n')

    def _git(self) -> None:
        git = self._agents.project / ".git"
        git.rmdir() if git.exists() else git.mkdir()


@pytest.mark.req("S4-33", "S4-35")
@pytest.mark.parametrize("seed", range(6))
def test_cached_catalog_is_current_after_any_change(agents: AgentWorld, seed: int) -> None:
    (agents.project / "sub").mkdir()
    where, home = str(agents.project / "sub"), str(agents.home)
    change_something, catalogs, given = RandomChanges(agents, seed), Catalogs(home), 0
    for number in range(60):
        done = change_something()
        config = load(where, home, agents.env)
        fresh = render(table_of(discover(where, agents.env, home, config), Approvals(config), agents.env))
        assert render(table_of(catalogs.get(where, agents.env, config), Approvals(config), agents.env)) == fresh, (
            number,
            done,
        )
        if number % 10 == 0:
            catalog = settled(lambda: catalogs.get(where, agents.env, load(where, home, agents.env)))
            given += catalogs.get(where, agents.env, config) is catalog
    assert given, "nothing was ever kept"


# --- Definitions --------------------------------------------------------------------------------------------


@pytest.fixture
def kept_definition(agents: AgentWorld) -> Path:
    """A definition that was read and is kept: one that was written a moment ago is not."""
    path = write(agents.globals, "a")
    while True:
        with watched() as touched:
            read_definition(str(path))
        if not touched:
            return path


@pytest.mark.req("S3-09")
def test_unchanged_definition_is_not_opened_again(kept_definition: Path) -> None:
    with watched() as touched:
        assert read_definition(str(kept_definition)).name == "a"
    assert touched == []


@pytest.mark.req("S3-10")
def test_forgotten_definition_is_read_again(kept_definition: Path) -> None:
    forget_definitions()
    with watched() as touched:
        assert read_definition(str(kept_definition)).name == "a"
    assert f"open {kept_definition}" in touched


@pytest.mark.req("S3-09")
def test_changed_definition_is_read_again(agents: AgentWorld, kept_definition: Path) -> None:
    write(agents.globals, "a", description="Something else")
    assert read_definition(str(kept_definition)).fields["description"] == "Something else"


def test_unreadable_definition_is_not_cached(agents: AgentWorld) -> None:
    path = agents.globals / "a.md"
    with pytest.raises(BadDefinition):
        read_definition(str(path))
    write(agents.globals, "a")
    assert read_definition(str(path)).name == "a"
