"""Session records of the Claude CLI, well-formed and malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.providers.claude import session_files

SESSION = "9a758b98-fd8f-47c7-a8cf-ed105b0b97f4"
OTHER = "0f436b2a-195c-41ec-b1f6-db783fd59804"
LIVE: dict[str, Any] = {
    "pid": 4255,
    "sessionId": SESSION,
    "cwd": "/p",
    "startedAt": 1795053001892,
    "procStart": "123085",
    "kind": "bg",
    "agent": "plain",
    "jobId": "1991f567",
    "status": "busy",
}
JOB: dict[str, Any] = {
    "state": "working",
    "intent": "job words",
    "sessionId": SESSION,
    "cwd": "/p",
    "createdAt": "2026-11-19T01:50:55.140Z",
}
WORKER: dict[str, Any] = {
    "pid": 4250,
    "procStart": "123080",
    "sessionId": SESSION,
    "startedAt": 1795053001892,
    "cwd": "/p",
    "rvAuth": "secret",
    "dispatch": {"env": {}},
}
ROSTER = {
    "workers": {
        "1991f567": WORKER,
        "b48c521c": {**WORKER, "dispatch": {"env": {"CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS": f"{OTHER},{SESSION}"}}},
        "../etc": {**WORKER, "dispatch": {"env": {"CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS": OTHER}}},
    }
}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": content}, "cwd": "/p", **more}


def assistant(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": list(blocks)}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def lines(*records: Any) -> bytes:
    return b"".join(encoded(record) + b"\n" for record in records)


@pytest.mark.parametrize(
    ("env", "base"),
    [
        ({"HOME": "/u"}, "/u/.claude"),
        ({"HOME": "/u", "CLAUDE_CONFIG_DIR": "/x"}, "/x"),
        ({"CLAUDE_CONFIG_DIR": "/x"}, "/x"),
    ],
)
def test_folders_follow_the_environment(env: dict[str, str], base: str) -> None:
    found = session_files.folders(env)
    assert found is not None
    assert found == (f"{base}/sessions", f"{base}/projects", f"{base}/jobs", f"{base}/daemon/roster.json")


def test_environment_without_user_has_no_folders() -> None:
    assert session_files.folders({"PATH": "/bin"}) is None


def test_live_session_is_read() -> None:
    found = session_files.live(encoded(LIVE))
    assert found == (SESSION, 4255, 123085, "/p", False, 1795053001.892, "plain", "1991f567", False, None)


@pytest.mark.parametrize(("status", "waits"), [("busy", False), ("idle", True), ("waiting", True), ("new", False)])
def test_status_says_whether_it_waits(status: str, waits: bool) -> None:
    found = session_files.live(encoded({**LIVE, "status": status}))
    assert found is not None
    assert (found.is_waiting, found.has_dialog) == (waits, status == "waiting")


@pytest.mark.parametrize(
    "change",
    [
        {"sessionId": "../../etc/passwd"},
        {"sessionId": SESSION.upper()},
        {"sessionId": None},
        {"pid": "4255"},
        {"pid": 1},
        {"pid": -4255},
        {"pid": True},
        {"pid": 4255.5},
    ],
)
def test_record_without_session_or_process_is_none(change: dict[str, Any]) -> None:
    assert session_files.live(encoded({**LIVE, **change})) is None


@pytest.mark.parametrize("started", ["", "later", "-5", "9" * 30, 123085, None])
def test_start_time_without_number_is_unknown(started: object) -> None:
    found = session_files.live(encoded({**LIVE, "procStart": started}))
    assert found is not None
    assert found.started is None


def test_invalid_session_names_are_dropped() -> None:
    found = session_files.live(encoded({**LIVE, "agent": "../evil", "jobId": "x\n"}))
    assert found is not None
    assert (found.agent, found.job) == (None, None)


def test_incomplete_record_is_none() -> None:
    whole = encoded(LIVE)
    assert {session_files.live(whole[:cut]) for cut in range(len(whole))} == {None}


def test_job_is_read() -> None:
    assert session_files.job("1991f567", encoded(JOB)) == ("1991f567", SESSION, "/p", "job words", 1795053055.14)


@pytest.mark.parametrize(
    ("name", "record"), [("../../x", JOB), ("1991f567", {**JOB, "sessionId": "x"}), ("1991f567", [])]
)
def test_job_without_id_or_session_is_none(name: str, record: object) -> None:
    assert session_files.job(name, encoded(record)) is None


def test_roster_names_the_sessions_that_started_jobs() -> None:
    found = session_files.job_processes(encoded(ROSTER))
    assert [(one.job, one.launchers) for one in found] == [("1991f567", ()), ("b48c521c", (OTHER, SESSION))]
    assert found[0] == ("1991f567", SESSION, 4250, 123080, "/p", 1795053001.892, ())
    assert "secret" not in str(found)


@pytest.mark.parametrize("change", [{"pid": 1}, {"pid": "4250"}, {"sessionId": "../x"}, {"sessionId": None}])
def test_incomplete_roster_entry_is_omitted(change: dict[str, Any]) -> None:
    assert session_files.job_processes(encoded({"workers": {"1991f567": {**WORKER, **change}, "b48c521c": 5}})) == ()


def test_summary_of_a_transcript() -> None:
    beginning = lines(
        {"type": "agent-setting", "agentSetting": "plain"},
        {"type": "queue-operation", "timestamp": "2026-11-19T01:50:01.845Z"},
        user("caveat", isMeta=True),
        user([text("fix the"), text("tests")]),
        user([{"type": "tool_result", "content": "output"}]),
    )
    end = lines(
        assistant(text("first")),
        assistant(text("all"), {"type": "tool_use", "name": "Bash"}),
        assistant(text("of a helper"), isSidechain=True),
        assistant({"type": "tool_use", "name": "Bash"}),
    )
    found = session_files.summary(beginning, b'sage":{"content":[]}}\n' + end + b'{"type":"assistant","mess')
    assert found == ("/p", "plain", "fix the\ntests", "all", 1795053001.845)


def test_summary_of_empty_transcript() -> None:
    assert session_files.summary(b"", b"") == (None,) * 5


def test_long_texts_are_cut() -> None:
    found = session_files.summary(lines(user("x" * 100_000)), lines(assistant(text("y" * 100_000))))
    assert (len(found.prompt or ""), len(found.last or "")) == (2000, 2000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LIVE, *JOB, "workers"]), inner),
    max_leaves=8,
)


@given(st.binary() | JSON.map(encoded))
def test_no_content_breaks_a_parser(content: bytes) -> None:
    session_files.live(content)
    session_files.job("1991f567", content)
    session_files.job_processes(content)
    session_files.summary(content, content)


ODD: tuple[Any, ...] = (None, 5, [], {}, [None], "x", {"content": 5}, {"content": [None, 5, {"type": "text"}]})


@pytest.mark.parametrize("kind", ["user", "assistant", "agent-setting", "queue-operation"])
@pytest.mark.parametrize("key", ["type", "message", "timestamp", "cwd", "agentSetting", "isMeta", "isSidechain"])
def test_no_value_breaks_a_summary(kind: str, key: str) -> None:
    times = ("2026-99-99", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00")
    content = lines(*({"type": kind, "message": {"content": []}, key: value} for value in (*ODD, *times)))
    assert session_files.summary(content, content).last is None
