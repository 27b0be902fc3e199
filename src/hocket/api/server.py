"""The server process: one per HOCKET_HOME, safe to kill at any moment.

Only the holder of ``server.lock`` opens the database and binds the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from hocket import __version__, config
from hocket.api.app import build
from hocket.api.guard import AccessPolicy, Guard, tcp_policy
from hocket.api.mcp import in_stream
from hocket.api.tcp import TcpProtocol
from hocket.catalog.default_agents import seed
from hocket.config.loading import load
from hocket.engine import Engine
from hocket.errors import HocketError, UsageError
from hocket.keeper.machine_restart import ended_by_restart
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.sessions.home import DATABASE, PORT, SECRET, TOKEN, describe_holder, lay_out_program, secret_of
from hocket.sessions.limits import Reserve
from hocket.store import open_store

DEFAULT_PORT = 7420
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PORTS_TRIED = 100
SETTLE_SECONDS = 5.0
HOME_CHECK_EVERY = 5.0
RESERVE_CHECK_EVERY = 5.0

log = logging.getLogger("hocket")


def serve(home: Path, lock: int, port: int | None, host: str, allow_remote: bool) -> int:
    """Run a server in the foreground until it is stopped; the caller holds the lock of its home."""
    if host not in LOOPBACK and not allow_remote:
        raise UsageError(
            f"{host} is reachable from other machines",
            "Add --allow-remote to listen there, and put TLS in front of it: the token is sent unencrypted",
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Its warnings are about malformed requests, which any program on this machine can send without end.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    _seed(home)
    asyncio.run(_serve(home, lock, port, host))
    return 0


def _seed(home: Path) -> None:
    """Write the default agents and the program. Without them the server still works, so a full disk is no error."""
    try:
        seed(home)
        lay_out_program(home, sys.executable)
    except OSError as error:
        log.warning("cannot write the default agents: %s", error)


async def _serve(home: Path, lock: int, port: int | None, host: str) -> None:
    settings = load(str(home), str(home))
    token, secret = secret_of(home, TOKEN), secret_of(home, SECRET).encode()
    unix_path = config.socket_path(str(home))
    tcp, unavailable_port = _bind_tcp(home, host, config.requested_port() if port is None else port)
    bound_port = tcp.getsockname()[1]
    url = f"http://[{host}]:{bound_port}" if ":" in host else f"http://{host}:{bound_port}"
    reserve = Reserve(home)
    store = open_store(home / DATABASE, make_room=reserve.make_room)
    unix = _bind_unix(unix_path)  # before there are threads, because it changes the umask
    engine = Engine(home, unix_path, secret, store, settings.limits)
    engine.idle_after = settings.idle_after
    engine.open()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    app = build(engine, _health(home, unix_path, url, unavailable_port, engine), stopping.set)
    engine.stream_mcp.open(in_stream(app))
    tcp_access = tcp_policy(bound_port, token, *([] if host in LOOPBACK else [host, socket.gethostname().lower()]))
    describe_holder(lock, socket=unix_path, url=url)
    listeners = [(unix, AccessPolicy(None, token)), (tcp, tcp_access)]
    log.info("hocket %s serves %s on %s and %s", __version__, home, unix_path, url)
    watching = [asyncio.create_task(_stop_with(home, lock, stopping)), asyncio.create_task(_keep_reserve(reserve))]
    await _settle(engine)
    await _listen(app, listeners, engine, stopping)
    for task in watching:
        task.cancel()
    await engine.close()


async def _settle(engine: Engine) -> None:
    """Wait until runs that ended with a restart of the machine are recorded as ended, so that none is shown as live."""
    live = (run for run in engine.live() if run.has_process)
    ended = [run for run in live if ended_by_restart(str(engine.directory(run)))]
    if ended:
        await asyncio.wait([asyncio.create_task(engine.wait(run)) for run in ended], timeout=SETTLE_SECONDS)


async def _stop_with(home: Path, lock: int, stopping: asyncio.Event) -> None:
    """Stop when the home was removed or replaced: no client could reach this server any more."""
    ours = os.fstat(lock).st_ino
    while not stopping.is_set():
        await asyncio.sleep(HOME_CHECK_EVERY)
        with contextlib.suppress(FileNotFoundError):
            if (home / SERVER_LOCK).stat().st_ino == ours:
                continue
        log.info("%s no longer exists", home)
        stopping.set()


async def _keep_reserve(reserve: Reserve) -> None:
    """Create the reserve, and again after it was used, as soon as there is space."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(reserve.make)
        await asyncio.sleep(RESERVE_CHECK_EVERY)


async def _listen(
    app: ASGIApp, listeners: list[tuple[socket.socket, AccessPolicy]], engine: Engine, stopping: asyncio.Event
) -> None:
    servers = [_Http(Guard(app, policy, engine.run_of_token), policy, stopping) for _, policy in listeners]
    tasks = [
        asyncio.create_task(server.serve(sockets=[listening]))
        for server, (listening, _) in zip(servers, listeners, strict=True)
    ]
    await stopping.wait()
    log.info("hocket stops; %d runs continue", engine.count)
    engine.end_followers()
    await asyncio.gather(*tasks)


class _Http(uvicorn.Server):
    """uvicorn on one socket, without its signal handlers."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                proxy_headers=False,
                http="h11" if policy.hosts is None else TcpProtocol,
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Tick once a second, for the Date header; uvicorn would wake ten times as often to check for its end."""
        ticking = asyncio.create_task(self._tick())
        await self._stopping.wait()
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await self.on_tick(0)
            await asyncio.sleep(1.0)


def _health(
    home: Path, unix_path: str, url: str, unavailable_port: int | None, engine: Engine
) -> Callable[[], dict[str, Any]]:
    began = time.time()

    def health() -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "runs_live": engine.count,
            "home": str(home),
            "socket": unix_path,
            "url": url,
            "unavailable_port": unavailable_port,
            "token_file": str(home / TOKEN),
            "started_at": began,
            "environment": config.program_places(),
        }

    return health


def _bind_unix(path: str) -> socket.socket:
    """Bind the unix socket. The holder of the lock may unlink an old one."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        listening.bind(path)
    finally:
        os.umask(before)
    listening.listen(512)
    return listening


def _bind_tcp(home: Path, host: str, requested: int | None) -> tuple[socket.socket, int | None]:
    """Bind the requested port, or the previous one, or the default; the next free one if it is taken.

    Returns as well the port that should have been bound and could not be.
    """
    kept = home / PORT
    before = _kept_port(kept)
    candidates = _candidates(requested, before)
    for port in candidates:
        listening = _try_port(host, port)
        if listening is not None:
            chosen = listening.getsockname()[1]
            if chosen != before:
                with contextlib.suppress(OSError):
                    kept.write_text(f"{chosen}\n")
            if port == candidates[0]:
                return listening, None
            log.warning("port %d is not available: listening on port %d instead", candidates[0], chosen)
            return listening, candidates[0]
    raise HocketError("no free port found", "Set HOCKET_PORT=0 to use any")


def _candidates(requested: int | None, kept: int | None) -> list[int]:
    if requested == 0:
        return [kept, 0] if kept else [0]
    first = requested or kept or DEFAULT_PORT
    return [*range(first, min(first + _PORTS_TRIED, 65536)), 0]


def _try_port(host: str, port: int) -> socket.socket | None:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise HocketError(f"cannot listen on {host}: {error.strerror}") from error
    return listening


def _kept_port(path: Path) -> int | None:
    try:
        port = int(path.read_text())
    except (OSError, ValueError):
        return None
    return port if 0 < port < 65536 else None
