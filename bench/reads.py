"""How long reads hold up the server's event loop with 100,000 runs and a million events in the store.

    python bench/reads.py

A store is written into a temporary folder, a server is opened on it in this process, and every route and query is used
while a heartbeat on the same loop measures how long it is kept waiting. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from measure import Figure

from hocket.api.app import build
from hocket.api.guard import AccessPolicy, Guard
from hocket.config.settings import Limits
from hocket.engine import Engine
from hocket.keeper import files
from hocket.model import BoundChain, Kind, Reason, Run, Spec, Status, Step
from hocket.model.task import Handoff, Task, TaskStatus
from hocket.sessions.run_identity import directory
from hocket.store import open_store

RUNS, EVENTS = 100_000, 1_000_000
ITERATIONS = 10_000
"""Iterations of one loop, which still runs."""
CHATTY = 100_000
"""Events of one run."""
TASKS, HANDOFFS = 1_000, 500
STALL_MS, READY_S = 20.0, 1.0
REPEATS = 3

_encode = msgspec.json.Encoder().encode


# --- The store ----------------------------------------------------------------------------------------------


class Filler:
    """Writes rows as the writer would, without its pace."""

    def __init__(self, home: Path, database: sqlite3.Connection) -> None:
        self._home = home
        self._database = database
        self.seq = self.number = 0
        self._now = time.time() - RUNS
        self._spec = Spec("worker", "executable", ("/bin/true",), "/", {"PATH": "/bin"}, prompt="p" * 200)
        chain = BoundChain("worker:20000", (Step("worker", 20_000, True, self._spec),), "/", {"PATH": "/bin"})
        self._specs = {Kind.LEAF: _text(self._spec), Kind.CHAIN: _text(chain), Kind.LOOP: _text(chain)}
        self._rows: dict[str, list[tuple[object, ...]]] = {"events": [], "runs": [], "questions": [], "usage": []}

    def run(self, name: str, kind: Kind, parent: Run | None = None, *, live: bool = False, **more: Any) -> Run:
        """One more run, with its first and last events; a live one has no end."""
        self.number += 1
        self._now += 1
        root = parent.root if parent else name
        about = {"cost_usd": 0.01, "tokens": 100} if kind is Kind.LEAF else {}
        run = Run(
            name, self.number, kind, "worker", "executable" if kind is Kind.LEAF else None,
            parent.id if parent else None, root, 0, "/", self._now,
            status=Status.RUNNING if live else Status.DONE, reason=None if live else Reason.EXIT,
            started_at=self._now, ended_at=None if live else self._now + 1, result="done\n" * 20, **{**about, **more},
        )  # fmt: skip
        created = {"number": run.number, "kind": kind, "agent": "worker", "parent": run.parent, "prompt": "p" * 200}
        self.event(run, "run.created", created)
        self.event(run, "run.started", {"pid": 1})
        if not live:
            self.event(run, "run.ended", {"status": "done", "reason": "exit", "result": run.result})
        row = (name, run.number, root, run.parent, run.status, run.created_at, run.ended_at, _text(run))
        self._rows["runs"].append((*row, self._specs[kind], None, None))
        if kind is Kind.LEAF:
            self._rows["usage"].append((name, root, 0.01, 0, 100, None if live else self.seq))
        return run

    def event(self, run: Run | Task, kind: str, data: dict[str, Any]) -> None:
        self.seq += 1
        root = run.root if isinstance(run, Run) else run.id
        self._rows["events"].append((self.seq, self._now, run.id, root, kind, _text(data)))
        if len(self._rows["events"]) >= 20_000:
            self.flush()

    def question(self, run: Run, name: str) -> None:
        asked = {"id": name, "kind": "ask", "text": "Which one?"}
        self.event(run, "question", asked)
        seq = self.seq
        answer = {"id": name, "allow": True, "text": "that", "by": "operator", "key": f"key-{name}"}
        self.event(run, "answer", answer)
        row = (seq, run.id, run.root, name, self._now, _text(asked), self.seq, self._now, _text(answer), f"key-{name}")
        self._rows["questions"].append(row)

    def task(self, number: int, handoffs: Iterable[Run]) -> None:
        task = Task(f"t{number:015}", number, "What is wanted " * 10, self._now, self._now, status=TaskStatus.WAITING)
        self.event(task, "task.changed", {"event": "task_created", "description": task.description})
        records = []
        for place, run in enumerate(handoffs, 1):
            started = {"event": "agent_handoff_started", "agent_name": "worker", "handoff": f"h{place}", "run": run.id}
            self.event(task, "task.changed", started)
            self.event(task, "task.changed", {**started, "event": "agent_handoff_completed", "status": "done"})
            record = Handoff(
                f"h{number}-{place}", task.id, place, run.id, "worker", 0, self._now, self._now, Status.DONE,
                output="done\n" * 20,
            )  # fmt: skip
            records.append((record.id, task.id, place, run.id, 0, self._now, _text(record)))
        self._insert("tasks", [(task.id, number, task.status, 0, _text(task), None)])
        self._insert("handoffs", records)

    def flush(self) -> None:
        for table, rows in self._rows.items():
            self._insert(table, rows)
            rows.clear()

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Values of the first columns of a table; those that later migrations added have their defaults."""
        if rows:
            columns = [name for _, name, *_ in self._database.execute(f"PRAGMA table_info({table})")][: len(rows[0])]
            places = ", ".join("?" * len(columns))
            self._database.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)  # noqa: S608 - the names are our own

    def hold(self, run: Run) -> int:
        """Make the directory of a live run, and hold its lock as its keeper would."""
        place = str(directory(self._home, run))
        files.create(place, {"run": run.id, "argv": ["/bin/true"], "cwd": "/", "env": {}, "stdin": "empty"})
        assert files.claim_start(place)
        lock = os.open(os.path.join(place, files.LOCK), os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock


def _text(value: Any) -> str:
    return _encode(value).decode()


def fill(home: Path) -> list[int]:
    """Write the store; the locks of its live runs, which are held as long as these are open."""
    open_store(home / "hocket.db").close()
    with closing(sqlite3.connect(home / "hocket.db", isolation_level=None)) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.execute("BEGIN")
        filler = Filler(home, database)
        chain = filler.run("rchain0000000000", Kind.CHAIN, live=True, budget_usd=1e6)
        loop = filler.run("rloop00000000000", Kind.LOOP, chain, live=True, step=0, budget_usd=1e6)
        for place in range(1, ITERATIONS + 1):
            leaf = filler.run(f"ri{place:014}", Kind.LEAF, loop, step=0, iteration=place)
            if place % 10 == 0:
                filler.question(leaf, f"q{place:015}")
        live = filler.run("rlive00000000000", Kind.LEAF, loop, live=True, step=0, iteration=ITERATIONS + 1)
        lead = filler.run("rlead00000000000", Kind.LEAF, live=True, budget_usd=1e6)
        for place in range(2_000):
            filler.run(f"rc{place:014}", Kind.LEAF, lead)
        chatty = filler.run("rchatty000000000", Kind.LEAF, live=True)
        for place in range(CHATTY):
            filler.event(chatty, "text", {"text": f"line {place} " + "x" * 60})
        busy = [filler.run(f"rh{place:014}", Kind.LEAF, lead) for place in range(HANDOFFS)]
        resumed = filler.run("rresumed00000000", Kind.CHAIN)
        for number in range(1, TASKS + 1):
            filler.task(number, busy if number == 1 else ())
        _fill_up(filler)
        database.execute("UPDATE runs SET resumed_from = ? WHERE id = 'rresumed00000000'", (resumed.id,))
        database.execute("COMMIT")
    return [filler.hold(run) for run in (live, lead, chatty)]


def fill_chains(home: Path, runs: int) -> None:
    """Write a store with so many runs, in ended chains of three steps."""
    open_store(home / "hocket.db").close()
    with closing(sqlite3.connect(home / "hocket.db", isolation_level=None)) as database:
        database.execute("BEGIN")
        filler = Filler(home, database)
        while filler.number < runs:
            chain = filler.run(f"rc{filler.number:014}", Kind.CHAIN)
            for step in range(3):
                filler.run(f"rl{filler.number:014}", Kind.LEAF, chain, step=step, iteration=1)
        filler.flush()
        database.execute("COMMIT")


def _fill_up(filler: Filler) -> None:
    """Ordinary runs, until there are enough runs and events."""
    each = (EVENTS - filler.seq) // (RUNS - filler.number) - 3
    while filler.number < RUNS:
        run = filler.run(f"ro{filler.number:014}", Kind.LEAF)
        for place in range(each):
            filler.event(run, "text", {"text": f"line {place} of an ordinary run"})
    filler.flush()


# --- Measuring ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def heartbeat(stalls: list[float]) -> AsyncIterator[None]:
    """Measure the longest time, in milliseconds, during which no other task of the loop can run.

    That is processor time of the loop's thread, so that a busy machine does not count.
    """
    longest, stop = 0.0, False

    async def beat() -> None:
        nonlocal longest
        before = time.thread_time()
        while not stop:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        stop = True
        await task
        stalls.append(longest * 1000)


async def measure(name: str, work: Callable[[], Awaitable[Any]]) -> Figure:
    """The longest stall, in the best of a few repeats."""
    stalls: list[float] = []
    begin = time.perf_counter()
    for _ in range(REPEATS):
        async with heartbeat(stalls):
            await work()
    whole = (time.perf_counter() - begin) / REPEATS * 1000
    return Figure(name, min(stalls), "ms", STALL_MS, note=f"{whole:.0f} ms in all")


class Routes:
    """The application of a server, called without a socket."""

    def __init__(self, engine: Engine) -> None:
        self._app = Guard(build(engine, dict, lambda: None), AccessPolicy(None, "token"), engine.run_of_token)

    async def get(self, path: str) -> None:
        route, _, query = path.partition("?")
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": route, "raw_path": route.encode(),
            "query_string": query.encode(), "headers": [(b"host", b"localhost")], "scheme": "http", "root_path": "",
            "server": ("localhost", 80), "client": None,
        }  # fmt: skip
        status = 0

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        await self._app(scope, receive, send)
        assert status == 200, (path, status)


