"""A retired node's data set has one holder at most, chosen by the table, and its token never goes back."""

from __future__ import annotations

from collections import Counter

import pytest

from stratalog.machines.table import mounts as table_mounts
from stratalog.machines.table.state import TableState
from stratalog.model.commands.mount_commands import (
    BeginMount,
    CloseVolume,
    DoubtMount,
    EndMount,
    MoveMount,
    OpenVolume,
    ReleaseMount,
    TakeMount,
)
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import (
    AcquireLock,
    CommitParts,
    CompleteRemote,
    NoteLives,
    RegisterNode,
    ReleaseLock,
    SealSegment,
)
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, MountChanged, MountEnded, NodeInfo, PartCommit
from stratalog.model.mounts import Mount, MountMode, MountState, Volume
from stratalog.model.retirement import RetireMode
from stratalog.model.segment import RemotePart, RemoteState, Segment
from support.table_stories import TableStory, record_of

GONE = 3


def retired(nodes: int = 3, mode: MountMode = MountMode.OFFLOAD) -> tuple[TableStory, Mount]:
    story = TableStory(nodes)
    story.die(GONE)
    return story, story.do(BeginMount(GONE, f"storage-{GONE}", mode)).result


def known(story: TableStory) -> Mount:
    return story.table.state.mounts[f"tier/{GONE}"]


def take(story: TableStory, node_id: int, token: int) -> Mount:
    return story.do(TakeMount(f"tier/{GONE}", token, caller=story.life(node_id))).result


def test_the_least_loaded_node_gets_it_with_the_next_token_of_the_lock() -> None:
    story = TableStory(3)
    lock = story.lock(f"tier/{GONE}", f"node-{GONE}/1/nonce")
    story.topic(shards=1)  # node 1 leads it
    story.do(ReleaseLock(lock))
    story.die(GONE)
    mount = story.do(BeginMount(GONE, "storage-3", MountMode.OFFLOAD)).result
    assert (mount.holder, mount.token, mount.state) == (2, 2, MountState.TAKING)
    held = story.table.state.locks["tier/3"]
    assert (held.holder, held.epoch, held.earlier) == ("node-2/1/mount", 2, ("node-3/1/nonce",))
    assert take(story, 2, 2).state is MountState.SERVING
    assert take(story, 2, 2).state is MountState.SERVING, "asked again it says that it is still so"
    assert story.do(BeginMount(GONE, "storage-3", MountMode.OFFLOAD)).change_set is None


def test_a_node_in_the_rack_of_the_retired_one_is_chosen_last() -> None:
    story = TableStory(0)
    for node_id, rack in ((1, "a"), (2, "b"), (3, "a")):
        story.do(RegisterNode(NodeInfo(node_id, f"storage-{node_id}", "host", 9092, rack)))
    story.die(GONE)
    mount = story.do(BeginMount(GONE, "storage-3", MountMode.OFFLOAD)).result
    assert (mount.rack, mount.holder) == ("a", 2)
    story.die(2)
    assert known(story).holder == 1, "better than none"


def test_several_mounts_are_spread() -> None:
    story = TableStory(5)
    story.die(4, 5)
    holders = {story.do(BeginMount(node, f"storage-{node}", MountMode.OFFLOAD)).result.holder for node in (4, 5)}
    assert len(holders) == 2


def test_what_is_alive_or_holds_its_lock_or_is_another_disk_is_not_mounted() -> None:
    story = TableStory(3)
    with pytest.raises(Conflict, match="is alive"):
        story.do(BeginMount(GONE, "storage-3", MountMode.OFFLOAD))
    story.lock("tier/3", "somebody")
    story.die(GONE)
    with pytest.raises(Conflict, match="held by somebody"):
        story.do(BeginMount(GONE, "storage-3", MountMode.OFFLOAD))
    with pytest.raises(Conflict, match="has storage storage-3"):
        story.do(BeginMount(GONE, "storage-4", MountMode.OFFLOAD))
    with pytest.raises(NotFound, match="never registered"):
        story.do(BeginMount(9, "storage-9", MountMode.OFFLOAD))


def test_a_mount_is_asked_for_again_as_it_is_or_not_at_all() -> None:
    story, _ = retired()
    with pytest.raises(Conflict, match="mounted in offload mode"):
        story.do(BeginMount(GONE, "storage-3", MountMode.VOLUME))


