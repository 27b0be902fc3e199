"""``hocket rehearse``: a chain as it is, its Claude agents played by a script. No account, no network, no cent.

Also the two tools around scripts: ``--record`` makes one of a run, ``--serve`` plays one to a CLI that somebody else
starts. Who plays, and where, is in ``players``, ``private`` and ``casting``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket import config
from hocket.cli import access
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
from hocket.client import Client
from hocket.errors import UsageError

if TYPE_CHECKING:
    from hocket.cli.casting import Role
    from hocket.cli.private import Place
    from hocket.cli.view import View
    from hocket.cli.watch import Signals
    from hocket.model import BoundChain

SCRIPT = "rehearsal.yaml"
FOOTER = "rehearsal  ·  ^C stop"
TOGETHER = ("record", "serve")
BELONGS = {"output": "record", "force": "record", "port": "serve"}


@command(
    CHAIN_WORDS,
    Option("--chain", name="chain_name", metavar="NAME", help="Rehearse a chain of the configuration."),
    Option("--script", metavar="FILE", help=f"What the agents say and do; without it {SCRIPT} of the project."),
    Option(
        "--real", name="is_real", kind=FLAG, help="The installed Claude CLI and its tools; only the model is played."
    ),
    Option("--keep", kind=FLAG, help="Keep the folder in which it took place, and print it."),
    PROMPT,
    PROMPT_FILE,
    CWD,
    UNTIL,
    TIMEOUT,
    MARKER,
    ASKING,
    *BOUNDS,
    Option("-v", "--verbose", kind=FLAG, help="Show all they say, and what they think."),
    QUIET,
    PLAIN,
    JSON,
    Option("--record", metavar="RUN", help="Print the script that says again what a Claude run said."),
    Option("-o", "--output", metavar="FILE", help="With --record: write it to a new file."),
    Option("--force", kind=FLAG, help="With -o: the file may be there already."),
    Option("--serve", metavar="FILE", help="Be the model of a script for a CLI that you start, until Ctrl-C."),
    Option("--port", kind=PORT, default=0, metavar="N", help="With --serve: where; 0 is any."),
    examples=(
        'hocket rehearse "planner:3 -> builder" -p "Expire old sessions"',
        "hocket rehearse --chain ship --script calm.yaml --real",
        "hocket rehearse --record 42 -o rehearsal.yaml",
        "hocket rehearse --serve rehearsal.yaml",
    ),
    passing=True,
)
def rehearse(words: tuple[str, ...], cwd: str | None, **options: Any) -> int:
    """Play a chain through with no account, no network and no cent: a script says what its Claude agents do.

    It happens in a temporary folder with a server of its own. Plain programs of the chain, and the gate, run for real.
    Ends with the chain's own exit code, but with 1 when the script did not cover what an agent was asked.
    """
    given = [f"--{name}" for name in TOGETHER if options[name] is not None]
    if len(given) > 1 or (given and (words or options["chain_name"])):
        raise ArgumentError(f"{given[-1]} stands alone")
    for name, tool in BELONGS.items():
        if options[name] and options[tool] is None:
            raise ArgumentError(f"--{name} belongs to --{tool}")
    if options["record"] is not None:
        return _record(options["record"], options["output"], options["force"])
    if options["serve"] is not None:
        return _serve(options["serve"], access.directory(cwd), options["port"])
    return _rehearse(words, access.directory(cwd), options)


# --- A rehearsal --------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A chain to be rehearsed, before anything has started."""

    request: dict[str, Any]
    chain: BoundChain
    cast: list[Role]
    script: Path
    name: str
    """What people call the script."""


def _rehearse(words: tuple[str, ...], cwd: str, options: dict[str, Any]) -> int:
    from hocket.cli.private import environment, private_place, share_configuration

    before, users_home = config.process_environment(), config.home()
    with private_place("rehearsal", options["keep"]) as place:
        share_configuration(place, users_home)
        # Which program it is does not matter yet, but there must be one for a chain to be put together.
        config.take_on(environment(place, before, {} if options["is_real"] else {"HOCKET_CLAUDE": sys.executable}))
        plan = _plan(place, words, cwd, options)
        if not (options["as_json"] or options["quiet"]):
            _announce(plan, options["is_real"], place)
        state = place.folder("state")
        with _players(place, plan, before, options["is_real"], state):
            code = _watch({**plan.request, "env": access.environment(cwd)}, options)
        code = _review(plan, state, code, options)
    if options["keep"]:
        print(f"kept {place.root}  look inside with: HOCKET_HOME={place.home} hocket ps -a", file=sys.stderr)
    return code


