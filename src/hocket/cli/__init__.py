"""The command line: the only room that prints. One file a command group, imported when its command is given.

``main`` answers ``--version`` before anything else is imported; the rest goes through ``dispatch``.
"""

from __future__ import annotations

import sys

__all__ = ["forkhestra", "main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code is the answer."""
    return _run("hocket", argv, [])


def forkhestra(argv: list[str] | None = None) -> int:
    """``forkhestra CHAIN`` is ``hocket run CHAIN``, for those who know that name."""
    return _run("forkhestra", argv, ["run"])


def _run(program: str, argv: list[str] | None, before: list[str]) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words == ["--version"]:
        from hocket import __version__

        sys.stdout.write(f"{program} {__version__}\n")
        return 0
    from hocket.cli import dispatch

    return dispatch.run_command(program, words if words[:1] == ["--version"] else [*before, *words])
