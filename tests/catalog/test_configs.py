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
def test_a_config_is_read_from_the_file_of_its_name(home: Path) -> None:
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
def test_every_json_file_of_the_folder_is_listed_and_nothing_else(home: Path) -> None:
    for stem in ("b", "a"):
        write(home, stem, {"name": stem})
    (home / "data/agents/notes.txt").write_text("no config")
    (home / "data/agents/.a.json").write_text("{half")
    assert [found.name for found in scanned(home).entries] == ["a", "b"]


@pytest.mark.req("S2-16")
def test_a_file_whose_name_can_be_no_agents_is_told(home: Path) -> None:
    path = write(home, "..evil", {})
    (problem,) = scanned(home).problems
    assert (problem.path, problem.kind, "'..evil'" in problem.reason) == (str(path), REFUSED, True)


def test_a_home_without_configs_has_none(home: Path) -> None:
    assert (scanned(home).entries, scanned(home).problems) == ((), ())


@pytest.mark.req("S2-16")
@pytest.mark.parametrize("values", [{}, {"name": None, "specPath": None, "allowedTools": None}, {"more": [1]}])
def test_what_is_missing_is_nothing_and_what_is_unknown_is_left_alone(home: Path, values: Any) -> None:
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
def test_a_malformed_config_is_refused_and_hides_no_other(home: Path, content: Any, reason: str) -> None:
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
def test_a_file_whose_name_cannot_be_an_agents_is_a_problem(home: Path) -> None:
    write(home, "a b", {})
    assert [(p.kind, "'a b'" in p.reason) for p in scanned(home).problems] == [(REFUSED, True)]


# --- The five ---


@pytest.mark.req("S2-19", "S2-62")
def test_the_five_may_hand_over_and_never_work_unasked() -> None:
    names = [default["name"] for default in DEFAULTS]
    assert names == ["developer", "developer-review", "qa", "planner", "orchestrator"]
    for default in DEFAULTS:
        assert (default["specPath"], default["permissionMode"]) == (f"agents/{default['name']}.md", "acceptEdits")
        assert "Bash(hocket handoff *)" in default["allowedTools"]
        assert "Bash(scripts/agent/handoff.sh *)" in default["allowedTools"]
        assert "Bash" in allowed_names(default["allowedTools"])
        assert "Bash" not in default["allowedTools"].split()


@pytest.mark.req("S2-19")
def test_only_those_who_write_may_edit() -> None:
    writing = {default["name"] for default in DEFAULTS if "Edit" in allowed_names(default["allowedTools"])}
    assert writing == {"developer", "qa"}


@pytest.mark.req("S2-78")
@pytest.mark.parametrize("name", [default["name"] for default in DEFAULTS])
def test_the_five_know_how_to_hand_over(name: str) -> None:
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
def test_the_orchestrator_delegates_by_handing_over_and_in_no_other_way() -> None:
    told = " ".join(packaged("orchestrator").split())
    assert "You write no code yourself." in told
    assert "no other way to start an agent" in told
    tools = next(default["allowedTools"] for default in DEFAULTS if default["name"] == "orchestrator")
    assert {"Task", "Agent", "Edit", "Write"}.isdisjoint(allowed_names(tools))


@pytest.mark.req("S2-76")
def test_the_command_that_is_taught_is_the_one_that_is_allowed() -> None:
    """What an agent may type without asking is what it is told to type, and the command line has it."""
    from hocket.cli.usage import COMMANDS

    for default in DEFAULTS:
        for command in re.findall(r"`hocket (\w+)[^`]*`", packaged(default["name"])):
            assert command in COMMANDS
            assert f"Bash(hocket {command} *)" in default["allowedTools"]


def test_one_of_the_five_is_seeded_until_somebody_changes_it(home: Path) -> None:
    write(home, "qa", next(default for default in DEFAULTS if default["name"] == "qa"))
    write(home, "developer", DEVELOPER)
    assert {entry.name: is_seeded(entry) for entry in scanned(home).entries} == {"qa": True, "developer": False}


# --- Instructions ---


@pytest.mark.req("S2-25", "S2-54")
def test_instructions_lie_below_the_root_of_the_repository(home: Path, project: Path) -> None:
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
def test_outside_of_a_repository_they_lie_below_the_directory_itself(home: Path, project: Path) -> None:
    (project / "sub").mkdir()
    (project / "mine.md").write_text("Not this.\n")
    (project / "sub/mine.md").write_text("Do this.\n")
    definition, _ = spec_of(entry(home, "mine", specPath="mine.md"), str(project / "sub"), {})
    assert definition.fields["prompt"] == "Do this."


def test_a_projects_instructions_may_narrow_what_the_config_allows_and_never_widen_it(
    home: Path, project: Path
) -> None:
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
def test_instructions_that_somebody_chose_and_that_are_missing_are_an_error(
    home: Path, project: Path, stem: str
) -> None:
    with pytest.raises(BadDefinition, match=r"gone\.md does not exist"):
        spec_of(entry(home, stem, specPath="gone.md"), str(project), {})


@pytest.mark.req("S2-55")
@pytest.mark.parametrize("content", ["", "---\nname: x\n---\n", "---\na: [b\n  - c: }\n---\nDo it.\n"], ids=repr)
def test_instructions_that_say_nothing_or_cannot_be_read_are_an_error(home: Path, project: Path, content: str) -> None:
    (project / "mine.md").write_text(content)
    with pytest.raises(BadDefinition, match=r"mine\.md"):
        spec_of(entry(home, "mine", specPath="mine.md"), str(project), {})


def test_a_config_without_instructions_is_an_error(home: Path, project: Path) -> None:
    with pytest.raises(BadDefinition, match="no specPath"):
        spec_of(entry(home, "mine"), str(project), {})


@pytest.mark.req("S2-25", "S2-26")
def test_instructions_behind_a_link_out_of_the_project_are_not_read(home: Path, project: Path, world: Path) -> None:
    (world / "secret.md").write_text("secret")
    (project / "mine.md").symlink_to(world / "secret.md")
    with pytest.raises(SecurityError, match=r"secret\.md"):
        spec_of(entry(home, "mine", specPath="mine.md"), str(project), {})
