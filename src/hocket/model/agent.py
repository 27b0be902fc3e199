"""Agents: what can run, and where its definition came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of an agent, as it was read from its file."""

    name: str
    """Its real name, which may differ from that of its file."""
    fields: Mapping[str, Any]
    """The fields of its front matter that the CLI understands, with its body as ``prompt``."""
    path: str
    allowed_agents: tuple[str, ...] | None = None
    """The only agents that it may start; None for any."""
    allowed_servers: tuple[str, ...] | None = None
    """The only MCP servers that it may use; None for all that its CLI finds."""
    runtime: str | None = None
    """The CLI that it asks to be run with, by the name of its provider."""
    delegate: bool = False
    """Whether its calls of sub-agents are to become runs."""
    thinking_budget: int | None = None
    """Tokens that it may use to think; None for no limit."""
    notices: tuple[str, ...] = ()
    """What of its file is ignored."""


class Approval(Struct, frozen=True, rename={"privileges": "wishes", "untrusted_servers": "strangers"}):
    """Something of a project that an agent may use only because the user approved it or trusts the folder."""

    what: str
    """What asks for it."""
    folder: str
    privileges: tuple[str, ...] = ()
    replaced: str | None = None
    """What of the user's own it replaces."""
    file: str | None = None
    """The definition that has to be approved; None for the folder."""
    sha256: str | None = None
    """The hash of the approved definition."""
    untrusted_servers: tuple[str, ...] | None = None
    """Of a trusted folder: untrusted servers around it, which are disabled."""


@dataclass(frozen=True, slots=True)
class DelegationGrant:
    """The user's permission for one agent to start another with all its privileges."""

    caller: tuple[str, str | None]
    target: tuple[str, str | None]
    """Each by name and file."""
    refusal: str
    """The refusal when it is withdrawn."""
    hint: str


@dataclass(frozen=True, slots=True)
class Agent:
    """What can run, and where its definition came from."""

    name: str
    provider: str
    path: str
    """The program to start."""
    source: str
    args: tuple[str, ...] = ()
    default_prompt: str | None = None
    default_prompt_file: str | None = None
    prompt_via: str = "arg"
    definition: Definition | None = None
    cwd: str | None = None
    """The project of the definition; None to work in the caller's directory."""
    trusted: bool = False
    """True if its folder may provide settings, hooks, servers, skills and instructions."""
    model: str | None = None
    permission_mode: str | None = None
    allowed_tools: str | None = None
    delegate: bool = False
    """Whether its alias asks for that too."""
    team: bool = False
    """Whether its alias makes it the lead of a team."""
    alias: str | None = None
    """The configuration file that defines the alias, if it is one."""
    alias_project: str | None = None
    """The folder whose configuration defines the alias; None for the user's."""
    untrusted_servers: tuple[str, ...] = ()
    """Untrusted servers that its CLI would find around a trusted folder."""
    changed: str | None = None
    """The folder, its own or one above, whose approval ended because its content changed."""
    disabled: tuple[str, ...] = ()
    """Contents of an untrusted folder, which are disabled."""
    approvals: tuple[Approval, ...] = ()
