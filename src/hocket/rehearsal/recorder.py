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

from hocket.rehearsal.matching import CUT_OFF, STOPPED_BY_SAFETY, Result, flat_text, users_part
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
                self._call(message, str(block.get("id")), _call_of(block))
        self._message = message

    def _call(self, message: str, id: str, call: dict[str, Any]) -> None:
        """Add a call to those of the same message."""
        self._calls[id] = call
        if self._message == message and self._ends_with("together"):
            self.steps[-1]["together"].append(call)
        else:
            self.steps.append({"together": [call]})

    def asked(self, id: str) -> None:
        if (call := self._calls.get(id)) is not None and "tool" in call:
            call["ask"] = {"tool": call["tool"]["name"], **{k: v for k, v in call.pop("tool").items() if k != "name"}}

    def result(self, block: Mapping[str, Any]) -> None:
        call = self._calls.get(str(block.get("tool_use_id")))
        body = None if call is None else call.get("tool", call.get("ask"))
        if call is None or body is None:
            return
        came = Result(flat_text(block.get("content")), block.get("is_error") is True)
        if "ask" in call and came.denied:
            body["denied"] = []
            return
        body["result"] = came.text
        if came.error:
            body["error"] = True

    def cut(self) -> None:
        """Record that the stream broke off and the CLI requests the rest."""
        if self._ends_with("say"):
            self.steps.append(BREAK)

    def fail(self, failure: Step) -> None:
        """What was thought but not followed by a word is lost when a request fails, to the CLI itself as well.

        That the stream breaks off when a failure follows words goes without saying.
        """
        while self._ends_with("think") or self.steps[-1:] == [BREAK]:
            self.steps.pop()
        self.steps.append(failure)

    def stop(self, failure: Step) -> None:
        """Record an interrupt. How the agent would have continued is unknown."""
        if self._ends_with("together"):
            self.fail(failure)

    def _ends_with(self, key: str) -> bool:
        return bool(self.steps) and isinstance(self.steps[-1], dict) and key in self.steps[-1]

    def finished(self) -> list[Step]:
        """Move what followed a denial into its ``denied`` branch; the other branch is unknown."""
        steps: list[Step] = []
        goes_on = steps
        for step in map(_settled, self.steps):
            goes_on.append(step)
            if isinstance(step, dict) and "denied" in step.get("ask", ()):
                goes_on = step["ask"]["denied"]
        return _without_empty_branches(steps)


def _without_empty_branches(steps: list[Step]) -> list[Step]:
    for step in steps:
        ask = step.get("ask", {}) if isinstance(step, dict) else {}
        if "denied" in ask and not _without_empty_branches(ask["denied"]):
            del ask["denied"]
    return steps


