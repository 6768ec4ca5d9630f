"""Two things happen to a shard, one after the other: which of them is reported, and what is known of its log."""

from __future__ import annotations

import uuid

import pytest

from stratalog.machines.leading.chain_events import DoubtCopy, SegmentFlushFailed, ShardStopped
from stratalog.machines.leading.leader_events import RollPolicy
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.ids import ShardKey

NOT_OPENED = (StopCause.UNREADABLE, StopCause.DATA_LOST, StopCause.HEALING)
NOT_LED = (StopCause.DEPOSED, StopCause.DELETED)
IN_TROUBLE = (StopCause.FLUSH_FAILED, StopCause.FAULT)


def stopped(*causes: StopCause) -> ShardChain:
    chain = ShardChain(ShardKey(uuid.UUID(int=1), 0), 1, RollPolicy(100, 10**9))
    for cause in causes:
        chain.step(ShardStopped(Stop(cause.value, cause)), 0)
    return chain


@pytest.mark.parametrize("first", NOT_OPENED)
@pytest.mark.parametrize("later", [*IN_TROUBLE, StopCause.DEPOSED])
def test_what_else_befalls_a_log_that_was_not_opened_does_not_make_its_end_known(
    first: StopCause, later: StopCause
) -> None:
    chain = stopped(first, later)
    assert chain.stop is not None and chain.stop.cause is first
    assert not chain.is_end_known


@pytest.mark.parametrize("first", IN_TROUBLE)
@pytest.mark.parametrize("later", [*NOT_OPENED, *NOT_LED, *IN_TROUBLE])
def test_of_an_opened_log_the_last_is_reported(first: StopCause, later: StopCause) -> None:
    stop = stopped(first, later).stop
    assert stop is not None and stop.cause is later


@pytest.mark.parametrize("first", NOT_LED)
@pytest.mark.parametrize("later", [*NOT_OPENED, *IN_TROUBLE])
def test_who_was_deposed_does_not_lead_again_for_another_reason(first: StopCause, later: StopCause) -> None:
    stop = stopped(first, later).stop
    assert stop is not None and stop.cause is first


@pytest.mark.parametrize("first", list(StopCause))
def test_a_topic_that_is_gone_is_gone(first: StopCause) -> None:
    for chain in (stopped(first, StopCause.DELETED), stopped(StopCause.DELETED, first)):
        assert chain.stop is not None and chain.stop.cause is StopCause.DELETED


def test_a_flush_that_fails_of_what_others_seal_by_now_stops_no_shard_that_leads_again() -> None:
    chain = ShardChain(ShardKey(uuid.UUID(int=1), 0), 1, RollPolicy(100, 10**9), led_since_epoch=3)
    effects = chain.step(SegmentFlushFailed(0, "the disk"), 0)
    assert effects == [DoubtCopy(0, "the disk")]
    assert chain.stop is None
