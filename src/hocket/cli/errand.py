"""What is sent while a run is watched: a stop, or an answer. It is seldom, so ``watch`` loads it when it happens."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any

from hocket.client import Client
from hocket.errors import HocketError, ServerUnreachable

ATTEMPTS = 600


class Errand:
    """A POST in a thread of its own. Whoever follows brings a lost server back; a thread must not, since that forks."""

    def __init__(self, client: Client, path: str, body: dict[str, Any]) -> None:
        self.key = os.urandom(16).hex()
        self.trouble: HocketError | None = None
        threading.Thread(target=self._post, args=(client.never_starting(), path, body), daemon=True).start()

    def _post(self, client: Client, path: str, body: dict[str, Any]) -> None:
        try:
            self._insist(client, path, body)
        except HocketError as error:
            self.trouble = error
        except Exception as error:  # noqa: BLE001 - whoever waits for the errand hears of its end in no other way
            self.trouble = HocketError(f"it could not be sent: {str(error) or type(error).__name__}")

    def _insist(self, client: Client, path: str, body: dict[str, Any]) -> None:
        for _ in range(ATTEMPTS - 1):
            with suppress(ServerUnreachable):
                client.request("POST", path, body, self.key)
                return
            time.sleep(0.1)
        client.request("POST", path, body, self.key)
