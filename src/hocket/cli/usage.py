"""The commands and how each may be called, declared once as values; words are read and help is written by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from hocket.cli.format import parse_count, parse_days, parse_dollars, parse_duration, parse_since
from hocket.config import ISOLATION, ON_LOST, ON_QUESTION
from hocket.errors import UsageError
from hocket.input_limits import parse_size

Kind = str | tuple[str, ...]
"""One of the kinds below, or the values to choose from."""
TEXT, FLAG, SECONDS, PORT, DOLLARS, COUNT, SINCE = "text", "flag", "seconds", "port", "dollars", "count", "since"
DAYS, SIZE = "days", "size"
AGENTS = "agents"
"""Completed to the addresses of agents."""
RUNS, LIVE_RUNS = "runs", "live runs"
"""Completed to the numbers of the newest runs, or of those that have not ended."""
COMMAND_NAMES = "commands"
"""Completed to the commands, then to those of a group."""


class ArgumentError(UsageError):
    """The arguments of a command do not fit its usage. Where it is reported, a hint points to the command's help."""


class Option:
    """An option, such as ``Option("-p", "--prompt", ...)``, passed to the function as ``name``.

    With ``many`` it may be repeated, and its value is a tuple.
    """

    def __init__(
        self,
        *names: str,
        help: str,  # noqa: A002 - the usual name in parsers
        kind: Kind = TEXT,
        metavar: str | None = None,
        name: str | None = None,
        default: Any = None,
        many: bool = False,
        completes: str | None = None,
    ) -> None:
        self.names = names
        self.completes = completes
        self.name = name or names[-1].lstrip("-").replace("-", "_")
        self.help = help
        self.kind = kind
        self.metavar = metavar
        self.default = False if kind == FLAG else () if many else default
        self.many = many


class Argument(NamedTuple):
    """A positional argument, or with ``many`` all remaining ones. ``metavar`` stands in the usage line as it is."""

    name: str
    metavar: str | None = None
    many: bool = False
    required: bool = True
    kind: Kind = TEXT
    completes: str | None = None


class Command:
    """A function with its options and arguments. Its help is the function's docstring."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: tuple[Option | Argument, ...],
        examples: tuple[str, ...],
        passing: bool = False,
        prose: bool = False,
    ) -> None:
        self.function = function
        self.options = [one for one in parameters if isinstance(one, Option)]
        self.arguments = [one for one in parameters if isinstance(one, Argument)]
        self.examples = examples
        self.passing = passing
        """Words after ``--`` go to the function as ``passed``; a word that begins with ``->`` is an argument."""
        self.prose = prose
        """Arguments are free text: a word that begins with a dash and has a space, such as a list, is an argument."""

    def is_argument(self, word: str) -> bool:
        """Whether a word is an argument rather than an option."""
        if not word.startswith("-") or word == "-" or (self.passing and word.startswith("->")):
            return True
        return self.prose and any(letter.isspace() for letter in word.partition("=")[0])


class Group:
    """A command with subcommands."""

    def __init__(self, help: str, commands: dict[str, Command], *examples: str) -> None:  # noqa: A002 - as above
        self.help = help
        self.commands = commands
        self.examples = examples


def command(
    *parameters: Option | Argument,
    examples: tuple[str, ...],
    passing: bool = False,
    prose: bool = False,
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a function as a command. Examples are required."""
    return lambda function: Command(function, parameters, examples, passing, prose)


# --- Options and arguments shared by several commands -------------------------------------------------------

