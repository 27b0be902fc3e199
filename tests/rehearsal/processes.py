"""Processes of the scripted agent and of the real CLI: send lines, and wait for events with a time limit."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.claude.setup import ENVIRONMENT, real_cli
from patience import PATIENCE

from hocket.rehearsal import ScriptedModel, install, parse

SECONDS = PATIENCE
STREAMS = (
    "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
)  # fmt: skip
ASKING = ("--permission-mode", "default", "--permission-prompts", "host", "--permission-prompt-tool", "stdio")

Event = dict[str, Any]


class Process:
    """One run of a program that speaks the stream format."""

    def __init__(self, program: str | Path, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.child = subprocess.Popen(
            [str(program), *STREAMS, *arguments],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.events: list[Event] = []
        self.lines: list[bytes] = []
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def send(self, value: Any) -> Self:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(value).encode() + b"\n")
        self.child.stdin.flush()
        return self

    def say(self, text: str) -> Self:
        return self.send({"type": "user", "message": {"role": "user", "content": text}})

    def interrupt(self, request: str = "stop-1") -> Self:
        return self.send({"type": "control_request", "request_id": request, "request": {"subtype": "interrupt"}})

    def answer(self, question: Event, *, allow: bool, message: str = "rather not") -> Self:
        given = question["request"]["input"]
        reply = {"behavior": "allow", "updatedInput": given} if allow else {"behavior": "deny", "message": message}
        response = {"subtype": "success", "request_id": question["request_id"], "response": reply}
        return self.send({"type": "control_response", "response": response})

    def until(self, wanted: str | Callable[[Event], bool]) -> Event:
        """Read up to the next matching event and return it."""
        for event in self._next():
            if kind(event) == wanted if isinstance(wanted, str) else wanted(event):
                return event
        raise AssertionError(f"no {wanted} before the end; {self.errors()}")

    def _next(self) -> Iterator[Event]:
        until = time.monotonic() + SECONDS
        while (line := self._queue.get(timeout=max(0.01, until - time.monotonic()))) is not None:
            self.lines.append(line)
            self.events.append(json.loads(line))
            yield self.events[-1]

    def close(self) -> Self:
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self

    def signal(self, number: signal.Signals) -> Self:
        self.child.send_signal(number)
        return self

    def end(self) -> int:
        """Close the input, read the rest, and return the exit code."""
        self.close()
        for _ in self._next():
            pass
        return self.child.wait(SECONDS)

    def errors(self) -> str:
        assert self.child.stderr is not None
        return self.child.stderr.read().decode() if self.child.poll() is not None else "still running"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(SECONDS)
        self._reader.join(SECONDS)
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            if pipe is not None:
                pipe.close()


def kind(event: Event) -> str:
    subtype = event.get("subtype")
    return f"{event['type']}/{subtype}" if event["type"] == "system" and subtype else str(event["type"])


def blocks(event: Event) -> list[dict[str, Any]]:
    content = event.get("message", {}).get("content", [])
    return [block for block in content if isinstance(block, dict)]


def summary(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """A summary of a stream, without ids, times and the output of real tools."""
    return [short for event in events for short in _short(event)]


def _short(event: Event) -> Iterator[tuple[Any, ...]]:
    source = event.get("subagent_type", "lead")
    match kind(event):
        case "system/init":
            yield ("turn",)
        case "assistant" if event["message"].get("model") != "<synthetic>":
            for block in blocks(event):
                yield (source, block["type"], block.get("text") or block.get("thinking") or block.get("name"))
        case "user":
            for block in blocks(event):
                if block["type"] == "tool_result":
                    yield (source, "tool_result", block.get("is_error") is True)
        case "control_request":
            yield ("question", event["request"]["tool_name"], event["request"]["input"])
        case "system/task_started":
            yield ("member", event["subagent_type"], event["is_backgrounded"])
        case "system/task_notification":
            yield ("member ended", event["status"], event["summary"])
        case "result":
            yield ("result", event.get("result"), event["is_error"], event["subtype"], event.get("api_error_status"))


class Agent:
    """Scripted agents of one script, with a state of their own."""

    def __init__(self, world: Path, document: Any) -> None:
        self.world = world
        self.state = world / "state"
        script = world / "script.json"
        script.write_text(json.dumps(document), encoding="utf-8")
        self.program = install(world / "scripted", script, self.state)

    def start(self, *arguments: str) -> Process:
        return Process(self.program, *arguments, cwd=self.world)


@contextmanager
def run_process(implementation: str, world: Path, document: Any) -> Iterator[Callable[..., Process]]:
    """``start(*arguments)`` of a scripted agent, or of the real CLI with a scripted model behind it."""
    if implementation == "agent":
        yield Agent(world, document).start
        return
    program = real_cli()
    with ScriptedModel(parse(document)) as model:
        yield lambda *arguments: Process(program, *arguments, cwd=world, env=cli_environment(model.url))


def cli_environment(url: str) -> dict[str, str]:
    return {**ENVIRONMENT, "ANTHROPIC_BASE_URL": url}
