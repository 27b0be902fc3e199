"""Claude in worktrees: commits reach later steps, and a worktree gives no permission that the project lacks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, bash, define, says
from e2e.commands import RunOutput, run, shown
from workflows.repositories import branches, commit_all, git, make_repository, picture, worktrees
from world import Hocket

pytestmark = [pytest.mark.shared_server, pytest.mark.in_process]

IDENTITY = "-c user.name=Ada -c user.email=ada@example.org"
BYPASS = '[claude]\npermission_mode = "bypassPermissions"\n'


@pytest.fixture
def project(world: Path) -> Path:
    make_repository(world / "p", readme="hello\n")
    return world / "p"


def isolated(hocket: Hocket, *words: str | Path) -> RunOutput:
    return run(hocket, *words, "-p", "go", "--isolation", "worktree", timeout=60)


def test_commits_reach_next_step_without_changing_project(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    define(hocket.cwd, "planner")
    define(hocket.cwd, "builder")
    commit_all(hocket.cwd)
    before = picture(hocket.cwd)
    (home / "config.toml").write_text(BYPASS)
    commit = bash(f"echo sixty > plan && git add --all && git {IDENTITY} commit --quiet -m plan")
    claude.use_script(
        {"when": {"agent": "planner"}, "do": [commit, {"say": "planned"}]},
        {"when": {"agent": "builder"}, "do": [bash("cp plan built"), {"say": "built"}]},
    )
    output = isolated(hocket, "planner -> builder")
    assert output.outcome == (0, "done", "single_run")
    planner, builder = output.ended["steps"]
    assert [(step["commits"], step["uncommitted"]) for step in (planner, builder)] == [(1, 0), (0, 1)]
    assert (Path(builder["worktree"]) / "built").read_text() == "sixty\n"
    assert git(hocket.cwd, "show", f"{planner['branch']}:plan") == "sixty"
    assert {shown(hocket, leaf)["cwd"] for leaf in builder["runs"]} == {builder["worktree"]}
    assert picture(hocket.cwd) == before


def test_session_runs_in_worktree_with_commit_instruction(cli: ClaudeSetup, hocket: Hocket) -> None:
    before = picture(hocket.cwd)
    cli.use_script({"when": {"pass": 2}, "do": [{"say": "now"}, "marker"]}, says("not yet"))
    output = isolated(hocket, "claude:3")
    assert output.outcome == (0, "done", "marker")
    (worktree,) = output.of("worktree")
    leaves = [shown(hocket, leaf) for leaf in output.step["runs"]]
    assert {leaf["cwd"] for leaf in leaves} == {worktree["path"]}
    assert {data["cwd"] for data in output.of("session") if "cwd" in data} == {worktree["path"]}
    assert (output.step["worktree"], branches(hocket.cwd), worktrees(hocket.cwd)) == (None, [], [])
    assert picture(hocket.cwd) == before
    if cli.is_real:
        assert all(Path(leaf["transcript"]).exists() for leaf in leaves)
        assert "commit your changes" in json.dumps(cli.model.last["system"])


# --- Permissions --------------------------------------------------------------------------------------------


class Traps:
    """A hook and an MCP server of the project, each of which leaves a file outside of it when it is started."""

    def __init__(self, project: Path, world: Path) -> None:
        self._project = project
        self.hook, self.server = world / "hook_ran", world / "server_ran"

    def set(self, folder: Path | None = None, settings: str = ".claude/settings.json", name: str = "trap") -> None:
        folder = folder or self._project
        (folder / ".claude").mkdir(exist_ok=True)
        hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": f"touch {self.hook}"}]}]}
        (folder / settings).write_text(json.dumps({"hooks": hooks}))
        servers = {name: {"command": "/bin/sh", "args": ["-c", f"touch {self.server}"]}}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def fired(self) -> tuple[bool, bool]:
        found = self.hook.exists(), self.server.exists()
        for file in (self.hook, self.server):
            file.unlink(missing_ok=True)
        return found


@pytest.fixture
def traps(hocket: Hocket, world: Path, claude: ClaudeSetup) -> Traps:
    claude.use_script(says("fine"))
    return Traps(hocket.cwd, world)


def notices(output: RunOutput) -> list[Any]:
    return [data["text"] for data in output.of("notice")]


def test_untrusted_project_stays_untrusted_in_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert isolated(hocket, "claude").code == 0
    assert traps.fired() == (False, False)


def test_approved_project_is_trusted_in_identical_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    output = isolated(hocket, "claude")
    assert (output.code, traps.fired(), notices(output)) == (0, (True, True), [])


def test_approval_of_uncommitted_files_excludes_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set()
    commit_all(hocket.cwd)
    settings = hocket.cwd / ".claude/settings.json"
    settings.write_text(settings.read_text() + " ")
    assert hocket("trust", "--yes").returncode == 0
    output = isolated(hocket, "claude")
    assert (output.code, traps.fired()) == (0, (False, False))
    assert "not those that you approved" in notices(output)[0]


def test_approved_working_copy_does_not_cover_committed_settings(traps: Traps, hocket: Hocket) -> None:
    """The working copy has harmless settings, which are approved; the commit has others."""
    traps.set()
    commit_all(hocket.cwd)
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    (hocket.cwd / ".mcp.json").unlink()
    assert hocket("trust", "--yes").returncode == 0
    assert isolated(hocket, "claude").code == 0
    assert traps.fired() == (False, False)


def test_approved_local_settings_apply_in_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set(settings=".claude/settings.local.json")
    (hocket.cwd / ".gitignore").write_text(".claude/settings.local.json\n")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    output = isolated(hocket, "claude")
    assert (output.code, traps.fired(), notices(output)) == (0, (True, True), [])


def test_committed_settings_of_step_are_disabled_for_next(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup
) -> None:
    (hocket.cwd / ".claude").mkdir()
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    hook = json.dumps({"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": f"touch {traps.hook}"}]}]}})
    write = bash(f"echo '{hook}' > .claude/settings.json && git add --all && git {IDENTITY} commit --quiet -m x")
    define(Path.home(), "writer")
    (home / "config.toml").write_text(BYPASS)
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "done"}]}, says("fine"))
    output = isolated(hocket, "writer -> claude")
    assert output.code == 0
    assert output.ended["steps"][0]["commits"] == 1
    assert traps.fired() == (False, False)
    assert any("not those that you approved" in text for text in notices(output))


@pytest.mark.req("S1-45")
def test_worktree_session_resumes_only_with_approved_settings(
    traps: Traps, hocket: Hocket, claude: ClaudeSetup, home: Path
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    (home / "config.toml").write_text(BYPASS)
    claude.use_script({"do": [bash("echo x > left-over"), {"say": "fine"}]})
    output = isolated(hocket, "claude")
    assert (output.code, traps.fired()) == (0, (True, True))
    assert hocket("resume", output.leaf, "--json").returncode == 0
    assert traps.fired() == (True, True)
    for folder in (output.step["worktree"], hocket.cwd):
        settings = Path(folder) / ".claude/settings.json"
        approved = settings.read_text()
        settings.write_text(approved + " ")
        refused = hocket("resume", output.leaf)
        assert (refused.returncode, traps.fired()) == (4, (False, False))
        settings.write_text(approved)


def test_listed_project_is_trusted_in_worktree(traps: Traps, hocket: Hocket, home: Path) -> None:
    traps.set()
    commit_all(hocket.cwd)
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    assert (isolated(hocket, "claude").code, traps.fired()) == (0, (True, True))


def test_server_disabled_by_user_stays_disabled_in_worktree(
    traps: Traps, hocket: Hocket, home: Path, world: Path
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    known = {"projects": {str(hocket.cwd): {"disabledMcpjsonServers": ["trap"]}}}
    (world / "user/.claude.json").write_text(json.dumps(known))
    assert (isolated(hocket, "claude").code, traps.fired()) == (0, (True, False))


@pytest.mark.own_server
def test_servers_above_worktrees_are_disabled(traps: Traps, hocket: Hocket, home: Path, world: Path) -> None:
    (hocket.cwd / ".claude").mkdir()
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    traps.set(home, name="stranger")
    assert (isolated(hocket, "claude").code, traps.fired()) == (0, (False, False))


def servers(folder: Path, **commands: str) -> str:
    """A shell command that writes a server file, which the CLI applies in all folders below it."""
    wanted = {name: {"command": "/bin/sh", "args": ["-c", command]} for name, command in commands.items()}
    return f"echo '{json.dumps({'mcpServers': wanted})}' > {folder}/.mcp.json"


@pytest.mark.own_server
@pytest.mark.req("S1-45")
@pytest.mark.parametrize("place", [pytest.param(".", marks=pytest.mark.slow), "worktrees"])
def test_servers_written_above_worktree_by_step_are_disabled(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup, place: str
) -> None:
    (hocket.cwd / ".claude").mkdir()
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    (home / "config.toml").write_text(BYPASS)
    define(Path.home(), "writer")
    write = bash(servers(home / place, planted=f"touch {traps.server}"))
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "done"}]}, says("fine"))
    output = isolated(hocket, "writer -> claude")
    assert (output.code, (home / place / ".mcp.json").exists(), traps.fired()) == (0, True, (False, False))
    assert any("or servers above it are not those of when this began" in text for text in notices(output))
    for ref, *more in ((output.root, "--from", "2"), (output.ended["steps"][1]["runs"][-1], "-p", "go on")):
        again = hocket("resume", ref, *more)
        assert traps.fired() == (False, False)
        is_refused = more[0] == "--from"
        assert again.returncode == (4 if is_refused else 0), (
            "a session that was started without servers resumes without them"
        )
        assert ("would get new MCP servers from above" in again.stderr and "planted" in again.stderr) is is_refused


@pytest.mark.own_server
@pytest.mark.req("S1-45")
def test_approved_server_above_worktrees_keeps_project_trust(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    (home / "config.toml").write_text(BYPASS)
    claude.use_script({"do": [bash("echo x > left-over"), {"say": "fine"}]})
    output = isolated(hocket, "claude")
    assert (output.code, traps.fired()) == (0, (True, True))
    subprocess.run(servers(home, later="true"), shell=True, check=True)  # noqa: S602 - our own words
    for words in ((output.root, "--from", "1"), (output.leaf, "-p", "go on")):
        refused = hocket("resume", *words)
        assert (refused.returncode, traps.fired()) == (4, (False, False))
        assert f"would get new MCP servers from above {home}/worktrees: later" in refused.stderr
    assert hocket("trust", "--yes", home).returncode == 0
    for words in ((output.leaf, "-p", "go on"), (output.root, "--from", "1")):
        again = hocket("resume", *words)
        assert (again.returncode, traps.fired()) == (0, (True, True)), again.stderr
        assert "so they are off" not in again.stderr


@pytest.mark.own_server
@pytest.mark.req("S1-45")
def test_server_above_worktrees_loses_approval_when_changed(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    subprocess.run(servers(home, mine="true"), shell=True, check=True)  # noqa: S602 - our own words
    assert hocket("trust", "--yes", hocket.cwd, home).returncode == 0
    (home / "config.toml").write_text(BYPASS)
    define(Path.home(), "writer")
    write = bash(servers(home, mine=f"touch {traps.server}"))
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "done"}]}, says("fine"))
    output = isolated(hocket, "writer -> claude")
    traps.fired()
    assert any("so they are off" in text for text in notices(output))
    refused = hocket("resume", output.root, "--from", "2")
    assert (refused.returncode, traps.fired()) == (4, (False, False))
    assert "worktrees: mine" in refused.stderr


@pytest.mark.own_server
@pytest.mark.req("S1-45")
def test_resume_is_refused_after_new_server_above_worktree(traps: Traps, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    output = isolated(hocket, "claude")
    traps.set(home, name="stranger")
    refused = hocket("resume", output.root, "--from", "1")
    assert (refused.returncode, "worktrees: stranger" in refused.stderr, traps.fired()) == (4, True, (False, False))
