"""Random chains and configurations: each is read, or refused with our own error and its place.

Chance is seeded, so that a text that fails once fails again; the message of a failure shows the text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hocket.catalog.discovery import discover
from hocket.chain.parse import parse, render
from hocket.config import ConfigFile, schema
from hocket.config.settings import Config
from hocket.errors import ChainSyntaxError, ConfigError, HocketError
from hocket.input_limits import MAX_ITERATIONS, MAX_STEPS
from hocket.workflows.bind import bind
from hocket.workflows.request import StartRequest

SOME = 3_000
ALL = 20_000

# --- Texts of chains ----------------------------------------------------------------------------------------

GOOD = [
    "planner:3 -> builder:10",
    "(reviewer, qa:3) -> builder",
    "/opt/v1:2/tool:4 -> ../up/.claude/agents/x.md:2",
    "~/bin/my tool -> (./a b:2, c, d:1) -> e",
]
WORDS = [
    *("a", "b", "planner", "a-b_c", "007", "./x", "../up/y", "~/z", "/opt/v1:2/t", "/p/.claude/agents/rev.md"),
    *("->", "->", "-", ">", "- >", "(", ")", ",", ":", ":3", ":0", ":-1", ":1.5", ":x", ":99999999999999999999"),
    *(" ", "  ", "\t", "\n", "\r\n", "\0", "\x1b", "\x7f", "\u2028", "\u00e9", "\u0663", "\uff0f", "\ud800"),
    *("'", '"', "\\", "$", "${X}", "{{task}}", "=", "*", "`", "--flag", "%s", "{0}"),
]
ODD_CHARACTERS = [
    "",
    "\0",
    "\n",
    "\u202e",
    "\U0001f600",
    "\udcff",
    "(",
    ")",
    ",",
    "->",
    ":",
    "[",
    "]",
    "{",
    "}",
    '"',
    "=",
]


def edited(dice: random.Random, text: str, times: int) -> str:
    """A text after so many slips of the hand: something left out, doubled, moved or put in."""
    for _ in range(times):
        at, to = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        to = min(to, at + 12)
        pieces = [text[:at], text[at:to], text[to:]]
        text = "".join(
            dice.choice(
                [
                    [pieces[0], pieces[2]],
                    [pieces[0], pieces[1], pieces[1], pieces[2]],
                    [pieces[2], pieces[1], pieces[0]],
                    [pieces[0], dice.choice(ODD_CHARACTERS), pieces[1], pieces[2]],
                ]
            )
        )
    return text


def some_chain(dice: random.Random) -> str:
    if dice.random() < 0.5:
        return "".join(dice.choice(WORDS) for _ in range(dice.randrange(14)))
    if dice.random() < 0.02:
        return dice.choice(["->", "(", "a,", "(a,", "a->", ":1"]) * dice.choice([MAX_STEPS, MAX_STEPS + 1, 5000])
    return edited(dice, dice.choice(GOOD), dice.randrange(1, 5))


def check_chain(text: str) -> bool:
    """Whether it could be read; it fails for any error but the one that names the step."""
    try:
        steps = parse(text)
    except ChainSyntaxError as error:
        check_step(text, error)
        return False
    assert 1 <= len(steps) <= MAX_STEPS
    assert all(1 <= step.iterations <= MAX_ITERATIONS and step.agent for step in steps), text
    assert [step.position for step in steps] == sorted(step.position for step in steps)
    assert parse(render(steps)) == steps, text
    return True


def check_step(text: str, error: ChainSyntaxError) -> None:
    assert re.match(r"(the chain is empty: )?step \d+(, member \d+)?\b", error.message), (text, error.message)


def read_and_refused(texts: Iterator[Any], check: Callable[[Any], bool]) -> tuple[int, int]:
    outcomes = [check(text) for text in texts]
    return outcomes.count(True), outcomes.count(False)


@pytest.mark.req("S1-B03", "S1-B04")
def test_any_chain_text_is_parsed_or_refused() -> None:
    dice = random.Random(5)
    read, refused = read_and_refused((some_chain(dice) for _ in range(ALL)), check_chain)
    assert min(read, refused) > ALL // 20, "the texts are too much alike to prove anything"


# --- Configurations -----------------------------------------------------------------------------------------

SAMPLE: dict[str, Any] = {
    "agents": {
        "reviewer": {"path": "/p/.claude/agents/reviewer", "args": ["-v"], "defaultPrompt": "Review ${WHAT}"},
        "tool": {"promptVia": "stdin", "model": "m"},
    },
    "projects": {"docs": "../docs"},
    "chains": {
        "work": {
            "description": "All of it",
            "prompt": "Do {{task}}",
            "until": "make test",
            "timeout": 60,
            "steps": [
                {"agent": "reviewer", "iterations": 2, "args": ["a"], "prompt": "x"},
                {"group": [{"agent": "tool", "iterations": 3}, {"agent": "./qa"}]},
                {"agent": "builder", "promptFile": "p.md"},
            ],
        }
    },
}
TOML = """
[agents.reviewer]
path = "/p/.claude/agents/reviewer"
args = ["-v"]
[chains.work]
description = "All of it"
until = "make test"
timeout = 60
steps = [
  { agent = "reviewer", iterations = 2 },
  { group = [{ agent = "tool", iterations = 3 }, { agent = "./qa" }] },
  { agent = "builder", prompt = "x" },
]
[run]
marker = "DONE"
"""
KEYS = [
    "agent",
    "agents",
    "chain",
    "chains",
    "steps",
    "step",
    "group",
    "iterations",
    "prompt",
    "until",
    "",
    "a\nb",
    "$schema",
]
VALUES: Sequence[Any] = [
    *(None, True, False, 0, 1, -1, 3, 1.5, 1e400, float("nan"), 10**30, "", " ", "x", "a b", "\0", "\ud800", "-x"),
    *([], [1], [None], ["x"], [[]], [{}], {}, {"a": 1}, {"agent": "x"}, {"group": []}, {"group": [{}]}),
    *({"group": [{"group": [{"agent": "x"}]}]}, {"steps": []}, {"steps": [{}]}, "x" * 5000, [["x"] * 50] * 3),
]


def changed(dice: random.Random, value: Any) -> Any:
    """The same value with something else somewhere in it."""
    if dice.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return dice.choice(VALUES)
    if isinstance(value, list):
        at = dice.randrange(len(value))
        return [*value[:at], changed(dice, value[at]), *value[at + 1 :]]
    key = dice.choice(list(value))
    how = dice.random()
    if how < 0.15:
        return {name: one for name, one in value.items() if name != key}
    if how < 0.3:
        return {**value, dice.choice(KEYS): dice.choice(VALUES)}
    if how < 0.4:
        return {(edited(dice, key, 1) if name == key else name): one for name, one in value.items()}
    return {**value, key: changed(dice, value[key])}


def some_configuration(dice: random.Random) -> tuple[ConfigFile, str]:
    place = ConfigFile("/p/forge/chains.json", dice.choice(["user", "project"]), True)
    how = dice.random()
    if how < 0.55:
        return place, json.dumps(changed(dice, SAMPLE))
    if how < 0.7:
        return place, edited(dice, json.dumps(SAMPLE, indent=1), dice.randrange(1, 4))
    place = ConfigFile("/p/hocket.toml", dice.choice(["user", "project"]), False)
    if how < 0.98:
        return place, edited(dice, TOML, dice.randrange(1, 4))
    depth = dice.choice([50, 990, 100_000])
    return place, dice.choice(["chains = " + "[" * depth, "[chains" + ".a" * min(depth, 5000) + "]", "a=" * depth])


def check_configuration(given: tuple[ConfigFile, str]) -> bool:
    place, text = given
    try:
        part = schema.parse(place, text, "/u")
    except ConfigError as error:
        check_place(place, text, error)
        return False
    for chain in part.chains.values():
        assert chain.steps
        assert all(step.agent.strip() for step in chain.steps)
        assert all(step.iterations is None or 1 <= step.iterations <= MAX_ITERATIONS for step in chain.steps)
    return True


def check_place(place: ConfigFile, text: str, error: ConfigError) -> None:
    """The file always; within a chain also the chain, and within its steps the step."""
    assert error.message.startswith((f"{place.path}: ", f"{place.path}, ")), (text, error.message)
    of_chain = re.match(r'.*?: chain "(.*?)"(, step \d+(, member \d+)?)?(, ".*?")?: ', error.message, re.DOTALL)
    assert of_chain or not error.message.startswith(f"{place.path}: chain "), (text, error.message)
    if re.search(r'has no "agent"|, "iterations": ', error.message) and of_chain:
        assert of_chain[2] or '"steps"' in error.message or "unknown key" in error.message, (text, error.message)


def check_many_configurations(count: int, seed: int) -> None:
    dice = random.Random(seed)
    read, refused = read_and_refused((some_configuration(dice) for _ in range(count)), check_configuration)
    assert min(read, refused) > count // 20, "the texts are too much alike to prove anything"


@pytest.mark.req("S1-B09", "S1-30")
def test_any_configuration_is_loaded_or_refused() -> None:
    check_many_configurations(SOME, 6)


@pytest.mark.slow
@pytest.mark.req("S1-B09", "S1-30")
def test_twenty_thousand_configurations_are_read_or_refused() -> None:
    check_many_configurations(ALL, 66)


# --- As far as a start --------------------------------------------------------------------------------------


def check_refusal(text: str, error: HocketError) -> None:
    assert error.exit_code == 2, (text, error)
    assert error.message, text


class BindingCheck:
    """A directory with two programs, where everything that can be found has been found already."""

    def __init__(self, root: Path) -> None:
        self._cwd = root / "project"
        self._cwd.mkdir()
        self._env = {"PATH": str(self._cwd), "HOME": str(root)}
        for name in ("a", "planner", "x"):
            (self._cwd / name).write_text("#!/bin/sh\n")
            (self._cwd / name).chmod(0o755)
        seen = discover(str(self._cwd), self._env, None, Config())
        self._sight = lambda: seen

    def binds(self, text: str) -> bool:
        try:
            bind(StartRequest(str(self._cwd), self._env, dsl=text, prompt="go"), Config(), self._sight)
        except HocketError as error:
            check_refusal(text, error)
            return False
        return True


def test_any_chain_text_is_bound_or_refused(tmp_path: Path) -> None:
    dice = random.Random(7)
    check = BindingCheck(tmp_path)
    names = ["a", "planner", "./x", "a:3", "b", "./none", "/p/.claude/agents/x/y", "..", "~", "./", "/", "~unknown/x"]

    def texts() -> Iterator[str]:
        for _ in range(SOME // 2):
            stages = [dice.sample(names, dice.choice([1, 1, 1, 2, 3])) for _ in range(dice.choice([1, 1, 2, 3]))]
            yield " -> ".join(f"({', '.join(stage)})" if len(stage) > 1 else stage[0] for stage in stages)
            yield some_chain(dice)

    read, refused = read_and_refused(texts(), check.binds)
    assert min(read, refused) > SOME // 20
