"""Torture row 46: a line with a secret is read like others, and the secret is in no event and no state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from providers.streams.recorded import (
    assistant,
    delta,
    init,
    line,
    of_type,
    part,
    result,
    spec,
    system,
    text,
    texts,
    tool_result,
)

from hocket.providers.base import Answer, ReaderEvent, State
from hocket.providers.claude.conversation import answer
from hocket.providers.claude.reader import reader
from hocket.redaction import MASK, NO_SECRETS, Redactor

KEY = 'kéy-"Q\\w/eRtZuIoP-äsDfGh'
LONGER = KEY + "-jKlMnB"
SECRETS = Redactor({"API_KEY": KEY, "LONGER_KEY": LONGER})
LOOP = spec(loop=True)


def tool(**given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "tool1", "name": "Bash", "input": given}


def request(name: str, **fields: Any) -> bytes:
    asked = {"subtype": "can_use_tool", "tool_name": name, **fields}
    return line("control_request", request_id="q1", request=asked)


def read_all(
    lines: Iterable[bytes], redactor: Redactor, state: State | None = None, *, checked: bool = True
) -> tuple[State, list[ReaderEvent]]:
    """Read as a server that is killed after each line: the next one has only the state, as JSON."""
    state = state or {}
    said: list[ReaderEvent] = []
    for each in lines:
        state, more = reader(LOOP, redactor)(json.loads(json.dumps(state)), "out", each, None)
        said += more
        if redactor is SECRETS and checked:
            assert traces(state) == [], "the state contains a part of a secret"
            assert traces(more) == []
    return state, said


def traces(value: Any) -> list[str]:
    """Parts of the secret in a JSON value."""
    written = json.dumps(value, ensure_ascii=False)
    return [KEY[at : at + 3] for at in range(len(KEY) - 3) if json.dumps(KEY[at : at + 3])[1:-1] in written]


def everything(secret: str) -> list[bytes]:
    """A turn in which the secret is everywhere."""
    given_to_it = {"command": f"curl -H {secret}", secret: [secret, {"deep": secret}]}
    return [
        init(),
        assistant(
            {"type": "thinking", "thinking": f"the key is {secret}"}, text(f"It is {secret}.\nDone"), message="m"
        ),
        assistant(tool(**given_to_it), message="m"),
        request("Bash", input=given_to_it, tool_use_id="tool1", permission_suggestions=[{"rules": secret}]),
        tool_result("tool1", [text(f"HTTP 401 {secret}")], is_error=True),
        tool_result("tool1", json.dumps({"nested": secret})),
        request("AskUserQuestion", input={"questions": [{"question": secret, "options": [{"label": secret}]}]}),
        line("control_cancel_request", request_id="q1"),
        system("hook_response", exit_code=1, hook_name="x", stderr=secret),
        system("informational", content=secret),
        line("something_new", word=secret),
        line("stream_event", event=[secret]),
        f"not JSON {secret}".encode(),
        result(f"the key is {secret}", errors=[secret]),
        init(),
        result(f"API Error: {secret}", is_error=True, subtype="error_during_execution"),
    ]


@pytest.mark.parametrize("secret", [KEY, LONGER])
def test_line_with_secret_is_read_like_others(secret: str) -> None:
    """Torture row 46."""
    state, said = read_all(everything(secret), SECRETS)
    expected_state, expected = read_all(everything(MASK), NO_SECRETS)
    assert said == expected
    assert state == expected_state
    assert len(of_type(said, "question")) == 2
    assert [data["is_error"] for data in of_type(said, "turn.ended")] == [False, True]


PARTS = [KEY, LONGER, "some words\n", " ", "k", "\n"]
BROKEN_OFF = [KEY[:-3], KEY[3:], KEY[:2]]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=6) | st.lists(st.sampled_from(PARTS + BROKEN_OFF), max_size=6)


@settings(max_examples=60, deadline=None)
@given(parts=TEXTS, sizes=st.lists(st.integers(1, 7), min_size=1, max_size=10), told_whole=st.booleans())
def test_text_in_parts_is_redacted_like_the_whole(parts: list[str], sizes: list[int], told_whole: bool) -> None:
    """Torture row 46: parts of 1 to 7 characters, with a restart after each."""
    content = "".join(parts)
    lines = [init(), part("message_start", message={"id": "m1"})]
    at = 0
    for number in range(len(content)):
        size = sizes[number % len(sizes)]
        lines += [delta(content[at : at + size])] if at < len(content) else []
        at += size
    lines += [assistant(text(content), message="m1")] if told_whole else []
    _, said = read_all([*lines, result("done")], SECRETS, checked=not set(parts) & set(BROKEN_OFF))
    joined = "\n".join(texts(said))
    assert joined == SECRETS.text(content).removesuffix("\n")
    assert of_type(said, "turn.ended")[0]["result"] == "done"


def test_parts_of_several_agents_are_masked_apart() -> None:
    half = len(KEY) // 2
    lines = [
        delta(f"main {KEY[:half]}"),
        delta(f"helper {KEY[:half]}", message="m2", parent="tool1"),
        delta(f"{KEY[half:]}\n"),
        delta("is all\n", message="m2", parent="tool1"),
    ]
    _, said = read_all(lines, SECRETS, checked=False)
    assert texts(said) == [f"main {MASK}", f"helper {KEY[:half]}is all"]


def test_long_line_in_pieces_is_redacted_across_them() -> None:
    filler = "x" * (16 * 1024 - 10)
    content = f"{filler}{KEY}{filler}{KEY}"
    _, said = read_all(
        [init(), *(delta(content[at : at + 61]) for at in range(0, len(content), 61)), result("")], SECRETS
    )
    assert "".join(texts(said)) == f"{filler}{MASK}{filler}{MASK}"
    assert len(texts(said)) > 1


def test_part_in_other_spelling_is_masked() -> None:
    lines = [delta(KEY), delta("-jKlMnB\n")]
    spaced = [json.dumps(json.loads(each)).encode() for each in lines]
    assert spaced != lines
    _, said = read_all([init(), *spaced], SECRETS)
    assert texts(said) == [MASK]


def test_held_text_of_earlier_version_is_redacted() -> None:
    """Its state had no field for held text, and stored lines in progress unmasked."""
    state: State = {"open": True, "id": "s", "blocks": {"/m1#0": [0, 0, f"it is {KEY[:9]}", False, False]}}
    _, said = read_all([delta(KEY[9:] + "\n")], SECRETS, state)
    assert texts(said) == [f"it is {MASK}"]
    state = {"open": True, "id": "s", "blocks": {"/m1#0": [0, 0, f"it is {KEY}", False, False]}}
    _, said = read_all([result("ok")], SECRETS, state)
    assert texts(said) == [f"it is {MASK}"]


def test_cut_line_has_no_part_of_secret() -> None:
    beginning = assistant(text("x " + "y" * 100 + KEY))[: -len(KEY)]
    for stream in ("out", "err"):
        _, said = reader(LOOP, SECRETS)({}, stream, beginning, 20_000_000)
        (raw,) = of_type(said, "raw")
        assert (raw["oversize"], raw["bytes"]) == (True, 20_000_000)
        assert traces(said) == []


def test_masked_input_is_not_sent_with_answer() -> None:
    """The CLI then uses the input of its request."""
    _, said = read_all([request("Bash", input={"command": f"curl {KEY}"}, tool_use_id="t")], SECRETS)
    (question,) = of_type(said, "question")
    assert question["text"] == f"Bash wants to run: curl {MASK}"
    response = json.loads(answer(question, Answer(allow=True)))["response"]["response"]
    assert response == {"behavior": "allow"}


def test_rule_with_secret_is_not_suggested() -> None:
    rules = [{"toolName": "Bash", "ruleContent": f"curl {KEY}"}]
    suggested = [{"type": "addRules", "behavior": "allow", "rules": rules}]
    asked = request("Bash", input={"command": "curl"}, tool_use_id="t", permission_suggestions=suggested)
    _, said = read_all([asked], SECRETS)
    (question,) = of_type(said, "question")
    assert "rule" not in question


@pytest.mark.req("S3-40")
def test_secret_in_forwarded_text_is_masked() -> None:
    sub = {"parent": "tool1", "subagent_type": "helper"}
    thought = {"type": "thinking", "thinking": f"so {KEY}"}
    _state, said = read_all([init(), assistant(text(f"it is\n{KEY}"), thought, **sub)], SECRETS)
    assert texts(said) == [f"it is\n{MASK}"]
    assert [data["text"] for data in of_type(said, "thinking")] == [f"so {MASK}"]
