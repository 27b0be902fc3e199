"""Chooses the platform's process calls once; the rest of the package imports them from here."""

from __future__ import annotations

import sys

if sys.platform == "darwin":
    from hocket.keeper.darwin import *  # noqa: F403 - both have the same names, which a test compares
else:
    from hocket.keeper.linux import *  # noqa: F403 - the names are those of the other platform
