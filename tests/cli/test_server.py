"""``serve`` and ``server``: looked at and stopped, never started by looking."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

from patience import PATIENCE
from world import Bin, Hocket

STATUS_KEYS = {"running", "pid", "socket", "url", "token_file", "version", "runs_live", "home"}


def test_status_without_a_server_starts_none(hocket: Hocket, home: Path) -> None:
    done = hocket("server", "status", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["running"], found["pid"]) == (0, False, None)
    assert set(found) >= STATUS_KEYS
    assert hocket("server", "stop").returncode == 0
    assert list(home.iterdir()) == []


def test_stopping_the_server_keeps_its_runs(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("forever", "import time; print('up', flush=True); time.sleep(600)")
    ref = hocket.created("spawn", "forever")
    found = json.loads(hocket("server", "status", "--json").stdout)
    assert (found["running"], found["runs_live"], found["home"]) == (True, 1, str(home))
    assert stat.S_IMODE(os.stat(found["socket"]).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(found["token_file"]).st_mode) == 0o600
    assert f"pid {found['pid']}" in hocket("server", "status").stdout

    stopped = json.loads(hocket("server", "stop", "--json").stdout)
    assert (stopped["stopped"], stopped["pid"]) == (True, found["pid"])
    assert hocket("server", "status").stdout.startswith("not running")

    (again,) = json.loads(hocket("ps", "--json").stdout)
    assert (again["id"], again["status"]) == (ref, "running")
    assert json.loads(hocket("stop", ref, "--json").stdout)["survivors"] == []


def test_second_server_is_refused_with_the_pid(hocket: Hocket) -> None:
    hocket("ps")
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    second = hocket("serve")
    assert (second.returncode, second.stdout) == (1, "")
    assert str(pid) in second.stderr


def test_foreground_server_ends_on_sigterm(hocket: Hocket, home: Path) -> None:
    serving = hocket.start("serve", "--port", "0")
    assert serving.stderr is not None
    assert "serves" in serving.stderr.readline()
    assert json.loads(hocket("server", "status", "--json").stdout)["pid"] == serving.pid
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(timeout=PATIENCE) == 0


def test_remote_address_needs_allow_remote(hocket: Hocket) -> None:
    done = hocket("serve", "--host", "0.0.0.0")  # noqa: S104 - that it is refused is the point
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr
