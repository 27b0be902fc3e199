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
    from hocket.rehearsal.recorder import record
    from hocket.rehearsal.script import ScriptError, load, parse
    from hocket.rehearsal.scripted_model import ScriptedModel

_MODULES = {
    "ScriptError": "script",
    "ScriptedModel": "scripted_model",
    "install": "installer",
    "load": "script",
    "parse": "script",
    "record": "recorder",
    "uncovered_in": "conversation_counts",
}

__all__ = ["ScriptError", "ScriptedModel", "install", "load", "parse", "record", "uncovered_in"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
