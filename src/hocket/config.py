"""Files and environment, read once at the edge, as frozen values.

The only module that looks at the process's environment: everything else is handed what it needs. It also
knows where Hocket's own files lie and what a configuration file may say. Which agent a name means, and what a
chain's text means, belong elsewhere.

The thin client loads this module with every command, so nothing heavier than ``os`` and ``types`` is
imported at the top; what reads files imports its parsers when there is a file to read.
"""

from __future__ import annotations

import os
from types import MappingProxyType

from hocket.errors import ConfigError, HocketError, HomeError, NotTrusted, PromptError

TYPE_CHECKING = False  # `typing` would cost more than all the rest; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, ClassVar, NoReturn, dataclass_transform

    Environ = Mapping[str, str]
else:

    def dataclass_transform(**_):
        return lambda kind: kind


SOCKET_PATH_LIMIT = 100
"""In bytes. The kernels we run on allow 104 to 108, with the final zero."""
MAX_ITERATIONS = 1_000_000
MAX_FILE = 1024 * 1024
MAX_GRACE = 120
"""In seconds. Whoever asks for a stop waits for it, and nobody waits for ever."""
MAX_PROMPT = 10 * 1024 * 1024
PROMPT_VIA = ("arg", "stdin")


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen value, its fields the annotations of its class.

    Not a dataclass, because importing those costs the thin client more than all the rest of this module, and
    not a NamedTuple, because making a dozen of these still costs more than everything else here does.
    """

    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self.fields, values, strict=False)) | named
        missing = [name for name in self.fields if name not in given and not hasattr(type(self), name)]
        if missing or len(given) < len(values) + len(named) or not given.keys() <= set(self.fields):
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


def _environ(environ: Environ | None) -> Environ:
    return os.environ if environ is None else environ


def _home_directory(environ: Environ) -> str:
    home = environ.get("HOME")
    if home:
        return home
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def _xdg(environ: Environ, name: str, default: str) -> str:
    # The XDG specification has relative values ignored: they would mean another place in every directory.
    value = environ.get(name, "")
    return value if value.startswith("/") else os.path.join(_home_directory(environ), default)


def home(environ: Environ | None = None) -> str:
    """Where this user's state lies: absolute, and not necessarily there yet."""
    environ = _environ(environ)
    chosen = environ.get("HOCKET_HOME")
    return os.path.abspath(chosen or os.path.join(_xdg(environ, "XDG_STATE_HOME", ".local/state"), "hocket"))


def config_directory(environ: Environ | None = None) -> str:
    """Where the user's own configuration is kept when it is not in HOCKET_HOME."""
    return os.path.join(_xdg(_environ(environ), "XDG_CONFIG_HOME", ".config"), "hocket")


def socket_path(home: str, environ: Environ | None = None) -> str:
    """The path of the server's socket. Makes the private folder it lies in when HOCKET_HOME is too deep."""
    plain = os.path.join(home, "sock")
    if _fits(plain):
        return plain
    environ = _environ(environ)
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


# --- Wishes of the caller -----------------------------------------------------------------------------------


class Caller(Record):
    """What a run told its children about itself; all None outside of one."""

    url: str | None
    token: str | None
    run: str | None
    task: str | None


def caller(environ: Environ | None = None) -> Caller:
    """The run that this process is part of, if any."""
    environ = _environ(environ)
    return Caller(*(environ.get(f"HOCKET_{field.upper()}") or None for field in Caller.fields))


def process_environment(environ: Environ | None = None) -> dict[str, str]:
    """All of this process's environment, for a child that is Hocket itself."""
    return dict(_environ(environ))


def take_on(environ: Environ) -> None:
    """Make this the environment of this process: whoever looks from now on, here or in a child, sees nothing else."""
    os.environ.clear()
    os.environ.update(environ)


