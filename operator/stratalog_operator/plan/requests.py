"""Requests that people make once, by a time in a spec: to seal a topic, and to rebalance the cluster.

A request is carried out if its time has come, and is newer than that of the last one (`status`) and than the object. So
neither an older manifest that is applied again repeats it, nor a backup from which the object is made again. Until it
is done each pass continues with it, whenever the operator is killed: the meta service marks segments that are to end,
and refuses a request to seal that it has had.

Pure. Source: docs/operator.md section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, assert_never

from stratalog.model.counting import counted
from stratalog.model.topic import Topic
from stratalog_operator.plan.actions import AskRolls, AskSeal, Offer
from stratalog_operator.plan.observed import Observed, SeenTopic
from stratalog_operator.plan.scope import is_paused, why_blind
from stratalog_operator.resources.requests import RebalanceStatus, SealStatus

MOST_ROUNDS: Final = 16
"""Of a rebalance. A node that joined follows in the first one and leads in the second; more happen where other things
change meanwhile."""
MOST_ROLLS: Final = 500
"""Of a round."""


class Request(Enum):
    """What is to be done about a time in a spec. Closed."""

    NOTHING = "there is none, or it is over"
    TOO_OLD = "it is older than the object: it was made of another one of that name"
    NEW = "carry it out"
    UNDER_WAY = "continue with it"


def judge(wanted: str | None, created: str, now: str, *, known: str | None, is_over: bool) -> tuple[Request, str]:
    """The request that counts now, and its time. `wanted` is that of the spec; `known` the newest that was seen, and
    `is_over` whether it is done or was passed over. A time that has not come is waited for; one that is not newer, or
    is taken out of the spec, changes nothing."""
    earlier = (Request.NOTHING, "") if known is None or is_over else (Request.UNDER_WAY, known)
    if wanted is None or time_ms(wanted) > time_ms(now) or (known is not None and time_ms(wanted) <= time_ms(known)):
        return earlier
    return Request.TOO_OLD if created and time_ms(wanted) < time_ms(created) else Request.NEW, wanted


def time_ms(text: str) -> int:
    """As RFC 3339, which may have a small z. Raises: ValueError for a leap second, which no clock of the cluster
    knows."""
    return int(datetime.fromisoformat(text.upper()).timestamp() * 1000)


# Seals ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SealPlan:
    status: SealStatus | None
    actions: Sequence[AskSeal] = ()

    @property
    def is_busy(self) -> bool:
        return self.status is not None and self.status.done_at is None and not self.status.ignored


def plan_seal(seen: Observed, one: SeenTopic, topic: Topic) -> SealPlan:
    """Requires: the meta service answered."""
    assert seen.meta is not None
    before = one.status.seal
    is_over = before is not None and (before.ignored or before.done_at is not None)
    known = None if before is None else before.requested_at
    request, at = judge(one.spec.seal_requested_at, one.created, seen.now, known=known, is_over=is_over)
    match request:
        case Request.NOTHING:
            return SealPlan(before)
        case Request.TOO_OLD:
            return SealPlan(SealStatus(requested_at=at, ignored=True))
        case Request.NEW | Request.UNDER_WAY:
            pass
        case _:
            assert_never(request)
    asked_ms = time_ms(at)
    if topic.seal_asked_ms < asked_ms:
        return SealPlan(SealStatus(requested_at=at), (AskSeal(one.name, topic.topic_id, asked_ms),))
    pending = seen.meta.asked_rolls.get(topic.name, 0)
    return SealPlan(SealStatus(requested_at=at, pending_shards=pending, done_at=None if pending else seen.now))


# Rebalances -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RebalancePlan:
    status: RebalanceStatus | None = None
    offer: Offer = field(default_factory=Offer)
    is_busy: bool = False


def needs_rebalance_state(seen: Observed) -> bool:
    """Whether a rebalance is to be carried out now: only then all shards are read."""
    may_act = seen.meta is not None and not is_paused(seen) and not why_blind(seen)
    return may_act and _rebalance_request(seen)[0] in (Request.NEW, Request.UNDER_WAY)


def plan_rebalance_request(seen: Observed) -> RebalancePlan:
    before = seen.cluster.status.rebalance
    request, at = _rebalance_request(seen)
    if request is Request.NOTHING or is_paused(seen) or why_blind(seen):
        return RebalancePlan(before)
    if request is Request.TOO_OLD:
        return RebalancePlan(RebalanceStatus(requested_at=at, ignored=True))
    if before is None or request is Request.NEW:
        before = RebalanceStatus(requested_at=at)
    found = seen.rebalance
    if found is None or seen.meta is None:
        return _waits(before, "the meta service does not answer")
    if found.pending_shards:
        return _waits(before, "", found.pending_shards)
    away = [node.node_id for node in seen.meta.nodes if not node.is_alive and not node.is_retired]
    if away:
        return _waits(before, f"node {away[0]} is not alive: shards would have to move again once it is back")
    is_last = found.is_even or not found.segments or before.rounds >= MOST_ROUNDS
    if is_last:
        rest = counted(len(found.segments), "shard")
        why = (
            f"after {before.rounds} rounds {rest} would still have to move: request it again" if found.segments else ""
        )
        done = {"done_at": seen.now, "even": found.is_even, "pending_shards": 0}
        message = "" if found.is_even else why or "no move makes leaders and load more even"
        return RebalancePlan(before.model_copy(update={**done, "message": message}))
    segments = found.segments[:MOST_ROLLS]
    begun = {
        "rounds": before.rounds + 1,
        "moved_shards": before.moved_shards + len(segments),
        "pending_shards": len(segments),
        "message": "",
    }
    return RebalancePlan(before.model_copy(update=begun), Offer([AskRolls(segments)]), is_busy=True)


def _waits(before: RebalanceStatus, why: str, pending: int = 0) -> RebalancePlan:
    status = before.model_copy(update={"message": why, "pending_shards": pending})
    return RebalancePlan(status, is_busy=True)


def _rebalance_request(seen: Observed) -> tuple[Request, str]:
    before, spec = seen.cluster.status.rebalance, seen.cluster.spec.rebalance
    is_over = before is not None and (before.ignored or before.done_at is not None)
    known = None if before is None else before.requested_at
    wanted = None if spec is None else spec.requested_at
    return judge(wanted, seen.cluster.created, seen.now, known=known, is_over=is_over)
