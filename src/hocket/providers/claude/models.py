"""Names of models: the aliases that Hocket expands, and those that the Claude CLI cannot have."""

from __future__ import annotations

import re
from collections.abc import Mapping

ALIASES = {"haiku": "claude-haiku-4-5-20251001"}
"""By the name in lower case: the CLI does not resolve them as documented. Other names are passed on unchanged."""


def normalise_model(model: str) -> str:
    return ALIASES.get(model.lower(), model)


_FOREIGN = re.compile(
    r"(?:(?:chat)?gpt|codex|gemini|grok|composer|cursor)(?:-.*|\d.*)?|o[1-9](?:-.*)?", re.IGNORECASE | re.DOTALL
)
"""Names of vendors with services of their own. Models that anyone can serve (qwen, deepseek), names with a path or a
region (openai/gpt-5, us.anthropic.…) and names that are not known may come from a gateway."""
_GATEWAYS = (
    "ANTHROPIC_BASE_URL",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
)


def is_foreign_model(model: str, env: Mapping[str, str]) -> bool:
    """Return whether a model is certainly none of Claude's. A gateway may serve any model under any name."""
    return _FOREIGN.fullmatch(model.strip()) is not None and not any(env.get(name) for name in _GATEWAYS)
