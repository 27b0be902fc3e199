"""Explains what ``resolve`` makes of a name or path: every candidate, and each property as a run gets it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hocket.catalog import report
from hocket.catalog.entries import ALIAS, LOCATIONS, Catalog
from hocket.catalog.programs import path_of
from hocket.catalog.report import NOTHING_HERE, SHADOWED, USED, candidate_row
from hocket.catalog.resolve import BY_PATH, CLI, EXECUTABLE, ON_PATH, Meaning, UncheckedAgent, meaning, resolve
from hocket.config import MODEL_VARIABLE
from hocket.config.settings import Config
from hocket.errors import AgentNotFound, HocketError, UsageError
from hocket.model import Agent
from hocket.providers import PROVIDERS
from hocket.providers.defining import DEFINING_PROVIDER, PRIVILEGES
from hocket.providers.launching import given_model

Row = dict[str, Any]
_OF_CLIS = ("model", "permission_mode", "tools", "allowed_tools", "instructions")
"""Properties that mean nothing to a plain program."""
Authorize = Callable[[UncheckedAgent], Agent]
"""Raises NotTrusted unless the agent may run."""


def explain(
    word: str, catalog: Catalog, table: report.Table, config: Config, env: Mapping[str, str], authorize: Authorize
) -> Row:
    """Return why a word means its agent. Raises AgentNotFound if a run would find none."""
    cwd = catalog.cwd or "/"
    try:
        meant = meaning(word, cwd, env, config, lambda: catalog)
    except HocketError as error:
        raise AgentNotFound(f"there is no agent {word!r}: {error.message}", error.hint) from error
    listed = next((one.name for one in catalog.find(word)), None)
    if meant.source is None and listed is None:
        raise _not_found(word, catalog, env)
    found, problem = None, None
    try:
        found = resolve(word, cwd, env, config, lambda: catalog)
    except HocketError as error:
        if listed is None:
            raise AgentNotFound(f"there is no agent {word!r}: {error.message}", error.hint) from error
        problem = error.message
    if listed and (meant.entry or meant.alias or problem):
        told = report.why(catalog, table, listed, config, meant.entry)
    else:
        told = _unlisted(listed or word, meant, found)
        told["candidates"] = list(report.candidates(catalog, listed, None)) if listed else []
    told["candidates"] = _candidates(told["candidates"], listed or word, meant, found)
    if found:
        told["fields"] = _as_run(told["fields"], found, meant, config, env)
        if found.missing:
            problem = found.missing.message
        elif not told["needs_trust"]:
            problem = _refusal(found, authorize) or _missing_model(word, found.agent, config, env)
    return {**told, "problem": problem}


def runtime_row(word: str, cwd: str, env: Mapping[str, str], config: Config, catalog: Callable[[], Catalog]) -> Row:
    """Return which CLI runs an agent's definition and why, and why none does."""
    try:
        found = resolve(word, cwd, env, config, catalog)
    except HocketError as error:
        return {"provider": None, "runtime": None, "team": False, "problem": error.message}
    problem, agent = found.missing.message if found.missing else None, found.agent
    program = PROVIDERS[agent.provider].program
    if program is None or agent.definition is None or isinstance(found.missing, UsageError):
        provider = None if problem else agent.provider
        return {"provider": provider, "runtime": None, "team": agent.team, "problem": problem}
    reason = f" ({found.runtime.reason})" if found.runtime.reason else ""
    problem = problem or _missing_model(word, agent, config, env)
    runtime = f"{program.label}{reason}"
    return {"provider": agent.provider, "runtime": runtime, "team": agent.team, "problem": problem}


def _missing_model(word: str, agent: Agent, config: Config, env: Mapping[str, str]) -> str | None:
    """Why a run is refused if every agent of a CLI has to have a model."""
    is_exempt = not config.require_model or agent.provider == EXECUTABLE
    return None if is_exempt or model_in_use(agent, config, env)[0] else without_model(word, agent, config).message


def _not_found(word: str, catalog: Catalog, env: Mapping[str, str]) -> AgentNotFound:
    looked = "".join(
        f"\n  {LOCATIONS[place.source]}: {place.path} ({'no agent of that name' if place.exists else 'missing'})"
        for place in catalog.places
    )
    return AgentNotFound(
        f"there is no agent {word!r} and no program of that name. Looked in:{looked}\n  PATH: {path_of(env)}",
        report.suggest_agents(word, catalog),
    )


def _refusal(found: UncheckedAgent, authorize: Authorize) -> str | None:
    try:
        authorize(found)
    except HocketError as error:
        return error.message
    return None


def _unlisted(word: str, meant: Meaning, found: UncheckedAgent | None) -> Row:
    """What is no entry of the catalog: a CLI, a program or a path."""
    path = _path(meant, found)
    own = {"name": word, "address": word, "location": meant.source, "source": meant.source, "path": path}
    row = {"field": "name", "value": word, "origin": "default", "path": None, "line": None, "instead_of": None}
    return {**own, "shadows": [], "needs_trust": [], "candidates": [], "fields": [row], "note": None, "trust": None}


def _path(meant: Meaning, found: UncheckedAgent | None) -> str | None:
    if meant.entry:
        return meant.entry.path
    if found is None:
        return meant.program
    return found.agent.definition.path if found.agent.definition else found.agent.path


# --- Models --------------------------------------------------------------------------------------------------


