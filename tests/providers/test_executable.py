"""Plain programs: command line, output and exit."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hocket.errors import PromptError, UsageError
from hocket.model import RESULT_LIMIT, Agent, Reason, Spec, Status
from hocket.providers.base import Launch, LaunchRequest, ReaderEvent, State
from hocket.providers.executable import launch, reader, result, verdict
from hocket.providers.launching import ARGUMENT_PROMPT_LIMIT

AGENT = Agent("tool", "executable", "/bin/tool", "PATH", ("-g",))
BY_STDIN = Agent("tool", "executable", "/bin/tool", "PATH", prompt_via="stdin")


class Exit(NamedTuple):
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    stopped: bool = False


def spec(*, loop: bool = False, marker: str = "DONE") -> Spec:
    return Spec("tool", "executable", ("/bin/tool",), "/", {}, loop=loop, marker=marker)


def read_all(lines: list[bytes], *, loop: bool = True, stream: str = "out") -> tuple[State, list[ReaderEvent]]:
    read = reader(spec(loop=loop))
    state: State = {}
    said: list[ReaderEvent] = []
    for line in lines:
        state, more = read(state, stream, line, None)
        said += more
    return state, said


# --- Starting -----------------------------------------------------------------------------------------------


@pytest.mark.req("S1-36", "S1-37", "S1-B19")
def test_prompt_follows_arguments_in_order() -> None:
    made = launch(AGENT, LaunchRequest(prompt="do it", args=("-s", "-x", "--", "y")))
    assert made == Launch(("/bin/tool", "-g", "-s", "-x", "--", "y", "do it"), "empty", "do it")


@pytest.mark.req("S1-37")
@pytest.mark.parametrize(
    "prompt",
    ["a\nb", "-rf", "--settings={}", "$(touch x)", "'\"`", " ", "\u00e9\U0001f600", "x" * ARGUMENT_PROMPT_LIMIT],
    ids=len,
)
def test_prompt_arrives_unchanged(prompt: str) -> None:
    assert launch(AGENT, LaunchRequest(prompt=prompt)).argv[-1] == prompt


@pytest.mark.req("S1-38")
@pytest.mark.parametrize("agent", [AGENT, BY_STDIN])
@pytest.mark.parametrize("prompt", [None, ""])
def test_missing_or_empty_prompt_adds_nothing(agent: Agent, prompt: str | None) -> None:
    assert launch(agent, LaunchRequest(prompt=prompt)) == Launch((agent.path, *agent.args), "empty", None)


@pytest.mark.req("S1-37")
def test_long_prompt_is_passed_by_standard_input() -> None:
    prompt = "x" * (ARGUMENT_PROMPT_LIMIT + 1) + "\0"
    assert launch(BY_STDIN, LaunchRequest(prompt=prompt)) == Launch(("/bin/tool",), "file", prompt)


@pytest.mark.req("S1-37")
@pytest.mark.parametrize(
    "prompt", ["x" * (ARGUMENT_PROMPT_LIMIT + 1), "\u00e9" * (ARGUMENT_PROMPT_LIMIT // 2 + 1)], ids=["ascii", "bytes"]
)
def test_long_prompt_argument_is_refused_with_hint(prompt: str) -> None:
    with pytest.raises(PromptError, match="64 KiB") as caught:
        launch(AGENT, LaunchRequest(prompt=prompt))
    assert caught.value.hint is not None
    assert 'prompt_via = "stdin"' in caught.value.hint


def test_prompt_on_standard_input_is_limited() -> None:
    with pytest.raises(PromptError, match="10240 KiB"):
        launch(BY_STDIN, LaunchRequest(prompt="x" * (10 * 1024 * 1024 + 1)))


@pytest.mark.parametrize("bad", ["a\0b", "\udc80", "x" * (128 * 1024)], ids=["nul", "surrogate", "long"])
def test_invalid_argument_is_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        launch(AGENT, LaunchRequest(args=(bad,)))
    with pytest.raises(UsageError):
        launch(AGENT, LaunchRequest(args=(bad,)))
    with pytest.raises(UsageError):
        launch(AGENT, LaunchRequest(prompt=bad))
    with pytest.raises(UsageError, match="NAME"):
        launch(AGENT, LaunchRequest(env={"NAME": bad}))


@pytest.mark.parametrize("name", ["", "A=B", "A\0"], ids=ascii)
def test_invalid_variable_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="variable"):
        launch(AGENT, LaunchRequest(env={name: "x"}))


def test_total_size_of_arguments_is_limited() -> None:
    many = ["x" * 60_000] * 17
    assert launch(AGENT, LaunchRequest(args=tuple(many))).argv[2:] == tuple(many)
    with pytest.raises(UsageError, match="together"):
        launch(AGENT, LaunchRequest(args=tuple(many), env={"A": "y" * 60_000}))


# --- Reading ------------------------------------------------------------------------------------------------


def test_output_lines_are_text_and_errors_raw() -> None:
    assert read_all([b"hello\n", b"", b" x \r\n", b"a\rb"])[1] == [
        ("text", {"text": "hello"}),
        ("text", {"text": ""}),
        ("text", {"text": " x "}),
        ("text", {"text": "a\rb"}),
    ]
    assert read_all([b"oops\n"], stream="err")[1] == [("raw", {"stream": "stderr", "text": "oops"})]


def test_invalid_utf8_is_replaced() -> None:
    assert read_all([b"a\xff\0b"])[1] == [("text", {"text": "a\ufffd\0b"})]


@pytest.mark.parametrize("stream", ["out", "err"])
def test_long_line_is_cut_with_its_size(stream: str) -> None:
    exact = reader(spec())({}, stream, b"x" * RESULT_LIMIT, None)[1]
    assert "oversize" not in exact[0][1]
    ((_, data),) = reader(spec())({}, stream, b"x" * (RESULT_LIMIT + 5), None)[1]
    assert (len(data["text"]), data["oversize"], data["bytes"]) == (RESULT_LIMIT, True, RESULT_LIMIT + 5)
    ((_, data),) = reader(spec())({}, stream, b"x" * RESULT_LIMIT, 10**9)[1]
    assert (len(data["text"]), data["oversize"], data["bytes"]) == (RESULT_LIMIT, True, 10**9)


@pytest.mark.req("S1-44", "S1-41", "S1-B15")
def test_marker_line_is_reported_once_per_run() -> None:
    state, said = read_all([b"working\n", b" **DONE**\n", b"DONE\n"])
    assert [kind for kind, _ in said] == ["text", "text", "marker", "text"]
    assert said[2] == ("marker", {"line": " **DONE**"})
    assert state == {"marker": True}


@pytest.mark.req("S1-44")
@pytest.mark.parametrize("line", [b"say DONE when ready", b"DONE.", b"prompt: DONE", b"DONE" + b" " * RESULT_LIMIT])
def test_marker_within_line_is_ignored(line: bytes) -> None:
    assert [kind for kind, _ in read_all([line])[1]] == ["text"]


@pytest.mark.req("S1-44")
def test_marker_on_standard_error_is_ignored() -> None:
    assert [kind for kind, _ in read_all([b"DONE"], stream="err")[1]] == ["raw"]


@pytest.mark.req("S1-B14")
def test_single_run_has_no_marker() -> None:
    assert read_all([b"DONE"], loop=False) == ({}, [("text", {"text": "DONE"})])


# --- Judging ------------------------------------------------------------------------------------------------


@pytest.mark.req("S1-39")
@pytest.mark.parametrize(
    ("end", "stop_reason", "expected"),
    [
        (Exit(code=0), None, (Status.DONE, Reason.EXIT)),
        (Exit(code=3), None, (Status.FAILED, Reason.EXIT)),
        (Exit(signal=9), None, (Status.FAILED, Reason.SIGNAL)),
        (Exit(code=127, error="ENOENT: /x"), None, (Status.FAILED, Reason.START_FAILED)),
        (Exit(code=126, error="EACCES: /x"), Reason.STOPPED, (Status.FAILED, Reason.START_FAILED)),
        (Exit(signal=15, stopped=True), Reason.STOPPED, (Status.STOPPED, Reason.STOPPED)),
        (Exit(code=0, stopped=True), Reason.STOPPED, (Status.STOPPED, Reason.STOPPED)),
        (Exit(signal=15, stopped=True), None, (Status.STOPPED, Reason.STOPPED)),
        (Exit(signal=9, stopped=True), Reason.TIMEOUT, (Status.FAILED, Reason.TIMEOUT)),
        (Exit(signal=9, stopped=True), Reason.LIMIT, (Status.FAILED, Reason.LIMIT)),
        (Exit(code=0), Reason.STOPPED, (Status.DONE, Reason.EXIT)),
        (Exit(code=1), Reason.TIMEOUT, (Status.FAILED, Reason.EXIT)),
    ],
)
def test_verdict_follows_from_exit(end: Exit, stop_reason: Reason | None, expected: tuple[Status, Reason]) -> None:
    assert verdict({}, end, stop_reason) == expected


def test_result_is_end_of_output() -> None:
    assert result(b"") == ""
    assert result(b"short\n") == "short\n"
    assert result(b"a\xffb") == "a\ufffdb"
    assert result(b"y" + b"x" * RESULT_LIMIT) == "x" * RESULT_LIMIT


def test_result_begins_with_whole_character() -> None:
    output = "\U0001f600".encode() + b"x" * (RESULT_LIMIT - 2)
    assert result(output) == "x" * (RESULT_LIMIT - 2)
    assert result(output[-RESULT_LIMIT:]) == "x" * (RESULT_LIMIT - 2)
