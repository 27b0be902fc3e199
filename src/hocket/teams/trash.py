"""Moves the folders of a team out of its CLI's directory into a folder of Hocket's. Not for the event loop.

Nothing is deleted that was not copied before, no link is followed, and nothing but a direct child of the folder of all
teams, or of that of all their tasks, is touched.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hocket.errors import Conflict
from hocket.keeper import files, platform
from hocket.providers.base import TeamConfig, TeamFolders, Teams

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CONFIG_LIMIT = 16 * 1024 * 1024
_CHUNK = 1024 * 1024
_UNFINISHED = ".unfinished"


def check_team(teams: Teams, folders: TeamFolders, team: str, session: str) -> None:
    """Raise unless a team is that of a session, as its files say, and no process leads it any more."""
    if not teams.is_name(team):
        raise Conflict(f"not the name of a team: {team[:100]!r}")
    config = _config(teams, folders, team)
    if config is not None and config.session != session:
        raise Conflict(f"team {team} belongs to another session now", "its folders are left alone")
    if config is None or config.pid is None or config.started is None:
        return
    if platform.start_time(config.pid, living=True) == config.started:
        raise Conflict(f"process {config.pid} still leads team {team}", "end that process first")


def _config(teams: Teams, folders: TeamFolders, team: str) -> TeamConfig | None:
    """The configuration of a team; None if it is gone."""
    path = os.path.join(folders.teams, team, teams.config_file)
    if not os.path.lexists(path):
        return None
    with _opened(folders.teams) as outer, _opened(team, outer) as folder:
        content = files.read_regular(teams.config_file, _CONFIG_LIMIT, folder=folder)
    config = teams.config(team, content) if content is not None else None
    if config is None:
        raise Conflict(f"the configuration of team {team} is not readable: {path}", "its folders are left alone")
    return config


def existing(teams: Teams | None, folders: TeamFolders, team: str, session: str) -> list[str]:
    """The folders of a team that are there; none if its name is that of another session's team now."""
    if teams is None or not teams.is_name(team):
        return []
    with suppress(OSError, Conflict):
        config = _config(teams, folders, team)
        if config is not None and config.session != session:
            return []
    return [path for path in (os.path.join(parent, team) for parent in folders) if _is_folder(path)]


def _is_folder(path: str) -> bool:
    """Whether this is a real folder, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def move_team(folders: TeamFolders, team: str, trash: str) -> list[str]:
    """Move what is there of a team into a folder; return where it was, that of an interrupted move included."""
    os.makedirs(trash, 0o700, exist_ok=True)
    moved = []
    for parent, name in zip(folders, TeamFolders._fields, strict=True):
        target = os.path.join(trash, name)
        if _move(parent, team, target) or _is_folder(target):
            moved.append(os.path.join(parent, team))
    return moved


@contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, _FOLDER, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _move(parent: str, name: str, target: str) -> bool:
    """Move a real folder; False if there is none."""
    try:
        with _opened(parent) as outer, _opened(name, outer) as folder:
            before = os.fstat(folder)
            target = _free(target)
            try:
                os.rename(name, target, src_dir_fd=outer)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy(folder, target)
                shutil.rmtree(name, dir_fd=outer)
                return True
            if not files.is_same(target, before):
                os.rename(target, name, dst_dir_fd=outer)  # Another folder has taken its place meanwhile.
                raise Conflict(f"{os.path.join(parent, name)} was replaced while it was moved")
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return False
        raise


def _free(target: str) -> str:
    """The target, or one beside it if an earlier team with the same name has it."""
    number, free = 1, target
    while os.path.lexists(free):
        number += 1
        free = f"{target}-{number}"
    return free


# --- To another file system ---------------------------------------------------------------------------------


def _copy(folder: int, target: str) -> None:
    """Copy a folder with everything in it; links are copied as links, and devices and pipes left out."""
    unfinished = target + _UNFINISHED
    with suppress(FileNotFoundError):
        shutil.rmtree(unfinished)
    for path, folders, names, here in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        place = os.path.normpath(os.path.join(unfinished, path))
        os.mkdir(place, 0o700)
        for name in (*names, *(one for one in folders if _is_link(one, here))):
            _copy_file(name, here, os.path.join(place, name))
    os.rename(unfinished, target)


def _is_link(name: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _copy_file(name: str, folder: int, target: str) -> None:
    if _is_link(name, folder):
        os.symlink(os.readlink(name, dir_fd=folder), target)
        return
    try:
        source = files.open_regular(name, folder=folder)
    except files.NotRegularError:
        return
    with os.fdopen(source, "rb") as reading, open(target, "xb") as writing:
        shutil.copyfileobj(reading, writing, _CHUNK)
