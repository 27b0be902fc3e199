"""The tests' own tools: leftovers are found, the real home is out of reach, the report is correct."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scheduling import unit_of
from world import Bin, Hocket, SharedServer, end_world, processes_of, wait_until_none

TESTS = Path(__file__).parent


def test_home_and_state_share_a_short_folder(home: Path, world: Path) -> None:
    assert len(os.fsencode(home / "sock")) < 60
    assert all(Path(os.environ[name]).is_relative_to(world) for name in os.environ if name.startswith("XDG_"))
    assert Path.home().is_relative_to(world)
    assert Path(os.environ["HOCKET_HOME"]) == home


def test_variables_of_other_sessions_are_removed() -> None:
    foreign = ("CLAUDE", "ANTHROPIC_", "HOCKET_")
    ours = {"HOCKET_HOME", "HOCKET_PORT", "HOCKET_CORPORA"}
    assert [name for name in os.environ if name.startswith(foreign) and name not in ours] == []


def test_agent_fixture_writes_programs_on_path(agent: Bin) -> None:
    agent("hello", "import sys; print(*sys.argv[1:])")
    assert subprocess.run(["hello", "a", "b"], capture_output=True, text=True, check=True).stdout == "a b\n"


def test_processes_of_the_home_are_ended(home: Path, hocket: Hocket) -> None:
    """It does not react to being asked, so it is reported as a survivor, and gone."""
    code = "import sys, signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-ISc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in processes_of(home)
        assert process.pid in end_world(home, hocket, seconds=0.1)
        assert process.wait(5) == -9
    assert wait_until_none(home, 5) == {}


@pytest.mark.shared_server
def test_shared_server_is_cleared_between_tests(
    shared_server: SharedServer, hocket: Hocket, agent: Bin, home: Path
) -> None:
    assert home == shared_server.home
    before = processes_of(home)
    agent("sleeper", "import signal; signal.pause()")
    (home / "config.toml").write_text("[run]\nstop_grace = 0.5\n")
    assert hocket("spawn", "sleeper").returncode == 0
    assert [run["agent"] for run in hocket.runs()] == ["sleeper"], "runs of other tests are not listed"
    assert hocket.number() != "1", "a test that assumes the first number fails"
    assert processes_of(home).keys() > before.keys()
    assert shared_server.clear(hocket) == {}
    assert processes_of(home) == before
    assert not (home / "config.toml").exists()


def test_ended_shared_server_is_reported_and_restarted(
    world: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SharedServer()
    try:
        server.bring_up()
        monkeypatch.setenv("HOCKET_HOME", str(server.home))
        assert Hocket(project)("server", "stop").returncode == 0
        assert "ended" in str(server.clear(Hocket(project), seconds=1))
        server.bring_up()
        assert server.clear(Hocket(project)) == {}
    finally:
        assert server.close() == {}


INNER = """
import pytest

@pytest.mark.req("S1-B01")
@pytest.mark.parametrize("x", [1, 2])
def test_good(x): pass

@pytest.mark.req("S1-B02")
@pytest.mark.parametrize("x", [1, 2])
def test_half(x): assert x == 1

@pytest.mark.req("S1-B03")
def test_skipped(): pytest.skip("no")

@pytest.mark.req("S9-99")
def test_unknown(): pass
"""


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "2"]])
def test_requirement_report_counts_only_passed_tests(workers: list[str], project: Path) -> None:
    (project / "test_inner.py").write_text(INNER)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "req_report",
            "--req-report",
            "-p",
            "no:cacheprovider",
            *workers,
        ],
        cwd=project,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert "S1-B01 B  test_inner.py::test_good" in lines
    assert not [line for line in lines if line.startswith(("S1-B02 B", "S1-B03 B"))]
    assert "unknown requirement S9-99" in done.stdout
    missing = " ".join(lines[lines.index(next(line for line in lines if line.startswith("without"))) :])
    assert "S1-B02" in missing
    assert "S1-B01" not in missing


def test_expensive_files_stay_on_one_worker() -> None:
    assert unit_of("tests/api/test_app.py::test_x[a::b]") == "tests/api/test_app.py"
    assert unit_of("tests/cli/test_run.py::test_x") == "tests/cli/test_run.py::test_x"
