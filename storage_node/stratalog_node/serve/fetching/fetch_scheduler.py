"""What all fetches of the listener share: how many partitions they may check in a turn.

All together check a limited number of partitions in a turn of the loop, however many connections ask or wait: the
others follow in the next turns, in the order of their notifications. Lives on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from stratalog.kafka.error_codes import ErrorCode
from stratalog_node.serve.connections.client_quotas import QuotasOfClients
from stratalog_node.serve.connections.serving import Serving
from stratalog_node.serve.connections.unknown_shards import missing_shard_error
from stratalog_node.serve.fetching.read_replicas import ReadReplicas
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.read.reading import ShardReader

_PARTITIONS_PER_TURN = 2_000
"""So many partitions may fetches look at in a turn, whoever woke them: 5 to 15 ms."""


class Retried(Protocol):
    """A fetch that looks again."""

    @property
    def weight(self) -> int:
        """The cost of one check, in partitions."""
        ...

    def retry(self) -> None: ...

    def fail(self, error: Exception) -> None:
        """`retry` raised. Never raises itself."""
        ...


class FetchScheduler:
    def __init__(
        self,
        serving: Serving,
        catalog: Catalog,
        shards: ShardDirectory,
        reader: ShardReader,
        replicas: ReadReplicas,
        quotas: QuotasOfClients,
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """`catch_up`: see `CatalogLag`."""
        self.loop = serving.loop
        self.turn = serving.turn
        self.limits = serving.limits
        self.stats = serving.stats
        self.reader = reader
        self.replicas = replicas
        self.quotas = quotas
        self.shard_of = shards.read_by_name
        self._catalog = catalog
        self._shards = shards
        self.catch_up = catch_up
        self._retrying: deque[Retried] = deque()
        self._partitions_left = _PARTITIONS_PER_TURN
        serving.turn.after_shards.append(self._retry)

    @property
    def shard_count(self) -> int:
        """Shards that may be fetched from here."""
        return self._shards.count

    def missing_shard_error(self, topic: str, shard: int) -> int:
        """Never LEADER_NOT_AVAILABLE, as elsewhere: Kafka's brokers do not answer it to a fetch, and the Java consumer
        raises IllegalStateException when it gets it."""
        code = missing_shard_error(self._catalog, topic, shard)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if code == ErrorCode.LEADER_NOT_AVAILABLE else code

    def may_check(self, weight: int) -> bool:
        """Whether a fetch may check this many partitions now; they then count against the turn's limit. False once the
        limit is used up, or while other fetches wait for their check."""
        if self._partitions_left <= 0 or self._retrying:
            return False
        self._partitions_left -= weight
        return True

    def retry(self, fetch: Retried) -> None:
        """It looks again at the end of this turn, or of one to come."""
        self._retrying.append(fetch)
        self.turn.request()

    def _retry(self) -> None:
        self._partitions_left = _PARTITIONS_PER_TURN
        fetches = self._retrying
        while fetches and self._partitions_left > 0:
            fetch = fetches.popleft()
            # the check may decode the request, which can name fewer partitions than its size suggests
            weight = fetch.weight
            try:
                fetch.retry()
            except Exception as error:  # one fetch's fault must not take the turn of all others (F48)
                fetch.fail(error)
            self._partitions_left -= weight
        if fetches:
            self.turn.request()
