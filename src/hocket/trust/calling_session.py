"""A session of the user's own as a caller: whether its calls of sub-agents become runs, and what it may start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from hocket.catalog.entries import Catalog
from hocket.catalog.resolve import resolve
from hocket.config.loading import load
from hocket.config.settings import Config
from hocket.errors import ProgramNotFound
from hocket.model import Agent
from hocket.trust.approvals import Approvals
from hocket.trust.delegation import CallingAgent, delegates, session_caller


def asks_for_runs(agent: str | None, cwd: str, home: str, env: Mapping[str, str]) -> bool:
    """Whether the calls of a session's agent become runs. An untrusted folder has no say in it."""
    config, place = load(home, home, env), home
    if Approvals(config).trusts(cwd):
        config, place = load(cwd, home, env), cwd
    return delegates(_agent(agent, place, env, config), config)


def calling_agent(
    agent: str | None,
    session: str | None,
    mode: str,
    cwd: str,
    env: Mapping[str, str],
    approvals: Approvals,
    catalog: Callable[[], Catalog],
) -> CallingAgent:
    """Return the caller for a start from a session with this agent and permission mode."""
    # A CLI knows no aliases: that of a project must not lift the limits of the agent that it names.
    found = _agent(agent, cwd, env, approvals.config._replace(agents={}), catalog)
    return session_caller(session, mode, found.definition if found else None, not approvals.trusts(cwd), env)


def _agent(
    name: str | None, cwd: str, env: Mapping[str, str], config: Config, catalog: Callable[[], Catalog] | None = None
) -> Agent | None:
    """Return the agent of a session; None for one of the CLI's own."""
    if name is not None:
        with suppress(ProgramNotFound):
            return resolve(name, cwd, env, config, catalog).agent
    return None
