"""Agents: what can run, and where its definition came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Definition:
    """An agent that a file describes, as it was read: later edits change no history."""

    name: str
    """Its real name, which need not be that of its file."""
    fields: Mapping[str, Any]
    """What its head says and the CLI understands, with its body as ``prompt``."""
    path: str
    allowed_agents: tuple[str, ...] | None = None
    """The only agents that it may start; None for any."""
    allowed_servers: tuple[str, ...] | None = None
    """The only MCP servers that it may have; None for whatever its CLI finds."""


@dataclass(frozen=True, slots=True)
class Vouched:
    """Something of a project's that an agent has only because the user approved it, or vouches for the folder."""

    what: str
    """Who asks for it."""
    folder: str
    wishes: tuple[str, ...] = ()
    replaced: str | None = None
    """What of the user's own it takes the place of."""
    file: str | None = None
    """The definition that has to be approved; without one it is the folder."""
    sha256: str | None = None
    """Of the definition as it was approved."""
    strangers: tuple[str, ...] | None = None
    """Where all that the folder brings along counts: servers around it that were kept off."""


@dataclass(frozen=True, slots=True)
class DelegationGrant:
    """The user's permission for one agent to start another with all that the other may do."""

    caller: tuple[str, str | None]
    target: tuple[str, str | None]
    """Each by its name and its file."""
    refusal: str
    """The refusal when it is withdrawn."""
    hint: str


@dataclass(frozen=True, slots=True)
class Agent:
    """What can run, and where its definition came from."""

    name: str
    provider: str
    path: str
    """The program that is started."""
    source: str
    args: tuple[str, ...] = ()
    default_prompt: str | None = None
    default_prompt_file: str | None = None
    prompt_via: str = "arg"
    definition: Definition | None = None
    cwd: str | None = None
    """The project that the definition belongs to; without one it works where the caller is."""
    trusted: bool = False
    """Whether the folder it works in may bring its own settings, hooks, servers, skills and texts."""
    model: str | None = None
    permission_mode: str | None = None
    allowed_tools: str | None = None
    alias: str | None = None
    """The configuration file that gives it this name, if one does."""
    alias_project: str | None = None
    """The folder whose own configuration has the alias; None where it is the user's, or there is none."""
    strangers: tuple[str, ...] = ()
    """Servers that its CLI would find around a trusted folder and that nobody trusts."""
    changed: str | None = None
    """The folder it works in, or one above, that was trusted until something in it changed."""
    left_off: tuple[str, ...] = ()
    """What there is in a folder that is not trusted, and that it does without."""
    vouched: tuple[Vouched, ...] = ()
