"""Parse a script. Every error names the file, the rule and the key.

    version: 1
    rules:                                    # the first that fits wins
      - when: {agent: planner, pass: 2}       # all optional: agent prompt system last tools turn pass woken
        do:
          - think: "…"
          - say: "…"
          - echo: "you said {prompt}"            # {last}: the prompt, or the results of tools
          - tool: {name: Bash, input: {command: make}, result: "ok"}
          - tools: [{name: Read, input: {file_path: a}}, {agent: {prompt: "…"}}]
          - ask: {tool: Bash, input: {command: rm x}, allowed: [steps], denied: [steps],
                  rule: "rm *", id: q1}
          - agent: {type: general-purpose, prompt: "…", background: true}
          - wait: 0.2                           # or {file: go}
          - cost: 0.02
          - usage: {input: 10, output: 20}
          - marker
          - fail: {status: 529, message: "…"}     # or {exit: 3}
          - refuse                                # or break, or hang, or crash
    default: fail                             # or a list of steps
    marker: DONE                              # if the agent is not given one

``matching.py`` applies the steps; ``docs/reference/rehearsal.md`` describes them for users.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
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
LONGEST_WAIT = 3600.0


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
    return _from_json(text, str(path)) if str(path).endswith(".json") else _from_yaml(text, str(path))


def _from_json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ScriptError(f"{source}: invalid JSON: {error}") from error


def _from_yaml(text: str, source: str) -> Any:
    import yaml  # the scripted agent reads JSON and does not need it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # The parser names its input by its type.
        reason = str(error).replace(' in "<unicode string>",', "")
        raise ScriptError(f"{source}: invalid YAML: {reason}") from error


def parse(document: Any, source: str = "script") -> Script:
    """Parse a decoded document. ``source`` names it in errors."""
    keys = _mapping(document, source, required=("rules",), optional=("version", "default", "marker"))
    if keys.get("version", VERSION) != VERSION:
        raise ScriptError(f"{source}: unknown version {keys['version']!r}", f"use version {VERSION}")
    rules = _list(keys["rules"], f"{source}: rules")
    return Script(
        tuple(_rule(rule, f"{source}: rule {number}") for number, rule in enumerate(rules, 1)),
        _default(keys.get("default", "fail"), f"{source}: default"),
        _text(keys["marker"], f"{source}: marker") if "marker" in keys else None,
    )


def _default(value: Any, place: str) -> tuple[Step, ...] | None:
    return None if value == "fail" else _steps(value, place)


def _rule(value: Any, place: str) -> Rule:
    keys = _mapping(value, place, required=("do",), optional=("when",))
    return Rule(_when(keys.get("when") or {}, f"{place}, when"), _steps(keys["do"], f"{place}, do"))


def _when(value: Any, place: str) -> When:
    keys = _mapping(value, place, optional=("agent", "prompt", "system", "last", "tools", "turn", "pass", "woken"))
    return When(
        agent=_text(keys["agent"], f"{place}: agent") if "agent" in keys else None,
        prompt=_pattern(keys, "prompt", place),
        system=_pattern(keys, "system", place),
        last=_pattern(keys, "last", place),
        tools=_names(keys["tools"], f"{place}: tools") if "tools" in keys else None,
        turn=_count(keys, "turn", place),
        passage=_count(keys, "pass", place),
        woken=_woken(keys, place),
    )


def _pattern(keys: Mapping[str, Any], key: str, place: str) -> Pattern | None:
    if key not in keys:
        return None
    text = _text(keys[key], f"{place}: {key}")
    if not is_regex(text):
        return Pattern(text)
    try:
        return Pattern(text, re.compile(text[1:-1], re.DOTALL))
    except re.error as error:
        raise ScriptError(f"{place}: {key}: {text} is not a regular expression: {error}") from error


def is_regex(text: str) -> bool:
    return len(text) >= 2 and text[0] == "/" and text[-1] == "/"


def _names(value: Any, place: str) -> tuple[str, ...]:
    return tuple(_text(name, place) for name in _list(value, place))


def _woken(keys: Mapping[str, Any], place: str) -> int | None:
    if keys.get("woken") is True:
        return 0
    return None if keys.get("woken") is False else _count(keys, "woken", place)


def _count(keys: Mapping[str, Any], key: str, place: str) -> int | None:
    if key not in keys:
        return None
    value = keys[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ScriptError(f"{place}: {key} must be a number from 1 on; got {value!r}")
    return value


# --- Steps --------------------------------------------------------------------------------------------------


def _steps(value: Any, place: str) -> tuple[Step, ...]:
    items = _list(value, place)
    if not items:
        raise ScriptError(f"{place}: must have at least one step")
    steps = tuple(_step(item, f"{place}: step {number}") for number, item in enumerate(items, 1))
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
            raise ScriptError(f"{place}: unknown step {value!r}{_suggest(value, [*_BARE, *_STEPS])}")
        return _BARE[value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ScriptError(f"{place}: a step is one key with its value, or one of {', '.join(_BARE)}")
    ((key, body),) = value.items()
    if key in _BARE:
        raise ScriptError(f"{place}: {key} takes no value", f"write it as - {key}")
    if key not in _STEPS:
        raise ScriptError(f"{place}: unknown key {key!r}{_suggest(str(key), [*_STEPS, *_BARE])}")
    return _STEPS[key](body, f"{place}, {key}")


def _tool(value: Any, place: str) -> Call:
    keys = _mapping(value, place, required=("name",), optional=("input", "result", "error"))
    return Call(
        name=_text(keys["name"], f"{place}: name"),
        input=_object(keys.get("input", {}), f"{place}: input"),
        result=_text(keys["result"], f"{place}: result") if "result" in keys else None,
        error=_flag(keys, "error", place),
    )


def _ask(value: Any, place: str) -> Call:
    optional = ("input", "result", "error", "allowed", "denied", "rule", "id")
    keys = _mapping(value, place, required=("tool",), optional=optional)
    plain = _tool({"name": keys["tool"], **{k: keys[k] for k in ("input", "result", "error") if k in keys}}, place)
    return plain._replace(
        asks=True,
        allowed=_steps(keys["allowed"], f"{place}, allowed") if "allowed" in keys else None,
        denied=_steps(keys["denied"], f"{place}, denied") if "denied" in keys else None,
        rule=_text(keys["rule"], f"{place}: rule") if "rule" in keys else None,
        id=_text(keys["id"], f"{place}: id") if "id" in keys else None,
    )


def _agent(value: Any, place: str) -> Call:
    keys = _mapping(value, place, required=("prompt",), optional=("type", "background", "description"))
    kind = _text(keys.get("type", DEFAULT_TYPE), f"{place}: type")
    return Call(
        name=AGENT_TOOL,
        input={
            "description": _text(keys.get("description", kind), f"{place}: description"),
            "prompt": _text(keys["prompt"], f"{place}: prompt"),
            "subagent_type": kind,
            "run_in_background": _flag(keys, "background", place),
        },
    )


def _together(value: Any, place: str) -> Calls:
    items = _list(value, place)
    if not items:
        raise ScriptError(f"{place}: must have at least one tool")
    return Calls(tuple(_one_of(item, f"{place}: tool {number}") for number, item in enumerate(items, 1)))


def _one_of(item: Any, place: str) -> Call:
    if isinstance(item, dict) and len(item) == 1 and (key := next(iter(item))) in _CALLS:
        call = _CALLS[key](item[key], f"{place}, {key}")
        if call.allowed is not None or call.denied is not None:
            raise ScriptError(f"{place}: 'allowed' and 'denied' are not supported for several tools")
        return call
    return _tool(item, place)


def _alone(parse_call: Callable[[Any, str], Call]) -> Callable[[Any, str], Calls]:
    return lambda value, place: Calls((parse_call(value, place),))


def _fail(value: Any, place: str) -> Fail:
    keys = _mapping(value, place, optional=("status", "message", "exit"))
    if ("status" in keys) == ("exit" in keys):
        raise ScriptError(f"{place}: must have either a status or an exit code")
    message = _text(keys.get("message", Fail().message), f"{place}: message")
    if "exit" in keys:
        return Fail(None, message, _between(keys["exit"], 0, 255, f"{place}: exit"))
    return Fail(_between(keys["status"], 400, 599, f"{place}: status"), message)


def _wait(value: Any, place: str) -> Wait:
    if not isinstance(value, dict):
        return Wait(_amount(value, LONGEST_WAIT, place))
    return Wait(file=_text(_mapping(value, place, required=("file",))["file"], f"{place}: file"))


def _usage(value: Any, place: str) -> Spend:
    keys = _mapping(value, place, optional=("input", "output"))
    tokens = {key: _between(keys[key], 0, 10**9, f"{place}: {key}") for key in keys}
    return Spend(None, tokens.get("input"), tokens.get("output"))


_CALLS: Mapping[str, Callable[[Any, str], Call]] = {"tool": _tool, "ask": _ask, "agent": _agent}

_STEPS: Mapping[str, Callable[[Any, str], Step]] = {
    "say": lambda value, place: Say(_text(value, place)),
    "echo": lambda value, place: Echo(_text(value, place)),
    "think": lambda value, place: Think(_text(value, place)),
    "wait": _wait,
    "cost": lambda value, place: Spend(cost=_amount(value, 1e6, place)),
    "usage": _usage,
    "tools": _together,
    "fail": _fail,
    **{key: _alone(parse_call) for key, parse_call in _CALLS.items()},
}

_BARE: Mapping[str, Step] = {
    "marker": Marker(),
    "refuse": End("refuse"),
    "break": End("break"),
    "hang": End("hang"),
    "crash": End("crash"),
}


# --- Types -------------------------------------------------------------------------------------------------


def _mapping(value: Any, place: str, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> dict[str, Any]:
    known = (*required, *optional)
    if not isinstance(value, dict):
        raise ScriptError(f"{place}: must be keys and values; got {_kind(value)}", f"its keys: {', '.join(known)}")
    for key in value:
        if key not in known:
            raise ScriptError(f"{place}: unknown key {key!r}{_suggest(str(key), known)}")
    for key in required:
        if key not in value:
            raise ScriptError(f"{place}: {key!r} is missing")
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ScriptError(f"{place}: must be a list; got {_kind(value)}")
    return value


def _object(value: Any, place: str) -> dict[str, Any]:
    """The input of a tool, which must be JSON."""
    if not isinstance(value, dict):
        raise ScriptError(f"{place}: must be keys and values; got {_kind(value)}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ScriptError(f"{place}: {error}", "put dates and the like in quotes") from error
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ScriptError(f"{place}: must be a text; got {_kind(value)}", "put it in quotes")
    return value


def _flag(keys: Mapping[str, Any], key: str, place: str) -> bool:
    value = keys.get(key, False)
    if not isinstance(value, bool):
        raise ScriptError(f"{place}: {key} must be true or false; got {_kind(value)}")
    return value


def _amount(value: Any, most: float, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ScriptError(f"{place}: must be a number from 0 to {most:g}; got {value!r}")
    return float(value)


def _between(value: Any, least: int, most: int, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ScriptError(f"{place}: must be a whole number from {least} to {most}; got {value!r}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    return "a list" if isinstance(value, list) else repr(value)


def _suggest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
