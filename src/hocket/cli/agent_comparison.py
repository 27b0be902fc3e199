"""Compare the catalog with the agents that the Claude CLI lists, for ``hocket doctor --verify``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hocket import config
from hocket.catalog.discovery import discover
from hocket.catalog.entries import GLOBAL, MANAGED, PLUGIN, PROJECT, AgentEntry, Catalog, Problem
from hocket.catalog.files import name_in, names_in
from hocket.errors import HocketError
from hocket.keeper.programs import run_tool
from hocket.providers.claude.listing import ARGUMENTS, ENVIRONMENT, REQUEST, Listed, agents_listed, only_choices
from hocket.providers.claude.models import normalise_model
from hocket.providers.definition_files import DUPLICATE, HIDDEN, REFUSED, SKIPPED
from hocket.trust.check import configuration
from hocket.views.text import one_line

SHARED_SOURCES = (MANAGED, PROJECT, GLOBAL, PLUGIN)
"""The sources that the Claude CLI has, too."""
SECONDS = 60.0
"""For one answer; a second is usual."""
_MOST_OUTPUT = 64 * 1024 * 1024
_GIVEN = ("PATH", "LANG", "LC_ALL")
_INHERIT = "inherit"
_MOST_TEXT = 60
"""Characters of a description in a line."""

Row = dict[str, Any]


class Comparison(NamedTuple):
    """The number of equal agents, and each difference. ``expected`` marks differences that are intended."""

    same: int
    only_claude: list[Row]
    only_hocket: list[Row]
    models: list[Row]
    descriptions: list[Row]

    @property
    def equal(self) -> bool:
        rows = (*self.only_claude, *self.only_hocket, *self.models, *self.descriptions)
        return all(row.get("expected") for row in rows)


# --- Listing ------------------------------------------------------------------------------------------------


class ClaudeUser(NamedTuple):
    """The user whose agents are listed: home directory, and configuration folder of the CLI."""

    home: str
    config_folder: str
    moved: bool

    @classmethod
    def of(cls, env: Mapping[str, str], cwd: str) -> ClaudeUser:
        home = config.home_directory(env)
        moved = env.get("CLAUDE_CONFIG_DIR")
        return cls(home, os.path.join(cwd, moved) if moved else os.path.join(home, CLAUDE_FOLDER), bool(moved))


def list_claude_agents(program: str, cwd: str, user: ClaudeUser, env: Mapping[str, str]) -> list[Listed]:
    """The agents that the CLI would load there for that user."""
    with _temporary_folder() as root:
        mirror = StandInDirectory(root, cwd, user)
        places = {"HOME": mirror.path(user.home), "TMPDIR": root}
        if user.moved:
            places["CLAUDE_CONFIG_DIR"] = mirror.path(user.config_folder)
        return _listed_agents(program, mirror.path(cwd), places, env)


def list_built_in_agents(program: str, env: Mapping[str, str]) -> list[Listed]:
    """The agents that the CLI lists without any definition."""
    with _temporary_folder() as root:
        return _listed_agents(program, root, {"HOME": root, "TMPDIR": root}, env)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    # The CLI may still remove files of its own after it has answered.
    with tempfile.TemporaryDirectory(prefix="hocket-verify-", ignore_cleanup_errors=True) as root:
        yield Path(os.path.realpath(root))


def _listed_agents(program: str, cwd: Path, places: Mapping[str, Path], env: Mapping[str, str]) -> list[Listed]:
    """Run the CLI with a minimal environment, without credentials."""
    given = {name: env[name] for name in _GIVEN if name in env} | {name: str(path) for name, path in places.items()}
    try:
        done = run_tool([program, *ARGUMENTS], str(cwd), given | ENVIRONMENT, SECONDS, _MOST_OUTPUT, REQUEST)
    except OSError as error:
        raise HocketError(f"{program} cannot be started: {error.strerror}") from error
    if done.timed_out:
        raise HocketError(f"{program} did not list its agents within {SECONDS:.0f} s", "try to start it")
    listed = agents_listed(done.output)
    if listed is None:
        end = one_line(done.output[-200:].decode(errors="replace"))
        raise HocketError(f"{program} does not list its agents: {end!r}", "update it: claude update")
    return listed


# --- Comparing ----------------------------------------------------------------------------------------------


def verify(program: str, cwd: str, env: Mapping[str, str], home: str) -> Comparison:
    """Compare for one directory. Nothing of the directory is run, and nothing of the user's is written."""
    approvals, _ = configuration(cwd, home, env)
    catalog = discover(cwd, env, home, approvals.config, approvals)
    return compare(
        catalog, list_claude_agents(program, cwd, ClaudeUser.of(env, cwd), env), list_built_in_agents(program, env)
    )


