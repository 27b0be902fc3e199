"""Folders with definitions: which paths name one, what lies below it, and what is to be said about each file there.

Knows how the CLI walks and what it takes for a definition; nothing about which folders count where, which is the
business of ``sources``, nor about what a name means in the end.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
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
from hocket.catalog.file_probe import Look, kind_of
from hocket.catalog.frontmatter import Fault, Head, gist, parse
from hocket.catalog.names import address_of, is_address
from hocket.errors import BadDirectory, UsageError
from hocket.input_limits import is_text

MAX_FILES = 10_000
"""Files and folders looked at below one folder: more than anybody has, and an end to a strange one."""
MAX_FILE_OF_CLAUDE = 1024 * 1024
"""As measured: the CLI reads files up to here, which is further than we do."""
AGENTS = "/.claude/agents/"
"""What stands between a project and the name of its agent in a path."""
LATER = "the system lists it later, and the last one counts, as for Claude"
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


Identity = tuple[int, int]
"""Of a file or a folder: the device and the inode."""


class Candidate(NamedTuple):
    """A file that may be a definition, and where it leads if it is a link."""

    path: str
    target: str | None = None
    identity: Identity = (0, 0)
    """Of the link itself where it is one."""

    def problem(self, fault: Fault, kind: str | None = None, *, claude_loads: bool = False) -> Problem:
        reason = f"{fault.reason} (a link to {printable(self.target)})" if self.target else fault.reason
        return Problem(printable(self.path), fault.line, reason, claude_loads, kind or fault.kind)


def printable(path: str) -> str:
    """A path that can be written down: bytes of it that are no text are replaced."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Walk:
    """Files below a folder that may be definitions, those near to it first, in a fixed order, links followed.

    Each folder is entered once, and by a link only if it is not there by itself. What stands in the way is added to
    the problems.
    """

    def __init__(self, look: Look, folder: str, problems: list[Problem]) -> None:
        self._look = look
        self._folder = folder
        self._problems = problems
        self._identities: dict[str, Identity] = {}
        """Of each folder, by every path that leads to it."""
        self._listings: dict[Identity, list[os.DirEntry[str]]] = {}
        """By folder: what it has, as the system lists it."""

    def __iter__(self) -> Iterator[Candidate]:
        waiting, linked, count = deque([self._folder]), deque[str](), 0
        while waiting or linked:
            current = waiting.popleft() if waiting else linked.popleft()
            for entry in self._enter(current):
                count += 1
                if count > MAX_FILES:
                    reason = f"has more than {MAX_FILES} files and folders below it, and the rest is not looked at"
                    self._problems.append(Problem(printable(self._folder), None, reason, True, REFUSED))
                    return
                kind = _kind(self._look, entry, self._problems)
                if kind is _FOLDER:
                    (linked if entry.is_symlink() else waiting).append(entry.path)
                elif kind is _FILE:
                    target = os.path.realpath(entry.path) if entry.is_symlink() else None
                    yield Candidate(entry.path, target, (self._identities[current][0], entry.inode()))

    def _enter(self, folder: str) -> list[os.DirEntry[str]]:
        found = self._look.stat(folder)
        if found is None:
            return []
        identity = self._identities[folder] = found.st_dev, found.st_ino
        if identity in self._listings:
            return []
        entries = self._look.listing(folder)
        if isinstance(entries, Fault):
            self._problems.append(Problem(printable(folder), None, entries.reason, False, REFUSED))
            entries = []
        self._listings[identity] = entries
        return sorted(entries, key=attrgetter("name"))

    def in_reading_order(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """These candidates in the order in which the CLI reads them. Only for after the walk."""
        order = self._reading_order
        return sorted(candidates, key=lambda candidate: (order[candidate.identity], candidate.path))

    @cached_property
    def _reading_order(self) -> dict[Identity, int]:
        """As measured with 2.1.281 and 2.1.326: as the system lists each folder, what is in a folder in its place.

        A folder counts where it is met first, also by a link, and so does a file with several hard links.
        """
        order: dict[Identity, int] = {}
        entered: set[Identity] = set()
        pending: list[tuple[str, Identity]] = [(self._folder, self._identities[self._folder])]
        while pending:
            path, identity = pending.pop()
            folder = self._identities.get(path)
            if folder is None:
                order.setdefault(identity, len(order))
            elif folder not in entered:
                entered.add(folder)
                listed = self._listings[folder]
                pending += [(entry.path, (folder[0], entry.inode())) for entry in reversed(listed)]
        return order


_FOLDER, _FILE, _NOTHING = "folder", "file", "nothing"


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


class _Claim(NamedTuple):
    """A file that describes an agent to the CLI: with its head, or with why we alone leave it out."""

    candidate: Candidate
    head: Head | None
    problem: Problem | None = None


def scan(look: Look, folder: str, source: str, project: str | None = None) -> Scan:
    """Every definition below a folder, and what is to be said about all other files there."""
    problems: list[Problem] = [link_problem(folder)] if os.path.islink(folder) else []
    walk, claims = Walk(look, folder, problems), dict[str, list[_Claim]]()
    for candidate in walk:
        judged = _judge(look, candidate, named_by_file=source == LIBRARY)
        if isinstance(judged, Problem):
            problems.append(judged)
        else:
            claims.setdefault(judged[0], []).append(judged[1])
    entries: list[Entry] = []
    for claimed in claims.values():
        ours = _settle(walk, claimed, problems)
        if ours is not None:
            entries.append(entry_of(ours[1], ours[0].path, source, project))
    if source == LIBRARY:  # of which the CLI knows nothing, whatever is in it
        problems = [replace(problem, claude_loads=False) for problem in problems]
    return Scan(tuple(entries), tuple(sorted(problems, key=lambda problem: (problem.path, problem.line or 0))))


def _settle(walk: Walk, claims: Sequence[_Claim], problems: list[Problem]) -> tuple[Candidate, Head] | None:
    """Of all files that describe one agent the one that counts, which is the last that the CLI reads and we take.

    What is to be said about it and about the others is added to the problems.
    """
    if len(claims) > 1:
        by_candidate = {claim.candidate: claim for claim in claims}
        claims = [by_candidate[candidate] for candidate in walk.in_reading_order(by_candidate)]
    usable = [(claim.candidate, claim.head) for claim in claims if claim.head]
    problems.extend(replace(one.problem, claude_loads=one is claims[-1]) for one in claims if one.problem)
    if not usable:
        return None
    problems.extend(_again(candidate, head, usable[-1][0].path) for candidate, head in usable[:-1])
    problems.extend(_remarks(*usable[-1]))
    return usable[-1]


def find_name(look: Look, folder: str, name: str) -> str | None:
    """The file of the definition that has this name, exactly as it is written there."""
    walk = Walk(look, folder, [])
    found = [candidate for candidate in walk if _has_name(look, candidate, name)]
    if len(found) > 1:
        found = walk.in_reading_order(found)
    return found[-1].path if found else None


def _has_name(look: Look, candidate: Candidate, name: str) -> bool:
    if _is_retired(candidate.path):
        return False
    content = look.head(candidate.path)
    # Most files need no parsing: a name that is not escaped stands in its head as it is.
    if not isinstance(content, bytes) or not (name.encode() in content or b"\\" in content):
        return False
    head = _usable(content)
    return isinstance(head, Head) and head.values["name"] == name


def _judge(look: Look, candidate: Candidate, *, named_by_file: bool = False) -> tuple[str, _Claim] | Problem:
    """Which agent a file describes to the CLI; else what is wrong with the file."""
    if not candidate.path.endswith(".md"):
        return candidate.problem(_RETIRED, HIDDEN)
    content = look.head(candidate.path)
    head = _usable(content, os.path.basename(candidate.path)[:-3] if named_by_file else None)
    if isinstance(head, Head) and not _is_retired(candidate.path):
        return head.values["name"], _Claim(candidate, head)
    if isinstance(head, Head):
        reason = f"{_RETIRED.reason}; it describes {shown(head.values['name'])}"
        problem = candidate.problem(Fault(1, reason), HIDDEN, claude_loads=True)
        return head.values["name"], _Claim(candidate, None, problem)
    if not (head.ours and _claude_loads(look, candidate, content)):
        return candidate.problem(head)
    problem = candidate.problem(head, claude_loads=True)
    name = name_for_claude(look, candidate.path)
    return problem if name is None else (name, _Claim(candidate, None, problem))


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


def _again(candidate: Candidate, head: Head, winner: str) -> Problem:
    reason = f"{shown(head.values['name'])} is also described by {printable(winner)}, which wins: {LATER}"
    return candidate.problem(Fault(head.line_of("name"), reason, DUPLICATE))
