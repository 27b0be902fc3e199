"""How large things may be that somebody writes or brings. Only constants: every command may load them."""

from __future__ import annotations

MAX_STEPS = 1000
"""Of a chain, members of groups included."""
MAX_ITERATIONS = 1_000_000
AROUND_A_MARKER = " \t\r\n`*"
"""What people and models put around a marker, which does not count."""
MAX_ATTACHMENT = 10 * 1024 * 1024
"""Bytes of a file that is kept with a task."""
