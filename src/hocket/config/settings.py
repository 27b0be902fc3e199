"""The values of a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hocket.config import CROSS_SESSION, UNASKED_MODES
from hocket.errors import ConfigError
from hocket.input_limits import DEFAULT_MARKER


class Limits(NamedTuple):
    """Limits of a tree of runs. Only the user's own configuration sets them."""

    depth: int = 5
    children: int = 8
    leaves: int = 64
    min_free_mb: int = 200
    max_output_mb: int = 2048
    estimate_usd_per_mtok: float = 15.0
    """Price of a million tokens where an agent does not report its cost."""
    max_teammates_per_lead: int | None = None
    """Live teammates of one lead; None is no limit."""


class Keep(NamedTuple):
    """Which ended runs `hocket gc` keeps; only the user's own configuration says so. None is no limit."""

    days: float | None = None
    runs: int | None = None
    bytes: int | None = None


class ClaudeConfig(NamedTuple):
    """Defaults for Claude runs."""

    permission_mode: str = "acceptEdits"
    model: str | None = None
    on_question: str | None = None
    """None: a question waits for an answer, unless the run was started unattended."""
    contract: bool = True
    """Explain the marker to agents in a loop."""
    mcp: bool = True
    """Give agents Hocket's MCP server."""
    cross_session: str = CROSS_SESSION[0]
    delegate: str | None = None
    """``DELEGATE`` if calls of sub-agents become runs."""


DEFAULT_PERMISSION_MODE = ClaudeConfig().permission_mode
"""The widest mode that still asks before it runs a command."""


class ModelRule(NamedTuple):
    """Which CLI runs the definitions whose model matches a pattern."""

    pattern: str
    """With ``*`` and ``?``; upper and lower case are the same."""
    runtime: str
    source: str
    project: str | None = None
    """The folder whose file defines it; None for the user's."""


class AgentConfig(NamedTuple):
    """An alias: a name for an agent, with arguments and defaults."""

    source: str
    path: str | None = None
    args: tuple[str, ...] = ()
    default_prompt: str | None = None
    default_prompt_file: str | None = None
    prompt_via: str = "arg"
    model: str | None = None
    permission_mode: str | None = None
    allowed_tools: str | None = None
    delegate: str | None = None
    project: str | None = None
    """The folder whose file defines it; None for the user's."""
    member: tuple[str, str] | None = None
    """Instead of a path: a project, by name or path, and the name of an agent there."""
    runtime: str | None = None
    """The CLI that runs the definition."""
    team: bool | None = None
    """Whether it leads a team of its CLI."""


class StepConfig(NamedTuple):
    """One step of a configured chain."""

    agent: str
    iterations: int | None = None
    args: tuple[str, ...] = ()
    prompt: str | None = None
    prompt_file: str | None = None
    until: str | None = None
    timeout: float | None = None
    budget_usd: float | None = None
    budget_tokens: int | None = None
    idle_timeout: float | None = None
    failures: int | None = None
    no_progress: int | None = None
    isolation: str | None = None
    team: bool | None = None
    """Whether its agent leads a team, in place of what the alias says."""
    group: int | None = None
    """The number of the step that this is a member of; None for a step by itself."""


class ChainConfig(NamedTuple):
    """A named chain."""

    name: str
    source: str
    steps: tuple[StepConfig, ...]
    description: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    until: str | None = None
    marker: str | None = None
    timeout: float | None = None
    permission_mode: str | None = None
    on_question: str | None = None
    gate_timeout: float | None = None
    budget_usd: float | None = None
    budget_tokens: int | None = None
    idle_timeout: float | None = None
    failures: int | None = None
    no_progress: int | None = None
    on_lost: str | None = None
    isolation: str | None = None
    project: str | None = None
    """The folder whose file defines it; None for the user's."""


class WiderMode(NamedTuple):
    """A wider permission mode in a project's file than in the user's own files."""

    project: str
    origin: str
    """The file, and the section or chain in it."""
    mode: str


