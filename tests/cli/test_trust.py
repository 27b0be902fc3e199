"""``hocket trust``: shows what it approves, approves what it has shown, and is not for agents."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from world import Hocket, processes_of

pytestmark = pytest.mark.in_process
HOOKS = '{"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}'


def define(project: Path, name: str, body: str = "Hello.", **head: str) -> Path:
    path = project / ".claude/agents" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{key}: {value}\n" for key, value in {"name": name, "description": "d", **head}.items())
    path.write_text(f"---\n{lines}---\n{body}\n", encoding="utf-8")
    return path


def listed(hocket: Hocket) -> dict[str, Any]:
    rows = json.loads(hocket("trust", "--list", "--json").stdout)
    assert all(set(row) == {"path", "kind", "at", "state"} for row in rows)
    return {row["path"]: row["state"] for row in rows}


# --- Targets ------------------------------------------------------------------------------------------------


@pytest.mark.req("S4-52")
def test_agent_is_approved_by_its_name(hocket: Hocket, world: Path) -> None:
    own = define(world / "user", "rev")
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    done = hocket("trust", "--yes", "rev")
    assert (done.returncode, done.stderr) == (0, "")
    for words in (f"{path}: not approved yet", "asks for hooks", "Stop: true", f"your own agent {own}", "+hooks:"):
        assert words in done.stdout
    assert done.stdout.endswith(f"approved {path}\n")
    assert listed(hocket) == {str(path): "approved"}
    assert hocket("trust", "--yes", "rev").stdout == f"approved already {path}\n"


@pytest.mark.parametrize("spelled", ["{path}", ".claude/agents/rev.md", ".claude/agents/rev", "{bare}"])
def test_definition_is_approved_by_its_path(hocket: Hocket, spelled: str) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    done = hocket("trust", "--yes", spelled.format(path=path, bare=path.with_suffix("")))
    assert done.returncode == 0, done.stderr
    assert listed(hocket) == {str(path): "approved"}


def test_path_is_relative_to_given_directory(hocket: Hocket, world: Path) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    for target in ("rev", ".claude/agents/rev.md"):
        assert hocket("trust", "--yes", target, "--cwd", hocket.cwd, cwd=world).returncode == 0
        assert listed(hocket) == {str(path): "approved"}
        assert hocket("trust", "--remove", target, "--cwd", hocket.cwd, cwd=world).returncode == 0
        assert listed(hocket) == {}


def test_current_folder_is_approved_with_parents(hocket: Hocket) -> None:
    (hocket.cwd / ".git").mkdir()
    below = hocket.cwd / "a/b"
    below.mkdir(parents=True)
    (below / ".mcp.json").write_text(json.dumps({"mcpServers": {"trap": {"command": "sh", "args": ["-c", "x"]}}}))
    (hocket.cwd / "hocket.toml").write_text('[chains.c]\nsteps = [{agent = "a"}]\nuntil = "make test"\n')
    done = hocket("trust", "--yes", cwd=below)
    assert (done.returncode, done.stderr) == (0, "")
    assert "trap: sh -c x" in done.stdout
    assert "gate: make test" in done.stdout
    assert listed(hocket) == {str(below): "approved", str(hocket.cwd): "approved"}
    (below / ".mcp.json").write_text("{}")
    assert listed(hocket)[str(below)] == "changed"
    changed = hocket("trust", "--yes", below)
    assert "compared with what you approved" in changed.stdout
    assert '-{"mcpServers"' in changed.stdout


def test_invalid_project_can_be_approved(hocket: Hocket) -> None:
    (hocket.cwd / "hocket.toml").write_text('[claude]\npermission_mode = "bypassPermissions"\n')
    assert hocket("run", "true", "--dry-run").returncode == 4
    assert hocket("trust", "--yes").returncode == 0
    assert hocket("run", "true", "--dry-run").returncode == 0


@pytest.mark.parametrize("target", ["calm", "mine"])
def test_target_without_privileges_needs_no_approval(hocket: Hocket, home: Path, world: Path, target: str) -> None:
    define(hocket.cwd, "calm", tools="Read")
    define(world / "user", "mine", hooks=HOOKS)
    done = hocket("trust", "--yes", target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing to approve\n", "")
    assert not (home / "trust.json").exists()


@pytest.mark.parametrize("target", [[], ["."], ["{cwd}"]])
def test_folder_without_settings_can_be_approved(hocket: Hocket, target: list[str]) -> None:
    (hocket.cwd / "CLAUDE.md").write_text("Be kind.")
    define(hocket.cwd, "calm", tools="Read")
    words = [one.format(cwd=hocket.cwd) for one in target]
    seen = hocket("trust", "--dry-run", *words)
    assert seen.returncode == 0
    for line in (f"{hocket.cwd}: not approved yet", "no settings, hooks or servers", "CLAUDE.md, skills and agents"):
        assert line in seen.stdout
    assert "programs that these files name" not in seen.stdout
    assert listed(hocket) == {}
    assert hocket("trust", "--yes", *words).stdout.endswith(f"\napproved {hocket.cwd}\n")
    assert listed(hocket) == {str(hocket.cwd): "approved"}
    assert hocket("trust", "--yes", *words).stdout == f"approved already {hocket.cwd}\n"
    (hocket.cwd / ".mcp.json").write_text('{"mcpServers": {}}')
    assert listed(hocket) == {str(hocket.cwd): "changed"}
    changed = hocket("trust", "--dry-run", *words).stdout
    assert "changed since you approved it\n  covered: .mcp.json\n" in changed
    assert "    +=== .mcp.json, 18 bytes" in changed
    assert hocket("trust", "--remove", *words).stdout == f"no longer approved: {hocket.cwd}\n"
    assert listed(hocket) == {}


def test_json_reports_approval_of_an_empty_folder(hocket: Hocket) -> None:
    reported = json.loads(hocket("trust", "--yes", "--json").stdout)
    (approved,), (explained,) = reported["approved"], reported["explained"]
    assert (approved["path"], approved["sha256"]) == (str(hocket.cwd), hashlib.sha256(b"").hexdigest())
    assert (explained["state"], explained["files"], explained["asks"]) == ("new", [], [])


def test_trusted_empty_folder_needs_no_approval(hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(hocket.cwd))}]\n")
    assert hocket("trust", "--yes").stdout == "nothing to approve\n"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing", "no agent 'missing'"),
        ("./nothing", "nothing does not exist"),
        ("./plain.txt", "neither a definition nor a folder"),
        ("./.claude/agents/broken.md", "line 1"),
    ],
)
def test_invalid_target_is_refused(hocket: Hocket, target: str, words: str) -> None:
    (hocket.cwd / "plain.txt").write_text("x")
    define(hocket.cwd, "broken").write_text("---\nname: broken\n")
    done = hocket("trust", "--yes", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_several_targets_are_approved_at_once(hocket: Hocket) -> None:
    paths = [define(hocket.cwd, name, hooks=HOOKS) for name in ("a", "b", "c")]
    assert hocket("trust", "--yes", "a", paths[1], "c").returncode == 0
    assert listed(hocket) == dict.fromkeys(map(str, paths), "approved")


def test_commands_at_once_lose_no_approval(hocket: Hocket) -> None:
    paths = [define(hocket.cwd, f"a{number}", hooks=HOOKS) for number in range(6)]
    started = [hocket.start("trust", "--yes", path) for path in paths]
    for process in started:
        _, stderr = process.communicate(timeout=PATIENCE)
        assert (process.returncode, stderr) == (0, "")
    assert listed(hocket) == dict.fromkeys(map(str, paths), "approved")


# --- Links --------------------------------------------------------------------------------------------------


def test_link_is_approved_as_its_target(hocket: Hocket, world: Path) -> None:
    real = define(world / "elsewhere", "rev", hooks=HOOKS)
    link = hocket.cwd / ".claude/agents/rev.md"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert hocket("trust", "--yes", link).returncode == 0
    assert listed(hocket) == {str(real): "approved"}
    assert hocket("agents", "rev", "--json").returncode == 0


# --- Taking back, listing -----------------------------------------------------------------------------------


def test_approval_of_a_missing_file_can_be_removed(hocket: Hocket) -> None:
    first, second = define(hocket.cwd, "a", hooks=HOOKS), define(hocket.cwd, "b", hooks=HOOKS)
    hocket("trust", "--yes", "a", "b")
    assert hocket("trust", "--remove", "a").stdout == f"no longer approved: {first}\n"
    second.unlink()
    assert listed(hocket) == {str(second): "gone"}
    done = hocket("trust", "--remove", second, "--json")
    assert json.loads(done.stdout) == {"removed": [{"path": str(second), "kind": "file"}]}
    again = hocket("trust", "--remove", second)
    assert (again.returncode, again.stdout) == (2, "")
    assert "is not approved" in again.stderr


def test_list_has_trusted_folders_of_the_configuration(hocket: Hocket, home: Path) -> None:
    assert hocket("trust", "--list").stdout == "nothing is approved\n"
    (home / "config.toml").write_text(f'[trust]\nfolders = ["{hocket.cwd}"]\n')
    assert listed(hocket) == {str(hocket.cwd): "always"}
    assert hocket("trust", "--list").stdout.splitlines()[1].split() == ["always", "folder", "-", str(hocket.cwd)]


def test_broken_configuration_does_not_hide_the_list(hocket: Hocket) -> None:
    path = define(hocket.cwd, "a", hooks=HOOKS)
    hocket("trust", "--yes", "a")
    (hocket.cwd / "hocket.toml").write_text("= =")
    assert listed(hocket) == {str(path): "approved"}


def test_damaged_record_is_reported_and_kept(hocket: Hocket, home: Path) -> None:
    define(hocket.cwd, "a", hooks=HOOKS)
    (home / "trust.json").write_text("{")
    for words in (("--list",), ("a",)):
        done = hocket("trust", "--yes", *words)
        assert done.returncode == 2
        assert f"{home}/trust.json is damaged" in done.stderr
        assert "hint: move it away" in done.stderr
    assert (home / "trust.json").read_text() == "{"


def test_conflicting_options_are_refused(hocket: Hocket) -> None:
    for words in (("--list", "a"), ("--dry-run", "--remove")):
        assert hocket("trust", "--yes", *words).returncode == 2


# --- Who is asked -------------------------------------------------------------------------------------------


@contextmanager
def asking(hocket: Hocket, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with a terminal for its question, from the moment that the question is there."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket", "trust", *words],
        cwd=hocket.cwd,
        stdin=slave,
        stderr=slave,
        stdout=subprocess.PIPE,
    )
    os.close(slave)
    try:
        said = b""
        while b"[y/N]" not in said:
            said += os.read(master, 1024)
        yield process, master
    finally:
        os.close(master)
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[bytes], master: int, text: bytes) -> tuple[int, str]:
    os.write(master, text)
    stdout, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, stdout.decode()


@pytest.mark.parametrize("text", [b"n\n", b"\x04"])
def test_other_answers_approve_nothing(hocket: Hocket, text: bytes) -> None:
    define(hocket.cwd, "rev", hooks=HOOKS)
    with asking(hocket, "rev") as (process, master):
        code, said = answer(process, master, text)
    assert (code, "asks for hooks" in said, "\napproved" in said) == (1, True, False)
    assert listed(hocket) == {}


def test_approval_covers_the_content_that_was_shown(hocket: Hocket, home: Path) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    shown = path.read_bytes()
    with asking(hocket, "rev") as (process, master):
        define(hocket.cwd, "rev", hooks=HOOKS, permissionMode="bypassPermissions")
        assert answer(process, master, b"y\n")[0] == 0
    record = json.loads((home / "trust.json").read_text())
    assert record["files"][str(path)]["sha256"] == hashlib.sha256(shown).hexdigest()
    assert listed(hocket) == {str(path): "changed"}


def test_yes_option_skips_the_question(hocket: Hocket) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    assert hocket("trust", "rev", "--yes").returncode == 0
    assert listed(hocket) == {str(path): "approved"}


@pytest.mark.parametrize("words", [["rev"], ["."], ["rev", "--json"]])
def test_nothing_is_approved_without_a_terminal(hocket: Hocket, home: Path, words: list[str]) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    done = hocket("trust", *words)
    assert (done.returncode, "hooks" in done.stdout, "\napproved" in done.stdout) == (4, "--json" not in words, False)
    target = path if words[0] == "rev" else hocket.cwd
    assert done.stderr.endswith(f"add --yes to: hocket trust {target}\n")
    assert not (home / "trust.json").exists()


def test_approved_target_needs_no_terminal(hocket: Hocket) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    assert hocket("trust", "--yes", "rev").returncode == 0
    done = hocket("trust", "rev")
    assert (done.returncode, done.stdout) == (0, f"approved already {path}\n")


def test_dry_run_approves_nothing(hocket: Hocket) -> None:
    define(hocket.cwd, "rev", hooks=HOOKS)
    done = hocket("trust", "rev", "--dry-run")
    assert (done.returncode, "asks for hooks" in done.stdout) == (0, True)
    found = json.loads(hocket("trust", "rev", "--dry-run", "--json").stdout)
    assert (found["approved"], found["explained"][0]["asks"][0]["what"]) == ([], "hooks")
    assert listed(hocket) == {}


def test_approval_is_reported_as_json(hocket: Hocket) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    done = hocket("trust", "--yes", "rev", "--json")
    (approved,) = json.loads(done.stdout)["approved"]
    assert (done.stderr, approved["path"], approved["kind"]) == ("", str(path), "file")
    assert approved["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_agent_cannot_approve_itself(hocket: Hocket, home: Path) -> None:
    define(hocket.cwd, "rev", hooks=HOOKS)
    for words in (("rev",), ("rev", "--yes"), ("--remove", "rev"), (".",)):
        done = hocket("trust", "--yes", *words, env={"HOCKET_RUN": "r1"})
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot approve" in done.stderr
    assert not (home / "trust.json").exists()


# --- Elsewhere ----------------------------------------------------------------------------------------------


def test_no_server_is_started(hocket: Hocket, home: Path) -> None:
    define(hocket.cwd, "rev", hooks=HOOKS)
    for words in (("rev",), (".",), ("--list",), ("--remove", "rev")):
        hocket("trust", "--yes", *words)
    assert processes_of(home) == {}
    assert not (home / "sock").exists()


def test_missing_home_is_created_private(hocket: Hocket, world: Path) -> None:
    define(hocket.cwd, "rev", hooks=HOOKS)
    new = world / "new/home"
    assert hocket("trust", "--yes", "rev", env={"HOCKET_HOME": str(new)}).returncode == 0
    assert new.stat().st_mode & 0o777 == 0o700


def test_unwritable_home_is_a_clear_error(hocket: Hocket, world: Path) -> None:
    define(hocket.cwd, "rev", hooks=HOOKS)
    (world / "file").write_text("")
    done = hocket("trust", "--yes", "rev", env={"HOCKET_HOME": str(world / "file/h")})
    assert done.returncode == 2
    assert f"cannot record approvals in {world}/file/h" in done.stderr
    assert "Traceback" not in done.stderr


def test_project_text_cannot_control_the_terminal(hocket: Hocket) -> None:
    command = 'sh -c "\\u001b]0;x\\u0007\\u001b[2J"\\napproved everything'
    hooks = f'{{"Stop": [{{"hooks": [{{"type": "command", "command": {json.dumps(command)}}}]}}]}}'
    define(hocket.cwd, "rev", "one\x1b[1A\rtwo\u202ethree", hooks=hooks.replace("\\\\", "\\"))
    define(Path(os.environ["HOME"]), "rev")
    done = hocket("trust", "--yes", "rev")
    assert done.returncode == 0
    assert not set("\x1b\r\x07\u202e") & set(done.stdout)
    assert not any(line.startswith("approved everything") for line in done.stdout.splitlines())


@pytest.mark.parametrize("words", [[""], ["--remove", ""], [".", ""]])
def test_empty_target_is_refused(hocket: Hocket, words: list[str]) -> None:
    done = hocket("trust", "--yes", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a TARGET is empty" in done.stderr


CHANGES = [
    (lambda text: text.replace("\n", "\r\n"), "+---\\r\n"),
    (lambda text: text.rstrip("\n"), " (no line end)\n"),
    (lambda text: text + "\u200b\u202e\n", "+\\u200b\\u202e\n"),
    (lambda text: text + "hidden \x1b[8m\n", "+hidden \\x1b[8m\n"),
]


@pytest.mark.parametrize(("change", "shown"), CHANGES, ids=["line ends", "the last line end", "unseen", "obeyed"])
def test_every_change_is_shown(hocket: Hocket, change: Callable[[str], str], shown: str) -> None:
    path = define(hocket.cwd, "rev", hooks=HOOKS)
    assert hocket("trust", "--yes", "rev").returncode == 0
    path.write_bytes(change(path.read_text()).encode())
    reported = hocket("trust", "rev", "--dry-run").stdout
    assert "changed since you approved it" in reported
    assert shown in reported
    assert "no difference" not in reported
    assert "\x1b" not in reported
