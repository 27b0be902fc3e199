"""What is kept of ``agents --json`` is given back while nothing has changed, and never afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import laws
import pytest
from catalog.land import write
from catalog.plugged import ALPHA, User, head

from hocket.catalog import file_probe, kept
from hocket.catalog.cache import table_of
from hocket.catalog.discovery import discover
from hocket.config.loading import load

TEXT = b'{"by_name":{}}\n'


class Shelf:
    """A HOCKET_HOME, a project, and a file in it on which what is kept depends."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.cwd = root / "project"
        self.file = self.cwd / "a.md"
        self.missing = self.cwd / "b.md"
        self.environ = {"HOME": str(root)}
        self.cwd.mkdir()
        self.file.write_text("one")

    def keep(self, text: bytes = TEXT, environ: Mapping[str, str] | None = None) -> Path:
        key = kept.key(str(self.home), str(self.cwd), environ or self.environ)
        seen = {str(path): kept.signature_at(str(path)) for path in (self.cwd, self.file, self.missing)}
        path = Path(kept.file_of(str(self.home), key))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kept.pack(key, seen, text))
        return path

    def read(self, cwd: str | None = None, environ: Mapping[str, str] | None = None, ttl: float = 300) -> bytes | None:
        return kept.read(str(self.home), cwd or str(self.cwd), environ or self.environ, ttl)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_nothing_kept_is_nothing_given(shelf: Shelf) -> None:
    assert shelf.read() is None


def test_what_was_kept_is_given_back_as_it_was(shelf: Shelf) -> None:
    shelf.keep()
    assert shelf.read() == TEXT


@pytest.mark.parametrize("spelling", ["{}/", "{}/.", "{}//", "{}/../project"])
def test_a_directory_is_found_in_every_spelling(shelf: Shelf, spelling: str) -> None:
    shelf.keep()
    assert shelf.read(spelling.format(shelf.cwd)) == TEXT


def test_a_directory_above_which_a_link_leads_elsewhere_is_the_real_one(shelf: Shelf, tmp_path: Path) -> None:
    shelf.keep()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    assert shelf.read(f"{tmp_path}/link/../project") is None
    assert shelf.read(f"{tmp_path}/link/../../project") == TEXT


def test_a_directory_is_the_same_behind_a_link(shelf: Shelf, tmp_path: Path) -> None:
    shelf.keep()
    link = tmp_path / "link"
    link.symlink_to(shelf.cwd)
    assert shelf.read(str(link)) == TEXT
    link.unlink()
    link.symlink_to(tmp_path)
    assert shelf.read(str(link)) is None


def test_a_directory_that_cannot_be_there_has_nothing_kept(shelf: Shelf) -> None:
    assert shelf.read("/a\0b") is None
    assert kept.normal("/a\0b/") == "/a\0b"


# --- Changes ------------------------------------------------------------------------------------------------


def test_a_changed_file_is_noticed(shelf: Shelf) -> None:
    shelf.keep()
    shelf.file.write_text("three")
    assert shelf.read() is None


