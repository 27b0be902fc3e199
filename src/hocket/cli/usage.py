"""The commands and how each may be called: options and arguments declared once, as values."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from hocket.config import ISOLATION, ON_LOST, ON_QUESTION
from hocket.errors import UsageError

Kind = str | tuple[str, ...]
"""One of the kinds below, or the values to choose from."""
TEXT, FLAG, SECONDS, PORT, DOLLARS, COUNT, SINCE = "text", "flag", "seconds", "port", "dollars", "count", "since"
AGENTS = "agents"
"""Completed to the addresses of agents."""
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

REF = Argument("ref", "RUN")
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
    "agents": ("hocket.cli.agents:agents", "List the agents that can run here."),
    "chains": ("hocket.cli.chains:chains", "List the chains of the configuration."),
    "show": ("hocket.cli.runs:show", "Show one run in detail."),
    "logs": ("hocket.cli.runs:logs", "Print the output of a run."),
    "diff": ("hocket.cli.runs:diff", "Show what a run has changed."),
    "wait": ("hocket.cli.runs:wait", "Wait for a run and exit with its code."),
    "send": ("hocket.cli.inbox:send", "Send a message to a running agent."),
    "inbox": ("hocket.cli.inbox:inbox", "List the open questions of agents."),
    "answer": ("hocket.cli.inbox:answer", "Answer a question of an agent."),
    "ask": ("hocket.cli.inbox:ask", "Ask the user a question from inside a run."),
    "resume": ("hocket.cli.inbox:resume", "Resume a session or a chain that has ended."),
    "stop": ("hocket.cli.runs:stop", "Stop runs and all their processes."),
    "worktrees": ("hocket.cli.chains:worktrees", "List and remove the git worktrees of chains."),
    "task": ("hocket.cli.task:task", "Create, show and manage tasks."),
    "handoff": ("hocket.cli.handoff:handoff", "Hand a task to an agent and print its final message."),
    "trust": ("hocket.cli.trust:trust", "Review and approve the agents and settings of a project."),
    "rehearse": ("hocket.cli.rehearse:rehearse", "Rehearse a chain with scripted agents, at no cost."),
    "demo": ("hocket.cli.rehearse:demo", "Run a one-minute tour in a temporary directory."),
    "mcp": ("hocket.cli.mcp:mcp", "Serve MCP, for agents that start other agents."),
    "serve": ("hocket.cli.server:serve", "Run the server in the foreground."),
    "server": ("hocket.cli.server:server", "Show or stop the background server."),
    "notify": ("hocket.cli.server:notify", "Test the command that notifies you."),
    "setup": ("hocket.cli.server:setup", "Start the server at login."),
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
