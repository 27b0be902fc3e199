"""Draw ``run.svg`` beside this file, with the code that draws the live view: ``python docs/img/run.py``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from hocket.cli.format import paint_status
from hocket.cli.plain import summary
from hocket.cli.terminal import frame, heading, step_line
from hocket.views.run_view import RunView

COLUMNS = 86
COMMAND = "hocket run 'planner -> builder:3 -> reviewer' -p 'Expire stale sessions'"
PROMPT, RESULT = "Expire stale sessions", "Sessions now expire; one note about naming, nothing that blocks."
FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
NAMES = ("planner", "builder", "reviewer")
STEPS = [{"agent": name, "iterations": 3 if name == "builder" else 1, "group": None} for name in NAMES]
ENDS = [("single_run", 1, 1), ("marker", 2, 3), ("single_run", 1, 1)]


def event(run: str, kind: str, ts: float, /, **data: Any) -> dict[str, Any]:
    return {"run": run, "type": kind, "ts": ts, "data": data}


def begin(run: str, step: int, iteration: int | None, ts: float, said: str) -> list[dict[str, Any]]:
    place = {"kind": "leaf", "agent": NAMES[step], "parent": "root", "step": step, "iteration": iteration}
    return [event(run, "run.created", ts, **place), event(run, "run.started", ts), event(run, "text", ts, text=said)]


def end(run: str, ts: float) -> dict[str, Any]:
    return event(run, "run.ended", ts, status="done", reason="exit")


BEGUN = [
    event("root", "run.created", 0.0, kind="chain", agent="c", number=1, steps=STEPS, prompt=PROMPT),
    *(*begin("p", 0, None, 0.0, "plan written, 6 steps"), end("p", 48.0)),
    *(*begin("b1", 1, 1, 48.0, "pass 1"), end("b1", 95.0)),
    *begin("b2", 1, 2, 95.0, "pytest -q tests/test_auth.py"),
]
REPORT = [
    {"agent": name, "status": "done", "reason": reason, "iterations": done, "max_iterations": most}
    for name, (reason, done, most) in zip(NAMES, ENDS, strict=True)
]
ENDED = [
    *(event("b2", "text", 130.0, text="all 41 tests pass"), end("b2", 140.0)),
    *(*begin("r", 2, None, 140.0, "one note about naming"), end("r", 161.0)),
    event("root", "run.ended", 161.0, status="done", reason="single_run", steps=REPORT),
]


def draw(console: Console, events: list[dict[str, Any]], now: float) -> RunView:
    """Print the heading and the finished steps."""
    view = RunView("root")
    for one in events:
        view.add(one)
    for line in heading(view):
        console.print(line)
    for step in view.finish_earlier_steps():
        console.print(step_line(view, step, now, COLUMNS))
    return view


def main() -> None:
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "dim"), COMMAND))
    console.print(frame(draw(console, BEGUN, 104.0), 104.0, COLUMNS))
    console.print("\nthe same run, ended:", style="dim")
    ended = draw(console, BEGUN + ENDED, 161.0)
    console.print(RESULT)
    for line in summary(ended, 161.0, COLUMNS, steps_too=False):
        console.print(Text.from_ansi(paint_status(line)))
    head, _, rest = CONSOLE_SVG_FORMAT.partition("@font-face")
    layout = head + rest[rest.index(".{unique_id}-matrix") :]
    svg = console.export_svg(
        title="hocket run",
        theme=MONOKAI,
        code_format=layout.replace("Fira Code, monospace", FONTS),
        unique_id="hocket-run",
    )
    lines = [line.rstrip() for line in svg.splitlines() if "Generated with Rich" not in line]
    Path(__file__).with_suffix(".svg").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
