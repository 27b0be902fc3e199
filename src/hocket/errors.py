"""Every error that Hocket raises on purpose, in one tree.

Each class has a ``code`` for programs, an HTTP ``status`` and the command line's ``exit_code``; each error may have a
``hint`` that says what to do next. The tree serves both ends of the API: ``from_wire`` turns a response back into the
error that it reports. Free of imports, because every command loads it.
"""

from __future__ import annotations


class HocketError(Exception):
    """The root of the tree."""

    code = "error"
    status = 500
    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HocketError):
    """Invalid request; nothing was started."""

    code = "usage"
    status = 400


class ChainSyntaxError(UsageError):
    """The text of a chain is malformed."""

    code = "chain_syntax"


class ConfigError(UsageError):
    """A configuration file is malformed."""

    code = "config"


class PromptError(UsageError):
    """A prompt cannot be read, or cannot be delivered as requested."""

    code = "prompt"


class AmbiguousRun(UsageError):
    """A prefix matches more than one run."""

    code = "ambiguous_run"


class ValidationError(UsageError):
    """Invalid name."""

    code = "invalid_name"


class SecurityError(UsageError):
    """A path outside the folder that it must stay in."""

    code = "path_outside"


class ProgramNotFound(HocketError):
    """There is no program of that name."""

    code = "program_not_found"
    status = 400


class UnknownAgent(ProgramNotFound):
    """Neither an agent nor a program has that name."""

    code = "unknown_agent"


class BadDefinition(HocketError):
    """A file that should describe an agent does not."""

    code = "bad_definition"
    status = 400


class NoAgentsFound(HocketError):
    """No definition was found in any folder."""

    code = "no_agents"
    status = 404


class GlobalAgentsDirectoryMissing(HocketError):
    """The user has no folder of definitions, and the caller requires one."""

    code = "no_global_agents"
    status = 404


class NotTrusted(HocketError):
    """The agent asks for more than an untrusted folder may have."""

    code = "not_trusted"
    status = 403
    exit_code = 4


class BadDirectory(HocketError):
    """The working directory does not exist or is no directory."""

    code = "bad_directory"
    status = 400


class NotFound(HocketError):
    """There is no such run, task, hand-off or route."""

    code = "not_found"
    status = 404


class AgentNotFound(NotFound):
    """No agent has that name."""

    code = "agent_not_found"


class Conflict(HocketError):
    """The state of the run or task forbids the request."""

    code = "conflict"
    status = 409


class LimitReached(Conflict):
    """One of the limits on the shape of a tree of runs; the message names it."""

    code = "limit"


class Cycle(Conflict):
    """A task would return to an agent that waits for it, with nothing changed since."""

    code = "cycle"


class TooLarge(HocketError):
    """The body is larger than the server reads."""

    code = "too_large"
    status = 413


class WrongMediaType(HocketError):
    """Bodies are JSON; nothing else is parsed."""

    code = "media_type"
    status = 415


class Unauthorized(HocketError):
    """The token is missing or wrong."""

    code = "unauthorized"
    status = 401


class Forbidden(HocketError):
    """Host, Origin or scope not allowed."""

    code = "forbidden"
    status = 403


class NotAllowed(Forbidden):
    """A run may not start this, or not in this way; the message says what it may start."""

    code = "not_allowed"


class DiskLow(HocketError):
    """Too little free disk space to store the outcome of a run."""

    code = "disk_low"
    status = 507


class StoreError(HocketError):
    """The database is damaged, gone, or cannot be written."""

    code = "store"


class RegistryUnusable(HocketError):
    """The registry file of a project, or a file beside it, cannot be used."""

    code = "registry"


class NewerStore(StoreError):
    """The database was written by a newer Hocket; it is left unchanged."""

    code = "newer_store"


class HomeError(HocketError):
    """HOCKET_HOME cannot be used: read-only, not ours, or not a directory."""

    code = "home"


class ServerRunning(HocketError):
    """Another server holds this HOCKET_HOME."""

    code = "server_running"
    exit_code = 1


class ServerUnreachable(HocketError):
    """No server answers, and none could be started."""

    code = "server_unreachable"


class VersionMismatch(HocketError):
    """The running server is newer than this program."""

    code = "version"


def _tree(root: type[HocketError]) -> list[type[HocketError]]:
    return [root, *(below for child in root.__subclasses__() for below in _tree(child))]


BY_CODE: dict[str, type[HocketError]] = {kind.code: kind for kind in _tree(HocketError)}


def from_wire(code: str, message: str, hint: str | None) -> HocketError:
    """Return the error that the server sent; an unknown code becomes a plain HocketError."""
    return BY_CODE.get(code, HocketError)(message, hint)
