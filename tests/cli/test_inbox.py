"""``inbox ask answer`` from outside: what agents want to know of people, seen from both sides."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from scripted_claude import install_claude
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

ASKER = f"""
import subprocess, sys
done = subprocess.run([{sys.executable!r}, "-m", "hocket", "ask", *sys.argv[1:]], capture_output=True, text=True)
print(repr((done.returncode, done.stdout, done.stderr)))
"""


@pytest.fixture
def asker(agent: Bin) -> Path:
    """A plain program that asks, and says what it heard."""
    return agent("asker", ASKER)


@pytest.fixture
def claude(agent: Bin) -> Path:
    return install_claude(agent.folder)


def spawned(hocket: Hocket, *words: str) -> str:
    return hocket.created("spawn", *words)


def until(hocket: Hocket, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The inbox once it is as wanted, as it tells by itself."""
    following = hocket.start("inbox", "--follow", "--json")
    assert following.stdout is not None
    for line in following.stdout:
        questions: list[dict[str, Any]] = json.loads(line)
        if wanted(questions):
            following.kill()
            return questions
    raise AssertionError("it was never as wanted")


def heard(hocket: Hocket, ref: str) -> tuple[int, str, str]:
    code, out, err = eval(hocket("wait", ref).stdout)  # noqa: S307 - our own program's words
    return code, out, err


def test_empty_inbox_is_reported_on_stderr(hocket: Hocket) -> None:
    done = hocket("inbox")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "No open questions.\n")
    as_json = hocket("inbox", "--json")
    assert (as_json.returncode, json.loads(as_json.stdout), as_json.stderr) == (0, [], "")


@pytest.mark.usefixtures("asker", "claude")
def test_inbox_lists_questions_with_reply_commands(hocket: Hocket) -> None:
    spawned(hocket, "claude", "-p", "ask me")
    until(hocket, lambda questions: len(questions) == 1)
    spawned(hocket, "asker", "--", "Which colour?", "--option", "red", "--option", "blue")
    first, second = until(hocket, lambda questions: len(questions) == 2)
    assert list(first)[:7] == ["id", "run", "kind", "text", "tool", "input", "asked_at"]
    one, two = hocket.number(1), hocket.number(2)
    shown = hocket("inbox")
    assert (shown.returncode, shown.stderr) == (0, "")
    permission, choice = shown.stdout.rstrip("\n").split("\n\n")
    head, *rest = permission.split("\n")
    assert head.startswith(f"{one} claude in {hocket.cwd.name}  asked ")
    assert rest == [
        "  ? wants to run Bash: touch x0",
        "  command: touch x0",
        "  description: Make a file",
        f"    hocket answer {one} allow/deny",
    ]
    assert choice.split("\n")[1:] == [
        "  ? asks: Which colour? (1 red, 2 blue)",
        f'    hocket answer {two} "YOUR ANSWER"',
    ]
    listed = json.loads(hocket("ps", "--json").stdout)
    assert [(run["needs_you"], run["last"]) for run in listed] == [(True, first["text"]), (True, "Which colour?")]
    assert hocket("ps").stdout.count("◆ needs you") == 2
    by_id = hocket("answer", first["id"], "allow")
    assert (by_id.returncode, by_id.stdout) == (0, f"{one}  allowed\n")
    assert hocket("answer", second["id"][:6], "2").stdout == f"{two}  allowed\n"
    assert hocket("wait", one).stdout == "you said: ask me [allowed touch x0]\n"
    assert heard(hocket, two) == (0, "blue\n", "")
    unknown = hocket("answer", "qzzz", "late")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no open question" in unknown.stderr


@pytest.mark.usefixtures("asker")
def test_late_answer_names_the_first_answer(hocket: Hocket) -> None:
    spawned(hocket, "asker", "--", "Which colour?")
    (asked,) = until(hocket, lambda questions: len(questions) == 1)
    number = hocket.number()
    assert hocket("answer", number, "red").returncode == 0
    assert heard(hocket, number) == (0, "red\n", "")
    already = f"question {asked['id']} of run {number} has already been answered by operator: red"
    last = f"run {number} has ended, and has no open question; the last one was answered by operator: red"
    for words, told in (
        ([number, "blue"], last),
        ([number, "blue", "--question", asked["id"]], already),
        ([asked["id"], "blue"], already),
        ([asked["id"][:5], "blue"], already),
    ):
        late = hocket("answer", *words)
        assert (late.returncode, late.stdout) == (2, ""), words
        assert told in late.stderr
    for words in (["q", "blue"], [number, "blue", "--question", "other"]):
        assert "answered already" not in hocket("answer", *words).stderr


