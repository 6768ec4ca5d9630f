"""What classic consumers say of themselves: read as a real client writes it, and other bytes are refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from stratalog.kafka.subscription import read_assignment, read_subscription, subscribed_topics, write_assignment
from stratalog.model.groups.consumer_group import PlacesByName, Subscription

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)
places = st.lists(
    st.builds(PlacesByName, names, st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)), max_size=4
).map(tuple)


def told(subscription: Subscription, version: int) -> bytes:
    kind = ConsumerProtocolSubscription
    owned = [kind.TopicPartition(topic=topic, partitions=list(shards)) for topic, shards in subscription.owned]
    said = {"topics": list(subscription.topics), "user_data": b"of an assignor", "version": version}
    if version >= 1:
        said["owned_partitions"] = owned
    if version >= 3:
        said["rack_id"] = subscription.rack_id
    return bytes(kind(**said).encode())  # type: ignore[arg-type]  # its fields are of many types


@given(st.builds(Subscription, st.lists(names, max_size=4).map(tuple), places, st.none() | names), st.integers(0, 3))
def test_what_a_client_says_is_read(subscription: Subscription, version: int) -> None:
    read = read_subscription(told(subscription, version))
    owned = subscription.owned if version >= 1 else ()
    assert read == Subscription(subscription.topics, owned, subscription.rack_id if version >= 3 else None)
    assert subscribed_topics(told(subscription, version)) == set(subscription.topics)


@given(places)
def test_a_client_reads_what_is_assigned(assigned: tuple[PlacesByName, ...]) -> None:
    raw = write_assignment(assigned)
    assert read_assignment(raw) == assigned
    read = ConsumerProtocolAssignment.decode(raw)
    assert [(one.topic, tuple(one.partitions)) for one in read.assigned_partitions] == list(assigned)


@given(places, st.data())
def test_what_is_cut_short_is_refused(owned: tuple[PlacesByName, ...], data: st.DataObject) -> None:
    raw = told(Subscription(("a",), owned, "r"), 3)
    assert read_subscription(raw[: data.draw(st.integers(0, len(raw) - 1))]) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    read_subscription(raw)
    read_assignment(raw)
    subscribed_topics(raw)
