"""Words that an agent was given and that nobody else should read: keys and tokens of its environment.

An agent that prints its environment, by mistake or because somebody talked it into it, would otherwise publish them to
every log, page and caller that hears of it. They are covered where output becomes events; the run's own files, which
only their owner can read, stay as the agent wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

COVER = b"[redacted]"
_LEAST = 16
"""Shorter ones are no secrets worth the name, and would be found in the middle of honest words."""
_TELLING = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PAT|AUTH)(_|$)")


def secrets_of(env: Mapping[str, str]) -> tuple[bytes, ...]:
    """What must not be repeated, the longest first: one may be the beginning of another."""
    found = {value for name, value in env.items() if _TELLING.search(name.upper()) and _is_secret(value)}
    return tuple(sorted((value.encode(errors="surrogateescape") for value in found), key=len, reverse=True))


def _is_secret(value: str) -> bool:
    return len(value) >= _LEAST and not value.startswith(("/", "~", "unix:")) and not any(map(str.isspace, value))


def covered(text: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """The same with the secrets in it covered."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, COVER)
    return text
