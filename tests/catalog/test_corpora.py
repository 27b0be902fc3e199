"""Collections of real agents: the same names as the real CLI loads."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.catalog.entries import Found
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.sources import projects, users

CORPORA = os.environ.get("HOCKET_CORPORA")

pytestmark = pytest.mark.skipif(not CORPORA, reason="HOCKET_CORPORA names no folder with collections of real agents")


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert CORPORA
    folder = tmp_path_factory.mktemp("corpora")
    with tarfile.open(Path(CORPORA, "agents.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


def as_projects(folder: Path) -> list[Found]:
    return projects(FileProbe(), str(folder), {})


def as_the_users(folder: Path) -> list[Found]:
    return users(FileProbe(), "/", {"HOME": str(folder)})


@pytest.mark.req("S4-48")
@pytest.mark.parametrize("source", [as_projects, as_the_users])
def test_real_collections_match_the_real_cli(
    collections: Path, tmp_path: Path, source: Callable[[Path], list[Found]]
) -> None:
    assert CORPORA
    expected = json.loads(Path(CORPORA, "expected.json").read_text())
    loaded = {name: sorted(collection["loaded_by_claude"]) for name, collection in expected.items()}
    assert len(loaded) >= 10
    found = {}
    for name in loaded:
        folder = tmp_path / name
        (folder / ".git").mkdir(parents=True)
        (folder / ".claude").mkdir()
        (folder / ".claude/agents").symlink_to(collections / name)
        (place,) = source(folder)
        found[name] = sorted(entry.name for entry in place.entries)
    assert found == loaded


def test_real_files_are_listed_or_reported(collections: Path, tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/agents").symlink_to(collections)
    (tmp_path / ".git").mkdir()
    (place,) = as_projects(tmp_path)
    files = {str(path.relative_to(collections)) for path in collections.rglob("*.md") if path.is_file()}
    base = f"{tmp_path}/.claude/agents/"
    told = {entry.path for entry in place.entries} | {problem.path for problem in place.problems}
    assert files <= {path.removeprefix(base) for path in told}
    assert len(files) > 1000