GETS = (
    "/api/runs", "/api/runs?all=1", "/api/runs?all=1&limit=10000", "/api/runs?all=1&status=lost",
    "/api/runs?all=1&since={since}", "/api/runs?all=1&agent=unknown", "/api/runs?all=1&project=/nowhere",
    "/api/runs?tree=1", "/api/runs?all=1&tree=1", "/api/runs?all=1&tree=1&limit=10000",
    "/api/runs/rlive00000000000/evidence", "/api/runs/rchain0000000000/evidence", "/api/runs/rchatty000000000/evidence",
    "/api/runs/rchain0000000000", "/api/runs/rloop00000000000", "/api/runs/rlead00000000000", "/api/runs/50000",
    "/api/runs/rchain0000000000/events?follow=0", "/api/runs/rloop00000000000/events?follow=0",
    "/api/runs/rchatty000000000/events?follow=0", "/api/inbox", "/api/inbox?answered=", "/api/inbox?answered=q",
    "/api/inbox?answered=q000000000000010&run=rchain0000000000", "/api/inbox?answered=x&run=rloop00000000000",
    "/api/runs/ri00000000000010/questions/q000000000000010", "/api/tasks", "/api/tasks?limit=1000",
    "/api/tasks?status=waiting", "/api/tasks/1", "/api/tasks/1/history", "/api/tasks/1/export",
    "/api/tasks/1/queue", "/api/worktrees", "/api/gc?days=0", "/api/health",
)  # fmt: skip


