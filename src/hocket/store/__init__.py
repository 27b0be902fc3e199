"""History: runs, events and tasks in one SQLite database, opened by one process.

This package alone contains SQL, in a form that PostgreSQL accepts too. ``schema`` has the ordered migrations,
``opening`` opens or refuses a database, ``writer`` commits batches in one thread, and each subject has its queries.
"""

from hocket.store.events import EventLine
from hocket.store.opening import check, open_store
from hocket.store.questions import Question
from hocket.store.removal import RunPlace, RunTree
from hocket.store.runs import LATEST, below_test
from hocket.store.store import Queries, Store
from hocket.store.usage import RunUsage, UsageTotal
from hocket.store.writer import Batch, Committed, FilePosition, NewRun, Offsets

__all__ = [
    "LATEST",
    "Batch",
    "Committed",
    "EventLine",
    "FilePosition",
    "NewRun",
    "Offsets",
    "Queries",
    "Question",
    "RunPlace",
    "RunTree",
    "RunUsage",
    "Store",
    "UsageTotal",
    "below_test",
    "check",
    "open_store",
]
