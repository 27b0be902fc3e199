"""Transcripts of sessions that Hocket did not start: real files, a real inotify and a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENCE
from store.sample_events import created
from workflows.engine_fixture import open_event_log, until

from hocket.model import Run
from hocket.providers import PROVIDERS
from hocket.providers.claude.paths import folder_name
from hocket.redaction import Redactor
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.journal import Journal
from hocket.sessions.transcripts import Transcripts, last_events
from hocket.store import NewRun

SESSION = "5f2e8a10-0000-4000-8000-000000000001"
FOUND = PROVIDERS["claude"].sessions
assert FOUND is not None
assert FOUND.transcript_files is not None
FILES = FOUND.transcript_files


def said(text: str, **more: Any) -> bytes:
    """A line with a message of the agent, in the middle of its turn."""
    message = {"id": f"msg_{text}", "content": [{"type": "text", "text": text}], "stop_reason": "tool_use"}
    line = {"type": "assistant", "uuid": text, "timestamp": "2026-11-19T01:00:00.000Z", "message": message, **more}
    return json.dumps(line).encode() + b"\n"


class Home:
    """A user's home with the transcripts of one project, and a run of a session there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "p"
        self.project.mkdir()
        self.env = {"HOME": str(root)}
        self.folder = root / ".claude/projects" / folder_name(str(self.project))
        self.transcript = self.folder / f"{SESSION}.jsonl"

    def write(self, *lines: bytes, path: Path | None = None) -> Path:
        path = path or self.transcript
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(lines))
        return path

    def helper(self, name: str, about: dict[str, Any], *lines: bytes) -> Path:
        folder = self.folder / SESSION / "subagents"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"agent-{name}.meta.json").write_text(json.dumps(about))
        return self.write(*lines, path=folder / f"agent-{name}.jsonl")


class Follower:
    """A journal with transcripts that are followed."""

    def __init__(self, home: Home, journal: Journal, followed: Transcripts) -> None:
        self.home = home
        self.journal = journal
        self.transcripts = followed

    async def run(self, name: str = "r1", **known: Any) -> Run:
        run = self.journal.run(name)
        if run is None:
            event = created(name, int(name[1:]), kind="leaf")
            data = {**event.data, "provider": "claude", "cwd": str(self.home.project), "session_id": SESSION, **known}
            await self.journal.write([msgspec.structs.replace(event, data=data)], new={name: NewRun(b"{}")})
            run = self.journal.live[name]
        return run

    async def follow(self, name: str = "r1", newest: int | None = None, **known: Any) -> Run:
        run = await self.run(name, **known)
        self.transcripts.follow(run, self.home.env, newest=newest)
        return run

    def events(self, kind: str, name: str = "r1") -> list[Any]:
        return [event.data for event in self.journal.read.events(name, limit=10_000) if event.type == kind]

    def texts(self, name: str = "r1") -> list[str]:
        return [data["text"] for data in self.events("text", name)]

    async def until_said(self, *texts: str, name: str = "r1") -> None:
        """Wait for the last text, and compare all."""
        await until(lambda: self.texts(name)[-1:] == list(texts[-1:]), f"the text {texts[-1]!r}")
        assert self.texts(name) == list(texts)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path.resolve())


@asynccontextmanager
async def follower(home: Home) -> AsyncIterator[Follower]:
    """What one server has; another one on the same store goes on."""
    async with open_event_log(home.root / "h.db") as log:
        watcher = FileWatcher()
        followed = Transcripts(log.journal, watcher)
        watcher.open()
        followed.open()
        try:
            yield Follower(home, log.journal, followed)
        finally:
            watcher.close()
            await followed.close()


@pytest.mark.req("S3-27", "S3-34", "S3-39")
def test_lines_are_read_as_they_are_written(home: Home) -> None:
    async def scene() -> None:
        home.write(said("one"))
        async with follower(home) as seen:
            run = await seen.follow()
            await seen.until_said("one")
            home.write(said("two"), said("three"))
            await seen.until_said("one", "two", "three")
            assert seen.journal.live[run.id].transcript == str(home.transcript)

    asyncio.run(scene())


@pytest.mark.req("S3-29")
def test_messages_of_both_sides_are_extracted_once(home: Home) -> None:
    prompt = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "go"}}
    meta = {"type": "user", "uuid": "u2", "isMeta": True, "message": {"role": "user", "content": "a reminder"}}
    queued = {"type": "queue-operation", "operation": "enqueue", "content": "go"}
    lines = [json.dumps(line).encode() + b"\n" for line in (queued, prompt, meta)]

    async def scene() -> None:
        home.write(*lines, said("one"))
        home.helper("a1", {"toolUseId": "t1"}, lines[1], said("two", isSidechain=True))
        async with follower(home) as seen:
            run = await seen.follow()
            assert await seen.transcripts.stop(run.id)
            assert [data["text"] for data in seen.events("input")] == ["go"]
            assert sorted(seen.texts()) == ["one", "two"]
            await seen.follow()
            assert await seen.transcripts.stop(run.id)
            assert (len(seen.events("input")), len(seen.texts())) == (1, 2)

    asyncio.run(scene())


@pytest.mark.req("S3-30")
def test_stop_reads_the_rest_of_a_large_transcript(home: Home) -> None:
    async def scene() -> None:
        async with follower(home) as seen:
            run = await seen.follow()
            home.write(*(said(str(number)) for number in range(5000)))
            assert await seen.transcripts.stop(run.id, PATIENCE)
            assert seen.texts() == [str(number) for number in range(5000)]

    asyncio.run(scene())


@pytest.mark.req("S3-30")
def test_stop_does_not_wait_for_endless_transcript(home: Home) -> None:
    async def scene() -> None:
        home.write(said("first"))
        async with follower(home) as seen:
            run = await seen.follow()
            await seen.until_said("first")
            home.write(said("more") * 500_000)  # more than can be read in that time
            assert not await asyncio.wait_for(seen.transcripts.stop(run.id, 0.2), PATIENCE)

    asyncio.run(scene())


def test_last_events_of_long_file_are_redacted(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"".join(said(f"{number} {'x' * 900}") for number in range(2000)) + said("the password hunter22"))
    redactor = Redactor({"PASSWORD": "hunter22"})
    events = last_events(FILES, str(path), 500, redactor)
    assert len(events) == 500, "more than one block of the file"
    assert [event.data["text"].split()[0] for event in events[:-1]] == [str(number) for number in range(1501, 2000)]
    assert "hunter22" not in events[-1].data["text"]
    assert last_events(FILES, str(tmp_path / "missing"), 5) == []
