"""Whether work leaves a trace: every kind of change is seen, and looking again is none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

from hocket.workflows import directory_state
from hocket.workflows.directory_state import Snapshot, changed, take_snapshot
from hocket.workflows.git import Git

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def git(where: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=where, env=ENV, check=True, capture_output=True)


@pytest.fixture
def repository(project: Path) -> Path:
    git(project, "init", "-q")
    (project / "kept").write_text("one")
    (project / ".gitignore").write_text("ignored\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    return project


def at(place: Path) -> Snapshot:
    return take_snapshot(str(place), Git(ENV))


def touch_later(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "work",
    [
        lambda here: (here / "kept").write_text("two"),
        lambda here: (here / "kept").unlink(),
        lambda here: (here / "new").write_text(""),
        lambda here: (here / "kept").chmod(0o755),
        lambda here: git(here, "commit", "-q", "--allow-empty", "-m", "second"),
        lambda here: git(here, "rm", "-q", "--cached", "kept"),
    ],
)
def test_every_change_in_a_repository_is_detected(repository: Path, work: Callable[[Path], object]) -> None:
    before = at(repository)
    assert (before.kind, changed(before, at(repository))) == ("git", False)
    work(repository)
    assert changed(before, at(repository))


def test_file_contents_count_but_times_do_not(repository: Path) -> None:
    (repository / "folder").mkdir()
    (repository / "folder/new").write_text("aaa")
    (repository / "kept").write_text("bbb")
    before = at(repository)
    touch_later(repository / "kept")
    assert not changed(before, at(repository))
    (repository / "folder/new").write_text("ccc")
    now = at(repository)
    assert changed(before, now)
    assert "2 changed paths" in now.detail


def test_ignored_file_is_no_change(repository: Path) -> None:
    before = at(repository)
    (repository / "ignored").write_text("x")
    assert not changed(before, at(repository))


def test_repository_without_commit_and_subfolder_are_supported(project: Path) -> None:
    git(project, "init", "-q")
    inner = project / "inner"
    inner.mkdir()
    before = at(inner)
    assert before.kind == "git"
    (project / "beside").write_text("x")
    assert changed(before, at(inner))


def test_renamed_file_is_one_change(repository: Path) -> None:
    git(repository, "mv", "kept", "moved")
    assert "1 changed paths" in at(repository).detail


def test_nested_repository_is_examined(repository: Path) -> None:
    nested = repository / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    (nested / "file").write_text("1")
    before = at(repository)
    (nested / "file").write_text("22")
    assert changed(before, at(repository))


def test_snapshot_runs_nothing_of_the_repository(repository: Path) -> None:
    trap = repository / ".git/trap"
    trap.write_text("#!/bin/sh\ntouch trapped\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    assert at(repository).kind == "files"
    assert take_snapshot(str(repository), Git(ENV, str(repository), lambda _: True)).kind == "git"
    assert not (repository / "trapped").exists()


@pytest.mark.parametrize(
    ("work", "is_seen"),
    [
        (lambda here: (here / "a/one").write_text("2"), True),
        (lambda here: (here / "a/two").write_text("2"), True),
        (lambda here: (here / "a/one").rename(here / "a/three"), True),
        (lambda here: (here / "a/one").unlink(), True),
        (lambda here: touch_later(here / "a/one"), False),
        (lambda here: (here / "node_modules/x").write_text("2"), False),
        (lambda here: (here / ".active-pids.json").write_text("{}"), False),
        (lambda here: None, False),
    ],
)
def test_files_are_compared_outside_git(project: Path, work: Callable[[Path], object], is_seen: bool) -> None:
    for name in ("a", "node_modules"):
        (project / name).mkdir()
    (project / "a/one").write_text("1")
    (project / "a/link").symlink_to("nowhere")
    os.mkfifo(project / "a/pipe")
    before = at(project)
    assert before.kind == "files"
    work(project)
    assert changed(before, at(project)) is is_seen


def test_size_and_time_count_beyond_the_limit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_state, "MOST_FILES", 1)
    for name in ("a", "b"):
        (project / name).write_text("1")
    before = at(project)
    assert "1 by size and time only" in before.detail
    os.utime(project / "b", ns=(1, 1))
    assert changed(before, at(project))


def test_large_folder_is_examined_in_part(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_state, "MOST_ENTRIES", 3)
    for number in range(5):
        (project / str(number)).touch()
    assert at(project).detail == "3 files; there are more"


def test_unreadable_directory_counts_as_changed(project: Path) -> None:
    gone = take_snapshot(str(project / "gone"), Git(ENV))
    assert gone.kind == "unreadable"
    assert "gone" in gone.detail
    assert changed(gone, gone)
    assert changed(at(project), gone)


def test_files_are_examined_without_git(repository: Path) -> None:
    assert take_snapshot(str(repository), Git({"PATH": "/nonexistent"})).kind == "files"


def test_folder_that_became_a_repository_has_changed(project: Path) -> None:
    before = at(project)
    git(project, "init", "-q")
    assert changed(before, at(project))


def test_folders_can_be_nested_deeper_than_the_stack(project: Path) -> None:
    folders = list(accumulate(["d"] * 1200, os.path.join, initial=str(project)))[1:]
    for folder in folders:
        os.mkdir(folder)
    try:
        Path(folders[-1], "one").write_text("1")
        before = at(project)
        Path(folders[-1], "one").write_text("2")
        now = at(project)
    finally:
        os.unlink(os.path.join(folders[-1], "one"))
        for folder in reversed(folders):
            os.rmdir(folder)
    assert (before.kind, before.detail) == ("files", "1 files")
    assert changed(before, now)


def test_registry_file_of_runs_is_no_change(repository: Path) -> None:
    before = at(repository)
    (repository / ".session-markers").mkdir()
    for name in (".active-pids.json", ".active-pids.json.lock", ".session-markers/7.json"):
        (repository / name).write_text("{}")
    assert not changed(before, at(repository))
    (repository / "new").write_text("")
    assert changed(before, at(repository))