def port_wanted(environ: Environ | None = None) -> int | None:
    """The loopback port that was asked for; 0 means any, None that nothing was said."""
    text = _environ(environ).get("HOCKET_PORT", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise ConfigError(f"HOCKET_PORT is not a port: {text[:80]!r}", "give a number from 0 to 65535")
    return int(text)


def colour_wanted(stream_is_tty: bool, flag: bool | None = None, environ: Environ | None = None) -> bool:
    """Whether to colour: NO_COLOR, then the command's own flag, then FORCE_COLOR, then the terminal."""
    environ = _environ(environ)
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
    environ = _environ(environ)
    return stream_is_tty and not plain and environ.get("TERM") != "dumb" and not _is_set(environ, "CI")


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
    *("CLAUDE_CODE_MESSAGING_*", "HOCKET_*", "CLAUDE_AGENT_*", "AGENT_*"),
)
"""What marks the caller's own session, and what only the engine may say, whoever asks for it."""
_PROGRAMS = ("HOCKET_CLAUDE", "HOCKET_CODEX", "HOCKET_CURSOR_AGENT")
"""Where the caller's CLIs are, for whoever looks a program up."""


def caller_environment(extra_names: Iterable[str] = (), environ: Environ | None = None) -> dict[str, str]:
    """What a client sends along with a start: the union of what any agent may get."""
    environ = _environ(environ)
    every_cli = [pattern for patterns in _OF_PROVIDER.values() for pattern in patterns]
    return _allowed(environ, [*_BASE, *every_cli, *extra_names]) | named_programs(environ)


def named_programs(env: Environ) -> dict[str, str]:
    """Where a caller says that its CLIs are. A run's own starts look in the same places."""
    return {name: env[name] for name in _PROGRAMS if name in env and _is_text(env[name])}


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


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    patterns = tuple(patterns)
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    exact = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
    return lambda name: name in exact or name.startswith(prefixes)


def _is_text(value: str) -> bool:
    # Bytes that are no text arrive as lone surrogates, which neither JSON nor the store can keep.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- What the files say -------------------------------------------------------------------------------------


class Limits(Record):
    """How far a tree of runs may grow. Only the user's own configuration sets these."""

    depth: int = 5
    children: int = 8
    leaves: int = 64
    min_free_mb: int = 200
    max_output_mb: int = 2048


ON_QUESTION = ("deny", "ask", "fail")
"""What may happen when an agent asks somebody: it is refused, it waits, or its run ends."""
BYPASS = "bypassPermissions"
"""The permission mode in which nobody is asked about anything."""
PERMISSION_MODES = ("acceptEdits", "auto", BYPASS, "default", "dontAsk", "manual", "plan")
"""Claude's own words for them."""
UNASKED_MODES = ("auto", BYPASS)
"""Those in which commands run though nobody was asked: in the first another model judges them, in the second nobody."""


class ClaudeConfig(Record):
    """How Claude runs where nobody says otherwise."""

    permission_mode: str = "acceptEdits"
    model: str | None = None
    on_question: str = "deny"
    contract: bool = True
    """Whether an agent in a loop is told of the marker."""


class AgentConfig(Record):
    """An alias: another name for an agent, with what it is given each time."""

    source: str
    path: str | None = None
    args: tuple[str, ...] = ()
    default_prompt: str | None = None
    default_prompt_file: str | None = None
    prompt_via: str = "arg"
    model: str | None = None
    permission_mode: str | None = None
    allowed_tools: str | None = None
    project: str | None = None
    """The folder whose own file says all this; None when it is the user's."""


class StepConfig(Record):
    """One step of a configured chain."""

    agent: str
    iterations: int | None = None
    args: tuple[str, ...] = ()
    prompt: str | None = None
    prompt_file: str | None = None


class ChainConfig(Record):
    """A chain with a name."""

    name: str
    source: str
    steps: tuple[StepConfig, ...]
    description: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    until: str | None = None
    marker: str | None = None
    timeout: float | None = None
    permission_mode: str | None = None
    on_question: str | None = None
    project: str | None = None
    """The folder whose own file says all this; None when it is the user's."""


