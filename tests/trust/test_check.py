"""What of a project's needs approval: the whole table of it, links in both directions, and what is shown before."""

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


class Ground(AgentWorld):
    """A agents in which things are looked up, refused and approved."""

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

    def whole(self) -> tuple[Catalog, Approvals]:
        approvals = self.approvals()
        return discover(str(self.project), self.env, str(self.home), approvals.config, approvals), approvals

    def needs(self, name: str) -> list[str]:
        catalog, config = self.whole()
        return needs(catalog.ranked[name][0], catalog, config, self.env)[0]

    def find(self, name: str) -> Agent:
        return self.find_in(self.project, name)

    def find_in(self, cwd: Path, name: str) -> Agent:
        approvals = self.approvals()
        catalog = partial(discover, str(cwd), self.env, str(self.home), approvals.config, approvals)
        found = resolve(name, str(cwd), self.env, approvals.config, catalog)
        return authorize(found, str(cwd), approvals, catalog)

    def user_says(self, text: str) -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def approve(self, path: Path) -> None:
        approvals_file.approve(str(self.home), FILE, str(path.resolve()), path.read_bytes())

    def approve_folder(self, folder: Path) -> None:
        for one in explain_folder(str(folder), self.approvals()):
            approvals_file.approve(str(self.home), FOLDER, one.path, one.content)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path.resolve())


def agrees(ground: Ground, name: str, words: list[str]) -> None:
    """What is listed as needed and what is refused at the start is the same."""
    assert ground.needs(name) == words
    if not words:
        ground.find(name)
        return
    with pytest.raises(NotTrusted) as caught:
        ground.find(name)
    assert caught.value.exit_code == 4
    for word in words:
        assert word.removeprefix("asks for ") in caught.value.message


# --- What a definition asks for -----------------------------------------------------------------------------


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
        ("acceptEdits", {"permissionMode": "whatever"}, []),
        ("acceptEdits", {"hooks": HOOKS}, ["asks for hooks (Stop)"]),
        ("acceptEdits", {"mcpServers": SERVERS}, ["asks for MCP servers (trap)"]),
        ("acceptEdits", {"mcpServers": ["named"]}, ["asks for MCP servers (named)"]),
        ("auto", {"hooks": HOOKS, "mcpServers": SERVERS}, ["asks for hooks (Stop)", "asks for MCP servers (trap)"]),
    ],
)
def test_a_project_s_definition_needs_approval_for_what_the_user_does_not_give(
    ground: Ground, default: str, fields: dict[str, Any], words: list[str]
) -> None:
    ground.user_says(f'[claude]\npermission_mode = "{default}"')
    write(ground.locals, "eager", **fields)
    agrees(ground, "eager", words)


@pytest.mark.parametrize("folder", ["globals", "library"])
def test_what_is_the_user_s_own_needs_none(ground: Ground, folder: str) -> None:
    asking: dict[str, Any] = {"hooks": HOOKS, "mcpServers": SERVERS, "permissionMode": "bypassPermissions"}
    write(getattr(ground, folder), "eager", **asking)
    agrees(ground, "eager", [])


def test_a_project_cannot_raise_what_the_user_gives(ground: Ground) -> None:
    ground.user_says('[claude]\npermission_mode = "default"')
    ground.config('[claude]\npermission_mode = "acceptEdits"\n')
    write(ground.locals, "eager", permissionMode="acceptEdits")
    assert ground.needs("eager") == ["asks for permission mode acceptEdits"]


# --- Whose place it takes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["globals", "library"])
def test_a_project_s_definition_must_not_hide_the_user_s_own(ground: Ground, folder: str) -> None:
    own = write(getattr(ground, folder), "reviewer")
    write(ground.locals, "reviewer")
    agrees(ground, "reviewer", [f"replaces your own agent {own}"])


def test_a_config_that_somebody_wrote_must_not_be_hidden_either(ground: Ground) -> None:
    own = ground.agent_config("mine")
    write(ground.locals, "mine")
    agrees(ground, "mine", [f"replaces your own agent {own}"])


