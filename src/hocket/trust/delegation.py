"""What a run may let the runs do that it starts: never more than it may itself, unless the user says so.

The run that asks has a ceiling: its permission mode, the agents that its definition allows, the time that it has left,
and the environment it was started with. Every start below a run comes through here on its way to ``bind``, whichever
door it came in by. Depth, width and money are counted elsewhere (``limits``, ``budgets``); what the user allowed is
recorded in ``approvals``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from hocket.catalog.entries import ALIAS, Catalog
from hocket.catalog.files import is_claude_agent_path
from hocket.chain.parse import is_path
from hocket.config import BYPASS
from hocket.config.settings import (
    AgentConfig,
    ChainConfig,
    ClaudeConfig,
    approve_command,
    edge_command,
    is_wider,
    narrower,
)
from hocket.errors import LimitReached, NotAllowed
from hocket.model import Agent, BoundChain, DelegationGrant, Kind, Run, Spec
from hocket.trust.approvals import Approvals, Known
from hocket.trust.check import PROGRAM, known_agent, widening_of
from hocket.trust.privileges import in_mode, mode_with, own_permission_mode, without_modes

_UNKNOWN_MODE = "default"
"""Of an agent of which nobody wrote down how it works: it asks about everything."""
_ASKED_FOR = ClaudeConfig().permission_mode
"""The widest mode in which somebody is asked before a command runs."""
_AGENTS = (Kind.LEAF, Kind.LEAD)


# --- Who asks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caller:
    """An agent that starts others, by what was written down when it was started itself."""

    number: int
    name: str
    """As it was asked for."""
    known: Known
    mode: str
    allowed: tuple[str, ...] | None = None
    unvouched: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"run {self.number} ({self.name})"


class Ceiling(NamedTuple):
    """What holds for whatever is started below a run."""

    caller: Caller | None = None
    """None below a plain program, which has the user's own rights anyway."""
    deadline: float | None = None
    """When the first of those above has no time left, in monotonic time."""


NONE = Ceiling()


class _Written(msgspec.Struct):
    """What of a stored spec, be it an agent's or a chain's, matters here."""

    provider: str | None = None
    agent: str = ""
    env: dict[str, str] = {}
    timeout: float | None = None
    definition: str | None = None
    permission_mode: str | None = None
    allowed_agents: tuple[str, ...] | None = None
    known_as: str | None = None
    unvouched: bool = False


_written = msgspec.json.Decoder(_Written)


def above(line: Sequence[Run], spec_of: Callable[[Run], bytes], now: float) -> Ceiling:
    """The ceiling of what a run starts: ``line`` is that run and its ancestors, ``now`` monotonic time."""
    specs = [(run, _written.decode(spec_of(run))) for run in line]
    nearest = next(((run, spec) for run, spec in specs if run.kind in _AGENTS), None)
    ends = [end for run, spec in specs if (end := _end(run, spec, now)) is not None]
    return Ceiling(_caller(*nearest) if nearest else None, min(ends, default=None))


def _caller(run: Run, spec: _Written) -> Caller | None:
    if spec.provider == PROGRAM:
        return None
    return Caller(
        run.number,
        spec.agent,
        Known(spec.known_as or spec.agent, os.path.realpath(spec.definition) if spec.definition else None),
        spec.permission_mode or _UNKNOWN_MODE,
        spec.allowed_agents,
        spec.unvouched,
        spec.env,
    )


def _end(run: Run, spec: _Written, now: float) -> float | None:
    """When a run's time is over. One that has ended is nobody's measure: what it left behind got a limit then."""
    if spec.timeout is None or run.ended:
        return None
    # A clock that is ahead of ours is one of before a restart of the machine.
    return min(run.started_clock, now) + spec.timeout if run.started_clock is not None else now + spec.timeout


# --- What is asked for --------------------------------------------------------------------------------------


def check_gates(typed: str | None, chain: ChainConfig | None, ceiling: Ceiling, approvals: Approvals) -> None:
    """A gate is a shell command, so an agent may have run only those that the user wrote."""
    if ceiling.caller is None:
        return
    if typed is not None:
        raise NotAllowed(
            f"{ceiling.caller} may not give a gate: that is a shell command",
            "let the user write the chain with its gate into approvals.config.toml, and start it by its name",
        )
    gates = [chain.until, *(step.until for step in chain.steps)] if chain else []
    if chain and any(gates) and chain.project is not None and not approvals.trusts(chain.project):
        raise NotAllowed(
            f"{ceiling.caller} may not start the chain {chain.name!r}: its gate is a shell command of {chain.source},"
            " for which nobody vouches",
            f"review it first; to approve it, run: {approve_command(chain.project)}",
        )


