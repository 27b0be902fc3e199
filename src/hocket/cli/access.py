"""How commands reach the server, and the small things that several of them need."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from hocket import config
from hocket.cli.format import harmless
from hocket.client import Client

EXIT_TIMED_OUT = 3
EXIT_ASKS = 4
EXIT_BUDGET = 5
_GLANCE = 2 * 1024 * 1024
"""In bytes: more than a configuration file may have."""
_CODES = {"no_answer": EXIT_ASKS, "budget": EXIT_BUDGET}


def make_home() -> str:
    """HOCKET_HOME, made private when it is new."""
    home = config.home()
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
    except OSError as error:
        from hocket.errors import HomeError

        raise HomeError(f"cannot make {home}: {error.strerror}", "choose another place with HOCKET_HOME") from error
    return home


def connect(starting: bool = True, talk: bool = True, start: Callable[[], None] | None = None) -> Client:
    """The client of this user's server. With ``starting`` the server is brought up when it is needed, by ``start``."""
    home = make_home() if starting else config.home()
    path, caller = config.socket_path(home), config.caller()
    return Client(
        home,
        (start or (lambda: _start_server(home))) if starting else None,
        socket_path=path,
        # A capability is for the server that gave it, and no business of any other.
        token=caller.token if caller.url == f"unix:{path}" else None,
        notice=_notice if talk else None,
    )


def connect_as_run(starting: bool) -> Client | None:
    """A client that speaks for the run which this process is part of; None where it is part of none of this home's."""
    caller = config.caller()
    if caller.run is None or caller.token is None or caller.url != f"unix:{config.socket_path(config.home())}":
        return None
    return connect(starting=starting)


def _start_server(home: str) -> None:
    from pathlib import Path

    from hocket.config.loading import load
    from hocket.keeper.server_start import start_server
    from hocket.sessions.home import prepare

    # Here it can be said why a home or its configuration cannot be used; the server could only write it into that home.
    prepare(Path(home))
    load(home, home)
    start_server(home, config.process_environment())


def _notice(text: str) -> None:
    print(f"hocket: {text}", file=sys.stderr, flush=True)


def was_restarted() -> bool:
    """Whether the user has to be told of a restart of the machine; ``setup`` does so. Hardly ever, so it is cheap."""
    return os.path.exists(os.path.join(config.home(), "restarted"))


def directory(given: str | None) -> str:
    """The absolute working directory. That it exists is checked where everything else about a start is."""
    try:
        return os.path.abspath(given or os.getcwd())
    except OSError as error:
        from hocket.errors import BadDirectory

        raise BadDirectory(
            "the current directory does not exist any more", "change to one that does, or give --cwd"
        ) from error


def environment(cwd: str) -> dict[str, str]:
    """What the caller's environment contributes to an agent's."""
    home = config.home()
    if not _passes_on_more(cwd, home):
        return config.caller_environment()
    from hocket.config.loading import env_names

    return config.caller_environment(env_names(cwd, home))


def _passes_on_more(cwd: str, home: str) -> bool:
    """Whether a configuration file may name more variables: it has the word ``env``, or spells a word in code.

    Reading it properly takes longer than the rest of this command, and the server, which does so for every start,
    says what is wrong with it.
    """
    texts = [_glance(place.path) for place in config.places(cwd, home)]
    return any(b"env" in text or b"\\" in text for text in texts)


def _glance(path: str) -> bytes:
    """What a file says, if it can be told without waiting."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _GLANCE)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def exit_code(status: str, reason: str | None) -> int:
    """What a run's end means to a script."""
    return 0 if status == "done" else _CODES.get(reason or "", 1)


def print_result(text: str | None) -> None:
    """A result alone, without anything that a terminal would obey; it ends with one newline unless it is empty.

    It is data, so unlike in a view nothing is lost of a line that was written over: each of its states is a line.
    """
    shown = harmless((text or "").replace("\r\n", "\n").replace("\r", "\n"))
    write(shown if not shown or shown.endswith("\n") else shown + "\n")


def write(text: str) -> None:
    """Data, for standard output."""
    sys.stdout.write(text)


def write_json(value: Any) -> None:
    """One value on one line. Only ASCII, so that nothing inside can steer a terminal."""
    sys.stdout.write(json.dumps(value) + "\n")


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal; None when the output is no terminal, where nothing needs to be cut to fit."""
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or None
    except (OSError, ValueError):
        return None


def pick_prompt(prompt: str | None, file: str | None, cwd: str) -> str | None:
    """The prompt given on the command line: text, standard input, or a file when there is no text."""
    if prompt == "-":
        return _decode(sys.stdin.buffer.read(config.MAX_PROMPT + 1), "standard input")
    if prompt is not None or file is None:
        return prompt
    from hocket.config.reading import read_prompt

    return read_prompt(file, cwd)


def _decode(raw: bytes, source: str) -> str:
    from hocket.errors import PromptError

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
