"""Rehearsal: play a chain through without a token, by a script.

Two players of one kind of script, which agree with each other:

- the *scripted agent* (``install``) takes the CLI's place and speaks its stream format; no tool is run;
- the *scripted model* (``ScriptedModel``) takes the API's place, for the real CLI with its real tools.

``record`` turns what a run said into a script that says it again. The script itself is described in ``script.py``.
The names are imported when they are asked for: a scripted agent needs few of them and starts for every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.rehearsal.installer import install
    from hocket.rehearsal.model import ScriptedModel
    from hocket.rehearsal.passes import uncovered_in
    from hocket.rehearsal.play import Conversation, Message, Uncovered, next_message
    from hocket.rehearsal.recorder import Recording, record
    from hocket.rehearsal.script import ScriptError, load, parse
    from hocket.rehearsal.steps import Script

__all__ = [
    "Conversation",
    "Message",
    "Recording",
    "Script",
    "ScriptError",
    "ScriptedModel",
    "Uncovered",
    "install",
    "load",
    "next_message",
    "parse",
    "record",
    "uncovered_in",
]

_HOMES = {
    "Conversation": "play",
    "Message": "play",
    "Recording": "recorder",
    "Script": "steps",
    "ScriptError": "script",
    "ScriptedModel": "model",
    "Uncovered": "play",
    "install": "installer",
    "load": "script",
    "next_message": "play",
    "parse": "script",
    "record": "recorder",
    "uncovered_in": "passes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