async def reads(engine: Engine) -> AsyncIterator[Figure]:
    routes, tasks = Routes(engine), engine.tasks
    since = time.time() - 3600
    for path in GETS:
        yield await measure(f"GET {path}", partial(routes.get, path.format(since=since)))
    chain, loop = engine.find("rchain0000000000"), engine.find("rloop00000000000")
    lead, chatty = engine.find("rlead00000000000"), engine.find("rchatty000000000")
    read, journal = engine.read, engine._journal
    task = tasks.find("1", None)
    plain: dict[str, Callable[[], Any]] = {
        "budget of a tree": lambda: journal.spent_below(chain),
        "budget of an inner run": lambda: journal.spent_below(loop),
        "live runs below a run": lambda: journal.live_below(chain.id),
        "the chain that resumes a chain": lambda: read.last_resuming(chain),
        "answer by its key": lambda: read.answered_with(chain.id, "key-q000000000000010"),
        "what was said to a run": lambda: read.said_to(chatty.id),
        "how a run ended": lambda: list(read.events_of_type(chatty.id, "run.ended")),
        "prompt that is shown": lambda: read.shown_prompt(chatty.id),
        "runs by a request's key": lambda: read.by_request("nothing"),
        "runs by a prefix": lambda: read.find("rchatt"),
        "hand-offs that a run made": lambda: read.handed_on_by(lead.id, 50),
        "last closed hand-off": lambda: read.last_closed_handoff(task),
        "change of a queue by its key": lambda: read.task_change(task.id, "nothing"),
        "queued tasks": read.queued_tasks,
        "live runs": read.live,
    }
    for name, query in plain.items():
        yield await measure(name, partial(_call, query))
    yield await measure("resume: sessions of a chain", lambda: journal.read_aside(lambda read: read.below(chain.id)))
    yield await measure("tasks of a run", lambda: tasks.listed(lead, None, None, 100))
    changed = engine.store.read_aside
    yield await measure("tasks changed", lambda: asyncio.wrap_future(changed(lambda read: read.tasks_changed_since(0))))


