"""Recordings of the Claude CLI: how they are read, and whether the CLI still prints the same."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import real_cli
from golden.claude_cases import CASES
from golden.claude_runner import kind_of
from golden.claude_versions import WHEELS, older, version_of
from golden.normalize import PLACE, TIMESTAMP, normalised
from golden.record import record_claude
from golden.recordings import Exit, Recording, Recordings, in_order, read
from golden.sources import LinesBySource, turns

from hocket.cli.doctor import CLAUDE_FEATURES
from hocket.model import Reason, Status
from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.reader import reader
from hocket.providers.claude.verdict import verdict

RECORDINGS = Recordings("claude")
VERSIONS = RECORDINGS.versions()
RECORDED = [(version, case) for version in VERSIONS for case in RECORDINGS.cases(version)]
DONE = (Status.DONE, Reason.EXIT)
FAILED = (Status.FAILED, Reason.ERROR)
ENDS = dict.fromkeys(CASES, DONE) | {
    "api_error_401": FAILED,
    "api_error_429": (Status.FAILED, Reason.RATE_LIMITED),
    "api_error_500": FAILED,
    "budget": (Status.FAILED, Reason.BUDGET),
    "connection_lost": FAILED,
    "max_turns": FAILED,
    "refusal": FAILED,
}
TRANSIENT = {"api_error_500", "connection_lost"}
"""Cases that fail for a transient reason."""
ENDED_OTHERWISE = {("2.1.281", "refusal_once"): FAILED}
"""It does not retry after a refusal."""
REPORTS_SESSION_COST = {"2.1.281"}
"""Versions that report the cost of a session only, not of the process that resumed it."""
CLEAN, KILLED = Exit(0), Exit(signal=9)
OFTEN = ("success", "question_allowed", "turns")
"""Cases that every run of the tests records again; the others are slow tests."""


# --- Reading what is recorded -------------------------------------------------------------------------------


@pytest.mark.req("S3-38", "S3-39", "S3-40")
@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_recording_gives_its_stored_events(version: str, case: str) -> None:
    found, wanted = read(RECORDINGS.load(version, case)), RECORDINGS.expected(version, case)
    assert list(_plain(found.events)) == list(_plain(wanted.events)), (
        "if this is intended, run scripts/golden --events and review the diff"
    )
    assert found[1:] == wanted[1:]
    assert (found.status, found.reason) == ENDED_OTHERWISE.get((version, case), ENDS[case])
    assert found.transient == (case in TRANSIENT)


@pytest.mark.parametrize("version", VERSIONS)
def test_resumed_run_has_own_cost_in_newer_versions(version: str) -> None:
    alone, (resumed,) = _settled("cleared", version)[0], _settled("resume", version)
    runs = 2 if version in REPORTS_SESSION_COST else 1
    assert (resumed["cost_usd"], resumed["tokens"]) == (runs * alone["cost_usd"], runs * alone["tokens"])


def _settled(case: str, version: str) -> list[Mapping[str, Any]]:
    events = RECORDINGS.expected(version, case).events
    return [data for kind, data in events if kind == "usage" and not data["estimate"]]


def _plain(said: Iterable[ReaderEvent]) -> Iterator[Any]:
    return (json.loads(_key(one)) for one in said)


def _key(said: ReaderEvent) -> str:
    return json.dumps(said, sort_keys=True)


@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_recording_has_the_version_of_its_folder(version: str, case: str) -> None:
    said = [json.loads(line).get("claude_code_version") for line in RECORDINGS.load(version, case).out]
    assert set(said) - {None} == {version}


# --- Recording again ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed() -> str:
    return _known(version_of(real_cli()))


def _known(version: str) -> str:
    if version not in VERSIONS:
        pytest.fail(
            f"the installed Claude CLI {version} is not recorded.\n"
            "Run scripts/golden, compare the new folder with the newest one before, and add it.",
            pytrace=False,
        )
    return version


def test_unrecorded_cli_fails_the_tests() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"Claude CLI 0\.0\.0.*\nRun scripts/golden"):
        _known("0.0.0")


def test_every_recorded_version_is_available(installed: str) -> None:
    assert sorted({*WHEELS, installed}) == sorted(VERSIONS), "add its wheel to claude_versions.py, or remove its folder"


def test_oldest_supported_version_is_recorded() -> None:
    assert VERSIONS[0] == ".".join(map(str, CLAUDE_FEATURES[-1].since))


def test_versions_are_ordered_by_their_numbers() -> None:
    assert in_order(["2.1.1000", "2.1.99", "2.10.0", "2.1.325"]) == ["2.1.99", "2.1.325", "2.1.1000", "2.10.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_case_is_recorded(version: str) -> None:
    assert RECORDINGS.cases(version) == sorted(CASES), "run scripts/golden, with --cli for an older version"


@pytest.mark.parametrize(
    "case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_installed_cli_prints_what_is_recorded(case: str, installed: str) -> None:
    _assert_same(installed, case, real_cli())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", WHEELS)
def test_older_cli_prints_what_is_recorded(version: str, case: str) -> None:
    _assert_same(version, case, older(version))


@pytest.mark.slow
def test_older_cli_that_cannot_be_fetched_fails(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(world))
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(world)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception, match=r"pip could not fetch claude-agent-sdk==\S+, which has Claude CLI"):
        older(VERSIONS[0])


def _assert_same(version: str, case: str, program: Path) -> None:
    before, now = RECORDINGS.load(version, case), record_claude(CASES[case], program)
    assert _differences(before, now) == []
    assert json.loads(json.dumps(now.command)) == before.command


def _differences(before: Recording, now: Recording) -> list[str]:
    """The values that differ; whole lines would be too long to read."""
    found = []
    nothing: LinesBySource = {}
    for old, new in zip_longest(turns(before.out), turns(now.out), fillvalue=nothing):
        for source in old.keys() | new.keys():
            for was, is_now in zip_longest(old.get(source, []), new.get(source, []), fillvalue=b"{}\n"):
                if was != is_now:
                    found.append(f"{source}: {_difference(was, is_now)}")
    return found


def _difference(before: bytes, now: bytes) -> str:
    old, new = dict(_leaves(json.loads(before))), dict(_leaves(json.loads(now)))
    changed = [f"{at}: {old.get(at)} -> {new.get(at)}" for at in old.keys() | new.keys() if old.get(at) != new.get(at)]
    return "; ".join(sorted(changed)) or "the order of the keys"


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not pairs:
        yield at, repr(value)
    for key, one in pairs:
        yield from _leaves(one, f"{at}.{key}")


def _changed(recording: Recording, change: Callable[[list[bytes]], object]) -> Recording:
    lines = list(recording.out)
    change(lines)
    return recording._replace(out=tuple(lines))


def test_lines_of_one_source_are_compared_in_order() -> None:
    before = RECORDINGS.load(VERSIONS[-1], "background_with_open_input")
    kinds = [kind_of(line) for line in before.out]
    started, part = kinds.index("system/task_started"), kinds.index("stream_event/message_delta")
    assert part == started + 1
    assert _differences(before, before) == []
    assert _differences(before, _changed(before, lambda lines: lines.insert(started, lines.pop(part)))) == []
    assert _differences(before, _changed(before, lambda lines: lines.insert(2, lines.pop(3))))
    assert _differences(before, _changed(before, lambda lines: lines.pop(started)))
    assert _differences(before, _changed(before, lambda lines: lines.append(lines.pop(kinds.index("result")))))


def test_changed_value_is_reported_by_its_path() -> None:
    before = RECORDINGS.load(VERSIONS[-1], "success")
    changed = [line.replace(b'"num_turns":2', b'"num_turns":3') for line in before.out]
    assert _differences(before, before._replace(out=tuple(changed))) == ["model: .num_turns: 2 -> 3"]


def test_normalising_numbers_ids_and_clears_times() -> None:
    session, folder = "d5f85a00-7664-40fe-a9ac-75d22872a6a0", Path("/tmp/hk-a_b")
    line = {"session_id": session, "duration_ms": 12, "at": "2026-11-16T00:00:26.388Z", "text": f"{folder}/p {session}"}
    (found,) = normalised([json.dumps(line, separators=(",", ":")).encode() + b"\n"], folder)
    number = "00000000-0000-4000-8000-000000000001"
    wanted = {"session_id": number, "duration_ms": 0, "at": TIMESTAMP, "text": f"{PLACE}/p {number}"}
    assert list(json.loads(found).items()) == list(wanted.items())


# --- Verdicts -----------------------------------------------------------------------------------------------


@pytest.mark.req("S3-38")
@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_recording_is_done_only_after_its_last_result(version: str, case: str) -> None:
    recording = RECORDINGS.load(version, case)
    results = [number for number, line in enumerate(recording.out) if json.loads(line)["type"] == "result"]
    begun = [number for number, line in enumerate(recording.out) if json.loads(line).get("subtype") == "init"]
    step = reader(recording.spec)
    state: State = {}
    for number, line in enumerate(recording.out):
        state, _said = step(state, "out", line, None)
        clean, killed = _judged(state)
        # A clean exit finishes every turn that began; a killed process is done only after its last result.
        reported = [at for at in results if at <= number]
        assert clean != DONE or json.loads(recording.out[reported[-1]])["is_error"] is False
        assert clean != DONE or len([at for at in begun if at <= number]) <= len(reported)
        assert killed != DONE or number >= results[-1]


def _judged(state: State) -> list[tuple[Status, Reason]]:
    return [verdict(state, end, None) for end in (CLEAN, KILLED)]
