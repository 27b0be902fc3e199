"""Install a scripted agent: an executable ``claude`` for PATH or HOCKET_CLAUDE.

The script is checked here and stored as JSON beside the program, so that a run starts without YAML.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import hocket
from hocket.rehearsal.script import parse, read_document

SOURCE = Path(hocket.__file__).parents[1]


def install(directory: Path, script: Path, state: Path, found: Mapping[str, str] | None = None) -> Path:
    """Write ``claude`` into a directory and return its path. Raises ``ScriptError`` for an invalid script.

    ``found`` maps the agents that the real program would find in files to ``user`` or ``project``: they can be
    sub-agents, like the built-in ones and those on the command line.
    """
    document = read_document(script)
    parse(document, str(script))
    directory.mkdir(parents=True, exist_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    script_file = directory / "script.json"
    script_file.write_text(json.dumps(document), encoding="utf-8")
    start = directory / "claude.py"
    arguments = [str(script_file.resolve()), str(state.resolve()), json.dumps(dict(found or {})), "--"]
    # It needs no site packages.
    start.write_text(
        f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\n"
        "from hocket.rehearsal.agent import main\n"
        f"main([*{arguments!r}, *sys.argv[1:]])\n",
        encoding="utf-8",
    )
    program = directory / "claude"
    words = (sys.executable, "-I", "-S", str(start.resolve()))
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program.resolve()
