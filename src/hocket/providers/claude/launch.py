"""An agent becomes a command line of the Claude program. What that program says in return is read elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from hocket.config import CROSS_SESSION
from hocket.errors import BadDefinition, UsageError
from hocket.model import RUN_DIRECTORY, SESSION, Agent, Definition, Spec
from hocket.providers.base import NOTHING, Launch, Options
from hocket.providers.claude import launch_settings, words
from hocket.providers.claude.prompt import checked_prompt
from hocket.providers.instructions import step_instructions
from hocket.providers.limits import check_argument, check_total

_DEFINITIONS = "agents.json"
_SERVERS = "servers.json"
_SERVERS_KEY = "mcpServers"
_STREAMS = (
    "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
)  # fmt: skip
_ECHO = "--replay-user-messages"
"""The only way to learn of messages from other sessions: those that enter a running turn appear nowhere else."""
_FORMATS = ("--input-format", "--output-format")
_USERS_SETTINGS = ("--setting-sources", "user")
_NO_OTHER_SERVERS = "--strict-mcp-config"
_OURS = frozenset({"--agent", "--session-id"})
"""With one of them the program would run another agent than we say, perhaps none, or one session under two runs."""
_SAY = "hocket run AGENT"
_LEAST_BUDGET = 0.000001
"""The program takes no budget of nothing."""
_QUESTIONS = {
    "deny": ("--permission-prompts", "none"),
    "ask": ("--permission-prompts", "host", "--permission-prompt-tool", "stdio"),
    "fail": ("--permission-prompts", "host", "--permission-prompt-tool", "stdio"),
}


def launch(
    agent: Agent,
    step_args: Sequence[str] = (),
    extra_args: Sequence[str] = (),
    prompt: str | None = None,
    env: Mapping[str, str] = NOTHING,
    options: Options = Options(),  # noqa: B008 - a tuple, which nobody can change
) -> Launch:
    """The command line of one start. Users' own arguments come last, so that they win over ours."""
    given, own_settings = launch_settings.split(agent.name, (*agent.args, *step_args, *extra_args))
    settings = launch_settings.merged(agent.name, own_settings, options.cross_session, agent.strangers)
    echo = (_ECHO,) if settings[words.CROSS_SESSION] != CROSS_SESSION[0] else ()
    if any(argument.startswith(_FORMATS) for argument in given):
        options = options._replace(own=None)  # Who changes how it speaks cannot have it speak with us.
        echo = ()
    work = (*_how_to_work(agent, options), launch_settings.FLAG, json.dumps(settings), *echo)
    name = (agent.definition.name,) if agent.definition else ()
    # What we add with a NUL in it stands for something of the run's own; nothing of anybody's else may look like it.
    for argument in (agent.path, *work, *name, *given):
        check_argument(agent.name, argument)
    _check_flags(agent, {argument.partition("=")[0] for argument in given})
    ours = (*_servers(options), "--session-id", SESSION, *work, *_definition(agent.definition))
    argv = (agent.path, *_STREAMS, *ours, *given)
    model = _model(agent, options)
    added = {"AGENT_MODEL": model, "CLAUDE_RUNNER_MODEL": model} if model else {}
    check_total(agent.name, argv, {**env, **added})
    served = options.own is not None
    return Launch(argv, "lines", checked_prompt(agent.name, prompt), _files(agent, options), added, served)


def _check_flags(agent: Agent, flags: Set[str]) -> None:
    if taken := sorted(flags & _OURS):
        raise UsageError(f"{agent.name}: {taken[0]} is not passed on: who runs, in which session, is ours to say", _SAY)


def prompted(spec: Spec, prompt: str) -> Spec:
    """The same start with another prompt."""
    return replace(spec, prompt=checked_prompt(spec.agent, prompt))


def within(argv: Sequence[str], usd: float) -> tuple[str, ...]:
    """The same command line with a bound on what it costs. In front, so that a user's own word wins over ours."""
    return argv[0], "--max-budget-usd", f"{max(usd, _LEAST_BUDGET):.6f}", *argv[1:]


def _how_to_work(agent: Agent, options: Options) -> tuple[str, ...]:
    return (
        "--permission-mode",
        _permission_mode(agent, options),
        # These two take as many values as follow them, so what follows must be a flag of ours and no word of a user's.
        *_tools(agent.allowed_tools or "", options.own.rules if options.own else ()),
        *_questions(options.on_question),
        *(() if agent.trusted else _USERS_SETTINGS),
        *(() if agent.trusted or options.servers is not None else (_NO_OTHER_SERVERS,)),
        *_model_flag(agent, options),
        *_contract(options),
    )


