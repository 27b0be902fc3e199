"""Claude in worktrees: commits reach later steps, and a worktree gives no right that the project lacks."""

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
UNASKED = '[claude]\npermission_mode = "bypassPermissions"\n'


@pytest.fixture
def project(world: Path) -> Path:
    make_repository(world / "p", readme="hello\n")
    return world / "p"


def isolated(hocket: Hocket, *words: str | Path) -> RunOutput:
    return run(hocket, *words, "-p", "go", "--isolation", "worktree", timeout=60)


def test_what_one_agent_commits_the_next_one_has_and_the_project_is_as_it_was(
    claude: ClaudeSetup, hocket: Hocket, home: Path
) -> None:
    define(hocket.cwd, "planner")
    define(hocket.cwd, "builder")
    commit_all(hocket.cwd)
    before = picture(hocket.cwd)
    (home / "config.toml").write_text(UNASKED)
    commit = bash(f"echo sixty > plan && git add --all && git {IDENTITY} commit --quiet -m plan")
    claude.use_script(
        {"when": {"agent": "planner"}, "do": [commit, {"say": "planned"}]},
        {"when": {"agent": "builder"}, "do": [bash("cp plan built"), {"say": "built"}]},
    )
    told = isolated(hocket, "planner -> builder")
    assert told.outcome == (0, "done", "single_run")
    planner, builder = told.ended["steps"]
    assert [(step["commits"], step["uncommitted"]) for step in (planner, builder)] == [(1, 0), (0, 1)]
    assert (Path(builder["worktree"]) / "built").read_text() == "sixty\n"
    assert git(hocket.cwd, "show", f"{planner['branch']}:plan") == "sixty"
    assert {shown(hocket, leaf)["cwd"] for leaf in builder["runs"]} == {builder["worktree"]}
    assert picture(hocket.cwd) == before


def test_a_session_lives_in_its_worktree_and_is_told_to_commit(cli: ClaudeSetup, hocket: Hocket) -> None:
    before = picture(hocket.cwd)
    cli.use_script({"when": {"pass": 2}, "do": [{"say": "now"}, "marker"]}, says("not yet"))
    told = isolated(hocket, "claude:3")
    assert told.outcome == (0, "done", "marker")
    (worktree,) = told.of("worktree")
    leaves = [shown(hocket, leaf) for leaf in told.step["runs"]]
    assert {leaf["cwd"] for leaf in leaves} == {worktree["path"]}
    assert {data["cwd"] for data in told.of("session") if "cwd" in data} == {worktree["path"]}
    assert (told.step["worktree"], branches(hocket.cwd), worktrees(hocket.cwd)) == (None, [], [])
    assert picture(hocket.cwd) == before
    if cli.is_real:
        assert all(Path(leaf["transcript"]).exists() for leaf in leaves)
        assert "commit your changes" in json.dumps(cli.model.last["system"])


# --- Rights -------------------------------------------------------------------------------------------------


class Traps:
    """A hook and a server of the repository's, each of which leaves a file outside of it when it is started."""

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

    def sprung(self) -> tuple[bool, bool]:
        found = self.hook.exists(), self.server.exists()
        for file in (self.hook, self.server):
            file.unlink(missing_ok=True)
        return found


@pytest.fixture
def traps(hocket: Hocket, world: Path, claude: ClaudeSetup) -> Traps:
    claude.use_script(says("fine"))
    return Traps(hocket.cwd, world)


def notices(told: RunOutput) -> list[Any]:
    return [data["text"] for data in told.of("notice")]


def test_a_project_that_nobody_trusts_has_no_more_rights_in_a_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert isolated(hocket, "claude").code == 0
    assert traps.sprung() == (False, False)


def test_an_approved_project_stays_so_in_a_worktree_that_has_what_was_approved(traps: Traps, hocket: Hocket) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    told = isolated(hocket, "claude")
    assert (told.code, traps.sprung(), notices(told)) == (0, (True, True), [])


