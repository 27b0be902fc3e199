"""A folder of definitions with every kind of file that could break a reader."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from catalog.definition_writing import put

from hocket.catalog.entries import Found
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.sources import projects

GOOD = "name: {}\ndescription: d"
MOST_SECONDS = 0.2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project's folder with ten good definitions and all the odd ones."""
    folder = tmp_path / "p/.claude/agents"
    for number in range(10):
        put(folder / f"good{number}.md", GOOD.format(f"good{number}"))
    os.mkfifo(folder / "fifo.md")
    (folder / "shadow.md").symlink_to("/etc/shadow")
    (folder / "zero.md").symlink_to("/dev/zero")
    (folder / "dir.md").mkdir()
    with put(folder / "sparse.md", GOOD.format("sparse")).open("r+b") as file:
        file.truncate(1024**3)
    put(folder / "closed.md", GOOD.format("closed")).chmod(0)
    (folder / "none.md").write_text("# Just words\n")
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    put(folder / "bomb.md", "\n".join([GOOD.format("bomb"), "l0: &l0 [a, b]", *levels]))
    put(folder / "brackets.md", f"{GOOD.format('brackets')}\nx: {'[' * 100_000}")
    put(folder / "brackets64.md", f"{GOOD.format('brackets64')}\nx: {'[' * 60_000}")
    put(folder / "dashes.md", f"{GOOD.format('dashes')}\nx:\n  {'- ' * 30_000}a")
    put(folder / "questions.md", f"{GOOD.format('questions')}\nx:\n  {'? ' * 30_000}")
    put(folder / "braces.md", f"{GOOD.format('braces')}\nx: {'{a: ' * 15_000}")
    (folder / "lines.md").write_bytes(b"---" + b"\n" * 250_000)
    # Odd to look at, and good definitions all the same.
    (folder / "mark.md").write_bytes(b"\xef\xbb\xbf---\nname: mark\ndescription: d\n---\n")
    (folder / "crlf.md").write_bytes(b"---\r\nname: crlf\r\ndescription: d\r\n---\r\n")
    put(folder / "no.md", GOOD.format("no"))
    put(folder / "twice.md", f"{GOOD.format('first')}\nname: twice")
    return folder


def scanned(folder: Path) -> Found:
    (found,) = projects(FileProbe(), str(folder.parents[1]), {"HOME": str(folder.parents[1])[:-2]})
    return found


@pytest.mark.req("S4-39", "S4-44", "S4-48")
def test_odd_files_are_reported_with_their_reason(folder: Path) -> None:
    scan = scanned(folder)
    names = {entry.name for entry in scan.entries}
    readable = {"closed"} if os.access(folder / "closed.md", os.R_OK) else set()  # to the superuser nothing is closed
    assert names == {*(f"good{number}" for number in range(10)), "mark", "crlf", "no", "twice"} | readable
    reasons = {Path(problem.path).stem: problem.reason for problem in scan.problems}
    expected = {
        "fifo": "is a FIFO, not a file",
        "shadow": "(a link to /etc/shadow)",
        "zero": "is a device, not a file (a link to /dev/zero)",
        "dir": "is a directory",
        "sparse": "larger than 256 kB",
        "none": "does not begin with a line of three dashes",
        "bomb": "more than 1000 values by aliases",
        "brackets": "frontmatter is larger than 64 kB",
        "brackets64": "nested more than 20 levels deep",
        "dashes": "nested more than 20 levels deep",
        "questions": "nested more than 20 levels deep",
        "braces": "nested more than 20 levels deep",
        "lines": "no closing line",
        "twice": "'name' is given more than once",
    }
    assert reasons.keys() - {"closed"} == expected.keys()
    assert {stem: words for stem, words in expected.items() if words not in reasons[stem]} == {}


def test_odd_folder_is_scanned_quickly(folder: Path) -> None:
    scanned(folder)
    seconds = []
    for _ in range(3):
        began = time.process_time()
        scanned(folder)
        seconds.append(time.process_time() - began)
    assert min(seconds) < MOST_SECONDS


def test_reader_parses_every_file_with_small_stack(folder: Path) -> None:
    """Where a parser that calls itself again for each bracket would be killed."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_STACK, (512 * 1024, 512 * 1024))\n"
        "from hocket.catalog.files import names_in\n"
        "print(len(names_in(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert (done.returncode, int(done.stdout) >= 14) == (0, True), done.stderr
