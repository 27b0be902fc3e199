"""Clones whose git configuration names programs to run: none of them runs before the folder is trusted."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from workflows.repositories import commit_all, git, make_repository
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

Trap = Callable[[Path, str], Path]


def _filtered(project: Path) -> None:
    """A repository in which ``git status`` has to run the filter ``x`` of its configuration, if there is one."""
    make_repository(project, **{".gitattributes": "*.txt filter=x\n", "file.txt": "hello\n"})
    os.utime(project / "file.txt", (1, 1))


def clean_filter(project: Path, command: str) -> Path:
    _filtered(project)
    git(project, "config", "filter.x.clean", command)
    return project


def included_file(project: Path, command: str) -> Path:
    _filtered(project)
    (project / "tools.ini").write_text(f'[filter "x"]\n\tclean = "{command}"\n')
    git(project, "config", "include.path", "../tools.ini")
    return project


def worktree_config(project: Path, command: str) -> Path:
    _filtered(project)
    git(project, "config", "extensions.worktreeConfig", "true")
    git(project, "config", "--worktree", "filter.x.clean", command)
    return project


def moved_git_directory(project: Path, command: str) -> Path:
    clean_filter(project, command)
    (project / ".git").rename(project / "docs")
    (project / ".git").write_text("gitdir: docs\n")
    return project


def shared_git_directory(project: Path, command: str) -> Path:
    clean_filter(project, command)
    (project / "docs").mkdir()
    for name in ("config", "objects", "refs"):
        (project / ".git" / name).rename(project / "docs" / name)
    (project / ".git/commondir").write_text("../docs\n")
    return project


def unsound_inner_directory(project: Path, command: str) -> Path:
    """The nearest ``.git`` is none that git would use, so the one above it counts."""
    clean_filter(project, command)
    (project / "sub/.git").mkdir(parents=True)
    (project / "sub/.git/config").write_text("[core]\n\tbare = false\n")
    return project / "sub"


def monitor(project: Path, command: str) -> Path:
    _filtered(project)
    git(project, "config", "core.fsmonitor", command)
    return project


def bare_repository_inside(project: Path, command: str) -> Path:
    make_repository(project)
    inner = project / "fixtures"
    _filtered(inner)
    for path in list((inner / ".git").iterdir()):
        path.rename(inner / path.name)
    (inner / ".git").rmdir()
    git(project, "config", "--file", str(inner / "config"), "filter.x.clean", command)
    git(project, "config", "--file", str(inner / "config"), "core.bare", "false")
    git(project, "config", "--file", str(inner / "config"), "core.worktree", str(inner))
    return inner


def submodule(project: Path, command: str) -> Path:
    make_repository(project)
    clean_filter(project / "sub", command)
    commit_all(project, "with a link to another repository")
    os.utime(project / "sub/file.txt", (2, 2))
    return project


def hooks(project: Path, command: str) -> Path:
    _filtered(project)
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        path = project / ".git/hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{command.partition(';')[0]}\n")
        path.chmod(0o755)
    return project


TRAPS: list[Trap] = [
    *(clean_filter, included_file, worktree_config, moved_git_directory, shared_git_directory),
    *(unsound_inner_directory, monitor, bare_repository_inside, submodule, hooks),
]
NOT_REFUSED: dict[Trap, int] = {bare_repository_inside: 2, submodule: 0, hooks: 0}
"""What a worktree there comes to where there is nothing to approve: not a repository, and two that run nothing."""


@pytest.fixture
def programs(agent: Bin) -> None:
    agent("hocket", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hocket "$@"\n')
    agent("quiet", "print('hello')")
    # It asks for itself, so that Hocket has to look whether anything has changed since.
    agent("circling", "#!/bin/sh\nhocket handoff circling again 2>&1\necho done\n")


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_nothing_of_a_clone_runs_before_trust(hocket: Hocket, world: Path, trap: Trap) -> None:
    """Torture row 51."""
    canary = world / "canary"
    cwd = trap(hocket.cwd, f"touch {canary}; cat")
    handed = hocket("handoff", "circling", "go", cwd=cwd)
    assert (handed.returncode, handed.stdout) == (0, "done\n") or "as it was then" in handed.stdout
    chain = hocket("run", "quiet:3", "--no-progress", "1", "--json", cwd=cwd)
    told = json.loads(chain.stdout.splitlines()[-1])["data"]
    isolated = hocket("run", "quiet", "--isolation", "worktree", cwd=cwd)
    listed = hocket("worktrees", cwd=cwd)
    assert not canary.exists()
    assert (told["reason"], listed.returncode) == ("no_progress", 0)
    assert isolated.returncode == NOT_REFUSED.get(trap, 4), isolated.stderr
    if isolated.returncode == 4:
        assert isolated.stderr.endswith(f"run: hocket trust {cwd}\n")
    subprocess.run(["git", "status"], cwd=cwd, check=False, capture_output=True, timeout=PATIENCE)
    assert canary.exists(), "the trap works"


@pytest.mark.usefixtures("programs")
def test_configuration_of_a_trusted_folder_applies(hocket: Hocket, world: Path) -> None:
    """Torture row 51."""
    canary = world / "canary"
    clean_filter(hocket.cwd, f"touch {canary}; cat")
    shown = hocket("trust", "--dry-run").stdout
    assert f"filter.x.clean: touch {canary}; cat" in shown
    assert not canary.exists()
    assert hocket("trust", "--yes").returncode == 0
    done = hocket("run", "quiet", "--isolation", "worktree")
    assert (done.returncode, canary.exists()) == (0, True), done.stderr


@pytest.mark.usefixtures("programs")
def test_ordinary_clone_keeps_its_features(hocket: Hocket, world: Path) -> None:
    """Torture row 51."""
    make_repository(world / "origin")
    cwd = world / "clones/one"
    git(world, "clone", "--quiet", str(world / "origin"), str(cwd))
    chain = hocket("run", "quiet:3", "--no-progress", "1", "--isolation", "worktree", "--json", cwd=cwd)
    events = [json.loads(line) for line in chain.stdout.splitlines()]
    looks = [event["data"] for event in events if event["type"] == "progress"]
    assert {look["kind"] for look in looks} == {"git"}
    assert (events[-1]["data"]["reason"], chain.stderr) == ("no_progress", "")
