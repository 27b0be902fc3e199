"""Files that describe Claude's agents: where they lie, what they are called, and what they say.

Knows the CLI's own words for the keys of a definition, and which of its words somebody else's file may not use; nothing
about how an agent is run. Which of several meanings a name has, and whom the user trusts, is decided in ``resolve``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hocket.catalog.frontmatter import MAX_HEAD, Head, Problem, decode, parse, split, texts
from hocket.config import PERMISSION_MODES, UNASKED_MODES
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition, BadDirectory, UsageError
from hocket.model import Definition

MAX_FILE = 256 * 1024
MAX_FILES = 5000
"""Definitions and folders looked at below one folder: more than anybody has, and an end to a strange one."""
MAX_NAME = 256
_AGENTS = "/.claude/agents/"
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_CHUNK = 16 * 1024

Environ = Mapping[str, str]


class Found(NamedTuple):
    """A definition's file, and the project it belongs to: None for the user's own."""

    path: str
    project: str | None


# --- Paths that name an agent -------------------------------------------------------------------------------


def is_claude_agent_path(path: str) -> bool:
    """Whether a path names a Claude agent, in whatever way it is spelled."""
    return _AGENTS in path or _AGENTS in os.path.normpath(path)


def parse_claude_path(path: str) -> tuple[str, str] | None:
    """The project and the agent's name that an absolute path stands for; None when it stands for neither.

    The last ``/.claude/agents/`` counts. What follows it must be one simple name, with or without ``.md``: anything
    else is an error rather than a program, because such a path is never executed.
    """
    spelled = _last_match(_without_dots(path)) or _last_match(os.path.normpath(path))
    if spelled is None:
        return None
    project, rest = spelled
    name = rest.removesuffix(".md")
    if not _SIMPLE_NAME.fullmatch(name):
        raise UsageError(
            f"{path} does not name a Claude agent: {rest!r} is not a simple name",
            "write it as PROJECT/.claude/agents/NAME, the name made of letters, digits, - and _",
        )
    return project or "/", name


def _without_dots(path: str) -> str:
    """The path with no needless dots and slashes, but with its ``..``, which may lead elsewhere behind a link."""
    plain = "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
    return plain + "/" if path.endswith("/") else plain


def _last_match(path: str) -> tuple[str, str] | None:
    project, separator, rest = path.rpartition(_AGENTS)
    return (project, rest) if separator and not rest.startswith("../") else None


def check_project(project: str) -> str:
    """The project's directory, spelled as plainly as can be. Raises when there is none."""
    if not os.path.isdir(project):
        problem = "is not a directory" if os.path.exists(project) else "does not exist"
        raise BadDirectory(f"the project directory {project} {problem}")
    plain = os.path.normpath(project)
    return plain if os.path.realpath(plain) == os.path.realpath(project) else os.path.realpath(project)


# --- Places -------------------------------------------------------------------------------------------------


def users_folder(cwd: str, env: Environ) -> str | None:
    """Where the user's own definitions lie; None when the environment does not say who the user is."""
    moved, home = env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")
    if moved:
        return os.path.normpath(os.path.join(cwd, moved, "agents"))
    return os.path.join(home, ".claude", "agents") if home else None


def project_folder(project: str) -> str:
    return os.path.join(project, ".claude", "agents")


def projects(cwd: str) -> list[str]:
    """Every folder whose definitions count in a directory, the nearest first: up to its repository's root.

    Outside of a repository only the directory itself counts: what somebody left in a shared parent such as the
    temporary directory must not decide what runs.
    """
    folders, folder = [cwd], cwd
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return [cwd]
        folder = parent
        folders.append(folder)
    return folders


def _places(cwd: str, env: Environ) -> Iterator[tuple[str, str | None]]:
    """Folders with definitions, the one that wins first, each with its project."""
    users = users_folder(cwd, env)
    own = os.path.realpath(users) if users else None
    for project in projects(cwd):
        folder = project_folder(project)
        if os.path.realpath(folder) != own:
            yield folder, project
    if users:
        yield users, None


# --- Finding ------------------------------------------------------------------------------------------------


def find(name: str, cwd: str, env: Environ) -> Found | None:
    """The definition that a name means in a directory: the nearest project's, else the user's own."""
    for folder, project in _places(cwd, env):
        path = find_in(folder, name)
        if path:
            return Found(path, project)
    return None


