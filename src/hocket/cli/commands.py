"""The framework's side of the command line: help, completion, and every message about a wrong usage.

Its commands are built from what ``usage`` declares; nothing is declared here. Imported only where ``usage`` itself
cannot read the words, because the framework takes longer to load than most commands take altogether.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hocket.cli import usage
from hocket.cli.format import count_of, dollars_of, seconds_of, since_of
from hocket.errors import HocketError, UsageError

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """Knows every command's name and short help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(usage.COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = usage.COMMANDS.get(cmd_name)
        return load(entry[0]) if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in usage.COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The framework would end with 1, which says that the work is incomplete.
            raise click.exceptions.Exit(usage.BROKEN_PIPE) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in usage.COMMANDS and not args[0].startswith("-"):
            raise HocketError(f"there is no command {args[0]!r}", _meant(args[0]))
        name, found, rest = super().resolve_command(ctx, args)
        if ctx.info_name == usage.FORKHESTRA:  # It is one command alone, so its usage names no other.
            ctx.info_name, name = "", usage.FORKHESTRA
        return name, found, rest


def _meant(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, usage.COMMANDS, n=2, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(f"hocket {name}" for name in near) + "?"
    return f'to run an agent: hocket run {word}; all commands: "hocket --help"'


def _examples(*lines: str) -> str:
    """The end of a command's help: lines that can be typed as they stand."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.command(
    cls=LazyGroup,
    context_settings=HELP,
    epilog=_examples('hocket run "planner -> builder:3 -> reviewer" -p "Expire old sessions"', "hocket ps"),
)
@click.version_option(package_name="hocket", message="%(prog)s %(version)s")
def hocket() -> None:
    """Run programs and agents alone, in chains and in loops. Whatever dies meanwhile, the run goes on."""


def invoke(program: str, words: list[str]) -> int:
    """Run one command through the framework. Its own errors leave as ours, its way to end as an exit code."""
    try:
        code = hocket.main(words or ["--help"], prog_name=program, standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        told = UsageError(error.format_message(), _help_hint(error))
        told.exit_code = error.exit_code
        raise told from error
    except click.Abort as error:
        raise KeyboardInterrupt from error
    return code if isinstance(code, int) else 0


def _help_hint(error: click.ClickException) -> str | None:
    ctx = getattr(error, "ctx", None)
    return f'see "{ctx.command_path} --help"' if ctx is not None else None


# --- From what is declared to the framework's own -----------------------------------------------------------


def load(target: str) -> click.Command:
    """The framework's command for what is declared at ``module:attribute``, called by the same name."""
    name, found = target.partition(":")[2], usage.declared(target)
    if isinstance(found, usage.Group):
        below = {word: _command(word, one) for word, one in found.commands.items()}
        return click.Group(name, below, context_settings=HELP, help=found.help, epilog=_examples(*found.examples))
    assert isinstance(found, usage.Command)  # noqa: S101 - the table is ours, and a test walks it
    return _command(name, found)


def _command(name: str, declared: usage.Command) -> click.Command:
    kind = PassingCommand if declared.passing else ProseCommand if declared.prose else click.Command
    made = kind(
        name,
        callback=declared.function,
        params=[*map(_argument, declared.arguments), *map(_option, declared.options)],
        help=declared.function.__doc__,
        epilog=_examples(*declared.examples),
        context_settings=HELP,
    )
    if isinstance(made, ProseCommand):
        made.is_word = declared.is_word
    return made


def _option(option: usage.Option) -> click.Option:
    more = {"is_flag": True} if option.kind == usage.FLAG else {"type": _type(option.kind), "default": option.default}
    return click.Option(
        [*option.names, option.name],
        metavar=option.metavar,
        help=option.help,
        show_default=option.show_default,
        multiple=option.many,
        shell_complete=_completer(option.completes),
        **more,
    )


def _argument(argument: usage.Argument) -> click.Argument:
    return click.Argument(
        [argument.name],
        metavar=argument.metavar,
        nargs=-1 if argument.many else 1,
        required=argument.required,
        type=_type(argument.kind),
        shell_complete=_completer(argument.completes),
    )


def _completer(completes: str | None) -> Callable[[click.Context, click.Parameter, str], list[str]] | None:
    return _agents if completes == usage.AGENTS else None


def _agents(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from hocket.cli.agents import addresses

    return [address for address in addresses() if address.startswith(begun)]


def _type(kind: usage.Kind) -> Any:
    if isinstance(kind, tuple):
        return click.Choice(kind)
    return _TYPES[kind]


def seconds(text: str) -> float:
    """``90``, ``90s``, ``10m`` or ``2h``. The framework shows this function's name as that of the type."""
    found = seconds_of(str(text))
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 90, 90s, 10m or 2h")
    return found


def dollars(text: str) -> float:
    """``5`` or ``0.50``."""
    found = dollars_of(str(text))
    if found is None:
        raise click.BadParameter(f"{text!r} is not a number of dollars such as 5 or 0.50")
    return found


def since(text: str) -> str:
    """``30m``, ``2026-03-01`` or ``2026-03-01T14:30``. Which moment that is, the command finds out when it runs."""
    if since_of(str(text), 0.0) is None:
        example = "2026-03-01, 2026-03-01T14:30 or 14:30"
        raise click.BadParameter(f"{text!r} is neither a duration such as 30m, 2h or 3d nor a time such as {example}")
    return text


def count(text: str) -> int:
    """``3``."""
    found = count_of(str(text))
    if found is None:
        raise click.BadParameter(f"{text!r} is not a whole number from 1 on")
    return found


_TYPES = {
    usage.TEXT: click.STRING,
    usage.SECONDS: seconds,
    usage.PORT: click.IntRange(0, 65535),
    usage.DOLLARS: dollars,
    usage.COUNT: count,
    usage.SINCE: since,
}


class ProseCommand(click.Command):
    """A command whose words may begin with a dash though they are no options.

    The mark cannot be part of any real argument, so marking and unmarking cannot meet a word of the user's.
    """

    MARK = "\0"
    is_word: Callable[[str], bool]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        marked = [self.MARK + word if word.startswith("-") and self.is_word(word) else word for word in args]
        rest = super().parse_args(ctx, marked)
        ctx.params = {name: self._unmark(value) for name, value in ctx.params.items()}
        return rest

    def _unmark(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.removeprefix(self.MARK)
        return tuple(self._unmark(item) for item in value) if isinstance(value, tuple) else value


class PassingCommand(ProseCommand):
    """A command with ``-- ARGS``; an arrow that stands alone is a word of the chain."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, passed = usage.split_passed(args)
        rest = super().parse_args(ctx, own)
        ctx.params = ctx.params | {"passed": passed}
        return rest
