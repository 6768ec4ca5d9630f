"""Records as JSON: made from their fields alone, and read strictly where a caller asks."""

from __future__ import annotations

import json
import traceback
from dataclasses import MISSING, dataclass, fields, replace
from types import NoneType
from uuid import UUID

import pytest
from pydantic_core import ValidationError

from stratalog.meta_api.json_shape import JsonObject, JsonShape, NotOfShape, describe, field_name
from stratalog.meta_api.wire import COMMAND_WIRES, SEGMENT, SEGMENT_COMMANDS, SegmentCommands
from stratalog.model.commands.rights_commands import AlterCredentials, DeleteRules
from stratalog.model.commands.table_commands import (
    COMMANDS,
    CreateTopic,
    ForgetLocal,
    PartOutcomes,
    ReportReplica,
    RollSegment,
    SealSegment,
)
from stratalog.model.errors import Conflict, Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Change, SegmentPurged, TopicDeleted
from stratalog.model.parts import PartList
from stratalog.model.quotas import QuotaChange, QuotaKey
from stratalog.model.rights import ResourceType, RuleFilter
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemoteCopy, RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic
from support.meta_worlds import part, seal_record
from support.source_tree import REPOSITORY

KEY = SegmentKey(UUID(int=1), 2, 3, 4)
ASKED: JsonShape[RollSegment] = JsonShape(RollSegment, is_asked=True)
TOLD: JsonShape[RollSegment] = JsonShape(RollSegment)
ROLL = ASKED.write(RollSegment(KEY, 9))


def segment() -> Segment:
    remote = RemoteCopy(RemoteState.PARTIAL, 9, PartList([part(4, 9)]), None, b"\x00\xff\xfe", 5)
    return Segment(KEY, SegmentState.SEALING, None, (1, 2), (2,), 0, 7, 9, seal_record(KEY, 9), (), remote)


def test_a_record_is_an_object_of_its_fields() -> None:
    told = json.loads(SEGMENT.write(segment()))
    assert told["key"] == {"topic_id": str(UUID(int=1)), "shard": 2, "epoch": 3, "base_offset": 4}
    assert (told["state"], told["leader"], told["isr"], told["seal"]["digest"]) == ("sealing", None, [2], "0Z4=")
    assert told["remote"]["parts"][0]["object_key"] == "data/4-9.chunk"
    assert SEGMENT.read(SEGMENT.write(segment())) == segment()


def test_one_of_several_is_named_after_its_kind() -> None:
    shape: JsonShape[tuple[Change, ...]] = JsonShape(tuple[Change, ...])
    changes = (SegmentPurged(KEY), TopicDeleted(Topic("a", UUID(int=1), 1, 1, {"k": "v"}, 5)))
    told = json.loads(shape.write(changes))
    assert [list(change) for change in told] == [["segment_purged"], ["topic_deleted"]]
    assert shape.read(shape.write(changes)) == changes
    for line in (b"[{}]", b'[{"novel":{}}]', b'[{"segment_purged":{},"topic_deleted":{}}]', b"[null]"):
        with pytest.raises(NotOfShape):
            shape.read(line)


def test_bytes_in_one_of_several_that_are_asked_come_back_as_they_were() -> None:
    """If bytes were read as their base64 text, a digest would differ from that of every other copy."""
    proof = replace(seal_record(KEY, 9), digest=bytes(range(240, 256)))
    asked = SegmentCommands((ReportReplica(KEY, proof), SealSegment(KEY, proof)))
    assert SEGMENT_COMMANDS.read(SEGMENT_COMMANDS.write(asked)) == asked


def test_an_error_among_outcomes_is_a_problem_and_comes_back_as_itself() -> None:
    shape: JsonShape[PartOutcomes] = JsonShape(PartOutcomes)
    outcomes = (segment(), Conflict("read again"), Corrupt("torn", source="file", position=7))
    told = json.loads(shape.write(outcomes))
    assert [list(outcome) for outcome in told] == [["segment"], ["problem"], ["problem"]]
    first, conflict, corrupt = shape.read(shape.write(outcomes))
    assert first == segment()
    assert type(conflict) is Conflict and str(conflict) == "read again"
    assert isinstance(corrupt, Corrupt) and corrupt.position == 7


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (b'"end_offset":9', b'"end_offset":9,"until":9', "RollSegment has no field 'until'"),
        (b'"shard":2', b'"shard":2,"partition":2', "SegmentKey has no field 'partition'"),
        (b',"end_offset":9', b"", "end_offset: Field required"),
        (b'"shard":2', b'"shard":"2"', "segment.shard"),
        (b'"shard":2', b'"shard":2.0', "segment.shard"),
        (b'"shard":2', b'"shard":true', "segment.shard"),
        (b'"shard":2', b'"shard":null', "segment.shard"),
        (b'"shard":2', b'"shard":2147483648', "segment.shard"),
        (b'"epoch":3', b'"epoch":-1', "segment.epoch"),
        (b'"end_offset":9', b'"end_offset":9223372036854775808', "end_offset"),
        (b'"end_offset":9', b'"end_offset":' + b"9" * 4_000, "end_offset"),
        (b'"end_offset":9', b'"end_offset":' + b"9" * 9_000, "all of it"),
        (b'"topic_id":"0', b'"topic_id":"x', "segment.topic_id"),
        (b'{"caller"', b'[{"caller"', "all of it"),
    ],
)
def test_what_a_caller_asks_is_read_strictly_and_the_message_names_the_field(
    old: bytes, new: bytes, place: str
) -> None:
    assert old in ROLL
    with pytest.raises(NotOfShape, match=f"^{place}"):
        ASKED.read(ROLL.replace(old, new))


