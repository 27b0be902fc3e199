"""The variables of a chain: told from its text on a command line, and put into prompts and arguments.

Apart from ``chain``, because the command line needs them before it has talked to anybody, and they cost it nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hocket.errors import UsageError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")


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