@pytest.mark.fault("holder-retired-node-data")
def test_a_holder_that_dies_is_replaced_with_the_change_that_reports_it() -> None:
    story, first = retired()
    assert first.holder is not None
    take(story, first.holder, first.token)
    dead = story.life(first.holder)
    applied = story.do(NoteLives(lost=(dead,)))
    second = known(story)
    assert second.holder not in (first.holder, GONE, None)
    assert (second.token, second.state) == (first.token + 1, MountState.TAKING)
    assert applied.change_set is not None and MountChanged(second) in applied.change_set.changes
    with pytest.raises(Fenced, match="leave its data alone"):
        story.do(TakeMount("tier/3", first.token, caller=dead))
    story.do(NoteLives(heard=(dead,)))
    assert known(story) == second, "who comes back does not get it back"


def test_the_mounts_of_a_holder_that_dies_are_spread_and_counted_once_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 2,000 of them the service stood still for two seconds: each choice went over all."""
    story = TableStory(15)
    story.die(*range(4, 16))
    for node_id in range(4, 16):
        story.do(BeginMount(node_id, f"storage-{node_id}", MountMode.OFFLOAD))
        story.do(MoveMount(f"tier/{node_id}", 1))
    counted: list[int] = []
    real = table_mounts._held

    def held(state: TableState) -> Counter[int | None]:
        counted.append(len(state.mounts))
        return real(state)

    monkeypatch.setattr(table_mounts, "_held", held)
    story.die(1)
    assert counted == [12]
    mounts = story.table.state.mounts.values()
    assert Counter(mount.holder for mount in mounts) == {2: 6, 3: 6}


@pytest.mark.fault("replaced-holder-continues")
def test_a_holder_in_a_new_life_takes_it_again_under_the_next_token() -> None:
    story, first = retired()
    assert first.holder is not None
    before = story.life(first.holder)
    story.start(first.holder)
    second = known(story)
    assert (second.holder, second.token) == (first.holder, first.token + 1)
    with pytest.raises(Fenced):
        story.do(TakeMount("tier/3", first.token, caller=before.__class__(before.node_id, before.epoch + 1)))


@pytest.mark.fault("living-node-hold-mount")
def test_without_a_living_node_it_waits_and_the_first_that_comes_gets_it() -> None:
    story, first = retired()
    story.die(1, 2)
    waiting = known(story)
    assert (waiting.holder, waiting.state, waiting.token) == (None, MountState.WAITING, first.token)
    assert story.table.state.locks["tier/3"].holder == ""
    story.is_heard(1)
    assert (known(story).holder, known(story).token) == (1, first.token + 1)
    story.die(1)
    story.do(RegisterNode(NodeInfo(7, "storage-7", "host", 9092)))
    assert known(story).holder == 7


@pytest.mark.fault("retired-node-started")
def test_the_retired_node_is_refused_and_hears_why() -> None:
    story, mount = retired()
    with pytest.raises(
        Fenced, match=f"was retired: its data set is mounted in offload mode, held by node {mount.holder}"
    ):
        story.start(GONE)
    with pytest.raises(Conflict, match="mounted data set"):
        story.do(AcquireLock("tier/3", "node-3/1", 1_000))
    story.do(ReleaseLock(Lock("tier/3", f"node-{mount.holder}/1/mount", mount.token, 0)))
    assert known(story) == mount, "nobody releases it by its lock"


@pytest.mark.fault("holder-cannot-read-mounted")
def test_a_holder_that_cannot_gives_it_up_and_another_gets_it() -> None:
    story, first = retired()
    assert first.holder is not None
    giving_up = ReleaseMount("tier/3", first.token, caller=story.life(first.holder))
    story.do(giving_up)
    second = known(story)
    assert second.holder not in (first.holder, None)
    assert story.do(giving_up).change_set is None, "an old word changes nothing"
    assert known(story) == second


def test_a_person_moves_it() -> None:
    story, first = retired()
    moved = story.do(MoveMount("tier/3")).result
    assert moved.holder != first.holder and moved.token == first.token + 1
    back = story.do(MoveMount("tier/3", first.holder)).result
    assert (back.holder, back.token) == (first.holder, moved.token + 1)
    for node_id in (GONE, 9):
        with pytest.raises(Conflict, match="name another"):
            story.do(MoveMount("tier/3", node_id))
    with pytest.raises(NotFound, match="no mount 'tier/8'"):
        story.do(MoveMount("tier/8"))
    story.die(next(node for node in (1, 2) if node != first.holder))
    with pytest.raises(Conflict, match="no other living node"):
        story.do(MoveMount("tier/3"))


def test_an_ended_mount_leaves_its_lock_free_and_its_epoch_behind() -> None:
    story, mount = retired()
    applied = story.do(EndMount("tier/3"))
    assert applied.change_set is not None and applied.change_set.changes == (MountEnded("tier/3"),)
    assert story.do(EndMount("tier/3")).change_set is None
    assert story.lock("tier/3", "orphan-sweep").epoch == mount.token + 1
    again = story.do(NoteLives())
    assert again.change_set is None


@pytest.mark.fault("ends-mount-segments-exist-nowhere")
def test_a_mount_does_not_end_while_something_is_nowhere_else() -> None:
    story = TableStory(3)
    story.topic(shards=2)
    topic = story.topic("alone", shards=3)
    keys = [story.active(topic, shard).key for shard in range(3)]
    on_gone = next(key for key in keys if story.segment(key).replicas == (GONE,))
    story.roll(on_gone, 5)
    story.do(SealSegment(on_gone, record_of(on_gone, 5, (GONE,))))
    story.die(GONE)
    story.do(BeginMount(GONE, "storage-3", MountMode.VOLUME))
    with pytest.raises(Conflict, match="nothing else has 1 sealed segment of it"):
        story.do(EndMount("tier/3"))


@pytest.mark.fault("ends-mount-segments-exist")
@pytest.mark.parametrize(("is_forced", "is_read", "is_ended"), [(0, 0, True), (1, 0, False), (1, 1, True)])
def test_no_mount_ends_on_the_word_of_a_directory_that_a_person_gave_up_unless_it_is_read(
    is_forced: int, is_read: int, is_ended: bool
) -> None:
    """Who gives a node up says that its disk may be gone: then the other directory is the last copy."""
    story = TableStory(4)
    keys = [story.active(story.topic(f"t{number}", replicas=2)).key for number in range(12)]
    key = next(one for one in keys if GONE in story.segment(one).replicas)
    (other,) = {*story.segment(key).replicas} - {GONE}
    story.roll(key, 5)
    for node_id in (GONE, other):
        story.report(key, node_id)
    story.die(GONE, other)
    story.do(RetireNode(other, RetireMode.VOLUME, f"storage-{other}" if is_forced else None))
    for node_id in (GONE, other):
        story.do(BeginMount(node_id, f"storage-{node_id}", MountMode.VOLUME))
    if is_read:
        story.do(OpenVolume(other, f"storage-{other}", "host", 9, "start"))
    if is_ended:
        story.do(EndMount(f"tier/{GONE}"))
    else:
        with pytest.raises(Conflict, match="nothing else has 1 sealed segment of it"):
            story.do(EndMount(f"tier/{GONE}"))
    assert (GONE in story.segment(key).local_nodes) is not is_ended
    if is_ended:
        with pytest.raises(Conflict, match="nothing else has"):
            story.do(EndMount(f"tier/{other}"))


def only_in_a_directory() -> tuple[TableStory, SegmentKey, Mount]:
    """A sealed segment [0, 5) that has nothing in the object store."""
    story = TableStory(3)
    story.topic(shards=2)
    topic = story.topic("alone", shards=3)
    keys = [story.active(topic, shard).key for shard in range(3)]
    key = next(key for key in keys if story.segment(key).replicas == (GONE,))
    story.roll(key, 5)
    story.do(SealSegment(key, record_of(key, 5, (GONE,))))
    story.die(GONE)
    mount = story.do(BeginMount(GONE, "storage-3", MountMode.VOLUME)).result
    assert mount.holder is not None
    return story, key, mount


def commits(story: TableStory, node_id: int, key: SegmentKey, base_offset: int, end_offset: int) -> object:
    """What becomes of that node's commit, under its own write lock: the segment, or the refusal."""
    lock = story.lock(f"tier/{node_id}", f"node-{node_id}/1")
    piece = RemotePart(f"chunk-of-{node_id}-{base_offset}", 0, 10, base_offset, end_offset)
    command = CommitParts(lock, (PartCommit(key, base_offset, piece),), caller=story.life(node_id))
    return story.do(command).result[0]


