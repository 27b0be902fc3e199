"""What has changed in a directory since a recorded start, by git, or without it by the times of its files.

Nothing is written below the directory: git gets a temporary copy of the index, in which unknown files are noted, so
that they appear as additions. External diff programs, text conversions and pagers are off. Functions here block: call
them from a thread.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hocket.errors import Conflict, HocketError, NotFound
from hocket.keeper.programs import ToolResult
from hocket.workflows.directory_state import MOST_ENTRIES, walk
from hocket.workflows.git import Git, error_text, text_of

RECORD_SECONDS = 2.0
"""For the status of a directory at a start, which waits for it."""
MOST_RECORDED = 200
"""Uncommitted paths that are recorded at a start. With more, none of them can be told apart."""
DIFF_SECONDS = 60.0
MOST_TEXT = 8 * 1024**2
MOST_UNKNOWN = 10_000
NAMED = 5

_DIFF = (
    *("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--submodule=short"),
    *("--relative", "--find-renames"),
)
_STATUSES = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "C": "copied", "T": "modified"}
CHANGED = "changed"
"""The status of a file that is known only by its time."""
_OFF = frozenset({"never", "false", "off", "no", "0"})


# --- The state at a start -----------------------------------------------------------------------------------


class DirectoryStart(NamedTuple):
    """The state of a directory when a run began."""

    directory: str
    top: str | None = None
    """Its repository's working tree; None if it was in none."""
    head: str | None = None
    """The commit; None if there was none yet."""
    changed: dict[str, str] | None = None
    """What was uncommitted, by path from the directory: mode, size and time, empty if missing. None if unknown."""
    why: str | None = None
    """Why nothing was recorded."""


def record_start(directory: str, git: Git) -> DirectoryStart:
    """The state of a directory before a run begins in it. In a folder without a repository no process is started."""
    real = os.path.realpath(directory)
    top = repository_above(real)
    start = DirectoryStart(directory, top)
    if top is None:
        return start
    try:
        args = ("--porcelain=v2", "--branch", "--no-renames", "--", ".")
        result = git.status(real, *args, patience=RECORD_SECONDS)
        if result.code == 0 and not result.timed_out:
            return _start_of_status(start, real, result)
        if result.timed_out and (head := git.commit(real, "HEAD")) is not None:
            return start._replace(head=head)
        return start._replace(why=error_text(result))
    except HocketError as error:
        return start._replace(why=error.message)


def repository_above(directory: str) -> str | None:
    """The nearest folder with a ``.git``: the directory itself, or one above it."""
    while not os.path.lexists(os.path.join(directory, ".git")):
        directory, before = os.path.dirname(directory), directory
        if directory == before:
            return None
    return directory


def _start_of_status(start: DirectoryStart, real: str, result: ToolResult) -> DirectoryStart:
    head, paths = None, []
    for entry in text_of(result).split("\0"):
        if entry.startswith("# branch.oid "):
            head = entry.removeprefix("# branch.oid ")
        elif entry[:2] in ("1 ", "u ", "? "):
            paths.append(entry.split(" ", {"1": 8, "u": 10, "?": 1}[entry[0]])[-1])
    top = start.top or "/"
    changed = {os.path.relpath(os.path.join(top, path), real): state_of(os.path.join(top, path)) for path in paths}
    head = None if head == "(initial)" else head
    is_text = all(path.isprintable() for path in changed)  # An event holds no half characters.
    return start._replace(head=head, changed=changed if is_text and len(changed) <= MOST_RECORDED else None)


def state_of(path: str) -> str:
    """Mode, size and modification time of a file, without reading it; empty if it is missing."""
    try:
        about = os.lstat(path)
    except OSError:
        return ""
    return f"{about.st_mode:o} {about.st_size} {about.st_mtime_ns}"


# --- Changes ------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """How the changes are to be shown."""

    text: str = "none"
    """``patch``, ``stat`` or ``none``."""
    colour: bool = False
    columns: int = 80


@dataclass(frozen=True, slots=True)
class DirectoryChanges:
    """What has changed in one directory."""

    directory: str
    base: str | None = None
    """The commit that it is compared with."""
    head: str | None = None
    """The commit that is compared; None for the files as they are."""
    by: str = "git"
    """``git`` or ``times``."""
    files: tuple[dict[str, Any], ...] = ()
    text: str | None = None
    notes: tuple[str, ...] = field(default=())
    """What cannot be told apart or is left out, in words."""


