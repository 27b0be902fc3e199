"""What the steps of a chain left in worktrees of their own, in words. Most chains have none, and load none of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from hocket.cli.format import one_line

Data = dict[str, Any]


def tree_lines(steps: list[Data], run: str) -> list[str]:
    """What the steps of a chain left in worktrees of their own, and what can be typed about it.

    Only what loses nothing, in whichever order: pruning looks once more at what is there.
    """
    left = [step for step in steps if step.get("repository")]
    lines = [line for step in left for line in _tree_lines(step)]
    return [*lines, f"    hocket worktrees prune {run}"] if any(step.get("worktree") for step in left) else lines


def _tree_lines(step: Data) -> list[str]:
    where = f", in {step['worktree']}" if step.get("worktree") else ""
    branch, head = step.get("branch"), step.get("head")
    on = f" on {branch}" if branch else f" on no branch ({head[:12]})" if head and step.get("commits") else ""
    work = _work(step) if on else _work(step).removesuffix(",")
    told = f"{step['agent']}: {work}{on}{where}"
    more = [f"besides: {step['besides']}" if step.get("besides") else "", " · ".join(_typed(step))]
    return [one_line(told), *(f"    {one_line(line)}" for line in more if line)]


def _typed(step: Data) -> Iterator[str]:
    git = shlex.join(["git", "-C", str(step["repository"])])
    folder, branch, head = str(step.get("worktree") or ""), step.get("branch"), step.get("head")
    if branch is None and head and step.get("commits") != 0:
        # What is on no branch may go with its folder, so it is given one before anything else.
        branch = f"hocket/{folder.rpartition('/')[2]}"
        yield f"{git} branch {shlex.join([branch, head])}"
    if branch and step.get("commits") != 0:
        yield f"{git} merge {shlex.quote(branch)}"
    if branch and not folder:
        yield f"{git} branch -d {shlex.quote(branch)}"


def _work(step: Data) -> str:
    commits, left = step.get("commits"), step.get("uncommitted")
    done = "perhaps commits" if commits is None else f"{commits} commit{'s' if commits != 1 else ''}"
    if left is None:
        return f"{done}, perhaps more that is not committed,"
    return f"{done}, {left} file{'s' if left != 1 else ''} not committed," if left else done
