"""``hocket agents``: what can run here, as the command tells it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from world import Hocket

from hocket.cli import main
from hocket.cli.agents import shortened
from hocket.cli.format import display_width

pytestmark = pytest.mark.in_process


@pytest.fixture(autouse=True)
def repository(world: Path) -> None:
    """All of this world is one repository, so that nothing above it on this machine counts."""
    (world / ".git").mkdir()


@pytest.fixture
def mine(project: Path) -> Path:
    """The project's own agents; the folder is not there yet."""
    return project / ".claude/agents"


@pytest.fixture
def theirs(world: Path) -> Path:
    """The user's agents; the folder is not there yet."""
    return world / "user/.claude/agents"


def define(folder: Path, *names: str, head: str = "", file: str | None = None) -> Path:
    """Definitions, each in a file of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder
    for name in names:
        path = folder / (file or f"{name}.md")
        path.write_text(f"---\nname: {name}\ndescription: What {name} does.\n{head}---\nDo it.\n", encoding="utf-8")
    return path


def table(hocket: Hocket, *words: str) -> dict[str, Any]:
    done = hocket("agents", "--json", *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counts(found: dict[str, Any]) -> tuple[int, int, int]:
    return found["total_count"], found["global_count"], found["project_local_count"]


def headline(hocket: Hocket, *words: str) -> str:
    done = hocket("agents", *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.partition("\n")[0]


ARCHITECTS = ("software-architect", "data-pipeline-architect", "security-auditor")

# --- The documented cases -----------------------------------------------------------------------------------


@pytest.mark.req("S4-21", "S4-27")
def test_global_agents_without_a_project_folder(hocket: Hocket, theirs: Path) -> None:
    define(theirs, *ARCHITECTS)
    assert headline(hocket) == "3 agents: 3 global"
    found = table(hocket)
    assert counts(found) == (3, 3, 0)
    assert found["overrides"] == []
    assert found["by_location"].keys() >= {"global-only", "project-local-only", "project-local-override"}


@pytest.mark.req("S4-22", "S4-30")
@pytest.mark.parametrize("folder", [".claude", ".claude/agents"])
def test_project_folder_without_agents_changes_nothing(
    hocket: Hocket, theirs: Path, project: Path, folder: str
) -> None:
    define(theirs, "software-architect", "data-pipeline-architect")
    (project / folder).mkdir(parents=True)
    assert headline(hocket) == "2 agents: 2 global"
    assert counts(table(hocket)) == (2, 2, 0)


@pytest.mark.req("S4-23", "S4-28")
def test_project_and_global_agents_are_merged(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, *ARCHITECTS)
    define(mine, "project-engineer", "custom-tool")
    assert headline(hocket) == "5 agents: 3 global, 2 project-local, no conflicts"
    found = table(hocket)
    assert counts(found) == (5, 3, 2)
    assert found["overrides"] == []


@pytest.mark.req("S4-29", "S4-19")
def test_project_agent_overrides_a_global_one(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, *ARCHITECTS)
    define(mine, "software-architect", "project-engineer")
    assert headline(hocket) == "4 agents: 2 global, 2 project-local, 1 override"
    found = table(hocket)
    assert counts(found) == (4, 2, 2)
    (override,) = found["overrides"]
    assert override["project_path"] == str(mine / "software-architect.md")
    assert override["global_path"] == str(theirs / "software-architect.md")
    agent = found["by_name"]["software-architect"]
    assert (agent["location"], agent["source"], agent["overridden"]) == (
        "project-local",
        "project-local-override",
        True,
    )
    assert "project ▲ global" in hocket("agents").stdout


@pytest.mark.req("S4-31")
def test_deprecated_files_are_hidden_and_reported(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, "software-architect", "data-pipeline-architect")
    define(theirs, "old-tool", file="old-tool.md.deprecated")
    define(mine, "project-engineer")
    define(mine, "legacy-agent", file="legacy-agent.deprecated.md")
    found = table(hocket)
    assert counts(found) == (3, 2, 1)
    assert not {"old-tool", "legacy-agent"} & found["by_name"].keys()
    hidden = {Path(one["path"]).name: one["claude_loads"] for one in found["problems"]}
    assert hidden == {"old-tool.md.deprecated": False, "legacy-agent.deprecated.md": True}
    listed = [line for line in hocket("agents").stdout.splitlines() if "deprecated" in line]
    assert [line.startswith("! ") for line in listed] == [True, True]
    assert [line for line in listed if "the CLI loads it" in line] == [line for line in listed if "legacy" in line]


@pytest.mark.req("S4-25")
@pytest.mark.parametrize("broken", [False, True])
def test_no_agents_at_all_is_an_error(hocket: Hocket, mine: Path, broken: bool) -> None:
    if broken:
        mine.mkdir(parents=True)
        (mine / "broken.md").write_text("no head at all\n")
    done = hocket("agents")
    assert done.returncode == 2
    assert done.stdout.startswith("no agents")
    assert ("broken.md" in done.stdout) == broken
    assert "hocket: no agents found" in done.stderr
    for reported in (str(mine), ".claude/agents", "1.", "2.", "3.", "help"):
        assert reported in done.stderr
    as_json = hocket("agents", "--json")
    assert as_json.returncode == 2
    assert counts(json.loads(as_json.stdout)) == (0, 0, 0)


@pytest.mark.req("S4-26")
def test_missing_global_folder_is_a_warning(hocket: Hocket, mine: Path, theirs: Path) -> None:
    define(mine, "engineer")
    done = hocket("agents")
    assert done.returncode == 0
    assert done.stdout.startswith("1 agent: 1 project-local\n")
    assert str(theirs) in done.stderr
    assert [f"  {number}. " in done.stderr for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert counts(table(hocket)) == (1, 0, 1)


def test_missing_global_folder_is_reported_once_per_home(hocket: Hocket, mine: Path, home: Path) -> None:
    define(mine, "engineer")
    assert hocket("agents", "--json").stderr == ""
    assert "To create it" in hocket("agents").stderr
    again = hocket("agents")
    assert (again.returncode, again.stderr) == (0, "")
    other = hocket("agents", env={"HOCKET_HOME": f"{home}-other"})
    assert "To create it" in other.stderr
    unwritable = {"HOCKET_HOME": "/proc/nothing/here"}
    assert all("To create it" in hocket("agents", env=unwritable).stderr for _ in range(2))


@pytest.mark.req("S4-26")
def test_missing_global_folder_is_an_error_when_strict(hocket: Hocket, mine: Path, theirs: Path) -> None:
    define(mine, "engineer")
    done = hocket("agents", "--strict")
    assert done.returncode == 2
    assert str(theirs) in done.stderr
    assert "mkdir -p" in done.stderr
    theirs.mkdir(parents=True)
    assert hocket("agents", "--strict").returncode == 0


# --- What is wrong ------------------------------------------------------------------------------------------


def test_ignored_file_is_listed_with_its_reason(hocket: Hocket, theirs: Path) -> None:
    define(theirs, "good")
    (theirs / "nameless.md").write_text("---\ndescription: x\n---\n")
    done = hocket("agents")
    assert done.returncode == 0
    (row,) = [line for line in done.stdout.splitlines() if "nameless.md" in line]
    assert row.startswith("✗ ~/.claude/agents/nameless.md")
    assert "name" in row.partition("nameless.md")[2]


def test_ignored_definition_fails_only_when_strict(hocket: Hocket, theirs: Path) -> None:
    define(theirs, "good")
    (theirs / "nameless.md").write_text("---\ndescription: x\n---\n")
    strict = hocket("agents", "--strict", "--json")
    assert strict.returncode == 1
    assert "good" in json.loads(strict.stdout)["by_name"]
    (theirs / "nameless.md").rename(theirs / "nameless.md.deprecated")
    assert hocket("agents", "--strict").returncode == 0


@pytest.mark.parametrize("broken", ["[agents\n", "[agents.x]\nnonsense = 1\n", "\0"])
def test_broken_configuration_is_listed_as_a_problem(hocket: Hocket, theirs: Path, project: Path, broken: str) -> None:
    define(theirs, "good")
    (project / "hocket.toml").write_text(broken)
    found = table(hocket)
    assert "good" in found["by_name"]
    (problem,) = found["problems"]
    assert (problem["path"], problem["claude_loads"]) == (str(project / "hocket.toml"), False)
    (project / "hocket.toml").write_text("")
    assert table(hocket)["problems"] == []


def test_definition_text_cannot_control_the_terminal(hocket: Hocket, theirs: Path) -> None:
    theirs.mkdir(parents=True)
    evil = "\\e[2J\\e]0;owned\\a\\x9b31mred\\u202e"
    (theirs / "x.md").write_text(f'---\nname: "x"\ndescription: "{evil}"\nmodel: "{evil}"\ntools: ["{evil}"]\n---\n')
    (theirs / "\x1b[31mfile.md").write_text("---\nname: 5\n---\n")
    for words in ([], ["x"], ["x", "--why"], ["--report"], ["--trace"]):
        done = hocket("agents", *words)
        assert done.returncode == 0
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.stdout), words
    assert "\x1b" not in hocket("agents", "--json").stdout


# --- Other projects -----------------------------------------------------------------------------------------


@pytest.mark.req("S1-54")
def test_agents_of_another_project_are_listed(hocket: Hocket, theirs: Path, world: Path) -> None:
    define(theirs, "planner")
    define(world / "other/.claude/agents", "their-engineer")
    assert headline(hocket, "--project", "../other") == "2 agents: 1 global, 1 project-local, no conflicts"
    assert counts(table(hocket, "--project", "../other")) == (2, 1, 1)
    assert counts(table(hocket)) == (1, 1, 0)


@pytest.mark.req("S1-54")
def test_project_can_be_a_configured_name(hocket: Hocket, home: Path, world: Path) -> None:
    define(world / "other/.claude/agents", "their-engineer")
    (home / "config.toml").write_text(f'[projects]\nshop = "{world / "other"}"\n')
    assert counts(table(hocket, "--project", "shop")) == (1, 0, 1)


@pytest.mark.parametrize("words", [[], ["--json"], ["--why", "x"]])
def test_missing_project_is_refused_with_its_path(hocket: Hocket, world: Path, words: list[str]) -> None:
    done = hocket("agents", "--project", "../nosuch", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(world / "nosuch") in done.stderr


# --- One agent ----------------------------------------------------------------------------------------------


@pytest.mark.req("S4-20", "S4-52")
def test_override_is_shown_with_files_and_reason(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, "builder")
    define(mine, "builder")
    done = hocket("agents", "builder")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Selected Agent: builder (project-local)\n")
    for reported in (".claude/agents/builder.md", "~/.claude/agents/builder.md", "because"):
        assert reported in done.stdout


@pytest.mark.req("S4-24", "S4-52")
def test_project_only_agent_is_shown_as_project_local(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, "planner")
    define(mine, "engineer")
    shown = hocket("agents", "engineer").stdout
    assert shown.startswith("Selected Agent: engineer (project-local)\n")
    assert "no global one" in shown
    assert hocket("agents", "planner").stdout.startswith("Selected Agent: planner (global)\n")


def test_untypable_name_is_found_by_its_address(hocket: Hocket, theirs: Path) -> None:
    define(theirs, "Code Reviewer", file="cr.md")
    address = table(hocket)["by_name"]["Code Reviewer"]["address"]
    assert f"Code Reviewer ({address})" in hocket("agents").stdout
    for word in ("Code Reviewer", address):
        done = hocket("agents", word, "--json")
        assert json.loads(done.stdout)["path"] == str(theirs / "cr.md")


@pytest.mark.parametrize("word", ["", "bulider", "../builder", "..", "a/b", "x" * 300, "builder\n", "\uff0f"])
def test_unknown_agent_is_refused(hocket: Hocket, theirs: Path, word: str) -> None:
    define(theirs, "builder")
    for words in (["--json"], [], ["--why"]):
        done = hocket("agents", word, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("hocket: there is no agent ")
    assert ("did you mean builder?" in hocket("agents", word).stderr) == (
        word in ("bulider", "../builder", "builder\n")
    )


def test_why_lists_candidates_and_property_origins(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, "builder", head="model: opus\n")
    define(mine, "builder", head="model: sonnet\ntools: Read, Edit\n")
    reported = hocket("agents", "--why", "builder")
    assert reported.stdout == hocket("agents", "builder", "--why").stdout
    lines = [" ".join(line.split()) for line in reported.stdout.splitlines()]
    assert "✓ used project-local .claude/agents/builder.md:2" in lines
    assert any(line.startswith("shadowed global ~/.claude/agents/builder.md:2") for line in lines)
    assert "model sonnet (.claude/agents/builder.md:4)" in lines
    assert "tools Read, Edit (.claude/agents/builder.md:5)" in lines
    assert "permission mode acceptEdits (default)" in lines
    assert any("agents-library" in line and "does not exist" in line for line in lines)


def test_why_is_available_as_json(hocket: Hocket, theirs: Path, mine: Path, home: Path) -> None:
    define(theirs, "builder", head="model: opus\n")
    (home / "config.toml").write_text('[agents.builder]\nmodel = "haiku"\n')
    (mine / "sub").mkdir(parents=True)
    (mine / "sub/builder.md").write_text("---\nname: builder\n---\n")
    done = hocket("agents", "builder", "--why", "--json")
    reported = json.loads(done.stdout)
    verdicts = [(one["verdict"], one["path"]) for one in reported["candidates"]]
    assert ("skipped", str(mine / "sub/builder.md")) in verdicts
    assert ("used", str(theirs / "builder.md")) in verdicts
    (model,) = [field for field in reported["fields"] if field["field"] == "model"]
    given = ("claude-haiku-4-5-20251001", str(home / "config.toml"), "opus")
    assert (model["value"], model["path"], model["instead_of"]) == given


def test_missing_approval_is_shown_with_its_command(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, "builder")
    path = define(mine, "builder")
    assert table(hocket)["by_name"]["builder"]["needs_trust"]
    for words in ([], ["builder"], ["builder", "--why"]):
        assert f"\n    hocket trust {path}\n" in hocket("agents", *words).stdout


@pytest.mark.req("S4-50")
def test_duplicate_files_are_reported_with_the_winner(hocket: Hocket, mine: Path) -> None:
    for number in range(4):
        define(mine, "builder", file=f"b{number}.md", head=f"version: 1.0.{number}\n")
    *losers, winner = (str(mine / name) for name in os.listdir(mine))
    found = table(hocket)
    assert found["by_name"]["builder"]["path"] == winner
    assert [(one["path"], one["kind"], one["claude_loads"]) for one in found["problems"]] == [
        (path, "duplicate", False) for path in sorted(losers)
    ]
    why = json.loads(hocket("agents", "builder", "--why", "--json").stdout)
    verdicts = {one["path"]: one["verdict"] for one in why["candidates"] if one["path"].startswith(str(mine))}
    assert verdicts == {**dict.fromkeys(losers, "skipped"), winner: "used"}
    for words in ([], ["builder", "--why"], ["--report"]):
        reported = hocket("agents", *words).stdout
        assert reported.count("which wins: the file system lists it later, and the CLI uses the last one") == 3
        assert "(the CLI loads it)" not in reported


@pytest.mark.parametrize("words", [["--why"], ["x", "--report"], ["x", "--trace"], ["x", "y"], ["--nope"]])
def test_conflicting_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "agents --help" in said.err


# --- Trace and report ---------------------------------------------------------------------------------------


@pytest.mark.req("S4-45")
def test_trace_comes_before_the_table(hocket: Hocket, theirs: Path, mine: Path) -> None:
    define(theirs, "builder", "planner")
    define(mine, "builder")
    shown = hocket("agents", "--trace").stdout
    trace, _, listed = shown.partition("\n\n")
    assert trace.splitlines()[1] == "Found 2 global agents"
    assert "Overrides detected: builder" in trace
    assert trace.endswith("Discovery complete")
    assert listed.startswith("2 agents: 1 global, 1 project-local, 1 override")
    found = json.loads(hocket("agents", "--trace", "--json").stdout)
    assert found["trace"][-1] == "Discovery complete"
    assert counts(found) == (2, 1, 1)


@pytest.mark.req("S4-46")
def test_report_is_markdown(hocket: Hocket, theirs: Path) -> None:
    define(theirs, *ARCHITECTS)
    done = hocket("agents", "--report")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Agent discovery report\n\n**Total agents:** 3\n")
    assert "data-pipeline-architect, security-auditor, software-architect" in done.stdout
    assert json.loads(hocket("agents", "--report", "--json").stdout)["report"].startswith("# Agent discovery report")


@pytest.mark.req("S4-53")
def test_moving_project_agents_to_global_loses_none(hocket: Hocket, theirs: Path, mine: Path) -> None:
    """The way of the guide: make the folder, move what is shared, keep what knows the project, compare."""
    guide = Path(__file__).parents[2] / "docs/guides/agents.md"
    assert "## Sharing the agents of one project" in guide.read_text(encoding="utf-8")
    define(mine, "planner", "engineer")
    before = table(hocket)
    theirs.mkdir(parents=True)
    (mine / "planner.md").rename(theirs / "planner.md")
    after = table(hocket)
    assert after["by_name"].keys() == before["by_name"].keys()
    assert [counts(found) for found in (before, after)] == [(2, 0, 2), (2, 1, 1)]
    assert hocket("agents", "--strict").returncode == 0


# --- On a terminal ------------------------------------------------------------------------------------------


def on_terminal(hocket: Hocket, columns: int, *words: str, **env: str) -> str:
    """What a command shows on a terminal of that width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket", "agents", *words],
        cwd=hocket.cwd, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm", **env},
    )  # fmt: skip
    os.close(its)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        pass  # how Linux tells that the other end is closed
    finally:
        os.close(ours)
        assert process.wait(15) == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("columns", "words"),
    [(40, []), (120, []), (40, ["builder"]), (40, ["builder", "--why"]), (80, ["builder", "--why"])],
)
def test_only_commands_exceed_the_terminal_width(
    hocket: Hocket, theirs: Path, mine: Path, columns: int, words: list[str]
) -> None:
    define(theirs, "builder", "a-name-that-is-longer-than-most-of-them-are", "表示する")
    define(mine, "builder", head="tools: Read, Grep, Glob, Edit, Write, Bash\nmodel: sonnet\n")
    (theirs / "broken.md").write_text("---\ndescription: x\n---\n")
    shown = on_terminal(hocket, columns, *words, NO_COLOR="1")
    lines = shown.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if display_width(line) > columns and "hocket trust " not in line] == []
    assert "\x1b" not in shown