def changes_since(start: DirectoryStart, since: float, until: float | None, git: Git, form: Form) -> DirectoryChanges:
    """What has changed in a directory since a run began; ``until`` is when that run ended.

    ``HocketError`` when it cannot be told.
    """
    if not os.path.isdir(start.directory):
        raise NotFound(f"{start.directory} does not exist any more")
    if start.why is not None:
        raise Conflict(f"the state of {start.directory} is not known from before the run: {start.why}")
    if start.top is None:
        return _with_late_changes(_changes_by_times(start.directory, since), until)
    left_out = [path for path, state in (start.changed or {}).items() if _is_as_before(start, path, state)]
    found = _changes_by_git(start.directory, start.head, git, form, left_out)
    found = _with_uncommitted(found, start, set(left_out))
    return _with_late_changes(found, until)


def changes_of_worktree(path: str, base: str, until: float | None, git: Git, form: Form) -> DirectoryChanges:
    """What has changed in a worktree since it was created."""
    return _with_late_changes(_changes_by_git(path, base, git, form, ()), until)


def changes_of_commits(repository: str, base: str, head: str, git: Git, form: Form) -> DirectoryChanges:
    """What the commits of a worktree changed that is gone."""
    for commit in (base, head):
        if git.commit(repository, commit) is None:
            raise NotFound(f"commit {commit[:12]} no longer exists in {repository}")
    with tempfile.TemporaryDirectory(prefix="hocket-diff-") as folder:
        differ = _Differ(git, repository, (base, head), (), folder, None)
        return DirectoryChanges(repository, base, head, files=differ.files(), text=differ.text(form))


def _is_as_before(start: DirectoryStart, path: str, state: str) -> bool:
    return state_of(os.path.join(start.directory, path)) == state


def _changes_by_git(
    directory: str, base: str | None, git: Git, form: Form, left_out: Sequence[str]
) -> DirectoryChanges:
    top = git(directory, "rev-parse", "--show-toplevel")
    if top.code != 0:
        raise NotFound(f"{directory} is no longer in a git repository: {error_text(top)}")
    if base is None:
        base = text_of(git(directory, "hash-object", "-t", "tree", "--stdin")).strip()  # The empty tree.
    elif git.commit(directory, base) is None:
        raise NotFound(f"commit {base[:12]}, with which it began, no longer exists in {directory}")
    with tempfile.TemporaryDirectory(prefix="hocket-diff-") as folder:
        index, notes = _temporary_index(directory, git, folder, left_out)
        outside = (".", *(f":(exclude,literal){path}" for path in left_out))
        differ = _Differ(git, directory, (base,), outside, folder, index)
        return DirectoryChanges(directory, base, files=differ.files(), text=differ.text(form), notes=tuple(notes))


