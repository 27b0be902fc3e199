"""Catalogs and definitions in the server's memory, valid while no file they depend on has changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hocket.catalog.discovery import UNSETTLED, FolderTrust, discover, is_young
from hocket.catalog.entries import Catalog
from hocket.catalog.fields import read_definition
from hocket.catalog.file_probe import normal, signature_at
from hocket.config.settings import Config
from hocket.model import Definition

MOST_CATALOGS = 64
MOST_DEFINITIONS = 512
TTL = 300.0
"""In seconds: how long a catalog is kept at most."""
VARIABLES = ("HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_PLUGIN_CACHE_DIR", "XDG_CONFIG_HOME")
"""The environment variables that decide where definitions and configuration are."""

Environ = Mapping[str, str]


def holds(seen: Mapping[str, str]) -> bool:
    """Whether every path still is as it was seen: nothing is opened, and no folder is listed."""
    return all(signature_at(path) == known for path, known in seen.items())


# --- Catalogs -----------------------------------------------------------------------------------------------


class _Made(NamedTuple):
    catalog: Catalog
    config: Config
    at: float


class Catalogs:
    """One catalog a directory, made when somebody asks. Any thread may ask; two at once may both do the work."""

    def __init__(self, home: str, ttl: float = TTL, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._ttl = ttl
        self._clock = clock
        self._made: OrderedDict[tuple[str | None, ...], _Made] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, cwd: str | None, env: Environ, config: Config, trust: FolderTrust | None = None) -> Catalog:
        """What can run in a directory, as it is now. Raises what ``discover`` raises, and keeps no failure."""
        key = self._key(cwd, env)
        made = self._recall(key)
        if made and self._is_fresh(made, config):
            return made.catalog
        catalog = discover(cwd, env, self._home, config, trust)
        self._remember(key, _Made(catalog, config, self._clock()))
        return catalog

    def invalidate(self, cwd: str | None = None) -> None:
        """Forget one directory; without one, all of them."""
        with self._lock:
            wanted = None if cwd is None else normal(cwd)
            for key in [key for key in self._made if wanted is None or key[0] == wanted]:
                del self._made[key]

    def _key(self, cwd: str | None, env: Environ) -> tuple[str | None, ...]:
        return (None if cwd is None else normal(cwd), *(env.get(name) for name in VARIABLES))

    def _recall(self, key: tuple[str | None, ...]) -> _Made | None:
        with self._lock:
            made = self._made.get(key)
            if made:
                self._made.move_to_end(key)
            return made

    def _is_fresh(self, made: _Made, config: Config) -> bool:
        young = 0 <= self._clock() - made.at < self._ttl
        return young and _says_the_same(made.config, config) and holds(made.catalog.seen)

    def _remember(self, key: tuple[str | None, ...], made: _Made) -> None:
        with self._lock:
            self._made.pop(key, None)
            if is_settled(made.catalog):
                self._made[key] = made
            while len(self._made) > MOST_CATALOGS:
                self._made.popitem(last=False)


def _says_the_same(one: Config, other: Config) -> bool:
    """As far as a catalog depends on it. A file may have changed after it was read and before it was looked at."""
    return one is other or (one.agents == other.agents and one.trusted_folders == other.trusted_folders)


def is_settled(catalog: Catalog) -> bool:
    """Whether a later change to anything that was seen is sure to show."""
    return UNSETTLED not in catalog.seen.values()


# --- Definitions --------------------------------------------------------------------------------------------


class Definitions:
    """Single definitions, each read once for as long as its file stays the same. Any thread may ask."""

    def __init__(self) -> None:
        self._read: OrderedDict[tuple[str, str | None], tuple[str, Definition]] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, path: str, stem: str | None = None) -> Definition:
        """What a file says about its agent, as ``read_definition`` has it. No failure is kept."""
        key = path, stem
        # Looked at before it is read: a change in between only makes us read it once more.
        begun, now = time.time_ns(), signature_at(path)
        with self._lock:
            known = self._read.get(key)
            if known:
                self._read.move_to_end(key)
        if known and known[0] == now:
            return known[1]
        definition = read_definition(path, stem)
        with self._lock:
            self._read.pop(key, None)
            if not is_young(now, begun, time.time_ns()):
                self._read[key] = now, definition
            while len(self._read) > MOST_DEFINITIONS:
                self._read.popitem(last=False)
        return definition

    def clear(self) -> None:
        """Forget all of them: the next load reads its file again."""
        with self._lock:
            self._read.clear()
