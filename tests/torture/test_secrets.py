"""Torture row 36: an agent that prints its environment publishes no secret."""

from __future__ import annotations

import json
import os

import pytest
from torture.ground import Ground, environment
from world import Bin

KEY = "sk-test-0123456789abcdef0123456789"
AWS = "AKIA0123456789ABCDEFGHIJ"
SHOUTER = """
import os, sys, json
for name, value in sorted(os.environ.items()):
    print(f"{name}={value}")
    print(json.dumps({name: value}), file=sys.stderr)
"""


@pytest.mark.req("S2-89")
def test_an_agent_that_prints_its_environment_publishes_no_secret(ground: Ground, agent: Bin) -> None:
    agent("shouter", SHOUTER)
    (ground.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n')
    sent = {**environment(), "MY_API_KEY": KEY, "AWS_SECRET_ACCESS_KEY": AWS, "ANTHROPIC_API_KEY": KEY + "x"}
    task = ground.client.request("POST", "/api/tasks", {"description": "d", "cwd": str(ground.cwd)})["id"]
    body = {"agentName": "shouter", "prompt": "x", "env": sent}
    answer = ground.client.exchange("POST", f"/api/tasks/{task}/handoff", body)
    run = ground.ended(answer["meta"]["run"])
    spec = json.loads((ground.folder(run["id"]) / "spec.json").read_text())["env"]
    token = spec["HOCKET_TOKEN"]
    assert spec["MY_API_KEY"] == KEY, "what the user passes on arrives"
    assert "AWS_SECRET_ACCESS_KEY" not in spec
    assert "ANTHROPIC_API_KEY" not in spec, "another CLI's key reaches that CLI alone"
    told = json.dumps(
        [
            *(run, ground.events(run["id"])),
            ground.client.request("GET", f"/api/tasks/{task}"),
            ground.client.request("GET", f"/api/tasks/{task}/handoffs/{answer['meta']['handoff']}"),
        ]
    )
    assert "MY_API_KEY=[redacted]" in told
    assert "HOCKET_TOKEN=[redacted]" in told
    for secret in (KEY, AWS, token):
        assert secret not in told
    assert KEY.encode() in ground.out(run["id"]), "the run's own file is as the agent wrote it"
    assert os.stat(ground.folder(run["id"])).st_mode & 0o077 == 0
    log = (ground.home / "server.log").read_text()
    assert token not in log
    assert KEY not in log