def _plan(place: Place, words: tuple[str, ...], cwd: str, options: dict[str, Any]) -> Plan:
    from hocket.cli.casting import roles, usual_script
    from hocket.cli.run import request_body
    from hocket.config.loading import load
    from hocket.model import BoundChain
    from hocket.workflows.bind import StartRequest, bind

    # A worktree would lie in the rehearsal's own home, and go with it.
    request = request_body(words, cwd, options) | {"isolation": "none"}
    request["on_question_default"] = "deny"  # a rehearsal goes on by itself unless somebody says otherwise
    chain = bind(StartRequest(**request), load(cwd, config.home()))
    assert isinstance(chain, BoundChain)  # noqa: S101 - only a request for a single agent binds to anything else
    cast = roles(chain)
    found = _script(options["script"], cwd)
    if found is not None:
        return Plan(request, chain, cast, found, str(found))
    usual = place.root / "script.json"
    usual.write_text(json.dumps(usual_script(cast)), encoding="utf-8")
    return Plan(request, chain, cast, usual, "the built-in script")


def _script(given: str | None, cwd: str) -> Path | None:
    """The one that was asked for, else the project's; None where there is none."""
    from hocket.catalog.file_probe import Look
    from hocket.catalog.sources import project_roots

    if given is not None:
        return Path(cwd, given)
    return next((path for folder in project_roots(Look(), cwd, {}) if (path := Path(folder, SCRIPT)).exists()), None)


def _announce(plan: Plan, is_real: bool, place: Place) -> None:
    from hocket.cli.casting import programs

    player = "the installed CLI, its tools run for real; the model is" if is_real else "its agents are"
    print(f"rehearsal: {player} played by {plan.name}", file=sys.stderr)
    if outside := programs(plan.chain):
        print(f"rehearsal: runs for real: {', '.join(outside)}", file=sys.stderr)
    if any(step.spec.on_question == "ask" for step in plan.chain.steps):
        print(f"rehearsal: questions are answered with HOCKET_HOME={place.home} hocket answer …", file=sys.stderr)


@contextmanager
def _players(place: Place, plan: Plan, before: Mapping[str, str], is_real: bool, state: Path) -> Iterator[None]:
    """From here on, the environment leads every Claude agent to the script."""
    from hocket.cli import players
    from hocket.cli.private import environment

    if not is_real:
        cwds = {step.spec.cwd for step in plan.chain.steps}
        found = players.sub_agents(cwds, access.environment(plan.request["cwd"]), config.home())
        config.take_on(environment(place, before, players.scripted(place, plan.script, state, found)))
        yield
        return
    from hocket.rehearsal import ScriptedModel, load

    model = ScriptedModel(load(plan.script), state=state, agents={role.agent: role.definition for role in plan.cast})
    # Starting a server forks, which is better done before there are threads.
    access.connect(talk=False).request("GET", "/api/health")
    players.share_agents(place, plan.request["cwd"], before)
    with model:
        config.take_on(environment(place, players.without_account(before), players.real(place, model.url, before)))
        yield


def _watch(request: dict[str, Any], options: dict[str, Any]) -> int:
    """As ``hocket run`` does, but nobody can leave a rehearsal and find it again."""
    from hocket.cli.watch import Leave, Signals, stream_json

    client = access.connect(talk=False)
    signals = Signals(client, on_terminal=False)
    signals.install()
    try:
        started = client.request("POST", "/api/runs", request)
        signals.watching(started["id"])
        if options["as_json"]:
            last = stream_json(client, started["id"], access.write_json, sys.stdout.flush)
        else:
            last = _show(client, started["id"], signals, options)
    except Leave as leave:
        return leave.code
    data = last["data"]
    return signals.exit_code(data["status"], access.exit_code(data["status"], data.get("reason")))


