"""Reading files and prompts with size limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from hocket.config import MAX_PROMPT
from hocket.errors import HocketError, PromptError


def read_bounded(path: str, limit: int, kind: type[HocketError]) -> bytes | None:
    """Return the content of a regular file, or None if it does not exist; raise ``kind`` for anything else."""
    try:
        # Without O_NONBLOCK, opening a FIFO without a writer would block.
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


class PromptLevel(NamedTuple):
    """A prompt given at one level of precedence, as text or as a file."""

    text: str | None = None
    file: str | None = None
    project: str | None = None
    """The folder whose configuration names the file, and that must contain it; None if the user names it."""


def choose_prompt(levels: Iterable[PromptLevel]) -> PromptLevel:
    """Return the first level that has a non-empty prompt; within a level the text wins over the file."""
    for level in levels:
        if level.text:
            return PromptLevel(text=level.text)
        if level.file:
            return PromptLevel(file=level.file, project=level.project)
    return PromptLevel()


def is_inside(path: str, folder: str) -> bool:
    """True if a path, with links resolved, is a folder or inside it."""
    return f"{os.path.realpath(path)}/".startswith(os.path.realpath(folder).rstrip("/") + "/")


def read_prompt(file: str, cwd: str, project: str | None = None) -> str:
    """Return the text of a prompt file, which is relative to the working directory.

    ``project`` is the folder whose configuration names the file: a clone must not choose which of the user's files an
    agent reads.
    """
    path = os.path.join(cwd, file)
    if project is not None and "\0" not in path:
        if not is_inside(path, project):
            raise PromptError(
                f"the prompt file {path} is outside of {project}, whose configuration names it{_target(path)}",
                "name it with --prompt-file or in your own config.toml; a project names only files of its own",
            )
        path = os.path.realpath(path)
    content = read_bounded(path, MAX_PROMPT, PromptError)
    if content is None:
        raise PromptError(f"the prompt file {path} does not exist")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file {path} is not valid UTF-8 (byte {error.start})") from error


def _target(path: str) -> str:
    real = os.path.realpath(path)
    return "" if real == os.path.normpath(path) else f" (it links to {real})"
