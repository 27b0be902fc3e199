"""A proof by strace: Hocket leaves the real home of the user unchanged and makes no connection to other machines.

Typical commands are traced with all processes that they start: the command line, the server, its keepers, a scripted
agent and the real CLI; and so is the demo. HOME names another folder, so a program that finds the real home must have
looked it up, which is forbidden. The slow tests trace the test suite itself, folder by folder.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from e2e.claude.setup import ENVIRONMENT, real_cli
from world import REAL_USER, Bin, Hocket

from hocket.rehearsal import ScriptedModel, install, parse

TESTS = Path(__file__).parents[1]
REAL_HOME = Path(REAL_USER.pw_dir)
PREFIXES = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
NEEDED = tuple({place for given in (TESTS.parent, *PREFIXES) for place in (given, given.resolve())})
"""What may lie in a home and is needed to run anything: the checkout, the interpreter, the environment."""

SCRIPT = {
    "rules": [
        {
            "when": {"prompt": "make"},
            "do": [
                {"ask": {"tool": "Bash", "input": {"command": "sh -c 'echo x > made'", "description": "make a file"}}},
                {"say": "made"},
            ],
        },
        {"do": [{"say": "hello"}]},
    ]
}
FLOW = """
set -eu
hocket() { "$PYTHON" -m hocket "$@"; }
hocket doctor
HOCKET_CLAUDE=$SCRIPTED hocket run "printer -> claude:2" -p hi || test $? = 1
export HOCKET_CLAUDE=$REAL
hocket run claude -p hi
asking=$(hocket spawn claude -p make --on-question ask)
asking=${asking#run }
for try in $(seq 60); do
    ! hocket show "$asking" --json | grep -q '"needs_you": *true' || break
done
hocket answer "$asking" allow
hocket wait "$asking"
hocket resume "$asking" -p "and now"
hocket doctor
hocket ps -a
hocket logs "$asking"
hocket server stop
"""
TRACE = ("strace", "-f", "-qq", "-y", "--seccomp-bpf", "-e", "trace=%file,connect", "-e", "signal=none", "-o")


# --- Reading a trace ----------------------------------------------------------------------------------------


class Touch(NamedTuple):
    """A file's name in a system call."""

    call: str
    path: Path


CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")
NAMED = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
OPENED = re.compile(r"= \d+<(/[^>]*)>$")
ADDRESS = re.compile(r'sa_family=AF_(\w+)(?:.*?(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)")?')
FIRST_ALONE = ("execve", "execveat", "readlink", "readlinkat")
"""Their other strings are arguments, or the content of a link."""
IGNORED_CALLS = ("getcwd", "connect")


def touches(lines: Sequence[str]) -> Iterator[Touch]:
    """Every path in the system calls, made absolute, and the resolved path of opened files."""
    for line in lines:
        found = CALL.match(line)
        if found is None or found[1] in IGNORED_CALLS:
            continue
        call, rest = found[1], found[2]
        if call in FIRST_ALONE and "resumed>" in line[: found.start(2)]:
            continue  # The rest of a call that another one interrupted: its first string was in the line before.
        named = NAMED.findall(rest)
        for folder, name in named[:1] if call in FIRST_ALONE else named:
            if name.startswith("/") or folder.startswith("/"):
                yield Touch(call, Path(os.path.normpath(Path(folder or "/", name))))
        if opened := OPENED.search(rest):
            yield Touch(call, Path(opened[1]))


def forbidden_accesses(lines: Sequence[str], home: Path, needed: Sequence[Path]) -> set[Touch]:
    return {touch for touch in touches(lines) if touch.path.is_relative_to(home) and not _is_permitted(touch, needed)}


def _is_permitted(touch: Touch, needed: Sequence[Path]) -> bool:
    """Whether the path is needed, or a folder above it: programs ask which of these are links, and an interpreter
    looks for its library in each of them. Opening such a folder would read it, which is not permitted."""
    path = touch.path
    if any(path.is_relative_to(place) for place in needed):
        return True
    above = {folder for place in needed for folder in place.parents}
    looked_for = path.parent.name in ("lib", "lib64") and path.name.startswith("python")
    return (path in above and not touch.call.startswith("open")) or (looked_for and path.parents[1] in above)


def remote_connections(lines: Sequence[str]) -> set[str]:
    """The calls that try to connect to another machine."""
    calls = (found[2] for line in lines if (found := CALL.match(line)) and found[1] == "connect")
    return {call for call in calls if (found := ADDRESS.search(call)) and not _is_local(found[1], found[2])}


def _is_local(family: str, address: str | None) -> bool:
    if family in ("INET", "INET6"):
        return address is not None and ipaddress.ip_address(address).is_loopback
    return family in ("UNIX", "UNSPEC", "NETLINK")


# --- The proof ----------------------------------------------------------------------------------------------


class TraceOutput(NamedTuple):
    """The output of a program, and the traced system calls of all its processes."""

    code: int
    said: str
    lines: list[str]


def trace(world: Path, argv: Sequence[str | Path], cwd: Path, env: Mapping[str, str], seconds: float) -> TraceOutput:
    if shutil.which("strace") is None:
        pytest.fail("strace is not installed: install the package strace")
    done = subprocess.run(
        [*TRACE, world / "trace", *argv],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    lines = (world / "trace").read_text(encoding="utf-8", errors="replace").splitlines()
    return TraceOutput(done.returncode, done.stdout + done.stderr, lines)


def assert_home_and_network_untouched(lines: Sequence[str]) -> None:
    assert remote_connections(lines) == set()
    if REAL_HOME.parent != REAL_HOME:  # the home of a user without one is /
        assert forbidden_accesses(lines, REAL_HOME, NEEDED) == set()


def test_commands_leave_real_home_and_network_untouched(world: Path, hocket: Hocket, agent: Bin) -> None:
    agent("printer", "print('printed')")
    script = world / "script.json"
    script.write_text(json.dumps(SCRIPT), encoding="utf-8")
    scripted = install(world / "scripted", script, world / "state")
    programs = {"PYTHON": sys.executable, "SCRIPTED": str(scripted), "REAL": str(real_cli())}
    with ScriptedModel(parse(SCRIPT)) as model:
        env = {**os.environ, **ENVIRONMENT, **programs, "ANTHROPIC_BASE_URL": model.url}
        code, said, lines = trace(world, ["/bin/sh", "-c", FLOW], hocket.cwd, env, 50)
        assert not model.uncovered
    assert code == 0, said
    assert (hocket.cwd / "made").read_text() == "x\n"
    seen = {touch.path for touch in touches(lines)}
    # Without these the trace proves nothing: our own state, and the other home, accessed by the real CLI.
    assert {world / "h/hocket.db", world / "user/.claude.json", real_cli()} <= seen
    assert_home_and_network_untouched(lines)


def test_demo_leaves_real_home_and_network_untouched(world: Path, hocket: Hocket) -> None:
    env = {**os.environ, **ENVIRONMENT, "HOCKET_CLAUDE": str(real_cli())}
    code, said, lines = trace(world, [sys.executable, "-m", "hocket", "demo"], hocket.cwd, env, 50)
    assert code == 0, said
    assert real_cli() in {touch.path for touch in touches(lines)}
    assert_home_and_network_untouched(lines)


FOLDERS = sorted(path.name for path in TESTS.iterdir() if path.is_dir() and path.name not in ("torture", "__pycache__"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("folder", [*FOLDERS, "."])
def test_suite_leaves_real_home_and_network_untouched(world: Path, folder: str) -> None:
    """Without the tests that use strace themselves: a process cannot be traced twice.

    A few may fail, because tracing changes signals and times; the untraced suite shows that they pass.
    """
    files = sorted((TESTS / folder).rglob("test_*.py") if folder != "." else TESTS.glob("test_*.py"))
    tests = [path for path in files if "strace" not in path.read_text(encoding="utf-8")]
    path_folders = [folder for folder in os.environ["PATH"].split(":") if not _is_in_the_real_home(folder)]
    env = {**os.environ, "HOME": str(world / "user"), "PATH": ":".join(path_folders), "PYTEST_ADDOPTS": ""}
    argv: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-n", "2", *tests]
    _code, said, lines = trace(world, argv, TESTS.parent, env, 1400)
    summary = [line for line in said.splitlines() if re.search(r" in [\d.]+s\b", line)][-1]
    ended = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|errors?)\b", summary)}
    assert ended.pop("passed", 0) > 20 * sum(ended.values()), said[-5000:]
    assert set(tests) <= {touch.path for touch in touches(lines)}
    assert_home_and_network_untouched(lines)


def _is_in_the_real_home(folder: str) -> bool:
    return Path(folder).is_relative_to(REAL_HOME) and not any(Path(folder).is_relative_to(place) for place in NEEDED)


# --- Detection ----------------------------------------------------------------------------------------------

HERE = 'AT_FDCWD</tmp/p>, "'
PERMITTED = (
    f'9 openat({HERE}/home/u/src/hocket/a.py", O_RDONLY) = 3</home/u/src/hocket/a.py>',
    f'9 newfstatat({HERE}/home/u/src", {{st_mode=S_IFDIR}}, AT_SYMLINK_NOFOLLOW) = 0',
    f'9 newfstatat({HERE}/home/u/lib/python311.zip", 0x7f, 0) = -1 ENOENT (No such file or directory)',
    '9 readlink("/tmp/link", "/home/u/.claude", 4096) = 15',
    '9 <... readlink resumed>"/home/u/.claude", 4096) = 15',
    '9 execve("/bin/sh", ["sh", "-c", "ls /home/u/.claude"], 0x7f /* 9 vars */) = 0',
    '9 getcwd("/home/u", 4096) = 8',
    f'9 openat({HERE}/home/us/x", O_RDONLY) = 3</home/us/x>',
    f'9 openat({HERE}up", O_RDONLY) = 3</tmp/p/up>',
)
FORBIDDEN = (
    f'9 openat({HERE}/home/u/.claude.json", O_RDONLY) = -1 ENOENT (No such file or directory)',
    f'9 newfstatat({HERE}/home/u/.claude", {{st_mode=S_IFDIR}}, 0) = 0',
    f'9 openat({HERE}/home/u", O_RDONLY|O_DIRECTORY) = 3</home/u>',
    f'9 openat({HERE}/tmp/link/x", O_RDONLY) = 3</home/u/x>',
    f'9 openat({HERE}../../home/u/x", O_RDONLY <unfinished ...>',
    "9 <... openat resumed>) = 3</home/u/x>",
    '9 readlink("/home/u/.claude", <unfinished ...>',
    '9 openat(5</home/u>, "x", O_RDONLY) = -1 EACCES (Permission denied)',
    '9 rename("/tmp/a", "/home/u/b") = 0',
    '9 access("/home/u/src/other", R_OK) = 0',
)
LOCAL = (
    '9 connect(3<socket:[1]>, {sa_family=AF_UNIX, sun_path="/tmp/hk/h/sock"}, 26) = 0',
    '9 connect(3<socket:[1]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("127.0.0.9")}, 16) = 0',
    '9 connect(3<socket:[1]>, {sa_family=AF_INET6, inet_pton(AF_INET6, "::1", &sin6_addr)}, 28) = 0',
    "9 <... connect resumed>) = -1 EINPROGRESS (Operation now in progress)",
)
REMOTE = (
    '9 connect(3<socket:[1]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.0.0.2")}, 16) = 0',
    '9 connect(3<socket:[1]>, {sa_family=AF_INET6, inet_pton(AF_INET6, "2001:db8::", &sin6_addr)}, 28 <unfinished ...>',
    "9 connect(3<socket:[1]>, {sa_family=AF_VSOCK, svm_cid=2}, 16) = 0",
)


@pytest.mark.parametrize("line", PERMITTED)
def test_necessary_file_access_is_permitted(line: str) -> None:
    assert forbidden_accesses([line], Path("/home/u"), [Path("/home/u/src/hocket")]) == set()


@pytest.mark.parametrize("line", FORBIDDEN)
def test_access_to_home_is_detected(line: str) -> None:
    assert forbidden_accesses([line], Path("/home/u"), [Path("/home/u/src/hocket")])


@pytest.mark.parametrize("line", LOCAL)
def test_local_connection_is_permitted(line: str) -> None:
    assert remote_connections([line]) == set()


@pytest.mark.parametrize("line", REMOTE)
def test_remote_connection_is_detected(line: str) -> None:
    assert remote_connections([line])


def test_real_home_is_never_home_of_test(project: Path) -> None:
    assert Path.home() != REAL_HOME
    assert Path(pwd.getpwuid(os.getuid()).pw_dir) != REAL_HOME
    inner = f"import os\ndef test_it(): os.environ['HOME'] = {REAL_USER.pw_dir!r}\n"
    (project / "test_inner.py").write_text(inner)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "HOME is the real one" in done.stdout, done.stdout + done.stderr
