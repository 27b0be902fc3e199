"""Every command by name, how each may be called (its options and arguments as plain values, written once), and a plain
usage read by that without a framework: importing one takes longer than most commands do.

What ``read`` reads is certain to mean the same to the framework. Whatever is not plain (help, a mistake, a value that
does not fit, an option given twice or shortened, letters run together) is left to it: ``read`` says None, and so every
message comes from one place. ``commands`` builds the framework's commands of what is declared here. One module, for
every command loads all of it, and finding another takes as long as reading a usage does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from hocket.config import ISOLATION, ON_LOST, ON_QUESTION

Kind = str | tuple[str, ...]
"""One of the names below, or the words to choose from."""
Values = dict[str, Any]

TEXT, FLAG, SECONDS, PORT, DOLLARS, COUNT, SINCE = "text", "flag", "seconds", "port", "dollars", "count", "since"
AGENTS = "agents"
"""What a shell can complete a word to."""


class Option:
    """One option: ``Option("-p", "--prompt", ...)``. Its value goes by the last of its names, or by ``name``.

    With ``many`` it may be given several times, and its value is a tuple.
    """

    __slots__ = ("completes", "default", "help", "kind", "many", "metavar", "name", "names", "show_default")

    def __init__(
        self,
        *names: str,
        help: str,  # noqa: A002 - what the framework calls it, too
        kind: Kind = TEXT,
        metavar: str | None = None,
        name: str | None = None,
        default: Any = None,
        show_default: bool = False,
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
        self.show_default = show_default


class Argument:
    """One word of the command line, or with ``many`` all that are left."""

    __slots__ = ("completes", "kind", "many", "metavar", "name", "required")

    def __init__(
        self,
        name: str,
        metavar: str | None = None,
        *,
        many: bool = False,
        required: bool = True,
        kind: Kind = TEXT,
        completes: str | None = None,
    ) -> None:
        self.name = name
        self.metavar = metavar
        self.many = many
        self.required = required
        self.kind = kind
        self.completes = completes


class Command:
    """A function with all that may be given to it. Its help is the function's docstring."""

    __slots__ = ("arguments", "examples", "function", "options", "passing", "prose")

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
        """What stands behind ``--`` is the parameter ``passed``; an arrow that stands alone is a word of the chain."""
        self.prose = prose
        """A word of it may be a text that begins with a dash, such as a list: what has a space in it is no option."""

    def is_word(self, word: str) -> bool:
        """Whether a word that begins with a dash is none of the options."""
        if self.passing and word.startswith("->"):
            return True
        return self.prose and any(letter.isspace() for letter in word.partition("=")[0])


class Group:
    """A command that has commands of its own."""

    __slots__ = ("commands", "examples", "help")

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
    """Makes a command of a function; its example lines are not optional."""
    return lambda function: Command(function, parameters, examples, passing, prose)


