"""The names that the Claude command line spells in its own way, so that no other module has to.

Everything else in this room is written in our words; what belongs here is only what travels to or from that program.
"""

from __future__ import annotations

PERMISSION_MODE = "permissionMode"
ACCEPT_EDITS = "acceptEdits"
PERMISSION_MODES = frozenset(
    {ACCEPT_EDITS, "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"},
)
ALLOWED_TOOLS_FLAG = "--allowedTools"
ASK_USER = "AskUserQuestion"
CROSS_SESSION = "crossSessionInbound"
DISABLED_SERVERS = "disabledMcpjsonServers"
UPDATED_INPUT = "updatedInput"
UPDATED_PERMISSIONS = "updatedPermissions"
ADD_RULES, RULE_TOOL, RULE_CONTENT = "addRules", "toolName", "ruleContent"
SEVERAL = "multiSelect"
"""Whether a question may be answered with more than one of its options."""

MODEL_USAGE = "modelUsage"
TOKENS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
COST = "costUSD"
COST_BASIS = "costBasis"

RESETS_AT = "resetsAt"
LIMIT_TYPE = "rateLimitType"
