"""A cluster of the product's own processes in virtual time, driven by one number.

The world has machines, a network, a bucket, and clients. On the machines run `StorageNode` and `MetaService` as they
are in production; the kernel that they ask is simulated (`kernel.py`). Faults act for some seconds of virtual time.
After that, everything that the cluster promised must be readable within a minute.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import structlog

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import AlreadyExists, StratalogError
from stratalog.settings.choices import FlushPolicy
from stratalog.settings.process import ProcessSettings
from stratalog_meta import service as meta_service
from stratalog_meta.retirements import Retirements
from stratalog_node.disk import checkpoints, ends_in_memory, threads, write_behind
from stratalog_node.groups import coordinator
from stratalog_node.groups.hosting import CoordinatorLimits
from stratalog_node.groups.log import LogLimits
from stratalog_node.node import Listen, StorageNode
from stratalog_node.serve.connections import listeners
from stratalog_node.tier.cold import cold_reader
from stratalog_node.tier.uploads import encoder
from stratalog_sim.broken import Broken
from stratalog_sim.product import key_value, pools
from stratalog_sim.product.bucket import Bucket, BucketClient
from stratalog_sim.product.clients import Consumer, Producer, Wire
from stratalog_sim.product.groups.group_clients import (
    ALONE,
    SESSION_S,
    GroupMember,
    GroupReader,
    GroupWatcher,
    LoneConsumer,
)
from stratalog_sim.product.groups.group_truth import GroupTruth
from stratalog_sim.product.kernel import ROOT, Kernel
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.machine import MEMORY, PROCESS, Machine, Process
from stratalog_sim.product.meta_host import MetaHost, MetaLink
from stratalog_sim.product.network import SOCKETS, Network, Socket
from stratalog_sim.product.pools import Pool
from stratalog_sim.product.truth import LAYOUT, Truth
from stratalog_sim.product.uploads.stored_copies import StoredCopies
from support.history import Log, Outcome, Seen, Sent, anomalies

LEASE_MS: Final = 600
PATIENCE_MS: Final = 500
VERIFY_MS: Final = 400
"""The least time between the two checks that allow the release of a node."""
_RETIREMENTS_POLL_S: Final = 0.2
STALL_MS: Final = 1_000
REPLACE_AFTER_MS: Final = 2_000
PORT: Final = 9_092
CALM_S: Final = 60.0
TOPIC: Final = "flights"
_PLAYED: Final = count()
_PLAYS_PER_COLLECTION: Final = 20
"""A full collection takes a fifth of the time of a world, or more in a large process."""
_GROUP_LOG: Final = LogLimits(snapshot_min_bytes=2_000, chunk_entries=2)
"""Snapshots are frequent, and in several appends."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed is about; the rest of it is drawn."""

    nodes: int = 3
    replicas: int = 3
    shards: int | None = None
    is_fsync: bool | None = None
    is_quorum: bool | None = None
    has_bucket: bool | None = None
    has_groups: bool | None = None
    has_consumer_protocol: bool | None = None
    hangs: bool = False
    """Disks hang, and nothing else is wrong: see `leaders/hanging.py`."""
    directories: bool = False
    """Directories are damaged, put back and copied: see `directories.py`."""
    fails_over: bool = False
    """What is wrong is wrong with leaders: see `leaders/failovers.py`."""
    hands_over: bool = False
    """Shards move from leader to leader, and the old ones hear of it late: see `leaders/handovers.py`."""
    late_news: tuple[str, ...] = ()
    """What leaders hear too late, each as often as it is here: see `leaders/late_news.py`."""
    uploads: bool = False
    """Segments move to the bucket, and local copies are freed: see `uploads/`."""
    direct: bool = False
    """The topic is Direct, and disks are lost: see `uploads/direct.py`."""
    rights: bool = False
    """Rights are given and taken: see `rights/changing.py`."""
    spares: int = 0
    """Nodes that are added later. With any of them nodes leave, too: see `leaving.py`."""
    course: str | None = None
    """Of a world in which nodes leave: at which moments faults aim. See `leaving_courses.py`."""
    seconds: float = 4.0
    """While faults occur."""


class Host:
    """A node's machine, and the node while it runs."""

    def __init__(self, node_id: int, machine: Machine) -> None:
        self.node_id = node_id
        self.machine = machine
        self.process: Process | None = None
        self.node: StorageNode | None = None
        self.is_wanted = True
        """It starts again when it has died."""


