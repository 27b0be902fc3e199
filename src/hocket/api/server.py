"""The server process: one per HOCKET_HOME, safe to kill at any moment.

Whoever holds ``server.lock`` may open the database and bind the socket; nobody else even tries.
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
from msgspec import Struct
from starlette.types import ASGIApp

from hocket import __version__, config
from hocket.api.app import build
from hocket.api.guard import Door, Guard, tcp_door
from hocket.api.mcp import in_stream
from hocket.api.tcp import TcpProtocol
from hocket.catalog.default_agents import seed
from hocket.config.loading import load
from hocket.engine import Engine
from hocket.errors import HocketError, UsageError
from hocket.keeper.machine_restart import ended_by_restart
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.model import Kind
from hocket.sessions.disk_reserve import Reserve
from hocket.sessions.home import DATABASE, PORT, SECRET, TOKEN, describe_holder, lay_out_program, secret_of
from hocket.sessions.limits import Limits
from hocket.store import open_store

DEFAULT_PORT = 7420
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PORTS_TRIED = 100
SETTLE_SECONDS = 5.0
HOME_CHECK_EVERY = 5.0
RESERVE_CHECK_EVERY = 5.0

log = logging.getLogger("hocket")


class Address(Struct, frozen=True):
    """Where a server listens."""

    host: str
    port: int
    socket: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def serve(home: Path, lock: int, port: int | None, host: str, allow_remote: bool) -> int:
    """Run a server in the foreground until it is told to go, for whoever holds the lock of this home."""
    if host not in LOOPBACK and not allow_remote:
        raise UsageError(
            f"{host} is reachable from other machines",
            "Add --allow-remote if that is meant, and put TLS in front of it: the token travels in the clear",
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Its warnings are about requests that are no HTTP, which any program on this machine can send without end.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    _seed(home)
    asyncio.run(_serve(home, lock, port, host))
    return 0


def _seed(home: Path) -> None:
    """A server without what comes along is still one, so a disk that is full now is no reason not to start."""
    try:
        seed(home)
        lay_out_program(home, sys.executable)
    except OSError as error:
        log.warning("what comes with Hocket could not be written: %s", error)


async def _serve(home: Path, lock: int, port: int | None, host: str) -> None:
    settings = load(str(home), str(home)).limits
    limits = Limits(
        settings.depth,
        settings.children,
        settings.leaves,
        settings.min_free_mb * 1024**2,
        settings.estimate_usd_per_mtok,
    )
    token, secret = secret_of(home, TOKEN), secret_of(home, SECRET).encode()
    unix_path = config.socket_path(str(home))
    tcp = _bind_tcp(home, host, config.requested_port() if port is None else port)
    address = Address(host, tcp.getsockname()[1], unix_path)
    reserve = Reserve(home)
    store = open_store(home / DATABASE, make_room=reserve.make_room)
    inside = _bind_unix(unix_path)  # Before there are threads: it needs another umask for a moment.
    engine = Engine(home, unix_path, secret, store, limits)
    engine.open()
    leaving = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leaving.set)
    app = build(engine, _health(home, address, engine), leaving.set)
    engine.stream_mcp.open(in_stream(app))
    outside = tcp_door(address.port, token, *([] if host in LOOPBACK else [host, socket.gethostname().lower()]))
    describe_holder(lock, socket=unix_path, url=address.url)
    doors = [(inside, Door(None, token)), (tcp, outside)]
    log.info("hocket %s serves %s on %s and %s", __version__, home, unix_path, address.url)
    watching = [asyncio.create_task(_leave_with(home, lock, leaving)), asyncio.create_task(_keep_reserve(reserve))]
    await _settle(engine)
    await _listen(app, doors, engine, leaving)
    for task in watching:
        task.cancel()
    await engine.close()


async def _settle(engine: Engine) -> None:
    """Nobody is told of a run as live that ended with the machine, unless finding out takes long."""
    live = (run for run in engine.live() if run.kind is Kind.LEAF)
    ended = [run for run in live if ended_by_restart(str(engine.directory(run)))]
    if ended:
        await asyncio.wait([asyncio.create_task(engine.wait(run)) for run in ended], timeout=SETTLE_SECONDS)


async def _leave_with(home: Path, lock: int, leaving: asyncio.Event) -> None:
    """A home that was removed, or replaced by another, has no use for us, and nobody could reach us to say so."""
    ours = os.fstat(lock).st_ino
    while not leaving.is_set():
        await asyncio.sleep(HOME_CHECK_EVERY)
        with contextlib.suppress(FileNotFoundError):
            if (home / SERVER_LOCK).stat().st_ino == ours:
                continue
        log.info("%s is gone", home)
        leaving.set()


async def _keep_reserve(reserve: Reserve) -> None:
    """Make the reserve, and again whenever it was used and there is room for it."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(reserve.make)
        await asyncio.sleep(RESERVE_CHECK_EVERY)


async def _listen(
    app: ASGIApp, doors: list[tuple[socket.socket, Door]], engine: Engine, leaving: asyncio.Event
) -> None:
    servers = [_Http(Guard(app, door, engine.run_of_token), door, leaving) for _, door in doors]
    tasks = [
        asyncio.create_task(server.serve(sockets=[listening]))
        for server, (listening, _) in zip(servers, doors, strict=True)
    ]
    await leaving.wait()
    log.info("hocket leaves; %d runs live on", engine.count)
    engine.leave()
    await asyncio.gather(*tasks)


class _Http(uvicorn.Server):
    """uvicorn behind one door, with the signals left to us."""

    def __init__(self, app: ASGIApp, door: Door, leaving: asyncio.Event) -> None:
        self._leaving = leaving
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                proxy_headers=False,
                http="h11" if door.hosts is None else TcpProtocol,
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """For the date that answers carry once a second is enough; to see that it is time to go it need not wake."""
        ticking = asyncio.create_task(self._tick())
        await self._leaving.wait()
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await self.on_tick(0)
            await asyncio.sleep(1.0)


def _health(home: Path, address: Address, engine: Engine) -> Callable[[], dict[str, Any]]:
    began = time.time()

    def health() -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "runs_live": engine.count,
            "home": str(home),
            "socket": address.socket,
            "url": address.url,
            "token_file": str(home / TOKEN),
            "started_at": began,
            "environment": config.program_places(),
        }

    return health


def _bind_unix(path: str) -> socket.socket:
    """Ours to unlink, because we hold the lock."""
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


def _bind_tcp(home: Path, host: str, wanted: int | None) -> socket.socket:
    """The port asked for, or the one chosen before, or the default; the next free one if it is taken."""
    kept = home / PORT
    before = _kept_port(kept)
    for port in _candidates(wanted, before):
        listening = _try_port(host, port)
        if listening is not None:
            chosen = listening.getsockname()[1]
            if chosen != before:
                with contextlib.suppress(OSError):
                    kept.write_text(f"{chosen}\n")
            return listening
    raise HocketError("no free port was found", "Set HOCKET_PORT=0 to take any")


def _candidates(wanted: int | None, kept: int | None) -> list[int]:
    if wanted == 0:
        return [kept, 0] if kept else [0]
    first = wanted or kept or DEFAULT_PORT
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