def test_a_config_that_hocket_brought_along_may_be_hidden(ground: Ground) -> None:
    for default in DEFAULTS:
        ground.agent_config(default["name"], **default)
        write(ground.locals, default["name"])
        agrees(ground, default["name"], [])


@pytest.mark.parametrize("name", ["claude", "codex", "cursor-agent", "gemini"])
def test_the_name_of_a_cli_means_that_cli(ground: Ground, name: str) -> None:
    write(ground.locals, name)
    agrees(ground, name, [f"replaces the {name} CLI"])


def test_a_name_that_the_user_has_given_means_what_the_user_meant(ground: Ground) -> None:
    ground.user_says('[agents.quick]\nargs = ["--x"]')
    write(ground.locals, "quick")
    agrees(ground, "quick", [f"replaces your own alias in {ground.home}/config.toml"])


def test_a_user_s_alias_of_a_name_does_not_open_it_to_projects(ground: Ground) -> None:
    own = write(ground.globals, "reviewer")
    ground.user_says('[agents.reviewer]\nmodel = "haiku"\n[agents.swift]\npath = "reviewer"')
    write(ground.locals, "reviewer")
    for name in ("reviewer", "swift"):
        agrees(ground, name, [f"replaces your own agent {own}"])


def test_a_path_hides_nobody(ground: Ground) -> None:
    write(ground.globals, "reviewer")
    path = write(ground.locals, "reviewer")
    assert ground.find(str(path)).definition is not None
    ground.user_says(f'[agents.theirs]\npath = "{path}"')
    agrees(ground, "theirs", [])


def test_one_project_may_hide_what_another_has(ground: Ground) -> None:
    (ground.project / ".git").mkdir()
    write(ground.project / "sub/.claude/agents", "reviewer")
    write(ground.locals, "reviewer")
    found = ground.find_in(ground.project / "sub", "reviewer")
    assert found.cwd == str(ground.project / "sub")


# --- Names that a project's configuration gives -------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("global", "replaces your own agent"),
        ("alias", "replaces your own alias"),
        ("nothing", None),
    ],
)
@pytest.mark.parametrize("says", ['path = "claude"', 'model = "haiku"'], ids=["another", "overlay"])
def test_a_project_s_alias_must_not_change_what_is_the_user_s(
    ground: Ground, own: str, words: str | None, says: str
) -> None:
    if own == "global":
        write(ground.globals, "reviewer")
    elif own == "alias":
        ground.user_says('[agents.reviewer]\npath = "claude"')
        ground.program("reviewer")
    else:
        write(ground.locals, "reviewer")
    ground.config(f"[agents.reviewer]\n{says}\n")
    found = ground.needs("reviewer")
    assert [one.startswith(words) for one in found] == [True] if words else found == []
    if words is None:
        ground.find("reviewer")
        return
    with pytest.raises(NotTrusted, match=words) as caught:
        ground.find("reviewer")
    assert (caught.value.hint or "").endswith(f"hocket trust {ground.project}")
    ground.approve_folder(ground.project)
    agrees(ground, "reviewer", [])


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ('permission_mode = "plan"', []),
        ('permission_mode = "bypassPermissions"', ["asks for permission mode bypassPermissions"]),
        ('allowed_tools = "Bash"', ["asks for allowed_tools (Bash), which it may then use without asking"]),
    ],
)
def test_a_project_s_alias_needs_its_folder_s_approval(ground: Ground, says: str, words: list[str]) -> None:
    path = ground.config(f'[agents.eager]\npath = "claude"\n{says}\n')
    agrees(ground, "eager", words)
    ground.approve_folder(ground.project)
    agrees(ground, "eager", [])
    path.write_text(path.read_text() + "\n")
    agrees(ground, "eager", words)


