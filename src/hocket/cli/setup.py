"""``hocket setup``: what has to be told to the machine once. So far that is a server that starts by itself.

Without it nobody looks after the runs between a restart of the machine and the next command. These files are the only
ones that Hocket writes outside of its home and the projects it works in, and only because they were asked for.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from hocket import config
from hocket.cli import access
from hocket.cli.usage import FLAG, JSON, ArgumentError, Group, Option, command
from hocket.errors import Conflict, HocketError, ProgramNotFound

OURS = "Written by `hocket setup service`"
"""Whatever has this line is ours to write again and to remove."""
NOTE = f"{OURS}, which also removes it. Without this line it counts as yours and is left alone."
UNIT = "hocket.service"
TARGET = "default.target"
LABEL = "hocket.server"
TOOL_SECONDS = 30.0
_TOOL_OUTPUT = 4096


class Service(NamedTuple):
    """How one kind of machine is told to start the server at login."""

    path: str
    text: str
    tool: str
    """The program that the machine is told by."""
    enable: tuple[tuple[str, ...], ...]
    disable: tuple[tuple[str, ...], ...]
    """What to run once the file is gone."""
    link: str | None
    """What its tool makes when it is enabled, and what would dangle without the file."""
    more: tuple[str, ...] = ()
    """What else may be wanted."""


def service_of(platform: str, environ: dict[str, str], python: str) -> Service:
    """The service of this user, for this Python and this home."""
    return _launchd(environ, python) if platform == "darwin" else _systemd(environ, python)


def path_of(platform: str, environ: dict[str, str]) -> str:
    """Where the machine looks for it."""
    if platform == "darwin":
        return os.path.join(config.home_directory(environ), "Library", "LaunchAgents", f"{LABEL}.plist")
    return os.path.join(os.path.dirname(config.config_directory(environ)), "systemd", "user", UNIT)


def _systemd(environ: dict[str, str], python: str) -> Service:
    path = path_of("linux", environ)
    told = ("systemctl", "--user")
    return Service(
        path,
        unit(python, config.home(environ), _passed_on(environ)),
        "systemctl",
        ((*told, "daemon-reload"), (*told, "enable", UNIT)),
        ((*told, "daemon-reload"),),
        os.path.join(os.path.dirname(path), f"{TARGET}.wants", UNIT),
        ("loginctl enable-linger   starts it with the machine, before anybody logs in",),
    )


def _launchd(environ: dict[str, str], python: str) -> Service:
    path = path_of("darwin", environ)
    domain = f"gui/{os.getuid()}"
    return Service(
        path,
        agent_list(python, config.home(environ), _passed_on(environ)),
        "launchctl",
        (("launchctl", "bootstrap", domain, path),),
        (("launchctl", "bootout", f"{domain}/{LABEL}"),),
        None,
    )


def _passed_on(environ: dict[str, str]) -> dict[str, str]:
    """What the server would not find by itself: at login nothing is set that a shell's start-up files set."""
    home, bare = config.home(environ), {"HOME": config.home_directory(environ)}
    found = {} if home == config.home(bare) else {"HOCKET_HOME": home}
    if config.config_directory(environ) != config.config_directory(bare):
        found["XDG_CONFIG_HOME"] = os.path.dirname(config.config_directory(environ))
    return found | config.program_places(environ)


# --- What is written ----------------------------------------------------------------------------------------


