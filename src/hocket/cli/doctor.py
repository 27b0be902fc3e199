"""``hocket doctor``: check the installation, compare the catalog with the Claude CLI, restore the database."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hocket import __version__, config
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
from hocket.cli import access
from hocket.cli.server import has_service
from hocket.cli.usage import FLAG, JSON, ArgumentError, Option, command
from hocket.client.startup import lock_held, parse_version, read_lock
from hocket.config.loading import load
from hocket.errors import BadDirectory, Conflict, HocketError, ProgramNotFound
from hocket.keeper import platform
from hocket.keeper.programs import run_tool
from hocket.providers.claude.listing import ARGUMENTS, ENVIRONMENT, REQUEST, Listed, agents_listed, only_choices
from hocket.providers.codex import PROGRAM as CODEX
from hocket.sessions.home import DATABASE, locked, prepare
from hocket.sessions.restore import damage, restore
from hocket.store import check
from hocket.store.opening import sqlite_version
from hocket.trust.approvals import Approvals
from hocket.trust.approvals import read as read_approvals
from hocket.trust.check import check_configuration, configuration
from hocket.views.text import one_line

OLDEST_SQLITE = (3, 35, 0)
FIXED_SQLITE = (3, 51, 3)
"""The first SQLite without a bug with several writers. Hocket has one writer."""

VERSION_SECONDS = 10.0
INSTALL_CLAUDE = "npm install -g @anthropic-ai/claude-code, or set HOCKET_CLAUDE to the program"
LAST_TEAMS_IN_PRINT = (2, 1, 177)


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
    compared = _verify(project) if verify else None
    found = [*checks(config.home()), *([compared.check] if compared else [])]
    healthy = all(check.ok for check in found)
    if as_json:
        told = {"ok": healthy, "checks": [check._asdict() for check in found]}
        access.write_json(told | ({"verify": compared.data} if compared else {}))
    else:
        access.write("".join(_shown(check) for check in found) + (compared.lines if compared else ""))
    return 0 if healthy else 1


class _Compared(NamedTuple):
    """The comparison with the CLI: as a check, as data, and as lines."""

    check: Check
    data: dict[str, Any]
    lines: str


def _verify(project: str | None) -> _Compared:
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
        found = verify(program, cwd, env, config.home())
    except HocketError as error:  # for example an old program, which another check reports
        return _Compared(Check("agents", False, error.message, error.hint), about | {"error": error.message}, "")
    check = Check("agents", found.equal, comparison_summary(found))
    return _Compared(check, found._asdict() | about, comparison_lines(found))


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
    """Every check, the most basic first."""
    yield _guarded("python", check_python)
    yield _guarded("home", lambda: check_home(home))
    yield _guarded("disk", lambda: check_disk(home))
    yield _guarded("locks", lambda: check_locks(home))
    yield _guarded("socket", lambda: check_socket(home))
    yield _guarded("config", lambda: check_config(home))
    yield _guarded("trust", lambda: check_trust(home))
    yield _guarded("server", lambda: check_server(home))
    yield _guarded("version", lambda: check_version(home))
    yield _guarded("database", lambda: check_database(home))
    yield _guarded("sqlite", check_sqlite)
    yield _guarded("processes", check_processes)
    yield _guarded("programs", check_programs)
    yield _guarded("claude", check_claude)
    yield _guarded("codex", check_codex)
    yield _guarded("environment", lambda: check_environment(home))


def _guarded(name: str, look: Callable[[], tuple[bool, str, str | None]]) -> Check:
    """Run a check; an error counts as a failure."""
    try:
        return Check(name, *look())
    except HocketError as error:
        return Check(name, False, error.message, error.hint)
    except (OSError, ImportError, ValueError) as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


Look = tuple[bool, str, str | None]


def check_python() -> Look:
    version = ".".join(map(str, sys.version_info[:3]))
    return sys.version_info >= (3, 11), f"{version} at {sys.executable}", None


def check_home(home: str) -> Look:
    if not os.path.lexists(home):
        return _check_new_home(home)
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


def _check_new_home(home: str) -> Look:
    parent = _existing(os.path.dirname(home))
    good = _writable(parent)
    where = "will be created by the first run" if good else f"cannot be created: {parent} is not writable"
    return good, f"{home} {where}", None if good else "set HOCKET_HOME to a writable place"


def check_disk(home: str) -> Look:
    room = os.statvfs(_existing(home))
    free = room.f_bavail * room.f_frsize // 2**20
    least = load(home, home).limits.min_free_mb
    hint = f"below {least} MB no run is started: free some space, or change [limits] min_free_mb"
    return free >= least, f"{free} MB free, {least} MB needed", None if free >= least else hint


def check_locks(home: str) -> Look:
    """Two descriptors of one file must exclude each other: the lock tells whether a run is alive."""
    with tempfile.NamedTemporaryFile(dir=_existing(home), prefix=".hocket-doctor-") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(file.name, "rb") as second:
            try:
                fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True, "file locks work", None
    return False, "file locks do not work on this file system", "set HOCKET_HOME to a local file system"


def check_socket(home: str) -> Look:
    path = config.socket_path(home)
    size = len(os.fsencode(path))
    moved = "" if path.startswith(home) else " (the path of HOCKET_HOME is too long for a socket)"
    return (
        size <= config.SOCKET_PATH_LIMIT,
        f"{path}, {size} of {config.SOCKET_PATH_LIMIT} bytes{moved}",
        None,
    )


def check_config(home: str) -> Look:
    loaded = load(access.directory(None), home)
    check_configuration(Approvals(loaded))
    return True, ", ".join(loaded.files) or "no configuration file", None


def check_trust(home: str) -> Look:

    approved = read_approvals(home)
    if approved.trouble is not None:
        return False, approved.trouble.message, approved.trouble.hint
    count = len(approved.files) + len(approved.folders) + len(approved.edges)
    return True, f"{count} approval{'s' if count != 1 else ''}" if count else "no approvals", None


def check_server(home: str) -> Look:
    if not lock_held(home):
        return True, "not running; started when needed", None
    health = access.connect(starting=False).request("GET", "/api/health")
    return True, f"pid {health['pid']} answers, {health['runs_live']} live runs", None


def check_version(home: str) -> Look:
    theirs = read_lock(home).get("version") if lock_held(home) else None
    if theirs in (None, __version__):
        return True, __version__, None
    return False, f"this is {__version__}, the server is {theirs}", "stop it with: hocket server stop"


def check_database(home: str) -> Look:

    path = Path(home) / DATABASE
    trouble = check(path)
    if trouble is not None:
        return False, trouble.message, trouble.hint
    return True, f"{path} is intact" if path.exists() else "none yet", None


def check_sqlite() -> Look:

    version = sqlite_version()
    number = tuple(map(int, version.split(".")))
    if number < OLDEST_SQLITE:
        return False, f"{version} is too old", "use a Python that comes with a newer SQLite"
    note = "" if number >= FIXED_SQLITE else "; known multi-writer bug; does not affect Hocket"
    return True, f"{version}{note}", None


def check_processes() -> Look:

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


def check_programs() -> Look:
    path = config.caller_environment().get("PATH", "")
    folders = [folder for folder in path.split(os.pathsep) if folder]
    there = [folder for folder in folders if os.path.isdir(folder)]
    if not there:
        return False, f"no directory on PATH exists: {path!r}", "set PATH"
    shell = os.access("/bin/sh", os.X_OK)
    return shell, f"{len(there)} directories on PATH; /bin/sh {'works' if shell else 'is missing'}", None


def check_claude() -> Look:
    """Run only ``--version``, which reads and writes no file of the user's."""
    env = config.caller_environment()
    program = _claude_program(env)
    if program is None:
        named = config.process_environment().get("HOCKET_CLAUDE")
        if named:
            return False, f"HOCKET_CLAUDE is {named}, which is not a program", "correct it, or unset it"
        return True, "not found; needed only for Claude agents", INSTALL_CLAUDE
    told = _version_output(program, env)
    version = parse_version(told)
    if not version:
        return False, f"{program} prints no version: {told[:80]!r}", INSTALL_CLAUDE
    return _check_features(program, told.split()[0], version)


