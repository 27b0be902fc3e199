"""``hocket demo``: it shows what it promises, with either player, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cli.leftovers import living_below
from e2e.claude.setup import real_cli
from patience import PATIENCE
from world import Bin, Hocket

SHOWN = (
    "Three agents are defined",
    "planner/general-purpose Nothing here yet.",
    "planner/general-purpose completed\n",
    "Now the server is killed",
    "continues where the old one stopped",
    "? builder[2/3] wants to run Bash: sh greet.sh Ada",
    "$ hocket answer 5 allow",
    "builder[2/3] FORKHESTRA_COMPLETE",
    "reviewer Approved",
    "$ hocket ps -a",
    "this would have cost $",
    "Next steps",
)


@pytest.fixture(autouse=True)
def temporary(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the tour takes place. Nothing may be left of it, neither processes nor files."""
    folder = world / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert [path.name for path in folder.glob("hocket-demo-*")] == []
    assert living_below(folder) == []


def check_shown(text: str, promised: Sequence[str] = SHOWN) -> None:
    """Everything that the tour promises, in this order."""
    place = 0
    for wanted in promised:
        place = text.find(wanted, place)
        assert place >= 0, f"{wanted!r} is missing, or comes too early:\n{text}"


def test_demo_without_cleanup_process_is_refused(hocket: Hocket) -> None:
    script = "import sys; sys.executable = '/nowhere/python'; from hocket.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=hocket.cwd, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hocket: cannot set up a temporary home: No such file")


def test_demo_without_a_cli_uses_scripted_agents(hocket: Hocket, home: Path, world: Path) -> None:
    done = hocket("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "scripted agents (no Claude CLI was found)" in done.stdout
    check_shown(done.stdout)
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    (command,) = (line for line in lines if " planner     hocket trust " in line)
    assert command.endswith("/project"), "the command is never cut"
    assert all(len(line) <= 80 for line in lines if line != command)
    killed = re.search(r"kill -9 (\d+)", done.stdout)
    next_one = re.search(r"A new server \(pid (\d+)\)", done.stdout)
    assert killed
    assert next_one
    assert killed[1] != next_one[1]
    assert list(home.iterdir()) == []
    assert [path.name for path in (world / "user").iterdir()] == ["run"]


def test_demo_with_the_real_cli_shows_the_same(hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    done = hocket("demo", timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the installed Claude CLI with a scripted model" in done.stdout
    check_shown(done.stdout)
    assert [path.name for path in (world / "user").iterdir()] == ["run"]


def test_demo_with_a_broken_cli_gives_a_hint(hocket: Hocket, agent: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(agent("claude", "import sys; sys.exit('unknown option')")))
    done = hocket("demo")
    assert (done.returncode, "None" in done.stderr) == (1, False)
    assert "the chain ended as failed (exit" in done.stderr
    assert "hocket doctor" in done.stderr
    assert "hocket demo --scripted" in done.stderr


def test_demo_of_team_without_a_cli_is_refused(hocket: Hocket) -> None:
    done = hocket("demo", "--team")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a team needs the Claude CLI" in done.stderr
    assert "npm install" in done.stderr
    assert hocket("demo", "--team", "--scripted").returncode == 2


SHOWN_OF_TEAM = (
    "three tasks, starts two teammates",
    "$ hocket spawn claude --team",
    "Now the server is killed",
    "continues where the old one stopped",
    "All tasks are done",
    "$ hocket team 1",
    "$ hocket send 1",
    "walls, a roof and blue paint",
    "$ hocket stop 1",
    "Processes, team and tasks are gone",
    "Next steps",
)


@pytest.mark.timeout(PATIENCE * 2)
def test_demo_of_team_shows_it_and_leaves_nothing(hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    done = hocket("demo", "--team", timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    check_shown(done.stdout, SHOWN_OF_TEAM)
    assert [path.name for path in (world / "user").iterdir()] == ["run"]


def test_interrupt_ends_the_demo(hocket: Hocket) -> None:
    process = hocket.start("demo", "--scripted")
    assert process.stdout is not None
    for line in process.stdout:
        if "I write it down" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
