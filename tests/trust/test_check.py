"""Which definitions and folders of a project need an approval, links in both directions, and the preview."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from catalog.agent_world import AgentWorld, write

from hocket.catalog.configs import DEFAULTS
from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.catalog.files import read_definition
from hocket.catalog.resolve import resolve
from hocket.config.loading import load
from hocket.config.settings import Config
from hocket.errors import NotTrusted, SecurityError
from hocket.model import Agent, Spec
from hocket.trust import approvals as approvals_file
from hocket.trust.approvals import FILE, FOLDER, Approvals
from hocket.trust.check import authorize, check_definition, needed_approvals, needs
from hocket.trust.preview import APPROVED, CHANGED, NEW, explain_file, explain_folder
from hocket.workflows.bind import bind
from hocket.workflows.request import StartRequest

HOOKS = {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}
SERVERS = [{"trap": {"command": "sh", "args": ["-c", "x"]}}]


class TrustWorld(AgentWorld):
    """Agents that are resolved, refused and approved."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.programs = root / "bin"
        self.programs.mkdir()
        self.program("claude")
        self.env["PATH"] = f"{self.programs}:/usr/bin:/bin"

    def program(self, name: str) -> None:
        (self.programs / name).write_text("#!/bin/sh\n")
        (self.programs / name).chmod(0o755)

    def approvals(self) -> Approvals:
        return Approvals(load(str(self.project), str(self.home), self.env))

    def catalog_and_approvals(self) -> tuple[Catalog, Approvals]:
        approvals = self.approvals()
        return discover(str(self.project), self.env, str(self.home), approvals.config, approvals), approvals

    def needs(self, name: str) -> list[str]:
        catalog, config = self.catalog_and_approvals()
        return needs(catalog.ranked[name][0], catalog, config, self.env)[0]

    def find(self, name: str) -> Agent:
        return self.find_in(self.project, name)

    def find_in(self, cwd: Path, name: str) -> Agent:
        approvals = self.approvals()
        catalog = partial(discover, str(cwd), self.env, str(self.home), approvals.config, approvals)
        found = resolve(name, str(cwd), self.env, approvals.config, catalog)
        return authorize(found, str(cwd), approvals, catalog)

    def configure_user(self, text: str) -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def approve(self, path: Path) -> None:
        approvals_file.approve(str(self.home), FILE, str(path.resolve()), path.read_bytes())

    def approve_folder(self, folder: Path) -> None:
        for one in explain_folder(str(folder), self.approvals()):
            approvals_file.approve(str(self.home), FOLDER, one.path, one.content)


@pytest.fixture
def agents(tmp_path: Path) -> TrustWorld:
    return TrustWorld(tmp_path.resolve())


def check_needs(agents: TrustWorld, name: str, words: list[str]) -> None:
    """Check that the listed needs of an agent are the reasons for which its start is refused."""
    assert agents.needs(name) == words
    if not words:
        agents.find(name)
        return
    with pytest.raises(NotTrusted) as caught:
        agents.find(name)
    assert caught.value.exit_code == 4
    for word in words:
        assert word.removeprefix("asks for ") in caught.value.message


# --- Privileges of a definition -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "fields", "words"),
    [
        ("acceptEdits", {}, []),
        ("acceptEdits", {"tools": "Read"}, []),
        ("acceptEdits", {"tools": "Bash, Write", "model": "opus", "maxTurns": 3, "memory": "project"}, []),
        ("acceptEdits", {"permissionMode": "plan"}, []),
        ("acceptEdits", {"permissionMode": "default"}, []),
        ("acceptEdits", {"permissionMode": "acceptEdits"}, []),
        ("acceptEdits", {"permissionMode": "auto"}, ["asks for permission mode auto"]),
        ("acceptEdits", {"permissionMode": "bypassPermissions"}, ["asks for permission mode bypassPermissions"]),
        ("plan", {"permissionMode": "plan"}, []),
        ("plan", {"permissionMode": "dontAsk"}, ["asks for permission mode dontAsk"]),
        ("default", {"permissionMode": "manual"}, []),
        ("default", {"permissionMode": "acceptEdits"}, ["asks for permission mode acceptEdits"]),
        ("bypassPermissions", {"permissionMode": "bypassPermissions"}, []),
        ("acceptEdits", {"permissionMode": "unknown"}, []),
        ("acceptEdits", {"hooks": HOOKS}, ["asks for hooks (Stop)"]),
        ("acceptEdits", {"mcpServers": SERVERS}, ["asks for MCP servers (trap)"]),
        ("acceptEdits", {"mcpServers": ["named"]}, ["asks for MCP servers (named)"]),
        ("auto", {"hooks": HOOKS, "mcpServers": SERVERS}, ["asks for hooks (Stop)", "asks for MCP servers (trap)"]),
    ],
)
def test_project_definition_needs_approval_for_its_privileges(
    agents: TrustWorld, default: str, fields: dict[str, Any], words: list[str]
) -> None:
    agents.configure_user(f'[claude]\npermission_mode = "{default}"')
    write(agents.locals, "eager", **fields)
    check_needs(agents, "eager", words)


