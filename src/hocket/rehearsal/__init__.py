"""Rehearsal: run a chain by a script, without tokens.

Two programs take the same kind of script and agree with each other:

- the *scripted agent* (``install``) replaces the Claude CLI and speaks its stream format; it runs no tools;
- the *scripted model* (``ScriptedModel``) replaces the API, for real CLIs with their real tools.

``record`` turns the output of a run into a script. ``script.py`` describes scripts. Names are imported on first use,
because the scripted agent needs few of them and starts for every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.rehearsal.conversation_counts import uncovered_in
    from hocket.rehearsal.installer import install
    from hocket.rehearsal.matching import Conversation, Message, Uncovered, next_message
    from hocket.rehearsal.recorder import Recording, record
    from hocket.rehearsal.script import ScriptError, load, parse
    from hocket.rehearsal.scripted_model import ScriptedModel
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

_MODULES = {
    "Conversation": "matching",
    "Message": "matching",
    "Recording": "recorder",
    "Script": "steps",
    "ScriptError": "script",
    "ScriptedModel": "scripted_model",
    "Uncovered": "matching",
    "install": "installer",
    "load": "script",
    "next_message": "matching",
    "parse": "script",
    "record": "recorder",
    "uncovered_in": "conversation_counts",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
