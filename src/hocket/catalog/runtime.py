"""Which CLI runs a definition: as its alias says, as it says itself, or by its model."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from hocket.config import RUNTIMES
from hocket.config.settings import AgentConfig, Config, ModelRule
from hocket.errors import UsageError
from hocket.model import Agent, Definition
from hocket.providers import PROVIDERS
from hocket.providers.defining import DEFINING_PROVIDER, DEFINITIONS, PRIVILEGES


class Runtime(NamedTuple):
    """The provider that runs a definition, and what chose it."""

    provider: str = DEFINING_PROVIDER
    source: str | None = None
    """The file that chose it; None for the default."""
    reason: str | None = None
    """In words."""
    rule: ModelRule | None = None
    """The rule that its model matches, if that chose it."""


DEFAULT_RUNTIME = Runtime()


def runtime_of(
    definition: Definition | None, alias: AgentConfig | None, config: Config, env: Mapping[str, str]
) -> Runtime:
    """Return the CLI for a definition. Raises UsageError if its model needs another one, and none is configured."""
    if definition is None:
        return DEFAULT_RUNTIME
    if alias and alias.runtime:
        return Runtime(alias.runtime, alias.source, f"runtime in {alias.source}")
    if definition.runtime:
        return Runtime(definition.runtime, definition.path, f"runtime in {definition.path}")
    agent = Agent(definition.name, "", "", "", definition=definition, model=alias.model if alias else None)
    model = PRIVILEGES.model_of(agent, None)
    if model is None:
        return DEFAULT_RUNTIME
    rule = next((one for one in config.models if fnmatchcase(model.lower(), one.pattern.lower())), None)
    if rule:
        return Runtime(rule.runtime, rule.source, f"model {model}, by [models] in {rule.source}", rule)
    if DEFINITIONS.is_foreign_model(model, env):
        raise _undecided(definition, model)
    return DEFAULT_RUNTIME


def _undecided(definition: Definition, model: str) -> UsageError:
    own = PROVIDERS[DEFINING_PROVIDER].program
    others = " or ".join(f'"{name}"' for name in RUNTIMES if name != DEFINING_PROVIDER)
    return UsageError(
        f"{own.label if own else DEFINING_PROVIDER} has no model {model!r}, which {definition.path} asks for, and"
        " no other CLI is configured for it",
        f'choose one in config.toml: [models] "{model}" = {others}; or "{DEFINING_PROVIDER}" if a gateway serves it',
    )