REF = Argument("ref", "RUN", completes=RUNS)
CHAIN_WORDS = Argument("words", "[CHAIN] [NAME=value]... [-- ARGS]", many=True, required=False, completes=AGENTS)
PROMPT = Option("-p", "--prompt", metavar="TEXT", help='Use this prompt; "-" reads standard input.')
PROMPT_FILE = Option("--prompt-file", metavar="FILE", help="Read the prompt from a file, relative to --cwd.")
CWD = Option("--cwd", metavar="DIR", help="Run in this directory.")
UNTIL = Option("--until", metavar="CMD", help="Complete a step only when this shell command, the gate, succeeds.")
TIMEOUT = Option("--timeout", kind=SECONDS, metavar="TIME", help="Stop after this time: 90, 90s, 10m, 2h.")
MARKER = Option("--marker", metavar="TEXT", help="End a loop when the agent prints this line.")
ASKING = Option(
    "--on-question",
    kind=ON_QUESTION,
    help="Deny the questions of agents, wait for an answer, or fail. The default depends on the configuration.",
)
SPENDING = (
    Option("--budget", name="budget_usd", kind=DOLLARS, metavar="USD", help="Stop when the total cost reaches USD."),
    Option("--budget-tokens", kind=COUNT, metavar="N", help="Stop when the total use reaches N tokens."),
    Option("--idle-timeout", kind=SECONDS, metavar="TIME", help="Stop an agent that prints nothing for this time."),
)
"""Limits of any run."""
BOUNDS = (
    *SPENDING,
    Option("--max-failures", name="failures", kind=COUNT, metavar="N", help="End a loop after N failures in a row."),
    Option("--no-progress", kind=COUNT, metavar="N", help="End a loop after N iterations in a row without a change."),
    Option("--gate-timeout", kind=SECONDS, metavar="TIME", help="Stop the gate after this time (default 10m)."),
    Option("--on-lost", kind=ON_LOST, help="Ask what to do with an iteration whose outcome is unknown, or retry it."),
)
"""Limits of a chain."""
ISOLATED = Option("--isolation", kind=ISOLATION, help="Run each step in a git worktree and branch of its own, or none.")
TEAM = Option("--team", name="agent_teams", kind=FLAG, help="Let the agent lead a team of its CLI.")
SESSION = Option("--session", kind=FLAG, help="Keep the agent for more messages after its first turn.")
QUIET = Option("-q", "--quiet", kind=FLAG, help="Print only the result.")
PLAIN = Option("--plain", kind=FLAG, help="Print plain lines even on a terminal.")
JSON = Option("--json", name="as_json", kind=FLAG, help="Print JSON.")


# --- The commands -------------------------------------------------------------------------------------------

FORKHESTRA = "forkhestra"
"""The program that is ``hocket run``."""

COMMANDS = {
    "run": ("hocket.cli.run:run", "Run a chain of agents and follow it to its end."),
    "spawn": ("hocket.cli.runs:spawn", "Start one agent in the background."),
    "ps": ("hocket.cli.runs:ps", "List runs."),
    "top": ("hocket.cli.top:top", "Show everything that runs on one live screen."),
    "agents": ("hocket.cli.agents:agents", "List the agents that can run here."),
    "chains": ("hocket.cli.chains:chains", "List the chains of the configuration."),
    "show": ("hocket.cli.runs:show", "Show one run in detail."),
    "attach": ("hocket.cli.run:attach", "Watch a run that was started elsewhere, with keys."),
    "logs": ("hocket.cli.runs:logs", "Print the output of a run."),
    "team": ("hocket.cli.team:team", "Show the team that a run leads."),
    "diff": ("hocket.cli.runs:diff", "Show what a run has changed."),
    "wait": ("hocket.cli.runs:wait", "Wait for a run and exit with its code."),
    "send": ("hocket.cli.inbox:send", "Send a message to a running agent."),
    "inbox": ("hocket.cli.inbox:inbox", "List the open questions of agents."),
    "answer": ("hocket.cli.inbox:answer", "Answer a question of an agent."),
    "ask": ("hocket.cli.inbox:ask", "Ask the user a question from inside a run."),
    "import": ("hocket.cli.runs:import_", "Import a session that Hocket did not start."),
    "resume": ("hocket.cli.inbox:resume", "Resume a session or a chain that has ended."),
    "stop": ("hocket.cli.runs:stop", "Stop runs and all their processes."),
    "worktrees": ("hocket.cli.chains:worktrees", "List and remove the git worktrees of chains."),
    "gc": ("hocket.cli.doctor:gc", "Remove old runs from the history."),
    "task": ("hocket.cli.task:task", "Create, show and manage tasks."),
    "handoff": ("hocket.cli.handoff:handoff", "Hand a task to an agent and print its final message."),
    "trust": ("hocket.cli.trust:trust", "Review and approve the agents and settings of a project."),
    "rehearse": ("hocket.cli.rehearse:rehearse", "Rehearse a chain with scripted agents, at no cost."),
    "demo": ("hocket.cli.rehearse:demo", "Run a one-minute tour in a temporary directory."),
    "mcp": ("hocket.cli.mcp:mcp", "Serve MCP, for agents that start other agents."),
    "hook": ("hocket.cli.claude.hook:hook", "Answer a hook of an agent's CLI."),
    "serve": ("hocket.cli.server:serve", "Run the server in the foreground."),
    "server": ("hocket.cli.server:server", "Show or stop the background server."),
    "notify": ("hocket.cli.server:notify", "Test the command that notifies you."),
    "setup": ("hocket.cli.server:setup", "Start the server at login, or set up your own Claude sessions."),
    "doctor": ("hocket.cli.doctor:doctor", "Check the installation and configuration."),
    "completion": ("hocket.cli.completion:completion", "Print a shell completion script."),
    "help": ("hocket.cli.dispatch:help", "Show the help of a command."),
}


