"""Catalogs in the server's memory, valid while no file they depend on has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hocket.catalog.discovery import UNSETTLED, FolderTrust, discover
from hocket.catalog.entries import Catalog
from hocket.catalog.file_probe import real_path, signature_at
from hocket.config.settings import Config
from hocket.providers.defining import DEFINITIONS

MOST_CATALOGS = 64
TTL = 300.0
"""Seconds for which a catalog is kept at most."""
VARIABLES = (*DEFINITIONS.variables, "XDG_CONFIG_HOME")
"""The environment variables that decide where definitions and configuration are."""

Environ = Mapping[str, str]


def holds(seen: Mapping[str, str]) -> bool:
    """True if every path has its recorded signature. Opens no file and lists no folder."""
    return all(signature_at(path) == known for path, known in seen.items())


class _Cached(NamedTuple):
    catalog: Catalog
    config: Config
    at: float


class Catalogs:
    """One catalog per directory, made on demand. Thread-safe; two threads may both make the same one."""

    def __init__(self, home: str, ttl: float = TTL, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._ttl = ttl
        self._clock = clock
        self._cached: dict[tuple[str | None, ...], _Cached] = {}
        """In the order of their last use."""
        self._lock = threading.Lock()

    def get(self, cwd: str | None, env: Environ, config: Config, trust: FolderTrust | None = None) -> Catalog:
        """Return the current catalog of a directory. Raises what ``discover`` raises; failures are not cached."""
        key = (None if cwd is None else real_path(cwd), *(env.get(name) for name in VARIABLES))
        with self._lock:
            cached = self._cached.pop(key, None)
            if cached:
                self._cached[key] = cached  # the last one that was used is the last in the order
        if cached and 0 <= self._clock() - cached.at < self._ttl:
            # The file of a configuration may have changed after it was read, so what a catalog uses is compared.
            used, same = cached.config, cached.config is config
            same = same or (used.agents == config.agents and used.trusted_folders == config.trusted_folders)
            if same and holds(cached.catalog.seen):
                return cached.catalog
        catalog = discover(cwd, env, self._home, config, trust)
        with self._lock:
            self._cached.pop(key, None)
            if is_settled(catalog):
                self._cached[key] = _Cached(catalog, config, self._clock())
            while len(self._cached) > MOST_CATALOGS:
                del self._cached[next(iter(self._cached))]
        return catalog

    def invalidate(self, cwd: str | None = None) -> None:
        """Forget one directory, or all of them."""
        with self._lock:
            for key in list(self._cached):
                if cwd is None or key[0] == real_path(cwd):
                    del self._cached[key]


def is_settled(catalog: Catalog) -> bool:
    """True if every later change of a recorded path will show."""
    return UNSETTLED not in catalog.seen.values()
