"""``hocket trust``: review and approve the agents and settings of a project. Never starts a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any

from hocket import config
from hocket.catalog.discovery import discover
from hocket.catalog.entries import PROJECT, AgentEntry, Catalog
from hocket.catalog.files import read_definition
from hocket.catalog.report import suggest_agents
from hocket.catalog.resolve import resolve
from hocket.cli import access
from hocket.cli.format import format_table
from hocket.cli.usage import CWD, FLAG, JSON, Argument, ArgumentError, Option, command
from hocket.config.loading import load
from hocket.config.settings import Config, approve_command, edge_command
from hocket.errors import AgentNotFound, BadDirectory, ConfigError, NotTrusted, ProgramNotFound, UsageError
from hocket.model import Agent
from hocket.providers.claude.paths import is_definition_path, marker
from hocket.providers.claude.privileges import mode_of, mode_with
from hocket.providers.definition_files import Privilege
from hocket.trust.approvals import (
    FILE,
    FOLDER,
    AgentIdentity,
    ApprovalRecord,
    Approvals,
    Edge,
    Pin,
    allow,
    approve,
    forbid,
    withdraw,
)
from hocket.trust.check import PROGRAM, authorize, known_agent, needed_approvals, reasons_of
from hocket.trust.preview import APPROVED, CHANGED, Explanation, explain_file, explain_folder
from hocket.views.text import date_and_time, escape_invisible, one_line
from hocket.workflows.git import Git

DECLINED = 1
EDGE = "edge"
GONE = "gone"
_ALWAYS = "always"
EXPLAINED = ("path", "kind", "state", "replaced", "against", "diff", "files")
"""The fields of an explanation that programs get as they are."""


@command(
    Argument("targets", "[TARGET]...", many=True, required=False),
    Option("-y", "--yes", kind=FLAG, help="Approve without asking; required without a terminal and with --json."),
    Option("--dry-run", kind=FLAG, help="Show what would be approved, and approve nothing."),
    Option("--list", name="listing", kind=FLAG, help="List approvals, and what has changed since."),
    Option("--remove", kind=FLAG, help="Revoke approvals."),
    Option("--edge", kind=FLAG, help="Let the first of two agents start the second with all its permissions."),
    CWD,
    JSON,
    examples=(
        "hocket trust reviewer",
        "hocket trust ~/src/shop/.claude/agents/reviewer.md",
        "hocket trust ~/src/shop",
        "hocket trust --list",
        "hocket trust --remove ~/src/shop",
        "hocket trust --edge orchestrator developer",
    ),
)
def trust(
    targets: Sequence[str],
    yes: bool,
    dry_run: bool,
    listing: bool,
    remove: bool,
    edge: bool,
    cwd: str | None,
    as_json: bool,
) -> int:
    """Approve the agents and settings of a project by their content: any change requires a new approval.

    TARGET is an agent's name, the file of its definition, or a folder (default: the current directory). The approval
    of a folder covers its settings, hooks, servers and Hocket's own files, or that there are none, and lets Claude read
    its CLAUDE.md, skills and sub-agents.

    An agent that another agent starts has at most the permissions of that agent. With --edge, the first TARGET may
    start the second with all permissions of the second.
    """
    if sum((dry_run, listing, remove)) > 1 or (listing and (targets or edge)):
        raise ArgumentError("give only one of --list, --dry-run and --remove; --list takes no TARGET")
    if not all(targets):
        # An empty path would mean the current directory.
        raise ArgumentError("a TARGET is empty: give an agent, a file or a folder")
    if edge and len(targets) != 2:
        raise ArgumentError("--edge takes two agents: the one that starts, and the one that is started")
    context = TrustContext(access.directory(cwd))
    if listing:
        return _list(context, as_json)
    if not dry_run and config.caller().run:
        raise UsageError("an agent cannot approve itself or another agent", "run this in your own terminal")
    if edge:
        caller, target = targets
        if remove:
            return _remove_edge(context, caller, target, as_json)
        return _allow_edge(context, caller, target, yes, dry_run, as_json)
    if remove:
        return _remove(context, targets, as_json)
    found = [one for target in targets or ["."] for one in context.explain(target)]
    return _show(found, as_json) if dry_run else _approve(found, yes, as_json)


# --- Targets ------------------------------------------------------------------------------------------


class TrustContext:
    """The directory and environment in which agents are looked up."""

    def __init__(self, cwd: str) -> None:
        if not os.path.isdir(cwd):
            raise BadDirectory(f"the directory {cwd} does not exist")
        self.cwd = cwd
        self.home = config.home()
        self.env = config.caller_environment()

    def approvals(self, folder: str) -> Approvals:
        return Approvals(load(folder, self.home, self.env))

    def catalog(self, folder: str) -> tuple[Catalog, Approvals]:
        approvals = self.approvals(folder)
        return discover(folder, self.env, self.home, approvals.config, approvals), approvals

    def explain(self, target: str) -> list[Explanation]:
        """What a target needs approval for; empty if it needs none."""
        path = os.path.normpath(os.path.join(self.cwd, target))
        if _is_name(target):
            catalog, approvals = self.catalog(self.cwd)
            entries = catalog.find(target)
            if entries:
                return _of_entry(entries[0], catalog, approvals, self.env)
            if not os.path.exists(path):
                raise AgentNotFound(f"there is no agent {target!r} in {self.cwd}", suggest_agents(target, catalog))
        return self._of_folder(path) if os.path.isdir(path) else self._of_file(path)

    def resolved(self, name: str, approvals: Approvals) -> tuple[Agent, AgentIdentity]:
        """The agent that a name or a path resolves to here, and how an edge refers to it."""
        settings = approvals.config
        catalog = cache(lambda: discover(self.cwd, self.env, self.home, settings, approvals))
        found = resolve(name, self.cwd, self.env, settings, catalog)
        agent = authorize(found, self.cwd, approvals, catalog)
        return agent, known_agent(name, agent, approvals, catalog)

    def _of_folder(self, path: str) -> list[Explanation]:
        """The explanations of a folder and its parents; the first lists programs that git may run there."""
        found = explain_folder(path, self.approvals(path))
        return [replace(one, asks=(*one.asks, *_asks_of_git(path, self.env))) for one in found[:1]] + found[1:]

    def _of_file(self, path: str) -> list[Explanation]:
        file = path if path.endswith(".md") or os.path.exists(path) else f"{path}.md"
        if not os.path.exists(file):
            raise AgentNotFound(f"{path} does not exist", "give an agent's name, its file, or a folder")
        if not file.endswith(".md"):
            raise UsageError(f"{path} is neither a definition nor a folder", f"its folder: {os.path.dirname(path)}")
        if is_definition_path(file):
            catalog, approvals = self.catalog(file.rpartition(marker)[0] or "/")
            entry = _entry_of(file, catalog)
            if entry is not None:
                return [one for one in _of_entry(entry, catalog, approvals, self.env) if one.kind == FILE]
        else:
            approvals = self.approvals(self.cwd)
        definition = read_definition(file, os.path.basename(file).removesuffix(".md"))
        reasons = reasons_of(definition, os.path.dirname(file), approvals)
        return [explain_file(file, approvals, reasons)] if reasons else []


def _is_name(target: str) -> bool:
    """False for a path."""
    return "/" not in target and target not in (".", "..")


def _asks_of_git(folder: str, env: Mapping[str, str]) -> Iterator[Privilege]:
    try:
        settings = Git(env).risky_settings(folder)
    except NotTrusted as error:
        yield Privilege(error.message)
    except (ProgramNotFound, UsageError):
        return
    else:
        for file, found in groupby(settings, key=lambda one: one.file):
            details = tuple(f"{one.key}: {one.value}" if one.key else one.value for one in found)
            yield Privilege(f"{file}: settings by which git may run programs; they are not covered", details)


def _entry_of(file: str, catalog: Catalog) -> AgentEntry | None:
    """The catalog entry of a file, even if another one has precedence."""
    entries = [entry for ranked in catalog.ranked.values() for entry in ranked if entry.source == PROJECT]
    by_path = (entry for entry in entries if entry.path == file)
    return next(by_path, None) or next((one for one in entries if os.path.realpath(one.path) == file), None)


def _of_entry(entry: AgentEntry, catalog: Catalog, approvals: Approvals, env: Mapping[str, str]) -> list[Explanation]:
    found: list[Explanation] = []
    for needed in needed_approvals(entry, catalog, approvals, env):
        if needed.is_folder:
            found += explain_folder(needed.target, approvals)
        else:
            found.append(explain_file(needed.target, approvals, needed.reasons))
    return found


# --- Approving ----------------------------------------------------------------------------------------------


def _approve(found: Sequence[Explanation], yes: bool, as_json: bool) -> int:
    """Show each explanation, ask unless ``yes``, and record what was shown."""
    home = config.home()
    approved: list[tuple[Explanation, Pin]] = []
    pending = [one for one in found if one.state != APPROVED]
    if pending and not yes and not access.can_ask(as_json):
        if not as_json:
            _show(pending, as_json)
        raise _unanswered(approve_command(*(one.path for one in pending)))
    for one in pending:
        if not as_json:
            access.write(shown(one))
        if yes or access.confirm(f"Approve {one_line(one.path)}?"):
            approved.append((one, approve(home, one.kind, one.path, one.content)))
            if not as_json:
                access.write(f"approved {one_line(one.path)}\n")
    if as_json:
        access.write_json(_as_json(found, approved))
    elif not pending:
        access.write_lines([f"approved already {one_line(one.path)}" for one in found] or ["nothing to approve"])
    return 0 if len(approved) == len(pending) else DECLINED


def _unanswered(line: str) -> NotTrusted:
    return NotTrusted(
        "nothing was approved: approval needs a terminal, or --yes",
        f"review what it asks for; to approve it, run in a terminal, or add --yes to: {line}",
    )


def _show(found: Sequence[Explanation], as_json: bool) -> int:
    if as_json:
        access.write_json(_as_json(found, []))
    else:
        access.write("".join(map(shown, found)) or "nothing to approve\n")
    return 0


def _as_json(found: Sequence[Explanation], approved: Sequence[tuple[Explanation, Pin]]) -> dict[str, Any]:
    return {
        "approved": [{"path": one.path, "kind": one.kind, "sha256": pin.sha256, "at": pin.at} for one, pin in approved],
        "explained": [
            {
                **{
                    name: getattr(one, name)
                    for name in ("path", "kind", "state", "replaced", "against", "diff", "files")
                },
                "asks": [ask._asdict() for ask in one.asks],
            }
            for one in found
        ],
    }


def shown(one: Explanation) -> str:
    """The text of an explanation, with control and invisible characters escaped."""
    # A line end within a hook's command could begin a line that says something else.
    text = "".join(f"{' ' * depth}{escape_invisible(line)}\n" for depth, line in _lines(one))
    if one.against is None:
        return text
    difference = "".join(f"    {escape_invisible(line)}\n" for line in one.diff) or "    no difference\n"
    return f"{text}  compared with {one_line(one.against)}:\n{difference}"


def _lines(one: Explanation) -> Iterator[tuple[int, str]]:
    """The lines of an explanation, each with its indentation."""
    words = {APPROVED: "approved as it is", CHANGED: "changed since you approved it"}.get(one.state, "not approved yet")
    yield 0, f"{one.path}: {words}"
    if one.files:
        yield 2, f"covered: {', '.join(one.files)}"
    elif one.kind == FOLDER:
        yield 2, "it has no settings, hooks or servers; adding any of them voids the approval"
    for ask in one.asks:
        yield 2, f"asks for {ask.what}" if one.kind == FILE else ask.what
        yield from ((6, detail) for detail in ask.details)
    if one.replaced:
        yield 2, f"replaces {one.replaced}"
    if one.kind == FOLDER:
        yield 2, "lets Claude read the folder's CLAUDE.md, skills and agents (as sub-agents)"
        programs = "programs that these files name are not covered; " if one.files else ""
        yield 2, f"{programs}agents are approved one by one, by their names"


# --- Edges --------------------------------------------------------------------------------------------------


def _allow_edge(context: TrustContext, caller: str, target: str, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Let one agent start another with all permissions of the other."""
    approvals = context.approvals(context.cwd)
    (starting, caller_known), (started, target_known) = (context.resolved(name, approvals) for name in (caller, target))
    if starting.provider == PROGRAM:
        raise UsageError(
            f"{caller} is a plain program: it needs no approval to start agents", "it has your own permissions"
        )
    if not as_json:
        if started.provider == PROGRAM:
            what = f"which is a plain program ({started.path}) with your own permissions"
        else:
            mode = mode_with(started.args, mode_of(started, approvals.config.claude.permission_mode))
            what = f"in its own permission mode, {mode}, regardless of the mode of the first"
        access.write_lines(
            [
                one_line(f"{caller_known.name} may start {target_known.name}, {what}"),
                *(f"  {one_line(known.path or known.name)}" for known in (caller_known, target_known)),
            ]
        )
    if not (dry_run or yes or access.can_ask(as_json)):
        raise _unanswered(edge_command(caller, target, context.cwd))
    given = not dry_run and (yes or access.confirm(f"Allow {one_line(caller)} -> {one_line(target)}?"))
    if given:
        allow(context.home, caller_known, target_known)
    if as_json:
        access.write_json({"allowed": given, **_edge_json(caller_known, target_known)})
    elif given:
        access.write(f"allowed {one_line(caller)} -> {one_line(target)}\n")
    return 0 if given or dry_run else DECLINED


