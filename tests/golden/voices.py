"""Two recordings say the same when each voice says the same; which of two voices is heard first may differ.

While a model's message still streams in, its tools are already at work, and agents in the background work when nobody
speaks. So their lines may come a little earlier or later among the others. Within a turn (from ``init`` to ``result``)
and in the time after it, the lines of each voice keep their order:

    the model        parts of messages, whole messages, what is said about them
    each sub-agent   whole messages, and what its tools brought back
    the tools        results, questions, refusals, and what is said about tasks
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from golden.play import kind_of

Scene = dict[str, list[bytes]]

_TOOLS = ("user", "control_request", "control_response", "system/permission_denied")
_TASKS = ("system/task_", "system/background_")


def scenes(lines: Iterable[bytes]) -> list[Scene]:
    """The lines of each voice, turn by turn, with what comes between two turns as scenes of their own."""
    found: list[Scene] = [{}]
    for line in lines:
        kind = kind_of(line)
        if kind == "system/init":
            found.append({})
        found[-1].setdefault(_voice(kind, json.loads(line)), []).append(line)
        if kind == "result":
            found.append({})
    return [scene for scene in found if scene]


def _voice(kind: str, line: Mapping[str, Any]) -> str:
    if parent := line.get("parent_tool_use_id"):
        return str(parent)
    return "tools" if kind in _TOOLS or kind.startswith(_TASKS) else "model"
