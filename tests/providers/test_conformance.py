"""The conformance suite for every provider, and that it finds what breaks the contract."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden.recordings import Recordings
from providers.streams import cursor, recorded
from providers.streams.recorded import NAMES, stream

from hocket.model import Agent, Definition, Reason, Spec, Status
from hocket.providers import PROVIDERS, conformance
from hocket.providers.base import (
    Launch,
    LaunchRequest,
    Pricing,
    ProcessExit,
    Provider,
    Reader,
    ReaderEvent,
    Sessions,
    State,
    exit_verdict,
)
from hocket.providers.conformance import CHECKS, Check, Ended, RecordedOutput, Subject
from hocket.providers.definition_files import Privilege
from hocket.redaction import NO_SECRETS, Redactor

DEFINITION = Definition("rev", {"description": "reviews", "prompt": "You review."}, "/project/.claude/agents/rev.md")
AGENTS = {
    "claude": Agent("rev", "claude", "/bin/claude", "project", definition=DEFINITION),
    "codex": Agent("codex", "codex", "/bin/codex", "cli"),
    "cursor": Agent("cursor-agent", "cursor", "/bin/cursor-agent", "cli"),
    "executable": Agent("tool", "executable", "/bin/tool", "PATH"),
}
LOOP = Spec("tool", "executable", ("/bin/tool",), "/project", {}, loop=True, marker="DONE")
PLAIN_TEXT = (
    b"working\n",
    b"```\n",
    b"DONE\n",
    b"```\n",
    b" \xff \r\n",
    b'{"type": "x", "text": "y"}\n',
    b"**DONE**\n",
)


def golden(provider: str) -> tuple[RecordedOutput, ...]:
    """All recordings of a CLI, those of its newest version first."""
    recordings = Recordings(provider)
    versions = reversed(recordings.versions())
    loaded = (recordings.load(version, case) for version in versions for case in recordings.cases(version))
    return tuple(RecordedOutput(one.spec, one.out, one.exit) for one in loaded)


def streams() -> tuple[RecordedOutput, ...]:
    """Recordings of earlier versions of the Claude CLI, of which only the output was kept."""
    return tuple(RecordedOutput(recorded.spec(loop=True, marker="BYE"), tuple(stream(name))) for name in NAMES)


def documented() -> tuple[RecordedOutput, ...]:
    """The stream that Cursor documents, with and without the parts of messages."""
    spec = Spec("cursor-agent", "cursor", ("cursor-agent",), "/p", {}, loop=True, marker="I may not.")
    whole = tuple(line for line in cursor.STREAM if "timestamp_ms" not in line or "model_call_id" in line)
    streams = (tuple(json.dumps(line).encode() + b"\n" for line in lines) for lines in (cursor.STREAM, whole))
    return tuple(RecordedOutput(spec, lines) for lines in streams)


@cache
def subject(provider: str) -> Subject:
    plain = (
        RecordedOutput(LOOP, PLAIN_TEXT),
        RecordedOutput(msgspec.structs.replace(LOOP, loop=False), PLAIN_TEXT, Ended(3)),
    )
    recordings = {
        "claude": lambda: golden("claude") + streams(),
        "codex": lambda: golden("codex"),
        "cursor": documented,
    }
    return Subject(PROVIDERS[provider], AGENTS[provider], recordings.get(provider, lambda: plain)())


def name_of(check: Check) -> str:
    return check.__name__


@pytest.mark.req("S3-28", "S3-38")
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_provider_passes_conformance_check(provider: str, check: Check) -> None:
    check(subject(provider))


# --- The suite itself ---


def broken(provider: str, **changes: Any) -> Subject:
    """A provider that is changed in one place, with the first recordings only."""
    good = subject(provider)
    return Subject(replace(good.provider, **changes), good.agent, good.recordings[:3])


def remembering_reader(spec: Spec, redactor: Redactor) -> Reader:
    """A reader with a memory outside of its state."""
    seen: list[bytes] = []

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        seen.append(line)
        return state, [("raw", {"stream": "stderr", "text": str(len(seen)), "oversize": True, "bytes": whole_size})]

    return read


def strict_reader(spec: Spec, redactor: Redactor) -> Reader:
    """A reader that understands its own CLI only, and redacts nothing."""
    inner = PROVIDERS["codex"].reader(spec, NO_SECRETS)

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        return inner({**state, "line": line.decode()}, stream, line, whole_size)

    return read


def shell_launch(agent: Agent, request: LaunchRequest) -> Launch:
    return Launch(("/bin/sh", "-c", f"{agent.path} {request.prompt}"), "file", request.prompt)


def ending_reader(spec: Spec, redactor: Redactor) -> Reader:
    """A reader that takes any line for the end."""
    inner = PROVIDERS["codex"].reader(spec, redactor)

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        after, events = inner(state, stream, line, whole_size)
        return {**after, "open": False}, events

    return read


def obedient_verdict(state: State, exit: ProcessExit, reason: Reason | None) -> tuple[Status, Reason]:  # noqa: A002 - the keeper's name for it
    """A verdict by the exit code alone."""
    return exit_verdict(exit, reason, (Status.DONE, Reason.EXIT))


def optimistic_verdict(state: State, exit: ProcessExit, reason: Reason | None) -> tuple[Status, Reason]:  # noqa: A002 - the keeper's name for it
    return Status.DONE, Reason.EXIT


def forgetful_resume(spec: Spec, session: str, prompt: str) -> Spec:
    return msgspec.structs.replace(spec, argv=(spec.argv[0], session), cwd="/", prompt=prompt)


class ReadsAnything:
    """Definitions of which every file is one."""

    def end_of(self, content: bytes) -> int:
        return len(content)

    def parse_definition(self, content: bytes, path: str) -> Definition:
        return Definition("rev", {"prompt": content.decode(errors="replace")}, path)


class FindsNothing:
    """Privileges that no file asks for."""

    settings_files = ("settings.json",)

    def requests_in_settings(self, name: str, content: bytes) -> list[Privilege]:
        return []


BREAKS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "launch": ({"launch": shell_launch}, {"launch_is_complete", "launch_delivers_prompt", "launch_keeps_arguments"}),
    "memory": ({"reader": remembering_reader}, {"reader_is_pure", "reader_resumes_anywhere"}),
    "strict": (
        {"reader": strict_reader},
        {"reader_accepts_anything", "reader_keeps_errors_raw", "reader_redacts_secrets"},
    ),
    "verdict": ({"verdict": optimistic_verdict}, {"verdict_is_total"}),
    "exit code": ({"verdict": obedient_verdict}, {"verdict_is_total", "verdict_follows_the_stream"}),
    "foreign lines": ({"reader": ending_reader}, {"reader_skips_foreign_lines"}),
    "resume": (
        {"sessions": Sessions(forgetful_resume, lambda *_: ["x"])},
        {"sessions_resume", "transcripts_stay_inside"},
    ),
    "prompt": (
        {"with_prompt": lambda spec, prompt: msgspec.structs.replace(spec, prompt=prompt, cwd="/")},
        {"prompt_can_be_replaced"},
    ),
    "definitions": ({"definitions": ReadsAnything()}, {"definitions_read_anything"}),
    "privileges": ({"privileges": FindsNothing()}, {"privileges_are_found"}),
    "pricing": ({"pricing": Pricing(lambda argv, usd: ("x",), lambda state: -1)}, {"pricing_keeps_arguments"}),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_provider_is_reported(name: str) -> None:
    changes, expected = BREAKS[name]
    failed = set()
    for check in CHECKS:
        try:
            check(broken("codex", **changes))
        except Exception:  # noqa: BLE001 - a check may also pass on what the provider raises
            failed.add(name_of(check))
    assert expected <= failed


def test_every_check_is_listed() -> None:
    functions = inspect.getmembers(conformance, inspect.isfunction)
    own = {name for name, function in functions if function.__module__ == conformance.__name__}
    assert {name for name in own if not name.startswith("_")} == {name_of(check) for check in CHECKS}


def test_every_attribute_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/providers.md").read_text(encoding="utf-8")
    assert [one.name for one in fields(Provider) if f"`{one.name}" not in guide] == []
