"""Secrets are masked in texts, in lines, and in texts that arrive in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hocket.redaction import MASK, NO_SECRETS, Held, Redactor, secrets_of

KEY = "sk-live-0123456789abcdef"
QUOTED = 'p"ss\\w/rd-ünïcode-☃-0123'
ONE = Redactor({"KEY": KEY})


def masked_naively(text: str, secrets: list[str]) -> str:
    """What masking means, character by character: overlapping secrets get one mask."""
    spans = sorted(
        (at, at + len(secret)) for secret in secrets for at in range(len(text)) if text.startswith(secret, at)
    )
    merged: list[tuple[int, int]] = []
    for start, stop in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    for start, stop in reversed(merged):
        text = text[:start] + MASK + text[stop:]
    return text


# --- Whole texts ---


def test_only_occurrences_of_secrets_are_masked() -> None:
    longer = KEY + "-and-more"
    redactor = Redactor({"A": KEY, "B": longer})
    assert redactor.text(f"{KEY} x {longer}\n{KEY}{KEY}.") == f"{MASK} x {MASK}\n{MASK}{MASK}."
    assert redactor.text("nothing here") == "nothing here"
    assert NO_SECRETS.text(KEY) == KEY


def test_overlapping_secrets_are_masked_completely() -> None:
    redactor = Redactor({"A": "aaaa-bbbb-cccc-dddd", "B": "cccc-dddd-eeee-ffff"})
    assert redactor.text("<aaaa-bbbb-cccc-dddd-eeee-ffff>") == f"<{MASK}>"


# --- Texts in pieces ---

SECRETS = st.lists(st.text('ab"\\é', min_size=2, max_size=6), min_size=1, max_size=4, unique=True)
PIECES = st.lists(st.text('ab"\\é\n', max_size=7), max_size=12)


@settings(max_examples=200, deadline=None)
@example(["abab"], ["aba", "bab", "a"])
@example(["aab", "ab", "aabab"], ["a", "a", "b", "a", "", "b"])
@example(["aaa"], ["a"] * 7)
@example(["abb", "bba"], ["ab", "ba"])
@given(secrets=SECRETS, pieces=PIECES)
def test_pieces_are_masked_like_whole_text(secrets: list[str], pieces: list[str]) -> None:
    """Torture row 46: with a restart, which knows nothing but the state as JSON, between any two pieces."""
    named = {f"NAME{number}": secret for number, secret in enumerate(secrets)}
    held: Held | None = None
    said = ""
    for number, piece in enumerate(pieces):
        redactor = Redactor(named)
        more, held = redactor.feed(held, piece)
        said += more
        held = json.loads(json.dumps(held))
        assert held is None or (held[0] in named and all(isinstance(count, int) for count in held[1:]))
        whole = "".join(pieces[: number + 1])
        assert said + redactor.flush(held) == redactor.text(whole), "what an end of the text would make of it"
        if held is None:
            assert said == redactor.text(whole)
    redactor = Redactor(named)
    said += redactor.flush(held)
    assert said == redactor.text("".join(pieces))
    spellings = [text for secret in secrets for text in spelled(secret)]
    assert said == masked_naively("".join(pieces), spellings)


def spelled(secret: str) -> list[str]:
    """As it is, and as JSON has it."""
    both = [json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)]
    return [secret, *both, both[0].replace("00e9", "00E9")]


@pytest.mark.parametrize("size", range(1, 8))
def test_only_possible_beginnings_of_secrets_are_held(size: int) -> None:
    text = f"The key is {KEY}, the other one sk-live-0123; not s"
    held: Held | None = None
    said = ""
    for start in range(0, len(text), size):
        more, held = ONE.feed(held, text[start : start + size])
        said += more
        whole = text[: start + size]
        kept = max(count for count in range(len(KEY)) if whole.endswith(KEY[:count]))
        assert (0 if held is None else held[2]) == kept
    assert held == ["KEY", 0, 1, 0]
    assert said == f"The key is {MASK}, the other one sk-live-0123; not "
    assert ONE.flush(held) == "s"


def test_held_characters_of_a_forgotten_secret_stay_masked() -> None:
    """A secret's value may be gone when the next server goes on with the text."""
    said, held = ONE.feed(None, f"it is {KEY[:20]}")
    assert said == "it is "
    for other in (NO_SECRETS, Redactor({"OTHER": KEY[::-1]})):
        assert other.feed(held, " or not") == (f"{MASK} or not", None)
        assert other.flush(held) == MASK


# --- Lines ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([KEY, QUOTED]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just(QUOTED + "x"), inner, max_size=3)
    ),
    max_leaves=8,
)


