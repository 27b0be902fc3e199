"""Folders of definitions: walking them as the CLI does, and judging each file."""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import NamedTuple

from hocket.catalog.entries import LIBRARY, PROJECT, AgentEntry, Found, Problem, SearchedPlace, entry_of
from hocket.catalog.file_probe import MAX_FILE, FileProbe, changed_recently, kind_of, signature_at
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition, BadDirectory
from hocket.input_limits import is_text
from hocket.model import Definition
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import (
    DUPLICATE,
    HIDDEN,
    LINKED,
    LOADED_DESPITE_ERRORS,
    REFUSED,
    SKIPPED,
    Fault,
    Head,
    shown,
)

MAX_FILES = 10_000
"""Files and folders examined below one folder."""
Environ = Mapping[str, str]
_NAME_LINE = re.compile(rb"^name:[ \t]*+(.+)$", re.MULTILINE)


def check_project(project: str) -> str:
    """Return the project's directory, normalised. Raises BadDirectory."""
    if not os.path.isdir(project):
        problem = "is not a directory" if os.path.exists(project) else "does not exist"
        raise BadDirectory(f"the project directory {project} {problem}")
    return normalise_path(project)


def normalise_path(path: str) -> str:
    """Normalise a path but keep links, unless ``..`` leads elsewhere behind one."""
    plain, real = os.path.normpath(path), os.path.realpath(path)
    return plain if os.path.realpath(plain) == real else real


# --- Walking ------------------------------------------------------------------------------------------------


def read_definition(path: str, stem: str | None = None) -> Definition:
    """Read an agent file, as ``parse_definition`` does; one that has not changed is read once. Raises BadDefinition."""
    begun, now = time.time_ns(), signature_at(path)
    if changed_recently(now, begun, time.time_ns()):
        return _parse_file(path, stem)
    return _parse_unchanged(path, stem, now)


def forget_definitions() -> None:
    """Read every agent file again the next time."""
    _parse_unchanged.cache_clear()


@lru_cache(maxsize=512)
def _parse_unchanged(path: str, stem: str | None, signature: str) -> Definition:
    del signature  # a part of the key
    return _parse_file(path, stem)


def _parse_file(path: str, stem: str | None) -> Definition:
    content = read_bounded(path, MAX_FILE, BadDefinition)
    if content is None:
        raise BadDefinition(f"{path} does not exist")
    return DEFINITIONS.parse_definition(content, path, stem)


Identity = tuple[int, int]
"""Device and inode of a file or folder."""


class Candidate(NamedTuple):
    """A file that may be a definition, with its target if it is a link."""

    path: str
    target: str | None = None
    identity: Identity = (0, 0)
    """Of the link itself if it is one."""

    def problem(self, fault: Fault, kind: str | None = None, *, cli_loads: bool = False) -> Problem:
        reason = f"{fault.reason} (a link to {printable(self.target)})" if self.target else fault.reason
        return Problem(printable(self.path), fault.line, reason, cli_loads, kind or fault.kind)


