"""The command line: the only package that prints. Each command group is a module, imported when its command runs."""

from __future__ import annotations

import sys

__all__ = ["forkhestra", "main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return _run("hocket", argv, [])


def forkhestra(argv: list[str] | None = None) -> int:
    """Run ``forkhestra CHAIN``, which is ``hocket run CHAIN``."""
    return _run("forkhestra", argv, ["run"])


def _run(program: str, argv: list[str] | None, before: list[str]) -> int:
    words = sys.argv[1:] if argv is None else argv
    from hocket.cli.dispatch import run_command

    return run_command(program, words if words[:1] == ["--version"] else [*before, *words])
