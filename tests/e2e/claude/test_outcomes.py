"""How runs of Claude end, with both implementations of one script."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, Document, asks_to, bash, says
from e2e.commands import Event, data_of, events_of, run, shown, spawn, wait_for, waited
from world import Bin, Hocket

from hocket.sessions.run_identity import session_of

pytestmark = pytest.mark.shared_server

WORK = {"do": [{"think": "hm"}, {"say": "first"}, bash("echo hi", "hi"), {"cost": 0.01}, {"say": "the end"}]}


@pytest.mark.req("S1-51", "S2-57", "S2-58", "S2-61", "S3-40")
def test_a_run_that_succeeds_has_the_last_words_as_its_result(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({**WORK, "when": {"prompt": "do it"}})
    told = run(hocket, "claude", "-p", "do it")
    assert (*told.outcome, told.ended["result"]) == (0, "done", "single_run", "the end")
    assert told.stderr == ""
    assert [data["text"] for data in told.of("text")] == ["first", "the end"]
    assert [data["text"] for data in told.of("thinking")] == ["hm"]
    (started,), (finished,) = told.of("tool.started"), told.of("tool.finished")
    assert (started["name"], started["id"], started["input"]["command"]) == ("Bash", finished["id"], "echo hi")
    assert (finished["name"], finished["error"], finished["text"]) == ("Bash", False, "hi")
    (turn,) = told.of("turn.ended")
    assert (turn["result"], turn["is_error"], turn["num_turns"]) == ("the end", False, 2)
    assert (told.ended["tokens"], told.ended["cost_usd"] > 0) == (60, True)
    leaf = shown(hocket, told.leaf)
    assert (leaf["status"], leaf["reason"], leaf["exit_code"], leaf["result"]) == ("done", "exit", 0, "the end")
    assert (leaf["cost_usd"], leaf["tokens"]) == (told.ended["cost_usd"], 60)


@pytest.mark.req("S3-23", "S3-24", "S3-25", "S3-26")
@pytest.mark.parametrize("name", ["a_b.c d\u00e9\U0001f600~", "x" * 150 + "/" + "\u65e5" * 60])
def test_the_session_is_known_from_its_first_word_and_its_transcript_is_found(
    claude: ClaudeSetup, hocket: Hocket, name: str
) -> None:
    folder = hocket.cwd / name
    folder.mkdir(parents=True)
    claude.use_script(says("fine"))
    told = run(hocket, "claude", "-p", "hello", cwd=folder)
    sessions = told.of("session")
    assert {data["session_id"] for data in sessions} == {session_of(told.leaf)}
    leaf = shown(hocket, told.leaf)
    assert leaf["session_id"] == session_of(told.leaf)
    transcript = Path(leaf["transcript"])
    assert transcript.is_relative_to(Path.home() / ".claude/projects")
    assert leaf["session_id"] in transcript.read_text()
    # The first guess is the older name. It is remembered until a file is found, and then corrected.
    assert [Path(data["transcript"]).name for data in sessions] == [f"session_{transcript.name}", transcript.name]


@pytest.mark.req("S3-39", "S3-40")
def test_words_are_told_while_the_rest_of_them_is_still_to_come(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({"do": [{"say": "early\nand then"}, {"wait": 300}]})
    run_id = spawn(hocket, "claude", "-p", "go")
    wait_for(hocket, run_id, "text", lambda data: data["text"] == "early")
    assert shown(hocket, run_id)["status"] == "running"
    assert hocket("stop", run_id).returncode == 0
    assert shown(hocket, run_id)["status"] == "stopped"
    assert [data["text"] for data in data_of(hocket, run_id, "text")].count("early") == 1


FAILURES = {
    500: ("error", "server_error", True),
    401: ("error", "authentication_failed", False),
    529: ("error", "overloaded", True),
    429: ("rate_limited", "rate_limit", False),
}
"""By status: the reason, the program's own word for it, and whether it passes by itself."""


def fails(number: int, status: int) -> Document:
    return {"when": {"pass": number}, "do": [{"fail": {"status": status, "message": "out of order"}}]}


@pytest.mark.req("S2-67")
def test_each_failure_of_the_api_has_its_reason_and_some_pass_by_themselves(
    scripted: ClaudeSetup, hocket: Hocket
) -> None:
    scripted.use_script(*(fails(number, status) for number, status in enumerate(FAILURES, 1)), says("too far"))
    for status, (reason, word, passes) in FAILURES.items():
        run_id = spawn(hocket, "claude", "-p", "hello")
        code, leaf = waited(hocket, run_id)
        assert (code, leaf["status"], leaf["reason"], leaf["exit_code"]) == (1, "failed", reason, 1)
        assert "out of order" in leaf["error"]
        events = events_of(hocket, run_id)
        assert events[-1]["data"].get("transient", False) is passes
        retries = [data for data in map(retry_in, events) if data]
        assert [(data["error_status"], data["error"]) for data in retries] == [(status, word)]