def test_a_project_s_alias_of_a_cli_s_name_needs_approval(ground: Ground) -> None:
    ground.config('[agents.claude]\npath = "/bin/true"\n')
    agrees(ground, "claude", ["replaces the claude CLI"])


def test_a_plain_program_has_no_use_for_a_permission_mode(ground: Ground) -> None:
    ground.config('[agents.build]\npath = "/bin/true"\npermission_mode = "bypassPermissions"\n')
    agrees(ground, "build", [])


@pytest.mark.parametrize("says", ['path = "codex"\n', ""], ids=["another", "overlay"])
def test_an_alias_of_another_cli_has_use_for_a_permission_mode(ground: Ground, says: str) -> None:
    ground.program("codex")
    name = "smart" if says else "codex"
    ground.config(f'[agents.{name}]\n{says}permission_mode = "bypassPermissions"\n')
    asked = "asks for permission mode bypassPermissions"
    agrees(ground, name, [asked] if says else [asked, "replaces the codex CLI"])
    ground.approve_folder(ground.project)
    agrees(ground, name, [])


def test_an_alias_for_a_project_s_definition_needs_what_that_needs(ground: Ground) -> None:
    write(ground.locals, "eager", hooks=HOOKS)
    for number, target in enumerate(("eager", str(ground.locals / "eager"), "./.claude/agents/eager.md")):
        ground.user_says(f'[agents.a{number}]\npath = "{target}"')
        agrees(ground, f"a{number}", ["asks for hooks (Stop)"])
    ground.approve(ground.locals / "eager.md")
    agrees(ground, "a2", [])


def test_a_mode_that_an_alias_gives_stands_above_the_definition_s(ground: Ground) -> None:
    write(ground.locals, "eager", permissionMode="bypassPermissions")
    ground.user_says('[agents.calm]\npath = "eager"\npermission_mode = "plan"')
    agrees(ground, "calm", [])
    agrees(ground, "eager", ["asks for permission mode bypassPermissions"])


# --- Approvals ----------------------------------------------------------------------------------------------


def test_an_approved_definition_runs_until_a_byte_of_it_changes(ground: Ground) -> None:
    write(ground.globals, "reviewer")
    path = write(ground.locals, "reviewer", hooks=HOOKS)
    assert len(ground.needs("reviewer")) == 2
    ground.approve(path)
    agrees(ground, "reviewer", [])
    path.write_text(path.read_text() + " ")
    with pytest.raises(NotTrusted, match="has changed since you approved it") as caught:
        ground.find("reviewer")
    assert (caught.value.hint or "").endswith(f": hocket trust {path}")


def test_a_folder_s_approval_is_none_of_its_definitions(ground: Ground) -> None:
    (ground.project / ".mcp.json").write_text("{}")
    write(ground.locals, "eager", hooks=HOOKS)
    ground.approve_folder(ground.project)
    assert ground.approvals().trusts(str(ground.project))
    assert ground.needs("eager") == ["asks for hooks (Stop)"]


def test_a_listed_folder_s_definitions_need_no_approval(ground: Ground) -> None:
    write(ground.globals, "eager")
    write(ground.locals, "eager", hooks=HOOKS)
    ground.user_says(f'[trust]\nfolders = ["{ground.project}"]')
    agrees(ground, "eager", [])


@pytest.mark.parametrize("named", [None, "eager"], ids=["by name", "by path"])
def test_what_was_read_is_what_has_to_be_approved(ground: Ground, named: str | None) -> None:
    path = write(ground.locals, "eager", hooks=HOOKS)
    approved = path.read_bytes()
    ground.approve(path)
    config = ground.approvals()
    check_definition(read_definition(str(path), named), str(ground.project), config)
    write(ground.locals, "eager", hooks=HOOKS, permissionMode="bypassPermissions")
    read_meanwhile = read_definition(str(path), named)
    path.write_bytes(approved)
    with pytest.raises(NotTrusted):
        check_definition(read_meanwhile, str(ground.project), config)


# --- Links --------------------------------------------------------------------------------------------------