def compare(catalog: Catalog, listed: list[Listed], built_in: list[Listed]) -> Comparison:
    """Compare two lists of agents. A built-in agent of the CLI that was redefined counts as a definition."""
    # The agents that would be used if only the sources existed that the CLI has, too.
    shared = {name: [one for one in ranked if one.source in SHARED_SOURCES] for name, ranked in catalog.ranked.items()}
    ours = {name: entries[0] for name, entries in shared.items() if entries}
    # Managed agents belong to the machine: the CLI lists them without any definition of a user.
    managed = {name for name, entry in ours.items() if entry.source == MANAGED}
    theirs = {agent.name: agent for agent in listed if agent not in built_in or agent.name in managed}
    both = sorted(ours.keys() & theirs.keys())
    left_out = dict(_left_out(catalog.problems))
    models, descriptions = [], []
    for name in both:
        mine, other = ours[name], theirs[name]
        expected = left_out.get(name) or _duplicate(mine, catalog.problems)
        if _model(mine.model) != _model(other.model):
            models.append(_difference(mine, mine.model, other.model, expected))
        if mine.description != other.description:
            descriptions.append(_difference(mine, mine.description, other.description, expected))
    return Comparison(
        len(both) - len({row["name"] for row in (*models, *descriptions)}),
        [_only_theirs(theirs[name], left_out.get(name)) for name in sorted(theirs.keys() - ours.keys())],
        [_only_ours(ours[name], catalog.problems) for name in sorted(ours.keys() - theirs.keys())],
        models,
        descriptions,
    )


def _duplicate(entry: AgentEntry, problems: Sequence[Problem]) -> Problem | None:
    """Why Claude may use another file of a plugin than Hocket does."""
    if entry.source != PLUGIN:
        return None
    return next((one for one in problems if one.kind == DUPLICATE and entry.path in one.reason), None)


def _difference(entry: AgentEntry, ours: str | None, theirs: str | None, expected: Problem | None) -> Row:
    """One property in which an agent differs; expected if Claude uses a file that Hocket ignores."""
    row: Row = {"name": entry.name, "hocket": ours, "claude": theirs, "path": entry.path}
    return row | {"expected": True, "reason": f"{expected.path} {expected.reason}"} if expected else row


def _model(name: str | None) -> str | None:
    """The model that a name stands for; without one, and with ``inherit``, it is the caller's."""
    return None if name is None or name.lower() == _INHERIT else normalise_model(name.strip())


def _left_out(problems: Sequence[Problem]) -> Iterator[tuple[str, Problem]]:
    """The agents in files and folders that only Hocket ignores, with the reason."""
    for problem in problems:
        if problem.cli_loads and problem.kind in (HIDDEN, SKIPPED, REFUSED):
            for name in _names_at(problem.path):
                yield name, problem


def _names_at(path: str) -> list[str]:
    """The names of the agents at a path: those of a folder, or that of a file, by its frontmatter or its own name."""
    if os.path.isdir(path):
        return names_in(path)
    return [name_in(path) or os.path.basename(path).removesuffix(".md")]


def _only_theirs(agent: Listed, left_out: Problem | None) -> Row:
    """A difference is expected if Hocket reports that it ignores the file."""
    row: Row = {"name": agent.name, "model": agent.model, "expected": left_out is not None}
    return row | {"path": left_out.path, "reason": left_out.reason} if left_out else row


def _only_ours(entry: AgentEntry, problems: Sequence[Problem]) -> Row:
    reasons = [problem.reason for problem in problems if problem.path == entry.path]
    row: Row = {"name": entry.name, "source": entry.source, "path": entry.path}
    return row | {"reason": "; ".join(reasons)} if reasons else row


# --- Showing ------------------------------------------------------------------------------------------------


def comparison_summary(found: Comparison) -> str:
    """Count equal and different agents."""
    parts = (
        (found.only_claude, "only Claude has"),
        (found.only_hocket, "only Hocket has"),
        (found.models, "with another model"),
        (found.descriptions, "with another description"),
    )
    differing = "".join(f", {len(rows)} {words}" for rows, words in parts if rows)
    return f"{found.same} the same as Claude's own list{differing}"