def check_codex() -> Look:
    """Optional: without it, chains that name no codex run as before."""

    env = config.caller_environment()
    named = env.get(CODEX.variable)
    path = _which(named or CODEX.name, env)
    if path is None and named:
        return False, f"{CODEX.variable} is {named}, which is not a program", "correct it, or unset it"
    if path is None:
        return True, "not found; needed only for chains that name codex", CODEX.install
    return True, f"{_version_output(path, env, CODEX.install).split()[-1]} at {path}", None


def check_environment(home: str) -> Look:
    """Check that the server finds the CLI, for requests without an environment of their own."""
    if not lock_held(home):
        return True, "no server is running; it gets the environment of the command that starts it", None
    try:
        told = access.connect(starting=False).request("GET", "/api/health").get("environment")
    except HocketError:
        told = None  # reported by the check of the server
    if told is None:
        return True, "unknown: the server does not report it", None
    here, there = _claude_program(config.program_places()), _claude_program(told)
    if here and not there:
        searched = told.get("HOCKET_CLAUDE") or f"PATH {told.get('PATH') or 'not set'}"
        detail = f"the server does not find claude ({searched}); here it is {here}"
        return False, detail, "Claude runs started over HTTP fail; restart the server from here: " + _restart()
    if here != there:
        return True, f"claude is {there} for the server and {here or 'not found'} here", None
    return True, f"the server finds {there}" if there else "the server does not find claude either", None


