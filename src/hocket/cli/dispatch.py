"""From words to a command, and the one place where errors become messages and exit codes.

A plain usage of an everyday command is called from here, everything else through the framework in ``commands``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hocket import config
from hocket.cli.usage import BROKEN_PIPE, COMMANDS, FORKHESTRA, Command, Group, declared, read

if TYPE_CHECKING:
    from hocket.errors import HocketError


def run_command(program: str, words: Sequence[str]) -> int:
    """Run one command and turn whatever happens into an exit code."""
    _tolerate_odd_letters()
    words = list(words)
    try:
        call = _plain_call(program, words)
        code = call() if call is not None else _through_framework(program, words)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _leave_quietly()
    except OSError as error:
        _tell(f"the output cannot be written: {error.strerror}", None, 1)
        _leave_quietly()
        code = 1
    except KeyboardInterrupt:
        code = 130
    except _own_errors() as error:
        code = _tell(error.message, error.hint or _help_hint(error, program, words), error.exit_code)
    return code


def _plain_call(program: str, words: list[str]) -> Callable[[], int] | None:
    """The call that the words stand for; None where the framework has to look at them."""
    if not words or words[0] not in COMMANDS or config.is_completing(program):
        return None
    found, given = declared(COMMANDS[words[0]][0]), words[1:]
    if isinstance(found, Group):
        found, given = found.commands.get(given[0]) if given else None, given[1:]
    if not isinstance(found, Command):
        return None
    values = read(found, given)
    return None if values is None else lambda: found.function(**values) or 0


def _through_framework(program: str, words: list[str]) -> int:
    from hocket.cli.commands import invoke

    return invoke(program, words)


def _tolerate_odd_letters() -> None:
    """A name that the terminal's encoding cannot show must not end a command; nor must a stream that is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def _own_errors() -> type[HocketError]:
    """Asked for when something was raised: making a class of each takes longer than most commands do."""
    from hocket.errors import HocketError

    return HocketError


def _help_hint(error: HocketError, program: str, words: list[str]) -> str | None:
    from hocket.cli.misuse import Misused

    if not isinstance(error, Misused):
        return None
    if program == FORKHESTRA:
        return f'see "{program} --help"'
    found = declared(COMMANDS[words[0]][0])
    named = words[:2] if isinstance(found, Group) and words[1:2] and words[1] in found.commands else words[:1]
    return f'see "{program} {" ".join(named)} --help"'


def _told(text: str) -> str:
    """Without what a terminal would obey; further lines are indented, so that no file's name can pass for a message."""
    from hocket.cli.format import harmless

    first, *rest = harmless(text).split("\n")
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in rest)])


def _typable(hint: str) -> str:
    """A hint may have a command in it, which has to stay right however odd the names in it are."""
    if hint.isprintable():
        return hint
    from hocket.cli.roster import typable

    return typable(hint)


def _tell(message: str, hint: str | None, code: int) -> int:
    from contextlib import suppress

    try:
        with suppress(OSError):
            sys.stdout.flush()
        print(f"hocket: {_told(message)}", file=sys.stderr)
        if hint:
            print(f"hint: {_told(_typable(hint))}", file=sys.stderr)
    except OSError:
        return _leave_quietly()
    return code


def _leave_quietly() -> int:
    """Nobody reads on. The interpreter would complain about what is still buffered, so it goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    return BROKEN_PIPE
