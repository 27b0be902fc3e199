"""Questions of agents: their text, the commands that answer them, and the prompt that answers them by keys.

What a person is asked to allow is shown whole, with invisible and control characters escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hocket.cli.format import display_width, truncate, wrap
from hocket.views.event_text import argument_text, main_argument, reply_command, tool_call, wants_text
from hocket.views.run_view import OpenQuestion, RunView
from hocket.views.text import duration, escape_invisible, one_line, strip_controls

Data = dict[str, Any]

TEXT_LIMIT = 4000
LINE_LIMIT = 30
BAR = "  | "
"""Before every line but the first of what is to be allowed, so that none of them can pass for a line of Hocket's."""
POINT = "  · "
"""Before an argument's name, so that no line of a command can pass for an argument."""
TAB_COLUMNS = 4
_DESCRIPTIVE: dict[str, dict[str, tuple[type, ...]]] = {"Bash": {"description": (str,), "timeout": (int, float)}}
"""By tool, the arguments (of these types) that do not change what it does."""


# --- The text of a question ---------------------------------------------------------------------------------


def question_text(question: Data, limit: int | None = LINE_LIMIT) -> str:
    """``wants to run Bash: touch x``, or ``asks: Which colour? (1 Red, 2 Blue)``.

    A command keeps its lines, and the other arguments of the tool follow: up to ``limit`` lines, or all with None.
    """
    text, given = str(question.get("text") or ""), question.get("input")
    more = "… (cut; complete in: hocket logs --raw)" if question.get("oversize") else ""
    if wants_text(question):
        # A CLI's own question has its options in its text.
        options = () if question.get("tool") else question.get("options") or ()
        numbered = ", ".join(f"{number} {one_line(str(option))}" for number, option in enumerate(options, 1))
        return f"asks: {_cut(one_line(text))}{more}{f' ({_cut(numbered)})' if numbered else ''}"
    if not question.get("tool") or not isinstance(given, dict):
        return f"asks for permission: {_limited(_barred(text), limit)}{more}"
    tool, main = str(question["tool"]), main_argument(given)
    lines = _barred(tool_call(tool, given))
    if main is not None:  # otherwise the call shows all arguments
        descriptive = _DESCRIPTIVE.get(tool, {})
        lines += _argument_lines(
            {
                name: value
                for name, value in given.items()
                if name != main and not (name in descriptive and isinstance(value, descriptive[name]))
            }
        )
    return f"wants to run {_limited(lines, limit)}"


def headline(question: Data) -> str:
    """The first line of a question whose other lines are shown below it."""
    limit = LINE_LIMIT if isinstance(question.get("input"), dict) else None
    first, *others = question_text(question, limit).split("\n")
    return f"{first} …" if others else first


def details(question: Data) -> list[str]:
    """What goes below the headline: several questions by line, or the complete arguments of the tool."""
    given = question.get("input")
    if wants_text(question):
        lines = strip_controls(str(question.get("text") or "")).split("\n")
        return [f"  {line}" for line in lines] if len(lines) > 1 else []
    if not isinstance(given, dict):
        return question_text(question, limit=None).split("\n")[1:]
    return _argument_lines(given, head="  ")


def _barred(text: str) -> list[str]:
    first, *others = _escaped_lines(text.rstrip(" \n"))
    return [first, *(f"{BAR}{line}" for line in others)]


def _argument_lines(arguments: Data, head: str = POINT) -> list[str]:
    """``name: value`` for each argument, complete, with a bar before every further line of a value."""
    return [
        f"{head}{escape_invisible(str(name))}: {line}" if place == 0 else f"{BAR}{line}"
        for name, value in arguments.items()
        for place, line in enumerate(_escaped_lines(argument_text(value).rstrip(" \n")))
    ]


def _limited(lines: list[str], limit: int | None) -> str:
    if limit is None:
        return "\n".join(lines)
    shown, room = list[str](), TEXT_LIMIT
    for line in lines[:limit]:
        if room <= 0:
            break
        shown.append(_cut(line, room))
        room -= len(line)
    left = len(lines) - len(shown)
    tail = [f"  … {left} more line{'s' if left > 1 else ''}: hocket inbox"] if left else []
    return "\n".join([*shown, *tail])


def _escaped_lines(text: str) -> list[str]:
    return [escape_invisible(line).expandtabs(TAB_COLUMNS).rstrip() for line in text.split("\n")]


