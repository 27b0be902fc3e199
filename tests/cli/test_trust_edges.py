"""``hocket trust --edge``: who may start whom with all that the other may do, and what holds without it."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli.test_trust import answer, asking, define
from world import Bin, Hocket

pytestmark = pytest.mark.in_process
BYPASS = "bypassPermissions"
PAUSING = "import signal; signal.pause()"


def listed(hocket: Hocket) -> list[tuple[str, str, str]]:
    rows = json.loads(hocket("trust", "--list", "--json").stdout)
    return [(row["caller"]["name"], row["target"]["name"], row["state"]) for row in rows if row["kind"] == "edge"]


@pytest.fixture
def pair(world: Path, agent: Bin) -> tuple[Path, Path]:
    """Two agents of the user's own, of which the second may do more."""
    agent("claude", PAUSING)
    return define(world / "user", "lead", permissionMode="default"), define(
        world / "user", "dev", permissionMode=BYPASS
    )


# --- Allowing -----------------------------------------------------------------------------------------------


def test_edge_is_shown_recorded_listed_and_removed(hocket: Hocket, home: Path, pair: tuple[Path, Path]) -> None:
    done = hocket("trust", "--yes", "--edge", "lead", "dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"lead may start dev, in its own permission mode, {BYPASS}" in done.stdout
    assert all(str(path) in done.stdout for path in pair)
    assert done.stdout.endswith("allowed lead -> dev\n")
    record = json.loads((home / "trust.json").read_text())
    assert [edge["caller"] for edge in record["edges"]] == [{"name": "lead", "path": str(pair[0])}]
    assert [edge["target"] for edge in record["edges"]] == [{"name": "dev", "path": str(pair[1])}]
    assert stat.S_IMODE((home / "trust.json").stat().st_mode) == 0o600
    assert listed(hocket) == [("lead", "dev", "approved")]
    table = hocket("trust", "--list").stdout
    assert f"lead ({pair[0]}) -> dev ({pair[1]})" in table
    gone = hocket("trust", "--remove", "--edge", "lead", "dev")
    assert (gone.returncode, gone.stdout) == (0, f"no longer allowed: lead ({pair[0]}) -> dev ({pair[1]})\n")
    assert listed(hocket) == []
    assert hocket("trust", "--remove", "--edge", "lead", "dev").returncode == 2


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_no_edge_is_allowed_without_a_terminal(hocket: Hocket, home: Path, words: list[str]) -> None:
    done = hocket("trust", "--edge", "lead", "dev", *words)
    assert (done.returncode, "allowed lead" in done.stdout) == (4, False)
    assert done.stderr.endswith(f"add --yes to: hocket trust --edge lead dev --cwd {hocket.cwd}\n")
    assert not (home / "trust.json").exists()


def test_edge_allowed_twice_is_recorded_once(hocket: Hocket, pair: tuple[Path, Path]) -> None:
    for words in (("lead", "dev"), (str(pair[0]), "~/.claude/agents/dev.md")):
        assert hocket("trust", "--yes", "--edge", *words).returncode == 0
    assert listed(hocket) == [("lead", "dev", "approved")]


def test_edges_are_reported_as_json(hocket: Hocket, pair: tuple[Path, Path]) -> None:
    ends = {"caller": {"name": "lead", "path": str(pair[0])}, "target": {"name": "dev", "path": str(pair[1])}}
    seen = hocket("trust", "--edge", "lead", "dev", "--dry-run", "--json")
    assert json.loads(seen.stdout) == {"allowed": False, **ends}
    assert listed(hocket) == []
    done = hocket("trust", "--yes", "--edge", "lead", "dev", "--json")
    assert (json.loads(done.stdout), done.stderr) == ({"allowed": True, **ends}, "")
    row: dict[str, Any] = json.loads(hocket("trust", "--list", "--json").stdout)[0]
    assert (row["kind"], row["state"], {role: row[role] for role in ends}) == ("edge", "approved", ends)
    gone = hocket("trust", "--remove", "--edge", "lead", "dev", "--json")
    assert json.loads(gone.stdout) == {"removed": [{"kind": "edge", **ends}]}


def test_edge_to_a_missing_agent_can_be_removed(hocket: Hocket, pair: tuple[Path, Path]) -> None:
    hocket("trust", "--yes", "--edge", "lead", "dev")
    pair[1].unlink()
    assert listed(hocket) == [("lead", "dev", "gone")]
    assert hocket("trust", "--remove", "--edge", "lead", "dev").returncode == 0


@pytest.mark.parametrize(("text", "code", "edges"), [(b"y\n", 0, 1), (b"n\n", 1, 0)])
def test_edge_is_confirmed_on_a_terminal(
    hocket: Hocket, pair: tuple[Path, Path], text: bytes, code: int, edges: int
) -> None:
    with asking(hocket, "--edge", "lead", "dev") as (process, master):
        assert answer(process, master, text)[0] == code
    assert len(listed(hocket)) == edges


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--edge", "lead"), "two agents"),
        (("--edge", "lead", "dev", "dev"), "two agents"),
        (("--edge", "--list", "lead", "dev"), "give only one of --list"),
        (("--edge", "lead", "missing"), "no agent 'missing'"),
        (("--edge", "tool", "dev"), "a plain program"),
    ],
)
def test_invalid_edge_is_refused(
    hocket: Hocket, home: Path, pair: tuple[Path, Path], agent: Bin, words: tuple[str, ...], complaint: str
) -> None:
    agent("tool", PAUSING)
    done = hocket("trust", "--yes", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert not (home / "trust.json").exists()


def test_agent_cannot_allow_its_own_edge(hocket: Hocket, home: Path, pair: tuple[Path, Path]) -> None:
    for words in (("--edge",), ("--remove", "--edge")):
        done = hocket("trust", "--yes", *words, "lead", "dev", env={"HOCKET_RUN": "rx"})
        assert (done.returncode, "cannot approve" in done.stderr) == (2, True)
    assert not (home / "trust.json").exists()


def test_approvals_and_edges_do_not_lose_each_other(hocket: Hocket, home: Path, pair: tuple[Path, Path]) -> None:
    path = define(hocket.cwd, "wide", permissionMode=BYPASS)
    for words in (
        ("wide",),
        ("--edge", "lead", "dev"),
        ("--edge", "dev", "lead"),
        ("--remove", "--edge", "dev", "lead"),
    ):
        assert hocket("trust", "--yes", *words).returncode == 0
    assert listed(hocket) == [("lead", "dev", "approved")]
    assert list(json.loads((home / "trust.json").read_text())["files"]) == [str(path)]
    assert hocket("trust", "--remove", "wide").returncode == 0
    assert listed(hocket) == [("lead", "dev", "approved")]


def test_record_without_edges_is_read_and_kept(hocket: Hocket, home: Path, pair: tuple[Path, Path]) -> None:
    before = {"files": {"/x/a.md": {"sha256": "0" * 64, "at": 1.0}}, "folders": {}}
    (home / "trust.json").write_text(json.dumps({"version": 1, **before}))
    assert listed(hocket) == []
    assert hocket("trust", "--yes", "--edge", "lead", "dev").returncode == 0
    after = json.loads((home / "trust.json").read_text())
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize(
    "edges",
    ['"x"', "[1]", '[{"caller": {"name": "a"}}]', '[{"caller": {"name": 1}, "target": {"name": "b"}, "at": 1}]'],
)
def test_record_with_invalid_edges_is_refused(hocket: Hocket, home: Path, edges: str) -> None:
    (home / "trust.json").write_text(f'{{"version": 1, "files": {{}}, "folders": {{}}, "edges": {edges}}}')
    done = hocket("trust", "--list")
    assert (done.returncode, "is damaged" in done.stderr) == (2, True)


# --- What holds without one, from inside an agent -----------------------------------------------------------

INSIDE = """
import json, os, subprocess, sys
sys.stdin.readline()
words = json.loads(os.environ["CLAUDE_TEST_WORDS"]) if os.environ["CLAUDE_TEST_WHO"] in sys.argv else ["--version"]
done = subprocess.run([*json.loads(os.environ["CLAUDE_TEST_HOCKET"]), *words], capture_output=True, text=True)
said = {"code": done.returncode, "out": done.stdout, "err": done.stderr}
if words != ["--version"]:
  with open(os.environ["CLAUDE_TEST_SAID"] + ".new", "w") as file:
    json.dump(said, file)
  os.rename(os.environ["CLAUDE_TEST_SAID"] + ".new", os.environ["CLAUDE_TEST_SAID"])
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s", "tools": []}))
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "x", "session_id": "s"}))
"""
"""A Claude that runs one command of Hocket's; a Claude started by it only asks for the version."""


class Inside:
    """Commands as an agent would type them."""

    def __init__(self, hocket: Hocket, agent: Bin, said: Path) -> None:
        self._hocket = hocket
        self._said = said
        agent("claude", INSIDE)

    def __call__(self, name: str, *words: str) -> dict[str, Any]:
        import sys

        self._said.unlink(missing_ok=True)
        env = {"CLAUDE_TEST_WORDS": json.dumps(words), "CLAUDE_TEST_SAID": str(self._said)}
        env |= {"CLAUDE_TEST_WHO": name, "CLAUDE_TEST_HOCKET": json.dumps([sys.executable, "-m", "hocket"])}
        done: subprocess.CompletedProcess[str] = self._hocket("run", name, "-p", "go", "--json", env=env)
        assert self._said.exists(), done.stderr
        found: dict[str, Any] = json.loads(self._said.read_text())
        return found


@pytest.fixture
def inside(hocket: Hocket, agent: Bin, world: Path) -> Inside:
    return Inside(hocket, agent, world / "said")


@pytest.mark.req("S3-56")
@pytest.mark.shared_server
def test_refused_start_lists_the_allowed_agents(hocket: Hocket, inside: Inside, world: Path) -> None:
    define(world / "user", "lead", allowedAgents="[dev, qa]")
    define(world / "user", "other")
    said = inside("lead", "spawn", "other", "-p", "x", "--json")
    assert (said["code"], said["out"]) == (2, "")
    assert "Allowed agents: dev, qa" in said["err"]
    agents = [run["agent"] for run in hocket.runs()]
    assert "other" not in agents


@pytest.mark.parametrize(
    "words",
    [
        ("spawn", "sh", "--", "-c", "touch pwned"),
        ("run", "/bin/sh", "--", "-c", "touch pwned"),
        ("run", "lead", "-p", "x", "--until", "touch pwned"),
        ("spawn", "lead", "-p", "x", "--", "--dangerously-skip-permissions"),
    ],
)
@pytest.mark.shared_server
def test_agent_cannot_start_a_shell(hocket: Hocket, inside: Inside, world: Path, words: tuple[str, ...]) -> None:
    define(world / "user", "lead", permissionMode=BYPASS)
    said = inside("lead", *words)
    assert (said["code"], said["out"]) == (2, ""), said
    assert "may not" in said["err"]
    assert "hint:" in said["err"]
    assert not (hocket.cwd / "pwned").exists()
    assert len(hocket.runs()) == 2


def test_allowed_edge_lets_agent_start_a_program(hocket: Hocket, inside: Inside, world: Path) -> None:
    define(world / "user", "lead")
    assert hocket("trust", "--yes", "--edge", "lead", "sh").returncode == 0
    said = inside("lead", "run", "sh", "--", "-c", "touch made")
    assert said["code"] == 0, said["err"]
    assert (hocket.cwd / "made").exists()


@pytest.mark.shared_server
def test_notice_reports_a_narrower_permission_mode(hocket: Hocket, inside: Inside, world: Path) -> None:
    define(world / "user", "lead", permissionMode="default")
    define(world / "user", "dev", permissionMode=BYPASS)
    said = inside("lead", "spawn", "dev", "-p", "x", "--json")
    assert said["code"] == 0, said["err"]
    child = json.loads(said["out"])["run"]
    events = [json.loads(line) for line in hocket("logs", child, "--json").stdout.splitlines()]
    notices = [event["data"]["text"] for event in events if event["type"] == "notice"]
    assert len(notices) == 1
    assert f"to allow it more: hocket trust --edge lead dev --cwd {hocket.cwd}" in notices[0]
