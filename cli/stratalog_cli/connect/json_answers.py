"""Answers over HTTP of which nobody knows yet whether they are Stratalog's."""

from __future__ import annotations

import json
from typing import Any


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty where it is none."""
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
