"""Binding a request: finds every agent, reads every prompt and checks every argument before anything starts.

A request that cannot work is refused as a whole. Needs neither a server nor an event loop, so that ``--dry-run`` shows
exactly what a run would do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.catalog.explanation import without_model
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.resolve import resolve
from hocket.catalog.servers import servers_for
from hocket.chain.parse import bare_marker, check_agent, parse
from hocket.chain.variables import (
    PLACEHOLDERS,
    PREVIOUS,
    TASK,
    fill,
    has_placeholders,
    is_variable_name,
    placeholders,
    references,
    substitute,
)
from hocket.config import ISOLATION, MODEL_VARIABLE, ON_LOST, agent_environment, named_programs
from hocket.config.reading import PromptLevel, choose_prompt, read_prompt
from hocket.config.settings import ChainConfig, Config, StepConfig, approve_command, is_wider, suggestion
from hocket.errors import BadDirectory, ConfigError, ProgramNotFound, PromptError, UsageError
from hocket.input_limits import NOT_TEXT, odd_text
from hocket.mcp.tools import SERVER, rules
from hocket.model import (
    PROMPT,
    RUN_DIRECTORY,
    SESSION,
    Agent,
    Approval,
    BoundChain,
    Bounds,
    GroupedStep,
    Isolation,
    Spec,
    Step,
    stages,
)
from hocket.providers import PROVIDERS, agent_variables
from hocket.providers.base import LaunchRequest, OwnServer
from hocket.providers.defining import DEFINITIONS
from hocket.providers.launching import check_total
from hocket.trust import delegation
from hocket.trust.approvals import Approvals
from hocket.trust.check import PROGRAM, ConfiguredArguments, authorize, check_arguments, check_configuration
from hocket.trust.delegation import AgentRequest, DelegationLimits, GrantedAgent
from hocket.workflows.git import Git
from hocket.workflows.isolation import agent_in_worktree, approval_of, without_trust
from hocket.workflows.request import StartRequest
from hocket.workflows.step_prompts import fill_placeholders
from hocket.workflows.team_mode import TeamMode, team_mode
from hocket.workflows.worktrees import find_repository

T = TypeVar("T", bound=GroupedStep)


_CHAIN_OPTIONS = ("until", "gate_timeout", "failures", "no_progress", "on_lost", "isolation")
_NO_CHAIN = ChainConfig("", "", ())
TAKES_MESSAGES = ("lines", "terminal")
"""Kinds of input that stay open after the prompt."""
_COMMAND = (sys.executable, "-P", "-m", "hocket")
_HOOK = (*_COMMAND, "hook", "pre-tool-use", "--always")


class _StepPosition(NamedTuple):
    """The position of a step from 1; members of a group share their step's number."""

    step: int
    member: int | None = None

    @property
    def group(self) -> int | None:
        return None if self.member is None else self.step

    @property
    def words(self) -> str:
        return f"step {self.step}" if self.member is None else f"step {self.step}, member {self.member}"


class _StepRequest(NamedTuple):
    """One step, before its agent is known."""

    where: str
    """In words, for an error."""
    step: StepConfig
    chain: ChainConfig
    position: _StepPosition = _StepPosition(1)

    @property
    def agent(self) -> str:
        return self.step.agent

    @property
    def is_loop(self) -> bool:
        return self.step.iterations is not None


