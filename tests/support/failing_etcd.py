"""Clients of a real etcd on a bad day: one that is killed at a chosen transaction, one whose answers get lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.client import EtcdAway, EtcdClient
from support.etcd_stores import QUICK


class MortalClient(EtcdClient):
    """Whoever uses it is dead from its `last` writing transaction on: before it was sent, or before it was answered."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        super().__init__(endpoints, policy=QUICK)
        self.last: int | None = None
        self.is_sent = False
        self.written = 0
        """Transactions that move `turn`, since the last `dies_at`."""

    def dies_at(self, last: int, *, is_sent: bool) -> None:
        self.last, self.is_sent, self.written = last, is_sent, 0

    async def txn(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        self.written += 1
        if self.last is None or self.written < self.last:
            return await super().txn(request)
        if self.is_sent and self.written == self.last:
            await super().txn(request)
        raise EtcdAway("killed")


class LossyClient(EtcdClient):
    """Every second attempt is done, and its answer lost."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        super().__init__(endpoints, policy=QUICK)
        self.is_lossy = False
        self._attempts = 0

    async def _attempt(self, *asked: Any) -> Any:
        answer = await super()._attempt(*asked)
        self._attempts += 1
        if self.is_lossy and self._attempts % 2:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, nothing, nothing, "the answer was lost")
        return answer
