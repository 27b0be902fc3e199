"""Names that can be typed, addresses of the others, and paths that stay within their base."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.catalog.names import address_of, is_address, validate_agent_path
from hocket.errors import SecurityError


@pytest.mark.req("S4-41", "S4-42")
@pytest.mark.parametrize("name", ["a", "A-b_9", "9", "n" * 64])
def test_simple_name_is_its_own_address(name: str) -> None:
    assert is_address(name)
    assert address_of(name) == name


@pytest.mark.req("S4-41", "S4-42", "S4-43")
@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a.b", "a/b", "../a", "-a", "_a", "a\n", "\u00e9", "n" * 65],
    ids=repr,
)
def test_other_name_is_not_its_own_address(name: str) -> None:
    assert not is_address(name)
    assert address_of(name) != name


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("LSP/Index Engineer", "LSP-Index-Engineer"),
        ("SRE (Site Reliability Engineer)", "SRE-Site-Reliability-Engineer"),
        ("FP&A Analyst", "FP-A-Analyst"),
        ("dotnet-framework-4.8-expert", "dotnet-framework-4-8-expert"),
        ("../evil", "evil"),
        ("--x--", "x"),
        ("caf\u00e9", "cafe"),
        ("n" * 100, "n" * 64),
    ],
)
def test_untypable_name_gets_a_similar_address(name: str, address: str) -> None:
    assert address_of(name) == address


def test_name_without_ascii_letters_has_stable_address() -> None:
    first, second = address_of("\u5ba1\u67e5"), address_of("\u6d4b\u8bd5")
    assert first != second
    assert first == address_of("\u5ba1\u67e5", {"agent", second})
    assert is_address(first)


def test_taken_address_is_numbered() -> None:
    assert address_of("a b", {"a-b"}) == "a-b-2"
    assert address_of("a b", {"a-b", "a-b-2"}) == "a-b-3"
    assert address_of("n" * 70, {"n" * 64}) == "n" * 62 + "-2"


def test_taken_number_is_not_given_again() -> None:
    assert address_of("a!", {"a", "a-3"}) == "a-2"
    assert address_of("a!", {"a", "a-2", "a-4"}) not in {"a", "a-2", "a-4"}


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=80), st.sets(st.sampled_from(["a", "b", "a-2", "agent"])))
def test_any_name_gets_a_free_address(name: str, taken: set[str]) -> None:
    address = address_of(name, taken)
    assert is_address(address)
    assert address not in taken


@pytest.mark.req("S4-39")
def test_path_within_base_is_resolved(tmp_path: Path) -> None:
    base = tmp_path / "agents"
    (base / "sub").mkdir(parents=True)
    (base / "link").symlink_to("sub")
    assert validate_agent_path(f"{base}/sub/../x.md", str(base)) == str(base / "x.md")
    assert validate_agent_path(f"{base}/link/x.md", str(base)) == str(base / "sub/x.md")
    assert validate_agent_path(f"{base}/x.md", f"{tmp_path}/./agents/") == str(base / "x.md")


@pytest.mark.req("S4-39", "S4-40")
@pytest.mark.parametrize(
    "path", ["../x.md", "sub/../../x.md", "out/x.md", "../agents-evil/x.md", "/etc/passwd", "a\0b"]
)
def test_path_outside_its_base_is_refused(tmp_path: Path, path: str) -> None:
    base = tmp_path / "agents"
    base.mkdir()
    (tmp_path / "agents-evil").mkdir()
    (base / "out").symlink_to(tmp_path)
    with pytest.raises(SecurityError) as caught:
        validate_agent_path(str(base / path), str(base))
    assert caught.value.exit_code == 2
    assert str(base) in caught.value.message
    assert path.replace("\0", "\\x00").removeprefix("..") in caught.value.message