def bind(
    request: StartRequest,
    config: Config,
    catalog: Callable[[], Catalog] | None = None,
    limits: DelegationLimits = delegation.UNLIMITED,
) -> BoundChain | Spec:
    """What the request means: a ``Spec`` for a single agent, else a chain.

    ``catalog`` returns what can run in the request's directory; by default it is discovered. ``limits`` are the
    limits of the run that makes the request, if it is a run.
    """
    _check(request)
    approvals = Approvals(config)
    check_configuration(approvals)
    find = _AgentFinder(request, approvals, catalog, limits)
    find.mode = _project_mode(request, _NO_CHAIN, config)
    if request.agent is not None:
        alone = _StepRequest("agent", StepConfig(request.agent, timeout=request.timeout), _NO_CHAIN)
        spec = _spec(alone, find(alone.agent), request, find, _options(request, _NO_CHAIN, config))
        return msgspec.structs.replace(
            spec,
            budget_usd=request.budget_usd,
            budget_tokens=request.budget_tokens,
            registry=config.registry_file,
        )
    named = _named_chain(request, find)
    delegation.check_gates(request.until, named, limits, approvals)
    chain = named or _parsed_chain((request.dsl or "").strip())
    _check_variables(request, chain, find)
    find.mode = _project_mode(request, chain, config)
    prefix = f"{chain.source}: chain {chain.name!r}: " if named else ""
    options, task = _options(request, chain, config), _task(request, chain)
    steps = [
        _step(_StepRequest(f"{prefix}{position.words}", step, chain, position), request, find, options, task)
        for position, step in _positions(chain.steps)
    ]
    return BoundChain(
        name=chain.name,
        steps=tuple(steps),
        cwd=request.directory,
        env=agent_environment(request.environment, "executable", config.env_pass) | named_programs(request.environment),
        until=request.until or chain.until,
        timeout=request.timeout or chain.timeout,
        gate_timeout=request.gate_timeout or chain.gate_timeout,
        on_lost=request.on_lost or chain.on_lost or ON_LOST[0],
        on_question=request.on_question or chain.on_question or ("fail" if options.on_question == "fail" else "ask"),
        bounds=_bounds(request, chain),
        task=task.text,
        registry=config.registry_file,
    )


# --- The request --------------------------------------------------------------------------------------------


def _check(request: StartRequest) -> None:
    given = ((name, getattr(request, name)) for name in request.__struct_fields__)
    if where := next((found for name, value in given if (found := odd_text(value, name))), None):
        raise UsageError(f"{where} {NOT_TEXT}")
    if sum(target is not None for target in (request.agent, request.dsl, request.chain)) != 1:
        raise UsageError("give exactly one of agent, dsl and chain")
    misplaced = next((name for name in _CHAIN_OPTIONS if getattr(request, name) is not None), None)
    if request.agent is not None and misplaced:
        raise UsageError(f"{misplaced} belongs to a chain; remove it, or start the agent as a chain (dsl)")
    if request.agent is None and request.session:
        raise UsageError("session applies to a single agent, not to a chain")
    if request.until is not None and (not request.until.strip() or "\0" in request.until):
        raise UsageError(f"until is not a command: {request.until!r}")
    for name in request.variables or ():
        if not is_variable_name(name):
            raise UsageError(f"invalid variable name: {name!r}", "use capital letters, digits and _")
    check_directory(request.directory)


def check_directory(cwd: str) -> None:
    """Raise unless a run can work in this directory."""
    if not cwd.startswith("/") or "\0" in cwd:
        raise BadDirectory(f"the working directory must be an absolute path: {cwd!r}")
    if not os.path.exists(cwd):
        raise BadDirectory(f"the working directory {cwd} does not exist")
    if not os.path.isdir(cwd):
        raise BadDirectory(f"the working directory {cwd} is not a directory")
    if not os.access(cwd, os.X_OK):
        raise BadDirectory(f"the working directory {cwd} cannot be entered")


def _check_variables(request: StartRequest, chain: ChainConfig, find: _AgentFinder) -> None:
    """Raise for a variable that nothing in the chain uses, because its name is probably misspelled."""
    used = [*variables_of(chain), *references("" if request.is_literal else request.prompt or "")]
    given = request.variables or {}
    if given.keys() <= {*used, *request.used_variables}:
        return
    try:
        agents = [find(step.agent) for step in chain.steps]
    except (ProgramNotFound, UsageError):
        return  # reported with its step
    for agent in agents:
        texts = (*agent.args, agent.default_prompt, agent.default_prompt_file)
        used += [name for text in texts if text for name in references(text)]
    unused = next((name for name in given if name not in {*used, *request.used_variables}), None)
    if unused is not None:
        uses = f"it uses {', '.join(dict.fromkeys(used))}" if used else "it uses no variables"
        raise UsageError(f"the chain does not use the variable {unused}", suggestion(unused, used) or uses)


