"""StorageNode: one storage node, made by the operator; the record of its retirement."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, MAX_MESSAGE, Conditions
from stratalog_operator.resources.schema import Count, Part, ShortName, Time, checked, immutable, rule

MAX_NODE_ID: Final = 99_999
"""A label with a greater id does not name a node: the API server would not accept the next id."""


class StorageNodeSpec(Part):
    """What is asked for. Users write `retire` and `restartRequestedAt` alone."""

    model_config = checked(
        rule(
            "has(self.zone) == has(oldSelf.zone) && (!has(self.zone) || self.zone == oldSelf.zone)",
            "zone cannot be changed: the volume is there; retire the node instead",
        )
    )
    cluster_ref: ShortName = Field(
        description="StorageCluster that the node belongs to; fixed.",
        json_schema_extra=immutable("clusterRef", "retire the node instead"),
    )
    pool_ref: ShortName = Field(
        description="StorageNodePool that the node belongs to; fixed.",
        json_schema_extra=immutable("poolRef", "retire the node instead"),
    )
    node_id: int = Field(
        ge=0,
        le=MAX_NODE_ID,
        description="Id of the node in the cluster; fixed, and never used again.",
        json_schema_extra=immutable("nodeId", "retire the node instead"),
    )
    zone: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Zone that the node is bound to. Default: any zone. Fixed.",
    )
    retire: bool = Field(
        default=False,
        description="Whether the node is to leave. If you set it yourself, a new node joins in its place first.",
    )
    restart_requested_at: str | None = Field(
        default=None, max_length=64, description="Any text: when it changes, the pod restarts as soon as that is safe."
    )


class Identity(Part):
    """Who it is."""

    storage_id: str = Field(
        default="", max_length=128, description="Id of its disk; a node with another disk is another node."
    )
    pod_name: str = Field(default="", max_length=253, description="Name of its pod.")
    pod_uid: str = Field(default="", max_length=64, description="UID of its pod.")
    machine: str = Field(default="", max_length=253, description="Kubernetes node that the pod runs on.")
    claim_uid: str = Field(default="", max_length=64, description="UID of its volume claim.")


class Data(Part):
    """What it holds, as the meta service says."""

    segments: Count = Field(default=0, description="Segments of which the node is listed as a holder.")
    leaders: Count = Field(default=0, description="Shards that the node leads.")
    disk_used_percent: int = Field(default=0, ge=0, le=100, description="Used part of its volume.")


class RetirementStatus(Part):
    """How far its retirement is."""

    step: Literal[
        "Wished", "Preflight", "Cordon", "Seal", "Offload", "Verify", "Snapshot", "Release",
        "PodStop", "Remount", "Mount", "Volume", "Done",
    ] = Field(description="Current step (docs/operator.md, section 6).")  # fmt: skip
    requested: bool = Field(
        default=True,
        description="Whether spec.retire asks for it. A retirement that was begun otherwise, such as by `stratalog "
        "nodes retire`, is followed, and not cancelled.",
    )
    mode: Literal["Offload", "RemountVolume"] = Field(
        description="Mode in which the retirement was started; fixed from then on."
    )
    storage_id: str = Field(max_length=128, description="Id of the disk that is being retired.")
    started_at: Time = Field(description="When the retirement was requested.")
    step_entered_at: Time = Field(description="When the current step began.")
    remaining_segments: Count = Field(default=0, description="Segments that still need the node.")
    remaining_bytes: Count = Field(default=0, description="Bytes of the sealed ones among these segments.")
    bytes_per_second: Count = Field(default=0, description="Rate at which the remaining bytes decrease.")
    last_progress_time: Time | None = Field(
        default=None, description="When the remaining bytes or segments last decreased."
    )
    blocked_reason: str = Field(
        default="", max_length=64, description="Why the retirement is waiting; empty while it progresses."
    )
    message: str = Field(default="", max_length=MAX_MESSAGE, description="What the retirement is doing now, in words.")


class StorageNodeStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    identity: Identity = Field(default=Identity(), description="Identity of the node.")
    data: Data = Field(default=Data(), description="What the node holds.")
    retirement: RetirementStatus | None = Field(
        default=None, description="Progress of the retirement; absent while the node stays."
    )
