"""Split a recording by source, because the order of lines from different sources varies between runs.

Tools start while a model's message is still streamed, and background agents work between turns. Within a turn (from
``init`` to ``result``), and between two turns, the lines of each source keep their order:

    the model        parts of messages, whole messages, and reports about them
    each sub-agent   whole messages, and the results of its tools
    the tools        results, questions, refusals, and reports about tasks
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from golden.claude_runner import kind_of

LinesBySource = dict[str, list[bytes]]

_TOOLS = ("user", "control_request", "control_response", "system/permission_denied")
_TASKS = ("system/task_", "system/background_")


def turns(lines: Iterable[bytes]) -> list[LinesBySource]:
    """The lines of each source, turn by turn; the time between two turns is an entry of its own."""
    found: list[LinesBySource] = [{}]
    for line in lines:
        kind = kind_of(line)
        if kind == "system/init":
            found.append({})
        found[-1].setdefault(_source(kind, json.loads(line)), []).append(line)
        if kind == "result":
            found.append({})
    return [turn for turn in found if turn]


def _source(kind: str, line: Mapping[str, Any]) -> str:
    if parent := line.get("parent_tool_use_id"):
        return str(parent)
    return "tools" if kind in _TOOLS or kind.startswith(_TASKS) else "model"
