"""Names that the Claude CLI spells in camel case: flags, settings, and keys of its JSON lines."""

from __future__ import annotations

PERMISSION_MODE = "permissionMode"
PERMISSION_MODES = frozenset({"acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"})
ALLOWED_TOOLS_FLAG = "--allowedTools"
ASK_USER = "AskUserQuestion"
CROSS_SESSION = "crossSessionInbound"
DISABLED_SERVERS = "disabledMcpjsonServers"
UPDATED_INPUT = "updatedInput"
UPDATED_PERMISSIONS = "updatedPermissions"
ADD_RULES, RULE_TOOL, RULE_CONTENT = "addRules", "toolName", "ruleContent"
MULTI_SELECT = "multiSelect"

MODEL_USAGE = "modelUsage"
TOKENS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
COST = "costUSD"
COST_BASIS = "costBasis"

RESETS_AT = "resetsAt"
LIMIT_TYPE = "rateLimitType"