def test_the_holder_alone_commits_what_only_the_directory_has_and_once_it_is_complete_the_mount_ends() -> None:
    story, key, mount = only_in_a_directory()
    first = mount.holder
    assert first is not None
    second = 3 - first
    refused = commits(story, second, key, 0, 2)
    assert isinstance(refused, Fenced) and f"is uploaded by node {first}, not by node {second}" in str(refused)
    done = commits(story, first, key, 0, 2)
    assert isinstance(done, Segment) and done.remote.commit_offset == 2
    with pytest.raises(Conflict, match=f"nothing else has 1 sealed segment of it: wait until node {first} has uploade"):
        story.do(EndMount(mount.name))

    story.do(MoveMount(mount.name, second))
    refused = commits(story, first, key, 2, 5)
    assert isinstance(refused, Fenced) and f"is uploaded by node {second}" in str(refused)
    done = commits(story, second, key, 2, 5)
    assert isinstance(done, Segment) and done.remote.commit_offset == 5
    locks = {node: story.lock(f"tier/{node}", f"node-{node}/1") for node in (first, second)}
    late = CompleteRemote(locks[first], key, "manifest-1", b"digest", 10, caller=story.life(first))
    with pytest.raises(Conflict, match=f"is uploaded by node {second}, not by node {first}"):
        story.do(late)
    whole = CompleteRemote(locks[second], key, "manifest-2", b"digest", 10, caller=story.life(second))
    assert story.do(whole).result.remote.state is RemoteState.COMPLETE
    story.do(EndMount(mount.name))
    ended = story.segment(key)
    assert (ended.local_nodes, ended.remote.manifest_key) == ((), "manifest-2")


