"""``hocket completion SHELL``, and the answers to the scripts that it prints.

A script runs ``hocket`` with the words typed so far and ``_HOCKET_COMPLETE`` set. The answer has a line for each word
that the last one may become.
"""

from __future__ import annotations

from hocket.cli import access, usage
from hocket.cli.usage import AGENTS, COMMAND_NAMES, COMMANDS, Argument, ArgumentError, Command, Group, Option, command

SCRIPTS = {
    "bash": r"""
_hocket() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(_HOCKET_COMPLETE=bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}")
}
complete -o default -F _hocket hocket
""",
    "zsh": r"""
#compdef hocket
_hocket() {
    local -a values
    values=("${(@f)$(_HOCKET_COMPLETE=zsh $words[1] "${(@)words[2,CURRENT]}")}")
    if [[ -n $values ]]; then
        compadd -a values
    else
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _hocket "$@"
else
    compdef _hocket hocket
fi
""",
    "fish": r"""
function __hocket_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (env _HOCKET_COMPLETE=fish hocket $words[2..-1] "$current")
    if test -n "$found"
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete --no-files --command hocket --arguments '(__hocket_complete)'
""",
}


@command(
    Argument("shell", kind=tuple(SCRIPTS)),
    examples=(
        'eval "$(hocket completion bash)"',
        "hocket completion fish > ~/.config/fish/completions/hocket.fish",
    ),
)
def completion(shell: str) -> None:
    """Print a completion script for a shell; evaluate it in the start-up file of that shell."""
    access.write(SCRIPTS[shell].lstrip("\n"))


def answer(words: list[str]) -> None:
    """Print what the last word may become."""
    access.write_lines(candidates(words or [""]))


def candidates(words: list[str]) -> list[str]:
    """What the last word may become, given those before it."""
    *before, begun = words
    _, found, given = usage.select(before)
    if isinstance(found, Command):
        offered = _of_command(found, given, begun)
    elif given:
        offered = []
    elif begun.startswith("-"):
        offered = _names([usage.HELP, usage.VERSION] if found is usage.ROOT else [usage.HELP])
    else:
        offered = _commands_of(found)
    return [word for word in offered if word.startswith(begun)]


def _commands_of(group: Group) -> list[str]:
    return list(COMMANDS if group is usage.ROOT else group.commands)


def _of_command(found: Command, given: list[str], begun: str) -> list[str]:
    try:
        known = list(usage.tokens(found, given))
    except usage.MissingValue as error:
        return _values(error.option)
    except ArgumentError:
        return []
    if begun.startswith("-") and "--" not in given:
        used = {option.name for option, _ in known if option is not None and not option.many}
        return _names([option for option in (*found.options, usage.HELP) if option.name not in used])
    arguments = [text for option, text in known if option is None]
    if any(argument.completes == COMMAND_NAMES for argument in found.arguments):
        _, named, rest = usage.select(arguments)
        return _commands_of(named) if isinstance(named, Group) and not rest else []
    place = len(arguments)
    if place < len(found.arguments):
        return _values(found.arguments[place])
    return _values(found.arguments[-1]) if found.arguments and found.arguments[-1].many else []


def _names(options: list[Option]) -> list[str]:
    return [name for option in options for name in option.names]


def _values(parameter: Option | Argument) -> list[str]:
    if isinstance(parameter.kind, tuple):
        return list(parameter.kind)
    if parameter.completes == AGENTS:
        from hocket.cli.agents import addresses

        return addresses()
    return []
