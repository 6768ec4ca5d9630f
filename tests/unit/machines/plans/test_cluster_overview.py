"""The cluster UI: from the metadata, and from the nodes' heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stratalog.machines.plans.cluster_overview import (
    LONGEST_TEXT,
    MAX_MOUNTS,
    MAX_NODES,
    MAX_RETIREMENTS,
    MAX_STOPPED,
    MAX_TROUBLES,
    SILENT_MS,
    Known,
    overview,
)
from stratalog.machines.plans.heartbeat_history import HeartbeatHistory
from stratalog.meta_api import wire
from stratalog.model.activity import Activity, StoppedHere, UploadActivity
from stratalog.model.commands.retirement_commands import AdvanceRetirement, RetireNode
from stratalog.model.commands.table_commands import CreateTopic, NoteLives, ProposeIsr
from stratalog.model.metadata import Life, Vitals
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, Volume
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Wait, WaitReason
from stratalog.model.views.retirement_status import RetirementStatus, words_of
from stratalog.model.views.status_page import NodeRow, Overview
from support.retirement_story import RetirementStory
from support.table_stories import NEW_ID

GIB = 1 << 30
IDLE = Activity(0, 0)
VOLUME = Volume("there", 9700, "start")


class Watched(RetirementStory):
    """A cluster whose nodes tell of themselves."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__(nodes)
        self.courses = HeartbeatHistory()
        for node_id in range(1, nodes + 1):
            self.report(node_id)

    def report(self, node_id: int, activity: Activity = IDLE, free: int = 60 * GIB) -> None:
        self.courses.note(node_id, self.now_ms, Vitals(free, 100 * GIB, True, activity=activity))

    def shown(
        self,
        *,
        why: str | None = None,
        faults: Sequence[str] = (),
        has_leases: bool = True,
        retirements: Sequence[RetirementStatus] = (),
        mounts: Sequence[Mount] = (),
    ) -> Overview:
        known = Known(
            "cluster-1",
            replace(self.table.snapshot(), mounts=tuple(mounts)),
            self.now_ms,
            self.courses.last_heartbeat,
            retirements,
            why,
            faults,
            has_leases=has_leases,
        )
        steps = overview(known)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                made: Overview = done.value
                assert wire.OVERVIEW.read(wire.OVERVIEW.write(made)) == made
                return made

    def row(self, node_id: int) -> NodeRow:
        return next(one for one in self.shown().nodes if one.node_id == node_id)

    def lose(self, node_id: int) -> None:
        self.do(NoteLives(lost=(Life(node_id, self.node(node_id).epoch),)))


# Nodes ----------------------------------------------------------------------------------------------------------------
def test_of_a_cluster_that_is_well_there_is_nothing_to_complain() -> None:
    story = Watched()
    story.topic("orders", shards=6, replicas=3)
    shown = story.shown()
    assert (shown.faults, shown.troubles, shown.stopped, shown.why_no_changes) == ((), (), (), None)
    assert (shown.shards.shards, shown.shards.led, shown.shards.under_replicated, shown.shards.troubled) == (6, 6, 0, 0)
    assert [one.state for one in shown.nodes] == ["alive"] * 3
    assert [one.replicas for one in shown.nodes] == [6, 6, 6] and sum(one.leads for one in shown.nodes) == 6


def test_a_node_shows_what_it_reported_last_and_how_long_ago() -> None:
    story = Watched()
    story.now_ms += 4_000
    uploads = UploadActivity(unsent_bytes=7, unsent_segments=2, oldest_unsent_ms=900)
    story.report(2, Activity(10, 20, uploads), free=5)
    story.now_ms += 3_000
    row = story.row(2)
    assert (row.told_ms_ago, row.disk_free_bytes, row.disk_total_bytes, row.uploads) == (3_000, 5, 100 * GIB, uploads)


@pytest.mark.fault("views-ui-meta-service")
@pytest.mark.parametrize(
    "what, state, told",
    [
        ("is not alive", "not alive", "node 2 is not alive: start it"),
        ("is silent", "silent", "node 2 has reported nothing for over 15 s"),
        ("leaves", "leaves", None),
    ],
)
def test_a_node_that_cannot_be_asked_is_shown_as_such(what: str, state: str, told: str | None) -> None:
    story = Watched()
    match what:
        case "is not alive":
            story.lose(2)
        case "is silent":
            story.now_ms += SILENT_MS + 1
            for node_id in (1, 3):
                story.report(node_id)
        case "leaves":
            story.do(RetireNode(2))
            story.do(AdvanceRetirement(2, story.record(2), RetireStep.CORDON, None))
    shown = story.shown()
    assert [one.state for one in shown.nodes if one.node_id != 2] == ["alive", "alive"]
    assert next(one.state for one in shown.nodes if one.node_id == 2) == state
    assert [told is not None and one.startswith(told) for one in shown.faults] == ([True] if told else [])


