"""The small things that several commands need."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.cli import access
from hocket.errors import BadDirectory


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        ("done", "single_run", 0),
        ("failed", "exit", 1),
        ("failed", "no_answer", 4),
        ("failed", "budget", 5),
        ("stopped", "stopped", 1),
        ("lost", None, 1),
    ],
)
def test_ended_run_has_its_exit_code(status: str, reason: str | None, code: int) -> None:
    assert access.exit_code(status, reason) == code


@pytest.mark.parametrize(("result", "text"), [(None, ""), ("", ""), ("a", "a\n"), ("a\n", "a\n"), ("\x1b[1ma", "a\n")])
def test_result_ends_with_one_newline(result: str | None, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    access.print_result(result)
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("result", "text"),
    [("10%\r100%\ndone", "10%\n100%\ndone\n"), ("a\r\nb\r\n", "a\nb\n"), ("only\r", "only\n"), ("\r", "\n")],
)
def test_overwritten_lines_of_a_result_are_kept(result: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    access.print_result(result)
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ('[env]\npass = ["EXTRA"]\n', True),
        ('env.pass = ["EXTRA"]\n', True),
        ('["\\u0065nv"]\npass = ["EXTRA"]\n', True),
        ("[limits]\ndepth = 3\n", False),
        ("", False),
    ],
)
def test_configured_variables_are_sent(
    text: str, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EXTRA", "more")
    (tmp_path / "hocket.toml").write_text(text)
    assert ("EXTRA" in access.environment(str(tmp_path))) is passed


def test_lost_working_directory_hints_at_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadDirectory, match="no longer exists") as caught:
        access.directory(None)
    assert "--cwd" in str(caught.value.hint)
    assert access.directory("/tmp") == "/tmp"
