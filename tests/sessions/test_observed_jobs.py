"""Background jobs at the end of a run, with a roster as the CLI writes it and a small program in place of the CLI."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sessions.claude_home import ClaudeHome, start_process
from world import Bin

from hocket.model import Kind, Run, Spec
from hocket.sessions.observed.jobs import end_jobs, has_jobs

OWN, OTHER, JOB_SESSION = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
RUN = Run("r1", 1, Kind.LEAF, "claude", "claude", None, "r1", 0, "/p", 0.0, session_id=OWN, started_at=1000.0)


class Jobs:
    """A home with one job, whose process lives, and a program that notes how it is called."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes]) -> None:
        self.home = ClaudeHome(root / "user/.claude")
        self.process = process
        self.calls = root / "calls"
        self._root = root

    def program(self, body: str) -> str:
        (self._root / "bin").mkdir(exist_ok=True)
        note = f"import os, sys\nopen({str(self.calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        return str(Bin(self._root / "bin")("claude", note + body))

    def ends(self) -> str:
        return self.program(f"os.kill({self.process.pid}, {signal.SIGKILL})")

    def end(self, program: str) -> list[str]:
        spec = Spec("claude", "claude", (program, "-p"), "/p", {"HOME": str(self.home.root.parent)})
        return end_jobs(RUN, spec) if has_jobs(spec) else []

    def write(self, *launchers: str, **more: Any) -> None:
        self.home.roster(**{"1991f567": self.home.worker(self.process.pid, JOB_SESSION, *launchers, **more)})

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with start_process() as process:
        yield Jobs(tmp_path, process)
        process.kill()


@pytest.mark.req("S3-60")
def test_job_of_the_session_is_ended_by_cli(jobs: Jobs) -> None:
    jobs.write(OTHER, OWN)
    (notice,) = jobs.end(jobs.ends())
    assert "1991f567, which this run had started, was ended with it" in notice
    assert (jobs.called, jobs.process.wait()) == (["stop 1991f567"], -signal.SIGKILL)


@pytest.mark.parametrize(
    ("launchers", "more"),
    [
        ((OTHER,), {"startedAt": 2_000_000}),
        ((), {"startedAt": 999_000}),
        ((), {"startedAt": 2_000_000, "cwd": "/pp"}),
        ((), {}),
        ((OWN,), {"procStart": "1"}),
        ((OWN,), {"procStart": None}),
        ((OWN,), {"pid": 2**22 + 5}),
    ],
)
def test_other_job_is_neither_ended_nor_reported(jobs: Jobs, launchers: tuple[str, ...], more: dict[str, Any]) -> None:
    jobs.write(*launchers, **more)
    assert (jobs.end(jobs.ends()), jobs.called) == ([], [])


@pytest.mark.parametrize("cwd", ["/p", "/p/below"])
def test_job_of_an_unknown_starter_is_only_reported(jobs: Jobs, cwd: str) -> None:
    jobs.write(startedAt=2_000_000, cwd=cwd)
    (notice,) = jobs.end(jobs.ends())
    assert f"1991f567 began in {cwd} while this run worked" in notice
    assert f"process {jobs.process.pid}" in notice
    assert jobs.called == []


def test_job_not_ended_by_cli_is_reported(jobs: Jobs) -> None:
    jobs.write(OWN)
    (notice,) = jobs.end(jobs.program("sys.exit('no such job')"))
    assert f"was not ended (process {jobs.process.pid}): no such job" in notice
    (notice,) = jobs.end("/nowhere/claude")
    assert "No such file" in notice


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"workers": 5}', b'{"workers": {"1991f567": 5}}', b"x" * 300_000]
)
def test_roster_that_cannot_be_read_names_no_job(jobs: Jobs, content: bytes) -> None:
    path = jobs.home.roster()
    path.write_bytes(content)
    assert jobs.end(jobs.ends()) == []


def test_roster_that_is_no_file_names_no_job(jobs: Jobs, tmp_path: Path) -> None:
    assert jobs.end(jobs.ends()) == []
    path = jobs.home.roster()
    path.unlink()
    path.mkdir()
    assert jobs.end(jobs.ends()) == []
    path.rmdir()
    jobs.write(OWN)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert (jobs.end(jobs.ends()), jobs.called) == ([], [])


def test_number_of_jobs_does_not_delay_the_end(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.sessions.observed.jobs.ALL_SECONDS", 1.0)
    job = jobs.home.worker(jobs.process.pid, JOB_SESSION, OWN)
    jobs.home.roster(**{f"1991f5{number:02}": job for number in range(50)})
    notices = jobs.end(jobs.program(""))
    assert (len(notices), len(jobs.called)) == (50, 1)
    assert all("was not ended" in notice for notice in notices)
