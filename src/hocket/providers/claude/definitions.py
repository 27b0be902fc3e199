"""Claude's agent files: where they are, which fields they have, and which values the CLI accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec

from hocket.config import DELEGATE, PERMISSION_MODES, RUNTIMES
from hocket.errors import BadDefinition
from hocket.model import Definition
from hocket.providers.claude import frontmatter, models, paths, plugins, servers, settings
from hocket.providers.claude.frontmatter import decode, split, texts, tidy
from hocket.providers.claude.hooks import are_usable, complaint_about_hooks
from hocket.providers.claude.models import normalise_model
from hocket.providers.definition_files import ODD, REFUSED, Fault, Head, has_control_character, shown

# The parts of this capability that belong to other modules.
variables, marker, largest_file = paths.variables, paths.marker, paths.largest_file
managed_folder, default_user_folder = paths.managed_folder, paths.default_user_folder
user_folder, project_folder = paths.user_folder, paths.project_folder
is_definition_path, parse_definition_path = paths.is_definition_path, paths.parse_definition_path
parse, end_of = frontmatter.parse, frontmatter.end_of
managed_settings, enabled_plugins = plugins.managed_settings, plugins.enabled_plugins
plugin_folder, plugin_head, plugin_agent_name = plugins.plugin_folder, plugins.plugin_head, plugins.plugin_agent_name
configured_servers, output_style = servers.configured_servers, settings.output_style
is_foreign_model = models.is_foreign_model

MAX_NAME = 256
"""In UTF-16 code units, as the CLI counts."""
DEFAULT_VERSION = "1.0.0"
_RUNTIME, _DELEGATE = "runtime", "delegate"
_CHOICES: Mapping[str, Sequence[str]] = {_RUNTIME: tuple(RUNTIMES), _DELEGATE: (DELEGATE,)}
"""Keys of Hocket's own, with the values that they can have."""
_BUDGET = "thinkingBudget"
_TOKENS = re.compile("[1-9][0-9]{0,8}")


# --- Definitions --------------------------------------------------------------------------------------------

_HINT = "a definition begins with ---, then name: and description:, then --- and its instructions"


def parse_definition(content: bytes, path: str, stem: str | None = None) -> Definition:
    """Parse an agent file. Raises BadDefinition.

    With a ``stem`` the file was named by its path: a missing name or missing frontmatter is replaced by the stem.
    Frontmatter that is present but unreadable stays an error, because its restrictions would be lost.
    """
    head = parse(content)
    if stem is not None:
        head = with_defaults(head, stem) if isinstance(head, Head) else _without_frontmatter(head, content, stem)
    fault = head if isinstance(head, Fault) else complaint(head)
    if isinstance(head, Fault) or fault:
        assert fault  # noqa: S101 - a Fault is its own complaint
        raise BadDefinition(f"{path}, line {fault.line}: {fault.reason}", _HINT)
    if (invalid := next(_invalid_choices(head), None)) is not None:
        raise BadDefinition(f"{path}, line {invalid.line}: {invalid.reason}", "correct the value, or remove the key")
    agents, servers = (_whitelist(head.values, key) for key in ("allowedAgents", "allowedMcpServers"))
    fault = _complaint_about_budget(head)
    notices = (f"{path}: {fault.reason}",) if fault else ()
    return Definition(
        head.values["name"],
        cli_fields(head),
        path,
        agents,
        servers,
        head.values.get(_RUNTIME),
        head.values.get(_DELEGATE) is not None,
        _budget(head.values.get(_BUDGET)),
        notices,
    )


def _without_frontmatter(fault: Fault, content: bytes, stem: str) -> Head | Fault:
    text = decode(content)
    has_none = not text.startswith("---") and split(text)[0] is None
    return Head({"name": stem, "description": stem}, tidy(text)) if has_none and text.strip() else fault


