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
def test_successful_run_has_last_text_as_result(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({**WORK, "when": {"prompt": "do it"}})
    output = run(hocket, "claude", "-p", "do it")
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "the end")
    assert output.stderr == ""
    assert [data["text"] for data in output.of("text")] == ["first", "the end"]
    assert [data["text"] for data in output.of("thinking")] == ["hm"]
    (started,), (finished,) = output.of("tool.started"), output.of("tool.finished")
    assert (started["name"], started["id"], started["input"]["command"]) == ("Bash", finished["id"], "echo hi")
    assert (finished["name"], finished["error"], finished["text"]) == ("Bash", False, "hi")
    (turn,) = output.of("turn.ended")
    assert (turn["result"], turn["is_error"], turn["num_turns"]) == ("the end", False, 2)
    assert (output.ended["tokens"], output.ended["cost_usd"] > 0) == (60, True)
    leaf = shown(hocket, output.leaf)
    assert (leaf["status"], leaf["reason"], leaf["exit_code"], leaf["result"]) == ("done", "exit", 0, "the end")
    assert (leaf["cost_usd"], leaf["tokens"]) == (output.ended["cost_usd"], 60)


@pytest.mark.req("S3-23", "S3-24", "S3-25", "S3-26")
@pytest.mark.parametrize("name", ["a_b.c d\u00e9\U0001f600~", "x" * 150 + "/" + "\u65e5" * 60])
def test_session_id_and_transcript_are_recorded(claude: ClaudeSetup, hocket: Hocket, name: str) -> None:
    folder = hocket.cwd / name
    folder.mkdir(parents=True)
    claude.use_script(says("fine"))
    output = run(hocket, "claude", "-p", "hello", cwd=folder)
    sessions = output.of("session")
    assert {data["session_id"] for data in sessions} == {session_of(output.leaf)}
    leaf = shown(hocket, output.leaf)
    assert leaf["session_id"] == session_of(output.leaf)
    transcript = Path(leaf["transcript"])
    assert transcript.is_relative_to(Path.home() / ".claude/projects")
    assert leaf["session_id"] in transcript.read_text()
    # The first guess is the older name. It is remembered until a file is found, and then corrected.
    assert [Path(data["transcript"]).name for data in sessions] == [f"session_{transcript.name}", transcript.name]


@pytest.mark.req("S3-39", "S3-40")
def test_complete_line_is_shown_before_message_ends(cli: ClaudeSetup, hocket: Hocket) -> None:
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
"""By status: the reason, the error of the CLI, and whether it is transient."""


def fails(number: int, status: int) -> Document:
    return {"when": {"pass": number}, "do": [{"fail": {"status": status, "message": "out of order"}}]}


@pytest.mark.req("S2-67")
def test_api_failures_have_reasons_and_transient_flags(scripted: ClaudeSetup, hocket: Hocket) -> None:
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


def test_unreachable_service_is_transient_error(
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
    """A service that always responds that the usage limit of the subscription is reached."""

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
def exhausted_subscription(claude: ClaudeSetup, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The real CLI with a subscription whose usage limit is reached."""
    claude.use_script(says("never heard"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Limited) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "rehearsal")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()


@pytest.mark.usefixtures("exhausted_subscription")
def test_usage_limit_parks_chain_until_its_reset(hocket: Hocket, agent: Bin) -> None:
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
    """The data of an event that reports another attempt of the CLI."""
    data: dict[str, Any] = event["data"]
    return data if event["type"] in ("notice", "rate_limited") and "attempt" in data else None


def test_single_run_fails_on_api_error(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(fails(1, 401))
    output = run(hocket, "claude", "-p", "hello")
    assert (*output.outcome, output.step["reason"]) == (1, "failed", "error", "error")


def test_run_fails_at_max_turns(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(WORK)
    output = run(hocket, "claude", "-p", "hello", "--", "--max-turns", "1")
    assert output.outcome == (1, "failed", "error")
    assert output.of("turn.ended")[0]["subtype"] == "error_max_turns"
    assert "maximum number of turns" in shown(hocket, output.leaf)["error"]


def test_exhausted_cli_budget_has_own_exit_code(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(
        {"do": [{"cost": 0.5}, {"usage": {"output": 20000}}, bash("echo hi", "hi"), {"say": "the end"}]}
    )
    output = run(hocket, "claude", "-p", "hello", "--", "--max-budget-usd", "0.0001")
    assert output.outcome == (5, "failed", "budget")
    assert output.ended["cost_usd"] > 0.0001


def test_hocket_budget_is_enforced_by_cli(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({"do": [{"cost": 0.5}, {"usage": {"output": 20000}}, bash("echo hi", "hi"), {"say": "the end"}]})
    output = run(hocket, "claude:3", "-p", "hello", "--budget", "0.0001")
    assert output.outcome == (5, "failed", "budget")
    assert (output.step["iterations"], output.of("turn.ended")[0]["subtype"]) == (1, "error_max_budget_usd")


@pytest.mark.req("S1-45")
def test_permission_request_is_denied_by_default(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(
        {"do": [asks_to("sh -c 'echo x > made'", allowed=[{"say": "made it"}], denied=[{"say": "then not"}])]}
    )
    output = run(hocket, "claude", "-p", "hello")
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "then not")
    (denied,) = (data for data in output.of("notice") if data["kind"] == "permission_denied")
    assert denied["tool"] == "Bash"
    assert [denial["tool"] for denial in output.of("turn.ended")[0]["denials"]] == ["Bash"]
    assert output.of("tool.finished")[0]["error"] is True
    assert not output.of("question")
    assert not (hocket.cwd / "made").exists()


def test_run_fails_when_model_refuses(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({"do": [{"say": "hm"}, "refuse"]})
    output = run(hocket, "claude", "-p", "hello")
    assert output.outcome == (1, "failed", "error")
    assert "refusal" in [data["kind"] for data in output.of("notice")]
