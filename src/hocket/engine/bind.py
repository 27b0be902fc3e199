"""From a request to something that can be started, with nothing left to look up.

Every agent of a chain is found, every prompt read and every limit on arguments checked before anything
starts; a request that cannot work is refused as a whole. Needs neither a server nor an event loop, so that
``--dry-run`` shows exactly what a run would do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from hocket.catalog.discovery import discover
from hocket.catalog.resolve import Sight, resolve
from hocket.catalog.servers import servers_for
from hocket.catalog.trust import Given, check_arguments
from hocket.chain import StepText, bare_marker, check_agent, parse
from hocket.config import ON_QUESTION, agent_environment, named_programs
from hocket.config.reading import PromptLevel, choose_prompt, read_prompt
from hocket.config.settings import ChainConfig, Config, approval
from hocket.errors import BadDirectory, ProgramNotFound, UsageError
from hocket.model import RUN_DIRECTORY, SESSION, Agent, BoundChain, Spec, Step
from hocket.providers import PROVIDERS, Options
from hocket.variables import is_variable_name, substitute


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What somebody wants to have run: one agent, a chain's text, or a chain by its name."""

    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    """The caller's environment, as ``config.caller_environment`` gives it."""
    agent: str | None = None
    dsl: str | None = None
    chain: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    prompt_literal: bool = False
    """The prompt is somebody's text that was not typed for us (piped in, or sent by a program): a ``${NAME}``
    in it is no variable."""
    args: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    marker: str | None = None
    until: str | None = None
    timeout: float | None = None
    on_question: str | None = None
    """``deny``, ``ask`` or ``fail``; without it the chain's, then the configuration's."""
    session: bool = False
    """Whether a single agent stays for more messages after its first turn."""


class _Wish(NamedTuple):
    """One step, before its agent is known."""

    where: str
    """In words, for an error."""
    agent: str
    iterations: int
    loop: bool
    args: tuple[str, ...] = ()
    prompts: tuple[PromptLevel, ...] = ()
    """Of the step and of its chain, in this order."""
    project: str | None = None
    """The folder whose own file asks for it; None for the user."""


def bind(request: StartRequest, config: Config, sight: Sight | None = None) -> BoundChain | Spec:
    """What the request means: a ``Spec`` for a single agent, else a chain.

    ``sight`` is for whoever remembers what can run where the caller is; without it somebody looks.
    """
    _check(request)
    find = _Finding(request, config, sight)
    if request.agent is not None:
        alone = _Wish("agent", request.agent, 1, False)
        return _spec(alone, request, find, _options(request, None, config), request.timeout)
    named = _named_chain(request, find)
    wishes = _of_config(named) if named else _of_text(request.dsl or "")
    options = _options(request, named, config)
    steps = [_step(wish, request, find, options) for wish in wishes]
    return BoundChain(
        name=named.name if named else (request.dsl or "").strip(),
        steps=tuple(steps),
        cwd=request.cwd,
        env=agent_environment(request.env, "executable", config.env_pass) | named_programs(request.env),
        until=request.until or (named.until if named else None),
        timeout=request.timeout or (named.timeout if named else None),
    )


# --- What was asked for -------------------------------------------------------------------------------------


def _check(request: StartRequest) -> None:
    if sum(wish is not None for wish in (request.agent, request.dsl, request.chain)) != 1:
        raise UsageError("say what to run: an agent, a chain's text, or a chain's name, and only one of them")
    if request.agent is not None and request.until is not None:
        raise UsageError("a gate belongs to a chain; a single agent has none")
    if request.agent is None and request.session:
        raise UsageError("only a single agent can stay for more messages; a chain goes on by itself")
    if request.on_question not in (None, *ON_QUESTION):
        raise UsageError(f"a question can be met with {', '.join(ON_QUESTION)}, not {request.on_question!r}")
    if request.timeout is not None and not 0 < request.timeout <= 1e9:
        raise UsageError(f"a time limit is a number of seconds above 0, not {request.timeout}")
    if request.until is not None and (not request.until.strip() or "\0" in request.until):
        raise UsageError("the gate is not a command")
    for name in request.variables:
        if not is_variable_name(name):
            raise UsageError(f"{name!r} is not the name of a variable", "use capital letters, digits and _")
    check_directory(request.cwd)


