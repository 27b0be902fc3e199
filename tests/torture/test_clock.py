"""A machine whose time of day is set while runs are at work: by three hours ahead, by two hours back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, verdict, wait_for
from world import Bin, Hocket

FORGED = """
import os, time
_time, _shift = time.time, os.environ["FORGED_SHIFT"]

def _forged():
    with open(_shift) as file:
        return _time() + float(file.read() or 0)

time.time = _forged
"""
HOURS = 3600.0
"""An interval that no part of a test takes."""


@pytest.fixture
def set_clock(world: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time of day of every process of Hocket's that the test starts, by so many hours."""
    folder = world / "forged"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FORGED)
    shift = folder / "shift"
    shift.write_text("0")
    monkeypatch.setenv("FORGED_SHIFT", str(shift))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))

    def set_by(hours: float) -> None:
        fresh = shift.with_suffix(".new")
        fresh.write_text(str(hours * HOURS))
        fresh.replace(shift)

    return set_by


@pytest.mark.parametrize("hours", [3, -2])
def test_elapsed_time_is_correct_when_clock_is_set(
    hours: float, set_clock: Callable[[float], None], hocket: Hocket, agent: Bin, home: Path, project: Path
) -> None:
    """Torture row 56: while it runs, across a restart of the server, and after its end."""
    agent("held", "print('ready', flush=True)\nopen('gate').read()")
    os.mkfifo(project / "gate")
    installation = Installation(home, project)
    before = time.monotonic()
    run = installation.spawn("held")
    installation.said(run, b"ready")
    wait_for(lambda: installation.run(run)["status"] == "running", "the server to notice its start")
    begun = time.monotonic()
    set_clock(hours)

    def check(elapsed: float, since: float) -> None:
        assert since <= elapsed <= time.monotonic() - before

    seen = time.monotonic() - begun
    check(installation.run(run)["elapsed"], seen)
    installation.kill_server()
    seen = time.monotonic() - begun
    check(installation.run(run)["elapsed"], seen)
    assert " 0:" in hocket("ps").stdout
    assert "elapsed  0:" in hocket("show", "1").stdout
    (project / "gate").open("w").close()
    ended = installation.ended(run)
    check(ended["elapsed"], seen)
    (end,) = [event["data"] for event in installation.events(run) if event["type"] == "run.ended"]
    assert end["duration"] == ended["elapsed"]
    assert abs((ended["ended_at"] - ended["started_at"]) / HOURS - hours) < 0.5, "times of day stay times of day"


@pytest.mark.parametrize("hours", [3, -2])
def test_summary_is_correct_when_clock_is_set(
    hours: float, set_clock: Callable[[float], None], hocket: Hocket, agent: Bin, home: Path, project: Path
) -> None:
    """Torture row 56: the output of a command that watched the run."""
    agent("held", "print('ready', flush=True)\nopen('gate').read()")
    agent("brief", "print('brief')")
    os.mkfifo(project / "gate")
    watching = hocket.start("run", "brief -> held", "--plain")
    installation = Installation(home, project)
    wait_for(lambda: "ready" in str(installation.client.request("GET", "/api/runs?all=1")), "the second step")
    set_clock(hours)
    (project / "gate").open("w").close()
    _, told = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 0, told
    lines = [line for line in told.splitlines() if "done" in line]
    assert len(lines) == 3, told
    for line in lines:
        assert " 0:" in line, told
    for child in installation.client.request("GET", "/api/runs?all=1"):
        assert 0 <= child["elapsed"] < 60


def test_time_limit_is_kept_when_clock_is_set(
    set_clock: Callable[[float], None], agent: Bin, home: Path, project: Path
) -> None:
    """Torture row 56: a limit neither strikes early nor waits for hours."""
    agent("sleeper", "import signal\nprint('ready', flush=True)\nsignal.pause()")
    installation = Installation(home, project)
    long, short = installation.spawn("sleeper", timeout=600), installation.spawn("sleeper", timeout=3)
    installation.said(long, b"ready")
    set_clock(-2)
    assert verdict(installation.ended(short))[:2] == ("failed", "timeout")
    set_clock(3)
    installation.kill_server()
    assert installation.run(long)["status"] == "running"
    installation.client.request("POST", f"/api/runs/{long}/stop", {})
    assert verdict(installation.ended(long))[:2] == ("stopped", "stopped")
