"""``rehearse demo``: run chains with scripted Claude agents, without an account, a network or cost.

``rehearse --record`` makes a script from a run, ``rehearse --serve`` serves a scripted model to a CLI. ``demo`` is a
tour of a minute: three agents, a loop, a question, and a server that is killed half-way; ``demo --team`` has a team.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import hocket.rehearsal
from hocket import config
from hocket.catalog.discovery import discover
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.files import read_definition
from hocket.catalog.resolve import resolve
from hocket.catalog.sources import project_roots
from hocket.cli import access
from hocket.cli.dispatch import run_command
from hocket.cli.format import cost_text, paint, truncate, wrap_line
from hocket.cli.plain import lines_of, question_with_reply, summary
from hocket.cli.run import exit_code, make_display, request_body, validated
from hocket.cli.runs import ps_table
from hocket.cli.temp_home import (
    API_KEY,
    TempHome,
    scripted_agents,
    scripted_model,
    share_agents,
    share_configuration,
    sub_agents,
    temp_environment,
    temp_home,
    without_account,
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
    PORT,
    PROMPT,
    PROMPT_FILE,
    QUIET,
    TIMEOUT,
    UNTIL,
    ArgumentError,
    Option,
    command,
)
from hocket.cli.watch import (
    ClientExit,
    KeyboardControl,
    RunDisplay,
    SignalHandler,
    steady_now,
    steady_view,
    stream_json,
    watch,
)
from hocket.client.startup import read_lock
from hocket.config.loading import load as load_config
from hocket.config.settings import Config
from hocket.errors import HocketError, UsageError
from hocket.keeper.files import read_spec
from hocket.keeper.platform import signal_process
from hocket.model import BoundChain, Spec, Step
from hocket.providers import PROVIDERS
from hocket.rehearsal import ScriptedModel, load, record, uncovered_in
from hocket.rehearsal.matching import Uncovered
from hocket.trust.approvals import Approvals
from hocket.views.run_view import RunView
from hocket.workflows.bind import bind

SCRIPT = "rehearsal.yaml"
FOOTER = "rehearsal  ·  ^C stop"
SCRIPT_TOOLS = ("record", "serve")
TOOL_OPTIONS = {"output": "record", "force": "record", "port": "serve"}
CLAUDE = "claude"
DEFINITIONS = "--agents"
PROMPT_CHARACTERS = 200
DEFAULT_ITERATIONS = 2
"""How often the built-in script repeats a loop: enough to see that it is one."""


@command(
    CHAIN_WORDS,
    Option("--chain", name="chain_name", metavar="NAME", help="Rehearse a chain of the configuration."),
    Option("--script", metavar="FILE", help=f"Script of the agents (default: {SCRIPT} of the project)."),
    Option(
        "--real",
        name="is_real",
        kind=FLAG,
        help="Use the installed Claude CLI and its tools; only the model is scripted.",
    ),
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
    Option("--record", metavar="RUN", help="Print a script that repeats what a Claude run said."),
    Option("-o", "--output", metavar="FILE", help="With --record: write the script to a new file."),
    Option("--force", kind=FLAG, help="With -o: overwrite an existing file."),
    Option("--serve", metavar="FILE", help="Serve the scripted model to a CLI that you start, until Ctrl-C."),
    Option(
        "--port", kind=PORT, default=0, metavar="N", help="With --serve: listen on this port; 0 takes any free one."
    ),
    examples=(
        'hocket rehearse "planner:3 -> builder" -p "Expire old sessions"',
        "hocket rehearse --chain ship --script calm.yaml --real",
        "hocket rehearse --record 42 -o rehearsal.yaml",
        "hocket rehearse --serve rehearsal.yaml",
    ),
    passing=True,
)
def rehearse(words: tuple[str, ...], cwd: str | None, **options: Any) -> int:
    """Run a chain without an account, a network or cost: a script says what its Claude agents do.

    It uses a temporary home with a server of its own. Plain programs of the chain, and the gate, run for real. Exits
    with the chain's code, but with 1 when the script does not cover a request of an agent.
    """
    given = [f"--{name}" for name in SCRIPT_TOOLS if options[name] is not None]
    if len(given) > 1 or (given and (words or options["chain_name"])):
        raise ArgumentError(f"{given[-1]} cannot be combined with a chain or another tool")
    for name, tool in TOOL_OPTIONS.items():
        if options[name] and options[tool] is None:
            raise ArgumentError(f"--{name} needs --{tool}")
    if options["record"] is not None:
        return _record_script(options["record"], options["output"], options["force"])
    if options["serve"] is not None:
        return _serve_model(options["serve"], access.directory(cwd), options["port"])
    return _rehearse(words, access.directory(cwd), options)


# --- A rehearsal --------------------------------------------------------------------------------------------


def _rehearse(words: tuple[str, ...], cwd: str, options: dict[str, Any]) -> int:
    before, users_home, is_real = config.process_environment(), config.home(), options["is_real"]
    with temp_home("rehearsal", options["keep"]) as place:
        share_configuration(place, users_home)
        # Binding needs a program for every agent; which one does not matter yet.
        program = {} if is_real else {"HOCKET_CLAUDE": sys.executable}
        config.replace_environment(temp_environment(place, before, program))
        # A worktree would lie in the temporary home, and go with it; and a rehearsal needs no person.
        request = request_body(words, cwd, options) | {"isolation": "none", "on_question_default": "deny"}
        chain = bind(validated(request), load_config(cwd, config.home()))
        assert isinstance(chain, BoundChain)  # noqa: S101 - only a request for a single agent binds to anything else
        steps = [step for step in chain.steps if step.spec.provider == CLAUDE]
        script = _find_script(options["script"], cwd)
        script_name = str(script or "the built-in script")
        if script is None:
            script = place.root / "script.json"
            script.write_text(json.dumps(default_script(steps)), encoding="utf-8")
        if not (options["as_json"] or options["quiet"]):
            _announce(chain, script_name, is_real, place)
        if is_real:
            share_agents(place, cwd, before)
            agents = scripted_model(place, script, before, dict(_definition(step.spec) for step in steps))
        else:
            found = sub_agents({step.spec.cwd for step in chain.steps}, access.environment(cwd), config.home())
            agents = scripted_agents(place, script, before, found)
        with agents:
            code = _watch({**request, "env": access.environment(cwd)}, options)
        if uncovered := list(dict.fromkeys(uncovered_in(place.folder("state")))):
            print("\n".join(uncovered_report(uncovered, script_name)), file=sys.stderr)
            code = 1
    if options["keep"]:
        print(f"kept {place.root}; list its runs: HOCKET_HOME={place.home} hocket ps -a", file=sys.stderr)
    return code


def _find_script(given: str | None, cwd: str) -> Path | None:
    """The given script, else the project's; None if there is none."""
    if given is not None:
        return Path(cwd, given)
    return next(
        (path for folder in project_roots(FileProbe(), cwd, {}) if (path := Path(folder, SCRIPT)).exists()), None
    )


