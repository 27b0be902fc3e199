"""A machine that is out of something: disk, descriptors, processes, permission, or a database that is whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, is_alive, kill, verdict, wait_for
from world import Bin, Hocket, processes_of

from hocket.errors import DiskLow

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and make control groups")

# --- Disk ---------------------------------------------------------------------------------------------------

FILLER = """
import os, sys
os.write(1, b"ready\\n")
with open(sys.argv[1]) as gate:
    gate.read()
for _ in range(128):
    os.write(1, b"x" * 8191 + b"\\n")
os._exit(int(sys.argv[2]))
"""
"""Writes a megabyte."""


@contextlib.contextmanager
def tmpfs(place: Path, options: str) -> Iterator[Callable[[str], None]]:
    """A file system of its own at this place; the function it gives mounts it again with other options."""

    def mount(text: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", text, "tmpfs", str(place)], check=True, timeout=PATIENCE)

    mount(options)
    try:
        yield lambda text: mount(f"remount,{text}")
    finally:
        # Lazily: a process that is about to end may still have a file open there.
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=PATIENCE)


@needs_root
def test_no_output_is_lost_on_a_full_disk(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    """Agents wait for room. Nothing of what they write is lost, and each ends with its own code."""
    agent("filler", FILLER)
    with tmpfs(home, "size=8m,mode=700") as remount:
        (home / "config.toml").write_text("[limits]\nmin_free_mb = 0\n")
        installation = Installation(home, project)
        gates = [project / f"gate-{number}" for number in range(20)]
        for gate in gates:
            os.mkfifo(gate)
        runs = [installation.spawn("filler", str(gate), str(number % 7)) for number, gate in enumerate(gates)]
        for run in runs:
            installation.said(run, b"ready")
        server = installation.server_pid()
        for gate in gates:
            gate.open("w").close()
        wait_for(lambda: os.statvfs(home).f_bavail == 0, "a full disk")
        with pytest.raises(DiskLow) as refused:
            installation.spawn("/bin/true")
        assert refused.value.status == 507
        remount("size=64m")
        ended = [installation.ended(run, 30) for run in runs]
        assert [run["exit_code"] for run in ended] == [number % 7 for number in range(20)]
        assert [len(installation.out(run)) for run in runs] == [len(b"ready\n") + 128 * 8192] * 20
        assert verdict(installation.ended(installation.spawn("/bin/true"))) == ("done", "exit", 0)
        assert installation.server_pid() == server
        assert integrity(home) == "ok"
        installation.kill_server(signal.SIGTERM)


FILE_LIMIT = 8 * 2**20
TOO_MUCH = f"""
import os
for _ in range(10):
    rest = memoryview(b"x" * {2**20})
    while rest:
        rest = rest[os.write(1, rest):]
"""


def test_lost_output_is_reported_at_the_end(home: Path, project: Path, agent: Bin, hocket: Hocket) -> None:
    """Torture row 45: what the disk does not take is counted, and the user is told how much it was."""
    agent("writer", TOO_MUCH)
    installation = Installation(home, project, ["prlimit", f"--fsize={FILE_LIMIT}"])
    run = installation.spawn("writer")
    assert verdict(installation.ended(run)) == ("done", "exit", 0)
    lost = 10 * 2**20 - FILE_LIMIT
    events = installation.events(run)
    (text,) = [event["data"]["text"] for event in events if event["type"] == "notice"]
    assert text.startswith(f"{lost} bytes of output were lost")
    assert events[-1]["data"]["lost_bytes"] == lost
    assert text in hocket("logs", run).stdout
    installation.kill_server(signal.SIGTERM)


def fill(path: Path) -> None:
    """Write a file until the disk has no room for another byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1024**2, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


def reserve_of(home: Path) -> int:
    path = home / "reserve"
    return path.stat().st_size if path.exists() else 0


