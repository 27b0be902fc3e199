"""What launches share: checks of what the operating system can pass to a program, and the instructions for a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hocket.errors import PromptError, UsageError
from hocket.model import DEFAULT_MARKER
from hocket.providers.base import LaunchRequest

DEFAULT_PROMPT = "Begin: do what your instructions describe."
CONTINUE = "Continue where you stopped."
"""The prompt of a resumed session."""
STDIN_PROMPT_LIMIT = 10 * 1024 * 1024
ARGUMENT_PROMPT_LIMIT = 64 * 1024
"""Bytes of a prompt in an argument. Linux refuses one argument of 128 KiB; half of it is safe everywhere."""
ARGUMENT_LIMIT = 128 * 1024
"""Bytes of one argument or variable, with its final zero: what Linux accepts."""
TOTAL_LIMIT = 1024 * 1024
"""Bytes of all arguments and variables together. Linux accepts 2 MiB by default; the rest is for what is added later
and for machines with a smaller stack."""
_POINTER = 8


def check_arguments(agent: str, arguments: Iterable[str]) -> None:
    for argument in arguments:
        shown = f"argument {argument[:40]!r} for {agent}"
        if "\0" in argument:
            raise UsageError(f"the {shown} contains a NUL character")
        if len(encoded(argument, f"the {shown}", UsageError)) >= ARGUMENT_LIMIT:
            raise UsageError(f"the {shown} is longer than {ARGUMENT_LIMIT // 1024} KiB")


def check_total(agent: str, arguments: Iterable[str], env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if "\0" in name + value or "=" in name or not name:
            raise UsageError(f"the variable {name[:40]!r} for {agent} cannot be passed to a program")
        if len(encoded(f"{name}={value}", f"the variable {name[:40]!r}", UsageError)) >= ARGUMENT_LIMIT:
            raise UsageError(f"the variable {name[:40]!r} for {agent} is longer than {ARGUMENT_LIMIT // 1024} KiB")
    texts = [*arguments, *(f"{name}={value}" for name, value in env.items())]
    total = sum(len(text.encode()) + 1 + _POINTER for text in texts)
    if total > TOTAL_LIMIT:
        raise UsageError(
            f"arguments and variables for {agent} have {total} bytes together; the limit is {TOTAL_LIMIT}",
            "pass a file name instead of the content",
        )


def given_model(arguments: Sequence[str], *flags: str) -> str | None:
    """The model that arguments of the user choose, which override Hocket's own."""
    chosen: str | None = None
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in flags:
            chosen = value if equals else next(iter(arguments[place + 1 :]), None)
    return chosen


def prompt_or(default: str, prompt: str | None) -> str:
    """The prompt, or the default one for a CLI that needs one."""
    return prompt if prompt and prompt.strip() else default


def check_prompt(agent: str, prompt: str, limit: int = STDIN_PROMPT_LIMIT, hint: str | None = None) -> str:
    size = len(encoded(prompt, f"the prompt for {agent}", PromptError))
    if size > limit:
        raise PromptError(f"the prompt for {agent} has {size} bytes; the limit is {limit // 1024} KiB", hint)
    return prompt


def check_argument_prompt(agent: str, prompt: str, hint: str) -> str:
    check_prompt(agent, prompt, ARGUMENT_PROMPT_LIMIT, hint)
    if "\0" in prompt:
        raise PromptError(f"the prompt for {agent} contains a NUL character, which no argument can carry")
    return prompt


def encoded(text: str, what: str, error: type[UsageError]) -> bytes:
    """The text as a program gets it; raise the given error if it is not valid Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise error(f"{what} is not valid text (character {cause.start})") from cause


_LOOP = """\
You are running unattended: do not stop to report progress or to ask whether to go on. \
Keep working until everything you were asked for is done. When all of it is done, and only then, write the following \
as a line of its own, with nothing else on it:

{marker}

While anything is left to do, do not write that line."""

_OWN_BRANCH = """\
You are working in a git worktree with a branch of its own. Later steps get only what is committed \
there, so commit your changes before you end."""


def step_instructions(request: LaunchRequest) -> str:
    """The instructions for a loop and for a worktree, as far as they apply; empty if the user turned them off."""
    if not request.contract:
        return ""
    loop = [_LOOP.format(marker=request.marker or DEFAULT_MARKER)] if request.loop else []
    return "\n\n".join([*loop, *([_OWN_BRANCH] if request.own_branch else [])])
