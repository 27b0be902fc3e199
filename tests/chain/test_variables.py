"""What is put into prompts."""

from __future__ import annotations

import pytest

from hocket.chain.variables import fill, has_placeholders, placeholders


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{{task}} and {{ previous.result }}", ["task", "previous.result"]),
        ("{{}} {{ }} { {task} } {{2}} ${{TASK", []),
        ("{{{task}}}", ["task"]),
        ("{{a-b.c}}", ["a-b.c"]),
    ],
)
def test_placeholders_are_names_in_double_braces(text: str, names: list[str]) -> None:
    assert placeholders(text) == names


def test_only_known_placeholders_make_a_template() -> None:
    assert has_placeholders("do {{task}}")
    assert has_placeholders("see {{previous.result}}")
    assert not has_placeholders("{{user.name}} {{Task}}")


def test_filled_values_are_not_filled_again() -> None:
    values = {"task": "{{previous.result}} \\1", "previous.result": "r"}
    assert fill("{{ task }}, {{previous.result}}, {{other}}", values) == "{{previous.result}} \\1, r, {{other}}"