def test_an_approval_of_what_is_not_committed_counts_for_no_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set()
    commit_all(hocket.cwd)
    settings = hocket.cwd / ".claude/settings.json"
    settings.write_text(settings.read_text() + " ")
    assert hocket("trust", "--yes").returncode == 0
    told = isolated(hocket, "claude")
    assert (told.code, traps.sprung()) == (0, (False, False))
    assert "not those that you approved" in notices(told)[0]


def test_settings_that_only_the_project_itself_has_do_not_make_what_is_committed_count(
    traps: Traps, hocket: Hocket
) -> None:
    """The harmless ones were approved; the commit has others."""
    traps.set()
    commit_all(hocket.cwd)
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    (hocket.cwd / ".mcp.json").unlink()
    assert hocket("trust", "--yes").returncode == 0
    assert isolated(hocket, "claude").code == 0
    assert traps.sprung() == (False, False)


def test_local_settings_of_an_approved_project_count_as_they_do_in_any_worktree(traps: Traps, hocket: Hocket) -> None:
    traps.set(settings=".claude/settings.local.json")
    (hocket.cwd / ".gitignore").write_text(".claude/settings.local.json\n")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    told = isolated(hocket, "claude")
    assert (told.code, traps.sprung(), notices(told)) == (0, (True, True), [])


def test_what_an_earlier_step_commits_gives_a_later_one_no_more_rights(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup
) -> None:
    (hocket.cwd / ".claude").mkdir()
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    hook = json.dumps({"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": f"touch {traps.hook}"}]}]}})
    write = bash(f"echo '{hook}' > .claude/settings.json && git add --all && git {IDENTITY} commit --quiet -m x")
    define(Path.home(), "writer")
    (home / "config.toml").write_text(UNASKED)
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "done"}]}, says("fine"))
    told = isolated(hocket, "writer -> claude")
    assert told.code == 0
    assert told.ended["steps"][0]["commits"] == 1
    assert traps.sprung() == (False, False)
    assert any("not those that you approved" in text for text in notices(told))


@pytest.mark.req("S1-45")
def test_a_session_in_a_worktree_goes_on_only_with_what_is_approved(
    traps: Traps, hocket: Hocket, claude: ClaudeSetup, home: Path
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    (home / "config.toml").write_text(UNASKED)
    claude.use_script({"do": [bash("echo x > left-over"), {"say": "fine"}]})
    told = isolated(hocket, "claude")
    assert (told.code, traps.sprung()) == (0, (True, True))
    assert hocket("resume", told.leaf, "--json").returncode == 0
    assert traps.sprung() == (True, True)
    for folder in (told.step["worktree"], hocket.cwd):
        settings = Path(folder) / ".claude/settings.json"
        approved = settings.read_text()
        settings.write_text(approved + " ")
        refused = hocket("resume", told.leaf)
        assert (refused.returncode, traps.sprung()) == (4, (False, False))
        settings.write_text(approved)


def test_a_project_that_the_user_vouches_for_stays_so_in_a_worktree(traps: Traps, hocket: Hocket, home: Path) -> None:
    traps.set()
    commit_all(hocket.cwd)
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    assert (isolated(hocket, "claude").code, traps.sprung()) == (0, (True, True))


def test_a_server_that_the_user_has_switched_off_for_the_project_stays_off(
    traps: Traps, hocket: Hocket, home: Path, world: Path
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    known = {"projects": {str(hocket.cwd): {"disabledMcpjsonServers": ["trap"]}}}
    (world / "user/.claude.json").write_text(json.dumps(known))
    assert (isolated(hocket, "claude").code, traps.sprung()) == (0, (True, False))


@pytest.mark.own_server
def test_servers_that_are_written_above_the_worktrees_stay_off(
    traps: Traps, hocket: Hocket, home: Path, world: Path
) -> None:
    (hocket.cwd / ".claude").mkdir()
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    traps.set(home, name="stranger")
    assert (isolated(hocket, "claude").code, traps.sprung()) == (0, (False, False))


def servers(folder: Path, **commands: str) -> str:
    """What makes the CLI start servers in all folders below, in the words of a shell."""
    wanted = {name: {"command": "/bin/sh", "args": ["-c", command]} for name, command in commands.items()}
    return f"echo '{json.dumps({'mcpServers': wanted})}' > {folder}/.mcp.json"


@pytest.mark.own_server
@pytest.mark.req("S1-45")
@pytest.mark.parametrize("place", [pytest.param(".", marks=pytest.mark.slow), "worktrees"])
def test_servers_that_a_step_writes_above_its_worktree_stay_off(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup, place: str
) -> None:
    (hocket.cwd / ".claude").mkdir()
    (hocket.cwd / ".claude/settings.json").write_text("{}")
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    (home / "config.toml").write_text(UNASKED)
    define(Path.home(), "writer")
    write = bash(servers(home / place, planted=f"touch {traps.server}"))
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "done"}]}, says("fine"))
    told = isolated(hocket, "writer -> claude")
    assert (told.code, (home / place / ".mcp.json").exists(), traps.sprung()) == (0, True, (False, False))
    assert any("or servers above it are not those of when this began" in text for text in notices(told))
    for ref, *more in ((told.root, "--from", "2"), (told.ended["steps"][1]["runs"][-1], "-p", "go on")):
        again = hocket("resume", ref, *more)
        assert traps.sprung() == (False, False)
        is_refused = more[0] == "--from"
        assert again.returncode == (4 if is_refused else 0), "a session that was started without any has none"
        assert ("would get new MCP servers from above" in again.stderr and "planted" in again.stderr) is is_refused


