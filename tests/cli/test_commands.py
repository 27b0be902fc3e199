"""The table of commands, their help, and how errors leave."""

from __future__ import annotations

import pytest
from world import Hocket

from hocket import __version__
from hocket.cli import forkhestra, main
from hocket.cli.dispatch import WORDS_OF_OTHER_TOOLS
from hocket.cli.usage import COMMANDS, Group, load, summary


def test_both_programs_print_their_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert forkhestra(["--version"]) == 0
    assert capsys.readouterr().out == f"hocket {__version__}\nforkhestra {__version__}\n"


@pytest.mark.req("S1-B22")
@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, flag]) == 0
    text = capsys.readouterr().out
    assert "Example:" in text
    assert f"hocket {name}" in text


@pytest.mark.req("S1-B22")
def test_forkhestra_has_the_options_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert forkhestra(["-h"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: forkhestra [OPTIONS] [CHAIN]")
    for option in ("--cwd", "-v", "--dry-run", "--chain", "-p", "--prompt-file", "-h"):
        assert option in text


@pytest.mark.parametrize("name", COMMANDS)
def test_table_row_names_its_command(name: str) -> None:
    target, text = COMMANDS[name]
    declared = load(name)
    assert target.partition(":")[2].rstrip("_") == name  # "import" is a keyword
    assert text.endswith(".")
    below = declared.commands.values() if isinstance(declared, Group) else [declared]
    assert all(summary(command) for command in below)


def test_help_is_shown_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("group", ["task", "server", "setup"])
def test_group_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group]) == 0
    alone = capsys.readouterr()
    assert main([group, "--help"]) == 0
    assert alone == capsys.readouterr()
    assert alone.out.startswith(f"Usage: hocket {group} ")
    assert alone.err == ""


@pytest.mark.parametrize("words", [[], ["run"], ["task"], ["task", "new"], ["help"]])
def test_help_command_shows_help_of_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *words]) == 0
    shown = capsys.readouterr()
    assert main([*words, "--help"]) == 0
    assert shown == capsys.readouterr()


def test_words_of_other_tools_lead_to_commands() -> None:
    known = {*COMMANDS, *(word for found in map(load, COMMANDS) if isinstance(found, Group) for word in found.commands)}
    for word, meant in WORDS_OF_OTHER_TOOLS.items():
        assert set(meant) <= known
        assert word not in COMMANDS


def test_unknown_command_suggests_similar_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lgos", "x"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "hocket: unknown command 'lgos'\nhint: did you mean logs? see \"hocket --help\"\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["zzz"], "unknown command 'zzz'\nhint: to run an agent: hocket run zzz; see \"hocket --help\""),
        (["--nope"], 'unknown option --nope\nhint: see "hocket --help"'),
        (["kill", "7"], "unknown command 'kill'\nhint: did you mean stop? see \"hocket --help\""),
        (["start"], "unknown command 'start'\nhint: did you mean run or spawn? see \"hocket --help\""),
        (["task", "ls"], "unknown command 'ls'\nhint: did you mean list? see \"hocket task --help\""),
        (["help", "zzz"], "unknown command 'zzz'\nhint: to run an agent: hocket run zzz; see \"hocket --help\""),
        (["help", "task", "ls"], "unknown command 'ls'\nhint: did you mean list? see \"hocket task --help\""),
        (["help", "ps", "x"], "unexpected argument: 'x' (hocket ps has no subcommands)"),
        (["task", "shwo"], "unknown command 'shwo'\nhint: did you mean show? see \"hocket task --help\""),
        (["server", "--nope"], 'unknown option --nope\nhint: see "hocket server --help"'),
    ],
)
def test_words_that_name_no_command_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"hocket: {said}")
    assert "--help" in output.err


BAD_WORDS = [
    *(["send", "1"], ["send", "1", "--interrupt", "--wait"], ["answer", "1"], ["resume"]),
    *(["spawn", "a", "--on-question", "perhaps"], ["run", "a", "--on-question", "never"]),
]


@pytest.mark.parametrize(
    "words", [["ps", "--nonsense"], ["show"], ["run", "a", "--timeout", "soon"], ["stop"], *BAD_WORDS]
)
def test_usage_error_exits_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hocket: ")
    assert "--help" in said.err


def test_home_that_cannot_be_made_exits_with_two(hocket: Hocket) -> None:
    done = hocket("ps", env={"HOCKET_HOME": "/proc/nothing/here"})
    assert done.returncode == 2
    assert done.stderr.startswith("hocket: cannot make /proc/nothing/here")
