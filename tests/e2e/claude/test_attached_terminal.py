"""A person at the terminal of a lead of the real CLI: it is drawn whole on attaching, and takes what is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.tmux import CLEAN, opening_panes
from e2e.claude.setup import ClaudeSetup, says
from e2e.commands import shown, spawn
from world import Hocket

pytestmark = pytest.mark.timeout(120)


@pytest.mark.req("S5-12")
def test_lead_is_attached_to_from_two_terminals(
    claude: ClaudeSetup, hocket: Hocket, world: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.use_team(says("good morning", prompt="hello"), says("it is noon", prompt="How late"))
    lead = spawn(hocket, "claude", "--team", "-p", "hello")
    number = shown(hocket, lead)["number"]
    monkeypatch.chdir(project)
    with opening_panes(world) as open_pane:
        first, second = open_pane(100, 30), open_pane(70, 20)
        for terminal in (first, second, first):
            if not terminal.is_at_prompt():
                terminal.press("C-]")
            terminal.enter(f"clear; hocket attach {number}")
            terminal.wait_for("good morning")
        second.type("How late is it?")
        first.wait_for("How late is it?")
        second.press("Enter")
        for terminal in (first, second):
            terminal.wait_for("it is noon")
        for terminal in (first, second):
            terminal.press("C-]")
            terminal.wait_for(f"run {number} continues")
            assert terminal.modes() == CLEAN
        first.enter(f"clear; hocket attach {number}")
        first.wait_for("it is noon")
        assert hocket("stop", lead).returncode == 0
        first.wait_for(f"stopped  run {number}")
        assert first.modes() == CLEAN
