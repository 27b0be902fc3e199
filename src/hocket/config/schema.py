"""What a configuration file may say, and its values when it says nothing else: every key known, every value checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hocket.config import CROSS_SESSION, ISOLATION, ON_LOST, ON_QUESTION, PERMISSION_MODES, Place, Record, may_be_passed
from hocket.config.settings import AgentConfig, ChainConfig, Limits, StepConfig, meant
from hocket.config.structure import excess
from hocket.errors import ConfigError
from hocket.input_limits import AROUND_A_MARKER, MAX_ITERATIONS, MAX_STEPS, is_text, whole

MAX_GRACE = 120
"""In seconds. Whoever asks for a stop waits for it, and nobody waits for ever."""
PROMPT_VIA = ("arg", "stdin")


class _Kind(Record):
    """What a key may hold: a test, and the words for an error."""

    fits: Callable[[Any], bool]
    wanted: str


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_seconds(value: object, least: float) -> bool:
    # One comparison refuses NaN and infinity as well.
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= 1e9


def _is_filled(value: object) -> bool:
    # A path or a name with anything else in it could be given to nobody.
    return isinstance(value, str) and value.strip() != "" and "\0" not in value and is_text(value)


def _is_marker(value: object) -> bool:
    return _is_filled(value) and len(str(value).splitlines()) == 1 and str(value).strip(AROUND_A_MARKER) != ""


def _is_simple(value: object) -> bool:
    import re

    return isinstance(value, str) and re.fullmatch("[A-Za-z0-9_-]{1,64}", value) is not None


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and is_text(item) for item in value)


def _is_passable(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and may_be_passed(name) for name in value)


def _is_folders(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(folder, str) and (folder == "~" or folder.startswith(("/", "~/"))) and "\0" not in folder
        for folder in value
    )


def _one_of(*words: str) -> _Kind:
    return _Kind(lambda value: isinstance(value, str) and value in words, " or ".join(f'"{word}"' for word in words))


_TEXT = _Kind(lambda value: isinstance(value, str) and is_text(value), "a text without halves of characters")
_FILLED = _Kind(_is_filled, "a text that is not empty, without NUL or halves of characters")
_MARKER = _Kind(_is_marker, "one line with more than backticks and asterisks in it")
_GATE = _Kind(_is_filled, "a shell command")
_SIMPLE = _Kind(_is_simple, "an agent's name: letters, digits, - and _, at most 64 of them")
_TEXTS = _Kind(_is_texts, "a list of texts without halves of characters")
_TABLE = _Kind(lambda value: isinstance(value, dict), "a table of names")
_STEPS = _Kind(lambda value: isinstance(value, list) and value != [], "a list with at least one step")
_MEMBERS = _Kind(lambda value: isinstance(value, list) and value != [], "a list with at least one member")
_TIMES = _Kind(lambda value: _is_whole(value, 1, MAX_ITERATIONS), f"a whole number from 1 to {MAX_ITERATIONS}")
_BOUND = _Kind(lambda value: _is_whole(value, 0, 10**9), "a whole number that is not negative")
_AT_LEAST_ONE = _Kind(lambda value: _is_whole(value, 1, 10**9), "a whole number from 1 on")
_TOKENS = _Kind(lambda value: _is_whole(value, 1, 10**15), "a whole number from 1 on")
_DOLLARS = _Kind(lambda value: _is_seconds(value, 1e-6), "a number of dollars above 0")
_PRICE = _Kind(lambda value: _is_seconds(value, 0), "a number of dollars that is not negative")
_DURATION = _Kind(lambda value: _is_seconds(value, 0.001), "a number of seconds above 0")
_GRACE = _Kind(lambda value: _is_seconds(value, 0) and value <= MAX_GRACE, f"a number of seconds up to {MAX_GRACE}")
_FLAG = _Kind(lambda value: isinstance(value, bool), "true or false")
_TOOLS = _Kind(lambda value: _is_filled(value) or _is_texts(value), f"{_FILLED.wanted}, or a list of texts")
_FOLDERS = _Kind(_is_folders, "a list of folders, each absolute or beginning with ~/")
_MODE = _one_of(*PERMISSION_MODES)
_PASSABLE = _Kind(_is_passable, "a list of variables, none of them Hocket's own or a mark of a session")

_Fields = Mapping[str, _Kind]

_AGENT: _Fields = {
    "path": _FILLED,
    "project": _FILLED,
    "agent": _SIMPLE,
    "args": _TEXTS,
    "default_prompt": _TEXT,
    "default_prompt_file": _FILLED,
    "prompt_via": _one_of(*PROMPT_VIA),
    "model": _FILLED,
    "permission_mode": _MODE,
    "allowed_tools": _TOOLS,
}
_BOUNDS: _Fields = {
    "until": _GATE,
    "timeout": _DURATION,
    "budget_usd": _DOLLARS,
    "budget_tokens": _TOKENS,
    "idle_timeout": _DURATION,
    "failures": _TIMES,
    "no_progress": _TIMES,
}
"""What a step may have as well as its chain."""
_STEP: _Fields = {
    "agent": _FILLED,
    "iterations": _TIMES,
    "args": _TEXTS,
    "prompt": _TEXT,
    "prompt_file": _FILLED,
    **_BOUNDS,
    "isolation": _one_of(*ISOLATION),
}
_GROUP: _Fields = {"group": _MEMBERS}
_CHAIN: _Fields = {
    "description": _TEXT,
    "prompt": _TEXT,
    "prompt_file": _FILLED,
    "steps": _STEPS,
    "marker": _MARKER,
    "permission_mode": _MODE,
    "on_question": _one_of(*ON_QUESTION),
    **_BOUNDS,
    "gate_timeout": _DURATION,
    "on_lost": _one_of(*ON_LOST),
    "isolation": _one_of(*ISOLATION),
}
_SECTIONS: Mapping[str, _Fields] = {
    "limits": dict.fromkeys(Limits.fields, _BOUND)
    | {"leaves": _AT_LEAST_ONE, "max_output_mb": _AT_LEAST_ONE, "estimate_usd_per_mtok": _PRICE},
    "run": {"stop_grace": _GRACE, "marker": _MARKER},
    "env": {"pass": _PASSABLE},
    "claude": {
        "permission_mode": _MODE,
        "model": _FILLED,
        "on_question": _one_of(*ON_QUESTION),
        "contract": _FLAG,
        "mcp": _FLAG,
        "cross_session": _one_of(*CROSS_SESSION),
    },
    "trust": {"folders": _FOLDERS},
}
_USERS_OWN = ("limits", "trust")
"""Sections that a project must not have: it could only give itself more. So could it with ``cross_session``."""
_JSON_TOP: _Fields = {"agents": _TABLE, "chains": _TABLE, "projects": _TABLE}
_TOML_TOP: _Fields = {**_JSON_TOP, **dict.fromkeys(_SECTIONS, _TABLE)}


def _camel(name: str) -> str:
    """How ``chains.json`` spells a key."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _as_it_is(name: str) -> str:
    return name


