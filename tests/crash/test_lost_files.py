"""Pieces of a node's disk are lost or wrong at a start: what can be derived is derived again, what cannot is said."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.batches.record_batch import check_batch, walk
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import Corrupt
from support.crash_drill import SETTINGS, command, paced
from support.history import Outcome, Place, Sent, anomalies
from support.ledger import create_topics, read_logs
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.waiting import eventually_sync

PLACE: Place = ("orders", 0)
_SEALED = 9
"""Segments of three records each; the tenth is active."""
LOCAL: dict[str, Any] = SETTINGS | {"log.local.retention.ms": -1, "log.roll.ms": 3_600_000}


class Shop:
    """A node with one shard of several sealed segments and an active one."""

    def __init__(self, tmp_path: Path) -> None:
        self.node = NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), LOCAL)
        self.sent: list[Sent] = []

    def open(self, **settings: str) -> Shop:
        self.node.start()
        create_topics(self.node.bootstrap, {"orders": (1, settings)})
        for _ in range(3 * _SEALED + 3):
            self.write()
        eventually_sync(lambda: len(self.files("*.idx")) == _SEALED, 30)
        return self

    def write(self) -> None:
        value = b"%d " % len(self.sent) + b"x" * 5_000
        batch = encode_batch([Record(NEXT_OFFSET, time.time_ns() // 1_000_000, None, value)])
        with RawClient(self.node.bootstrap) as client:
            produced = client.produce("orders", batch)
        assert produced.error_code == 0, produced
        self.sent.append(Sent("writer", PLACE, value, Outcome.OK, produced.base_offset))

    def check(self) -> None:
        with RawClient(self.node.bootstrap) as client:
            found = anomalies(self.sent, read_logs(client, [PLACE]))
        assert not found, [str(anomaly)[:150] for anomaly in found]

    def files(self, pattern: str) -> list[Path]:
        return sorted((self.node.data_dir / "node" / "segments").rglob(pattern))

    def uploaded(self) -> None:
        eventually_sync(
            paced(lambda: self.node.metrics()["stratalog_tier_segments_completed_total"] >= _SEALED, 0.1), 30
        )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.node.kill()


@pytest.mark.fault("index-lost-wrong-data")
@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "another segment's"])
def test_an_index_block_that_is_lost_or_wrong_is_made_again_from_its_segment(shop: Shop, how: str) -> None:
    shop.open(**{"remote.storage.enable": "false"})
    shop.node.kill()
    for number, path in enumerate(indexes := shop.files("*.idx")):
        data = bytearray(path.read_bytes())
        match how:
            case "gone":
                path.unlink()
            case "cut":
                path.write_bytes(data[: len(data) // 2])
            case "flipped":
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
            case _:
                shutil.copyfile(indexes[number - 1], path)
    shop.node.start()
    shop.check()
    shop.write()
    shop.check()


@pytest.mark.fault("index-lost-wrong-data")
def test_lost_checkpoints_cost_a_longer_scan_and_nothing_else(shop: Shop) -> None:
    shop.open(**{"remote.storage.enable": "false"})
    shop.node.stop()
    shutil.rmtree(shop.node.data_dir / "node" / "checkpoints")
    shop.node.start()
    shop.check()
    shop.write()
    shop.check()


@pytest.mark.fault("index-lost-wrong-data")
def test_a_lost_sealed_file_is_read_from_the_bucket(shop: Shop) -> None:
    """The index is there and the data is not: the copy in the bucket serves, and checks report the loss."""
    shop.open()
    shop.uploaded()
    shop.node.kill()
    lost = shop.files("*.seg")[2]
    lost.unlink()
    shop.node.start()
    shop.check()
    assert shop.node.metrics()["stratalog_log_cold_reads_total"] > 0


@pytest.mark.fault("index-lost-wrong-data")
@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_what_is_nowhere_else_is_an_error_and_never_skipped(shop: Shop, how: str) -> None:
    """No second copy: a reader gets an error there, not the records behind it; the other segments serve."""
    shop.open(**{"remote.storage.enable": "false"})
    shop.node.kill()
    victim = shop.files("*.seg")[2]
    base_offset = int(victim.name.partition("-")[0])
    if how == "gone":
        victim.unlink()
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    shop.node.start()
    with RawClient(shop.node.bootstrap) as client:
        assert outcome(client, 0) == "whole"
        wanted = ["error"] * 3 if how == "gone" else ["whole", "error", "whole"]
        for _ in range(2):
            assert [outcome(client, offset) for offset in range(base_offset, base_offset + 3)] == wanted
        assert outcome(client, base_offset + 3) == "whole"
    found = command_findings("verify", "--admin", shop.node.admin)
    assert victim.name.removesuffix(".seg").partition("-")[0].lstrip("0") in found
    shop.node.stop()
    assert victim.name.removesuffix(".seg") in command_findings("doctor", "-o", "json", str(shop.node.data_dir))


def outcome(client: RawClient, offset: int) -> str:
    """What a reader of one batch meets."""
    fetched = client.fetch("orders", offset, partition_max_bytes=1, max_wait_ms=0)[0]
    if fetched.error_code:
        assert fetched.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE), fetched.error_code
        return "error"
    (batch,) = walk(fetched.records, source="fetch", verify=False)
    assert batch[1].base_offset == offset, "nothing is skipped"
    try:
        check_batch(fetched.records, source="fetch")
    except Corrupt:
        return "damaged"
    return "whole"


def command_findings(*arguments: str) -> str:
    """What a command that must find something prints."""
    try:
        printed = command(*arguments)
    except AssertionError as findings:
        return str(findings)
    raise AssertionError(f"stratalog {' '.join(arguments)} finds nothing: {printed}")
