"""``hocket doctor --verify``: the catalog of one directory, held against the list of the CLI itself.

The CLI is asked twice: in a stand-in of this directory (see ``mirror``), and in the middle of nowhere, which tells what
it brings along. What only Hocket knows (aliases, its own configs, the library) is not compared.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hocket import config
from hocket.catalog.discovery import discover
from hocket.catalog.entries import (
    DUPLICATE,
    GLOBAL,
    HIDDEN,
    MANAGED,
    PLUGIN,
    PROJECT,
    REFUSED,
    SKIPPED,
    Catalog,
    Entry,
    Problem,
)
from hocket.catalog.fields import normalise_model
from hocket.catalog.sources import name_at, names_in
from hocket.cli.mirror import CLAUDE_FOLDER, Mirror
from hocket.errors import HocketError
from hocket.keeper.programs import run_tool
from hocket.providers.claude.listing import ARGUMENTS, ENVIRONMENT, REQUEST, Listed, agents_listed, only_choices
from hocket.trust.check import configuration
from hocket.views.text import one_line

SHARED = (MANAGED, PROJECT, GLOBAL, PLUGIN)
"""The sources that the CLI knows as well."""
SECONDS = 60.0
"""For one answer; a second is usual."""
_MOST_OUTPUT = 64 * 1024 * 1024
_GIVEN = ("PATH", "LANG", "LC_ALL")
_INHERIT = "inherit"
_MOST_TEXT = 60
"""Characters of a description in a line."""

Row = dict[str, Any]


class Comparison(NamedTuple):
    """What both have, and each difference. ``expected`` rows are differences that are meant to be."""

    same: int
    only_claude: list[Row]
    only_hocket: list[Row]
    models: list[Row]
    descriptions: list[Row]

    @property
    def equal(self) -> bool:
        rows = (*self.only_claude, *self.only_hocket, *self.models, *self.descriptions)
        return all(row.get("expected") for row in rows)


# --- Asking -------------------------------------------------------------------------------------------------


class User(NamedTuple):
    """Whose agents are meant: where somebody lives, and where the CLI keeps that person's files."""

    home: str
    config_folder: str
    moved: bool

    @classmethod
    def of(cls, env: Mapping[str, str], cwd: str) -> User:
        home = config.home_directory(env)
        moved = env.get("CLAUDE_CONFIG_DIR")
        return cls(home, os.path.join(cwd, moved) if moved else os.path.join(home, CLAUDE_FOLDER), bool(moved))


def ask_claude(program: str, cwd: str, user: User, env: Mapping[str, str]) -> list[Listed]:
    """The agents that the CLI would load there for that user."""
    with _somewhere() as root:
        mirror = Mirror(root, only_choices)
        mirror.stand_in(cwd, user.home, user.config_folder)
        places = {"HOME": mirror.path(user.home), "TMPDIR": root}
        if user.moved:
            places["CLAUDE_CONFIG_DIR"] = mirror.path(user.config_folder)
        return _answer(program, mirror.path(cwd), places, env)


def brought_along(program: str, env: Mapping[str, str]) -> list[Listed]:
    """The agents that the CLI has where nobody has any."""
    with _somewhere() as root:
        return _answer(program, root, {"HOME": root, "TMPDIR": root}, env)


@contextmanager
def _somewhere() -> Iterator[Path]:
    # The CLI may still be tidying up behind itself when it has answered.
    with tempfile.TemporaryDirectory(prefix="hocket-verify-", ignore_cleanup_errors=True) as root:
        yield Path(os.path.realpath(root))


def _answer(program: str, cwd: Path, places: Mapping[str, Path], env: Mapping[str, str]) -> list[Listed]:
    """With what no program can do without, and no key, no token, nothing that could reach anything."""
    given = {name: env[name] for name in _GIVEN if name in env} | {name: str(path) for name, path in places.items()}
    try:
        done = run_tool([program, *ARGUMENTS], str(cwd), given | ENVIRONMENT, SECONDS, _MOST_OUTPUT, REQUEST)
    except OSError as error:
        raise HocketError(f"{program} cannot be started: {error.strerror}") from error
    if done.timed_out:
        raise HocketError(f"{program} did not list its agents within {SECONDS:.0f} s", "does it start at all?")
    listed = agents_listed(done.output)
    if listed is None:
        said = one_line(done.output[-200:].decode(errors="replace"))
        raise HocketError(f"{program} does not list its agents: {said!r}", "is it old? Update it: claude update")
    return listed


# --- Comparing ----------------------------------------------------------------------------------------------


def verify(program: str, cwd: str, env: Mapping[str, str], home: str) -> Comparison:
    """Compare for one directory. Nothing of the directory is run, and nothing of the user's is written."""
    approvals, _ = configuration(cwd, home, env)
    catalog = discover(cwd, env, home, approvals.config, approvals)
    return compare(catalog, ask_claude(program, cwd, User.of(env, cwd), env), brought_along(program, env))


