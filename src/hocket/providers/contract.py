"""What every provider offers, as types: an agent becomes a command line, and its output becomes events.

No provider touches a file, a clock or a process: what it says is a function of what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hocket.model import Agent, Reason, Spec, Status

State = dict[str, Any]
"""What a reader remembers between two lines: a small JSON value, committed together with the events."""

Said = tuple[str, dict[str, Any]]
"""The type and the data of one event."""

Reader = Callable[[State, str, bytes, int | None], tuple[State, list[Said]]]
"""``(state, "out" or "err", line, its whole size or None) -> (state, events)``. The size is above the line's
length when the line was too long to be read whole. Pure: the state it is given stays as it was."""


class Launch(NamedTuple):
    """How to start an agent: the part of a ``Spec`` that depends on its provider."""

    argv: tuple[str, ...]
    stdin: str
    prompt: str | None


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


class Provider(Protocol):
    """One way to run agents."""

    def launch(
        self,
        agent: Agent,
        step_args: Sequence[str] = (),
        extra_args: Sequence[str] = (),
        prompt: str | None = None,
        env: Mapping[str, str] = ...,
    ) -> Launch: ...

    def reader(self, spec: Spec) -> Reader: ...

    def verdict(self, state: State, exit: Exit, stop_reason: Reason | None) -> tuple[Status, Reason]: ...  # noqa: A002 - the keeper's own word for it

    def result_of(self, tail: bytes) -> str: ...
