"""Producers and consumers that speak the Kafka protocol to the nodes: they ask the next node when one does not lead.

A producer with an id repeats a batch until it knows, or until it is refused for good; one without sends each batch
once. A consumer reads from the start and never goes back.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from random import Random
from typing import Final

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import NEXT_OFFSET, Record, decode_records, encode_batch
from stratalog.kafka.frames import is_flexible
from stratalog_sim.product.network import End, Network
from support.history import Outcome, Sent

_TIMEOUT_S: Final = 1.0
_HEAD = struct.Struct(">hhih3s")
REFUSED_FOR_GOOD: Final = frozenset({10, 18, 32, 43, 44, 48, 76, 87})
"""Error codes of Produce after which the same batch would be refused again. Nothing of it was written."""
REFUSED: Final = REFUSED_FOR_GOOD | {2, 3, 6, 9, 13, 17, 19, 22, 29, 42, 74, 75}
"""Error codes of Produce after which nothing was written. For producers without an id alone: one with an id repeats its
batch after any of them that is not in `REFUSED_FOR_GOOD`."""
OUT_OF_RANGE: Final = 1
_NO_ANSWER: Final = -1
_OUT_OF_ORDER: Final = (45, 59)
DUPLICATE: Final = 46


class Wire:
    """One connection to one node at a time, for one question at a time."""

    def __init__(self, network: Network, addresses: Callable[[], list[tuple[str, int]]]) -> None:
        self._network = network
        self.addresses = addresses
        self._at = 0
        self._end: End | None = None
        self._came = bytearray()
        self._news: asyncio.Future[None] | None = None
        self._is_lost = False
        self._number = 0

    def try_next_node(self) -> None:
        self._at += 1
        self.close()

    def close(self) -> None:
        if self._end is not None:
            self._end.close()
            self._network.ends.pop(self._end, None)
        self._end = None
        self._came.clear()

    def _take(self, piece: bytes | None) -> None:
        if piece:
            self._came += piece
        else:
            self._is_lost = True
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def ask(self, key: int, version: int, body: bytes) -> memoryview:
        """The body of the answer. Raises: OSError, TimeoutError; then the connection is gone."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._ask(key, version, body)
        except BaseException:
            self.try_next_node()
            raise

    async def _ask(self, key: int, version: int, body: bytes) -> memoryview:
        if self._end is None:
            addresses = self.addresses()
            if not addresses:
                await asyncio.sleep(0.05)
                raise ConnectionRefusedError("no node is known")
            self._is_lost = False
            self._end = await self._network.open(*addresses[self._at % len(addresses)], self._take)
        self._number += 1
        is_tagged = is_flexible(key, version)
        frame = _HEAD.pack(key, version, self._number, 3, b"sim") + (b"\0" if is_tagged else b"") + body
        self._end.send(len(frame).to_bytes(4, "big") + frame)
        while len(self._came) < 4 or len(self._came) < 4 + int.from_bytes(self._came[:4], "big"):
            if self._is_lost:
                raise ConnectionResetError("the node closed the connection")
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        size = int.from_bytes(self._came[:4], "big")
        answer = bytes(self._came[4 : 4 + size])
        del self._came[: 4 + size]
        return memoryview(answer)[5 if is_tagged else 4 :]


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


class Producer:
    """Sends batches of one to three records to one shard."""

    def __init__(
        self, name: str, topic: str, shard: int, wire: Wire, rng: Random, *, producer_id: int = -1, acks: int = -1
    ) -> None:
        self.name = name
        self.topic = topic
        self.shard = shard
        self.producer_id = producer_id
        self.acks = acks
        self.sent: list[Sent] = []
        self.is_silent = False
        """It sends nothing new."""
        self.is_over = False
        self.is_done = False
        self.on_acknowledged: Callable[[Producer, int, list[bytes]], None] = lambda *_: None
        self.on_refused: Callable[[Producer, int], None] = lambda *_: None
        self.count_losses: Callable[[], int] = lambda: 0
        """How often its shard lost records that it does not owe."""
        self._wire = wire
        self._rng = rng
        self._number = 0
        self._sequence = 0

    async def run(self) -> None:
        while not self.is_over:
            await asyncio.sleep(0.02 + self._rng.random() * 0.15)
            if not self.is_silent:
                await self._send_one()
        self.is_done = True

    async def _send_one(self) -> None:
        self._number += 1
        count = self._rng.choice((1, 1, 2, 3))
        stem = f"{self.name}.{self._number}"
        padding = "x" * self._rng.choice((0, 40, 120))
        values = [f"{stem}.{number}{padding}".encode() for number in range(count)]
        sender = self.name if self.producer_id >= 0 else stem
        place = (self.topic, self.shard)
        sent = [Sent(f"{sender}/{number}", place, value) for number, value in enumerate(values)]
        self.sent += sent
        is_idempotent = self.producer_id >= 0
        batch = encode_batch(
            [Record(NEXT_OFFSET, 1_700_000_000_000, None, value) for value in values],
            producer_id=self.producer_id,
            producer_epoch=0 if is_idempotent else -1,
            base_sequence=self._sequence if is_idempotent else -1,
        )
        is_repeated = False
        while True:
            try:
                code, base_offset = await self.produce(batch)
            except (OSError, TimeoutError):
                code, base_offset = _NO_ANSWER, -1
            if code == 0 and self.acks == 1:
                break  # acknowledged by one node alone: it may be lost
            if code == 0 or (code == DUPLICATE and is_idempotent):
                for number, one in enumerate(sent):
                    one.outcome, one.offset = Outcome.OK, -1 if base_offset < 0 else base_offset + number
                if base_offset >= 0:
                    self.on_acknowledged(self, base_offset, values)
                break
            if not is_idempotent:
                if code in REFUSED:
                    for one in sent:
                        one.outcome = Outcome.FAIL
                self.leave(code)
                break
            if code in _OUT_OF_ORDER and self.count_losses():
                self._take_new_id()  # the log has forgotten it
                return
            if code in _OUT_OF_ORDER:
                self.on_refused(self, code)
                break
            if code in REFUSED_FOR_GOOD and is_repeated:
                self._take_new_id()  # an earlier attempt may be in the log, under this sequence number
                return
            if code in REFUSED_FOR_GOOD:
                for one in sent:
                    one.outcome = Outcome.FAIL
                return  # the next batch has the sequence number of this one, which the log never had
            self.leave(code)
            await asyncio.sleep(0.04 + 0.04 * self._rng.random())
            is_repeated = True
        self._sequence += count

    def _take_new_id(self) -> None:
        self.producer_id += 1_000
        self._sequence = 0

    def leave(self, code: int) -> None:
        """Try another node. The wire did so itself where no answer came: of four nodes each second one would never be
        asked."""
        if code != _NO_ANSWER:
            self._wire.try_next_node()

    async def produce(self, batch: bytes) -> tuple[int, int]:
        """Error code and base offset. Raises: OSError, TimeoutError."""
        body = (
            struct.pack(">hhii", -1, self.acks, 600, 1)
            + _text(self.topic)
            + struct.pack(">iii", 1, self.shard, len(batch))
            + batch
        )
        answer = await self._wire.ask(0, 3, body)
        at = 4 + 2 + len(self.topic) + 4
        _, code, base_offset = struct.unpack_from(">ihq", answer, at)
        return code, base_offset


