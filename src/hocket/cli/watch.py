"""Watching a run: its events, a steady clock, keys and signals, brought together in the main thread.

What is drawn belongs to the displays in ``plain`` and ``terminal``.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any, NamedTuple, Self

from hocket.cli import access
from hocket.cli.format import truncate
from hocket.cli.question_prompt import ENTER, MAX_MESSAGE, MESSAGE, QuestionPrompt, TextInput
from hocket.client import Client
from hocket.errors import HocketError, ServerUnreachable
from hocket.views.event_text import wants_text
from hocket.views.run_view import RunView

Event = dict[str, Any]

KEY_OFFER = "d detach, s stop, Enter continue"
DETACHED = 3
"""The exit code of a timed-out wait: nothing is complete, and the work continues."""
STOPPING = "stopping, please wait"
ESCAPE_SECONDS = 0.05
MAX_FURTHER_SIGNALS = 2
"""After this many more signals during a stop the client exits without waiting for it."""
FLUSH_SECONDS = 5.0
KEYS_TICK = 0.25
"""How often, in seconds, keys and Ctrl-C are polled on a terminal."""
SEND_ATTEMPTS = 600
NOT_ENDED = "the event stream ended before the run"


class Recent(NamedTuple):
    """The last lines of a run's log, for a person who begins to watch now. Open questions are not among them."""

    lines: Sequence[tuple[str, str]]
    """Text and tone."""
    is_cut: bool
    """True if there were more lines."""
    seq: int
    """The number of the last event."""


class RunDisplay:
    """Shows a watched run. This one shows nothing."""

    colour = False
    tick = 1.0
    """How often, in seconds, ``idle`` is called while nothing happens."""
    prompt: QuestionPrompt | None = None
    """Answers questions by keys, if the display does that."""
    panel: Callable[[int], list[str]] | None = None
    """The lines above the footer, by width: a text that is typed, or an explanation of keys."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what is drawn."""

    def begin(self, view: RunView, recent: Recent) -> None:
        """Show a run that is watched from now on: its last lines and its open questions."""
        for question in view.questions.values():
            asked = {"type": "question", "run": question.run, "ts": wall_time(question.since), "data": question.data}
            self.show(view, asked)

    def show(self, view: RunView, event: Event) -> None:
        """Show an event that the view has already."""

    def repaint(self, view: RunView) -> None:
        """Show at once what a key has changed."""

    def idle(self, view: RunView) -> None:
        """Show that time passes."""

    def say(self, text: str) -> None:
        """Show a message."""

    def offer_keys(self, view: RunView, text: str) -> None:
        """Show what keys do now."""


# --- A clock that is never set ------------------------------------------------------------------------------

NOTICEABLE_SECONDS = 1.0
"""A larger difference between the two clocks means that the time of day was set, a smaller one that it drifted."""
_OFFSET = time.time() - time.monotonic()
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def steady_now() -> float:
    """The time of day as if it had not been set since this process started, so that differences are durations."""
    return time.monotonic() + _OFFSET


def wall_time(steady: float) -> float:
    """The time of day, as it is set now, for a steady time."""
    return steady + _clock_change()


def steady_time(event: Event) -> float:
    """When an event happened, in steady time.

    The start and the end of a run carry a reading of the machine's monotonic clock, which is exact within one boot.
    """
    data = event["data"]
    if data.get("clock") is not None and data.get("boot") is not None and data["boot"] == _boot_id():
        return float(data["clock"]) + _OFFSET
    return float(event["ts"]) - _clock_change()


def steady_view(root: str) -> RunView:
    """A run view whose times are comparable with ``steady_now``."""
    return RunView(root, time_of=steady_time)


def _clock_change() -> float:
    """By how much the time of day was set since this process started."""
    change = time.time() - steady_now()
    return change if abs(change) > NOTICEABLE_SECONDS else 0.0


@cache
def _boot_id() -> str | None:
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


# --- Signals ------------------------------------------------------------------------------------------------


