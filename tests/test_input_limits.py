"""What is valid text, and where in a value something is not."""

from __future__ import annotations

import pytest

from hocket.input_limits import is_text, odd_text

HALF = "a\ud800b"


@pytest.mark.parametrize("text", ["", "plain", "日本語 🎵", "\ud7ff\ue000", "\0"])
def test_encodable_text_is_text(text: str) -> None:
    assert is_text(text)
    assert odd_text({"a": [text, {"b": (text,)}]}) is None


@pytest.mark.parametrize("text", [HALF, "\udfff"])
def test_lone_surrogate_is_not_text(text: str) -> None:
    assert not is_text(text)
    assert odd_text(text) == "the text"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"prompt": HALF}, "prompt"),
        ({"fine": "x", "variables": {"A": HALF}}, "variables.A"),
        ({"args": ["x", HALF]}, "args"),
        ({"source": {HALF: 1}}, "source"),
        ({HALF: 1}, "the text"),
        ([[HALF]], "the text"),
        (7, None),
    ],
)
def test_invalid_text_is_named_by_its_place(value: object, where: str | None) -> None:
    assert odd_text(value) == where