def _invalid_choices(head: Head) -> Iterator[Fault]:
    """Yield a fault for each key of Hocket's own with a value that it cannot have."""
    for key, choices in _CHOICES.items():
        value = head.values.get(key)
        if value is not None and value not in choices:
            yield Fault(head.line_of(key), f"{key} is {shown(value)}, which is not {' or '.join(choices)}", ODD)


def _whitelist(values: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    # A malformed list allows nothing: a mistake must not widen what an agent may do.
    return None if values.get(key) is None else tuple(texts(values[key]))


def _budget(value: object) -> int | None:
    """A number of tokens, also written as a string; None for anything else."""
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    return int(text) if _TOKENS.fullmatch(text.strip()) else None


def _complaint_about_budget(head: Head) -> Fault | None:
    value = head.values.get(_BUDGET)
    if value in (None, "") or _budget(value) is not None:
        return None
    reason = f"{_BUDGET} is {shown(value)}, which is ignored: it must be a whole number of tokens above 0"
    return Fault(head.line_of(_BUDGET), reason, ODD)


def instructions(content: bytes, path: str) -> Head:
    """Parse a file of instructions, in which frontmatter is optional but must be readable. Raises BadDefinition."""
    head = parse(content)
    if isinstance(head, Head):
        return head
    text = decode(content)
    if text.startswith("---") and split(text)[0] is not None:
        raise BadDefinition(f"{path}, line {head.line}: {head.reason}")
    return Head({}, text.strip())


def with_defaults(head: Head, stem: str) -> Head:
    """Use the file's stem as name and description where the frontmatter has none."""
    missing = {key: stem for key in ("name", "description") if head.values.get(key) in (None, "")}
    return head._replace(values={**head.values, **missing})


def complaint(head: Head) -> Fault | None:
    """Return why the CLI would not load this definition, or None. Control characters in a name are our own rule."""
    name, description, hooks = (head.values.get(key) for key in ("name", "description", "hooks"))
    reason = _complaint_about_name(name)
    if reason:
        return Fault(head.line_of("name"), reason)
    if not isinstance(description, str) or not description:
        return Fault(head.line_of("description"), "has no description that is a string")
    if isinstance(hooks, list) or (hooks and not isinstance(hooks, dict)):
        return Fault(head.line_of("hooks"), "hooks is not a mapping of events")
    if hooks and (reason := complaint_about_hooks(hooks)):
        return Fault(head.line_of("hooks"), reason)
    if has_control_character(str(name)):
        reason = f"the name {shown(name)} contains a control character"
        return Fault(head.line_of("name"), reason, REFUSED, is_hocket_limit=True)
    return None


def _complaint_about_name(name: object) -> str | None:
    if name is None or name == "":
        return "has no name"
    if not isinstance(name, str):
        return f"the name is {shown(name)}, which is not a string; put it in quotes"
    if len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_NAME:
        return f"the name is longer than {MAX_NAME} characters"
    if name.startswith("-") or ":" in name:
        return f"the name {shown(name)} begins with a dash or contains a colon"
    return None


def summary(head: Head) -> dict[str, Any]:
    """Return the fields of a valid definition that a catalog lists."""
    values = head.values
    model = values.get("model")
    return {
        "name": values["name"],
        "description": _described(values["description"]),
        "tags": tuple(_words(values.get("tags"))),
        "delegates_to": tuple(_words(values.get("delegates_to"))),
        "version": DEFAULT_VERSION if values.get("version") in (None, "") else head.written.get("version", "1.0.0"),
        "model": normalise_model(model) if isinstance(model, str) and model else None,
    }


def _described(text: str) -> str:
    # The CLI replaces a literal \n in a description by a line end.
    return text.replace("\\n", "\n")


def _words(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return texts(
        [str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item for item in items]
    )


# --- Fields -------------------------------------------------------------------------------------------------
# The CLI drops a malformed field of a file that it reads itself, but refuses to start when it is handed one. So
# malformed fields are dropped here.

_MISSING: Any = object()


def _fits(kind: Any) -> Callable[[Any], Any]:
    """A value of this type as it is; any other is missing."""

    def clean(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return _MISSING

    return clean


def _model(value: Any) -> Any:
    return normalise_model(value) if isinstance(value, str) and value else _MISSING


def _permission_mode(value: Any) -> Any:
    return value if value in PERMISSION_MODES else _MISSING


def _tools(value: Any) -> Any:
    # Present but empty means no tools at all; absent means all of them.
    return texts(value, at_spaces=True)


def _skills(value: Any) -> Any:
    return texts(value) or _MISSING


def _servers(value: Any) -> Any:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str) or _is_named_server(item)] or _MISSING


def _is_named_server(item: Any) -> bool:
    return isinstance(item, dict) and bool(item) and all(isinstance(server, dict) for server in item.values())


def _hooks(value: Any) -> Any:
    events = value if isinstance(value, dict) else {}
    return {event: entries for event, entries in events.items() if are_usable(entries)} or _MISSING


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "tools": _tools,
    "disallowedTools": _tools,
    "model": _model,
    "permissionMode": _permission_mode,
    "mcpServers": _servers,
    "hooks": _hooks,
    "maxTurns": _fits(Annotated[int, msgspec.Meta(gt=0)]),
    "skills": _skills,
    "initialPrompt": _fits(Annotated[str, msgspec.Meta(min_length=1)]),
    "memory": _fits(Literal["user", "project", "local"]),
    "effort": _fits(int | Literal["low", "medium", "high", "xhigh", "max"]),
    "background": _fits(bool),
    "isolation": _fits(Literal["worktree", "remote"]),
}
restricted_fields: tuple[str, ...] = ("hooks", "mcpServers", "permissionMode")
"""Fields that start programs or widen permissions, so that only some sources may use them."""


