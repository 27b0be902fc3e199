"""The real ``hocket mcp`` command with pipes for its input and output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patience import PATIENCE

COMMAND = (sys.executable, "-P", "-m", "hocket", "mcp")


class Pipes:
    """A client of ``hocket mcp``."""

    def __init__(self, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            COMMAND, cwd=cwd, env={**os.environ, **(env or {})}, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._ids = 0
        self._rest = b""

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def write(self, raw: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(raw)
        self.process.stdin.flush()

    def send(self, message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def ask(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self._ids += 1
        self.send({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        return self._ids

    def start(self, name: str, token: Any = None, **arguments: Any) -> int:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        return self.ask("tools/call", name=name, arguments=arguments, **meta)

    def next(self, patience: float = PATIENCE) -> Any:
        """The next message."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._rest:
            ready = select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]
            assert ready, f"no output within {patience} s"
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, "the output ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def call(self, name: str, **arguments: Any) -> tuple[bool, str]:
        """Call a tool: whether it failed, and its text."""
        id = self.start(name, **arguments)
        answer = self.next()
        assert answer["id"] == id, answer
        return answer["result"]["isError"], answer["result"]["content"][0]["text"]

    def facts(self, name: str, **arguments: Any) -> dict[str, Any]:
        self.start(name, **arguments)
        found: dict[str, Any] = self.next()["result"]["_meta"]["hocket"]
        return found

    def end(self) -> int:
        """End the input and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)
