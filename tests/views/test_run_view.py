"""The fold of a tree's events that both views draw from."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.cli import plain
from hocket.cli.plain import PlainDisplay, chain_line, lines_of, summary
from hocket.cli.question_prompt import reply_to
from hocket.views.run_view import RunView, StepView

ROOT = "rroot"


def make(run: str, event: str, ts: float = 0.0, /, **data: Any) -> dict[str, Any]:
    return {"v": 1, "seq": 1, "ts": ts, "run": run, "root": ROOT, "type": event, "data": data}


def created(run: str, agent: str, kind: str = "leaf", parent: str | None = ROOT, **data: Any) -> dict[str, Any]:
    return make(run, "run.created", kind=kind, agent=agent, parent=parent, number=7, **data)


def reply(view: RunView, step: StepView) -> str:
    assert step.question is not None
    return reply_to(view, step.question)


def feed(progress: RunView, *events: dict[str, Any]) -> RunView:
    for event in events:
        progress.add(event)
    return progress


LOOP = [
    created(ROOT, "planner -> builder:3", "chain", None),
    created("rp", "planner", step=0),
    make("rp", "run.started"),
    make("rp", "text", text="planned"),
    make("rp", "run.ended", 3.0, status="done", reason="exit"),
    created("rl", "builder", "loop", step=1),
    created("rb1", "builder", parent="rl", step=1, iteration=1),
    created("rb2", "builder", parent="rl", step=1, iteration=2),
    make("rb2", "run.started"),
    make("rb2", "text", text="hammering"),
]


def test_loop_shows_iteration_and_last_output() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    (step,) = progress.active_steps()
    assert (step.agent, step.iterations(), step.last, step.status) == ("builder", "2/3", "hammering", "running")
    assert progress.speaker("rb2") == "builder[2/3]"
    assert progress.speaker("rp") == "planner"


def test_later_step_ends_earlier_ones() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    assert [step.agent for step in progress.finish_earlier_steps()] == ["planner"]
    assert progress.finish_earlier_steps() == []


def test_unannounced_steps_are_appended() -> None:
    progress = feed(RunView(ROOT), *LOOP)
    assert [step.agent for step in progress.steps] == ["planner", "builder"]
    assert progress.speaker("rb2") == "builder[2]"


def test_run_of_an_agent_is_not_a_step() -> None:
    helper = created("rh", "helper", parent="rb2", step=0)
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, helper)
    assert progress.step_of("rh") is None
    assert progress.speaker("rh") == "helper"
    assert progress.steps[0].last == "planned"


def test_marker_does_not_hide_the_last_words() -> None:
    marker = [make("rb2", "text", text="FORKHESTRA_COMPLETE"), make("rb2", "marker", line="FORKHESTRA_COMPLETE")]
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, *marker)
    assert progress.steps[1].last == "hammering"


@pytest.mark.req("S1-B21")
def test_summary_has_a_line_per_step() -> None:
    steps: list[dict[str, Any]] = [
        {"agent": "planner", "status": "done", "reason": "single_run", "iterations": 1, "max_iterations": 1},
        {"agent": "builder", "status": "failed", "reason": "max_iterations", "iterations": 3, "max_iterations": 3},
        {"agent": "qa", "status": "skipped", "reason": None, "iterations": 0, "max_iterations": 2},
    ]
    ended = make(ROOT, "run.ended", 65.0, status="failed", reason="max_iterations", steps=steps)
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3), ("qa", 2)]), *LOOP, ended)
    lines = [line.split() for line in summary(progress, 66.0)]
    assert lines[0][:5] == ["✓", "done", "planner", "1/1", "single_run"]
    assert lines[1][:5] == ["✗", "failed", "builder", "3/3", "max_iterations"]
    assert lines[2][:4] == ["-", "skipped", "qa", "0/2"]
    assert lines[3] == ["✗", "failed", "run", "7", "max_iterations", "1:05"]
    assert "hocket logs 7" in summary(progress, 66.0)[-1]


def test_summary_of_a_running_run_names_commands() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    assert "hocket wait 7" in summary(progress, 1.0)[-1]


def test_single_agent_is_shown_as_a_step() -> None:
    ended = make(ROOT, "run.ended", 2.0, status="failed", reason="exit", exit_code=3)
    progress = feed(RunView(ROOT), created(ROOT, "tool", parent=None), make(ROOT, "run.started"), ended)
    assert progress.steps[0].status == "failed"
    assert lines_of(progress, ended)[0].endswith(" tool failed: exit 3")


def test_plain_lines_have_time_speaker_and_text() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    (line,) = lines_of(progress, make("rb2", "text", text="\x1b[1mEdit\x1b[0m a.py"))
    assert line[8:] == " builder[2/3] Edit a.py"
    (line,) = lines_of(progress, make("rb2", "raw", stream="stderr", text="oops"))
    assert line.endswith("builder[2/3] ! oops")
    (line,) = lines_of(progress, make("rl", "gate", run="rb2", passed=False, exit_code=2, command="make"))
    assert line.endswith("builder[2/3] gate not passed (exit 2): make")
    assert lines_of(progress, make("rb2", "usage", tokens=3)) == []


def test_chain_line_has_arrows() -> None:
    assert chain_line(RunView(ROOT, [("planner", 1), ("builder", 3)])) == "planner → builder:3"


def test_heartbeat_is_printed_during_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    view = PlainDisplay(quiet=False)
    view.idle(progress)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(plain, "HEARTBEAT_SECONDS", 0.0)
    view.idle(progress)
    assert "builder[2/3] … still running" in capsys.readouterr().err


def asking(identity: str = "q1", **more: Any) -> dict[str, Any]:
    question = {"id": identity, "kind": "permission", "tool": "Bash", "input": {"command": "touch x"}, **more}
    return make("rb2", "question", **question)


def test_logged_question_has_its_reply_command() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, asking())
    (line,) = lines_of(progress, asking())
    assert line[8:] == " ? builder[2/3] wants to run Bash: touch x    hocket answer 7 allow/deny"
    (step,) = progress.active_steps()
    assert (step.status, reply(progress, step)) == ("waiting", "hocket answer 7 allow/deny")
    assert summary(progress, 1.0)[-2] == "builder needs you: hocket answer 7 allow/deny"


def test_answered_question_is_no_longer_shown() -> None:
    answered = make("rb2", "answer", id="q1", allow=True, by="operator")
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, asking(), asking("q2"))
    assert reply(progress, progress.steps[1]) == "hocket answer 7 --question q1 allow/deny"
    feed(progress, answered)
    assert (progress.steps[1].status, reply(progress, progress.steps[1])) == ("waiting", "hocket answer 7 allow/deny")
    feed(progress, make("rb2", "answer", id="q2", allow=False, by="operator"))
    assert (progress.steps[1].status, progress.steps[1].question) == ("running", None)


def test_question_of_a_hook_outlives_a_turn() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, asking(), asking("q2", via="hook"))
    feed(progress, make("rb2", "turn.ended", turn=1))
    assert [question.data["id"] for question in progress.questions.values()] == ["q2"]
    answered = make("rb2", "answer", id="q2", allow=None, text=None, by="terminal")
    (line,) = lines_of(feed(progress, answered), answered)
    assert line.endswith(" answered at the terminal")
    assert (progress.steps[1].status, progress.questions) == ("running", {})


def test_session_between_turns_is_idle() -> None:
    ended = make(ROOT, "turn.ended", turn=1, idle=True, result="ready")
    progress = feed(RunView(ROOT), created(ROOT, "planner", parent=None), make(ROOT, "run.started"), ended)
    assert progress.steps[0].status == "waiting"
    assert "waits for a message: hocket attach 7 · hocket send 7" in summary(progress, 1.0)[-1]
    feed(progress, make(ROOT, "turn.started", turn=2))
    assert progress.steps[0].status == "running"


def test_helper_output_has_both_names() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    said = make("rb2", "text", text="found it", agent="Explore", parent="t1")
    (line,) = lines_of(progress, said)
    assert line[8:] == " builder[2/3]/Explore found it"
    assert feed(progress, said).steps[1].last == "Explore: found it"


def test_helper_without_a_name_is_not_the_agent() -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP)
    said = make("rb2", "text", text="found it", agent=None, parent="t1")
    assert lines_of(progress, said)[0].endswith(" builder[2/3]/helper found it")
    assert feed(progress, said).steps[1].last == "helper: found it"


def test_report_of_helper_is_shown_once() -> None:
    progress = feed(RunView(ROOT), created(ROOT, "lead", parent=None))
    shown = []
    for kind, text, mark, more in (
        ("text", "looking", "t1", {}),
        ("text", "a\nb" * 300, "t1", {}),
        ("text", "other", "t2", {}),
        ("member", "a\nb" * 300, "t1", {"status": "completed"}),
        ("member", "only here", "t2", {"status": "completed"}),
        ("member", "other", "t3", {"status": "completed"}),
    ):
        event = make(ROOT, kind, text=text, agent="Explore", parent=mark, **more)
        progress.add(event)
        shown.append([line[9:] for line in lines_of(progress, event)])
    assert shown[3:] == [
        ["lead/Explore completed"],
        ["lead/Explore completed: only here"],
        ["lead/Explore completed: other"],
    ]


def test_tool_call_is_the_last_output() -> None:
    doing = make("rb2", "tool.started", id="t", name="Bash", input={"command": "make\n test"})
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, doing)
    assert progress.steps[1].last == "Bash: make test"


def test_run_with_open_question_is_waiting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    progress = feed(RunView(ROOT, [("planner", 1), ("builder", 3)]), *LOOP, asking())
    monkeypatch.setattr(plain, "HEARTBEAT_SECONDS", 0.0)
    PlainDisplay(quiet=False).idle(progress)
    assert "builder[2/3] … still waiting for an answer" in capsys.readouterr().err


# --- Groups, limits, gates ----------------------------------------------------------------------------------

STEPS = [
    {"agent": "planner", "iterations": 1, "loop": False, "group": None},
    {"agent": "reviewer", "iterations": 1, "loop": False, "group": 2},
    {"agent": "qa", "iterations": 3, "loop": True, "group": 2},
    {"agent": "shipper", "iterations": 1, "loop": False, "group": None},
]
GROUP = [
    created(ROOT, "planner -> (reviewer, qa:3) -> shipper", "chain", None, steps=STEPS),
    created("rp", "planner", step=0),
    make("rp", "run.ended", 1.0, status="done", reason="exit"),
    created("rg", "(reviewer, qa:3)", "group", step=1),
    created("rr", "reviewer", parent="rg", step=1),
    make("rr", "run.started"),
    created("rl", "qa", "loop", parent="rg", step=2),
    created("rq", "qa", parent="rl", step=2, iteration=1),
    make("rq", "run.started"),
]
REVIEWED = make("rr", "run.ended", 2.0, status="done", reason="exit")


def test_chain_line_has_groups() -> None:
    assert chain_line(feed(RunView(ROOT), *GROUP)) == "planner → (reviewer, qa:3) → shipper"


def test_started_group_members_are_running() -> None:
    progress = feed(RunView(ROOT), *GROUP)
    assert [step.agent for step in progress.active_steps()] == ["reviewer", "qa"]
    assert progress.speaker("rq") == "qa[1/3]"
    feed(progress, REVIEWED)
    assert [step.agent for step in progress.active_steps()] == ["qa"]
    assert progress.steps[1].status == "done"


def test_group_members_are_reported_together() -> None:
    progress = feed(RunView(ROOT), *GROUP, REVIEWED)
    assert [step.agent for step in progress.finish_earlier_steps()] == ["planner"]
    feed(progress, make("rl", "run.ended", 4.0, status="done", reason="marker", iterations=1))
    assert (progress.steps[2].status, progress.steps[2].reason) == ("done", "marker")
    assert progress.finish_earlier_steps() == []
    feed(progress, created("rs", "shipper", step=3))
    assert [step.agent for step in progress.finish_earlier_steps()] == ["reviewer", "qa"]


def test_end_of_chain_reports_remaining_steps() -> None:
    ended = make(ROOT, "run.ended", 5.0, status="stopped", reason="stopped")
    progress = feed(RunView(ROOT), *GROUP, REVIEWED, ended)
    assert [step.agent for step in progress.finish_earlier_steps()] == ["planner", "reviewer", "qa", "shipper"]
    assert progress.steps[3].status == "skipped"
    assert len(summary(progress, 9.0)) == len(progress.steps) + 2
    assert [line.strip() for line in summary(progress, 9.0, steps_too=False)] == [
        "■ stopped  run 7  0:05",
        "hocket show 7 · hocket logs 7 · hocket resume 7",
    ]


def test_summary_joins_group_members() -> None:
    lines = summary(feed(RunView(ROOT), *GROUP), 3.0)
    assert [line.split()[2] for line in lines[1:3]] == ["┌", "└"]


def test_step_usage_is_the_sum_of_iterations() -> None:
    used = [
        make("rq", "usage", tokens=100, cost_usd=0.5),
        make("rq", "usage", tokens=150, estimate=True),
        make("rq", "run.ended", 3.0, status="failed", reason="exit", tokens=200, cost_usd=None),
        created("rq2", "qa", parent="rl", step=2, iteration=2),
        make("rq2", "usage", tokens=10, cost_usd=0.25),
        make("rr", "usage", tokens=7),
    ]
    progress = feed(RunView(ROOT), *GROUP, *used)
    assert (progress.steps[2].tokens, progress.steps[2].cost) == (210, 0.75)
    lines = summary(progress, 4.0)
    assert lines[2].endswith("210 tokens  $0.7500")
    assert lines[1].endswith("7 tokens    unpriced")
    assert lines[0].endswith("-           -")
    steps = [{**step, "status": "done", "reason": "x", "max_iterations": 1} for step in STEPS]
    total = make(ROOT, "run.ended", 5.0, status="failed", reason="budget", tokens=217, cost_usd=0.75, steps=steps)
    assert summary(feed(progress, total), 5.0)[4].endswith("budget  0:05  $0.7500, 217 tokens, some of it unpriced")


def test_summary_marks_estimated_cost() -> None:
    used = make("rq", "usage", tokens=100, cost_usd=0.5, cost_estimated=True)
    progress = feed(RunView(ROOT), *GROUP, used)
    assert summary(progress, 4.0)[2].endswith("100 tokens  ~$0.5000")
    steps = [{**step, "status": "done", "reason": "x", "max_iterations": 1} for step in STEPS]
    steps[2] |= {"tokens": 100, "cost_usd": 0.5, "cost_estimated": True}
    total = {"tokens": 100, "cost_usd": 0.5, "cost_estimated": True, "steps": steps}
    lines = summary(feed(progress, make(ROOT, "run.ended", 5.0, status="done", reason="x", **total)), 5.0)
    assert lines[2].endswith("100 tokens  ~$0.5000")
    assert lines[4].endswith("~$0.5000, 100 tokens")


LIMITED = [
    make("rq", "run.ended", 3.0, status="failed", reason="rate_limited"),
    make(ROOT, "parked", until=4e9, reason="rate_limited", text="qa: the usage limit is reached"),
]


def test_parked_chain_shows_what_it_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = feed(RunView(ROOT), *GROUP, REVIEWED, *LIMITED)
    assert progress.steps[2].status == "parked"
    (line,) = lines_of(progress, LIMITED[-1])
    assert line[8:].startswith(" run 7 waits for the usage limit until 2096-10-0")
    assert "waits for the usage limit until 2096-10-0" in summary(progress, 4.0)[-1]
    monkeypatch.setattr(plain, "HEARTBEAT_SECONDS", 0.0)
    PlainDisplay(quiet=False).idle(progress)
    assert "run 7 … still waits for the usage limit until" in capsys.readouterr().err
    (line,) = lines_of(progress, make(ROOT, "unparked"))
    assert line.endswith("run 7 continues")
    assert feed(progress, make(ROOT, "unparked")).parked is None


def test_overload_is_not_called_a_limit() -> None:
    (line,) = lines_of(feed(RunView(ROOT), *GROUP), make(ROOT, "parked", until=4e9, reason="overloaded", text="x"))
    assert line.endswith(": the service is overloaded or unreachable")


def test_failed_gate_shows_the_end_of_output() -> None:
    output = "".join(f"line {number}\n" for number in range(20)) + "\x1b[31mred\x1b[0m\n\n"
    data = {"run": "rr", "step": 1, "exit_code": 1, "command": "make test", "output": output}
    failed = make("rg", "gate", passed=False, **data)
    progress = feed(RunView(ROOT), *GROUP, REVIEWED, failed)
    lines = [line[9:] for line in lines_of(progress, failed)]
    assert lines[0] == "reviewer gate not passed (exit 1): make test"
    assert lines[1] == "reviewer | …"
    assert lines[-1] == "reviewer | red"
    assert len(lines) == 10
    assert (progress.steps[1].status, progress.steps[1].reason) == ("failed", "gate")
    (line,) = lines_of(progress, make("rg", "gate", passed=True, **data))
    assert line.endswith("reviewer gate passed: make test")


def test_running_gate_is_shown_until_its_verdict() -> None:
    began = make("rg", "gate.started", run="rr", step=1, command="make test")
    progress = feed(RunView(ROOT), *GROUP, REVIEWED, began)
    step = progress.steps[1]
    assert (step.gate, step in progress.active_steps()) == ("gate: make test", True)
    (line,) = lines_of(progress, began)
    assert line.endswith("reviewer gate: make test")
    feed(progress, make("rg", "gate", run="rr", step=1, passed=True, command="make test"))
    assert (step.gate, step.status) == ("", "done")


def test_heartbeat_names_the_running_gate() -> None:
    began = make(ROOT, "gate.started", run=ROOT, step=0, command="make test")
    single = feed(RunView(ROOT), created(ROOT, "tool", parent=None), make(ROOT, "run.started"), began)
    assert plain.heartbeat(single, 5.0) == "tool … still running: gate: make test, 0:05"


def test_usage_includes_runs_of_agents() -> None:
    used = [make("rq", "usage", tokens=100, cost_usd=0.5), created("rh", "helper", parent="rq")]
    progress = feed(RunView(ROOT), *GROUP)
    assert progress.usage() == (None, None)
    assert feed(progress, *used, make("rh", "usage", tokens=20)).usage() == (0.5, 120)


def test_helper_is_shown_while_it_works() -> None:
    mark = {"parent": "t1", "agent": "test-runner"}
    progress = feed(RunView(ROOT), *GROUP, make("rq", "member", 2.0, status="started", id="k", text="", **mark))
    (helper,) = progress.steps[2].helpers.values()
    feed(progress, make("rq", "tool.started", 3.0, name="Bash", input={"command": "pytest"}, **mark))
    assert (helper.agent, helper.started_at, helper.last) == ("test-runner", 2.0, "Bash: pytest")
    assert (progress.steps[2].last, progress.steps[2].output_at) == ("", 3.0)
    feed(progress, make("rq", "member", 4.0, status="completed", id="k", **mark))
    assert progress.steps[2].helpers == {}
    feed(progress, make("rq", "text", 5.0, text="late", **mark))
    assert progress.steps[2].last == "test-runner: late"


def test_loop_is_named_by_its_agent() -> None:
    progress = feed(RunView(ROOT), *GROUP, created("rn", "./a/plan.md -> b", "chain", parent="rr"))
    text = f"/p is not trusted: disabled {'x' * 300}; to review and approve it: hocket trust /p"
    first, command = lines_of(progress, make("rl", "notice", kind="start", text=text))
    assert first.partition(" ")[2].startswith("qa start: /p is not trusted: disabled xxx")
    assert command.partition(" ")[2] == "qa     hocket trust /p"
    assert [progress.speaker(run) for run in ("rg", "rn", ROOT)] == ["(reviewer, qa:3)", "plan -> b", "run 7"]


def test_equal_members_of_a_group_are_numbered() -> None:
    names = ["./lead", "talker", "/opt/talker", "other", "talker"]
    steps = [{"agent": name, "iterations": 1, "group": 2 if 0 < at < 4 else None} for at, name in enumerate(names)]
    progress = feed(
        RunView(ROOT),
        created(ROOT, "c", kind="chain", parent=None, steps=steps),
        created("g", "c", kind="group", parent=ROOT),
        *(created(f"t{at}", "talker", parent="g", step=at, iteration=None) for at in (1, 2)),
    )
    assert [step.label for step in progress.steps] == ["lead", "talker#1", "talker#2", "other", "talker"]
    assert [progress.speaker(run) for run in ("t1", "t2")] == ["talker#1", "talker#2"]
    assert chain_line(progress) == "lead → (talker, talker, other) → talker"


def test_summary_fits_the_terminal() -> None:
    progress = feed(RunView(ROOT), *GROUP)
    progress.steps[0].label = "a-name-that-is-much-longer-than-any-name-should-be"
    assert "a-name-that-is-much-lon…" in summary(progress, 3.0)[0]
    assert max(map(len, summary(progress, 3.0, 40)[:4])) <= 40


def test_folded_log_has_a_section_per_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = [
        *GROUP[:2],
        make("rp", "run.started"),
        make("rp", "run.ended", 1.0, status="done", reason="exit"),
        *GROUP[2:],
        make("rr", "run.started"),
        make("rq", "run.started"),
    ]
    progress = RunView(ROOT)
    with PlainDisplay(quiet=False, folding=True) as view:
        for event in events:
            progress.add(event)
            view.show(progress, event)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("::")]
    assert told == ["::group::planner", "::endgroup::", "::group::reviewer, qa", "::endgroup::"]


def test_iteration_without_progress_is_logged() -> None:
    progress = feed(RunView(ROOT), *GROUP)
    (line,) = lines_of(progress, make("rl", "progress", run="rq", step=2, changed=False))
    assert "qa[1/3] no progress" in line
    assert lines_of(progress, make("rl", "progress", run="rq", step=2, changed=True)) == []
    assert lines_of(progress, make("rl", "progress", run=None, step=2, changed=None)) == []


def test_heartbeat_names_every_running_member(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "HEARTBEAT_SECONDS", 0.0)
    PlainDisplay(quiet=False).idle(feed(RunView(ROOT), *GROUP))
    assert "reviewer, qa[1/3] … still running" in capsys.readouterr().err


def test_begin_of_each_iteration_is_logged() -> None:
    progress = feed(RunView(ROOT), *GROUP)
    (line,) = lines_of(progress, make("rq", "run.started"))
    assert line.endswith(" qa[1/3] begins")
    assert lines_of(progress, make("rl", "run.started")) == []
    single = feed(RunView(ROOT), created(ROOT, "tool", parent=None))
    assert lines_of(single, make(ROOT, "run.started")) == []


@pytest.mark.req("S5-47")
def test_lead_with_open_tasks_is_never_idle() -> None:
    view = feed(
        RunView(ROOT),
        created(ROOT, "claude", "lead", None),
        make(ROOT, "run.started"),
        make(ROOT, "task.changed", team="t", id="1", status="pending", open=1),
        make(ROOT, "turn.ended", idle=True),
    )
    (step,) = view.steps
    assert (step.status, step.state()) == ("waiting", "team")
    view.add(make(ROOT, "task.changed", team="t", id="1", status="completed", open=0))
    assert step.state() == "waiting"


def test_teammates_are_no_helpers_of_their_lead() -> None:
    view = feed(RunView(ROOT), created(ROOT, "claude", "lead", None), make(ROOT, "run.started"))
    joined = make(ROOT, "member", team="t", id="alice@t", name="alice", agent="reviewer", status="started")
    view.add(joined)
    assert view.steps[0].helpers == {}
    assert view.speaker_of(joined) == "claude"
