"""The conformance suite: what every provider must hold, checked with recordings of its CLI. Needs no test framework.

    subject = Subject(provider, agent, recordings)

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_provider_conforms(check): check(subject)

Each check raises ``AssertionError`` with the reason. A check of a capability that the provider lacks passes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, NamedTuple

import msgspec

from hocket.config import PERMISSION_MODES
from hocket.errors import BadDefinition, UsageError
from hocket.model import RESULT_LIMIT, Agent, Reason, Spec, Status
from hocket.providers.base import Answer, LaunchRequest, OwnServer, ProcessExit, Provider, ReaderEvent, State
from hocket.providers.output_lines import decoded, is_session_name
from hocket.redaction import NO_SECRETS, Redactor

STATE_LIMIT = 64 * 1024
"""Bytes of a reader's state, which is committed with every batch of events."""

_KEY = 'sk-"Q\\w/eRtZuIoP-äsDfGh'
_NOT_OBJECTS = (
    b"",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff\xfe\n",
    b"plain text\n",
    b"[]\n",
    b"7\n",
    b"null\n",
    b'{"type":',
)
_BROKEN_JSON = (b'{"type":5}\n', b'{"type":"unheard_of"}\n', b'{"a":"\\ud800"}\n', b"[" * 100_000, b'{"a":1e999}\n')
_ODD_LINES = (*_NOT_OBJECTS, b"{}\n", *_BROKEN_JSON)
_ODD_VALUES: tuple[Any, ...] = (None, True, -1, 10**30, 1e308, "", "\ud800", [], {}, [None], {"": [{}]})


class Ended(NamedTuple):
    """The exit of a process."""

    code: int | None = None
    signal: int | None = None
    error: str | None = None
    stopped: bool = False


CLEAN, KILLED = Ended(0), Ended(signal=9)
_EXITS = (CLEAN, KILLED, Ended(1), Ended(143), Ended(signal=15, stopped=True), Ended(0, stopped=True))
_STOP_REASONS = (None, Reason.STOPPED, Reason.TIMEOUT, Reason.BUDGET, Reason.LIMIT)


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """The output of one process of the CLI, in lines with their ends, and how the process ended."""

    spec: Spec
    lines: tuple[bytes, ...]
    exit: ProcessExit = CLEAN


@dataclass(frozen=True, slots=True)
class Subject:
    """A provider, an agent that it can launch, and recordings of its CLI."""

    provider: Provider
    agent: Agent
    recordings: tuple[RecordedOutput, ...]

    def spec(self, request: LaunchRequest) -> Spec:
        """The spec of a start, as far as it depends on the provider."""
        made = self.provider.launch(self.agent, request)
        return Spec(
            agent=self.agent.name,
            provider=self.provider.name,
            argv=made.argv,
            cwd="/project",
            env={**request.env, **made.env},
            prompt=made.prompt,
            stdin=made.stdin,
            files=made.files,
        )


class _Position(NamedTuple):
    """One line of a recording, and the state in which it was read."""

    recording: RecordedOutput
    state: State
    line: bytes


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise AssertionError(reason)


def _positions(subject: Subject) -> Iterator[_Position]:
    for recording in subject.recordings:
        read = subject.provider.reader(recording.spec, NO_SECRETS)
        state: State = {}
        for line in recording.lines:
            yield _Position(recording, state, line)
            state, _ = read(state, "out", line, None)


def _read_whole(provider: Provider, recording: RecordedOutput) -> tuple[State, list[ReaderEvent]]:
    read, state, events = provider.reader(recording.spec, NO_SECRETS), State(), list[ReaderEvent]()
    for line in recording.lines:
        state, more = read(state, "out", line, None)
        events += more
    return state, events


def _final_states(subject: Subject) -> Iterator[tuple[RecordedOutput, State]]:
    return ((recording, _read_whole(subject.provider, recording)[0]) for recording in subject.recordings)


# --- Launching ----------------------------------------------------------------------------------------------


