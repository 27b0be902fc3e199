"""``hocket setup service``: what it writes, what it leaves alone, and what it says where there is no such thing."""

from __future__ import annotations

import json
import os
import plistlib
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from world import Bin, Hocket

from hocket.cli.server import LABEL, OWN_MARK, UNIT, agent_list, service_of, unit
from hocket.errors import HocketError
from hocket.keeper import files
from hocket.keeper.platform import wait_gone
from hocket.keeper.programs import run_tool

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="systemd is a Linux thing")
RECORDER = """
import json, os, sys
log = os.open("__LOG__", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, (json.dumps(sys.argv[1:]) + "\\n").encode())
print("no bus")
sys.exit(__CODE__)
"""


@pytest.fixture
def place(world: Path) -> Path:
    """Where the unit belongs."""
    return Path(os.environ["XDG_CONFIG_HOME"]) / "systemd/user" / UNIT


def systemctl(agent: Bin, world: Path, code: int = 0) -> Path:
    """A program in its place that writes down what it is reported."""
    log = world / "reported"
    agent("systemctl", RECORDER.replace("__LOG__", str(log)).replace("__CODE__", str(code)))
    return log


def lines_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


# --- The files ----------------------------------------------------------------------------------------------


def test_unit_kills_only_the_server() -> None:
    reported = lines_of(unit("/usr/bin/python3", "/home/me/h", {}))
    assert reported["KillMode"] == "process"
    assert reported["OOMPolicy"] == "continue"
    assert reported["ExecStart"] == "/usr/bin/python3 -m hocket serve"
    assert (reported["Restart"], reported["WantedBy"]) == ("on-failure", "default.target")
    assert reported["WorkingDirectory"] == "-/home/me/h"
    assert "Environment" not in reported


@pytest.mark.parametrize("name", ["a b", 'a"b', "a\\b", "a%nb", "a;b", "ä 'b'"])
def test_unit_quotes_special_characters(name: str) -> None:
    reported = lines_of(unit(f"/{name}/python3", f"/{name}", {"HOCKET_HOME": f"/{name}"}))
    program, *rest = shlex.split(reported["ExecStart"].replace("%%", "%"))
    assert (program, rest) == (f"/{name}/python3", ["-m", "hocket", "serve"])
    assert shlex.split(reported["Environment"].replace("%%", "%")) == [f"HOCKET_HOME=/{name}"]


@pytest.mark.parametrize("path", ["/a\nExecStartPre=/bin/rm", "/a\0b"])
def test_unit_refuses_unprintable_paths(path: str) -> None:
    for given in ((path, "/h", {}), ("/p", path, {}), ("/p", "/h", {"HOCKET_HOME": path})):
        with pytest.raises(HocketError, match="cannot contain"):
            unit(*given)


@on_linux
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no program here can verify a unit")
def test_systemd_accepts_the_unit(world: Path) -> None:
    home, runtime = world / "a home", world / "runtime"
    home.mkdir()
    runtime.mkdir(mode=0o700)
    path = world / UNIT
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}

    def verdict(text: str) -> str:
        path.write_text(text)
        words = ["systemd-analyze", "verify", "--user", "--man=no", str(path)]
        return run_tool(words, "/", env, 15, 65536).output.decode()

    text = unit(sys.executable, str(home), {"HOCKET_HOME": str(home)})
    assert verdict(text) == ""
    assert "KillMode" in text
    assert verdict(text.replace("KillMode=process", "KillMode=some")) != ""


def test_launchd_agent_abandons_its_process_group() -> None:
    text = agent_list("/usr/bin/python3", "/u/me/h", {"HOCKET_HOME": "/u/me/h"})
    reported = plistlib.loads(text.encode())
    assert reported["AbandonProcessGroup"] is True
    assert reported["RunAtLoad"] is True
    assert reported["ProgramArguments"] == ["/usr/bin/python3", "-m", "hocket", "serve"]
    assert reported["EnvironmentVariables"] == {"HOCKET_HOME": "/u/me/h"}
    assert OWN_MARK in text


