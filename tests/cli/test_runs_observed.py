"""``hocket ps --observed``: sessions that Hocket did not start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sessions.claude_home import ClaudeHome, set_age, start_process
from world import Hocket

pytestmark = pytest.mark.shared_server


@pytest.fixture
def claude(world: Path) -> ClaudeHome:
    return ClaudeHome(world / "user/.claude")


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that stands for a CLI."""
    with start_process() as process:
        yield process.pid
        process.kill()


def listed(hocket: Hocket, *options: str) -> list[dict[str, object]]:
    done = hocket("ps", "--observed", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_ps_lists_observed_sessions_only_on_request(hocket: Hocket, claude: ClaudeHome, pid: int) -> None:
    ended = claude.talk("fix it", "fixed \x1b[31mred\x07", agent="plain", cwd="/a/shop")
    live = claude.talk("plan it", "planned", cwd="/a/forge")
    claude.live(live, pid, cwd="/a/forge", status="idle")
    assert not {row["id"] for row in json.loads(hocket("ps", "-a", "--json").stdout)} & {ended, live}
    rows = listed(hocket)
    assert [(row["id"], row["number"], row["origin"], row["status"]) for row in rows] == [
        (ended, None, "observed", "lost"),
        (live, None, "observed", "waiting"),
    ]
    heading, first, second = hocket("ps", "--observed").stdout.splitlines()
    assert heading.split() == ["RUN", "PROJECT", "AGENT", "STATE", "TIME", "LAST"]
    assert first.split() == [ended[:8], "shop", "plain", "-", "ended", *first.split()[5:7], "fixed", "red"]
    assert (second.split()[:5], second.split()[-1]) == ([live[:8], "forge", "claude", "○", "idle"], "planned")
    assert max(map(len, (first, second))) <= 80


def test_filters_choose_among_observed_sessions(hocket: Hocket, claude: ClaudeHome) -> None:
    plain, other = claude.talk("a", "a", agent="plain", cwd="/a/b"), claude.talk("b", "b", cwd="/a/bc")
    old = claude.talk("c", "c")
    set_age(claude.path(old), 30 * 86400, time.time())
    assert {row["id"] for row in listed(hocket)} == {plain, other}
    assert [row["id"] for row in listed(hocket, "--agent", "plain")] == [plain]
    assert [row["id"] for row in listed(hocket, "--project", "/a/b")] == [plain]
    assert [row["id"] for row in listed(hocket, "--limit", "1")] == [other]
    assert listed(hocket, "--status", "running") == []
    assert {row["id"] for row in listed(hocket, "-a")} == {row["id"] for row in listed(hocket, "--since", "60d")}
    assert len(listed(hocket, "-a")) == 3


def test_callers_configuration_directory_counts(
    hocket: Hocket, claude: ClaudeHome, monkeypatch: pytest.MonkeyPatch, world: Path
) -> None:
    claude.talk("a", "b")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(world / "moved"))
    session = ClaudeHome(world / "moved").talk("go", "it is done")
    assert [row["id"] for row in listed(hocket)] == [session]


def test_no_sessions_is_a_message(hocket: Hocket) -> None:
    done = hocket("ps", "--observed")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hocket ps --observed -a" in done.stderr


def test_pages_and_observed_exclude_each_other(hocket: Hocket) -> None:
    done = hocket("ps", "--observed", "--before", "5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--observed or --before" in done.stderr


def test_stop_of_an_observed_session_is_refused(hocket: Hocket, claude: ClaudeHome, pid: int) -> None:
    session = claude.talk("go", "going")
    claude.live(session, pid)
    done = hocket("stop", session)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hocket import" in done.stderr
