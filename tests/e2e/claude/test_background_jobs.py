"""Background jobs of the real CLI, which its own daemon runs beyond the process tree of the run that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, bash, real_cli, says
from e2e.commands import data_of, make_gate, open_gate, run, shown, spawn, wait_for, waited
from patience import PATIENCE
from world import Hocket

HANG = {"when": {"prompt": "hang"}, "do": [{"say": "working"}, "hang"]}
STARTS_A_JOB = bash(f"'{real_cli()}' --bg 'hang, please' </dev/null")


@pytest.fixture
def home(claude: ClaudeSetup, world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's home in which interactive sessions start without a dialogue. Remaining processes are ended."""
    user = world / "user"
    (user / ".claude").mkdir()
    (user / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True}))
    claude.use_script(
        HANG,
        {"when": {"prompt": "start a job"}, "do": [STARTS_A_JOB, {"say": "started"}]},
        {"when": {"prompt": "wait"}, "do": [bash("cat gate"), {"say": "waited"}]},
        says("fine"),
    )
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "rehearsal")
    monkeypatch.setenv("CLAUDE_CODE_SANDBOXED", "1")
    yield user
    for pid in processes_of(user):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(user))


def processes_of(user: Path) -> list[int]:
    """The CLI's daemon, its helpers and its jobs, by their home; nothing else outside of Hocket's runs has it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = b"HOME=%b" % os.fsencode(user) in (entry / "environ").read_bytes().split(b"\0")
            if is_ours and b"claude" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], object]) -> None:
    """Poll, because changes by another program give no event."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def jobs(user: Path) -> dict[str, int]:
    """The processes of background jobs by the sessions, as the CLI records them."""
    found = {}
    for path in (user / ".claude/sessions").glob("*.json"):
        try:
            record = json.loads(path.read_text())
        except (ValueError, OSError):
            continue  # being written or removed
        if record.get("jobId") and Path(f"/proc/{record['pid']}").exists():
            found[record["sessionId"]] = record["pid"]
    return found


def start_job(project: Path) -> None:
    """Start a job as a user does in a terminal."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    argv = [str(real_cli()), "--bg", "hang, please"]
    subprocess.run(
        argv, cwd=project, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=PATIENCE
    )


def job_notices(hocket: Hocket, run_id: str) -> list[str]:
    return [data["text"] for data in data_of(hocket, run_id, "notice") if data["kind"] == "job"]


BYPASS = ("--", "--permission-mode", "bypassPermissions")


@pytest.mark.req("S3-60")
def test_only_background_jobs_of_run_end_with_it(home: Path, hocket: Hocket, project: Path) -> None:
    start_job(project)
    until(lambda: len(jobs(home)) == 1)
    (first,) = jobs(home)
    output = run(hocket, "claude", "-p", "start a job", *BYPASS)
    assert (output.code, output.ended["result"]) == (0, "started"), output.ended
    (notice,) = job_notices(hocket, output.leaf)
    assert "which this run had started, was ended with it" in notice
    until(lambda: [*jobs(home)] == [first])
    assert [row["id"] for row in json.loads(hocket("ps", "--observed", "--json").stdout) if row["pid"]] == [first]


def test_job_that_names_no_session_is_only_reported(home: Path, hocket: Hocket, project: Path) -> None:
    gate = make_gate(project / "gate")
    run_id = spawn(hocket, "claude", "-p", "wait", *BYPASS)
    wait_for(hocket, run_id, "tool.started")
    start_job(project)
    until(lambda: len(jobs(home)) == 1)
    open_gate(gate)
    assert waited(hocket, run_id)[0] == 0
    (notice,) = job_notices(hocket, run_id)
    assert f"background job {next(iter(jobs(home)))[:8]} began in {project}" in notice
    assert "does not name the session" in notice
    assert len(jobs(home)) == 1
    assert shown(hocket, run_id)["status"] == "done"
