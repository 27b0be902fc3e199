"""Lists the chains that can be run by name in a directory, as JSON values, with the errors in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.config.loading import find_chains, load
from hocket.config.settings import ChainConfig, Config, StepConfig
from hocket.errors import HocketError
from hocket.model import stages
from hocket.trust.approvals import Approvals
from hocket.trust.check import check_configuration
from hocket.workflows.bind import bind, check_directory, variables_of
from hocket.workflows.request import StartRequest

_STEP_KEYS = tuple(name for name in StepConfig._fields if name != "group")
_CHAIN_KEYS = tuple(name for name in ChainConfig._fields if name not in ("source", "steps", "project"))


def survey(cwd: str, home: str, env: Mapping[str, str]) -> dict[str, Any]:
    """All chains with their steps and problems, the files with errors, and the places that were searched."""
    check_directory(cwd)
    found = find_chains(cwd, home, env)
    problems = [_problem(path, error) for path, error in found.problems]
    config: Config | None = None
    try:
        config = load(cwd, home, env)
        check_configuration(Approvals(config))
    except HocketError as error:
        config = None  # While a file has errors no chain can run, so there is nothing more to check.
        if not problems:
            file = next((path for path in found.places if path in error.message), found.places[0])
            problems.append(_problem(file, error))
    catalog = cache(lambda: discover(cwd, env, config.home, config, Approvals(config))) if config else None
    rows = []
    for _, chain in sorted(found.chains.items()):
        refusal = _refusal(chain, cwd, env, config, catalog) if config and catalog else None
        rows.append(_row(chain, refusal))
    return {"chains": rows, "problems": problems, "places": list(found.places)}


def _refusal(
    chain: ChainConfig, cwd: str, env: Mapping[str, str], config: Config, catalog: Callable[[], Catalog]
) -> str | None:
    """Why a chain would be refused with any prompt."""
    given = dict.fromkeys(variables_of(chain), "x")
    request = StartRequest(cwd, env, chain=chain.name, prompt="x", prompt_literal=True, variables=given)
    try:
        bind(request, config, catalog)
    except HocketError as error:
        return error.message
    return None


def _problem(path: str, error: HocketError) -> dict[str, Any]:
    reason = error.message.removeprefix(f"{path}: ")
    line = re.search(r"\bline (\d+)", reason)
    return {"path": path, "line": int(line[1]) if line else None, "reason": reason, "hint": error.hint}


# --- Rows ---------------------------------------------------------------------------------------------------


def _row(chain: ChainConfig, problem: str | None) -> dict[str, Any]:
    texts, steps = [], []
    for number, places in enumerate(stages(chain.steps), 1):
        members = [chain.steps[place] for place in places]
        words = [step.agent if step.iterations is None else f"{step.agent}:{step.iterations}" for step in members]
        texts.append(words[0] if len(words) == 1 else f"({', '.join(words)})")
        for step in members:
            settings = {name: getattr(step, name) for name in _STEP_KEYS}
            steps.append({"step": number, "grouped": step.group is not None, **settings, "args": list(step.args)})
    return {
        **{name: getattr(chain, name) for name in _CHAIN_KEYS},
        "file": chain.source,
        "text": " -> ".join(texts),
        "variables": variables_of(chain),
        "steps": steps,
        "problem": problem,
    }
