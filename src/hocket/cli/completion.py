"""``hocket completion SHELL``: the script that a shell's start-up file evaluates."""

from __future__ import annotations

from hocket.cli import access
from hocket.cli.usage import Argument, command

SHELLS = ("bash", "zsh", "fish")


@command(
    Argument("shell", kind=SHELLS),
    examples=(
        'eval "$(hocket completion bash)"',
        "hocket completion fish > ~/.config/fish/completions/hocket.fish",
    ),
)
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import ShellComplete, get_completion_class

    from hocket.cli.commands import hocket

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choice above names only known shells
    # The base class's: bash's own first asks an installed bash for its version, and there may be none here.
    access.write(ShellComplete.source(kind(hocket, {}, "hocket", "_HOCKET_COMPLETE")) + "\n")
