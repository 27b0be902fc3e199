"""The chains that can be run by name in a directory, as plain values: for the command line and for programs.

Nothing is started and nothing has to be right: a file that is broken, or a chain whose agent is not there, is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from hocket.catalog.discovery import discover
from hocket.chain.variables import references
from hocket.config.loading import NamedChains, find_chains, load
from hocket.config.settings import ChainConfig, Config, StepConfig
from hocket.errors import HocketError
from hocket.model import stages
from hocket.trust.approvals import Approvals
from hocket.trust.check import check_configuration
from hocket.workflows.bind import bind, check_directory
from hocket.workflows.request import StartRequest

_OF_STEPS = tuple(name for name in StepConfig._fields if name != "group")
_OF_CHAINS = tuple(name for name in ChainConfig._fields if name not in ("source", "steps", "project"))


def survey(cwd: str, home: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Every chain with its steps and what is wrong with it, the files that cannot be used, the places looked at."""
    check_directory(cwd)
    seen = find_chains(cwd, home, env)
    problems = [_problem(path, error) for path, error in seen.problems]
    config: Config | None = None
    try:
        config = load(cwd, home, env)
        check_configuration(Approvals(config))
    except HocketError as error:
        config = None
        if not problems:
            problems.append(_problem(_named_in(seen, error), error))
    judge = _judge(cwd, env, config) if config else _unjudged
    rows = [_row(chain, judge(chain)) for _, chain in sorted(seen.chains.items())]
    return {"chains": rows, "problems": problems, "places": list(seen.places)}


def _unjudged(chain: ChainConfig) -> None:
    """Nothing runs here as long as a file is broken, so there is nothing more to say about one chain."""


def _judge(cwd: str, env: Mapping[str, str], config: Config) -> Callable[[ChainConfig], str | None]:
    """A function that says why a chain would be refused with any prompt. Agents are discovered once."""
    catalog = cache(lambda: discover(cwd, env, config.home, config, Approvals(config)))

    def trouble(chain: ChainConfig) -> str | None:
        given = dict.fromkeys(_variables(chain), "x")
        request = StartRequest(cwd, env, chain=chain.name, prompt="x", prompt_literal=True, variables=given)
        try:
            bind(request, config, catalog)
        except HocketError as error:
            return error.message
        return None

    return trouble


def _problem(path: str, error: HocketError) -> dict[str, Any]:
    said = error.message.removeprefix(f"{path}: ")
    line = re.search(r"\bline (\d+)", said)
    return {"path": path, "line": int(line[1]) if line else None, "reason": said, "hint": error.hint}


def _named_in(seen: NamedChains, error: HocketError) -> str:
    return next((path for path in seen.places if path in error.message), seen.places[0])


# --- Rows ---------------------------------------------------------------------------------------------------


def _row(chain: ChainConfig, problem: str | None) -> dict[str, Any]:
    together = [[chain.steps[place] for place in places] for places in stages(chain.steps)]
    return {
        **{name: getattr(chain, name) for name in _OF_CHAINS},
        "file": chain.source,
        "text": " -> ".join(_spelled(members) for members in together),
        "variables": _variables(chain),
        "steps": [_step(step, number) for number, members in enumerate(together, 1) for step in members],
        "problem": problem,
    }


def _step(step: StepConfig, number: int) -> dict[str, Any]:
    plain = {name: getattr(step, name) for name in _OF_STEPS}
    return {"step": number, "grouped": step.group is not None, **plain, "args": list(step.args)}


def _spelled(members: list[StepConfig]) -> str:
    """The step or group in the syntax of chains."""
    words = [step.agent if step.iterations is None else f"{step.agent}:{step.iterations}" for step in members]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"


def _variables(chain: ChainConfig) -> list[str]:
    """What has to be given as ``NAME=value``, as far as the chain itself says."""
    texts = [chain.prompt, chain.prompt_file]
    for step in chain.steps:
        texts += [*step.args, step.prompt, step.prompt_file]
    return list(dict.fromkeys(name for text in texts if text for name in references(text)))