@needs_root
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "left"])
def test_server_starts_on_a_full_disk(
    hocket: Hocket, agent: Bin, home: Path, project: Path, end: signal.Signals
) -> None:
    """Torture row 58."""
    agent("sleeper", "import signal\nprint('ready', flush=True)\nsignal.pause()")
    with tmpfs(home, "size=32m,mode=700"):
        (home / "config.toml").write_text("[limits]\nmin_free_mb = 0\n")
        installation = Installation(home, project)
        run = installation.spawn("sleeper")
        wait_for(lambda: any(event["type"] == "text" for event in installation.events(run)), "its first word")
        wait_for(lambda: reserve_of(home) == 4 * 1024**2, "the reserve")
        assert (home / "reserve").stat().st_blocks * 512 >= 4 * 1024**2
        installation.kill_server(end)
        wait_for(lambda: installation.living_server() is None, "the end of the server")
        fill(home / "filler")
        listed = hocket("ps")
        assert listed.returncode == 0, listed.stderr
        assert "sleeper" in listed.stdout
        assert hocket("show", "1").returncode == 0
        assert "ready" in hocket("logs", "1").stdout
        with pytest.raises(DiskLow) as refused:
            installation.spawn("/bin/true")
        assert refused.value.status == 507
        assert str(home) in refused.value.message
        stopped = hocket("stop", "1")
        assert stopped.returncode == 0, stopped.stderr
        assert verdict(installation.run(run))[:2] == ("stopped", "stopped")
        # A killed server leaves a log of the database, which may have room for this.
        assert 0 < reserve_of(home) < 4 * 1024**2 or end is signal.SIGKILL
        (home / "filler").unlink()
        wait_for(lambda: reserve_of(home) == 4 * 1024**2, "the reserve to be made again")
        assert verdict(installation.ended(installation.spawn("/bin/true"))) == ("done", "exit", 0)
        installation.kill_server(signal.SIGTERM)


FLOOD = """
import os, time
while True:
    try:
        os.write(1, b"x" * 8191 + b"\\n")
    except OSError:
        time.sleep(0.001)
"""


