"""Whose usage is counted together, what outlives a connection, and how much is kept of clients that are gone."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from stratalog.machines.quotas.alterations import LEAST_LIMIT, limit_of
from stratalog.machines.quotas.connection_rates import MOST_ADDRESSES, ConnectionRates
from stratalog.machines.quotas.rates import LONGEST_WAIT_MS, Windows
from stratalog.machines.quotas.table import QuotaTable
from stratalog.machines.quotas.usage import MOST_KEPT, MutationTokens, UsageOfClients
from stratalog.model.errors import InvalidRequest
from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaEntity, QuotaKey, QuotaLimits

KAFKAS = Windows(11, 1_000)
BEGIN = 1_000_000


def usages(*quotas: EntityQuotas) -> tuple[QuotaTable, UsageOfClients]:
    table = QuotaTable()
    for one in quotas:
        table.put(one)
    return table, UsageOfClients(table, KAFKAS, KAFKAS)


def test_connections_of_a_user_are_counted_together_whatever_their_client_ids() -> None:
    _, all_usages = usages(EntityQuotas(QuotaEntity("alice"), QuotaLimits(producer_byte_rate=100)))
    first, second = all_usages.of("alice", "a", BEGIN), all_usages.of("alice", "b", BEGIN)
    assert first.produced is not None and first.produced is second.produced
    assert first.fetched is first.requests is first.mutations is None
    assert all_usages.of("bob", "a", BEGIN).produced is None


def test_each_client_id_of_a_default_is_counted_by_itself() -> None:
    _, all_usages = usages(EntityQuotas(QuotaEntity("alice", DEFAULT), QuotaLimits(consumer_byte_rate=100)))
    first, second = all_usages.of("alice", "a", BEGIN), all_usages.of("alice", "b", BEGIN)
    assert first.fetched is not None and second.fetched is not None
    assert first.fetched is not second.fetched
    assert first.fetched is all_usages.of("alice", "a", BEGIN).fetched


def test_a_new_limit_counts_for_all_who_share_it_and_what_was_used_stays_used() -> None:
    table, all_usages = usages(EntityQuotas(QuotaEntity("alice"), QuotaLimits(producer_byte_rate=100)))
    old = all_usages.of("alice", "a", BEGIN)
    assert old.produced is not None and old.produced.use(1_000, BEGIN) == 0
    table.put(EntityQuotas(QuotaEntity("alice"), QuotaLimits(producer_byte_rate=50)))
    assert old.revision != table.revision
    new = all_usages.of("alice", "a", BEGIN)
    assert new.produced is old.produced and new.produced.use(0, BEGIN) == 10_000


def test_a_client_that_connects_again_owes_what_it_owed() -> None:
    _, all_usages = usages(EntityQuotas(QuotaEntity(None, DEFAULT), QuotaLimits(producer_byte_rate=100)))
    usage = all_usages.of("alice", "a", BEGIN)
    assert usage.produced is not None
    usage.produced.use(2_000, BEGIN)
    del usage
    gc.collect()
    again = all_usages.of("alice", "a", BEGIN)
    assert again.produced is not None and again.produced.use(0, BEGIN) == 10_000


@pytest.mark.fault("client-uses-another-name")
def test_a_client_that_names_itself_anew_each_time_takes_bounded_memory_and_nothing_from_connected_ones() -> None:
    _, all_usages = usages(
        EntityQuotas(QuotaEntity(None, DEFAULT), QuotaLimits(producer_byte_rate=100)),
        EntityQuotas(QuotaEntity("alice"), QuotaLimits(producer_byte_rate=100)),
    )
    connected = all_usages.of("alice", "a", BEGIN)
    assert connected.produced is not None
    connected.produced.use(2_000, BEGIN)

    def name_itself_anew(start: int) -> None:
        for number in range(start, start + 2 * MOST_KEPT):
            usage = all_usages.of("mallory", f"client-{number}", BEGIN)
            assert usage.produced is not None
            usage.produced.use(1, BEGIN)

    name_itself_anew(0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    name_itself_anew(2 * MOST_KEPT)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(all_usages) <= MOST_KEPT + 1
    assert after - before < 16 << 20
    again = all_usages.of("alice", "b", BEGIN)
    assert again.produced is connected.produced and again.produced.use(0, BEGIN) == 10_000


def test_two_thousand_users_with_quotas_are_counted_one_by_one() -> None:
    names = [f"user-{number}" for number in range(2_000)]
    _, all_usages = usages(*(EntityQuotas(QuotaEntity(name), QuotaLimits(producer_byte_rate=100)) for name in names))
    waits = []
    for number, name in enumerate(names):
        usage = all_usages.of(name, "app", BEGIN)
        assert usage.produced is not None
        waits.append(usage.produced.use(1_000 + number, BEGIN))
    assert waits == [10 * number for number in range(2_000)]


# Mutations ----------------------------------------------------------------------------------------------------------
def test_a_strict_request_is_taken_while_the_bucket_is_not_in_debt_however_large_it_is() -> None:
    tokens = MutationTokens(2, KAFKAS, BEGIN)
    assert tokens.charge_strictly(100, BEGIN) == 0, "22 are there"
    assert tokens.charge_strictly(1, BEGIN) == 39_000
    assert tokens.charge_strictly(1, BEGIN + 38_000) == 1_000, "a refused request takes nothing"
    assert tokens.charge_strictly(1, BEGIN + 39_000) == 0
    assert tokens.charge_strictly(1, BEGIN + 39_000) == 500


def test_a_request_of_an_older_version_is_taken_and_its_client_waits() -> None:
    tokens = MutationTokens(2, KAFKAS, BEGIN)
    assert tokens.charge(22, BEGIN) == 0
    assert tokens.charge(1, BEGIN) == 500
    assert tokens.charge(1, BEGIN) == 1_000


def test_a_changed_limit_pays_the_debt_at_the_new_rate() -> None:
    tokens = MutationTokens(2, KAFKAS, BEGIN)
    tokens.charge(122, BEGIN)
    tokens.change_limit(100, BEGIN)
    assert tokens.charge_strictly(1, BEGIN) == 1_000


# Connections --------------------------------------------------------------------------------------------------------
def test_a_connection_that_its_address_may_not_open_does_not_count() -> None:
    rates = ConnectionRates(2**31 - 1, KAFKAS)
    taken = [rates.add_of("10.0.0.1", 1, BEGIN) for _ in range(12)]
    assert taken == [0] * 10 + [1_000, 1_000], "waits for one window at most"
    assert rates.add_of("10.0.0.2", 1, BEGIN) == 0
    assert rates.add_of("10.0.0.1", 1, BEGIN + 999) > 0
    assert rates.add_of("10.0.0.1", 1, BEGIN + 11_000) == 0


def test_addresses_are_bounded() -> None:
    rates = ConnectionRates(2**31 - 1, KAFKAS)
    for number in range(MOST_ADDRESSES + 100):
        rates.add_of(f"2001:db8::{number:x}", 1, BEGIN)
    assert len(rates._addresses) == MOST_ADDRESSES


def test_all_together_wait_until_the_rate_is_within_the_limit() -> None:
    rates = ConnectionRates(2, KAFKAS)
    assert [rates.add(BEGIN) for _ in range(21)] == [0] * 20 + [500]


# Limits near zero ---------------------------------------------------------------------------------------------------
def test_a_wait_is_never_longer_than_a_client_can_be_told() -> None:
    for limit in (1e-6, 1e-7, 1e-300):
        tokens = MutationTokens(limit, KAFKAS, BEGIN)
        assert 0 < tokens.charge(10_000, BEGIN) <= LONGEST_WAIT_MS
        assert 0 < tokens.charge_strictly(1, BEGIN) <= LONGEST_WAIT_MS


def test_a_limit_too_near_to_zero_is_refused() -> None:
    user = QuotaEntity(user="alice")
    assert limit_of(user, QuotaKey.CONTROLLER_MUTATION_RATE, LEAST_LIMIT) == LEAST_LIMIT
    for limit in (5e-324, LEAST_LIMIT / 2):
        with pytest.raises(InvalidRequest, match="at least"):
            limit_of(user, QuotaKey.CONTROLLER_MUTATION_RATE, limit)
