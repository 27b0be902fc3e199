"""Torture row 36: an agent that prints its environment publishes no secret."""

from __future__ import annotations

import json
import os

import pytest
from torture.installation import Installation, environment
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
def test_printed_environment_publishes_no_secret(installation: Installation, agent: Bin) -> None:
    agent("shouter", SHOUTER)
    (installation.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n')
    sent = {**environment(), "MY_API_KEY": KEY, "AWS_SECRET_ACCESS_KEY": AWS, "ANTHROPIC_API_KEY": KEY + "x"}
    task = installation.client.request("POST", "/api/tasks", {"description": "d", "cwd": str(installation.cwd)})["id"]
    body = {"agentName": "shouter", "prompt": "x", "env": sent}
    answer = installation.client.exchange("POST", f"/api/tasks/{task}/handoff", body)
    run = installation.ended(answer["meta"]["run"])
    printed = installation.out(run["id"]).decode().splitlines()
    given = dict(line.split("=", 1) for line in printed)
    token = given["HOCKET_TOKEN"]
    assert given["MY_API_KEY"] == KEY, "what the user passes on arrives"
    assert "AWS_SECRET_ACCESS_KEY" not in given
    assert "ANTHROPIC_API_KEY" not in given, "another CLI's key reaches that CLI alone"
    told = json.dumps(
        [
            *(run, installation.events(run["id"])),
            installation.client.request("GET", f"/api/tasks/{task}"),
            installation.client.request("GET", f"/api/tasks/{task}/handoffs/{answer['meta']['handoff']}"),
        ]
    )
    assert "MY_API_KEY=[redacted]" in told
    assert "HOCKET_TOKEN=[redacted]" in told
    for secret in (KEY, AWS, token):
        assert secret not in told
    assert KEY.encode() in installation.out(run["id"]), "the run's own file is as the agent wrote it"
    assert os.stat(installation.folder(run["id"])).st_mode & 0o077 == 0
    log = (installation.home / "server.log").read_text()
    assert token not in log
    assert KEY not in log


ODD = 'p"ss\\w/rd-ünïcode-' + "0123456789" * 6
"""So long that the masks of a line of 256 KiB fit into one event."""
REPEATER = """
import json, os, sys
key = os.environ["MY_API_KEY"]
print(json.dumps({"ascii": key}))
print(json.dumps({"text": key}, ensure_ascii=False))
print(json.dumps({"nested": json.dumps({"key": key})}).replace("/", "\\\\/"))
print(json.dumps({"error": key}), file=sys.stderr)
begin = 256 * 1024 - 5
print(key * (begin // len(key.encode())) + "." * (begin % len(key.encode())) + key + "z" * 1000)
last = 64 * 1024 - len(key.encode()) // 2
print("before " + key + "y" * (last - 1))
"""


def test_secrets_are_masked_where_output_is_cut(installation: Installation, agent: Bin) -> None:
    """Torture row 46: JSON stays JSON, and neither a line's beginning nor a result's begins or ends inside a secret."""
    agent("repeater", REPEATER)
    (installation.home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n')
    run = installation.ended(installation.spawn("repeater", env={**environment(), "MY_API_KEY": ODD}))
    assert run["status"] == "done"
    events = installation.events(run["id"])
    ascii_line, text_line, nested, long_line, last = [
        event["data"]["text"] for event in events if event["type"] == "text"
    ]
    (error,) = [event["data"]["text"] for event in events if event["type"] == "raw"]
    assert json.loads(ascii_line) == {"ascii": "[redacted]"}
    assert json.loads(text_line) == {"text": "[redacted]"}
    assert json.loads(json.loads(nested)["nested"]) == {"key": "[redacted]"}
    assert json.loads(error) == {"error": "[redacted]"}
    assert long_line.rstrip(".").replace("[redacted]", "") == "", "its beginning ends inside the secret"
    assert last.startswith("before [redacted]y")
    assert run["result"].strip("y\n") == "", "the last 64 KiB begin inside the secret"
    assert run["result"].startswith("y")
    assert len(run["result"]) > 60_000
