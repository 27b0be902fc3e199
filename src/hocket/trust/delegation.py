"""Limits for what a run starts: never more privileges or time than it has itself, unless the user allows more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from hocket.catalog.entries import ALIAS, CONFIG, PLUGIN, Catalog
from hocket.catalog.resolve import resolve
from hocket.chain.parse import is_path
from hocket.config import BYPASS, MODEL_VARIABLE, PERMISSION_MODES
from hocket.config.settings import (
    DEFAULT_PERMISSION_MODE,
    ChainConfig,
    Config,
    approve_command,
    edge_command,
    is_wider,
    narrower,
)
from hocket.errors import HocketError, LimitReached, NotAllowed
from hocket.model import Agent, BoundChain, Definition, DelegationGrant, Run, Spec
from hocket.providers.defining import DEFINING_PROVIDER, DEFINITIONS, PRIVILEGES
from hocket.trust.approvals import AgentIdentity, Approvals
from hocket.trust.check import PROGRAM, known_agent, widening_of

_UNKNOWN_MODE = "default"
"""For an agent without a recorded mode: it asks about everything."""

_SESSION_SHOWN = 8
_WITHOUT_LISTS = (CONFIG, PLUGIN)
"""Sources whose definitions have no list of allowed agents."""


# --- The caller ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallingAgent:
    """An agent that starts others, as recorded when it was started itself."""

    origin: str
    """Its run or session, in words."""
    name: str
    """As given at its start."""
    known: AgentIdentity
    mode: str
    allowed: tuple[str, ...] | None = None
    untrusted: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.origin} ({self.name})"


class DelegationLimits(NamedTuple):
    """The limits for everything that is started below a run."""

    caller: CallingAgent | None = None
    """None below a plain program, which has the user's own privileges."""
    deadline: float | None = None
    """The earliest deadline of the run and its ancestors, in monotonic time."""


UNLIMITED = DelegationLimits()


class _StoredSpec(msgspec.Struct):
    """The fields of a stored spec, of an agent or a chain, that matter here."""

    provider: str | None = None
    agent: str = ""
    env: dict[str, str] = {}
    timeout: float | None = None
    definition: str | None = None
    permission_mode: str | None = None
    allowed_agents: tuple[str, ...] | None = None
    known_as: str | None = None
    untrusted_instructions: bool = msgspec.field(default=False, name="unvouched")


def above(line: Sequence[Run], spec_of: Callable[[Run], bytes], now: float) -> DelegationLimits:
    """Return the limits for what a run starts: ``line`` is that run and its ancestors, ``now`` monotonic time."""
    specs = [(run, msgspec.json.decode(spec_of(run), type=_StoredSpec)) for run in line]
    ends = [end for run, spec in specs if (end := _end(run, spec, now)) is not None]
    deadline = min(ends, default=None)
    nearest = next(((run, spec) for run, spec in specs if run.has_process), None)
    if nearest is None or nearest[1].provider == PROGRAM:
        return DelegationLimits(None, deadline)
    run, spec = nearest
    has_default_model = spec.provider == DEFINING_PROVIDER  # No other CLI's model is one for the agents below it.
    caller = CallingAgent(
        f"run {run.number}",
        spec.agent,
        AgentIdentity(spec.known_as or spec.agent, os.path.realpath(spec.definition) if spec.definition else None),
        spec.permission_mode or _UNKNOWN_MODE,
        spec.allowed_agents,
        spec.untrusted_instructions,
        {name: value for name, value in spec.env.items() if name != MODEL_VARIABLE or has_default_model},
    )
    return DelegationLimits(caller, deadline)


def session_caller(
    session: str | None, mode: str, definition: Definition | None, untrusted: bool, env: Mapping[str, str]
) -> CallingAgent:
    """Return the caller that a session of the user's own is, so that its agent starts no more than a run could."""
    origin = f"session {session[:_SESSION_SHOWN]}" if session else "a session"
    name, path = (definition.name, os.path.realpath(definition.path)) if definition else (DEFINING_PROVIDER, None)
    allowed = definition.allowed_agents if definition else None
    known_mode = mode if mode in PERMISSION_MODES else _UNKNOWN_MODE
    return CallingAgent(origin, name, AgentIdentity(name, path), known_mode, allowed, untrusted, env)


