"""Which agent a name or a path means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.catalog.resolve import is_claude_agent_path, resolve
from hocket.config import AgentConfig, ChainConfig, Config, StepConfig
from hocket.errors import ChainSyntaxError, HocketError, ProgramNotFound, UnsupportedAgent
from hocket.model import Agent

NOTHING = Config()


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def find(name: str, cwd: Path, *folders: Path, config: Config = NOTHING, home: Path | None = None) -> Agent:
    return resolve(name, str(cwd), ":".join(map(str, folders)), config, str(home) if home else None)


def refused(name: str, cwd: Path, *folders: Path, config: Config = NOTHING) -> HocketError:
    with pytest.raises(HocketError) as caught:
        find(name, cwd, *folders, config=config)
    assert caught.value.exit_code == 2
    return caught.value


def aliases(**agents: AgentConfig) -> Config:
    return Config(agents=agents)


@pytest.mark.req("S1-02", "S1-11")
def test_a_name_is_looked_up_in_the_callers_path_in_order(tmp_path: Path) -> None:
    first, second = program(tmp_path / "1" / "tool"), program(tmp_path / "2" / "tool")
    only = program(tmp_path / "2" / "other")
    folders = (tmp_path / "1", tmp_path / "2")
    assert find("tool", tmp_path, *folders) == Agent("tool", "executable", str(first), "PATH")
    assert find("tool", tmp_path, *reversed(folders)).path == str(second)
    assert find("other", tmp_path, *folders).path == str(only)


@pytest.mark.req("S1-02")
def test_this_processs_own_path_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "ours" / "tool")
    monkeypatch.setenv("PATH", str(tmp_path / "ours"))
    assert isinstance(refused("tool", tmp_path, tmp_path / "theirs"), ProgramNotFound)


def test_directories_and_plain_files_on_path_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "1" / "tool").mkdir(parents=True)
    program(tmp_path / "2" / "tool", 0o644)
    right = program(tmp_path / "3" / "tool")
    assert find("tool", tmp_path, *(tmp_path / n for n in "123")).path == str(right)


def test_relative_and_empty_entries_of_path_mean_the_callers_directory(tmp_path: Path) -> None:
    inside, here = program(tmp_path / "bin" / "tool"), program(tmp_path / "here")
    assert resolve("tool", str(tmp_path), "bin", NOTHING).path == str(inside)
    assert resolve("here", str(tmp_path), "/nowhere:", NOTHING).path == str(here)


def test_without_a_path_the_usual_places_are_searched(tmp_path: Path) -> None:
    assert resolve("sh", str(tmp_path), None, NOTHING).path in {"/usr/bin/sh", "/bin/sh"}


@pytest.mark.req("S1-B20")
def test_a_missing_program_is_named_with_the_path_searched_and_a_near_miss(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "reviewer")
    error = refused("reviewr", tmp_path, tmp_path / "bin")
    assert isinstance(error, ProgramNotFound)
    assert "reviewr" in error.message
    assert str(tmp_path / "bin") in error.message
    assert error.hint == "did you mean reviewer?"


def test_near_misses_are_looked_for_among_aliases_and_chains_too(tmp_path: Path) -> None:
    chain = ChainConfig("ship-auth", "f", (StepConfig("a"),))
    config = Config(agents={"reviewer": AgentConfig("f")}, chains={"ship-auth": chain})
    assert refused("reviewr", tmp_path, tmp_path, config=config).hint == "did you mean reviewer?"
    assert refused("ship-auht", tmp_path, tmp_path, config=config).hint == "did you mean ship-auth?"


def test_a_name_found_only_without_its_execute_bit_says_so(tmp_path: Path) -> None:
    blocked = program(tmp_path / "bin" / "tool", 0o644)
    error = refused("tool", tmp_path, tmp_path / "bin")
    assert error.message == f"{blocked} is not executable"
    assert error.hint == f"chmod +x {blocked}"


@pytest.mark.req("S1-12", "S1-17")
def test_an_absolute_path_is_taken_as_it_is(tmp_path: Path) -> None:
    tool = program(tmp_path / "my tools" / "run it")
    assert find(str(tool), Path("/")) == Agent(str(tool), "executable", str(tool), "path")


@pytest.mark.req("S1-17")
@pytest.mark.parametrize("text", ["./tool", "sub/../tool", "../p/tool"])
def test_a_relative_path_is_relative_to_the_working_directory(tmp_path: Path, text: str) -> None:
    project = tmp_path / "p"
    tool = program(project / "tool")
    (project / "sub").mkdir()
    found = find(text, project)
    assert (os.path.samefile(found.path, tool), found.name) == (True, text)
    assert found.path.startswith("/")


def test_a_tilde_means_the_callers_home(tmp_path: Path) -> None:
    tool = program(tmp_path / "u" / "bin" / "tool")
    assert find("~/bin/tool", Path("/"), home=tmp_path / "u").path == str(tool)
    assert "~/bin/tool" in refused("~/bin/tool", tmp_path).message
    assert "~other/x" in refused("~other/x", tmp_path).message


@pytest.mark.parametrize(
    ("make", "words"),
    [("nothing", "does not exist"), ("directory", "is a directory"), ("plain", "not executable"), ("fifo", "regular")],
)
def test_a_path_that_cannot_be_executed_says_why(tmp_path: Path, make: str, words: str) -> None:
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
def test_a_directory_is_no_program_however_it_is_written(tmp_path: Path, text: str) -> None:
    assert "is a directory" in refused(text, tmp_path).message


def test_a_name_too_long_for_the_file_system_is_a_clear_error(tmp_path: Path) -> None:
    assert isinstance(refused("./" + "x" * 5000, tmp_path), ProgramNotFound)
    assert isinstance(refused("x" * 5000, tmp_path, tmp_path), ProgramNotFound)


@pytest.mark.req("S1-20")
@pytest.mark.parametrize("name", ["..x y", "-rf", "--flag", "a b", "a.b", "foo\n", "", "a\0"], ids=ascii)
def test_what_is_neither_a_name_nor_a_path_is_refused(tmp_path: Path, name: str) -> None:
    assert isinstance(refused(name, tmp_path, Path("/bin")), ChainSyntaxError | ProgramNotFound)


@pytest.mark.req("S1-19", "S1-20")
@pytest.mark.parametrize(
    "text",
    [
        "{}/.claude/agents/reviewer",
        "{}/.claude/agents/reviewer.md",
        "{}/.claude/agents/a/b",
        "{}/.claude//agents/reviewer",
        "{}/.claude/./agents/reviewer",
        "{}/x/../.claude/agents/reviewer",
        ".claude/agents/reviewer",
        "./.claude/agents/reviewer",
    ],
)
def test_a_claude_agent_is_never_executed_as_a_program(tmp_path: Path, text: str) -> None:
    program(tmp_path / ".claude" / "agents" / "reviewer")
    program(tmp_path / ".claude" / "agents" / "reviewer.md")
    program(tmp_path / ".claude" / "agents" / "a" / "b")
    (tmp_path / "x").mkdir()
    error = refused(text.format(tmp_path), tmp_path)
    assert isinstance(error, UnsupportedAgent)
    assert error.code == "unsupported_agent"


@pytest.mark.req("S1-19")
def test_a_claude_agent_on_path_or_beside_the_caller_is_not_executed_either(tmp_path: Path) -> None:
    folder = program(tmp_path / ".claude" / "agents" / "reviewer").parent
    assert isinstance(refused("reviewer", tmp_path, folder), UnsupportedAgent)
    assert isinstance(refused("./reviewer", folder), UnsupportedAgent)
    assert isinstance(
        refused("r", tmp_path, config=aliases(r=AgentConfig("f", "./.claude/agents/reviewer"))), UnsupportedAgent
    )


@pytest.mark.req("S1-15")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/p/.claude/agents/x", True),
        ("/p/.claude/x", False),
        ("/p/claude/agents/x", False),
        ("/p/.claude/agents2/x", False),
    ],
)
def test_claude_agents_are_known_by_their_path(path: str, expected: bool) -> None:
    assert is_claude_agent_path(path) is expected


@pytest.mark.req("S1-29", "S1-31", "S1-35", "S1-10")
def test_an_alias_stands_for_its_path(tmp_path: Path) -> None:
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
def test_an_alias_without_a_path_and_no_alias_at_all_mean_the_name_itself(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")
    assert find("tool", tmp_path, tmp_path / "bin", config=aliases(tool=AgentConfig("f"))).path == str(tool)
    assert find("tool", tmp_path, tmp_path / "bin", config=aliases(x=AgentConfig("f"))).path == str(tool)


@pytest.mark.req("S1-33")
def test_an_alias_brings_its_prompt_its_arguments_and_its_source(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool")
    alias = AgentConfig("/etc/x.toml", "./tool", ("-q",), "Do", "do.md", "stdin")
    assert find("t", tmp_path, config=aliases(t=alias)) == Agent(
        "t", "executable", str(tool), "/etc/x.toml", ("-q",), "Do", "do.md", "stdin"
    )


def test_an_alias_wins_over_a_program_of_the_same_name(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "tool")
    mine = program(tmp_path / "mine")
    config = aliases(tool=AgentConfig("f", str(mine)))
    assert find("tool", tmp_path, tmp_path / "bin", config=config).path == str(mine)


def test_an_alias_to_nothing_says_what_it_stands_for(tmp_path: Path) -> None:
    assert "./gone" in refused("t", tmp_path, config=aliases(t=AgentConfig("f", "./gone"))).message