@pytest.mark.parametrize("folder", ["globals", "library"])
def test_user_definition_needs_no_approval(agents: TrustWorld, folder: str) -> None:
    asking: dict[str, Any] = {"hooks": HOOKS, "mcpServers": SERVERS, "permissionMode": "bypassPermissions"}
    write(getattr(agents, folder), "eager", **asking)
    check_needs(agents, "eager", [])


def test_project_configuration_cannot_raise_permission_ceiling(agents: TrustWorld) -> None:
    agents.configure_user('[claude]\npermission_mode = "default"')
    agents.config('[claude]\npermission_mode = "acceptEdits"\n')
    write(agents.locals, "eager", permissionMode="acceptEdits")
    assert agents.needs("eager") == ["asks for permission mode acceptEdits"]


# --- Hidden definitions and CLIs ----------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["globals", "library"])
def test_project_definition_must_not_hide_user_definition(agents: TrustWorld, folder: str) -> None:
    own = write(getattr(agents, folder), "reviewer")
    write(agents.locals, "reviewer")
    check_needs(agents, "reviewer", [f"replaces your own agent {own}"])


def test_project_definition_must_not_hide_user_config(agents: TrustWorld) -> None:
    own = agents.agent_config("mine")
    write(agents.locals, "mine")
    check_needs(agents, "mine", [f"replaces your own agent {own}"])


def test_project_definition_may_hide_default_config(agents: TrustWorld) -> None:
    for default in DEFAULTS:
        agents.agent_config(default["name"], **default)
        write(agents.locals, default["name"])
        check_needs(agents, default["name"], [])


@pytest.mark.parametrize("name", ["claude", "codex", "cursor-agent", "gemini"])
def test_project_definition_must_not_hide_cli(agents: TrustWorld, name: str) -> None:
    write(agents.locals, name)
    check_needs(agents, name, [f"replaces the {name} CLI"])


def test_project_definition_must_not_hide_user_alias(agents: TrustWorld) -> None:
    agents.configure_user('[agents.quick]\nargs = ["--x"]')
    write(agents.locals, "quick")
    check_needs(agents, "quick", [f"replaces your own alias in {agents.home}/config.toml"])


def test_aliased_user_definition_stays_protected_from_projects(agents: TrustWorld) -> None:
    own = write(agents.globals, "reviewer")
    agents.configure_user('[agents.reviewer]\nmodel = "haiku"\n[agents.swift]\npath = "reviewer"')
    write(agents.locals, "reviewer")
    for name in ("reviewer", "swift"):
        check_needs(agents, name, [f"replaces your own agent {own}"])


def test_definition_by_path_hides_no_agent(agents: TrustWorld) -> None:
    write(agents.globals, "reviewer")
    path = write(agents.locals, "reviewer")
    assert agents.find(str(path)).definition is not None
    agents.configure_user(f'[agents.theirs]\npath = "{path}"')
    check_needs(agents, "theirs", [])


def test_nested_project_may_hide_outer_definition(agents: TrustWorld) -> None:
    (agents.project / ".git").mkdir()
    write(agents.project / "sub/.claude/agents", "reviewer")
    write(agents.locals, "reviewer")
    found = agents.find_in(agents.project / "sub", "reviewer")
    assert found.cwd == str(agents.project / "sub")


