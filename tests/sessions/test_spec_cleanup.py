"""Values of secret variables leave the `spec.json` files of a home, also beside malformed ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hocket.keeper import files
from hocket.sessions import spec_cleanup

KEY = "sk-test-0123456789abcdef0123456789"


def spec_file(home: Path, name: str, spec: Any) -> Path:
    directory = home / "runs" / "2026-11" / name
    directory.mkdir(parents=True)
    (directory / files.SPEC).write_text(json.dumps(spec))
    return directory / files.SPEC


@pytest.mark.parametrize(
    "odd",
    [
        {"env": {"MY_KEY": KEY}, "secrets": [1]},
        {"env": {"MY_KEY": KEY, "OTHER": ["x"]}},
        {"env": {"MY_KEY": KEY, "OTHER_KEY": {"x": 1}}},
        {"env": {"MY_KEY": KEY, "OTHER": 5}},
    ],
)
def test_values_are_removed_beside_odd_files(odd: dict[str, Any], tmp_path: Path) -> None:
    written = [spec_file(tmp_path, name, {"env": {"MY_KEY": KEY, "LANG": "C"}}) for name in ("first", "last")]
    written.append(spec_file(tmp_path, "middle", odd))
    asyncio.run(spec_cleanup.clean_specs(tmp_path, lambda run: False))
    assert [path.name for path in written if KEY in path.read_text()] == []
    assert json.loads(written[0].read_text()) == {"env": {"LANG": "C"}, "secrets": {"MY_KEY": 0}}
    assert not spec_cleanup.is_due(tmp_path)
