"""JSON files that others wrote: bounded, and whatever is in them no more than a reason why not.

What the keys of such a file mean is known where it is asked for.
"""

from __future__ import annotations

import json
from typing import Any

from hocket.catalog.file_probe import Look
from hocket.catalog.frontmatter import Fault


def read_object(look: Look, path: str, limit: int) -> dict[str, Any] | Fault | None:
    """What a file says that has to be one object; None where there is no file."""
    content = look.content(path, limit)
    return parse_object(content) if isinstance(content, bytes) else content


def parse_object(content: bytes) -> dict[str, Any] | Fault:
    found = _parse(content)
    return found if isinstance(found, dict | Fault) else Fault(1, "is not one JSON object")


def _parse(content: bytes) -> Any | Fault:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return Fault(error.lineno, f"is not JSON: {error.msg}")
    except UnicodeDecodeError as error:
        return Fault(content[: error.start].count(b"\n") + 1, "is not UTF-8 text")
    except (RecursionError, ValueError) as error:  # thousands of brackets; a number with thousands of digits
        return Fault(1, f"cannot be read as JSON: {error}")
