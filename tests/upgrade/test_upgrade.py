"""A home that an earlier version left, with its server killed: the current one opens it, and finishes what is in it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from upgrade import fixture
from upgrade.make import SECRET, answered, wait_for
from world import Hocket

pytestmark = pytest.mark.timeout(300)  # one test after the other, also those of other workers

ENDED = ("done", "failed", "stopped", "lost")
SCHEMA = 3
"""Of the recorded database."""


def read(hocket: Hocket, *words: str) -> Any:
    done = hocket(*words, "--json")
    assert (done.returncode, done.stderr) == (0, ""), (words, done.stderr)
    return json.loads(done.stdout)


def finish(hocket: Hocket, recorded: Any, *names: str) -> dict[str, dict[str, Any]]:
    """The runs of these names, once each has ended."""
    for name in names:
        hocket("wait", recorded["runs"][name])
    return {name: read(hocket, "show", recorded["runs"][name]) for name in names}


def events(hocket: Hocket, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in hocket("logs", run, "--json").stdout.splitlines()]


def missing(before: Any, after: Any, place: str = "") -> list[str]:
    """The paths of changed values. Added keys are ignored."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            found
            for key, value in before.items()
            for found in (missing(value, after[key], f"{place}.{key}") if key in after else [f"{place}.{key} is gone"])
        ]
    if _is_list(before) and _is_list(after) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [found for number, (old, new) in pairs for found in missing(old, new, f"{place}[{number}]")]
    return [] if before == after else [f"{place}: {before!r} is now {after!r}"]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def starts(world: Path) -> Counter[str]:
    return Counter((world / "ledger").read_text().splitlines())


def second_start(world: Path) -> str:
    """The start of the second step of the unfinished chain, as its program records it."""
    return f"second {world}/gates/halfway 0 after: ready done"


def queued_run(hocket: Hocket, recorded: Any) -> str:
    """The run of the item that waited for the open hand-off to end, once it is handed over."""

    def run() -> str | None:
        chain = read(hocket, "task", "show", recorded["tasks"]["active"])["agentChain"]
        return str(chain[1]["run"]) if len(chain) > 1 else None

    return str(wait_for(run, "the hand-off of what was queued"))


# --- Runs ---------------------------------------------------------------------------------------------------


def test_ended_runs_survive_upgrade(hocket: Hocket, recorded: Any) -> None:
    before = {run["id"]: run for run in recorded["listed"] if run["status"] in ENDED}
    after = {run["id"]: run for run in read(hocket, "ps", "-a")}
    assert {run["status"] for run in before.values()} == set(ENDED)
    assert [found for run in before for found in missing(before[run], after[run], run)] == []
    shown = {name: run for name, run in recorded["shown"].items() if run["status"] in ENDED}
    now = {name: {**read(hocket, "show", run["id"]), "seq": 0} for name, run in shown.items()}
    assert missing(shown, now) == []


def test_events_of_ended_runs_survive_upgrade(hocket: Hocket, recorded: Any, world: Path) -> None:
    stored: dict[str, list[dict[str, Any]]] = {}
    for seq, ts, run, root, kind, data in fixture.rows(
        world, "SELECT seq, ts, run, root, type, data FROM events ORDER BY seq"
    ):
        event = {"v": 1, "seq": seq, "ts": pytest.approx(ts, abs=1e-5), "run": run, "root": root, "type": kind}
        stored.setdefault(root, []).append(event | {"data": json.loads(data)})
    roots = [run["id"] for run in recorded["listed"] if run["status"] in ENDED and run["root"] == run["id"]]
    for root in roots:
        assert events(hocket, root) == stored[root]


def test_unfinished_runs_end_correctly_after_upgrade(hocket: Hocket, recorded: Any, world: Path) -> None:
    ended = finish(hocket, recorded, "exited", "killed", "unstarted", "handoff")
    verdicts = {name: (run["status"], run["reason"], run["exit_code"]) for name, run in ended.items()}
    assert verdicts == {
        "exited": ("failed", "exit", 7),
        "killed": ("lost", "lost", None),
        "unstarted": ("done", "exit", 0),
        "handoff": ("done", "exit", 0),
    }
    results = {name: run["result"] for name, run in ended.items() if name != "killed"}
    said = "ready\ndone\n"
    assert results == {"exited": said, "unstarted": "hello unstarted\n", "handoff": said}
    for name in ("exited", "handoff"):
        found = events(hocket, recorded["runs"][name])
        texts = [event["data"]["text"] for event in found if event["type"] == "text"]
        assert texts == ["ready", "done"]


def test_chain_continues_with_next_step_after_upgrade(hocket: Hocket, recorded: Any, world: Path) -> None:
    chain = finish(hocket, recorded, "halfway")["halfway"]
    assert (chain["status"], chain["reason"]) == ("done", "single_run")
    assert chain["result"] == "second: after: ready\ndone\n"
    children = [(child["agent"], child["status"]) for child in chain["children"]]
    assert children == [("held", "done"), ("second", "done")]
    assert (world / "token-seen").read_text() == SECRET
    assert not (world / "h/secrets" / chain["id"]).exists()


