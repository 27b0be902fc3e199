"""Words that an agent was given and that nobody else should read: keys and tokens of its environment.

An agent that prints its environment, by mistake or because somebody talked it into it, would otherwise publish them to
every log, page and caller that hears of it. They are masked where output becomes events, by ``hocket.redaction``; the
run's own files, which only their owner can read, stay as the agent wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping

from hocket.model import BoundChain, Spec
from hocket.redaction import Redactor
from hocket.secret_files import secret_part

_LEAST = 16
"""Shorter ones are no secrets worth the name, and would be found in the middle of honest words."""


def secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """What must not be repeated, by the names of the variables."""
    return {name: value for name, value in sorted(secret_part(env).items()) if _is_secret(value)}


def _is_secret(value: str) -> bool:
    return len(value) >= _LEAST and not value.startswith(("/", "~", "unix:")) and not any(map(str.isspace, value))


def masked_prompt(bound: Spec | BoundChain) -> str | None:
    """What a run or a chain was asked, without the secrets that its agents get."""
    text = bound.prompt if isinstance(bound, Spec) else bound.task
    if not text:
        return None
    env = dict(bound.env)
    for step in bound.steps if isinstance(bound, BoundChain) else ():
        env |= step.spec.env
    return Redactor(secrets_of(env)).text(text)
