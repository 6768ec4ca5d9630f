"""The store over etcd, whatever becomes of its transactions: whole commands, in their order, each once.

The real store runs over an etcd in memory (`support.memory_etcd`), with limits so small that most commands are large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.machines.table.records import (
    DropPurgedTopic,
    PurgedTopic,
    PutHeader,
    PutLock,
    PutPurgedTopic,
    TableHeader,
    TableWrite,
)
from stratalog.model.errors import Corrupt, DiskFull, InvalidRequest, OutcomeUnknown, Unavailable
from stratalog.model.metadata import Lock
from stratalog.stored import encoding
from stratalog_meta.stores.etcd import layout, redo, split
from stratalog_meta.stores.etcd.address import parse_address
from stratalog_meta.stores.etcd.layout import LEADER, TURN, Delete, Operation, Put
from stratalog_meta.stores.etcd.outcome import Fence, Outcome, Seen, outcome_of
from stratalog_meta.stores.etcd.store import EtcdStore
from stratalog_meta.stores.meta_store import WriteRefused
from support.memory_etcd import Fate, MemoryEtcd, ScriptedClient, ToldLeadership

PREFIX = b"/p/"


@contextmanager
def small_limits() -> Iterator[None]:
    with (
        patch.object(split, "MAX_OPERATIONS", 4),
        patch.object(split, "MAX_BYTES", 600),
        patch.object(layout, "SLICE_BYTES", 200),
        patch.object(redo, "SLICE_BYTES", 200),
    ):
        yield


locks = st.builds(
    lambda number, size, letter: PutLock(Lock(f"lock {number}", letter * size, 1, 1)),
    st.integers(0, 7),
    st.sampled_from([0, 1, 30, 150, 250, 900]),
    st.sampled_from("abc"),
)


def lock(name: str, size: int) -> PutLock:
    return PutLock(Lock(name, "x" * size, 1, 1))


topics = st.integers(0, 3).map(lambda number: UUID(int=number))
writes = st.one_of(
    locks,
    st.builds(lambda topic, ms: PutPurgedTopic(PurgedTopic(topic, ms)), topics, st.integers(0, 9)),
    st.builds(DropPurgedTopic, topics),
)
commands = st.lists(writes, min_size=1, max_size=9)
turns = st.lists(commands, min_size=1, max_size=4)


def numbered(turn: Sequence[Sequence[TableWrite]], first: int) -> list[list[TableWrite]]:
    """Each command moves the header, as the table's commands do: the header tells how many are there."""
    return [[PutHeader(TableHeader("c", first + index, 1)), *command] for index, command in enumerate(turn)]


