"""Privileges, which need an approval, in definitions and in arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from catalog.definition_writing import agent

from hocket.catalog.files import read_definition
from hocket.config import PERMISSION_MODES
from hocket.providers.claude.privileges import (
    WIDENING,
    mode_with,
    permission_mode,
    requested,
    widening,
    with_permission_mode,
    without_modes,
)


def test_privileges_are_described(tmp_path: Path) -> None:
    more = "hooks: {Stop: [{hooks: []}]}\nmcpServers: [one, {two: {command: x}}]"
    greedy = read_definition(str(agent(tmp_path, "a", more=more)))
    assert requested(greedy) == ["hooks (Stop)", "MCP servers (one, two)"]
    assert requested(read_definition(str(agent(tmp_path, "b", more="permissionMode: plan\ntools: Bash")))) == []


# --- Arguments ----------------------------------------------------------------------------------------------

FLAGS = [(flag.replace("*", "rest"), reason) for reason, flags in WIDENING.items() for flag in flags]


@pytest.mark.parametrize(("flag", "reason"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_widening_flag_is_found_in_every_spelling(flag: str, reason: str) -> None:
    for args in ([flag], [flag, "value"], [f"{flag}=value"], ["word", "--model", "x", flag], ["--tools", flag]):
        assert widening(args, "acceptEdits") == (flag, reason)


@pytest.mark.parametrize("letters", ["-c", "-r", "-rID", "-w", "-pc", "-pvr", "-hpwname"])
def test_short_flags_that_widen_are_found_among_others(letters: str) -> None:
    found = widening([letters], "acceptEdits")
    assert found is not None
    assert found.argument == letters


@pytest.mark.parametrize(
    "args",
    [
        ["--model", "haiku"],
        ["--max-turns", "5", "--max-budget-usd=2"],
        ["--effort", "high", "--verbose"],
        ["--append-system-prompt", "- create, - write"],
        ["--append-system-prompt", "use --settings and --resume with care"],
        ["--tools", "Read,Grep"],
        ["--disallowedTools", "Bash", "--disallowed-tools", "Edit"],
        ["--strict-mcp-config", "--no-chrome", "--disable-slash-commands"],
        ["--careful", "--target=linux", "-q", "-n", "crew", "-d", "-", ""],
        ["resume", "continue", "settings", "a=--resume"],
        ["--permission-mode", "acceptEdits"],
    ],
    ids=" ".join,
)
def test_harmless_flags_do_not_widen(args: list[str]) -> None:
    assert widening(args, "acceptEdits") is None


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    ("mode", "fits"),
    [
        ("plan", ["plan"]),
        ("dontAsk", ["plan", "dontAsk"]),
        ("default", ["plan", "dontAsk", "default", "manual"]),
        ("manual", ["plan", "dontAsk", "default", "manual"]),
        ("acceptEdits", ["plan", "dontAsk", "default", "manual", "acceptEdits"]),
        ("auto", ["plan", "dontAsk", "default", "manual", "acceptEdits", "auto"]),
        ("bypassPermissions", PERMISSION_MODES),
    ],
)
def test_wider_permission_mode_is_found(mode: str, fits: Sequence[str], joined: bool) -> None:
    for wanted in (*PERMISSION_MODES, "modeOfTomorrow", ""):
        args = [f"--permission-mode={wanted}"] if joined else ["--permission-mode", wanted]
        assert (widening(args, mode) is None) == (wanted in fits)
    assert widening(["--permission-mode"], mode) is not None


def test_every_permission_mode_has_a_width() -> None:
    assert all(widening(["--permission-mode", mode], "bypassPermissions") is None for mode in PERMISSION_MODES)


@pytest.mark.parametrize(
    ("before", "args", "found"),
    [
        (["--allowedTools", "Read"], ["Bash"], True),
        (["--verbose", "--mcp-config", "mine.json"], ["theirs.json"], True),
        (["--allowedTools", "Read"], ["--verbose", "Bash"], False),
        (["--allowedTools", "Read", "--verbose"], ["Bash"], False),
        (["--tools", "Read"], ["Bash"], False),
        (["--allowedTools", "Read"], [], False),
        ([], ["Bash"], False),
    ],
)
def test_value_that_continues_widening_flag_is_found(before: list[str], args: list[str], found: bool) -> None:
    assert (widening(args, "acceptEdits", before) is not None) == found


# --- Modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "mode", "left"),
    [
        ([], "default", []),
        (["--model", "m"], "default", ["--model", "m"]),
        (["--permission-mode", "plan", "-x"], "plan", ["-x"]),
        (["-x", "--permission-mode=plan"], "plan", ["-x"]),
        (["--permission-mode", "plan", "--permission-mode", "auto"], "auto", []),
        (["--dangerously-skip-permissions", "--permission-mode", "plan"], "bypassPermissions", []),
        (["--permission-mode"], "", []),
    ],
)
def test_last_permission_mode_counts_and_can_be_removed(args: list[str], mode: str, left: list[str]) -> None:
    assert mode_with(args, "default") == mode
    assert without_modes(args) == tuple(left)
    assert mode_with(without_modes(args), "default") == "default"


def test_permission_mode_of_definition_can_be_replaced(tmp_path: Path) -> None:
    asking = read_definition(str(agent(tmp_path, "a", more="permissionMode: auto")))
    silent = read_definition(str(agent(tmp_path, "b")))
    assert permission_mode(with_permission_mode(asking, "plan")) == "plan"
    assert (permission_mode(asking), with_permission_mode(silent, "plan")) == ("auto", silent)
