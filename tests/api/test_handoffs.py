"""Hand-offs over HTTP: one agent at a time, each with a record of its own, and results that cannot be forged."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections import Counter
from contextlib import closing, suppress
from typing import Any

import httpx
import msgspec
import pytest
from api.serving import Server, token_of, wait_for
from api.test_tasks import history, make, put, set_status, show
from patience import PATIENCE
from world import Bin

from hocket.model.task import Handoff

SAYER = "import sys; print('thinking aloud', file=sys.stderr); print(sys.argv[-1] + ' is done')"


@pytest.fixture(scope="module", autouse=True)
def _sayer(shared: Server) -> None:
    shared.agent("sayer", SAYER)


def hand(server: Server, task: dict[str, Any], agent: str, prompt: str = "go", expect: int = 200, **more: Any) -> Any:
    body = {"agentName": agent, "prompt": prompt}
    response = server.post(f"/api/tasks/{task['id']}/handoff", body, **more)
    assert response.status_code == expect, response.text
    return response.json() if expect == 200 else response.json()["error"]


def closed(server: Server, task: dict[str, Any], handoff: str) -> dict[str, Any]:
    def look() -> Any:
        record = server.get(f"/api/tasks/{task['id']}/handoffs/{handoff}").json()["data"]
        return record if record["completedAt"] else None

    found: dict[str, Any] = wait_for(look, "the end of the hand-off")
    return found


def at_work(server: Server, *runs: str) -> None:
    """Wait until these have begun: the start of a run changes what its task shows."""
    wait_for(lambda: all(server.show(run)["status"] != "starting" for run in runs), "the start of the runs")


def stop(server: Server, run: str) -> None:
    server.post(f"/api/runs/{run}/stop", {})


@pytest.mark.req("S2-30", "S2-31", "S2-32", "S2-33", "S2-34", "S2-35", "S2-36", "S2-52", "S2-01")
def test_hand_off_responds_at_once(shared: Server) -> None:
    task = make(shared)
    answer = hand(shared, task, "sleeper", "sleep well")
    after = answer["data"]
    assert after["currentAgent"] == "sleeper"
    assert after["status"]["type"] == "active"
    (record,) = after["agentChain"]
    assert (record["agentName"], record["completedAt"], record["output"]) == ("sleeper", None, "")
    assert record["id"] == answer["meta"]["handoff"]
    assert record["run"] == answer["meta"]["run"]
    assert after["updatedAt"] >= record["startedAt"] >= task["createdAt"]
    started = [one for one in history(shared, task) if one["eventType"] == "agent_handoff_started"]
    assert [one["data"] for one in started] == [{"agentName": "sleeper"}]
    run = shared.show(record["run"])
    assert (run["task"], run["agent"], run["depth"]) == (task["id"], "sleeper", 0)
    stop(shared, record["run"])


@pytest.mark.req("S2-43", "S2-44", "S2-45", "S2-46", "S2-47", "S2-58", "S2-59", "S2-60", "S2-57")
def test_record_gets_the_final_message(shared: Server) -> None:
    task = make(shared)
    handoff = hand(shared, task, "sayer", "all of it")["meta"]["handoff"]
    record = closed(shared, task, handoff)
    assert (record["output"].strip(), record["status"], record["prompt"]) == ("all of it is done", "done", "all of it")
    after = show(shared, task)
    assert after["currentAgent"] is None
    assert after["status"] == {"type": "waiting"}
    assert after["agentChain"][0]["output"] == record["output"]
    told = [one["data"] for one in history(shared, task) if one["eventType"] == "agent_handoff_completed"]
    assert told == [{"agentName": "sayer", "outputLength": str(len(record["output"]))}]


def test_hand_off_ends_before_its_run(shared: Server) -> None:
    task = make(shared)
    answer = hand(shared, task, "sayer")
    events = shared.events(answer["meta"]["run"])
    kinds = [event["type"] for event in events]
    assert kinds[-2:] == ["task.changed", "run.ended"]
    assert events[-2]["data"]["handoff"] == answer["meta"]["handoff"]


def test_start_with_a_task_is_a_hand_off(shared: Server) -> None:
    task = make(shared)
    run = shared.start_run("sleeper", prompt="x", task=task["id"])
    assert run["task"] == task["id"]
    after = show(shared, task)
    assert (after["currentAgent"], after["agentChain"][0]["run"]) == ("sleeper", run["id"])
    shared.start_run("sayer", task=task["id"], expect=409)
    shared.start_run("sayer", dsl=True, task=task["id"], expect=400)
    shared.start_run("sayer", parent=run["id"], task=task["id"], expect=400)
    stop(shared, run["id"])
    assert show(shared, task)["currentAgent"] is None


@pytest.mark.req("S2-50", "S2-51")
def test_task_keeps_every_record(shared: Server) -> None:
    task = make(shared)
    for word in ("one", "two", "three"):
        closed(shared, task, hand(shared, task, "sayer", word)["meta"]["handoff"])
    chain = show(shared, task)["agentChain"]
    assert [one["output"].strip() for one in chain] == ["one is done", "two is done", "three is done"]
    assert len({one["id"] for one in chain}) == 3
    assert shared.get("/api/tasks").json()["data"][0]["handoffCount"] == 3


@pytest.mark.req("S2-37")
def test_unknown_agent_changes_nothing(shared: Server) -> None:
    task = make(shared)
    before, count = show(shared, task), shared.count()
    error = hand(shared, task, "unknown-agent", expect=400)
    assert error["message"] == "Unknown agent: unknown-agent"
    assert show(shared, task) == before
    assert shared.count() == count


CRITIC = "---\nname: critic\ndescription: Reviews what others wrote.\n---\nFind the weakest point.\n"


def test_missing_cli_is_named_with_searched_path(shared: Server) -> None:
    definitions = shared.project / ".claude/agents"
    definitions.mkdir(parents=True, exist_ok=True)
    (definitions / "critic.md").write_text(CRITIC)
    body = {"agentName": "critic", "prompt": "go", "cwd": str(shared.project)}
    for path, asked in (("/api/handoffs", body), ("/api/runs", {"agent": "critic", "cwd": body["cwd"]})):
        response = shared.post(path, asked)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "'critic' needs the Claude CLI" in message
        assert f"no program 'claude' on PATH (searched {shared.env['PATH']})" in message


def test_program_that_is_not_executable_is_named(shared: Server) -> None:
    shared.agent("blocked", "print('never')").chmod(0o644)
    body = {"agentName": "blocked", "prompt": "go", "cwd": str(shared.project)}
    error = shared.post("/api/handoffs", body).json()["error"]
    assert error["message"] == f"{shared.root}/bin/blocked is not executable"
    assert error["hint"] == f"chmod +x {shared.root}/bin/blocked"


def test_environment_is_of_caller_or_server(shared: Server) -> None:
    elsewhere = Bin(shared.root / "elsewhere")
    elsewhere.folder.mkdir()
    elsewhere("only-there", SAYER)
    path = f"{elsewhere.folder}:{shared.env['PATH']}"
    caller = shared.start_run("sleeper", env={"PATH": path, "HOME": shared.env["HOME"]})
    body = {"agentName": "only-there", "prompt": "go", "cwd": str(shared.project)}
    given = shared.post("/api/handoffs", body, token=token_of(shared, caller))
    assert given.status_code == 201, given.text
    assert shared.ended(given.json()["meta"]["run"])["status"] == "done"
    assert shared.post("/api/handoffs", body).json()["error"]["message"] == "Unknown agent: only-there"
    stop(shared, caller["id"])


@pytest.mark.req("S2-38", "S2-41", "S2-81")
def test_second_hand_off_of_active_task_is_refused(shared: Server) -> None:
    task = make(shared)
    run = hand(shared, task, "sleeper")["meta"]["run"]
    at_work(shared, run)
    before, count = show(shared, task), shared.count()
    hand(shared, task, "sayer", expect=409)
    assert show(shared, task) == before
    assert shared.count() == count
    stop(shared, run)
    closed(shared, task, hand(shared, task, "sayer")["meta"]["handoff"])


@pytest.mark.req("S2-81")
def test_tasks_run_concurrently(shared: Server) -> None:
    tasks = [make(shared) for _ in range(3)]
    runs = [hand(shared, task, "sleeper")["meta"]["run"] for task in tasks]
    assert len({shared.show(run)["id"] for run in runs}) == 3
    assert [show(shared, task)["currentAgent"] for task in tasks] == ["sleeper"] * 3
    for run in runs:
        stop(shared, run)


@pytest.mark.req("S2-39")
@pytest.mark.parametrize(
    "body",
    [
        *({}, {"agentName": "sayer"}, {"prompt": "x"}, {"agentName": "", "prompt": "x"}, [], "x"),
        *({"agentName": 7, "prompt": "x"}, {"agentName": "sayer", "prompt": 7}, {"agentName": "sayer", "prompt": None}),
        {"agentName": "sayer", "prompt": "x", "unknown": 1},
    ],
)
def test_invalid_hand_off_is_refused(shared: Server, body: Any) -> None:
    task = make(shared)
    assert shared.post(f"/api/tasks/{task['id']}/handoff", body).status_code == 400
    assert show(shared, task) == task


@pytest.mark.req("S2-39", "S2-49")
def test_unknown_task_is_not_found(shared: Server) -> None:
    assert shared.post("/api/tasks/tnone/handoff", {"agentName": "sayer", "prompt": "x"}).status_code == 404
    assert shared.request("PUT", "/api/tasks/tnone/handoff/complete", json={"output": "x"}).status_code == 404


@pytest.mark.req("S2-40")
@pytest.mark.parametrize("end", ["completed", "failed"])
def test_completed_task_is_not_handed_off(shared: Server, end: str) -> None:
    task = make(shared)
    set_status(shared, task, "active")
    set_status(shared, task, end)
    hand(shared, task, "sayer", expect=409)
    assert show(shared, task)["agentChain"] == []


@pytest.mark.req("S2-67")
def test_failed_agent_gives_a_result(shared: Server) -> None:
    task = make(shared)
    record = closed(shared, task, hand(shared, task, "failing")["meta"]["handoff"])
    assert (record["status"], record["reason"]) == ("failed", "exit")
    assert record["output"].startswith("failed (exit)")
    after = show(shared, task)
    assert (after["currentAgent"], after["status"]["type"]) == (None, "waiting")


@pytest.mark.req("S2-88")
def test_stop_and_timeout_close_the_record(shared: Server) -> None:
    task = make(shared)
    answer = hand(shared, task, "sleeper")
    stop(shared, answer["meta"]["run"])
    record = closed(shared, task, answer["meta"]["handoff"])
    assert (record["status"], record["reason"]) == ("stopped", "stopped")
    body = {"agentName": "sleeper", "prompt": "x", "timeout": 0.2}
    handoff = shared.post(f"/api/tasks/{task['id']}/handoff", body).json()["meta"]["handoff"]
    record = closed(shared, task, handoff)
    assert (record["status"], record["reason"]) == ("failed", "timeout")
    assert "timeout" in record["output"]


@pytest.mark.req("S2-42", "S2-43", "S2-48", "S2-49")
def test_operator_completes_the_open_hand_off(shared: Server) -> None:
    task = make(shared)
    answer = hand(shared, task, "sleeper")
    after = put(shared, task, "handoff/complete", {"output": "by word of mouth"})
    (record,) = after["agentChain"]
    assert (record["output"], after["currentAgent"]) == ("by word of mouth", None)
    assert record["completedAt"] is not None
    assert after["status"]["type"] == "waiting"
    assert shared.ended(answer["meta"]["run"])["status"] == "stopped"
    assert show(shared, task)["agentChain"] == [record]
    put(shared, task, "handoff/complete", {"output": "again"}, expect=409)
    assert show(shared, task)["agentChain"] == [record]


@pytest.mark.req("S2-49")
@pytest.mark.parametrize("body", [{}, {"output": 7}, {"output": None}, {"output": "x", "more": 1}])
def test_invalid_completion_is_refused(shared: Server, body: Any) -> None:
    task = make(shared)
    put(shared, task, "handoff/complete", body, expect=400)
    put(shared, task, "handoff/complete", {"output": "nothing is open"}, expect=409)


@pytest.mark.req("S2-41", "S2-45", "S2-74")
def test_agent_hands_on_and_gets_the_task_back(shared: Server) -> None:
    task = make(shared)
    outer = hand(shared, task, "sleeper", "outer")["meta"]
    token = token_of(shared, {"id": outer["run"]})
    shared.agent("second", "import signal; signal.pause()")
    inner = hand(shared, task, "second", "inner", token=token)["meta"]
    after = show(shared, task)
    assert after["currentAgent"] == "second"
    assert [one["completedAt"] for one in after["agentChain"]] == [None, None]
    run = shared.show(inner["run"])
    assert (run["parent"], run["depth"], run["task"]) == (outer["run"], 1, task["id"])
    hand(shared, task, "sayer", token=token, expect=409)
    inmost = token_of(shared, {"id": inner["run"]})
    deep = closed(shared, task, hand(shared, task, "sayer", "deep", token=inmost)["meta"]["handoff"])
    assert deep["output"].strip() == "deep is done"
    stop(shared, inner["run"])
    after = show(shared, task)
    assert (after["currentAgent"], after["status"]["type"]) == ("sleeper", "active")
    assert [one["status"] for one in after["agentChain"]] == ["running", "stopped", "done"]
    quick = closed(shared, task, hand(shared, task, "sayer", "second", token=token)["meta"]["handoff"])
    assert quick["output"].strip() == "second is done"
    stop(shared, outer["run"])
    assert show(shared, task)["currentAgent"] is None
    assert show(shared, task)["status"]["type"] == "waiting"


def stop_unheard(server: Server, run: str) -> None:
    with suppress(httpx.HTTPError):
        stop(server, run)


STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.7), exit(1)))\nsignal.pause()"


@pytest.mark.req("S2-45", "S2-88")
@pytest.mark.parametrize("how", ["stop", "timeout", "kill"])
def test_stop_closes_inner_records_first(server: Server, how: str) -> None:
    """Its process may well be gone first: an agent that takes its time to end must not be left with the task."""
    task = make(server)
    server.agent("stubborn", STUBBORN)
    limit = {"timeout": 3} if how == "timeout" else {}
    body = {"agentName": "sleeper", "prompt": "x", **limit}
    outer = server.post(f"/api/tasks/{task['id']}/handoff", body).json()["meta"]
    middle = hand(server, task, "stubborn", token=token_of(server, {"id": outer["run"]}))["meta"]
    server.agent("last", STUBBORN)
    inner = hand(server, task, "last", token=token_of(server, {"id": middle["run"]}))["meta"]
    wait_for(lambda: server.show(inner["run"])["status"] == "running", "all of them")
    if how == "stop":
        stop(server, outer["run"])
    elif how == "kill":
        asking = threading.Thread(target=stop_unheard, args=(server, outer["run"]))
        asking.start()
        wait_for(lambda: list(server.home.glob(f"runs/*/{outer['run']}/exit")), "the end of the outermost process")
        server.kill()
        asking.join()
        server.start_instead()
    wait_for(lambda: show(server, task)["currentAgent"] is None, "all ends")
    told = [event for event in history(server, task) if event["eventType"] == "agent_handoff_completed"]
    assert [event["data"]["agentName"] for event in told] == ["last", "stubborn", "sleeper"]
    ended = [one["completedAt"] for one in show(server, task)["agentChain"]]
    assert ended == sorted(ended, reverse=True)
    reasons = {one["reason"] for one in show(server, task)["agentChain"]}
    assert reasons == {"timeout" if how == "timeout" else "stopped"}


@pytest.mark.parametrize("is_new", [True, False])
def test_cycle_without_change_is_refused(shared: Server, is_new: bool) -> None:
    """Torture row 34: A hands to B, which hands back to A with nothing to show, also in a task made with it."""
    shared.agent("loner", "import signal; signal.pause()")
    if is_new:
        body = {"agentName": "sleeper", "prompt": "A", "cwd": str(shared.project)}
        answer = shared.post("/api/handoffs", body).json()
        task, first = answer["data"], answer["meta"]
    else:
        task = make(shared)
        first = hand(shared, task, "sleeper", "A")["meta"]
    second = hand(shared, task, "loner", "B", token=token_of(shared, {"id": first["run"]}))["meta"]
    token = token_of(shared, {"id": second["run"]})
    wait_for(lambda: all(one.evidence for one in records_of(shared, task)), "a look at the directory")
    at_work(shared, first["run"], second["run"])
    before = show(shared, task)
    error = hand(shared, task, "sleeper", "A again", token=token, expect=409)
    assert error["code"] == "cycle"
    assert "sleeper -> loner -> sleeper" in error["message"]
    assert show(shared, task) == before
    (shared.project / "artifact").write_text(f"something new {task['id']}")
    third = hand(shared, task, "sleeper", "A again", token=token)["meta"]
    for run in (third["run"], second["run"], first["run"]):
        stop(shared, run)


@pytest.mark.parametrize("is_new", [True, False])
def test_repeated_exchange_without_change_is_refused(shared: Server, is_new: bool) -> None:
    """Torture row 34, one after the other: A hands to B, B ends, A hands to B again, and nothing comes of it."""
    task = make(shared)
    place = shared.root / f"to-and-fro-{is_new}"
    place.mkdir()
    outer = hand(shared, task, "sleeper")["meta"]["run"]
    token = token_of(shared, {"id": outer})

    def again(prompt: str = "mend it") -> httpx.Response:
        path = "/api/handoffs" if is_new else f"/api/tasks/{task['id']}/handoff"
        body = {"agentName": "sayer", "prompt": prompt, "cwd": str(place)}
        response = shared.post(path, body, token=token)
        if response.status_code < 300:
            meta = response.json()["meta"]
            closed(shared, response.json()["data"], meta["handoff"])
            shared.ended(meta["run"])
        return response

    answers = [again() for _ in range(8)]
    made = [response for response in answers if response.status_code < 300]
    # Who is done sooner than the first look at the directory leaves none to compare with.
    assert 3 <= len(made) <= 5
    error = answers[-1].json()["error"]
    assert (answers[-1].status_code, error["code"]) == (409, "cycle")
    assert "sayer gave you the same answer 3 times" in error["message"]
    assert "another agent" in error["hint"]
    assert show(shared, task)["currentAgent"] == "sleeper", "who asked is told, and goes on"
    assert again("something else").status_code < 300
    assert again().status_code == 409, "a word in between changes nothing"
    (place / "artifact").write_text("new")
    assert again().status_code < 300
    # A person may ask as often as they like.
    stop(shared, outer)
    for _ in range(4):
        body = {"agentName": "sayer", "prompt": "mend it", "cwd": str(place)}
        assert shared.post("/api/handoffs", body).status_code == 201


def test_failed_agent_may_be_retried(shared: Server) -> None:
    """What it failed for may pass, and an error is no answer."""
    task = make(shared)
    outer = hand(shared, task, "sleeper")["meta"]["run"]
    token = token_of(shared, {"id": outer})
    for _ in range(6):
        begun = hand(shared, task, "failing", "mend it", token=token)["meta"]
        assert closed(shared, task, begun["handoff"])["status"] == "failed"
        shared.ended(begun["run"])
    stop(shared, outer)


def records_of(server: Server, task: dict[str, Any]) -> list[Handoff]:
    """As the database has them: the snapshots are not part of the API."""
    with closing(sqlite3.connect(f"file:{server.home}/hocket.db?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT state FROM handoffs WHERE task = ?", (task["id"],)).fetchall()
    return [msgspec.json.decode(state, type=Handoff) for (state,) in rows]


@pytest.mark.req("S2-89", "S2-49")
def test_run_completes_only_its_own_hand_off(shared: Server) -> None:
    """Torture row 28: forged by another run, by one without a hand-off, by one that has ended, and twice."""
    task, other = make(shared), make(shared)
    mine, theirs = hand(shared, task, "sleeper")["meta"], hand(shared, other, "sleeper")["meta"]
    stranger = shared.start_run("sleeper")
    child = shared.start_run("sleeper", token=token_of(shared, {"id": mine["run"]}))
    gone = shared.start_run("sayer", prompt="x")
    token_gone = token_of(shared, gone)
    shared.ended(gone["id"])
    at_work(shared, mine["run"])
    before = show(shared, task)
    body = {"output": "forged"}
    for run in (theirs["run"], stranger["id"], child["id"]):
        put(shared, task, "handoff/complete", body, expect=403, token=token_of(shared, {"id": run}))
    put(shared, task, "handoff/complete", body, expect=403, token=token_gone)
    put(shared, task, "handoff/complete", body, expect=401, token="no.token")
    put(shared, task, "handoff/complete", body, expect=403, token=f"{mine['run']}.{'0' * 64}")
    assert show(shared, task) == before
    own = token_of(shared, {"id": mine["run"]})
    after = put(shared, task, "handoff/complete", {"output": "my own word"}, token=own)
    assert after["agentChain"][0]["output"] == "my own word"
    put(shared, task, "handoff/complete", body, expect=409, token=own)
    assert shared.show(mine["run"])["ended_at"] is None, "who completes itself ends by itself"
    hand(shared, task, "sayer", token=own, expect=409)
    hand(shared, task, "sayer", expect=409)
    for run in (mine["run"], theirs["run"], stranger["id"], child["id"]):
        stop(shared, run)
    assert show(shared, task)["agentChain"][0]["output"] == "my own word"


@pytest.mark.req("S2-89")
def test_run_token_reaches_only_its_task(shared: Server) -> None:
    task, other = make(shared), make(shared)
    run = hand(shared, task, "sleeper")["meta"]["run"]
    token = token_of(shared, {"id": run})
    assert shared.get(f"/api/tasks/{task['id']}", token=token).status_code == 200
    assert [one["id"] for one in shared.get("/api/tasks", token=token).json()["data"]] == [task["id"]]
    for path in ("", "/history", "/queue", "/attachments", "/handoffs/x"):
        assert shared.get(f"/api/tasks/{other['id']}{path}", token=token).status_code == 403
    hand(shared, other, "sayer", token=token, expect=403)
    put(shared, other, "status", {"status": {"type": "failed"}}, expect=403, token=token)
    own = shared.post("/api/tasks", {"description": "a part of it"}, token=token).json()["data"]
    assert own["cwd"] == str(shared.project)
    part = hand(shared, own, "sayer", "part", token=token)["meta"]
    assert closed(shared, own, part["handoff"])["output"].strip() == "part is done"
    assert shared.show(part["run"])["parent"] == run
    stop(shared, run)


def numbers(server: Server, token: str, query: str = "") -> list[int]:
    return [one["number"] for one in server.get(f"/api/tasks{query}", token=token).json()["data"]]


@pytest.mark.req("S2-89")
def test_run_token_lists_own_and_created_tasks(shared: Server) -> None:
    before, task = make(shared), make(shared)
    token = token_of(shared, {"id": hand(shared, task, "sleeper")["meta"]["run"]})
    body = {"description": "of its own", "cwd": str(shared.project)}
    first = shared.post("/api/tasks", body, token=token).json()["data"]
    make(shared)  # another task in between
    child = shared.start_run("sleeper", token=token)
    below = token_of(shared, child)
    second = shared.post("/api/tasks", body, token=below).json()["data"]
    third = shared.post("/api/tasks", body, token=token).json()["data"]
    mine = [third["number"], second["number"], first["number"], task["number"]]
    assert numbers(shared, token) == mine
    # The one below works for the same task, and reaches nothing that was made above it.
    assert numbers(shared, below) == [second["number"], task["number"]]
    assert numbers(shared, token, "?status=pending") == mine[:3]
    assert numbers(shared, token, "?limit=2") == mine[:2]
    assert numbers(shared, token, f"?before={second['number']}") == mine[2:]
    for one in mine:
        assert shared.get(f"/api/tasks/{one}", token=token).status_code == 200
    assert shared.get(f"/api/tasks/{before['number']}", token=token).status_code == 403
    stop(shared, shared.show(child["id"])["root"])


def test_run_cannot_queue_a_hand_off(shared: Server) -> None:
    """Otherwise an agent could start more, deeper and longer than it may itself."""
    task = make(shared)
    run = hand(shared, task, "sleeper")["meta"]["run"]
    token = token_of(shared, {"id": run})
    queue = f"/api/tasks/{task['id']}/queue"
    assert shared.post(queue, {"agentName": "sayer", "prompt": "x"}, token=token).status_code == 403
    assert shared.post(queue, {"prompt": "for another agent"}, token=token).status_code == 201
    stop(shared, run)
    assert len(show(shared, task)["agentChain"]) == 1


def test_server_ignores_git_of_an_agent(server: Server) -> None:
    """The look at the working directory is ours, with the environment that the agent was started with."""
    server.agent("fake-claude", "import signal; signal.pause()")
    server.env["HOCKET_CLAUDE"] = str(server.root / "bin/fake-claude")
    server.leave()
    server.start()
    evil = server.root / "evil"
    evil.mkdir()
    (evil / "git").write_text(f"#!/bin/sh\ntouch {evil}/ran\n")
    (evil / "git").chmod(0o755)
    task = make(server)
    run = hand(server, task, "claude")["meta"]["run"]
    body = {"agentName": "claude", "prompt": "x", "env": {"PATH": str(evil)}}
    path, token = f"/api/tasks/{task['id']}/handoff", token_of(server, {"id": run})
    server.post(path, body, token=token)
    server.post("/api/runs", {"agent": "claude", "task": task["id"], "env": {"PATH": str(evil)}}, token=token)
    for child in server.get("/api/runs").json()["data"]:
        stop(server, child["id"])
    assert not (evil / "ran").exists()


def test_keys_of_callers_are_separate(shared: Server) -> None:
    key = {"idempotency-key": "the-same-word"}
    first, second = (shared.start_run("sleeper") for _ in range(2))
    tokens = [token_of(shared, run) for run in (first, second)]
    started = [shared.start_run("sayer", prompt="x", token=token, headers=key) for token in tokens]
    assert [run["parent"] for run in started] == [first["id"], second["id"]]
    body = {"description": "d"}
    made = [shared.post("/api/tasks", body, headers=key, token=token).json()["data"]["id"] for token in tokens]
    made.append(shared.post("/api/tasks", body, headers=key).json()["data"]["id"])
    assert len(set(made)) == 3
    for run in (first, second):
        stop(shared, run["id"])


def test_previous_agent_has_ended_before_the_next(shared: Server) -> None:
    shared.agent("stubborn", "import signal, time; signal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\n"
        "while True: time.sleep(60)")  # fmt: skip
    task = make(shared)
    run = hand(shared, task, "stubborn")["meta"]["run"]
    wait_for(lambda: shared.show(run)["last"] == "up", "the agent to be at work")
    put(shared, task, "handoff/complete", {"output": "enough"})
    assert shared.show(run)["status"] == "stopped"
    closed(shared, task, hand(shared, task, "sayer")["meta"]["handoff"])


def test_refused_hand_off_creates_no_task(shared: Server) -> None:
    count = len(shared.get("/api/tasks?limit=1000").json()["data"])
    body = {"agentName": "unknown-agent", "prompt": "x", "cwd": str(shared.project)}
    assert shared.post("/api/handoffs", body).status_code == 400
    assert len(shared.get("/api/tasks?limit=1000").json()["data"]) == count
    key = {"idempotency-key": "made-once"}
    body = {"agentName": "sayer", "prompt": "\n  Mend it.\nAll of it.", "defaultCwd": str(shared.project)}
    made = [shared.post("/api/handoffs", body, headers=key) for _ in range(3)]
    assert [answer.status_code for answer in made] == [201] * 3
    assert len({answer.json()["meta"]["handoff"] for answer in made}) == 1
    task = made[0].json()["data"]
    assert (task["description"], task["cwd"]) == ("Mend it.", str(shared.project))
    assert "All of it. is done" in closed(shared, task, made[0].json()["meta"]["handoff"])["output"]
    assert len(shared.get("/api/tasks?limit=1000").json()["data"]) == count + 1


def test_hand_off_uses_the_given_directory(shared: Server) -> None:
    shared.agent("where", "import os; print(os.getcwd())")
    task, other = make(shared), shared.root / "other"
    other.mkdir()
    for asked, place in (
        ({"cwd": str(other)}, other),
        ({"defaultCwd": str(other)}, shared.project),
        ({}, shared.project),
    ):
        body = {"agentName": "where", "prompt": "x", **asked}
        answer = shared.post(f"/api/tasks/{task['id']}/handoff", body)
        assert answer.status_code == 200, answer.text
        handoff = answer.json()["meta"]["handoff"]
        assert closed(shared, task, handoff)["output"].strip() == str(place)
    body = {"agentName": "where", "prompt": "x", "cwd": "/no/such/place"}
    assert shared.post(f"/api/tasks/{task['id']}/handoff", body).status_code == 400


def test_open_record_has_the_status_of_its_run(shared: Server) -> None:
    shared.agent("asker", "import subprocess, sys; subprocess.run([*sys.argv[1].split(), 'ask', 'May I?'])")
    task = make(shared)
    answer = hand(shared, task, "asker", f"{sys.executable} -m hocket")["meta"]
    wait_for(lambda: show(shared, task)["agentChain"][0]["status"] == "waiting", "its question")
    detail = shared.get(f"/api/tasks/{task['id']}/handoffs/{answer['handoff']}").json()["data"]
    assert detail["status"] == "waiting"
    stop(shared, answer["run"])


PRICED = """
import json, os
said = {"session_id": "s", "cwd": os.getcwd()}
print(json.dumps({"type": "system", "subtype": "init", "tools": [], **said}))
end = {"subtype": "success", "is_error": False, "result": "ok", "num_turns": 1, "total_cost_usd": 0.25, "usage": {}}
print(json.dumps({"type": "result", **end, **said}))
"""


def test_cost_of_a_root_includes_descendants(server: Server) -> None:
    server.env["HOCKET_CLAUDE"] = str(server.agent("priced", PRICED))
    server.leave()
    server.start()
    root = server.start_run("sleeper")
    for _ in range(2):
        child = server.start_run("claude", prompt="x", token=token_of(server, root))
        assert server.ended(child["id"])["cost_usd"] == 0.25
    assert server.show(root["id"])["cost_usd"] == 0.5
    assert [run["cost_usd"] for run in server.get("/api/runs").json()["data"]] == [0.5]
    stop(server, root["id"])


@pytest.mark.parametrize("well", [True, False])
def test_queue_depends_on_the_last_result(shared: Server, well: bool) -> None:
    """Only the result of the last agent decides: an inner hand-off changes nothing."""
    task = make(shared)
    outer = hand(shared, task, "sleeper")["meta"]
    token = token_of(shared, {"id": outer["run"]})
    closed(shared, task, hand(shared, task, "failing" if well else "sayer", token=token)["meta"]["handoff"])
    queue = f"/api/tasks/{task['id']}/queue"
    shared.post(queue, {"agentName": "sayer", "prompt": "next"})
    if well:
        put(shared, task, "handoff/complete", {"output": "well done"}, token=token)
    stop(shared, outer["run"])
    if well:
        wait_for(lambda: len(show(shared, task)["agentChain"]) == 3, "the next one")
        wait_for(lambda: show(shared, task)["currentAgent"] is None, "its end")
    else:
        assert len(shared.get(queue).json()["data"]["items"]) == 1
        assert len(show(shared, task)["agentChain"]) == 2


@pytest.mark.req("S2-83")
def test_one_of_fifty_concurrent_hand_offs_succeeds(shared: Server) -> None:
    """Torture row 26."""
    task = make(shared)
    count = shared.count()
    codes: list[int] = []

    def ask() -> None:
        with httpx.Client(transport=httpx.HTTPTransport(uds=shared.socket), base_url="http://localhost") as client:
            path, body = f"/api/tasks/{task['id']}/handoff", {"agentName": "sleeper", "prompt": "x"}
            codes.append(client.post(path, json=body, timeout=PATIENCE).status_code)

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(codes) == {200: 1, 409: 49}
    assert shared.count() == count + 1
    after = show(shared, task)
    assert len(after["agentChain"]) == 1
    assert [one["eventType"] for one in history(shared, task)].count("agent_handoff_started") == 1
    stop(shared, after["agentChain"][0]["run"])


@pytest.mark.req("S2-83")
def test_concurrent_requests_with_one_key_hand_off_once(shared: Server) -> None:
    """Torture row 27, without the kill."""
    task = make(shared)
    found: list[tuple[int, str]] = []

    def ask() -> None:
        with httpx.Client(transport=httpx.HTTPTransport(uds=shared.socket), base_url="http://localhost") as client:
            path, body = f"/api/tasks/{task['id']}/handoff", {"agentName": "sayer", "prompt": "x"}
            for _ in range(10):
                answer = client.post(path, json=body, headers={"idempotency-key": f"k{task['id']}"}, timeout=PATIENCE)
                found.append((answer.status_code, answer.json()["meta"]["handoff"]))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 100
    assert len(set(found)) == 1
    closed(shared, task, found[0][1])
    assert len(show(shared, task)["agentChain"]) == 1


@pytest.mark.req("S2-66", "S2-70")
@pytest.mark.parametrize(
    "prompt",
    ["$(touch pwn)", "`id`", "it's \"quoted\"", "two\nlines\n", "--settings={}", "-x", "ünïcödé 日本 😀", "${HOME}",
     "{{task}} {{previous.result}}", "\\n\\t", "a\tb"],
)  # fmt: skip
def test_prompt_arrives_unchanged(shared: Server, prompt: str) -> None:
    """Torture row 31."""
    shared.agent("mirror", "import sys; sys.stdout.write(sys.argv[-1])")
    task = make(shared)
    record = closed(shared, task, hand(shared, task, "mirror", prompt)["meta"]["handoff"])
    assert (record["output"], record["prompt"]) == (prompt, prompt)
    assert not (shared.project / "pwn").exists()


def test_hand_off_needs_a_directory(shared: Server) -> None:
    task = shared.post("/api/tasks", {"description": "anywhere"}).json()["data"]
    error = hand(shared, task, "sayer", expect=400)
    assert "working directory" in error["message"]


@pytest.mark.req("S2-84", "S2-90", "S2-83")
def test_nested_hand_offs_survive_the_server(server: Server) -> None:
    """Each level gets its result once, the records close in order, and the task walks back up."""
    server.agent("waiter", "import sys, pathlib, time\n"
        "go = pathlib.Path(sys.argv[-1])\n"
        "while not go.exists(): time.sleep(0.01)\n"
        "print('after', go.name)")  # fmt: skip
    task = make(server)
    runs: list[str] = []
    token = server.token
    for level in range(3):
        (server.project / f"new{level}").touch()  # otherwise it would only go in a circle
        answer = hand(server, task, "waiter", str(server.project / f"go{level}"), token=token)
        runs.append(answer["meta"]["run"])
        wait_for(lambda: server.show(runs[-1])["status"] == "running", "the agent's start")
        token = token_of(server, {"id": runs[-1]})
    server.kill()
    (server.project / "go2").touch()
    server.start_instead()
    for level in (2, 1, 0):
        (server.project / f"go{level}").touch()
        server.ended(runs[level])
        after = show(server, task)
        assert [one["completedAt"] is None for one in after["agentChain"]] == [one < level for one in range(3)]
        assert after["currentAgent"] == ("waiter" if level else None)
        assert after["status"]["type"] == ("active" if level else "waiting")
    chain = show(server, task)["agentChain"]
    assert [one["output"] for one in chain] == ["after go0\n", "after go1\n", "after go2\n"]
    assert chain[2]["completedAt"] <= chain[1]["completedAt"] <= chain[0]["completedAt"]
    kinds = Counter(one["eventType"] for one in history(server, task))
    assert (kinds["agent_handoff_started"], kinds["agent_handoff_completed"]) == (3, 3)