@needs_root
def test_run_that_filled_the_disk_is_stopped(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    """Torture row 58. What it said cannot be recorded yet, and neither can its end; that is said, and it is gone."""
    agent("flood", FLOOD)
    with tmpfs(home, "size=48m,mode=700") as remount:
        (home / "config.toml").write_text("[limits]\nmin_free_mb = 0\n")
        installation = Installation(home, project)
        run = installation.spawn("flood")
        identity = installation.identity(run)
        wait_for(lambda: os.statvfs(home).f_bavail == 0, "the disk to be full")
        installation.kill_server()
        stopped = hocket("stop", "1", timeout=PATIENCE)
        if stopped.returncode != 0:
            assert stopped.returncode == 2
            assert "the disk is full" in stopped.stderr
        assert not is_alive(identity.pid)
        remount("size=400m")
        assert verdict(installation.ended(run, 30))[:2] == ("stopped", "stopped")
        installation.kill_server(signal.SIGTERM)


def integrity(home: Path) -> str:
    with contextlib.closing(sqlite3.connect(home / "hocket.db")) as database:
        return str(database.execute("PRAGMA integrity_check").fetchone()[0])


# --- The home itself ----------------------------------------------------------------------------------------


def check_refused(hocket: Hocket, home: Path, reason: str) -> None:
    """Both ways to a server end at once, with one line that says why and one that says what to do."""
    for command in ("serve", "ps"):
        done = hocket(command)
        assert done.returncode == 2, done
        assert done.stdout == ""
        assert str(home) in done.stderr
        assert reason in done.stderr
        assert "Traceback" not in done.stderr
    wait_for(lambda: not processes_of(home), "the end of the server that refused")


@needs_root
def test_home_on_read_only_disk_is_refused(hocket: Hocket, home: Path) -> None:
    with tmpfs(home, "size=1m,mode=700") as remount:
        remount("ro")
        check_refused(hocket, home, "ead-only")


@needs_root
def test_home_of_another_user_is_refused(hocket: Hocket, home: Path) -> None:
    os.chown(home, 65534, 65534)
    check_refused(hocket, home, "another user")
    assert {path.name for path in home.iterdir()} <= {"server.log"}


def test_home_behind_a_symbolic_link_is_refused(
    hocket: Hocket, home: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = world / "link"
    link.symlink_to(home)
    monkeypatch.setenv("HOCKET_HOME", str(link))
    check_refused(hocket, link, "symbolic link")


def test_home_that_is_a_file_is_refused(hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world / "file"
    place.write_text("mine")
    monkeypatch.setenv("HOCKET_HOME", str(place))
    done = hocket("ps")
    assert done.returncode == 2
    assert str(place) in done.stderr
    assert place.read_text() == "mine"


# --- The database -------------------------------------------------------------------------------------------


def zero_the_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(100))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


def remove_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def make_newer(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO migrations VALUES (999999, 'of the future')")
        database.commit()


DAMAGES = {
    "no head": (zero_the_head, signal.SIGTERM, "damaged"),
    "cut in half": (cut_in_half, signal.SIGTERM, "damaged"),
    "emptied": (empty, signal.SIGTERM, "damaged"),
    "removed": (remove, signal.SIGTERM, "missing"),
    "log removed": (remove_log, signal.SIGKILL, "log"),
    "newer": (make_newer, signal.SIGTERM, "newer"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in ("cut in half", "emptied") else []) for name in DAMAGES],
)
def test_incomplete_database_is_refused_unchanged(
    name: str, installation: Installation, hocket: Hocket, home: Path
) -> None:
    damage, end, reason = DAMAGES[name]
    path = home / "hocket.db"
    installation.ended(installation.spawn("/bin/true"))
    installation.kill_server(end)
    wait_for(lambda: not processes_of(home), "the end of the zygote")
    damage(path)
    before = digests(home)
    done = hocket("ps", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
    assert "hocket.db" in done.stderr
    assert "Traceback" not in done.stderr
    assert digests(home) == before
    wait_for(lambda: not processes_of(home), "the end of the server that refused")


def garble_page(path: Path, word: bytes) -> None:
    """Overwrite the page of the database that has this word in it."""
    content = path.read_bytes()
    begin = content.index(word) // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"\x07" * 4096)


def test_corrupt_page_of_events_is_reported_once(
    installation: Installation, hocket: Hocket, home: Path, agent: Bin
) -> None:
    """Torture row 55."""
    agent("talker", "for n in range(3000): print(f'line {n:04} of a long story')")
    torn, whole = (
        installation.ended(installation.spawn("talker")),
        installation.ended(installation.spawn("/bin/echo", "whole")),
    )
    installation.kill_server(signal.SIGTERM)
    wait_for(lambda: not processes_of(home), "the end of the zygote")
    garble_page(home / "hocket.db", b"line 1500 of a long story")
    sizes = []
    for arguments in (["logs"], ["logs", "-f"], ["logs", "--json"]):
        done = hocket(*arguments, str(torn["number"]))
        assert done.returncode == 2
        assert 0 < done.stdout.count("of a long story") < 3000
        assert done.stderr.count("malformed") == 1
        assert "hocket doctor --restore" in done.stderr
        sizes.append((home / "server.log").stat().st_size)
    assert sizes[0] == sizes[1] == sizes[2], "the log does not grow with each attempt"
    assert (home / "server.log").read_text().count("malformed") == 1
    assert "whole" in hocket("logs", str(whole["number"])).stdout
    assert verdict(installation.ended(installation.spawn("/bin/true"))) == ("done", "exit", 0)
    assert hocket("server", "stop").returncode == 0
    restored = hocket("doctor", "--restore")
    assert restored.returncode == 0, restored.stderr
    installation.ended(torn["id"])
    assert hocket("logs", str(torn["number"])).stdout.count("of a long story") == 3000


@pytest.mark.parametrize("stays", [False, True], ids=["closes", "stays"])
def test_server_starts_while_another_program_reads_database(
    stays: bool, installation: Installation, home: Path
) -> None:
    """Torture row 57."""
    runs = [installation.spawn("/bin/echo", str(number)) for number in range(3)]
    assert [installation.ended(run)["result"] for run in runs] == ["0\n", "1\n", "2\n"]
    before = [installation.events(run) for run in runs]
    installation.kill_server()
    wait_for(lambda: not processes_of(home), "the end of the zygote")
    with contextlib.closing(sqlite3.connect(home / "hocket.db")) as reader:
        assert reader.execute("SELECT count(*) FROM runs").fetchone() == (3,)
        if stays:
            assert [installation.events(run) for run in runs] == before
            installation.kill_server()
            wait_for(lambda: not processes_of(home), "the end of the zygote")
    assert not (home / "hocket.db-wal").exists(), "the reader was the last to close the database"
    assert [installation.events(run) for run in runs] == before
    assert verdict(installation.ended(installation.spawn("/bin/true"))) == ("done", "exit", 0)


def digests(home: Path) -> dict[str, str]:
    names = ("hocket.db", "hocket.db-wal")
    # An empty log does not count: a program that only reads the database leaves one.
    paths = [home / name for name in names if (home / name).exists() and (home / name).stat().st_size]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# --- Descriptors --------------------------------------------------------------------------------------------


def test_300_runs_need_less_than_256_descriptors(home: Path, project: Path, agent: Bin) -> None:
    agent("ending", '#!/bin/sh\necho "$1"\nexit "$1"\n')
    (home / "config.toml").write_text("[limits]\nleaves = 300\n")
    installation = Installation(home, project, ["prlimit", "--nofile=256:256"])
    runs = [installation.spawn("ending", str(number % 100)) for number in range(300)]
    ended = [installation.ended(run, 60) for run in runs]
    assert [run["exit_code"] for run in ended] == [number % 100 for number in range(300)]
    assert [run["result"] for run in ended] == [f"{number % 100}\n" for number in range(300)]


def test_server_without_free_descriptors_recovers(home: Path, project: Path, agent: Bin) -> None:
    agent("held", "import sys\nprint(1, flush=True)\nopen(sys.argv[1]).read()\nsys.exit(6)")
    installation = Installation(home, project, ["prlimit", "--nofile=64:64"])
    gates = [project / f"gate-{number}" for number in range(5)]
    for gate in gates:
        os.mkfifo(gate)
    runs = [installation.spawn("held", str(gate)) for gate in gates]
    for run in runs:
        installation.said(run, b"1")
    server = installation.server_pid()
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.connect(str(home / "sock"))
        folder = Path(f"/proc/{server}/fd")
        wait_for(lambda: len(list(folder.iterdir())) >= 63, "the last descriptor to be taken")
        for gate in gates:
            gate.open("w").close()
    assert [verdict(installation.ended(run, 30)) for run in runs] == [("failed", "exit", 6)] * 5
    assert verdict(installation.ended(installation.spawn("/bin/true"))) == ("done", "exit", 0)
    assert installation.server_pid() == server


# --- Processes ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def control_group(name: str, processes: int) -> Iterator[Path]:
    """A group in which only so many processes and threads may be alive."""
    group = Path("/sys/fs/cgroup/pids") / name
    group.mkdir()
    try:
        (group / "pids.max").write_text(str(processes))
        yield group
    finally:
        (group / "pids.max").write_text("max")
        for pid in (group / "cgroup.procs").read_text().split():
            kill(int(pid))
        wait_for(lambda: not (group / "cgroup.procs").read_text().split(), "the group's last process")
        group.rmdir()


@needs_root
def test_refused_forks_are_repeated_until_possible(home: Path, project: Path, agent: Bin, world: Path) -> None:
    agent("held", '#!/bin/sh\nread go < gate\necho "$1" >> ledger\nexit "$1"\n')
    os.mkfifo(project / "gate")
    with control_group(world.name, 1000) as group, open(project / "gate", "r+b", buffering=0) as gate:
        join = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "join"]
        installation = Installation(home, project, join)
        server = installation.server_pid()
        installation.zygote_pid()
        for _ in range(3):  # Threads count as well, and some begin with the first runs.
            installation.ended(installation.spawn("/bin/true"))
        at_rest = int((group / "pids.current").read_text())
        # Room for two keepers and their agents, and for the other half of a third one.
        (group / "pids.max").write_text(str(at_rest + 5))
        runs = [installation.spawn("held", str(number)) for number in range(12)]
        wait_for(lambda: int((group / "pids.events").read_text().split()[1]), "a refused fork")
        gate.write(b"\n" * 12)  # One line for each.
        ended = [installation.ended(run, 60) for run in runs]
        assert [verdict(run) for run in ended] == [
            ("failed" if number else "done", "exit", number) for number in range(12)
        ]
        assert sorted(map(int, (project / "ledger").read_text().split())) == list(range(12))
        assert installation.server_pid() == server
        installation.kill_server(signal.SIGTERM)