def find_in(folder: str, name: str) -> str | None:
    """The file below a folder whose head gives this name, exactly as it is written there."""
    wanted = name.encode()
    for path in _files(folder):
        content = _read_head(path)
        # Most files need no parsing: a name that is not escaped stands in its head as it is.
        if content and (wanted in content or b"\\" in content) and _name_in(content) == name:
            return path
    return None


def names(cwd: str, env: Environ) -> list[str]:
    """Every name that means a definition in a directory."""
    return sorted({name for folder, _ in _places(cwd, env) for name in names_in(folder)})


def names_in(folder: str) -> list[str]:
    return sorted({name for path in _files(folder) if (name := _name_in(_read_head(path)))})


def skipped(name: str, cwd: str, env: Environ) -> BadDefinition | None:
    """Why a file that is called like the name does not count, for an error that would otherwise puzzle."""
    for folder, _ in _places(cwd, env):
        for path in _files(folder):
            if os.path.basename(path) == f"{name}.md":
                try:
                    read_definition(path)
                except BadDefinition as error:
                    return error
    return None


def _files(folder: str) -> Iterator[str]:
    """Files that may be definitions, in a fixed order, links followed. Each folder is entered once."""
    waiting, entered, seen = [folder], set[tuple[int, int]](), 0
    while waiting and len(entered) < MAX_FILES:
        current = waiting.pop(0)
        entries = _entries(current, entered)
        for entry in entries:
            seen += 1
            if seen > MAX_FILES:
                return
            if _is_kind(entry, os.DirEntry.is_dir):
                waiting.append(entry.path)
            elif _is_definition_name(entry.name) and _is_kind(entry, os.DirEntry.is_file):
                yield entry.path


def _entries(folder: str, entered: set[tuple[int, int]]) -> list[os.DirEntry[str]]:
    try:
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in entered:
            return []
        entered.add((found.st_dev, found.st_ino))
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_kind(entry: os.DirEntry[str], test: Callable[[os.DirEntry[str]], bool]) -> bool:
    try:
        return test(entry)
    except OSError:
        return False


def _is_definition_name(name: str) -> bool:
    return name.endswith(".md") and ".deprecated" not in name


def _read_head(path: str) -> bytes | None:
    """As much of a regular file as holds its head, or None."""
    try:
        # Without O_NONBLOCK, opening a FIFO that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE:
            return None
        content = b""
        while len(content) <= MAX_HEAD and b"---" not in content[4:]:
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                break
            content += chunk
    except OSError:
        return None
    else:
        return content
    finally:
        os.close(descriptor)


def _name_in(content: bytes | None) -> str | None:
    """The name that a head gives, if the CLI would load it."""
    head = parse(content) if content else None
    if not isinstance(head, Head) or _complaint(head):
        return None
    return str(head.values["name"])


# --- Reading ------------------------------------------------------------------------------------------------


def read_definition(path: str, stem: str | None = None) -> Definition:
    """What a file says about its agent.

    With a ``stem`` the file was named by its path, which is reason enough to take it: one that does not say what it is
    called, or has no head at all, goes by that name. A head that is there but cannot be read stays an error, since
    what it forbids would be lost.
    """
    content = read_bounded(path, MAX_FILE, BadDefinition)
    if content is None:
        raise BadDefinition(f"{path} does not exist")
    head = parse(content)
    if stem is not None:
        head = _named(head, content, stem)
    problem = head if isinstance(head, Problem) else _complaint(head)
    if problem:
        raise BadDefinition(f"{path}, line {problem.line}: {problem.reason}", _HINT)
    assert isinstance(head, Head)  # noqa: S101 - a problem has been raised above
    return Definition(head.values["name"], _fields(head), path)


_HINT = "a definition begins with ---, then name: and description:, then --- and its instructions"


def _named(head: Head | Problem, content: bytes, stem: str) -> Head | Problem:
    if isinstance(head, Problem):
        text = decode(content)
        has_none = not text.startswith("---") and split(text)[0] is None
        return Head({"name": stem, "description": stem}, text.strip()) if has_none and text.strip() else head
    missing = {key: stem for key in ("name", "description") if head.values.get(key) in (None, "")}
    return head._replace(values={**head.values, **missing})


