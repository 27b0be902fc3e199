"""``doctor gc``: check the installation, compare the catalog with Claude's, restore the database, remove old runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from hocket import __version__, config
from hocket.catalog.discovery import discover
from hocket.catalog.explanation import runtime_row
from hocket.cli import access
from hocket.cli.agent_comparison import comparison_lines, comparison_summary
from hocket.cli.agent_comparison import verify as compare_agents
from hocket.cli.format import format_table
from hocket.cli.server import has_service
from hocket.cli.usage import COUNT, DAYS, FLAG, JSON, SIZE, ArgumentError, Option, command
from hocket.client import Client
from hocket.client.startup import lock_held, parse_version, read_lock
from hocket.config.loading import load
from hocket.errors import BadDirectory, Conflict, HocketError, ProgramNotFound
from hocket.keeper import platform
from hocket.keeper.programs import run_tool
from hocket.keeper.run_directories import DiskUse, disk_use
from hocket.providers import PROVIDERS
from hocket.providers.defining import DEFINING_PROVIDER
from hocket.sessions.home import DATABASE, locked, prepare
from hocket.sessions.restore import damage, restore
from hocket.sessions.run_identity import RUNS
from hocket.store import check
from hocket.store.opening import sqlite_version
from hocket.trust.approvals import Approvals
from hocket.trust.approvals import read as read_approvals
from hocket.trust.check import check_configuration, configuration
from hocket.views.event_text import shorten
from hocket.views.text import age, one_line, size_text
from hocket.workflows.team_mode import mode_of_program
from hocket.workflows.worktrees import FOLDER as WORKTREES

OLDEST_SQLITE = (3, 35, 0)
FIXED_SQLITE = (3, 51, 3)
"""The first SQLite without a bug with several writers. Hocket has one writer."""

DECLINED = 1
VERSION_SECONDS = 10.0
INSTALL_CLAUDE = "npm install -g @anthropic-ai/claude-code, or set HOCKET_CLAUDE to the program"
MEASURE_SECONDS = 3.0
"""Time to look at runs and worktrees: what is not seen by then is not counted."""
LARGE = 5 * 1024**3
"""Bytes of runs and database from which it is worth removing some."""
REMOVED_AT_ONCE = 100
"""Rows of one request, so that there is progress to report."""


class ClaudeFeature(NamedTuple):
    """A feature of the Claude CLI that runs need, and the oldest version known to have it."""

    name: str
    since: tuple[int, ...]
    flags: str
    without: str = "no run starts"


CLAUDE_FEATURES = (
    ClaudeFeature("print and stream", (2, 0), "--print with --input-format and --output-format stream-json"),
    ClaudeFeature("questions", (2, 1, 259), "--permission-prompts"),
    ClaudeFeature("definitions", (2, 1, 281), "--agents with a file", "no agent that has a definition starts"),
)
"""The oldest first; each version is the first that had the feature among those tried, 2.1.176 to 2.1.325."""


class Check(NamedTuple):
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


@command(
    Option("--restore", kind=FLAG, help="Rebuild the database from the files of runs and tasks; the old one is kept."),
    Option("--verify", kind=FLAG, help="Compare the agents found here with those that the Claude CLI loads."),
    Option("--project", metavar="DIR", help="With --verify: compare the agents of this directory."),
    JSON,
    examples=("hocket doctor", "hocket doctor --json", "hocket doctor --verify", "hocket doctor --restore"),
)
def doctor(restore: bool, verify: bool, project: str | None, as_json: bool) -> int:
    """Check the installation and configuration. Starts nothing, and changes nothing without --restore.

    With --verify the Claude CLI lists the agents it would load. It runs in a stand-in of this directory, so nothing of
    the directory is executed, nothing of yours is written, and no model is used.
    """
    if project is not None and not verify:
        raise ArgumentError("--project needs --verify")
    if restore:
        if verify:
            raise ArgumentError("give --restore or --verify, not both")
        return _restore(config.home(), as_json)
    found = list(checks(config.home()))
    report: dict[str, Any] = {}
    lines = ""
    if verify:
        check, report, lines = _verify(project)
        found.append(check)
    healthy = all(check.ok for check in found)
    if as_json:
        access.write_json(
            {"ok": healthy, "checks": [check._asdict() for check in found]} | ({"verify": report} if verify else {})
        )
    else:
        access.write("".join(_shown(check) for check in found) + lines)
    return 0 if healthy else 1


def _verify(project: str | None) -> tuple[Check, dict[str, Any], str]:
    """The comparison with the CLI: as a check, as data, and as lines."""
    cwd = access.directory(project)
    if not os.path.isdir(cwd):
        raise BadDirectory(f"{cwd} is not a directory")
    env = config.caller_environment()
    program = _claude_program(env)
    if program is None:
        named = env.get("HOCKET_CLAUDE", "claude")
        raise ProgramNotFound(f"nothing to compare with: {named} is not a program", INSTALL_CLAUDE)
    about = {"program": program, "project": cwd}
    try:
        found = compare_agents(program, cwd, env, config.home())
    except HocketError as error:  # for example an old program, which another check reports
        return Check("agents", False, error.message, error.hint), about | {"error": error.message}, ""
    check = Check("agents", found.equal, comparison_summary(found))
    return check, found._asdict() | about, comparison_lines(found)


def _restore(home: str, as_json: bool) -> int:
    """Rebuild a lost or damaged database from the run directories."""
    place = Path(home)
    prepare(place)
    with locked(place):
        trouble = damage(place)
        if trouble is None:
            raise Conflict("the database is intact; nothing to restore")
        restored = restore(place)
    if as_json:
        access.write_json({**restored._asdict(), "aside": str(restored.aside), "trouble": trouble})
        return 0
    access.write(f"{restored.runs} runs and {restored.tasks} tasks were restored from their directories")
    access.write(f", {restored.unreadable} directories are unusable\n" if restored.unreadable else "\n")
    for line in restored.left_out:
        access.write(f"left out: {one_line(line)}\n")
    old = "the damaged database" if (restored.aside / DATABASE).exists() else "what was left beside the lost database"
    access.write(f"{old} is in {restored.aside}\n")
    return 0


def _shown(check: Check) -> str:
    hint = f"\n    hint: {check.hint}" if check.hint else ""
    return f"{'✓' if check.ok else '✗'} {check.name:<12} {check.detail}{hint}\n"


def checks(home: str) -> Iterator[Check]:
    """Every check, the most basic first; an error counts as a failure."""
    for name, function in CHECKS.items():
        try:
            yield Check(name, *function(home))
        except HocketError as error:
            yield Check(name, False, error.message, error.hint)
        except (OSError, ImportError, ValueError) as error:
            yield Check(name, False, f"{type(error).__name__}: {error}")


Outcome = tuple[bool, str, str | None]
"""Whether a check succeeded, the details, and what to do."""


def check_python(_home: str) -> Outcome:
    version = ".".join(map(str, sys.version_info[:3]))
    return sys.version_info >= (3, 11), f"{version} at {sys.executable}", None


def check_home(home: str) -> Outcome:
    if not os.path.lexists(home):
        parent = _existing(os.path.dirname(home))
        if _writable(parent):
            return True, f"{home} will be created by the first run", None
        return False, f"{home} cannot be created: {parent} is not writable", "set HOCKET_HOME to a writable place"
    if os.path.islink(home):
        return False, f"{home} is a symbolic link", "set HOCKET_HOME to the directory that it points to"
    if not os.path.isdir(home):
        return False, f"{home} is not a directory", "move it away, or set HOCKET_HOME"
    found = os.stat(home)
    if found.st_uid != os.getuid():
        return False, f"{home} is owned by user {found.st_uid}", "set HOCKET_HOME to a directory of your own"
    if found.st_mode & 0o077:
        return False, f"{home} is open to others (mode {found.st_mode & 0o777:o})", f"chmod 700 {home}"
    if not _writable(home):
        return False, f"{home} cannot be written", "is the file system mounted read-only?"
    return True, home, None


def _writable(folder: str) -> bool:
    """Try it with an unnamed file: permission bits are not conclusive."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _existing(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def check_disk(home: str) -> Outcome:
    room = os.statvfs(_existing(home))
    free = room.f_bavail * room.f_frsize // 2**20
    least = load(home, home).limits.min_free_mb
    hint = f"below {least} MB no run is started: free some space, or change [limits] min_free_mb"
    return free >= least, f"{free} MB free, {least} MB needed", None if free >= least else hint


