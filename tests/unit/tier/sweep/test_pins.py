"""What snapshots need is taken for free only where the store proves that a snapshot is gone."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.formats.bucket.cut import encode_cut
from stratalog.formats.bucket.object_names import CutName, ObjectNames
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Topic
from stratalog.model.segment import Segment, SegmentState
from stratalog.objects.opening import open_store
from stratalog.objects.store import ObjectStore
from stratalog_node.tier.sweep.pins import Pins
from support.empty_listings import EmptyListings

CLUSTER = "11111111-2222-4333-8444-555555555555"
TOPIC_ID = UUID(int=7)
NAMES = ObjectNames("", CLUSTER)
CUT_KEY = NAMES.build(CutName("month-end"))
SEGMENT = Segment(SegmentKey(TOPIC_ID, 0, 1, 0), SegmentState.DELETED, None, (), (), 0, 0, end_offset=10)


@pytest.fixture
async def store() -> ObjectStore:
    found = open_store("memory:")
    topic = Topic("orders", TOPIC_ID, 1, 1, {}, 1)
    cut = Cut(CLUSTER, "month-end", 0, (topic,), (CutShard(ShardKey(TOPIC_ID, 0), 0, 10, 1),))
    await found.put(CUT_KEY, [encode_cut(cut)])
    return found


@pytest.mark.fault("listing-empty-snapshot-there")
async def test_a_snapshot_that_a_listing_lacks_is_gone_only_where_the_store_says_so(store: ObjectStore) -> None:
    answers = EmptyListings(store)
    pins = Pins(answers, NAMES)  # type: ignore[arg-type]
    answers.is_empty = lambda prefix: False
    await pins.refresh()
    assert pins.has(SEGMENT)
    answers.is_empty = lambda prefix: True
    with pytest.raises(Unavailable, match=r"month-end.* is there"):
        await pins.refresh()
    assert pins.has(SEGMENT)
    await store.delete([CUT_KEY])
    await store.put(f"{NAMES.data_prefix}any", [b"x"])
    answers.is_empty = lambda prefix: False
    await pins.refresh()
    assert not pins.has(SEGMENT)


@pytest.mark.fault("listing-empty-snapshot-there")
async def test_a_first_listing_of_nothing_is_believed_only_beside_objects_of_the_cluster(store: ObjectStore) -> None:
    answers = EmptyListings(store)
    pins = Pins(answers, NAMES)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="holds nothing of cluster"):
        await pins.refresh()
    answers.is_empty = lambda prefix: False
    await pins.refresh()
    assert pins.has(SEGMENT)
