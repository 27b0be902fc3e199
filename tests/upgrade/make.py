"""Record ``recorded/``: a HOCKET_HOME as another version of Hocket left it when its server was killed.

    PYTHONPATH=tests python tests/upgrade/make.py PYTHON

PYTHON is the interpreter of an environment in which that version is installed. What is there was recorded with the
version before questions and usage had tables of their own (schema 3). Everything is done through its command line;
the server's lock is held here once the server was killed, so that no keeper starts another one.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from upgrade import fixture, programs
from world import SYSTEM_PATH, make_root, processes_of, remove_root

PATIENCE = 20.0
CONFIG = '[limits]\nleaves = 5\n\n[env]\npass = ["API_TOKEN"]\n'
DEFINITION = """---
name: reviewer
description: Reviews changes
hooks: {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}
---
Review what was changed.
"""
SETTINGS = '{"permissions": {"allow": ["Bash(make test)"]}}\n'
SECRET = "only-the-caller-had-this-value"
LEFT_OUT = {"sock", "reserve", "server.log", "server.lock", "port", "wake.lock"}
"""Files of the home that say nothing to another server, or are made anew by it."""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.01)
    return value


class Recorder:
    """The command line of the version that is recorded, below a root of its own."""

    def __init__(self, python: str, root: Path) -> None:
        self._python = python
        self.root = root
        self.home, self.project = root / "h", root / "p"
        self.env = {
            "PATH": f"{root / 'bin'}:{SYSTEM_PATH}",
            "HOME": str(root / "user"),
            "HOCKET_HOME": str(self.home),
            "HOCKET_PORT": "0",
            "XDG_RUNTIME_DIR": str(root / "user/run"),
            "LANG": "C.UTF-8",
            "API_TOKEN": SECRET,
        }

    def __call__(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        command = [self._python, "-m", "hocket", *words]
        done = subprocess.run(
            command, cwd=self.project, env=self.env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode in codes, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str) -> Any:
        place = words.index("--") if "--" in words else len(words)
        return json.loads(self(*words[:place], "--json", *words[place:]))

    def spawn(self, *words: str) -> str:
        return str(self.json("spawn", *words)["run"])

    def detached(self, *words: str) -> str:
        return str(self.json("run", "--detach", *words)["run"])

    def run(self, ref: str) -> dict[str, Any]:
        return dict(self.json("show", ref))

    def status(self, ref: str, *wanted: str) -> dict[str, Any]:
        """The run, once it has one of these statuses."""

        def reached() -> dict[str, Any] | None:
            run = self.run(ref)
            return run if run["status"] in wanted else None

        return dict(wait_for(reached, f"run {ref} is {wanted}"))

    def gate(self, name: str) -> str:
        path = self.root / "gates" / name
        os.mkfifo(path)
        return str(path)

    def leaf(self, chain: str) -> dict[str, Any]:
        """The newest leaf of a chain, once its program waits."""

        def ready() -> dict[str, Any] | None:
            leaves = [run for run in self.json("ps", "-a") if run["root"] == chain and run["kind"] == "leaf"]
            newest = self.run(leaves[-1]["id"]) if leaves else None
            return newest if newest and self.has_said(newest, "ready") else None

        return dict(wait_for(ready, f"a leaf of {chain} that waits"))

    def has_said(self, run: dict[str, Any], word: str) -> bool:
        out = Path(run["dir"], "out")
        return out.exists() and word in out.read_text()

    def ready(self, ref: str) -> dict[str, Any]:
        return dict(wait_for(lambda: self.has_said(run := self.run(ref), "ready") and run, f"run {ref} waits"))

    def kill_keeper(self, run: dict[str, Any]) -> None:
        """The agent ends with its keeper."""
        about = json.loads(Path(run["dir"], "pid").read_text())
        os.kill(about["keeper"], signal.SIGKILL)
        wait_for(lambda: about["pid"] not in processes_of(self.home), "the end of the agent")


def make_ended_runs(hocket: Recorder) -> dict[str, str]:
    """Runs that ended in each way, and chains with loops, gates, budgets and questions."""
    named = {"done": hocket.spawn("greet", "-p", "done"), "failed": hocket.spawn("fails", "-p", "failed")}
    named["stopped"] = hocket.spawn("held", "-p", "stopped", "--", hocket.gate("stopped"), "0")
    hocket.ready(named["stopped"])
    hocket("stop", named["stopped"])
    named["lost"] = hocket.spawn("held", "-p", "lost", "--", hocket.gate("lost"), "0")
    hocket.kill_keeper(hocket.ready(named["lost"]))
    named["loop"] = hocket.detached("greet -> counter:3", "-p", "loop", "--until", "true")
    named["claude"] = hocket.spawn("claude", "-p", "ask first")
    hocket.status(named["claude"], "waiting")
    hocket("answer", named["claude"], "allow")
    named["budget"] = hocket.detached("claude:3", "-p", "over budget", "--budget", "0.02")
    named["asker"] = hocket.spawn("asker", "-p", "asker")
    hocket.status(named["asker"], "waiting")
    hocket("answer", named["asker"], "staging")
    named["answered"] = hocket.detached("held -> greet", "-p", "answered", "--", hocket.gate("answered"), "0")
    hocket.kill_keeper(hocket.leaf(named["answered"]))
    hocket.status(named["answered"], "waiting")
    hocket("answer", named["answered"], "deny")
    for run in named.values():
        hocket("wait", run, codes=(0, 1, 5))
    return named


def make_tasks(hocket: Recorder) -> dict[str, str]:
    """Tasks that are planned, waiting and completed, with hand-offs, attachments and queues."""
    named = {}
    named["planned"] = hocket.json("task", "new", "Planned work")["id"]
    hocket("task", "plan", named["planned"], "--summary", "A summary", "--requirement", "It works")
    named["waiting"] = hocket.json("task", "new", "Waiting work")["id"]
    hocket("handoff", named["waiting"], "greet", "first part")
    hocket("handoff", named["waiting"], "fails", "second part", codes=(1,))
    notes = hocket.project / "notes.txt"
    notes.write_text("Notes of this task.\n")
    hocket("task", "attach", named["waiting"], str(notes))
    hocket("task", "queue", named["waiting"], "greet", "third part")
    named["completed"] = hocket.json("task", "new", "Completed work")["id"]
    hocket("handoff", named["completed"], "claude", "all of it")
    hocket("task", "status", named["completed"], "completed", "-m", "Released")
    return named


def make_unfinished(hocket: Recorder) -> tuple[dict[str, str], dict[str, str], list[dict[str, Any]]]:
    """What is unfinished when the server is killed: the runs and tasks by their names, and the leaves that wait."""
    named, tasks, leaves = {}, {}, []
    named["question"] = hocket.detached("held -> greet", "-p", "question", "--", hocket.gate("question"), "0")
    hocket.kill_keeper(hocket.leaf(named["question"]))
    hocket.status(named["question"], "waiting")
    named["halfway"] = hocket.detached(
        "held -> second", "-p", "after: {{previous.result}}", "--", hocket.gate("halfway"), "0"
    )
    leaves.append(hocket.leaf(named["halfway"]))
    named["spent"] = hocket.detached(
        "claude -> held -> claude", "-p", "spent", "--budget", "0.015", "--", hocket.gate("spent"), "0"
    )
    leaves.append(hocket.leaf(named["spent"]))
    named["exited"] = hocket.spawn("held", "-p", "exited", "--", hocket.gate("exited"), "7")
    leaves.append(hocket.ready(named["exited"]))
    tasks["active"] = hocket.json("task", "new", "Active work")["id"]
    named["handoff"] = hocket.json("handoff", "--detach", tasks["active"], "held", hocket.gate("handoff"))["run"]
    hocket("task", "queue", tasks["active"], "greet", "queued part")
    leaves.append(hocket.ready(named["handoff"]))
    named["killed"] = hocket.spawn("held", "-p", "killed", "--", hocket.gate("killed"), "0")
    hocket.ready(named["killed"])
    named["unstarted"] = hocket.spawn("greet", "-p", "unstarted")
    return named, tasks, leaves


def take_lock(hocket: Recorder) -> None:
    """Kill the server and hold its lock, to the end, before a keeper or the zygote can start another one."""
    pid = hocket.json("server", "status")["pid"]
    lock = os.open(hocket.home / "server.lock", os.O_RDWR | os.O_CLOEXEC)
    os.kill(pid, signal.SIGKILL)

    def taken() -> bool:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    wait_for(taken, "the lock of the server")
    assert json.loads(os.pread(lock, 65536, 0))["pid"] == pid, "another server was faster"


def record(hocket: Recorder, seen: dict[str, Any]) -> None:
    fixture.forget()
    lines = []
    for folder in ("h", "p", "gates"):
        lines.append(fixture.record(hocket.root, Path(folder)))
        for relative in fixture.walk(hocket.root, folder):
            parts = relative.parts
            if parts[0] == "h" and (parts[1] in LEFT_OUT or parts[1] == "bin" or parts[1].startswith("hocket.db-")):
                continue
            if relative == Path(fixture.DATABASE):
                continue
            lines.append(fixture.record(hocket.root, relative))
    lines.append(fixture.record(hocket.root, Path("ledger")))
    lines.sort(key=lambda line: (line.split()[1] == "link", line.split()[2]))
    fixture.MANIFEST.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fixture.DUMP.write_text(fixture.dump(hocket.root, hocket.root / fixture.DATABASE), encoding="utf-8")
    text = json.dumps(seen, indent=1, ensure_ascii=False) + "\n"
    fixture.EXPECTED.write_text(text.replace(str(hocket.root), fixture.ROOT), encoding="utf-8")


def observe(hocket: Recorder, runs: dict[str, str], tasks: dict[str, str]) -> dict[str, Any]:
    """The output of the command line before the kill."""
    return {
        "runs": runs,
        "tasks": tasks,
        # Without the last event of the whole store, which every new event changes.
        "shown": {name: {**hocket.run(run), "seq": 0} for name, run in runs.items()},
        "listed": hocket.json("ps", "-a"),
        "inbox": hocket.json("inbox"),
        "answered": {name: answered(hocket.home, runs[name]) for name in ("claude", "asker", "answered")},
        "tasks_listed": hocket.json("task", "list"),
        "tasks_shown": {name: hocket.json("task", "show", task) for name, task in tasks.items()},
        "histories": {name: hocket.json("task", "history", task) for name, task in tasks.items()},
        "queues": {name: hocket.json("task", "queue", task) for name, task in tasks.items()},
        "trusted": hocket.json("trust", "--list"),
    }


def answered(home: Path, run: str) -> dict[str, Any]:
    """The last answered question of a run, from two routes."""
    found = fixture.get(home, f"/api/inbox?answered=&run={run}")
    return {"last": found, "by_id": fixture.get(home, f"/api/runs/{found[0]['run']}/questions/{found[0]['id']}")}


def prepare(hocket: Recorder) -> None:
    for folder in (hocket.home, hocket.project, hocket.root / "gates"):
        folder.mkdir(mode=0o700)
    programs.install(hocket.root / "bin")
    (hocket.home / "config.toml").write_text(CONFIG)
    definition = hocket.project / ".claude/agents/reviewer.md"
    definition.parent.mkdir(parents=True)
    definition.write_text(DEFINITION)
    (hocket.project / ".claude/settings.json").write_text(SETTINGS)


def main(python: str) -> None:
    root = make_root()
    hocket = Recorder(python, root)
    try:
        prepare(hocket)
        ended, tasks = make_ended_runs(hocket), make_tasks(hocket)
        hocket("trust", "--yes", "reviewer")
        hocket("trust", "--yes", str(hocket.project))
        unfinished, active, leaves = make_unfinished(hocket)
        seen = observe(hocket, ended | unfinished, tasks | active)
        killed = hocket.run(unfinished["killed"])
        take_lock(hocket)
        hocket.kill_keeper(killed)
        for leaf, name in zip(leaves, ("halfway", "spent", "exited", "handoff"), strict=True):
            (root / "gates" / name).open("w").close()
            wait_for(Path(leaf["dir"], "exit").exists, f"the exit record of {name}")
        record(hocket, seen)
    finally:
        for pid in processes_of(hocket.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_root(root)


if __name__ == "__main__":
    main(sys.argv[1])
