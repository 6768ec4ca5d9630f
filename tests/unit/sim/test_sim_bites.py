"""The simulator bites: deliberate bugs, planted into the real machines, are found. `make sim-bugs` looks for all."""

from __future__ import annotations

import pytest

from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog_sim.bugs import BUGS, find, planted

SEEDS = 500
"""At most: the first that finds it ends the search, and which one it is moves with every change of a machine."""

# Those that few seeds find; the others take longer than a test should.
QUICK = {
    "seal without digest": "seal records are true",
    "upload above HW": "decided",
    "delete before commit": "the last copy is never deleted",
    "unknown taken as refused": "had been refused",
    "acknowledged before the roll": "nothing counts before its roll is confirmed",
    "tail not doubted": "an offset is given once",
    "HW past a member": "HW is within the committed ISR",
    "quorum of one": "HW is within what most replicas hold",
    "quorum recovered from one": "no decided record is lost",
    "commit told before durable": "a commit is told once it is durable",
    "coordinates before it has read": "no committed offset is lost",
    "producers forgotten at the successor": "the log is what clients were told",
    "anybody uploads": "one uploader per commit",
    "what is on its way is swept": "nothing referenced is missing",
    "commit of what was not put": "nothing referenced is missing",
    "copy proven from memory": "who is listed has it on its disk",
    "metadata not kept": "metadata survive a restart",
    "who follows tells the end": "a consumer never goes back",
    "trimmed before the snapshot is whole": "a group log begins with all that is alive",
    "copy let go of unasked": "the last copy is never deleted",
    "seal taken for a fence": "",  # a machine's own invariant, or one of several promises
    "fence not persisted": "a promise is on the disk before it is told",
    "damage taken for a torn tail": "",  # what is lost or given twice shows in one of several promises
    "older state passes": "",
    "copy drives out the living": "a copy of a living node's directory is refused",
    "released on one look": "who is released was seen twice, apart in time",
    "one look counts twice": "who is released was seen twice, apart in time",
    "unknown counts as gone": "",  # the last readable copy may go first
    "freed before it is stored": "the last copy is never deleted",
    "taken back after the release": "who was released comes back no more",
    "mount beyond the seal": "a mount serves what is sealed",
    "mount read as its topic": "a mount serves what is sealed",
    "given up in silence": "no decided record is lost",
    "rolled and given up by nobody": "a retirement ends, or says why it waits",
    "every member is waited for": "a shard has a leader that can work",
    "heartbeats taken for health": "a shard has a leader that can work",
    "cordon is not heeded": "a retirement ends, or says why it waits",
}


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    found = find(BUGS[name], range(SEEDS))
    assert found is not None, f"{SEEDS} seeds do not see: {BUGS[name].what}"
    assert QUICK[name] in found.promise
    assert found.history


def test_a_bug_is_gone_once_it_was_looked_for() -> None:
    before = SegmentLeader._advance
    with planted(BUGS["acknowledged before the roll"]):
        assert SegmentLeader._advance is not before
    assert SegmentLeader._advance is before