def launch_is_complete(subject: Subject) -> None:
    """A launch is the agent's program with strings as arguments, and depends on nothing but its arguments."""
    request = LaunchRequest(prompt="do it", loop=True, marker="DONE", env={"HOME": "/home/me"})
    made = subject.provider.launch(subject.agent, request)
    _require(made == subject.provider.launch(subject.agent, request), "launch gives two results for one request")
    _require(made.argv[0] == subject.agent.path, f"launch starts {made.argv[0]!r}, not {subject.agent.path!r}")
    texts = (*made.argv, *made.files, *made.files.values(), *made.env, *made.env.values())
    _require(all(isinstance(text, str) for text in texts), "arguments, files and variables must be strings")
    _require(made.stdin in ("empty", "file", "lines"), f"unknown stdin: {made.stdin!r}")
    _require(made.stdin != "lines" or subject.provider.conversation, 'stdin is "lines" without a conversation')


def launch_delivers_prompt(subject: Subject) -> None:
    """The prompt is the last argument, or comes by standard input and is no argument."""
    made = subject.provider.launch(subject.agent, LaunchRequest(prompt="--do {it}\n$(now)"))
    _require(made.prompt == "--do {it}\n$(now)", f"the prompt of a launch was changed to {made.prompt!r}")
    places = [at for at, word in enumerate(made.argv) if str(made.prompt) in word]
    expected = [len(made.argv) - 1] if made.stdin == "empty" else []
    _require(places == expected, f"stdin is {made.stdin!r}, but the prompt is in the arguments {places}")


def launch_keeps_arguments(subject: Subject) -> None:
    """Arguments of the agent and then of the request are passed on in order."""
    agent = replace(subject.agent, args=("--first", "a b"))
    argv = subject.provider.launch(agent, LaunchRequest(args=("--second", "$x"))).argv
    given = ("--first", "a b", "--second", "$x")
    _require(any(argv[at : at + 4] == given for at in range(len(argv))), f"arguments were not kept in order: {argv}")


def launch_refuses_undeliverable(subject: Subject) -> None:
    """What no process can be given is a ``UsageError`` before anything is started."""
    refused = (
        LaunchRequest(args=("a\0b",)),
        LaunchRequest(args=("\udc80",)),
        LaunchRequest(args=("x" * 128 * 1024,)),
        LaunchRequest(prompt="\udc80"),
        LaunchRequest(prompt="x" * (11 * 1024 * 1024)),
        LaunchRequest(env={"A=B": "c"}),
        LaunchRequest(env={f"V{number}": "x" * 100_000 for number in range(11)}),
    )
    for request in refused:
        try:
            subject.provider.launch(subject.agent, request)
        except UsageError:
            continue
        raise AssertionError(f"launch accepts {str(request)[:200]}")


def prompt_can_be_replaced(subject: Subject) -> None:
    """Another prompt gives the launch with that prompt, and changes nothing else."""
    first, second = (subject.spec(LaunchRequest(prompt=text, args=("--flag",))) for text in ("one", "two"))
    _require(subject.provider.with_prompt(first, "two") == second, "with_prompt differs from a launch with that prompt")


# --- Reading ------------------------------------------------------------------------------------------------


def reader_is_pure(subject: Subject) -> None:
    """A reader changes no state that it is given, gives the same result twice, and speaks JSON."""
    for recording, state, line in _positions(subject):
        read, before = subject.provider.reader(recording.spec, NO_SECRETS), json.dumps(state)
        result = read(state, "out", line, None)
        _require(json.dumps(state) == before, f"the reader changes the state that it is given: {line[:200]!r}")
        _require(result == read(state, "out", line, None), f"two results for one line: {line[:200]!r}")
        written = json.dumps(result[0])
        _require(len(written) <= STATE_LIMIT, f"a state of {len(written)} bytes after {line[:200]!r}")
        json.dumps(result[1]).encode()


def reader_resumes_anywhere(subject: Subject) -> None:
    """A new reader with the stored state goes on where another one stopped, at each line end."""
    for recording in subject.recordings:
        whole, state, stored = subject.provider.reader(recording.spec, NO_SECRETS), State(), "{}"
        for line in recording.lines:
            state, events = whole(state, "out", line, None)
            fresh = subject.provider.reader(recording.spec, NO_SECRETS)
            resumed, again = fresh(json.loads(stored), "out", line, None)
            stored = json.dumps(resumed)
            _require(again == events, f"after a restart, other events for {line[:200]!r}")
        _require(json.loads(stored) == json.loads(json.dumps(state)), "after restarts, another state at the end")


