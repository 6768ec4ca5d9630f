"""All bugs of the product, each with the worlds in which it is looked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stratalog_sim.bugs import of_direct_topics, of_disks, of_groups, of_leaving, of_replication, of_rights, of_tiers
from stratalog_sim.planting import Found, Patch, find_planted
from stratalog_sim.product.leaving_courses import Course
from stratalog_sim.product.play import DIRECT, world_of
from stratalog_sim.product.world import Shape

_USUAL = Shape()


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    patches: Callable[[], list[Patch]]
    shape: Shape = _USUAL


def find(bug: Bug, seeds: range) -> Found | None:
    return find_planted(bug.patches, lambda seed: world_of(seed, bug.shape), seeds)


_ONE_NODE = Shape(nodes=1, replicas=1)
_IN_SYNC = Shape(is_quorum=False)
_QUORUM = Shape(is_quorum=True)
_UPLOADS = Shape(uploads=True, has_bucket=True)
_REPLACED = Shape(replicas=2, uploads=True, has_bucket=False)
_DIRECTORIES = Shape(is_quorum=False, directories=True, seconds=6.0)
_HANDED_OVER = Shape(replicas=1, hands_over=True)
_GROUPS = Shape(has_groups=True, fails_over=True)
_RIGHTS = Shape(rights=True, has_groups=False)
_LEAVING_ONE_COPY = Shape(nodes=3, replicas=1, spares=1)
_UPLOADS_STUCK = Shape(nodes=3, replicas=1, spares=1, has_bucket=True, course=Course.UPLOADS_STUCK)
_CHECKS_BLIND = Shape(nodes=3, replicas=1, spares=1, course=Course.CHECKS_BLIND)
_GIVEN_UP = Shape(
    nodes=3,
    replicas=1,
    spares=1,
    is_quorum=False,
    has_bucket=False,
    has_groups=False,
    course=Course.DIES_ROLLING,
)
_LEAVING = Shape(nodes=3, replicas=2, spares=1)
_CLAIMS_LOST = replace(_LEAVING, course=Course.CLAIMS_LOST)
_HOLDERS_DIE = replace(_LEAVING, course=Course.HOLDERS_DIE)

BUGS = {
    bug.name: bug
    for bug in (
        Bug("seal without digest", of_replication.seal_without_digest),
        Bug("unknown taken as refused", of_replication.unknown_taken_as_refused, Shape(late_news=("fenced late",))),
        Bug("acknowledged before the roll", of_replication.acknowledged_before_the_roll),
        Bug(
            "end reported before it is flushed",
            of_replication.end_reported_before_it_is_flushed,
            Shape(nodes=1, replicas=1, is_fsync=False),
        ),
        Bug("tail not doubted", of_replication.tail_is_not_doubted, Shape(nodes=1, replicas=1, is_fsync=True)),
        Bug("HW past a member", of_replication.high_watermark_past_a_member, _IN_SYNC),
        Bug(
            "stale ISR accepted",
            of_replication.stale_isr_accepted,
            Shape(is_quorum=False, late_news=("ISR heard late",)),
        ),
        Bug(
            "unknown proposal taken as refused",
            of_replication.unknown_proposal_taken_as_refused,
            Shape(is_quorum=False, late_news=("proposal unanswered",)),
        ),
        Bug("quorum of one", of_replication.quorum_of_one, _QUORUM),
        Bug(
            "quorum recovered from one",
            of_replication.quorum_recovered_from_one,
            Shape(is_quorum=True, late_news=("fenced late",)),
        ),
        Bug(
            "producers forgotten at the successor",
            of_replication.producers_forgotten_at_the_successor,
            Shape(fails_over=True),
        ),
        Bug("copy proven from memory", of_replication.copy_proven_from_memory),
        Bug("follower reports the end", of_replication.follower_reports_the_end),
        Bug("a batch is skipped", of_replication.batch_is_skipped),
        Bug(
            "shortened member votes",
            of_replication.shortened_member_votes,
            Shape(is_fsync=False, is_quorum=False, late_news=("alone after a power cut",)),
        ),
        Bug("fence not persisted", of_replication.fence_not_persisted),
        Bug("copy dropped before its replacement", of_replication.copy_dropped_before_its_replacement, _REPLACED),
        Bug("started again behind a hand-over", of_replication.started_again_behind_a_hand_over, _HANDED_OVER),
        Bug("seal taken for a fence", of_replication.seal_taken_for_a_fence, _HANDED_OVER),
        Bug("every member is waited for", of_replication.every_member_is_waited_for, Shape(hangs=True)),
        Bug(
            "report of silence noted late",
            of_replication.report_of_silence_noted_late,
            Shape(hangs=True, is_quorum=False, has_groups=False),
        ),
        Bug("heartbeats taken for health", of_replication.heartbeats_taken_for_health, Shape(hangs=True)),
        Bug("damage taken for a torn tail", of_disks.damage_taken_for_a_torn_tail, _DIRECTORIES),
        Bug("shorter file taken for whole", of_disks.shorter_file_taken_for_whole, _DIRECTORIES),
        Bug("older state accepted", of_disks.older_state_accepted, _DIRECTORIES),
        Bug("copy replaces a living node", of_disks.copy_replaces_a_living_node, _DIRECTORIES),
        Bug("upload above HW", of_tiers.upload_above_high_watermark, _UPLOADS),
        Bug("delete before commit", of_tiers.delete_before_commit, _UPLOADS),
        Bug("any holder uploads", of_tiers.any_holder_uploads, _UPLOADS),
        Bug("uncommitted upload is swept", of_tiers.uncommitted_upload_is_swept, _UPLOADS),
        Bug("commit of a refused put", of_tiers.commit_of_a_refused_put, _UPLOADS),
        Bug("metadata not kept", of_tiers.metadata_acknowledged_before_they_are_kept, _UPLOADS),
        Bug("Direct acknowledged when written", of_direct_topics.acknowledged_when_written, DIRECT),
        Bug("Direct continued after a start", of_direct_topics.continued_after_a_start, DIRECT),
        Bug("commit announced before durable", of_groups.commit_announced_before_it_is_durable, _GROUPS),
        Bug("commit shown before durable", of_groups.committed_offset_shown_before_it_is_durable, _GROUPS),
        Bug("answers after it lost the shard", of_groups.answers_after_it_lost_the_shard, _GROUPS),
        Bug("coordinates before its log is read", of_groups.coordinates_before_its_log_is_read, _GROUPS),
        Bug(
            "assignment announced before durable",
            of_groups.assignment_announced_before_it_is_durable,
            replace(_GROUPS, has_consumer_protocol=False),
        ),
        Bug("trimmed before the snapshot is whole", of_groups.trimmed_before_the_snapshot_is_whole, _GROUPS),
        Bug("decisions outlive a change of rules", of_rights.decisions_outlive_a_change_of_rules, _RIGHTS),
        Bug("released after one check", of_leaving.released_after_one_check, _LEAVING_ONE_COPY),
        Bug("one check counts twice", of_leaving.one_check_counts_twice, _LEAVING_ONE_COPY),
        Bug("unknown copies count as none", of_leaving.unknown_copies_count_as_none, _CHECKS_BLIND),
        Bug(
            "released during an upload",
            of_leaving.released_while_an_upload_is_unfinished,
            _UPLOADS_STUCK,
        ),
        Bug(
            "freed before it is stored",
            of_leaving.freed_before_the_bucket_has_it,
            Shape(nodes=3, replicas=1, spares=1, has_bucket=True),
        ),
        Bug("two holders under a token", of_leaving.two_holders_after_a_lost_answer, _CLAIMS_LOST),
        Bug("holder is not replaced", of_leaving.holder_is_not_replaced, _HOLDERS_DIE),
        Bug("cancelled after the release", of_leaving.cancelled_after_the_release, _LEAVING),
        Bug("mount beyond the seal", of_leaving.mount_goes_beyond_the_seal, _LEAVING),
        Bug("cordon is not heeded", of_leaving.cordon_is_not_heeded, _LEAVING),
        Bug("mount read as its topic", of_leaving.mount_is_read_as_its_topic, _LEAVING),
        Bug("given up silently", of_leaving.given_up_silently, _GIVEN_UP),
        Bug("rolled segment never ended", of_leaving.rolled_segment_of_a_dead_node_never_ends, _GIVEN_UP),
    )
}
