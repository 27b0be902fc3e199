"""Configuration files of an untrusted project: which files they may name, and the cost of reading them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from world import Bin, Hocket

from hocket.config.loading import load
from hocket.config.structure import MAX_DEPTH, MAX_KEY_PARTS, MAX_TOKENS, excess
from hocket.errors import ConfigError

SECRET = "the user's own secret"
MB = 1024 * 1024


# --- Files that a project names -----------------------------------------------------------------------------


def _written(project: Path, where: str, file: str) -> list[str]:
    """A project's configuration that names a prompt file, and the words that would use it."""
    if where == "json":
        (project / "forge").mkdir()
        chains = {"leak": {"steps": [{"agent": "told", "promptFile": file}]}}
        (project / "forge/chains.json").write_text(json.dumps({"chains": chains}))
    else:
        named = json.dumps(file)
        text = {
            "step": f'[chains.leak]\nsteps = [{{agent = "told", prompt_file = {named}}}]\n',
            "chain": f'[chains.leak]\nprompt_file = {named}\nsteps = [{{agent = "told"}}]\n',
            "agent": f'[agents.leak]\npath = "told"\ndefault_prompt_file = {named}\n',
        }[where]
        (project / "hocket.toml").write_text(text)
    return ["leak"] if where == "agent" else ["--chain", "leak"]


@pytest.fixture
def secret(world: Path, agent: Bin) -> Path:
    agent("told", "import sys; print('told:', *sys.argv[1:])")
    (world / "secret").write_text(SECRET)
    return world / "secret"


@pytest.mark.shared_server
@pytest.mark.parametrize("where", ["step", "chain", "agent", "json"])
@pytest.mark.parametrize("how", ["absolute", "parent", "link", "linked folder"])
def test_prompt_file_outside_the_project_is_refused(hocket: Hocket, secret: Path, where: str, how: str) -> None:
    """Torture row 52."""
    (hocket.cwd / "link.md").symlink_to(secret)
    (hocket.cwd / "folder").symlink_to(secret.parent)
    names = {"absolute": str(secret), "parent": "../secret", "link": "link.md", "linked folder": "folder/secret"}
    words = _written(hocket.cwd, where, names[how])
    shown = hocket("trust", "--dry-run").stdout
    assert f"prompt file {secret}: outside of the project" in shown
    for _ in range(2):  # The second time the folder is approved.
        done = hocket("run", *words, "--json")
        assert (done.returncode, done.stdout) == (2, "")
        assert str(hocket.cwd / names[how]) in done.stderr
        assert SECRET not in done.stderr + shown
        assert hocket("trust", "--yes").returncode == 0


@pytest.mark.shared_server
def test_files_of_project_and_user_are_read(hocket: Hocket, secret: Path, home: Path) -> None:
    """Torture row 52."""
    below = hocket.cwd / "below"
    below.mkdir()
    (hocket.cwd / ".git").mkdir()
    (hocket.cwd / "prompt.md").write_text("the project's own")
    (below / "link.md").symlink_to(hocket.cwd / "prompt.md")
    for name in ("../prompt.md", "link.md"):
        words = _written(hocket.cwd, "step", name)
        done = hocket("run", *words, cwd=below)
        assert done.stdout == "told: the project's own\n", done.stderr
    (hocket.cwd / "hocket.toml").unlink()
    own = home / "config.toml"
    own.write_text(f'[chains.mine]\nsteps = [{{agent = "told", prompt_file = {json.dumps(str(secret))}}}]\n')
    assert hocket("run", "--chain", "mine").stdout == f"told: {SECRET}\n"
    assert hocket("run", "told", "--prompt-file", secret).stdout == f"told: {SECRET}\n"


# --- What they cost -----------------------------------------------------------------------------------------

