"""All queries over one connection."""

from __future__ import annotations

from hocket.store.events import EventQueries
from hocket.store.questions import QuestionQueries
from hocket.store.tasks import TaskQueries
from hocket.store.usage import UsageQueries


class Queries(EventQueries, QuestionQueries, UsageQueries, TaskQueries):
    """Reads what has been committed. A connection is used by one thread."""