def check_directory(cwd: str) -> None:
    """Raise unless work can be done in this directory."""
    if not cwd.startswith("/") or "\0" in cwd:
        raise BadDirectory(f"the working directory must be an absolute path: {cwd!r}")
    if not os.path.exists(cwd):
        raise BadDirectory(f"the working directory {cwd} does not exist")
    if not os.path.isdir(cwd):
        raise BadDirectory(f"the working directory {cwd} is not a directory")
    if not os.access(cwd, os.X_OK):
        raise BadDirectory(f"the working directory {cwd} cannot be entered")


class _Finding:
    """Who finds the agents of one request: the same name means the same agent, and places are looked at once."""

    def __init__(self, request: StartRequest, config: Config, sight: Sight | None) -> None:
        self.config = config
        self._request = request
        seen = sight or Sight(lambda: discover(request.cwd, request.env, config.home, config))
        self._sight = seen._replace(catalog=cache(seen.catalog))

    def __call__(self, name: str) -> Agent:
        return resolve(name, self._request.cwd, self._request.env, self.config, self._sight)


def _named_chain(request: StartRequest, find: _Finding) -> ChainConfig | None:
    """The configured chain that is meant, if one is: by its name, or by a word that names nothing else."""
    config = find.config
    if request.chain is not None:
        return config.chain(request.chain)
    word = (request.dsl or "").strip()
    if word not in config.chains or word in config.agents:
        return None
    try:
        find(word)
    except (ProgramNotFound, UsageError):
        return config.chains[word]
    return None


def _of_text(text: str) -> list[_Wish]:
    return [_wish_of_text(number, step) for number, step in enumerate(parse(text), 1)]


def _wish_of_text(number: int, step: StepText) -> _Wish:
    return _Wish(f"step {number}", step.agent, step.iterations, step.loop)


def _of_config(chain: ChainConfig) -> list[_Wish]:
    whole = PromptLevel(chain.prompt, chain.prompt_file)
    return [
        _Wish(
            f"{chain.source}: chain {chain.name!r}: step {number}",
            step.agent,
            step.iterations or 1,
            step.iterations is not None,
            step.args,
            (PromptLevel(step.prompt, step.prompt_file), whole),
            chain.project,
        )
        for number, step in enumerate(chain.steps, 1)
    ]


def _options(request: StartRequest, chain: ChainConfig | None, config: Config) -> Options:
    """What holds for every step: the request's word, then the chain's, then the configuration's."""
    claude = config.claude
    return Options(
        marker=_marker(request, chain, config),
        session=request.session,
        on_question=request.on_question or (chain.on_question if chain else None) or claude.on_question,
        permission_mode=(chain.permission_mode if chain else None) or claude.permission_mode,
        model=request.env.get("CLAUDE_RUNNER_MODEL") or claude.model,
        contract=claude.contract,
    )


def _marker(request: StartRequest, chain: ChainConfig | None, config: Config) -> str:
    marker = request.marker or (chain.marker if chain else None) or config.marker
    if not bare_marker(marker) or len(marker.splitlines()) != 1:
        raise UsageError(f"a marker is one line with more than backticks and asterisks in it, not {marker!r}")
    return marker


# --- Steps --------------------------------------------------------------------------------------------------


def _step(wish: _Wish, request: StartRequest, find: _Finding, options: Options) -> Step:
    if wish.agent not in find.config.agents:
        check_agent(wish.agent, wish.where)
    return Step(wish.agent, wish.iterations, wish.loop, _spec(wish, request, find, options, None))


