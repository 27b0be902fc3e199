"""What a user installs: the built wheel works by itself, with no source tree in reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from world import Bin, Hocket

import hocket as source_tree

ROOT = Path(__file__).parents[1]

# Building and installing take seconds on a busy machine.


def _run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A folder that holds the unpacked wheel and its scripts; the dependencies are those of the tests."""
    with TemporaryDirectory(prefix="hk-wheel-") as name:
        folder = Path(name).resolve()
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run(*pip, "--no-index", "--no-deps", "--target", folder / "site", wheel)
        yield folder / "site"


@pytest.fixture
def first_on_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PYTHONPATH comes before an editable install, so the wheel's copy is the one that counts."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    return installed


def test_imported_package_is_that_of_the_wheel(first_on_path: Path, project: Path) -> None:
    found = Path(_run(sys.executable, "-c", "import hocket; print(hocket.__file__)", cwd=project).strip())
    assert found.is_relative_to(first_on_path)
    assert (found.parent / "py.typed").exists()


def test_wheel_has_every_module_of_the_source(installed: Path) -> None:
    source = Path(source_tree.__file__).parent
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    assert modules == {path.relative_to(installed / "hocket") for path in (installed / "hocket").rglob("*.py")}


def test_hocket_prints_its_version(first_on_path: Path, project: Path) -> None:
    assert source_tree.__version__ in _run(first_on_path / "bin/hocket", "--version", cwd=project)


def test_forkhestra_prints_its_help(first_on_path: Path, project: Path) -> None:
    assert "--chain" in _run(first_on_path / "bin/forkhestra", "--help", cwd=project)


@pytest.mark.req("S2-86")
def test_run_completes_with_only_the_wheel(first_on_path: Path, hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("greeter", "print('hello from the wheel')")
    done = hocket("run", "greeter", "--json", command=[str(first_on_path / "bin/hocket")])
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    assert ended["type"] == "run.ended"
    assert ended["data"]["status"] == "done"
    assert "hello from the wheel" in ended["data"]["result"]