class Model:
    """What must be stored: the items of the commands that count."""

    def __init__(self) -> None:
        self.items: dict[bytes, bytes] = {}
        self.version = 0

    def add(self, done: Sequence[Sequence[TableWrite]]) -> None:
        for command in done:
            for key, value in encoding.encode(command):
                if value is None:
                    self.items.pop(key, None)
                else:
                    self.items[key] = value
            self.version += 1

    def places(self) -> set[bytes]:
        """Every key that may be in etcd then, but for the leader's."""
        places = {PREFIX + TURN}
        for key, value in self.items.items():
            places.add(PREFIX + layout.RECORDS + key)
            if len(value) > layout.SLICE_BYTES:
                pieces = range(-(-len(value) // layout.SLICE_BYTES))
                places |= {layout.numbered(PREFIX + layout.LONG_VALUES + key, number) for number in pieces}
        return places

    def records(self) -> list[object]:
        return list(encoding.decode(sorted(self.items.items()), "model"))


def version_of(records: Sequence[object]) -> int:
    return next((record.version for record in records if isinstance(record, TableHeader)), 0)


# Most are done: a turn makes many transactions, and all that follow one that was lost are not sent.
fates = st.lists(st.sampled_from([Fate.DONE] * 2 * len(Fate) + list(Fate)), min_size=20, max_size=80)


async def story(plan: Sequence[tuple[bool, Sequence[Sequence[TableWrite]]]], script: Sequence[Fate]) -> None:
    """Turns by one leader after the other (True: another leads from here on), then what a last one finds."""
    etcd, left, is_calm = MemoryEtcd(), iter(script), False
    client = ScriptedClient(etcd, lambda: Fate.DONE if is_calm else next(left, Fate.DONE))
    model = Model()

    async def lead() -> EtcdStore:
        nonlocal is_calm
        is_calm = True
        leadership = ToldLeadership(etcd.new_leader(PREFIX + LEADER))
        store = EtcdStore(client, PREFIX, leadership, compact_every_s=3_600)  # type: ignore[arg-type]
        assert await store.load() == model.records()
        is_calm = False
        return store

    store = await lead()
    for is_another, turn in plan:
        if is_another:
            deposed, store = store, await lead()
            await stays_out(deposed, turn)
        asked = numbered(turn, model.version + 1)
        try:
            await store.write(asked)
            model.add(asked)
        except WriteRefused as refusal:
            model.add(asked[: refusal.kept])
        except (OutcomeUnknown, DiskFull):
            await store.close()
            is_calm = True
            found = await store.load()
            model.add(asked[: version_of(found) - model.version])
            assert found == model.records(), "whole commands, the first ones"
            is_calm = False
    await store.close()
    await (await lead()).close()
    client.let_delayed_arrive()
    await (await lead()).close()
    assert etcd.kvs.keys() - {PREFIX + LEADER} == model.places(), "nothing is left over"


async def stays_out(deposed: EtcdStore, turn: Sequence[Sequence[TableWrite]]) -> None:
    """A leader that does not know yet that another one leads; what it does shows at the next load."""
    try:
        await deposed.write(turn)
    except WriteRefused as refusal:
        assert refusal.kept == 0
    except (OutcomeUnknown, DiskFull, Unavailable):
        pass
    else:
        raise AssertionError("a deposed leader wrote")
    await deposed.close()
    with pytest.raises((OutcomeUnknown, Unavailable)):
        await deposed.load()
    await deposed.close()


@pytest.mark.fault("answer-etcd-lost-arrives")
@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from([False, False, True]), turns), min_size=2, max_size=6), fates)
@example([(False, [[lock("a", 900)]]), (False, [[lock("a", 0)]])], [])
@example([(False, [[lock("a", 1)]]), (False, [[lock("b", 1)]])], [Fate.DELAYED_THEN_NO_SPACE])
@example([(False, [[lock("a", size)]]) for size in range(9)], [Fate.DELAYED, Fate.DELAYED])
def test_whatever_becomes_of_transactions_whole_commands_keep_their_order(
    plan: Sequence[tuple[bool, Sequence[Sequence[TableWrite]]]], script: Sequence[Fate]
) -> None:
    with small_limits():
        asyncio.run(story(plan, script))


@pytest.mark.fault("leading-meta-service-killed")
@given(turns, st.integers(1, 40), st.sampled_from([Fate.LOST, Fate.UNANSWERED, Fate.DELAYED, Fate.LAST_SPACE]))
def test_a_leader_that_is_gone_at_any_transaction_leaves_whole_commands(
    turn: Sequence[Sequence[TableWrite]], last: int, fate: Fate
) -> None:
    """The next leader comes at once, and what was delayed arrives after it."""
    with small_limits():
        asyncio.run(story([(False, turn), (True, turn)], [*[Fate.DONE] * last, *[fate] * 50]))


# The pieces -------------------------------------------------------------------------------------------------------
items = st.dictionaries(st.binary(min_size=1, max_size=9), st.none() | st.binary(max_size=700), min_size=1, max_size=12)


