"""The next message depends only on the script and the conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hocket.model import Agent, Definition
from hocket.providers import PROVIDERS
from hocket.providers.base import LaunchRequest
from hocket.rehearsal import parse
from hocket.rehearsal.matching import (
    CLOSING,
    AgentConversation,
    Message,
    Part,
    Uncovered,
    next_message,
    sub_agent_type,
    turn_of,
)
from hocket.rehearsal.steps import Call, Fail, Say

Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def used(*names: str) -> dict[str, Any]:
    calls = [{"type": "tool_use", "id": f"t{n}", "name": name, "input": {}} for n, name in enumerate(names)]
    return {"role": "assistant", "content": calls}


def came(*results: str, error: bool = False) -> dict[str, Any]:
    content = [
        {"type": "tool_result", "tool_use_id": f"t{n}", "content": text, "is_error": error}
        for n, text in enumerate(results)
    ]
    return {"role": "user", "content": content}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def woken(text: str = "<task-notification>over</task-notification>") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": f"<system-reminder>{text}</system-reminder>"}]}


def script(*rules: Any, **more: Any) -> dict[str, Any]:
    return {"rules": list(rules), **more}


def rule(*do: Any, **when: Any) -> dict[str, Any]:
    return {"when": {key.rstrip("_"): value for key, value in when.items()}, "do": list(do)}


def follow(document: Any, messages: Messages, **about: Any) -> Message | Uncovered:
    return next_message(parse(document), AgentConversation(about.pop("agent", "claude"), messages, **about))


def parts(document: Any, messages: Messages, **about: Any) -> tuple[Part, ...]:
    message = follow(document, messages, **about)
    assert isinstance(message, Message), message
    return message.parts


SAY = {"say": "yes"}
OTHER = {"say": "other"}
NO = (Say("other"),)
YES = (Say("yes"),)


@pytest.mark.parametrize(
    ("when", "about", "fits"),
    [
        ({}, {}, True),
        ({"agent": "claude"}, {}, True),
        ({"agent": "planner"}, {}, False),
        ({"agent": "planner"}, {"agent": "planner"}, True),
        ({"prompt": "second"}, {}, True),
        ({"prompt": "first"}, {}, False),
        ({"prompt": "/^sec.*one$/"}, {}, True),
        ({"prompt": "/^one/"}, {}, False),
        ({"system": "planner"}, {"system": "You are a planner."}, True),
        ({"system": "planner"}, {}, False),
        ({"tools": ["Bash"]}, {"tools": ("Bash", "Read")}, True),
        ({"tools": ["Bash", "Edit"]}, {"tools": ("Bash", "Read")}, False),
        ({"tools": []}, {"tools": ("Bash",)}, False),
        ({"tools": []}, {}, True),
        ({"turn": 2}, {}, True),
        ({"turn": 1}, {}, False),
        ({"pass": 1}, {}, True),
        ({"pass": 2}, {}, False),
        ({"pass": 2}, {"passage": 2}, True),
        ({"woken": True}, {}, False),
        ({"last": "second"}, {}, True),
        ({"prompt": "second", "turn": 1}, {}, False),
    ],
)
def test_rule_matches_when_all_conditions_hold(when: Any, about: Any, fits: bool) -> None:
    messages = [user("first one"), said("a"), user("second one")]
    document = script({"when": when, "do": [SAY]}, {"do": [OTHER]})
    assert parts(document, messages, **about) == (YES if fits else NO)


def test_list_continues_after_each_tool() -> None:
    document = script(rule({"think": "hm"}, SAY, {"tool": {"name": "Bash"}}, OTHER, {"tool": {"name": "Read"}}))
    start = [user("go")]
    after_one = [*start, used("Bash"), came("ok")]
    after_two = [*after_one, used("Read"), came("ok")]
    assert [type(part).__name__ for part in parts(document, start)] == ["Think", "Say", "Call"]
    assert parts(document, after_one) == (Say("other"), Call("Read", {}))
    assert parts(document, after_two) == (Say(CLOSING),)


def test_consecutive_texts_are_joined() -> None:
    assert parts(script(rule(SAY, OTHER, "marker")), [user("go")]) == (Say("yes\nother\nFORKHESTRA_COMPLETE"),)


@pytest.mark.parametrize(
    ("error", "text", "expected"),
    [
        (False, "removed", "did"),
        (True, "rather not", "did not"),
        (True, "Exit code 1\nno such file", "did"),
    ],
)
def test_question_continues_with_branch_of_answer(error: bool, text: str, expected: str) -> None:
    ask = {"tool": "Bash", "allowed": [{"say": "did"}], "denied": [{"say": "did not"}]}
    messages = [user("go"), used("Bash"), came(text, error=error)]
    assert parts(script(rule({"ask": ask}, OTHER)), messages) == (Say(expected),)


def test_question_without_branches_continues_the_list() -> None:
    messages = [user("go"), used("Bash"), came("no", error=True)]
    assert parts(script(rule({"ask": {"tool": "Bash"}}, OTHER)), messages) == NO


def test_rule_for_last_input_takes_over_the_turn() -> None:
    document = script(
        rule(SAY, {"tool": {"name": "Read"}}, {"say": "after"}, last="surprise"),
        rule({"tool": {"name": "Bash"}}, OTHER),
    )
    messages = [user("go"), used("Bash"), came("a surprise")]
    assert parts(document, messages) == (Say("yes"), Call("Read", {}))
    assert parts(document, [*messages, used("Read"), came("fine")]) == (Say("after"),)
    assert parts(document, [user("go"), used("Bash"), came("nothing new")]) == NO


def test_woken_turn_needs_a_rule_with_woken() -> None:
    document = script(rule(OTHER), rule(SAY, woken=True), default=[OTHER])
    assert parts(document, [user("go"), said("started"), woken()]) == YES
    lost = follow(script(rule(OTHER), default=[OTHER]), [user("go"), said("started"), woken()])
    assert isinstance(lost, Uncovered)
    assert lost.woken == 1
    assert "wake 1" in str(lost)


def test_wakes_are_counted_separately_from_messages() -> None:
    document = script(rule(SAY, woken=2), rule(OTHER, woken=1), rule({"say": "two"}, turn=2))
    history = [user("go"), said("a"), woken(), said("b")]
    assert parts(document, history[:3]) == NO
    assert parts(document, [*history, woken()]) == YES
    assert parts(document, [*history, user("more")]) == (Say("two"),)


def test_reminders_of_the_cli_are_not_messages() -> None:
    reminder = {"type": "text", "text": "<system-reminder>be nice</system-reminder>\n"}
    note = {"type": "text", "text": "[Request interrupted by user for tool use]"}
    messages: Messages = [
        {"role": "user", "content": [reminder, {"type": "text", "text": "go"}]},
        {"role": "system", "content": "# Environment"},
        used("Bash"),
        {"role": "user", "content": [*came("stopped", error=True)["content"], note, {"type": "text", "text": "again"}]},
    ]
    turn = turn_of(messages)
    assert (turn.prompt, turn.number, turn.woken, turn.replies) == ("again", 2, 0, ())


def test_message_during_a_turn_is_its_last_input() -> None:
    passed_on = {"role": "system", "content": "The user sent a new message while you were working:\nhurry"}
    document = script(rule({"tool": {"name": "Bash"}}, OTHER), rule(SAY, last="hurry"))
    messages = [user("go"), used("Bash"), came("ok"), passed_on]
    assert turn_of(messages).number == 1
    assert parts(document, messages) == YES


def test_refusal_repeats_unless_the_list_continues() -> None:
    note = user("Your response above was stopped by a safety classifier, so there.")
    refused = follow(script(rule("refuse")), [user("go"), said("No."), note])
    assert isinstance(refused, Message)
    assert refused.stop_reason == "refusal"
    assert parts(script(rule("refuse", SAY)), [user("go"), said("No."), note]) == YES


def test_list_continues_after_a_break() -> None:
    note = user("Your response above was cut off mid-stream, so there.")
    broken = follow(script(rule({"say": "half"}, "break", SAY)), [user("go")])
    assert isinstance(broken, Message)
    assert (broken.breaks, broken.has_no_end) == (True, True)
    assert parts(script(rule({"say": "half"}, "break", SAY)), [user("go"), said("half"), note]) == YES
    assert parts(script(rule({"say": "half"}, "break")), [user("go"), said("half"), note]) == (Say("Done."),)


@pytest.mark.parametrize("last", ["crash", {"fail": {"exit": 3}}])
def test_crash_repeats_when_requested_again(last: Any) -> None:
    note = user("Your response above was cut off mid-stream. Resume directly from where it stops.")
    rules = script(rule({"tool": {"name": "Bash"}}, {"say": "half"}, last, SAY, turn=1, prompt="go"))
    again = follow(rules, [user("go"), used("Bash"), came("hi"), said("half"), note])
    assert isinstance(again, Message)
    assert (again.parts, again.end, again.fail) == (
        (), *(("crash", None) if last == "crash" else (None, Fail(exit=3))),
    )  # fmt: skip


def test_cost_belongs_to_its_message() -> None:
    document = script(rule({"cost": 1}, {"tool": {"name": "Bash"}}, {"cost": 2}, {"usage": {"output": 7}}, SAY))
    second = follow(document, [user("go"), used("Bash"), came("ok")])
    assert isinstance(second, Message)
    assert (second.spend.cost, second.spend.input, second.spend.output) == (2.0, None, 7)


def test_uncovered_request_names_the_agent() -> None:
    lost = follow(script(rule(SAY, agent="other")), [user("x" * 500)], agent="planner", passage=3)
    assert isinstance(lost, Uncovered)
    assert "'planner', turn 1, pass 3" in str(lost)
    assert len(str(lost)) < 400


def test_default_answers_unmatched_requests() -> None:
    assert parts(script(default=[SAY]), [user("anything")]) == YES


IDLE = {"type": "idle_notification", "from": "alice", "result": "go"}
SHUTDOWN = {"type": "shutdown_request", "requestId": "shutdown-1@alice", "from": "team-lead"}


def mail(*texts: str | dict[str, Any]) -> dict[str, Any]:
    """What teammates have sent, as the CLI passes it on."""
    written = (text if isinstance(text, str) else json.dumps(text, separators=(",", ":")) for text in texts)
    wrapped = (f'<teammate-message teammate_id="alice" summary="a > b">\n{one}\n</teammate-message>' for one in written)
    return user("Another Claude session sent a message:\n" + "\n\n".join(wrapped) + "\n\nIt was not your user: go.")


def test_message_of_teammate_is_the_prompt() -> None:
    turn = turn_of([mail("first\npart", IDLE, "second")])
    assert (turn.prompt, turn.number, turn.woken) == ("first\npart\nsecond", 1, 0)


def test_notice_of_team_wakes_without_a_rule() -> None:
    history = [user("start"), said("started"), mail(IDLE, {"type": "task_assignment", "taskId": "1"})]
    assert parts(script(rule(OTHER, prompt="go"), default=[OTHER]), history) == (Say("Noted."),)
    assert parts(script(rule(SAY, woken=1, prompt="idle_notification")), history) == YES
    assert turn_of([*history, said("noted"), mail("more")])[:3] == ("more", 2, 0)


def test_echo_fills_the_input_of_a_tool() -> None:
    given = {"to": "{last}", "message": {"request_id": "{request_id}", "approve": True, "notes": ["{prompt}"]}}
    document = script(
        rule({"tool": {"name": "SendMessage", "echo": given}}, prompt="shutdown_request"),
        rule({"tool": {"name": "SendMessage", "input": given}}),
    )
    (call,) = parts(document, [mail({**SHUTDOWN, "reason": "done"})])
    assert isinstance(call, Call)
    assert call.input["message"] == {
        "request_id": "shutdown-1@alice",
        "approve": True,
        "notes": [json.dumps({**SHUTDOWN, "reason": "done"}, separators=(",", ":"))],
    }
    assert parts(document, [user("go")]) == (Call("SendMessage", given),)


def test_named_sub_agent_is_identified_by_name() -> None:
    parsed = parse(script(rule({"agent": {"name": "alice", "type": "deep", "prompt": "dig"}})))
    assert sub_agent_type(parsed, "dig") == "alice"


def test_sub_agent_is_identified_by_its_prompt() -> None:
    ask = {"tool": "Bash", "denied": [{"agent": {"type": "deep", "prompt": "dig"}}]}
    parsed = parse(script(rule({"tools": [{"agent": {"type": "a", "prompt": "look"}}]}, {"ask": ask})))
    assert [sub_agent_type(parsed, prompt) for prompt in ("look", "dig", "none")] == ["a", "deep", None]


# --- the marker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["FORKHESTRA_COMPLETE", "ALL DONE!", "fertig: ja"])
def test_marker_is_read_from_system_prompt(marker: str) -> None:
    agent = Agent("a", "claude", "/bin/claude", "test", definition=Definition("a", {"prompt": "Be:\n\nkind"}, "/a.md"))
    argv = PROVIDERS["claude"].launch(agent, LaunchRequest(prompt="go", loop=True, marker=marker)).argv
    system = "Be:\n\nkind\n\n" + argv[argv.index("--append-system-prompt") + 1]
    assert parts(script(rule("marker")), [user("go")], system=system) == (Say(marker),)
    assert parts(script(rule("marker"), marker="READY"), [user("go")], system=system) == (Say(marker),)


def test_marker_of_the_script_is_the_fallback() -> None:
    assert parts(script(rule("marker"), marker="READY"), [user("go")], system="X_DONE") == (Say("READY"),)
