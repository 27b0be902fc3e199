"""Whether an agent can lead a team here, in which mode, and what has to be done by hand before that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from hocket.config.reading import read_bounded
from hocket.errors import ConfigError, UsageError
from hocket.model import Agent
from hocket.providers import PROVIDERS
from hocket.providers.base import Obstacle, TeamStart
from hocket.workflows.cli_versions import version_numbers, version_text

_LARGEST = 64 * 1024 * 1024
"""The CLI keeps the history of all projects in the file that is read here."""


class TeamMode(NamedTuple):
    """How an installed CLI runs the lead of a team."""

    version: str | None
    """What it prints as its version; None if that is unknown."""
    terminal: bool
    """Whether the lead needs a terminal."""
    obstacle: Obstacle | None
    """What keeps it from starting."""


def team_mode(agent: Agent, cwd: str, env: Mapping[str, str], home: str | None) -> TeamMode:
    """The mode of an agent in a directory; raise if it cannot lead a team. Blocks: call it from a thread."""
    start = PROVIDERS[agent.provider].team_start
    if start is None:
        leads = [one.program.label for one in PROVIDERS.values() if one.team_start is not None and one.program]
        raise UsageError(
            f"{agent.name} cannot lead a team: {_what_it_is(agent.provider)}",
            f"only an agent of {' or '.join(leads)} can; start it without a team",
        )
    mode = mode_of_program(start, agent.path, cwd, env, home)
    if mode.obstacle is not None:
        raise UsageError(f"{agent.name} cannot lead a team: {mode.obstacle.problem}", mode.obstacle.hint)
    return mode


def mode_of_program(start: TeamStart, program: str, cwd: str, env: Mapping[str, str], home: str | None) -> TeamMode:
    """The mode of a program of a CLI, and what keeps it from starting with a team."""
    version = version_text(program, env, home)
    terminal = start.needs_terminal(version_numbers(version))
    obstacle = _obstacle_of_home(start.home(cwd, env))
    if obstacle is None and terminal:
        obstacle = start.obstacle(env, _content(start.confirmed(cwd, env)))
    return TeamMode(version, terminal, obstacle)


def _what_it_is(provider: str) -> str:
    program = PROVIDERS[provider].program
    return f"{program.label} has no teams" if program else "it is a plain program"


def _obstacle_of_home(folder: str | None) -> Obstacle | None:
    """What is wrong with the folder that its CLI keeps teams in."""
    if folder is None:
        return Obstacle("the environment names no home directory", "set HOME")
    if not os.path.isdir(folder):
        found = "is not a directory" if os.path.lexists(folder) else "does not exist"
        return Obstacle(f"{folder}, where its CLI keeps teams, {found}", "start its CLI once in a terminal")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Obstacle(f"{folder}, where its CLI keeps teams, is not writable", f"chmod u+wx {folder}")
    return None


def _content(path: str | None) -> bytes | None:
    try:
        return None if path is None else read_bounded(path, _LARGEST, ConfigError)
    except ConfigError:
        return None
