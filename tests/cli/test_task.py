"""``hocket task …`` from outside, its files, and how a task reads."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli.columns import lines_at, too_wide
from patience import PATIENCE
from world import Bin, Hocket

from hocket.cli.access import camel_keys, snake_keys
from hocket.cli.task import parse_task, task_files, write_atomically
from hocket.cli.task_render import history_lines, history_text, levels, queue_lines, task_lines, task_table
from hocket.errors import BadDirectory, UsageError
from hocket.views.text import size_text

SECOND = 1000


def record(number: int, begun: int, ended: int | None, **more: Any) -> dict[str, Any]:
    return {
        "id": f"h{number}",
        "run": f"r{number}",
        "agent_name": "developer",
        "started_at": begun * SECOND,
        "completed_at": None if ended is None else ended * SECOND,
        "output": "",
        "status": "running" if ended is None else "done",
        "reason": None,
        **more,
    }


def task_with(**more: Any) -> dict[str, Any]:
    return {
        "id": "t1",
        "number": 7,
        "description": "Sessions expire\nafter a day",
        "status": {"type": "active"},
        "current_agent": None,
        "agent_chain": [],
        "handoff_count": 0,
        "attachments": [],
        "queue": [],
        "source": None,
        "session_id": None,
        "cwd": "/p",
        "created_at": 0,
        "updated_at": 60 * SECOND,
        **more,
    }


# --- How it reads ---


def test_nested_handoffs_are_indented() -> None:
    chain = [
        record(1, 0, 100),
        record(2, 10, 50),
        record(3, 20, 40),
        record(4, 50, 60),
        record(5, 100, None),
        record(6, 110, None),
    ]
    assert levels(chain) == [0, 1, 2, 1, 0, 1]


def test_task_show_has_every_section() -> None:
    task = task_with(
        current_agent="qa",
        status={"type": "active", "message": "nearly"},
        source={"source_type": "chat", "user_id": "u1"},
        session_id="s1\x1b[2J\nforged",
        summary="A date for sessions",
        requirements=["one", "two\nlines"],
        acceptance_criteria="make test passes",
        plan="1. look\n2. write",
        agent_chain=[
            record(1, 0, 12, output="a\nb\n\nc\nd\n"),
            record(2, 5, 7, agent_name="qa\x1b[31m", status="failed", reason="exit", output="failed (exit): \x1b[1mno"),
            record(3, 20, None, agent_name="qa", run=None),
        ],
        queue=[{"id": "q1", "agent_name": "planner", "prompt": "and\nthen", "created_at": 0}],
        attachments=[{"name": "notes.md", "size": 2048, "sha256": "x", "created_at": 0}],
    )
    lines = task_lines(task, {}, 100.0, 100, verbose=False)
    text = "\n".join(lines)
    assert lines[:3] == ["task     7  t1", "state    ● active  nearly", "agent    qa"]
    assert "\x1b" not in text
    assert "description\n  Sessions expire\n  after a day\n" in text
    planned = text[text.index("\nplan\n") + 1 : text.index("hand-offs")]
    assert planned.split("\n")[:7] == [
        "plan",
        "  A date for sessions",
        "  requirements",
        "    - one",
        "    - two",
        "      lines",
        "  acceptance criteria",
    ]
    handoffs = text[text.index("hand-offs") : text.index("queue")].split("\n")
    assert handoffs[1].startswith("  1  developer  ✓ done  ")
    assert handoffs[1].endswith("  0:12  run r1")
    assert handoffs[2:6] == ["      a", "      b", "      c", "      … (complete with -v)"]
    assert handoffs[6].startswith("      2  qa  ✗ failed (exit)  ")
    assert handoffs[7] == "          failed (exit): no"
    assert handoffs[8].startswith("  3  qa  ● running  ")
    assert handoffs[8].endswith("  1:20")
    assert "  q1  planner  and then" in text
    assert "  notes.md  2 kB" in text


def test_verbose_shows_complete_messages() -> None:
    task = task_with(agent_chain=[record(1, 0, 12, output="a\nb\n\nc\nd " + "x" * 300)])
    lines = task_lines(task, {"h1": "do\nit"}, 100.0, None, verbose=True)
    place = next(number for number, line in enumerate(lines) if "developer" in line)
    margin = " " * 6
    assert lines[place + 1 :] == [
        f"{margin}prompt: do",
        f"{margin}it",
        *(f"{margin}a", f"{margin}b", "", f"{margin}c", f"{margin}d " + "x" * 300),
    ]


def test_task_list_fits_the_terminal() -> None:
    tasks = [task_with(description="x" * 500, current_agent="qa", handoff_count=3)]
    head, row = task_table(tasks, 120.0, 80)
    assert head.split() == ["TASK", "STATE", "AGENT", "CHANGED", "HAND-OFFS", "DESCRIPTION"]
    assert row.startswith("7     ● active  qa     1m ago   3          xxx")
    assert len(row) == 80
    assert task_table(tasks, 120.0, 60)[0].split() == ["TASK", "STATE", "AGENT", "CHANGED", "DESCRIPTION"]
    head, row = task_table(tasks, 120.0, 40)
    assert head.split() == ["TASK", "STATE", "DESCRIPTION"]
    assert row == "7     ● active  " + "x" * 23 + "…"
    assert queue_lines([], 60) == []


def everything(words: str) -> dict[str, Any]:
    """A task that has all that a task can have, and everywhere these words."""
    nested = [
        record(number, number, None, agent_name=words, output=f"  {words}\n\t{words}\n\n{words}", status="failed",
               reason="start_failed", run="r" + "x" * 15)
        for number in range(1, 9)
    ]  # fmt: skip
    return task_with(
        current_agent=words,
        description=f"{words}\n        {words}",
        status={"type": "failed", "message": words},
        source={"source_type": words},
        cwd="/" + words,
        session_id="5f3a" * 9,
        summary=words,
        requirements=[words, words],
        acceptance_criteria=words,
        plan=words,
        agent_chain=nested,
        queue=[{"id": "q" * 25, "agent_name": words, "prompt": words, "created_at": 0}],
        attachments=[{"name": words, "size": 2**30, "sha256": "x", "created_at": 0}],
    )


@pytest.mark.parametrize("columns", [20, 40, 41, 80, 120])
@pytest.mark.parametrize(
    "words", ["x" * 300, "世界" * 150, "to be or not " * 30, "é\u0301 \uff57\uff49\uff44\uff45 " * 40, "a"]
)
def test_task_lines_fit_the_terminal(words: str, columns: int) -> None:
    task = everything(words)
    prompts = {f"h{number}": words for number in range(1, 9)}
    history = [{"event_type": "task_created", "timestamp": 0, "data": {"description": words}}]
    for verbose in (False, True):
        assert too_wide(task_lines(task, prompts, 100.0, columns, verbose), columns) == []
    assert too_wide(task_table([task], 100.0, columns), columns) == []
    assert too_wide(history_lines(history, columns), columns) == []
    assert too_wide(queue_lines(task["queue"], columns), columns) == []


def test_long_message_is_wrapped_on_a_terminal() -> None:
    said = "".join(chr(ord("a") + place % 26) for place in range(200))
    lines = task_lines(
        task_with(agent_chain=[record(1, 0, 12, output=f"    code = {said}")]), {}, 100.0, 40, verbose=True
    )
    place = next(number for number, line in enumerate(lines) if "code" in line)
    assert all(line.startswith(" " * 10) for line in lines[place:])  # its own indentation goes on
    assert "".join(line.strip() for line in lines[place:]) == f"code ={said}"


def test_narrow_handoff_still_names_its_run() -> None:
    lines = task_lines(task_with(agent_chain=[record(1, 0, 12)]), {}, 100.0, 30, verbose=False)
    place = lines.index("hand-offs")
    assert lines[place + 1] == "  1  developer  ✓ done"
    assert lines[-1].endswith("  0:12  run r1")


def test_forty_columns_are_enough(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", "import sys; sys.stdout.write(sys.argv[-1] * 3)")
    agent("an-agent-with-a-long-name-of-its-own", "import sys; sys.exit(sys.argv[-1])")
    hocket("handoff", "echo", "世界のすべてのセッションを一日で期限切れにする方法を考えて書く")
    hocket("handoff", "1", "an-agent-with-a-long-name-of-its-own", "It has to be said at some length, too")
    hocket("task", "queue", "1", "echo", "and then 世界のすべてのセッションを一日で期限切れにする")
    hocket("task", "status", "1", "failed", "-m", "because it cannot be done in so little time as that")
    for words in (["list"], ["show", "1"], ["show", "1", "-v"], ["history", "1"], ["queue", "1"], ["board"]):
        lines = lines_at(40, project, "task", *words)
        assert lines
        assert too_wide(lines, 40) == [], words


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("task_created", {"description": "a wish"}, "created: a wish"),
        ("status_changed", {"from": "pending", "to": "failed", "message": "no"}, "pending → failed: no"),
        ("agent_handoff_started", {"agent_name": "qa"}, "handed to qa"),
        ("agent_handoff_completed", {"agent_name": "qa", "output_length": "5"}, "qa finished (5 characters)"),
        ("task_planned", {"summary": None}, "task planned"),
        ("new_kind", {"a": 1, "b": None}, "new kind a=1"),
    ],
)
def test_history_is_printed_as_text(kind: str, data: dict[str, Any], words: str) -> None:
    assert history_text(kind, data) == words


def test_history_names_each_day_once() -> None:
    day = 86_400 * SECOND
    events = [{"event_type": "x", "timestamp": ts, "data": {}} for ts in (0, SECOND, 3 * day)]
    lines = history_lines(events)
    assert [line.startswith("  ") for line in lines] == [False, True, True, False, True]


def test_sizes_are_readable() -> None:
    assert [size_text(count) for count in (0, 1023, 2048, 3 * 1024**2)] == ["0 B", "1023 B", "2 kB", "3.0 MB"]


def test_keys_are_respelled_both_ways() -> None:
    there = {"agentChain": [{"startedAt": 1, "output": "aB"}], "id": "t1"}
    here = {"agent_chain": [{"started_at": 1, "output": "aB"}], "id": "t1"}
    assert snake_keys(there) == here
    assert camel_keys(here) == there


# --- The commands ---


@pytest.mark.req("S2-B01", "S2-14")
def test_task_is_created_listed_and_shown(hocket: Hocket, project: Path) -> None:
    made = hocket("task", "new", "Sessions", "expire")
    assert (made.returncode, made.stdout, made.stderr) == (0, "task 1\n", "")
    (project / "sub").mkdir()
    second = json.loads(hocket("task", "new", "-", "--cwd", "sub", "--json", stdin="- from\n- standard input").stdout)
    assert (second["description"], second["cwd"]) == ("- from\n- standard input", str(project / "sub"))
    assert (second["currentAgent"], second["agentChain"], second["status"]) == (None, [], {"type": "pending"})
    listed = json.loads(hocket("task", "list", "--json").stdout)
    assert [one["number"] for one in listed] == [2, 1]
    assert "agentChain" not in listed[0]
    assert json.loads(hocket("task", "list", "--limit", "1", "--json").stdout) == listed[:1]
    assert json.loads(hocket("task", "list", "--status", "failed", "--json").stdout) == []
    assert "hocket task new" in hocket("task", "list", "--status", "failed").stderr
    human = hocket("task", "list", "--limit", "1")
    assert "· pending" in human.stdout
    assert "hocket task list --limit 5" in human.stderr
    shown = hocket("task", "show", listed[1]["id"][:8]).stdout
    assert "description\n  Sessions expire\n" in shown
    assert json.loads(hocket("task", "show", "2", "--json").stdout) == second


@pytest.mark.req("S2-B01", "S2-B02", "S2-15")
@pytest.mark.shared_server
def test_task_is_planned_and_its_status_set(hocket: Hocket, agent: Bin) -> None:
    agent("echo", "import sys; print(sys.argv[-1])")
    task = hocket.created("task", "new", "a wish")
    hocket("handoff", task, "echo", "hi")
    words = (
        "--summary",
        "Short",
        "--requirement",
        "one",
        "--requirement",
        "two",
        "--criterion",
        "- a dash",
        "--plan",
        "-",
    )
    planned = json.loads(hocket("task", "plan", task, *words, "--json", stdin="1. look\n2. write\n").stdout)
    assert (planned["taskType"], planned["summary"], planned["requirements"]) == ("planned", "Short", ["one", "two"])
    assert (planned["acceptanceCriteria"], planned["plan"]) == (["- a dash"], "1. look\n2. write\n")
    assert [one["output"] for one in planned["agentChain"]] == ["hi\n"]
    again = hocket("task", "plan", task, "--summary", "Shorter")
    assert (again.returncode, again.stdout) == (0, "")
    shown = hocket("task", "show", task).stdout
    assert "  Shorter\n  requirements\n    - one\n    - two\n" in shown
    assert hocket("task", "status", task).stdout == "waiting\n"
    assert hocket("task", "status", task, "completed", "-m", "well done").stdout == "completed\n"
    assert json.loads(hocket("task", "status", task, "--json").stdout) == {"type": "completed", "message": "well done"}
    refused = hocket("task", "status", task, "active")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "completed" in refused.stderr
    events = json.loads(hocket("task", "history", task, "--json").stdout)
    assert [one["eventType"] for one in events][:2] == ["task_created", "agent_handoff_started"]
    history = hocket("task", "history", task).stdout
    assert "handed to echo" in history
    assert "waiting → completed: well done" in history


@pytest.mark.req("S2-B03")
def test_queue_is_first_in_first_out(hocket: Hocket, agent: Bin, world: Path) -> None:
    wait = f"import os, time\nwhile not os.path.exists({str(world / 'go')!r}): time.sleep(0.01)\n"
    agent("slow", wait)
    run = hocket.created("handoff", "slow", "x", "--detach")
    task = hocket.task_number()
    ids = [hocket("task", "queue", task, "slow", prompt).stdout.strip() for prompt in ("- one", "two", "three")]
    listed = json.loads(hocket("task", "queue", task, "--json").stdout)
    assert [(one["id"], one["prompt"]) for one in listed] == list(zip(ids, ["- one", "two", "three"], strict=True))
    assert hocket("task", "queue", task, "--next").stdout == "- one\n"
    assert hocket("task", "queue", task, "--remove", ids[2]).stdout == f"{ids[2]}\n"
    assert hocket("task", "queue", task).stdout == f"{ids[1]}  slow  two\n"
    (world / "go").touch()
    hocket("wait", run)
    for words, told in [(("slow",), "in quotes"), (("slow", "x", "--next"), "--next"), (("--remove", "q0"), "q0")]:
        refused = hocket("task", "queue", task, *words)
        assert (refused.returncode, refused.stdout) == (2, ""), words
        assert told in refused.stderr or "nothing" in refused.stderr.lower()


@pytest.mark.req("S2-B03")
@pytest.mark.shared_server
def test_queued_entry_uses_the_environment_of_its_caller(hocket: Hocket, agent: Bin, world: Path, home: Path) -> None:
    agent("slow", f"import os, time\nwhile not os.path.exists({str(world / 'go')!r}): time.sleep(0.01)\n")
    (world / "own").mkdir()
    Bin(world / "own")("mine", "import os, sys\nprint(os.environ['HOME'], 'OPENAI_API_KEY' in os.environ, sys.argv[1])")
    mine = {
        "PATH": f"{world / 'own'}:{os.environ['PATH']}",
        "HOME": str(world / "own"),
        "OPENAI_API_KEY": "sk-not-for-it",
    }
    hocket("handoff", "slow", "x", "--detach")
    task = hocket.task_number()
    refused = hocket("task", "queue", task, "mine", "now")
    assert (refused.returncode, refused.stdout) == (2, ""), "it is on no other PATH"
    queued = hocket("task", "queue", task, "mine", "now", env=mine)
    assert queued.returncode == 0, queued.stderr
    assert str(world / "own") not in hocket("task", "export", task).stdout
    kept = (
        home / "data/tasks" / json.loads(hocket("task", "show", task, "--json").stdout)["id"] / "task.json"
    ).read_text()
    assert "sk-not-for-it" not in kept, "another program's key is not kept for it"
    (world / "go").touch()
    records = _until_handed_over(hocket, task, 2)
    assert records[-1]["output"] == f"{world / 'own'} False now\n"


def _until_handed_over(hocket: Hocket, task: str, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        records: list[dict[str, Any]] = json.loads(hocket("task", "show", task, "--json").stdout)["agentChain"]
        if len(records) == count and all(one["completedAt"] for one in records):
            return records
    raise AssertionError(f"not handed over: {records}")


def test_refused_start_uses_no_number(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", "print('hello')")
    assert hocket("handoff", "unknown-agent", "x").returncode == 2
    assert hocket("handoff", "echo", "x", "--cwd", project / "nowhere").returncode == 2
    first = hocket.created("task", "new", "a wish")
    (project / "task.json").write_text(hocket("task", "export", first).stdout)
    assert hocket("task", "import", project / "task.json").returncode != 0
    assert hocket("handoff", "echo", "x").returncode == 0
    assert [one["number"] for one in hocket.tasks()] == [1, 2]
    assert [one["number"] for one in hocket.runs()] == [1]


@pytest.mark.req("S2-B04")
@pytest.mark.shared_server
def test_attachments_are_kept_byte_by_byte(hocket: Hocket, project: Path) -> None:
    task = hocket.created("task", "new", "a wish")
    content = bytes(range(256)) * 10
    (project / "data.bin").write_bytes(content)
    (project / "b.txt").write_text("b")
    kept = json.loads(hocket("task", "attach", task, "data.bin", "b.txt", "--json").stdout)
    assert [(one["name"], one["size"]) for one in kept] == [("data.bin", 2560), ("b.txt", 1)]
    hocket("task", "attach", task, "b.txt", "--name", "other name.txt")
    assert hocket("task", "attach", task).stdout.split("\n")[2] == "         1  other name.txt"
    assert hocket("task", "attach", task, "--get", "data.bin", "-o", "copy.bin").stdout == ""
    assert (project / "copy.bin").read_bytes() == content
    command = [sys.executable, "-m", "hocket", "task", "attach", task, "--get", "data.bin"]
    assert subprocess.run(command, cwd=project, capture_output=True, timeout=PATIENCE, check=True).stdout == content
    for words, told in [
        (("data.bin", "--name", "b.txt"), "already"),
        (("gone.txt",), "gone.txt"),
        ((".",), "not a regular file"),
        (("b.txt", "--name", "../up"), "safe file name"),
        (("--get", "gone.txt"), "gone.txt"),
        (("b.txt", "--get", "b.txt"), "--get"),
        (("b.txt", "data.bin", "--name", "x"), "--name"),
        (("-o", "x"), "--get"),
    ]:
        refused = hocket("task", "attach", task, *words)
        assert (refused.returncode, refused.stdout) == (2, ""), words
        assert told in refused.stderr, words
    with open(project / "large", "wb") as file:
        file.truncate(10 * 1024**2 + 1)
    assert "larger than 10 MB" in hocket("task", "attach", task, "large").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("new", " "),
        ("show", "7777"),
        ("show", ""),
        ("show", "../x"),
        ("attach", "1", "--get", "a/b"),
        ("queue", "1", "--remove", ".."),
        ("plan", "1"),
        ("status", "1", "begun"),
        ("status", "1", "-m", "x"),
        ("history", "7777"),
        ("export",),
        ("export", "1", "--all"),
        ("export", "--all"),
        ("import", "gone.json"),
        ("list", "--limit", "0"),
        ("nonsense",),
    ],
)
@pytest.mark.shared_server
def test_usage_error_exits_with_two_and_a_hint(hocket: Hocket, words: tuple[str, ...]) -> None:
    done = hocket("task", *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr
    assert "route" not in done.stderr


def test_plain_usage_loads_no_framework(hocket: Hocket) -> None:
    hocket("task", "new", "a wish")
    code = "import sys; from hocket.cli import main; main(['task', 'list', '--json']); print(*sys.modules)"
    loaded = hocket(command=[sys.executable, "-c", code]).stdout.split()
    assert "hocket.cli.task" in loaded
    assert "click" not in loaded


# --- Tasks as files ---


def stable(task: dict[str, Any]) -> dict[str, Any]:
    """A task without what belongs to one home: its number, where its runs are, and when files came."""
    chain = [{name: value for name, value in one.items() if name != "elsewhere"} for one in task["agentChain"]]
    files = [{name: one[name] for name in ("name", "size", "sha256")} for one in task["attachments"]]
    kept = {**task, "number": 0, "agentChain": chain, "attachments": files, "updatedAt": 0}
    return {name: value for name, value in kept.items() if name != "history"}


@pytest.mark.req("S2-08", "S2-09", "S2-82")
def test_exported_tasks_are_imported_completely(hocket: Hocket, agent: Bin, project: Path, world: Path) -> None:
    agent("echo", "import sys; sys.stdout.write(sys.argv[-1])")
    plain = hocket.created("task", "new", 'Grüße\n𝄞 \\ "')
    hocket("handoff", "1", "echo", '- a\n\x01 "b" \\ 世界')
    hocket("handoff", "echo", "planned")
    agent("broken", "import sys; sys.exit(3)")
    hocket("task", "plan", "2", "--summary", "s", "--requirement", "r", "--plan", "p" * 100_000)
    (project / "notes.bin").write_bytes(bytes(range(256)))
    hocket("task", "attach", "1", "notes.bin")
    # It ends with an error, so that what is queued stays queued.
    hocket("handoff", "2", "broken", "Fail, please")
    hocket("task", "queue", "2", "echo", "queued 世界")
    hocket("task", "queue", "2", "unknown-agent", "x")  # refused: nothing of that name is there
    hocket("task", "queue", "2", "echo", "the second")
    exported = hocket("task", "export", "--all", "-o", "out").stdout.splitlines()
    assert exported[0] == f"out/{plain}/task.json"
    assert sorted(os.listdir(project / "out" / plain)) == ["attachments", "task.json"]
    before = [json.loads((project / path).read_text(encoding="utf-8")) for path in exported]
    shown = json.loads(hocket("task", "show", "1", "--json").stdout)
    chain = [{name: one[name] for name in shown["agentChain"][0]} for one in before[0]["agentChain"]]
    assert {**before[0], "agentChain": chain} == {**before[0], **shown}
    assert [one["prompt"] for one in before[1]["agentChain"]] == ["planned", "Fail, please"]
    assert [(one["agentName"], one["prompt"]) for one in before[1]["queue"]] == [
        ("echo", "queued 世界"),
        ("echo", "the second"),
    ]
    assert before[1]["history"] == json.loads(hocket("task", "history", "2", "--json").stdout)
    hocket("server", "stop")

    elsewhere = {"HOCKET_HOME": str(world / "h2")}
    try:
        # Folders are read in the order of their names, which is that of nothing else.
        imported = hocket("task", "import", "out", env=elsewhere)
        assert imported.stdout == "task 1\ntask 2\n"
        listed = json.loads(hocket("task", "list", "--json", env=elsewhere).stdout)
        assert sorted(one["id"] for one in listed) == sorted(one["id"] for one in before)
        assert "2 runs were not imported" in imported.stderr
        assert "2 queued; to start the queue" in imported.stderr
        after = [json.loads(hocket("task", "export", one["id"], env=elsewhere).stdout) for one in before]
        assert [stable(one) for one in after] == [stable(one) for one in before]
        assert [one["taskType"] for one in after] == ["descriptionOnly", "planned"]
        assert [record["elsewhere"] for one in after for record in one["agentChain"]] == [True, True, True]
        for old, new in zip(before, after, strict=True):
            assert new["history"][: len(old["history"])] == old["history"]
            assert new["history"][len(old["history"])]["eventType"] == "task_imported"
        kept = hocket("task", "attach", plain, "--get", "notes.bin", "-o", "back.bin", env=elsewhere)
        assert kept.returncode == 0
        assert (project / "back.bin").read_bytes() == bytes(range(256))
        told = hocket("task", "show", before[1]["id"], "-v", env=elsewhere).stdout
        assert f"run {before[1]['agentChain'][0]['run']} (imported)" in told
        assert "prompt: planned" in told
    finally:
        hocket("server", "stop", env=elsewhere)


def test_imported_queue_waits_for_a_hand_off(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", "import sys; sys.stdout.write(sys.argv[-1])")
    done = {"agentName": "planner", "startedAt": 1_000, "completedAt": 2_000, "output": "a plan", "status": "done"}
    queue = [{"agentName": "echo", "prompt": "first"}, {"id": "q-2", "agentName": "echo", "prompt": "second"}]
    session = {"sessionId": "5f3a-1"}
    for name, chain in (("with", [done]), ("without", [])):
        content = {"id": name, "description": "x", "cwd": str(project), "agentChain": chain, "queue": queue, **session}
        (project / f"{name}.json").write_text(json.dumps(content))
    taken = json.loads(hocket("task", "import", "with.json", "without.json", "--json").stdout)
    assert [one["sessionId"] for one in taken] == ["5f3a-1", "5f3a-1"]
    hocket("server", "stop")  # the next one looks at every queue when it comes up
    assert json.loads(hocket("ps", "-a", "--json").stdout) == []
    for name in ("with", "without"):
        assert len(json.loads(hocket("task", "queue", name, "--json").stdout)) == 2
        assert hocket("handoff", name, "echo", "go").stdout == "go\n"
        until(partial(is_done, hocket, name))
        shown = json.loads(hocket("task", "show", name, "--json").stdout)
        assert [one["output"] for one in shown["agentChain"][-3:]] == ["go", "first", "second"]


def is_done(hocket: Hocket, name: str) -> bool:
    """True if no agent is active and the queue is empty."""
    waits = json.loads(hocket("task", "queue", name, "--json").stdout)
    return not waits and json.loads(hocket("task", "show", name, "--json").stdout)["currentAgent"] is None


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline


def test_task_is_imported_once(hocket: Hocket, project: Path) -> None:
    hocket("task", "new", "Grüße")
    text = hocket("task", "export", "1").stdout
    assert text.startswith("{\n  ")
    (project / "one.json").write_text(text, encoding="utf-8")
    twice = hocket("task", "import", "one.json")
    assert (twice.returncode, twice.stdout) == (2, "")
    assert "already" in twice.stderr


@pytest.mark.req("S2-10", "S2-07", "S2-84")
def test_foreign_task_file_is_imported(hocket: Hocket, project: Path) -> None:
    (project / "old.json").write_text('{"id": "old-1", "description": "from long ago"}')
    open_ = {"agentName": "qa", "startedAt": 5_000, "completedAt": None, "output": ""}
    done = {"agentName": "planner", "startedAt": 1_000, "completedAt": 2_000, "output": "a plan"}
    task = {
        "id": "old-2",
        "description": "was at work",
        "status": {"type": "active"},
        "currentAgent": "qa",
        "agentChain": [done, open_],
        "createdAt": 500,
        "updatedAt": 5_000,
        "somethingNew": [1],
    }
    (project / "open.json").write_text(json.dumps(task))
    taken = json.loads(hocket("task", "import", "old.json", "open.json", "--json").stdout)
    assert [(one["id"], one["currentAgent"]) for one in taken] == [("old-1", None), ("old-2", None)]
    assert taken[0]["agentChain"] == []
    planner, qa = taken[1]["agentChain"]
    assert {name: planner[name] for name in done} == done
    assert planner["status"] == "done"
    assert (qa["startedAt"], qa["status"], qa["reason"]) == (5_000, "lost", "lost")
    assert qa["completedAt"] > 5_000
    assert "interrupted" in qa["output"]
    assert taken[1]["status"]["type"] == "waiting"


@pytest.mark.req("S2-11")
def test_malformed_task_is_refused_alone(hocket: Hocket, project: Path) -> None:
    good: dict[str, Any] = {"id": "g1", "description": "fine"}
    bad: dict[str, tuple[Any, str]] = {
        "agent": ({**good, "currentAgent": 5}, "currentAgent"),
        "chain": ({**good, "agentChain": {}}, "agentChain"),
        "time": ({**good, "agentChain": [{"agentName": "a", "startedAt": "soon"}]}, "startedAt"),
        "ended": ({**good, "agentChain": [{"agentName": "a", "startedAt": 1, "completedAt": "x"}]}, "completedAt"),
        "nameless": ({**good, "agentChain": [{"startedAt": 1}]}, "agentName"),
        "output": ({**good, "agentChain": [{"agentName": "a", "startedAt": 1, "output": 7}]}, "output"),
        "status": ({**good, "status": {"type": "odd"}}, "status"),
        "id": ({**good, "id": "../up"}, "id"),
        "list": ([], "object"),
    }
    folder = project / "in"
    folder.mkdir()
    for name, (content, _) in bad.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "broken.json").write_text('{"id":\n "x')
    (folder / "zgood.json").write_text(json.dumps(good))
    done = hocket("task", "import", "in")
    assert (done.returncode, done.stdout) == (2, "task 1\n")
    told = dict(
        line.removeprefix("hocket: in/").split(".json: ", 1) for line in done.stderr.splitlines() if ".json" in line
    )
    assert set(told) == {*bad, "broken"}
    for name, (_, field) in bad.items():
        assert field in told[name], (name, told[name])
    assert "line 2" in told["broken"]
    assert len(json.loads(hocket("task", "list", "--json").stdout)) == 1


def test_attachment_outside_its_folder_is_refused(hocket: Hocket, project: Path, world: Path) -> None:
    (world / "secret").write_text("secret")
    for name in ("a", "b"):
        folder = project / "in" / name
        (folder / "attachments").mkdir(parents=True)
        attachment = "../../../../secret" if name == "a" else "link"
        content = {"id": f"x-{name}", "description": "x", "attachments": [{"name": attachment}]}
        (folder / "task.json").write_text(json.dumps(content))
    (project / "in/b/attachments/link").symlink_to(world / "secret")
    done = hocket("task", "import", "in")
    assert done.returncode == 2
    tasks = json.loads(hocket("task", "list", "--json").stdout)
    shown = [json.loads(hocket("task", "show", one["id"], "--json").stdout) for one in tasks]
    assert [one["attachments"] for one in shown] == [[], []]


def test_tasks_of_a_folder_are_found(tmp_path: Path) -> None:
    assert task_files(str(tmp_path / "one.json")) == [str(tmp_path / "one.json")]
    with pytest.raises(UsageError, match="no task"):
        task_files(str(tmp_path))
    for name in ("b.json", "a.json", ".c.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    assert task_files(str(tmp_path)) == [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    (tmp_path / "t1").mkdir()
    (tmp_path / "t1/task.json").write_text("{}")
    assert task_files(str(tmp_path)) == [str(tmp_path / "t1/task.json")] == task_files(str(tmp_path / "t1"))


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"{", b"[]", b"1"])
def test_file_without_an_object_is_reported(content: bytes) -> None:
    with pytest.raises(UsageError):
        parse_task(content)


@pytest.mark.req("S2-82")
def test_file_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    write_atomically(str(path), b"after")
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["x"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadDirectory):
        write_atomically(str(tmp_path / "folder"), b"")
    with pytest.raises(BadDirectory):
        write_atomically(str(tmp_path / "none/x"), b"")
    assert sorted(os.listdir(tmp_path)) == ["folder", "x"]


# --- The archive, and removal ---


def made(hocket: Hocket, description: str) -> str:
    """The number of a new task."""
    return hocket("task", "new", description).stdout.split()[-1]


def listed(hocket: Hocket, *options: str) -> set[str]:
    found = json.loads(hocket("task", *options, "--json").stdout)
    return {str(one["number"]) for one in found}


@pytest.mark.shared_server
def test_archived_tasks_are_hidden_from_list_and_board(hocket: Hocket) -> None:
    task, other = made(hocket, "old wish"), made(hocket, "wish")
    done = hocket("task", "archive", task)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"archived task {task}\n")
    for view in ("list", "board"):
        assert task not in listed(hocket, view)
        assert {task, other} <= listed(hocket, view, "--all")
        assert task in listed(hocket, view, "--archived")
        assert other not in listed(hocket, view, "--archived")
    assert "archived  yes" in hocket("task", "show", task).stdout
    assert hocket("task", "list", "--all", "--archived").returncode == 2
    again = json.loads(hocket("task", "archive", task, other, "--undo", "--json").stdout)
    assert [(str(one["number"]), one["archived"]) for one in again] == [(task, False), (other, False)]
    assert {task, other} <= listed(hocket, "list")
    refused = hocket("task", "archive", "tnone", task)
    assert (refused.returncode, "tnone" in refused.stderr) == (2, True)
    assert task in listed(hocket, "list", "--archived"), "the other one is archived all the same"


@pytest.mark.shared_server
def test_removed_task_leaves_its_run(hocket: Hocket, agent: Bin) -> None:
    agent("echo", "import sys; print(sys.argv[-1])")
    hocket("handoff", "echo", "one")
    task, run = hocket.task_number(), hocket.number()
    unasked = hocket("task", "rm", task)
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    assert hocket("task", "show", task).returncode == 0
    found = json.loads(hocket("task", "show", task, "--json").stdout)
    gone = {"id": found["id"], "number": int(task), "removed": True}
    for _ in range(2):
        done = hocket("task", "rm", task, "--yes", "--json")
        assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, [gone], "")
    assert hocket("task", "show", task).returncode == 2
    assert hocket("wait", run).stdout == "one\n"
    result = hocket("handoff", "--result", run)
    assert (result.returncode, f"hocket wait {run}" in result.stderr) == (2, True)


@pytest.mark.shared_server
@pytest.mark.parametrize(("reply", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_removal_asks_on_a_terminal(hocket: Hocket, reply: bytes, code: int) -> None:
    task = made(hocket, "a wish")
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "hocket", "task", "rm", task]
    with subprocess.Popen(argv, cwd=hocket.cwd, stdin=slave, stderr=slave, stdout=subprocess.PIPE) as process:
        os.close(slave)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(master, 1024)
        os.write(master, reply)
        assert process.wait(PATIENCE) == code
    os.close(master)
    assert f"Remove task {task}, a wish?".encode() in said
    assert (hocket("task", "show", task).returncode == 0) == (code == 1)