# --- Aliases of a project -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("global", "replaces your own agent"),
        ("alias", "replaces your own alias"),
        ("nothing", None),
    ],
)
@pytest.mark.parametrize("says", ['path = "claude"', 'model = "haiku"'], ids=["another", "overlay"])
def test_project_alias_must_not_replace_user_agent(agents: TrustWorld, own: str, words: str | None, says: str) -> None:
    if own == "global":
        write(agents.globals, "reviewer")
    elif own == "alias":
        agents.configure_user('[agents.reviewer]\npath = "claude"')
        agents.program("reviewer")
    else:
        write(agents.locals, "reviewer")
    agents.config(f"[agents.reviewer]\n{says}\n")
    found = agents.needs("reviewer")
    assert [one.startswith(words) for one in found] == [True] if words else found == []
    if words is None:
        agents.find("reviewer")
        return
    with pytest.raises(NotTrusted, match=words) as caught:
        agents.find("reviewer")
    assert (caught.value.hint or "").endswith(f"hocket trust {agents.project}")
    agents.approve_folder(agents.project)
    check_needs(agents, "reviewer", [])


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ('permission_mode = "plan"', []),
        ('permission_mode = "bypassPermissions"', ["asks for permission mode bypassPermissions"]),
        ('allowed_tools = "Bash"', ["asks for allowed_tools (Bash), which it may then use without asking"]),
    ],
)
def test_project_alias_needs_folder_approval(agents: TrustWorld, says: str, words: list[str]) -> None:
    path = agents.config(f'[agents.eager]\npath = "claude"\n{says}\n')
    check_needs(agents, "eager", words)
    agents.approve_folder(agents.project)
    check_needs(agents, "eager", [])
    path.write_text(path.read_text() + "\n")
    check_needs(agents, "eager", words)


def test_project_alias_with_cli_name_needs_approval(agents: TrustWorld) -> None:
    agents.config('[agents.claude]\npath = "/bin/true"\n')
    check_needs(agents, "claude", ["replaces the claude CLI"])


def test_permission_mode_of_program_alias_needs_no_approval(agents: TrustWorld) -> None:
    agents.config('[agents.build]\npath = "/bin/true"\npermission_mode = "bypassPermissions"\n')
    check_needs(agents, "build", [])


@pytest.mark.parametrize("says", ['path = "codex"\n', ""], ids=["another", "overlay"])
def test_permission_mode_of_codex_alias_needs_approval(agents: TrustWorld, says: str) -> None:
    agents.program("codex")
    name = "smart" if says else "codex"
    agents.config(f'[agents.{name}]\n{says}permission_mode = "bypassPermissions"\n')
    asked = "asks for permission mode bypassPermissions"
    check_needs(agents, name, [asked] if says else [asked, "replaces the codex CLI"])
    agents.approve_folder(agents.project)
    check_needs(agents, name, [])


def test_alias_needs_approvals_of_its_project_definition(agents: TrustWorld) -> None:
    write(agents.locals, "eager", hooks=HOOKS)
    for number, target in enumerate(("eager", str(agents.locals / "eager"), "./.claude/agents/eager.md")):
        agents.configure_user(f'[agents.a{number}]\npath = "{target}"')
        check_needs(agents, f"a{number}", ["asks for hooks (Stop)"])
    agents.approve(agents.locals / "eager.md")
    check_needs(agents, "a2", [])


def test_alias_permission_mode_overrides_definition(agents: TrustWorld) -> None:
    write(agents.locals, "eager", permissionMode="bypassPermissions")
    agents.configure_user('[agents.calm]\npath = "eager"\npermission_mode = "plan"')
    check_needs(agents, "calm", [])
    check_needs(agents, "eager", ["asks for permission mode bypassPermissions"])


# --- Approvals ----------------------------------------------------------------------------------------------


def test_approved_definition_runs_until_it_changes(agents: TrustWorld) -> None:
    write(agents.globals, "reviewer")
    path = write(agents.locals, "reviewer", hooks=HOOKS)
    assert len(agents.needs("reviewer")) == 2
    agents.approve(path)
    check_needs(agents, "reviewer", [])
    path.write_text(path.read_text() + " ")
    with pytest.raises(NotTrusted, match="has changed since you approved it") as caught:
        agents.find("reviewer")
    assert (caught.value.hint or "").endswith(f": hocket trust {path}")


def test_folder_approval_does_not_cover_its_definitions(agents: TrustWorld) -> None:
    (agents.project / ".mcp.json").write_text("{}")
    write(agents.locals, "eager", hooks=HOOKS)
    agents.approve_folder(agents.project)
    assert agents.approvals().trusts(str(agents.project))
    assert agents.needs("eager") == ["asks for hooks (Stop)"]


def test_definitions_in_listed_folder_need_no_approval(agents: TrustWorld) -> None:
    write(agents.globals, "eager")
    write(agents.locals, "eager", hooks=HOOKS)
    agents.configure_user(f'[trust]\nfolders = ["{agents.project}"]')
    check_needs(agents, "eager", [])


