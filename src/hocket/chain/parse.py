"""The syntax of chains, and the marker with which an agent reports that its work is complete. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from hocket.errors import ChainSyntaxError
from hocket.input_limits import AROUND_A_MARKER, MAX_ITERATIONS, MAX_STEPS

ARROW = "->"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DIGITS = re.compile(r"[0-9]+")
_NUMBER_LIKE = re.compile(r"[-+]?[0-9]*\.?[0-9]*")
_OTHER_ARROWS = "→➔➜⇒⟶>"
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class StepText:
    """One step of a chain's text."""

    agent: str
    iterations: int
    loop: bool
    position: int
    """From 1. Members of a group have the same position: they run at the same time."""

    @property
    def group(self) -> int:
        return self.position


# --- Text ---------------------------------------------------------------------------------------------------


def parse(text: str) -> tuple[StepText, ...]:
    """The steps of a chain's text; every error names the step it is about."""
    if not text.strip():
        raise ChainSyntaxError("the chain is empty: step 1 is missing", 'write at least one agent, e.g. "planner"')
    pieces = text.split(ARROW, MAX_STEPS)
    if len(pieces) > MAX_STEPS:
        raise _too_many(len(pieces))
    steps: list[StepText] = []
    for number, piece in enumerate(pieces, 1):
        steps += islice(_stage(piece.strip(), number, len(pieces)), MAX_STEPS + 1)
        if len(steps) > MAX_STEPS:
            raise _too_many(number)
    return tuple(steps)


def _too_many(number: int) -> ChainSyntaxError:
    return ChainSyntaxError(
        f"step {number} is one too many: a chain has at most {MAX_STEPS}, members of groups included"
    )


def render(steps: Iterable[StepText]) -> str:
    """The text that ``parse`` reads as these steps."""
    stages = []
    for _, members in groupby(steps, lambda step: step.position):
        texts = [f"{step.agent}:{step.iterations}" if step.loop else step.agent for step in members]
        stages.append(texts[0] if len(texts) == 1 else f"({', '.join(texts)})")
    return f" {ARROW} ".join(stages)


def is_path(text: str) -> bool:
    """Whether an agent is given by its path rather than by a name to look up."""
    return "/" in text or text.startswith((".", "~"))


def check_agent(text: str, where: str) -> str:
    """The text itself; raise if it cannot name an agent. ``where`` is the part of the chain for the error."""
    if _UNPRINTABLE.search(text):
        raise ChainSyntaxError(f"{where}: control characters cannot be part of an agent: {text!r}")
    if text.startswith("-"):
        raise ChainSyntaxError(f"{where}: an agent cannot begin with a dash: {text!r}")
    if not is_path(text) and not _NAME.fullmatch(text):
        raise ChainSyntaxError(f"{where}: {text!r} is not a name", _name_hint(text))
    return text


def _stage(text: str, number: int, count: int) -> Iterator[StepText]:
    """One agent, or the members of a group."""
    where = f"step {number}"
    if not text:
        edge = "the chain begins with an arrow" if number == 1 else "the chain ends with an arrow"
        raise ChainSyntaxError(f"{where} is empty: {edge if number in (1, count) else 'two arrows follow each other'}")
    if not text.startswith("("):
        yield _step(text, number, where)
        return
    members = [member.strip() for member in _inside(text, where).split(",")]
    for position, member in enumerate(members, 1):
        inside = f"{where}, member {position}"
        if not member:
            raise ChainSyntaxError(f"{inside} is empty: {text!r}", "members are separated by commas, as in (a, b:3)")
        yield _step(member, number, inside)


def _inside(text: str, where: str) -> str:
    """The text between the parentheses of a group."""
    if "(" in text[1:]:
        raise ChainSyntaxError(f"{where}: a group within a group, or one that is not closed: {text!r}")
    inside, closing, rest = text[1:].partition(")")
    if not closing:
        raise ChainSyntaxError(
            f"{where}: the group is not closed: {text!r}", 'a group holds agents and no "->": (a, b:3)'
        )
    if rest.strip():
        hint = "iterations belong to the members, as in (a:3, b)" if rest.strip().startswith(":") else None
        raise ChainSyntaxError(f"{where}: {rest.strip()!r} follows the end of the group: {text!r}", hint)
    return inside


def _step(text: str, number: int, where: str) -> StepText:
    agent, iterations = _split_suffix(text, where)
    return StepText(check_agent(agent, where), iterations or 1, iterations is not None, number)


