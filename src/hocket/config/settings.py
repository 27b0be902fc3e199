"""What configuration files say together, as frozen values. How it is written is known to ``schema``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hocket.config import CROSS_SESSION, UNASKED_MODES, Record
from hocket.errors import ConfigError


class Limits(Record):
    """How far a tree of runs may grow. Only the user's own configuration sets these."""

    depth: int = 5
    children: int = 8
    leaves: int = 64
    min_free_mb: int = 200
    max_output_mb: int = 2048
    estimate_usd_per_mtok: float = 15.0
    """What a million tokens cost where nobody says what they did."""


class ClaudeConfig(Record):
    """How Claude runs where nobody says otherwise."""

    permission_mode: str = "acceptEdits"
    model: str | None = None
    on_question: str | None = None
    """Without it a question waits for an answer, unless whoever starts the run knows that nobody is there."""
    contract: bool = True
    """Whether an agent in a loop is told of the marker."""
    mcp: bool = True
    """Whether an agent is given our own MCP server."""
    cross_session: str = CROSS_SESSION[0]
    """What happens to messages from other Claude sessions."""


class AgentConfig(Record):
    """An alias: another name for an agent, with what it is given each time."""

    source: str
    path: str | None = None
    args: tuple[str, ...] = ()
    default_prompt: str | None = None
    default_prompt_file: str | None = None
    prompt_via: str = "arg"
    model: str | None = None
    permission_mode: str | None = None
    allowed_tools: str | None = None
    project: str | None = None
    """The folder whose own file says all this; None when it is the user's."""
    member: tuple[str, str] | None = None
    """Instead of a path: a project, by its name or as a path, and the name of an agent there."""


class StepConfig(Record):
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
    group: int | None = None
    """Which step of the chain it is a member of; None when it is a step by itself."""


class ChainConfig(Record):
    """A chain with a name."""

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
    """The folder whose own file says all this; None when it is the user's."""


class WiderMode(Record):
    """A project's file that gives agents a wider permission mode than the user's own files do."""

    project: str
    speaker: str
    """The file and the section or chain in it."""
    mode: str


class Config(Record):
    """Everything that the files of one directory and one user say together."""

    agents: Mapping[str, AgentConfig] = MappingProxyType({})
    chains: Mapping[str, ChainConfig] = MappingProxyType({})
    limits: Limits = Limits()
    stop_grace: float = 5.0
    marker: str = "FORKHESTRA_COMPLETE"
    env_pass: tuple[str, ...] = ()
    claude: ClaudeConfig = ClaudeConfig()
    files: tuple[str, ...] = ()
    """Those that were there, the one that wins first."""
    looked: tuple[str, ...] = ()
    """Every place where one could have been."""
    trusted_folders: tuple[str, ...] = ()
    projects: Mapping[str, str] = MappingProxyType({})
    """Names for folders, so that an agent of another project can be told in few words."""
    home: str | None = None
    """HOCKET_HOME, where more of what the user wrote may lie."""

    own_agents: Mapping[str, AgentConfig] = MappingProxyType({})
    """The user's own aliases, also those that a project's alias of the same name hides."""
    own_mode: str | None = None
    """The permission mode that the user's own files give."""
    wider_modes: tuple[WiderMode, ...] = ()
    """What projects' files ask for beyond ``own_mode``; aliases are checked where they are used."""
    users_home: str | None = None
    users_claude: str | None = None
    """Where the user's own Claude keeps its settings and definitions: never a project's, wherever it lies."""

    @property
    def ceiling(self) -> str:
        """The widest permission mode that needs no approval: the user's own, whatever a project's file says."""
        return self.own_mode or self.claude.permission_mode

    def lists(self, folder: str) -> bool:
        """Whether the user's configuration vouches for a folder and all that comes to be in it."""
        real = os.path.realpath(folder)
        return any(_is_within(real, os.path.realpath(trusted)) for trusted in self.trusted_folders)

    def chain(self, name: str) -> ChainConfig:
        """The chain of that name, or an error that says which ones there are."""
        if name in self.chains:
            return self.chains[name]
        if not self.files:
            places = "".join(f"\n  {place}" for place in self.looked)
            raise ConfigError(f"there is no chain {name!r}, and no configuration file. Looked for:{places}")
        known = ", ".join(sorted(self.chains)) or "none"
        raise ConfigError(f"there is no chain {name!r}. Available chains: {known}", meant(name, self.chains))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# --- Permission modes ---------------------------------------------------------------------------------------

_BY_WIDTH = (("plan",), ("dontAsk",), ("default", "manual"), ("acceptEdits",), *((mode,) for mode in UNASKED_MODES))
"""Permission modes, the narrowest first: reading only, what was allowed before, what is asked for, edits too."""
_WIDTH = {mode: width for width, modes in enumerate(_BY_WIDTH) for mode in modes}


def is_wider(wanted: str, mode: str) -> bool:
    """Whether one permission mode allows more than another."""
    # A word that is no mode of ours may be one of a later version's.
    return _WIDTH.get(wanted, len(_WIDTH)) > _WIDTH.get(mode, 0)


def narrower(one: str, other: str) -> str:
    """Of two permission modes the one that allows less; the first where they allow the same."""
    return other if is_wider(one, other) else one


def approval(*targets: str) -> str:
    """The command that approves definitions and folders, as it can be typed anywhere."""
    import shlex

    return shlex.join(("hocket", "trust", *targets))


def edge_command(caller: str, target: str, cwd: str) -> str:
    """The command by which the user lets one agent start another with all that the other may do."""
    import shlex

    return shlex.join(("hocket", "trust", "--edge", caller, target, "--cwd", cwd))


_LONGEST_COMPARED, _MOST_COMPARED = 64, 1000


def meant(name: str, known: Iterable[str]) -> str | None:
    """The question that helps whoever misspelled a name; None when nothing is near."""
    import difflib
    from itertools import islice

    # Both may be a project's, and comparing takes the product of their lengths.
    near = difflib.get_close_matches(
        name[:_LONGEST_COMPARED], (one for one in islice(known, _MOST_COMPARED) if len(one) <= _LONGEST_COMPARED), n=1
    )
    return f'did you mean "{near[0]}"?' if near else None
