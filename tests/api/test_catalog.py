"""What can run, over HTTP: the same catalog as everywhere, read-only, for the operator and for runs."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from api.serving import Server, token_of
from api.test_app import error_of
from starlette.requests import Request

from hocket.api import catalog
from hocket.api.guard import Principal
from hocket.catalog.cache import Catalogs
from hocket.catalog.entries import Catalog
from hocket.catalog.report import find
from hocket.errors import AgentNotFound

SEEDED = {"developer", "developer-review", "qa", "planner", "orchestrator"}
KEYS = {"name", "address", "source", "location", "path", "description", "model"}


def define(folder: Path, name: str, file: str | None = None, **more: str) -> Path:
    """A definition below that folder."""
    path = folder / ".claude/agents" / (file or f"{name}.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"name": name, "description": f"{name} helps", **more}
    path.write_text("---\n" + "".join(f"{key}: {value}\n" for key, value in fields.items()) + "---\nHelp.\n")
    return path


def data(server: Server, path: str, **more: Any) -> Any:
    response = server.get(path, **more)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def names(server: Server, query: str = "", **more: Any) -> set[str]:
    return {agent["name"] for agent in data(server, f"/api/agents{query}", **more)}


@pytest.fixture
def other(shared: Server) -> Path:
    """Another project, with one agent of its own."""
    define(shared.root / "other", "elsewhere")
    return shared.root / "other"


# --- A fresh server -----------------------------------------------------------------------------------------


@pytest.mark.req("S2-23", "S2-27")
def test_new_server_lists_the_default_agents(server: Server) -> None:
    listed = {agent["name"]: agent for agent in data(server, "/api/agents")}
    assert set(listed) == SEEDED
    for name, agent in listed.items():
        assert set(agent) >= KEYS | {"specPath", "allowedTools", "permissionMode"}
        assert (agent["address"], agent["source"], agent["location"]) == (name, "config", "config")
        assert agent["path"] == str(server.home / f"data/agents/{name}.json")


@pytest.mark.req("S2-21", "S2-28")
def test_agent_is_shown_as_in_its_file(server: Server) -> None:
    agent = data(server, "/api/agents/developer")
    written = json.loads((server.home / "data/agents/developer.json").read_text())
    assert {name: agent[name] for name in written} == written
    assert (agent["permissionMode"], agent["specPath"]) == ("acceptEdits", "agents/developer.md")


@pytest.mark.req("S2-23")
def test_added_config_is_listed_without_restart(server: Server) -> None:
    before = names(server)
    wanted = {"name": "mine", "specPath": "agents/mine.md", "allowedTools": "Read", "permissionMode": "plan"}
    (server.home / "data/agents/mine.json").write_text(json.dumps(wanted))
    assert names(server) == before | {"mine"}
    assert data(server, "/api/agents/mine")["permissionMode"] == "plan"


@pytest.mark.req("S2-22", "S2-28")
def test_unknown_agent_is_404_with_suggestions(shared: Server) -> None:
    error = error_of(shared.get("/api/agents/develper"), 404)
    assert (error["code"], "develper" in error["message"], "developer" in error["hint"]) == (
        *("agent_not_found", True, True),
    )


@pytest.mark.req("S2-29")
@pytest.mark.parametrize("path", ["/api/agents", "/api/agents/developer", "/api/catalog"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_catalog_is_read_only(shared: Server, method: str, path: str) -> None:
    before = names(shared)
    error_of(shared.request(method, path, json={"name": "developer"}), 405)
    assert names(shared) == before


# --- Projects -----------------------------------------------------------------------------------------------


def test_project_agents_need_the_project_parameter(shared: Server, other: Path) -> None:
    assert "elsewhere" not in names(shared)
    found = {agent["name"]: agent for agent in data(shared, f"/api/agents?project={other}")}
    assert set(found) > SEEDED
    agent = found["elsewhere"]
    assert set(agent) >= KEYS
    assert (agent["location"], agent["source"], agent["path"]) == (
        *("project-local", "project-local-only", f"{other}/.claude/agents/elsewhere.md"),
    )
    assert "specPath" not in agent
    error_of(shared.get("/api/agents/elsewhere"), 404)
    detail = data(shared, f"/api/agents/elsewhere?project={other}")
    assert (detail["project"], detail["metadata"]["description"]) == (str(other), "elsewhere helps")


def test_overriding_agent_names_what_it_needs(shared: Server, other: Path) -> None:
    mine = define(Path(shared.env["HOME"]), "reviewer", model="haiku")
    theirs = define(other, "reviewer", model="opus", tags="[a, b]")
    listed = next(one for one in data(shared, f"/api/agents?project={other}") if one["name"] == "reviewer")
    assert (listed["overridden"], listed["model"], listed["tags"], bool(listed["needsTrust"])) == (
        *(True, "opus", ["a", "b"], True),
    )
    detail = data(shared, f"/api/agents/reviewer?project={other}")
    assert (detail["path"], detail["shadows"]) == (str(theirs), [{"source": "global", "path": str(mine)}])
    assert data(shared, "/api/agents/reviewer")["path"] == str(mine)


def test_agent_is_found_by_address(shared: Server, other: Path) -> None:
    define(other, "../odd name/ø", "odd.md")
    agent = next(one for one in data(shared, f"/api/agents?project={other}") if one["name"].startswith(".."))
    assert agent["address"].isascii()
    assert "/" not in agent["address"]
    assert data(shared, f"/api/agents/{agent['address']}?project={other}")["name"] == "../odd name/ø"


@pytest.mark.parametrize("project", ["", "relative", "/no/such/place", "/etc/passwd", "/%00", "~", "/" + "x" * 4000])
@pytest.mark.parametrize("path", ["/api/agents", "/api/agents/developer", "/api/catalog"])
def test_project_must_be_a_directory(shared: Server, path: str, project: str) -> None:
    error = error_of(shared.get(f"{path}?project={project}"), 400)
    assert error["code"] == "bad_directory"
    assert project.replace("%00", "\\x00") in error["message"]


def test_broken_configuration_is_a_problem(shared: Server, other: Path) -> None:
    (other / "hocket.toml").write_text("[agents\n")
    try:
        assert "elsewhere" in names(shared, f"?project={other}")
        problems = data(shared, f"/api/catalog?project={other}")["problems"]
        assert str(other / "hocket.toml") in {problem["path"] for problem in problems}
    finally:
        (other / "hocket.toml").unlink()


def test_invalid_file_name_is_shown(shared: Server, other: Path) -> None:
    odd = os.fsdecode(os.fsencode(other / ".claude/agents") + b"/\xff.md")
    Path(odd).write_text("---\nname: raw\ndescription: d\n---\n")
    try:
        problems = data(shared, f"/api/catalog?project={other}")["problems"]
        assert any(problem["path"].startswith(f"{other}/.claude/agents/") for problem in problems)
    finally:
        Path(odd).unlink()


# --- The table ----------------------------------------------------------------------------------------------


def test_catalog_equals_agents_json(shared: Server, other: Path) -> None:
    from world import Hocket

    (other / ".claude/agents/broken.md").write_text("no head")
    command = Hocket(other)
    printed = json.loads(command("agents", "--json", env=shared.env).stdout)
    assert data(shared, f"/api/catalog?project={other}") == printed
    assert {problem["path"] for problem in printed["problems"]} >= {str(other / ".claude/agents/broken.md")}


def test_changed_file_is_visible_at_once(shared: Server, other: Path) -> None:
    for number in range(5):
        path = define(other, f"late-{number}")
        assert f"late-{number}" in names(shared, f"?project={other}")
        path.unlink()
        assert f"late-{number}" not in names(shared, f"?project={other}")


# --- Runs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def colleague(shared: Server) -> Iterator[str]:
    """The token of a live run that works in the server's project."""
    define(shared.project, "colleague")
    run = shared.start_run("sleeper")
    yield token_of(shared, run)
    shared.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.parametrize("unix", [False, True])
