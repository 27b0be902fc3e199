"""Running git. Every git command of Hocket's goes through ``Git``, which runs no hook and no file system monitor.

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
_COMPLAINT = 400


def _trusts_nothing(_: str) -> bool:
    return False


class Git:
    """Git with one caller's environment, without the variables that would name another repository.

    ``folder`` is what the user would approve for it, by default the directory that git is run in; ``trusts`` tells
    whether a folder is trusted. It is asked once, when git is run for the first time.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        folder: str | None = None,
        trusts: Callable[[str], bool] = _trusts_nothing,
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

    def __call__(self, cwd: str, *words: str, patience: float = QUICK, may_be_ended: bool = False) -> ToolResult:
        """``may_be_ended``: the process carries the cookie, by which a caller that gives up finds and ends it.

        ``NotTrusted`` where the repository is not trusted and its configuration has more than harmless keys.
        """
        if not self.is_trusted and (refusal := self._check(cwd)) is not None:
            return refusal
        return self._run(cwd, words, patience, self._mark if may_be_ended else {})

    def commit(self, cwd: str, name: str) -> str | None:
        """The commit that a name stands for."""
        said = self(cwd, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        found = _COMMIT.search(text_of(said))
        return found[0] if said.code == 0 and found else None

    def succeeds(self, cwd: str, *words: str) -> bool:
        return self(cwd, *words).code == 0

    def status(self, cwd: str, *words: str, patience: float = QUICK) -> ToolResult:
        """``git status`` of every changed and unknown path, in the format for programs, entries ending with NUL.

        For each submodule it runs git again, with that one's configuration. Without trust it must not.
        """
        outside = () if self.is_trusted else ("--ignore-submodules=dirty",)
        words = ("status", "--porcelain=v1", "-z", "--untracked-files=all", *outside, *words)
        return self(cwd, *words, patience=patience)

    def risky_settings(self, cwd: str) -> list[Setting]:
        """What the repository's configuration has beside harmless keys; nothing where there is no repository."""
        return self._risky(cwd, self._find(cwd))

    def _check(self, cwd: str) -> ToolResult | None:
        """Raise unless git may be run in this repository. What git said where there is none that it would use."""
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
        """Where git finds the repository of a directory, which executes nothing of it."""
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
        words = ("config", "--file", "-", "--no-includes", "--list", "-z")
        said = self._run("/", words, CONFIG_SECONDS, {}, content)
        if said.code != 0 or said.timed_out or len(said.output) >= OUTPUT_LIMIT:
            yield Setting(path, "", f"{path} cannot be read by git")
            return
        for entry in text_of(said).split("\0")[:-1]:
            key, _, value = entry.partition("\n")
            yield Setting(path, key, value)

    def _run(
        self, cwd: str, words: Sequence[str], patience: float, more: Mapping[str, str], stdin: bytes | None = None
    ) -> ToolResult:
        options = _OPTIONS if self.is_trusted else (*_OPTIONS, *_UNTRUSTED_OPTIONS)
        env = {**self._env, **more, **({} if self.is_trusted else _UNTRUSTED_ENV)}
        try:
            return run_tool(["git", *options, *words], cwd, env, patience, OUTPUT_LIMIT, stdin)
        except FileNotFoundError:
            if not os.path.isdir(cwd):
                raise UsageError(f"{cwd} is gone") from None
            raise ProgramNotFound("git is not there: no program 'git' on PATH", "install git") from None
        except OSError as error:
            raise UsageError(f"git cannot be run in {cwd}: {error.strerror}") from error


def text_of(said: ToolResult) -> str:
    return said.output.decode(errors="surrogateescape")


def complaint(said: ToolResult) -> str:
    """What git had against it, in its own words."""
    if said.timed_out:
        return "git took too long"
    lines = [line for line in said.output.decode(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return " ".join(told)[-_COMPLAINT:] or f"git ended with exit code {said.code}"


# --- Configuration of a repository --------------------------------------------------------------------------


class Setting(NamedTuple):
    """One setting in a configuration file of a repository."""

    file: str
    key: str
    """Empty where the file cannot be read."""
    value: str
    """Then the reason."""


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
"""Keys, in small letters, by which none of our commands runs a program, reads another file or works elsewhere."""


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
