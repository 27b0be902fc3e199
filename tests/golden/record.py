"""Record cases with a real CLI into the folder of its version. ``scripts/golden`` calls it.

python tests/golden/record.py                    all Claude cases, with the installed CLI
python tests/golden/record.py success turns      some of them
python tests/golden/record.py --cli 2.1.281      with an older CLI (see ``claude_versions.py``)
python tests/golden/record.py --provider codex   all Codex cases, with the installed CLI
python tests/golden/record.py --events           write events.json of all recordings again, after a reader was changed
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.claude.setup import real_cli
from e2e.codex.setup import real_codex
from golden.claude_cases import CASES, Case
from golden.claude_runner import CaseRun, run_case
from golden.claude_versions import WHEELS, older, version_of
from golden.codex_cases import CODEX_CASES, codex_version, record_codex
from golden.normalize import normalised
from golden.recordings import Recording, Recordings
from world import make_root, remove_root

from hocket.model import RUN_DIRECTORY, SESSION


def record_claude(case: Case, program: Path) -> Recording:
    """Run a case in a temporary folder and return its recording."""
    root = make_root()
    try:
        done = run_case(case, program, root)
        sent = [line.encode() for line in done.sent]
        lines = normalised([*sent, *done.lines], root)
    finally:
        remove_root(root)
    assert done.errors == b"", done.errors
    return Recording("claude", _command(case, done, lines[: len(sent)]), tuple(lines[len(sent) :]))


def _command(case: Case, done: CaseRun, sent: list[bytes]) -> dict[str, Any]:
    return {
        "argv": [_shown(argument) for argument in ("{claude}", *done.spec.argv[1:])],
        "env": sorted(done.spec.env),
        "files": {name: json.loads(content) for name, content in done.spec.files.items()},
        "session": done.spec.session,
        "loop": done.spec.loop,
        "marker": done.spec.marker,
        "on_question": done.spec.on_question,
        "script": {"rules": list(case.rules)},
        "resumes": case.earlier,
        "input": [json.loads(line) for line in sent],
        "exit_code": done.code,
    }


def _shown(argument: str) -> str:
    return argument.replace(SESSION, "{session}").replace(RUN_DIRECTORY, "{run}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all cases if none is named")
    parser.add_argument("--provider", choices=("claude", "codex"), default="claude", help="the CLI to record")
    parser.add_argument("--cli", choices=WHEELS, metavar="VERSION", help=f"an older Claude CLI: {', '.join(WHEELS)}")
    parser.add_argument("--events", action="store_true", help="keep all recordings and write only events.json")
    options = parser.parse_args()
    if options.events:
        for recordings in map(Recordings, ("claude", "codex")):
            for version in recordings.versions():
                for name in recordings.cases(version):
                    recordings.save(version, name, recordings.load(version, name))
        return
    recordings = Recordings(options.provider)
    if options.provider == "codex":
        version, program = codex_version(real_codex()), real_codex()
    else:
        program = older(options.cli) if options.cli else real_cli()
        version = version_of(program)
    for name in options.cases or (CODEX_CASES if options.provider == "codex" else CASES):
        recording = record_codex(name, program) if options.provider == "codex" else record_claude(CASES[name], program)
        recordings.save(version, name, recording)
        print(f"{options.provider}/{version}/{name}", flush=True)


if __name__ == "__main__":
    main()