def test_a_link_to_the_user_s_own_file_is_the_user_s(ground: Ground) -> None:
    own = write(ground.globals, "eager", hooks=HOOKS)
    ground.locals.mkdir(parents=True)
    (ground.locals / "eager.md").symlink_to(own)
    agrees(ground, "eager", [])
    assert ground.find(str(ground.locals / "eager")).definition is not None


def test_a_link_must_not_choose_between_two_files_of_the_user_s(ground: Ground) -> None:
    safe = write(ground.globals, "deploy")
    bold = write(ground.library, "deploy", permissionMode="bypassPermissions")
    ground.locals.mkdir(parents=True)
    (ground.locals / "deploy.md").symlink_to(bold)
    agrees(ground, "deploy", [f"replaces your own agent {safe}"])


def test_a_user_who_links_to_a_project_s_file_has_chosen_it(ground: Ground) -> None:
    theirs = write(ground.locals, "eager", hooks=HOOKS)
    ground.globals.mkdir(parents=True)
    (ground.globals / "eager.md").symlink_to(theirs)
    agrees(ground, "eager", [])


def test_a_link_that_is_turned_elsewhere_asks_again(ground: Ground, tmp_path: Path) -> None:
    first = write(tmp_path / "one", "eager", hooks=HOOKS)
    second = write(tmp_path / "two", "eager", hooks=HOOKS)
    ground.locals.mkdir(parents=True)
    link = ground.locals / "eager.md"
    link.symlink_to(first)
    ground.approve(link)
    agrees(ground, "eager", [])
    link.unlink()
    link.symlink_to(second)
    agrees(ground, "eager", ["asks for hooks (Stop)"])


# --- What is shown before -----------------------------------------------------------------------------------


def test_an_explanation_tells_what_a_definition_asks_for_and_how_it_differs(ground: Ground) -> None:
    own = write(ground.globals, "eager")
    path = write(ground.locals, "eager", hooks=HOOKS, mcpServers=[*SERVERS, "named"], permissionMode="auto")
    catalog, config = ground.whole()
    (needed,) = needed_approvals(catalog.ranked["eager"][0], catalog, config, ground.env)
    found = explain_file(str(path), config, needed.reasons)
    assert (found.kind, found.path, found.state, found.content) == (FILE, str(path), NEW, path.read_bytes())
    assert dict(found.asks) == {
        "permission mode auto": ("yours is acceptEdits",),
        "hooks": ("Stop: true",),
        "MCP servers": ("trap: sh -c x", "named"),
    }
    assert (found.replaced, found.against) == (f"your own agent {own}", str(own))
    assert '+permissionMode: "auto"' in found.diff


def test_a_change_is_shown_against_what_was_approved(ground: Ground) -> None:
    write(ground.globals, "eager")
    path = write(ground.locals, "eager", hooks=HOOKS)
    ground.approve(path)
    assert explain_file(str(path), ground.approvals()).state == APPROVED
    path.write_text(path.read_text() + "One more line.\n")
    found = explain_file(str(path), ground.approvals())
    assert (found.state, found.against, found.diff[-1]) == (CHANGED, "what you approved", "+One more line.")
    assert sum(line.startswith(("+", "-")) for line in found.diff) == 3