def _cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning with a note that it is not complete."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… (cut, {len(text)} characters; complete in: hocket inbox --json)"


# --- The commands that answer -------------------------------------------------------------------------------


def reply_commands(questions: list[Data]) -> list[str]:
    """The command for each question of the inbox."""
    runs = [question["run"] for question in questions]
    return [reply_command(one, one["number"], runs.count(one["run"]) > 1) for one in questions]


def reply_to(view: RunView, question: OpenQuestion) -> str:
    """The command for an open question of a followed run."""
    return reply_command(question.data, question.run_name, len(view.questions_of(question.run)) > 1)


def with_reply(text: str, reply: str, gap: str = "    ") -> str:
    """A question with the command behind it, or below it where the question has several lines."""
    if not reply:
        return text
    return f"{text}{gap}{reply}" if "\n" not in text else f"{text}\n    {reply}"


# --- The prompt of the live view ----------------------------------------------------------------------------

GRACE_SECONDS = 0.5
"""Keys are ignored for this long after a question appears: they were meant for something else."""
MAX_NUMBER_KEYS = 9
"""With more options none of them has a key."""
MAX_ANSWER = 2000
MAX_MESSAGE = 100_000
FRAME_ROWS = 5
"""Rows of the terminal besides the text: the frame, a step, the footer and the cursor. Without them, no frame."""
ENTER, ESCAPE, ERASE, CLEAR = "\r\n", "\x1b", "\x7f\b", "\x15"
DENIAL, ANSWER, MESSAGE = "deny, because: ", "answer: ", "message: "
LINE_END = "⏎"
"""How a line end within a text is shown while it is typed."""


class TextInput:
    """A text that is being typed in the live view. With ``pasting`` it may have several lines: those of a paste."""

    def __init__(self, label: str, limit: int, *, text: str = "", pasting: bool = False) -> None:
        self.label = label
        self.text = text
        self._limit = limit
        self._pasting = pasting

    def take(self, keys: Sequence[str]) -> str:
        """Apply keys, up to Enter or Escape; return ENTER or ESCAPE if one of them ended the input, else nothing."""
        for place, key in enumerate(keys):
            if key in ENTER and self._pasting and place + 1 < len(keys):
                self._add("\n")  # pressed by a person, Enter comes alone
            elif key in ENTER:
                return ENTER
            elif key == ESCAPE:
                return ESCAPE
            elif key in ERASE:
                self.text = self.text[:-1]
            elif key == CLEAR:
                self.text = ""
            elif key.isprintable():
                self._add(key)
        return ""

    def _add(self, key: str) -> None:
        if len(self.text) < self._limit:
            self.text += key

    def lines(self, columns: int, before: str = "") -> list[str]:
        """The text with its end visible, and the keys that end it."""
        head = f"{before}{self.label}"
        room = max(8, columns - display_width(head) - 1)
        shown = self.text[-room:].replace("\n", LINE_END)
        while display_width(shown) > room:
            shown = shown[1:]
        return [truncate(f"{head}{shown}▏", columns), truncate("Enter sends · Esc cancels", columns)]


class OpenQuestions(Protocol):
    """What has open questions: a run view, or the list of all runs."""

    @property
    def questions(self) -> Mapping[tuple[str, str], OpenQuestion]:
        """By run and id, the oldest first."""


