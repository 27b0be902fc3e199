"""Figures of Claude runs: the real CLI with a scripted model, run by Hocket and directly. Needs no account."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.claude.setup import ENVIRONMENT, define, real_cli
from golden.recordings import Recording, Recordings
from measure import HOCKET, Figure, World, lone_python, seconds, world

from hocket.client import Client
from hocket.mcp.protocol import respond
from hocket.mcp.tools import SERVER, rules
from hocket.model import RUN_DIRECTORY, SESSION, Agent
from hocket.providers.base import LaunchRequest, OwnServer, State
from hocket.providers.claude import conversation, mcp_requests
from hocket.providers.claude.launch import launch
from hocket.providers.claude.reader import reader
from hocket.rehearsal import ScriptedModel, parse

TIMES = 31
CALLS = 15
_READ = {"tool": {"name": "Read", "input": {"file_path": "note.txt"}}}
_BASH = {"tool": {"name": "Bash", "input": {"command": "true", "description": "Do nothing"}}}
_WORK = [step for number in range(CALLS) for step in ({"say": f"Step {number}."}, _BASH if number % 3 else _READ)]
ANSWER = {"rules": [{"when": {"prompt": "work"}, "do": [*_WORK, {"say": "ok"}]}, {"do": [{"say": "ok"}]}]}
"""Answer with one word; for the prompt "work", use tools one after the other with a sentence before each."""
COMMAND = """#!{python}
import sys
from hocket.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""The `hocket` script as current installers write it (pip since 2025, uv).

`python -m hocket` loads `runpy` first (about 9 ms); scripts of older pips import `re` (about 12 ms).
"""
SESSION_ID = "33333333-3333-4333-8333-333333333333"


NOWHERE = "http://127.0.0.1:1"
AS_INSTALLED = {
    "ANTHROPIC_API_KEY": ENVIRONMENT["ANTHROPIC_API_KEY"],
    **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), NOWHERE),
    "NO_PROXY": "127.0.0.1",
}
"""The CLI as installed, with nothing switched off; its other traffic goes to a closed port.

