"""Helper programs: their code, the end of their output, their time limit, and nothing left of them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from keeper.keeping import is_alive, wait_for
from patience import PATIENCE

from hocket.keeper.programs import ToolResult, run_tool

ENV = {"PATH": "/usr/bin:/bin", "ONLY": "this"}


def sh(command: str, cwd: Path, timeout: float = PATIENCE, output_limit: int = 65536) -> ToolResult:
    return run_tool(["/bin/sh", "-c", command], str(cwd), ENV, timeout, output_limit)


def test_tool_returns_code_and_both_outputs(tmp_path: Path) -> None:
    assert sh("echo one; echo two >&2; exit 3", tmp_path) == (3, b"one\ntwo\n", False)


def test_tool_runs_in_its_directory_without_input(tmp_path: Path) -> None:
    result = sh("pwd; echo $ONLY $HOME; cat", tmp_path)
    assert result == (0, f"{tmp_path}\nthis\n".encode(), False)


def test_tool_reads_its_whole_input_late(tmp_path: Path) -> None:
    given = b"line\n" * 200_000
    result = run_tool(["/bin/sh", "-c", "seq 1000 | tail -n 1; wc -c"], str(tmp_path), ENV, 10, 100, given)
    assert (result.code, result.output.split()) == (0, [b"1000", str(len(given)).encode()])


def test_unread_input_of_a_tool_is_ignored(tmp_path: Path) -> None:
    assert run_tool(["/bin/true"], str(tmp_path), ENV, 10, 100, b"x" * 1_000_000) == (0, b"", False)


def test_death_by_signal_is_a_negative_code(tmp_path: Path) -> None:
    assert sh("kill -TERM $$", tmp_path).code == -signal.SIGTERM


@pytest.mark.parametrize("limit", [0, 1, 1000])
def test_only_the_end_of_long_output_is_kept(tmp_path: Path, limit: int) -> None:
    whole = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    result = sh("seq 200000", tmp_path, output_limit=limit)
    assert result == (0, whole[len(whole) - limit :], False)


def test_tool_over_its_timeout_is_killed_with_children(tmp_path: Path) -> None:
    begun = time.monotonic()
    result = sh("echo begun; trap '' TERM; sleep 60 & echo $! > pid; wait", tmp_path, timeout=0.5)
    assert result == (-signal.SIGKILL, b"begun\n", True)
    assert time.monotonic() - begun < 5
    child = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(child), "the end of its child")


def test_background_child_does_not_delay_the_result(tmp_path: Path) -> None:
    begun = time.monotonic()
    result = sh("sleep 60 & echo $! > pid; echo done", tmp_path)
    assert result == (0, b"done\n", False)
    assert time.monotonic() - begun < 5
    child = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(child), "the end of its child")


def test_tool_with_closed_output_is_awaited(tmp_path: Path) -> None:
    result = sh("exec >&- 2>&-; sleep 0.2; exit 9", tmp_path)
    assert result == (9, b"", False)


def test_tool_with_closed_output_has_a_time_limit(tmp_path: Path) -> None:
    assert sh("exec >&- 2>&-; sleep 60", tmp_path, timeout=0.2).timed_out


def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_tool(["/nowhere/tool"], str(tmp_path), ENV, 10, 100)


def test_interrupted_wait_ends_the_program(tmp_path: Path) -> None:
    earlier = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            # More than a pipe holds: the signal is sent only after the output is being read.
            sh("echo $$ > pid; head -c 200000 /dev/zero; kill -USR1 $PPID; sleep 30", tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid), "the end of the program")
