"""Where Hocket's own files lie, what the caller's environment says, and what of it an agent sees.

The only room that looks at the process's environment: everything else is handed what it needs. What configuration
files say is read in ``loading``, as the values of ``settings``; which agent a name means, and what a chain's text
means, belong elsewhere.

The thin client loads this module with every command, so nothing heavier than ``os`` is imported at the top.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, dataclass_transform

Environ = Mapping[str, str]

SOCKET_PATH_LIMIT = 100
"""In bytes. The kernels we run on allow 104 to 108, with the final zero."""
MAX_PROMPT = 10 * 1024 * 1024


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen value, its fields the annotations of its class.

    Not a dataclass, because importing those costs the thin client more than all the rest of this module, and
    not a NamedTuple, because making a dozen of these still costs more than everything else here does.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    needed: ClassVar[frozenset[str]] = frozenset()
    """Those without a value of their own."""

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(cls.__annotations__)
        cls.needed = frozenset(name for name in cls.fields if not hasattr(cls, name))

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self.fields, values, strict=False)) | named
        is_known = self.needed <= given.keys() <= frozenset(self.fields)
        if not is_known or len(given) < len(values) + len(named):
            raise TypeError(f"{type(self).__name__} has the fields {self.fields}, not {tuple(given)}")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{type(self).__name__}({values})"


# --- Places -------------------------------------------------------------------------------------------------


def own_unless(environ: Environ | None) -> Environ:
    """The environment that is given; without one, this process's own."""
    return os.environ if environ is None else environ


def home_directory(environ: Environ) -> str:
    """The user's own. Who brings no HOME along, as a request over HTTP may, has that of this process."""
    home = environ.get("HOME") or os.environ.get("HOME")
    if home:
        return home
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def _xdg(environ: Environ, name: str, default: str) -> str:
    # The XDG specification has relative values ignored: they would mean another place in every directory.
    value = environ.get(name, "")
    return value if value.startswith("/") else os.path.join(home_directory(environ), default)


def home(environ: Environ | None = None) -> str:
    """Where this user's state lies: absolute, and not necessarily there yet."""
    environ = own_unless(environ)
    chosen = environ.get("HOCKET_HOME")
    return os.path.abspath(chosen or os.path.join(_xdg(environ, "XDG_STATE_HOME", ".local/state"), "hocket"))


def config_directory(environ: Environ | None = None) -> str:
    """Where the user's own configuration is kept when it is not in HOCKET_HOME."""
    return os.path.join(_xdg(own_unless(environ), "XDG_CONFIG_HOME", ".config"), "hocket")


def socket_path(home: str, environ: Environ | None = None) -> str:
    """The path of the server's socket. Makes the private folder it lies in when HOCKET_HOME is too deep."""
    plain = os.path.join(home, "sock")
    if _fits(plain):
        return plain
    environ = own_unless(environ)
    name = _short_name(home)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    within_runtime = os.path.join(runtime, f"hocket-{name}")
    if runtime.startswith("/") and _fits(within_runtime) and _is_private(runtime):
        return within_runtime
    return os.path.join(_private_folder(environ, name), name)


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_LIMIT


def _short_name(home: str) -> str:
    import hashlib

    return hashlib.sha256(os.fsencode(home)).hexdigest()[:20]


def _is_private(folder: str) -> bool:
    """Whether a folder is ours and closed to everybody else; a link to one does not count."""
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
        raise HomeError(f"cannot make {folder} for the server's socket: {error.strerror}") from error
    if not _is_private(folder):
        raise HomeError(
            f"{folder} is not a private folder of this user, so no socket is put there",
            "remove it, or choose a shorter HOCKET_HOME",
        )
    return folder


# --- Configuration files ------------------------------------------------------------------------------------


class Place(Record):
    """Where a configuration file is, or could be."""

    path: str
    rank: str
    json: bool

    @property
    def project(self) -> str | None:
        """The folder that the file speaks for; None for the user's own."""
        if self.rank == "user":
            return None
        folder = os.path.dirname(self.path)
        return os.path.dirname(folder) if self.json else folder


def places(cwd: str, home: str, environ: Environ | None = None) -> list[Place]:
    """Every place where a configuration file could be, the one that wins first."""
    environ = own_unless(environ)
    # Whoever works there is where the path leads, and so is what lies above it.
    cwd = os.path.realpath(cwd) if "\0" not in cwd else cwd
    users = config_directory(environ)
    user_file = os.path.join(home, "config.toml")
    if not os.path.lexists(user_file):
        user_file = os.path.join(users, "config.toml")
    return [
        Place(_project_file(cwd), "project", False),
        Place(os.path.join(cwd, "forge", "chains.json"), "project", True),
        Place(user_file, "user", False),
        Place(os.path.join(users, "chains.json"), "user", True),
    ]


def _project_file(cwd: str) -> str:
    """The nearest ``hocket.toml`` of the repository, or where it would be.

    Outside of a repository only the directory itself counts: a file that somebody left in a shared parent
    such as the temporary directory must not decide what runs.
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


# --- Wishes of the caller -----------------------------------------------------------------------------------


class Caller(Record):
    """What a run told its children about itself; all None outside of one."""

    url: str | None
    token: str | None
    run: str | None
    task: str | None


def caller(environ: Environ | None = None) -> Caller:
    """The run that this process is part of, if any."""
    environ = own_unless(environ)
    return Caller(*(environ.get(f"HOCKET_{field.upper()}") or None for field in Caller.fields))


def process_environment(environ: Environ | None = None) -> dict[str, str]:
    """All of this process's environment, for a child that is Hocket itself."""
    return dict(own_unless(environ))