class Config(Record):
    """Everything that the files of one directory and one user say together."""

    agents: Mapping[str, AgentConfig] = MappingProxyType({})
    chains: Mapping[str, ChainConfig] = MappingProxyType({})
    limits: Limits = Limits()
    stop_grace: float = 5.0
    marker: str = "FORKHESTRA_COMPLETE"
    env_pass: tuple[str, ...] = ()
    claude: ClaudeConfig = ClaudeConfig()
    files: tuple[str, ...] = ()
    """Those that were there, the one that wins first."""
    looked: tuple[str, ...] = ()
    """Every place where one could have been."""
    trusted_folders: tuple[str, ...] = ()

    def trusts(self, folder: str) -> bool:
        """Whether the user vouches for a folder: for itself, or for one that it really lies in."""
        real = os.path.realpath(folder)
        return any(_is_within(real, os.path.realpath(trusted)) for trusted in self.trusted_folders)

    def chain(self, name: str) -> ChainConfig:
        """The chain of that name, or an error that says which ones there are."""
        if name in self.chains:
            return self.chains[name]
        if not self.files:
            places = "".join(f"\n  {place}" for place in self.looked)
            raise ConfigError(f"there is no chain {name!r}, and no configuration file. Looked for:{places}")
        known = ", ".join(sorted(self.chains)) or "none"
        raise ConfigError(f"there is no chain {name!r}. Available chains: {known}", _meant(name, self.chains))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def not_trusted(what: str, wishes: Sequence[str], folder: str) -> NotTrusted:
    """The refusal of what only a trusted folder may ask for, and the line that would allow it."""
    import json

    # JSON's way to write a text is one of TOML's as well.
    return NotTrusted(
        f"{what} asks for {' and '.join(wishes)}, and {folder} is not a trusted folder",
        f"look at it first; to trust it, write in your own config.toml under [trust]: folders = [{json.dumps(folder)}]",
    )


def env_names(cwd: str, home: str, environ: Environ | None = None) -> tuple[str, ...]:
    """The variables that the configuration passes on: all that a client needs of it."""
    places = _places(cwd, home, _environ(environ))
    if not any(os.path.exists(place.path) for place in places):
        return ()
    return load(cwd, home, environ).env_pass


def load(cwd: str, home: str, environ: Environ | None = None) -> Config:
    """The configuration for one directory. The nearest file that names an agent or a chain has it."""
    places = _places(cwd, home, _environ(environ))
    found = [(place, raw) for place in places if (raw := _read(place.path)) is not None]
    # A project's chains.json hides the user's: the second is a fallback, not an addition.
    if any(place.rank == "project" and place.json for place, _ in found):
        found = [entry for entry in found if not (entry[0].json and entry[0].rank == "user")]
    parts = [_parse(place, raw, _home_directory(_environ(environ))) for place, raw in found]
    config = _merge(parts, [place.path for place, _ in found], [place.path for place in places])
    for (place, _), part in zip(found, parts, strict=True):
        _check_trust(place, part, config)
    return config


class _Place(Record):
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


