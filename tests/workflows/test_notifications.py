"""Notifications: which events reach the user's command, how often, and what its failure does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store.sample_events import created
from workflows.engine_fixture import EventLog, open_event_log, until
from world import Bin, Hocket

from hocket.model import Event
from hocket.sessions.messages import Messages
from hocket.store import NewRun
from hocket.workflows.notifications import CURSOR, MOST_WAITING, OLDEST, Notifications

KEEP = """
import os, sys
with open(os.environ["HOCKET_HOME"] + "/reported", "ab") as file:
    file.write(sys.stdin.buffer.read())
"""
ASK = f"""
import subprocess
subprocess.run([{sys.executable!r}, "-m", "hocket", "ask", "Which colour?"], check=True)
"""


def configure(home: Path, command: list[str]) -> None:
    (home / "config.toml").write_text(f"[notify]\ncommand = {json.dumps(command)}\n")


@pytest.fixture
def reports(home: Path, agent: Bin) -> Callable[[], list[dict[str, Any]]]:
    """What the configured command was given so far."""
    configure(home, [str(agent("keep", KEEP))])
    file = home / "reported"
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def reported(reports: Callable[[], list[dict[str, Any]]], count: int) -> list[dict[str, Any]]:
    await until(lambda: len(reports()) >= count, f"{count} reports")
    return reports()


def opened(home: Path, log: EventLog) -> Notifications:
    notifications = Notifications(home, log.journal, Messages(home, log.journal))
    notifications.open()
    return notifications


async def end(log: EventLog, run: str, root: str, status: str = "failed", ts: float | None = None) -> None:
    data = {"status": status, "reason": "exit", "exit_code": 2}
    await log.journal.write([Event(0, ts or time.time(), run, root, "run.ended", data)])


async def ask(log: EventLog, run: str, number: int, on_question: str) -> None:
    spec = NewRun(json.dumps({"on_question": on_question}).encode())
    asked = {"id": "q1", "kind": "ask", "text": "Which colour?", "tool": None, "input": None}
    question = Event(0, time.time(), run, run, "question", asked)
    await log.journal.write([created(run, number, None, None, "leaf"), question], new={run: spec})


def test_question_failure_and_end_of_chain_are_reported(home: Path, reports: Any) -> None:
    async def scene() -> None:
        async with open_event_log(home / "hocket.db") as log:
            notifications = opened(home, log)
            await log.create("rleaf1", 1)
            await end(log, "rleaf1", "rleaf1")
            await log.create("rchain", 2)
            await log.create("rleaf2", 3, "rchain", "rchain")
            await end(log, "rleaf2", "rchain")
            await end(log, "rchain", "rchain", "done")
            await log.create("rother", 7)
            await end(log, "rother", "rother", "stopped")
            await log.create("rleaf3", 4)
            await end(log, "rleaf3", "rleaf3", "done")
            await ask(log, "rleaf4", 5, "deny")
            await ask(log, "rleaf5", 6, "ask")
            found = {one["number"]: one for one in await reported(reports, 4)}
            await notifications.close()
        assert {number: one["event"] for number, one in found.items()} == {
            1: "failed",
            2: "ended",
            6: "question",
            7: "ended",
        }
        assert (found[1]["status"], found[1]["reason"], found[1]["command"]) == ("failed", "exit", "hocket show 1")
        assert found[1]["text"].endswith("failed: exit 2")
        assert (found[2]["text"], found[7]["text"]) == ("a done", "a stopped")
        assert found[6]["text"].endswith("asks: Which colour?")
        assert found[6]["command"] == 'hocket answer 6 "YOUR ANSWER"'
        assert (found[6]["question"]["id"], found[6]["question"]["text"]) == ("q1", "Which colour?")
        assert len(reports()) == 4

    asyncio.run(scene())


def test_next_server_reports_missed_events_once(home: Path, reports: Any) -> None:
    async def scene() -> None:
        async with open_event_log(home / "hocket.db") as log:
            notifications = opened(home, log)
            await log.create("rleaf1", 1)
            await end(log, "rleaf1", "rleaf1")
            await reported(reports, 1)
            await notifications.close()
            # As if this server had been killed before it came to these.
            for number, ts in ((2, time.time()), (3, time.time() - OLDEST - 60)):
                await log.create(f"rleaf{number}", number)
                await end(log, f"rleaf{number}", f"rleaf{number}", ts=ts)
        async with open_event_log(home / "hocket.db") as log:
            notifications = opened(home, log)
            await log.create("rleaf4", 4)
            await end(log, "rleaf4", "rleaf4")
            found = await reported(reports, 3)
            await notifications.close()
        assert sorted(one["number"] for one in found) == [1, 2, 4]

    asyncio.run(scene())


def test_first_server_reports_no_past_events(home: Path, reports: Any) -> None:
    async def scene() -> None:
        async with open_event_log(home / "hocket.db") as log:
            await log.create("rleaf1", 1)
            await end(log, "rleaf1", "rleaf1")
            # As after a power cut, which took the last events and not this number.
            (home / CURSOR).write_text(f"{10**9:020d}\n")
            notifications = opened(home, log)
            await log.create("rleaf2", 2)
            await end(log, "rleaf2", "rleaf2")
            assert [one["number"] for one in await reported(reports, 1)] == [2]
            await notifications.close()
        assert int((home / CURSOR).read_text()) < 100

    asyncio.run(scene())


def test_failing_command_is_logged(home: Path, agent: Bin, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(text: str) -> None:
        async with open_event_log(home / "hocket.db") as log:
            notifications = opened(home, log)
            number = log.journal.read.last_seq() + 1
            await log.create(f"rleaf{number}", number)
            await end(log, f"rleaf{number}", f"rleaf{number}")
            await until(lambda: text in caplog.text, text)
            await notifications.close()

    configure(home, [str(agent("broken", "import sys; sys.exit('no display')"))])
    asyncio.run(scene("exit code 1: no display"))
    configure(home, ["/no/such/program"])
    asyncio.run(scene("/no/such/program: exit code 127: FileNotFoundError"))
    (home / "config.toml").write_text('[notify]\ncommand = "one string"\n')
    asyncio.run(scene("must be a list with a program"))


def test_too_many_reports_are_dropped_and_counted(
    home: Path, reports: Any, agent: Bin, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with open_event_log(home / "hocket.db") as log:
            notifications = opened(home, log)
            several = [f"rleaf{number}" for number in range(MOST_WAITING + 20)]
            events = [created(run, number, None, None, "leaf") for number, run in enumerate(several, 1)]
            data = {"status": "failed", "reason": "error"}
            events += [Event(0, time.time(), run, run, "run.ended", data) for run in several]
            await log.journal.write(events, new={run: NewRun(b"{}") for run in several})
            await reported(reports, 1)
            await until(lambda: "20 notifications were dropped" in caplog.text, "the number of dropped ones")
            await notifications.close()

    asyncio.run(scene())


def test_closing_ends_a_command_that_hangs(home: Path, agent: Bin) -> None:
    hang = "import os, time; open(os.environ['HOCKET_HOME'] + '/up', 'w'); time.sleep(600)"
    configure(home, [str(agent("hang", hang))])

    async def scene() -> None:
        async with open_event_log(home / "hocket.db") as log:
            notifications = opened(home, log)
            await log.create("rleaf1", 1)
            await end(log, "rleaf1", "rleaf1")
            await until((home / "up").exists, "the command")
            await asyncio.wait_for(notifications.close(), 10)

    asyncio.run(scene())


def test_killed_server_loses_no_report_and_repeats_none(
    hocket: Hocket, home: Path, agent: Bin, project: Path, reports: Any
) -> None:
    agent("asker", ASK + "raise SystemExit(3)")
    os.mkfifo(project / "door")
    agent("late", "open('door').read(); raise SystemExit(4)")
    hocket("spawn", "asker")
    hocket("spawn", "late")
    asyncio.run(reported(reports, 1))
    for _ in range(2):
        pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
        os.kill(pid, signal.SIGKILL)
        hocket("ps")
    (project / "door").write_text("")
    assert hocket("wait", hocket.number(2)).returncode == 1
    asyncio.run(reported(reports, 2))
    assert hocket("answer", hocket.number(), "red").returncode == 0
    assert hocket("wait", hocket.number()).returncode == 1
    asyncio.run(reported(reports, 3))
    hocket("server", "stop")
    hocket("ps")
    said = [(one["event"], one["agent"], one["cwd"]) for one in reports()]
    expected = [("question", "asker"), ("failed", "late"), ("failed", "asker")]
    assert said == [(event, name, str(project)) for event, name in expected]


def test_project_cannot_name_a_command(hocket: Hocket, home: Path, project: Path, agent: Bin) -> None:
    agent("hello", "print('hi')")
    (project / "hocket.toml").write_text('[notify]\ncommand = ["/bin/evil"]\n')
    done = hocket("run", "hello")
    assert done.returncode == 0
    assert "hocket.toml: [notify] is ignored: only the config.toml" in done.stderr
    problems = json.loads(hocket("agents", "--json").stdout)["problems"]
    assert [problem["path"] for problem in problems] == [str(project / "hocket.toml")]
    assert "[notify] is ignored" in hocket("doctor").stdout
    assert hocket("notify", "--test").returncode == 2


def test_rehearsal_reports_nothing(hocket: Hocket, home: Path, agent: Bin, world: Path) -> None:
    agent("hello", "print('hi')")
    # In a file of its own: each home has its own folder for what it is given.
    configure(home, [str(agent("keep", f"open({str(world / 'reported')!r}, 'a').write('x')"))])
    assert hocket("rehearse", "hello -> hello").returncode == 0
    assert not (world / "reported").exists()
    assert hocket("run", "hello -> hello").returncode == 0
    asyncio.run(until((world / "reported").exists, "the report of the real run"))


def test_notify_test_reports_the_outcome(hocket: Hocket, home: Path, agent: Bin) -> None:
    unconfigured = hocket("notify", "--test")
    assert (unconfigured.returncode, unconfigured.stdout) == (2, "")
    assert "[notify]\n" in unconfigured.stderr
    assert str(home.parent) in unconfigured.stderr
    configure(home, [str(agent("keep", KEEP + "print('sent')")), "two words"])
    done = hocket("notify", "--test")
    assert (done.returncode, done.stderr) == (0, "")
    assert "two words" in done.stdout
    assert "outcome  exit code 0\noutput   sent\n" in done.stdout
    event = json.loads((home / "reported").read_text())
    assert (event["event"], event["command"]) == ("question", "hocket answer 1 allow/deny")
    agent("keep", "import sys; sys.exit('no display')")
    failed = hocket("notify", "--test", "--json")
    assert failed.returncode == 1
    told = json.loads(failed.stdout)
    assert (told["exit_code"], told["timed_out"], told["output"]) == (1, False, "no display\n")
    configure(home, ["no-such-program"])
    assert "cannot run no-such-program" in hocket("notify", "--test").stderr
    assert hocket("notify").returncode == 2
    assert not (home / "server.lock").exists()
