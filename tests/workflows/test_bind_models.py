"""Which model an agent is told to use, what else of its definition it is told, and the rule that it has a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hocket.config.loading import load
from hocket.errors import HocketError
from hocket.model import BoundChain, Spec
from hocket.workflows.bind import bind
from hocket.workflows.request import StartRequest

STRICT = "[spawn]\nrequire_model = true\n"


@dataclass
class Ground:
    """A project, a user with a CLI, and what both have written."""

    root: Path

    def __post_init__(self) -> None:
        for name in ("project", "home", "bin", "user/.claude/agents"):
            (self.root / name).mkdir(parents=True)
        for name in ("claude", "codex", "tool"):
            program = self.root / "bin" / name
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)

    def define(self, name: str, **head: str) -> Path:
        path = self.root / "user/.claude/agents" / f"{name}.md"
        lines = "".join(f"{key}: {value}\n" for key, value in {"name": name, "description": "d", **head}.items())
        path.write_text(f"---\n{lines}---\nHello.\n")
        return path

    def says(self, project: str = "", user: str = "") -> None:
        (self.root / "project/hocket.toml").write_text(project)
        (self.root / "home/config.toml").write_text(user)

    def settings(self, folder: str, name: str = "settings.json", **content: str) -> None:
        path = self.root / folder / ".claude" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))

    def bound(self, env: Mapping[str, str], **wish: Any) -> Spec | BoundChain:
        project, home = str(self.root / "project"), str(self.root / "home")
        given = {"PATH": str(self.root / "bin"), "HOME": str(self.root / "user"), **env}
        return bind(StartRequest(cwd=project, env=given, **wish), load(project, home, given))

    def spec(self, agent: str, env: Mapping[str, str] | None = None, **wish: Any) -> Spec:
        bound = self.bound(env or {}, agent=agent, **wish)
        assert isinstance(bound, Spec)
        return bound

    def model(self, agent: str, env: Mapping[str, str] | None = None, **wish: Any) -> str | None:
        found = self.spec(agent, env, **wish).env
        assert found.get("AGENT_MODEL") == found.get("CLAUDE_RUNNER_MODEL")
        return found.get("AGENT_MODEL")

    def refusal(self, **wish: Any) -> HocketError:
        with pytest.raises(HocketError) as caught:
            self.bound({}, **wish)
        assert (caught.value.exit_code, caught.value.status) == (2, 400)
        return caught.value


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


# --- Models -------------------------------------------------------------------------------------------------


@pytest.mark.req("S3-12", "S3-15", "S3-45")
def test_every_provider_gets_its_model(ground: Ground) -> None:
    ground.define("own", model="Haiku")
    ground.define("none")
    ground.says(user='[agents.deep]\npath = "codex"\nmodel = "gpt-9"\n[agents.fast]\npath = "none"\nmodel = "haiku"\n')
    callers = {"CLAUDE_RUNNER_MODEL": "fable"}
    haiku = "claude-haiku-4-5-20251001"
    found = [ground.model(name, callers) for name in ("own", "none", "fast", "claude", "tool", "deep", "codex")]
    assert found == [haiku, "fable", haiku, "fable", "fable", "gpt-9", None]
    assert [ground.model(name) for name in ("none", "claude", "tool")] == [None] * 3
    assert ground.model("none", callers, args=("--model", "opus")) == "opus"


@pytest.mark.req("S3-13", "S3-14")
def test_invalid_thinking_budget_gives_notice(ground: Ground) -> None:
    ground.define("deep", thinkingBudget="9000")
    odd = ground.define("odd", thinkingBudget="lots")
    spec = ground.spec("deep")
    assert [spec.env[name] for name in ("AGENT_THINKING_BUDGET", "MAX_THINKING_TOKENS")] == ["9000"] * 2
    spec = ground.spec("odd")
    assert not {"AGENT_THINKING_BUDGET", "MAX_THINKING_TOKENS"} & spec.env.keys()
    assert f"{odd}: thinkingBudget is 'lots', which is ignored: it must be a whole number of tokens above 0" in (
        spec.notices
    )


def test_limits_that_cli_does_not_enforce_give_notices(ground: Ground) -> None:
    ground.define("deep", thinkingBudget="9000", tools="Read")
    ground.says(user='[agents.other]\npath = "deep"\nruntime = "codex"\n')
    spec = ground.spec("other")
    assert (spec.provider, "MAX_THINKING_TOKENS" in spec.env) == ("codex", False)
    assert [text for text in spec.notices if "Codex" in text] == [
        "other: Codex does not enforce tools, which its prompt asks for",
        "other: Codex has no use for thinkingBudget of its definition",
    ]


@pytest.mark.req("S3-44")
def test_output_style_comes_from_settings(ground: Ground) -> None:
    ground.define("writer")
    assert "AGENT_OUTPUT_STYLE" not in ground.spec("writer").env
    ground.settings("user", outputStyle="Explanatory")
    ground.settings("project", outputStyle="Learning")
    found = [ground.spec(name).env["AGENT_OUTPUT_STYLE"] for name in ("writer", "claude", "tool")]
    assert found == ["Explanatory"] * 3, "the project is not trusted"
    ground.says(user=f'[trust]\nfolders = ["{ground.root}/project"]\n')
    assert ground.spec("writer").env["AGENT_OUTPUT_STYLE"] == "Learning"
    ground.settings("project", "settings.local.json", outputStyle="Mine")
    assert ground.spec("writer").env["AGENT_OUTPUT_STYLE"] == "Mine"
    typed = ground.spec("writer", args=("--settings", '{"outputStyle": "Typed"}'))
    assert typed.env["AGENT_OUTPUT_STYLE"] == "Typed"


def test_list_too_long_for_variable_is_refused(ground: Ground) -> None:
    ground.define("wide", allowedAgents=f"[{'é' * 29_000}]")
    assert "AGENT_ALLOWED_AGENTS" in ground.refusal(agent="wide").message


@pytest.mark.req("S3-55")
def test_malformed_server_file_gives_notice(ground: Ground) -> None:
    ground.define("one", allowedMcpServers="[git]")
    path = ground.root / "user/.claude.json"
    path.write_text('{"mcpServers": {"git": 5, ')
    (malformed, unknown) = ground.spec("one").notices
    assert malformed.startswith(f"{path}: ")
    assert malformed.endswith("; its MCP servers are ignored")
    assert "'git'" in unknown
    path.write_text('{"mcpServers": {"git": {"command": "g"}, "bad": 5}}')
    (malformed,) = ground.spec("one").notices
    assert malformed == f"{path}: the MCP server 'bad' has no command or URL"


# --- The rule that there is one -----------------------------------------------------------------------------


@pytest.mark.req("S3-16")
@pytest.mark.parametrize("where", ["project", "user"])
def test_agent_without_required_model_is_refused(ground: Ground, where: str) -> None:
    path = ground.define("none")
    ground.define("inherits", model="inherit")
    ground.define("own", model="opus")
    ground.says(**{where: f'[agents.bare]\npath = "none"\n{STRICT}'})
    refused = ground.refusal(agent="none")
    assert refused.message == f"none has no model in {path}, and [spawn] require_model is set"
    assert refused.hint == f"add a line with model: MODEL to its head in {path}"
    assert "inherits.md" in ground.refusal(agent="inherits").message
    file = ground.root / ("project/hocket.toml" if where == "project" else "home/config.toml")
    assert ground.refusal(agent="bare").hint == f'add model = "MODEL" under [agents.bare] in {file}'
    config = ground.root / "home/config.toml"
    assert ground.refusal(agent="claude").hint == f'add model = "MODEL" under [claude] in {config}'
    assert ground.refusal(agent="codex").hint == f'add an alias of codex with model = "MODEL" in {config}'
    assert ground.refusal(dsl="own -> none:2").message.startswith("step 2: none has no model")
    assert ground.model("own") == "opus"
    assert ground.model("tool") is None, "a plain program needs none"
    for env, wish in (({"CLAUDE_RUNNER_MODEL": "fable"}, {}), ({}, {"args": ("--model", "fable")})):
        assert ground.model("none", env, **wish) == "fable"


@pytest.mark.req("S3-16")
def test_project_cannot_lift_requirement_of_user(ground: Ground) -> None:
    ground.define("none")
    ground.says("[spawn]\nrequire_model = false\n", STRICT)
    ground.refusal(agent="none")
    ground.says("[spawn]\nrequire_model = false\n", '[claude]\nmodel = "opus"\n')
    assert ground.model("none") == "opus"
    ground.says("[spawn]\nrequire_model = 1\n")
    assert "must be true or false" in ground.refusal(agent="none").message
