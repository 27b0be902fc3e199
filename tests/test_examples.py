"""The examples in the documentation: commands print what is shown, and configuration files load."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from world import SYSTEM_PATH, Bin, Hocket

from hocket.api.wire import RunOut
from hocket.chain.variables import placeholders
from hocket.cli.access import EXIT_ASKS, EXIT_BUDGET, EXIT_TIMED_OUT
from hocket.cli.dispatch import BROKEN_PIPE
from hocket.cli.runs import TREE_COLUMNS, ps_table
from hocket.config.loading import find_chains, load
from hocket.errors import BY_CODE

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs/examples"
PROGRAMS = EXAMPLES / "programs"


def shown(command: str, page: str = "README.md") -> list[str]:
    """Return the lines below a command in the README or another page."""
    return (ROOT / page).read_text().partition(f"$ {command}\n")[2].partition("\n```")[0].splitlines()


def without_times(lines: list[str]) -> list[str]:
    return [re.sub(r"\b\d+(:\d\d)+\b", "T", line.rstrip()) for line in lines]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the programs that the README uses on PATH."""
    monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("programs")
def test_readme_shows_chain_and_runs_as_printed(hocket: Hocket) -> None:
    done = hocket("run", "planner -> builder:5 -> reviewer", "-p", "Build a small house")
    result = done.stdout.splitlines()
    expected = shown('hocket run "planner -> builder:5 -> reviewer" -p "Build a small house"')
    assert [line for line in expected if line in result] == result
    talk = [line for line in expected if line not in result]
    assert without_times(done.stderr.splitlines()) == without_times(talk)
    listed = ps_table([{**run, "ended_at": 0.0} for run in hocket.runs()], 60.0, 80)
    assert without_times(listed) == without_times(shown("hocket ps -a"))


@pytest.mark.usefixtures("programs")
def test_families_guide_shows_family_as_printed(hocket: Hocket, agent: Bin) -> None:
    guide = "docs/guides/families.md"
    (script,) = re.findall(r"```sh\n(.*?)```", (ROOT / guide).read_text(), re.DOTALL)
    program = agent.folder / "lead"
    program.write_text(script)
    program.chmod(0o700)
    first, *_ = expected = shown('hocket run lead --quiet -p "Build a small house"', guide)
    result = hocket("run", "lead", "--quiet", "-p", "Build a small house").stdout.splitlines()
    assert (first, expected[: len(result)]) == ("plan for: Build a small house", result)
    runs = [{**run, "ended_at": 0.0} for run in json.loads(hocket("ps", "--tree", "-a", "--json").stdout)]
    listed = ps_table(runs, 60.0, 80, headings=TREE_COLUMNS)
    assert without_times(listed) == without_times(shown("hocket ps --tree -a", guide))


@pytest.mark.skipif(shutil.which("jq", path=SYSTEM_PATH) is None, reason="the scripts of the page use jq")
def test_scripts_of_notifications_page_notify(hocket: Hocket, home: Path, world: Path, agent: Bin) -> None:
    record = "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.read()]), file=sys.stderr)"
    for program in ("notify-send", "curl"):
        agent(program, record)
    webhook, terminal = world / "user/.config/hocket/webhook", world / "terminal"
    webhook.parent.mkdir(parents=True)
    webhook.write_text("https://chat.example/hook\n")
    outputs = []
    scripts = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/guides/notifications.md").read_text(), re.DOTALL)
    for number, script in enumerate(scripts):
        path = world / f"notify-{number}"
        path.write_text(script)
        path.chmod(0o700)
        (home / "config.toml").write_text(f"[notify]\ncommand = {json.dumps([str(path), str(terminal)])}\n")
        done = hocket("notify", "--test", "--json")
        assert done.returncode == 0, done.stdout
        outputs.append(json.loads(done.stdout)["output"])
    text, reply = "example wants to run Bash: make test", "hocket answer 1 allow/deny"
    assert json.loads(outputs[0]) == [["--app-name", "Hocket", "--", text, reply], ""]
    arguments, body = json.loads(outputs[1])
    assert arguments[-1] == "https://chat.example/hook"
    assert json.loads(body) == {"text": f"{text}\n`{reply}`"}
    assert (outputs[2], terminal.read_text()) == ("", "\a")


@pytest.mark.usefixtures("programs")
def test_readme_shows_json_and_handoff_as_printed(hocket: Hocket) -> None:
    last = json.loads(hocket("run", "reviewer", "--json").stdout.splitlines()[-1])
    (line,) = shown("hocket run reviewer --json | tail -1 | jq -c '.data | [.status, .reason, .result]'")
    assert json.loads(line) == [last["data"][key] for key in ("status", "reason", "result")]
    request = "Try out the last commit"
    assert hocket("handoff", "reviewer", request).stdout.splitlines() == shown(f'hocket handoff reviewer "{request}"')


