"""An untrusted repository starts nothing by itself; a trusted one may bring settings, hooks and servers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, Document, asks_to, bash, define, real_cli, says
from e2e.commands import RunOutput, run, run_output
from patience import PATIENCE
from world import Hocket

from hocket.model import DEFAULT_MARKER
from hocket.providers.claude.privileges import widening

pytestmark = [pytest.mark.shared_server, pytest.mark.in_process]


def set_traps(project: Path, name: str = "trap") -> tuple[Path, Path]:
    """Write a hook and an MCP server of the project, each of which leaves a file when it is started."""
    hook, server = project / "hook_ran", project / "server_ran"
    (project / ".claude").mkdir(exist_ok=True)
    entry = {"hooks": [{"type": "command", "command": f"touch {hook}"}]}
    (project / ".claude/settings.json").write_text(json.dumps({"hooks": {"SessionStart": [entry]}}))
    servers = {name: {"command": "/bin/sh", "args": ["-c", f"touch {server}"]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return hook, server


def trust(home: Path, folder: Path) -> None:
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(folder))}]\n")


def test_hooks_and_servers_of_listed_folder_run(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    hook, server = set_traps(hocket.cwd)
    trust(home, hocket.cwd)
    claude.use_script(says("fine"))
    assert run(hocket, "claude", "-p", "hello").outcome == (0, "done", "single_run")
    assert (hook.exists(), server.exists()) == (True, True)


def test_trust_does_not_extend_through_links(claude: ClaudeSetup, hocket: Hocket, home: Path, tmp_path: Path) -> None:
    hook, server = set_traps(tmp_path)
    (hocket.cwd / ".git").mkdir()
    (hocket.cwd / "link").symlink_to(tmp_path)
    trust(home, hocket.cwd)
    claude.use_script(says("fine"))
    assert run(hocket, "claude", "-p", "hello", "--cwd", hocket.cwd / "link").outcome == (0, "done", "single_run")
    assert (hook.exists(), server.exists()) == (False, False)


def test_approved_hooks_and_servers_run_until_changed(claude: ClaudeSetup, hocket: Hocket) -> None:
    hook, server = set_traps(hocket.cwd)
    claude.use_script(says("fine"))

    def ran() -> tuple[bool, bool]:
        assert run(hocket, "claude", "-p", "hello").outcome == (0, "done", "single_run")
        both = hook.exists(), server.exists()
        hook.unlink(missing_ok=True)
        server.unlink(missing_ok=True)
        return both

    assert ran() == (False, False)
    assert hocket("trust", "--yes").returncode == 0
    assert ran() == (True, True)
    settings = hocket.cwd / ".claude/settings.json"
    settings.write_text(settings.read_text() + " ")
    assert ran() == (False, False)


def test_servers_above_trusted_folder_are_disabled(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    _, above = set_traps(hocket.cwd)
    below = hocket.cwd / "below"
    below.mkdir()
    _, server = set_traps(below, "own")
    claude.use_script(says("fine"))
    trust(home, below)
    assert run(hocket, "claude", "-p", "hello", "--cwd", below).outcome == (0, "done", "single_run")
    assert (server.exists(), above.exists()) == (True, False)


@pytest.mark.req("S1-45")
def test_settings_argument_does_not_enable_untrusted_servers(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    """The CLI uses one such flag alone, so the user's settings are merged with ours, which disable those servers."""
    _, above = set_traps(hocket.cwd)
    below = hocket.cwd / "below"
    below.mkdir()
    trust(home, below)
    claude.use_script(says("fine"))
    wanted = {"enabledMcpjsonServers": ["trap"], "enableAllProjectMcpServers": True, "model": "haiku"}
    output = run(hocket, "claude", "-p", "hello", "--cwd", below, "--", f"--settings={json.dumps(wanted)}")
    assert (output.code, above.exists()) == (0, False)
    assert "haiku" in claude.model.last["model"]
    trust(home, hocket.cwd)
    assert run(hocket, "claude", "-p", "hello", "--cwd", below, "--", "--settings", "{}").code == 0
    assert above.exists(), "approved servers start, with or without a settings argument"


