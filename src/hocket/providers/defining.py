"""The provider whose agent files are discovered, with its capabilities."""

from __future__ import annotations

from hocket.providers.claude import definitions, privileges
from hocket.providers.definition_files import Definitions, Privileges

DEFINING_PROVIDER = "claude"
DEFINITIONS: Definitions = definitions
PRIVILEGES: Privileges = privileges
CLI_NAMES = ("claude", "codex", "cursor-agent", "gemini", "opencode", "copilot", "amp")
"""Names that mean a CLI without a definition. No address and no untrusted definition may take one."""