def printable(path: str) -> str:
    """Replace the bytes of a path that are not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Walk:
    """The files below a folder that may be definitions, nearest first and sorted, links followed.

    Each folder is entered once, through a link only if there is no other way. Obstacles are added to the problems.
    """

    def __init__(self, look: FileProbe, folder: str, problems: list[Problem]) -> None:
        self._look = look
        self._folder = folder
        self._problems = problems
        self._identities: dict[str, Identity] = {}
        """The identity of each folder by its paths."""
        self._listings: dict[Identity, list[os.DirEntry[str]]] = {}
        """By folder: its entries in the order of the file system."""

    def __iter__(self) -> Iterator[Candidate]:
        waiting, linked, count = deque([self._folder]), deque[str](), 0
        while waiting or linked:
            current = waiting.popleft() if waiting else linked.popleft()
            for entry in self._enter(current):
                count += 1
                if count > MAX_FILES:
                    reason = f"has more than {MAX_FILES} files and folders; the rest is ignored"
                    self._problems.append(Problem(printable(self._folder), None, reason, True, REFUSED))
                    return
                if _is(entry, os.DirEntry.is_dir) and is_text(entry.name):
                    (linked if entry.is_symlink() else waiting).append(entry.path)
                if self._is_candidate(entry):
                    target = os.path.realpath(entry.path) if entry.is_symlink() else None
                    yield Candidate(entry.path, target, (self._identities[current][0], entry.inode()))

    def _is_candidate(self, entry: os.DirEntry[str]) -> bool:
        """True for a file with the name of a definition; report what is not what its name suggests."""
        is_definition = entry.name.endswith(".md") or (".md" in entry.name and _is_retired(entry.name))
        is_link, is_folder = entry.is_symlink(), _is(entry, os.DirEntry.is_dir)
        if is_link:
            self._look.stat(entry.path)  # the catalog depends on its target
        if not is_text(entry.name):
            if is_definition or is_folder:
                reason = "the file name is not valid UTF-8"
                self._problems.append(Problem(printable(entry.path), None, reason, False, REFUSED))
            return False
        if is_folder:
            if is_link:
                self._problems.append(link_problem(entry.path))
            if is_definition:
                self._problems.append(Problem(entry.path, None, "is a directory, not a file", False, SKIPPED))
            return False
        if not is_definition or _is(entry, os.DirEntry.is_file):
            return is_definition
        found = self._look.stat(entry.path)
        reason = f"is {kind_of(found.st_mode)}, not a file" if found else "is a broken link"
        target = os.path.realpath(entry.path) if is_link and found else None
        self._problems.append(Candidate(entry.path, target).problem(Fault(1, reason, REFUSED)))
        return False

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
        """Sort candidates in the order in which the CLI reads them. Call after the walk."""
        order = self._reading_order
        return sorted(candidates, key=lambda candidate: (order[candidate.identity], candidate.path))

    @cached_property
    def _reading_order(self) -> dict[Identity, int]:
        """Depth first in the order of the file system (measured with 2.1.281 and 2.1.326).

        Folders reached twice and hard links count at their first occurrence.
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


def link_problem(path: str) -> Problem:
    return Problem(path, None, f"is a link to {printable(os.path.realpath(path))}", True, LINKED)


def _is(entry: os.DirEntry[str], test: Callable[[os.DirEntry[str]], bool]) -> bool:
    try:
        return test(entry)
    except OSError:  # a link in a circle
        return False


def _is_retired(path: str) -> bool:
    return ".deprecated" in os.path.basename(path)


# --- Judging ------------------------------------------------------------------------------------------------


class _Claim(NamedTuple):
    """A file that describes an agent to the CLI: with its frontmatter, or with the problem why only Hocket hides it."""

    candidate: Candidate
    head: Head | None
    problem: Problem | None = None


def scan(look: FileProbe, folder: str, source: str, project: str | None = None) -> Found:
    """Return every definition below a folder, and the problems with all other files there."""
    found = look.stat(folder)
    if found is None or not stat.S_ISDIR(found.st_mode):
        wrong = () if found is None else (Problem(folder, None, "is not a directory", False, REFUSED),)
        return Found(SearchedPlace(source, folder, False, 0), (), wrong)
    problems: list[Problem] = [link_problem(folder)] if os.path.islink(folder) else []
    walk, claims = Walk(look, folder, problems), dict[str, list[_Claim]]()
    for candidate in walk:
        judged = _judge(look, candidate, named_by_file=source == LIBRARY)
        if isinstance(judged, Problem):
            problems.append(judged)
        else:
            claims.setdefault(judged[0], []).append(judged[1])
    entries: list[AgentEntry] = []
    for claimed in claims.values():
        winner = _settle(walk, claimed, problems)
        if winner is not None:
            entries.append(entry_of(winner[1], winner[0].path, source, project))
    if source == LIBRARY:  # which the CLI does not know
        problems = [replace(problem, cli_loads=False) for problem in problems]
    in_order = sorted(problems, key=lambda problem: (problem.path, problem.line or 0))
    return Found(SearchedPlace(source, folder, True, len(entries)), tuple(entries), tuple(in_order))


