"""The stand-in of a directory: the same folders of definitions in the same places, and nothing that could run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE

from hocket.cli.agent_comparison import ClaudeUser, StandInDirectory


class Ground:
    """A user with a project, and the stand-in of both."""

    def __init__(self, world: Path) -> None:
        self.user = world / "user"
        self.project = self.user / "work/shop"
        self.project.mkdir(parents=True)
        self.there = world / "there"
        self.there.mkdir()

    def stand_in(self, cwd: Path | None = None) -> StandInDirectory:
        user = ClaudeUser(str(self.user), str(self.user / ".claude"), moved=False)
        return StandInDirectory(self.there, str(cwd or self.project), user)

    def copied(self, real: Path) -> Path:
        return self.there / str(real).lstrip("/")


@pytest.fixture
def ground(world: Path) -> Ground:
    return Ground(world)


def agents_in(folder: Path) -> Path:
    path = folder / ".claude/agents"
    path.mkdir(parents=True)
    return path


def test_definition_folders_are_links(ground: Ground) -> None:
    real = [agents_in(folder) for folder in (ground.project, ground.project.parent, ground.user)]
    ground.stand_in()
    assert [os.readlink(ground.copied(folder)) for folder in real] == [str(folder) for folder in real]


def test_missing_definition_folder_is_not_created(ground: Ground) -> None:
    ground.stand_in()
    assert ground.copied(ground.project).is_dir()
    assert list(ground.copied(ground.project).iterdir()) == []


def test_only_definitions_and_plugin_choices_are_copied(ground: Ground) -> None:
    agents_in(ground.project)
    (ground.project / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "touch"}}}')
    (ground.project / "CLAUDE.md").write_text("do this")
    (ground.project / ".claude/commands").mkdir()
    text = '{"enabledPlugins": {"a@b": true}, "env": {"LD_PRELOAD": "x"}, "apiKeyHelper": "touch it"}'
    (ground.project / ".claude/settings.json").write_text(text)
    (ground.project / ".claude/settings.local.json").write_text('{"hooks": {}}')
    ground.stand_in()
    here = ground.copied(ground.project)
    assert sorted(str(path.relative_to(here)) for path in here.rglob("*")) == [
        *(".claude", ".claude/agents", ".claude/settings.json")
    ]
    assert (here / ".claude/settings.json").read_text() == '{"enabledPlugins": {"a@b": true}}'


def test_plugins_are_linked_and_their_records_copied(ground: Ground) -> None:
    plugins = ground.user / ".claude/plugins"
    (plugins / "cache").mkdir(parents=True)
    (plugins / "installed_plugins.json").write_text("{}")
    ground.stand_in()
    assert os.readlink(ground.copied(plugins / "cache")) == str(plugins / "cache")
    record = ground.copied(plugins / "installed_plugins.json")
    assert (record.read_text(), record.is_symlink()) == ("{}", False)


def git(*args: str, cwd: Path) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=cwd, check=True, timeout=PATIENCE)


def test_repository_root_is_marked_without_configuration(ground: Ground) -> None:
    git("init", "-q", cwd=ground.project.parent)
    git("config", "core.fsmonitor", "touch it", cwd=ground.project.parent)
    ground.stand_in()
    mark = ground.copied(ground.project.parent / ".git")
    assert (mark / "HEAD").is_file()
    assert not (mark / "config").exists()
    assert not ground.copied(ground.project / ".git").exists()


def test_worktree_sees_definitions_of_its_repository(ground: Ground) -> None:
    git("init", "-q", cwd=ground.project)
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=ground.project)
    second = ground.user / "second"
    git("worktree", "add", "-q", str(second), cwd=ground.project)
    real = agents_in(ground.project)
    ground.stand_in(second)
    assert os.readlink(ground.copied(real)) == str(real)
    reported = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"],
        cwd=ground.copied(second), check=True, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert reported.stdout.strip() == str(ground.copied(ground.project / ".git"))


def test_worktree_records_may_be_relative(ground: Ground) -> None:
    real, second = agents_in(ground.project), ground.user / "second"
    records = ground.project / ".git/worktrees/second"
    records.mkdir(parents=True)
    second.mkdir()
    (second / ".git").write_text(f"gitdir: {os.path.relpath(records, second)}\n")
    (records / "gitdir").write_text("../../../../../second/.git\n")
    ground.stand_in(second)
    assert os.readlink(ground.copied(real)) == str(real)


def test_invalid_worktree_records_are_ignored(ground: Ground, world: Path) -> None:
    other, records = agents_in(world / "other"), world / "other/.git/worktrees/x"
    records.mkdir(parents=True)
    (records / "gitdir").write_text("a\0b")
    for said in (str(records), "a\0b"):
        (ground.project / ".git").write_text(f"gitdir: {said}")
        ground.stand_in()
    assert not ground.copied(other).exists()


def test_unknown_worktree_is_not_followed(ground: Ground, world: Path) -> None:
    other = agents_in(world / "other")
    (world / "other/.git/worktrees/x").mkdir(parents=True)
    (ground.project / ".git").write_text(f"gitdir: {world}/other/.git/worktrees/x")
    ground.stand_in()
    assert not ground.copied(other).exists()
    assert ground.copied(ground.project / ".git").is_file()


def test_unreadable_files_are_skipped(ground: Ground) -> None:
    claude = ground.project / ".claude"
    claude.mkdir()
    (claude / "settings.json").mkdir()
    os.mkfifo(claude / "settings.local.json")
    os.mkfifo(ground.project / ".git")
    (claude / "agents").symlink_to("nowhere")
    ground.stand_in()
    assert ground.copied(claude / "agents").is_symlink()
