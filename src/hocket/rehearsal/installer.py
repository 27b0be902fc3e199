"""Makes a scripted agent out of a script: an executable ``claude`` to be found on PATH, or named by HOCKET_CLAUDE.

The script is read and checked here, once, and kept as JSON beside the program: a run then starts without YAML.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import hocket
from hocket.rehearsal.script import parse, read_document

SOURCE = Path(hocket.__file__).parents[1]
NOTHING: Mapping[str, str] = MappingProxyType({})


def install(directory: Path, script: Path, state: Path, found: Mapping[str, str] = NOTHING) -> Path:
    """Writes ``claude`` into a directory and returns its path. Raises ``ScriptError`` for a script that is none.

    ``found`` are the agents that the real program would find in files, each with ``user`` or ``project``: they can be
    sub-agents, besides those that the program brings along or is given.
    """
    document = read_document(script)
    parse(document, str(script))
    directory.mkdir(parents=True, exist_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    played = directory / "script.json"
    played.write_text(json.dumps(document), encoding="utf-8")
    start = directory / "claude.py"
    start.write_text(_start(played.resolve(), state.resolve(), found), encoding="utf-8")
    program = directory / "claude"
    words = (sys.executable, "-I", "-S", str(start.resolve()))
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program.resolve()


def _start(played: Path, state: Path, found: Mapping[str, str]) -> str:
    """Without site packages: they are not needed, and finding them takes longer than the rest of the start."""
    return (
        f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\n"
        "from hocket.rehearsal.agent import main\n"
        f"main([{str(played)!r}, {str(state)!r}, {json.dumps(dict(found))!r}, '--', *sys.argv[1:]])\n"
    )
