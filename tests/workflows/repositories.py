"""Real git repositories for the tests of worktrees, and a picture of one to compare with later."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from patience import PATIENCE

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")


def git(cwd: Path | str, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(cwd), *IDENTITY, *words], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_repository(folder: Path, **files: str) -> str:
    """A repository with one commit, which it returns. Double underscores in names stand for slashes."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, content in (files or {"readme": "hello\n"}).items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "first")
    return git(folder, "rev-parse", "HEAD")


def commit_all(folder: Path, message: str = "more") -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def picture(folder: Path) -> dict[str, str]:
    """Every byte of a working tree, with its HEAD and its index: what must be the same afterwards."""
    found = {
        str(path.relative_to(folder)): _hash(path)
        for path in sorted(folder.rglob("*"))
        if ".git" not in path.relative_to(folder).parts and path.is_file()
    }
    administration = Path(git(folder, "rev-parse", "--absolute-git-dir"))
    for name in ("HEAD", "index", "config"):
        found[f".git/{name}"] = _hash(administration / name)
    found["HEAD"] = git(folder, "rev-parse", "HEAD")
    found["branch"] = git(folder, "symbolic-ref", "HEAD")
    found["status"] = git(folder, "--no-optional-locks", "status", "--porcelain", "--ignored")
    return found


def branches(folder: Path) -> list[str]:
    """Ours."""
    return git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads/hocket").split()


def worktrees(folder: Path) -> list[str]:
    """Those beside the first one."""
    listed = git(folder, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in listed if line.startswith("worktree ")][1:]


def trap(folder: Path, evidence: Path) -> None:
    """Hooks and a monitor of the repository's own, each of which leaves a file when it is run."""
    hooks = folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-commit", "post-commit"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {evidence}/{name}\n")
        (hooks / name).chmod(0o755)
    monitor = folder / ".git/monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {evidence}/monitor\n")
    monitor.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(monitor))


def _hash(path: Path) -> str:
    return hashlib.sha256(os.readlink(path).encode() if path.is_symlink() else path.read_bytes()).hexdigest()
