"""The variables that tell an agent what it is, who started it, what it is asked, and what it may use.

All of them are made here: some when a start is bound, the others when its process starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hocket.config import MODEL_VARIABLE, REGISTRY_VARIABLE
from hocket.model import Definition, Run, Spec

PROMPT_LIMIT = 32 * 1024
"""Bytes of a prompt in a variable; a longer one is in a file."""
_PROMPT, _PROMPT_FILE = "AGENT_PROMPT", "AGENT_PROMPT_FILE"
_ID, _DEPTH, _PARENT_PID = "CLAUDE_AGENT_ID", "CLAUDE_AGENT_DEPTH", "CLAUDE_PARENT_PID"
_CWD = "AGENT_CWD"
OF_RUN = frozenset({_PROMPT, _PROMPT_FILE, _ID, _DEPTH, _PARENT_PID, _CWD, REGISTRY_VARIABLE})
"""Those that differ from run to run."""


def of_agent(definition: Definition | None, model: str | None, output_style: str | None) -> dict[str, str]:
    """The variables that every run of an agent has. The JSON of a list is ``null`` if nothing is restricted."""
    budget = definition.thinking_budget if definition else None
    return _set(
        {
            "AGENT_MODEL": model,
            MODEL_VARIABLE: model,
            "AGENT_OUTPUT_STYLE": output_style,
            "AGENT_THINKING_BUDGET": None if budget is None else str(budget),
            "AGENT_ALLOWED_AGENTS": json.dumps(definition.allowed_agents if definition else None),
            "AGENT_MCP_SERVERS": json.dumps(definition.allowed_servers if definition else None),
        }
    )


def of_run(run: Run, spec: Spec, parent_pid: int | None, prompt_file: str) -> dict[str, str]:
    """The variables of one run. ``prompt_file`` is where a prompt is that does not fit into a variable."""
    in_file = not is_in_variable(spec.prompt)
    return _set(
        {
            _ID: run.id,
            _DEPTH: str(run.depth),
            _PARENT_PID: None if parent_pid is None else str(parent_pid),
            _CWD: spec.cwd,
            REGISTRY_VARIABLE: run.registry,
            _PROMPT_FILE: prompt_file if in_file else None,
            _PROMPT: None if in_file else spec.prompt,
        }
    )


def is_in_variable(prompt: str | None) -> bool:
    """Whether a prompt fits into a variable, which cannot contain NUL."""
    return prompt is None or ("\0" not in prompt and len(prompt.encode()) <= PROMPT_LIMIT)


def _set(variables: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if value is not None}
