"""The structs of requests are the only list of their options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hocket.api import wire
from hocket.api.wire_tasks import HandoffBody
from hocket.cli.run import request_body
from hocket.cli.usage import BOUNDS, ISOLATED
from hocket.errors import UsageError
from hocket.workflows.request import HandoffRequest, StartRequest

FIELDS = set(StartRequest.__struct_fields__)


def test_start_request_has_every_key_the_command_line_sends(tmp_path: Path) -> None:
    options = {
        "chain_name": None,
        "prompt_file": None,
        "prompt": "${A}",
        "passed": ("-x",),
        "until": "true",
        "timeout": 1.0,
        "marker": "DONE",
        "on_question": "deny",
        **{option.name: 1 for option in (*BOUNDS, ISOLATED)},
    }
    body = request_body(("a", "A=1"), str(tmp_path), options)
    assert set(body) | {"on_question_default"} <= FIELDS


def test_start_body_adds_only_spellings_to_the_start_request() -> None:
    added = set(wire.StartBody.__struct_fields__) - FIELDS
    assert {name.removeprefix("camel_") for name in added} <= FIELDS
    given = msgspec.json.decode(b'{"agent":"a","budgetUsd":2,"onLost":"retry","idle_timeout":3}', type=wire.StartBody)
    assert (given.budget_usd, given.on_lost, given.idle_timeout) == (2, "retry", 3)


def test_handoff_body_has_the_fields_of_the_handoff_request() -> None:
    assert set(HandoffBody.__struct_fields__) == set(HandoffRequest.__struct_fields__)
    camel = {"agentName", "defaultCwd", "budgetUsd", "onQuestion"}
    assert set(HandoffBody.__struct_encode_fields__) == {"prompt", "cwd", "env", "timeout"} | camel


def test_start_request_refuses_unknown_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"agent": "a", "colour": "red"}, StartRequest)


def test_directory_is_refused_when_missing() -> None:
    with pytest.raises(UsageError, match="working directory"):
        _ = StartRequest(agent="a").directory
