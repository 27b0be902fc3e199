"""Git in a folder that is not trusted: ordinary repositories as ever, all others not before they are approved."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from workflows.repositories import commit_all, git, make_repository

import hocket
from hocket.errors import NotTrusted
from hocket.workflows.directory_state import take_snapshot
from hocket.workflows.git import MAX_CONFIG, Git
from hocket.workflows.worktrees import ensure, find_repository, remove, worktree_for

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
FILE = ("-c", "protocol.file.allow=always")


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    make_repository(tmp_path / "origin", readme="hello\n", sub__code="x\n")
    git(tmp_path / "origin", "config", "uploadpack.allowFilter", "true")
    return tmp_path / "origin"


def _cloned(origin: Path, *words: str) -> Path:
    clone = origin.parent / "clone"
    git(origin.parent, *FILE, "clone", "--quiet", *words, f"file://{origin}", str(clone))
    return clone


def _sparse(origin: Path) -> Path:
    clone = _cloned(origin)
    git(clone, "sparse-checkout", "set", "sub")
    return clone


def _linked(origin: Path) -> Path:
    clone = _cloned(origin)
    git(clone, "worktree", "add", "--quiet", str(origin.parent / "second"))
    return origin.parent / "second"


def _used(origin: Path) -> Path:
    """A clone in which its user has worked."""
    clone = _cloned(origin)
    git(clone, "checkout", "--quiet", "-b", "topic")
    git(clone, "branch", "--quiet", "--set-upstream-to=origin/main")
    git(clone, "config", "user.email", "ada@example.org")
    git(clone, "config", "pull.rebase", "true")
    git(clone, "config", "branch.topic.description", "filter.x.clean")
    return clone


@pytest.mark.parametrize(
    "make",
    [
        lambda origin: origin,
        _cloned,
        lambda origin: _cloned(origin, "--depth=1"),
        lambda origin: _cloned(origin, "--filter=blob:none"),
        *(_sparse, _linked, _used),
    ],
    ids=["init", "clone", "shallow", "partial", "sparse", "second worktree", "used"],
)
def test_ordinary_repository_needs_no_trust(make: Callable[[Path], Path], origin: Path) -> None:
    git(origin, "config", "--unset", "uploadpack.allowFilter") if (folder := make(origin)) == origin else None
    ask = Git(ENV, str(folder))
    place = find_repository(str(folder), ask)
    assert (place.repository, take_snapshot(str(folder), ask).kind) == (str(folder), "git")
    tree = worktree_for(
        str(origin.parent / "h"), str(folder), git(folder, "rev-parse", "HEAD"), (7, "rabcdef"), 1, "builder"
    )
    ensure(tree, ask, fresh=True)
    assert (Path(tree.path) / "sub/code").read_text() == "x\n"
    assert take_snapshot(tree.path, ask).kind == "git"
    assert remove(tree, ask)


def test_submodule_changes_are_detected_without_running_git_there(origin: Path, tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    git(origin, *FILE, "submodule", "--quiet", "add", f"file://{tmp_path}/library", "lib")
    commit_all(origin)
    clone = _cloned(origin, "--recurse-submodules")
    before = take_snapshot(str(clone), Git(ENV))
    (clone / "lib/readme").write_text("other\n")
    assert (before.kind, take_snapshot(str(clone), Git(ENV)).state != before.state) == ("files", True)


@pytest.mark.parametrize(
    "content",
    [
        '[filter "x"]\n\tclean = true\n',
        "[include]\n\tpath = /nonexistent\n",
        "[core]\n\tsshCommand = true\n",
        "[core]\n\tworktree = /\n",
        '[remote "url"]\n\tuploadpack = true\n',
        '[remote "a.url"]\n\tvcs = x\n',
        '[protocol "ext"]\n\tallow = always\n',
        "[log]\n\tshowSignature\n",
        "[gpg]\n\tprogram = true\n",
        '[user "filter"]\n\tx = y\n',
        f'[branch "{"x" * MAX_CONFIG}"]\n\tmerge = y\n',
    ],
)
def test_unknown_configuration_key_needs_trust(origin: Path, content: str) -> None:
    git(origin, "config", "--unset", "uploadpack.allowFilter")
    ask = Git(ENV, str(origin))
    assert ask(str(origin), "status").code == 0
    with (origin / ".git/config").open("a") as file:
        file.write(content)
    with pytest.raises(NotTrusted) as caught:
        Git(ENV, str(origin))(str(origin), "status")
    assert f"{origin}/.git/config" in caught.value.message


def test_configuration_that_is_no_file_is_refused(origin: Path) -> None:
    os.mkfifo(origin / ".git/config.worktree")
    git(origin, "config", "--unset", "uploadpack.allowFilter")
    with pytest.raises(NotTrusted, match="not a regular file") as caught:
        Git(ENV, str(origin))(str(origin), "status")
    assert (caught.value.hint or "").endswith(f"run: hocket trust {origin}")


def test_configuration_that_blocks_git_needs_trust(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.workflows.git.CONFIG_SECONDS", 1.0)
    os.mkfifo(origin / ".git/more")
    (origin / ".git/config").write_text("[include]\n\tpath = more\n")
    with pytest.raises(NotTrusted, match="within 1 s") as caught:
        find_repository(str(origin), Git(ENV, str(origin)))
    assert (caught.value.hint or "").endswith(f"run: hocket trust {origin}")


def test_git_of_the_folder_is_never_run(origin: Path, tmp_path: Path) -> None:
    (origin / "git").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (origin / "git").chmod(0o755)
    for path in (f".:{ENV['PATH']}", f":{ENV['PATH']}", ".", ""):
        take_snapshot(str(origin), Git({**ENV, "PATH": path}))
    assert not (tmp_path / "ran").exists()


def test_only_one_module_runs_git() -> None:
    found = [path for path in Path(hocket.__file__).parent.rglob("*.py") if re.search(r'[\[(]"git"', path.read_text())]
    # The second only prints commands.
    assert [path.name for path in sorted(found)] == ["plain.py", "git.py"]
