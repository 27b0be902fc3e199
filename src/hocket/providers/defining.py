"""The provider whose agent files are discovered, with its capabilities."""

from __future__ import annotations

from hocket.providers import PROVIDERS

DEFINING_PROVIDER, DEFINITIONS, PRIVILEGES = next(
    (name, provider.definitions, provider.privileges)
    for name, provider in PROVIDERS.items()
    if provider.definitions is not None and provider.privileges is not None
)
CLI_NAMES = (
    *(provider.program.name for provider in PROVIDERS.values() if provider.program),
    *("gemini", "opencode", "copilot", "amp"),
)
"""Names that mean a CLI without a definition. No address and no untrusted definition may take one."""