def test_approved_definition_does_not_enable_folder_hooks(claude: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    hook, server = set_traps(hocket.cwd)
    own_hook, own_server = world / "own_hook", world / "own_server"
    define(
        hocket.cwd,
        "eager",
        permissionMode="bypassPermissions",
        hooks=json.dumps({"Stop": [{"hooks": [{"type": "command", "command": f"touch {own_hook}"}]}]}),
        mcpServers=json.dumps([{"own": {"command": "/bin/sh", "args": ["-c", f"touch {own_server}"]}}]),
    )
    claude.use_script({"when": {"agent": "eager"}, "do": [asks_to("sh -c 'echo x > made'"), {"say": "thank you"}]})
    assert hocket("trust", "--yes", "eager").returncode == 0
    output = run(hocket, "eager", "-p", "hello")
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "thank you")
    assert output.of("session")[0]["permission_mode"] == "bypassPermissions"
    assert (own_hook.exists(), own_server.exists(), (hocket.cwd / "made").exists()) == (True, True, True)
    assert (hook.exists(), server.exists()) == (False, False)


# --- Instructions and skills of a project -------------------------------------------------------------------


def write_instructions(project: Path) -> None:
    """Write project files that start nothing: instructions, a skill, and two agents of which one calls the other."""
    (project / "CLAUDE.md").write_text("The password is swordfish.\n")
    skill = project / ".claude/skills/fishing/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: fishing\ndescription: how to catch a marlin\n---\nPatience.\n")
    define(project, "lead")
    define(project, "diver")


def call(agent: str) -> Document:
    given = {"subagent_type": agent, "description": "a dive", "prompt": "dive", "run_in_background": False}
    return {"tool": {"name": "Agent", "input": given, "result": "wet"}}


RULES = (
    {"when": {"agent": "lead"}, "do": [call("diver"), {"say": "done"}]},
    says("I dived", agent="diver"),
    says("fine"),
)


def known(claude: ClaudeSetup, hocket: Hocket) -> tuple[bool, bool, bool]:
    """Whether the instructions and the skill reach an agent, and whether it can call another agent of the project."""
    assert run(hocket, "claude", "-p", "hello").outcome == (0, "done", "single_run")
    heard = claude.model.request_text()
    before = len(claude.model.bodies)
    assert run(hocket, "lead", "-p", "go").outcome == (0, "done", "single_run")
    dived = any("You are agent: diver" in json.dumps(body["system"]) for body in claude.model.bodies[before:])
    return "swordfish" in heard, "catch a marlin" in heard, dived


def test_instructions_and_skills_need_folder_approval(claude: ClaudeSetup, hocket: Hocket) -> None:
    write_instructions(hocket.cwd)
    claude.use_script(*RULES)
    assert known(claude, hocket) == (False, False, False)
    assert hocket("trust", "--yes", ".").returncode == 0
    assert known(claude, hocket) == (True, True, True)
    set_traps(hocket.cwd)
    assert known(claude, hocket) == (False, False, False)
    assert not (hocket.cwd / "hook_ran").exists()


def test_one_notice_names_what_an_untrusted_folder_disables(scripted: ClaudeSetup, hocket: Hocket) -> None:
    write_instructions(hocket.cwd)
    scripted.use_script(*RULES)

    def said(chain: str, agents: int) -> list[str]:
        output = run(hocket, chain, "-p", "hello")
        assert len({data["session_id"] for data in output.of("session")}) == agents
        return [data["text"] for data in output.of("notice") if data["kind"] == "start"]

    for chain, agents in (("claude", 1), ("claude:2", 2), ("diver -> claude", 2)):
        (notice,) = said(chain, agents)
        assert notice == (
            f"{hocket.cwd} is not trusted: disabled CLAUDE.md, .claude/agents, .claude/skills;"
            f" to review and approve it: hocket trust {hocket.cwd}"
        )
    assert hocket("trust", "--yes").returncode == 0
    assert said("claude", 1) == []


# --- Resuming with approvals --------------------------------------------------------------------------------


