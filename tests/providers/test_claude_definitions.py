"""The keys of a definition, as the CLI and Hocket read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from catalog.definition_writing import agent, put

from hocket.catalog.entries import PROJECT, entry_of
from hocket.catalog.files import read_definition
from hocket.errors import BadDefinition
from hocket.providers.claude.definitions import MOST_ODD, complaint, ignored_fields, parse_definition
from hocket.providers.claude.frontmatter import parse
from hocket.providers.claude.models import normalise_model
from hocket.providers.definition_files import ODD, REFUSED, Head, shown


def fields(tmp_path: Path, more: str) -> dict[str, Any]:
    return dict(read_definition(str(agent(tmp_path, "a", more=more))).fields)


def refused(path: Path, **more: Any) -> BadDefinition:
    with pytest.raises(BadDefinition) as caught:
        read_definition(str(path), **more)
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.message
    return caught.value


def head(more: str = "", name: str = "a", description: str = "d") -> Head:
    found = parse(f"---\nname: {name}\ndescription: {description}\n{more}\n---\n".encode())
    assert isinstance(found, Head), found
    return found


# --- Reading ------------------------------------------------------------------------------------------------


def test_definition_has_known_fields_and_body(tmp_path: Path) -> None:
    path = put(
        tmp_path / "file.md",
        "name: rev\ndescription: Looks\\nhard\nmodel: opus\ncolor: red\ntags: [x]\ntools: Read, Bash(git *)\n"
        "disallowedTools: [Write]\npermissionMode: plan\nmaxTurns: 3\nskills: a, b\neffort: high\nbackground: true\n"
        "isolation: worktree\nmemory: user\ninitialPrompt: Go\nmcpServers: [one, {two: {command: x}}]\n"
        "hooks: {Stop: [{hooks: [{type: command, command: x}]}]}",
        "You look.",
    )
    found = read_definition(str(path))
    assert (found.name, found.path) == ("rev", str(path))
    assert found.fields == {
        "description": "Looks\nhard",
        "tools": ["Read", "Bash(git *)"],
        "disallowedTools": ["Write"],
        "model": "opus",
        "permissionMode": "plan",
        "mcpServers": ["one", {"two": {"command": "x"}}],
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]},
        "maxTurns": 3,
        "skills": ["a", "b"],
        "initialPrompt": "Go",
        "memory": "user",
        "effort": "high",
        "background": True,
        "isolation": "worktree",
        "prompt": "You look.",
    }


@pytest.mark.parametrize(
    "line",
    [
        *("model: 5", "model:", "permissionMode: everything", "maxTurns: many", "maxTurns: 0", "maxTurns: true"),
        *("effort: banana", "effort: 1.5", "background: 'yes'", "isolation: none", "memory: x", "initialPrompt: 5"),
        *("mcpServers: 7", "mcpServers: {a: {command: x}}", "mcpServers: [5, {a: b}]", "skills: 5", "hooks:"),
        *("hooks: {Foo: bar}", "hooks: {Stop: [{}]}", "hooks: {}", "color: red", "unknown: 1"),
        *("hooks: {Stop: [{hooks: [{type: command}]}]}", "hooks: {Stop: [{matcher: 3, hooks: []}]}"),
    ],
)
def test_malformed_field_is_left_out(tmp_path: Path, line: str) -> None:
    assert fields(tmp_path, line) == {"description": "d", "prompt": "Body."}


@pytest.mark.parametrize(
    ("line", "tools"),
    [("tools:", []), ('tools: ""', []), ("tools: []", []), ("tools: {a: 1}", []), ("tools: *", ["*"]), ("x: 1", None)],
)
def test_empty_tools_differ_from_absent_tools(tmp_path: Path, line: str, tools: list[str] | None) -> None:
    assert fields(tmp_path, line).get("tools") == tools


@pytest.mark.parametrize(
    ("head", "line", "words"),
    [
        ("name: a\ndescription: d\nhooks: 5", 4, "hooks"),
        ("model: x\nname: 12\ndescription: d", 3, "not a string"),
        ("name: a:b\ndescription: d", 2, "colon"),
        ("name: a\ndescription: one\ntwo", 4, "is not YAML"),
    ],
)
def test_bad_definition_error_has_line_and_reason(tmp_path: Path, head: str, line: int, words: str) -> None:
    error = refused(put(tmp_path / "a.md", head))
    assert f", line {line}: " in error.message
    assert words in error.message


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "large", "device"])
def test_only_regular_files_below_limit_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.md"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        put(path, "name: a\ndescription: d", "x" * 300_000)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    refused(path)


@pytest.mark.req("S1-06", "S1-07")
def test_file_without_name_is_named_after_its_path(tmp_path: Path) -> None:
    bare = tmp_path / "bare.md"
    bare.write_text("You are bare.\n")
    found = read_definition(str(bare), stem="bare")
    assert (found.name, found.fields) == ("bare", {"description": "bare", "prompt": "You are bare."})
    assert read_definition(str(put(tmp_path / "b.md", "description: d")), stem="b").name == "b"
    assert read_definition(str(put(tmp_path / "c.md", "name: real")), stem="c").fields["description"] == "c"
    assert read_definition(str(put(tmp_path / "d.md", "name: real\ndescription: d")), stem="d").name == "real"


@pytest.mark.parametrize("content", ["", " \n", "---\nname: a\n", "---\nname: a\nx: b: c: d\n  y\n---\n"])
def test_unreadable_frontmatter_is_error_for_path(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(content)
    refused(path, stem="a")


# --- Entries ------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-07")
def test_entry_has_values_of_frontmatter() -> None:
    found = head(
        "tags: go, test\ndelegates_to: [reviewer, qa]\nversion: 2.0.1\nmodel: opus\nx: 1", description="Does\\nit"
    )
    entry = entry_of(found, "/p/a.md", PROJECT, "/p")
    assert (entry.name, entry.path, entry.source, entry.project) == ("a", "/p/a.md", PROJECT, "/p")
    assert (entry.description, entry.tags, entry.delegates_to) == ("Does\nit", ("go", "test"), ("reviewer", "qa"))
    assert (entry.version, entry.model) == ("2.0.1", "opus")
    assert entry.metadata["x"] == 1
    assert entry.lines["x"] == 8


@pytest.mark.req("S4-07")
def test_missing_values_have_defaults() -> None:
    entry = entry_of(head(), "/p/a.md", PROJECT)
    assert (entry.tags, entry.delegates_to, entry.version, entry.model) == ((), (), "1.0.0", None)


@pytest.mark.req("S4-49")
@pytest.mark.parametrize("written", ["a, b,a", "[a, b]", "[a, ' b ', a]", "\n  - a\n  - b", '"a,b"'])
def test_tags_and_delegates_may_be_list_or_text(written: str) -> None:
    entry = entry_of(head(f"tags: {written}\ndelegates_to: {written}"), "/p/a.md", PROJECT)
    assert entry.tags == entry.delegates_to == ("a", "b")


@pytest.mark.parametrize(
    ("written", "tags"), [("[2024, 1.5, x]", ("2024", "1.5", "x")), ("5", ("5",)), ("true", ()), ("{a: b}", ())]
)
def test_numbers_may_be_tags_too(written: str, tags: tuple[str, ...]) -> None:
    assert entry_of(head(f"tags: {written}"), "/p/a.md", PROJECT).tags == tags


@pytest.mark.parametrize(
    ("written", "version"),
    [
        *(("1.10", "1.10"), ("2", "2"), ("'3.0'", "3.0"), ("1.2.3-beta", "1.2.3-beta"), ("0x10", "0x10")),
        *(("", "1.0.0"), ('""', "1.0.0"), ("[1]", "1.0.0"), ("~", "1.0.0")),
    ],
)
def test_version_is_kept_as_written(written: str, version: str) -> None:
    assert entry_of(head(f"version: {written}"), "/p/a.md", PROJECT).version == version


@pytest.mark.req("S3-11", "S3-12")
@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("haiku", "claude-haiku-4-5-20251001"),
        ("HAIKU", "claude-haiku-4-5-20251001"),
        ("sonnet", "sonnet"),
        ("inherit", "inherit"),
        ("claude-haiku-4", "claude-haiku-4"),
    ],
)
def test_model_alias_haiku_is_expanded(written: str, model: str) -> None:
    assert normalise_model(written) == model
    assert entry_of(head(f"model: {written}"), "/p/a.md", PROJECT).model == model


@pytest.mark.req("S3-05", "S3-07", "S3-08")
@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("x: 1", None),
        ("{key}: ~", None),
        ("{key}: [a, b, a]", ["a", "b"]),
        ("{key}: a , b", ["a", "b"]),
        ("{key}:\n  - a\n  - b", ["a", "b"]),
        ("{key}: []", []),
        ('{key}: ""', []),
        ("{key}: 7", []),
        ("{key}: {a: b}", []),
    ],
)
def test_malformed_whitelist_allows_nothing(line: str, allowed: list[str] | None) -> None:
    expected = None if allowed is None else tuple(allowed)
    for key, field in (("allowedAgents", "allowed_agents"), ("allowedMcpServers", "allowed_servers")):
        text = f"---\nname: a\ndescription: d\n{line.replace('{key}', key)}\n---\n"
        assert getattr(parse_definition(text.encode(), "/a.md"), field) == expected


@pytest.mark.parametrize(("line", "asks"), [("x: 1", False), ("delegate: ~", False), ("delegate: hocket", True)])
def test_delegate_field_replaces_sub_agents_with_runs(line: str, asks: bool) -> None:
    text = f"---\nname: a\ndescription: d\n{line}\n---\n"
    assert parse_definition(text.encode(), "/a.md").delegate == asks
    assert list(ignored_fields(head(line))) == []


@pytest.mark.parametrize("value", ["true", "hockt", "[hocket]", "''"])
def test_unknown_value_of_delegate_is_refused(value: str) -> None:
    text = f"---\nname: a\ndescription: d\ndelegate: {value}\n---\n"
    with pytest.raises(BadDefinition, match=r"/a\.md, line 4: delegate is .*, which is not hocket"):
        parse_definition(text.encode(), "/a.md")
    (fault,) = ignored_fields(head(f"delegate: {value}"))
    assert fault.reason.endswith("which is not hocket, so Hocket does not start it")


@pytest.mark.req("S3-05", "S3-13", "S3-14")
@pytest.mark.parametrize(
    ("written", "budget"),
    [
        ("8000", 8000),
        ('"8000"', 8000),
        ("1", 1),
        *((written, None) for written in ("0", "-1", "1.5", "8e3", "true", "many", "[8000]", '"8_000"', "1" * 10)),
    ],
)
def test_thinking_budget_is_positive_integer(written: str, budget: int | None) -> None:
    text = f"---\nname: a\ndescription: d\nthinkingBudget: {written}\n---\n"
    found = parse_definition(text.encode(), "/a.md")
    assert found.thinking_budget == budget
    assert [notice.startswith("/a.md: thinkingBudget is ") for notice in found.notices] == [True] * (budget is None)
    odd = [(fault.line, fault.kind) for fault in ignored_fields(head(f"thinkingBudget: {written}"))]
    assert [kind for _, kind in odd] == [ODD] * (budget is None)


@pytest.mark.parametrize("line", ["x: 1", "thinkingBudget: ~", 'thinkingBudget: ""'])
@pytest.mark.req("S3-14")
def test_missing_thinking_budget_sets_no_limit(line: str) -> None:
    found = parse_definition(f"---\nname: a\ndescription: d\n{line}\n---\n".encode(), "/a.md")
    assert (found.thinking_budget, found.notices) == (None, ())


# --- Complaints ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4-06", "S4-44")
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("description: d", 1, "has no name"),
        ("x: 1\nname:\ndescription: d", 3, "has no name"),
        ("name: 12\ndescription: d", 2, "not a string"),
        ("name: [a]\ndescription: d", 2, "not a string"),
        ("name: -a\ndescription: d", 2, "dash"),
        ("name: a:b\ndescription: d", 2, "colon"),
        (f"name: {'n' * 257}\ndescription: d", 2, "longer than 256"),
        (f"name: {chr(0x1F600) * 129}\ndescription: d", 2, "longer than 256"),
        ("name: a", 1, "description"),
        ("name: a\ndescription: [x]", 3, "description"),
        ("name: a\ndescription: d\nhooks: 5", 4, "hooks"),
        ("name: a\ndescription: d\nhooks: []", 4, "hooks"),
    ],
)
def test_complaint_has_line_and_reason(text: str, line: int, words: str) -> None:
    found = parse(f"---\n{text}\n---\n".encode())
    assert isinstance(found, Head)
    fault = complaint(found)
    assert fault is not None
    assert (fault.line, fault.is_hocket_limit) == (line, False)
    assert words in fault.reason


@pytest.mark.parametrize("hooks", ["", "{}", "~", "false", "0", '""', "{Stop: 5}"])
def test_hooks_ignored_by_cli_have_no_complaint(hooks: str) -> None:
    assert complaint(head(f"hooks: {hooks}")) is None


@pytest.mark.parametrize("name", ['"a\\tb"', '"a\\x07"', "|\n  a"])
def test_control_characters_in_name_are_refused(name: str) -> None:
    fault = complaint(head(name=name))
    assert fault is not None
    assert (fault.kind, fault.is_hocket_limit) == (REFUSED, True)
    assert fault.reason.isprintable()


@pytest.mark.parametrize("name", ["n" * 256, "' '", "../evil", "LSP/Index Engineer", "FP&A", "no", chr(0x1F600) * 128])
def test_valid_names_have_no_complaint(name: str) -> None:
    assert complaint(head(name=name)) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("permissionMode: everything", "permissionMode is 'everything'"),
        ("maxTurns: many", "maxTurns is 'many'"),
        ("mcpServers: 7", "mcpServers is 7"),
        ("mcpServers: [a, 5]", "mcpServers is ['a', 5]"),
        ("hooks: {Stop: 5}", "hooks is {'Stop': 5}"),
        ("tools: {a: 1}", "tools is {'a': 1}"),
        ("tools: [a, 5]", "tools is ['a', 5]"),
        ("model: 5", "model is 5"),
        ("name: b", "'name' is given more than once"),
    ],
)
def test_field_dropped_by_cli_is_odd(line: str, words: str) -> None:
    (fault,) = ignored_fields(head(line))
    assert (fault.line, fault.kind) == (4, ODD)
    assert fault.reason.startswith(words)


def test_ignored_fields_are_limited_and_counted() -> None:
    keys = [f"key{number}:" for number in range(MOST_ODD + 5)]
    just, more = (list(ignored_fields(head("\n".join(2 * keys[:many])))) for many in (MOST_ODD, MOST_ODD + 5))
    assert (len(just), len(more)) == (MOST_ODD, MOST_ODD + 1)
    assert [fault.reason for fault in more[:-1]] == [fault.reason for fault in just]
    assert (more[-1].reason, more[-1].kind) == ("5 more fields are ignored", ODD)


@pytest.mark.parametrize(
    "line",
    ["tools: a, b", "tools:", "tools: []", "tools: [a]", "model: x", "mcpServers: []", "unknown: 1", "hooks: {}"],
)
def test_valid_and_unknown_fields_are_not_odd(line: str) -> None:
    assert list(ignored_fields(head(line))) == []


def test_shown_values_are_short_and_escaped() -> None:
    assert shown("x" * 1000).endswith("...'")
    assert len(shown(list(range(1000)))) < 70
    assert shown("a\x1b[2J\nb") == "'a\\x1b[2J\\nb'"
    assert shown(7) == "7"