def _show(client: Client, run: str, signals: Signals, options: dict[str, Any]) -> dict[str, Any]:
    from hocket.cli.progress import Progress, summary
    from hocket.cli.steady import steady_now
    from hocket.cli.watch import watch

    progress = Progress(run)
    view = _view(options)
    view.note(FOOTER)
    last = watch(client, progress, view, signals)
    access.print_result(last["data"].get("result"))
    sys.stdout.flush()
    if not options["quiet"]:
        # The last line says how to look at a run later, and there is no later.
        print("\n".join(summary(progress, steady_now())[:-1]), file=sys.stderr)
    return last


def _view(options: dict[str, Any]) -> View:
    if not options["quiet"] and config.interactive(sys.stdout.isatty(), options["plain"]):
        from hocket.cli.terminal import LiveView

        return LiveView(options["verbose"], config.colour_wanted(True))
    from hocket.cli.plain import PlainView

    return PlainView(options["quiet"], options["verbose"], config.folds_logs(), config.colour_wanted(False))


def _review(plan: Plan, state: Path, code: int, options: dict[str, Any]) -> int:
    """What the rehearsal has shown about the script itself."""
    from hocket.cli.casting import complaint, unused
    from hocket.rehearsal import load, uncovered_in
    from hocket.rehearsal.conversation_counts import conversations_in

    if uncovered := list(dict.fromkeys(uncovered_in(state))):
        print("\n".join(complaint(uncovered, plan.name)), file=sys.stderr)
        return 1
    idle = unused(load(plan.script), conversations_in(state))
    if idle and plan.name == str(plan.script) and not (options["as_json"] or options["quiet"]):
        print(f"hint: never needed: {', '.join(idle)}", file=sys.stderr)
    return code


# --- Scripts ------------------------------------------------------------------------------------------------


def _record(ref: str, output: str | None, force: bool) -> int:
    from hocket.rehearsal import record

    client = access.connect()
    run = client.run(ref)
    if run["provider"] != "claude":
        raise UsageError(f"run {run['number']} is no Claude agent's", _recordable(run))
    raw = b"".join(client.output(run["id"]))
    recording = record(raw.split(b"\n"), _name_in_script(run))
    if output is None:
        access.write(recording.script)
    else:
        _write_new(Path(output), recording.script, force)
    for note in recording.notes:
        print(f"rehearsal: {note}", file=sys.stderr)
    return 0


def _recordable(run: dict[str, Any]) -> str | None:
    found = [str(child["number"]) for child in run["children"] if child["provider"] == "claude"]
    return f"name one of those below it: {', '.join(found)}" if found else None


def _name_in_script(run: dict[str, Any]) -> str:
    """The name in the agent's definition, which need not be what the run was asked for by."""
    from hocket.cli.casting import CLAUDE
    from hocket.keeper.files import read_spec

    argv = (read_spec(run["dir"]) or {}).get("argv", [])
    return str(argv[argv.index("--agent") + 1]) if "--agent" in argv else CLAUDE


def _write_new(path: Path, text: str, force: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already", "give another name, or --force to write over it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)


def _serve(file: str, cwd: str, port: int) -> int:
    import signal

    from hocket.cli.casting import complaint
    from hocket.cli.players import KEY
    from hocket.rehearsal import ScriptedModel, load

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
            print(f"export ANTHROPIC_BASE_URL={model.url}\nexport ANTHROPIC_API_KEY={KEY}", flush=True)
            print("the model of the script, until Ctrl-C", file=sys.stderr, flush=True)
            signal.pause()
        except KeyboardInterrupt:
            print(f"{model.requests} requests", file=sys.stderr)
    if model.uncovered:
        print("\n".join(complaint(model.uncovered, file)), file=sys.stderr)
    return 1 if model.uncovered else 0


def _definitions(names: set[str], cwd: str) -> dict[str, str]:
    """The texts by which the model knows who is asking, of those agents that are defined here."""
    from hocket.catalog.discovery import discover
    from hocket.catalog.fields import read_definition
    from hocket.config.loading import load

    env, home = access.environment(cwd), config.home()
    catalog = discover(cwd, env, home, load(cwd, home))
    found = {name: entry for name in sorted(names) for entry in catalog.find(name)[:1]}
    return {
        name: str(read_definition(entry.path, stem=name).fields.get("prompt") or "") for name, entry in found.items()
    }
