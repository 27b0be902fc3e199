"""``hocket completion SHELL``, and the answers to the scripts that it prints.

A script runs ``hocket`` with the words typed so far, and with ``_HOCKET_COMPLETE`` set to the shell. The answer has a
line for each word that the last one may become.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hocket.cli import access, usage
from hocket.cli.usage import (
    AGENTS,
    COMMAND_NAMES,
    COMMANDS,
    LIVE_RUNS,
    RUNS,
    Argument,
    ArgumentError,
    Command,
    Group,
    Option,
    command,
)
from hocket.errors import HocketError
from hocket.views.text import one_line

Offer = tuple[str, str]
"""A word with its description."""

MOST_RUNS = 50
CHAIN_PART = re.compile(r"(.*(?:->|[(,])\s*)?(.*)", re.DOTALL)
"""What of a chain's text is complete, and the agent that is being typed."""
SCRIPTS = {
    "bash": r"""
_hocket() {
    local line word words=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        # Words are given as they were typed, with their quotes; of the last one only the first is there.
        case $word in
        [\"\']*) word=${word:1} word=${word%[\"\']} ;;
        esac
        words+=("$word")
    done
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(_HOCKET_COMPLETE=bash "$1" "${words[@]}")
}
complete -o default -F _hocket hocket forkhestra
""",
    "zsh": r"""
#compdef hocket forkhestra
_hocket() {
    local -a typed lines values shown
    local line
    for line in "${(@)words[2,CURRENT]}"; do
        # Of a word that is being typed only the first quote is there.
        line=${(Q)line}
        typed+=("${line#[\"\']}")
    done
    lines=("${(@f)$(_HOCKET_COMPLETE=zsh $words[1] "${(@)typed}")}")
    for line in $lines; do
        values+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  }")
    done
    if [[ -n $values ]]; then
        compadd -d shown -a values
    else
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _hocket "$@"
else
    compdef _hocket hocket forkhestra
fi
""",
    "fish": r"""
function __hocket_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct | string trim --left --chars "\"'")
    set -l found (env _HOCKET_COMPLETE=fish $words[1] $words[2..-1] "$current")
    if test -n "$found"
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete --no-files --command hocket --arguments '(__hocket_complete)'
complete --no-files --command forkhestra --arguments '(__hocket_complete)'
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


def answer(words: list[str], shell: str) -> None:
    """Print what the last word may become: for bash as it is shown, for other shells with its description."""
    offered = offers(words or [""])
    gap = "  " if shell == "bash" else "\t"
    # Bash types what it shows, so a description is only for a choice.
    is_plain = shell == "bash" and len(offered) == 1
    access.write_lines(f"{word}{gap}{text}" if text and not is_plain else word for word, text in offered)


def offers(words: list[str]) -> list[Offer]:
    """What the last word may become, given those before it, each with a description."""
    *before, begun = words
    _, found, given = usage.select(before)
    if isinstance(found, Command):
        offered = _of_command(found, given, begun)
    elif given:
        offered = []
    elif begun.startswith("-"):
        offered = _plain(_names([usage.HELP, usage.VERSION] if found is usage.ROOT else [usage.HELP]))
    else:
        offered = _plain(_commands_of(found))
    return [offer for offer in offered if offer[0].startswith(begun)]


def _plain(words: Iterable[str]) -> list[Offer]:
    return [(word, "") for word in words]


def _commands_of(group: Group) -> list[str]:
    return list(COMMANDS if group is usage.ROOT else group.commands)


def _of_command(found: Command, given: list[str], begun: str) -> list[Offer]:
    try:
        known = list(usage.tokens(found, given))
    except usage.MissingValue as error:
        return _values(error.option, begun)
    except ArgumentError:
        return []
    if begun.startswith("-") and "--" not in given:
        used = {option.name for option, _ in known if option is not None and not option.many}
        return _plain(_names([option for option in (*found.options, usage.HELP) if option.name not in used]))
    arguments = [text for option, text in known if option is None]
    if any(argument.completes == COMMAND_NAMES for argument in found.arguments):
        _, named, rest = usage.select(arguments)
        return _plain(_commands_of(named)) if isinstance(named, Group) and not rest else []
    place = len(arguments)
    if place < len(found.arguments):
        return _values(found.arguments[place], begun)
    return _values(found.arguments[-1], begun) if found.arguments and found.arguments[-1].many else []


def _names(options: list[Option]) -> list[str]:
    return [name for option in options for name in option.names]


def _values(parameter: Option | Argument, begun: str) -> list[Offer]:
    if isinstance(parameter.kind, tuple):
        return _plain(parameter.kind)
    if parameter.completes == AGENTS:
        from hocket.cli.agents import addresses

        part = CHAIN_PART.fullmatch(begun)
        return _plain(f"{(part and part[1]) or ''}{address}" for address in addresses())
    if parameter.completes in (RUNS, LIVE_RUNS):
        return _runs(ended_too=parameter.completes == RUNS)
    return []


def _runs(*, ended_too: bool) -> list[Offer]:
    """The numbers of the newest runs with their agents; none if no server is running."""
    try:
        client = access.connect(starting=False, talk=False)
        runs = client.request("GET", f"/api/runs?all={int(ended_too)}&limit={MOST_RUNS}")
    except HocketError:
        return []
    return [(str(run["number"]), one_line(run["agent"])) for run in reversed(runs)]
