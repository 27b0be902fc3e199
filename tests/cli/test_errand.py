"""What is sent while a run is watched: whoever waits for it hears that it will not arrive."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import errand as errand_module
from hocket.cli.watch import Errand
from hocket.client import Client
from hocket.errors import HocketError, ServerUnreachable


def trouble_of(errand: Errand) -> HocketError:
    deadline = time.monotonic() + 10
    while errand.trouble is None:
        assert time.monotonic() < deadline, "the errand says nothing"
        time.sleep(0.01)
    return errand.trouble


def test_an_errand_that_gives_up_on_a_lost_server_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errand_module, "ATTEMPTS", 2)
    errand = Errand(Client(str(tmp_path)), "/api/runs/r/answer", {"allow": True})
    assert isinstance(trouble_of(errand), ServerUnreachable)


def test_an_errand_that_breaks_in_an_unforeseen_way_says_so(tmp_path: Path) -> None:
    body: dict[str, Any] = {"allow": object()}
    errand = Errand(Client(str(tmp_path)), "/api/runs/r/answer", body)
    assert "could not be sent" in trouble_of(errand).message
