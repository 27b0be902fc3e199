"""Hocket commands as the end-to-end tests run them, and what they report about a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from world import Hocket

Event = dict[str, Any]
Run = dict[str, Any]


class RunOutput(NamedTuple):
    """The events that a command with ``--json`` printed, and its exit code."""

    code: int
    events: list[Event]
    stderr: str

    @property
    def ended(self) -> dict[str, Any]:
        """The data of the last line."""
        assert self.events, self.stderr
        assert self.events[-1]["type"] == "run.ended", self.events[-1]
        data: dict[str, Any] = self.events[-1]["data"]
        return data

    @property
    def outcome(self) -> tuple[int, str, str]:
        return self.code, self.ended["status"], self.ended["reason"]

    @property
    def step(self) -> dict[str, Any]:
        """The only step."""
        (step,) = self.ended["steps"]
        found: dict[str, Any] = step
        return found

    @property
    def step_reasons(self) -> list[str]:
        return [step["reason"] for step in self.ended["steps"]]

    @property
    def root(self) -> str:
        """The root run."""
        return str(self.events[-1]["root"])

    @property
    def leaf(self) -> str:
        """The only leaf run."""
        (run,) = (run for step in self.ended["steps"] for run in step["runs"])
        return str(run)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]


def run_output(code: int, stdout: str, stderr: str) -> RunOutput:
    return RunOutput(code, [json.loads(line) for line in stdout.splitlines()], stderr)


def run(hocket: Hocket, *args: str | Path, **how: Any) -> RunOutput:
    """``hocket run --json`` to its end."""
    done = hocket("run", "--json", *args, **how)
    return run_output(done.returncode, done.stdout, done.stderr)


def events_of(hocket: Hocket, ref: str) -> list[Event]:
    return [json.loads(line) for line in hocket("logs", ref, "--json").stdout.splitlines()]


def data_of(hocket: Hocket, ref: str, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events_of(hocket, ref) if event["type"] == kind]


def spawn(hocket: Hocket, *args: str | Path) -> str:
    done = hocket("spawn", "--json", *args)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["run"])


def shown(hocket: Hocket, ref: str) -> Run:
    found: Run = json.loads(hocket("show", ref, "--json").stdout)
    return found


def waited(hocket: Hocket, ref: str) -> tuple[int, Run]:
    """The exit code of ``wait``, and the run."""
    done = hocket("wait", ref, "--json")
    return done.returncode, json.loads(done.stdout)


@contextmanager
def following(hocket: Hocket, ref: str) -> Iterator[Iterator[Event]]:
    """The run's events as they arrive."""
    process = hocket.start("logs", ref, "-f", "--json")
    assert process.stdout is not None
    try:
        yield (json.loads(line) for line in process.stdout)
    finally:
        process.kill()
        process.communicate()


def wait_for(hocket: Hocket, ref: str, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda data: True) -> Event:
    """The first matching event of a kind, past or future."""
    with following(hocket, ref) as events:
        for event in events:
            if event["type"] == kind and fits(event["data"]):
                return event
    raise AssertionError(f"run {ref} ended without {kind}")


def server_pid(hocket: Hocket) -> int:
    return int(json.loads(hocket("server", "status", "--json").stdout)["pid"])


def open_gate(path: Path) -> None:
    """Let a process continue that reads from this FIFO."""
    with path.open("w"):
        pass


def make_gate(path: Path) -> Path:
    os.mkfifo(path)
    return path
