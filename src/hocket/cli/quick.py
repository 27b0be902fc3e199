"""A plain usage read without a framework: importing that takes longer than most commands do.

What is read here is certain to mean the same to the framework. Whatever is not plain (help, a mistake, a value that
does not fit, an option given twice or shortened, letters run together) is left to it: ``read`` says None, and so
every message comes from one place.
"""

from __future__ import annotations

from hocket.cli.usage import COUNT, DOLLARS, FLAG, SECONDS, TEXT, split_passed

TYPE_CHECKING = False  # `typing` would cost more than reading takes; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hocket.cli.usage import Argument, Command, Kind, Option

    Values = dict[str, Any]


def read(command: Command, words: list[str]) -> Values | None:
    """The values of all parameters; None when the words are anything but a plain usage."""
    own, passed = split_passed(words) if command.passing else (words, ())
    options = {name: option for option in command.options for name in option.names}
    given: Values = {}
    plain: list[str] = []
    coming = iter(own)
    for word in coming:
        if word == "--":
            plain += coming
            break
        if not word.startswith("-") or word == "-" or command.is_word(word):
            plain.append(word)
            continue
        option, value = _option(word, coming, options)
        if option is None or value is None or (option.name in given and not option.many):
            return None
        given[option.name] = (*given.get(option.name, ()), value) if option.many else value
    placed = _placed(command.arguments, plain) if all(plain) else None
    if placed is None:
        return None
    defaults = {option.name: option.default for option in command.options}
    return {**defaults, **given, **placed, **({"passed": passed} if command.passing else {})}


def _option(word: str, coming: Iterator[str], options: dict[str, Option]) -> tuple[Option | None, Any]:
    """The option that a word is, and its value: in the same word, the next one, or none needed."""
    name, equals, joined = word.partition("=")
    option = options.get(name)
    if option is None or (equals and (option.kind == FLAG or not name.startswith("--"))):
        return None, None
    if option.kind == FLAG:
        return option, True
    value = joined if equals else next(coming, "--")
    unclear = not equals and value.startswith("-") and value != "-"
    return option, None if unclear else _converted(option.kind, value)


def _converted(kind: Kind, text: str) -> Any:
    """None for what does not fit, and for kinds that only the framework knows."""
    if kind == SECONDS:
        from hocket.cli.format import seconds_of

        return seconds_of(text)
    if kind in (COUNT, DOLLARS):
        from hocket.cli.format import count_of, dollars_of

        return count_of(text) if kind == COUNT else dollars_of(text)
    return text if kind == TEXT or (isinstance(kind, tuple) and text in kind) else None


def _placed(arguments: list[Argument], words: list[str]) -> Values | None:
    """Each word in its place; None where there are too many, too few, or one that does not fit."""
    values: Values = {}
    left = words
    for argument in arguments:
        taken, left = (left, []) if argument.many else (left[:1], left[1:])
        if (argument.required and not taken) or any(_converted(argument.kind, word) is None for word in taken):
            return None
        values[argument.name] = tuple(taken) if argument.many else next(iter(taken), None)
    return None if left else values
