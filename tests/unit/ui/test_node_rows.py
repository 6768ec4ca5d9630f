"""Rows of nodes: what the metadata say, and what the process that shows the page knows besides."""

from __future__ import annotations

from dataclasses import replace

from stratalog.admin_api.models import ColdReadStatus, NodeStatus
from stratalog.model.views.status_page import NodeRow
from stratalog.ui.host import Process
from stratalog.ui.pages.nodes import cold_read_words, shown_nodes, unnoticed

ROW = NodeRow(1, "alive", "127.0.0.1:9092", None, 11, 11, -1, -1, -1, True, None, (), 0, "")


def own_status(bucket: str | None) -> NodeStatus:
    return NodeStatus.model_construct(
        node_id=1, bucket=bucket, upload_lag_bytes=7, disk_free_bytes=30 << 30, disk_total_bytes=90 << 30
    )


def process(name: str, state: str, kafka: str) -> Process:
    return Process(name, state, "killed by SIGKILL", False, {"kafka": kafka})


def test_the_services_own_node_shows_its_disk_and_upload_lag() -> None:
    other = replace(ROW, node_id=2, state="not alive")
    (own, still), (dry, _) = (shown_nodes([ROW, other], own_status(bucket)) for bucket in ("file:///b", None))
    assert (own.disk_free_bytes, own.disk_total_bytes) == (30 << 30, 90 << 30)
    assert own.uploads is not None and own.uploads.unsent_bytes == 7
    assert dry.disk_free_bytes == 30 << 30 and dry.uploads is None, "it has no object store"
    assert still == other


def test_a_node_whose_process_ended_is_not_shown_as_alive_until_its_lease_ends() -> None:
    second = replace(ROW, node_id=2, address="127.0.0.1:9093")
    processes = [process("node-1", "ended", ROW.address), process("node-2", "ready", second.address)]
    assert [one.state for one in shown_nodes([ROW, second], None, processes)] == ["ended", "alive"]
    assert unnoticed([ROW, second], processes) == [1]
    noticed = replace(ROW, state="not alive")
    assert [one.state for one in shown_nodes([noticed], None, processes)] == ["not alive"]
    assert unnoticed([noticed], processes) == []


def test_reads_from_the_object_store_show_whether_the_memory_is_enough() -> None:
    reads = ColdReadStatus(readers=2, fetched_bytes=3 << 20, served_bytes=6 << 20, held_bytes=1 << 20)
    assert cold_read_words(reads) == "for 2 readers; 3.0 MiB fetched; 1.0 MiB in memory"
    scarce = reads.model_copy(update={"refetched_bytes": 2 << 20, "throttled": 1})
    assert cold_read_words(scarce) == (
        "for 2 readers; 3.0 MiB fetched, 2.0 MiB of it once more, for want of memory, 1 read held up by a limit; "
        "1.0 MiB in memory"
    )
