"""Prompts of steps: earlier results, the output of a failed gate, the continuation of interrupted sessions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hocket.chain.variables import PREVIOUS, TASK, fill
from hocket.errors import PromptError, UsageError
from hocket.model import RESULT_LIMIT, BoundChain, Reason, Run, Spec, Status
from hocket.providers import PROVIDERS

FEEDBACK_LIMIT = 4096
"""Bytes of a gate's output in the prompt of the next iteration."""

# --- Results ------------------------------------------------------------------------------------------------


def stage_of(chain: BoundChain, step: int) -> range:
    """The steps that run at the same time as this one, itself included."""
    group, last = chain.steps[step].group, len(chain.steps)
    first, end = step, step + 1
    while group is not None and first > 0 and chain.steps[first - 1].group == group:
        first -= 1
    while group is not None and end < last and chain.steps[end].group == group:
        end += 1
    return range(first, end)


def stage_result(chain: BoundChain, steps: Sequence[int], results: Sequence[str | None]) -> str | None:
    """The result of a stage: a step's own, or those of a group's members, each under its agent's name."""
    if chain.steps[steps[0]].group is None:
        return results[steps[0]]
    members = [*(chain.kept if steps[0] == 0 else ()), *((chain.steps[step].agent, results[step]) for step in steps)]
    known = [(agent, text) for agent, text in members if text is not None]
    share = RESULT_LIMIT // max(1, len(known))
    return "\n\n".join(f"## {agent}\n\n{_end_of(text, share).strip()}" for agent, text in known) if known else None


def previous_result(chain: BoundChain, step: int, results: Sequence[str | None]) -> str:
    """The result of the stage before this step's, without the line ends at its end."""
    first = stage_of(chain, step)[0]
    before = stage_result(chain, stage_of(chain, first - 1), results) if first else chain.previous
    return (before or "").rstrip("\r\n")


def _end_of(text: str, size: int) -> str:
    """The text's last bytes, without a character that the cut split."""
    content = text.encode(errors="replace")
    return text if len(content) <= size else content[-size:].decode(errors="ignore")


# --- Prompts ------------------------------------------------------------------------------------------------


def iteration_spec(spec: Spec, task: str | None, previous: str, feedback: str | None = None) -> Spec:
    """The spec of an iteration with its prompt filled in; ``PromptError`` or ``UsageError`` if that is too large."""
    if not spec.prompt:
        return spec
    values = {PREVIOUS: previous} | ({TASK: task} if task is not None else {})
    if feedback is not None:
        prompt = f"{_fill(spec, values)}\n\n{_without_nul(feedback)}"
        try:
            return PROVIDERS[spec.provider].with_prompt(spec, prompt)
        except (PromptError, UsageError):
            pass  # The feedback is optional; lack of room for it must not end the work.
    return fill_placeholders(spec, values)


def fill_placeholders(spec: Spec, values: Mapping[str, str]) -> Spec:
    """The spec with those placeholders filled in that have a value."""
    prompt = _fill(spec, values)
    return spec if prompt == (spec.prompt or "") else PROVIDERS[spec.provider].with_prompt(spec, prompt)


def _fill(spec: Spec, values: Mapping[str, str]) -> str:
    return fill(spec.prompt or "", {name: _without_nul(text) for name, text in values.items() if name in spec.blanks})


def _without_nul(text: str) -> str:
    """No argument of a program can have a NUL."""
    return text.replace("\0", "\ufffd")


def gate_feedback(gate: Mapping[str, Any]) -> str | None:
    """The text about a failed gate for the next iteration, by the gate's event; None if it passed."""
    if gate.get("passed"):
        return None
    how = "was ended because it took too long" if gate.get("timed_out") else f"ended with exit code {gate['exit_code']}"
    text = f"The work does not count as done yet. This check has to succeed, and it {how}:\n\n    {gate['command']}"
    output = last_lines(str(gate.get("output", "")), FEEDBACK_LIMIT)
    return f"{text}\n\nThe end of its output:\n\n{output}" if output.strip() else text


def last_lines(text: str, size: int) -> str:
    """The end of a text, in whole lines if it has more than one."""
    text = text.rstrip()
    end = _end_of(text, size)
    if end == text:
        return text
    _, newline, rest = end.partition("\n")
    return rest if newline and rest else end


# --- Interruptions ------------------------------------------------------------------------------------------


def resume_interrupted(before: Spec, run: Run) -> Spec | None:
    """The spec of a run that continues the session of an interrupted one; None if it has no session."""
    sessions = PROVIDERS[before.provider].sessions
    if sessions is None or run.session_id is None:
        return None
    if run.reason is Reason.RATE_LIMITED:
        why = "because the usage limit was reached. It is over now."
    elif run.status is Status.LOST:
        why = "when your process was killed from outside. Your last action may be half done."
    else:
        why = "because the service could not be reached."
    prompt = f"You were interrupted {why} Check what is done already, then continue where you stopped."
    try:
        resumed = sessions.resume(before, run.session_id, prompt)
    except UsageError:
        return None
    return replace(resumed, resumed_from=run.id, session_tokens=before.session_tokens + (run.tokens or 0))
