"""The environment and the paths of Hocket's files; the only package that reads the process environment.

``loading`` reads configuration files into the values of ``settings``. The client imports these modules with every
command, so they import nothing heavier than ``typing`` at the top, and their values are named tuples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hocket.input_limits import is_text

Environ = Mapping[str, str]
OWN_ENVIRONMENT: Environ = os.environ
"""That of this process."""

SOCKET_PATH_LIMIT = 100
"""In bytes. Kernels allow 104 to 108, including the final NUL."""
MAX_PROMPT = 10 * 1024 * 1024
_MAX_TEAMMATES = "MAX_TEAMMATES_PER_LEAD"


# --- Paths --------------------------------------------------------------------------------------------------


def home_directory(environ: Environ) -> str:
    """Return the user's home directory; an environment without HOME gets that of this process."""
    home = environ.get("HOME") or os.environ.get("HOME")
    if home:
        return home
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def _xdg(environ: Environ, name: str, default: str) -> str:
    # The XDG specification requires relative values to be ignored.
    value = environ.get(name, "")
    return value if value.startswith("/") else os.path.join(home_directory(environ), default)


def home(environ: Environ = OWN_ENVIRONMENT) -> str:
    """Return the absolute path of HOCKET_HOME, which may not exist yet."""
    chosen = environ.get("HOCKET_HOME")
    return os.path.abspath(chosen or os.path.join(_xdg(environ, "XDG_STATE_HOME", ".local/state"), "hocket"))


def config_directory(environ: Environ = OWN_ENVIRONMENT) -> str:
    """Return the directory of the user's configuration outside HOCKET_HOME."""
    return os.path.join(_xdg(environ, "XDG_CONFIG_HOME", ".config"), "hocket")


def socket_path(home: str, environ: Environ = OWN_ENVIRONMENT) -> str:
    """Return the path of the server's socket; if the one in HOCKET_HOME is too long, create a private folder for it."""
    plain = os.path.join(home, "sock")
    if _fits(plain):
        return plain
    import hashlib

    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:20]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    within_runtime = os.path.join(runtime, f"hocket-{name}")
    if runtime.startswith("/") and _fits(within_runtime) and _is_private(runtime):
        return within_runtime
    return os.path.join(_private_folder(environ, name), name)


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_LIMIT


def _is_private(folder: str) -> bool:
    """True if a folder belongs to this user and is closed to all others; a link to one does not count."""
    import stat

    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _private_folder(environ: Environ, name: str) -> str:
    from hocket.errors import HomeError

    owned = f"hocket-{os.getuid()}"
    folder = os.path.join(environ.get("TMPDIR") or "/tmp", owned)  # noqa: S108 - ownership is checked below
    if not _fits(os.path.join(folder, name)):
        folder = os.path.join("/tmp", owned)  # noqa: S108 - ownership is checked below
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise HomeError(f"cannot create {folder} for the server's socket: {error.strerror}") from error
    if not _is_private(folder):
        raise HomeError(
            f"cannot use {folder} for the server's socket: it is not private to this user",
            "remove it, or choose a shorter HOCKET_HOME",
        )
    return folder


def claude_directory(environ: Environ = OWN_ENVIRONMENT) -> str:
    """Return the directory of the user's own settings and definitions of Claude."""
    return environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home_directory(environ), ".claude")


# --- Configuration files ------------------------------------------------------------------------------------


class ConfigFile(NamedTuple):
    """A configuration file, which may not exist."""

    path: str
    rank: str
    """``project`` or ``user``."""
    json: bool

    @property
    def project(self) -> str | None:
        """The folder that the file configures; None for a user's file."""
        if self.rank == "user":
            return None
        folder = os.path.dirname(self.path)
        return os.path.dirname(folder) if self.json else folder


def config_files(cwd: str, home: str, environ: Environ = OWN_ENVIRONMENT) -> list[ConfigFile]:
    """Return the configuration files that count in a directory, in order of precedence."""
    # Processes resolve links when they change into the directory, so its parents are those of the real path.
    cwd = os.path.realpath(cwd) if "\0" not in cwd else cwd
    users = config_directory(environ)
    user_file = os.path.join(home, "config.toml")
    if not os.path.lexists(user_file):
        user_file = os.path.join(users, "config.toml")
    return [
        ConfigFile(_project_file(cwd), "project", False),
        ConfigFile(os.path.join(cwd, "forge", "chains.json"), "project", True),
        ConfigFile(user_file, "user", False),
        ConfigFile(os.path.join(users, "chains.json"), "user", True),
    ]


