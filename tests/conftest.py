"""Fixtures for every test. What they are made of is in ``world.py``."""

from __future__ import annotations

import gc
import os
import pwd
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from world import REAL_USER, Bin, Hocket, SharedServer, clean_environment, end_world, make_root, remove_root

pytest_plugins = ["req_report", "scheduling"]

SLOW_SECONDS = 300


def pytest_configure(config: pytest.Config) -> None:
    """Give code that runs between tests, or for several of them, an empty home too."""
    home = tempfile.TemporaryDirectory(prefix="hk-home-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    os.environ["HOME"] = home.name
    # Without a HOME it is the system that says whose home it is, and that knows the real one.
    pwd.getpwuid = lambda uid: pwd.struct_passwd((*REAL_USER[:5], home.name, REAL_USER.pw_shell))


def pytest_collection_finish() -> None:
    """What was loaded up to here stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """No test sees the real home, and none leaves it behind for what it started."""
    assert os.environ.get("HOME") != REAL_USER.pw_dir, "HOME is the real one"
    yield
    assert os.environ.get("HOME") != REAL_USER.pw_dir, "HOME is the real one"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No finalizer runs while a report is made: both may have to parse source, to show where something went wrong.

    Python before 3.11.9 and 3.12.3 cannot do the one within the other, and the whole session would end with it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests get a limit too, only a longer one than the default in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    """The one of all tests that are marked so. It comes up when the first of them is set up."""
    server = SharedServer()
    yield server
    survivors = server.close()
    assert not survivors, f"left running: {survivors}"


def _is_shared(test: pytest.Item) -> bool:
    """A file may be marked as a whole; a test in it that needs a server of its own says so."""
    return bool(test.get_closest_marker("shared_server") and not test.get_closest_marker("own_server"))


@pytest.fixture(autouse=True)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh user on a fresh machine, but for its server if that is shared. Nothing that it starts outlives it."""
    shared = request.getfixturevalue("shared_server") if _is_shared(request.node) else None
    if shared:
        shared.bring_up()
    root = make_root()
    wanted = clean_environment(os.environ, root)
    for name in os.environ.keys() - wanted.keys():
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    home = shared.home if shared else Path(wanted["HOCKET_HOME"])
    monkeypatch.setenv("HOCKET_HOME", str(home))
    try:
        yield root
        # The test may have moved HOCKET_HOME; what is asked for here is this world's own.
        monkeypatch.setenv("HOCKET_HOME", str(home))
        survivors = _end(home, shared, root)
    finally:
        remove_root(root)
    if survivors:
        pytest.fail(f"left running: {survivors}", pytrace=False)


def _end(home: Path, shared: SharedServer | None, root: Path) -> dict[int, str]:
    if shared:
        return shared.clear(Hocket(root))
    return end_world(home, Hocket(root)) if home.exists() else {}


@pytest.fixture
def home(world: Path) -> Path:
    """HOCKET_HOME: it exists and has a short name. Without a shared server it is empty."""
    path = Path(os.environ["HOCKET_HOME"])
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@pytest.fixture
def project(world: Path) -> Path:
    """An empty working directory, away from the checkout."""
    path = world / "p"
    path.mkdir()
    return path


@pytest.fixture
def agent(world: Path) -> Bin:
    """``agent(name, body)`` puts a small program on PATH."""
    return Bin(world / "bin")


@pytest.fixture
def hocket(request: pytest.FixtureRequest, home: Path, project: Path) -> Iterator[Hocket]:
    """``hocket("run", "a -> b")`` runs the real command line in the project's directory."""
    command = Hocket(project, in_process=request.node.get_closest_marker("in_process") is not None)
    yield command
    command.close()