def _announce(chain: BoundChain, script_name: str, is_real: bool, place: TempHome) -> None:
    scripted = "the installed CLI and its tools run for real, the model is" if is_real else "agents are"
    print(f"rehearsal: {scripted} scripted by {script_name}", file=sys.stderr)
    programs = [step.agent for step in chain.steps if step.spec.provider != CLAUDE]
    if programs := [*dict.fromkeys(programs), *([f"the gate ({chain.until})"] if chain.until else [])]:
        print(f"rehearsal: runs for real: {', '.join(programs)}", file=sys.stderr)
    if any(step.spec.on_question == "ask" for step in chain.steps):
        print(f"rehearsal: to answer questions: HOCKET_HOME={place.home} hocket answer …", file=sys.stderr)


def _watch(request: dict[str, Any], options: dict[str, Any]) -> int:
    """Watch as ``hocket run`` does, but without detaching: a rehearsal ends with its command."""
    client = access.connect(talk=False)
    signals = SignalHandler(client, on_terminal=False)
    signals.install()
    try:
        run = str(client.request("POST", "/api/runs", request)["id"])
        signals.set_run(run)
        if options["as_json"]:
            return exit_code(stream_json(client, run), signals)
        view, display = steady_view(run), make_display(options, answering=False, footer=FOOTER)
        last = watch(client, view, display, KeyboardControl(client, display, signals))
    except ClientExit as leaving:
        return leaving.code
    access.print_result(last["data"].get("result"))
    sys.stdout.flush()
    if not options["quiet"]:
        # Without the last line, whose commands would look for the run in the user's home.
        lines = summary(view, steady_now(), access.terminal_width(sys.stderr), steps_too=not sys.stderr.isatty())
        print("\n".join(lines[:-1]), file=sys.stderr)
    return exit_code(last, signals)