def _project_file(cwd: str) -> str:
    """Return the path of the nearest ``hocket.toml`` in the repository, or where one would be.

    Outside a repository only the directory itself counts: a file in a shared parent such as the temporary directory
    must not decide what runs.
    """
    here = os.path.join(cwd, "hocket.toml")
    folder, candidate = cwd, None
    while True:
        path = os.path.join(folder, "hocket.toml")
        if candidate is None and os.path.lexists(path):
            candidate = path
        if os.path.exists(os.path.join(folder, ".git")):
            return candidate or here
        parent = os.path.dirname(folder)
        if parent == folder:
            return here
        folder = parent


def limits_in(environ: Environ = OWN_ENVIRONMENT) -> dict[str, int]:
    """Return the limits that the environment sets, which take precedence over those of files."""
    text = environ.get(_MAX_TEAMMATES, "").strip()
    if not text:
        return {}
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        from hocket.errors import ConfigError

        raise ConfigError(f"{_MAX_TEAMMATES} must be an integer of at least 0; got {text[:60]!r}")
    return {_MAX_TEAMMATES.lower(): int(text)}


# --- The caller's environment -------------------------------------------------------------------------------


class CallingRun(NamedTuple):
    """The run that this process belongs to, from its environment; all None outside a run."""

    url: str | None
    token: str | None
    run: str | None
    task: str | None


def caller(environ: Environ = OWN_ENVIRONMENT) -> CallingRun:
    """Return the run that this process belongs to."""
    return CallingRun(*(environ.get(f"HOCKET_{field.upper()}") or None for field in CallingRun._fields))


def calling_session(environ: Environ = OWN_ENVIRONMENT) -> dict[str, str | int]:
    """Return the session of an agent's CLI that this process was started by, and the process of that, as far as known.

    The keys are those of a start request.
    """
    session, pid = environ.get("CLAUDE_CODE_SESSION_ID", ""), environ.get("CLAUDE_PID", "")
    if not caller(environ).run:  # Within a run the variable names the parent of that run, which is recorded already.
        pid = pid or environ.get(_PARENT_PID, "")
    found: dict[str, str | int] = {}
    if 0 < len(session) <= 256 and session.isprintable():
        found["caller_session"] = session
    if pid.isascii() and pid.isdigit() and 0 < len(pid) < 10 and int(pid) > 0:
        found["caller_pid"] = int(pid)
    return found


def process_environment(environ: Environ = OWN_ENVIRONMENT) -> dict[str, str]:
    """Return a copy of the whole environment, for a child process that is Hocket itself."""
    return dict(environ)


def completing_shell(environ: Environ = OWN_ENVIRONMENT) -> str | None:
    """The shell that requests completions; None if none does."""
    return environ.get("_HOCKET_COMPLETE")


def replace_environment(environ: Environ) -> None:
    """Make this the environment of this process and of its future children."""
    os.environ.clear()
    os.environ.update(environ)


def requested_port(environ: Environ = OWN_ENVIRONMENT) -> int | None:
    """Return the port of HOCKET_PORT: 0 for any, None if it is not set."""
    text = environ.get("HOCKET_PORT", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        from hocket.errors import ConfigError

        raise ConfigError(f"invalid HOCKET_PORT: {text[:80]!r}", "set it to a number from 0 to 65535")
    return int(text)


def colour_wanted(stream_is_tty: bool, flag: bool | None = None, environ: Environ = OWN_ENVIRONMENT) -> bool:
    """True if output is to be coloured: by NO_COLOR, then the command's flag, then FORCE_COLOR, then the terminal."""
    if environ.get("NO_COLOR"):
        return False
    if flag is not None:
        return flag
    forced = environ.get("FORCE_COLOR", "")
    if forced:
        return forced not in {"0", "false"}
    return stream_is_tty and environ.get("TERM") != "dumb"


def interactive(stream_is_tty: bool, plain: bool = False, environ: Environ = OWN_ENVIRONMENT) -> bool:
    """True if a view may repaint itself."""
    return stream_is_tty and not plain and environ.get("TERM") != "dumb" and not _is_set(environ, "CI")


def folds_logs(environ: Environ = OWN_ENVIRONMENT) -> bool:
    """True if the log viewer folds the lines of a group."""
    return _is_set(environ, "GITHUB_ACTIONS")


def _is_set(environ: Environ, name: str) -> bool:
    return environ.get(name, "").lower() not in {"", "0", "false"}


# --- What an agent sees -------------------------------------------------------------------------------------

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_BASE = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*", "TZ"),
    *_PROXIES,
    *(name.upper() for name in _PROXIES),
)
_OF_PROVIDER: Mapping[str, Sequence[str]] = {
    "claude": ["ANTHROPIC_*", "CLAUDE_*", "IS_SANDBOX", "DISABLE_*", "ENABLE_*"],
    "codex": ["OPENAI_*", "CODEX_*"],
    "cursor": ["CURSOR_*"],
    "gemini": ["GEMINI_*", "GOOGLE_*"],
}
REGISTRY_VARIABLE = "CLAUDE_RUNNER_REGISTRY_PATH"
"""Names the registry file of a run to its agent."""
MODEL_VARIABLE = "CLAUDE_RUNNER_MODEL"
"""Names the model of an agent, which is the default of those that it starts."""
_PARENT_PID = "CLAUDE_PARENT_PID"
_NEVER = (
    *("CLAUDECODE", "AI_AGENT", "CLAUDE_PID", "CLAUDE_EFFORT", "CLAUDE_CODE_SESSION_*"),
    *("CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH"),
    *("CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID", "CODEX_SANDBOX*", "CODEX_CI"),
    *("CLAUDE_CODE_MESSAGING_*", "HOCKET_*", "CLAUDE_AGENT_*", "AGENT_*", REGISTRY_VARIABLE, _PARENT_PID),
    "CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS",
)
"""Variables that mark the caller's own session, or that only Hocket sets; no configuration passes them on."""
SESSION_PLACES = ("HOME", "CLAUDE_CONFIG_DIR")
"""Variables that decide where CLIs keep their sessions."""
RUNTIMES: Mapping[str, str] = {
    "claude": "HOCKET_CLAUDE",
    "codex": "HOCKET_CODEX",
    "cursor": "HOCKET_CURSOR_AGENT",
}
"""The CLIs that a definition can run with, by the names of their providers; each with the variable that names another
program for it."""


