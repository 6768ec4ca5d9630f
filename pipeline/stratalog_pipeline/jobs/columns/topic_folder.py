"""The folder that a topic has in the target of a job. Pure.

Kafka takes topics of up to 249 characters, and names that begin with a dot; an object's key takes neither between two
slashes. Such a topic has a folder that begins with `@`, which no topic's name has: so no two topics share a folder.
"""

from __future__ import annotations

import hashlib
from typing import Final

from stratalog.objects.keys import is_segment

_KEPT: Final = 150
"""Characters of a long name that stay readable."""


def topic_folder(topic: str) -> str:
    for name in (topic, f"@{topic}"):
        if is_segment(name):
            return name
    return f"@{topic[:_KEPT]}@{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
