"""``hocket import``: sessions that Hocket did not start become runs, with records as the CLI writes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.commands import data_of, events_of, server_pid, shown, waited
from patience import PATIENCE
from scripted_claude import install_claude
from sessions.claude_home import ClaudeHome, start_process, turn
from world import Hocket

from hocket.client import Client
from hocket.errors import HocketError

pytestmark = pytest.mark.shared_server


@pytest.fixture
def claude(world: Path) -> ClaudeHome:
    return ClaudeHome(world / "user/.claude")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a CLI."""
    with start_process() as process:
        yield process
        process.kill()


def imported(hocket: Hocket, session: str) -> str:
    done = hocket("import", session, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return str(json.loads(done.stdout)["run"])


def say(claude: ClaudeHome, session: str, *records: dict[str, Any]) -> None:
    with claude.path(session).open("ab") as file:
        file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))


def texts(hocket: Hocket, run: str) -> list[str]:
    return [data["text"] for data in data_of(hocket, run, "text")]


def refusal(hocket: Hocket, *words: str) -> str:
    done = hocket(*words)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_ended_session_is_imported_whole_and_ends(hocket: Hocket, claude: ClaudeHome, project: Path) -> None:
    session = claude.talk("fix it", "fixed", cwd=str(project))
    done = hocket("import", session[:8])
    assert (done.returncode, done.stderr) == (0, "")
    run = shown(hocket, done.stdout.removeprefix("run ").strip())
    assert (run["origin"], run["status"], run["reason"]) == ("observed", "lost", "process_gone")
    assert (run["result"], run["session_id"], run["cwd"], run["pid"]) == ("fixed", session, str(project), None)
    assert run["transcript"] == str(claude.path(session))
    assert run["ended_at"] == pytest.approx(claude.path(session).stat().st_mtime)
    lines = hocket("logs", run["id"]).stdout.splitlines()
    said = ["> fix it", "fixed", "ended: its process is gone"]
    assert [line.partition(" claude ")[2] for line in lines] == said
    summary = hocket("attach", run["id"]).stderr
    assert "- ended  claude" in summary
    assert f"- ended  run {run['number']}  0:" in summary
    assert "lost" not in summary
    assert hocket("ps", "-a", "--project", project).stdout.split()[-1] == "fixed"
    assert imported(hocket, session) == run["id"]


def test_session_in_an_impossible_directory_is_imported(hocket: Hocket, claude: ClaudeHome) -> None:
    run = imported(hocket, claude.talk("fix it", "fixed", cwd="/a\0b"))
    assert (shown(hocket, run)["result"], shown(hocket, run)["cwd"]) == ("fixed", "")
    assert "needs a working directory" in refusal(hocket, "resume", run)


@pytest.mark.req("S3-27", "S3-30")
def test_live_session_is_followed_until_its_process_ends(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes]
) -> None:
    session = claude.talk("one", "first")
    record = claude.live(session, process.pid)
    run = imported(hocket, session)
    assert imported(hocket, session[:8]) == run
    say(claude, session, *turn("two", "second"))
    claude.live(session, process.pid, status="idle")
    until(lambda: texts(hocket, run)[-1:] == ["second"] and shown(hocket, run)["status"] == "waiting")
    claude.live(session, process.pid)
    until(lambda: shown(hocket, run)["status"] == "running")
    say(claude, session, *turn("three", "third"))
    record.unlink()
    code, ended = waited(hocket, run)
    assert (code, ended["status"], ended["reason"], ended["result"]) == (1, "lost", "process_gone", "third")
    assert texts(hocket, run) == ["first", "second", "third"]
    assert [data["text"] for data in data_of(hocket, run, "input")] == ["one", "two", "three"]
    assert (ended["pid"], imported(hocket, session)) == (process.pid, run)


def test_last_lines_of_live_session_follow_its_transcript(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes], home: Path
) -> None:
    session = claude.talk("one", "first")
    claude.live(session, process.pid)
    run = imported(hocket, session)
    client = Client(str(home))
    for number in range(300):
        say(claude, session, *turn(f"prompt {number}", f"answer {number}"))
        if number % 100 == 0:  # At once, however much of it is recorded by then.
            events = client.request("GET", f"/api/runs/{run}/transcript?last=1000")
            assert [one["data"]["text"] for one in events if one["type"] == "text"][-1] == f"answer {number}"
    shown_lines = hocket("logs", run, "-n", "3").stdout.splitlines()
    assert [line.partition(" claude ")[2] for line in shown_lines][-2:] == ["> prompt 299", "answer 299"]
    until(lambda: texts(hocket, run)[-1] == "answer 299")
    recorded = hocket("logs", run).stdout.splitlines()[-3:]
    assert shown_lines == recorded, "the same lines as those of the recorded events"
    own = hocket.created("run", "true", "--detach")
    assert "has its output" in refusal_of(client, f"/api/runs/{own}/transcript")
    process.kill()
    assert waited(hocket, run)[1]["status"] == "lost"


