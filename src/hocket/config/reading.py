"""Reading a file that somebody else wrote, with bounds; and a prompt, from wherever one is given."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from hocket.config import MAX_PROMPT, Record
from hocket.errors import HocketError, PromptError


def read_bounded(path: str, limit: int, kind: type[HocketError]) -> bytes | None:
    """A regular file's bytes, or None when it does not exist; anything else is an error of the given kind."""
    try:
        # Without O_NONBLOCK, opening a FIFO that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise kind(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise kind(f"cannot read {path}: it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise kind(f"{path} is larger than {limit // 1024} KiB")
    return content


class PromptLevel(Record):
    """One place that may give a prompt: as a text, or as the name of a file."""

    text: str | None = None
    file: str | None = None
    project: str | None = None
    """The folder whose own configuration names the file, and that the file must lie in; None for the user's word."""


def choose_prompt(levels: Iterable[PromptLevel]) -> PromptLevel:
    """The first level that gives a prompt, its text before its file. An empty prompt is none."""
    for level in levels:
        if level.text:
            return PromptLevel(text=level.text)
        if level.file:
            return PromptLevel(file=level.file, project=level.project)
    return PromptLevel()


def is_inside(path: str, folder: str) -> bool:
    """Whether a path leads to a folder or to something in it, links followed."""
    return f"{os.path.realpath(path)}/".startswith(os.path.realpath(folder).rstrip("/") + "/")


def read_prompt(file: str, cwd: str, project: str | None = None) -> str:
    """The text of a prompt file, whose name is relative to the directory that the work is done in.

    ``project`` is the folder whose own configuration names it: a clone must not choose which of the user's files an
    agent is given.
    """
    path = os.path.join(cwd, file)
    if project is not None and "\0" not in path:
        if not is_inside(path, project):
            raise PromptError(
                f"the prompt file {path} is outside of {project}, whose own configuration names it{_target(path)}",
                "name it with --prompt-file or in your own config.toml; a project names only files of its own",
            )
        path = os.path.realpath(path)
    content = read_bounded(path, MAX_PROMPT, PromptError)
    if content is None:
        raise PromptError(f"the prompt file {path} does not exist")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file {path} is not UTF-8 text (byte {error.start})") from error


def _target(path: str) -> str:
    real = os.path.realpath(path)
    return "" if real == os.path.normpath(path) else f" (it leads to {real})"
