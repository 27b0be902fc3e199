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
from store.sample_events import downgrade
from torture.installation import Installation, Run, environment, kill, wait_for
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
def steps(installation: Installation, agent: Bin) -> None:
    """Agents that say which key they have, and wait at a gate where there is one."""
    for name in ("first", "second", "third"):
        agent(name, STEP)
    (installation.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n')


def start(installation: Installation, key: str | None = KEY, **body: Any) -> str:
    """A start whose key only the request has: neither the server nor a keeper has it in its own environment."""
    env = {**environment(), **({"MY_API_KEY": key} if key else {})}
    return str(
        installation.client.request("POST", "/api/runs", {"cwd": str(installation.cwd), "env": env, **body})["id"]
    )


def gated(installation: Installation, *names: str) -> None:
    for name in names:
        os.mkfifo(installation.cwd / f"{name}.gate")


def let_go(installation: Installation, name: str) -> None:
    (installation.cwd / f"{name}.gate").open("w").close()


def key_of(installation: Installation, name: str) -> str:
    """The key that an agent was started with, by its hash: once it is running."""
    path = installation.cwd / f"{name}.has"
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


def is_nowhere(installation: Installation, value: str = KEY) -> None:
    wait_for(lambda: not holders(installation.home, value), f"the removal from {holders(installation.home, value)}")


def token_of(installation: Installation, run: str) -> str:
    return run_token((installation.home / "secret").read_text().strip().encode(), run)


def test_second_step_has_key_after_server_kill(installation: Installation, steps: None) -> None:
    gated(installation, "first", "second")
    root = start(installation, dsl="first -> second")
    assert key_of(installation, "first") == KEY
    kill(installation.server_pid())
    let_go(installation, "first")  # Its keeper starts a server, which has never seen the request.
    assert key_of(installation, "second") == KEY
    installation.kill_server()
    let_go(installation, "second")
    assert installation.ended(root)["status"] == "done"
    is_nowhere(installation)


def test_value_is_in_one_file_while_chain_runs(installation: Installation, steps: None) -> None:
    gated(installation, "first", "second")
    root = start(installation, dsl="first -> second:2")
    key_of(installation, "first")
    only = {f"secrets/{root}"}
    assert holders(installation.home, KEY) == only
    path = installation.home / "secrets" / root
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    let_go(installation, "first")
    key_of(installation, "second")
    assert holders(installation.home, KEY) == only
    leaf = (installation.cwd / "second.has").read_text().split()[1]
    assert holders(installation.home, token_of(installation, leaf)) == set(), "its capability is in no file at all"
    spec = json.loads((installation.folder(leaf) / "spec.json").read_text())
    assert (spec["secrets"], "MY_API_KEY" in spec["env"], "HOCKET_TOKEN" in spec["env"]) == (
        {"MY_API_KEY": 0},
        False,
        False,
    )
    (installation.cwd / "second.gate").unlink()
    (installation.cwd / "second.gate").touch()
    installation.client.request("POST", f"/api/runs/{root}/stop", {})
    installation.ended(root)
    is_nowhere(installation)
    installation.kill_server(signal.SIGTERM)
    assert holders(installation.home, KEY) == set()


def test_redaction_continues_after_a_server_kill(installation: Installation, agent: Bin, steps: None) -> None:
    agent("shouter", "import os\nopen('has', 'w').close()\nopen('gate').read()\nprint(os.environ['MY_API_KEY'])\n")
    os.mkfifo(installation.cwd / "gate")
    run = start(installation, agent="shouter")
    wait_for((installation.cwd / "has").exists, "its start")
    installation.kill_server()
    installation.server_pid()
    (installation.cwd / "gate").open("w").close()
    assert installation.ended(run)["result"] == "[redacted]\n"
    assert KEY not in json.dumps(installation.events(run))


def test_secrets_of_a_lost_run_are_removed(installation: Installation, steps: None) -> None:
    gated(installation, "first")
    run = start(installation, agent="first")
    key_of(installation, "first")
    kill(installation.identity(run).keeper)
    assert installation.ended(run)["status"] == "lost"
    is_nowhere(installation)


def test_files_of_ended_runs_are_removed_at_start(installation: Installation, steps: None) -> None:
    """As a server leaves them that is killed after a root has ended, or before it exists."""
    run = start(installation, agent="first")
    installation.ended(run)
    installation.kill_server()
    folder = installation.home / "secrets"
    content = json.dumps({"v": 1, "values": {"MY_API_KEY": [KEY]}})
    for name in (run, "rabcdefghijklmno", f".{run}.new", "notes.txt"):
        (folder / name).write_text(content)
    installation.server_pid()
    assert holders(installation.home, KEY) == {"secrets/notes.txt"}, "what is not Hocket's stays"


def test_child_with_other_value_may_outlive_root(installation: Installation, steps: None) -> None:
    gated(installation, "first", "second")
    root = start(installation, agent="first")
    assert key_of(installation, "first") == KEY
    child = start(installation, OTHER, dsl="second -> third", parent=root)
    assert key_of(installation, "second") == OTHER
    assert holders(installation.home, OTHER) == holders(installation.home, KEY) == {f"secrets/{root}"}
    let_go(installation, "first")
    installation.ended(root)
    installation.kill_server()
    let_go(installation, "second")
    assert key_of(installation, "third") == OTHER
    assert installation.ended(child)["status"] == "done"
    is_nowhere(installation, OTHER)
    is_nowhere(installation)


def test_child_has_key_of_parent_after_server_kill(installation: Installation, steps: None) -> None:
    gated(installation, "first")
    root = start(installation, agent="first")
    assert key_of(installation, "first") == KEY
    installation.kill_server()
    child = installation.client.request("POST", "/api/runs", {"agent": "second", "parent": root})["id"]
    assert key_of(installation, "second") == KEY
    installation.ended(child)
    assert holders(installation.home, KEY) == {f"secrets/{root}"}, "its root goes on"
    let_go(installation, "first")
    is_nowhere(installation)


def test_concurrent_children_lose_no_value(installation: Installation, steps: None, agent: Bin) -> None:
    gated(installation, "first")
    (installation.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n[limits]\nchildren = 20\n')
    agent("child", "import os, time\nopen('gate').read()\nprint(len(os.environ['MY_API_KEY']))\n")
    os.mkfifo(installation.cwd / "gate")
    root = start(installation, agent="first")
    values = [f"{OTHER}{number}" for number in range(6)]
    for value in values:
        start(installation, value, agent="child", parent=root)
    kept = json.loads((installation.home / "secrets" / root).read_text())["values"]["MY_API_KEY"]
    assert kept == [KEY, *values]
    installation.client.request("POST", f"/api/runs/{root}/stop", {})
    is_nowhere(installation, OTHER)


@needs_root
def test_start_is_refused_when_secrets_lack_disk_space(installation: Installation, steps: None) -> None:
    installation.server_pid()
    folder = installation.home / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    with tmpfs(folder, "size=4k,mode=700"):
        (folder / "full").write_bytes(b"x" * 4096)
        with pytest.raises(DiskLow) as refused:
            start(installation, agent="first")
        assert (refused.value.status, "secrets" in refused.value.message) == (507, True)
        assert installation.client.request("GET", "/api/runs") == []
        assert not (installation.cwd / "first.has").exists()
        (folder / "full").unlink()
        assert installation.ended(start(installation, agent="first"))["status"] == "done"
        installation.kill_server(signal.SIGTERM)


def test_start_is_refused_when_secrets_cannot_be_written(installation: Installation, steps: None) -> None:
    installation.server_pid()
    wait_for((installation.home / "secrets/.specs-are-clean").exists, "the first look through the home")
    shutil.rmtree(installation.home / "secrets")
    (installation.home / "secrets").write_text("in the way")
    with pytest.raises(StoreError, match="secrets of this start cannot be written"):
        start(installation, agent="first")
    assert installation.client.request("GET", "/api/runs") == []
    assert installation.ended(start(installation, None, agent="first"))["status"] == "done", (
        "without a secret nothing is missing"
    )


# --- Going on with what has ended ---------------------------------------------------------------------------


def failed_chain(installation: Installation) -> str:
    (installation.cwd / "second.fails").touch()
    root = start(installation, dsl="first -> second")
    assert installation.ended(root)["status"] == "failed"
    (installation.cwd / "second.fails").unlink()
    (installation.cwd / "second.has").unlink()
    return root


def notices(installation: Installation, run: str) -> str:
    return " ".join(event["data"]["text"] for event in installation.events(run) if event["type"] == "notice")


@pytest.mark.parametrize("sent", [{"MY_API_KEY": OTHER}, {}])
def test_resumed_run_has_the_key_of_its_caller(
    installation: Installation, steps: None, sent: Mapping[str, str]
) -> None:
    root = failed_chain(installation)
    body = {"env": {**environment(), **sent, "OTHER_API_KEY": KEY}}
    again = str(installation.client.request("POST", f"/api/runs/{root}/resume", body)["id"])
    assert installation.ended(again)["status"] == "done"
    assert key_of(installation, "second") == sent.get("MY_API_KEY", "")
    assert ("started without MY_API_KEY" in notices(installation, again)) is not bool(sent)
    is_nowhere(installation, OTHER)


def test_command_resumes_with_the_key_of_its_environment(
    installation: Installation, hocket: Hocket, steps: None
) -> None:
    root = failed_chain(installation)
    assert hocket("resume", root, env={"MY_API_KEY": OTHER}).returncode == 0
    assert key_of(installation, "second") == OTHER


def test_value_with_nul_is_refused(installation: Installation, steps: None) -> None:
    root = failed_chain(installation)
    with pytest.raises(Exception, match="must not contain NUL"):
        installation.client.request("POST", f"/api/runs/{root}/resume", {"env": {"MY_API_KEY": "a\0b"}})


# --- Queues -------------------------------------------------------------------------------------------------


def queued(installation: Installation) -> str:
    """A task whose only agent is at work, and another in its queue that is to have a key."""
    gated(installation, "first")
    task = str(
        installation.client.request("POST", "/api/tasks", {"description": "d", "cwd": str(installation.cwd)})["id"]
    )
    installation.client.request(
        "POST", f"/api/tasks/{task}/handoff", {"agentName": "first", "prompt": "x", "env": environment()}
    )
    body = {"agentName": "second", "prompt": "y", "env": {**environment(), "MY_API_KEY": KEY}}
    return str(installation.client.request("POST", f"/api/tasks/{task}/queue", body)["id"])


def test_queued_agent_has_key_after_server_kill(installation: Installation, steps: None) -> None:
    item = queued(installation)
    assert holders(installation.home, KEY) == {f"secrets/{item}"}
    installation.kill_server()
    let_go(installation, "first")
    assert key_of(installation, "second") == KEY
    is_nowhere(installation)


def test_removed_queue_item_loses_its_secrets(installation: Installation, steps: None) -> None:
    item = queued(installation)
    task = installation.client.request("GET", "/api/tasks")[0]["id"]
    installation.client.request("DELETE", f"/api/tasks/{task}/queue/{item}")
    is_nowhere(installation)
    let_go(installation, "first")


# --- Without the database -----------------------------------------------------------------------------------


def test_restored_run_is_redacted(installation: Installation, agent: Bin, hocket: Hocket, steps: None) -> None:
    agent("shouter", "import os\nopen('has', 'w').close()\nopen('gate').read()\nprint(os.environ['MY_API_KEY'])\n")
    os.mkfifo(installation.cwd / "gate")
    root = start(installation, dsl="shouter -> first")
    wait_for((installation.cwd / "has").exists, "its start")
    (leaf,) = [run["id"] for run in installation.client.request("GET", "/api/runs") if run["id"] != root]
    installation.kill_server()
    (installation.home / "hocket.db").write_bytes(b"this was a database once\n" * 200)
    restored = hocket("doctor", "--restore")
    assert restored.returncode == 0, restored.stderr
    installation.server_pid()
    assert holders(installation.home, KEY) == {f"secrets/{leaf}"}, "its chain is gone, so it is a root now"
    (installation.cwd / "gate").open("w").close()
    assert installation.ended(leaf)["result"] == "[redacted]\n"
    wait_for(lambda: not list((installation.home / "secrets").glob("r*")), "the removal of its secrets")


# --- Upgrading ----------------------------------------------------------------------------------------------


def write_as_before(installation: Installation) -> None:
    """Make the home what the version before left: environments whole in the database and in every spec.json."""
    with closing(sqlite3.connect(installation.home / "hocket.db")) as database, database:
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
    downgrade(installation.home / "hocket.db", 2)
    for path in (installation.home / "runs").glob("*/*/spec.json"):
        spec = json.loads(path.read_text())
        spec["env"] |= {**dict.fromkeys(spec.pop("secrets"), KEY), "HOCKET_TOKEN": token_of(installation, spec["run"])}
        path.write_text(json.dumps(spec))
    for path in (installation.home / "data/tasks").glob("*/task.json"):
        path.write_text(path.read_text().replace('"env":{', f'"env":{{"MY_API_KEY":"{KEY}",'))
    shutil.rmtree(installation.home / "secrets")


def test_upgrade_removes_values_except_of_live_runs(installation: Installation, steps: None) -> None:
    ended: Run = installation.ended(start(installation, agent="third"))
    gated(installation, "second")
    root = start(installation, dsl="second -> third")
    key_of(installation, "second")
    item = queued(installation)
    key_of(installation, "first")
    installation.kill_server(signal.SIGTERM)
    write_as_before(installation)
    (installation.cwd / "third.has").unlink()
    assert f"{os.path.relpath(ended['dir'], installation.home)}/spec.json" in holders(installation.home, KEY)
    installation.server_pid()
    live = {f"secrets/{root}", f"secrets/{item}"}
    wait_for(
        lambda: holders(installation.home, KEY) == live,
        f"the removal of values, found in {holders(installation.home, KEY)}",
    )
    assert holders(installation.home, token_of(installation, ended["id"])) == set()
    (installation.cwd / "second.gate").rename(installation.cwd / "old.gate")
    (installation.cwd / "old.gate").open("w").close()
    assert key_of(installation, "third") == KEY
    assert installation.ended(root)["status"] == "done"
    (installation.cwd / "second.has").unlink()
    let_go(installation, "first")
    assert key_of(installation, "second") == KEY
    is_nowhere(installation)
    assert files.read_spec(ended["dir"])["secrets"] == {"MY_API_KEY": 0}  # type: ignore[index]
