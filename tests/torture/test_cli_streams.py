"""Streams of CLIs as they should not be: unknown, torn, binary, oversize, unfinished, or denied by the exit code.

A small program plays each CLI; the keeper, the server and the reader are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torture.installation import Installation, environment, rss_mb, verdict
from world import Bin

from hocket.errors import HocketError

pytestmark = pytest.mark.shared_server

Lines = tuple[dict[str, Any], ...]
MB = 1024 * 1024
SAID = "all is well"
LIMIT_MB = 32


class Cli(NamedTuple):
    """How a CLI says things. Without ``finish`` it is a plain program, and each text is a line."""

    program: str
    begin: Lines = ()
    text: Callable[[str], dict[str, Any]] | None = None
    tool: Callable[[str], Lines] | None = None
    """A tool with this output."""
    finish: Callable[[str], Lines] | None = None
    fail: Lines = ()

    @property
    def is_plain(self) -> bool:
        return self.finish is None

    def said(self, text: str) -> bytes:
        return written(self.text(text)) if self.text else text.encode() + b"\n"

    def start(self) -> bytes:
        return written(*self.begin)

    def end(self, text: str = SAID) -> bytes:
        """The last words, and that all is done."""
        return self.said(text) + (written(*self.finish(text)) if self.finish else b"")


def written(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"type": role, "message": {"id": "m", "role": role, "content": list(content)}, "session_id": "s"}


def _result(text: str, *, is_error: bool) -> dict[str, Any]:
    about = {"session_id": "s", "num_turns": 1, "duration_ms": 1, "request_id": "r"}
    subtype = "error_during_execution" if is_error else "success"
    return {"type": "result", "subtype": subtype, "is_error": is_error, "result": text, **about}


def _item(phase: str, **item: Any) -> dict[str, Any]:
    return {"type": f"item.{phase}", "item": {"id": "i", **item}}


def _shell(phase: str, **call: Any) -> dict[str, Any]:
    shell = {"shellToolCall": {"args": {"command": "cat x"}, **call}}
    return {"type": "tool_call", "subtype": phase, "call_id": "c", "tool_call": shell}


_INIT = {"type": "system", "subtype": "init", "session_id": "s", "model": "m", "cwd": "/", "tools": []}
_COMMAND = {"type": "command_execution", "command": "cat x"}

CLIS = {
    "claude": Cli(
        "claude",
        (_INIT,),
        lambda text: _message("assistant", {"type": "text", "text": text}),
        lambda output: (
            _message("assistant", {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "cat x"}}),
            _message("user", {"type": "tool_result", "tool_use_id": "t", "content": output}),
        ),
        lambda text: (_result(text, is_error=False),),
        (_result("it broke", is_error=True),),
    ),
    "codex": Cli(
        "codex",
        ({"type": "thread.started", "thread_id": "s"}, {"type": "turn.started"}),
        lambda text: _item("completed", type="agent_message", text=text),
        lambda output: (
            _item("started", **_COMMAND),
            _item("completed", **_COMMAND, aggregated_output=output, exit_code=0, status="completed"),
        ),
        lambda text: ({"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 2}},),
        ({"type": "turn.failed", "error": {"message": "it broke"}},),
    ),
    "cursor": Cli(
        "cursor-agent",
        (_INIT,),
        lambda text: _message("assistant", {"type": "text", "text": text}),
        lambda output: (_shell("started"), _shell("completed", result={"success": {"stdout": output}})),
        lambda text: (_result(text, is_error=False),),
        (_result("it broke", is_error=True),),
    ),
    "executable": Cli("tool"),
}
REPORTING = [name for name, cli in CLIS.items() if not cli.is_plain]


def play(agent: Bin, cli: Cli, pieces: Sequence[bytes], end: str = "os._exit(0)") -> None:
    """Put a program on PATH that writes these pieces, each by itself, and then ends."""
    agent(cli.program, f"import os\nfor piece in {list(pieces)!r}:\n    os.write(1, piece)\n{end}\n")


# --- What is written, and how it ends -----------------------------------------------------------------------

DONE, FAILED, UNFINISHED = ("done", "exit", 0), ("failed", "error", 0), ("failed", "error", 0)
NOISE = bytes(range(256)) + b"\xff\xfe\0\0\n" + b"\x1b[31mred\x1b[0m\x1b]8;;http://x\x07link\n" + b"\xc3\n"
ODD = (
    b'{"type":"unheard_of","text":"x"}\n',
    b'{"no":"type"}\n',
    b"[]\n",
    b"7\n",
    b"plain text\n",
    b"\n",
    b'{"type":\n',
)
EXIT_3, KILL = "os._exit(3)", "os.kill(os.getpid(), 9)"


class Case(NamedTuple):
    """A stream, the end of its process, and the verdicts: of a CLI that reports, and of a plain program."""

    pieces: Callable[[Cli], Sequence[bytes]]
    end: str = "os._exit(0)"
    expected: tuple[str, str, int] = DONE
    plain: tuple[str, str, int] = DONE


CASES = {
    "unknown events": Case(lambda cli: [cli.start(), *ODD, cli.end()]),
    "half a line amid others": Case(lambda cli: [cli.start(), cli.end()[:30], b"\n", cli.end()]),
    "a line in many writes": Case(lambda cli: [bytes([one]) for one in cli.start() + cli.end()]),
    "binary": Case(lambda cli: [cli.start(), NOISE, cli.end()]),
    "half a last line": Case(lambda cli: [cli.start(), cli.end()[:-4]], expected=UNFINISHED),
    "no last event": Case(lambda cli: [cli.start(), cli.said("I begin")], expected=UNFINISHED),
    "nothing at all": Case(lambda cli: [], expected=UNFINISHED),
    "no last event and a code": Case(
        lambda cli: [cli.start(), cli.said("I begin")], EXIT_3, ("failed", "exit", 3), ("failed", "exit", 3)
    ),
    "no last event and a signal": Case(
        lambda cli: [cli.start(), cli.said("I begin")], KILL, ("failed", "signal", 137), ("failed", "signal", 137)
    ),
    "success and a code": Case(
        lambda cli: [cli.start(), cli.end()], EXIT_3, ("done", "exit", 3), ("failed", "exit", 3)
    ),
    "success and a signal": Case(
        lambda cli: [cli.start(), cli.end()], KILL, ("done", "exit", 137), ("failed", "signal", 137)
    ),
    "failure and code 0": Case(lambda cli: [cli.start(), written(*cli.fail)], expected=FAILED),
    "failure and a code": Case(
        lambda cli: [cli.start(), written(*cli.fail)], EXIT_3, ("failed", "error", 3), ("failed", "exit", 3)
    ),
}


@pytest.mark.req("S3-28", "S3-36", "S3-38")
@pytest.mark.parametrize("provider", CLIS)
def test_odd_stream_ends_with_the_right_verdict(installation: Installation, agent: Bin, provider: str) -> None:
    cli, found = CLIS[provider], {}
    for name, case in CASES.items():
        pieces = case.pieces(cli)
        play(agent, cli, pieces, case.end)
        run = installation.spawn(cli.program, prompt="go")
        ended = installation.ended(run)
        found[name] = verdict(ended)
        assert ended["provider"] == provider
        assert installation.out(run) == b"".join(pieces), name
        if found[name][0] == "done" and not cli.is_plain:
            assert ended["result"] == SAID, name
    assert found == {name: case.plain if cli.is_plain else case.expected for name, case in CASES.items()}


@pytest.mark.req("S3-28")
@pytest.mark.parametrize("provider", REPORTING)
def test_unknown_lines_are_kept_as_raw(installation: Installation, agent: Bin, provider: str) -> None:
    cli = CLIS[provider]
    play(agent, cli, [cli.start(), *ODD, NOISE, cli.end()])
    run = installation.spawn(cli.program, prompt="go")
    installation.ended(run)
    raw = [event["data"]["text"] for event in installation.events(run) if event["type"] == "raw"]
    assert raw == [line.decode("utf-8", "replace") for line in (b"".join(ODD) + NOISE).split(b"\n")[:-1]]


@pytest.mark.parametrize("session", ["", "--force", "x" * 1000, "a\nb"])
def test_session_that_no_cli_can_have_is_unknown(installation: Installation, agent: Bin, session: str) -> None:
    for provider in REPORTING:
        cli = CLIS[provider]
        text = (cli.start() + cli.end()).decode().replace('"s"', json.dumps(session))
        play(agent, cli, [text.encode()])
        ended = installation.ended(installation.spawn(cli.program, prompt="go"))
        assert (verdict(ended), ended["session_id"], ended["transcript"]) == (DONE, None, None), provider
        with pytest.raises(HocketError, match="has no session that could be resumed"):
            installation.client.request("POST", f"/api/runs/{ended['id']}/resume", {"prompt": "more"})


@pytest.mark.parametrize("provider", CLIS)
def test_marker_counts_only_in_what_the_agent_says(installation: Installation, agent: Bin, provider: str) -> None:
    """The first iteration repeats the marker from elsewhere, the second writes it in pieces."""
    cli = CLIS[provider]
    elsewhere = written(*cli.tool("EOW\n")) if cli.tool else b"not EOW yet\n"
    first = [cli.start(), elsewhere, cli.end("no EOW yet")]
    second = [bytes([one]) for one in cli.start() + cli.end("it is done\nEOW")]
    agent(
        cli.program,
        "import os\n"
        f"again = os.path.exists('begun')\nopen('begun', 'w').close()\n"
        f"for piece in {second!r} if again else {first!r}:\n    os.write(1, piece)\n",
    )
    body = {"dsl": f"{cli.program}:3", "marker": "EOW", "prompt": "write EOW when done", "cwd": str(installation.cwd)}
    chain = installation.client.request("POST", "/api/runs", {**body, "env": environment()})["id"]
    ended = installation.ended(str(chain))
    assert verdict(ended)[:2] == ("done", "marker")
    assert [step["iterations"] for step in ended["steps"]] == [2]


# --- Size ---------------------------------------------------------------------------------------------------

LONG = """
import os
def write(block):
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(1, rest):]
write({begin!r})
block = b"x" * 2**20
write({head!r})
for _ in range(100):
    write(block)
write({tail!r})
"""


@pytest.mark.own_server
def test_line_of_100_mb_keeps_memory_bounded(installation: Installation, agent: Bin, project: Path) -> None:
    server = installation.server_pid()
    for provider in REPORTING:  # a plain program's is in test_output
        cli = CLIS[provider]
        play(agent, cli, [cli.start(), cli.end()])
        installation.ended(installation.spawn(cli.program, prompt="go"))
        before = rss_mb(server)
        head, tail = cli.said("|").split(b"|")
        agent(cli.program, LONG.format(begin=cli.start(), head=head, tail=tail + cli.end()))
        run = installation.spawn(cli.program, prompt="go")
        assert verdict(installation.ended(run)) == DONE, provider
        (raw,) = (event["data"] for event in installation.events(run) if event["type"] == "raw")
        assert (raw["oversize"], raw["bytes"]) == (True, 100 * MB + len(head) + len(tail) - 1)
        assert rss_mb(server) - before <= LIMIT_MB, provider
