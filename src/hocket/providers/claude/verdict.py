"""How a run ended, and why: by what the program said last, never by its exit code or by a result's subtype alone.

A run is *finished* when a result was seen and nothing has been going on since: no turn opened after it, none that began
before it waits for a result of its own, no agent works in the background, no question is open. Where the program was
ended from outside, two things more must not be: a command left running in the background, and news from there that have
not been looked at. Had it been let, it would have gone on with them. It catches most signals and ends with the code
that a shell has for them: that is from outside, too.

    it never started                            failed   start_failed
    a session that was stopped or killed        as if it had not finished
    finished, no error                          done     exit
    finished, usage limit (429 or rejected)     failed   rate_limited
    finished, its own budget used up            failed   budget
    finished, any other error                   failed   error    (but see the next line); one of the service's own,
                                                                  or a broken connection, is transient
    our stop cut it short                       stopped  stopped, or failed with the reason of the stop
    killed by somebody else's signal            failed   signal
    ended with 0 and without a result           failed   error
    ended with another code                     failed   exit

What had ended its work before a stop or a signal reached it is judged by its result, as any other. Only a session,
whose input was still open, had not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.model import Reason, Status
from hocket.providers.base import ProcessExit, State
from hocket.providers.exit_verdict import Verdict, exit_verdict

_CUT_SHORT = "error_during_execution"
_BUDGET = "error_max_budget_usd"
_OF_SIGNALS = range(129, 160)
"""What a program ends with that was told to end, or a shell around one that was killed."""
_TOO_MANY_REQUESTS = 429
_REQUEST_TIMEOUT = 408
_SERVER_ERRORS = 500
"""From here on it is the service's fault; 529 is its word for being overloaded."""
_BROKEN_CONNECTIONS = frozenset({"connection_failed", "no_response", "stream_idle_timeout", "computer_slept"})


def verdict(state: State, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's own word for it
    from_outside = exit.stopped or exit.signal is not None or exit.code in _OF_SIGNALS
    is_cut_short = (from_outside and state.get("session")) or (exit.stopped and _was_interrupted(state))
    if exit.error is None and not is_cut_short and is_done(state, from_outside=from_outside):
        return _by_result(state["result"])
    return exit_verdict(exit, stop_reason, (Status.FAILED, Reason.ERROR))


def is_transient(state: State) -> bool:
    """Whether the last turn failed for a reason that passes by itself, after all the attempts of the program's own."""
    result = state.get("result") or {}
    if not result.get("is_error"):
        return False
    status = result.get("api_status") or 0
    return bool(
        status >= _SERVER_ERRORS or status == _REQUEST_TIMEOUT or result.get("api_error") in _BROKEN_CONNECTIONS
    )


def is_done(state: State, *, from_outside: bool) -> bool:
    """Whether all that was asked for has been done or given up."""
    if not state.get("result") or state.get("open") or state.get("asked") or state.get("owed"):
        return False
    tasks = state.get("tasks", {})
    if from_outside:
        return not tasks and not state.get("waking")
    return all(is_command for is_command in tasks.values())


def _was_interrupted(state: State) -> bool:
    return bool(state.get("result", {}).get("subtype") == _CUT_SHORT)


def _by_result(result: Mapping[str, Any]) -> Verdict:
    if not result["is_error"]:
        return Status.DONE, Reason.EXIT
    if result["limited"] or result["api_status"] == _TOO_MANY_REQUESTS:
        return Status.FAILED, Reason.RATE_LIMITED
    return Status.FAILED, Reason.BUDGET if result["subtype"] == _BUDGET else Reason.ERROR
