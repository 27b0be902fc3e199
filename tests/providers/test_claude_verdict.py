"""The verdict of a Claude run, for each combination of output and exit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from providers.streams.recorded import Exit, delta, init, line, read_all, result, spec, system

from hocket.model import Reason, Status
from hocket.providers.claude.verdict import is_transient, verdict

# --- Output ---

OPENING = [init()]
SUCCESS = [init(), result("ok")]
API_ERROR = [init(), result("API Error: 500", is_error=True, api_error_status=500)]
LIMITED = [init(), result("API Error: 429", is_error=True, api_error_status=429)]
REJECTED = [
    init(),
    line("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": 1}),
    result("limit reached", is_error=True),
]
ALLOWED_AGAIN = [*REJECTED[:2], line("rate_limit_event", rate_limit_info={"status": "allowed"}), REJECTED[2]]
LIMITED_IN_WORDS = [init(), result("Claude AI usage limit reached|1800000000", is_error=True)]
MAX_TURNS = [init(), result(None, is_error=True, subtype="error_max_turns", errors=["too many"])]
BUDGET = [init(), result(None, is_error=True, subtype="error_max_budget_usd")]
CUT_SHORT = [init(), result(None, is_error=True, subtype="error_during_execution")]
NO_WORD = [init(), line("result", subtype="success", result="ok")]
ODD_WORD = [init(), result("ok", is_error="false")]
FALSE_SUBTYPE = [init(), result("ok", subtype="error_max_turns")]

AGENT_AT_WORK = system("background_tasks_changed", tasks=[{"task_id": "t", "task_type": "local_agent"}])
COMMAND_AT_WORK = system("background_tasks_changed", tasks=[{"task_id": "t", "task_type": "local_bash"}])
ALL_BACK = system("background_tasks_changed", tasks=[])
QUESTION = line(
    "control_request", request_id="q", request={"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": "u"}
)

REOPENED = [*SUCCESS, init()]
SPEAKING_AGAIN = [*SUCCESS, delta("more")]
OWING = [init(), init(), result("ok")]
"""A turn that began before the result of the previous turn."""
TWO_TURNS = [*SUCCESS, *API_ERROR]
RECOVERED = [*API_ERROR, *SUCCESS]
AGENT_LEFT = [init(), AGENT_AT_WORK, result("waiting")]
AGENT_BACK = [*AGENT_LEFT, ALL_BACK]
COMMAND_LEFT = [init(), COMMAND_AT_WORK, result("serving")]
ASKING = [init(), QUESTION]
AGENT_ASKING = [init(), AGENT_AT_WORK, QUESTION, result("waiting")]

# --- Exits ---

ZERO = Exit(0)
ONE = Exit(1)
TERM = Exit(143)
INTERRUPTED = Exit(130)
KILLED = Exit(signal=9)
STOPPED = Exit(143, stopped=True)
STOPPED_KILLED = Exit(signal=9, stopped=True)
STOPPED_CLEAN = Exit(0, stopped=True)
NO_START = Exit(error="no such file")

DONE = (Status.DONE, Reason.EXIT)
FAILED_EXIT = (Status.FAILED, Reason.EXIT)
FAILED_ERROR = (Status.FAILED, Reason.ERROR)
FAILED_SIGNAL = (Status.FAILED, Reason.SIGNAL)
FAILED_START = (Status.FAILED, Reason.START_FAILED)
FAILED_LIMITED = (Status.FAILED, Reason.RATE_LIMITED)
FAILED_BUDGET = (Status.FAILED, Reason.BUDGET)
FAILED_TIMEOUT = (Status.FAILED, Reason.TIMEOUT)
FAILED_NO_ANSWER = (Status.FAILED, Reason.NO_ANSWER)
FAILED_LIMIT = (Status.FAILED, Reason.LIMIT)
WAS_STOPPED = (Status.STOPPED, Reason.STOPPED)

TABLE: list[tuple[list[bytes], Exit, Reason | None, bool, tuple[Status, Reason]]] = [
    # It never started.
    ([], NO_START, None, False, FAILED_START),
    ([], NO_START, Reason.STOPPED, False, FAILED_START),
    (SUCCESS, NO_START, None, False, FAILED_START),
    (SUCCESS, NO_START, None, True, FAILED_START),
    # No output.
    ([], ZERO, None, False, FAILED_ERROR),
    ([], ONE, None, False, FAILED_EXIT),
    ([], TERM, None, False, FAILED_EXIT),
    ([], KILLED, None, False, FAILED_SIGNAL),
    ([], STOPPED, Reason.STOPPED, False, WAS_STOPPED),
    ([], STOPPED, None, False, WAS_STOPPED),
    ([], STOPPED, Reason.TIMEOUT, False, FAILED_TIMEOUT),
    ([], STOPPED_KILLED, Reason.LIMIT, False, FAILED_LIMIT),
    ([], ZERO, None, True, FAILED_ERROR),
    # It began, without a result.
    (OPENING, ZERO, None, False, FAILED_ERROR),
    (OPENING, ONE, None, False, FAILED_EXIT),
    (OPENING, KILLED, None, False, FAILED_SIGNAL),
    (OPENING, STOPPED, Reason.STOPPED, False, WAS_STOPPED),
    (OPENING, STOPPED_CLEAN, Reason.IDLE_TIMEOUT, False, (Status.FAILED, Reason.IDLE_TIMEOUT)),
    # It succeeded: the exit of the process does not matter.
    (SUCCESS, ZERO, None, False, DONE),
    (SUCCESS, ONE, None, False, DONE),
    (SUCCESS, TERM, None, False, DONE),
    (SUCCESS, KILLED, None, False, DONE),
    (SUCCESS, STOPPED, Reason.STOPPED, False, DONE),
    (SUCCESS, STOPPED_KILLED, Reason.TIMEOUT, False, DONE),
    (SUCCESS, STOPPED_CLEAN, None, False, DONE),
    (FALSE_SUBTYPE, ZERO, None, False, DONE),
    (RECOVERED, ZERO, None, False, DONE),
    # It ended with an error, whose name decides, even if the exit code is 0.
    (API_ERROR, ONE, None, False, FAILED_ERROR),
    (API_ERROR, ZERO, None, False, FAILED_ERROR),
    (API_ERROR, KILLED, None, False, FAILED_ERROR),
    (API_ERROR, STOPPED, Reason.STOPPED, False, FAILED_ERROR),
    (TWO_TURNS, ZERO, None, False, FAILED_ERROR),
    (LIMITED, ONE, None, False, FAILED_LIMITED),
    (LIMITED, ZERO, None, False, FAILED_LIMITED),
    (LIMITED, STOPPED, Reason.TIMEOUT, False, FAILED_LIMITED),
    (REJECTED, ONE, None, False, FAILED_LIMITED),
    (LIMITED_IN_WORDS, ONE, None, False, FAILED_LIMITED),
    (LIMITED_IN_WORDS, ZERO, None, False, FAILED_LIMITED),
    ([*LIMITED_IN_WORDS, *SUCCESS], ZERO, None, False, DONE),
    ([init(), result("what is a usage limit reached|18", is_error=False)], ZERO, None, False, DONE),
    ([init(), result("usage limit reached", is_error=True)], ONE, None, False, FAILED_ERROR),
    (ALLOWED_AGAIN, ONE, None, False, FAILED_ERROR),
    (MAX_TURNS, ONE, None, False, FAILED_ERROR),
    (BUDGET, ONE, None, False, FAILED_BUDGET),
    (BUDGET, ZERO, None, False, FAILED_BUDGET),
    (BUDGET, KILLED, None, False, FAILED_BUDGET),
    # A result that does not say that it is no error is one.
    (NO_WORD, ZERO, None, False, FAILED_ERROR),
    (ODD_WORD, ZERO, None, False, FAILED_ERROR),
    # Another turn had begun before its result came, and has none of its own.
    (OWING, ZERO, None, False, FAILED_ERROR),
    (OWING, ONE, None, False, FAILED_EXIT),
    (OWING, KILLED, None, False, FAILED_SIGNAL),
    (OWING, STOPPED, Reason.STOPPED, False, WAS_STOPPED),
    ([*OWING, result("ok")], ZERO, None, False, DONE),
    ([*OWING, result("no", is_error=True)], ZERO, None, False, FAILED_ERROR),
    ([*OWING, init(), result("ok")], KILLED, None, False, DONE),
    # It was cut short: by a stop of Hocket, or by an interrupt.
    (CUT_SHORT, STOPPED_CLEAN, Reason.STOPPED, False, WAS_STOPPED),
    (CUT_SHORT, STOPPED, Reason.TIMEOUT, False, FAILED_TIMEOUT),
    (CUT_SHORT, STOPPED_KILLED, None, False, WAS_STOPPED),
    (CUT_SHORT, ZERO, None, False, FAILED_ERROR),
    (CUT_SHORT, KILLED, None, False, FAILED_ERROR),
    # A turn was open after its last result.
    (REOPENED, ZERO, None, False, FAILED_ERROR),
    (REOPENED, ONE, None, False, FAILED_EXIT),
    (REOPENED, KILLED, None, False, FAILED_SIGNAL),
    (REOPENED, STOPPED, Reason.STOPPED, False, WAS_STOPPED),
    (SPEAKING_AGAIN, ZERO, None, False, FAILED_ERROR),
    (SPEAKING_AGAIN, KILLED, None, False, FAILED_SIGNAL),
    # An agent was at work in the background.
    (AGENT_LEFT, ZERO, None, False, FAILED_ERROR),
    (AGENT_LEFT, ONE, None, False, FAILED_EXIT),
    (AGENT_LEFT, KILLED, None, False, FAILED_SIGNAL),
    (AGENT_LEFT, STOPPED, Reason.STOPPED, False, WAS_STOPPED),
    (AGENT_LEFT, STOPPED, Reason.TIMEOUT, False, FAILED_TIMEOUT),
    # It completed, and the turn that this starts had not begun.
    (AGENT_BACK, ZERO, None, False, DONE),
    (AGENT_BACK, KILLED, None, False, FAILED_SIGNAL),
    (AGENT_BACK, TERM, None, False, FAILED_EXIT),
    (AGENT_BACK, STOPPED, Reason.TIMEOUT, False, FAILED_TIMEOUT),
    ([*AGENT_BACK, *SUCCESS], KILLED, None, False, DONE),
    # A command ran in the background: it counts only if the CLI was kept from waiting for it.
    (COMMAND_LEFT, ZERO, None, False, DONE),
    (COMMAND_LEFT, ONE, None, False, DONE),
    (COMMAND_LEFT, KILLED, None, False, FAILED_SIGNAL),
    (COMMAND_LEFT, TERM, None, False, FAILED_EXIT),
    (COMMAND_LEFT, STOPPED, Reason.TIMEOUT, False, FAILED_TIMEOUT),
    # A question was open.
    (ASKING, ZERO, None, False, FAILED_ERROR),
    (ASKING, STOPPED, Reason.NO_ANSWER, False, FAILED_NO_ANSWER),
    (AGENT_ASKING, STOPPED, Reason.NO_ANSWER, False, FAILED_NO_ANSWER),
    (AGENT_ASKING, ZERO, None, False, FAILED_ERROR),
    # A session: idle is not ended, so a stop counts.
    (SUCCESS, STOPPED, Reason.STOPPED, True, WAS_STOPPED),
    (SUCCESS, STOPPED_KILLED, None, True, WAS_STOPPED),
    (SUCCESS, STOPPED, Reason.TIMEOUT, True, FAILED_TIMEOUT),
    (SUCCESS, ZERO, None, True, DONE),
    (SUCCESS, ONE, None, True, DONE),
    (SUCCESS, KILLED, None, True, FAILED_SIGNAL),
    (SUCCESS, TERM, None, True, FAILED_EXIT),
    (SUCCESS, INTERRUPTED, None, True, FAILED_EXIT),
    (SUCCESS, Exit(128), None, True, DONE),
    (API_ERROR, ZERO, None, True, FAILED_ERROR),
    (LIMITED, ONE, None, True, FAILED_LIMITED),
    (API_ERROR, STOPPED, Reason.STOPPED, True, WAS_STOPPED),
    (REOPENED, STOPPED, Reason.STOPPED, True, WAS_STOPPED),
    (REOPENED, ZERO, None, True, FAILED_ERROR),
    (CUT_SHORT, STOPPED, Reason.STOPPED, True, WAS_STOPPED),
]


@pytest.mark.req("S2-67", "S3-36", "S3-37", "S3-38")
@pytest.mark.parametrize(("lines", "ended", "stop_reason", "session", "expected"), TABLE)
def test_verdict_follows_output_and_exit(
    lines: list[bytes], ended: Exit, stop_reason: Reason | None, session: bool, expected: tuple[Status, Reason]
) -> None:
    state, _said = read_all(lines, spec(session=session))
    assert verdict(state, ended, stop_reason) == expected


def test_verdict_table_is_large() -> None:
    assert len(TABLE) >= 60


def failed(**more: Any) -> list[bytes]:
    return [init(), result("API Error", is_error=True, **more)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (failed(api_error_status=500), True),
        (failed(api_error_status=503), True),
        (failed(api_error_status=529), True),
        (failed(api_error_status=408), True),
        (failed(api_error_status=None, api_error="connection_failed"), True),
        (failed(api_error="no_response"), True),
        (failed(api_error="computer_slept"), True),
        (failed(api_error_status=401), False),
        (failed(api_error_status=400), False),
        (failed(api_error_status=429), False),
        (failed(api_error_status="529"), False),
        (failed(api_error="tls_untrusted_ca"), False),
        (failed(api_error=["connection_failed"]), False),
        ([init(), result("API Error: Connection error.", is_error=True)], True),
        ([init(), result("API Error: Connection dropped (ECONNRESET)", is_error=True)], True),
        ([init(), result("API Error: Can't reach the API server — check your DNS (ENOTFOUND)", is_error=True)], True),
        ([init(), result("API Error: Unable to connect to API (ETIMEDOUT)", is_error=True)], True),
        ([init(), result("API Error: Unable to connect to API: SSL error", is_error=True)], False),
        ([init(), result("They say API Error: Connection error.", is_error=True)], False),
        ([init(), result("API Error: Connection error.")], False),
        (failed(), False),
        (MAX_TURNS, False),
        (BUDGET, False),
        (CUT_SHORT, False),
        ([init(), result("all is well", api_error_status=529)], False),
        ([*failed(api_error_status=529), *SUCCESS], False),
        (OPENING, False),
        ([], False),
    ],
)
def test_failure_of_service_is_transient(lines: list[bytes], expected: bool) -> None:
    state, _said = read_all(lines)
    assert is_transient(state) is expected


SCRIPTS = [
    OPENING, SUCCESS, API_ERROR, LIMITED, REJECTED, MAX_TURNS, BUDGET, CUT_SHORT, NO_WORD,
    [AGENT_AT_WORK], [COMMAND_AT_WORK], [ALL_BACK], [QUESTION], [delta("more")],
]  # fmt: skip
ENDS = st.builds(
    Exit,
    code=st.sampled_from([None, 0, 1, 143]),
    signal=st.sampled_from([None, 9, 15]),
    error=st.sampled_from([None, None, None, "no"]),
    stopped=st.booleans(),
)
STORIES = st.lists(st.sampled_from(SCRIPTS), max_size=4).map(lambda scripts: [each for one in scripts for each in one])


@pytest.mark.req("S3-38")
@settings(max_examples=150)
@given(STORIES, ENDS, st.sampled_from([None, Reason.STOPPED, Reason.TIMEOUT, Reason.NO_ANSWER]), st.booleans())
def test_every_verdict_is_consistent(
    lines: list[bytes], ended: Exit, stop_reason: Reason | None, session: bool
) -> None:
    state, said = read_all(lines, spec(session=session))
    status, reason = verdict(state, ended, stop_reason)
    ends: list[dict[str, Any]] = [data for kind, data in said if kind == "turn.ended"]
    assert status.ended
    if status is Status.DONE:
        assert reason is Reason.EXIT
        assert ended.error is None
        assert ends
        assert not ends[-1]["is_error"]
        assert said[-1][0] != "question"
        assert not (session and ended.stopped)
    if status is Status.STOPPED:
        assert ended.stopped
        assert stop_reason in (None, Reason.STOPPED)
    if reason is Reason.SIGNAL:
        assert ended.signal is not None
    if ended.error is not None:
        assert (status, reason) == FAILED_START