# --- The built-in script, and additions to one ----------------------------------------------------------------


def default_script(steps: Sequence[Step]) -> dict[str, Any]:
    """A script for any Claude steps: each agent repeats its prompt, and a loop ends by its marker."""
    rules: list[dict[str, Any]] = []
    looping: list[str] = []
    spoken: Counter[str] = Counter()
    for step in steps:
        name, prompt = _definition(step.spec)[0], step.spec.prompt or ""
        if len(prompt) > PROMPT_CHARACTERS:
            prompt = prompt[:PROMPT_CHARACTERS] + "…"
        iterations = min(DEFAULT_ITERATIONS, step.iterations) if step.loop else 0
        looping += [name] if iterations else []
        for number in range(1, max(iterations, 1) + 1):
            spoken[name] += 1
            turn = f", iteration {number}" if iterations else ""
            says: list[Any] = [{"say": f"I am {name}{turn}. My prompt: {prompt}"}]
            does = [*says, "marker"] if number == iterations else says
            rules.append({"when": {"agent": name, "pass": spoken[name]}, "do": does})
    # A gate that fails repeats the loop; then only the marker is left to say.
    rules += [{"when": {"agent": name}, "do": ["marker"]} for name in looping]
    markers = {step.spec.marker for step in steps}
    return {"version": 1, "rules": rules, "default": "fail", **({"marker": markers.pop()} if len(markers) == 1 else {})}


def _definition(spec: Spec) -> tuple[str, str]:
    """The name and the prompt in the definition file of a step; the bare CLI has no such file."""
    for option, value in pairwise(spec.argv):
        if option == DEFINITIONS and (content := spec.files.get(value.rpartition("/")[2])):
            for name, fields in json.loads(content).items():
                return name, str(fields.get("prompt") or "")
    return CLAUDE, ""


def uncovered_report(uncovered: Sequence[Uncovered], script: str) -> list[str]:
    """The requests without a rule, and rules that would cover them."""
    count = "a request" if len(uncovered) == 1 else f"{len(uncovered)} requests"
    lines = [f"✗ the script does not cover {count}: {script}"]
    for request in uncovered:
        turn = f"wake {request.woken}" if request.woken else f"turn {request.turn}"
        last = _quoted(request.last)
        lines.append(f"  agent {request.agent}, {turn}, pass {request.passage}, last message {last}")
    lines.append("add to its rules:")
    for request in uncovered:
        # The conditions that distinguish this request from the first one of its agent.
        when = {"agent": _quoted(request.agent)}
        if request.woken:
            when["woken"] = str(request.woken)
        elif request.turn > 1:
            when["turn"] = str(request.turn)
        if request.passage > 1:
            when["pass"] = str(request.passage)
        conditions = ", ".join(f"{key}: {value}" for key, value in when.items())
        lines += [f"  - when: {{{conditions}}}", "    do:", '      - say: "…"']
    return lines


def _quoted(text: str) -> str:
    """A JSON string, which is valid YAML and has no control characters; plain words stay as they are."""
    return text if text.isascii() and text.replace("-", "").replace("_", "").isalnum() else json.dumps(text)


