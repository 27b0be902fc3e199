"""What every provider offers, as types: an agent becomes a command line, and its output becomes events.

No provider touches a file, a clock or a process: what it says is a function of what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from hocket.config.settings import ClaudeConfig
from hocket.model import Agent, Reason, Spec, Status
from hocket.redaction import Redactor

State = dict[str, Any]
"""What a reader remembers between two lines: a small JSON value, committed together with the events."""

Said = tuple[str, dict[str, Any]]
"""The type and the data of one event."""

Reader = Callable[[State, str, bytes, int | None], tuple[State, list[Said]]]
"""``(state, "out" or "err", line, size or None) -> (state, events)``. A size says that the line was too long to be read
whole: it is the whole line's, and ``line`` only its beginning. Pure: the state it is given stays as it was. Neither the
new state nor an event contains a secret."""

NOTHING: Mapping[str, str] = MappingProxyType({})


class OwnServer(NamedTuple):
    """The MCP server that an agent gets from us."""

    name: str
    rules: tuple[str, ...]
    """Permission to use its tools, one for each."""


class Options(NamedTuple):
    """What a run may be given beyond its agent and its prompt."""

    loop: bool = False
    marker: str = ""
    session: bool = False
    """Input stays open: a turn's end is not the run's."""
    on_question: str = "deny"
    permission_mode: str = ClaudeConfig().permission_mode
    """Where neither the agent nor its alias says."""
    model: str | None = None
    """The same."""
    contract: bool = True
    """Whether an agent in a loop is told of the marker."""
    cross_session: str = ClaudeConfig().cross_session
    """What happens to messages from other sessions of the same CLI."""
    own_branch: bool = False
    """It works in a worktree with a branch of its own, and only what it commits is handed on."""
    servers: Mapping[str, Any] | None = None
    """The only MCP servers it may have, by name, each with its definition; None leaves that to its CLI."""
    own: OwnServer | None = None
    """Ours, beside those."""


class Launch(NamedTuple):
    """How to start an agent: the part of a ``Spec`` that depends on its provider."""

    argv: tuple[str, ...]
    stdin: str
    prompt: str | None
    files: Mapping[str, str] = NOTHING
    env: Mapping[str, str] = NOTHING
    """What is added to the agent's environment."""
    served: bool = False
    """Whether it speaks with our MCP server over its own lines."""


class Wanted(NamedTuple):
    """What an agent's program says, in its output, to an MCP server of ours; answered in its input."""

    id: str
    """What the answer is addressed to."""
    server: str
    message: Any
    """In the words of that protocol; None where the line was too long to be read."""
    withdrawn: bool = False
    """It is no longer waited for; there is nothing else in it then."""


class Exit(Protocol):
    """How a process ended, as its keeper wrote it down."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def stopped(self) -> bool: ...


class Reply(NamedTuple):
    """An answer to a question of an agent's."""

    allow: bool
    text: str | None = None
    """Why not, or what the answer is."""
    always: bool = False
    """Whether the rule that the question suggests is to hold from now on, for this agent's session."""


class Conversation(Protocol):
    """How to talk to agents whose input are lines. Each text is complete, with its line end."""

    def message(self, text: str) -> str: ...

    def answer(self, question: Mapping[str, Any], reply: Reply) -> str: ...

    def interrupt(self, request: str) -> str: ...

    def wanted(self, line: bytes) -> Wanted | None:
        """What a line of its output wants of our MCP server; None for every other line."""

    def reply(self, wanted: str, message: Mapping[str, Any]) -> str:
        """The server's answer to that."""

    def refusal(self, wanted: str, why: str) -> str:
        """That it gets none."""

    def is_over(self, state: State, *, settled: bool) -> bool:
        """Whether all that was asked for is done, so that the input of a run that is no session may end.

        ``settled``: nothing has been said for a while, so what could still begin by itself will not.
        """

    def is_left(self, state: State) -> bool:
        """Whether it is over but for commands that were left in the background, which may never end."""


class Sessions(Protocol):
    """Sessions that a CLI keeps and can continue in a new process."""

    def resumed(self, spec: Spec, session: str, prompt: str) -> Spec:
        """The spec of a run that continues a session with a new prompt."""

    def transcripts(self, env: Mapping[str, str], cwd: str, session: str) -> Sequence[str]:
        """Paths where the transcript of a session may be, most likely first."""


class Program(NamedTuple):
    """The program of a CLI, which a bare name in a chain runs without any definition."""

    name: str
    label: str
    """How messages call it."""
    variable: str
    """The environment variable that names another program to run instead."""
    install: str
    """How to install it, as a hint for users."""


class Provider(Protocol):
    """One way to run agents."""

    @property
    def longest_line(self) -> int:
        """Bytes up to which a line is read whole."""

    @property
    def program(self) -> Program | None: ...

    @property
    def conversation(self) -> Conversation | None: ...

    @property
    def sessions(self) -> Sessions | None: ...

    def launch(
        self,
        agent: Agent,
        step_args: Sequence[str] = (),
        extra_args: Sequence[str] = (),
        prompt: str | None = None,
        env: Mapping[str, str] = ...,
        options: Options = ...,
    ) -> Launch: ...

    def prompted(self, spec: Spec, prompt: str) -> Spec:
        """The same start with another prompt, where it has one; an error where that cannot be delivered."""

    def reader(self, spec: Spec, redactor: Redactor = ...) -> Reader: ...

    def last_said(self, state: State) -> list[Said]:
        """What only the end of the output tells."""

    def verdict(self, state: State, exit: Exit, stop_reason: Reason | None) -> tuple[Status, Reason]: ...  # noqa: A002 - the keeper's own word for it

    def is_transient(self, state: State) -> bool:
        """Whether what made this run fail lies outside and passes by itself: an overload, a broken connection."""

    def unpriced(self, state: State) -> int:
        """How many tokens it has used since it last told what it costs; 0 where it never did."""

    def within(self, argv: Sequence[str], usd: float) -> tuple[str, ...]:
        """The command line of an agent that may spend so much; as it is where its program knows no such bound."""

    def result_of(self, tail: Callable[[], bytes]) -> str | None:
        """A run's last words by the end of its output, which is read for it; None where its events have told them."""
