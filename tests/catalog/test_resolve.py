"""Which agent a name or a path means."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hocket.catalog.default_agents import seed
from hocket.catalog.discovery import discover
from hocket.catalog.resolve import resolve
from hocket.config.settings import AgentConfig, ChainConfig, Config, StepConfig
from hocket.errors import (
    BadDefinition,
    BadDirectory,
    ChainSyntaxError,
    HocketError,
    NotTrusted,
    ProgramNotFound,
    UsageError,
)
from hocket.model import Agent
from hocket.trust.approvals import Approvals
from hocket.trust.check import ConfiguredArguments, authorize, check_arguments

NOTHING = Config()
MISSING_HOME = "/nonexistent/home"


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def environment(*folders: Path, home: Path | None = None, **more: str) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders)), "HOME": str(home or MISSING_HOME), **more}


def found(name: str, cwd: str, env: dict[str, str], config: Config) -> Agent:
    """The agent with its rights, as binding finds it."""
    approvals = Approvals(config)
    catalog = partial(discover, cwd, env, config.home, config, approvals)
    return authorize(resolve(name, cwd, env, config, catalog), cwd, approvals, catalog)


def find(name: str, cwd: Path, *folders: Path, config: Config = NOTHING, home: Path | None = None) -> Agent:
    return found(name, str(cwd), environment(*folders, home=home), config)


def refused(name: str, cwd: Path, *folders: Path, config: Config = NOTHING) -> HocketError:
    with pytest.raises(HocketError) as caught:
        find(name, cwd, *folders, config=config)
    assert caught.value.exit_code == 2
    return caught.value


def aliases(**agents: AgentConfig) -> Config:
    return Config(agents=agents)


@pytest.mark.req("S1-02", "S1-11")
def test_name_is_looked_up_in_callers_path(tmp_path: Path) -> None:
    first, second = program(tmp_path / "1" / "tool"), program(tmp_path / "2" / "tool")
    only = program(tmp_path / "2" / "other")
    folders = (tmp_path / "1", tmp_path / "2")
    assert find("tool", tmp_path, *folders) == Agent("tool", "executable", str(first), "PATH")
    assert find("tool", tmp_path, *reversed(folders)).path == str(second)
    assert find("other", tmp_path, *folders).path == str(only)


@pytest.mark.req("S1-02")
def test_path_of_hocket_itself_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "ours" / "tool")
    monkeypatch.setenv("PATH", str(tmp_path / "ours"))
    assert isinstance(refused("tool", tmp_path, tmp_path / "theirs"), ProgramNotFound)


def test_only_executable_files_on_path_count(tmp_path: Path) -> None:
    (tmp_path / "1" / "tool").mkdir(parents=True)
    program(tmp_path / "2" / "tool", 0o644)
    right = program(tmp_path / "3" / "tool")
    assert find("tool", tmp_path, *(tmp_path / n for n in "123")).path == str(right)


def test_relative_path_entries_mean_the_callers_directory(tmp_path: Path) -> None:
    inside, here = program(tmp_path / "bin" / "tool"), program(tmp_path / "here")
    assert found("tool", str(tmp_path), environment(Path("bin")), NOTHING).path == str(inside)
    assert found("here", str(tmp_path), environment() | {"PATH": "/nowhere:"}, NOTHING).path == str(here)


def test_default_path_is_searched_without_path(tmp_path: Path) -> None:
    assert found("sh", str(tmp_path), {"HOME": MISSING_HOME}, NOTHING).path in {"/usr/bin/sh", "/bin/sh"}


@pytest.mark.req("S1-B20", "S3-04")
def test_missing_program_is_named_without_its_path(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "reviewer")
    error = refused("reviewr", tmp_path, tmp_path / "bin")
    assert isinstance(error, ProgramNotFound)
    assert error.message == "no agent 'reviewr' in this project or globally, and no program of that name"
    assert error.hint == "no agent can run here: `hocket agents`"


def test_missing_program_of_alias_says_what_to_install(tmp_path: Path) -> None:
    config = Config(agents={"smith": AgentConfig("/p/hocket.toml", "forge-smith")})
    error = refused("smith", tmp_path, tmp_path, config=config)
    assert error.message == (
        "no agent 'forge-smith' in this project or globally, and no program of that name, "
        "which the agent 'smith' of /p/hocket.toml runs"
    )
    assert (error.hint or "").startswith("install forge-smith, or correct the path of 'smith'; ")


def test_suggestions_include_aliases_and_chains(tmp_path: Path) -> None:
    chain = ChainConfig("ship-auth", "f", (StepConfig("a"),))
    config = Config(agents={"reviewer": AgentConfig("f")}, chains={"ship-auth": chain})
    assert refused("reviewr", tmp_path, tmp_path, config=config).hint == "did you mean reviewer?"
    assert refused("ship-auht", tmp_path, tmp_path, config=config).hint == (
        "did you mean ship-auth? 1 other agent: `hocket agents`"
    )


def test_chain_named_as_agent_gets_a_hint(tmp_path: Path) -> None:
    config = Config(chains={"ship": ChainConfig("ship", "f", (StepConfig("a"),))})
    hint = refused("ship", tmp_path, tmp_path, config=config).hint or ""
    assert hint.startswith("ship is a chain")
    assert hint.endswith("hocket run --chain ship")


def test_file_without_execute_bit_gets_a_hint(tmp_path: Path) -> None:
    blocked = program(tmp_path / "bin" / "tool", 0o644)
    error = refused("tool", tmp_path, tmp_path / "bin")
    assert error.message == f"{blocked} is not executable"
    assert error.hint == f"chmod +x {blocked}"


@pytest.mark.req("S1-12", "S1-17")
def test_absolute_path_is_used_unchanged(tmp_path: Path) -> None:
    tool = program(tmp_path / "my tools" / "run it")
    assert find(str(tool), Path("/")) == Agent(str(tool), "executable", str(tool), "path")


@pytest.mark.req("S1-17")
@pytest.mark.parametrize("text", ["./tool", "sub/../tool", "../p/tool"])
def test_relative_path_starts_at_working_directory(tmp_path: Path, text: str) -> None:
    project = tmp_path / "p"
    tool = program(project / "tool")
    (project / "sub").mkdir()
    found = find(text, project)
    assert (os.path.samefile(found.path, tool), found.name) == (True, text)
    assert found.path.startswith("/")


def test_tilde_means_the_callers_home(tmp_path: Path) -> None:
    tool = program(tmp_path / "u" / "bin" / "tool")
    assert find("~/bin/tool", Path("/"), home=tmp_path / "u").path == str(tool)
    assert "~/bin/tool" in refused("~/bin/tool", tmp_path).message
    assert "~other/x" in refused("~other/x", tmp_path).message


@pytest.mark.parametrize(
    ("make", "words"),
    [("nothing", "does not exist"), ("directory", "is a directory"), ("plain", "not executable"), ("fifo", "regular")],
)
def test_unusable_path_error_says_why(tmp_path: Path, make: str, words: str) -> None:
    path = tmp_path / "x"
    if make == "directory":
        path.mkdir()
    elif make == "plain":
        program(path, 0o644)
    elif make == "fifo":
        os.mkfifo(path)
    error = refused("./x", tmp_path)
    assert isinstance(error, ProgramNotFound)
    assert words in error.message
    assert "./x" in error.message


@pytest.mark.parametrize("text", [".", "..", "./", "/"])
def test_directory_is_not_a_program(tmp_path: Path, text: str) -> None:
    assert "is a directory" in refused(text, tmp_path).message


def test_too_long_name_is_not_found(tmp_path: Path) -> None:
    assert isinstance(refused("./" + "x" * 5000, tmp_path), ProgramNotFound)
    assert isinstance(refused("x" * 5000, tmp_path, tmp_path), ProgramNotFound)


@pytest.mark.req("S1-20")
@pytest.mark.parametrize("name", ["..x y", "-rf", "--flag", "a b", "a.b", "foo\n", "", "a\0"], ids=ascii)
def test_neither_name_nor_path_is_refused(tmp_path: Path, name: str) -> None:
    assert isinstance(refused(name, tmp_path, Path("/bin")), ChainSyntaxError | ProgramNotFound)


@pytest.mark.req("S1-29", "S1-31", "S1-35", "S1-10")
def test_alias_resolves_to_its_path(tmp_path: Path) -> None:
    tool, named = program(tmp_path / "sub" / "tool"), program(tmp_path / "bin" / "real")
    config = aliases(
        absolute=AgentConfig("f", str(tool)),
        relative=AgentConfig("f", "sub/tool"),
        bare=AgentConfig("f", "real"),
    )
    assert find("absolute", Path("/"), config=config).path == str(tool)
    assert find("relative", tmp_path, config=config).path == str(tool)
    assert find("bare", Path("/"), tmp_path / "bin", config=config).path == str(named)
    assert find("absolute", Path("/"), config=config).name == "absolute"


@pytest.mark.req("S1-32")
def test_alias_without_path_means_its_name(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")
    assert find("tool", tmp_path, tmp_path / "bin", config=aliases(tool=AgentConfig("f"))).path == str(tool)
    assert find("tool", tmp_path, tmp_path / "bin", config=aliases(x=AgentConfig("f"))).path == str(tool)


@pytest.mark.req("S1-33")
def test_alias_provides_prompt_arguments_and_source(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool")
    alias = AgentConfig("/etc/x.toml", "./tool", ("-q",), "Do", "do.md", "stdin")
    assert find("t", tmp_path, config=aliases(t=alias)) == Agent(
        "t", "executable", str(tool), "path", ("-q",), "Do", "do.md", "stdin", alias="/etc/x.toml"
    )


def test_alias_wins_over_a_program(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "tool")
    mine = program(tmp_path / "mine")
    config = aliases(tool=AgentConfig("f", str(mine)))
    assert find("tool", tmp_path, tmp_path / "bin", config=config).path == str(mine)


def test_broken_alias_error_names_its_path(tmp_path: Path) -> None:
    assert "./gone" in refused("t", tmp_path, config=aliases(t=AgentConfig("f", "./gone"))).message


# --- Claude -------------------------------------------------------------------------------------------------


class Place:
    """A project, a user and a Claude CLI."""

    def __init__(self, root: Path) -> None:
        self.project, self.home = root / "p", root / "u"
        self.project.mkdir()
        self.home.mkdir()
        self.cli = program(root / "bin" / "claude")
        self.tool = program(root / "bin" / "tool")
        self.env = environment(root / "bin", home=self.home)

    def find(self, name: str, config: Config = NOTHING, cwd: Path | None = None, **more: str) -> Agent:
        return found(name, str(cwd or self.project), {**self.env, **more}, config)

    def refused(self, name: str, config: Config = NOTHING, cwd: Path | None = None, **more: str) -> HocketError:
        with pytest.raises(HocketError) as caught:
            self.find(name, config, cwd, **more)
        return caught.value


def describe(folder: Path, name: str, file: str | None = None, more: str = "") -> Path:
    path = folder / ".claude" / "agents" / (file or f"{name}.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: d\n{more}\n---\nBody of {name}.\n")
    return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.req("S3-02", "S3-03", "S3-04")
def test_user_agent_wins_over_library(place: Place) -> None:
    stock = place.home / ".claude" / "agents-library"
    error = place.refused("reviewer")
    assert isinstance(error, ProgramNotFound)
    assert "/" not in error.message + (error.hint or "")
    stock.mkdir(parents=True)
    (stock / "reviewer.md").write_text("---\ndescription: d\n---\nFrom stock.\n")
    assert place.find("reviewer").source == "library"
    describe(place.home, "reviewer")
    assert place.find("reviewer").source == "global"


@pytest.mark.req("S1-01", "S1-05", "S1-08", "S1-09", "S1-13", "S1-14", "S1-50")
@pytest.mark.parametrize(
    "text",
    [
        "{}/.claude/agents/reviewer",
        "{}/.claude/agents/reviewer.md",
        "{}/.claude//agents/reviewer",
        "{}/.claude/./agents/reviewer",
        "{}/x/../.claude/agents/reviewer",
        "../p/.claude/agents/reviewer",
        ".claude/agents/reviewer",
        "./.claude/agents/reviewer.md",
    ],
)
def test_definition_path_runs_claude_in_its_project(place: Place, text: str) -> None:
    file = describe(place.project, "reviewer")
    (place.project / "x").mkdir()
    name = text.format(place.project)
    found = place.find(name)
    assert (found.name, found.provider, found.path) == (name, "claude", str(place.cli))
    assert (found.cwd, found.trusted, found.source) == (str(place.project), False, "path")
    assert found.definition is not None
    assert (found.definition.name, found.definition.path) == ("reviewer", str(file))
    assert found.definition.fields["prompt"] == "Body of reviewer."


@pytest.mark.req("S1-14", "S1-17")
def test_other_path_is_a_program(place: Place) -> None:
    found = place.find(str(place.tool))
    assert (found.provider, found.path, found.cwd, found.definition) == ("executable", str(place.tool), None, None)


@pytest.mark.req("S1-06")
def test_definition_is_found_by_file_or_name(place: Place) -> None:
    describe(place.project, "electron-pro", "electorn.md")
    describe(place.project, "deep", "sub/other.md")
    for text, name in [("electorn", "electron-pro"), ("electron-pro", "electron-pro"), ("deep", "deep")]:
        found = place.find(f".claude/agents/{text}").definition
        assert found is not None
        assert found.name == name


@pytest.mark.req("S1-19", "S1-20")
@pytest.mark.parametrize("rest", ["a/b", "a.b", "a b", "x.md.md"])
def test_program_below_agents_folder_is_not_executed(place: Place, rest: str) -> None:
    program(place.project / ".claude" / "agents" / rest)
    error = place.refused(f"{place.project}/.claude/agents/{rest}")
    assert (type(error), error.exit_code) == (UsageError, 2)


@pytest.mark.req("S1-19")
def test_program_beside_definition_is_not_executed(place: Place) -> None:
    folder = describe(place.project, "reviewer").parent
    program(folder / "reviewer")
    elsewhere = place.project.parent
    assert place.find("reviewer", cwd=elsewhere, PATH=f"{place.cli.parent}:{folder}").provider == "claude"
    assert place.find("./reviewer", cwd=folder).provider == "claude"
    config = aliases(r=AgentConfig("f", "./.claude/agents/reviewer"))
    assert place.find("r", config).provider == "claude"


@pytest.mark.req("S1-21")
def test_path_in_missing_project_is_refused(place: Place) -> None:
    error = place.refused("/no/such/.claude/agents/x")
    assert isinstance(error, BadDirectory)
    assert "/no/such does not exist" in error.message


@pytest.mark.req("S1-22")
def test_missing_definition_error_lists_available_agents(place: Place) -> None:
    path = f"{place.project}/.claude/agents/nosuch"
    error = place.refused(path)
    assert isinstance(error, ProgramNotFound)
    assert error.message == f"--agent 'nosuch' not found in {place.project}. Available agents: none"
    describe(place.project, "b")
    describe(place.project, "a")
    assert place.refused(path).message.endswith("Available agents: a, b")


def test_invalid_definition_error_has_line_and_reason(place: Place) -> None:
    file = describe(place.project, "12")
    error = place.refused(".claude/agents/12")
    assert isinstance(error, BadDefinition)
    assert error.message.startswith(f"{file}, line 2: ")
    hint = place.refused("12").hint
    assert hint is not None
    assert f"{file}:2 is not used: " in hint


@pytest.mark.req("S1-02")
def test_broken_frontmatter_error_has_its_line(place: Place) -> None:
    file = place.project / ".claude/agents/a.md"
    file.parent.mkdir(parents=True)
    file.write_text("---\nname: reviewer\ndescription: x\n  - broken: [\n---\nReview.\n")
    for name in ("a", "reviewer"):
        hint = place.refused(name).hint or ""
        assert hint.startswith(f"{file}:4 is not used: is not YAML: ")
    assert place.refused(".claude/agents/a").message.startswith(f"{file}, line 4: is not YAML: ")


@pytest.mark.req("S1-02")
def test_name_lookup_follows_the_documented_order(place: Place) -> None:
    trusting = Config(trusted_folders=(str(place.project),))
    assert place.find("tool").source == "PATH"
    assert place.find("claude").source == "cli"
    for name in ("tool", "claude"):
        own = describe(place.home, name)
        found = place.find(name)
        assert (found.provider, found.source, found.cwd) == ("claude", "global", None)
        assert found.definition is not None
        assert found.definition.path == str(own)
        near = describe(place.project, name)
        found = place.find(name, trusting)
        assert (found.provider, found.source, found.cwd) == ("claude", "project-local", str(place.project))
        assert found.definition is not None
        assert found.definition.path == str(near)
        alias = aliases(**{name: AgentConfig("f", str(place.tool))})
        assert place.find(name, alias).provider == "executable"
    assert place.find("./tool", cwd=place.tool.parent).provider == "executable"


@pytest.mark.req("S1-02", "S2-19")
def test_program_wins_only_over_default_agent(place: Place) -> None:
    home = place.home / "state"
    home.mkdir()
    seed(home)
    config = Config(home=str(home))
    assert place.find("planner", config).source == "config"
    mine = program(place.tool.parent / "planner")
    assert place.find("planner", config).path == str(mine)
    (home / "data" / "agents" / "planner.json").write_text('{"name": "planner", "specPath": "agents/planner.md"}')
    assert place.find("planner", config).source == "config"


def test_agent_found_above_runs_in_its_project(place: Place) -> None:
    (place.project / ".git").mkdir()
    inner = place.project / "src"
    inner.mkdir()
    describe(place.project, "reviewer")
    assert place.find("reviewer", cwd=inner).cwd == str(place.project)


def test_name_claude_means_the_bare_cli(place: Place) -> None:
    found = place.find("claude")
    assert (found.provider, found.path, found.definition, found.cwd) == ("claude", str(place.cli), None, None)


def test_environment_of_caller_selects_the_cli(place: Place) -> None:
    other = program(place.project / "tools" / "other")
    for wanted in (str(other), "tools/other", "./tools/other"):
        assert place.find("claude", HOCKET_CLAUDE=wanted).path == str(other)
    assert place.find("claude", HOCKET_CLAUDE="tool").path == str(place.tool)
    assert place.find("claude", HOCKET_CLAUDE="").path == str(place.cli)


@pytest.mark.req("S1-B20")
def test_missing_cli_error_has_a_hint(place: Place) -> None:
    describe(place.project, "reviewer")
    for name in ("claude", "reviewer", ".claude/agents/reviewer"):
        error = place.refused(name, PATH="/nowhere")
        assert (type(error), error.exit_code) == (ProgramNotFound, 2)
        assert "/nowhere" in error.message
        assert "HOCKET_CLAUDE" in (error.hint or "")
    assert "/gone, which does not exist" in place.refused("claude", HOCKET_CLAUDE="/gone").message
    assert "'gone'" in place.refused("claude", HOCKET_CLAUDE="gone").message


@pytest.mark.req("S1-31", "S1-32", "S1-33")
def test_agent_alias_provides_its_settings(place: Place) -> None:
    describe(place.project, "reviewer")
    config = aliases(
        far=AgentConfig("f", ".claude/agents/reviewer", ("-x",), "Do", "do.md", model="opus", allowed_tools="Read"),
        near=AgentConfig("f", "reviewer", permission_mode="plan"),
        reviewer=AgentConfig("f", model="haiku"),
    )
    far, near, same = (place.find(name, config) for name in ("far", "near", "reviewer"))
    assert (far.name, far.provider, far.args, far.default_prompt) == ("far", "claude", ("-x",), "Do")
    assert (far.default_prompt_file, far.model, far.allowed_tools, far.alias) == ("do.md", "opus", "Read", "f")
    assert (near.provider, near.permission_mode) == ("claude", "plan")
    assert (same.provider, same.model) == ("claude", "haiku")
    assert {found.definition.name for found in (far, near, same) if found.definition} == {"reviewer"}


def test_suggestions_include_definitions(place: Place) -> None:
    describe(place.project, "reviewer")
    assert place.refused("reviewr").hint == "did you mean reviewer?"
    assert place.refused(".claude/agents/reviewr").hint == "did you mean reviewer?"


def test_suggestions_can_be_typed(place: Place) -> None:
    (place.project / ".claude/agents").mkdir(parents=True)
    (place.project / ".claude/agents/a.md").write_text("---\nname: Code Reviewer\ndescription: d\n---\nReview.\n")
    assert place.refused("code-reviewer").hint == "did you mean Code-Reviewer?"
    assert place.refused("no-such-agent").hint == "1 agent can run here: `hocket agents`"
    for name in ("developer", "developer-review", "qa", "planner", "reviewer-of-all"):
        describe(place.project, name)
    near = "did you mean developer or developer-review?"
    assert place.refused("develop").hint == f"{near} 4 other agents: `hocket agents`"


# --- Trust --------------------------------------------------------------------------------------------------

PRIVILEGES = {
    "hooks": "hooks: {Stop: [{hooks: [{type: command, command: x}]}]}",
    "MCP servers": "mcpServers: [{one: {command: x}}]",
    "bypassPermissions": "permissionMode: bypassPermissions",
}


@pytest.mark.parametrize("privilege", PRIVILEGES)
@pytest.mark.parametrize("text", ["greedy", ".claude/agents/greedy", "alias"])
def test_untrusted_project_agent_gets_no_privileges(place: Place, privilege: str, text: str) -> None:
    describe(place.project, "greedy", more=PRIVILEGES[privilege])
    config = aliases(alias=AgentConfig("f", ".claude/agents/greedy"))
    error = place.refused(text, config)
    assert (type(error), error.exit_code) == (NotTrusted, 4)
    assert privilege in error.message
    assert (error.hint or "").endswith(f"hocket trust {place.project}/.claude/agents/greedy.md")
    trusting = Config(agents=config.agents, trusted_folders=(str(place.project.parent),))
    assert place.find(text, trusting).trusted is True


def test_user_definitions_need_no_approval(place: Place) -> None:
    describe(place.home, "mine", more="\n".join(PRIVILEGES.values()))
    assert place.find("mine").trusted is False
    found = place.find("~/.claude/agents/mine")
    assert (found.cwd, found.provider) == (str(place.home), "claude")


def test_trusted_folder_is_compared_by_real_path(place: Place, tmp_path: Path) -> None:
    trusting = Config(trusted_folders=(str(tmp_path / "good"),))
    (tmp_path / "good").mkdir()
    (tmp_path / "goodbye").mkdir()
    (tmp_path / "good" / "link").symlink_to(place.project)
    for cwd, expected in [
        (tmp_path / "good", True),
        (tmp_path / "goodbye", False),
        (place.project, False),
        (tmp_path / "good" / "link", False),
    ]:
        assert place.find("claude", trusting, cwd).trusted is expected


def test_trust_of_linked_directory_follows_its_target(place: Place, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    (mine / ".git").mkdir(parents=True)
    theirs.mkdir()
    (mine / "link").symlink_to(theirs)
    describe(mine, "reviewer")
    for folder, behind in [(mine, False), (theirs, True)]:
        trusting = Config(trusted_folders=(str(folder),))
        assert place.find("claude", trusting, mine / "link").trusted is behind
    # The CLI searches upwards from the real path, and Hocket searches the same folders.
    assert isinstance(place.refused("reviewer", NOTHING, mine / "link"), ProgramNotFound)


def test_trusted_subfolder_does_not_trust_its_project(place: Place) -> None:
    (place.project / ".git").mkdir()
    inner = place.project / "src"
    inner.mkdir()
    describe(place.project, "greedy", more=PRIVILEGES["hooks"])
    describe(place.project, "modest")
    trusting = Config(trusted_folders=(str(inner),))
    assert isinstance(place.refused("greedy", trusting, inner), NotTrusted)
    assert place.find("modest", trusting, inner).trusted is False


WORDS = {"permission_mode": "permission mode", "allowed_tools": "allowed_tools"}


@pytest.mark.parametrize(
    "asking",
    [
        {"permission_mode": "bypassPermissions"},
        {"permission_mode": "auto"},
        {"allowed_tools": "Bash"},
    ],
)
def test_project_alias_cannot_widen_permissions(place: Place, asking: dict[str, Any]) -> None:
    project = str(place.project)
    theirs = AgentConfig("/p/hocket.toml", "claude", project=project, **asking)
    error = place.refused("a", aliases(a=theirs))
    assert (type(error), error.exit_code) == (NotTrusted, 4)
    assert f'/p/hocket.toml: agent "a" asks for {WORDS[next(iter(asking))]}' in error.message
    assert next(iter(asking.values())) in error.message
    assert (error.hint or "").endswith(f"hocket trust {project}")
    assert place.find("a", Config(agents={"a": theirs}, trusted_folders=(project,))).trusted
    mine = AgentConfig("/u/config.toml", "claude", **asking)
    assert place.find("a", aliases(a=mine)).permission_mode == asking.get("permission_mode")


def test_tools_of_a_program_alias_are_ignored(place: Place) -> None:
    theirs = AgentConfig("/p/hocket.toml", "tool", allowed_tools="Bash", project=str(place.project))
    assert place.find("a", aliases(a=theirs)).provider == "executable"


WIDE = ("--settings", "{}")


@pytest.mark.parametrize(
    ("name", "project", "args", "refused"),
    [
        ("claude", "{}", WIDE, True),
        ("claude", "{}", ("--model", "haiku"), False),
        ("claude", "{}", (), False),
        ("claude", None, WIDE, False),
        ("tool", "{}", WIDE, False),
    ],
    ids=["theirs", "harmless", "nothing", "mine", "program"],
)
def test_project_arguments_cannot_widen_permissions(
    place: Place, name: str, project: str | None, args: tuple[str, ...], refused: bool
) -> None:
    folder = project.format(place.project) if project else None
    agent = place.find(name)
    given = ConfiguredArguments("/p/hocket.toml: agent 'a'", folder, args)
    with pytest.raises(NotTrusted) if refused else nullcontext():
        check_arguments(given, agent, "acceptEdits", Approvals(NOTHING))
    check_arguments(given, agent, "acceptEdits", Approvals(Config(trusted_folders=(str(place.project),))))


def test_refused_argument_error_names_file_and_command(place: Place) -> None:
    given = ConfiguredArguments("/p/hocket.toml: agent 'a'", str(place.project), ("--verbose", "--settings=x"))
    with pytest.raises(NotTrusted) as caught:
        check_arguments(given, place.find("claude"), "acceptEdits", Approvals(NOTHING))
    assert caught.value.message.startswith(
        "/p/hocket.toml: agent 'a' asks for --settings, which loads settings with hooks"
    )
    assert (caught.value.hint or "").endswith(f"hocket trust {place.project}")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("head", "alias", "refused"),
    [("", None, False), ("permissionMode: plan", None, True), ("permissionMode: plan", "acceptEdits", False)],
)
def test_mode_argument_is_compared_with_agent_mode(place: Place, head: str, alias: str | None, refused: bool) -> None:
    describe(place.home, "mine", more=head)
    agent = place.find("a", aliases(a=AgentConfig("f", "mine", permission_mode=alias)))
    given = ConfiguredArguments("f", str(place.project), ("--permission-mode", "acceptEdits"))
    with pytest.raises(NotTrusted) if refused else nullcontext():
        check_arguments(given, agent, "acceptEdits", Approvals(NOTHING))


def test_alias_mode_overrides_the_definition(place: Place) -> None:
    describe(place.project, "greedy", more=PRIVILEGES["bypassPermissions"])
    assert place.find("a", aliases(a=AgentConfig("f", "greedy", permission_mode="plan"))).permission_mode == "plan"
