"""Each transition of a segment that is allowed or refused, as a table (docs/meta.md has the same one for people)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.model.commands import table_commands
from stratalog.model.errors import Conflict, Fenced, NotFound, Rejected
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.model.segment import RemoteState, SegmentState
from support.table_stories import TableStory, record_of, state_of

END = 10
STATES = ("active", "sealing", "sealed", "complete", "deleted", "purged")


def segment_in(story: TableStory, state: str) -> tuple[SegmentKey, Lock]:
    """The first segment of a topic, led to a state."""
    lock = story.lock()
    key = story.active(story.topic()).key
    if state == "active":
        return key, lock
    story.roll(key, END)
    if state in ("sealed", "complete"):
        story.seal(key)
    if state == "complete":
        story.commit(lock, key, 0, END)
        story.complete(lock, key)
    if state in ("deleted", "purged"):
        story.do(table_commands.AdvanceLogStart(key.shard_key, END))
    if state == "purged":
        story.do(table_commands.PurgeSegments((key,)))
    return key, lock


def command_for(deed: str, key: SegmentKey, lock: Lock) -> table_commands.TableCommand:
    commands: dict[str, table_commands.TableCommand] = {
        "roll": table_commands.RollSegment(key, END),
        "roll elsewhere": table_commands.RollSegment(key, END + 1),
        "seal": table_commands.SealSegment(key, record_of(key, END)),
        "seal otherwise": table_commands.SealSegment(key, replace(record_of(key, END), digest=b"other")),
        "isr": table_commands.ProposeIsr(key, (1,), 0),
        "fence": table_commands.BeginRecovery(key),
        "complete": table_commands.CompleteRemote(lock, key, "manifest", b"digest", 10),
        "complete otherwise": table_commands.CompleteRemote(lock, key, "another", b"digest", 10),
        "replace manifest": table_commands.ReplaceManifest(lock, key, b"digest", "merged", b"new", 20),
        "replace another": table_commands.ReplaceManifest(lock, key, b"other", "merged", b"new", 20),
        "forget local": table_commands.ForgetLocal((key,), 1),
        "purge": table_commands.PurgeSegments((key,)),
    }
    return commands[deed]


OK = None
TABLE: dict[str, dict[str, type[Rejected] | None]] = {
    # deed:            active, sealing, sealed, complete, deleted, purged
    "roll": dict(zip(STATES, (OK, OK, OK, OK, OK, NotFound), strict=True)),
    "roll elsewhere": dict(zip(STATES, (OK, Fenced, Fenced, Fenced, Fenced, NotFound), strict=True)),
    "seal": dict(zip(STATES, (Conflict, OK, OK, OK, Conflict, NotFound), strict=True)),
    "seal otherwise": dict(zip(STATES, (Conflict, OK, Conflict, Conflict, Conflict, NotFound), strict=True)),
    "isr": dict(zip(STATES, (OK, OK, Conflict, Conflict, Conflict, NotFound), strict=True)),
    "fence": dict(zip(STATES, (OK, OK, OK, OK, OK, NotFound), strict=True)),
    "complete": dict(zip(STATES, (Conflict, Conflict, Conflict, OK, Conflict, NotFound), strict=True)),
    "complete otherwise": dict(zip(STATES, (Conflict, Conflict, Conflict, Conflict, Conflict, NotFound), strict=True)),
    "replace manifest": dict(zip(STATES, (Conflict, Conflict, Conflict, OK, Conflict, NotFound), strict=True)),
    "replace another": dict(zip(STATES, (Conflict, Conflict, Conflict, Conflict, Conflict, NotFound), strict=True)),
    "forget local": dict(zip(STATES, (Conflict, Conflict, Conflict, OK, OK, NotFound), strict=True)),
    "purge": dict(zip(STATES, (Conflict, Conflict, Conflict, Conflict, OK, OK), strict=True)),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("deed", list(TABLE))
def test_a_transition_is_allowed_or_refused_as_the_table_says(deed: str, state: str) -> None:
    story = TableStory()
    key, lock = segment_in(story, state)
    command = command_for(deed, key, lock)
    expected = TABLE[deed][state]
    before = state_of(story.table)
    if expected is None:
        story.do(command)
        again = state_of(story.table)
        if deed not in ("isr", "complete otherwise"):
            story.do(command)
            assert state_of(story.table) == again, "done twice is done once"
    else:
        with pytest.raises(expected):
            story.do(command)
        assert state_of(story.table) == before, "a refused command leaves nothing behind"


@pytest.mark.parametrize("state", STATES[:4])
def test_deleting_the_topic_deletes_a_segment_in_any_state(state: str) -> None:
    story = TableStory()
    key, _ = segment_in(story, state)
    story.now_ms = 77
    story.do(table_commands.DeleteTopic(key.topic_id))
    gone = story.segment(key)
    assert gone.state is SegmentState.DELETED and gone.deleted_ms == 77 and gone.leader is None
    assert gone.remote.state is (RemoteState.COMPLETE if state == "complete" else RemoteState.NONE)


@pytest.mark.parametrize("state", STATES[:5])
def test_a_part_is_committed_until_the_segment_is_complete_or_deleted(state: str) -> None:
    story = TableStory()
    key, lock = segment_in(story, state)
    outcome = story.commit(lock, key, 0, END)
    if state in ("complete", "deleted"):
        assert isinstance(outcome, Conflict)
    else:
        assert story.segment(key).remote.commit_offset == END


def test_nothing_goes_back() -> None:
    """The states of one segment over its whole life, in order."""
    story = TableStory()
    lock = story.lock()
    key = story.active(story.topic()).key
    seen = [story.segment(key).state]
    story.roll(key, END)
    seen.append(story.segment(key).state)
    seen.append(story.seal(key).state)
    story.commit(lock, key, 0, END)
    story.complete(lock, key)
    story.do(table_commands.AdvanceLogStart(key.shard_key, END))
    seen.append(story.segment(key).state)
    assert seen == [SegmentState.ACTIVE, SegmentState.SEALING, SegmentState.SEALED, SegmentState.DELETED]