def _table(raw: Any, fields: _Fields, where: str, spell: Callable[[str], str]) -> dict[str, Any]:
    """A table whose every key is known and holds what it should, under our own names for the keys."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: must be {_TABLE.wanted}, not {_shown(raw)}")
    names = {spell(name): name for name in fields}
    table = {}
    for key, value in raw.items():
        if key not in names:
            raise ConfigError(f'{where}: unknown key "{key}"', meant(key, names))
        kind = fields[names[key]]
        if not kind.fits(value):
            raise ConfigError(f'{where}, "{key}": must be {kind.wanted}, not {_shown(value)}')
        table[names[key]] = tuple(value) if isinstance(value, list) else value
    return table


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


class Part(Record):
    """What one file says."""

    agents: Mapping[str, AgentConfig]
    chains: Mapping[str, ChainConfig]
    projects: Mapping[str, str]
    limits: Mapping[str, Any]
    run: Mapping[str, Any]
    env_pass: tuple[str, ...]
    claude: Mapping[str, Any]
    trusted_folders: tuple[str, ...]
    project: str | None
    """The folder whose own file it is; None for the user's."""


def parse(place: Place, text: str, user: str) -> Part:
    if (reason := excess(text)) is not None:
        raise ConfigError(f"{place.path}: {reason}")
    raw = _decode_json(place.path, text) if place.json else _decode_toml(place.path, text)
    spell = _camel if place.json else _as_it_is
    if place.json and isinstance(raw, dict):
        raw.pop("$schema", None)
    top = _table(raw, _JSON_TOP if place.json else _TOML_TOP, place.path, spell)
    misplaced = [f"[{name}]" for name in _USERS_OWN if name in top]
    misplaced += ["[claude] cross_session"] if "cross_session" in top.get("claude", {}) else []
    if misplaced and place.project:
        raise ConfigError(
            f"{place.path}: {misplaced[0]} belongs to the user's own configuration, not to a project",
            "move it to the config.toml of HOCKET_HOME",
        )
    sections = {
        name: _table(top.get(name, {}), fields, f"{place.path}: [{name}]", _as_it_is)
        for name, fields in _SECTIONS.items()
    }
    return Part(
        {name: _agent(place, name, value, spell) for name, value in top.get("agents", {}).items()},
        {name: _chain(place, name, value, spell) for name, value in top.get("chains", {}).items()},
        _projects(place, top.get("projects", {})),
        sections["limits"],
        sections["run"],
        sections["env"].get("pass", ()),
        sections["claude"],
        tuple(
            user + folder[1:] if folder.startswith("~") else folder for folder in sections["trust"].get("folders", ())
        ),
        place.project,
    )


