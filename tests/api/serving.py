"""What the tests of this room share: a real server process, requests to both of its doors, and its own contract."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
from patience import PATIENCE
from world import Bin, clean_environment, make_root, processes_of, remove_root

from hocket.sessions.run_identity import run_token

STARTING = 30.0
"""A server imports much, and on a busy machine that takes its time."""
SLEEPER = "import signal; signal.pause()"


def wait_for(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first true value of the condition. Another process makes it true, so there is nothing to wait on."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {patience} s: {what}"
        time.sleep(0.005)
    return value


class Contract:
    """The server's own description of itself, held against each of its answers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._paths = [
            (re.compile(re.sub(r"\{[^}]+\}", "[^/]+", template)), operations)
            for template, operations in document["paths"].items()
        ]
        self.seen: set[tuple[str, str]] = set()

    def check(self, method: str, path: str, response: httpx.Response) -> None:
        operation = self._operation(method, path)
        if operation is None:
            assert response.status_code in (403, 404, 405), f"{method} {path} is not described"
            self._fits({"$ref": "#/components/schemas/ErrorResponse"}, response)
            return
        described = operation["responses"].get(str(response.status_code))
        assert described is not None, f"{method} {path} must not answer {response.status_code}: {response.text}"
        self.seen.add((method, operation["operationId"]))
        kind = response.headers.get("content-type", "").partition(";")[0]
        assert kind in described["content"], (kind, described)
        if kind == "application/json":
            self._fits(described["content"][kind]["schema"], response)

    def _operation(self, method: str, path: str) -> dict[str, Any] | None:
        for pattern, operations in self._paths:
            if pattern.fullmatch(path.partition("?")[0]) and method.lower() in operations:
                found: dict[str, Any] = operations[method.lower()]
                return found
        return None

    def _fits(self, schema: dict[str, Any], response: httpx.Response) -> None:
        whole = {**schema, "components": self.document["components"]}
        jsonschema_rs.Draft202012Validator(whole).validate(response.json())


