"""Compare the catalog with the agents that the real CLI lists: by name, model and description."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patience import PATIENCE

from hocket import config
from hocket.catalog.discovery import discover
from hocket.catalog.entries import GLOBAL, MANAGED, PLUGIN, PROJECT, Catalog, Entry, Problem
from hocket.catalog.files import names_in
from hocket.providers.claude.definitions import normalise_model
from hocket.providers.claude.frontmatter import parse
from hocket.providers.definition_files import DUPLICATE, HIDDEN, REFUSED, SKIPPED, Head
from hocket.trust.check import configuration

SHARED_SOURCES = (MANAGED, PROJECT, GLOBAL, PLUGIN)
"""The sources that the Claude CLI has, too."""

Row = dict[str, Any]

ARGUMENTS = (
    *("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"),
    *("--no-session-persistence", "--strict-mcp-config"),
    *("--settings", json.dumps({"disableAllHooks": True})),
)
"""No hook is run, no server of tools is started, no transcript is written."""
REQUEST = json.dumps({"type": "control_request", "request_id": "agents", "request": {"subtype": "initialize"}}).encode()
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}


class Listed(NamedTuple):
    """One agent of the CLI's own list."""

    name: str
    description: str
    model: str | None


def agents_listed(output: bytes) -> list[Listed] | None:
    """The agents that its answer names; None when there is no answer in what it wrote."""
    for line in output.splitlines():
        agents = _agents_in(line)
        if agents is not None:
            return [_listed(agent) for agent in agents if isinstance(agent, dict)]
    return None


def _agents_in(line: bytes) -> list[Any] | None:
    try:
        found = json.loads(line)
        agents = found["response"]["response"]["agents"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return agents if isinstance(agents, list) else None


def _listed(agent: dict[str, Any]) -> Listed:
    model = agent.get("model")
    return Listed(str(agent.get("name")), str(agent.get("description")), None if model is None else str(model))


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


def verify(program: Path, cwd: Path, env: Mapping[str, str]) -> Comparison:
    """Compare for one directory."""
    home = config.home()
    approvals, _ = configuration(str(cwd), home, env)
    catalog = discover(str(cwd), env, home, approvals.config, approvals)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as nowhere:
        built_in = list_agents(program, Path(nowhere), {**env, "HOME": nowhere, "CLAUDE_CONFIG_DIR": nowhere})
    return compare(catalog, list_agents(program, cwd, env), built_in)


def list_agents(program: Path, cwd: Path, env: Mapping[str, str]) -> list[Listed]:
    """The agents that the CLI would load in a directory."""
    done = subprocess.run(
        [program, *ARGUMENTS], input=REQUEST, cwd=cwd, env=env, capture_output=True, timeout=PATIENCE, check=True
    )
    listed = agents_listed(done.stdout)
    assert listed is not None, done.stdout
    return listed


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
    return next((entry for entry in ranked if entry.source in SHARED_SOURCES), None)


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
    return None if name is None or name.lower() == "inherit" else normalise_model(name.strip())


def _left_out(problems: Sequence[Problem]) -> Iterator[tuple[str, Problem]]:
    """Who is in the files and folders that only we leave out, with the reason."""
    for problem in problems:
        if problem.cli_loads and problem.kind in (HIDDEN, SKIPPED, REFUSED):
            for name in _names_at(problem.path):
                yield name, problem


def _names_at(path: str) -> list[str]:
    """A file that even we cannot read so far goes by its own name."""
    if os.path.isdir(path):
        return names_in(path)
    name = _name_in(path)
    return [name or os.path.basename(path).removesuffix(".md")]


def _name_in(path: str) -> str | None:
    """The name in a file's frontmatter, also if Hocket refuses the file."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    head = parse(content)
    found = re.search(rb"^name: *(.+)$", content, re.MULTILINE)
    return head.values.get("name") if isinstance(head, Head) else found[1].decode() if found else None


def _only_theirs(agent: Listed, left_out: Problem | None) -> Row:
    """What we leave out, and say so, is meant to differ."""
    row: Row = {"name": agent.name, "model": agent.model, "expected": left_out is not None}
    return row | {"path": left_out.path, "reason": left_out.reason} if left_out else row


def _only_ours(entry: Entry, problems: Sequence[Problem]) -> Row:
    reasons = [problem.reason for problem in problems if problem.path == entry.path]
    row: Row = {"name": entry.name, "source": entry.source, "path": entry.path}
    return row | {"reason": "; ".join(reasons)} if reasons else row