@pytest.mark.usefixtures("asker")
def test_only_first_answer_counts(hocket: Hocket) -> None:
    ref = spawned(hocket, "asker", "--", "Which colour?")
    until(hocket, lambda questions: len(questions) == 1)
    commands = [hocket.start("answer", ref, f"colour {number}") for number in range(6)]
    said = [(*command.communicate(timeout=PATIENCE), command.returncode) for command in commands]
    code, winner, _ = heard(hocket, ref)
    assert (code, [code for _, _, code in said].count(0)) == (0, 1)
    losers = [err for _, err, code in said if code]
    assert all(f"answered by operator: {winner.strip()}\n" in err for err in losers), losers


@pytest.mark.usefixtures("asker")
@pytest.mark.parametrize("name", ["", "..", "q/x"])
def test_invalid_name_answers_no_question(hocket: Hocket, name: str) -> None:
    ref = spawned(hocket, "asker", "--", "Which colour?")
    until(hocket, lambda questions: len(questions) == 1)
    refused = hocket("answer", name, "red")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"there is no run {name!r}" in refused.stderr
    assert len(json.loads(hocket("inbox", "--json").stdout)) == 1
    hocket("stop", ref)


@pytest.mark.usefixtures("claude")
def test_late_chain_answer_names_the_first_answer(hocket: Hocket) -> None:
    assert hocket("run", "claude:1", "-p", "ask me", "--on-question", "ask", "--detach").returncode == 0
    (asked,) = until(hocket, lambda questions: len(questions) == 1)
    chain = hocket.number()
    assert hocket("answer", chain, "deny", "-m", "not today").returncode == 0
    hocket("wait", chain)
    for name in (chain, str(asked["number"])):
        assert "the last one was denied by operator: not today" in hocket("answer", name, "allow").stderr


@pytest.mark.usefixtures("asker")
def test_ambiguous_question_id_is_refused(hocket: Hocket) -> None:
    for _ in range(2):
        spawned(hocket, "asker", "--", "Which?")
    until(hocket, lambda questions: len(questions) == 2)
    unclear = hocket("answer", "q", "this one")
    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert "matches 2 open questions" in unclear.stderr
    numbers = [hocket.number(nth) for nth in (1, 2)]
    assert all(f'hocket answer {number} "YOUR ANSWER"' in unclear.stderr for number in numbers)


@pytest.mark.usefixtures("asker")
def test_followed_inbox_shows_new_and_closed_questions(hocket: Hocket) -> None:
    following = hocket.start("inbox", "-f")
    assert following.stdout is not None
    ref = spawned(hocket, "asker", "--", "Which colour?")
    lines = [following.stdout.readline() for _ in range(4)]
    number = hocket.number()
    assert lines[0].startswith(f"{number} asker in {hocket.cwd.name}  asked ")
    assert lines[1:] == ["  ? asks: Which colour?\n", f'    hocket answer {number} "YOUR ANSWER"\n', "\n"]
    hocket("answer", ref, "red")
    assert following.stdout.readline() == f"{number} asker in {hocket.cwd.name}: question closed: asks: Which colour?\n"


@pytest.mark.usefixtures("asker")
def test_ask_prints_the_answer_alone(hocket: Hocket) -> None:
    answered, denied = (spawned(hocket, "asker", "--", "Go", "on?") for _ in range(2))
    until(hocket, lambda questions: len(questions) == 2)
    assert hocket("answer", answered, "yes,", "do").stdout == f"{hocket.number(1)}  allowed\n"
    mixed = hocket("answer", denied, "why", "-m", "not")
    assert (mixed.returncode, mixed.stdout) == (2, "")
    assert hocket("answer", denied, "deny", "-m", "not today").stdout == f"{hocket.number(2)}  denied\n"
    assert heard(hocket, answered) == (0, "yes, do\n", "")
    assert heard(hocket, denied) == (1, "", "hocket: denied: not today\n")