def reader_ignores_truncated_lines(subject: Subject) -> None:
    """The beginning of a line, all that there is if the machine died, adds nothing and decides nothing.

    Plain text has no incomplete lines. Of the lines of one type, one is truncated at each byte.
    """
    if subject.provider.text_output is not None:
        return
    seen = set[str]()
    for recording in subject.recordings:
        read = subject.provider.reader(recording.spec, NO_SECRETS)
        whole, so_far, state = _counted(_read_whole(subject.provider, recording)[1]), Counter[str](), State()
        for line in recording.lines:
            judged, kind = _judged(subject.provider, state), _type(line)
            for end in range(0 if kind in seen else len(line) - 1):
                after, events = read(state, "out", line[:end], None)
                added = [event for event in events if event[0] != "raw"]
                _require(not added or so_far + _counted(added) <= whole, f"{line[:end]!r} adds {added}")
                is_judged_alike = after is state or _judged(subject.provider, after) == judged
                _require(is_judged_alike, f"{line[:end]!r} changes the verdict")
            _require(
                read(state, "out", line[:-1], None) == read(state, "out", line, None),
                f"a line without its line end is not read like the whole: {line[:200]!r}",
            )
            state, events = read(state, "out", line, None)
            so_far += _counted(events)
            seen.add(kind)


def _counted(events: list[ReaderEvent]) -> Counter[str]:
    return Counter(json.dumps(event, sort_keys=True) for event in events)


def _judged(provider: Provider, state: State) -> list[tuple[Status, Reason]]:
    return [provider.verdict(state, ended, None) for ended in (CLEAN, KILLED)]


def reader_accepts_anything(subject: Subject) -> None:
    """No line makes a reader raise: no bytes, no recorded line with any of its values replaced or removed."""
    seen = set[str]()
    for position in _distinct(subject):
        bent = _bent(json.loads(position.line), _type(position.line), seen)
        odd = (json.dumps(value).encode() for value in bent)
        _read_odd(subject.provider, position, "out", odd)
    for recording in subject.recordings[:1]:
        for state in ({}, next(_final_states(subject))[1]):
            for stream in ("out", "err"):
                _read_odd(subject.provider, _Position(recording, state, b""), stream, _ODD_LINES)


def _read_odd(provider: Provider, position: _Position, stream: str, lines: Iterable[bytes]) -> None:
    read = provider.reader(position.recording.spec, NO_SECRETS)
    for line in lines:
        state, events = read(position.state, stream, line, None)
        json.dumps([state, events]).encode()
        names = [data["session_id"] for kind, data in events if kind == "session"]
        _require(all(map(is_session_name, names)), f"{names} names no session: {line[:200]!r}")
        _judged(provider, state)
        if provider.conversation is not None:
            provider.conversation.is_finished(state, False)
        if provider.own_tools is not None:
            provider.own_tools.request(line)


def _distinct(subject: Subject) -> Iterator[_Position]:
    """Recorded lines that are JSON objects, one of each shape."""
    seen = set[str]()
    for position in _positions(subject):
        value = decoded(position.line)
        if value is not None and (shape := json.dumps(_shape(value))) not in seen:
            seen.add(shape)
            yield position


