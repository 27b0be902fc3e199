"""The configuration for commands that only list: what is broken is reported, and the rest is still read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.trust.check import configuration


def test_valid_configuration_has_no_problem(home: Path, project: Path) -> None:
    (project / "hocket.toml").write_text('[agents.a]\npath = "/bin/true"\n')
    settings, problems = configuration(str(project), str(home), os.environ)
    assert (list(settings.config.agents), problems) == (["a"], [])


@pytest.mark.parametrize("place", ["project", "user"])
def test_broken_file_is_reported_with_its_path(home: Path, project: Path, place: str) -> None:
    file = project / "hocket.toml" if place == "project" else home / "config.toml"
    file.write_text("[run]\n\n[agents\n")
    settings, (problem,) = configuration(str(project), str(home), os.environ)
    assert (dict(settings.config.agents), problem.path, problem.line, problem.cli_loads) == ({}, str(file), 3, False)
    assert str(file) in settings.config.looked
    assert str(file) not in problem.reason


def test_project_mode_above_ceiling_is_reported(home: Path, project: Path) -> None:
    (project / "hocket.toml").write_text('[claude]\npermission_mode = "bypassPermissions"\n')
    found, (problem,) = configuration(str(project), str(home), os.environ)
    assert found.config.claude.permission_mode == "bypassPermissions"
    assert (problem.path, "bypassPermissions" in problem.reason) == (str(project / "hocket.toml"), True)
