"""Talking to a Claude program that runs: what is written to its input, and when there is nothing left to say.

Each function is one of ``Conversation``. What the program says is read in ``reader``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hocket.errors import UsageError
from hocket.model import SESSION, Spec
from hocket.providers.base import Reply, State
from hocket.providers.claude import words
from hocket.providers.claude.prompt import GO_ON, checked_prompt, line, message
from hocket.providers.claude.questions import rule_in
from hocket.providers.claude.serving import refusal, reply, wanted
from hocket.providers.claude.transcript import transcripts
from hocket.providers.claude.verdict import is_finished
from hocket.providers.json_values import list_in
from hocket.providers.limits import bytes_of
from hocket.redaction import MASK

__all__ = [
    "answer",
    "interrupt",
    "is_left",
    "is_over",
    "message",
    "refusal",
    "reply",
    "resumed",
    "transcripts",
    "wanted",
]

_REFUSED = "The user did not allow this."


def answer(question: Mapping[str, Any], reply: Reply) -> str:
    """The line that answers a question, as its event has it."""
    bytes_of(reply.text or "", "the answer", UsageError)
    response = _allowed(question, reply.text) if reply.allow else _denied(reply.text)
    if reply.allow and reply.always and (rule := rule_in(question.get("suggestions") or ())):
        response[words.UPDATED_PERMISSIONS] = [rule[1]]
    return line(
        {
            "type": "control_response",
            "response": {"subtype": "success", "request_id": question["id"], "response": response},
        }
    )


def _denied(text: str | None) -> dict[str, Any]:
    return {"behavior": "deny", "message": text or _REFUSED}


def _allowed(question: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    """Without an input the program takes the one it asked about: also where what we know of it is not all of it."""
    response: dict[str, Any] = {"behavior": "allow"}
    given = question.get("input")
    if not isinstance(given, dict):
        return response
    if question.get("kind") == "choice":
        given = {**given, "answers": _answers(given, text or "")}
    elif MASK.encode() in msgspec.json.encode(given):
        return response
    return {**response, words.UPDATED_INPUT: given}


def _answers(given: Mapping[str, Any], text: str) -> dict[str, str]:
    """By question. Several questions are answered by a line each; what is left over belongs to the last one."""
    questions = [asked for asked in list_in(given, "questions") if isinstance(asked, dict)]
    texts = text.strip().split("\n", max(0, len(questions) - 1))
    return {
        str(asked.get("question", "")): _choice(asked, said.strip())
        for asked, said in zip(questions, texts, strict=False)
        if said.strip()
    }


def _choice(asked: Mapping[str, Any], said: str) -> str:
    """What was meant: a number is that option's, counted from 1, unless an option is called so."""
    labels = [str(option.get("label", "")) for option in list_in(asked, "options") if isinstance(option, dict)]
    if said not in labels and re.fullmatch("[1-9][0-9]?", said) and int(said) <= len(labels):
        return labels[int(said) - 1]
    return said


def interrupt(request: str) -> str:
    """The line that ends the turn that is under way, and nothing else."""
    return line({"type": "control_request", "request_id": request, "request": {"subtype": "interrupt"}})


def is_over(state: State, *, settled: bool) -> bool:
    """Whether its input may end. As long as something works in the background the program stays anyway, and when that
    is done it wakes up once more, and may then have a question."""
    return is_finished({**state, "waking": False, "owed": False} if settled else state, from_outside=True)


def is_left(state: State) -> bool:
    """Whether nothing is at work but commands in the background."""
    return is_finished(state, from_outside=False)


def resumed(spec: Spec, session: str, prompt: str) -> Spec:
    """The spec of a run that goes on where a session ended, in a session of its own: the old one stays as it is."""
    if SESSION not in spec.argv:
        raise UsageError(f"{spec.agent} was not started with a session that can be resumed")
    at = spec.argv.index(SESSION) - 1
    before = spec.argv[: at - 3] if spec.argv[at - 3 : at - 2] == ("--resume",) else spec.argv[:at]
    argv = (*before, "--resume", session, "--fork-session", *spec.argv[at:])
    return replace(spec, argv=argv, prompt=checked_prompt(spec.agent, prompt if prompt.strip() else GO_ON))