def check_space(home: str) -> Outcome:
    """Report what the home takes. Never a failure: ``check_disk`` is about what is left."""
    if not os.path.isdir(home):
        return True, "nothing yet", None
    deadline = time.monotonic() + MEASURE_SECONDS
    runs, worktrees = (disk_use(os.path.join(home, name), deadline) for name in (RUNS, WORKTREES))
    database = sum(path.stat().st_size for path in Path(home).glob(f"{DATABASE}*"))
    hint = None
    if runs.bytes + database > LARGE:
        hint = "old runs can be removed: hocket gc --dry-run" + ("" if any(load(home, home).keep) else " --days 30")
    parts = {"runs": runs, "database": DiskUse(database), "worktrees": worktrees}
    texts = [f"{name} {'' if use.is_complete else 'over '}{size_text(use.bytes)}" for name, use in parts.items()]
    return True, ", ".join(texts), hint


def check_locks(home: str) -> Outcome:
    """Check that locks exclude each other: a lock decides whether a run is alive."""
    with tempfile.NamedTemporaryFile(dir=_existing(home), prefix=".hocket-doctor-") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(file.name, "rb") as second:
            try:
                fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True, "file locks work", None
    return False, "file locks do not work on this file system", "set HOCKET_HOME to a local file system"


def check_socket(home: str) -> Outcome:
    path = config.socket_path(home)
    size = len(os.fsencode(path))
    moved = "" if path.startswith(home) else " (the path of HOCKET_HOME is too long for a socket)"
    limit = config.SOCKET_PATH_LIMIT
    return size <= limit, f"{path}, {size} of {limit} bytes{moved}", None