def delegates(agent: Agent | None, config: Config) -> bool:
    """Whether an agent's calls of sub-agents become runs. This needs no trust: it may start the same by itself."""
    asks = agent is not None and (agent.delegate or (agent.definition is not None and agent.definition.delegate))
    return asks or config.claude.delegate is not None


def _end(run: Run, spec: _StoredSpec, now: float) -> float | None:
    """Return the deadline of a run; None if it has ended, because its children got a limit then."""
    if spec.timeout is None or run.ended:
        return None
    # A clock ahead of ours is from before a reboot.
    return min(run.started_clock, now) + spec.timeout if run.started_clock is not None else now + spec.timeout


# --- Granting -----------------------------------------------------------------------------------------------


def check_gates(typed: str | None, chain: ChainConfig | None, limits: DelegationLimits, approvals: Approvals) -> None:
    """Raise NotAllowed for a gate, which is a shell command, unless the user wrote it."""
    if limits.caller is None:
        return
    if typed is not None:
        raise NotAllowed(
            f"{limits.caller} may not set a gate, which is a shell command",
            "let the user add the chain with its gate to config.toml, and start it by its name",
        )
    gates = [chain.until, *(step.until for step in chain.steps)] if chain else []
    if chain and any(gates) and chain.project is not None and not approvals.trusts(chain.project):
        raise NotAllowed(
            f"{limits.caller} may not start the chain {chain.name!r}: its gate is a shell command of {chain.source},"
            " which is not trusted",
            f"review it first; to approve it, run: {approve_command(chain.project)}",
        )


class AgentRequest(NamedTuple):
    """A request to start one agent."""

    name: str
    """As given by the caller."""
    agent: Agent
    written: Sequence[str]
    """Arguments from configuration files, as written."""
    given: Sequence[str]
    """The same with variables replaced."""
    typed: Sequence[str]
    """Arguments of the caller."""
    mode: str
    """The permission mode for an agent without one."""
    cwd: str


class GrantedAgent(NamedTuple):
    """An agent that may be started."""

    agent: Agent
    """With the arguments from configuration files, in its granted mode."""
    mode: str | None
    known_as: str
    untrusted: bool
    notices: tuple[str, ...] = ()
    delegation: DelegationGrant | None = None
    """The edge that it relies on."""


def grant(
    wanted: AgentRequest, limits: DelegationLimits, approvals: Approvals, catalog: Callable[[], Catalog]
) -> GrantedAgent:
    """Return the agent with what it may have. Raises NotAllowed."""
    caller, agent = limits.caller, replace(wanted.agent, args=tuple(wanted.given))
    known = known_agent(wanted.name, agent, approvals, catalog)
    untrusted = _is_untrusted(agent, approvals) or (caller is not None and caller.untrusted)
    if caller is not None:
        _check_allowed(caller, wanted, catalog)
    if agent.provider == PROGRAM:
        delegation = _check_program(caller, wanted, known, approvals, catalog) if caller is not None else None
        return GrantedAgent(agent, None, known.name, untrusted, delegation=delegation)
    own = PRIVILEGES.mode_with(agent.args, PRIVILEGES.mode_of(agent, wanted.mode))
    if caller is None:
        return GrantedAgent(agent, PRIVILEGES.mode_with(wanted.typed, own), known.name, untrusted)
    mode = _mode(caller, own, is_free=approvals.allows(caller.known, known))
    if mode != own:
        definition = PRIVILEGES.with_permission_mode(agent.definition, mode) if agent.definition else None
        args = PRIVILEGES.without_modes(agent.args)
        agent = replace(agent, args=args, permission_mode=mode, definition=definition)
    _check_arguments(caller, wanted, agent, mode)
    notices: tuple[str, ...] = ()
    if mode != own:
        reason = f"{caller}, which started it, works in {caller.mode};"
        notice = f"{reason} to allow it more: {_command(caller, wanted, catalog())}"
        if own == BYPASS and caller.untrusted:
            notice = f"an untrusted project never hands on {BYPASS}"
        notices = (f"{wanted.name} works in {mode} and not in {own}: {notice}",)
    delegation = None
    if mode != _mode(caller, own, is_free=False):
        command = _command(caller, wanted, catalog())
        refusal = f"{caller} may not start {wanted.name!r} in {mode}: it works in {caller.mode} itself"
        delegation = _delegation(caller, known, NotAllowed(refusal, f"to allow it more: {command}"))
    return GrantedAgent(agent, PRIVILEGES.mode_with(wanted.typed, mode), known.name, untrusted, notices, delegation)