def test_what_a_retired_node_reported_last_is_not_counted_any_more() -> None:
    story = Watched()
    story.topic("orders", settings={"remote.storage.enable": "true"})
    story.report(3, Activity(0, 0, UploadActivity(unsent_bytes=7)))
    story.do(RetireNode(3))
    story.roll_away(3)
    story.report_all()
    story.upload_all()
    story.leave(3, by_node=1)
    row = story.row(3)
    assert (row.state, row.uploads, row.disk_free_bytes, row.leads) == ("retired", None, -1, 0)
    assert story.shown().faults == ()


def test_a_node_that_never_reported_has_no_figures_and_does_no_harm() -> None:
    story = Watched(1)
    story.courses = HeartbeatHistory()
    (row,) = story.shown().nodes
    assert (row.state, row.told_ms_ago, row.disk_free_bytes, row.uploads) == ("silent", -1, -1, None)


def test_nodes_that_live_in_the_services_process_are_not_called_silent() -> None:
    story = Watched(1)
    story.courses = HeartbeatHistory()
    shown = story.shown(has_leases=False)
    assert (shown.nodes[0].state, shown.faults) == ("alive", ())


def test_what_a_node_complains_of_is_a_fault_as_long_as_it_lives() -> None:
    story = Watched()
    story.report(1, Activity(0, 0, UploadActivity(store_away_ms=90_000), ("disk: no room",)))
    assert story.shown().faults == (
        "node 1: disk: no room",
        "node 1: the object store has taken no uploads for 90 s: see the log of the node, and test the bucket with "
        "`stratalog doctor URL`",
    )
    story.lose(1)
    assert [one for one in story.shown().faults if "disk" in one or "store" in one] == []


def test_why_nothing_changes_and_what_the_service_lacks_are_faults() -> None:
    shown = Watched().shown(why="the store is full", faults=("no snapshots",))
    assert shown.why_no_changes == "the store is full"
    assert shown.faults == ("metadata: the store is full", "no snapshots")


# Shards and tiers -----------------------------------------------------------------------------------------------------
def test_a_shard_with_trouble_names_its_leader_and_its_replicas_in_sync_the_worst_first() -> None:
    story = Watched()
    thin = story.active(story.topic("thin", replicas=3))
    strict = story.active(story.topic("strict", replicas=3, settings={"min.insync.replicas": "3"}))
    for segment in (thin, strict):
        story.do(ProposeIsr(segment.key, (1, 2), 0))
    shown = story.shown()
    assert [(one.topic, one.kind, one.isr, one.replicas) for one in shown.troubles] == [
        ("strict", "below_min_in_sync", (1, 2), strict.replicas),
        ("thin", "not_in_sync", (1, 2), thin.replicas),
    ]
    assert {one.leader for one in shown.troubles} == {strict.leader, thin.leader}
    assert (shown.shards.under_replicated, shown.shards.troubled, shown.shards.led) == (2, 2, 2)


def test_sealed_segments_are_summed_up_by_where_they_are() -> None:
    story = Watched(1)
    first, second = story.topic("first"), story.topic("second")
    for topic in (first, second):
        key = story.active(topic).key
        story.roll(key, 100)
        story.seal(key)
    lock = story.lock()
    key = story.table.shard(next(one.key for one in story.table.snapshot().shards)).segments[0].key
    story.commit(lock, key, 0, 100)
    story.complete(lock, key)
    tiers = story.shown().tiers
    size = tiers.local.bytes
    assert size > 0
    assert [(one.segments, one.bytes) for one in (tiers.local, tiers.both, tiers.cold, tiers.nowhere)] == [
        (1, size),
        (1, size),
        (0, 0),
        (0, 0),
    ]
    assert tiers.open_segments == 2


# Retirements and mounts -----------------------------------------------------------------------------------------------
def test_a_retirement_shows_its_step_what_is_left_and_why_it_waits() -> None:
    story = Watched()
    story.do(RetireNode(3))
    wait = Wait(WaitReason.INSUFFICIENT_CAPACITY, "12 GiB are needed, 3 are free", story.now_ms)
    story.do(AdvanceRetirement(3, story.record(3), RetireStep.PREFLIGHT, wait))
    story.now_ms += 5_000
    record, left = story.record(3), (4, GIB, 1_000, -1)
    shown = story.shown(retirements=[RetirementStatus(3, True, record, *left, words_of(record, *left))])
    (row,) = shown.retirements
    assert (row.step, row.waits, row.waits_ms) == ("preflight", "InsufficientCapacity", 5_000)
    assert "12 GiB are needed" in row.words
    assert (row.remaining_segments, row.remaining_bytes, row.bytes_per_second) == (4, GIB, 1_000)


def test_a_node_that_is_released_and_waits_for_its_mount_is_shown_before_those_that_have_left() -> None:
    record = Retirement("s", RetireMode.VOLUME, RetireStep.DONE, 1, 1)
    waits = replace(record, step=RetireStep.MOUNT, wait=Wait(WaitReason.MOUNT_PENDING, "nobody reads it", 1))
    left = [RetirementStatus(one, True, record, 0, 0, 0, -1, "done") for one in range(10, 10 + MAX_RETIREMENTS)]
    waiting = RetirementStatus(99, True, waits, 0, 0, 0, -1, "waits")
    shown = Watched().shown(retirements=[*left, waiting])
    assert (shown.retirements[0].node_id, shown.retirements[0].waits) == (99, "MountPending")
    assert (len(shown.retirements), shown.more_retirements) == (MAX_RETIREMENTS, 1)


