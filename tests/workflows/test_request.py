"""The structs of requests are the only list of their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hocket.api import wire
from hocket.api.wire_tasks import HandoffBody
from hocket.cli.rehearse import tour_body
from hocket.cli.run import request_body
from hocket.cli.runs import spawn_body
from hocket.cli.usage import BOUNDS, ISOLATED, SPENDING
from hocket.errors import UsageError
from hocket.workflows.request import HandoffRequest, StartRequest

SPAWN_OPTIONS = {"passed": ("-x",), "timeout": 1.0, "session": True, "agent_teams": True, "on_question": "deny"}
FIELDS = set(StartRequest.__struct_fields__)


def test_start_request_has_keys_of_command_line(tmp_path: Path) -> None:
    options = {
        "chain_name": None,
        "prompt_file": None,
        "prompt": "${A}",
        "passed": ("-x",),
        "until": "true",
        "timeout": 1.0,
        "marker": "DONE",
        "on_question": "deny",
        "agent_teams": True,
        **{option.name: 1 for option in (*BOUNDS, ISOLATED)},
    }
    body = request_body(("a", "A=1"), str(tmp_path), options)
    assert set(body) | {"on_question_default"} <= FIELDS
    assert (body["agent_teams"], body["session"]) == (True, False)
    spawned = spawn_body(
        "a", "p", str(tmp_path), {**dict.fromkeys(option.name for option in SPENDING), **SPAWN_OPTIONS}
    )
    for sent in (body | {"isolation": "none", "on_lost": "ask"}, spawned, tour_body(str(tmp_path))):
        assert msgspec.convert(sent, StartRequest).cwd == str(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        *({"timeout": value} for value in (0, -1, float("nan"), 1e10)),
        *({"budget_usd": 0}, {"budget_tokens": 0}, {"failures": 0}, {"no_progress": -1}, {"idle_timeout": 0}),
        *({"on_question": "x"}, {"on_lost": "x"}, {"isolation": "x"}),
    ],
    ids=repr,
)
def test_start_request_refuses_values_out_of_bounds(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"dsl": "a", **fields}, StartRequest)


def test_start_body_adds_only_spellings() -> None:
    added = set(wire.StartBody.__struct_fields__) - FIELDS
    assert {name.removeprefix("camel_") for name in added} <= FIELDS
    given = msgspec.json.decode(b'{"agent":"a","budgetUsd":2,"onLost":"retry","idle_timeout":3}', type=wire.StartBody)
    assert (given.budget_usd, given.on_lost, given.idle_timeout) == (2, "retry", 3)


@pytest.mark.req("S5-01")
def test_start_body_takes_teams_in_both_spellings() -> None:
    bodies = ('{"agent":"a","agentTeams":true}', '{"agent":"a","agent_teams":true}', '{"agent":"a","agentTeams":false}')
    given = [msgspec.json.decode(body.encode(), type=wire.StartBody) for body in (*bodies, '{"agent":"a"}')]
    assert [(one.agent_teams, one.session) for one in given] == [
        (True, None),
        (True, None),
        (False, None),
        (False, None),
    ]


def test_handoff_body_has_fields_of_handoff_request() -> None:
    assert set(HandoffBody.__struct_fields__) == set(HandoffRequest.__struct_fields__)
    camel = {"agentName", "defaultCwd", "budgetUsd", "onQuestion"}
    assert set(HandoffBody.__struct_encode_fields__) == {"prompt", "cwd", "env", "timeout"} | camel


def test_start_request_refuses_unknown_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"agent": "a", "colour": "red"}, StartRequest)


def test_directory_is_refused_when_missing() -> None:
    with pytest.raises(UsageError, match="working directory"):
        _ = StartRequest(agent="a").directory
