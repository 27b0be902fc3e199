"""Keys and values of configuration files: checked, and turned into the values of ``settings``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hocket.config import (
    CROSS_SESSION,
    DELEGATE,
    ISOLATION,
    ON_LOST,
    ON_QUESTION,
    PERMISSION_MODES,
    RUNTIMES,
    ConfigFile,
    may_be_passed,
)
from hocket.config.settings import AgentConfig, ChainConfig, ClaudeConfig, Limits, ModelRule, StepConfig, suggestion
from hocket.config.structure import excess
from hocket.errors import ConfigError
from hocket.input_limits import AROUND_A_MARKER, MAX_ITERATIONS, MAX_STEPS, is_text, parse_size, whole

REGISTRY_FILE = ".active-pids.json"
"""The name of a project's registry file where the configuration gives none."""
MAX_PATTERN = 200
"""Characters of a pattern of models."""
MAX_GRACE = 120
"""In seconds. The caller of a stop waits that long."""


class _Kind(NamedTuple):
    """The values that a key accepts: a test, and its description in an error."""

    fits: Callable[[Any], bool]
    expected: str


def _is_filled(value: object) -> bool:
    return isinstance(value, str) and value.strip() != "" and "\0" not in value and is_text(value)


def _is_marker(value: object) -> bool:
    return _is_filled(value) and len(str(value).splitlines()) == 1 and str(value).strip(AROUND_A_MARKER) != ""


def _is_folder(value: str) -> bool:
    return (value == "~" or value.startswith(("/", "~/"))) and "\0" not in value


def _is_registry_file(value: object) -> bool:
    """True for a flag, or the path of a JSON file below the project."""
    if not _is_filled(value):
        return isinstance(value, bool)
    *folders, name = str(value).split("/")
    return name.endswith(".json") and not {"", ".", ".."} & {*folders, name}


def _integer(least: int, most: int, expected: str) -> _Kind:
    return _Kind(lambda value: type(value) is int and least <= value <= most, expected)


def _number(least: float, most: float, expected: str) -> _Kind:
    # The comparison refuses NaN and infinity as well.
    return _Kind(lambda value: type(value) in (int, float) and least <= value <= most, expected)


def _one_of(*words: str) -> _Kind:
    return _Kind(lambda value: isinstance(value, str) and value in words, " or ".join(f'"{word}"' for word in words))


def _list_of(fits: Callable[[str], bool], expected: str) -> _Kind:
    return _Kind(
        lambda value: isinstance(value, list) and all(isinstance(item, str) and fits(item) for item in value), expected
    )


def _is_argv(value: object) -> bool:
    """True for a program, by its name on PATH or an absolute path, and its arguments."""
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        return False
    program = value[0]
    is_found_anywhere = "/" not in program or program.startswith(("/", "~/"))
    return _is_filled(program) and is_found_anywhere and all(is_text(word) and "\0" not in word for word in value)


_TEXT = _Kind(lambda value: isinstance(value, str) and is_text(value), "a string")
_FILLED = _Kind(_is_filled, "a non-empty string")
_MARKER = _Kind(_is_marker, "one line with more than backticks and asterisks")
_TEXTS = _list_of(is_text, "a list of strings")
_TABLE = _Kind(lambda value: isinstance(value, dict), "a table")
_STEPS = _Kind(lambda value: isinstance(value, list) and value != [], "a list with at least one step")
_TIMES = _integer(1, MAX_ITERATIONS, f"an integer from 1 to {MAX_ITERATIONS}")
_AT_LEAST_ONE = _integer(1, 10**9, "an integer of at least 1")
_DURATION = _number(0.001, 1e9, "a number of seconds above 0")
_FLAG = _Kind(lambda value: isinstance(value, bool), "true or false")
_AGENT_NAME = _Kind(
    lambda value: isinstance(value, str) and re.fullmatch("[A-Za-z0-9_-]{1,64}", value) is not None,
    "an agent's name: at most 64 letters, digits, - and _",
)

_Fields = Mapping[str, _Kind]

