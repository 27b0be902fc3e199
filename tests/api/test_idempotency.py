"""Idempotency-Key: one key, one run, for any number of requests, also when the server is killed in between."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from api.serving import Server, wait_for

LEDGER = "import os; os.write(os.open('ledger', os.O_WRONLY | os.O_APPEND | os.O_CREAT), b'x')"


def start(server: Server, key: str, agent: str = "ledger") -> Any:
    body = {"agent": agent, "cwd": str(server.project)}
    return server.post("/api/runs", body, headers={"idempotency-key": key})


def test_concurrent_starts_with_one_key_give_one_run(shared: Server) -> None:
    shared.agent("ledger", LEDGER)
    before = shared.count()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: start(shared, "one"), range(100)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["data"]["id"] for answer in answers}) == 1
    assert shared.count() == before + 1
    shared.ended(answers[0].json()["data"]["id"])
    assert (shared.project / "ledger").read_bytes() == b"x"


def test_other_or_no_key_gives_another_run(shared: Server) -> None:
    ids = [start(shared, key, "echo-args").json()["data"]["id"] for key in ("a", "b", "a")]
    assert ids[0] == ids[2] != ids[1]
    plain = [shared.start_run("echo-args")["id"] for _ in range(2)]
    assert plain[0] != plain[1]


def test_invalid_key_is_refused(shared: Server) -> None:
    assert start(shared, "x" * 201, "echo-args").status_code == 400
    assert start(shared, "", "echo-args").status_code == 400


def test_key_of_a_refused_start_is_free(shared: Server) -> None:
    assert start(shared, "again", "comes-later").status_code == 400
    shared.agent("comes-later", "print('here')")
    assert start(shared, "again", "comes-later").status_code == 201


def test_repeated_key_gives_one_run_despite_a_kill(server: Server) -> None:
    server.agent("ledger", LEDGER)
    answers: list[str] = []
    lock = threading.Lock()

    def ask_until_answered(_: int) -> None:
        for _attempt in range(200):
            try:
                answer = start(server, "one")
            except (httpx.HTTPError, OSError, RuntimeError):
                restarted.wait(0.05)
                continue
            with lock:
                answers.append(answer.json()["data"]["id"])
            return

    restarted = threading.Event()
    with ThreadPoolExecutor(10) as pool:
        asking = [pool.submit(ask_until_answered, number) for number in range(100)]
        wait_for(lambda: answers, "a first answer")
        server.kill()
        server.start_instead()
        restarted.set()
        for one in asking:
            one.result(15)
    assert len(answers) == 100
    assert len(set(answers)) == 1
    server.ended(answers[0])
    assert server.count() == 1
    assert (server.project / "ledger").read_bytes() == b"x"
