"""Which values of an agent's environment are secrets.

They are masked where output becomes events, by ``hocket.redaction``: an agent that prints its environment would publish
them otherwise. The run's own files, which only their owner can read, stay as the agent wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping

from hocket.model import BoundChain, Spec
from hocket.redaction import Redactor
from hocket.secret_files import secret_part

_LEAST = 16
"""Shorter values would be found inside ordinary words."""


def secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """The values to mask, by the names of their variables."""
    return {name: value for name, value in sorted(secret_part(env).items()) if _is_secret(value)}


def _is_secret(value: str) -> bool:
    return len(value) >= _LEAST and not value.startswith(("/", "~", "unix:")) and not any(map(str.isspace, value))


def masked_prompt(bound: Spec | BoundChain) -> str | None:
    """The prompt of a run or chain with the secrets of its agents masked."""
    text = bound.prompt if isinstance(bound, Spec) else bound.task
    if not text:
        return None
    env = dict(bound.env)
    for step in bound.steps if isinstance(bound, BoundChain) else ():
        env |= step.spec.env
    return Redactor(secrets_of(env)).text(text)