_KINDS: _Fields = {
    "agent": _FILLED,
    "allowed_tools": _Kind(
        lambda value: _is_filled(value) or _TEXTS.fits(value), "a non-empty string or a list of strings"
    ),
    "args": _TEXTS,
    "budget_tokens": _integer(1, 10**15, "an integer of at least 1"),
    "budget_usd": _number(1e-6, 1e9, "an amount in USD above 0"),
    "contract": _FLAG,
    "cross_session": _one_of(*CROSS_SESSION),
    "default_prompt": _TEXT,
    "default_prompt_file": _FILLED,
    "delegate": _one_of(DELEGATE),
    "description": _TEXT,
    "failures": _TIMES,
    "gate_timeout": _DURATION,
    "idle_timeout": _DURATION,
    "isolation": _one_of(*ISOLATION),
    "iterations": _TIMES,
    "marker": _MARKER,
    "mcp": _FLAG,
    "model": _FILLED,
    "no_progress": _TIMES,
    "on_lost": _one_of(*ON_LOST),
    "on_question": _one_of(*ON_QUESTION),
    "path": _FILLED,
    "permission_mode": _one_of(*PERMISSION_MODES),
    "prompt": _TEXT,
    "prompt_file": _FILLED,
    "prompt_via": _one_of("arg", "stdin"),
    "runtime": _one_of(*RUNTIMES),
    "steps": _STEPS,
    "team": _FLAG,
    "timeout": _DURATION,
    "until": _Kind(_is_filled, "a shell command"),
}
"""The keys of agents, steps, chains and ``[claude]``, which mean the same everywhere."""


def _settable(names: Iterable[str]) -> dict[str, _Kind]:
    """Return the fields with these names that a file can set."""
    return {name: _KINDS[name] for name in names if name in _KINDS}


_AGENT = _settable(AgentConfig._fields) | {"project": _FILLED, "agent": _AGENT_NAME}
_STEP = _settable(StepConfig._fields)
_GROUP = {"group": _Kind(_STEPS.fits, "a list with at least one member")}
_CHAIN = _settable(ChainConfig._fields)
_SECTIONS: Mapping[str, _Fields] = {
    "limits": dict.fromkeys(Limits._fields, _integer(0, 10**9, "an integer of at least 0"))
    | {
        "leaves": _AT_LEAST_ONE,
        "max_output_mb": _AT_LEAST_ONE,
        "estimate_usd_per_mtok": _number(0, 1e9, "an amount in USD of at least 0"),
    },
    "keep": {
        "days": _number(0.001, 1e6, "a number of days above 0"),
        "runs": _AT_LEAST_ONE,
        "bytes": _Kind(lambda value: bool(parse_size(value)), 'a size of at least 1 byte, such as "10 GB"'),
    },
    "run": {
        "stop_grace": _number(0, MAX_GRACE, f"a number of seconds from 0 to {MAX_GRACE}"),
        "idle_after": _number(0, 1e9, "a number of seconds of at least 0"),
        "marker": _MARKER,
    },
    "env": {
        "pass": _list_of(may_be_passed, "a list of variables, none of them reserved by Hocket or an agent's session")
    },
    "claude": _settable(ClaudeConfig._fields),
    "spawn": {"require_model": _FLAG},
    "notify": {"command": _Kind(_is_argv, "a list with a program (a name, or a path from / or ~/) and its arguments")},
    "trust": {"folders": _list_of(_is_folder, "a list of folders, each absolute or beginning with ~/")},
}
_USERS_OWN = ("limits", "keep", "trust")
"""Sections that a project must not have: it could only raise its own limits, as with ``cross_session``."""
_JSON_TOP: _Fields = {"agents": _TABLE, "chains": _TABLE, "projects": _TABLE}
_TOML_TOP: _Fields = {
    **_JSON_TOP,
    **dict.fromkeys((*_SECTIONS, "models"), _TABLE),
    "registry_file": _Kind(_is_registry_file, "true, false, or a relative path without .. that ends in .json"),
}


_Spelling = Callable[[str], str]
"""How a file spells our names of keys."""


