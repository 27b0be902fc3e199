"""Watching a run: whom a key is meant for."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from cli.test_box import asked, scene
from rich.console import Console

from hocket.cli.terminal import LiveView
from hocket.cli.watch import DETACHED, Hands, Leave, Signals
from hocket.client import Client


class Interrupted(Hands):
    """Ctrl-C comes after it was last looked for, and a key right behind it."""

    def _pressed(self) -> list[str]:
        self._signals.asking = True
        return ["d"]


def test_a_key_behind_ctrl_c_is_never_the_boxs(tmp_path: Path) -> None:
    client = Client(str(tmp_path))
    signals = Signals(client, on_terminal=True)
    view = LiveView(verbose=False, colour=False, keys=True, console=Console(file=io.StringIO(), width=80))
    view.box, progress = scene(asked())
    with pytest.raises(Leave) as left:
        Interrupted(client, view, signals).look(progress)
    assert left.value.code == DETACHED
    assert any("[d] deny" in line for line in view.box.lines(80, 9, 1.0)), "nothing was opened"