class ClientExit(Exception):
    """The client exits while the run continues."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class BackgroundPost:
    """A POST in a thread of its own: a stop, or an answer. It is retried until the server accepts or refuses it."""

    def __init__(self, client: Client, path: str, body: dict[str, Any]) -> None:
        self.key = os.urandom(16).hex()
        self.error: HocketError | None = None
        # A signal handler may call this while the main thread imports a module, so nothing is imported here.
        # The main thread restarts a lost server: a thread must not fork.
        threading.Thread(target=self._run, args=(client.without_start(), path, body), daemon=True).start()

    def _run(self, client: Client, path: str, body: dict[str, Any]) -> None:
        try:
            for _ in range(SEND_ATTEMPTS - 1):
                with suppress(ServerUnreachable):
                    client.request("POST", path, body, self.key)
                    return
                time.sleep(0.1)
            client.request("POST", path, body, self.key)
        except HocketError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - the main thread learns of a failure only here
            self.error = HocketError(f"the request could not be sent: {str(error) or type(error).__name__}")


class SignalHandler:
    """What SIGINT, SIGTERM and SIGHUP do while a run is watched."""

    def __init__(self, client: Client, on_terminal: bool) -> None:
        self._client = client
        self.on_terminal = on_terminal
        self._run: str | None = None
        self._stop: BackgroundPost | None = None
        self._further = 0
        self.is_offering = False
        """True while Ctrl-C has offered to detach or stop."""
        self.code: int | None = None
        """130 or 143 once this client has asked for a stop."""

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        # nohup ignores SIGHUP, and that has to stay so.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._on_signal)

    def set_run(self, run: str) -> None:
        """Name the run to stop; a signal that came earlier takes effect now."""
        self._run = run
        if self.code is not None:
            self._send_stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            raise ClientExit(128 + number)
        if self._stop is not None or (self.code is not None and self._run is None):
            self._further += 1
            if self._further >= MAX_FURTHER_SIGNALS:
                raise ClientExit(128 + number)
        elif number == signal.SIGINT and self.on_terminal and not self.is_offering and self._run is not None:
            self.is_offering = True
        else:
            self.stop(128 + number)

    def stop(self, code: int) -> None:
        """Ask for the end of the run, once. Its ``run.ended`` tells when it has ended."""
        self.is_offering = False
        self.code = self.code or code
        if self._run is not None:
            self._send_stop()

    def _send_stop(self) -> None:
        if self._stop is None:
            # In a thread, because the last events have to be shown while the server stops the run.
            self._stop = BackgroundPost(self._client, f"/api/runs/{self._run}/stop", {})

    @property
    def error(self) -> HocketError | None:
        """Why the run cannot be stopped."""
        return self._stop.error if self._stop is not None else None

    def exit_code(self, status: str, code: int) -> int:
        """The run's own exit code, unless it was stopped by a signal to this client."""
        return self.code if status == "stopped" and self.code is not None else code


# --- Keys ---------------------------------------------------------------------------------------------------


_SEQUENCE = "\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|[^\x1b])"
"""What a key sends that is no character, such as an arrow."""


