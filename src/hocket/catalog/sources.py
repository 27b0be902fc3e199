"""The folders whose definitions count in a directory: the administrator's, the projects', the user's own, the library.

Each source is one function that looks and says what was there. Which of several definitions of a name wins is decided
in ``discovery``; aliases, plugins and Hocket's own configs are found elsewhere.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hocket.catalog.entries import GLOBAL, HIDDEN, LIBRARY, MANAGED, PROJECT, REFUSED, Found, Place, Problem, Scan
from hocket.catalog.file_probe import Look, normal
from hocket.catalog.files import Environ, find_name, name_for_claude, printable, project_folder, scan, users_folder

MANAGED_FOLDER = "/etc/claude-code/.claude/agents"
_MAX_POINTER = 4096
"""Of the small files by which git finds its way."""


def managed(look: Look, folder: str = MANAGED_FOLDER) -> list[Found]:
    """What the administrator of the machine gives to everybody."""
    return [_found(look, MANAGED, folder)]


def projects(look: Look, cwd: str, env: Environ) -> list[Found]:
    """What the projects around a directory have, the nearest first."""
    users = users_folder(cwd, env)
    own = normal(users) if users else None
    around = _surroundings(look, cwd, env)
    above = _above(look, around.above)
    folders = [(project_folder(root), root) for root in (*around.roots, *above.roots)]
    if around.in_repository and not look.exists(folders[-1][0]):
        main = _main_checkout(look, folders[-1][1])
        folders += [(project_folder(main), folders[-1][1])] if main else []
    found = [_found(look, PROJECT, folder, root) for folder, root in folders if normal(folder) != own]
    return _with_problems(found, above.problems) if above.problems and found else found


def users(look: Look, cwd: str, env: Environ) -> list[Found]:
    """What the user has for every project. Nothing when the environment does not say who that is."""
    folder = users_folder(cwd, env)
    return [_found(look, GLOBAL, folder)] if folder else []


def library(look: Look, cwd: str, env: Environ) -> list[Found]:
    """What lies in stock beside the user's own definitions. The CLI knows nothing of it."""
    folder = users_folder(cwd, env)
    return [_found(look, LIBRARY, f"{folder}-library")] if folder else []


# --- Around a directory -------------------------------------------------------------------------------------


class _Surroundings(NamedTuple):
    roots: list[str]
    """Folders whose definitions count, the nearest first."""
    in_repository: bool
    above: list[str]
    """Outside of a repository, the folders above, whose definitions the CLI takes as well."""


def project_roots(look: Look, cwd: str, env: Environ) -> list[str]:
    """The folders of the project that a directory belongs to, the nearest first: up to its repository's root."""
    return _surroundings(look, cwd, env).roots


def main_root(look: Look, cwd: str, env: Environ) -> str | None:
    """The root of the repository that a directory belongs to; of a worktree, that of the repository's own folder."""
    around = _surroundings(look, cwd, env)
    return _main_checkout(look, around.roots[-1]) or around.roots[-1] if around.in_repository else None


def _surroundings(look: Look, cwd: str, env: Environ) -> _Surroundings:
    """What there is around a directory, which is where it really is, as for the CLI.

    Outside of a repository only the directory itself is the project. The user's home and what is above it are nobody's.
    """
    cwd = normal(cwd)
    home = normal(env["HOME"]) if env.get("HOME") else None
    if cwd == home:
        return _Surroundings([], False, [])
    folders, folder = [cwd], cwd
    while not (is_root := look.exists(os.path.join(folder, ".git"))):
        parent = os.path.dirname(folder)
        if parent in (folder, home):
            break
        folder = parent
        folders.append(folder)
    within = is_root or _is_below_a_repository(look, folder)
    return _Surroundings(folders, is_root, []) if within else _Surroundings([cwd], False, folders[1:])


class _Above(NamedTuple):
    roots: list[str]
    """Folders whose definitions count though they belong to no project."""
    problems: list[Problem]


def _above(look: Look, folders: list[str]) -> _Above:
    """What counts of the folders above a directory outside of a repository, the nearest first.

    What somebody else left in a shared parent such as the temporary directory must not decide what runs. So it goes up
    only as far as the folders are the user's alone; and only where there is something, because a busy folder that is
    looked at makes every result an old one.
    """
    filled = [folder for folder in folders if look.exists(project_folder(folder))]
    way = folders[: folders.index(filled[-1]) + 1] if filled else []
    stop = next((number for number, folder in enumerate(way) if not _is_the_users_alone(look, folder)), len(way))
    problems = [_left_out(folder, way[stop]) for folder in way[stop:] if folder in filled]
    return _Above(way[:stop], problems)


def _is_the_users_alone(look: Look, folder: str) -> bool:
    found = look.stat(folder)
    return found is not None and found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_below_a_repository(look: Look, folder: str) -> bool:
    """Whether a folder is part of a repository whose root is further up, where nothing is looked for any more."""
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        if look.exists(os.path.join(folder, ".git")):
            return True
    return False


def _main_checkout(look: Look, root: str) -> str | None:
    """The repository's own folder, for a worktree of it: the CLI takes the definitions there for missing ones."""
    git = os.path.join(root, ".git")
    found = _words_in(look, git)
    administration = os.path.join(root, found.removeprefix("gitdir:").strip()) if found.startswith("gitdir:") else None
    if administration is None:
        return None
    back, common = (_words_in(look, os.path.join(administration, name)) for name in ("gitdir", "commondir"))
    if not (back and common) or normal(os.path.join(administration, back)) != normal(git):
        return None
    repository = normal(os.path.join(administration, common))
    return os.path.dirname(repository) if os.path.basename(repository) == ".git" else None


def _words_in(look: Look, path: str) -> str:
    content = look.content(path, _MAX_POINTER)
    return os.fsdecode(content).strip() if isinstance(content, bytes) else ""


# --- Looking ------------------------------------------------------------------------------------------------


def _left_out(folder: str, shared: str) -> Problem:
    reason = f"belongs to no repository, and others than the user can write to {printable(shared)}"
    return Problem(project_folder(folder), None, reason, True, HIDDEN)


def _with_problems(found: list[Found], more: list[Problem]) -> list[Found]:
    nearest = found[0]
    return [nearest._replace(scan=nearest.scan._replace(problems=(*nearest.scan.problems, *more))), *found[1:]]


def _found(look: Look, source: str, folder: str, project: str | None = None) -> Found:
    found = look.stat(folder)
    if found is None:
        return Found(Place(source, folder, False, 0))
    if not stat.S_ISDIR(found.st_mode):
        problem = Problem(folder, None, "is not a directory", False, REFUSED)
        return Found(Place(source, folder, False, 0), Scan((), (problem,)))
    scanned = scan(look, folder, source, project)
    return Found(Place(source, folder, True, len(scanned.entries)), scanned)


# --- One folder ---------------------------------------------------------------------------------------------


def names_in(folder: str) -> list[str]:
    """Every name that means a definition in this folder."""
    return sorted(entry.name for entry in scan(Look(), folder, PROJECT).entries)


def name_at(path: str) -> str | None:
    """What the CLI calls the agent of a file, whether we would take it or not; None when that cannot be told."""
    return name_for_claude(Look(), path)


def find_in(folder: str, name: str) -> str | None:
    """The file below a folder whose head gives this name, exactly as it is written there."""
    return find_name(Look(), folder, name)