def check_config(home: str) -> Outcome:
    loaded = load(access.directory(None), home)
    check_configuration(Approvals(loaded))
    return True, "; ".join([", ".join(loaded.files) or "no configuration file", *loaded.ignored]), None


def check_trust(home: str) -> Outcome:
    approved = read_approvals(home)
    count = len(approved.files) + len(approved.folders) + len(approved.edges)
    return True, f"{count} approval{'s' if count != 1 else ''}" if count else "no approvals", None


def check_server(home: str) -> Outcome:
    if not lock_held(home):
        return True, "not running; started when needed", None
    health = access.connect(starting=False).request("GET", "/api/health")
    return True, f"pid {health['pid']} answers, {health['runs_live']} live runs", None


def check_version(home: str) -> Outcome:
    theirs = read_lock(home).get("version") if lock_held(home) else None
    if theirs in (None, __version__):
        return True, __version__, None
    return False, f"this is {__version__}, the server is {theirs}", "stop it with: hocket server stop"


def check_database(home: str) -> Outcome:
    path = Path(home) / DATABASE
    trouble = check(path)
    if trouble is not None:
        return False, trouble.message, trouble.hint
    return True, f"{path} is intact" if path.exists() else "none yet", None


def check_sqlite(_home: str) -> Outcome:
    version = sqlite_version()
    number = tuple(map(int, version.split(".")))
    if number < OLDEST_SQLITE:
        return False, f"{version} is too old", "use a Python that comes with a newer SQLite"
    note = "" if number >= FIXED_SQLITE else "; known multi-writer bug; does not affect Hocket"
    return True, f"{version}{note}", None