def _agent(place: Place, name: str, raw: Any, spell: Callable[[str], str]) -> AgentConfig:
    table = _table(raw, _AGENT, f'{place.path}: agent "{name}"', spell)
    if isinstance(table.get("allowed_tools"), tuple):
        table["allowed_tools"] = " ".join(table["allowed_tools"])
    member = _member(table, f'{place.path}: agent "{name}"')
    return AgentConfig(place.path, **table, project=place.project, member=member)


def _member(table: dict[str, Any], where: str) -> tuple[str, str] | None:
    """An agent of a project, which is said by two keys that only make sense together; both are taken out."""
    project, agent = table.pop("project", None), table.pop("agent", None)
    if project is None and agent is None:
        return None
    if project is None or agent is None:
        given, missing = ("agent", "project") if project is None else ("project", "agent")
        raise ConfigError(f'{where}: has "{given}" but no "{missing}"')
    if "path" in table:
        raise ConfigError(f'{where}: has "path" as well as "project" and "agent"', "keep one of them")
    return project, agent


def _projects(place: Place, raw: Any) -> dict[str, str]:
    for name, folder in raw.items():
        if not _FILLED.fits(folder):
            raise ConfigError(f'{place.path}: project "{name}": must be {_FILLED.wanted}, not {_shown(folder)}')
    return dict(raw)


def _chain(place: Place, name: str, raw: Any, spell: Callable[[str], str]) -> ChainConfig:
    where = f'{place.path}: chain "{name}"'
    table = _table(raw, _CHAIN, where, spell)
    if "steps" not in table:
        raise ConfigError(f'{where}: has no "steps"')
    steps: list[StepConfig] = []
    for number, written in enumerate(table["steps"], 1):
        steps += _stage(f"{where}, step {number}", number, written, spell)
        if len(steps) > MAX_STEPS:
            raise ConfigError(
                f"{where}, step {number}: is one too many: a chain has at most {MAX_STEPS}, members of groups included"
            )
    return ChainConfig(name, place.path, **{**table, "steps": tuple(steps)}, project=place.project)


def _stage(where: str, number: int, raw: Any, spell: Callable[[str], str]) -> Iterator[StepConfig]:
    """One step, or the members of a group."""
    if not isinstance(raw, dict) or "group" not in raw:
        yield _step(where, raw, spell)
        return
    misplaced = next((key for key in raw if key in map(spell, _STEP)), None)
    if misplaced:
        raise ConfigError(f'{where}, "{misplaced}": belongs to the members of the group, not to the group')
    for place, member in enumerate(_table(raw, _GROUP, where, spell)["group"], 1):
        inside = f"{where}, member {place}"
        if isinstance(member, dict) and "group" in member:
            raise ConfigError(f"{inside}: a group within a group")
        yield _step(inside, member, spell, number)


def _step(where: str, raw: Any, spell: Callable[[str], str], group: int | None = None) -> StepConfig:
    table = _table(raw, _STEP, where, spell)
    if "agent" not in table:
        raise ConfigError(f'{where}: has no "agent"')
    return StepConfig(**table, group=group)


def _decode_toml(path: str, text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:
        # The decoder's own message ends with the line and the column.
        raise ConfigError(f"{path}: {error}") from error


def _decode_json(path: str, text: str) -> Any:
    import json

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise ConfigError(f'{path}: "{name}" is there twice')
            table[name] = value
        return table

    try:
        return json.loads(text, object_pairs_hook=no_duplicates, parse_float=lambda digits: whole(float(digits)))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: {error.msg} (at line {error.lineno}, column {error.colno})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
