"""Measure every figure of docs/benchmarks.md and compare it with its target.

    python bench/figures.py             all figures (a few minutes)
    python bench/figures.py startup loop      two groups
    python bench/figures.py --json

Times are compared with a baseline measured in the same run, so a slow machine slows both. A missed target is printed as
MISS; the exit status is 0 if everything could be measured.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import catalog
import chains
import claude
import tasks
import teams
import transcripts
from measure import (
    HOCKET,
    Figure,
    World,
    fastest_seconds,
    file_milliseconds,
    megabytes,
    percentile,
    seconds,
    world,
)
from reads import fill_chains

from hocket.client import Client
from hocket.model import Spec
from hocket.providers import executable


def startup() -> Iterator[Figure]:
    """Start-up of the command line and of the server."""
    with world() as w:
        ready = seconds(lambda: w.client().request("GET", "/api/health"))
        commands = [[sys.executable, "-c", "pass"], [*HOCKET, "--version"], [*HOCKET, "ps"]]
        bare, version, ps = fastest_seconds(commands, w.env)
        for name, duration, target in (("hocket --version", version, 3), ("hocket ps", ps, 4)):
            note = f"{duration * 1000:.0f} ms vs. {bare * 1000:.0f} ms"
            yield Figure(f"{name} vs. bare Python", duration / bare, "x", target, note=note)
        yield Figure("cold start of the server", ready, "s", 1)
        yield Figure("memory of an idle server", megabytes(w.server_pid()), "MB", 70)


def loop() -> Iterator[Figure]:
    """Iterations of a program that does nothing, compared with a shell loop."""
    count = 200
    with world() as w:
        noop = w.program("noop", "#!/bin/sh\nexit 0\n")
        client = w.client()
        _run_loop(client, w, noop, 20)
        ours = _run_loop(client, w, noop, count) / count
        script = f"i=0; while [ $i -lt {count} ]; do {noop}; i=$((i+1)); done"
        theirs = seconds(lambda: subprocess.run(["/bin/sh", "-c", script], check=True)) / count
        note = f"{ours * 1000:.1f} ms vs. {theirs * 1000:.1f} ms in a shell loop"
        yield Figure("overhead per iteration vs. a shell loop", (ours - theirs) * 1000, "ms", 15, note=note)


def _run_loop(client: Client, w: World, program: str, count: int) -> float:
    body = {"dsl": f"{program}:{count}", "cwd": str(w.root), "env": w.env}
    begin = time.perf_counter()
    run = client.request("POST", "/api/runs", body)
    events = list(client.follow(run["id"]))
    assert events[-1]["data"]["steps"][0]["iterations"] == count, events[-1]
    return time.perf_counter() - begin


def starts() -> Iterator[Figure]:
    """A burst of short runs."""
    count = 400
    with world("[limits]\nleaves = 1000\n") as w:
        noop = w.program("noop", "#!/bin/sh\nexit 0\n")
        client = w.client()
        client.request("GET", "/api/health")

        body = json.dumps({"agent": noop, "cwd": str(w.root), "env": w.env}).encode()
        head = "POST /api/runs HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n"
        message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        begin = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: _ask(w, message), range(count)))
        accepted = time.perf_counter() - begin
        assert all(b" 201 " in answer[:20] for answer in answers)
        while client.request("GET", "/api/runs"):
            time.sleep(0.2)
        runs = client.request("GET", f"/api/runs?all=1&limit={count}")
        assert all(run["status"] == "done" for run in runs)
        begun = max(run["started_at"] for run in runs) - min(run["created_at"] for run in runs)
        yield Figure("start requests accepted in a burst", count / accepted, "/s", 100, at_most=False)
        note = f"a run creates 8 files; creating one takes {file_milliseconds(w.root):.2f} ms here"
        yield Figure("processes started in a burst", count / begun, "/s", 100, at_most=False, note=note)


def _ask(w: World, message: bytes) -> bytes:
    """Send a request with as little client overhead as possible."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(w.home / "sock"))
        connection.sendall(message)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def many() -> Iterator[Figure]:
    """500 live agents that print five lines per second each; then the server is killed and restarted."""
    count = 500
    # A single process that never forks, because the server is measured here, not the agents.
    talk = f"#!{sys.executable} -IS\nimport time\n"
    talk += "while True:\n    print('working on it', flush=True)\n    time.sleep(0.2)\n"
    with world("[limits]\nleaves = 1000\n[run]\nstop_grace = 1.0\n") as w:
        talker = w.program("talker", talk)
        client = w.client()
        ids = [
            client.request("POST", "/api/runs", {"agent": talker, "cwd": str(w.root), "env": w.env})["id"]
            for _ in range(count)
        ]
        deadline = time.monotonic() + 120
        while any(run["status"] != "running" for run in client.request("GET", "/api/runs?limit=1000")):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        time.sleep(5)
        yield Figure("live agents", len(client.request("GET", "/api/runs?limit=1000")), "", count, at_most=False)
        yield Figure("server memory with 500 live agents", megabytes(w.server_pid()), "MB", 250)
        subprocess.run(["/bin/kill", "-9", str(w.server_pid())], check=True)
        ready = seconds(lambda: w.client().request("GET", "/api/health"))
        live = len(w.client().request("GET", "/api/runs?limit=1000"))
        yield Figure("restart with 500 live agents", ready, "s", 2, note=f"{live} of {count} adopted")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda run: w.client().request("POST", f"/api/runs/{run}/stop", {}), ids))


