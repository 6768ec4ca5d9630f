"""Whether the object store counts as a readable copy of a topic's data: the one predicate for all that ask.

With `remote.read.policy=Disable` no consumer is served from the object store, so a copy there keeps data safe but not
readable. Whoever frees a local copy, releases a node, ends a mount or plans copies asks here.

Pure. Cost: one dictionary look-up per topic; `BucketReads` is built once per look, with a pass over the nodes.
Source: docs/design.md section 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from stratalog.machines.reading.read_policy import ReadPolicy
from stratalog.model.metadata import Node
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic

READ_POLICY: Final = "remote.read.policy"


def reads_bucket(settings: Mapping[str, str], *, by_default: bool) -> bool:
    """Whether consumers of a topic with these settings are served from the object store."""
    own = settings.get(READ_POLICY)
    return by_default if own is None else own != ReadPolicy.DISABLE


def reads_by_default(nodes: Iterable[Node]) -> bool:
    """Whether topics without a policy of their own are read there by every node that may serve them."""
    return all(node.reads_bucket_by_default for node in nodes if not node.is_retired)


class BucketReads:
    """The predicate over one snapshot's nodes."""

    __slots__ = ("_by_default",)

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._by_default = reads_by_default(nodes)

    def of(self, topic: Topic) -> bool:
        return reads_bucket(topic.settings, by_default=self._by_default)


def is_served_from_bucket(segment: Segment, *, may_read_bucket: bool) -> bool:
    """Whether readers of all of a segment can be served from the object store."""
    return may_read_bucket and segment.remote.state is RemoteState.COMPLETE


def is_readable_without_nodes(segment: Segment, *, may_read_bucket: bool) -> bool:
    """Whether every record of a segment can be read with no node's copy: it is empty, or COMPLETE in an object store
    that its topic's readers may use."""
    return segment.end_offset == segment.base_offset or is_served_from_bucket(segment, may_read_bucket=may_read_bucket)


def is_copied_from_bucket(segment: Segment) -> bool:
    """Whether nodes can make a copy of a sealed segment without any other node: the object store has all of it."""
    return segment.state is SegmentState.SEALED and segment.is_wholly_committed


def is_only_in_bucket(segment: Segment) -> bool:
    """Whether no node is listed with a copy of a segment that the object store has: its data is safe, and readable
    only where the policy allows."""
    is_stored = segment.remote.state is RemoteState.COMPLETE and segment.end_offset != segment.base_offset
    return is_stored and not segment.local_nodes
