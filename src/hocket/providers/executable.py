"""Plain programs. A program gets its arguments and then the prompt as the last one, with nothing inserted.

Each line of its standard output is a ``text`` event, each line of its standard error a ``raw`` event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from hocket.chain.parse import bare_marker, marker_alone, may_matter, next_marker
from hocket.model import RESULT_LIMIT, Agent, Reason, Spec, Status
from hocket.providers.base import (
    Launch,
    LaunchRequest,
    ProcessExit,
    Provider,
    Reader,
    ReaderEvent,
    State,
    TextOutput,
    Verdict,
    exit_verdict,
)
from hocket.providers.claude.privileges import model_of
from hocket.providers.launching import check_argument_prompt, check_arguments, check_prompt, check_total
from hocket.providers.output_lines import line_text, raw_event
from hocket.redaction import NO_SECRETS, Redactor

_HINT = 'set prompt_via = "stdin" for this agent ("promptVia" in forge/chains.json)'


def launch(agent: Agent, request: LaunchRequest) -> Launch:
    """The agent's own arguments, the caller's, then the prompt."""
    via_stdin, prompt = agent.prompt_via == "stdin", request.prompt or None
    if prompt:
        _check_prompt(agent.name, prompt, via_stdin)
    argv = (agent.path, *agent.args, *request.args, *((prompt,) if prompt and not via_stdin else ()))
    check_arguments(agent.name, argv)
    check_total(agent.name, argv, request.env)
    return Launch(argv, "file" if prompt and via_stdin else "empty", prompt, model=model_of(agent, request.model))


def with_prompt(spec: Spec, prompt: str) -> Spec:
    """Deliver the new prompt as the first one was delivered; without a first one there is none."""
    if not spec.prompt:
        return spec
    via_stdin = spec.stdin == "file"
    _check_prompt(spec.agent, prompt, via_stdin)
    argv = spec.argv if via_stdin else (*spec.argv[:-1], *((prompt,) if prompt else ()))
    check_total(spec.agent, argv, spec.env)
    return replace(spec, argv=argv, prompt=prompt or None)


def _check_prompt(agent: str, prompt: str, via_stdin: bool) -> None:
    if via_stdin:
        check_prompt(agent, prompt)
    else:
        check_argument_prompt(agent, prompt, _HINT)


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    """The state has ``marker``, whether it was written, and ``fence``, the code block that is open."""
    # Looking for the marker's bytes first keeps the ordinary line free of any further work.
    needle = bare_marker(spec.marker).encode() if spec.loop else b""

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        line = redactor.line(line, cut=whole_size is not None)
        if stream != "out":
            return state, [raw_event(stream, line, whole_size=whole_size)]
        data = line_text(line, whole_size)
        events: list[ReaderEvent] = [("text", data)]
        if needle and not state.get("marker") and (needle in line or may_matter(data["text"], state.get("fence"))):
            state, found = _find_marker(state, data, spec.marker)
            events += found
        return state, events

    return read


def _find_marker(state: State, data: Mapping[str, Any], marker: str) -> tuple[State, list[ReaderEvent]]:
    # The rest of a line that was cut off makes it something else than the marker.
    line = data["text"] if "oversize" not in data else f"{data['text']}..."
    fence, found = next_marker(line, marker, state.get("fence"))
    rest = {key: value for key, value in state.items() if key != "fence"}
    if found is not None:
        return {**rest, "marker": True}, [("marker", {"line": found})]
    return (rest if fence is None else {**rest, "fence": fence}), []


def last_events(state: State) -> list[ReaderEvent]:
    """A code block that is still open ends with the output: a marker alone in it counts."""
    found = marker_alone(state["fence"]) if state.get("fence") else None
    return [] if found is None else [("marker", {"line": found})]


def verdict(state: State, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's name for it
    del state  # the exit status is all that a plain program reports
    return exit_verdict(exit, stop_reason, (Status.DONE, Reason.EXIT))


def result(tail: bytes) -> str:
    """The last ``RESULT_LIMIT`` bytes, without the rest of a character that was cut in two."""
    kept = tail[-RESULT_LIMIT:]
    if len(tail) >= RESULT_LIMIT:
        start = next((at for at in range(3) if kept[at] & 0xC0 != 0x80), 3)
        kept = kept[start:]
    return kept.decode("utf-8", "replace")


provider = Provider(
    name="executable",
    longest_line=256 * 1024,
    launch=launch,
    with_prompt=with_prompt,
    reader=reader,
    verdict=verdict,
    text_output=TextOutput(result, last_events),
    reports_tokens=False,
)