def _permission_mode(agent: Agent, options: Options) -> str:
    own = agent.definition.fields.get(words.PERMISSION_MODE) if agent.definition else None
    mode = agent.permission_mode or own or options.permission_mode
    if not isinstance(mode, str) or mode not in words.PERMISSION_MODES:
        known = ", ".join(sorted(words.PERMISSION_MODES))
        raise UsageError(f"{mode!r} is no permission mode of {agent.name}", f"one of {known}")
    return mode


def _questions(on_question: str) -> tuple[str, ...]:
    if on_question not in _QUESTIONS:
        raise UsageError(f"{on_question!r} says nothing about questions", f"one of {', '.join(_QUESTIONS)}")
    return _QUESTIONS[on_question]


def _contract(options: Options) -> tuple[str, ...]:
    text = step_instructions(options)
    return ("--append-system-prompt", text) if text else ()


# --- The model ----------------------------------------------------------------------------------------------


def _model(agent: Agent, options: Options) -> str | None:
    return _named(agent.model) or _own_model(agent) or _named(options.model)


def _model_flag(agent: Agent, options: Options) -> tuple[str, ...]:
    """None for a definition's own model, which the program applies by itself."""
    model = _named(agent.model) or (None if _own_model(agent) else _named(options.model))
    return ("--model", model) if model else ()


def _own_model(agent: Agent) -> str | None:
    return _named(agent.definition.fields.get("model")) if agent.definition else None


def _named(model: object) -> str | None:
    return model if isinstance(model, str) and model not in ("", "inherit") else None


# --- The definition -----------------------------------------------------------------------------------------


def _definition(definition: Definition | None) -> tuple[str, ...]:
    return ("--agents", f"{RUN_DIRECTORY}/{_DEFINITIONS}", "--agent", definition.name) if definition else ()


def _files(agent: Agent, options: Options) -> Mapping[str, str]:
    contents: dict[str, str] = {}
    if agent.definition:
        named = {agent.definition.name: dict(agent.definition.fields)}
        contents[_DEFINITIONS] = _as_json(named, agent.definition.path)
    if options.servers is not None:
        contents[_SERVERS] = _as_json({_SERVERS_KEY: options.servers}, f"what {agent.name} may have as servers")
    return contents


def _as_json(value: Mapping[str, Any], what: str) -> str:
    try:
        # Texts for anything that JSON has no word for: a date in the head of a file is the common case.
        return json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadDefinition(f"{what} cannot be handed over: {error}") from error


# --- Servers ------------------------------------------------------------------------------------------------


def _servers(options: Options) -> tuple[str, ...]:
    """The servers of a list, and no others; ours with them, or beside those that the program finds by itself.

    A list may have keys and tokens in it, so it is in a file. Ours comes last, for the last of a name counts.
    """
    listed = (f"{RUN_DIRECTORY}/{_SERVERS}",) if options.servers is not None else ()
    given = (*listed, *((_itself(options.own.name),) if options.own else ()))
    if not given:
        return ()
    # The flag takes as many values as follow it, so a flag has to.
    return "--mcp-config", *given, *((_NO_OTHER_SERVERS,) if listed else ())


def _itself(name: str) -> str:
    """Whoever reads the program's output is that server: no process, no address."""
    return json.dumps({_SERVERS_KEY: {name: {"type": "sdk", "name": name}}})


# --- Tools --------------------------------------------------------------------------------------------------


def tools_of(allowed: str) -> tuple[str, ...]:
    """The tools that a list of permissions is about: without qualifiers, each once, in the order they appear."""
    names = (entry.partition("(")[0].strip() for entry in permissions_of(allowed))
    return tuple(dict.fromkeys(name for name in names if name))


def permissions_of(allowed: str) -> tuple[str, ...]:
    """The entries of a list, which spaces and commas separate, but not those inside parentheses."""
    entries, depth = [""], 0
    for character in allowed:
        depth = max(0, depth + (character == "(") - (character == ")"))
        if depth == 0 and (character == "," or character.isspace()):
            entries.append("")
        else:
            entries[-1] += character
    return tuple(entry.strip() for entry in entries if entry.strip())


def _tools(allowed: str, own: Sequence[str]) -> tuple[str, ...]:
    """One argument each. The program splits at commas outside parentheses too, so qualifiers arrive whole.

    Only the program's own tools are restricted by the first; those of servers, ours among them, are all offered.
    """
    entries = permissions_of(allowed)
    known = ("--tools", ",".join(tools_of(allowed))) if entries else ()
    permitted = (*entries, *own)
    return (*known, *((words.ALLOWED_TOOLS_FLAG, ",".join(permitted)) if permitted else ()))