def check_processes(_home: str) -> Outcome:
    if sys.platform != "linux":
        return True, "works; that no process is left behind can be verified only on Linux", None
    watcher = platform.Inotify()
    watcher.close()
    own = platform.start_time(os.getpid())
    if own is None or not platform.boot_id():
        return False, "/proc does not show processes", "mount /proc"
    identity = platform.open_identity(os.getpid(), own)
    if identity is None:
        return False, "this kernel has no pidfd", "Linux 5.3 or newer is needed"
    os.close(identity)
    return True, "pidfd, inotify and /proc work", None


def check_programs(_home: str) -> Outcome:
    path = config.caller_environment().get("PATH", "")
    folders = [folder for folder in path.split(os.pathsep) if folder]
    there = [folder for folder in folders if os.path.isdir(folder)]
    if not there:
        return False, f"no directory on PATH exists: {path!r}", "set PATH"
    shell = os.access("/bin/sh", os.X_OK)
    return shell, f"{len(there)} directories on PATH; /bin/sh {'works' if shell else 'is missing'}", None


def check_claude(_home: str) -> Outcome:
    """Run only ``--version``, which reads and writes no file of the user's."""
    env = config.caller_environment()
    program = _claude_program(env)
    if program is None:
        return _not_found("HOCKET_CLAUDE", "Claude agents", INSTALL_CLAUDE)
    output = _version_output(program, env, INSTALL_CLAUDE)
    version = parse_version(output)
    if not version:
        return False, f"{program} prints no version: {output[:80]!r}", INSTALL_CLAUDE
    lacks = [feature for feature in CLAUDE_FEATURES if version < feature.since]
    works = ", ".join(feature.name for feature in CLAUDE_FEATURES if feature not in lacks)
    where = f"{output.split()[0]} at {program}"
    if not lacks:
        return True, f"{where}; works: {works}", None
    missing = "; ".join(f"{feature.name} need {feature.flags}" for feature in lacks)
    hint = f"{missing}: supported since {'.'.join(map(str, lacks[-1].since))}; update it: claude update"
    has = f": it has {works}" if works else ""
    return False, f"{where}; {lacks[0].without} with it{has}", hint


def check_teams(home: str) -> Outcome:
    """Report in which mode the CLI has teams, by what a start with a team finds out. Teams are optional."""
    env = config.caller_environment()
    program, start = _claude_program(env), PROVIDERS[DEFINING_PROVIDER].team_start
    if program is None or start is None:
        return True, "not available: the Claude CLI was not found", None
    mode = mode_of_program(start, program, access.directory(None), env, home if os.path.isdir(home) else None)
    if mode.version is None:
        return True, f"unknown: {program} does not say its version", None
    where = "in a terminal that Hocket keeps" if mode.terminal else "in print mode"
    if mode.obstacle is None:
        return True, f"available {where}", None
    return True, f"available {where}, but not yet: {mode.obstacle.problem}", mode.obstacle.hint


def check_other_cli(provider: str) -> Outcome:
    """Optional: without it, what names no such CLI runs as before."""
    env, program = config.caller_environment(), PROVIDERS[provider].program
    assert program is not None  # noqa: S101 - only CLIs are checked, and each of them has one
    path = _which(env.get(program.variable) or program.name, env)
    if path is None:
        return _not_found(program.variable, f"agents that run with {program.label}", program.install)
    return True, f"{_version_output(path, env, program.install).split()[-1]} at {path}", None


def _not_found(variable: str, needed_for: str, install: str) -> Outcome:
    if named := config.process_environment().get(variable):
        return False, f"{variable} is {named}, which is not a program", "correct it, or unset it"
    return True, f"not found; needed only for {needed_for}", install


def check_models(home: str) -> Outcome:
    """Check that each definition here has a CLI for its model. Whether the default one is there is another check."""
    cwd, env = access.directory(None), config.process_environment()
    approvals, _ = configuration(cwd, home, env)
    catalog = discover(cwd, env, home, approvals.config, approvals)
    found = (catalog.addresses[name] for name in catalog.ranked)
    rows = {name: runtime_row(name, cwd, env, approvals.config, lambda: catalog) for name in found}
    broken = {name: row for name, row in rows.items() if row["problem"] and row["provider"] != DEFINING_PROVIDER}
    counts = Counter(row["provider"] for row in rows.values() if row["runtime"] and not row["problem"])
    counted = ", ".join(f"{number} with {name}" for name, number in counts.most_common()) or "none"
    if not broken:
        return True, f"definitions that can run here: {counted}", None
    name, row = next(iter(broken.items()))
    others = f"; {len(broken) - 1} more cannot run: {shorten(', '.join([*broken][1:]), 60)}" if len(broken) > 1 else ""
    return False, f"{name} cannot run: {row['problem']}{others}", f"hocket agents {name} --why"


