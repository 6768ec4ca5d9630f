"""What `meta rebuild` says to do next is what was asked for: one node by itself, or a cluster."""

from __future__ import annotations

from pathlib import Path

from stratalog_cli.services.meta_rebuild import _next_steps
from stratalog_meta.stores.etcd.address import EtcdAddress


def test_a_store_in_a_directory_for_one_node_is_what_a_start_takes() -> None:
    step, users = _next_steps(Path("/data"), (1,))
    assert step.startswith("`stratalog start --data /data --bucket URL`; in a cluster start the meta service on it")
    assert step.endswith("and node 1, on an empty --data directory")
    assert "`stratalog users create NAME --meta URL`" in users, "no user can log in to a listener to do it there"


def test_a_store_for_several_nodes_or_over_etcd_needs_a_meta_service() -> None:
    step = "start the meta service on it with --bucket, and nodes 1 and 2, each on an empty --data directory"
    assert _next_steps(Path("/data"), (1, 2))[0] == step
    assert "stratalog start" not in _next_steps(EtcdAddress(("127.0.0.1:2379",), "c"), (7,))[0]