def _call_of(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    given = given if isinstance(given, dict) else {}
    if block.get("name") not in AGENT_TOOLS:
        return {"tool": {"name": str(block.get("name")), "input": given}}
    agent = {"type": str(given.get("subagent_type", DEFAULT_TYPE)), "prompt": str(given.get("prompt", ""))}
    told = {"description": given["description"]} if isinstance(given.get("description"), str) else {}
    return {"agent": {**agent, **told, "background": given.get("run_in_background") is True}}


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
        self._untold: list[_AgentSteps] = []
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

    def _voice(self, event: Mapping[str, Any]) -> _AgentSteps:
        parent = event.get("parent_tool_use_id")
        return self._subs[parent][1] if isinstance(parent, str) and parent in self._subs else self._lead

    def _assistant(self, event: Mapping[str, Any]) -> None:
        message = event.get("message")
        if not isinstance(message, dict) or message.get("model") == "<synthetic>":
            return
        voice = self._voice(event)
        for block in _blocks(event):
            voice.block(str(message.get("id")), block)

    def _user(self, event: Mapping[str, Any]) -> None:
        voice = self._voice(event)
        for block in _blocks(event):
            if block.get("type") == "tool_result":
                voice.result(block)
            elif str(block.get("text", "")).startswith(STOPPED_BY_SAFETY):
                voice.steps.append(REFUSE)  # what came before the note; the CLI asks once more
            elif str(block.get("text", "")).startswith(CUT_OFF):
                voice.cut()

    def _asked(self, request: Any) -> None:
        if isinstance(request, dict) and request.get("subtype") == "can_use_tool":
            for voice in (self._lead, *(voice for _, voice in self._subs.values())):
                voice.asked(str(request.get("tool_use_id")))

    def _system(self, event: Mapping[str, Any]) -> None:
        match event.get("subtype"):
            case "init":
                self._turn_begins()
            case "permission_denied":
                self._asked({"subtype": "can_use_tool", "tool_use_id": event.get("tool_use_id")})
            case "task_started":
                begins = users_part(str(event.get("prompt")))[:LONGEST_PROMPT]
                when = {"agent": str(event.get("subagent_type")), "prompt": begins}
                self._subs[str(event.get("tool_use_id"))] = (when, _AgentSteps())
            case "task_notification":
                self._sub_ended(event)

    def _turn_begins(self) -> None:
        if self._is_open:
            self._untold.append(self._lead)
            self._lead = _AgentSteps()
        self._is_open = True

    def _turn_told(self) -> _AgentSteps:
        """The turn of a result. Results come in the order of their turns."""
        if self._untold:
            return self._untold.pop(0)
        told, self._lead, self._is_open = self._lead, _AgentSteps(), False
        return told

    def _sub_ended(self, event: Mapping[str, Any]) -> None:
        """The last text of a sub-agent may be in its report alone."""
        when, voice = self._subs.get(str(event.get("tool_use_id")), (None, self._lead))
        if when is None:
            return
        report = str(event.get("summary", ""))
        if event.get("status") == "failed":
            voice.fail(_failure(report))
        elif not voice.steps or voice.steps[-1] != {"say": report}:
            voice.steps.append({"say": report})

    def _result(self, event: Mapping[str, Any]) -> None:
        woken = isinstance(event.get("origin"), dict)
        self._wakes, self._turns = self._wakes + woken, self._turns + (not woken)
        voice = self._turn_told()
        self._end(voice, event, f"wake {self._wakes}" if woken else f"turn {self._turns}")
        steps = voice.finished()
        if (cost := self._cost(event)) > 0:
            steps.insert(_last_message(steps), {"cost": cost})
        if steps:
            when = {"woken": self._wakes} if woken else {"turn": self._turns}
            self._rules.append({"when": {"agent": self._agent, **when}, "do": steps})

    def _end(self, voice: _AgentSteps, event: Mapping[str, Any], turn: str) -> None:
        """Record the end of a turn that the agent did not choose, and note what a script cannot express."""
        if (failure := _failed_turn(event)) is not None:
            voice.fail(failure)
        elif str(event.get("terminal_reason")).startswith(INTERRUPTED):
            voice.steps.append(HANG)
            self.notes.append(f"{turn} was interrupted: it hangs there until it is interrupted again")
        elif (limit := _limit(event)) is not None:
            voice.stop({"fail": {"status": 400, "message": f"the recorded turn was ended here: {limit}"}})
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
        for number, voice in enumerate([*self._untold, self._lead], self._turns + 1):
            if voice.steps:
                when = {"agent": self._agent, "turn": number}
                self._rules.append({"when": when, "do": [*voice.finished(), HANG]})
                self.notes.append(f"turn {number} has no end: it hangs where the output breaks off")
        heard = [{"when": when, "do": voice.finished()} for when, voice in self._subs.values() if voice.steps]
        return [*self._rules, *_told_apart(heard)]


def _told_apart(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sub-agents with the same prompt are distinguished by their order among those of their type."""
    conditions = [rule["when"] for rule in rules]
    kinds = [when["agent"] for when in conditions]
    return [
        {**rule, "when": {**when, "prompt": _as_text(when["prompt"]), **told}}
        for number, (rule, when) in enumerate(zip(rules, conditions, strict=True))
        for told in [{"pass": kinds[: number + 1].count(when["agent"])} if _alike(when, conditions) > 1 else {}]
    ]


def _alike(when: Mapping[str, Any], conditions: list[dict[str, Any]]) -> int:
    """The number of sub-agents whose rules could match each other's prompts."""
    return sum(
        other["agent"] == when["agent"] and (other["prompt"] in when["prompt"] or when["prompt"] in other["prompt"])
        for other in conditions
    )


def _as_text(prompt: str) -> str:
    """A text between slashes would be read as a regular expression, so it is written as one that matches it."""
    return f"/{re.escape(prompt)}/" if is_regex(prompt) else prompt


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


def _blocks(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield block


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
    notes = tuple(" ".join("".join(map(_printable, note)).split()) for note in recorder.notes)
    return Recording("".join(f"# {note}\n" for note in notes) + text, notes)


def _printable(letter: str) -> str:
    """Replace characters that YAML does not allow in a comment."""
    return letter if letter.isprintable() else " "


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
