"""What becomes of a batch that was offered to a shard's log: appended, or not, and why not.

What is wrong with the batch itself is said by `formats.batches.offered_batch.BatchFault`, with its sequence by
`machines.leading.producer_table.SequenceFault`.
"""

from __future__ import annotations

from enum import Enum


class AppendFailure(Enum):
    """Why a log does not take a batch. Closed: the answer to clients has a code for each. Nothing was appended, except
    with NOT_ENOUGH_REPLICAS_LEFT and OUTCOME_UNKNOWN."""

    NO_ROOM = "there is no room for new data; writes continue by themselves once there is"
    WRITE_FAILED = "the disk did not take it"
    NOT_OPEN = "this node leads no active segment of the shard yet"
    HEALING = "what the disk lost of the log is being brought back"
    STOPPED = "the shard takes no writes until the node is started again"
    NOT_LEADER = "another node leads the shard"
    LEAD_UNKNOWN = "whether this node still leads the shard cannot be said now"
    BEHIND_REFUSED = "a batch that its producer sent before it was refused, and has to come again first"
    TOPIC_DELETED = "the topic was deleted"
    NO_SUCCESSOR = "the segment is full, and the meta service has not prepared the next one"
    MOVING = "another node takes the shard over in a moment"
    NOT_ENOUGH_REPLICAS = "fewer replicas are in sync than acks=all asks for"
    NOT_ENOUGH_REPLICAS_LEFT = "it is in the log, but since then fewer replicas are in sync than acks=all asks for"
    OUTCOME_UNKNOWN = "it may be in the log, now or after the next start"