# --- Scripts ------------------------------------------------------------------------------------------------


def _record_script(ref: str, output: str | None, force: bool) -> int:
    client = access.connect()
    run = client.run(ref)
    if run["provider"] != CLAUDE:
        found = [str(child["number"]) for child in run["children"] if child["provider"] == CLAUDE]
        hint = f"its Claude runs: {', '.join(found)}" if found else None
        raise UsageError(f"run {run['number']} is not a Claude run", hint)
    # The name in the agent's definition may differ from the one the run was started by.
    argv = (read_spec(run["dir"]) or {}).get("argv", [])
    name = str(argv[argv.index("--agent") + 1]) if "--agent" in argv else CLAUDE
    recording = record(b"".join(client.output(run["id"])).split(b"\n"), name)
    if output is None:
        access.write(recording.script)
    else:
        _write_file(Path(output), recording.script, force)
    for note in recording.notes:
        print(f"rehearsal: {note}", file=sys.stderr)
    return 0


def _write_file(path: Path, text: str, force: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already", "give another name, or --force to overwrite it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)


def _serve_model(file: str, cwd: str, port: int) -> int:
    script = load(Path(cwd, file))
    names = {rule.when.agent for rule in script.rules if rule.when.agent}
    try:
        model = ScriptedModel(script, port, agents=_definitions(names, cwd))
    except OSError as error:
        raise UsageError(f"cannot listen on port {port}: {error.strerror}") from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with model:
        try:
            print(f"export ANTHROPIC_BASE_URL={model.url}\nexport ANTHROPIC_API_KEY={API_KEY}", flush=True)
            print("serving the scripted model until Ctrl-C", file=sys.stderr, flush=True)
            signal.pause()
        except KeyboardInterrupt:
            print(f"{model.requests} requests", file=sys.stderr)
    if model.uncovered:
        print("\n".join(uncovered_report(model.uncovered, file)), file=sys.stderr)
    return 1 if model.uncovered else 0


def _definitions(names: set[str], cwd: str) -> dict[str, str]:
    """The system prompts by which the model recognises the agents that are defined here."""
    approvals = Approvals(load_config(cwd, config.home()))
    catalog = discover(cwd, access.environment(cwd), config.home(), approvals.config, approvals)
    found = {name: entry for name in sorted(names) for entry in catalog.find(name)[:1]}
    return {
        name: str(read_definition(entry.path, stem=name).fields.get("prompt") or "") for name, entry in found.items()
    }


# --- The demo ------------------------------------------------------------------------------------------------


TOUR_CHAIN = "planner -> builder:3 -> reviewer"
TOUR_PROMPT = "Write greet.sh, which greets a person by name"
TOUR_FILES = Path(hocket.rehearsal.__file__).parent / "tour"
LEAVES = ["planner", "builder", "builder", "reviewer"]
TEAM_PROMPT = "Build a house"
TEAM_QUESTION = "Is the house ready?"
TEAM_TASKS = {"walls", "roof", "paint"}
TEAM_FOLDERS = ("teams", "tasks")
"""Where the CLI keeps teams, in its settings folder."""
CLEANING_SECONDS = 5.0
LIMIT_SECONDS = 50.0
COLUMNS = 80
BOLD, DIM, ACCENT, WARNING, ALARM = "1", "2", "36", "1;33", "1;31"
STYLES = {"question": WARNING}

BROKEN_CLI = "check the CLI: hocket doctor; without it: hocket demo --scripted"
BROKEN_TEAM = "check the CLI: hocket doctor; without a team: hocket demo"
NEXT = """\
hocket run "planner -> builder:3"     your own agents, by name or by path
hocket run ... --on-question ask      the agent waits for your answer
hocket rehearse "planner -> builder"  your own chain with scripted agents
docs/guides/claude.md                 the guide"""
NEXT_WITH_TEAM = """\
hocket spawn claude --team -p "..."   your own team
hocket team RUN                       its teammates and their tasks
hocket attach RUN                     the terminal of its lead"""


