"""Watching a run: which prompt a key belongs to, and requests in the background."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from cli.test_question_prompt import asked, scene
from patience import PATIENCE
from rich.console import Console

from hocket.cli import watch
from hocket.cli.terminal import LiveDisplay
from hocket.cli.watch import DETACHED, BackgroundPost, ClientExit, Keyboard, KeyboardControl, SignalHandler
from hocket.client import Client
from hocket.errors import HocketError, ServerUnreachable


class InterruptedKeyboard(Keyboard):
    """Ctrl-C comes after it was last polled, and a key right behind it."""

    def __init__(self, signals: SignalHandler) -> None:
        super().__init__()
        self._signals = signals

    def pressed(self) -> list[str]:
        self._signals.is_offering = True
        return ["d"]


def test_key_after_ctrl_c_skips_the_prompt(tmp_path: Path) -> None:
    client = Client(str(tmp_path))
    signals = SignalHandler(client, on_terminal=True)
    display = LiveDisplay(verbose=False, colour=False, keys=True, console=Console(file=io.StringIO(), width=80))
    display.prompt, view = scene(asked())
    control = KeyboardControl(client, display, signals, InterruptedKeyboard(signals))
    with pytest.raises(ClientExit) as left:
        control.poll(view)
    assert left.value.code == DETACHED
    assert any("[d] deny" in line for line in display.prompt.lines(80, 9, 1.0)), "no denial was begun"


def error_of(post: BackgroundPost) -> HocketError:
    deadline = time.monotonic() + PATIENCE
    while post.error is None:
        assert time.monotonic() < deadline, "the request reports no error"
        time.sleep(0.01)
    return post.error


def test_background_post_reports_a_lost_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SEND_ATTEMPTS", 2)
    post = BackgroundPost(Client(str(tmp_path)), "/api/runs/r/answer", {"allow": True})
    assert isinstance(error_of(post), ServerUnreachable)


def test_background_post_reports_an_unexpected_error(tmp_path: Path) -> None:
    body: dict[str, Any] = {"allow": object()}
    post = BackgroundPost(Client(str(tmp_path)), "/api/runs/r/answer", body)
    assert "could not be sent" in error_of(post).message
