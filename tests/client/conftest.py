"""Fixtures for the tests of the client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client import fake_server
from client.fake_server import Launch


@pytest.fixture
def launch(home: Path) -> Iterator[Launch]:
    """``launch(**options)`` gives a function that starts the scripted server; all are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def prepare(**options: Any) -> Callable[[], None]:
        def start() -> None:
            log = (home / "server.log").open("ab")
            command = [sys.executable, "-IS", fake_server.__file__, str(home), json.dumps(options)]
            started.append(subprocess.Popen(command, stderr=log))
            log.close()

        return start

    yield prepare
    for process in started:
        process.kill()
        process.wait()