def _shape(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _shape(inner, key) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [_shape(inner) for inner in value[:1]]
    return value if "type" in name else type(value).__name__


def _type(line: bytes) -> str:
    """The type of a line and of what is in it."""
    value = decoded(line) or {}
    inner = (one for one in value.values() if isinstance(one, dict))
    return " ".join(str(one[key]) for one in (value, *inner) for key in sorted(one) if "type" in key)


def _bent(value: Any, place: str, seen: set[str]) -> Iterator[Any]:
    """The same with one value, at any depth, replaced by an odd one or removed; each place once."""
    if place not in seen:
        seen.add(place)
        yield from _ODD_VALUES
    if isinstance(value, dict):
        for key in value:
            if f"{place}.{key}" not in seen:
                yield {other: inner for other, inner in value.items() if other != key}
            yield from ({**value, key: bent} for bent in _bent(value[key], f"{place}.{key}", seen))
    elif isinstance(value, list) and value:
        yield from ([bent, *value[1:]] for bent in _bent(value[0], f"{place}[]", seen))


def reader_skips_foreign_lines(subject: Subject) -> None:
    """Lines that are none of the CLI's, between its own, are ``raw`` events and change nothing else.

    To plain text no line is foreign.
    """
    if subject.provider.text_output is not None:
        return
    for recording in subject.recordings:
        read, state, others = subject.provider.reader(recording.spec, NO_SECRETS), State(), cycle(_ODD_LINES)
        mixed = list[ReaderEvent]()
        for line in recording.lines:
            odd = next(others)
            after, events = read(state, "out", odd, None)
            _require([kind for kind, _ in events] == ["raw"] and after == state, f"{odd[:200]!r} is not only raw")
            state, events = read(after, "out", line, None)
            mixed += events
        whole, events = _read_whole(subject.provider, recording)
        _require((state, mixed) == (whole, events), "lines of others change what is read")


def reader_keeps_errors_raw(subject: Subject) -> None:
    """Every line of standard error is a ``raw`` event."""
    for recording, state, line in _positions(subject):
        after, events = subject.provider.reader(recording.spec, NO_SECRETS)(state, "err", line, None)
        kind, data = events[0]
        _require((kind, data.get("stream")) == ("raw", "stderr"), f"standard error is not raw: {line[:200]!r}")
        _require(after == state, f"standard error changes the state: {line[:200]!r}")


def reader_marks_oversize_lines(subject: Subject) -> None:
    """Of a line that was too long to be read whole, an event has the beginning and the whole size."""
    for recording, state, line in _positions(subject):
        after, events = subject.provider.reader(recording.spec, NO_SECRETS)(state, "out", line[:-1], 10**9)
        marked = [data for _, data in events if data.get("oversize") and data.get("bytes") == 10**9]
        _require(len(marked) == 1, f"an oversize line is not marked: {events}")
        _require(_judged(subject.provider, after) == _judged(subject.provider, state), "it changes the verdict")


def reader_redacts_secrets(subject: Subject) -> None:
    """No secret is in an event or a state, wherever in a line it was, nor the beginning of one where a line was cut."""
    redactor = Redactor({"API_KEY": _KEY})
    seen = set[str]()
    lines = [(position, line) for position in _distinct(subject) for line in _with_secret(position.line, seen)]
    for position, line in [*lines, *((position, _KEY.encode()) for position in _positions(subject))]:
        read = subject.provider.reader(position.recording.spec, redactor)
        results = [read(position.state, stream, line, None) for stream in ("out", "err")]
        results.append(read(position.state, "out", line[: len(line) // 2], 10**9))
        spelled = json.dumps(_KEY, ensure_ascii=False)[1:-1]
        _require(spelled not in json.dumps(results, ensure_ascii=False), f"a secret survives: {line[:200]!r}")


def _with_secret(line: bytes, seen: set[str]) -> Iterator[bytes]:
    for value in _leaves(json.loads(line), _type(line), seen):
        yield json.dumps(value).encode()
        yield json.dumps(value, ensure_ascii=False).encode()


def _leaves(value: Any, place: str, seen: set[str]) -> Iterator[Any]:
    """The same with the secret at the end of one text, at any depth, each place once; its types stay as they are."""
    if isinstance(value, str) and place not in seen:
        seen.add(place)
        yield f"{value} {_KEY}"
    elif isinstance(value, dict):
        for key in value:
            if "type" not in key:
                yield from ({**value, key: leaf} for leaf in _leaves(value[key], f"{place}.{key}", seen))
    elif isinstance(value, list) and value:
        yield from ([leaf, *value[1:]] for leaf in _leaves(value[0], f"{place}[]", seen))


# --- Judging ------------------------------------------------------------------------------------------------


def verdict_is_total(subject: Subject) -> None:
    """Each state and each exit has a verdict; without output, it follows from the exit."""
    states: list[State] = [{}, *(state for _, state, _ in _positions(subject)), *(s for _, s in _final_states(subject))]
    for state in states:
        for reason in _STOP_REASONS:
            for ended in _EXITS:
                status, why = subject.provider.verdict(state, ended, reason)
                _require(status.ended and isinstance(why, Reason), f"{status} is no verdict on {ended}")
            failed = subject.provider.verdict(state, Ended(127, error="no such file"), reason)
            _require(failed == (Status.FAILED, Reason.START_FAILED), f"{failed} for a process that was not started")
    verdict = subject.provider.verdict
    stopped = Ended(signal=15, stopped=True)
    _require(verdict({}, KILLED, None) == (Status.FAILED, Reason.SIGNAL), "a killed process must fail with signal")
    _require(verdict({}, Ended(3), None) == (Status.FAILED, Reason.EXIT), "exit code 3 must fail with exit")
    _require(verdict({}, stopped, Reason.STOPPED) == (Status.STOPPED, Reason.STOPPED), "a stop must be stopped")
    _require(verdict({}, stopped, Reason.TIMEOUT) == (Status.FAILED, Reason.TIMEOUT), "a timeout must fail with it")
    is_done = verdict({}, CLEAN, None)[0] is Status.DONE
    _require(is_done == (subject.provider.text_output is not None), "without its result, a CLI is not done")


def verdict_follows_the_stream(subject: Subject) -> None:
    """What a CLI reports of its end counts before its exit code, which may contradict it."""
    if subject.provider.text_output is not None:
        return
    for _, state in _final_states(subject):
        clean, code = (subject.provider.verdict(state, ended, None) for ended in (CLEAN, Ended(3)))
        _require(clean[0] is code[0], f"{clean[0]} with exit code 0, but {code[0]} with 3")


# --- Capabilities -------------------------------------------------------------------------------------------


def conversation_writes_lines(subject: Subject) -> None:
    """Messages, answers and interruptions are one line each; empty and invalid messages are refused."""
    if (conversation := subject.provider.conversation) is None:
        return
    _require_line(conversation.message("one\ntwo äöü\r\n"))
    _require_line(conversation.interrupt("request-1"))
    for text in ("", " \n", "\udc80"):
        try:
            conversation.message(text)
        except UsageError:
            continue
        raise AssertionError(f"message accepts {text!r}")
    events = (event for recording in subject.recordings for event in _read_whole(subject.provider, recording)[1])
    for question in (data for kind, data in events if kind == "question"):
        for answer in (Answer(True), Answer(True, "1"), Answer(True, always=True), Answer(False, "no\nway")):
            line = conversation.answer(question, answer)
            _require_line(line)
            _require(question["id"] in line, f"an answer does not name its question: {line}")


def _require_line(text: str) -> None:
    text.encode()
    _require(text.endswith("\n") and text.count("\n") == 1 and "\r" not in text, f"not exactly one line: {text!r}")


def conversation_knows_its_end(subject: Subject) -> None:
    """Input stays open before the first result, and may end after a recording that is done."""
    if (conversation := subject.provider.conversation) is None:
        return
    for settled in (False, True):
        _require(not conversation.is_finished({}, settled), "finished before it began")
    _require(conversation.background_seconds > 0, "background_seconds must be positive")
    for recording, state in _final_states(subject):
        if subject.provider.verdict(state, recording.exit, None)[0] is Status.DONE:
            _require(conversation.is_finished(state, True), f"done, but not finished: {state}")


def sessions_resume(subject: Subject) -> None:
    """A resumed run names its session and the new prompt, and is the same run otherwise."""
    if (sessions := subject.provider.sessions) is None:
        return
    spec = subject.spec(LaunchRequest(prompt="begin", args=("--flag", "mine"), env={"HOME": "/home/me"}))
    first = sessions.resume(spec, "session-1", "go on")
    second = sessions.resume(first, "session-2", "")
    for resumed, session in ((first, "session-1"), (second, "session-2")):
        _require(session in resumed.argv, f"{session} is not in {resumed.argv}")
        same = msgspec.structs.replace(resumed, argv=spec.argv, prompt=spec.prompt)
        _require(same == spec, "resume changes more than the arguments and the prompt")
        kept = spec.argv[:-1] if spec.stdin == "empty" else spec.argv  # The last one is the prompt then.
        _require([word for word in kept if word not in resumed.argv] == [], "resume drops arguments")
    _require("session-1" not in second.argv, "a run that is resumed twice names both sessions")
    _require(first.prompt == "go on" and (second.prompt or "").strip(), "resume must set a prompt")


def transcripts_stay_inside(subject: Subject) -> None:
    """Paths of transcripts are absolute, and no session id leads out of their folder."""
    sessions = subject.provider.sessions
    if sessions is None or sessions.transcripts is None:
        return
    env = {"HOME": "/home/me"}
    _require(sessions.transcripts(env, "/project", "5f2e8a10"), "no path for an ordinary session")
    for session in ("5f2e8a10", "../../etc/passwd", "..", "", "a/b", "a\0b", "/etc/passwd", "x" * 5000):
        for path in sessions.transcripts(env, "/project", session):
            _require(path.startswith("/home/me/"), f"{path!r} is not below the user's home")
            _require(os.path.normpath(path) == path and "\0" not in path, f"{path!r} is not a plain path")


def pricing_keeps_arguments(subject: Subject) -> None:
    """A budget adds arguments and changes none, and unpriced tokens are never negative."""
    if (pricing := subject.provider.pricing) is None:
        return
    argv = subject.spec(LaunchRequest(prompt="begin", args=("--flag",))).argv
    for usd in (0.0, 0.01, 12.5):
        bounded = pricing.bound(argv, usd)
        words = iter(bounded)
        _require(all(word in words for word in argv) and len(bounded) > len(argv), f"no budget in {bounded}")
        _require(bounded[0] == argv[0], "a budget changes the program")
    _require(pricing.unpriced_tokens({}) == 0, "unpriced tokens before the first output")
    for _, state, _ in _positions(subject):
        _require(pricing.unpriced_tokens(state) >= 0, "a negative number of tokens")


def own_tools_answer(subject: Subject) -> None:
    """A launch offers our server, and each reply is one line that names its request."""
    if (tools := subject.provider.own_tools) is None:
        return
    own = OwnServer("hocket", ("rule",))
    _require(subject.provider.launch(subject.agent, LaunchRequest(own_server=own)).served, "our server is not offered")
    for line in (tools.reply("request-1", {"text": "\ud800\n"}), tools.refusal("request-1", "no\nway")):
        _require_line(line)
        _require("request-1" in line, f"a reply does not name its request: {line}")
    _require(not tools.pending({}), "calls are pending before the first output")
    for other in _ODD_LINES:
        _require(tools.request(other) is None, f"not a request: {other[:200]!r}")


def text_output_has_result(subject: Subject) -> None:
    """Any output has a result of at most ``RESULT_LIMIT`` bytes."""
    if (output := subject.provider.text_output) is None:
        return
    for tail in (b"", b"end\n", b"\xff", "ä".encode() * RESULT_LIMIT, b"\x80" * RESULT_LIMIT, b"x" * RESULT_LIMIT):
        result = output.result(tail)
        _require(len(result) <= RESULT_LIMIT and tail.decode("utf-8", "replace").endswith(result), "not the end")
    for _, state in _final_states(subject):
        json.dumps(output.last_events(state))


def definitions_read_anything(subject: Subject) -> None:
    """A file that is no definition is refused without an exception."""
    if (definitions := subject.provider.definitions) is None:
        return
    for content in (*_ODD_LINES, b"---\nname: [\n---\n", b"---\n" + b"[" * 50_000 + b"\n---\n"):
        _require((definitions.end_of(content) or 0) <= len(content), f"an end behind {content[:200]!r}")
        try:
            definitions.parse_definition(content, "/project/agent.md")
        except BadDefinition:
            continue
        raise AssertionError(f"parse_definition accepts {content[:200]!r}")


def privileges_are_found(subject: Subject) -> None:
    """A settings file that cannot be read asks for a privilege, and no arguments ask for none."""
    if (privileges := subject.provider.privileges) is None:
        return
    for name in privileges.settings_files:
        for content in _NOT_OBJECTS:
            asked = list(privileges.requests_in_settings(name, content))
            _require(asked, f"{name} asks for nothing with {content!r}")
    for mode in PERMISSION_MODES:
        _require(privileges.widening((), mode) is None, "no arguments must not widen what an agent may do")
        _require(privileges.mode_with((), mode) == mode, "no arguments must not change the permission mode")


Check = Callable[[Subject], None]

CHECKS: tuple[Check, ...] = (
    launch_is_complete,
    launch_delivers_prompt,
    launch_keeps_arguments,
    launch_refuses_undeliverable,
    prompt_can_be_replaced,
    reader_is_pure,
    reader_resumes_anywhere,
    reader_ignores_truncated_lines,
    reader_accepts_anything,
    reader_skips_foreign_lines,
    reader_keeps_errors_raw,
    reader_marks_oversize_lines,
    reader_redacts_secrets,
    verdict_is_total,
    verdict_follows_the_stream,
    conversation_writes_lines,
    conversation_knows_its_end,
    sessions_resume,
    transcripts_stay_inside,
    pricing_keeps_arguments,
    own_tools_answer,
    text_output_has_result,
    definitions_read_anything,
    privileges_are_found,
)
