"""StorageNode: one storage node, made by the operator; the record of its retirement."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import Count, Part, ShortName, Time, checked, immutable, rule


class StorageNodeSpec(Part):
    """What is asked for. Users write `retire` and `restartRequestedAt` alone."""

    model_config = checked(
        rule(
            "has(self.zone) == has(oldSelf.zone) && (!has(self.zone) || self.zone == oldSelf.zone)",
            "zone cannot be changed: the volume is there; retire the node instead",
        )
    )
    cluster_ref: ShortName = Field(
        description="The StorageCluster that it belongs to; fixed.",
        json_schema_extra=immutable("clusterRef", "retire the node instead"),
    )
    pool_ref: ShortName = Field(
        description="The StorageNodePool that it belongs to; fixed.",
        json_schema_extra=immutable("poolRef", "retire the node instead"),
    )
    node_id: int = Field(
        ge=0,
        le=99999,
        description="Its identity in the cluster; fixed, and never given twice.",
        json_schema_extra=immutable("nodeId", "retire the node instead"),
    )
    zone: str | None = Field(
        default=None, min_length=1, max_length=63, description="Where it is bound to; none: anywhere. Fixed."
    )
    retire: bool = Field(
        default=False, description="It is to leave. Set by hand: another one joins in its place first."
    )
    restart_requested_at: str | None = Field(
        default=None, max_length=64, description="Any word: when it changes, the pod restarts as soon as that is safe."
    )


class Identity(Part):
    """Who it is."""

    storage_id: str = Field(default="", max_length=128, description="Of its disk; another one is another node.")
    pod_name: str = Field(default="", max_length=253, description="Of its pod.")
    pod_uid: str = Field(default="", max_length=64, description="Of its pod.")
    machine: str = Field(default="", max_length=253, description="The Kubernetes node that the pod runs on.")
    claim_uid: str = Field(default="", max_length=64, description="Of its volume claim.")


class Data(Part):
    """What it holds, as the meta service says."""

    segments: Count = Field(default=0, description="That list it as a holder.")
    leaders: Count = Field(default=0, description="Shards that it leads.")
    disk_used_percent: int = Field(default=0, ge=0, le=100, description="Of its volume.")


class RetirementStatus(Part):
    """How far its retirement is."""

    step: Literal[
        "Wished", "Preflight", "Cordon", "Seal", "Offload", "Verify", "Snapshot", "Release",
        "PodStop", "Remount", "Mount", "Volume", "Done",
    ] = Field(description="The step of docs/operator.md section 6.")  # fmt: skip
    mode: Literal["Offload", "RemountVolume"] = Field(description="Under which it was begun; fixed from then on.")
    storage_id: str = Field(max_length=128, description="Of the disk that it is about.")
    started_at: Time = Field(description="When it was wished.")
    step_entered_at: Time = Field(description="When this step began.")
    remaining_segments: Count = Field(default=0, description="That still need it.")
    remaining_bytes: Count = Field(default=0, description="Of the sealed ones among them.")
    bytes_per_second: Count = Field(default=0, description="By which that gets less.")
    last_progress_time: Time | None = Field(default=None, description="When what remains last got less.")
    blocked_reason: str = Field(default="", max_length=64, description="Why it waits; empty while it goes on.")
    message: str = Field(default="", max_length=4096, description="What it does now, in words.")


class StorageNodeStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    identity: Identity = Field(default=Identity(), description="Who it is.")
    data: Data = Field(default=Data(), description="What it holds.")
    retirement: RetirementStatus | None = Field(default=None, description="How far its retirement is; none: it stays.")
