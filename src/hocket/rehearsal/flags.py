"""The command line of a scripted agent: the options of the real program, with the real program's error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

MODES = ("acceptEdits", "auto", "bypassPermissions", "manual", "dontAsk", "plan", "default")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
TOOL = re.compile(r"(?:\((?:[^()]|\([^()]*\))*\)|[^,\s])+")
"""One of several tools, which are separated by commas and spaces outside parentheses."""

SWITCHES = frozenset([
    "--print", "--verbose", "--include-partial-messages", "--fork-session", "--strict-mcp-config", "--version",
    "--bare", "--dangerously-skip-permissions", "--forward-subagent-text", "--replay-user-messages",
    "--no-session-persistence",
])  # fmt: skip
VALUES = frozenset([
    "--input-format", "--output-format", "--session-id", "--resume", "--agents", "--agent", "--permission-mode",
    "--permission-prompts", "--permission-prompt-tool", "--max-turns", "--max-budget-usd", "--model",
    "--fallback-model", "--append-system-prompt", "--system-prompt", "--setting-sources", "--settings", "--effort",
    "--thinking",
])  # fmt: skip
LISTS = frozenset(["--tools", "--allowedTools", "--disallowedTools", "--mcp-config", "--add-dir"])
"""These take every argument that follows, up to the next option."""
ALIASES = {
    "-p": "--print",
    "-r": "--resume",
    "-v": "--version",
    "--allowed-tools": "--allowedTools",
    "--disallowed-tools": "--disallowedTools",
}
CHOICES = {"--permission-mode": MODES, "--permission-prompts": ("host", "none")}


class Refusal(Exception):
    """The command line is not accepted; the text goes to standard error and the exit code is 1."""


class Flags(NamedTuple):
    switches: frozenset[str]
    values: dict[str, str]
    lists: dict[str, list[str]]

    @property
    def mode(self) -> str:
        if "--dangerously-skip-permissions" in self.switches:
            return "bypassPermissions"
        return self.values.get("--permission-mode", "default")

    @property
    def asks_host(self) -> bool:
        return self.values.get("--permission-prompts") == "host" or "--permission-prompt-tool" in self.values

    def tools(self, option: str) -> list[str] | None:
        given = self.lists.get(option)
        return None if given is None else [tool for text in given for tool in TOOL.findall(text)]

    def number(self, option: str) -> float | None:
        return float(self.values[option]) if option in self.values else None


def parse(arguments: Sequence[str]) -> Flags:
    """Parse arguments. Raises ``Refusal`` where the real program would not start."""
    remaining = list(arguments)
    switches, values, lists = set[str](), dict[str, str](), dict[str, list[str]]()
    while remaining and (word := remaining.pop(0)) != "--":
        if not word.startswith("-") or word == "-":
            continue  # a prompt, which the real program ignores where it reads lines
        name, equals, value = word.partition("=")
        name = ALIASES.get(name, name)
        if name in SWITCHES:
            switches.add(name)
        elif name in VALUES:
            if not equals and not remaining:
                raise Refusal(f"error: option '{name} <value>' argument missing")
            values[name] = value if equals else remaining.pop(0)
        elif name in LISTS:
            found = lists.setdefault(name, [])
            if equals:
                found.append(value)
            while remaining and (not remaining[0].startswith("-") or remaining[0] == "-"):
                found.append(remaining.pop(0))
        else:
            raise Refusal(f"error: unknown option '{word}'")
    flags = Flags(frozenset(switches), values, lists)
    if "--version" not in switches:
        _check(flags)
    return flags


def _check(flags: Flags) -> None:
    for option, choices in CHOICES.items():
        value = flags.values.get(option)
        if value is not None and value not in choices:
            allowed = ", ".join(choices)
            raise Refusal(f"error: option '{option}' argument '{value}' is invalid. Allowed choices are {allowed}.")
    for option in ("--max-turns", "--max-budget-usd"):
        try:
            flags.number(option)
        except ValueError:
            value = flags.values[option]
            raise Refusal(f"error: option '{option}' argument '{value}' is invalid. must be a number") from None
    session = flags.values.get("--session-id")
    if session is not None and not UUID.fullmatch(session):
        raise Refusal("Error: Invalid session ID. Must be a valid UUID.")
    if session is not None and "--resume" in flags.values and "--fork-session" not in flags.switches:
        raise Refusal("Error: --session-id together with --resume needs --fork-session too.")
    formats = (flags.values.get("--input-format"), flags.values.get("--output-format"))
    if formats != ("stream-json", "stream-json") or "--verbose" not in flags.switches:
        raise Refusal("Error: a scripted agent needs --verbose, and stream-json as input and output format")


def definitions(flags: Flags) -> dict[str, dict[str, Any]]:
    """The definitions of ``--agents``: JSON, or the name of a JSON file."""
    given = text = flags.values.get("--agents", "{}")
    if not given.lstrip().startswith("{"):
        try:
            with open(given, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            raise Refusal(f"Error: --agents file not found: {given}") from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Refusal(f"Error: Invalid --agents configuration:\ninvalid JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(fields, dict) for fields in found.values()):
        raise Refusal("Error: Invalid --agents configuration:\nnames and definitions are wanted")
    return found
