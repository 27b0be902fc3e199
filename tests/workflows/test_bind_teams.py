"""Which runs lead a team, in which mode, and what is checked before one starts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hocket.config.loading import load
from hocket.errors import ConfigError, HocketError
from hocket.model import BoundChain, Spec
from hocket.providers import PROVIDERS
from hocket.workflows import cli_versions
from hocket.workflows.bind import bind, describe
from hocket.workflows.request import HandoffRequest, StartRequest

VARIABLE = "CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS"
PRINT, TERMINAL = "2.1.177 (Claude Code)", "2.1.178 (Claude Code)"
KEY = "sk-ant-0123456789-abcdefghijklmnop"


@dataclass
class Ground:
    """A project, and a user who has completed the first steps of a CLI."""

    root: Path

    def __post_init__(self) -> None:
        for name in ("project", "home", "bin", "user/.claude"):
            (self.root / name).mkdir(parents=True)
        for name in ("codex", "tool"):
            self.program(name, "")
        self.claude(PRINT)
        self.confirm(hasCompletedOnboarding=True)

    def program(self, name: str, body: str) -> Path:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def claude(self, version: str) -> Path:
        """A CLI of this version, which notes that it was asked for it."""
        return self.program("claude", f'echo "$*" >> {self.root}/asked\necho "{version}"')

    def confirm(self, **content: Any) -> None:
        (self.root / "user/.claude.json").write_text(json.dumps(content))

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def bound(self, env: dict[str, str] | None = None, **wish: Any) -> Spec | BoundChain:
        project, home = str(self.root / "project"), str(self.root / "home")
        given = {"PATH": str(self.root / "bin"), "HOME": str(self.root / "user"), **(env or {})}
        return bind(StartRequest(cwd=project, env=given, **wish), load(project, home, given))

    def spec(self, env: dict[str, str] | None = None, **wish: Any) -> Spec:
        bound = self.bound(env, **{"agent": "claude", **wish})
        assert isinstance(bound, Spec)
        return bound

    def steps(self, **wish: Any) -> list[Spec]:
        bound = self.bound(**wish)
        assert isinstance(bound, BoundChain)
        return [step.spec for step in bound.steps]

    def refusal(self, env: dict[str, str] | None = None, **wish: Any) -> HocketError:
        with pytest.raises(HocketError) as caught:
            self.bound(env, **{"agent": "claude", "agent_teams": True, **wish})
        assert (caught.value.exit_code, caught.value.status) == (2, 400)
        return caught.value


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


# --- Which runs ---------------------------------------------------------------------------------------------


@pytest.mark.req("S5-01", "S5-02")
def test_request_decides_about_the_team(ground: Ground) -> None:
    lead, other = ground.spec(agent_teams=True), ground.spec()
    assert (lead.team, lead.env[VARIABLE]) == (True, "1")
    assert (other.team, VARIABLE in other.env, other.session) == (False, False, False)


@pytest.mark.req("S5-02")
def test_variable_of_caller_is_dropped_without_team(ground: Ground) -> None:
    given = {VARIABLE: "1", "CLAUDE_CODE_OTHER": "x"}
    for agent in ("claude", "codex", "tool"):
        assert VARIABLE not in ground.spec(given, agent=agent).env
    assert ground.spec(given).env["CLAUDE_CODE_OTHER"] == "x"
    assert ground.spec({VARIABLE: "0"}, agent_teams=True).env[VARIABLE] == "1"


@pytest.mark.req("S5-02")
def test_variable_is_refused_in_list_of_passed_ones(ground: Ground) -> None:
    (ground.root / "home/config.toml").write_text(f'[env]\npass = ["{VARIABLE}"]\n')
    with pytest.raises(ConfigError, match="reserved"):
        ground.bound(agent="tool")


@pytest.mark.req("S5-01")
def test_single_lead_is_a_session_unless_told_otherwise(ground: Ground) -> None:
    assert ground.spec(agent_teams=True).session
    assert not ground.spec(agent_teams=True, session=False).session
    assert not any(spec.session for spec in ground.steps(dsl="claude", agent_teams=True, session=False))
    assert not any(spec.session for spec in ground.steps(dsl="claude -> claude", agent_teams=True))


def test_handed_off_lead_is_no_session() -> None:
    assert HandoffRequest("claude", "go", cwd="/").start(None).session is False


def test_alias_makes_its_agent_a_lead(ground: Ground) -> None:
    (ground.root / "home/config.toml").write_text('[agents.crew]\npath = "claude"\nteam = true\n')
    assert ground.spec(agent="crew").team
    assert ground.spec(agent="crew").session
    assert [spec.team for spec in ground.steps(dsl="crew -> claude")] == [True, False]


def test_step_decides_before_its_alias(ground: Ground) -> None:
    steps = (
        '{ agent = "crew" }, { agent = "crew", team = false }, { agent = "claude", team = true }, { agent = "tool" }'
    )
    written = f'[agents.crew]\npath = "claude"\nteam = true\n[chains.ship]\nsteps = [{steps}]\n'
    (ground.root / "home/config.toml").write_text(written)
    assert [spec.team for spec in ground.steps(chain="ship")] == [True, False, True, False]


@pytest.mark.req("S5-01")
@pytest.mark.parametrize(("agent", "why"), [("tool", "it is a plain program"), ("codex", "has no teams")])
def test_agent_without_teams_is_refused_by_name(ground: Ground, agent: str, why: str) -> None:
    error = ground.refusal(agent=agent)
    assert f"{agent} cannot lead a team" in error.message
    assert why in error.message
    assert "the Claude CLI" in (error.hint or "")
    assert "step 2: tool cannot lead" in ground.refusal(agent=None, dsl="claude -> tool").message


# --- Modes --------------------------------------------------------------------------------------------------


@pytest.mark.req("S5-03", "S5-46")
def test_description_says_how_a_lead_runs(ground: Ground) -> None:
    (described,) = describe(ground.bound(agent="claude", agent_teams=True))
    assert (described["team"], described["terminal"]) == (True, False)
    assert describe(ground.bound(agent="claude"))[0]["team"] is False


@pytest.mark.req("S5-03", "S5-46")
@pytest.mark.parametrize("version", [TERMINAL, "2.1.326 (Claude Code)", "3.0", "no idea"])
def test_lead_of_later_version_has_a_terminal(ground: Ground, version: str) -> None:
    ground.claude(version)
    lead = ground.spec(agent_teams=True)
    assert (lead.team, lead.has_terminal, lead.session, lead.env[VARIABLE]) == (True, True, True, "1")
    assert describe(lead)[0]["terminal"] is True
    assert not ground.spec().has_terminal


@pytest.mark.req("S5-06", "S5-07")
def test_only_a_lead_has_a_terminal_and_others_print_json(ground: Ground) -> None:
    printed = ("--output-format", "stream-json")
    in_print_mode = ground.spec(agent_teams=True)
    assert in_print_mode.stdin == "lines"
    ground.claude(TERMINAL)
    lead, other = ground.spec(agent_teams=True), ground.spec()
    for spec in (in_print_mode, other):
        at = spec.argv.index(printed[0])
        assert spec.argv[at : at + 2] == printed
    assert (lead.stdin, printed[0] in lead.argv, "--print" in lead.argv, "-p" in lead.argv) == (
        "terminal",
        *[False] * 3,
    )
    assert ground.spec(agent="tool").stdin == "empty"


def test_resumed_lead_keeps_its_team(ground: Ground) -> None:
    sessions = PROVIDERS["claude"].sessions
    assert sessions is not None
    for version in (PRINT, TERMINAL):
        ground.claude(version)
        before = ground.spec(agent_teams=True)
        resumed = sessions.resume(before, "s1", "go on")
        assert (resumed.team, resumed.has_terminal) == (True, before.has_terminal)
        assert resumed.env[VARIABLE] == "1"


@pytest.mark.req("S5-03", "S5-46")
def test_version_is_asked_once_for_each_program(ground: Ground) -> None:
    ground.steps(dsl="claude -> claude", agent_teams=True)
    ground.spec(agent_teams=True)
    assert ground.asked == ["--version"]
    os.utime(ground.claude(PRINT), (1, 1))
    ground.spec(agent_teams=True)
    assert ground.asked == ["--version"] * 2


def test_version_is_not_asked_without_team(ground: Ground) -> None:
    ground.spec()
    assert ground.asked == []


def test_damaged_cache_of_versions_is_ignored(ground: Ground) -> None:
    cache = ground.root / "home" / cli_versions.FILE
    for content in ("{", "[]", '{"x": 1}', "\0"):
        cache.write_text(content)
        assert ground.spec(agent_teams=True).team
    assert json.loads(cache.read_text())[str(ground.root / "bin/claude")][2] == PRINT


def test_missing_home_is_not_created_for_versions(ground: Ground) -> None:
    (ground.root / "home").rmdir()
    assert ground.spec(agent_teams=True).team
    assert not (ground.root / "home").exists()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.1.326 (Claude Code)", (2, 1, 326)), ("2.1", (2, 1)), ("no idea", ()), ("", ()), (None, ()), ("²", ())],
)
def test_version_numbers_are_the_leading_ones(text: str | None, numbers: tuple[int, ...]) -> None:
    assert cli_versions.version_numbers(text) == numbers


# --- What has to be done by hand ----------------------------------------------------------------------------


@pytest.mark.req("S5-43")
@pytest.mark.parametrize("version", [TERMINAL, "no idea"])
def test_lead_in_a_terminal_needs_completed_first_steps(ground: Ground, version: str) -> None:
    ground.claude(version)
    ground.confirm(theme="dark")
    error = ground.refusal()
    assert "first steps" in error.message
    assert "run `claude` once" in (error.hint or "")
    (ground.root / "user/.claude.json").unlink()
    assert "first steps" in ground.refusal().message
    assert not (ground.root / "user/.claude.json").exists()


@pytest.mark.req("S5-43")
def test_lead_in_a_terminal_needs_an_approved_key(ground: Ground) -> None:
    ground.claude(TERMINAL)
    ground.confirm(hasCompletedOnboarding=True, customApiKeyResponses={"approved": ["other"]})
    error = ground.refusal({"ANTHROPIC_API_KEY": KEY})
    assert "ANTHROPIC_API_KEY was never approved" in error.message
    assert KEY[-20:] not in f"{error.message} {error.hint}"


@pytest.mark.req("S5-43")
@pytest.mark.parametrize("version", [PRINT, TERMINAL])
def test_lead_needs_a_writable_folder_of_its_cli(ground: Ground, version: str) -> None:
    ground.claude(version)
    folder = ground.root / "user/.claude"
    folder.rmdir()
    assert f"{folder}, where its CLI keeps teams, does not exist" in ground.refusal().message
    folder.write_text("")
    assert "is not a directory" in ground.refusal().message
    moved = ground.root / "elsewhere"
    assert str(moved) in ground.refusal({"CLAUDE_CONFIG_DIR": str(moved)}).message


def test_lead_in_print_mode_needs_no_confirmation(ground: Ground) -> None:
    ground.confirm()
    assert ground.spec({"ANTHROPIC_API_KEY": KEY}, agent_teams=True).team
