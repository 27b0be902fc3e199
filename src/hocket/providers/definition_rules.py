"""A definition for a CLI that knows no agents: rules for its prompt, and the permission mode that keeps its limits.

Nothing but the mode and the prompt reaches such a CLI. So a list of tools narrows the mode: without a tool that edits
files it allows no changes, and without one that runs any command it does not work without asking. What else the
definition limits becomes a sentence of the instructions, and a notice says that nothing enforces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hocket.config.settings import DEFAULT_PERMISSION_MODE, narrower
from hocket.errors import UsageError
from hocket.model import Agent, Definition
from hocket.providers.base import LaunchRequest
from hocket.providers.claude.privileges import mode_of, model_of
from hocket.providers.launching import step_instructions

_NO_CHANGES = "default"
"""The widest mode in which a CLI that cannot ask changes nothing."""
_EDIT = frozenset({"Edit", "Write", "MultiEdit"})
_RUN = "Bash"
_ALL = ("*",)
_GUARDS = ("hooks", "isolation")
"""Fields that keep an agent from doing harm, for which no sentence is a substitute."""
_UNKNOWN = ("mcpServers", "skills", "initialPrompt", "memory", "effort", "background")


class DefinitionRules(NamedTuple):
    """What a launch makes of a definition, and of the instructions for the step."""

    instructions: str
    mode: str
    model: str | None
    """None for that of the CLI. The default for agents without one is a model of another CLI."""
    notices: tuple[str, ...] = ()


def definition_rules(agent: Agent, request: LaunchRequest, cli: str) -> DefinitionRules:
    """Raises UsageError for what the CLI, named as in messages, could only ignore at the user's risk."""
    if agent.allowed_tools:
        raise UsageError(f"{agent.name}: {cli} has no allowed_tools", "remove it, or set permission_mode")
    mode, own, step = mode_of(agent, request.permission_mode), agent.definition, step_instructions(request)
    model = model_of(agent, None)
    if own is None:
        return DefinitionRules(step, mode, model)
    if guards := [name for name in _GUARDS if name in own.fields]:
        raise UsageError(
            f"{agent.name}: {cli} knows no {' and no '.join(guards)}, which its definition relies on",
            "remove that from the definition, or let Claude run it: runtime: claude",
        )
    limits = dict(_limits(own))
    ignored = [name for name in _UNKNOWN if name in own.fields]
    ignored += ["thinkingBudget"] if own.thinking_budget is not None else []
    ignored += ["delegate"] if own.delegate else []
    texts = (str(own.fields.get("prompt") or ""), "\n".join(limits.values()), step)
    notices = (
        *([f"{agent.name}: {cli} does not enforce {_listed(limits)}, which its prompt asks for"] if limits else []),
        *([f"{agent.name}: {cli} has no use for {_listed(ignored)} of its definition"] if ignored else []),
    )
    return DefinitionRules("\n\n".join(filter(None, texts)), _narrowed(own, mode), model, notices)


def _limits(definition: Definition) -> Iterator[tuple[str, str]]:
    """Each limit with its sentence."""
    fields, servers = definition.fields, definition.allowed_servers
    if "*" not in fields.get("tools", _ALL):
        yield "tools", f"Use only tools of these kinds: {', '.join(fields['tools']) or 'none'}."
    if fields.get("disallowedTools"):
        yield "disallowedTools", f"Do not use tools of these kinds: {', '.join(fields['disallowedTools'])}."
    if "maxTurns" in fields:
        yield "maxTurns", f"Finish within {fields['maxTurns']} turns."
    if servers is not None:
        yield "allowedMcpServers", f"Use only these MCP servers: {', '.join(servers) or 'none'}."


def _narrowed(definition: Definition, mode: str) -> str:
    """The mode without what the lists of tools exclude. A tool with a qualifier is not the whole tool."""
    tools = set(definition.fields.get("tools", _ALL))
    excluded = {entry.partition("(")[0] for entry in definition.fields.get("disallowedTools", ())}
    if excluded & _EDIT or not tools & {*_EDIT, *_ALL}:
        return narrower(mode, _NO_CHANGES)
    if _RUN in excluded or not tools & {_RUN, *_ALL}:
        return narrower(mode, DEFAULT_PERMISSION_MODE)
    return mode


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
