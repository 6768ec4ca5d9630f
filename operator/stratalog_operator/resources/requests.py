"""What a person asks for once, by a time in a spec, and what became of it: seals of topics, rebalances of clusters."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from stratalog_operator.resources.schema import Count, Part, Time, rule, rules

_TIMES: Final = "a request is named by its time: the first one must be later than 1970, as `date -u +%FT%TZ` prints it"


def since_1970(field: str) -> dict[str, Any]:
    """Of the time of a request: a zero time is a mistake, and names no request."""
    return rules(rule("self > timestamp('1970-01-01T00:00:00Z')", f"{field}: {_TIMES}"))


class SealStatus(Part):
    """Of the newest request to seal a topic."""

    requested_at: Time = Field(description="The request: spec.sealRequestedAt as it was then.")
    pending_shards: Count = Field(default=0, description="Shards whose segment was asked to end and has not ended yet.")
    done_at: Time | None = Field(default=None, description="When all these segments had ended.")
    ignored: bool = Field(
        default=False, description="Whether it is older than this object, so that nothing was done about it."
    )


class Rebalance(Part):
    """Moves new writes to other nodes, so that leaders and load are even. Data that is written stays where it is."""

    requested_at: Time | None = Field(
        default=None,
        description="Rebalances once, at this time, if it is newer than the last request and than this object.",
        json_schema_extra=since_1970("rebalance.requestedAt"),
    )


class RebalanceStatus(Part):
    """Of the newest request to rebalance a cluster."""

    requested_at: Time = Field(description="The request: spec.rebalance.requestedAt as it was then.")
    rounds: Count = Field(default=0, description="How often segments were asked to end.")
    moved_shards: Count = Field(default=0, description="Segments that were asked to end, in all rounds.")
    pending_shards: Count = Field(default=0, description="Segments of them that have not ended yet.")
    done_at: Time | None = Field(default=None, description="When it ended.")
    even: bool = Field(default=False, description="Whether new writes were spread evenly over the nodes when it ended.")
    ignored: bool = Field(
        default=False, description="Whether it is older than this object, so that nothing was done about it."
    )
    message: str = Field(default="", max_length=1024, description="What it waits for, or why it ended unevenly.")
