"""``hocket demo``: three agents, a loop, a helper, a question, and a server killed half-way, in a minute.

Everything happens in a temporary home, through the commands a user would type. The model is scripted, so there is no
account, no network and no cost; the CLI is the real one if it is installed.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import hocket.rehearsal
from hocket import config
from hocket.catalog.fields import read_definition
from hocket.catalog.resolve import resolve
from hocket.cli import access
from hocket.cli.dispatch import run_command
from hocket.cli.format import cost_text, paint, truncate
from hocket.cli.plain import lines_of, question_with_reply
from hocket.cli.temp_home import (
    TempHome,
    real_environment,
    scripted_environment,
    temp_environment,
    temp_home,
    without_account,
)
from hocket.cli.usage import FLAG, Option, command
from hocket.cli.watch import ClientExit, SignalHandler, steady_view, watch
from hocket.client.startup import read_lock
from hocket.config.settings import Config
from hocket.errors import HocketError
from hocket.keeper.platform import signal_process
from hocket.views.run_view import RunView

CHAIN = "planner -> builder:3 -> reviewer"
PROMPT = "Write greet.sh, which greets a person by name"
LEAVES = ["planner", "builder", "builder", "reviewer"]
LIMIT_SECONDS = 50.0
COLUMNS = 80
BOLD, DIM, ACCENT, WARNING, ALARM = "1", "2", "36", "1;33", "1;31"
STYLES = {"question": WARNING}

BROKEN_CLI = "check the CLI: hocket doctor; without it: hocket demo --scripted"
NEXT = """\
hocket run "planner -> builder:3"     your own agents, by name or by path
hocket run ... --on-question ask      the agent waits for your answer
hocket rehearse "planner -> builder"  your own chain with scripted agents
docs/guides/claude.md                 the guide"""


class DemoFailed(HocketError):
    """The demo did not show what it promises."""

    code = "demo"
    exit_code = 1


@command(
    Option("--scripted", kind=FLAG, help="Use scripted agents even if the Claude CLI is installed."),
    examples=("hocket demo", "hocket demo --scripted"),
)
def demo(scripted: bool) -> int:
    """Take a tour of a minute: agents in a chain, a question, and a server that is killed half-way.

    It needs no account and no network, and leaves nothing behind.
    """
    before = config.process_environment()
    try:
        with temp_home("demo") as place:
            project = place.folder("project")
            shutil.copytree(_tour_files() / "agents", project / ".claude" / "agents")
            cli = None if scripted else _installed_cli(before, place)
            with _tour_environment(place, before, cli):
                Tour(place, project).show(cli, "as requested" if scripted else "no Claude CLI was found")
    except ClientExit as leaving:
        return leaving.code
    return 0


def _tour_files() -> Path:
    return Path(hocket.rehearsal.__file__).parent / "tour"


def _installed_cli(env: dict[str, str], place: TempHome) -> str | None:
    """The Claude CLI on PATH, regardless of the user's configuration."""
    known = {"HOME": str(place.folder("user")), "PATH": env.get("PATH", ""), **config.named_programs(env)}
    try:
        return resolve("claude", access.directory(None), known, Config()).agent.path
    except HocketError:
        return None


def _definitions() -> dict[str, str]:
    """The system prompts by which the scripted model recognises its agents."""
    found = [read_definition(str(path)) for path in sorted((_tour_files() / "agents").iterdir())]
    return {definition.name: str(definition.fields["prompt"]) for definition in found}


@contextmanager
def _tour_environment(place: TempHome, before: dict[str, str], cli: str | None) -> Iterator[None]:
    """The environment of the tour: a temporary user, whose Claude agents are scripted or have a scripted model."""
    script = _tour_files() / "script.yaml"
    user = {"HOME": str(place.folder("user"))}
    base = {name: value for name, value in without_account(before).items() if not name.startswith("XDG_")}
    if cli is None:
        scripted = scripted_environment(place, script, place.folder("state"), {})
        config.take_on(temp_environment(place, base, {**user, **scripted}))
        yield
        return
    config.take_on(temp_environment(place, base, user))
    # Start the server now, because it forks, which has to happen before there are threads.
    access.connect(talk=False).request("GET", "/api/health")
    with hocket.rehearsal.ScriptedModel(hocket.rehearsal.load(script), agents=_definitions()) as model:
        real = real_environment(place, model.url, base)
        config.take_on(temp_environment(place, base, {**user, **real, "HOCKET_CLAUDE": cli}))
        yield


