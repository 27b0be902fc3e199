"""``hocket setup claude``: what it changes in the user's settings, what it undoes, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli.pseudo_terminal import Terminal
from world import Hocket

from hocket.cli.claude.setup import _replace
from hocket.errors import Conflict

pytestmark = pytest.mark.in_process
BEFORE = '{\n    "model": "opus", "permissions": {"allow": ["Read", "Bash(ls)"]}\n}\n'


@pytest.fixture
def settings(world: Path) -> Path:
    path = world / "user/.claude/settings.json"
    path.parent.mkdir()
    path.write_text(BEFORE)
    path.chmod(0o640)
    return path


def test_change_is_printed_and_not_made(hocket: Hocket, settings: Path) -> None:
    done = hocket("setup", "claude")
    assert (done.returncode, settings.read_text()) == (0, BEFORE)
    assert '"matcher": "Task|Agent",\n' in done.stdout
    assert "hocket setup claude --write" in done.stderr
    told = json.loads(hocket("setup", "claude", "--json").stdout)
    assert told == {"path": str(settings), "changed": False, "diff": done.stdout}


def test_hook_is_written_once_and_undone(hocket: Hocket, settings: Path) -> None:
    assert hocket("setup", "claude", "--write", "--yes").returncode == 0
    written = settings.read_text()
    (entry,) = json.loads(written)["hooks"]["PreToolUse"]
    (hook,) = entry["hooks"]
    assert (entry["matcher"], hook["type"], hook["timeout"]) == ("Task|Agent", "command", 120)
    assert " -m hocket hook pre-tool-use # added by" in hook["command"]
    assert written.startswith(BEFORE[:-3])
    assert settings.stat().st_mode & 0o777 == 0o640
    again = hocket("setup", "claude", "--write", "--json")
    assert (json.loads(again.stdout)["changed"], again.stderr, settings.read_text()) == (False, "", written)
    undone = hocket("setup", "claude", "--undo", "--yes", "--json")
    assert (json.loads(undone.stdout)["changed"], undone.stderr, settings.read_text()) == (True, "", BEFORE)
    assert json.loads(hocket("setup", "claude", "--undo", "--json").stdout)["changed"] is False
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("option", ["--write", "--undo"])
def test_agent_cannot_change_the_settings(hocket: Hocket, settings: Path, option: str) -> None:
    inside = {"HOCKET_RUN": "r1", "HOCKET_TOKEN": "t"}
    refused = hocket("setup", "claude", option, "--yes", env=inside)
    assert (refused.returncode, refused.stdout, settings.read_text()) == (2, "", BEFORE)
    assert "an agent cannot change your Claude settings" in refused.stderr
    assert hocket("setup", "claude", env=inside).returncode == 0


def test_missing_file_is_created_and_removed(hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(world / "moved"))
    path = world / "moved/settings.json"
    assert hocket("setup", "claude", "--undo", "--yes").returncode == 0
    assert not path.parent.exists()
    assert hocket("setup", "claude", "--write", "--yes").returncode == 0
    assert (list(json.loads(path.read_text())), path.stat().st_mode & 0o777) == (["hooks"], 0o600)
    assert hocket("setup", "claude", "--undo", "--yes").returncode == 0
    assert not path.exists()
    assert not (world / "user/.claude").exists()


@pytest.mark.parametrize("option", ["--write", "--undo"])
def test_nothing_is_changed_without_confirmation(hocket: Hocket, settings: Path, option: str) -> None:
    if option == "--undo":
        hocket("setup", "claude", "--write", "--yes")
    before = settings.read_text()
    for words in ((option,), (option, "--json")):
        done = hocket("setup", "claude", *words)
        assert (done.returncode, settings.read_text()) == (4, before)
        assert "is changed only when you confirm it" in done.stderr


def test_person_confirms_on_a_terminal(hocket: Hocket, settings: Path) -> None:
    for answer, changed in (("n", False), ("y", True)):
        terminal = Terminal("setup", "claude", "--write", cwd=hocket.cwd)
        terminal.wait_for("[y/N]")
        terminal.press(f"{answer}\n".encode())
        assert terminal.end() == (0 if changed else 1)
        terminal.close()
        assert (settings.read_text() != BEFORE) == changed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        (b"\xff", "is not valid UTF-8"),
    ],
)
def test_unusable_file_is_refused_and_kept(hocket: Hocket, settings: Path, content: str | bytes, words: str) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    settings.write_bytes(raw)
    for option in ("--write", "--undo"):
        done = hocket("setup", "claude", option, "--yes")
        assert (done.returncode, done.stdout, settings.read_bytes()) == (2, "", raw)
        assert f"{settings}" in done.stderr
        assert words in done.stderr


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_file_of_another_kind_is_refused_and_kept(hocket: Hocket, settings: Path, world: Path, kind: str) -> None:
    elsewhere = world / "dotfiles.json"
    if kind == "link":
        settings.rename(elsewhere)
    else:
        settings.unlink()
    if kind == "fifo":
        os.mkfifo(settings)
    elif kind == "folder":
        settings.mkdir()
    else:
        settings.symlink_to(elsewhere)
    done = hocket("setup", "claude", "--write", "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert ("is a symbolic link to" if kind in ("link", "dangling") else "is not a regular file") in done.stderr
    assert settings.is_symlink() == (kind in ("link", "dangling"))
    assert not elsewhere.exists() or elsewhere.read_text() == BEFORE


def test_file_that_changed_meanwhile_is_kept(settings: Path) -> None:
    settings.write_text("{}")
    with pytest.raises(Conflict, match="was changed meanwhile"):
        _replace(str(settings), BEFORE, "{ }")
    assert settings.read_text() == "{}"
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]


def test_contradicting_options_are_refused(hocket: Hocket, settings: Path) -> None:
    done = hocket("setup", "claude", "--write", "--undo", "--yes")
    assert (done.returncode, settings.read_text()) == (2, BEFORE)
    assert "give --write or --undo, not both" in done.stderr
