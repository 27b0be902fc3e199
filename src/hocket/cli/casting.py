"""Who of a chain is played by a script, what they say where nobody wrote one, and what is said about a script.

Pure: values in, values and lines out. Nothing here starts, reads or prints anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hocket.model import BoundChain, Spec, Step
    from hocket.rehearsal import Script, Uncovered
    from hocket.rehearsal.steps import When

CLAUDE = "claude"
DEFINITIONS = "--agents"
SHOWN = 200
PASSES = 2
"""A loop that nobody wrote a script for is over after so many: enough to see that it is one."""


class Role(NamedTuple):
    """One step of a chain that a script plays."""

    agent: str
    """The name that the script knows it by."""
    definition: str
    prompt: str
    passes: int
    """How often it speaks before it says the marker; 0 where it is asked only once."""
    marker: str


def roles(chain: BoundChain) -> list[Role]:
    return [_role(step) for step in chain.steps if step.spec.provider == CLAUDE]


def programs(chain: BoundChain) -> list[str]:
    """What is run for real, since a script has nothing to say about it: plain programs, and the gate."""
    gate = [f"the gate ({chain.until})"] if chain.until else []
    return list(dict.fromkeys([*(step.agent for step in chain.steps if step.spec.provider != CLAUDE), *gate]))


def _role(step: Step) -> Role:
    name, definition = _definition(step.spec)
    passes = min(PASSES, step.iterations) if step.loop else 0
    return Role(name, definition, step.spec.prompt or "", passes, step.spec.marker)


def _definition(spec: Spec) -> tuple[str, str]:
    """The definition is handed over as a file, with one name in it. The CLI alone has none, but other files."""
    for option, value in pairwise(spec.argv):
        if option == DEFINITIONS and (content := spec.files.get(value.rpartition("/")[2])):
            for name, fields in json.loads(content).items():
                return name, str(fields.get("prompt") or "")
    return CLAUDE, ""


# --- A script for any chain ---------------------------------------------------------------------------------


def usual_script(cast: Sequence[Role]) -> dict[str, Any]:
    """Each agent says who it is and what it was asked; a loop ends by its marker."""
    rules: list[dict[str, Any]] = []
    spoken: dict[str, int] = {}
    for role in cast:
        for number in range(1, max(role.passes, 1) + 1):
            spoken[role.agent] = spoken.get(role.agent, 0) + 1
            steps: list[Any] = [{"say": _introduction(role, number)}]
            when = {"agent": role.agent, "pass": spoken[role.agent]}
            rules.append({"when": when, "do": [*steps, "marker"] if number == role.passes else steps})
    # A gate that does not pass lets a loop go on; then all that is left to say is the marker.
    rules += [{"when": {"agent": role.agent}, "do": ["marker"]} for role in cast if role.passes]
    markers = {role.marker for role in cast}
    return {"version": 1, "rules": rules, "default": "fail", **({"marker": markers.pop()} if len(markers) == 1 else {})}


def _introduction(role: Role, number: int) -> str:
    asked = role.prompt if len(role.prompt) <= SHOWN else role.prompt[:SHOWN] + "…"
    turn = f", pass {number}" if role.passes else ""
    return f"I am {role.agent}{turn}. I was asked: {asked}"


# --- What is said about a script ----------------------------------------------------------------------------


def complaint(uncovered: Sequence[Uncovered], script: str) -> list[str]:
    """What the script had no answer to, and the rules that would give one."""
    times = "a request" if len(uncovered) == 1 else f"{len(uncovered)} requests"
    return [
        f"✗ the script did not cover {times}: {script}",
        *(f"  {_request(request)}" for request in uncovered),
        "add to its rules:",
        *(line for request in uncovered for line in _rule(request)),
    ]


def _request(request: Uncovered) -> str:
    turn = f"wake {request.woken}" if request.woken else f"turn {request.turn}"
    return f"agent {request.agent}, {turn}, pass {request.passage}, last message {_quoted(request.last)}"


def _rule(request: Uncovered) -> list[str]:
    """YAML. It asks for no more than tells this request from the first one of its agent."""
    when = {"agent": _quoted(request.agent)}
    if request.woken:
        when["woken"] = str(request.woken)
    elif request.turn > 1:
        when["turn"] = str(request.turn)
    if request.passage > 1:
        when["pass"] = str(request.passage)
    asked = ", ".join(f"{key}: {value}" for key, value in when.items())
    return [f"  - when: {{{asked}}}", "    do:", '      - say: "…"']


def _quoted(text: str) -> str:
    """JSON's way to write a text is one of YAML's, and shows nothing that a terminal would obey."""
    return text if text.isascii() and text.replace("-", "").replace("_", "").isalnum() else json.dumps(text)


def unused(script: Script, conversations: Mapping[str, int]) -> list[str]:
    """Rules that cannot have been needed: their agent was never there, or not as often as they ask for."""
    return [
        f"rule {number} ({_condition(rule.when)})"
        for number, rule in enumerate(script.rules, 1)
        if rule.when.agent is not None and conversations.get(rule.when.agent, 0) < (rule.when.passage or 1)
    ]


def _condition(when: When) -> str:
    return f"{when.agent}, pass {when.passage}" if when.passage else f"{when.agent}"
