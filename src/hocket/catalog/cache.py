"""Catalogs in the server's memory, valid while no file they depend on has changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
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
        self._cached: OrderedDict[tuple[str | None, ...], _Cached] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, cwd: str | None, env: Environ, config: Config, trust: FolderTrust | None = None) -> Catalog:
        """Return the current catalog of a directory. Raises what ``discover`` raises; failures are not cached."""
        key = self._key(cwd, env)
        cached = self._recall(key)
        if cached and self._is_fresh(cached, config):
            return cached.catalog
        catalog = discover(cwd, env, self._home, config, trust)
        self._remember(key, _Cached(catalog, config, self._clock()))
        return catalog

    def invalidate(self, cwd: str | None = None) -> None:
        """Forget one directory, or all of them."""
        with self._lock:
            wanted = None if cwd is None else real_path(cwd)
            for key in [key for key in self._cached if wanted is None or key[0] == wanted]:
                del self._cached[key]

    def _key(self, cwd: str | None, env: Environ) -> tuple[str | None, ...]:
        return (None if cwd is None else real_path(cwd), *(env.get(name) for name in VARIABLES))

    def _recall(self, key: tuple[str | None, ...]) -> _Cached | None:
        with self._lock:
            cached = self._cached.get(key)
            if cached:
                self._cached.move_to_end(key)
            return cached

    def _is_fresh(self, cached: _Cached, config: Config) -> bool:
        young = 0 <= self._clock() - cached.at < self._ttl
        return young and _is_equivalent(cached.config, config) and holds(cached.catalog.seen)

    def _remember(self, key: tuple[str | None, ...], cached: _Cached) -> None:
        with self._lock:
            self._cached.pop(key, None)
            if is_settled(cached.catalog):
                self._cached[key] = cached
            while len(self._cached) > MOST_CATALOGS:
                self._cached.popitem(last=False)


def _is_equivalent(one: Config, other: Config) -> bool:
    """Compare what a catalog uses of a configuration, whose file may have changed after it was read."""
    return one is other or (one.agents == other.agents and one.trusted_folders == other.trusted_folders)


def is_settled(catalog: Catalog) -> bool:
    """True if every later change of a recorded path will show."""
    return UNSETTLED not in catalog.seen.values()