def traps_fired(*traps: Path) -> bool:
    found = [trap.exists() for trap in traps]
    for trap in traps:
        trap.unlink(missing_ok=True)
    assert len(set(found)) == 1
    return found[0]


def refused(hocket: Hocket, ref: str, target: Path) -> str:
    """The message with which a resume is refused, before a process has started."""
    before = len(hocket.runs())
    done = hocket("resume", ref, "--json")
    assert (done.returncode, done.stdout, len(hocket.runs())) == (4, "", before)
    assert f"hocket trust {target}\n" in done.stderr
    return done.stderr


ELSEWHERE = "../other/.claude/agents/painter"
"""An agent outside the folder whose configuration names it."""


def append(path: Path) -> None:
    path.write_text(path.read_text() + " ")


@pytest.mark.req("S1-45")
@pytest.mark.parametrize("file", [".claude/settings.json", None])
def test_session_resumes_only_with_approved_folder_hooks(claude: ClaudeSetup, hocket: Hocket, file: str | None) -> None:
    traps = set_traps(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    claude.use_script(says("fine"))
    leaf = run(hocket, "claude", "-p", "hello").leaf
    assert traps_fired(*traps)
    assert hocket("resume", leaf, "--json").returncode == 0
    assert traps_fired(*traps)
    if file is None:
        assert hocket("trust", "--remove").returncode == 0
    else:
        append(hocket.cwd / file)
    error = refused(hocket, leaf, hocket.cwd)
    assert ("has changed since you approved it" in error) is (file is not None)
    assert not traps_fired(*traps)
    assert hocket("trust", "--yes").returncode == 0
    assert hocket("resume", leaf, "--json").returncode == 0
    assert traps_fired(*traps)


def test_session_in_untrusted_folder_resumes_without_hooks(claude: ClaudeSetup, hocket: Hocket) -> None:
    traps = set_traps(hocket.cwd)
    claude.use_script(says("fine"))
    leaf = run(hocket, "claude", "-p", "hello").leaf
    append(hocket.cwd / ".mcp.json")
    assert hocket("resume", leaf, "--json").returncode == 0
    assert not traps_fired(*traps)


@pytest.mark.req("S1-45")
def test_resume_is_refused_after_folder_is_unlisted(scripted: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    set_traps(hocket.cwd)
    trust(home, hocket.cwd)
    scripted.use_script(says("fine"))
    leaf = run(hocket, "claude", "-p", "hello").leaf
    append(hocket.cwd / ".mcp.json")
    assert hocket("resume", leaf, "--json").returncode == 0
    (home / "config.toml").write_text("")
    refused(hocket, leaf, hocket.cwd)


@pytest.mark.req("S1-45")
def test_session_resumes_only_with_approved_definition(scripted: ClaudeSetup, hocket: Hocket) -> None:
    path = define(hocket.cwd, "eager", permissionMode="bypassPermissions")
    assert hocket("trust", "--yes", "eager").returncode == 0
    scripted.use_script(says("fine"))
    leaf = run(hocket, "eager", "-p", "hello").leaf
    assert hocket("resume", leaf, "--json").returncode == 0
    assert hocket("trust", "--remove", "eager").returncode == 0
    error = refused(hocket, leaf, path)
    assert "asks for permission mode bypassPermissions" in error
    assert hocket("trust", "--yes", "eager").returncode == 0
    assert hocket("resume", leaf, "--json").returncode == 0
    append(path)
    refused(hocket, leaf, path)
    assert hocket("trust", "--yes", "eager").returncode == 0
    other = hocket("resume", leaf)
    assert (other.returncode, "no longer approved" in other.stderr) == (4, True)


@pytest.mark.req("S1-45")
def test_chain_resumes_only_with_approved_folder(claude: ClaudeSetup, hocket: Hocket) -> None:
    traps = set_traps(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    claude.use_script(says("fine"))
    ended = run(hocket, "false -> claude", "-p", "hello")
    (chain,) = {event["root"] for event in ended.events}
    assert (ended.code, traps_fired(*traps)) == (1, False)
    assert hocket("trust", "--remove").returncode == 0
    refused(hocket, chain, hocket.cwd)
    done = hocket("resume", chain, "--from", "2", "--json")
    assert (done.returncode, done.stdout) == (4, "")
    assert hocket("trust", "--yes").returncode == 0
    assert (hocket("resume", chain, "--from", "2", "--json").returncode, traps_fired(*traps)) == (0, True)


# --- Within a chain -----------------------------------------------------------------------------------------


def hook_that(command: str) -> str:
    return json.dumps({"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": command}]}]}})