def variables_of(chain: ChainConfig) -> list[str]:
    """The variables in the chain's own texts."""
    texts = [chain.prompt, chain.prompt_file]
    for step in chain.steps:
        texts += [*step.args, step.prompt, step.prompt_file]
    return list(dict.fromkeys(name for text in texts if text for name in references(text)))


class _AgentFinder:
    """Finds the agents of one request. The same name is the same agent, and everything is looked up once."""

    def __init__(
        self,
        request: StartRequest,
        approvals: Approvals,
        catalog: Callable[[], Catalog] | None,
        limits: DelegationLimits,
    ) -> None:
        self.approvals = approvals
        self.config = config = approvals.config
        self._limits = limits
        self._request = request
        self._catalog = cache(
            catalog or (lambda: discover(request.directory, request.environment, config.home, config, approvals))
        )
        self._agents: dict[str, Agent] = {}
        self._notices = set[str]()
        self.mode: tuple[Approval, ...] = ()
        """The project that gives every agent of the request a wider permission mode than the user does."""
        self._grants: dict[tuple[object, ...], tuple[Agent, GrantedAgent]] = {}
        self._modes: dict[tuple[str, str], TeamMode] = {}
        self.environment = cache(lambda provider: agent_environment(request.environment, provider, config.env_pass))
        """The part of the caller's environment that agents of a provider get."""
        self.output_style = cache(
            lambda cwd, trusted: DEFINITIONS.output_style(FileProbe(), cwd, request.environment, trusted=trusted)
        )
        """The output style that Claude's settings set for a directory."""
        self.repository = cache(lambda cwd: find_repository(cwd, Git(request.environment, cwd, approvals.trusts)))
        """The repository that a directory is in."""
        self.fingerprint = cache(approvals.cover.fingerprint) if approvals.home is not None else str
        """Of the settings in a folder."""

    def __call__(self, name: str) -> Agent:
        if name not in self._agents:
            cwd = self._request.directory
            found = resolve(name, cwd, self._request.environment, self.config, self._catalog)
            self._agents[name] = authorize(found, cwd, self.approvals, self._catalog)
        return self._agents[name]

    def team_mode(self, agent: Agent) -> TeamMode:
        """How an agent leads a team; raise if it cannot. Its program is asked for its version once."""
        key = agent.path, agent.cwd or self._request.directory
        if key not in self._modes:
            self._modes[key] = team_mode(agent, key[1], self.environment(agent.provider), self.config.home)
        return self._modes[key]

    def grant(self, requested: AgentRequest) -> GrantedAgent:
        """What may be started. Many steps are often the same, so each is checked once."""
        # Two agents may have one name here, one of them without trust; it is stored, so that its id stays unique.
        key = (requested.name, id(requested.agent), *requested[2:])
        if key not in self._grants:
            granted = delegation.grant(requested, self._limits, self.approvals, self._catalog)
            self._grants[key] = requested.agent, granted
        return self._grants[key][1]

    def notices(self, agent: Agent) -> Iterator[str]:
        """Notices about what is ignored or disabled, unless an earlier step or the caller has given them."""
        for notice in (*self.config.ignored, *self._trust_notices(agent)):
            if notice not in self._notices and self._limits.caller is None:
                self._notices.add(notice)
                yield notice

    def _trust_notices(self, agent: Agent) -> Iterator[str]:
        """What is disabled for lack of trust."""
        if agent.changed:
            why, folder = f"{agent.changed} has changed since it was approved", agent.changed
        elif agent.disabled:
            folder = agent.cwd or self._request.directory
            why = f"{folder} is not trusted"
        else:
            return
        disabled = ", ".join(agent.disabled) or "its settings"
        yield f"{why}: disabled {disabled}; to review and approve it: {approve_command(folder)}"


