"""How fast a topic's cold data is read: what was answered is paid for before the next read."""

from __future__ import annotations

from stratalog.machines.reading.cold_rates import ColdLimits, ColdRates

MIB = 1 << 20
BY_TOPIC = ColdLimits(topic=MIB)
BY_CLIENT = ColdLimits(client=MIB)


def test_without_limits_nobody_waits_and_nothing_is_kept() -> None:
    rates = ColdRates()
    rates.count("t", "a", ColdLimits(), 1 << 40, 0)
    assert rates.wait_ms("t", "a", ColdLimits(), 0) == 0
    assert not rates._rates


def test_who_read_too_much_waits_until_it_is_within_the_rate() -> None:
    rates = ColdRates()
    rates.count("t", "a", BY_CLIENT, 3 * MIB, 0)
    assert 2_000 <= rates.wait_ms("t", "a", BY_CLIENT, 0) <= 2_001
    assert 500 <= rates.wait_ms("t", "a", BY_CLIENT, 1_500) <= 501
    assert rates.wait_ms("t", "a", BY_CLIENT, 2_001) == 0


def test_clients_of_a_topic_and_topics_of_a_client_are_counted_apart() -> None:
    rates = ColdRates()
    rates.count("t", "a", BY_CLIENT, 3 * MIB, 0)
    assert rates.wait_ms("t", "b", BY_CLIENT, 0) == 0
    assert rates.wait_ms("u", "a", BY_CLIENT, 0) == 0


def test_all_clients_together_share_a_topics_limit() -> None:
    rates = ColdRates()
    for client in "abc":
        rates.count("t", client, BY_TOPIC, MIB, 0)
    assert rates.wait_ms("t", "d", BY_TOPIC, 0) >= 2_000


def test_the_longer_of_both_waits_counts() -> None:
    rates, both = ColdRates(), ColdLimits(topic=10 * MIB, client=MIB)
    rates.count("t", "a", both, 3 * MIB, 0)
    assert rates.wait_ms("t", "a", both, 0) >= 2_000
    assert rates.wait_ms("t", "b", both, 0) == 0


def test_a_limit_that_changes_is_the_one_that_debts_are_paid_at() -> None:
    rates = ColdRates()
    rates.count("t", "a", BY_CLIENT, 11 * MIB, 0)
    assert rates.wait_ms("t", "a", BY_CLIENT, 0) >= 10_000
    assert rates.wait_ms("t", "a", ColdLimits(client=10 * MIB), 0) <= 1_001
    assert rates.wait_ms("t", "a", ColdLimits(), 0) == 0, "there is no limit any more"


def test_in_the_long_run_a_client_gets_its_rate_and_no_more() -> None:
    rates, now_ms, got = ColdRates(), 0, 0
    while now_ms < 60_000:
        now_ms += rates.wait_ms("t", "a", BY_CLIENT, now_ms)
        rates.count("t", "a", BY_CLIENT, 700_000, now_ms)
        got += 700_000
    assert 60 * MIB <= got <= 63 * MIB


def test_clients_that_come_once_are_not_kept_without_bound() -> None:
    rates = ColdRates()
    for number in range(20_000):
        rates.count("t", f"client-{number}", BY_CLIENT, 1, number)
    assert len(rates._rates) <= 10_000
