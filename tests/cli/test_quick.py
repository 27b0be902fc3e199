"""A plain usage means the same to the quick reader and to the framework; anything else is left to the latter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import Bin, Hocket

from hocket.cli.commands import load
from hocket.cli.usage import COMMANDS, FLAG, SECONDS, Command, Group, declared, read


def every_command() -> Iterator[tuple[str, Command]]:
    """Those of groups too, by both of their names."""
    for name, (target, _) in COMMANDS.items():
        found = declared(target)
        below = found.commands if isinstance(found, Group) else {}
        yield from [(name, found)] if isinstance(found, Command) else []
        yield from ((f"{name} {word}", one) for word, one in below.items())


QUICK = dict(every_command())
WORDS = st.sampled_from(
    [
        "a",
        "a:3",
        "->",
        "->b",
        "-",
        "--",
        "",
        "x=1",
        "-x",
        "--nope",
        "--js",
        "12",
        "90s",
        "2026-03-01",
        "1m",
        "ask",
        "never",
        "-p",
        "ä",
        "- a",
        "--b c=d",
        "pending",
    ]
)


def by_the_framework(name: str, words: list[str]) -> dict[str, Any] | None:
    """What the framework makes of the words; None where it complains or shows its help."""
    first, _, second = name.partition(" ")
    command = load(COMMANDS[first][0])
    command = command.commands[second] if isinstance(command, click.Group) else command
    try:
        return command.make_context(name, list(words)).params
    except (click.ClickException, click.exceptions.Exit):
        return None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run", ["a -> b:3", "-p", "do it"]),
        ("run", ["a", "->", "b", "--json", "--timeout=2m"]),
        ("run", ["a", "--prompt=", "--", "-x", "--", "y"]),
        ("run", ["X=1", "--chain", "ship", "-q", "--on-question", "ask"]),
        ("run", ["-p", "-", "a"]),
        ("spawn", ["a", "--session", "-p", "x"]),
        ("ps", ["-a", "--json"]),
        ("ps", ["--status", "failed", "--agent", "a", "--project", ".", "--since", "2h", "--limit=5"]),
        ("ps", ["--since", "2026-03-01T14:30"]),
        ("logs", ["-f", "-n", "20", "42"]),
        ("logs", ["42", "--lines=3", "--raw"]),
        ("show", ["42", "--full"]),
        ("wait", ["12", "--timeout", "90"]),
        ("send", ["12", "two", "words", "--wait"]),
        ("answer", ["12", "allow", "-m", "fine"]),
        ("stop", ["1", "2"]),
        ("stop", ["--", "1", "--json"]),
        ("handoff", ["7", "qa", "- one\n- two", "--timeout", "5"]),
        ("handoff", ["qa", "--- a/x\n+++ b=c", "--json"]),
        ("handoff", ["--", "qa", "--json"]),
        ("task new", ["two", "words", "--cwd=a b"]),
        ("task plan", ["7", "--requirement", "a", "--requirement", "b", "--summary", "c"]),
        ("task plan", ["7"]),
        ("task status", ["7", "failed", "-m", "no"]),
        ("task queue", ["7", "--next"]),
    ],
)
def test_a_plain_usage_is_read(name: str, words: list[str]) -> None:
    values = read(QUICK[name], words)
    assert values is not None
    assert values == by_the_framework(name, words)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"], ["-h"], ["a", "--nope"], ["a", "-p"], ["a", "--timeout", "soon"], ["a", "--json", "--json"],
        ["a", "--js"], ["a", "--json=yes"], ["a", "-pdo it"], ["a", "-qv"], ["a", "--on-question", "maybe"],
        ["a", "-p", "--json"], ["a", ""],
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_framework(words: list[str]) -> None:
    assert read(QUICK["run"], words) is None


@given(st.data())
def test_what_is_read_quickly_means_the_same_to_the_framework(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(QUICK)))
    names = [flag for option in QUICK[name].options for flag in option.names]
    flags = [written for flag in names for written in (flag, f"{flag}=a", f"{flag}=", f"{flag}x", flag[:-1])]
    words = data.draw(st.lists(st.one_of(WORDS, st.sampled_from(flags)) if flags else WORDS, max_size=6))
    values = read(QUICK[name], words)
    if values is not None:
        assert values == by_the_framework(name, words)


@pytest.mark.parametrize("name", sorted(QUICK))
def test_every_option_alone_is_read_quickly_or_not_at_all(name: str) -> None:
    command = QUICK[name]
    needed = ["1" for argument in command.arguments if argument.required]
    for option in command.options:
        kind = option.kind
        value = [] if kind == FLAG else ["5"] if kind == SECONDS else [kind[0]] if isinstance(kind, tuple) else ["x"]
        words = [*needed, option.names[-1], *value]
        assert read(command, words) in (None, by_the_framework(name, words))


# --- From outside -------------------------------------------------------------------------------------------

UNWANTED = ("click", "dataclasses", "inspect", "gettext", "rich", "asyncio", "msgspec")


OF_SOME_RUNS = ("hocket.cli.asking", "hocket.cli.trees", "hocket.errors", "hocket.presence", "hocket.written")
"""Questions, worktrees, errors, a server that is not there, letters beyond ASCII: most runs have none of them."""


def imported_by(*words: str) -> tuple[int, set[str]]:
    """How a command ended, and all that its process has imported."""
    command = [sys.executable, "-X", "importtime", "-m", "hocket", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=15)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done.returncode, {line.rpartition("|")[2].strip() for line in lines}


def test_with_a_server_there_nothing_is_imported_that_is_not_needed(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "print('done')")
    hocket("run", "quick")  # starting a server may cost what it likes
    everyday = ("run quick", "run quick --json", "spawn quick", "ps -a", "wait 1")
    of_tasks = ("handoff quick x", "task show 1", "task list --json", "task board")
    for words in map(str.split, (*everyday, *of_tasks)):
        code, modules = imported_by(*words)
        assert (code, "hocket.cli.usage" in modules) == (0, True)
        assert set(UNWANTED) & modules == set()
        if words[0] == "run":
            assert set(OF_SOME_RUNS) & modules == set()


def test_help_is_the_frameworks() -> None:
    assert "click" in imported_by("run", "--help")[1]


@pytest.mark.parametrize("words", [["ps", "-a", "--json"], ["run", "--dry-run", "quick"], ["run", "--json", "quick"]])
def test_a_reader_that_has_gone_ends_it_quietly(hocket: Hocket, agent: Bin, words: list[str]) -> None:
    agent("quick", "print('done')")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hocket", *words],
            cwd=hocket.cwd, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=15,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_shell_that_completes_starts_nothing(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "open('ran', 'w')")
    program = "import sys; from hocket.cli import main; sys.argv[:1] = ['hocket']; sys.exit(main(['run', 'quick']))"
    env = {"_HOCKET_COMPLETE": "bash_complete", "COMP_WORDS": "hocket ru", "COMP_CWORD": "1"}
    done = hocket(env=env, command=[sys.executable, "-c", program])
    assert done.stdout == "plain,run\n"
    assert not (hocket.cwd / "ran").exists()
