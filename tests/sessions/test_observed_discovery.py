"""Finding sessions that Hocket did not start, in homes that are large, hostile, or half written."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sessions.claude_home import ClaudeHome, set_age, start_process, turn

from hocket.errors import AmbiguousRun, NotFound, UsageError
from hocket.model import Origin, Reason, Status
from hocket.sessions.observed.discovery import FoundSession, describe, find, find_all

BIG = 100 * 1024 * 1024


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeHome:
    return ClaudeHome(tmp_path / "user/.claude")


@pytest.fixture
def env(claude: ClaudeHome) -> dict[str, str]:
    return {"HOME": str(claude.root.parent)}


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that stands for a CLI."""
    with start_process() as process:
        yield process.pid
        process.kill()


def ids(found: list[FoundSession]) -> list[str]:
    return [one.id for one in found]


def test_home_without_sessions(env: dict[str, str]) -> None:
    assert find_all(env, 0.0) == []
    assert find_all({"PATH": "/bin"}, 0.0) == []


def test_session_without_process_has_an_unknown_outcome(claude: ClaudeHome, env: dict[str, str]) -> None:
    session = claude.talk("fix it", "fixed", agent="plain")
    (found,) = find_all(env, 0.0)
    run, prompt, last = describe(found)
    assert (run.id, run.origin, run.agent, run.cwd, run.number) == (session, Origin.OBSERVED, "plain", "/p", 0)
    assert (run.status, run.reason, run.pid, prompt, last) == (
        Status.LOST,
        Reason.PROCESS_GONE,
        None,
        "fix it",
        "fixed",
    )
    assert (run.transcript, run.ended_at) == (str(claude.path(session)), claude.path(session).stat().st_mtime)


@pytest.mark.parametrize(
    ("status", "expected"), [("busy", Status.RUNNING), ("idle", Status.WAITING), ("waiting", Status.WAITING)]
)
def test_state_is_that_of_the_process(
    claude: ClaudeHome, env: dict[str, str], pid: int, status: str, expected: Status
) -> None:
    session = claude.talk("go", "going")
    claude.live(session, pid, status=status, agent="planner", startedAt=1000)
    (found,) = find_all(env, time.time() + 1000)
    run = describe(found).run
    assert (run.id, run.status, run.reason, run.pid, run.agent) == (session, expected, None, pid, "planner")


def test_live_session_without_transcript_is_listed(claude: ClaudeHome, env: dict[str, str], pid: int) -> None:
    session = str(uuid.uuid4())
    record = claude.live(session, pid, cwd="/elsewhere")
    run = describe(find(session, env)).run
    assert (run.cwd, run.transcript, run.status) == ("/elsewhere", None, Status.RUNNING)
    record.unlink()
    assert find_all(env, 0.0) == []


@pytest.mark.req("S3-53")
@pytest.mark.parametrize(
    "change", [{"procStart": "1"}, {"procStart": None}, {"pid": 1}, {"pid": 2**22 + 5}, {"sessionId": "x"}]
)
def test_pid_alone_does_not_make_a_session_live(
    claude: ClaudeHome, env: dict[str, str], pid: int, change: dict[str, object]
) -> None:
    session = claude.talk("go", "going")
    path = claude.live(session, pid)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert find(session, env).process is None


def test_record_of_another_process_does_not_count(claude: ClaudeHome, env: dict[str, str], pid: int) -> None:
    session = claude.talk("go", "going")
    claude.live(session, pid).rename(claude.root / "sessions/77.json")
    assert find(session, env).process is None


def test_secret_beside_a_record_is_never_opened(claude: ClaudeHome, env: dict[str, str], pid: int) -> None:
    session = claude.talk("go", "going")
    claude.live(session, pid)
    secret = claude.root / f"sessions/{pid}.0a1b.key"
    secret.write_text("secret")
    set_age(secret, 3600, time.time())
    before = secret.stat().st_atime_ns
    assert find(session, env).process is not None
    assert secret.stat().st_atime_ns == before


def test_old_sessions_are_listed_on_request(claude: ClaudeHome, env: dict[str, str]) -> None:
    now = time.time()
    old, new = claude.talk("old", "old"), claude.talk("new", "new")
    set_age(claude.path(old), 10 * 86400, now)
    assert ids(find_all(env, now - 86400)) == [new]
    assert ids(find_all(env, 0.0)) == [old, new]


@pytest.mark.parametrize("cwd", ["/a\0b", "relative"])
def test_impossible_directory_is_left_out(claude: ClaudeHome, env: dict[str, str], pid: int, cwd: str) -> None:
    told, live, job = claude.talk("hi", "hello", cwd=cwd), str(uuid.uuid4()), str(uuid.uuid4())
    claude.live(live, pid, cwd=cwd)
    claude.job("0a1b2c3d", job, cwd=cwd)
    assert [describe(find(session, env)).run.cwd for session in (told, live, job)] == ["", "", ""]


def test_job_without_transcript_is_listed(claude: ClaudeHome, env: dict[str, str]) -> None:
    session = str(uuid.uuid4())
    claude.job("1991f567", session)
    (found,) = find_all(env, 0.0)
    assert found.job is not None
    run, prompt, last = describe(found)
    assert (run.id, run.cwd, prompt, last) == (session, "/p", "job words", None)