class Consumer:
    """Reads one shard from its start, batch by batch."""

    def __init__(self, name: str, topic: str, shard: int, wire: Wire, rng: Random) -> None:
        self.name = name
        self.topic = topic
        self.shard = shard
        self.position = 0
        self.first_offset = 0
        self.high_watermark = -1
        self.is_at_end = False
        self.is_over = False
        self.records: list[tuple[int, bytes]] = []
        self.on_shown: Callable[[Consumer, int, bytes], None] = lambda *_: None
        self.on_back: Callable[[Consumer, str], None] = lambda *_: None
        self.count_losses: Callable[[], int] = lambda: 0
        """How often its shard lost records that it does not owe: then it reads from the start again."""
        self._losses = 0
        self.past_lost: Callable[[int], int] = lambda offset: offset
        """Where a reader continues that gets an error at this offset: behind what a person gave up."""
        self.may_skip: Callable[[int, int], bool] = lambda base_offset, end_offset: False
        """Whether all of these offsets were given up. Batches without records take their place in the log, and a node
        leaves these out of its answers (`serve/fetching/empty_batches.py`)."""
        self._wire = wire
        self._rng = rng

    async def run(self) -> None:
        while not self.is_over:
            try:
                await self._fetch()
            except (OSError, TimeoutError):
                await asyncio.sleep(0.03)
            await asyncio.sleep((0.02 + 0.1 * self._rng.random()) if self.is_at_end else 0.01)

    async def _fetch(self) -> None:
        if self.count_losses() != self._losses:
            self._losses = self.count_losses()
            self.position, self.records = 0, []
        body = (
            struct.pack(">iiiibi", -1, 100, 1, 1 << 20, 0, 1)
            + _text(self.topic)
            + struct.pack(">iiqqi", 1, self.shard, self.position, -1, 1 << 16)
        )
        answer = await self._wire.ask(1, 5, body)
        if self.count_losses() != self._losses:
            return
        at = 4 + 4 + 2 + len(self.topic) + 4
        _, code, high_watermark, _, log_start, aborted = struct.unpack_from(">ihqqqi", answer, at)
        at += 34 + 16 * max(0, aborted)
        size = int.from_bytes(answer[at : at + 4], "big", signed=True)
        if code == OUT_OF_RANGE:
            self._out_of_range(high_watermark, log_start)
        elif code:
            self.is_at_end = False
            self.position = self.past_lost(self.position)
            self._wire.try_next_node()
            await asyncio.sleep(0.03)
        else:
            self._see(answer[at + 4 : at + 4 + max(0, size)])
            self.high_watermark = high_watermark
            self.is_at_end = size <= 0 and self.position >= high_watermark

    def _out_of_range(self, high_watermark: int, log_start: int) -> None:
        if self.position < log_start:
            self.position = self.first_offset = log_start
            self.records = []
        else:
            self.on_back(self, f"at {self.position}, where the log has [{log_start}, {high_watermark})")

    def _see(self, data: memoryview) -> None:
        for at, header in walk(data, source=self.name):
            if header.base_offset > self.position and not self.may_skip(self.position, header.base_offset):
                self.on_back(self, f"a gap: at {self.position} it gets {header.base_offset}")
            found = {one.offset: one.value or b"" for one in decode_records(bytes(data[at : at + header.size_bytes]))}
            for offset in range(max(header.base_offset, self.position), header.end_offset):
                value = found.get(offset, b"~")
                self.records.append((offset, value))
                self.on_shown(self, offset, value)
            self.position = max(self.position, header.end_offset)