class QuestionPrompt:
    """One open question on the screen, and what keys do to it. Reads no terminal and sends nothing.

    With ``scrolls`` a question that does not fit is shown in part, by ``scroll``; otherwise its beginning.
    """

    def __init__(self, scrolls: bool = False) -> None:
        self._scrolls = scrolls
        self.question: OpenQuestion | None = None
        self.sent_keys: set[str] = set()
        """The idempotency keys of the answers given here."""
        self.is_cut = False
        """True if the question did not fit when it was last drawn, so that it has to be printed above."""
        self._count = 0
        self._since = 0.0
        self._first = 0
        """The first row shown of a question that does not fit."""
        self._shows_rule = False
        """True if the question's rule is completely visible: only then a key allows it."""
        self._reset_input()

    def _reset_input(self) -> None:
        self._input: TextInput | None = None
        self._parts: list[str] = []
        self.is_sending = False
        self._error = ""

    def update(self, view: OpenQuestions, now: float) -> None:
        """Choose the question to show: the current one while it is open, else the oldest."""
        questions = list(view.questions.values())
        self._count = len(questions)
        if self.question not in questions:
            self._show(questions[0] if questions else None, now)

    def choose(self, question: OpenQuestion, now: float) -> None:
        """Show this question, which is open."""
        if question != self.question:
            self._show(question, now)
        self._since = now

    @property
    def is_typing(self) -> bool:
        """True while a text is typed, which Escape cancels."""
        return self._input is not None

    def scroll(self, rows: int) -> None:
        """Show further rows of a question that does not fit, or with a negative number earlier ones."""
        self._first = max(0, self._first + rows)

    def _show(self, question: OpenQuestion | None, now: float) -> None:
        self.question, self._since, self._shows_rule, self._first = question, now, False, 0
        self._reset_input()

    def fail(self, message: str) -> None:
        """Show why an answer was not accepted; another one may be given."""
        self._reset_input()
        self._error = one_line(message)

    # Keys

    def press(self, keys: Sequence[str], view: OpenQuestions, now: float) -> Data | None:
        """Handle the keys since the last call; returns the body of the answer they complete.

        A key that answers at once counts only if it came alone: pasted text and keys held down allow nothing.
        """
        if self.question is None or self.is_sending or now - self._since < GRACE_SECONDS:
            return None
        if self._input is not None:
            return self._type(self._input, keys)
        if len(keys) == 1:
            return self._choose(keys[0], self.question, view, now)
        if keys and keys[0] in self._typing_keys(self.question.data):
            self._start_typing(keys[0]).take([key for key in keys[1:] if key.isprintable()])
        return None

    def _choose(self, key: str, question: OpenQuestion, view: OpenQuestions, now: float) -> Data | None:
        data = question.data
        if key == "n" and self._count > 1:
            questions = list(view.questions.values())
            self._show(questions[(questions.index(question) + 1) % len(questions)], now)
        elif key in self._typing_keys(data):
            self._start_typing(key)
        elif key == "a" and not wants_text(data):
            return self._reply(allow=True)
        elif key == "A" and self._shows_rule:
            return self._reply(allow=True, always=True)
        elif key in _number_keys(data):
            return self._reply(allow=True, text=key)
        return None

    @staticmethod
    def _typing_keys(data: Data) -> str:
        return "dt" if wants_text(data) else "d"

    def _start_typing(self, key: str) -> TextInput:
        self._input = TextInput(DENIAL if key == "d" else ANSWER, MAX_ANSWER)
        self._error = ""
        return self._input

    def _type(self, typed: TextInput, keys: Sequence[str]) -> Data | None:
        end = typed.take(keys)
        if end == ESCAPE:
            self._reset_input()
        return self._submit(typed) if end == ENTER else None

    def _submit(self, typed: TextInput) -> Data | None:
        text = typed.text.strip()
        if typed.label == DENIAL:
            return self._reply(allow=False, text=text or None)
        if not text:
            return None
        self._parts.append(text)
        typed.text = ""
        if len(self._parts) < self._expected_parts():
            return None
        return self._reply(allow=True, text="\n".join(self._parts))

    def _expected_parts(self) -> int:
        """A CLI may ask several things in one question, one per line."""
        data = self.question.data if self.question else {}
        return len(str(data.get("text") or "").split("\n")) if data.get("tool") else 1

    def _reply(self, allow: bool, text: str | None = None, always: bool = False) -> Data | None:
        if self.question is None:
            return None
        self.is_sending = True
        more = {"text": text, "always": always or None}
        given = {name: value for name, value in more.items() if value is not None}
        return {"question": self.question.data["id"], "allow": allow, **given}

    # Drawing

    def lines(self, columns: int, limit: int, now: float, rows: int = 1000, muted: bool = False) -> list[str]:
        """The question in at most ``limit`` lines, then its keys. A rule too long for the terminal has no key.

        It is ``muted`` while keys mean something else. On a small terminal it has no frame and a shorter error.
        """
        if self.question is None:
            return []
        inner = columns - 4
        text = fold(f"{self.question.asked_by} {question_text(self.question.data)}", inner)
        error = wrap(f"! {self._error}", inner) if self._error and not (muted or self.is_sending) else []
        self._shows_rule = bool(self.question.data.get("rule"))
        needed = min(len(text), limit) + bool(error) + len(self._key_lines(inner, now))
        self._shows_rule = self._shows_rule and needed + FRAME_ROWS <= rows
        keys = [] if muted else self._footer(inner, now)
        # The view keeps its last row, and one row of an error is worth a row of the question.
        limit = max(1, min(limit, rows - 1 - len(keys) - bool(error)))
        shown = self._visible(text, limit, inner)
        left = rows - len(shown) - len(keys)
        error = _first_lines(error, left - FRAME_ROWS if left > FRAME_ROWS else left - 1)
        block = [*shown, *error, *keys]
        self.is_cut = len(text) > limit or len(block) >= rows
        return _framed(block, columns) if len(block) + FRAME_ROWS <= rows else block

    def _visible(self, text: list[str], limit: int, inner: int) -> list[str]:
        """The rows of a text that fit, and a note where that is not all of them."""
        if len(text) <= limit:
            return text
        if not self._scrolls:
            return [*text[: limit - 1], truncate("… complete above", inner)]
        self._first = min(self._first, len(text) - limit + 1)
        end = self._first + limit - 1
        note = f"… rows {self._first + 1} to {end} of {len(text)}, ↑↓ for the others"
        return [*text[self._first : end], truncate(note, inner)]

    def _footer(self, inner: int, now: float) -> list[str]:
        if self.is_sending:
            return [truncate("sending the answer", inner)]
        if self._input is not None:
            expected = self._expected_parts() if self._input.label == ANSWER else 1
            return self._input.lines(inner, f"{len(self._parts) + 1} of {expected}, " if expected > 1 else "")
        return self._key_lines(inner, now)

    def _key_lines(self, inner: int, now: float) -> list[str]:
        data, since = (self.question.data, self.question.since) if self.question else ({}, now)
        count = len(_number_keys(data))
        choose = [f"[1-{count}] choose" if count > 1 else "[1] choose"] if count else []
        always = ["[A] allow " + "\\n".join(_escaped_lines(str(data["rule"])))] if self._shows_rule else []
        first = [*choose, "[t] answer…"] if wants_text(data) else ["[a] allow once", *always]
        more = [f"[n] next of {self._count}"] if self._count > 1 else []
        keys = [*first, "[d] deny…", *more, f"waiting {duration(now - since)}"]
        joined = "   ".join(keys)
        # Keys that do not fit are wrapped, never cut: a rule has to be read before it is allowed.
        return [joined] if display_width(joined) <= inner else [line for key in keys for line in wrap(key, inner)]


