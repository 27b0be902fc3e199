"""Plain programs: arguments in, lines out.

A program gets its arguments and then the prompt as the last one, with nothing inserted. Each line of its
standard output is something it says; its standard error is kept as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hocket.chain.parse import bare_marker, marker_alone, may_matter, next_marker
from hocket.errors import PromptError
from hocket.model import RESULT_LIMIT, Agent, Reason, Spec, Status
from hocket.providers.base import (
    NOTHING,
    Conversation,
    Exit,
    Launch,
    Options,
    Program,
    Reader,
    Said,
    Sessions,
    State,
)
from hocket.providers.limits import STDIN_PROMPT_LIMIT, bytes_of, check_argument, check_total
from hocket.redaction import NO_SECRETS, Redactor

PROMPT_LIMIT = 64 * 1024
"""Bytes of a prompt in an argument. Linux refuses one argument of 128 KiB; half of it is safe everywhere."""

longest_line = 256 * 1024
program: Program | None = None
conversation: Conversation | None = None
sessions: Sessions | None = None

_STREAM_NAMES = {"out": "stdout", "err": "stderr"}


# --- Starting -----------------------------------------------------------------------------------------------


def launch(
    agent: Agent,
    step_args: Sequence[str] = (),
    extra_args: Sequence[str] = (),
    prompt: str | None = None,
    env: Mapping[str, str] = NOTHING,
    options: Options = Options(),  # noqa: B008 - a tuple, which nobody can change
) -> Launch:
    """The command line of one start: the agent's own arguments, the step's, the caller's, then the prompt."""
    del options  # a plain program is told nothing about the run it is in
    arguments = [agent.path, *agent.args, *step_args, *extra_args]
    via_stdin = agent.prompt_via == "stdin"
    if prompt:
        _check_prompt(agent.name, prompt, via_stdin)
    if prompt and not via_stdin:
        arguments.append(prompt)
    for argument in arguments:
        check_argument(agent.name, argument)
    check_total(agent.name, arguments, env)
    return Launch(tuple(arguments), "file" if prompt and via_stdin else "empty", prompt or None)


def prompted(spec: Spec, prompt: str) -> Spec:
    """The same start with another prompt: by the way that the first one came."""
    if not spec.prompt:
        return spec
    via_stdin = spec.stdin == "file"
    _check_prompt(spec.agent, prompt, via_stdin)
    # An empty prompt is none, and none is no argument.
    last = (prompt,) if prompt else ()
    argv = spec.argv if via_stdin else (*spec.argv[:-1], *last)
    check_total(spec.agent, argv, spec.env)
    return replace(spec, argv=argv, prompt=prompt or None)


def _check_prompt(agent: str, prompt: str, via_stdin: bool) -> None:
    size = len(bytes_of(prompt, f"the prompt for {agent}", PromptError))
    limit = STDIN_PROMPT_LIMIT if via_stdin else PROMPT_LIMIT
    if size > limit:
        raise PromptError(
            f"the prompt for {agent} has {size} bytes; {_way(via_stdin)} takes at most {limit // 1024} KiB",
            None if via_stdin else 'set prompt_via = "stdin" for this agent ("promptVia" in forge/chains.json)',
        )
    if "\0" in prompt and not via_stdin:
        raise PromptError(f"the prompt for {agent} contains a NUL character, which no argument can carry")


def _way(via_stdin: bool) -> str:
    return "standard input" if via_stdin else "an argument"


# --- Reading ------------------------------------------------------------------------------------------------


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    """The pure function that turns this run's lines into events."""
    # Looking for the marker's bytes first keeps the ordinary line free of any further work.
    needle = bare_marker(spec.marker).encode() if spec.loop else b""

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[Said]]:
        line = redactor.line(_without_newline(line), cut=whole_size is not None)
        text = line[:RESULT_LIMIT].decode("utf-8", "replace")
        data: dict[str, Any] = {"text": text}
        if len(line) > RESULT_LIMIT or whole_size is not None:
            data |= {"oversize": True, "bytes": whole_size or len(line)}
        if stream != "out":
            return state, [("raw", {"stream": _STREAM_NAMES[stream], **data})]
        if not needle or state.get("marker") or not (needle in line or may_matter(text, state.get("fence"))):
            return state, [("text", data)]
        state, said = _looked_for_marker(state, data, spec.marker)
        return state, [("text", data), *said]

    return read


def _without_newline(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _looked_for_marker(state: State, data: Mapping[str, Any], marker: str) -> tuple[State, list[Said]]:
    # What was cut off a line that is too long can only be something else.
    line = data["text"] if "oversize" not in data else f"{data['text']}..."
    fence, found = next_marker(line, marker, state.get("fence"))
    rest = {key: value for key, value in state.items() if key != "fence"}
    if found is not None:
        return {**rest, "marker": True}, [("marker", {"line": found})]
    return (rest if fence is None else {**rest, "fence": fence}), []


def last_said(state: State) -> list[Said]:
    """A block of code that nobody closed ends with the output: alone in there, the marker was said."""
    found = marker_alone(state["fence"]) if state.get("fence") else None
    return [] if found is None else [("marker", {"line": found})]


# --- Judging ------------------------------------------------------------------------------------------------


def verdict(state: State, exit: Exit, stop_reason: Reason | None) -> tuple[Status, Reason]:  # noqa: A002 - the keeper's own word for it
    """How the run ended, and why. What ended by itself just before our stop is judged by its own end."""
    del state  # a plain program says nothing about its success but its exit status
    if exit.error is not None:
        return Status.FAILED, Reason.START_FAILED
    if exit.stopped:
        reason = stop_reason or Reason.STOPPED
        return (Status.STOPPED if reason is Reason.STOPPED else Status.FAILED), reason
    if exit.signal is not None:
        return Status.FAILED, Reason.SIGNAL
    return (Status.DONE if exit.code == 0 else Status.FAILED), Reason.EXIT


def is_transient(state: State) -> bool:
    """Nobody knows why a plain program failed."""
    del state
    return False


def unpriced(state: State) -> int:
    """A plain program tells of neither tokens nor costs."""
    del state
    return 0


def within(argv: Sequence[str], usd: float) -> tuple[str, ...]:
    """A plain program is told nothing about money."""
    del usd
    return tuple(argv)


def result_of(tail: Callable[[], bytes]) -> str:
    """A run's last words: the end of its standard output, of which ``tail`` reads at least the last 64 KiB."""
    read = tail()
    kept = read[-RESULT_LIMIT:]
    if len(read) >= RESULT_LIMIT:
        kept = _from_a_whole_character(kept)
    return kept.decode("utf-8", "replace")


def _from_a_whole_character(content: bytes) -> bytes:
    """Without the rest of a character that was cut in two."""
    start = 0
    while start < 3 and start < len(content) and content[start] & 0xC0 == 0x80:
        start += 1
    return content[start:]
