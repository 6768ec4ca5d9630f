"""The status of a TopicStorage.

Pure. Source: docs/operator.md sections 3 and 8.
"""

from __future__ import annotations

from typing import Final

from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.model.storage_policy import next_policy
from stratalog.model.topic import Topic
from stratalog_operator.plan.declared.topics import CREATING, TopicPlan, is_adopted, is_creating
from stratalog_operator.plan.observed import Observed, SeenTopic, TopicSums
from stratalog_operator.plan.scope import Word, complete, is_paused
from stratalog_operator.resources.conditions import ConditionStatus, ConditionType, merge
from stratalog_operator.resources.topic import ObservedTopic, TopicStorageStatus, TopicTiers

_YES, _NO, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_UNREACHED: Final[Word] = (_UNKNOWN, "MetaUnreachable", "the meta service does not answer")
_REMOTE: Final = "remote.storage.enable"
_STEP: Final = 50
"""A number is written again after a change of 1/50, so that a topic with constant traffic does not cause constant
writes."""


def topic_status(seen: Observed, one: SeenTopic, planned: TopicPlan) -> TopicStorageStatus:
    before, topic = one.status, planned.topic
    waits_since = (before.deletion_waits_since or seen.now) if planned.is_unanswered else None
    conditions = merge(
        before.conditions, complete("TopicStorage", _words(seen, one, planned)), one.generation, seen.now
    )
    if topic is None or seen.meta is None:
        return before.model_copy(
            update={
                "observed_generation": one.generation,
                "conditions": conditions,
                "deletion_waits_since": waits_since,
            }
        )
    sums = seen.meta.topic_sums.get(topic.topic_id, TopicSums())
    has_cold = seen.cluster.spec.cold_tier is not None and _is_tiered(seen, topic)
    tiers = TopicTiers(
        hot_bytes=sums.hot_bytes,
        cold_bytes=sums.cold_bytes,
        commit_lag_bytes=sums.unsent_bytes if has_cold else 0,
        oldest_offset=sums.oldest_offset,
    )
    return TopicStorageStatus(
        observed_generation=one.generation,
        conditions=conditions,
        topic_id=str(topic.topic_id),
        adopted=is_adopted(one, topic),
        observed=ObservedTopic(
            shards=topic.shard_count,
            replication_factor=topic.replication_factor,
            policy="Quorum" if is_quorum(topic.settings) else next_policy(topic.settings),
        ),
        tiering=tiers if _has_moved(before.tiering, tiers) else before.tiering,
        seal=before.seal if planned.seal is None or is_paused(seen) else planned.seal.status,
        deletion_waits_since=waits_since,
    )


def _is_tiered(seen: Observed, topic: Topic) -> bool:
    default = seen.cluster.spec.config.get(_REMOTE, "true")
    return topic.settings.get(_REMOTE, default) != "false"


def _has_moved(before: TopicTiers, after: TopicTiers) -> bool:
    pairs = (
        (before.hot_bytes, after.hot_bytes),
        (before.cold_bytes, after.cold_bytes),
        (before.commit_lag_bytes, after.commit_lag_bytes),
        (before.oldest_offset, after.oldest_offset),
    )
    return any(old != new and abs(new - old) * _STEP >= max(old, new) for old, new in pairs)


def _words(seen: Observed, one: SeenTopic, planned: TopicPlan) -> dict[ConditionType, Word]:
    name = one.spec.topic_name
    words: dict[ConditionType, Word] = {
        ConditionType.CONFLICT: (_NO, "HasItsTopic", ""),
        ConditionType.PROGRESSING: (_NO, "NothingUnderWay", ""),
        ConditionType.RECONCILED: (_YES, "Applied", ""),
        ConditionType.READY: _ready(seen, planned, name),
    }
    if one.is_deleting:
        waits = "the meta service does not answer" if planned.is_unanswered else "it is being deleted"
        lost = "the meta service has not answered: the topic may still be there"
        words[ConditionType.RECONCILED] = (_NO, "Error", lost) if planned.is_given_up else (_NO, "Deleting", waits)
        words[ConditionType.READY] = (_NO, "Deleting", waits)
    elif is_paused(seen):
        words[ConditionType.RECONCILED] = (_NO, "Paused", "nothing is applied until it is resumed")
    elif planned.conflict:
        why = f"TopicStorage {planned.conflict} is older and has topic {name}: delete one of the two"
        words[ConditionType.CONFLICT] = (_YES, "OlderHasIt", why)
        words[ConditionType.RECONCILED] = (_NO, "Waiting", why)
        words[ConditionType.READY] = (_NO, "Conflict", why)
    elif seen.meta is None:
        words[ConditionType.RECONCILED] = (_NO, "Waiting", _UNREACHED[2])
    elif planned.invalid:
        words[ConditionType.RECONCILED] = (_NO, "InvalidSpec", planned.invalid)
    elif planned.waits:
        words[ConditionType.RECONCILED] = (_NO, "Waiting", planned.waits)
    elif planned.is_creating:
        words[ConditionType.RECONCILED] = (_NO, "Waiting", "it is being made")
    elif planned.offer.actions:
        words[ConditionType.PROGRESSING] = (_YES, "Changing", "")
    # Kept through silence, too: it says whose the topic is.
    if planned.topic is None and (planned.is_creating or (seen.meta is None and is_creating(one))):
        words[ConditionType.PROGRESSING] = (_YES, CREATING, f"topic {name} is being made")
    return words


def _ready(seen: Observed, planned: TopicPlan, name: str) -> Word:
    if seen.meta is None:
        return _UNREACHED
    if planned.topic is None:
        return _NO, "NotThere", planned.invalid or planned.waits or f"topic {name} is not there yet"
    if planned.invalid:
        return _NO, "NotAsAskedFor", planned.invalid
    sums = seen.meta.topic_sums.get(planned.topic.topic_id, TopicSums())
    return (_NO, "NotHealthy", sums.trouble) if sums.trouble else (_YES, "Serves", "")
