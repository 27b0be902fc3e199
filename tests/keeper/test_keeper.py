"""One keeper, one real agent: every way to end is recorded exactly, and nothing of the run outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper.keeping import Runs, cookie_of, is_alive, out_of, process, ring, wait_ended, wait_for, wait_pid, wait_said
from patience import PATIENCE

from hocket.keeper import files, linux, process_tree

HANG = "import signal\nprint('ready', flush=True)\nwhile True: signal.pause()"
IGNORES_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG
# A daemon in the old style: two forks and a session of its own. The agent continues once the pid is written.
DAEMON = """
import os, signal
told, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b'daemon %d\\n' % os.getpid())
        os.write(tell, b'.')
        while True: signal.pause()
    os._exit(0)
os.wait()
os.read(told, 1)
"""


def said_pid(directory: str) -> int:
    words = wait_said(directory, b"daemon ").split()
    return int(words[words.index(b"daemon") + 1])


@pytest.mark.req("S3-38")
@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_code_is_that_of_the_agent(runs: Runs, code: int) -> None:
    ending = runs.finish(runs.create("/bin/sh", "-c", f"exit {code}"))
    assert (ending.code, ending.signal, ending.error, ending.stopped) == (code, None, None, False)


def test_death_by_signal_records_the_signal(runs: Runs) -> None:
    ending = runs.finish(runs.create("/bin/sh", "-c", "kill -SEGV $$"))
    assert (ending.code, ending.signal, ending.stopped) == (None, signal.SIGSEGV, False)


def test_missing_program_ends_with_127(runs: Runs) -> None:
    directory = runs.create("/nowhere/agent")
    ending = runs.finish(directory)
    assert (ending.code, ending.error) == (127, "ENOENT: /nowhere/agent")
    assert files.read_pid(directory) is None
    assert files.state(directory) == "finished"


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("#!/no/such/python -u\n", "interpreter /no/such/python of {} not found"),
        ("#! \t/no/such/python\t-u\n", "interpreter /no/such/python of {} not found"),
        ("#!/bin/sh\r\n", "interpreter '/bin/sh\\r' of {} not found (its first line ends with a carriage return)"),
    ],
)
def test_missing_interpreter_is_named(runs: Runs, tmp_path: Path, first: str, told: str) -> None:
    script = tmp_path / "script"
    script.write_text(f"{first}echo never\n", newline="")
    script.chmod(0o755)
    ending = runs.finish(runs.create(str(script)))
    assert (ending.code, ending.error) == (127, told.format(script))


def test_program_without_execute_bit_ends_with_126(runs: Runs, tmp_path: Path) -> None:
    program = tmp_path / "plain"
    program.write_text("no program")
    program.chmod(0o644)
    ending = runs.finish(runs.create(str(program)))
    assert (ending.code, ending.error) == (126, f"EACCES: {program}")


def test_missing_directory_is_named_in_the_error(runs: Runs, tmp_path: Path) -> None:
    ending = runs.finish(runs.create("/bin/true", cwd=str(tmp_path / "gone")))
    assert (ending.code, ending.error) == (126, f"ENOENT: {tmp_path / 'gone'}")


def test_too_long_argument_ends_with_126(runs: Runs) -> None:
    ending = runs.finish(runs.create("/bin/true", "x" * 200_000))
    assert (ending.code, ending.error) == (126, "E2BIG: /bin/true")


def test_unreadable_specification_ends_with_126(runs: Runs) -> None:
    directory = runs.create("/bin/true")
    Path(directory, files.SPEC).write_text("{")
    ending = runs.finish(directory)
    assert ending.code == 126
    assert ending.error is not None


def test_output_is_kept_byte_for_byte(runs: Runs) -> None:
    code = "import os\nos.write(1, bytes(range(256)) * 300)\nos.write(2, b'\\xff\\x00\\xfe no newline')\n"
    directory = runs.python(code)
    ending = runs.finish(directory)
    out, err = out_of(directory), Path(directory, files.ERR).read_bytes()
    assert out == bytes(range(256)) * 300
    assert err == b"\xff\x00\xfe no newline"
    assert (ending.out, ending.err) == (len(out), len(err))


def test_arguments_and_environment_arrive_unchanged(runs: Runs) -> None:
    code = "import os, sys\nos.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])) + os.environb[b'ODD'])"
    odd = "a b\n$(x) é \udcff"
    directory = runs.python(code, odd, env={"ODD": "v\udcfe"})
    assert runs.finish(directory).code == 0
    assert out_of(directory) == odd.encode("utf-8", "surrogateescape") + b"v\xfe"


def test_agent_gets_only_its_own_environment(runs: Runs) -> None:
    directory = runs.create("/usr/bin/env", env={"ONLY": "this"})
    runs.finish(directory)
    names = {line.partition(b"=")[0] for line in out_of(directory).splitlines()}
    assert names == {b"HOCKET_RUN", b"PATH", b"ONLY"}


def test_agent_inherits_no_descriptors_or_signal_mask(runs: Runs) -> None:
    """No descriptor of the keeper, no blocked signal, a session of its own, and the user's umask."""
    code = (
        "import os\n"
        "mask = os.umask(0)\n"
        "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())\n"
        "fds = [fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)]\n"
        "print(sorted(fds), int(status['SigBlk'], 16), os.getsid(0) == os.getpid(), oct(mask))\n"
    )
    directory = runs.python(code, umask=0o027)
    assert runs.finish(directory).code == 0
    assert out_of(directory).decode().strip() == "['0', '1', '2'] 0 True 0o27"


