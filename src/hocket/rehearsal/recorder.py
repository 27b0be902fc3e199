"""Turn the output of a run into a script: ``record(lines, agent)``. Pure.

Each turn becomes a rule, and each conversation of a sub-agent another. Prompts are not part of the output, so a turn
is matched by its number, and a sub-agent by the beginning of its prompt. Events that a script cannot express, such as
interrupts, become notes at the head of the script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal.matching import CUT_OFF, STOPPED_BY_SAFETY, ReceivedResult, dicts, flat_text, users_part
from hocket.rehearsal.script import is_regex
from hocket.rehearsal.steps import AGENT_TOOLS, DEFAULT_TYPE

LONGEST_PROMPT = 80
REFUSE, BREAK, HANG = "refuse", "break", "hang"
INTERRUPTED = "aborted_"
"""How the reason of an interrupted turn begins."""
UNREACHABLE = 500
"""Recorded for an API without a response, which has the same effect."""

Step = Any


class Recording(NamedTuple):
    script: str
    """YAML with the notes."""
    notes: tuple[str, ...]
    """What the script cannot express, one sentence each."""


class _AgentSteps:
    """The conversation of one agent, as far as it is known."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._message: str | None = None
        self._calls: dict[str, dict[str, Any]] = {}
        """Tool calls in the steps that have no result yet."""

    def block(self, message: str, block: Mapping[str, Any]) -> None:
        match block.get("type"):
            case "text":
                self.steps.append({"say": str(block.get("text", ""))})
            case "thinking":
                self.steps.append({"think": str(block.get("thinking", ""))})
            case "tool_use":
                if self._message != message or not self.ends_with("together"):
                    self.steps.append({"together": []})
                self._calls[str(block.get("id"))] = call = _call_of(block)
                self.steps[-1]["together"].append(call)
        self._message = message

    def asked(self, id: str) -> None:
        if (call := self._calls.get(id)) is not None and "tool" in call:
            call["ask"] = {"tool": call["tool"]["name"], **{k: v for k, v in call.pop("tool").items() if k != "name"}}

    def result(self, block: Mapping[str, Any]) -> None:
        call = self._calls.get(str(block.get("tool_use_id")))
        body = None if call is None else call.get("tool", call.get("ask"))
        if call is None or body is None:
            return
        came = ReceivedResult(flat_text(block.get("content")), block.get("is_error") is True)
        if "ask" in call and came.denied:
            body["denied"] = []
            return
        body["result"] = came.text
        if came.error:
            body["error"] = True

    def fail(self, failure: Step) -> None:
        """Record a failure. It loses thoughts that no text follows, and a break before it is implied."""
        while self.ends_with("think") or self.steps[-1:] == [BREAK]:
            self.steps.pop()
        self.steps.append(failure)

    def ends_with(self, key: str) -> bool:
        return bool(self.steps) and isinstance(self.steps[-1], dict) and key in self.steps[-1]

    def finished(self) -> list[Step]:
        """Move what followed a denial into its ``denied`` branch; the other branch is unknown."""
        steps: list[Step] = []
        for step in reversed(list(map(_settled, self.steps))):
            if isinstance(step, dict) and "denied" in step.get("ask", ()):
                if steps:
                    step["ask"]["denied"] = steps
                else:
                    del step["ask"]["denied"]
                steps = []
            steps = [step, *steps]
        return steps