def refusal_of(client: Client, path: str) -> str:
    with pytest.raises(HocketError) as refused:
        client.request("GET", path)
    return refused.value.message


def test_acting_on_an_observed_run_is_refused(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes]
) -> None:
    session = claude.talk("one", "first")
    claude.live(session, process.pid)
    run = imported(hocket, session)
    for words in (("stop", run), ("send", run, "more"), ("send", run, "--interrupt")):
        said = refusal(hocket, *words)
        assert f"process {process.pid}" in said
        assert f"hocket resume {shown(hocket, run)['number']}" in said
    assert f"process {process.pid}" in refusal(hocket, "answer", run, "allow")
    assert f"open in process {process.pid}" in refusal(hocket, "resume", run, "-p", "more")
    assert "no output" in hocket("logs", run, "--raw").stderr
    assert process.poll() is None
    process.kill()
    assert waited(hocket, run)[1]["status"] == "lost"
    assert "hocket resume" in refusal(hocket, "send", run, "more")


def test_ended_session_with_live_process_is_not_resumed(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes]
) -> None:
    session = claude.talk("one", "first")
    run = imported(hocket, session)
    claude.live(session, process.pid)
    assert f"open in process {process.pid}" in refusal(hocket, "resume", run, "-p", "more")


def test_record_that_is_being_written_ends_nothing(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes]
) -> None:
    session, other = claude.talk("one", "first"), claude.talk("two", "second")
    record = claude.live(session, process.pid, status="idle")
    with start_process() as short:
        claude.live(other, short.pid)
        run, second = imported(hocket, session), imported(hocket, other)
        claude.live(session, process.pid)
        until(lambda: shown(hocket, run)["status"] == "running")
        record.write_bytes(b"")
        short.kill()
    assert waited(hocket, second)[1]["reason"] == "process_gone"
    assert shown(hocket, run)["status"] == "running"
    claude.live(session, process.pid, status="idle")
    until(lambda: shown(hocket, run)["status"] == "waiting")
    claude.live(str(uuid.uuid4()), process.pid)
    assert waited(hocket, run)[1]["reason"] == "process_gone"


def test_continued_session_becomes_a_new_run(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes]
) -> None:
    session = claude.transcript(*turn("one", "first"), {"type": "cost-state", "totalCostUSD": 0.5})
    run = imported(hocket, session)
    claude.live(session, process.pid)
    say(claude, session, *turn("two", "second"), {"type": "cost-state", "totalCostUSD": 0.75})
    second = imported(hocket, session)
    assert second not in (run, "")
    process.kill()
    assert (waited(hocket, second)[1]["cost_usd"], texts(hocket, second)) == (pytest.approx(0.25), ["second"])
    assert (shown(hocket, run)["cost_usd"], texts(hocket, run)) == (0.5, ["first"])
    assert imported(hocket, session) == second


