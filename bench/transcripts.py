"""Figures of transcripts that Hocket did not write: parsing, following many, and the last screen of a large one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import msgspec
from measure import HOCKET, Figure, fastest_seconds, median_seconds, seconds, world
from sessions.claude_home import ClaudeHome

from hocket.model import Event
from hocket.providers import PROVIDERS
from hocket.providers.base import TranscriptFiles
from hocket.providers.claude.paths import folder_name
from hocket.redaction import NO_SECRETS
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.journal import Journal
from hocket.sessions.transcripts import Transcripts, _File, last_events
from hocket.store import Committed, FilePosition, NewRun, open_store

LINES, LINE_BYTES = 200_000, 500
FOLLOWED = 500
IDLE_SECONDS = 5.0
LONGEST_LINE = PROVIDERS["claude"].longest_line


def _format() -> TranscriptFiles:
    sessions = PROVIDERS["claude"].sessions
    assert sessions is not None
    assert sessions.transcript_files is not None
    return sessions.transcript_files


def line(number: int) -> bytes:
    """A line of a transcript with 500 bytes: in turn a text, a call of a tool, and its result."""
    contents: list[dict[str, Any]] = [
        {"type": "text", "text": f"Step {number}."},
        {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": f"/srv/{number}.py"}},
        {"type": "tool_result", "tool_use_id": f"toolu_{number - 1}", "content": "ok"},
    ]
    content = contents[number % 3]
    kind = "user" if number % 3 == 2 else "assistant"
    message = {"id": f"msg_{number}", "role": kind, "content": [content], "stop_reason": "tool_use"}
    row = {
        "type": kind,
        "uuid": str(uuid.UUID(int=number)),
        "timestamp": "2026-11-19T01:00:00.000Z",
        "message": message,
    }
    text = json.dumps({**row, "cwd": ""})
    return json.dumps({**row, "cwd": "x" * (LINE_BYTES - 1 - len(text))}).encode() + b"\n"


def write(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for first in range(0, count, 10_000):
            file.write(b"".join(map(line, range(first, min(first + 10_000, count)))))


def parsing() -> Iterator[Figure]:
    """A whole transcript read and turned into events, not committed; and its last screen alone."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        path = Path(folder) / "session.jsonl"
        write(path, LINES)
        size = path.stat().st_size

        def parse() -> int:
            file, events = _File(str(path), _format().reader(None, NO_SECRETS), FilePosition(), 0.0), 0
            while pieces := file.next_piece(LONGEST_LINE):
                file.go_on(pieces[0].position)
                events += len(pieces[0].events)
            return events

        def decode() -> None:
            with path.open("rb") as file:
                for one in file:
                    msgspec.json.decode(one)

        bare, took = seconds(decode), min(seconds(parse) for _ in range(2))
        note = f"{size / LINES:.0f} bytes each; {took / bare:.1f} x decoding their JSON alone; commit not counted"
        yield Figure("lines of a transcript parsed", LINES / took, "/s", 50_000, at_most=False, note=note)
        shown = last_events(_format(), str(path), 100)
        assert len(shown) == 100, len(shown)
        screen = median_seconds(lambda: last_events(_format(), str(path), 100), 9)
        note = f"100 events of {size / 1e6:.0f} MB; parsing all of it takes {took:.1f} s"
        yield Figure("last screen of a large transcript", screen * 1000, "ms", 200, note=note)


def opening() -> Iterator[Figure]:
    """The last lines of a live session with a transcript of 100 MB, by the command, just after its import."""
    with world() as w:
        claude = ClaudeHome(w.root / ".claude")
        session = claude.transcript()
        write(claude.path(session), LINES)
        claude.live(session, os.getpid())
        run = w.json("import", session)["run"]
        commands = [[sys.executable, "-c", "pass"], [*HOCKET, "logs", run, "-n", "40"]]
        bare, shown = fastest_seconds(commands, w.env, 9)
        lines = w.hocket("logs", run, "-n", "40").stdout.splitlines()
        assert f"{LINES - 1}" in lines[-1] or f"{LINES - 2}" in lines[-1], lines[-1:]
        note = f"{len(lines)} lines; {shown * 1000:.0f} ms, bare Python {bare * 1000:.0f} ms"
        yield Figure("last screen of 100 MB beyond bare Python", (shown - bare) * 1000, "ms", 200, note=note)
        Path(claude.root / f"sessions/{os.getpid()}.json").unlink()
        while not w.client().run(run)["ended_at"]:
            time.sleep(0.1)


def following() -> Iterator[Figure]:
    """500 live transcripts: what the process does while none of them changes, and when one does."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        yield from asyncio.run(_follow(Path(folder)))


async def _follow(root: Path) -> list[Figure]:
    project, env = root / "p", {"HOME": str(root)}
    folder = root / ".claude/projects" / folder_name(str(project))
    folder.mkdir(parents=True)
    project.mkdir()
    store = open_store(root / "hocket.db")
    journal, watcher = Journal(store, asyncio.get_running_loop()), FileWatcher()
    watcher.open()
    transcripts = Transcripts(journal, watcher)
    transcripts.open()
    bare = threading.active_count()
    texts: asyncio.Queue[Event] = asyncio.Queue()

    def listen(committed: Committed) -> None:
        for event in committed.events:
            if event.type == "text":
                texts.put_nowait(event)

    journal.listen(listen)
    paths = []
    for number in range(1, FOLLOWED + 1):
        session = str(uuid.UUID(int=number))
        paths.append(folder / f"{session}.jsonl")
        write(paths[-1], 1)
        data = {"number": number, "kind": "leaf", "agent": "a", "provider": "claude", "parent": None, "depth": 0}
        created = Event(0, time.time(), f"r{number}", f"r{number}", "run.created", data | {"cwd": str(project)})
        begun = Event(0, time.time(), f"r{number}", f"r{number}", "session", {"session_id": session})
        await journal.write([created, begun], new={f"r{number}": NewRun(b"{}")})
        transcripts.follow(journal.live[f"r{number}"], env)
    for _ in paths:
        await texts.get()
    await asyncio.sleep(1)

    timers = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
    before, spent = _switches(), time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    idle, spent = _switches() - before, time.process_time() - spent
    begin = time.perf_counter()
    with paths[-1].open("ab") as file:
        file.write(line(3))
    await texts.get()
    delay = time.perf_counter() - begin
    threads = threading.active_count() - bare
    await transcripts.close()
    watcher.close()
    store.close()
    note = f"{timers} timers in the loop, {spent * 1000:.0f} ms of processor time, {threads} more threads"
    return [
        Figure(f"wake-ups per second with {FOLLOWED} idle transcripts", idle / IDLE_SECONDS, "/s", 5, note=note),
        Figure(f"a new line in one of {FOLLOWED} transcripts", delay * 1000, "ms", 100, note="from write to commit"),
    ]


def _switches() -> int:
    """How often the threads of this process have gone to sleep and were woken."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        for row in Path(f"/proc/self/task/{task}/status").read_text().splitlines():
            if row.startswith("voluntary_ctxt_switches"):
                count += int(row.split()[1])
    return count
