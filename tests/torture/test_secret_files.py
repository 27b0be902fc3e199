"""Values of secret variables lie in `secrets/<root>` while a tree of runs needs them, and nowhere else in the home."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from torture.ground import Ground, Run, environment, kill, wait_for
from torture.test_machine import needs_root, tmpfs
from world import Bin, Hocket

from hocket.errors import DiskLow, StoreError
from hocket.keeper import files
from hocket.sessions.run_identity import run_token

KEY = "sk-test-0123456789abcdef0123456789"
OTHER = "sk-other-fedcba9876543210fedcba98"
STEP = """
import hashlib, os, sys
name = os.path.basename(sys.argv[0])
key = os.environ.get("MY_API_KEY", "")
with open(f"{name}.new", "w") as file:
    file.write(f"{hashlib.sha256(key.encode()).hexdigest()} {os.environ['HOCKET_RUN']}")
os.rename(f"{name}.new", f"{name}.has")
if os.path.exists(f"{name}.gate"):
    open(f"{name}.gate").read()
sys.exit(os.path.exists(f"{name}.fails"))
"""


@pytest.fixture
def steps(ground: Ground, agent: Bin) -> None:
    """Agents that say which key they have, and wait at a gate where there is one."""
    for name in ("first", "second", "third"):
        agent(name, STEP)
    (ground.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n')


def start(ground: Ground, key: str | None = KEY, **body: Any) -> str:
    """A start whose key only the request has: neither the server nor a keeper has it in its own environment."""
    env = {**environment(), **({"MY_API_KEY": key} if key else {})}
    return str(ground.client.request("POST", "/api/runs", {"cwd": str(ground.cwd), "env": env, **body})["id"])


def gated(ground: Ground, *names: str) -> None:
    for name in names:
        os.mkfifo(ground.cwd / f"{name}.gate")


def let_go(ground: Ground, name: str) -> None:
    (ground.cwd / f"{name}.gate").open("w").close()


def key_of(ground: Ground, name: str) -> str:
    """The key that an agent was started with, by its hash: once it is running."""
    path = ground.cwd / f"{name}.has"
    wait_for(path.exists, f"the start of {name}")
    told = path.read_text().split()[0]
    hashes = {hashlib.sha256(value.encode()).hexdigest(): value for value in (KEY, OTHER, "")}
    return hashes[told]


def holders(home: Path, value: str) -> set[str]:
    """The files below a home that have a value in them."""
    found = set()
    for folder, _, names in os.walk(home):
        for path in (Path(folder, name) for name in names):
            try:
                if path.is_file() and value.encode() in path.read_bytes():
                    found.add(str(path.relative_to(home)))
            except FileNotFoundError:
                continue  # removed meanwhile
    return found


def is_nowhere(ground: Ground, value: str = KEY) -> None:
    wait_for(lambda: not holders(ground.home, value), f"the removal from {holders(ground.home, value)}")


def token_of(ground: Ground, run: str) -> str:
    return run_token((ground.home / "secret").read_text().strip().encode(), run)


def test_second_step_has_the_key_when_the_server_was_killed(ground: Ground, steps: None) -> None:
    gated(ground, "first", "second")
    root = start(ground, dsl="first -> second")
    assert key_of(ground, "first") == KEY
    kill(ground.server_pid())
    let_go(ground, "first")  # Its keeper starts a server, which has never seen the request.
    assert key_of(ground, "second") == KEY
    ground.kill_server()
    let_go(ground, "second")
    assert ground.ended(root)["status"] == "done"
    is_nowhere(ground)


def test_value_is_in_one_file_while_a_chain_runs_and_in_none_after(ground: Ground, steps: None) -> None:
    gated(ground, "first", "second")
    root = start(ground, dsl="first -> second:2")
    key_of(ground, "first")
    only = {f"secrets/{root}"}
    assert holders(ground.home, KEY) == only
    path = ground.home / "secrets" / root
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    let_go(ground, "first")
    key_of(ground, "second")
    assert holders(ground.home, KEY) == only
    leaf = (ground.cwd / "second.has").read_text().split()[1]
    assert holders(ground.home, token_of(ground, leaf)) == set(), "its capability is in no file at all"
    spec = json.loads((ground.folder(leaf) / "spec.json").read_text())
    assert (spec["secrets"], "MY_API_KEY" in spec["env"], "HOCKET_TOKEN" in spec["env"]) == (
        {"MY_API_KEY": 0},
        False,
        False,
    )
    (ground.cwd / "second.gate").unlink()
    (ground.cwd / "second.gate").touch()
    ground.client.request("POST", f"/api/runs/{root}/stop", {})
    ground.ended(root)
    is_nowhere(ground)
    ground.kill_server(signal.SIGTERM)
    assert holders(ground.home, KEY) == set()


def test_redaction_goes_on_after_the_server_was_killed(ground: Ground, agent: Bin, steps: None) -> None:
    agent("shouter", "import os\nopen('has', 'w').close()\nopen('gate').read()\nprint(os.environ['MY_API_KEY'])\n")
    os.mkfifo(ground.cwd / "gate")
    run = start(ground, agent="shouter")
    wait_for((ground.cwd / "has").exists, "its start")
    ground.kill_server()
    ground.server_pid()
    (ground.cwd / "gate").open("w").close()
    assert ground.ended(run)["result"] == "[redacted]\n"
    assert KEY not in json.dumps(ground.events(run))


def test_secrets_of_a_lost_run_are_removed(ground: Ground, steps: None) -> None:
    gated(ground, "first")
    run = start(ground, agent="first")
    key_of(ground, "first")
    kill(ground.identity(run).keeper)
    assert ground.ended(run)["status"] == "lost"
    is_nowhere(ground)


def test_files_that_belong_to_no_live_run_are_removed_at_start(ground: Ground, steps: None) -> None:
    """As a server leaves them that is killed after a root has ended, or before it exists."""
    run = start(ground, agent="first")
    ground.ended(run)
    ground.kill_server()
    folder = ground.home / "secrets"
    content = json.dumps({"v": 1, "values": {"MY_API_KEY": [KEY]}})
    for name in (run, "rabcdefghijklmno", f".{run}.new", "notes.txt"):
        (folder / name).write_text(content)
    ground.server_pid()
    assert holders(ground.home, KEY) == {"secrets/notes.txt"}, "what is not Hocket's stays"


def test_child_may_have_another_value_and_outlive_its_root(ground: Ground, steps: None) -> None:
    gated(ground, "first", "second")
    root = start(ground, agent="first")
    assert key_of(ground, "first") == KEY
    child = start(ground, OTHER, dsl="second -> third", parent=root)
    assert key_of(ground, "second") == OTHER
    assert holders(ground.home, OTHER) == holders(ground.home, KEY) == {f"secrets/{root}"}
    let_go(ground, "first")
    ground.ended(root)
    ground.kill_server()
    let_go(ground, "second")
    assert key_of(ground, "third") == OTHER
    assert ground.ended(child)["status"] == "done"
    is_nowhere(ground, OTHER)
    is_nowhere(ground)


def test_child_has_the_key_of_its_parent_when_the_server_was_killed(ground: Ground, steps: None) -> None:
    gated(ground, "first")
    root = start(ground, agent="first")
    assert key_of(ground, "first") == KEY
    ground.kill_server()
    child = ground.client.request("POST", "/api/runs", {"agent": "second", "parent": root})["id"]
    assert key_of(ground, "second") == KEY
    ground.ended(child)
    assert holders(ground.home, KEY) == {f"secrets/{root}"}, "its root goes on"
    let_go(ground, "first")
    is_nowhere(ground)


def test_many_children_at_once_lose_no_value(ground: Ground, steps: None, agent: Bin) -> None:
    gated(ground, "first")
    (ground.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n[limits]\nchildren = 20\n')
    agent("child", "import os, time\nopen('gate').read()\nprint(len(os.environ['MY_API_KEY']))\n")
    os.mkfifo(ground.cwd / "gate")
    root = start(ground, agent="first")
    values = [f"{OTHER}{number}" for number in range(6)]
    for value in values:
        start(ground, value, agent="child", parent=root)
    kept = json.loads((ground.home / "secrets" / root).read_text())["values"]["MY_API_KEY"]
    assert kept == [KEY, *values]
    ground.client.request("POST", f"/api/runs/{root}/stop", {})
    is_nowhere(ground, OTHER)


@needs_root
def test_start_is_refused_when_the_disk_has_no_room_for_secrets(ground: Ground, steps: None) -> None:
    ground.server_pid()
    folder = ground.home / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    with tmpfs(folder, "size=4k,mode=700"):
        (folder / "full").write_bytes(b"x" * 4096)
        with pytest.raises(DiskLow) as refused:
            start(ground, agent="first")
        assert (refused.value.status, "secrets" in refused.value.message) == (507, True)
        assert ground.client.request("GET", "/api/runs") == []
        assert not (ground.cwd / "first.has").exists()
        (folder / "full").unlink()
        assert ground.ended(start(ground, agent="first"))["status"] == "done"
        ground.kill_server(signal.SIGTERM)


def test_start_is_refused_when_secrets_cannot_be_written(ground: Ground, steps: None) -> None:
    ground.server_pid()
    wait_for((ground.home / "secrets/.specs-are-clean").exists, "the first look through the home")
    shutil.rmtree(ground.home / "secrets")
    (ground.home / "secrets").write_text("in the way")
    with pytest.raises(StoreError, match="secrets of this start cannot be written"):
        start(ground, agent="first")
    assert ground.client.request("GET", "/api/runs") == []
    assert ground.ended(start(ground, None, agent="first"))["status"] == "done", "without a secret nothing is missing"


# --- Going on with what has ended ---------------------------------------------------------------------------


def failed_chain(ground: Ground) -> str:
    (ground.cwd / "second.fails").touch()
    root = start(ground, dsl="first -> second")
    assert ground.ended(root)["status"] == "failed"
    (ground.cwd / "second.fails").unlink()
    (ground.cwd / "second.has").unlink()
    return root


def notices(ground: Ground, run: str) -> str:
    return " ".join(event["data"]["text"] for event in ground.events(run) if event["type"] == "notice")


@pytest.mark.parametrize("sent", [{"MY_API_KEY": OTHER}, {}])
def test_resumed_run_has_the_key_of_its_caller(ground: Ground, steps: None, sent: Mapping[str, str]) -> None:
    root = failed_chain(ground)
    body = {"env": {**environment(), **sent, "OTHER_API_KEY": KEY}}
    again = str(ground.client.request("POST", f"/api/runs/{root}/resume", body)["id"])
    assert ground.ended(again)["status"] == "done"
    assert key_of(ground, "second") == sent.get("MY_API_KEY", "")
    assert ("started without MY_API_KEY" in notices(ground, again)) is not bool(sent)
    is_nowhere(ground, OTHER)


def test_command_resumes_with_the_key_of_its_environment(ground: Ground, hocket: Hocket, steps: None) -> None:
    root = failed_chain(ground)
    assert hocket("resume", root, env={"MY_API_KEY": OTHER}).returncode == 0
    assert key_of(ground, "second") == OTHER


def test_value_that_no_program_can_have_is_refused(ground: Ground, steps: None) -> None:
    root = failed_chain(ground)
    with pytest.raises(Exception, match="cannot be passed to a program"):
        ground.client.request("POST", f"/api/runs/{root}/resume", {"env": {"MY_API_KEY": "a\0b"}})


# --- Queues -------------------------------------------------------------------------------------------------


def queued(ground: Ground) -> str:
    """A task whose only agent is at work, and another in its queue that is to have a key."""
    gated(ground, "first")
    task = str(ground.client.request("POST", "/api/tasks", {"description": "d", "cwd": str(ground.cwd)})["id"])
    ground.client.request(
        "POST", f"/api/tasks/{task}/handoff", {"agentName": "first", "prompt": "x", "env": environment()}
    )
    body = {"agentName": "second", "prompt": "y", "env": {**environment(), "MY_API_KEY": KEY}}
    return str(ground.client.request("POST", f"/api/tasks/{task}/queue", body)["id"])


def test_queued_agent_has_its_key_when_the_server_was_killed(ground: Ground, steps: None) -> None:
    item = queued(ground)
    assert holders(ground.home, KEY) == {f"secrets/{item}"}
    ground.kill_server()
    let_go(ground, "first")
    assert key_of(ground, "second") == KEY
    is_nowhere(ground)


def test_secrets_of_an_item_go_when_it_is_taken_out(ground: Ground, steps: None) -> None:
    item = queued(ground)
    task = ground.client.request("GET", "/api/tasks")[0]["id"]
    ground.client.request("DELETE", f"/api/tasks/{task}/queue/{item}")
    is_nowhere(ground)
    let_go(ground, "first")


# --- Without the database -----------------------------------------------------------------------------------


def test_restored_run_is_redacted_and_its_secrets_are_removed(
    ground: Ground, agent: Bin, hocket: Hocket, steps: None
) -> None:
    agent("shouter", "import os\nopen('has', 'w').close()\nopen('gate').read()\nprint(os.environ['MY_API_KEY'])\n")
    os.mkfifo(ground.cwd / "gate")
    root = start(ground, dsl="shouter -> first")
    wait_for((ground.cwd / "has").exists, "its start")
    (leaf,) = [run["id"] for run in ground.client.request("GET", "/api/runs") if run["id"] != root]
    ground.kill_server()
    (ground.home / "hocket.db").write_bytes(b"this was a database once\n" * 200)
    restored = hocket("doctor", "--restore")
    assert restored.returncode == 0, restored.stderr
    ground.server_pid()
    assert holders(ground.home, KEY) == {f"secrets/{leaf}"}, "its chain is gone, so it is a root now"
    (ground.cwd / "gate").open("w").close()
    assert ground.ended(leaf)["result"] == "[redacted]\n"
    wait_for(lambda: not list((ground.home / "secrets").glob("r*")), "the removal of its secrets")


# --- Upgrading ----------------------------------------------------------------------------------------------


def write_as_before(ground: Ground) -> None:
    """Make the home what the version before left: environments whole in the database and in every spec.json."""
    with closing(sqlite3.connect(ground.home / "hocket.db")) as database, database:
        for run, record in database.execute("SELECT id, spec FROM runs").fetchall():
            spec = json.loads(record)
            for part in (spec, *(step["spec"] for step in spec.get("steps", ()))):
                part["env"] |= dict.fromkeys(part.pop("secrets", {}), KEY)
            database.execute("UPDATE runs SET spec = ? WHERE id = ?", (json.dumps(spec), run))
        for task, text in database.execute("SELECT id, state FROM tasks").fetchall():
            state = json.loads(text)
            for item in state["queue"]:
                item["env"]["MY_API_KEY"] = KEY
            database.execute("UPDATE tasks SET state = ? WHERE id = ?", (json.dumps(state), task))
        database.execute("DELETE FROM migrations WHERE number = 3")
    for path in (ground.home / "runs").glob("*/*/spec.json"):
        spec = json.loads(path.read_text())
        spec["env"] |= {**dict.fromkeys(spec.pop("secrets"), KEY), "HOCKET_TOKEN": token_of(ground, spec["run"])}
        path.write_text(json.dumps(spec))
    for path in (ground.home / "data/tasks").glob("*/task.json"):
        path.write_text(path.read_text().replace('"env":{', f'"env":{{"MY_API_KEY":"{KEY}",'))
    shutil.rmtree(ground.home / "secrets")


def test_upgrade_removes_values_and_live_work_keeps_its_key(ground: Ground, steps: None) -> None:
    ended: Run = ground.ended(start(ground, agent="third"))
    gated(ground, "second")
    root = start(ground, dsl="second -> third")
    key_of(ground, "second")
    item = queued(ground)
    key_of(ground, "first")
    ground.kill_server(signal.SIGTERM)
    write_as_before(ground)
    (ground.cwd / "third.has").unlink()
    assert f"{os.path.relpath(ended['dir'], ground.home)}/spec.json" in holders(ground.home, KEY)
    ground.server_pid()
    live = {f"secrets/{root}", f"secrets/{item}"}
    wait_for(lambda: holders(ground.home, KEY) == live, f"the removal of values, found in {holders(ground.home, KEY)}")
    assert holders(ground.home, token_of(ground, ended["id"])) == set()
    (ground.cwd / "second.gate").rename(ground.cwd / "old.gate")
    (ground.cwd / "old.gate").open("w").close()
    assert key_of(ground, "third") == KEY
    assert ground.ended(root)["status"] == "done"
    (ground.cwd / "second.has").unlink()
    let_go(ground, "first")
    assert key_of(ground, "second") == KEY
    is_nowhere(ground)
    assert files.read_spec(ended["dir"])["secrets"] == {"MY_API_KEY": 0}  # type: ignore[index]