def cli_fields(head: Head) -> dict[str, Any]:
    """Return the fields that can be handed to the CLI, with the body as ``prompt``."""
    cleaned = {key: clean(head.values[key]) for key, clean in _FIELDS.items() if key in head.values}
    return {
        "description": _described(head.values["description"]),
        **{key: value for key, value in cleaned.items() if value is not _MISSING},
        "prompt": head.body,
    }


_LISTS = (_tools, _skills)
"""Any string is a valid way to write these."""
MOST_ODD = 20
"""Ignored fields that are reported one by one per file."""


def ignored_fields(head: Head) -> Iterator[Fault]:
    """Yield a fault for each field whose value the CLI ignores, at most ``MOST_ODD`` and a count of the rest."""
    found = _all_ignored_fields(head)
    yield from islice(found, MOST_ODD)
    rest = list(found)
    if rest:
        yield Fault(rest[0].line, f"{len(rest)} more fields are ignored", ODD)


def _all_ignored_fields(head: Head) -> Iterator[Fault]:
    for key, value in head.values.items():
        clean = _FIELDS.get(key)
        if clean is None or value is None or value == "" or (clean in _LISTS and isinstance(value, str)):
            continue
        if _is_lost(value, clean(value)):
            yield Fault(head.line_of(key), f"{key} is {shown(value)}, which the CLI ignores", ODD)
    for invalid in _invalid_choices(head):
        yield invalid._replace(reason=f"{invalid.reason}, so Hocket does not start it")
    if (fault := _complaint_about_budget(head)) is not None:
        yield fault
    for key, line in head.repeated.items():
        yield Fault(line, f"{shown(key)} is given more than once; the last one counts", ODD)


def _is_lost(value: Any, cleaned: Any) -> bool:
    """True if cleaning dropped the value or a part of it."""
    if cleaned is _MISSING:
        return value not in ([], {})
    if isinstance(cleaned, list) and isinstance(value, list):
        return any(not isinstance(item, str) and item not in cleaned for item in value)
    if isinstance(cleaned, list):
        return not isinstance(value, str)
    return isinstance(cleaned, dict) and len(cleaned) < len(value)
