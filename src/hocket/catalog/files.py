"""Folders with definitions: which paths name one, what lies below it, and what is to be said about each file there.

Knows how the CLI walks and what it takes for a definition; nothing about which folders count where, which is the
business of ``sources``, nor about what a name means in the end.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from hocket.catalog.entries import (
    DUPLICATE,
    HIDDEN,
    LIBRARY,
    LINKED,
    REFUSED,
    RENAMED,
    RESCUED,
    SKIPPED,
    Entry,
    Problem,
    Scan,
)
from hocket.catalog.fields import complaint, entry_of, odd_fields, shown, with_defaults
from hocket.catalog.frontmatter import Fault, Head, gist, parse
from hocket.catalog.look import Look, kind_of
from hocket.catalog.names import address_of, is_address
from hocket.errors import BadDirectory, UsageError
from hocket.written import is_text

MAX_FILES = 10_000
"""Files and folders looked at below one folder: more than anybody has, and an end to a strange one."""
MAX_FILE_OF_CLAUDE = 1024 * 1024
"""As measured: the CLI reads files up to here, which is further than we do."""
AGENTS = "/.claude/agents/"
"""What stands between a project and the name of its agent in a path."""
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Environ = Mapping[str, str]


# --- Paths that name an agent -------------------------------------------------------------------------------


def is_claude_agent_path(path: str) -> bool:
    """Whether a path names a Claude agent, in whatever way it is spelled."""
    return AGENTS in path or AGENTS in os.path.normpath(path)


def parse_claude_path(path: str) -> tuple[str, str] | None:
    """The project and the agent's name that an absolute path stands for; None when it stands for neither.

    The last ``/.claude/agents/`` counts. What follows it must be one simple name, with or without ``.md``: anything
    else is an error rather than a program, because such a path is never executed.
    """
    spelled = _last_match(_without_dots(path)) or _last_match(os.path.normpath(path))
    if spelled is None:
        return None
    project, rest = spelled
    name = rest.removesuffix(".md")
    if not _SIMPLE_NAME.fullmatch(name):
        raise UsageError(
            f"{path} does not name a Claude agent: {rest!r} is not a simple name",
            "write it as PROJECT/.claude/agents/NAME, the name made of letters, digits, - and _",
        )
    return project or "/", name


def _without_dots(path: str) -> str:
    """The path with no needless dots and slashes, but with its ``..``, which may lead elsewhere behind a link."""
    plain = "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
    return plain + "/" if path.endswith("/") else plain


def _last_match(path: str) -> tuple[str, str] | None:
    project, separator, rest = path.rpartition(AGENTS)
    return (project, rest) if separator and not rest.startswith("../") else None


def check_project(project: str) -> str:
    """The project's directory, spelled as plainly as can be. Raises when there is none."""
    if not os.path.isdir(project):
        problem = "is not a directory" if os.path.exists(project) else "does not exist"
        raise BadDirectory(f"the project directory {project} {problem}")
    return plainly(project)


def plainly(path: str) -> str:
    """A path without needless dots and slashes; links stay, unless ``..`` leads elsewhere behind one."""
    plain, real = os.path.normpath(path), os.path.realpath(path)
    return plain if os.path.realpath(plain) == real else real


def users_folder(cwd: str, env: Environ) -> str | None:
    """Where the user's own definitions lie; None when the environment does not say who the user is."""
    moved, home = env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")
    if moved:
        return os.path.normpath(os.path.join(cwd, moved, "agents"))
    return os.path.join(home, ".claude", "agents") if home else None


def project_folder(project: str) -> str:
    return os.path.join(project, ".claude", "agents")


# --- Walking ------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A file that may be a definition, and where it leads if it is a link."""

    path: str
    target: str | None = None

    def problem(self, fault: Fault, kind: str | None = None, *, claude_loads: bool = False) -> Problem:
        reason = f"{fault.reason} (a link to {printable(self.target)})" if self.target else fault.reason
        return Problem(printable(self.path), fault.line, reason, claude_loads, kind or fault.kind)