def caller_environment(extra_names: Iterable[str] = (), environ: Environ = OWN_ENVIRONMENT) -> dict[str, str]:
    """Return the variables that a client sends with a start: all that any agent may get."""
    every_cli = [pattern for patterns in _OF_PROVIDER.values() for pattern in patterns]
    return _allowed(environ, [*_BASE, *every_cli, *extra_names]) | named_programs(environ)


def session_places(cwd: str, environ: Environ = OWN_ENVIRONMENT) -> dict[str, str]:
    """Return the variables that decide where CLIs keep their sessions, with absolute paths."""
    found = {name: environ[name] for name in SESSION_PLACES if environ.get(name) and is_text(environ[name])}
    return {name: os.path.join(cwd, path) for name, path in found.items()}


def named_programs(env: Environ) -> dict[str, str]:
    """Return the variables that name the programs of CLIs. Starts by a run use the same ones."""
    return {name: env[name] for name in RUNTIMES.values() if name in env and is_text(env[name])}


def program_places(environ: Environ = OWN_ENVIRONMENT) -> dict[str, str]:
    """Return the variables that decide which program a name means."""
    path = environ.get("PATH")
    return ({"PATH": path} if path and is_text(path) else {}) | named_programs(environ)


def agent_environment(env: Environ, provider: str, extra_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the part of a caller's environment that an agent of this provider gets: no other CLI's keys."""
    return _allowed(env, [*_BASE, *_OF_PROVIDER.get(provider, ()), *extra_names])


def _allowed(env: Environ, patterns: Iterable[str]) -> dict[str, str]:
    matches = _matcher(patterns)
    never = _matcher(_NEVER)
    return {
        name: value
        for name, value in env.items()
        if matches(name) and not never(name) and is_text(name) and is_text(value)
    }


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    patterns = tuple(patterns)
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    exact = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
    return lambda name: name in exact or name.startswith(prefixes)


def may_be_passed(name: str) -> bool:
    """True if a configuration may pass this variable to agents."""
    return name.isascii() and name.isidentifier() and not _matcher(_NEVER)(name)


# --- Values of options --------------------------------------------------------------------------------------

ON_QUESTION = ("deny", "ask", "fail")
"""What happens to a question of an agent: it is denied, it waits for an answer, or the run ends."""
ON_LOST = ("ask", "retry")
"""What happens after an iteration whose outcome is unknown."""
CROSS_SESSION = ("refuse", "hold", "accept")
"""What happens to messages from other Claude sessions, the default first."""
DELEGATE = "hocket"
"""Calls of sub-agents become runs. Without it they are left to the agent's CLI."""
ISOLATION = ("none", "worktree")
"""Where a step of a chain works: in the user's directory, or in a git worktree of its own."""
BYPASS = "bypassPermissions"
"""The permission mode without any permission prompts."""
PERMISSION_MODES = ("acceptEdits", "auto", BYPASS, "default", "dontAsk", "manual", "plan")
"""As Claude names them."""
UNASKED_MODES = ("auto", BYPASS)
"""Modes in which commands run without a prompt: in ``auto`` another model judges them."""
