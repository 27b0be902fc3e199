"""The routes of hooks: for the run itself and the operator, once per key, with secrets masked, and closed elsewhere."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from api.serving import Server, token_of
from api.test_messages import until

Run = dict[str, Any]
CALL: dict[str, Any] = {"tool": "Bash", "input": {"command": "make"}}
SECRET = "sk-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def _lead(shared: Server) -> None:
    shared.agent("claude", "import signal; signal.pause()")


def lead(server: Server, **options: Any) -> Run:
    run: Run = server.start_run("claude", **options)
    until(server, run, lambda now: now["started_at"] is not None)
    return run


def post(server: Server, run: Run, body: Any, key: str | None = None, **how: Any) -> httpx.Response:
    headers = {"idempotency-key": key} if key else None
    return server.post(f"/api/runs/{run['id']}/permissions", body, headers=headers, **how)


def asked_in(server: Server, run: Run) -> list[dict[str, Any]]:
    return [event["data"] for event in server.events(run["id"], follow=0) if event["type"] == "question"]


def stop(server: Server, *runs: Run) -> None:
    for run in runs:
        server.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.parametrize(("path", "body"), [("permissions", CALL), ("teammates", {"name": "alice"})])
def test_only_the_run_itself_and_the_operator_ask(shared: Server, path: str, body: dict[str, Any]) -> None:
    run, other = lead(shared), lead(shared)
    child = shared.start_run("claude", token=token_of(shared, run))
    url = f"/api/runs/{run['id']}/{path}"
    for token in (token_of(shared, other), token_of(shared, child)):
        assert shared.post(url, body, token=token).status_code == 403
    assert shared.post(f"/api/runs/{child['id']}/{path}", body, token=token_of(shared, run)).status_code == 403
    assert asked_in(shared, run) == []
    mine = token_of(shared, run)
    assert shared.post(url, body, token=mine).status_code in (200, 201)
    assert shared.post(url, body, unix=True).status_code in (200, 201)
    stop(shared, run, other)
    assert shared.post(url, body, token=mine).status_code == 403
    assert shared.post(f"/api/runs/nosuch/{path}", body).status_code == 404


BAD: dict[str, Any] = {
    "nothing": {},
    "no object": [],
    "no tool": {"input": {}},
    "an empty tool": {**CALL, "tool": ""},
    "an input that is none": {**CALL, "input": "make"},
    "suggestions that are none": {**CALL, "suggestions": {}},
    "an unknown key": {**CALL, "mode": "plan"},
    "half a letter": {**CALL, "input": {"command": "\ud800"}},
}


@pytest.mark.parametrize("body", BAD.values(), ids=list(BAD))
def test_invalid_request_is_refused(shared: Server, body: Any) -> None:
    run = lead(shared)
    headers = {"content-type": "application/json"}
    for path in ("permissions", "teammates"):
        sent = shared.request("POST", f"/api/runs/{run['id']}/{path}", content=json.dumps(body), headers=headers)
        assert (sent.status_code, sent.json()["error"]["code"]) == (400, "usage")
    assert asked_in(shared, run) == []
    stop(shared, run)


def test_plain_program_has_no_hook(shared: Server) -> None:
    run = shared.start_run("sleeper")
    refused = post(shared, run, CALL)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        409,
        f"run {run['number']} asks no questions by a hook",
    )
    stop(shared, run)
    ended = lead(shared)
    stop(shared, ended)
    assert post(shared, ended, CALL).status_code == 409


def test_repeated_key_asks_once(shared: Server) -> None:
    run = lead(shared)
    first, again, other = (post(shared, run, CALL, key).json()["data"]["id"] for key in ("k", "k", "l"))
    assert (first == again, first == other) == (True, False)
    assert [one["id"] for one in asked_in(shared, run)] == [first, other]
    body = {"question": first, "allow": True}
    assert shared.post(f"/api/runs/{run['id']}/answer", body).status_code == 200
    assert post(shared, run, CALL, "k").json()["data"]["id"] == first
    assert len(shared.show(run["id"])["questions"]) == 1
    stop(shared, run)


def test_secrets_are_masked_in_questions_of_hooks(shared: Server) -> None:
    env = {"PATH": shared.env["PATH"], "ANTHROPIC_API_KEY": SECRET}
    run = lead(shared, env=env)
    rules = [{"toolName": "Bash", "ruleContent": f"curl {SECRET} *"}]
    suggestions = [{"type": "addRules", "behavior": "allow", "rules": rules}]
    call = {"tool": "Bash", "input": {"command": f"curl {SECRET}", "n": [1.5, None]}, "suggestions": suggestions}
    assert post(shared, run, call).status_code == 201
    question = {"question": "Which key?", "options": [{"label": SECRET}, {"label": "none"}]}
    choice = {"tool": "AskUserQuestion", "input": {"questions": [question]}}
    chosen = post(shared, run, choice).json()["data"]["id"]
    permission, _ = asked_in(shared, run)
    assert SECRET not in json.dumps(asked_in(shared, run))
    assert (permission["input"], "rule" in permission) == ({"command": "curl [redacted]", "n": [1.5, None]}, False)
    body = {"question": chosen, "allow": True, "text": "1"}
    assert shared.post(f"/api/runs/{run['id']}/answer", body).status_code == 200
    (answer,) = (event["data"] for event in shared.events(run["id"], follow=0) if event["type"] == "answer")
    assert answer["text"] == "1", "the hook knows the label"
    stop(shared, run)


def test_long_input_is_cut_and_shown_as_such(shared: Server) -> None:
    run = lead(shared)
    call = {"tool": "Write", "input": {"file_path": "/x", "content": "x" * 100_000}}
    assert post(shared, run, call).status_code == 201
    (asked,) = asked_in(shared, run)
    assert (asked["text"], asked["input"], asked["oversize"]) == ("Write wants to write: /x", None, True)
    stop(shared, run)


def test_hooks_may_have_twenty_open_questions(shared: Server) -> None:
    run = lead(shared)
    codes = [post(shared, run, CALL).status_code for _ in range(21)]
    assert codes == [201] * 20 + [409]
    stop(shared, run)