def test_a_file_that_was_changed_and_given_its_old_time_is_noticed(shelf: Shelf) -> None:
    before = shelf.file.stat()
    shelf.keep()
    while shelf.file.stat().st_ctime_ns == before.st_ctime_ns:  # until the file system's clock has moved on
        shelf.file.write_text("two")
        os.utime(shelf.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert shelf.read() is None


def test_a_replaced_file_is_noticed(shelf: Shelf) -> None:
    shelf.keep()
    before = shelf.file.stat()
    new = shelf.file.with_name("new")
    new.write_text("two")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(shelf.file)
    assert shelf.read() is None


def test_a_removed_file_is_noticed(shelf: Shelf) -> None:
    shelf.keep()
    shelf.file.unlink()
    assert shelf.read() is None


def test_a_file_that_comes_to_be_is_noticed(shelf: Shelf) -> None:
    shelf.keep()
    shelf.missing.write_text("now")
    assert shelf.read() is None


def test_a_file_whose_mode_changes_is_noticed(shelf: Shelf) -> None:
    shelf.keep()
    shelf.file.chmod(0o600)
    assert shelf.read() is None


def test_a_file_that_is_only_read_stays_as_it_was(shelf: Shelf) -> None:
    shelf.keep()
    shelf.file.read_text()
    assert shelf.read() == TEXT


def test_a_folder_of_the_same_list_is_the_same(shelf: Shelf) -> None:
    """Discovery and this reader must mean the same by a signature, or nothing would ever be found again."""
    for path in (shelf.cwd, shelf.file):
        assert kept.signature(path.stat()) == file_probe.signature(path.stat())
    assert kept.ABSENT == file_probe.ABSENT


# --- Whose it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kept.VARIABLES)
def test_another_environment_has_another_answer(shelf: Shelf, name: str) -> None:
    shelf.keep()
    assert shelf.read(environ={**shelf.environ, name: "/elsewhere"}) is None


class Watched(dict[str, str]):
    """An environment that knows what of it was asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def test_every_variable_that_discovery_looks_at_tells_answers_apart(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.offer("alpha", {"agents/x.md": head("x")})
    user.switch(ALPHA)
    write(user.project / ".claude/agents", "y", permissionMode="bypassPermissions")
    env = Watched(user.env)
    config = load(str(user.project), str(tmp_path / "state"), env)
    table = table_of(discover(str(user.project), env, str(tmp_path / "state"), config), config)
    assert sorted(table["by_name"]) == ["alpha:x", "y"]
    assert env.asked == set(kept.VARIABLES)


def test_a_variable_that_does_not_matter_does_not_matter(shelf: Shelf) -> None:
    shelf.keep()
    assert shelf.read(environ={**shelf.environ, "TERM": "dumb"}) == TEXT


def test_a_file_under_the_name_of_another_is_not_mistaken_for_it(shelf: Shelf) -> None:
    other = {**shelf.environ, "CLAUDE_CONFIG_DIR": "/elsewhere"}
    wrong = shelf.keep(environ=other)
    wrong.rename(kept.file_of(str(shelf.home), kept.key(str(shelf.home), str(shelf.cwd), shelf.environ)))
    assert shelf.read() is None


# --- Age and damage -----------------------------------------------------------------------------------------


def test_what_is_older_than_its_time_is_not_given(shelf: Shelf) -> None:
    shelf.keep()
    assert shelf.read(ttl=-1) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"hocket-agents 1 ", b"hocket-agents 0 "),
        (b"hocket-agents 1 ", b"hocket-agents 1 9."),
        (b"hocket-agents 1 ", b""),
        (b"\n", b" 7\n"),
        (TEXT, b""),
        (TEXT, TEXT + b"more"),
        (b"\0-", b""),
    ],
)
def test_what_is_damaged_or_of_another_version_is_not_given(shelf: Shelf, old: bytes, new: bytes) -> None:
    path = shelf.keep()
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    assert shelf.read() is None


@pytest.mark.parametrize("size", [0, 1, 20, 40, 100])
def test_what_was_cut_short_is_not_given(shelf: Shelf, size: int) -> None:
    path = shelf.keep()
    path.write_bytes(path.read_bytes()[:size])
    assert shelf.read() is None


def test_what_is_no_file_is_not_waited_for(shelf: Shelf) -> None:
    path = shelf.keep()
    path.unlink()
    os.mkfifo(path)
    assert shelf.read() is None
    path.unlink()
    path.mkdir()
    assert shelf.read() is None


def test_names_that_are_no_text_and_names_that_no_file_can_have_are_kept_too(shelf: Shelf) -> None:
    odd = shelf.cwd / os.fsdecode(b"\xff\n.md")
    odd.write_text("odd")
    key = kept.key(str(shelf.home), str(shelf.cwd), shelf.environ)
    seen = {str(odd): kept.signature_at(str(odd)), "/no\0file": kept.ABSENT}
    path = shelf.keep()
    path.write_bytes(kept.pack(key, seen, TEXT))
    assert shelf.read() == TEXT
    odd.unlink()
    assert shelf.read() is None


# --- Its price ----------------------------------------------------------------------------------------------


def test_reading_imports_nothing_that_was_not_there() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(laws.SOURCE)!r}); import os, time; before = set(sys.modules);"
        " from hocket.catalog import kept; kept.read('/nowhere', '/', {}); print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) == {"__future__", "hocket", "hocket.catalog", "hocket.catalog.kept"}
