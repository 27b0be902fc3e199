"""What the text of a chain means, and what a command line's words mean."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.chain.parse import StepText, check_agent, is_marker, is_path, parse, render
from hocket.chain.variables import is_variable_name, join, substitute
from hocket.errors import ChainSyntaxError, UsageError
from hocket.input_limits import MAX_ITERATIONS, MAX_STEPS

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,12}", fullmatch=True)
paths = st.from_regex(r"(/|\./|~/)[a-z .:_(),-]{0,8}[a-z]", fullmatch=True).filter(lambda path: "->" not in path)

ARABIC_THREE = "\u0663"
E_ACUTE = "\u00e9"


def read(text: str) -> list[tuple[str, int, bool]]:
    return [(step.agent, step.iterations, step.loop) for step in parse(text)]


@pytest.mark.req("S1-B01")
@pytest.mark.parametrize(
    "text",
    ["a:3->b", "a:3 -> b", " a : 3 -> b ", "a\t:\t3\n->\nb", "a: 3 ->b\n", "a :3-> b"],
)
def test_whitespace_around_arrow_and_colon_is_ignored(text: str) -> None:
    assert read(text) == [("a", 3, True), ("b", 1, False)]


@pytest.mark.req("S1-B02")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", 1, False)),
        ("a:1", ("a", 1, True)),
        ("a:007", ("a", 7, True)),
        (f"a:{MAX_ITERATIONS}", ("a", MAX_ITERATIONS, True)),
    ],
)
def test_suffix_of_one_makes_a_loop(text: str, expected: tuple[str, int, bool]) -> None:
    assert read(text) == [expected]


def test_steps_know_their_position_from_one() -> None:
    assert [step.position for step in parse("a -> b:2 -> c")] == [1, 2, 3]


@pytest.mark.req("S1-B03")
@pytest.mark.parametrize("suffix", [":0", ":-1", ":1.5", ":abc", ":", ":+1", ":00", ": ", ":3x", f":{ARABIC_THREE}"])
def test_invalid_iterations_error_names_the_step(suffix: str) -> None:
    with pytest.raises(ChainSyntaxError) as caught:
        parse(f"first -> second{suffix} -> third")
    assert f"second{suffix}".strip() in caught.value.message
    assert "step 2" in caught.value.message


@pytest.mark.req("S1-B03")
@pytest.mark.parametrize("suffix", [":0", ":-1", ":1.5", ":"])
def test_invalid_number_after_path_is_an_error(suffix: str) -> None:
    with pytest.raises(ChainSyntaxError, match=r"step 1: './tool"):
        parse(f"./tool{suffix}")


@pytest.mark.parametrize("count", [str(MAX_ITERATIONS + 1), "9" * 100_000], ids=["one", "far"])
def test_too_many_iterations_are_refused(count: str) -> None:
    with pytest.raises(ChainSyntaxError, match=str(MAX_ITERATIONS)):
        parse(f"a:{count}")


@pytest.mark.req("S1-B04")
@pytest.mark.parametrize(
    ("text", "number"),
    [("", 1), (" \n\t", 1), ("-> a", 1), ("a ->", 2), ("a -> -> b", 2), ("a -> b -> ", 3), ("->", 1)],
)
def test_missing_step_error_has_its_number(text: str, number: int) -> None:
    with pytest.raises(ChainSyntaxError, match=f"step {number}"):
        parse(text)


@pytest.mark.req("S1-B05")
@pytest.mark.parametrize("name", ["a", "A9", "3", "007", "forge-task-manager", "a_b", "x-", "1-2"])
def test_plain_names_are_accepted(name: str) -> None:
    assert read(name) == [(name, 1, False)]


@pytest.mark.req("S1-B05", "S1-20")
@pytest.mark.parametrize(
    "name",
    [
        *("_a", "-a", "--flag", "a.b", "a b", "a,b", "$x", E_ACUTE),
        *("a\0b", "a\nb", "a\x1bb", "a\udc80", "a\uff0fb"),
    ],
    ids=ascii,
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ChainSyntaxError, match="step 1"):
        parse(name)


@pytest.mark.parametrize("path", ["./a\0b", "/a\nb", "/a\x7f", "-x/y", "/a\udc80"], ids=ascii)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(ChainSyntaxError):
        parse(path)


def test_missing_arrow_gives_a_hint() -> None:
    with pytest.raises(ChainSyntaxError) as caught:
        parse("planner builder")
    assert caught.value.hint is not None
    assert "->" in caught.value.hint


# --- Groups -------------------------------------------------------------------------------------------------


def stages(text: str) -> list[list[str]]:
    """The steps as they are written again, those that run at the same time together."""
    return [[render([step]) for step in members] for _, members in groupby(parse(text), lambda step: step.position)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(a, b)", [["a", "b"]]),
        ("(a,b)", [["a", "b"]]),
        ("  (\ta :3 ,\nb )  ", [["a:3", "b"]]),
        ("(reviewer, qa:3)", [["reviewer", "qa:3"]]),
        ("x -> (a, b:3) -> y:2", [["x"], ["a", "b:3"], ["y:2"]]),
        ("(a, b) -> (c, d, e)", [["a", "b"], ["c", "d", "e"]]),
        ("(a, a, a)", [["a", "a", "a"]]),
        ("(a)", [["a"]]),
        ("(./a:b, /c d/e:4)", [["./a:b", "/c d/e:4"]]),
        ("(/opt/v1:2/tool, ~/bin/x:1)", [["/opt/v1:2/tool", "~/bin/x:1"]]),
        ("./odd(1), b/x", [["./odd(1), b/x"]]),
    ],
)
def test_group_members_share_a_position(text: str, expected: list[list[str]]) -> None:
    assert stages(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x -> ()", "step 2, member 1 is empty"),
        ("x -> ( )", "step 2, member 1 is empty"),
        ("(a, )", "step 1, member 2 is empty"),
        ("(, a)", "step 1, member 1 is empty"),
        ("x -> y -> (a,, b)", "step 3, member 2 is empty"),
        ("x -> (a, b", "step 2: the group is not closed"),
        ("(", "step 1: the group is not closed"),
        ("(a -> b)", "step 1: the group is not closed"),
        ("(a, (b, c))", "step 1: a group within a group"),
        ("((a, b))", "step 1: a group within a group"),
        ("x -> (a,b):3", "step 2: ':3' follows the end of the group"),
        ("(a,b) c", "step 1: 'c' follows the end of the group"),
        ("(a,b))", "step 1: ')' follows the end of the group"),
        ("(a, b:0)", "step 1, member 2: 'b:0' must iterate"),
        ("(a, b:x)", "step 1, member 2: 'b:x' has no whole number"),
        ("(a, b c)", "step 1, member 2: 'b c' is not a name"),
        ("(a, -b)", "step 1, member 2: an agent cannot begin with a dash"),
        ("a, b", "step 1: 'a, b' is not a name"),
        ("a)", "step 1: 'a)' is not a name"),
        ("x (a, b)", "step 1: 'x (a, b)' is not a name"),
    ],
)
def test_malformed_group_error_names_step_and_member(text: str, message: str) -> None:
    with pytest.raises(ChainSyntaxError) as caught:
        parse(text)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("text", ["ok:3:4", "x -> ok:3:4", "(x, ok:1 : 2)", "ok:x:4", "ok::4"])
def test_second_suffix_is_refused(text: str) -> None:
    with pytest.raises(ChainSyntaxError) as caught:
        parse(text)
    assert 'has more than one ":"' in caught.value.message
    assert caught.value.hint == "only one :N may follow an agent: a:3"


def test_suffix_on_group_gives_a_hint() -> None:
    with pytest.raises(ChainSyntaxError) as caught:
        parse("(a, b):3")
    assert caught.value.hint is not None
    assert "(a:3, b)" in caught.value.hint


@pytest.mark.req("S1-27")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/opt/v1:2/tool", ("/opt/v1:2/tool", 1, False)),
        ("/opt/v1:2/tool:3", ("/opt/v1:2/tool", 3, True)),
        ("./tool.v1.2", ("./tool.v1.2", 1, False)),
        ("./tool.v1.2:4", ("./tool.v1.2", 4, True)),
        ("./odd:name", ("./odd:name", 1, False)),
        ("./odd:3:2", ("./odd:3", 2, True)),
        ("../up/x:5", ("../up/x", 5, True)),
        ("~/bin/x : 2", ("~/bin/x", 2, True)),
    ],
)
def test_trailing_digits_of_path_are_a_suffix(text: str, expected: tuple[str, int, bool]) -> None:
    assert read(text) == [expected]


@pytest.mark.req("S1-28")
def test_paths_may_have_spaces() -> None:
    assert read("/my tools/run it:2 -> ./b c") == [("/my tools/run it", 2, True), ("./b c", 1, False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", False), ("a/b", True), ("/a", True), (".a", True), ("~x", True), ("a-b", False)],
)
def test_slash_dot_or_tilde_makes_a_path(text: str, expected: bool) -> None:
    assert is_path(text) is expected


def test_number_of_steps_is_limited() -> None:
    assert len(parse("->".join("a" * MAX_STEPS))) == MAX_STEPS
    assert len(parse(f"a -> ({','.join('a' * (MAX_STEPS - 1))})")) == MAX_STEPS


@pytest.mark.parametrize("more", [1, 2, 50_000])
def test_too_many_steps_error_names_the_step(more: int) -> None:
    with pytest.raises(ChainSyntaxError, match=f"step {MAX_STEPS + 1} is one too many: a chain has at most"):
        parse("->".join("a" * (MAX_STEPS + more)))
    with pytest.raises(ChainSyntaxError, match="step 2 is one too many: a chain has at most"):
        parse(f"a -> ({','.join('a' * (MAX_STEPS + more - 1))})")


def test_parsing_long_whitespace_takes_linear_time() -> None:
    assert parse("./a" + " " * 400_000 + "b")[0].agent.startswith("./a ")


@settings(max_examples=1000, deadline=None)
@given(st.text(st.sampled_from("ab1 :->/.~(),-\t\n\0" + E_ACUTE), max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        steps = parse(text)
    except UsageError:
        return
    assert parse(render(steps)) == steps


counted = st.tuples(names | paths, st.none() | st.integers(1, MAX_ITERATIONS))
members = st.tuples(names | paths.filter(lambda path: not set("(),") & set(path)), st.none() | st.integers(1, 9))
groups = st.lists(members, min_size=2, max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.lists(counted.map(lambda one: [one]) | groups, min_size=1, max_size=6))
def test_rendered_chain_is_parsed_back(wanted: list[list[tuple[str, int | None]]]) -> None:
    steps = tuple(
        StepText(agent, count or 1, count is not None, number)
        for number, stage in enumerate(wanted, 1)
        for agent, count in stage
    )
    assert parse(render(steps)) == steps


def test_agent_error_names_its_place() -> None:
    assert check_agent("./x", "here") == "./x"
    with pytest.raises(ChainSyntaxError, match="here: 'a b'"):
        check_agent("a b", "here")


@pytest.mark.req("S1-B06", "S1-B07")
@pytest.mark.parametrize(
    ("words", "dsl", "variables"),
    [
        (["a", "->", "b:2"], "a -> b:2", {}),
        (["a -> b"], "a -> b", {}),
        (["NAME=value", "a", "X_1=y=z", "E="], "a", {"NAME": "value", "X_1": "y=z", "E": ""}),
        (["lower=x", "./a=b", "A-B=c", "=x"], "lower=x ./a=b A-B=c =x", {}),
        (["A=1\n2", "A=3"], "", {"A": "3"}),
        ([], "", {}),
    ],
)
def test_arguments_are_split_into_text_and_variables(words: list[str], dsl: str, variables: dict[str, str]) -> None:
    assert join(words) == (dsl, variables)


@pytest.mark.req("S1-B11")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "one"),
        ("x${A}y${B_2}z", "xoney${A}z"),
        ("$$ $A $(A) `A` ${", "$$ $A $(A) `A` ${"),
        ("$${A}", "$one"),
        ("${a} ${a.b} ${}", "${a} ${a.b} ${}"),
        ("", ""),
    ],
)
def test_variables_are_replaced_once(text: str, expected: str) -> None:
    assert substitute(text, {"A": "one", "B_2": "${A}"}) == expected


@pytest.mark.req("S1-B11")
def test_missing_variable_value_is_named() -> None:
    with pytest.raises(UsageError, match="TICKET") as caught:
        substitute("fix ${TICKET}", {"OTHER": "x"})
    assert caught.value.exit_code == 2


@pytest.mark.req("S1-B07")
@pytest.mark.parametrize(
    ("name", "expected"), [("A", True), ("_A1", True), ("a", False), ("1A", False), ("A\n", False)]
)
def test_variable_names_are_capitals(name: str, expected: bool) -> None:
    assert is_variable_name(name) is expected


@pytest.mark.req("S1-41", "S1-44")
@pytest.mark.parametrize(
    "line", ["DONE", " DONE ", "`DONE`", "**DONE**", "  **`DONE`**\r", "\tDONE\n", "***DONE", "```DONE```"]
)
def test_marker_may_have_spaces_backticks_and_asterisks(line: str) -> None:
    assert is_marker(line, "DONE")


@pytest.mark.req("S1-41", "S1-44")
@pytest.mark.parametrize("line", ["", "DONE.", "not DONE", "DONE DONE", "done", "DO NE", "'DONE'", "# DONE", "D*NE"])
def test_marker_is_a_line_of_its_own(line: str) -> None:
    assert not is_marker(line, "DONE")


def test_decorated_marker_is_found_unless_empty() -> None:
    assert is_marker("**DONE**", "**DONE**")
    assert not is_marker("***", "**")
    assert not is_marker("", "")


dress = st.text(st.sampled_from(" `*\t"), max_size=6)


@settings(max_examples=300, deadline=None)
@given(dress, dress, st.text(max_size=8))
def test_marker_counts_only_alone_on_its_line(before: str, after: str, other: str) -> None:
    assert is_marker(f"{before}DONE{after}", "DONE")
    assert is_marker(f"DONE{other}", "DONE") is (other.strip(" `*\t\r\n") == "")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("say→okm", 'separate steps with "->"'),
        ("a => b", 'separate steps with "->"'),
        (
            "Code Reviewer",
            'separate steps with "->"; an agent with such a name has an address, as Code-Reviewer: `hocket agents`',
        ),
        ("(a -> b, c)", 'a group holds agents and no "->": (a, b:3)'),
    ],
)
def test_almost_valid_chain_gives_a_hint(text: str, hint: str) -> None:
    with pytest.raises(ChainSyntaxError) as caught:
        parse(text)
    assert caught.value.hint == hint