def _restart() -> str:

    service = "hocket setup service && " if has_service() else ""
    return f"{service}hocket server stop && hocket ps"


def _claude_program(env: dict[str, str]) -> str | None:
    return _which(env.get("HOCKET_CLAUDE") or "claude", env)


def _which(name: str, env: dict[str, str]) -> str | None:
    return shutil.which(name, path=env.get("PATH"))


def _version_output(program: str, env: dict[str, str], install: str = INSTALL_CLAUDE) -> str:

    try:
        done = run_tool([program, "--version"], "/", env, VERSION_SECONDS, 4096)
    except OSError as error:
        # If the file exists, the interpreter in its first line does not.
        why = f"{program} cannot be started: {error.strerror}"
        raise HocketError(why, f"check its first line, or reinstall it: {install}") from error
    if done.timed_out:
        raise HocketError(f"{program} --version prints nothing within {VERSION_SECONDS:.0f} s", "try to start it")
    told = done.output.decode(errors="replace").strip()
    if done.code != 0:
        raise HocketError(f"{program} --version exits with {done.code}: {told[:80]!r}", install)
    return told


def _check_features(program: str, told: str, version: tuple[int, ...]) -> Look:
    lacks = [feature for feature in CLAUDE_FEATURES if version < feature.since]
    works = ", ".join(feature.name for feature in CLAUDE_FEATURES if feature not in lacks)
    teams = "teams without a terminal" if version <= LAST_TEAMS_IN_PRINT else "teams in a terminal only"
    if not lacks:
        return True, f"{told} at {program}; works: {works}; {teams}", None
    missing = "; ".join(f"{feature.name} need {feature.flags}" for feature in lacks)
    hint = f"{missing}: supported since {'.'.join(map(str, lacks[-1].since))}; update it: claude update"
    has = f": it has {works}; {teams}" if works else ""
    return False, f"{told} at {program}; {lacks[0].without} with it{has}", hint


# --- Comparing with the Claude CLI --------------------------------------------------------------------------


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


def ask_claude(program: str, cwd: str, user: ClaudeUser, env: Mapping[str, str]) -> list[Listed]:
    """The agents that the CLI would load there for that user."""
    with _somewhere() as root:
        mirror = StandInDirectory(root, only_choices)
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
        raise HocketError(f"{program} did not list its agents within {SECONDS:.0f} s", "try to start it")
    listed = agents_listed(done.output)
    if listed is None:
        said = one_line(done.output[-200:].decode(errors="replace"))
        raise HocketError(f"{program} does not list its agents: {said!r}", "update it: claude update")
    return listed


# --- Comparing ----------------------------------------------------------------------------------------------


def verify(program: str, cwd: str, env: Mapping[str, str], home: str) -> Comparison:
    """Compare for one directory. Nothing of the directory is run, and nothing of the user's is written."""
    approvals, _ = configuration(cwd, home, env)
    catalog = discover(cwd, env, home, approvals.config, approvals)
    return compare(catalog, ask_claude(program, cwd, ClaudeUser.of(env, cwd), env), brought_along(program, env))


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


def comparison_summary(found: Comparison) -> str:
    """How many are the same, and how many are not."""
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


# --- A stand-in of a directory -------------------------------------------------------------------------------


Choices = Callable[[bytes], bytes | None]
"""Of a settings file what may be taken over."""