def ingest() -> Iterator[Figure]:
    """10,000 events per second, stored and followed."""
    total, talkers = 100_000, 10
    each = total // talkers
    talk = (
        f"#!{sys.executable}\nimport sys, time\nbegin = time.time()\n"
        f"for i in range({each // 50}):\n"
        f"    sys.stdout.write(''.join(f'{{time.time():.6f}} {{i}} {{j}} ' + 'x' * 80 + chr(10) for j in range(50)))\n"
        "    sys.stdout.flush()\n"
        f"    time.sleep(max(0, begin + (i + 1) * 50 / ({10_000 // talkers}) - time.time()))\n"
    )
    with world("[limits]\nleaves = 100\n") as w:
        talker = w.program("talker", talk)
        client = w.client()
        client.request("GET", "/api/health")
        begin = time.perf_counter()
        ids = [
            client.request("POST", "/api/runs", {"agent": talker, "cwd": str(w.root), "env": w.env})["id"]
            for _ in range(talkers)
        ]
        delays: list[float] = []
        follower = threading.Thread(target=_follow, args=(w.client(), ids[0], delays))
        follower.start()
        for run in ids[1:]:
            while not client.run(run)["ended_at"]:
                time.sleep(0.1)
        follower.join()
        took = time.perf_counter() - begin
        note = f"{total} lines in {took:.1f} s; the agents take 10 s to print them"
        yield Figure("events ingested at 10,000/s offered", total / took, "/s", 9_000, at_most=False, note=note)
        note = "without the first second, in which the agents start"
        yield Figure("p99 delay from written to followed", percentile(delays, 0.99) * 1000, "ms", 150, note=note)


def _follow(client: Client, run: str, delays: list[float]) -> None:
    first = None
    for event in client.follow(run):
        if event["type"] == "text":
            written = float(event["data"]["text"].split()[0])
            first = first or written
            if written > first + 1:
                delays.append(time.time() - written)


def flood() -> Iterator[Figure]:
    """Durably stored events of one run that writes as fast as it can."""
    total = 200_000
    talk = f"#!{sys.executable}\nprint('\\n'.join('line %d ' % i + 'x' * 80 for i in range({total})))\n"
    with world() as w:
        talker = w.program("talker", talk)
        client = w.client()
        client.request("GET", "/api/health")
        begin = time.perf_counter()
        run = client.request("POST", "/api/runs", {"agent": talker, "cwd": str(w.root), "env": w.env})
        while not client.run(run["id"])["ended_at"]:
            time.sleep(0.05)
        took = time.perf_counter() - begin
        yield Figure("events stored from one flooding run", total / took, "/s", 10_000, at_most=False)