def _spec(wish: _Wish, request: StartRequest, find: _Finding, options: Options, timeout: float | None) -> Spec:
    agent, config = find(wish.agent), find.config
    agent_args, step_args = (_substituted(args, request.variables) for args in (agent.args, wish.args))
    for given in _given(wish, agent_args, step_args, config):
        check_arguments(given, agent, options.permission_mode, config)
    servers = servers_for(agent, request.cwd, request.env)
    env = agent_environment(request.env, agent.provider, config.env_pass)
    launch = PROVIDERS[agent.provider].launch(
        replace(agent, args=agent_args),
        step_args,
        request.args,
        _prompt(wish, agent, request),
        env,
        options._replace(loop=wish.loop, servers=servers.servers),
    )
    if options.session and launch.stdin != "lines":
        raise UsageError(f"{wish.agent} reads no messages, so it cannot stay for more of them")
    return Spec(
        agent=wish.agent,
        provider=agent.provider,
        argv=launch.argv,
        cwd=agent.cwd or request.cwd,
        env={**env, **launch.env, **named_programs(request.env)},
        prompt=launch.prompt,
        stdin=launch.stdin,
        loop=wish.loop,
        marker=options.marker,
        timeout=timeout,
        max_output=config.limits.max_output_mb * 1024**2,
        stop_grace=config.stop_grace,
        files=dict(launch.files),
        session=options.session,
        on_question=options.on_question,
        source=agent.source,
        definition=agent.definition.path if agent.definition else None,
        notices=tuple(_notices(wish, agent, servers.unknown)),
    )


def _notices(wish: _Wish, agent: Agent, unknown_servers: Sequence[str]) -> Iterator[str]:
    """What somebody should know who starts this agent."""
    if agent.changed:
        yield (
            f"{agent.changed} has changed since it was approved, so its settings, hooks and servers are off;"
            f" to approve it as it is now: {approval(agent.changed)}"
        )
    for name in unknown_servers:
        yield f"no MCP server {name!r} is known here; {wish.agent} has none"


def _given(wish: _Wish, agent_args: Sequence[str], step_args: Sequence[str], config: Config) -> Iterator[Given]:
    """What the files give to a step, in the order of the command line; what the caller typed is the caller's own."""
    alias = config.agents.get(wish.agent)
    if alias:
        yield Given(f'{alias.source}: agent "{wish.agent}"', alias.project, agent_args)
    yield Given(wish.where, wish.project, step_args, agent_args)


def _substituted(texts: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(substitute(text, variables) for text in texts)


def _prompt(wish: _Wish, agent: Agent, request: StartRequest) -> str | None:
    """The caller's prompt, else the step's, the chain's, the agent's own. A file's content is left alone."""
    if request.prompt and (request.prompt_literal or request.agent is not None):
        return request.prompt
    callers = PromptLevel(request.prompt, request.prompt_file)
    agents = PromptLevel(agent.default_prompt, agent.default_prompt_file)
    chosen = choose_prompt([callers, *wish.prompts, agents])
    if chosen.file:
        return read_prompt(substitute(chosen.file, request.variables), request.cwd)
    return substitute(chosen.text, request.variables) if chosen.text else None


# --- Showing ------------------------------------------------------------------------------------------------


def describe(bound: BoundChain | Spec) -> list[dict[str, Any]]:
    """What would be started, step by step, for people and for programs."""
    if isinstance(bound, Spec):
        return [_description(1, Step(bound.agent, 1, False, bound), None)]
    return [_description(number, step, bound.until) for number, step in enumerate(bound.steps, 1)]


def _shown(argument: str) -> str:
    """An argument for the eye: what each run fills in for itself has a name here."""
    return argument.replace(RUN_DIRECTORY, "<run directory>").replace(SESSION, "<session>")


def _description(number: int, step: Step, gate: str | None) -> dict[str, Any]:
    spec = step.spec
    by_argument = spec.prompt is not None and spec.stdin == "empty"
    return {
        "step": number,
        "agent": step.agent,
        "provider": spec.provider,
        "source": spec.source,
        "definition": spec.definition,
        "notices": list(spec.notices),
        "path": spec.argv[0],
        "argv": [_shown(argument) for argument in spec.argv],
        "cwd": spec.cwd,
        "loop": step.loop,
        "iterations": step.iterations,
        "prompt": spec.prompt,
        "prompt_via": None if spec.prompt is None else "arg" if by_argument else "stdin",
        "marker": spec.marker if step.loop else None,
        "gate": gate,
    }
