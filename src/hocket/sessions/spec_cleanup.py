"""Removing the values of secret variables from `spec.json` files that an earlier version wrote.

Done once in the life of a home, in the background. A keeper reads its `spec.json`
before it starts its agent and never again, so the file of a live run is rewritten only after that.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

from hocket.keeper import files
from hocket.secret_files import FOLDER, make_folder, secret_part, sync_directory, write_durably
from hocket.store import task_files

log = logging.getLogger("hocket")

DONE = ".specs-are-clean"
"""In the folder of secrets, once no `spec.json` holds a value."""
_RETRY = 5.0


def is_due(home: Path) -> bool:
    return not (home / FOLDER / DONE).exists()


def begin(home: Path) -> None:
    """Have the files of all tasks written anew, which held what queued items get of the environment."""
    try:
        task_files.forget_mark(home)
    except OSError as error:
        log.warning("the files of tasks may hold values of secret variables: %s", error)


async def clean_specs(home: Path, is_live: Callable[[str], bool]) -> None:
    """Go through all run directories until none has a value in its `spec.json`, then note that."""
    left = await asyncio.to_thread(lambda: list((home / "runs").glob("*/*")))
    while left:
        left = [path for path in left if not await asyncio.to_thread(_clean, path, is_live(path.name))]
        if left:
            await asyncio.sleep(_RETRY)
    await asyncio.to_thread(_note_done, home)


def _clean(path: Path, lives: bool) -> bool:
    """Rewrite the `spec.json` of a run; False while a keeper may still have to read it."""
    try:
        return _remove_values(str(path), lives)
    except (OSError, ValueError) as error:
        log.warning("%s may hold values of secret variables: %s", path / files.SPEC, error)
        return True


def _remove_values(directory: str, lives: bool) -> bool:
    spec = files.read_spec(directory)
    env = spec.get("env") if spec is not None else None
    if spec is None or not isinstance(env, dict):
        return True
    # An agent can have written anything into the file of its run.
    secrets = secret_part({name: value for name, value in env.items() if isinstance(value, str)})
    if not secrets:
        return True
    if lives and files.read_pid(directory) is None and files.read_exit(directory) is None:
        return False
    names = {name: 0 for name in secrets if not name.startswith("HOCKET_")}
    known = spec.get("secrets")
    spec["env"] = {name: value for name, value in env.items() if name not in secrets}
    spec["secrets"] = {**names, **known} if isinstance(known, dict) else names
    write_durably(Path(directory, files.SPEC), json.dumps(spec, separators=(",", ":")).encode() + b"\n")
    return True


def _note_done(home: Path) -> None:
    folder = home / FOLDER
    try:
        make_folder(folder)
        (folder / DONE).touch(mode=0o600)
        sync_directory(folder)
    except OSError as error:
        log.warning("the next server looks through all run directories again: %s", error)
