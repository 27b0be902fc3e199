"""What is wrong with a body is said in words that help whoever sent it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hocket.api import wire
from hocket.api import wire_tasks as names
from hocket.api.validation_errors import body_objection

SAID: list[tuple[Any, bytes, str]] = [
    (wire.StartBody, b'{"agent":7}', "agent: must be text or null, not a number"),
    (wire.StartBody, b'{"agent":""}', "agent: must not be empty"),
    (wire.StartBody, b'{"agent":["a"]}', "agent: must be text or null, not a list"),
    (wire.StartBody, b'{"agnet":"a"}', "agnet: is no known field"),
    (wire.StartBody, b'{"session":1}', "session: must be true or false, not a number"),
    (wire.StartBody, b'{"args":"-x"}', "args: must be a list, not text"),
    (wire.StartBody, b'{"args":["-x",null]}', "args[1]: must be text, not null"),
    (wire.StartBody, b'{"env":{"PATH":1}}', "env.*: must be text, not a number"),
    (wire.StartBody, b'{"timeout":0}', "timeout: must be more than 0"),
    (wire.StartBody, b'{"timeout":1e10}', "timeout: must be at most 1000000000"),
    (wire.StartBody, b'{"timeout":1e999}', "timeout: is out of range"),
    (wire.StartBody, b'{"failures":1.5}', "failures: must be a whole number or null, not a decimal number"),
    (wire.StartBody, b'{"budget_tokens":0}', "budget_tokens: must be at least 1"),
    (wire.StartBody, b'{"onLost":"panic"}', "onLost: must be one of ask, retry"),
    (wire.AnswerBody, b"{}", "allow: is missing"),
    (wire.AnswerBody, b"[]", "the body: must be an object, not a list"),
    (wire.AskBody, b'{"text":" \\n"}', "text: must not be blank"),
    (wire.AskBody, b'{"text":"a","options":["b",""]}', "options[1]: must not be empty"),
    (wire.Message, b"{}", "the body: say something with `text`, or `interrupt`"),
    (wire.Message, b'{"text":"","interrupt":true}', "the body: say something with `text`, or `interrupt`"),
    (wire.ResumeBody, b'{"from":1.5}', "from: must be a whole number or text or null, not a decimal number"),
    (
        names.StatusBody,
        b'{"status":{"type":"done"}}',
        "status.type: must be one of active, completed, failed, pending, waiting",
    ),
    (names.StatusBody, b'{"status":{"kind":"done"}}', "status.kind: is no known field"),
    (names.NewTask, b'{"description":"a","source":{}}', "source.sourceType: is missing"),
    (names.PlanBody, b"{}", "the body: give at least one of summary, requirements, acceptanceCriteria and plan"),
    (
        names.ImportBody,
        b'{"task":{"id":"1","description":"a"}}',
        "task: an id of digits alone would be taken for a task's number",
    ),
    (
        names.ImportBody,
        b'{"task":{"id":"a","description":"a","agentChain":[{"agentName":"a","startedAt":-1}]}}',
        "task.agentChain[0].startedAt: must be at least 0",
    ),
    (
        names.ImportBody,
        b'{"task":{"id":"a\\n","description":"a"}}',
        "task.id: must match ^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
    ),
]


def objected(kind: Any, content: bytes) -> str:
    with pytest.raises((msgspec.DecodeError, RecursionError, UnicodeDecodeError)) as caught:
        msgspec.json.decode(content, type=kind)
    return body_objection(caught.value, kind)


@pytest.mark.parametrize(("kind", "content", "said"), SAID, ids=[said for _, _, said in SAID])
def test_it_is_said_where_and_what(kind: Any, content: bytes, said: str) -> None:
    assert objected(kind, content) == said


def test_the_choices_of_an_enumeration_are_named_also_below_lists() -> None:
    record = b'{"agentName":"a","startedAt":1,"reason":"because"}'
    said = objected(names.ImportBody, b'{"task":{"id":"a","description":"a","agentChain":[%b]}}' % record)
    assert said.startswith("task.agentChain[0].reason: must be one of ")
    assert {"marker", "budget", "lost"} <= set(said.replace(",", "").split())


def test_a_name_without_end_is_not_said_back_as_a_whole() -> None:
    said = objected(wire.Empty, b'{"%b":1}' % (b"x" * 100_000))
    assert said == f"{'x' * 100}…: is no known field"
    said = objected(names.StatusBody, b'{"status":{"type":"%b"}}' % (b"x" * 100_000))
    assert said == "status.type: must be one of active, completed, failed, pending, waiting"


@pytest.mark.parametrize("name", [b"a`b", b" - at `$.x`", b" - at `$" * 10**5, b"\\n", "ä".encode()])
def test_whatever_a_name_looks_like_it_is_refused_in_a_few_words(name: bytes) -> None:
    assert len(objected(wire.Empty, b'{"%b":1}' % name)) < 400


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text":', "the body is no JSON: it breaks off"),
        (b'{"text":"\xff"}', "the body is no JSON: it is not UTF-8"),
        (b'{"text":tru}', "the body is no JSON: invalid character (byte 12)"),
    ],
)
def test_what_is_no_json_is_said_with_its_place(content: bytes, said: str) -> None:
    assert objected(wire.Message, content) == said


def test_what_has_no_bottom_is_said_to_be_too_deep() -> None:
    deep = b'{"task":{"id":"a","description":"a","source":%b1' % (b'{"a":' * 10**5)
    assert objected(names.ImportBody, deep) == "the body is nested too deeply"
