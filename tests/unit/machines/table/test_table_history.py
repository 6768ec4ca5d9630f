"""The newest change sets are kept with the records, so a watch continues under the next process without a snapshot."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.machines.table.records import (
    KEPT_CHANGE_SETS,
    MAX_KEPT_CHANGES,
    PutHeader,
    TableHeader,
)
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands import table_commands
from stratalog.model.commands.rights_commands import AlterCredentials, AlterQuotas, CreateRules, DeleteRules
from stratalog.model.metadata import (
    ChangeSet,
    CredentialChanged,
    CredentialDeleted,
    Life,
    NodeInfo,
    QuotasChanged,
    QuotasDeleted,
)
from stratalog.model.quotas import EntityQuotas, QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.stored import encoding
from support.table_stories import CLUSTER_ID, NEW_ID, TableStory

MECHANISM = ScramMechanism.SCRAM_SHA_256


class KeptStory(TableStory):
    """A table whose writes are stored as they are made."""

    def __init__(self, nodes: int = 2) -> None:
        self.items = dict(encoding.encode([PutHeader(TableHeader(CLUSTER_ID, 0, 1))]))
        self.told: list[ChangeSet] = []
        super().__init__(nodes)

    def do(self, command: table_commands.Command, new_id: UUID = NEW_ID):  # type: ignore[no-untyped-def, type-arg]
        applied = super().do(command, new_id)
        for key, value in encoding.encode(applied.writes):
            if value is None:
                self.items.pop(key, None)
            else:
                self.items[key] = value
        if applied.change_set is not None:
            self.told.append(applied.change_set)
        return applied

    def kept(self) -> tuple[ChangeSet, ...]:
        stored = sorted((key, value) for key, value in self.items.items() if value is not None)
        loaded = ShardTable.load(encoding.decode(stored, "items"), "items")
        assert loaded is not None
        return loaded.take_change_sets()


@pytest.mark.fault("leader-change-durable-dies")
def test_every_kind_of_change_is_kept_as_it_was_reported() -> None:
    story = KeptStory()
    topic = story.topic(shards=2, replicas=2)
    story.do(table_commands.AlterTopic(topic.topic_id, {"retention.ms": "é"}))
    segment = story.active(topic)
    story.do(table_commands.ProposeIsr(segment.key, (segment.replicas[0],), 0))
    story.prepare(segment.key)
    story.roll(segment.key, 10)
    story.report(segment.key, segment.replicas[1], b"other")
    story.report(segment.key, segment.replicas[0])
    lock = story.lock()
    story.commit(lock, segment.key, 0, 4)
    story.commit(lock, segment.key, 4, 10)
    story.do(table_commands.NoteLives(lost=(Life(2, 1),)))
    second = story.active(topic).key
    story.recover(second)
    story.promise(second, 1, 12, high_watermark=11)
    gone = story.topic("gone")
    story.do(table_commands.DeleteTopic(gone.topic_id))
    assert story.kept() == tuple(story.told)


def test_a_set_whose_parts_gave_way_to_a_manifest_ends_what_is_kept() -> None:
    """Older change sets are not known any more; a watcher that was shortly behind continues anyway."""
    story = KeptStory()
    key = story.active(story.topic()).key
    story.roll(key, 10)
    story.seal(key)
    lock = story.lock()
    story.commit(lock, key, 0, 10)
    committed = len(story.told)
    story.complete(lock, key)
    story.do(table_commands.NoteLives(lost=(Life(2, 1),)))
    assert story.kept() == tuple(story.told[committed:])


def test_a_set_of_a_purged_segment_is_kept_unless_it_told_of_its_seal() -> None:
    story = KeptStory(nodes=1)
    key = story.active(story.topic()).key
    story.roll(key, 10)
    rolled = len(story.told)
    story.do(table_commands.AdvanceLogStart(key.shard_key, 10))
    story.do(table_commands.PurgeSegments((key,)))
    assert story.kept() == tuple(story.told)
    sealed = story.active(story.topic("other")).key
    story.roll(sealed, 5)
    story.seal(sealed)
    told = len(story.told)
    story.do(table_commands.AdvanceLogStart(sealed.shard_key, 5))
    story.do(table_commands.PurgeSegments((sealed,)))
    kept = story.kept()
    assert rolled < told and kept == tuple(story.told[-1:]), "the deletion told of the sealed segment as a whole"


def test_a_large_set_is_not_kept_and_later_ones_are() -> None:
    story = KeptStory()
    story.topic(shards=MAX_KEPT_CHANGES)
    assert story.kept() == ()
    story.do(table_commands.NoteLives(lost=(Life(2, 1),)))
    assert story.kept() == tuple(story.told[-1:])


def test_a_limited_number_is_kept() -> None:
    story = KeptStory()
    node = NodeInfo(1, "storage-1", "host", 9092)
    for _ in range(KEPT_CHANGE_SETS + 10):
        story.do(table_commands.RegisterNode(node))
    assert story.kept() == tuple(story.told[-KEPT_CHANGE_SETS:])
    assert len([key for key in story.items if key.startswith(b"c")]) == KEPT_CHANGE_SETS


def test_records_of_before_there_was_a_history_have_none() -> None:
    story = KeptStory()
    story.topic()
    story.items = {key: value for key, value in story.items.items() if not key.startswith(b"c")}
    assert story.kept() == ()
    story.do(table_commands.CreateTopic("more", 1, 1, {}), UUID(int=77))
    assert story.kept() == tuple(story.told[-1:])


def test_what_a_table_was_loaded_with_is_given_once() -> None:
    story = KeptStory()
    loaded = ShardTable.load(encoding.decode(sorted((k, v or b"") for k, v in story.items.items()), "items"), "items")
    assert loaded is not None
    assert len(loaded.take_change_sets()) == 2
    assert loaded.take_change_sets() == ()


def test_quotas_are_kept_as_they_were_reported() -> None:
    story = KeptStory(nodes=1)
    entity = QuotaEntity("a", "")
    for limit in (1.0, 2.5, None):
        story.do(AlterQuotas((QuotaAlteration(entity, (QuotaChange(QuotaKey.REQUEST_PERCENTAGE, limit),)),)))
    assert story.kept() == tuple(story.told)
    assert [one.changes[0] for one in story.told[-3:]] == [
        QuotasChanged(EntityQuotas(entity, QuotaLimits(request_percentage=1.0))),
        QuotasChanged(EntityQuotas(entity, QuotaLimits(request_percentage=2.5))),
        QuotasDeleted(entity),
    ]


def test_rights_are_kept_as_they_were_reported_and_keys_only_in_their_own_record() -> None:
    story = KeptStory(nodes=1)
    rule = Rule(Resource(ResourceType.TOPIC, "a"), "User:a", "*", Operation.READ, Permission.ALLOW)
    story.do(CreateRules((rule,)))
    story.do(DeleteRules((RuleFilter(),)))
    first, second, gone = (
        UserCredential(user, MECHANISM, ScramCredential(b"s", key * 32, b"k" * 32, 4_096))
        for user, key in (("a", b"1"), ("a", b"2"), ("b", b"3"))
    )
    story.do(AlterCredentials(put=(first, gone)))
    story.do(AlterCredentials(put=(second,)))
    story.do(AlterCredentials(deleted=(gone.name,)))
    kept, told = story.kept(), story.told
    assert [one.version for one in kept] == [one.version for one in told]
    assert kept[:-3] == tuple(told[:-3]), "rules"
    assert [one.changes for one in kept[-3:]] == [
        (CredentialChanged(second), CredentialDeleted(gone.name)),
        (CredentialChanged(second),),
        (CredentialDeleted(gone.name),),
    ], "as they are now: who follows never sets a key that another replaced"
    stored = b"".join(value for value in story.items.values() if value is not None)
    assert (b"2" * 32).hex().encode() in stored
    for key in (b"1", b"3"):
        assert (key * 32).hex().encode() not in stored, "a key that was replaced or deleted stays nowhere"
