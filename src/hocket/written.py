"""How far a chain may go as it is written, in a text or in a file. Only constants: every command may load them."""

from __future__ import annotations

MAX_STEPS = 1000
"""Of a chain, members of groups included."""
MAX_ITERATIONS = 1_000_000
AROUND_A_MARKER = " \t\r\n`*"
"""What people and models put around a marker, which does not count."""
