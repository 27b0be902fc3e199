"""The recorded cases of the Codex CLI, and how they are run: the provider's command line with a scripted model."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from e2e.codex.setup import environment, shell
from golden.normalize import normalised
from golden.recordings import Recording
from world import SYSTEM_PATH, make_root, remove_root

from hocket.model import Agent, Spec
from hocket.providers import codex
from hocket.providers.base import LaunchRequest
from hocket.rehearsal import ScriptedModel, parse

SECONDS = 60.0
_PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF\n"
_STDERR_NOTICE = b"could not create PATH aliases"
"""Codex warns about a home below the temporary directory."""


class CodexCase(NamedTuple):
    rules: tuple[Mapping[str, Any], ...]
    options: LaunchRequest = LaunchRequest()
    earlier: str | None = None
    """The prompt of an earlier process, whose session the recorded one resumes."""


def _fails(status: int) -> CodexCase:
    return CodexCase(({"do": [{"fail": {"status": status, "message": "out of order"}}]},))


CODEX_CASES: Mapping[str, CodexCase] = {
    "success": CodexCase(
        ({"do": [{"think": "hm\nwell"}, {"say": "first\nlook"}, shell("echo one; echo two"), {"say": "the end"}]},)
    ),
    "marker_in_a_loop": CodexCase(
        ({"do": [{"say": "built"}, "marker"]},), options=LaunchRequest(loop=True, marker="ALL_BUILT")
    ),
    "command_fails": CodexCase(({"do": [shell("echo out of paint >&2; exit 3"), {"say": "it failed"}]},)),
    "file_change": CodexCase(({"do": [shell(_PATCH), {"say": "written"}]},)),
    "resume": CodexCase(
        ({"when": {"turn": 1}, "do": [{"say": "one"}]}, {"do": [{"say": "two, as I remember"}]}), earlier="begin"
    ),
    "api_error_400": _fails(400),
    "api_error_401": _fails(401),
    "api_error_429": _fails(429),
    "api_error_500": _fails(500),
    "connection_lost": CodexCase(({"do": [{"say": "I begin"}, "crash"]},)),
}


def codex_version(program: Path) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=SECONDS)
    return done.stdout.split()[-1]


def record_codex(name: str, program: Path) -> Recording:
    """Run a case in a temporary folder and return its recording."""
    case, root = CODEX_CASES[name], make_root()
    try:
        with ScriptedModel(parse({"rules": list(case.rules)})) as model:
            spec = _spec(case, program, root, model)
            if case.earlier is not None:
                first = _run(msgspec.structs.replace(spec, prompt=case.earlier))
                found = codex.reader(spec)({}, "out", first.stdout.splitlines(keepends=True)[0], None)[1]
                spec = codex.resume(spec, found[0][1]["session_id"], spec.prompt or "")
                spec = msgspec.structs.replace(spec, session_tokens=30)
            done = _run(spec)
            assert not model.uncovered, model.uncovered
        lines = normalised(done.stdout.splitlines(keepends=True), root)
    finally:
        remove_root(root)
    return Recording("codex", _command(case, spec, done.returncode), tuple(lines))


def _spec(case: CodexCase, program: Path, root: Path, model: ScriptedModel) -> Spec:
    started = codex.launch(Agent("codex", "codex", str(program), "golden"), replace(case.options, prompt="go"))
    env = {"PATH": SYSTEM_PATH, "HOME": f"{root}/user", **environment(root / "codex", model)}
    (root / "p").mkdir()
    return Spec(
        agent="codex",
        provider="codex",
        argv=started.argv,
        cwd=f"{root}/p",
        env=env,
        prompt=started.prompt,
        stdin=started.stdin,
        loop=case.options.loop,
        marker=case.options.marker,
    )


def _run(spec: Spec) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        spec.argv,
        cwd=spec.cwd,
        env=dict(spec.env),
        input=(spec.prompt or "").encode(),
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    unexpected = [line for line in done.stderr.splitlines() if line and _STDERR_NOTICE not in line]
    assert not unexpected, unexpected
    return done


def _command(case: CodexCase, spec: Spec, code: int) -> dict[str, Any]:
    argv = list(spec.argv[1:])
    if case.earlier is not None:
        argv[argv.index("resume") + 1] = "{session}"
    return {
        "argv": ["{codex}", *argv],
        "env": sorted(spec.env),
        "loop": spec.loop,
        "marker": spec.marker,
        "session_tokens": spec.session_tokens,
        "script": {"rules": list(case.rules)},
        "resumes": case.earlier,
        "prompt": spec.prompt,
        "exit_code": code,
    }