class Keyboard:
    """Single keys from the controlling terminal, since standard input may be a file with the prompt.

    With ``sequences`` the escape sequence of an arrow and the like is one key; otherwise they are dropped.
    """

    def __init__(self, sequences: bool = False) -> None:
        self._sequences = sequences
        self._terminal: int | None = None
        self._before: list[Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""

    def take(self) -> bool:
        """Switch the terminal to single keys that it does not echo; what was typed before is kept."""
        if self._terminal is None:
            self._open()
        if self._terminal is None or not _is_foreground(self._terminal):
            return False
        try:
            # A shell that suspended us has set its own mode.
            if termios.tcgetattr(self._terminal)[3] & termios.ICANON:
                tty.setcbreak(self._terminal, termios.TCSADRAIN)
        except termios.error:
            return False
        return True

    def pressed(self) -> list[str]:
        """The keys since the last call."""
        if not self.take() or self._terminal is None:
            return []
        has_more = bool(select.select([self._terminal], [], [], 0)[0])
        return self.split(self._decoder.decode(os.read(self._terminal, 4096)) if has_more else "")

    def split(self, piece: str) -> list[str]:
        """The keys in the next piece of input; an empty one means that nothing more has arrived.

        An escape sequence may arrive in several pieces.
        """
        text = self._unfinished + piece
        begun = re.search("(?:\x1b(?:\\[[0-?]*[ -/]*|O)?)?\\Z", text)
        # An escape with nothing after it is the Escape key.
        self._unfinished = begun[0] if begun and (piece or begun[0] != "\x1b") else ""
        whole = text.removesuffix(self._unfinished)
        keys = re.findall(f"{_SEQUENCE}|.", whole, re.DOTALL)
        return [key for key in keys if self._sequences or len(key) == 1]

    def wait(self, others: list[int], seconds: float) -> None:
        """Wait for a key, or until one of some other descriptors can be read, but not longer than this."""
        own = [self._terminal] if self._terminal is not None and _is_foreground(self._terminal) else []
        # What an escape begins is known a moment later.
        select.select([*own, *others], [], [], min(seconds, ESCAPE_SECONDS) if self._unfinished else seconds)

    def _open(self) -> None:
        try:
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            self._before = termios.tcgetattr(self._terminal)
        except (OSError, termios.error):
            self.close()

    def close(self) -> None:
        """Restore the terminal's settings."""
        if self._terminal is None:
            return
        try:
            if self._before is not None and _is_foreground(self._terminal):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # the terminal is gone, and its settings with it
        os.close(self._terminal)
        self._terminal = self._before = None


def _is_foreground(terminal: int) -> bool:
    """A background process would be stopped for reading or setting the terminal."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


class AnswerPost:
    """Sends the answers that keys give to questions, one at a time."""

    def __init__(self, client: Client, display: RunDisplay) -> None:
        self._client = client
        self._display = display
        self._post: BackgroundPost | None = None

    def press(self, prompt: QuestionPrompt, keys: Sequence[str], view: RunView) -> None:
        """Apply keys to the question that is shown, and send the answer that they complete."""
        reply = prompt.press(keys, view, time.monotonic())
        if reply is not None and prompt.question is not None:
            self._post = BackgroundPost(self._client, f"/api/runs/{prompt.question.run}/answer", reply)
            prompt.sent_keys.add(self._post.key)

    def check(self) -> None:
        """Show why the last answer was refused, also if its question was meanwhile answered elsewhere."""
        if self._post is None or self._post.error is None:
            return
        error, prompt, self._post = self._post.error, self._display.prompt, None
        if prompt is not None and prompt.is_sending:
            prompt.fail(error.message)
        else:
            self._display.say(error.message)


class RunControl:
    """What a person may do to a run that is watched. Here nothing."""

    tick = math.inf
    """How often, in seconds, ``poll`` has to be called."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal's settings."""

    def poll(self, view: RunView) -> None:
        """Handle what was pressed since the last call."""


class KeyboardControl(RunControl):
    """Applies keys: to the offer that the first Ctrl-C makes, and to the question prompt."""

    def __init__(
        self, client: Client, display: RunDisplay, signals: SignalHandler, keyboard: Keyboard | None = None
    ) -> None:
        self.tick = KEYS_TICK if signals.on_terminal else math.inf
        self._client = client
        self._display = display
        self._signals = signals
        self._keyboard = keyboard or Keyboard()
        self._is_offered = False
        self._answers = AnswerPost(client, display)

    def __exit__(self, *_: object) -> None:
        self._keyboard.close()

    def poll(self, view: RunView) -> None:
        signals, prompt = self._signals, self._display.prompt
        self._update_offer(view)
        self._answers.check()
        if self._is_offered or (prompt is not None and prompt.question is not None and signals.code is None):
            keys = self._keyboard.pressed()
            # Ctrl-C discards earlier input, so if it came meanwhile, these keys are meant for its offer.
            self._update_offer(view)
            if self._is_offered:
                for key in keys:
                    self._handle_offer(key.lower())
            elif prompt is not None and signals.code is None:
                self._answers.press(prompt, keys, view)
        else:
            self._keyboard.close()
        if signals.error:
            raise signals.error

    def _update_offer(self, view: RunView) -> None:
        signals = self._signals
        if signals.is_offering != self._is_offered:
            self._is_offered = signals.is_offering
            if self._is_offered:
                self._keyboard.take()  # An echo of the key would move the view that shows the offer.
            self._display.offer_keys(view, KEY_OFFER if self._is_offered else STOPPING if signals.code else "")

    def _handle_offer(self, key: str) -> None:
        if key == "d":
            raise ClientExit(DETACHED)
        if key == "s":
            self._signals.stop(128 + signal.SIGINT)
        elif key in ("\r", "\n"):
            self._signals.is_offering = False


# --- Attaching ----------------------------------------------------------------------------------------------

ATTACH_KEYS = "m message · i interrupt · q leave · ? keys"
NO_KEYS = "^C leaves, the run continues"
"""Where standard input is not the terminal."""
ATTACH_HELP = (
    ("a A d t 1-9 n", "answer the question that is shown"),
    ("m", "send a message to the agent"),
    ("i", "interrupt the agent's turn"),
    ("q Ctrl-C", "leave; the run continues"),
    ("Ctrl-Z", "suspend; fg continues"),
)
ANY_KEY = "any key: back"


def leave_on_signals(on_terminal: bool) -> None:
    """Have signals end this client and not the run; on a terminal Ctrl-C is the same as the key to leave."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise ClientExit(DETACHED if number == signal.SIGINT and on_terminal else 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup ignores SIGHUP, and that has to stay so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


class AttachControl(RunControl):
    """The keys of ``hocket attach``: they answer, send a message, interrupt, leave, and explain themselves."""

    tick = KEYS_TICK

    def __init__(self, client: Client, display: RunDisplay, keyboard: Keyboard | None = None) -> None:
        self._client = client
        self._display = display
        self._keyboard = keyboard or Keyboard()
        self._answers = AnswerPost(client, display)
        self._input: TextInput | None = None
        """The message that is being typed."""
        self._posts: list[tuple[BackgroundPost, str]] = []
        """What was sent, each with its text if it is a message."""
        self._shows_help = False

    def __exit__(self, *_: object) -> None:
        self._keyboard.close()

    def poll(self, view: RunView) -> None:
        self._answers.check()
        self._check_posts()
        if keys := self._keyboard.pressed():
            self._press(keys, view)
            self._display.panel = self._panel if self._input is not None or self._shows_help else None
            self._display.repaint(view)

    def _panel(self, columns: int) -> list[str]:
        if self._input is not None:
            return self._input.lines(columns)
        return [*(truncate(f"  {keys:<15}{text}", columns) for keys, text in ATTACH_HELP), truncate(ANY_KEY, columns)]

    def _press(self, keys: list[str], view: RunView) -> None:
        prompt = self._display.prompt
        if self._input is not None:
            self._type(self._input, keys, view)
        elif self._shows_help:
            self._shows_help = False
        elif prompt is not None and prompt.is_typing:
            self._answers.press(prompt, keys, view)
        elif keys[0] == "m":
            self._begin_message(view, keys[1:])
        elif keys == ["i"]:
            self._interrupt(view)
        elif keys == ["q"]:
            raise ClientExit(DETACHED)
        elif keys == ["?"]:
            self._shows_help = True
        elif prompt is not None and prompt.question is not None:
            is_begun = keys == ["a"] and wants_text(prompt.question.data)
            self._answers.press(prompt, ["t"] if is_begun else keys, view)

    def _begin_message(self, view: RunView, keys: list[str]) -> None:
        if self._listener(view) is not None:
            self._input = TextInput(MESSAGE, MAX_MESSAGE, pasting=True)
            self._type(self._input, keys, view)

    def _type(self, typed: TextInput, keys: list[str], view: RunView) -> None:
        end = typed.take(keys)
        if end:
            self._input = None
        text = typed.text.strip()
        if end == ENTER and text and (run := self._listener(view)) is not None:
            self._send(run, {"text": text})

    def _interrupt(self, view: RunView) -> None:
        run = self._listener(view)
        if run is not None:
            self._send(run, {"interrupt": True})

    def _listener(self, view: RunView) -> str | None:
        """The run of the agent that is at work; without exactly one it is said why there is none."""
        steps = view.listening_steps()
        if len(steps) == 1:
            return steps[0].run
        names = " · ".join(f"hocket attach {view.processes[step.run].number}" for step in steps if step.run)
        self._display.say(f"several agents are at work: {names}" if names else "no agent is at work now")
        return None

    def _send(self, run: str, body: dict[str, Any]) -> None:
        post = BackgroundPost(self._client, f"/api/runs/{run}/messages", body)
        self._posts.append((post, body.get("text", "")))

    def _check_posts(self) -> None:
        for post, text in self._posts:
            if post.error is None:
                continue
            self._display.say(" · ".join(part for part in (post.error.message, post.error.hint) if part))
            if text and self._input is None:
                self._input = TextInput(MESSAGE, MAX_MESSAGE, text=text, pasting=True)
                self._display.panel = self._panel
        self._posts = [(post, text) for post, text in self._posts if post.error is None]


# --- Following ----------------------------------------------------------------------------------------------


def ends_run(event: Event, run: str) -> bool:
    """True for the run's end."""
    return bool(event["run"] == run and event["type"] == "run.ended")


def ends_turn(event: Event, run: str) -> bool:
    """True for the end of a session's run, and for its first pause."""
    is_pause = event["type"] == "turn.ended" and event["run"] == run and event["data"]["idle"]
    return bool(is_pause or ends_run(event, run))


def watch(
    client: Client,
    view: RunView,
    display: RunDisplay,
    control: RunControl,
    is_last: Callable[[Event, str], bool] = ends_run,
    after: int = 0,
) -> Event:
    """Show a run from the event after ``after`` up to its last one, and return that."""
    with display, control:
        for event in client.follow_ticking(view.root, min(display.tick, control.tick), after):
            if event is not None:
                view.add(event)
                display.show(view, event)
                if is_last(event, view.root):
                    return event
            else:
                display.idle(view)
                control.poll(view)
    raise AssertionError(NOT_ENDED)


def stream_json(client: Client, run: str, is_last: Callable[[Event, str], bool] = ends_run) -> Event:
    """Write every event as it comes, up to the last one, and return that."""
    for event in client.follow_ticking(run, FLUSH_SECONDS):
        if event is None:
            sys.stdout.flush()
            continue
        access.write_json(event)
        if is_last(event, run):
            sys.stdout.flush()
            return event
    raise AssertionError(NOT_ENDED)
