"""How a command may be called: its options and arguments as plain values, written once.

``commands`` builds the framework's commands of them, with help, completion and every message about a wrong usage;
``quick`` reads a plain usage by them without any framework. No parsing here, and nothing that costs time to import.
"""

from __future__ import annotations

from hocket.config import ISOLATION, ON_LOST, ON_QUESTION

TYPE_CHECKING = False  # `typing` would cost the hot path more than all of this; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kind = str | tuple[str, ...]
    """One of the names below, or the words to choose from."""

TEXT, FLAG, SECONDS, PORT, DOLLARS, COUNT = "text", "flag", "seconds", "port", "dollars", "count"
AGENTS = "agents"
"""What a shell can complete a word to."""


class Option:
    """One option: ``Option("-p", "--prompt", ...)``. Its value goes by the last of its names, or by ``name``.

    With ``many`` it may be given several times, and its value is a tuple.
    """

    __slots__ = ("default", "help", "kind", "many", "metavar", "name", "names", "show_default")

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
    ) -> None:
        self.names = names
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

    __slots__ = ("arguments", "examples", "function", "options", "passing", "prose", "quick")

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: tuple[Option | Argument, ...],
        examples: tuple[str, ...],
        passing: bool = False,
        quick: bool = False,
        prose: bool = False,
    ) -> None:
        self.function = function
        self.options = [one for one in parameters if isinstance(one, Option)]
        self.arguments = [one for one in parameters if isinstance(one, Argument)]
        self.examples = examples
        self.passing = passing
        """What stands behind ``--`` is the parameter ``passed``; an arrow that stands alone is a word of the chain."""
        self.quick = quick
        """It asks the server and is done: a plain usage of it needs no framework and leaves no loose ends."""
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
    quick: bool = False,
    prose: bool = False,
) -> Callable[[Callable[..., Any]], Command]:
    """Makes a command of a function; its example lines are not optional."""
    return lambda function: Command(function, parameters, examples, passing, quick, prose)


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
