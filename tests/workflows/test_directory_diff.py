"""Changes of directories: what is recorded at a start, and that git runs nothing of the repository's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from workflows.repositories import git, make_repository, trap

from hocket.errors import Conflict, HocketError
from hocket.workflows import directory_diff
from hocket.workflows.directory_diff import DirectoryStart, Form, changes_since, record_start
from hocket.workflows.git import Git

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
PATCH = Form("patch")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    make_repository(tmp_path / "r", readme="hello\n", part__code="x\n")
    return tmp_path / "r"


def _changes(start: DirectoryStart, git_: Git | None = None) -> directory_diff.DirectoryChanges:
    return changes_since(start, 0.0, None, git_ or Git(ENV), PATCH)


def _paths(start: DirectoryStart) -> list[str]:
    return [file["path"] for file in _changes(start).files]


def test_start_has_commit_and_uncommitted_paths(repository: Path) -> None:
    (repository / "readme").write_text("changed\n")
    (repository / "part/new file").write_text("n")
    start = record_start(str(repository / "part"), Git(ENV))
    assert (start.top, start.head) == (str(repository), git(repository, "rev-parse", "HEAD"))
    assert list(start.changed or ()) == ["new file"]
    assert list(record_start(str(repository), Git(ENV)).changed or ()) == ["readme", "part/new file"]


def test_start_outside_of_a_repository_runs_no_git(tmp_path: Path) -> None:
    assert record_start(str(tmp_path), Git({"PATH": "/nonexistent"})) == DirectoryStart(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda place: [(place / str(number)).write_text("x") for number in range(directory_diff.MOST_RECORDED + 1)],
        lambda place: Path(os.fsdecode(os.fsencode(place) + b"/\xff")).write_text("x"),
    ],
)
def test_uncommitted_paths_that_are_not_recorded_are_included(repository: Path, change: Callable[[Path], None]) -> None:
    change(repository)
    start = record_start(str(repository), Git(ENV))
    assert (start.head is not None, start.changed) == (True, None)
    found = _changes(start)
    assert found.files
    assert found.notes == ("uncommitted changes from before the run, if there were any, are included",)


def test_linked_directory_and_renamed_file_are_compared(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(repository)
    (repository / "untracked").write_text("u\n")
    start = record_start(str(tmp_path / "link"), Git(ENV))
    (repository / "readme").rename(repository / "renamed")
    (file,) = _changes(start).files
    assert (file["path"], file["old_path"], file["status"]) == ("renamed", "readme", "renamed")


def test_inner_repository_is_only_named(repository: Path) -> None:
    start = record_start(str(repository), Git(ENV))
    make_repository(repository / "inner")
    found = _changes(start)
    assert (found.files, found.notes) == (
        (),
        ("not looked into, because they are repositories of their own: inner/",),
    )


def test_paths_like_patterns_are_taken_literally(repository: Path) -> None:
    (repository / "*").write_text("mine\n")
    start = record_start(str(repository), Git(ENV))
    (repository / ":(top)x").write_text("x\n")
    (repository / "-n").write_text("x\n")
    assert _paths(start) == ["-n", ":(top)x"]


def test_approved_repository_runs_no_program(repository: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    trap(repository, evidence)
    (repository / ".gitattributes").write_text("* diff=evil\n")
    for key in ("diff.external", "diff.evil.command", "diff.evil.textconv", "core.pager", "pager.diff"):
        git(repository, "config", key, f"touch {evidence}/{key}; cat")
    trusting = Git(ENV, str(repository), lambda _: True)
    index = (repository / ".git/index").read_bytes()
    start = record_start(str(repository), trusting)
    (repository / "readme").write_text("changed\n")
    found = _changes(start, trusting)
    assert "+changed" in (found.text or "")
    assert list(evidence.iterdir()) == []
    assert (repository / ".git/index").read_bytes() == index


def test_unapproved_settings_prevent_a_diff(repository: Path) -> None:
    git(repository, "config", "filter.evil.clean", "false")
    start = record_start(str(repository), Git(ENV))
    assert (start.head, "sets filter.evil.clean" in (start.why or "")) == (None, True)
    with pytest.raises(Conflict, match="is not known from before the run"):
        _changes(start)
    with pytest.raises(HocketError, match="sets filter"):
        _changes(start._replace(why=None, head="HEAD"))


def test_diff_that_is_too_large_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_diff, "MOST_TEXT", 300)
    start = record_start(str(repository), Git(ENV))
    (repository / "readme").write_text("x\n" * 400)
    with pytest.raises(Conflict) as caught:
        _changes(start)
    assert caught.value.hint == "try --stat"


def test_colours_follow_the_settings_of_git(repository: Path, tmp_path: Path) -> None:
    start = record_start(str(repository), Git(ENV))
    (repository / "readme").write_text("x\n")
    for setting, is_coloured in (("auto", True), ("never", False)):
        (tmp_path / ".gitconfig").write_text(f"[color]\nui = {setting}\n")
        own = Git({**ENV, "HOME": str(tmp_path)})
        found = changes_since(start, 0.0, None, own, Form("patch", colour=True))
        assert ("\x1b[" in (found.text or "")) == is_coloured
