"""The command line of the Claude CLI for an agent, its changes for another prompt, a resumed session and a budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from hocket.config import CROSS_SESSION, PERMISSION_MODES
from hocket.errors import BadDefinition, UsageError
from hocket.model import PROMPT, RUN_DIRECTORY, SESSION, Agent, Spec
from hocket.providers.base import Launch, LaunchRequest
from hocket.providers.claude.conversation import checked_prompt
from hocket.providers.claude.frontmatter import texts
from hocket.providers.claude.own_hooks import EVENT, for_runs, hooks_for_lead
from hocket.providers.claude.privileges import allowed_names, mode_of, model_of
from hocket.providers.claude.settings import OUTPUT_STYLE
from hocket.providers.claude.team import terminal
from hocket.providers.launching import (
    CONTINUE,
    DEFAULT_PROMPT,
    check_arguments,
    check_total,
    given_model,
    step_instructions,
)

_DEFINITIONS = "agents.json"
_SERVERS = "servers.json"
_SERVERS_KEY = "mcpServers"
_SETTINGS_FLAG = "--settings"
_CROSS_SESSION, _DISABLED_SERVERS = "crossSessionInbound", "disabledMcpjsonServers"
_HOOKS = "hooks"
_STREAMS = (
    "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
    "--forward-subagent-text",
)  # fmt: skip
_TEAMMATES = ("--teammate-mode", "in-process")
_TEAM_VARIABLES = {"CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS": "1", "CLAUDE_CODE_ENABLE_TODO_TOOLS": "1"}
"""They turn teams on, and the tools for the tasks that a team shares."""
_TERMINAL_VARIABLES = {"CLAUDE_CODE_SANDBOXED": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
"""The first one skips the CLI's own question whether a folder is trusted: Hocket has decided that."""
_BYPASS_ACCEPTED = "skipDangerousModePermissionPrompt"
_PRINT = frozenset({"-p", "--print", "--input-format", "--output-format"})
"""What makes no sense in a terminal."""
_ECHO = "--replay-user-messages"
"""The only way to learn of messages from other sessions: those that enter a running turn appear nowhere else."""
_FORMATS = ("--input-format", "--output-format")
_USER_SETTINGS_ONLY = ("--setting-sources", "user")
_NO_OTHER_SERVERS = "--strict-mcp-config"
_RESERVED = frozenset({"--agent", "--session-id"})
"""With one of them the CLI would run another agent, or one session under two runs."""
_SMALLEST_BUDGET = 0.000001
"""The CLI refuses a budget of zero."""
_ASK = ("--permission-prompts", "host", "--permission-prompt-tool", "stdio")
_QUESTIONS = {"deny": ("--permission-prompts", "none"), "ask": _ASK, "fail": _ASK}


def launch(agent: Agent, request: LaunchRequest) -> Launch:
    """Arguments of the user come last, so that they override ours."""
    given, own_settings = _split_settings(agent.name, (*agent.args, *request.args))
    settings = _merged_settings(agent.name, own_settings, request.cross_session, agent.untrusted_servers)
    if request.terminal:
        settings[_BYPASS_ACCEPTED] = True
        _add_hooks(agent.name, settings, hooks_for_lead(request.command, delegates=bool(request.hook)))
    elif request.hook:
        _add_hooks(agent.name, settings, {EVENT: [for_runs(request.hook)]})
    echo = (_ECHO,) if settings[_CROSS_SESSION] != CROSS_SESSION[0] else ()
    if any(argument.startswith(_FORMATS) for argument in given):
        request, echo = replace(request, own_server=None), ()  # Neither works in another format.
    work = (*_behaviour(agent, request), _SETTINGS_FLAG, json.dumps(settings), *echo)
    name = agent.definition.name if agent.definition else None
    # Before stand-ins are added, which contain a NUL: no argument of the user may look like one.
    check_arguments(agent.name, (agent.path, *work, *((name,) if name is not None else ()), *given))
    reserved = _RESERVED | (_PRINT if request.terminal else frozenset())
    if taken := sorted({argument.partition("=")[0] for argument in given} & reserved):
        raise UsageError(f"{agent.name}: {taken[0]} cannot be passed on: Hocket sets it", "hocket run AGENT")
    definition = ("--agents", f"{RUN_DIRECTORY}/{_DEFINITIONS}", "--agent", name) if name is not None else ()
    begin, end = (_TEAMMATES, ("--", PROMPT)) if request.terminal else (_STREAMS, ())
    argv = (agent.path, *begin, *_servers(request), "--session-id", SESSION, *work, *definition, *given, *end)
    env = _environment(agent, settings, request)
    check_total(agent.name, argv, {**request.env, **env})
    model = given_model(given, "--model") or model_of(agent, request.model) or _text(settings, "model")
    launched = partial(Launch, argv, files=_files(agent, request), env=env, model=model)
    if request.terminal:
        return launched(stdin="terminal", prompt=terminal.checked_prompt(agent.name, request.prompt))
    prompt = checked_prompt(agent.name, request.prompt)
    return launched(stdin="lines", prompt=prompt, served=request.own_server is not None)


