"""Names and addresses of agents: what can be typed, what replaces other names, and which paths are safe."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Container, Iterable
from hashlib import sha256
from itertools import count

from hocket.errors import SecurityError

MAX_ADDRESS = 64
_MOST_SUGGESTED, _SHORTEST_PART = 3, 3
ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


def is_address(name: str) -> bool:
    """True if a name is its own address."""
    return ADDRESS.fullmatch(name) is not None


def address_of(name: str, taken: Container[str] = ()) -> str:
    """Return the address of a name: itself if valid, else derived from it; numbered if that is taken."""
    address = name if is_address(name) else _derived(name)
    if address not in taken:
        return address
    endings = (f"-{number}" for number in count(2))
    return next(one for end in endings if (one := address[: MAX_ADDRESS - len(end)] + end) not in taken)


def _derived(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    fit = _UNFIT.sub("-", plain).lstrip("-_")[:MAX_ADDRESS].rstrip("-")
    return fit or f"agent-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def similar_names(word: str, known: Iterable[str]) -> list[str]:
    """Return up to three names that are spelled like a word or contain it, the most similar first."""
    import difflib

    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=_MOST_SUGGESTED, cutoff=0.75)
    inside = (name for name in names if len(word) >= _SHORTEST_PART and word.lower() in name.lower())
    return list(dict.fromkeys([*near, *inside]))[:_MOST_SUGGESTED]


def validate_agent_path(path: str, base: str) -> str:
    """Return the resolved path if it is within the base. Raises SecurityError otherwise."""
    try:
        real, within = os.path.realpath(path), os.path.realpath(base)
        is_inside = os.path.commonpath([real, within]) == within
    except ValueError as error:
        raise SecurityError(f"{path!r} is not a path within {base!r}: {error}") from error
    if not is_inside:
        raise SecurityError(f"{path} leads to {real}, which is outside of {base}")
    return real