def test_a_folder_is_explained_with_all_that_it_starts(ground: Ground) -> None:
    (ground.project / ".claude").mkdir()
    settings = {
        "hooks": {"SessionStart": [{"matcher": "new", "hooks": [{"type": "command", "command": "touch x"}]}]},
        "permissions": {"allow": ["Bash"]},
        "apiKeyHelper": "./key.sh",
    }
    (ground.project / ".claude/settings.json").write_text(json.dumps(settings))
    servers = {"a": {"command": "sh", "args": ["-c", "x"]}, "b": {"type": "http", "url": "http://x"}}
    (ground.project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    ground.config(
        '[claude]\npermission_mode = "auto"\n[agents.x]\npath = "claude"\nargs = ["--settings", "s"]\n'
        '[chains.c]\nsteps = [{agent = "x"}]\nuntil = "make test"\n'
    )
    write(ground.locals, "eager", hooks=HOOKS)
    (found,) = explain_folder(str(ground.project), ground.approvals())
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


def test_a_folder_whose_files_make_no_sense_is_explained_all_the_same(ground: Ground) -> None:
    (ground.project / ".claude").mkdir()
    (ground.project / ".claude/settings.json").write_text('{"hooks": [1, {"x": "y"}], "env": 7}')
    (ground.project / ".claude/settings.local.json").write_text('{"hooks": {"Stop": [1, {"hooks": 2}]}}')
    (ground.project / ".mcp.json").write_text("not json")
    (ground.project / "forge").mkdir()
    (ground.project / "forge/chains.json").write_text("{")
    config = Approvals(Config(home=str(ground.home)))
    (found,) = explain_folder(str(ground.project), config)
    asks = dict(found.asks)
    assert asks[".claude/settings.local.json: hooks"] == ("Stop: 1", 'Stop: {"hooks": 2}')
    assert ".mcp.json: cannot be read as settings" in asks
    assert "forge/chains.json: cannot be read" in asks


def test_every_folder_up_to_the_root_is_explained(ground: Ground) -> None:
    (ground.project / ".git").mkdir()
    (ground.project / "hocket.toml").write_text("")
    below = ground.project / "a/b"
    below.mkdir(parents=True)
    (below / ".mcp.json").write_text("{}")
    assert [one.path for one in explain_folder(str(below), ground.approvals())] == [str(below), str(ground.project)]


# --- Words that a project would take away -------------------------------------------------------------------


def written(folder: Path, file: str, name: str, more: str = "") -> Path:
    path = folder / f"{file}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: d\n{more}\n---\nBody\n")
    return path


@pytest.mark.parametrize("theirs", ["Code  Reviewer", "Code-Reviewer"])
def test_an_address_of_the_user_s_leads_to_no_project_s_agent_unapproved(ground: Ground, theirs: str) -> None:
    mine = written(ground.globals, "mine", "Code Reviewer")
    written(ground.locals, "theirs", theirs)
    try:
        found = ground.find("Code-Reviewer").definition
    except NotTrusted:
        return
    assert found is not None
    assert found.path == str(mine)


def test_no_address_of_a_project_s_agent_is_that_of_a_cli(ground: Ground) -> None:
    written(ground.locals, "sly", "claude!")
    assert ground.find("claude").definition is None


def test_a_project_s_name_for_an_address_of_the_user_s_needs_approval(ground: Ground) -> None:
    written(ground.globals, "mine", "Code Reviewer")
    (ground.project / "hocket.toml").write_text('[agents.Code-Reviewer]\npath = "/bin/echo"\n')
    with pytest.raises(NotTrusted, match="your own agent"):
        ground.find("Code-Reviewer")


def test_a_path_that_was_typed_means_that_file_whatever_a_project_calls_by_it(ground: Ground) -> None:
    mine = written(ground.globals, "rev", "rev")
    written(ground.locals, "rev", "rev")
    (ground.project / "hocket.toml").write_text(f'[agents."{mine}"]\npath = "./.claude/agents/rev"\n')
    found = ground.find(str(mine)).definition
    assert found is not None
    assert found.path == str(mine)


def test_a_project_cannot_lead_the_user_s_own_name_elsewhere(ground: Ground) -> None:
    shop = ground.project.parent / "shop"
    written(shop / ".claude" / "agents", "rev", "rev")
    ground.user_says(
        f'[projects]\nshop = "{shop}"\n[agents.r]\nproject = "shop"\nagent = "rev"\n'
        'permission_mode = "bypassPermissions"\n'
    )
    evil = ground.project / "evil"
    written(evil / ".claude" / "agents", "rev", "rev")
    (ground.project / "hocket.toml").write_text(f'[projects]\nshop = "{evil}"\n')
    found = ground.find("r").definition
    assert found is not None
    assert found.path == str(shop / ".claude" / "agents" / "rev.md")