@pytest.mark.own_server
def test_imported_session_survives_a_killed_server(
    hocket: Hocket, claude: ClaudeHome, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-the-server")
    session = claude.talk("one a-key-of-the-server", "first")
    claude.live(session, process.pid)
    run = imported(hocket, session)
    until(lambda: texts(hocket, run) == ["first"])
    os.kill(server_pid(hocket), signal.SIGKILL)
    say(claude, session, *turn("two", "second"))
    assert imported(hocket, session) == run
    until(lambda: texts(hocket, run) == ["first", "second"])
    os.kill(server_pid(hocket), signal.SIGKILL)
    say(claude, session, *turn("three", "third"))
    process.kill()
    process.wait()
    ended = waited(hocket, run)[1]
    assert (ended["reason"], ended["result"]) == ("process_gone", "third")
    assert texts(hocket, run) == ["first", "second", "third"]
    assert "a-key-of-the-server" not in hocket("logs", run, "--json").stdout
    assert [event["type"] for event in events_of(hocket, run)].count("run.ended") == 1


def test_only_end_of_large_transcript_is_read(hocket: Hocket, claude: ClaudeHome) -> None:
    blob = {"type": "api-request-blob", "message": "x" * 1024 * 1024}
    session = claude.transcript(*turn("old", "long ago"), *[blob] * 33, *turn("new", "just now"))
    run = imported(hocket, session)
    assert texts(hocket, run) == ["just now"]
    (notice,) = data_of(hocket, run, "notice")
    assert "only the last 32 MB" in notice["text"]


def test_transcripts_of_sub_agents_belong_to_the_run(hocket: Hocket, claude: ClaudeHome) -> None:
    session = claude.talk("go", "done")
    folder = claude.path(session).with_suffix("") / "subagents"
    folder.mkdir(parents=True)
    (folder / "agent-a1.meta.json").write_text(
        json.dumps({"agentType": "Explore", "description": "look", "toolUseId": "toolu_1"})
    )
    lines = [{**record, "isSidechain": True} for record in turn("look around", "nothing there")]
    (folder / "agent-a1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = imported(hocket, session)
    spoken = {data["text"]: data.get("parent") for data in data_of(hocket, run, "text")}
    assert spoken == {"done": None, "nothing there": "toolu_1"}
    assert [data["status"] for data in data_of(hocket, run, "member")] == ["started", "completed"]


def test_session_of_own_run_is_refused(
    hocket: Hocket, claude: ClaudeHome, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(install_claude(world / "bin")))
    assert hocket("run", "claude", "-p", "hello", "--json").returncode == 0
    own = hocket.runs()[-1]
    claude.talk("hello", "hello", session=own["session_id"])
    said = refusal(hocket, "import", own["session_id"])
    assert f"run {own['number']}, which Hocket started" in said
    assert f"hocket logs {own['number']}" in said


@pytest.mark.req("S3-24")
def test_unusual_sessions_are_imported(hocket: Hocket, claude: ClaudeHome) -> None:
    session, job = claude.talk("go", "done"), str(uuid.uuid4())
    path = claude.path(session)
    path.rename(path.with_name(f"session_{path.name}"))
    claude.job("1991f567", job)
    found = shown(hocket, imported(hocket, session))
    assert (found["result"], Path(found["transcript"]).name) == ("done", f"session_{path.name}")
    found = shown(hocket, imported(hocket, job))
    assert (found["status"], found["result"], found["transcript"]) == ("lost", None, None)


@pytest.mark.req("S3-25")
def test_misplaced_transcript_is_found_at_run_end(
    hocket: Hocket, claude: ClaudeHome, world: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(install_claude(world / "bin")))
    run = hocket.created("spawn", "claude", "-p", "hold")
    until(lambda: shown(hocket, run)["session_id"] is not None and shown(hocket, run)["status"] == "running")
    expected = shown(hocket, run)
    claude.talk("hold", "done", session=expected["session_id"], project="-elsewhere")
    # A newer one, whose path is not valid text and cannot be recorded.
    claude.talk("hold", "done", session=expected["session_id"], project="-\udcff")
    (project / "go").touch()
    ended = waited(hocket, run)[1]
    assert ended["status"] == "done"
    assert ended["transcript"] == str(claude.path(expected["session_id"], "-elsewhere")) != expected["transcript"]


@pytest.mark.parametrize("ref", ["1234567", "../../etc/passwd", "*" * 36, "ümlauts-"])
def test_invalid_session_is_refused(hocket: Hocket, ref: str) -> None:
    assert "invalid session" in refusal(hocket, "import", ref)


def test_unknown_and_ambiguous_sessions_are_refused(hocket: Hocket, claude: ClaudeHome) -> None:
    session = claude.talk("a", "b")
    claude.talk("a", "b", session=session[:9] + str(uuid.uuid4())[9:])
    assert "more than one session" in refusal(hocket, "import", session[:8])
    assert "hocket ps --observed" in refusal(hocket, "import", str(uuid.uuid4()))
    assert hocket.runs() == []


def test_session_that_was_not_imported_names_the_command(hocket: Hocket, claude: ClaudeHome) -> None:
    session = claude.talk("a", "b")
    for words in (("logs", "-f", session[:8]), ("show", session), ("attach", session), ("resume", session, "-p", "x")):
        assert f"hocket import {session[:8]}" in refusal(hocket, *words)


def until(condition: Callable[[], object]) -> None:
    """Nothing tells of what a server does by itself, so it is looked at until it is as wanted."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