def check_environment(home: str) -> Outcome:
    """Check that the server finds the CLI, for requests without an environment of their own."""
    if not lock_held(home):
        return True, "no server is running; it gets the environment of the command that starts it", None
    try:
        theirs = access.connect(starting=False).request("GET", "/api/health").get("environment")
    except HocketError:
        theirs = None  # reported by the check of the server
    if theirs is None:
        return True, "unknown: the server does not report it", None
    here, there = _claude_program(config.program_places()), _claude_program(theirs)
    if here and not there:
        searched = theirs.get("HOCKET_CLAUDE") or f"PATH {theirs.get('PATH') or 'not set'}"
        detail = f"the server does not find claude ({searched}); here it is {here}"
        restart = f"{'hocket setup service && ' if has_service() else ''}hocket server stop && hocket ps"
        return False, detail, f"Claude runs started over HTTP fail; restart the server from here: {restart}"
    if here != there:
        return True, f"claude is {there} for the server and {here or 'not found'} here", None
    return True, f"the server finds {there}" if there else "the server does not find claude either", None


def _claude_program(env: dict[str, str]) -> str | None:
    return _which(env.get("HOCKET_CLAUDE") or "claude", env)


def _which(name: str, env: dict[str, str]) -> str | None:
    return shutil.which(name, path=env.get("PATH"))


def _version_output(program: str, env: dict[str, str], install: str) -> str:
    try:
        done = run_tool([program, "--version"], "/", env, VERSION_SECONDS, 4096)
    except OSError as error:
        # If the file exists, the interpreter in its first line does not.
        why = f"{program} cannot be started: {error.strerror}"
        raise HocketError(why, f"check its first line, or reinstall it: {install}") from error
    if done.timed_out:
        raise HocketError(f"{program} --version prints nothing within {VERSION_SECONDS:.0f} s", "try to start it")
    output = done.output.decode(errors="replace").strip()
    if done.code != 0:
        raise HocketError(f"{program} --version exits with {done.code}: {output[:80]!r}", install)
    return output


CHECKS: dict[str, Callable[[str], Outcome]] = {
    "python": check_python,
    "home": check_home,
    "disk": check_disk,
    "space": check_space,
    "locks": check_locks,
    "socket": check_socket,
    "config": check_config,
    "trust": check_trust,
    "server": check_server,
    "version": check_version,
    "database": check_database,
    "sqlite": check_sqlite,
    "processes": check_processes,
    "programs": check_programs,
    "claude": check_claude,
    "teams": check_teams,
    "codex": lambda _home: check_other_cli("codex"),
    "cursor": lambda _home: check_other_cli("cursor"),
    "models": check_models,
    "environment": check_environment,
}


# --- Removing old runs --------------------------------------------------------------------------------------

Row = dict[str, Any]


