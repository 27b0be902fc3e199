"""What the head of a definition means: its keys as the CLI takes them, and those that are Hocket's own.

Knows the CLI's own words for the keys of a definition, and which values it stumbles over; nothing about where files lie
or how an agent is run. What of it somebody else's file may not ask for is in ``wishes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from hocket.catalog.entries import ODD, REFUSED, Entry
from hocket.catalog.file_probe import MAX_FILE
from hocket.catalog.frontmatter import Fault, Head, decode, parse, split, texts, tidy
from hocket.catalog.hooks import are_usable, complaint_about_hooks
from hocket.config import PERMISSION_MODES
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition
from hocket.model import Definition

MAX_NAME = 256
"""As the CLI counts: what is not in the first of Unicode's planes counts twice."""
DEFAULT_VERSION = "1.0.0"
_HAIKU = "claude-haiku-4-5-20251001"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_LONGEST_SHOWN = 60


def shown(value: object) -> str:
    """A value of somebody's file within a sentence of ours: short, and nothing in it that a terminal would obey."""
    text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
    return ascii(cut) if _CONTROL.search(cut) else repr(cut) if isinstance(value, str) else cut


# --- Definitions --------------------------------------------------------------------------------------------


def read_definition(path: str, stem: str | None = None) -> Definition:
    """What a file says about its agent.

    With a ``stem`` the file was named by its path, which is reason enough to take it: one that does not say what it is
    called, or has no head at all, goes by that name. A head that is there but cannot be read stays an error, since
    what it forbids would be lost.
    """
    content = read_bounded(path, MAX_FILE, BadDefinition)
    if content is None:
        raise BadDefinition(f"{path} does not exist")
    head = parse(content)
    if stem is not None:
        head = _named(head, content, stem)
    fault = head if isinstance(head, Fault) else complaint(head)
    if fault:
        raise BadDefinition(f"{path}, line {fault.line}: {fault.reason}", _HINT)
    assert isinstance(head, Head)  # noqa: S101 - a fault has been raised above
    return Definition(
        head.values["name"],
        cli_fields(head),
        path,
        _or_any(allowed_agents(head.values)),
        _or_any(allowed_servers(head.values)),
    )


def _or_any(whitelist: list[str] | None) -> tuple[str, ...] | None:
    return None if whitelist is None else tuple(whitelist)


_HINT = "a definition begins with ---, then name: and description:, then --- and its instructions"


def _named(head: Head | Fault, content: bytes, stem: str) -> Head | Fault:
    if isinstance(head, Head):
        return with_defaults(head, stem)
    text = decode(content)
    has_none = not text.startswith("---") and split(text)[0] is None
    return Head({"name": stem, "description": stem}, tidy(text)) if has_none and text.strip() else head


def with_defaults(head: Head, stem: str) -> Head:
    """The head of a file whose name is enough: what it does not say about itself is the name."""
    missing = {key: stem for key in ("name", "description") if head.values.get(key) in (None, "")}
    return head._replace(values={**head.values, **missing})


def complaint(head: Head) -> Fault | None:
    """Why this head is no definition, or None; of our own mind are we only about control characters in a name."""
    name, description, hooks = (head.values.get(key) for key in ("name", "description", "hooks"))
    reason = _complaint_about_name(name)
    if reason:
        return Fault(head.line_of("name"), reason)
    if not isinstance(description, str) or not description:
        return Fault(head.line_of("description"), "has no description that is a text")
    if isinstance(hooks, list) or (hooks and not isinstance(hooks, dict)):
        return Fault(head.line_of("hooks"), "its hooks are not a list of events with values")
    if hooks and (reason := complaint_about_hooks(hooks)):
        return Fault(head.line_of("hooks"), reason)
    if _CONTROL.search(str(name)):
        reason = f"its name {shown(name)} has a control character in it"
        return Fault(head.line_of("name"), reason, REFUSED, ours=True)
    return None


def _complaint_about_name(name: object) -> str | None:
    if name is None or name == "":
        return "has no name"
    if not isinstance(name, str):
        return f"its name is {shown(name)}, which is not a text; put it in quotes"
    if len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_NAME:
        return f"its name is longer than {MAX_NAME} characters"
    if name.startswith("-") or ":" in name:
        return f"its name {shown(name)} begins with a dash or has a colon in it"
    return None


def entry_of(head: Head, path: str, source: str, project: str | None = None) -> Entry:
    """The entry of a definition about which there is no complaint."""
    values = head.values
    model = values.get("model")
    return Entry(
        name=values["name"],
        source=source,
        path=path,
        project=project,
        description=_described(values["description"]),
        tags=tuple(_words(values.get("tags"))),
        delegates_to=tuple(_words(values.get("delegates_to"))),
        version=_version(head),
        model=normalise_model(model) if isinstance(model, str) and model else None,
        metadata=values,
        lines=head.lines,
    )


def _described(text: str) -> str:
    # The CLI takes a written-out \n in a description for a line end.
    return text.replace("\\n", "\n")


def _version(head: Head) -> str:
    if head.values.get("version") in (None, ""):
        return DEFAULT_VERSION
    return head.written.get("version", DEFAULT_VERSION)


