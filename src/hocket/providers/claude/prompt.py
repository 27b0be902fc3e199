"""What an agent is told: one line of JSON for each message, checked before it is sent."""

from __future__ import annotations

import json

from hocket.errors import PromptError
from hocket.providers.limits import STDIN_PROMPT_LIMIT, bytes_of

DEFAULT_PROMPT = "Begin: do what your instructions describe."
"""What an agent is told when its caller says nothing: it does not start without a first message."""


GO_ON = "Go on where you stopped."
"""The same for one whose session is taken up again."""


def message(text: str) -> str:
    """The line that tells an agent this text. One without a word would begin no turn, so nobody would answer it."""
    if not text.strip():
        raise PromptError("there is nothing in the message", "say what is to be done")
    bytes_of(text, "the message", PromptError)
    return line({"type": "user", "message": {"role": "user", "content": text}})


def line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def checked_prompt(agent: str, prompt: str | None) -> str:
    """The prompt, or what stands for none, if it can be delivered."""
    text = prompt if prompt and prompt.strip() else DEFAULT_PROMPT
    size = len(message(text).encode())
    if size > STDIN_PROMPT_LIMIT:
        raise PromptError(
            f"the prompt for {agent} has {size} bytes on its way; the limit is {STDIN_PROMPT_LIMIT // 1024} KiB",
            "put it into a file and have the agent read that",
        )
    return text