class DemoFailed(HocketError):
    """The demo did not show what it promises."""

    code = "demo"
    exit_code = 1


def tour_body(cwd: str) -> dict[str, Any]:
    """The body of the start request of the tour."""
    body = {"dsl": TOUR_CHAIN, "prompt": TOUR_PROMPT, "on_question": "ask", "timeout": LIMIT_SECONDS}
    return {**body, "cwd": cwd, "env": access.environment(cwd)}


@command(
    Option("--scripted", kind=FLAG, help="Use scripted agents even if the Claude CLI is installed."),
    Option("--team", kind=FLAG, help="Show an agent that leads a team; needs the Claude CLI."),
    examples=("hocket demo", "hocket demo --scripted", "hocket demo --team"),
)
def demo(scripted: bool, team: bool) -> int:
    """Take a tour of a minute: agents in a chain, a question, and a server that is killed half-way.

    It needs no account and no network, and leaves nothing behind.
    """
    if scripted and team:
        raise ArgumentError("--team needs the Claude CLI, which --scripted replaces")
    before = config.process_environment()
    with temp_home("demo") as place:
        project = place.folder("project")
        if not team:
            shutil.copytree(TOUR_FILES / "agents", project / ".claude" / "agents")
        cli = None if scripted else _installed_cli(before, place)
        if team and cli is None:
            raise UsageError("a team needs the Claude CLI, which was not found", _how_to_install())
        base = {name: value for name, value in without_account(before).items() if not name.startswith("XDG_")}
        env = {**base, "HOME": str(place.folder("user")), **({"HOCKET_CLAUDE": cli} if cli else {})}
        config.replace_environment(temp_environment(place, env, {}))
        script = TOUR_FILES / ("team.yaml" if team else "script.yaml")
        if team:
            agents = scripted_model(place, script, env, {})
        elif cli:
            definitions = [read_definition(str(path)) for path in sorted((TOUR_FILES / "agents").iterdir())]
            prompts = {definition.name: str(definition.fields["prompt"]) for definition in definitions}
            agents = scripted_model(place, script, env, prompts)
        else:
            agents = scripted_agents(place, script, env, {})
        with agents:
            try:
                if team:
                    return TeamTour(place, project).take(str(cli))
                return Tour(place, project).take(cli, "as requested" if scripted else "no Claude CLI was found")
            except ClientExit as leaving:
                return leaving.code


def _how_to_install() -> str:
    program = PROVIDERS[CLAUDE].program
    assert program is not None  # noqa: S101 - only a plain program has none
    return f"{program.install}, or set {program.variable} to its program; without a team: hocket demo"


def _installed_cli(env: dict[str, str], place: TempHome) -> str | None:
    """The Claude CLI on PATH, regardless of the user's configuration."""
    known = {"HOME": str(place.folder("user")), "PATH": env.get("PATH", ""), **config.named_programs(env)}
    try:
        return resolve("claude", access.directory(None), known, Config()).agent.path or None
    except HocketError:
        return None