def test_colours_need_a_terminal_or_a_request(hocket: Hocket, theirs: Path) -> None:
    define(theirs, "builder")
    assert "\x1b[1mbuilder" in on_terminal(hocket, 80)
    assert "\x1b" not in hocket("agents").stdout
    assert "\x1b[1mbuilder" in hocket("agents", env={"FORCE_COLOR": "1"}).stdout


def test_description_fills_the_remaining_width(hocket: Hocket, theirs: Path) -> None:
    define(theirs, "builder", head="model: " + "m" * 40 + "\n")
    assert "DESCRIPTION" in on_terminal(hocket, 80)
    narrow = on_terminal(hocket, 40)
    assert "SOURCE" in narrow
    assert "TOOLS" not in narrow


# --- Quickly ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["edit", "add", "remove", "configure"])
def test_change_is_visible_at_once(hocket: Hocket, theirs: Path, world: Path, project: Path, change: str) -> None:
    define(theirs, "builder", "planner")
    before = table(hocket)["by_name"].keys()
    if change == "edit":
        define(theirs, "scribe", file="planner.md")
    elif change == "add":
        define(project / ".claude/agents", "scribe")
    elif change == "remove":
        (theirs / "planner.md").unlink()
    else:
        (project / "hocket.toml").write_text('[agents.scribe]\npath = "/bin/true"\n')
    assert table(hocket)["by_name"].keys() != before


