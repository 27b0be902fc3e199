"""``worktrees``: what chains have left in git worktrees, and taking away those that hold nothing."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket.cli import access
from hocket.cli.format import WORDS, duration, harmless, one_line
from hocket.cli.usage import COUNT, FLAG, JSON, Argument, ArgumentError, Option, command

Row = dict[str, Any]

PRUNE = "prune"
_DAY = 86400


@command(
    Argument("words", "[prune [RUN...]]", many=True, required=False),
    Option("--older", kind=COUNT, metavar="DAYS", help="With prune: only of chains that ended so long ago."),
    Option("--dry-run", kind=FLAG, help="With prune: say what would go, and remove nothing."),
    JSON,
    examples=("hocket worktrees", "hocket worktrees prune --dry-run", "hocket worktrees prune --older 7"),
)
def worktrees(words: tuple[str, ...], older: int | None, dry_run: bool, as_json: bool) -> None:
    """List the git worktrees that steps of chains have left: run, branch, path, and what is in them.

    With "prune" those go that hold nothing which a branch does not have: no change, no file that git does not know.
    Their branches go too where another branch has all of their commits. All else stays.
    """
    if words and words[0] != PRUNE:
        raise ArgumentError(f"there is nothing called {words[0]!r} here, only prune")
    if not words and (older or dry_run):
        raise ArgumentError("--older and --dry-run go with prune")
    client = access.connect(talk=not as_json)
    if words:
        body = {"runs": list(words[1:]), "older": (older or 0) * _DAY, "dry_run": dry_run}
        rows: list[Row] = client.request("POST", "/api/worktrees/prune", body)
    else:
        rows = client.request("GET", "/api/worktrees")
    if as_json:
        access.write_json(rows)
        return
    access.write("".join(f"{harmless(line)}\n" for row in rows for line in _lines(row, time.time())))
    sys.stdout.flush()
    print(_sum(rows, is_prune=bool(words), dry_run=dry_run), file=sys.stderr)


def _lines(row: Row, now: float) -> list[str]:
    """Whose it is and what it holds, where it is, and why it stays."""
    ended = row["ended_at"]
    ago = f" {duration(now - ended)} ago" if ended else ""
    state = f"{WORDS.get(row['status'], row['status'])}{ago}"
    went = "  removed" + (", and its branch" if row["branch_removed"] else "") if row["removed"] else ""
    stays = [f"    stays: {one_line(row['why'])}"] if row["why"] else []
    return [
        f"{row['number']} {one_line(row['agent'])}  {state}  {_holding(row)}{went}",
        f"    {row['branch']} in {one_line(row['path'])}",
        *stays,
    ]


def _holding(row: Row) -> str:
    commits, files = row["commits"], row["uncommitted"]
    told = "commits unknown" if commits is None else f"{commits} commit{'' if commits == 1 else 's'} not merged"
    if files is None:
        return f"{told}, perhaps more that is not committed"
    return f"{told}, {files} file{'' if files == 1 else 's'} not committed" if files else told


def _sum(rows: list[Row], *, is_prune: bool, dry_run: bool) -> str:
    if not rows:
        return "No worktree of a chain is there."
    free = sum(row["why"] is None for row in rows)
    if is_prune and not dry_run:
        return f"{sum(row['removed'] for row in rows)} of {len(rows)} removed"
    more = " · hocket worktrees prune" if free else ""
    return f"{free} of {len(rows)} hold nothing that a branch does not have{more}"
