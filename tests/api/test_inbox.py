"""The inbox over HTTP: every open question in one place, agents that ask in their own words, one answer for each."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from api.serving import Server, token_of
from api.test_messages import until
from patience import PATIENCE
from scripted_claude import install_claude

Run = dict[str, Any]
PROMISED = ["id", "run", "kind", "text", "tool", "input", "asked_at"]


@pytest.fixture(autouse=True)
def claude(shared: Server) -> None:
    install_claude(shared.agent.folder)


def inbox(server: Server, token: str | None = None) -> list[dict[str, Any]]:
    response = server.get("/api/inbox", token=token)
    assert response.status_code == 200
    found: list[dict[str, Any]] = response.json()["data"]
    return found


def ask(server: Server, run: Run, key: str | None = None, token: str | None = None, **body: Any) -> httpx.Response:
    headers = {"idempotency-key": key} if key else None
    path = f"/api/runs/{run['id']}/questions"
    return server.post(path, body, headers=headers, token=token or token_of(server, run))


def state(server: Server, run: Run, question: str) -> dict[str, Any]:
    response = server.get(f"/api/runs/{run['id']}/questions/{question}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["data"]
    return found


def answer(server: Server, run: Run, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"idempotency-key": key} if key else None
    return server.post(f"/api/runs/{run['id']}/answer", body, headers=headers)


def stop(server: Server, *runs: Run) -> None:
    for run in runs:
        server.post(f"/api/runs/{run['id']}/stop", {})


def test_inbox_lists_open_questions_oldest_first(shared: Server) -> None:
    before = time.time()
    permission = shared.start_run("claude", prompt="ask me")
    until(shared, permission, lambda now: now["needs_you"])
    sleeper = shared.start_run("sleeper")
    assert ask(shared, sleeper, text="Which one?", options=["red", "blue"]).status_code == 201
    first, second = inbox(shared)
    assert list(first)[: len(PROMISED)] == PROMISED
    assert (first["run"], first["kind"], first["tool"]) == (permission["id"], "permission", "Bash")
    assert first["input"]["command"] == "touch x0"
    assert before < first["asked_at"] <= second["asked_at"] < time.time()
    assert (second["run"], second["kind"], second["text"]) == (sleeper["id"], "choice", "Which one?")
    assert (second["tool"], second["input"], second["options"]) == (None, None, ["red", "blue"])
    assert (second["number"], second["agent"], second["root"]) == (sleeper["number"], "sleeper", sleeper["id"])
    assert (second["task"], second["cwd"]) == (None, str(shared.project))
    assert answer(shared, permission, allow=True).status_code == 200
    assert [one["run"] for one in inbox(shared)] == [sleeper["id"]]
    stop(shared, sleeper)
    assert inbox(shared) == []
    assert shared.ended(permission["id"])["status"] == "done"


def test_answered_question_is_found_by_id_and_run(shared: Server) -> None:
    parent, other = shared.start_run("sleeper"), shared.start_run("sleeper")
    token = token_of(shared, parent)
    for run, said in ((parent, "first"), (other, "second")):
        assert ask(shared, run, text="Which one?").status_code == 201
        assert answer(shared, run, allow=True, text=said).status_code == 200

    def found(query: str, token: str | None = None) -> list[tuple[str, str, str]]:
        rows = shared.get(f"/api/inbox?{query}", token=token).json()["data"]
        return [(one["run"], one["by"], one["answer"]) for one in rows]

    first, second = (parent["id"], "operator", "first"), (other["id"], "operator", "second")
    assert found("answered=") == [second]
    assert found(f"answered=&run={parent['id']}") == [first]
    (row,) = shared.get(f"/api/inbox?answered=q&run={parent['number']}").json()["data"]
    assert found(f"answered={row['id']}") == found(f"answered={row['id'][:8]}") == [first]
    assert found("answered=nothing") == []
    assert found("answered=", token) == [first]
    assert found("answered=%25") == found("answered=_") == []
    assert shared.get(f"/api/inbox?answered=&run={other['id']}", token=token).status_code == 403
    stop(shared, parent, other)
    for body in ({}, {"question": row["id"]}):
        late = answer(shared, parent, allow=False, **body)
        assert (late.status_code, late.json()["error"]["code"]) == (409, "conflict")
        assert "answered by operator: first" in late.json()["error"]["message"]


def test_run_sees_questions_below_it_and_answers_none(shared: Server) -> None:
    parent, other = shared.start_run("sleeper"), shared.start_run("sleeper")
    token = token_of(shared, parent)
    child = shared.start_run("sleeper", token=token)
    for run in (parent, other, child):
        assert ask(shared, run, text=f"I am {run['number']}").status_code == 201
    assert [one["run"] for one in inbox(shared)] == [parent["id"], other["id"], child["id"]]
    assert [one["run"] for one in inbox(shared, token)] == [parent["id"], child["id"]]
    assert [one["run"] for one in inbox(shared, token_of(shared, child))] == [child["id"]]
    refused = shared.post(f"/api/runs/{child['id']}/answer", {"allow": True}, token=token)
    assert refused.status_code == 403
    stop(shared, parent, other)


def test_only_the_run_itself_asks(shared: Server) -> None:
    run, other = shared.start_run("sleeper"), shared.start_run("sleeper")
    child = shared.start_run("sleeper", token=token_of(shared, run))
    path = f"/api/runs/{child['id']}/questions"
    for token in (shared.token, token_of(shared, run), token_of(shared, other)):
        assert shared.post(path, {"text": "May I?"}, token=token).status_code == 403
    assert shared.post(path, {"text": "May I?"}, unix=True).status_code == 403
    assert inbox(shared) == []
    mine = token_of(shared, child)
    assert shared.post(path, {"text": "May I?"}, token=mine).status_code == 201
    stop(shared, run, other)
    assert shared.post(path, {"text": "May I?"}, token=mine).status_code == 403


BAD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no text": {"text": 7},
    "an empty text": {"text": ""},
    "a blank text": {"text": " \n"},
    "a text without an end": {"text": "x" * 16_001},
    "an unknown key": {"text": "x", "allow": True},
    "options that are none": {"text": "x", "options": "a"},
    "a blank option": {"text": "x", "options": ["a", " "]},
    "too many options": {"text": "x", "options": ["a"] * 21},
    "half a letter": {"text": "\ud800"},
}


@pytest.mark.parametrize("body", BAD.values(), ids=list(BAD))
def test_invalid_question_is_refused(shared: Server, body: dict[str, Any]) -> None:
    run = shared.start_run("sleeper")
    path, token = f"/api/runs/{run['id']}/questions", token_of(shared, run)
    headers = {"content-type": "application/json"}
    sent = shared.request("POST", path, content=json.dumps(body), headers=headers, token=token)
    assert (sent.status_code, sent.json()["error"]["code"]) == (400, "usage")
    stop(shared, run)


def test_repeated_key_asks_one_question(shared: Server) -> None:
    run = shared.start_run("sleeper")
    token = token_of(shared, run)
    with ThreadPoolExecutor(10) as pool:
        sent = list(pool.map(lambda _: ask(shared, run, "k", token, text="Which?", options=["a", "b"]), range(30)))
    assert {response.status_code for response in sent} == {201}
    (question,) = {response.json()["data"]["id"] for response in sent}
    assert [one["id"] for one in inbox(shared)] == [question]
    now = shared.show(run["id"])
    assert (now["status"], now["needs_you"], now["last"]) == ("waiting", True, "Which?")
    open_one = state(shared, run, question)
    assert (open_one["open"], open_one["answered"], open_one["allow"], open_one["answer"]) == (True, False, None, None)
    assert answer(shared, run, allow=True, text="2").status_code == 200
    told = state(shared, run, question)
    assert (told["open"], told["answered"], told["allow"], told["answer"]) == (False, True, True, "b")
    assert (told["text"], told["by"]) == ("Which?", "operator")
    again = ask(shared, run, "k", token, text="Which?", options=["a", "b"])
    assert (again.status_code, again.json()["data"]["id"], inbox(shared)) == (201, question, [])
    assert shared.show(run["id"])["status"] == "running"
    asked, answered = (event for event in shared.events(run["id"], follow=0) if event["type"] in ("question", "answer"))
    assert asked["data"]["id"] == answered["data"]["id"] == question
    stop(shared, run)
    assert state(shared, run, question) == told
    assert shared.get(f"/api/runs/{run['id']}/questions/nosuch").status_code == 404


@pytest.mark.parametrize("agent", ["sleeper", "claude"])
def test_only_first_of_fifty_answers_counts(shared: Server, agent: str) -> None:
    run = shared.start_run(agent, prompt="ask and hold")
    if agent == "sleeper":
        ask(shared, run, text="Which?")
    question = until(shared, run, lambda now: now["questions"])["questions"][0]["id"]

    def give(number: int) -> httpx.Response:
        return answer(shared, run, allow=True, text=f"number {number}", question=question)

    with ThreadPoolExecutor(25) as pool:
        given = list(pool.map(give, range(50)))
    (winner,) = (number for number, response in enumerate(given) if response.status_code == 200)
    refused = [response.json()["error"] for response in given if response.status_code == 409]
    assert len(refused) == 49
    expected = f"question {question} of run {run['number']} has already been "
    assert {error["message"] for error in refused} == {f"{expected}answered by operator: number {winner}"}
    assert state(shared, run, question)["answer"] == f"number {winner}"
    nameless = answer(shared, run, allow=False)
    assert nameless.status_code == 409
    assert "the last one was answered by operator" in nameless.json()["error"]["message"]
    stop(shared, run)


@pytest.mark.parametrize("agent", ["sleeper", "claude"])
def test_only_first_answer_counts_despite_a_kill(server: Server, agent: str) -> None:
    """A client without a response repeats with the same key, as the command line does."""
    install_claude(server.agent.folder)
    run = server.start_run(agent, prompt="ask and hold")
    if agent == "sleeper":
        ask(server, run, text="Which?")
    question = until(server, run, lambda now: now["questions"])["questions"][0]["id"]
    codes: dict[int, int] = {}
    restarted = threading.Event()

    def give(number: int) -> None:
        for _attempt in range(200):
            try:
                response = answer(server, run, f"k{number}", allow=True, text=f"number {number}", question=question)
            except (httpx.HTTPError, OSError, RuntimeError):
                restarted.wait(0.05)
                continue
            codes[number] = response.status_code
            return

    with ThreadPoolExecutor(25) as pool:
        pending = [pool.submit(give, number) for number in range(50)]
        server.kill()
        server.start_instead()
        restarted.set()
        for one in pending:
            one.result()
    assert sorted(codes.values()) == [200] + [409] * 49
    (winner,) = (number for number, code in codes.items() if code == 200)
    told = [event["data"] for event in server.events(run["id"], follow=0) if event["type"] == "answer"]
    assert [(data["id"], data["text"]) for data in told] == [(question, f"number {winner}")]
    assert inbox(server) == []
    stop(server, run)


def test_unanswered_question_is_denied_or_ends_the_run(shared: Server) -> None:
    denied = shared.start_run("sleeper", on_question="deny")
    question = ask(shared, denied, text="Which one?").json()["data"]["id"]
    told = state(shared, denied, question)
    assert (told["answered"], told["allow"], told["by"]) == (True, False, "hocket")
    assert "no one can answer" in told["answer"]
    assert inbox(shared) == []
    failed = shared.start_run("sleeper", on_question="fail")
    assert ask(shared, failed, text="Which one?").status_code == 201
    ended = shared.ended(failed["id"])
    assert (ended["status"], ended["reason"]) == ("failed", "no_answer")
    stop(shared, denied)


@pytest.mark.req("S1-45")
def test_question_waits_by_default(shared: Server) -> None:
    waiting = shared.start_run("claude", prompt="ask me")
    assert until(shared, waiting, lambda now: now["needs_you"])["status"] == "waiting"
    denied = shared.start_run("claude", prompt="ask me", on_question_default="deny")
    argv = json.loads(wait_for_spec(shared, denied))["argv"]
    assert argv[argv.index("--permission-prompts") + 1] == "none"
    own = shared.start_run("claude", prompt="ask me", on_question_default="deny", on_question="ask")
    until(shared, own, lambda now: now["needs_you"])
    stop(shared, waiting, denied, own)


def wait_for_spec(server: Server, run: Run) -> str:
    token_of(server, run)  # the token is known only after it was written
    with open(f"{server.show(run['id'])['dir']}/spec.json") as spec:
        return spec.read()


def changes(server: Server, path: str = "/api/inbox/events", token: str | None = None) -> Iterator[Any]:
    headers = {"authorization": f"Bearer {token or server.token}"}
    url = f"http://127.0.0.1:{server.port}{path}"
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def test_inbox_stream_sends_changes_until_the_server_stops(server: Server) -> None:
    run = server.start_run("sleeper")
    token = token_of(server, run)
    news = changes(server)
    assert next(news) == []
    question = ask(server, run, token=token, text="Which?").json()["data"]["id"]
    (one,) = next(news)
    assert (one["id"], one["text"]) == (question, "Which?")
    assert answer(server, run, allow=True, text="this").status_code == 200
    assert next(news) == []
    server.leave()
    assert list(news) == []
    server.start()


def test_stream_of_runs_has_all_then_what_changes(server: Server) -> None:
    """Everything that has not ended, then each run as it is now: also one that has ended, and the whole inbox."""
    run = server.start_run("sleeper")
    token = token_of(server, run)
    news = changes(server, "/api/runs/events")
    first = next(news)
    assert first["complete"] is True
    assert [one["id"] for one in first["runs"]] == [run["id"]]
    assert first["questions"] == []
    question = ask(server, run, token=token, text="Which?").json()["data"]["id"]
    asked = next(message for message in news if message["questions"])
    assert asked["complete"] is False
    assert [one["id"] for one in asked["questions"]] == [question]
    assert [(one["id"], one["needs_you"]) for one in asked["runs"]] == [(run["id"], True)]
    other = server.start_run("counter")
    ended = next(one for message in news for one in message["runs"] if one["id"] == other["id"] and one["ended_at"])
    assert ended["status"] == "done"
    own = next(changes(server, "/api/runs/events", token))
    assert [one["id"] for one in own["runs"]] == [run["id"]]
    stop(server, run)
    last = next(
        message for message in news if any(one["id"] == run["id"] and one["ended_at"] for one in message["runs"])
    )
    assert last["questions"] == []
    server.leave()
    list(news)
    server.start()
