"""Text for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hocket.cli.format import (
    cost_text,
    display_width,
    format_table,
    parse_count,
    parse_dollars,
    parse_duration,
    status_label,
    truncate,
)
from hocket.views.text import duration, escape_invisible, one_line, strip_controls, terminal_output, upcoming_time


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\sixel", "sixel"),
        ("\x9b31mred", "red"),
        ("bell\x07 back\x08space", "bell backspace"),
        ("line\r\nnext", "line\nnext"),
        ("over\rwrite", "overwrite"),
        ("\u202egnp.exe", "gnp.exe"),
        ("torn \x1b[", "torn "),
        ("torn \x1b]0;no end", "torn "),
        ("ünï 漢字 ✓", "ünï 漢字 ✓"),
    ],
)
def test_control_sequences_are_removed_from_agent_text(said: str, shown: str) -> None:
    assert strip_controls(said) == shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
        ("50%\r\x1b[Kdone\r", "done"),
        ("50%\r   \r", "   "),
        ("\r", ""),
    ],
)
def test_overwritten_line_shows_its_last_state(written: str, shown: str) -> None:
    assert terminal_output(written) == shown


@pytest.mark.parametrize("clean", [strip_controls, terminal_output])
@given(text=st.text(alphabet=st.characters(max_codepoint=0x100), max_size=80))
def test_no_control_character_survives(clean: Callable[[str], str], text: str) -> None:
    left = clean(text)
    assert not [letter for letter in left if letter not in "\n\t" and (letter < " " or "\x7f" <= letter <= "\x9f")]


@pytest.mark.parametrize("clean", [strip_controls, terminal_output])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("one\u2028two", "one two"),
        ("one\u2029two", "one two"),
        ("one\x85two", "onetwo"),
        ("one\x0btwo\x0cthree", "onetwothree"),
        ("one\x1ctwo\x1dthree\x1efour", "onetwothreefour"),
        ("\u202aone\u202btwo\u202cthree\u202dfour\u202e", "onetwothreefour"),
        ("\u2066one\u2067two\u2068three\u2069", "onetwothree"),
        ("one\u200etwo\u200fthree\u061cfour", "onetwothreefour"),
        ("one\u206atwo\u206fthree", "onetwothree"),
        ("one\ufff9two\ufffathree\ufffb", "onetwothree"),
        ("क्\u200cष 👩\u200d💻", "क्\u200cष 👩\u200d💻"),
    ],
)
def test_line_and_format_controls_do_not_pass(clean: Callable[[str], str], said: str, shown: str) -> None:
    assert clean(said) == shown


@given(text=st.text(alphabet=st.sampled_from("ab \n\r\t\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=80))
def test_newlines_are_the_only_line_ends(text: str) -> None:
    left = strip_controls(text)
    assert left.splitlines() == left.removesuffix("\n").split("\n") or not left


def test_line_breaks_become_spaces() -> None:
    assert one_line("  a\n b\t\tc \n") == "a b c"
    assert one_line("a\u2028b") == "a b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (48.9, "0:48"), (72, "1:12"), (3723, "1:02:03"), (97200, "1d 03h"), (-5, "0:00"), (None, "-")],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds).replace("–", "-") == text  # noqa: RUF001 - either dash will do


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("0.5", 0.5), ("250ms", 0.25)],
)
def test_time_limits_are_understood(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5x", "-1", "1 2", "1h30", "ten", "1e3", "5m!", "٣x"])
def test_invalid_time_limit_is_refused(text: str) -> None:
    assert parse_duration(text) is None


def test_widths_count_columns() -> None:
    assert [display_width(text) for text in ("abc", "漢字", "e\u0301", "✓")] == [3, 4, 1, 1]


LETTERS = [one for one in map(chr, range(sys.maxunicode + 1)) if one.isprintable()]


def test_display_width_matches_rich() -> None:
    """It cuts off what it takes for too wide, though we had folded it to fit."""
    assert [hex(ord(one)) for one in LETTERS if cell_len(one) > display_width(one)] == []


@given(st.text(st.sampled_from(["a", "☁", "☰", "漢", "\u0301", "\ufe0f", "\u200d", "\U0001f469", "\U0001f1e9"])))
def test_combined_characters_are_never_too_wide(text: str) -> None:
    assert cell_len(text) <= display_width(text)


UNSEEN = (
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
    *(0x2800, 0x1D159),
)
"""What Unicode calls ignorable by default, and two letters that are blank."""


def test_letters_that_cannot_be_seen_are_spelled() -> None:
    assert [hex(one) for one in UNSEEN if chr(one) in escape_invisible(f"rm{chr(one)}x")] == []
    assert escape_invisible("rm\u3164\ufe0f\U000e0101\t漢字") == "rm\\u3164\\ufe0f\\U000e0101\t漢字"


def test_letters_that_can_be_seen_are_not() -> None:
    assert escape_invisible("ünï 漢字 ✓ Cafe\u0301 ⠋ 한국") == "ünï 漢字 ✓ Cafe\u0301 ⠋ 한국"


@given(st.text(max_size=40), st.integers(1, 30))
def test_fitted_text_is_never_too_wide(text: str, columns: int) -> None:
    assert display_width(truncate(text, columns)) <= columns


def test_table_cuts_only_its_last_column() -> None:
    lines = format_table([["A", "STATE", "LAST"], ["long name", "✓", "x" * 50], ["漢字", "●", "y"]], columns=30)
    assert lines[0] == "A          STATE  LAST"
    assert lines[1] == "long name  ✓      " + "x" * 11 + "…"
    assert lines[2] == "漢字       ●      y"


def test_open_question_outranks_the_status() -> None:
    assert status_label({"status": "waiting", "needs_you": True}) == "◆ needs you"
    assert status_label({"status": "waiting", "needs_you": False}) == "○ idle"
    assert status_label({"status": "unheard of"}) == "unheard of"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ({}, None),
        ({"cost_usd": None, "tokens": None}, None),
        ({"cost_usd": 0.0123, "tokens": 15}, "$0.0123, 15 tokens"),
        ({"cost_usd": 0.0}, "$0.0000"),
        ({"cost_usd": 0.53, "budget_usd": 0.5}, "$0.53 of $0.50, $0.03 over"),
        ({"cost_usd": 0.5012, "budget_usd": 0.5, "cost_estimated": True}, "~$0.5012 of $0.50, $0.0012 over"),
        ({"cost_usd": 0.1 + 0.2, "budget_usd": 0.3, "tokens": 7}, "$0.30 of $0.30, 7 tokens"),
        ({"cost_usd": 0.1, "budget_usd": 5.0}, "$0.10 of $5.00"),
        ({"cost_usd": None, "budget_usd": 5.0, "tokens": 9, "budget_tokens": 8}, "unpriced, 9 of 8 tokens, 1 over"),
    ],
)
def test_cost_text_shows_known_parts(run: dict[str, float | None], text: str | None) -> None:
    assert cost_text(run) == text


def test_upcoming_time_is_as_exact_as_needed() -> None:
    noon = time.mktime((2026, 3, 2, 12, 0, 0, 0, 0, -1))
    assert upcoming_time(noon + 30, noon) == "12:00:30"
    assert upcoming_time(noon + 3600, noon) == "13:00"
    assert upcoming_time(noon + 86400, noon) == "Tue 12:00"
    assert upcoming_time(noon + 30 * 86400, noon).startswith("2026-04-01 ")


def test_parked_run_shows_its_end() -> None:
    assert status_label({"status": "waiting", "parked_until": 4e9}).startswith("‖ waits until 2096-10-0")
    assert status_label({"status": "waiting", "parked_until": None}) == "○ idle"
    assert status_label({"status": "waiting", "parked_until": 4e9, "needs_you": True}) == "◆ needs you"


@pytest.mark.parametrize(
    ("text", "sum_of"),
    [("5", 5.0), ("0.50", 0.5), ("$2", 2.0), (".5", 0.5), ("5.", 5.0), ("0", None), ("-1", None), ("1e3", None)],
)
def test_dollar_amount_is_parsed(text: str, sum_of: float | None) -> None:
    assert parse_dollars(text) == sum_of


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("007", 7), ("0", None), ("1.5", None), ("²", None), ("", None), ("9" * 16, None)]
)
def test_count_option_is_parsed(text: str, count: int | None) -> None:
    assert parse_count(text) == count


def test_tokens_without_a_price_are_unpriced() -> None:
    assert cost_text({"cost_usd": None, "tokens": 7}) == "unpriced, 7 tokens"
    assert cost_text({"cost_usd": 0.5, "tokens": 7}) == "$0.5000, 7 tokens"
    assert cost_text({"cost_usd": None, "tokens": None}) is None


def test_estimated_cost_is_marked() -> None:
    assert cost_text({"cost_usd": 0.12, "cost_estimated": True, "tokens": 7}) == "~$0.1200, 7 tokens"
