"""A read connection that reports a damaged database as StoreError."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from hocket.errors import StoreError

RESTORE = "Stop the server with `hocket server stop`, then run `hocket doctor --restore` to rebuild the database"

T = TypeVar("T")

log = logging.getLogger("hocket")


class ReadConnection(sqlite3.Connection):
    """Raises StoreError where a query meets damage. The first such error is logged."""

    is_logged = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return self.cursor(_Cursor).execute(sql, parameters)

    def read(self, step: Callable[[], T]) -> T:
        """Run one step of a query."""
        try:
            return step()
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            found = StoreError(f"the database cannot be read: {error}", RESTORE)
            if not self.is_logged:
                self.is_logged = True
                log.error("%s. %s", found.message, found.hint)
            raise found from error


class _Cursor(sqlite3.Cursor):
    connection: ReadConnection

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        self.connection.read(lambda: super(_Cursor, self).execute(sql, parameters))
        return self

    def fetchone(self) -> Any:
        return self.connection.read(super().fetchone)

    def fetchall(self) -> list[Any]:
        return self.connection.read(super().fetchall)

    def __next__(self) -> Any:
        return self.connection.read(super().__next__)
