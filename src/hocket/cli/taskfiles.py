"""Files of tasks: attachments, and tasks written out and taken over, one file each, in the form that HTTP has too.

What is in such a file is for the server to judge; here it is only found, read and written whole or not at all.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from hocket.cli import access
from hocket.cli.usage import ArgumentError
from hocket.client import Client
from hocket.errors import BadDirectory, HocketError, UsageError
from hocket.input_limits import MAX_ATTACHMENT
from hocket.views.text import one_line, strip_controls

TASK_FILE, ATTACHMENTS = "task.json", "attachments"
MAX_TASK_FILE = 64 * 1024 * 1024

Download = Callable[..., bytes]
"""The bytes of ``(task, "attachments", name)``."""


# --- Attachments --------------------------------------------------------------------------------------------


def attach(client: Client, route: str, path: str, name: str | None) -> dict[str, Any]:
    """Send one file along; what the server says of it."""
    body = {
        "filename": name or os.path.basename(os.path.abspath(path)),
        "content": _base64(_read(path, MAX_ATTACHMENT)),
    }
    made: dict[str, Any] = client.request("POST", route, body)
    return made


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def give_back(content: bytes, output: str | None) -> None:
    """The bytes of an attachment, into a file or to standard output."""
    if output in (None, "-"):
        if output is None and sys.stdout.isatty():
            raise ArgumentError("refusing to write a file to a terminal: give -o FILE, or -o - to print it anyway")
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_whole(str(output), content)


def _read(path: str, most: int, *, through_links: bool = True) -> bytes:
    """A plain file whole; anything else, a pipe or a device, would have no end."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if through_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path!r} is no plain file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"{path!r} is larger than {most // 2**20} MB")
    return content


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whoever looks and whatever happens."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name[:100]}.{os.urandom(6).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadDirectory(f"{path!r} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise BadDirectory(f"{path!r} cannot be written: {error.strerror}") from error


# --- Writing tasks out --------------------------------------------------------------------------------------


def spelled(task: dict[str, Any]) -> str:
    """A task as its file has it."""
    return json.dumps(task, ensure_ascii=False, indent=2) + "\n"


def export(task: dict[str, Any], folder: str, download: Download) -> str:
    """Write one task below a folder; the path of its file. That one comes last: with it, all of the task is there."""
    place = os.path.join(folder, _segment(task["id"]))
    files = os.path.join(place, ATTACHMENTS)
    try:
        os.makedirs(files if task["attachments"] else place, exist_ok=True)
    except OSError as error:
        raise BadDirectory(f"{place!r} cannot be made: {error.strerror}") from error
    for one in task["attachments"]:
        content = download(task["id"], ATTACHMENTS, one["name"])
        write_whole(os.path.join(files, _segment(one["name"])), content)
    path = os.path.join(place, TASK_FILE)
    write_whole(path, spelled(task).encode(errors="backslashreplace"))
    return path


def _segment(name: object) -> str:
    """A name that stays within its folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UsageError(f"{str(name)[:80]!r} cannot be the name of a file")
    return name


# --- Taking tasks over --------------------------------------------------------------------------------------


def take_over(client: Client, places: tuple[str, ...], as_json: bool) -> int:
    """Every task that is found there. One that is refused is told with its file and keeps no other from coming."""
    taken: list[dict[str, Any]] = []
    code = 0
    for path in [path for place in places for path in task_files(place)]:
        try:
            task = _take(client, path)
        except HocketError as error:
            print(f"hocket: {one_line(path)}: {strip_controls(error.message)}", file=sys.stderr)
            code = 2
            continue
        taken.append(task)
        if not as_json:
            access.write(f"task {task['number']}\n")
            _tell_left(access.snake_keys(task), client)
    if as_json:
        access.write_json(taken)
    return code


def _tell_left(task: dict[str, Any], client: Client) -> None:
    """What stayed where the task came from, and what waits for somebody here."""
    away = sum(one["elsewhere"] and one["run"] is not None for one in task["agent_chain"])
    if away:
        runs = "its run" if away == 1 else f"its {away} runs"
        print(f"hocket: {runs} stayed where the task was; what came of them is in its records", file=sys.stderr)
    waiting = len(client.request("GET", f"/api/tasks/{task['id']}/queue")["items"])
    if waiting:
        hint = f'hocket handoff {task["number"]} AGENT "PROMPT"'
        print(f"hocket: {waiting} queued, which waits until you hand it over: {hint}", file=sys.stderr)


def task_files(place: str) -> list[str]:
    """The files of tasks that a path stands for: itself, that of one folder, or those of all folders in it."""
    if not os.path.isdir(place):
        return [place]
    own = os.path.join(place, TASK_FILE)
    if os.path.exists(own):
        return [own]
    names = sorted(os.listdir(place))
    below = [path for name in names if os.path.exists(path := os.path.join(place, name, TASK_FILE))]
    found = below or [os.path.join(place, name) for name in names if name.endswith(".json") and name[0] != "."]
    if not found:
        raise UsageError(f"there is no task in {place!r}", "a task's file is DIR/ID/task.json, or DIR/NAME.json")
    return found


def _take(client: Client, path: str) -> dict[str, Any]:
    content = parsed(_read(path, MAX_TASK_FILE))
    task: dict[str, Any] = client.request("POST", "/api/tasks/import", {"task": content})
    return _with_files(client, task, content.get("attachments"), os.path.join(os.path.dirname(path), ATTACHMENTS))


def parsed(content: bytes) -> dict[str, Any]:
    """The object that a file has in it."""
    try:
        value = json.loads(content)
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise UsageError("is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"line {error.lineno}: is no JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise UsageError("is no JSON object")
    return value


def _with_files(client: Client, task: dict[str, Any], named: object, folder: str) -> dict[str, Any]:
    """The task with the attachments that lie beside its file."""
    names = [_segment(one.get("name")) for one in named if isinstance(one, dict)] if isinstance(named, list) else []
    route = f"/api/tasks/{task['id']}/{ATTACHMENTS}"
    for name in names:
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            body = {"filename": name, "content": _base64(_read(path, MAX_ATTACHMENT, through_links=False))}
            client.request("POST", route, body)
        else:
            print(f"hocket: {one_line(path)} is not there, so {task['id']} is without it", file=sys.stderr)
    if not names:
        return task
    found: dict[str, Any] = client.request("GET", f"/api/tasks/{task['id']}")
    return found