@pytest.mark.parametrize(
    "mount, holder, is_read",
    [
        (Mount("tier/3", MountMode.OFFLOAD, 3, "s", MountState.SERVING, 4, 0, holder=1), 1, True),
        (Mount("tier/3", MountMode.OFFLOAD, 3, "s", MountState.TAKING, 4, 0, holder=1), 1, False),
        (Mount("tier/3", MountMode.OFFLOAD, 3, "s", MountState.WAITING, 4, 0), None, False),
        (Mount("tier/3", MountMode.VOLUME, 3, "s", MountState.SERVING, 4, 0, holder=1), 1, False),
        (Mount("tier/3", MountMode.VOLUME, 3, "s", MountState.SERVING, 4, 0, holder=1, volume=VOLUME), 1, True),
        (Mount("jan", MountMode.HAND_MADE, -1, "", MountState.SERVING, 0, 0), None, True),
    ],
)
def test_a_mount_shows_its_holder_and_whether_it_is_read(mount: Mount, holder: int | None, is_read: bool) -> None:
    (row,) = Watched(1).shown(mounts=[mount]).mounts
    assert (row.name, row.state, row.holder, row.is_read) == (mount.name, mount.state.value, holder, is_read)
    assert row.volume == (None if mount.volume is None else "there:9700")


def test_a_mount_made_by_a_person_shows_under_which_names_it_is_read() -> None:
    topics = (MountedTopic(NEW_ID, "flights", ()),)
    jan = Mount("jan", MountMode.HAND_MADE, -1, "", MountState.SERVING, 0, 0, topics=topics, expires_ms=9_000)
    (row,) = Watched(1).shown(mounts=[jan]).mounts
    assert (row.topics, row.expires_ms) == (("flights@jan",), 9_000)


def test_a_mount_that_is_not_served_is_shown_before_those_that_are_well() -> None:
    states = (MountState.SERVING, MountState.WAITING, MountState.SERVING)
    mounts = [Mount(f"tier/{at}", MountMode.OFFLOAD, at, "s", state, 1, 0) for at, state in enumerate(states)]
    assert [one.name for one in Watched(1).shown(mounts=mounts).mounts] == ["tier/1", "tier/0", "tier/2"]


# Bounds ---------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("views-ui-meta-service")
def test_ten_thousand_shards_in_trouble_make_a_short_answer_that_counts_them_all() -> None:
    story = Watched()
    applied = story.table.apply(CreateTopic("wide", 10_000, 3, {}), story.now_ms, NEW_ID)
    assert applied.result.shard_count == 10_000
    for node_id in (1, 2, 3):
        story.table.apply(NoteLives(lost=(Life(node_id, story.node(node_id).epoch),)), story.now_ms, NEW_ID)
    shown = story.shown()
    assert (shown.shards.shards, shown.shards.troubled) == (10_000, 10_000)
    assert len(shown.troubles) == MAX_TROUBLES
    assert shown.more_troubles == sum(one.count for one in shown.trouble_kinds) - MAX_TROUBLES > 9_000
    assert len(wire.OVERVIEW.write(shown)) < 100_000


def test_no_list_and_no_text_is_longer_than_it_may_be() -> None:
    story = Watched(MAX_NODES + 20)
    long = "x" * 10_000
    stopped = tuple(StoppedHere(long, at, "disk", long, long) for at in range(5))
    for node_id in range(1, MAX_NODES + 21):
        story.report(node_id, Activity(0, 0, None, (long,) * 50, 900, stopped))
    named = (MountedTopic(NEW_ID, long, ()),) * 30
    hand_made, serving = MountMode.HAND_MADE, MountState.SERVING
    mounts = [Mount(f"{long}-{at}", hand_made, -1, "", serving, 0, 0, topics=named) for at in range(MAX_MOUNTS + 7)]
    shown = story.shown(mounts=mounts)
    assert (len(shown.nodes), shown.more_nodes) == (MAX_NODES, 20)
    assert (len(shown.mounts), shown.more_mounts) == (MAX_MOUNTS, 7)
    assert (len(shown.stopped), shown.more_stopped) == (MAX_STOPPED, 900 * (MAX_NODES + 20) - MAX_STOPPED)
    assert shown.more_faults > 0 and max(map(len, shown.faults)) <= LONGEST_TEXT
    assert max(len(one.shard.reason) for one in shown.stopped) <= LONGEST_TEXT
    assert len(wire.OVERVIEW.write(shown)) < 1_000_000


def test_it_is_made_in_steps_so_that_others_are_served_between() -> None:
    story = Watched()
    story.table.apply(CreateTopic("wide", 2_000, 1, {}), story.now_ms, NEW_ID)
    known = Known("cluster-1", story.table.snapshot(), story.now_ms, story.courses.last_heartbeat, ())
    assert sum(1 for _ in overview(known)) >= 2_000 // 200
