"""Sessions of the real CLI that Hocket did not start: listed, imported while they are live, and resumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, real_cli, says
from e2e.commands import data_of, following, run, run_output, shown, spawn, wait_for, waited
from world import Hocket

pytestmark = pytest.mark.shared_server

SCOUT = {"type": "general-purpose", "prompt": "look around", "description": "scout"}
LOOKS = says("looking", "nothing there", agent="general-purpose")
GOES = {"when": {"prompt": "send a scout"}, "do": [{"say": "go"}, {"agent": SCOUT}, {"say": "all seen"}]}


class PlainSession:
    """``claude -p`` as a user's own program would start it, with its input open."""

    def __init__(self, cwd: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
        streams = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
        argv = [str(real_cli()), "-p", *streams]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=pipe, stdout=pipe, text=True)
        self.id = ""

    def turn(self, text: str) -> None:
        """Send a message, and wait for the end of the turn."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            message = json.loads(line)
            self.id = message.get("session_id", self.id)
            if message["type"] == "result":
                return
        raise AssertionError("it ended without a result")

    def end(self) -> None:
        self.process.communicate()


@contextmanager
def plain_session(cwd: Path) -> Iterator[PlainSession]:
    session = PlainSession(cwd)
    try:
        yield session
    finally:
        session.process.kill()
        session.end()


def imported(hocket: Hocket, session: str) -> str:
    done = hocket("import", session, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return str(json.loads(done.stdout)["run"])


def until_said(hocket: Hocket, run_id: str, text: str) -> None:
    with following(hocket, run_id) as events:
        assert any(event["type"] == "text" and event["data"]["text"] == text for event in events)


def texts(hocket: Hocket, run_id: str) -> list[str]:
    return [data["text"] for data in data_of(hocket, run_id, "text")]


@pytest.mark.req("S3-27", "S3-29", "S3-30")
def test_live_session_is_imported_followed_and_resumed(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    claude.use_script(says("blue it was", prompt="what was it"), says("and on", prompt="go on"), says("noted: blue"))
    with plain_session(project) as session:
        session.turn("the colour is blue")
        (row,) = json.loads(hocket("ps", "--observed", "--json").stdout)
        assert (row["id"], row["origin"], row["pid"]) == (session.id, "observed", session.process.pid)
        run_id = imported(hocket, session.id[:8])
        until_said(hocket, run_id, "noted: blue")
        session.turn("go on")
        until_said(hocket, run_id, "and on")
        assert shown(hocket, run_id)["status"] in ("running", "waiting")
        refused = hocket("resume", run_id, "-p", "what was it?")
        assert (refused.returncode, f"open in process {session.process.pid}" in refused.stderr) == (2, True)
        session.end()
        code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["reason"], ended["result"]) == (1, "lost", "process_gone", "and on")
    assert texts(hocket, run_id) == ["noted: blue", "and on"]
    assert [data["text"] for data in data_of(hocket, run_id, "input")] == ["the colour is blue", "go on"]
    assert (ended["cwd"], ended["cost_usd"] > 0) == (str(project), True)
    done = hocket("resume", run_id, "-p", "what was it?", "--json")
    output = run_output(done.returncode, done.stdout, done.stderr)
    new = shown(hocket, output.events[-1]["run"])
    assert (output.code, new["status"], new["result"], new["origin"]) == (0, "done", "blue it was", "owned")
    assert (new["resumed_from"], new["cwd"], new["agent"]) == (run_id, str(project), "claude")
    assert new["session_id"] not in (None, session.id)
    for words in ("the colour is blue", "noted: blue", "what was it?"):
        assert words in claude.model.request_text()
    assert imported(hocket, session.id) == run_id


@pytest.mark.req("S3-24", "S3-26")
def test_sub_agents_are_read_for_long_path(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    place = project / ("long " * 20) / ("path." * 24)
    place.mkdir(parents=True)
    assert len(str(place)) > 200
    claude.use_script(LOOKS, GOES, says("hello"))
    with plain_session(place) as session:
        session.turn("send a scout")
        session.end()
    run_id = imported(hocket, session.id)
    found = shown(hocket, run_id)
    assert (found["status"], found["result"], found["cwd"]) == ("lost", "all seen", str(place))
    (call,) = (data for data in data_of(hocket, run_id, "tool.started") if data["name"] == "Agent")
    spoken = [(data["text"], data.get("parent")) for data in data_of(hocket, run_id, "text")]
    assert sorted(spoken, key=str) == [("all seen", None), ("go", None), ("looking\nnothing there", call["id"])]
    assert [data["status"] for data in data_of(hocket, run_id, "member")] == ["started", "completed"]
    own = run(hocket, "claude", "-p", "hello", cwd=place)
    assert own.code == 0, own.ended
    transcript = Path(shown(hocket, own.leaf)["transcript"])
    assert transcript.parent == Path(found["transcript"]).parent


@pytest.mark.req("S3-29", "S3-40")
def test_own_run_repeats_no_prompt_or_message(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(LOOKS, GOES, says("fine", prompt="and now"))
    own = spawn(hocket, "claude", "--session", "-p", "send a scout")
    wait_for(hocket, own, "turn.ended")
    assert hocket("send", own, "and now?", "--wait").stdout == "fine\n"
    assert hocket("stop", own).returncode == 0
    (created,) = data_of(hocket, own, "run.created")
    assert (created["prompt"], [data["text"] for data in data_of(hocket, own, "input") if "text" in data]) == (
        "send a scout",
        ["and now?"],
    )
    said = [data["text"] for data in data_of(hocket, own, "text") if "parent" not in data]
    calls = [(data["name"], data.get("parent")) for data in data_of(hocket, own, "tool.started")]
    assert (said, calls) == (["go", "all seen", "fine"], [("Agent", None)])
    transcripts = Path(shown(hocket, own)["transcript"]).with_suffix("").glob("subagents/*.jsonl")
    assert ["nothing there" in path.read_text() for path in transcripts] == [True]