def load(name: str) -> Command | Group:
    """Import the module of a command and return what it declares."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    declared = getattr(import_module(module), attribute)
    assert isinstance(declared, Command | Group)  # noqa: S101 - a test loads every row of the table
    return declared


# --- Reading the words of a command line --------------------------------------------------------------------

MAX_WIDTH, MIN_WIDTH = 100, 50
MAX_PORT = 65535
HELP = Option("-h", "--help", kind=FLAG, help="Show this help and exit.")
VERSION = Option("--version", kind=FLAG, help="Show the version and exit.")
ROOT = Group(
    "Run agents and programs on this machine: singly, in chains or in loops.",
    {},
    'hocket run "planner -> builder:3 -> reviewer" -p "Expire old sessions"',
    "hocket ps",
)
"""``hocket`` itself. Its commands are loaded one at a time, by ``load``."""


class HelpRequested(Exception):
    """``-h`` or ``--help`` is among the words."""


class MissingValue(ArgumentError):
    """The last word is an option that takes a value."""

    def __init__(self, option: Option, word: str) -> None:
        super().__init__(f"option {word} needs a value")
        self.option = option


def select(words: list[str]) -> tuple[list[str], Command | Group, list[str]]:
    """The command that the first words name, or the innermost group; before it its names, after it further words."""
    if not words or words[0] not in COMMANDS:
        return [], ROOT, words
    found = load(words[0])
    if isinstance(found, Group) and words[1:] and words[1] in found.commands:
        return words[:2], found.commands[words[1]], words[2:]
    return words[:1], found, words[1:]


def parse(command: Command, words: list[str]) -> dict[str, Any]:
    """The values of all parameters by name. Raises ArgumentError, or HelpRequested."""
    end = words.index("--") if command.passing and "--" in words else len(words)
    own, passed = words[:end], tuple(words[end + 1 :])
    values: dict[str, Any] = {option.name: option.default for option in command.options}
    arguments: list[str] = []
    for option, text in tokens(command, own):
        if option is None:
            arguments.append(text)
        elif option is HELP:
            raise HelpRequested
        elif option.kind == FLAG:
            values[option.name] = True
        else:
            value = _convert(option.kind, text, option.names[-1])
            values[option.name] = (*values[option.name], value) if option.many else value
    values |= _place(command.arguments, arguments)
    return values | {"passed": passed} if command.passing else values


def tokens(command: Command, words: list[str]) -> Iterator[tuple[Option | None, str]]:
    """Each option with its text, which is empty for a flag, and each argument with None, in order."""
    options = {name: option for option in (*command.options, HELP) for name in option.names}
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            yield from ((None, argument) for argument in remaining)
        elif command.is_argument(word):
            yield None, word
        elif word.startswith("--"):
            yield _long(word, options, remaining)
        else:
            yield from _short(word, options, remaining)


def _long(word: str, options: dict[str, Option], remaining: Iterator[str]) -> tuple[Option, str]:
    """``--name``, ``--name value`` or ``--name=value``."""
    name, equals, value = word.partition("=")
    option = options.get(name) or _unknown(name, options)
    if option.kind == FLAG:
        if equals:
            raise ArgumentError(f"option {name} takes no value")
        return option, ""
    return option, value if equals else _next(option, name, remaining)


def _short(word: str, options: dict[str, Option], remaining: Iterator[str]) -> Iterator[tuple[Option, str]]:
    """``-f``, ``-n value``, ``-nvalue``, or several joined: ``-fn value``."""
    for place, letter in enumerate(word[1:], 2):
        option = options.get(f"-{letter}") or _unknown(word if place == 2 else f"-{letter}", options)
        if option.kind != FLAG:
            yield option, word[place:] or _next(option, f"-{letter}", remaining)
            return
        yield option, ""


def _next(option: Option, name: str, remaining: Iterator[str]) -> str:
    value = next(remaining, None)
    if value is None:
        raise MissingValue(option, name)
    return value


def _unknown(name: str, options: dict[str, Option]) -> Option:
    near = suggest(name, list(options)) if name.startswith("--") else ""
    raise ArgumentError(f"unknown option {name}" + (f" (did you mean {near}?)" if near else ""))


def suggest(word: str, names: list[str]) -> str:
    """The names that are spelled like a word, joined by "or"; empty if there are none."""
    from difflib import get_close_matches

    return " or ".join(get_close_matches(word, names, n=2, cutoff=0.6))


def _place(arguments: list[Argument], words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for argument in arguments:
        taken, words = (words, []) if argument.many else (words[:1], words[1:])
        if argument.required and not taken:
            raise ArgumentError(f"missing argument: {argument_usage(argument)}")
        read = tuple(_convert(argument.kind, word, argument.name) for word in taken)
        values[argument.name] = read if argument.many else next(iter(read), None)
    if words:
        raise ArgumentError(f"unexpected argument: {words[0]!r}")
    return values


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    SECONDS: (parse_duration, "use a duration such as 90, 90s, 10m or 2h"),
    DOLLARS: (parse_dollars, "use an amount in USD such as 5 or 0.50"),
    COUNT: (parse_count, "use a whole number from 1"),
    DAYS: (parse_days, "use a number of days such as 30 or 0.5"),
    SIZE: (parse_size, "use a size such as 500MB or 10GB"),
    SINCE: (
        # Only checked: it is relative to the time at which the command runs.
        lambda text: None if parse_since(text, 0.0) is None else text,
        "use a duration such as 30m, 2h or 3d, or a time such as 2026-03-01, 2026-03-01T14:30 or 14:30",
    ),
    PORT: (
        lambda text: int(text) if text.isascii() and text.isdigit() and int(text) <= MAX_PORT else None,
        f"use a port from 0 to {MAX_PORT}",
    ),
}
"""By kind, the parser, which returns None for an invalid text, and what is expected."""


def _convert(kind: Kind, text: str, name: str) -> Any:
    if isinstance(kind, tuple):
        value, expected = text if text in kind else None, f"choose {', '.join(kind)}"
    elif kind in _PARSERS:
        parse_text, expected = _PARSERS[kind]
        value = parse_text(text)
    else:
        return text
    if value is None:
        raise ArgumentError(f"invalid {name}: {text!r} ({expected})")
    return value


def help_text(path: str, command: Command | Group, columns: int) -> str:
    """What ``path --help`` prints on a terminal with so many columns."""
    width = max(min(columns, MAX_WIDTH) - 2, MIN_WIDTH)
    if isinstance(command, Group):
        usage, about, options = "[OPTIONS] COMMAND [ARGS]...", command.help, [VERSION, HELP][command is not ROOT :]
        rows = [(name, summary(one)) for name, one in sorted(command.commands.items())]
        if command is ROOT:
            rows = [(name, text) for name, (_, text) in COMMANDS.items()]
    else:
        usage = " ".join(["[OPTIONS]", *map(argument_usage, command.arguments)])
        about, options, rows = command.function.__doc__ or "", [*command.options, HELP], []
    parts = [f"Usage: {path} {usage}\n", _prose(about, width)]
    described: list[tuple[str, str]] = []
    for one in options:
        value = "|".join(one.kind) if isinstance(one.kind, tuple) else one.metavar
        described.append((", ".join(one.names) + (f" {value}" if value and one.kind != FLAG else ""), one.help))
    parts.append("Options:\n" + _table(described, width))
    if rows:
        parts.append("Commands:\n" + _table(rows, width))
    parts.append("Example:\n" + "".join(f"  {line}\n" for line in command.examples))
    return "\n".join(parts)


def summary(command: Command) -> str:
    """The first sentence of a command's help."""
    first = " ".join((command.function.__doc__ or "").split("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".") + "."


def argument_usage(argument: Argument) -> str:
    """An argument as the usage line shows it."""
    if argument.metavar:
        return argument.metavar
    name = "|".join(argument.kind) if isinstance(argument.kind, tuple) else argument.name.upper()
    return (name if argument.required else f"[{name}]") + ("..." if argument.many else "")


def _prose(text: str, width: int) -> str:
    from textwrap import fill

    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(fill(part, width, initial_indent="  ", subsequent_indent="  ") for part in paragraphs) + "\n"


def _table(rows: list[tuple[str, str]], width: int) -> str:
    """Two columns. A left entry that is too long has a line of its own."""
    from textwrap import wrap

    column = min(max(len(left) for left, _ in rows), 30) + 4
    lines: list[str] = []
    for left, right in rows:
        first, *more = wrap(right, width - column) or [""]
        head = f"  {left}".ljust(column)
        lines += [head + first] if len(head) == column else [head, " " * column + first]
        lines += [" " * column + line for line in more]
    return "\n".join(lines) + "\n"
