"""What is sent while a run is watched, up to its end. It is seldom, so ``watch`` loads this when it happens."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from hocket.client import Client
from hocket.errors import HocketError, ServerUnreachable

ATTEMPTS = 600


def insist(client: Client, path: str, body: dict[str, Any], key: str) -> HocketError | None:
    """Send it until it arrives; why it did not. Whoever follows brings a lost server back: a thread must not fork."""
    try:
        _send(client, path, body, key)
    except HocketError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whoever waits for the errand hears of its end in no other way
        return HocketError(f"it could not be sent: {str(error) or type(error).__name__}")
    return None


def _send(client: Client, path: str, body: dict[str, Any], key: str) -> None:
    for _ in range(ATTEMPTS - 1):
        with suppress(ServerUnreachable):
            client.request("POST", path, body, key)
            return
        time.sleep(0.1)
    client.request("POST", path, body, key)
