"""``hocket demo``: a tour of a minute. Three agents, a loop, a helper, a question, and a server killed half-way.

Everything happens in a temporary folder with a home of its own, through the commands that anybody would type. The model
is a script, so there is no account, no network and no cost; the CLI is the real one where it is installed.
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
from typing import TYPE_CHECKING, Any

from hocket import config
from hocket.cli import access
from hocket.cli.dispatch import run_command
from hocket.cli.format import cost, fit, painted
from hocket.cli.usage import FLAG, Option, command
from hocket.errors import HocketError

if TYPE_CHECKING:
    from hocket.cli.private import Place
    from hocket.cli.progress import Progress

CHAIN = "planner -> builder:3 -> reviewer"
PROMPT = "Write greet.sh, which greets somebody by name"
LEAVES = ["planner", "builder", "builder", "reviewer"]
LIMIT_SECONDS = 50.0
COLUMNS = 80
BOLD, DIM, ACCENT, WARNING, ALARM = "1", "2", "36", "1;33", "1;31"
STYLES = {"question": WARNING}

BROKEN_CLI = "hocket doctor says what the CLI needs; hocket demo --scripted shows the same without it"
NEXT = """\
hocket run "planner -> builder:3"     your own agents, by name or by path
hocket run ... --on-question ask      the agent waits for your answer
hocket rehearse "planner -> builder"  your own chain, played by a script
docs/guides/claude.md                 all of this, explained"""


class Failed(HocketError):
    """The tour did not show what it promises."""

    code = "demo"
    exit_code = 1


@command(
    Option("--scripted", kind=FLAG, help="Scripted agents, also where the Claude CLI is installed."),
    examples=("hocket demo", "hocket demo --scripted"),
)
def demo(scripted: bool) -> int:
    """A tour of a minute: agents in a chain, a question, and a server that is killed half-way.

    It needs no account and no network, and leaves nothing behind.
    """
    from hocket.cli.private import private_place
    from hocket.cli.watch import Leave

    before = config.process_environment()
    try:
        with private_place("demo") as place:
            project = place.folder("project")
            shutil.copytree(_tour() / "agents", project / ".claude" / "agents")
            cli = None if scripted else _installed(before, place)
            with _players(place, before, cli):
                Tour(place, project).show(cli, "as you wish" if scripted else "no Claude CLI was found")
    except Leave as leave:
        return leave.code
    return 0


def _tour() -> Path:
    import hocket.rehearsal

    return Path(hocket.rehearsal.__file__).parent / "tour"


def _installed(env: dict[str, str], place: Place) -> str | None:
    """The Claude CLI's program, if there is one: by the PATH, with nothing that the user has configured."""
    from hocket.catalog.resolve import resolve
    from hocket.config.settings import Config

    known = {"HOME": str(place.folder("user")), "PATH": env.get("PATH", ""), **config.named_programs(env)}
    try:
        return resolve("claude", access.directory(None), known, Config()).path
    except HocketError:
        return None


def _definitions() -> dict[str, str]:
    """The texts by which the model knows who is asking."""
    from hocket.catalog.fields import read_definition

    found = [read_definition(str(path)) for path in sorted((_tour() / "agents").iterdir())]
    return {definition.name: str(definition.fields["prompt"]) for definition in found}


@contextmanager
def _players(place: Place, before: dict[str, str], cli: str | None) -> Iterator[None]:
    """The environment of the tour: a user of its own, whose every Claude agent is played."""
    from hocket.cli import players
    from hocket.cli.private import environment

    script = _tour() / "script.yaml"
    user = {"HOME": str(place.folder("user"))}
    base = {name: value for name, value in players.without_account(before).items() if not name.startswith("XDG_")}
    if cli is None:
        config.take_on(environment(place, base, {**user, **players.scripted(place, script, place.folder("state"), {})}))
        yield
        return
    from hocket.rehearsal import ScriptedModel, load

    config.take_on(environment(place, base, user))
    # Starting a server forks, which is better done before there are threads.
    access.connect(talk=False).request("GET", "/api/health")
    with ScriptedModel(load(script), agents=_definitions()) as model:
        played = players.real(place, model.url, base)
        config.take_on(environment(place, base, {**user, **played, "HOCKET_CLAUDE": cli}))
        yield