def test_agent_ignores_no_signal(runs: Runs) -> None:
    directory = runs.create("/bin/cat", "/proc/self/status")
    runs.finish(directory)
    status = dict(line.split(b":\t", 1) for line in out_of(directory).splitlines())
    assert int(status[b"SigIgn"], 16) == 0


def test_broken_pipe_ends_commands_of_the_agent(runs: Runs) -> None:
    """SIGPIPE is ignored by the keeper and by Python; a shell's `yes | head` must not inherit that."""
    directory = runs.create("/bin/bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    runs.finish(directory)
    assert out_of(directory) == b"y\n141\n"


@pytest.mark.req("S1-37")
def test_prompt_file_is_input_of_the_agent(runs: Runs) -> None:
    directory = runs.create("/bin/cat", stdin="file")
    Path(directory, files.PROMPT).write_bytes(b"\x00prompt\xff")
    runs.finish(directory)
    assert out_of(directory) == b"\x00prompt\xff"


def test_prompt_file_may_be_elsewhere(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    directory = runs.create("/bin/cat", stdin="file", stdin_file=str(tmp_path / "other"))
    runs.finish(directory)
    assert out_of(directory) == b"other"


def test_empty_input_ends_at_once(runs: Runs) -> None:
    directory = runs.create("/bin/cat", stdin="empty")
    assert runs.finish(directory).code == 0
    assert out_of(directory) == b""


def test_exit_record_is_written_before_lock_is_released(runs: Runs) -> None:
    directory = runs.python(HANG)
    assert files.state(directory) == "unstarted"
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    assert files.is_locked(directory)
    assert files.state(directory) == "running"
    ring(directory, files.BELL_KILL)
    wait_for(lambda: not files.is_locked(directory), "a free lock")
    assert files.read_exit(directory) is not None
    assert keeper.wait(PATIENCE) == 0


def test_pid_file_names_agent_and_keeper(runs: Runs) -> None:
    directory = runs.python(HANG)
    keeper = runs.keep(directory)
    identity = wait_pid(directory)
    assert identity.keeper == keeper.pid
    assert identity.start_time == linux.start_time(identity.pid)
    assert identity.boot_id == linux.boot_id()
    ring(directory, files.BELL_KILL)
    assert keeper.wait(PATIENCE) == 0


@pytest.mark.req("S3-21")
def test_second_keeper_of_a_run_does_nothing(runs: Runs) -> None:
    directory = runs.python(HANG)
    first = runs.keep(directory)
    wait_said(directory, b"ready")
    assert runs.keep(directory).wait(PATIENCE) == 0
    assert files.state(directory) == "running"
    ring(directory, files.BELL_KILL)
    assert first.wait(PATIENCE) == 0
    assert out_of(directory) == b"ready\n"


def test_ended_run_is_never_started_again(runs: Runs) -> None:
    directory = runs.create("/bin/echo", "once")
    first = runs.finish(directory)
    assert runs.finish(directory) == first
    assert out_of(directory) == b"once\n"


def test_lost_run_is_never_started_again(runs: Runs) -> None:
    directory = runs.create("/bin/echo", "never")
    Path(directory, files.STARTED).touch()
    assert runs.keep(directory).wait(PATIENCE) == 0
    assert files.state(directory) == "lost"
    assert out_of(directory) == b""


def test_ten_keepers_at_once_start_one_agent(runs: Runs) -> None:
    directory = runs.create("/bin/echo", "once")
    for keeper in [runs.keep(directory) for _ in range(10)]:
        assert keeper.wait(PATIENCE) == 0
    assert out_of(directory) == b"once\n"


def test_keeper_starts_while_its_lock_is_probed(runs: Runs) -> None:
    """A probe takes the lock shared for an instant: that must not look like another keeper."""
    directory = runs.create("/bin/echo", "ran")
    keeper = runs.keep(directory)
    while keeper.poll() is None:
        files.state(directory)
    assert out_of(directory) == b"ran\n"


def test_agent_ends_when_keeper_is_killed(runs: Runs) -> None:
    directory = runs.python(IGNORES_SIGTERM)
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    agent = wait_pid(directory).pid
    keeper.kill()
    keeper.wait()
    wait_for(lambda: not is_alive(agent), "the end of the agent", patience=1)
    assert files.state(directory) == "lost"


@pytest.mark.req("S3-60")
def test_processes_of_lost_run_are_swept_by_cookie(runs: Runs) -> None:
    directory = runs.python(DAEMON + HANG)
    keeper = runs.keep(directory)
    daemon = said_pid(directory)
    wait_said(directory, b"ready")
    keeper.kill()
    keeper.wait()
    swept = process_tree.sweep_cookie(cookie_of(directory))
    assert swept.survivors == []
    assert swept.swept >= 1
    assert not is_alive(daemon)


def test_daemon_ends_before_the_exit_record(runs: Runs) -> None:
    directory = runs.python(DAEMON)
    keeper = runs.keep(directory)
    ending = wait_ended(directory)
    assert not is_alive(said_pid(directory))
    assert (ending.code, ending.swept, ending.survivors) == (0, 1, [])
    assert keeper.wait(PATIENCE) == 0


def test_daemon_without_cookie_is_swept(runs: Runs) -> None:
    """The orphan is reparented to the keeper, so it belongs to the run."""
    scrubbed = "import os, sys\nos.execve(sys.executable, [sys.executable, '-I', '-c', sys.argv[1]], {})"
    directory = runs.python(scrubbed, DAEMON)
    ending = runs.finish(directory)
    assert not is_alive(said_pid(directory))
    assert ending.swept == 1


@pytest.mark.parametrize("mark", [{"HOCKET_SERVER": "1"}, {"HOCKET_RUN": "another"}])
def test_daemon_is_swept_when_mark_is_forged(runs: Runs, mark: dict[str, str]) -> None:
    """Torture row 49."""
    marked = f"import os, sys\nos.execve(sys.executable, [sys.executable, '-I', '-c', sys.argv[1]], {mark!r})"
    directory = runs.python(marked, DAEMON, home=str(runs.root))
    ending = runs.finish(directory)
    assert not is_alive(said_pid(directory))
    assert (ending.swept, ending.survivors) == (1, [])


def test_server_is_spared_when_it_holds_lock(runs: Runs) -> None:
    """A command of the agent started it, but it serves others too."""
    lock = "import fcntl, os\nlock = os.open('server.lock', os.O_RDWR | os.O_CREAT)\nfcntl.flock(lock, 2)\n"
    server = DAEMON.replace("os.setsid()", f"os.setsid()\n    exec({lock!r})")
    marked = (
        "import os, sys\nos.execve(sys.executable, [sys.executable, '-I', '-c', sys.argv[1]], {'HOCKET_SERVER': '1'})"
    )
    directory = runs.python(marked, server, home=str(runs.root))
    ending = runs.finish(directory)
    daemon = said_pid(directory)
    try:
        assert is_alive(daemon)
        assert (ending.swept, ending.survivors) == (0, [])
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_unmarked_daemon_is_swept_when_keeper_is_killed(runs: Runs) -> None:
    """Torture row 49."""
    scrubbed = "import os, sys\nos.execve(sys.executable, [sys.executable, '-I', '-c', sys.argv[1]], {})"
    directory = runs.python(scrubbed, DAEMON + HANG)
    keeper = runs.keep(directory)
    daemon = said_pid(directory)
    wait_said(directory, b"ready")
    keeper.kill()
    keeper.wait()
    assert process_tree.sweep_cookie(cookie_of(directory)).survivors == []
    assert not is_alive(daemon)


def test_unrelated_process_with_the_cookie_is_swept(runs: Runs) -> None:
    directory = runs.python(DAEMON)
    with process("import signal; signal.pause()", HOCKET_RUN=cookie_of(directory)) as stranger:
        assert runs.finish(directory).swept == 2
        assert not is_alive(stranger)


def test_orphans_are_reaped_while_the_agent_lives(runs: Runs) -> None:
    code = (
        "import os, signal\n"
        "for _ in range(200):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n" + HANG
    )
    directory = runs.python(code)
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
    wait_for(lambda: len(children.read_text().split()) == 1, "all orphans reaped")
    ring(directory, files.BELL_KILL)
    assert keeper.wait(PATIENCE) == 0


@pytest.mark.req("S3-37", "S3-60")
def test_stop_lets_the_agent_end_by_itself(runs: Runs) -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + HANG
    directory = runs.python(code)
    runs.keep(directory)
    wait_said(directory, b"ready")
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert (ending.code, ending.signal, ending.stopped) == (7, None, True)


@pytest.mark.req("S5-37")
def test_agent_is_killed_after_its_grace(runs: Runs) -> None:
    directory = runs.python(IGNORES_SIGTERM, stop_grace=0.3)
    runs.keep(directory)
    wait_said(directory, b"ready")
    asked = time.monotonic()
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert (ending.code, ending.signal, ending.stopped) == (None, signal.SIGKILL, True)
    assert 0.25 <= time.monotonic() - asked < 3


def test_suspended_agent_receives_the_stop(runs: Runs) -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + HANG
    directory = runs.python(code)
    runs.keep(directory)
    wait_said(directory, b"ready")
    agent = wait_pid(directory)
    os.kill(agent.pid, signal.SIGSTOP)
    wait_for(lambda: ") T " in Path(f"/proc/{agent.pid}/stat").read_text(), "a suspended agent")
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert (ending.code, ending.stopped) == (7, True)


def test_kill_shortens_the_grace_of_a_stop(runs: Runs) -> None:
    directory = runs.python(IGNORES_SIGTERM, stop_grace=600)
    runs.keep(directory)
    wait_said(directory, b"ready")
    for byte in (files.BELL_STOP, files.BELL_STOP, files.BELL_KILL):
        ring(directory, byte)
    ending = wait_ended(directory)
    assert (ending.signal, ending.stopped) == (signal.SIGKILL, True)


def test_stop_ends_the_whole_tree(runs: Runs) -> None:
    directory = runs.python(DAEMON + IGNORES_SIGTERM, stop_grace=0.2)
    runs.keep(directory)
    daemon = said_pid(directory)
    wait_said(directory, b"ready")
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert ending.stopped
    assert ending.survivors == []
    assert not is_alive(daemon)


# One process that is always another one: it forks and ends a hundred times a second, and stops after a while.
HOPPER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    for _ in range(1000):
        os.setsid()
        time.sleep(0.01)
        if os.fork() != 0: os._exit(0)
    os._exit(0)
"""


def test_process_that_keeps_forking_is_ended(runs: Runs) -> None:
    directory = runs.python(HOPPER + IGNORES_SIGTERM, stop_grace=0.1)
    runs.keep(directory)
    wait_said(directory, b"ready")
    ring(directory, files.BELL_STOP)
    assert wait_ended(directory).survivors == []
    assert process_tree.carrying(cookie_of(directory)) == {}


def test_agent_ended_before_the_stop_is_not_stopped(runs: Runs) -> None:
    """The keeper is suspended while both happen, so that it finds the end and the request together."""
    directory = runs.create("/bin/sh", "-c", "echo ready; read x < gate; exit 4")
    gate = Path(runs.root, "gate")
    os.mkfifo(gate)
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    agent = wait_pid(directory)
    keeper.send_signal(signal.SIGSTOP)
    gate.write_text("go\n")
    wait_for(lambda: not is_alive(agent.pid), "the agent's own end")
    assert files.ring(directory, files.BELL_STOP)
    keeper.send_signal(signal.SIGCONT)
    ending = wait_ended(directory)
    assert (ending.code, ending.stopped) == (4, False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "ballast", "ab", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)
    assert os.statvfs(disk).f_bavail == 0


def test_exit_record_has_pid_of_short_run(runs: Runs) -> None:
    directory = runs.create("/bin/sh", "-c", "echo $$")
    ending = runs.finish(directory)
    assert ending.pid == int(out_of(directory))


def test_exit_record_is_preallocated_at_creation(small_disk: Path) -> None:
    runs = Runs(small_disk)
    directory = runs.create("/bin/echo", "nowhere to put this", stop_grace=0)
    fill(small_disk)
    keeper = runs.keep(directory)
    # What cannot be written is waited for; the request to stop ends that sooner.
    ring(directory, files.BELL_STOP)
    assert keeper.wait(PATIENCE) == 0
    ending = files.read_exit(directory)
    assert ending is not None
    assert (ending.out, ending.lost_bytes) in ((0, 20), (0, 0))  # stopped after its word, or before it
    assert out_of(directory) == b""


def test_run_refused_on_full_disk_can_start_later(small_disk: Path) -> None:
    runs = Runs(small_disk)
    fill(small_disk)
    directory = str(small_disk / "run")
    spec = {"argv": ["/bin/echo", "later"], "cwd": "/", "env": {"HOCKET_RUN": os.urandom(8).hex()}, "stdin": "empty"}
    with pytest.raises(OSError, match="No space left"):
        files.create(directory, spec)
    assert files.state(directory) == "unstarted"
    (small_disk / "ballast").unlink()
    files.create(directory, spec)
    assert runs.finish(directory).code == 0
    assert out_of(directory) == b"later\n"


FAKE_SERVER = """
import json, os, sys
with open(os.path.join(os.environ["HOCKET_HOME"], "started-server.tmp"), "w") as stream:
    umask = os.umask(0)
    json.dump([sys.argv[1:], "HOCKET_RUN" in os.environ, os.environ["HOCKET_SERVER"], umask], stream)
os.rename(stream.name, stream.name[:-4])
"""


@pytest.fixture
def keeper_of_a_home(tmp_path: Path) -> list[str]:
    """A keeper as the zygote makes it, but whose environment finds a small program under the server's name."""
    package = tmp_path / "fake" / "hocket"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_SERVER)
    # The keeper's own modules come from the real package, the server that it starts from the other one.
    source = str(Path(files.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {source!r}); from hocket.keeper.keeper import keep; keep(sys.argv[1])"
    clean = ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", f"PYTHONPATH={package.parent}", "HOCKET_RUN=foreign"]
    return [*clean, sys.executable, "-c", code]


def test_keeper_starts_a_missing_server(runs: Runs, tmp_path: Path, keeper_of_a_home: list[str]) -> None:
    (tmp_path / "server.lock").touch()
    runs.finish(runs.create("/bin/true", home=str(tmp_path)), keeper_of_a_home)
    started = tmp_path / "started-server"
    wait_for(started.exists, "the server")
    umask = os.umask(0)
    os.umask(umask)
    assert json.loads(started.read_text()) == [["serve"], False, "1", umask]


def test_keeper_starts_no_server_without_earlier_one(runs: Runs, tmp_path: Path, keeper_of_a_home: list[str]) -> None:
    runs.finish(runs.create("/bin/true", home=str(tmp_path)), keeper_of_a_home)
    assert not (tmp_path / "server.log").exists()


def test_keeper_leaves_a_running_server_alone(runs: Runs, tmp_path: Path, keeper_of_a_home: list[str]) -> None:
    with open(tmp_path / "server.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs.finish(runs.create("/bin/true", home=str(tmp_path)), keeper_of_a_home)
    assert not (tmp_path / "server.log").exists()


def test_keeper_runs_without_site_packages() -> None:
    """Stdlib only: the zygote starts with -I -S, where nothing else can be imported."""
    source = str(Path(files.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {source!r}); import hocket.keeper.zygote, hocket.keeper.keeper"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=PATIENCE)
