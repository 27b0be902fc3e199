"""The configuration of a directory, for whoever only wants to look: a file that cannot be used is one problem among
others. Whoever runs something reads the configuration itself, and is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hocket.catalog.entries import REFUSED, Problem
from hocket.config import places
from hocket.config.loading import load
from hocket.config.settings import Config
from hocket.errors import ConfigError, HocketError, NotTrusted


def configuration(cwd: str, home: str, environ: Mapping[str, str]) -> tuple[Config, list[Problem]]:
    """What the files say together; nothing, and the reason, when one of them cannot be used.

    One that asks for more than its folder may have is a problem as well, but what it says is there to be looked at.
    """
    looked = tuple(place.path for place in places(cwd, home, environ))
    try:
        return load(cwd, home, environ), []
    except NotTrusted as error:
        return load(cwd, home, environ, check=False), [_problem(looked, error)]
    except HocketError as error:
        return Config(looked=looked, home=home), [_problem(looked, error)]


def _problem(looked: Sequence[str], error: HocketError) -> Problem:
    path = next((path for path in looked if path in error.message), looked[0])
    said = error.message.removeprefix(f"{path}: ")
    line = re.search(r"\bline (\d+)", said)
    reason = f"the configuration is left out: {said}" if isinstance(error, ConfigError) else said
    return Problem(path, int(line[1]) if line else None, reason, False, REFUSED)
