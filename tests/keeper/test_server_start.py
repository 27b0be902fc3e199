"""Starting a server that is detached from its caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from keeper.keeping import wait_for
from patience import PATIENCE

from hocket.keeper.server_start import server_environment, start_server

REPORT = """
import json, os, sys
print("to the log", flush=True)
facts = {
    "argv": sys.argv[1:], "pid": os.getpid(), "ppid": os.getppid(), "sid": os.getsid(0), "cwd": os.getcwd(),
    "fds": sorted(fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)),
    "env": {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PY"))},
}
home = os.environ["HOCKET_HOME"]
open(home + "/facts.tmp", "w").write(json.dumps(facts))
os.rename(home + "/facts.tmp", home + "/facts")
open(home + "/gate").read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A folder with a package of our name that reports how it was started."""
    package = tmp_path / "lib" / "hocket"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(REPORT)
    return str(package.parent)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO: the reporting server ends when a test writes to it."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def test_server_is_detached_and_marked(tmp_path: Path, path: str, gate: Path) -> None:
    leaked = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    env = {"PYTHONPATH": path, "PATH": "/bin", "HOCKET_RUN": "r", "HOCKET_TOKEN": "t", "HOCKET_PORT": "0"}
    start_server(str(tmp_path), env)
    os.close(leaked)
    wait_for((tmp_path / "facts").exists, "the server")
    facts = json.loads((tmp_path / "facts").read_text())
    assert facts["argv"] == ["serve"]
    assert facts["cwd"] == str(tmp_path)
    assert facts["fds"] == ["0", "1", "2"]
    assert facts["sid"] not in (os.getsid(0), facts["pid"])
    assert facts["ppid"] != os.getpid()
    assert facts["env"] == {
        "PATH": "/bin",
        "HOCKET_PORT": "0",
        "HOCKET_SERVER": "1",
        "HOCKET_HOME": str(tmp_path),
    }
    gate.write_text("")
    # In its log: appended, private, with what the server said.
    log = tmp_path / "server.log"
    assert log.read_text() == "to the log\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_caller_has_no_child_to_wait_for(tmp_path: Path, path: str, gate: Path) -> None:
    """Run in a process of its own, where any child at all would be the server or its helper."""
    source = str(Path(start_server.__code__.co_filename).parents[2])
    code = (
        f"import os, sys; sys.path.insert(0, {source!r})\n"
        "from hocket.keeper.server_start import start_server\n"
        f"start_server({str(tmp_path)!r}, {{'PYTHONPATH': {path!r}}})\n"
        "try: os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError: print('no child')\n"
    )
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True, timeout=PATIENCE)
    assert answer.stdout == b"no child\n"
    wait_for((tmp_path / "facts").exists, "the server")
    gate.write_text("")


def test_variables_of_a_run_are_removed() -> None:
    kept = {
        "PATH": "/bin",
        "HOCKET_CLAUDE": "/x",
        "HOCKET_PORT": "0",
        "ANTHROPIC_API_KEY": "k",
        "AGENTS": "a",
    }
    run = dict.fromkeys(
        ["HOCKET_RUN", "HOCKET_TOKEN", "HOCKET_TASK", "HOCKET_URL", "CLAUDE_AGENT_ID", "AGENT_PROMPT"], "x"
    )
    assert server_environment({**kept, **run}) == {**kept, "HOCKET_SERVER": "1"}


def test_import_loads_no_other_module() -> None:
    """It lies on the command line's hot path: nothing that a bare interpreter has not loaded already."""
    source = str(Path(start_server.__code__.co_filename).parents[2])
    code = (
        f"import sys; sys.path.insert(0, {source!r}); import collections.abc, __future__, typing\n"
        "before = set(sys.modules); import hocket.keeper.server_start; print(sorted(set(sys.modules) - before))"
    )
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['hocket', 'hocket.keeper', 'hocket.keeper.server_start']"