@pytest.mark.parametrize("named", [None, "eager"], ids=["by name", "by path"])
def test_approval_is_checked_against_content_as_read(agents: TrustWorld, named: str | None) -> None:
    path = write(agents.locals, "eager", hooks=HOOKS)
    approved = path.read_bytes()
    agents.approve(path)
    config = agents.approvals()
    check_definition(read_definition(str(path), named), str(agents.project), config)
    write(agents.locals, "eager", hooks=HOOKS, permissionMode="bypassPermissions")
    read_meanwhile = read_definition(str(path), named)
    path.write_bytes(approved)
    with pytest.raises(NotTrusted):
        check_definition(read_meanwhile, str(agents.project), config)


# --- Links --------------------------------------------------------------------------------------------------


def test_link_to_user_definition_needs_no_approval(agents: TrustWorld) -> None:
    own = write(agents.globals, "eager", hooks=HOOKS)
    agents.locals.mkdir(parents=True)
    (agents.locals / "eager.md").symlink_to(own)
    check_needs(agents, "eager", [])
    assert agents.find(str(agents.locals / "eager")).definition is not None


def test_project_link_must_not_replace_user_definition(agents: TrustWorld) -> None:
    safe = write(agents.globals, "deploy")
    bold = write(agents.library, "deploy", permissionMode="bypassPermissions")
    agents.locals.mkdir(parents=True)
    (agents.locals / "deploy.md").symlink_to(bold)
    check_needs(agents, "deploy", [f"replaces your own agent {safe}"])


def test_user_link_to_project_definition_needs_no_approval(agents: TrustWorld) -> None:
    theirs = write(agents.locals, "eager", hooks=HOOKS)
    agents.globals.mkdir(parents=True)
    (agents.globals / "eager.md").symlink_to(theirs)
    check_needs(agents, "eager", [])


def test_redirected_link_needs_new_approval(agents: TrustWorld, tmp_path: Path) -> None:
    first = write(tmp_path / "one", "eager", hooks=HOOKS)
    second = write(tmp_path / "two", "eager", hooks=HOOKS)
    agents.locals.mkdir(parents=True)
    link = agents.locals / "eager.md"
    link.symlink_to(first)
    agents.approve(link)
    check_needs(agents, "eager", [])
    link.unlink()
    link.symlink_to(second)
    check_needs(agents, "eager", ["asks for hooks (Stop)"])


# --- Preview ------------------------------------------------------------------------------------------------


def test_definition_preview_lists_privileges_and_difference(agents: TrustWorld) -> None:
    own = write(agents.globals, "eager")
    path = write(agents.locals, "eager", hooks=HOOKS, mcpServers=[*SERVERS, "named"], permissionMode="auto")
    catalog, config = agents.catalog_and_approvals()
    (needed,) = needed_approvals(catalog.ranked["eager"][0], catalog, config, agents.env)
    found = explain_file(str(path), config, needed.reasons)
    assert (found.kind, found.path, found.state, found.content) == (FILE, str(path), NEW, path.read_bytes())
    assert dict(found.asks) == {
        "permission mode auto": ("yours is acceptEdits",),
        "hooks": ("Stop: true",),
        "MCP servers": ("trap: sh -c x", "named"),
    }
    assert (found.replaced, found.against) == (f"your own agent {own}", str(own))
    assert '+permissionMode: "auto"' in found.diff


def test_changed_definition_is_compared_with_approved_content(agents: TrustWorld) -> None:
    write(agents.globals, "eager")
    path = write(agents.locals, "eager", hooks=HOOKS)
    agents.approve(path)
    assert explain_file(str(path), agents.approvals()).state == APPROVED
    path.write_text(path.read_text() + "One more line.\n")
    found = explain_file(str(path), agents.approvals())
    assert (found.state, found.against, found.diff[-1]) == (CHANGED, "what you approved", "+One more line.")
    assert sum(line.startswith(("+", "-")) for line in found.diff) == 3


