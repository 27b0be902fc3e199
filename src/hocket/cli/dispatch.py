"""From the words of a command line to an exit code: the one place that runs commands and reports errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from hocket import __version__, config
from hocket.cli import usage
from hocket.cli.format import typable
from hocket.cli.usage import COMMAND_NAMES, COMMANDS, FORKHESTRA, Argument, ArgumentError, Command, Group, command
from hocket.errors import HocketError
from hocket.views.text import strip_controls

BROKEN_PIPE = 141
WORDS_OF_OTHER_TOOLS = {
    "cancel": ("stop",),
    "continue": ("resume",),
    "create": ("new", "spawn"),
    "exec": ("run",),
    "inspect": ("show",),
    "jobs": ("ps",),
    "kill": ("stop",),
    "list": ("ps",),
    "ls": ("list", "ps"),
    "start": ("run", "spawn"),
    "tail": ("logs",),
    "terminate": ("stop",),
}
"""Commands of other tools, with those of Hocket that do the same; a group suggests those that it has."""


def run_command(program: str, words: Sequence[str]) -> int:
    """Run one command and turn its outcome into an exit code."""
    _tolerate_unencodable_text()
    try:
        code = _run(program, list(words))
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    except OSError as error:
        _report(f"cannot write the output: {error.strerror}", None, 1)
        _discard_output()
        return 1
    except KeyboardInterrupt:
        return 130
    except HocketError as error:
        return _report(error.message, error.hint, error.exit_code)
    return code


def _run(program: str, words: list[str]) -> int:
    if (shell := config.completing_shell()) is not None:
        from hocket.cli.completion import answer

        answer(words, shell)
        return 0
    names, found, given = usage.select(words)
    path = program if program == FORKHESTRA else " ".join([program, *names])
    try:
        if isinstance(found, Group):
            return _run_group(program, path, found, given)
        return found.function(**usage.parse(found, given)) or 0
    except usage.HelpRequested:
        return _print_help(path, found)
    except ArgumentError as error:
        error.hint = error.hint or f'see "{path} --help"'
        raise


def _run_group(program: str, path: str, group: Group, words: list[str]) -> int:
    """Handle words that name a group and no command of it."""
    word = words[0] if words else None
    if word is None or word in usage.HELP.names:
        return _print_help(path, group)
    if word in usage.VERSION.names and group is usage.ROOT:
        sys.stdout.write(f"{program} {__version__}\n")
        return 0
    raise _unknown_command(path, group, word)


def _unknown_command(path: str, group: Group, word: str) -> ArgumentError:
    names = list(COMMANDS if group is usage.ROOT else group.commands)
    if word.startswith("-"):
        return ArgumentError(f"unknown option {word}")
    same = (name for name in WORDS_OF_OTHER_TOOLS.get(word, ()) if name in names)
    near = " or ".join(same) or usage.suggest(word, names)
    if near:
        return ArgumentError(f"unknown command {word!r}", f'did you mean {near}? see "{path} --help"')
    to_run = f"to run an agent: hocket run {word}; " if group is usage.ROOT else ""
    return ArgumentError(f"unknown command {word!r}", f'{to_run}see "{path} --help"')


@command(
    Argument("words", "[COMMAND [SUBCOMMAND]]", many=True, required=False, completes=COMMAND_NAMES),
    examples=("hocket help run", "hocket help task new"),
)
def help(words: tuple[str, ...]) -> int:  # noqa: A001 - the name of the command
    """Show the help of a command; without one, list all commands."""
    names, found, rest = usage.select(list(words))
    path = " ".join(["hocket", *names])
    if not rest:
        return _print_help(path, found)
    if isinstance(found, Group):
        raise _unknown_command(path, found, rest[0])
    raise ArgumentError(f"unexpected argument: {rest[0]!r} ({path} has no subcommands)")


def _print_help(path: str, found: Command | Group) -> int:
    from shutil import get_terminal_size

    sys.stdout.write(usage.help_text(path, found, get_terminal_size().columns))
    return 0


def _tolerate_unencodable_text() -> None:
    """Keep a command from failing on text that the terminal's encoding lacks, or on a closed stream."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def _sanitized(text: str) -> str:
    """Strip control characters, and indent further lines: no file name can pass for a message of ours."""
    first, *rest = strip_controls(text).split("\n")
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in rest)])


def _report(message: str, hint: str | None, code: int) -> int:
    try:
        with suppress(OSError):
            sys.stdout.flush()
        print(f"hocket: {_sanitized(message)}", file=sys.stderr)
        if hint:
            print(f"hint: {_sanitized(typable(hint))}", file=sys.stderr)
    except OSError:
        return _discard_output()
    return code


def _discard_output() -> int:
    """Send buffered output to /dev/null: the reader is gone, and the interpreter would complain when it exits."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(devnull, stream.fileno())
    return BROKEN_PIPE
