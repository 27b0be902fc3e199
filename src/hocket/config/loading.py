"""Finding configuration files, and making one configuration of what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.config import UNASKED_MODES, Place, home_directory, own_unless, places
from hocket.config.reading import read_bounded
from hocket.config.schema import Part, parse
from hocket.config.settings import AgentConfig, ChainConfig, ClaudeConfig, Config, Limits, meant, not_trusted
from hocket.errors import ConfigError

MAX_FILE = 1024 * 1024

Environ = Mapping[str, str]


def env_names(cwd: str, home: str, environ: Environ | None = None) -> tuple[str, ...]:
    """The variables that the configuration passes on: all that a client needs of it."""
    return load(cwd, home, environ).env_pass


def load(cwd: str, home: str, environ: Environ | None = None) -> Config:
    """The configuration for one directory. The nearest file that names an agent or a chain has it."""
    looked = places(cwd, home, own_unless(environ))
    found = [(place, raw) for place in looked if (raw := _read(place.path)) is not None]
    # A project's chains.json hides the user's: the second is a fallback, not an addition.
    if any(place.rank == "project" and place.json for place, _ in found):
        found = [entry for entry in found if not (entry[0].json and entry[0].rank == "user")]
    parts = [parse(place, raw, home_directory(own_unless(environ))) for place, raw in found]
    config = _merge(parts, [place.path for place, _ in found], [place.path for place in looked])
    for (place, _), part in zip(found, parts, strict=True):
        _check_trust(place, part, config)
    return config


def _read(path: str) -> str | None:
    """The text of a configuration file, or None when there is none."""
    raw = read_bounded(path, MAX_FILE, ConfigError)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def _check_trust(place: Place, part: Part, config: Config) -> None:
    """Raise when a project's file lets agents do what they like, and nobody vouches for the project.

    An alias that asks for it is refused where it is used: it concerns nobody else.
    """
    speakers = {"[claude]": part.claude.get("permission_mode")}
    speakers |= {f'chain "{name}"': chain.permission_mode for name, chain in part.chains.items()}
    wanting = [(speaker, mode) for speaker, mode in speakers.items() if mode in UNASKED_MODES]
    if place.project and wanting and not config.trusts(place.project):
        speaker, mode = wanting[0]
        raise not_trusted(f"{place.path}: {speaker}", [f"permission mode {mode}"], place.project)


def _merge(parts: Sequence[Part], files: Sequence[str], looked: Sequence[str]) -> Config:
    """One configuration out of several; the parts come with the nearest first."""
    agents: dict[str, AgentConfig] = {}
    projects: dict[str, str] = {}
    chains: dict[str, ChainConfig] = {}
    limits: dict[str, int] = {}
    run: dict[str, Any] = {}
    claude: dict[str, Any] = {}
    for part in reversed(parts):
        agents.update(part.agents)
        projects.update(part.projects)
        chains.update(part.chains)
        limits.update(part.limits)
        run.update(part.run)
        claude.update(part.claude)
    passed = dict.fromkeys(name for part in parts for name in part.env_pass)
    return Config(
        {name: _placed(name, agent, projects) for name, agent in agents.items()},
        chains,
        Limits(**limits),
        env_pass=tuple(passed),
        files=tuple(files),
        looked=tuple(looked),
        claude=ClaudeConfig(**claude),
        trusted_folders=tuple(folder for part in parts for folder in part.trusted_folders),
        projects=projects,
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
