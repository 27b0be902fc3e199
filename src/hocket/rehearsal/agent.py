"""The scripted agent, a program that replaces the Claude CLI.

    python -m hocket.rehearsal.agent SCRIPT STATE FOUND -- ARGUMENTS

ARGUMENTS is the command line of the real program. FOUND is JSON, ``{name: "user" or "project"}``: the agents that the
real program would find in files. ``installer.py`` writes a ``claude`` that calls this.
The program uses no home directory, runs no tools and no network.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hocket.errors import HocketError
from hocket.rehearsal import flags as options
from hocket.rehearsal import stream_events
from hocket.rehearsal.flags import Refusal
from hocket.rehearsal.process import AgentProcess, exit_now, write
from hocket.rehearsal.script import load
from hocket.rehearsal.session import UnknownSession
from hocket.rehearsal.turns import ScriptedAgent

TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str]) -> NoReturn:
    """Run with ``[SCRIPT, STATE, FOUND, "--", *arguments]``. Never returns, because threads may still be reading."""
    if len(arguments) < 4 or arguments[3] != "--":
        write(2, "usage: python -m hocket.rehearsal.agent SCRIPT STATE FOUND -- ARGUMENTS\n")
        exit_now(2)
    signal.signal(signal.SIGTERM, lambda *_: exit_now(TERMINATED))
    try:
        exit_now(run(arguments[0], arguments[1], json.loads(arguments[2]), arguments[4:]))
    except (Refusal, HocketError) as error:
        if isinstance(error, UnknownSession):
            # On the stream too, as the real program does.
            ended = stream_events.error_result("error_during_execution", "error", str(error), stop_reason=None)
            nothing = stream_events.no_usage()
            event = stream_events.result(ended, "rehearsal", nothing, nothing, num_turns=0)
            write(1, stream_events.line(event, error.session))
        write(2, f"{error}\n")
        exit_now(1)


def run(script: str, state: str, found: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run a command line to its end and return the exit code."""
    flags = options.parse(arguments)
    if "--version" in flags.switches:
        write(1, f"{stream_events.IMITATED_VERSION} (Claude Code, rehearsal)\n")
        return 0
    process = AgentProcess(load(script), state, flags, found)
    signal.signal(signal.SIGINT, lambda *_: process.inbox.signal())
    threading.Thread(target=process.read_input, daemon=True).start()
    lead = ScriptedAgent(process, process.agent, process.session.messages)
    return process.serve(lead.turn)


if __name__ == "__main__":
    main(sys.argv[1:])
