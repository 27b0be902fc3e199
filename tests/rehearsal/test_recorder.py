"""The output of a run becomes a script, which gives the same output again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rehearsal.processes import ASKING, Agent, Event, Process, run_process, summary
from rehearsal.test_both_implementations import SCRIPT, TOOL

from hocket.rehearsal import parse, record

TURNS = ("tools", "scout", "background", "ask")


def recorded(lines: Iterable[bytes], agent: str = "claude") -> Any:
    document = yaml.safe_load(record(lines, agent).script)
    parse(document)
    return document


def act(process: Process) -> list[Event]:
    """All turns of a run, each answered, the last with a denial."""
    with process:
        for turn in TURNS:
            process.say(turn)
            if turn == "ask":
                process.answer(process.until("control_request"), allow=False)
            process.until("result")
            if turn == "background":
                process.until("result")
        assert process.end() == 0
        return process.events


def split_summary(events: list[Event]) -> list[tuple[Any, ...]]:
    """Sorted by agent, because a background agent and its lead write at the same time."""
    return sorted(summary(events), key=lambda entry: entry[0] not in ("turn", "lead", "question", "result"))


@pytest.mark.parametrize("implementation", ["agent", "model"])
def test_recording_replays_the_same_events(implementation: str, world: Path) -> None:
    (world / "first").mkdir()
    with run_process(implementation, world / "first", SCRIPT) as start:
        process = start(*ASKING, "--allowedTools", "Bash(echo *)")
        before = act(process)
    document = recorded(process.lines)
    (world / "again").mkdir()
    again = act(Agent(world / "again", document).start(*ASKING))
    assert split_summary(again) == split_summary(before)


def run_with_closed_input(process: Process) -> list[Event]:
    """Send the prompt and end the input, so that all results come at the end."""
    with process:
        process.say("background")
        assert process.end() == 0
        return process.events


@pytest.mark.parametrize("implementation", ["agent", "model"])
def test_turn_before_delayed_result_is_recorded_separately(implementation: str, world: Path) -> None:
    (world / "first").mkdir()
    with run_process(implementation, world / "first", SCRIPT) as start:
        process = start()
        before = run_with_closed_input(process)
    document = recorded(process.lines)
    whens = [rule["when"] for rule in document["rules"]]
    assert [when for when in whens if "turn" in when or "woken" in when] == [
        {"agent": "claude", "turn": 1},
        {"agent": "claude", "woken": 1},
    ]
    (world / "again").mkdir()
    again = run_with_closed_input(Agent(world / "again", document).start())
    assert split_summary(again) == split_summary(before)


def test_tool_results_and_turn_costs_are_recorded(world: Path) -> None:
    tool = {"tool": {"name": "Bash", "input": {"command": "make"}, "result": "line\nline\n", "error": True}}
    rules = [{"do": [{"cost": 0.5}, tool, {"cost": 0.25}, {"say": "fin"}]}]
    with Agent(world, {"rules": rules}).start() as process:
        process.say("go").until("result")
        process.end()
    (only,) = recorded(process.lines)["rules"]
    assert only == {"when": {"agent": "claude", "turn": 1}, "do": [tool, {"cost": 0.75}, {"say": "fin"}]}


def test_denied_question_is_recorded_with_its_branch(world: Path) -> None:
    ask = {"tool": "Bash", "input": {"command": "rm x"}, "denied": [{"say": "then not"}]}
    with Agent(world, {"rules": [{"do": [{"ask": ask}, {"say": "done"}]}]}).start(*ASKING) as process:
        process.answer(process.say("go").until("control_request"), allow=False).until("result")
        process.end()
    assert recorded(process.lines)["rules"][0]["do"] == [{"ask": ask}]


def test_failure_is_recorded(world: Path) -> None:
    failure = {"fail": {"status": 529, "message": "full"}}
    with Agent(world, {"rules": [{"do": [failure]}]}).start() as process:
        process.say("go").until("result")
        process.end()
    assert recorded(process.lines)["rules"][0]["do"] == [failure]


def ending(process: Process) -> tuple[int, Any, Any]:
    """Run one turn: the exit code, whether the result is an error, and its status."""
    with process:
        result = process.say("go").until("result")
        return process.end(), result["is_error"], result.get("api_error_status")


@pytest.mark.parametrize("replayed_by", ["agent", "model"])
@pytest.mark.parametrize("implementation", ["agent", "model"])
@pytest.mark.parametrize("status", [400, 529])
def test_failure_after_broken_stream_is_replayed(
    implementation: str, replayed_by: str, world: Path, status: int
) -> None:
    steps: list[Any] = [{"think": "hm"}, {"say": "half a"}, {"fail": {"status": status, "message": "no"}}]
    stories = []
    document: Any = {"rules": [{"do": steps}]}
    for name, who in (("first", implementation), ("again", replayed_by)):
        (world / name).mkdir()
        with run_process(who, world / name, document) as start:
            process = start()
            assert ending(process) == (1, True, status)
        stories.append([entry for entry in summary(process.events) if entry[0] == "lead"])
        document = recorded(process.lines)
        assert [next(iter(step)) for step in document["rules"][0]["do"] if "cost" not in step] == [
            "think",
            "say",
            "fail",
        ]
    assert stories == [[("lead", "thinking", "hm"), ("lead", "text", "half a")]] * 2


@pytest.mark.parametrize("replayed_by", ["agent", "model"])
@pytest.mark.parametrize("implementation", ["agent", "model"])
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["refuse"], (1, True, None)),
        ([{"say": "hm"}, "refuse", {"say": "well"}], (0, False, None)),
        ([{"say": "hm"}, "refuse", {"tool": {"name": "Bash", "input": {"command": "true"}}}, {"say": "x"}, "refuse"],
         (1, True, None)),
    ],
)  # fmt: skip
def test_refusal_is_replayed(
    implementation: str, replayed_by: str, world: Path, steps: list[Any], expected: tuple[Any, ...]
) -> None:
    document: Any = {"rules": [{"do": steps}]}
    stories = []
    for name, who in (("first", implementation), ("again", replayed_by)):
        (world / name).mkdir()
        with run_process(who, world / name, document) as start:
            process = start("--permission-mode", "bypassPermissions")
            assert ending(process) == expected
        stories.append([entry for entry in summary(process.events) if entry[0] == "lead"])
        assert process.events[-1]["stop_reason"] == ("refusal" if expected[0] else "end_turn")
        document = recorded(process.lines)
    assert stories[0] == stories[1]


@pytest.mark.parametrize("replayed_by", ["agent", "model"])
@pytest.mark.parametrize("implementation", ["agent", "model"])
@pytest.mark.parametrize("who", ["lead", "general-purpose"])
def test_broken_stream_is_recorded_as_two_messages(
    implementation: str, replayed_by: str, world: Path, who: str
) -> None:
    broken: list[Any] = [{"say": "half"}, "break", {"say": "a"}, "break", {"say": "word"}, TOOL, {"say": "and more"}]
    helps = [{"when": {"agent": who}, "do": broken}, {"when": {"woken": True}, "do": [{"say": "heard"}]}]
    lead = broken if who == "lead" else [{"agent": {"prompt": "go", "background": True}}, {"say": "meanwhile"}]
    document: Any = {"rules": [*helps, {"do": lead}]}
    stories = []
    for name, by in (("first", implementation), ("again", replayed_by)):
        (world / name).mkdir()
        with (
            run_process(by, world / name, document) as start,
            start("--permission-mode", "bypassPermissions") as process,
        ):
            process.say("go")
            assert process.end() == 0
        stories.append([entry for entry in summary(process.events) if entry[0] == who])
        document = recorded(process.lines)
    assert [entry[2] for entry in stories[0]] == ["half", "a", "word", "Bash", False, "and more"]
    assert stories[0] == stories[1]


@pytest.mark.parametrize("implementation", ["agent", "model"])
@pytest.mark.parametrize(
    ("limit", "subtype", "words"),
    [
        (("--max-turns", "1"), "error_max_turns", "Reached maximum number of turns (1)"),
        (("--max-budget-usd", "0.0001"), "error_max_budget_usd", "Reached maximum budget ($0.0001)"),
    ],
)
def test_limit_is_recorded_as_failure_with_note(
    implementation: str, world: Path, limit: tuple[str, ...], subtype: str, words: str
) -> None:
    document: Any = {"rules": [{"do": [{"cost": 0.1}, {"say": "a"}, TOOL, {"say": "b"}]}]}
    with (
        run_process(implementation, world, document) as start,
        start("--permission-mode", "bypassPermissions", *limit) as process,
    ):
        assert process.say("go").until("result")["subtype"] == subtype
        process.end()
    text, notes = record(process.lines, "claude")
    assert notes == (f"turn 1 did not end by itself ({words}): the same end needs the same limit again",)
    assert text.startswith(f"# {notes[0]}\nversion: 1\n")
    agent = Agent(world, recorded(process.lines))
    with agent.start(*limit) as process:
        assert process.say("go").until("result")["subtype"] == subtype
    with agent.start() as process:
        ended = process.say("go").until("result")
    assert (ended["is_error"], f"the recorded turn was ended here: {words}" in ended["result"]) == (True, True)


def test_completed_turn_over_budget_is_recorded_without_failure(world: Path) -> None:
    limit = ("--max-budget-usd", "0.1")
    with Agent(world, {"rules": [{"do": [{"cost": 0.5}, {"say": "all"}]}]}).start(*limit) as process:
        process.say("go").until("result")
        process.say("more").until("result")
        process.end()
    _, notes = record(process.lines, "claude")
    assert [note.partition(" (")[0] for note in notes] == [f"turn {n} did not end by itself" for n in (1, 2)]
    assert recorded(process.lines)["rules"] == [
        {"when": {"agent": "claude", "turn": 1}, "do": [{"cost": 0.5}, {"say": "all"}]}
    ]


@pytest.mark.parametrize("implementation", ["agent", "model"])
@pytest.mark.parametrize("words", [[], [{"say": "a"}], [{"say": "a"}, TOOL]])
def test_interrupted_turn_is_recorded_as_hang(implementation: str, world: Path, words: list[Any]) -> None:
    document: Any = {"rules": [{"do": [*words, "hang"]}]}
    stories = []
    for name in ("first", "again"):
        (world / name).mkdir()
        mode = ("--permission-mode", "bypassPermissions")
        with run_process(implementation, world / name, document) as start, start(*mode) as process:
            process.say("go")
            for _ in range(2 if TOOL in words else 1):
                process.until("system/status")
            if words == [{"say": "a"}]:
                process.until("assistant")
            process.interrupt().until("result")
            process.end()
        stories.append(summary(process.events))
        assert record(process.lines, "claude").notes == (
            "turn 1 was interrupted: it hangs there until it is interrupted again",
        )
        document = recorded(process.lines)
    assert stories[0] == stories[1]
    assert stories[0][-1][3] == "error_during_execution"


def test_unreachable_api_is_recorded_as_failure(world: Path) -> None:
    with run_process("model", world, {"rules": [{"do": [{"say": "half a"}, "crash"]}]}) as start:
        process = start()
        assert ending(process) == (1, True, None)
    (world / "again").mkdir()
    assert ending(Agent(world / "again", recorded(process.lines)).start()) == (1, True, 500)


def test_thought_before_a_failure_is_not_recorded() -> None:
    block = {"type": "thinking", "thinking": "hm"}
    lines: list[Any] = [
        {"type": "assistant", "message": {"id": "m", "model": "x", "content": [block]}},
        {"type": "result", "is_error": True, "api_error_status": 529, "result": "API Error: 529 full"},
    ]
    document = recorded([json.dumps(line).encode() for line in lines])
    assert document["rules"][0]["do"] == [{"fail": {"status": 529, "message": "full"}}]


def test_sub_agent_failure_is_recorded_in_its_rule(world: Path) -> None:
    failure = {"fail": {"status": 529, "message": "full"}}
    rules = [{"when": {"agent": "general-purpose"}, "do": [failure]}, {"do": [{"agent": {"prompt": "sub"}}]}]
    with Agent(world, {"rules": rules}).start() as process:
        process.say("go").until("result")
        process.end()
    assert recorded(process.lines)["rules"][1]["do"] == [failure]


@pytest.mark.parametrize("implementation", ["agent", "model"])
@pytest.mark.parametrize(
    "prompts",
    [
        ["\n  look around  \n"],
        ["<system-reminder>be quick</system-reminder>\nlook around"],
        ["/src/[a/"],
        ["//"],
        ["/" + "long " * 15 + "src/[a/ and more"],
        ["look", "look around"],
        ["first look around", "look"],
    ],
)
def test_recorded_sub_agent_prompt_matches_again(implementation: str, world: Path, prompts: list[str]) -> None:
    helpers = [{"when": {"agent": "general-purpose", "pass": n}, "do": [{"say": f"seen {n}"}]} for n in (1, 2)]
    lead = [{"agent": {"prompt": prompt, "description": "scout"}} for prompt in prompts]
    document = {"rules": [*helpers, {"do": [*lead, {"say": "fin"}]}]}
    both_summaries: list[Any] = []
    for name in ("first", "again"):
        (world / name).mkdir()
        with run_process(implementation, world / name, document) as start, start() as process:
            process.say("go").until("result")
            assert process.end() == 0
        both_summaries.append(split_summary(process.events))
        document = recorded(process.lines)
    assert both_summaries[0] == both_summaries[1]
    assert [entry[2] for entry in both_summaries[1] if entry[0] == "member ended"] == [
        f"seen {n}" for n, _ in enumerate(prompts, 1)
    ]


def test_run_without_end_is_recorded_with_hang(world: Path) -> None:
    with Agent(world, {"rules": [{"do": [{"say": "begun"}, {"fail": {"exit": 1}}]}]}).start() as process:
        process.say("go")
        process.end()
    assert recorded(process.lines)["rules"][0]["do"] == [{"say": "begun"}, "hang"]
    assert record(process.lines, "a").notes == ("turn 1 has no end: it hangs where the output breaks off",)


def test_lines_that_are_not_events_are_skipped() -> None:
    odd: list[Any] = [
        [], 3, {}, {"type": "assistant"}, {"type": "assistant", "message": 3},
        {"type": "user", "message": {"content": 3}},
        {"type": "assistant", "message": {"content": [3, {}, {"type": "tool_use", "input": 3}]}}, {"type": "result"},
        {"type": "system", "subtype": "task_notification"}, {"type": "control_request", "request": 3},
    ]  # fmt: skip
    lines = [b"", b"not json\n", b"\xff\n", *[json.dumps(value).encode() for value in odd]]
    assert parse(yaml.safe_load(record(lines, "a").script))


def test_recorded_script_is_readable() -> None:
    block = {"type": "text", "text": "grüße\nund mehr\n"}
    event = {"type": "assistant", "message": {"id": "m", "model": "x", "content": [block]}}
    text, notes = record([json.dumps(event).encode(), b'{"type": "result", "is_error": false}'], "a")
    assert "say: |\n" in text
    assert "grüße" in text
    assert notes == ()


def test_note_with_control_characters_stays_a_comment() -> None:
    init = {"type": "system", "subtype": "init", "session_id": "s"}
    spoken = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "hello"}]}}
    ended = {"type": "result", "subtype": "error_max_turns", "is_error": True, "errors": ["\x1b[31mboom\x85now"]}
    recording = record([json.dumps(event).encode() for event in (init, spoken, ended)], "claude")
    assert ["boom now" in note for note in recording.notes] == [True]
    assert recording.script.startswith("# turn 1 ")
    parse(yaml.safe_load(recording.script))