@pytest.mark.fault("holder-dies-middle-upload")
def test_a_holder_that_dies_is_fenced_in_the_change_that_gives_the_mount_to_another() -> None:
    story, key, mount = only_in_a_directory()
    first = mount.holder
    assert first is not None
    story.die(first)
    assert isinstance(commits(story, first, key, 0, 5), Fenced)
    story.is_heard(first)
    assert isinstance(commits(story, first, key, 0, 5), Fenced), "who comes back does not get it back"
    assert isinstance(commits(story, 3 - first, key, 0, 5), Segment)


def opened(story: TableStory, start_id: str, port: int = 9192) -> Mount:
    return story.do(OpenVolume(GONE, f"storage-{GONE}", "host", port, start_id)).result


def test_the_holder_says_whether_a_directory_is_read_and_another_start_is_checked_again() -> None:
    story, mount = retired(mode=MountMode.VOLUME)
    assert mount.holder is not None
    first = opened(story, "a")
    assert (first.volume, first.state, first.token) == (Volume("host", 9192, "a"), MountState.TAKING, mount.token)
    assert take(story, mount.holder, mount.token).state is MountState.SERVING
    assert opened(story, "a").state is MountState.SERVING, "the same start, asked again"
    assert opened(story, "b", 9193).state is MountState.TAKING
    take(story, mount.holder, mount.token)
    doubt = DoubtMount("tier/3", mount.token, caller=story.life(mount.holder))
    assert story.do(doubt).result.state is MountState.TAKING
    story.do(CloseVolume(GONE, "a"))
    assert known(story).volume is not None, "a start that is over closes nothing"
    story.do(CloseVolume(GONE, "b"))
    assert known(story).volume is None
    with pytest.raises(Fenced):
        story.do(DoubtMount("tier/3", mount.token - 1, caller=story.life(mount.holder)))


@pytest.mark.fault("retired-directory-detached-late")
def test_a_directory_is_opened_where_it_is_mounted_in_volume_mode_and_is_that_disk() -> None:
    story = TableStory(3)
    with pytest.raises(NotFound, match="retired in volume mode"):
        opened(story, "a")
    story, _ = retired()
    with pytest.raises(Conflict, match="in offload mode"):
        opened(story, "a")
    story, _ = retired(mode=MountMode.VOLUME)
    with pytest.raises(Conflict, match="this directory is storage storage-4"):
        story.do(OpenVolume(GONE, "storage-4", "host", 1, "a"))
    with pytest.raises(InvalidRequest, match="must name the host"):
        story.do(OpenVolume(GONE, "storage-3", "host", 0, "a"))


def test_a_directory_stays_open_when_the_holder_changes() -> None:
    story, mount = retired(mode=MountMode.VOLUME)
    opened(story, "a")
    assert mount.holder is not None
    story.die(mount.holder)
    now = known(story)
    assert (now.volume, now.state, now.token) == (Volume("host", 9192, "a"), MountState.TAKING, mount.token + 1)
    story.die(*[node for node in (1, 2) if node != mount.holder])
    assert known(story).state is MountState.WAITING
    assert opened(story, "b").state is MountState.WAITING
