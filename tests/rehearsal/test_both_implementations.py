"""The scripted agent, and the real CLI with the scripted model, give the same events for the same script."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rehearsal.processes import ASKING, Process, blocks, run_process, summary

IMPLEMENTATIONS = ("agent", "model")

TOOL = {"tool": {"name": "Bash", "input": {"command": "echo hi", "description": "say hi"}, "result": "hi"}}
ASK = {
    "ask": {
        "tool": "Bash",
        "input": {"command": "touch made", "description": "make it"},
        "allowed": [{"say": "made it"}],
        "denied": [{"say": "then not"}],
    }
}
END = [{"say": "over"}]
SUB: dict[str, Any] = {"type": "general-purpose", "prompt": "look around", "description": "scout"}

SCRIPT: dict[str, Any] = {
    "rules": [
        {
            "when": {"agent": "general-purpose", "prompt": "look"},
            "do": [{"say": "looking"}, TOOL, {"say": "nothing there"}],
        },
        {"when": {"woken": True}, "do": [{"say": "it came back"}]},
        {
            "when": {"prompt": "tools"},
            "do": [{"think": "hm"}, {"say": "first\nsecond"}, TOOL, {"say": "grüße 日本 😀"}],
        },
        {"when": {"prompt": "ask"}, "do": [{"say": "may I?"}, ASK]},
        {"when": {"prompt": "scout"}, "do": [{"say": "go"}, {"agent": SUB}, {"say": "all seen"}]},
        {
            "when": {"prompt": "background"},
            "do": [{"agent": {**SUB, "background": True}}, {"say": "meanwhile"}],
        },
        {"when": {"prompt": "break"}, "do": [{"fail": {"status": 400, "message": "no such thing"}}]},
        {"when": {"prompt": "loop", "pass": 2}, "do": [{"say": "now"}, "marker"]},
        {"when": {"prompt": "loop"}, "do": [{"say": "not yet"}]},
    ]
}


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def once(process: Process, *prompts: str, allow: bool | None = None) -> list[tuple[Any, ...]]:
    """Run to the end, with each prompt after the result of the previous one."""
    with process:
        for prompt in prompts:
            process.say(prompt)
            if allow is not None:
                process.answer(process.until("control_request"), allow=allow)
            process.until("result")
        process.end()
        return summary(process.events)


def test_thoughts_texts_tools_and_turns(implementation: str, world: Path) -> None:
    with run_process(implementation, world, SCRIPT) as start:
        events = once(start("--permission-mode", "bypassPermissions"), "tools", "loop")
    assert events == [
        ("turn",),
        ("lead", "thinking", "hm"),
        ("lead", "text", "first\nsecond"),
        ("lead", "tool_use", "Bash"),
        ("lead", "tool_result", False),
        ("lead", "text", "grüße 日本 😀"),
        ("result", "grüße 日本 😀", False, "success", None),
        ("turn",),
        ("lead", "text", "not yet"),
        ("result", "not yet", False, "success", None),
    ]


@pytest.mark.parametrize(("allow", "words"), [(True, "made it"), (False, "then not")])
def test_answer_to_question_decides_next_step(implementation: str, world: Path, allow: bool, words: str) -> None:
    with run_process(implementation, world, SCRIPT) as start:
        events = once(start(*ASKING), "ask", allow=allow)
    assert events == [
        ("turn",),
        ("lead", "text", "may I?"),
        ("lead", "tool_use", "Bash"),
        ("question", "Bash", ASK["ask"]["input"]),
        ("lead", "tool_result", not allow),
        ("lead", "text", words),
        ("result", words, False, "success", None),
    ]
    assert (world / "made").exists() == (allow and implementation == "model")


def test_question_without_a_host_is_denied(implementation: str, world: Path) -> None:
    with run_process(implementation, world, SCRIPT) as start:
        process = start("--permission-mode", "default", "--permission-prompts", "none")
        events = once(process, "ask")
    assert events[-2:] == [("lead", "text", "then not"), ("result", "then not", False, "success", None)]
    assert [event["tool_name"] for event in process.events if event.get("subtype") == "permission_denied"] == ["Bash"]
    assert [denial["tool_name"] for denial in process.events[-1]["permission_denials"]] == ["Bash"]


@pytest.mark.parametrize("forwards", [True, False])
def test_foreground_sub_agent_reports_to_lead(implementation: str, world: Path, forwards: bool) -> None:
    flags = ("--forward-subagent-text",) if forwards else ()
    with run_process(implementation, world, SCRIPT) as start:
        events = once(start("--permission-mode", "bypassPermissions", *flags), "scout")
    assert events == [
        ("turn",),
        ("lead", "text", "go"),
        ("lead", "tool_use", "Agent"),
        ("member", "general-purpose", False),
        *([("general-purpose", "text", "looking")] if forwards else []),
        ("general-purpose", "tool_use", "Bash"),
        ("general-purpose", "tool_result", False),
        *([("general-purpose", "text", "nothing there")] if forwards else []),
        ("member ended", "completed", "nothing there"),
        ("lead", "tool_result", False),
        ("lead", "text", "all seen"),
        ("result", "all seen", False, "success", None),
    ]


def test_failed_sub_agent_shows_the_error(implementation: str, world: Path) -> None:
    fails = {"do": [{"say": "begin"}, TOOL, {"fail": {"status": 400, "message": "no such thing"}}]}
    script = {
        "rules": [{"when": {"agent": "general-purpose", "prompt": "look"}, **fails}, {"do": [{"agent": SUB}, *END]}]
    }
    with run_process(implementation, world, script) as start:
        process = start("--permission-mode", "bypassPermissions", "--forward-subagent-text")
        events = once(process, "go")
    assert ("general-purpose", "text", "begin") in events
    (error,) = (one for one in process.events if one.get("message", {}).get("model") == "<synthetic>")
    assert (error["subagent_type"], bool(error["parent_tool_use_id"])) == ("general-purpose", True)
    assert "no such thing" in blocks(error)[0]["text"]
    assert events[-1] == ("result", "over", False, "success", None)


def test_background_sub_agent_wakes_its_lead(implementation: str, world: Path) -> None:
    with (
        run_process(implementation, world, SCRIPT) as start,
        start("--permission-mode", "bypassPermissions") as process,
    ):
        assert process.say("background").until("result")["result"] == "meanwhile"
        process.close()
        last = process.until("result")
        assert (last["result"], last["origin"]["kind"]) == ("it came back", "task-notification")
        assert process.child.wait(10) == 0
        events = summary(process.events)
    lead = [entry for entry in events if entry[0] in ("turn", "lead", "result")]
    assert lead == [
        ("turn",),
        ("lead", "tool_use", "Agent"),
        ("lead", "tool_result", False),
        ("lead", "text", "meanwhile"),
        ("result", "meanwhile", False, "success", None),
        ("turn",),
        ("lead", "text", "it came back"),
        ("result", "it came back", False, "success", None),
    ]
    member = [entry for entry in events if entry not in lead]
    assert member == [
        ("member", "general-purpose", True),
        ("general-purpose", "text", "looking"),
        ("general-purpose", "tool_use", "Bash"),
        ("general-purpose", "tool_result", False),
        ("general-purpose", "text", "nothing there"),
        ("member ended", "completed", "nothing there"),
    ]
    tasks = [len(event["tasks"]) for event in process.events if event.get("subtype") == "background_tasks_changed"]
    assert tasks == [1, 0]


def test_results_wait_for_background_agents_after_input_end(implementation: str, world: Path) -> None:
    with (
        run_process(implementation, world, SCRIPT) as start,
        start("--permission-mode", "bypassPermissions") as process,
    ):
        process.say("background").close()
        process.until("result")
        process.until("result")
        assert process.child.wait(10) == 0
    lead = [entry for entry in summary(process.events) if entry[0] in ("turn", "lead", "result")]
    assert lead[3:] == [
        ("lead", "text", "meanwhile"),
        ("turn",),
        ("lead", "text", "it came back"),
        ("result", "meanwhile", False, "success", None),
        ("result", "it came back", False, "success", None),
    ]


def test_api_failure_is_error_with_subtype_success(implementation: str, world: Path) -> None:
    with run_process(implementation, world, SCRIPT) as start, start() as process:
        process.say("break").until("result")
        assert process.end() == 1
        events = summary(process.events)
    assert events == [("turn",), ("result", "API Error: 400 no such thing", True, "success", 400)]


def test_marker_follows_on_second_pass(implementation: str, world: Path) -> None:
    with run_process(implementation, world, SCRIPT) as start:
        results = [once(start(), "loop")[-1][1] for _ in range(3)]
    assert results == ["not yet", "now\nFORKHESTRA_COMPLETE", "not yet"]


def test_uncovered_request_fails(implementation: str, world: Path) -> None:
    with run_process(implementation, world, SCRIPT) as start, start() as process:
        result = process.say("unheard of").until("result")
        assert process.end() == 1
    assert (result["is_error"], result["api_error_status"]) == (True, 400)
    assert "no rule fits agent 'claude', turn 1, pass 1, last message 'unheard of'" in result["result"]


@pytest.mark.parametrize("last", ["crash", {"fail": {"exit": 3}}])
@pytest.mark.parametrize("when", [{}, {"turn": 1, "prompt": "go"}])
def test_crash_after_text_does_not_repeat_tools(
    implementation: str, world: Path, last: Any, when: dict[str, Any]
) -> None:
    tool = {"tool": {"name": "Bash", "input": {"command": "echo x >> made", "description": "make"}, "result": ""}}
    with run_process(
        implementation, world, {"rules": [{"when": when, "do": [tool, {"say": "half a"}, last]}]}
    ) as start:
        with start("--permission-mode", "bypassPermissions") as process:
            code = process.say("go").end()
        events = summary(process.events)
    assert events[:4] == [
        ("turn",),
        ("lead", "tool_use", "Bash"),
        ("lead", "tool_result", False),
        ("lead", "text", "half a"),
    ]
    if implementation == "agent":
        assert (code, len(events)) == (3 if last != "crash" else -signal.SIGABRT, 4)
    else:
        (ended,) = events[4:]
        assert (code, ended[0], ended[2]) == (1, "result", True)
        assert "Connection" in ended[1]
        assert (world / "made").read_text() == "x\n"


@pytest.mark.parametrize("prompt", ["Be brief.", ""])
@pytest.mark.parametrize("model", [(), ("--model", "claude-3-5-haiku-20241022")])
def test_agent_without_tools_is_scripted(implementation: str, world: Path, prompt: str, model: tuple[str, ...]) -> None:
    defined = json.dumps({"plain": {"description": "d", "prompt": prompt, "tools": []}})
    flags = ("--agents", defined, "--agent", "plain", "--strict-mcp-config", "--setting-sources", "user", *model)
    rules = [{"when": {"prompt": "known"}, "do": [{"say": "mine"}]}]
    with run_process(implementation, world, {"rules": rules}) as start:
        assert once(start(*flags), "known")[-1] == ("result", "mine", False, "success", None)
        assert once(start(*flags), "unheard of")[-1][2:] == (True, "success", 400)


AVAILABLE = "Available agents: claude, Explore, general-purpose, plain, Plan, statusline-setup, zeD, Zed"


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ("nosuch", f"Agent type 'nosuch' not found. {AVAILABLE}"),
        ("", f"Agent type '' not found. {AVAILABLE}"),
        ("general.purpose", f"Agent type 'general.purpose' not found. {AVAILABLE}"),
        ("zed", "Agent type 'zed' is ambiguous — matches zeD, Zed. Use the exact name: zeD or Zed"),
    ],
)
@pytest.mark.parametrize("in_background", [False, True])
def test_unknown_sub_agent_is_refused(
    implementation: str, world: Path, wanted: str, refusal: str, in_background: bool
) -> None:
    fields = {"description": "d", "prompt": "Be brief."}
    defined = json.dumps({"plain": fields, "Zed": fields, "zeD": fields})
    sub = {"type": wanted, "prompt": "look", "description": "scout", "background": in_background}
    with run_process(implementation, world, {"rules": [{"do": [{"agent": sub}, {"say": "alone then"}]}]}) as start:
        process = start("--agents", defined, "--strict-mcp-config")
        events = once(process, "go")
    assert events == [
        ("turn",),
        ("lead", "tool_use", "Agent"),
        ("lead", "tool_result", True),
        ("lead", "text", "alone then"),
        ("result", "alone then", False, "success", None),
    ]
    results = [block for event in process.events if event["type"] == "user" for block in blocks(event)]
    assert [block["content"] for block in results] == [refusal]
    assert f"Available agents: {', '.join(process.events[0]['agents'])}" == AVAILABLE


@pytest.mark.parametrize(("wanted", "meant"), [("explore", "Explore"), ("general purpose", "general-purpose")])
def test_sub_agent_name_ignores_case_and_separators(implementation: str, world: Path, wanted: str, meant: str) -> None:
    rules = [
        {"when": {"prompt": "look"}, "do": [{"say": "seen"}]},
        {"do": [{"agent": {"type": wanted, "prompt": "look"}}]},
    ]
    with run_process(implementation, world, {"rules": rules}) as start:
        events = once(start(), "go")
    assert [entry for entry in events if entry[0].startswith("member")] == [
        ("member", meant, False),
        ("member ended", "completed", "seen"),
    ]


USES_BASH: dict[str, Any] = {
    "rules": [
        {"when": {"agent": "plain", "tools": ["Bash"]}, "do": [TOOL, {"say": "had Bash"}]},
        {"when": {"agent": "plain"}, "do": [TOOL, {"say": "had none"}]},
        {"do": [{"agent": {"type": "plain", "prompt": "go"}}, {"say": "over"}]},
    ]
}


@pytest.mark.parametrize(
    ("fields", "flags", "offered"),
    [
        ({"tools": ["Read"]}, (), False),
        ({}, (), True),
        ({"tools": ["Read", "Bash(echo *)"]}, (), True),
        ({"tools": ["Bash", "Read"]}, ("--tools", "Read,Agent"), False),
    ],
)
@pytest.mark.parametrize("is_lead", [True, False])
def test_tool_that_is_not_offered_fails(
    implementation: str, world: Path, fields: dict[str, Any], flags: tuple[str, ...], offered: bool, is_lead: bool
) -> None:
    defined = json.dumps({"plain": {"description": "d", "prompt": "You are agent: plain.", **fields}})
    who = ("--agent", "plain") if is_lead else ()
    with run_process(implementation, world, USES_BASH) as start:
        bypass = ("--permission-mode", "bypassPermissions", "--forward-subagent-text")
        process = start("--agents", defined, *who, *bypass, "--strict-mcp-config", *flags)
        events = once(process, "go")
    speaker = "lead" if is_lead else "plain"
    assert [entry for entry in events if entry[0] == speaker][:3] == [
        (speaker, "tool_use", "Bash"),
        (speaker, "tool_result", not offered),
        (speaker, "text", "had Bash" if offered else "had none"),
    ]
    if is_lead:
        assert ("Bash" in process.events[0]["tools"]) == offered
