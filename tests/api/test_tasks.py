"""Tasks over HTTP: what is wanted, what becomes of it, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.serving import Server, token_of, wait_for
from patience import PATIENCE


def make(server: Server, description: str = "Mend the roof", **more: Any) -> dict[str, Any]:
    body = {"description": description, "cwd": str(server.project), **more}
    response = server.post("/api/tasks", body)
    assert response.status_code == 201, response.text
    task: dict[str, Any] = response.json()["data"]
    return task


def show(server: Server, task: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = server.get(f"/api/tasks/{task['id']}").json()["data"]
    return found


def put(server: Server, task: dict[str, Any], what: str, body: Any, expect: int = 200, **more: Any) -> Any:
    response = server.request("PUT", f"/api/tasks/{task['id']}/{what}", json=body, **more)
    assert response.status_code == expect, response.text
    answer = response.json()
    return answer["data"] if expect == 200 else answer["error"]


def set_status(server: Server, task: dict[str, Any], type_: str, expect: int = 200, **more: Any) -> Any:
    return put(server, task, "status", {"status": {"type": type_, **more}}, expect)


def history(server: Server, task: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = server.get(f"/api/tasks/{task['id']}/history").json()["data"]["events"]
    return events


@pytest.mark.req("S2-02", "S2-05", "S2-06", "S2-14", "S2-82", "S2-B01")
def test_new_task_has_no_agent(shared: Server) -> None:
    source = {"sourceType": "chat", "userId": "u1", "conversationId": "c1"}
    task = make(shared, source=source)
    assert task["currentAgent"] is None
    assert task["agentChain"] == []
    assert task["attachments"] == []
    assert task["sessionId"] is None
    assert task["status"] == {"type": "pending"}
    assert task["taskType"] == "descriptionOnly"
    assert task["source"] == source
    assert task["createdAt"] == task["updatedAt"]
    assert isinstance(task["createdAt"], int)
    assert task["createdAt"] > 1_700_000_000_000
    assert "plan" not in task
    assert show(shared, task) == task
    assert shared.get(f"/api/tasks/{task['number']}").json()["data"] == task
    assert shared.get(f"/api/tasks/{task['id'][:8]}").json()["data"] == task


@pytest.mark.req("S2-39")
@pytest.mark.parametrize(
    "body",
    [
        *({}, {"description": ""}, {"description": "  "}, {"description": 7}, {"description": "x", "unknown": 1}, []),
        *({"description": "x", "cwd": "relative"}, {"description": "x", "cwd": "/no/such/place"}),
        {"description": "x", "source": {"userId": "u"}},
    ],
)
def test_invalid_task_is_refused(shared: Server, body: Any) -> None:
    count = len(shared.get("/api/tasks?limit=1000").json()["data"])
    response = shared.post("/api/tasks", body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert len(shared.get("/api/tasks?limit=1000").json()["data"]) == count


@pytest.mark.req("S2-B02", "S2-80")
@pytest.mark.parametrize(
    ("way", "last"),
    [
        *((("active", "waiting", "active", "completed"), "completed"), (("failed", "pending", "active"), "active")),
        *((("active", "failed", "pending"), "pending"), (("active", "waiting", "completed"), "completed")),
    ],
)
def test_allowed_status_changes(shared: Server, way: tuple[str, ...], last: str) -> None:
    task = make(shared)
    for step in way:
        set_status(shared, task, step, message=f"now {step}")
    assert show(shared, task)["status"] == {"type": last, "message": f"now {last}"}
    changes = [event["data"] for event in history(shared, task) if event["eventType"] == "status_changed"]
    assert [change["to"] for change in changes] == list(way)


ALLOWED = {
    "pending": {"active", "failed"},
    "active": {"waiting", "completed", "failed"},
    "waiting": {"active", "completed", "failed"},
    "completed": set(),
    "failed": {"pending"},
}
REACHED: dict[str, tuple[str, ...]] = {
    "pending": (), "active": ("active",), "waiting": ("active", "waiting"), "completed": ("active", "completed"),
    "failed": ("failed",),
}  # fmt: skip


@pytest.mark.req("S2-B02")
@pytest.mark.parametrize("before", ALLOWED)
@pytest.mark.parametrize("after", ALLOWED)
def test_other_status_changes_are_refused(shared: Server, before: str, after: str) -> None:
    task = make(shared)
    for step in REACHED[before]:
        set_status(shared, task, step)
    allowed = after in ALLOWED[before]
    set_status(shared, task, after, expect=200 if allowed else 409)
    assert show(shared, task)["status"]["type"] == (after if allowed else before)


@pytest.mark.parametrize("body", [{}, {"status": "active"}, {"status": {"type": "doing"}}, {"status": {}}])
def test_invalid_status_is_refused(shared: Server, body: Any) -> None:
    task = make(shared)
    put(shared, task, "status", body, expect=400)
    assert show(shared, task) == task


@pytest.mark.req("S2-15", "S2-09", "S2-B01")
def test_planning_keeps_hand_offs_and_omitted_parts(shared: Server) -> None:
    task = make(shared)
    shared.post(f"/api/tasks/{task['id']}/handoff", {"agentName": "echo-args", "prompt": "hi"})
    wait_for(lambda: show(shared, task)["currentAgent"] is None, "the end of the hand-off")
    chain = show(shared, task)["agentChain"]
    plan = {"summary": "s", "requirements": ["a", "b"], "acceptanceCriteria": ["c"], "plan": "do it"}
    planned = put(shared, task, "planning", plan)
    assert planned["taskType"] == "planned"
    assert {name: planned[name] for name in plan} == plan
    assert planned["agentChain"] == chain
    again = put(shared, task, "planning", {"plan": ["one", "two"]})
    assert (again["summary"], again["plan"]) == ("s", ["one", "two"])
    put(shared, task, "planning", {}, expect=400)
    put(shared, task, "planning", {"requirements": [1]}, expect=400)


@pytest.mark.req("S2-12", "S2-13", "S2-B01")
def test_list_of_tasks_has_the_current_agent(server: Server) -> None:
    tasks = [make(server, f"task {number}") for number in range(5)]
    set_status(server, tasks[1], "active")
    server.post(f"/api/tasks/{tasks[3]['id']}/handoff", {"agentName": "sleeper", "prompt": "x"})
    listed = server.get("/api/tasks").json()["data"]
    assert [one["id"] for one in listed] == [task["id"] for task in reversed(tasks)]
    assert all("agentChain" not in one for one in listed)
    assert [one["currentAgent"] for one in listed] == [None, "sleeper", None, None, None]
    assert [one["handoffCount"] for one in listed] == [0, 1, 0, 0, 0]
    active = server.get("/api/tasks?status=active").json()["data"]
    assert [one["id"] for one in active] == [tasks[3]["id"], tasks[1]["id"]]
    assert server.get("/api/tasks?status=nonsense").status_code == 400
    run = show(server, tasks[3])["agentChain"][0]["run"]
    server.post(f"/api/runs/{run}/stop", {})
    assert server.get("/api/tasks").json()["data"][1]["currentAgent"] is None


def test_pages_of_tasks_are_contiguous(server: Server) -> None:
    tasks = [make(server, f"task {number}") for number in range(7)]
    seen, before = [], None
    for _ in range(4):
        answer = server.get(f"/api/tasks?limit=2{f'&before={before}' if before else ''}").json()
        seen += [one["id"] for one in answer["data"]]
        before = answer["meta"]["next"]
    assert before is None
    assert seen == [task["id"] for task in reversed(tasks)]


@pytest.mark.req("S2-B03")
def test_queue_is_first_in_first_out(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/queue"
    ids = [shared.post(path, {"prompt": f"word {number}"}).json()["data"]["id"] for number in range(3)]
    items = shared.get(path).json()["data"]["items"]
    assert [(one["id"], one["prompt"]) for one in items] == [(id_, f"word {n}") for n, id_ in enumerate(ids)]
    assert shared.post(f"{path}/next", {}).json()["data"]["id"] == ids[0]
    removed = shared.request("DELETE", f"{path}/{ids[2]}")
    assert removed.json()["data"]["prompt"] == "word 2"
    assert shared.request("DELETE", f"{path}/{ids[2]}").status_code == 404
    assert shared.request("DELETE", f"/api/tasks/{make(shared)['id']}/queue/nothing").status_code == 404
    assert shared.post(f"{path}/next", {}).json()["data"]["prompt"] == "word 1"
    assert shared.post(f"{path}/next", {}).status_code == 409


@pytest.mark.req("S2-B03", "S2-81")
def test_queued_items_are_handed_over_in_order(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/queue"
    for word in ("one", "two", "three"):
        assert shared.post(path, {"agentName": "echo-args", "prompt": word}).status_code == 201
    wait_for(lambda: len(show(shared, task)["agentChain"]) == 3, "three hand-offs")
    wait_for(lambda: show(shared, task)["currentAgent"] is None, "the last one's end")
    chain = show(shared, task)["agentChain"]
    assert [one["output"].strip() for one in chain] == ["one", "two", "three"]
    for before, after in pairwise(chain):
        assert before["completedAt"] <= after["startedAt"]
    assert shared.get(path).json()["data"]["items"] == []


@pytest.mark.req("S2-B03")
def test_queue_stops_after_a_failure(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/queue"
    refused = shared.post(path, {"agentName": "unknown-agent", "prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "Unknown agent: unknown-agent")
    busy = shared.post(f"/api/tasks/{task['id']}/handoff", {"agentName": "sleeper", "prompt": "x"}).json()["meta"]
    gone = shared.agent("soon-gone", "print('never')")
    for agent in ("soon-gone", "failing"):
        assert shared.post(path, {"agentName": agent, "prompt": "x"}).status_code == 201
    Path(gone).unlink()
    put(shared, task, "handoff/complete", {"output": "well done"})
    assert shared.ended(busy["run"])["status"] == "stopped"
    told = wait_for(lambda: [e for e in history(shared, task) if e["eventType"] == "queue_refused"], "a refusal")
    assert told[0]["data"]["prompt"], "the prompt of a refused entry is kept"
    assert "soon-gone" in told[0]["data"]["message"]
    wait_for(lambda: len(show(shared, task)["agentChain"]) == 2, "the next one")
    wait_for(lambda: show(shared, task)["currentAgent"] is None, "a failure")
    shared.post(path, {"agentName": "echo-args", "prompt": "later"})
    assert len(shared.get(path).json()["data"]["items"]) == 1
    assert [one["agentName"] for one in show(shared, task)["agentChain"]] == ["sleeper", "failing"]


@pytest.mark.req("S2-B04")
def test_attachment_is_returned_unchanged(shared: Server) -> None:
    task = make(shared)
    content = bytes(range(256)) * 10
    path = f"/api/tasks/{task['id']}/attachments"
    body = {"filename": "Bild 1.png", "content": base64.b64encode(content).decode()}
    made = shared.post(path, body)
    assert made.status_code == 201, made.text
    assert made.json()["data"]["size"] == len(content)
    assert shared.post(path, body).json()["data"] == made.json()["data"], "who did not hear the answer asks again"
    assert shared.post(path, {**body, "content": ""}).status_code == 409
    listed = shared.get(path).json()["data"]["items"]
    assert [one["name"] for one in listed] == ["Bild 1.png"]
    assert show(shared, task)["attachments"] == listed
    got = shared.get(f"{path}/Bild%201.png")
    assert got.content == content
    assert got.headers["content-disposition"].startswith("attachment")
    assert shared.get(f"{path}/other.png").status_code == 404


@pytest.mark.req("S2-B04")
@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a/b", "..", ".", ".hidden", "", "a\x00b", "a\nb", "x" * 129, "a\\b", "con:", " a", "a ", "\uff5e/x"),
        *("%2e%2e%2fx/", "a|b", "a\u202eb", "--flag", "con", "NUL.txt", "a\uff0fb"),
    ],
)
def test_unsafe_file_name_is_refused(shared: Server, name: str) -> None:
    task = make(shared)
    response = shared.post(f"/api/tasks/{task['id']}/attachments", {"filename": name, "content": ""})
    assert response.status_code == 400
    assert show(shared, task)["attachments"] == []
    folder = shared.home / "data" / "tasks" / task["id"]
    assert {path.name for path in folder.glob("*")} <= {".task.json.new", "task.json", "log"}, (
        "no file but what is kept of the task itself"
    )


@pytest.mark.req("S2-B04", "S2-B05")
def test_large_attachment_is_refused(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/attachments"
    large = base64.b64encode(b"\0" * (10 * 1024**2 + 1)).decode()
    refused = shared.post(path, {"filename": "large", "content": large})
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "too_large"
    right = base64.b64encode(b"\0" * (10 * 1024**2)).decode()
    assert shared.post(path, {"filename": "right", "content": right}).status_code == 201
    assert shared.post(path, {"filename": "x", "content": "no base64!"}).status_code == 400


@pytest.mark.req("S2-10", "S2-84")
def test_import_ignores_unknown_fields(shared: Server) -> None:
    old = {"id": "old-1", "description": "from another tool"}
    task = shared.post("/api/tasks/import", {"task": old}).json()["data"]
    assert (task["id"], task["currentAgent"], task["agentChain"]) == ("old-1", None, [])
    assert shared.post("/api/tasks/import", {"task": old}).status_code == 409
    assert shared.post("/api/tasks/import", {"task": {**old, "id": "17"}}).status_code == 400


@pytest.mark.parametrize("place", ["task", "handoff"])
def test_import_with_a_live_runs_id_is_refused(shared: Server, place: str) -> None:
    run = shared.start_run("sleeper")
    old = {"id": "names-a-live-run", "description": "d"}
    record = {"agentName": "sleeper", "startedAt": 1000, "completedAt": 2000, "run": run["id"]}
    named = {**old, "id": run["id"]} if place == "task" else {**old, "agentChain": [record]}
    refused = shared.post("/api/tasks/import", {"task": named})
    assert refused.status_code == 409
    assert f"run {run['number']}" in refused.json()["error"]["message"]
    assert "task.changed" not in shared.get(f"/api/runs/{run['id']}/events?follow=false").text
    assert shared.get(f"/api/tasks/{named['id']}").status_code == 404
    assert shared.post(f"/api/runs/{run['id']}/stop", {}).status_code == 200


def test_import_with_ended_runs_id_is_refused(shared: Server) -> None:
    run = shared.start_run("echo-args", prompt="x")["id"]
    shared.ended(run)
    refused = shared.post("/api/tasks/import", {"task": {"id": run, "description": "d"}})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "conflict"


def bring_nested(server: Server, name: str, field: str, depth: int) -> httpx.Response:
    deep = '{"a":' * depth + "1" + "}" * depth
    held = deep if field == "source" else f'[{{"eventType":"x","timestamp":1,"data":{deep}}}]'
    body = f'{{"task":{{"id":"{name}","description":"d","{field}":{held}}}}}'
    return server.request("POST", "/api/tasks/import", content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("field", ["source", "history"])
@pytest.mark.parametrize("depth", [502, 900, 940, 950, *range(954, 966), 970, 1000, 100_000])
def test_import_with_deep_nesting_is_refused(shared: Server, field: str, depth: int) -> None:
    """Where the nesting just about fits, only the answer would fail: with the task kept, and every list with it."""
    response = bring_nested(shared, "deep", field, depth)
    assert response.status_code == 400
    assert "nested too deeply" in response.json()["error"]["message"]
    assert shared.get("/api/tasks").status_code == 200


@pytest.mark.parametrize("field", ["source", "history"])
def test_nested_import_is_shown_everywhere(shared: Server, field: str) -> None:
    assert bring_nested(shared, f"nested-{field}", field, 499).status_code == 201
    for path in ("", "/export", "/history"):
        assert shared.get(f"/api/tasks/nested-{field}{path}").status_code == 200
    assert shared.get("/api/tasks").status_code == 200


@pytest.mark.req("S2-07", "S2-08", "S2-84")
def test_imported_open_hand_off_is_lost(shared: Server) -> None:
    done = {"agentName": "planner", "startedAt": 1000, "completedAt": 2000, "output": "planned"}
    done |= {"id": "hfromelsewhere", "run": "relsewhere"}
    open_ = {"agentName": "developer", "startedAt": 3000, "completedAt": None, "output": ""}
    old = {"id": "old-2", "description": "d", "status": {"type": "active"}, "currentAgent": "developer"}
    task = shared.post("/api/tasks/import", {"task": {**old, "agentChain": [done, open_]}}).json()["data"]
    assert (task["status"]["type"], task["currentAgent"]) == ("waiting", None)
    first, second = task["agentChain"]
    assert {name: first[name] for name in done} == done
    assert first["status"] == "done"
    assert (second["status"], second["agentName"], second["startedAt"]) == ("lost", "developer", 3000)
    assert second["completedAt"] is not None
    assert "interrupted" in second["output"]


@pytest.mark.req("S2-B03", "S2-84")
@pytest.mark.parametrize("ended", [2000, 4_000_000_000_000], ids=["before", "by-a-clock-that-is-ahead"])
def test_imported_queue_waits_for_a_local_hand_off(shared: Server, ended: int) -> None:
    known = shared.start_run("echo-args", prompt="x")["id"]
    shared.ended(known)
    done = {"agentName": "qa", "startedAt": 1000, "completedAt": ended, "output": "imported", "run": known}
    old: dict[str, Any] = {
        "id": f"old-3-{ended}",
        "description": "d",
        "status": {"type": "waiting"},
        "cwd": str(shared.project),
    }
    old |= {"agentChain": [done], "queue": [{"agentName": "echo-args", "prompt": "queued"}]}
    task = shared.post("/api/tasks/import", {"task": old}).json()["data"]
    assert task["agentChain"][0]["elsewhere"] is False
    by_hand = shared.post(f"/api/tasks/{task['id']}/handoff", {"agentName": "echo-args", "prompt": "by hand"})
    assert by_hand.status_code == 200, by_hand.text
    wait_for(lambda: len(show(shared, task)["agentChain"]) == 3, "the queue to go on")
    wait_for(lambda: show(shared, task)["currentAgent"] is None, "the end of what was queued")
    assert [one["output"].strip() for one in show(shared, task)["agentChain"]] == ["imported", "by hand", "queued"]


@pytest.mark.req("S2-11")
@pytest.mark.parametrize(
    "wrong",
    [
        *({"currentAgent": 7}, {"agentChain": "none"}, {"agentChain": [{}]}, {"agentChain": [{"agentName": "a"}]}),
        {"agentChain": [{"agentName": "a", "startedAt": "yesterday", "completedAt": None, "output": ""}]},
        {"agentChain": [{"agentName": "a", "startedAt": 1, "completedAt": "x", "output": ""}]},
        {"agentChain": [{"agentName": "a", "startedAt": 1, "completedAt": None, "output": 5}]},
        *({"status": {"type": "odd"}}, {"createdAt": "now"}, {"id": "../x"}),
        {"source": {"sourceType": "\ud800"}},
    ],
)
def test_invalid_import_is_refused(shared: Server, wrong: dict[str, Any]) -> None:
    task = {"id": "malformed", "description": "d", **wrong}
    sent = json.dumps({"task": task})  # with escapes, which alone can spell half a character
    headers = {"content-type": "application/json"}
    response = shared.request("POST", "/api/tasks/import", content=sent, headers=headers)
    assert response.status_code == 400
    assert next(iter(wrong)) in response.json()["error"]["message"]
    assert shared.get("/api/tasks/malformed").status_code == 404


def test_unknown_task_is_not_found(shared: Server) -> None:
    for path in ("", "/history", "/queue", "/attachments", "/handoffs/h1"):
        response = shared.get(f"/api/tasks/tnone{path}")
        assert response.status_code == 404, path
        assert "tnone" in response.json()["error"]["message"]


@pytest.mark.req("S2-83")
def test_repeated_key_makes_one_task(shared: Server) -> None:
    headers = {"idempotency-key": "one-task"}
    body = {"description": "once", "cwd": str(shared.project)}
    ids = {shared.post("/api/tasks", body, headers=headers).json()["data"]["id"] for _ in range(5)}
    assert len(ids) == 1


def test_repeated_key_changes_the_queue_once(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/queue"
    keys = [{"idempotency-key": f"{task['id']}-{number}"} for number in range(2)]
    for key in (*keys, *keys):
        assert shared.post(path, {"prompt": key["idempotency-key"]}, headers=key).status_code == 201
    assert len(shared.get(path).json()["data"]["items"]) == 2
    taking = {"idempotency-key": f"{task['id']}-take"}
    taken = [shared.post(f"{path}/next", {}, headers=taking).json()["data"] for _ in range(3)]
    assert taken == [taken[0]] * 3
    assert len(shared.get(path).json()["data"]["items"]) == 1
    assert shared.post(path, {"prompt": "again"}, headers=keys[0]).status_code == 201
    assert len(shared.get(path).json()["data"]["items"]) == 1, "what was taken is not queued again"
    old, bringing = {"id": f"old-{task['id']}", "description": "d"}, {"idempotency-key": f"{task['id']}-bring"}
    brought = [shared.post("/api/tasks/import", {"task": old}, headers=bringing) for _ in range(2)]
    assert [answer.status_code for answer in brought] == [201, 201]
    assert brought[0].json()["data"]["id"] == brought[1].json()["data"]["id"] == old["id"]


def test_queue_is_limited(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/queue"
    codes = [shared.post(path, {"prompt": "x" * 400_000}).status_code for _ in range(3)]
    assert codes == [201, 201, 409]
    other = make(shared)
    many = [shared.post(f"/api/tasks/{other['id']}/queue", {"prompt": "x"}).status_code for _ in range(101)]
    assert many == [201] * 100 + [409]


def test_concurrent_requests_with_one_key_are_one(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/queue"
    for number in range(4):
        shared.post(path, {"prompt": f"word {number}"})
    found: list[tuple[str, Any]] = []

    def ask(what: str, body: Any) -> None:
        headers = {"idempotency-key": f"{task['id']} {what}"}
        with httpx.Client(transport=httpx.HTTPTransport(uds=shared.socket), base_url="http://localhost") as client:
            answer = client.post(what, json=body, headers=headers, timeout=PATIENCE)
            found.append((what, answer.json()["data"]["id"]))

    threads = [threading.Thread(target=ask, args=(f"{path}/next", {})) for _ in range(16)]
    threads += [threading.Thread(target=ask, args=(path, {"prompt": "one more"})) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 32
    assert len(set(found)) == 2
    assert [one["prompt"] for one in shared.get(path).json()["data"]["items"]] == [
        *("word 1", "word 2", "word 3", "one more"),
    ]


def test_attachment_without_its_file_is_not_found(shared: Server) -> None:
    task = make(shared)
    path = f"/api/tasks/{task['id']}/attachments"
    shared.post(path, {"filename": "f", "content": "AAAA"})
    (shared.home / "data/tasks" / task["id"] / hashlib.sha256(b"\0\0\0").hexdigest()).unlink()
    assert shared.get(f"{path}/f").status_code == 404


# --- The archive, and removal ---


def numbers_of(server: Server, query: str = "") -> list[int]:
    return [one["number"] for one in server.get(f"/api/tasks?limit=1000{query}").json()["data"]]


def test_archived_task_is_listed_on_request_only(shared: Server) -> None:
    shared.agent("sayer", "print('said')")
    task, other = make(shared), make(shared)
    number = task["number"]
    for _ in range(2):
        assert put(shared, task, "archive", {})["archived"]
    assert [one["eventType"] for one in history(shared, task)] == ["task_created", "task_archived"]
    assert number not in numbers_of(shared)
    assert other["number"] in numbers_of(shared)
    assert number in numbers_of(shared, "&archived=only")
    assert other["number"] not in numbers_of(shared, "&archived=only")
    assert {number, other["number"]} <= {*numbers_of(shared, "&archived=all")}
    assert shared.get("/api/tasks?archived=maybe").status_code == 400
    assert not put(shared, task, "archive", {"archived": False})["archived"]
    put(shared, task, "archive", {"archived": True})
    assert shared.post(f"/api/tasks/{number}/handoff", {"agentName": "sayer", "prompt": "x"}).status_code == 200
    assert number in numbers_of(shared)
    assert "task_unarchived" in [one["eventType"] for one in history(shared, task)]


def test_task_with_an_agent_is_not_archived(shared: Server) -> None:
    task = make(shared)
    run = shared.post(f"/api/tasks/{task['id']}/handoff", {"agentName": "sleeper", "prompt": "x"}).json()["meta"]["run"]
    assert put(shared, task, "archive", {}, expect=409)["message"].startswith("sleeper is at work")
    shared.post(f"/api/runs/{run}/stop", {})


def test_removed_task_leaves_its_runs_and_nothing_else(server: Server) -> None:
    server.agent("sayer", "print('said')")
    task = make(server)
    path, folder = f"/api/tasks/{task['id']}", server.home / "data/tasks" / task["id"]
    content = {"filename": "notes.md", "content": base64.b64encode(b"x").decode()}
    server.post(f"{path}/attachments", content)
    run = server.post(f"{path}/handoff", {"agentName": "sleeper", "prompt": "x"}).json()["meta"]["run"]
    refused = server.request("DELETE", path)
    assert (refused.status_code, "sleeper" in refused.json()["error"]["message"]) == (409, True)
    server.post(f"/api/runs/{run}/stop", {})
    wait_for((folder / "task.json").exists, "the files of the task")
    gone = {"id": task["id"], "number": task["number"], "removed": True}
    assert server.request("DELETE", path).json()["data"] == gone
    assert not folder.exists()
    assert server.request("DELETE", path).json()["data"] == gone
    assert server.request("DELETE", f"/api/tasks/{task['number']}").json()["data"] == gone
    assert server.request("DELETE", "/api/tasks/tnone").status_code == 404
    assert server.get(path).status_code == 404
    assert (server.show(run)["status"], server.show(run)["task"]) == ("stopped", task["id"])
    server.kill()  # the next server does not use the number again either
    server.start()
    assert make(server)["number"] == task["number"] + 1


def test_removed_task_can_be_imported_again(shared: Server) -> None:
    task = make(shared)
    exported = shared.get(f"/api/tasks/{task['id']}/export").json()["data"]
    assert shared.request("DELETE", f"/api/tasks/{task['id']}").status_code == 200
    again = shared.post("/api/tasks/import", {"task": exported}).json()["data"]
    assert (again["id"], again["description"]) == (task["id"], task["description"])
    assert again["number"] > task["number"]
    assert [one["eventType"] for one in history(shared, again)] == ["task_created", "task_imported"]
    assert shared.request("DELETE", f"/api/tasks/{task['id']}").json()["data"]["number"] == again["number"]


def test_run_cannot_remove_a_task(shared: Server) -> None:
    task = make(shared)
    run = shared.post(f"/api/tasks/{task['id']}/handoff", {"agentName": "sleeper", "prompt": "x"}).json()["meta"]["run"]
    response = shared.request("DELETE", f"/api/tasks/{task['id']}", token=token_of(shared, {"id": run}))
    assert response.status_code == 403
    shared.post(f"/api/runs/{run}/stop", {})
