"""Reads HTTP answers that may come from another server than Stratalog's."""

from __future__ import annotations

import json
from typing import Any


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty if the answer is not one."""
    try:
        decoded = json.loads(body)
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