def test_configuration_directory_can_be_elsewhere(claude: ClaudeHome, env: dict[str, str], tmp_path: Path) -> None:
    claude.talk("at home", "at home")
    moved = ClaudeHome(tmp_path / "moved")
    session = moved.talk("moved", "moved")
    assert ids(find_all({**env, "CLAUDE_CONFIG_DIR": str(moved.root)}, 0.0)) == [session]


def test_last_words_are_found_behind_large_records(claude: ClaudeHome, env: dict[str, str]) -> None:
    session = claude.transcript(*turn("go", "the answer"), {"type": "api-request-blob", "message": "x" * 300_000})
    assert describe(find(session, env)).last == "the answer"


# --- Names --------------------------------------------------------------------------------------------------


def test_beginning_of_an_id_names_a_session(claude: ClaudeHome, env: dict[str, str]) -> None:
    session = claude.talk("go", "going")
    assert find(session[:8], env).id == find(session, env).id == session
    claude.talk("go", "going", session=session[:9] + str(uuid.uuid4())[9:])
    with pytest.raises(AmbiguousRun):
        find(session[:8], env)


@pytest.mark.parametrize(
    "ref", ["", "1234567", "../../../../etc/passwd", "x" * 200, "a\0b-------", "ümlauts-", "*" * 36]
)
def test_invalid_name_is_refused(env: dict[str, str], ref: str) -> None:
    with pytest.raises(UsageError, match="invalid session"):
        find(ref, env)


def test_unknown_name_is_an_error_with_a_hint(env: dict[str, str]) -> None:
    with pytest.raises(NotFound) as caught:
        find(str(uuid.uuid4()), env)
    assert "hocket ps --observed" in (caught.value.hint or "")


# --- Hostile homes ------------------------------------------------------------------------------------------


def test_links_are_not_followed(claude: ClaudeHome, env: dict[str, str], tmp_path: Path, pid: int) -> None:
    elsewhere = ClaudeHome(tmp_path / "elsewhere")
    session = elsewhere.talk("secret", "secret")
    record = elsewhere.live(session, pid)
    for folder in ("projects", "sessions", "projects/-q", "jobs/1991f567"):
        (claude.root / folder).mkdir(parents=True)
    (claude.root / "projects/-p").symlink_to(elsewhere.root / "projects/-p")
    (claude.root / f"projects/-q/{session}.jsonl").symlink_to(elsewhere.path(session))
    (claude.root / f"sessions/{pid}.json").symlink_to(record)
    (claude.root / "jobs/1991f567/state.json").symlink_to(elsewhere.job("1991f567", session))
    assert find_all(env, 0.0) == []


def test_other_files_are_left_out(claude: ClaudeHome, env: dict[str, str], pid: int) -> None:
    good = claude.talk("go", "going")
    projects, sessions, jobs = (claude.root / name for name in ("projects", "sessions", "jobs"))
    for folder in (sessions, jobs, projects / f"-p/{uuid.uuid4()}.jsonl", sessions / f"{pid}.json", jobs / "0a0a0a0a"):
        folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(projects / f"-p/{uuid.uuid4()}.jsonl")
    os.mkfifo(sessions / "99.json")
    os.mkfifo(jobs / "0a0a0a0a/state.json")
    for name in ("notes.txt", "x.jsonl", f"{uuid.uuid4()}.jsonl.tmp", f"\x1b[31m{uuid.uuid4()}.jsonl"):
        (projects / "-p" / name).write_text("{}")
    for odd in (b"\xff\xfe", b"\x1b[2J", b"a\nb"):
        folder = Path(os.fsdecode(os.fsencode(projects) + b"/" + odd))
        folder.mkdir()
        (folder / f"{uuid.uuid4()}.jsonl").write_text("{}")
    (sessions / "5.json").write_bytes(b"x" * 300_000)
    (sessions / "6.json").write_bytes(b'{"pid": 6, "sessio')
    (sessions / "7.json").touch()
    (projects / "file").touch()
    (jobs / "pins.json").write_text("[]")
    assert ids(find_all(env, 0.0)) == [good]


def test_folders_that_are_files_are_empty(claude: ClaudeHome, env: dict[str, str]) -> None:
    claude.root.mkdir(parents=True)
    for name in ("projects", "sessions", "jobs"):
        (claude.root / name).touch()
    assert find_all(env, 0.0) == []


def test_line_of_100_megabytes_is_read_quickly(claude: ClaudeHome, env: dict[str, str]) -> None:
    session = claude.talk("go", "going")
    with claude.path(session).open("r+b") as file:
        file.seek(BIG)
        file.write(b"\xff\xfe\n")
    began = time.process_time()
    run, prompt, last = describe(find(session, env))
    assert (run.id, prompt, last) == (session, "go", None)
    assert time.process_time() - began < 1.0


def test_home_with_10_000_transcripts_is_searched_quickly(claude: ClaudeHome, env: dict[str, str]) -> None:
    now = time.time()
    for project in range(100):
        folder = claude.root / f"projects/-p{project}"
        folder.mkdir(parents=True)
        for number in range(100):
            path = folder / f"{project:08x}-0000-4000-8000-{number:012x}.jsonl"
            path.touch()
            os.utime(path, (now - 30 * 86400, now - 30 * 86400))
    recent = claude.talk("go", "going")
    began = time.process_time()
    assert ids(find_all(env, now - 86400)) == [recent]
    assert find(recent[:8], env).id == recent
    assert time.process_time() - began < 2.0
