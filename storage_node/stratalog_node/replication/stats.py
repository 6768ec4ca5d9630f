"""Counters of what following other nodes did."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.telemetry.metrics import counter, gauge


@dataclass(slots=True)
class ReplicationStats:
    followed_segments: int = gauge("Segments that this node follows and other nodes lead.")
    copies_due: int = gauge("Sealed segments that this node is to copy and has not proven yet, those in line too.")
    faulty_copies: int = gauge("Followed segments whose contents on this disk are unknown: they are not in any ISR.")
    damaged_copies: int = counter(
        "Copies that a start found damaged behind their last checkpoint: other nodes decide, and they are copied again."
    )
    is_without_room: int = gauge("1 while nothing is taken from other nodes because this disk has no room.")
    stored_bytes: int = counter(
        "Bytes of batches of sealed segments taken from the object store, because no node that has them answers."
    )
    rounds: int = counter("Fetch requests answered by other nodes.")
    fetched_bytes: int = counter("Bytes of batches taken from other nodes.")
    refused_ranges: int = counter("Answers for a segment that were refusals, or that this node did not accept.")
    catch_up_bytes: int = counter(
        "Bytes of batches taken from other nodes for segments in whose ISR this node is not: these are throttled."
    )
    vain_rounds: int = counter("Fetch requests answered at once with nothing of use: the next one waits a little.")
    unreached_peers: int = gauge("Nodes that this node has to fetch from and that do not answer now.")
    connections_lost: int = counter("Connections to other nodes that ended, or could not be made.")
    promised_fences: int = counter("Fences promised, on the disk and to the meta service.")
    refused_appends: int = counter("Ranges that came from other nodes and could not be written.")
    lost_copies: int = counter("Copies that this node reported to the meta service as lost.")
    checkpoints: int = counter("Checkpoints of followed segments written.")
    proven_copies: int = counter(
        "Times that a copy, read back as a whole at its end, was reported to the meta service."
    )
    filled_copies: int = counter("Times that a copy that no node had as a whole was completed: the end of a recovery.")
