"""``hocket doctor``: each check can fail, and a healthy place passes them all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from pathlib import Path

import pytest
from world import Bin, Hocket, processes_of

from hocket import config
from hocket.cli import doctor
from hocket.cli.doctor import Check, check_space, checks
from hocket.keeper import platform

pytestmark = pytest.mark.in_process


def failing(home: Path | str) -> set[str]:
    return {check.name for check in checks(str(home)) if not check.ok}


def test_healthy_installation_passes(hocket: Hocket, home: Path) -> None:
    before = hocket("doctor", "--json")
    assert before.returncode == 0
    assert list(home.iterdir()) == []
    hocket("ps")
    after = hocket("doctor", "--json")
    found = json.loads(after.stdout)
    assert (after.returncode, found["ok"], after.stderr) == (0, True, "")
    assert {frozenset(check) for check in found["checks"]} == {frozenset(["name", "ok", "detail", "hint"])}
    reported = {check["name"]: check["detail"] for check in found["checks"]}
    assert "answers" in reported["server"]
    assert "is intact" in reported["database"]
    assert hocket("doctor").stdout.count("✓") == len(found["checks"])


def test_missing_home_passes(world: Path) -> None:
    assert failing(world / "deep" / "new") == set()


def test_home_that_is_a_file_fails(world: Path) -> None:
    (world / "file").touch()
    assert "home" in failing(world / "file")


def test_home_open_to_others_fails(home: Path) -> None:
    home.chmod(0o755)
    assert failing(home) == {"home"}


def test_home_that_cannot_be_created_fails() -> None:
    assert "home" in failing("/proc/nothing")


def test_too_little_disk_fails(home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nmin_free_mb = 1000000000\n")
    assert failing(home) == {"disk"}


def test_broken_configuration_fails_the_check(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "hocket.toml").write_text("[chains\n")
    assert failing(home) == {"config"}


def test_damaged_approvals_fail_with_a_hint(home: Path) -> None:
    (home / "trust.json").write_text("{")
    (reported,) = (check for check in checks(str(home)) if not check.ok)
    assert (reported.name, reported.hint) == ("trust", "move it away, and approve again what you still want")
    assert f"{home}/trust.json is damaged" in reported.detail


def test_damaged_database_fails_the_check(home: Path) -> None:
    (home / "hocket.db").write_bytes(b"no database at all" * 1000)
    assert failing(home) == {"database"}


def test_lock_without_a_server_fails(home: Path) -> None:
    import fcntl

    with (home / "server.lock").open("w") as lock:
        lock.write('{"pid": 1, "version": "0.0.1"}')
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert failing(home) == {"server", "version"}


def test_empty_path_fails_the_check(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nosuch")
    assert failing(home) == {"programs"}


def test_server_that_does_not_find_claude_fails(hocket: Hocket, world: Path, home: Path) -> None:
    """The server keeps the environment it was started with; the caller's own says nothing about it."""
    hocket("ps", env={"PATH": "/usr/bin:/bin"})
    claude = Bin(world / "bin")("claude", "print('2.1.325 (Claude Code)')")
    failed_one = hocket("doctor", "--json")
    (reported,) = (check for check in json.loads(failed_one.stdout)["checks"] if not check["ok"])
    assert failed_one.returncode == 1
    assert reported["name"] == "environment"
    assert reported["detail"] == f"the server does not find claude (PATH /usr/bin:/bin); here it is {claude}"
    assert "hocket server stop && hocket ps" in reported["hint"]

    hocket("server", "stop")
    assert hocket("doctor").returncode == 0, "no server, so none with another environment"
    assert processes_of(home) == {}, "it starts none"
    hocket("ps")
    found = {check["name"]: check for check in json.loads(hocket("doctor", "--json").stdout)["checks"]}
    assert found["environment"]["detail"] == f"the server finds {claude}"
    assert found["environment"]["ok"]