def fold(text: str, columns: int) -> list[str]:
    """The rows of a question: continued lines are indented, only a new line of a command has a bar."""
    head, *others = text.split("\n")
    # Rows after the first are indented, so that none of them can pass for a line of Hocket's.
    first, *more = [head] if display_width(head) <= columns else wrap(head, columns - len(BAR))
    rows = [first, *(f"{' ' * len(BAR)}{row}" for row in more)]
    for line in others:
        bar = line[: len(BAR)] if line.startswith((BAR, POINT)) else ""
        text = line[len(bar) :]
        # Wrapping would drop leading spaces, which may be significant.
        spaces = text[: len(text) - len(text.lstrip())][: columns // 2]
        wrapped = wrap(text.lstrip(), columns - len(bar) - len(spaces))
        rows += [f"{' ' * len(bar) if place else bar}{spaces}{row}" for place, row in enumerate(wrapped)]
    return rows


def _first_lines(lines: list[str], limit: int) -> list[str]:
    """At most ``limit`` lines, the last one marked if there are more."""
    if len(lines) <= limit:
        return lines
    return [*lines[: limit - 1], f"{lines[limit - 1][:-1]}…"] if limit > 0 else []


def _number_keys(data: Data) -> list[str]:
    options = data.get("options") or ()
    return [str(number) for number in range(1, len(options) + 1)] if len(options) <= MAX_NUMBER_KEYS else []


def _framed(lines: Sequence[str], columns: int) -> list[str]:
    inner = max(display_width(line) for line in lines)
    inner = min(max(inner, 40), columns - 4)
    return [
        f"╭{'─' * (inner + 2)}╮",
        *(f"│ {line}{' ' * (inner - display_width(line))} │" for line in lines),
        f"╰{'─' * (inner + 2)}╯",
    ]
