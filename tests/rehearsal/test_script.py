"""Scripts are read strictly, and each error names its location."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import rehearsal
from hocket.errors import UsageError
from hocket.rehearsal import ScriptError, load, parse
from hocket.rehearsal.steps import Call, Calls, Echo, End, Fail, Marker, Rule, Say, Spend, Think, Wait

WORDS = [
    "rules",
    "when",
    "do",
    "say",
    "think",
    "tool",
    "tools",
    "ask",
    "agent",
    "wait",
    "cost",
    "usage",
    "fail",
    "marker",
    "refuse",
    "break",
    "name",
    "input",
    "result",
    "error",
    "allowed",
    "denied",
    "type",
    "prompt",
    "background",
    "status",
    "exit",
    "message",
    "turn",
    "pass",
    "woken",
    "last",
    "system",
    "/(/",
    "/a/",
]

FULL = """
version: 1
rules:
  - when: {agent: planner, prompt: plan, system: /you.are/, last: x, tools: [Bash], turn: 2, pass: 3}
    do:
      - think: hm
      - say: hello
      - tool: {name: Bash, input: {command: make}, result: ok, error: true}
      - tools: [{name: Read}, {ask: {tool: Edit}}, {agent: {prompt: look}}]
      - ask: {tool: Bash, input: {command: rm x}, allowed: [{say: did}], denied: [{say: did not}], rule: rm *, id: q1}
      - agent: {type: reviewer, prompt: review, background: true}
      - wait: 0.2
      - cost: 0.02
      - usage: {input: 1, output: 2}
      - marker
      - break
      - refuse
      - hang
      - crash
      - fail: {exit: 3}
      - echo: "{prompt}"
      - wait: {file: go}
  - when: {woken: true}
    do: [{fail: {status: 529, message: full}}]
