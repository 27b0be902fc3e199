"""The server dies while git makes a worktree: the next one has exactly that worktree, and runs every agent once."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from torture.installation import Installation, environment, kill, wait_for
from workflows.repositories import branches, git, make_repository, picture, worktrees
from world import Bin

AGENT = """
import os, subprocess, sys, time
name = os.path.basename(sys.argv[0])
book = os.open(os.path.join(os.environ["HOME"], "starts"), os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(book, f"{name} {os.environ['HOCKET_RUN']}\\n".encode())
turn = sum(line.startswith(name + " ") for line in os.pread(book, 100_000, 0).decode().splitlines())
with open(f"{name}{turn}", "w") as file: file.write("x")
identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
for words in (["add", "--all"], ["commit", "--quiet", "-m", name]):
    subprocess.run(["git", *identity, *words], check=True)
print(*sorted(one for one in os.listdir() if one != ".git"))
if turn == 3: print("FORKHESTRA_COMPLETE")
"""
SLOW_GIT = """#!/bin/sh
case "$*" in *'worktree add'*)
  if mkdir {place}/arrived 2> /dev/null; then
    {before}
    touch {place}/there
    cat {place}/door
    exit 1
  fi
esac
exec {git} "$@"
"""
MOMENTS = {
    "before anything is made": ":",
    "when all is made": '{git} "$@"',
    "when half of it is made": '{git} "$@"; rm {home}/worktrees/*/readme; cd {records}/*; touch index.lock locked',
}


@pytest.fixture
def project(world: Path) -> Path:
    make_repository(world / "p", readme="hello\n")
    return world / "p"


def start(installation: Installation, dsl: str) -> str:
    body = {"dsl": dsl, "cwd": str(installation.cwd), "env": environment(), "isolation": "worktree"}
    return str(installation.client.request("POST", "/api/runs", body, "key")["id"])


def starts() -> list[str]:
    return Path(os.environ["HOME"], "starts").read_text().splitlines()


def events(installation: Installation, run: str, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in installation.events(run) if event["type"] == kind]


@pytest.mark.parametrize("moment", MOMENTS)
def test_server_kill_during_worktree_creation_leaves_one(
    installation: Installation, project: Path, home: Path, world: Path, agent: Bin, moment: str
) -> None:
    real = next(path for folder in os.environ["PATH"].split(":") if (path := Path(folder, "git")).exists())
    os.mkfifo(world / "door")
    agent("builder", AGENT)
    before = picture(project)
    deed = MOMENTS[moment].format(git=real, home=home, records=project / ".git/worktrees")
    agent("git", SLOW_GIT.format(place=world, before=deed, git=real))
    run = start(installation, "builder -> builder")
    wait_for((world / "there").exists, "git at work")
    installation.kill_server()
    ended = installation.ended(run)
    assert (ended["status"], ended["reason"]) == ("done", "single_run")
    assert [line.split()[0] for line in starts()] == ["builder"] * 2
    assert len(events(installation, run, "worktree")) == 2
    (world / "bin/git").unlink()
    assert len(worktrees(project)) == len(branches(project)) == 2
    assert [git(tree, "status", "--porcelain") for tree in worktrees(project)] == ["", ""]
    assert picture(project) == before


def test_chain_in_worktrees_survives_server_kills(installation: Installation, project: Path, agent: Bin) -> None:
    for name in ("first", "left", "right", "loop", "last"):
        agent(name, AGENT)
    before = picture(project)
    run = start(installation, "first -> (left, right) -> loop:5 -> last")
    moments = random.Random(5)
    for _ in range(3):
        pid = installation.server_pid()
        time.sleep(moments.uniform(0, 0.3))  # A moment without a pattern is what is wanted here, not a condition.
        kill(pid)
    ended = installation.ended(run, 60)
    assert (ended["status"], ended["result"]) == ("done", "first1 last1 loop1 loop2 loop3 readme\n")
    names = sorted(line.split()[0] for line in starts())
    assert names == ["first", "last", "left", "loop", "loop", "loop", "right"]
    assert [step["commits"] for step in ended["steps"]] == [1, 1, 1, 3, 1]
    assert len(worktrees(project)) == len(branches(project)) == 5
    assert len(events(installation, run, "worktree")) == 5
    assert picture(project) == before
