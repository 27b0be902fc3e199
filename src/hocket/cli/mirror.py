"""A stand-in for a directory and its user: the same folders of definitions in the same places, and nothing else.

The CLI runs what the settings of a folder say as soon as it starts there: hooks, helpers that fetch keys, servers, and
an environment by which any program of theirs does something else. So it is never started in a folder only to be asked a
question. It is started in a copy of the way from the root to that folder, where each folder of definitions is a link to
the real one and no settings are but the choice of plugins. What the CLI writes lands in the copy, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

Choices = Callable[[bytes], bytes | None]
"""Of a settings file what may be taken over."""

CLAUDE_FOLDER = ".claude"
AGENTS = "agents"
_SETTINGS = ("settings.json", "settings.local.json")
_PLUGINS = "plugins"
_MOST = 8 * 1024 * 1024
_RECORDS = "gitdir: "


class Mirror:
    """Everything below ``root``: a path of the real world is the same path there."""

    def __init__(self, root: Path, choices: Choices) -> None:
        self.root = root
        self._choices = choices

    def path(self, real: str) -> Path:
        return self.root / real.lstrip("/")

    def stand_in(self, cwd: str, home: str, config_folder: str) -> None:
        """Make what somebody sees who works in ``cwd`` and lives in ``home``."""
        for folder in _upwards(cwd):
            self._folder(folder)
            self._repository(folder)
        self.path(home).mkdir(parents=True, exist_ok=True)
        self._configuration(config_folder)
        self._plugins(os.path.join(config_folder, _PLUGINS))

    def _folder(self, real: str) -> None:
        self.path(real).mkdir(parents=True, exist_ok=True)
        self._configuration(os.path.join(real, CLAUDE_FOLDER))

    def _configuration(self, real: str) -> None:
        here = self.path(real)
        if os.path.lexists(os.path.join(real, AGENTS)) and not os.path.lexists(here / AGENTS):
            here.mkdir(parents=True, exist_ok=True)
            (here / AGENTS).symlink_to(os.path.join(real, AGENTS))
        for name in _SETTINGS:
            chosen = self._choices(_content(os.path.join(real, name)))
            if chosen is not None:
                here.mkdir(parents=True, exist_ok=True)
                (here / name).write_bytes(chosen)

    def _plugins(self, real: str) -> None:
        """Folders are linked. Files are copied, because they may be written, and a link would be written through."""
        here = self.path(real)
        here.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(real) if os.path.isdir(real) else ():
            path = os.path.join(real, name)
            if os.path.isdir(path):
                (here / name).symlink_to(path)
            else:
                (here / name).write_bytes(_content(path))

    def _repository(self, real: str) -> None:
        """That a repository begins here, and, for a second checkout of one, where the first is."""
        mark = os.path.join(real, ".git")
        if os.path.isdir(mark):
            _make_repository(self.path(mark))
        elif os.path.isfile(mark):
            self._checkout(mark)

    def _checkout(self, mark: str) -> None:
        """A file that says where its repository keeps the records of this checkout; they must say so, too."""
        said = _text(mark)
        records = os.path.normpath(os.path.join(os.path.dirname(mark), said.removeprefix(_RECORDS)))
        if not said.startswith(_RECORDS) or not _is_record_of(records, mark):
            self.path(mark).write_text(said)
            return
        repository = os.path.dirname(os.path.dirname(records))
        _make_repository(self.path(repository))
        kept = self.path(records)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "HEAD").write_text("ref: refs/heads/other\n")
        (kept / "commondir").write_text("../..\n")
        (kept / "gitdir").write_text(f"{self.path(mark)}\n")
        self.path(mark).write_text(f"{_RECORDS}{kept}\n")
        self._folder(os.path.dirname(repository))


def _is_record_of(records: str, mark: str) -> bool:
    """Whether these are the records of the checkout with this mark, whose name may begin where they lie."""
    named = _text(os.path.join(records, "gitdir"))
    return _real(os.path.join(records, named)) == _real(mark)


def _real(path: str) -> str | None:
    try:
        return os.path.realpath(path)
    except ValueError:  # nothing can be called so
        return None


def _make_repository(here: Path) -> None:
    """As little as a program takes for a repository; none of the real one's configuration."""
    for name in ("objects", "refs"):
        (here / name).mkdir(parents=True, exist_ok=True)
    (here / "HEAD").write_text("ref: refs/heads/main\n")


def _upwards(folder: str) -> Iterator[str]:
    yield folder
    while (above := os.path.dirname(folder)) != folder:
        yield above
        folder = above


def _content(path: str) -> bytes:
    """At most so much, and nothing for what cannot be read."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(_MOST)
    except OSError:
        return b""


def _text(path: str) -> str:
    return _content(path).decode(errors="replace").strip()
