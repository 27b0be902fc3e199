"""The recorded cases of the Claude CLI: a script for its model, and the input of the program. Data only.

A new or changed case needs a new recording: see ``record.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hocket.providers.base import Answer, LaunchRequest

Document = Mapping[str, Any]


class Say(NamedTuple):
    """Send a message."""

    text: str


class Until(NamedTuple):
    """Wait for a line of this kind (see ``kind_of``)."""

    kind: str


class FileExists(NamedTuple):
    """Wait for a file in the project, by which a tool reports that it runs."""

    file: str


class Interrupt(NamedTuple):
    """Interrupt the current turn."""


Action = Say | Until | FileExists | Answer | Interrupt


class Case(NamedTuple):
    rules: tuple[Document, ...]
    prompt: str = "go"
    actions: tuple[Action, ...] = ()
    """What follows the prompt."""
    options: LaunchRequest = LaunchRequest()
    args: tuple[str, ...] = ()
    definition: Document | None = None
    earlier: str | None = None
    """The prompt of an earlier process, whose session the recorded one resumes."""


def _bash(command: str) -> dict[str, Any]:
    return {"name": "Bash", "input": {"command": command, "description": "a command"}}


ASKS = {
    "ask": {
        "tool": "Bash",
        "input": {"command": "sh -c 'echo x > made'", "description": "make a file"},
        "allowed": [{"say": "made it"}],
        "denied": [{"say": "then not"}],
    }
}
CHOICE = {
    "questions": [
        {
            "question": "Which colour?",
            "header": "Colour",
            "options": [{"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}],
            "multiSelect": False,
        }
    ]
}
TOOL = {"tool": _bash("echo one; echo two")}
WORK: Document = {"do": [{"think": "hm\nwell"}, {"say": "first\nlook at it"}, TOOL, {"say": "the end"}]}
IN_THE_BACKGROUND: tuple[Document, ...] = (
    {"when": {"woken": True}, "do": [{"say": "it is back"}]},
    {"when": {"prompt": "look slowly"}, "do": [{"wait": 1.0}, TOOL, {"say": "seen"}]},
    {"do": [{"say": "start"}, {"agent": {"prompt": "look slowly", "background": True}}, {"say": "waiting for it"}]},
)
"""Results come at the end of each turn while input is open, and all at the end of the process once it is closed."""
NEXT = (Until("result"),)
ASKING = LaunchRequest(on_question="ask")
ANYTHING = LaunchRequest(permission_mode="bypassPermissions")


def _fails(status: int) -> Case:
    return Case(({"do": [{"fail": {"status": status, "message": "out of order"}}]},))


CASES: Mapping[str, Case] = {
    "success": Case((WORK,)),
    "definition_in_a_loop": Case(
        ({"when": {"agent": "builder"}, "do": [{"say": "built"}, "marker"]},),
        options=LaunchRequest(loop=True, marker="ALL_BUILT"),
        definition={"description": "builds", "prompt": "You are agent: builder.", "tools": ["Bash", "Read"]},
    ),
    "subagent": Case(
        (
            {
                "when": {"prompt": "look closely"},
                "do": [{"think": "where to look"}, {"say": "looking"}, TOOL, {"say": "seen"}],
            },
            {"do": [{"say": "sending somebody"}, {"agent": {"prompt": "look closely"}}, {"say": "all is done"}]},
        ),
    ),
    "subagent_of_a_subagent": Case(
        (
            {"when": {"prompt": "look inside"}, "do": [{"think": "hm"}, {"say": "it is empty"}]},
            {
                "when": {"prompt": "look closely"},
                "do": [{"say": "looking"}, {"agent": {"prompt": "look inside"}}, {"say": "seen"}],
            },
            {"do": [{"agent": {"prompt": "look closely"}}, {"say": "all is done"}]},
        ),
    ),
    "background": Case(IN_THE_BACKGROUND),
    "background_with_open_input": Case(IN_THE_BACKGROUND, options=ASKING),
    "question_allowed": Case(
        ({"do": [{"say": "may I"}, ASKS]},), actions=(Until("control_request"), Answer(True)), options=ASKING
    ),
    "question_denied": Case(
        ({"do": [{"say": "may I"}, ASKS]},),
        actions=(Until("control_request"), Answer(False, "rather not")),
        options=ASKING,
    ),
    "permission_denied": Case(({"do": [{"say": "I try"}, ASKS]},)),
    "api_error_500": _fails(500),
    "api_error_401": _fails(401),
    "api_error_429": _fails(429),
    "connection_lost": Case(({"do": ["crash"]},)),
    "max_turns": Case((WORK,), args=("--max-turns", "1")),
    "budget": Case(
        ({"do": [{"usage": {"output": 20000}}, TOOL, {"say": "the end"}]},), args=("--max-budget-usd", "0.0001")
    ),
    "interrupt_while_talking": Case(
        (
            {"when": {"prompt": "again"}, "do": [{"say": "here I am"}]},
            {"do": [{"say": "I begin"}, "hang"]},
        ),
        actions=(Until("stream_event/content_block_stop"), Interrupt(), Until("result"), Say("again"), Until("result")),
        options=LaunchRequest(session=True),
    ),
    "interrupt_in_a_tool": Case(
        (
            {"when": {"prompt": "again"}, "do": [{"say": "here I am"}]},
            {"do": [{"say": "I begin"}, {"tool": _bash("sh -c 'touch begun; sleep 300'")}, {"say": "never said"}]},
        ),
        actions=(
            Until("stream_event/message_stop"),
            FileExists("begun"),
            Interrupt(),
            Until("result"),
            Say("again"),
            Until("result"),
        ),
        options=replace(ANYTHING, session=True),
    ),
    "turns": Case(
        (
            {"when": {"turn": 1}, "do": [{"say": "one"}]},
            {"when": {"turn": 2}, "do": [TOOL, {"say": "two"}]},
            {"when": {"turn": 3}, "do": [{"fail": {"status": 500, "message": "out of order"}}]},
            {"do": [{"say": "four"}]},
        ),
        actions=(*NEXT, Say("second"), *NEXT, Say("third"), *NEXT, Say("fourth"), *NEXT),
        options=LaunchRequest(session=True),
    ),
    "cleared": Case(
        ({"when": {"prompt": "again"}, "do": [{"say": "anew"}]}, {"do": [{"say": "one"}]}),
        actions=(*NEXT, Say("/clear"), *NEXT, Say("again"), *NEXT),
        options=LaunchRequest(session=True),
    ),
    "resume": Case(
        ({"when": {"turn": 1}, "do": [{"say": "one"}]}, {"do": [{"say": "two, as I remember"}]}), earlier="begin"
    ),
    "refusal": Case(({"do": ["refuse"]},)),
    "refusal_once": Case(({"do": ["refuse", {"say": "now I do"}]},)),
    "choice": Case(
        ({"do": [{"ask": {"tool": "AskUserQuestion", "input": CHOICE, "allowed": [{"say": "red it is"}]}}]},),
        actions=(Until("control_request"), Answer(True, "red")),
        options=ASKING,
    ),
}
