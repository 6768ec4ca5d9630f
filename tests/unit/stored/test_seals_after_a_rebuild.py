"""A rebuild keeps the times of the snapshot's seal records; the copies in the bucket stay whole to their readers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.rebuild.shard import FoundManifest, PlannedSegment, ShardPlan
from stratalog.machines.rebuild.table import RebuildPlan, records_of
from stratalog.machines.table.records import TableHeader
from stratalog.model.segment import Segment, TimesKnown
from stratalog.model.topic import Topic
from stratalog.objects import open_store
from stratalog_node.check.remote_segment import check_remote_segment
from stratalog_node.tier.store.remote_copy import check_remote_copy
from support.wrong_objects import TOPIC_ID, Bucket, fill


def rebuilt(bucket: Bucket, known: Segment, manifest: FoundManifest) -> Segment:
    shards = [ShardPlan(known.key.shard_key, 0, [PlannedSegment(known.key, manifest.end_offset, known, manifest)])]
    topic = Topic("cold", TOPIC_ID, known.key.shard + 1, 1, {}, 0)
    plan = RebuildPlan(TableHeader(bucket.names.cluster_id, 1, 1), [topic], shards, [], [], [], (1,))
    records = list(records_of(plan, {}, 1_800_000_000_000))
    (segment,) = [one for one in records if isinstance(one, Segment) and one.key == known.key]
    return segment


@pytest.mark.parametrize("is_named", [True, False], ids=["the snapshot's manifest", "a later manifest"])
async def test_a_copy_whose_seal_has_other_times_than_the_metadata_is_whole(is_named: bool) -> None:
    store = open_store("memory:")
    bucket = await fill(store)
    whole = bucket.complete
    assert whole.seal is not None and whole.remote.manifest_key is not None and whole.remote.manifest_digest is not None
    claimed = replace(
        whole.seal, first_timestamp_ms=1, max_timestamp_ms=2, times_known=TimesKnown.CLAIMED, sealed_ms=3, replicas=(7,)
    )
    known = replace(whole, seal=claimed)
    if not is_named:
        known = replace(known, remote=replace(known.remote, manifest_key="merged since", manifest_digest=b"m" * 16))
    digest, size_bytes = whole.remote.manifest_digest, whole.remote.size_bytes
    found = FoundManifest(whole.remote.manifest_key, whole.seal.end_offset, 1, 53, whole.seal, digest, size_bytes)

    segment = rebuilt(bucket, known, found)

    assert segment.seal is not None and segment.seal.max_timestamp_ms == 2, "the snapshot's times are kept"
    await check_remote_copy(store, bucket.names, segment)
    assert (await check_remote_segment(store, bucket.names.cluster_id, segment)).findings == []
    await store.close()
