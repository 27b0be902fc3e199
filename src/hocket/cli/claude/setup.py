"""``hocket setup claude``: the hook in the user's own settings of Claude.

The only place that writes to the user's files of Claude, and only on request.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress

from hocket import config
from hocket.cli import access
from hocket.cli.usage import FLAG, JSON, ArgumentError, Option, command
from hocket.config.reading import read_bounded
from hocket.errors import ConfigError, Conflict, NotTrusted, UsageError
from hocket.providers.claude.settings_file import with_hook, without_hook
from hocket.views.text import strip_controls

MAX_SETTINGS = 1024 * 1024
DECLINED = 1
HOOK = (sys.executable, "-P", "-m", "hocket", "hook", "pre-tool-use")


@command(
    Option("--write", kind=FLAG, help="Add the hook to your settings, once you have confirmed the change."),
    Option("--undo", kind=FLAG, help="Remove what was added, once you have confirmed the change."),
    Option("-y", "--yes", kind=FLAG, help="Change the file without asking."),
    JSON,
    examples=("hocket setup claude", "hocket setup claude --write", "hocket setup claude --undo --yes"),
)
def claude(write: bool, undo: bool, yes: bool, as_json: bool) -> int:
    """Let sub-agents of your own Claude sessions become runs, where "delegate" in a configuration asks for it.

    Prints the change of your settings.json, and makes it only with --write.
    """
    if write and undo:
        raise ArgumentError("give --write or --undo, not both")
    if (write or undo) and config.caller().run:
        raise UsageError("an agent cannot change your Claude settings", "run this in your own terminal")
    path = os.path.join(access.directory(None), config.claude_directory(), "settings.json")
    before = _read(path)
    after = _without(before, path) if undo else with_hook(before, path, HOOK)
    difference, is_changed = _difference(path, before, after), False
    if not as_json:
        access.write(difference)
    if before != after and (write or undo):
        if not yes and not access.can_ask(as_json):
            raise NotTrusted(f"{path} is changed only when you confirm it", "review the change, then give --yes")
        if not yes and not access.confirm(f"Change {path}?"):
            return DECLINED
        _replace(path, before, after)
        is_changed = True
    if as_json:
        access.write_json({"path": path, "changed": is_changed, "diff": difference})
    else:
        _report(path, write or undo, before == after, undo)
    return 0


def _report(path: str, is_request: bool, is_same: bool, undo: bool) -> None:
    if is_same:
        print(f"hocket: {path} {'has no hook of Hocket' if undo else 'has the hook already'}", file=sys.stderr)
    elif is_request:
        print(f"hocket: changed {path}", file=sys.stderr)
    else:
        print("hint: to make this change: hocket setup claude --write", file=sys.stderr)
    if not undo:
        print("hint: to add the tools to wait for runs: claude mcp add hocket -- hocket mcp", file=sys.stderr)


def _difference(path: str, before: str | None, after: str | None) -> str:
    from difflib import unified_diff

    old, new = ((text or "").splitlines(keepends=True) for text in (before, after))
    lines = (line if line.endswith("\n") else f"{line}\n" for line in unified_diff(old, new, path, path))
    return strip_controls("".join(lines))


def _without(before: str | None, path: str) -> str | None:
    if before is None:
        return None
    text, is_empty = without_hook(before, path)
    return None if is_empty else text


# --- The file -----------------------------------------------------------------------------------------------


def _read(path: str) -> str | None:
    """Return the text of the settings; None without a file. Raises for a link or any other kind of file."""
    if os.path.islink(path):
        raise ConfigError(
            f"{path} is a symbolic link to {os.readlink(path)}, which Hocket does not replace",
            "add the hook to that file yourself; to see it: CLAUDE_CONFIG_DIR=/tmp hocket setup claude",
        )
    raw = read_bounded(path, MAX_SETTINGS, ConfigError)
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not valid UTF-8 (byte {error.start})", "correct it; nothing was changed"
        ) from error


def _replace(path: str, before: str | None, after: str | None) -> None:
    """Replace the file in one step, with its mode kept, unless it has changed since it was read."""
    temporary = f"{path}.hocket-{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        mode = stat.S_IMODE(os.stat(path).st_mode) if before is not None else 0o600
        if after is not None:
            _write(temporary, after, mode)
        if _read(path) != before:
            raise Conflict(f"{path} was changed meanwhile", "try again")
        os.replace(temporary, path) if after is not None else os.unlink(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _write(path: str, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