def test_failing_check_exits_with_one(hocket: Hocket, home: Path) -> None:
    home.chmod(0o750)
    done = hocket("doctor")
    assert done.returncode == 1
    assert f"hint: chmod 700 {home}" in done.stdout
    os.chmod(home, 0o700)


def failed(name: str) -> Check:
    (found,) = (check for check in checks(config.home()) if check.name == name)
    assert not found.ok, found
    return found


def test_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert "3.10.1" in failed("python").detail


def test_ineffective_locks_fail(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert failed("locks").hint


def test_long_socket_path_fails(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "socket_path", lambda *_: "/" + "x" * 200)
    assert "200" in failed("socket").detail or "201" in failed("socket").detail


def test_old_sqlite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "sqlite_version", lambda: "3.31.1")
    assert "3.31.1" in failed("sqlite").detail


def test_kernel_without_pidfd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "open_identity", lambda *_: None)
    assert "pidfd" in failed("processes").detail


def test_home_that_is_a_link_fails(home: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "link").symlink_to(home)
    monkeypatch.setenv("HOCKET_HOME", str(world / "link"))
    assert "symbolic link" in failed("home").detail


def claude(home: Path) -> Check:
    (found,) = (check for check in checks(str(home)) if check.name == "claude")
    return found


def test_missing_claude_passes_with_a_hint(home: Path) -> None:
    found = claude(home)
    assert (found.ok, found.detail.startswith("not found")) == (True, True)
    assert "HOCKET_CLAUDE" in (found.hint or "")


VERSIONS = [
    ("2.1.325 (Claude Code)", True, "works: print and stream, questions, definitions", None),
    ("2.1.280 (Claude Code)", False, "no agent that has a definition starts with it: it has print", "since 2.1.281"),
    (
        "2.1.258 (Claude Code)",
        False,
        "no run starts with it: it has print and stream",
        "--permission-prompts",
    ),
    ("2.1.177 (Claude Code)", False, "it has print and stream", "--agents with a file"),
    ("1.0.98 (Claude Code)", False, "no run starts with it", "stream-json"),
    ("no idea", False, "prints no version: 'no idea'", "npm"),
]


@pytest.mark.parametrize(("reported", "good", "detail", "hint"), VERSIONS)
def test_features_follow_from_the_version_of_claude(
    home: Path, agent: Bin, reported: str, good: bool, detail: str, hint: str | None
) -> None:
    path = agent("claude", f"import sys; assert sys.argv[1:] == ['--version']; print({reported!r})")
    found = claude(home)
    assert (found.ok, detail in found.detail, str(path) in found.detail) == (good, True, True), found
    assert (found.hint is None) if hint is None else (hint in (found.hint or "")), found


def teams(home: Path) -> Check:
    (found,) = (check for check in checks(str(home)) if check.name == "teams")
    return found


@pytest.mark.req("S5-03", "S5-46")
@pytest.mark.parametrize(
    ("version", "detail"),
    [("2.1.177 (Claude Code)", "available in print mode"), ("2.1.178 (Claude Code)", "available in a terminal")],
)
def test_mode_of_teams_follows_from_the_version(home: Path, world: Path, agent: Bin, version: str, detail: str) -> None:
    agent("claude", f"print({version!r})")
    (world / "user/.claude").mkdir()
    (world / "user/.claude.json").write_text('{"hasCompletedOnboarding": true}')
    found = teams(home)
    assert (found.ok, found.detail.startswith(detail), found.hint) == (True, True, None), found
    assert version in (home / "cli-versions.json").read_text()


@pytest.mark.req("S5-03", "S5-43")
def test_what_keeps_teams_from_starting_is_a_hint(home: Path, world: Path, agent: Bin) -> None:
    assert "not available" in teams(home).detail
    agent("claude", "print('2.1.326 (Claude Code)')")
    assert "does not exist" in teams(home).detail
    (world / "user/.claude").mkdir()
    found = teams(home)
    assert (found.ok, "first steps" in found.detail, "`claude` once" in (found.hint or "")) == (True, True, True)