def _remove_edge(context: TrustContext, caller: str, target: str, as_json: bool) -> int:
    """Remove an edge by its recorded names, because the agents may no longer exist."""
    recorded = _own_approvals(context)[1].edges
    edges = [one for one in recorded if (one.caller.name, one.target.name) == (caller, target)]
    edges = edges or [one for one in recorded if (one.caller.path, one.target.path) == (caller, target)]
    if not edges:
        raise UsageError(f"{caller} -> {target} is not allowed", "hocket trust --list shows what is")
    forbid(context.home, edges)
    if as_json:
        access.write_json({"removed": [{"kind": EDGE, **_edge_json(one.caller, one.target)} for one in edges]})
    else:
        access.write_lines(f"no longer allowed: {_arrow(one)}" for one in edges)
    return 0


def _edge_json(caller: AgentIdentity, target: AgentIdentity) -> dict[str, Any]:
    known = {"caller": caller, "target": target}
    return {role: {"name": one.name, "path": one.path} for role, one in known.items()}


def _arrow(edge: Edge) -> str:
    ends = (
        f"{one.name} ({one.path})" if one.path and one.path != one.name else one.name
        for one in (edge.caller, edge.target)
    )
    return one_line(" -> ".join(ends))


# --- Approvals ---------------------------------------------------------------------------------------


