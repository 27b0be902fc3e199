"""``hocket top``: everything that runs on one screen, as it changes, with keys to open, answer and stop.

Threads read the streams, so that keys work while the server does not. The state belongs to the main thread.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hocket import config
from hocket.cli import access
from hocket.cli.format import display_width, elapsed, short_cost, status_label, truncate, wrap
from hocket.cli.plain import lines_of
from hocket.cli.question_prompt import ESCAPE, QuestionPrompt, fold, question_text
from hocket.cli.runs import (
    COLUMNS,
    Cells,
    Run,
    cell_width,
    fitting_columns,
    ps_cells,
    ps_table,
    run_projects,
    text_room,
)
from hocket.cli.terminal import STYLES, TONES, heading, step_line
from hocket.cli.usage import command
from hocket.cli.watch import BackgroundPost, ClientExit, Event, Keyboard, steady_now, steady_view
from hocket.client import ENDED, quote
from hocket.errors import HocketError
from hocket.views.event_text import ALERT, SAID, tone_of
from hocket.views.names import PROCESS_KINDS, agent_name
from hocket.views.run_list import RunList, Totals
from hocket.views.text import duration, one_line, terminal_output, time_of_day

TICK_SECONDS = 1.0
"""How often a reader notices that it is not needed any more, and times are painted."""
FRAME_SECONDS = 0.1
NOTICE_SECONDS = 6.0
LOG_LINES = 5000
LOG_BATCH = 500
QUEUE_SIZE = 100
MAX_INDENT = 5
NARROW, WIDE = 60, 100
"""With fewer columns the list has no last words, and no projects."""
MARK = "▸ "
"""Before the selected run."""
MIN_LIST, MIN_PANE = 5, 12
"""Rows without which there is no list above a question, and none below the list for the selected run."""
NUMBERS = frozenset({"ELAPSED", "TOK", "COST"})
START_SOMETHING = 'hocket run "planner -> builder:3" -p "…"'

UP, DOWN, PAGE_UP, PAGE_DOWN, FIRST, LAST, ENTER, BACK, QUIT = (
    *("up", "down", "page up", "page down", "first", "last"),
    *("enter", "back", "quit"),
)
_SENT = {
    UP: ("k", "\x1b[A", "\x1bOA"),
    DOWN: ("j", "\x1b[B", "\x1bOB"),
    PAGE_UP: ("\x1b[5~", "\x02"),
    PAGE_DOWN: ("\x1b[6~", "\x06", " "),
    FIRST: ("g", "\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"),
    LAST: ("G", "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"),
    ENTER: ("\r", "\n", "o", "l", "\x1b[C", "\x1bOC"),
    BACK: (ESCAPE, "h", "\x1b[D", "\x1bOD"),
    QUIT: ("q",),
}
_MEANING = {sent: meaning for meaning, all_sent in _SENT.items() for sent in all_sent}
"""By what a key sends."""
_FAR = 1_000_000
HELP = (
    ("↑ ↓  j k", "move; in an open run scroll"),
    ("PgUp PgDn  g G", "by pages; to the first and the last"),
    ("Enter  o  l", "open a run: its steps and its output as it comes"),
    ("a", "answer: of the selected run, else the oldest question"),
    ("s", "stop a run and everything below it, after a confirmation"),
    ("Esc  q", "back; in the list q quits"),
    ("?", "show or hide these keys"),
    ("Ctrl-Z", "suspend; fg continues"),
    ("", ""),
    ("", "Quitting stops nothing: runs continue."),
)


@command(examples=("hocket top", "hocket top | cat"))
def top() -> int:
    """Show everything that runs on one live screen: runs that need an answer first, with keys to open, answer and
    stop. "?" shows the keys.

    Without a terminal it prints the state once.
    """
    client = access.connect()
    if not config.interactive(sys.stdout.isatty()):
        runs = RunList()
        runs.add({"runs": client.request("GET", "/api/runs"), "questions": client.request("GET", "/api/inbox")}, 0.0)
        if rows := runs.tree(0.0):
            access.write(f"{totals_line(runs.totals())}\n")
            colour = config.colour_wanted(sys.stdout.isatty())
            access.write_lines(ps_table([run for run, _ in rows], time.time(), access.terminal_width(), colour))
        else:
            print(f"No active runs. Start one: {START_SOMETHING}", file=sys.stderr)
        return 0
    client.request("GET", "/api/health")  # starts the server, or says why it cannot be started
    try:
        Screen().show()
    except ClientExit as leaving:
        return leaving.code
    return 0


def totals_line(totals: Totals) -> str:
    """``3 running, 1 needs you, $1.23``."""
    parts = [f"{totals.running} running"]
    if totals.asking:
        parts.append(f"{totals.asking} {'needs' if totals.asking == 1 else 'need'} you")
    if totals.waiting:
        parts.append(f"{totals.waiting} waiting")
    return ", ".join([*parts, *([short_cost(totals.cost)] if totals.cost is not None else [])])


# --- Readers ------------------------------------------------------------------------------------------------


class ReaderQueue:
    """What the readers pass to the main thread, which waits for ``descriptor`` and takes what is there."""

    def __init__(self) -> None:
        self.descriptor, self._waking = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._waking, False)
        self._queue: queue.Queue[tuple[Callable[[Any], None], Any]] = queue.Queue(QUEUE_SIZE)

    def put(self, accept: Callable[[Any], None], value: Any) -> None:
        """Have the main thread call ``accept(value)``; waits while much is left to be taken."""
        self._queue.put((accept, value))
        self.wake()

    def wake(self) -> None:
        """End the wait of the main thread."""
        with suppress(OSError):  # full, or the end
            os.write(self._waking, b"\0")

    def deliver(self, seconds: float) -> bool:
        """Call what was put, for about this long; true if there was anything."""
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass
        deadline = time.monotonic() + seconds
        found = False
        with suppress(queue.Empty):
            while time.monotonic() < deadline:
                accept, value = self._queue.get_nowait()
                accept(value)
                found = True
            self.wake()
        return found


class OpenRun:
    """A run that is open: its view, and its output as ``hocket logs -f`` prints it."""

    def __init__(self, run: str, feed: ReaderQueue) -> None:
        self.id = run
        self.view = steady_view(run)
        self.lines: deque[tuple[str, str]] = deque(maxlen=LOG_LINES)
        """Text and style."""
        self.above = 0
        """How many rows it is scrolled up from the end."""
        self.error = ""
        self._feed = feed
        self._is_closed = False
        threading.Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        """End the reader, soon."""
        self._is_closed = True

    def _read(self) -> None:
        batch: list[Event] = []
        try:
            client = access.connect(talk=False, start=access.start_by_command)
            for event in client.follow_ticking(self.id, TICK_SECONDS):
                if self._is_closed:
                    return
                if event is not None:
                    batch.append(event)
                if batch and (event is None or len(batch) >= LOG_BATCH):
                    self._feed.put(self._add, batch)
                    batch = []
            self._feed.put(self._add, batch)
        except HocketError as error:
            self._feed.put(self._fail, error.message)

    def _add(self, events: list[Event]) -> None:
        for event in events:
            self.view.add(event)
            tone = tone_of(event)
            style = TONES.get(tone or "", "") if tone != SAID else ""
            self.lines += [(line, style) for line in lines_of(self.view, event)]

    def _fail(self, message: str) -> None:
        self.error = one_line(message)

    def visible(self, columns: int, rows: int) -> list[Text]:
        """The rows of the output that are shown: the last ones, unless it is scrolled."""
        wrapped: list[Text] = []
        for line, style in reversed(self.lines):
            parts = [part for one in line.expandtabs(4).split("\n") for part in wrap(one, columns)]
            wrapped += [Text(part, style) for part in reversed(parts)]
            if len(wrapped) >= rows + self.above:
                break
        self.above = max(0, min(self.above, len(wrapped) - rows))
        return wrapped[self.above : self.above + rows][::-1]


# --- The screen ---------------------------------------------------------------------------------------------


class Screen:
    """What is shown and what keys do to it."""

    def __init__(self, console: Console | None = None) -> None:
        self.runs = RunList()
        self._console = console or Console(
            file=sys.stdout, no_color=not config.colour_wanted(True), highlight=False, emoji=False
        )
        self._feed = ReaderQueue()
        self._keyboard = Keyboard(sequences=True)
        self._prompt = QuestionPrompt(scrolls=True)
        self._selected: str | None = None
        self._place = 0
        """Where the selected run is in the list, so that its neighbour is selected when it leaves."""
        self._first = 0
        """The first row of the list that is visible."""
        self._page = 10
        self._open: OpenRun | None = None
        self._is_answering = self._shows_help = False
        self._stopping: Run | None = None
        """The run to stop if that is confirmed."""
        self._posts: list[BackgroundPost] = []
        self._answer: BackgroundPost | None = None
        self._notice, self._notice_until = "", 0.0
        self._lost = ""
        """Why nothing is received."""
        self._is_connected = False
        self._is_over = self._is_dirty = self._is_suspending = False
        self._ended_by = 0
        """The signal that ended it."""

    # Running

    def show(self) -> None:
        """Show the screen until the user quits. The terminal is restored however this ends."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_end)
        signal.signal(signal.SIGTSTP, self._on_suspend)
        signal.signal(signal.SIGWINCH, self._on_change)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            while not self._is_over:
                with _painting(self._console, self._keyboard) as live:
                    self._run(live)
                if self._is_suspending:
                    self._suspend()
            if self._ended_by:
                raise ClientExit(128 + self._ended_by)
        finally:
            signal.signal(signal.SIGWINCH, signal.SIG_IGN)

    def _run(self, live: Live) -> None:
        painted, self._is_dirty = 0.0, True
        while not (self._is_over or self._is_suspending):
            self._is_dirty |= self._feed.deliver(FRAME_SECONDS)
            if keys := self._keyboard.pressed():
                self._press(keys)
                self._is_dirty = True
            self._check_posts()
            now = time.monotonic()
            due = painted + (FRAME_SECONDS if self._is_dirty else TICK_SECONDS)
            if keys or now >= due:
                self._is_dirty |= self.runs.expire(now)
                live.update(self.picture(self._console.width, self._console.height, now), refresh=True)
                painted, self._is_dirty = now, False
                due = now + TICK_SECONDS
            self._keyboard.wait([self._feed.descriptor], max(0.0, due - now))

    def _on_change(self, number: int, frame: FrameType | None) -> None:
        self._is_dirty = True
        self._feed.wake()

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        """End at the next opportunity: an exception could be lost in a finalizer. The second signal does not wait."""
        if self._ended_by:
            raise ClientExit(128 + number)
        self._ended_by, self._is_over = number, True
        self._feed.wake()

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        self._is_suspending = True
        self._feed.wake()

    def _suspend(self) -> None:
        """Stop this process as Ctrl-Z does by default; the terminal is restored already."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_suspend)
        self._is_suspending = False

    def _read(self) -> None:
        def start() -> None:
            self._feed.put(self._lose, "the server has ended, starting it again")
            access.start_by_command()

        try:
            client = access.connect(talk=False, start=start)
            client.notice = lambda text: self._feed.put(self._lose, text)
            for message in client.changes(TICK_SECONDS):
                if message is not None:
                    self._feed.put(self.add, message)
        except HocketError as error:
            self._feed.put(_raise, error)

    def _lose(self, reason: str) -> None:
        self._lost = one_line(reason)

    def add(self, message: dict[str, Any]) -> None:
        """Take one message of the stream of changes."""
        missing = self.runs.add(message, time.monotonic())
        if message["complete"]:
            if self._is_connected:
                self._say(f"connected again at {time_of_day(time.time())}")
            self._is_connected, self._lost = True, ""
        if missing:
            threading.Thread(target=self._look_up, args=(missing,), daemon=True).start()

    def _look_up(self, names: list[str]) -> None:
        """Find out how runs ended."""
        client = access.connect(talk=False, start=access.start_by_command)
        for name in names:
            try:
                self._feed.put(self._take, client.run(name))
            except HocketError:
                self._feed.put(self.runs.drop, name)

    def _take(self, run: Run) -> None:
        self.runs.add_runs([run], time.monotonic())

    def _say(self, text: str) -> None:
        self._notice, self._notice_until = text, time.monotonic() + NOTICE_SECONDS

    def _check_posts(self) -> None:
        for post in self._posts:
            if post.error is not None:
                self._say(one_line(post.error.message))
                self._is_dirty = True
        self._posts = [post for post in self._posts if post.error is None]

    # Keys

    def _press(self, keys: list[str]) -> None:
        if self._is_answering:
            self._press_answer(keys)
            return
        for key in keys:
            if self._stopping is not None:
                self._confirm(key)
            elif self._shows_help:
                self._shows_help = False
            elif key == "?":
                self._shows_help = True
            elif key == "a":
                self._begin_answer()
                return
            elif key == "s":
                self._stopping = self._current()
            elif self._open is not None:
                self._press_open(key, self._open)
            else:
                self._press_list(key)

    def _press_list(self, key: str) -> None:
        meaning = _MEANING.get(key)
        if meaning == QUIT:
            self._is_over = True
        elif meaning == ENTER and self._selected is not None:
            self._open = OpenRun(self._selected, self._feed)
        else:
            self._move(self._distance(meaning))

    def _press_open(self, key: str, run: OpenRun) -> None:
        meaning = _MEANING.get(key)
        if meaning in (QUIT, BACK):
            run.close()
            self._open = None
        else:
            run.above = max(0, run.above - self._distance(meaning))

    def _distance(self, meaning: str | None) -> int:
        """How many rows a key moves down."""
        steps = {UP: -1, DOWN: 1, PAGE_UP: -self._page, PAGE_DOWN: self._page, FIRST: -_FAR, LAST: _FAR}
        return steps.get(meaning or "", 0)

    def _move(self, rows: int) -> None:
        tree = self.runs.tree(time.monotonic())
        if tree:
            self._place = max(0, min(self._place + rows, len(tree) - 1))
            self._selected = tree[self._place][0]["id"]

    def _current(self) -> Run | None:
        """The live run that keys are about: the one that is open, else the selected one."""
        run = self.runs.run(self._open.id if self._open else self._selected, time.monotonic())
        if run is None or run["status"] in ENDED:
            self._say("the run has ended" if run is not None or self._open else "no run is selected")
            return None
        return run

    def _confirm(self, key: str) -> None:
        run, self._stopping = self._stopping, None
        if key == "y" and run is not None:
            self._post(f"/api/runs/{quote(run['id'])}/stop", {})
            self._say(f"stopping run {run['number']}")

    def _post(self, path: str, body: dict[str, Any]) -> BackgroundPost:
        post = BackgroundPost(access.connect(talk=False), path, body)
        self._posts.append(post)
        return post

    def _begin_answer(self) -> None:
        name = self._open.id if self._open else self._selected
        fitting = self.runs.questions_of(name) if name is not None else []
        fitting = fitting or list(self.runs.questions.values())
        if not fitting:
            self._say("no open questions")
            return
        self._is_answering = True
        self._prompt.choose(fitting[0], time.monotonic())

    def _press_answer(self, keys: list[str]) -> None:
        prompt = self._prompt
        if not prompt.is_typing and (keys == [ESCAPE] or (keys == ["q"] and not prompt.is_sending)):
            self._is_answering = False
        elif not prompt.is_typing and keys[0].startswith(ESCAPE):
            prompt.scroll(sum(self._distance(_MEANING.get(key)) for key in keys))
        else:
            reply = prompt.press(keys, self.runs, time.monotonic())
            if reply is not None and prompt.question is not None:
                self._answer = self._post(f"/api/runs/{quote(prompt.question.run)}/answer", reply)

    def _update_prompt(self, now: float) -> None:
        """Go on to the next question when one has been answered, here or elsewhere."""
        prompt, before = self._prompt, self._prompt.question
        if self._answer is not None and self._answer.error is not None:
            prompt.fail(self._answer.error.message)
            self._answer = None
        prompt.update(self.runs, now)
        if prompt.question is None:
            self._is_answering = False
            self._say("no more questions")
        elif prompt.question is not before:
            self._answer = None

    # Painting

    def picture(self, columns: int, rows: int, now: float) -> Group:
        """The whole screen."""
        if self._is_answering:
            self._update_prompt(now)
        head, foot = [self._header(columns, now)], self._footer(columns, now)
        room = max(0, rows - len(head) - len(foot))
        if self._is_answering:
            asked = self._prompt.lines(columns, room, steady_now(), room + 1)
            others = room - len(asked)
            body = self._list(columns, others, now, shows_pane=False) if others >= MIN_LIST else []
            body += [Text(line, TONES[ALERT]) for line in asked]
        elif self._shows_help:
            body = [Text(truncate(f"  {keys:<15}  {text}" if keys else f"  {text}", columns)) for keys, text in HELP]
        elif self._open is not None:
            body = self._opened(self._open, columns, room, now)
        else:
            body = self._list(columns, room, now)
        lines = [*head, *body[:room], *[Text("")] * (room - len(body)), *foot]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        return Group(*lines[:rows])

    def _header(self, columns: int, now: float) -> Text:
        totals = self.runs.totals()
        line = Text(f" {totals_line(totals)}", "bold")
        if totals.asking:
            needs = f"{totals.asking} {'needs' if totals.asking == 1 else 'need'} you"
            line.highlight_words([needs], TONES[ALERT])
        right = time_of_day(time.time())
        gap = columns - line.cell_len - len(right) - 1
        if self._lost:
            return Text(truncate(f" {self._lost}", columns), TONES[ALERT])
        return (
            line.append(" " * gap + right, "not bold dim") if gap > 1 else Text(truncate(line.plain, columns), "bold")
        )

    def _footer(self, columns: int, now: float) -> list[Text]:
        if self._stopping is not None:
            run = self._stopping
            below = " and everything below it" if run["kind"] not in PROCESS_KINDS else ""
            text = f" Stop run {run['number']} {agent_name(str(run['agent']))}{below}?  y stop · any other key: no"
            return [Text(part, TONES[ALERT]) for part in wrap(text, columns)]
        if self._notice and now < self._notice_until:
            return [Text(truncate(f" {self._notice}", columns), "bold")]
        if self._is_answering:
            keys = "Esc back"
        elif self._shows_help:
            keys = "any key: back"
        elif self._open is not None:
            keys = "Esc back · ↑↓ scroll · a answer · s stop · ? keys"
        else:
            asking = "a answer · " if self.runs.questions else ""
            keys = f"? keys · {asking}Enter open · s stop · q quit"
        return [Text(truncate(f" {keys}", columns), "dim")]

    def _list(self, columns: int, room: int, now: float, *, shows_pane: bool = True) -> list[Text]:
        tree = self.runs.tree(now)
        if not tree:
            return _empty(columns, self._is_connected)
        self._place = next(
            (place for place, (run, _) in enumerate(tree) if run["id"] == self._selected),
            min(self._place, len(tree) - 1),
        )
        selected = tree[self._place][0]
        self._selected = selected["id"]
        pane = self._pane(selected, columns) if shows_pane and room >= MIN_PANE else []
        room -= len(pane)
        widths, rows = table(tree, columns)
        heading = [_table_head(widths, columns)] if room > 3 else []
        shown = self._page = max(1, room - len(heading))
        if len(rows) > shown and room > 5:
            shown -= 1
        self._first = max(0, min(self._first, self._place, len(rows) - shown))
        self._first = max(self._first, self._place - shown + 1)
        lines = [
            _row_line(tree[place][0], rows[place], widths, columns, place == self._place)
            for place in range(self._first, min(self._first + shown, len(rows)))
        ]
        if len(rows) > len(lines) and room > 5:
            last = self._first + len(lines)
            lines.append(Text(truncate(f"  … {self._first + 1} to {last} of {len(rows)}", columns), "dim"))
        filler = [Text("")] * (room - len(heading) - len(lines))
        return [*heading, *lines, *filler, *pane]

    def _pane(self, run: Run, columns: int) -> list[Text]:
        """The selected run in three lines: what it asks or says, complete if it fits."""
        asked = self.runs.questions_of(run["id"])
        if asked:
            text, style = f"{asked[0].asked_by} {question_text(asked[0].data)}", TONES[ALERT]
        else:
            agent, said = self.runs.last_words(run["id"])
            text = one_line(terminal_output(str(run.get("error") or said)))
            is_own = run["kind"] in PROCESS_KINDS and agent in ("", agent_name(str(run["agent"])))
            text, style = text if is_own or not text else f"{agent}: {text}", ""
        title = f" {run['number']} {agent_name(str(run['agent']))}  {one_line(str(run.get('cwd') or ''))} "
        rows = fold(text, columns - 2)
        if len(rows) > 3:
            rows = [*rows[:2], f"{truncate(rows[2], columns - 4)} …"]
        rule = Text(truncate(f"──{title}", columns), "dim")
        rule.append("─" * (columns - rule.cell_len), "dim")
        return [rule, *(Text(f" {row}", style) for row in rows), *[Text("")] * (3 - len(rows))]

    def _opened(self, opened: OpenRun, columns: int, room: int, now: float) -> list[Text]:
        run, view, at = self.runs.run(opened.id, now), opened.view, steady_now()
        head = [Text("")] if room > 10 else []
        if view.steps:
            head += heading(view)
        if run is not None and room > 6:
            state = [
                status_label(run),
                duration(elapsed(run, time.time())),
                short_cost(run.get("cost_usd")),
                run.get("cwd"),
            ]
            head.append(Text(f"  {'  '.join(one_line(str(part)) for part in state if part)}", _style(run)))
        steps = [step_line(view, step, at, columns) for step in view.steps]
        most = max(1, room // 3)
        if len(steps) > most:
            begun = next((place for place, step in enumerate(view.steps) if not step.is_over), 0)
            first = max(0, min(begun - 1, len(steps) - most))
            steps = steps[first : first + most]
        if view.prompt is not None or len(view.steps) > 1:
            head += steps
        if opened.error:
            head.append(Text(opened.error, TONES[ALERT]))
        left = opened.above
        head = head[: max(0, room - 2)]
        self._page = max(1, room - len(head) - 1)
        lines = opened.visible(columns, self._page)
        title = f"── {left} rows below, G for the end " if left else "── output "
        rule = Text(truncate(title + "─" * max(0, columns - display_width(title)), columns), "dim")
        return [*head, rule, *lines]


@contextmanager
def _painting(console: Console, keyboard: Keyboard) -> Iterator[Live]:
    """The alternate screen without a cursor, and after it the terminal as it was."""
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False)
    try:
        live.start()
        yield live
    finally:
        # Another signal must not interrupt this half-way.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        live.stop()
        keyboard.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(error: HocketError) -> None:
    raise error


# --- Rows ---------------------------------------------------------------------------------------------------


def table(tree: Sequence[tuple[Run, int]], columns: int) -> tuple[dict[str, int], list[Cells]]:
    """The columns of ``ps`` that fit, each with its width, and their cells, with the tree drawn before the agents."""
    runs = [run for run, _ in tree]
    projects, now = run_projects(runs), time.time()
    rows = [ps_cells(run, 0, now, projects.get(run["id"], "")) for run in runs]
    for row, (_, depth) in zip(rows, tree, strict=True):
        row["AGENT"] = ("  " * (min(depth, MAX_INDENT) - 1) + "└ " if depth else "") + row["AGENT"]
    names = ("RUN", *(["PROJECT"] if projects else []), *(name for name in COLUMNS if name != "ENDED"))
    if columns < WIDE:  # the selected run shows its directory
        names = tuple(name for name in names if name != "PROJECT")
    if columns < NARROW:
        names = ("RUN", "AGENT", "STATE", "ELAPSED")
    inner = columns - len(MARK)
    shown = fitting_columns(rows, names, inner)
    room = text_room(rows, shown, inner)
    last = min(cell_width(rows, "LAST"), room * 3 // 5) if "LAST" in shown else 0
    agents = max(4, min(cell_width(rows, "AGENT"), room - last))
    flexible = {"AGENT": agents, "LAST": max(0, room - agents)}
    return {name: flexible.get(name, cell_width(rows, name)) for name in shown}, rows


def _aligned(cells: Cells, widths: dict[str, int]) -> list[str]:
    aligned: list[str] = []
    for name, width in widths.items():
        cell = truncate(cells[name], width)
        space = " " * (width - display_width(cell))
        aligned.append(space + cell if name in NUMBERS else cell + space)
    return aligned


def _table_head(widths: dict[str, int], columns: int) -> Text:
    cells = _aligned({name: name for name in widths}, widths)
    return Text(truncate(" " * len(MARK) + "  ".join(cells), columns), "dim")


def _row_line(run: Run, cells: Cells, widths: dict[str, int], columns: int, is_selected: bool) -> Text:
    """One run. A status never depends on colour alone, nor does the selection."""
    asks, has_ended = run.get("needs_you"), run["status"] in ENDED
    if is_selected:
        text = f"{MARK}{'  '.join(_aligned(cells, widths))}"
        return Text(text + " " * (columns - display_width(text)), "bold reverse" if asks else "reverse")
    line = Text(" " * len(MARK))
    for name, cell in zip(widths, _aligned(cells, widths), strict=True):
        quiet = "dim" if has_ended or name in ("LAST", "TOK", "PROJECT") else ""
        line.append(cell, _style(run) if name == "STATE" else TONES[ALERT] if asks else quiet)
        line.append("  ")
    return line


def _style(run: Run) -> str:
    """The style of a status."""
    if run.get("needs_you"):
        return TONES[ALERT]
    status = "parked" if run["status"] == "waiting" and run.get("parked_until") else run["status"]
    return STYLES.get(status, "dim") + (" dim" if status in ENDED else "")


def _empty(columns: int, is_connected: bool) -> list[Text]:
    """How to start something."""
    if not is_connected:
        return [Text(" connecting", "dim")]
    lines = [" Nothing is running.", "", f" Start something: {START_SOMETHING}", " A tour of a minute: hocket demo"]
    lines.append(" Runs that have ended: hocket ps -a")
    return [Text(truncate(line, columns)) for line in lines]