default: [{say: otherwise}]
marker: READY
"""


def test_all_keys_of_script_are_read(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(FULL, encoding="utf-8")
    script = load(path)
    first, second = script.rules
    assert first.when.agent == "planner"
    assert (first.when.turn, first.when.passage, first.when.woken) == (2, 3, None)
    assert first.do[:3] == (
        Think("hm"),
        Say("hello"),
        Calls((Call("Bash", {"command": "make"}, "ok", error=True),)),
    )
    assert first.do[3] == Calls(
        (
            Call("Read", {}),
            Call("Edit", {}, asks=True),
            Call(
                "Agent",
                {
                    "description": "general-purpose",
                    "prompt": "look",
                    "subagent_type": "general-purpose",
                    "run_in_background": False,
                },
            ),
        )
    )
    assert first.do[-2:] == (Echo("{prompt}"), Wait(file="go"))
    asking = first.do[4]
    assert isinstance(asking, Calls)
    assert (asking.calls[0].rule, asking.calls[0].id) == ("rm *", "q1")
    assert first.do[6:9] == (Wait(0.2), Spend(cost=0.02), Spend(None, 1, 2))
    assert first.do[9:-2] == (Marker(), End("break"), End("refuse"), End("hang"), End("crash"), Fail(None, exit=3))
    assert second == Rule(second.when, (Fail(529, "full"),))
    assert second.when.woken == 0
    assert (script.default, script.marker) == ((Say("otherwise"),), "READY")


def test_json_and_yaml_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rules": [{"do": [{"say": "hi"}, "marker"]}]}', encoding="utf-8")
    (tmp_path / "a.yaml").write_text("rules:\n- do: [say: hi, marker]\n", encoding="utf-8")
    assert load(tmp_path / "a.json") == load(tmp_path / "a.yaml")


WRONG: list[tuple[Any, str]] = [
    *(
        ({"rules": [{"do": [*before, "break"]}]}, f"step {len(before) + 1}: break must follow a text")
        for before in ([], [{"think": "hm"}], [{"say": "a"}, {"tool": {"name": "Bash"}}])
    ),
    ([], "s: must be keys and values; got a list"),
    ({}, "s: 'rules' is missing"),
    ({"rulse": []}, "s: unknown key 'rulse'; did you mean 'rules'?"),
    ({"rules": [], "version": 2}, "s: unknown version 2"),
    ({"rules": [{"do": [{"new": 1}]}], "version": 2}, "s: unknown version 2"),
    ({"rules": {}}, "s: rules: must be a list; got keys and values"),
    ({"rules": [{"do": [{"say": "a"}]}, {"when": {}}]}, "s: rule 2: 'do' is missing"),
    ({"rules": [{"do": []}]}, "s: rule 1: do: must have at least one step"),
    (
        {"rules": [{"when": {"promt": "x"}, "do": ["hang"]}]},
        "rule 1: when: unknown key 'promt'; did you mean 'prompt'?",
    ),
    ({"rules": [{"when": {"turn": 0}, "do": ["hang"]}]}, "rule 1: when: turn: must be a whole number from 1 to"),
    ({"rules": [{"when": {"pass": True}, "do": ["hang"]}]}, "pass: must be a whole number from 1 to"),
    ({"rules": [{"when": {"prompt": "/(/"}, "do": ["hang"]}]}, "prompt: /(/ is not a regular expression"),
    ({"rules": [{"do": [{"sya": "a"}]}]}, "rule 1: do: step 1: unknown key 'sya'; did you mean 'say'?"),
    ({"rules": [{"do": ["markr"]}]}, "unknown step 'markr'; did you mean 'marker'?"),
    ({"rules": [{"do": [{"say": "a", "think": "b"}]}]}, "a step is one key with its value"),
    ({"rules": [{"do": [{"say": 42}]}]}, "step 1, say: must be a text; got 42"),
    ({"rules": [{"do": [{"wait": -1}]}]}, "wait: must be a number from 0 to 3600; got -1"),
    ({"rules": [{"do": [{"tool": {"name": "Bash", "inptu": {}}}]}]}, "unknown key 'inptu'; did you mean 'input'?"),
    (
        {"rules": [{"do": [{"ask": {"tool": "Bash", "denied": [{"sai": "x"}]}}]}]},
        "ask: denied: step 1: unknown key 'sai'",
    ),
    ({"rules": [{"do": [{"tools": [{"ask": {"tool": "B", "denied": ["hang"]}}]}]}]}, "not supported for several"),
    ({"rules": [{"do": [{"tool": {"name": "B", "input": {}, "echo": {}}}]}]}, "must have either an input or an echo"),
    ({"rules": [{"do": [{"agent": {"type": "x"}}]}]}, "agent: 'prompt' is missing"),
    ({"rules": [{"do": [{"fail": {}}]}]}, "must have either a status or an exit code"),
    ({"rules": [{"do": [{"fail": {"status": 200}}]}]}, "status: must be a whole number from 400 to 599; got 200"),
    (
        {
            "rules": [
                {"do": [{"say": "a"}, {"tool": {"name": "B"}}, {"think": "a"}, {"wait": 1}, {"fail": {"status": 500}}]}
            ]
        },
        "step 5: an API failure cannot follow a thought alone",
    ),
    ({"rules": [{"do": ["say"]}]}, "step 1: say needs a value"),
    ({"rules": [{"do": [{"hang": True}]}]}, "step 1: hang takes no value"),
    ({"rules": [], "default": "fial"}, "s: default: must be a list; got 'fial'"),
]


@pytest.mark.parametrize(("document", "complaint"), WRONG)
def test_error_names_location_of_mistake(document: Any, complaint: str) -> None:
    with pytest.raises(ScriptError) as raised:
        parse(document, "s")
    assert complaint in raised.value.message


def test_error_lists_the_known_keys() -> None:
    with pytest.raises(ScriptError) as raised:
        parse({"rules": [{"do": [{"tool": "Bash"}]}]}, "s")
    assert raised.value.hint == "its keys: name, input, result, error, echo"


def test_date_in_tool_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("rules:\n- do: [tool: {name: Bash, input: {when: 2026-01-02}}]\n", encoding="utf-8")
    with pytest.raises(ScriptError, match=r"rule 1: do: step 1, tool: input: .*not JSON serializable"):
        load(path)


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", "rules: ["), ("a.json", "{"), ("none.yaml", None), ("b.yaml", "\xff")]
)
def test_unreadable_script_file_is_an_error(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ScriptError, match=name):
        load(tmp_path / name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 600) | st.text(max_size=4) | st.sampled_from([*WORDS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WORDS]), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_invalid_document_raises_only_script_error(document: Any) -> None:
    for rules in (document, [document], [{"do": document}], [{"do": [document]}], [{"when": document, "do": ["hang"]}]):
        with contextlib.suppress(ScriptError):
            assert parse({"rules": rules}).rules is not None


def test_script_error_is_usage_error() -> None:
    assert issubclass(ScriptError, UsageError)
    assert ScriptError("x").exit_code == 2


def test_public_names_are_available() -> None:
    assert [name for name in rehearsal.__all__ if not callable(getattr(rehearsal, name))] == []
    with pytest.raises(AttributeError):
        rehearsal.nothing  # noqa: B018 - asking for it is the test
