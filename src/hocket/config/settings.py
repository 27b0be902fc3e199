"""What configuration files say together, as frozen values. How it is written is known to ``schema``."""

from __future__ import annotations

import os
from types import MappingProxyType

from hocket.config import Record
from hocket.errors import ConfigError, NotTrusted

TYPE_CHECKING = False  # `typing` would cost the client more than all the rest; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Limits(Record):
    """How far a tree of runs may grow. Only the user's own configuration sets these."""

    depth: int = 5
    children: int = 8
    leaves: int = 64
    min_free_mb: int = 200
    max_output_mb: int = 2048


class ClaudeConfig(Record):
    """How Claude runs where nobody says otherwise."""

    permission_mode: str = "acceptEdits"
    model: str | None = None
    on_question: str = "deny"
    contract: bool = True
    """Whether an agent in a loop is told of the marker."""


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
    project: str | None = None
    """The folder whose own file says all this; None when it is the user's."""


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

    def trusts(self, folder: str) -> bool:
        """Whether the user vouches for a folder: for itself, or for one that it really lies in."""
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


def not_trusted(what: str, wishes: Sequence[str], folder: str) -> NotTrusted:
    """The refusal of what only a trusted folder may ask for, and the line that would allow it."""
    import json

    # JSON's way to write a text is one of TOML's as well.
    return NotTrusted(
        f"{what} asks for {' and '.join(wishes)}, and {folder} is not a trusted folder",
        f"look at it first; to trust it, write in your own config.toml under [trust]: folders = [{json.dumps(folder)}]",
    )


def meant(name: str, known: Iterable[str]) -> str | None:
    """The question that helps whoever misspelled a name; None when nothing is near."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f'did you mean "{near[0]}"?' if near else None