def _complaint(head: Head) -> Problem | None:
    """Why the CLI would not load this head, or None."""
    name, description, hooks = (head.values.get(key) for key in ("name", "description", "hooks"))
    reason = _complaint_about_name(name)
    if reason:
        return Problem(head.line_of("name"), reason)
    if not isinstance(description, str) or not description:
        return Problem(head.line_of("description"), "has no description that is a text")
    if hooks is not None and not isinstance(hooks, dict):
        return Problem(head.line_of("hooks"), "its hooks are not a list of events with values")
    return None


def _complaint_about_name(name: object) -> str | None:
    if name is None or name == "":
        return "has no name"
    if not isinstance(name, str):
        return f"its name is {name!r}, which is not a text; put it in quotes"
    if not name.strip() or len(name) > MAX_NAME:
        return f"its name must have 1 to {MAX_NAME} characters"
    if name.startswith("-") or ":" in name or _CONTROL.search(name):
        return f"its name {name!r} begins with a dash or has a colon or a control character in it"
    return None


# --- What the CLI understands -------------------------------------------------------------------------------
# It refuses to start at all when a field of a definition that it is handed has the wrong shape, though it only
# leaves such a field out when it reads the file itself. So they are left out here.

_MISSING: Any = object()


def _one_of(*known: str) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, str) and value in known else _MISSING


def _text(value: Any) -> Any:
    return value if isinstance(value, str) and value else _MISSING


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _MISSING


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _turns(value: Any) -> Any:
    return value if _is_whole(value) and value > 0 else _MISSING


def _effort(value: Any) -> Any:
    known = ("low", "medium", "high", "xhigh", "max")
    return value if _is_whole(value) or (isinstance(value, str) and value in known) else _MISSING


def _tools(value: Any) -> Any:
    # Present but empty means no tools at all, which is another thing than absent.
    return texts(value, at_spaces=True)


def _skills(value: Any) -> Any:
    return texts(value) or _MISSING


def _servers(value: Any) -> Any:
    if not isinstance(value, list):
        return _MISSING
    usable = [item for item in value if isinstance(item, str) or _is_named_server(item)]
    return usable or _MISSING


def _is_named_server(item: Any) -> bool:
    return isinstance(item, dict) and bool(item) and all(isinstance(server, dict) for server in item.values())


def _hooks(value: Any) -> Any:
    if not isinstance(value, dict):
        return _MISSING
    usable = {event: entries for event, entries in value.items() if _is_hook_list(entries)}
    return usable or _MISSING


def _is_hook_list(entries: Any) -> bool:
    return (
        isinstance(entries, list)
        and bool(entries)
        and all(isinstance(entry, dict) and isinstance(entry.get("hooks"), list) for entry in entries)
    )


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "tools": _tools,
    "disallowedTools": _tools,
    "model": _text,
    "permissionMode": _one_of(*PERMISSION_MODES),
    "mcpServers": _servers,
    "hooks": _hooks,
    "maxTurns": _turns,
    "skills": _skills,
    "initialPrompt": _text,
    "memory": _one_of("user", "project", "local"),
    "effort": _effort,
    "background": _flag,
    "isolation": _one_of("worktree", "remote"),
}


def _fields(head: Head) -> dict[str, Any]:
    cleaned = {key: clean(head.values[key]) for key, clean in _FIELDS.items() if key in head.values}
    return {
        # The CLI takes a written-out \n in a description for a line end.
        "description": head.values["description"].replace("\\n", "\n"),
        **{key: value for key, value in cleaned.items() if value is not _MISSING},
        "prompt": head.body,
    }


# --- What only a trusted folder may ask for -----------------------------------------------------------------


def asks_for(definition: Definition, *, own_mode: bool = True) -> list[str]:
    """What a definition wants that only a trusted folder may have, in words.

    Its permission mode is left out where somebody else's word stands above it (``own_mode`` false).
    """
    fields = definition.fields
    servers = [item if isinstance(item, str) else ", ".join(item) for item in fields.get("mcpServers", ())]
    wishes = []
    if "hooks" in fields:
        wishes.append(f"hooks ({', '.join(fields['hooks'])})")
    if servers:
        wishes.append(f"MCP servers ({', '.join(servers)})")
    if own_mode and own_permission_mode(definition) in UNASKED_MODES:
        wishes.append(f"permission mode {own_permission_mode(definition)}")
    return wishes


def own_permission_mode(definition: Definition | None) -> str | None:
    return definition.fields.get("permissionMode") if definition else None


