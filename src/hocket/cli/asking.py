"""What agents ask people: their wishes in words, and the commands that answer. Most runs load none of it.

What is to be allowed is shown whole, with every letter spelled that would not be seen or that a terminal would obey.
"""

from __future__ import annotations

from typing import Any

from hocket.cli.format import one_line, spelled
from hocket.cli.words import as_text, telling, whole_deed

Data = dict[str, Any]

ASK_LIMIT = 4000
"""Longer than any deed that is only looked at: what is to be allowed should be seen whole."""
ASK_LINES = 30
BAR = "  | "
"""In front of every line but the first of what is to be allowed: none of them can pass for a line of ours."""
POINT = "  · "
"""In front of an argument's name, so that no line of a command can pass for an argument that runs nothing."""
TAB_COLUMNS = 4
_TALK: dict[str, dict[str, tuple[type, ...]]] = {"Bash": {"description": (str,), "timeout": (int, float)}}
"""By tool the arguments, of these types, that change nothing about what it does; few commands come without them."""


def wish(question: Data, most: int | None = ASK_LINES) -> str:
    """What an agent wants: ``wants to run Bash: touch x``, or ``asks: Which colour? (1 Red, 2 Blue)``.

    A command of several lines has them here, and behind it stands whatever else the tool is given; up to so many lines,
    or all of them with None. Nothing is left out of them: what a terminal would obey is spelled.
    """
    text, given = str(question.get("text") or ""), question.get("input")
    more = "… (cut: hocket logs --raw has all of it)" if question.get("oversize") else ""
    if wants_words(question):
        return f"asks: {_seen_whole(one_line(text))}{more}{_options(question)}"
    if question.get("tool") and isinstance(given, dict):
        tool = str(question["tool"])
        return f"wants to run {_some_of([*_barred(whole_deed(tool, given)), *_also_given(tool, given)], most)}"
    return f"asks for leave: {_some_of(_barred(text), most)}{more}"


def headline(question: Data) -> str:
    """The first line of a wish, where the others stand below. One that is too long is cut if it stands there, too."""
    first, *others = wish(question, ASK_LINES if isinstance(question.get("input"), dict) else None).split("\n")
    return f"{first} …" if others else first


def _barred(text: str) -> list[str]:
    first, *others = judged_lines(text.rstrip(" \n"))
    return [first, *(f"{BAR}{line}" for line in others)]


def _also_given(tool: str, arguments: Data) -> list[str]:
    """What a tool is given besides what its deed tells, which is all of it where no argument is telling."""
    told, talk = telling(arguments), _TALK.get(tool, {})
    if told is None:
        return []
    return argument_lines(
        {
            name: value
            for name, value in arguments.items()
            if name != told and not (name in talk and isinstance(value, talk[name]))
        }
    )


def argument_lines(arguments: Data, head: str = POINT) -> list[str]:
    """What a tool is given, by name: all of it, each line of a value but the first with a bar."""
    return [
        f"{head}{spelled(str(name))}: {line}" if place == 0 else f"{BAR}{line}"
        for name, value in arguments.items()
        for place, line in enumerate(judged_lines(as_text(value).rstrip(" \n")))
    ]


def _some_of(lines: list[str], most: int | None) -> str:
    """As many lines and letters as can be looked at, and a word about what is missing."""
    if most is None:
        return "\n".join(lines)
    shown, room = list[str](), ASK_LIMIT
    for line in lines[:most]:
        if room <= 0:
            break
        shown.append(_seen_whole(line, room))
        room -= len(line)
    left = len(lines) - len(shown)
    tail = [f"  … {left} more line{'s' if left > 1 else ''}: hocket inbox"] if left else []
    return "\n".join([*shown, *tail])


def judged_lines(text: str) -> list[str]:
    """By line, with every letter spelled that would not be seen or that a terminal would obey."""
    return [spelled(line).expandtabs(TAB_COLUMNS).rstrip() for line in text.split("\n")]


def _seen_whole(text: str, most: int = ASK_LIMIT) -> str:
    """What is to be judged; or, where that is too long for a terminal, a beginning that does not pass for it."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… (cut: of {len(text)} letters; hocket inbox --json has all of them)"


def wants_words(question: Data) -> bool:
    """Whether any words answer it, and not a yes or a no alone."""
    return question.get("kind") in ("ask", "choice")


def _options(question: Data) -> str:
    """Of a question that an agent put itself; the CLI's own has them in its text."""
    options = () if question.get("tool") else question.get("options") or ()
    numbered = ", ".join(f"{number} {one_line(str(option))}" for number, option in enumerate(options, 1))
    return f" ({_seen_whole(numbered)})" if numbered else ""


def reply_line(question: Data, run: object, several: bool = False) -> str:
    """The command that answers. Where several questions are open it has to say which.

    The words to choose from are joined so that typing them as they stand allows nothing.
    """
    which = f" --question {one_line(str(question['id']))}" if several else ""
    words = '"YOUR ANSWER"' if wants_words(question) else "allow/deny"
    return f"hocket answer {run}{which} {words}"


def with_reply(what: str, reply: str, gap: str = "    ") -> str:
    """What is asked with the command that answers it: behind it, or below where what is asked has lines of its own."""
    if not reply:
        return what
    return f"{what}{gap}{reply}" if "\n" not in what else f"{what}\n    {reply}"


def reply_lines(questions: list[Data]) -> list[str]:
    """For each open question the command that answers it, by the number of the run that asks."""
    asking = [question["run"] for question in questions]
    return [reply_line(one, one["number"], asking.count(one["run"]) > 1) for one in questions]
