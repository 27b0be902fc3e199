"""The message for an invalid body names the place and the problem."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hocket.api import wire, wire_tasks
from hocket.api.validation_errors import body_error

MESSAGES: list[tuple[Any, bytes, str]] = [
    (wire.StartBody, b'{"agent":7}', "agent: expected `str | null`, got `int`"),
    (wire.StartBody, b'{"agent":""}', "agent: must not be empty"),
    (wire.StartBody, b'{"agent":["a"]}', "agent: expected `str | null`, got `array`"),
    (wire.StartBody, b'{"agnet":"a"}', "agnet: unknown field"),
    (wire.StartBody, b'{"session":1}', "session: expected `bool | null`, got `int`"),
    (wire.StartBody, b'{"args":"-x"}', "args: expected `array`, got `str`"),
    (wire.StartBody, b'{"args":["-x",null]}', "args[1]: expected `str`, got `null`"),
    (wire.StartBody, b'{"env":{"PATH":1}}', "env.*: expected `str`, got `int`"),
    (wire.StartBody, b'{"timeout":0}', "timeout: expected `float` > 0.0"),
    (wire.StartBody, b'{"timeout":1e10}', "timeout: expected `float` <= 1000000000.0"),
    (wire.StartBody, b'{"timeout":1e999}', "timeout: number out of range"),
    (wire.StartBody, b'{"failures":1.5}', "failures: expected `int | null`, got `float`"),
    (wire.StartBody, b'{"budget_tokens":0}', "budget_tokens: expected `int` >= 1"),
    (wire.StartBody, b'{"onLost":"panic"}', "onLost: invalid value 'panic' (choose ask or retry)"),
    (wire.AnswerBody, b"{}", "allow: missing"),
    (wire.AnswerBody, b"[]", "the body: expected `object`, got `array`"),
    (wire.AskBody, b'{"text":" \\n"}', "text: must not be blank"),
    (wire.AskBody, b'{"text":"a","options":["b",""]}', "options[1]: must not be empty"),
    (wire.MessageBody, b"{}", "the body: give a non-empty `text`, or `interrupt`"),
    (wire.MessageBody, b'{"text":"","interrupt":true}', "the body: give a non-empty `text`, or `interrupt`"),
    (wire.ResumeBody, b'{"from":1.5}', "from: expected `int | str | null`, got `float`"),
    (
        wire_tasks.StatusBody,
        b'{"status":{"type":"done"}}',
        "status.type: invalid value 'done' (choose pending, active, waiting, completed or failed)",
    ),
    (wire_tasks.StatusBody, b'{"status":{"kind":"done"}}', "status.kind: unknown field"),
    (wire_tasks.NewTask, b'{"description":"a","source":{}}', "source.sourceType: missing"),
    (wire_tasks.PlanBody, b"{}", "the body: give at least one of summary, requirements, acceptanceCriteria and plan"),
    (
        wire_tasks.ImportBody,
        b'{"task":{"id":"1","description":"a"}}',
        "task: an id must not consist of digits only, because tasks have numbers",
    ),
    (
        wire_tasks.ImportBody,
        b'{"task":{"id":"a","description":"a","agentChain":[{"agentName":"a","startedAt":-1}]}}',
        "task.agentChain[0].startedAt: expected `int` >= 0",
    ),
    (
        wire_tasks.ImportBody,
        b'{"task":{"id":"a\\n","description":"a"}}',
        "task.id: expected `str` matching regex '^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$'",
    ),
]


def message_of(kind: Any, content: bytes) -> str:
    with pytest.raises((msgspec.DecodeError, RecursionError, UnicodeDecodeError)) as caught:
        msgspec.json.decode(content, type=kind)
    return body_error(caught.value, kind)


@pytest.mark.parametrize(("kind", "content", "said"), MESSAGES, ids=[said for _, _, said in MESSAGES])
def test_message_names_place_and_problem(kind: Any, content: bytes, said: str) -> None:
    assert message_of(kind, content) == said


def test_message_lists_the_choices_below_lists() -> None:
    record = b'{"agentName":"a","startedAt":1,"reason":"because"}'
    said = message_of(wire_tasks.ImportBody, b'{"task":{"id":"a","description":"a","agentChain":[%b]}}' % record)
    assert said.startswith("task.agentChain[0].reason: invalid value 'because' (choose ")
    assert {"marker", "budget", "stopped"} <= set(said.replace(",", "").split())


def test_long_names_are_truncated() -> None:
    said = message_of(wire.EmptyBody, b'{"%b":1}' % (b"x" * 100_000))
    assert said == f"{'x' * 100}…: unknown field"
    said = message_of(wire_tasks.StatusBody, b'{"status":{"type":"%b"}}' % (b"x" * 100_000))
    assert said.endswith("(choose pending, active, waiting, completed or failed)")
    assert len(said) < 200


@pytest.mark.parametrize("name", [b"a`b", b" - at `$.x`", b" - at `$" * 10**5, b"\\n", "ä".encode()])
def test_message_is_short_for_any_name(name: bytes) -> None:
    assert len(message_of(wire.EmptyBody, b'{"%b":1}' % name)) < 400


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text":', "the body is not valid JSON: Input data was truncated"),
        (b'{"text":"\xff"}', "the body is not valid JSON: not UTF-8"),
        (b'{"text":tru}', "the body is not valid JSON: invalid character (byte 12)"),
    ],
)
def test_invalid_json_is_reported_with_its_position(content: bytes, said: str) -> None:
    assert message_of(wire.MessageBody, content) == said


def test_deep_nesting_is_reported() -> None:
    deep = b'{"task":{"id":"a","description":"a","source":%b1' % (b'{"a":' * 10**5)
    assert message_of(wire_tasks.ImportBody, deep) == "the body is nested too deeply"
