"""The official client of the protocol, over pipes, in both versions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_server.piping import COMMAND
from world import Bin

from hocket.mcp.tools import TOOLS

pytestmark = pytest.mark.shared_server

MODES = {"legacy": "2025-11-25", "auto": "2026-07-28"}


def talk(mode: str, cwd: Path, what: Callable[[Client], Awaitable[None]]) -> None:
    async def whole() -> None:
        server = StdioServerParameters(command=COMMAND[0], args=list(COMMAND[1:]), env=dict(os.environ), cwd=cwd)
        async with Client(stdio_client(server), mode=mode) as client:
            assert client.protocol_version == MODES[mode]
            await what(client)

    asyncio.run(whole())


def text_of(result: Any) -> str:
    (block,) = result.content
    return str(block.text)


@pytest.mark.parametrize("mode", MODES)
def test_official_client_can_hand_off(mode: str, home: Path, project: Path, agent: Bin, world: Path) -> None:
    gate = world / "gate"
    os.mkfifo(gate)
    agent("worker", f"import sys; print('begun', flush=True); open({str(gate)!r}).read(); print('did', sys.argv[-1])")
    reports: list[tuple[float, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, message))
        if len(reports) == 1:
            await asyncio.to_thread(gate.write_text, "")

    async def what(client: Client) -> None:
        assert client.server_info is not None
        assert client.server_info.name == "hocket"
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)
        result = await client.call_tool("hand_off", {"agent": "worker", "prompt": "it"}, progress_callback=report)
        assert (result.is_error, text_of(result)) == (False, "begun\ndid it\n")
        assert result.structured_content is None
        assert reports[0][0] == 1

    talk(mode, project, what)


@pytest.mark.parametrize("mode", MODES)
def test_official_client_gets_failures(mode: str, home: Path, project: Path, agent: Bin) -> None:
    agent("failing", "import sys; sys.exit(3)")

    async def what(client: Client) -> None:
        failed = await client.call_tool("hand_off", {"agent": "failing", "prompt": "it"})
        assert (failed.is_error, text_of(failed)) == (True, "failed (exit)")
        assert failed.structured_content["reason"] == "exit"
        refused = await client.call_tool("spawn", {"agent": "unknown", "prompt": "it"})
        assert (refused.is_error, refused.structured_content["status"]) == (True, "refused")

    talk(mode, project, what)
