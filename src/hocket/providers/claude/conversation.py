"""What the Claude CLI is told: messages, answers, interruptions, decisions of a hook; and when its work is done."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hocket.errors import PromptError, UsageError
from hocket.providers.base import Answer, State
from hocket.providers.claude.own_hooks import PERMISSION_EVENT
from hocket.providers.claude.questions import asked_by_hook, rule_in
from hocket.providers.claude.verdict import is_done
from hocket.providers.launching import DEFAULT_PROMPT, check_prompt, encoded, prompt_or
from hocket.providers.output_lines import list_in
from hocket.redaction import MASK

_REFUSED = "The user did not allow this."


def checked_prompt(agent: str, prompt: str | None, default: str = DEFAULT_PROMPT) -> str:
    text = prompt_or(default, prompt)  # the CLI does not start a turn without a message
    check_prompt(agent, message(text), hint="put it into a file and have the agent read that")
    return text


def message(text: str) -> str:
    if not text.strip():
        raise PromptError("the message is empty", "write what the agent is to do")
    encoded(text, "the message", PromptError)
    return _line({"type": "user", "message": {"role": "user", "content": text}})


def interrupt(request: str) -> str:
    return _line({"type": "control_request", "request_id": request, "request": {"subtype": "interrupt"}})


def answer(question: Mapping[str, Any], given: Answer) -> str:
    encoded(given.text or "", "the answer", UsageError)
    response = _allowed(question, given.text) if given.allow else _denied(given.text)
    if given.allow and given.always and (rule := rule_in(question.get("suggestions") or ())):
        response["updatedPermissions"] = [rule[1]]
    success = {"subtype": "success", "request_id": question["id"], "response": response}
    return _line({"type": "control_response", "response": success})


def hook_decision(call: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What a hook prints for a call that the CLI asks about, by the ``answer`` event of its question.

    The call is as the CLI described it, where the event has secrets masked and a long input cut.
    """
    if said["allow"]:
        question = asked_by_hook(call)
        given = call["input"] if question["kind"] == "choice" else None
        decision = _allowed({**question, "input": given}, said["text"])
        if said.get("rule") and (rule := rule_in(question["suggestions"], said["rule"])):
            decision["updatedPermissions"] = [rule[1]]
    else:
        decision = _denied(said["text"])
    return {"hookSpecificOutput": {"hookEventName": PERMISSION_EVENT, "decision": decision}}


def is_finished(state: State, settled: bool) -> bool:
    """While a background task runs, the CLI stays anyway, and wakes up once more when it ends."""
    state = {**state, "waking": False, "owed": False} if settled else state
    return is_done(state, from_outside=True)


def is_only_background(state: State) -> bool:
    return is_done(state, from_outside=False)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _denied(text: str | None) -> dict[str, Any]:
    return {"behavior": "deny", "message": text or _REFUSED}


def _allowed(question: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    """Without an input the CLI uses the one it asked about, which may be more than the event contains."""
    response: dict[str, Any] = {"behavior": "allow"}
    given = question.get("input")
    if not isinstance(given, dict):
        return response
    if question.get("kind") == "choice":
        given = {**given, "answers": _answers(given, text or "")}
    elif MASK.encode() in msgspec.json.encode(given):
        return response
    return {**response, "updatedInput": given}


def _answers(given: Mapping[str, Any], text: str) -> dict[str, str]:
    """By question. Several questions are answered by one line each; further lines belong to the last one."""
    questions = [asked for asked in list_in(given, "questions") if isinstance(asked, dict)]
    texts = text.strip().split("\n", max(0, len(questions) - 1))
    return {
        str(asked.get("question", "")): _choice(asked, text.strip())
        for asked, text in zip(questions, texts, strict=False)
        if text.strip()
    }


def _choice(asked: Mapping[str, Any], text: str) -> str:
    """The option with this number, counted from 1, unless an option has that number as its label."""
    labels = [str(option.get("label", "")) for option in list_in(asked, "options") if isinstance(option, dict)]
    if text not in labels and re.fullmatch("[1-9][0-9]?", text) and int(text) <= len(labels):
        return labels[int(text) - 1]
    return text
