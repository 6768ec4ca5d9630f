"""A retired directory whose disk is lost is given up by its storage id: what nothing else has is written down as lost,
and nothing else is."""

from __future__ import annotations

import pytest

from stratalog.machines.copies.leaving import is_lost_for_good
from stratalog.machines.plans.retirement import Served
from stratalog.machines.plans.shard_troubles import TroubleKind, troubles
from stratalog.model.commands.mount_commands import BeginMount, CloseVolume, DoubtMount, EndMount, OpenVolume, TakeMount
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import AdvanceLogStart, PurgeSegments, ReportLostCopies
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, MountEnded
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import LostRange, RetireMode, RetireStep
from stratalog.model.segment import Segment
from stratalog.model.views.retirement_status import words_of
from support.retirement_story import RetirementStory


class Story(RetirementStory):
    """A node was retired in volume mode with a sealed segment [0, 10) of a topic without a remote tier."""

    def __init__(self, replicas: int = 1, *, is_forced: bool = False, is_served: bool = True) -> None:
        super().__init__(nodes=4)
        self.mount = Served.PENDING
        self.key = self.active(self.topic("groups", replicas=replicas)).key
        self.gone, *self.others = self.segment(self.key).replicas
        storage_id = f"storage-{self.gone}"
        if is_forced:
            self.roll(self.key, 10)
            self.report_all()
            self.die(self.gone)
            self.do(RetireNode(self.gone, RetireMode.VOLUME, storage_id))
            for _ in range(12):
                self.run_pass(self.gone)
                self.report_all()
            assert self.record(self.gone).step is RetireStep.MOUNT
        else:
            self.do(RetireNode(self.gone, RetireMode.VOLUME))
            self.run_passes(self.gone)
            self.roll_away(self.gone)
            self.report_all()
            if is_served:
                self.mount = Served.SERVING
                self.leave(self.gone, by_node=self.gone)
            else:
                with pytest.raises(AssertionError, match="it does not end"):
                    self.leave(self.gone, by_node=self.gone)
        self.name = f"tier/{self.gone}"
        self.do(BeginMount(self.gone, storage_id, MountMode.VOLUME))

    def known(self) -> Mount:
        return self.table.state.mounts[self.name]

    def doubted(self) -> Mount:
        """Its holder had no answer."""
        mount = self.known()
        assert mount.holder is not None
        return self.do(DoubtMount(mount.name, mount.token, caller=Life(mount.holder, mount.holder_epoch))).result

    def opened(self) -> Mount:
        return self.do(OpenVolume(self.gone, f"storage-{self.gone}", "host", 9192, "start")).result

    def served(self) -> None:
        mount = self.opened()
        assert mount.holder is not None
        self.do(TakeMount(self.name, mount.token, caller=self.life(mount.holder)))

    def force(self) -> EndMount:
        return EndMount(self.name, f"storage-{self.gone}")

    def is_lost(self) -> bool:
        nodes = {one.node_id: one for one in self.table.snapshot().nodes}
        return is_lost_for_good(self.segment(self.key), nodes.get, lambda one: nodes[one].is_alive)

    def is_refused(self, command: EndMount, words: str, kind: type[Exception] = Conflict) -> None:
        before = self.table.snapshot()
        with pytest.raises(kind, match=words):
            self.do(command)
        assert self.table.snapshot() == before


def given_up(segment: SegmentKey) -> tuple[LostRange, ...]:
    return (LostRange(segment, 0, 10),)


def opened_by_force(before: SegmentKey) -> tuple[LostRange, ...]:
    """The segment behind it was being written when the node was given up: no node knows how far."""
    return (LostRange(SegmentKey(before.topic_id, before.shard, before.epoch + 1, 10), 10, 10),)


