"""Messages, answers and resumed sessions over HTTP, with a scripted agent that asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api.serving import Server, token_of, wait_for
from scripted_claude import install_claude

from hocket.trust.approvals import FOLDER, approve, withdraw
from hocket.trust.folder_contents import Cover

Run = dict[str, Any]


@pytest.fixture(autouse=True)
def claude(shared: Server) -> None:
    install_claude(shared.agent.folder)


def until(server: Server, run: Run, wanted: Callable[[Run], Any]) -> Run:
    def look() -> Run | None:
        now: Run = server.show(run["id"])
        return now if wanted(now) else None

    found: Run = wait_for(look, "the run to be as wanted")
    return found


def idle(server: Server, **more: Any) -> Run:
    """A session with nothing to do."""
    run = server.start_run("claude", prompt="first", session=True, **more)
    return until(server, run, lambda now: now["status"] == "waiting")


def asking(server: Server, prompt: str = "ask me", **more: Any) -> Run:
    run = server.start_run("claude", prompt=prompt, on_question="ask", **more)
    return until(server, run, lambda now: now["needs_you"])


def say(server: Server, run: Run, key: str | None = None, **body: Any) -> Any:
    headers = {"idempotency-key": key} if key else None
    return server.post(f"/api/runs/{run['id']}/messages", body, headers=headers)


def answer(server: Server, run: Run, key: str | None = None, token: str | None = None, **body: Any) -> Any:
    headers = {"idempotency-key": key} if key else None
    return server.post(f"/api/runs/{run['id']}/answer", body, headers=headers, token=token)


def inputs(server: Server, run: Run) -> list[dict[str, Any]]:
    return [event["data"] for event in server.events(run["id"], follow=0) if event["type"] == "input"]


def test_message_starts_a_turn_of_the_same_process(shared: Server) -> None:
    run = idle(shared)
    taken = say(shared, run, text="second").json()["data"]
    assert taken["run"] == run["id"]
    after = until(shared, run, lambda now: now["result"] == "you said: second")
    assert (after["pid"], after["questions"], after["resumed_from"]) == (run["pid"], [], None)
    assert after["seq"] > run["seq"]
    assert [data["id"] for data in inputs(shared, run)] == [taken["id"]]


def test_repeated_key_sends_once(shared: Server) -> None:
    run = idle(shared)
    taken = [say(shared, run, "again", text="second", interrupt=True).json()["data"] for _ in range(3)]
    assert taken == [{"run": run["id"], "id": "again", "ahead": 0, "after": taken[0]["after"]}] * 3
    until(shared, run, lambda now: now["result"] == "you said: second")
    assert [data["kind"] for data in inputs(shared, run)] == ["interrupt", "message"]


def test_interrupt_comes_before_the_text(shared: Server) -> None:
    run = shared.start_run("claude", prompt="wait", session=True)
    until(shared, run, lambda now: now["last"] == "working")
    say(shared, run, interrupt=True, text="something else")
    assert until(shared, run, lambda now: now["result"] == "you said: something else")["error"] is None
    turns = [event["data"] for event in shared.events(run["id"], follow=0) if event["type"] == "turn.ended"]
    assert [turn["is_error"] for turn in turns] == [True, False]


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a message without anything": ("messages", {}),
    "a message that only says no": ("messages", {"interrupt": False}),
    "a message with an unknown key": ("messages", {"text": "x", "colour": "red"}),
    "a message that is no text": ("messages", {"text": 7}),
    "an answer that is neither": ("answer", {}),
    "an answer that only sounds like a yes": ("answer", {"allow": "yes"}),
    "a number for a yes": ("answer", {"allow": 1}),
    "an answer with an unknown key": ("answer", {"allow": True, "for_ever": True}),
    "a word in the place of always": ("answer", {"allow": True, "always": "yes"}),
    "an answer to nothing": ("answer", {"allow": True, "question": ""}),
    "a resumption with an unknown key": ("resume", {"cwd": "/"}),
}


@pytest.mark.parametrize(("route", "body"), BAD.values(), ids=list(BAD))
def test_invalid_message_body_is_refused(shared: Server, route: str, body: dict[str, Any]) -> None:
    run = shared.start_run("echo-args")
    assert shared.post(f"/api/runs/{run['id']}/{route}", body).status_code == 400


def test_question_is_shown_and_answered(shared: Server) -> None:
    run = asking(shared)
    (question,) = run["questions"]
    plain = {"id", "run", "number", "kind", "text", "tool", "input", "suggestions", "rule"}
    assert set(question) == plain | {"options", "asked_at"}
    assert (question["run"], question["number"]) == (run["id"], run["number"])
    assert (question["kind"], question["tool"], question["input"]["command"]) == ("permission", "Bash", "touch x0")
    listed = {one["id"]: one for one in shared.get("/api/runs").json()["data"]}
    assert (listed[run["id"]]["needs_you"], listed[run["id"]]["last"]) == (True, question["text"])
    told = answer(shared, run, allow=False, text="not now").json()["data"]
    assert told == {"run": run["id"], "question": question["id"], "allow": False}
    ended = shared.ended(run["id"])
    assert (ended["result"], ended["questions"]) == ("you said: ask me [not now]", [])
    late = answer(shared, run, allow=True)
    assert late.status_code == 409


def test_answer_is_repeatable_with_its_key(shared: Server) -> None:
    run = asking(shared, "ask and hold")
    first = answer(shared, run, "k1", allow=True)
    again = answer(shared, run, "k1", allow=True)
    other = answer(shared, run, "k2", allow=True)
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 409)
    assert first.json()["data"] == again.json()["data"]
    answers = [event for event in shared.events(run["id"], follow=0) if event["type"] == "answer"]
    assert len(answers) == 1
    assert answers[0]["data"]["by"] == "operator"
    (shared.project / "go").touch()
    shared.ended(run["id"])
    (shared.project / "go").unlink()


def test_key_of_a_refused_answer_is_free(shared: Server) -> None:
    run = asking(shared)
    assert answer(shared, run, "k", allow=True, question="nosuch").status_code == 409
    assert answer(shared, run, "k", allow=True).status_code == 200
    shared.ended(run["id"])


def test_answer_names_one_of_several_questions(shared: Server) -> None:
    run = shared.start_run("claude", prompt="ask twice", on_question="ask")
    asked = until(shared, run, lambda now: len(now["questions"]) == 2)["questions"]
    refused = answer(shared, run, allow=True)
    assert refused.status_code == 409
    assert all(question["id"] in refused.json()["error"]["hint"] for question in asked)
    for question in asked:
        assert answer(shared, run, allow=True, question=question["id"]).status_code == 200
    shared.ended(run["id"])


def test_question_below_a_chain_is_answered_there(shared: Server) -> None:
    chain = shared.start_run("claude", dsl=True, prompt="ask me", on_question="ask")
    asked = until(shared, chain, lambda now: now["questions"])
    (question,), (leaf,) = asked["questions"], asked["children"]
    assert (question["run"], question["number"], question["tool"]) == (leaf["id"], leaf["number"], "Bash")
    assert shared.show(leaf["id"])["questions"] == [question]
    assert answer(shared, chain, allow=True, question="nosuch").status_code == 409
    told = answer(shared, chain, allow=True, question=question["id"])
    assert told.json()["data"] == {"run": leaf["id"], "question": question["id"], "allow": True}
    ended = shared.ended(chain["id"])
    assert (ended["result"], ended["questions"]) == ("you said: ask me [allowed touch x0]", [])


def test_chain_shows_all_questions_below_it(shared: Server) -> None:
    chain = shared.start_run("sleeper", dsl=True)
    (leaf,) = until(shared, chain, lambda now: now["children"])["children"]
    below = [asking(shared, parent=leaf["id"]) for _ in range(2)]
    other = asking(shared)
    assert [one["run"] for one in shared.show(chain["id"])["questions"]] == [run["id"] for run in below]
    assert shared.show(leaf["id"])["questions"] == []
    assert answer(shared, chain, allow=True).status_code == 409
    for run in (chain, other):
        shared.post(f"/api/runs/{run['id']}/stop", {})
    assert shared.show(chain["id"])["questions"] == []


def test_answer_applies_to_one_question(shared: Server) -> None:
    run = asking(shared, "ask, then choose")
    (first,) = run["questions"]
    answer(shared, run, allow=False, question=first["id"])
    (second,) = until(shared, run, lambda now: now["questions"] and now["questions"] != [first])["questions"]
    assert answer(shared, run, allow=True, question=first["id"]).status_code == 409
    assert shared.show(run["id"])["questions"] == [second]
    shared.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.parametrize("unix", [False, True])
def test_run_cannot_answer_questions(shared: Server, unix: bool) -> None:
    parent = shared.start_run("sleeper")
    token = token_of(shared, parent)
    child = asking(shared, token=token)
    for mine, run in ((token, child), (token_of(shared, child), child), (token, parent)):
        response = shared.post(f"/api/runs/{run['id']}/answer", {"allow": True}, token=mine, unix=unix)
        assert response.status_code == 403
    assert shared.show(child["id"])["needs_you"] is True
    shared.post(f"/api/runs/{parent['id']}/stop", {})


def test_run_may_send_to_descendants(shared: Server) -> None:
    parent = shared.start_run("sleeper")
    token = token_of(shared, parent)
    child = idle(shared, token=token)
    sent = shared.post(f"/api/runs/{child['id']}/messages", {"text": "hello"}, token=token)
    assert sent.status_code == 200
    until(shared, child, lambda now: now["result"] == "you said: hello")
    shared.post(f"/api/runs/{parent['id']}/stop", {})


def test_run_may_send_to_ancestors_without_interrupting(shared: Server) -> None:
    parent = idle(shared)
    middle = idle(shared, token=token_of(shared, parent))
    below, beside = (idle(shared, token=token_of(shared, one)) for one in (middle, parent))
    path, token = f"/api/runs/{parent['id']}/messages", token_of(shared, below)
    for body in ({"interrupt": True}, {"interrupt": True, "text": "obey"}):
        assert shared.post(path, body, token=token).status_code == 403
    stranger = token_of(shared, shared.start_run("sleeper"))
    assert shared.post(path, {"text": "obey"}, token=stranger).status_code == 403
    to_sibling = f"/api/runs/{beside['id']}/messages"
    assert shared.post(to_sibling, {"text": "obey"}, token=token).status_code == 403
    assert shared.post(path, {"text": "done"}, token=token).status_code == 200
    known = f"Message from run {below['number']} (claude), which was started below you:\n\ndone"
    until(shared, parent, lambda now: now["result"] == f"you said: {known}")
    shared.post(f"/api/runs/{parent['id']}/stop", {})


def test_followed_resume_streams_events(shared: Server) -> None:
    first = shared.ended(shared.start_run("claude", prompt="first")["id"])
    resumed = shared.post(f"/api/runs/{first['id']}/resume?follow=1", {"prompt": "second"})
    assert (resumed.status_code, resumed.text.count('"run.ended"')) == (201, 1)
    run = shared.show(resumed.headers["location"].removeprefix("/api/runs/"))
    assert (run["resumed_from"], run["result"]) == (first["id"], "you said: second")


def test_repeated_key_resumes_once(shared: Server) -> None:
    first = shared.ended(shared.start_run("claude", prompt="first")["id"])
    path = f"/api/runs/{first['id']}/resume"
    made = [shared.post(path, {"prompt": "second"}, headers={"idempotency-key": "r1"}) for _ in range(2)]
    assert [response.status_code for response in made] == [201, 201]
    ids = {response.json()["data"]["id"] for response in made}
    assert len(ids) == 1
    ended = shared.ended(ids.pop())
    assert (ended["resumed_from"], ended["result"]) == (first["id"], "you said: second")
    argv = json.loads((Path(ended["dir"]) / "spec.json").read_text())["argv"]
    assert argv[argv.index("--resume") + 1] == first["session_id"]
    assert "--fork-session" in argv


@pytest.mark.req("S1-45")
def test_resume_checks_the_approval_of_the_folder(shared: Server) -> None:
    folder = os.path.realpath(shared.project)
    approve(str(shared.home), FOLDER, folder, Cover().folder(folder))
    first = shared.ended(shared.start_run("claude", prompt="first")["id"])
    path = f"/api/runs/{first['id']}/resume"
    again = shared.post(path, {"prompt": "second"})
    assert again.status_code == 201
    shared.ended(again.json()["data"]["id"])
    assert withdraw(str(shared.home), FOLDER, folder)
    refused = shared.post(path, {"prompt": "third"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (403, "not_trusted")
    assert f"hocket trust {folder}" in error["hint"]


def test_resume_needs_an_ended_session(shared: Server) -> None:
    live = idle(shared)
    plain = shared.ended(shared.start_run("echo-args")["id"])
    chain = shared.ended(shared.start_run("claude -> claude", dsl=True, prompt="x")["id"])
    for run in (live, plain, chain):
        assert shared.post(f"/api/runs/{run['id']}/resume", {}).status_code == 409


def test_run_cannot_resume(shared: Server) -> None:
    """The new run would lie outside of its own tree, where no limit and no stop of its parents reaches it."""
    parent = shared.start_run("sleeper")
    token = token_of(shared, parent)
    child = shared.ended(shared.start_run("claude", prompt="x", token=token)["id"])
    before = shared.count()
    assert shared.post(f"/api/runs/{child['id']}/resume", {}, token=token).status_code == 403
    assert shared.count() == before
    shared.post(f"/api/runs/{parent['id']}/stop", {})


# --- Hand-offs that are gone on with ---


def handed(server: Server, **more: Any) -> tuple[str, Run]:
    """A task that the agent had, and the run of that."""
    task = server.post("/api/tasks", {"description": "a wish", "cwd": str(server.project)}).json()["data"]["id"]
    body = {"agentName": "claude", "prompt": "first", **more}
    meta = server.post(f"/api/tasks/{task}/handoff", body).json()["meta"]
    return task, server.ended(meta["run"])


def chain_of(server: Server, task: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"/api/tasks/{task}").json()["data"]["agentChain"]
    return found


@pytest.mark.req("S2-50", "S2-90")
def test_resumed_hand_off_gets_a_new_record(shared: Server) -> None:
    task, first = handed(shared)
    before = chain_of(shared, task)
    path = f"/api/runs/{first['id']}/resume"
    made = [shared.post(path, {"prompt": "second"}, headers={"idempotency-key": f"r-{task}"}) for _ in range(2)]
    assert [response.status_code for response in made] == [201, 201]
    again = shared.ended(made[0].json()["data"]["id"])
    assert (again["task"], again["resumed_from"]) == (task, first["id"])
    old, new = chain_of(shared, task)
    assert [old] == before, "the first record is as it was"
    assert (new["run"], new["agentName"], new["status"], new["output"]) == (
        again["id"],
        "claude",
        "done",
        "you said: second",
    )
    now = shared.get(f"/api/tasks/{task}").json()["data"]
    assert (now["currentAgent"], now["status"]["type"]) == (None, "waiting")


def test_resume_of_hand_off_needs_free_task(shared: Server) -> None:
    task, first = handed(shared)
    path = f"/api/runs/{first['id']}/resume"
    body = {"agentName": "sleeper", "prompt": "x"}
    busy = shared.post(f"/api/tasks/{task}/handoff", body).json()["meta"]["run"]
    before = shared.count()
    refused = shared.post(path, {"prompt": "second"})
    assert refused.status_code == 409
    assert "sleeper is at work on this task" in refused.json()["error"]["message"]
    shared.post(f"/api/runs/{busy}/stop", {})
    for statuses, hint in ((["failed"], "hocket task status"), (["pending", "active", "completed"], "hocket handoff")):
        for status in statuses:
            change = shared.request("PUT", f"/api/tasks/{task}/status", json={"status": {"type": status}})
            assert change.status_code == 200
        refused = shared.post(path, {"prompt": "second"})
        assert refused.status_code == 409
        assert hint in refused.json()["error"]["hint"]
    assert shared.count() == before
    assert len(chain_of(shared, task)) == 2