class Config(NamedTuple):
    """The merged configuration of one directory and one user."""

    agents: Mapping[str, AgentConfig] = MappingProxyType({})
    chains: Mapping[str, ChainConfig] = MappingProxyType({})
    limits: Limits = Limits()
    keep: Keep = Keep()
    stop_grace: float = 5.0
    idle_after: float = 0.0
    """Seconds after which an agent that waits for a message is shown as idle."""
    marker: str = DEFAULT_MARKER
    env_pass: tuple[str, ...] = ()
    claude: ClaudeConfig = ClaudeConfig()
    files: tuple[str, ...] = ()
    """Files that exist, in order of precedence."""
    looked: tuple[str, ...] = ()
    """All paths where a file was looked for."""
    trusted_folders: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    """The program that reports to the user, with its arguments; empty if there is none."""
    ignored: tuple[str, ...] = ()
    """Settings of projects' files that have no effect, each with its file and the reason."""
    registry_file: str | None = None
    """The path of the project's registry file, if it has one."""
    require_model: bool = False
    """Whether an agent of a CLI that no setting gives a model is refused."""
    projects: Mapping[str, str] = MappingProxyType({})
    """Folders by name, for aliases of agents in other projects."""
    models: tuple[ModelRule, ...] = ()
    """The first that matches counts: those of the user's file, then those of the project's."""
    home: str | None = None
    """HOCKET_HOME."""

    own_agents: Mapping[str, AgentConfig] = MappingProxyType({})
    """The user's own aliases, including those hidden by a project's alias of the same name."""
    own_mode: str | None = None
    """The permission mode of the user's own files."""
    wider_modes: tuple[WiderMode, ...] = ()
    """Modes of projects' files beyond ``own_mode``; those of aliases are checked where they are used."""
    users_home: str | None = None
    user_config_dir: str | None = None
    """The folder of the user's own CLI settings and definitions: never a project's, even inside one."""

    @property
    def ceiling(self) -> str:
        """The widest permission mode that needs no approval: that of the user's own files."""
        return self.own_mode or self.claude.permission_mode

    def lists(self, folder: str) -> bool:
        """True if the user's configuration trusts a folder or one above it."""
        real = os.path.realpath(folder)
        return any(_is_within(real, os.path.realpath(trusted)) for trusted in self.trusted_folders)

    def chain(self, name: str) -> ChainConfig:
        """Return the chain of that name."""
        if name in self.chains:
            return self.chains[name]
        if not self.files:
            paths = "".join(f"\n  {path}" for path in self.looked)
            raise ConfigError(f"unknown chain: {name!r}. No configuration file was found. Looked for:{paths}")
        known = ", ".join(sorted(self.chains)) or "none"
        raise ConfigError(f"unknown chain: {name!r}. Available chains: {known}", suggestion(name, self.chains))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# --- Permission modes ---------------------------------------------------------------------------------------

_BY_WIDTH = (("plan",), ("dontAsk",), ("default", "manual"), ("acceptEdits",), *((mode,) for mode in UNASKED_MODES))
"""Permission modes, the narrowest first."""
_WIDTH = {mode: width for width, modes in enumerate(_BY_WIDTH) for mode in modes}


def is_wider(wanted: str, mode: str) -> bool:
    """True if one permission mode allows more than another."""
    # An unknown mode counts as the widest: it may come with a later version of the CLI.
    return _WIDTH.get(wanted, len(_WIDTH)) > _WIDTH.get(mode, 0)


def narrower(one: str, other: str) -> str:
    """Return the permission mode that allows less; the first if they allow the same."""
    return other if is_wider(one, other) else one


def approve_command(*targets: str) -> str:
    """Return the command that approves definitions and folders, quoted for a shell."""
    import shlex

    return shlex.join(("hocket", "trust", *targets))


def edge_command(caller: str, target: str, cwd: str) -> str:
    """Return the command that lets one agent start another with all permissions of the other."""
    import shlex

    return shlex.join(("hocket", "trust", "--edge", caller, target, "--cwd", cwd))


_LONGEST_COMPARED, _MOST_COMPARED = 64, 1000


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known name that is closest to a misspelled one; None if none is close."""
    import difflib
    from itertools import islice

    # Comparing takes the product of the lengths, and a project may choose both.
    near = difflib.get_close_matches(
        name[:_LONGEST_COMPARED], (one for one in islice(known, _MOST_COMPARED) if len(one) <= _LONGEST_COMPARED), n=1
    )
    return f'did you mean "{near[0]}"?' if near else None
