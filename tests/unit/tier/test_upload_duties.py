"""A sealed segment is uploaded by a living holder: the duty goes with the lease, and comes back with it."""

from __future__ import annotations

from stratalog.model.commands import NoteLives
from stratalog.model.metadata import Life
from support.tier_rig import NODE_ID, TierRig

LIFE = Life(NODE_ID, 1)


async def test_a_node_whose_lease_is_over_uploads_no_sealed_segment_until_it_is_heard_again() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard, 1_000)
        ended = await rig.roll(shard)
        await rig.meta.perform(NoteLives(lost=(LIFE,)))
        sealed = await rig.seal(shard, ended)
        await rig.until(lambda: not rig.catalog.is_alive(NODE_ID))
        await rig.until(lambda: rig.uploader.status().uploader.segments == 1, "the active one alone is its own")
        assert not rig.is_complete(sealed)
        await rig.meta.perform(NoteLives(heard=(LIFE,)))
        await rig.until(lambda: rig.is_complete(ended))
        await rig.check()
