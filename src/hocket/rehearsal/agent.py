"""The scripted agent, a program that replaces the Claude CLI.

    python -m hocket.rehearsal.agent SCRIPT STATE FOUND -- ARGUMENTS

ARGUMENTS is the command line of the real program. FOUND is JSON, ``{name: "user" or "project"}``: the agents that the
real program would find in files. ``installer.py`` writes a ``claude`` that calls this.
The program uses no home directory, runs no tools and no network.
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
    _listen(process, flags)
    lead = ScriptedAgent(process, process.agent, process.session.messages)
    code = process.serve(lead.turn)
    if not flags.streams and process.last_result is not None:
        _print_result(flags, process.last_result)
    return code


def _process(script: str, state: str, found: Mapping[str, str], flags: Flags) -> AgentProcess:
    defined = options.definitions(flags)
    agents = sub_agents.agents(flags, defined, found)
    wanted = flags.values.get("--agent")
    if wanted is not None and wanted not in defined and not flags.reads_lines:
        raise Refusal(f"--agent '{wanted}' not found. Available agents: {', '.join(agents)}")
    loaded = load(script)
    try:
        session = open_session(state, flags)
    except UnknownSession as unknown:
        _report_unknown_session(flags, unknown)
        raise
    return AgentProcess(loaded, state, flags, defined, agents, session)


def _report_unknown_session(flags: Flags, unknown: UnknownSession) -> None:
    """Report it on the stream too, as the real program does."""
    if flags.streams:
        nothing = stream_events.no_usage()
        totals = stream_events.Totals("rehearsal", nothing, nothing, 0, 0, 0, [], 0, None)
        ended = stream_events.Result(None, "error_during_execution", "error", None, is_error=True, error=str(unknown))
        marks = {"session_id": unknown.session, "uuid": stream_events.new_uuid()}
        write(1, json.dumps({**stream_events.result(ended, totals), **marks}) + "\n")


def _listen(process: AgentProcess, flags: Flags) -> None:
    """Read input lines in a thread; without them, the prompt is the only message."""
    signal.signal(signal.SIGINT, lambda *_: process.inbox.interrupt(SIGNAL))
    if flags.reads_lines:
        threading.Thread(target=_read, args=(process,), daemon=True).start()
        return
    prompt = flags.prompt or _all_of(0).decode("utf-8", "replace")
    if not prompt.strip():
        raise Refusal("Error: Input must be provided either through stdin or as a prompt argument when using --print")
    process.inbox.message(prompt)
    process.inbox.close()


def _read(process: AgentProcess) -> None:
    try:
        process.inbox.read(0)
    except BadLine as error:
        write(2, f"{error}\n")
        leave(1)


def _all_of(descriptor: int) -> bytes:
    found = []
    while chunk := os.read(descriptor, 1 << 16):
        found.append(chunk)
    return b"".join(found)


def _print_result(flags: Flags, result: dict[str, Any]) -> None:
    """Print the result as JSON or text, where no stream was requested."""
    if flags.values.get("--output-format") == "json":
        write(1, json.dumps(result) + "\n")
    else:
        write(1, f"{result.get('result') or (result.get('errors') or [''])[0]}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
