"""The scripted agent, a program that stands in for the real CLI.

    python -m hocket.rehearsal.agent SCRIPT STATE FOUND -- ARGUMENTS

What follows the two dashes is the real program's command line. FOUND is JSON, ``{name: "user" or "project"}``: the
agents that the real program would find in files. ``installer.py`` writes a ``claude`` that calls this.
Nothing here touches a home directory, runs a tool or reaches a network.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hocket.errors import HocketError
from hocket.rehearsal import flags as options
from hocket.rehearsal import roster, stream
from hocket.rehearsal.flags import Flags, Refusal
from hocket.rehearsal.inbox import SIGNAL, BadLine
from hocket.rehearsal.performer import Performer
from hocket.rehearsal.script import load
from hocket.rehearsal.session import UnknownSession, open_session
from hocket.rehearsal.stage import Stage, leave, write

TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str]) -> NoReturn:
    """``[SCRIPT, STATE, FOUND, "--", *the real program's arguments]``. Never returns: threads may still be reading."""
    if len(arguments) < 4 or arguments[3] != "--":
        write(2, "usage: python -m hocket.rehearsal.agent SCRIPT STATE FOUND -- ARGUMENTS\n")
        leave(2)
    signal.signal(signal.SIGTERM, lambda *_: leave(TERMINATED))
    try:
        leave(play(arguments[0], arguments[1], json.loads(arguments[2]), arguments[4:]))
    except (Refusal, HocketError) as error:
        write(2, f"{error}\n")
        leave(1)


def play(script: str, state: str, found: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Plays a command line to its end. What it returns is the exit code."""
    flags = options.parse(arguments)
    if "--version" in flags.switches:
        write(1, f"{stream.IMITATED_VERSION} (Claude Code, rehearsal)\n")
        return 0
    stage = _stage(script, state, found, flags)
    _listen(stage, flags)
    lead = Performer(stage, stage.agent, stage.session.messages)
    code = stage.serve(lead.turn)
    if not flags.streams and stage.last_result is not None:
        _tell(flags, stage.last_result)
    return code


def _stage(script: str, state: str, found: Mapping[str, str], flags: Flags) -> Stage:
    defined = options.definitions(flags)
    agents = roster.agents(flags, defined, found)
    wanted = flags.values.get("--agent")
    if wanted is not None and wanted not in defined and not flags.reads_lines:
        raise Refusal(f"--agent '{wanted}' not found. Available agents: {', '.join(agents)}")
    played = load(script)
    try:
        session = open_session(state, flags)
    except UnknownSession as unknown:
        _tell_unknown(flags, unknown)
        raise
    return Stage(played, state, flags, defined, agents, session)


def _tell_unknown(flags: Flags, unknown: UnknownSession) -> None:
    """With a stream the real program says it there, too."""
    if flags.streams:
        nothing = stream.no_usage()
        totals = stream.Totals("rehearsal", nothing, nothing, 0, 0, 0, [], 0, None)
        ended = stream.Result(None, "error_during_execution", "error", None, is_error=True, error=str(unknown))
        marks = {"session_id": unknown.session, "uuid": stream.new_uuid()}
        write(1, json.dumps({**stream.result(ended, totals), **marks}) + "\n")


def _listen(stage: Stage, flags: Flags) -> None:
    """Where lines are read a thread does it; else the prompt is the only thing that will ever be said."""
    signal.signal(signal.SIGINT, lambda *_: stage.inbox.interrupt(SIGNAL))
    if flags.reads_lines:
        threading.Thread(target=_read, args=(stage,), daemon=True).start()
        return
    prompt = flags.prompt or _all_of(0).decode("utf-8", "replace")
    if not prompt.strip():
        raise Refusal("Error: Input must be provided either through stdin or as a prompt argument when using --print")
    stage.inbox.message(prompt)
    stage.inbox.close()


def _read(stage: Stage) -> None:
    try:
        stage.inbox.read(0)
    except BadLine as error:
        write(2, f"{error}\n")
        leave(1)


def _all_of(descriptor: int) -> bytes:
    found = []
    while chunk := os.read(descriptor, 1 << 16):
        found.append(chunk)
    return b"".join(found)


def _tell(flags: Flags, result: dict[str, Any]) -> None:
    """One object or one text, where nobody asked for a stream."""
    if flags.values.get("--output-format") == "json":
        write(1, json.dumps(result) + "\n")
    else:
        write(1, f"{result.get('result') or (result.get('errors') or [''])[0]}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