@pytest.mark.usefixtures("asker")
def test_ask_timeout_leaves_the_question_open(hocket: Hocket, agent: Bin) -> None:
    agent("patient", ASKER + "import signal; sys.stdout.flush(); signal.pause()\n")
    ref = spawned(hocket, "patient", "--", "Which?", "--timeout", "0.2")
    lines = hocket.start("logs", "-f", ref).stdout
    assert lines is not None
    assert any("(3, '', 'hocket: question q" in line for line in lines)
    (question,) = json.loads(hocket("inbox", "--json").stdout)
    assert (question["run"], question["kind"], question["text"]) == (ref, "ask", "Which?")
    assert hocket("answer", ref, "this").returncode == 0
    hocket("stop", ref)


@pytest.mark.usefixtures("asker")
def test_ask_is_refused_outside_of_a_run(hocket: Hocket) -> None:
    refused = hocket("ask", "Which?")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "only a run can ask" in refused.stderr


@pytest.mark.usefixtures("asker")
def test_question_without_a_terminal_is_denied_at_once(hocket: Hocket) -> None:
    done = hocket("run", "asker", "--", "Which one now?")
    assert done.returncode == 0
    assert done.stdout.startswith("(1, '', 'hocket: denied: no one can answer")
    told = [line.split(" ", 1)[1] for line in done.stderr.splitlines() if " asker " in line]
    assert told[1] == "? asker asks: Which one now?"
    assert told[2].startswith("asker denied by hocket: no one can answer")
    failed = hocket("run", "asker", "--on-question", "fail", "--", "Which one now?")
    assert failed.returncode == 4
    assert "? asker asks: Which one now?    not answered (--on-question fail): the run ends" in failed.stderr
    assert "no_answer" in failed.stderr
    assert "hocket answer" not in done.stderr + failed.stderr


def test_inbox_escapes_every_line_of_a_command(hocket: Hocket, agent: Bin) -> None:
    install_claude(agent.folder, "touch a\nrm b\x1b[2K")
    ref = spawned(hocket, "claude", "-p", "ask me")
    until(hocket, lambda open_ones: len(open_ones) == 1)
    for command in (("inbox",), ("show", ref)):
        text = hocket(*command).stdout
        assert "? wants to run Bash: touch a …\n" in text
        assert "  command: touch a\n  | rm b\\x1b[2K\n" in text
    assert hocket("stop", ref).returncode == 0


ALL_WAYS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "spawned": (("spawn", "claude"), "", "ask"),
    "detached": (("run", "claude", "--detach"), "", "ask"),
    "in a pipe": (("run", "claude"), "", "deny"),
    "in a pipe, configured": (("run", "claude"), "ask", "ask"),
    "in a pipe, for programs": (("run", "claude", "--json"), "", "deny"),
    "spawned, configured": (("spawn", "claude"), "deny", "deny"),
    "spawned, configured, and told otherwise": (("spawn", "claude", "--on-question", "ask"), "deny", "ask"),
    "in a pipe, told otherwise": (("run", "claude", "--on-question", "ask"), "deny", "ask"),
}


@pytest.mark.req("S1-45")
@pytest.mark.usefixtures("claude")
@pytest.mark.parametrize(("words", "configured", "expected"), ALL_WAYS.values(), ids=list(ALL_WAYS))
def test_question_default_depends_on_the_terminal(
    hocket: Hocket, home: Path, words: tuple[str, ...], configured: str, expected: str
) -> None:
    if configured:
        (home / "config.toml").write_text(f'[claude]\non_question = "{configured}"\n')
    started = hocket.start(*words, "-p", "hello")
    assert started.wait(15) == 0
    (leaf,) = (run for run in hocket.runs() if run["kind"] == "leaf")
    ended = json.loads(hocket("wait", leaf["id"], "--json").stdout)
    assert (ended["status"], ended["result"]) == ("done", "you said: hello")
    shown = json.loads(hocket("show", leaf["id"], "--json").stdout)
    record = json.loads((Path(shown["dir"]) / "spec.json").read_text())["record"]
    assert record["on_question"] == expected
