"""The thin client of the server: requests, followed events, and starting the server where none is running.

Every command loads this package, so it needs the standard library alone, and no large part of it.
"""

from __future__ import annotations

from hocket.client.client import ENDED, Client
from hocket.client.transport import check_names, quote

__all__ = ["ENDED", "Client", "check_names", "quote"]