def _call_of(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    given = given if isinstance(given, dict) else {}
    if block.get("name") not in AGENT_TOOLS:
        return {"tool": {"name": str(block.get("name")), "input": given}}
    agent = {"type": str(given.get("subagent_type", DEFAULT_TYPE)), "prompt": str(given.get("prompt", ""))}
    described = {"description": given["description"]} if isinstance(given.get("description"), str) else {}
    return {"agent": {**agent, **described, "background": given.get("run_in_background") is True}}


def _settled(step: Step) -> Step:
    """A single call becomes a step of its own."""
    if not isinstance(step, dict) or "together" not in step:
        return step
    calls = step["together"]
    if len(calls) == 1:
        return calls[0]
    for call in calls:
        call.get("ask", {}).pop("denied", None)  # among several it decides nothing
    return {"tools": [call.get("tool", call) for call in calls]}


class _Recorder:
    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._rules: list[dict[str, Any]] = []
        self._lead = _AgentSteps()
        self._is_open = False
        self._pending: list[_AgentSteps] = []
        """Turns without a result although a later one has begun, which happens after the end of input."""
        self._subs: dict[str, tuple[dict[str, Any], _AgentSteps]] = {}
        """By the id of the call that started them: their condition and their steps."""
        self._turns = self._wakes = 0
        self._spent: float | None = None
        self.notes: list[str] = []

    def take(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "assistant":
                self._assistant(event)
            case "user":
                self._user(event)
            case "control_request":
                self._asked(event.get("request"))
            case "system":
                self._system(event)
            case "result":
                self._result(event)

    def _steps_of(self, event: Mapping[str, Any]) -> _AgentSteps:
        parent = event.get("parent_tool_use_id")
        return self._subs[parent][1] if isinstance(parent, str) and parent in self._subs else self._lead

    def _assistant(self, event: Mapping[str, Any]) -> None:
        message = event.get("message")
        if not isinstance(message, dict) or message.get("model") == "<synthetic>":
            return
        agent = self._steps_of(event)
        for block in _blocks(event):
            agent.block(str(message.get("id")), block)

    def _user(self, event: Mapping[str, Any]) -> None:
        agent = self._steps_of(event)
        for block in _blocks(event):
            if block.get("type") == "tool_result":
                agent.result(block)
            elif str(block.get("text", "")).startswith(STOPPED_BY_SAFETY):
                agent.steps.append(REFUSE)  # what came before the note; the CLI asks once more
            elif str(block.get("text", "")).startswith(CUT_OFF) and agent.ends_with("say"):
                agent.steps.append(BREAK)  # the CLI requests the rest

    def _asked(self, request: Any) -> None:
        if isinstance(request, dict) and request.get("subtype") == "can_use_tool":
            for agent in (self._lead, *(agent for _, agent in self._subs.values())):
                agent.asked(str(request.get("tool_use_id")))

    def _system(self, event: Mapping[str, Any]) -> None:
        match event.get("subtype"):
            case "init":
                if self._is_open:
                    self._pending.append(self._lead)
                    self._lead = _AgentSteps()
                self._is_open = True
            case "permission_denied":
                self._asked({"subtype": "can_use_tool", "tool_use_id": event.get("tool_use_id")})
            case "task_started":
                begins = users_part(str(event.get("prompt")))[:LONGEST_PROMPT]
                when = {"agent": str(event.get("subagent_type")), "prompt": begins}
                self._subs[str(event.get("tool_use_id"))] = (when, _AgentSteps())
            case "task_notification":
                self._sub_ended(event)

    def _sub_ended(self, event: Mapping[str, Any]) -> None:
        """The last text of a sub-agent may be in its report alone."""
        when, agent = self._subs.get(str(event.get("tool_use_id")), (None, self._lead))
        if when is None:
            return
        report = str(event.get("summary", ""))
        if event.get("status") == "failed":
            agent.fail(_failure(report))
        elif not agent.steps or agent.steps[-1] != {"say": report}:
            agent.steps.append({"say": report})

    def _result(self, event: Mapping[str, Any]) -> None:
        woken = isinstance(event.get("origin"), dict)
        self._wakes, self._turns = self._wakes + woken, self._turns + (not woken)
        if self._pending:
            agent = self._pending.pop(0)  # results come in the order of their turns
        else:
            agent, self._lead, self._is_open = self._lead, _AgentSteps(), False
        self._end(agent, event, f"wake {self._wakes}" if woken else f"turn {self._turns}")
        steps = agent.finished()
        if (cost := self._cost(event)) > 0:
            steps.insert(_last_message(steps), {"cost": cost})
        if steps:
            when = {"woken": self._wakes} if woken else {"turn": self._turns}
            self._rules.append({"when": {"agent": self._agent, **when}, "do": steps})

    def _end(self, agent: _AgentSteps, event: Mapping[str, Any], turn: str) -> None:
        """Record the end of a turn that the agent did not choose, and note what a script cannot express."""
        if (failure := _failed_turn(event)) is not None:
            agent.fail(failure)
        elif str(event.get("terminal_reason")).startswith(INTERRUPTED):
            agent.steps.append(HANG)
            self.notes.append(f"{turn} was interrupted: it hangs there until it is interrupted again")
        elif (limit := _limit(event)) is not None:
            if agent.ends_with("together"):
                agent.fail({"fail": {"status": 400, "message": f"the recorded turn was ended here: {limit}"}})
            self.notes.append(f"{turn} did not end by itself ({limit}): the same end needs the same limit again")

    def _cost(self, event: Mapping[str, Any]) -> float:
        """The cost of this turn. The first result of a resumed session includes the cost before it."""
        total = event.get("total_cost_usd")
        if not isinstance(total, int | float) or isinstance(total, bool):
            return 0.0
        before = self._spent if self._spent is not None else _before(event, float(total))
        self._spent = float(total)
        return round(self._spent - before, 9)

    def rules(self) -> list[dict[str, Any]]:
        for number, agent in enumerate([*self._pending, self._lead], self._turns + 1):
            if agent.steps:
                when = {"agent": self._agent, "turn": number}
                self._rules.append({"when": when, "do": [*agent.finished(), HANG]})
                self.notes.append(f"turn {number} has no end: it hangs where the output breaks off")
        return [*self._rules, *self._rules_of_sub_agents()]

    def _rules_of_sub_agents(self) -> Iterator[dict[str, Any]]:
        """Those with the same prompt are distinguished by their order among those of their type."""
        subs = [sub for sub in self._subs.values() if sub[1].steps]
        for number, (when, agent) in enumerate(subs, 1):
            kind, prompt = when["agent"], when["prompt"]
            same_kind = [other["prompt"] for other, _ in subs if other["agent"] == kind]
            # A text between slashes would be read as a regular expression, so it is written as one that matches it.
            condition = {"agent": kind, "prompt": f"/{re.escape(prompt)}/" if is_regex(prompt) else prompt}
            if sum(other in prompt or prompt in other for other in same_kind) > 1:
                condition["pass"] = sum(other["agent"] == kind for other, _ in subs[:number])
            yield {"when": condition, "do": agent.finished()}


def _before(event: Mapping[str, Any], total: float) -> float:
    since = event.get("model_usage_since_last_result")
    if not isinstance(since, dict):
        return 0.0
    spent = (used.get("costUSD") for used in since.values() if isinstance(used, dict))
    return total - sum(cost for cost in spent if isinstance(cost, int | float))


def _last_message(steps: list[Step]) -> int:
    """The index of the last message of a turn: after the last call, except one that it ends with."""
    said = steps[:-1] if steps and (steps[-1] == HANG or "fail" in steps[-1]) else steps
    calls = [number for number, step in enumerate(said[:-1], 1) if {"tool", "tools", "ask", "agent"} & set(step)]
    return calls[-1] if calls else 0


def _failure(report: str) -> Step:
    """The failure of a sub-agent, of which only its report is known."""
    found = re.search(r"API Error: ([45]\d\d) (.*)", report, re.DOTALL)
    return {"fail": {"status": int(found[1]), "message": found[2]} if found else {"status": 400, "message": report}}


def _failed_turn(event: Mapping[str, Any]) -> Step | None:
    """The step for a turn that the API failed."""
    text, status = str(event.get("result") or ""), event.get("api_error_status")
    if isinstance(status, int):
        return {"fail": {"status": status, "message": text.removeprefix(f"API Error: {status} ")}}
    if event.get("is_error") is not True or event.get("terminal_reason") != "api_error":
        return None
    if event.get("stop_reason") == "refusal":
        return REFUSE
    return {"fail": {"status": UNREACHABLE, "message": text.removeprefix("API Error: ")}}


def _limit(event: Mapping[str, Any]) -> str | None:
    """The limit that ended a turn, in the CLI's words."""
    if event.get("is_error") is not True:
        return None
    errors = event.get("errors")
    return str(errors[0] if isinstance(errors, list) and errors else event.get("result") or event.get("subtype"))


def _blocks(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = event.get("message")
    return dicts(message.get("content")) if isinstance(message, dict) else []


def record(lines: Iterable[bytes], agent: str) -> Recording:
    """The script of a run, from the lines of its standard output. Lines that are not events are skipped."""
    recorder = _Recorder(agent)
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            recorder.take(event)
    text = _written({"version": 1, "rules": recorder.rules(), "default": "fail"})
    # YAML does not allow every character in a comment.
    printable = ("".join(letter if letter.isprintable() else " " for letter in note) for note in recorder.notes)
    notes = tuple(" ".join(note.split()) for note in printable)
    return Recording("".join(f"# {note}\n" for note in notes) + text, notes)


def _written(document: Mapping[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Write multi-line texts as blocks and no references, for readability."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    written: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    return written
