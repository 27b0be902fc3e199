"""What one step hands to the next, as texts: results, the output of a failed gate, why a step starts again.

Pure: who is started, and when, is the chain driver's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hocket.chain.variables import PREVIOUS, TASK, fill
from hocket.errors import PromptError, UsageError
from hocket.model import RESULT_LIMIT, BoundChain, Reason, Run, Spec, Status
from hocket.providers import PROVIDERS

COMPLAINT_LIMIT = 4096
"""Bytes of a gate's output that the next iteration is told."""

_INTERRUPTED = {
    "limit": "You were interrupted because the usage limit was reached. It is over now.",
    "lost": "You were interrupted: your process was killed from outside, so your last action may be half done.",
    "service": "You were interrupted because the service could not be reached.",
}
_GO_ON = "Look at what is done already, then go on where you stopped."


class Complaint(NamedTuple):
    """What a gate had against an iteration."""

    run: str
    text: str


# --- Results ------------------------------------------------------------------------------------------------


def stage(chain: BoundChain, step: int) -> range:
    """The steps that run at the same time as this one, itself included."""
    group, last = chain.steps[step].group, len(chain.steps)
    if group is None:
        return range(step, step + 1)
    first, end = step, step + 1
    while first > 0 and chain.steps[first - 1].group == group:
        first -= 1
    while end < last and chain.steps[end].group == group:
        end += 1
    return range(first, end)


def stage_result(chain: BoundChain, steps: Sequence[int], results: Sequence[str | None]) -> str | None:
    """What a stage came to: a step's own result, or those of a group's members, each under its agent's name."""
    if chain.steps[steps[0]].group is None:
        return results[steps[0]]
    came = [*(chain.kept if steps[0] == 0 else ()), *((chain.steps[step].agent, results[step]) for step in steps)]
    known = [(agent, text) for agent, text in came if text is not None]
    share = RESULT_LIMIT // max(1, len(known))
    return "\n\n".join(f"## {agent}\n\n{_end_of(text, share).strip()}" for agent, text in known) if known else None


def previous_result(chain: BoundChain, step: int, results: Sequence[str | None]) -> str:
    """What the stage before this step's came to, without the line end that every program's words have."""
    first = stage(chain, step)[0]
    before = stage_result(chain, stage(chain, first - 1), results) if first else chain.previous
    return (before or "").rstrip("\r\n")


def _end_of(text: str, size: int) -> str:
    """The text's last bytes, without a character that the cut went through."""
    content = text.encode(errors="replace")
    return text if len(content) <= size else content[-size:].decode(errors="ignore")


# --- Prompts ------------------------------------------------------------------------------------------------


def begun(spec: Spec, task: str | None, previous: str, complaint: str | None = None) -> Spec:
    """The spec of an iteration, its prompt filled in. ``PromptError`` or ``UsageError`` where it became too large."""
    if not spec.prompt:
        return spec
    values = {PREVIOUS: previous} | ({TASK: task} if task is not None else {})
    if complaint is not None:
        prompt = f"{_filled(spec, values)}\n\n{_deliverable(complaint)}"
        try:
            return PROVIDERS[spec.provider].with_prompt(spec, prompt)
        except (PromptError, UsageError):
            pass  # What the gate said is a help; that there is no room for it must not end the work.
    return filled(spec, values)


def filled(spec: Spec, values: Mapping[str, str]) -> Spec:
    """The spec with those of its blanks filled in that have a value."""
    prompt = _filled(spec, values)
    return spec if prompt == (spec.prompt or "") else PROVIDERS[spec.provider].with_prompt(spec, prompt)


def _filled(spec: Spec, values: Mapping[str, str]) -> str:
    given = {name: _deliverable(value) for name, value in values.items() if name in spec.blanks}
    return fill(spec.prompt or "", given)


def _deliverable(text: str) -> str:
    """What one program said, as another one can be told: no argument can carry a NUL."""
    return text.replace("\0", "\ufffd")


def complaint_of(gate: Mapping[str, Any]) -> Complaint | None:
    """What the next iteration is to know about a gate, by its event."""
    if gate.get("passed"):
        return None
    how = "was ended because it took too long" if gate.get("timed_out") else f"ended with exit code {gate['exit_code']}"
    text = f"The work does not count as done yet. This check has to succeed, and it {how}:\n\n    {gate['command']}"
    output = last_lines(str(gate.get("output", "")), COMPLAINT_LIMIT)
    if output.strip():
        text += f"\n\nThe end of what it said:\n\n{output}"
    return Complaint(str(gate["run"]), text)


def last_lines(text: str, size: int) -> str:
    """The end of a text, in whole lines where it has more than one."""
    text = text.rstrip()
    kept = _end_of(text, size)
    if kept == text:
        return text
    _, newline, rest = kept.partition("\n")
    return rest if newline and rest else kept


# --- Once more ----------------------------------------------------------------------------------------------


def resumed(before: Spec, run: Run) -> Spec | None:
    """The spec of a run that goes on with the session of one that was interrupted, if there is such a session."""
    sessions = PROVIDERS[before.provider].sessions
    if sessions is None or run.session_id is None:
        return None
    try:
        again = sessions.resume(before, run.session_id, f"{_INTERRUPTED[_interruption(run)]} {_GO_ON}")
    except UsageError:
        return None
    return replace(again, resumed_from=run.id, session_tokens=before.session_tokens + (run.tokens or 0))


def _interruption(run: Run) -> str:
    if run.reason is Reason.RATE_LIMITED:
        return "limit"
    return "lost" if run.status is Status.LOST else "service"