COSTLY = {
    "dotted key": ("hocket.toml", "a." * 10_000 + "a = 1"),
    "dotted key of 1 MB": ("hocket.toml", "a." * (MB // 2 - 10) + "a = 1"),
    "quoted parts": ("hocket.toml", "\"a\" . 'b' . " * 2000 + "a = 1"),
    "dotted header": ("hocket.toml", "[" + "a." * 10_000 + "a]"),
    "dotted key in a table": ("hocket.toml", "x = {" + "a." * 10_000 + "a = 1}"),
    "dotted key after a text": ("hocket.toml", 'x = """\n""\\""" # "\n' + "a." * 10_000 + "a = 1"),
    "arrays": ("hocket.toml", "x = " + "[" * 50_000),
    "tables": ("hocket.toml", "x = " + "{a = " * 50_000),
    "many keys": ("hocket.toml", "".join(f"a{number} = 1\n" for number in range(80_000))),
    "many tables": ("hocket.toml", "".join(f"[a{number}]\n" for number in range(80_000))),
    "many values": ("hocket.toml", "x = [" + "1," * 400_000 + "]"),
    "deep JSON": ("forge/chains.json", '{"chains": ' * 50_000),
    "JSON arrays": ("forge/chains.json", "[" * 500_000),
    "a name twice": ("forge/chains.json", "{" + ",".join(f'"{n}":1' for n in range(60_000)) + ',"59999":1}'),
    "unlike names": (
        "hocket.toml",
        "".join(
            [
                f'[projects]\n"{"".join(map(chr, range(0x4E00, 0x9000))) * 8}" = "/x"\n',
                f'[agents.a]\nagent = "a"\nproject = "{"".join(map(chr, range(0x4E01, 0x9000))) * 8}"\n',
            ]
        ),
    ),
}


@pytest.mark.parametrize("case", COSTLY)
def test_costly_file_is_refused_at_once(project: Path, home: Path, case: str) -> None:
    """Torture row 53."""
    name, text = COSTLY[case]
    (project / "forge").mkdir()
    (project / name).write_text(text)
    begun = time.thread_time()
    with pytest.raises(ConfigError) as caught:
        load(str(project), str(home))
    spent = time.thread_time() - begun
    assert str(project / name) in caught.value.message
    # It is measured in time of the processor, since the machine may have others to serve; most take a tenth of this.
    assert spent < 0.2


@pytest.mark.parametrize(
    "text",
    [
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
        "a." * (MAX_KEY_PARTS - 1) + "a = 1",
        "x = [" + "1.5, 2.5, " * 200 + "]",
        "x = '" + "a." * 100 + "'",
        'x = """' + "[" * 100 + '"""""\ny = 1',
        "x = '''" + "a.b" * 100 + "''''\ny = 1",
        'x = "\\"' + "." * 100 + '"',
        "# " + "[." * 100,
        "\n" * MAX_TOKENS,
        '{"a": "' + "[.{" * 100 + '"}',
    ],
)
def test_text_within_the_limits_is_accepted(text: str) -> None:
    """Torture row 53."""
    assert excess(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n\n" + "[" * (MAX_DEPTH + 1), "nested too deeply: more than 32 levels (at line 3)"),
        ("a." * MAX_KEY_PARTS + "a = 1", "a key of more than 16 parts (at line 1)"),
        ("x = 1\n" * MAX_TOKENS, "more than 20000 keys, values and lines (at line 10001)"),
        ('x = """\n"\n"""\n' + '"a".' * MAX_KEY_PARTS, "a key of more than 16 parts (at line 4)"),
    ],
)
def test_excessive_text_is_refused_with_its_line(text: str, reason: str) -> None:
    """Torture row 53."""
    assert reason in (excess(text) or "")


@pytest.mark.shared_server
def test_folder_as_prompt_file_is_refused(hocket: Hocket, secret: Path) -> None:
    done = hocket("run", *_written(hocket.cwd, "chain", "."))
    assert (done.returncode, "outside" in done.stderr) == (2, False)
    assert "not a regular file" in done.stderr
