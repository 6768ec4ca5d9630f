"""Writers whose records depend on each other, and the judge of a cut through them.

A chain sends each record on another shard than the one before, and only once the one before was acknowledged. Chains
run beside each other and are judged together: a record that was acknowledged before another chain sent its record
happened before it. A cut with the later one and without the earlier one is inconsistent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer

_CONFIG: Final = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "socket.timeout.ms": 2_000,  # the longest wait for a leader that is paused
    "topic.metadata.refresh.interval.ms": 500,
    "log_level": 0,
}


class Link(NamedTuple):
    shard: int
    offset: int
    sent_s: float
    """Not later than its leader got it."""
    acknowledged_s: float
    """Not earlier than its leader told."""


class CausalChain:
    def __init__(self, bootstrap: str, topic: str, shards: int, stride: int) -> None:
        """`stride`: from shard to shard. Without an end until `end`; a record that is not acknowledged ends it, too."""
        self._producer = Producer({"bootstrap.servers": bootstrap} | _CONFIG)
        self._topic, self._shards, self._stride = topic, shards, stride
        self._is_over = threading.Event()
        self.links: list[Link] = []
        """In the order of their acknowledgements."""
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        step = 0
        while not self._is_over.is_set() and self.fault is None:
            step += 1
            self._send(step * self._stride % self._shards, b"%d" % step)

    def _send(self, shard: int, value: bytes) -> None:
        told: list[tuple[Any, Any]] = []
        sent_s = time.monotonic()
        self._producer.produce(
            self._topic, value, partition=shard, on_delivery=lambda error, one: told.append((error, one))
        )
        self._producer.flush(60)
        if not told or told[0][0] is not None:
            self.fault = f"shard {shard}: {told[0][0] if told else 'no answer'}"
        else:
            self.links.append(Link(shard, told[0][1].offset(), sent_s, time.monotonic()))

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def longest_wait_s(self) -> float:
        return max((link.acknowledged_s - link.sent_s for link in self.links), default=0.0)


@contextmanager
def running(bootstrap: str, topic: str, shards: int, strides: Sequence[int]) -> Iterator[list[CausalChain]]:
    """Ended at the end. Raises AssertionError where one of them was refused."""
    chains = [CausalChain(bootstrap, topic, shards, stride) for stride in strides]
    try:
        yield chains
    finally:
        for chain in chains:
            chain.end()
    faults = [chain.fault for chain in chains if chain.fault is not None]
    assert not faults, faults


def out_of_order(chains: Sequence[CausalChain], ends: Mapping[int, int]) -> list[tuple[Link, Link]]:
    """Pairs that refute a cut with these ends: the first is not in it, and was acknowledged before the second, which is
    in it, was sent."""
    links = [link for chain in chains for link in chain.links]
    inside = [link for link in links if link.offset < ends[link.shard]]
    outside = [link for link in links if link.offset >= ends[link.shard]]
    last_sent_s = max((link.sent_s for link in inside), default=0.0)
    missing = [link for link in outside if link.acknowledged_s < last_sent_s]
    return [(lost, next(one for one in inside if one.sent_s > lost.acknowledged_s)) for lost in missing]
