"""The example of the guide: added to the package as the guide says, checked by the suite, and run for real."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from e2e.commands import run, run_output, shown
from world import Bin, Hocket

import hocket as package
from hocket.model import Agent, Definition, Spec
from hocket.providers.conformance import CHECKS, Check, RecordedOutput, Subject

GUIDE = (Path(__file__).parents[2] / "docs/guides/providers.md").read_text(encoding="utf-8")
SOURCE = Path(package.__file__).parent
LONGEST = 100
CLI = """
import json, os, sys
words, prompt = sys.argv[1:], sys.stdin.read()
session = words[words.index("--resume") + 1] if "--resume" in words else "q-1"
for line in {stream!r}:
    line = json.loads(line)
    if line["event"] == "start":
        line["session"] = session
    print(json.dumps(line), flush=True)
    if line["event"] == "start":
        print(json.dumps({{"event": "say", "text": " ".join([*words, "<", prompt])}}), flush=True)
        print(json.dumps({{"event": "say", "text": "key " + str(os.environ.get("QUILL_KEY"))}}), flush=True)
"""


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    assert found
    return found[1]


EXAMPLE, STREAM = block("python"), block("jsonl").splitlines()


@pytest.fixture
def example(tmp_path: Path) -> ModuleType:
    """The module of the guide."""
    path = tmp_path / "quill.py"
    path.write_text(EXAMPLE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("quill_of_the_guide", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_is_short() -> None:
    assert len(EXAMPLE.splitlines()) < LONGEST


@pytest.mark.parametrize("defined", [False, True], ids=["bare", "defined"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_example_conforms(example: ModuleType, check: Check, defined: bool) -> None:
    lines = tuple(line.encode() + b"\n" for line in STREAM)
    failed = (*lines[:-1], b'{"event": "end", "ok": false, "error": "it broke"}\n')
    spec = Spec("quill", "quill", ("/bin/quill",), "/project", {}, loop=True, marker="They pass.")
    definition = Definition("rev", {"prompt": "You review.", "model": "q-large"}, "/rev.md") if defined else None
    agent = Agent("quill", "quill", "/bin/quill", "cli", definition=definition)
    check(Subject(example.provider, agent, (RecordedOutput(spec, lines), RecordedOutput(spec, failed))))


def package_with_example(root: Path) -> Path:
    """A copy of the package, of links but for what the guide's first two steps change. Return its parent."""
    copied = root / "src/hocket"
    changed = ("providers", "config")
    for folder in (".", *changed):
        (copied / folder).mkdir(parents=True)
        for path in (SOURCE / folder).iterdir():
            if path.name not in ("__pycache__", *changed):
                (copied / folder / path.name).symlink_to(path)
    (copied / "providers/quill.py").write_text(EXAMPLE, encoding="utf-8")
    change(copied / "providers/__init__.py", r"import claude, (.*)\n", r"import claude, quill, \1\n")
    change(copied / "providers/__init__.py", r"\(claude\.provider, ", "(claude.provider, quill.provider, ")
    change(copied / "config/__init__.py", r"(RUNTIMES: .* = \{\n)", r'\1    "quill": "HOCKET_QUILL",\n')
    change(copied / "config/__init__.py", r"(_OF_PROVIDER: .* = \{\n)", r'\1    "quill": ["QUILL_*"],\n')
    return copied.parent


def change(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
    assert count == 1, (path, pattern)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def test_example_runs_with_a_server(
    hocket: Hocket, agent: Bin, home: Path, project: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bare, with its session continued, with a definition, in a loop, and missing."""
    monkeypatch.setenv("PYTHONPATH", str(package_with_example(world)))
    missing = hocket("run", "quill", "-p", "look")
    assert (missing.returncode, "'quill' needs the Quill CLI, which was not found" in missing.stderr) == (2, True)
    assert "install Quill: see quill.example" in missing.stderr
    agent("quill", CLI.format(stream=STREAM))
    monkeypatch.setenv("QUILL_KEY", "key-0123456789abcdef")
    told = run(hocket, "quill", "-p", "look")
    assert told.outcome == (0, "done", "single_run"), told.stderr
    said = ["--json < look", "key [redacted]", "I read the tests.", "They pass."]
    assert [one["text"] for one in told.of("text")] == said
    leaf = shown(hocket, told.leaf)
    assert (leaf["provider"], leaf["session_id"], leaf["result"]) == ("quill", "q-1", "They pass.")
    assert leaf["tokens"] == 120
    done = hocket("resume", told.leaf, "-p", "more", "--json")
    resumed = run_output(done.returncode, done.stdout, done.stderr)
    assert resumed.of("text")[0]["text"] == "--json --resume q-1 < more"
    (home / "config.toml").write_text('[models]\n"q-*" = "quill"\n[claude]\npermission_mode = "bypassPermissions"\n')
    (project / ".claude/agents").mkdir(parents=True)
    definition = project / ".claude/agents/reviewer.md"
    definition.write_text("---\nname: reviewer\ndescription: d\nmodel: q-large\ntools: Read\n---\nYou review.\n")
    defined = run(hocket, "reviewer", "-p", "look")
    assert defined.outcome == (0, "done", "single_run"), defined.stderr
    words = (
        "--json --read-only --model q-large --instructions You review.\n\nUse only tools of these kinds: Read. < look"
    )
    assert defined.of("text")[0]["text"] == words
    looped = run(hocket, "quill:3", "-p", "look", "--marker", "They pass.")
    assert (looped.outcome, looped.step["iterations"]) == ((0, "done", "marker"), 1)
    checks = {one["name"]: one for one in json.loads(hocket("doctor", "--json").stdout)["checks"]}
    assert checks["models"]["detail"] == "definitions that can run here: 1 with quill"