def comparison_lines(found: Comparison) -> str:
    """A line for each difference."""
    lines = [f"only Claude: {_described(row)}" for row in found.only_claude]
    lines += [f"only Hocket: {_described(row)}" for row in found.only_hocket]
    for what, rows in (("model", found.models), ("description", found.descriptions)):
        for row in rows:
            ours, theirs = (_shortened(row[side]) for side in ("hocket", "claude"))
            why = f" ({row['reason']})" if "reason" in row else ""
            lines.append(f"{what} of {row['name']}: {ours}, Claude has {theirs}{why}")
    return "".join(f"    {one_line(line)}\n" for line in lines)


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _described(row: Row) -> str:
    where = ", ".join(row[key] for key in ("source", "path") if key in row)
    name: str = row["name"]
    return name + (f" ({where})" if where else "") + (f": {row['reason']}" if "reason" in row else "")


# --- A stand-in of a directory -------------------------------------------------------------------------------

CLAUDE_FOLDER = ".claude"
_SETTINGS = ("settings.json", "settings.local.json")
_MOST = 8 * 1024 * 1024
_RECORDS = "gitdir: "


class StandInDirectory:
    """A copy of the path from the root to a directory: folders of definitions are links to the real ones.

    The CLI executes what the settings of a folder say as soon as it starts there (hooks, helpers, servers), so it never
    starts in the real folder. The stand-in has no settings but the choice of plugins, and takes what the CLI writes.
    """

    def __init__(self, root: Path, cwd: str, user: ClaudeUser) -> None:
        """Create what this user sees in ``cwd``."""
        self.root = root
        for folder in (cwd, *map(str, Path(cwd).parents)):
            self._add_folder(folder)
            self._add_repository(os.path.join(folder, ".git"))
        self.path(user.home).mkdir(parents=True, exist_ok=True)
        self._add_configuration(user.config_folder)
        self._add_plugins(os.path.join(user.config_folder, "plugins"))

    def path(self, real: str) -> Path:
        return self.root / real.lstrip("/")

    def _add_folder(self, real: str) -> None:
        self.path(real).mkdir(parents=True, exist_ok=True)
        self._add_configuration(os.path.join(real, CLAUDE_FOLDER))

    def _add_configuration(self, real: str) -> None:
        here = self.path(real)
        agents = os.path.join(real, "agents")
        if os.path.lexists(agents) and not os.path.lexists(here / "agents"):
            here.mkdir(parents=True, exist_ok=True)
            (here / "agents").symlink_to(agents)
        for name in _SETTINGS:
            chosen = only_choices(_content(os.path.join(real, name)))
            if chosen is not None:
                here.mkdir(parents=True, exist_ok=True)
                (here / name).write_bytes(chosen)

    def _add_plugins(self, real: str) -> None:
        """Folders are linked. Files are copied, because they may be written, and a link would be written through."""
        here = self.path(real)
        here.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(real) if os.path.isdir(real) else ():
            path = os.path.join(real, name)
            if os.path.isdir(path):
                (here / name).symlink_to(path)
            else:
                (here / name).write_bytes(_content(path))

    def _add_repository(self, mark: str) -> None:
        """Mark the root of a repository; for a linked worktree, also the repository it belongs to, if that knows it."""
        if os.path.isdir(mark):
            _make_repository(self.path(mark))
        if not os.path.isfile(mark):
            return
        text = _text(mark)
        records = os.path.normpath(os.path.join(os.path.dirname(mark), text.removeprefix(_RECORDS)))
        if not text.startswith(_RECORDS) or not _is_record_of(records, mark):
            self.path(mark).write_text(text)
            return
        repository = os.path.dirname(os.path.dirname(records))
        _make_repository(self.path(repository))
        copied = self.path(records)
        copied.mkdir(parents=True, exist_ok=True)
        (copied / "HEAD").write_text("ref: refs/heads/other\n")
        (copied / "commondir").write_text("../..\n")
        (copied / "gitdir").write_text(f"{self.path(mark)}\n")
        self.path(mark).write_text(f"{_RECORDS}{copied}\n")
        self._add_folder(os.path.dirname(repository))


def _is_record_of(records: str, mark: str) -> bool:
    """True if these are the records of the worktree with this ``.git`` file."""
    try:
        return os.path.realpath(os.path.join(records, _text(os.path.join(records, "gitdir")))) == os.path.realpath(mark)
    except ValueError:  # a path cannot contain NUL
        return False


def _make_repository(here: Path) -> None:
    """Create an empty repository, without the configuration of the real one."""
    for name in ("objects", "refs"):
        (here / name).mkdir(parents=True, exist_ok=True)
    (here / "HEAD").write_text("ref: refs/heads/main\n")


def _content(path: str) -> bytes:
    """The beginning of a file; empty if it cannot be read."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(_MOST)
    except OSError:
        return b""


def _text(path: str) -> str:
    return _content(path).decode(errors="replace").strip()
