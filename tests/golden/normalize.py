"""Make recordings comparable: replace what differs from one run to the next, and keep everything else.

- *ids* of sessions, messages, tool calls, tasks and requests are numbered in the order in which they appear. The same
  id has the same number everywhere, also inside texts; an id that appears once is number 0, so that one line more or
  less does not change all later lines;
- *places*: the folder of the recording becomes ``/golden``, also where its name is written with dashes; process ids,
  user ids and ports inside paths and addresses become 0;
- *times*: timestamps become one timestamp, durations become 0. ``null`` stays ``null``.

Texts, prices, token counts, lists of tools and the order of keys are what the program wrote.
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
TIMESTAMP = "2000-01-01T00:00:00.000Z"

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ID_FORMS = (
    (re.compile(_UUID), lambda number: f"00000000-0000-4000-8000-{number:012d}"),
    (re.compile(r"\bmsg_[0-9a-f]{24}\b"), lambda number: f"msg_{number:024d}"),
    (re.compile(r"\btoolu_[0-9a-f]{24}\b"), lambda number: f"toolu_{number:024d}"),
)
_ID_KEYS = (
    (frozenset({"task_id", "agent_id"}), lambda number: f"a{number:016d}"),
    (frozenset({"run_id", "runId"}), lambda number: f"run-{number:08d}"),
)
"""Ids without a recognisable form, found by their keys."""
_TIME_KEYS = re.compile(r"_ms$|DurationMs$|^end_time$")
_IN_TEXTS = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), TIMESTAMP),
    (re.compile(r"(duration_ms(?:: |>))\d+"), r"\g<1>0"),
    (re.compile(r"(/cc-socks/)\d+"), r"\g<1>0"),
    (re.compile(r"(/t/claude-)\d+"), r"\g<1>0"),
    (re.compile(r"(127\.0\.0\.1:)\d+"), r"\g<1>0"),
)


def normalised(lines: Iterable[bytes], root: Path) -> list[bytes]:
    values = [_decoded(line) for line in lines]
    rename = _Replacements(values, root)
    return [_encoded(_replaced(value, rename)) for value in values]


def _decoded(line: bytes) -> Any:
    """Decode a line; fail if encoding it again gives another line, because it could not be recorded exactly."""
    value = json.loads(line)
    assert _encoded(value) == line, f"this JSON is not encoded as expected: {line!r}"
    return value


_SMALL_NUMBER = re.compile(r"(?<=[:,\[])-?\d(?:\.\d+)?e-0[56](?=[,}\]])")


def _encoded(value: Any) -> bytes:
    """JSON as the CLIs write it, without an exponent for numbers from a millionth on."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _SMALL_NUMBER.sub(lambda number: format(Decimal(number[0]), "f"), text).encode() + b"\n"


def _replaced(value: Any, rename: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {rename(name): _replaced(one, rename, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, rename, key) for one in value]
    if isinstance(value, str):
        return rename(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return 0 if is_number and _TIME_KEYS.search(key) else value


class _Replacements:
    """Replaces ids, places and times in texts."""

    def __init__(self, values: list[Any], root: Path) -> None:
        texts = [text for value in values for text in _texts(value)]
        self._known: dict[str, str] = {}
        for form, name in _ID_FORMS:
            self._number(Counter(found for text in texts for found in form.findall(text)), name)
        for keys, name in _ID_KEYS:
            self._number(Counter(_values_at(keys, values)), name)
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
    """How Claude names the folder of a project's transcripts."""
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


def _values_at(keys: frozenset[str], value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name in keys and isinstance(one, str):
                yield one
            yield from _values_at(keys, one)
    elif isinstance(value, list):
        for one in value:
            yield from _values_at(keys, one)
