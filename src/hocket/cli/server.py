"""``serve``, and the background server seen from outside: ``server status`` and ``stop`` never start one."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.usage import FLAG, JSON, PORT, Group, Option, command
from hocket.client.startup import lock_held, read_lock, wait_unlocked
from hocket.errors import HocketError, ServerUnreachable

LEAVING_SECONDS = 30.0
ASK_AGAIN_SECONDS = 1.0


@command(
    Option("--port", kind=PORT, metavar="N", help="Loopback port; 0 takes any free one."),
    Option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on."),
    Option("--allow-remote", kind=FLAG, help="Permit an address that other machines can reach."),
    examples=("hocket serve", "hocket serve --port 0"),
)
def serve(port: int | None, host: str, allow_remote: bool) -> int:
    """Run the server in the foreground. Commands start one in the background when they need it."""
    from pathlib import Path

    from hocket.sessions.home import locked, prepare

    home = Path(config.home())
    prepare(home)
    # Before anything heavy is imported: when many clients start a server at once, all but one end here.
    with locked(home) as lock:
        from hocket.api.server import serve as serve_here

        return serve_here(home, lock, port, host, allow_remote)


def status_of(home: str) -> dict[str, Any]:
    """What is known about the server of a home, from its lock and from itself."""
    found: dict[str, Any] = {
        "running": lock_held(home),
        "pid": None,
        "socket": config.socket_path(home),
        "url": None,
        "token_file": None,
        "version": None,
        "runs_live": None,
        "home": home,
    }
    if not found["running"]:
        return found
    found |= {name: value for name, value in read_lock(home).items() if name in found}
    try:
        health = access.connect(starting=False).request("GET", "/api/health")
    except HocketError as error:
        return {**found, "error": error.message}
    return found | {name: value for name, value in health.items() if name in found}


@command(JSON, examples=("hocket server status --json",))
def status(as_json: bool) -> None:
    """Say whether a server is running, and where."""
    found = status_of(config.home())
    if as_json:
        access.write_json(found)
    elif not found["running"]:
        access.write("not running; the next command that needs it starts it\n")
    else:
        access.write(
            f"running  pid {found['pid']}  version {found['version']}  live runs {found['runs_live']}\n"
            f"socket   {found['socket']}\nurl      {found['url']}\nhome     {found['home']}\n"
        )
    if "error" in found and not as_json:
        print(f"hocket: it does not answer: {found['error']}", file=sys.stderr)


@command(JSON, examples=("hocket server stop",))
def stop(as_json: bool) -> None:
    """Stop the server. Its runs go on, and the next server takes them over."""
    home = config.home()
    was = lock_held(home)
    holder = read_lock(home) if was else {}
    pid = holder.get("pid")
    deadline = time.monotonic() + LEAVING_SECONDS
    while was:
        _ask_to_leave()
        if _is_gone(home, holder, ASK_AGAIN_SECONDS):
            break
        if time.monotonic() > deadline:
            raise HocketError(f"the server (pid {pid}) does not leave", "look into server.log in HOCKET_HOME")
    if as_json:
        access.write_json({"stopped": was, "pid": pid})
    else:
        access.write(f"stopped  pid {pid}\n" if was else "no server was running\n")


def _ask_to_leave() -> None:
    try:
        access.connect(starting=False).request("POST", "/api/server/stop", {})
    except ServerUnreachable:
        return  # it went before it could answer, or has only begun to come up


def _is_gone(home: str, holder: dict[str, Any], seconds: float) -> bool:
    """Waits so long for it. The process counts: somebody may have started another server, which has the lock by now."""
    from hocket.keeper.platform import wait_gone

    if "start_time" in holder:
        return wait_gone({holder["pid"]: holder["start_time"]}, seconds)
    return wait_unlocked(home, seconds)


server = Group(
    "Look at the background server, or stop it. Runs live on without it.",
    {"status": status, "stop": stop},
    "hocket server status",
    "hocket server stop",
)
