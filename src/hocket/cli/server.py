"""``serve server notify setup``: the server in the foreground and the background, its notifications, its service.

``server status`` and ``server stop`` never start a server. The files of ``setup`` are the only ones that Hocket writes
outside its home and the projects it works in.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hocket import config
from hocket.cli import access
from hocket.cli.claude.setup import claude
from hocket.cli.usage import FLAG, JSON, PORT, ArgumentError, Group, Option, command
from hocket.client.startup import lock_held, read_lock, wait_unlocked
from hocket.errors import ConfigError, Conflict, HocketError, ProgramNotFound, ServerUnreachable
from hocket.keeper.machine_restart import take_note
from hocket.keeper.platform import wait_gone
from hocket.keeper.programs import run_tool
from hocket.redaction import Redactor, secrets_of
from hocket.sessions.home import locked, prepare
from hocket.views.text import one_line, terminal_output

STOP_SECONDS = 30.0
STOP_RETRY_SECONDS = 1.0


@command(
    Option("--port", kind=PORT, metavar="N", help="Listen on this port; 0 takes any free one."),
    Option("--host", default="127.0.0.1", metavar="ADDRESS", help="Listen on this address (default 127.0.0.1)."),
    Option("--allow-remote", kind=FLAG, help="Allow an address that other machines can reach."),
    examples=("hocket serve", "hocket serve --port 0"),
)
def serve(port: int | None, host: str, allow_remote: bool) -> int:
    """Run the server in the foreground. Commands start one in the background when they need it."""
    home = Path(config.home())
    prepare(home)
    # Lock before the heavy imports: when many clients start a server at once, all but one end here.
    with locked(home) as lock:
        from hocket.api.server import serve as run_server

        return run_server(home, lock, port, host, allow_remote)


@command(JSON, examples=("hocket server status --json",))
def status(as_json: bool) -> None:
    """Show whether the server is running, and where."""
    home = config.home()
    found: dict[str, Any] = {
        "running": lock_held(home),
        "pid": None,
        "socket": config.socket_path(home),
        "url": None,
        "unavailable_port": None,
        "token_file": None,
        "version": None,
        "runs_live": None,
        "home": home,
    }
    if found["running"]:
        found |= {name: value for name, value in read_lock(home).items() if name in found}
        try:
            health = access.connect(starting=False).request("GET", "/api/health")
            found |= {name: value for name, value in health.items() if name in found}
        except HocketError as error:
            found["error"] = error.message
    if as_json:
        access.write_json(found)
    elif not found["running"]:
        access.write("not running; started by the next command that needs it\n")
    else:
        taken = found["unavailable_port"]
        instead = "" if taken is None else f"  (port {taken} was not available when the server started)"
        access.write(
            f"running  pid {found['pid']}  version {found['version']}  live runs {found['runs_live']}\n"
            f"socket   {found['socket']}\nurl      {found['url']}{instead}\nhome     {found['home']}\n"
        )
    if "error" in found and not as_json:
        print(f"hocket: the server does not respond: {found['error']}", file=sys.stderr)


@command(JSON, examples=("hocket server stop",))
def stop(as_json: bool) -> None:
    """Stop the server. Its runs continue, and the next server adopts them."""
    home = config.home()
    was = lock_held(home)
    holder = read_lock(home) if was else {}
    pid = holder.get("pid")
    deadline = time.monotonic() + STOP_SECONDS
    while was:
        # The server may have ended before it could respond, or be still starting.
        with suppress(ServerUnreachable):
            access.connect(starting=False).request("POST", "/api/server/stop", {})
        # Wait for the process, because another server may hold the lock by now.
        if "start_time" in holder:
            is_gone = wait_gone({holder["pid"]: holder["start_time"]}, STOP_RETRY_SECONDS)
        else:
            is_gone = wait_unlocked(home, STOP_RETRY_SECONDS)
        if is_gone:
            break
        if time.monotonic() > deadline:
            raise HocketError(f"the server (pid {pid}) does not stop", "see server.log in HOCKET_HOME")
    if as_json:
        access.write_json({"stopped": was, "pid": pid})
    else:
        access.write(f"stopped  pid {pid}\n" if was else "no server was running\n")


server = Group(
    "Show or stop the background server. Runs continue without it.",
    {"status": status, "stop": stop},
    "hocket server status",
    "hocket server stop",
)


# --- Notifications ------------------------------------------------------------------------------------------


@command(
    Option("--test", kind=FLAG, help="Run the command of [notify] with an example event, and show what it does."),
    JSON,
    examples=("hocket notify --test",),
)
def notify(test: bool, as_json: bool) -> int:
    """Test the command that the server runs when a run needs an answer, a run fails or a chain ends.

    It is set by "command" under [notify] in your config.toml.
    """
    if not test:
        raise ArgumentError("missing option --test")
    from hocket.workflows import notifications

    home = access.make_home()
    argv, event = notifications.configured_command(home), notifications.example_content()
    if not argv:
        file = next(one.path for one in config.config_files(home, home) if one.rank == "user")
        example = '  [notify]\n  command = ["/path/to/a/program", "an argument"]'
        raise ConfigError("no command for notifications is configured", f"add to {file}:\n{example}")
    env, stdin = notifications.command_environment(home), notifications.encoded(event)
    try:
        done = run_tool(argv, home, env, notifications.TIMEOUT, _TOOL_OUTPUT, stdin)
    except OSError as error:
        raise ProgramNotFound(f"cannot run {argv[0]}: {error.strerror}", "correct command under [notify]") from error
    output = Redactor(secrets_of(env)).tail(done.output, _TOOL_OUTPUT).decode(errors="replace")
    outcome = f"was ended after {notifications.TIMEOUT:.0f} s" if done.timed_out else f"exit code {done.code}"
    if as_json:
        result = {"command": argv, "event": event, "exit_code": done.code, "timed_out": done.timed_out}
        access.write_json({**result, "output": output})
    else:
        lines = [f"command  {one_line(shlex.join(argv))}", f"input    {stdin.decode().rstrip()}", f"outcome  {outcome}"]
        access.write_lines([*lines, *(f"output   {line}" for line in terminal_output(output).splitlines())])
    return 1 if done.timed_out or done.code != 0 else 0


# --- The service --------------------------------------------------------------------------------------------

OWN_MARK = "Written by `hocket setup service`"
"""Files with this line may be rewritten and removed."""
NOTE = f"{OWN_MARK}, which also removes it. Without this line the file counts as yours and is left alone."
UNIT = "hocket.service"
TARGET = "default.target"
LABEL = "hocket.server"
TOOL_SECONDS = 30.0
_TOOL_OUTPUT = 4096


class Service(NamedTuple):
    """The service that starts the server at login, on one kind of machine."""

    path: str
    text: str
    enable: tuple[tuple[str, ...], ...]
    disable: tuple[tuple[str, ...], ...]
    """Commands for after the file is removed."""
    link: str | None
    """The link that enabling it creates."""
    more: tuple[str, ...] = ()
    """Optional further commands."""


def service_of(platform: str, environ: dict[str, str], python: str) -> Service:
    """The service for this user, Python and home."""
    path, home, environment = path_of(platform, environ), config.home(environ), _service_environment(environ)
    if platform == "darwin":
        domain = f"gui/{os.getuid()}"
        text = agent_list(python, home, environment)
        bootstrap, bootout = ("launchctl", "bootstrap", domain, path), ("launchctl", "bootout", f"{domain}/{LABEL}")
        return Service(path, text, (bootstrap,), (bootout,), None)
    reload = ("systemctl", "--user", "daemon-reload")
    enable = (reload, ("systemctl", "--user", "enable", UNIT))
    link = os.path.join(os.path.dirname(path), f"{TARGET}.wants", UNIT)
    more = ("loginctl enable-linger   starts it at boot, before you log in",)
    return Service(path, unit(python, home, environment), enable, (reload,), link, more)


def path_of(platform: str, environ: dict[str, str]) -> str:
    """The path of the service file."""
    if platform == "darwin":
        return os.path.join(config.home_directory(environ), "Library", "LaunchAgents", f"{LABEL}.plist")
    return os.path.join(os.path.dirname(config.config_directory(environ)), "systemd", "user", UNIT)


def _service_environment(environ: dict[str, str]) -> dict[str, str]:
    """The variables the server needs; at login those of a shell's start-up files are not set."""
    home, bare = config.home(environ), {"HOME": config.home_directory(environ)}
    found = {} if home == config.home(bare) else {"HOCKET_HOME": home}
    if config.config_directory(environ) != config.config_directory(bare):
        found["XDG_CONFIG_HOME"] = os.path.dirname(config.config_directory(environ))
    return found | config.program_places(environ)


