"""The command line of a scripted agent: the options of the real program, with the real program's error messages.

Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.rehearsal.stream_events import camel

MODES = tuple(map(camel, ("accept_edits", "auto", "bypass_permissions", "manual", "dont_ask", "plan", "default")))
BYPASS = camel("bypass_permissions")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

SWITCHES = frozenset(
    [
        "--print",
        "--verbose",
        "--include-partial-messages",
        "--fork-session",
        "--strict-mcp-config",
        "--version",
        "--bare",
        "--dangerously-skip-permissions",
        "--forward-subagent-text",
        "--replay-user-messages",
        "--no-session-persistence",
    ]
)
VALUES = frozenset(
    [
        "--input-format",
        "--output-format",
        "--session-id",
        "--resume",
        "--agents",
        "--agent",
        "--permission-mode",
        "--permission-prompts",
        "--permission-prompt-tool",
        "--max-turns",
        "--max-budget-usd",
        "--model",
        "--fallback-model",
        "--append-system-prompt",
        "--system-prompt",
        "--setting-sources",
        "--settings",
        "--effort",
        "--thinking",
    ]
)
LISTS = frozenset(["--tools", "--allowedTools", "--disallowedTools", "--mcp-config", "--add-dir"])
"""These take every argument that follows, up to the next option."""
SHORT = {"-p": "--print", "-r": "--resume", "-v": "--version"}
SAME = {"--allowed-tools": "--allowedTools", "--disallowed-tools": "--disallowedTools"}
CHOICES = {
    "--permission-mode": MODES,
    "--permission-prompts": ("host", "none"),
}


class Refusal(Exception):
    """The command line is not accepted; the text goes to standard error and the exit code is 1."""


class Flags(NamedTuple):
    switches: frozenset[str]
    values: dict[str, str]
    lists: dict[str, list[str]]

    @property
    def partial(self) -> bool:
        return "--include-partial-messages" in self.switches

    @property
    def mode(self) -> str:
        if "--dangerously-skip-permissions" in self.switches:
            return BYPASS
        return self.values.get("--permission-mode", "default")

    @property
    def asks_host(self) -> bool:
        return self.values.get("--permission-prompts") == "host" or "--permission-prompt-tool" in self.values

    def tools(self, option: str) -> list[str] | None:
        given = self.lists.get(option)
        return None if given is None else [tool for text in given for tool in split_tools(text)]

    def number(self, option: str) -> float | None:
        return float(self.values[option]) if option in self.values else None


def parse(arguments: Sequence[str]) -> Flags:
    """Parse arguments. Raises ``Refusal`` where the real program would not start."""
    flags = _read(list(arguments))
    if "--version" not in flags.switches:
        _check(flags)
    return flags


def _read(arguments: list[str]) -> Flags:
    switches, values, lists = set[str](), dict[str, str](), dict[str, list[str]]()
    while arguments:
        word = arguments.pop(0)
        if word == "--":
            break
        name, given = _option(word)
        if name is None:
            continue  # a prompt, which the real program ignores where it reads lines
        if name in SWITCHES:
            switches.add(name)
        elif name in VALUES:
            values[name] = _value(name, given, arguments)
        elif name in LISTS:
            lists.setdefault(name, []).extend(_all(given, arguments))
        else:
            raise Refusal(f"error: unknown option '{word}'")
    return Flags(frozenset(switches), values, lists)


def _option(word: str) -> tuple[str | None, str | None]:
    """Name and value of ``--name=value``; no name for a word that is not an option."""
    if not word.startswith("-") or word == "-":
        return None, None
    name, equals, value = word.partition("=")
    name = SHORT.get(name, SAME.get(name, name))
    return name, value if equals else None


def _value(name: str, given: str | None, arguments: list[str]) -> str:
    if given is not None:
        return given
    if not arguments:
        raise Refusal(f"error: option '{name} <value>' argument missing")
    return arguments.pop(0)


def _all(given: str | None, arguments: list[str]) -> list[str]:
    found = [] if given is None else [given]
    while arguments and (not arguments[0].startswith("-") or arguments[0] == "-"):
        found.append(arguments.pop(0))
    return found


def _check(flags: Flags) -> None:
    for option, choices in CHOICES.items():
        value = flags.values.get(option)
        if value is not None and value not in choices:
            wanted = ", ".join(choices)
            raise Refusal(f"error: option '{option}' argument '{value}' is invalid. Allowed choices are {wanted}.")
    for option in ("--max-turns", "--max-budget-usd"):
        _check_number(flags, option)
    _check_session(flags)
    formats = (flags.values.get("--input-format"), flags.values.get("--output-format"))
    if formats != ("stream-json", "stream-json") or "--verbose" not in flags.switches:
        raise Refusal("Error: a scripted agent needs --verbose, and stream-json as input and output format")


def _check_number(flags: Flags, option: str) -> None:
    try:
        flags.number(option)
    except ValueError:
        raise Refusal(
            f"error: option '{option}' argument '{flags.values[option]}' is invalid. must be a number"
        ) from None


def _check_session(flags: Flags) -> None:
    session = flags.values.get("--session-id")
    if session is None:
        return
    if not UUID.fullmatch(session):
        raise Refusal("Error: Invalid session ID. Must be a valid UUID.")
    if "--resume" in flags.values and "--fork-session" not in flags.switches:
        raise Refusal("Error: --session-id together with --resume needs --fork-session too.")


def split_tools(text: str) -> list[str]:
    """Split a list of tools at commas and spaces outside parentheses."""
    found, current, depth = [], "", 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth <= 0 and letter in ", \t\n":
            found.append(current)
            current = ""
        else:
            current += letter
    return [tool for tool in [*found, current] if tool]


def definitions(flags: Flags) -> dict[str, dict[str, Any]]:
    """The definitions of ``--agents``: JSON, or the name of a JSON file."""
    given = flags.values.get("--agents")
    if given is None:
        return {}
    text = given if given.lstrip().startswith("{") else _file(given)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Refusal(f"Error: Invalid --agents configuration:\ninvalid JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(fields, dict) for fields in found.values()):
        raise Refusal("Error: Invalid --agents configuration:\nnames and definitions are wanted")
    return found


def _file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        raise Refusal(f"Error: --agents file not found: {path}") from None