def history() -> Iterator[Figure]:
    """The list of live runs, with and without a long history."""
    with world() as w:
        noop = w.program("noop", "#!/bin/sh\nexit 0\n")
        client = w.client()

        def ask() -> float:
            begin = time.perf_counter()
            for _ in range(200):
                client.request("GET", "/api/runs")
            return (time.perf_counter() - begin) / 200

        ask()
        before = ask()
        _run_loop(client, w, noop, 2000)
        after = ask()
        note = f"{after * 1000:.2f} ms after 2,000 runs, {before * 1000:.2f} ms before"
        yield Figure("list of runs with 2,000 ended runs vs. none", after / before, "x", 1.5, note=note)


def listing() -> Iterator[Figure]:
    """The first page of all runs and of all families, with a history of 10,000 runs in chains of three steps."""
    with world() as w:
        fill_chains(w.home, 10_000)
        w.client().request("GET", "/api/health")
        commands = [[*HOCKET, "ps", "-a"], [*HOCKET, "ps", "-a", "--tree"], [*HOCKET, "ps", "-a", "--limit", "40"]]
        bare, *durations = fastest_seconds([[sys.executable, "-c", "pass"], *commands], w.env, 10)
        for words, duration in zip(commands, durations, strict=True):
            name = " ".join(["hocket", *words[len(HOCKET) :]])
            note = (
                f"{duration * 1000:.0f} ms, bare Python {bare * 1000:.0f} ms; 10,000 runs, a page of 1,000 by default"
            )
            yield Figure(f"{name} beyond bare Python", (duration - bare) * 1000, "ms", 100, note=note)


def lines() -> Iterator[Figure]:
    """Lines of a plain program that its reader turns into events."""
    read = executable.reader(Spec("a", "executable", ("/a",), "/", {}, loop=True, marker="DONE"))
    line, count = b"2024-01-01 an ordinary line of output of about this length, which has no marker in it", 10_000

    def every_line() -> None:
        for _ in range(count):
            read({}, "out", line, None)

    best = min(seconds(every_line) for _ in range(5))
    yield Figure("lines of a plain program read", count / best, "/s", 100_000, at_most=False)


GROUPS: dict[str, Callable[[], Iterator[Figure]]] = {
    "startup": startup,
    "loop": loop,
    "starts": starts,
    "ingest": ingest,
    "flood": flood,
    "lines": lines,
    "history": history,
    "listing": listing,
    "many": many,
    "claude": claude.run,
    "turn": claude.turn,
    "reading": claude.reading,
    "rehearse": claude.rehearse,
    "scan": catalog.scanning,
    "catalog": catalog.warm,
    "growth": catalog.growing,
    "bind": chains.binding,
    "decide": chains.deciding,
    "long_loop": chains.long_loop,
    "handoff": tasks.handoff,
    "transcripts": transcripts.parsing,
    "opening": transcripts.opening,
    "following": transcripts.following,
    "large_team": teams.large,
    "tasks": tasks.listing,
    "long_task": tasks.long_task,
    "teams": teams.idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in options.groups or GROUPS:
        for figure in GROUPS[name]():
            if options.json:
                print(json.dumps({**figure._asdict(), "met": figure.met}), flush=True)
                continue
            bound = f"{'at most' if figure.at_most else 'at least'} {figure.target:g} {figure.unit}"
            verdict = "ok  " if figure.met else "MISS"
            print(
                f"{verdict} {figure.name:57} {figure.value:10.2f} {figure.unit:3} {bound:18} {figure.note}", flush=True
            )


if __name__ == "__main__":
    main()
