"""The Cursor CLI: ``cursor-agent -p --output-format stream-json`` and its JSON lines, as its documentation has them.

It reports neither cost nor tokens. A failed run has no result: the reason is on standard error.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from hocket.config import BYPASS
from hocket.config.settings import is_wider
from hocket.errors import UsageError
from hocket.model import Agent, Reason, Spec, Status
from hocket.providers.base import (
    Launch,
    LaunchRequest,
    ProcessExit,
    Program,
    Provider,
    Reader,
    ReaderEvent,
    Sessions,
    State,
    Verdict,
    reported_verdict,
)
from hocket.providers.definition_rules import definition_rules
from hocket.providers.launching import (
    CONTINUE,
    DEFAULT_PROMPT,
    check_argument_prompt,
    check_arguments,
    check_total,
    given_model,
    prompt_or,
)
from hocket.providers.output_lines import (
    cut,
    decoded,
    dict_in,
    kept_input,
    list_in,
    raw_event,
    session_named,
    text_in,
    turn_ended,
)
from hocket.providers.text_blocks import TextBlocks, block_key, message_key
from hocket.redaction import NO_SECRETS, Redactor

PROGRAM = Program(
    "cursor-agent",
    "the Cursor CLI",
    "HOCKET_CURSOR_AGENT",
    "install it as cursor.com/docs/cli/installation says",
)
_STREAM = ("-p", "--output-format", "stream-json", "--stream-partial-output")
_RESUME = "--resume"
_SET_BY_MODE = ("-f", "--force", "--yolo", "--mode", "--plan")
_SET_BY_HOCKET = ("-p", "--print", "--output-format", _RESUME, "--continue", "-c", "--cloud", "-b", "--background")
_SHORT = re.compile("-[a-z]+", re.IGNORECASE)
_TASK = "\n\n# Task\n\n"
_OUTPUT_LIMIT = 16 * 1024
_VERDICTS = {"done": (Status.DONE, Reason.EXIT), "failed": (Status.FAILED, Reason.ERROR)}


# --- Launching ----------------------------------------------------------------------------------------------


def launch(agent: Agent, request: LaunchRequest) -> Launch:
    """The prompt is the last argument. What the user gives comes after our own choices, so that it overrides them."""
    rules = definition_rules(agent, request, "Cursor")
    given = (*agent.args, *request.args)
    _check_given(agent.name, given)
    prompt = prompt_or(DEFAULT_PROMPT, request.prompt)
    ours = (*_mode_arguments(rules.mode), *(("--model", rules.model) if rules.model else ()))
    argv = (agent.path, *ours, *given, *_STREAM)
    argv = (*argv, _argument(agent.name, rules.instructions and rules.instructions + _TASK, prompt))
    check_arguments(agent.name, argv)
    check_total(agent.name, argv, request.env)
    model = given_model(given, "--model", "-m") or rules.model
    return Launch(argv, "empty", prompt, notices=rules.notices, model=model)


def _mode_arguments(mode: str) -> tuple[str, ...]:
    """Without --force it does by itself only what the user's own Cursor configuration allows; no one can be asked."""
    if mode == BYPASS:
        return ("--force",)
    if is_wider(mode, "default"):
        return ()
    return ("--mode", "plan" if mode == "plan" else "ask")


def _check_given(agent: str, given: Sequence[str]) -> None:
    """Raise for arguments that contradict the permission mode of the record, or take the run out of our hands."""
    for argument in given:
        flag = argument.partition("=")[0]
        flags = {f"-{letter}" for letter in flag[1:]} if _SHORT.fullmatch(flag) else {flag}
        if flags.intersection(_SET_BY_MODE):
            raise UsageError(f"{agent}: {flag} cannot be passed on to Cursor", "set permission_mode instead")
        if flags.intersection(_SET_BY_HOCKET):
            raise UsageError(f"{agent}: {flag} cannot be passed on: Hocket sets it", "hocket run AGENT")


def _argument(agent: str, before: str, prompt: str) -> str:
    """The prompt as an argument: with a line end first, it is neither an option nor the name of a subcommand."""
    return check_argument_prompt(agent, f"\n{before}{prompt}", "name a file in the prompt instead of its content")


def with_prompt(spec: Spec, prompt: str) -> Spec:
    prompt, before = prompt_or(DEFAULT_PROMPT, prompt), spec.argv[-1][1:].removesuffix(spec.prompt or "")
    return replace(spec, argv=(*spec.argv[:-1], _argument(spec.agent, before, prompt)), prompt=prompt)


def resume(spec: Spec, session: str, prompt: str) -> Spec:
    """Continue a session, which knows its instructions already."""
    begin = spec.argv[: -len(_STREAM) - 1]
    begin = begin[:-2] if begin[-2:-1] == (_RESUME,) else begin
    prompt = prompt_or(CONTINUE, prompt)
    argv = (*begin, _RESUME, session, *_STREAM, _argument(spec.agent, "", prompt))
    return replace(spec, argv=argv, prompt=prompt)


