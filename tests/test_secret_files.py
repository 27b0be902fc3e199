"""Which variables are secret, and how a record refers to their values."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hocket import secret_files

KEY = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ANTHROPIC_API_KEY", "short"), ("OPENAI_APIKEY", KEY), ("GPG_PASSPHRASE", "two words"), ("KEY", "/a/path")),
        *(("ANTHROPIC_CUSTOM_HEADERS", "X-Api: 1"), ("AWS_SECRET_ACCESS_KEY", "/base64"), ("github_pat", "x")),
        *(("HTTPS_PROXY", "http://me:word@proxy:3128"), ("DATABASE_URL", "postgres://:word@db/x")),
    ],
)
def test_name_or_password_makes_a_variable_secret(name: str, value: str) -> None:
    assert secret_files.is_secret(name, value)
    assert (secret_files.secret_part({name: value}), secret_files.public_part({name: value})) == ({name: value}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PATH", "/usr/bin"), ("MONKEY", KEY), ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "32000"), ("A_KEY", "")),
        *(("HTTPS_PROXY", "http://proxy:3128"), ("HTTPS_PROXY", "http://me@proxy:3128"), ("TOKENIZERS", KEY)),
        *(("HOCKET_URL", "unix:/run/a:b@c"), ("X_URL", "http://host:1/a@b")),
    ],
)
def test_other_variables_are_public(name: str, value: str) -> None:
    assert not secret_files.is_secret(name, value)


def test_added_values_keep_earlier_positions() -> None:
    first = secret_files.with_added({}, [{"A_KEY": "1", "PATH": "/bin"}, {"A_KEY": "2"}])
    assert first == {"A_KEY": ["1", "2"]}
    assert secret_files.with_added(first, [{"A_KEY": "2", "B_KEY": "3"}, {"A_KEY": "0"}]) == {
        "A_KEY": ["1", "2", "0"],
        "B_KEY": ["3"],
    }


def test_concealed_record_is_revealed_unchanged() -> None:
    record = json.dumps({"agent": "a", "env": {"A_KEY": "2", "B": "x"}, "prompt": '{"secrets":1}'}).encode()
    values = {"A_KEY": ["1", "2"]}
    concealed = secret_files.conceal(record, values)
    assert json.loads(concealed)["secrets"] == {"A_KEY": 1}
    assert secret_files.secret_names(concealed) == {"A_KEY"}
    revealed = secret_files.reveal(concealed, lambda name, position: values[name][position])
    assert json.loads(revealed) == json.loads(record)


def test_value_without_file_stays_in_its_record() -> None:
    record = json.dumps({"agent": "a", "env": {"A_KEY": "2"}}).encode()
    assert json.loads(secret_files.conceal(record, {"A_KEY": ["1"]})) == json.loads(record)


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    folder, owner = tmp_path / "secrets", "r" + "a" * 15
    secret_files.write_values(folder, owner, {"A_KEY": ["1"]})
    os.mkdir(folder / f".{owner}.new")
    with pytest.raises(OSError, match="directory"):
        secret_files.write_values(folder, owner, {"A_KEY": ["2"]})
    assert secret_files.read_values(folder, owner) == {"A_KEY": ["1"]}
    assert (folder / owner).stat().st_mode & 0o777 == 0o600


def test_concurrent_threads_make_a_private_folder(tmp_path: Path) -> None:
    """A start and the clean-up of earlier records both make it."""
    ready = threading.Barrier(2)

    def make(folder: Path) -> int:
        ready.wait()
        secret_files.make_folder(folder)
        return folder.stat().st_mode & 0o777

    with ThreadPoolExecutor(2) as threads:
        modes = [mode for turn in range(300) for mode in threads.map(make, [tmp_path / str(turn)] * 2)]
    assert modes == [0o700] * 600


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"values": 1}', b'{"values": {"A": 1}}', b"\xff"])
def test_foreign_file_of_secrets_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        secret_files.read_values(tmp_path, "r")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_special_file_of_secrets_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "r0123456789abcdef")
    with pytest.raises((OSError, ValueError)):
        secret_files.read_values(tmp_path, "r0123456789abcdef")
