"""What the Claude CLI records of teams: whole, half-written, and hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.providers import PROVIDERS
from hocket.providers.base import Helper, TeamFolders, TeamMember
from hocket.providers.claude import transcripts
from hocket.redaction import NO_SECRETS

FOUND = PROVIDERS["claude"].teams
assert FOUND is not None
TEAMS = FOUND
TEAM = "session-11111111"
LEAD = {"agentId": f"team-lead@{TEAM}", "name": "team-lead", "agentType": "team-lead", "backendType": "in-process"}
ALICE = {"agentId": f"alice@{TEAM}", "name": "alice", "agentType": "general-purpose", "model": "m", "isActive": False}
HEAD = {"name": TEAM, "leadAgentId": LEAD["agentId"], "leadSessionId": "s1"}
KEYS = (
    *("members", "name", "agentId", "leadSessionId", "leadProcess", "pid", "procStart", "isActive", "id", "subject"),
    *("status", "metadata", "_internal", "owner", "blocks", "blockedBy", "from", "text", "msg_id", "summary"),
    *("timestamp", "type", "routing", "sender", "target"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=3),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.req("S5-43")
def test_folders_follow_the_environment() -> None:
    assert TEAMS.folders({"HOME": "/h"}) == TeamFolders("/h/.claude/teams", "/h/.claude/tasks")
    assert TEAMS.folders({"HOME": "/h", "CLAUDE_CONFIG_DIR": "/c"}) == TeamFolders("/c/teams", "/c/tasks")
    assert TEAMS.folders({}) is None


@pytest.mark.req("S5-22", "S5-23", "S5-24")
def test_config_has_members_without_the_lead() -> None:
    process = {"pid": 12, "procStart": "345", "pidSpace": "x"}
    found = TEAMS.config(TEAM, encoded({**HEAD, "members": [LEAD, ALICE, "no", {}], "leadProcess": process}))
    assert found is not None
    assert found.members == (TeamMember(f"alice@{TEAM}", "alice", "general-purpose", "m", is_active=False),)
    assert (found.session, found.pid, found.started) == ("s1", 12, 345)


@pytest.mark.req("S5-22")
def test_config_with_members_alone_belongs_to_no_lead() -> None:
    members = [{"name": "bob", "agentId": "b1", "agentType": "teammate"}, {"name": "carol"}]
    found = TEAMS.config("t", encoded({"members": members}))
    assert found is not None
    assert [(one.id, one.name) for one in found.members] == [("b1", "bob"), ("carol@t", "carol")]
    assert found.session is None


@pytest.mark.req("S5-25")
def test_internal_and_deleted_tasks_are_hidden() -> None:
    about = {"id": "1", "subject": "s", "status": "pending"}
    states = [
        TEAMS.task("1", encoded(about)),
        TEAMS.task("1", encoded({**about, "metadata": {"_internal": True}})),
        TEAMS.task("1", encoded({**about, "status": "deleted"})),
        TEAMS.task("1", encoded({**about, "status": "new"})),
        TEAMS.task("1", encoded(about)[:-5]),
    ]
    assert [one and one.status for one in states] == ["pending", "deleted", "deleted", None, None]


def test_task_has_its_dependencies() -> None:
    found = TEAMS.task("7", encoded({"status": "pending", "blocks": ["1", 2, None], "blockedBy": "x", "owner": "al"}))
    assert found is not None
    assert (found.id, found.blocks, found.blocked_by, found.owner) == ("7", ("1", "2"), (), "al")


@pytest.mark.req("S5-20")
def test_inbox_has_messages_without_reports() -> None:
    texts = [
        "hello",
        '{"type":"idle_notification"}',
        '{"type":"task_assignment"}',
        '{"type":"shutdown_request"}',
        '{"a":1}',
    ]
    messages = [{"from": "bob", "text": text, "msg_id": str(number)} for number, text in enumerate(texts)]
    found = TEAMS.inbox("alice", encoded([*messages, 5, {"text": "of no sender"}]))
    assert found is not None
    assert [(one.id, one.kind) for one in found] == [("0", "message"), ("3", "shutdown_request"), ("4", "message")]
    assert {(one.sender, one.recipient) for one in found} == {("bob", "alice")}
    assert TEAMS.inbox("alice", b'[{"from": "bob"') is None
    assert TEAMS.inbox("alice", b"{}") is None


def test_message_without_id_has_the_same_one_each_time() -> None:
    value = encoded([{"from": "bob", "text": "x", "timestamp": "t"}, {"from": "bob", "text": "x", "timestamp": "u"}])
    first, again = TEAMS.inbox("a", value), TEAMS.inbox("a", value)
    assert first is not None
    assert first == again
    assert len({one.id for one in first}) == 2


def test_sent_message_is_found_in_the_result_of_its_call() -> None:
    routing = {"sender": "alice", "target": "@team-lead", "summary": "s", "content": "hi"}
    text = json.dumps({"success": True, "msg_id": "m1", "routing": routing})
    found = TEAMS.sent({"name": "SendMessage", "error": False, "text": text})
    assert found is not None
    assert (found.id, found.sender, found.recipient, found.text) == ("m1", "alice", "team-lead", "hi")
    assert TEAMS.sent({"name": "Bash", "error": False, "text": text}) is None
    assert TEAMS.sent({"name": "SendMessage", "error": True, "text": text}) is None
    assert TEAMS.sent({"name": "SendMessage", "error": False, "text": text[:-9]}) is None


@pytest.mark.req("S5-39")
@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\0b", "/etc", ".lock", "x" * 201, "日" * 70, "t.deleted-1", "a\nb"],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    assert not TEAMS.is_name(name)
    assert TEAMS.record_of(f"{name}.json") is None
    found = TEAMS.config(TEAM, encoded({**HEAD, "members": [{"name": name}]}))
    assert found is not None
    assert found.members == ()


def test_only_records_are_files_of_a_team() -> None:
    names = ["1.json", "alice.json", ".lock", ".highwatermark", "1.lock", "1.json.tmp.0123abcd", ".json", "x"]
    assert [TEAMS.record_of(name) for name in names] == ["1", "alice", *[None] * 6]


@pytest.mark.req("S5-26")
@given(JSON, st.integers(0, 400))
def test_parsers_never_raise(value: Any, size: int) -> None:
    content = json.dumps(value).encode()[:size]
    for one in (content, json.dumps(value).encode(), json.dumps({"members": value}).encode(), bytes([size % 256]) * 3):
        TEAMS.config("t", one)
        TEAMS.task("1", one)
        TEAMS.inbox("a", one)
        transcripts.helper("agent-aalice-0123456789abcdef.jsonl", one)
    TEAMS.sent({"name": "SendMessage", "text": content.decode("utf-8", "replace")})
    TEAMS.sent({"name": "SendMessage", "text": value})


# --- Transcripts --------------------------------------------------------------------------------------------


def read(helper: Helper | None, *lines: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    reader, state, events = transcripts.reader(helper, NO_SECRETS), dict[str, Any](), []
    for line in lines:
        state, some, _ = reader(state, encoded(line), None)
        events += some
    return events


def received(*messages: tuple[str, str], head: str = "", **more: Any) -> dict[str, Any]:
    parts = (
        f'<teammate-message teammate_id="{name}" color="blue" summary="a > b">\n{text}\n</teammate-message>'
        for name, text in messages
    )
    return {"type": "user", "uuid": "u1", "message": {"content": head + "\n\n".join(parts)}, **more}


def test_transcript_of_a_teammate_is_that_of_a_run() -> None:
    about = {"taskKind": "in_process_teammate", "name": "alice", "teamName": TEAM, "agentType": "alice"}
    helper = transcripts.helper("agent-aalice-0123456789abcdef.jsonl", encoded(about))
    assert helper.teammate == f"alice@{TEAM}"
    answer = {"id": "m1", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"}
    line = {"type": "assistant", "isSidechain": True, "message": answer}
    events = read(helper, received(("team-lead", "go"), isSidechain=True), line)
    assert [kind for kind, _ in events] == ["turn.started", "input", "text", "turn.ended"]
    assert "parent" not in events[2][1]
    assert events[3][1]["result"] == "done"


def test_teammate_without_its_description_is_no_helper_yet() -> None:
    assert transcripts.helper("agent-aalice-0123456789abcdef.jsonl", b"").teammate == ""
    assert transcripts.helper("agent-0123456789abcdef.jsonl", b"").teammate is None
    assert transcripts.helper("agent-0123456789abcdef.jsonl", b'{"agentType": "Explore"}').teammate is None


def test_messages_of_teammates_are_inputs_from_them() -> None:
    idle = '{"type":"idle_notification","from":"bob"}'
    head = "Another Claude session sent a message:\n"
    events = read(None, received(("alice", "one"), ("bob", idle), ("bob", "two\nlines"), head=head))
    assert events[0] == ("turn.started", {"turn": 1, "origin": "teammate"})
    found = [(data["sender"]["name"], data["text"], data["id"]) for kind, data in events if kind == "input"]
    assert found == [("alice", "one", "u1"), ("bob", "two\nlines", "u1#1")]


def test_prompt_ends_a_turn_that_left_no_line() -> None:
    read = transcripts.reader(None, NO_SECRETS)
    state: dict[str, Any] = {}
    told: list[tuple[str, Any]] = []
    for text in ("first", "second"):
        line = {"type": "user", "uuid": text, "origin": {"kind": "human"}, "message": {"content": text}}
        state, events, _ = read(state, json.dumps(line).encode(), None)
        told += [(kind, data.get("turn")) for kind, data in events]
    started, ended = ("turn.started", 1), ("turn.ended", 1)
    assert told == [("input", None), started, ended, ("input", None), ("turn.started", 2)]


def test_prompt_that_a_person_typed_is_not_from_a_teammate() -> None:
    events = read(None, received(("alice", "one"), origin={"kind": "human"}, promptSource="typed"))
    assert [(kind, data.get("kind"), data.get("origin")) for kind, data in events] == [
        ("input", "message", None),
        ("turn.started", None, None),
    ]
