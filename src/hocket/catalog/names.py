"""Names of agents as one types them: which ones can be, what the others are called instead, and which paths are safe.

A definition may call itself almost anything. What is typed, and used in routes, paths, branches and flags, is its
*address*: its name where that will do, else one that is derived from it. Pure but for ``validate_agent_path``.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Container

from hocket.errors import SecurityError, ValidationError

MAX_ADDRESS = 64
ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


def is_address(name: str) -> bool:
    """Whether a name can be typed as it is."""
    return ADDRESS.fullmatch(name) is not None


def address_of(name: str, taken: Container[str] = ()) -> str:
    """What to type for a name: itself if it can be, else the nearest to it; numbered where that is taken."""
    address = name if is_address(name) else _derived(name)
    return _numbered(address, _free_number(address, taken)) if address in taken else address


def _numbered(address: str, number: int) -> str:
    ending = f"-{number}"
    return f"{address[: MAX_ADDRESS - len(ending)]}{ending}"


def _free_number(address: str, taken: Container[str]) -> int:
    """A number that is free after one that is not. Thousands may want one address, so not each of them is tried."""
    low, high = 1, 2
    while _numbered(address, high) in taken:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _numbered(address, middle) in taken else (low, middle)
    return high


def _derived(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    fit = _UNFIT.sub("-", plain).lstrip("-_")[:MAX_ADDRESS].rstrip("-")
    return fit or f"agent-{_fingerprint(name)}"


def _fingerprint(name: str) -> str:
    """For a name that has no letter to begin with: the same one always, whoever else is there."""
    import hashlib

    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def validate_agent_name(name: object) -> str:
    """The name, if it is one that can be typed. Raises otherwise."""
    if not isinstance(name, str):
        raise ValidationError(f"the name of an agent is a text, not {type(name).__name__}")
    if is_address(name):
        return name
    if len(name) > MAX_ADDRESS:
        raise ValidationError(f"the name of an agent has at most {MAX_ADDRESS} characters: {name[:MAX_ADDRESS]!r}...")
    raise ValidationError(
        f"this cannot be the name of an agent: {name!r}",
        "a name is made of letters, digits, - and _, and begins with a letter or a digit",
    )


def validate_agent_path(path: str, base: str) -> str:
    """The path with its links and dots resolved, if it lies within the base. Raises otherwise."""
    try:
        real, within = os.path.realpath(path), os.path.realpath(base)
        is_inside = os.path.commonpath([real, within]) == within
    except ValueError as error:
        raise SecurityError(f"{path!r} is no path within {base!r}: {error}") from error
    if not is_inside:
        raise SecurityError(f"{path} leads to {real}, which is outside of {base}")
    return real
