"""How agents run: one ``Provider`` for each kind of program. Finding agents is up to ``hocket.catalog``."""

from __future__ import annotations

from collections.abc import Mapping

from hocket.providers import claude, codex, cursor, executable
from hocket.providers.base import Provider

PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider for provider in (claude.provider, codex.provider, cursor.provider, executable.provider)
}
