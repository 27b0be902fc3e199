"""What is raised when the words of a command do not go together.

Apart from ``usage``, which every command loads, because the errors are loaded where one is met.
"""

from __future__ import annotations

from hocket.errors import UsageError


class Misused(UsageError):
    """A command was given what does not go together; whoever tells it points to the command's help."""
