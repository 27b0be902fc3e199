"""What an agent starts may do no more than the agent itself, whichever way it is started, unless the user says so."""

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


class Stage:
    """An engine with a Claude that only waits, and what the user may have written."""

    def __init__(self, runner: EngineRunner, world: Path, project: Path) -> None:
        self.engine = runner.engine
        self.runner = runner
        self.user = world / "user"
        self.project = project
        self.env = {"PATH": f"{world / 'bin'}:/usr/bin:/bin", "HOME": str(self.user)}

    async def start(self, agent: str, parent: Run | None = None, **wish: Any) -> Run:
        return await self.begin(StartRequest(cwd=str(self.project), env=self.env, agent=agent, **wish), parent)

    async def chain(self, dsl: str, parent: Run | None = None, **wish: Any) -> Run:
        return await self.begin(StartRequest(cwd=str(self.project), env=self.env, dsl=dsl, **wish), parent)

    async def begin(self, request: StartRequest, parent: Run | None) -> Run:
        return await self.engine.start(request, None, parent)

    def spec(self, run: Run) -> Spec:
        return msgspec.json.decode(self.engine.read.spec(run.id), type=Spec)

    def mode(self, run: Run) -> str | None:
        """What was written down, and what the CLI was really told; they agree."""
        spec = self.spec(run)
        if spec.permission_mode is None:
            return None
        told = [after for flag, after in zip(spec.argv, spec.argv[1:], strict=False) if flag == "--permission-mode"]
        assert told[-1:] == [spec.permission_mode]
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

    async def refused(self, agent: str, parent: Run, **wish: Any) -> NotAllowed:
        before = len(self.engine.read.recent(1000))
        with pytest.raises(NotAllowed) as caught:
            await self.start(agent, parent, **wish)
        assert len(self.engine.read.recent(1000)) == before
        assert (caught.value.code, caught.value.status, caught.value.exit_code) == ("not_allowed", 403, 2)
        return caught.value


