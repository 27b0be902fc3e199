"""A start without a model where one is required: refused at every entry point, and nothing is left behind."""

from __future__ import annotations

import json

import pytest
from api.serving import Server
from scripted_claude import install_claude
from world import Hocket


@pytest.mark.req("S3-16", "S3-17")
def test_refused_start_leaves_nothing_behind(server: Server) -> None:
    install_claude(server.agent.folder)
    agents = server.project / ".claude/agents"
    agents.mkdir(parents=True)
    path = agents / "none.md"
    path.write_text("---\nname: none\ndescription: d\n---\nWork.\n")
    (server.project / "hocket.toml").write_text("registry_file = true\n[spawn]\nrequire_model = true\n")
    message = f"none has no model in {path}, and [spawn] require_model is set"
    hint = f"add a line with model: MODEL to its head in {path}"

    error = server.start_run("none", expect=400, prompt="x")
    assert (error["message"], error["hint"]) == (message, hint)
    chain = server.start_run("none -> none", dsl=True, expect=400, prompt="x")
    assert chain["message"] == f"step 1: {message}"

    hocket = Hocket(server.project, env=server.env)
    for words in (("spawn", "none"), ("run", "none"), ("run", "none:2"), ("run", "none", "--dry-run")):
        done = hocket(*words, "-p", "x", "--json")
        assert (done.returncode, done.stdout) == (2, ""), words
        assert message in done.stderr
        assert hint in done.stderr

    given = {"agent": "none", "prompt": "x", "cwd": str(server.project)}
    for tool in ("hand_off", "spawn"):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": given}}
        result = server.post("/mcp", body).json()["result"]
        assert result["isError"] is True
        assert message in json.dumps(result["content"])

    assert server.count() == 0
    assert list((server.home / "runs").rglob("*")) == []
    assert list((server.home / "secrets").glob("[rq]*")) == []
    assert {one.name for one in server.project.iterdir()} == {".claude", "hocket.toml"}
