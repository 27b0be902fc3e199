"""Records the cases with a CLI, into the folder of its version. ``scripts/golden`` calls it.

python tests/golden/record.py                   every case, with the CLI that is installed
python tests/golden/record.py success turns     some of them
python tests/golden/record.py --cli 2.1.281     with an older one (see ``programs.py``)
python tests/golden/record.py --events          read all that is recorded once more: the reader has changed, on purpose
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.claude.stage import real_cli
from golden import shelf
from golden.cases import CASES, Case
from golden.normal import normalised
from golden.play import Played, played
from golden.programs import WHEELS, older, version_of
from golden.shelf import Golden
from world import make_root, remove_root

from hocket.model import RUN_DIRECTORY, SESSION


def recorded(case: Case, program: Path) -> Golden:
    """A new recording, made in a folder that is gone afterwards."""
    root = make_root()
    try:
        done = played(case, program, root)
        said = [line.encode() for line in done.said]
        lines = normalised([*said, *done.lines], root)
    finally:
        remove_root(root)
    assert done.errors == b"", done.errors
    return Golden(_command(case, done, lines[: len(said)]), tuple(lines[len(said) :]))


def _command(case: Case, done: Played, said: list[bytes]) -> dict[str, Any]:
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
        "input": [json.loads(line) for line in said],
        "exit_code": done.code,
    }


def _shown(argument: str) -> str:
    return argument.replace(SESSION, "{session}").replace(RUN_DIRECTORY, "{run}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--cli", choices=WHEELS, metavar="VERSION", help=f"of an older one: {', '.join(WHEELS)}")
    parser.add_argument("--events", action="store_true", help="keep the recordings, write only events.json anew")
    options = parser.parse_args()
    if options.events:
        for version in shelf.versions():
            for name in shelf.cases(version):
                shelf.save(version, name, shelf.load(version, name))
        return
    program = older(options.cli) if options.cli else real_cli()
    version = version_of(program)
    for name in options.cases or CASES:
        shelf.save(version, name, recorded(CASES[name], program))
        print(f"{shelf.FOLDER.name}/{version}/{name}", flush=True)


if __name__ == "__main__":
    main()