Scene = Callable[[Stage], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(home: Path, project: Path, world: Path, agent: Bin) -> Play:
    agent("claude", PAUSING)
    agent("tool", PAUSING)

    @asynccontextmanager
    async def stage() -> AsyncIterator[Stage]:
        async with engine_runner(home, project) as runner:
            try:
                yield Stage(runner, world, project)
            finally:
                await stop_all(runner.engine)

    async def played(scene: Scene) -> None:
        async with stage() as stage_:
            await scene(stage_)

    return lambda scene: asyncio.run(played(scene))


# --- The narrower of two ------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", PERMISSION_MODES)
@pytest.mark.parametrize("other", PERMISSION_MODES)
def test_the_narrower_of_two_modes_is_wider_than_neither(one: str, other: str) -> None:
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
def test_an_agent_works_in_its_own_mode_or_in_its_callers_if_that_is_narrower(
    play: Play, callers: str, own: str, effective: str
) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", permissionMode=callers)
        define(stage.user, "worker", permissionMode=own)
        lead = await stage.start("lead")
        assert stage.mode(lead) == callers
        worker = await stage.start("worker", lead)
        assert stage.mode(worker) == effective
        told = await stage.notices(worker)
        if effective == own:
            assert told == []
        else:
            words = (
                f"worker works in {effective} and not in {own}: run 1 (lead), which started it, works in {callers};"
                f" to allow it more: hocket trust --edge lead worker --cwd {stage.project}"
            )
            assert told == [words]

    play(scene)


def test_what_was_narrowed_once_stays_narrow_all_the_way_down(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", permissionMode="plan")
        define(stage.user, "worker", permissionMode=BYPASS)
        run = await stage.start("lead")
        for _ in range(3):
            run = await stage.start("worker", run)
            assert stage.mode(run) == "plan"

    play(scene)


def test_every_step_of_a_chain_below_an_agent_is_narrowed(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", permissionMode="default")
        define(stage.user, "worker", permissionMode=BYPASS)
        lead = await stage.start("lead")
        chain = await stage.chain("worker:2 -> worker", lead)
        bound = msgspec.json.decode(stage.engine.read.spec(chain.id), type=BoundChain)
        assert [step.spec.permission_mode for step in bound.steps] == ["default", "default"]
        await until(lambda: len(stage.engine.read.below(chain.id)) >= 3, "the first iteration")
        inner = next(run for run in stage.engine.read.below(chain.id) if run.kind is Kind.LEAF)
        assert stage.mode(inner) == "default"
        # Whoever names the chain itself as the parent stands below the same agent.
        assert stage.mode(await stage.start("worker", chain)) == "default"

    play(scene)


def test_a_mode_among_the_users_own_arguments_is_narrowed_too(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", permissionMode="default")
        define(stage.user, "worker")
        stage.configure(
            '[agents.skips]\npath = "worker"\nargs = ["--model", "m", "--dangerously-skip-permissions"]\n'
            f'[agents.says]\npath = "worker"\nargs = ["--permission-mode", "{BYPASS}", "--model=m"]\n'
            f'[agents.joins]\npath = "worker"\nargs = ["--permission-mode={BYPASS}"]\n'
        )
        lead = await stage.start("lead")
        for name in ("skips", "says", "joins"):
            assert stage.spec(await stage.start(name)).permission_mode == BYPASS
            assert stage.mode(await stage.start(name, lead)) == "default"
        assert "--model" in stage.spec(await stage.start("skips", lead)).argv

    play(scene)


def test_what_the_user_types_is_what_an_agent_really_works_in(play: Play) -> None:
    """So that its own starts are measured by that, and not by what its file says."""

    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", permissionMode="default")
        define(stage.user, "worker", permissionMode=BYPASS)
        free = await stage.start("lead", args=("--dangerously-skip-permissions",))
        tight = await stage.start("lead", args=("--permission-mode", "plan"))
        assert stage.mode(await stage.start("worker", free)) == BYPASS
        assert stage.mode(await stage.start("worker", tight)) == "plan"

    play(scene)


def test_below_a_plain_program_everybody_works_as_written(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "worker", permissionMode=BYPASS)
        program = await stage.start("tool")
        assert stage.mode(program) is None
        assert stage.mode(await stage.start("worker", program)) == BYPASS
        assert (await stage.start("tool", program, args=("-x",))).parent == program.id

    play(scene)


def test_tools_are_each_agents_own(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", tools="Read")
        define(stage.user, "worker", tools="Read, Edit, Bash")
        stage.configure('[agents.hand]\npath = "worker"\nallowed_tools = "Edit Bash(git *)"\n')
        worker = await stage.start("hand", await stage.start("lead"))
        spec = stage.spec(worker)
        allowed = spec.argv[spec.argv.index("--allowedTools") + 1].split(",")
        assert {"Edit", "Bash(git *)"} <= set(allowed)
        assert json.loads(spec.files["agents.json"])["worker"]["tools"]

    play(scene)


# --- Edges --------------------------------------------------------------------------------------------------


def test_an_edge_lets_one_agent_start_the_other_as_it_is_and_nobody_else(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        lead_path = define(stage.user, "lead", permissionMode="default")
        worker_path = define(stage.user, "worker", permissionMode=BYPASS)
        define(stage.user, "other", permissionMode="default")
        define(stage.user, "second", permissionMode=BYPASS)
        lead, other = await stage.start("lead"), await stage.start("other")
        stage.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        worker = await stage.start("worker", lead)
        assert stage.mode(worker) == BYPASS
        assert await stage.notices(worker) == []
        assert stage.mode(await stage.start("worker", other)) == "default"
        assert stage.mode(await stage.start("second", lead)) == "default"
        assert stage.mode(await stage.start("lead", worker)) == "default"

    play(scene)


def test_an_edge_means_the_file_that_it_was_allowed_for(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        lead_path = define(stage.user, "lead", permissionMode="default")
        worker_path = define(stage.user, "worker", permissionMode=BYPASS)
        stage.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        lead = await stage.start("lead")
        # The same name, and the same file behind it, but with more than the edge was for.
        stage.configure(
            f'[agents.twin]\npath = "worker"\npermission_mode = "{BYPASS}"\n[trust]\nfolders = ["{stage.project}"]\n'
        )
        assert stage.mode(await stage.start("twin", lead)) == "default"
        define(stage.project, "worker", permissionMode=BYPASS)
        assert stage.mode(await stage.start("worker", lead)) == "default"

    play(scene)


def test_an_edge_is_found_again_however_the_agent_is_asked_for(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        lead_path = define(stage.user, "lead", permissionMode="default")
        worker_path = define(stage.user, "worker", permissionMode=BYPASS)
        stage.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        lead = await stage.start(str(lead_path))
        for word in ("worker", str(worker_path), "~/.claude/agents/worker"):
            assert stage.mode(await stage.start(word, lead)) == BYPASS

    play(scene)


def test_an_edge_that_was_taken_back_counts_no_more(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        ends = [define(stage.user, name, permissionMode=mode) for name, mode in (("lead", "plan"), ("w", "default"))]
        caller, target = AgentIdentity("lead", str(ends[0])), AgentIdentity("w", str(ends[1]))
        lead = await stage.start("lead")
        stage.allow(caller, target)
        assert stage.mode(await stage.start("w", lead)) == "default"
        approvals.forbid(str(stage.engine.home), approvals.read(str(stage.engine.home)).edges)
        assert stage.mode(await stage.start("w", lead)) == "plan"

    play(scene)


def test_what_was_started_by_an_edge_is_not_gone_on_with_once_that_was_taken_back(play: Play, world: Path) -> None:
    async def scene(stage: Stage) -> None:
        ends = [define(stage.user, name, permissionMode=mode) for name, mode in (("lead", "plan"), ("w", "default"))]
        caller, worker = AgentIdentity("lead", str(ends[0])), AgentIdentity("w", str(ends[1]))
        home = str(stage.engine.home)
        lead = await stage.start("lead")
        narrowed = await stage.chain("w", lead)
        stage.allow(caller, worker)
        stage.allow(caller, AgentIdentity("tool", str(world / "bin/tool")))
        program, wide = await stage.chain("tool", lead), await stage.chain("w", lead)
        narrowed, program, wide = [await stage.stopped(run) for run in (narrowed, program, wide)]
        again = await stage.stopped(await stage.engine.tasks.resume(wide, ResumeRequest()))
        approvals.forbid(home, approvals.read(home).edges)
        fresh = await stage.refused("tool", lead)
        for run, words in ((program, fresh.message), (wide, "in default: it works in plan itself"), (again, "default")):
            with pytest.raises(NotAllowed, match=re.escape(words)) as caught:
                await stage.engine.tasks.resume(run, ResumeRequest(start_at=1))
            assert "hocket trust --edge lead" in (caught.value.hint or "")
        # What owes nothing to an edge goes on as it was.
        await stage.engine.tasks.resume(narrowed, ResumeRequest())
        stage.allow(caller, worker)
        await stage.engine.tasks.resume(wide, ResumeRequest(start_at=1))

    play(scene)


def test_a_run_that_is_restored_from_its_files_still_knows_what_it_relies_on(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        ends = [define(stage.user, name, permissionMode=mode) for name, mode in (("lead", "plan"), ("w", "default"))]
        stage.configure(f'[trust]\nfolders = ["{stage.project}"]\n')
        stage.allow(AgentIdentity("lead", str(ends[0])), AgentIdentity("w", str(ends[1])))
        worker = await stage.start("w", await stage.start("lead"))
        await stage.runner.running(worker)
        before, birth = stage.spec(worker), restore._read_run(stage.engine.directory(worker), None)
        assert birth is not None
        after = msgspec.json.decode(birth[1].spec, type=Spec)
        assert before.delegation
        assert before.approvals
        assert (after.delegation, after.approvals) == (before.delegation, before.approvals)

    play(scene)


def test_the_line_that_is_told_names_the_file_where_the_name_means_another(play: Play, world: Path) -> None:
    async def scene(stage: Stage) -> None:
        elsewhere = world / "elsewhere"
        path = define(elsewhere, "lead", permissionMode="plan")
        define(stage.user, "lead")
        define(stage.user, "worker")
        lead = await stage.start(str(path))
        told = await stage.notices(await stage.start("worker", lead))
        assert f"hocket trust --edge {path} worker --cwd {stage.project}" in told[0]

    play(scene)


# --- Projects for which nobody vouches ----------------------------------------------------------------------


@pytest.mark.parametrize("with_edge", [True, False])
def test_bypass_is_never_handed_on_from_a_project_that_nobody_vouches_for(play: Play, with_edge: bool) -> None:
    async def scene(stage: Stage) -> None:
        lead_path = define(stage.project, "lead", permissionMode="default")
        middle_path = define(stage.user, "middle")
        worker_path = define(stage.user, "worker", permissionMode=BYPASS)
        known = {path.stem: AgentIdentity(path.stem, str(path)) for path in (lead_path, middle_path, worker_path)}
        if with_edge:
            stage.allow(known["lead"], known["worker"])
            stage.allow(known["middle"], known["worker"])
        lead = await stage.start("lead")
        worker = await stage.start("worker", lead)
        assert stage.mode(worker) == "default"
        assert "never hands on" in (await stage.notices(worker))[0]
        # Neither by one in between whom the user trusts.
        middle = await stage.start("middle", lead)
        assert stage.spec(middle).untrusted_instructions
        assert stage.mode(await stage.start("worker", middle)) != BYPASS
        # Not even if the user let the first one work like that.
        wild = await stage.start("lead", args=("--dangerously-skip-permissions",))
        assert stage.mode(await stage.start("worker", wild)) == "acceptEdits"

    play(scene)


def test_in_a_folder_that_the_user_vouches_for_an_edge_counts_for_everything(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.configure(f'[trust]\nfolders = ["{stage.project}"]\n')
        lead_path = define(stage.project, "lead", permissionMode="default")
        worker_path = define(stage.user, "worker", permissionMode=BYPASS)
        stage.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("worker", str(worker_path)))
        assert stage.mode(await stage.start("worker", await stage.start("lead"))) == BYPASS

    play(scene)


def test_the_users_own_agent_by_its_path_is_nobodys_project(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        path = define(stage.user, "lead")
        assert not stage.spec(await stage.start(str(path))).untrusted_instructions
        assert not stage.spec(await stage.start("lead")).untrusted_instructions
        assert stage.spec(await stage.start(str(define(stage.project, "lead2")))).untrusted_instructions

    play(scene)


# --- Programs, gates, arguments, environment ----------------------------------------------------------------


def test_an_agent_may_not_start_a_program_that_nobody_named(play: Play, world: Path) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead", permissionMode=BYPASS)
        lead = await stage.start("lead")
        for word in ("sh", "tool", "/bin/sh", str(world / "bin/tool"), "../bin/tool"):
            error = await stage.refused(word, lead, args=("-c", "touch pwned"))
            assert "plain program" in error.message
            assert f"hocket trust --edge lead {word} --cwd {stage.project}" in (error.hint or "")
        with pytest.raises(NotAllowed, match="plain program"):
            await stage.chain("lead -> sh", lead)
        (stage.project / "hocket.toml").write_text('[agents.check]\npath = "sh"\nargs = ["-c"]\n')
        await stage.refused("check", lead, prompt="touch pwned")

    play(scene)


def test_a_program_that_the_user_named_may_be_started(play: Play, world: Path) -> None:
    async def scene(stage: Stage) -> None:
        lead_path = define(stage.user, "lead")
        stage.configure('[agents.check]\npath = "tool"\n')
        lead = await stage.start("lead")
        assert (await stage.start("check", lead)).provider == "executable"
        await stage.refused("tool", lead)
        stage.allow(AgentIdentity("lead", str(lead_path)), AgentIdentity("tool", str(world / "bin/tool")))
        assert (await stage.start("tool", lead)).provider == "executable"

    play(scene)


def test_a_projects_name_for_a_program_counts_where_the_user_vouches_for_the_project(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead")
        (stage.project / "hocket.toml").write_text('[agents.check]\npath = "tool"\n')
        lead = await stage.start("lead")
        await stage.refused("check", lead)
        stage.configure(f'[trust]\nfolders = ["{stage.project}"]\n')
        assert (await stage.start("check", lead)).provider == "executable"

    play(scene)


def test_an_agent_may_not_bring_a_gate(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead")
        stage.configure('[chains.mine]\nsteps = [{agent = "lead", until = "true"}]\n')
        (stage.project / "hocket.toml").write_text('[chains.theirs]\nsteps = [{agent = "lead"}]\nuntil = "true"\n')
        lead = await stage.start("lead")
        plain = StartRequest(cwd=str(stage.project), env=stage.env, prompt="x")
        for request in (
            msgspec.structs.replace(plain, dsl="lead", until="touch pwned"),
            msgspec.structs.replace(plain, chain="theirs"),
        ):
            with pytest.raises(NotAllowed, match="shell command"):
                await stage.begin(request, lead)
        assert (await stage.begin(msgspec.structs.replace(plain, chain="mine"), lead)).kind is Kind.CHAIN

    play(scene)


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
def test_an_agent_may_not_type_what_widens(play: Play, args: tuple[str, ...]) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead")
        lead = await stage.start("lead")
        error = await stage.refused("lead", lead, args=args)
        assert args[0].partition("=")[0] in error.message
        with pytest.raises(NotAllowed):
            await stage.chain("lead", lead, args=args)

    play(scene)


def test_an_agent_may_type_what_only_shapes_or_narrows(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead")
        lead = await stage.start("lead")
        child = await stage.start("lead", lead, args=("--model", "m", "--permission-mode", "plan"))
        assert stage.mode(child) == "plan"
        assert stage.mode(await stage.start("lead", child)) == "plan"

    play(scene)


def test_a_variable_that_an_agent_fills_in_widens_nothing(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "lead")
        stage.configure('[agents.open]\npath = "lead"\nargs = ["--permission-mode", "${MODE}", "${MORE}"]\n')
        lead = await stage.start("lead")
        wide = await stage.start("open", lead, variables={"MODE": BYPASS, "MORE": "--verbose"})
        assert stage.mode(wide) == "acceptEdits"
        error = await stage.refused("open", lead, variables={"MODE": "plan", "MORE": "--settings={}"})
        assert "--settings" in error.message

    play(scene)


def test_which_program_a_name_means_is_not_for_an_agent_to_say(play: Play, world: Path) -> None:
    """Neither by another PATH or HOME, nor by naming the CLI's program."""

    async def scene(stage: Stage) -> None:
        define(stage.user, "lead")
        evil = Bin(world / "evil")
        evil.folder.mkdir()
        evil("claude", PAUSING)
        (world / "evil/config").mkdir()
        (world / "evil/config/hocket").mkdir()
        (world / "evil/config/hocket/config.toml").write_text('[agents.mine]\npath = "sh"\n')
        lead = await stage.start("lead")
        env = {"PATH": str(world / "evil"), "HOME": str(world / "evil"), "HOCKET_CLAUDE": str(world / "evil/claude")}
        env["XDG_CONFIG_HOME"] = str(world / "evil/config")
        child = await stage.begin(StartRequest(cwd=str(stage.project), env=env, agent="lead"), lead)
        assert stage.spec(child).argv[0] == str(world / "bin/claude")
        assert stage.spec(child).env["PATH"] == stage.env["PATH"]
        with pytest.raises(Exception, match="mine"):
            await stage.begin(StartRequest(cwd=str(stage.project), env=env, agent="mine"), lead)

    play(scene)


# --- Allowed agents -----------------------------------------------------------------------------------------


@pytest.mark.req("S3-05", "S3-08", "S3-56")
def test_an_agent_starts_those_that_its_definition_allows_and_no_others(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "any")
        define(stage.user, "some", allowedAgents="[worker, helper]")
        define(stage.user, "none", allowedAgents="[]")
        worker_path = define(stage.user, "worker")
        define(stage.user, "stranger")
        anybody, some, none = [await stage.start(name) for name in ("any", "some", "none")]
        for word in ("worker", str(worker_path), "~/.claude/agents/worker.md"):
            assert (await stage.start(word, some)).parent == some.id
        for word in ("stranger", "some", "claude"):
            error = await stage.refused(word, some)
            assert error.message == f"run 2 (some) may not start {word!r}. Allowed agents: worker, helper"
            assert (await stage.start(word, anybody)).parent == anybody.id
        assert (await stage.refused("worker", none)).message.endswith("Allowed agents: none")
        with pytest.raises(NotAllowed, match="'stranger'"):
            await stage.chain("worker -> stranger", some)

    play(scene)


@pytest.mark.req("S3-56")
def test_a_list_means_an_agent_by_its_address_and_an_alias_by_its_name(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "some", allowedAgents='["Code Reviewer", helper, twin-of]')
        path = define(stage.user, "reviewer")
        path.write_text(path.read_text().replace("name: reviewer", "name: Code Reviewer"))
        define(stage.user, "other")
        stage.configure('[agents.helper]\npath = "other"\n')
        some = await stage.start("some")
        for word in ("Code-Reviewer", "helper"):
            assert (await stage.start(word, some)).parent == some.id
        await stage.refused("other", some)

    play(scene)


def test_another_projects_agent_of_an_allowed_name_is_not_meant(play: Play, world: Path) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "some", allowedAgents="[worker]")
        define(stage.user, "worker")
        foreign = define(world / "elsewhere", "worker")
        await stage.refused(str(foreign), await stage.start("some"))

    play(scene)


def test_an_edge_does_not_lift_the_list_of_allowed_agents(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        some, other = define(stage.user, "some", allowedAgents="[]"), define(stage.user, "other")
        stage.allow(AgentIdentity("some", str(some)), AgentIdentity("other", str(other)))
        await stage.refused("other", await stage.start("some"))

    play(scene)


@pytest.mark.req("S3-46")
def test_an_agent_is_told_whom_it_may_start_and_which_servers_it_may_have(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        define(stage.user, "some", allowedAgents="[worker]", allowedMcpServers="[]")
        define(stage.user, "any")
        some, anybody = [stage.spec(await stage.start(name)).env for name in ("some", "any")]
        assert (some["AGENT_ALLOWED_AGENTS"], some["AGENT_MCP_SERVERS"]) == ('["worker"]', "[]")
        assert (anybody["AGENT_ALLOWED_AGENTS"], anybody["AGENT_MCP_SERVERS"]) == ("null", "null")
        assert not any(name.startswith("AGENT_") for name in stage.spec(await stage.start("tool")).env)

    play(scene)


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
def test_time_is_over_when_the_first_above_has_none_left(
    line: list[tuple[Run, float | None]], deadline: float | None
) -> None:
    runs = [msgspec.structs.replace(run, id=f"r{number}") for number, (run, _) in enumerate(line)]
    specs = {run.id: json.dumps({"timeout": timeout}).encode() for run, (_, timeout) in zip(runs, line, strict=True)}
    assert delegation.above(runs, lambda run: specs[run.id], 100.0).deadline == deadline


def test_nothing_starts_where_no_time_is_left() -> None:
    spec = Spec("a", "executable", ("a",), "/", {})
    with pytest.raises(LimitReached, match="time"):
        delegation.in_time(spec, DelegationLimits(deadline=10.0), 10.0)
    assert delegation.in_time(spec, DelegationLimits(), 10.0) is spec


def test_no_time_limit_below_a_run_is_longer_than_what_that_run_has_left(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        began = time.monotonic()
        top = await stage.runner.running(await stage.start("tool", timeout=LONG))
        same, shorter = await stage.start("tool", top), await stage.start("tool", top, timeout=5.0)
        longer, chain = await stage.start("tool", top, timeout=LONG * 9), await stage.chain("tool:2", top)
        left = LONG - (time.monotonic() - began)
        for run in (same, longer, chain):
            limit = json.loads(stage.engine.read.spec(run.id))["timeout"]
            assert left <= limit < LONG
        assert stage.spec(shorter).timeout == 5.0
        await until(lambda: len(stage.engine.read.below(chain.id)) >= 3, "the first iteration")
        inner = next(run for run in stage.engine.read.below(chain.id) if run.kind is Kind.LEAF)
        below = await stage.start("tool", inner)
        assert 0 < (stage.spec(below).timeout or 0) <= json.loads(stage.engine.read.spec(chain.id))["timeout"]

    play(scene)


def test_a_child_ends_when_the_time_of_its_caller_is_over(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        top = await stage.runner.running(await stage.start("tool", timeout=1.5))
        child = await stage.start("tool", top, timeout=LONG)
        ended = await stage.runner.wait(child)
        assert (ended.status, ended.reason) == ("failed", "timeout")
        assert (await stage.runner.wait(top)).reason == "timeout"

    play(scene)


# --- Money --------------------------------------------------------------------------------------------------


def test_a_run_that_an_agent_starts_spends_from_the_agents_budget(play: Play, agent: Bin) -> None:
    """Also where it brings a larger one of its own."""
    agent(
        "claude",
        "import json, signal, sys\nsys.stdin.readline()\n"
        'print(json.dumps({"type": "system", "subtype": "init", "session_id": "s", "tools": []}))\n'
        'print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "x",'
        ' "session_id": "s", "total_cost_usd": 3}), flush=True)\nsignal.pause()\n',
    )

    async def scene(stage: Stage) -> None:
        define(stage.user, "worker")
        top = await stage.start("tool", budget_usd=2.0)
        child = await stage.start("worker", top, prompt="go", budget_usd=100.0)
        ended = [await stage.runner.wait(run) for run in (child, top)]
        assert [run.reason for run in ended] == ["budget", "budget"]

    play(scene)


# --- What is written down -----------------------------------------------------------------------------------


def test_an_agent_of_which_nothing_was_written_down_hands_on_what_asks_about_everything() -> None:
    """Its server was an older one."""
    runs, spec = [run_of()], {"agent": "a", "provider": "claude", "env": {}, "argv": ["x"]}
    caller = delegation.above(runs, lambda _: json.dumps(spec).encode(), 0.0).caller
    assert caller is not None
    assert (caller.mode, caller.known, caller.allowed) == ("default", AgentIdentity("a"), None)


def test_an_agent_is_known_by_its_alias_its_own_name_or_its_program(
    home: Path, project: Path, world: Path, agent: Bin
) -> None:
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