def check_delegation(granted: DelegationGrant | None, approvals: Approvals) -> None:
    """Raise NotAllowed if the user has withdrawn the permission that a run relied on."""
    if granted is not None and not approvals.allows(AgentIdentity(*granted.caller), AgentIdentity(*granted.target)):
        raise NotAllowed(granted.refusal, granted.hint)


def in_time(bound: Spec | BoundChain, limits: DelegationLimits, now: float) -> Spec | BoundChain:
    """Limit a start to the time that the caller has left."""
    if limits.deadline is None:
        return bound
    left = limits.deadline - now
    if left <= 0:
        raise LimitReached("time: the caller has none left", "start it outside of that run, or give the run more time")
    return msgspec.structs.replace(bound, timeout=left if bound.timeout is None else min(left, bound.timeout))


# --- Names --------------------------------------------------------------------------------------------------


def _check_allowed(caller: CallingAgent, wanted: AgentRequest, catalog: Callable[[], Catalog]) -> None:
    if caller.allowed is None and _is_itself(caller, wanted.agent):
        raise NotAllowed(
            f"{caller} may not start {wanted.name!r}: an agent starts itself only if its definition lists it",
            f"list it, and all others that it may start, under allowedAgents in {caller.known.path}",
        )
    if caller.allowed is None or any(_means(word, wanted, catalog) for word in caller.allowed):
        return
    may = ", ".join(caller.allowed) if caller.allowed else "none"
    raise NotAllowed(
        f"{caller} may not start {wanted.name!r}. Allowed agents: {may}",
        f"the list is allowedAgents in {caller.known.path}",
    )


def _is_itself(caller: CallingAgent, agent: Agent) -> bool:
    """True if an agent has the caller's own definition, by any name, and that definition could list it."""
    definition = agent.definition
    return definition is not None and _is_own_file(definition.path, agent.source, caller.known.path)


def _is_own_file(path: str, source: str, own: str | None) -> bool:
    return own is not None and source not in _WITHOUT_LISTS and os.path.realpath(path) == own


def allowed_names(limits: DelegationLimits, catalog: Catalog) -> set[str] | None:
    """Return the names of the agents that a run may start; None if its definition does not limit them."""
    if limits.caller is None or limits.caller.allowed is None:
        return None
    allowed = limits.caller.allowed
    return {*allowed, *(entry.name for word in allowed for entry in catalog.find(word)[:1])}


def refused_names(limits: DelegationLimits, approvals: Approvals, catalog: Catalog, env: Mapping[str, str]) -> set[str]:
    """Return names that an agent may not start: its own, and an untrusted project's for plain programs."""
    found = set[str]()
    if limits.caller is None:
        return found
    if limits.caller.allowed is None:
        own = limits.caller.known.path
        found |= {name for name, (first, *_) in catalog.ranked.items() if _is_own_file(first.path, first.source, own)}
    for name, alias in approvals.config.agents.items():
        if alias.project is not None and not approvals.trusts(alias.project):
            with suppress(HocketError):
                agent = resolve(name, catalog.cwd or "/", env, approvals.config, lambda: catalog).agent
                known = known_agent(name, agent, approvals, lambda: catalog)
                if agent.provider == PROGRAM and not approvals.allows(limits.caller.known, known):
                    found.add(name)
    return found


