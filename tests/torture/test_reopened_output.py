"""An agent opens its own output anew, as `> /dev/stdout` does: nothing is cut off, and no marker is made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torture.installation import Installation, wait_for
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

MARKER = "FORKHESTRA_COMPLETE"


def start_loop(installation: Installation, agent: str) -> str:
    body = {"dsl": f"{agent}:1", "cwd": str(installation.cwd), "env": {"PATH": os.environ["PATH"]}}
    return str(installation.client.request("POST", "/api/runs", body)["id"])


def only_pass(installation: Installation, chain: str) -> str | None:
    """The one process that the loop has started, once it is there."""
    run = installation.run(chain)
    while run["kind"] != "leaf":
        if not run["children"]:
            return None
        run = installation.run(run["children"][0]["id"])
    return str(run["id"])


def test_sentence_with_the_marker_completes_no_loop(installation: Installation, hocket: Hocket, agent: Bin) -> None:
    """Torture row 45: the loop as it was seen, on the command line."""
    agent("worker", f'#!/bin/sh\necho working; sleep 1; echo "I will not write {MARKER}" > /dev/stdout\n')
    done = hocket("run", "worker:1")
    assert done.returncode == 1
    assert "max_iterations" in done.stdout + done.stderr
    assert "✓" not in done.stdout + done.stderr


def test_reopened_output_does_not_forge_the_marker(installation: Installation, agent: Bin, project: Path) -> None:
    """Torture row 45: were the file cut off, the reader would go on in the middle of the second line."""
    first, second = "1234567890123456", f"I will not write {MARKER}"
    assert second[len(first) + 1 :] == MARKER
    os.mkfifo(project / "gate")
    agent("forger", f'#!/bin/sh\necho {first}\nread x < gate\necho "{second}" > /dev/stdout\n')
    chain = start_loop(installation, "forger")
    leaf = wait_for(lambda: only_pass(installation, chain), "the first pass")
    wait_for(lambda: any(event["type"] == "text" for event in installation.events(leaf)), "the first line to be read")
    (project / "gate").write_text("go\n")
    ended = installation.ended(chain)
    assert (ended["status"], ended["reason"]) == ("failed", "max_iterations")
    assert installation.out(leaf) == f"{first}\n{second}\n".encode()
    assert [event for event in installation.events(leaf) if event["type"] == "marker"] == []


WITH_MARKER = {
    "before stdout": (f"echo {MARKER}; echo more > /dev/stdout", f"{MARKER}\nmore\n", ""),
    "into stdout": (f"echo more; echo {MARKER} > /dev/stdout", f"more\n{MARKER}\n", ""),
    "after stdout": (f"echo more > /dev/stdout; echo {MARKER}", f"more\n{MARKER}\n", ""),
    "before stderr": (f"echo {MARKER}; echo one >&2; echo two > /dev/stderr", f"{MARKER}\n", "one\ntwo\n"),
    "after stderr": (f"echo one >&2; echo two > /dev/stderr; echo {MARKER}", f"{MARKER}\n", "one\ntwo\n"),
    "through tee": (f"echo one >&2; echo {MARKER} | tee /dev/stderr", f"{MARKER}\n", f"one\n{MARKER}\n"),
}
WITHOUT_MARKER = {
    "into stderr": (f"echo one; echo {MARKER} > /dev/stderr", "one\n", f"{MARKER}\n"),
    "split by a reopening": (
        f"printf {MARKER[:5]}; echo x > /dev/stdout; echo {MARKER[5:]}",
        f"{MARKER[:5]}x\n{MARKER[5:]}\n",
        "",
    ),
}


@pytest.mark.parametrize("name", [*WITH_MARKER, *WITHOUT_MARKER])
def test_marker_is_found_in_reopened_output(name: str, installation: Installation, agent: Bin) -> None:
    """Torture row 45."""
    script, out, err = (WITH_MARKER | WITHOUT_MARKER)[name]
    agent("worker", f"#!/bin/sh\n{script}\n")
    chain = installation.ended(start_loop(installation, "worker"))
    leaf = only_pass(installation, chain["id"])
    assert leaf is not None
    expected = ("done", "marker") if name in WITH_MARKER else ("failed", "max_iterations")
    assert (chain["status"], chain["reason"]) == expected
    assert installation.out(leaf) == out.encode()
    assert b"".join(installation.client.output(leaf, "err")) == err.encode()
