"""The real CLI lists the agents it has loaded, and Hocket lists the same ones."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from e2e.claude.setup import ENVIRONMENT, real_cli
from e2e.claude.unusual_definitions import definitions
from patience import PATIENCE

from hocket.catalog.entries import Found
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.sources import projects

CORPORA = os.environ.get("HOCKET_CORPORA")
QUESTION = {"type": "control_request", "request_id": "1", "request": {"subtype": "initialize"}}
NAME = re.compile(r"q[0-9]{3,5}")


def list_agents(project: Path, home: Path) -> dict[str, str]:
    """The agents that the CLI lists in a directory: names and descriptions. No request to a model is needed."""
    env = {**ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "HOME": str(home), "PATH": "/usr/bin:/bin"}
    argv = [str(real_cli()), "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    question = json.dumps(QUESTION).encode() + b"\n"
    done = subprocess.run(
        argv, input=question, cwd=project, env=env, capture_output=True, timeout=PATIENCE, check=False
    )
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said["type"] == "control_response":
            return {agent["name"]: agent["description"] for agent in said["response"]["response"]["agents"]}
    raise AssertionError(done.stderr.decode())


@functools.cache
def built_in_agents() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as empty:
        return list_agents(Path(empty), Path(home))


def listed_by_the_cli(project: Path, tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    own = built_in_agents()
    return {name: words for name, words in list_agents(project, home).items() if own.get(name) != words}


def write(project: Path, contents: dict[str, bytes]) -> Path:
    folder = project / ".claude" / "agents"
    folder.mkdir(parents=True)
    (project / ".git").mkdir()
    for name, content in contents.items():
        (folder / f"{name}.md").write_bytes(content)
    return folder


def scanned(project: Path) -> Found:
    (found,) = projects(FileProbe(), str(project), {})
    return found


def refused_only_by_hocket(scan: Found) -> set[str]:
    """The agents that Hocket refuses and the CLI loads: each file is named after its agent."""
    stems = (Path(problem.path).stem for problem in scan.problems if problem.kind == "refused" and problem.cli_loads)
    return {match[0] for stem in stems if (match := NAME.match(stem))}


@pytest.mark.req("S4-48")
def test_unusual_definitions_are_listed_as_by_cli(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(project, definitions())
    theirs, scan = listed_by_the_cli(project, tmp_path), scanned(project)
    ours = {entry.name: entry.description for entry in scan.entries}
    alone = {name for name in theirs if (match := NAME.search(name)) and match[0] in refused_only_by_hocket(scan)}
    assert len(ours) > 200
    assert {name: words for name, words in theirs.items() if name not in alone} == ours
    assert {NAME.findall(name)[0] for name in alone} == refused_only_by_hocket(scan)


# --- Duplicates ---------------------------------------------------------------------------------------------

DUPLICATES = 40


def write_duplicates(folder: Path, chance: random.Random) -> None:
    """Write several files for each name, in folders at several depths, some of them behind links."""
    places = [".", "a", "z", "m", "a/b", "a/b/c", "z/y"]
    for place in chance.sample(places, len(places)):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for link, target in chance.sample([("l1", "a"), ("z/l2", "a/b"), ("m/up", "."), ("l3", "z/y")], 4):
        (folder / link).symlink_to(folder / target)
    for number in range(DUPLICATES):
        files = chance.sample([f"{place}/q{number:03}-{copy}.md" for place in places for copy in range(3)], 5)
        for file in files:
            (folder / file).write_text(f"---\nname: q{number:03}\ndescription: {file}\n---\nb\n")
        os.link(folder / files[0], folder / f"q{number:03}-hard.md")
        (folder / f"q{number:03}-soft.md").symlink_to(folder / files[1])


@pytest.mark.req("S4-50")
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_duplicate_definitions_resolve_as_by_cli(tmp_path: Path, kind: str) -> None:
    """On two file systems, which list files in different orders."""
    if kind == "memory" and not os.path.ismount("/dev/shm"):
        pytest.skip("this machine has no file system in memory")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if kind == "memory" else tmp_path) as place:
        project = Path(place)
        write_duplicates(write(project, {}), random.Random(1))
        theirs, scan = listed_by_the_cli(project, tmp_path), scanned(project)
        ours = {entry.name: entry.description for entry in scan.entries}
    by_path = {f"q{number:03}": min(words for words in _described(scan, number)) for number in range(DUPLICATES)}
    assert sum(theirs[name] != words for name, words in by_path.items()) > DUPLICATES // 4, (
        "the order of the file system is that of the paths"
    )
    assert ours == theirs


def _described(scan: Found, number: int) -> list[str]:
    """The paths of all files of a name: those reported as duplicates and the one in the catalog."""
    files = [problem.path for problem in scan.problems if f"q{number:03}-" in problem.path]
    files += [entry.path for entry in scan.entries if entry.name == f"q{number:03}"]
    return [path.partition("/.claude/agents/")[2] for path in files]


# --- Mutations ----------------------------------------------------------------------------------------------

SIGNS = (*":-#\"'[]{}&*!|>%@`?,\\/<~=. \t\n\r0aZ_", "\u2028", "\u00a0", "\x07", "\n\n", "\n  ", "\n\t", ": ", " #")
AROUND = (
    "'{}'",
    '"{}"',
    "[{}]",
    "{{{}}}",
    "&a {}",
    "*{}",
    "!t {}",
    "|\n  {}",
    "`{}`",
    "@{}",
    "- {}",
    "{}: x",
    "**{}**",
)
FILES = 1000
MOST_DIFFERENCES = FILES // 200
"""Tolerated, because only tabs and special characters in unrealistic places still differ."""


def real_heads() -> list[str]:
    assert CORPORA
    with tarfile.open(Path(CORPORA, "agents.tar.gz")) as archive:
        files = sorted((file for file in archive if file.name.endswith(".md")), key=lambda file: file.name)
        contents = [
            found.read(8000).decode("utf-8", "replace") for file in files if (found := archive.extractfile(file))
        ]
    heads = [content.split("---", 2)[1].strip("\n") for content in contents if content.count("---") > 1]
    return [head for head in heads if re.search("^name:", head, re.MULTILINE)]


def mutated(head: str, chance: random.Random) -> str:
    """The frontmatter with one to three small defects."""
    for _ in range(chance.randint(1, 3)):
        lines = head.split("\n")
        number, place = chance.randrange(len(lines)), chance.randrange(len(head) + 1)
        key, colon, value = lines[number].partition(": ")
        defect = chance.randrange(6)
        if defect == 0:
            head = head[:place] + chance.choice(SIGNS) + head[place:]
            continue
        if defect == 1:
            head = head[:place] + head[place + chance.randint(1, 5) :]
            continue
        if defect == 2 and colon:
            lines[number] = f"{key}: {chance.choice(AROUND).format(value)}"
        elif defect == 3:
            lines.insert(number, chance.choice(lines))
        elif defect == 4:
            lines[number] = chance.choice(("  ", "\t", " ")) + lines[number]
        else:
            lines[number] += chance.choice((":", " # c", '"', "'", ",", "\r", "]", " \\"))
        head = "\n".join(lines)
    return head


@pytest.mark.slow
@pytest.mark.req("S4-48")
@pytest.mark.skipif(not CORPORA, reason="HOCKET_CORPORA names no folder with collections of real agents")
@pytest.mark.parametrize("seed", range(3))
def test_mutated_frontmatter_is_listed_as_by_cli(tmp_path: Path, seed: int) -> None:
    chance, heads = random.Random(seed), real_heads()
    contents = {}
    for number in range(FILES):
        named = re.sub("^name:.*", f"name: q{number:05}", chance.choice(heads), count=1, flags=re.MULTILINE)
        contents[f"q{number:05}"] = f"---\n{mutated(named, chance)}\n---\nb\n".encode()
    project = tmp_path / "project"
    write(project, contents)
    theirs, scan = set(listed_by_the_cli(project, tmp_path)), scanned(project)
    alone = {name for name in theirs if (match := NAME.search(name)) and match[0] in refused_only_by_hocket(scan)}
    assert len(theirs) > FILES // 4
    assert len((theirs - alone) ^ {entry.name for entry in scan.entries}) <= MOST_DIFFERENCES
