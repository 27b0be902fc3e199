"""Requests that the description allows, and many that it does not, never cause an internal server error."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from api.serving import Server
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import SchemathesisConfig

OPERATIONS = [
    ("GET", "/api/runs"),
    ("POST", "/api/runs"),
    ("GET", "/api/runs/{ref}"),
    ("GET", "/api/runs/{ref}/events"),
    ("GET", "/api/runs/{ref}/output"),
    ("GET", "/api/runs/{ref}/diff"),
    ("GET", "/api/runs/{ref}/evidence"),
    ("GET", "/api/runs/{ref}/transcript"),
    ("POST", "/api/runs/{ref}/stop"),
    ("GET", "/api/runs/{ref}/terminal"),
    ("POST", "/api/runs/{ref}/terminal"),
    ("POST", "/api/runs/{ref}/messages"),
    ("POST", "/api/runs/{ref}/answer"),
    ("POST", "/api/runs/{ref}/resume"),
    ("POST", "/api/runs/import"),
    ("POST", "/api/runs/{ref}/questions"),
    ("GET", "/api/runs/{ref}/questions/{question}"),
    ("POST", "/api/runs/{ref}/permissions"),
    ("POST", "/api/runs/{ref}/teammates"),
    ("GET", "/api/inbox"),
    ("POST", "/mcp"),
    ("GET", "/api/agents"),
    ("GET", "/api/agents/{name}"),
    ("GET", "/api/agents/{ref}/teammates"),
    ("GET", "/api/agents/{ref}/team-tasks"),
    ("GET", "/api/teams/orphans"),
    ("POST", "/api/teams/orphans/{ref}/clean"),
    ("GET", "/api/catalog"),
    ("GET", "/api/chains"),
    ("POST", "/api/plans"),
    ("GET", "/api/worktrees"),
    ("POST", "/api/worktrees/prune"),
    ("GET", "/api/gc"),
    ("POST", "/api/gc"),
    ("GET", "/api/health"),
    ("GET", "/api/tasks"),
    ("DELETE", "/api/tasks/{ref}"),
    ("PUT", "/api/tasks/{ref}/archive"),
    ("POST", "/api/tasks"),
    ("POST", "/api/tasks/import"),
    ("POST", "/api/handoffs"),
    ("GET", "/api/tasks/{ref}"),
    ("GET", "/api/tasks/{ref}/export"),
    ("PUT", "/api/tasks/{ref}/status"),
    ("PUT", "/api/tasks/{ref}/planning"),
    ("GET", "/api/tasks/{ref}/history"),
    ("GET", "/api/tasks/{ref}/queue"),
    ("POST", "/api/tasks/{ref}/queue"),
    ("POST", "/api/tasks/{ref}/queue/next"),
    ("DELETE", "/api/tasks/{ref}/queue/{item}"),
    ("GET", "/api/tasks/{ref}/attachments"),
    ("POST", "/api/tasks/{ref}/attachments"),
    ("GET", "/api/tasks/{ref}/attachments/{name}"),
    ("POST", "/api/tasks/{ref}/handoff"),
    ("PUT", "/api/tasks/{ref}/handoff/complete"),
    ("GET", "/api/tasks/{ref}/handoffs/{handoff}"),
]
WITH_BODIES = ("POST", "PUT")
CASES, SLOW_CASES = (90, 25), (500, 120)
"""Of an operation with a body, and of one without."""
NOT_FUZZED = {("POST", "/api/server/stop"), ("GET", "/api/inbox/events"), ("GET", "/api/runs/events")}
"""The first would leave nothing to ask, and the others, which take nothing to be mistaken about, have no end."""


def test_fuzz_has_enough_cases() -> None:
    assert sum(SLOW_CASES[method not in WITH_BODIES] for method, _ in OPERATIONS) >= 2_000


def fuzz(server: Server, method: str, path: str, examples: int) -> None:
    assert server.contract is not None
    schema: Any = schemathesis.openapi.from_dict(server.contract.document, config=SchemathesisConfig())
    operation = schema[path][method]
    described = server.contract.document["paths"][path][method.lower()]["responses"]
    base = f"http://127.0.0.1:{server.port}"

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        response = case.call(base_url=base, headers={"Authorization": f"Bearer {server.token}"})
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        assert str(response.status_code) in described, (case.as_curl_command(), response.text)
        if response.status_code >= 400 and path != "/mcp":  # which has errors in its protocol's own words
            assert set(response.json()["error"]) == {"code", "message", "hint"}

    one()
    assert server.process is not None
    assert server.process.poll() is None


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_fuzzed_requests_cause_no_internal_error(shared: Server, method: str, path: str) -> None:
    fuzz(shared, method, path, CASES[method not in WITH_BODIES])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_many_fuzzed_requests_cause_no_internal_error(shared: Server, method: str, path: str) -> None:
    fuzz(shared, method, path, SLOW_CASES[method not in WITH_BODIES])


def test_fuzzed_server_still_works(shared: Server) -> None:
    assert isinstance(shared.get("/api/health"), httpx.Response)
    run = shared.start_run("echo-args", prompt="still here")
    assert shared.ended(run["id"])["result"] == "still here\n"
