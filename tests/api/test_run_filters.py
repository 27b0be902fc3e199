"""Filters of the list of runs: what they read from the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from store.sample_events import StoreWriter, created, ended

from hocket.api.run_filters import PAGE, RunFilter, select
from hocket.engine import Engine
from hocket.store import NewRun, open_store


def test_project_filter_reads_few_pages(tmp_path: Path) -> None:
    store = open_store(tmp_path / "hocket.db")
    names = [f"r{number}" for number in range(1, 2 * PAGE)]
    events = [event for number, name in enumerate(names, 1) for event in (created(name, number), ended(name))]
    StoreWriter(store).write(*events, new={name: NewRun(b"{}") for name in names})
    statements: list[str] = []
    store.read._connection.set_trace_callback(statements.append)
    engine = cast(Engine, SimpleNamespace(read=store.read, live=list))
    bounds: dict[str, Any] = {"ended_too": True, "before": None, "limit": PAGE, "caller": None}
    assert asyncio.run(select(engine, RunFilter(project="/elsewhere"), **bounds)) == []
    assert len(statements) == 2
    assert len(asyncio.run(select(engine, RunFilter(project="/p"), **bounds))) == PAGE
    store.close()