def test_unknown_version_leaves_teams_unknown(home: Path, agent: Bin) -> None:
    agent("claude", "raise SystemExit(3)")
    assert (teams(home).ok, "unknown" in teams(home).detail) == (True, True)


def test_claude_without_any_feature_fails(home: Path, agent: Bin) -> None:
    agent("claude", "print('1.0.98')")
    assert claude(home).detail.endswith("no run starts with it")


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        ("#!/no/such/python\n", "cannot be started: No such file or directory"),
        ("\0\1\2", "cannot be started: Exec format error"),
        ("#!/bin/sh\necho 2.1.325; exit 1\n", "--version exits with 1: '2.1.325'"),
    ],
)
def test_claude_that_does_not_start_fails(home: Path, agent: Bin, content: str, detail: str) -> None:
    path = agent("claude", "")
    path.write_text(content)
    found = claude(home)
    assert (found.ok, found.detail) == (False, f"{path} {detail}")
    assert "HOCKET_CLAUDE" in (found.hint or "")


def test_variable_selects_the_claude_to_check(
    home: Path, world: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent("claude", "print('1.0.0')")
    monkeypatch.setenv("HOCKET_CLAUDE", str(agent("other", "print('2.1.325')")))
    assert "2.1.325" in claude(home).detail
    monkeypatch.setenv("HOCKET_CLAUDE", str(world / "nosuch"))
    assert (claude(home).ok, "nosuch" in claude(home).detail) == (False, True)


def test_hanging_claude_fails_after_a_timeout(home: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    agent("claude", "import signal; signal.pause()")
    monkeypatch.setattr(doctor, "VERSION_SECONDS", 0.3)
    found = claude(home)
    assert (found.ok, "prints nothing" in found.detail) == (False, True)


# --- --verify -----------------------------------------------------------------------------------------------

LISTING = """
import json, os, sys
if "--version" in sys.argv:
    print("2.1.325")
    sys.exit()
folder = ".claude/agents"
names = [name.partition(".")[0] for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []
agents = [{"name": name, "description": "d"} for name in ["own", *names]]
print(json.dumps({"type": "control_response", "response": {"response": {"agents": agents}}}))
"""


def define(project: Path, file: str, name: str, more: str = "") -> None:
    folder = project / ".claude/agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(f"---\nname: {name}\ndescription: d\n{more}---\n")


def test_verify_of_the_same_agents_is_healthy(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("claude", LISTING)
    define(project, "a.md", "a")
    done = hocket("doctor", "--verify", "--json")
    reported = json.loads(done.stdout)
    assert (done.returncode, reported["ok"], done.stderr) == (0, True, "")
    found = {name: reported["verify"][name] for name in ("same", "only_claude", "only_hocket", "models")}
    assert found == {"same": 1, "only_claude": [], "only_hocket": [], "models": []}
    assert (reported["checks"][-1]["name"], reported["checks"][-1]["ok"]) == ("agents", True)
    assert "✓ agents       1 the same as Claude's own list\n" in hocket("doctor", "--verify").stdout


def test_verify_reports_each_difference(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("claude", LISTING)
    define(project, "a.md", "b")
    define(project, "c.md", "c", "model: opus\n")
    done = hocket("doctor", "--verify")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-3:] == [
        "    only Claude: a",
        f"    only Hocket: b (project, {project}/.claude/agents/a.md)",
        "    model of c: opus, Claude has None",
    ]


def test_verify_of_another_project(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("claude", LISTING)
    define(world / "other", "a.md", "a")
    reported = json.loads(hocket("doctor", "--verify", "--project", "../other", "--json").stdout)
    assert (reported["verify"]["same"], reported["verify"]["project"]) == (1, str(world / "other"))


def test_verify_of_an_old_program_shows_all_checks(hocket: Hocket, agent: Bin, project: Path) -> None:
    """Old versions answer the question without a list of agents."""
    agent("claude", 'import sys\nprint("2.1.9 (Claude Code)" if "--version" in sys.argv else "{}")')
    define(project, "a.md", "a")
    done = hocket("doctor", "--verify")
    assert (done.returncode, done.stderr) == (1, "")
    assert {"python", "database", "claude", "agents"} <= set(checked(done.stdout))
    assert "does not list its agents" in done.stdout.splitlines()[-2]
    reported = json.loads(hocket("doctor", "--verify", "--json").stdout)
    assert (reported["ok"], reported["checks"][-1]["ok"]) == (False, False)
    assert reported["verify"]["error"] == reported["checks"][-1]["detail"]


def checked(output: str) -> list[str]:
    return [line.split()[1] for line in output.splitlines() if line[0] in "✓✗"]


def test_verify_starts_no_server_and_leaves_nothing_behind(hocket: Hocket, agent: Bin, home: Path, world: Path) -> None:
    agent("claude", LISTING)
    before = {path for path in world.rglob("*") if home not in path.parents}
    hocket("doctor", "--verify")
    assert not (home / "server.lock").exists()
    assert {path for path in world.rglob("*") if home not in path.parents} == before


@pytest.mark.parametrize(
    ("args", "env", "message"),
    [
        (["--verify"], {}, "claude is not a program"),
        (["--verify"], {"HOCKET_CLAUDE": "/no/such"}, "/no/such is not a program"),
        (["--verify", "--project", "/no/such"], {}, "/no/such is not a directory"),
        (["--project", "."], {}, "--verify"),
        (["--verify", "--restore"], {}, "--restore or --verify"),
    ],
)
def test_verify_refuses_invalid_options(hocket: Hocket, args: list[str], env: dict[str, str], message: str) -> None:
    done = hocket("doctor", *args, env=env)
    assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True), done.stderr


def check_of(name: str, home: Path) -> Check:
    (found,) = (check for check in checks(str(home)) if check.name == name)
    return found


OTHER_CLIS = pytest.mark.parametrize(
    ("name", "program", "variable", "install"),
    [
        ("codex", "codex", "HOCKET_CODEX", "npm install -g @openai/codex"),
        ("cursor", "cursor-agent", "HOCKET_CURSOR_AGENT", "cursor.com/docs/cli/installation"),
    ],
)


@OTHER_CLIS
def test_other_cli_is_listed_with_its_version(
    name: str, program: str, variable: str, install: str, home: Path, agent: Bin
) -> None:
    path = agent(program, "print('the-cli 0.166.0')")
    assert check_of(name, home) == Check(name, True, f"0.166.0 at {path}", None)


@OTHER_CLIS
def test_missing_cli_is_a_hint_to_install_it(name: str, program: str, variable: str, install: str, home: Path) -> None:
    found = check_of(name, home)
    assert (found.ok, install in (found.hint or "")) == (True, True)


@OTHER_CLIS
def test_variable_of_a_cli_with_no_program_fails(
    name: str, program: str, variable: str, install: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/no/such/program")
    found = check_of(name, home)
    assert (found.ok, "/no/such/program" in found.detail) == (False, True)


def test_large_disk_use_has_a_hint(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = home / "runs" / "2026-01" / "rone" / "out"
    out.parent.mkdir(parents=True)
    out.write_bytes(bytes(range(256)) * 8192)
    (home / "worktrees" / "1-abc").mkdir(parents=True)
    ok, detail, hint = check_space(str(home))
    assert (ok, hint) == (True, None)
    assert re.fullmatch(r"runs 2\.0 MB, database 0 B, worktrees \d+ (B|kB)", detail), detail
    monkeypatch.setattr(doctor, "LARGE", 1024**2)
    assert check_space(str(home))[2] == "old runs can be removed: hocket gc --dry-run --days 30"
    (home / "config.toml").write_text("[keep]\nruns = 5\n")
    assert check_space(str(home))[2] == "old runs can be removed: hocket gc --dry-run"
    monkeypatch.setattr(doctor, "MEASURE_SECONDS", -1.0)
    assert check_space(str(home))[1].startswith("runs over ")