@pytest.mark.own_server
@pytest.mark.req("S1-45")
def test_servers_above_the_worktrees_that_the_user_vouches_for_end_no_trust(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    (home / "config.toml").write_text(UNASKED)
    claude.use_script({"do": [bash("echo x > left-over"), {"say": "fine"}]})
    told = isolated(hocket, "claude")
    assert (told.code, traps.sprung()) == (0, (True, True))
    subprocess.run(servers(home, later="true"), shell=True, check=True)  # noqa: S602 - our own words
    for words in ((told.root, "--from", "1"), (told.leaf, "-p", "go on")):
        refused = hocket("resume", *words)
        assert (refused.returncode, traps.sprung()) == (4, (False, False))
        assert f"would get new MCP servers from above {home}/worktrees: later" in refused.stderr
    assert hocket("trust", "--yes", home).returncode == 0
    for words in ((told.leaf, "-p", "go on"), (told.root, "--from", "1")):
        again = hocket("resume", *words)
        assert (again.returncode, traps.sprung()) == (0, (True, True)), again.stderr
        assert "so they are off" not in again.stderr


@pytest.mark.own_server
@pytest.mark.req("S1-45")
def test_a_server_above_the_worktrees_that_a_step_changes_is_vouched_for_no_more(
    traps: Traps, hocket: Hocket, home: Path, claude: ClaudeSetup
) -> None:
    traps.set()
    commit_all(hocket.cwd)
    subprocess.run(servers(home, mine="true"), shell=True, check=True)  # noqa: S602 - our own words
    assert hocket("trust", "--yes", hocket.cwd, home).returncode == 0
    (home / "config.toml").write_text(UNASKED)
    define(Path.home(), "writer")
    write = bash(servers(home, mine=f"touch {traps.server}"))
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "done"}]}, says("fine"))
    told = isolated(hocket, "writer -> claude")
    traps.sprung()
    assert any("so they are off" in text for text in notices(told))
    refused = hocket("resume", told.root, "--from", "2")
    assert (refused.returncode, traps.sprung()) == (4, (False, False))
    assert "worktrees: mine" in refused.stderr


@pytest.mark.own_server
@pytest.mark.req("S1-45")
def test_a_project_of_the_users_list_gets_no_server_that_came_to_be_above_its_worktree(
    traps: Traps, hocket: Hocket, home: Path
) -> None:
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    told = isolated(hocket, "claude")
    traps.set(home, name="stranger")
    refused = hocket("resume", told.root, "--from", "1")
    assert (refused.returncode, "worktrees: stranger" in refused.stderr, traps.sprung()) == (4, True, (False, False))
