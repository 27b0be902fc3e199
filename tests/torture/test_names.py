"""Names that would be something else to a file system, a shell, a URL or a flag parser: refused everywhere, and no file
is looked at because of them.

Every name has a word of its own, and files of that word lie where a name that became part of a path would lead. All
that happens is traced; a word that appears in a system call is a file that was looked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from e2e.test_home_untouched import TRACE, Touch, touches

NAMES: Mapping[str, str | None] = {
    "../bait-up": "bait-up",
    "bait-below/x": "bait-below",
    "%2e%2e%2fbait-coded": "bait-coded",
    "bait-line\n": "bait-line",
    "--bait-flag": "bait-flag",
    ".": None,
    "..": None,
    "bait-wide\uff0fx": "bait-wide",
    "bait-long" + "g" * 56: "bait-long",
    "bait-zero\0": "bait-zero",
    "con": "con",
}
"""Each with the word by which its traces are known, if it has one."""
VALID = "honest"
"""A valid name, to show that the request itself works."""

LOOKING = r"""
import json, os, subprocess, sys
from urllib.parse import quote
from hocket.client import Client
from hocket.errors import HocketError

names, told = json.load(open(sys.argv[1])), {}
client = Client(os.environ["HOCKET_HOME"], None)

def status(method, path, body=None):
    try:
        client.request(method, path, body)
    except HocketError as error:
        return error.status
    return 200

def code(*args):
    return subprocess.run([sys.executable, "-m", "hocket", *args], capture_output=True).returncode

for name in names:
    encoded = quote(name, safe="")
    told[name] = {
        "show": status("GET", f"/api/agents/{encoded}"),
        "show in the project": status("GET", f"/api/agents/{encoded}?project={quote(os.getcwd())}"),
    }
    if "\0" not in name:
        told[name]["agents"] = code("agents", "--json", *(["--"] if name.startswith("-") else []), name)
json.dump(told, open(sys.argv[2], "w"))
"""
RUNNING = (
    LOOKING.partition("for name in names:")[0]
    + r"""
for name in names:
    body = {"agent": name, "prompt": "x", "cwd": os.getcwd(), "env": {"PATH": os.environ["PATH"]}}
    told[name] = {"start": status("POST", "/api/runs", body)}
    if "\0" not in name:
        told[name] |= {command: code(command, name, "-p", "x") for command in ("run", "spawn")}
json.dump(told, open(sys.argv[2], "w"))
"""
)


@pytest.fixture
def baits(world: Path, home: Path, project: Path) -> list[Path]:
    """Definitions and programs beside every folder in which names are looked up, one step out of it."""
    text = "---\nname: {}\ndescription: d\n---\n"
    made = [project / ".claude/agents/any.md"]
    made[0].parent.mkdir(parents=True)
    made[0].write_text(text.format(VALID))
    for folder in (project / ".claude", Path.home() / ".claude", home / "data"):
        (folder / "agents").mkdir(parents=True, exist_ok=True)
        for word in filter(None, NAMES.values()):
            for name in (word, f"{word}.md", f"{word}.json"):
                (folder / name).write_text(text.format(word))
                (folder / name).chmod(0o755)
                made.append(folder / name)
    return made


def traced(world: Path, project: Path, program: str) -> tuple[dict[str, dict[str, int]], list[str]]:
    """What a program told of each name, and every system call of it and of all that it started."""
    if shutil.which("strace") is None:
        pytest.fail("strace is not installed; scripts/test tells how to get it")
    (world / "names.json").write_text(json.dumps([VALID, *NAMES]))
    done = subprocess.run(
        [
            *TRACE,
            world / "trace",
            sys.executable,
            "-c",
            _with_server(program),
            world / "names.json",
            world / "told.json",
        ],
        cwd=project,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, dict[str, int]] = json.loads((world / "told.json").read_text())
    return told, (world / "trace").read_text(errors="replace").splitlines()


def _with_server(program: str) -> str:
    """The server is traced as well, for it is started by what is traced."""
    begin = 'import subprocess, sys\nsubprocess.run([sys.executable, "-m", "hocket", "ps"], check=True)\n'
    end = '\nsubprocess.run([sys.executable, "-m", "hocket", "server", "stop"], check=True)\n'
    return begin + program + end


def because_of(word: str, lines: Sequence[str]) -> set[Touch]:
    """What was looked at under that word. A short one may be part of many, so it counts only alone."""
    words = {word, f"{word}.md", f"{word}.json"}
    return {touch for touch in touches(lines) if touch.path.name in words or ("-" in word and word in str(touch.path))}


def accepted(told: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    """The answers that are no refusal."""
    return {
        (name, how): code
        for name, answers in told.items()
        for how, code in answers.items()
        if not (code == 2 or 400 <= code < 500)
    }


@pytest.mark.req("S2-26", "S2-28")
@pytest.mark.timeout(120)
def test_invalid_name_is_refused_without_file_access(world: Path, project: Path, baits: list[Path]) -> None:
    told, lines = traced(world, project, LOOKING)
    assert told.pop(VALID) == {"show": 404, "show in the project": 200, "agents": 0}
    assert accepted(told) == {}
    assert {word: found for word in filter(None, NAMES.values()) if (found := because_of(word, lines))} == {}
    assert project / ".claude/agents/any.md" in {touch.path for touch in touches(lines)}, "the trace proves nothing"


@pytest.mark.timeout(120)
def test_run_of_invalid_name_searches_only_path(world: Path, project: Path, baits: list[Path]) -> None:
    told, lines = traced(world, project, RUNNING)
    assert told.pop(VALID)["start"] == 400, "there is no CLI to run it with"
    assert accepted(told) == {}
    programs = {Path(folder) for folder in os.environ["PATH"].split(":")}
    as_typed = {project.parent / "bait-up", project / "bait-below/x"}
    for word in filter(None, NAMES.values()):
        paths = {touch.path for touch in because_of(word, lines)} - as_typed
        assert {path for path in paths if path.parent not in programs} == set(), word
    assert not list((world / "h/runs").rglob("spec.json")), "something was started"


def test_traced_access_for_a_name_is_found(world: Path) -> None:
    lines = [
        f'9 openat(AT_FDCWD</p>, "{world}/h/data/agents/../bait-up.json", O_RDONLY) = -1 ENOENT (No such file)',
        f'9 newfstatat(AT_FDCWD<{world}>, "con.md", 0x7f, 0) = 0',
        '9 openat(AT_FDCWD</p>, "/usr/share/icons/console", O_RDONLY) = 3</usr/share/icons/console>',
    ]
    assert {touch.path.name for touch in because_of("bait-up", lines)} == {"bait-up.json"}
    assert {touch.path.name for touch in because_of("con", lines)} == {"con.md"}
