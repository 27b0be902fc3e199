"""Shell completion: the scripts, and the answers that they ask for."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from world import Bin, Hocket

from hocket.cli.completion import offers


def words_for(*typed: str) -> list[str]:
    return [word for word, _ in offers(list(typed))]


def test_commands_are_completed() -> None:
    assert words_for("s") == ["spawn", "show", "send", "stop", "serve", "server", "setup"]
    assert words_for("server", "") == ["status", "stop"]
    assert words_for("help", "s") == ["spawn", "show", "send", "stop", "serve", "server", "setup"]
    assert words_for("help", "server", "") == ["status", "stop"]
    assert words_for("help", "run", "") == []
    assert words_for("--v") == ["--version"]


def test_options_and_their_values_are_completed() -> None:
    assert words_for("run", "a", "--on-") == ["--on-question", "--on-lost"]
    assert words_for("run", "a", "--on-question", "d") == ["deny"]
    assert words_for("run", "a", "--on-question", "ask", "--on-") == ["--on-lost"]
    assert words_for("task", "status", "7", "p") == ["pending"]
    assert words_for("completion", "") == ["bash", "zsh", "fish"]


def test_free_text_is_not_completed() -> None:
    assert words_for("show", "1") == []
    assert words_for("run", "-p", "x") == []
    assert words_for("run", "a", "--", "-") == []
    assert words_for("run", "--nope", "") == []
    assert words_for("nope", "") == []


def test_bash_completes_words_with_the_script(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "open('ran', 'w')")
    script = """
        hocket() { PYTHON -m hocket "$@"; }
        eval "$(hocket completion bash)"
        complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hocket hocket; echo "${COMPREPLY[@]}"; }
        complete_words hocket comp
        complete_words hocket run quick --on-question ""
        complete_words hocket run quick
        complete -p hocket
    """
    done = hocket(command=["bash", "-c", script.replace("PYTHON", sys.executable)])
    assert done.stdout.splitlines() == ["completion", "deny ask fail", "", "complete -o default -F _hocket hocket"]
    assert not (hocket.cwd / "ran").exists()


# --- In a real shell ------------------------------------------------------------------------------------------

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
LOADING = {
    "bash": "PS1='> '; eval \"$(hocket completion bash)\"",
    "zsh": "PS1='> '; autoload -U compinit && compinit -u -D; eval \"$(hocket completion zsh)\"",
    "fish": "function fish_prompt; echo -n '> '; end; hocket completion fish | source",
}
CODES = re.compile(r"\x1b(?:\[[0-9;?>=]*[a-zA-Z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])|[\r\x07]")


class Shell:
    """An interactive shell with the completion of Hocket, on a terminal of its own."""

    def __init__(self, name: str, cwd: Path) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            os.environ["TERM"] = "xterm"
            os.execvp(SHELLS[name][0], SHELLS[name])  # noqa: S606 - a shell is what is tested
        self._seen = ""
        self.type(LOADING[name] + "; echo re''ady\n", "ready")

    def type(self, keys: str, until: str) -> str:
        """Type, and return what appeared up to a text."""
        os.write(self._terminal, keys.encode())
        deadline = time.monotonic() + PATIENCE
        self._seen = ""
        while until not in CODES.sub("", self._seen):
            assert time.monotonic() < deadline, CODES.sub("", self._seen)
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._seen += os.read(self._terminal, 65536).decode(errors="replace")
        return CODES.sub("", self._seen)

    def completed(self, line: str, result: str) -> None:
        """Type the beginning of a line, complete it, and have the shell print its words."""
        self.type(f"\x15{line}\t", result)
        self.type("\x01printf '<%s>' \n", f"<{result}>")

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@pytest.fixture
def shell(hocket: Hocket, agent: Bin, world: Path) -> Iterator[Callable[[str], Shell]]:
    """Start a shell that has the commands and two agents."""
    for name, entry in (("hocket", "main"), ("forkhestra", "forkhestra")):
        code = f"import sys; from hocket.cli import {entry}; sys.exit({entry}())"
        agent(name, "").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
    definitions = hocket.cwd / ".claude/agents"
    definitions.mkdir(parents=True)
    for name in ("smith", "planner"):
        (definitions / f"{name}.md").write_text(f"---\nname: {name}\ndescription: d\n---\nWork.\n")
    started: list[Shell] = []

    def start(name: str) -> Shell:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        started.append(Shell(name, hocket.cwd))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("name", list(SHELLS))
def test_shell_completes_commands_agents_and_runs(
    name: str, shell: Callable[[str], Shell], hocket: Hocket, agent: Bin
) -> None:
    agent("quick", "print('done')")
    hocket("wait", hocket.created("spawn", "quick"))
    typing = shell(name)
    typing.completed("hocket comple", "completion")
    typing.completed("hocket run pla", "planner")
    typing.completed('hocket run "pla', "planner")
    typing.completed("hocket run 'smith -> pla", "smith -> planner")
    typing.completed("forkhestra smi", "smith")
    typing.completed("hocket show ", "1")
    hocket("wait", hocket.created("spawn", "quick"))
    assert re.search(r"2 .*quick", typing.type("\x15hocket logs \t\t", "quick"))


def test_runs_are_offered_with_their_agents(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "print('done')")
    agent("slow", "import time; time.sleep(60)")

    def offered(*words: str, by: str = "bash") -> list[str]:
        return hocket(*words, env={"_HOCKET_COMPLETE": by}).stdout.splitlines()

    assert offered("show", "") == []
    assert hocket("server", "status").stdout.startswith("not running")
    hocket("wait", hocket.created("spawn", "quick"))
    assert offered("show", "") == ["1"]
    hocket("spawn", "slow")
    assert offered("show", "") == ["2  slow", "1  quick"]
    assert offered("show", "", by="fish") == ["2\tslow", "1\tquick"]
    assert offered("stop", "") == ["2"]
    assert offered("logs", "1") == ["1"]
    hocket("stop", "2")


def test_agents_are_completed_within_a_chain(hocket: Hocket, project: Path) -> None:
    folder = project / ".claude/agents"
    folder.mkdir(parents=True)
    (folder / "planner.md").write_text("---\nname: planner\ndescription: d\n---\nPlan.\n")
    for begun in ("pla", "a -> pla", "a:3->pla", "(pla", "(a, pla", "a -> (b,pla"):
        done = hocket("run", begun, env={"_HOCKET_COMPLETE": "bash"})
        assert done.stdout == f"{begun}nner\n"
    assert hocket("run", "a b", env={"_HOCKET_COMPLETE": "bash"}).stdout == ""
