"""``hocket hook``: calls of sub-agents become runs of Hocket, and permission requests of a team's lead its questions.

The CLI carries out a call whose hook fails or takes too long, so every failure is a denial with its reason, in time. A
failing permission request prints nothing: the terminal asks as well. Loaded for each such call, so it imports nothing
heavy.
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
from hocket.client import quote
from hocket.errors import Conflict, Forbidden, HocketError, ServerUnreachable, UnknownAgent, UsageError

SUB_AGENT_TOOLS = ("Agent", "Task")
DEFAULT_AGENT = "general-purpose"
"""What the CLI starts for a call that names no agent."""
UNKNOWN_MODE = "default"
"""For a CLI that does not tell its permission mode: it asks about everything."""
LIMIT_SECONDS = 100.0
"""Less than the time limit of the hook in the settings."""
MAX_INPUT = 32 * 1024 * 1024
MAX_BODY = 16 * 1024 * 1024
"""That of a request to the server."""


class SubAgentCall(NamedTuple):
    """A call of a sub-agent, as the CLI describes it."""

    agent: str
    name: str | None
    """Of the teammate that it starts, in the lead of a team."""
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
    Option("--team", kind=FLAG, help="Calls with a name start teammates: only check their limit."),
    examples=("hocket hook pre-tool-use --always < call.json",),
)
def pre_tool_use(always: bool, team: bool) -> None:
    """Decide about a tool call of Claude, read from standard input: a PreToolUse hook.

    A call of a sub-agent is denied, and started as a run in its place; the reason of the denial says which run it is
    and how to wait for it. Other calls are left alone. Failures are denials too.
    """
    found: list[str | None] = ["Hocket did not answer in time. Look at its runs before you try again."]
    # A thread, because a connection may take longer than the CLI waits.
    thread = threading.Thread(target=lambda: found.append(decision(sys.stdin.buffer.read(MAX_INPUT + 1), always, team)))
    thread.daemon = True
    thread.start()
    thread.join(LIMIT_SECONDS)
    reason = found[-1]
    if reason is not None:
        denial = {"hook_event_name": "PreToolUse", "permission_decision": "deny", "permission_decision_reason": reason}
        access.write_json(access.camel_keys({"hook_specific_output": denial}))


@command(examples=("hocket hook permission-request < request.json",))
def permission_request() -> None:
    """Have a person decide about a tool call of Claude, read from standard input: a PermissionRequest hook of a run.

    The call becomes a question of the run. Its answer is printed as a decision; nothing is printed where the terminal
    decides: when it was answered there, when the run has ended, and after a failure.
    """
    try:
        decided = permission_decision(sys.stdin.buffer.read(MAX_INPUT + 1))
    except Exception as error:  # noqa: BLE001 - the terminal decides
        print(f"hocket: {error}", file=sys.stderr)
        return
    if decided is not None:
        access.write_json(decided)


hook = Group(
    "Answer a hook of an agent's CLI.",
    {"pre-tool-use": pre_tool_use, "permission-request": permission_request},
    "hocket hook pre-tool-use --always < call.json",
)


# --- Sub-agents ---------------------------------------------------------------------------------------------


def decision(raw: bytes, always: bool, team: bool = False) -> str | None:
    """Return the reason for which a call is denied; None to leave it to the CLI."""
    name = "a sub-agent"
    try:
        # A run has a hook of its own if its calls are to become runs.
        call = read_call(raw) if always or team or config.caller().run is None else None
        if call is None:
            return None
        name = call.agent
        if team and call.name is not None:
            return _check_teammate(call.name)
        return _start(call) if always or (not team and asks_for_runs(call)) else None
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
    _check_size(raw)
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
        name=name if isinstance(name := arguments.get("name"), str) and name else None,
        prompt=_string(arguments, "prompt"),
        session=_string(given, "session_id"),
        tool_use=_string(given, "tool_use_id", "") or None,
        cwd=access.directory(_string(given, "cwd", "") or None),
        caller=_string(given, "agent_type", "") or None,
        mode=_string(given, "permission_mode", UNKNOWN_MODE),
    )


def _check_size(raw: bytes) -> None:
    if len(raw) > MAX_INPUT:
        raise UsageError(f"the input of the hook is larger than {MAX_INPUT // 2**20} MB")


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
    if config.caller().run is None:
        body |= {"cwd": call.cwd, "env": access.environment(call.cwd), "caller_mode": call.mode}
        body |= {"caller_agent": call.caller} if call.caller else {}
    else:
        _own_run()
    try:
        client = access.connect(talk=False, start=access.start_by_command)
        run = client.request("POST", "/api/runs", body, call.key)
    except UnknownAgent as error:
        raise UnknownAgent(f"{error.message}. {_searched()}", error.hint) from error
    from hocket.providers.claude.own_hooks import STARTED

    return (
        f"{STARTED}{run['agent']} as run {run['number']} in place of this call, with its"
        " prompt. Do not call it again. For its final message, call the tool mcp__hocket__wait with run"
        f' "{run["id"]}"; without that tool, use Bash: hocket wait {run["id"]}'
    )


def _own_run() -> str:
    """The run that this process belongs to, if the server of this home is that of the run."""
    caller = config.caller()
    if caller.run is None:
        raise Conflict("the hook is for runs of Hocket")
    if caller.token is None or caller.url != f"unix:{config.socket_path(config.home())}":
        raise Forbidden(f"run {caller.run} belongs to another HOCKET_HOME than {config.home()}")
    return caller.run


def _check_teammate(name: str) -> str | None:
    """The reason for which the caller may have no further teammate."""
    try:
        path = f"/api/runs/{quote(_own_run())}/teammates"
        access.connect(talk=False, start=access.start_by_command).request("POST", path, {"name": name})
    except HocketError as error:
        return f"Hocket did not allow the teammate {name} ({error.code}): {_text(error)}"
    return None


def _searched() -> str:
    users = config.claude_directory()
    return f"Searched: .claude/agents of the project, {users}/agents and {users}/agents-library, among others"


# --- Permission requests ------------------------------------------------------------------------------------


def permission_decision(raw: bytes) -> dict[str, Any] | None:
    """Ask about a call, wait for the answer, and return what is printed; None if the terminal decides."""
    from hocket.providers.claude.conversation import hook_decision

    call, run = read_permission(raw), _own_run()
    client = access.connect(talk=False)
    since = client.run(run)["seq"]
    asked = client.request("POST", f"/api/runs/{quote(run)}/permissions", call)
    answered = access.wait_for_answer(client, run, asked["id"], since, in_turn=False)
    said = answered["data"] if answered is not None else {"allow": None}
    return None if said["allow"] is None else hook_decision(call, said)


def read_permission(raw: bytes) -> dict[str, Any]:
    """Return the call that a hook was given, as the server takes it. Raises UsageError."""
    from hocket.providers.output_lines import decoded, list_in, text_in

    _check_size(raw)
    given = decoded(raw)
    if given is None or not isinstance(given.get("tool_input"), dict):
        raise UsageError('the input of the hook must be a JSON object with "tool_input"')
    call = {
        "tool": _string(given, "tool_name"),
        "input": given["tool_input"],
        "suggestions": list_in(given, "permission_suggestions"),
        # The CLI also names the main agent of a session, which has no id.
        "agent": text_in(given, "agent_type") or None if given.get("agent_id") else None,
    }
    if len(json.dumps(call)) > MAX_BODY:
        raise UsageError(f"the call is larger than {MAX_BODY // 2**20} MB")
    return call
