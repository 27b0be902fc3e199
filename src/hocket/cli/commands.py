"""The table of commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from hocket.errors import HocketError

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
BROKEN_PIPE = 141

COMMANDS = {
    "run": ("hocket.cli.run:run", "Run a chain and watch it to its end."),
    "spawn": ("hocket.cli.runs:spawn", "Start one agent and come back at once."),
    "ps": ("hocket.cli.runs:ps", "List runs."),
    "show": ("hocket.cli.runs:show", "Show everything about one run."),
    "logs": ("hocket.cli.logs:logs", "Print what a run said."),
    "wait": ("hocket.cli.runs:wait", "Wait for a run; ends with its exit code."),
    "send": ("hocket.cli.talk:send", "Say something to a run that listens."),
    "answer": ("hocket.cli.talk:answer", "Answer what a run asks."),
    "resume": ("hocket.cli.talk:resume", "Go on with the session of a run that has ended."),
    "stop": ("hocket.cli.runs:stop", "Stop runs with everything they started."),
    "rehearse": ("hocket.cli.rehearse:rehearse", "Play a chain through by a script, with no account and no cost."),
    "demo": ("hocket.cli.demo:demo", "A tour of a minute, in a folder of its own."),
    "serve": ("hocket.cli.server:serve", "Run the server in the foreground."),
    "server": ("hocket.cli.server:server", "Look at the background server, or stop it."),
    "doctor": ("hocket.cli.doctor:doctor", "Check that Hocket can work here."),
    "completion": ("hocket.cli.completion:completion", "Print the completion script of a shell."),
}


def load(target: str) -> click.Command:
    """The command behind ``module:attribute``."""
    from importlib import import_module

    module, _, attribute = target.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)  # noqa: S101 - the table above is ours, and a test walks it
    return command


class LazyGroup(click.Group):
    """Knows every command's name and short help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        return load(entry[0]) if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The framework would end with 1, which says that the work is incomplete.
            raise click.exceptions.Exit(BROKEN_PIPE) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise HocketError(f"there is no command {args[0]!r}", _meant(args[0]))
        return super().resolve_command(ctx, args)


def _meant(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=2, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(f"hocket {name}" for name in near) + "?"
    return f'to run an agent: hocket run {word}; all commands: "hocket --help"'


def examples(*lines: str) -> str:
    """The end of a command's help: lines that can be typed as they stand."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.command(
    cls=LazyGroup,
    context_settings=HELP,
    epilog=examples('hocket run "planner -> builder:3 -> reviewer" -p "Expire old sessions"', "hocket ps"),
)
@click.version_option(package_name="hocket", message="%(prog)s %(version)s")
def hocket() -> None:
    """Run programs and agents alone, in chains and in loops. Whatever dies meanwhile, the run goes on."""


def command(*example: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """``click.command`` with what all of ours share; its example lines are not optional."""
    return click.command(context_settings=HELP, epilog=examples(*example), **settings)


def run_command(program: str, words: Sequence[str]) -> int:
    """Run one command and turn whatever happens into an exit code."""
    _tolerate_odd_letters()
    try:
        code = hocket.main(_shown_help(words), prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except HocketError as error:
        return _tell(error.message, error.hint, error.exit_code)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _tell(error.format_message(), _help_hint(error), error.exit_code)
    except BrokenPipeError:
        return _leave_quietly()
    except OSError as error:
        _tell(f"the output cannot be written: {error.strerror}", None, 1)
        _leave_quietly()
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 130


def _shown_help(words: Sequence[str]) -> list[str]:
    return list(words) or ["--help"]


def _tolerate_odd_letters() -> None:
    """A name that the terminal's encoding cannot show must not end a command; nor must a stream that is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def _help_hint(error: click.ClickException) -> str | None:
    ctx = getattr(error, "ctx", None)
    return f'see "{ctx.command_path} --help"' if ctx is not None else None


def _tell(message: str, hint: str | None, code: int) -> int:
    try:
        with suppress(OSError):
            sys.stdout.flush()
        print(f"hocket: {message}", file=sys.stderr)
        if hint:
            print(f"hint: {hint}", file=sys.stderr)
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
