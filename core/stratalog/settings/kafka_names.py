"""Topic settings of Kafka that are not ours by name: what some of them mean here, and why others mean nothing.

One with a meaning is kept under our name: all parts of the product look there alone. One without is refused, or, where
`topic.settings.without.effect.enable` says so, kept and shown as without effect, for tools that always send it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.settings.units import INT64_MAX

_STAND_FOR: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "unclean.leader.election.enable": {"true": {"uncleanSeal": "allow"}, "false": {"uncleanSeal": "deny"}},
    "flush.messages": {"1": {"flush.policy": "fsync"}, str(INT64_MAX): {"flush.policy": "replicated"}},
}
"""Kafka's key -> its value -> what holds then, under our names."""

_LIMITS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
_BOTH_WAYS: Final = "message.timestamp.difference.max.ms"
_COMPACTION: Final = "there is no compaction: sealed segments are immutable"
_RECOMPRESSION: Final = "batches stay as their producers compressed them"
_THROTTLE: Final = "copies are throttled per node (replica.catchup.bytes.per.second)"
_INDEX: Final = "segments have no index files whose size could be set"

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "compression.gzip.level": _RECOMPRESSION,
    "compression.lz4.level": _RECOMPRESSION,
    "compression.zstd.level": _RECOMPRESSION,
    "delete.retention.ms": _COMPACTION,
    "max.compaction.lag.ms": _COMPACTION,
    "min.cleanable.dirty.ratio": _COMPACTION,
    "min.compaction.lag.ms": _COMPACTION,
    "file.delete.delay.ms": "the delay is a setting of the node (remote.delete.delay.ms)",
    "flush.ms": "the interval is a setting of the node (flush.interval.ms)",
    "follower.replication.throttled.replicas": _THROTTLE,
    "leader.replication.throttled.replicas": _THROTTLE,
    "index.interval.bytes": _INDEX,
    "segment.index.bytes": _INDEX,
    "message.downconversion.enable": "batches are served as they are, in format 2 only",
    "message.format.version": "batches are kept as they are, in format 2 only",
    "preallocate": "segment files grow as they are written",
    "remote.log.copy.disable": "use remote.storage.enable=false instead",
    "remote.log.delete.on.disable": "data in the bucket stays until retention deletes it",
    "segment.jitter.ms": "segments of many shards roll without jitter",
}
"""Kafka's key -> why it means nothing here."""

ENABLED_BY: Final = "topic.settings.without.effect.enable"


def under_our_names(wanted: Mapping[str, str], present: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is kept: a name of Kafka's becomes ours, which alone counts from then on. `present` is what was kept before:
    what a client sends back as it was does not contradict what it changes under the other name.

    Raises: InvalidRequest for a value that cannot be had, and where the same thing is said under both names and
    differently.
    """
    kept = {key: value for key, value in wanted.items() if not _is_translated(key)}
    for key, value in wanted.items():
        if not _is_translated(key):
            continue
        for name, own in _meaning(key, value).items():
            if wanted.get(name, own) != own and wanted[name] != (present or {}).get(name):
                raise InvalidRequest(
                    f"topic settings {key}={value:.80} and {name}={wanted[name]:.80} contradict each other: give one"
                )
            kept[name] = own
    return kept


def require_effect(wanted: Mapping[str, str], present: Mapping[str, str] | None = None) -> None:
    """Raises: InvalidRequest for a key that means nothing here, and was not kept before."""
    for key, value in wanted.items():
        if key in WITHOUT_EFFECT and (present or {}).get(key) != value:
            raise InvalidRequest(
                f"topic setting {key} has no effect here: {WITHOUT_EFFECT[key]}. Leave it out, or start the nodes with "
                f"{ENABLED_BY}=true to have it accepted and shown as without effect"
            )


def without(key: str, present: Mapping[str, str]) -> dict[str, str]:
    """What is kept once the key is taken back, by whichever name."""
    gone = {key}
    if key == _BOTH_WAYS:
        gone = set(_LIMITS)
    elif key in _STAND_FOR:
        gone = {name for meant in _STAND_FOR[key].values() for name in meant}
    return {name: value for name, value in present.items() if name not in gone}


def shown_under_kafka_names(in_force: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Kafka's key -> our key for the same setting, and its value from the settings in force; only keys that Kafka's
    form can express."""
    shown: dict[str, tuple[str, str]] = {}
    for key, values in _STAND_FOR.items():
        for value, meant in values.items():
            for name, own in meant.items():
                if in_force.get(name) == own:
                    shown[key] = (name, value)
    return shown


def _is_translated(key: str) -> bool:
    return key in _STAND_FOR or key == _BOTH_WAYS


def _meaning(key: str, value: str) -> Mapping[str, str]:
    if key == _BOTH_WAYS:
        return dict.fromkeys(_LIMITS, value)
    meant = _STAND_FOR[key].get(value.strip().lower())
    if meant is None:
        raise InvalidRequest(
            f"topic setting {key}={value:.80} is refused: it must be one of {', '.join(_STAND_FOR[key])}"
        )
    return meant
