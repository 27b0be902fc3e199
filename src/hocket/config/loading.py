"""Finding configuration files, and making one configuration of what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hocket.config import Place, Record, home_directory, own_unless, places
from hocket.config.reading import read_bounded
from hocket.config.schema import Part, parse
from hocket.config.settings import AgentConfig, ChainConfig, ClaudeConfig, Config, Limits, WiderMode, is_wider, meant
from hocket.errors import ConfigError

MAX_FILE = 1024 * 1024
MEND = "mend the link, or remove it"

Environ = Mapping[str, str]


def env_names(cwd: str, home: str, environ: Environ | None = None) -> tuple[str, ...]:
    """The variables that the configuration passes on: all that a client needs of it."""
    return load(cwd, home, environ).env_pass


def load(cwd: str, home: str, environ: Environ | None = None) -> Config:
    """The configuration for one directory. The nearest file that names an agent or a chain has it."""
    environ = own_unless(environ)
    user = home_directory(environ)
    looked = places(cwd, home, environ)
    found = [(place, raw) for place in looked if (raw := _read(place.path)) is not None]
    own_agents = _own_agents(found, user)
    # A project's chains.json hides the user's: the second is a fallback, not an addition.
    if any(place.rank == "project" and place.json for place, _ in found):
        found = [entry for entry in found if not (entry[0].json and entry[0].rank == "user")]
    parts = [parse(place, raw, user) for place, raw in found]
    modes = (
        part.claude.get("permission_mode") for (place, _), part in zip(found, parts, strict=True) if not place.project
    )
    own_mode = next((mode for mode in modes if mode), ClaudeConfig.permission_mode)
    return _merge(
        parts,
        home=home,
        files=tuple(place.path for place, _ in found),
        looked=tuple(place.path for place in looked),
        own_agents=own_agents,
        own_mode=own_mode,
        wider_modes=tuple(_wider_modes(found, parts, own_mode)),
        users_home=user,
        users_claude=os.path.join(cwd, environ.get("CLAUDE_CONFIG_DIR") or os.path.join(user, ".claude")),
    )


class Look(Record):
    """The chains that files name, for whoever only wants to see them."""

    chains: Mapping[str, ChainConfig]
    problems: Sequence[tuple[str, ConfigError]]
    """Files that cannot be used, each with the reason."""
    places: tuple[str, ...]


def look(cwd: str, home: str, environ: Environ | None = None) -> Look:
    """Every chain that could be run by its name here. A file that is broken hides nothing but its own."""
    environ = own_unless(environ)
    user = home_directory(environ)
    looked = places(cwd, home, environ)
    chains: dict[str, ChainConfig] = {}
    problems: list[tuple[str, ConfigError]] = []
    hidden = False
    for place in looked:
        if place.json and place.rank == "user" and hidden:
            continue  # a project's chains.json takes its place
        try:
            text = _read(place.path)
            hidden = hidden or (place.json and text is not None)
            found = {} if text is None else parse(place, text, user).chains
        except ConfigError as error:
            problems.append((place.path, error))
            hidden = hidden or place.json
        else:
            chains = {**found, **chains}
    return Look(chains, problems, tuple(place.path for place in looked))


def _own_agents(found: Sequence[tuple[Place, str]], user: str) -> dict[str, AgentConfig]:
    """The user's aliases, also of a file that does not count here; such a file may be as broken as it likes."""
    agents: dict[str, AgentConfig] = {}
    for place, raw in reversed(found):
        if place.project is None:
            with suppress(ConfigError):
                agents.update(parse(place, raw, user).agents)
    return agents


def _read(path: str) -> str | None:
    """The text of a configuration file, or None when there is none."""
    raw = read_bounded(path, MAX_FILE, ConfigError)
    if raw is None:
        if os.path.islink(path):  # whoever made it did not mean to be without a configuration
            raise ConfigError(f"cannot read {path}: it links to {os.readlink(path)}, which does not exist", MEND)
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def _wider_modes(found: Sequence[tuple[Place, str]], parts: Sequence[Part], own_mode: str) -> Iterator[WiderMode]:
    for (place, _), part in zip(found, parts, strict=True):
        speakers = {"[claude]": part.claude.get("permission_mode")}
        speakers |= {f'chain "{name}"': chain.permission_mode for name, chain in part.chains.items()}
        for speaker, mode in speakers.items():
            if place.project and mode and is_wider(mode, own_mode):
                yield WiderMode(place.project, f"{place.path}: {speaker}", mode)


def _merge(parts: Sequence[Part], **known: Any) -> Config:
    """One configuration out of several; the parts come with the nearest first."""
    agents: dict[str, AgentConfig] = {}
    projects: dict[str, str] = {}
    chains: dict[str, ChainConfig] = {}
    limits: dict[str, Any] = {}
    run: dict[str, Any] = {}
    claude: dict[str, Any] = {}
    users: dict[str, str] = {}
    for part in reversed(parts):
        agents.update(part.agents)
        projects.update(part.projects)
        users.update({} if part.project else part.projects)
        chains.update(part.chains)
        limits.update(part.limits)
        run.update(part.run)
        claude.update(part.claude)
    passed = dict.fromkeys(name for part in parts for name in part.env_pass)
    return Config(
        # What the user wrote means what the user named: no project's file leads it elsewhere.
        {name: _placed(name, agent, projects if agent.project else users) for name, agent in agents.items()},
        chains,
        Limits(**limits),
        env_pass=tuple(passed),
        claude=ClaudeConfig(**claude),
        trusted_folders=tuple(folder for part in parts for folder in part.trusted_folders),
        projects=projects,
        **known,
        **run,
    )


def _placed(name: str, agent: AgentConfig, projects: Mapping[str, str]) -> AgentConfig:
    """An alias for a project's agent, with the path that this means."""
    if agent.member is None:
        return agent
    project, member = agent.member
    folder = projects.get(project) or (project if "/" in project or project.startswith("~") else None)
    if folder is None:
        known = ", ".join(sorted(projects)) or "none"
        raise ConfigError(
            f'{agent.source}: agent "{name}": there is no project "{project}". Known projects: {known}',
            meant(project, projects) or f'name it under [projects]: {project} = "/its/folder"',
        )
    given = {field: getattr(agent, field) for field in AgentConfig.fields}
    return AgentConfig(**{**given, "path": f"{folder.rstrip('/')}/.claude/agents/{member}"})
