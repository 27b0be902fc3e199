"""``rehearse demo``: run chains with scripted Claude agents, without an account, a network or cost.

``demo`` is a tour of a minute: three agents, a loop, a question, and a server that is killed half-way.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import hocket.rehearsal
from hocket import config
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.sources import project_roots
from hocket.cli import access
from hocket.cli.dispatch import run_command
from hocket.cli.format import cost_text, paint, truncate
from hocket.cli.plain import PlainDisplay, lines_of, question_with_reply, summary
from hocket.cli.run import exit_code, make_display, request_body, validated
from hocket.cli.temp_home import (
    TempHome,
    scripted_environment,
    share_configuration,
    sub_agents,
    temp_environment,
    temp_home,
)
from hocket.cli.usage import (
    ASKING,
    BOUNDS,
    CHAIN_WORDS,
    CWD,
    FLAG,
    JSON,
    MARKER,
    PLAIN,
    PROMPT,
    PROMPT_FILE,
    QUIET,
    TIMEOUT,
    UNTIL,
    Option,
    command,
)
from hocket.cli.watch import ClientExit, SignalHandler, steady_now, steady_view, stream_json, watch
from hocket.client.startup import read_lock
from hocket.config.loading import load as load_config
from hocket.errors import HocketError
from hocket.keeper.platform import signal_process
from hocket.model import BoundChain, Spec, Step
from hocket.rehearsal.conversation_counts import uncovered_in
from hocket.rehearsal.matching import Uncovered
from hocket.views.run_view import RunView
from hocket.workflows.bind import bind

SCRIPT = "rehearsal.yaml"
FOOTER = "rehearsal  ·  ^C stop"
CLAUDE = "claude"
DEFINITIONS = "--agents"
PROMPT_CHARACTERS = 200
DEFAULT_ITERATIONS = 2
"""How often the built-in script repeats a loop: enough to see that it is one."""


@command(
    CHAIN_WORDS,
    Option("--chain", name="chain_name", metavar="NAME", help="Rehearse a chain of the configuration."),
    Option("--script", metavar="FILE", help=f"Script of the agents (default: {SCRIPT} of the project)."),
    Option("--keep", kind=FLAG, help="Keep the temporary folder and print its path."),
    PROMPT,
    PROMPT_FILE,
    CWD,
    UNTIL,
    TIMEOUT,
    MARKER,
    ASKING,
    *BOUNDS,
    Option("-v", "--verbose", kind=FLAG, help="Show all output, and the thinking of agents."),
    QUIET,
    PLAIN,
    JSON,
    examples=(
        'hocket rehearse "planner:3 -> builder" -p "Expire old sessions"',
        "hocket rehearse --chain ship --script calm.yaml",
    ),
    passing=True,
)
def rehearse(words: tuple[str, ...], cwd: str | None, **options: Any) -> int:
    """Run a chain without an account, a network or cost: a script says what its Claude agents do.

    It uses a temporary home with a server of its own. Plain programs of the chain, and the gate, run for real. Exits
    with the chain's code, but with 1 when the script does not cover a request of an agent.
    """
    place, before, users_home = access.directory(cwd), config.process_environment(), config.home()
    with temp_home("rehearsal", options["keep"]) as temp:
        share_configuration(temp, users_home)
        # Binding needs a program for every agent; which one does not matter yet.
        config.replace_environment(temp_environment(temp, before, {"HOCKET_CLAUDE": sys.executable}))
        rehearsal = _prepare(temp, words, place, options)
        if not (options["as_json"] or options["quiet"]):
            _announce(rehearsal, temp)
        state = temp.folder("state")
        found = sub_agents({step.spec.cwd for step in rehearsal.chain.steps}, access.environment(place), config.home())
        scripted = scripted_environment(temp, rehearsal.script, state, found)
        config.replace_environment(temp_environment(temp, before, scripted))
        code = _watch({**rehearsal.request, "env": access.environment(place)}, options)
        code = _check_script(rehearsal, state, code)
    if options["keep"]:
        print(f"kept {temp.root}; list its runs: HOCKET_HOME={temp.home} hocket ps -a", file=sys.stderr)
    return code


# --- A rehearsal --------------------------------------------------------------------------------------------


class Rehearsal(NamedTuple):
    """A chain to be rehearsed, before anything has started."""

    request: dict[str, Any]
    chain: BoundChain
    roles: list[Role]
    script: Path
    script_name: str


def _prepare(place: TempHome, words: tuple[str, ...], cwd: str, options: dict[str, Any]) -> Rehearsal:
    # A worktree would lie in the temporary home, and go with it.
    request = request_body(words, cwd, options) | {"isolation": "none"}
    request["on_question_default"] = "deny"  # so that a rehearsal needs no person
    chain = bind(validated(request), load_config(cwd, config.home()))
    assert isinstance(chain, BoundChain)  # noqa: S101 - only a request for a single agent binds to anything else
    roles = roles_of(chain)
    script = _find_script(options["script"], cwd)
    if script is not None:
        return Rehearsal(request, chain, roles, script, str(script))
    built_in = place.root / "script.json"
    built_in.write_text(json.dumps(default_script(roles)), encoding="utf-8")
    return Rehearsal(request, chain, roles, built_in, "the built-in script")


def _find_script(given: str | None, cwd: str) -> Path | None:
    """The given script, else the project's; None if there is none."""
    if given is not None:
        return Path(cwd, given)
    return next(
        (path for folder in project_roots(FileProbe(), cwd, {}) if (path := Path(folder, SCRIPT)).exists()), None
    )


