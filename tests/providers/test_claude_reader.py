"""Output of the Claude CLI, read line by line into events."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from providers.streams.recorded import (
    SESSION_ID,
    Exit,
    assistant,
    delta,
    init,
    line,
    of_type,
    part,
    read_all,
    result,
    said_by,
    spec,
    system,
    text,
    texts,
    tool_result,
)

from hocket.model import RESULT_LIMIT
from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.reader import reader
from hocket.providers.claude.verdict import verdict

LOOP = spec(loop=True)
SUB: dict[str, Any] = {"parent": "tool1", "subagent_type": "helper"}
BY_SUB = {"parent": "tool1", "agent": "helper"}


def only(said: list[ReaderEvent], kind: str) -> dict[str, Any]:
    found = of_type(said, kind)
    assert len(found) == 1, said
    return found[0]


def tool(name: str = "Bash", identity: str = "tool1", **given_to_it: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": given_to_it}


# --- The session and its turns ---


@pytest.mark.req("S3-23", "S3-25", "S3-33")
def test_session_is_reported_once_by_first_line() -> None:
    first = init(tools=["Bash", 3], claude_code_version="2.1", permissionMode="plan")
    said = said_by([first, result(), init(), result()])
    assert only(said, "session") == {
        "session_id": SESSION_ID,
        "transcript": f"/h/.claude/projects/-p/session_{SESSION_ID}.jsonl",
        "model": "m",
        "cwd": "/p",
        "version": "2.1",
        "permission_mode": "plan",
        "tools": ["Bash"],
    }
    assert [data["turn"] for data in of_type(said, "turn.started")] == [1, 2]


@pytest.mark.req("S3-23")
@pytest.mark.parametrize("first", [delta("x\n"), assistant(text("x")), result("x")], ids=["part", "whole", "result"])
def test_session_is_reported_without_first_line(first: bytes) -> None:
    said = said_by([first, init()])
    assert only(said, "session")["session_id"] == SESSION_ID
    assert [kind for kind, _data in said][:2] == ["session", "turn.started"]


def test_turn_starts_once_with_any_first_line() -> None:
    assert len(of_type(said_by([init(), init(), delta("x"), assistant(text("x"))]), "turn.started")) == 1


def test_message_end_after_result_opens_no_turn() -> None:
    state, said = read_all([init(), result(), part("message_delta", delta={}), part("message_stop")])
    assert not state["open"]
    assert len(of_type(said, "turn.started")) == 1


@pytest.mark.req("S2-58")
def test_result_of_turn_is_final_text() -> None:
    lines = [init(), assistant(text("first"), tool(command="ls")), tool_result("tool1", "out"), assistant(text("last"))]
    end = only(said_by([*lines, result("last", num_turns=2, duration_ms=7)]), "turn.ended")
    assert end == {
        "turn": 1,
        "result": "last",
        "is_error": False,
        "subtype": "success",
        "error": None,
        "idle": False,
        "duration_ms": 7,
        "num_turns": 2,
        "denials": [],
        "origin": None,
    }


@pytest.mark.req("S2-67")
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"content": "API Error: 500"}, "API Error: 500"),
        ({"content": None, "errors": ["one", 2, "three"]}, "one; three"),
        ({"content": None, "subtype": "error_max_turns"}, "error_max_turns"),
        ({"content": None, "subtype": ""}, "the turn ended with an error"),
    ],
)
def test_error_of_turn_is_named(fields: dict[str, Any], error: str) -> None:
    end = only(said_by([init(), result(is_error=True, **fields)]), "turn.ended")
    assert (end["is_error"], end["error"]) == (True, error)


def test_turn_end_has_origin_and_denials() -> None:
    denied = [{"tool_name": "Bash", "tool_use_id": "t", "tool_input": {}}, 7]
    end = only(said_by([result(origin={"kind": "task-notification"}, permission_denials=denied)]), "turn.ended")
    assert end["origin"] == "task-notification"
    assert end["denials"] == [{"tool": "Bash", "id": "t"}, {"tool": None, "id": None}]


@pytest.mark.parametrize(
    ("session", "kinds", "idle"),
    [(True, [], True), (False, [], False), (True, ["local_agent"], False), (True, ["local_bash"], True)],
)
def test_session_with_background_agent_is_not_idle(session: bool, kinds: list[str], idle: bool) -> None:
    tasks = [{"task_id": kind, "task_type": kind} for kind in kinds]
    said = said_by([init(), system("background_tasks_changed", tasks=tasks), result()], spec(session=session))
    assert only(said, "turn.ended")["idle"] is idle


def test_long_result_is_cut_and_marked() -> None:
    end = only(said_by([result("é" * RESULT_LIMIT)]), "turn.ended")
    assert (len(end["result"].encode()), end["oversize"], end["bytes"]) == (RESULT_LIMIT, True, 2 * RESULT_LIMIT)


# --- Texts ---


@pytest.mark.req("S3-39", "S3-40")
def test_parts_become_lines_and_message_adds_rest() -> None:
    state, said = read_all([delta("one"), delta(" line\ntwo")])
    assert texts(said) == ["one line"]
    _state, more = read_all([assistant(text("one line\ntwo\nthree"))], state=state)
    assert texts(more) == ["two\nthree"]


@pytest.mark.req("S3-40")
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([delta("a\nb\n"), assistant(text("a\nb\n"))], ["a\nb"], id="all said"),
        pytest.param([delta("a\nb"), assistant(text("a\nb"))], ["a", "b"], id="rest"),
        pytest.param([assistant(text("a\nb"))], ["a\nb"], id="no parts"),
        pytest.param([delta("a x"), assistant(text("a b"))], ["a b"], id="parts differ, nothing said"),
        pytest.param([delta("a\nx"), assistant(text("a\nb"))], ["a", "b"], id="parts differ in the last line"),
        pytest.param([delta("x\n"), assistant(text("a\nb"))], ["x", "a\nb"], id="parts differ in what was said"),
        pytest.param([delta("a\nb\nc\n"), assistant(text("a"))], ["a\nb\nc", "a"], id="whole is shorter"),
        pytest.param([delta("a\n"), delta("c"), assistant(text("a\nb c"))], ["a", "b c"], id="a part is lost"),
        pytest.param([delta("a", message="other"), assistant(text("b"))], ["b"], id="another message"),
        pytest.param([delta("a\n"), assistant(text("a\n")), delta("a\n")], ["a"], id="late part"),
        pytest.param(
            [delta("a", index=0), assistant(text("a")), delta("b", index=1), assistant(text("b"))],
            ["a", "b"],
            id="two blocks",
        ),
        pytest.param(
            [assistant({"type": "thinking", "thinking": ""}), delta("b", index=1), assistant(text("b"))],
            ["b"],
            id="second block",
        ),
        pytest.param([delta("b", index=3), assistant(text("b"))], ["b"], id="number lost"),
        pytest.param(
            [delta("a", index=0), delta("b\n", index=1), assistant(text("a")), assistant(text("b\nc"))],
            ["b", "a", "c"],
            id="blocks mixed",
        ),
        pytest.param([delta("a"), part("content_block_stop", index=0), assistant(text("a"))], ["a"], id="stop first"),
        pytest.param([delta("a"), part("message_start", message={"id": "m2"})], ["a"], id="next message"),
        pytest.param([delta("a"), result("a")], ["a"], id="result"),
        pytest.param([delta("\n"), delta("\n"), delta("a\n")], ["", "", "a"], id="empty lines"),
        pytest.param([assistant(text(""))], [], id="nothing"),
    ],
)
def test_text_is_emitted_once_and_completely(lines: list[bytes], expected: list[str]) -> None:
    assert texts(said_by(lines)) == expected


@pytest.mark.req("S3-39", "S3-40")
@settings(max_examples=100)
@given(st.data())
def test_lines_are_emitted_once_for_any_parts(data: st.DataObject) -> None:
    whole = data.draw(st.text(alphabet="ab\n\r \té😀", max_size=60))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in pairwise([0, *cuts])]
    said = said_by([*(delta(piece) for piece in pieces), assistant(text(whole)), result(whole)])
    assert "\n".join(texts(said)) == whole.removesuffix("\n")


def test_messages_of_two_agents_at_once_stay_apart() -> None:
    lines = [delta("main "), delta("sub ", parent="tool1"), delta("says\n"), delta("too\n", parent="tool1")]
    said = of_type(said_by(lines), "text")
    assert said == [{"text": "main says"}, {"text": "sub too", "parent": "tool1", "agent": None}]


def test_parts_without_message_id_belong_to_started_message() -> None:
    lines = [part("message_start", message={"id": "m1"}), delta("a\n", message=None), delta("b", message=None)]
    assert texts(said_by([*lines, assistant(text("a\nb"))])) == ["a", "b"]


def test_parts_in_unusual_json_form_are_read() -> None:
    spelled = json.dumps(json.loads(delta("a\n")), indent=None, separators=(" , ", " : "), sort_keys=True).encode()
    assert texts(said_by([spelled])) == ["a"]


def test_endless_line_is_emitted_in_pieces() -> None:
    lines = [delta("x" * 10_000) for _ in range(20)]
    state, said = read_all(lines)
    assert len(json.dumps(state)) < RESULT_LIMIT + 1000
    _state, more = read_all([assistant(text("x" * 200_000))], state=state)
    assert "".join(texts([*said, *more])) == "x" * 200_000


@pytest.mark.req("S3-40")
def test_subagent_message_is_marked() -> None:
    assert only(said_by([assistant(text("a\nb"), **SUB)]), "text") == {"text": "a\nb", **BY_SUB}


FORWARDED = [
    assistant(text("DONE"), message="s1", **SUB),
    assistant({"type": "thinking", "thinking": "hm"}, message="s1", **SUB),
    assistant(text("```\nDONE\n```"), text("DONE"), message="s2", **SUB),
    assistant(text("API Error: 529 DONE"), model="<synthetic>", error="overloaded", **SUB),
    line("user", message={"content": [text("DONE")]}, parent_tool_use_id="tool1", subagent_type="helper"),
]
"""What the CLI forwards of a sub-agent."""
OF_THE_RUN = [
    init(),
    part("message_start", message={"id": "m1", "usage": {"input_tokens": 7}}),
    delta("one\n```\ntw"),
    delta("o\n"),
    assistant(text("one\n```\ntwo\n")),
    assistant(tool(command="ls")),
    tool_result("tool1", "seen\nDONE"),
    assistant(text("last"), message="m2"),
    result("last", num_turns=2, total_cost_usd=0.5, modelUsage={"m": {"inputTokens": 20}}),
]


@pytest.mark.req("S3-38", "S3-39", "S1-44")
@pytest.mark.parametrize("at", range(len(OF_THE_RUN) + 1))
def test_forwarded_text_changes_nothing_of_the_run(at: int) -> None:
    """Wherever it arrives: no marker, result, turn, cost or verdict comes of it, also after the result."""
    alone, expected = read_all(OF_THE_RUN, LOOP)
    state, said = read_all([*OF_THE_RUN[:at], *FORWARDED, *OF_THE_RUN[at:]], LOOP)
    assert [(kind, data) for kind, data in said if kind not in ("session", "raw") and "parent" not in data] == [
        (kind, data) for kind, data in expected if kind != "session"
    ]
    assert [kind for kind, data in said if "parent" in data] == ["text", "thinking", "text", "text", "notice"]
    assert {**state, "told": {}} == {**alone, "told": {}}
    assert verdict(state, Exit(0), None) == verdict(alone, Exit(0), None)


def test_long_text_is_cut_and_marked() -> None:
    said = only(said_by([assistant(text("x" * 100_000))]), "text")
    assert (len(said["text"]), said["oversize"], said["bytes"]) == (RESULT_LIMIT, True, 100_000)


def test_thinking_is_whole_and_never_empty() -> None:
    thought = {"type": "thinking", "thinking": "hm\nso"}
    thinking = part("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    said = said_by([thinking, assistant(thought), assistant({**thought, "thinking": ""})])
    assert only(said, "thinking") == {"text": "hm\nso"}


def test_synthetic_message_is_a_notice() -> None:
    said = said_by([init(), assistant(text("API Error: DONE\nDONE"), model="<synthetic>", error="server_error")], LOOP)
    assert only(said, "notice")["kind"] == "api_error"
    assert not of_type(said, "text", "marker")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"error": "unknown"}, "api_error"), ({"is_api_error_message": True}, "api_error"), ({}, "info")],
)
def test_only_api_errors_are_api_error_notices(fields: dict[str, Any], kind: str) -> None:
    said = said_by([init(), assistant(text("/help isn't available here."), model="<synthetic>", **fields)])
    assert only(said, "notice")["kind"] == kind


def test_half_characters_become_replacement_characters() -> None:
    raw = assistant(text("ab")).replace(b"ab", rb"a\ud83d b \ud83d\ude00 \\ud83d" + b"\xff")
    assert texts(said_by([raw])) == ["a\ufffd b \U0001f600 \\ud83d\ufffd"]


# --- The marker ---


@pytest.mark.req("S1-40", "S1-41", "S1-44")
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([delta("DO"), delta("NE\n")], id="across parts"),
        pytest.param([delta("all\nDO"), assistant(text("all\nDONE"))], id="in the rest"),
        pytest.param([assistant(text("ok\n`DONE`\nbye"))], id="in a whole message"),
        pytest.param([delta("DONE"), result("DONE")], id="kept back until the result"),
        pytest.param([result("DONE")], id="in a result that was never said"),
        pytest.param([assistant(text("on it")), result("on it\nDONE")], id="in a result that says more"),
        pytest.param([assistant(text("on it\nDONE")), result("on it\nDONE")], id="in a result, and not once more"),
        pytest.param([assistant(text("x" * RESULT_LIMIT + "\nDONE"))], id="behind what an event keeps"),
        pytest.param([delta("DONE\n"), delta("DONE\n"), assistant(text("DONE"), message="m2")], id="only once"),
    ],
)
def test_marker_line_is_found(lines: list[bytes]) -> None:
    assert "DONE" in only(said_by([init(), *lines], LOOP), "marker")["line"]


@pytest.mark.req("S1-44")
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([assistant(text("not DONE yet"))], id="inside a line"),
        pytest.param([tool_result("t", "DONE")], id="tool result"),
        pytest.param([assistant(text("DONE"), **SUB)], id="sub-agent"),
        pytest.param([delta("DONE\n", parent="tool1")], id="parts of a sub-agent"),
        pytest.param([line("user", message={"content": [text("DONE")]})], id="echoed prompt"),
        pytest.param([assistant({"type": "thinking", "thinking": "DONE"})], id="thought"),
        pytest.param([result("DONE", is_error=True)], id="error"),
        pytest.param([b"DONE\n"], id="not JSON"),
        pytest.param([delta("x" * 70_000), delta("DONE\n")], id="end of an endless line"),
        pytest.param([assistant(tool(command="DONE"))], id="tool input"),
    ],
)
def test_marker_outside_text_lines_is_ignored(lines: list[bytes]) -> None:
    assert not of_type(said_by([init(), *lines], LOOP), "marker")


@pytest.mark.req("S1-44")
def test_no_marker_outside_loop() -> None:
    assert not of_type(said_by([assistant(text("DONE"))]), "marker")


# --- Tools ---


def test_tool_has_a_start_and_an_end() -> None:
    said = said_by([assistant(tool(command="ls")), tool_result("tool1", "a\nb", is_error=True)])
    assert only(said, "tool.started") == {"id": "tool1", "name": "Bash", "input": {"command": "ls"}}
    assert only(said, "tool.finished") == {"id": "tool1", "name": "Bash", "error": True, "text": "a\nb"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([text("a"), {"type": "image", "source": {}}, text("b"), 7], "a\n[image]\nb"),
        (None, ""),
        (7, ""),
        ([{}], "[unknown]"),
    ],
)
def test_tool_result_is_text(content: Any, expected: str) -> None:
    assert only(said_by([tool_result("t", content)]), "tool.finished")["text"] == expected


def test_long_inputs_and_outputs_are_cut_and_marked() -> None:
    said = said_by([assistant(tool("Write", content="x" * 70_000)), tool_result("tool1", "y" * 20_000)])
    started, finished = only(said, "tool.started"), only(said, "tool.finished")
    assert started["input"] is None
    assert len(started["input_text"]) == RESULT_LIMIT
    assert (started["oversize"], finished["oversize"], finished["bytes"]) == (True, True, 20_000)
    assert len(finished["text"]) == 16 * 1024


def test_subagent_tools_are_marked_by_task() -> None:
    started = system("task_started", task_id="a1", tool_use_id="tool1", subagent_type="helper", description="look")
    back = json.loads(tool_result("t2", "x")) | {"parent_tool_use_id": "tool1"}
    assert only(said_by([started, json.dumps(back).encode()]), "tool.finished")["agent"] == "helper"


# --- Members ---


def test_member_events_follow_a_subagent() -> None:
    about = {"task_id": "a1", "tool_use_id": "tool1"}
    said = said_by(
        [
            system("task_started", **about, subagent_type="helper", description="look", is_backgrounded=True),
            system("task_progress", **about, description="Running"),
            system("task_updated", task_id="a1", patch={"status": "running"}),
            system("task_notification", **about, status="failed", summary="gave up"),
        ]
    )
    of = {"id": "a1", "tool": "tool1", "background": True, **BY_SUB}
    assert of_type(said, "member") == [
        {**of, "status": "started", "text": "look"},
        {**of, "status": "running", "text": "Running"},
        {**of, "status": "failed", "text": "gave up"},
    ]


def test_background_command_is_not_a_member() -> None:
    said = said_by([system("task_started", task_id="b1", task_type="local_bash", is_backgrounded=True)])
    assert only(said, "notice")["kind"] == "background"
    assert not of_type(said, "member")


@pytest.mark.parametrize("listed", [True, False])
def test_background_agents_are_counted_without_list(listed: bool) -> None:
    began = system("task_started", task_id="a1", is_backgrounded=True, subagent_type="helper")
    changed = system("background_tasks_changed", tasks=[{"task_id": "a1", "subagent_type": "helper"}])
    ended = system("task_notification", task_id="a1", status="completed")
    state, _said = read_all([*([changed] if listed else []), began])
    assert state["tasks"] == {"a1": False}
    state, _said = read_all([ended], state=state)
    assert state["tasks"] == {}


# --- Questions ---


def request(tool_name: str, identity: str = "q1", **fields: Any) -> bytes:
    return line(
        "control_request", request_id=identity, request={"subtype": "can_use_tool", "tool_name": tool_name, **fields}
    )


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (request("Bash", input={"command": "touch x"}), "Bash wants to run: touch x"),
        (request("Write", input={"file_path": "/a"}), "Write wants to write: /a"),
        (request("mcp__a__b", display_name="Browser", description="open"), "Browser wants to be used: open"),
        (request("Odd", input=[1]), "Odd wants to be used."),
    ],
)
def test_question_text_is_a_sentence(asked: bytes, sentence: str) -> None:
    question = only(said_by([asked]), "question")
    assert (question["text"], question["kind"], question["id"]) == (sentence, "permission", "q1")


def test_question_contains_what_its_answer_needs() -> None:
    rule = {"type": "setMode", "mode": "acceptEdits"}
    asked = request("Bash", input={"command": "ls"}, permission_suggestions=[rule], tool_use_id="t")
    state, said = read_all([asked])
    question = only(said, "question")
    assert (question["tool"], question["input"], question["suggestions"]) == ("Bash", {"command": "ls"}, [rule])
    assert state["asked"] == {"q1": "t"}


def test_choice_shows_its_options() -> None:
    questions = [{"question": "Which?", "options": [{"label": "Red"}, {"label": "Blue"}]}, {"question": "Why?"}, 3]
    question = only(said_by([request("AskUserQuestion", input={"questions": questions})]), "question")
    assert (question["kind"], question["text"]) == ("choice", "Which? (1 Red, 2 Blue)\nWhy?")


def test_question_names_its_subagent() -> None:
    started = system("task_started", task_id="a1", tool_use_id="tool1", subagent_type="helper")
    question = only(said_by([started, request("Bash", agent_id="a1")]), "question")
    assert {key: question[key] for key in ("parent", "agent")} == BY_SUB


@pytest.mark.parametrize(
    "after",
    [tool_result("t", "x"), line("control_cancel_request", request_id="q1"), result()],
    ids=["used", "withdrawn", "turn over"],
)
def test_question_is_open_until_tool_ends(after: bytes) -> None:
    state, _said = read_all([init(), request("Bash", tool_use_id="t")])
    assert state["asked"]
    assert not read_all([after], state=state)[0]["asked"]


def test_withdrawn_question_is_answered_by_agent() -> None:
    said = said_by([request("Bash"), line("control_cancel_request", request_id="q1")])
    assert only(said, "answer") == {"id": "q1", "allow": False, "text": "withdrawn", "by": "agent"}


def test_other_requests_are_raw() -> None:
    other = line("control_request", request_id="r", request={"subtype": "hook_callback"})
    assert only(said_by([other]), "raw")["type"] == "control_request"


# --- Usage ---


def spent(total: float, tokens: int, *, since: float | None = None, since_tokens: int = 0, **more: Any) -> bytes:
    def models(cost: float, count: int) -> dict[str, Any]:
        return {"m": {"inputTokens": count, "costUSD": cost, "costBasis": "list"}}

    fields: dict[str, Any] = {"total_cost_usd": total, "modelUsage": models(total, tokens), **more}
    if since is not None:
        fields["model_usage_since_last_result"] = models(since, since_tokens)
    return result(**fields)


def test_result_reports_usage() -> None:
    usage = only(said_by([spent(0.3, 100, since=0.3, since_tokens=100)]), "usage")
    assert usage == {"cost_usd": 0.3, "tokens": 100, "cost_basis": "list", "estimate": False}


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "-Infinity", "-3", "1e400", '"2.50"', "null", "[1]"])
def test_missing_cost_is_unknown(cost: str) -> None:
    odd = result("fine", total_cost_usd="@").replace(b'"@"', cost.encode())
    said = said_by([odd])
    assert only(said, "usage")["cost_usd"] is None
    assert only(said, "turn.ended")["result"] == "fine"


def test_negative_token_counts_are_ignored() -> None:
    usage = {"a": {"inputTokens": 10, "outputTokens": -4}, "b": {"inputTokens": -100}}
    assert only(said_by([result("fine", modelUsage=usage)]), "usage")["tokens"] == 10


def test_resumed_session_has_cost_since_resume() -> None:
    lines = [spent(1.1, 500, since=0.1, since_tokens=50), spent(1.3, 700, since=0.2, since_tokens=200)]
    usage = of_type(said_by(lines), "usage")
    assert [(data["cost_usd"], data["tokens"]) for data in usage] == [(0.1, 50), (0.3, 250)]


def test_session_without_past_usage_counts_from_zero() -> None:
    usage = of_type(said_by([spent(0.1, 10), spent(0.3, 30)]), "usage")
    assert [(data["cost_usd"], data["tokens"]) for data in usage] == [(0.1, 10), (0.3, 30)]


def test_missing_usage_never_hides_known_usage() -> None:
    assert only(said_by([result()]), "usage") == {
        "cost_usd": None,
        "tokens": None,
        "cost_basis": None,
        "estimate": False,
    }
    later = of_type(said_by([spent(0.1, 10), result()]), "usage")[1]
    assert not {"cost_usd", "tokens"} & later.keys()


def test_differing_cost_bases_give_none() -> None:
    models = {"a": {"costBasis": "list"}, "b": {"costBasis": "custom"}, "c": 7}
    assert only(said_by([result(modelUsage=models)]), "usage")["cost_basis"] is None


def test_tokens_are_estimated_between_results() -> None:
    message = {"id": "m1", "usage": {"input_tokens": 5, "cache_read_input_tokens": 10}}
    ended = part("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7})
    begun = part("message_start", message=message)
    usage = of_type(said_by([begun, ended, begun, ended, spent(0.1, 50), begun, ended]), "usage")
    assert [data["tokens"] for data in usage] == [22, 44, 50, 72]
    assert [data["estimate"] for data in usage] == [True, True, False, True]
    assert "cost_usd" not in usage[0]


# --- Notices and limits ---


@pytest.mark.parametrize(
    ("news", "kind"),
    [
        (system("api_retry", attempt=1, error="server_error"), "retry"),
        (system("api_retry"), "retry"),
        (system("compact_boundary", compact_metadata={"pre_tokens": 7}), "compaction"),
        (system("status", status="compacting"), "compaction"),
        (system("permission_denied", tool_name="Bash", decision_reason="no"), "permission_denied"),
        (system("informational", content="so"), "info"),
        (system("model_refusal_fallback", content="no"), "refusal"),
        (system("hook_response", exit_code=2, hook_name="Stop", stderr="bad"), "hook"),
        (system("hook_response", outcome="error"), "hook"),
        (part("message_delta", delta={"stop_reason": "refusal"}), "refusal"),
    ],
)
def test_informational_lines_are_notices(news: bytes, kind: str) -> None:
    assert only(said_by([news]), "notice")["kind"] == kind


@pytest.mark.parametrize(
    "news",
    [
        system("status", status="requesting"),
        system("thinking_tokens", estimated_tokens=4),
        line("tool_progress", tool_use_id="t"),
        line("control_response", response={}),
        line("rate_limit_event", rate_limit_info={"status": "allowed"}),
        system("background_tasks_changed", tasks=[]),
    ],
)
def test_frequent_lines_cause_no_events(news: bytes) -> None:
    assert said_by([news]) == []


def test_usage_limit_has_its_reset_time() -> None:
    info = {"status": "rejected", "resetsAt": 1800000000, "rateLimitType": "five_hour"}
    assert only(said_by([line("rate_limit_event", rate_limit_info=info)]), "rate_limited") == {
        "status": "rejected",
        "resets_at": 1800000000,
        "text": "usage limit: rejected (five_hour)",
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (1800000000, 1800000000),
        (1800000000000, 1800000000),
        (1800000000.5, 1800000000.5),
        (0, None),
        (-5, None),
        ("x", None),
    ],
)
def test_reset_time_is_in_seconds(written: Any, meant: float | None) -> None:
    said = said_by([line("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": written})])
    assert only(said, "rate_limited")["resets_at"] == meant


def test_usage_limit_in_error_has_reset_time() -> None:
    said = said_by([init(), result("Claude AI usage limit reached|1800000000", is_error=True)])
    limited = only(said, "rate_limited")
    assert (limited["status"], limited["resets_at"]) == ("rejected", 1800000000)
    assert of_type(said_by([init(), result("usage limit reached|soon", is_error=True)]), "rate_limited") == []


@pytest.mark.parametrize(
    ("text_of_cli", "shown"),
    [
        (
            "API Error: Connection refused — a firewall or proxy may be blocking it (ECONNREFUSED)",
            "cannot connect to the model's service at https://models.example: connection refused (ECONNREFUSED)",
        ),
        (
            "API Error: Can't reach the API server — check your internet or DNS (ENOTFOUND)",
            "cannot connect to the model's service at https://models.example: its host name is unknown (ENOTFOUND)",
        ),
        (
            "API Error: Unable to connect to API (ConnectionRefused)",
            "cannot connect to the model's service at https://models.example: connection refused (ConnectionRefused)",
        ),
        ("API Error: Connection dropped (ECONNRESET)", "API Error: Connection dropped (ECONNRESET)"),
        ("API Error: 500 the database said (ECONNREFUSED)", "API Error: 500 the database said (ECONNREFUSED)"),
    ],
)
def test_failed_connection_names_the_service(text_of_cli: str, shown: str) -> None:
    lines = [
        init(),
        assistant(text(text_of_cli), model="<synthetic>", error="server_error", is_error=True),
        result(text_of_cli, is_error=True),
    ]
    said = said_by(lines, replace(spec(), env={"ANTHROPIC_BASE_URL": "https://models.example"}))
    assert only(said, "notice")["text"] == shown
    ended = only(said, "turn.ended")
    assert (ended["error"], ended["result"]) == (shown, shown)
    unnamed = only(said_by(lines), "turn.ended")["error"]
    assert unnamed == shown.replace(" at https://models.example", "")


def test_retry_without_response_names_the_service() -> None:
    said = said_by([system("api_retry", attempt=1, error="unknown", error_status=None)])
    assert only(said, "notice")["text"] == "no response from the model's service; trying again"
    said = said_by([system("api_retry", attempt=1, error="server_error", error_status=500)])
    assert only(said, "notice")["text"] == "the model answered with an error (server_error); trying again"


def test_retry_for_usage_limit_is_rate_limited() -> None:
    said = said_by([system("api_retry", attempt=2, error="rate_limit", retry_delay_ms=1000)])
    limited = only(said, "rate_limited")
    assert (limited["status"], limited["attempt"], limited["delay_ms"]) == ("retrying", 2, 1000)


# --- Unknown lines ---


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (b"Not logged in", None),
        (b"", None),
        (b"[1, 2]", None),
        (b"null", None),
        (b'{"type":"assistant","message"', None),
        (b'{"type":"stream_event","event":{"type":"content_block_de', None),
        (b"\xff\xfe\x00", None),
        (b"[" * 100_000, None),
        (b'{"a":' * 50_000, None),
        (b"{}", None),
        (b'{"type":7}', None),
        (line("something_new"), "something_new"),
        (system("something_new"), "system"),
        (system("hook_started"), "system"),
        (system("hook_response", exit_code=0), "system"),
        (line("assistant", message=7), "assistant"),
        (line("assistant", message={"content": "text"}), "assistant"),
        (line("user", message={"content": "echo"}), "user"),
        (line("stream_event", event=3), "stream_event"),
        (line("control_request"), "control_request"),
        (line("control_cancel_request", request_id=3), "control_cancel_request"),
        (system("task_started"), "system"),
        (system("background_tasks_changed"), "system"),
        (line("rate_limit_event"), "rate_limit_event"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_unknown_line_is_raw_and_changes_nothing(odd: bytes, kind: str | None) -> None:
    before, _said = read_all([init()])
    state, said = read_all([odd], state=before)
    raw = only(said, "raw")
    assert raw["stream"] == "stdout"
    assert raw["text"] == odd[:RESULT_LIMIT].decode("utf-8", "replace")
    assert raw.get("type") == kind
    assert state == before


@pytest.mark.req("S5-04")
def test_unknown_block_is_raw_beside_known_ones() -> None:
    said = said_by([assistant(text("a"), {"type": "hologram"}, 7)])
    assert [kind for kind, _data in said][-3:] == ["text", "raw", "raw"]


def test_standard_error_is_raw() -> None:
    state, said = reader(spec())({"a": 1}, "err", b"warning\n", None)
    assert (state, said) == ({"a": 1}, [("raw", {"stream": "stderr", "text": "warning"})])


@pytest.mark.parametrize(
    ("stream", "complaint", "expected"),
    [
        ("err", b"error: unknown option '--forward-subagent-text'\n", True),
        ("err", b"error: unknown option '--permission-prompts'\n", True),
        ("err", b"invalid JSON: JSON Parse error: Unrecognized token '/'\n", True),
        ("err", b"Error: Invalid --agents configuration:\n", False),
        ("err", b"error: unknown option '--bogus'\n", False),
        ("out", b"error: unknown option '--permission-prompts'\n", False),
    ],
    ids=["2.1.197", "2.1.258", "2.1.280", "a bad definition", "another program's option", "output"],
)
def test_outdated_cli_gives_a_notice(stream: str, complaint: bytes, expected: bool) -> None:
    _state, said = reader(spec())({}, stream, complaint, None)
    assert said[0][0] == "raw"
    assert [data["kind"] for data in of_type(said, "notice")] == (["cli"] if expected else [])
    assert all("hocket doctor" in data["text"] for data in of_type(said, "notice"))


def test_oversize_line_is_raw_with_size() -> None:
    beginning = assistant(text("x"))
    _state, said = reader(spec())({}, "out", beginning, 20_000_000)
    raw = only(said, "raw")
    assert (raw["oversize"], raw["bytes"]) == (True, 20_000_000)


def test_line_is_read_without_line_end() -> None:
    whole = assistant(text("x")) + b"\r\n"
    for each in (whole, whole[:-1], whole[:-2]):
        assert texts(reader(spec())({}, "out", each, None)[1]) == ["x"]


# --- Size and speed ---


def test_state_of_long_run_stays_small() -> None:
    state: State = {}
    for number in range(150):
        task = {"task_id": f"a{number}", "tool_use_id": f"tool{number}", "subagent_type": "helper"}
        name = f"m{number}"
        lines = [
            delta("kept back", message=name),
            delta("of a sub-agent", message=name, parent=f"tool{number}"),
            assistant(tool(identity=f"tool{number}"), message=name),
            system("task_started", **task),
        ]
        state, _ = read_all(lines, state=state)
    assert len(json.dumps(state)) < 64 * 1024


# --- Messages from other sessions ---

ADDRESS = "uds:/tmp/cc-socks/7.sock"


def echo(**origin: Any) -> bytes:
    """An echo of the input."""
    message = {"role": "user", "content": "<cross-session-message>hi</cross-session-message>"}
    more = {"origin": origin} if origin else {}
    return line("user", message=message, uuid="u1", isReplay=True, **more)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({"body": "hi", "msg_id": "m1"}, {"id": "m1", "text": "hi"}),
        ({"members": [{"body": "one"}, {"body": "two"}]}, {"id": "u1", "text": "one\ntwo"}),
        ({}, {"id": "u1", "text": "<cross-session-message>hi</cross-session-message>"}),
    ],
)
def test_message_from_other_session_is_input(origin: dict[str, Any], expected: dict[str, Any]) -> None:
    said = said_by([init(), echo(kind="peer", name="shop", verifiedPeerPid=7, **{"from": ADDRESS}, **origin)])
    sender = {"name": "shop", "address": ADDRESS, "pid": 7}
    assert only(said, "input") == {"kind": "session_message", **expected, "sender": sender}


def test_echo_from_inside_the_run_causes_no_event() -> None:
    helper = echo(kind="peer", name="alice", senderTaskId="t1", body="hi")
    said = said_by([init(), echo(), helper, echo(kind="task-notification"), line("command_lifecycle", state="started")])
    assert not {"input", "raw"} & {kind for kind, _ in said}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"state": "held", "cause": "explicit-setting", "from_name": "shop"}, "from session shop was held (explicit"),
        ({"state": "dropped", "outcome": "expired"}, f"from session {ADDRESS} was dropped (expired)"),
    ],
)
def test_held_message_is_a_notice(more: dict[str, Any], words: str) -> None:
    notice = only(said_by([init(), system("peer_message_hold", **{"from": ADDRESS}, **more)]), "notice")
    assert (notice["kind"], notice["state"], notice["sender"]["address"]) == ("session_message", more["state"], ADDRESS)
    assert words in notice["text"]
