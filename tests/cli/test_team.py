"""``hocket team``: the tables of a team, what it asks before it moves anything, and how runs of teams are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from world import Bin, Hocket

from hocket.cli import access, team
from hocket.cli.format import display_width, status_label
from hocket.cli.runs import lead_mark, ps_table
from hocket.cli.team import team_lines
from hocket.errors import Conflict

pytestmark = pytest.mark.shared_server
LONG = "a very long text that does not fit into any table of eighty columns, and goes on and on " * 2


def teammate(name: str, **more: Any) -> dict[str, Any]:
    known = {"name": name, "status": "active", "agent": "general-purpose", "tokens": 12_345, "number": 41}
    return {**known, "current_task": None, **more}


def task(number: int, **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": str(number),
        "status": "pending",
        "owner": None,
        "blocked_by": [],
        "subject": f"Part {number}",
    }
    return {**known, **more}


@pytest.mark.req("S5-28", "S5-29")
def test_team_is_readable_at_80_columns() -> None:
    teammates = [teammate("alice", current_task=LONG), teammate("b" * 40, status="idle", tokens=None, number=None)]
    tasks = [
        task(1, status="in_progress", owner="alice"),
        task(2, blocked_by=["1", "10", "11", "12", "13"], subject=LONG),
    ]
    lines = team_lines(teammates, tasks, 80)
    assert max(map(display_width, lines)) <= 80
    assert [line.split()[0] for line in lines if line] == ["NAME", "alice", "b" * 19 + "…", "TASK", "1", "2"]
    assert "● active" in lines[1]
    assert "12.3k" in lines[1]
    assert "○ idle" in lines[2]
    assert "1, 10, 11, …" in lines[6]


def test_control_characters_of_teams_are_not_printed() -> None:
    lines = team_lines([teammate("a\x1b[31m", agent="x\ny")], [task(1, subject="a\nb\x07")], None)
    assert not any(letter in line for line in lines for letter in "\x1b\x07\n")


def test_run_without_team_is_reported(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "print('done')")
    hocket("run", "quick")
    shown = hocket("team", hocket.number())
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "has no teammates and no shared tasks" in shown.stderr
    found = json.loads(hocket("team", hocket.number(), "--json").stdout)
    assert (found["teammates"], found["tasks"]) == ([], [])
    assert hocket("team", "r-unknown").returncode == 2


@pytest.mark.parametrize("words", [(), ("1", "--orphans"), ("1", "--clean"), ("--orphans", "--yes"), ("--clean",)])
def test_contradicting_words_are_refused(hocket: Hocket, words: tuple[str, ...]) -> None:
    refused = hocket("team", *words)
    assert (refused.returncode, refused.stdout) == (2, "")


def test_nothing_left_is_no_error(hocket: Hocket) -> None:
    assert hocket("team", "--orphans").stderr == "No team has left anything.\n"
    assert json.loads(hocket("team", "--orphans", "--json").stdout) == []
    assert hocket("team", "--orphans", "--clean").returncode == 0
    assert json.loads(hocket("team", "--orphans", "--clean", "--yes", "--json").stdout) == []


class Server:
    """What the command asks of a server, with two teams left by one lead."""

    def __init__(self) -> None:
        self.cleaned: list[str] = []
        paths = ["/home/me/.claude/teams/session-1", "/home/me/.claude/tasks/session-1"]
        self.rows: list[dict[str, Any]] = [
            {"run": "r1", "number": 12, "team": name, "paths": paths} for name in ("session-1", "more")
        ]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        if method == "GET":
            return self.rows
        self.cleaned.append(path)
        if "r0" in path:
            raise Conflict("process 7 still leads team session-0")
        return {"run": "r1", "teams": ["session-1"], "moved": [], "trash": ["/h/trash/r1-session-1"]}


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(access, "connect", lambda **_: server)
    return server


def clean(**options: bool) -> int:
    given = {"orphans": True, "clean": True, "yes": False, "as_json": False, **options}
    code: int = team.team.function(None, **given)
    return code


def test_exact_paths_are_shown_before_anything_is_moved(left: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean() == 4
    output = capsys.readouterr()
    assert left.rows[0]["paths"][0] in output.out
    assert "nothing was moved" in output.err
    assert left.cleaned == []


def test_cleaning_with_yes_names_each_run_once(left: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean(yes=True) == 0
    assert left.cleaned == ["/api/teams/orphans/r1/clean"]
    assert capsys.readouterr().out.endswith("moved to /h/trash/r1-session-1\n")


@pytest.mark.req("S5-41")
def test_refused_team_does_not_keep_others_from_being_cleaned(left: Server, capsys: pytest.CaptureFixture[str]) -> None:
    left.rows.insert(0, {**left.rows[0], "run": "r0", "team": "session-0"})
    with pytest.raises(Conflict, match="still leads"):
        clean(yes=True)
    assert left.cleaned == ["/api/teams/orphans/r0/clean", "/api/teams/orphans/r1/clean"]
    assert capsys.readouterr().out.endswith("moved to /h/trash/r1-session-1\n")


def test_cleaning_as_json_needs_a_yes(left: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean(as_json=True) == 4
    assert json.loads(capsys.readouterr().out) == left.rows
    assert clean(as_json=True, yes=True) == 0
    assert json.loads(capsys.readouterr().out)[0]["run"] == "r1"


# --- Lists of runs ------------------------------------------------------------------------------------------


def listed(**more: Any) -> dict[str, Any]:
    known = {"id": "r1", "number": 1, "kind": "lead", "agent": "claude", "status": "waiting", "cwd": "/p"}
    return {**known, "parent": None, "depth": 0, "reason": None, "elapsed": 3.0, **more}


def test_lead_is_marked_with_its_teammates() -> None:
    assert lead_mark(listed(teammates=2)) == " (lead, 2 teammates)"
    assert lead_mark(listed(teammates=1)) == " (lead, 1 teammate)"
    assert lead_mark(listed(teammates=0)) == lead_mark(listed(teammates=None)) == " (lead)"
    assert lead_mark(listed(kind="leaf", teammates=3)) == " (lead, 3 teammates)"
    assert lead_mark(listed(kind="leaf", teammates=None)) == ""


def test_teammates_are_listed_below_their_lead() -> None:
    member = listed(id="r2", number=2, kind="leaf", agent="alice", parent="r1", status="running")
    lines = ps_table([member, listed(teammates=1)], 0.0, 80)
    assert [line.split()[0] for line in lines] == ["RUN", "1", "2"]
    assert "claude (lead, 1 teammate)" in lines[1]
    assert lines[2].startswith("  2")


@pytest.mark.req("S5-13", "S5-47")
@pytest.mark.parametrize(
    ("facts", "label"),
    [({}, "○ idle"), ({"idle_in": 0.0}, "○ idle"), ({"idle_in": 4.5}, "○ waiting"), ({"idle_in": None}, "○ waiting")],
)
def test_waiting_run_is_idle_only_after_its_time(facts: dict[str, Any], label: str) -> None:
    assert status_label(listed(**facts)) == label


@pytest.mark.own_server
@pytest.mark.req("S5-14")
def test_waiting_run_becomes_idle_after_configured_time(hocket: Hocket, home: Path, project: Path) -> None:
    from scripted_claude import install_claude

    install_claude(project.parent / "bin")
    (home / "config.toml").write_text("[run]\nidle_after = 3600\n")
    run = hocket.created("spawn", "claude", "--session", "-p", "hello")
    hocket("send", run, "again", "--wait")
    (row,) = json.loads(hocket("ps", "--json").stdout)
    assert row["status"] == "waiting"
    assert 3500 < row["idle_in"] <= 3600
    assert "○ waiting" in hocket("ps").stdout


@pytest.mark.req("S5-01")
@pytest.mark.parametrize("words", [("run", "quick"), ("spawn", "quick"), ("run", "--dry-run", "quick")])
def test_plain_program_cannot_lead_a_team(hocket: Hocket, agent: Bin, words: tuple[str, ...]) -> None:
    agent("quick", "print('done')")
    refused = hocket(*words, "--team")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "quick cannot lead a team: it is a plain program" in refused.stderr
    assert hocket.runs() == []