def about_settings(output: RunOutput) -> list[str]:
    texts = [event["data"]["text"] for event in output.events if event["type"] == "notice"]
    return [text for text in texts if "not those of when this began" in text]


@pytest.mark.req("S1-45")
def test_settings_written_by_step_are_disabled_for_next(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    settings, fired = hocket.cwd / ".claude/settings.json", hocket.cwd / "fired"
    settings.parent.mkdir()
    settings.write_text("{}")
    (home / "config.toml").write_text('[claude]\npermission_mode = "bypassPermissions"\n')
    define(Path.home(), "writer")
    assert hocket("trust", "--yes").returncode == 0
    write = bash(f"echo '{hook_that(f'touch {fired}')}' > {settings}")
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "written"}]}, says("fine"))
    output = run(hocket, "writer -> claude", "-p", "hello")
    assert (output.code, fired.exists(), "touch" in settings.read_text()) == (0, False, True)
    (notice,) = about_settings(output)
    assert notice.endswith(f"hocket trust {hocket.cwd}")
    assert hocket("trust", "--yes").returncode == 0
    assert (run(hocket, "claude", "-p", "hello").code, fired.exists()) == (0, True)


@pytest.mark.req("S1-45")
def test_servers_written_above_project_by_step_are_disabled(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text('[claude]\npermission_mode = "bypassPermissions"\n')
    define(Path.home(), "writer")
    project, fired = hocket.cwd / "below", hocket.cwd / "fired"
    (project / ".git").mkdir(parents=True)
    assert hocket("trust", "--yes", project).returncode == 0
    servers = json.dumps({"mcpServers": {"planted": {"command": "/bin/sh", "args": ["-c", f"touch {fired}"]}}})
    write = bash(f"echo '{servers}' > ../.mcp.json")
    claude.use_script({"when": {"agent": "writer"}, "do": [write, {"say": "written"}]}, says("fine"))
    output = run(hocket, "writer -> claude", "-p", "hello", "--cwd", project)
    assert (output.code, (hocket.cwd / ".mcp.json").exists(), fired.exists()) == (0, True, False)
    assert len(about_settings(output)) == 1


@pytest.mark.req("S1-45")
def test_retried_step_ignores_settings_it_wrote(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    settings, fired = hocket.cwd / ".claude/settings.json", hocket.cwd / "fired"
    settings.parent.mkdir()
    settings.write_text("{}")
    chain = '[chains.alone]\non_lost = "retry"\nsteps = [{agent = "claude"}]\n'
    (home / "config.toml").write_text(f'[claude]\npermission_mode = "bypassPermissions"\n{chain}')
    assert hocket("trust", "--yes").returncode == 0
    write = f"echo '{hook_that(f'touch {fired}')}' > {settings}"
    end_its_keeper = "test -e again || { touch again; kill -9 $(ps -o ppid= -p $PPID); sleep 20; }"
    claude.use_script({"do": [bash(f"{write}; {end_its_keeper}"), {"say": "fine"}]})
    output = run(hocket, "--chain", "alone", "-p", "hello")
    assert (output.code, (hocket.cwd / "again").exists(), fired.exists()) == (0, True, False)
    assert len(about_settings(output)) == 1


@pytest.mark.req("S1-45")
def test_each_iteration_uses_settings_approved_at_start(claude: ClaudeSetup, hocket: Hocket) -> None:
    settings, ran = hocket.cwd / ".claude/settings.json", hocket.cwd / "ran"
    settings.parent.mkdir()
    settings.write_text(hook_that(f"echo hook >> {ran}"))
    assert hocket("trust", "--yes").returncode == 0
    gate = hocket.cwd / "gate"
    gate.write_text(
        f"""#!/bin/sh
echo pass >> {ran}
case $(grep -c pass {ran}) in
1) cp {settings} kept; echo ' ' >> {settings}; exit 1;;
2) cp kept {settings}; exit 1;;
esac
"""
    )
    gate.chmod(0o755)
    claude.use_script(says(DEFAULT_MARKER))
    output = run(hocket, "claude:5", "-p", "hello", "--until", str(gate))
    assert (output.code, ran.read_text().split()) == (0, ["hook", "pass", "pass", "hook", "pass"])
    assert len(about_settings(output)) == 1


@pytest.mark.req("S1-45")
def test_resumed_chain_uses_newly_approved_settings(claude: ClaudeSetup, hocket: Hocket) -> None:
    traps = set_traps(hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    claude.use_script(says("fine"))
    ended = run(hocket, "false -> claude -> claude", "-p", "hello")
    (chain,) = {event["root"] for event in ended.events}
    settings = hocket.cwd / ".claude/settings.json"
    settings.write_text(settings.read_text() + " ")
    refused(hocket, chain, hocket.cwd)
    assert hocket("trust", "--yes").returncode == 0
    done = hocket("resume", chain, "--from", "2", "--json")
    assert (done.returncode, traps_fired(*traps)) == (0, True)
    assert about_settings(run_output(done.returncode, done.stdout, done.stderr)) == []


@pytest.mark.req("S1-45")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wild", f'[agents.wild]\npath = "{ELSEWHERE}"\npermission_mode = "bypassPermissions"\n'),
        ("wild", f'[agents.wild]\npath = "{ELSEWHERE}"\nargs = ["--dangerously-skip-permissions"]\n'),
        (ELSEWHERE, '[claude]\npermission_mode = "bypassPermissions"\n'),
        ("wild", f'[chains.wild]\npermission_mode = "bypassPermissions"\nsteps = [{{agent = "{ELSEWHERE}"}}]\n'),
    ],
    ids=["alias", "arguments", "claude", "chain"],
)
def test_permissions_of_project_file_resume_only_while_approved(
    scripted: ClaudeSetup, hocket: Hocket, world: Path, name: str, text: str
) -> None:
    define(world / "other", "painter")
    (hocket.cwd / "hocket.toml").write_text(text)
    assert hocket("trust", "--yes").returncode == 0
    scripted.use_script(says("fine"))
    leaf = run(hocket, name, "-p", "hello").leaf
    assert hocket("resume", leaf, "--json").returncode == 0
    assert hocket("trust", "--remove").returncode == 0
    refused(hocket, leaf, hocket.cwd)


@pytest.mark.req("S1-45")
def test_resume_is_refused_after_new_server_above_folder(scripted: ClaudeSetup, hocket: Hocket) -> None:
    below = hocket.cwd / "below"
    below.mkdir()
    set_traps(below, "own")
    assert hocket("trust", "--yes", below).returncode == 0
    scripted.use_script(says("fine"))
    leaf = run(hocket, "claude", "-p", "hello", "--cwd", below).leaf
    _, server = set_traps(hocket.cwd)
    done = hocket("resume", leaf)
    assert (done.returncode, "trap" in done.stderr, server.exists()) == (4, True, False)


# --- Configuration of a project -----------------------------------------------------------------------------

ALIAS = '[agents.again]\npath = "claude"\nargs = ["--setting-sources", "user,project"]\n'
CHAIN = {"chains": {"again": {"steps": [{"agent": "claude", "args": ["--setting-sources=user,project"]}]}}}


@pytest.mark.req("S1-45")
@pytest.mark.parametrize(
    ("file", "text"), [("hocket.toml", ALIAS), ("forge/chains.json", json.dumps(CHAIN))], ids=["alias", "step"]
)
def test_project_arguments_cannot_enable_its_hooks(
    claude: ClaudeSetup, hocket: Hocket, home: Path, file: str, text: str
) -> None:
    hook, _ = set_traps(hocket.cwd)
    path = hocket.cwd / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    claude.use_script(says("fine"))
    refused = hocket("run", "again", "-p", "hello", "--json")
    assert (refused.returncode, refused.stdout, hook.exists()) == (4, "", False)
    for words in (str(path), "--setting-sources", f"hocket trust {hocket.cwd}\n"):
        assert words in refused.stderr
    assert (hocket.runs(), claude.model.bodies) == ([], [])
    trust(home, hocket.cwd)
    assert (run(hocket, "again", "-p", "hello").code, hook.exists()) == (0, True)


@pytest.mark.req("S1-45")
def test_untrusted_project_cannot_widen_permissions(claude: ClaudeSetup, hocket: Hocket) -> None:
    steps = '[{agent = "claude", args = ["--dangerously-skip-permissions"]}]'
    (hocket.cwd / "hocket.toml").write_text(
        f'[chains.ship]\nsteps = {steps}\n[agents.handy]\npath = "claude"\nallowed_tools = "Bash"\n'
    )
    claude.use_script({"do": [asks_to("sh -c 'echo x > made'"), {"say": "thank you"}]})
    for name in ("ship", "handy"):
        assert hocket("run", name, "-p", "hello", "--json").returncode == 4
    assert ((hocket.cwd / "made").exists(), claude.model.bodies) == (False, [])


SHAPING = {
    *("--append-system-prompt", "--autocompact", "--ax-screen-reader", "--betas", "--brief", "--debug"),
    *("--disable-slash-commands", "--disallowed-tools", "--disallowedTools", "--effort"),
    *("--exclude-dynamic-system-prompt-sections", "--fallback-model", "--forward-subagent-text", "--help"),
    *("--include-hook-events", "--include-partial-messages", "--json-schema", "--max-budget-usd", "--model", "--name"),
    *("--no-chrome", "--no-session-persistence", "--print", "--prompt-suggestions", "--replay-user-messages"),
    *("--strict-mcp-config", "--system-prompt", "--system-prompt-snapshot", "--tools", "--verbose", "--version"),
}
"""Flags of the CLI that were reviewed: they permit nothing more than without them."""


def test_every_cli_flag_is_classified(world: Path) -> None:
    done = subprocess.run(
        [real_cli(), "--help"], env={"HOME": str(world)}, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    options = done.stdout.partition("\nOptions:\n")[2].partition("\nCommands:\n")[0]
    heads = re.findall(r"^  (-\S.*?)(?:  |$)", options, re.MULTILINE)
    flags = {flag for head in heads for flag in re.findall(r"--[A-Za-z][A-Za-z-]*", head)}
    assert {"--settings", "--resume", "--model", "--allowedTools"} <= flags
    harmless = {flag for flag in flags if widening([flag, "auto"], "acceptEdits") is None}
    assert harmless == SHAPING


PRIVILEGES = {
    "permissionMode": "bypassPermissions",
    "hooks": '{"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}',
    "mcpServers": '[{"trap": {"command": "true"}}]',
}


@pytest.mark.req("S1-45")
def test_privileged_definition_is_refused_in_untrusted_folder(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(says("never"))
    for wish, value in PRIVILEGES.items():
        path = define(hocket.cwd, "eager", **{wish: value})
        refused = hocket("run", "eager", "-p", "hello", "--json")
        assert (refused.returncode, refused.stdout) == (4, "")
        assert f"hocket trust {path}\n" in refused.stderr
    assert (hocket.runs(), claude.model.bodies) == ([], [])


@pytest.mark.req("S1-45", "S2-62")
def test_definition_permission_mode_applies_in_listed_folder(cli: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    define(hocket.cwd, "eager", **PRIVILEGES)
    trust(home, hocket.cwd)
    cli.use_script({"when": {"agent": "eager"}, "do": [asks_to("sh -c 'echo x > made'"), {"say": "thank you"}]})
    output = run(hocket, "eager", "-p", "hello")
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "thank you")
    assert output.of("session")[0]["permission_mode"] == "bypassPermissions"
    assert (hocket.cwd / "made").exists() == cli.is_real
