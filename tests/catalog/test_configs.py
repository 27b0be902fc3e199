"""Hocket's own agents: their files, what is refused in them, and whose instructions they follow."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hocket.catalog.configs import (
    DEFAULTS,
    configs,
    folder,
    is_seeded,
    packaged,
    spec_of,
)
from hocket.catalog.discovery import discover
from hocket.catalog.entries import CONFIG, AgentEntry, Found
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.report import find
from hocket.config.settings import Config
from hocket.errors import AgentNotFound, BadDefinition, SecurityError
from hocket.providers.claude.privileges import allowed_names
from hocket.providers.definition_files import REFUSED

DEVELOPER = {
    "name": "developer",
    "specPath": "agents/developer.md",
    "allowedTools": "Bash(file-tools *)",
    "permissionMode": "bypassPermissions",
}


def write(home: Path, stem: str, content: Any) -> Path:
    path = home / "data/agents" / f"{stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def scanned(home: Path) -> Found:
    (found,) = configs(FileProbe(), str(home))
    assert found.place == (CONFIG, folder(str(home)), (home / "data/agents").is_dir(), len(found.entries))
    return found


def entry(home: Path, stem: str, **values: Any) -> AgentEntry:
    write(home, stem, {"name": stem, **values})
    (found,) = scanned(home).entries
    return found


# --- Files ---


@pytest.mark.req("S2-16", "S2-17", "S2-21")
def test_config_is_read_from_its_file(home: Path) -> None:
    path = write(home, "developer", DEVELOPER)
    (listed,) = scanned(home).entries
    assert listed == AgentEntry(
        "developer",
        CONFIG,
        str(path),
        description="Writes the change that a task asks for, with its tests, and says what was done.",
        metadata=DEVELOPER,
        target="agents/developer.md",
    )


@pytest.mark.req("S2-22", "S2-24")
def test_unknown_agent_has_no_config(home: Path) -> None:
    write(home, "developer", DEVELOPER)
    found = discover(None, {"HOME": str(home)}, str(home), Config())
    assert found.find("unknown") == ()
    with pytest.raises(AgentNotFound):
        find(found, "unknown")


@pytest.mark.req("S2-23")
def test_only_json_files_are_listed(home: Path) -> None:
    for stem in ("b", "a"):
        write(home, stem, {"name": stem})
    (home / "data/agents/notes.txt").write_text("no config")
    (home / "data/agents/.a.json").write_text("{half")
    assert [found.name for found in scanned(home).entries] == ["a", "b"]


@pytest.mark.req("S2-16")
def test_unsafe_file_name_is_a_problem(home: Path) -> None:
    path = write(home, "..evil", {})
    (problem,) = scanned(home).problems
    assert (problem.path, problem.kind, "'..evil'" in problem.reason) == (str(path), REFUSED, True)


def test_home_without_configs_lists_none(home: Path) -> None:
    assert (scanned(home).entries, scanned(home).problems) == ((), ())


@pytest.mark.req("S2-16")
@pytest.mark.parametrize("values", [{}, {"name": None, "specPath": None, "allowedTools": None}, {"more": [1]}])
def test_missing_and_unknown_fields_are_accepted(home: Path, values: Any) -> None:
    write(home, "bare", values)
    (found,) = scanned(home).entries
    assert found.metadata == {"name": "bare", "specPath": None, "allowedTools": None, "permissionMode": None}


@pytest.mark.req("S2-24")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ("null", "object"),
        ("[" * 30_000, "JSON"),
        ({"name": "other"}, "called bad.json"),
        ({"name": 5}, "name must be a string; got 5"),
        ({"allowedTools": "Bash(\ud800)"}, "allowedTools"),
        ({"allowedTools": ["Bash"]}, "allowedTools"),
        ({"permissionMode": "yolo"}, "permissionMode"),
        ({"specPath": 1}, "specPath"),
        ({"specPath": ""}, "specPath"),
        ({"specPath": "/etc/passwd"}, "specPath"),
        ({"specPath": "../up.md"}, "specPath"),
        ({"specPath": "a/../../up.md"}, "specPath"),
        ({"specPath": "a\0b"}, "specPath"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_malformed_config_is_refused_alone(home: Path, content: Any, reason: str) -> None:
    path = write(home, "bad", content)
    write(home, "good", {"name": "good"})
    found = scanned(home)
    assert [entry.name for entry in found.entries] == ["good"]
    (problem,) = found.problems
    assert (problem.path, problem.kind, problem.cli_loads) == (str(path), REFUSED, False)
    assert reason in problem.reason
    assert problem.line == 1


def test_invalid_utf8_is_refused_with_its_line(home: Path) -> None:
    write(home, "bad", "").write_bytes(b'{\n"name": "\xff"}')
    (problem,) = scanned(home).problems
    assert (problem.line, problem.reason) == (2, "is not UTF-8 text")


@pytest.mark.req("S2-24")
def test_unreadable_config_is_a_problem(home: Path) -> None:
    os.mkfifo(write(home, "good", "{}").with_name("fifo.json"))
    write(home, "large", " " * 70_000)
    assert {os.path.basename(problem.path) for problem in scanned(home).problems} == {"fifo.json", "large.json"}


@pytest.mark.req("S2-26")
def test_file_name_with_a_space_is_a_problem(home: Path) -> None:
    write(home, "a b", {})
    assert [(p.kind, "'a b'" in p.reason) for p in scanned(home).problems] == [(REFUSED, True)]


# --- Default agents ---


@pytest.mark.req("S2-19", "S2-62")
def test_default_agents_may_hand_over_within_permissions() -> None:
    names = [default["name"] for default in DEFAULTS]
    assert names == ["developer", "developer-review", "qa", "planner", "orchestrator"]
    for default in DEFAULTS:
        assert (default["specPath"], default["permissionMode"]) == (f"agents/{default['name']}.md", "acceptEdits")
        assert "Bash(hocket handoff *)" in default["allowedTools"]
        assert "Bash(scripts/agent/handoff.sh *)" in default["allowedTools"]
        assert "Bash" in allowed_names(default["allowedTools"])
        assert "Bash" not in default["allowedTools"].split()


@pytest.mark.req("S2-19")
def test_only_developer_and_qa_may_edit() -> None:
    writing = {default["name"] for default in DEFAULTS if "Edit" in allowed_names(default["allowedTools"])}
    assert writing == {"developer", "qa"}


@pytest.mark.req("S2-78")
@pytest.mark.parametrize("name", [default["name"] for default in DEFAULTS])
def test_default_instructions_explain_the_hand_off(name: str) -> None:
    told = " ".join(packaged(name).split())
    assert 15 <= len(packaged(name).splitlines()) <= 35
    for words in (
        'hocket handoff TASK AGENT "PROMPT"',
        'hocket handoff AGENT "PROMPT"',
        "TASK is the id in HOCKET_TASK",
        "prints",
        "final message",
        "mcp__hocket__hand_off",
        "hocket handoff --result RUN",
        *("`developer`", "`developer-review`", "`qa`", "`planner`"),
        "description: ",
    ):
        assert words in told, words


@pytest.mark.req("S2-79")
def test_orchestrator_delegates_only_by_hand_off() -> None:
    told = " ".join(packaged("orchestrator").split())
    assert "You write no code yourself." in told
    assert "no other way to start an agent" in told
    tools = next(default["allowedTools"] for default in DEFAULTS if default["name"] == "orchestrator")
    assert {"Task", "Agent", "Edit", "Write"}.isdisjoint(allowed_names(tools))


@pytest.mark.req("S2-76")
def test_commands_in_default_instructions_are_allowed() -> None:
    """The instructions name only commands that exist and that the agent may run without a question."""
    from hocket.cli.usage import COMMANDS

    for default in DEFAULTS:
        for command in re.findall(r"`hocket (\w+)[^`]*`", packaged(default["name"])):
            assert command in COMMANDS
            assert f"Bash(hocket {command} *)" in default["allowedTools"]


def test_changed_default_config_is_no_longer_seeded(home: Path) -> None:
    write(home, "qa", next(default for default in DEFAULTS if default["name"] == "qa"))
    write(home, "developer", DEVELOPER)
    assert {entry.name: is_seeded(entry) for entry in scanned(home).entries} == {"qa": True, "developer": False}


# --- Instructions ---


@pytest.mark.req("S2-25", "S2-54")
def test_instructions_are_read_from_the_repository_root(home: Path, project: Path) -> None:
    (project / ".git").mkdir()
    (project / "sub/deep").mkdir(parents=True)
    (project / "agents").mkdir()
    (project / "agents/mine.md").write_text("Do this.\n")
    (project / "sub/deep/agents").mkdir()
    (project / "sub/deep/agents/mine.md").write_text("Not this.\n")
    definition, owner = spec_of(entry(home, "mine", specPath="agents/mine.md"), str(project / "sub/deep"), {})
    assert (definition.name, definition.path) == ("mine", str(project / "agents/mine.md"))
    assert definition.fields == {"description": "mine", "prompt": "Do this."}
    assert owner == str(project)


@pytest.mark.req("S2-25")
def test_without_a_repository_instructions_are_in_the_directory(home: Path, project: Path) -> None:
    (project / "sub").mkdir()
    (project / "mine.md").write_text("Not this.\n")
    (project / "sub/mine.md").write_text("Do this.\n")
    definition, _ = spec_of(entry(home, "mine", specPath="mine.md"), str(project / "sub"), {})
    assert definition.fields["prompt"] == "Do this."


def test_project_instructions_cannot_widen_permissions(home: Path, project: Path) -> None:
    head = (
        "---\nname: else\ndescription: does it\nmodel: opus\ntools: Read\nhooks: {}\n"
        "mcpServers: [x]\npermissionMode: bypassPermissions\nskills: [s]\n---\nDo it.\n"
    )
    (project / "mine.md").write_text(head)
    definition, _ = spec_of(entry(home, "mine", specPath="mine.md"), str(project), {})
    assert definition.name == "mine"
    assert definition.fields == {"description": "does it", "model": "opus", "tools": ["Read"], "prompt": "Do it."}


@pytest.mark.req("S2-19", "S2-54")
@pytest.mark.parametrize("default", DEFAULTS, ids=lambda default: default["name"])
def test_default_agent_has_packaged_instructions(home: Path, project: Path, default: dict[str, str]) -> None:
    seeded = entry(home, default["name"], **default)
    definition, owner = spec_of(seeded, str(project), {})
    assert owner is None
    assert definition.fields["prompt"].startswith("You are the ")
    assert definition.fields["description"] in packaged(default["name"])
    (project / "agents").mkdir()
    (project / f"agents/{default['name']}.md").write_text("Ours.")
    assert spec_of(seeded, str(project), {})[0].fields["prompt"] == "Ours."


@pytest.mark.req("S2-55")
@pytest.mark.parametrize("stem", ["mine", "qa"])
def test_missing_chosen_instructions_are_an_error(home: Path, project: Path, stem: str) -> None:
    with pytest.raises(BadDefinition, match=r"gone\.md does not exist"):
        spec_of(entry(home, stem, specPath="gone.md"), str(project), {})


@pytest.mark.req("S2-55")
@pytest.mark.parametrize("content", ["", "---\nname: x\n---\n", "---\na: [b\n  - c: }\n---\nDo it.\n"], ids=repr)
def test_empty_or_malformed_instructions_are_an_error(home: Path, project: Path, content: str) -> None:
    (project / "mine.md").write_text(content)
    with pytest.raises(BadDefinition, match=r"mine\.md"):
        spec_of(entry(home, "mine", specPath="mine.md"), str(project), {})


def test_config_without_instructions_is_an_error(home: Path, project: Path) -> None:
    with pytest.raises(BadDefinition, match="no specPath"):
        spec_of(entry(home, "mine"), str(project), {})


@pytest.mark.req("S2-25", "S2-26")
def test_linked_instructions_outside_project_are_refused(home: Path, project: Path, world: Path) -> None:
    (world / "secret.md").write_text("secret")
    (project / "mine.md").symlink_to(world / "secret.md")
    with pytest.raises(SecurityError, match=r"secret\.md"):
        spec_of(entry(home, "mine", specPath="mine.md"), str(project), {})