def _places(cwd: str, home: str, environ: Environ) -> list[_Place]:
    users = config_directory(environ)
    user_file = os.path.join(home, "config.toml")
    if not os.path.exists(user_file):
        user_file = os.path.join(users, "config.toml")
    return [
        _Place(_project_file(cwd), "project", False),
        _Place(os.path.join(cwd, "forge", "chains.json"), "project", True),
        _Place(user_file, "user", False),
        _Place(os.path.join(users, "chains.json"), "user", True),
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
        if candidate is None and os.path.exists(path):
            candidate = path
        if os.path.exists(os.path.join(folder, ".git")):
            return candidate or here
        parent = os.path.dirname(folder)
        if parent == folder:
            return here
        folder = parent


def _read(path: str) -> str | None:
    """The text of a configuration file, or None when there is none."""
    raw = read_bounded(path, MAX_FILE, ConfigError)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def read_bounded(path: str, limit: int, kind: type[HocketError]) -> bytes | None:
    """A regular file's bytes, or None when it does not exist; anything else is an error of the given kind."""
    import stat

    try:
        # Without O_NONBLOCK, opening a FIFO that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise kind(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise kind(f"cannot read {path}: it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise kind(f"{path} is larger than {limit // 1024} KiB")
    return content


# --- What a file may say ------------------------------------------------------------------------------------


class _Kind(Record):
    """What a key may hold: a test, and the words for an error."""

    fits: Callable[[Any], bool]
    wanted: str


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_seconds(value: object, least: float) -> bool:
    # One comparison refuses NaN and infinity as well.
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= 1e9


def _is_filled(value: object) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_passable(value: object) -> bool:
    never = _matcher(_NEVER)
    return isinstance(value, list) and all(
        isinstance(name, str) and name.isascii() and name.isidentifier() and not never(name) for name in value
    )


def _is_folders(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(folder, str) and (folder == "~" or folder.startswith(("/", "~/"))) and "\0" not in folder
        for folder in value
    )


def _one_of(*words: str) -> _Kind:
    return _Kind(lambda value: isinstance(value, str) and value in words, " or ".join(f'"{word}"' for word in words))


_TEXT = _Kind(lambda value: isinstance(value, str), "a text")
_FILLED = _Kind(_is_filled, "a text that is not empty")
_TEXTS = _Kind(_is_texts, "a list of texts")
_TABLE = _Kind(lambda value: isinstance(value, dict), "a table of names")
_STEPS = _Kind(lambda value: isinstance(value, list) and value != [], "a list with at least one step")
_TIMES = _Kind(lambda value: _is_whole(value, 1, MAX_ITERATIONS), f"a whole number from 1 to {MAX_ITERATIONS}")
_BOUND = _Kind(lambda value: _is_whole(value, 0, 10**9), "a whole number that is not negative")
_AT_LEAST_ONE = _Kind(lambda value: _is_whole(value, 1, 10**9), "a whole number from 1 on")
_DURATION = _Kind(lambda value: _is_seconds(value, 0.001), "a number of seconds above 0")
_GRACE = _Kind(lambda value: _is_seconds(value, 0) and value <= MAX_GRACE, f"a number of seconds up to {MAX_GRACE}")
_FLAG = _Kind(lambda value: isinstance(value, bool), "true or false")
_TOOLS = _Kind(lambda value: _is_filled(value) or _is_texts(value), "a text that is not empty, or a list of texts")
_FOLDERS = _Kind(_is_folders, "a list of folders, each absolute or beginning with ~/")
_MODE = _one_of(*PERMISSION_MODES)
_PASSABLE = _Kind(_is_passable, "a list of variables, none of them Hocket's own or a mark of a session")

if TYPE_CHECKING:
    _Fields = Mapping[str, _Kind]

_AGENT: _Fields = {
    "path": _FILLED,
    "args": _TEXTS,
    "default_prompt": _TEXT,
    "default_prompt_file": _FILLED,
    "prompt_via": _one_of(*PROMPT_VIA),
    "model": _FILLED,
    "permission_mode": _MODE,
    "allowed_tools": _TOOLS,
}
_STEP: _Fields = {
    "agent": _FILLED,
    "iterations": _TIMES,
    "args": _TEXTS,
    "prompt": _TEXT,
    "prompt_file": _FILLED,
}
_CHAIN: _Fields = {
    "description": _TEXT,
    "prompt": _TEXT,
    "prompt_file": _FILLED,
    "steps": _STEPS,
    "until": _FILLED,
    "marker": _FILLED,
    "timeout": _DURATION,
    "permission_mode": _MODE,
    "on_question": _one_of(*ON_QUESTION),
}
_SECTIONS: Mapping[str, _Fields] = {
    "limits": dict.fromkeys(Limits.fields, _BOUND) | {"leaves": _AT_LEAST_ONE, "max_output_mb": _AT_LEAST_ONE},
    "run": {"stop_grace": _GRACE, "marker": _FILLED},
    "env": {"pass": _PASSABLE},
    "claude": {
        "permission_mode": _MODE,
        "model": _FILLED,
        "on_question": _one_of(*ON_QUESTION),
        "contract": _FLAG,
    },
    "trust": {"folders": _FOLDERS},
}
_USERS_OWN = ("limits", "trust")
"""Sections that a project must not have: it could only give itself more."""
_JSON_TOP: _Fields = {"agents": _TABLE, "chains": _TABLE}
_TOML_TOP: _Fields = {**_JSON_TOP, **dict.fromkeys(_SECTIONS, _TABLE)}


def _camel(name: str) -> str:
    """How ``chains.json`` spells a key."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _as_it_is(name: str) -> str:
    return name


def _table(raw: Any, fields: _Fields, where: str, spell: Callable[[str], str]) -> dict[str, Any]:
    """A table whose every key is known and holds what it should, under our own names for the keys."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: must be {_TABLE.wanted}, not {_shown(raw)}")
    names = {spell(name): name for name in fields}
    table = {}
    for key, value in raw.items():
        if key not in names:
            raise ConfigError(f'{where}: unknown key "{key}"', _meant(key, names))
        kind = fields[names[key]]
        if not kind.fits(value):
            raise ConfigError(f'{where}, "{key}": must be {kind.wanted}, not {_shown(value)}')
        table[names[key]] = tuple(value) if isinstance(value, list) else value
    return table


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _meant(name: str, known: Iterable[str]) -> str | None:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f'did you mean "{near[0]}"?' if near else None


