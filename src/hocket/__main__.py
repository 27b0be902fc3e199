"""``python -m hocket`` is the ``hocket`` command. Nothing else belongs here."""

from __future__ import annotations

import sys

from hocket.cli import main

if __name__ == "__main__":
    sys.exit(main())
