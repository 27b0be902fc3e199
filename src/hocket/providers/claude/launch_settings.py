"""The value of ``--settings``: what Hocket sets for a run, merged with what the user gives.

The CLI uses the last ``--settings`` of a command line and ignores the others, so a command line has exactly one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hocket.config import CROSS_SESSION
from hocket.errors import UsageError
from hocket.providers.claude import wire_names

FLAG = "--settings"


def split(agent: str, arguments: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """The arguments without any ``--settings``, and the value of the last one."""
    rest: list[str] = []
    value: str | None = None
    given = iter(arguments)
    for argument in given:
        name, equals, attached = argument.partition("=")
        if name != FLAG:
            rest.append(argument)
        elif equals:
            value = attached
        else:
            value = next(given, None)
            if value is None:
                raise UsageError(f"{agent}: {FLAG} needs a value", f"{FLAG} JSON")
    return tuple(rest), value


def merged(agent: str, given: str | None, cross_session: str, disabled_servers: Sequence[str]) -> dict[str, Any]:
    """Hocket's settings and the user's. The user's win, but for servers that must stay off."""
    own = _parsed(agent, given) if given and given.strip() else {}
    settings = {wire_names.CROSS_SESSION: cross_session, **own}
    if settings[wire_names.CROSS_SESSION] not in CROSS_SESSION:
        raise UsageError(
            f"{agent}: invalid {wire_names.CROSS_SESSION} in {FLAG}: {settings[wire_names.CROSS_SESSION]!r}",
            f"choose {', '.join(CROSS_SESSION)}",
        )
    if disabled_servers:
        listed = own.get(wire_names.DISABLED_SERVERS, [])
        if not isinstance(listed, list):
            raise UsageError(f"{agent}: {wire_names.DISABLED_SERVERS} in {FLAG} must be a list; got {listed!r}")
        settings[wire_names.DISABLED_SERVERS] = [*listed, *(name for name in disabled_servers if name not in listed)]
    return settings


def _parsed(agent: str, given: str) -> dict[str, Any]:
    """Only JSON: a file's content would not reach the command line, which is recorded and used again by a resume."""
    text = given.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise UsageError(
            f"{agent}: {FLAG} must be JSON here, not a file, because Hocket adds settings of its own; got {given!r}",
            f'{FLAG} "$(cat FILE)"',
        )
    try:
        found: dict[str, Any] = json.loads(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{agent}: {FLAG} is not valid JSON: {error}") from error
    return found
