"""What differs from one recording to the next is made the same; every key stays, in its place.

Normalised, because nobody chose it and it says nothing about the format:

- *ids*: sessions, messages, tool calls, tasks, requests and lines, numbered in the order in which they appear. The
  same id is the same number everywhere, also inside of texts; an id that appears once is number 0, so that a line
  more or less does not change all the lines after it;
- *places*: the folder of the recording is ``/golden``, also where its name is written with dashes; the names of
  a process, a user and a port inside of other places;
- *times*: moments become one moment, durations become 0. What is ``null`` stays so.

Nothing else is: texts, prices, counts of tokens, lists of tools and the order of keys are what the program says.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

PLACE = "/golden"
MOMENT = "2000-01-01T00:00:00.000Z"

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SHAPES = (
    (re.compile(_UUID), lambda number: f"00000000-0000-4000-8000-{number:012d}"),
    (re.compile(r"\bmsg_[0-9a-f]{24}\b"), lambda number: f"msg_{number:024d}"),
    (re.compile(r"\btoolu_[0-9a-f]{24}\b"), lambda number: f"toolu_{number:024d}"),
)
_KEYED = (
    (frozenset({"task_id", "agent_id"}), lambda number: f"a{number:016d}"),
    (frozenset({"run_id", "runId"}), lambda number: f"run-{number:08d}"),
)
"""Ids without a shape of their own, known by the keys that they stand at."""
_TIME_KEYS = re.compile(r"_ms$|DurationMs$|^end_time$")
_IN_TEXTS = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), MOMENT),
    (re.compile(r"(duration_ms(?:: |>))\d+"), r"\g<1>0"),
    (re.compile(r"(/cc-socks/)\d+"), r"\g<1>0"),
    (re.compile(r"(/t/claude-)\d+"), r"\g<1>0"),
    (re.compile(r"(127\.0\.0\.1:)\d+"), r"\g<1>0"),
)


def normalised(lines: Iterable[bytes], root: Path) -> list[bytes]:
    values = [_exact(line) for line in lines]
    rename = _Names(values, root)
    return [_written(_changed(value, rename)) for value in values]


def _exact(line: bytes) -> Any:
    """A line that could not be written again as it was must not be recorded as if it had been."""
    value = json.loads(line)
    assert _written(value) == line, f"JSON that we would write otherwise: {line!r}"
    return value


_SMALL_NUMBER = re.compile(r"(?<=[:,\[])-?\d(?:\.\d+)?e-0[56](?=[,}\]])")


def _written(value: Any) -> bytes:
    """As the program writes it, which uses no exponent for numbers from a millionth on."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _SMALL_NUMBER.sub(lambda number: format(Decimal(number[0]), "f"), text).encode() + b"\n"


def _changed(value: Any, rename: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {rename(name): _changed(one, rename, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_changed(one, rename, key) for one in value]
    if isinstance(value, str):
        return rename(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return 0 if is_number and _TIME_KEYS.search(key) else value


class _Names:
    """New names for everything that has one."""

    def __init__(self, values: list[Any], root: Path) -> None:
        texts = [text for value in values for text in _texts(value)]
        self._known: dict[str, str] = {}
        for shape, name in _SHAPES:
            self._number(Counter(found for text in texts for found in shape.findall(text)), name)
        for keys, name in _KEYED:
            self._number(Counter(_standing_at(keys, values)), name)
        self._places = ((str(root), PLACE), (_dashed(str(root)), _dashed(PLACE)))

    def _number(self, found: Counter[str], name: Callable[[int], str]) -> None:
        number = 0
        for id, times in found.items():
            number += times > 1
            self._known[id] = name(number if times > 1 else 0)

    def __call__(self, text: str) -> str:
        for id, name in self._known.items():
            text = text.replace(id, name)
        for place, name in self._places:
            text = text.replace(place, name)
        for pattern, same in _IN_TEXTS:
            text = pattern.sub(same, text)
        return text


def _dashed(place: str) -> str:
    """As the program names the folder of a project's transcripts."""
    return re.sub("[^a-zA-Z0-9]", "-", place)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _standing_at(keys: frozenset[str], value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name in keys and isinstance(one, str):
                yield one
            yield from _standing_at(keys, one)
    elif isinstance(value, list):
        for one in value:
            yield from _standing_at(keys, one)
