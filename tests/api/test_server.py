"""The server process: where it listens, that there is one of it, and what it keeps across restarts."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from api.serving import Server, wait_for
from patience import PATIENCE
from world import Bin, Hocket


def status(hocket: Hocket) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hocket("server", "status", "--json").stdout)
    return found


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])  # noqa: S104 - it must be refused
def test_remote_address_is_refused_without_allow_remote(hocket: Hocket, home: Path, host: str) -> None:
    refused = hocket("serve", "--host", host)
    assert refused.returncode == 2
    assert "--allow-remote" in refused.stderr
    assert refused.stdout == ""
    assert not (home / "hocket.db").exists()


def test_remote_address_is_served_with_allow_remote() -> None:
    server = Server()
    try:
        server.start("--host", "0.0.0.0", "--allow-remote")  # noqa: S104 - this is the test
        assert server.get("/api/health").status_code == 200
        assert server.get("/api/health", headers={"host": f"evil.example:{server.port}"}).status_code == 403
    finally:
        server.close()


def test_second_server_exits_and_names_the_first(server: Server) -> None:
    assert server.process is not None
    second = subprocess.run(
        [sys.executable, "-m", "hocket", "serve"],
        env=server.env,
        cwd=server.project,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert second.returncode == 1
    assert f"pid {server.process.pid}" in second.stderr
    assert server.get("/api/health").status_code == 200


def test_port_is_kept_across_restarts(server: Server) -> None:
    first = server.port
    for end in (server.kill, server.leave):
        end()
        server.start()
        assert server.port == first
    server.leave()
    with socket.create_server(("127.0.0.1", first)):
        server.start()
        assert server.port != first
        assert server.get("/api/health").json()["data"]["unavailable_port"] == first


def test_kept_port_yields_only_to_requested_port(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        wanted = reserved.getsockname()[1]
    server.leave()
    server.start("--port", str(wanted))
    server.leave()
    for kept_by in ("0", ""):
        server.env["HOCKET_PORT"] = kept_by
        server.start()
        assert server.port == wanted
        assert server.get("/api/health").json()["data"]["unavailable_port"] is None
        server.leave()
    server.start()


def test_requested_port_or_next_free_one_is_used(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        server.leave()
        server.env["HOCKET_PORT"] = str(wanted)
        server.start()
        assert server.port in range(wanted + 1, wanted + 101)
        instead = f"port {wanted} is not available: listening on port {server.port} instead"
        assert instead in (server.root / "server.log").read_text()
        hocket = Hocket(server.project, server.env)
        assert f":{server.port}  (port {wanted} was not available" in hocket("server", "status").stdout
        assert status(hocket)["unavailable_port"] == wanted
    server.leave()
    server.start("--port", str(wanted))
    assert server.port == wanted


@pytest.mark.parametrize("port", ["x", "-1", "70000", "1.5"])
def test_invalid_port_is_refused(hocket: Hocket, port: str) -> None:
    refused = hocket("serve", env={"HOCKET_PORT": port})
    assert refused.returncode == 2
    assert "HOCKET_PORT" in refused.stderr


def test_servers_of_two_homes_are_separate() -> None:
    servers = [Server(), Server()]
    try:
        for one in servers:
            assert one.env["HOCKET_PORT"] == "0"
            one.start()
        assert servers[0].port != servers[1].port
        assert servers[0].get("/api/health", token=servers[1].token).status_code == 401
    finally:
        for one in servers:
            one.close()


def test_concurrent_clients_start_one_server(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("hello", "print('hello')")
    clients = [hocket.start("run", "hello", "--json") for _ in range(4)]
    ends = []
    for client in clients:
        out, err = client.communicate(timeout=PATIENCE)
        assert client.returncode == 0, err
        ends.append(json.loads(out.splitlines()[-1]))
    assert {end["type"] for end in ends} == {"run.ended"}
    assert len({end["run"] for end in ends}) == 4
    log = (home / "server.log").read_text()
    assert log.count(" serves ") == 1
    assert status(hocket)["running"] is True


def test_status_starts_no_server(hocket: Hocket, agent: Bin, home: Path) -> None:
    before = status(hocket)
    assert (before["running"], before["pid"], before["home"]) == (False, None, str(home))
    assert not (home / "server.lock").exists()
    agent("hello", "print('hello')")
    hocket("run", "hello")
    now = status(hocket)
    assert set(now) >= {"running", "pid", "socket", "url", "token_file", "version", "runs_live", "home"}
    assert now["running"] is True
    assert port_of(now["url"]) > 0
    assert Path(now["token_file"]).stat().st_mode & 0o777 == 0o600
    assert stat.S_ISSOCK(Path(now["socket"]).stat().st_mode)


def test_home_is_private(server: Server) -> None:
    run = server.ended(server.start_run("echo-args")["id"])
    private = [server.home / name for name in ("token", "secret", "hocket.db", "sock", "server.lock")]
    own = [path for path in Path(run["dir"]).iterdir() if path.is_file()]
    assert len(own) > 3
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (*private, *own)}
    assert set(modes.values()) <= {"0o600", "0o400"}, modes
    assert {oct(path.stat().st_mode & 0o777) for path in (server.home, Path(run["dir"]))} == {"0o700"}


def test_stopped_server_exits_cleanly(server: Server) -> None:
    run = server.start_run("sleeper")
    server.leave()
    assert server.process is not None
    assert server.process.returncode == 0
    assert (server.home / "hocket.db.state").read_text().startswith("closed")
    assert not (server.home / "hocket.db-wal").exists()
    server.start()
    assert server.show(run["id"])["ended_at"] is None


def test_newer_database_is_refused(hocket: Hocket, home: Path, agent: Bin) -> None:
    agent("hello", "print('hello')")
    assert hocket("run", "hello").returncode == 0
    hocket("server", "stop")
    with closing(sqlite3.connect(home / "hocket.db")) as connection:
        connection.execute("INSERT INTO migrations VALUES (999, 'later')")
        connection.commit()
    refused = hocket("serve")
    assert refused.returncode == 2
    assert "newer" in refused.stderr
    os.unlink(home / "hocket.db")
    gone = hocket("serve")
    assert gone.returncode == 2
    assert "missing" in gone.stderr


def test_log_has_start_and_stop_but_no_token(server: Server) -> None:
    server.get("/api/runs", headers={"authorization": f"Bearer {server.token}x"})
    server.leave()
    log = (server.root / "server.log").read_text()
    assert " serves " in log
    assert " stops" in log
    assert server.token not in log
    wait_for(lambda: server.process is not None and server.process.poll() is not None, "its end")


def test_server_stops_when_its_home_is_removed(hocket: Hocket, home: Path) -> None:
    hocket("ps")
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    home.rename(home.with_name("moved"))
    gone = os.pidfd_open(pid)
    try:
        assert select.select([gone], [], [], 15)[0], "it goes on without a home"
    finally:
        os.close(gone)


def test_client_waits_while_server_has_no_descriptor_left(server: Server) -> None:
    assert server.process is not None
    pid = server.process.pid
    _soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    room = len(os.listdir(f"/proc/{pid}/fd")) + 5
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (room, hard))
    with ExitStack() as crowd:
        for _ in range(20):
            last = crowd.enter_context(socket.socket(socket.AF_UNIX))
            last.settimeout(PATIENCE)
            last.connect(server.socket)
        # The server may have had a descriptor open for a moment when they were counted.
        wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) >= room - 2, "the last descriptor")
        late = subprocess.Popen(
            [sys.executable, "-m", "hocket", "ps", "--json"], env=server.env, stdout=subprocess.PIPE, text=True
        )
    with late:
        told, _ = late.communicate(timeout=PATIENCE)
    assert (late.returncode, told) == (0, "[]\n")
    assert server.process.poll() is None