@given(st.lists(items, max_size=12), st.sets(st.binary(min_size=1, max_size=2), max_size=5))
def test_a_turn_is_cut_at_commands_within_the_limits(asked: list[dict[bytes, bytes | None]], long: set[bytes]) -> None:
    with small_limits():
        steps = list(split.split([list(command.items()) for command in asked], set(long)))
        assert sum(step.commands if isinstance(step, split.Together) else 1 for step in steps) == len(asked)
        for step in steps:
            runs = [step.operations] if isinstance(step, split.Together) else list(split.chunks(step.operations))
            assert [one for run in runs for one in run] == step.operations
            for run in runs:
                assert len(run) <= 4 and (sum(map(layout.size_of, run)) <= 600 or len(run) == 1)
                keys = [operation.key for operation in run]
                assert len(set(keys)) == len(keys), "etcd takes a key once in a transaction"


@given(st.lists(st.builds(Put, st.binary(), st.binary(max_size=99)) | st.builds(Delete, st.binary(), st.binary())))
def test_what_is_written_down_is_read_back(operations: list[Operation]) -> None:
    with small_limits():
        written = redo.write_down(operations)
    assert redo.part_count(written.record, "here") == len(written.parts)
    assert redo.read_back(written.record, written.parts, "here") == operations
    assert all(len(one) <= 200 for one in written.parts)


@pytest.mark.fault("record-piece-part-command")
@given(st.lists(st.builds(Put, st.binary(), st.binary(max_size=99)), min_size=1), st.data())
def test_a_changed_part_is_never_carried_out(operations: list[Operation], data: st.DataObject) -> None:
    written = redo.write_down(operations)
    (part,) = written.parts
    at = data.draw(st.integers(0, len(part) - 1))
    damaged = part[:at] + bytes((part[at] ^ data.draw(st.integers(1, 255)),)) + part[at + 1 :]
    for parts in ([damaged], [part[:at]], [], [part, b"x"]):
        with pytest.raises(Corrupt, match="here"):
            redo.read_back(written.record, parts, "here")


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (Seen(5, 9, b"mine"), Outcome.WRITTEN),
        (Seen(0, 9, b"mine"), Outcome.WRITTEN),
        (Seen(5, 7, b"before"), Outcome.NOT_YET),
        (Seen(0, 7, b"before"), Outcome.NEVER),
        (Seen(8, 7, b"before"), Outcome.NEVER),
        (Seen(8, 9, b"theirs"), Outcome.UNKNOWN),
        (Seen(5, 9, b"theirs"), Outcome.UNKNOWN),
    ],
)
def test_leader_key_and_stamp_tell_what_became_of_a_transaction(seen: Seen, outcome: Outcome) -> None:
    assert outcome_of(Fence(5, 7), b"mine", seen) is outcome


# Addresses --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "endpoints", "prefix"),
    [
        ("etcd://a:1", ("a:1",), "stratalog"),
        ("etcd://10.0.0.1:2379,10.0.0.2:2379/", ("10.0.0.1:2379", "10.0.0.2:2379"), "stratalog"),
        ("etcd://[::1]:2379,b.local:02/deep/one/", ("[::1]:2379", "b.local:2"), "deep/one"),
    ],
)
def test_an_address_names_members_and_prefix(url: str, endpoints: tuple[str, ...], prefix: str) -> None:
    place = parse_address(url)
    assert (place.endpoints, place.prefix, place.key_prefix) == (endpoints, prefix, f"/{prefix}/".encode())
    assert parse_address(str(place)) == place


@pytest.mark.parametrize(
    "url",
    [
        "http://a:1",
        "etcd://",
        "etcd://a",
        "etcd://a:0",
        "etcd://a:65536",
        "etcd://a:x",
        "etcd://:1",
        "etcd://a:1,",
        "etcd://a:1,a:1",
        "etcd://::1:1",
        "etcd://u@a:1",
        "etcd://a:1/two words",
        "etcd://a:1/" + "x" * 300,
    ],
)
def test_an_address_that_is_wrong_is_refused_in_words(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"etcd|port|prefix|HOST:PORT|twice"):
        parse_address(url)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        place = parse_address("etcd://" + text)
    except InvalidRequest:
        return
    assert parse_address(str(place)) == place
