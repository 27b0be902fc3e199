"""The live view, seen through a real pseudo-terminal and a terminal emulator."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.pseudo_terminal import COLUMNS, ROWS, Terminal
from patience import PATIENCE
from rich.console import Console
from scripted_claude import install_claude
from world import Bin, Hocket

from hocket.cli.question_prompt import QuestionPrompt
from hocket.cli.terminal import frame, question_block
from hocket.views.run_view import RunView
from hocket.views.text import strip_controls

pytestmark = pytest.mark.shared_server

WIDER = [*range(0x2630, 0x2638), *range(0x268A, 0x2690), *range(0x4DC0, 0x4E00), *range(0x1D300, 0x1D357)]
"""Two columns wide since Unicode 16, and one to those who know an older one."""
Start = Callable[..., "Terminal"]


@pytest.fixture
def terminal(home: Path, project: Path, agent: Bin) -> Iterator[Start]:
    agent("quick", "print('a plan of six steps')")
    agent("loud", "print('\\x1b]0;pwned\\x07\\x1b[2Jtitle', flush=True)")
    agent("forever", "import time\nprint('hammering', flush=True)\ntime.sleep(600)")
    started: list[Terminal] = []

    def start(*args: str, **more: Any) -> Terminal:
        started.append(Terminal(*args, cwd=project, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_finished_steps_stay_in_the_scroll_back(terminal: Start, hocket: Hocket) -> None:
    view = terminal("run", "quick -> forever:3 -> loud", "-p", f"Mend all of it,\n{'and say so ' * 20}")
    view.wait_for("hammering")
    asked, *lines = view.text().splitlines()
    assert asked.startswith(f"● run {hocket.number()}  > Mend all of it, and say so and")
    assert asked.endswith("…")
    assert lines[0] == "  quick → forever:3 → loud"
    assert lines[1].split()[:3] == ["✓", "quick", "1/1"]
    assert lines[1].endswith("a plan of six steps")
    assert lines[2].split()[1:3] == ["forever", "1/3"]
    assert lines[3].split() == ["·", "loud", "-/1"]
    assert "^C asks: detach or stop · ^C^C stops" in lines[4]
    view.press(b"\x03")
    view.wait_for("d detach, s stop, Enter continue")
    assert not view.is_canonical(), "an echoed key would move the view"
    view.press(b"\r")
    view.wait_for("^C asks: detach or stop · ^C^C stops")
    view.press(b"\x03")
    view.wait_for("d detach")
    view.press(b"s")
    assert view.end() == 130
    text = view.text()
    rows = [line.split()[:3] for line in text.splitlines()]
    steps = [["✓", "quick", "1/1"], ["■", "forever", "1/3"], ["-", "loud", "-/1"]]
    assert [rows.count(step) for step in steps] == [1, 1, 1], "each step is printed once"
    assert text.count(" 1/3 ") == 1
    assert f"■ stopped  run {hocket.number()}  0:0" in text
    assert f"hocket logs {hocket.number()}" in text
    assert "d detach" not in text


def test_second_interrupt_stops_the_run(terminal: Start) -> None:
    view = terminal("run", "forever")
    view.wait_for("hammering")
    view.press(b"\x03")
    view.wait_for("d detach")
    view.press(b"\x03")
    assert view.end() == 130


def test_key_directly_after_the_interrupt_counts(terminal: Start, hocket: Hocket) -> None:
    """It is typed before the terminal is taken, which must not drop it."""
    view = terminal("run", "forever")
    view.wait_for("hammering")
    view.press(b"\x03d")
    assert view.end() == 3
    assert f"run {hocket.number()} continues" in view.text()


def test_interrupt_offers_detach_in_line_mode(terminal: Start, hocket: Hocket) -> None:
    view = terminal("run", "forever", "--plain")
    view.wait_for("hammering")
    view.press(b"\x03")
    view.wait_for("d detach, s stop, Enter continue")
    view.press(b"\r")
    view.wait_for(f"run {hocket.number()} continues")
    view.press(b"\x03")
    view.wait_until(lambda: view.text().count("d detach") == 2)
    view.press(b"\x03")
    assert view.end() == 130


def test_detaching_keeps_the_run_and_restores_the_terminal(terminal: Start, hocket: Hocket) -> None:
    view = terminal("run", "forever")
    view.wait_for("hammering")
    view.press(b"\x03")
    view.wait_for("d detach")
    view.press(b"d")
    assert view.end() == 3
    assert f"run {hocket.number()} continues: hocket attach {hocket.number()}" in view.text()
    assert not view.screen.cursor.hidden
    listing = terminal("ps")
    assert listing.end() == 0
    assert "● running" in listing.text()


def test_notice_keeps_the_command_to_type(terminal: Start, project: Path, agent: Bin) -> None:
    install_claude(agent.folder)
    far = project / ("a-folder-with-a-long-name-" * 4)
    (far / ".claude" / "agents").mkdir(parents=True)
    (far / ".claude" / "agents" / "builder.md").write_text("---\nname: builder\ndescription: x\n---\nBuild.\n")
    (far / "CLAUDE.md").write_text("x")
    view = terminal("run", "builder:2", "-p", "hi", "--cwd", str(far))
    assert view.end() == 1
    text = "".join(line.ljust(COLUMNS) for line in view.text().splitlines())
    assert " builder start: " in text
    assert "is not trusted: disabled" in " ".join(text.split())
    assert f" builder     hocket trust {far} " in text
    assert "max_iterations · you said: hi" in text


def test_agents_cannot_steer_the_terminal(terminal: Start) -> None:
    view = terminal("run", "loud")
    assert view.end() == 0
    assert b"pwned" not in view.received
    assert b"\x1b[2J" not in view.received
    assert "title" in view.text()


def test_no_color_keeps_the_live_view(terminal: Start) -> None:
    view = terminal("run", "quick", NO_COLOR="1")
    assert view.end() == 0
    assert b"\x1b[3" not in view.received
    assert b"\x1b[?25l" in view.received


@pytest.mark.parametrize(("args", "env"), [(["--plain"], {}), ([], {"TERM": "dumb"})])
def test_plain_output_has_no_escape_codes(terminal: Start, args: list[str], env: dict[str, str]) -> None:
    view = terminal("run", "quick", *args, **env)
    assert view.end() == 0
    assert b"\x1b" not in view.received
    assert "quick a plan of six steps" in view.text()


def asking(terminal: Start, agent: Bin, words: str = "ask me", **size: int) -> Terminal:
    install_claude(agent.folder)
    view = terminal("run", "claude", "-p", words, **size)  # on a terminal questions are asked by default
    view.wait_for("waiting 0:")
    return view


def press_when_it_counts(view: Terminal, key: bytes, until: str) -> None:
    """Right after a question has appeared keys mean nothing, so it is pressed again until something happens."""
    deadline = time.monotonic() + PATIENCE
    while until not in view.text():
        view.press(key)
        assert (view.read_for(0.3) and time.monotonic() < deadline) or until in view.text(), view.text()


def test_key_answers_the_question_in_the_prompt(terminal: Start, agent: Bin) -> None:
    view = asking(terminal, agent)
    lines = view.text().splitlines()
    top = next(place for place, line in enumerate(lines) if line.startswith("╭"))
    assert lines[top - 1].startswith("◆  claude")
    assert lines[top + 1].startswith("│ claude wants to run Bash: touch x0 ")
    assert lines[top + 2].startswith("│ [a] allow once   [d] deny…   waiting 0:0")
    assert lines[top + 3] == "╰" + lines[top][1:-1] + "╯"
    assert "^C asks" in lines[top + 4]
    assert b"\x07" in view.received
    press_when_it_counts(view, b"a", "allowed by you")
    assert view.end() == 0
    text = view.text()
    assert "? claude wants to run Bash: touch x0\n" in text
    assert "claude allowed by you" in text
    assert "you said: ask me [allowed touch x0]" in text
    assert "╭" not in text


def test_key_allows_by_the_suggested_rule(terminal: Start, agent: Bin) -> None:
    view = asking(terminal, agent, "ask by rule")
    assert "│ [a] allow once   [A] allow Bash(touch *)   [d] deny…   waiting 0:00 │" in view.text()
    press_when_it_counts(view, b"A", "allowed by you, always: Bash(touch *)")
    assert view.end() == 0
    assert "[allowed touch x1]" in view.text()


def test_denial_may_have_a_reason(terminal: Start, agent: Bin) -> None:
    view = asking(terminal, agent)
    press_when_it_counts(view, b"d", "deny, because:")
    view.press("nöt therez\x7f".encode())
    view.wait_for("deny, because: nöt there▏")
    view.press(b"\r")
    assert view.end() == 0
    assert "claude denied by you: nöt there" in view.text()
    assert "[nöt there]" in view.text()


def test_question_is_answered_by_text_or_option(terminal: Start, agent: Bin) -> None:
    view = asking(terminal, agent, "choose")
    assert "│ claude asks: Which colour? (1 Red, 2 Blue) " in view.text()
    assert "│ [1-2] choose   [t] answer…   [d] deny…" in view.text()
    press_when_it_counts(view, b"t", "answer: ▏")
    view.press(b"\x1b")
    view.wait_for("[1-2] choose")
    view.press(b"2")
    assert view.end() == 0
    assert "[Which colour? Blue]" in view.text()


def test_answer_from_elsewhere_removes_the_box(terminal: Start, agent: Bin, hocket: Hocket) -> None:
    view = asking(terminal, agent, "ask and hold")
    hocket("answer", hocket.number(2), "deny", "-m", "not today")
    view.wait_for("claude denied by operator: not today")
    view.wait_until(lambda: "╭" not in view.text())
    view.press(b"\x03")
    view.wait_for("d detach")
    view.press(b"s")
    assert view.end() == 130


def test_several_questions_are_answered_one_by_one(terminal: Start, agent: Bin) -> None:
    view = asking(terminal, agent, "ask twice")
    view.wait_for("[n] next of 2")
    assert "│ claude wants to run Bash: touch x0" in view.text()
    press_when_it_counts(view, b"n", "│ claude wants to run Bash: touch x1")
    press_when_it_counts(view, b"a", "│ claude wants to run Bash: touch x0")
    press_when_it_counts(view, b"a", "claude allowed by you\n? claude wants to run Bash: touch x0")
    assert view.end() == 0
    assert all(f"allowed touch x{number}" in view.text() for number in (0, 1))


@pytest.mark.parametrize("gap", ["\n  | ", ""], ids=["its second line", "its first line"])
def test_question_rows_are_indented(gap: str) -> None:
    passing = "20:04:36 planner allowed by you"
    rows = question_block(
        f"? planner wants to run Bash: ls{gap}{'x' * 30}{' ' * 70}{passing}", "hocket answer 3", 80
    ).plain
    first, *others = rows.split("\n")
    assert passing in rows
    assert all(row.startswith("  ") and len(row) <= 80 for row in others), others
    assert (first[:2], others[-1]) == ("? ", "    hocket answer 3")


def test_long_question_is_never_cut(terminal: Start, agent: Bin) -> None:
    install_claude(agent.folder, "touch " + 290 * "xy " + "the end of it")
    view = terminal("run", "claude", "-p", "ask me", rows=12)
    view.wait_for("… complete above")
    view.wait_until(lambda: "^C asks" in view.text().splitlines()[-1], "the block does not end with its help")
    # Above the box, and maybe above the screen by now.
    assert "the end of it" in " ".join(strip_controls(view.received.decode(errors="replace")).split())
    assert "[a] allow once" in view.text()


def test_question_too_large_after_resize_is_printed_once(terminal: Start, agent: Bin) -> None:
    install_claude(agent.folder, "touch " + 90 * "xy " + "the end of it")
    view = terminal("run", "claude", "-p", "ask me")
    view.wait_for("waiting 0:00")
    assert "complete above" not in view.text()
    printed = b"? claude wants to run Bash: touch xy"
    assert printed not in view.received
    for rows in (9, 8, 9):
        view.resize(rows)
        view.wait_for("… complete above")
        assert view.received.count(printed) == 1
    view.resize(ROWS)
    press_when_it_counts(view, b"a", "allowed by you")
    assert view.end() == 0
    assert view.received.count(printed) == 1


def test_reply_command_is_shown_when_stdin_is_piped(terminal: Start, agent: Bin, hocket: Hocket) -> None:
    install_claude(agent.folder, "touch " + 50 * "xy " + "the end of it")
    view = terminal("run", "claude", "-p", "-", stdin=b"ask me")
    view.wait_for("◆  claude")
    text = view.text()
    assert "? claude wants to run Bash: touch xy xy" in text
    assert "the end of it" in " ".join(text.split())
    line = f"hocket answer {hocket.number(2)} allow/deny"
    assert f"\n    {line}\n" in text
    assert next(line for line in text.splitlines() if line.startswith("◆")).endswith(line)
    assert "╭" not in text
    view.press(b"\x03")
    view.wait_for("d detach")
    view.press(b"d")
    assert view.end() == 3
    assert f"claude needs you: {line}\nrun {hocket.number()} continues" in view.text()


def test_ctrl_c_over_a_question_restores_the_terminal(terminal: Start, agent: Bin, hocket: Hocket) -> None:
    view = asking(terminal, agent)
    assert not view.is_canonical()
    view.press(b"\x03")
    view.wait_for("d detach, s stop, Enter continue")
    view.press(b"d")
    assert view.end() == 3
    assert view.is_canonical()
    chain, claude = hocket.number(1), hocket.number(2)
    assert f"claude needs you: hocket answer {claude} allow/deny\nrun {chain} continues" in view.text()


@pytest.mark.parametrize("rows", [3, ROWS])
def test_ctrl_c_keys_replace_prompt_keys(terminal: Start, agent: Bin, rows: int) -> None:
    """Both have a `d`, and only one of them is meant."""
    view = asking(terminal, agent, rows=rows)
    view.wait_for("^C asks: detach or stop · ^C^C stops")
    assert "[d] deny…" in view.text()
    view.press(b"\x03")
    view.wait_for("d detach, s stop, Enter continue")
    view.wait_until(lambda: "[d] deny" not in view.text(), "two keys are offered")
    view.press(b"\r")
    view.wait_for("[d] deny…")
    assert "Enter continue" not in view.text()
    view.press(b"\x03d")
    assert view.end() == 3


def test_unanswerable_question_has_no_box(terminal: Start, agent: Bin) -> None:
    install_claude(agent.folder)
    view = terminal("run", "claude", "-p", "ask me", "--on-question", "fail")
    assert view.end() == 4
    assert "not answered (--on-question fail): the run ends" in " ".join(view.text().split())
    assert "hocket answer" not in view.text()
    assert "╭".encode() not in view.received


def test_group_members_are_shown_until_all_end(terminal: Start, hocket: Hocket) -> None:
    view = terminal("run", "quick -> (quick, forever:3) -> loud", "--until", "echo why; test ! -f never || exit 1")
    view.wait_for("hammering")
    # All rows are taken away before they are drawn anew, from the top: with the last one all are there.
    view.wait_until(lambda: all(row in view.text() for row in ("✓  ┌ quick", "-/1")))
    lines = view.text().splitlines()
    assert lines[0].startswith(f"● run {hocket.number()}  quick → (quick, forever:3) → loud")
    assert lines[1].split()[:3] == ["✓", "quick", "1/1"]
    assert lines[2].split()[:4] == ["✓", "┌", "quick", "1/1"]
    assert lines[3].split()[1:4] == ["└", "forever", "1/3"]
    assert lines[4].split() == ["·", "loud", "-/1"]
    view.press(b"\x03")
    view.wait_for("d detach")
    view.press(b"\x03")
    assert view.end() == 130
    rows = [line.split()[:4] for line in view.text().splitlines()]
    assert rows.count(["✓", "┌", "quick", "1/1"]) == rows.count(["■", "└", "forever", "1/3"]) == 1


def test_failed_gate_shows_its_output(terminal: Start) -> None:
    view = terminal("run", "quick", "--until", "echo two tests fail; exit 1")
    assert view.end() == 1
    assert "quick gate not passed (exit 1): echo two tests fail; exit 1" in view.text()
    assert "quick | two tests fail" in view.text()


def event(run: str, kind: str, ts: float = 0.0, /, **data: object) -> dict[str, object]:
    return {"ts": ts, "run": run, "type": kind, "data": data}


def painted(progress: RunView, now: float, columns: int, offer: str = "") -> list[str]:
    console = Console(width=columns, file=io.StringIO(), no_color=True)
    console.print(frame(progress, now, columns, offer=offer))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


@pytest.mark.parametrize("columns", [40, 80])
def test_wide_question_is_never_cut(columns: int) -> None:
    letters = "".join(map(chr, WIDER))
    progress = spending()
    progress.add(
        event("b", "question", id="q", kind="permission", tool="Bash", input={"command": f"echo {letters} end"})
    )
    prompt = QuestionPrompt()
    prompt.update(progress, 0.0)
    console = Console(width=columns, file=io.StringIO(), no_color=True)
    console.print(frame(progress, 1.0, columns, prompt=prompt.lines(columns, 99, 1.0)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "".join(one for one in text if one in letters) == letters


def test_offer_is_never_cut_off() -> None:
    lines = painted(spending(), 90.0, 24, "d detach, s stop, Enter continue")
    assert [line.rstrip() for line in lines[-2:]] == ["d detach, s stop, Enter", "continue"]


def spending() -> RunView:
    """A chain that has used something: its second step is at work, with a helper."""
    progress = RunView("r")
    steps = [{"agent": "planner", "iterations": 1}, {"agent": "builder", "iterations": 3}]
    for one in (
        event("r", "run.created", kind="chain", agent="c", number=42, steps=steps, budget_usd=5.0),
        event("p", "run.created", kind="leaf", agent="planner", parent="r", step=0),
        event("p", "usage", tokens=12_400, cost_usd=0.09),
        event("b", "run.created", 10.0, kind="leaf", agent="builder", parent="r", step=1, iteration=2),
        event("b", "run.started", 10.0),
        event("b", "usage", 10.0, tokens=88_000, cost_usd=0.61),
        event("b", "tool.started", 78.0, name="Edit", input={"file_path": "src/session.py"}),
    ):
        progress.add(one)
    return progress


def test_usage_and_silence_are_shown_by_step() -> None:
    lines = painted(spending(), 82.0, 100)
    assert lines[1].split()[1:7] == ["builder", "2/3", "1:12", "88.0k", "tok", "$0.61"]
    assert lines[1].rstrip().endswith("  Edit: src/session.py  4s")
    assert lines[2].rstrip() == "1:22  ·  100.4k tok  ·  $0.70 of $5.00  ·  ^C asks: detach or stop · ^C^C stops"


def test_helper_has_a_line_below_its_step() -> None:
    progress = spending()
    progress.add(event("b", "member", 73.0, status="started", parent="t", agent="test-runner", text="run the tests"))
    assert painted(progress, 82.0, 100)[2].split() == ["└", "test-runner", "0:09", "run", "the", "tests"]


def test_running_gate_replaces_the_last_output() -> None:
    progress = spending()
    progress.add(event("b", "run.ended", 80.0, status="done", reason="exit"))
    progress.add(event("r", "gate.started", 80.0, run="b", step=1, command="make test"))
    assert painted(progress, 82.0, 100)[1].rstrip().endswith("gate: make test  2s")


def test_long_name_keeps_columns_aligned() -> None:
    progress = spending()
    progress.steps[0].label = "planner-of-everything-under-the-sun"
    first, second, *_ = painted(progress, 82.0, 100)
    assert "planner-of-everything-u…" in first
    assert first.index(" tok") == second.index(" tok")
    assert max(map(len, painted(progress, 82.0, 40))) <= 40


def test_parked_chain_shows_when_it_continues() -> None:
    progress = RunView("r", [("builder", 3)])
    progress.add({"ts": 0.0, "run": "r", "type": "parked", "data": {"until": 7000.0, "reason": "rate_limited"}})
    console = Console(width=80, file=io.StringIO(), no_color=True)
    console.print(frame(progress, 1000.0, 80))
    painted = console.file.getvalue()  # type: ignore[attr-defined]
    assert "‖  waits for the usage limit until " in painted
    assert ", in 1:40:00" in painted
