"""The commands and how each may be called: options and arguments declared once, as values."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hocket.config import ISOLATION, ON_LOST, ON_QUESTION
from hocket.errors import UsageError

Kind = str | tuple[str, ...]
"""One of the kinds below, or the values to choose from."""
TEXT, FLAG, SECONDS, PORT, DOLLARS, COUNT, SINCE = "text", "flag", "seconds", "port", "dollars", "count", "since"
AGENTS = "agents"
"""What a shell completes a word to."""


class ArgumentError(UsageError):
    """The arguments of a command do not fit its usage. Where it is reported, a hint points to the command's help."""


class Option:
    """An option, such as ``Option("-p", "--prompt", ...)``, passed to the function as ``name``.

    With ``many`` it may be repeated, and its value is a tuple.
    """

    __slots__ = ("completes", "default", "help", "kind", "many", "metavar", "name", "names", "show_default")

    def __init__(
        self,
        *names: str,
        help: str,  # noqa: A002 - the usual name in parsers
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
    """A positional argument, or with ``many`` all remaining ones. ``metavar`` stands in the usage line as it is."""

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
    """A function with its options and arguments. Its help is the function's docstring."""

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
    """Declare a function as a command. Examples are required."""
    return lambda function: Command(function, parameters, examples, passing, prose)


# --- Options and arguments shared by several commands -------------------------------------------------------

REF = Argument("ref", "RUN")
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

FORKHESTRA = "forkhestra"
"""The program that is ``hocket run``."""

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


def load(name: str) -> Command | Group:
    """Import the module of a command and return what it declares."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    declared = getattr(import_module(module), attribute)
    assert isinstance(declared, Command | Group)  # noqa: S101 - a test loads every row of the table
    return declared
