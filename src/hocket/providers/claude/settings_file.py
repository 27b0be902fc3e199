"""Our hook in the text of the user's settings: adding it, and removing what was added, with every other byte kept."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.errors import ConfigError
from hocket.providers.claude.own_hooks import EVENT, entry

_HOOKS, _COMMAND = "hooks", "command"
_ENTRY, _LIST, _OBJECT, _FILE = "entry", "list", "object", "file"
"""What was added: the entry alone, or with the list that has it, the object that has that list, the file."""
_MARK = "# added by hocket setup claude"
_MARKED = re.compile(rf"{_MARK} \(({_ENTRY}|{_LIST}|{_OBJECT}|{_FILE})\)")
_SPACE = re.compile(r"[ \t\n\r]*")
_INDENTATION = re.compile(r"\n([ \t]+)\S")
_decoder = json.JSONDecoder()


def with_hook(text: str | None, path: str, argv: Sequence[str]) -> str:
    """Return the settings with our hook for this program, in place of one for another; no text means no file."""
    settings = _checked(text, path) if text is not None else {}
    present = [hook[_COMMAND] for *_, hook in _ours(settings)]
    if text is not None and present in [[_command(argv, what)] for what in (_ENTRY, _LIST, _OBJECT, _FILE)]:
        return text
    if text is None:
        return _inserted("{}\n", 0, 0, (_HOOKS, {EVENT: [entry(_command(argv, _FILE))]}))
    text, _ = without_hook(text, path)
    hooks = _value(text, _start(text), _HOOKS)
    if hooks is None:
        return _inserted(text, _start(text), 0, (_HOOKS, {EVENT: [entry(_command(argv, _OBJECT))]}))
    listed = _value(text, hooks, EVENT)
    if listed is None:
        return _inserted(text, hooks, 1, (EVENT, [entry(_command(argv, _LIST))]))
    return _inserted(text, listed, 2, (None, entry(_command(argv, _ENTRY))))


def without_hook(text: str, path: str) -> tuple[str, bool]:
    """Return the settings without our hook and what was added for it, and whether that leaves nothing of the file."""
    is_ours = False
    while found := next(_ours(_checked(text, path)), None):
        groups, group, position, hook = found
        mark = _MARKED.search(hook[_COMMAND])
        added = mark[1] if mark else _ENTRY
        hooks = _value(text, _start(text), _HOOKS) or 0
        listed = _value(text, hooks, EVENT) or 0
        place = _items(text, listed)[group].value
        is_only_list = len(_items(text, hooks)) == 1
        if len(groups[group][_HOOKS]) > 1:
            text = _removed(text, _value(text, place, _HOOKS) or 0, position)
        elif len(groups) > 1 or added == _ENTRY:
            text = _removed(text, listed, group)
        elif not is_only_list or added == _LIST:
            text = _removed(text, hooks, _index(text, hooks, EVENT))
        else:
            text = _removed(text, _start(text), _index(text, _start(text), _HOOKS))
            is_ours = added == _FILE
    return text, is_ours and _checked(text, path) == {}


def _command(argv: Sequence[str], added: str) -> str:
    # The CLI passes it to a shell, for which this is a comment.
    return f"{shlex.join(argv)} {_MARK} ({added})"


def _checked(text: str, path: str) -> dict[str, Any]:
    """Return the settings. Raises ConfigError if they are not what the CLI reads."""
    try:
        settings: Any = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}", "correct it; nothing was changed") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must be a JSON object; got {text.strip():.60}", "correct it; nothing was changed")
    hooks = settings.get(_HOOKS, {})
    if not isinstance(hooks, dict) or not isinstance(hooks.get(EVENT, []), list):
        raise ConfigError(f'{path}: "{_HOOKS}" must be an object of lists', "correct it; nothing was changed")
    return settings


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _ours(settings: Mapping[str, Any]) -> Iterator[tuple[list[Any], int, int, dict[str, Any]]]:
    """Yield each hook of ours: all groups of its event, the position of its group, its position there, and itself."""
    groups = settings.get(_HOOKS, {}).get(EVENT, [])
    for number, group in enumerate(groups):
        hooks = group.get(_HOOKS) if isinstance(group, dict) else None
        for position, hook in enumerate(hooks if isinstance(hooks, list) else []):
            command = hook.get(_COMMAND) if isinstance(hook, dict) else None
            if isinstance(command, str) and _MARKED.search(command):
                yield groups, number, position, hook


# --- Text ---------------------------------------------------------------------------------------------------


class _Item(NamedTuple):
    """A member of an object or an element of a list, by positions in the text."""

    key: str | None
    start: int
    value: int
    end: int


def _items(text: str, opening: int) -> list[_Item]:
    """Return what is in the object or list that begins at a position of valid JSON."""
    found: list[_Item] = []
    at = _after_space(text, opening + 1)
    while text[at] not in "}]":
        start, key = at, None
        if text[opening] == "{":
            key, at = _decoder.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)
        _, end = _decoder.raw_decode(text, at)
        found.append(_Item(key, start, at, end))
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _start(text: str) -> int:
    return _after_space(text, 0)


def _index(text: str, opening: int, key: str) -> int:
    """Return the position of a member in its object. Of several with one key the CLI takes the last."""
    return max((place for place, item in enumerate(_items(text, opening)) if item.key == key), default=-1)


def _value(text: str, opening: int, key: str) -> int | None:
    """Return where the value of a member begins."""
    place = _index(text, opening, key)
    return None if place < 0 else _items(text, opening)[place].value


def _inserted(text: str, opening: int, depth: int, item: tuple[str | None, Any]) -> str:
    """Return the text with an item at the end of an object or a list, indented like the rest."""
    found = _INDENTATION.search(text)
    unit = found[1] if found else "  "
    key, value = item
    lines = json.dumps(value, indent=unit).replace("\n", "\n" + unit * (depth + 1))
    added = "\n" + unit * (depth + 1) + (f"{json.dumps(key)}: " if key is not None else "") + lines
    if items := _items(text, opening):
        return f"{text[: items[-1].end]},{added}{text[items[-1].end :]}"
    rest = text[opening + 1 :]
    is_open = "\n" in rest[: _after_space(rest, 0)]
    return text[: opening + 1] + added + ("" if is_open else "\n" + unit * depth) + rest


def _removed(text: str, opening: int, position: int) -> str:
    """Return the text without one item, and without the comma that joined it to the others."""
    items = _items(text, opening)
    if len(items) == 1:
        return text[: opening + 1] + text[_after_space(text, items[0].end) :]
    if position == len(items) - 1:
        return text[: items[position - 1].end] + text[items[position].end :]
    return text[: items[position].start] + text[items[position + 1].start :]
