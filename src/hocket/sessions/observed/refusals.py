"""The error for acting on a run that is only observed."""

from __future__ import annotations

from hocket.errors import Conflict
from hocket.model import Run


def check_owned(run: Run, what: str) -> None:
    """Raise if Hocket only reads the session of this run, whose process something else started and may still end."""
    if not run.is_observed or run.ended:
        return
    if run.teammate is not None:
        raise Conflict(
            f"run {run.number} is a teammate in the session of its lead, and Hocket cannot {what} by itself",
            f"ask its lead to, or stop the lead with everyone in its team: hocket stop {run.parent}",
        )
    where = "where it was started" + ("" if run.pid is None else f" (process {run.pid})")
    raise Conflict(
        f"Hocket did not start run {run.number}, it only reads its transcript and cannot {what}",
        f"do that {where}; to continue the session under Hocket once it has ended: hocket resume {run.number}",
    )