# --- What is Hocket's own -----------------------------------------------------------------------------------


def normalise_model(model: str) -> str:
    """The model that is meant; all others are the CLI's to resolve."""
    return _HAIKU if model.lower() == "haiku" else model


def allowed_agents(values: Mapping[str, Any]) -> list[str] | None:
    """Whom it may hand work to; None means anybody, an empty list nobody."""
    return _whitelist(values, "allowedAgents")


def allowed_servers(values: Mapping[str, Any]) -> list[str] | None:
    """Which MCP servers it gets; None means all, an empty list none."""
    return _whitelist(values, "allowedMcpServers")


def thinking_budget(values: Mapping[str, Any]) -> int | None:
    """How many tokens it may think for, if the file says so in a number."""
    budget = values.get("thinkingBudget")
    if isinstance(budget, str) and budget.isascii() and budget.isdigit() and len(budget) < 10:
        budget = int(budget)
    return budget if isinstance(budget, int) and _is_whole(budget) and budget > 0 else None


def _whitelist(values: Mapping[str, Any], key: str) -> list[str] | None:
    # A value that is no list of names allows nothing: a mistake in a whitelist must not open the door.
    return None if values.get(key) is None else texts(values[key])


def _words(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return texts(
        [str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item for item in items]
    )


# --- What the CLI understands -------------------------------------------------------------------------------
# It refuses to start at all when a field of a definition that it is handed has the wrong shape, though it only
# leaves such a field out when it reads the file itself. So they are left out here.

_MISSING: Any = object()


def _one_of(*known: str) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, str) and value in known else _MISSING


def _text(value: Any) -> Any:
    return value if isinstance(value, str) and value else _MISSING


def _model(value: Any) -> Any:
    return normalise_model(value) if isinstance(value, str) and value else _MISSING


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _MISSING


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _turns(value: Any) -> Any:
    return value if _is_whole(value) and value > 0 else _MISSING


def _effort(value: Any) -> Any:
    known = ("low", "medium", "high", "xhigh", "max")
    return value if _is_whole(value) or (isinstance(value, str) and value in known) else _MISSING


def _tools(value: Any) -> Any:
    # Present but empty means no tools at all, which is another thing than absent.
    return texts(value, at_spaces=True)


def _skills(value: Any) -> Any:
    return texts(value) or _MISSING


def _servers(value: Any) -> Any:
    if not isinstance(value, list):
        return _MISSING
    usable = [item for item in value if isinstance(item, str) or _is_named_server(item)]
    return usable or _MISSING


def _is_named_server(item: Any) -> bool:
    return isinstance(item, dict) and bool(item) and all(isinstance(server, dict) for server in item.values())


def _hooks(value: Any) -> Any:
    if not isinstance(value, dict):
        return _MISSING
    usable = {event: entries for event, entries in value.items() if are_usable(entries)}
    return usable or _MISSING


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "tools": _tools,
    "disallowedTools": _tools,
    "model": _model,
    "permissionMode": _one_of(*PERMISSION_MODES),
    "mcpServers": _servers,
    "hooks": _hooks,
    "maxTurns": _turns,
    "skills": _skills,
    "initialPrompt": _text,
    "memory": _one_of("user", "project", "local"),
    "effort": _effort,
    "background": _flag,
    "isolation": _one_of("worktree", "remote"),
}


def cli_fields(head: Head) -> dict[str, Any]:
    """What of a head the CLI understands, as it can be handed to it, with the body as the prompt."""
    cleaned = {key: clean(head.values[key]) for key, clean in _FIELDS.items() if key in head.values}
    return {
        "description": _described(head.values["description"]),
        **{key: value for key, value in cleaned.items() if value is not _MISSING},
        "prompt": head.body,
    }


_LISTS = (_tools, _skills)
"""Of which any text is a way of writing them."""


MOST_ODD = 20
"""So many fields of one file are told apart; nobody reads more of them."""


def odd_fields(head: Head) -> Iterator[Fault]:
    """Fields that stand in a head for nothing, because the CLI leaves them out."""
    found = _all_odd_fields(head)
    yield from islice(found, MOST_ODD)
    rest = list(found)
    if rest:
        yield Fault(rest[0].line, f"and {len(rest)} more of its fields are odd", ODD)


def _all_odd_fields(head: Head) -> Iterator[Fault]:
    for key, value in head.values.items():
        clean = _FIELDS.get(key)
        if clean is None or value is None or value == "" or (clean in _LISTS and isinstance(value, str)):
            continue
        if _is_lost(value, clean(value)):
            yield Fault(head.line_of(key), f"{key} is {shown(value)}, which the CLI leaves out", ODD)
    for key, line in head.repeated.items():
        yield Fault(line, f"{shown(key)} stands there more than once; the last one counts", ODD)


def _is_lost(value: Any, cleaned: Any) -> bool:
    """Whether nothing is left of a value, or less than it had."""
    if cleaned is _MISSING:
        return value not in ([], {})
    if isinstance(cleaned, list) and isinstance(value, list):
        return any(not isinstance(item, str) and item not in cleaned for item in value)
    if isinstance(cleaned, list):
        return not isinstance(value, str)
    return isinstance(cleaned, dict) and len(cleaned) < len(value)
