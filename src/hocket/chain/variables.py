"""Variables (``${NAME}``) of chains, and placeholders (``{{task}}``) of prompts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hocket.errors import UsageError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")


TASK, PREVIOUS = "task", "previous.result"
PLACEHOLDERS = (PREVIOUS, TASK)
"""The placeholders that are filled in when a step begins."""


def is_variable_name(text: str) -> bool:
    """Whether a text can be the name of a variable."""
    return _VARIABLE.fullmatch(text) is not None


def join(words: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The text of a chain and its variables, from the arguments of a command line."""
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
    """The text with every ``${NAME}`` replaced; references in the values are not replaced."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        if name not in variables:
            raise UsageError(f"the variable {name} has no value", f"add {name}=value to the command")
        return variables[name]

    return _REFERENCE.sub(value, text)


def references(text: str) -> list[str]:
    """The variables in a text, in order."""
    return _REFERENCE.findall(text)


def placeholders(text: str) -> list[str]:
    """The names in double braces, known or not, in order."""
    return _PLACEHOLDER.findall(text) if "{{" in text else []


def has_placeholders(text: str) -> bool:
    """Whether a text is a template: one with a placeholder for the task or the previous result."""
    return any(name in PLACEHOLDERS for name in placeholders(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with those placeholders filled in that have a value; braces in the values are left alone."""
    if "{{" not in text:
        return text
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