def _list(context: TrustContext, as_json: bool) -> int:
    """List the trusted folders of the configuration, the approvals by content, and the edges."""
    approvals, record = _own_approvals(context)
    rows: list[dict[str, Any]] = [
        {"path": folder, "kind": FOLDER, "at": None, "state": _ALWAYS} for folder in approvals.config.trusted_folders
    ]
    for kind in (FOLDER, FILE):
        for path, pin in sorted(record.of(kind).items()):
            rows.append({"path": path, "kind": kind, "at": pin.at, "state": approvals.state(kind, path)})
    for edge in record.edges:
        is_there = all(one.path is None or os.path.exists(one.path) for one in (edge.caller, edge.target))
        row = {"path": _arrow(edge), "kind": EDGE, "at": edge.at, "state": APPROVED if is_there else GONE}
        rows.append(row | _edge_json(edge.caller, edge.target))
    if as_json:
        access.write_json(rows)
    elif not rows:
        access.write("nothing is approved\n")
    else:
        cells = [[row["state"], row["kind"], date_and_time(row["at"]), one_line(row["path"])] for row in rows]
        access.write_lines(format_table([["STATE", "KIND", "SINCE", "PATH"], *cells]))
    return 0


def _own_approvals(context: TrustContext) -> tuple[Approvals, ApprovalRecord]:
    """The approvals of the user; the configuration of the directory is ignored if it is invalid."""
    try:
        approvals = context.approvals(context.cwd)
    except ConfigError:
        approvals = Approvals(Config(home=context.home))
    record = approvals.record
    if approvals.damage:
        raise approvals.damage
    return approvals, record


def _remove(context: TrustContext, targets: Sequence[str], as_json: bool) -> int:
    removed = [one for target in targets or ["."] for one in _withdraw(context, target)]
    if as_json:
        access.write_json({"removed": [{"path": path, "kind": kind} for path, kind in removed]})
    else:
        access.write_lines(f"no longer approved: {one_line(path)}" for path, _ in removed)
    return 0


def _withdraw(context: TrustContext, target: str) -> list[tuple[str, str]]:
    """Withdraw the approvals of a path, or of the definitions of an agent's name."""
    path = os.path.normpath(os.path.join(context.cwd, target))
    paths = [path, os.path.realpath(path)]
    if _is_name(target):
        with suppress(ConfigError, NotTrusted):
            paths += [os.path.realpath(entry.path) for entry in context.catalog(context.cwd)[0].find(target)]
    withdrawn = [
        (one, kind) for one in dict.fromkeys(paths) for kind in (FILE, FOLDER) if withdraw(context.home, kind, one)
    ]
    if not withdrawn:
        raise UsageError(f"{target} is not approved", "hocket trust --list shows what is")
    return withdrawn
