"""How errors leave: what a file is called cannot steer a terminal, nor pass for a message of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalog.agent_world import write
from world import Hocket

NAMES = ["a\x1b]0;title\x07b.md", "a\nhint: type this.md", "a\nhocket: all is well.md", "\x9b31m.md"]


@pytest.mark.parametrize("file", NAMES, ids=ascii)
def test_file_names_cannot_control_the_terminal(hocket: Hocket, project: Path, world: Path, file: str) -> None:
    write(world / "user/.claude/agents", "rev")
    path = write(project / ".claude/agents", "rev", file=file)
    done = hocket("run", "rev", "-p", "x", "--dry-run", cwd=project)
    assert done.returncode == 4
    assert done.stderr.replace("\n", "").isprintable()
    heads = [line.partition(" ")[0] for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert heads == ["hocket:", "hint:"]
    assert str(path.parent) in done.stderr


def test_command_in_a_hint_can_be_typed(hocket: Hocket, project: Path, world: Path) -> None:
    write(world / "user/.claude/agents", "rev")
    path = write(project / ".claude/agents", "rev", file="it's\x07 odd.md")
    done = hocket("run", "rev", "-p", "x", "--dry-run", cwd=project)
    typed = f"""hocket trust '{path.parent}/it'"'"'s'$'\\x07'' odd.md'"""
    assert done.stderr.splitlines()[-1].endswith(typed)


def test_message_of_several_lines_keeps_them(hocket: Hocket, project: Path) -> None:
    done = hocket("agents", cwd=project)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert f"  project: {project}/.claude/agents (missing)" in lines
