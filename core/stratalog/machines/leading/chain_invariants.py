"""What always holds of a shard's chain of segments, whatever befell it. For tests and the simulator."""

from __future__ import annotations

from itertools import pairwise

from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Life


def check_chain(chain: ShardChain) -> None:
    """Raises AssertionError: the chain was brought to where it must not be."""
    leaders = [*chain.ended, *([chain.active] if chain.active is not None else [])]
    for leader in leaders:
        leader.check_invariants()
    for old, new in pairwise(leaders):
        # Those between two that could not be sealed may be gone.
        assert new.key.epoch > old.key.epoch and new.key.base_offset >= old.end_offset
        assert new.key.epoch > old.key.epoch + 1 or new.key.base_offset == old.end_offset
        assert old.producers_at_end is not None, "a segment continues behind one that has not ended"
        assert old.is_wholly_committed or new.high_watermark == new.key.base_offset
    assert chain.life is not Life.SERVING or chain.active is not None
    assert (chain.stop is not None) == (chain.life in (Life.HEALING, Life.STOPPED))
    if chain.active is not None:
        assert chain.high_watermark <= chain.active.end_offset
    if chain.stop is not None:
        assert chain.waiting_count == 0, "waiting requests learn that the shard stopped"
