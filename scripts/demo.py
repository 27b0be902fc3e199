"""The demonstration: three small programs in a chain, and a server that is killed while they work.

It uses the command line only, the way anybody would, in a temporary HOCKET_HOME of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CHAIN = "planner -> builder:5 -> reviewer"
PROMPT = "Build a small house"
TURN_SECONDS = 0.4
PATIENCE_SECONDS = 10.0

PROGRAMS = {
    "planner": """
say("reading the request: " + sys.argv[-1])
say("three rooms, one roof")
""",
    "builder": """
tally = Path("passes")
done = len(tally.read_text().split()) + 1 if tally.exists() else 1
with tally.open("a") as file:
    file.write(f"{done}\\n")
say(f"pass {done}: laying bricks")
say(f"pass {done}: checking the walls")
if done == 3:
    print("FORKHESTRA_COMPLETE", flush=True)
""",
    "reviewer": """
say("walking through the rooms")
say("approved")
""",
}

HEADER = f"""import sys, time
from pathlib import Path

def say(text):
    print(text, flush=True)
    time.sleep({TURN_SECONDS})

with Path("started").open("a") as file:
    file.write(Path(sys.argv[0]).stem + "\\n")
"""


class Failed(Exception):
    """The demonstration did not show what it promises."""


class Demo:
    """One temporary machine: a home, a project and three programs on PATH."""

    def __init__(self, root: Path) -> None:
        self.home = root / "h"
        self.project = root / "project"
        self.project.mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")},
            "HOCKET_HOME": str(self.home),
            "HOCKET_PORT": "0",
            "PATH": f"{root / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        }
        write_programs(root / "bin")

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "hocket", *args]

    def ask(self, *args: str) -> str:
        done = subprocess.run(
            self.command(*args), cwd=self.project, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Failed(f"hocket {' '.join(args)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def server_pid(self) -> int | None:
        pid: int | None = json.loads(self.ask("server", "status", "--json"))["pid"]
        return pid

    def lines(self, name: str) -> list[str]:
        path = self.project / name
        return path.read_text().split() if path.exists() else []


def write_programs(folder: Path) -> None:
    folder.mkdir()
    for name, body in PROGRAMS.items():
        script = folder / f"{name}.py"
        script.write_text(HEADER + body)
        # A wrapper instead of a first line that names the interpreter: that one may not hold a space.
        command = shlex.join([sys.executable, str(script)])
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)


def tell(text: str) -> None:
    print(f"\n== {text}", flush=True)


def kill_server_half_way(demo: Demo, over: threading.Event, killed: list[int]) -> None:
    """Waits for the builder's second pass; gives up when the chain is over before that."""
    while len(demo.lines("passes")) < 2:
        if over.wait(0.02):
            return
    pid = demo.server_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        tell(f"kill -9 {pid}: that was the server, in the middle of the builder's second pass")


def run_chain(demo: Demo) -> int:
    """Shows what the command prints while another thread does the damage. Returns the pid that was killed."""
    over, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_server_half_way, args=(demo, over, killed), daemon=True)
    killer.start()
    code = show_command(demo, "run", CHAIN, "-p", PROMPT)
    over.set()
    killer.join(PATIENCE_SECONDS)
    if code != 0:
        raise Failed(f"the chain ended with {code}")
    if not killed:
        raise Failed("the server was not killed: nothing was shown")
    return killed[0]


def show_command(demo: Demo, *args: str) -> int:
    with subprocess.Popen(
        demo.command(*args),
        cwd=demo.project,
        env=demo.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            print(f"   {line}", end="", flush=True)
    return process.returncode


def check_nothing_twice(demo: Demo) -> None:
    expected = ["planner", "builder", "builder", "builder", "reviewer"]
    if (started := demo.lines("started")) != expected:
        raise Failed(f"started {started}, expected {expected}")
    tell("every program was started exactly as often as the chain asked for: " + ", ".join(expected))


def show_history(demo: Demo) -> None:
    tell("hocket ps -a")
    print(demo.ask("ps", "-a"))
    runs = json.loads(demo.ask("ps", "-a", "--json"))
    builder = [run for run in runs if run["kind"] == "leaf" and run["agent"] == "builder"][-1]
    tell(f"hocket logs {builder['number']}   (one pass of the builder)")
    print(demo.ask("logs", str(builder["number"])))


def show_next() -> None:
    tell("where to look next")
    print('   hocket run "planner -> builder:5"     your own programs, by name or by path')
    print("   hocket run ... --detach, then hocket logs -f N")
    print("   hocket run ... --json                every event as a line of JSON")
    print("   docs/guides/first-run.md             the same, explained")


def processes_left(home: Path) -> list[int]:
    """Whoever still carries this HOCKET_HOME; only /proc can tell."""
    mark = b"HOCKET_HOME=" + os.fsencode(home)
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def stop_and_verify(demo: Demo) -> None:
    demo.ask("server", "stop")
    deadline = time.monotonic() + 10
    while (left := processes_left(demo.home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        raise Failed(f"still running: {left}")
    tell("the server is stopped, and nothing is left running")


def demonstrate(demo: Demo) -> None:
    tell(f'hocket run "{CHAIN}" -p "{PROMPT}"')
    killed = run_chain(demo)
    now = demo.server_pid()
    if now == killed:
        raise Failed("the server that was killed is still there")
    tell(f"the chain is complete; a new server (pid {now}) took over from {killed}")
    check_nothing_twice(demo)
    show_history(demo)
    show_next()
    stop_and_verify(demo)


def end_leftovers(home: Path) -> None:
    """After a failure or Ctrl-C: by pid, and only what carries this demonstration's own home."""
    for pid in processes_left(home):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> int:
    root = Path(tempfile.mkdtemp(prefix="hocket-demo-")).resolve()
    demo = Demo(root)
    try:
        demonstrate(demo)
    except Failed as failure:
        print(f"\ndemo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        end_leftovers(demo.home)
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
