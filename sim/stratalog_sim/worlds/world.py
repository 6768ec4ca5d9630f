"""One simulated cluster from a seed: nodes, meta service, object store, clients, faults, and the judge over them.

`play` runs it: a topic is made, clients write and read while faults befall it, then all is well again, and everything
that is owed must be read from start to end. Raises `Broken`; the history so far is in `history`.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import AlreadyExists, StratalogError
from stratalog_sim.broken import Broken
from stratalog_sim.clients.clients import Consumer, Producer
from stratalog_sim.environment.disk import Died
from stratalog_sim.environment.process import Ask, Process, Sleep, Task
from stratalog_sim.judging.shard_truth import ShardTruth
from stratalog_sim.service.meta import Perform
from stratalog_sim.worlds.faults import Faults
from stratalog_sim.worlds.simulated_machines import SimulatedMachines
from support.history import Log, Outcome, Seen, Sent, anomalies


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


class SimulatedWorld(SimulatedMachines):
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
        self._cause_faults()()
        for client in [*self.producers, *self.consumers]:
            client.is_over = True
        for node_id in self.node_ids:
            if self.restarts_at_the_end or self.disks[node_id].has_lost_a_flush:
                self.kill(node_id, down_ms=100)
        if not self.meta.is_alive:
            self.run(self.scheduler.now_ms + 2_000)
        self._settle()
        self._read_all()
        self.meta.table.check_invariants()

    def _cause_faults(self) -> Callable[[], None]:
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
        operator = Operator("operator", self.scheduler, self.network)
        self.network.join("operator", operator)
        operator.spawn(operator.make_topics(topics))
        self.run(10_000, lambda: len(self.meta.table.state.topics) == len(topics))
        place = {"judge": self.judge, "nodes": self.node_names, "scheduler": self.scheduler, "network": self.network}
        for number, key in enumerate(self.meta.table.state.shards):
            self.judge.shards[key] = ShardTruth(self.is_fsync, self.is_quorum)
            for kind in range(2):
                idempotent = self.rng.random() < 0.7
                producer_id = 10 * number + kind + 1 if idempotent else -1
                name = f"p{number}{'ab'[kind]}"
                self.producers.append(Producer(key, producer_id, -1, name=name, **place))
            self.consumers.append(Consumer(key, name=f"c{number}", **place))
        for client in [*self.producers, *self.consumers]:
            self.client_names.append(client.name)
            self.network.join(client.name, client)
            client.begin()

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

        def is_done() -> bool:
            return all(self._has_all(reader) for reader in readers)

        if not self.run(self.scheduler.now_ms + self.shape.calm_ms, is_done):
            late = [reader for reader in readers if not self._has_all(reader)]
            self._say_state_of(late)
            what = f"shards {[one.shard.shard for one in late]}"
            raise Broken("all decided records can be read once all faults have ended", what)
        logs = {
            ("topic", reader.shard.shard): Log(
                reader.first_offset, [Seen(offset, value.encode()) for offset, value in reader.records]
            )
            for reader in readers
        }
        # Batches without records replace what was given up: no producer sent them, and they do not leave a gap.
        fillers = [
            Sent("no producer", place, seen.value)
            for place, log in logs.items()
            for seen in log.records
            if seen.value.startswith(b"~")
        ]
        found = anomalies([*self._sent(), *fillers], logs)
        if found:
            raise Broken("the log matches the answers to clients", "; ".join(map(str, found[:3])))

    def _say_state_of(self, late: list[Consumer]) -> None:
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