def split_passed(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before ``--`` and what is passed on to the agent."""
    if "--" not in words:
        return words, ()
    place = words.index("--")
    return words[:place], tuple(words[place + 1 :])


# --- What several commands have -----------------------------------------------------------------------------

REF = Argument("ref")
CHAIN_WORDS = Argument("words", "[CHAIN] [NAME=value]... [-- ARGS]", many=True, required=False, completes=AGENTS)
PROMPT = Option("-p", "--prompt", metavar="TEXT", help='What to do; "-" reads standard input.')
PROMPT_FILE = Option("--prompt-file", metavar="FILE", help="Read the prompt from a file, relative to --cwd.")
CWD = Option("--cwd", metavar="DIR", help="Work in this directory.")
UNTIL = Option("--until", metavar="CMD", help="A step counts as done only when this shell command succeeds.")
TIMEOUT = Option("--timeout", kind=SECONDS, metavar="TIME", help="End it after so long: 90, 90s, 10m, 2h.")
MARKER = Option("--marker", metavar="TEXT", help="The line by which an agent ends its loop.")
ASKING = Option(
    "--on-question",
    kind=ON_QUESTION,
    help="When an agent asks: refuse, wait for an answer, or end it. Else the configuration says, or who watches.",
)
SPENDING = (
    Option("--budget", name="budget_usd", kind=DOLLARS, metavar="USD", help="End it when all of it has cost so much."),
    Option("--budget-tokens", kind=COUNT, metavar="N", help="End it when all of it has used so many tokens."),
    Option("--idle-timeout", kind=SECONDS, metavar="TIME", help="End it when an agent says nothing for so long."),
)
"""How far any run may go."""
BOUNDS = (
    *SPENDING,
    Option("--max-failures", name="failures", kind=COUNT, metavar="N", help="End a loop after N failures in a row."),
    Option("--no-progress", kind=COUNT, metavar="N", help="End a loop after N passes in a row that changed nothing."),
    Option("--gate-timeout", kind=SECONDS, metavar="TIME", help="How long the gate may take; without it 10m."),
    Option("--on-lost", kind=ON_LOST, help="When nobody knows how a pass ended: leave it to you, or try again."),
)
"""How far a chain may go."""
ISOLATED = Option(
    "--isolation", kind=ISOLATION, help="Give each step a git worktree and a branch of its own, or none of them."
)
SESSION = Option("--session", kind=FLAG, help="It stays for more messages after its first turn.")
QUIET = Option("-q", "--quiet", kind=FLAG, help="Print the result alone.")
PLAIN = Option("--plain", kind=FLAG, help="Append-only lines, also on a terminal.")
JSON = Option("--json", name="as_json", kind=FLAG, help="Write JSON for programs.")


# --- The commands -------------------------------------------------------------------------------------------

BROKEN_PIPE = 141
FORKHESTRA = "forkhestra"
"""The other program of ours: ``run`` and nothing else."""

COMMANDS = {
    "run": ("hocket.cli.run:run", "Run a chain and watch it to its end."),
    "spawn": ("hocket.cli.runs:spawn", "Start one agent and come back at once."),
    "ps": ("hocket.cli.runs:ps", "List runs."),
    "agents": ("hocket.cli.agents:agents", "List the agents that can run here, and why."),
    "chains": ("hocket.cli.chains:chains", "List the chains that have a name here."),
    "show": ("hocket.cli.runs:show", "Show everything about one run."),
    "logs": ("hocket.cli.logs:logs", "Print what a run said."),
    "wait": ("hocket.cli.runs:wait", "Wait for a run; ends with its exit code."),
    "send": ("hocket.cli.talk:send", "Say something to a run that listens."),
    "inbox": ("hocket.cli.inbox:inbox", "List what agents ask, and how to answer."),
    "answer": ("hocket.cli.talk:answer", "Answer what a run asks."),
    "ask": ("hocket.cli.inbox:ask", "Ask people something, from inside a run."),
    "resume": ("hocket.cli.talk:resume", "Go on with a run that has ended: a session, or a chain."),
    "stop": ("hocket.cli.runs:stop", "Stop runs with everything they started."),
    "worktrees": ("hocket.cli.worktrees:worktrees", "List what chains have left in worktrees, and tidy up."),
    "task": ("hocket.cli.task:task", "Say what is wanted, and see what came of it."),
    "handoff": ("hocket.cli.handoff:handoff", "Hand a task to an agent; prints its final message alone."),
    "trust": ("hocket.cli.trust:trust", "Approve what a project brings along, by its content."),
    "rehearse": ("hocket.cli.rehearse:rehearse", "Play a chain through by a script, with no account and no cost."),
    "demo": ("hocket.cli.demo:demo", "A tour of a minute, in a folder of its own."),
    "mcp": ("hocket.cli.mcp:mcp", "The MCP server, for agents that start others."),
    "serve": ("hocket.cli.server:serve", "Run the server in the foreground."),
    "server": ("hocket.cli.server:server", "Look at the background server, or stop it."),
    "setup": ("hocket.cli.setup:setup", "Have the server start when you log in."),
    "doctor": ("hocket.cli.doctor:doctor", "Check that Hocket can work here."),
    "completion": ("hocket.cli.completion:completion", "Print the completion script of a shell."),
}


def declared(target: str) -> object:
    """The command, or the group of them, behind ``module:attribute``."""
    module, _, attribute = target.partition(":")
    __import__(module)  # importlib would have to be imported itself
    return getattr(sys.modules[module], attribute)


# --- Reading a plain usage ----------------------------------------------------------------------------------


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
    if kind == SINCE:
        from hocket.cli.format import since_of

        return None if since_of(text, 0.0) is None else text
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
