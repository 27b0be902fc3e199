"""The scripted agent as a process: turns, questions, exits and command line."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from rehearsal.processes import ASKING, STREAMS, Agent, Process, blocks, kind, summary

from hocket.rehearsal import uncovered_in

Make = Callable[..., Agent]


@pytest.fixture
def make_agent(world: Path) -> Make:
    """``make_agent(*rules)``: scripted agents of a script with these rules."""
    return lambda *rules, **more: Agent(world, {"rules": list(rules), **more})


def rule(*do: Any, **when: Any) -> dict[str, Any]:
    return {"when": when, "do": list(do)}


def run_once(agent: Agent, *arguments: str, prompt: str = "go") -> subprocess.CompletedProcess[str]:
    given = json.dumps({"type": "user", "message": {"role": "user", "content": prompt}})
    return subprocess.run(
        [agent.program, *STREAMS, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=agent.world,
        check=False,
    )


# --- turns --------------------------------------------------------------------------------------------------


def test_turn_starts_with_init_and_ends_with_result(make_agent: Make, world: Path) -> None:
    session = str(uuid.uuid4())
    with make_agent(rule({"cost": 0.25}, {"usage": {"input": 3, "output": 4}}, {"say": "hi"})).start(
        "--session-id", session, "--model", "sonnet", "--permission-mode", "plan", "--tools", "Bash,Read"
    ) as process:
        result = process.say("go").until("result")
        assert process.end() == 0
    first = process.events[0]
    assert (kind(first), first["session_id"], first["model"]) == ("system/init", session, "sonnet")
    assert (first["permissionMode"], first["tools"], first["cwd"]) == ("plan", ["Bash", "Read"], str(world))
    assert (result["result"], result["total_cost_usd"], result["num_turns"]) == ("hi", 0.25, 1)
    used = {"inputTokens": 3, "outputTokens": 4, "costUSD": 0.25}
    assert used.items() <= result["modelUsage"]["sonnet"].items()
    assert {event["session_id"] for event in process.events} == {session}


def test_no_output_before_first_message(make_agent: Make) -> None:
    with make_agent(rule({"say": "hi"})).start() as process:
        assert process.end() == 0
    assert process.events == []


def test_whole_block_precedes_its_stop_frame(make_agent: Make) -> None:
    with make_agent(rule({"think": "hm"}, {"say": "x" * 100})).start() as process:
        process.say("go").until("result")
    shown = [event["event"]["type"] if kind(event) == "stream_event" else kind(event) for event in process.events[2:-1]]
    assert shown == [
        "message_start",
        "content_block_start", "content_block_delta", "content_block_delta", "assistant", "content_block_stop",
        "content_block_start", *["content_block_delta"] * 3, "assistant", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    pieces = [event["event"]["delta"] for event in process.events if event.get("event", {}).get("delta")]
    assert "".join(piece.get("text", "") for piece in pieces) == "x" * 100


def test_costs_add_up_over_turns(make_agent: Make) -> None:
    with make_agent(rule({"cost": 0.5}, {"say": "hi"})).start() as process:
        results = [process.say("go").until("result") for _ in range(2)]
    assert [result["total_cost_usd"] for result in results] == [0.5, 1.0]
    assert [result["modelUsage"]["rehearsal"]["costUSD"] for result in results] == [0.5, 1.0]
    since = [result["model_usage_since_last_result"]["rehearsal"]["costUSD"] for result in results]
    assert since == [0.5, 0.5]
    assert [result["result_index"] for result in results] == [0, 1]


def test_queued_messages_become_one_turn(make_agent: Make) -> None:
    agent = make_agent(
        rule({"say": "begun"}, {"wait": 0.5}, {"say": "one"}, turn=1), rule({"say": "both"}, prompt="b\nc")
    )
    with agent.start() as process:
        process.say("a").until("assistant")
        process.say("b").say("c")
        assert process.end() == 0
    assert [event["result"] for event in process.events if kind(event) == "result"] == ["one", "both"]


def test_message_during_tool_use_belongs_to_the_turn(make_agent: Make) -> None:
    agent = make_agent(
        rule({"ask": {"tool": "Bash"}}, {"say": "as planned"}, prompt="go"), rule({"say": "hurrying"}, last="hurry")
    )
    with agent.start(*ASKING) as process:
        question = process.say("go").until("control_request")
        process.say("hurry").answer(question, allow=True)
        assert process.end() == 0
    assert [event["result"] for event in process.events if kind(event) == "result"] == ["hurrying"]


def test_any_text_arrives_unchanged(make_agent: Make) -> None:
    long = "ü" * (1 << 20)
    odd = 'é"\\\n\t\u2028😀\ud800'
    with make_agent(rule({"say": odd}, prompt=long), rule({"say": "too short"})).start() as process:
        result = process.say(long).until("result")
    assert result["result"] == odd


def test_tools_of_one_message_get_separate_results(make_agent: Make) -> None:
    tools = [{"name": "Bash", "result": "a"}, {"name": "Read", "result": "b", "error": True}]
    with make_agent(rule({"tools": tools}, {"say": "fin"})).start() as process:
        result = process.say("go").until("result")
    answers = [block for event in process.events if kind(event) == "user" for block in blocks(event)]
    assert [(block["content"], block["is_error"]) for block in answers] == [("a", False), ("b", True)]
    assert result["num_turns"] == 3


# --- questions ----------------------------------------------------------------------------------------------

QUESTION = {"ask": {"tool": "Bash", "input": {"command": "rm x"}, "result": "gone", "denied": [{"say": "kept"}]}}


@pytest.mark.parametrize(
    ("arguments", "asked", "expected"),
    [
        (("--permission-prompts", "none"), "permission_denied", "kept"),
        ((), "permission_denied", "kept"),
        ((*ASKING, "--permission-mode", "dontAsk"), "permission_denied", "kept"),
        ((*ASKING, "--permission-mode", "bypassPermissions"), None, "removed"),
        ((*ASKING, "--dangerously-skip-permissions"), None, "removed"),
        ((*ASKING, "--allowedTools", "Read(*) Bash"), None, "removed"),
    ],
)
def test_permission_mode_decides_about_questions(
    make_agent: Make, arguments: tuple[str, ...], asked: str | None, expected: str
) -> None:
    with make_agent(rule(QUESTION, {"say": "removed"})).start(*arguments) as process:
        result = process.say("go").until("result")
    assert result["result"] == expected
    assert ("permission_denied" in {event.get("subtype") for event in process.events}) == (asked is not None)


def test_denial_and_reason_reach_agent(make_agent: Make) -> None:
    with make_agent(rule(QUESTION, {"say": "removed"})).start(*ASKING) as process:
        question = process.say("go").until("control_request")
        result = process.answer(question, allow=False, message="too early").until("result")
    answers = [block["content"] for event in process.events if kind(event) == "user" for block in blocks(event)]
    assert (answers, result["result"]) == (["too early"], "kept")
    assert result["permission_denials"] == [
        {"tool_name": "Bash", "tool_use_id": question["request"]["tool_use_id"], "tool_input": {"command": "rm x"}}
    ]


def test_questions_of_one_message_are_open_together(make_agent: Make) -> None:
    asks = [{"ask": {"tool": "Bash", "result": f"did {number}", "id": f"q{number}"}} for number in (1, 2)]
    with make_agent(rule({"tools": asks}, {"echo": "{prompt}: {last}"})).start(*ASKING) as process:
        first, second = process.say("go").until("control_request"), process.until("control_request")
        assert [question["request_id"] for question in (first, second)] == ["q1", "q2"]
        process.answer(second, allow=False, message="too early")
        assert process.answer(first, allow=True).until("result")["result"] == "go: did 1\ntoo early"


def test_rule_granted_for_session_prevents_questions(make_agent: Make) -> None:
    ask = {"ask": {"tool": "Bash", "rule": "rm *", "result": "gone"}}
    with make_agent(rule(ask, {"say": "removed"})).start(*ASKING) as process:
        question = process.say("go").until("control_request")
        (suggested,) = question["request"]["permission_suggestions"]
        assert (suggested["rules"], suggested["destination"]) == (
            [{"toolName": "Bash", "ruleContent": "rm *"}],
            "localSettings",
        )
        reply = {"behavior": "allow", "updatedPermissions": [{**suggested, "destination": "session"}]}
        response = {"subtype": "success", "request_id": question["request_id"], "response": reply}
        process.send({"type": "control_response", "response": response}).until("result")
        process.say("again").until("result")
        assert process.end() == 0
    assert [kind(event) for event in process.events].count("control_request") == 1


def test_user_answers_are_the_tool_result(make_agent: Make) -> None:
    with make_agent(rule({"ask": {"tool": "AskUserQuestion"}}, {"echo": "{last}"})).start(*ASKING) as process:
        question = process.say("go").until("control_request")
        reply = {"behavior": "allow", "updatedInput": {"answers": {"Which?": "Blue"}}}
        response = {"subtype": "success", "request_id": question["request_id"], "response": reply}
        process.send({"type": "control_response", "response": response})
        assert process.until("result")["result"] == "Which? Blue"


def test_wait_lasts_until_the_file_exists(make_agent: Make) -> None:
    agent = make_agent(rule({"say": "begun"}, {"wait": {"file": "go"}}, {"say": "over"}))
    with agent.start() as process:
        process.say("x").until("assistant")
        (agent.world / "go").touch()
        assert process.until("result")["result"] == "over"


def test_question_is_denied_when_input_ends(make_agent: Make) -> None:
    with make_agent(rule(QUESTION, {"say": "removed"})).start(*ASKING) as process:
        process.say("go").until("control_request")
        assert process.end() == 0
    assert process.events[-1]["result"] == "kept"


def test_question_of_background_agent_names_the_agent(make_agent: Make) -> None:
    start = {"agent": {"prompt": "sub", "background": True}}
    agent = make_agent(
        rule(QUESTION, {"say": "removed"}, agent="general-purpose"), rule({"say": "woken"}, woken=True), rule(start)
    )
    with agent.start(*ASKING) as process:
        question = process.say("go").until("control_request")
        task = next(event for event in process.events if event.get("subtype") == "task_started")
        assert question["request"]["agent_id"] == task["task_id"]
        process.answer(question, allow=True)
        assert process.until("system/task_notification")["summary"] == "removed"


# --- interrupts and signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["hang", {"wait": 600}])
def test_interrupt_ends_only_the_turn(make_agent: Make, step: Any) -> None:
    with make_agent(rule({"say": "begun"}, step, turn=1), rule({"say": "next"})).start() as process:
        process.say("go").until("assistant")
        answer = process.interrupt("stop-7").until("control_response")
        assert answer["response"]["request_id"] == "stop-7"
        result = process.until("result")
        assert (result["subtype"], result["is_error"]) == ("error_during_execution", True)
        assert result["terminal_reason"] == "aborted_streaming"
        assert process.say("on").until("result")["result"] == "next"
        assert process.end() == 0


def test_interrupt_withdraws_open_question(make_agent: Make) -> None:
    with make_agent(rule(QUESTION)).start(*ASKING) as process:
        question = process.say("go").until("control_request")
        assert process.interrupt().until("control_cancel_request")["request_id"] == question["request_id"]
        assert process.until("result")["terminal_reason"] == "aborted_tools"
        assert process.end() == 1
    order = [kind(event) for event in process.events][-5:]
    assert order == ["control_cancel_request", "control_response", "user", "user", "result"]


def test_interrupt_reaches_foreground_sub_agent(make_agent: Make) -> None:
    agent = make_agent(
        rule({"tool": {"name": "Bash"}}, "hang", agent="general-purpose"), rule({"agent": {"prompt": "sub"}})
    )
    with agent.start() as process:
        process.say("go").until(lambda event: kind(event) == "user" and event["parent_tool_use_id"] is not None)
        assert process.interrupt().until("result")["terminal_reason"] == "aborted_tools"


def test_interrupt_without_turn_is_acknowledged(make_agent: Make) -> None:
    with make_agent(rule({"say": "hi"})).start() as process:
        process.interrupt("idle-1").until("control_response")
        assert process.say("go").until("result")["is_error"] is False


def test_sigterm_exits_143_without_result(make_agent: Make) -> None:
    with make_agent(rule({"say": "begun"}, "hang")).start() as process:
        process.say("go").until("assistant")
        process.signal(signal.SIGTERM)
        assert process.end() == 143
    assert "result" not in {kind(event) for event in process.events}


def test_sigint_ends_agent_with_result(make_agent: Make) -> None:
    with make_agent(rule({"say": "begun"}, "hang")).start() as process:
        process.say("go").until("assistant")
        assert process.signal(signal.SIGINT).until("result")["subtype"] == "error_during_execution"
        assert process.child.wait(10) == 0


@pytest.mark.parametrize(("step", "code"), [({"fail": {"exit": 3}}, 3), ("crash", -signal.SIGABRT)])
def test_crashed_agent_leaves_no_result(make_agent: Make, world: Path, step: Any, code: int) -> None:
    with make_agent(rule({"say": "begun"}, step)).start() as process:
        process.say("go")
        assert process.end() == code
    assert kind(process.events[-1]) in ("assistant", "stream_event")
    assert list(world.glob("core*")) == []


# --- failures and limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "retry"),
    [(500, "server_error"), (529, "overloaded"), (429, "rate_limit"), (401, "authentication_failed"), (404, None)],
)
def test_api_failure_is_reported_as_by_cli(make_agent: Make, status: int, retry: str | None) -> None:
    with make_agent(rule({"fail": {"status": status, "message": "broken"}})).start() as process:
        result = process.say("go").until("result")
        assert process.end() == 1
    retries = [event["error"] for event in process.events if event.get("subtype") == "api_retry"]
    assert retries == ([retry] if retry else [])
    synthetic = next(event for event in process.events if kind(event) == "assistant")
    assert synthetic["message"]["model"] == "<synthetic>"
    assert (result["subtype"], result["is_error"], result["api_error_status"]) == ("success", True, status)
    assert "broken" in result["result"]


def test_sub_agent_failure_does_not_fail_the_lead(make_agent: Make) -> None:
    agent = make_agent(
        rule({"fail": {"status": 500}}, agent="general-purpose"), rule({"agent": {"prompt": "sub"}}, {"say": "pity"})
    )
    with agent.start() as process:
        assert process.say("go").until("result")["result"] == "pity"
        assert process.end() == 0
    assert ("member ended", "failed", "API Error: 500 rehearsed failure") in summary(process.events)


def test_refusal_is_retried_once(make_agent: Make) -> None:
    with make_agent(rule("refuse", {"say": "well then"}, turn=1), rule("refuse")).start() as process:
        first = process.say("go").until("result")
        second = process.say("again").until("result")
    assert (first["result"], first["safety_stops"], first["is_error"]) == ("well then", 1, False)
    assert (second["stop_reason"], second["safety_stops"], second["is_error"]) == ("refusal", 2, True)


def test_turn_limit_ends_with_error(make_agent: Make) -> None:
    tool = {"tool": {"name": "Bash"}}
    with make_agent(rule(tool, tool, tool, {"say": "never"})).start("--max-turns", "2") as process:
        result = process.say("go").until("result")
        assert process.end() == 1
    assert (result["subtype"], result["num_turns"]) == ("error_max_turns", 3)
    assert result["errors"] == ["Reached maximum number of turns (2)"]
    assert "result" not in result


def test_budget_limit_ends_with_error(make_agent: Make) -> None:
    with make_agent(rule({"cost": 0.3}, {"say": "hi"})).start("--max-budget-usd", "0.25") as process:
        result = process.say("go").until("result")
        assert process.end() == 1
    assert (result["subtype"], result["total_cost_usd"]) == ("error_max_budget_usd", 0.3)


def test_depth_of_sub_agents_is_limited(make_agent: Make) -> None:
    with make_agent(rule({"agent": {"prompt": "deeper"}}, {"say": "up"})).start() as process:
        assert process.say("go").until("result")["result"] == "up"
    assert max(event.get("spawn_depth", 0) for event in process.events) == 5


def test_uncovered_request_is_recorded(make_agent: Make) -> None:
    agent = make_agent(rule({"say": "hi"}, prompt="expected"))
    with agent.start() as process:
        process.say("unknown").until("result")
    assert [(lost.agent, lost.last) for lost in uncovered_in(agent.state)] == [("claude", "unknown")]


# --- sessions -----------------------------------------------------------------------------------------------


def test_session_is_resumed_with_history_and_costs(make_agent: Make) -> None:
    agent = make_agent(
        rule({"cost": 1}, {"say": "first"}, turn=1),
        rule({"cost": 2}, {"say": "second"}, turn=2),
        rule({"say": "third"}, turn=3),
    )
    old, new = str(uuid.uuid4()), str(uuid.uuid4())
    with agent.start("--session-id", old) as process:
        process.say("a").until("result")
        process.end()
    with agent.start("--resume", old, "--fork-session", "--session-id", new) as process:
        result = process.say("b").until("result")
        process.end()
    assert (result["session_id"], result["result"], result["total_cost_usd"]) == (new, "second", 3.0)
    assert result["model_usage_since_last_result"]["rehearsal"]["costUSD"] == 2.0
    with agent.start("--resume", old) as process:
        assert process.say("b").until("result")["session_id"] == old
        process.end()
    with agent.start("--resume", old) as process:
        assert process.say("c").until("result")["result"] == "third"


def test_used_session_id_is_refused(make_agent: Make) -> None:
    agent, session = make_agent(rule({"say": "hi"})), str(uuid.uuid4())
    assert run_once(agent, "--session-id", session).returncode == 0
    again = run_once(agent, "--session-id", session)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == f"Error: Session ID {session} is already in use.\n"


def test_unknown_session_cannot_be_resumed(make_agent: Make) -> None:
    agent, session = make_agent(rule({"say": "hi"})), str(uuid.uuid4())
    gone = run_once(agent, "--resume", session)
    assert gone.returncode == 1
    assert gone.stderr == f"No conversation found with session ID: {session}\n"
    with agent.start("--resume", session) as process:
        result = process.until("result")
        assert process.end() == 1
    assert result["errors"] == [f"No conversation found with session ID: {session}"]


def test_session_id_cannot_be_a_path(make_agent: Make, world: Path) -> None:
    agent = make_agent(rule({"say": "hi"}))
    (agent.state / "secret.json").write_text('{"messages": [], "used": {}}', encoding="utf-8")
    assert run_once(agent, "--resume", "../secret").returncode == 1


def test_parallel_processes_share_pass_counts(make_agent: Make) -> None:
    agents = json.dumps({name: {"description": "d", "prompt": "p"} for name in ("a", "b")})
    agent = make_agent(*[rule({"say": f"pass {n}"}, **{"pass": n}) for n in (1, 2, 3, 4)])
    names = ["a", "b", "a", "a", "b", "a"]
    processes = [agent.start("--agents", agents, "--agent", name) for name in names]
    said = sorted((name, _only(process)) for name, process in zip(names, processes, strict=True))
    assert said == [*[("a", f"pass {n}") for n in (1, 2, 3, 4)], ("b", "pass 1"), ("b", "pass 2")]


def _only(process: Process) -> str:
    with process:
        return str(process.say("go").until("result")["result"])


# --- the command line ---------------------------------------------------------------------------------------


def test_version_is_printed(make_agent: Make) -> None:
    version = run_once(make_agent(rule({"say": "hi"})), "--version")
    assert (version.returncode, version.stdout) == (0, "2.1.325 (Claude Code, rehearsal)\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nosuch",), "error: unknown option '--nosuch'"),
        (("--session-id", "abc"), "Error: Invalid session ID. Must be a valid UUID."),
        (("--permission-mode", "foo"), "argument 'foo' is invalid. Allowed choices are acceptEdits, auto"),
        (("--max-turns", "abc"), "error: option '--max-turns' argument 'abc' is invalid. must be a number"),
        (("--model",), "error: option '--model <value>' argument missing"),
        (("--output-format", "json"), "stream-json as input and output format"),
        (("--agents", "{bad"), "Error: Invalid --agents configuration:"),
        (("--agents", "/none.json"), "Error: --agents file not found: /none.json"),
        (("--resume", str(uuid.UUID(int=1)), "--session-id", str(uuid.UUID(int=2))), "--fork-session"),
    ],
)
def test_invalid_command_line_is_refused(make_agent: Make, arguments: tuple[str, ...], complaint: str) -> None:
    refused = run_once(make_agent(rule({"say": "hi"})), *arguments)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert complaint in refused.stderr
    assert "Traceback" not in refused.stderr


def test_all_options_of_launch_are_accepted(make_agent: Make, world: Path) -> None:
    definitions = world / "agents.json"
    body = {"description": "d", "prompt": "You review.", "model": "opus", "tools": ["Read"]}
    definitions.write_text(json.dumps({"rev": body}), encoding="utf-8")
    agent = make_agent(rule({"say": "mine"}, "marker", agent="rev", system="You review."))
    with agent.start(
        "--session-id", str(uuid.uuid4()), "--permission-mode", "acceptEdits", "--permission-prompts", "none",
        "--setting-sources", "user", "--strict-mcp-config", "--append-system-prompt",
        "Say it on a line of its own:\n\nALL DONE", "--tools", "Bash,Read", "--allowedTools", "Bash(a *)", "Read",
        "--disallowedTools", "Write", "--mcp-config", "{}", "--settings", "{}", "--max-turns=5",
        "--agents", str(definitions), "--agent", "rev",
    ) as process:  # fmt: skip
        assert process.say("go").until("result")["result"] == "mine\nALL DONE"
    assert process.events[0]["model"] == "opus"


def test_unknown_lead_agent_is_ignored(make_agent: Make) -> None:
    with make_agent(rule({"say": "hi"}, agent="claude")).start("--agent", "nosuch") as process:
        assert process.say("go").until("result")["result"] == "hi"


def test_invalid_json_line_ends_agent(make_agent: Make) -> None:
    agent = make_agent(rule({"say": "hi"}))
    command = [str(agent.program), *STREAMS]
    broken = subprocess.run(command, input=b"not json\n", capture_output=True, timeout=PATIENCE, check=False)
    assert broken.returncode == 1
    assert b"Error parsing streaming input line" in broken.stderr


def test_unknown_control_request_is_an_error(make_agent: Make) -> None:
    with make_agent(rule({"say": "hi"})).start() as process:
        process.send([]).send({"type": "nonsense"}).send({"type": "user"})
        process.send({"type": "control_request", "request_id": "r", "request": {"subtype": "dance"}})
        assert process.until("control_response")["response"]["subtype"] == "error"


def test_program_works_in_folder_with_odd_name(world: Path) -> None:
    odd = world / 'it\'s a $(folder) with "quotes"'
    odd.mkdir()
    agent = Agent(odd, {"rules": [rule({"say": "hi"}, prompt="$HOME `x` 'y'  \\n")]})
    result = json.loads(run_once(agent, prompt="$HOME `x` 'y'  \\n").stdout.splitlines()[-1])
    assert result["result"] == "hi"


def test_no_file_appears_in_the_home_directory(make_agent: Make, world: Path) -> None:
    before = sorted((world / "user").rglob("*"))
    run_once(make_agent(rule({"say": "hi"})))
    assert sorted((world / "user").rglob("*")) == before


def test_start_takes_under_80_ms_of_cpu(make_agent: Make) -> None:
    agent = make_agent(rule({"say": "hi"}))
    run_once(agent, "--version")

    def taken() -> float:
        """Processor seconds, which do not depend on other load."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_once(agent, "--version")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(taken() for _ in range(10)) < 0.08
