"""The variables of a chain, told from its text on a command line, and what is put into prompts and arguments.

Apart from ``chain``, because the command line needs them before it has talked to anybody, and they cost it nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hocket.errors import UsageError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_BLANK = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")


TASK, PREVIOUS = "task", "previous.result"
BLANKS = (PREVIOUS, TASK)
"""What a prompt may leave open until its step begins: ``{{previous.result}}`` and ``{{task}}``."""


def is_variable_name(text: str) -> bool:
    """Whether a text can stand before ``=`` as a variable."""
    return _VARIABLE.fullmatch(text) is not None


def join(words: Iterable[str]) -> tuple[str, dict[str, str]]:
    """One chain's text and its variables, out of the words of a command line."""
    text: list[str] = []
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and is_variable_name(name):
            variables[name] = value
        else:
            text.append(word)
    return " ".join(text), variables


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """The text with every ``${NAME}`` replaced; values are taken as they are and not looked through again."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        if name not in variables:
            raise UsageError(f"the variable {name} has no value", f"add {name}=value to the command")
        return variables[name]

    return _REFERENCE.sub(value, text)


def references(text: str) -> list[str]:
    """The variables that a text has, in the order in which they stand."""
    return _REFERENCE.findall(text)


def blanks(text: str) -> list[str]:
    """The names in double braces, known or not, in the order in which they stand."""
    return _BLANK.findall(text) if "{{" in text else []


def has_blanks(text: str) -> bool:
    """Whether a text is a form: one that says itself where the task or the result of the step before belongs."""
    return any(name in BLANKS for name in blanks(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with every blank filled in that has a value; other braces, and those in the values, stay as they are."""
    if "{{" not in text:
        return text
    return _BLANK.sub(lambda blank: values.get(blank[1], blank[0]), text)