class Server:
    """One server process with a home, a project and a PATH of its own."""

    def __init__(self) -> None:
        self.root = make_root()
        self.home = self.root / "h"
        self.home.mkdir(mode=0o700)
        self.project = self.root / "p"
        self.project.mkdir()
        self.agent = Bin(self.root / "bin")
        self.env = clean_environment(os.environ, self.root)
        self.process: subprocess.Popen[bytes] | None = None
        self.contract: Contract | None = None
        self._doors: dict[bool, httpx.Client] = {}
        self._doors_before: list[httpx.Client] = []
        """Those to servers that are gone, closed at the end: until then a thread may be on its way through one."""

    def configure(self, text: str) -> None:
        (self.home / "config.toml").write_text(text)

    # Life and death

    def start(self, *args: str) -> None:
        log = (self.root / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hocket", "serve", *args],
                env=self.env,
                cwd=self.project,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(self._is_ready, "the server", STARTING)
        about = self.about()
        self.port = int(about["url"].rpartition(":")[2])
        self.socket = about["socket"]
        self.token = (self.home / "token").read_text().strip()
        self._doors_before += self._doors.values()
        self._doors = {
            unix: httpx.Client(
                transport=httpx.HTTPTransport(uds=self.socket if unix else None, verify=False),
                base_url="http://localhost" if unix else f"http://127.0.0.1:{self.port}",
                timeout=PATIENCE,
            )
            for unix in (False, True)
        }
        if self.contract is None:
            self.contract = Contract(self.get("/openapi.json", checked=False).json())

    def _close_doors(self) -> None:
        for door in (*self._doors_before, *self._doors.values()):
            door.close()

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "server.log").read_text()
        about = self.about()
        return about.get("pid") == self.process.pid and "url" in about

    def about(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.home / "server.lock").read_text())
            return found
        return {}

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def start_instead(self) -> None:
        """Start where a keeper may have been quicker: one that ends and finds no server starts one itself."""
        for _ in range(5):
            try:
                return self.start()
            except AssertionError:
                if "running already" not in (self.root / "server.log").read_text():
                    raise
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads((self.home / "server.lock").read_text())["pid"], signal.SIGKILL)
        raise AssertionError("a keeper always starts a server first")

    def leave(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)

    def close(self) -> None:
        """End every run and the server; any process left after that fails the test."""
        try:
            if self._doors and self.process is not None and self.process.poll() is None:
                for run in self.get("/api/runs").json()["data"]:
                    if run["parent"] is None:
                        self.post(f"/api/runs/{run['id']}/stop", {})
                # A keeper that finds no server starts one, so they go first.
                wait_for(lambda: len(processes_of(self.home)) <= 2, "the keepers' end")
                self.leave()
            left = self._left() if self._doors else {}
        finally:
            self._close_doors()
            for pid in processes_of(self.home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.wait(PATIENCE)
            remove_root(self.root)
        assert left == {}, f"left running: {left}"

    def _left(self) -> dict[int, str]:
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not processes_of(self.home), "the end of everything")
        return processes_of(self.home)

    # Asking

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        unix: bool = False,
        checked: bool = True,
        **more: Any,
    ) -> httpx.Response:
        """One request through one of the doors; the answer is held against the contract."""
        sent = dict(headers or {})
        if token is not None or not unix:
            sent.setdefault("authorization", f"Bearer {token or self.token}")
        response = self._doors[unix].request(method, path, headers=sent, **more)
        if checked and self.contract is not None:
            self.contract.check(method, path, response)
        return response

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **more)

    def start_run(self, agent: str, *, dsl: bool = False, expect: int = 201, **more: Any) -> Any:
        """Start something and give back the run, or, where a refusal is expected, the error."""
        headers = more.pop("headers", None)
        options = {name: more.pop(name) for name in ("token", "unix") if name in more}
        body = {"dsl" if dsl else "agent": agent, "cwd": str(self.project), **more}
        body = {name: value for name, value in body.items() if value is not None}
        response = self.post("/api/runs", body, headers=headers, **options)
        assert response.status_code == expect, response.text
        answer = response.json()
        return answer["data"] if expect == 201 else answer["error"]

    def show(self, ref: object) -> Any:
        response = self.get(f"/api/runs/{ref}")
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def ended(self, ref: object) -> Any:
        """The run once it has ended."""

        def look() -> Any:
            run = self.show(ref)
            return run if run["ended_at"] is not None else None

        return wait_for(look, f"the end of {ref}")

    def count(self) -> int:
        """How many runs there have ever been."""
        return len(self.get("/api/runs?all=1").json()["data"])

    # Streams

    def events(self, ref: object, after: int = 0, most: int | None = None, **options: Any) -> list[dict[str, Any]]:
        """The events of a run by SSE: up to the end of the stream, or ``most`` of them and then hang up."""
        unix: bool = options.pop("unix", False)
        query = "&".join(f"{name}={value}" for name, value in options.items())
        path = f"/api/runs/{ref}/events?{query}"
        sent = {"authorization": f"Bearer {self.token}", "last-event-id": str(after)}
        found: list[dict[str, Any]] = []
        with self._doors[unix].stream("GET", path, headers=sent) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            number = None
            for line in response.iter_lines():
                if line.startswith("id: "):
                    number = int(line[4:])
                elif line.startswith("data: "):
                    found.append(json.loads(line[6:]))
                    assert found[-1]["seq"] == number
                    if len(found) == most:
                        break
        return found


def raw(port: int, data: bytes, patience: float = PATIENCE) -> tuple[int, bytes]:
    """Send bytes as they are; the status and everything else of the answer.

    What is sent and what is read take turns: a server that refuses a long body does not read it to its end.
    """
    with socket.create_connection(("127.0.0.1", port), patience) as connection:
        answer = b""
        sender = memoryview(data)
        while sender:
            connection.settimeout(0.2)
            try:
                sender = sender[connection.send(sender) :]
            except (TimeoutError, OSError):
                break
        connection.settimeout(patience)
        with contextlib.suppress(ConnectionResetError):
            while not _is_whole(answer) and (piece := connection.recv(65536)):
                answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), answer[:200]
    return int(head.split()[1]), body


def _is_whole(answer: bytes) -> bool:
    """A connection may stay open behind its answer."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def token_of(server: Server, run: Mapping[str, Any]) -> str:
    """The capability that a run's own process got."""
    folder = Path(server.show(run["id"])["dir"])
    wait_for((folder / "spec.json").exists, "the run's own files")
    return run_token((folder.parents[2] / "secret").read_text().strip().encode(), str(run["id"]))