def unit(python: str, home: str, environment: dict[str, str]) -> str:
    """The unit of systemd.

    Keepers live in the server's control group, so nothing but the server itself may be killed with it, and one of
    their programs that takes too much memory must not take the server along. A server that refuses to start (another
    one is there, the home cannot be used) is tried a few times and then let be: any command starts one, too. Python
    looks for modules where it works: that must be ours.
    """
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()]
    return "\n".join(
        [
            f"# {NOTE}",
            "[Unit]",
            "Description=Hocket, the server that looks after runs",
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
    """One word of a unit's line, whatever is in it."""
    escaped = _one_line(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if set(escaped) & set(" \t\"'\\;") else escaped


def _one_line(word: str) -> str:
    if not word.isprintable():
        raise HocketError(
            f"a service cannot be told a path like {word!r}", "correct PATH, HOCKET_HOME or HOCKET_CLAUDE"
        )
    return word


def agent_list(python: str, home: str, environment: dict[str, str]) -> str:
    """The agent of launchd. Abandoning the group is what keeps the keepers alive when the server goes."""
    import plistlib

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
    Option("--enable", kind=FLAG, help="Also tell the machine, instead of printing how."),
    Option("--remove", kind=FLAG, help="Take it away again."),
    Option("--print", name="only_print", kind=FLAG, help="Print the file, and write nothing."),
    JSON,
    examples=("hocket setup service", "hocket setup service --enable", "hocket setup service --remove"),
)
def service(enable: bool, remove: bool, only_print: bool, as_json: bool) -> int:
    """Have the server start when you log in, so that chains go on after a restart of the machine.

    Writes a systemd user unit, or on macOS a launchd agent, and prints how to enable it.
    """
    if remove + enable + only_print > 1:
        raise ArgumentError("give one of --enable, --remove and --print")
    environ = config.process_environment()
    wanted = service_of(sys.platform, environ, sys.executable)
    if only_print:
        access.write_json({"path": wanted.path, "text": wanted.text}) if as_json else access.write(wanted.text)
        return 0
    if remove:
        return _remove(wanted, as_json)
    _check_tool(wanted, environ)
    access.make_home()
    done = {"path": wanted.path, "written": _write(wanted.path, wanted.text), "enabled": False}
    if enable:
        _tell(wanted.enable, environ)
        done["enabled"] = True
    _report(done, wanted, as_json)
    return 0


def is_set_up() -> bool:
    """Whether there is a service, be it ours or one that somebody wrote."""
    return os.path.lexists(path_of(sys.platform, config.process_environment()))


def tell_restart() -> None:
    """Say, once, that a restart of the machine ended runs, and what would have chains go on by themselves."""
    from hocket.keeper.machine_restart import take_note

    runs = take_note(config.home())
    if not runs:
        return
    lost = f"{runs} {'run is' if runs == 1 else 'runs are'} lost"
    print(f"hocket: the machine was restarted, and {lost}: hocket ps -a", file=sys.stderr)
    if not is_set_up():
        print("hint: to have chains go on by themselves after a restart: hocket setup service", file=sys.stderr)


def _check_tool(wanted: Service, environ: dict[str, str]) -> None:
    if _found(wanted.tool, environ) is None:
        raise ProgramNotFound(
            f"there is no {wanted.tool} here, so nothing would read {wanted.path}",
            f"have this machine run `{sys.executable} -m hocket serve` as you when it starts, in its own way "
            "(cron: @reboot), and without it let any hocket command start the server",
        )


def _found(tool: str, environ: dict[str, str]) -> str | None:
    import shutil

    return shutil.which(tool, path=environ.get("PATH"))


def _write(path: str, text: str) -> bool:
    """Write the file, whole or not at all; False when it was so already."""
    if _own_text(path) == text:
        return False
    spare = f"{path}.new"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(spare, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(spare, path)
    except OSError as error:
        raise HocketError(f"cannot write {path}: {error.strerror}") from error
    return True


def _own_text(path: str) -> str | None:
    """What we wrote there, None where nothing is. Whatever else is there is not ours to touch."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        if not os.path.islink(path):
            return None
        text = ""
    except OSError as error:
        raise HocketError(f"cannot read {path}: {error.strerror}") from error
    if os.path.islink(path) or OURS not in text:
        raise Conflict(f"{path} is not ours", "move it away, or see what we would write: hocket setup service --print")
    return text


def _tell(commands: tuple[tuple[str, ...], ...], environ: dict[str, str]) -> None:
    from hocket.keeper.programs import run_tool

    for words in commands:
        program = _found(words[0], environ) or words[0]
        done = run_tool([program, *words[1:]], "/", environ, TOOL_SECONDS, _TOOL_OUTPUT)
        if done.code != 0:
            said = " ".join(done.output.decode(errors="replace").split())
            why = "says nothing for too long" if done.timed_out else said or f"exit code {done.code}"
            raise HocketError(f"{' '.join(words)}: {why}", "the file is written; enable it when this works")


def _report(done: dict[str, Any], wanted: Service, as_json: bool) -> None:
    following = [] if done["enabled"] else [" ".join(words) for words in wanted.enable]
    if as_json:
        access.write_json({**done, "next": following})
        return
    lines = [f"{'wrote' if done['written'] else 'as it was'}  {wanted.path}"]
    if done["enabled"]:
        lines.append("enabled; the server starts with your next login")
    else:
        lines += ["to have the server start with your next login:", *(f"  {line}" for line in following)]
    if wanted.more:
        lines += ["perhaps also:", *(f"  {line}" for line in wanted.more)]
    access.write("".join(f"{line}\n" for line in lines))


def _remove(wanted: Service, as_json: bool) -> int:
    was = _own_text(wanted.path) is not None
    if was:
        if wanted.link is not None and _leads_to(wanted.link, wanted.path):
            os.unlink(wanted.link)
        os.unlink(wanted.path)
    following = [" ".join(words) for words in wanted.disable] if was else []
    if as_json:
        access.write_json({"path": wanted.path, "removed": was, "next": following})
    elif was:
        lines = (f"removed  {wanted.path}", "to have it forgotten at once:", *(f"  {line}" for line in following))
        access.write("".join(f"{line}\n" for line in lines))
    else:
        access.write("no service is set up\n")
    return 0


def _leads_to(link: str, path: str) -> bool:
    return os.path.islink(link) and os.path.realpath(link) == os.path.realpath(path)


setup = Group(
    "Tell this machine about Hocket, once.",
    {"service": service},
    "hocket setup service",
    "hocket setup service --remove",
)