class Tour:
    """The steps of the tour, and what it does to the chain while it runs."""

    def __init__(self, place: TempHome, project: Path) -> None:
        self._home = place.home
        self._project = project
        self._colour = config.colour_wanted(sys.stdout.isatty())
        self._columns = access.terminal_width() or COLUMNS
        self._killed: dict[str, Any] | None = None
        self._took_over = False
        self._answered = False

    def show(self, cli: str | None, reason: str) -> None:
        self._open(f"the installed Claude CLI with a scripted model: {cli}" if cli else f"scripted agents ({reason})")
        ended = self._run_chain()
        self._check(ended, BROKEN_CLI if cli else None)
        self._look_back(ended)

    # --- the steps ------------------------------------------------------------------------------------------

    def _open(self, agents: str) -> None:
        self._print("A tour of Hocket: no account, no network, no cost, nothing left behind.", BOLD)
        self._print(truncate(f"Uses {agents}", self._columns), DIM)
        self._tell(
            "Three agents are defined in .claude/agents: planner, builder and reviewer. They run one after another,"
            " the builder up to three times, until it says that it is done."
        )
        self._command(f'run "{CHAIN}" --on-question ask \\\n    -p "{PROMPT}"')

    def _run_chain(self) -> dict[str, Any]:
        client = access.connect(talk=False)
        signals = SignalHandler(client, on_terminal=False)
        signals.install()
        request = {"dsl": CHAIN, "prompt": PROMPT, "on_question": "ask", "timeout": LIMIT_SECONDS}
        cwd = str(self._project)
        run = client.start_followed("/api/runs", {**request, "cwd": cwd, "env": access.environment(cwd)})
        signals.set_run(run)
        last = watch(client, steady_view(run), TourDisplay(self), signals)
        if signals.code is not None:
            raise ClientExit(signals.code)
        ended: dict[str, Any] = last["data"]
        return ended

    def handle_event(self, view: RunView, event: dict[str, Any]) -> None:
        """Show an event of the chain, then answer the question or kill the server when it is time to."""
        if self._killed is not None and not self._took_over:
            self._report_new_server(self._killed)
        for line in question_with_reply(view, event) if event["type"] == "question" else lines_of(view, event):
            self._output(line, STYLES.get(event["type"]))
        process = view.processes.get(event["run"])
        if process is None:
            return
        if event["type"] == "question" and not self._answered:
            self._answered = True
            self._answer(str(process.number))
        elif event["type"] == "tool.finished" and process.agent == "builder" and self._killed is None:
            self._kill_server()

    def _answer(self, number: str) -> None:
        self._tell("The agent asks and waits. Any terminal can answer:")
        self._command(f"answer {number} allow")
        self._run("answer", number, "allow")

    def _kill_server(self) -> None:
        self._killed = read_lock(self._home)
        pid = self._killed.get("pid", 0)
        self._tell("The builder is running. Now the server is killed:")
        if not signal_process(pid, self._killed.get("start_time", 0), signal.SIGKILL):
            raise DemoFailed("the server could not be killed")
        self._print(f"$ kill -9 {pid}", ALARM)

    def _report_new_server(self, killed: dict[str, Any]) -> None:
        pid = read_lock(self._home).get("pid")
        if pid is not None and pid != killed["pid"]:
            self._took_over = True
            self._tell(
                f"A new server (pid {pid}) continues where the old one stopped; the builder was not interrupted."
            )

    def _check(self, ended: dict[str, Any], hint: str | None) -> None:
        """Raise unless everything happened that the tour shows."""
        if ended["status"] != "done":
            why = ": ".join(str(part) for part in (ended["reason"], ended.get("error")) if part)
            raise DemoFailed(f"the chain ended as {ended['status']} ({why})", hint)
        if not (self._took_over and self._answered):
            raise DemoFailed("the server was not killed, or no question was asked")
        runs = json.loads(self._captured("ps", "-a", "--json"))
        started = [run["agent"] for run in runs if run["kind"] == "leaf"]
        if started != LEAVES:
            raise DemoFailed(f"started {started}, expected {LEAVES}")

    def _look_back(self, ended: dict[str, Any]) -> None:
        self._tell("Done. Every agent and every iteration is a run; each was started exactly once.")
        self._command("ps -a")
        self._run("ps", "-a")
        self._tell(f"With a real model this would have cost {cost_text(ended) or 'nothing'}.")
        self._tell("Next steps:")
        for line in NEXT.splitlines():
            self._output(line)

    # --- output ---------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self._print("\n" + textwrap.fill(f"▸ {text}", self._columns, subsequent_indent="  "), ACCENT)

    def _command(self, text: str) -> None:
        self._print(f"$ hocket {text}", BOLD)

    def _output(self, line: str, style: str | None = None) -> None:
        self._print(truncate(f"  {line}", self._columns), style)

    def _print(self, text: str, style: str | None) -> None:
        print(paint(text, style, self._colour), flush=True)

    def _run(self, *words: str) -> None:
        for line in self._captured(*words).splitlines():
            self._output(line)

    def _captured(self, *words: str) -> str:
        """What a command prints."""
        caught = io.StringIO()
        with redirect_stdout(caught):
            code = run_command("hocket", words)
        if code != 0:
            raise DemoFailed(f"hocket {' '.join(words)} ended with {code}")
        return caught.getvalue()


class TourDisplay:
    """Passes the events of the watched chain to the tour."""

    tick = 0.25
    prompt = None
    colour = False

    def __init__(self, tour: Tour) -> None:
        self._tour = tour

    def __enter__(self) -> TourDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ignores(self, text: bytes) -> bool:
        return False

    def show(self, view: RunView, event: dict[str, Any]) -> None:
        self._tour.handle_event(view, event)

    def idle(self, view: RunView) -> None:
        """The chain has a time limit of its own."""

    def say(self, text: str) -> None:
        """The broken connection is part of the tour."""

    def set_footer(self, text: str) -> None:
        """There is no footer."""

    def offer_keys(self, view: RunView, text: str) -> None:
        """Ctrl-C ends the tour."""
