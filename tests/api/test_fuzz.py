"""Whatever the description allows, and much that it does not, gets an answer that is no fault of the server's."""

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
    ("POST", "/api/runs/{ref}/stop"),
    ("POST", "/api/runs/{ref}/messages"),
    ("POST", "/api/runs/{ref}/answer"),
    ("POST", "/api/runs/{ref}/resume"),
    ("GET", "/api/agents"),
    ("GET", "/api/agents/{name}"),
    ("GET", "/api/catalog"),
    ("GET", "/api/health"),
]
"""All but the one that stops the server."""


def fuzz(server: Server, method: str, path: str, examples: int) -> None:
    assert server.contract is not None
    schema: Any = schemathesis.openapi.from_dict(server.contract.document, config=SchemathesisConfig())
    operation = schema[path][method]
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
        assert response.status_code != 422
        if response.status_code >= 400:
            assert set(response.json()["error"]) == {"code", "message", "hint"}

    one()
    assert server.process is not None
    assert server.process.poll() is None


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_case_is_a_fault_of_the_server(shared: Server, method: str, path: str) -> None:
    fuzz(shared, method, path, 80 if method == "POST" else 25)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_case_of_two_thousand_is_a_fault_of_the_server(shared: Server, method: str, path: str) -> None:
    fuzz(shared, method, path, 500 if method == "POST" else 120)


def test_a_server_that_was_fuzzed_still_works(shared: Server) -> None:
    assert isinstance(shared.get("/api/health"), httpx.Response)
    run = shared.start_run("echo-args", prompt="still here")
    assert shared.ended(run["id"])["result"] == "still here\n"
