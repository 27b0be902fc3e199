"""Both platforms offer the same calls, so that no other module depends on the platform."""

from __future__ import annotations

import inspect

import pytest

from hocket.keeper import darwin, linux

CALLS = [
    name
    for name, value in vars(linux).items()
    if getattr(value, "__module__", "") == linux.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("name", CALLS)
def test_platforms_offer_the_same_calls(name: str) -> None:
    theirs, ours = getattr(darwin, name), getattr(linux, name)
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    if inspect.isclass(ours):
        public = {method for method in vars(ours) if not method.startswith("_")}
        assert public <= set(dir(theirs))
