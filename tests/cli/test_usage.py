"""Words are read into values, wrong usage is explained, and help shows everything that is declared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE
from world import Bin, Hocket

from hocket.cli.usage import COMMANDS, FLAG, ArgumentError, Command, Group, HelpRequested, help_text, load, parse


def every_command() -> Iterator[tuple[str, Command]]:
    """All commands, those of groups by both of their names."""
    for name in COMMANDS:
        found = load(name)
        if isinstance(found, Group):
            yield from ((f"{name} {word}", one) for word, one in found.commands.items())
        else:
            yield name, found


ALL = dict(every_command())


def given_values(name: str, words: list[str]) -> dict[str, Any]:
    """What the words set: the values that are not defaults."""
    command = ALL[name]
    defaults = {option.name: option.default for option in command.options} | {"passed": ()}
    return {key: value for key, value in parse(command, words).items() if value != defaults.get(key)}


@pytest.mark.parametrize(
    ("name", "words", "values"),
    [
        ("run", ["a -> b:3", "-p", "do it"], {"words": ("a -> b:3",), "prompt": "do it"}),
        ("run", ["a", "->", "b", "--timeout=2m"], {"words": ("a", "->", "b"), "timeout": 120.0}),
        (
            "run",
            ["a", "--prompt=", "--", "-x", "--", "y"],
            {"words": ("a",), "prompt": "", "passed": ("-x", "--", "y")},
        ),
        ("run", ["-p", "-", "a"], {"words": ("a",), "prompt": "-"}),
        ("run", ["a", "-pdo it"], {"words": ("a",), "prompt": "do it"}),
        ("run", ["a", "-qv"], {"words": ("a",), "quiet": True, "verbose": True}),
        ("run", ["a", "-p", "--json"], {"words": ("a",), "prompt": "--json"}),
        ("run", ["a", "--json", "--json"], {"words": ("a",), "as_json": True}),
        ("run", ["a", "--cwd", "x", "--cwd", "y"], {"words": ("a",), "cwd": "y"}),
        ("run", ["a", "--on-question", "ask"], {"words": ("a",), "on_question": "ask"}),
        ("run", ["a", "--budget", "0.50"], {"words": ("a",), "budget_usd": 0.5}),
        ("ps", ["--since", "2026-03-01T14:30", "--limit=5"], {"since": "2026-03-01T14:30", "limit": 5}),
        ("logs", ["-fn20", "42"], {"ref": "42", "follow": True, "lines": 20}),
        ("logs", ["-fn", "20", "42"], {"ref": "42", "follow": True, "lines": 20}),
        ("stop", ["1", "2"], {"refs": ("1", "2")}),
        ("stop", ["--", "1", "--json"], {"refs": ("1", "--json")}),
        ("handoff", ["7", "qa", "- one\n- two"], {"words": ("7", "qa", "- one\n- two")}),
        ("handoff", ["qa", "--- a/x\n+++ b=c"], {"words": ("qa", "--- a/x\n+++ b=c")}),
        ("task new", ["two", "words", "--cwd=a b"], {"words": ("two", "words"), "cwd": "a b"}),
        ("task plan", ["7", "--requirement", "a", "--requirement=b"], {"ref": "7", "requirement": ("a", "b")}),
        ("task status", ["7", "failed", "-m", "no"], {"ref": "7", "type": "failed", "message": "no"}),
        ("serve", ["--port", "0"], {"port": 0}),
    ],
)
def test_words_are_read_into_values(name: str, words: list[str], values: dict[str, Any]) -> None:
    assert given_values(name, words) == values


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("run", ["a", "--zzz"], "unknown option --zzz"),
        ("run", ["a", "--timeot", "5"], "unknown option --timeot (did you mean --timeout or --idle-timeout?)"),
        ("run", ["a", "-qx"], "unknown option -x"),
        ("run", ["a", "-p"], "option -p needs a value"),
        ("run", ["a", "--cwd", "--", "x"], "option --cwd needs a value"),
        ("run", ["a", "--json=yes"], "option --json takes no value"),
        ("run", ["a", "--timeout", "soon"], "invalid --timeout: 'soon' (use a duration such as 90, 90s, 10m or 2h)"),
        ("run", ["a", "--on-question", "maybe"], "invalid --on-question: 'maybe' (choose deny, ask, fail)"),
        ("run", ["a", "--budget", "much"], "invalid --budget: 'much' (use an amount in USD such as 5 or 0.50)"),
        ("logs", ["1", "-n", "0"], "invalid --lines: '0' (use a whole number from 1)"),
        ("serve", ["--port", "99999"], "invalid --port: '99999' (use a port from 0 to 65535)"),
        ("completion", ["tcsh"], "invalid shell: 'tcsh' (choose bash, zsh, fish)"),
        ("show", [], "missing argument: RUN"),
        ("show", ["1", "2"], "unexpected argument: '2'"),
    ],
)
def test_wrong_usage_is_explained(name: str, words: list[str], message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        parse(ALL[name], words)
    assert raised.value.message == message


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["a", "-qh"], ["--timeout", "1", "--help", "--nope"]])
def test_help_comes_before_later_mistakes(words: list[str]) -> None:
    with pytest.raises(HelpRequested):
        parse(ALL["run"], words)


@given(st.sampled_from(sorted(ALL)), st.lists(st.text(max_size=4) | st.sampled_from(["--", "-", "-p", "--json", "->"])))
def test_any_words_are_read_or_refused(name: str, words: list[str]) -> None:
    try:
        values = parse(ALL[name], words)
    except (ArgumentError, HelpRequested):
        return
    command = ALL[name]
    declared = {option.name for option in command.options} | {argument.name for argument in command.arguments}
    assert set(values) - {"passed"} == declared


@pytest.mark.parametrize("name", sorted(ALL))
def test_help_shows_every_option_within_its_width(name: str) -> None:
    text = help_text(f"hocket {name}", ALL[name], 80)
    assert all(flag in text for option in ALL[name].options for flag in option.names)
    assert all(
        option.help.endswith(".") and (option.kind == FLAG or option.metavar or isinstance(option.kind, tuple))
        for option in ALL[name].options
    )
    prose = text.partition("Options:")[2].partition("Example:")[0]
    assert max(map(len, prose.splitlines())) <= 80


# --- From outside -------------------------------------------------------------------------------------------

HEAVY = {"asyncio", "dataclasses", "gettext", "http.client", "inspect", "msgspec", "rich", "sqlite3", "ssl"}
HEAVY |= {"hocket.chain.parse", "hocket.model"}


def imported_by(*words: str) -> tuple[int, set[str]]:
    """The exit code of a command, and all modules that its process has imported."""
    command = [sys.executable, "-X", "importtime", "-m", "hocket", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done.returncode, {line.rpartition("|")[2].strip() for line in lines}


def test_version_loads_no_client(home: Path) -> None:
    _, modules = imported_by("--version")
    assert not {"json", "socket", "hocket.client", *HEAVY} & modules


def test_everyday_commands_load_nothing_heavy(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "print('done')")
    (hocket.cwd / "hocket.toml").write_text("")
    hocket("run", "quick")  # starts the server, which may import anything
    everyday = ("run quick", "spawn quick", "ps -a", "show 1", "logs 1", "stop 1", "wait 1")
    of_tasks = ("handoff quick x", "task show 1", "task list --json", "task board")
    for words in map(str.split, (*everyday, *of_tasks)):
        code, modules = imported_by(*words)
        assert (code, "hocket.cli.usage" in modules) == (0, True), words
        assert HEAVY & modules == set(), words


@pytest.mark.parametrize("words", [["ps", "-a", "--json"], ["run", "--json", "quick"]])
def test_closed_output_ends_a_command_quietly(hocket: Hocket, agent: Bin, words: list[str]) -> None:
    agent("quick", "print('done')")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hocket", *words],
            cwd=hocket.cwd, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
