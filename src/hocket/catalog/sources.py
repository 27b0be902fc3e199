"""The folders whose definitions count in a directory: the machine's, the projects', the user's, the library."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hocket.catalog.entries import GLOBAL, LIBRARY, MANAGED, PROJECT, Found, Problem
from hocket.catalog.file_probe import FileProbe, real_path
from hocket.catalog.files import Environ, printable, scan
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import HIDDEN

_MAX_POINTER = 4096
"""Bytes of the files in which git stores paths."""


def managed(look: FileProbe, folder: str = DEFINITIONS.managed_folder) -> list[Found]:
    """Search the machine's own definitions."""
    return [scan(look, folder, MANAGED)]


def projects(look: FileProbe, cwd: str, env: Environ) -> list[Found]:
    """Search the projects around a directory, the nearest first."""
    user_folder = DEFINITIONS.user_folder(cwd, env)
    own = real_path(user_folder) if user_folder else None
    around = _surroundings(look, cwd, env)
    above, problems = _above(look, around.above)
    folders = [(DEFINITIONS.project_folder(root), root) for root in (*around.roots, *above)]
    if around.in_repository and not look.exists(folders[-1][0]):
        main = _main_checkout(look, folders[-1][1])
        folders += [(DEFINITIONS.project_folder(main), folders[-1][1])] if main else []
    found = [scan(look, folder, PROJECT, root) for folder, root in folders if real_path(folder) != own]
    if found:
        found[0] = found[0]._replace(problems=(*found[0].problems, *problems))
    return found


def users(look: FileProbe, cwd: str, env: Environ) -> list[Found]:
    """Search the user's own definitions. None if the environment names no user."""
    folder = DEFINITIONS.user_folder(cwd, env)
    return [scan(look, folder, GLOBAL)] if folder else []


def library(look: FileProbe, cwd: str, env: Environ) -> list[Found]:
    """Search the library beside the user's own definitions, which the CLI does not know."""
    folder = DEFINITIONS.user_folder(cwd, env)
    return [scan(look, f"{folder}-library", LIBRARY)] if folder else []


# --- Around a directory -------------------------------------------------------------------------------------


class _Surroundings(NamedTuple):
    roots: list[str]
    """Folders of the project, the nearest first."""
    in_repository: bool
    above: list[str]
    """Outside of a repository, the folders above, whose definitions the CLI reads too."""


def project_roots(look: FileProbe, cwd: str, env: Environ) -> list[str]:
    """Return the folders of a directory's project, the nearest first, up to the repository's root."""
    return _surroundings(look, cwd, env).roots


def main_root(look: FileProbe, cwd: str, env: Environ) -> str | None:
    """Return the root of a directory's repository; for a worktree, of the main working tree."""
    around = _surroundings(look, cwd, env)
    return _main_checkout(look, around.roots[-1]) or around.roots[-1] if around.in_repository else None


def _surroundings(look: FileProbe, cwd: str, env: Environ) -> _Surroundings:
    """Find the project around the real path of a directory.

    Outside of a repository only the directory itself is the project. The user's home and what is above it are not
    part of any.
    """
    cwd = real_path(cwd)
    home = real_path(env["HOME"]) if env.get("HOME") else None
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


def _above(look: FileProbe, folders: list[str]) -> tuple[list[str], list[Problem]]:
    """Return the folders above a directory outside of a repository whose definitions count, the nearest first.

    Files of others in a shared parent such as the temporary directory must not decide what runs, so the search ends
    at the first folder that others can write to. Folders without definitions are not examined further, because every
    examined folder can invalidate a catalog.
    """
    filled = [folder for folder in folders if look.exists(DEFINITIONS.project_folder(folder))]
    way = folders[: folders.index(filled[-1]) + 1] if filled else []
    stop = next((number for number, folder in enumerate(way) if not _is_private(look, folder)), len(way))
    return way[:stop], [_shared_problem(folder, way[stop]) for folder in way[stop:] if folder in filled]


def _is_private(look: FileProbe, folder: str) -> bool:
    found = look.stat(folder)
    return found is not None and found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_below_a_repository(look: FileProbe, folder: str) -> bool:
    """True if the repository's root is further up, where no definitions are searched."""
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        if look.exists(os.path.join(folder, ".git")):
            return True
    return False


def _main_checkout(look: FileProbe, root: str) -> str | None:
    """Return the main working tree for a worktree: the CLI uses the definitions there if the worktree has none."""
    git = os.path.join(root, ".git")
    found = _words_in(look, git)
    administration = os.path.join(root, found.removeprefix("gitdir:").strip()) if found.startswith("gitdir:") else None
    if administration is None:
        return None
    back, common = (_words_in(look, os.path.join(administration, name)) for name in ("gitdir", "commondir"))
    if not (back and common) or real_path(os.path.join(administration, back)) != real_path(git):
        return None
    repository = real_path(os.path.join(administration, common))
    return os.path.dirname(repository) if os.path.basename(repository) == ".git" else None


def _words_in(look: FileProbe, path: str) -> str:
    content = look.content(path, _MAX_POINTER)
    return os.fsdecode(content).strip() if isinstance(content, bytes) else ""


def _shared_problem(folder: str, shared: str) -> Problem:
    reason = f"is ignored: it is outside of a repository, and other users can write to {printable(shared)}"
    return Problem(DEFINITIONS.project_folder(folder), None, reason, True, HIDDEN)