def _settle(walk: Walk, claims: Sequence[_Claim], problems: list[Problem]) -> tuple[Candidate, Head] | None:
    """Choose among the files that describe one agent the last usable one that the CLI reads; report the others."""
    if len(claims) > 1:
        by_candidate = {claim.candidate: claim for claim in claims}
        claims = [by_candidate[candidate] for candidate in walk.in_reading_order(by_candidate)]
    usable = [(claim.candidate, claim.head) for claim in claims if claim.head]
    problems.extend(replace(one.problem, cli_loads=one is claims[-1]) for one in claims if one.problem)
    if not usable:
        return None
    winner, used = usable[-1]
    for candidate, head in usable[:-1]:
        reason = (
            f"{shown(head.values['name'])} is also defined by {printable(winner.path)}, which wins: the file system"
            " lists it later, and the CLI uses the last one"
        )
        problems.append(candidate.problem(Fault(head.line_of("name"), reason, DUPLICATE)))
    if winner.target:
        problems.append(link_problem(winner.path))
    problems.extend(mended_problem(winner.path, used))
    problems.extend(
        Problem(winner.path, fault.line, fault.reason, True, fault.kind) for fault in DEFINITIONS.ignored_fields(used)
    )
    return usable[-1]


def mended_problem(path: str, head: Head) -> Iterator[Problem]:
    """Report frontmatter that is malformed but loaded."""
    if head.mended:
        yield Problem(path, head.mended.line, f"{head.mended.reason}; loaded nevertheless", True, LOADED_DESPITE_ERRORS)


def names_in(folder: str) -> list[str]:
    """Return the name of every definition below a folder."""
    return sorted(entry.name for entry in scan(FileProbe(), folder, PROJECT).entries)


def name_in(path: str) -> str | None:
    """Return the name in a file that may be no valid definition, or larger than one may be; None if it has none."""
    try:
        content = read_bounded(path, DEFINITIONS.largest_file, BadDefinition) or b""
    except BadDefinition:
        return None
    head = DEFINITIONS.parse(content)
    if isinstance(head, Head):
        name = head.values.get("name")
        return name if isinstance(name, str) else None
    found = _NAME_LINE.search(content)
    return found[1].decode(errors="replace").strip() if found else None


def find_in(folder: str, name: str) -> str | None:
    """Return the file below a folder whose frontmatter has exactly this name."""
    look = FileProbe()
    walk = Walk(look, folder, [])
    found: list[Candidate] = []
    for candidate in walk:
        head = None if _is_retired(candidate.path) else _usable(look.head(candidate.path))
        if isinstance(head, Head) and head.values["name"] == name:
            found.append(candidate)
    if len(found) > 1:
        found = walk.in_reading_order(found)
    return found[-1].path if found else None


def _judge(look: FileProbe, candidate: Candidate, *, named_by_file: bool = False) -> tuple[str, _Claim] | Problem:
    """Return the name of the agent that a file describes to the CLI, or what is wrong with the file."""
    if not candidate.path.endswith(".md"):
        return candidate.problem(RETIRED, HIDDEN)
    head = _usable(look.head(candidate.path), os.path.basename(candidate.path)[:-3] if named_by_file else None)
    if isinstance(head, Fault):
        return candidate.problem(head, cli_loads=head.is_hocket_limit)
    name = head.values["name"]
    if not _is_retired(candidate.path):
        return name, _Claim(candidate, head)
    problem = candidate.problem(Fault(1, f"{RETIRED.reason}; it describes {shown(name)}"), HIDDEN, cli_loads=True)
    return name, _Claim(candidate, None, problem)


RETIRED = Fault(1, 'is ignored because its file name contains ".deprecated"')


def _usable(content: bytes | Fault, stem: str | None = None) -> Head | Fault:
    """Return the frontmatter of a file that the CLI would load, or why it would not."""
    head = DEFINITIONS.parse(content) if isinstance(content, bytes) else content
    if isinstance(head, Fault):
        return head
    head = DEFINITIONS.with_defaults(head, stem) if stem else head
    return DEFINITIONS.complaint(head) or head