@pytest.mark.fault("disk-node-dies-node")
@pytest.mark.parametrize("is_forced", [False, True])
def test_what_only_a_lost_directory_had_is_given_up_by_its_disks_name_alone(is_forced: bool) -> None:
    story = Story(is_forced=is_forced)
    plain = EndMount(story.name)
    story.is_refused(plain, rf"nothing else has 1 sealed segment.* --force storage-{story.gone}` gives them up")
    wrong = EndMount(story.name, "storage-9")
    story.is_refused(wrong, rf"of the storage id storage-{story.gone}, and storage-9 was spelled out", InvalidRequest)
    assert not story.is_lost()
    applied = story.do(story.force())
    assert applied.change_set is not None and MountEnded(story.name) in applied.change_set.changes
    record = story.record(story.gone)
    assert (record.step, record.wait) == (RetireStep.DONE, None)
    assert (record.is_forced, record.is_volume_lost, record.mode) == (True, True, RetireMode.VOLUME)
    opened = opened_by_force(story.key) if is_forced else ()
    assert (record.given_up, record.given_up_count) == ((*opened, *given_up(story.key)), 1 + len(opened))
    assert story.is_lost()
    lost = "2 ranges were" if is_forced else "1 range was"
    assert words_of(record, 0, 0, 0, -1) == f"has left; its directory was given up; {lost} given up"


def test_asked_again_it_changes_nothing_and_the_directory_never_counts_again() -> None:
    story = Story(is_forced=True)
    story.do(story.force())
    for command in (story.force(), EndMount(story.name)):
        assert story.do(command).change_set is None
    story.is_refused(EndMount(story.name, "storage-9"), "storage-9 was spelled out", InvalidRequest)
    with pytest.raises(Conflict, match="was given up by force"):
        story.do(BeginMount(story.gone, f"storage-{story.gone}", MountMode.VOLUME))
    with pytest.raises(NotFound, match="was given up by force when its mount was ended"):
        story.opened()
    assert story.record(story.gone).given_up_count == 2
    story.repair()
    assert story.segment(story.key).local_nodes == (story.gone,), "nobody can copy it"


@pytest.mark.parametrize("name", ["tier/99", "tier/01", "tier/" + "9" * 5_000, "nobody's"])
def test_a_mount_that_never_was_is_not_given_up_in_silence(name: str) -> None:
    """A slip of the pen was answered as if the directory had been given up."""
    story = Story(is_forced=True)
    words = "there is no mount .*nothing was given up"
    story.is_refused(EndMount(name, f"storage-{story.gone}"), words, InvalidRequest)


def test_troubles_ask_for_the_directory_and_then_say_that_it_was_given_up() -> None:
    """They asked for a start of the node that had left."""
    story = Story()

    def told() -> list[tuple[TroubleKind, tuple[int, ...], str]]:
        return [(one.kind, one.nodes, one.words) for one in troubles(story.table.snapshot(), story.now_ms)]

    none = "1 sealed segment has no copy on a node that is alive: "
    reads = f"what node {story.gone} left is read in place (`stratalog mounts list` shows whether it is)"
    assert told() == [(TroubleKind.NO_COPY, (story.gone,), none + reads)]
    story.do(story.force())
    gone = (
        f"1 of them was given up by force with node {story.gone}: delete the records up to their ends (DeleteRecords), "
        "or wait for retention"
    )
    assert told() == [(TroubleKind.NO_COPY, (), none + gone)]


@pytest.mark.fault("disk-node-dies-node")
def test_a_directory_that_is_read_now_is_not_lost() -> None:
    story = Story()
    story.served()
    story.is_refused(EndMount(story.name), "or delete their topics$")
    story.is_refused(story.force(), "the process at host:9192 reads its directory now, so it is not lost")
    story.do(CloseVolume(story.gone, "start"))
    story.do(story.force())
    assert story.record(story.gone).given_up == given_up(story.key)


def test_a_directory_that_no_living_node_could_check_is_not_lost() -> None:
    story = Story()
    story.served()
    staying = [one for one in range(1, 5) if one != story.gone]
    story.die(*staying)
    assert story.known().state is MountState.WAITING
    story.is_refused(story.force(), "no node is alive that could tell")
    story.is_heard(staying[0])
    assert story.known().state is MountState.TAKING, "its next holder has not reached the process"
    story.is_refused(story.force(), f"node {story.known().holder} has not looked yet")
    story.doubted()
    story.do(story.force())
    assert story.record(story.gone).given_up_count == 1


def test_a_directory_that_was_opened_a_moment_ago_is_not_lost() -> None:
    story = Story()
    story.opened()
    story.doubted()
    story.opened()
    assert story.known().is_doubted, "it said the same again"
    story.do(OpenVolume(story.gone, f"storage-{story.gone}", "host", 9193, "another start"))
    story.is_refused(story.force(), "has not looked yet whether the process at host:9193 reads its directory")
    story.doubted()
    story.served()
    story.is_refused(story.force(), "reads its directory now")


