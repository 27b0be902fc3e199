"""A child may do no more than its caller, however it is started, unless the user allowed it by an edge."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from store.sample_events import created
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from world import Bin

from hocket.config import BYPASS, PERMISSION_MODES
from hocket.config.loading import load
from hocket.config.settings import is_wider, narrower
from hocket.errors import LimitReached, NotAllowed
from hocket.model import BoundChain, Event, Kind, Run, Spec, Status, fold
from hocket.sessions import restore
from hocket.trust import approvals, delegation
from hocket.trust.approvals import AgentIdentity, Approvals
from hocket.trust.check import known_agent
from hocket.trust.delegation import DelegationLimits
from hocket.workflows.request import ResumeRequest, StartRequest

PAUSING = "import signal; signal.pause()"
LONG = 600.0


def define(root: Path, name: str, **head: str) -> Path:
    path = root / ".claude/agents" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{key}: {value}\n" for key, value in {"name": name, "description": "d", **head}.items())
    path.write_text(f"---\n{lines}---\nHello.\n", encoding="utf-8")
    return path


class DelegationSetup:
    """An engine with a Claude CLI that only waits, and the files of the user."""

    def __init__(self, runner: EngineRunner, world: Path, project: Path) -> None:
        self.engine = runner.engine
        self.runner = runner
        self.user = world / "user"
        self.project = project
        self.env = {"PATH": f"{world / 'bin'}:/usr/bin:/bin", "HOME": str(self.user)}

    async def start(self, agent: str, parent: Run | None = None, **options: Any) -> Run:
        return await self.begin(StartRequest(cwd=str(self.project), env=self.env, agent=agent, **options), parent)

    async def chain(self, dsl: str, parent: Run | None = None, **options: Any) -> Run:
        return await self.begin(StartRequest(cwd=str(self.project), env=self.env, dsl=dsl, **options), parent)

    async def begin(self, request: StartRequest, parent: Run | None) -> Run:
        return await self.engine.start(request, None, parent)

    def spec(self, run: Run) -> Spec:
        return msgspec.json.decode(self.engine.read.spec(run.id), type=Spec)

    def mode(self, run: Run) -> str | None:
        """The permission mode of the specification, after a check that the arguments of the CLI have the same."""
        spec = self.spec(run)
        if spec.permission_mode is None:
            return None
        modes = [after for flag, after in zip(spec.argv, spec.argv[1:], strict=False) if flag == "--permission-mode"]
        assert modes[-1:] == [spec.permission_mode]
        assert "--dangerously-skip-permissions" not in spec.argv
        if "agents.json" in spec.files:
            fields = next(iter(json.loads(spec.files["agents.json"]).values()))
            assert fields.get("permissionMode", spec.permission_mode) == spec.permission_mode
        return spec.permission_mode

    async def notices(self, run: Run) -> list[str]:
        return [event["data"]["text"] for event in await self.runner.events(run) if event["type"] == "notice"]

    async def stopped(self, run: Run) -> Run:
        await self.engine.stop(run)
        return self.engine.find(run.id)

    def configure(self, text: str) -> None:
        (Path(self.engine.home) / "config.toml").write_text(text)

    def allow(self, caller: AgentIdentity, target: AgentIdentity) -> None:
        approvals.allow(str(self.engine.home), caller, target)

    async def refused(self, agent: str, parent: Run, **options: Any) -> NotAllowed:
        before = len(self.engine.read.recent(1000))
        with pytest.raises(NotAllowed) as caught:
            await self.start(agent, parent, **options)
        assert len(self.engine.read.recent(1000)) == before
        assert (caught.value.code, caught.value.status, caught.value.exit_code) == ("not_allowed", 403, 2)
        return caught.value


Scenario = Callable[[DelegationSetup], Awaitable[None]]
RunScenario = Callable[[Scenario], None]


@pytest.fixture
def run_scenario(home: Path, project: Path, world: Path, agent: Bin) -> RunScenario:
    agent("claude", PAUSING)
    agent("tool", PAUSING)

    @asynccontextmanager
    async def open_setup() -> AsyncIterator[DelegationSetup]:
        async with engine_runner(home, project) as runner:
            try:
                yield DelegationSetup(runner, world, project)
            finally:
                await stop_all(runner.engine)

    async def run(scenario: Scenario) -> None:
        async with open_setup() as setup:
            await scenario(setup)

    return lambda scenario: asyncio.run(run(scenario))


# --- The narrower mode --------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", PERMISSION_MODES)
@pytest.mark.parametrize("other", PERMISSION_MODES)
def test_narrower_mode_is_wider_than_neither(one: str, other: str) -> None:
    found = narrower(one, other)
    assert found in (one, other)
    assert not is_wider(found, one)
    assert not is_wider(found, other)


@pytest.mark.req("S2-56")
@pytest.mark.parametrize(
    ("callers", "own", "effective"),
    [
        ("plan", "acceptEdits", "plan"),
        ("default", BYPASS, "default"),
        ("acceptEdits", BYPASS, "acceptEdits"),
        ("acceptEdits", "plan", "plan"),
        ("acceptEdits", "acceptEdits", "acceptEdits"),
        (BYPASS, BYPASS, BYPASS),
        (BYPASS, "default", "default"),
    ],
)
def test_child_mode_is_narrower_of_own_and_caller(
    run_scenario: RunScenario, callers: str, own: str, effective: str
) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", permissionMode=callers)
        define(setup.user, "worker", permissionMode=own)
        lead = await setup.start("lead")
        assert setup.mode(lead) == callers
        worker = await setup.start("worker", lead)
        assert setup.mode(worker) == effective
        notices = await setup.notices(worker)
        if effective == own:
            assert notices == []
        else:
            words = (
                f"worker works in {effective} and not in {own}: run 1 (lead), which started it, works in {callers};"
                f" to allow it more: hocket trust --edge lead worker --cwd {setup.project}"
            )
            assert notices == [words]

    run_scenario(scenario)


def test_narrowed_mode_applies_to_all_descendants(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", permissionMode="plan")
        for name in ("worker", "other"):
            define(setup.user, name, permissionMode=BYPASS)
        run = await setup.start("lead")
        for name in ("worker", "other", "worker"):
            run = await setup.start(name, run)
            assert setup.mode(run) == "plan"

    run_scenario(scenario)


def test_chain_steps_below_agent_are_narrowed(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", permissionMode="default")
        define(setup.user, "worker", permissionMode=BYPASS)
        lead = await setup.start("lead")
        chain = await setup.chain("worker:2 -> worker", lead)
        bound = msgspec.json.decode(setup.engine.read.spec(chain.id), type=BoundChain)
        assert [step.spec.permission_mode for step in bound.steps] == ["default", "default"]
        await until(lambda: len(setup.engine.read.below(chain.id)) >= 3, "the first iteration")
        inner = next(run for run in setup.engine.read.below(chain.id) if run.kind is Kind.LEAF)
        assert setup.mode(inner) == "default"
        # The chain itself as the parent: its children are below the same agent.
        assert setup.mode(await setup.start("worker", chain)) == "default"

    run_scenario(scenario)


def test_permission_mode_in_alias_arguments_is_narrowed(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", permissionMode="default")
        define(setup.user, "worker")
        setup.configure(
            '[agents.skips]\npath = "worker"\nargs = ["--model", "m", "--dangerously-skip-permissions"]\n'
            f'[agents.says]\npath = "worker"\nargs = ["--permission-mode", "{BYPASS}", "--model=m"]\n'
            f'[agents.joins]\npath = "worker"\nargs = ["--permission-mode={BYPASS}"]\n'
        )
        lead = await setup.start("lead")
        for name in ("skips", "says", "joins"):
            assert setup.spec(await setup.start(name)).permission_mode == BYPASS
            assert setup.mode(await setup.start(name, lead)) == "default"
        assert "--model" in setup.spec(await setup.start("skips", lead)).argv

    run_scenario(scenario)


def test_typed_permission_mode_limits_children(run_scenario: RunScenario) -> None:
    """The mode of the arguments limits its children, not the mode of its definition."""

    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", permissionMode="default")
        define(setup.user, "worker", permissionMode=BYPASS)
        free = await setup.start("lead", args=("--dangerously-skip-permissions",))
        tight = await setup.start("lead", args=("--permission-mode", "plan"))
        assert setup.mode(await setup.start("worker", free)) == BYPASS
        assert setup.mode(await setup.start("worker", tight)) == "plan"

    run_scenario(scenario)


def test_children_of_program_keep_their_mode(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "worker", permissionMode=BYPASS)
        program = await setup.start("tool")
        assert setup.mode(program) is None
        assert setup.mode(await setup.start("worker", program)) == BYPASS
        assert (await setup.start("tool", program, args=("-x",))).parent == program.id

    run_scenario(scenario)


def test_child_tools_are_not_narrowed(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", tools="Read")
        define(setup.user, "worker", tools="Read, Edit, Bash")
        setup.configure('[agents.hand]\npath = "worker"\nallowed_tools = "Edit Bash(git *)"\n')
        worker = await setup.start("hand", await setup.start("lead"))
        spec = setup.spec(worker)
        allowed = spec.argv[spec.argv.index("--allowedTools") + 1].split(",")
        assert {"Edit", "Bash(git *)"} <= set(allowed)
        assert json.loads(spec.files["agents.json"])["worker"]["tools"]

    run_scenario(scenario)


# --- Edges --------------------------------------------------------------------------------------------------


def test_edge_permits_full_mode_for_its_pair_only(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        lead_path = define(setup.user, "lead", permissionMode="default")
        worker_path = define(setup.user, "worker", permissionMode=BYPASS)
        define(setup.user, "other", permissionMode="default")
        define(setup.user, "second", permissionMode=BYPASS)
        lead, other = await setup.start("lead"), await setup.start("other")
        setup.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        worker = await setup.start("worker", lead)
        assert setup.mode(worker) == BYPASS
        assert await setup.notices(worker) == []
        assert setup.mode(await setup.start("worker", other)) == "default"
        assert setup.mode(await setup.start("second", lead)) == "default"
        assert setup.mode(await setup.start("lead", worker)) == "default"

    run_scenario(scenario)


def test_edge_applies_only_to_its_definition_file(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        lead_path = define(setup.user, "lead", permissionMode="default")
        worker_path = define(setup.user, "worker", permissionMode=BYPASS)
        setup.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        lead = await setup.start("lead")
        # The same name, and the same file behind it, but with more than the edge was for.
        setup.configure(
            f'[agents.twin]\npath = "worker"\npermission_mode = "{BYPASS}"\n[trust]\nfolders = ["{setup.project}"]\n'
        )
        assert setup.mode(await setup.start("twin", lead)) == "default"
        define(setup.project, "worker", permissionMode=BYPASS)
        assert setup.mode(await setup.start("worker", lead)) == "default"

    run_scenario(scenario)


def test_edge_applies_to_agent_by_name_or_path(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        lead_path = define(setup.user, "lead", permissionMode="default")
        worker_path = define(setup.user, "worker", permissionMode=BYPASS)
        setup.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        lead = await setup.start(str(lead_path))
        for word in ("worker", str(worker_path), "~/.claude/agents/worker"):
            assert setup.mode(await setup.start(word, lead)) == BYPASS

    run_scenario(scenario)


def test_withdrawn_edge_no_longer_applies(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        ends = [define(setup.user, name, permissionMode=mode) for name, mode in (("lead", "plan"), ("w", "default"))]
        caller, target = AgentIdentity("lead", str(ends[0])), AgentIdentity("w", str(ends[1]))
        lead = await setup.start("lead")
        setup.allow(caller, target)
        assert setup.mode(await setup.start("w", lead)) == "default"
        approvals.forbid(str(setup.engine.home), approvals.read(str(setup.engine.home)).edges)
        assert setup.mode(await setup.start("w", lead)) == "plan"

    run_scenario(scenario)


def test_resume_is_refused_after_edge_is_withdrawn(run_scenario: RunScenario, world: Path) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        ends = [define(setup.user, name, permissionMode=mode) for name, mode in (("lead", "plan"), ("w", "default"))]
        caller, worker = AgentIdentity("lead", str(ends[0])), AgentIdentity("w", str(ends[1]))
        home = str(setup.engine.home)
        lead = await setup.start("lead")
        narrowed = await setup.chain("w", lead)
        setup.allow(caller, worker)
        setup.allow(caller, AgentIdentity("tool", str(world / "bin/tool")))
        program, wide = await setup.chain("tool", lead), await setup.chain("w", lead)
        narrowed, program, wide = [await setup.stopped(run) for run in (narrowed, program, wide)]
        again = await setup.stopped(await setup.engine.tasks.resume(wide, ResumeRequest()))
        approvals.forbid(home, approvals.read(home).edges)
        fresh = await setup.refused("tool", lead)
        for run, words in ((program, fresh.message), (wide, "in default: it works in plan itself"), (again, "default")):
            with pytest.raises(NotAllowed, match=re.escape(words)) as caught:
                await setup.engine.tasks.resume(run, ResumeRequest(start_at=1))
            assert "hocket trust --edge lead" in (caught.value.hint or "")
        # What does not depend on an edge can be resumed.
        await setup.engine.tasks.resume(narrowed, ResumeRequest())
        setup.allow(caller, worker)
        await setup.engine.tasks.resume(wide, ResumeRequest(start_at=1))

    run_scenario(scenario)


def test_restored_run_keeps_delegation_and_approvals(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        ends = [define(setup.user, name, permissionMode=mode) for name, mode in (("lead", "plan"), ("w", "default"))]
        setup.configure(f'[trust]\nfolders = ["{setup.project}"]\n')
        setup.allow(AgentIdentity("lead", str(ends[0])), AgentIdentity("w", str(ends[1])))
        worker = await setup.start("w", await setup.start("lead"))
        await setup.runner.running(worker)
        before, birth = setup.spec(worker), restore._read_run(setup.engine.directory(worker), None)
        assert birth is not None
        after = msgspec.json.decode(birth[1].spec, type=Spec)
        assert before.delegation
        assert before.approvals
        assert (after.delegation, after.approvals) == (before.delegation, before.approvals)

    run_scenario(scenario)


def test_edge_hint_has_path_for_ambiguous_name(run_scenario: RunScenario, world: Path) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        elsewhere = world / "elsewhere"
        path = define(elsewhere, "lead", permissionMode="plan")
        define(setup.user, "lead")
        define(setup.user, "worker")
        lead = await setup.start(str(path))
        notices = await setup.notices(await setup.start("worker", lead))
        assert f"hocket trust --edge {path} worker --cwd {setup.project}" in notices[0]

    run_scenario(scenario)


# --- Untrusted projects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_edge", [True, False])
def test_untrusted_project_never_delegates_bypass(run_scenario: RunScenario, with_edge: bool) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        lead_path = define(setup.project, "lead", permissionMode="default")
        middle_path = define(setup.user, "middle")
        worker_path = define(setup.user, "worker", permissionMode=BYPASS)
        known = {path.stem: AgentIdentity(path.stem, str(path)) for path in (lead_path, middle_path, worker_path)}
        if with_edge:
            setup.allow(known["lead"], known["worker"])
            setup.allow(known["middle"], known["worker"])
        lead = await setup.start("lead")
        worker = await setup.start("worker", lead)
        assert setup.mode(worker) == "default"
        assert "never hands on" in (await setup.notices(worker))[0]
        # Nor through a trusted agent in between.
        middle = await setup.start("middle", lead)
        assert setup.spec(middle).untrusted_instructions
        assert setup.mode(await setup.start("worker", middle)) != BYPASS
        # Not even if the user let the first one work like that.
        wild = await setup.start("lead", args=("--dangerously-skip-permissions",))
        assert setup.mode(await setup.start("worker", wild)) == "acceptEdits"

    run_scenario(scenario)


def test_edge_permits_bypass_in_listed_folder(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        setup.configure(f'[trust]\nfolders = ["{setup.project}"]\n')
        lead_path = define(setup.project, "lead", permissionMode="default")
        worker_path = define(setup.user, "worker", permissionMode=BYPASS)
        setup.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        assert setup.mode(await setup.start("worker", await setup.start("lead"))) == BYPASS

    run_scenario(scenario)


def test_user_agent_by_path_has_trusted_instructions(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        path = define(setup.user, "lead")
        assert not setup.spec(await setup.start(str(path))).untrusted_instructions
        assert not setup.spec(await setup.start("lead")).untrusted_instructions
        assert setup.spec(await setup.start(str(define(setup.project, "lead2")))).untrusted_instructions

    run_scenario(scenario)


# --- Programs, gates, arguments, environment ----------------------------------------------------------------


def test_agent_may_not_start_unlisted_program(run_scenario: RunScenario, world: Path) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead", permissionMode=BYPASS)
        lead = await setup.start("lead")
        for word in ("sh", "tool", "/bin/sh", str(world / "bin/tool"), "../bin/tool"):
            error = await setup.refused(word, lead, args=("-c", "touch pwned"))
            assert "plain program" in error.message
            assert f"hocket trust --edge lead {word} --cwd {setup.project}" in (error.hint or "")
        with pytest.raises(NotAllowed, match="plain program"):
            await setup.chain("claude -> sh", lead)
        (setup.project / "hocket.toml").write_text('[agents.check]\npath = "sh"\nargs = ["-c"]\n')
        await setup.refused("check", lead, prompt="touch pwned")

    run_scenario(scenario)


def test_agent_may_start_program_of_user_alias(run_scenario: RunScenario, world: Path) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        lead_path = define(setup.user, "lead")
        setup.configure('[agents.check]\npath = "tool"\n')
        lead = await setup.start("lead")
        assert (await setup.start("check", lead)).provider == "executable"
        await setup.refused("tool", lead)
        setup.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("tool", str(world / "bin/tool")))
        assert (await setup.start("tool", lead)).provider == "executable"

    run_scenario(scenario)


def test_program_alias_of_project_requires_listed_folder(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead")
        (setup.project / "hocket.toml").write_text('[agents.check]\npath = "tool"\n')
        lead = await setup.start("lead")
        await setup.refused("check", lead)
        setup.configure(f'[trust]\nfolders = ["{setup.project}"]\n')
        assert (await setup.start("check", lead)).provider == "executable"

    run_scenario(scenario)


def test_agent_may_not_start_chain_with_gate(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead")
        setup.configure('[chains.mine]\nsteps = [{agent = "claude", until = "true"}]\n')
        (setup.project / "hocket.toml").write_text('[chains.theirs]\nsteps = [{agent = "lead"}]\nuntil = "true"\n')
        lead = await setup.start("lead")
        plain = StartRequest(cwd=str(setup.project), env=setup.env, prompt="x")
        for request in (
            msgspec.structs.replace(plain, dsl="lead", until="touch pwned"),
            msgspec.structs.replace(plain, chain="theirs"),
        ):
            with pytest.raises(NotAllowed, match="shell command"):
                await setup.begin(request, lead)
        assert (await setup.begin(msgspec.structs.replace(plain, chain="mine"), lead)).kind is Kind.CHAIN

    run_scenario(scenario)


@pytest.mark.parametrize(
    "args",
    [
        ("--dangerously-skip-permissions",),
        ("--permission-mode", BYPASS),
        ("--permission-mode=auto",),
        ("--allowedTools", "Bash"),
        ("--mcp-config", "x.json"),
        ("--settings", "{}"),
        ("-r", "session"),
        ("--", "x"),
    ],
)
def test_agent_may_not_pass_widening_arguments(run_scenario: RunScenario, args: tuple[str, ...]) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead")
        define(setup.user, "worker")
        lead = await setup.start("lead")
        error = await setup.refused("worker", lead, args=args)
        assert args[0].partition("=")[0] in error.message
        with pytest.raises(NotAllowed, match=args[0].partition("=")[0]):
            await setup.chain("worker", lead, args=args)

    run_scenario(scenario)


def test_agent_may_pass_narrowing_arguments(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead")
        define(setup.user, "worker")
        lead = await setup.start("lead")
        child = await setup.start("worker", lead, args=("--model", "m", "--permission-mode", "plan"))
        assert setup.mode(child) == "plan"
        assert setup.mode(await setup.start("lead", child)) == "plan"

    run_scenario(scenario)


def test_agent_variables_cannot_widen_permissions(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead")
        define(setup.user, "worker")
        setup.configure('[agents.open]\npath = "worker"\nargs = ["--permission-mode", "${MODE}", "${MORE}"]\n')
        lead = await setup.start("lead")
        wide = await setup.start("open", lead, variables={"MODE": BYPASS, "MORE": "--verbose"})
        assert setup.mode(wide) == "acceptEdits"
        error = await setup.refused("open", lead, variables={"MODE": "plan", "MORE": "--settings={}"})
        assert "--settings" in error.message

    run_scenario(scenario)


def test_agent_environment_does_not_change_program_lookup(run_scenario: RunScenario, world: Path) -> None:
    """Neither another PATH or HOME nor a variable with the path of the CLI has an effect."""

    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "lead")
        define(setup.user, "worker")
        evil = Bin(world / "evil")
        evil.folder.mkdir()
        evil("claude", PAUSING)
        (world / "evil/config").mkdir()
        (world / "evil/config/hocket").mkdir()
        (world / "evil/config/hocket/config.toml").write_text('[agents.mine]\npath = "sh"\n')
        lead = await setup.start("lead")
        env = {"PATH": str(world / "evil"), "HOME": str(world / "evil"), "HOCKET_CLAUDE": str(world / "evil/claude")}
        env["XDG_CONFIG_HOME"] = str(world / "evil/config")
        child = await setup.begin(StartRequest(cwd=str(setup.project), env=env, agent="worker"), lead)
        assert setup.spec(child).argv[0] == str(world / "bin/claude")
        assert setup.spec(child).env["PATH"] == setup.env["PATH"]
        with pytest.raises(Exception, match="mine"):
            await setup.begin(StartRequest(cwd=str(setup.project), env=env, agent="mine"), lead)

    run_scenario(scenario)


# --- Allowed agents -----------------------------------------------------------------------------------------


@pytest.mark.req("S3-05", "S3-08", "S3-56")
def test_agent_starts_only_allowed_agents(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "any")
        define(setup.user, "some", allowedAgents="[worker, helper]")
        define(setup.user, "none", allowedAgents="[]")
        worker_path = define(setup.user, "worker")
        define(setup.user, "stranger")
        unlimited, some, none = [await setup.start(name) for name in ("any", "some", "none")]
        for word in ("worker", str(worker_path), "~/.claude/agents/worker.md"):
            assert (await setup.start(word, some)).parent == some.id
        for word in ("stranger", "some", "claude"):
            error = await setup.refused(word, some)
            assert error.message == f"run 2 (some) may not start {word!r}. Allowed agents: worker, helper"
            assert (await setup.start(word, unlimited)).parent == unlimited.id
        assert (await setup.refused("worker", none)).message.endswith("Allowed agents: none")
        with pytest.raises(NotAllowed, match="'stranger'"):
            await setup.chain("worker -> stranger", some)

    run_scenario(scenario)


@pytest.mark.req("S3-58")
def test_agent_starts_itself_only_if_listed(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "listed", allowedAgents="[listed]")
        define(setup.user, "other", allowedAgents="[listed]")
        path = define(setup.user, "any")
        setup.configure('[agents.twin]\npath = "any"\n')
        listed, other, free = [await setup.start(name) for name in ("listed", "other", "any")]
        assert (await setup.start("listed", listed)).parent == listed.id
        await setup.refused("other", other)
        for word in ("any", "twin", str(path)):
            error = await setup.refused(word, free)
            assert error.message == (
                f"run 3 (any) may not start {word!r}: an agent starts itself only if its definition lists it"
            )
            assert str(path) in (error.hint or "")
        assert (await setup.start("listed", free)).parent == free.id

    run_scenario(scenario)


@pytest.mark.req("S3-58")
def test_agent_kind_without_list_may_start_itself(run_scenario: RunScenario, home: Path) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        (home / "data/agents").mkdir(parents=True)
        (home / "data/agents/mine.json").write_text('{"specPath": "mine.md"}')
        (setup.project / "mine.md").write_text("Work.\n")
        for name in ("claude", "mine"):
            run = await setup.start(name)
            assert (await setup.start(name, run)).parent == run.id

    run_scenario(scenario)


@pytest.mark.req("S3-15")
def test_only_models_of_claude_are_inherited(run_scenario: RunScenario, agent: Bin) -> None:
    agent("codex", PAUSING)

    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "worker")
        setup.configure(
            '[agents.deep]\npath = "codex"\nmodel = "gpt-9"\n[agents.wise]\npath = "claude"\nmodel = "opus"\n'
        )
        found = []
        for name in ("deep", "wise"):
            run = await setup.start(name)
            child = await setup.start("worker", run)
            found.append([setup.spec(one).env.get("AGENT_MODEL") for one in (run, child)])
        assert found == [["gpt-9", None], ["opus", "opus"]]

    run_scenario(scenario)


@pytest.mark.req("S3-56")
def test_allowed_agents_match_addresses_and_alias_names(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "some", allowedAgents='["Code Reviewer", helper, twin-of]')
        path = define(setup.user, "reviewer")
        path.write_text(path.read_text().replace("name: reviewer", "name: Code Reviewer"))
        define(setup.user, "other")
        setup.configure('[agents.helper]\npath = "other"\n')
        some = await setup.start("some")
        for word in ("Code-Reviewer", "helper"):
            assert (await setup.start(word, some)).parent == some.id
        await setup.refused("other", some)

    run_scenario(scenario)


def test_allowed_name_excludes_agent_of_other_project(run_scenario: RunScenario, world: Path) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "some", allowedAgents="[worker]")
        define(setup.user, "worker")
        foreign = define(world / "elsewhere", "worker")
        await setup.refused(str(foreign), await setup.start("some"))

    run_scenario(scenario)


def test_edge_does_not_extend_allowed_agents(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        some, other = define(setup.user, "some", allowedAgents="[]"), define(setup.user, "other")
        setup.allow(AgentIdentity("some", str(some)), AgentIdentity("other", str(other)))
        await setup.refused("other", await setup.start("some"))

    run_scenario(scenario)


@pytest.mark.req("S3-46")
def test_environment_lists_allowed_agents_and_servers(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "some", allowedAgents="[worker]", allowedMcpServers="[]")
        define(setup.user, "any")
        some, unlimited = [setup.spec(await setup.start(name)).env for name in ("some", "any")]
        assert (some["AGENT_ALLOWED_AGENTS"], some["AGENT_MCP_SERVERS"]) == ('["worker"]', "[]")
        assert (unlimited["AGENT_ALLOWED_AGENTS"], unlimited["AGENT_MCP_SERVERS"]) == ("null", "null")
        tool = setup.spec(await setup.start("tool")).env
        assert (tool["AGENT_ALLOWED_AGENTS"], tool["AGENT_MCP_SERVERS"]) == ("null", "null")

    run_scenario(scenario)


# --- Time ---------------------------------------------------------------------------------------------------


def run_of(kind: Kind = Kind.LEAF, clock: float | None = None, *, ended: bool = False) -> Run:
    run = fold([Event(1, 0.0, "rx", "rx", "run.created", created("rx", 1, kind=kind).data)])
    return msgspec.structs.replace(run, started_clock=clock, status=Status.DONE if ended else Status.RUNNING)


@pytest.mark.parametrize(
    ("line", "deadline"),
    [
        ([], None),
        ([(run_of(clock=90.0), None)], None),
        ([(run_of(clock=90.0), 30.0)], 120.0),
        ([(run_of(clock=None), 30.0)], 130.0),
        ([(run_of(clock=5000.0), 30.0)], 130.0),
        ([(run_of(clock=90.0), 50.0), (run_of(Kind.CHAIN, 80.0), 40.0), (run_of(clock=10.0), None)], 120.0),
        ([(run_of(clock=90.0), None), (run_of(clock=10.0, ended=True), 20.0)], None),
    ],
)
def test_deadline_is_earliest_of_runs_above(line: list[tuple[Run, float | None]], deadline: float | None) -> None:
    runs = [msgspec.structs.replace(run, id=f"r{number}") for number, (run, _) in enumerate(line)]
    specs = {run.id: json.dumps({"timeout": timeout}).encode() for run, (_, timeout) in zip(runs, line, strict=True)}
    assert delegation.above(runs, lambda run: specs[run.id], 100.0).deadline == deadline


def test_start_is_refused_after_deadline() -> None:
    spec = Spec("a", "executable", ("a",), "/", {})
    with pytest.raises(LimitReached, match="time"):
        delegation.in_time(spec, DelegationLimits(deadline=10.0), 10.0)
    assert delegation.in_time(spec, DelegationLimits(), 10.0) is spec


def test_child_timeout_is_at_most_remaining_time(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        began = time.monotonic()
        top = await setup.runner.running(await setup.start("tool", timeout=LONG))
        same, shorter = await setup.start("tool", top), await setup.start("tool", top, timeout=5.0)
        longer, chain = await setup.start("tool", top, timeout=LONG * 9), await setup.chain("tool:2", top)
        left = LONG - (time.monotonic() - began)
        for run in (same, longer, chain):
            limit = json.loads(setup.engine.read.spec(run.id))["timeout"]
            assert left <= limit < LONG
        assert setup.spec(shorter).timeout == 5.0
        await until(lambda: len(setup.engine.read.below(chain.id)) >= 3, "the first iteration")
        inner = next(run for run in setup.engine.read.below(chain.id) if run.kind is Kind.LEAF)
        below = await setup.start("tool", inner)
        assert 0 < (setup.spec(below).timeout or 0) <= json.loads(setup.engine.read.spec(chain.id))["timeout"]

    run_scenario(scenario)


def test_child_ends_at_deadline_of_its_caller(run_scenario: RunScenario) -> None:
    async def scenario(setup: DelegationSetup) -> None:
        top = await setup.runner.running(await setup.start("tool", timeout=1.5))
        child = await setup.start("tool", top, timeout=LONG)
        ended = await setup.runner.wait(child)
        assert (ended.status, ended.reason) == ("failed", "timeout")
        assert (await setup.runner.wait(top)).reason == "timeout"

    run_scenario(scenario)


# --- Budget -------------------------------------------------------------------------------------------------


def test_child_run_spends_budget_of_its_caller(run_scenario: RunScenario, agent: Bin) -> None:
    """Also when its own budget is larger."""
    agent(
        "claude",
        "import json, signal, sys\nsys.stdin.readline()\n"
        'print(json.dumps({"type": "system", "subtype": "init", "session_id": "s", "tools": []}))\n'
        'print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "x",'
        ' "session_id": "s", "total_cost_usd": 3}), flush=True)\nsignal.pause()\n',
    )

    async def scenario(setup: DelegationSetup) -> None:
        define(setup.user, "worker")
        top = await setup.start("tool", budget_usd=2.0)
        child = await setup.start("worker", top, prompt="go", budget_usd=100.0)
        ended = [await setup.runner.wait(run) for run in (child, top)]
        assert [run.reason for run in ended] == ["budget", "budget"]

    run_scenario(scenario)


# --- Identities ---------------------------------------------------------------------------------------------


def test_older_spec_without_mode_delegates_default_mode() -> None:
    """The specification is that of an older server."""
    runs, spec = [run_of()], {"agent": "a", "provider": "claude", "env": {}, "argv": ["x"]}
    caller = delegation.above(runs, lambda _: json.dumps(spec).encode(), 0.0).caller
    assert caller is not None
    assert (caller.mode, caller.known, caller.allowed) == ("default", AgentIdentity("a"), None)


def test_agent_identity_is_alias_name_or_program(home: Path, project: Path, world: Path, agent: Bin) -> None:
    from hocket.catalog.discovery import discover
    from hocket.catalog.resolve import resolve

    agent("claude", PAUSING)
    tool = agent("tool", PAUSING)
    path = define(world / "user", "worker")
    (home / "config.toml").write_text('[agents.twin]\npath = "worker"\n')
    env = {"PATH": os.environ["PATH"], "HOME": str(world / "user")}
    config = load(str(project), str(home), env)

    def known(name: str) -> AgentIdentity:
        found = resolve(name, str(project), env, config).agent
        return known_agent(name, found, Approvals(config), lambda: discover(str(project), env, str(home), config))

    assert known("worker") == known(str(path)) == AgentIdentity("worker", str(path))
    assert known("twin") == AgentIdentity("twin", str(path))
    assert known("claude") == AgentIdentity("claude", None)
    assert known("tool") == AgentIdentity("tool", str(tool))
    assert known("../bin/tool") == AgentIdentity(str(tool), str(tool))
