"""One word beside the database: whether it is ``open`` or was ``closed`` in order.

A database that was open when its process died has a write-ahead log. If the word is ``open`` and the log is not there,
somebody removed it, and the newest records with it.
"""

from __future__ import annotations

from pathlib import Path


def _file(path: Path) -> Path:
    return path.with_name(path.name + ".state")


def say(path: Path, word: str) -> None:
    """Written by rename, so that it is one word or the other."""
    beside = _file(path)
    temporary = beside.with_name(beside.name + ".new")
    temporary.write_text(word)
    temporary.replace(beside)


def said(path: Path) -> str | None:
    """The word, or ``None`` where there was never a database."""
    try:
        return _file(path).read_text().strip()
    except FileNotFoundError:
        return None
