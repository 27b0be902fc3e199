"""WHAT HAPPENED: runs and events in one database, opened by exactly one process.

The only room that speaks SQL, and only SQL that PostgreSQL would take too. ``Store`` is the seam: one writer thread
that commits whatever has gathered (`writer`), one read connection for the caller's thread (`reading`), numbered
migrations (`schema`) and an opener that refuses what it does not understand (`opening`).
"""

from hocket.store.events import Line
from hocket.store.opening import check, open_store
from hocket.store.queries import Queries
from hocket.store.questions import Question
from hocket.store.runs import LATEST, below_test
from hocket.store.store import Store
from hocket.store.usage import SPENDERS, RunUsage, UsageTotal
from hocket.store.writer import Batch, Committed, NewRun, Offsets

__all__ = [
    "LATEST",
    "SPENDERS",
    "Batch",
    "Committed",
    "Line",
    "NewRun",
    "Offsets",
    "Queries",
    "Question",
    "RunUsage",
    "Store",
    "UsageTotal",
    "below_test",
    "check",
    "open_store",
]
