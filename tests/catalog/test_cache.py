"""Catalogs and definitions are made once, and again as soon as anything has changed, and never wrongly kept."""

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
from catalog.land import Land, settled, write

from hocket.catalog import cache
from hocket.catalog.cache import Catalogs
from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.catalog.routing_table import render
from hocket.config.loading import load
from hocket.config.settings import Config
from hocket.trust.approvals import Approvals
from hocket.trust.check import table_of

_watchers: list[list[str]] = []


def _note(event: str, args: tuple[Any, ...]) -> None:
    if _watchers and event in {"open", "os.scandir", "os.listdir"}:
        _watchers[-1].append(f"{event} {args[0]}")


sys.addaudithook(_note)  # can never be taken away again, so there is one, and it is idle outside of ``watched``


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
def land(tmp_path: Path) -> Land:
    return Land(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def config_of(land: Land) -> Config:
    return load(str(land.project), str(land.home), land.env)


def ask(catalogs: Catalogs, land: Land) -> Catalog:
    return catalogs.get(str(land.project), land.env, config_of(land))


def warm(catalogs: Catalogs, land: Land) -> Catalog:
    """What is kept from now on."""
    return settled(lambda: ask(catalogs, land))


# --- Catalogs in memory -------------------------------------------------------------------------------------


@pytest.mark.req("S4-32", "S4-33")
def test_a_second_question_opens_no_definition_and_lists_no_folder(land: Land) -> None:
    write(land.globals, "a")
    catalogs, config = Catalogs(str(land.home)), config_of(land)
    first = warm(catalogs, land)
    with watched() as touched:
        again = catalogs.get(str(land.project), land.env, config)
    assert again is first
    assert touched == []


@pytest.mark.req("S4-34")
def test_discovery_itself_always_looks(land: Land) -> None:
    path = write(land.globals, "a")
    warm(Catalogs(str(land.home)), land)
    with watched() as touched:
        discover(str(land.project), land.env, str(land.home), Config())
    assert f"open {path}" in touched


@pytest.mark.req("S4-33")
def test_a_new_agent_is_there_at_once_and_a_removed_one_gone(land: Land) -> None:
    path = write(land.globals, "a")
    catalogs = Catalogs(str(land.home))
    warm(catalogs, land)
    write(land.locals, "b")
    assert list(ask(catalogs, land).ranked) == ["a", "b"]
    path.unlink()
    assert list(ask(catalogs, land).ranked) == ["b"]


@pytest.mark.req("S4-33")
def test_an_edit_within_the_same_instant_is_never_missed(land: Land) -> None:
    """Same size, same file, one right after the other: only what is old enough to be told apart is kept."""
    catalogs = Catalogs(str(land.home))
    path = write(land.globals, "a", description="number 000")
    for number in range(200):
        path.write_bytes(path.read_bytes().replace(b"number %03d" % number, b"number %03d" % (number + 1)))
        assert ask(catalogs, land).ranked["a"][0].description == f"number {number + 1:03}"


@pytest.mark.req("S4-32", "S4-33")
def test_after_its_time_everything_is_looked_at_again(land: Land, clock: Clock) -> None:
    write(land.globals, "a")
    catalogs = Catalogs(str(land.home), clock=clock)
    first = warm(catalogs, land)
    clock.now += 299
    assert ask(catalogs, land) is first
    clock.now += 2
    second = ask(catalogs, land)
    assert second is not first
    assert ask(catalogs, land) is second


@pytest.mark.req("S4-32")
def test_how_long_is_ones_own_choice(land: Land, clock: Clock) -> None:
    write(land.globals, "a")
    catalogs = Catalogs(str(land.home), ttl=5, clock=clock)
    first = warm(catalogs, land)
    clock.now += 6
    assert ask(catalogs, land) is not first


@pytest.mark.req("S4-35")
def test_a_directory_is_the_same_in_every_spelling(land: Land) -> None:
    write(land.globals, "a")
    catalogs = Catalogs(str(land.home))
    first = warm(catalogs, land)
    assert catalogs.get(f"{land.project}/./", land.env, config_of(land)) is first


@pytest.mark.req("S4-32")
def test_two_directories_have_their_own(land: Land) -> None:
    write(land.locals, "a")
    other = land.project.parent / "other"
    write(other / ".claude" / "agents", "b")
    catalogs, config = Catalogs(str(land.home)), config_of(land)
    settled(lambda: catalogs.get(str(land.project), land.env, config))
    settled(lambda: catalogs.get(str(other), land.env, config))
    assert list(catalogs.get(str(land.project), land.env, config).ranked) == ["a"]
    assert list(catalogs.get(str(other), land.env, config).ranked) == ["b"]


def test_another_user_has_other_agents(land: Land) -> None:
    write(land.globals, "a")
    catalogs = Catalogs(str(land.home))
    warm(catalogs, land)
    moved = land.user.parent / "moved"
    write(moved / "agents", "b")
    env = {**land.env, "CLAUDE_CONFIG_DIR": str(moved)}
    assert list(catalogs.get(str(land.project), env, config_of(land)).ranked) == ["b"]


@pytest.mark.req("S4-35")
def test_what_is_invalidated_is_made_again(land: Land) -> None:
    write(land.globals, "a")
    catalogs = Catalogs(str(land.home))
    first = warm(catalogs, land)
    catalogs.invalidate("/elsewhere")
    assert ask(catalogs, land) is first
    catalogs.invalidate(f"{land.project}/")
    second = ask(catalogs, land)
    assert second is not first
    catalogs.invalidate()
    assert ask(catalogs, land) is not second


@pytest.mark.req("S4-18", "S4-35")
def test_one_call_gives_a_table_and_whoever_changes_it_spoils_nobody_elses(land: Land) -> None:
    write(land.globals, "a", tags=["x"])
    write(land.locals, "a", tags=["x"])
    catalogs, config = Catalogs(str(land.home)), config_of(land)
    warm(catalogs, land)
    table = table_of(catalogs.get(str(land.project), land.env, config), Approvals(config))
    assert (table["total_count"], table["by_tags"], len(table["overrides"])) == (1, {"x": ["a"]}, 1)
    table["by_name"].clear()
    table["overrides"][0]["name"] = "spoiled"
    again = table_of(catalogs.get(str(land.project), land.env, config), Approvals(config))
    assert list(again["by_name"]) == ["a"]
    assert again["overrides"][0]["name"] == "a"


@pytest.mark.req("S4-35")
def test_a_failure_is_not_kept(land: Land, monkeypatch: pytest.MonkeyPatch) -> None:
    write(land.globals, "a")
    catalogs = Catalogs(str(land.home))
    with monkeypatch.context() as patched:
        patched.setattr(cache, "discover", _fail)
        with pytest.raises(OSError, match="the disk is on fire"):
            ask(catalogs, land)
    assert list(ask(catalogs, land).ranked) == ["a"]


def _fail(*_: object) -> Catalog:
    raise OSError("the disk is on fire")


def test_what_another_configuration_says_counts_though_no_file_has_changed(land: Land) -> None:
    """A file may be changed after it was read and before it was looked at: the configuration itself decides."""
    file = land.config('[agents.one]\npath = "/bin/true"\n')
    catalogs, before = Catalogs(str(land.home)), config_of(land)
    file.write_text('[agents.two]\npath = "/bin/true"\n')
    settled(lambda: catalogs.get(str(land.project), land.env, before))
    assert list(ask(catalogs, land).ranked) == ["two"]


def test_only_so_many_directories_are_kept(land: Land, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_CATALOGS", 2)
    write(land.globals, "a")
    catalogs, config = Catalogs(str(land.home)), config_of(land)

    def get(name: str) -> Catalog:
        return catalogs.get(str(land.project.parent / name), land.env, config)

    one = settled(lambda: get("one"))
    two = settled(lambda: get("two"))
    assert get("one") is one
    get("three")
    assert get("one") is one, "the one that was asked for last stays"
    assert get("two") is not two


def test_many_threads_get_what_is_right(land: Land) -> None:
    write(land.globals, "a")
    catalogs, config = Catalogs(str(land.home)), config_of(land)
    found: list[list[str]] = []

    def look() -> None:
        for _ in range(20):
            found.append(list(catalogs.get(str(land.project), land.env, config).ranked))
            catalogs.invalidate(str(land.project))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["a"]] * 160


def test_what_is_printed_is_one_line_that_steers_no_terminal() -> None:
    text = render({"a": "\x1b[2J\x7f\n\u202e", "b": "\udcff"})
    assert text.isascii()
    assert text.count(b"\n") == 1
    assert all(byte >= 0x20 and byte != 0x7F for byte in text[:-1])
    assert json.loads(text) == {"a": "\x1b[2J\x7f\n\u202e", "b": "\udcff"}


# --- Anything at all ----------------------------------------------------------------------------------------


class Meddler:
    """Changes one thing at a time, of all that a catalog may depend on."""

    def __init__(self, land: Land, seed: int) -> None:
        self._land = land
        self._random = random.Random(seed)
        self._folders = [
            land.globals,
            land.locals,
            land.library,
            land.globals / "team",
            land.project / "sub/.claude/agents",
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
        self._land.config(f'[agents.{name}]\nmodel = "{model}"\n')

    def _git(self) -> None:
        git = self._land.project / ".git"
        git.rmdir() if git.exists() else git.mkdir()


@pytest.mark.req("S4-33", "S4-35")
@pytest.mark.parametrize("seed", range(6))
def test_cached_catalog_is_current_after_any_change(land: Land, seed: int) -> None:
    (land.project / "sub").mkdir()
    where, home = str(land.project / "sub"), str(land.home)
    meddle, catalogs, given = Meddler(land, seed), Catalogs(home), 0
    for number in range(60):
        done = meddle()
        config = load(where, home, land.env)
        fresh = render(table_of(discover(where, land.env, home, config), Approvals(config)))
        assert render(table_of(catalogs.get(where, land.env, config), Approvals(config))) == fresh, (number, done)
        if number % 10 == 0:
            catalog = settled(lambda: catalogs.get(where, land.env, load(where, home, land.env)))
            given += catalogs.get(where, land.env, config) is catalog
    assert given, "nothing was ever kept"