def walked(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {redactor.text(key): walked(inner, redactor) for key, inner in value.items()}
    if isinstance(value, list):
        return [walked(inner, redactor) for inner in value]
    return redactor.text(value) if isinstance(value, str) else value


@settings(max_examples=120, deadline=None)
@given(value=st.dictionaries(st.text(max_size=3), JSON, max_size=3), ascii_only=st.booleans(), slashes=st.booleans())
def test_masked_json_line_keeps_other_values(value: Any, ascii_only: bool, slashes: bool) -> None:
    redactor = Redactor({"A": KEY, "B": QUOTED})
    written = json.dumps(value, ensure_ascii=ascii_only)
    if slashes:
        written = written.replace("/", "\\/")
    masked = redactor.line(written.encode("utf-8", "surrogatepass"))
    assert repr(json.loads(masked)) == repr(walked(value, redactor))


@pytest.mark.parametrize(
    ("secret", "line", "masked"),
    [
        ("nabc-0123456789abcdef", r'{"a":"\nabc-0123456789abcdef"}', None),
        ("1234567890123456", '{"pin": -1234567890123456789, "b": 1}', f'{{"pin": "{MASK}", "b": 1}}'),
        ("key-{0123456789},abc", '{"a":"key-{0123456789},abc"}', f'{{"a":"{MASK}"}}'),
        (KEY, f'{{"a":"{KEY}"', f'{{"a":"{MASK}"'),
        (KEY, '{"a":"' + "".join(f"\\u{ord(letter):04X}" for letter in KEY) + '"}', f'{{"a":"{MASK}"}}'),
        (KEY, f'{{"a":"\\ud800 {KEY}"}}', f'{{"a":"\\ud800 {MASK}"}}'),
        (KEY, f'{{"a":"ü {KEY}","b":NaN}}', f'{{"a":"ü {MASK}","b":NaN}}'),
        (QUOTED, f"data: {json.dumps(QUOTED)}", f'data: "{MASK}"'),
        (QUOTED, json.dumps({"a": json.dumps({"b": QUOTED})}), json.dumps({"a": json.dumps({"b": MASK})})),
        (KEY, "[" * 5000 + f'"{KEY}"', "[" * 5000 + f'"{MASK}"'),
    ],
    ids=["a line end", "a number", "delimiters", "broken", "escaped", "half", "NaN", "no JSON", "nested", "deep"],
)
def test_secret_is_found_in_every_spelling(secret: str, line: str, masked: str | None) -> None:
    found = Redactor({"KEY": secret}).line(line.encode())
    assert found == (line if masked is None else masked).encode()


def test_invalid_bytes_around_secret_are_kept() -> None:
    line = b"\xff\xfe " + KEY.encode() + b" \xc3"
    assert ONE.line(line) == b"\xff\xfe " + MASK.encode() + b" \xc3"


@pytest.mark.parametrize("shown", range(1, len(QUOTED.encode())))
def test_cut_line_has_no_part_of_secret(shown: int) -> None:
    redactor = Redactor({"KEY": QUOTED})
    line = f"{QUOTED} and ".encode() + QUOTED.encode()[:shown]
    assert redactor.line(line, cut=True) == f"{MASK} and ".encode()


@pytest.mark.parametrize("limit", range(1, 60))
def test_tail_begins_with_no_part_of_secret(limit: int) -> None:
    redactor = Redactor({"KEY": QUOTED, "OTHER": KEY})
    content = f"before {QUOTED} after\n{KEY}\nend".encode()
    read = content[-(limit + redactor.longest) :]
    whole = f"before {MASK} after\n{MASK}\nend"
    assert whole.endswith(redactor.tail(read, limit).decode().removeprefix(MASK))
    assert len(redactor.tail(read, limit)) <= limit


def test_tail_of_short_content_is_whole() -> None:
    assert ONE.tail(f"ä {KEY}\n".encode(), 1000) == f"ä {MASK}\n".encode()
    assert ONE.tail(b"", 1000) == b""


@pytest.mark.parametrize(
    "name",
    [
        *("ANTHROPIC_API_KEY", "HOCKET_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "npm_config__auth_TOKEN"),
        *("GITHUB_PAT", "ANTHROPIC_AUTH_TOKEN", "KEY", "token"),
    ],
)
def test_keys_and_tokens_are_secrets(name: str) -> None:
    assert secrets_of({name: KEY, "PATH": "/usr/bin:/bin:/usr/local/bin"}) == {name: KEY}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ANTHROPIC_API_KEY", "short"), ("SSH_KEY", "/home/me/.ssh/id_ed25519"), ("KEYBOARD_LAYOUT", KEY)),
        *(("MONKEY", KEY), ("SECRET", "two words are no secret"), ("TOKENIZERS_PARALLELISM", KEY)),
    ],
)
def test_other_values_are_no_secrets(name: str, value: str) -> None:
    assert secrets_of({name: value}) == {}
