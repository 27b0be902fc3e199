"""Gates: the verdict and output of a command, and its end when it is cancelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from workflows.engine_fixture import until

from hocket.keeper import process_tree
from hocket.workflows.gates import OUTPUT, Gates, Verdict

ENV = {"PATH": "/usr/bin:/bin"}
COOKIE = f"rgate{os.getpid()}"
"""Unique to this process: a sweep ends every process with it, also those of a concurrent test."""


def shell(command: str) -> list[str]:
    return ["/bin/sh", "-c", command]


async def ask(command: str, cwd: Path, limit: float = 10.0, env: Mapping[str, str] = ENV) -> Verdict | None:
    gates = Gates()
    try:
        return await gates.run(COOKIE, shell(command), str(cwd), env, limit)
    finally:
        await gates.close()


def test_exit_code_decides_and_output_is_kept(project: Path) -> None:
    passed = asyncio.run(ask("pwd; echo to err >&2", project))
    assert passed is not None
    assert (passed.passed, passed.code, passed.output) == (True, 0, f"{project}\nto err\n")
    failed = asyncio.run(ask("exit 3", project))
    assert failed is not None
    assert (failed.passed, failed.code, failed.timed_out) == (False, 3, False)


def test_end_of_long_output_is_kept(project: Path) -> None:
    verdict = asyncio.run(ask("seq 100000; echo end", project))
    assert verdict is not None
    assert len(verdict.output) == OUTPUT
    assert verdict.output.endswith("100000\nend\n")


def test_secrets_are_masked_where_output_is_cut(project: Path) -> None:
    """Torture row 46: the last bytes begin in the middle of the secret."""
    secret = "sk-test-0123456789abcdef"
    env = {**ENV, "MY_API_KEY": secret}
    verdict = asyncio.run(ask(f"echo $MY_API_KEY; seq -s '' {OUTPUT} | head -c {OUTPUT - 10}", project, env=env))
    assert verdict is not None
    assert verdict.output.startswith("\n123")
    verdict = asyncio.run(ask('echo "{\\"key\\": \\"$MY_API_KEY\\"}"', project, env=env))
    assert verdict is not None
    assert verdict.output == '{"key": "[redacted]"}\n'


def test_gate_in_missing_directory_fails(project: Path) -> None:
    verdict = asyncio.run(ask("true", project / "gone"))
    assert verdict is not None
    assert (verdict.passed, verdict.code) == (False, 127)
    assert "gone" in verdict.output


def test_processes_left_by_a_gate_are_ended(project: Path) -> None:
    verdict = asyncio.run(ask("setsid sleep 300 >/dev/null 2>&1 & until test -e /proc/$!; do :; done", project))
    assert verdict is not None
    assert verdict.passed
    assert process_tree.carrying(COOKIE) == {}


def test_cancelled_gate_has_no_verdict_and_no_processes(project: Path) -> None:
    async def scene() -> None:
        gates = Gates()
        waiting = asyncio.create_task(gates.run(COOKIE, shell("touch begun; sleep 300"), str(project), ENV, 600))
        await until((project / "begun").exists, "the gate")
        await asyncio.wait_for(gates.cancel(COOKIE), 5)
        assert await waiting is None
        assert process_tree.carrying(COOKIE) == {}
        await gates.close()

    asyncio.run(scene())


def test_cancelling_a_gate_leaves_others_running(project: Path) -> None:
    async def scene() -> None:
        gates = Gates()
        os.mkfifo(project / "pipe")
        one = asyncio.create_task(gates.run("rone", shell("touch begun; sleep 300"), str(project), ENV, 600))
        other = asyncio.create_task(gates.run("rother", shell("cat pipe; exit 4"), str(project), ENV, 600))
        await until((project / "begun").exists, "the gate")
        await gates.cancel("rone")
        assert await one is None
        # In a thread, because the other gate may not have opened the pipe yet, and starts on this loop.
        await asyncio.to_thread((project / "pipe").write_text, "")
        verdict = await other
        assert verdict is not None
        assert verdict.code == 4
        await gates.close()

    asyncio.run(scene())


def test_cancel_ends_gate_of_earlier_server(project: Path) -> None:
    """The new server does not know the gate: its cookie is enough."""

    async def scene() -> None:
        before, after = Gates(), Gates()
        old = asyncio.create_task(before.run(COOKIE, shell("touch begun; sleep 300"), str(project), ENV, 600))
        await until((project / "begun").exists, "the gate")
        await after.cancel(COOKIE)
        verdict = await asyncio.wait_for(old, 5)
        assert verdict is not None
        assert not verdict.passed
        for gates in (before, after):
            await gates.close()

    asyncio.run(scene())
