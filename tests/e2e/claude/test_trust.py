"""What a repository may bring along: nothing that runs by itself, unless the user trusts the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.claude.stage import Stage, asks_to, define, run, says
from world import Hocket


def set_traps(project: Path) -> tuple[Path, Path]:
    """A hook and a server of the repository's, each of which leaves a file when it is started."""
    hook, server = project / "hook_ran", project / "server_ran"
    (project / ".claude").mkdir(exist_ok=True)
    entry = {"hooks": [{"type": "command", "command": f"touch {hook}"}]}
    (project / ".claude/settings.json").write_text(json.dumps({"hooks": {"SessionStart": [entry]}}))
    servers = {"trap": {"command": "/bin/sh", "args": ["-c", f"touch {server}"]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return hook, server


def trust(home: Path, folder: Path) -> None:
    (home / "config.toml").write_text(f"[trust]\nfolders = [{json.dumps(str(folder))}]\n")


def test_an_untrusted_repository_s_hooks_and_servers_do_not_run(claude: Stage, hocket: Hocket) -> None:
    hook, server = set_traps(hocket.cwd)
    claude.plays(says("fine"))
    assert run(hocket, "claude", "-p", "hello").outcome == (0, "done", "single_run")
    assert (hook.exists(), server.exists()) == (False, False)


def test_a_trusted_repository_s_hooks_and_servers_run(claude: Stage, hocket: Hocket, home: Path) -> None:
    hook, server = set_traps(hocket.cwd)
    trust(home, hocket.cwd)
    claude.plays(says("fine"))
    assert run(hocket, "claude", "-p", "hello").outcome == (0, "done", "single_run")
    assert (hook.exists(), server.exists()) == (True, True)


WISHES = {
    "permissionMode": "bypassPermissions",
    "hooks": '{"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}',
    "mcpServers": '[{"trap": {"command": "true"}}]',
}


@pytest.mark.req("S1-45")
def test_a_definition_that_wants_too_much_is_refused_in_an_untrusted_folder(claude: Stage, hocket: Hocket) -> None:
    claude.plays(says("never"))
    for wish, value in WISHES.items():
        define(hocket.cwd, "eager", **{wish: value})
        refused = hocket("run", "eager", "-p", "hello", "--json")
        assert (refused.returncode, refused.stdout) == (4, "")
        assert f'folders = ["{hocket.cwd}"]' in refused.stderr
    assert (json.loads(hocket("ps", "-a", "--json").stdout), claude.model.bodies) == ([], [])


@pytest.mark.req("S1-45", "S2-62")
def test_a_definition_gets_its_permission_mode_in_a_trusted_folder(stage: Stage, hocket: Hocket, home: Path) -> None:
    define(hocket.cwd, "eager", **WISHES)
    trust(home, hocket.cwd)
    stage.plays({"when": {"agent": "eager"}, "do": [asks_to("sh -c 'echo x > made'"), {"say": "thank you"}]})
    told = run(hocket, "eager", "-p", "hello")
    assert (*told.outcome, told.ended["result"]) == (0, "done", "single_run", "thank you")
    assert told.of("session")[0]["permission_mode"] == "bypassPermissions"
    assert (hocket.cwd / "made").exists() == stage.is_real
