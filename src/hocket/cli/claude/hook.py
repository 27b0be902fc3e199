"""``hocket hook``: the hook by which an agent's call of a sub-agent becomes a run of Hocket.

The CLI carries out a call whose hook fails or takes too long, so every failure is a denial with its reason, in time.
Loaded for each such call, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from hashlib import sha256
from typing import Any, NamedTuple

from hocket import config
from hocket.cli import access
from hocket.cli.usage import FLAG, Group, Option, command
from hocket.errors import Forbidden, HocketError, ServerUnreachable, UnknownAgent, UsageError

SUB_AGENT_TOOLS = ("Agent", "Task")
DEFAULT_AGENT = "general-purpose"
"""What the CLI starts for a call that names no agent."""
UNKNOWN_MODE = "default"
"""For a CLI that does not tell its permission mode: it asks about everything."""
LIMIT_SECONDS = 100.0
"""Less than the time limit of the hook in the settings."""
MAX_INPUT = 32 * 1024 * 1024


class SubAgentCall(NamedTuple):
    """A call of a sub-agent, as the CLI describes it."""

    agent: str
    prompt: str
    session: str
    tool_use: str | None
    cwd: str
    caller: str | None
    """The agent that calls, if the CLI names it."""
    mode: str
    """The permission mode of the session."""

    @property
    def key(self) -> str | None:
        """The idempotency key: a hook that is repeated for the same call starts nothing more."""
        if self.tool_use is None:
            return None
        return f"hook-{sha256(json.dumps([self.session, self.tool_use]).encode()).hexdigest()}"


@command(
    Option("--always", kind=FLAG, help="Take every call, without asking the configuration."),
    examples=("hocket hook pre-tool-use --always < call.json",),
)
def pre_tool_use(always: bool) -> None:
    """Decide about a tool call of Claude, read from standard input: a PreToolUse hook.

    A call of a sub-agent is denied, and started as a run in its place; the reason of the denial says which run it is
    and how to wait for it. Other calls are left alone. Failures are denials too.
    """
    found: list[str | None] = ["Hocket did not answer in time. Look at its runs before you try again."]
    # A thread, because a connection may take longer than the CLI waits.
    thread = threading.Thread(target=lambda: found.append(decision(sys.stdin.buffer.read(MAX_INPUT + 1), always)))
    thread.daemon = True
    thread.start()
    thread.join(LIMIT_SECONDS)
    reason = found[-1]
    if reason is not None:
        denial = {"hook_event_name": "PreToolUse", "permission_decision": "deny", "permission_decision_reason": reason}
        access.write_json(access.camel_keys({"hook_specific_output": denial}))


hook = Group(
    "Answer a hook of an agent's CLI.",
    {"pre-tool-use": pre_tool_use},
    "hocket hook pre-tool-use --always < call.json",
)


def decision(raw: bytes, always: bool) -> str | None:
    """Return the reason for which a call is denied; None to leave it to the CLI."""
    name = "a sub-agent"
    try:
        # A run has a hook of its own if its calls are to become runs.
        call = read_call(raw) if always or config.caller().run is None else None
        if call is None:
            return None
        name = call.agent
        return _start(call) if always or asks_for_runs(call) else None
    except ServerUnreachable as error:
        return f"Hocket did not confirm that it started {name}: {_text(error)}. Look at its runs before you try again."
    except HocketError as error:
        return f"Hocket did not start {name} ({error.code}): {_text(error)}"
    except Exception as error:  # noqa: BLE001 - the CLI would carry out the call
        return f"Hocket did not start {name}: internal error: {error!r}"


def _text(error: HocketError) -> str:
    return f"{error.message}\n{error.hint}" if error.hint else error.message


# --- Input --------------------------------------------------------------------------------------------------


def read_call(raw: bytes) -> SubAgentCall | None:
    """Return the call of a sub-agent that a hook was given; None for another tool. Raises UsageError."""
    if len(raw) > MAX_INPUT:
        raise UsageError(f"the input of the hook is larger than {MAX_INPUT // 2**20} MB")
    try:
        given = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the input of the hook is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise UsageError(f"the input of the hook must be an object; got {type(given).__name__}")
    if _string(given, "tool_name") not in SUB_AGENT_TOOLS:
        return None
    arguments = given.get("tool_input")
    if not isinstance(arguments, dict):
        raise UsageError(f'"tool_input" of the hook must be an object; got {arguments!r:.60}')
    return SubAgentCall(
        agent=_string(arguments, "subagent_type", DEFAULT_AGENT),
        prompt=_string(arguments, "prompt"),
        session=_string(given, "session_id"),
        tool_use=_string(given, "tool_use_id", "") or None,
        cwd=access.directory(_string(given, "cwd", "") or None),
        caller=_string(given, "agent_type", "") or None,
        mode=_string(given, "permission_mode", UNKNOWN_MODE),
    )


def _string(values: dict[str, Any], name: str, default: str | None = None) -> str:
    value = values.get(name, default)
    if isinstance(value, str) and (value or default == ""):
        return value
    raise UsageError(f'"{name}" of the hook must be a non-empty string; got {value!r:.60}')


# --- Starting -----------------------------------------------------------------------------------------------


def asks_for_runs(call: SubAgentCall) -> bool:
    """Whether a call in a session of the user's own becomes a run."""
    from hocket.config.loading import load

    home = config.home()
    if load(home, home).claude.delegate is not None:
        return True
    places = (file.path for file in config.config_files(call.cwd, home) if file.project is not None)
    if call.caller is None and not any(map(os.path.lexists, places)):
        return False
    from hocket.trust import calling_session

    return calling_session.asks_for_runs(call.caller, call.cwd, home, config.process_environment())


def _start(call: SubAgentCall) -> str:
    """Start the run of a call, and return what its caller is told."""
    body: dict[str, Any] = {
        "agent": call.agent,
        "prompt": call.prompt,
        "session": False,
        "caller_session": call.session,
        **config.calling_session(),
    }
    caller = config.caller()
    if caller.run is None:
        body |= {"cwd": call.cwd, "env": access.environment(call.cwd), "caller_mode": call.mode}
        body |= {"caller_agent": call.caller} if call.caller else {}
    elif caller.token is None or caller.url != f"unix:{config.socket_path(config.home())}":
        raise Forbidden(f"run {caller.run} belongs to another HOCKET_HOME than {config.home()}")
    try:
        client = access.connect(talk=False, start=access.start_by_command)
        run = client.request("POST", "/api/runs", body, call.key)
    except UnknownAgent as error:
        raise UnknownAgent(f"{error.message}. {_searched()}", error.hint) from error
    from hocket.providers.claude.delegation_hook import STARTED

    return (
        f"{STARTED}{run['agent']} as run {run['number']} in place of this call, with its"
        " prompt. Do not call it again. For its final message, call the tool mcp__hocket__wait with run"
        f' "{run["id"]}"; without that tool, use Bash: hocket wait {run["id"]}'
    )


def _searched() -> str:
    users = config.claude_directory()
    return f"Searched: .claude/agents of the project, {users}/agents and {users}/agents-library, among others"
