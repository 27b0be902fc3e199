"""Shell completion: the scripts, and the answers that they ask for."""

from __future__ import annotations

import sys

from world import Bin, Hocket

from hocket.cli.completion import candidates


def words_for(*typed: str) -> list[str]:
    return candidates(list(typed))


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
