"""The explanation of a name agrees with what runs, for random combinations of sources."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from catalog.agent_world import AgentWorld

from hocket.catalog.configs import DEFAULTS
from hocket.catalog.explanation import explain
from hocket.config.loading import load
from hocket.errors import AgentNotFound, HocketError
from hocket.providers.claude.frontmatter import texts
from hocket.trust.approvals import Approvals
from hocket.trust.check import authorize, table_of
from hocket.workflows.bind import bind, describe
from hocket.workflows.request import StartRequest

NAMES = ("builder", "qa", "claude", "codex", "other")
ALIASES: tuple[dict[str, Any], ...] = (
    {},
    {"model": "haiku"},
    {"permission_mode": "plan", "allowed_tools": "Read Bash(git diff *)"},
    {"path": "other"},
    {"path": "qa", "allowed_tools": ["Grep"], "args": ["--model", "opus"]},
    {"path": "claude", "model": "sonnet"},
    {"path": "far/.claude/agents/other"},
    {"path": "./tool", "args": ["-x"]},
    {"path": "nosuch"},
)
HEADS = ("", "model: opus\n", "tools: Read, Edit\npermissionMode: plan\n", "tools: [Glob]\npermissionMode: odd\n")
STRICT = "[spawn]\nrequire_model = true\n"
NOTHING = "nothing"


class Machine(AgentWorld):
    """A user, a project and a PATH, filled by choice."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bin = root / "bin"
        self.env["PATH"] = str(self.bin)
        for program in (self.bin / "claude", self.project / "tool"):
            self.program(program)
        self.home.mkdir()
        (self.home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(self.project))}]\n")
        self.define(self.project / "far/.claude/agents", "other", "tools: Grep\n")

    def program(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def define(self, folder: Path, name: str, head: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(f"---\nname: {name}\ndescription: d\n{head}---\nWork.\n")

    def fill(self, choose: random.Random) -> None:
        aliases = ""
        for name in NAMES:
            for folder in (self.locals, self.globals, self.library):
                if choose.random() < 0.3:
                    self.define(folder, name, choose.choice(HEADS))
            if choose.random() < 0.3:
                self.program(self.bin / name)
            if choose.random() < 0.4:
                seeded = next((one for one in DEFAULTS if one["name"] == name), None)
                own = {"allowedTools": "Read Edit(*)", "permissionMode": "plan"}
                fields = seeded if seeded and choose.random() < 0.7 else {**own, "specPath": f"specs/{name}.md"}
                self.agent_config(name, **fields)
                if choose.random() < 0.7:
                    (self.project / "specs").mkdir(exist_ok=True)
                    (self.project / f"specs/{name}.md").write_text("---\nmodel: opus\n---\nDo it.\n")
            if choose.random() < 0.4:
                lines = (f"{key} = {json.dumps(value)}" for key, value in choose.choice(ALIASES).items())
                aliases += f"[agents.{name}]\n" + "\n".join(lines) + "\n"
        if choose.random() < 0.3:
            self.env["CLAUDE_RUNNER_MODEL"] = "fable"
        claude, spawn = choose.choice(("", '[claude]\nmodel = "haiku"\n')), STRICT if choose.random() < 0.15 else ""
        self.config(claude + spawn + aliases)

    def explained(self, word: str) -> dict[str, Any] | None:
        """The explanation; None if there is no such agent."""
        cwd = str(self.project)
        config = load(cwd, str(self.home), self.env)
        approvals, catalog = Approvals(config), self.catalog()
        table = table_of(catalog, approvals, self.env)
        with suppress(AgentNotFound):
            return explain(
                word, catalog, table, config, self.env, lambda one: authorize(one, cwd, approvals, lambda: catalog)
            )
        return None

    def dry_run(self, word: str) -> dict[str, Any] | None:
        """The step that would be started; None if it would be refused."""
        request = StartRequest(str(self.project), self.env, dsl=word, prompt="x")
        with suppress(HocketError):
            (step,) = describe(bind(request, load(str(self.project), str(self.home), self.env)))
            return step
        return None


def passed(argv: list[str], flag: str) -> str | None:
    """The value of a flag; the last one wins."""
    return next((value for name, value in reversed(list(pairwise(argv))) if name == flag), None)


def check(machine: Machine, word: str) -> str:
    """Compare what is explained with what would run. Return where it comes from."""
    step, told = machine.dry_run(word), machine.explained(word)
    if step is None or told is None:
        assert told is None or told["problem"] or told["needs_trust"], (word, told)
        assert step is None, (word, step)
        return NOTHING if told is None else "refused"
    used = [one for one in told["candidates"] if one["verdict"] == "used"]
    assert told["problem"] is None, (told, step)
    assert used[-1]["source"] == step["source"], (word, used, step)
    assert len(used) == 1 + (used[0]["source"] == "alias")
    values = {row["field"]: row["value"] for row in told["fields"]}
    if step["source"] != "config":
        assert used[-1]["path"] == (step["definition"] or step["path"]), (word, used, step)
    if step["provider"] == "claude":
        argv = step["argv"]
        assert values["permission_mode"] == passed(argv, "--permission-mode"), (word, values, argv)
        if allowed := passed(argv, "--tools"):
            assert texts(values["tools"]) == texts(allowed), (word, values, argv)
        elif step["definition"]:
            assert "allowed_tools" not in values or not values["allowed_tools"]
        model = passed(argv, "--model")
        assert values["model"] == model or (model is None and step["definition"]), (word, values, argv)
    if step["provider"] == "executable":
        assert values["program"] == step["path"]
        assert not {"tools", "permission_mode", "model"} & values.keys()
    return str(step["source"])


@pytest.mark.parametrize("seed", range(24))
def test_explanation_agrees_with_dry_run(tmp_path: Path, seed: int) -> None:
    machine = Machine(tmp_path)
    machine.fill(random.Random(seed))
    for word in (*NAMES, "nosuch", "./tool", "far/.claude/agents/other", "tool/x"):
        check(machine, word)


def test_random_combinations_cover_every_source(tmp_path: Path) -> None:
    seen = set[str]()
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        machine = Machine(tmp_path / str(seed))
        machine.fill(random.Random(seed))
        seen |= {check(machine, word) for word in (*NAMES, "nosuch", "./tool")}
    assert seen >= {"project-local", "global", "config", "library", "cli", "PATH", "path", NOTHING}
