"""The Codex CLI: ``codex exec --json`` in, its JSON lines out. No money is reported, only tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hocket.chain.parse import Fence, marker_alone, next_marker
from hocket.config import BYPASS
from hocket.config.settings import is_wider
from hocket.errors import PromptError, UsageError
from hocket.model import Agent, Reason, Spec, Status
from hocket.providers.base import NOTHING, Conversation, Exit, Launch, Options, Program, Reader, Said, State
from hocket.providers.instructions import step_instructions
from hocket.providers.json_values import cut, decoded, dict_in, kept_input, number_in, text_in
from hocket.providers.limits import STDIN_PROMPT_LIMIT, bytes_of, check_argument, check_total
from hocket.providers.raw_output import raw_event
from hocket.redaction import NO_SECRETS, Redactor

program = Program("codex", "the Codex CLI", "HOCKET_CODEX", "install Codex: npm install -g @openai/codex")
conversation: Conversation | None = None
longest_line = 16 * 1024 * 1024

_DEFAULT_PROMPT = "Begin: do what your instructions describe."
_CONTINUE = "Continue where you stopped."
_PROMPT_FROM_STDIN = "-"
_OUTPUT_LIMIT = 16 * 1024
_RATE_LIMIT = re.compile(r"\b429\b|usage limit|rate limit", re.IGNORECASE)
_TRANSIENT = re.compile(
    r"high demand|stream disconnected|status 5\d\d|timed? ?out|error sending request", re.IGNORECASE
)
_TOOLS = {"command_execution": "command", "mcp_tool_call": "tool", "web_search": "query", "file_change": "changes"}
"""Items that are tool calls, with the key of what they do."""


# --- Starting -----------------------------------------------------------------------------------------------


def launch(
    agent: Agent,
    step_args: Sequence[str] = (),
    extra_args: Sequence[str] = (),
    prompt: str | None = None,
    env: Mapping[str, str] = NOTHING,
    options: Options = Options(),  # noqa: B008 - immutable
) -> Launch:
    """The command line of one start. Settings are ``-c`` overrides, which the user's own arguments can override."""
    if agent.allowed_tools:
        raise UsageError(f"{agent.name}: Codex has no allowed_tools", "remove it, or set permission_mode")
    instructions = step_instructions(options)
    settings = {
        "sandbox_mode": _sandbox(agent.permission_mode or options.permission_mode),
        **({"model": agent.model} if agent.model else {}),
        **({"developer_instructions": instructions} if instructions else {}),
    }
    ours = [word for key, value in settings.items() for word in ("-c", f"{key}={json.dumps(value)}")]
    given = (*agent.args, *step_args, *extra_args)
    argv = (agent.path, "exec", "--json", "--skip-git-repo-check", *ours, *given, _PROMPT_FROM_STDIN)
    for argument in argv:
        check_argument(agent.name, argument)
    check_total(agent.name, argv, env)
    return Launch(argv, "file", _checked_prompt(agent.name, prompt))


def _sandbox(mode: str) -> str:
    """The sandbox for a permission mode. In a mode that would ask before an edit, nothing can be written."""
    if mode == BYPASS:
        return "danger-full-access"
    return "workspace-write" if is_wider(mode, "default") else "read-only"


def _checked_prompt(agent: str, prompt: str | None, default: str = _DEFAULT_PROMPT) -> str:
    text = prompt if prompt and prompt.strip() else default
    size = len(bytes_of(text, f"the prompt for {agent}", PromptError))
    if size > STDIN_PROMPT_LIMIT:
        raise PromptError(f"the prompt for {agent} has {size} bytes; the limit is {STDIN_PROMPT_LIMIT // 1024} KiB")
    return text


def prompted(spec: Spec, prompt: str) -> Spec:
    return replace(spec, prompt=_checked_prompt(spec.agent, prompt))


def within(argv: Sequence[str], usd: float) -> tuple[str, ...]:
    """Codex takes no budget."""
    del usd
    return tuple(argv)


class _Sessions:
    def resumed(self, spec: Spec, session: str, prompt: str) -> Spec:
        """The same command line, which continues a session."""
        argv = spec.argv[:-3] if spec.argv[-3] == "resume" else spec.argv[:-1]
        argv = (*argv, "resume", session, _PROMPT_FROM_STDIN)
        return replace(spec, argv=argv, prompt=_checked_prompt(spec.agent, prompt, _CONTINUE))

    def transcripts(self, env: Mapping[str, str], cwd: str, session: str) -> Sequence[str]:
        """None: the name of a transcript contains the second in which it was created."""
        del env, cwd, session
        return ()


sessions = _Sessions()


# --- Reading ------------------------------------------------------------------------------------------------


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    """The pure function that turns this run's lines into events.

    The state has ``result``, the last message; ``open``, while a turn is under way; ``failed``, how it failed; and
    ``marker``, whether the marker was written.
    """

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[Said]]:
        line = redactor.line(line, cut=whole_size is not None)
        value = decoded(line) if stream == "out" and whole_size is None else None
        found = _read_line(state, spec, value) if value else None
        return found or (state, [raw_event(stream, line, text_in(value, "type"), whole_size=whole_size)])

    return read