def compare(catalog: Catalog, listed: list[Listed], built_in: list[Listed]) -> Comparison:
    """Who has what. One of the CLI's own that somebody has redefined is no longer the CLI's own."""
    ours = {name: entry for name, ranked in catalog.ranked.items() if (entry := _shared(ranked))}
    theirs = {agent.name: agent for agent in listed if agent not in built_in or _is_managed(ours.get(agent.name))}
    both = sorted(ours.keys() & theirs.keys())
    left_out = dict(_left_out(catalog.problems))
    meant = {name: left_out.get(name) or _varying(ours[name], catalog.problems) for name in both}
    models = [row for name in both if (row := _other_model(ours[name], theirs[name], meant[name]))]
    descriptions = [row for name in both if (row := _other_description(ours[name], theirs[name], meant[name]))]
    return Comparison(
        len(both) - len({row["name"] for row in (*models, *descriptions)}),
        [_only_theirs(theirs[name], left_out.get(name)) for name in sorted(theirs.keys() - ours.keys())],
        [_only_ours(ours[name], catalog.problems) for name in sorted(ours.keys() - theirs.keys())],
        models,
        descriptions,
    )


def _shared(ranked: Sequence[Entry]) -> Entry | None:
    """The one that would be used if there were nothing but what the CLI knows, too."""
    return next((entry for entry in ranked if entry.source in SHARED), None)


def _is_managed(entry: Entry | None) -> bool:
    """Those are the machine's: they are there even where nobody has any."""
    return entry is not None and entry.source == MANAGED


def _varying(entry: Entry, problems: Sequence[Problem]) -> Problem | None:
    """Why Claude may take another file of a plugin than we do, now and then."""
    mine = (one for one in problems if one.kind == DUPLICATE and entry.source == PLUGIN and entry.path in one.reason)
    return next(mine, None)


def _other_model(ours: Entry, theirs: Listed, meant: Problem | None) -> Row | None:
    if _model(ours.model) == _model(theirs.model):
        return None
    return _difference(ours, ours.model, theirs.model, meant)


def _other_description(ours: Entry, theirs: Listed, meant: Problem | None) -> Row | None:
    if ours.description == theirs.description:
        return None
    return _difference(ours, ours.description, theirs.description, meant)


def _difference(entry: Entry, ours: str | None, theirs: str | None, meant: Problem | None) -> Row:
    """One property of an agent that both have. Where Claude takes a file that we leave out, it is meant to differ."""
    row: Row = {"name": entry.name, "hocket": ours, "claude": theirs, "path": entry.path}
    return row | {"expected": True, "reason": f"{meant.path} {meant.reason}"} if meant else row


def _model(name: str | None) -> str | None:
    """The one that is meant: none, or that of whoever calls, is the same."""
    return None if name is None or name.lower() == _INHERIT else normalise_model(name.strip())


def _left_out(problems: Sequence[Problem]) -> Iterator[tuple[str, Problem]]:
    """Who is in the files and folders that only we leave out, with the reason."""
    for problem in problems:
        if problem.claude_loads and problem.kind in (HIDDEN, SKIPPED, REFUSED):
            for name in _names_at(problem.path):
                yield name, problem


def _names_at(path: str) -> list[str]:
    """A file that even we cannot read so far goes by its own name."""
    if os.path.isdir(path):
        return names_in(path)
    return [name_at(path) or os.path.basename(path).removesuffix(".md")]


def _only_theirs(agent: Listed, left_out: Problem | None) -> Row:
    """What we leave out, and say so, is meant to differ."""
    row: Row = {"name": agent.name, "model": agent.model, "expected": left_out is not None}
    return row | {"path": left_out.path, "reason": left_out.reason} if left_out else row


def _only_ours(entry: Entry, problems: Sequence[Problem]) -> Row:
    reasons = [problem.reason for problem in problems if problem.path == entry.path]
    row: Row = {"name": entry.name, "source": entry.source, "path": entry.path}
    return row | {"reason": "; ".join(reasons)} if reasons else row


# --- Showing ------------------------------------------------------------------------------------------------


def summary(found: Comparison) -> str:
    """How many are the same, and how many are not."""
    parts = (
        (found.only_claude, "only Claude has"),
        (found.only_hocket, "only Hocket has"),
        (found.models, "with another model"),
        (found.descriptions, "with another description"),
    )
    differing = "".join(f", {len(rows)} {words}" for rows, words in parts if rows)
    return f"{found.same} the same as Claude's own list{differing}"


def shown(found: Comparison) -> str:
    """A line for each difference."""
    lines = [
        *(f"only Claude: {_described(row)}" for row in found.only_claude),
        *(f"only Hocket: {_described(row)}" for row in found.only_hocket),
        *(_differing("model", row) for row in found.models),
        *(_differing("description", row) for row in found.descriptions),
    ]
    return "".join(f"    {one_line(line)}\n" for line in lines)


def _differing(what: str, row: Row) -> str:
    ours, theirs = (_shortened(row[side]) for side in ("hocket", "claude"))
    why = f" ({row['reason']})" if "reason" in row else ""
    return f"{what} of {row['name']}: {ours}, Claude has {theirs}{why}"


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _described(row: Row) -> str:
    where = ", ".join(row[key] for key in ("source", "path") if key in row)
    name: str = row["name"]
    return name + (f" ({where})" if where else "") + (f": {row['reason']}" if "reason" in row else "")