def test_folder_preview_lists_all_its_privileges(agents: TrustWorld) -> None:
    (agents.project / ".claude").mkdir()
    settings = {
        "hooks": {"SessionStart": [{"matcher": "new", "hooks": [{"type": "command", "command": "touch x"}]}]},
        "permissions": {"allow": ["Bash"]},
        "apiKeyHelper": "./key.sh",
    }
    (agents.project / ".claude/settings.json").write_text(json.dumps(settings))
    servers = {"a": {"command": "sh", "args": ["-c", "x"]}, "b": {"type": "http", "url": "http://x"}}
    (agents.project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    agents.config(
        '[claude]\npermission_mode = "auto"\n[agents.x]\npath = "claude"\nargs = ["--settings", "s"]\n'
        '[chains.c]\nsteps = [{agent = "x"}]\nuntil = "make test"\n'
    )
    write(agents.locals, "eager", hooks=HOOKS)
    (found,) = explain_folder(str(agents.project), agents.approvals())
    asks = dict(found.asks)
    assert asks[".claude/settings.json: hooks"] == ("SessionStart (new): touch x",)
    assert asks[".claude/settings.json: permissions"] == ('allow: ["Bash"]',)
    assert asks[".claude/settings.json: apiKeyHelper"] == ("./key.sh",)
    assert asks[".mcp.json: MCP servers"] == ("a: sh -c x", "b: http://x")
    assert asks["hocket.toml: permission mode auto for every agent"] == ("yours is acceptEdits",)
    assert asks['hocket.toml: agent "x"'][0] == "stands for claude"
    assert "loads settings with hooks" in asks['hocket.toml: agent "x"'][1]
    assert asks['hocket.toml: chain "c"'] == ("gate: make test",)
    assert asks[".claude/agents/eager.md: hooks"] == ("Stop: true",)
    assert set(found.files) == {".claude/settings.json", ".mcp.json", "hocket.toml", ".claude/agents/eager.md"}


def test_folder_preview_reports_malformed_files(agents: TrustWorld) -> None:
    (agents.project / ".claude").mkdir()
    (agents.project / ".claude/settings.json").write_text('{"hooks": [1, {"x": "y"}], "env": 7}')
    (agents.project / ".claude/settings.local.json").write_text('{"hooks": {"Stop": [1, {"hooks": 2}]}}')
    (agents.project / ".mcp.json").write_text("not json")
    (agents.project / "forge").mkdir()
    (agents.project / "forge/chains.json").write_text("{")
    config = Approvals(Config(home=str(agents.home)))
    (found,) = explain_folder(str(agents.project), config)
    asks = dict(found.asks)
    assert asks[".claude/settings.local.json: hooks"] == ("Stop: 1", 'Stop: {"hooks": 2}')
    assert ".mcp.json: cannot be read as settings" in asks
    assert "forge/chains.json: cannot be read" in asks


def test_preview_includes_folders_up_to_root(agents: TrustWorld) -> None:
    (agents.project / ".git").mkdir()
    (agents.project / "hocket.toml").write_text("")
    below = agents.project / "a/b"
    below.mkdir(parents=True)
    (below / ".mcp.json").write_text("{}")
    assert [one.path for one in explain_folder(str(below), agents.approvals())] == [str(below), str(agents.project)]


# --- Addresses and aliases ----------------------------------------------------------------------------------


def write_definition(folder: Path, file: str, name: str, more: str = "") -> Path:
    path = folder / f"{file}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: d\n{more}\n---\nBody\n")
    return path


@pytest.mark.parametrize("theirs", ["Code  Reviewer", "Code-Reviewer"])
def test_user_agent_address_never_resolves_to_project_agent(agents: TrustWorld, theirs: str) -> None:
    mine = write_definition(agents.globals, "mine", "Code Reviewer")
    write_definition(agents.locals, "theirs", theirs)
    try:
        found = agents.find("Code-Reviewer").definition
    except NotTrusted:
        return
    assert found is not None
    assert found.path == str(mine)


def test_project_agent_address_must_not_hide_cli(agents: TrustWorld) -> None:
    write_definition(agents.locals, "sly", "claude!")
    assert agents.find("claude").definition is None


def test_project_alias_with_user_agent_address_needs_approval(agents: TrustWorld) -> None:
    write_definition(agents.globals, "mine", "Code Reviewer")
    (agents.project / "hocket.toml").write_text('[agents.Code-Reviewer]\npath = "/bin/echo"\n')
    with pytest.raises(NotTrusted, match="your own agent"):
        agents.find("Code-Reviewer")


def test_typed_path_ignores_project_alias_of_that_name(agents: TrustWorld) -> None:
    mine = write_definition(agents.globals, "rev", "rev")
    write_definition(agents.locals, "rev", "rev")
    (agents.project / "hocket.toml").write_text(f'[agents."{mine}"]\npath = "./.claude/agents/rev"\n')
    found = agents.find(str(mine)).definition
    assert found is not None
    assert found.path == str(mine)


