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
from hocket.rehearsal import stream_events, sub_agents
from hocket.rehearsal.flags import Flags, Refusal
from hocket.rehearsal.input_queue import SIGNAL, BadLine
from hocket.rehearsal.process import AgentProcess, leave, write
from hocket.rehearsal.script import load
from hocket.rehearsal.session import UnknownSession, open_session
from hocket.rehearsal.turns import ScriptedAgent

TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str]) -> NoReturn:
    """Run with ``[SCRIPT, STATE, FOUND, "--", *arguments]``. Never returns, because threads may still be reading."""
    if len(arguments) < 4 or arguments[3] != "--":
        write(2, "usage: python -m hocket.rehearsal.agent SCRIPT STATE FOUND -- ARGUMENTS\n")
        leave(2)
    signal.signal(signal.SIGTERM, lambda *_: leave(TERMINATED))
    try:
        leave(run(arguments[0], arguments[1], json.loads(arguments[2]), arguments[4:]))
    except (Refusal, HocketError) as error:
        write(2, f"{error}\n")
        leave(1)


def run(script: str, state: str, found: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run a command line to its end and return the exit code."""
    flags = options.parse(arguments)
    if "--version" in flags.switches:
        write(1, f"{stream_events.IMITATED_VERSION} (Claude Code, rehearsal)\n")
        return 0
    process = _process(script, state, found, flags)
    signal.signal(signal.SIGINT, lambda *_: process.inbox.interrupt(SIGNAL))
    threading.Thread(target=_read, args=(process,), daemon=True).start()
    lead = ScriptedAgent(process, process.agent, process.session.messages)
    return process.serve(lead.turn)


def _process(script: str, state: str, found: Mapping[str, str], flags: Flags) -> AgentProcess:
    defined = options.definitions(flags)
    agents = sub_agents.agents(flags, defined, found)
    loaded = load(script)
    try:
        session = open_session(state, flags)
    except UnknownSession as unknown:
        _report_unknown_session(unknown)
        raise
    return AgentProcess(loaded, state, flags, defined, agents, session)


def _report_unknown_session(unknown: UnknownSession) -> None:
    """Report it on the stream too, as the real program does."""
    nothing = stream_events.no_usage()
    totals = stream_events.Totals("rehearsal", nothing, nothing, 0, 0, 0, [], 0, None)
    ended = stream_events.Result(None, "error_during_execution", "error", None, is_error=True, error=str(unknown))
    marks = {"session_id": unknown.session, "uuid": stream_events.new_uuid()}
    write(1, json.dumps({**stream_events.result(ended, totals), **marks}) + "\n")


def _read(process: AgentProcess) -> None:
    try:
        process.inbox.read(0)
    except BadLine as error:
        write(2, f"{error}\n")
        leave(1)


if __name__ == "__main__":
    main(sys.argv[1:])