class TourDisplay(RunDisplay):
    """Shows a run of a tour, whose server is killed while it runs; a broken connection is part of it."""

    tick = 0.25

    def __init__(self, place: TempHome, project: Path) -> None:
        self.colour = config.colour_wanted(sys.stdout.isatty())
        self._place = place
        self._project = project
        self._columns = access.terminal_width() or COLUMNS
        self._killed: dict[str, Any] | None = None
        self._took_over = False

    def _begin(self, agents: str) -> None:
        self._print("A tour of Hocket: no account, no network, no cost, nothing left behind.", BOLD)
        self._print(truncate(f"Uses {agents}", self._columns), DIM)

    def _watch(self, body: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """Start a run and show it to its end; return the data of the end, and the exit code if a signal ended it."""
        client = access.connect(talk=False)
        signals = SignalHandler(client, on_terminal=False)
        signals.install()
        run = str(client.request("POST", "/api/runs", body)["id"])
        signals.set_run(run)
        ended = watch(client, steady_view(run), self, KeyboardControl(client, self, signals))["data"]
        return ended, signals.code

    def _kill_server(self, worker: str) -> None:
        self._killed = read_lock(self._place.home)
        pid = self._killed.get("pid", 0)
        self._explain(f"The {worker} is running. Now the server is killed:")
        if not signal_process(pid, self._killed.get("start_time", 0), signal.SIGKILL):
            raise DemoFailed("the server could not be killed")
        self._print(f"$ kill -9 {pid}", ALARM)

    def _report_new_server(self, worker: str) -> None:
        """Report the next server once it is there."""
        if self._killed is None or self._took_over:
            return
        pid = read_lock(self._place.home).get("pid")
        if pid is not None and pid != self._killed["pid"]:
            self._took_over = True
            self._explain(
                f"A new server (pid {pid}) continues where the old one stopped; the {worker} was not interrupted."
            )

    # --- output ---------------------------------------------------------------------------------------------

    def _explain(self, text: str) -> None:
        self._print("\n" + textwrap.fill(f"▸ {text}", self._columns, subsequent_indent="  "), ACCENT)

    def _command(self, text: str) -> None:
        self._print(f"$ hocket {text}", BOLD)

    def _output(self, line: str, style: str | None = None) -> None:
        for row in wrap_line(f"  {line}", self._columns):
            self._print(row, style)

    def _print(self, text: str, style: str | None) -> None:
        print(paint(text, style, self.colour), flush=True)

    def _run(self, *words: str) -> None:
        for line in self._captured(*words, notes=True).splitlines():
            self._output(line)

    def _captured(self, *words: str, notes: bool = False) -> str:
        """What a command prints; with ``notes`` also its messages."""
        caught = io.StringIO()
        with redirect_stdout(caught), redirect_stderr(caught if notes else sys.stderr):
            code = run_command("hocket", words)
        if code != 0:
            raise DemoFailed(f"hocket {' '.join(words)} ended with {code}")
        return caught.getvalue()


class Tour(TourDisplay):
    """The steps of the tour, and what it does to the chain while it runs."""

    _answered = False

    def take(self, cli: str | None, reason: str) -> int:
        """Show everything; returns the exit code."""
        self._begin(f"the installed Claude CLI with a scripted model: {cli}" if cli else f"scripted agents ({reason})")
        self._explain(
            "Three agents are defined in .claude/agents: planner, builder and reviewer. They run one after another,"
            " the builder up to three times, until it says that it is done."
        )
        self._command(f'run "{TOUR_CHAIN}" --on-question ask \\\n    -p "{TOUR_PROMPT}"')
        ended, code = self._watch(tour_body(str(self._project)))
        if code is not None:
            return code
        self._check(ended, BROKEN_CLI if cli else None)
        self._explain("Done. Every agent and every iteration is a run; each was started exactly once.")
        self._command("ps -a")
        runs = json.loads(self._captured("ps", "-a", "--json"))
        for line in ps_table(runs, time.time(), self._columns - 2, self.colour):
            self._print(f"  {line}", None)
        self._explain(f"With a real model this would have cost {cost_text(ended) or 'nothing'}.")
        self._explain("Next steps:")
        for line in NEXT.splitlines():
            self._output(line)
        return 0

    # --- events ---------------------------------------------------------------------------------------------

    def show(self, view: RunView, event: dict[str, Any]) -> None:
        """Show an event of the chain, then answer the question or kill the server when it is time to."""
        self._report_new_server("builder")
        for line in question_with_reply(view, event) if event["type"] == "question" else lines_of(view, event):
            self._output(line, STYLES.get(event["type"]))
        process = view.processes.get(event["run"])
        if process is None:
            return
        if event["type"] == "question" and not self._answered:
            self._answered = True
            self._explain("The agent asks and waits. Any terminal can answer:")
            self._command(f"answer {process.number} allow")
            self._run("answer", str(process.number), "allow")
        elif event["type"] == "tool.finished" and process.agent == "builder" and self._killed is None:
            self._kill_server("builder")

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


class TeamTour(TourDisplay):
    """The steps of the tour with a team, and what it does to the lead while it runs."""

    def __init__(self, place: TempHome, project: Path) -> None:
        super().__init__(place, project)
        self._members: set[str] = set()
        self._completed: set[str] = set()
        self._messages: set[tuple[str, str]] = set()
        self._asked = self._stopping = False

    def take(self, cli: str) -> int:
        """Show everything; returns the exit code."""
        self._begin(f"the installed Claude CLI with a scripted model: {cli}")
        self._explain(
            "An agent leads a team of its CLI: it shares three tasks, starts two teammates for them, and they write"
            " messages to each other."
        )
        self._command(f'spawn claude --team -p "{TEAM_PROMPT}"')
        cwd = str(self._project)
        body = {"agent": "claude", "agent_teams": True, "prompt": TEAM_PROMPT, "timeout": LIMIT_SECONDS}
        ended, code = self._watch({**body, "cwd": cwd, "env": access.environment(cwd)})
        if code is not None:
            return code
        self._check(ended)
        self._explain("Done. Processes, team and tasks are gone; what happened is kept:")
        self._command("ps -a")
        runs = json.loads(self._captured("ps", "-a", "--json"))
        for line in ps_table(runs, time.time(), self._columns - 2, self.colour):
            self._print(f"  {line}", None)
        self._explain("Next steps:")
        for line in NEXT_WITH_TEAM.splitlines():
            self._output(line)
        return 0

    def show(self, view: RunView, event: dict[str, Any]) -> None:
        """Show an event of the team, then do what it is time for."""
        self._report_new_server("team")
        for line in lines_of(view, event):
            self._output(line)
        if event["run"] != view.root:
            return
        self._note(event["type"], event["data"])
        number = str(view.processes[view.root].number)
        if self._messages and self._killed is None:
            self._kill_server("team")
        elif self._completed >= TEAM_TASKS and not self._asked:
            self._asked = True
            self._show_and_ask(number)
        elif self._asked and event["type"] == "turn.ended" and "Yes" in (event["data"]["result"] or ""):
            self._stop(number)

    def _note(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "member" and data.get("name"):
            self._members.add(data["name"])
        elif kind == "message":
            self._messages.add((data["from"], data["to"]))
        elif kind == "task.changed" and data.get("status") == "completed":
            self._completed.add(data["subject"])

    def _show_and_ask(self, number: str) -> None:
        self._explain("All tasks are done, and the lead waits. Any terminal can look at its team and write to it:")
        self._command(f"team {number}")
        self._run("team", number)
        self._command(f'send {number} "{TEAM_QUESTION}"')
        self._run("send", number, TEAM_QUESTION)

    def _stop(self, number: str) -> None:
        if not self._stopping:
            self._stopping = True
            self._command(f"stop {number}")
            self._run("stop", number)

    def _check(self, ended: dict[str, Any]) -> None:
        """Raise unless everything happened that the tour shows, and nothing is left of it."""
        if ended["status"] != "stopped" or not self._stopping:
            why = ": ".join(str(part) for part in (ended["reason"], ended.get("error")) if part)
            raise DemoFailed(f"the lead ended as {ended['status']} ({why})", BROKEN_TEAM)
        sent = {("alice", "team-lead"), ("team-lead", "alice")}
        if not (self._took_over and self._members >= {"alice", "bob"} and self._messages >= sent):
            raise DemoFailed("the server was not killed, or a teammate or a message is missing")
        deadline = time.monotonic() + CLEANING_SECONDS
        while left := self._left():
            if time.monotonic() > deadline:
                raise DemoFailed(f"left behind: {', '.join(map(str, left))}")
            time.sleep(self.tick)

    def _left(self) -> list[Path]:
        """What is left of teams in the folders of the CLI, which the server cleans up after the end of the lead."""
        folders = (self._place.folder("claude") / name for name in TEAM_FOLDERS)
        return [path for folder in folders for path in folder.glob("*")]
