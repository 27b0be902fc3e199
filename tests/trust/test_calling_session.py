"""A session of the user's own as a caller: what its agent may start."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hocket.catalog.discovery import discover
from hocket.config.loading import load
from hocket.trust.approvals import Approvals
from hocket.trust.calling_session import calling_agent


def allowed(agent: str | None, project: Path, home: Path, env: dict[str, str]) -> tuple[str, ...] | None:
    """The agents that a session with this agent may start from a project."""
    config = load(str(project), str(home), env)
    approvals = Approvals(config)
    catalog = partial(discover, str(project), env, str(home), config, approvals)
    return calling_agent(agent, "s-1", "acceptEdits", str(project), env, approvals, catalog).allowed


@pytest.mark.req("S3-56")
@pytest.mark.parametrize("path", ["sh", "helper", "./elsewhere.md"])
def test_alias_of_a_project_lifts_no_limit(project: Path, home: Path, world: Path, path: str) -> None:
    env = {"HOME": str(world / "user"), "PATH": "/usr/bin:/bin", "HOCKET_CLAUDE": "/bin/true"}
    agents = world / "user/.claude/agents"
    agents.mkdir(parents=True)
    for name, limit in (("lister", "allowedAgents: [helper]\n"), ("helper", "")):
        (agents / f"{name}.md").write_text(f"---\nname: {name}\ndescription: d\n{limit}---\nDo.\n")
    assert allowed("lister", project, home, env) == ("helper",)
    assert allowed(None, project, home, env) is None
    (project / "elsewhere.md").write_text("---\nname: lister\ndescription: d\n---\nDo.\n")
    (project / "hocket.toml").write_text(f'[agents.lister]\npath = "{path}"\n')
    assert allowed("lister", project, home, env) == ("helper",)