def _announce(rehearsal: Rehearsal, place: TempHome) -> None:
    print(f"rehearsal: agents are scripted by {rehearsal.script_name}", file=sys.stderr)
    if programs := real_programs(rehearsal.chain):
        print(f"rehearsal: runs for real: {', '.join(programs)}", file=sys.stderr)
    if any(step.spec.on_question == "ask" for step in rehearsal.chain.steps):
        print(f"rehearsal: to answer questions: HOCKET_HOME={place.home} hocket answer …", file=sys.stderr)


def _watch(request: dict[str, Any], options: dict[str, Any]) -> int:
    """Watch as ``hocket run`` does, but without detaching: a rehearsal ends with its command."""
    client = access.connect(talk=False)
    signals = SignalHandler(client, on_terminal=False)
    signals.install()
    try:
        run = client.start_followed("/api/runs", request)
        signals.set_run(run)
        if options["as_json"]:
            return exit_code(stream_json(client, run, access.write_json, sys.stdout.flush), signals)
        view, display = steady_view(run), make_display(options, answering=False)
        display.set_footer(FOOTER)
        last = watch(client, view, display, signals)
    except ClientExit as leaving:
        return leaving.code
    access.print_result(last["data"].get("result"))
    sys.stdout.flush()
    if not options["quiet"]:
        # Without the last line, whose commands would look for the run in the user's home.
        print("\n".join(summary(view, steady_now())[:-1]), file=sys.stderr)
    return exit_code(last, signals)


def _check_script(rehearsal: Rehearsal, state: Path, code: int) -> int:
    """Report requests that the script does not cover, which is an error."""
    if uncovered := list(dict.fromkeys(uncovered_in(state))):
        print("\n".join(uncovered_report(uncovered, rehearsal.script_name)), file=sys.stderr)
        return 1
    return code


# --- Roles --------------------------------------------------------------------------------------------------


class Role(NamedTuple):
    """One scripted step of a chain."""

    agent: str
    """The name by which the script knows it."""
    definition: str
    prompt: str
    iterations: int
    """How often it speaks before it says the marker; 0 for a step without a loop."""
    marker: str


def roles_of(chain: BoundChain) -> list[Role]:
    """The scripted steps of a chain."""
    return [_role(step) for step in chain.steps if step.spec.provider == CLAUDE]


def real_programs(chain: BoundChain) -> list[str]:
    """What runs for real: plain programs, and the gate."""
    gate = [f"the gate ({chain.until})"] if chain.until else []
    return list(dict.fromkeys([*(step.agent for step in chain.steps if step.spec.provider != CLAUDE), *gate]))


def _role(step: Step) -> Role:
    name, definition = _definition(step.spec)
    iterations = min(DEFAULT_ITERATIONS, step.iterations) if step.loop else 0
    return Role(name, definition, step.spec.prompt or "", iterations, step.spec.marker)


def _definition(spec: Spec) -> tuple[str, str]:
    """The name and the prompt in the definition file of a step; the bare CLI has no such file."""
    for option, value in pairwise(spec.argv):
        if option == DEFINITIONS and (content := spec.files.get(value.rpartition("/")[2])):
            for name, fields in json.loads(content).items():
                return name, str(fields.get("prompt") or "")
    return CLAUDE, ""


def default_script(roles: Sequence[Role]) -> dict[str, Any]:
    """A script for any chain: each agent repeats its prompt, and a loop ends by its marker."""
    rules: list[dict[str, Any]] = []
    spoken: dict[str, int] = {}
    for role in roles:
        for number in range(1, max(role.iterations, 1) + 1):
            spoken[role.agent] = spoken.get(role.agent, 0) + 1
            steps: list[Any] = [{"say": _introduction(role, number)}]
            when = {"agent": role.agent, "pass": spoken[role.agent]}
            rules.append({"when": when, "do": [*steps, "marker"] if number == role.iterations else steps})
    # A gate that fails repeats the loop; then only the marker is left to say.
    rules += [{"when": {"agent": role.agent}, "do": ["marker"]} for role in roles if role.iterations]
    markers = {role.marker for role in roles}
    return {"version": 1, "rules": rules, "default": "fail", **({"marker": markers.pop()} if len(markers) == 1 else {})}


def _introduction(role: Role, number: int) -> str:
    prompt = role.prompt if len(role.prompt) <= PROMPT_CHARACTERS else role.prompt[:PROMPT_CHARACTERS] + "…"
    turn = f", iteration {number}" if role.iterations else ""
    return f"I am {role.agent}{turn}. My prompt: {prompt}"


