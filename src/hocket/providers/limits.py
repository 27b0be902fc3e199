"""What an operating system lets one program be given, checked before anything is started.

How an agent's command line is put together is its provider's business; that it can be delivered is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hocket.errors import UsageError

STDIN_PROMPT_LIMIT = 10 * 1024 * 1024
ARGUMENT_LIMIT = 128 * 1024
"""Bytes of any one argument or variable, with its final zero: what Linux accepts."""
TOTAL_LIMIT = 1024 * 1024
"""Bytes of all arguments and variables together. Linux accepts 2 MiB by default; the rest is for what the
engine adds and for machines with a smaller stack."""
_POINTER = 8


def check_argument(agent: str, argument: str) -> None:
    shown = f"argument {argument[:40]!r} for {agent}"
    if "\0" in argument:
        raise UsageError(f"the {shown} contains a NUL character")
    if len(bytes_of(argument, f"the {shown}", UsageError)) >= ARGUMENT_LIMIT:
        raise UsageError(f"the {shown} is longer than {ARGUMENT_LIMIT // 1024} KiB")


def check_total(agent: str, arguments: Iterable[str], env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if "\0" in name + value or "=" in name or not name:
            raise UsageError(f"the variable {name[:40]!r} for {agent} cannot be passed to a program")
        if len(bytes_of(f"{name}={value}", f"the variable {name[:40]!r}", UsageError)) >= ARGUMENT_LIMIT:
            raise UsageError(f"the variable {name[:40]!r} for {agent} is longer than {ARGUMENT_LIMIT // 1024} KiB")
    texts = [*arguments, *(f"{name}={value}" for name, value in env.items())]
    total = sum(len(text.encode()) + 1 + _POINTER for text in texts)
    if total > TOTAL_LIMIT:
        raise UsageError(
            f"arguments and variables for {agent} have {total} bytes together; the limit is {TOTAL_LIMIT}",
            "pass a file name instead of the content",
        )


def bytes_of(text: str, what: str, kind: type[UsageError]) -> bytes:
    """The text as a program gets it, or an error of the kind asked for."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise kind(f"{what} is not valid text (character {error.start})") from error
