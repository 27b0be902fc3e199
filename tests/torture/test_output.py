"""Input and output of an agent: any bytes, in any amount, arrive unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, rss_mb, verdict
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

MB = 1024 * 1024

# --- Out ----------------------------------------------------------------------------------------------------

LONG_LINE = """
import os
block = b"x" * 2**20
for _ in range(100):
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(1, rest):]
os.write(1, b"\\nend\\n")
"""


@pytest.mark.own_server
def test_line_of_100_mb_is_reported_as_oversize(installation: Installation, agent: Bin) -> None:
    agent("endless", LONG_LINE)
    server = installation.server_pid()
    installation.ended(installation.spawn("/bin/true"))
    before = rss_mb(server)
    run = installation.spawn("endless")
    assert verdict(installation.ended(run, 45)) == ("done", "exit", 0)
    said = [event["data"] for event in installation.events(run) if event["type"] == "text"]
    assert len(said) == 2
    assert said[0]["oversize"] is True
    assert said[0]["bytes"] == 100 * MB
    assert said[1] == {"text": "end"}
    assert sum(len(piece) for piece in installation.client.output(run)) == 100 * MB + 5
    assert rss_mb(server) - before <= 32


NOISE = bytes(range(256)) + b"\xff\xfe\0\0\n" + b"\x1b[31mred\x1b[0m\x1b]8;;http://x\x07link\n" + b"\xc3\n" + b"tail"


def test_invalid_utf8_output_is_kept_unchanged(installation: Installation, hocket: Hocket, agent: Bin) -> None:
    agent("noise", f"import os\nos.write(1, {NOISE!r})\nos.write(2, {NOISE!r})")
    run = installation.spawn("noise")
    assert verdict(installation.ended(run)) == ("done", "exit", 0)
    assert installation.out(run) == NOISE
    assert b"".join(installation.client.output(run, "err")) == NOISE
    raw = subprocess.run(
        [sys.executable, "-m", "hocket", "logs", "--raw", run], capture_output=True, check=True, timeout=PATIENCE
    )
    assert raw.stdout == NOISE
    texts = [event["data"]["text"] for event in installation.events(run) if event["type"] == "text"]
    assert texts == NOISE.decode("utf-8", "replace").split("\n")


def test_shown_output_cannot_control_the_terminal(installation: Installation, hocket: Hocket, agent: Bin) -> None:
    agent("noise", f"import os\nos.write(1, {NOISE!r})")
    run = installation.spawn("noise")
    installation.ended(run)
    for shown in (hocket("logs", run), hocket("show", run), hocket("wait", run), hocket("ps", "-a")):
        assert not {"\x1b", "\x07", "\0", "\x9b"} & set(shown.stdout + shown.stderr)


# --- In -----------------------------------------------------------------------------------------------------

ECHO = "import os, sys\nos.write(1, b'|'.join(os.fsencode(word) for word in sys.argv[1:]))"
READ = "import os, sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())"

PROMPTS = {
    "substitution": "$(touch pwn) `touch pwn`; touch pwn & | > pwn",
    "quotes": "it's \"quoted\" \\ and \\\\ more '\"'\"'",
    "newlines": "first\n\nthird\r\nfourth\n",
    "leading dash": "-rf --help",
    "an option": "--settings={}",
    "an option's end": "--",
    "unicode": "naïve 日本語 \u202e\u2028 \U0001f3b6 a\u0301",
    "60 kB": "0123456789abcde\n" * 3840,
    "blank": " \t ",
}


def test_prompt_argument_reaches_the_agent_unchanged(
    installation: Installation, hocket: Hocket, agent: Bin, project: Path
) -> None:
    agent("echo", ECHO)
    for name, prompt in PROMPTS.items():
        run = hocket.created("spawn", "echo", f"--prompt={prompt}")
        installation.ended(run)
        assert installation.out(run) == prompt.encode(), name
    assert list(project.iterdir()) == []


def test_piped_prompt_reaches_the_agent_unchanged(
    installation: Installation, hocket: Hocket, agent: Bin, project: Path
) -> None:
    agent("echo", ECHO)
    for name, prompt in PROMPTS.items():
        chain = hocket.created("run", "echo", "--detach", "--prompt=-", stdin=prompt)
        installation.ended(chain)
        assert installation.out(installation.run(chain)["children"][0]["id"]) == prompt.encode(), name
    assert list(project.iterdir()) == []


def test_api_prompt_reaches_the_agent_unchanged(installation: Installation, agent: Bin, project: Path) -> None:
    agent("echo", ECHO)
    for name, prompt in PROMPTS.items():
        run = installation.spawn("echo", "--flag", prompt=prompt)
        installation.ended(run)
        assert installation.out(run) == b"--flag|" + prompt.encode(), name
    assert list(project.iterdir()) == []


def test_empty_prompt_is_no_argument(installation: Installation, agent: Bin) -> None:
    agent("echo", "import sys\nprint(len(sys.argv))")
    run = installation.spawn("echo", prompt="")
    installation.ended(run)
    assert installation.out(run) == b"1\n"


def test_oversize_prompt_is_refused_with_the_limit(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", ECHO)
    done = hocket("run", "echo", "--prompt=-", stdin="x" * MB)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "64 KiB" in done.stderr


@pytest.mark.req("S3-48")
def test_prompt_on_standard_input_arrives_whole(installation: Installation, agent: Bin, project: Path) -> None:
    path = agent("reader", READ)
    (project / "hocket.toml").write_text(f'[agents.listener]\npath = "{path}"\nprompt_via = "stdin"\n')
    for name, prompt in {"1 MB": "x" * MB, **PROMPTS}.items():
        run = installation.spawn("listener", prompt=prompt)
        assert verdict(installation.ended(run)) == ("done", "exit", 0), name
        assert installation.out(run) == prompt.encode(), name
