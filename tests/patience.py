"""How long a test waits for what should take a moment: long enough for a busy machine, shorter than a test may take."""

from __future__ import annotations

PATIENCE = 60.0
"""Seconds."""
