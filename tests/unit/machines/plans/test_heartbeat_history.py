"""What nodes told last, and how it went with them lately."""

from __future__ import annotations

from stratalog.machines.plans.heartbeat_history import (
    MAX_NODES,
    SAMPLE_EVERY_MS,
    SAMPLES,
    WINDOW_MS,
    HeartbeatHistory,
    Sample,
)
from stratalog.model.activity import Activity, UploadActivity
from stratalog.model.metadata import Vitals


def vitals(produced: int = 0, fetched: int = 0, unsent: int | None = None, free: int = 70) -> Vitals:
    uploads = None if unsent is None else UploadActivity(unsent_bytes=unsent)
    return Vitals(free, 100, unsent is not None, activity=Activity(produced, fetched, uploads))


def samples_of(courses: HeartbeatHistory, node_id: int = 1, after_ms: int = 0) -> tuple[Sample, ...]:
    return next((one.samples for one in courses.courses(after_ms) if one.node_id == node_id), ())


def test_rates_are_what_was_counted_between_two_samples() -> None:
    courses = HeartbeatHistory()
    courses.note(1, 10_000, vitals(1_000, 50, unsent=0))
    courses.note(1, 14_000, vitals(9_000, 50, unsent=300, free=60))
    assert samples_of(courses) == (Sample(14_000, 2_000, 0, 300, 60),)


def test_heartbeats_that_come_often_make_no_more_samples_and_the_last_one_counts() -> None:
    courses = HeartbeatHistory()
    for at_ms in range(0, 10 * SAMPLE_EVERY_MS + 1, SAMPLE_EVERY_MS // 10):
        courses.note(1, at_ms, vitals(at_ms))
    assert [one.at_ms for one in samples_of(courses)] == [SAMPLE_EVERY_MS * at for at in range(1, 11)]
    assert {one.produce_rate for one in samples_of(courses)} == {1_000}
    courses.note(1, 10 * SAMPLE_EVERY_MS + 1, vitals(5, free=3))
    told = courses.last_heartbeat(1)
    assert told is not None and (told.at_ms, told.vitals.disk_free_bytes) == (10 * SAMPLE_EVERY_MS + 1, 3)


def test_a_node_that_begins_again_is_a_gap_and_no_negative_rate() -> None:
    courses = HeartbeatHistory()
    for at_ms, produced in ((0, 5_000), (2_000, 9_000), (4_000, 100), (6_000, 300)):
        courses.note(1, at_ms, vitals(produced))
    assert [one.produce_rate for one in samples_of(courses)] == [2_000, -1, 100]


def test_a_node_without_an_object_store_has_no_upload_lag() -> None:
    courses = HeartbeatHistory()
    courses.note(1, 0, vitals())
    courses.note(1, 2_000, vitals())
    assert [one.unsent_bytes for one in samples_of(courses)] == [-1]


def test_a_node_that_reports_its_disk_alone_has_no_course() -> None:
    courses = HeartbeatHistory()
    for at_ms in (0, 2_000, 4_000):
        courses.note(1, at_ms, Vitals(70, 100, False))
    assert samples_of(courses) == () and courses.last_heartbeat(1) is not None


def test_who_asks_again_gets_only_what_is_new() -> None:
    courses = HeartbeatHistory()
    for at_ms in (0, 2_000, 4_000):
        courses.note(1, at_ms, vitals())
        courses.note(2, at_ms + 1, vitals())
    assert [one.at_ms for one in samples_of(courses, 2, after_ms=2_001)] == [4_001]
    assert courses.courses(4_001) == []


def test_a_clock_that_is_set_back_begins_the_course_again() -> None:
    courses = HeartbeatHistory()
    for at_ms in (100_000, 102_000, 50_000, 52_000):
        courses.note(1, at_ms, vitals())
    assert [one.at_ms for one in samples_of(courses)] == [52_000]


def test_a_node_that_is_gone_for_long_has_no_course_any_more() -> None:
    courses = HeartbeatHistory()
    for at_ms in (0, 2_000, 4_000):
        courses.note(1, at_ms, vitals())
    for at_ms in (2_000 + WINDOW_MS, 4_000 + WINDOW_MS):
        courses.note(2, at_ms, vitals())
    assert samples_of(courses, 1) == () and len(samples_of(courses, 2)) == 1
    courses.note(1, 5_000 + WINDOW_MS, vitals())
    assert [one.at_ms for one in samples_of(courses, 1)] == [5_000 + WINDOW_MS], "back, it has one again"


def test_neither_time_nor_many_nodes_make_it_grow_without_end() -> None:
    courses = HeartbeatHistory()
    for at in range(SAMPLES + 50):
        for node_id in range(MAX_NODES + 10):
            courses.note(node_id, at * SAMPLE_EVERY_MS, vitals(at))
    kept = courses.courses(0)
    assert [one.node_id for one in kept] == list(range(MAX_NODES))
    assert {len(one.samples) for one in kept} == {SAMPLES}
    assert courses.last_heartbeat(MAX_NODES + 9) is not None, "its last report is still shown"