class _Part(Record):
    """What one file says."""

    agents: Mapping[str, AgentConfig]
    chains: Mapping[str, ChainConfig]
    limits: Mapping[str, int]
    run: Mapping[str, Any]
    env_pass: tuple[str, ...]
    claude: Mapping[str, Any]
    trusted_folders: tuple[str, ...]


def _parse(place: _Place, text: str, user: str) -> _Part:
    raw = _decode_json(place.path, text) if place.json else _decode_toml(place.path, text)
    spell = _camel if place.json else _as_it_is
    if place.json and isinstance(raw, dict):
        raw.pop("$schema", None)
    top = _table(raw, _JSON_TOP if place.json else _TOML_TOP, place.path, spell)
    misplaced = next((name for name in _USERS_OWN if name in top), None)
    if misplaced and place.project:
        raise ConfigError(
            f"{place.path}: [{misplaced}] belongs to the user's own configuration, not to a project",
            "move it to the config.toml of HOCKET_HOME",
        )
    sections = {
        name: _table(top.get(name, {}), fields, f"{place.path}: [{name}]", _as_it_is)
        for name, fields in _SECTIONS.items()
    }
    return _Part(
        {name: _agent(place, name, value, spell) for name, value in top.get("agents", {}).items()},
        {name: _chain(place, name, value, spell) for name, value in top.get("chains", {}).items()},
        sections["limits"],
        sections["run"],
        sections["env"].get("pass", ()),
        sections["claude"],
        tuple(
            user + folder[1:] if folder.startswith("~") else folder for folder in sections["trust"].get("folders", ())
        ),
    )