def test_project_cannot_redirect_project_of_user_alias(agents: TrustWorld) -> None:
    shop = agents.project.parent / "shop"
    write_definition(shop / ".claude" / "agents", "rev", "rev")
    agents.configure_user(
        f'[projects]\nshop = "{shop}"\n[agents.r]\nproject = "shop"\nagent = "rev"\n'
        'permission_mode = "bypassPermissions"\n'
    )
    evil = agents.project / "evil"
    write_definition(evil / ".claude" / "agents", "rev", "rev")
    (agents.project / "hocket.toml").write_text(f'[projects]\nshop = "{evil}"\n')
    found = agents.find("r").definition
    assert found is not None
    assert found.path == str(shop / ".claude" / "agents" / "rev.md")


def test_project_definition_must_not_replace_alias_target(agents: TrustWorld) -> None:
    agents.program("mytool")
    agents.configure_user('[agents.x]\npath = "mytool"\npermission_mode = "bypassPermissions"\n')
    assert agents.find("x").provider == "executable"
    write_definition(agents.locals, "mytool", "mytool")
    check_needs(agents, "x", [f"replaces your own agent {agents.home / 'config.toml'}"])


def test_allowed_servers_change_needs_new_approval(agents: TrustWorld) -> None:
    path = write_definition(agents.locals, "a", "a", "allowedMcpServers: [mine]")
    check_needs(agents, "a", ["asks for MCP servers (mine)"])
    agents.approve(path)
    check_needs(agents, "a", [])
    path.write_text(path.read_text().replace("[mine]", "[other]"))
    check_needs(agents, "a", ["asks for MCP servers (other)"])
    path.write_text(path.read_text().replace("[other]", "[]"))
    check_needs(agents, "a", [])


def test_alias_with_space_runs_by_its_address(agents: TrustWorld) -> None:
    agents.program("tool")
    agents.configure_user('[agents."my tool"]\npath = "tool"\nargs = ["-x"]\n')
    assert agents.find("my-tool").args == ("-x",)


def test_alias_by_agent_name_needs_its_approvals(agents: TrustWorld) -> None:
    write_definition(agents.locals, "bar", "foo", "hooks: {Stop: [{hooks: [{type: command, command: x}]}]}")
    agents.configure_user('[agents.f]\npath = ".claude/agents/foo"\n')
    check_needs(agents, "f", ["asks for hooks (Stop)"])


def test_link_outside_folder_must_lead_to_definition(agents: TrustWorld) -> None:
    secret = agents.user / "key"
    secret.write_text("BEGIN PRIVATE KEY\n")
    elsewhere = write_definition(agents.user / "dotfiles", "rev", "rev")
    agents.locals.mkdir(parents=True)
    (agents.locals / "helper.md").symlink_to(secret)
    (agents.locals / "rev.md").symlink_to(elsewhere)
    with pytest.raises(SecurityError, match=r"leads to .*key, which is outside of") as caught:
        agents.find(".claude/agents/helper")
    assert "PRIVATE" not in f"{caught.value.message}{caught.value.hint}"
    assert agents.find(".claude/agents/rev").definition is not None
    (agents.locals / "bare.md").write_text("Just do it.\n")
    assert agents.find(".claude/agents/bare").definition is not None


def test_run_in_changed_approved_folder_has_notice(agents: TrustWorld) -> None:
    (agents.project / ".mcp.json").write_text('{"mcpServers": {"s": {"command": "x"}}}')
    agents.approve_folder(agents.project)
    assert agents.find("claude").changed is None
    (agents.project / ".mcp.json").write_text('{"mcpServers": {"s": {"command": "y"}}}')
    found = agents.find("claude")
    assert (found.trusted, found.changed) == (False, str(agents.project))
    request = StartRequest(str(agents.project), agents.env, agent="claude", prompt="hi")
    spec = bind(request, agents.approvals().config)
    assert isinstance(spec, Spec)
    assert [f"hocket trust {agents.project}" in notice for notice in spec.notices] == [True]


def test_alias_without_target_is_reported(agents: TrustWorld) -> None:
    agents.configure_user('[agents.x]\npath = "/nowhere/x"\n[agents.y]\npath = "../gone/.claude/agents/y"\n')
    catalog, _ = agents.catalog_and_approvals()
    reasons = [problem.reason for problem in catalog.problems if problem.path == str(agents.home / "config.toml")]
    assert [reason.partition(":")[0] for reason in reasons] == ["agent 'x'", "agent 'y'"]