def test_missing_home_starts_no_server(hocket: Hocket, theirs: Path, world: Path) -> None:
    define(theirs, "builder")
    for words in ([], ["--json"], ["builder"], ["builder", "--why"], ["--report"], ["--trace"], ["--strict"]):
        done = hocket("agents", *words, env={"HOCKET_HOME": str(world / "new")})
        assert (done.returncode, done.stderr) == (0, ""), words
    assert not (world / "new/server.lock").exists()


def test_unwritable_home_is_accepted(hocket: Hocket, theirs: Path) -> None:
    define(theirs, "builder")
    done = hocket("agents", "--json", env={"HOCKET_HOME": "/proc/nothing"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_closed_pipe_ends_the_command_quietly(hocket: Hocket, theirs: Path, words: list[str]) -> None:
    define(theirs, *(f"agent-{number}" for number in range(50)))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hocket", "agents", *words],
            cwd=hocket.cwd, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("command", "broken"), [("agents", True), ("run", False), ("spawn", False)])
def test_shell_completes_agents_of_the_project(
    hocket: Hocket, theirs: Path, project: Path, command: str, broken: bool
) -> None:
    define(theirs, "builder", "planner")
    if broken:
        (project / "hocket.toml").write_text("[agents")
    done = hocket(command, "bu", env={"_HOCKET_COMPLETE": "bash"})
    assert (done.stdout, done.stderr) == ("builder\n", "")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/u/p/.claude/agents/a.md", ".claude/agents/a.md"),
        ("/u/.claude/agents/a.md", "~/.claude/agents/a.md"),
        ("/u/px/a.md", "~/px/a.md"),
        ("/ux/a.md", "/ux/a.md"),
        ("/u", "/u"),
    ],
)
def test_paths_are_relative_to_the_current_directory(path: str, shown: str) -> None:
    assert shortened(path, "/u/p", "/u") == shown