def test_what_the_user_s_alias_may_do_is_not_for_a_project_s_agent_of_its_target_s_name(ground: Ground) -> None:
    ground.program("mytool")
    ground.user_says('[agents.x]\npath = "mytool"\npermission_mode = "bypassPermissions"\n')
    assert ground.find("x").provider == "executable"
    written(ground.locals, "mytool", "mytool")
    agrees(ground, "x", [f"replaces your own agent {ground.home / 'config.toml'}"])


def test_a_list_of_servers_is_told_approved_and_void_after_a_change(ground: Ground) -> None:
    path = written(ground.locals, "a", "a", "allowedMcpServers: [mine]")
    agrees(ground, "a", ["asks for MCP servers (mine)"])
    ground.approve(path)
    agrees(ground, "a", [])
    path.write_text(path.read_text().replace("[mine]", "[other]"))
    agrees(ground, "a", ["asks for MCP servers (other)"])
    path.write_text(path.read_text().replace("[other]", "[]"))
    agrees(ground, "a", [])


def test_an_alias_that_cannot_be_typed_runs_by_its_address(ground: Ground) -> None:
    ground.program("tool")
    ground.user_says('[agents."my tool"]\npath = "tool"\nargs = ["-x"]\n')
    assert ground.find("my-tool").args == ("-x",)


def test_an_alias_for_an_agent_in_a_file_of_another_name_needs_what_the_agent_needs(ground: Ground) -> None:
    written(ground.locals, "bar", "foo", "hooks: {Stop: [{hooks: [{type: command, command: x}]}]}")
    ground.user_says('[agents.f]\npath = ".claude/agents/foo"\n')
    agrees(ground, "f", ["asks for hooks (Stop)"])


def test_a_link_out_of_its_folder_must_describe_an_agent(ground: Ground) -> None:
    secret = ground.user / "key"
    secret.write_text("BEGIN PRIVATE KEY\n")
    elsewhere = written(ground.user / "dotfiles", "rev", "rev")
    ground.locals.mkdir(parents=True)
    (ground.locals / "helper.md").symlink_to(secret)
    (ground.locals / "rev.md").symlink_to(elsewhere)
    with pytest.raises(SecurityError, match=r"leads to .*key, which is outside of") as caught:
        ground.find(".claude/agents/helper")
    assert "PRIVATE" not in f"{caught.value.message}{caught.value.hint}"
    assert ground.find(".claude/agents/rev").definition is not None
    (ground.locals / "bare.md").write_text("Just do it.\n")
    assert ground.find(".claude/agents/bare").definition is not None


def test_whoever_starts_something_in_a_folder_that_changed_after_its_approval_is_told(ground: Ground) -> None:
    (ground.project / ".mcp.json").write_text('{"mcpServers": {"s": {"command": "x"}}}')
    ground.approve_folder(ground.project)
    assert ground.find("claude").changed is None
    (ground.project / ".mcp.json").write_text('{"mcpServers": {"s": {"command": "y"}}}')
    found = ground.find("claude")
    assert (found.trusted, found.changed) == (False, str(ground.project))
    request = StartRequest(str(ground.project), ground.env, agent="claude", prompt="hi")
    spec = bind(request, ground.approvals().config)
    assert isinstance(spec, Spec)
    assert [f"hocket trust {ground.project}" in notice for notice in spec.notices] == [True]


def test_an_alias_for_nothing_is_a_problem_of_its_file(ground: Ground) -> None:
    ground.user_says('[agents.x]\npath = "/nowhere/x"\n[agents.y]\npath = "../gone/.claude/agents/y"\n')
    catalog, _ = ground.whole()
    told = [problem.reason for problem in catalog.problems if problem.path == str(ground.home / "config.toml")]
    assert [reason.partition(":")[0] for reason in told] == ["agent 'x'", "agent 'y'"]