def _named_chain(request: StartRequest, find: _AgentFinder) -> ChainConfig | None:
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


def _parsed_chain(text: str) -> ChainConfig:
    steps = (StepConfig(one.agent, one.iterations if one.loop else None, group=one.group) for one in parse(text))
    return ChainConfig(text, "", tuple(steps))


def _positions(steps: Sequence[T]) -> Iterator[tuple[_StepPosition, T]]:
    """Each step with its position. A group of one is no group."""
    for number, places in enumerate(stages(steps), 1):
        for member, place in enumerate(places, 1):
            yield _StepPosition(number, member if len(places) > 1 else None), steps[place]


def _bounds(request: StartRequest, chain: ChainConfig, step: StepConfig | None = None) -> Bounds:
    """The limits of a chain, or of a step of it: those of the request, then of the step, then of the chain.

    A step has only its own budget: the steps share that of the chain.
    """
    levels = (request, chain) if step is None else (request, step, chain)
    own = levels if step is None else (step,)
    return Bounds(
        budget_usd=_first(own, "budget_usd"),
        budget_tokens=_first(own, "budget_tokens"),
        idle_timeout=_first(levels, "idle_timeout"),
        failures=_first(levels, "failures"),
        no_progress=_first(levels, "no_progress"),
    )


def _first(levels: Iterable[object], name: str) -> Any:
    return next((value for level in levels if (value := getattr(level, name)) is not None), None)


def _options(request: StartRequest, chain: ChainConfig, config: Config) -> LaunchRequest:
    """What holds for every step: as the request says, then the chain, then the configuration."""
    claude = config.claude
    marker = chain.marker or config.marker if request.marker is None else request.marker
    if not bare_marker(marker) or len(marker.splitlines()) != 1:
        raise UsageError(f"a marker is one line with more than backticks and asterisks in it, not {marker!r}")
    return LaunchRequest(
        marker=marker,
        session=bool(request.session),
        on_question=request.on_question
        or chain.on_question
        or claude.on_question
        or request.on_question_default
        or "ask",
        permission_mode=chain.permission_mode or claude.permission_mode,
        model=request.environment.get(MODEL_VARIABLE) or claude.model,
        contract=claude.contract,
        cross_session=claude.cross_session,
    )


def _project_mode(request: StartRequest, chain: ChainConfig, config: Config) -> tuple[Approval, ...]:
    """The trusted project file that sets a wider permission mode than the user does, if one does."""
    folder: str | None
    if chain.permission_mode is not None:
        origin, mode, folder = f'{chain.source}: chain "{chain.name}"', chain.permission_mode, chain.project
    else:
        file = next((one for one in config.files if one.endswith("/hocket.toml")), f"{request.directory}/hocket.toml")
        origin, mode, folder = f"{file}: [claude]", config.claude.permission_mode, os.path.dirname(file)
    if folder is None or not is_wider(mode, config.ceiling):
        return ()
    return (Approval(origin, folder, (f"permission mode {mode}",)),)


# --- Steps --------------------------------------------------------------------------------------------------


class _ChainTask(NamedTuple):
    """The task of the whole chain, for ``{{task}}``, and whether it is the caller's prompt."""

    text: str | None = None
    is_callers: bool = False
    blanks: tuple[str, ...] = ()
    """The placeholders that are filled in where it is a step's whole prompt: none in literal text."""


class _Prompt(NamedTuple):
    """The prompt of a step, and the placeholders in it that are filled in."""

    text: str | None
    blanks: tuple[str, ...] = ()


