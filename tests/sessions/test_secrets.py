"""Which variables of an environment are secrets."""

from __future__ import annotations

import pytest

from hocket.sessions.secrets import secrets_of

LONG = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    "name",
    [
        *("ANTHROPIC_API_KEY", "HOCKET_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "npm_config__auth_TOKEN"),
        *("GITHUB_PAT", "ANTHROPIC_AUTH_TOKEN", "KEY", "token"),
    ],
)
def test_keys_and_tokens_are_secrets(name: str) -> None:
    assert secrets_of({name: LONG, "PATH": "/usr/bin:/bin:/usr/local/bin"}) == {name: LONG}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ANTHROPIC_API_KEY", "short"), ("SSH_KEY", "/home/me/.ssh/id_ed25519"), ("KEYBOARD_LAYOUT", LONG)),
        *(("MONKEY", LONG), ("SECRET", "two words are no secret"), ("TOKENIZERS_PARALLELISM", LONG)),
    ],
)
def test_other_values_are_none(name: str, value: str) -> None:
    assert secrets_of({name: value}) == {}