@command(
    Option("--days", kind=DAYS, metavar="N", help="Remove runs that ended more than N days ago; 0 is all ended ones."),
    Option("--runs", kind=COUNT, metavar="N", help="Keep the newest N runs, each with everything below it."),
    Option("--bytes", kind=SIZE, metavar="SIZE", help="Keep the newest runs up to this size, such as 500MB or 10GB."),
    Option("--dry-run", kind=FLAG, help="List what would be removed, and remove nothing."),
    Option("-y", "--yes", kind=FLAG, help="Remove without asking; required without a terminal and with --json."),
    JSON,
    examples=("hocket gc --dry-run", "hocket gc --days 30", "hocket gc --runs 1000 --bytes 10GB --yes"),
)
def gc(
    days: float | None,
    runs: int | None,
    bytes: int | None,  # noqa: A002 - the name of the option
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove old runs with their output and history. Lists them first, then asks.

    An option replaces the value under [keep] in config.toml. A run is removed together with everything below it and
    with the runs that resume it. A run stays while one of these has not ended, while its task is neither finished nor
    archived, and while a worktree of it is left. Tasks keep the records of their hand-offs.
    """
    client = access.connect(talk=not as_json)
    given = {name: value for name, value in (("days", days), ("runs", runs), ("bytes", bytes)) if value is not None}
    plan: Row = client.request("GET", f"/api/gc?{urlencode(given)}")
    rows: list[Row] = plan["would_remove"]
    if not as_json:
        _show_plan(plan)
    elif dry_run or not yes:
        access.write_json(plan)
    if dry_run or not (rows or (yes and as_json)):
        return 0
    if not yes and not access.can_ask(as_json):
        print("hocket: nothing was removed: removing runs needs a terminal, or --yes", file=sys.stderr)
        return access.EXIT_ASKS
    if not yes and not access.confirm(f"Remove {_summary(rows)}?"):
        return DECLINED
    done = _remove(client, rows, show=not as_json)
    if as_json:
        access.write_json({**done, "kept": [*plan["kept"], *done["kept"]], "more": plan["more"]})
    return 1 if done["left"] else 0


def _show_plan(plan: Row) -> None:
    """List what would be removed on standard output; what is kept all the same is a message."""
    rows, now = plan["would_remove"], time.time()
    if rows:
        cells = [["RUN", "AGENT", "ENDED", "RUNS", "SIZE", "WHY"]]
        for row in rows:
            ended = f"{age(now - row['ended_at'])} ago"
            size = size_text(row["bytes"])
            cells.append([str(row["number"]), one_line(row["agent"]), ended, str(row["runs"]), size, row["reason"]])
        access.write_lines(format_table(cells, access.terminal_width()))
    sys.stdout.flush()
    for row in plan["kept"]:
        print(f"kept: run {row['number']} ({one_line(row['agent'])}): {row['reason']}", file=sys.stderr)
    more = f"; {plan['more']} more are left for the next hocket gc" if plan["more"] else ""
    print(f"{_summary(rows)}{more}" if rows else "Nothing to remove.", file=sys.stderr)


def _summary(rows: Sequence[Row]) -> str:
    count = sum(row["runs"] for row in rows)
    return f"{count} run{'' if count == 1 else 's'}, {size_text(sum(row['bytes'] for row in rows))}"


def _remove(client: Client, rows: Sequence[Row], *, show: bool) -> Row:
    """Remove the runs of these rows in several requests; an interrupt leaves the remaining ones as they are."""
    by_run = {row["run"]: row for row in rows}
    removed: list[Row] = []
    kept: list[Row] = []
    left: list[Row] = []
    try:
        for start in range(0, len(rows), REMOVED_AT_ONCE):
            some = rows[start : start + REMOVED_AT_ONCE]
            done = client.request(
                "POST", "/api/gc", {"runs": [run for row in some for run in (row["run"], *row["also"])]}
            )
            removed += [by_run[one["run"]] for one in done["removed"] if one["run"] in by_run]
            kept += done["kept"]
            left = done["left"]
            if show and sys.stderr.isatty():
                print(f"\r{len(removed)} of {len(rows)} removed", end="", file=sys.stderr, flush=True)
    finally:
        if show:
            sys.stderr.write("\r" if sys.stderr.isatty() else "")
            print(f"removed {_summary(removed)}", file=sys.stderr)
    for row in kept if show else ():
        print(f"kept: run {row.get('number') or row['run']}: {row['reason']}", file=sys.stderr)
    for row in left if show else ():
        print(f"hocket: {one_line(row['dir'])} cannot be removed: {one_line(row['error'])}", file=sys.stderr)
    return {"removed": removed, "kept": kept, "left": left, "bytes": sum(row["bytes"] for row in removed)}