With traffic and updates off, as in the tests, it takes up to a third less processor time.
"""


@contextmanager
def claude_world() -> Iterator[World]:
    """Yield a world with the real Claude CLI, a scripted model and a running server."""
    with world() as w, ScriptedModel(parse(ANSWER)) as model:
        w.env.update(AS_INSTALLED, ANTHROPIC_BASE_URL=model.url, HOCKET_CLAUDE=str(real_cli()))
        w.client().request("GET", "/api/health")
        yield w


class Spent(NamedTuple):
    """Wall time and processor time in seconds."""

    wall: float
    cpu: float


class Job(NamedTuple):
    """A prompt, its name in the figures, and the number of measurements."""

    prompt: str
    name: str
    times: int


WORD = Job("hi", "one word", TIMES)
WORK = Job("work", f"{CALLS} tool calls", 11)


class Costs(NamedTuple):
    """Measurements of one job: the bare CLI, Hocket, and the processor time of server and keeper for the latter."""

    bare: list[Spent]
    ours: list[Spent]
    behind: list[float]


def run() -> Iterator[Figure]:
    """`hocket run claude` and `claude -p`, alternating, for a one-word answer and for work with tools."""
    with claude_world() as w:
        (w.root / "note.txt").write_text("Nothing of note.\n")
        client = w.client()
        word = _costs(w, WORD)
        yield _added(word, "Claude run vs. bare CLI, with our tools")
        # The CLI itself needs time for tools and stream output, so compare with the same arguments as well.
        served = _costs(w, WORD, lambda: _driven(w))
        yield _added(served, "Claude run vs. CLI with the same tools")
        yield _share(word, WORD._replace(name="one word with our tools"))
        (w.home / "config.toml").write_text("[claude]\nmcp = false\n")
        plain = _costs(w, WORD)
        bare = [str(real_cli()), "-p", WORD.prompt]
        api = _middle([seconds(lambda: _ask(client, w)) - _command(w, bare).wall for _ in range(TIMES + 1)]) * 1000
        yield _added(plain, "Claude run vs. bare CLI, without our tools", f"{api:.0f} ms without the command line")
        yield _share(plain, WORD._replace(name="one word without our tools"))
        (w.home / "config.toml").write_text("")
        yield _share(_costs(w, WORK), WORK)


def _costs(w: World, job: Job, beside: Callable[[], Spent] | None = None) -> Costs:
    costs = Costs([], [], [])
    bare = beside or partial(_command, w, [str(real_cli()), "-p", job.prompt])
    hocket = w.program("hocket", COMMAND.format(python=lone_python(w.root / "env")))
    server = w.server_pid()  # Queried once: a query before each run would add work to the run.
    with _own_processes(server) as spent:
        for _ in range(job.times + 1):
            costs.bare.append(bare())
            before = spent()
            costs.ours.append(_command(w, [hocket, "run", "claude", "-p", job.prompt]))
            costs.behind.append(spent() - before)
    return costs


def _added(costs: Costs, name: str, more: str = "") -> Figure:
    """Return the median difference of pairs: temporary load slows both measurements of a pair."""
    ours, bare = (_middle([one.wall for one in spent]) * 1000 for spent in (costs.ours, costs.bare))
    added = _middle([with_us.wall - alone.wall for with_us, alone in zip(costs.ours, costs.bare, strict=True)]) * 1000
    note = "; ".join(filter(None, [f"{ours:.0f} ms vs. {bare:.0f} ms", more]))
    return Figure(name, added, "ms", 100, note=note)


def _share(costs: Costs, job: Job) -> Figure:
    line, theirs = (_middle([one.cpu for one in spent]) * 1000 for spent in (costs.ours, costs.bare))
    both = [one.cpu + behind for one, behind in zip(costs.ours, costs.behind, strict=True)]
    share = _middle([ours / bare.cpu for ours, bare in zip(both, costs.bare, strict=True)]) * 100
    behind = _middle(costs.behind) * 1000
    parts = f"command line {line:.0f}, server and keeper {behind:.0f}"
    note = f"{_middle(both) * 1000:.0f} ms: {parts}; the bare CLI {theirs:.0f} ms"
    return Figure(f"CPU time of Hocket as a share of the CLI's, {job.name}", share, "%", 5, note=note)


def _ask(client: Client, w: World) -> None:
    """Run the same job over the API, without the command line."""
    run = client.request("POST", "/api/runs", {"agent": "claude", "prompt": "hi", "cwd": str(w.root), "env": w.env})
    *_before, ended = client.follow(run["id"])
    assert ended["data"]["status"] == "done", ended


def _middle(values: list[float]) -> float:
    """Return the median without the first value, which is a warm-up."""
    return statistics.median(values[1:])


def _command(w: World, argv: list[str]) -> Spent:
    nothing = subprocess.DEVNULL
    with tempfile.TemporaryFile() as talk_of_it:
        begin = time.perf_counter()
        process = subprocess.Popen(argv, env=w.env, cwd=w.root, stdin=nothing, stdout=nothing, stderr=talk_of_it)
        _pid, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        talk_of_it.seek(0)
        assert process.returncode == 0, (argv, process.returncode, talk_of_it.read()[-2000:])
    return Spent(wall, usage.ru_utime + usage.ru_stime)


def _driven(w: World) -> Spent:
    """Run the CLI with Hocket's arguments and answer its MCP requests directly."""
    begin = time.perf_counter()
    started = launch(
        Agent("claude", "claude", str(real_cli()), "bench"), LaunchRequest(own_server=OwnServer(SERVER, rules()))
    )
    with tempfile.TemporaryDirectory() as place:
        for name, content in started.files.items():
            (Path(place) / name).write_text(content)
        blanks = {SESSION: str(uuid.uuid4()), RUN_DIRECTORY: place}
        argv = [_filled(argument, blanks) for argument in started.argv]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, env=w.env, cwd=w.root, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert process.stdin is not None
        assert process.stdout is not None
        _hand_over(process.stdin, conversation.message(WORD.prompt))
        for line in process.stdout:
            if (request := mcp_requests.request(line)) is not None:
                _hand_over(
                    process.stdin,
                    mcp_requests.reply(request.id, respond(request.message) or {"jsonrpc": "2.0", "result": {}}),
                )
            elif b'"type":"result"' in line:
                process.stdin.close()
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        assert process.returncode == 0, argv
    return Spent(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime)


def _filled(argument: str, blanks: dict[str, str]) -> str:
    for blank, value in blanks.items():
        argument = argument.replace(blank, value)
    return argument


def _hand_over(given: IO[bytes], text: str) -> None:
    given.write(text.encode())
    given.flush()


