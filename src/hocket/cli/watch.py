"""Watching a run: events, a clock, keys and signals, brought together in the main thread.

Only what is the same for every view is here; what is drawn belongs to ``plain`` and ``terminal``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from hocket.client import Client, type_in

if TYPE_CHECKING:
    from hocket.cli.box import Box
    from hocket.cli.keys import Keys
    from hocket.cli.progress import Progress
    from hocket.cli.view import View
    from hocket.errors import HocketError

Event = dict[str, Any]

ASKING = "d detach, s stop, Enter to go on"
DETACHED = 3
"""As for a wait that timed out: nothing is complete, and the work goes on."""
STOPPING = "stopping, please wait"
PATIENCE = 2
"""So many more signals while a stop is under way, and the client leaves without waiting for it."""
FLUSH_SECONDS = 5.0
HANDS_TICK = 0.25
"""So often, in seconds, keys and Ctrl-C are looked for where somebody sits at a terminal."""
UNENDED = "following ends with the run's own end and with nothing else"


class Errand:
    """A POST in a thread of its own: a stop, or an answer."""

    def __init__(self, client: Client, path: str, body: dict[str, Any]) -> None:
        self.key = os.urandom(16).hex()
        self.trouble: HocketError | None = None
        # A signal handler may call this while the main thread imports a module, so nothing is imported here.
        threading.Thread(target=self._post, args=(client.without_start(), path, body), daemon=True).start()

    def _post(self, client: Client, path: str, body: dict[str, Any]) -> None:
        from hocket.cli.errand import insist

        self.trouble = insist(client, path, body, self.key)


class Leave(Exception):
    """The client ends while the run goes on."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Signals:
    """What SIGINT, SIGTERM and SIGHUP mean while a run is watched."""

    def __init__(self, client: Client, on_terminal: bool) -> None:
        self._client = client
        self.on_terminal = on_terminal
        self._run: str | None = None
        self._errand: Errand | None = None
        """The stop, once it was asked for."""
        self._further = 0
        self.asking = False
        self.code: int | None = None
        """130 or 143 once this client has asked for the end."""

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        # Under nohup a hang-up means nothing, and that is to stay so.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._on_signal)

    def watching(self, run: str) -> None:
        """From now on there is something to stop; a signal that came earlier counts."""
        self._run = run
        if self.code is not None:
            self._begin_stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            raise Leave(128 + number)
        if self._errand is not None or (self.code is not None and self._run is None):
            self._further += 1
            if self._further >= PATIENCE:
                raise Leave(128 + number)
        elif number == signal.SIGINT and self.on_terminal and not self.asking and self._run is not None:
            self.asking = True
        else:
            self.stop(128 + number)

    def stop(self, code: int) -> None:
        """Ask for the end of the run, once. Its own ``run.ended`` says when that has come."""
        self.asking = False
        self.code = self.code or code
        if self._run is not None:
            self._begin_stop()

    def _begin_stop(self) -> None:
        if self._errand is None:
            # In a thread: a handler that waits for the answer would keep the last events from being shown.
            self._errand = Errand(self._client, f"/api/runs/{self._run}/stop", {})

    @property
    def trouble(self) -> HocketError | None:
        """Why the run cannot be stopped."""
        return self._errand.trouble if self._errand is not None else None

    def exit_code(self, status: str, code: int) -> int:
        """The run's own code, unless it ended because this client was told to end it."""
        return self.code if status == "stopped" and self.code is not None else code


def is_last(event: Event, run: str, session: bool) -> bool:
    """Whether nothing more is to be waited for: the run's end, or a session's first pause."""
    if event["run"] != run:
        return False
    return event["type"] == "run.ended" or (session and event["type"] == "turn.ended" and bool(event["data"]["idle"]))


class Hands:
    """Whoever sits at the terminal: what they say to the offer that the first Ctrl-C makes, and to questions."""

    def __init__(self, client: Client, view: View, signals: Signals) -> None:
        self._client = client
        self._view = view
        self._signals = signals
        self._keys: Keys | None = None
        """Made when the first key is wanted, which most runs never do."""
        self._offered = False
        self._errand: Errand | None = None
        """The last answer that was given."""

    def __enter__(self) -> Hands:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def look(self, progress: Progress) -> None:
        """Whenever something has happened, and whenever nothing does."""
        signals, box = self._signals, self._view.box
        self._offer(progress)
        if self._offered or (box is not None and box.asked is not None and signals.code is None):
            keys = self._pressed()
            # Ctrl-C may have come meanwhile. The terminal forgets what was typed before it, so these are meant for it.
            self._offer(progress)
            if self._offered:
                for key in keys:
                    obey(key.lower(), signals)
            elif box is not None and signals.code is None:
                self._answer(box, progress, keys)
        else:
            self._let_go()
        if signals.trouble:
            raise signals.trouble

    def _offer(self, progress: Progress) -> None:
        signals = self._signals
        if signals.asking != self._offered:
            self._offered = signals.asking
            self._view.offer(progress, ASKING if self._offered else STOPPING if signals.code else "")

    def _pressed(self) -> list[str]:
        if self._keys is None:
            from hocket.cli.keys import Keys

            self._keys = Keys()
        return self._keys.pressed()

    def _let_go(self) -> None:
        if self._keys is not None:
            self._keys.close()

    def _answer(self, box: Box, progress: Progress, keys: list[str]) -> None:
        if box.sending and self._errand is not None and self._errand.trouble is not None:
            box.failed(self._errand.trouble.message)
        reply = box.press(keys, progress, time.monotonic())
        if reply is not None and box.asked is not None:
            self._errand = Errand(self._client, f"/api/runs/{box.asked.run}/answer", reply)
            box.own.add(self._errand.key)


def watch(client: Client, progress: Progress, view: View, signals: Signals, session: bool = False) -> Event:
    """Show a run up to its end, a session up to its first pause; returns the event that tells of it."""
    tick = min(view.tick, HANDS_TICK) if signals.on_terminal else view.tick
    # What a session has used so far is told at its pause; what a run has used, its end tells.
    unread = None if session else view.unread
    with view, Hands(client, view, signals) as hands:
        for burst in client.follow_bursts(progress.root, tick, skipped=unread):
            for event in burst:
                progress.add(event)
                view.show(progress, event)
                if is_last(event, progress.root, session):
                    return event
            if not burst:
                view.idle(progress)
            hands.look(progress)
    raise AssertionError(UNENDED)


def obey(key: str, signals: Signals) -> None:
    """What a key means while the offer stands."""
    if key == "d":
        raise Leave(DETACHED)
    if key == "s":
        signals.stop(128 + signal.SIGINT)
    elif key in ("\r", "\n"):
        signals.asking = False


def wait_for_end(client: Client, run: str, seconds: float | None) -> bool:
    """Wait until a run has ended; false when the time is up first."""
    deadline = None if seconds is None else time.monotonic() + seconds
    tick = None if seconds is None else min(0.1, max(seconds, 0.001))
    bursts = client.follow_bursts(run, tick, skipped=lambda text: type_in(text) != b"run.ended")
    return all(deadline is None or time.monotonic() <= deadline for _ in bursts)


def stream_json(
    client: Client, run: str, write: Callable[[Any], None], flush: Callable[[], None], session: bool = False
) -> Event:
    """Every event as it comes; returns the last one."""
    for burst in client.follow_bursts(run, FLUSH_SECONDS):
        for event in burst:
            write(event)
            if is_last(event, run, session):
                flush()
                return event
        flush()  # once per burst: a call for each of many thousand lines would take longer than all else
    raise AssertionError(UNENDED)
