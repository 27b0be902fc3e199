"""Figures of discovery, compared with only reading and parsing the heads of the files."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from measure import HOCKET, Figure, World, median_seconds, world

from hocket.catalog.cache import Catalogs
from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.sources import projects
from hocket.config.loading import load
from hocket.config.settings import Config

FILES = 1000
TIMES = 9
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def scanning() -> Iterator[Figure]:
    """A cold scan of 1,000 definitions, compared with parsing their heads."""
    with definitions(FILES) as project:
        found = _scan(project)
        bare, ours = _by_turns(lambda: _bare(project), lambda: _scan(project))
        note = f"{ours * 1000:.0f} ms vs. {bare * 1000:.0f} ms; {found} of them are agents"
        name = "cold scan of 1,000 definitions vs. parsing their heads"
        yield Figure(name, ours / bare, "x", 3, note=note)


def _scan(project: Path) -> int:
    (found,) = projects(FileProbe(), str(project), {})
    return found.place.found


def _bare(project: Path) -> None:
    folder = project / ".claude/agents"
    for name in os.listdir(folder):
        with open(folder / name, "rb") as file:
            begin = file.read(4096)
        try:
            yaml.load(begin[4 : begin.find(b"---", 4)], Loader=LOADER)  # noqa: S506 - the safe loader
        except yaml.YAMLError:
            continue


def _by_turns(*jobs: Callable[[], object]) -> list[float]:
    """Return the median processor time of each job; jobs alternate."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for _ in range(TIMES):
        for job, taken in zip(jobs, seconds, strict=True):
            begin = time.process_time()
            job()
            taken.append(time.process_time() - begin)
    return [statistics.median(taken) for taken in seconds]


# --- Listing -----------------------------------------------------------------------------------------


def warm() -> Iterator[Figure]:
    """The listing of 1,000 definitions by the command line, and by a running server that has scanned them before."""
    with world() as w, definitions(FILES) as project:
        listing = [*HOCKET, "agents", "--json"]
        ours = _command(w, project, listing)
        yield Figure("hocket agents --json of 1,000 files", ours, "s", 0.4)
        yield _from_memory(w, project)


def _command(w: World, cwd: Path, argv: list[str]) -> float:
    nothing = subprocess.DEVNULL
    return median_seconds(lambda: subprocess.run(argv, env=w.env, cwd=cwd, stdout=nothing, check=True), 15)


def _from_memory(w: World, project: Path) -> Figure:
    catalogs = Catalogs(str(w.home))
    config = load(str(project), str(w.home), w.env)

    def ask() -> Catalog:
        return catalogs.get(str(project), w.env, config)

    first = ask()
    assert len(first.seen) > FILES
    assert ask() is first
    return Figure("catalog of 1,000 files from the server's memory", median_seconds(ask, 15) * 1000, "ms", 10)


def growing() -> Iterator[Figure]:
    """The cost per file among 2,000 files, compared with 500."""
    few, many = 500, 2000
    with world() as w, definitions(few) as small, definitions(many) as large:
        per_small, per_large = _by_turns(lambda: _discover(w, small), lambda: _discover(w, large))
    each, among_few = per_large / many, per_small / few
    note = f"{each * 1e6:.0f} µs a file of {many:,}, {among_few * 1e6:.0f} µs of {few:,}"
    yield Figure("cost per file of 2,000 files vs. 500", each / among_few, "x", 1.3, note=note)


def _discover(w: World, project: Path) -> Catalog:
    return discover(str(project), w.env, str(w.home), Config())


# --- Definitions --------------------------------------------------------------------------------------------


@contextmanager
def definitions(count: int) -> Iterator[Path]:
    """Yield a project with this many definitions: real ones if HOCKET_CORPORA names an archive, else generated."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        agents = project / ".claude/agents"
        agents.mkdir(parents=True)
        (project / ".git").mkdir()
        for number, content in enumerate(_contents(count)):
            (agents / f"{number:05}.md").write_bytes(content)
        yield project


def _contents(count: int) -> Iterator[bytes]:
    chance = random.Random(1)
    real = _real()
    if real:
        yield from chance.sample(real, min(count, len(real)))
    for number in range(count - len(real)):
        yield _generated(number, chance)


def _real() -> list[bytes]:
    corpora = os.environ.get("HOCKET_CORPORA")
    if not corpora:
        return []
    with tarfile.open(Path(corpora, "agents.tar.gz")) as archive:
        files = [file for file in archive if file.name.endswith(".md")]
        return [found.read() for file in files if (found := archive.extractfile(file))]


def _generated(number: int, chance: random.Random) -> bytes:
    """Generate a definition: of ten, seven are plain, one has a list, one folded text, one invalid YAML."""
    words = " ".join(chance.choices(["use", "this", "agent", "when", "you", "review", "code", "and", "tests."], k=40))
    kind = number % 10
    description = f"Examples: {words}" if kind == 9 else f">\n  {words}" if kind == 8 else words
    tools = "\n  - Read\n  - Write" if kind == 7 else "Read, Write, Edit, Bash, Glob, Grep"
    head = f"name: agent-{number}\ndescription: {description}\ntools: {tools}\nmodel: sonnet\n"
    return f"---\n{head}---\n\n# Agent {number}\n\n{words * 10}\n".encode()