def test_that_another_process_gave_no_answer_says_nothing_of_the_one_that_reads_now() -> None:
    """The holder's report was in flight when the directory was opened again."""
    story = Story()
    mount = story.opened()
    life = story.life(mount.holder or 0)
    late = DoubtMount(story.name, mount.token, "start", caller=life)
    story.do(OpenVolume(story.gone, f"storage-{story.gone}", "host", 9193, "another start"))
    assert story.do(late).change_set is None
    story.is_refused(story.force(), "has not looked yet whether the process at host:9193 reads its directory")
    story.do(DoubtMount(story.name, mount.token, "another start", caller=life))
    assert story.known().is_doubted
    with pytest.raises(Fenced):
        story.do(DoubtMount(story.name, mount.token - 1, "start", caller=life))
    story.do(CloseVolume(story.gone, "another start"))
    assert story.do(DoubtMount(story.name, mount.token, "another start", caller=life)).change_set is None


def test_what_is_deleted_later_of_nodes_that_left_is_taken_away_though_their_mounts_ended() -> None:
    """No node could, and the objects stayed in the bucket forever."""
    story = Story(is_forced=True)
    story.do(story.force())
    story.do(AdvanceLogStart(story.key.shard_key, 10))
    keeper, *others = (one for one in range(1, 5) if one != story.gone)
    for other in others:
        with pytest.raises(Fenced, match=f"is purged by node {keeper}"):
            story.do(PurgeSegments((story.key,), caller=story.life(other)))
    story.do(PurgeSegments((story.key,), caller=story.life(keeper)))
    assert story.table.state.find_segment(story.key) is None


def test_a_node_that_was_not_retired_has_no_directory_to_be_given_up() -> None:
    story = Story(is_forced=True)
    for node_id in (one for one in range(1, 5) if one != story.gone):
        story.is_refused(EndMount(f"tier/{node_id}", f"storage-{node_id}"), "was not retired.*nothing was given up")


def test_what_a_living_node_has_too_is_not_given_up_and_the_force_is_none() -> None:
    story = Story(replicas=2)
    story.served()
    story.do(story.force())
    record = story.record(story.gone)
    assert not (record.given_up_count or record.is_forced or record.is_volume_lost)
    assert story.segment(story.key).local_nodes == tuple(story.others)
    assert not story.is_lost()


def test_a_node_that_is_only_away_is_waited_for_with_its_copy() -> None:
    story = Story(replicas=2)
    (other,) = story.others
    story.die(other)
    story.is_refused(EndMount(story.name), "nothing else has 1 sealed segment")
    story.do(story.force())
    assert story.record(story.gone).given_up == given_up(story.key), "nobody who lives had it"
    assert story.segment(story.key).local_nodes == (other,) and not story.is_lost()
    story.is_heard(other)
    story.do(RetireNode(other))
    story.run_passes(other)
    assert not story.is_lost()


def test_another_directory_has_it_until_it_is_given_up_as_well() -> None:
    story = Story(replicas=2)
    (other,) = story.others
    story.do(RetireNode(other, RetireMode.VOLUME))
    story.run_passes(other)
    story.roll_away(other)
    story.report_all()
    story.mount = Served.PENDING
    with pytest.raises(AssertionError, match="it does not end"):
        story.leave(other, by_node=other)
    story.do(story.force())
    assert story.record(story.gone).given_up_count == 0, "the other one is about to be mounted"
    story.is_refused(EndMount(f"tier/{other}", f"storage-{other}"), "has not begun yet")
    story.do(BeginMount(other, f"storage-{other}", MountMode.VOLUME))
    story.do(EndMount(f"tier/{other}", f"storage-{other}"))
    assert story.record(other).given_up == given_up(story.key)
    assert story.is_lost()


def test_an_empty_segment_holds_up_no_end_and_is_not_given_up() -> None:
    """A node that leaves ends its idle shards with such ones. The end was refused, and asked for a force."""
    story = RetirementStory(nodes=3)
    key = story.active(story.topic("idle")).key
    (gone,) = story.segment(key).replicas
    story.do(RetireNode(gone, RetireMode.VOLUME))
    story.run_passes(gone)
    story.prepare(key)
    story.roll(key, 0)
    story.seal_alone(key, gone)
    story.leave(gone, by_node=gone)
    assert story.segment(key).local_nodes == (gone,)
    story.do(BeginMount(gone, f"storage-{gone}", MountMode.VOLUME))
    story.do(EndMount(f"tier/{gone}"))
    assert story.segment(key).local_nodes == () and not story.record(gone).is_volume_lost