class Wanted(NamedTuple):
    """One agent that somebody wants to start."""

    name: str
    """As it was asked for."""
    agent: Agent
    written: Sequence[str]
    """Arguments that files give it, as they are written."""
    given: Sequence[str]
    """The same with their variables filled in."""
    typed: Sequence[str]
    """Arguments of whoever asks."""
    mode: str
    """The permission mode where the agent itself says nothing."""
    cwd: str


class Granted(NamedTuple):
    """What becomes of it."""

    agent: Agent
    """With all the arguments that files give it, and in the mode that it may have."""
    mode: str | None
    known_as: str
    unvouched: bool
    notices: tuple[str, ...] = ()
    leave: DelegationGrant | None = None
    """The edge that it owes this to."""


def grant(wanted: Wanted, ceiling: Ceiling, approvals: Approvals, catalog: Callable[[], Catalog]) -> Granted:
    """What may be started, and how. Raises ``NotAllowed`` for what may not."""
    caller, agent = ceiling.caller, replace(wanted.agent, args=tuple(wanted.given))
    known = known_agent(wanted.name, agent, approvals, catalog)
    unvouched = _is_unvouched(agent, approvals) or (caller is not None and caller.unvouched)
    if caller is not None:
        _check_allowed(caller, wanted, catalog)
    if agent.provider == PROGRAM:
        leave = _check_program(caller, wanted, known, approvals, catalog) if caller is not None else None
        return Granted(agent, None, known.name, unvouched, leave=leave)
    own = mode_with(agent.args, agent.permission_mode or own_permission_mode(agent.definition) or wanted.mode)
    if caller is None:
        return Granted(agent, mode_with(wanted.typed, own), known.name, unvouched)
    mode = _mode(caller, own, is_free=approvals.allows(caller.known, known))
    if mode != own:
        agent = _in_mode(agent, mode)
    _check_arguments(caller, wanted, agent, mode)
    told = () if mode == own else (_told(caller, wanted, own, mode, catalog()),)
    leave = None
    if mode != _mode(caller, own, is_free=False):
        command = _command(caller, wanted, catalog())
        refusal = f"{caller} may not start {wanted.name!r} in {mode}: it works in {caller.mode} itself"
        leave = _leave(caller, known, NotAllowed(refusal, f"to allow it more: {command}"))
    return Granted(agent, mode_with(wanted.typed, mode), known.name, unvouched, told, leave)


def check_leave(leave: DelegationGrant | None, approvals: Approvals) -> None:
    """Raise where the user has taken back what an agent was once started by."""
    if leave is not None and not approvals.allows(Known(*leave.caller), Known(*leave.target)):
        raise NotAllowed(leave.refusal, leave.hint)


def in_time(bound: Spec | BoundChain, ceiling: Ceiling, now: float) -> Spec | BoundChain:
    """The same with no more time than is left above."""
    if ceiling.deadline is None:
        return bound
    left = ceiling.deadline - now
    if left <= 0:
        raise LimitReached(
            "time: whoever asks has none left", "Start it outside of that run, or give the run more time"
        )
    return replace(bound, timeout=left if bound.timeout is None else min(left, bound.timeout))


# --- Names --------------------------------------------------------------------------------------------------


def _check_allowed(caller: Caller, wanted: Wanted, catalog: Callable[[], Catalog]) -> None:
    if caller.allowed is None or any(_means(word, wanted, catalog) for word in caller.allowed):
        return
    may = ", ".join(caller.allowed) if caller.allowed else "none"
    raise NotAllowed(
        f"{caller} may not start {wanted.name!r}. Allowed agents: {may}",
        f"the list is allowedAgents in {caller.known.path}",
    )


def _means(word: str, wanted: Wanted, catalog: Callable[[], Catalog]) -> bool:
    """Whether a word of a list means what was asked for: by its name, its address, or its file."""
    if word == wanted.name:
        return True
    meant = next(iter(catalog().find(word)), None)
    if meant is None:
        return False
    if not is_path(wanted.name):
        return meant == next(iter(catalog().find(wanted.name)), None)
    definition = wanted.agent.definition
    return definition is not None and os.path.realpath(meant.path) == os.path.realpath(definition.path)


