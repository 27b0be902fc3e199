"""Which CLI runs a definition: by runtime, by [models], by its model; and that every view tells the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from catalog.agent_world import AgentWorld, write

from hocket.catalog.discovery import discover
from hocket.catalog.explanation import explain
from hocket.catalog.resolve import UncheckedAgent, resolve
from hocket.config import RUNTIMES
from hocket.config.loading import load
from hocket.config.settings import Config
from hocket.errors import (
    BadDefinition,
    ConfigError,
    HocketError,
    NotAllowed,
    NotTrusted,
    ProgramNotFound,
    UsageError,
)
from hocket.model import BoundChain, Spec
from hocket.providers import PROVIDERS
from hocket.providers.claude.models import is_foreign_model
from hocket.trust.approvals import FILE, FOLDER, AgentIdentity, Approvals, approve
from hocket.trust.check import authorize, needs, table_of
from hocket.trust.delegation import CallingAgent, DelegationLimits
from hocket.trust.preview import explain_file, explain_folder
from hocket.workflows.bind import bind, describe
from hocket.workflows.request import StartRequest

CLIS = {"claude": "claude", "codex": "codex", "cursor": "cursor-agent"}


class Machine(AgentWorld):
    """A user with all three CLIs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bin = root / "bin"
        self.bin.mkdir()
        self.home.mkdir()
        for name in CLIS.values():
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)
        self.env["PATH"] = str(self.bin)

    def own(self, text: str) -> None:
        (self.home / "config.toml").write_text(text)

    def settings(self) -> Config:
        return load(str(self.project), str(self.home), self.env)

    def found(self, name: str = "reviewer") -> UncheckedAgent:
        found = resolve(name, str(self.project), self.env, self.settings())
        if found.missing:
            raise found.missing
        return found

    def provider(self, name: str = "reviewer") -> str:
        return self.found(name).agent.provider

    def bound(self, name: str = "reviewer") -> Spec:
        request = StartRequest(cwd=str(self.project), env=self.env, agent=name, prompt="go")
        spec = bind(request, self.settings())
        assert isinstance(spec, Spec)
        return spec

    def why(self, name: str = "reviewer") -> dict[str, Any]:
        config = self.settings()
        approvals = Approvals(config)
        catalog = discover(str(self.project), self.env, str(self.home), config, approvals)
        return explain(
            name,
            catalog,
            table_of(catalog, approvals, self.env),
            config,
            self.env,
            lambda found: authorize(found, str(self.project), approvals, lambda: catalog),
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- The choice ---


def test_runtimes_are_the_providers_with_a_program() -> None:
    programs = {name: provider.program for name, provider in PROVIDERS.items()}
    assert {name: program.variable for name, program in programs.items() if program} == RUNTIMES


@pytest.mark.req("S3-18")
@pytest.mark.parametrize("model", [None, "sonnet", "haiku", "inherit", "claude-opus-4-20250514", "fable"])
def test_model_of_anthropic_runs_with_claude(machine: Machine, model: str | None) -> None:
    write(machine.globals, "reviewer", **({"model": model} if model else {}))
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    assert machine.provider() == "claude"


@pytest.mark.parametrize("model", [None, "inherit"])
def test_pattern_fits_no_absent_model(machine: Machine, model: str | None) -> None:
    write(machine.globals, "reviewer", **({"model": model} if model else {}))
    machine.own('[models]\n"*" = "cursor"\n')
    assert machine.provider() == "claude"


@pytest.mark.req("S3-19")
def test_model_of_another_vendor_runs_configured_cli(machine: Machine) -> None:
    machine.own('[models]\n"gpt-5*" = "codex"\n"gpt-*" = "cursor"\n"my-*" = "cursor"\n')
    for model, provider in {"gpt-5.1": "codex", "GPT-4o": "cursor", "my-own": "cursor", "mine": "claude"}.items():
        write(machine.globals, "reviewer", model=model)
        assert machine.provider() == provider, model


@pytest.mark.req("S3-19")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runtime_of_a_definition_counts_before_its_model(machine: Machine, runtime: str) -> None:
    write(machine.globals, "reviewer", model="gpt-5", runtime=runtime)
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    spec = machine.bound()
    assert (spec.provider, spec.argv[0]) == (runtime, str(machine.bin / CLIS[runtime]))
    assert spec.definition == str(machine.globals / "reviewer.md")


def test_runtime_of_an_alias_counts_first(machine: Machine) -> None:
    write(machine.globals, "reviewer", model="sonnet", runtime="cursor")
    machine.own('[agents.quick]\npath = "reviewer"\nruntime = "codex"\nmodel = "gpt-5-codex"\n')
    spec = machine.bound("quick")
    assert spec.provider == "codex"
    assert 'model="gpt-5-codex"' in spec.argv
    assert machine.provider() == "cursor"


def test_model_of_an_alias_selects_its_cli(machine: Machine) -> None:
    write(machine.globals, "reviewer", model="sonnet")
    machine.own('[agents.quick]\npath = "reviewer"\nmodel = "gpt-5"\n[models]\n"gpt-*" = "cursor"\n')
    assert machine.bound("quick").argv[1:3] == ("--model", "gpt-5")


@pytest.mark.parametrize("path", ["claude", "cursor-agent", "./tool"])
def test_runtime_without_a_definition_is_refused(machine: Machine, path: str) -> None:
    (machine.project / "tool").write_text("#!/bin/sh\n")
    (machine.project / "tool").chmod(0o755)
    machine.own(f'[agents.odd]\npath = "{path}"\nruntime = "codex"\n')
    with pytest.raises(ConfigError, match="is no definition"):
        machine.found("odd")


@pytest.mark.parametrize("runtime", ["gemini", 5, ["cursor"], "Cursor", ""])
def test_unknown_runtime_is_refused_with_its_line(machine: Machine, runtime: object) -> None:
    write(machine.globals, "reviewer", runtime=runtime)
    with pytest.raises(
        BadDefinition, match=r"reviewer\.md, line 4: runtime is .*, which is not claude or codex or cursor"
    ):
        machine.found()
    assert "which is not claude or codex or cursor" in machine.why()["problem"]
    (problem,) = machine.catalog().problems
    assert problem.reason.endswith("which is not claude or codex or cursor, so Hocket does not start it")


# --- Without any configuration ---


@pytest.mark.req("S3-19")
@pytest.mark.parametrize(
    "model", ["gpt-5", "GPT-4.1-mini", "gpt4", "chatgpt-4o-latest", "codex-mini", "o3", "o4-mini", "gemini-2.5-pro",
              "grok-4", "composer-1", "cursor-small"],
)  # fmt: skip
def test_foreign_model_is_refused_without_configured_cli(machine: Machine, model: str) -> None:
    write(machine.globals, "reviewer", model=model)
    with pytest.raises(UsageError, match="no other CLI is configured") as caught:
        machine.found()
    assert repr(model) in caught.value.message
    assert "[models]" in (caught.value.hint or "")
    assert machine.why()["problem"] == caught.value.message


@pytest.mark.parametrize(
    "model", ["us.anthropic.claude-opus-4-20250514-v1:0", "claude-sonnet-4@20250514", "openai/gpt-5", "glm-4.6",
              "qwen3-coder", "deepseek-chat", "kimi-k2", "o", "opus", "opusplan", "sonnet[1m]", "haiku|sonnet", "o10x",
              "gptx", "my-gpt-5", "arn:aws:bedrock:us-east-1:1:inference-profile/x", "geminius", ""],
)  # fmt: skip
def test_possible_gateway_model_stays_with_claude(model: str) -> None:
    assert not is_foreign_model(model, {})


@pytest.mark.parametrize("variable", ["ANTHROPIC_BASE_URL", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"])
def test_gateway_may_serve_any_model(machine: Machine, variable: str) -> None:
    write(machine.globals, "reviewer", model="gpt-5")
    machine.env[variable] = "1"
    assert machine.provider() == "claude"


def test_user_may_give_any_model_to_claude(machine: Machine) -> None:
    write(machine.globals, "reviewer", model="gpt-5")
    machine.own('[models]\n"gpt-*" = "claude"\n')
    assert machine.provider() == "claude"


# --- Missing programs ---


@pytest.mark.req("S3-59")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_missing_cli_of_definition_names_its_runtime(machine: Machine, runtime: str) -> None:
    program = PROVIDERS[runtime].program
    assert program
    write(machine.globals, "reviewer", runtime=runtime)
    (machine.bin / CLIS[runtime]).unlink()
    with pytest.raises(ProgramNotFound) as caught:
        machine.bound()
    reason = f"(runtime in {machine.globals}/reviewer.md)"
    told = f"'reviewer' needs {program.label} {reason}, which was not found: no program '{CLIS[runtime]}'"
    assert told in caught.value.message
    assert (caught.value.hint or "").startswith(f"{program.install}, or set {program.variable}")
    assert machine.why()["problem"] == caught.value.message


# --- What is shown ---


def shown(machine: Machine, name: str = "reviewer") -> tuple[str | None, str, str | None]:
    (row,) = (row for row in machine.why(name)["fields"] if row["field"] == "runtime")
    return row["value"], row["origin"], row["path"]


def test_runtime_is_explained_with_its_origin(machine: Machine) -> None:
    file, config = write(machine.globals, "reviewer", model="sonnet"), str(machine.home / "config.toml")
    assert shown(machine) == ("claude", "default", None)
    write(machine.globals, "reviewer", model="gpt-5")
    assert shown(machine) == (None, "default", None)
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    assert shown(machine) == ("cursor", "configuration", config)
    write(machine.globals, "reviewer", model="gpt-5", runtime="codex")
    assert shown(machine) == ("codex", "file", str(file))
    machine.own('[agents.reviewer]\nruntime = "cursor"\n')
    assert shown(machine) == ("cursor", "configuration", config)
    assert describe(machine.bound())[0]["provider"] == "cursor"


# --- Trust ---


@pytest.mark.parametrize("runtime", ["codex", "cursor"])
def test_projects_definition_needs_approval_for_another_cli(machine: Machine, runtime: str) -> None:
    path = write(machine.locals, "reviewer", runtime=runtime)
    with pytest.raises(NotTrusted, match=rf"another CLI \(runtime: {runtime}\)"):
        machine.bound()
    approvals = Approvals(machine.settings())
    catalog = discover(str(machine.project), machine.env, str(machine.home), approvals.config, approvals)
    assert needs(catalog.ranked["reviewer"][0], catalog, approvals, machine.env)[1] == [str(path)]
    told = explain_file(str(path), approvals)
    assert [(one.what, one.details) for one in told.asks] == [("another CLI", (f"runtime: {runtime}",))]
    approve(str(machine.home), FILE, told.path, told.content)
    spec = machine.bound()
    assert (spec.provider, [one.file for one in spec.approvals]) == (runtime, [str(path)])
    path.write_text(path.read_text() + "more\n")
    with pytest.raises(NotTrusted):
        machine.bound()


def test_projects_definition_for_claude_needs_no_approval(machine: Machine) -> None:
    write(machine.locals, "reviewer", runtime="claude")
    assert machine.bound().provider == "claude"


def test_user_choice_for_model_applies_to_projects(machine: Machine) -> None:
    """The user chose the CLI, so a project that names only a model gets it without approval."""
    write(machine.locals, "reviewer", model="gpt-5")
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    spec = machine.bound()
    assert (spec.provider, spec.untrusted_instructions, spec.approvals) == ("cursor", True, ())


def test_project_changes_no_choice_of_the_users(machine: Machine) -> None:
    write(machine.globals, "reviewer", model="gpt-5")
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    machine.config('[models]\n"gpt-5" = "codex"\n')
    assert machine.bound().provider == "cursor"


def test_projects_choice_needs_an_approved_folder(machine: Machine) -> None:
    write(machine.globals, "reviewer", model="gpt-5")
    machine.config('[models]\n"gpt-*" = "cursor"\n')
    with pytest.raises(NotTrusted, match=r"hocket\.toml: \[models\]"):
        machine.bound()
    assert "[models]" in machine.why()["problem"]
    approvals = Approvals(machine.settings())
    (told,) = explain_folder(str(machine.project), approvals)
    assert ("hocket.toml: [models]", ("gpt-*: cursor",)) in told.asks
    approve(str(machine.home), FOLDER, told.path, told.content)
    spec = machine.bound()
    assert (spec.provider, spec.approvals[-1].folder) == ("cursor", str(machine.project))


def test_project_alias_with_other_runtime_needs_approval(machine: Machine) -> None:
    write(machine.globals, "reviewer")
    machine.config('[agents.mine]\npath = "reviewer"\nruntime = "codex"\n')
    with pytest.raises(NotTrusted, match=r"another CLI \(runtime = codex\)"):
        machine.bound("mine")


def test_project_hooks_need_approval_with_another_cli(machine: Machine) -> None:
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}
    write(machine.locals, "reviewer", model="gpt-5", hooks=hooks)
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    with pytest.raises(NotTrusted, match="hooks"):
        machine.bound()


def test_project_permission_mode_needs_approval_with_another_cli(machine: Machine) -> None:
    write(machine.locals, "reviewer", model="gpt-5", permissionMode="bypassPermissions")
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    with pytest.raises(NotTrusted, match="permission mode bypassPermissions"):
        machine.bound()


def test_trusted_folder_makes_instructions_trusted_for_any_cli(machine: Machine) -> None:
    write(machine.locals, "reviewer", runtime="cursor")
    machine.own(f'[trust]\nfolders = ["{machine.project}"]\n')
    spec = machine.bound()
    assert (spec.provider, spec.untrusted_instructions, spec.notices) == ("cursor", False, ())


def test_child_mode_stays_narrow_with_any_cli(machine: Machine) -> None:
    write(machine.globals, "reviewer", model="gpt-5", permissionMode="bypassPermissions")
    machine.own('[models]\n"gpt-*" = "cursor"\n')
    assert "--force" in machine.bound().argv
    caller = CallingAgent("run 1", "planner", AgentIdentity("planner", None), "plan", allowed=("reviewer",))
    request = StartRequest(cwd=str(machine.project), env=machine.env, agent="reviewer", prompt="go")
    spec = bind(request, machine.settings(), limits=DelegationLimits(caller))
    assert isinstance(spec, Spec)
    assert (spec.permission_mode, spec.argv[1:3]) == ("plan", ("--mode", "plan"))
    with pytest.raises(NotAllowed):
        bind(request, machine.settings(), limits=DelegationLimits(replace(caller, allowed=())))


def test_other_cli_relies_on_no_folder_settings(machine: Machine) -> None:
    write(machine.globals, "planner")
    write(machine.globals, "reviewer", runtime="cursor")
    approvals = Approvals(machine.settings())
    (machine.project / "CLAUDE.md").write_text("Work.\n")
    (told,) = explain_folder(str(machine.project), approvals)
    approve(str(machine.home), FOLDER, told.path, told.content)
    request = StartRequest(cwd=str(machine.project), env=machine.env, dsl="planner -> reviewer", prompt="go")
    bound = bind(request, machine.settings())
    assert isinstance(bound, BoundChain)
    assert [step.approval is not None for step in bound.steps] == [True, False]
    assert [bool(step.spec.approvals) for step in bound.steps] == [True, True]


# --- Configuration ---


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"gpt-*" = "gemini"', '"claude" or "codex" or "cursor"'),
        ('gpt-5.1 = "cursor"', "got {'1': 'cursor'}"),
        ('"" = "cursor"', "not a pattern"),
        (f'"{"x" * 201}" = "cursor"', "not a pattern"),
        ('"gpt-*" = 5', "got 5"),
    ],
)
def test_unusable_rule_is_refused(machine: Machine, text: str, reason: str) -> None:
    machine.own(f"[models]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        machine.settings()
    assert "[models]" in caught.value.message
    assert reason in caught.value.message


def test_error_of_trust_comes_before_a_missing_cli(machine: Machine) -> None:
    """So that a project learns nothing about the machine, and the user approves before installing anything."""
    write(machine.locals, "reviewer", runtime="cursor")
    (machine.bin / "cursor-agent").unlink()
    with pytest.raises(NotTrusted):
        machine.bound()
    found = resolve("reviewer", str(machine.project), machine.env, machine.settings())
    assert isinstance(found.missing, HocketError)
