"""Files of one folder that define the same agent: the one Claude loads wins, the others are reported.

What Claude does was measured; ``tests/e2e/claude/test_agent_listing.py`` asks it again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from catalog.definition_writing import put

from hocket.catalog.entries import LIBRARY, PROJECT, Found
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.files import find_in, scan
from hocket.providers.definition_files import DUPLICATE, HIDDEN


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On a file system of each kind: they list files in orders of their own."""
    if request.param == "disk":
        yield tmp_path
    elif os.path.ismount("/dev/shm"):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
            yield Path(place)
    else:
        pytest.skip("this machine has no file system in memory")


def define(path: Path, name: str) -> None:
    put(path, f"name: {name}\ndescription: d\n")


def scanned(folder: Path, source: str = PROJECT) -> Found:
    return scan(FileProbe(), str(folder), source)


def make_until(folder: Path, make: Callable[[int], Sequence[Path]], fits: Callable[[list[Path]], bool]) -> list[Path]:
    """Make files under other names until the system lists them in an order that fits. The files in that order."""
    for number in range(200):
        made = make(number)
        order = [folder / name for name in os.listdir(folder) if folder / name in made]
        if fits(order):
            return order
        for path in made:
            path.unlink()
    raise AssertionError(f"no order of files in {folder} fits")


def three(folder: Path) -> Callable[[int], Sequence[Path]]:
    def make(number: int) -> Sequence[Path]:
        paths = [folder / f"{(number * 7 + place * 31) % 100}-{number}.md" for place in range(3)]
        for path in paths:
            define(path, "x")
        return paths

    return make


@pytest.mark.req("S4-50")
def test_last_listed_of_duplicate_files_wins(folder: Path) -> None:
    *losers, winner = make_until(folder, three(folder), lambda order: order[-1] == sorted(order)[1])
    found = scanned(folder)
    assert [entry.path for entry in found.entries] == [str(winner)]
    assert [(problem.path, problem.kind, problem.line, problem.cli_loads) for problem in found.problems] == [
        (str(path), DUPLICATE, 2, False) for path in sorted(losers)
    ]
    assert all(f"{winner}, which wins: the file system lists it later" in problem.reason for problem in found.problems)
    assert find_in(str(folder), "x") == str(winner)
    assert [entry.path for entry in scanned(folder, LIBRARY).entries] == [str(winner)]


def test_nested_files_follow_directory_order(folder: Path) -> None:
    """Also behind a link, even where the folder is met by itself later, and however deep they are."""
    for number in reversed(range(6)):
        for place in (f"d{number}/deep/b{number}", f"a{number}"):
            for name in range(30):
                define(folder / f"{place}-{name}.md", f"n{name}")
        (folder / f"l{number}").symlink_to(f"d{number}")
        (folder / f"d{number}/deep/up").symlink_to(folder)
    read = list(read_by_the_cli(folder, set()))
    winners = {f"n{name}": [path for path in read if path.endswith(f"-{name}.md")][-1] for name in range(30)}
    by_path = {f"n{name}": min(path for path in read if path.endswith(f"-{name}.md")) for name in range(30)}
    assert winners != by_path, "the order of this file system shows nothing"
    found = {entry.name: Path(entry.path) for entry in scanned(folder).entries}
    assert {name: path.resolve() for name, path in found.items()} == {
        name: Path(path).resolve() for name, path in winners.items()
    }


def read_by_the_cli(folder: Path, entered: set[int]) -> Iterator[str]:
    inode = folder.stat().st_ino
    if inode in entered:
        return
    entered.add(inode)
    for name in os.listdir(folder):
        if (folder / name).is_dir():
            yield from read_by_the_cli(folder / name, entered)
        else:
            yield str(folder / name)


def test_hard_link_counts_once_where_first_listed(folder: Path) -> None:
    def make(number: int) -> Sequence[Path]:
        first, other, second = (folder / f"{name}{number}.md" for name in ("first", "other", "second"))
        define(first, "x")
        define(other, "x")
        os.link(first, second)
        return first, other, second

    order = make_until(folder, make, lambda order: order[1].name.startswith("other"))
    assert [entry.path for entry in scanned(folder).entries] == [str(order[1])]


@pytest.mark.parametrize("retired_wins", [True, False])
def test_claude_loads_deprecated_file_only_if_last(folder: Path, retired_wins: bool) -> None:
    def make(number: int) -> Sequence[Path]:
        paths = [folder / f"{number}.md", folder / f"{number}.deprecated.md"]
        for path in paths if number % 2 else reversed(paths):
            define(path, "x")
        return paths

    order = make_until(folder, make, lambda order: (".deprecated" in order[-1].name) == retired_wins)
    (used,) = (path for path in order if ".deprecated" not in path.name)
    found = scanned(folder)
    assert [entry.path for entry in found.entries] == [str(used)]
    assert [(problem.kind, problem.cli_loads) for problem in found.problems] == [(HIDDEN, retired_wins)]


def test_many_duplicates_are_scanned_quickly(tmp_path: Path) -> None:
    """The order is found once for all names, and not for each of them."""
    for number in range(1000):
        define(tmp_path / f"{number % 10}/{number}.md", f"n{number % 500}")
    begun = time.process_time()
    found = scanned(tmp_path)
    assert (len(found.entries), len(found.problems)) == (500, 500)
    assert time.process_time() - begun < 2
