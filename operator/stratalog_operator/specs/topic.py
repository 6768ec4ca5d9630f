"""The settings of a topic, as a TopicStorage asks for them: all of them, so that what it does not name is a default.

Pure. Source: docs/operator.md sections 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog_operator.resources.topic import TopicStorageSpec

STAYS: Final = ("acks.policy",)
"""As it was created with: what a change does not name is left."""


def topic_settings(spec: TopicStorageSpec, present: Mapping[str, str]) -> dict[str, str]:
    """By the topic's own keys. `present`: of the topic that is there; empty for one that is to be made."""
    tiering = spec.tiering
    found = {
        "min.insync.replicas": str(spec.min_insync_replicas),
        "remote.storage.enable": str(tiering.enabled).lower(),
        "retention.ms": _ms(tiering.retention_seconds),
        "retention.bytes": str(tiering.retention_bytes),
        "uncleanSeal": spec.unclean_seal.lower(),
    }
    if tiering.hot_retention_seconds is not None:
        found["local.retention.ms"] = _ms(tiering.hot_retention_seconds)
    if tiering.hot_bytes is not None:
        found["local.retention.bytes"] = str(tiering.hot_bytes)
    kept = {key: present[key] for key in STAYS if key in present}
    return {**kept, **spec.config, **found}


def _ms(seconds: int) -> str:
    return str(seconds if seconds < 0 else seconds * 1000)
