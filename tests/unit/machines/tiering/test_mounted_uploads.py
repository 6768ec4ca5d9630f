"""The holder of a mount uploads what only retired nodes' directories have, a few segments at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.mounted_uploads import MountedCopy, most_unsent_bytes, mounted_copy
from stratalog.machines.tiering.upload_duty import uploader_of
from stratalog.model.mounts import Mount, MountMode, MountState, Volume
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, SealRecord, Segment, SegmentState
from unit.machines.tiering.test_uploader_machine import LIMITS, Bench, _key, _moved, _part, _seen

KEY = _key()
SEAL = SealRecord(0, 0, 100, 1, 2, 50_000, b"d", ProducerTally(0, b"", 10, 10), (1, 2), 3)
SEALED = Segment(KEY, SegmentState.SEALED, None, (1, 2), (1, 2), 0, 0, end_offset=100, seal=SEAL, local_nodes=(1, 2))


def mount(node_id: int, holder: int | None, **changes: object) -> Mount:
    base = Mount(f"tier/{node_id}", MountMode.VOLUME, node_id, "disk", MountState.SERVING, 2, 0, holder=holder)
    open_at = {"volume": Volume("host", 9000 + node_id, f"start-{node_id}")}
    return replace(base, **(open_at | changes))  # type: ignore[arg-type]


OFFLOAD, VOLUME = MountMode.OFFLOAD, MountMode.VOLUME
DUTIES: list[tuple[str, dict[str, object], set[int], list[Mount], int | None]] = [
    ("a living holder, whatever is mounted", {}, {2, 3, 4}, [mount(1, 3)], 2),
    ("not one whose write lock is another's, though it seems to live", {}, {1, 3}, [mount(1, 3)], 3),
    ("no holder lives and nothing is mounted", {}, {3, 4}, [], None),
    ("who holds the mount of the only directory", {}, {3, 4}, [mount(1, 3)], 3),
    ("the first of two directories", {}, {3, 4}, [mount(1, 3), mount(2, 4)], 3),
    ("in the order of the holders", {"local_nodes": (2, 1)}, {3, 4}, [mount(1, 3), mount(2, 4)], 4),
    ("not one that nobody holds", {}, {3, 4}, [mount(1, None), mount(2, 4)], 4),
    ("nobody while nobody holds any", {}, set(), [mount(1, None), mount(2, None)], None),
    ("in offload mode there is no directory", {}, {3}, [mount(1, 3, mode=OFFLOAD)], None),
    ("a directory whose copy was never proven is none", {"local_nodes": (2,)}, {3}, [mount(1, 3)], None),
    ("one that is not listed any more is none", {"local_nodes": ()}, {3}, [mount(1, 3)], None),
    ("what is not sealed is not read there", {"state": SegmentState.SEALING, "seal": None}, {3}, [mount(1, 3)], None),
    ("a leader, dead or not", {"state": SegmentState.ACTIVE, "leader": 1, "seal": None}, {3}, [mount(1, 3)], 1),
]


@pytest.mark.fault("node-retired-volume-mode")
@pytest.mark.parametrize(("what", "changes", "alive", "mounts", "uploader"), DUTIES, ids=[one[0] for one in DUTIES])
def test_who_uploads(
    what: str, changes: dict[str, object], alive: set[int], mounts: list[Mount], uploader: int | None
) -> None:
    segment = replace(SEALED, **changes)  # type: ignore[arg-type]
    by_node = {one.node_id: one for one in mounts}
    assert uploader_of(segment, alive.__contains__, by_node.get) == uploader, what


def test_a_directory_is_read_where_it_is_open_and_else_it_is_said_what_to_do() -> None:
    def copy(*mounts: Mount, node_id: int = 3) -> MountedCopy | None:
        return mounted_copy(SEALED, node_id, {one.node_id: one for one in mounts}.get)

    assert copy(mount(1, 3)) == ((1,), ("start-1",), None)
    assert copy(mount(2, 3), mount(1, 4)) == ((1, 2), ("start-1", "start-2"), None), "of any that is read"
    closed, silent = mount(1, 3, volume=None), mount(2, 4, state=MountState.TAKING)
    assert copy(closed, silent) == ((2,), ("start-2",), None), "one that is in doubt is asked"
    found = copy(closed)
    assert found is not None and found.nodes == () and found.away is not None
    assert "directory of node 1 is not read now: run `stratalog node start --read-only --data DIR`" in found.away
    assert copy(mount(1, 3), node_id=2) is None, "it should have a file of its own"
    assert copy() is None and copy(mount(1, 3, mode=OFFLOAD)) is None


def test_what_is_left_of_a_segment_is_counted_from_above() -> None:
    def left(commit: int, *parts: RemotePart) -> int:
        remote = RemoteCopy(RemoteState.PARTIAL, commit, parts) if parts else RemoteCopy()
        return most_unsent_bytes(replace(SEALED, remote=remote))

    assert left(-1) == 50_000
    part = _part(0, 40, size=20_000 + upload_events.PART_OVERHEAD_BYTES)
    assert 30_000 <= left(40, part) <= 30_000 + 20_000 // 1_000
    assert left(99, _part(0, 99, size=60_000)) == 1, "there is something as long as an offset is missing"
    assert left(100, _part(0, 100, size=50_900)) == 0
    assert most_unsent_bytes(replace(SEALED, seal=None)) == 0


# The uploader -------------------------------------------------------------------------------------------------------
def seen(number: int, away: str | None = None, unsent: int = 1_500) -> upload_events.SegmentSeen:
    return replace(_seen(_key(number), unsent, end=5), directories=(), away=away)


def chunks(effects: list[upload_events.UploaderEffect]) -> list[upload_events.SendChunk]:
    assert all(isinstance(effect, upload_events.SendChunk) for effect in effects), effects
    return [effect for effect in effects if isinstance(effect, upload_events.SendChunk)]


def test_few_are_read_in_directories_at_a_time_and_the_nodes_own_data_continues_beside_them() -> None:
    bench = Bench()
    first, second = chunks(bench.step(*(seen(number) for number in range(5))))
    assert (first.piece.key, second.piece.key) == (_key(0), _key(1))
    own = chunks(bench.step(*(_seen(_key(number), 1_000) for number in range(10, 13))))
    assert [one.piece.key for one in own] == [_key(10), _key(11)], "four at a time in all"
    (third,) = chunks(bench.step(upload_events.TaskEnded(own[0].task, (_moved(_key(10), 5),))))
    assert third.piece.key == _key(12), "two read there already"
    assert bench.step(upload_events.TaskEnded(own[1].task, (_moved(_key(11), 5),))) == []
    publish, fourth = bench.step(upload_events.TaskEnded(first.task, (_moved(_key(0), 5),)))
    assert isinstance(publish, upload_events.Publish) and publish.key == _key(0)
    assert isinstance(fourth, upload_events.SendChunk) and fourth.piece.key == _key(2)


@pytest.mark.fault("process-reads-directory-answer")
def test_a_directory_that_does_not_answer_costs_one_trial_per_pause_and_holds_up_nothing_else() -> None:
    bench = Bench()
    tasks = chunks(bench.step(*(seen(number) for number in range(5))))
    told = [
        effect
        for one in tasks
        for effect in bench.step(
            upload_events.TaskFailed(one.task, upload_events.TaskFailure.DIRECTORY_AWAY, "node 1 is silent", 0.0)
        )
    ]
    assert bench.machine.describe(0).directory_trouble == "node 1 is silent"
    assert told == [upload_events.ReportStore("directory of a retired node", True, "node 1 is silent", 0)], (
        "one line of the log"
    )
    own = chunks(bench.step(*(_seen(_key(number), 1_000) for number in range(10, 12))))
    assert len(own) == 2
    for one in own:
        bench.step(upload_events.TaskEnded(one.task, (_moved(one.piece.key, 5),)))
    pauses = []
    for _ in range(9):
        wake_ms = bench.machine.next_wake_ms(bench.now_ms)
        assert wake_ms is not None
        pauses.append(wake_ms - bench.now_ms)
        (trial,) = chunks(bench.step(upload_events.TimePassed(), at=wake_ms))
        assert (
            bench.step(
                upload_events.TaskFailed(trial.task, upload_events.TaskFailure.DIRECTORY_AWAY, "node 1 is silent", 0.0)
            )
            == []
        )
    assert pauses == sorted(pauses) and pauses[-1] >= LIMITS.backoff_cap_ms // 2
    (trial,) = chunks(bench.step(upload_events.TimePassed(), at=bench.machine.next_wake_ms(bench.now_ms)))
    effects = bench.step(upload_events.TaskEnded(trial.task, (_moved(trial.piece.key, 5),)))
    back = [effect for effect in effects if isinstance(effect, upload_events.ReportStore)]
    assert [(one.service, one.is_away) for one in back] == [("directory of a retired node", False)]
    assert bench.machine.describe(0).directory_trouble is None
    assert len([effect for effect in effects if isinstance(effect, upload_events.SendChunk)]) == 2


def test_while_it_is_known_to_be_away_nothing_is_tried_and_the_reason_is_shown() -> None:
    bench = Bench()
    assert bench.step(*(seen(number, away="start it") for number in range(1_000))) == [], "no line for each segment"
    assert bench.machine.next_wake_ms(0) is None
    status = bench.machine.describe(0)
    assert {reason for _, reason in status.held} == {"start it"} and len(status.held) == 1_000
    assert status.unsent_bytes == status.mounted_unsent_bytes == 1_500_000
    bench.step(_seen(_key(2_000), 10))
    assert bench.machine.describe(0).unsent_bytes == bench.machine.describe(0).mounted_unsent_bytes + 10
    (whole,) = bench.step(replace(seen(1_000, away="start it", unsent=0), commit_offset=5))
    assert isinstance(whole, upload_events.Publish), "what is committed needs no directory"
    bench.step(upload_events.TaskEnded(whole.task, ()))
    assert len(chunks([one for one in bench.step(seen(3), seen(4)) if isinstance(one, upload_events.SendChunk)])) == 2


def test_it_goes_away_under_an_upload_and_what_fails_then_is_not_tried_again() -> None:
    bench = Bench()
    (sent,) = chunks(bench.step(seen(0)))
    assert bench.step(seen(0, away="start it")) == []
    assert (
        bench.step(upload_events.TaskFailed(sent.task, upload_events.TaskFailure.DIRECTORY_AWAY, "silent", 0.0))[1:]
        == []
    )
    wake_ms = bench.machine.next_wake_ms(0)
    assert bench.step(upload_events.TimePassed(), at=100_000) == [] and wake_ms is None
    assert len(chunks(bench.step(seen(0)))) == 1


def test_a_segment_that_is_refused_there_is_left_alone_for_a_while_and_the_others_continue() -> None:
    bench = Bench()
    first, _ = chunks(bench.step(*(seen(number) for number in range(3))))
    held, other = bench.step(
        upload_events.TaskEnded(first.task, (upload_events.Unreadable(_key(0), "CORRUPT_MESSAGE", is_final=False),))
    )
    assert held == upload_events.ReportHeld(_key(0), "CORRUPT_MESSAGE", False)
    assert isinstance(other, upload_events.SendChunk) and other.piece.key == _key(2)
    assert bench.machine.next_wake_ms(0) == LIMITS.first_hold_ms


def test_another_process_that_reads_the_directory_is_asked_for_what_the_first_could_not_give() -> None:
    bench = Bench()
    (first,) = chunks(bench.step(seen(0)))
    bench.step(
        upload_events.TaskEnded(first.task, (upload_events.Unreadable(_key(0), "another digest", is_final=True),))
    )
    assert bench.step(seen(0)) == [] and bench.step(upload_events.TimePassed(), at=10_000_000) == []
    assert len(chunks(bench.step(upload_events.SegmentGone(_key(0)), seen(0)))) == 1


@pytest.mark.fault("process-reads-directory-answer")
def test_a_directory_that_is_silent_keeps_no_other_one_waiting() -> None:
    """A thousand segments of it are in the queue first, and each pause is ten seconds."""
    bench = Bench()
    bench.is_checked = False
    silent = [replace(seen(number), directories=(1,)) for number in range(1_000)]
    sound = {_key(number) for number in range(1_000, 1_010)}
    effects = bench.step(*silent, *(replace(seen(key.shard), directories=(2,)) for key in sorted(sound)))
    left, trials = set(sound), 0
    while left:
        assert trials < 20, f"{len(left)} segments of the directory that is read wait behind the one that is not"
        going = [effect for effect in effects if isinstance(effect, upload_events.SendChunk | upload_events.Publish)]
        if not going:
            wake_ms = bench.machine.next_wake_ms(bench.now_ms)
            assert wake_ms is not None
            effects = bench.step(upload_events.TimePassed(), at=wake_ms)
            continue
        effects = []
        for one in going:
            key = one.key if isinstance(one, upload_events.Publish) else one.piece.key
            if isinstance(one, upload_events.Publish):
                effects += bench.step(upload_events.TaskEnded(one.task, (upload_events.Gone(key),)))
            elif key in sound:
                left.discard(key)
                effects += bench.step(upload_events.TaskEnded(one.task, (_moved(key, 5),)))
            else:
                trials += 1
                effects += bench.step(
                    upload_events.TaskFailed(
                        one.task, upload_events.TaskFailure.DIRECTORY_AWAY, "node 1 is silent", 0.0
                    )
                )
    bench.machine.check_invariants()


@pytest.mark.fault("process-reads-directory-answer")
def test_however_many_directories_are_silent_there_is_room_for_what_answers() -> None:
    """A trial at one that is silent lasts for seconds: at most one of two reads at a time is a trial."""
    bench = Bench()
    silent = [replace(seen(number), directories=(number,)) for number in range(1, 101)]
    sound = [replace(seen(number, unsent=100_000), directories=(0,)) for number in range(1_000, 1_004)]
    going = chunks(bench.step(*silent, *sound))
    tried: list[int] = []
    answered = 0
    for number_of_read in range(400):
        assert len(going) == LIMITS.mounted_requests, "there is always something to be read"
        assert sum(one.piece.key.shard in tried for one in going) <= 1, "and room for what is no trial"
        one = min(going, key=lambda effect: effect.task)
        going.remove(one)
        bench.now_ms += 1_000
        number = one.piece.key.shard
        if number < 1_000:
            tried.append(number)
            event: upload_events.TaskFailed | upload_events.TaskEnded = upload_events.TaskFailed(
                one.task, upload_events.TaskFailure.DIRECTORY_AWAY, f"node {number}", 0.0
            )
        else:
            answered += number_of_read >= 200
            event = upload_events.TaskEnded(one.task, (_moved(one.piece.key, 1, 100_000),))
        going += [effect for effect in bench.step(event) if isinstance(effect, upload_events.SendChunk)]
    assert set(tried) == set(range(1, 101)) and len(tried) > 100, "each is tried again and again"
    assert answered == 100, "half of the reads, once each place was looked at"
