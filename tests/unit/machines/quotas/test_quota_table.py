"""Which quota counts: each step of Kafka's order of precedence decides where all steps before it are missing."""

from __future__ import annotations

import pytest

from stratalog.machines.quotas.alterations import address_of
from stratalog.machines.quotas.table import AppliedQuota, QuotaTable
from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaEntity, QuotaKey, QuotaLimits

ORDER: list[tuple[QuotaEntity, str | None, str | None]] = [
    (QuotaEntity("alice", "app"), "alice", "app"),
    (QuotaEntity("alice", DEFAULT), "alice", "app"),
    (QuotaEntity("alice"), "alice", None),
    (QuotaEntity(DEFAULT, "app"), "alice", "app"),
    (QuotaEntity(DEFAULT, DEFAULT), "alice", "app"),
    (QuotaEntity(DEFAULT), "alice", None),
    (QuotaEntity(None, "app"), None, "app"),
    (QuotaEntity(None, DEFAULT), None, "app"),
]
"""Kafka's, with whose usage is counted together for user alice with client id app."""
PRODUCE, FETCH = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE


def produce(entity: QuotaEntity, limit: float) -> EntityQuotas:
    return EntityQuotas(entity, QuotaLimits(producer_byte_rate=limit))


@pytest.mark.parametrize("step", range(len(ORDER)))
def test_an_entity_counts_where_none_before_it_sets_the_key(step: int) -> None:
    table = QuotaTable()
    for number, (entity, _, _) in enumerate(ORDER[step:], step):
        table.put(produce(entity, number + 1))
    _, user, client_id = ORDER[step]
    assert table.of_client(PRODUCE, "alice", "app") == AppliedQuota(step + 1, user, client_id)


def test_no_entity_of_others_counts() -> None:
    table = QuotaTable()
    for entity in (
        QuotaEntity("bob", "app"),
        QuotaEntity("bob"),
        QuotaEntity("alice", "other"),
        QuotaEntity(None, "o"),
    ):
        table.put(produce(entity, 1))
    assert table.of_client(PRODUCE, "alice", "app") is None


def test_each_key_is_looked_up_by_itself() -> None:
    table = QuotaTable()
    table.put(produce(QuotaEntity("alice"), 1))
    table.put(EntityQuotas(QuotaEntity(None, "app"), QuotaLimits(consumer_byte_rate=2)))
    assert table.of_client(PRODUCE, "alice", "app") == AppliedQuota(1, "alice", None)
    assert table.of_client(FETCH, "alice", "app") == AppliedQuota(2, None, "app")
    assert table.of_client(QuotaKey.REQUEST_PERCENTAGE, "alice", "app") is None


def test_a_client_without_an_id_has_the_quota_of_the_default() -> None:
    table = QuotaTable()
    table.put(produce(QuotaEntity(None, DEFAULT), 5))
    assert table.of_client(PRODUCE, "alice", "") == AppliedQuota(5, None, "")


def test_the_table_knows_at_once_whether_anything_is_limited() -> None:
    table = QuotaTable()
    assert not (table.limits_clients or table.limits_addresses)
    table.put(produce(QuotaEntity("alice"), 1))
    assert table.limits_clients and not table.limits_addresses
    table.put(EntityQuotas(QuotaEntity(ip=DEFAULT), QuotaLimits(connection_creation_rate=3)))
    assert table.limits_addresses
    table.put(EntityQuotas(QuotaEntity("alice"), QuotaLimits(consumer_byte_rate=1)))
    table.drop(QuotaEntity("alice"))
    table.drop(QuotaEntity("alice"))
    assert not table.limits_clients and table.limits_addresses
    table.drop(QuotaEntity(ip=DEFAULT))
    assert not table.limits_addresses
    assert table.revision == 6


def test_an_address_has_its_own_quota_or_that_of_the_default() -> None:
    table = QuotaTable()
    assert table.of_address("10.0.0.1") is None
    table.put(EntityQuotas(QuotaEntity(ip="10.0.0.1"), QuotaLimits(connection_creation_rate=3)))
    assert (table.of_address("10.0.0.1"), table.of_address("10.0.0.2")) == (3, None)
    table.put(EntityQuotas(QuotaEntity(ip=DEFAULT), QuotaLimits(connection_creation_rate=7)))
    assert (table.of_address("10.0.0.1"), table.of_address("10.0.0.2")) == (3, 7)
    assert table.of_address("::ffff:10.0.0.1") == 3, "as a listener for both kinds of addresses sees it"
    table.put(EntityQuotas(QuotaEntity(ip=address_of("::ffff:10.0.0.9")), QuotaLimits(connection_creation_rate=4)))
    assert (table.of_address("10.0.0.9"), table.of_address("::ffff:10.0.0.9")) == (4, 4), "and as one names it"
    table.put(EntityQuotas(QuotaEntity(ip=address_of("fe80:0::1%eth0")), QuotaLimits(connection_creation_rate=5)))
    assert table.of_address("fe80::1%2") == 5
