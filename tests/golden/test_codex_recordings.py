"""Recordings of the Codex CLI: how they are read, and whether the CLI still prints the same."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from e2e.codex.setup import real_codex
from golden.codex_cases import CODEX_CASES, codex_version, record_codex
from golden.recordings import Exit, Recordings, read

from hocket.model import Reason, Status
from hocket.providers import codex
from hocket.providers.base import State

RECORDINGS = Recordings("codex")
VERSIONS = RECORDINGS.versions()
RECORDED = [(version, case) for version in VERSIONS for case in RECORDINGS.cases(version)]
DONE = (Status.DONE, Reason.EXIT)
FAILED = (Status.FAILED, Reason.ERROR)
ENDS = dict.fromkeys(CODEX_CASES, DONE) | {
    "api_error_400": FAILED,
    "api_error_401": FAILED,
    "api_error_429": (Status.FAILED, Reason.RATE_LIMITED),
    "api_error_500": FAILED,
    "connection_lost": FAILED,
}
TRANSIENT = {"api_error_500", "connection_lost"}


@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_recording_gives_its_stored_events(version: str, case: str) -> None:
    found, expected = read(RECORDINGS.load(version, case)), RECORDINGS.expected(version, case)
    assert json.loads(json.dumps(found.events)) == json.loads(json.dumps(expected.events))
    assert found[1:] == expected[1:]
    assert (found.status, found.reason) == ENDS[case]
    assert found.transient == (case in TRANSIENT)


@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_every_line_of_a_recording_is_understood(version: str, case: str) -> None:
    assert [data for kind, data in read(RECORDINGS.load(version, case)).events if kind == "raw"] == []


@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_recording_is_done_only_after_its_last_line(version: str, case: str) -> None:
    recording = RECORDINGS.load(version, case)
    step = codex.reader(recording.spec)
    state: State = {}
    verdicts: Counter[tuple[Status, Reason]] = Counter()
    for line in recording.out:
        verdicts[codex.verdict(state, Exit(0), None)] += 1
        state, _ = step(state, "out", line, None)
    assert set(verdicts) == {FAILED}
    assert codex.verdict(state, Exit(0), None) == ENDS[case]


def test_installed_cli_is_the_recorded_one() -> None:
    version = codex_version(real_codex())
    assert [version] == VERSIONS, f"run scripts/golden --provider codex, and remove the folders other than {version}"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_case_is_recorded(version: str) -> None:
    assert RECORDINGS.cases(version) == sorted(CODEX_CASES), "run scripts/golden --provider codex"


@pytest.mark.parametrize("case", CODEX_CASES)
def test_installed_cli_prints_what_is_recorded(case: str) -> None:
    before, now = RECORDINGS.load(VERSIONS[-1], case), record_codex(case, real_codex())
    assert now.out == before.out
    assert json.loads(json.dumps(now.command)) == before.command