class ProductWorld:
    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.rng = Random(seed)
        self.loop = VirtualLoop(Random(self.rng.random()))
        self.is_fsync = self._drawn(shape.is_fsync)
        self.is_quorum = self._drawn(shape.is_quorum)
        self.has_bucket = self._drawn(shape.has_bucket)
        self.lines: list[str] = []
        names = {number: f"node-{number}" for number in range(1, shape.nodes + shape.spares + 1)}
        self.hosts = {
            number: Host(number, Machine(name, f"10.0.0.{number}", Random(self.rng.random())))
            for number, name in names.items()
        }
        others = [Machine(name, f"10.0.1.{at}", Random(seed)) for at, name in enumerate(("meta", "bucket", "clients"))]
        self.meta_machine, bucket_machine, self.client_machine = others
        for number in range(shape.nodes + 1, shape.nodes + shape.spares + 1):
            self.hosts[number].is_wanted = False
        machines = {one.name: one for one in [*(host.machine for host in self.hosts.values()), *others]}
        self.kernel = Kernel(self.loop, machines)
        self.kernel.on_death = self._died
        self.network = Network(self.kernel)
        self.bucket = Bucket(bucket_machine)
        nodes = {number: host.machine for number, host in self.hosts.items()}
        self.truth = Truth(nodes, self.bucket, lambda: self.meta.table, self.loop.time, is_fsync=self.is_fsync)
        self.meta = MetaHost(
            self.meta_machine,
            self.network,
            {
                "lease_ms": LEASE_MS,
                "patience_ms": PATIENCE_MS,
                "replace_after_ms": REPLACE_AFTER_MS,
                "verify_interval_ms": VERIFY_MS,
            },
            self.truth,
        )
        self.truth.on_broken = self.loop.stop
        self.kernel.on_remove = self.truth.removed
        self.kernel.on_write = self.truth.written
        self.bucket.on_delete = self._object_deleted
        self.stored = StoredCopies(self.bucket, lambda: self.meta.table, self.truth.fail)
        self.truth.after_publish.append(self.stored.published)
        self.clients = Process(self.client_machine)
        self.other_processes: list[Process] = []
        """Beside those of nodes."""
        self.rack_of: Callable[[int], str] = lambda _: ""
        self.other_seams: list[Callable[[], AbstractContextManager[None]]] = []
        self.node_settings: dict[str, Any] = {}
        self.topic_settings: dict[str, str] = {}
        """Before those of every world."""
        self.on_reader: Callable[[Consumer], None] = lambda _: None
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        drawn = self.rng.choice((1, 2))
        self.shards = drawn if shape.shards is None else shape.shards
        self.groups = GroupTruth(self.truth.fail)
        self.truth.on_group_log_lost = self.groups.lost_its_log
        self.has_groups = self._drawn(shape.has_groups)
        self.group_clients: list[GroupMember | LoneConsumer | GroupWatcher] = []
        self.members: list[GroupMember] = []
        self.cause_faults: Callable[[ProductWorld], Coroutine[Any, Any, None]] = _no_faults
        """Runs once the cluster serves, until all faults have ended."""
        self.fault: Exception | None = None
        """What ended one of the world's own tasks."""

    def _drawn(self, wanted: bool | None) -> bool:
        drawn = self.rng.random() < 0.5
        return drawn if wanted is None else wanted

    def _object_deleted(self, key: str) -> None:
        self.truth.deleted_object(key)
        self.stored.deleted(key)

    def say(self, *words: object) -> None:
        self.lines.append(f"{self.loop.now_s * 1_000:9.1f} {' '.join(map(str, words))}")

    def history(self, last: int = 0) -> list[str]:
        return self.lines[-last:]

    # Processes ------------------------------------------------------------------------------------------------------
    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(PROCESS.set, process)
        task = self.loop.create_task(work, context=context)
        task.add_done_callback(self._ended, context=context)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and self.fault is None:
            self.fault = error
            self.loop.stop()

    def after(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        self.loop.call_later(seconds, act, *args, context=Context())

    def start(self, node_id: int) -> None:
        host = self.hosts[node_id]
        if host.process is None and host.is_wanted:
            host.process = Process(host.machine)
            self.spawn(host.process, self._run(host, host.process))

    async def _run(self, host: Host, process: Process) -> None:
        settings: dict[str, Any] = {
            "node_id": host.node_id,
            "offsets_topic_num_partitions": 1,
            "flush_interval_ms": 500,
            "broker_rack": self.rack_of(host.node_id),
            "retire_verify_interval_ms": VERIFY_MS,
            "disk_stall_ms": STALL_MS,
            "replica_lag_time_max_ms": 500,
            "log_retention_check_interval_ms": 500,
            "remote_upload_interval_ms": 300,
            "remote_upload_timeout_ms": 1_500,
            "flush_policy": FlushPolicy.FSYNC if self.is_fsync else FlushPolicy.REPLICATED,
            "group_min_session_timeout_ms": 100,
            "group_initial_rebalance_delay_ms": 100,
            "group_consumer_session_timeout_ms": round(SESSION_S * 1_000),
        } | self.node_settings
        store = BucketClient(self.bucket, self.network, host.machine) if self.has_bucket else None
        link = MetaLink(self.meta, host.machine)
        listen = Listen(host.machine.host, PORT)
        node = StorageNode(ProcessSettings(**settings), LAYOUT.root, listen, link, store, memory=Path(MEMORY))
        try:
            await node.start()
        except StratalogError as error:
            self.say(f"node {host.node_id} does not start: {error}")
            self.kill(host.node_id, down_s=0.3)
            return
        host.node = node
        self.truth.in_doubt.pop(host.node_id, None)
        node.turn.after_shards.append(lambda: self.truth.look_at(host.node_id, node))
        self.say(f"node {host.node_id} runs, life {node.meta.life and node.meta.life.epoch}")
        await node.is_over.wait()
        self.say(f"node {host.node_id}: {node.why_over}")
        if host.process is process:
            self.kill(host.node_id, down_s=0.3)

    def kill(self, node_id: int, *, down_s: float, is_power: bool = False) -> None:
        """Its process ends between two callbacks; with `is_power` its machine's memory is lost as well."""
        host = self.hosts[node_id]
        if host.process is None:
            return
        self.say(f"node {node_id} {'loses its power' if is_power else 'is killed'}")
        process, host.process, host.node = host.process, None, None
        process.is_dead = True
        host.machine.process_died()
        self.kernel.forget(host.machine)
        self.network.process_died(process, says_so=not is_power)
        if is_power:
            self.truth.power_goes(node_id, self.meta.last_table)
            host.machine.lose_power()
            self.truth.disk_lost_something(node_id, self.meta.last_table)
        self.after(down_s, self.start, node_id)

    def _died(self, process: Process) -> None:
        for node_id, host in self.hosts.items():
            if host.process is process:
                is_power = self.rng.random() < 0.5
                self.kill(node_id, down_s=0.2 + self.rng.random(), is_power=is_power)

    def stop(self, node_id: int, *, down_s: float) -> None:
        """In order."""
        host = self.hosts[node_id]
        if host.node is not None and host.process is not None:
            self.say(f"node {node_id} stops")
            node, process, host.node = host.node, host.process, None
            self.spawn(process, self._close(host, process, node, down_s))

    async def _close(self, host: Host, process: Process, node: StorageNode, down_s: float) -> None:
        try:
            await node.close()
        except StratalogError as error:  # a full disk does not take the note of the stop: then the process ends with it
            self.say(f"node {host.node_id} does not stop in order: {error}")
        if host.process is process:
            self.say(f"node {host.node_id} has stopped")
            self.kill(host.node_id, down_s=down_s)

    def restart_meta(self, down_s: float) -> None:
        if self.meta.service is not None:
            self.say("the meta service dies")
            self.meta.kill()
            self.after(down_s, self.meta.start)

    # The play -------------------------------------------------------------------------------------------------------
    def play(self) -> None:
        """Raises: Broken, and whatever else is wrong."""
        Socket.network, Pool.loop = self.network, self.loop
        was_enabled = gc.isenabled()
        gc.disable()
        if next(_PLAYED) % _PLAYS_PER_COLLECTION == 0:
            gc.collect()  # earlier worlds
        gc.freeze()  # so that the collection at the end looks at this world alone
        try:
            with ExitStack() as stack:
                for seam in (lambda: self.kernel.installed(self.seed), self._seams, self._logs, *self.other_seams):
                    stack.enter_context(seam())
                asyncio.set_event_loop(self.loop)
                try:
                    self._play()
                finally:
                    self._drop()
                    asyncio.set_event_loop(None)
                    del Socket.network, Pool.loop
        finally:
            gc.unfreeze()
            if was_enabled:
                gc.enable()

    def _play(self) -> None:
        main = self.spawn(self.clients, self._story())
        self.after(3 * CALM_S, self.truth.fail, "the world ends", "it does not end")
        main.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_forever()
        if self.truth.broken is not None:
            raise self.truth.broken
        if self.fault is not None:
            raise self.fault
        if not main.done():
            raise Broken("the world ends", "no timer is left")
        main.result()

    async def _story(self) -> None:
        self.meta.start()
        for node_id in self.hosts:
            self.start(node_id)
        await self._create_topic()
        self._begin_clients()
        await self.cause_faults(self)
        self.start_wanted()
        await asyncio.sleep(1.0)
        await self._read_all()
        for fault in self.loop.faults:
            error = fault.get("exception")
            if isinstance(error, Exception):
                raise Broken("no fault escapes a callback", f"{fault.get('message')}: {error!r}") from error

    def start_wanted(self) -> None:
        for node_id in self.hosts:
            self.start(node_id)

    async def _create_topic(self) -> None:
        overrides = {
            "segment.bytes": str(self.rng.choice((600, 1_500, 4_000)) * (3 if self.shape.late_news else 1)),
            "flush.policy": "fsync" if self.is_fsync else "replicated",
            "acks.policy": "quorum" if self.is_quorum else "isr",
            **self.topic_settings,
        }
        self.say(f"{self.shards} shards, {overrides}, bucket: {self.has_bucket}")
        link = MetaLink(self.meta, self.client_machine)
        while True:
            await asyncio.sleep(0.1)
            try:
                command = CreateTopic(TOPIC, self.shards, self.shape.replicas, overrides)
                await link.perform(command)
                return
            except AlreadyExists:  # an earlier request made it, whose answer was lost
                return
            except StratalogError as error:
                self.say(f"no topic yet: {error}")

    def wire(self) -> Wire:
        order = list(self.hosts.values())
        self.rng.shuffle(order)
        return Wire(self.network, lambda: [(host.machine.host, PORT) for host in order])

    def _begin_clients(self) -> None:
        kinds = [(7, -1), (8, -1), (-1, -1), (-1, 1)]
        for shard in range(self.shards):
            count = max(2 + self.rng.randrange(3), 3 if self.shape.late_news else 0)
            for number, (producer_id, acks) in enumerate(kinds[:count]):
                own_id = producer_id + 10 * shard if producer_id >= 0 else -1
                producer = Producer(
                    f"p{shard}{'abcd'[number]}",
                    TOPIC,
                    shard,
                    self.wire(),
                    Random(self.rng.random()),
                    producer_id=own_id,
                    acks=acks,
                )
                producer.on_acknowledged = self.truth.acknowledged
                producer.count_losses = partial(self.truth.losses.in_shard, (TOPIC, shard))
                producer.on_refused = lambda one, code: self.truth.fail(
                    "a producer continues at its last sequence number", f"{one.name} is refused with {code}"
                )
                self.producers.append(producer)
                self.spawn(self.clients, producer.run())
            self._begin_consumer(f"c{shard}", shard)
        if self.has_groups:
            self._begin_group()

    def _begin_consumer(self, name: str, shard: int) -> Consumer:
        consumer = Consumer(name, TOPIC, shard, self.wire(), Random(self.rng.random()))
        consumer.on_shown = self.truth.shown
        consumer.count_losses = partial(self.truth.losses.in_shard, (TOPIC, shard))
        consumer.on_back = lambda one, what: self.truth.fail("a consumer never goes back", f"{one.name} {what}")
        self.on_reader(consumer)
        self.consumers.append(consumer)
        self.spawn(self.clients, consumer.run())
        return consumer

    def _begin_group(self) -> None:
        is_consumer = self._drawn(self.shape.has_consumer_protocol)
        for name in ("ga", "gb"):
            own = self._group_place(name)
            member = GroupMember(*own, topic_id=self._topic_id, is_consumer=is_consumer, now_s=self.loop.time)
            self.members.append(member)
        self.group_clients += self.members
        self.group_clients += [LoneConsumer(group, *self._group_place(group)) for group in ALONE]
        self.group_clients.append(GroupWatcher(*self._group_place("gw")))
        for client in self.group_clients:
            self.spawn(self.clients, client.run())

    def _group_place(self, name: str) -> tuple[str, str, int, Wire, GroupTruth, Random]:
        return name, TOPIC, self.shards, self.wire(), self.groups, Random(self.rng.random())

    def _topic_id(self) -> UUID:
        table = self.meta.last_table
        assert table is not None, "it has made the topic"
        return next(one.topic_id for one in table.state.topics.values() if one.name == TOPIC)

    async def _read_all(self) -> None:
        for client in [*self.producers, *self.group_clients]:
            client.is_over = True
        group = GroupReader(*self._group_place("gr"))
        if self.has_groups:
            self.spawn(self.clients, group.run())
        readers = [self._begin_consumer(f"reader{shard}", shard) for shard in range(self.shards)]
        ends_s = self.loop.now_s + CALM_S
        while not self._has_all(readers) or (self.has_groups and not group.has_all):
            if self.loop.now_s > ends_s:
                late = [f"{one.name} at {one.position} of {one.high_watermark}" for one in readers]
                unsent = [one.name for one in self.producers if not one.is_done]
                raise Broken(
                    "all decided records can be read once all faults have ended",
                    f"{late}, unanswered: {unsent}, group: {group.has_all}",
                )
            await asyncio.sleep(0.1)
        logs = {
            (TOPIC, reader.shard): Log(
                reader.first_offset, [Seen(offset, value) for offset, value in reader.records if value != b"~"]
            )
            for reader in readers
        }
        found = anomalies([one for producer in self.producers for one in self._sent_by(producer)], logs)
        found = [one for one in found if one.kind != "gap"]
        if found:
            raise Broken("the log matches the answers to clients", "; ".join(map(str, found[:3])))

    def _sent_by(self, producer: Producer) -> list[Sent]:
        """With the answers that it got. What was lost may be there or not."""
        place = producer.topic, producer.shard
        lost, has_losses = self.truth.losses.values.get(place, {}), self.truth.losses.in_shard(place) > 0
        for one in producer.sent:
            is_nowhere_known = one.outcome is Outcome.OK and one.offset < 0
            if one.value in lost or (has_losses and is_nowhere_known):
                one.outcome, one.sender, one.offset = Outcome.INFO, one.value.decode(), -1
        return producer.sent

    def _has_all(self, readers: list[Consumer]) -> bool:
        if not all(producer.is_done for producer in self.producers):
            return False
        ends = {one.shard: max(self.truth.decided.get((TOPIC, one.shard), {-1: b""})) for one in readers}
        return all(one.is_at_end and one.position > ends[one.shard] for one in readers)

    # Replacements for the machine's libraries -----------------------------------------------------------------------
    @contextmanager
    def _seams(self) -> Iterator[None]:
        patches: list[tuple[Any, str, Any]] = [
            (threads, "ThreadPoolExecutor", Pool),
            (encoder, "ThreadPoolExecutor", Pool),
            (cold_reader, "ThreadPoolExecutor", Pool),
            (write_behind, "_sync_file_range", None),
            (ends_in_memory, "mmap", self.kernel.mmap_module),
            (checkpoints, "Rdict", key_value.Rdict),
            (checkpoints, "WriteBatch", key_value.WriteBatch),
            (checkpoints, "_opened", lambda path: key_value.Rdict(str(path))),
            (coordinator, "CoordinatorLimits", lambda: CoordinatorLimits(log=_GROUP_LOG)),
            (listeners, "socket", SimpleNamespace(socket=Socket, **SOCKETS)),
            (meta_service, "Retirements", partial(Retirements, poll_s=_RETIREMENTS_POLL_S)),
        ]
        before = [(where, name, getattr(where, name)) for where, name, _ in patches]
        pools.SLOW_S.clear()
        pools.HANGS_UNTIL_S.clear()
        try:
            for where, name, ours in patches:
                setattr(where, name, ours)
            yield
        finally:
            for where, name, was in before:
                setattr(where, name, was)

    @contextmanager
    def _logs(self) -> Iterator[None]:
        """What the product logs is part of the history."""

        def note(_: Any, method: str, event: Any) -> Any:
            process = PROCESS.get()
            who = process.machine.name if process is not None else "?"
            words = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "exc_info"))
            self.say(f"{who} {method}: {event.get('event')} {words}")
            if method in ("error", "exception") and event.get("exc_info"):
                error = event["exc_info"] if isinstance(event["exc_info"], BaseException) else sys.exc_info()[1]
                self.say(f"{who}   {error!r}")
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(
            processors=[note], wrapper_class=structlog.make_filtering_bound_logger(20), cache_logger_on_first_use=False
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def _drop(self) -> None:
        """Let go of all that ran: what would still run then is refused by the kernel, as for a dead process."""
        dead = Process(self.client_machine)
        dead.is_dead = True
        for host in self.hosts.values():
            if host.process is not None:
                host.process.is_dead = True
        for process in [self.clients, self.meta.process, *self.other_processes]:
            process.is_dead = True
        token = PROCESS.set(dead)
        try:
            self.loop.end_tasks()
            self.loop.drop()
            self.network.forget()
            self.kernel.sockets.clear()
            self.meta.service = None
            for host in self.hosts.values():
                host.node = None
            gc.collect()
            self.loop.close()
        finally:
            PROCESS.reset(token)


async def _no_faults(world: ProductWorld) -> None:
    await asyncio.sleep(world.shape.seconds)


assert str(LAYOUT.root).startswith(ROOT)