WIDENING: Mapping[str, Sequence[str]] = {
    "lets it work without asking anybody": (
        *("--dangerously-*", "--allow-dangerously-*", "--allowedTools", "--allowed-tools"),
        *("--permission-prompt-tool", "--permission-prompts", "--inherit-permission-mode", "--enable-auto-mode"),
    ),
    "brings settings along, and with them hooks, servers and permissions": (
        *("--setting-sources", "--settings", "--managed-settings*", "--project-config-root"),
        *("--client-data-url", "--await-*"),
    ),
    "leaves out what the user's own settings forbid or watch over": ("--bare", "--safe-mode", "--restricted"),
    "starts programs, or connects to running ones": (
        *("--mcp-*", "--plugin-*", "--init", "--init-only", "--maintenance", "--chrome", "--ide"),
    ),
    "reads or writes where nobody would be asked": (
        *("--add-dir", "--debug-file", "--file", "--rewind-files", "--worktree", "-w", "--tmux"),
        *("--system-prompt-file", "--append-system-prompt-file"),
    ),
    "makes it another agent than the one that was looked up and checked": ("--agent*", "--team*", "--lead-verify-key"),
    "goes on with a session that nobody chose, and with what was allowed in it": (
        *("--session-*", "--resume*", "-r", "--continue", "-c", "--fork-session", "--from-pr", "--reply-on-resume"),
    ),
    "takes it where Hocket neither sees nor stops it": (
        *("--input-format", "--output-format", "--bg", "--background", "--desktop", "--handle-uri", "--deep-link-*"),
        *("--cloud", "--remote*", "--rc", "--environment", "--pool", "--teleport", "--attach-serve", "--sdk-url"),
    ),
    "lets somebody else speak to it": ("--channels", "--watch-artifact*", "--messaging-socket-path"),
    "makes mere words of what the user adds": ("--",),
}
"""What the CLI's flags do beyond what an agent was given leave for. ``*`` at the end of a flag stands for any rest.

Every other flag only shapes the work (its model, its bounds, its prompt, fewer tools), which a project may do; a flag
that the CLI does not know ends it with an error.
"""
_BY_WIDTH = (("plan",), ("dontAsk",), ("default", "manual"), ("acceptEdits",), *((mode,) for mode in UNASKED_MODES))
"""Permission modes, the narrowest first: reading only, what was allowed before, what is asked for, edits too."""
_WIDTH = {mode: width for width, modes in enumerate(_BY_WIDTH) for mode in modes}
_LETTERS = re.compile("-[phv]*([crw])")
"""Short flags in one argument, as the CLI takes them apart: after some without a value, one that widens."""


class Widening(NamedTuple):
    """An argument by which an agent could do more, and in what way."""

    argument: str
    reason: str


def widening(args: Sequence[str], mode: str, before: Sequence[str] = ()) -> Widening | None:
    """The first of these arguments that lets Claude do more than its permission mode and the ones ``before`` do.

    Arguments that are only some flag's value are looked at like flags: which ones take a value differs from one
    version of the CLI to the next.
    """
    if args and (open_list := _open_list(before)) and not args[0].startswith("-"):
        return Widening(args[0], f"goes on with the values of {open_list}")
    for argument, following in pairwise((*args, "")):
        flag, given, value = argument.partition("=")
        if flag == "--permission-mode" and _is_wider(value if given else following, mode):
            return Widening(f"{flag} {value if given else following}", f"allows more than {mode}")
        reason = _reason(flag)
        if reason:
            return Widening(flag, reason)
    return None


def _is_wider(wanted: str, mode: str) -> bool:
    # A word that is no mode of ours may be one of a later version's.
    return _WIDTH.get(wanted, len(_WIDTH)) > _WIDTH.get(mode, 0)


def _open_list(args: Sequence[str]) -> str | None:
    """The widening flag, if any, that takes the next word too: some take as many as there are."""
    last = next((argument for argument in reversed(args) if argument.startswith("-")), "")
    return last if _reason(last) else None


def _reason(flag: str) -> str | None:
    letters = _LETTERS.match(flag)
    return _REASONS.get(f"-{letters[1]}" if letters else flag) or next(
        (reason for start, reason in _REASONS_BY_START.items() if flag.startswith(start)), None
    )


_REASONS = {flag: reason for reason, flags in WIDENING.items() for flag in flags}
_REASONS_BY_START = {flag[:-1]: reason for flag, reason in _REASONS.items() if flag.endswith("*")}
