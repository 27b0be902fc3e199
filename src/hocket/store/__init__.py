"""WHAT HAPPENED: runs and events in one database, opened by exactly one process.

The only room that speaks SQL, and only SQL that PostgreSQL would take too. ``Store`` is the seam: one writer thread
that commits whatever has gathered (`writer`), one read connection for the caller's thread (`reading`), numbered
migrations (`schema`) and an opener that refuses what it does not understand (`opening`).
"""

from hocket.store.opening import check, open_store
from hocket.store.reading import LATEST, Line, Reading
from hocket.store.store import Store
from hocket.store.writer import Batch, Committed, NewRun, Offsets

__all__ = ["LATEST", "Batch", "Committed", "Line", "NewRun", "Offsets", "Reading", "Store", "check", "open_store"]