def test_readme_shows_rehearsal_as_printed(hocket: Hocket) -> None:
    played = hocket("rehearse", "developer:3", "-p", "Add a roof").stdout.splitlines()
    assert played == shown('hocket rehearse "developer:3" -p "Add a roof" 2>/dev/null')


def test_readme_puts_its_programs_on_path() -> None:
    text = (ROOT / "README.md").read_text()
    (folder,) = re.findall(r"`PATH=\$PWD/(\S+):\$PATH`", text)
    assert ROOT / folder == PROGRAMS
    assert all(f"`{program.name}`" in text and os.access(program, os.X_OK) for program in PROGRAMS.iterdir())


def test_forkhestra_guide_runs_as_printed(hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    guide = "docs/guides/forkhestra.md"
    text = (ROOT / guide).read_text()
    for path, kind in (("project-a/.claude/agents/reviewer.md", "markdown"), ("site/forge/chains.json", "json")):
        (content,) = re.findall(rf"`{re.escape(path)}`.*?```{kind}\n(.*?)```", text, re.DOTALL)
        file = world / path
        file.parent.mkdir(parents=True)
        file.write_text(content)
    site = world / "site"
    done = hocket("rehearse", "--chain", "check", cwd=site)
    result = done.stdout.splitlines()
    expected = shown("hocket rehearse --chain check", guide)
    assert [line for line in expected if line in result] == result
    talk = [line for line in expected if line not in result]
    assert without_times(done.stderr.splitlines()) == without_times(talk)
    (site / "passes").unlink()
    (dsl, prompt) = re.findall(r'^forkhestra "(.*)" -p "(.*)"$', text, re.MULTILINE)[0]
    direct = hocket("rehearse", dsl, "-p", prompt, cwd=site)
    assert (direct.returncode, direct.stdout) == (0, done.stdout)


def test_readme_commands_exist(hocket: Hocket) -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^(?:\$ )?hocket ([a-z]+)", text, re.MULTILINE))
    assert {"run", "ps", "inbox", "answer"} <= named
    for name in sorted(named):
        assert hocket(name, "--help").returncode == 0


HOOKS = "hooks:\n  Stop:\n    - hooks:\n        - type: command\n          command: scripts/notify.sh done\n"


def define(folder: Path, name: str, head: str, instructions: str = "Do it.") -> Path:
    """Write the definition of an agent."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(f"---\nname: {name}\n{head}---\n{instructions}\n")
    return path


@pytest.fixture
def shop(world: Path, home: Path) -> Path:
    """The project `shop` in the user's home that the guides use."""
    folder = Path(os.environ["HOME"]) / "shop"
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the output of a command with the home directory that the guides use."""
    return [line.rstrip() for line in done.stdout.replace(os.environ["HOME"], "/home/ada").splitlines()]


def test_guide_shows_agents_as_printed(hocket: Hocket, shop: Path) -> None:
    mine, project = shop.parent / ".claude/agents", shop / ".claude/agents"
    define(mine, "builder", "description: Builds anything\n")
    define(mine, "planner", "description: Plans large tasks\nmodel: opus\ntools: Read, Grep, Glob, Bash\n")
    define(mine, "scribe", "description: Writes down decisions\ntools: Read\n")
    define(mine, "old.deprecated", "description: Not in use any more\n")
    define(project, "builder", "description: Builds the shop\nmodel: sonnet\ntools: Edit, Bash, Read\n")
    define(project, "qa", "description: Writes tests\n")
    (project / "notes.md").write_text("To do\n")
    define(shop.parent / ".claude/agents-library", "reviewer", "description: Looks for mistakes\nmodel: haiku\n")
    guide = "docs/guides/agents.md"
    assert printed(hocket("agents", cwd=shop)) == shown("hocket agents", guide)
    why = printed(hocket("agents", "builder", "--why", cwd=shop))
    assert [line for line in shown("hocket agents builder --why", guide) if line != "…" and line not in why] == []


def test_guide_shows_trust_as_printed(hocket: Hocket, shop: Path) -> None:
    text = "Read the change and say what is wrong."
    define(shop.parent / ".claude/agents", "reviewer", "description: Looks for mistakes\nmodel: opus\n", text)
    head = f"description: Looks for mistakes in the shop\nmodel: opus\n{HOOKS}"
    reviewer = define(shop / ".claude/agents", "reviewer", head, text)
    guide = "docs/guides/trust.md"
    first = [line for line in shown("hocket trust reviewer", guide) if not line.startswith("Approve ")]
    assert printed(hocket("trust", "reviewer", "--yes", cwd=shop)) == first
    reviewer.write_text(reviewer.read_text() + "x\n")
    assert printed(hocket("trust", "reviewer", "--dry-run", cwd=shop)) == shown(
        "hocket trust reviewer --dry-run", guide
    )


def test_guide_shows_trust_of_folder_as_printed(hocket: Hocket, shop: Path) -> None:
    define(shop / ".claude/agents", "fast", "description: Fast\npermissionMode: bypassPermissions\n")
    define(shop / ".claude/agents", "reviewer", f"description: Looks for mistakes\n{HOOKS}")
    hook = {"hooks": [{"type": "command", "command": "scripts/hello.sh"}]}
    (shop / ".claude/settings.json").write_text(json.dumps({"hooks": {"SessionStart": [hook]}}))
    server = {"command": "scripts/db-server", "args": ["--readonly"]}
    (shop / ".mcp.json").write_text(json.dumps({"mcpServers": {"db": server}}))
    lines = [line for line in shown("hocket trust", "docs/guides/trust.md") if not line.startswith("Approve ")]
    assert printed(hocket("trust", "--yes", cwd=shop)) == lines


def test_exit_code_page_lists_every_code() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    listed = set(map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE)))
    known = {EXIT_TIMED_OUT, EXIT_ASKS, EXIT_BUDGET, BROKEN_PIPE, *(error.exit_code for error in BY_CODE.values())}
    assert known <= listed


def test_command_page_lists_every_run_key() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    (row,) = re.findall(r"^\| `ps`, `show`, `wait` \| `([a-z_ ]+)`", page, re.MULTILINE)
    (more,) = re.findall(r"^\| `ps --tree` \| the same with `([a-z_ ]+)`", page, re.MULTILINE)
    assert set(RunOut.__struct_fields__) == {*row.split(), *more.split()}


def test_command_page_lists_every_command(hocket: Hocket) -> None:
    overview = hocket("--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    names = re.findall(r"^  ([a-z]+) ", overview, re.MULTILINE)
    page = (ROOT / "docs/reference/commands.md").read_text()
    assert {"run", "ps", "trust"} <= set(names)
    assert [name for name in names if f"`hocket {name}" not in page] == []


def test_command_page_lists_every_option_of_run(hocket: Hocket) -> None:
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", hocket("run", "--help").stdout, re.MULTILINE))
    page = (ROOT / "docs/reference/commands.md").read_text()
    assert {"--until", "--budget", "--json"} <= options
    assert sorted(option for option in options - {"--help"} if f"`{option}" not in page) == []


@pytest.mark.req("S1-53")
def test_example_files_load_without_problems(home: Path) -> None:
    found = load(str(EXAMPLES), str(home))
    assert set(found.files) == {str(EXAMPLES / "hocket.toml"), str(EXAMPLES / "forge/chains.json")}
    assert set(found.chains) == {"ship", "cross-project-workflow", "side-by-side"}
    assert find_chains(str(EXAMPLES), str(home)).problems == []


@pytest.mark.req("S1-53", "S1-34")
def test_chains_file_names_agents_of_other_projects(home: Path) -> None:
    found = load(str(EXAMPLES), str(home))
    steps = found.chain("cross-project-workflow").steps
    assert [(step.agent, step.iterations) for step in steps] == [
        ("external-reviewer", 2),
        ("local-analyzer", 3),
        ("forge-task-manager", None),
    ]
    assert found.agents["external-reviewer"].path == "/home/me/project-a/.claude/agents/reviewer"
    assert found.agents["api-reviewer"].path == "../backend-api/.claude/agents/reviewer"


def test_example_chains_have_descriptions_and_known_placeholders(home: Path) -> None:
    for chain in load(str(EXAMPLES), str(home)).chains.values():
        assert chain.description
        for step in chain.steps:
            assert set(placeholders(step.prompt or "")) <= {"task", "previous.result"}
    json.loads((EXAMPLES / "forge/chains.json").read_text())


@pytest.mark.req("S5-48")
def test_guide_of_teams_says_what_is_not_possible() -> None:
    guide = (ROOT / "docs/guides/teams.md").read_text()
    limits = guide.partition("\n## Limits\n")[2]
    assert "none of them can be resumed" in limits
    assert "the team is lost" in limits
    pages = [page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    denial = r"(?i)teams? (is|are) not supported|not support(ed)? (agent )?teams"
    assert not [found for page in pages for found in re.findall(denial, page)]
