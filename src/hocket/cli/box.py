"""The question that stands in a box of the live view: which one it is, what keys make of it, and how it looks.

Nothing here reads a terminal, draws on one or talks to a server: ``watch`` brings keys and takes answers, ``terminal``
gives the lines their colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.cli.asking import BAR, POINT, judged_lines, wants_words, wish
from hocket.cli.format import duration, fit, one_line, width, wrapped

if TYPE_CHECKING:
    from hocket.cli.progress import AskedView, Progress

GRACE_SECONDS = 0.5
"""So long after a question appears keys mean nothing: they were meant for something else."""
MOST_KEYS = 9
"""So many options have a key of their own."""
MOST_TEXT = 2000
AROUND = 5
"""Rows of the terminal that the words in the box leave free: its frame, a step, the footer and the cursor's. With
fewer it has no frame."""
ENTER, ESCAPE, ERASE, CLEAR = "\r\n", "\x1b", "\x7f\b", "\x15"
DENIAL, WORDS = "deny, because: ", "answer: "


class Box:
    """The oldest open question, or the one that was turned to."""

    def __init__(self) -> None:
        self.asked: AskedView | None = None
        self.own: set[str] = set()
        """The keys of the answers that were given here."""
        self.is_cut = False
        """Whether the question was too long when it was last looked at: it has to stand elsewhere as well."""
        self._place = 0
        self._open = 0
        self._since = 0.0
        self._has_rule = False
        """Whether the question's rule is on the screen, whole: only then it has a key."""
        self._empty()

    def _empty(self) -> None:
        self._typing: str | None = None
        self._text = ""
        self._parts: list[str] = []
        self.sending = False
        self.trouble = ""

    def look(self, progress: Progress, now: float) -> None:
        """Find the question to show. One that is open stays, whatever else is asked meanwhile."""
        open_ones = list(progress.questions.values())
        self._open = len(open_ones)
        if self.asked in open_ones:
            self._place = open_ones.index(self.asked)
        elif self.asked is not None or open_ones:
            self._show(open_ones, 0, now)

    def _show(self, open_ones: Sequence[AskedView], place: int, now: float) -> None:
        self.asked = open_ones[place] if open_ones else None
        self._place, self._since, self._has_rule = place, now, False
        self._empty()

    def failed(self, why: str) -> None:
        """The answer was not taken; another may be given."""
        self._empty()
        self.trouble = one_line(why)

    # Keys

    def press(self, keys: Sequence[str], progress: Progress, now: float) -> dict[str, Any] | None:
        """What was pressed since the last look; the answer, if that completes one.

        What answers at once counts only where it came alone: pasted text and keys held down allow nothing.
        """
        if self.asked is None or self.sending or now - self._since < GRACE_SECONDS:
            return None
        if self._typing is not None:
            return self._type(keys)
        if len(keys) == 1:
            return self._choose(keys[0], self.asked.data, progress, now)
        if keys and keys[0] in self._openers(self.asked.data):
            self._begin(keys[0])
            self._type([key for key in keys[1:] if key.isprintable()])
        return None

    def _choose(self, key: str, data: dict[str, Any], progress: Progress, now: float) -> dict[str, Any] | None:
        if key == "n" and self._open > 1:
            self._show(list(progress.questions.values()), (self._place + 1) % self._open, now)
        elif key in self._openers(data):
            self._begin(key)
        elif key == "a" and not wants_words(data):
            return self._reply(allow=True)
        elif key == "A" and self._has_rule:
            return self._reply(allow=True, always=True)
        elif key in _numbered(data):
            return self._reply(allow=True, text=key)
        return None

    @staticmethod
    def _openers(data: dict[str, Any]) -> str:
        return "dt" if wants_words(data) else "d"

    def _begin(self, key: str) -> None:
        self._typing = DENIAL if key == "d" else WORDS
        self._text, self.trouble = "", ""

    def _type(self, keys: Sequence[str]) -> dict[str, Any] | None:
        for key in keys:
            if key in ENTER:
                return self._entered()
            if key == ESCAPE:
                self._empty()
                return None
            if key in ERASE:
                self._text = self._text[:-1]
            elif key == CLEAR:
                self._text = ""
            elif key.isprintable() and len(self._text) < MOST_TEXT:
                self._text += key
        return None

    def _entered(self) -> dict[str, Any] | None:
        text = self._text.strip()
        if self._typing == DENIAL:
            return self._reply(allow=False, text=text or None)
        if not text:
            return None
        self._parts.append(text)
        self._text = ""
        if len(self._parts) < self._wanted():
            return None
        return self._reply(allow=True, text="\n".join(self._parts))

    def _wanted(self) -> int:
        """How many answers: an agent's CLI may ask several things in one question, a line each."""
        data = self.asked.data if self.asked else {}
        return len(str(data.get("text") or "").split("\n")) if data.get("tool") else 1

    def _reply(self, allow: bool, text: str | None = None, always: bool = False) -> dict[str, Any] | None:
        if self.asked is None:
            return None
        self.sending = True
        more = {"text": text, "always": always or None}
        given = {name: value for name, value in more.items() if value is not None}
        return {"question": self.asked.data["id"], "allow": allow, **given}

    # Looks

    def lines(self, columns: int, most: int, now: float, rows: int | None = None, muted: bool = False) -> list[str]:
        """Its text, of at most so many lines, then what the keys do. A rule too long for the terminal has no key.

        While keys mean something else it is muted: what they do here is not said. A small terminal has no room for
        its frame, nor for all that is said about an answer that was not taken.
        """
        if self.asked is None:
            return []
        inner = columns - 4
        whole, trouble = said(self.asked, inner), [] if muted else self._trouble(inner)
        self._has_rule = bool(self.asked.data.get("rule"))
        taken = min(len(whole), most) + bool(trouble) + len(self._choices(inner, now))
        self._has_rule = self._has_rule and (rows is None or taken + AROUND <= rows)
        keys = [] if muted else self._footer(inner, now)
        if rows is not None:
            # The last row of the view is not ours, and a word about the trouble is worth a row of the question.
            most = max(1, min(most, rows - 1 - len(keys) - bool(trouble)))
        asked = whole if len(whole) <= most else [*whole[: most - 1], fit("… more of it is above", inner)]
        if rows is not None:
            left = rows - len(asked) - len(keys)
            trouble = _shortened(trouble, left - AROUND if left > AROUND else left - 1)
        shown = [*asked, *trouble, *keys]
        self.is_cut = len(whole) > most or (rows is not None and len(shown) >= rows)
        return _framed(shown, columns) if rows is None or len(shown) + AROUND <= rows else shown

    def _trouble(self, inner: int) -> list[str]:
        return wrapped(f"! {self.trouble}", inner) if self.trouble and not self.sending else []

    def _footer(self, inner: int, now: float) -> list[str]:
        if self.sending:
            return [fit("sending the answer", inner)]
        if self._typing is not None:
            return self._prompt(inner)
        return self._choices(inner, now)

    def _choices(self, inner: int, now: float) -> list[str]:
        waits = f"waiting {duration(now - self.asked.since)}" if self.asked else ""
        keys = "   ".join([*self._keys(), waits])
        # Keys that do not fit stay whole, each on lines of its own: nobody should allow a rule that was cut off.
        apart = [line for key in [*self._keys(), waits] for line in wrapped(key, inner)]
        return [keys] if width(keys) <= inner else apart

    def _keys(self) -> list[str]:
        data = self.asked.data if self.asked else {}
        count = len(_numbered(data))
        choose = [f"[1-{count}] choose" if count > 1 else "[1] choose"] if count else []
        always = [f"[A] allow {_on_one_line(str(data['rule']))}"] if self._has_rule else []
        first = [*choose, "[t] answer…"] if wants_words(data) else ["[a] allow once", *always]
        more = [f"[n] next of {self._open}"] if self._open > 1 else []
        return [*first, "[d] deny…", *more]

    def _prompt(self, inner: int) -> list[str]:
        """What is being typed, its end in sight."""
        wanted = self._wanted() if self._typing == WORDS else 1
        head = f"{len(self._parts) + 1} of {wanted}, {self._typing}" if wanted > 1 else str(self._typing)
        room = max(8, inner - width(head) - 1)
        shown = self._text
        while width(shown) > room:
            shown = shown[1:]
        return [fit(f"{head}{shown}▏", inner), fit("Enter sends · Esc goes back", inner)]