def _step(
    requested: _StepRequest, request: StartRequest, find: _AgentFinder, options: LaunchRequest, task: _ChainTask
) -> Step:
    """Bind a step. If there are others, an error names the step that it is about."""
    step, chain = requested.step, requested.chain
    is_isolated = _first((request, step, chain), "isolation") == ISOLATION[1]
    try:
        if requested.agent not in find.config.agents:
            check_agent(requested.agent, f'{requested.where}, "agent"' if chain.source else requested.where)
        agent, isolation = find(requested.agent), None
        cwd = agent.cwd or request.directory
        if is_isolated:
            options = replace(options, own_branch=True)
            agent = agent_in_worktree(agent, find.approvals)
            repository, inside = find.repository(cwd)
            servers = agent.untrusted_servers if agent.trusted else None
            isolation = Isolation(repository, inside, untrusted_servers=servers)
        made = partial(_spec, requested, request=request, find=find, options=options, task=task)
        spec = made(agent)
        without = partial(made, without_trust(agent))
        approval = approval_of(agent, cwd, find.approvals, find.fingerprint, without, isolated=is_isolated)
    except (ProgramNotFound, UsageError) as error:
        if (chain.source or len(chain.steps) > 1) and requested.where not in error.message:
            error.message = f"{requested.where}: {error.message}"
        raise
    return Step(
        requested.agent,
        step.iterations or 1,
        requested.is_loop,
        spec,
        requested.position.group,
        None if request.until else step.until,  # A gate in the request replaces the gates of all steps.
        _bounds(request, chain, step),
        isolation,
        approval,
    )


def _spec(
    requested: _StepRequest,
    agent: Agent,
    request: StartRequest,
    find: _AgentFinder,
    options: LaunchRequest,
    task: _ChainTask | None = None,
) -> Spec:
    config = find.config
    agent_args, step_args = (
        tuple(substitute(text, request.variables or {}) for text in args) for args in (agent.args, requested.step.args)
    )
    given = _configured_arguments(requested, agent_args, step_args, config)
    by_args = [one for each in given for one in check_arguments(each, agent, options.permission_mode, find.approvals)]
    written, known = (*agent.args, *requested.step.args), (*agent_args, *step_args)
    granted = find.grant(
        AgentRequest(requested.agent, agent, written, known, request.args, options.permission_mode, request.directory)
    )
    servers = servers_for(agent, request.directory, request.environment)
    own, hook = own_server(agent, config), _HOOK if delegation.delegates(agent, config) else ()
    remarks = [*(agent.definition.notices if agent.definition else ())]
    remarks += [f"{fault.path}: {fault.reason}" for fault in servers.faults]
    remarks += [
        f"no MCP server {name!r} is known here; {requested.agent} has none"
        for name in servers.unknown
        if own is None or name != own.name
    ]
    env = find.environment(agent.provider)
    mode = find.team_mode(agent) if _leads_team(requested, agent, request) else None
    if mode is not None and request.agent is not None and request.session is None:
        options = replace(options, session=True)
    prompt = _prompt(requested, agent, request, task)
    launch = PROVIDERS[agent.provider].launch(
        granted.agent,
        replace(
            options,
            prompt=prompt.text,
            args=tuple(request.args),
            env=env,
            loop=requested.is_loop,
            servers=servers.servers,
            own_server=own,
            hook=hook,
            command=_COMMAND,
            team=mode is not None,
            terminal=mode is not None and mode.terminal,
        ),
    )
    if options.session and launch.stdin not in TAKES_MESSAGES:
        raise UsageError(f"{requested.agent} reads no messages, so it cannot have a session")
    if launch.model is None and config.require_model and agent.provider != PROGRAM:
        raise without_model(requested.agent, agent, config)
    style = find.output_style(agent.cwd or request.directory, agent.trusted)
    env = {**env, **agent_variables.of_agent(agent.definition, launch.model, style), **launch.env}
    check_total(requested.agent, launch.argv, env)
    return Spec(
        agent=requested.agent,
        provider=agent.provider,
        argv=launch.argv,
        cwd=agent.cwd or request.directory,
        env={**env, **named_programs(request.environment)},
        prompt=launch.prompt,
        stdin=launch.stdin,
        loop=requested.is_loop,
        marker=options.marker,
        timeout=requested.step.timeout,
        idle_timeout=_bounds(request, requested.chain, requested.step).idle_timeout,
        max_output=config.limits.max_output_mb * 1024**2,
        stop_grace=config.stop_grace,
        files=dict(launch.files),
        session=options.session,
        on_question=options.on_question,
        served=launch.served,
        source=agent.source,
        definition=agent.definition.path if agent.definition else None,
        notices=(*find.notices(agent), *remarks, *launch.notices, *granted.notices),
        blanks=prompt.blanks,
        permission_mode=granted.mode,
        allowed_agents=agent.definition.allowed_agents if agent.definition else None,
        known_as=granted.known_as,
        untrusted_instructions=granted.untrusted,
        approvals=() if agent.provider == PROGRAM else (*agent.approvals, *by_args, *find.mode),
        delegation=granted.delegation,
        team=mode is not None,
    )