def _alias_of(wanted: Wanted, approvals: Approvals, catalog: Callable[[], Catalog]) -> AgentConfig | None:
    if not wanted.agent.alias:
        return None
    return approvals.config.agents.get(wanted.name) or approvals.config.agents.get(catalog().find(wanted.name)[0].name)


# --- Rights -------------------------------------------------------------------------------------------------


def _is_unvouched(agent: Agent, approvals: Approvals) -> bool:
    """Whether an agent's instructions are a project's for which the user does not vouch."""
    if agent.definition is None or agent.cwd is None or agent.trusted:
        return False
    users = os.path.realpath(approvals.config.users_claude) if approvals.config.users_claude else None
    is_own = users is not None and os.path.realpath(agent.definition.path).startswith(f"{users}/")
    return not is_own and not approvals.trusts_file(agent.definition.path)


def _check_program(
    caller: Caller, wanted: Wanted, known: Known, approvals: Approvals, catalog: Callable[[], Catalog]
) -> DelegationGrant | None:
    """Whoever may start any program may do anything; so an agent of a CLI's may start those that the user named."""
    alias = _alias_of(wanted, approvals, catalog)
    if alias is not None and (alias.project is None or approvals.trusts(alias.project)):
        return None
    refusal = NotAllowed(
        f"{caller} may not start {wanted.name!r}: that is a plain program, and nobody has named it as an agent",
        f"name it under [agents] in approvals.config.toml, or allow it: {_command(caller, wanted, catalog())}",
    )
    if not approvals.allows(caller.known, known):
        raise refusal
    return _leave(caller, known, refusal)


def _leave(caller: Caller, known: Known, otherwise: NotAllowed) -> DelegationGrant:
    target = (known.name, known.path)
    return DelegationGrant((caller.known.name, caller.known.path), target, otherwise.message, otherwise.hint or "")


def _mode(caller: Caller, own: str, *, is_free: bool) -> str:
    mode = own if is_free else narrower(own, caller.mode)
    if mode == BYPASS and caller.unvouched:
        return caller.mode if is_wider(BYPASS, caller.mode) else _ASKED_FOR
    return mode


def _in_mode(agent: Agent, mode: str) -> Agent:
    """The agent with this mode in every place where it could be told another."""
    definition = in_mode(agent.definition, mode) if agent.definition else None
    return replace(agent, args=without_modes(agent.args), permission_mode=mode, definition=definition)


def _check_arguments(caller: Caller, wanted: Wanted, agent: Agent, mode: str) -> None:
    """What an agent types, and what it fills in for a variable, must widen nothing."""
    filled = [given for written, given in zip(wanted.written, wanted.given, strict=True) if written != given]
    # Modes among these are narrowed with all that files give.
    found = widening_of(agent, wanted.typed, mode, agent.args) or widening_of(agent, without_modes(filled), mode)
    if found:
        raise NotAllowed(
            f"{caller} may not start {wanted.name!r} with {found.argument}, which {found.reason}",
            "leave it out, or let the user write it into an alias of approvals.config.toml",
        )


def _told(caller: Caller, wanted: Wanted, own: str, mode: str, catalog: Catalog) -> str:
    if own == BYPASS and caller.unvouched:
        why = f"{BYPASS} is never handed on from a project for which nobody vouches"
        return f"{wanted.name} works in {mode} and not in {own}: {caller} started it, and {why}"
    return (
        f"{wanted.name} works in {mode} and not in {own}: {caller}, which started it, works in {caller.mode};"
        f" to allow it more: {_command(caller, wanted, catalog)}"
    )


def _command(caller: Caller, wanted: Wanted, catalog: Catalog) -> str:
    """The line that allows it, with words that mean these two in the directory that it names."""
    return edge_command(_word(caller, catalog), wanted.name, wanted.cwd)


def _word(caller: Caller, catalog: Catalog) -> str:
    """The caller's name, unless somebody else has it here: then its file, which means it everywhere."""
    first, path = next(iter(catalog.find(caller.name)), None), caller.known.path
    if path is None or not is_claude_agent_path(path) or (first and first.source == ALIAS):
        return caller.name
    return caller.name if first and os.path.realpath(first.path) == path else path
