"""What several commands need: the connection to the server, the caller's environment, prompts, and output."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from hocket import config
from hocket.client import Client
from hocket.errors import BadDirectory, HocketError, HomeError, PromptError
from hocket.views.text import strip_controls

START_SECONDS = 60.0
TICK_SECONDS = 0.25
"""How often a command that follows a run looks at the time."""
EXIT_TIMED_OUT = 3
EXIT_ASKS = 4
EXIT_BUDGET = 5
_CODES = {"no_answer": EXIT_ASKS, "budget": EXIT_BUDGET}


def make_home() -> str:
    """Create HOCKET_HOME, private to the user, if it does not exist."""
    home = config.home()
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
    except OSError as error:
        raise HomeError(f"cannot make {home}: {error.strerror}", "choose another directory with HOCKET_HOME") from error
    return home


def is_first_time(hint: str) -> bool:
    """Record in HOCKET_HOME that a hint is shown; False if it was shown before."""
    try:
        path = os.path.join(make_home(), f".hint-{hint}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except (HomeError, OSError):
        pass
    return True


def connect(starting: bool = True, talk: bool = True, start: Callable[[], None] | None = None) -> Client:
    """The client of this user's server. With ``starting`` the server is started when it is needed, by ``start``."""
    home = make_home() if starting else config.home()
    path, caller = config.socket_path(home), config.caller()
    return Client(
        home,
        (start or (lambda: _start_server(home))) if starting else None,
        socket_path=path,
        # A token is sent to the server that issued it, and to no other.
        token=caller.token if caller.url == f"unix:{path}" else None,
        notice=_notice if talk else None,
    )


def connect_as_run(starting: bool) -> Client | None:
    """A client with the rights of the run that this process belongs to; None outside of the runs of this home."""
    caller = config.caller()
    if caller.run is None or caller.token is None or caller.url != f"unix:{config.socket_path(config.home())}":
        return None
    return connect(starting=starting)


def wait_for_answer(
    client: Client, run: str, question: str, after: int, *, in_turn: bool, deadline: float | None = None
) -> dict[str, Any] | None:
    """The event that answers a question of a run, or with ``in_turn`` the one that ends its turn and so closes it.

    None if the run has ended or the time is up.
    """
    for event in client.follow_ticking(run, None if deadline is None else TICK_SECONDS, after):
        if event is not None and event["run"] == run:
            is_answer = event["type"] == "answer" and event["data"]["id"] == question
            if is_answer or (in_turn and event["type"] == "turn.ended"):
                return event
        if deadline is not None and time.monotonic() > deadline:
            return None
    return None


def _start_server(home: str) -> None:
    from pathlib import Path

    from hocket.config.loading import load
    from hocket.keeper.server_start import start_server
    from hocket.sessions.home import prepare

    # Check the home and its configuration here: the server could report an error only in its log.
    prepare(Path(home))
    load(home, home)
    start_server(home, config.process_environment())


def start_by_command() -> None:
    """Start the server by another command: starting one forks, which a process with threads must not do."""
    from hocket.keeper.programs import run_tool

    argv = [sys.executable, "-P", "-m", "hocket", "ps", "--json"]
    run_tool(argv, config.home(), config.process_environment(), START_SECONDS, 0)


def _notice(text: str) -> None:
    print(f"hocket: {text}", file=sys.stderr, flush=True)


def was_restarted() -> bool:
    """Whether runs ended with a restart of the machine and the user has not been informed; ``setup`` does that."""
    return os.path.exists(os.path.join(config.home(), "restarted"))


def directory(given: str | None) -> str:
    """The absolute working directory. Whether it exists is checked when a run starts."""
    try:
        return os.path.abspath(given or os.getcwd())
    except OSError as error:
        raise BadDirectory(
            "the current directory no longer exists", "change to one that does, or give --cwd if the command has it"
        ) from error


def environment(cwd: str) -> dict[str, str]:
    """What the caller's environment contributes to an agent's. The server reports a configuration that is broken."""
    from hocket.config.loading import env_names

    try:
        names = env_names(cwd, config.home())
    except HocketError:
        names = ()
    return config.caller_environment(names)


def exit_code(status: str, reason: str | None) -> int:
    """The exit code for the status of a run that has ended."""
    return 0 if status == "done" else _CODES.get(reason or "", 1)


def print_result(text: str | None) -> None:
    """Print a result without control characters, with one newline at its end unless it is empty.

    Text before a carriage return becomes a line of its own: a result is data, so nothing of it is dropped.
    """
    shown = strip_controls((text or "").replace("\r\n", "\n").replace("\r", "\n"))
    write(shown if not shown or shown.endswith("\n") else shown + "\n")


def write(text: str) -> None:
    """Write data to standard output."""
    sys.stdout.write(text)


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of data to standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def page(text: str) -> None:
    """Write a text to the terminal, with the user's pager, as git chooses it, if there is one."""
    from hocket.keeper.programs import show_in_pager
    from hocket.workflows.git import pager

    env = config.process_environment()
    command = pager(env) if text else ""
    sys.stdout.flush()
    # What git sets for it: less ends at once if all of it fits on the screen, and shows colours.
    if command in ("", "cat") or not show_in_pager(
        command, text.encode(errors="replace"), {"LESS": "FRX", "LV": "-c", **env}
    ):
        write(text)


def write_json(value: Any) -> None:
    """Write one value on one line of JSON. It is ASCII, so that it cannot control a terminal."""
    sys.stdout.write(json.dumps(value) + "\n")


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal; None if the output is not a terminal, so that nothing is cut to fit."""
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or None
    except (OSError, ValueError):
        return None


def can_ask(as_json: bool) -> bool:
    """True if a person can read a question and answer it. With ``--json`` nothing is printed."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask a person; everything but yes is no."""
    sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in {"y", "yes"}


def pick_prompt(prompt: str | None, file: str | None, cwd: str) -> str | None:
    """The prompt of a command line: the text, standard input for "-", or the content of the file."""
    if prompt is not None and file is not None:
        raise PromptError(f"--prompt and --prompt-file {file!r} both give the prompt", "remove one of them")
    if prompt == "-":
        return _decode(sys.stdin.buffer.read(config.MAX_PROMPT + 1), "standard input")
    if file is None:
        return prompt
    from hocket.config.reading import read_prompt

    return read_prompt(file, cwd)


def _decode(raw: bytes, source: str) -> str:
    if len(raw) > config.MAX_PROMPT:
        raise PromptError(f"the prompt from {source} is larger than {config.MAX_PROMPT // 2**20} MB")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise PromptError(f"the prompt from {source} is not UTF-8 text") from None


def snake_keys(value: Any) -> Any:
    """The same value with keys in snake_case. The routes of tasks use camelCase."""
    return _with_keys(value, _snake_case)


def camel_keys(value: Any) -> Any:
    """The same value with keys in camelCase."""
    return _with_keys(value, _camel_case)


def _with_keys(value: Any, convert: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {convert(key): _with_keys(one, convert) for key, one in value.items()}
    return [_with_keys(one, convert) for one in value] if isinstance(value, list) else value


def _snake_case(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def _camel_case(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)
