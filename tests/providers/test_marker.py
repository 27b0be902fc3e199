"""When a marker counts: one table of texts, delivered by each provider in each form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from providers.streams.recorded import Exit, assistant, delta, init, line, of_type, part, result, text, tool_result

from hocket.chain.decide import Decision, Finished, Outcome, add, decide, no_history
from hocket.model import BoundChain, Reason, Spec, Status, Step
from hocket.providers import PROVIDERS
from hocket.providers.base import ReaderEvent, State
from hocket.redaction import NO_SECRETS
from hocket.sessions.output_lines import read_lines

M = "FORKHESTRA_COMPLETE"
F, G, T = "```", "````", "~~~"


class Case(NamedTuple):
    """A text, and how many markers count in it."""

    name: str
    text: str
    counts: bool


def counts(name: str, text: str) -> Case:
    return Case(name, text, True)


def not_so(name: str, text: str) -> Case:
    return Case(name, text, False)


TABLE = [
    # A line of its own, in any formatting.
    counts("alone", M),
    counts("alone with a line end", f"{M}\n"),
    counts("last line", f"All tests pass.\n{M}"),
    counts("first line", f"{M}\nThat was it."),
    counts("between lines", f"one\n{M}\ntwo\n"),
    counts("spaces", f"ok\n   {M}   \n"),
    counts("tabs", f"\t{M}\t"),
    counts("indented by a lot", f"{' ' * 40}{M}"),
    counts("one star", f"*{M}*"),
    counts("two stars", f"done:\n**{M}**\n"),
    counts("stars on one side", f"**{M}"),
    counts("backticks", f"`{M}`"),
    counts("stars and backticks", f" **`{M}`** "),
    counts("three backticks in one line", f"{F}{M}{F}"),
    counts("windows line ends", f"ok\r\n{M}\r\n"),
    counts("twice", f"{M}\n{M}\n"),
    counts("twice, far apart", f"{M}\nand more\n{M}"),
    counts("after a long line", f"{'x' * 20_000}\n{M}"),
    counts("after it was quoted", f"I shall write {M} now.\n{M}"),
    counts("among other letters", f"F\u00e4hre \u2708\n{M}\n\U0001f600"),
    # Other text on its line.
    not_so("in a sentence", f"I will say {M} when I am done."),
    not_so("with a full stop", f"{M}."),
    not_so("with a word before", f"Not yet {M}"),
    not_so("with a word after", f"{M} (almost)"),
    not_so("twice in one line", f"{M} {M}"),
    not_so("in quotes", f'"{M}"'),
    not_so("in single quotes", f"'{M}'"),
    not_so("list item", f"- {M}"),
    not_so("numbered", f"1. {M}"),
    not_so("star as a list item with more", f"* write {M}"),
    not_so("heading", f"# {M}"),
    not_so("quoted as a mail", f"> {M}"),
    not_so("underlined", f"_{M}_"),
    not_so("lower case", M.lower()),
    not_so("other marker", "ALL_DONE"),
    not_so("longer word", f"{M}_LATER"),
    not_so("split over two lines", "FORKHESTRA_\nCOMPLETE"),
    not_so("split by a space", "FORKHESTRA COMPLETE"),
    not_so("after a carriage return", f"working\r{M}"),
    not_so("in colour", f"\x1b[32m{M}\x1b[0m"),
    not_so("in a tag", f"<done>{M}</done>"),
    not_so("comment of a program", f"# prints\n// {M}"),
    not_so("end of a line too long to keep", f"{'x' * 70_000}{M}"),
    not_so("stars alone", "***\n```\n```\n"),
    not_so("nothing", ""),
    # Blocks of code: alone it counts, among other lines it is a quotation.
    counts("alone in a fence", f"{F}\n{M}\n{F}\n"),
    counts("alone in a fence with a language", f"Done.\n\n{F}text\n{M}\n{F}\n"),
    counts("alone in a fence with empty lines", f"{F}\n\n{M}\n  \n{F}"),
    counts("alone in a fence of tildes", f"{T}\n{M}\n{T}\n"),
    counts("alone in an indented fence", f"1. Finish:\n   {F}\n   {M}\n   {F}\n"),
    counts("alone in a fence that is closed by a longer one", f"{F}\n{M}\n{G}\n"),
    counts("dressed in a fence", f"{F}\n  `{M}`\n{F}\n"),
    counts("alone in a fence on windows", f"{F}\r\n{M}\r\n{F}\r\n"),
    counts("after a fence", f"{F}python\nprint(1)\n{F}\n{M}\n"),
    counts("between two fences", f"{F}\na\n{F}\n{M}\n{F}\nb\n{F}\n"),
    counts("after a fence in which it was quoted", f"{F}\necho\n{M}\n{F}\n{M}"),
    counts("alone in the second fence", f"{F}\nx\n{F}\n{F}\n{M}\n{F}\n"),
    not_so("last in a longer fence", f"{F}\nsay this:\n{M}\n{F}\n"),
    not_so("first in a longer fence", f"{F}\n{M}\nand go\n{F}\n"),
    not_so("within a longer fence", f"{F}sh\necho go\n{M}\necho on\n{F}\n"),
    not_so("in a longer fence of tildes", f"{T}\na\n{M}\n{T}\n"),
    not_so("in a fence within a longer fence", f"{G}md\nWrite:\n{F}\n{M}\n{F}\n{G}\n"),
    not_so("in a fence alone within a fence", f"{G}\n{F}\n{M}\n{F}\n{G}\n"),
    not_so("in a fence that the other kind does not close", f"{F}\n{T}\n{M}\n{T}\n{F}\n"),
    not_so("in a fence that a language does not close", f"{F}\na\n{F}sh\n{M}\n{F}\n"),
    counts("alone in a fence that is never closed", f"Done.\n{F}\n{M}\n"),
    counts("alone in a fence that is never closed, at the very end", f"{F}text\n{M}"),
    not_so("in a longer fence that is never closed", f"{F}\na\n{M}\n"),
    not_so("first in a longer fence that is never closed", f"{F}\n{M}\na\n"),
    not_so("a fence named after it", f"{F} say {M}\nx\n{F}\n"),
]


def test_table_has_distinct_case_names() -> None:
    assert len(TABLE) >= 40
    assert len({case.name for case in TABLE}) == len(TABLE)


def a_spec(provider: str, *, marker: str = M, loop: bool = True) -> Spec:
    return Spec("rev", provider, ("rev",), "/p", {"HOME": "/h"}, loop=loop, marker=marker)


# --- Forms of delivery --------------------------------------------------------------------------------------


class MarkerReader:
    """Reads output as the server does, with its state stored and loaded again after each line."""

    def __init__(self, spec: Spec, stream: str = "out") -> None:
        self._provider = PROVIDERS[spec.provider]
        self._read = self._provider.reader(spec, NO_SECRETS)
        self._stream = stream
        self.state: State = {}
        self.said: list[ReaderEvent] = []

    def line(self, content: bytes, whole_size: int | None = None) -> None:
        state, said = self._read(self.state, self._stream, content, whole_size)
        self.state = json.loads(json.dumps(state))
        self.said += said

    def lines(self, *all_lines: bytes) -> MarkerReader:
        for one in all_lines:
            self.line(one)
        return self

    def growing(self, path: Path, content: bytes, step: int) -> MarkerReader:
        """Read a file that grows by this many bytes, after each write."""
        offset = 0
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(content), step):
                file.write(content[start : start + step])
                offset = self._look(path, offset, None)
        self._look(path, offset, len(content))
        if self._provider.text_output is not None:
            self.said += self._provider.text_output.last_events(self.state)
        return self

    def _look(self, path: Path, offset: int, final: int | None) -> int:
        more = True
        while more:
            piece = read_lines(path, offset, 0, final, 1 << 20)
            for one in piece.lines:
                self.line(one.head, one.whole_size)
            offset, more = piece.offset, piece.more
        return offset

    @property
    def markers(self) -> list[dict[str, Any]]:
        return of_type(self.said, "marker")


def steps_of(case: Case) -> list[int]:
    """Bytes per write. A long text is not written byte by byte, and its interesting part is short anyway."""
    return [1, 2, 7, 1 << 20] if len(case.text) < 1000 else [997, 1 << 20]


def cuts_of(case: Case) -> range:
    size = len(case.text)
    return range(size + 1) if size < 1000 else range(size - 60, size + 1)


def check(case: Case, reader: MarkerReader, how: object) -> None:
    assert len(reader.markers) == case.counts, (case.name, how, reader.said[-5:])
    assert all(M in data["line"] for data in reader.markers)


def deltas(pieces: list[str]) -> list[bytes]:
    return [init(), *(delta(piece) for piece in pieces if piece)]


def in_two(case: Case) -> Iterator[list[bytes]]:
    """Parts and then the complete message, as the CLI writes them, cut at each position."""
    for cut in cuts_of(case):
        yield [*deltas([case.text[:cut], case.text[cut:]]), assistant(text(case.text)), result(case.text)]


def in_half(case: Case) -> Iterator[list[bytes]]:
    """The first part only, then the complete message."""
    for cut in cuts_of(case):
        yield [*deltas([case.text[:cut]]), assistant(text(case.text)), result(case.text)]


def without_a_whole(case: Case) -> Iterator[list[bytes]]:
    pieces = list(case.text) if len(case.text) < 1000 else [case.text]
    yield [*deltas(pieces), result(case.text)]


def whole(case: Case) -> Iterator[list[bytes]]:
    yield [init(), assistant(text(case.text)), result(case.text)]
    yield [init(), assistant(text("Well.")), assistant(text(case.text), message="m2"), result("Well.")]


def only_the_result(case: Case) -> Iterator[list[bytes]]:
    yield [init(), result(case.text)]
    yield [init(), assistant(text("hm")), result(case.text)]
    yield [init(), delta(f"{F}\nhm\n"), result(case.text)]


DELIVERIES = [in_two, in_half, without_a_whole, whole, only_the_result]


@pytest.mark.req("S1-41", "S1-44")
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_program_marker_is_found_in_any_writes(case: Case, tmp_path: Path) -> None:
    for step in steps_of(case):
        check(case, MarkerReader(a_spec("executable")).growing(tmp_path / "out", case.text.encode(), step), step)


@pytest.mark.req("S1-40", "S1-41", "S1-44")
@pytest.mark.parametrize("delivery", DELIVERIES, ids=lambda delivery: delivery.__name__)
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_claude_marker_counts_in_any_kind_of_line(
    case: Case, delivery: Callable[[Case], Iterator[list[bytes]]]
) -> None:
    for lines in delivery(case):
        check(case, MarkerReader(a_spec("claude")).lines(*lines), lines)


@pytest.mark.req("S1-44")
@pytest.mark.parametrize("case", [case for case in TABLE if len(case.text) < 60], ids=lambda case: case.name)
def test_marker_is_found_in_bytewise_output(case: Case, tmp_path: Path) -> None:
    (lines,) = without_a_whole(case)
    content = b"\n".join([*lines[:-1], assistant(text(case.text)), lines[-1], b""])
    check(case, MarkerReader(a_spec("claude")).growing(tmp_path / "out", content, 1), "bytes")


# --- Sources of the marker ----------------------------------------------------------------------------------

SUB: dict[str, Any] = {"parent": "tool1", "subagent_type": "helper"}
ALONE_IN_A_FENCE = f"{F}\n{M}\n{F}\n"
OTHER_SOURCES = {
    "echoed prompt": [line("user", message={"role": "user", "content": [text(f"Do it, then write\n{M}")]})],
    "echoed prompt as a text": [line("user", message={"role": "user", "content": f"Do it, then write\n{M}"})],
    "tool result": [tool_result("t", M)],
    "tool result in blocks": [tool_result("t", [text(f"a\n{M}\n")])],
    "tool result in a fence": [tool_result("t", ALONE_IN_A_FENCE)],
    "tool input": [assistant({"type": "tool_use", "id": "t", "name": "Write", "input": {"content": M}})],
    "thinking": [assistant({"type": "thinking", "thinking": f"I should say\n{M}"})],
    "thinking in parts": [
        part("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": f"{M}\n"}),
    ],
    "sub-agent": [assistant(text(M), **SUB)],
    "sub-agent in a fence": [assistant(text(ALONE_IN_A_FENCE), **SUB)],
    "sub-agent in parts": [delta(f"{M}\n", parent="tool1")],
    "an error's result": [result(M, is_error=True)],
    "the program's own words": [assistant(text(M), model="<synthetic>")],
    "no JSON": [M.encode()],
    "unknown line": [line("novelty", text=M)],
    "system": [line("system", subtype="informational", content=M)],
}


@pytest.mark.req("S1-44")
@pytest.mark.parametrize("name", OTHER_SOURCES)
def test_marker_outside_claude_messages_does_not_count(name: str) -> None:
    reader = MarkerReader(a_spec("claude")).lines(init(), *OTHER_SOURCES[name], result("Fine.", is_error=True))
    assert reader.markers == []


@pytest.mark.req("S1-44")
def test_subagent_does_not_close_fence_of_main_agent() -> None:
    lines = [init(), delta(f"{F}\n"), delta(f"x\n{F}\n", parent="tool1"), delta(f"{M}\n"), delta(f"{F}\n")]
    assert len(MarkerReader(a_spec("claude")).lines(*lines).markers) == 1


def test_fence_ends_with_its_text() -> None:
    """An open fence does not extend to the next message; alone in an open fence, the marker counts."""
    reader = MarkerReader(a_spec("claude")).lines(init(), assistant(text(f"{F}\nx")), assistant(text(M), message="m2"))
    assert len(reader.markers) == 1
    for lines in (
        [assistant(text(f"{F}\n{M}"))],
        [delta(f"{F}\n{M}"), result("x")],
        [delta(f"{F}\n{M}\n"), result("x")],
    ):
        assert len(MarkerReader(a_spec("claude")).lines(init(), *lines).markers) == 1, lines


def test_two_texts_of_one_message_are_two() -> None:
    pieces = [delta(f"{F}\nx\n"), delta(f"{M}\n", index=1)]
    assert len(MarkerReader(a_spec("claude")).lines(init(), *pieces).markers) == 1
    blocks = assistant(text(f"{F}\nx\n"), text(f"{M}\n"))
    assert len(MarkerReader(a_spec("claude")).lines(init(), *pieces, blocks).markers) == 1


@pytest.mark.req("S1-44")
@pytest.mark.parametrize("provider", ["executable", "claude"])
def test_marker_on_standard_error_is_ignored(provider: str) -> None:
    assert MarkerReader(a_spec(provider), "err").lines(M.encode(), assistant(text(M))).markers == []


@pytest.mark.req("S1-B14")
@pytest.mark.parametrize("provider", ["executable", "claude"])
def test_single_run_reports_no_marker(provider: str) -> None:
    spec = a_spec(provider, loop=False)
    assert MarkerReader(spec).lines(F.encode(), M.encode(), F.encode(), assistant(text(M))).markers == []


@pytest.mark.req("S1-41")
@pytest.mark.parametrize("provider", ["executable", "claude"])
def test_only_the_marker_of_the_chain_counts(provider: str) -> None:
    spec = a_spec(provider, marker="ALL DONE")
    wrong, right = (
        [one.encode()] if provider == "executable" else [assistant(text(one))] for one in (M, "**ALL DONE**")
    )
    assert MarkerReader(spec).lines(*wrong).markers == []
    assert len(MarkerReader(spec).lines(*right).markers) == 1


# --- Decisions ----------------------------------------------------------------------------------------------


def after_the_last_iteration(reader: MarkerReader, provider: str, left: Exit) -> Decision:
    """The decision of a loop of two iterations after the second one has ended."""
    status, reason = PROVIDERS[provider].verdict(reader.state, left, None)
    step = Step("a", 2, True, a_spec(provider))
    chain = BoundChain("test", (step,), "/", {})
    last = Outcome("r2", status, reason, left.code, bool(reader.markers))
    history = add(no_history(chain), 0, Outcome("r1", Status.DONE, Reason.EXIT, 0))
    return decide(chain, add(history, 0, last))


@pytest.mark.req("S1-B15")
@pytest.mark.parametrize("left", [Exit(code=0), Exit(code=1), Exit(code=70), Exit(signal=11)], ids=str)
def test_marker_ends_loop_with_any_exit_code(left: Exit) -> None:
    plain = MarkerReader(a_spec("executable")).lines(b"ok", M.encode())
    assert after_the_last_iteration(plain, "executable", left) == Finished(Status.DONE, Reason.MARKER)
    claude = MarkerReader(a_spec("claude")).lines(init(), assistant(text(f"ok\n{M}")), result("ok"))
    assert after_the_last_iteration(claude, "claude", left) == Finished(Status.DONE, Reason.MARKER)
    quoted = MarkerReader(a_spec("executable")).lines(f"say {M}".encode())
    used_up = Finished(Status.FAILED, Reason.MAX_ITERATIONS, 0)
    assert after_the_last_iteration(quoted, "executable", left) == used_up