async def _call(query: Callable[[], Any]) -> None:
    query()


async def measure_all(home: Path) -> list[Figure]:
    begin, cpu = time.perf_counter(), time.thread_time()
    store = open_store(home / "hocket.db")
    engine = Engine(home, str(home / "sock"), b"secret", store, Limits())
    engine.open()
    whole = f"{time.perf_counter() - begin:.1f} s in all"
    found = [Figure("opening", time.thread_time() - cpu, "s", READY_S, note=whole)]
    gc.freeze()
    stalls: list[float] = []
    async with heartbeat(stalls):
        await asyncio.sleep(2)
    found.append(Figure("the first seconds after opening", stalls[0], "ms", STALL_MS))
    try:
        found += [figure async for figure in reads(engine)]
    finally:
        await engine.close()
    return found


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hk-reads-") as folder:
        home = Path(folder)
        begin = time.perf_counter()
        locks = fill(home)
        size = (home / "hocket.db").stat().st_size / 1e6
        print(f"{RUNS:,} runs, {EVENTS:,} events, {size:.0f} MB, written in {time.perf_counter() - begin:.0f} s\n")
        found = asyncio.run(measure_all(home))
        for lock in locks:
            os.close(lock)
    width = max(len(figure.name) for figure in found)
    print(f"{'longest stall of the loop':{width}}     value   target")
    for figure in found:
        value, mark = f"{figure.value:6.1f} {figure.unit:2}", "ok" if figure.met else "MISSED"
        print(f"{figure.name:{width}}  {value}  {figure.target:5.0f}  {mark:6} {figure.note}")
    if "--json" in sys.argv[1:]:
        print(json.dumps([figure._asdict() for figure in found]))
    return 0 if all(figure.met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