KEYS = b'{"node_id":1,"segments":['


@pytest.mark.fault("body-16-mib-meta")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ForgetLocal, KEYS + b"1," * 50_000 + b"1]}"),
        (ForgetLocal, KEYS + b"{}," * 50_000 + b"{}]}"),
        (ForgetLocal, KEYS + b'{"' + b"x" * 500_000 + b'":1}]}'),
        (ForgetLocal, b"{" + b",".join(b'"%x":1' % number for number in range(50_000)) + b"}"),
        (CreateTopic, b'{"settings":{' + b",".join(b'"%x":1' % number for number in range(50_000)) + b"}}"),
    ],
    ids=["no records", "empty records", "a long name", "unknown fields", "settings that are no text"],
)
def test_the_first_faults_end_the_reading_however_many_there_are(kind: type, body: bytes) -> None:
    """A list of all that is wrong with 16 MiB held the loop for 105 s and took 7.6 GB."""
    shape: JsonShape[object] = JsonShape(kind, is_asked=True)
    with pytest.raises(NotOfShape) as caught:
        shape.read(body)
    faults = caught.value.__cause__.error_count() if isinstance(caught.value.__cause__, ValidationError) else 1
    assert faults <= 5, "a few of one record, and no record after the first that is wrong"
    assert len(str(caught.value)) < 300


def test_what_the_service_says_may_have_fields_of_a_newer_one() -> None:
    newer = ROLL.replace(b'"shard":2', b'"shard":2,"zone":"a"').replace(b'"end_offset":9', b'"end_offset":9,"by":1')
    assert TOLD.read(newer) == RollSegment(KEY, 9)


def test_a_field_that_is_left_out_has_its_default() -> None:
    shape: JsonShape[CreateTopic] = JsonShape(CreateTopic, is_asked=True)
    assert shape.read(b'{"name":"a","shard_count":1,"replication_factor":1}') == CreateTopic("a", 1, 1)


def test_every_command_has_a_path_of_its_own_and_words_that_describe_it() -> None:
    components: dict[str, JsonObject] = {}
    assert len({wire.path for wire in COMMAND_WIRES.values()}) == len(COMMANDS) == 46
    for kind in COMMANDS:
        assert describe(kind, components) == {"$ref": f"#/components/schemas/{kind.__name__}"}
        assert components[kind.__name__].get("description"), f"{kind.__name__} says what it does in its docstring"
    assert field_name(RollSegment) == "roll_segment"


def test_the_page_lists_every_command_as_it_is() -> None:
    page = (REPOSITORY / "docs/meta.md").read_text(encoding="utf-8")
    for kind, wire in COMMAND_WIRES.items():
        own = [entry for entry in fields(kind) if entry.name != "caller"]  # the page says it once for all of them
        given = [(entry.name, entry.default is MISSING and entry.default_factory is MISSING) for entry in own]
        names = ", ".join(f"`{name}`{'' if is_needed else '?'}" for name, is_needed in given)
        answer = "nothing" if wire.answers is NoneType else wire.answers.__name__  # type: ignore[attr-defined]
        answer = "outcomes" if answer == "tuple" else answer
        again = "yes" if kind.is_idempotent else "no"
        assert f"| `{wire.path.rpartition('/')[2]}` | {names} | {answer} | {again} |" in page


def test_a_number_of_an_enum_is_read_as_itself_alone() -> None:
    shape: JsonShape[DeleteRules] = JsonShape(DeleteRules, is_asked=True)
    asked = DeleteRules((RuleFilter(ResourceType.GROUP, "a"),))
    assert shape.write(asked).startswith(b'{"caller":null,"filters":[{"resource_type":3,')
    assert shape.read(shape.write(asked)) == asked
    for wrong in (b'"3"', b"3.5", b"99", b"true", b'"GROUP"', b"null"):
        with pytest.raises(NotOfShape, match="resource_type"):
            shape.read(b'{"filters":[{"resource_type":%b}]}' % wrong)


def test_no_error_repeats_what_was_read_for_it_may_be_a_key() -> None:
    shape: JsonShape[AlterCredentials] = JsonShape(AlterCredentials, is_asked=True)
    keys = ScramCredential(b"salt", b"s3cr3t-key" * 3, b"another-key", 4_096)
    body = shape.write(AlterCredentials(put=(UserCredential("a", ScramMechanism.SCRAM_SHA_256, keys),)))
    for wrong in (body.replace(b"4096", b'"4096"'), body.replace(b'"user"', b'"usr"'), body[:-3], body[:-30] + b"]}"):
        with pytest.raises(NotOfShape) as caught:
            shape.read(wrong)
        told = "".join(traceback.format_exception(caught.value))
        assert "czNjcjN0" not in told and "s3cr3t" not in told


def test_a_type_without_a_shape_is_named_when_the_program_starts() -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        ratio: complex

    with pytest.raises(TypeError, match="complex"):
        JsonShape(Odd)


def test_a_fraction_is_read_as_a_number_and_as_nothing_else() -> None:
    shape: JsonShape[QuotaChange] = JsonShape(QuotaChange, is_asked=True)
    for limit in (0.1, 5.0, 1e300, None):
        change = QuotaChange(QuotaKey.REQUEST_PERCENTAGE, limit)
        assert shape.read(shape.write(change)) == change
    for wrong in (b'"1"', b"true", b"NaN", b"Infinity", b"1e999", b"[1]"):
        with pytest.raises(NotOfShape):
            shape.read(b'{"key": "request_percentage", "limit": %b}' % wrong)
