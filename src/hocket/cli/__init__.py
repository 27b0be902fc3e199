"""The command line: the only room that prints. One file a command group, imported when its command is given.

``main`` answers ``--version`` before any framework is imported; everything else goes through ``commands``.
"""

from __future__ import annotations

import sys

__all__ = ["forkhestra", "main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code is the answer."""
    return _run("hocket", sys.argv[1:] if argv is None else argv)


def forkhestra(argv: list[str] | None = None) -> int:
    """``forkhestra CHAIN`` is ``hocket run CHAIN``, for those who know that name."""
    words = sys.argv[1:] if argv is None else argv
    return _run("forkhestra", words if words[:1] == ["--version"] else ["run", *words])


def _run(program: str, words: list[str]) -> int:
    if words == ["--version"]:
        from hocket import __version__

        sys.stdout.write(f"{program} {__version__}\n")
        return 0
    from hocket.cli.commands import run_command

    return run_command(program, words)
