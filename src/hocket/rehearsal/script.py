"""Parse a script. Every error names the file, the rule and the key.

``docs/reference/rehearsal.md`` describes the format; ``matching.py`` applies the steps.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from hocket.errors import UsageError
from hocket.rehearsal.steps import (
    AGENT_TOOL,
    DEFAULT_TYPE,
    Call,
    Calls,
    Echo,
    End,
    Fail,
    Marker,
    Pattern,
    Rule,
    Say,
    Script,
    Spend,
    Step,
    Think,
    Wait,
    When,
)

VERSION = 1
LONGEST_WAIT = 3600
MOST = 10**9

Parser = Callable[[Any, str], Any]
"""Checks a value and returns what it stands for. The second argument is its place, for errors."""


class ScriptError(UsageError):
    """An invalid script, with the place of the error."""

    code = "script"


def load(path: str | os.PathLike[str]) -> Script:
    """The script in a file, YAML or JSON."""
    return parse(read_document(path), str(path))


def read_document(path: str | os.PathLike[str]) -> Any:
    """Decode a YAML or JSON file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ScriptError(f"{path}: cannot be read: {why}") from error
    if str(path).endswith(".json"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ScriptError(f"{path}: invalid JSON: {error}") from error
    import yaml  # the scripted agent reads JSON and runs without site packages

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # The parser names its input by its type.
        reason = str(error).replace(' in "<unicode string>",', "")
        raise ScriptError(f"{path}: invalid YAML: {reason}") from error


def parse(document: Any, source: str = "script") -> Script:
    """Parse a decoded document. ``source`` names it in errors."""
    # Before the rules, of which another version may have others.
    if isinstance(document, dict) and document.get("version", VERSION) != VERSION:
        raise ScriptError(f"{source}: unknown version {document['version']!r}", f"use version {VERSION}")
    given = _fields(document, source, _SCRIPT, "rules")
    given.pop("version", None)
    return Script(**given)


# --- Values -------------------------------------------------------------------------------------------------


def _fields(value: Any, place: str, known: Mapping[str, Parser], *required: str) -> dict[str, Any]:
    """Parse the values of a mapping, each by the parser of its key."""
    if not isinstance(value, dict):
        raise ScriptError(f"{place}: must be keys and values; got {_kind(value)}", f"its keys: {', '.join(known)}")
    for key in value:
        if key not in known:
            raise ScriptError(f"{place}: unknown key {key!r}{_suggest(str(key), known)}")
    for key in required:
        if key not in value:
            raise ScriptError(f"{place}: {key!r} is missing")
    return {key: known[key](one, f"{place}: {key}") for key, one in value.items()}


def _list_of(parse_one: Parser, name: str = "", least: int = 0) -> Parser:
    """A parser of lists. ``name`` is what errors call an entry."""

    def parse_list(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ScriptError(f"{place}: must be a list; got {_kind(value)}")
        if len(value) < least:
            raise ScriptError(f"{place}: must have at least one {name}")
        return tuple(parse_one(one, f"{place}: {name} {n}" if name else place) for n, one in enumerate(value, 1))

    return parse_list


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ScriptError(f"{place}: must be a text; got {_kind(value)}", "put it in quotes")
    return value


def _flag(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise ScriptError(f"{place}: must be true or false; got {_kind(value)}")
    return value


def _number(least: int, most: int, kind: type[int] | type[float] = int) -> Parser:
    def parse_number(value: Any, place: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | kind) or not least <= value <= most:
            wanted = "a whole number" if kind is int else "a number"
            raise ScriptError(f"{place}: must be {wanted} from {least} to {most}; got {value!r}")
        return kind(value)

    return parse_number


def _pattern(value: Any, place: str) -> Pattern:
    text = _text(value, place)
    if not is_regex(text):
        return Pattern(text)
    try:
        return Pattern(text, re.compile(text[1:-1], re.DOTALL))
    except re.error as error:
        raise ScriptError(f"{place}: {text} is not a regular expression: {error}") from error


def is_regex(text: str) -> bool:
    return len(text) >= 2 and text[0] == "/" and text[-1] == "/"


def _input(value: Any, place: str) -> dict[str, Any]:
    """The input of a tool, which must be JSON."""
    if not isinstance(value, dict):
        raise ScriptError(f"{place}: must be keys and values; got {_kind(value)}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ScriptError(f"{place}: {error}", "put dates and the like in quotes") from error
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    return "a list" if isinstance(value, list) else repr(value)


def _suggest(word: str, known: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


# --- Rules --------------------------------------------------------------------------------------------------


def _rule(value: Any, place: str) -> Rule:
    given = _fields(value, place, {"when": _when, "do": _steps}, "do")
    return Rule(given.get("when", When()), given["do"])


def _when(value: Any, place: str) -> When:
    given = _fields(value or {}, place, _WHEN)
    if "pass" in given:
        given["passage"] = given.pop("pass")
    return When(**given)


def _woken(value: Any, place: str) -> int | None:
    if isinstance(value, bool):
        return 0 if value else None
    return int(_number(1, MOST)(value, place))


# --- Steps --------------------------------------------------------------------------------------------------


def _steps(value: Any, place: str) -> tuple[Step, ...]:
    steps: tuple[Step, ...] = _list_of(_step, "step", least=1)(value, place)
    _check_failures(steps, place)
    return steps


def _check_failures(steps: tuple[Step, ...], place: str) -> None:
    """Reject failures after a thought alone: the CLI then repeats the request without it."""
    thought = spoken = False
    for number, step in enumerate(steps, 1):
        if isinstance(step, Fail) and step.status is not None and thought and not spoken:
            raise ScriptError(
                f"{place}: step {number}: an API failure cannot follow a thought alone",
                "put it first, right after a tool call, or after a text",
            )
        if step == End("break") and not spoken:
            raise ScriptError(f"{place}: step {number}: break must follow a text", "add a say step before it")
        ends = isinstance(step, Calls | Fail | End)
        spoken = not ends and (spoken or isinstance(step, Say | Echo | Marker))
        thought = not ends and (thought or isinstance(step, Think))


def _step(value: Any, place: str) -> Step:
    if isinstance(value, str):
        if value in _STEPS:
            raise ScriptError(f"{place}: {value} needs a value", f"write it as {value}: …")
        if value not in _BARE:
            raise ScriptError(f"{place}: unknown step {value!r}{_suggest(value, {**_BARE, **_STEPS})}")
        return _BARE[value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ScriptError(f"{place}: a step is one key with its value, or one of {', '.join(_BARE)}")
    ((key, body),) = value.items()
    if key in _BARE:
        raise ScriptError(f"{place}: {key} takes no value", f"write it as - {key}")
    if key not in _STEPS:
        raise ScriptError(f"{place}: unknown key {key!r}{_suggest(str(key), {**_STEPS, **_BARE})}")
    step: Step | Call = _STEPS[key](body, f"{place}, {key}")
    return Calls((step,)) if isinstance(step, Call) else step


def _tool(value: Any, place: str) -> Call:
    given = _fields(value, place, _TOOL, "name")
    if "input" in given and "echo" in given:
        raise ScriptError(f"{place}: must have either an input or an echo")
    echo = given.pop("echo", None)
    return Call(**{"input": echo or {}, **given}, echoes=echo is not None)


def _ask(value: Any, place: str) -> Call:
    given = _fields(value, place, _ASK, "tool")
    return Call(given.pop("tool"), given.pop("input", {}), asks=True, **given)


def _agent(value: Any, place: str) -> Call:
    given = _fields(value, place, _AGENT, "prompt")
    kind = given.get("type", DEFAULT_TYPE)
    named = {"name": given["name"]} if "name" in given else {}
    return Call(
        AGENT_TOOL,
        {
            **named,
            "description": given.get("description", kind),
            "prompt": given["prompt"],
            "subagent_type": kind,
            "run_in_background": given.get("background", False),
        },
    )


def _one_of_several(item: Any, place: str) -> Call:
    """A call among several: a tool, or one of the other steps that call a tool."""
    if not (isinstance(item, dict) and len(item) == 1 and (key := next(iter(item))) in ("tool", "ask", "agent")):
        return _tool(item, place)
    call: Call = _STEPS[key](item[key], f"{place}, {key}")
    if call.allowed is not None or call.denied is not None:
        raise ScriptError(f"{place}: 'allowed' and 'denied' are not supported for several tools")
    return call


def _fail(value: Any, place: str) -> Fail:
    given = _fields(value, place, {"status": _number(400, 599), "message": _text, "exit": _number(0, 255)})
    if ("status" in given) == ("exit" in given):
        raise ScriptError(f"{place}: must have either a status or an exit code")
    return Fail(**given)


def _wait(value: Any, place: str) -> Wait:
    if isinstance(value, dict):
        return Wait(**_fields(value, place, {"file": _text}, "file"))
    return Wait(_number(0, LONGEST_WAIT, float)(value, place))


_SCRIPT: Mapping[str, Parser] = {
    "version": lambda value, place: value,
    "rules": _list_of(_rule, "rule"),
    "default": lambda value, place: None if value == "fail" else _steps(value, place),
    "marker": _text,
}
_WHEN: Mapping[str, Parser] = {
    "agent": _text,
    "prompt": _pattern,
    "system": _pattern,
    "last": _pattern,
    "tools": _list_of(_text),
    "turn": _number(1, MOST),
    "pass": _number(1, MOST),
    "woken": _woken,
}
_OUTCOME: Mapping[str, Parser] = {"input": _input, "result": _text, "error": _flag}
_TOOL: Mapping[str, Parser] = {"name": _text, **_OUTCOME, "echo": _input}
_ASK: Mapping[str, Parser] = {
    "tool": _text,
    **_OUTCOME,
    "allowed": _steps,
    "denied": _steps,
    "rule": _text,
    "id": _text,
}
_AGENT: Mapping[str, Parser] = {
    "prompt": _text,
    "name": _text,
    "type": _text,
    "description": _text,
    "background": _flag,
}
_STEPS: Mapping[str, Parser] = {
    "say": lambda value, place: Say(_text(value, place)),
    "echo": lambda value, place: Echo(_text(value, place)),
    "think": lambda value, place: Think(_text(value, place)),
    "wait": _wait,
    "cost": lambda value, place: Spend(cost=_number(0, 10**6, float)(value, place)),
    "usage": lambda value, place: Spend(
        **_fields(value, place, {"input": _number(0, MOST), "output": _number(0, MOST)})
    ),
    "tools": lambda value, place: Calls(_list_of(_one_of_several, "tool", least=1)(value, place)),
    "fail": _fail,
    "tool": _tool,
    "ask": _ask,
    "agent": _agent,
}
_BARE: Mapping[str, Step] = {
    "marker": Marker(),
    "refuse": End("refuse"),
    "break": End("break"),
    "hang": End("hang"),
    "crash": End("crash"),
}
