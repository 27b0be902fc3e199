"""Frontmatter, read as tolerantly as by the real CLI, within limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.providers.claude.frontmatter import MAX_HEAD, end_of, parse, split, texts
from hocket.providers.claude.yaml12 import MAX_EXPANSION, MAX_NESTING
from hocket.providers.definition_files import REFUSED, SKIPPED, Fault, Head


def of(head: str, body: str = "Body.") -> Head | Fault:
    return parse(f"---\n{head}\n---\n{body}".encode())


def values(head: str) -> dict[str, Any]:
    found = of(head)
    assert isinstance(found, Head), found
    return dict(found.values)


def fault(head: str) -> Fault:
    found = of(head)
    assert isinstance(found, Fault), found
    return found


# --- Head and body ------------------------------------------------------------------------------------------


@pytest.mark.req("S4-05", "S3-06")
def test_frontmatter_is_split_from_body() -> None:
    found = of("name: a\ndescription: d", "\nDo it.\n\nWell.\n")
    assert isinstance(found, Head)
    assert (found.values, found.body) == ({"name": "a", "description": "d"}, "Do it.\n\nWell.")
    assert (found.line_of("name"), found.line_of("description")) == (2, 3)


@pytest.mark.req("S4-48")
@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf---\nname: a\n---\nb",
        b"---\r\nname: a\r\n---\r\nb",
        b"---   \nname: a\n---\nb",
        b"---\n\n\nname: a\n---\nb",
        b"---\nname: a\n---",
        b"---\nname: a\n  ---\nb",
        b"---\nname: a\n------------\nb",
        b"---\nname: a\n--- text\nb",
        b"---\nname: a---\nb",
        b"---\nname: a\nx: \xff\xfe\n---\nb",
    ],
)
def test_variants_of_dashes_and_line_ends_are_read(content: bytes) -> None:
    found = parse(content)
    assert isinstance(found, Head)
    assert found.values["name"] == "a"


@pytest.mark.req("S4-48")
@pytest.mark.parametrize(
    ("before", "line"), [("\ufeff", 2), ("\n\ufeff", 3), ("\ufeff\n", 3), ("\ufeff\n\n\ufeff", 4), ("\ufeff# c\n", 3)]
)
def test_byte_order_mark_may_precede_frontmatter(before: str, line: int) -> None:
    found = of(f"{before}name: a: b\ndescription: d")
    assert isinstance(found, Head)
    assert (found.values["name"], found.line_of("name")) == ("a: b", line)


@pytest.mark.parametrize("before", ["\ufeff\ufeff", "# c\n\ufeff", " \ufeff"])
def test_inner_byte_order_mark_is_part_of_key(before: str) -> None:
    found = of(f"{before}name: a")
    assert isinstance(found, Fault) or "name" not in found.values


@pytest.mark.req("S4-37")
def test_first_dashes_end_frontmatter_inside_value() -> None:
    assert values("name: a\ndescription: this --- that\nmodel: opus") == {"name": "a", "description": "this"}


@pytest.mark.req("S4-48")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n---\nname: a\n---\n", "does not begin"),
        (b"+++\nname = 1\n+++\n", "does not begin"),
        (b"---\nname: a\n", "no closing"),
        (b"---\n" + b"x" * (MAX_HEAD + 10), "no closing"),
        (b"---\nx: " + b"x" * MAX_HEAD + b"\n---\n", "larger than"),
    ],
)
def test_fault_names_missing_part_of_frontmatter(content: bytes, words: str) -> None:
    found = parse(content)
    assert isinstance(found, Fault)
    assert words in found.reason


def test_splitting_keeps_texts_unchanged() -> None:
    assert split("---\nname: a\n---\n b\n") == ("name: a\n", "b\n")
    assert split("# only a body") == (None, "# only a body")


# --- Values -------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-38")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("no", "no"), ("yes", "yes"), ("on", "on"), ("Off", "Off"), ("y", "y")),
        *(("true", True), ("FALSE", False), ("tRue", "tRue"), ("~", None), ("null", None), ("", None)),
        *(("12", 12), ("-3", -3), ("0777", 777), ("0o17", 15), ("0x1F", 31), ("0b11", "0b11"), ("1_000", "1_000")),
        *(("1:30:00", "1:30:00"), ("2024-01-01", "2024-01-01"), ("1.10", 1.1), ("1e3", 1000.0), (".5", 0.5)),
        *((".nan", None), ("-.inf", None), ("1e999", None), ("9" * 30, 1e30), ("9" * 5000, None)),
        *(('"12"', "12"), ("'true'", "true"), ("!!str 12", "12"), ("!foo bar", "bar")),
        ("!!python/object:os.system evil", "evil"),
        ('"\\x41\\/b"', "A/b"),
        ('"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
    ],
)
def test_values_follow_yaml_1_2_and_ignore_tags(text: str, expected: Any) -> None:
    assert values(f"x: {text}") == {"x": expected}


def test_last_of_equal_keys_counts() -> None:
    assert values("name: a\nname: b") == {"name": "b"}


def test_anchors_aliases_and_merging_work() -> None:
    assert values("x: &a one\nname: *a")["name"] == "one"
    assert values("base: &b {model: opus, name: z}\n<<: *b\nname: a") == {
        "base": {"model": "opus", "name": "z"},
        "model": "opus",
        "name": "a",
    }
    assert values("<<: [{a: 1}, {a: 2, b: 3}]") == {"a": 1, "b": 3}


def test_keys_are_kept_as_written() -> None:
    assert values("1: a\ntrue: b\n? [x]\n: c\nno: d") == {"1": "a", "true": "b", "no": "d"}


def test_nested_values_are_plain_json() -> None:
    head = "hooks:\n  Stop:\n    - hooks: [{type: command, command: 'a: b'}]"
    assert json.loads(json.dumps(values(head))) == {
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "a: b"}]}]}
    }


@pytest.mark.req("S3-07")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a, b ,, a", ["a", "b"]),
        (["a", " b ", "a"], ["a", "b"]),
        ("Agent(a, b), Read", ["Agent(a, b)", "Read"]),
        ("Bash(git *), x)y, z", ["Bash(git *)", "x)y", "z"]),
        (["a, b", 5, None, "c"], ["a", "b", "c"]),
        ("", []),
        (None, []),
        ({"a": 1}, []),
        (7, []),
    ],
)
def test_all_forms_of_lists_are_read(value: Any, expected: list[str]) -> None:
    assert texts(value) == expected


def test_parentheses_keep_item_with_spaces_together() -> None:
    assert texts("Read Bash(npm run *)\tGrep", at_spaces=True) == ["Read", "Bash(npm run *)", "Grep"]
    assert texts("two words, three") == ["two words", "three"]


# --- Tolerance ----------------------------------------------------------------------------------------------


@pytest.mark.req("S4-48")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Use when: foo", "Use when: foo"),
        ("it's when: foo", "it's when: foo"),
        ('say "a": b', 'say "a": b'),
        ("'a: b", "'a: b"),
        ("**bold** x", "**bold** x"),
        ("`code` x", "`code` x"),
        ("@x y", "@x y"),
        ("[a] b", "[a] b"),
        ("{a} b: c", "{a} b: c"),
        ("*missing", "*missing"),
        ("Use: a\\qb", "Use: a\\qb"),
        ("? foo: x", "? foo: x"),
    ],
)
def test_unquoted_special_value_is_read(written: str, read: str) -> None:
    assert values(f"name: a\ndescription: {written}")["description"] == read


def test_list_beside_quoted_value_stays_list() -> None:
    assert values("description: Use: x\ntools: [Read, Bash(git *)]")["tools"] == ["Read", "Bash(git *)"]
    assert values("description: Use: x\ntools: [*missing]")["tools"] == "[*missing]"


def test_tabs_may_indent_lines() -> None:
    assert values("name: a\nx:\n\ty: 1\n\tz:\n\t\t- b") == {"name": "a", "x": {"y": 1, "z": ["b"]}}
    assert values("\tname: a\n\tdescription: d") == {"name": "a", "description": "d"}


def test_values_after_tabs_are_quoted_too() -> None:
    assert values("name: a # b\nx:\n\ty: 1")["name"] == "a # b"
    assert values("name: a # b\nx:\n  y: 1")["name"] == "a"
    assert values("name: a # b\n\t# c\n \t\nx:\n -\ty")["name"] == "a"


@pytest.mark.parametrize("head", ["x: [a,\n\tb]", "x:\n \ty: z", "x: |\n\ta"])
def test_some_tabs_are_refused(head: str) -> None:
    assert "is not YAML" in fault(f"name: a\n{head}").reason


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_value_with_other_line_end_is_not_quoted(end: str) -> None:
    assert isinstance(of(f"name: a{end}description: d{end}x: y\n"), Head)
    assert isinstance(of(f"name: a\ndescription: Use: it{end}x: y\n"), Fault)
    assert isinstance(of("name: a\ndescription: Use\u2028it: now\n"), Fault)


@pytest.mark.parametrize(
    ("head", "key", "expected"),
    [("x: , a", "x", ", a"), ("name: ,b", "name", ",b"), (": y", "name", "a"), ("y: z\n:", "y", "z")],
)
def test_yaml_that_only_cli_accepts_is_read(head: str, key: str, expected: str) -> None:
    assert values(f"name: a\n{head}")[key] == expected


def test_characters_unknown_to_libyaml_are_kept() -> None:
    strange = "x\x07y\u2028z\x7f\x85\ufeff\x0c"
    assert values(f"name: a\ndescription: {strange}") == {"name": "a", "description": strange}
    assert values(f"name: a\nk\x07: {strange}\nx: \uf600")["k\x07"] == strange


def test_mended_frontmatter_has_fault() -> None:
    found = of("name: a\ndescription: Use: it")
    assert isinstance(found, Head)
    assert found.mended is not None
    assert (found.mended.line, found.mended.kind) == (3, SKIPPED)
    clean = of("name: a\ndescription: d")
    assert isinstance(clean, Head)
    assert clean.mended is None


def test_duplicate_keys_are_reported() -> None:
    found = of("name: a\nx: 1\nname: b")
    assert isinstance(found, Head)
    assert (found.repeated, found.line_of("name"), found.written["name"]) == ({"name": 4}, 4, "b")


@pytest.mark.req("S4-48")
@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("name: a\ndescription: one\ntwo lines\nmodel: x", 4),
        ("name: a\nx:\n  y: foo: bar", 4),
        ("name: a\ndescription: 'it's a: b'", 3),
        ("- a\n- b", 2),
        ("just words", 2),
        ("name: a\nx: 1\n...\nname: b", 5),
        ("name: a\nx: a\0b", 3),
    ],
)
def test_unreadable_frontmatter_has_fault_with_line(head: str, line: int) -> None:
    found = fault(head)
    assert (found.line, "\n" in found.reason) == (line, False)


# --- Bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["[" * 60_000, "- " * 30_000 + "a", "? " * 30_000, "{a: " * 15_000, "[" * 21 + "]" * 21, "[a, # ]\n" * 5000]
)
def test_deep_nesting_is_refused_quickly(text: str) -> None:
    began = time.perf_counter()
    assert f"more than {MAX_NESTING} levels" in fault(f"x:\n  {text}").reason
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "content",
    [
        *(b"---" + b"\n" * 250_000, b"---" + b" \n" * 120_000, b"---" + b"\t" * 250_000, b"---\n" + b"-" * 250_000),
        *(b"---\n" + b"\t" * 60_000 + b"x: [\n---\n", b"---\n  " + b"\t" * 60_000 + b"x: [\n---\n"),
        *(b"---\n" + b"- " * 30_000 + b"x: ,\n---\n", b"---\nx:" + b" " * 60_000 + b"@: \n---\n"),
        *(b"---\n" + b"x" * 60_000 + b": @\n---\n", b"---\n" + b": \n" * 20_000 + b"---\n"),
        *(b"---\n" + b"x: [a: [\n" * 6_000 + b"---\n", b"---\n" + b"x: 'a\n" * 9_000 + b"---\n"),
        b"---\n" + b"a: &a {" + b"k: v, " * 5_000 + b"}\n" + b"b: {<<: *a}\n" * 2_000 + b"---\n",
    ],
    ids=range(13),
)
def test_hostile_text_is_parsed_quickly(content: bytes) -> None:
    began = time.process_time()
    parse(content)
    assert time.process_time() - began < 1


def test_nesting_below_limit_is_read() -> None:
    depth = MAX_NESTING - 1
    assert isinstance(of(f"x: {'[' * depth}{']' * depth}"), Head)


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "[a,", "{a: ", "[? ", "['a': ", "[\n", "- ["])
def test_parser_stops_at_nesting_limit(opening: str) -> None:
    head = f"x:\n  {opening * (MAX_HEAD // len(opening) - 10)}"
    began = time.process_time()
    assert isinstance(of(head), Fault)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("shape", ["bomb", "many", "long"])
def test_excessive_aliases_are_refused(shape: str) -> None:
    if shape == "bomb":
        levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
        head = "\n".join(["l0: &l0 [a, b]", *levels])
    elif shape == "many":
        head = "a: &a x\nb: [" + "*a, " * (MAX_EXPANSION + 1) + "]"
    else:
        head = f"a: &a {'x' * 40_000}\nb: [*a, *a, *a]"
    found = fault(head)
    assert "aliases" in found.reason
    assert (found.kind, found.is_hocket_limit) == (REFUSED, True)


def test_recursive_alias_is_refused() -> None:
    assert values("a: &a [*a]") == {"a": "&a [*a]"}


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab:- \n\t\"'[]{},&*!|>%@`#?<~.0\\\r\0\x85\u2028\ufeff")), max_size=80))
def test_parser_never_raises_on_text(head: str) -> None:
    found = of(head)
    if isinstance(found, Head):
        json.dumps(dict(found.values), allow_nan=False)
    else:
        assert found.line >= 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_parser_never_raises_on_bytes(content: bytes) -> None:
    assert isinstance(parse(content), Head | Fault)
    assert isinstance(parse(b"---\n" + content + b"\n---\n"), Head | Fault)


def test_yaml_is_imported_only_for_parsing() -> None:
    code = "import sys, hocket.catalog.resolve; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- Beginnings ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4-37")
@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"---\nname: a\n---\nbody", 15),
        (b"---\nname: a---\nbody", 14),
        (b"---\nname: a\n--", None),
        (b"\xef\xbb\xbf---\na: b\n---", 15),
        (b"# Title", 7),
        (b"--", None),
        (b"", None),
    ],
)
def test_end_of_frontmatter_is_found_early(content: bytes, end: int | None) -> None:
    assert end_of(content) == end