def _camel(name: str) -> str:
    """Return a key as ``chains.json`` spells it."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _table(raw: Any, fields: _Fields, where: str, spell: _Spelling) -> dict[str, Any]:
    """Return a table by the names of our fields; raise if a key is unknown or its value does not fit."""
    if not isinstance(raw, dict):
        raise _wrong_value(where, _TABLE, raw)
    names = {spell(name): name for name in fields}
    table = {}
    for key, value in raw.items():
        if key not in names:
            at_top = "it belongs at the top of hocket.toml, before the first [...]" if key == "registry_file" else None
            raise ConfigError(f'{where}: unknown key "{key}"', at_top or suggestion(key, names))
        kind = fields[names[key]]
        if not kind.fits(value):
            raise _wrong_value(f'{where}, "{key}"', kind, value)
        table[names[key]] = tuple(value) if isinstance(value, list) else value
    return table


def _wrong_value(where: str, kind: _Kind, value: object) -> ConfigError:
    text = "null" if value is None else repr(value)
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    if isinstance(value, str) and ("\0" in value or not is_text(value)):
        return ConfigError(f"{where}: contains NUL or is not valid UTF-8: {shown}")
    return ConfigError(f"{where}: must be {kind.expected}; got {shown}")


class ParsedFile(NamedTuple):
    """The content of one configuration file."""

    file: ConfigFile
    agents: Mapping[str, AgentConfig]
    chains: Mapping[str, ChainConfig]
    projects: Mapping[str, str]
    limits: Mapping[str, Any]
    keep: Mapping[str, Any]
    run: Mapping[str, Any]
    env_pass: tuple[str, ...]
    claude: Mapping[str, Any]
    require_model: bool
    trusted_folders: tuple[str, ...]
    notify: Mapping[str, Any]
    models: tuple[ModelRule, ...]
    registry_file: str | None
    """The path of the project's registry file, without links, if it has one."""
    ignored: tuple[str, ...]
    """Settings that have no effect in this file, each with its file and the reason."""


def parse(file: ConfigFile, text: str, user: str) -> ParsedFile:
    """Parse the text of a configuration file; ``user`` is the home directory that ``~`` stands for."""
    if (reason := excess(text)) is not None:
        raise ConfigError(f"{file.path}: {reason}")
    if file.json:
        raw = _decode_json(file.path, text)
    else:
        import tomllib

        try:
            raw = tomllib.loads(text)
        except ValueError as error:
            # The decoder's own message ends with the line and the column.
            raise ConfigError(f"{file.path}: {error}") from error
    spell, ignored = _camel if file.json else str, []
    if file.project and not file.json and raw.pop("notify", None) is not None:
        # Not an error: it would keep from running a project whose author only misplaced a line.
        ignored.append(f"{file.path}: [notify] is ignored: only the config.toml of HOCKET_HOME names a command")
    if file.json and isinstance(raw, dict):
        raw.pop("$schema", None)
    top = _table(raw, _JSON_TOP if file.json else _TOML_TOP, file.path, spell)
    misplaced = [f"[{name}]" for name in _USERS_OWN if name in top]
    users_own_keys = (("claude", "cross_session"), ("run", "idle_after"))
    misplaced += [f"[{table}] {key}" for table, key in users_own_keys if key in top.get(table, {})]
    if misplaced and file.project:
        raise ConfigError(
            f"{file.path}: {misplaced[0]} is not allowed in a project's file",
            "move it to the config.toml of HOCKET_HOME",
        )
    sections = {
        name: _table(top.get(name, {}), fields, f"{file.path}: [{name}]", str) for name, fields in _SECTIONS.items()
    }
    folders, projects = sections["trust"].get("folders", ()), top.get("projects", {})
    for name, folder in projects.items():
        if not _FILLED.fits(folder):
            raise _wrong_value(f'{file.path}: project "{name}"', _FILLED, folder)
    return ParsedFile(
        file,
        {name: _agent(file, name, value, spell) for name, value in top.get("agents", {}).items()},
        {name: _chain(file, name, value, spell) for name, value in top.get("chains", {}).items()},
        projects,
        sections["limits"],
        sections["keep"] | {name: parse_size(size) for name, size in sections["keep"].items() if name == "bytes"},
        sections["run"],
        sections["env"].get("pass", ()),
        sections["claude"],
        sections["spawn"].get("require_model", False),
        tuple(user + folder[1:] if folder.startswith("~") else folder for folder in folders),
        _with_program(sections["notify"], user),
        tuple(_model_rules(file, top.get("models", {}))),
        _registry_file(file, top.get("registry_file", False)),
        tuple(ignored),
    )


def _model_rules(file: ConfigFile, table: Mapping[str, Any]) -> Iterator[ModelRule]:
    where, kind = f"{file.path}: [models]", _KINDS["runtime"]
    for pattern, runtime in table.items():
        if not _is_filled(pattern) or len(pattern) > MAX_PATTERN:
            raise ConfigError(f"{where}: not a pattern of at most {MAX_PATTERN} characters: {pattern[:60]!r}")
        if not kind.fits(runtime):
            error = _wrong_value(f'{where}, "{pattern}"', kind, runtime)
            error.hint = "a pattern with a dot is written in quotes" if isinstance(runtime, dict) else None
            raise error
        yield ModelRule(pattern, runtime, file.path, file.project)


