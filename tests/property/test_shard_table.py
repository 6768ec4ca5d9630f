"""Any sequence of commands keeps the shard table true; watchers and stores that follow it come to the same state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.machines.table.dump import capture, writes_of
from stratalog.machines.table.records import NodeEntry, PutHeader, PutNode, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.meta_api.watch_lines import EncodedLines, WatchReader, WatchWriter
from stratalog.model.commands import table_commands
from stratalog.model.commands.rights_commands import AlterCredentials, AlterQuotas, CreateRules, DeleteRules
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    ChangeSet,
    CredentialChanged,
    CredentialDeleted,
    Life,
    Lock,
    Node,
    NodeChanged,
    NodeInfo,
    PartCommit,
    PartReplacement,
    QuotasChanged,
    QuotasDeleted,
    RuleCreated,
    RuleDeleted,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.quotas import QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemotePart, RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.stored import encoding
from support.table_stories import NEW_ID, record_of, state_of

HEADER = TableHeader("cluster", 0, 1)
CHANCE = st.integers(0, 1_000)


class Follower:
    """A watcher that knows nothing but the change sets, as they come over HTTP."""

    def __init__(self) -> None:
        self.topics: dict[UUID, Topic] = {}
        self.log_starts: dict[ShardKey, int] = {}
        self.segments: dict[SegmentKey, Segment] = {}
        self.nodes: dict[int, Node] = {}
        self.rules: set[Rule] = set()
        self.credentials: dict[CredentialName, UserCredential] = {}
        self.quotas: dict[QuotaEntity, QuotaLimits] = {}
        self.version = 0
        self._encoded = EncodedLines(max_bytes=20_000, records_per_line=3)
        self._watches = [(WatchWriter(self._encoded, with_credentials=True), WatchReader())]
        self._other = (WatchWriter(self._encoded), WatchReader())

    def follow(self, told: ChangeSet) -> None:
        if told.version % 10 == 0:
            # One more comes, and has missed the rest.
            self._watches.append((WatchWriter(self._encoded, with_credentials=True), WatchReader()))
        for writer, reader in self._watches:
            *first, last = writer.lines(told)
            assert all(reader.read(line) is None for line in first)
            assert reader.read(last) == told, "a change set crosses HTTP unchanged"
        writer, reader = self._other
        *_, seen = map(reader.read, writer.lines(told))
        shown = tuple(change for change in told.changes if not isinstance(change, CredentialChanged))
        assert seen == ChangeSet(told.version, shown), "who is no node gets all but the credentials"
        change_set = told
        assert change_set.version == self.version + 1
        self.version = change_set.version
        for change in change_set.changes:
            match change:
                case TopicChanged(topic):
                    self.topics[topic.topic_id] = topic
                case TopicDeleted(topic):
                    del self.topics[topic.topic_id]
                    for number in range(topic.shard_count):
                        del self.log_starts[ShardKey(topic.topic_id, number)]
                case ShardChanged(shard):
                    self.log_starts[shard.key] = shard.log_start_offset
                    self.segments.update((segment.key, segment) for segment in shard.segments)
                case SegmentChanged(segment):
                    self.segments[segment.key] = segment
                case SegmentPurged(key):
                    del self.segments[key]
                case NodeChanged(node):
                    self.nodes[node.node_id] = node
                case RuleCreated(rule):
                    assert rule not in self.rules
                    self.rules.add(rule)
                case RuleDeleted(rule):
                    self.rules.remove(rule)
                case CredentialChanged(credential):
                    self.credentials[credential.name] = credential
                case CredentialDeleted(name):
                    del self.credentials[name]
                case QuotasChanged(quotas):
                    assert self.quotas.get(quotas.entity) != quotas.limits
                    self.quotas[quotas.entity] = quotas.limits
                case QuotasDeleted(entity):
                    del self.quotas[entity]

    def shards(self) -> dict[ShardKey, Shard]:
        shards = {}
        for key, log_start in self.log_starts.items():
            own = [segment for segment in self.segments.values() if segment.key.shard_key == key]
            living = sorted((s for s in own if s.state is not SegmentState.DELETED), key=lambda segment: segment.epoch)
            shards[key] = Shard(key, log_start, tuple(living))
        return shards


class ShardTableMachine(RuleBasedStateMachine):
    """Every command is refused without a trace, or applied, undone and applied again."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ShardTable.empty(HEADER)
        self.now_ms = 1_000
        self.follower = Follower()
        self.told: list[ChangeSet] = []
        self.items: dict[bytes, bytes] = {}
        self.topic_count = 0
        self.locks: list[Lock] = []
        self.keep([PutHeader(HEADER)])

    def keep(self, writes: object) -> None:
        for key, value in encoding.encode(writes):  # type: ignore[arg-type]
            if value is None:
                self.items.pop(key, None)
            else:
                self.items[key] = value

    def do(self, command: table_commands.TableCommand, new_id: UUID = NEW_ID) -> object:
        """The result, or None when the command was refused."""
        before = state_of(self.table)
        try:
            applied = self.table.apply(command, self.now_ms, new_id)
        except StratalogError:
            assert state_of(self.table) == before, f"refused, but not without a trace: {command}"
            return None
        after = state_of(self.table)
        self.table.undo(applied)
        assert state_of(self.table) == before, f"not undone: {command}"
        applied = self.table.apply(command, self.now_ms, new_id)
        assert state_of(self.table) == after, f"not the same again: {command}"
        if applied.change_set is not None:
            self.follower.follow(applied.change_set)
            self.told.append(applied.change_set)
        self.keep(applied.writes)
        return applied.result

    # What exists, by chance; sometimes what never was
    def a_topic(self, chance: int) -> UUID:
        topics = list(self.table.state.topics)
        return topics[chance % len(topics)] if topics and chance % 13 else UUID(int=chance)

    def a_segment(self, chance: int) -> SegmentKey:
        living = [segment.key for shard in self.table.snapshot().shards for segment in shard.segments]
        known = [*living, *self.table.state.deleted]
        return known[chance % len(known)] if known and chance % 17 else SegmentKey(UUID(int=chance), 0, 0, 0)

    def a_lock(self, chance: int) -> Lock:
        return self.locks[-1] if chance % 5 else self.locks[chance % len(self.locks)]

    # Nodes and topics
    @initialize(shards=st.integers(1, 2), replicas=st.integers(1, 3), policy=st.sampled_from(["isr", "quorum"]))
    def begin(self, shards: int, replicas: int, policy: str) -> None:
        for node_id in (1, 2, 3):
            self.do(table_commands.RegisterNode(NodeInfo(node_id, "storage", "host", 9092)))
        self.topic_count += 1
        self.do(table_commands.CreateTopic("a", shards, replicas, {"acks.policy": policy}), UUID(int=self.topic_count))
        self.acquire_lock("x", 0)

    @rule(node_id=st.integers(1, 4), rack=st.sampled_from([None, "a", "b"]), count=st.integers(0, 3))
    def register_node_and_take_ids(self, node_id: int, rack: str | None, count: int) -> None:
        self.do(table_commands.RegisterNode(NodeInfo(node_id, "storage", "host", 9092, rack)))
        self.do(table_commands.AllocateProducerIds(count))

    @rule(node_id=st.integers(1, 4), epoch=st.integers(1, 3), is_lost=st.booleans())
    def note_lives(self, node_id: int, epoch: int, is_lost: bool) -> None:
        lives = (Life(node_id, epoch),)
        self.do(table_commands.NoteLives(lost=lives) if is_lost else table_commands.NoteLives(heard=lives))

    @rule(node_id=st.integers(1, 4), epoch=st.integers(1, 3))
    def ask_as_some_life(self, node_id: int, epoch: int) -> None:
        known = self.table.state.nodes.get(node_id)
        answer = self.do(table_commands.AllocateProducerIds(1, caller=Life(node_id, epoch)))
        is_present = known is not None and known.node_epoch == epoch
        assert isinstance(answer, table_commands.ProducerIdBlock) is is_present, "only the present life is heard"

    @rule(name=st.sampled_from("abc"), shards=st.integers(0, 3), replicas=st.integers(1, 3))
    def create_topic(self, name: str, shards: int, replicas: int) -> None:
        self.topic_count += 1
        self.do(table_commands.CreateTopic(name, shards, replicas, {"k": name}), UUID(int=self.topic_count))

    @rule(chance=CHANCE, shards=st.integers(1, 3), value=st.sampled_from(["", "1", "é"]))
    def add_shards_and_alter(self, chance: int, shards: int, value: str) -> None:
        self.do(table_commands.AddShards(self.a_topic(chance), shards))
        self.do(table_commands.AlterTopic(self.a_topic(chance), {"retention.ms": value}))

    @rule(chance=CHANCE, really=st.integers(0, 3))
    def delete_topic(self, chance: int, really: int) -> None:
        if really == 0:
            self.do(table_commands.DeleteTopic(self.a_topic(chance)))

    # Segments
    @rule(chance=CHANCE, length=st.integers(-1, 6))
    def roll(self, chance: int, length: int) -> None:
        segment = self.a_segment(chance)
        known = self.table.state.find_segment(segment)
        reached = max(segment.base_offset, known.remote.commit_offset) if known is not None else 0
        self.do(table_commands.RollSegment(segment, reached + length))

    @rule(chance=CHANCE, node=st.integers(1, 4), which=st.integers(0, 3))
    def seal(self, chance: int, node: int, which: int) -> None:
        known = self.table.state.find_segment(self.a_segment(chance))
        if known is not None:
            replicas = known.replicas if which else (node,)
            for replica in known.replicas if which and len(known.replicas) > 1 else ():
                self.report(known.key, replica)
            self.do(table_commands.SealSegment(known.key, record_of(known.key, known.end_offset or 0, replicas)))

    def report(self, key: SegmentKey, node: int, digest: bytes = b"digest") -> None:
        known, entry = self.table.state.find_segment(key), self.table.state.nodes.get(node)
        if known is not None and entry is not None:
            proof = replace(record_of(key, known.end_offset or 0, (node,)), digest=digest)
            self.do(table_commands.ReportReplica(key, proof, caller=entry.life))

    @rule(chance=CHANCE, node=st.integers(1, 4), digest=st.sampled_from([b"digest", b"digest", b"other"]))
    def report_one(self, chance: int, node: int, digest: bytes) -> None:
        self.report(self.a_segment(chance), node, digest)

    @rule(chance=CHANCE)
    def prepare(self, chance: int) -> None:
        self.do(table_commands.PrepareSegment(self.a_segment(chance)))

    # Lives
    @rule(lost=st.sets(st.integers(1, 4), max_size=3), heard=st.sets(st.integers(1, 4), max_size=3))
    def note_several_lives(self, lost: set[int], heard: set[int]) -> None:
        nodes = self.table.state.nodes
        lives = {node_id: nodes[node_id].life for node_id in nodes}
        self.do(
            table_commands.NoteLives(
                tuple(lives[node_id] for node_id in sorted(lost) if node_id in lives),
                tuple(lives[node_id] for node_id in sorted(heard) if node_id in lives),
            )
        )

    @rule(node_id=st.integers(1, 4), is_wiped=st.booleans(), is_clean=st.booleans(), boot_id=st.sampled_from("xy"))
    def begin_a_life(self, node_id: int, is_wiped: bool, is_clean: bool, boot_id: str) -> None:
        known = self.table.state.nodes.get(node_id)
        if known is not None:
            storage = f"storage-{known.node_epoch}" if is_wiped and not is_clean else known.info.storage_id
            info = replace(known.info, storage_id=storage)
            self.do(
                table_commands.RegisterNode(info, boot_id=boot_id, stopped_epoch=known.node_epoch if is_clean else 0)
            )

    @rule(
        chance=CHANCE, node=st.integers(1, 4), length=st.integers(0, 4), is_whole=st.booleans(), fence=st.integers(0, 9)
    )
    def promise(self, chance: int, node: int, length: int, is_whole: bool, fence: int) -> None:
        known, entry = self.table.state.find_segment(self.a_segment(chance)), self.table.state.nodes.get(node)
        if known is not None and entry is not None:
            end_offset = known.base_offset + length
            under = known.fence if fence else fence
            self.do(table_commands.PromiseFence(known.key, under, end_offset, end_offset, is_whole, caller=entry.life))

    @rule(chance=CHANCE, really=st.integers(0, 3))
    def seal_unclean(self, chance: int, really: int) -> None:
        if really == 0:
            self.do(table_commands.SealUnclean(self.a_segment(chance)))

    @rule(chance=CHANCE, count=st.integers(0, 2), behind=st.integers(0, 3))
    def propose_isr(self, chance: int, count: int, behind: int) -> None:
        known = self.table.state.find_segment(self.a_segment(chance))
        if known is not None:
            self.do(table_commands.ProposeIsr(known.key, known.replicas[:count], known.isr_version - behind // 3))

    @rule(chance=CHANCE, really=st.integers(0, 3))
    def begin_recovery(self, chance: int, really: int) -> None:
        if really == 0:
            self.do(table_commands.BeginRecovery(self.a_segment(chance)))

    @rule(chance=CHANCE, offset=st.integers(0, 12))
    def advance_log_start(self, chance: int, offset: int) -> None:
        self.do(table_commands.AdvanceLogStart(self.a_segment(chance).shard_key, offset))

    @rule(chance=CHANCE, other=CHANCE, node=st.integers(1, 2))
    def forget_local(self, chance: int, other: int, node: int) -> None:
        self.do(table_commands.ForgetLocal((self.a_segment(chance),), node))
        self.do(table_commands.ForgetLocal((self.a_segment(chance), self.a_segment(other)), node))

    @rule(chance=CHANCE, node=st.integers(1, 4))
    def report_lost_copies(self, chance: int, node: int) -> None:
        entry = self.table.state.nodes.get(node)
        if entry is not None:
            self.do(
                table_commands.ReportLostCopies((self.a_segment(chance), self.a_segment(chance + 1)), caller=entry.life)
            )

    @rule(chance=CHANCE, node=st.integers(1, 4))
    def report_faulty_copies(self, chance: int, node: int) -> None:
        entry = self.table.state.nodes.get(node)
        if entry is not None:
            segments = (self.a_segment(chance), self.a_segment(chance + 1))
            self.do(table_commands.ReportFaultyCopies(segments, caller=entry.life))

    @rule(chance=CHANCE)
    def purge(self, chance: int) -> None:
        segment = self.a_segment(chance)
        self.do(table_commands.PurgeSegments((segment, segment)))

    # Remote copies, locks
    @rule(holder=st.sampled_from("xxy"), wait_ms=st.sampled_from([0, 5, 2_000]))
    def acquire_lock(self, holder: str, wait_ms: int) -> None:
        self.now_ms += wait_ms
        result = self.do(table_commands.AcquireLock("tier", holder, 1_000))
        if isinstance(result, Lock):
            self.locks.append(result)

    @rule(chance=CHANCE)
    def release_lock(self, chance: int) -> None:
        self.do(table_commands.ReleaseLock(self.a_lock(chance)))
        self.acquire_lock("x", 0)

    @rule(chance=CHANCE, other=CHANCE, length=st.integers(0, 4), behind=st.integers(0, 5))
    def commit(self, chance: int, other: int, length: int, behind: int) -> None:
        commits = []
        for key in (self.a_segment(chance), self.a_segment(other)):
            known = self.table.state.find_segment(key)
            reached = max(key.base_offset, known.remote.commit_offset if known is not None else -1)
            base = reached - behind // 5
            end = base + length
            if known is not None and known.end_offset is not None and behind:
                end = min(end, known.end_offset)
            commits.append(PartCommit(key, base, RemotePart(f"chunk-{base}-{end}", 0, 10, base, end)))
        self.do(table_commands.CommitParts(self.a_lock(chance), tuple(commits)))

    @rule(chance=CHANCE, first=st.integers(0, 2), count=st.integers(1, 3), name=st.sampled_from("pq"))
    def replace_parts(self, chance: int, first: int, count: int, name: str) -> None:
        known = self.table.state.find_segment(self.a_segment(chance))
        old = tuple(known.remote.parts[first : first + count]) if known is not None else ()
        if known is not None and old:
            merged = RemotePart(name, 0, 30, old[0].base_offset, old[-1].end_offset)
            self.do(table_commands.ReplaceParts(self.a_lock(chance), (PartReplacement(known.key, old, (merged,)),)))

    @rule(chance=CHANCE, manifest=st.sampled_from(["m", "n"]))
    def complete(self, chance: int, manifest: str) -> None:
        self.do(table_commands.CompleteRemote(self.a_lock(chance), self.a_segment(chance), manifest, b"digest", 10))

    @rule(chance=CHANCE, manifest=st.sampled_from(["m", "n", "merged"]), digest=st.sampled_from([b"digest", b"new"]))
    def replace_manifest(self, chance: int, manifest: str, digest: bytes) -> None:
        known = self.table.state.find_segment(self.a_segment(chance))
        command = table_commands.ReplaceManifest(
            self.a_lock(chance), self.a_segment(chance), digest, manifest, b"new", 20
        )
        replaced = self.do(command)
        if isinstance(replaced, Segment):
            assert known is not None and known.remote.state is RemoteState.COMPLETE
            assert replaced.remote.manifest_digest == b"new" and replaced.seal == known.seal
            assert digest == known.remote.manifest_digest or replaced == known, "a compare-and-set, or done before"

    @rule(chance=CHANCE, length=st.integers(0, 4))
    def lead_a_segment_through_its_life(self, chance: int, length: int) -> None:
        """What a node does when nothing goes wrong, as far as it gets."""
        key = self.a_segment(chance)
        for _ in range(chance % 5 + 1):
            known = self.table.state.find_segment(key)
            if known is None or known.state is SegmentState.DELETED:
                return
            reached = max(key.base_offset, known.remote.commit_offset)
            if known.state is SegmentState.ACTIVE:
                self.do(
                    table_commands.RollSegment(
                        key, max(reached, self.table.shard(key.shard_key).log_start_offset) + length
                    )
                )
            elif known.state is SegmentState.SEALING:
                for node in known.replicas if len(known.replicas) > 1 else ():
                    self.report(key, node)
                self.do(table_commands.SealSegment(key, record_of(key, known.end_offset or 0, known.replicas)))
            elif reached != known.end_offset:
                piece = RemotePart(f"rest-{reached}", 0, 10, reached, known.end_offset or 0)
                self.do(table_commands.CommitParts(self.locks[-1], (PartCommit(key, reached, piece),)))
            else:
                self.do(table_commands.CompleteRemote(self.locks[-1], key, "m", b"digest", 10))
                self.do(table_commands.ForgetLocal((key,), known.replicas[0]))

    # Rights
    @rule(names=st.sets(st.sampled_from(["", "a", "ab", "*"]), max_size=3), is_allowed=st.booleans())
    def create_rules(self, names: set[str], is_allowed: bool) -> None:
        permission = Permission.ALLOW if is_allowed else Permission.DENY
        self.do(CreateRules(tuple(a_rule(name, permission) for name in sorted(names))))

    @rule(names=st.sets(st.sampled_from([None, "a", "ab", "*"]), max_size=2), exact=st.booleans())
    def delete_rules(self, names: set[str | None], exact: bool) -> None:
        filters = []
        for name in names:
            wanted = RuleFilter(name=name, pattern=PatternType.MATCH)
            if exact and name is not None:
                known = a_rule(name, Permission.ALLOW)
                resource = known.resource
                of_entry = (known.principal, known.host, known.operation, known.permission)
                wanted = RuleFilter(resource.type, resource.name, resource.pattern, *of_entry)
            filters.append(wanted)
        self.do(DeleteRules(tuple(filters)))

    @rule(
        users=st.sets(st.sampled_from("xyz"), max_size=2),
        gone=st.sets(st.sampled_from("xyz"), max_size=1),
        salt=st.sampled_from([b"1", b"2", b""]),
        mechanism=st.sampled_from(ScramMechanism),
    )
    def alter_credentials(self, users: set[str], gone: set[str], salt: bytes, mechanism: ScramMechanism) -> None:
        keys = ScramCredential(salt, b"s" * mechanism.key_bytes, b"k" * mechanism.key_bytes, 4_096)
        put = tuple(UserCredential(user, mechanism, keys) for user in sorted(users))
        self.do(AlterCredentials(tuple(CredentialName(user, mechanism) for user in sorted(gone)), put))

    @rule(
        users=st.lists(st.sampled_from([None, "", "x", "y"]), min_size=1, max_size=3),
        client_id=st.sampled_from([None, "app"]),
        key=st.sampled_from([QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE]),
        limit=st.sampled_from([None, 0.0, 1.5, 3.0]),
    )
    def alter_quotas(self, users: list[str | None], client_id: str | None, key: QuotaKey, limit: float | None) -> None:
        changes = (QuotaChange(key, limit),)
        self.do(AlterQuotas(tuple(QuotaAlteration(QuotaEntity(user, client_id), changes) for user in users)))

    # What is always so
    @invariant()
    def the_table_is_true(self) -> None:
        self.table.check_invariants()

    @invariant()
    def a_watcher_knows_what_a_snapshot_says(self) -> None:
        snapshot = self.table.snapshot()
        assert self.follower.version == snapshot.version
        assert self.follower.topics == {topic.topic_id: topic for topic in snapshot.topics}
        assert self.follower.nodes == {node.node_id: node for node in snapshot.nodes}
        assert self.follower.rules == set(snapshot.rules)
        assert self.follower.credentials == {one.name: one for one in snapshot.credentials}
        assert self.follower.quotas == {one.entity: one.limits for one in snapshot.quotas}
        assert self.follower.shards() == {shard.key: shard for shard in snapshot.shards}

    @invariant()
    def a_store_loads_what_the_table_is(self) -> None:
        loaded = ShardTable.load(encoding.decode(sorted(self.items.items()), "items"), "items")
        assert loaded is not None
        loaded.check_invariants()
        assert state_of(loaded) == state_of(self.table)
        captured = capture(self.table.state)
        assert all(node.token == 0 for node in captured.single if isinstance(node, NodeEntry)), "no token, either"
        with_tokens = (PutNode(node) for node in self.table.state.nodes.values())
        nodes = dict(encoding.encode(with_tokens))
        dumped = encoding.encode(writes_of(captured.records()))
        changes = {key: value for key, value in self.items.items() if key.startswith(b"c")}
        users = {key: value for key, value in self.items.items() if key.startswith(b"u")}
        dumped_items = dict(dumped)
        assert not users.keys() & dumped_items.keys(), "no credential is in a snapshot"
        assert nodes.keys() <= dumped_items.keys()
        assert {**dumped_items, **changes, **users, **nodes} == self.items, "and all else that the store holds"
        kept = loaded.take_change_sets()
        told = self.told[len(self.told) - len(kept) :]
        assert [_alike(one) for one in kept] == [_alike(one) for one in told], "a later leader tells the same"
        assert _credentials_after(kept) == _credentials_after(told), "and comes to the same users"


def a_rule(name: str, permission: Permission) -> Rule:
    """An empty name is one that is refused."""
    pattern = PatternType.PREFIXED if len(name) == 2 else PatternType.LITERAL
    return Rule(Resource(ResourceType.TOPIC, name, pattern), "User:x", "*", Operation.READ, permission)


def _credentials_after(change_sets: Iterable[ChangeSet]) -> dict[CredentialName, UserCredential | None]:
    known: dict[CredentialName, UserCredential | None] = {}
    for change in (change for change_set in change_sets for change in change_set.changes):
        if isinstance(change, CredentialChanged):
            known[change.credential.name] = change.credential
        elif isinstance(change, CredentialDeleted):
            known[change.name] = None
    return known


def _alike(change_set: ChangeSet) -> object:
    """A change set, with parts by their ends: those that were replaced since stand where the old ones stood."""
    changes: list[object] = []
    for change in change_set.changes:
        if isinstance(change, SegmentChanged):
            remote = change.segment.remote
            ends = tuple(part.end_offset for part in remote.parts)
            changes.append((replace(change.segment, remote=replace(remote, parts=())), ends))
        elif isinstance(change, CredentialChanged | CredentialDeleted):
            pass  # as they are now: `_credentials_after`
        else:
            changes.append(change)
    return change_set.version, changes


ShardTableMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
test_any_sequence_of_commands = ShardTableMachine.TestCase
