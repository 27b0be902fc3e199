"""The Claude CLI in a terminal: what is typed, and the verdict on a session whose output is a screen."""

from __future__ import annotations

import re

from hocket.errors import PromptError
from hocket.model import Reason, Run, Status
from hocket.providers.base import ProcessExit, TerminalMode, Verdict, exit_verdict
from hocket.providers.launching import DEFAULT_PROMPT, check_argument_prompt, encoded, prompt_or

_PASTE = "\x1b[200~{}\x1b[201~"
"""Bracketed paste: line ends inside it are part of the text."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and line feed: an escape in a text could end the paste and press any key."""
_CLEAR = "\x15" * 20
"""Control-U, once for each line and each line end that the input may have: a longer prompt is one placeholder in it."""
_HINT = "put it into a file and have the agent read that"


def checked_prompt(agent: str, prompt: str | None, default: str = DEFAULT_PROMPT) -> str:
    return check_argument_prompt(agent, prompt_or(default, prompt), _HINT)


def message(text: str) -> str:
    """The keys that paste a message. Carriage returns become line ends, other control characters are left out."""
    if not text.strip():
        raise PromptError("the message is empty", "write what the agent is to do")
    encoded(text, "the message", PromptError)
    return _PASTE.format(_CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def verdict(run: Run, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's name for it
    """By the exit, and of a session that ended by itself by its last turn."""
    at_zero = (Status.FAILED, Reason.ERROR) if run.error is not None else (Status.DONE, Reason.EXIT)
    return exit_verdict(exit, stop_reason, at_zero)


terminal = TerminalMode(
    message=message,
    enter="\r",
    interrupt=lambda _: "\x1b",
    clear=_CLEAR,
    goodbye=f"{_CLEAR}/exit\r",
    verdict=verdict,
)