def _registry_file(file: ConfigFile, value: bool | str) -> str | None:
    """Return the path of a project's registry file, which must be inside the project after following links."""
    if value is False:
        return None
    if file.project is None:
        raise ConfigError(f"{file.path}: registry_file is not allowed here", "set it in the hocket.toml of a project")
    project = os.path.realpath(file.project)
    path = os.path.join(project, REGISTRY_FILE if value is True else value)
    folder = os.path.dirname(path)
    if os.path.realpath(folder) != folder:
        raise ConfigError(
            f"{file.path}: registry_file: {folder} leads through a symbolic link to {os.path.realpath(folder)}",
            "name a file in the project itself",
        )
    return path


def _with_program(notify: dict[str, Any], user: str) -> dict[str, Any]:
    """Return [notify] with the path of its program."""
    program, *arguments = notify.get("command") or [""]
    return {"notify": (user + program[1:] if program.startswith("~/") else program, *arguments)} if program else {}


def _agent(file: ConfigFile, name: str, raw: Any, spell: _Spelling) -> AgentConfig:
    table = _table(raw, _AGENT, f'{file.path}: agent "{name}"', spell)
    if isinstance(table.get("allowed_tools"), tuple):
        table["allowed_tools"] = " ".join(table["allowed_tools"])
    member = _member(table, f'{file.path}: agent "{name}"')
    return AgentConfig(file.path, **table, project=file.project, member=member)


def _member(table: dict[str, Any], where: str) -> tuple[str, str] | None:
    """Remove the keys that name an agent of a project, and return their values."""
    project, agent = table.pop("project", None), table.pop("agent", None)
    if project is None and agent is None:
        return None
    if project is None or agent is None:
        given, missing = ("agent", "project") if project is None else ("project", "agent")
        raise ConfigError(f'{where}: has "{given}" but no "{missing}"')
    if "path" in table:
        raise ConfigError(f'{where}: has both "path" and "project" with "agent"', "keep one of them")
    return project, agent


def _chain(file: ConfigFile, name: str, raw: Any, spell: _Spelling) -> ChainConfig:
    where = f'{file.path}: chain "{name}"'
    table = _table(raw, _CHAIN, where, spell)
    if "steps" not in table:
        raise ConfigError(f'{where}: has no "steps"')
    steps: list[StepConfig] = []
    for number, step in enumerate(table["steps"], 1):
        steps += _stage(f"{where}, step {number}", number, step, spell)
        if len(steps) > MAX_STEPS:
            raise ConfigError(
                f"{where}, step {number}: too many steps: at most {MAX_STEPS}, including members of groups"
            )
    return ChainConfig(name, file.path, **{**table, "steps": tuple(steps)}, project=file.project)


def _stage(where: str, number: int, raw: Any, spell: _Spelling) -> Iterator[StepConfig]:
    """Yield one step, or the members of a group."""
    if not isinstance(raw, dict) or "group" not in raw:
        yield _step(where, raw, spell)
        return
    misplaced = next((key for key in raw if key in map(spell, _STEP)), None)
    if misplaced:
        raise ConfigError(f'{where}, "{misplaced}": not allowed in a group; set it in the members')
    for position, member in enumerate(_table(raw, _GROUP, where, spell)["group"], 1):
        inside = f"{where}, member {position}"
        if isinstance(member, dict) and "group" in member:
            raise ConfigError(f"{inside}: a group cannot contain a group")
        yield _step(inside, member, spell, number)


def _step(where: str, raw: Any, spell: _Spelling, group: int | None = None) -> StepConfig:
    table = _table(raw, _STEP, where, spell)
    if "agent" not in table:
        raise ConfigError(f'{where}: has no "agent"')
    return StepConfig(**table, group=group)


def _decode_json(path: str, text: str) -> Any:
    import json

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise ConfigError(f'{path}: "{name}" is defined twice')
            table[name] = value
        return table

    try:
        return json.loads(text, object_pairs_hook=no_duplicates, parse_float=lambda digits: whole(float(digits)))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: {error.msg} (at line {error.lineno}, column {error.colno})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
