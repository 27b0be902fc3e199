"""Running git: every git command goes through ``Git``, which runs no hook and no file system monitor.

A repository's configuration can name programs for git to run (filters, helpers, signers). In a folder that the user
does not trust git is therefore run only in a repository whose configuration has nothing but harmless keys, and with
``safe.bareRepository=explicit``, so that a bare repository inside of a working tree is not taken for the repository.
Functions here block: call them from a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hocket.config.reading import read_bounded
from hocket.config.settings import approve_command
from hocket.errors import NotTrusted, ProgramNotFound, UsageError
from hocket.keeper import process_tree as processes
from hocket.keeper.programs import ToolResult, run_tool

QUICK = 30.0
OUTPUT_LIMIT = 16 * 1024**2
MAX_CONFIG = 256 * 1024
CONFIG_SECONDS = 10.0

_OPTIONS = (
    *("--no-optional-locks", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"),
)
_UNTRUSTED_OPTIONS = ("-c", "safe.bareRepository=explicit")
_UNTRUSTED_ENV = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
"""No transport: a partial clone would fetch what it lacks, from an address that the repository gives."""
_COMMIT = re.compile(r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$", re.MULTILINE)
_ERROR_LENGTH = 400


class Git:
    """Git with one caller's environment, without the variables that would name another repository.

    ``folder`` is what the user would approve for it, by default the directory that git is run in; ``trusts`` returns
    whether a folder is trusted. It is called once, when git is run for the first time.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        folder: str | None = None,
        trusts: Callable[[str], bool] = lambda _: False,
        cookie: str | None = None,
    ) -> None:
        clean = {name: value for name, value in env.items() if not name.startswith("GIT_")}
        # A relative or empty entry would mean a program of the folder that git is run in, and so would no entry at all.
        path = ":".join(entry for entry in env.get("PATH", os.defpath).split(":") if entry.startswith("/"))
        self._env = {**clean, "PATH": path or "/nonexistent", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
        self._mark = {} if cookie is None else {processes.COOKIE: cookie}
        self._folder = folder
        self._trusts = trusts
        self._checked: set[str] = set()

    @cached_property
    def is_trusted(self) -> bool:
        return self._folder is not None and self._trusts(self._folder)

    def __call__(
        self,
        cwd: str,
        *args: str,
        patience: float = QUICK,
        cancellable: bool = False,
        stdin: bytes | None = None,
        index: str | None = None,
    ) -> ToolResult:
        """``cancellable``: the process carries the cookie, by which a caller that gives up finds and ends it.

        ``index`` is a file to use instead of the repository's own index.
        ``NotTrusted`` where the repository is not trusted and its configuration has more than harmless keys.
        """
        if not self.is_trusted and (refusal := self._check(cwd)) is not None:
            return refusal
        more = {} if index is None else {"GIT_INDEX_FILE": index}
        return self._run(cwd, args, patience, {**more, **(self._mark if cancellable else {})}, stdin)

    def commit(self, cwd: str, name: str) -> str | None:
        """The commit that a name refers to."""
        result = self(cwd, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        found = _COMMIT.search(text_of(result))
        return found[0] if result.code == 0 and found else None

    def succeeds(self, cwd: str, *args: str) -> bool:
        return self(cwd, *args).code == 0

    def status(self, cwd: str, *args: str, patience: float = QUICK) -> ToolResult:
        """``git status`` of every changed and unknown path, in the format for programs, entries ending with NUL.

        For each submodule it runs git again, with that one's configuration. Without trust it must not.
        """
        outside = () if self.is_trusted else ("--ignore-submodules=dirty",)
        args = ("status", "--porcelain=v1", "-z", "--untracked-files=all", *outside, *args)
        return self(cwd, *args, patience=patience)

    def risky_settings(self, cwd: str) -> list[Setting]:
        """The settings of a repository that are not known to be harmless; none if there is no repository."""
        return self._risky(cwd, self._find(cwd))

    def _check(self, cwd: str) -> ToolResult | None:
        """Raise unless git may be run in this repository. Return git's error if there is no repository."""
        if cwd in self._checked:
            return None
        where = self._find(cwd)
        if risky := self._risky(cwd, where):
            raise _refused(risky[0], self._folder or cwd)
        if where.code != 0:
            return where
        self._checked.add(cwd)
        return None

    def _risky(self, cwd: str, where: ToolResult) -> list[Setting]:
        if where.timed_out:  # A FIFO among the files that its configuration includes, for example.
            return [Setting(cwd, "", f"git cannot read the configuration of {cwd} within {CONFIG_SECONDS:.0f} s")]
        if where.code != 0:
            return []
        return [one for path in _config_files(cwd, where) for one in self._settings(path) if not _is_harmless(one.key)]

    def _find(self, cwd: str) -> ToolResult:
        """The paths of a directory's repository; finding them executes nothing of it."""
        return self._run(cwd, ("rev-parse", "--absolute-git-dir", "--git-common-dir"), CONFIG_SECONDS, {})

    def _settings(self, path: str) -> Iterator[Setting]:
        """The keys of one configuration file, read by git itself, without the files that it includes."""
        try:
            content = read_bounded(path, MAX_CONFIG, NotTrusted)
        except NotTrusted as error:
            yield Setting(path, "", error.message)
            return
        if content is None:
            return
        args = ("config", "--file", "-", "--no-includes", "--list", "-z")
        result = self._run("/", args, CONFIG_SECONDS, {}, content)
        if result.code != 0 or result.timed_out or len(result.output) >= OUTPUT_LIMIT:
            yield Setting(path, "", f"{path} cannot be read by git")
            return
        for entry in text_of(result).split("\0")[:-1]:
            key, _, value = entry.partition("\n")
            yield Setting(path, key, value)

    def _run(
        self, cwd: str, args: Sequence[str], patience: float, more: Mapping[str, str], stdin: bytes | None = None
    ) -> ToolResult:
        options = _OPTIONS if self.is_trusted else (*_OPTIONS, *_UNTRUSTED_OPTIONS)
        env = {**self._env, **more, **({} if self.is_trusted else _UNTRUSTED_ENV)}
        try:
            return run_tool(["git", *options, *args], cwd, env, patience, OUTPUT_LIMIT, stdin)
        except FileNotFoundError:
            if not os.path.isdir(cwd):
                raise UsageError(f"{cwd} does not exist any more") from None
            raise ProgramNotFound("git is not installed: no program 'git' on PATH", "install git") from None
        except OSError as error:
            raise UsageError(f"git cannot be run in {cwd}: {error.strerror}") from error


def pager(env: Mapping[str, str]) -> str:
    """The user's pager as git chooses it, outside of every repository; empty for none."""
    if (own := env.get("GIT_PAGER")) is not None:
        return own
    try:
        result = Git(env, "/", lambda _: True)("/", "--git-dir=/nonexistent", "var", "GIT_PAGER")
    except (ProgramNotFound, UsageError):
        return env.get("PAGER", "")
    return text_of(result).strip() if result.code == 0 else ""


def text_of(result: ToolResult) -> str:
    return result.output.decode(errors="surrogateescape")


def error_text(result: ToolResult) -> str:
    """What git reported as the error."""
    if result.timed_out:
        return "git took too long"
    lines = [line for line in result.output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return " ".join(errors)[-_ERROR_LENGTH:] or f"git ended with exit code {result.code}"


# --- Configuration of a repository --------------------------------------------------------------------------


class Setting(NamedTuple):
    """One setting in a configuration file of a repository."""

    file: str
    key: str
    """Empty where the file cannot be read."""
    value: str
    """Then the reason why it cannot be read."""


_ANY = frozenset({"*"})
_HARMLESS = {
    "core": frozenset(
        {
            *("repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode"),
            *("symlinks", "autocrlf", "eol", "safecrlf", "untrackedcache", "sparsecheckout", "sparsecheckoutcone"),
        }
    ),
    "extensions": frozenset({"objectformat", "partialclone", "preciousobjects", "refstorage", "worktreeconfig"}),
    "index": frozenset({"sparse", "version"}),
    "init": frozenset({"defaultbranch"}),
    "remote.*": frozenset({"url", "pushurl", "fetch", "tagopt", "promisor", "partialclonefilter", "gh-resolved"}),
    "branch.*": _ANY,
    "user": _ANY,
    "submodule": frozenset({"active"}),
    "submodule.*": frozenset({"active", "url"}),
    "pull": frozenset({"rebase", "ff"}),
    "push": frozenset({"default", "autosetupremote"}),
    "fetch": frozenset({"prune"}),
    "lfs": frozenset({"repositoryformatversion"}),
    "lfs.*": frozenset({"access", "locksverify"}),
}
"""Keys, in lower case, with which none of our commands runs a program, reads another file or works elsewhere."""


def _is_harmless(key: str) -> bool:
    section, _, rest = key.partition(".")
    subsection, _, name = rest.rpartition(".")
    known = _HARMLESS.get(f"{section}.*" if subsection else section, frozenset())
    return known is _ANY or name in known


def _config_files(cwd: str, where: ToolResult) -> list[str]:
    """The files that git reads for the repository it has found."""
    lines = text_of(where).removesuffix("\n").split("\n")
    if len(lines) != 2:
        raise NotTrusted(f"git is not run in {cwd}: the path of its repository has line ends")
    own, common = (os.path.join(cwd, line) for line in lines)
    return [os.path.join(common, "config"), os.path.join(own, "config.worktree")]


def _refused(setting: Setting, folder: str) -> NotTrusted:
    what = f"{setting.file} sets {setting.key}" if setting.key else setting.value
    return NotTrusted(
        f"{what}, so git could run a program that the repository names, and {folder} is not approved",
        f"review it first; to approve it, run: {approve_command(folder)}",
    )