class Tour:
    """What is shown, in order, and what is done to the chain while it works."""

    def __init__(self, place: Place, project: Path) -> None:
        self._home = place.home
        self._project = project
        self._colour = config.colour_wanted(sys.stdout.isatty())
        self._columns = access.terminal_width() or COLUMNS
        self._killed: dict[str, Any] | None = None
        self._took_over = False
        self._answered = False

    def show(self, cli: str | None, reason: str) -> None:
        self._open(f"the installed Claude CLI, its model by a script: {cli}" if cli else f"scripted agents: {reason}")
        ended = self._run_chain()
        self._check(ended, BROKEN_CLI if cli else None)
        self._look_back(ended)

    # --- the steps ------------------------------------------------------------------------------------------

    def _open(self, player: str) -> None:
        self._print("A tour of Hocket: no account, no network, no cost, nothing left behind.", BOLD)
        self._print(fit(f"Played by {player}", self._columns), DIM)
        self._tell(
            "Three agents are defined in .claude/agents: planner, builder, reviewer. They work one after the other,"
            " the builder up to three times, until it says that it is done."
        )
        self._command(f'run "{CHAIN}" --on-question ask \\\n    -p "{PROMPT}"')

    def _run_chain(self) -> dict[str, Any]:
        from hocket.cli.progress import Progress
        from hocket.cli.watch import Leave, Signals, watch

        client = access.connect(talk=False)
        signals = Signals(client, on_terminal=False)
        signals.install()
        request = {"dsl": CHAIN, "prompt": PROMPT, "on_question": "ask", "timeout": LIMIT_SECONDS}
        cwd = str(self._project)
        run = client.start_followed("/api/runs", {**request, "cwd": cwd, "env": access.environment(cwd)})
        signals.watching(run)
        last = watch(client, Progress(run), View(self), signals)
        if signals.code is not None:
            raise Leave(signals.code)
        ended: dict[str, Any] = last["data"]
        return ended

    def happened(self, progress: Progress, event: dict[str, Any]) -> None:
        """One event of the chain, shown before anything is done about it."""
        from hocket.cli.plain import lines_of, question_of

        if self._killed is not None and not self._took_over:
            self._say_who_took_over(self._killed)
        for line in question_of(progress, event) if event["type"] == "question" else lines_of(progress, event):
            self._output(line, STYLES.get(event["type"]))
        leaf = progress.leaves.get(event["run"])
        if leaf is None:
            return
        if event["type"] == "question" and not self._answered:
            self._answered = True
            self._answer(str(leaf.number))
        elif event["type"] == "tool.finished" and leaf.agent == "builder" and self._killed is None:
            self._kill_server()

    def _answer(self, number: str) -> None:
        self._tell("It asks, and waits. Anybody may answer, from any terminal:")
        self._command(f"answer {number} allow")
        self._run("answer", number, "allow")

    def _kill_server(self) -> None:
        from hocket.client.startup import read_lock
        from hocket.keeper.platform import signal_process

        self._killed = read_lock(self._home)
        pid = self._killed.get("pid", 0)
        self._tell("The builder is at work. Now the server is killed, as rudely as can be:")
        if not signal_process(pid, self._killed.get("start_time", 0), signal.SIGKILL):
            raise Failed("the server could not be killed: nothing was shown")
        self._print(f"$ kill -9 {pid}", ALARM)

    def _say_who_took_over(self, killed: dict[str, Any]) -> None:
        from hocket.client.startup import read_lock

        pid = read_lock(self._home).get("pid")
        if pid is not None and pid != killed["pid"]:
            self._took_over = True
            self._tell(f"A new server (pid {pid}) reads on where the old one stopped; the builder never noticed.")

    def _check(self, ended: dict[str, Any], hint: str | None) -> None:
        """The tour shows what it says, or it fails."""
        if ended["status"] != "done":
            why = ": ".join(str(part) for part in (ended["reason"], ended.get("error")) if part)
            raise Failed(f"the chain ended as {ended['status']} ({why})", hint)
        if not (self._took_over and self._answered):
            raise Failed("the server was not killed, or nothing was asked")
        runs = json.loads(self._captured("ps", "-a", "--json"))
        started = [run["agent"] for run in runs if run["kind"] == "leaf"]
        if started != LEAVES:
            raise Failed(f"started {started}, expected {LEAVES}")

    def _look_back(self, ended: dict[str, Any]) -> None:
        self._tell("Done. Every agent and every pass is a run of its own; each was started exactly once.")
        self._command("ps -a")
        self._run("ps", "-a")
        self._tell(f"What all of it would have cost: {cost(ended) or 'nothing'}. The model was a script.")
        self._tell("Where to look next:")
        for line in NEXT.splitlines():
            self._output(line)

    # --- talk -----------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self._print("\n" + textwrap.fill(f"▸ {text}", self._columns, subsequent_indent="  "), ACCENT)

    def _command(self, text: str) -> None:
        self._print(f"$ hocket {text}", BOLD)

    def _output(self, line: str, style: str | None = None) -> None:
        self._print(fit(f"  {line}", self._columns), style)

    def _print(self, text: str, style: str | None) -> None:
        print(painted(text, style, self._colour), flush=True)

    def _run(self, *words: str) -> None:
        for line in self._captured(*words).splitlines():
            self._output(line)

    def _captured(self, *words: str) -> str:
        """What a command prints, typed as anybody would."""
        caught = io.StringIO()
        with redirect_stdout(caught):
            code = run_command("hocket", words)
        if code != 0:
            raise Failed(f"hocket {' '.join(words)} ended with {code}")
        return caught.getvalue()


class View:
    """What a watched run is drawn on, handed through to the tour."""

    tick = 0.25
    box = None
    colour = False

    def __init__(self, tour: Tour) -> None:
        self._tour = tour

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def unread(self, text: bytes) -> bool:
        return False

    def show(self, progress: Progress, event: dict[str, Any]) -> None:
        self._tour.happened(progress, event)

    def idle(self, progress: Progress) -> None:
        """The chain has a time limit of its own."""

    def say(self, text: str) -> None:
        """Nobody has anything to say about the connection: that it breaks is the point."""

    def note(self, text: str) -> None:
        """There is no footer."""

    def offer(self, progress: Progress, text: str) -> None:
        """Whoever presses Ctrl-C ends the tour, and is asked nothing."""
