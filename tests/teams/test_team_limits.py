"""Settings of the limit of teammates."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.config.loading import load
from hocket.errors import ConfigError


@pytest.mark.req("S5-45")
def test_limit_of_teammates_comes_from_file_or_environment(project: Path, home: Path) -> None:
    assert load(str(project), str(home)).limits.max_teammates_per_lead is None
    (home / "config.toml").write_text("[limits]\nmax_teammates_per_lead = 4\n")
    assert load(str(project), str(home)).limits.max_teammates_per_lead == 4
    environ = {"HOME": str(home), "MAX_TEAMMATES_PER_LEAD": " 2 "}
    assert load(str(project), str(home), environ).limits.max_teammates_per_lead == 2
    for wrong in ("-1", "two", "1.5", "9" * 12):
        with pytest.raises(ConfigError, match="MAX_TEAMMATES_PER_LEAD must be an integer"):
            load(str(project), str(home), {**environ, "MAX_TEAMMATES_PER_LEAD": wrong})