def test_what_is_in_the_store_is_not_given_up_and_of_the_rest_what_is_there_is_not() -> None:
    story = RetirementStory(nodes=3)
    topic = story.topic("orders", settings={"remote.storage.enable": "true"})
    first = story.active(topic).key
    (gone,) = story.segment(first).replicas
    story.roll(first, 10)
    story.seal_alone(first, gone)
    story.upload_all()
    story.do(RetireNode(gone, RetireMode.VOLUME))
    story.run_passes(gone)
    second = next(one for one in story.table.shard(first.shard_key).segments if one.epoch == 1)
    assert second.replicas == (gone,)
    story.prepare(second.key)
    story.roll(second.key, 30)
    story.seal_alone(second.key, gone)
    story.commit(story.lock("tier/uploads", "uploader/1"), second.key, 10, 15)
    story.leave(gone, by_node=gone)
    story.do(BeginMount(gone, f"storage-{gone}", MountMode.VOLUME))
    story.do(EndMount(f"tier/{gone}", f"storage-{gone}"))
    assert story.record(gone).given_up == (LostRange(second.key, 15, 30),)
    assert story.segment(first).local_nodes == ()


def test_the_directory_of_a_node_that_was_not_retired_is_given_up_by_its_retirement() -> None:
    story = RetirementStory(nodes=3)
    key = story.active(story.topic("plain")).key
    (gone,) = story.segment(key).replicas
    story.roll(key, 10)
    story.seal_alone(key, gone)
    story.die(gone)
    story.do(BeginMount(gone, f"storage-{gone}", MountMode.VOLUME))
    with pytest.raises(Conflict, match=f"was not retired: first .* nodes retire {gone} --force storage-{gone}`"):
        story.do(EndMount(f"tier/{gone}", f"storage-{gone}"))


def test_the_mount_of_a_node_that_was_given_up_in_offload_mode_ends_without_another_force() -> None:
    """It was refused until a node had uploaded data that no node has."""
    story = RetirementStory(nodes=3)
    key = story.active(story.topic("plain")).key
    (gone,) = story.segment(key).replicas
    story.roll(key, 10)
    story.seal_alone(key, gone)
    story.die(gone)
    story.do(RetireNode(gone, RetireMode.OFFLOAD, f"storage-{gone}"))
    for _ in range(8):
        story.run_pass(gone)
        story.report_all()
    before = story.record(gone)
    lost = (*opened_by_force(key), *given_up(key))
    assert before.given_up == lost
    story.do(BeginMount(gone, f"storage-{gone}", MountMode.OFFLOAD))
    story.do(EndMount(f"tier/{gone}"))
    after = story.record(gone)
    assert (after.given_up, after.given_up_count, after.step) == (lost, 2, RetireStep.DONE)
    assert story.segment(key).local_nodes == (gone,), "the record says with whom it went"


@pytest.mark.fault("ends-mount-node-served")
@pytest.mark.parametrize("is_lost", [False, True])
def test_the_end_of_a_mount_that_was_not_served_yet_ends_the_retirement(is_lost: bool) -> None:
    """Otherwise the next pass would begin the mount again."""
    story = Story(replicas=1 if is_lost else 2, is_served=False)
    assert story.record(story.gone).step is RetireStep.MOUNT
    story.do(story.force() if is_lost else EndMount(story.name))
    assert story.record(story.gone).step is RetireStep.DONE


def test_a_copy_that_turns_up_in_time_is_none_that_is_given_up() -> None:
    """What was listed a moment ago is not what counts."""
    story = Story(replicas=2)
    (other,) = story.others
    story.do(ReportLostCopies((story.key,), caller=story.life(other)))
    story.is_refused(EndMount(story.name), "nothing else has 1 sealed segment")
    segment: Segment = story.segment(story.key)
    story.report(segment.key, other)
    story.do(story.force())
    assert story.record(story.gone).given_up_count == 0
    assert story.segment(story.key).local_nodes == (other,)
