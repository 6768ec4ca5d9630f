"""A small etcd in memory, and a network to it that loses, delays and refuses as a script says.

It keeps the rules of etcd on which the store rests: revisions, comparisons, a key at most once in a transaction, the
limits, and a transaction that is carried out although it is refused for lack of space.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from itertools import cycle

import grpc

from stratalog.model.errors import Unavailable
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.client import EtcdAway, EtcdStats, NoSpace


class MemoryEtcd:
    """Keys with their revisions."""

    def __init__(self, max_operations: int = 128) -> None:
        self.kvs: dict[bytes, rpc.KeyValue] = {}
        self.revision = 1
        self._max_operations = max_operations

    def put(self, key: bytes, value: bytes, revision: int) -> None:
        known = self.kvs.get(key)
        created = known.create_revision if known is not None else revision
        self.kvs[key] = rpc.KeyValue(key=key, value=value, create_revision=created, mod_revision=revision)

    def new_leader(self, key: bytes) -> int:
        """Another holds the leader key; returns its create revision."""
        self.revision += 1
        self.kvs.pop(key, None)
        self.put(key, b"somebody", self.revision)
        return self.revision

    def range(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        end = request.range_end or request.key + b"\x00"
        found = sorted(key for key in self.kvs if request.key <= key < end)
        limit = request.limit or len(found)
        return rpc.RangeResponse(
            header=rpc.ResponseHeader(revision=self.revision),
            kvs=[self.kvs[key] for key in found[:limit]],
            more=len(found) > limit,
        )

    def txn(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        held = all(self._holds(compare) for compare in request.compare)
        chosen = request.success if held else request.failure
        assert len(chosen) <= self._max_operations
        self._check_each_key_once(chosen)
        writes = [one for one in chosen if not one.HasField("request_range")]
        if writes:
            self.revision += 1
        answers = [self._perform(one) for one in chosen]
        return rpc.TxnResponse(header=rpc.ResponseHeader(revision=self.revision), succeeded=held, responses=answers)

    def _holds(self, compare: rpc.Compare) -> bool:
        known = self.kvs.get(compare.key) or rpc.KeyValue()
        if compare.target == rpc.Compare.CREATE:
            return known.create_revision == compare.create_revision
        assert compare.target == rpc.Compare.MOD
        return known.mod_revision == compare.mod_revision

    def _check_each_key_once(self, chosen: object) -> None:
        puts: set[bytes] = set()
        deletes: list[tuple[bytes, bytes]] = []
        for one in chosen:  # type: ignore[attr-defined]
            if one.HasField("request_put"):
                assert one.request_put.key not in puts, "etcd: duplicate key given in txn request"
                puts.add(one.request_put.key)
            elif one.HasField("request_delete_range"):
                asked = one.request_delete_range
                deletes.append((asked.key, asked.range_end or asked.key + b"\x00"))
        for key in puts:
            assert not any(begin <= key < end for begin, end in deletes), "etcd: duplicate key given in txn request"

    def _perform(self, one: rpc.RequestOp) -> rpc.ResponseOp:
        if one.HasField("request_range"):
            return rpc.ResponseOp(response_range=self.range(one.request_range))
        if one.HasField("request_put"):
            self.put(one.request_put.key, one.request_put.value, self.revision)
        else:
            asked = one.request_delete_range
            end = asked.range_end or asked.key + b"\x00"
            for key in [key for key in self.kvs if asked.key <= key < end]:
                del self.kvs[key]
        return rpc.ResponseOp()


class Fate(Enum):
    """What the network does to a transaction."""

    DONE = auto()
    LOST = auto()
    """It never arrives, and there is no answer."""
    UNANSWERED = auto()
    """It is done, without an answer."""
    DELAYED = auto()
    """There is no answer, and it arrives behind some later ones."""
    DELAYED_THEN_NO_SPACE = auto()
    """The first attempt is delayed, the second one refused for lack of space."""
    REPEATED = auto()
    """It is done twice, and the second answer is returned."""
    NO_SPACE = auto()
    """Refused for lack of space and not done."""
    LAST_SPACE = auto()
    """Done, and refused for lack of space."""


class ScriptedClient:
    """Stands for `EtcdClient`: each transaction meets the fate that `fates` gives next."""

    def __init__(self, etcd: MemoryEtcd, next_fate: Callable[[], Fate]) -> None:
        self._etcd = etcd
        self._next_fate = next_fate
        self._delays = cycle((0, 5, 1, 12, 2))
        self._delayed: list[tuple[int, rpc.TxnRequest]] = []
        """Each with the number of transactions that go before it."""
        self.stats = EtcdStats()

    async def range(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        return self._etcd.range(request)

    async def txn(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        fate = self._next_fate()
        self._let_arrive(1)
        match fate:
            case Fate.DONE:
                return self._etcd.txn(request)
            case Fate.LOST:
                raise EtcdAway("nobody answered")
            case Fate.UNANSWERED:
                self._etcd.txn(request)
                raise EtcdAway("nobody answered")
            case Fate.DELAYED | Fate.DELAYED_THEN_NO_SPACE:
                self._delayed.append((next(self._delays), rpc.TxnRequest.FromString(request.SerializeToString())))
                if fate is Fate.DELAYED:
                    raise EtcdAway("nobody answered")
                refusal = NoSpace("database space exceeded", grpc.StatusCode.RESOURCE_EXHAUSTED)
                refusal.is_certain = False
                raise refusal
            case Fate.REPEATED:
                self._etcd.txn(request)
                return self._etcd.txn(request)
            case Fate.NO_SPACE | Fate.LAST_SPACE:
                if fate is Fate.LAST_SPACE:
                    self._etcd.txn(request)
                raise NoSpace("database space exceeded", grpc.StatusCode.RESOURCE_EXHAUSTED)

    def let_delayed_arrive(self) -> None:
        self._let_arrive(1_000)

    def _let_arrive(self, gone: int) -> None:
        waiting, self._delayed = self._delayed, []
        for left, request in waiting:
            if left >= gone:
                self._delayed.append((left - gone, request))
            else:
                self._etcd.txn(request)


class ToldLeadership:
    """Leads while the test says so."""

    def __init__(self, revision: int) -> None:
        self._revision = revision
        self.is_lost = False

    @property
    def revision(self) -> int:
        if self.is_lost:
            raise Unavailable("it does not lead")
        return self._revision

    def lose(self, why: str) -> None:
        self.is_lost = True