def test_run_finds_agents_of_its_directory(shared: Server, colleague: str, other: Path, unix: bool) -> None:
    assert "colleague" in names(shared, token=colleague, unix=unix)
    assert data(shared, "/api/agents/colleague", token=colleague, unix=unix)["location"] == "project-local"
    assert "colleague" in data(shared, "/api/catalog", token=colleague, unix=unix)["by_name"]
    assert "colleague" not in names(shared, f"?project={other}", token=colleague, unix=unix)
    assert "colleague" not in names(shared)


def test_discovery_does_not_block_other_requests(shared: Server, other: Path) -> None:
    """A folder that takes long to read is read beside everything else."""
    import threading

    for number in range(1500):
        define(other, f"many-{number}", file=f"many/{number}.md")
    busy = threading.Thread(target=lambda: data(shared, f"/api/catalog?project={other}"))
    busy.start()
    answered = 0
    while busy.is_alive():
        assert shared.get("/api/health", unix=True).elapsed.total_seconds() < 2
        answered += 1
    busy.join()
    assert answered > 1


def test_names_are_compared_in_a_thread(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def compared(catalog: Catalog, name: str) -> str:
        threads.append(threading.current_thread())
        return find(catalog, name)

    monkeypatch.setattr(catalog, "find", compared)
    state = SimpleNamespace(
        engine=SimpleNamespace(
            home=home, catalogs=Catalogs(str(home)), run_in_folder=lambda _, look_up: asyncio.to_thread(look_up)
        )
    )
    request = SimpleNamespace(app=SimpleNamespace(state=state), scope={"state": {"caller": Principal(None)}})
    with pytest.raises(AgentNotFound):
        asyncio.run(catalog.show_agent(cast(Request, request), "planer"))
    assert threads not in ([], [threading.main_thread()])