def uncovered_report(uncovered: Sequence[Uncovered], script: str) -> list[str]:
    """The requests without a rule, and rules that would cover them."""
    count = "a request" if len(uncovered) == 1 else f"{len(uncovered)} requests"
    return [
        f"✗ the script does not cover {count}: {script}",
        *(f"  {_request(request)}" for request in uncovered),
        "add to its rules:",
        *(line for request in uncovered for line in _rule(request)),
    ]


def _request(request: Uncovered) -> str:
    turn = f"wake {request.woken}" if request.woken else f"turn {request.turn}"
    return f"agent {request.agent}, {turn}, pass {request.passage}, last message {_quoted(request.last)}"


def _rule(request: Uncovered) -> list[str]:
    """A rule in YAML, with the conditions that distinguish this request from the first one of its agent."""
    when = {"agent": _quoted(request.agent)}
    if request.woken:
        when["woken"] = str(request.woken)
    elif request.turn > 1:
        when["turn"] = str(request.turn)
    if request.passage > 1:
        when["pass"] = str(request.passage)
    conditions = ", ".join(f"{key}: {value}" for key, value in when.items())
    return [f"  - when: {{{conditions}}}", "    do:", '      - say: "…"']


def _quoted(text: str) -> str:
    """A JSON string, which is valid YAML and has no control characters; plain words stay as they are."""
    return text if text.isascii() and text.replace("-", "").replace("_", "").isalnum() else json.dumps(text)


# --- The demo ------------------------------------------------------------------------------------------------


TOUR_FILES = Path(hocket.rehearsal.__file__).parent / "tour"
USER_PREFIXES = ("ANTHROPIC_", "CLAUDE_", "XDG_")
"""Variables that lead to the account and the files of the user."""
TOUR_CHAIN = "planner -> builder:3 -> reviewer"
TOUR_PROMPT = "Write greet.sh, which greets a person by name"
LEAVES = ["planner", "builder", "builder", "reviewer"]
LIMIT_SECONDS = 50.0
COLUMNS = 80
BOLD, DIM, ACCENT, WARNING, ALARM = "1", "2", "36", "1;33", "1;31"
STYLES = {"question": WARNING}

NEXT = """\
hocket run "planner -> builder:3"     your own agents, by name or by path
hocket run ... --on-question ask      the agent waits for your answer
hocket rehearse "planner -> builder"  your own chain with scripted agents
docs/guides/claude.md                 the guide"""


class DemoFailed(HocketError):
    """The demo did not show what it promises."""

    code = "demo"
    exit_code = 1


def tour_body(cwd: str) -> dict[str, Any]:
    """The body of the start request of the tour."""
    body = {"dsl": TOUR_CHAIN, "prompt": TOUR_PROMPT, "on_question": "ask", "timeout": LIMIT_SECONDS}
    return {**body, "cwd": cwd, "env": access.environment(cwd)}


@command(examples=("hocket demo",))
def demo() -> int:
    """Take a tour of a minute: agents in a chain, a question, and a server that is killed half-way.

    It needs no account and no network, and leaves nothing behind.
    """
    before = config.process_environment()
    try:
        with temp_home("demo") as place:
            project = place.folder("project")
            shutil.copytree(TOUR_FILES / "agents", project / ".claude" / "agents")
            base = {name: value for name, value in before.items() if not name.startswith(USER_PREFIXES)}
            scripted = scripted_environment(place, TOUR_FILES / "script.yaml", place.folder("state"), {})
            user = {"HOME": str(place.folder("user"))}
            config.replace_environment(temp_environment(place, base, {**user, **scripted}))
            Tour(place, project).show()
    except ClientExit as leaving:
        return leaving.code
    return 0


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

    def show(self) -> None:
        self._open()
        ended = self._run_chain()
        self._check(ended)
        self._look_back(ended)

    # --- the steps ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._print("A tour of Hocket: no account, no network, no cost, nothing left behind.", BOLD)
        self._print("The agents are scripted.", DIM)
        self._tell(
            "Three agents are defined in .claude/agents: planner, builder and reviewer. They run one after another,"
            " the builder up to three times, until it says that it is done."
        )
        self._command(f'run "{TOUR_CHAIN}" --on-question ask \\\n    -p "{TOUR_PROMPT}"')

    def _run_chain(self) -> dict[str, Any]:
        client = access.connect(talk=False)
        signals = SignalHandler(client, on_terminal=False)
        signals.install()
        run = client.start_followed("/api/runs", tour_body(str(self._project)))
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

    def _check(self, ended: dict[str, Any]) -> None:
        """Raise unless everything happened that the tour shows."""
        if ended["status"] != "done":
            why = ": ".join(str(part) for part in (ended["reason"], ended.get("error")) if part)
            raise DemoFailed(f"the chain ended as {ended['status']} ({why})")
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


class TourDisplay(PlainDisplay):
    """Passes the events of the watched chain to the tour; a broken connection is part of it."""

    tick = 0.25

    def __init__(self, tour: Tour) -> None:
        super().__init__(quiet=True)
        self._tour = tour

    def ignores(self, text: bytes) -> bool:
        return False

    def show(self, view: RunView, event: dict[str, Any]) -> None:
        self._tour.handle_event(view, event)
