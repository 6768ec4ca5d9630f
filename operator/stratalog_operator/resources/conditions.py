"""The one vocabulary of conditions, and which kind has which.

A condition is an observation, never the state of a machine. All of a kind's are there from the first pass on, Unknown
if need be; `lastTransitionTime` moves only with `status`. The table of docs/operator.md section 3 is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from stratalog_operator.resources.schema import Part, Time, keyed_by
from stratalog_operator.resources.steady import steady


class ConditionType(StrEnum):
    READY = "Ready"
    RECONCILED = "Reconciled"
    PROGRESSING = "Progressing"
    STALLED = "Stalled"
    HEALTHY = "Healthy"
    SCALING_IN = "ScalingIn"
    ROLLING = "Rolling"
    COLD_TIER_AVAILABLE = "ColdTierAvailable"
    POD_SCHEDULED = "PodScheduled"
    STORAGE_BOUND = "StorageBound"
    REGISTERED = "Registered"
    IN_SYNC = "InSync"
    RETIRE_BLOCKED = "RetireBlocked"
    RETIRED = "Retired"
    CONFLICT = "Conflict"
    SOURCE_EXPIRED = "SourceExpired"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


_ALL: Final = (ConditionType.READY, ConditionType.RECONCILED)
OF_KIND: Final[Mapping[str, tuple[ConditionType, ...]]] = {
    "StorageCluster": (
        *_ALL,
        ConditionType.PROGRESSING,
        ConditionType.STALLED,
        ConditionType.HEALTHY,
        ConditionType.SCALING_IN,
        ConditionType.ROLLING,
        ConditionType.COLD_TIER_AVAILABLE,
    ),
    "StorageNodePool": (*_ALL, ConditionType.PROGRESSING, ConditionType.STALLED, ConditionType.SCALING_IN),
    "StorageNode": (
        *_ALL,
        ConditionType.PROGRESSING,
        ConditionType.STALLED,
        ConditionType.POD_SCHEDULED,
        ConditionType.STORAGE_BOUND,
        ConditionType.REGISTERED,
        ConditionType.IN_SYNC,
        ConditionType.RETIRE_BLOCKED,
        ConditionType.RETIRED,
    ),
    "TopicStorage": (*_ALL, ConditionType.PROGRESSING, ConditionType.CONFLICT),
    "StorageUser": (*_ALL, ConditionType.PROGRESSING, ConditionType.CONFLICT),
    "ArchiveJob": (*_ALL, ConditionType.PROGRESSING, ConditionType.STALLED),
    "ReadOnlyMount": (*_ALL, ConditionType.PROGRESSING, ConditionType.STALLED, ConditionType.SOURCE_EXPIRED),
}


MAX_MESSAGE: Final = 4096
"""Characters of a message. The API server refuses a status with a longer one, and with it all that it says."""


def shortened(message: str) -> str:
    """So that it fits, however many objects it is about."""
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 2]} …"


class Condition(Part):
    """One observation."""

    type: Annotated[str, Field(max_length=64)] = Field(description="Name of the condition; each appears once.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Z][A-Za-z0-9]*$")] = Field(
        description="Reason, as one word for programs."
    )
    message: Annotated[str, Field(max_length=MAX_MESSAGE)] = Field(
        default="", description="Reason in words, with numbers and what to do next."
    )
    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec for which this was observed.")
    last_transition_time: Time = Field(description="When the status last changed.")


Conditions: TypeAlias = Annotated[tuple[Condition, ...], Field(max_length=24, json_schema_extra=keyed_by("type"))]

CONDITIONS_TEXT: Final = "Observed conditions; docs/operator.md, section 3, explains them."
GENERATION_TEXT: Final = "Generation of the spec that this status describes."


def merge(
    old: Iterable[Condition], new: Mapping[ConditionType, tuple[ConditionStatus, str, str]], generation: int, now: str
) -> tuple[Condition, ...]:
    """The conditions of a status after a pass, in the order of `new`: a status that stays keeps its time, and a message
    in which only time has passed stays (`steady`).

    Each of `new` is a status, a reason and a message.
    """
    before = {condition.type: condition for condition in old}
    merged = []
    for kind, (status, reason, message) in new.items():
        last = before.get(kind.value)
        since = last.last_transition_time if last is not None and last.status == status.value else now
        if last is not None and (last.status, last.reason) == (status.value, reason):
            message = steady(last.message, message)
        message = shortened(message)
        merged.append(
            Condition(
                type=kind.value,
                status=status.value,
                reason=reason,
                message=message,
                observed_generation=generation,
                last_transition_time=since,
            )
        )
    return tuple(merged)
