"""What ``hocket gc`` keeps: the user's own configuration says so, and a project must not."""

from __future__ import annotations

from pathlib import Path

import pytest
from config.test_config import of_project, put, refused

from hocket.config.settings import Keep
from hocket.input_limits import parse_size


def test_keep_is_read_from_the_users_file(project: Path, home: Path) -> None:
    assert of_project(project, home).keep == Keep(None, None, None)
    put(home / "config.toml", '[keep]\ndays = 30\nruns = 500\nbytes = "1.5 GB"')
    assert of_project(project, home).keep == (30, 500, 3 * 512 * 1024**2)
    put(home / "config.toml", "[keep]\ndays = 0.5\nbytes = 4096")
    assert of_project(project, home).keep == (0.5, None, 4096)


@pytest.mark.parametrize(
    "wrong", ["days = 0", 'days = "30"', "runs = 0", "runs = 1.5", 'bytes = "many"', "bytes = 0", "bytes = true"]
)
def test_keep_with_a_wrong_value_is_refused(project: Path, home: Path, wrong: str) -> None:
    put(home / "config.toml", f"[keep]\n{wrong}")
    error = refused(project, home)
    assert wrong.split(maxsplit=1)[0] in error.message
    assert "[keep]" in error.message


def test_keep_in_a_project_file_is_refused(project: Path, home: Path) -> None:
    put(project / "hocket.toml", "[keep]\nruns = 1")
    assert "[keep] is not allowed in a project's file" in refused(project, home).message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        (500, 500),
        ("2kB", 2048),
        ("500 MB", 500 * 1024**2),
        ("10g", 10 * 1024**3),
        ("1.5 GiB", 3 * 512 * 1024**2),
        ("1T", 1024**4),
        ("", None),
        ("-1", None),
        (-1, None),
        ("1 000", None),
        ("1e3", None),
        ("10 PB", None),
        ("GB", None),
        ("٣", None),
        (True, None),
        (1.5, None),
    ],
)
def test_size_has_units_of_1024(text: object, size: int | None) -> None:
    assert parse_size(text) == size