def _read_line(state: State, spec: Spec, line: dict[str, Any]) -> tuple[State, list[Said]] | None:
    """The new state and the events of a line; None if it is not understood."""
    match text_in(line, "type"):
        case "thread.started":
            return state, [("session", {"session_id": text_in(line, "thread_id"), "cwd": spec.cwd})]
        case "turn.started":
            return {**state, "open": True, "failed": None}, [("turn.started", {"turn": 1, "origin": None})]
        case "turn.completed":
            usage = _usage(dict_in(line, "usage"), spec.session_tokens)
            return {**state, "open": False}, [usage, _turn_ended(state.get("result"), None)]
        case "turn.failed":
            failed = cut(text_in(dict_in(line, "error"), "message") or "the turn failed")["text"]
            return {**state, "open": False, "failed": failed}, [_turn_ended(None, failed)]
        case "error":
            return state, [("notice", {"kind": "api_error", **cut(text_in(line, "message"))})]
        case "item.started" | "item.updated" | "item.completed" as kind:
            return _read_item(state, spec, dict_in(line, "item"), kind.removeprefix("item."))
    return None


def _read_item(state: State, spec: Spec, item: dict[str, Any], phase: str) -> tuple[State, list[Said]] | None:
    kind, text = text_in(item, "type"), text_in(item, "text")
    if kind in _TOOLS:
        return state, _tool(kind, item, phase)
    if phase != "completed":
        return (state, []) if kind in ("agent_message", "reasoning") else None
    if kind == "reasoning":
        return state, [("thinking", cut(text))]
    if kind == "error":
        return state, [("notice", {"kind": "info", **cut(text_in(item, "message"))})]
    if kind != "agent_message":
        return None
    said: list[Said] = [("text", cut(text))]
    state = {**state, "result": cut(text)["text"]}
    if spec.loop and not state.get("marker") and (found := _marker(text, spec.marker)) is not None:
        return {**state, "marker": True}, [*said, ("marker", {"line": found})]
    return state, said


def _marker(text: str, marker: str) -> str | None:
    """The first line of a message that is the marker and nothing else."""
    fence: Fence | None = None
    for line in text.split("\n"):
        fence, found = next_marker(line, marker, fence)
        if found is not None:
            return found
    return marker_alone(fence) if fence else None


def _tool(kind: str, item: dict[str, Any], phase: str) -> list[Said]:
    tool = {"id": text_in(item, "id"), "name": text_in(item, "tool") or kind}
    if phase == "started":
        return [("tool.started", {**tool, **kept_input({_TOOLS[kind]: item.get(_TOOLS[kind])})})]
    if phase != "completed":
        return []
    output = text_in(item, "aggregated_output") or json.dumps(item.get("result") or item.get("changes") or "")
    return [("tool.finished", {**tool, "error": text_in(item, "status") == "failed", **cut(output, _OUTPUT_LIMIT)})]


def _usage(usage: dict[str, Any], before: int) -> Said:
    """Tokens of this run. Codex reports the total of the session, which includes the runs ``before``."""
    counts = [number_in(usage, key) for key in ("input_tokens", "output_tokens")]
    total = None if None in counts else sum(int(count or 0) for count in counts)
    tokens = None if total is None else max(0, total - before)
    return "usage", {"tokens": tokens, "cost_usd": None, "cost_basis": None, "estimate": False}


def _turn_ended(result: str | None, error: str | None) -> Said:
    return "turn.ended", {"turn": 1, "result": result, "is_error": error is not None, "error": error, "idle": False}


def last_said(state: State) -> list[Said]:
    del state
    return []


def result_of(tail: Callable[[], bytes]) -> None:
    """The result is the last message, which is in the events."""
    del tail


# --- Judging ------------------------------------------------------------------------------------------------


def verdict(state: State, exit: Exit, stop_reason: Reason | None) -> tuple[Status, Reason]:  # noqa: A002 - the keeper's own word for it
    """How the run ended: by its completed or failed turn, else by its exit."""
    if exit.error is not None:
        return Status.FAILED, Reason.START_FAILED
    failed = state.get("failed")
    if state.get("open") is False and failed is None:
        return Status.DONE, Reason.EXIT
    if failed is not None and not exit.stopped:
        return Status.FAILED, Reason.RATE_LIMITED if _RATE_LIMIT.search(failed) else Reason.ERROR
    if exit.stopped:
        reason = stop_reason or Reason.STOPPED
        return (Status.STOPPED if reason is Reason.STOPPED else Status.FAILED), reason
    if exit.signal is not None:
        return Status.FAILED, Reason.SIGNAL
    return Status.FAILED, Reason.ERROR if exit.code == 0 else Reason.EXIT


def is_transient(state: State) -> bool:
    """Whether the turn failed because of the service or the connection, after the attempts of Codex itself."""
    return _TRANSIENT.search(state.get("failed") or "") is not None


def unpriced(state: State) -> int:
    del state
    return 0