def model_in_use(agent: Agent, config: Config, env: Mapping[str, str]) -> tuple[str | None, str]:
    """The model that a run of an agent of a CLI gets, and where it is from: ``args``, ``own``, ``environment``,
    ``configuration`` or ``default``."""
    if by_args := given_model(agent.args, "--model", "-m"):
        return by_args, "args"
    if own := PRIVILEGES.model_of(agent, None):
        return own, "own"
    if agent.provider == DEFINING_PROVIDER:
        for value, origin in ((env.get(MODEL_VARIABLE), "environment"), (config.claude.model, "configuration")):
            if value and (model := PRIVILEGES.model_of(agent, value)):
                return model, origin
    return None, "default"


def without_model(name: str, agent: Agent, config: Config) -> UsageError:
    """The refusal of an agent without a model, with the file that can name one."""
    if agent.alias is not None:
        file, place = agent.alias, f'model = "MODEL" under [agents.{name}]'
    elif agent.definition is not None:
        file, place = agent.definition.path, "a line with model: MODEL to its head"
    else:
        file = os.path.join(config.home or "", "config.toml")
        is_default = agent.provider == DEFINING_PROVIDER
        place = 'model = "MODEL" under [claude]' if is_default else f'an alias of {name} with model = "MODEL"'
    return UsageError(f"{name} has no model in {file}, and [spawn] require_model is set", f"add {place} in {file}")


# --- Candidates ---------------------------------------------------------------------------------------------


def _candidates(rows: list[Row], name: str, meant: Meaning, found: UncheckedAgent | None) -> list[Row]:
    """The places of the catalog, then the CLIs and PATH; for an alias also what it stands for."""
    alias, source = meant.alias, meant.source or ON_PATH
    is_alias = any(row["source"] == LOCATIONS[ALIAS] and row["verdict"] == USED for row in rows)
    if alias and not is_alias:
        # It has settings for the agent, and is none of its own.
        rows = [row for row in rows if (row["source"], row["path"]) != (LOCATIONS[ALIAS], alias.source)]
        rows.insert(0, candidate_row(NOTHING_HERE, ALIAS, alias.source, None, "its settings apply"))
    if is_alias:
        where = _path(meant, found) or meant.target
        return [*rows, candidate_row(USED, source, where, None, f"{meant.target}, which the alias stands for")]
    return [*rows, *_outside(name, meant, found)]


def _outside(name: str, meant: Meaning, found: UncheckedAgent | None) -> Iterator[Row]:
    if meant.source == BY_PATH:
        yield candidate_row(USED, BY_PATH, _path(meant, found) or name)
        return
    if meant.provider:
        used = meant.source == CLI
        yield candidate_row(USED if used else SHADOWED, CLI, (_path(meant, found) if used else None) or meant.target)
    if meant.program is None:
        yield candidate_row(NOTHING_HERE, ON_PATH, "$PATH", None, "has no program of that name")
    elif meant.source == ON_PATH:
        yield candidate_row(USED, ON_PATH, meant.program)
    else:
        reason = f"{LOCATIONS.get(meant.source or '', meant.source)} comes before PATH"
        yield candidate_row(SHADOWED, ON_PATH, meant.program, None, reason)


# --- Properties ---------------------------------------------------------------------------------------------


def _as_run(
    fields: list[Row], found: UncheckedAgent, meant: Meaning, config: Config, env: Mapping[str, str]
) -> list[Row]:
    """The properties with the values that the agent runs with, where these differ from what the file says."""
    agent, definition = found.agent, found.agent.definition
    rows = {row["field"]: row for row in fields}
    if agent.provider == EXECUTABLE:
        for name in _OF_CLIS:
            rows.pop(name, None)
        _set(rows, "program", agent.path, ("default", None))
        return report.in_order(rows)
    if definition and "description" not in rows:
        _set(rows, "description", definition.fields.get("description"), ("file", definition.path))
        _set(rows, "instructions", None, ("file", definition.path))

    def origin(own: object, ours: object, value: object) -> tuple[str, str | None]:
        """Of a value that no row has: an alias, a config of Hocket's, the definition, or the default."""
        if own:
            source = meant.entry.path if meant.entry else None
            return "configuration", meant.alias.source if meant.alias and ours else source
        return ("file", definition.path) if definition and value is not None else ("default", None)

    alias = meant.alias
    mode = PRIVILEGES.mode_of(agent, config.claude.permission_mode)
    by_args = PRIVILEGES.mode_with(agent.args, mode)
    if by_args != mode:
        _set(rows, "permission_mode", by_args, origin(by_args, by_args, mode))
    else:
        written = PRIVILEGES.permission_mode(definition)
        _set(rows, "permission_mode", mode, origin(agent.permission_mode, alias and alias.permission_mode, written))
    if definition:
        source, provider = found.runtime.source, None if isinstance(found.missing, UsageError) else agent.provider
        kind = "default" if source is None else "file" if source == definition.path else "configuration"
        _set(rows, "runtime", provider, (kind, source))
    if agent.provider == DEFINING_PROVIDER or definition:
        (model, where), own_tools = model_in_use(agent, config, env), PRIVILEGES.tools_of(agent)
        own = {"own": origin(agent.model, alias and alias.model, model), "args": origin(agent.args, alias, model)}
        _set(rows, "model", model, own.get(where, (where, None)))
        tools = None if own_tools is None else list(own_tools)
        _set(rows, "tools", tools, origin(agent.allowed_tools, alias and alias.allowed_tools, tools))
    return report.in_order(rows)


def _set(rows: dict[str, Row], field: str, value: Any, origin: tuple[str, str | None]) -> None:
    """Set a property unless the row has it under any spelling."""
    row = rows.get(field)
    if row and PRIVILEGES.names_in(row["value"]) == PRIVILEGES.names_in(value):
        return
    before = None if row is None else row["value"] if row["origin"] == "file" else row["instead_of"]
    rows[field] = {"field": field, "value": value, "origin": origin[0], "path": origin[1], "line": None}
    rows[field]["instead_of"] = before