def _means(word: str, wanted: AgentRequest, catalog: Callable[[], Catalog]) -> bool:
    """True if a word of a list means the requested agent: by name, address or file."""
    if word == wanted.name:
        return True
    meant = next(iter(catalog().find(word)), None)
    if meant is None:
        return False
    if not is_path(wanted.name):
        return meant == next(iter(catalog().find(wanted.name)), None)
    definition = wanted.agent.definition
    return definition is not None and os.path.realpath(meant.path) == os.path.realpath(definition.path)


# --- Privileges ---------------------------------------------------------------------------------------------


def _is_untrusted(agent: Agent, approvals: Approvals) -> bool:
    """True if an agent's instructions belong to an untrusted project."""
    if agent.definition is None or agent.cwd is None or agent.trusted:
        return False
    users = os.path.realpath(approvals.config.user_config_dir) if approvals.config.user_config_dir else None
    is_own = users is not None and os.path.realpath(agent.definition.path).startswith(f"{users}/")
    return not is_own and not approvals.trusts_file(agent.definition.path)


def _check_program(
    caller: CallingAgent,
    wanted: AgentRequest,
    known: AgentIdentity,
    approvals: Approvals,
    catalog: Callable[[], Catalog],
) -> DelegationGrant | None:
    """Raise NotAllowed unless the user named the program: an agent that may start any program may do anything."""
    aliases, alias = approvals.config.agents, None
    if wanted.agent.alias:
        alias = aliases.get(wanted.name) or aliases.get(catalog().find(wanted.name)[0].name)
    if alias is not None and (alias.project is None or approvals.trusts(alias.project)):
        return None
    refusal = NotAllowed(
        f"{caller} may not start {wanted.name!r}: it is a plain program and not a configured agent",
        f"add it to [agents] in config.toml, or allow it: {_command(caller, wanted, catalog())}",
    )
    if not approvals.allows(caller.known, known):
        raise refusal
    return _delegation(caller, known, refusal)


def _delegation(caller: CallingAgent, known: AgentIdentity, otherwise: NotAllowed) -> DelegationGrant:
    target = (known.name, known.path)
    return DelegationGrant((caller.known.name, caller.known.path), target, otherwise.message, otherwise.hint or "")


def _mode(caller: CallingAgent, own: str, *, is_free: bool) -> str:
    mode = own if is_free else narrower(own, caller.mode)
    if mode == BYPASS and caller.untrusted:
        return caller.mode if is_wider(BYPASS, caller.mode) else DEFAULT_PERMISSION_MODE
    return mode


def _check_arguments(caller: CallingAgent, wanted: AgentRequest, agent: Agent, mode: str) -> None:
    """Raise NotAllowed if the caller's arguments, or its values for variables, widen privileges."""
    filled = [given for written, given in zip(wanted.written, wanted.given, strict=True) if written != given]
    # Permission modes among these have been narrowed already.
    found = widening_of(agent, wanted.typed, mode, agent.args) or widening_of(
        agent, PRIVILEGES.without_modes(filled), mode
    )
    if found:
        raise NotAllowed(
            f"{caller} may not start {wanted.name!r} with {found.argument}, which {found.reason}",
            "leave it out, or let the user add it to an alias in config.toml",
        )


def _command(caller: CallingAgent, wanted: AgentRequest, catalog: Catalog) -> str:
    """Return the command that allows it: with the caller's file if its name means another agent here."""
    first, path = next(iter(catalog.find(caller.name)), None), caller.known.path
    is_named = path is None or not DEFINITIONS.is_definition_path(path)
    is_named = is_named or (first is not None and (first.source == ALIAS or os.path.realpath(first.path) == path))
    return edge_command(caller.name if is_named or path is None else path, wanted.name, wanted.cwd)