def _leads_team(requested: _StepRequest, agent: Agent, request: StartRequest) -> bool:
    """By the request, else by the step, else by the alias."""
    return request.agent_teams or (agent.team if requested.step.team is None else requested.step.team)


def own_server(agent: Agent, config: Config) -> OwnServer | None:
    """Our own MCP server for CLIs that can call it, unless it is disabled or the definition lists others only."""
    listed = agent.definition.allowed_servers if agent.definition else None
    if (
        PROVIDERS[agent.provider].own_tools is None
        or not config.claude.mcp
        or (listed is not None and SERVER not in listed)
    ):
        return None
    return OwnServer(SERVER, rules())


def _configured_arguments(
    requested: _StepRequest, agent_args: Sequence[str], step_args: Sequence[str], config: Config
) -> Iterator[ConfiguredArguments]:
    """The arguments from configuration files, in the order of the command line, without those of the caller."""
    alias = config.agents.get(requested.agent)
    if alias:
        yield ConfiguredArguments(f'{alias.source}: agent "{requested.agent}"', alias.project, agent_args)
    yield ConfiguredArguments(requested.where, requested.chain.project, step_args, agent_args)


def _prompt(requested: _StepRequest, agent: Agent, request: StartRequest, task: _ChainTask | None) -> _Prompt:
    """The caller's prompt, else the step's, the chain's, the agent's own.

    One of these that is a template is kept, and filled in with the caller's prompt.
    """
    alone = task is None
    task = task or _task(request, _NO_CHAIN)
    default = PromptLevel(agent.default_prompt, agent.default_prompt_file, agent.alias_project)
    step, chain = requested.step, requested.chain
    levels = (PromptLevel(one.prompt, one.prompt_file, chain.project) for one in (step, chain))
    own = choose_prompt([*levels, default])
    if task.is_callers and not _is_template(own, request):
        return _Prompt(task.text, task.blanks)
    if own.text:
        _check_placeholders(requested, own.text, task)
    prompt = _read(own, request)
    # The prompt of a chain's step is filled in when the step begins; a single agent begins now.
    if alone and prompt:
        return _Prompt(fill(prompt, {TASK: task.text or "", PREVIOUS: ""}))
    return _Prompt(prompt, PLACEHOLDERS)


def _is_template(level: PromptLevel, request: StartRequest) -> bool:
    if level.text:
        return bool(placeholders(level.text))  # also with a misspelled name, which is reported later
    with suppress(PromptError, UsageError):  # a file that is not needed may be missing
        return has_placeholders(_read(level, request) or "")
    return False


