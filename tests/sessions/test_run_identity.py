"""Names, places and tokens of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from store.sample_events import created

from hocket.model import fold
from hocket.sessions.run_identity import directory, new_id, run_of_token, run_token

SECRET = b"secret"


def test_ids_are_short_distinct_and_not_numeric() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(one) == 16 and one.isalnum() and one.islower() and one[0] == "r" for one in ids)


def test_run_directory_has_the_month_of_creation(tmp_path: Path) -> None:
    run = fold([created("rx", 1)])
    assert directory(tmp_path, run) == tmp_path / "runs/1970-01/rx"


def test_token_identifies_only_its_run() -> None:
    token = run_token(SECRET, "rone")
    assert run_of_token(SECRET, token) == "rone"
    assert run_of_token(b"another secret", token) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token.upper(),
        lambda token: token[:-1],
        lambda token: token + "0",
        lambda token: token.replace("rone", "rtwo"),
        lambda token: token.partition(".")[0],
        lambda token: "." + token.partition(".")[2],
        lambda token: token + ".",
        lambda token: "",
        lambda token: "rone.ä",
    ],
)
def test_changed_token_is_invalid(change: object) -> None:
    assert callable(change)
    assert run_of_token(SECRET, change(run_token(SECRET, "rone"))) is None
