"""One simulated cluster from a seed: nodes, meta service, object store, clients, faults, and the judge over them.

`play` runs it: a topic is made, clients write and read while faults befall it, then all is well again, and everything
that is owed must be read from start to end. Raises `Broken`; the history so far is in `history`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.machines.leading.leader_events import RollPolicy
from stratalog.machines.table.shard_table import ShardTable
from stratalog.machines.tiering.retention import NO_LIMIT, RetentionLimits
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import AlreadyExists, StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog_sim.bad_directories import BadDirectories, is_of_clone
from stratalog_sim.broken import Broken
from stratalog_sim.clients import Consumer, MountReader, Producer
from stratalog_sim.disk import Died, Disk
from stratalog_sim.faults import Faults
from stratalog_sim.judge import Judge, ShardTruth
from stratalog_sim.members import GroupClient, GroupMember, GroupReader, GroupWatcher
from stratalog_sim.meta import Meta, MetaStore, Perform
from stratalog_sim.network import Network
from stratalog_sim.node import NodeLife
from stratalog_sim.process import Ask, Process, Sleep, Task
from stratalog_sim.scheduler import EVER, Scheduler
from stratalog_sim.store import Store
from stratalog_sim.words import in_words
from support.history import Log, Outcome, Seen, Sent, anomalies


@dataclass(frozen=True, slots=True)
class Shape:
    """What is simulated."""

    nodes: int = 1
    shards: int = 2
    replicas: int = 1
    trouble_ms: int = 6_000
    """Faults happen for this long."""
    calm_ms: int = 60_000
    """Within this all that is owed must be readable."""
    is_fsync: bool | None = None
    """None: the seed decides."""
    is_quorum: bool | None = None
    """Whether most of the replicas acknowledge, where there are several. None: the seed decides."""
    is_worse: bool | None = None
    """Directories are damaged, put back and copied more often than anything else happens. None: the seed decides."""
    spares: int = 0
    """So many nodes come later, and some leave: see `LeavingWorld`."""
    hangs: bool = False
    """Disks hang, and nothing else is wrong: see `HangingWorld`."""


def shape_of(seed: int) -> Shape:
    """One, two or three nodes, two fifths of the seeds with three; every fourth of these has two replicas. In every
    fifth seed nodes come and go, with one copy or two of each segment; in every twentieth disks hang."""
    if seed % 5 == 4:
        return leaving_shape_of(seed)
    if seed % 20 == 10:
        return Shape(nodes=3, replicas=3, hangs=True)
    nodes = (3, 1, 3, 2)[seed % 5]
    replicas = 2 if nodes == 3 and seed % 20 in (5, 12) else nodes
    return Shape(nodes=nodes, replicas=replicas, trouble_ms=(2_000, 4_000, 6_000)[seed % 3])


def leaving_shape_of(seed: int) -> Shape:
    return Shape(nodes=3, replicas=1 + seed % 2, spares=1, trouble_ms=(2_500, 4_000, 6_000)[seed % 3])


class Operator(Process):
    """Makes the topic."""

    def make_topics(self, topics: list[commands.CreateTopic]) -> Task:
        for command in topics:
            while True:
                try:
                    yield Ask("meta", Perform(command), 300)
                    break
                except AlreadyExists:
                    break  # the answer was lost
                except StratalogError:
                    yield Sleep(200)


class SimulatedWorld:
    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.rng = Random(seed)
        self.scheduler = Scheduler(self.rng)
        self._told: list[tuple[int, tuple[Any, ...]]] = []
        self.network = Network(self.scheduler, self.say)
        self.node_ids = list(range(1, shape.nodes + 1))
        """The nodes that exist, and that faults may hit."""
        ever = range(1, shape.nodes + shape.spares + 1)
        self.disks = {node_id: Disk(node_id) for node_id in ever}
        self.clock_offsets = dict.fromkeys([0, *ever], 0)
        self.gone: dict[int, None] = {}
        """The nodes that are never started again."""
        self.store = Store("store", self.scheduler, self.network, tell=self.say)
        self.network.join("store", self.store)
        self.meta_store = MetaStore()
        self.judge = Judge(self.disks, self.store)
        self.bad_directories = BadDirectories(self)
        self.meta = self._new_meta()
        self.is_fsync = self.rng.random() < 0.5 if shape.is_fsync is None else shape.is_fsync
        self.has_store = self.rng.random() < 0.75
        self.retention = self.rng.choice(
            (
                RetentionLimits(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, True),
                RetentionLimits(NO_LIMIT, NO_LIMIT, 1_500, NO_LIMIT, True),
                RetentionLimits(NO_LIMIT, 900, NO_LIMIT, 200, True),
            )
        )
        least = self.rng.choice((1, 1, 2)) if shape.replicas > 1 else 1
        self.policy = RollPolicy(120, 4_000, min_insync_replicas=least, lag_ms=1_500)
        self.may_wipe = shape.nodes > 2 and self.rng.random() < 0.3
        """One disk is replaced by a new one."""
        self.may_damage = shape.replicas > 1 and not shape.spares and not self.may_wipe
        """Directories are damaged, put back and copied: what one of them lacks another has."""
        self.is_quorum = shape.replicas > 1 and self.rng.random() < 0.35
        if shape.is_quorum is not None:
            self.is_quorum = shape.is_quorum
        self.has_groups = self.rng.random() < 0.5 and not self.may_wipe
        """The group log never gives anything up of itself, so a disk that is gone with the last copy would end it."""
        self.restarts_at_the_end = self.rng.random() < 0.5
        """Else those alone whose disk lost a flush: what it had alone stays stopped until the next start."""
        self.group_clients: list[GroupClient] = []
        self.nodes: dict[int, NodeLife | None] = {}
        self._starts = 0
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.client_names: list[str] = []
        self.node_names = [f"node-{node_id}" for node_id in self.node_ids]
        """The nodes that clients know."""
        for disk in self.disks.values():
            disk.on_written, disk.on_removed = self.judge.written, self.judge.removed

    # Telling ----------------------------------------------------------------------------------------------------------
    def say(self, *words: Any) -> None:
        self._told.append((self.scheduler.now_ms, words))

    def history(self, last: int | None = None) -> list[str]:
        """The history in words: all lines, or the `last` ones."""
        told = self._told if last is None else self._told[-last:]
        return [f"{now_ms:>7} {' '.join(map(in_words, words))}" for now_ms, words in told]

    def after(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        self.scheduler.after(delay_ms, EVER, call, *args)

    # Machines ---------------------------------------------------------------------------------------------------------
    def _new_meta(self) -> Meta:
        meta = Meta("meta", self.scheduler, self.network, store=self.meta_store, tell=self.say)
        self.meta_since_ms = self.scheduler.now_ms
        meta.on_applied, self.judge.table = self.applied, meta.table
        self.network.join("meta", meta)
        return meta

    def applied(self, command: Any, result: Any, changed: list[Segment]) -> None:
        """The meta service did this."""
        if is_of_clone(command):
            self.bad_directories.let_in(command.node.node_id)
        self.judge.applied(command, result, changed)

    def rack_of(self, node_id: int) -> str | None:
        return None

    def start_node(self, node_id: int) -> None:
        if self.nodes.get(node_id) is None and node_id not in self.gone:
            self._start_process(node_id)

    def _start_process(self, node_id: int) -> None:
        self._starts += 1
        self.disks[node_id].restarted()
        node = NodeLife(
            node_id,
            self.disks[node_id],
            self.judge,
            start_id=f"start-{self._starts}",
            has_store=self.has_store,
            retention=self.retention,
            policy=self.policy,
            clock_ms=lambda: 1_000_000 + self.scheduler.now_ms + self.clock_offsets[node_id],
            tell=lambda *words: self.say(f"node {node_id}:", *words),
            restart=lambda: self.kill(node_id, down_ms=50),
            refused=lambda: self.end_process(node_id),
            rack=self.rack_of(node_id),
            scheduler=self.scheduler,
            network=self.network,
        )
        self.nodes[node_id] = node
        self.network.join(node.name, node)
        node.begin()

    def end_process(self, node_id: int) -> bool:
        """It is not started again by itself."""
        node = self.nodes.get(node_id)
        if node is None:
            return False
        node.is_alive = False
        self.nodes[node_id] = None
        self.disks[node_id].dies_in = -1
        return True

    def _end(self, node_id: int, down_ms: int) -> bool:
        if not self.end_process(node_id):
            return False
        self.after(down_ms, self.start_node, node_id)
        return True

    def kill(self, node_id: int, *, down_ms: int) -> None:
        if self._end(node_id, down_ms):
            self.say(f"node {node_id}: killed")

    def cut_power(self, node_id: int, *, down_ms: int) -> None:
        if self._end(node_id, down_ms):
            self.say(f"node {node_id}: loses power")
            self.disks[node_id].power_cut(self.rng)
            self.judge.lost_power(node_id)

    def wipe(self, node_id: int, *, down_ms: int) -> bool:
        if not self._end(node_id, down_ms):
            return False
        self.say(f"node {node_id}: gets a new disk")
        self.disks[node_id].wipe()
        self.judge.lost_power(node_id)
        return True

    def stop(self, node_id: int, *, down_ms: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            node.stop_in_order()
            self._end(node_id, down_ms)
            self.say(f"node {node_id}: stops in order")

    def pause(self, node_id: int, lasting_ms: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            node.paused_until_ms = self.scheduler.now_ms + lasting_ms
            self.say(f"node {node_id}: paused for {lasting_ms} ms")

    def hang_disk(self, node_id: int, lasting_ms: int) -> None:
        self.disks[node_id].hang(self.scheduler.now_ms, lasting_ms)
        self.say(f"node {node_id}: disk hangs for {lasting_ms} ms")

    def restart_meta(self, *, down_ms: int) -> None:
        if self.meta.is_alive:
            self.meta.is_alive = False
            self.say("meta service killed")
            self.after(down_ms, self._meta_again)

    def _meta_again(self) -> None:
        before = self.meta.table
        try:
            self.meta = self._new_meta()
        except StratalogError as error:
            raise Broken("metadata survive a restart", str(error)) from error
        self.meta.clock_offset_ms = self.clock_offsets[0]
        was, loaded = _content(before), _content(self.meta.table)
        if was != loaded:
            differs = [f"{one} was loaded as {other}" for one, other in zip(was, loaded, strict=False) if one != other]
            raise Broken("metadata survive a restart", "; ".join(differs))
        self.say("meta service is back")

    def jump_clock(self, node_id: int, by_ms: int) -> None:
        """0: that of the meta service."""
        self.clock_offsets[node_id] += by_ms
        self.meta.clock_offset_ms = self.clock_offsets[0]
        self.say(f"clock of {f'node {node_id}' if node_id else 'meta'} jumps by {by_ms} ms")

    def ask_roll(self, node_id: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None and node.is_serving and node.shards and node.paused_until_ms <= self.scheduler.now_ms:
            self.rng.choice(list(node.shards.values())).ask_roll()

    # Running ----------------------------------------------------------------------------------------------------------
    def run(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Until then, or until it is done. Returns whether it is."""
        while not is_done():
            try:
                if not self.scheduler.step(until_ms):
                    return is_done()
            except Died as death:
                if death.is_power_cut:
                    self.cut_power(death.disk.node_id, down_ms=200)
                else:
                    self.kill(death.disk.node_id, down_ms=200)
        return True

    def play(self) -> None:
        """The whole life of this world. Raises Broken, and AssertionError of a machine."""
        self._set_up()
        self._befall()()
        for client in [*self.producers, *self.consumers, *self.group_clients]:
            client.is_over = True
        for node_id in self.node_ids:
            if self.restarts_at_the_end or self.disks[node_id].has_lost_a_flush:
                self.kill(node_id, down_ms=100)
        if not self.meta.is_alive:
            self.run(self.scheduler.now_ms + 2_000)
        self._settle()
        self._read_all()
        self.meta.table.check_invariants()

    def _befall(self) -> Callable[[], None]:
        """All kinds of faults, for a while. Returns what ends them."""
        faults = Faults(self)
        self.run(self.scheduler.now_ms + self.shape.trouble_ms)
        return faults.end

    def _settle(self) -> None:
        """What must be so before all is read."""

    def _set_up(self) -> None:
        for node_id in self.node_ids:
            self.start_node(node_id)
        self.run(5_000, lambda: len(self.meta.table.state.nodes) == len(self.node_ids))
        settings = {"flush.policy": "fsync"} if self.is_fsync else {}
        if self.is_quorum:
            settings["acks.policy"] = "quorum"
        if self.may_wipe:
            settings["uncleanSeal"] = "allow"  # no node can say what a lost disk held
        topics = [commands.CreateTopic("topic", self.shape.shards, self.shape.replicas, settings)]
        if self.has_groups:
            topics.append(commands.CreateTopic(GROUP_LOG, 1, self.shape.replicas, is_internal=True))
        operator = Operator("operator", self.scheduler, self.network)
        self.network.join("operator", operator)
        operator.spawn(operator.make_topics(topics))
        self.run(10_000, lambda: len(self.meta.table.state.topics) == len(topics))
        place = {"judge": self.judge, "nodes": self.node_names, "scheduler": self.scheduler, "network": self.network}
        keys = [key for key in self.meta.table.state.shards if not self._is_group_log(key)]
        for key in [key for key in self.meta.table.state.shards if self._is_group_log(key)]:
            self.judge.shards[key] = ShardTruth(is_fsync=False)
        for number, key in enumerate(keys):
            self.judge.shards[key] = ShardTruth(self.is_fsync, self.is_quorum)
            for kind in range(2):
                idempotent = self.rng.random() < 0.7
                producer_id = 10 * number + kind + 1 if idempotent else -1
                name = f"p{number}{'ab'[kind]}"
                self.producers.append(Producer(key, producer_id, -1, name=name, **place))
            self.consumers.append(Consumer(key, name=f"c{number}", **place))
        for name in ("ga", "gb") if self.has_groups else ():
            self.group_clients.append(GroupMember(shards=tuple(keys), name=name, **place))
        if self.has_groups:
            self.group_clients.append(GroupWatcher(shards=tuple(keys), name="gw", **place))
        for client in [*self.producers, *self.consumers, *self.group_clients]:
            self.client_names.append(client.name)
            self.network.join(client.name, client)
            client.begin()

    def _is_group_log(self, key: ShardKey) -> bool:
        return self.meta.table.topic(key.topic_id).name == GROUP_LOG

    # The end ----------------------------------------------------------------------------------------------------------
    def _read_all(self) -> None:
        """All is well again: every shard is read from its start to its end, and says what it owes."""
        readers = []
        names = self.node_names
        for number, key in enumerate(self.judge.shards):
            reader = Consumer(
                key, name=f"r{number}", judge=self.judge, nodes=names, scheduler=self.scheduler, network=self.network
            )
            self.network.join(reader.name, reader)
            readers.append(reader)
            reader.passes_what_is_lost = True
            self.after(1_500, reader.begin)

        shards = tuple(key for key in self.judge.shards if not self._is_group_log(key))
        group = GroupReader(
            shards=shards, name="rg", judge=self.judge, nodes=names, scheduler=self.scheduler, network=self.network
        )
        if self.has_groups:
            self.network.join(group.name, group)
            self.after(1_500, group.begin)

        others = self._other_readers()

        def is_done() -> bool:
            if not all(one.has_all for one in others):
                return False
            return (group.has_all or not self.has_groups) and all(self._has_all(reader) for reader in readers)

        if not self.run(self.scheduler.now_ms + self.shape.calm_ms, is_done):
            late = [reader for reader in readers if not self._has_all(reader)]
            self._say_how_it_stands(late)
            what = f"shards {[one.shard.shard for one in late]}" if late else "what groups committed"
            unread = [one.name for one in others if not one.has_all]
            what = f"{what}; {unread} did not come to the end" if unread else what
            raise Broken("what is owed can be read once all is well", what)
        logs = {
            ("topic", reader.shard.shard): Log(
                reader.first_offset, [Seen(offset, value.encode()) for offset, value in reader.records]
            )
            for reader in readers
            if not self._is_group_log(reader.shard)
        }
        # Batches without records replace what was given up: no producer sent them, and they do not leave a gap.
        fillers = [
            Sent("nobody", place, seen.value)
            for place, log in logs.items()
            for seen in log.records
            if seen.value.startswith(b"~")
        ]
        found = anomalies([*self._sent(), *fillers], logs)
        if found:
            raise Broken("the log is what clients were told", "; ".join(map(str, found[:3])))

    def _other_readers(self) -> list[MountReader]:
        """Readers of other data, which must also reach the end of it."""
        return []

    def _say_how_it_stands(self, late: list[Consumer]) -> None:
        for reader in late:
            end = self.judge.shards[reader.shard].end_offset
            waiting = [one.name for one in self.producers if one.shard == reader.shard and one.has_unanswered]
            self.say(f"{reader.name} is at {reader.position} of {end} in shard {reader.shard.shard}, {waiting} wait")
            for segment in self.meta.table.shard(reader.shard).segments:
                self.say("  meta:", segment)
            for node_id, node in self.nodes.items():
                if node is None or reader.shard not in node.shards:
                    continue
                shell = node.shards[reader.shard]
                chain = shell.chain
                self.say(f"  node {node_id}: {chain.life.name} {chain.stop or ''} hw {chain.high_watermark}")
                for leader in shell.leaders():
                    self.say(f"    leads {leader.describe()}")
                for key, replica in node.following.replicas.items():
                    if key.shard_key == reader.shard:
                        self.say(f"    follows {replica.machine.describe()} {replica.machine.fault or ''}")

    def _has_all(self, reader: Consumer) -> bool:
        truth = self.judge.shards[reader.shard]
        return (
            reader.is_at_end
            and reader.position >= truth.end_offset
            and not any(one.has_unanswered for one in self.producers)
        )

    def _sent(self) -> list[Sent]:
        """What clients sent, with the answers that they got. What was excused may be there or not."""
        sent = []
        for producer in self.producers:
            excused = self.judge.shards[producer.shard].excused
            for one in producer.sent:
                value = one.value.decode().rpartition(".")[0]
                if value in excused:
                    one.outcome = Outcome.INFO
                    one.sender, one.offset = value, -1
                sent.append(one)
        return sent


def _content(table: ShardTable) -> list[Any]:
    """All that readers see; nodes in an order of their own."""
    snapshot = table.snapshot()
    return [snapshot.version, *snapshot.shards, *sorted(snapshot.nodes, key=lambda node: node.node_id)]
