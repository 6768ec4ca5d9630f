"""The settings of a topic, as a TopicStorage asks for them: what it does not name is not written to the topic.

Pure. Source: docs/operator.md sections 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.model.storage_policy import STORAGE_POLICY
from stratalog_operator.resources.topic import TopicStorageSpec

STAYS: Final = ("acks.policy",)
"""As it was created with: what a change does not name is left."""


def topic_settings(spec: TopicStorageSpec, present: Mapping[str, str], *, keeps_unnamed: bool) -> dict[str, str]:
    """By the topic's own keys. `present`: of the topic that is there; empty for one that is to be made.

    `keeps_unnamed`: what the object does not name stays as it is in the topic; otherwise it is removed from the topic,
    which then has the cluster's default.
    """
    kept = {key: value for key, value in present.items() if keeps_unnamed or key in STAYS}
    if spec.policy is not None:
        kept.pop(STORAGE_POLICY, None)
    return {**kept, **named_settings(spec)}


def named_settings(spec: TopicStorageSpec) -> dict[str, str]:
    """What the object itself says."""
    tiering = spec.tiering
    named = {
        "min.insync.replicas": _text(spec.min_insync_replicas),
        "remote.storage.enable": None if tiering.enabled is None else str(tiering.enabled).lower(),
        "retention.ms": _ms(tiering.retention_seconds),
        "retention.bytes": _text(tiering.retention_bytes),
        "local.retention.ms": _ms(tiering.hot_retention_seconds),
        "local.retention.bytes": _text(tiering.hot_bytes),
        STORAGE_POLICY: spec.policy if spec.policy == "Direct" else None,
        "remote.storage.class": tiering.storage_class,
        "remote.compression": tiering.compression,
        "remote.upload.interval.ms": _ms(tiering.upload_interval_seconds),
        "archive.after.ms": _ms(tiering.archive_after_seconds),
        "archive.storage.class": tiering.archive_class,
        "uncleanSeal": None if spec.unclean_seal is None else spec.unclean_seal.lower(),
    }
    return {**spec.config, **{key: value for key, value in named.items() if value is not None}}


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _ms(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    return str(seconds if seconds < 0 else seconds * 1000)
