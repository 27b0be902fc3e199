"""YAML as the CLI reads it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hocket.providers.claude.yaml12 import FIRST_LINE, Unusable, load


def values(text: str) -> dict[str, Any]:
    return dict(load(text).values)


@pytest.mark.parametrize(
    "text",
    [
        *("x: 'a\n  b'", 'x: "a\n\n  b"', "x:\n  y: 'a\n   b'", "x:\n- 'a\n b'", "x:\n- y: 'a\n   b'"),
        *("x: [\n  a\n]", "x: [a\n, b]", "x: [\n# c\n a]", "x:\n  y: [\n    a\n]", "{\na: b\n}"),
    ],
)
def test_indented_lines_continue_value(text: str) -> None:
    assert values(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *(("x: 'a\nb'", 1), ('x: "a\n\nb"', 2), ('x: "a\n"', 1), ("x:\n  y: 'a\n  b'", 2), ("x:\n- 'a\nb'", 2)),
        *(("x: [a,\nb]", 1), ("x: {a:\nb}", 1), ("x:\n  y: [\n  a\n  ]", 2), ("x: [a, 'b\nc']", 1)),
    ],
)
def test_unindented_continuation_line_is_refused(text: str, line: int) -> None:
    with pytest.raises(Unusable) as caught:
        load(text)
    assert caught.value.fault.line == line + FIRST_LINE


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *(("x:\n>-\n  a", 1), ("x: \n|\n a", 1), ("x: # c\n>\n  a", 1), (" x:\n >\n  a", 1), ("? x\n:\n>\n  a", 2)),
        *(("x:\n  y:\n  >-\n   a", 2), ("x:\n- y:\n  |\n   a", 2), ("x:\n-\n>-\n  a", 2), ("x:\n>-", 1)),
    ],
)
def test_unindented_block_scalar_is_refused(text: str, line: int) -> None:
    with pytest.raises(Unusable) as caught:
        load(text)
    assert caught.value.fault.line == line + FIRST_LINE


@pytest.mark.parametrize(
    "text", ["x:\n >-\n a", "x: >-\n a", "? x\n: >-\n a", "x:\n- >-\n a", "x:\n-\n >-\n  a", " x:\n  >-\n  a"]
)
def test_indented_block_scalar_is_read(text: str) -> None:
    assert values(text)["x"] in ("a", ["a"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("!!int 5", 5), ("!!float 5", 5), ("!!bool true", True), ("!!str 5", "5"), ('!!int "5"', "5")),
        *(("-0x10", -16), ("-0o7", -7), ("+1", 1), ("1.", 1.0), ("+.5", 0.5), ("+", "+"), (".", "."), ("1e", "1e")),
    ],
)
def test_scalars_have_types_of_yaml_1_2(text: str, expected: Any) -> None:
    found = values(f"x: {text}")["x"]
    assert (found, type(found)) == (expected, type(expected))


def test_scalars_are_kept_as_written() -> None:
    found = load("version: 1.10\nx: [1]\ny: 'z'\nw:")
    assert found.written == {"version": "1.10", "y": "z", "w": ""}
    assert found.lines == {"version": 2, "x": 3, "y": 4, "w": 5}


@pytest.mark.parametrize("text", ["a: &a [x, y]\nb: [" + "*a, " * 400 + "]\nc: 1", "x: " + "[" * 50_000])
def test_too_many_aliases_or_levels_are_refused(text: str) -> None:
    with pytest.raises(Unusable) as caught:
        load(text)
    assert caught.value.fault.is_hocket_limit


@pytest.mark.parametrize("has_libyaml", [True, False])
def test_lone_surrogate_is_refused_by_all_parsers(monkeypatch: pytest.MonkeyPatch, has_libyaml: bool) -> None:
    if not has_libyaml:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    with pytest.raises(Unusable, match="invalid Unicode character escape code"):
        load('x: 1\ny: "\\ud800"')
