"""What clients have used of their quotas. What is counted together (`AppliedQuota`) has one rate.

A connection keeps its `ClientUsage` and with it the rates, so what a connected client owes is never forgotten. Of those
that are gone the most recent are kept, so that a client does not lose its debt by connecting again; their number is
bounded, because a client may use another name for each request.
Pure. Cost of `of`: 20 us where some key is limited; connections ask again when a quota or their client id changes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from stratalog.machines.quotas.rates import LONGEST_WAIT_MS, UsageRate, Windows
from stratalog.machines.quotas.table import QuotaTable
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.quotas import QuotaKey

MOST_KEPT: Final = 10_000
"""Rates of clients that may be gone: some 3 MB."""
_Name: TypeAlias = tuple[QuotaKey, str | None, str | None]


class MutationTokens:
    """How many partitions may be created and deleted (KIP-599): a bucket that holds what all windows allow.

    A request is taken as long as the bucket is not in debt, however many tokens it takes.
    """

    __slots__ = ("__weakref__", "_bucket", "_limit", "_windows")

    def __init__(self, limit: float, windows: Windows, now_ms: int) -> None:
        self._limit = limit
        self._windows = windows
        self._bucket = TokenBucket(limit, self._burst(limit), now_ms)

    def change_limit(self, limit: float, now_ms: int) -> None:
        """What is owed stays owed, and is paid at the new rate."""
        if limit != self._limit:
            self._limit = limit
            self._bucket.change_rate(limit, self._burst(limit), now_ms)

    def charge_strictly(self, tokens: float, now_ms: int) -> int:
        """Returns 0 and takes them, or how many milliseconds to wait until some may be taken."""
        level = self._bucket.level(now_ms)
        if level < 0:
            return max(1, _wait_ms(-level / self._limit * 1_000))
        self._bucket.consume(tokens, now_ms)
        return 0

    def charge(self, tokens: float, now_ms: int) -> int:
        """Takes them in any case. Returns: how many milliseconds to wait afterwards."""
        return _wait_ms(self._bucket.consume(tokens, now_ms))

    def _burst(self, limit: float) -> float:
        return limit * self._windows.longest_ms / 1_000


def _wait_ms(wait_ms: float) -> int:
    return LONGEST_WAIT_MS if wait_ms >= LONGEST_WAIT_MS else round(wait_ms)


class ClientUsage:
    """Of a client with at least one quota. None: nothing limits it in this."""

    __slots__ = ("client_id", "fetched", "mutations", "produced", "requests", "revision", "user")

    def __init__(self, revision: int, user: str, client_id: str) -> None:
        self.revision = revision
        """Of the quotas that these come from."""
        self.user = user
        self.client_id = client_id
        self.produced: UsageRate | None = None
        self.fetched: UsageRate | None = None
        self.requests: UsageRate | None = None
        self.mutations: MutationTokens | None = None


class UsageOfClients:
    """Hands out usages. Invariant: at most `MOST_KEPT` rates, and those that connections have."""

    def __init__(self, quotas: QuotaTable, windows: Windows, mutation_windows: Windows) -> None:
        self._quotas = quotas
        self._windows = windows
        self._mutation_windows = mutation_windows
        self._rates: WeakValueDictionary[_Name, UsageRate | MutationTokens] = WeakValueDictionary()
        self._recent: OrderedDict[_Name, UsageRate | MutationTokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, user: str, client_id: str, now_ms: int) -> ClientUsage:
        """By the present quotas. A rate that others share gets its present limit at once."""
        usage = ClientUsage(self._quotas.revision, user, client_id)
        usage.produced = self._rate(QuotaKey.PRODUCER_BYTE_RATE, user, client_id)
        usage.fetched = self._rate(QuotaKey.CONSUMER_BYTE_RATE, user, client_id)
        usage.requests = self._rate(QuotaKey.REQUEST_PERCENTAGE, user, client_id)
        usage.mutations = self._tokens(user, client_id, now_ms)
        return usage

    def _rate(self, key: QuotaKey, user: str, client_id: str) -> UsageRate | None:
        applied = self._quotas.of_client(key, user, client_id)
        if applied is None:
            return None
        name = key, applied.user, applied.client_id
        rate = self._rates.get(name)
        if not isinstance(rate, UsageRate):
            # The time that requests take is limited for the others' sake: a window later they have had theirs.
            bounds = (self._windows.size_ms,) if key is QuotaKey.REQUEST_PERCENTAGE else ()
            rate = self._rates[name] = UsageRate(applied.limit, self._windows, *bounds)
        rate.limit = applied.limit
        self._keep(name, rate)
        return rate

    def _tokens(self, user: str, client_id: str, now_ms: int) -> MutationTokens | None:
        applied = self._quotas.of_client(QuotaKey.CONTROLLER_MUTATION_RATE, user, client_id)
        if applied is None:
            return None
        name = QuotaKey.CONTROLLER_MUTATION_RATE, applied.user, applied.client_id
        tokens = self._rates.get(name)
        if not isinstance(tokens, MutationTokens):
            tokens = self._rates[name] = MutationTokens(applied.limit, self._mutation_windows, now_ms)
        tokens.change_limit(applied.limit, now_ms)
        self._keep(name, tokens)
        return tokens

    def _keep(self, name: _Name, rate: UsageRate | MutationTokens) -> None:
        self._recent[name] = rate
        self._recent.move_to_end(name)
        if len(self._recent) > MOST_KEPT:
            self._recent.popitem(last=False)
