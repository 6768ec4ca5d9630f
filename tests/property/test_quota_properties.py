"""Quotas are those of plain models: a list of all entities in Kafka's order, and a list of all that was used."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.quotas.rates import UsageRate, Windows
from stratalog.machines.quotas.table import QuotaTable
from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaEntity, QuotaKey, QuotaLimits

PARTS = st.sampled_from([None, DEFAULT, "a", "b"])
CLIENTS = st.builds(QuotaEntity, PARTS, PARTS).filter(lambda one: (one.user, one.client_id) != (None, None))
ADDRESSES = st.builds(lambda ip: QuotaEntity(ip=ip), st.sampled_from([DEFAULT, "10.0.0.1", "::1"]))
LIMIT = st.one_of(st.none(), st.floats(0.1, 1e9))
LIMITS = st.builds(QuotaLimits, LIMIT, LIMIT, LIMIT, LIMIT)
CHANGES = st.lists(st.tuples(CLIENTS, st.one_of(st.none(), LIMITS)), max_size=20)
NAMES = st.sampled_from(["a", "b", "c", ""])


def rank(entity: QuotaEntity, user: str, client_id: str) -> int | None:
    """As Kafka's documentation lists them: which of two entities that match counts; None: it does not match."""
    matches = {
        (user, client_id): 1,
        (user, DEFAULT): 2,
        (user, None): 3,
        (DEFAULT, client_id): 4,
        (DEFAULT, DEFAULT): 5,
        (DEFAULT, None): 6,
        (None, client_id): 7,
        (None, DEFAULT): 8,
    }
    return matches.get((entity.user, entity.client_id))


@given(CHANGES, NAMES.filter(bool), NAMES.filter(bool), st.sampled_from([*QuotaKey][:4]))
def test_the_quota_of_a_client_is_that_of_the_first_entity_in_kafkas_order(
    changes: list[tuple[QuotaEntity, QuotaLimits | None]], user: str, client_id: str, key: QuotaKey
) -> None:
    table, model = QuotaTable(), dict[QuotaEntity, QuotaLimits]()
    for entity, limits in changes:
        if limits is None or limits == QuotaLimits():
            table.drop(entity)
            model.pop(entity, None)
        else:
            table.put(EntityQuotas(entity, limits))
            model[entity] = limits
    matching = [
        (rank(entity, user, client_id), entity, limits.of(key))
        for entity, limits in model.items()
        if rank(entity, user, client_id) is not None and limits.of(key) is not None
    ]
    applied = table.of_client(key, user, client_id)
    assert table.limits_clients == bool(model)
    if not matching:
        assert applied is None
        return
    _, entity, limit = min(matching, key=lambda one: one[0] or 0)
    assert applied is not None and applied.limit == limit
    assert applied.user == (None if entity.user is None else user)
    assert applied.client_id == (None if entity.client_id is None else client_id)


def _model_rate(used: list[tuple[int, float]], windows: Windows, now_ms: int) -> float:
    """Kafka's: samples begin with what is used when the one before is a window old, and end with the last use in it."""
    samples: list[list[float]] = []
    for at_ms, amount in used:
        samples = [one for one in samples if at_ms - one[1] < windows.longest_ms]
        if not samples or at_ms - samples[-1][0] >= windows.size_ms:
            samples.append([at_ms, at_ms, 0.0])
        samples[-1][1] = at_ms
        samples[-1][2] += amount
        samples = samples[-windows.number - 1 :]
    samples = [one for one in samples if now_ms - one[1] < windows.longest_ms]
    elapsed_ms = now_ms - samples[0][0] if samples else 0
    full = elapsed_ms // windows.size_ms
    if full < windows.number - 1:
        elapsed_ms += (windows.number - 1 - full) * windows.size_ms
    return sum(one[2] for one in samples) / max(elapsed_ms, windows.size_ms) * 1_000


WINDOWS = st.builds(Windows, st.integers(1, 5), st.sampled_from([10, 1_000]))
USES = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10_000)), min_size=1, max_size=40)


@given(WINDOWS, USES, st.integers(1, 2_000))
def test_a_rate_and_the_wait_for_it_are_those_of_a_list_of_all_that_was_used(
    windows: Windows, uses: list[tuple[int, int]], limit: int
) -> None:
    rate, used, now_ms = UsageRate(limit, windows), list[tuple[int, float]](), 5_000
    for later_ms, amount in uses:
        now_ms += later_ms
        wait_ms = rate.use(amount, now_ms)
        used.append((now_ms, amount))
        expected = _model_rate(used, windows, now_ms)
        assert abs(rate.rate(now_ms) - expected) < 1e-6 * max(1, expected)
        if expected <= limit * (1 - 1e-9):
            assert wait_ms == 0
        elif expected >= limit * (1 + 1 / windows.size_ms):
            assert wait_ms > 0, "at least a millisecond of the windows that passed"


@given(WINDOWS, USES, st.integers(100, 2_000))
def test_who_obeys_the_waits_uses_no_more_than_the_limit_and_one_burst(
    windows: Windows, uses: list[tuple[int, int]], limit: int
) -> None:
    """Over any time: what the windows hold, the last request, and the limit for each second."""
    rate, now_ms, total = UsageRate(limit, windows), 5_000, 0
    begin_ms = now_ms
    burst = limit * windows.longest_ms / 1_000
    for later_ms, amount in uses:
        now_ms += later_ms
        total += amount
        passed_s = (now_ms - begin_ms) / 1_000
        assert total <= 2 * burst + 2 * limit * passed_s + 2 * 10_000
        now_ms += rate.use(amount, now_ms)


@given(LIMITS, LIMIT)
def test_a_limit_by_its_key_is_the_field_of_that_name(limits: QuotaLimits, limit: float | None) -> None:
    for key in QuotaKey:
        assert replace(limits, **{key.value: limit}).of(key) == limit
