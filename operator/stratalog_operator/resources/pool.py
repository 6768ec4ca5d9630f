"""StorageNodePool: a group of identical storage nodes. It has the scale subresource."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import (
    AS_SET,
    Count,
    Part,
    Quantity,
    Resources,
    ShortName,
    Toleration,
    checked,
    immutable,
    not_empty,
    rule,
    rules,
)


class Storage(Part):
    """The volume of each node."""

    model_config = checked(
        rule(
            "has(self.className) == has(oldSelf.className) && "
            "(!has(self.className) || self.className == oldSelf.className)",
            "storage.className cannot be changed: create another pool, and scale this one to 0",
        )
    )
    size: Quantity = Field(
        description="Size of each volume; it may grow.",
        json_schema_extra=rules(
            not_empty("storage.size"),
            rule(
                "quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",
                "storage.size cannot shrink: create another pool, and scale this one to 0",
            ),
        ),
    )
    class_name: str | None = Field(
        default=None, min_length=1, max_length=253, description="Storage class. Default: the default class. Fixed."
    )


class StorageNodePoolSpec(Part):
    """What is asked for."""

    cluster_ref: ShortName = Field(
        description="StorageCluster that the nodes belong to; fixed.",
        json_schema_extra=immutable("clusterRef", "nodes belong to one cluster; create another pool"),
    )
    replicas: int = Field(default=3, ge=0, le=500, description="Desired number of nodes.")
    zones: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63)], ...], Field(max_length=16, json_schema_extra=AS_SET)
    ] = Field(
        default=(), description="Zones over which the nodes are spread. Default: nodes run wherever there is room."
    )
    storage: Storage = Field(description="Volume of each node.")
    resources: Resources = Field(default=Resources(), description="Resources of each node.")
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = Field(
        default={}, description="Labels of the machines on which storage nodes may run."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = Field(
        default=(), description="Taints that storage nodes tolerate."
    )
    remove_node_ids: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=64, json_schema_extra=AS_SET)
    ] = Field(default=(), description="Ids of the nodes that leave first when replicas is reduced.")


class StorageNodePoolStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    replicas: Count = Field(default=0, description="Number of nodes, including those that are leaving.")
    ready_replicas: Count = Field(default=0, description="Number of nodes that serve and are not leaving.")
    selector: str = Field(
        default="", max_length=512, description="Label selector of the pods, for the scale subresource."
    )
    node_ids: Annotated[tuple[int, ...], Field(max_length=1024, json_schema_extra=AS_SET)] = Field(
        default=(), description="Ids of the nodes."
    )