@contextmanager
def _own_processes(server: int) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the processor seconds of server, zygote and keepers, without the agents.

    Sampling continues while the bare CLI runs: on two processors it makes either run about 20 ms longer.
    """
    (zygote,) = _children(server)
    used = {pid: _cpu_seconds(pid) for pid in (server, zygote)}
    over = threading.Event()

    def look() -> None:
        for pid in (server, zygote, *_children(zygote)):
            used[pid] = _cpu_seconds(pid) or used.get(pid, 0.0)

    def keep_looking() -> None:
        # A keeper exits before its usage can be read at the end, so it is sampled.
        while not over.wait(0.004):
            look()

    def spent() -> float:
        while _children(zygote):
            time.sleep(0.004)  # a keeper outlives its run by a moment
        look()
        return sum(list(used.values()))

    watcher = threading.Thread(target=keep_looking)
    watcher.start()
    try:
        yield spent
    finally:
        over.set()
        watcher.join()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_seconds(pid: int) -> float:
    """Return the CPU clock of a process, which is finer than /proc; 0 after its end."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


# --- A warm turn --------------------------------------------------------------------------------------------


def turn() -> Iterator[Figure]:
    """One more message to a live session: through the server, and directly into the CLI's standard input."""
    ours: list[float] = []
    bare: list[float] = []
    with claude_world() as w, _direct(w) as say_directly:
        client = w.client()
        body = {"agent": "claude", "prompt": "hi", "session": True, "cwd": str(w.root), "env": w.env}
        id = client.request("POST", "/api/runs", body)["id"]
        events = w.client().follow(id)
        _next_result(events)
        for _ in range(3 * TIMES):
            bare.append(seconds(lambda: say_directly("more")))
            begin = time.perf_counter()
            client.request("POST", f"/api/runs/{id}/messages", {"text": "more"})
            _next_result(events)
            ours.append(time.perf_counter() - begin)
    middle, theirs = _middle(ours), _middle(bare)
    note = f"{middle * 1000:.0f} ms vs. {theirs * 1000:.0f} ms"
    yield Figure("warm turn of a session vs. bare CLI", (middle - theirs) * 1000, "ms", 30, note=note)


def _next_result(events: Iterator[dict[str, Any]]) -> None:
    assert next(event for event in events if event["type"] == "turn.ended")["data"]["result"] == "ok"


@contextmanager
def _direct(w: World) -> Iterator[Callable[[str], None]]:
    """Start the CLI with the same arguments and complete its first turn."""
    started = launch(Agent("claude", "claude", str(real_cli()), "bench"), LaunchRequest())
    argv = [SESSION_ID if argument == SESSION else argument for argument in started.argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=w.env, cwd=w.root, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, said = process.stdin, process.stdout
        _say(given, said, "hi")
        yield lambda text: _say(given, said, text)
        given.close()
        process.wait(20)


def _say(given: IO[bytes], said: IO[bytes], text: str) -> None:
    _hand_over(given, conversation.message(text))
    assert any(b'"type":"result"' in line and json.loads(line)["result"] == "ok" for line in said)


# --- Reading and rehearsing ---------------------------------------------------------------------------------


def reading() -> Iterator[Figure]:
    """Recorded output of the real CLI, parsed into events on one processor."""
    recordings = Recordings("claude")
    version = recordings.versions()[-1]
    streams = [recordings.load(version, case) for case in recordings.cases(version)]
    _lines_a_second(streams, 1, 1)
    long = statistics.median(_lines_a_second(streams, 1, 50) for _ in range(5))
    short = statistics.median(_lines_a_second(streams, 50, 1) for _ in range(5))
    lines = [line for stream in streams for line in stream.out]
    size = sum(map(len, lines)) / len(lines)
    note = f"{len(lines)} recorded lines of {size:.0f} bytes, 50 times in one run; {short:,.0f} as 50 runs"
    yield Figure("CLI lines parsed", long, "/s", 100_000, at_most=False, note=note)


def _lines_a_second(streams: list[Recording], runs: int, times: int) -> float:
    """Return the lines parsed per second of processor time."""
    begin = time.process_time()
    for stream in streams * runs:
        read = reader(stream.spec)
        state: State = {}
        for line in stream.out * times:
            state, _said = read(state, "out", line, None)
    return runs * times * sum(len(stream.out) for stream in streams) / (time.process_time() - begin)


def rehearse() -> Iterator[Figure]:
    """A rehearsal of ten scripted agents in a chain, including the start and stop of its server."""
    with world() as w:
        names = [f"agent{number}" for number in range(10)]
        for name in names:
            define(w.root, name)
        argv = [*HOCKET, "rehearse", " -> ".join(names), "-p", "go"]
        took = statistics.median(_command(w, argv).wall for _ in range(5))
        yield Figure("hocket rehearse of a chain of ten", took, "s", 3)
