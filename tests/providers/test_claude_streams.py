"""Streams recorded from the real CLI, read completely and cut off at each byte."""

from __future__ import annotations

from collections import Counter

import pytest
from providers.streams.recorded import NAMES, Exit, of_type, read_all, spec, stream, texts

from hocket.model import Reason, Status
from hocket.providers.claude.verdict import verdict

OF = spec(loop=True, marker="BYE")
CLEAN, KILLED = Exit(0), Exit(signal=9)
ENDS = {
    "api_error": (Status.FAILED, Reason.ERROR),
    "background": (Status.DONE, Reason.EXIT),
    "budget": (Status.FAILED, Reason.BUDGET),
    "denied": (Status.DONE, Reason.EXIT),
    "interrupt": (Status.DONE, Reason.EXIT),
    "max_turns": (Status.FAILED, Reason.ERROR),
    "question": (Status.DONE, Reason.EXIT),
    "rate_limited": (Status.FAILED, Reason.RATE_LIMITED),
    "refusal": (Status.DONE, Reason.EXIT),
    "subagent": (Status.DONE, Reason.EXIT),
    "success": (Status.DONE, Reason.EXIT),
    "withdrawn": (Status.FAILED, Reason.ERROR),
}
SAID = {
    "api_error": (["retry", "api_error"], []),
    "background": ([], ["start ", "sub says ", "waiting for it ", "sub done ", "ok "]),
    "budget": ([], []),
    "denied": (["permission_denied"], ["fin "]),
    "interrupt": ([], ["a ", "after tool "]),
    "max_turns": ([], []),
    "question": ([], ["w ", "fin "]),
    "rate_limited": (["api_error"], []),
    "refusal": (["refusal", "info"], ["no ", "ok "]),
    "subagent": ([], ["sending somebody ", "all is done", "BYE "]),
    "success": ([], ["I shall", "look first ", "after "]),
    "withdrawn": ([], ["w "]),
}


def test_every_recorded_stream_has_its_expectations() -> None:
    assert sorted(ENDS) == sorted(SAID) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_recorded_run_has_its_verdict(name: str) -> None:
    state, said = read_all(stream(name), OF)
    assert verdict(state, CLEAN, None) == ENDS[name]
    assert len(of_type(said, "session")) == 1
    assert len(of_type(said, "turn.started")) == len(of_type(said, "turn.ended"))


@pytest.mark.req("S3-39", "S3-40")
@pytest.mark.parametrize("name", NAMES)
def test_recorded_run_emits_each_text_once(name: str) -> None:
    _state, said = read_all(stream(name), OF)
    notices, lines = SAID[name]
    assert [data["kind"] for data in of_type(said, "notice")] == notices
    assert texts(said) == lines
    # Only prompts and the CLI's own messages to the agent are unchanged.
    assert all(data["type"] == "user" for data in of_type(said, "raw"))


def test_recorded_marker_is_found_once() -> None:
    found = {name: len(of_type(read_all(stream(name), OF)[1], "marker")) for name in NAMES}
    assert {name: count for name, count in found.items() if count} == {"subagent": 1}


def test_recorded_tools_end_unless_run_was_cut_off() -> None:
    for name in NAMES:
        _state, said = read_all(stream(name), OF)
        started = Counter(data["id"] for data in of_type(said, "tool.started"))
        finished = Counter(data["id"] for data in of_type(said, "tool.finished"))
        assert started - finished == Counter() or name == "budget"
        assert all(data["name"] for data in of_type(said, "tool.finished"))


@pytest.mark.req("S3-38")
@pytest.mark.parametrize("name", [name for name, end in ENDS.items() if end[0] is Status.DONE])
def test_recorded_run_without_result_is_not_done(name: str) -> None:
    state, _said = read_all(stream(name)[:-1], OF)
    assert b'"type":"result"' in stream(name)[-1]
    assert verdict(state, CLEAN, None) == (Status.FAILED, Reason.ERROR)
    assert verdict(state, KILLED, None) == (Status.FAILED, Reason.SIGNAL)