def _environment(agent: Agent, settings: Mapping[str, Any], request: LaunchRequest) -> dict[str, str]:
    """Additions to the agent's environment: its limit for thinking, the output style of its own settings, its team."""
    budget = agent.definition.thinking_budget if agent.definition else None
    style = _text(settings, OUTPUT_STYLE)
    return {
        **({"MAX_THINKING_TOKENS": str(budget)} if budget is not None else {}),
        **({"AGENT_OUTPUT_STYLE": style} if style else {}),
        **(_TEAM_VARIABLES if request.team else {}),
        **(_TERMINAL_VARIABLES if request.terminal else {}),
    }


def _text(settings: Mapping[str, Any], key: str) -> str | None:
    value = settings.get(key)
    return value if isinstance(value, str) and value else None


def with_prompt(spec: Spec, prompt: str) -> Spec:
    return msgspec.structs.replace(spec, prompt=_checked(spec, prompt))


def _checked(spec: Spec, prompt: str | None, default: str = DEFAULT_PROMPT) -> str:
    check = terminal.checked_prompt if spec.has_terminal else checked_prompt
    return check(spec.agent, prompt, default)


def resume(spec: Spec, session: str, prompt: str) -> Spec:
    """Continue a session in a new session; the old one is not changed."""
    if SESSION not in spec.argv:
        raise UsageError(f"{spec.agent} was not started with a session that can be resumed")
    at = spec.argv.index(SESSION) - 1
    before = spec.argv[: at - 3] if spec.argv[at - 3 : at - 2] == ("--resume",) else spec.argv[:at]
    argv = (*before, "--resume", session, "--fork-session", *spec.argv[at:])
    return msgspec.structs.replace(spec, argv=argv, prompt=_checked(spec, prompt, CONTINUE))


def bound(argv: Sequence[str], usd: float) -> tuple[str, ...]:
    """Limit the cost. In front, so that a limit of the user's overrides it."""
    return argv[0], "--max-budget-usd", f"{max(usd, _SMALLEST_BUDGET):.6f}", *argv[1:]


def _behaviour(agent: Agent, request: LaunchRequest) -> tuple[str, ...]:
    if request.on_question not in _QUESTIONS:
        raise UsageError(f"invalid on_question: {request.on_question!r}", f"choose {', '.join(_QUESTIONS)}")
    # For a definition's own model there is no flag: the CLI applies it by itself.
    flagged = replace(agent, definition=None)
    model = model_of(flagged, None if model_of(agent, None) else request.model)
    instructions = step_instructions(request)
    return (
        "--permission-mode",
        _checked_mode(agent.name, mode_of(agent, request.permission_mode)),
        # The flags for tools take all values that follow, so a flag of ours must follow, not an argument of the user.
        *_tools(agent.allowed_tools or "", request.own_server.rules if request.own_server else ()),
        *(() if request.terminal else _QUESTIONS[request.on_question]),
        *(() if agent.trusted else _USER_SETTINGS_ONLY),
        *(() if agent.trusted or request.servers is not None else (_NO_OTHER_SERVERS,)),
        *(("--model", model) if model else ()),
        *(("--append-system-prompt", instructions) if instructions else ()),
    )


def _checked_mode(agent: str, mode: str) -> str:
    if mode not in PERMISSION_MODES:
        raise UsageError(f"invalid permission mode of {agent}: {mode!r}", f"choose {', '.join(PERMISSION_MODES)}")
    return mode


def _files(agent: Agent, request: LaunchRequest) -> Mapping[str, str]:
    contents: dict[str, str] = {}
    if agent.definition:
        named = {agent.definition.name: dict(agent.definition.fields)}
        contents[_DEFINITIONS] = _as_json(named, agent.definition.path)
    if request.servers is not None:
        contents[_SERVERS] = _as_json({_SERVERS_KEY: request.servers}, f"the list of MCP servers for {agent.name}")
    return contents


def _as_json(value: Mapping[str, Any], what: str) -> str:
    try:
        # Values without a JSON form become text: a date in the front matter of a file is the common case.
        return json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadDefinition(f"{what} cannot be written as JSON: {error}") from error