def _check_trust(place: _Place, part: _Part, config: Config) -> None:
    """Raise when a project's file lets agents do what they like, and nobody vouches for the project.

    An alias that asks for it is refused where it is used: it concerns nobody else.
    """
    speakers = {"[claude]": part.claude.get("permission_mode")}
    speakers |= {f'chain "{name}"': chain.permission_mode for name, chain in part.chains.items()}
    wanting = [(speaker, mode) for speaker, mode in speakers.items() if mode in UNASKED_MODES]
    if place.project and wanting and not config.trusts(place.project):
        speaker, mode = wanting[0]
        raise not_trusted(f"{place.path}: {speaker}", [f"permission mode {mode}"], place.project)


def _agent(place: _Place, name: str, raw: Any, spell: Callable[[str], str]) -> AgentConfig:
    table = _table(raw, _AGENT, f'{place.path}: agent "{name}"', spell)
    if isinstance(table.get("allowed_tools"), tuple):
        table["allowed_tools"] = " ".join(table["allowed_tools"])
    return AgentConfig(place.path, **table, project=place.project)


def _chain(place: _Place, name: str, raw: Any, spell: Callable[[str], str]) -> ChainConfig:
    where = f'{place.path}: chain "{name}"'
    table = _table(raw, _CHAIN, where, spell)
    if "steps" not in table:
        raise ConfigError(f'{where}: has no "steps"')
    steps = [_step(f"{where}, step {number}", step, spell) for number, step in enumerate(table["steps"], 1)]
    return ChainConfig(name, place.path, **{**table, "steps": tuple(steps)}, project=place.project)


def _step(where: str, raw: Any, spell: Callable[[str], str]) -> StepConfig:
    table = _table(raw, _STEP, where, spell)
    if "agent" not in table:
        raise ConfigError(f'{where}: has no "agent"')
    return StepConfig(**table)


def _decode_toml(path: str, text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The decoder's own message ends with the line and the column.
        raise ConfigError(f"{path}: {_nesting(error)}") from error


def _decode_json(path: str, text: str) -> Any:
    import json

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f'{path}: "{twice}" is there twice')
        return table

    try:
        return json.loads(text, object_pairs_hook=no_duplicates)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: {error.msg} (at line {error.lineno}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {_nesting(error)}") from error


def _nesting(error: Exception) -> str:
    return "is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _merge(parts: Sequence[_Part], files: Sequence[str], looked: Sequence[str]) -> Config:
    """One configuration out of several; the parts come with the nearest first."""
    agents: dict[str, AgentConfig] = {}
    chains: dict[str, ChainConfig] = {}
    limits: dict[str, int] = {}
    run: dict[str, Any] = {}
    claude: dict[str, Any] = {}
    for part in reversed(parts):
        agents.update(part.agents)
        chains.update(part.chains)
        limits.update(part.limits)
        run.update(part.run)
        claude.update(part.claude)
    passed = dict.fromkeys(name for part in parts for name in part.env_pass)
    return Config(
        agents,
        chains,
        Limits(**limits),
        env_pass=tuple(passed),
        files=tuple(files),
        looked=tuple(looked),
        claude=ClaudeConfig(**claude),
        trusted_folders=tuple(folder for part in parts for folder in part.trusted_folders),
        **run,
    )


# --- Prompts ------------------------------------------------------------------------------------------------


class PromptLevel(Record):
    """One place that may give a prompt: as a text, or as the name of a file."""

    text: str | None = None
    file: str | None = None


def choose_prompt(levels: Iterable[PromptLevel]) -> PromptLevel:
    """The first level that gives a prompt, its text before its file. An empty prompt is none."""
    for level in levels:
        if level.text:
            return PromptLevel(text=level.text)
        if level.file:
            return PromptLevel(file=level.file)
    return PromptLevel()


def read_prompt(file: str, cwd: str) -> str:
    """The text of a prompt file, whose name is relative to the directory that the work is done in."""
    path = os.path.join(cwd, file)
    content = read_bounded(path, MAX_PROMPT, PromptError)
    if content is None:
        raise PromptError(f"the prompt file {path} does not exist")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file {path} is not UTF-8 text (byte {error.start})") from error