CLAUDE_FOLDER = ".claude"
AGENTS = "agents"
_SETTINGS = ("settings.json", "settings.local.json")
_PLUGINS = "plugins"
_MOST = 8 * 1024 * 1024
_RECORDS = "gitdir: "


class StandInDirectory:
    """A copy of the path from the root to a directory: folders of definitions are links to the real ones.

    The CLI executes what the settings of a folder say as soon as it starts there (hooks, helpers, servers), so it never
    starts in the real folder. The stand-in has no settings but the choice of plugins, and takes what the CLI writes.
    """

    def __init__(self, root: Path, choices: Choices) -> None:
        self.root = root
        self._choices = choices

    def path(self, real: str) -> Path:
        return self.root / real.lstrip("/")

    def stand_in(self, cwd: str, home: str, config_folder: str) -> None:
        """Make what somebody sees who works in ``cwd`` and lives in ``home``."""
        for folder in _upwards(cwd):
            self._folder(folder)
            self._repository(folder)
        self.path(home).mkdir(parents=True, exist_ok=True)
        self._configuration(config_folder)
        self._plugins(os.path.join(config_folder, _PLUGINS))

    def _folder(self, real: str) -> None:
        self.path(real).mkdir(parents=True, exist_ok=True)
        self._configuration(os.path.join(real, CLAUDE_FOLDER))

    def _configuration(self, real: str) -> None:
        here = self.path(real)
        if os.path.lexists(os.path.join(real, AGENTS)) and not os.path.lexists(here / AGENTS):
            here.mkdir(parents=True, exist_ok=True)
            (here / AGENTS).symlink_to(os.path.join(real, AGENTS))
        for name in _SETTINGS:
            chosen = self._choices(_content(os.path.join(real, name)))
            if chosen is not None:
                here.mkdir(parents=True, exist_ok=True)
                (here / name).write_bytes(chosen)

    def _plugins(self, real: str) -> None:
        """Folders are linked. Files are copied, because they may be written, and a link would be written through."""
        here = self.path(real)
        here.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(real) if os.path.isdir(real) else ():
            path = os.path.join(real, name)
            if os.path.isdir(path):
                (here / name).symlink_to(path)
            else:
                (here / name).write_bytes(_content(path))

    def _repository(self, real: str) -> None:
        """That a repository begins here, and, for a second checkout of one, where the first is."""
        mark = os.path.join(real, ".git")
        if os.path.isdir(mark):
            _make_repository(self.path(mark))
        elif os.path.isfile(mark):
            self._checkout(mark)

    def _checkout(self, mark: str) -> None:
        """A file that says where its repository keeps the records of this checkout; they must say so, too."""
        said = _text(mark)
        records = os.path.normpath(os.path.join(os.path.dirname(mark), said.removeprefix(_RECORDS)))
        if not said.startswith(_RECORDS) or not _is_record_of(records, mark):
            self.path(mark).write_text(said)
            return
        repository = os.path.dirname(os.path.dirname(records))
        _make_repository(self.path(repository))
        kept = self.path(records)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "HEAD").write_text("ref: refs/heads/other\n")
        (kept / "commondir").write_text("../..\n")
        (kept / "gitdir").write_text(f"{self.path(mark)}\n")
        self.path(mark).write_text(f"{_RECORDS}{kept}\n")
        self._folder(os.path.dirname(repository))


def _is_record_of(records: str, mark: str) -> bool:
    """Whether these are the records of the checkout with this mark, whose name may begin where they lie."""
    named = _text(os.path.join(records, "gitdir"))
    return _real(os.path.join(records, named)) == _real(mark)


def _real(path: str) -> str | None:
    try:
        return os.path.realpath(path)
    except ValueError:  # nothing can be called so
        return None


def _make_repository(here: Path) -> None:
    """As little as a program takes for a repository; none of the real one's configuration."""
    for name in ("objects", "refs"):
        (here / name).mkdir(parents=True, exist_ok=True)
    (here / "HEAD").write_text("ref: refs/heads/main\n")


def _upwards(folder: str) -> Iterator[str]:
    yield folder
    while (above := os.path.dirname(folder)) != folder:
        yield above
        folder = above


def _content(path: str) -> bytes:
    """At most so much, and nothing for what cannot be read."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(_MOST)
    except OSError:
        return b""


def _text(path: str) -> str:
    return _content(path).decode(errors="replace").strip()