def printable(path: str) -> str:
    """A path that can be written down: bytes of it that are no text are replaced."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def walk(look: Look, folder: str, problems: list[Problem]) -> Iterator[Candidate]:
    """Files below a folder that may be definitions, those near to it first, in a fixed order, links followed.

    Each folder is entered once, and by a link only if it is not there by itself. What stands in the way is added to
    the problems.
    """
    waiting, linked = deque([folder]), deque[str]()
    entered, count = set[tuple[int, int]](), 0
    while waiting or linked:
        current = waiting.popleft() if waiting else linked.popleft()
        for entry in _enter(look, current, entered, problems):
            count += 1
            if count > MAX_FILES:
                reason = f"has more than {MAX_FILES} files and folders below it, and the rest is not looked at"
                problems.append(Problem(printable(folder), None, reason, True, REFUSED))
                return
            kind = _kind(look, entry, problems)
            if kind is _FOLDER:
                (linked if entry.is_symlink() else waiting).append(entry.path)
            elif kind is _FILE:
                yield Candidate(entry.path, os.path.realpath(entry.path) if entry.is_symlink() else None)


_FOLDER, _FILE, _NOTHING = "folder", "file", "nothing"


def _enter(look: Look, folder: str, entered: set[tuple[int, int]], problems: list[Problem]) -> list[os.DirEntry[str]]:
    found = look.stat(folder)
    if found is None or (found.st_dev, found.st_ino) in entered:
        return []
    entered.add((found.st_dev, found.st_ino))
    entries = look.listing(folder)
    if isinstance(entries, Fault):
        problems.append(Problem(printable(folder), None, entries.reason, False, REFUSED))
        return []
    return entries


def _kind(look: Look, entry: os.DirEntry[str], problems: list[Problem]) -> str:
    """What to do with an entry of a folder; a problem where it is not what it seems to be."""
    is_definition = _is_definition_name(entry.name)
    if entry.is_symlink():
        look.stat(entry.path)  # what it leads to may come to be, or become something else
    if not is_text(entry.name):
        if is_definition or _is(entry, os.DirEntry.is_dir):
            problems.append(Problem(printable(entry.path), None, "its file name is not UTF-8", False, REFUSED))
        return _NOTHING
    if _is(entry, os.DirEntry.is_dir):
        problems.extend(_about_folder(entry, is_definition))
        return _FOLDER
    if not is_definition:
        return _NOTHING
    if _is(entry, os.DirEntry.is_file):
        return _FILE
    found = look.stat(entry.path)
    reason = f"is {kind_of(found.st_mode)}, not a file" if found else "is a link that leads nowhere"
    target = os.path.realpath(entry.path) if entry.is_symlink() and found else None
    problems.append(Candidate(entry.path, target).problem(Fault(1, reason, REFUSED)))
    return _NOTHING


def _about_folder(entry: os.DirEntry[str], is_definition: bool) -> Iterator[Problem]:
    if entry.is_symlink():
        yield link_problem(entry.path)
    if is_definition:
        yield Problem(entry.path, None, "is a directory, not a file", False, SKIPPED)


def link_problem(path: str) -> Problem:
    return Problem(path, None, f"is a link to {printable(os.path.realpath(path))}", True, LINKED)


def _is(entry: os.DirEntry[str], test: Callable[[os.DirEntry[str]], bool]) -> bool:
    try:
        return test(entry)
    except OSError:  # a link in a circle
        return False


def _is_definition_name(name: str) -> bool:
    return name.endswith(".md") or (".md" in name and _is_retired(name))


def _is_retired(path: str) -> bool:
    return ".deprecated" in os.path.basename(path)


# --- Judging ------------------------------------------------------------------------------------------------


def scan(look: Look, folder: str, source: str, project: str | None = None) -> Scan:
    """Every definition below a folder, and what is to be said about all other files there."""
    problems: list[Problem] = [link_problem(folder)] if os.path.islink(folder) else []
    entries: dict[str, Entry] = {}
    for candidate in walk(look, folder, problems):
        head = _judge(look, candidate, problems, named_by_file=source == LIBRARY)
        if head is None:
            continue
        entry = entry_of(head, candidate.path, source, project)
        first = entries.setdefault(entry.name, entry)
        problems.extend(_remarks(candidate, head) if first is entry else [_again(candidate, head, first)])
    if source == LIBRARY:  # of which the CLI knows nothing, whatever is in it
        problems = [replace(problem, claude_loads=False) for problem in problems]
    return Scan(tuple(entries.values()), tuple(sorted(problems, key=lambda problem: (problem.path, problem.line or 0))))


def find_name(look: Look, folder: str, name: str) -> str | None:
    """The file of the definition that has this name, exactly as it is written there."""
    wanted = name.encode()
    for candidate in walk(look, folder, []):
        if _is_retired(candidate.path):
            continue
        content = look.head(candidate.path)
        # Most files need no parsing: a name that is not escaped stands in its head as it is.
        if isinstance(content, bytes) and (wanted in content or b"\\" in content):
            head = _usable(content)
            if isinstance(head, Head) and head.values["name"] == name:
                return candidate.path
    return None


def _judge(look: Look, candidate: Candidate, problems: list[Problem], *, named_by_file: bool = False) -> Head | None:
    """The head of a definition that counts; else None, and a problem that says why."""
    if not candidate.path.endswith(".md"):
        problems.append(candidate.problem(_RETIRED, HIDDEN))
        return None
    content = look.head(candidate.path)
    head = _usable(content, os.path.basename(candidate.path)[:-3] if named_by_file else None)
    if isinstance(head, Head) and not _is_retired(candidate.path):
        return head
    if isinstance(head, Head):
        reason = f"{_RETIRED.reason}; it describes {shown(head.values['name'])}"
        problems.append(candidate.problem(Fault(1, reason), HIDDEN, claude_loads=True))
    else:
        problems.append(candidate.problem(head, claude_loads=head.ours and _claude_loads(look, candidate, content)))
    return None


_RETIRED = Fault(1, 'is left out because of ".deprecated" in its file name')


def _usable(content: bytes | Fault, stem: str | None = None) -> Head | Fault:
    """The head of a file that the CLI would load, or why it would not."""
    head = parse(content) if isinstance(content, bytes) else content
    if isinstance(head, Fault):
        return head
    head = with_defaults(head, stem) if stem else head
    return complaint(head) or head


def _claude_loads(look: Look, candidate: Candidate, content: bytes | Fault) -> bool:
    """Whether a file that only we refuse is one that the CLI loads."""
    found = _as_claude_reads(look, candidate.path, content)
    fault = complaint(found) if isinstance(found, Head) else found
    return fault is None or fault.ours


def _as_claude_reads(look: Look, path: str, content: bytes | Fault) -> Head | Fault:
    """The head of a file within the CLI's bounds, which are wider than ours."""
    wide = look.head(path, MAX_FILE_OF_CLAUDE) if isinstance(content, Fault) else content
    if isinstance(wide, Fault):
        return wide._replace(ours=False)
    whole = parse(wide)
    return gist(wide) if isinstance(whole, Fault) and whole.ours else whole


def name_for_claude(look: Look, path: str) -> str | None:
    """What a file is called by the CLI, also one that only we refuse; None when that cannot be told."""
    found = _as_claude_reads(look, path, look.head(path))
    name = found.values.get("name") if isinstance(found, Head) else None
    return name if isinstance(name, str) else None


def _remarks(candidate: Candidate, head: Head) -> Iterator[Problem]:
    """What is to be said about a definition that counts."""
    name = head.values["name"]
    if candidate.target:
        yield link_problem(candidate.path)
    if head.mended:
        yield Problem(candidate.path, head.mended.line, f"{head.mended.reason}; read all the same", True, RESCUED)
    if not is_address(name):
        reason = f"its name {shown(name)} cannot be typed everywhere; {address_of(name)} stands for it"
        yield Problem(candidate.path, head.line_of("name"), reason, True, RENAMED)
    for fault in odd_fields(head):
        yield Problem(candidate.path, fault.line, fault.reason, True, fault.kind)


def _again(candidate: Candidate, head: Head, first: Entry) -> Problem:
    fault = Fault(head.line_of("name"), f"{shown(first.name)} is described by {first.path} already", DUPLICATE)
    return candidate.problem(fault, claude_loads=True)