def _temporary_index(directory: str, git: Git, folder: str, left_out: Collection[str]) -> tuple[str, list[str]]:
    """A copy of the index in which unknown files are noted as to be added, and what is missing from it, in words."""
    index = os.path.join(folder, "index")
    place = text_of(_expect(git(directory, "rev-parse", "--git-path", "index"))).removesuffix("\n")
    with suppress(FileNotFoundError):
        shutil.copyfile(os.path.join(directory, place), index)
    listed = git(directory, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", patience=DIFF_SECONDS)
    paths = [path for path in text_of(_expect(listed)).split("\0") if path and path not in left_out]
    inner = [path for path in paths if path.endswith("/")]
    unknown = [path for path in paths if not path.endswith("/")]
    notes = [f"not looked into, because they are repositories of their own: {named(inner)}"] if inner else []
    if len(unknown) > MOST_UNKNOWN:
        notes.append(f"only {MOST_UNKNOWN} of {len(unknown)} untracked files are included")
    if unknown:
        given = "\0".join(unknown[:MOST_UNKNOWN]).encode(errors="surrogateescape")
        args = ("add", "--intent-to-add", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul")
        git(directory, "--literal-pathspecs", *args, patience=DIFF_SECONDS, stdin=given, index=index)
    return index, notes


class _Differ(NamedTuple):
    """``git diff`` of the same things, in several forms."""

    git: Git
    directory: str
    commits: tuple[str, ...]
    paths: tuple[str, ...]
    folder: str
    index_file: str | None

    def files(self) -> tuple[dict[str, Any], ...]:
        return tuple(_files(self._read("--raw", "--numstat", "-z")))

    def text(self, form: Form) -> str | None:
        if form.text == "none":
            return None
        shape = [f"--stat={form.columns}"] if form.text == "stat" else ["--patch"]
        colour = "always" if form.colour and self._allows_colour() else "never"
        return self._read(*shape, f"--color={colour}")

    def _read(self, *options: str) -> str:
        # By way of a file, because the output of git has its warnings as well.
        path = os.path.join(self.folder, "diff")
        args = ("diff", *_DIFF, *options, f"--output={path}", *self.commits, "--", *self.paths)
        _expect(self.git(self.directory, *args, patience=DIFF_SECONDS, index=self.index_file))
        with open(path, "rb") as file:
            content = file.read(MOST_TEXT + 1)
        if len(content) > MOST_TEXT:
            raise Conflict(f"the changes in {self.directory} are more than {MOST_TEXT // 1024**2} MB", "try --stat")
        return content.decode(errors="surrogateescape" if "-z" in options else "replace")

    def _allows_colour(self) -> bool:
        for name in ("color.diff", "color.ui"):
            value = text_of(self.git(self.directory, "config", "--get", name)).strip()
            if value:
                return value.lower() not in _OFF
        return True


def _expect(result: ToolResult) -> ToolResult:
    if result.code != 0 or result.timed_out:
        raise Conflict(f"git cannot tell what has changed: {error_text(result)}")
    return result


def _files(listed: str) -> Iterator[dict[str, Any]]:
    """The files of a raw list, which is followed by one with numbers."""
    words = iter(listed.split("\0")[:-1])
    known: dict[str, dict[str, Any]] = {}
    for word in words:
        if word.startswith(":"):
            letter = word.rpartition(" ")[2][:1]
            old = next(words) if letter in "RC" else None
            path = next(words)
            known[path] = {"path": path, "old_path": old, "status": _STATUSES.get(letter, "modified")}
        else:
            added, removed, path = word.split("\t", 2)
            if not path:  # A renamed file has both of its names after it.
                next(words)
                path = next(words)
            counts = [None if count == "-" else int(count) for count in (added, removed)]
            yield {**known[path], "additions": counts[0], "deletions": counts[1], "uncommitted_before": False}


# --- What cannot be told apart ------------------------------------------------------------------------------


def _with_uncommitted(found: DirectoryChanges, start: DirectoryStart, left_out: set[str]) -> DirectoryChanges:
    """The changes, with remarks about what was uncommitted before."""
    if start.changed is None:
        text = "uncommitted changes from before the run, if there were any, are included"
        return replace(found, notes=(*found.notes, text))
    before = start.changed.keys() - left_out
    names = {name for file in found.files for name in (file["path"], file["old_path"])}
    files = tuple(
        {**file, "uncommitted_before": bool({file["path"], file["old_path"]} & before)} for file in found.files
    )
    texts = {
        "left out, uncommitted before the run and unchanged since": left_out,
        "not separable, uncommitted before the run and changed since": before & names,
        "uncommitted before the run, and as in the commit since": before - names,
    }
    notes = [f"{text}: {named(sorted(paths))}" for text, paths in texts.items() if paths]
    return replace(found, files=files, notes=(*found.notes, *notes))


def _with_late_changes(found: DirectoryChanges, until: float | None) -> DirectoryChanges:
    """The changes, with a remark about those that are later than the run's end."""
    if until is None:
        return found
    late = [file["path"] for file in found.files if _time_of(os.path.join(found.directory, file["path"])) > until]
    notes = (f"changed after the run had ended: {named(late)}",) if late else ()
    return replace(found, notes=(*found.notes, *notes))


def _time_of(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def named(paths: Sequence[str]) -> str:
    """``a, b and 3 more``."""
    return ", ".join(paths[:NAMED]) + (f" and {len(paths) - NAMED} more" if len(paths) > NAMED else "")


# --- Without git --------------------------------------------------------------------------------------------


def _changes_by_times(directory: str, since: float) -> DirectoryChanges:
    """The files that were modified since then, generated ones excepted."""
    found: list[str] = []
    notes = ["no git repository: files by their modification time, without deleted ones"]
    for count, path in enumerate(walk(os.fsencode(directory))):
        if count >= MOST_ENTRIES:
            notes.append(f"only {MOST_ENTRIES} files were examined")
            break
        name = os.fsdecode(path)
        if _time_of(name) >= since:
            found.append(os.path.relpath(name, directory))
    counts = {"additions": None, "deletions": None, "uncommitted_before": False}
    files = tuple({"path": path, "old_path": None, "status": CHANGED, **counts} for path in sorted(found))
    return DirectoryChanges(directory, by="times", files=files, notes=tuple(notes))
