"""What the real CLI says, version by version: our reader of it, and whether it still says so."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.stage import real_cli
from golden import shelf
from golden.cases import CASES
from golden.normal import MOMENT, PLACE, normalised
from golden.play import kind_of
from golden.programs import WHEELS, older, version_of
from golden.record import recorded
from golden.shelf import Exit, Golden
from golden.voices import Scene, scenes

from hocket.cli.doctor import CLAUDE_ABILITIES
from hocket.model import Reason, Status
from hocket.providers import Said, State
from hocket.providers.claude import reader, verdict

VERSIONS = shelf.versions()
RECORDED = [(version, case) for version in VERSIONS for case in shelf.cases(version)]
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
PASSING = {"api_error_500", "connection_lost"}
"""Cases that fail for a reason which passes by itself."""
ENDED_OTHERWISE = {("2.1.281", "refusal_once"): FAILED}
"""It does not try once more after a refusal."""
TELLS_OF_SESSIONS = {"2.1.281"}
"""From here we know what a session has cost, not what a process that resumed it has."""
CLEAN, KILLED = Exit(0), Exit(signal=9)
OFTEN = ("success", "question_allowed", "turns")
"""What every run of the tests records again. A new CLI is a new version, of which all has to be recorded anyway."""


# --- Reading what is recorded -------------------------------------------------------------------------------


@pytest.mark.req("S3-38", "S3-39", "S3-40")
@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_a_recording_is_read_as_it_was(version: str, case: str) -> None:
    found, wanted = shelf.read(shelf.load(version, case)), shelf.expected(version, case)
    assert list(_plain(found.events)) == list(_plain(wanted.events)), "meant? scripts/golden --events, and look at it"
    assert found[1:] == wanted[1:]
    assert (found.status, found.reason) == ENDED_OTHERWISE.get((version, case), ENDS[case])
    assert found.transient == (case in PASSING)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_newer_versions_tell_what_a_resumed_run_has_cost_itself(version: str) -> None:
    alone, (resumed,) = _settled("cleared", version)[0], _settled("resume", version)
    runs = 2 if version in TELLS_OF_SESSIONS else 1
    assert (resumed["cost_usd"], resumed["tokens"]) == (runs * alone["cost_usd"], runs * alone["tokens"])


def _settled(case: str, version: str) -> list[Mapping[str, Any]]:
    events = shelf.expected(version, case).events
    return [data for kind, data in events if kind == "usage" and not data["estimate"]]


def _plain(said: Iterable[Said]) -> Iterator[Any]:
    return (json.loads(_key(one)) for one in said)


def _key(said: Said) -> str:
    return json.dumps(said, sort_keys=True)


@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_a_recording_belongs_to_the_version_that_it_lies_under(version: str, case: str) -> None:
    said = [json.loads(line).get("claude_code_version") for line in shelf.load(version, case).out]
    assert set(said) - {None} == {version}


# --- Recording again ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed() -> str:
    return _known(version_of(real_cli()))


def _known(version: str) -> str:
    if version not in VERSIONS:
        pytest.fail(
            f"nothing is recorded of Claude CLI {version}, which is installed.\n"
            "Type scripts/golden, compare the new folder with the newest one before, and add it.",
            pytrace=False,
        )
    return version


def test_a_cli_of_which_nothing_is_recorded_is_not_passed_over() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"Claude CLI 0\.0\.0.*\nType scripts/golden"):
        _known("0.0.0")


def test_every_version_can_be_recorded_again(installed: str) -> None:
    assert sorted({*WHEELS, installed}) == sorted(VERSIONS), "name its wheel in programs.py, or remove its folder"


def test_the_oldest_version_that_is_supported_is_recorded() -> None:
    assert VERSIONS[0] == ".".join(map(str, CLAUDE_ABILITIES[-1].since))


def test_versions_are_ordered_by_their_numbers() -> None:
    assert shelf.in_order(["2.1.1000", "2.1.99", "2.10.0", "2.1.325"]) == ["2.1.99", "2.1.325", "2.1.1000", "2.10.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_case_is_recorded(version: str) -> None:
    assert shelf.cases(version) == sorted(CASES), "type scripts/golden, with --cli where it is an older one"


@pytest.mark.parametrize(
    "case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_installed_cli_still_says_what_is_recorded(case: str, installed: str) -> None:
    _says_the_same(installed, case, real_cli())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", WHEELS)
def test_an_older_cli_still_says_what_is_recorded(version: str, case: str) -> None:
    _says_the_same(version, case, older(version))


@pytest.mark.slow
def test_an_older_cli_that_cannot_be_fetched_is_not_passed_over(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(world))
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(world)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception, match=r"pip could not fetch claude-agent-sdk==\S+, which has Claude CLI"):
        older(VERSIONS[0])


def _says_the_same(version: str, case: str, program: Path) -> None:
    before, now = shelf.load(version, case), recorded(CASES[case], program)
    assert _differences(before, now) == []
    assert json.loads(json.dumps(now.command)) == before.command


def _differences(before: Golden, now: Golden) -> list[str]:
    """Where the two part, value by value: whole lines would be too long to look at."""
    found = []
    nothing: Scene = {}
    for old, new in zip_longest(scenes(before.out), scenes(now.out), fillvalue=nothing):
        for voice in old.keys() | new.keys():
            for was, is_now in zip_longest(old.get(voice, []), new.get(voice, []), fillvalue=b"{}\n"):
                if was != is_now:
                    found.append(f"{voice}: {_parts(was, is_now)}")
    return found


def _parts(before: bytes, now: bytes) -> str:
    old, new = dict(_leaves(json.loads(before))), dict(_leaves(json.loads(now)))
    changed = [f"{at}: {old.get(at)} -> {new.get(at)}" for at in old.keys() | new.keys() if old.get(at) != new.get(at)]
    return "; ".join(sorted(changed)) or "the order of the keys"


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not pairs:
        yield at, repr(value)
    for key, one in pairs:
        yield from _leaves(one, f"{at}.{key}")


def _changed(golden: Golden, change: Callable[[list[bytes]], object]) -> Golden:
    lines = list(golden.out)
    change(lines)
    return golden._replace(out=tuple(lines))


def test_what_one_voice_says_is_compared_in_its_order_and_whole() -> None:
    before = shelf.load(VERSIONS[-1], "background_with_open_input")
    kinds = [kind_of(line) for line in before.out]
    started, part = kinds.index("system/task_started"), kinds.index("stream_event/message_delta")
    assert part == started + 1
    assert _differences(before, before) == []
    assert _differences(before, _changed(before, lambda lines: lines.insert(started, lines.pop(part)))) == []
    assert _differences(before, _changed(before, lambda lines: lines.insert(2, lines.pop(3))))
    assert _differences(before, _changed(before, lambda lines: lines.pop(started)))
    assert _differences(before, _changed(before, lambda lines: lines.append(lines.pop(kinds.index("result")))))


def test_a_changed_value_is_named_by_its_place() -> None:
    before = shelf.load(VERSIONS[-1], "success")
    changed = [line.replace(b'"num_turns":2', b'"num_turns":3') for line in before.out]
    assert _differences(before, before._replace(out=tuple(changed))) == ["model: .num_turns: 2 -> 3"]


def test_the_same_id_gets_the_same_number_everywhere_and_times_get_none() -> None:
    session, folder = "d5f85a00-7664-40fe-a9ac-75d22872a6a0", Path("/tmp/hk-a_b")
    line = {"session_id": session, "duration_ms": 12, "at": "2026-11-16T00:00:26.388Z", "text": f"{folder}/p {session}"}
    (found,) = normalised([json.dumps(line, separators=(",", ":")).encode() + b"\n"], folder)
    number = "00000000-0000-4000-8000-000000000001"
    wanted = {"session_id": number, "duration_ms": 0, "at": MOMENT, "text": f"{PLACE}/p {number}"}
    assert list(json.loads(found).items()) == list(wanted.items())


# --- Cut off ------------------------------------------------------------------------------------------------


@pytest.mark.req("S3-28", "S3-38")
@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_cut_off_at_any_byte_a_recording_invents_nothing(version: str, case: str) -> None:
    """The last line of a run whose program or machine died while it was being written."""
    golden = shelf.load(version, case)
    whole = Counter(_key(one) for one in shelf.read(golden).events)
    read = reader(golden.spec)
    state: State = {}
    so_far = Counter[str]()
    for line in golden.out:
        judged = _judged(state)
        for cut in _cuts(line, version, case):
            after, said = read(state, "out", line[:cut], None)
            invented = Counter(_key(one) for one in said if one[0] != "raw")
            assert not invented or so_far + invented <= whole
            assert _judged(after) == judged
        # A line that lacks its end alone is complete, and says what it says.
        assert read(state, "out", line[:-1], None) == read(state, "out", line, None)
        state, more = read(state, "out", line, None)
        so_far.update(_key(one) for one in more)
    assert so_far == whole


def _cuts(line: bytes, version: str, case: str) -> Sequence[int]:
    """All there are in the newest version; in older ones, those of lines that are not cut in another recording."""
    return range(len(line) - 1 if version == VERSIONS[-1] or _newest_with()[line] == (version, case) else 0)


@cache
def _newest_with() -> Mapping[bytes, tuple[str, str]]:
    """The recording in which each line is cut; the last of the newest where there are several."""
    return {line: recording for recording in RECORDED for line in shelf.load(*recording).out}


@pytest.mark.req("S3-38")
@pytest.mark.parametrize(("version", "case"), RECORDED)
def test_after_each_line_a_recording_is_done_only_where_nothing_was_left_to_do(version: str, case: str) -> None:
    golden = shelf.load(version, case)
    results = [number for number, line in enumerate(golden.out) if json.loads(line)["type"] == "result"]
    begun = [number for number, line in enumerate(golden.out) if json.loads(line).get("subtype") == "init"]
    read = reader(golden.spec)
    state: State = {}
    for number, line in enumerate(golden.out):
        state, _said = read(state, "out", line, None)
        clean, killed = _judged(state)
        # Who ends by itself has finished what it began; who is killed has finished only if nothing more was to come.
        told = [at for at in results if at <= number]
        assert clean != DONE or json.loads(golden.out[told[-1]])["is_error"] is False
        assert clean != DONE or len([at for at in begun if at <= number]) <= len(told)
        assert killed != DONE or number >= results[-1]


def _judged(state: State) -> list[tuple[Status, Reason]]:
    return [verdict(state, end, None) for end in (CLEAN, KILLED)]
