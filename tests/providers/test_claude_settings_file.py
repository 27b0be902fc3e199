"""Our hook in the user's settings: added and removed without touching anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import ConfigError
from hocket.providers.claude.settings_file import with_hook, without_hook

PATH = "/settings.json"
ARGV = ("/py thon", "-m", "hocket")
OTHER = {"matcher": "Bash", "hooks": [{"type": "command", "command": "true"}]}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
events = st.dictionaries(st.sampled_from(["PreToolUse", "Stop"]), st.lists(values, max_size=2))
settings = st.dictionaries(st.text(max_size=5).filter(lambda key: key != "hooks"), values, max_size=3).flatmap(
    lambda rest: (
        st.just(rest) | events.map(lambda hooks: {**rest, "hooks": hooks}) | events.map(lambda h: {"hooks": h, **rest})
    )
)


def ours(text: str) -> list[str]:
    groups = json.loads(text)["hooks"]["PreToolUse"]
    found = [hook["command"] for group in groups if isinstance(group, dict) for hook in group.get("hooks") or []]
    return [command for command in found if "hocket setup claude" in command]


@given(settings, st.sampled_from([None, 2, 4, "\t"]), st.booleans(), st.sampled_from(["", "\n", " \r\n"]))
def test_undo_restores_every_byte(before: dict[str, Any], indent: Any, ascii_only: bool, end: str) -> None:
    text = json.dumps(before, indent=indent, ensure_ascii=ascii_only) + end
    added = with_hook(text, PATH, ARGV)
    (command,) = ours(added)
    assert command.startswith("'/py thon' -m hocket # added by hocket setup claude (")
    assert with_hook(added, PATH, ARGV) == added
    restored, is_empty = without_hook(added, PATH)
    assert (json.loads(restored), is_empty) == (before, False)
    if before and before.get("hooks") != {} and before.get("hooks", {}).get("PreToolUse") != []:
        assert restored == text


def test_file_of_our_own_has_nothing_left() -> None:
    added = with_hook(None, PATH, ARGV)
    assert without_hook(added, PATH) == ("{}\n", True)
    grown = json.dumps({**json.loads(added), "model": "opus"})
    assert without_hook(grown, PATH) == ('{"model": "opus"}', False)


def test_another_program_replaces_ours() -> None:
    added = with_hook('{"a": 1}', PATH, ARGV)
    again = with_hook(added, PATH, ("/else",))
    (command,) = ours(again)
    assert command.startswith("/else # added")
    assert without_hook(again, PATH)[0] == '{"a": 1}'


def test_what_the_user_added_to_our_entry_stays() -> None:
    added = json.loads(with_hook("{}", PATH, ARGV))
    added["hooks"]["PreToolUse"][0]["hooks"].append({"type": "command", "command": "theirs"})
    left = json.loads(without_hook(json.dumps(added), PATH)[0])
    assert [hook["command"] for hook in left["hooks"]["PreToolUse"][0]["hooks"]] == ["theirs"]
    added = json.loads(with_hook("{}", PATH, ARGV))
    added["hooks"]["PreToolUse"].insert(0, OTHER)
    assert json.loads(without_hook(json.dumps(added), PATH)[0]) == {"hooks": {"PreToolUse": [OTHER]}}
    added = json.loads(with_hook("{}", PATH, ARGV))
    added["hooks"]["Stop"] = [OTHER]
    assert json.loads(without_hook(json.dumps(added), PATH)[0]) == {"hooks": {"Stop": [OTHER]}}


def test_hook_that_the_user_wrote_is_not_ours() -> None:
    text = json.dumps({"hooks": {"PreToolUse": [{"hooks": [{"command": "hocket hook pre-tool-use"}]}]}})
    assert without_hook(text, PATH) == (text, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("{} x", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a": NaN}', "NaN is not a number"),
        ("[]", "must be a JSON object; got []"),
        ('{"hooks": []}', '"hooks" must be an object of lists'),
        ('{"hooks": null}', '"hooks" must be an object of lists'),
        ('{"hooks": {"PreToolUse": {}}}', '"hooks" must be an object of lists'),
    ],
)
def test_unusable_settings_are_refused(text: str, words: str) -> None:
    for change in (lambda: with_hook(text, PATH, ARGV), lambda: without_hook(text, PATH)):
        with pytest.raises(ConfigError) as error:
            change()
        assert words in error.value.message
        assert PATH in error.value.message
