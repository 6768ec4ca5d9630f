"""A process that cannot start says why, exits 3, and leaves nothing behind; so does each part of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog.settings.process import ProcessSettings
from stratalog_cli.sidecars import Sidecars
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from support.held import held
from support.node_process import NodeFailed, NodeProcess
from support.waiting import eventually


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_a_process_whose_admin_address_is_taken_says_so_and_the_next_one_starts(tmp_path: Path, taken: str) -> None:
    node = NodeProcess(tmp_path / "data", None, {"metrics.listen": taken})
    node.bootstrap = "127.0.0.1:0"
    with pytest.raises(NodeFailed, match="ended with code 3") as failure:
        node.start()
    assert f"cannot start: metrics.listen={taken}" in str(failure.value) and "Traceback" not in str(failure.value)
    node.settings["metrics.listen"] = "127.0.0.1:0"
    with node:
        assert node.admin


async def test_sidecars_that_cannot_all_start_leave_nothing_behind(tmp_path: Path, taken: str) -> None:
    meta = MetaService(MemoryStore(), wall_ms)
    await meta.start()
    settings = ProcessSettings(metrics_listen=taken, meta_listen="127.0.0.1:0", offsets_topic_num_partitions=1)
    node = StorageNode(settings, tmp_path / "node", Listen("127.0.0.1", 0), meta, None)
    await node.start()
    before = held()
    with pytest.raises(Unavailable, match=r"metrics\.listen"):
        await Sidecars(node, meta, settings, tmp_path).start()
    await eventually(lambda: held() <= before)
    await node.close()
    await meta.close()
