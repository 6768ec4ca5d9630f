"""The power-cut drill under the default flush policy: acknowledged from the page cache, uploaded at once, flushed late.

An unflushed tail may be lost, and nothing else: `PowerDrill.round` writes, deletes records now and then, cuts the power
and judges each shard when it serves again. What must hold:
  every shard serves again by itself, whatever metadata and bucket know beyond the disk;
  what was there before the cut is there up to some offset, unchanged, and nothing of it behind that;
  what the bucket had is there; topics that flush before they answer have everything;
  no epoch and offset ever stands for two records.
One thread, one client. Everything random comes from the seed, the scheduling of the machine excepted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import decode_records
from stratalog.kafka.error_codes import ErrorCode
from support import kafka_oracle
from support.crash_drill import SETTINGS, command
from support.history import Place
from support.ledger import create_topics
from support.power_cut import PoweredNode
from support.raw_client import RawClient, batch_of
from support.waiting import eventually_sync

_TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "busy": (3, {}),
    "shrinking": (2, {}),
    "flushed": (2, {"flush.policy": "fsync"}),
}
_PLACES: list[Place] = [(name, shard) for name, (shards, _) in _TOPICS.items() for shard in range(shards)]
_EARLIEST, _LATEST, _LAST_TIERED = -2, -1, -5
_SERVES_S = 40.0


class PowerDrill:
    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.node = PoweredNode(folder / "data", str(folder / "bucket"), SETTINGS | {"flush.interval.ms": 3_000})
        self.logs: dict[Place, dict[int, bytes]] = {place: {} for place in _PLACES}
        """What a reader would get now: offset -> value, as far as it was acknowledged or read."""
        self.ever: dict[tuple[Place, int, int], bytes] = {}
        """(place, epoch, offset) -> value, over all lives."""
        self.sent: set[bytes] = set()
        self.rounds = self.lost_records = self.healed_shards = self.taken_bytes = 0

    def begin(self) -> None:
        self.node.start()
        create_topics(self.node.bootstrap, _TOPICS)

    def round(self) -> None:
        self.rounds += 1
        with RawClient(self.node.bootstrap, timeout=30.0) as client:
            self._write(client, self.chance.uniform(0.2, 1.2))
            if self.chance.random() < 0.5:
                self._delete_some(client)
            tiered = {place: self._offset(client, place, _LAST_TIERED) for place in _PLACES}
        self._cut()
        while self.chance.random() < 0.3:
            self.node.start()
            time.sleep(self.chance.uniform(0.0, 0.3))
            if self.chance.random() < 0.5:
                self._cut()
            else:
                self.node.kill()
        self.node.start()
        with RawClient(self.node.bootstrap, timeout=30.0) as client:
            for place in _PLACES:
                self._judge(client, place, tiered[place])
            self.healed_shards += int(self.node.metrics()["stratalog_log_healed_shards_total"])
        print(f"round {self.rounds} (seed {self.seed}): {self.lost_records} records lost so far")

    def _cut(self) -> None:
        self.node.kill()
        self.taken_bytes += sum(self.node.cut(self.chance).values())

    # Writing --------------------------------------------------------------------------------------------------------
    def _write(self, client: RawClient, for_s: float) -> None:
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            place = self.chance.choice(_PLACES)
            value = b"%d" % len(self.sent)
            self.sent.add(value)
            padded = value.ljust(self.chance.choice([50, 500, 3_000]), b".")
            produced = client.produce(place[0], batch_of(padded), partition=place[1])
            assert produced.error_code == 0, f"{place}: {ErrorCode(produced.error_code).name} {produced.error_message}"
            assert produced.base_offset not in self.logs[place], f"{place}: offset {produced.base_offset} given twice"
            self.logs[place][produced.base_offset] = value

    def _delete_some(self, client: RawClient) -> None:
        place = ("shrinking", self.chance.randrange(2))
        log = self.logs[place]
        if not log:
            return
        offset = self.chance.randint(min(log), max(log) + 1)
        topic = kafka_oracle.request_class(21).DeleteRecordsTopic
        partition = topic.DeleteRecordsPartition(version=1, partition_index=place[1], offset=offset)
        topics = [topic(version=1, name=place[0], partitions=[partition])]
        answer = client.call(21, 1, topics=topics, timeout_ms=10_000)
        assert answer.topics[0].partitions[0].error_code == 0, answer
        self.logs[place] = {at: value for at, value in log.items() if at >= offset}

    # Judging --------------------------------------------------------------------------------------------------------
    def _judge(self, client: RawClient, place: Place, last_tiered: int) -> None:
        found = {}
        for epoch, offset, value in self._read(client, place):
            assert value in self.sent, self._verdict(place, f"{value!r} at {offset} was never sent")
            known = self.ever.setdefault((place, epoch, offset), value)
            assert known == value, self._verdict(place, f"epoch {epoch}, offset {offset} was {known!r}, is {value!r}")
            found[offset] = value
        values = list(found.values())
        assert len(set(values)) == len(values), self._verdict(place, "a record is there twice")
        before = self.logs[place]
        lost = [offset for offset, value in before.items() if found.get(offset) != value]
        if lost:
            first = min(lost)
            assert place[0] != "flushed", self._verdict(place, f"acknowledged offsets are lost: {lost}")
            assert first > last_tiered, self._verdict(place, f"{lost} are lost, the bucket had up to {last_tiered}")
            back = [offset for offset, value in before.items() if offset > first and found.get(offset) == value]
            assert not back, self._verdict(place, f"{lost} are lost, though {back} behind them are there")
            self.lost_records += len(lost)
        self.logs[place] = found

    def _read(self, client: RawClient, place: Place) -> Iterator[tuple[int, int, bytes]]:
        """Epoch, offset and value of each record."""
        offset = self._offset(client, place, _EARLIEST)
        end = self._offset(client, place, _LATEST)
        assert offset <= end, self._verdict(place, f"the log start {offset} is above the end {end}")
        while offset < end:
            data = self._fetch(client, place, offset)
            for position, header in walk(data, source=str(place)):
                for record in decode_records(data[position : position + header.size_bytes]):
                    if record.offset >= offset:
                        yield header.epoch, record.offset, (record.value or b"").rstrip(b".")
                offset = header.end_offset

    def _fetch(self, client: RawClient, place: Place, offset: int) -> bytes:
        answers = []

        def has_data() -> bool:
            answers[:] = client.fetch(place[0], offset, partitions=(place[1],), max_wait_ms=100)
            code = answers[0].error_code
            assert code in (0, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR), ErrorCode(code).name
            return code == 0 and bool(answers[0].records)

        eventually_sync(has_data, _SERVES_S)
        return bytes(answers[0].records)

    def _offset(self, client: RawClient, place: Place, timestamp: int) -> int:
        """ListOffsets, once the shard can answer it."""
        found: list[Any] = []
        request = kafka_oracle.request_class(2)

        def is_answered() -> bool:
            partition = request.ListOffsetsTopic.ListOffsetsPartition(
                version=9, partition_index=place[1], current_leader_epoch=-1, timestamp=timestamp
            )
            topics = [request.ListOffsetsTopic(version=9, name=place[0], partitions=[partition])]
            answer = client.call(2, 9, replica_id=-1, isolation_level=0, topics=topics)
            found[:] = [answer.topics[0].partitions[0]]
            return found[0].error_code == 0

        try:
            eventually_sync(is_answered, _SERVES_S)
        except AssertionError:
            status = command("status", "--admin", self.node.admin)
            raise AssertionError(self._verdict(place, f"does not serve: {found}\n{status}")) from None
        return int(found[0].offset)

    def _verdict(self, place: Place, what: str) -> str:
        return f"{place} in round {self.rounds} (seed {self.seed}): {what}"

    def finish(self) -> None:
        """Raises: AssertionError when a copy is not what it should be."""
        self.node.restart()
        with RawClient(self.node.bootstrap, timeout=30.0) as client:
            for place in _PLACES:
                before = dict(self.logs[place])
                self._judge(client, place, -1)
                assert self.logs[place] == before, self._verdict(place, "a stop in order changed the log")
        command("verify", "--admin", self.node.admin)
        self.node.stop()
