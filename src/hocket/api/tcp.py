"""Limits of the TCP port, to which any program of any user may connect: number of connections, and time for each.

The unix socket has no such limits, and the TCP port never uses up the descriptors that it needs.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 10.0
"""For the head of a request, since the connection was opened or the last response ended."""
BODY_SECONDS = 60.0
"""For a complete request."""
MOST_CONNECTIONS = 256


def most_connections() -> int:
    """Return the limit: at most a quarter of the descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, soft // 4))


class TcpProtocol(H11Protocol):
    """One connection. It is closed unless authorized requests arrive in time; their responses have no time limit."""

    most: ClassVar[int] = most_connections()

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waiting_since = time.monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the class above
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def _make_room(self) -> None:
        """Close the connection that has been open longest without a valid token, which may be this one."""
        others = [one for one in self.connections if isinstance(one, TcpProtocol) and not one._is_authorized()]
        min(others, key=lambda one: one._waiting_since)._drop()

    def _await_request(self) -> None:
        self._waiting_since = time.monotonic()
        self._set_deadline(HEAD_SECONDS)

    def _check_deadline(self) -> None:
        left = self._waiting_since + BODY_SECONDS - time.monotonic()
        if not self._is_authorized() or (self.cycle.more_body and left <= 0):
            self._drop()
        elif self.cycle.more_body:
            self._set_deadline(left)
        elif self.cycle.response_complete:
            self._set_deadline(HEAD_SECONDS)

    def _is_authorized(self) -> bool:
        """True while the response to a request with a valid token is being made or sent."""
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first request
        if cycle is None or "caller" not in self.scope["state"]:
            return False
        return not cycle.response_complete or self.transport.get_write_buffer_size() > 0

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._check_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self) -> None:
        self._cancel_deadline()
        self.connections.discard(self)
        self.transport.abort()