# --- What is written ----------------------------------------------------------------------------------------


def unit(python: str, home: str, environment: dict[str, str]) -> str:
    """The systemd unit.

    Keepers live in the server's control group, so only the server itself may be killed with it, and an agent that runs
    out of memory must not take the server along. A server that refuses to start (another one runs, the home cannot be
    used) is retried a few times only, because any command starts one too. The working directory must not be writable by
    others, because Python imports modules from it.
    """
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()]
    return "\n".join(
        [
            f"# {NOTE}",
            "[Unit]",
            "Description=Hocket server",
            "StartLimitIntervalSec=120",
            "StartLimitBurst=4",
            "",
            "[Service]",
            f"ExecStart={_quoted(python)} -m hocket serve",
            f"WorkingDirectory=-{_one_line(home).replace('%', '%%')}",
            *lines,
            "KillMode=process",
            "OOMPolicy=continue",
            "Restart=on-failure",
            "RestartSec=5",
            "",
            "[Install]",
            f"WantedBy={TARGET}",
            "",
        ]
    )


def _quoted(word: str) -> str:
    """One word of a line of a unit, quoted if needed."""
    escaped = _one_line(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if set(escaped) & set(" \t\"'\\;") else escaped


def _one_line(word: str) -> str:
    if not word.isprintable():
        raise HocketError(f"a service file cannot contain {word!r}", "correct PATH, HOCKET_HOME or HOCKET_CLAUDE")
    return word


def agent_list(python: str, home: str, environment: dict[str, str]) -> str:
    """The launchd agent. Abandoning the process group keeps the keepers alive when the server ends."""
    log = os.path.join(home, "server.log")
    content: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": [python, "-m", "hocket", "serve"],
        "WorkingDirectory": home,
        "EnvironmentVariables": environment,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 60,
        "AbandonProcessGroup": True,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    head, body = plistlib.dumps(content).decode().split("<plist", 1)
    return f"{head}<!-- {NOTE} -->\n<plist{body}"


# --- The command --------------------------------------------------------------------------------------------


@command(
    Option("--enable", kind=FLAG, help="Enable the service, instead of printing how."),
    Option("--remove", kind=FLAG, help="Remove the service."),
    Option("--print", name="only_print", kind=FLAG, help="Print the file and write nothing."),
    JSON,
    examples=("hocket setup service", "hocket setup service --enable", "hocket setup service --remove"),
)
def service(enable: bool, remove: bool, only_print: bool, as_json: bool) -> int:
    """Start the server when you log in, so that chains continue after a restart of the machine.

    Writes a systemd user unit, or on macOS a launchd agent, and prints how to enable it.
    """
    if remove + enable + only_print > 1:
        raise ArgumentError("give only one of --enable, --remove and --print")
    environ = config.process_environment()
    wanted = service_of(sys.platform, environ, sys.executable)
    if only_print:
        access.write_json({"path": wanted.path, "text": wanted.text}) if as_json else access.write(wanted.text)
        return 0
    if remove:
        return _remove_service(wanted, as_json)
    tool = wanted.enable[0][0]
    if shutil.which(tool, path=environ.get("PATH")) is None:
        raise ProgramNotFound(
            f"{tool} is not installed, so {wanted.path} would have no effect",
            f"start `{sys.executable} -m hocket serve` at boot in another way (cron: @reboot); "
            "until then any hocket command starts the server",
        )
    access.make_home()
    done = {"path": wanted.path, "written": _write_service(wanted.path, wanted.text), "enabled": False}
    if enable:
        _run_commands(wanted.enable, environ)
        done["enabled"] = True
    _report_service(done, wanted, as_json)
    return 0


def has_service() -> bool:
    """True if a service file exists, written by Hocket or by the user."""
    return os.path.lexists(path_of(sys.platform, config.process_environment()))


def report_restart() -> None:
    """Print, once, that a restart of the machine ended runs, and how chains can survive the next one."""
    runs = take_note(config.home())
    if not runs:
        return
    lost = f"{runs} {'run was' if runs == 1 else 'runs were'} lost"
    print(f"hocket: the machine was restarted, and {lost}: hocket ps -a", file=sys.stderr)
    if not has_service():
        print("hint: to continue chains after a restart: hocket setup service", file=sys.stderr)


def _write_service(path: str, text: str) -> bool:
    """Write the file atomically; False if it was up to date."""
    if _own_text(path) == text:
        return False
    temporary = f"{path}.new"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise HocketError(f"cannot write {path}: {error.strerror}") from error
    return True


def _own_text(path: str) -> str | None:
    """The text of a file that Hocket wrote; None if there is none. Raises if it is not Hocket's."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        if not os.path.islink(path):
            return None
        text = ""
    except OSError as error:
        raise HocketError(f"cannot read {path}: {error.strerror}") from error
    if os.path.islink(path) or OWN_MARK not in text:
        raise Conflict(
            f"{path} was not written by Hocket",
            "move it away, or see the file that would be written: hocket setup service --print",
        )
    return text


def _run_commands(commands: tuple[tuple[str, ...], ...], environ: dict[str, str]) -> None:
    for words in commands:
        program = shutil.which(words[0], path=environ.get("PATH")) or words[0]
        done = run_tool([program, *words[1:]], "/", environ, TOOL_SECONDS, _TOOL_OUTPUT)
        if done.code != 0:
            output = " ".join(done.output.decode(errors="replace").split())
            why = f"no result within {TOOL_SECONDS:.0f} s" if done.timed_out else output or f"exit code {done.code}"
            raise HocketError(f"{' '.join(words)}: {why}", "the file is written; enable it when this works")


def _report_service(done: dict[str, Any], wanted: Service, as_json: bool) -> None:
    following = [] if done["enabled"] else [" ".join(words) for words in wanted.enable]
    if as_json:
        access.write_json({**done, "next": following})
        return
    lines = [f"{'wrote' if done['written'] else 'unchanged'}  {wanted.path}"]
    if done["enabled"]:
        lines.append("enabled; the server starts with your next login")
    else:
        lines += ["to start the server with your next login:", *(f"  {line}" for line in following)]
    if wanted.more:
        lines += ["optional:", *(f"  {line}" for line in wanted.more)]
    access.write_lines(lines)


def _remove_service(wanted: Service, as_json: bool) -> int:
    was = _own_text(wanted.path) is not None
    if was:
        link = wanted.link
        if link is not None and os.path.islink(link) and os.path.realpath(link) == os.path.realpath(wanted.path):
            os.unlink(link)
        os.unlink(wanted.path)
    following = [" ".join(words) for words in wanted.disable] if was else []
    if as_json:
        access.write_json({"path": wanted.path, "removed": was, "next": following})
    elif was:
        indented = [f"  {line}" for line in following]
        access.write_lines([f"removed  {wanted.path}", "to make it effective at once:", *indented])
    else:
        access.write("no service to remove\n")
    return 0


setup = Group(
    "Set up this machine for Hocket.",
    {"service": service, "claude": claude},
    "hocket setup service",
    "hocket setup claude",
)
