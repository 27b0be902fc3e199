"""The registry file that a project may have, and the session that a start comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from config.test_config import of_project, put, refused

from hocket import config


@pytest.mark.parametrize(
    ("value", "path"),
    [("true", ".active-pids.json"), ('"state/agents.json"', "state/agents.json"), ("false", None)],
)
def test_registry_file_is_inside_its_project(project: Path, home: Path, value: str, path: str | None) -> None:
    assert of_project(project, home).registry_file is None
    put(project / "hocket.toml", f"registry_file = {value}")
    inner = project / "src"
    inner.mkdir()
    expected = None if path is None else f"{project}/{path}"
    assert of_project(project, home).registry_file == expected
    (project / ".git").mkdir()
    assert of_project(inner, home).registry_file == expected, "the root of the project, not the working directory"


@pytest.mark.parametrize(
    "value",
    [
        '"/tmp/x.json"',
        '"../x.json"',
        '"a/../../x.json"',
        '"./x.json"',
        '"a//x.json"',
        '"x.py"',
        '""',
        '"a\\u0000.json"',
        "1",
    ],
)
def test_registry_file_elsewhere_is_refused(project: Path, home: Path, value: str) -> None:
    put(project / "hocket.toml", f"registry_file = {value}")
    assert "registry_file" in refused(project, home).message


def test_registry_file_below_a_table_gets_a_hint(project: Path, home: Path) -> None:
    put(project / "hocket.toml", "[run]\nregistry_file = true")
    assert refused(project, home).hint == "it belongs at the top of hocket.toml, before the first [...]"


def test_registry_file_behind_a_link_is_refused(project: Path, home: Path) -> None:
    (project / "state").symlink_to(home)
    put(project / "hocket.toml", 'registry_file = "state/x.json"')
    assert "leads through a symbolic link" in refused(project, home).message


def test_registry_file_is_set_by_a_project_only(project: Path, home: Path) -> None:
    put(home / "config.toml", "registry_file = true")
    assert "not allowed here" in refused(project, home).message


def test_calling_session_is_known_from_the_environment() -> None:
    known = {"CLAUDE_CODE_SESSION_ID": "s-1", "CLAUDE_PID": "12", "CLAUDE_PARENT_PID": "11"}
    assert config.calling_session(known) == {"caller_session": "s-1", "caller_pid": 12}
    assert config.calling_session({"CLAUDE_PARENT_PID": "11"}) == {"caller_pid": 11}
    odd = {"CLAUDE_CODE_SESSION_ID": "a\x1bb", "CLAUDE_PID": "-1"}
    assert config.calling_session(odd) == config.calling_session({}) == {}
