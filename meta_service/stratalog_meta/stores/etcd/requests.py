"""The store's operations and reads as requests to etcd, and what its answers say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.layout import HEAD, LEADER, TURN, Delete, Operation, Put, end_of
from stratalog_meta.stores.etcd.outcome import Fence, Seen

FIRST_LIMIT: Final = 1_000
PAGE_BYTES: Final = 4 * 1024 * 1024
"""What a page should come to; its number of keys follows from the size of those before."""


class Keys:
    """Requests of one store: every key begins with its prefix."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._leader = prefix + LEADER
        self._turn = prefix + TURN
        head = prefix + HEAD
        self.head_range = rpc.RangeRequest(key=head, range_end=end_of(head))
        """Leader key and `turn` in one moment (`seen_in`)."""

    def without_prefix(self, key: bytes) -> bytes:
        return key.removeprefix(self._prefix)

    def fenced(self, fence: Fence, stamp: bytes, operations: Iterable[Operation]) -> rpc.TxnRequest:
        """A transaction that happens once and under this leader only; refused it tells both keys (`seen_in`)."""
        return rpc.TxnRequest(
            compare=[
                rpc.Compare(target=rpc.Compare.CREATE, key=self._leader, create_revision=fence.leader_revision),
                rpc.Compare(target=rpc.Compare.MOD, key=self._turn, mod_revision=fence.turn_revision),
            ],
            success=[
                rpc.RequestOp(request_put=rpc.PutRequest(key=self._turn, value=stamp)),
                *map(self._operation, operations),
            ],
            failure=[rpc.RequestOp(request_range=self.head_range)],
        )

    def seen_in(self, answer: rpc.RangeResponse) -> Seen:
        """The answer to `head_range`, or of a `fenced` transaction that was refused."""
        found = {pair.key: pair for pair in answer.kvs}
        leader, turn = found.get(self._leader), found.get(self._turn)
        return Seen(
            leader.create_revision if leader else 0,
            turn.mod_revision if turn else 0,
            turn.value if turn else b"",
        )

    def page(self, prefix: bytes, revision: int) -> rpc.RangeRequest:
        """The first keys below `prefix`, as they were at `revision`."""
        key = self._prefix + prefix
        return rpc.RangeRequest(key=key, range_end=end_of(key), limit=FIRST_LIMIT, revision=revision)

    def _operation(self, operation: Operation) -> rpc.RequestOp:
        match operation:
            case Put(key, value):
                return rpc.RequestOp(request_put=rpc.PutRequest(key=self._prefix + key, value=value))
            case Delete(key, end):
                range_end = self._prefix + end if end else b""
                return rpc.RequestOp(
                    request_delete_range=rpc.DeleteRangeRequest(key=self._prefix + key, range_end=range_end)
                )


def following(request: rpc.RangeRequest, page: rpc.RangeResponse) -> rpc.RangeRequest | None:
    """The request for what comes behind `page`, the answer to `request`; None behind the last one."""
    if not page.more:
        return None
    limit = max(1, min(10 * FIRST_LIMIT, PAGE_BYTES * len(page.kvs) // max(page.ByteSize(), 1)))
    key = page.kvs[-1].key + b"\x00"
    return rpc.RangeRequest(key=key, range_end=request.range_end, limit=limit, revision=request.revision)