def test_spending_before_upgrade_counts_for_budget(hocket: Hocket, recorded: Any) -> None:
    chain = finish(hocket, recorded, "spent")["spent"]
    assert (chain["status"], chain["reason"]) == ("failed", "budget")
    assert chain["cost_usd"] == pytest.approx(0.02)
    assert len([child for child in chain["children"] if child["provider"] == "claude"]) == 2


def test_no_program_is_started_again_after_upgrade(hocket: Hocket, recorded: Any, world: Path) -> None:
    before = starts(world)
    finish(hocket, recorded, "halfway", "spent", "exited", "killed", "unstarted", "handoff")
    hocket("wait", queued_run(hocket, recorded))
    assert starts(world) - before == Counter(
        [second_start(world), "claude spent", "greet unstarted", "greet queued part"]
    )
    listed = read(hocket, "ps", "-a")
    new = [run for run in listed if run["id"] not in {old["id"] for old in recorded["listed"]}]
    assert sorted(run["agent"] for run in new) == ["claude", "greet", "second"]
    assert [run["id"] for run in listed if run["status"] not in ENDED] == [recorded["runs"]["question"]]


# --- Tasks, questions, approvals ----------------------------------------------------------------------------


def test_tasks_survive_upgrade(hocket: Hocket, recorded: Any, world: Path) -> None:
    for name in ("planned", "waiting", "completed"):
        task = recorded["tasks"][name]
        assert missing(recorded["tasks_shown"][name], read(hocket, "task", "show", task)) == []
        assert missing(recorded["histories"][name], read(hocket, "task", "history", task)) == []
        assert missing(recorded["queues"][name], read(hocket, "task", "queue", task)) == []
    attached = hocket("task", "attach", recorded["tasks"]["waiting"], "--get", "notes.txt", "-o", "-")
    assert attached.stdout == "Notes of this task.\n"


def test_queued_item_is_handed_over_after_upgrade(hocket: Hocket, recorded: Any) -> None:
    task = recorded["tasks"]["active"]
    hocket("wait", queued_run(hocket, recorded))
    shown = read(hocket, "task", "show", task)
    assert [(one["agentName"], one["status"], one["output"]) for one in shown["agentChain"]] == [
        ("held", "done", "ready\ndone\n"),
        ("greet", "done", "hello queued part\n"),
    ]
    assert (shown["status"]["type"], read(hocket, "task", "queue", task)) == ("waiting", [])
    history = read(hocket, "task", "history", task)
    assert missing(recorded["histories"]["active"], history[: len(recorded["histories"]["active"])]) == []


def test_open_question_is_answered_after_upgrade(hocket: Hocket, recorded: Any) -> None:
    assert missing(recorded["inbox"], read(hocket, "inbox")) == []
    hocket("answer", recorded["inbox"][0]["id"], "deny")
    chain = finish(hocket, recorded, "question")["question"]
    assert (chain["status"], chain["reason"]) == ("failed", "lost")
    assert read(hocket, "inbox") == []


@pytest.mark.parametrize("name", ["claude", "asker", "answered"])
def test_answered_question_stays_answered_after_upgrade(name: str, hocket: Hocket, recorded: Any, home: Path) -> None:
    again = hocket("answer", recorded["runs"][name], "allow")
    assert (again.returncode, again.stdout) == (2, "")
    assert missing(recorded["answered"][name], answered(home, recorded["runs"][name])) == []
    question = recorded["answered"][name]["by_id"]["id"]
    assert missing(recorded["answered"][name]["last"], fixture.get(home, f"/api/inbox?answered={question}")) == []


def test_approvals_hold_after_upgrade(hocket: Hocket, recorded: Any) -> None:
    assert missing(recorded["trusted"], read(hocket, "trust", "--list")) == []
    done = hocket("run", "reviewer", "-p", "look")
    assert (done.returncode, done.stdout) == (0, "you said: look\n")


# --- The database -------------------------------------------------------------------------------------------


def test_database_is_migrated_and_copy_is_kept(hocket: Hocket, recorded: Any, home: Path, world: Path) -> None:
    read(hocket, "ps")
    hocket("server", "stop")
    count = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM runs)"
    with closing(sqlite3.connect(home / "hocket.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (latest,) = database.execute("SELECT max(number) FROM migrations").fetchone()
    assert latest > SCHEMA
    (copy,) = home.glob("hocket.db.schema-*.copy")
    assert copy.name == f"hocket.db.schema-{SCHEMA}.copy"
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT max(number) FROM migrations").fetchone() == (SCHEMA,)
        assert database.execute(count).fetchall() == fixture.rows(world, count)
