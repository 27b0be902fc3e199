"""Prompts of any length and with any characters reach the model unchanged."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, says
from e2e.commands import run
from world import Hocket

pytestmark = pytest.mark.shared_server

UNUSUAL = (
    "-dash \"quotes\" 'single' `tick` $HOME \\n\nsecond line\ttab \x01\x1b[31m\x7f e\u0301 \ufeff "
    "\U0001f600 \u05e9\u05dc\u05d5\u05dd \u202eRTL end"
)


def prompts_in(body: Any) -> list[str]:
    """The texts of the user messages in a request, in order."""
    contents = [message["content"] for message in body["messages"] if message["role"] == "user"]
    blocks = [block for content in contents for block in ([{"text": content}] if isinstance(content, str) else content)]
    return [block["text"] for block in blocks if not block.get("text", "<").startswith("<system-reminder>")]


@pytest.mark.req("S1-37", "S2-66")
def test_unusual_characters_in_prompt_arrive_unchanged(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(says("fine"))
    assert run(hocket, "claude", "-p", UNUSUAL).code == 0
    assert prompts_in(claude.model.last) == [UNUSUAL]


@pytest.mark.req("S1-37", "S2-57")
def test_megabyte_prompt_arrives_unchanged(claude: ClaudeSetup, hocket: Hocket) -> None:
    prompt = "".join(f"line {number}: \u00e4\U0001f600\n" for number in range(60_000)) + "end"
    assert len(prompt.encode()) > 1_000_000
    claude.use_script(says("fine"))
    assert run(hocket, "claude", "-p", "-", stdin=prompt).code == 0
    (arrived,) = prompts_in(claude.model.last)
    assert hashlib.sha256(arrived.encode()).digest() == hashlib.sha256(prompt.encode()).digest()