# --- Reading ------------------------------------------------------------------------------------------------


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    """The state has ``outcome``, done or failed, once there is a result; ``message``, the number of messages that are
    whole; ``said`` and ``last``, length and checksum of all their text and of the last one; ``streamed``, whether
    messages arrive in parts; and what ``text_blocks`` remembers."""
    blocks = TextBlocks(spec, redactor)

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        masked = redactor.line(line, cut=whole_size is not None)
        value = decoded(masked) if stream == "out" and whole_size is None else None
        # A secret may continue in the next part of a message, so its text is masked together with that.
        given, own = value if masked is line else decoded(line), dict(state)
        found = _read_line(blocks, own, spec, value, given or {}) if value else None
        if found is None:
            return state, [raw_event(stream, masked, text_in(value, "type"), whole_size=whole_size)]
        return own, found

    return read


def _read_line(
    blocks: TextBlocks, state: State, spec: Spec, line: dict[str, Any], given: dict[str, Any]
) -> list[ReaderEvent] | None:
    """The events of a line, which is ``given`` before it is masked; None if it is not understood. Changes the state."""
    match text_in(line, "type"), text_in(line, "subtype"):
        case "system", "init":
            session = session_named(text_in(line, "session_id"), model=text_in(line, "model") or None, cwd=spec.cwd)
            return [*session, ("turn.started", {"turn": 1, "origin": None})]
        case "user", _:
            return []  # the prompt
        case "assistant", _:
            is_part = "timestamp_ms" in line and "model_call_id" not in line
            return _read_part(blocks, state, given) if is_part else _read_message(blocks, state, line)
        case "thinking", kind:
            text = text_in(line, "text")
            return [("thinking", cut(text))] if text and kind != "delta" else []
        case "tool_call", "started" | "completed" as phase:
            return _read_tool(line, phase)
        case "result", _:
            return _read_result(blocks, state, line)
    return None


def _read_part(blocks: TextBlocks, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    state["streamed"] = True
    return blocks.part(state, block_key(_key(state), 0), _text(line), {})


def _read_message(blocks: TextBlocks, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """A whole message: what its parts have not told. The last one may repeat all others before its own text."""
    text, said = _text(line), state.get("said", [0, 0])
    if state.get("streamed") and not blocks.has_begun(state, _key(state), text):
        text = text[said[0] :] if _mark(text[: said[0]]) == said else text
        if not text or _mark(text) == state.get("last"):
            return []
    events = blocks.whole(state, _key(state), text, {})
    state["message"], state["last"] = state.get("message", 0) + 1, _mark(text)
    state["said"] = _mark(text, said)
    return events


def _read_tool(line: dict[str, Any], phase: str) -> list[ReaderEvent] | None:
    calls = dict_in(line, "tool_call").items()
    name, call = next(((name, call) for name, call in calls if isinstance(call, dict)), ("", None))
    if call is None:
        return None
    tool = {"id": text_in(line, "call_id"), "name": text_in(call, "name") or name.removesuffix("ToolCall")}
    if phase == "started":
        return [("tool.started", {**tool, **kept_input(dict_in(call, "args") or call)})]
    result = dict_in(call, "result")
    told = dict_in(result, "success")
    output = text_in(told, "stdout") or text_in(told, "content") or json.dumps(result)
    finished = ("tool.finished", {**tool, "error": "success" not in result, **cut(output, _OUTPUT_LIMIT)})
    if "rejected" not in result:
        return [finished]
    about = {"tool": tool["name"], "id": tool["id"], "reason": text_in(result["rejected"], "reason")}
    return [("notice", {"kind": "permission_denied", "text": f"{tool['name']} was not allowed", **about}), finished]


def _read_result(blocks: TextBlocks, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """The result has the texts of all messages; that of the run is the last one, as for other CLIs."""
    text, last = text_in(line, "result"), state.get("last", [0, 0])
    final = text[len(text) - last[0] :] if last[0] else text
    is_error = line.get("is_error") is True
    state["outcome"] = "failed" if is_error else "done"
    result = cut(final if _mark(final) == last else text)["text"]
    events = blocks.flush(state, "", {}) + blocks.result(state, text)
    return [*events, turn_ended(None, result or "the run failed") if is_error else turn_ended(result, None)]


def _text(line: dict[str, Any]) -> str:
    return "".join(text_in(part, "text") for part in list_in(dict_in(line, "message"), "content"))


def _key(state: State) -> str:
    """Of the message that arrives now."""
    return message_key("", str(state.get("message", 0)))


def _mark(text: str, before: Sequence[int] = (0, 0)) -> list[int]:
    """What is remembered of a text, to recognise it: its length and checksum, added to those of the text before it."""
    return [before[0] + len(text), zlib.crc32(text.encode("utf-8", "replace"), before[1])]


# --- Judging ------------------------------------------------------------------------------------------------


def verdict(state: State, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's name for it
    """By the result, else by the exit."""
    return reported_verdict(_VERDICTS.get(state.get("outcome", "")), exit, stop_reason)


provider = Provider(
    name="cursor",
    program=PROGRAM,
    longest_line=16 * 1024 * 1024,
    launch=launch,
    with_prompt=with_prompt,
    reader=reader,
    verdict=verdict,
    sessions=Sessions(resume),
    reports_tokens=False,
)
