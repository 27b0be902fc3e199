"""The verdict on a run: by its last result first, then by its exit.

A run is done when it had a result and nothing happened since: no turn is open or owed a result, no agent works in the
background, no question is open. If it was ended from outside, by a stop or a signal (the CLI catches most signals and
exits with the code that a shell has for them), it must also have left no command in the background and no result
of one to read: otherwise it would have continued.

    it was not started                          failed   start_failed
    a session that was stopped or killed        by its exit
    done, no error                              done     exit
    done, usage limit (429 or rejected)         failed   rate_limited
    done, its own budget used up                failed   budget
    done, any other error                       failed   error    transient for an error of the service
    stopped before that                         stopped  stopped, or failed with the reason of the stop
    killed by a signal                          failed   signal
    exit code 0 without a result                failed   error
    any other exit code                         failed   exit
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.model import Reason, Status
from hocket.providers.base import ProcessExit, State, Verdict, exit_verdict

_INTERRUPTED = "error_during_execution"
_BUDGET = "error_max_budget_usd"
_OF_SIGNALS = range(129, 160)
"""Exit codes after a signal."""
_TOO_MANY_REQUESTS = 429
_REQUEST_TIMEOUT = 408
_SERVER_ERRORS = 500
"""From here on the service failed; 529 is its code for an overload."""
_BROKEN_CONNECTIONS = frozenset({"connection_failed", "no_response", "stream_idle_timeout", "computer_slept"})


def verdict(state: State, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's name for it
    from_outside = exit.stopped or exit.signal is not None or exit.code in _OF_SIGNALS
    is_cut_short = (from_outside and state.get("session")) or (exit.stopped and _was_interrupted(state))
    if exit.error is None and not is_cut_short and is_done(state, from_outside=from_outside):
        return _by_result(state["result"])
    return exit_verdict(exit, stop_reason, (Status.FAILED, Reason.ERROR))


def is_transient(state: State) -> bool:
    """Whether the last turn failed because of the service or the connection, after the attempts of the CLI itself."""
    result = state.get("result") or {}
    if not result.get("is_error"):
        return False
    status = result.get("api_status") or 0
    return bool(
        status >= _SERVER_ERRORS or status == _REQUEST_TIMEOUT or result.get("api_error") in _BROKEN_CONNECTIONS
    )


def is_done(state: State, *, from_outside: bool) -> bool:
    if not state.get("result") or state.get("open") or state.get("asked") or state.get("owed"):
        return False
    tasks = state.get("tasks", {})
    if from_outside:
        return not tasks and not state.get("waking")
    return all(is_command for is_command in tasks.values())


def _was_interrupted(state: State) -> bool:
    return bool(state.get("result", {}).get("subtype") == _INTERRUPTED)


def _by_result(result: Mapping[str, Any]) -> Verdict:
    if not result["is_error"]:
        return Status.DONE, Reason.EXIT
    if result["limited"] or result["api_status"] == _TOO_MANY_REQUESTS:
        return Status.FAILED, Reason.RATE_LIMITED
    return Status.FAILED, Reason.BUDGET if result["subtype"] == _BUDGET else Reason.ERROR
