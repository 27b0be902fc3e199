"""The scripted model as a server: its HTTP responses, how it identifies agents, and how it stops."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import real_cli
from patience import PATIENCE
from rehearsal.processes import Process, cli_environment

from hocket.rehearsal import ScriptedModel, parse, uncovered_in
from hocket.rehearsal.matching import AgentConversation, Message, next_message
from hocket.rehearsal.messages_api import blocks, contents
from hocket.rehearsal.scripted_model import MAX_THREADS


def rule(*do: Any, **when: Any) -> dict[str, Any]:
    return {"when": when, "do": list(do)}


@contextmanager
def model(*rules: Any, **more: Any) -> Iterator[ScriptedModel]:
    with ScriptedModel(parse({"rules": list(rules)}), **more) as running:
        yield running


def body(prompt: str = "go", **more: Any) -> dict[str, Any]:
    tools = [{"name": "Bash", "input_schema": {}}]
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], "tools": tools, **more}


def call(
    running: ScriptedModel, value: Any, path: str = "/v1/messages", method: str = "POST", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=PATIENCE)
    try:
        text = value if isinstance(value, bytes) else json.dumps(value)
        connection.request(method, path, text, {name.replace("_", "-"): given for name, given in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def message(running: ScriptedModel, value: Any, **headers: str) -> Any:
    status, answer = call(running, value, **headers)
    assert status == 200, answer
    return json.loads(answer)


def frames_of(stream: bytes) -> list[Any]:
    found = []
    for entry in stream.decode().split("\n\n")[:-1]:
        event, data = entry.split("\n", 1)
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


TOOL = {"tool": {"name": "Bash", "input": {"command": "echo " + "x" * 60}}}


def test_request_without_stream_gets_one_object() -> None:
    with model(rule({"think": "hm"}, {"say": "hi"}, TOOL, {"say": "never"})) as running:
        answer = message(running, body())
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert (answer["stop_reason"], answer["model"]) == ("tool_use", "m")
    assert answer["usage"] == {"input_tokens": 10, "output_tokens": 20}


def test_stream_frames_add_up_to_the_message() -> None:
    with model(rule({"usage": {"input": 7, "output": 9}}, {"think": "hm"}, {"say": "word " * 20}, TOOL)) as running:
        status, answer = call(running, body(stream=True), "/v1/messages?beta=true")
    frames = frames_of(answer)
    assert status == 200
    assert (frames[0]["type"], frames[0]["message"]["usage"]["input_tokens"]) == ("message_start", 7)
    assert [frame["type"] for frame in frames[-2:]] == ["message_delta", "message_stop"]
    assert (frames[-2]["delta"]["stop_reason"], frames[-2]["usage"]) == ("tool_use", {"output_tokens": 9})
    deltas = [(frame["index"], frame["delta"]) for frame in frames if frame["type"] == "content_block_delta"]
    assert [delta["type"] for index, delta in deltas if index == 0] == ["thinking_delta", "signature_delta"]
    assert "".join(delta["text"] for index, delta in deltas if index == 1) == "word " * 20
    written = [delta["partial_json"] for index, delta in deltas if index == 2]
    assert len(written) > 1
    assert json.loads("".join(written)) == TOOL["tool"]["input"]


def test_long_text_is_streamed_in_limited_pieces() -> None:
    with model(rule({"say": "y" * (1 << 20)})) as running:
        frames = frames_of(call(running, body(stream=True))[1])
    assert 10 < len(frames) < 300
    assert sum(len(frame["delta"]["text"]) for frame in frames if frame["type"] == "content_block_delta") == 1 << 20


@pytest.mark.parametrize(
    ("status", "name"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")]
)
def test_failure_has_status_and_name(status: int, name: str) -> None:
    with model(rule({"fail": {"status": status, "message": "because"}})) as running:
        got, answer = call(running, body())
    assert got == status
    assert json.loads(answer) == {"type": "error", "error": {"type": name, "message": "because"}}


def test_other_endpoints_are_answered() -> None:
    with model(rule({"say": "hi"})) as running:
        assert call(running, b"", "/", "HEAD") == (200, b"")
        assert call(running, b"", "/api/hello", "HEAD") == (200, b"")
        assert json.loads(call(running, body(), "/v1/messages/count_tokens")[1]) == {"input_tokens": 10}
        assert call(running, body(), "/v1/elsewhere")[0] == 404
        assert call(running, b"{", "/v1/messages")[0] == 400
        assert call(running, b"[]", "/v1/messages")[0] == 400


@pytest.mark.parametrize(
    "broken",
    [
        {"messages": 3},
        {"messages": [3]},
        {"messages": [{"role": "user", "content": [3]}]},
        {"tools": [3, {"name": "Bash"}]},
        {"system": 3},
    ],
)
def test_malformed_request_is_answered(broken: Any) -> None:
    with model(rule({"say": "hi"})) as running:
        assert message(running, body(**broken))["content"][0]["text"] == "hi"


# --- identifying agents -------------------------------------------------------------------------------------

NAMES = {"planner": "You plan.", "strict": "You plan. You are strict.", "empty": " "}


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("Intro.\n\nYou plan.", "planner"),
        ([{"type": "text", "text": "You plan. You are strict."}], "strict"),
        ("This is agent: reviewer, at your service", "reviewer"),
        ("Nothing known", "claude"),
    ],
)
def test_agent_is_identified_by_system_prompt(system: Any, name: str) -> None:
    names = ("planner", "strict", "reviewer", "claude", "empty")
    with model(*[rule({"say": n}, agent=n) for n in names], agents=NAMES) as running:
        assert message(running, body(system=system))["content"][0]["text"] == name


def test_sub_agent_is_identified_by_prompt() -> None:
    start = {"agent": {"type": "scout", "prompt": "look around"}}
    with model(rule({"say": "looking"}, agent="scout"), rule(start)) as running:
        answer = message(running, body("look around", system="cc_is_subagent=true"))
    assert answer["content"][0]["text"] == "looking"


def test_teammate_is_identified_by_its_name() -> None:
    with model(rule({"say": "mine"}, agent="alice"), rule({"say": "lead"}, agent="planner"), agents=NAMES) as running:
        request = body(system="You plan.")
        assert message(running, request, X_Claude_Code_Agent_Id="alice@session-1")["content"][0]["text"] == "mine"
        assert message(running, request, X_Claude_Code_Agent_Id="a0123")["content"][0]["text"] == "lead"


SESSION = {"X_Claude_Code_Session_Id": "s"}


def test_internal_requests_of_the_cli_are_answered() -> None:
    title = body(tools=[], system="You are naming a coding session.")
    with model(rule({"say": "mine"}, agent="planner"), agents=NAMES) as running:
        assert message(running, title, **SESSION)["content"][0]["text"] == "ok"
        assert message(running, body(tools=[], system="You plan."), **SESSION)["content"][0]["text"] == "mine"
    assert running.uncovered == []
    with model(rule({"say": "bare"}, tools=[])) as running:
        assert message(running, title, **SESSION)["content"][0]["text"] == "bare"


REMINDED = [{"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"}]


@pytest.mark.parametrize(
    "sent",
    [
        {"messages": [{"role": "user", "content": "go"}, {"role": "system", "content": "Today is a day."}]},
        {"messages": [{"role": "user", "content": [*REMINDED, {"type": "text", "text": "go"}]}]},
        {"context_management": {}},
    ],
)
def test_unnamed_agent_without_tools_gets_script_or_failure(sent: dict[str, Any]) -> None:
    with model(rule({"say": "mine"}, prompt="go")) as running:
        assert message(running, body(**{"tools": [], **sent}), **SESSION)["content"][0]["text"] == "mine"
    with model(rule({"say": "mine"}, agent="planner")) as running:
        assert call(running, body(**{"tools": [], **sent}), **SESSION)[0] == 400
    assert len(running.uncovered) == 1


def test_request_without_session_gets_the_script() -> None:
    with model(rule({"say": "mine"})) as running:
        assert message(running, body(tools=[]))["content"][0]["text"] == "mine"


def test_passes_are_counted_by_session() -> None:
    with model(*[rule({"say": f"{n}"}, **{"pass": n}) for n in (1, 2, 3)]) as running:

        def number(session: str | None = None, **more: Any) -> str:
            headers = {"X_Claude_Code_Session_Id": session} if session else {}
            return str(message(running, body(**more), **headers)["content"][0]["text"])

        inside: dict[str, Any] = {"metadata": {"user_id": json.dumps({"session_id": "three"})}}
        assert [number("one"), number("two"), number("one"), number(**inside), number("two")] == list("12132")


def test_uncovered_request_is_noted_once(tmp_path: Path) -> None:
    with model(rule({"say": "hi"}, prompt="known"), state=tmp_path) as running:
        answers = {call(running, body("strange")) for _ in range(2)}
        assert len(running.uncovered) == 1
    ((status, answer),) = answers
    assert status == 400
    assert "no rule fits agent 'claude', turn 1, pass 1, last message 'strange'" in answer.decode()
    assert uncovered_in(tmp_path) == running.uncovered


def test_requests_are_counted() -> None:
    with model(rule({"say": "hi"})) as running:
        for _ in range(3):
            message(running, body())
    assert running.requests == 3


# --- time ---------------------------------------------------------------------------------------------------


def test_wait_delays_only_later_frames() -> None:
    with model(rule({"say": "first"}, {"wait": 0.3}, {"say": "then"})) as running:
        host = running.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=PATIENCE)
        started = time.monotonic()
        connection.request("POST", "/v1/messages", json.dumps(body(stream=True)))
        answer = connection.getresponse()
        while b"first" not in answer.readline():
            pass
        early = time.monotonic() - started
        answer.read()
        late = time.monotonic() - started
        connection.close()
    assert early < 0.25
    assert late >= 0.3


def test_model_listens_only_on_loopback() -> None:
    with model(rule({"say": "hi"})) as running:
        assert running.url.startswith("http://127.0.0.1:")


def test_stop_ends_hanging_request() -> None:
    running = ScriptedModel(parse({"rules": [rule({"say": "begun"}, "hang")]})).start()
    outcome: list[bytes] = []
    waiting = threading.Thread(target=lambda: outcome.append(call(running, body(stream=True))[1]))
    waiting.start()
    while not running.requests:
        time.sleep(0.01)
    running.stop()
    waiting.join(5)
    assert not waiting.is_alive()
    assert b"begun" in outcome[0]
    assert b"message_stop" not in outcome[0]


def test_disconnected_client_frees_its_thread() -> None:
    with model(rule("hang", prompt="go"), rule({"say": "hi"})) as running:
        port = int(running.url.rpartition(":")[2])
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", port)) as client:
            text = json.dumps(body(stream=True)).encode()
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            while not running.requests:
                time.sleep(0.01)
        until = time.monotonic() + PATIENCE
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() == before


def test_stop_works_with_clients_above_limit() -> None:
    running = ScriptedModel(parse({"rules": [rule("hang")]})).start()
    before = threading.active_count()
    port = int(running.url.rpartition(":")[2])
    text = json.dumps(body(stream=True)).encode()
    head = b"POST /v1/messages HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(text)
    with ExitStack() as clients:
        for _ in range(MAX_THREADS + 10):
            clients.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(head + text)
        until = time.monotonic() + PATIENCE
        while running.requests < MAX_THREADS and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before + MAX_THREADS
        running.stop()  # which lets in at most the one client that waits for a free thread
        assert running.requests in {MAX_THREADS, MAX_THREADS + 1}


def test_many_clients_at_once_are_all_answered() -> None:
    with model(rule({"say": "hi"})) as running:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(call(running, body())[0])) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert answers == [200] * 100


def test_warm_response_takes_few_milliseconds() -> None:
    with model(rule({"say": "hi"})) as running:
        request = body(stream=True, system="x" * 70_000)

        def taken() -> float:
            started = time.perf_counter()
            call(running, request)
            return time.perf_counter() - started

        assert any(taken() < 0.005 for _ in range(200))


# --- the real CLI -------------------------------------------------------------------------------------------


def test_real_cli_follows_script_of_its_definition(world: Path) -> None:
    definitions = json.dumps({"builder": {"description": "builds", "prompt": "You build houses."}})
    write = {"tool": {"name": "Bash", "input": {"command": "echo brick > wall", "description": "build"}}}
    rules = [rule({"say": "on it"}, write, {"say": "built"}, "marker", agent="builder")]
    with model(*rules, agents={"builder": "You build houses."}) as running:
        arguments = ("--agents", definitions, "--agent", "builder", "--permission-mode", "bypassPermissions")
        with Process(real_cli(), *arguments, cwd=world, env=cli_environment(running.url)) as process:
            assert process.say("build").until("result")["result"] == "built\nFORKHESTRA_COMPLETE"
            assert process.end() == 0
    assert (world / "wall").read_text() == "brick\n"
    assert running.uncovered == []
    assert running.requests == 2


def test_real_cli_reports_model_failure(world: Path) -> None:
    with (
        model(rule({"fail": {"status": 500, "message": "out of order"}})) as running,
        Process(real_cli(), cwd=world, env=cli_environment(running.url)) as process,
    ):
        result = process.say("go").until("result")
        assert process.end() == 1
    assert (result["is_error"], result["api_error_status"]) == (True, 500)
    assert "out of order" in result["result"]


def test_each_tool_call_has_its_own_id() -> None:
    found = next_message(
        parse({"rules": [rule({"tools": [{"name": "A"}, {"name": "B"}]})]}), AgentConversation("a", [])
    )
    assert isinstance(found, Message)
    made = [block["id"] for block in blocks(contents(found))]
    assert len(set(made)) == 2