def test_a_service_that_cannot_be_reached_passes_by_itself(
    claude: ClaudeSetup, hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.use_script(says("never heard"))
    url = f"http://127.0.0.1:{unused_port()}"
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    run_id = spawn(hocket, "claude", "-p", "hello")
    _, leaf = waited(hocket, run_id)
    (end,) = data_of(hocket, run_id, "run.ended")
    assert (leaf["status"], leaf["reason"], end["transient"]) == ("failed", "error", True)
    why = f"cannot connect to the model's service at {url}: connection refused (ECONNREFUSED)"
    assert leaf["error"] == leaf["result"] == why
    assert why in hocket("show", run_id).stdout
    notices = {data["kind"]: data["text"] for data in data_of(hocket, run_id, "notice")}
    assert notices["retry"] == f"no response from the model's service at {url}; trying again"
    assert notices["api_error"] == why


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Limited(BaseHTTPRequestHandler):
    """A service whose only answer is that the limit of a subscription is reached, with the headers that say so."""

    resets_at = int(time.time()) + 3 * 86_400

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "no more"}}).encode()
        self.send_response(429)
        prefix = "anthropic-ratelimit-unified"
        self.send_header(f"{prefix}-status", "rejected")
        self.send_header(f"{prefix}-reset", str(self.resets_at))
        self.send_header(f"{prefix}-representative-claim", "five_hour")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def used_up(claude: ClaudeSetup, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The real program, with a subscription that is used up."""
    claude.use_script(says("never heard"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Limited) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "rehearsal")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()


@pytest.mark.usefixtures("used_up")
def test_a_usage_limit_parks_the_chain_until_the_time_that_the_program_tells(hocket: Hocket, agent: Bin) -> None:
    agent("after", "open('after', 'w')")
    started = hocket("run", "--detach", "--json", "claude:9 -> after", "-p", "hello")
    chain = json.loads(started.stdout.splitlines()[-1])["run"]
    parked = wait_for(hocket, chain, "parked")["data"]
    assert (parked["until"], parked["reason"]) == (Limited.resets_at, "rate_limited")
    assert shown(hocket, chain)["status"] == "waiting"
    (leaf,) = (event["run"] for event in events_of(hocket, chain) if event["type"] == "rate_limited")
    assert (shown(hocket, leaf)["status"], shown(hocket, leaf)["reason"]) == ("failed", "rate_limited")
    assert hocket("stop", chain).returncode == 0
    assert shown(hocket, chain)["status"] == "stopped"
    assert not (hocket.cwd / "after").exists()


def retry_in(event: Event) -> dict[str, Any] | None:
    """What an event says about one more attempt of the CLI's, if it does."""
    data: dict[str, Any] = event["data"]
    return data if event["type"] in ("notice", "rate_limited") and "attempt" in data else None


def test_a_single_run_fails_with_its_api(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(fails(1, 401))
    told = run(hocket, "claude", "-p", "hello")
    assert (*told.outcome, told.step["reason"]) == (1, "failed", "error", "error")


def test_a_limit_of_requests_makes_the_run_fail(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(WORK)
    told = run(hocket, "claude", "-p", "hello", "--", "--max-turns", "1")
    assert told.outcome == (1, "failed", "error")
    assert told.of("turn.ended")[0]["subtype"] == "error_max_turns"
    assert "maximum number of turns" in shown(hocket, told.leaf)["error"]


def test_a_budget_that_is_used_up_has_an_exit_code_of_its_own(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(
        {"do": [{"cost": 0.5}, {"usage": {"output": 20000}}, bash("echo hi", "hi"), {"say": "the end"}]}
    )
    told = run(hocket, "claude", "-p", "hello", "--", "--max-budget-usd", "0.0001")
    assert told.outcome == (5, "failed", "budget")
    assert told.ended["cost_usd"] > 0.0001


def test_a_budget_of_ours_is_kept_to_by_the_program_itself(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({"do": [{"cost": 0.5}, {"usage": {"output": 20000}}, bash("echo hi", "hi"), {"say": "the end"}]})
    told = run(hocket, "claude:3", "-p", "hello", "--budget", "0.0001")
    assert told.outcome == (5, "failed", "budget")
    assert (told.step["iterations"], told.of("turn.ended")[0]["subtype"]) == (1, "error_max_budget_usd")


@pytest.mark.req("S1-45")
def test_what_would_ask_is_denied_unless_somebody_wants_to_be_asked(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(
        {"do": [asks_to("sh -c 'echo x > made'", allowed=[{"say": "made it"}], denied=[{"say": "then not"}])]}
    )
    told = run(hocket, "claude", "-p", "hello")
    assert (*told.outcome, told.ended["result"]) == (0, "done", "single_run", "then not")
    (denied,) = (data for data in told.of("notice") if data["kind"] == "permission_denied")
    assert denied["tool"] == "Bash"
    assert [denial["tool"] for denial in told.of("turn.ended")[0]["denials"]] == ["Bash"]
    assert told.of("tool.finished")[0]["error"] is True
    assert not told.of("question")
    assert not (hocket.cwd / "made").exists()


def test_a_model_that_refuses_makes_the_run_fail(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({"do": [{"say": "hm"}, "refuse"]})
    told = run(hocket, "claude", "-p", "hello")
    assert told.outcome == (1, "failed", "error")
    assert "refusal" in [data["kind"] for data in told.of("notice")]