def _servers(request: LaunchRequest) -> tuple[str, ...]:
    """Only the servers of a list, if there is one, and our own.

    A list may contain keys, so it is in a file. Our server comes last: of two with one name the CLI takes the last.
    """
    listed = (f"{RUN_DIRECTORY}/{_SERVERS}",) if request.servers is not None else ()
    own = _own_server(request)
    if not listed and not own:
        return ()
    # The flag takes all values that follow, so a flag must follow.
    return "--mcp-config", *listed, *own, *((_NO_OTHER_SERVERS,) if listed else ())


def _own_server(request: LaunchRequest) -> tuple[str, ...]:
    """Our server: the reader of the CLI's output, which has neither a process nor an address (the type "sdk").

    In a terminal there is no such output, and it is a process.
    """
    own = request.own_server
    if own is None:
        return ()
    in_stream = {"type": "sdk", "name": own.name}
    process = {"command": request.command[0], "args": [*request.command[1:], "mcp"]} if request.terminal else None
    return (json.dumps({_SERVERS_KEY: {own.name: process or in_stream}}),)


# --- Settings -----------------------------------------------------------------------------------------------
# The CLI uses the last ``--settings`` of a command line and ignores the others, so a command line has exactly one.


def _split_settings(agent: str, arguments: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """The arguments without any ``--settings``, and the value of the last one."""
    rest: list[str] = []
    value: str | None = None
    given = iter(arguments)
    for argument in given:
        name, equals, attached = argument.partition("=")
        if name != _SETTINGS_FLAG:
            rest.append(argument)
        elif equals:
            value = attached
        else:
            value = next(given, None)
            if value is None:
                raise UsageError(f"{agent}: {_SETTINGS_FLAG} needs a value", f"{_SETTINGS_FLAG} JSON")
    return tuple(rest), value


def _merged_settings(
    agent: str, given: str | None, cross_session: str, disabled_servers: Sequence[str]
) -> dict[str, Any]:
    """Hocket's settings and the user's. The user's win, but for servers that must stay off."""
    own = _parsed_settings(agent, given) if given and given.strip() else {}
    settings = {_CROSS_SESSION: cross_session, **own}
    if settings[_CROSS_SESSION] not in CROSS_SESSION:
        raise UsageError(
            f"{agent}: invalid {_CROSS_SESSION} in {_SETTINGS_FLAG}: {settings[_CROSS_SESSION]!r}",
            f"choose {', '.join(CROSS_SESSION)}",
        )
    if disabled_servers:
        listed = own.get(_DISABLED_SERVERS, [])
        if not isinstance(listed, list):
            raise UsageError(f"{agent}: {_DISABLED_SERVERS} in {_SETTINGS_FLAG} must be a list; got {listed!r}")
        settings[_DISABLED_SERVERS] = [*listed, *(name for name in disabled_servers if name not in listed)]
    return settings


def _add_hooks(agent: str, settings: dict[str, Any], ours: Mapping[str, Sequence[Any]]) -> None:
    """Add our hooks to those of the user."""
    hooks = settings.get(_HOOKS, {})
    listed = {event: hooks.get(event, []) if isinstance(hooks, dict) else None for event in ours}
    if not all(isinstance(entries, list) for entries in listed.values()):
        raise UsageError(f"{agent}: {_HOOKS} in {_SETTINGS_FLAG} must be an object of lists; got {hooks!r}")
    settings[_HOOKS] = {**hooks, **{event: [*(listed[event] or ()), *entries] for event, entries in ours.items()}}


def _parsed_settings(agent: str, given: str) -> dict[str, Any]:
    """Only JSON: a file's content would not reach the command line, which is recorded and used again by a resume."""
    text = given.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise UsageError(
            f"{agent}: {_SETTINGS_FLAG} must be JSON, not a file, because Hocket adds its own settings; got {given!r}",
            f'{_SETTINGS_FLAG} "$(cat FILE)"',
        )
    try:
        found: dict[str, Any] = json.loads(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{agent}: {_SETTINGS_FLAG} is not valid JSON: {error}") from error
    return found


# --- Tools --------------------------------------------------------------------------------------------------


def _tools(allowed: str, own: Sequence[str]) -> tuple[str, ...]:
    """The CLI splits at commas outside parentheses too, so qualifiers arrive whole.

    ``--tools`` restricts only the CLI's own tools; those of MCP servers are all offered.
    """
    entries = texts(allowed, at_spaces=True)
    known = ("--tools", ",".join(allowed_names(allowed))) if entries else ()
    permitted = ",".join((*entries, *own))
    return (*known, *(("--allowedTools", permitted) if permitted else ()))
