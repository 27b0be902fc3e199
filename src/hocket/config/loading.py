"""Finding configuration files, and merging them into one configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from hocket.config import OWN_ENVIRONMENT, ConfigFile, config_files, home_directory, limits_in
from hocket.config.reading import read_bounded
from hocket.config.schema import ParsedFile, parse
from hocket.config.settings import (
    AgentConfig,
    ChainConfig,
    ClaudeConfig,
    Config,
    Keep,
    Limits,
    WiderMode,
    is_wider,
    suggestion,
)
from hocket.errors import ConfigError

MAX_FILE = 1024 * 1024

Environ = Mapping[str, str]


def env_names(cwd: str, home: str, environ: Environ = OWN_ENVIRONMENT) -> tuple[str, ...]:
    """Return the variables that the configuration passes to agents."""
    return load(cwd, home, environ).env_pass


def load(cwd: str, home: str, environ: Environ = OWN_ENVIRONMENT) -> Config:
    """Return the configuration for a directory. The nearest file that defines an agent or a chain wins."""
    user = home_directory(environ)
    searched = config_files(cwd, home, environ)
    counting = _without_hidden(searched)
    parts = [parse(file, text, user) for file in counting if (text := _read(file.path)) is not None]
    own = [part for part in parts if part.file.project is None]
    modes = (part.claude.get("permission_mode") for part in own)
    own_mode = next((mode for mode in modes if mode), ClaudeConfig().permission_mode)
    # What the user's file defines decides what a project replaces, so it must be readable.
    hidden = [(file, _read(file.path)) for file in searched if file not in counting]
    with suppress(ConfigError):  # other errors in a hidden file do not matter
        own += [parse(file, text, user) for file, text in hidden if text is not None]
    projects = _merged(part.projects for part in parts)
    own_projects = _merged(part.projects for part in parts if part.file.project is None)
    return Config(
        # A project's file must not redirect an alias of the user's.
        {
            name: _with_path(name, agent, projects if agent.project else own_projects)
            for name, agent in _merged(part.agents for part in parts).items()
        },
        _merged(part.chains for part in parts),
        Limits(**_merged(part.limits for part in parts) | limits_in(environ)),
        Keep(**_merged(part.keep for part in parts)),
        env_pass=tuple(dict.fromkeys(name for part in parts for name in part.env_pass)),
        claude=ClaudeConfig(**_merged(part.claude for part in parts)),
        files=tuple(part.file.path for part in parts),
        looked=tuple(file.path for file in searched),
        trusted_folders=tuple(folder for part in parts for folder in part.trusted_folders),
        ignored=tuple(setting for part in parts for setting in part.ignored),
        projects=projects,
        home=home,
        # A project's file must not send a model elsewhere than the user does.
        models=tuple(rule for part in sorted(parts, key=lambda one: bool(one.file.project)) for rule in part.models),
        own_agents=_merged(part.agents for part in own),
        own_mode=own_mode,
        wider_modes=tuple(_wider_modes(parts, own_mode)),
        users_home=user,
        user_config_dir=os.path.join(cwd, environ.get("CLAUDE_CONFIG_DIR") or os.path.join(user, ".claude")),
        # A project cannot lift the user's rule.
        require_model=any(part.require_model for part in parts),
        registry_file=next((part.registry_file for part in parts if part.registry_file is not None), None),
        **_merged(part.run for part in parts),
        **_merged(part.notify for part in parts),
    )


def _merged(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge tables; the first one that has a key wins."""
    merged: dict[str, Any] = {}
    for table in tables:
        merged = {**table, **merged}
    return merged


class NamedChains(NamedTuple):
    """The chains that configuration files define."""

    chains: Mapping[str, ChainConfig]
    problems: Sequence[tuple[str, ConfigError]]
    """Files that cannot be used, each with the reason."""
    places: tuple[str, ...]


def find_chains(cwd: str, home: str, environ: Environ = OWN_ENVIRONMENT) -> NamedChains:
    """Return the chains that can be run by name in a directory. A broken file hides only its own chains."""
    user = home_directory(environ)
    searched = config_files(cwd, home, environ)
    chains: list[Mapping[str, ChainConfig]] = []
    problems: list[tuple[str, ConfigError]] = []
    for file in _without_hidden(searched):
        try:
            if (text := _read(file.path)) is not None:
                chains.append(parse(file, text, user).chains)
        except ConfigError as error:
            problems.append((file.path, error))
    return NamedChains(_merged(chains), problems, tuple(file.path for file in searched))


def _without_hidden(files: Sequence[ConfigFile]) -> list[ConfigFile]:
    """Return the files without the user's ``chains.json`` if the project has one, which replaces it."""
    replaced = any(file.json and file.rank == "project" and os.path.lexists(file.path) for file in files)
    return [file for file in files if not (replaced and file.json and file.rank == "user")]


def _read(path: str) -> str | None:
    """Return the text of a configuration file; None if it does not exist."""
    raw = read_bounded(path, MAX_FILE, ConfigError)
    if raw is None:
        if os.path.islink(path):
            raise ConfigError(
                f"cannot read {path}: it links to {os.readlink(path)}, which does not exist",
                "repair the link, or remove it",
            )
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not valid UTF-8 (byte {error.start})") from error


def _wider_modes(parts: Sequence[ParsedFile], own_mode: str) -> Iterator[WiderMode]:
    for part in parts:
        modes = {"[claude]": part.claude.get("permission_mode")}
        modes |= {f'chain "{name}"': chain.permission_mode for name, chain in part.chains.items()}
        for setting, mode in modes.items():
            if part.file.project and mode and is_wider(mode, own_mode):
                yield WiderMode(part.file.project, f"{part.file.path}: {setting}", mode)


def _with_path(name: str, agent: AgentConfig, projects: Mapping[str, str]) -> AgentConfig:
    """Return an alias with the path of the agent that it names by project and name."""
    if agent.member is None:
        return agent
    project, member = agent.member
    folder = projects.get(project) or (project if "/" in project or project.startswith("~") else None)
    if folder is None:
        known = ", ".join(sorted(projects)) or "none"
        raise ConfigError(
            f'{agent.source}: agent "{name}": unknown project "{project}". Known projects: {known}',
            suggestion(project, projects) or f'define it under [projects]: {project} = "/its/folder"',
        )
    return agent._replace(path=f"{folder.rstrip('/')}/.claude/agents/{member}")