def said(asked: AskedView, columns: int) -> list[str]:
    """Who asks, and what, in as many lines as it takes."""
    return folded(f"{asked.who} {wish(asked.data)}", columns)


def folded(text: str, columns: int) -> list[str]:
    """Rows of a wish. Where a line goes on in the next row it is set in, and only a new one of a command has a bar."""
    first, *others = text.split("\n")
    return [*_begun(first, columns), *(part for line in others for part in _set_in(line, columns))]


def _begun(line: str, columns: int) -> list[str]:
    """The first line: no row of it but the first stands where our own words do."""
    if width(line) <= columns:
        return [line]
    first, *others = wrapped(line, columns - len(BAR))
    return [first, *(f"{' ' * len(BAR)}{row}" for row in others)]


def _set_in(line: str, columns: int) -> list[str]:
    """A line of a command, or what else a tool is given."""
    bar = line[: len(BAR)] if line.startswith((BAR, POINT)) else ""
    text = line[len(bar) :]
    # Breaking between words would drop the spaces that it begins with, which may be part of what is meant.
    spaces = text[: len(text) - len(text.lstrip())][: columns // 2]
    rows = wrapped(text.lstrip(), columns - len(bar) - len(spaces))
    return [f"{bar if place == 0 else ' ' * len(bar)}{spaces}{row}" for place, row in enumerate(rows)]


def _on_one_line(text: str) -> str:
    """What is to be judged: also where it has several lines."""
    return "\\n".join(judged_lines(text))


def _shortened(lines: list[str], most: int) -> list[str]:
    """As many lines as there is room for, the last with a sign that there are more."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"{lines[most - 1][:-1]}…"] if most > 0 else []


def _numbered(data: dict[str, Any]) -> list[str]:
    """The keys of the options."""
    options = data.get("options") or ()
    return [str(number) for number in range(1, len(options) + 1)] if len(options) <= MOST_KEYS else []


def _framed(lines: Sequence[str], columns: int) -> list[str]:
    inner = max(width(line) for line in lines)
    inner = min(max(inner, 40), columns - 4)
    return [
        f"╭{'─' * (inner + 2)}╮",
        *(f"│ {line}{' ' * (inner - width(line))} │" for line in lines),
        f"╰{'─' * (inner + 2)}╯",
    ]
