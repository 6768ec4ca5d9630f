"""Clients that use more than their quotas allow: what their answers say, and that they are not read meanwhile."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.listeners import INTERNAL, Listener
from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaEntity, QuotaLimits
from stratalog.model.rights import NODE, USER, Principal
from stratalog_node.serve.connections import client_quotas
from stratalog_node.serve.connections.connection_places import MOST_HELD
from stratalog_node.serve.connections.context import ConnectionInfo
from stratalog_node.serve.connections.listeners import bind
from support import kafka_oracle
from support.raw_client import FETCH_VERSION, PRODUCE_VERSION, batch_of
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually

ANONYMOUS = QuotaEntity("ANONYMOUS")
THROTTLED, DENIED = 89, 31


def limit(rig: ServeRig, entity: QuotaEntity = ANONYMOUS, **limits: float) -> None:
    rig.catalog.quotas.put(EntityQuotas(entity, QuotaLimits(**limits)))


def pass_time(rig: ServeRig, later_ms: int) -> None:
    """The clock moves, and the timer is due."""
    rig.steady.now_ms += later_ms
    rig.server.quotas._muted._let_go()


async def some_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def produced(client: WireClient, frame: bytes) -> Any:
    await client.write(frame)
    return kafka_oracle.decode_response(0, PRODUCE_VERSION, await client.read_frame())


async def fetched(client: WireClient, frame: bytes) -> Any:
    await client.write(frame)
    return kafka_oracle.decode_response(1, FETCH_VERSION, await client.read_frame())


async def asked(client: WireClient, key: int, version: int, **fields: Any) -> Any:
    await client.write(client.frame(key, version, **fields))
    return kafka_oracle.decode_response(key, version, await client.read_frame())


def stats(rig: ServeRig) -> client_quotas.QuotaStats:
    return rig.server.quotas.stats


# The waits that these tests expect are those that Kafka 4 answered to the same requests.
# Produce ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("client-sends-more-than-quota")
async def test_a_producer_that_sends_too_much_is_told_to_wait_and_is_not_read_until_then(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        limit(rig, producer_byte_rate=100.0)
        client = rig.connect()
        frame = client.produce_frame("flights", batch_of(b"x" * 3_000))
        answer = await produced(client, frame)
        wait_ms = round(((len(frame) - 4) / 10 - 100) / 100 * 10_000)
        assert answer.throttle_time_ms == wait_ms > 20_000
        assert answer.responses[0].partition_responses[0].error_code == 0, "it is appended"
        assert (stats(rig).muted, stats(rig).late_produce, stats(rig).wait_ms) == (1, 1, wait_ms)
        await client.write(client.produce_frame("flights", batch_of(b"second")))
        await some_turns()
        pass_time(rig, wait_ms - 1)
        await some_turns()
        assert rig.server.stats.produce_requests == 1, "not read"
        pass_time(rig, 1)
        assert (await client.produced()).error_code == 0
        assert await rig.read_values(shard) == [b"x" * 3_000, b"second"]


async def test_frames_that_came_with_the_one_that_was_too_much_wait_unread_in_their_order(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        limit(rig, producer_byte_rate=100.0)
        client = rig.connect()
        values = [b"a" * 2_000, b"b", b"c"]
        await client.write(b"".join(client.produce_frame("flights", batch_of(value)) for value in values))
        assert (await client.produced()).error_code == 0
        await some_turns()
        assert rig.server.stats.produce_requests == 1
        while rig.server.stats.produce_requests < 3:
            pass_time(rig, 60_000)
            await some_turns()
        assert [(await client.produced()).error_code for _ in range(2)] == [0, 0]
        assert await rig.read_values(shard) == values


async def test_connections_of_a_client_pay_together_and_others_are_not_concerned(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, QuotaEntity(None, "raw"), producer_byte_rate=100.0)
        first, second = rig.connect(), rig.connect()
        big, small = batch_of(b"x" * 1_900), batch_of(b"x")
        assert (await produced(first, first.produce_frame("flights", big))).throttle_time_ms > 0
        assert (await produced(second, second.produce_frame("flights", small))).throttle_time_ms > 0
        other = rig.connect()
        frame = other.produce_frame("flights", big).replace(b"raw", b"odd", 1)
        assert (await produced(other, frame)).throttle_time_ms == 0


async def test_a_user_who_proved_itself_has_its_own_quota(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, QuotaEntity("alice"), producer_byte_rate=100.0)
        client = rig.connect()
        frame = client.produce_frame("flights", batch_of(b"x" * 2_000))
        assert (await produced(client, frame)).throttle_time_ms == 0
        client.connection.identify(Principal(USER, "alice"))
        assert (await produced(client, frame)).throttle_time_ms > 0


async def test_a_producer_without_answers_is_muted_as_well(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, producer_byte_rate=100.0)
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(b"x" * 3_000), acks=0))
        await eventually(lambda: stats(rig).muted == 1)
        await client.write(client.produce_frame("flights", batch_of(b"x"), acks=0))
        await some_turns()
        assert rig.server.stats.produce_requests == 1


# Fetch --------------------------------------------------------------------------------------------------------------
async def test_a_consumer_that_reads_too_much_gets_nothing_and_a_time_and_then_the_same_data(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        producer = rig.connect()
        for value in (b"a" * 600, b"b" * 600):
            await produced(producer, producer.produce_frame("flights", batch_of(value)))
        limit(rig, consumer_byte_rate=100.0)
        client = rig.connect()
        first = await fetched(client, client.fetch_frame("flights", 0))
        assert first.throttle_time_ms == 0
        (records,) = (one.records for topic in first.responses for one in topic.partitions)
        assert 600 < len(records) < 1_000, "no more than ten windows allow"
        work = shard.work.fetched_bytes
        late = await fetched(client, client.fetch_frame("flights", 1))
        assert (late.error_code, late.responses) == (0, [])
        assert late.throttle_time_ms > 0
        assert (stats(rig).late_fetches, stats(rig).muted) == (1, 1)
        assert shard.work.fetched_bytes == work, "what was not sent does not count"
        assert rig.reader.outstanding_bytes == 0
        await client.write(client.fetch_frame("flights", 1))
        await some_turns()
        assert rig.server.stats.fetch_requests == 2
        pass_time(rig, late.throttle_time_ms)
        pass_time(rig, 12_000)
        again = kafka_oracle.decode_response(1, FETCH_VERSION, await client.read_frame())
        assert again.throttle_time_ms == 0
        (records,) = (one.records for topic in again.responses for one in topic.partitions)
        assert len(records) > 600
        client.close()
        await rig.nothing_is_held()


async def test_a_batch_larger_than_a_quota_allows_at_once_is_sent_alone_and_paid_for_by_waiting(tmp_path: Path) -> None:
    """Kafka never sends it: each answer is too much, so its consumer stops there for good."""
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        producer = rig.connect()
        await produced(producer, producer.produce_frame("flights", batch_of(b"a" * 5_000)))
        limit(rig, consumer_byte_rate=100.0)
        client = rig.connect()
        answer = await fetched(client, client.fetch_frame("flights", 0))
        (records,) = (one.records for topic in answer.responses for one in topic.partitions)
        assert len(records) > 5_000 and answer.throttle_time_ms > 40_000
        await client.write(client.fetch_frame("flights", 0))
        pass_time(rig, 5_000)
        await some_turns()
        assert rig.server.stats.fetch_requests == 1
        second = rig.connect()
        late = await fetched(second, second.fetch_frame("flights", 0))
        assert late.responses == [] and late.throttle_time_ms > 0, "not by another connection either"
        pass_time(rig, 60_000)
        again = kafka_oracle.decode_response(1, FETCH_VERSION, await client.read_frame())
        assert len(again.responses) == 1


# Other requests -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (3, 9, {"topics": None, "allow_auto_topic_creation": False}),
        (3, 3, {"topics": None}),
        (18, 3, {"client_software_name": "test", "client_software_version": "1"}),
        (60, 0, {"include_cluster_authorized_operations": False}),
        (48, 1, {"components": [], "strict": False}),
    ],
    ids=["Metadata 9", "Metadata 3", "ApiVersions", "DescribeCluster", "DescribeClientQuotas"],
)
async def test_time_that_requests_take_is_limited_and_every_answer_says_so(
    tmp_path: Path, key: int, version: int, fields: dict[str, Any]
) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, request_percentage=1e-9)
        client = rig.connect()
        plain = rig.connect(info=ConnectionInfo("pair:2", "localhost", 9092, principal=Principal(USER, "other")))
        answer, unlimited = await asked(client, key, version, **fields), await asked(plain, key, version, **fields)
        assert (answer.throttle_time_ms, unlimited.throttle_time_ms) == (1_000, 0), "one window at most"
        assert stats(rig).late_requests == 1
        answer.throttle_time_ms = 0
        assert answer == unlimited, "nothing else differs"


async def test_an_answer_that_has_no_place_for_a_time_is_as_ever_and_its_client_is_muted(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, request_percentage=1e-9)
        client = rig.connect()
        answer = await asked(client, 3, 1, topics=None)
        assert [topic.name for topic in answer.topics] == ["flights"]
        assert stats(rig).muted == 1


async def test_time_counts_for_produce_and_fetch_too(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, request_percentage=1e-9)
        client = rig.connect()
        answer = await produced(client, client.produce_frame("flights", batch_of(b"x")))
        assert answer.throttle_time_ms == 1_000
        pass_time(rig, 60_000)
        late = await fetched(client, client.fetch_frame("flights", 0))
        assert (late.throttle_time_ms, late.responses) == (1_000, [])


async def test_time_that_a_request_only_waits_does_not_count(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, request_percentage=0.5)  # 50 ms in ten windows
        client = rig.connect()
        await client.write(client.fetch_frame("flights", 0, max_wait_ms=300, min_bytes=1))
        await eventually(lambda: rig.server.stats.fetch_requests == 1)
        usage = client.connection.usage
        assert usage is not None and usage.requests is not None
        assert usage.requests.rate(rig.steady.now_ms) < 0.5
        assert kafka_oracle.decode_response(1, FETCH_VERSION, await client.read_frame()).throttle_time_ms == 0


# Partitions ---------------------------------------------------------------------------------------------------------
def creation(name: str, partitions: int, version: int) -> dict[str, Any]:
    topic = kafka_oracle.request_class(19).CreatableTopic
    one = topic(version=version, name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    return {"topics": [one], "timeout_ms": 5_000, "validate_only": False}


async def test_topics_are_refused_one_by_one_while_their_creator_is_in_debt(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        limit(rig, controller_mutation_rate=1.0)
        client = rig.connect()
        request = creation("first", 11, 7)
        request["topics"] += [*creation("second", 10, 7)["topics"], *creation("third", 1, 7)["topics"]]
        answer = await asked(client, 19, 7, **request)
        assert [one.error_code for one in answer.topics] == [0, 0, THROTTLED], "a debt is made once"
        assert answer.throttle_time_ms == 10_000
        assert stats(rig).late_mutations == 1
        pass_time(rig, 10_000)
        answer = await asked(client, 19, 7, **creation("third", 1, 7))
        assert ([one.error_code for one in answer.topics], answer.throttle_time_ms) == ([0], 0)
        assert rig.catalog.topic("third") is not None


async def test_an_older_version_is_performed_and_its_client_waits(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        limit(rig, controller_mutation_rate=1.0)
        client = rig.connect()
        answer = await asked(client, 19, 5, **creation("first", 21, 5))
        assert ([one.error_code for one in answer.topics], answer.throttle_time_ms) == ([0], 10_000)
        assert stats(rig).muted == 1


async def test_more_partitions_and_deletions_count_as_well(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        client = rig.connect()
        await asked(client, 19, 7, **creation("first", 2, 7))
        limit(rig, controller_mutation_rate=1.0)
        grow = kafka_oracle.request_class(37).CreatePartitionsTopic
        more = [grow(version=3, name="first", count=15, assignments=None)]
        answer = await asked(client, 37, 3, topics=more, timeout_ms=5_000, validate_only=False)
        assert [one.error_code for one in answer.results] == [0]
        answer = await asked(client, 20, 5, topic_names=["first"], timeout_ms=5_000)
        assert [one.error_code for one in answer.responses] == [THROTTLED]
        assert answer.throttle_time_ms == 2_000
        pass_time(rig, 2_000)
        answer = await asked(client, 20, 5, topic_names=["first"], timeout_ms=5_000)
        assert [one.error_code for one in answer.responses] == [0]


# Changes while clients wait -----------------------------------------------------------------------------------------
@pytest.mark.fault("quota-changes-client-waits")
async def test_a_pause_ends_when_it_was_said_to_whatever_the_quota_is_by_then(tmp_path: Path) -> None:
    for change in (1.0, 1e9, None):
        async with ServeRig(tmp_path / str(change)) as rig:
            await rig.shard_of()
            limit(rig, producer_byte_rate=100.0)
            client = rig.connect()
            wait_ms = (await produced(client, client.produce_frame("flights", batch_of(b"x" * 3_000)))).throttle_time_ms
            if change is None:
                rig.catalog.quotas.drop(ANONYMOUS)
            else:
                limit(rig, producer_byte_rate=change)
            await client.write(client.produce_frame("flights", batch_of(b"second")))
            pass_time(rig, wait_ms - 1)
            await some_turns()
            assert rig.server.stats.produce_requests == 1
            pass_time(rig, 1)
            answer = kafka_oracle.decode_response(0, PRODUCE_VERSION, await client.read_frame())
            assert (answer.throttle_time_ms > 0) == (change == 1.0), "the next request counts by the new one"


async def test_without_quotas_of_clients_nothing_is_kept_of_a_connection(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, QuotaEntity(ip=DEFAULT), connection_creation_rate=1.0)
        client = rig.connect()
        frame = client.produce_frame("flights", batch_of(b"x"))
        assert (await produced(client, frame)).throttle_time_ms == 0
        assert client.connection.usage is None
        limit(rig, producer_byte_rate=1e6)
        await produced(client, frame)
        assert client.connection.usage is not None
        rig.catalog.quotas.drop(ANONYMOUS)
        await produced(client, frame)
        assert client.connection.usage is None


@pytest.mark.fault("client-uses-another-name")
async def test_a_client_that_uses_another_long_name_for_each_request_takes_little_memory(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, QuotaEntity(None, DEFAULT), producer_byte_rate=1e9)
        client = rig.connect()
        for number in range(20):
            request = kafka_oracle.request_class(18)(version=0)
            name = f"{number:06d}" + "n" * 30_000
            frame = kafka_oracle.frame_of(request, correlation_id=number, client_id=name)
            await client.write(frame)
            await client.read_frame()
            usage = client.connection.usage
            assert usage is not None and len(usage.client_id) == 512


# Clients that leave -------------------------------------------------------------------------------------------------
async def test_a_muted_connection_that_closes_is_forgotten_at_once(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, producer_byte_rate=1.0)
        muted = rig.server.quotas._muted
        for _ in range(200):
            client = rig.connect()
            await produced(client, client.produce_frame("flights", batch_of(b"x")))
            assert stats(rig).muted == 1
            client.connection.close("test")
            assert stats(rig).muted == 0
            assert len(muted._line) <= client_quotas._SPARE
            client.close()
        await rig.nothing_is_held()


@pytest.mark.fault("client-sends-more-than-quota")
async def test_a_muted_client_that_left_is_noticed_and_one_that_waits_is_kept(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, connection_read_timeout_ms=1_000) as rig:
        await rig.shard_of()
        limit(rig, producer_byte_rate=1.0)
        left, waits = rig.connect(), rig.connect()
        for client in (left, waits):
            await produced(client, client.produce_frame("flights", batch_of(b"x")))
        left.socket.shutdown(socket.SHUT_WR)
        await some_turns()
        rig.steady.now_ms += 599_000
        assert left.connection.overdue(rig.steady.now_ms) is None, "what it sent is read first, as in Kafka"
        reason = left.connection.overdue(rig.steady.now_ms, is_crowded=True)
        assert reason is not None and "its quota mutes it" in reason
        assert waits.connection.overdue(rig.steady.now_ms, is_crowded=True) is None
        rig.steady.now_ms += 1_500
        reason = left.connection.overdue(rig.steady.now_ms)
        assert reason is not None and "its quota mutes it" in reason
        assert waits.connection.overdue(rig.steady.now_ms) is None


@pytest.mark.fault("client-sends-more-than-quota")
async def test_what_a_client_sent_before_it_left_is_appended_when_its_pause_ends(tmp_path: Path) -> None:
    """With acks=0 it cannot know that it is muted, and closes its connection when it has sent everything."""
    async with ServeRig(tmp_path, connection_read_timeout_ms=1_000) as rig:
        shard = await rig.shard_of()
        limit(rig, producer_byte_rate=100.0)
        client = rig.connect()
        values = [b"a" * 5_000, b"b", b"c"]
        await client.write(client.produce_frame("flights", batch_of(values[0]), acks=0))
        await eventually(lambda: stats(rig).muted == 1)
        for value in values[1:]:
            await client.write(client.produce_frame("flights", batch_of(value), acks=0))
        wait_ms = client.connection.throttle_ms
        client.socket.close()
        assert 30_000 < wait_ms < 600_000
        rig.steady.now_ms += wait_ms - 1
        rig.turn.read_clocks()
        assert client.connection.overdue(rig.turn.steady_ms) is None
        for _ in values[1:]:
            pass_time(rig, 60_000)
            await some_turns()
        await eventually(lambda: client.connection.is_closed)
        assert await rig.read_values(shard) == values


async def test_connections_that_a_muted_client_left_behind_make_room_where_clients_have_half_of_all_places(
    tmp_path: Path,
) -> None:
    """A client that connects again for each request leaves one behind each time."""
    async with ServeRig(tmp_path, connection_read_timeout_ms=1_000, max_connections=4) as rig:
        await rig.shard_of()
        limit(rig, producer_byte_rate=1.0)
        server, left = rig.server, []
        for _ in range(3):
            client = rig.connect()
            server._connections[client.connection] = None
            server._places.take_client(client.connection, "10.0.0.1")
            await client.write(client.produce_frame("flights", batch_of(b"x" * 3_000), acks=0))
            await eventually(lambda client=client: client.connection.muted_until_ms > 0)  # type: ignore[misc]
            client.socket.close()
            left.append(client.connection)
            rig.steady.now_ms += 1_500
            server._reap()
        assert [one.is_closed for one in left] == [True, True, True]
        await rig.nothing_is_held()


async def test_a_muted_client_is_not_idle_until_its_pause_has_ended(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, producer_byte_rate=1.0)
        client = rig.connect()
        answer = await produced(client, client.produce_frame("flights", batch_of(b"x" * 3_000)))
        assert answer.throttle_time_ms > 700_000
        rig.steady.now_ms += 700_000
        assert client.connection.overdue(rig.steady.now_ms) is None
        rig.steady.now_ms += answer.throttle_time_ms - 700_000
        rig.turn.read_clocks()
        pass_time(rig, 0)
        assert client.connection.overdue(rig.steady.now_ms) is None, "its idle time begins now"
        rig.steady.now_ms += 600_001
        assert client.connection.overdue(rig.steady.now_ms) is not None


@pytest.mark.parametrize("of_type", [NODE, "Meta", "Operator"])
async def test_members_of_the_cluster_are_limited_by_no_quota_of_users(tmp_path: Path, of_type: str) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        limit(rig, QuotaEntity("1"), producer_byte_rate=100.0)
        limit(rig, QuotaEntity(DEFAULT), request_percentage=1e-9)
        client = rig.connect()
        client.connection.identify(Principal(of_type, "1"))
        answer = await produced(client, client.produce_frame("flights", batch_of(b"x" * 3_000)))
        assert (answer.throttle_time_ms, client.connection.usage) == (0, None)


async def test_a_muted_client_keeps_no_memory_for_which_others_wait(tmp_path: Path) -> None:
    """What it sent beyond the frame that was too much lies in a large buffer."""
    async with ServeRig(tmp_path, queued_max_request_bytes=1 << 20, connection_read_timeout_ms=1_000) as rig:
        await rig.shard_of(max_message_bytes=8 << 20)
        limit(rig, producer_byte_rate=1.0)
        client = rig.connect()
        frame = client.produce_frame("flights", batch_of(b"x" * 700_000))
        sending = asyncio.create_task(client.write(frame + frame))
        await client.produced()
        await some_turns()
        assert client.connection._granted
        for _ in range(2):
            rig.server.budget.reserve(object(), 64 << 20, lambda: None)
        assert client.connection.overdue(rig.steady.now_ms) is None
        rig.steady.now_ms += 1_500
        reason = client.connection.overdue(rig.steady.now_ms)
        assert reason is not None and "its quota mutes it" in reason
        sending.cancel()


# Rights -------------------------------------------------------------------------------------------------------------
async def test_who_may_not_see_or_change_settings_of_the_cluster_sees_and_changes_no_quota(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, authorizer_class_name="stratalog") as rig:
        limit(rig, producer_byte_rate=1e9)
        client = rig.connect()
        answer = await asked(client, 48, 1, components=[], strict=False)
        assert (answer.error_code, answer.entries) == (DENIED, None)
        classes = kafka_oracle.request_class(49)
        entity = classes.EntryData.EntityData(version=1, entity_type="user", entity_name="a")
        op = classes.EntryData.OpData(version=1, key="producer_byte_rate", value=1.0, remove=False)
        entries = [classes.EntryData(version=1, entity=[entity], ops=[op])]
        answer = await asked(client, 49, 1, entries=entries, validate_only=False)
        assert [one.error_code for one in answer.entries] == [DENIED]
        assert (await rig.meta.service.snapshot()).quotas == ()


# New connections ----------------------------------------------------------------------------------------------------
async def connected(address: Any) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, address)
    return client


@pytest.mark.fault("address-opens-connections-fast")
async def test_an_address_that_opens_connections_too_fast_is_held_off_and_then_closed(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, listeners="outside://127.0.0.1:0") as rig:
        limit(rig, QuotaEntity(ip="127.0.0.1"), connection_creation_rate=1.0)
        listener = bind("127.0.0.1", 0)
        rig.server.open(listener, Listener("outside", "localhost", 9092))
        clients = [await connected(listener.getsockname()) for _ in range(12)]
        await eventually(lambda: rig.server.stats.accepted + rig.server.stats.turned_away["rate"] == 12)
        assert (rig.server.stats.accepted, rig.server.stats.turned_away["rate"]) == (10, 2)
        assert len(rig.server._arrivals._held) == 2
        async with asyncio.timeout(20):
            for late in clients[10:]:
                assert await asyncio.get_running_loop().sock_recv(late, 1) == b""
        assert not rig.server._arrivals._held
        rig.steady.now_ms += 11_000
        clients.append(await connected(listener.getsockname()))
        await eventually(lambda: rig.server.stats.accepted == 11)
        for client in clients:
            client.close()


async def test_no_more_than_a_few_refused_connections_are_held(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, listeners="outside://127.0.0.1:0") as rig:
        limit(rig, QuotaEntity(ip=DEFAULT), connection_creation_rate=1.0)
        listener = bind("127.0.0.1", 0)
        rig.server.open(listener, Listener("outside", "localhost", 9092))
        count = 10 + MOST_HELD + 20
        clients = [await connected(listener.getsockname()) for _ in range(count)]
        await eventually(lambda: rig.server.stats.accepted + rig.server.stats.turned_away["rate"] == count)
        assert len(rig.server._arrivals._held) <= MOST_HELD
        for client in clients:
            client.close()


@pytest.mark.fault("address-opens-connections-fast")
async def test_nodes_of_an_address_that_opens_too_many_connections_still_get_in(tmp_path: Path) -> None:
    """By the internal listener a connection too many is taken on trial: its first request must be a node's."""
    async with ServeRig(tmp_path) as rig:
        limit(rig, QuotaEntity(ip=DEFAULT), connection_creation_rate=1.0)
        listener = bind("127.0.0.1", 0)
        rig.server.open(listener, Listener(INTERNAL, "localhost", 9092))
        clients = [await connected(listener.getsockname()) for _ in range(11)]
        await eventually(lambda: rig.server.stats.accepted == 11)
        assert len(rig.server._places.on_trial) == 1
        late = clients[10]
        request = kafka_oracle.request_class(18)(version=0)
        await asyncio.get_running_loop().sock_sendall(
            late, kafka_oracle.frame_of(request, correlation_id=1, client_id="x")
        )
        async with asyncio.timeout(20):
            assert await asyncio.get_running_loop().sock_recv(late, 1) == b"", "no client's"
        for client in clients:
            client.close()


async def test_all_together_open_no_more_connections_than_the_node_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path, max_connection_creation_rate=1) as rig:
        accepted_at_pause: list[tuple[int, float]] = []
        pause = type(rig.server)._pause_listener

        def note(self: Any, sock: socket.socket, at: Any, pause_s: float) -> None:
            accepted_at_pause.append((self.stats.accepted, pause_s))
            rig.steady.now_ms += 11_000
            pause(self, sock, at, 0.0)

        monkeypatch.setattr(type(rig.server), "_pause_listener", note)
        listener = bind("127.0.0.1", 0)
        rig.server.open(listener, Listener(INTERNAL, "localhost", 9092))
        clients = [await connected(listener.getsockname()) for _ in range(15)]
        await eventually(lambda: rig.server.stats.accepted == 15)
        assert accepted_at_pause == [(11, 1.0)], "after the pause the others are taken"
        for client in clients:
            client.close()