def _task(request: StartRequest, chain: ChainConfig) -> _ChainTask:
    """The caller's prompt; without one that of the chain, unless that is a template."""
    if request.prompt and (request.is_literal or request.agent is not None):
        return _ChainTask(request.prompt, True)
    try:
        callers = substitute(request.prompt or "", request.variables or {})
    except UsageError as error:
        error.hint = f"{error.hint}; text that is to stay as it is can be piped into -p -, or read by --prompt-file"
        raise
    if callers:
        return _ChainTask(callers, True, (PREVIOUS,))
    with suppress(PromptError, UsageError):  # every step may have a prompt of its own
        whole = _read(choose_prompt([PromptLevel(chain.prompt, chain.prompt_file, chain.project)]), request)
        return _ChainTask(None if whole and has_placeholders(whole) else whole)
    return _ChainTask()


def _read(level: PromptLevel, request: StartRequest) -> str | None:
    """The prompt of a level. Variables are not replaced in the content of a file."""
    if level.file:
        return read_prompt(substitute(level.file, request.variables or {}), request.directory, level.project)
    return substitute(level.text, request.variables or {}) if level.text else None


def _check_placeholders(requested: _StepRequest, text: str, task: _ChainTask) -> None:
    """Raise if a configured prompt has a placeholder that will not be filled in."""
    for name in placeholders(text):
        if name not in PLACEHOLDERS:
            known = " and ".join(f"{{{{{one}}}}}" for one in PLACEHOLDERS)
            hint = suggestion(name, PLACEHOLDERS) or f"a prompt may use {known}"
            raise ConfigError(f'{requested.where}, "prompt": unknown placeholder {{{{{name}}}}}', hint)
        if name == TASK and task.text is None:
            raise UsageError(
                f'{requested.where}, "prompt": uses {{{{task}}}}, but there is no prompt', "give a prompt with -p"
            )


# --- Showing ------------------------------------------------------------------------------------------------


def describe(bound: BoundChain | Spec) -> list[dict[str, Any]]:
    """What would be started, step by step, as JSON values."""
    if isinstance(bound, Spec):
        bounds = Bounds(bound.budget_usd, bound.budget_tokens, bound.idle_timeout)
        return [_description(_StepPosition(1), Step(bound.agent, 1, False, bound, bounds=bounds), None)]
    return [_description(position, step, bound) for position, step in _positions(bound.steps)]


def _shown(argument: str) -> str:
    """An argument for display, with names for the values that differ in each run."""
    return argument.replace(RUN_DIRECTORY, "<run directory>").replace(SESSION, "<session>").replace(PROMPT, "<prompt>")


def _limits(bounds: Bounds, **more: object) -> dict[str, Any]:
    """The limits that are set."""
    limits = {name: getattr(bounds, name) for name in Bounds.__struct_fields__} | more
    return {name: value for name, value in limits.items() if value is not None}


def _description(position: _StepPosition, step: Step, chain: BoundChain | None) -> dict[str, Any]:
    spec = fill_placeholders(step.spec, {TASK: chain.task}) if chain and chain.task is not None else step.spec
    gate = step.until or (chain.until if chain else None)
    by_argument = spec.prompt is not None and spec.stdin == "empty"
    return {
        "step": position.step,
        "member": position.member,
        "agent": step.agent,
        "provider": spec.provider,
        "source": spec.source,
        "definition": spec.definition,
        "notices": list(spec.notices),
        "path": spec.argv[0],
        "argv": [_shown(argument) for argument in spec.argv],
        "cwd": spec.cwd,
        "team": spec.team,
        "terminal": spec.has_terminal,
        "isolation": ISOLATION[step.isolation is not None],
        "repository": step.isolation.repository if step.isolation else None,
        "loop": step.loop,
        "iterations": step.iterations,
        "prompt": spec.prompt,
        "prompt_via": None if spec.prompt is None else "arg" if by_argument else "stdin",
        "marker": spec.marker if step.loop else None,
        "gate": gate,
        "gate_timeout": (chain.gate_timeout if chain else None) if gate else None,
        "limits": _limits(step.bounds, timeout=spec.timeout),
        "chain_limits": _limits(chain.bounds, timeout=chain.timeout) if chain else {},
        "on_lost": chain.on_lost if chain else None,
    }
