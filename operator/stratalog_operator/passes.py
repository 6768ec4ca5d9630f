"""A pass over a cluster: observe, plan, apply, report. It is level-triggered: what woke it does not matter.

A pass is short: it handles a limited number of topics, and Events are written after it. So the operator notices a dead
pod soon, whatever else there is to do.

Lives in the operator's event loop; never twice at once for the same cluster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_operator.announce import Announcer
from stratalog_operator.apply.parking import Parking
from stratalog_operator.apply.perform import Performed, Performer, let_orphans_go
from stratalog_operator.apply.turns import Turns
from stratalog_operator.apply.writes import Writes
from stratalog_operator.kube.client import Kubernetes
from stratalog_operator.metas import MetaConnection, MetaConnections
from stratalog_operator.observe.archive_runs import cron_jobs_of
from stratalog_operator.observe.certificates import read_own, read_own_of_etcd
from stratalog_operator.observe.cluster_token import read_token
from stratalog_operator.observe.known_users import KnownUsers
from stratalog_operator.observe.objects import observe, observe_cluster, observe_orphans
from stratalog_operator.observe.parse import Unreadable
from stratalog_operator.plan.actions import Plan
from stratalog_operator.plan.deletion import is_going
from stratalog_operator.plan.faults import where_fault
from stratalog_operator.plan.news import News, news, of_actions, of_certificates
from stratalog_operator.plan.observed import Observed, Unread
from stratalog_operator.plan.orphans import OrphanPlan, orphans
from stratalog_operator.plan.scope import cluster_in
from stratalog_operator.plan.unreadable_cluster import plan_unreadable
from stratalog_operator.plan.whole import plan
from stratalog_operator.queue import Key
from stratalog_operator.stats import OperatorStats

log = logger(__name__)

_PROOF_SECONDS: Final = 300.0
"""An operator that does not reach the pods would otherwise wait for them in every pass."""


@dataclass(slots=True)
class _Kept:
    """From pass to pass, of one cluster; nothing but its pace rests on it."""

    parking: Parking = field(default_factory=lambda: Parking(time.monotonic))
    turns: Turns = field(default_factory=Turns)
    users: KnownUsers = field(default_factory=KnownUsers)
    proof_due: float = 0.0
    """When pods are asked again which certificates they show, if a former authority waits for it."""
    failed: list[StratalogError] = field(default_factory=list)
    """Since every topic and user last had its turn: what failed of some must not make the others wait."""


class Passes:
    def __init__(
        self,
        kubernetes: Kubernetes,
        metas: MetaConnections,
        announcer: Announcer,
        stats: OperatorStats,
        namespace: str = "",
    ) -> None:
        """`namespace`: that of the operator's own pods."""
        self._kubernetes = kubernetes
        self._metas = metas
        self._announcer = announcer
        self._stats = stats
        self._kept: dict[Key, _Kept] = {}
        self._version = version("stratalog")
        self._namespace = namespace

    async def run_pass(self, key: Key) -> float | None:
        """Returns after how many seconds the next pass is due; None for a cluster that is not there.

        Raises: StratalogError for what failed; all that did not fail was done."""
        try:
            seen, connection = await self._observe(key)
        except NotFound:
            await self._without(key)
            return None
        except Unreadable as error:
            await self._cannot_read(key, error.about)
            raise
        made = plan(seen)
        for (kind, about), fault in made.faults.items():
            words = "the plan of an object ended on a fault of the operator"
            log.error(words, cluster="/".join(key), object=f"{kind} {about}", **where_fault(fault))
        kept = self._kept.setdefault(key, _Kept())
        done = await self._perform(seen, made, connection, kept)
        kept.failed += done.failed
        if done.left or kept.users.left:
            return 0.0
        failed, kept.failed = kept.failed, []
        _raise(failed)
        return float(made.again_seconds)

    async def let_go(self, key: Key) -> int:
        """Only what is being deleted: of a cluster that goes, or that is not there. Asks no meta service. Returns how
        many actions were done. Raises: StratalogError."""
        namespace, name = key
        try:
            cluster = await observe_cluster(self._kubernetes, namespace, name)
            connection = await self._metas.connect(cluster_in(namespace, cluster), "")
            seen = await observe(self._kubernetes, namespace, name, None, _now(), self._version)
        except NotFound:
            await self._without(key)
            return 0
        except Unreadable as error:
            await self._cannot_read(key, error.about)
            raise
        if not is_going(seen):
            return 0
        done = await self._perform(seen, plan(seen), connection, _Kept())
        _raise(done.failed)
        return done.done

    async def _observe(self, key: Key) -> tuple[Observed, MetaConnection]:
        """A token that cannot be used stops only what needs it: the meta service is not asked, unless the operator has
        a certificate for it. It shows both, because pods of an earlier make may still run."""
        namespace, name = key
        cluster = await observe_cluster(self._kubernetes, namespace, name)
        whole = cluster_in(namespace, cluster)
        token, trouble = "", ""
        try:
            token = await read_token(self._kubernetes, whole)
        except InvalidRequest as error:
            trouble = str(error)
        own = await read_own(self._kubernetes, whole) if whole.has_internal_tls else None
        connection = await self._metas.connect(whole, token, own)
        if whole.has_etcd_tls and connection.etcd is not None:
            connection.etcd.show(await read_own_of_etcd(self._kubernetes, whole))
        is_unknown = own is None if whole.has_internal_tls else bool(trouble)
        observer = None if is_unknown else connection.observer
        kept = self._kept.setdefault(key, _Kept())
        if proves := time.monotonic() >= kept.proof_due:
            kept.proof_due = time.monotonic() + _PROOF_SECONDS
        found = await observe(
            self._kubernetes,
            namespace,
            name,
            observer,
            _now(),
            self._version,
            connection.etcd,
            trouble,
            kept.users,
            proves=proves,
        )
        return replace(found, operator_namespace=self._namespace), connection

    async def _perform(self, seen: Observed, made: Plan, connection: MetaConnection, kept: _Kept) -> Performed:
        performer = Performer(self._kubernetes, connection.requests, kept.parking, kept.turns, connection.etcd)
        done = await performer.perform(seen, made)
        kept.users.note(seen, made)
        undone = frozenset(map(id, done.undone))
        self._stats.actions += done.done
        performed = [one for one in made.actions if id(one) not in undone]
        self._announcer.announce(
            seen.namespace,
            [*news(seen, done.written), *of_actions(performed), *of_certificates(seen, performed)],
        )
        for error in done.refused:
            log.warning("an action was refused", cluster=f"{seen.namespace}/{seen.cluster.name}", error=str(error))
        return done

    async def _cannot_read(self, key: Key, cluster: Unread) -> None:
        """Nothing is done for a cluster whose StorageCluster cannot be read, but what people released by annotations.
        Raises: StratalogError."""
        namespace, name = key
        news_of_it = News(cluster.kind, cluster.name, cluster.uid, True, "InvalidSpec", cluster.words)
        self._announcer.announce(namespace, [news_of_it])
        found, claims = await observe_orphans(self._kubernetes, namespace, name)
        made = plan_unreadable(cluster, found, claims, _now())
        if made.conditions is not None:
            try:
                writes = Writes(self._kubernetes)
                await writes.write_conditions(namespace, cluster.kind, name, cluster.uid, made.conditions)
            except StratalogError as error:  # a definition of another version may refuse them
                log.warning("conditions not written", cluster=f"{namespace}/{name}", error=str(error))
        _raise(await let_orphans_go(self._kubernetes, namespace, OrphanPlan(made.actions, {})))

    async def _without(self, key: Key) -> None:
        namespace, name = key
        await self._metas.forget(key)
        self._kept.pop(key, None)
        found, claims = await observe_orphans(self._kubernetes, namespace, name)
        made = orphans(name, found, claims, _now(), await cron_jobs_of(self._kubernetes, namespace, name))
        _raise(await let_orphans_go(self._kubernetes, namespace, made))


def _raise(failed: list[StratalogError]) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise Unavailable(f"{counted(len(failed), 'action')} failed; the first: {failed[0]}")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