def is_completing(program: str, environ: Environ | None = None) -> bool:
    """Whether a shell asks for what a word could become. It is asked of every command, so nothing is copied for it."""
    return f"_{program.upper()}_COMPLETE" in own_unless(environ)


def take_on(environ: Environ) -> None:
    """Make this the environment of this process: whoever looks from now on, here or in a child, sees nothing else."""
    os.environ.clear()
    os.environ.update(environ)


def port_wanted(environ: Environ | None = None) -> int | None:
    """The loopback port that was asked for; 0 means any, None that nothing was said."""
    text = own_unless(environ).get("HOCKET_PORT", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        from hocket.errors import ConfigError

        raise ConfigError(f"HOCKET_PORT is not a port: {text[:80]!r}", "give a number from 0 to 65535")
    return int(text)


def colour_wanted(stream_is_tty: bool, flag: bool | None = None, environ: Environ | None = None) -> bool:
    """Whether to colour: NO_COLOR, then the command's own flag, then FORCE_COLOR, then the terminal."""
    environ = own_unless(environ)
    if environ.get("NO_COLOR"):
        return False
    if flag is not None:
        return flag
    forced = environ.get("FORCE_COLOR", "")
    if forced:
        return forced not in {"0", "false"}
    return stream_is_tty and environ.get("TERM") != "dumb"


def interactive(stream_is_tty: bool, plain: bool = False, environ: Environ | None = None) -> bool:
    """Whether a view may repaint itself. Colour is another question: a log may have that."""
    environ = own_unless(environ)
    return stream_is_tty and not plain and environ.get("TERM") != "dumb" and not _is_set(environ, "CI")


def folds_logs(environ: Environ | None = None) -> bool:
    """Whether the log is shown by somebody who folds away what lies between two lines made for that."""
    return _is_set(own_unless(environ), "GITHUB_ACTIONS")


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
_NEVER = (
    *("CLAUDECODE", "AI_AGENT", "CLAUDE_PID", "CLAUDE_EFFORT", "CLAUDE_CODE_SESSION_*"),
    *("CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH"),
    *("CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID", "CODEX_SANDBOX*", "CODEX_CI"),
    *("CLAUDE_CODE_MESSAGING_*", "HOCKET_*", "CLAUDE_AGENT_*", "AGENT_*"),
)
"""What marks the caller's own session, and what only the engine may say, whoever asks for it."""
_PROGRAMS = ("HOCKET_CLAUDE", "HOCKET_CODEX", "HOCKET_CURSOR_AGENT")
"""Where the caller's CLIs are, for whoever looks a program up."""


def caller_environment(extra_names: Iterable[str] = (), environ: Environ | None = None) -> dict[str, str]:
    """What a client sends along with a start: the union of what any agent may get."""
    environ = own_unless(environ)
    every_cli = [pattern for patterns in _OF_PROVIDER.values() for pattern in patterns]
    return _allowed(environ, [*_BASE, *every_cli, *extra_names]) | named_programs(environ)


def named_programs(env: Environ) -> dict[str, str]:
    """Where a caller says that its CLIs are. A run's own starts look in the same places."""
    return {name: env[name] for name in _PROGRAMS if name in env and _is_text(env[name])}


def program_places(environ: Environ | None = None) -> dict[str, str]:
    """The variables that decide which program a name means."""
    environ = own_unless(environ)
    path = environ.get("PATH")
    return ({"PATH": path} if path and _is_text(path) else {}) | named_programs(environ)


def agent_environment(env: Environ, provider: str, extra_names: Iterable[str] = ()) -> dict[str, str]:
    """The part of a caller's environment that an agent of this provider gets: no other CLI's keys."""
    return _allowed(env, [*_BASE, *_OF_PROVIDER.get(provider, ()), *extra_names])


def _allowed(env: Environ, patterns: Iterable[str]) -> dict[str, str]:
    matches = _matcher(patterns)
    never = _matcher(_NEVER)
    return {
        name: value
        for name, value in env.items()
        if matches(name) and not never(name) and _is_text(name) and _is_text(value)
    }


def _is_text(text: str) -> bool:
    """Nearly all of it is plain, and to see that nothing has to be loaded."""
    if text.isascii():
        return True
    from hocket.input_limits import is_text

    return is_text(text)


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    patterns = tuple(patterns)
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    exact = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
    return lambda name: name in exact or name.startswith(prefixes)


def may_be_passed(name: str) -> bool:
    """Whether a configuration may hand on this variable."""
    return name.isascii() and name.isidentifier() and not _matcher(_NEVER)(name)


# --- Words that both the command line and the files know -----------------------------------------------------

ON_QUESTION = ("deny", "ask", "fail")
"""What may happen when an agent asks somebody: it is refused, it waits, or its run ends."""
ON_LOST = ("ask", "retry")
"""What may happen to an iteration of which nobody knows how it ended."""
CROSS_SESSION = ("refuse", "hold", "accept")
"""What may happen to messages from other Claude sessions, the default first."""
ISOLATION = ("none", "worktree")
"""Where a step of a chain may work: where the user does, or in a git worktree of its own."""
BYPASS = "bypassPermissions"
"""The permission mode in which nobody is asked about anything."""
PERMISSION_MODES = ("acceptEdits", "auto", BYPASS, "default", "dontAsk", "manual", "plan")
"""Claude's own words for them."""
UNASKED_MODES = ("auto", BYPASS)
"""Those in which commands run though nobody was asked: in the first another model judges them, in the second nobody."""