def _split_suffix(text: str, where: str) -> tuple[str, int | None]:
    """The agent, and its number of iterations when it has one.

    A path may contain colons of its own, so there only something that looks like a number counts as a suffix;
    a name may not, so there everything after the colon does.
    """
    agent, colon, count = (part.strip() for part in text.rpartition(":"))
    if colon and _DIGITS.fullmatch(count):
        if not agent:
            raise ChainSyntaxError(f"{where}: {text!r} has no agent before its colon")
        if ":" in agent and not is_path(agent):
            raise ChainSyntaxError(f'{where}: {text!r} has more than one ":"', "only one :N may follow an agent: a:3")
        return agent, _iterations(count, text, where)
    if colon and (_NUMBER_LIKE.fullmatch(count) or not is_path(text)):
        raise ChainSyntaxError(
            f"{where}: {text!r} has no whole number of iterations after its colon", "write it as agent:3"
        )
    return text, None


def _iterations(digits: str, text: str, where: str) -> int:
    significant = digits.lstrip("0")
    if not significant:
        raise ChainSyntaxError(f"{where}: {text!r} must iterate at least once")
    # The length is checked first: Python refuses to convert a very long text to a number.
    if len(significant) > len(str(MAX_ITERATIONS)) or int(significant) > MAX_ITERATIONS:
        raise ChainSyntaxError(f"{where}: {text[:80]!r} iterates more than {MAX_ITERATIONS} times")
    return int(significant)


def _name_hint(text: str) -> str:
    agent, _, count = text.rpartition(":")
    if agent and _DIGITS.fullmatch(count):
        return f'to repeat it, write "iterations" for the step: {agent}, {count}'
    if _NAME.fullmatch(address := "-".join(text.split(" "))):
        return f'separate steps with "{ARROW}"; an agent with such a name has an address, as {address}: `hocket agents`'
    if any(character.isspace() or character in _OTHER_ARROWS for character in text):
        return f'separate steps with "{ARROW}"'
    return f"a name has letters, digits, - and _; give any other program by its path, e.g. ./{text}"


# --- The marker ---------------------------------------------------------------------------------------------


def bare_marker(text: str) -> str:
    """A line without the characters that people and models put around a marker."""
    return text.strip(AROUND_A_MARKER)


def is_marker(line: str, marker: str) -> bool:
    """Whether a line is the marker and nothing else."""
    bare = bare_marker(marker)
    return bare != "" and bare_marker(line) == bare


Fence = Sequence[Any]
"""An open code block: the fence that closes it, the marker's line in it ("" for none), and whether it has other lines.
A JSON value, because it is part of a reader's state."""


def next_marker(line: str, marker: str, fence: Fence | None) -> tuple[Fence | None, str | None]:
    """After one more line: the code block that is open now, and the line that completes a marker.

    In a code block the marker counts if there is nothing else in it. Among other lines it is a quotation.
    """
    if fence is None:
        return (None, line) if is_marker(line, marker) else (_opened(line), None)
    closing, found, has_more = fence
    text = line.strip()
    if len(text) >= len(closing) and text == closing[0] * len(text):
        return None, marker_alone(fence)
    if is_marker(line, marker):
        return [closing, line, has_more], None
    return [closing, found, has_more or text != ""], None


def marker_in(text: str, marker: str, fence: Fence | None = None) -> tuple[Fence | None, str | None]:
    """After more lines: the block of code that is open now, and the first line by which the marker has been said."""
    for line in text.split("\n"):
        fence, found = next_marker(line, marker, fence)
        if found is not None:
            return fence, found
    return fence, None


def marker_alone(fence: Fence) -> str | None:
    """The marker's line, if a code block has nothing else."""
    _, found, has_more = fence
    return found if found and not has_more else None


def marker_said(text: str, marker: str) -> str | None:
    """The line by which a whole text says the marker, also as the only content of a code block at its end."""
    fence, found = marker_in(text, marker)
    return found or (marker_alone(fence) if fence else None)


def may_matter(text: str, fence: Fence | None) -> bool:
    """Whether these lines can change the code block of ``next_marker``; the caller searches for the marker itself."""
    return (fence is not None and not fence[2]) or "```" in text or "~~~" in text


def _opened(line: str) -> Fence | None:
    found = _FENCE.match(line)
    # Backticks later in the line mean inline code.
    if found is None or (found[1].startswith("`") and "`" in line[found.end() :]):
        return None
    return [found[1], "", False]