def test_service_file_has_the_platforms_path() -> None:
    env = {"HOME": "/home/me"}
    plain = service_of("linux", env, "/p")
    assert plain.path == f"/home/me/.config/systemd/user/{UNIT}"
    assert "Environment=" not in plain.text
    chosen = service_of("linux", {**env, "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/p")
    assert chosen.path == f"/c/systemd/user/{UNIT}"
    # A session that starts a service has set neither, and another home would be another server.
    assert "Environment=HOCKET_HOME=/s/hocket\nEnvironment=XDG_CONFIG_HOME=/c\n" in chosen.text
    assert service_of("darwin", env, "/p").path == f"/home/me/Library/LaunchAgents/{LABEL}.plist"


@pytest.mark.parametrize("folder", ["/opt/a b", "/opt/100%n", '/opt/a"b', "/opt/a\\b", "/opt/$HOME"])
def test_service_gets_the_users_path_and_cli(folder: str) -> None:
    env = {"HOME": "/home/me", "PATH": f"{folder}:/usr/bin", "HOCKET_CLAUDE": f"{folder}/claude"}
    words = [
        word
        for line in service_of("linux", env, "/p").text.splitlines()
        if line.startswith("Environment=")
        for word in shlex.split(line.partition("=")[2].replace("%%", "%"))
    ]
    assert words == [f"PATH={folder}:/usr/bin", f"HOCKET_CLAUDE={folder}/claude"]
    reported = plistlib.loads(service_of("darwin", env, "/p").text.encode())
    assert reported["EnvironmentVariables"] == {"PATH": f"{folder}:/usr/bin", "HOCKET_CLAUDE": f"{folder}/claude"}


# --- The command --------------------------------------------------------------------------------------------


@on_linux
def test_setup_writes_the_unit_and_runs_nothing(
    hocket: Hocket, agent: Bin, world: Path, home: Path, place: Path
) -> None:
    log = systemctl(agent, world)
    done = hocket("setup", "service")
    assert (done.returncode, done.stderr) == (0, "")
    assert "systemctl --user enable hocket.service" in done.stdout
    reported = lines_of(place.read_text())
    assert f"\nEnvironment=HOCKET_HOME={home}\n" in place.read_text()
    assert reported["ExecStart"] == f"{sys.executable} -m hocket serve"
    assert OWN_MARK in place.read_text().splitlines()[0]
    assert not log.exists()
    again = json.loads(hocket("setup", "service", "--json").stdout)
    assert (again["path"], again["written"], again["enabled"]) == (str(place), False, False)
    place.write_text(f"# {OWN_MARK}, an older one\n")
    assert json.loads(hocket("setup", "service", "--json").stdout)["written"] is True
    assert "KillMode=process" in place.read_text()


@on_linux
def test_enable_runs_the_service_tool(hocket: Hocket, agent: Bin, world: Path, place: Path) -> None:
    log = systemctl(agent, world)
    done = hocket("setup", "service", "--enable")
    assert done.returncode == 0
    assert [json.loads(line) for line in log.read_text().splitlines()] == [
        ["--user", "daemon-reload"],
        ["--user", "enable", UNIT],
    ]
    systemctl(agent, world, code=1)
    failed = hocket("setup", "service", "--enable")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "systemctl --user daemon-reload: no bus" in failed.stderr
    assert place.exists()


@on_linux
def test_remove_deletes_the_unit_and_its_link(hocket: Hocket, agent: Bin, world: Path, place: Path) -> None:
    systemctl(agent, world)
    hocket("setup", "service")
    link = place.parent / "default.target.wants" / UNIT
    link.parent.mkdir()
    link.symlink_to(place)
    gone = json.loads(hocket("setup", "service", "--remove", "--json").stdout)
    assert gone == {"path": str(place), "removed": True, "next": ["systemctl --user daemon-reload"]}
    assert not place.exists()
    assert not link.is_symlink()
    again = hocket("setup", "service", "--remove")
    assert (again.returncode, again.stdout) == (0, "no service to remove\n")


@on_linux
def test_foreign_unit_is_not_changed(hocket: Hocket, agent: Bin, world: Path, place: Path) -> None:
    systemctl(agent, world)
    place.parent.mkdir(parents=True)
    place.write_text("[Service]\nExecStart=/bin/mine\n")
    for words in ([], ["--enable"], ["--remove"]):
        done = hocket("setup", "service", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{place} was not written by Hocket" in done.stderr
    assert "/bin/mine" in place.read_text()
    place.unlink()
    place.symlink_to("/dev/null")  # how systemd keeps a unit from ever being started
    assert hocket("setup", "service").returncode == 2
    assert place.is_symlink()
    place.unlink()
    place.symlink_to(world / "nowhere")
    assert hocket("setup", "service").returncode == 2
    assert not (world / "nowhere").exists()


@on_linux
def test_print_writes_nothing_and_works_without_systemd(hocket: Hocket, home: Path, place: Path, world: Path) -> None:
    env = {"PATH": str(world / "bin")}
    printed = hocket("setup", "service", "--print", env=env)
    assert (printed.returncode, printed.stderr) == (0, "")
    wanted = {"HOCKET_HOME": str(home), "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"], **env}
    assert printed.stdout == unit(sys.executable, str(home), wanted)
    reported = json.loads(hocket("setup", "service", "--print", "--json", env=env).stdout)
    assert reported == {"path": str(place), "text": printed.stdout}
    missing = hocket("setup", "service", env=env)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "systemctl is not installed" in missing.stderr
    assert f"{sys.executable} -m hocket serve" in missing.stderr
    assert not place.exists()
    assert hocket("setup", "service", "--print", "--remove").returncode == 2


# --- After a restart of the machine -------------------------------------------------------------------------


def restart(hocket: Hocket, run: str) -> None:
    """What a restart of the machine leaves of a run, as far as can be observed."""
    place = json.loads(hocket("show", run, "--json").stdout)["dir"]
    hocket("server", "stop")
    known = files.read_pid(place)
    assert known is not None
    os.kill(known.keeper, signal.SIGKILL)
    assert wait_gone({known.pid: known.start_time}, 10)
    files.replace(place, files.PID, files.encode_pid(known._replace(boot_id="another")))


@on_linux
def test_ps_reports_runs_lost_by_a_restart_once(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("busy", "print('up', flush=True)\n__import__('signal').pause()\n")
    run = hocket.created("spawn", "busy")
    wait_for_line(hocket, run)
    restart(hocket, run)
    reported = hocket("ps", "--json")
    assert (reported.returncode, reported.stderr, json.loads(reported.stdout)) == (0, "", [])
    first, second = hocket("ps").stderr, hocket("ps").stderr
    assert "the machine was restarted, and 1 run was lost" in first
    assert "hocket setup service" in first
    assert "restarted" not in second
    ended = json.loads(hocket("wait", run, "--json").stdout)
    assert (ended["status"], ended["error"]) == ("lost", "the machine was restarted")
    systemctl(agent, world)
    hocket("setup", "service")
    again = hocket.created("spawn", "busy")
    wait_for_line(hocket, again)
    restart(hocket, again)
    third = hocket("ps").stderr
    assert "1 run was lost" in third
    assert "hocket setup service" not in third


def wait_for_line(hocket: Hocket, run: str) -> None:
    """Until the run has said its first line."""
    following = hocket.start("logs", "-f", run)
    assert following.stdout is not None
    assert "up" in following.stdout.readline()
    following.kill()
